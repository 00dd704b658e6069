//! How vendors are reached: TLS with the system's roots, one pool of HTTP connections, WebSockets with deadlines, and the
//! two drivers that run a vendor's protocol over a socket. What a vendor's messages mean is its own folder's knowledge: it
//! implements [`hearing::Protocol`] or [`speaking::Protocol`] without any I/O.

pub mod hearing;
mod outgoing;
mod permits;
mod pool;
mod refusal;
pub mod speaking;
pub mod websocket;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;

pub use outgoing::Outgoing;
pub use permits::{Permit, Permits};
pub use refusal::{Refusal, retry_after, shortened};

/// How long a TCP connection with its TLS handshake may take where the caller does not say.
const CONNECTING: Duration = Duration::from_secs(10);
/// The whole of a request for a list.
const REQUEST: Duration = Duration::from_secs(30);

/// Everything that connections to vendors share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Transport {
    tls: Arc<rustls::ClientConfig>,
    http: reqwest::Client,
}

/// Why vendors cannot be reached at all.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The file with further roots.
    #[error("{path}: {source}")]
    Roots {
        /// Which file.
        path: String,
        /// What is wrong with it.
        source: io::Error,
    },
    /// TLS itself.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// The HTTP client.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
}

impl Transport {
    /// A transport that trusts the system's roots, and those in the PEM file `roots`.
    pub fn new(roots: Option<&Path>) -> Result<Self, TransportError> {
        let roots = roots.map_or_else(|| Ok(Vec::new()), read_roots)?;
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
        })
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

fn read_roots(path: &Path) -> Result<Vec<CertificateDer<'static>>, TransportError> {
    let failed = |source| TransportError::Roots {
        path: path.display().to_string(),
        source,
    };
    let pem = std::fs::read(path).map_err(failed)?;
    let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let roots = roots.map_err(|error| failed(io::Error::other(error.to_string())))?;
    if roots.is_empty() {
        return Err(failed(io::Error::other("holds no certificate")));
    }
    Ok(roots)
}
