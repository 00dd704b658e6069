//! The server's TLS certificate and key, loaded at start-up and reloaded when the files change. Accepting
//! connections is left to the server.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::client::ResolvesClientCert;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};

/// The minimum interval between two checks of the files.
const LOOKING: Duration = Duration::from_secs(1);

/// Why a certificate cannot be used. The message begins with the setting's name.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate file cannot be read.
    #[error("server.tls.cert: {}: {source}", file.display())]
    Certificate {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// The file contains no certificate.
    #[error("server.tls.cert: {}: there is no certificate in it", .0.display())]
    NoCertificate(PathBuf),
    /// The key cannot be read.
    #[error("server.tls.key: {}: {source}", file.display())]
    Key {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// The file of client authorities cannot be read.
    #[error("server.tls.client_ca: {}: {source}", file.display())]
    Authorities {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// It has no authority that can be used.
    #[error("server.tls.client_ca: {}: {}", .0.display(), .1)]
    NoAuthority(PathBuf, rustls::server::VerifierBuilderError),
    /// The key is of an unsupported type, or does not belong to the certificate.
    #[error("server.tls.cert, server.tls.key: {0}")]
    Pair(rustls::Error),
    /// The TLS library supports none of the configured protocol versions.
    #[error("server.tls: {0}")]
    Setup(rustls::Error),
}

/// A rustls configuration that uses the pair in these files and reloads it when they change.
pub fn server_config(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let crypto = Arc::new(aws_lc_rs::default_provider());
    let files = Files {
        cert: cert.to_owned(),
        key: key.to_owned(),
        crypto: Arc::clone(&crypto),
    };
    let config = ServerConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Follower::new(files, Instant::now())?));
    Ok(config)
}

/// The same for those alone who have a certificate of these authorities, a PEM file that is read now.
pub fn server_config_for(
    cert: &Path,
    key: &Path,
    authorities: &Path,
) -> Result<ServerConfig, TlsError> {
    let crypto = Arc::new(aws_lc_rs::default_provider());
    let unreadable = |source| TlsError::Authorities {
        file: authorities.to_owned(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(authorities)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable)?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&crypto))
            .build()
            .map_err(|error| TlsError::NoAuthority(authorities.to_owned(), error))?;
    let files = Files {
        cert: cert.to_owned(),
        key: key.to_owned(),
        crypto: Arc::clone(&crypto),
    };
    let config = ServerConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(Follower::new(files, Instant::now())?));
    Ok(config)
}

/// The certificate with which a client connects, read now.
pub fn client_certificate(
    cert: &Path,
    key: &Path,
) -> Result<Arc<dyn ResolvesClientCert>, TlsError> {
    let files = Files {
        cert: cert.to_owned(),
        key: key.to_owned(),
        crypto: Arc::new(aws_lc_rs::default_provider()),
    };
    let pair = files.read()?;
    Ok(Arc::new(SingleCertAndKey::from(pair)))
}

#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    crypto: Arc<CryptoProvider>,
}

/// Identifies a version of the two files: modification time, length and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp([Option<(i64, i64, u64, u64)>; 2]);

impl Files {
    fn stamp(&self) -> Stamp {
        let of = |metadata: Metadata| {
            (
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.len(),
                metadata.ino(),
            )
        };
        Stamp([&self.cert, &self.key].map(|file| fs::metadata(file).ok().map(of)))
    }

    fn read(&self) -> Result<Arc<CertifiedKey>, TlsError> {
        let unreadable = |source| TlsError::Certificate {
            file: self.cert.clone(),
            source,
        };
        let chain = CertificateDer::pem_file_iter(&self.cert)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(unreadable)?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate(self.cert.clone()));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|source| TlsError::Key {
            file: self.key.clone(),
            source,
        })?;
        CertifiedKey::from_der(chain, key, &self.crypto)
            .map(Arc::new)
            .map_err(TlsError::Pair)
    }
}

/// The certificate in use, which follows the files. If the new files cannot be used, the last good pair stays in
/// use.
#[derive(Debug)]
struct Follower {
    files: Files,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pair: Arc<CertifiedKey>,
    /// The version of the files that was read last, whether it was usable or not, so that each version is read and
    /// reported once.
    stamp: Stamp,
    looked: Instant,
}

impl Follower {
    fn new(files: Files, now: Instant) -> Result<Self, TlsError> {
        // Taken before reading, so that a change during the read is noticed the next time.
        let stamp = files.stamp();
        let state = State {
            pair: files.read()?,
            stamp,
            looked: now,
        };
        Ok(Self {
            files,
            state: Mutex::new(state),
        })
    }

    fn pair(&self, now: Instant) -> Arc<CertifiedKey> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(state.looked) >= LOOKING {
            state.looked = now;
            let stamp = self.files.stamp();
            if stamp != state.stamp {
                state.stamp = stamp;
                match self.files.read() {
                    Ok(pair) => {
                        tracing::info!("the certificate was read anew");
                        state.pair = pair;
                    }
                    Err(error) => {
                        tracing::error!(%error, "the new certificate cannot be used; the last one stays in force");
                    }
                }
            }
        }
        Arc::clone(&state.pair)
    }
}

impl ResolvesServerCert for Follower {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.pair(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            let folder = Self(tempfile::tempdir().unwrap());
            folder.write();
            folder
        }

        /// Writes a new pair and returns its certificate.
        fn write(&self) -> CertificateDer<'static> {
            let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            fs::write(self.cert(), pair.cert.pem()).unwrap();
            fs::write(self.key(), pair.signing_key.serialize_pem()).unwrap();
            pair.cert.der().clone()
        }

        fn cert(&self) -> PathBuf {
            self.0.path().join("cert.pem")
        }

        fn key(&self) -> PathBuf {
            self.0.path().join("key.pem")
        }

        fn follower(&self, now: Instant) -> Result<Follower, TlsError> {
            let crypto = Arc::new(aws_lc_rs::default_provider());
            let files = Files {
                cert: self.cert(),
                key: self.key(),
                crypto,
            };
            Follower::new(files, now)
        }
    }

    #[test]
    fn a_new_pair_is_in_force_after_a_second() {
        let folder = Folder::new();
        let start = Instant::now();
        let follower = folder.follower(start).unwrap();
        let old = follower.pair(start).cert.clone();
        let new = folder.write();
        assert_eq!(follower.pair(start + LOOKING / 2).cert, old);
        assert_eq!(follower.pair(start + LOOKING).cert, [new]);
    }

    #[test]
    fn a_bad_pair_leaves_the_last_one_in_force_until_it_is_mended() {
        let folder = Folder::new();
        let start = Instant::now();
        let follower = folder.follower(start).unwrap();
        let old = follower.pair(start).cert.clone();
        fs::write(folder.key(), "nonsense").unwrap();
        assert_eq!(follower.pair(start + LOOKING).cert, old);
        fs::remove_file(folder.cert()).unwrap();
        assert_eq!(follower.pair(start + LOOKING * 2).cert, old);
        let new = folder.write();
        assert_eq!(follower.pair(start + LOOKING * 3).cert, [new]);
    }

    #[test]
    fn what_cannot_be_used_is_named_by_its_setting() {
        type Case = (fn(&Folder), &'static str);
        let refused = |spoil: fn(&Folder)| {
            let folder = Folder::new();
            spoil(&folder);
            folder.follower(Instant::now()).unwrap_err().to_string()
        };
        let cases: [Case; 5] = [
            (
                |folder| fs::remove_file(folder.cert()).unwrap(),
                "server.tls.cert: ",
            ),
            (
                |folder| fs::write(folder.cert(), "").unwrap(),
                "server.tls.cert: ",
            ),
            (
                |folder| fs::remove_file(folder.key()).unwrap(),
                "server.tls.key: ",
            ),
            (
                |folder| fs::write(folder.key(), "x").unwrap(),
                "server.tls.key: ",
            ),
            (
                |folder| {
                    fs::copy(Folder::new().key(), folder.key()).unwrap();
                },
                "server.tls.cert, server.tls.key: ",
            ),
        ];
        for (spoil, begin) in cases {
            let error = refused(spoil);
            assert!(error.starts_with(begin), "{error}");
        }
    }
}
