//! Keys made for this run: one of each kind that may sign, in every form that a file may have.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey};
use p256::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding};
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::pkcs1::der::Decode;
use rsa::rand_core::OsRng;

/// A key pair.
pub struct TestKey {
    /// What a test calls it.
    pub name: &'static str,
    /// The private key as PKCS#8.
    pub pkcs8: String,
    /// The same as PKCS#1 (RSA) or SEC1 (EC).
    pub traditional: String,
    /// What must stand in the header.
    pub algorithm: Algorithm,
    /// The public key.
    pub public: DecodingKey,
}

/// RS256.
pub static RSA: LazyLock<TestKey> = LazyLock::new(|| {
    let key = rsa::RsaPrivateKey::new(&mut OsRng, 2048).unwrap();
    let public = key
        .to_public_key()
        .to_public_key_pem(LineEnding::LF)
        .unwrap();
    TestKey {
        name: "rsa",
        pkcs8: key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string(),
        traditional: key.to_pkcs1_pem(LineEnding::LF).unwrap().to_string(),
        algorithm: Algorithm::RS256,
        public: DecodingKey::from_rsa_pem(public.as_bytes()).unwrap(),
    }
});

/// ES256.
pub static EC: LazyLock<TestKey> = LazyLock::new(|| {
    let key = p256::SecretKey::random(&mut OsRng);
    let public = key.public_key().to_public_key_pem(LineEnding::LF).unwrap();
    TestKey {
        name: "ec",
        pkcs8: key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string(),
        traditional: key.to_sec1_pem(LineEnding::LF).unwrap().to_string(),
        algorithm: Algorithm::ES256,
        public: DecodingKey::from_ec_pem(public.as_bytes()).unwrap(),
    }
});

/// A key with an exponent that does not belong to it, which is found when it is read.
pub fn unable() -> String {
    let key = rsa::RsaPrivateKey::new(&mut OsRng, 2048).unwrap();
    let mut der = key.to_pkcs1_der().unwrap().as_bytes().to_vec();
    let parsed = rsa::pkcs1::RsaPrivateKey::from_der(&der).unwrap();
    let exponent = parsed.exponent1.as_bytes().to_vec();
    let place = der
        .windows(exponent.len())
        .position(|bytes| bytes == exponent);
    // It stays odd, as it must be.
    der[place.unwrap() + exponent.len() - 1] ^= 2;
    let text = STANDARD.encode(&der);
    let lines: Vec<&str> = (0..text.len())
        .step_by(64)
        .map(|start| &text[start..text.len().min(start + 64)])
        .collect();
    let lines = lines.join("\n");
    format!("-----BEGIN RSA PRIVATE KEY-----\n{lines}\n-----END RSA PRIVATE KEY-----\n")
}
