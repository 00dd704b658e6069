//! SRTP for what is sent past str0m (`fast_path`): protected with the same keys, and under the same index, the extended sequence
//! number, which is a packet's own. str0m protects some packets of a stream and this module the others; no index is used twice
//! (RFC 3711 section 9.1, RFC 7714 section 10.1).

use str0m::crypto::dtls::SrtpProfile;
use str0m::crypto::{
    AeadAes128Gcm, AeadAes128GcmCipher, AeadAes256Gcm, AeadAes256GcmCipher, Aes128CmSha1_80,
    Aes128CmSha1_80Cipher,
};

use super::srtp;

/// What keys are derived for (RFC 3711 section 4.3.2).
#[derive(Clone, Copy)]
enum Purpose {
    Encryption = 0,
    Authentication = 1,
    Salt = 2,
}

/// Bytes of a salt before a block's counter (RFC 3711 section 4.3.3); shorter ones are padded (RFC 7714 section 11).
const PADDED_SALT: usize = 14;
/// The cipher in counter mode wants room for a block behind the last.
const COUNTER_MODE_ROOM: usize = 15;

/// The keys of one direction of a connection.
pub struct Protection(Cipher);

enum Cipher {
    CounterMode {
        cipher: Box<dyn Aes128CmSha1_80Cipher>,
        salt: [u8; Aes128CmSha1_80::SALT_LEN],
        authentication: [u8; Aes128CmSha1_80::HMAC_KEY_LEN],
    },
    Gcm128 {
        cipher: Box<dyn AeadAes128GcmCipher>,
        salt: [u8; AeadAes128Gcm::SALT_LEN],
    },
    Gcm256 {
        cipher: Box<dyn AeadAes256GcmCipher>,
        salt: [u8; AeadAes256Gcm::SALT_LEN],
    },
}

impl std::fmt::Debug for Protection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Protection(…)")
    }
}

/// A master key with its salt.
struct Master<'a> {
    key: &'a [u8],
    salt: &'a [u8],
}

impl<'a> Master<'a> {
    /// Of the client of the handshake or its server, from what both have exported: two keys, then two salts (RFC 5764 section
    /// 4.2).
    fn of(exported: &'a [u8], (key, salt): (usize, usize), is_client: bool) -> Option<Self> {
        let (keys, salts) = exported.split_at_checked(2 * key)?;
        let number = usize::from(!is_client);
        Some(Self {
            key: keys.chunks_exact(key).nth(number)?,
            salt: salts.chunks_exact(salt).nth(number)?,
        })
    }

    /// A key of a session (RFC 3711 section 4.3).
    fn derive<const LENGTH: usize>(&self, purpose: Purpose) -> [u8; LENGTH] {
        let ciphers = srtp::original().srtp_provider;
        let mut input = [0; 16];
        for (byte, salt) in input.iter_mut().take(PADDED_SALT).zip(self.salt) {
            *byte = *salt;
        }
        input[7] ^= purpose as u8;
        let mut derived = [0; LENGTH];
        for (counter, part) in (0_u16..).zip(derived.chunks_mut(16)) {
            input[PADDED_SALT..].copy_from_slice(&counter.to_be_bytes());
            // Some ciphers write a block of padding behind it.
            let mut block = [0; 32];
            if self.key.len() == AeadAes256Gcm::KEY_LEN {
                ciphers.srtp_aes_256_ecb_round(self.key, &input, &mut block);
            } else {
                ciphers.srtp_aes_128_ecb_round(self.key, &input, &mut block);
            }
            for (byte, derived) in part.iter_mut().zip(block) {
                *byte = derived;
            }
        }
        derived
    }
}

impl Protection {
    /// For what the client of a DTLS handshake sends, or its server, by what both have exported; `None` if that is of another
    /// profile.
    pub fn new(profile: SrtpProfile, exported: &[u8], is_client: bool) -> Option<Self> {
        use Purpose::{Authentication, Encryption, Salt};
        let ciphers = srtp::original().srtp_provider;
        let cipher = match profile {
            SrtpProfile::AES128_CM_SHA1_80 => {
                let lengths = (Aes128CmSha1_80::KEY_LEN, Aes128CmSha1_80::SALT_LEN);
                let master = Master::of(exported, lengths, is_client)?;
                Cipher::CounterMode {
                    cipher: ciphers
                        .aes_128_cm_sha1_80()
                        .create_cipher(master.derive(Encryption), true),
                    salt: master.derive(Salt),
                    authentication: master.derive(Authentication),
                }
            }
            SrtpProfile::AEAD_AES_128_GCM => {
                let lengths = (AeadAes128Gcm::KEY_LEN, AeadAes128Gcm::SALT_LEN);
                let master = Master::of(exported, lengths, is_client)?;
                Cipher::Gcm128 {
                    cipher: ciphers
                        .aead_aes_128_gcm()
                        .create_cipher(master.derive(Encryption), true),
                    salt: master.derive(Salt),
                }
            }
            SrtpProfile::AEAD_AES_256_GCM => {
                let lengths = (AeadAes256Gcm::KEY_LEN, AeadAes256Gcm::SALT_LEN);
                let master = Master::of(exported, lengths, is_client)?;
                Cipher::Gcm256 {
                    cipher: ciphers
                        .aead_aes_256_gcm()
                        .create_cipher(master.derive(Encryption), true),
                    salt: master.derive(Salt),
                }
            }
            _ => return None,
        };
        Some(Self(cipher))
    }

    /// A packet as it is sent, from its header and its payload, of this source and with this extended sequence number; `None` if
    /// the cipher refuses.
    pub fn protect(
        &mut self,
        header: &[u8],
        payload: &[u8],
        ssrc: u32,
        sequence: u64,
    ) -> Option<Vec<u8>> {
        let plain = header.len() + payload.len();
        // The rollover counter and the number in the header are its parts (RFC 3711 section 3.3.1).
        let (roc, number) = ((sequence >> 16) as u32, sequence as u16);
        let mut packet = Vec::with_capacity(plain + AeadAes128Gcm::TAG_LEN);
        packet.extend_from_slice(header);
        match &mut self.0 {
            Cipher::CounterMode {
                cipher,
                salt,
                authentication,
            } => {
                packet.resize(plain + COUNTER_MODE_ROOM, 0);
                let iv = Aes128CmSha1_80::rtp_iv(*salt, ssrc, sequence);
                cipher
                    .encrypt(&iv, payload, packet.get_mut(header.len()..)?)
                    .ok()?;
                let hmac = srtp::original().sha1_hmac_provider;
                let hmac = |key: &[u8], parts: &[&[u8]]| hmac.sha1_hmac(key, parts);
                Aes128CmSha1_80::rtp_hmac(hmac, authentication, &mut packet, sequence, plain);
                packet.truncate(plain + Aes128CmSha1_80::HMAC_TAG_LEN);
            }
            Cipher::Gcm128 { cipher, salt } => {
                packet.resize(plain + AeadAes128Gcm::TAG_LEN, 0);
                let iv = AeadAes128Gcm::rtp_iv(*salt, ssrc, roc, number);
                let sealed = packet.get_mut(header.len()..)?;
                cipher.encrypt(&iv, header, payload, sealed).ok()?;
            }
            Cipher::Gcm256 { cipher, salt } => {
                packet.resize(plain + AeadAes256Gcm::TAG_LEN, 0);
                let iv = AeadAes256Gcm::rtp_iv(*salt, ssrc, roc, number);
                let sealed = packet.get_mut(header.len()..)?;
                cipher.encrypt(&iv, header, payload, sealed).ok()?;
            }
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3711 appendix B.3.
    #[test]
    fn keys_are_derived_as_the_standard_shows() {
        let bytes = |hex: &str| -> Vec<u8> {
            let digits = hex.as_bytes().chunks(2);
            digits
                .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
                .collect()
        };
        let (key, salt) = (
            bytes("E1F97A0D3E018BE0D64FA32C06DE4139"),
            bytes("0EC675AD498AFEEBB6960B3AABE6"),
        );
        let master = Master {
            key: &key,
            salt: &salt,
        };
        assert_eq!(
            master.derive::<16>(Purpose::Encryption)[..],
            bytes("C61E7A93744F39EE10734AFE3FF7A087")
        );
        assert_eq!(
            master.derive::<14>(Purpose::Salt)[..],
            bytes("30CBBC08863D8C85D49DB34A9AE1")
        );
        assert_eq!(
            master.derive::<20>(Purpose::Authentication)[..],
            bytes("CEBE321F6FF7716B6FD4AB49AF256A156D38BAA4")
        );
    }

    /// Of another implementation, with the rollover counter beyond zero.
    #[test]
    fn others_understand_what_is_protected() {
        use webrtc_srtp::context::Context;
        use webrtc_srtp::protection_profile::ProtectionProfile;
        for (profile, theirs, key, salt) in [
            (
                SrtpProfile::AES128_CM_SHA1_80,
                ProtectionProfile::Aes128CmHmacSha1_80,
                16,
                14,
            ),
            (
                SrtpProfile::AEAD_AES_128_GCM,
                ProtectionProfile::AeadAes128Gcm,
                16,
                12,
            ),
            (
                SrtpProfile::AEAD_AES_256_GCM,
                ProtectionProfile::AeadAes256Gcm,
                32,
                12,
            ),
        ] {
            let exported: Vec<u8> = (0..2 * (key + salt)).map(|byte| byte as u8).collect();
            for is_client in [true, false] {
                let master = Master::of(&exported, (key, salt), is_client).unwrap();
                let mut reader = Context::new(master.key, master.salt, theirs, None, None).unwrap();
                let mut writer = Protection::new(profile, &exported, is_client).unwrap();
                for sequence in 65_530_u64..65_550 {
                    let mut header = vec![0x80, 111];
                    header.extend((sequence as u16).to_be_bytes());
                    header.extend(960_u32.to_be_bytes());
                    header.extend(7_u32.to_be_bytes());
                    let said = format!("packet {sequence}");
                    let packet = writer
                        .protect(&header, said.as_bytes(), 7, sequence)
                        .unwrap();
                    assert_ne!(packet[12..20], said.as_bytes()[..8], "{profile}");
                    let read = reader.decrypt_rtp(&packet).unwrap();
                    assert_eq!(read, [&header, said.as_bytes()].concat(), "{profile}");
                }
            }
        }
    }
}
