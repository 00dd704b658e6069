//! The private key that signs what goes to the authentication service, as it stands in its file at this moment, and the
//! compact JWS (RFC 7515) that it makes: RS256 or ES256, by the kind of the key.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::Signer;
use sha2::{Digest, Sha256};

use super::AuthError;

/// More than any key with its certificates.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Why a file holds no usable key. What is in the file is not repeated.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is no key file at all.
    #[error("is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// There is no private key in it.
    #[error("holds no unencrypted private key in PEM (PKCS#8, PKCS#1 or SEC1)")]
    NotPem,
    /// There is a key in it that we cannot sign with.
    #[error("the key must be RSA of 2048 to 4096 bits, or on the curve P-256")]
    Kind,
}

/// A key file. It is read for every signature, which costs less than signing, so that a new key holds at once and one
/// that was withdrawn signs nothing more.
pub(super) struct KeyFile {
    path: PathBuf,
    /// The key and the digest of the file that it came from; `None` while the file holds no key.
    loaded: Mutex<Option<([u8; 32], Arc<Key>)>>,
}

impl KeyFile {
    pub(super) fn open(path: PathBuf) -> Result<Self, KeyError> {
        let pem = read(&path)?;
        let key = Key::from_pem(&pem)?;
        let loaded = Mutex::new(Some((digest(&pem), Arc::new(key))));
        Ok(Self { path, loaded })
    }

    /// A signed token with these claims. Blocks on the disk and on arithmetic.
    pub(super) fn sign(&self, claims: &[u8]) -> Result<String, AuthError> {
        self.current()?.sign(claims).ok_or(AuthError::Signing)
    }

    fn current(&self) -> Result<Arc<Key>, AuthError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let found = read(&self.path).and_then(|pem| {
            let digest = digest(&pem);
            match &*loaded {
                Some((known, key)) if *known == digest => Ok((digest, Arc::clone(key))),
                _ => Ok((digest, Arc::new(Key::from_pem(&pem)?))),
            }
        });
        let path = self.path.display();
        match found {
            Ok((digest, key)) => {
                if loaded.replace((digest, Arc::clone(&key))).is_none() {
                    tracing::info!(%path, "auth.signing_key_path: the key can be used again");
                }
                Ok(key)
            }
            Err(error) => {
                // Told once, not once per request.
                if loaded.take().is_some() {
                    tracing::error!(%path, %error, "auth.signing_key_path: the key cannot be used any more");
                }
                Err(AuthError::Config)
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, KeyError> {
    let mut pem = Vec::new();
    File::open(path)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut pem)?;
    if pem.len() as u64 > MAX_FILE_BYTES {
        return Err(KeyError::TooLarge);
    }
    Ok(pem)
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// A key that signs.
pub struct Key(Box<dyn Signer>);

impl Key {
    /// The first private key in a PEM text.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        // The causes quote lines of the file.
        let der = PrivateKeyDer::from_pem_slice(pem).map_err(|_| KeyError::NotPem)?;
        let key = any_supported_type(&der).map_err(|_| KeyError::Kind)?;
        let schemes = [
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::ECDSA_NISTP256_SHA256,
        ];
        key.choose_scheme(&schemes).map(Self).ok_or(KeyError::Kind)
    }

    /// Whether it signs RS256, and not ES256.
    pub fn is_rsa(&self) -> bool {
        self.0.scheme() == SignatureScheme::RSA_PKCS1_SHA256
    }

    /// A signed token with these claims.
    pub fn sign(&self, claims: &[u8]) -> Option<String> {
        let elliptic = !self.is_rsa();
        let header: &[u8] = if elliptic {
            br#"{"alg":"ES256","typ":"JWT"}"#
        } else {
            br#"{"alg":"RS256","typ":"JWT"}"#
        };
        let mut token = URL_SAFE_NO_PAD.encode(header);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let mut signature = self.0.sign(token.as_bytes()).ok()?;
        if elliptic {
            signature = fixed_width(&signature)?.to_vec();
        }
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Some(token)
    }
}

/// An ECDSA signature as JWS has it (RFC 7518, section 3.4: both numbers with 32 bytes) from the one of TLS (DER).
fn fixed_width(der: &[u8]) -> Option<[u8; 64]> {
    let [0x30, length, numbers @ ..] = der else {
        return None;
    };
    let (r, rest) = integer(numbers)?;
    let (s, rest) = integer(rest)?;
    if usize::from(*length) != numbers.len() || !rest.is_empty() {
        return None;
    }
    let mut fixed = [0; 64];
    for (place, digits) in fixed.chunks_exact_mut(32).zip([r, s]) {
        let start = place.len().checked_sub(digits.len())?;
        place[start..].copy_from_slice(digits);
    }
    Some(fixed)
}

/// The first number of a DER text without its sign byte, and what follows it.
fn integer(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let [0x02, length, rest @ ..] = der else {
        return None;
    };
    let (digits, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((digits.strip_prefix(&[0]).unwrap_or(digits), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_signature_have_their_full_width() {
        // r is short by a byte, s needs a sign byte.
        let (r, s) = ([1; 31], [0xff; 32]);
        let der = [&[0x30, 68, 2, 31][..], &r, &[2, 33, 0], &s].concat();
        let fixed = fixed_width(&der).unwrap();
        assert_eq!(fixed[..], [&[0][..], &r, &s].concat());
        for broken in [&der[..der.len() - 1], &der[1..], &[], &[0x30, 0]] {
            assert_eq!(fixed_width(broken), None);
        }
        let long = [&[0x30, 39, 2, 33][..], &[7; 33], &[2, 2, 0, 1]].concat();
        assert_eq!(fixed_width(&long), None);
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        for text in [
            "marker",
            "-----BEGIN PRIVATE KEY-----\nmarker\n-----END PRIVATE KEY-----\n",
            "-----BEGIN PRIVATE KEY-----\nbWFya2Vy\n-----END PRIVATE KEY-----\n",
            "-----BEGIN marker",
            "",
        ] {
            std::fs::write(&file, text).unwrap();
            let error = KeyFile::open(file.clone()).err().unwrap();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("marker"), "{shown}");
        }
        let missing = KeyFile::open(folder.path().join("none")).err().unwrap();
        assert!(matches!(missing, KeyError::Read(_)));
    }
}
