//! How vendors are reached: TLS with the system's roots, one pool of HTTP connections, WebSockets with deadlines, and the
//! two drivers that run a vendor's protocol over a socket. What a vendor's messages mean is its own folder's knowledge: it
//! implements [`hearing::Protocol`] or [`speaking::Protocol`] without any I/O.

mod answer;
pub mod hearing;
mod outgoing;
mod permits;
mod pool;
mod refusal;
pub mod speaking;
#[cfg(test)]
mod tests;
pub mod websocket;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls_platform_verifier::Verifier;

pub use answer::answer;
pub use outgoing::Outgoing;
pub use permits::{Permit, Permits};
pub use refusal::{Refusal, retry_after, shortened};
use vivavoce_core::outgoing::Authorities;
use vivavoce_quotas::Share;

/// How long a TCP connection with its TLS handshake may take where the caller does not say.
const CONNECTING: Duration = Duration::from_secs(10);
/// The whole of a request for a list.
const REQUEST: Duration = Duration::from_secs(30);

/// Everything that connections to vendors share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transport {
    tls: Arc<rustls::ClientConfig>,
    http: reqwest::Client,
    /// No socket is kept for another utterance when it is older.
    oldest: Duration,
    /// What one party may have of the connections that a credential has.
    share: Share,
}

/// Why vendors cannot be reached at all.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// TLS itself.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// The HTTP client.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
}

impl Transport {
    /// A transport that believes the system's authorities and these.
    pub fn new(authorities: &Authorities) -> Result<Self, TransportError> {
        let roots = authorities.certificates().to_vec();
        let crypto = Arc::new(rustls::crypto::ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> =
            Arc::new(Verifier::new_with_extra_roots(roots, Arc::clone(&crypto))?);
        let tls = rustls::ClientConfig::builder_with_provider(crypto)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .connect_timeout(CONNECTING)
            .timeout(REQUEST)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("vivavoce/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self {
            tls: Arc::new(tls),
            http,
            oldest: Duration::MAX,
            share: Share::default(),
        })
    }

    /// The same, with sockets that are kept for no further utterance once they are so old.
    #[must_use]
    pub fn with_oldest(self, oldest: Duration) -> Self {
        Self { oldest, ..self }
    }

    /// The same, where nobody has more than this share of a credential's connections.
    #[must_use]
    pub fn with_share(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// So many connections for each credential; any number where `each` is absent.
    pub fn permits(&self, provider: &'static str, each: Option<NonZeroU32>) -> Permits {
        Permits::new(provider, each).shared(self.share)
    }

    /// For requests over HTTP; redirects are not followed.
    pub const fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// For connections that are neither HTTP nor WebSocket.
    pub fn tls(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.tls)
    }
}
