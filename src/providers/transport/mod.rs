//! Connections to vendors: TLS with the system's roots, one HTTP client, WebSockets with timeouts, and the two drivers that
//! run a vendor's protocol over a socket. The messages of a vendor are defined in its own folder, which implements
//! [`stt_driver::Protocol`] or [`tts_driver::Protocol`] without any I/O.

mod answer;
mod endpoint;
mod permits;
mod pool;
mod protocol_io;
mod refusal;
pub mod stt_driver;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod tts_driver;
pub mod websocket;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls_platform_verifier::Verifier;

pub use answer::{AnswerError, answer, body};
pub use endpoint::{Vendor, VendorEndpoint};
pub use permits::{Permit, Permits};
pub use protocol_io::{Outgoing, ProtocolIo};
pub use refusal::{Refusal, retry_after, shortened};
use vivavoce_core::tls_roots::Authorities;
use vivavoce_quotas::Share;

/// The default timeout of a TCP connection including its TLS handshake.
const CONNECTING: Duration = Duration::from_secs(10);
/// The timeout of a whole HTTP request.
const REQUEST: Duration = Duration::from_secs(30);

/// TLS configuration and HTTP client of all vendors. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transport {
    tls: Arc<rustls::ClientConfig>,
    http: reqwest::Client,
    /// The maximum age at which a socket is reused.
    oldest: Duration,
    /// One party's share of the connections of a credential.
    share: Share,
}

/// Why the transport cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The TLS configuration is invalid.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// The HTTP client cannot be built.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
}

impl Transport {
    /// A transport that trusts the system's certificate authorities and these.
    pub fn new(authorities: &Authorities) -> Result<Self, TransportError> {
        let roots = authorities.certificates().to_vec();
        let crypto = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
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

    /// Sets the maximum age at which a socket is reused.
    #[must_use]
    pub fn with_oldest(self, oldest: Duration) -> Self {
        Self { oldest, ..self }
    }

    /// Limits each party to this share of a credential's connections.
    #[must_use]
    pub fn with_share(self, share: Share) -> Self {
        Self { share, ..self }
    }

    /// Permits for `each` connections per credential; unlimited where it is absent.
    pub fn permits(&self, provider: &'static str, each: Option<NonZeroU32>) -> Permits {
        Permits::new(provider, each).shared(self.share)
    }

    /// The HTTP client. It does not follow redirects.
    pub const fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The TLS configuration, for connections that are neither HTTP nor WebSocket.
    pub fn tls(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.tls)
    }
}
