//! The private key that signs requests to the authentication service, read from its file, and the compact JWS (RFC 7515)
//! made with it: RS256 or ES256, depending on the key. Signing is `jsonwebtoken`'s.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::SignatureAlgorithm;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::AuthError;

/// The maximum size of a key file: more than any key with its certificates.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Why a key file cannot be used. The messages do not quote the file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// It is too large to be a key file.
    #[error("is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// It contains no private key.
    #[error("holds no unencrypted private key in PEM (PKCS#8, PKCS#1 or SEC1)")]
    NotPem,
    /// The key is of an unsupported type or size.
    #[error(
        "the key must be RSA of 2048 to 8192 bits whose numbers belong together, or on the curve P-256"
    )]
    Kind,
}

/// A key file. It is read for every signature, which costs less than signing, so that a new key is used at once and a
/// removed one no longer.
pub(super) struct KeyFile {
    path: PathBuf,
    /// The key and the digest of its file; `None` while the file contains no usable key.
    loaded: Mutex<Option<([u8; 32], Arc<Key>)>>,
}

impl KeyFile {
    pub(super) fn open(path: PathBuf) -> Result<Self, KeyError> {
        let pem = read(&path)?;
        let key = Key::from_pem(&pem)?;
        let loaded = Mutex::new(Some((digest(&pem), Arc::new(key))));
        Ok(Self { path, loaded })
    }

    /// Signs a token with these claims (JSON). Blocks on the disk and on the computation.
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
                // Logged once, not for every request.
                if loaded.take().is_some() {
                    tracing::error!(%path, %error, "auth.signing_key_path: the key has become unusable");
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

/// A private key for signing tokens.
pub struct Key {
    algorithm: Algorithm,
    key: EncodingKey,
}

impl Key {
    /// The first private key in a PEM text: RSA as PKCS#1 or PKCS#8, P-256 as SEC1 or PKCS#8.
    ///
    /// `jsonwebtoken` reads PEM itself, but only the first block (`openssl ecparam` writes the curve's parameters first),
    /// and no SEC1. So the block is found here, and handed over in a form that it accepts.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        // The cause would quote lines of the file.
        let der = PrivateKeyDer::from_pem_slice(pem).map_err(|_| KeyError::NotPem)?;
        // What the key is, and whether it is supported: RSA of 2048 to 8192 bits, or an elliptic curve.
        let kind = any_supported_type(&der).map_err(|_| KeyError::Kind)?;
        match (&der, kind.algorithm()) {
            (PrivateKeyDer::Pkcs1(der), SignatureAlgorithm::RSA) => Ok(Self {
                algorithm: Algorithm::RS256,
                key: EncodingKey::from_rsa_der(der.secret_pkcs1_der()),
            }),
            (PrivateKeyDer::Pkcs8(der), SignatureAlgorithm::RSA) => {
                let pem = format!(
                    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
                    STANDARD.encode(der.secret_pkcs8_der())
                );
                let key = EncodingKey::from_rsa_pem(pem.as_bytes()).map_err(|_| KeyError::Kind)?;
                let algorithm = Algorithm::RS256;
                Ok(Self { algorithm, key })
            }
            (PrivateKeyDer::Pkcs8(der), SignatureAlgorithm::ECDSA) => {
                Self::p256(der.secret_pkcs8_der())
            }
            (PrivateKeyDer::Sec1(der), SignatureAlgorithm::ECDSA) => {
                Self::p256(der.secret_sec1_der())
            }
            _ => Err(KeyError::Kind),
        }
    }

    /// A key on the curve P-256, in PKCS#8 or SEC1.
    fn p256(der: &[u8]) -> Result<Self, KeyError> {
        let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der);
        let pkcs8 = pair.map_err(|_| KeyError::Kind)?.to_pkcs8v1();
        let pkcs8 = pkcs8.map_err(|_| KeyError::Kind)?;
        Ok(Self {
            algorithm: Algorithm::ES256,
            key: EncodingKey::from_ec_der(pkcs8.as_ref()),
        })
    }

    /// Whether the key is RSA (RS256) rather than P-256 (ES256).
    pub fn is_rsa(&self) -> bool {
        self.algorithm == Algorithm::RS256
    }

    /// Signs a token with these claims (JSON), which it contains verbatim. `None` if they are not JSON, or if signing
    /// fails.
    pub fn sign(&self, claims: &[u8]) -> Option<String> {
        let claims: &RawValue = serde_json::from_slice(claims).ok()?;
        jsonwebtoken::encode(&Header::new(self.algorithm), &claims, &self.key).ok()
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der, Pkcs8V1Der};
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_FIXED, KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey,
    };
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    const CLAIMS: &str = r#"{"sub":"a", "body":  {"verbatim" : 1.0e2, "verbatim":2}}"#;

    fn pem(label: &str, der: &[u8]) -> String {
        let text = STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    }

    /// The signed text of a token, its header and claims, and its signature.
    fn parts(token: &str) -> (&str, [String; 2], Vec<u8>) {
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let (header, claims) = signed.split_once('.').unwrap();
        let decoded = |text| String::from_utf8(URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        (signed, [decoded(header), decoded(claims)], signature)
    }

    #[test]
    fn every_form_of_a_key_signs_and_the_claims_stay_verbatim() {
        let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        let pkcs8: Pkcs8V1Der<'_> = rsa.as_der().unwrap();
        // PKCS#8 wraps PKCS#1 in an octet string behind its version and algorithm.
        let der: &[u8] = pkcs8.as_ref();
        let (wrapping, pkcs1) = der.split_at(26);
        assert_eq!(wrapping[22..24], [0x04, 0x82]);
        let pkcs1 = pem("RSA PRIVATE KEY", pkcs1);
        let pkcs8 = pem("PRIVATE KEY", der);
        for text in [pkcs8, pkcs1] {
            let key = Key::from_pem(text.as_bytes()).unwrap();
            assert!(key.is_rsa());
            let token = key.sign(CLAIMS.as_bytes()).unwrap();
            let (signed, [header, claims], signature) = parts(&token);
            assert_eq!(header, r#"{"typ":"JWT","alg":"RS256"}"#);
            assert_eq!(claims, CLAIMS);
            let public = rsa.public_key().as_ref();
            let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public);
            assert!(public.verify(signed.as_bytes(), &signature).is_ok());
        }

        let p256 = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let pkcs8 = pem("PRIVATE KEY", p256.to_pkcs8v1().unwrap().as_ref());
        let sec1: EcPrivateKeyRfc5915Der<'_> = p256.private_key().as_der().unwrap();
        let sec1 = pem("EC PRIVATE KEY", sec1.as_ref());
        // As `openssl ecparam -genkey` writes it.
        let after_parameters = pem("EC PARAMETERS", &[6, 8, 42, 134, 72, 206, 61, 3, 1, 7]) + &sec1;
        for text in [pkcs8, sec1, after_parameters] {
            let key = Key::from_pem(text.as_bytes()).unwrap();
            assert!(!key.is_rsa());
            let token = key.sign(CLAIMS.as_bytes()).unwrap();
            let (signed, [header, claims], signature) = parts(&token);
            assert_eq!(header, r#"{"typ":"JWT","alg":"ES256"}"#);
            assert_eq!(claims, CLAIMS);
            let public = p256.public_key().as_ref();
            let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public);
            assert!(public.verify(signed.as_bytes(), &signature).is_ok());
        }
    }

    #[test]
    fn numbers_of_a_signature_have_their_full_width() {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let text = pem("PRIVATE KEY", pair.to_pkcs8v1().unwrap().as_ref());
        let key = Key::from_pem(text.as_bytes()).unwrap();
        // One of the two numbers begins with a zero byte about once in 128 signatures.
        for number in 0..1_000 {
            let token = key.sign(number.to_string().as_bytes()).unwrap();
            assert_eq!(parts(&token).2.len(), 64);
        }
    }

    #[test]
    fn keys_on_other_curves_are_refused() {
        use aws_lc_rs::signature::ECDSA_P384_SHA384_FIXED_SIGNING;
        let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap();
        let p384 = pem("PRIVATE KEY", p384.to_pkcs8v1().unwrap().as_ref());
        let refused = Key::from_pem(p384.as_bytes()).err();
        assert!(matches!(refused, Some(KeyError::Kind)), "{refused:?}");
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
