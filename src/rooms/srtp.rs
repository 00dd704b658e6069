//! Which media packets were authentic. str0m maps a packet to its stream, and remembers things about it, before it has
//! authenticated it, and does not say whether it did. Here its SRTP ciphers are wrapped in ones that count the packets they
//! have decrypted: a packet was authentic if the count has grown when str0m returns. Ciphers are called on the thread that
//! calls str0m, so that the count is the thread's.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use str0m::crypto::{
    AeadAes128GcmCipher, AeadAes256GcmCipher, Aes128CmSha1_80Cipher, CryptoError, CryptoProvider,
    SrtpProvider, SupportedAeadAes128Gcm, SupportedAeadAes256Gcm, SupportedAes128CmSha1_80,
};

thread_local! {
    static AUTHENTIC: Cell<u64> = const { Cell::new(0) };
}

/// How many SRTP and SRTCP packets were decrypted on this thread.
pub fn authentic_packets() -> u64 {
    AUTHENTIC.get()
}

fn counted<T>(decrypted: Result<T, CryptoError>) -> Result<T, CryptoError> {
    if decrypted.is_ok() {
        AUTHENTIC.set(AUTHENTIC.get().wrapping_add(1));
    }
    decrypted
}

/// str0m's cryptography, with ciphers that count.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| {
        Arc::new(CryptoProvider {
            srtp_provider: &Counting,
            ..wrapped().clone()
        })
    });
    Arc::clone(provider)
}

fn wrapped() -> &'static CryptoProvider {
    static WRAPPED: OnceLock<CryptoProvider> = OnceLock::new();
    WRAPPED.get_or_init(str0m::crypto::from_feature_flags)
}

#[derive(Debug)]
struct Counting;

impl SrtpProvider for Counting {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        &Self
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &Self
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        &Self
    }

    fn srtp_aes_128_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        let srtp = wrapped().srtp_provider;
        srtp.srtp_aes_128_ecb_round(key, input, output);
    }

    fn srtp_aes_256_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        let srtp = wrapped().srtp_provider;
        srtp.srtp_aes_256_ecb_round(key, input, output);
    }
}

impl SupportedAes128CmSha1_80 for Counting {
    fn create_cipher(&self, key: [u8; 16], encrypt: bool) -> Box<dyn Aes128CmSha1_80Cipher> {
        let ciphers = wrapped().srtp_provider.aes_128_cm_sha1_80();
        Box::new(Counted(ciphers.create_cipher(key, encrypt)))
    }
}

impl SupportedAeadAes128Gcm for Counting {
    fn create_cipher(&self, key: [u8; 16], encrypt: bool) -> Box<dyn AeadAes128GcmCipher> {
        let ciphers = wrapped().srtp_provider.aead_aes_128_gcm();
        Box::new(Counted(ciphers.create_cipher(key, encrypt)))
    }
}

impl SupportedAeadAes256Gcm for Counting {
    fn create_cipher(&self, key: [u8; 32], encrypt: bool) -> Box<dyn AeadAes256GcmCipher> {
        let ciphers = wrapped().srtp_provider.aead_aes_256_gcm();
        Box::new(Counted(ciphers.create_cipher(key, encrypt)))
    }
}

/// A cipher that counts what it has decrypted.
#[derive(Debug)]
struct Counted<C: ?Sized>(Box<C>);

/// Here the authentication is checked before the cipher is called.
impl Aes128CmSha1_80Cipher for Counted<dyn Aes128CmSha1_80Cipher> {
    fn encrypt(
        &mut self,
        iv: &[u8; 16],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CryptoError> {
        self.0.encrypt(iv, input, output)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 16],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CryptoError> {
        counted(self.0.decrypt(iv, input, output))
    }
}

impl AeadAes128GcmCipher for Counted<dyn AeadAes128GcmCipher> {
    fn encrypt(
        &mut self,
        iv: &[u8; 12],
        aad: &[u8],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CryptoError> {
        self.0.encrypt(iv, aad, input, output)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        counted(self.0.decrypt(iv, aads, input, output))
    }
}

impl AeadAes256GcmCipher for Counted<dyn AeadAes256GcmCipher> {
    fn encrypt(
        &mut self,
        iv: &[u8; 12],
        aad: &[u8],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), CryptoError> {
        self.0.encrypt(iv, aad, input, output)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, CryptoError> {
        counted(self.0.decrypt(iv, aads, input, output))
    }
}
