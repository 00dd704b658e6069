//! Keys of SRTP by a handshake on the media path (DTLS-SRTP, RFC 5763 and 5764), as browsers and some telephones have it:
//! the session descriptions only say by a fingerprint whose certificate is the right one.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use dimpl::{Config, Dtls, DtlsCertificate, Output, SrtpProfile};
use sha2::{Digest as _, Sha256};

use super::ice::Ice;
use super::srtp::{Crypto, Suite};

/// What a handshake says fits into datagrams of this length.
const LARGEST: usize = 2_048;

/// The certificate of this process.
pub struct Identity {
    certificate: DtlsCertificate,
    config: Arc<Config>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.fingerprint().write())
    }
}

impl Identity {
    /// A fresh one.
    pub fn new() -> io::Result<Self> {
        let certificate = dimpl::certificate::generate_self_signed_certificate();
        Ok(Self {
            certificate: certificate.map_err(io::Error::other)?,
            config: Arc::new(Config::default()),
        })
    }

    /// Its fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate.certificate)
    }
}

/// The SHA-256 of a certificate, as `a=fingerprint` has it (RFC 8122). Other hashes are not taken: everybody has this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    /// Parses the value of `a=fingerprint`.
    pub fn parse(value: &str) -> Option<Self> {
        let (hash, bytes) = value.trim().split_once(' ')?;
        if !hash.eq_ignore_ascii_case("sha-256") {
            return None;
        }
        let byte = |text: &str| {
            let is_pair = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_pair.then(|| u8::from_str_radix(text, 16).ok()).flatten()
        };
        let bytes: Option<Vec<u8>> = bytes.trim().split(':').take(33).map(byte).collect();
        bytes?.try_into().ok().map(Self)
    }

    /// The value of `a=fingerprint`.
    pub fn write(&self) -> String {
        let bytes: Vec<String> = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        format!("sha-256 {}", bytes.join(":"))
    }
}

/// What two descriptions have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Association {
    /// Whose certificate is the right one.
    pub fingerprint: Fingerprint,
    /// Whether we begin the handshake (`a=setup`).
    pub active: bool,
    /// How the path is found; without it, it goes where the descriptions say.
    pub ice: Option<Ice>,
}

impl Association {
    /// Whether a handshake of one is good for the other. Another user fragment alone is a restart of ICE, which keeps the keys
    /// (RFC 8842 section 5.5).
    pub fn is_same(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.active == other.active
    }
}

/// Our key and theirs.
pub type Keys = (Crypto, Crypto);

/// A handshake.
pub struct Handshake {
    dtls: Dtls,
    fingerprint: Fingerprint,
    active: bool,
    /// Whether the certificate was the right one.
    is_proven: bool,
    /// Whether it has failed; the call goes on in silence, until another description comes or somebody hangs up.
    has_failed: bool,
    keys: Option<Keys>,
    due: Option<Instant>,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handshake(…)")
    }
}

impl Handshake {
    /// One that has not begun.
    pub fn new(identity: &Identity, association: &Association, now: Instant) -> Self {
        let config = Arc::clone(&identity.config);
        let mut dtls = Dtls::new_auto(config, identity.certificate.clone(), now);
        dtls.set_active(association.active);
        Self {
            dtls,
            fingerprint: association.fingerprint,
            active: association.active,
            is_proven: false,
            has_failed: false,
            keys: None,
            due: Some(now),
        }
    }

    /// Takes a datagram. The keys are told once.
    pub fn receive(
        &mut self,
        datagram: &[u8],
        now: Instant,
        send: impl FnMut(&[u8]),
    ) -> Option<Keys> {
        if self.has_failed {
            return None;
        }
        let taken = self.dtls.handle_timeout(now);
        let taken = taken.and_then(|()| self.dtls.handle_packet(datagram));
        self.go_on(taken, send)
    }

    /// Called again and again: repeats what was lost.
    pub fn tick(&mut self, now: Instant, send: impl FnMut(&[u8])) -> Option<Keys> {
        if self.has_failed || self.due.is_none_or(|due| due > now) {
            return None;
        }
        let ticked = self.dtls.handle_timeout(now);
        self.go_on(ticked, send)
    }

    fn go_on(
        &mut self,
        result: Result<(), dimpl::Error>,
        mut send: impl FnMut(&[u8]),
    ) -> Option<Keys> {
        if let Err(error) = result {
            return self.fail(&error.to_string());
        }
        let mut datagram = [0; LARGEST];
        loop {
            match self.dtls.poll_output(&mut datagram) {
                Output::Packet(packet) => send(packet),
                Output::PeerCert(certificate) => {
                    self.is_proven = Fingerprint::of(certificate) == self.fingerprint;
                    if !self.is_proven {
                        return self.fail("its certificate is not that of its description");
                    }
                }
                Output::KeyingMaterial(material, profile) => {
                    self.keys = keys(&material, profile, self.active);
                    if self.keys.is_none() {
                        return self.fail("it has chosen no protection that is known here");
                    }
                }
                Output::Timeout(due) => {
                    self.due = Some(due);
                    break;
                }
                Output::BufferTooSmall { .. } => return self.fail("it says too much at once"),
                Output::CloseNotify => {
                    self.due = None;
                    break;
                }
                // Nothing is said over DTLS itself.
                _ => {}
            }
        }
        self.is_proven.then(|| self.keys.take()).flatten()
    }

    fn fail(&mut self, reason: &str) -> Option<Keys> {
        self.has_failed = true;
        tracing::warn!(reason, "the handshake for a call's media has failed");
        None
    }
}

/// The keys of both sides (RFC 5764 section 4.2).
fn keys(material: &[u8], profile: SrtpProfile, active: bool) -> Option<Keys> {
    let suite = match profile {
        SrtpProfile::AES128_CM_SHA1_80 => Suite::Sha1_80,
        SrtpProfile::AEAD_AES_128_GCM => Suite::Gcm128,
        SrtpProfile::AEAD_AES_256_GCM => Suite::Gcm256,
        _ => return None,
    };
    let (key, salt) = (suite.key_len(), suite.salt_len());
    let (keys, salts) = material.split_at_checked(2 * key)?;
    let [client, server] = [0, 1].map(|side| {
        let key = keys.get(side * key..)?.get(..key)?;
        let salt = salts.get(side * salt..)?.get(..salt)?;
        Some(Crypto::of_keys(suite, key, salt))
    });
    let (client, server) = (client?, server?);
    Some(if active {
        (client, server)
    } else {
        (server, client)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::super::srtp::{ProtectContext, UnprotectContext};
    use super::*;

    fn association(of: &Identity, active: bool) -> Association {
        Association {
            fingerprint: of.fingerprint(),
            active,
            ice: None,
        }
    }

    /// Both handshakes until nothing is to be said, every `lost`th datagram lost; what each has found.
    fn shake(client: &mut Handshake, server: &mut Handshake, lost: usize) -> [Option<Keys>; 2] {
        let mut now = Instant::now();
        let mut found = [None, None];
        let mut counted = 0;
        let mut way: [VecDeque<Vec<u8>>; 2] = [VecDeque::new(), VecDeque::new()];
        for _ in 0..3_000 {
            for (index, side) in [&mut *client, &mut *server].into_iter().enumerate() {
                let mut said = Vec::new();
                let keys = match way[index].pop_front() {
                    Some(datagram) => side.receive(&datagram, now, |one| said.push(one.to_vec())),
                    None => side.tick(now, |one| said.push(one.to_vec())),
                };
                if keys.is_some() {
                    found[index] = keys;
                }
                for one in said {
                    counted += 1;
                    if counted % lost != 0 {
                        way[1 - index].push_back(one);
                    }
                }
            }
            now += Duration::from_millis(5);
        }
        found
    }

    #[test]
    fn both_sides_come_to_the_same_keys_even_if_datagrams_are_lost() {
        for lost in [usize::MAX, 3] {
            let [here, there] = [Identity::new().unwrap(), Identity::new().unwrap()];
            let now = Instant::now();
            let mut client = Handshake::new(&here, &association(&there, true), now);
            let mut server = Handshake::new(&there, &association(&here, false), now);
            let [ours, theirs] = shake(&mut client, &mut server, lost);
            let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
            assert!(ours.0.is_same_key(&theirs.1) && ours.1.is_same_key(&theirs.0));
            assert!(!ours.0.is_same_key(&ours.1));
            let packet = [&[0x80, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7][..], &[42; 160]].concat();
            let protected = ProtectContext::new(&ours.0).unwrap().rtp(&packet).unwrap();
            let plain = UnprotectContext::new(theirs.1).rtp(&protected, 7).unwrap();
            assert_eq!(plain, packet);
        }
    }

    #[test]
    fn another_certificate_than_the_described_one_gets_no_keys() {
        let [here, there, other] = [(); 3].map(|()| Identity::new().unwrap());
        let now = Instant::now();
        let mut client = Handshake::new(&here, &association(&other, true), now);
        let mut server = Handshake::new(&there, &association(&other, false), now);
        assert_eq!(shake(&mut client, &mut server, usize::MAX), [None, None]);
    }

    #[test]
    fn a_fingerprint_is_read_as_it_is_written() {
        let identity = Identity::new().unwrap();
        let text = identity.fingerprint().write();
        assert_eq!(Fingerprint::parse(&text), Some(identity.fingerprint()));
        assert_eq!(
            Fingerprint::parse(&text.to_lowercase()),
            Some(identity.fingerprint())
        );
        for wrong in [
            "",
            "sha-256",
            "sha-1 AB",
            &text[..text.len() - 3],
            &format!("{text}:00"),
        ] {
            assert_eq!(Fingerprint::parse(wrong), None, "{wrong}");
        }
    }
}
