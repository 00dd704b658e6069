//! Which media packets were authentic, and which keys were agreed on. str0m says neither: it maps a packet to its stream, and
//! remembers things about it, before it has authenticated it. Here its SRTP ciphers are wrapped in ones that count the packets
//! they have decrypted: a packet was authentic if the count has grown when str0m returns. Its DTLS is wrapped in one that lays
//! aside what a handshake exports. Both are called on the thread that calls str0m, so that what they note is the thread's.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use str0m::crypto::dtls::{
    DtlsCert, DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion, ProtocolVersion,
};
use str0m::crypto::{
    AeadAes128GcmCipher, AeadAes256GcmCipher, Aes128CmSha1_80Cipher, CryptoError, CryptoProvider,
    SrtpProvider, SupportedAeadAes128Gcm, SupportedAeadAes256Gcm, SupportedAes128CmSha1_80,
};

use super::srtp_sending::Protection;

thread_local! {
    static AUTHENTIC: Cell<u64> = const { Cell::new(0) };
    static AGREED: RefCell<Option<Protection>> = const { RefCell::new(None) };
}

/// How many SRTP and SRTCP packets were decrypted on this thread.
pub fn authentic_packets() -> u64 {
    AUTHENTIC.get()
}

/// Takes the keys for sending of the handshake that has ended since the last call on this thread, if one has.
pub fn take_agreed() -> Option<Protection> {
    AGREED.take()
}

fn counted<T>(decrypted: Result<T, CryptoError>) -> Result<T, CryptoError> {
    if decrypted.is_ok() {
        AUTHENTIC.set(AUTHENTIC.get().wrapping_add(1));
    }
    decrypted
}

/// str0m's cryptography, with ciphers that count and handshakes that tell their keys.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| {
        Arc::new(CryptoProvider {
            srtp_provider: &Counting,
            dtls_provider: &Telling,
            ..original().clone()
        })
    });
    Arc::clone(provider)
}

/// The same as it is.
pub fn original() -> &'static CryptoProvider {
    static ORIGINAL: OnceLock<CryptoProvider> = OnceLock::new();
    ORIGINAL.get_or_init(str0m::crypto::from_feature_flags)
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
        let srtp = original().srtp_provider;
        srtp.srtp_aes_128_ecb_round(key, input, output);
    }

    fn srtp_aes_256_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        let srtp = original().srtp_provider;
        srtp.srtp_aes_256_ecb_round(key, input, output);
    }
}

impl SupportedAes128CmSha1_80 for Counting {
    fn create_cipher(&self, key: [u8; 16], encrypt: bool) -> Box<dyn Aes128CmSha1_80Cipher> {
        let ciphers = original().srtp_provider.aes_128_cm_sha1_80();
        Box::new(Counted(ciphers.create_cipher(key, encrypt)))
    }
}

impl SupportedAeadAes128Gcm for Counting {
    fn create_cipher(&self, key: [u8; 16], encrypt: bool) -> Box<dyn AeadAes128GcmCipher> {
        let ciphers = original().srtp_provider.aead_aes_128_gcm();
        Box::new(Counted(ciphers.create_cipher(key, encrypt)))
    }
}

impl SupportedAeadAes256Gcm for Counting {
    fn create_cipher(&self, key: [u8; 32], encrypt: bool) -> Box<dyn AeadAes256GcmCipher> {
        let ciphers = original().srtp_provider.aead_aes_256_gcm();
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

#[derive(Debug)]
struct Telling;

impl DtlsProvider for Telling {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        original().dtls_provider.generate_certificate()
    }

    fn new_dtls(
        &self,
        certificate: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        let dtls = original()
            .dtls_provider
            .new_dtls(certificate, now, version, mtu)?;
        Ok(Box::new(Told(dtls)))
    }

    fn is_test(&self) -> bool {
        original().dtls_provider.is_test()
    }
}

/// A handshake that tells its keys.
#[derive(Debug)]
struct Told(Box<dyn DtlsInstance>);

impl DtlsInstance for Told {
    fn set_active(&mut self, active: bool) {
        self.0.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.0.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        let output = self.0.poll_output(buffer);
        if let DtlsOutput::KeyingMaterial(exported, profile) = &output {
            AGREED.set(Protection::new(*profile, exported, self.0.is_active()));
        }
        output
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.0.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<usize, DtlsImplError> {
        self.0.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.0.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.0.close()
    }
}
