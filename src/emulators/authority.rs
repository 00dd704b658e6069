//! The emulators' own certificate authority, generated at each start. Clients that insist on TLS are given its file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

use vivavoce_core::listener_tls::{self as tls, TlsError};

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificates could not be made.
    #[error("the certificates could not be made: {0}")]
    Make(#[from] rcgen::Error),
    /// They could not be written.
    #[error("the certificates could not be written: {0}")]
    Write(#[from] io::Error),
    /// They could not be used.
    #[error(transparent)]
    Use(#[from] TlsError),
}

/// A folder with `ca.pem`, which is removed in the end.
#[derive(Debug)]
pub struct Authority(TempDir);

impl Authority {
    /// Makes an authority, and a certificate for this machine with the settings of a server that shows it.
    pub fn new() -> Result<(Self, rustls::ServerConfig), AuthorityError> {
        let folder = tempfile::Builder::new()
            .prefix("vivavoce-emulate-")
            .tempdir()?;
        let key = KeyPair::generate()?;
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        authority
            .distinguished_name
            .push(DnType::CommonName, "Vivavoce emulators");
        fs::write(
            folder.path().join("ca.pem"),
            authority.self_signed(&key)?.pem(),
        )?;

        let own_key = KeyPair::generate()?;
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut own = CertificateParams::new(names)?;
        // Some clients insist that the issuer is named by its key.
        own.use_authority_key_identifier_extension = true;
        let own = own.signed_by(&own_key, &Issuer::new(authority, key))?;
        let (cert, private) = (
            folder.path().join("cert.pem"),
            folder.path().join("key.pem"),
        );
        fs::write(&cert, own.pem())?;
        fs::write(&private, own_key.serialize_pem())?;
        let config = tls::server_config(&cert, &private)?;
        Ok((Self(folder), config))
    }

    /// The file that a client must trust.
    pub fn ca_file(&self) -> PathBuf {
        self.folder().join("ca.pem")
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }
}
