//! The certificate authorities that the server trusts when it connects to other servers over TLS: the system's, and
//! those of a file (`outgoing.ca_file`) for networks with a private CA.

use std::io;
use std::path::{Path, PathBuf};

use reqwest::{Certificate, Client, ClientBuilder, redirect};
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Why no other server could be trusted.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// The CA file cannot be used.
    #[error("outgoing.ca_file: {}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// There are no authorities.
    #[error(
        "no certificates of authorities can be used, so that no other server could be trusted ({0}): install the Debian package \
         ca-certificates, or name some with outgoing.ca_file (OUTGOING_CA_FILE)"
    )]
    System(String),
}

/// What is wrong with a CA file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is of another format.
    #[error("holds something that is no certificate in PEM")]
    NotPem,
    /// It is empty.
    #[error("holds no certificate")]
    Empty,
    /// One of its certificates is of no use.
    #[error("certificate {number} cannot be used: {source}")]
    Unusable {
        /// Its number, from 1.
        number: usize,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The additional certificate authorities; none by default.
#[derive(Debug, Clone, Default)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl Authorities {
    /// Reads the PEM file, if there is one.
    pub fn read(file: Option<&Path>) -> Result<Self, AuthoritiesError> {
        let certificates = file.map(|path| {
            certificates(path).map_err(|problem| AuthoritiesError::File {
                path: path.to_owned(),
                problem,
            })
        });
        let read = Self(certificates.transpose()?.unwrap_or_default());
        // Whoever connects later could not say what is missing. There is no client before the process has chosen its encryption.
        if CryptoProvider::get_default().is_some() {
            let client = read.client().build();
            client.map_err(|error| AuthoritiesError::System(innermost(&error)))?;
        }
        Ok(read)
    }

    /// An HTTP client that trusts these authorities in addition to the system's.
    pub fn client(&self) -> ClientBuilder {
        let known = |der: &CertificateDer<'static>| Certificate::from_der(der).ok();
        Client::builder().tls_certs_merge(self.0.iter().filter_map(known))
    }

    /// The same for WebSockets that this server opens: to exactly the address that is given, over a connection of its own.
    pub fn websocket_client(&self) -> ClientBuilder {
        self.client()
            .user_agent(concat!("vivavoce/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            // A proxy would connect to addresses that were not checked.
            .no_proxy()
            // Each socket has a connection of its own.
            .pool_max_idle_per_host(0)
            .http1_only()
    }

    /// The certificates of the file.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.0
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let pem = std::fs::read(path)?;
    let mut certificates = Vec::new();
    for der in CertificateDer::pem_slice_iter(&pem) {
        let der = der.map_err(|_| Problem::NotPem)?;
        let number = certificates.len() + 1;
        // Otherwise the client would fail only when it first connects.
        let added = RootCertStore::empty().add(der.clone());
        added.map_err(|source| Problem::Unusable {
            number,
            source: source.into(),
        })?;
        let usable = Certificate::from_der(&der);
        usable.map_err(|source| Problem::Unusable {
            number,
            source: source.into(),
        })?;
        certificates.push(der);
    }
    if certificates.is_empty() {
        return Err(Problem::Empty);
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_usable_certificates_is_named_with_its_setting() {
        // As the program does when it starts.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let missing = Authorities::read(Some(&file)).unwrap_err().to_string();
        assert!(missing.starts_with("outgoing.ca_file: "), "{missing}");
        let good = rcgen::generate_simple_self_signed(["ca.example".to_owned()]).unwrap();
        let good = good.cert.pem();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (text, part) in [
            ("", "no certificate"),
            ("text", "no certificate"),
            (broken, "certificate 1"),
            (&format!("{good}{broken}"), "certificate 2"),
            ("-----BEGIN CERTIFICATE-----\n%", "no certificate in PEM"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Authorities::read(Some(&file)).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        std::fs::write(&file, format!("{good}{good}")).unwrap();
        assert_eq!(Authorities::read(Some(&file)).unwrap().0.len(), 2);
        assert!(Authorities::read(None).unwrap().0.is_empty());
    }
}
