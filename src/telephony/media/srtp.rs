//! SRTP (RFC 3711): contexts that protect and unprotect packets, with keys from the session description (SDES, RFC 4568:
//! `a=crypto` attributes) or of a handshake (`dtls`). Descriptions have AES-128 in counter mode with HMAC-SHA1 only, which is
//! what phones support. `offer_answer` decides when it is used.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use webrtc_srtp::context::Context;
use webrtc_srtp::option::{srtcp_replay_protection, srtp_replay_protection};
use webrtc_srtp::protection_profile::ProtectionProfile;

use super::rtp::has_sound_extension;

/// Replay window in packets.
const REPLAY_WINDOW: usize = 128;
/// Bytes of a master key, and of its salt.
const KEY: usize = 16;
const SALT: usize = 14;
/// The shortest RTCP packet: a header with one SSRC.
const SHORTEST_RTCP: usize = 8;

/// A crypto suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// With an authentication tag of ten bytes.
    Sha1_80,
    /// With an authentication tag of four bytes.
    Sha1_32,
    /// AES-128 in Galois/counter mode (RFC 7714); by handshakes only.
    Gcm128,
    /// The same with AES-256.
    Gcm256,
}

impl Suite {
    /// Those of descriptions, in order of preference.
    pub const ALL: [Self; 2] = [Self::Sha1_80, Self::Sha1_32];

    const fn name(self) -> &'static str {
        match self {
            Self::Sha1_80 => "AES_CM_128_HMAC_SHA1_80",
            Self::Sha1_32 => "AES_CM_128_HMAC_SHA1_32",
            Self::Gcm128 => "AEAD_AES_128_GCM",
            Self::Gcm256 => "AEAD_AES_256_GCM",
        }
    }

    const fn profile(self) -> ProtectionProfile {
        match self {
            Self::Sha1_80 => ProtectionProfile::Aes128CmHmacSha1_80,
            Self::Sha1_32 => ProtectionProfile::Aes128CmHmacSha1_32,
            Self::Gcm128 => ProtectionProfile::AeadAes128Gcm,
            Self::Gcm256 => ProtectionProfile::AeadAes256Gcm,
        }
    }

    /// Bytes of a master key.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Sha1_80 | Self::Sha1_32 | Self::Gcm128 => KEY,
            Self::Gcm256 => 32,
        }
    }

    /// Bytes of its salt.
    pub const fn salt_len(self) -> usize {
        match self {
            Self::Sha1_80 | Self::Sha1_32 => SALT,
            Self::Gcm128 | Self::Gcm256 => 12,
        }
    }

    /// From the index of an SRTCP packet to its end: the index itself, and the tag where that follows.
    const fn rtcp_tail(self) -> usize {
        match self {
            Self::Sha1_80 | Self::Sha1_32 => 4 + 10,
            Self::Gcm128 | Self::Gcm256 => 4,
        }
    }

    /// What it adds to an RTCP packet.
    const fn rtcp_overhead(self) -> usize {
        match self {
            Self::Sha1_80 | Self::Sha1_32 => 4 + 10,
            Self::Gcm128 | Self::Gcm256 => 4 + 16,
        }
    }
}

/// A master key with its salt.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Box<[u8]>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The value of an `a=crypto` attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crypto {
    /// Identifies the attribute: an answer repeats the tag of the one it chooses.
    pub tag: u32,
    /// The crypto suite.
    pub suite: Suite,
    /// The key of the side that wrote the attribute.
    pub key: Key,
}

impl Crypto {
    /// An attribute with a fresh key; `None` if the system has no randomness.
    pub fn new(tag: u32, suite: Suite) -> Option<Self> {
        let mut key = [0; KEY + SALT];
        getrandom::fill(&mut key).ok()?;
        Some(Self {
            tag,
            suite,
            key: Key(key.into()),
        })
    }

    /// With keys of a handshake.
    pub fn of_keys(suite: Suite, key: &[u8], salt: &[u8]) -> Self {
        Self {
            tag: 0,
            suite,
            key: Key([key, salt].concat().into()),
        }
    }

    /// Parses the value of `a=crypto`. `None` for what is not supported: another suite, several keys, a master key
    /// identifier, or session parameters.
    pub fn parse(value: &str) -> Option<Self> {
        let mut words = value.split_ascii_whitespace();
        let tag = words.next()?.parse().ok()?;
        let name = words.next()?;
        let suite = Suite::ALL.into_iter().find(|suite| suite.name() == name)?;
        let key = words.next()?.strip_prefix("inline:")?;
        let mut parts = key.split('|');
        let key: [u8; KEY + SALT] = STANDARD.decode(parts.next()?).ok()?.try_into().ok()?;
        // A lifetime is ignored: a call does not last 2³¹ packets. `1:4` would be a master key identifier.
        let plain = !parts.any(|part| part.contains(':')) && words.next().is_none();
        plain.then_some(Self {
            tag,
            suite,
            key: Key(key.into()),
        })
    }

    /// Whether both protect with the same key; the tag does not matter.
    pub fn is_same_key(&self, other: &Self) -> bool {
        self.suite == other.suite && self.key == other.key
    }

    /// The value of `a=crypto`.
    pub fn write(&self) -> String {
        let key = STANDARD.encode(&self.key.0);
        format!("{} {} inline:{key}", self.tag, self.suite.name())
    }

    fn context(&self) -> Option<Context> {
        let (key, salt) = self.key.0.split_at_checked(self.suite.key_len())?;
        Context::new(
            key,
            salt,
            self.suite.profile(),
            Some(srtp_replay_protection(REPLAY_WINDOW)),
            Some(srtcp_replay_protection(REPLAY_WINDOW)),
        )
        .ok()
    }
}

/// Protects outgoing packets.
pub struct ProtectContext(Context);

impl ProtectContext {
    /// With our key.
    pub fn new(crypto: &Crypto) -> Option<Self> {
        crypto.context().map(Self)
    }

    /// The SRTP packet for an RTP packet.
    pub fn rtp(&mut self, packet: &[u8]) -> Option<Bytes> {
        self.0.encrypt_rtp(packet).ok()
    }

    /// The SRTCP packet for an RTCP packet.
    pub fn rtcp(&mut self, packet: &[u8]) -> Option<Bytes> {
        self.0.encrypt_rtcp(packet).ok()
    }
}

/// Unprotects incoming packets. It keeps the context of one SSRC only, that of the last authentic packet, so that packets
/// under other SSRCs cost no memory.
pub struct UnprotectContext {
    crypto: Crypto,
    rtp: Option<(u32, Context)>,
    rtcp: Option<(u32, Context)>,
}

impl UnprotectContext {
    /// With the other side's key.
    pub const fn new(crypto: Crypto) -> Self {
        Self {
            crypto,
            rtp: None,
            rtcp: None,
        }
    }

    /// The RTP packet, with its header, if it is authentic and not a replay.
    pub fn rtp(&mut self, packet: &[u8], ssrc: u32) -> Option<Bytes> {
        // The library panics at such a packet, before it has looked at its tag.
        if !has_sound_extension(packet) {
            return None;
        }
        if let Some((current, context)) = &mut self.rtp
            && *current == ssrc
        {
            return context.decrypt_rtp(packet).ok();
        }
        let mut context = self.crypto.context()?;
        let plain = context.decrypt_rtp(packet).ok()?;
        self.rtp = Some((ssrc, context));
        Some(plain)
    }

    /// The RTCP packet, if it is authentic and not a replay.
    pub fn rtcp(&mut self, packet: &[u8]) -> Option<Bytes> {
        let suite = self.crypto.suite;
        if packet.len() < SHORTEST_RTCP + suite.rtcp_overhead() {
            return None;
        }
        // The E bit before the index says whether the packet is encrypted (RFC 3711 section 3.4). The library accepts a
        // packet without it as authentic, and does not check its tag.
        let index = packet.get(packet.len() - suite.rtcp_tail())?;
        if index & 0x80 == 0 {
            return None;
        }
        let ssrc = u32::from_be_bytes(*packet.get(4..)?.first_chunk()?);
        if let Some((current, context)) = &mut self.rtcp
            && *current == ssrc
        {
            return context.decrypt_rtcp(packet).ok();
        }
        let mut context = self.crypto.context()?;
        let plain = context.decrypt_rtcp(packet).ok()?;
        self.rtcp = Some((ssrc, context));
        Some(plain)
    }
}

impl fmt::Debug for ProtectContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProtectContext(…)")
    }
}

impl fmt::Debug for UnprotectContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnprotectContext(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::super::rtp::Header;
    use super::*;

    fn packet(sequence: u16, ssrc: u32) -> Vec<u8> {
        let mut packet = Vec::new();
        let header = Header {
            marker: false,
            payload_type: 0,
            sequence,
            timestamp: 160 * u32::from(sequence),
            ssrc,
        };
        header.write(&mut packet);
        packet.extend([0x55; 160]);
        packet
    }

    #[test]
    fn a_line_is_read_as_it_was_written_and_keeps_its_key_to_itself() {
        for suite in Suite::ALL {
            let crypto = Crypto::new(3, suite).unwrap();
            assert_eq!(Crypto::parse(&crypto.write()), Some(crypto.clone()));
            assert!(!format!("{crypto:?}").contains(&STANDARD.encode(crypto.key.0)[..6]));
        }
        let key = STANDARD.encode([7; 30]);
        let with_lifetime = format!("1 AES_CM_128_HMAC_SHA1_80 inline:{key}|2^20");
        assert!(Crypto::parse(&with_lifetime).is_some());
    }

    #[test]
    fn what_cannot_be_kept_is_not_taken() {
        let key = STANDARD.encode([7; 30]);
        let lines = [
            String::new(),
            format!("x AES_CM_128_HMAC_SHA1_80 inline:{key}"),
            format!("1 AES_256_CM_HMAC_SHA1_80 inline:{key}"),
            format!("1 AES_CM_128_HMAC_SHA1_80 {key}"),
            format!(
                "1 AES_CM_128_HMAC_SHA1_80 inline:{}",
                STANDARD.encode([7; 29])
            ),
            format!("1 AES_CM_128_HMAC_SHA1_80 inline:{key}|2^20|1:4"),
            format!("1 AES_CM_128_HMAC_SHA1_80 inline:{key} UNENCRYPTED_SRTP"),
        ];
        for line in lines {
            assert_eq!(Crypto::parse(&line), None, "{line}");
        }
    }

    #[test]
    fn a_header_extension_that_reaches_beyond_its_packet_is_refused() {
        let mut packet = packet(1, 9);
        packet.truncate(12);
        packet[0] |= 0x10;
        packet.extend([0xBE, 0xDE, 0, 1, 0x1F, 0, 0, 0]);
        assert!(Header::parse(&packet).is_some());
        let crypto = Crypto::new(1, Suite::Sha1_80).unwrap();
        let mut unprotect = UnprotectContext::new(crypto);
        assert_eq!(unprotect.rtp(&packet, 9), None);
    }

    #[test]
    fn packets_come_out_as_they_went_in_once_and_only_if_they_are_authentic() {
        for suite in Suite::ALL {
            let crypto = Crypto::new(1, suite).unwrap();
            let mut protect = ProtectContext::new(&crypto).unwrap();
            let mut unprotect = UnprotectContext::new(crypto);
            // Across the wrap of the sequence number, in an order that networks have.
            for sequence in [65_534, 65_535, 1, 0, 2_u16] {
                let plain = packet(sequence, 9);
                let mut protected = protect.rtp(&plain).unwrap().to_vec();
                assert_ne!(protected[12..172], plain[12..]);
                protected[100] ^= 1;
                assert_eq!(unprotect.rtp(&protected, 9), None);
                protected[100] ^= 1;
                assert_eq!(unprotect.rtp(&protected, 9).as_deref(), Some(&plain[..]));
                assert_eq!(unprotect.rtp(&protected, 9), None);
            }
            let stranger = packet(1, 10);
            assert_eq!(unprotect.rtp(&stranger, 10), None);
            let report = [0x80, 201, 0, 1, 0, 0, 0, 9];
            let protected = protect.rtcp(&report).unwrap();
            for length in 0..protected.len() {
                assert_eq!(unprotect.rtcp(&protected[..length]), None);
            }
            // Who has no key may not say that none is needed.
            let mut plain = protected.to_vec();
            plain[8] &= 0x7F;
            assert_eq!(unprotect.rtcp(&plain), None);
            assert_eq!(unprotect.rtcp(&protected).as_deref(), Some(&report[..]));
            assert_eq!(unprotect.rtcp(&protected), None);
        }
    }
}
