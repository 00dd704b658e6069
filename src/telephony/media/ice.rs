//! Connectivity checks of browsers (ICE, RFC 8445), as a lite agent: the other side tries the addresses, we answer. Whoever
//! can sign a check has read our session description, so that a check proves where its sender is.

use std::fmt;
use std::net::SocketAddr;

use stun_types::attribute::{AttributeType, Username, XorMappedAddress};
use stun_types::message::{
    BINDING, IntegrityAlgorithm, Message, MessageClass, MessageIntegrityCredentials, MessageWrite,
    MessageWriteExt as _, MessageWriteVec, ShortTermCredentials,
};

/// `USE-CANDIDATE` (RFC 8445 section 16.1).
const USE_CANDIDATE: AttributeType = AttributeType::new(0x0025);
/// Lengths of user fragments and passwords (RFC 8839 section 5.4).
const FRAGMENT: std::ops::RangeInclusive<usize> = 4..=256;
const PASSWORD: std::ops::RangeInclusive<usize> = 22..=256;

/// User fragment and password of one side.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `a=ice-ufrag`.
    pub fragment: String,
    /// `a=ice-pwd`.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, …)", self.fragment)
    }
}

impl Credentials {
    /// Fresh ones.
    pub fn random() -> Self {
        let word = || format!("{:016x}", crate::random::u64());
        Self {
            fragment: word(),
            password: word() + &word(),
        }
    }

    /// Those of a description; `None` where they are not as they have to be.
    pub fn parse(fragment: &str, password: &str) -> Option<Self> {
        let fits = |text: &str| {
            let mut bytes = text.bytes();
            bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+/-=_".contains(&byte))
        };
        let sound = FRAGMENT.contains(&fragment.len()) && PASSWORD.contains(&password.len());
        (sound && fits(fragment) && fits(password)).then(|| Self {
            fragment: fragment.to_owned(),
            password: password.to_owned(),
        })
    }
}

/// What both sides have told each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ice {
    /// Ours.
    pub ours: Credentials,
    /// Theirs.
    pub theirs: Credentials,
}

/// An authentic check.
pub struct Check {
    /// What it is answered.
    pub answer: Vec<u8>,
    /// Whether the other side wants to use this path.
    pub nominates: bool,
}

impl Ice {
    /// Reads a connectivity check; `None` for anything else, and for a check of somebody else.
    pub fn check(&self, datagram: &[u8], from: SocketAddr) -> Option<Check> {
        let request = Message::from_bytes(datagram).ok()?;
        if !request.has_class(MessageClass::Request) || !request.has_method(BINDING) {
            return None;
        }
        let username = request.attribute::<Username>().ok()?;
        let (ours, theirs) = username.username().split_once(':')?;
        if ours != self.ours.fragment || theirs != self.theirs.fragment {
            return None;
        }
        let key = ShortTermCredentials::new(self.ours.password.clone());
        let key = MessageIntegrityCredentials::from(key);
        request.validate_integrity(&key).ok()?;
        let mut answer = Message::builder_success(&request, MessageWriteVec::new());
        let mapped = XorMappedAddress::new(from, request.transaction_id());
        answer.add_attribute(&mapped).ok()?;
        answer
            .add_message_integrity(&key, IntegrityAlgorithm::Sha1)
            .ok()?;
        answer.add_fingerprint().ok()?;
        Some(Check {
            answer: answer.finish(),
            nominates: request.has_attribute(USE_CANDIDATE),
        })
    }
}

/// Writes a check, as the other side does.
#[cfg(test)]
pub(super) fn write_check(ours: &Credentials, theirs: &Credentials, nominates: bool) -> Vec<u8> {
    use stun_types::attribute::RawAttribute;
    let mut request = Message::builder_request(BINDING, MessageWriteVec::new());
    let name = format!("{}:{}", theirs.fragment, ours.fragment);
    request
        .add_attribute(&Username::new(&name).unwrap())
        .unwrap();
    if nominates {
        request
            .add_attribute(&RawAttribute::new(USE_CANDIDATE, &[]))
            .unwrap();
    }
    let key = ShortTermCredentials::new(theirs.password.clone()).into();
    request
        .add_message_integrity(&key, IntegrityAlgorithm::Sha1)
        .unwrap();
    request.add_fingerprint().unwrap();
    request.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_answered_where_it_is_signed_with_our_password() {
        let (ours, theirs) = (Credentials::random(), Credentials::random());
        let ice = Ice {
            ours: ours.clone(),
            theirs: theirs.clone(),
        };
        let from: SocketAddr = "192.0.2.7:50000".parse().unwrap();
        for nominates in [false, true] {
            let check = ice.check(&write_check(&theirs, &ours, nominates), from);
            let check = check.unwrap();
            assert_eq!(check.nominates, nominates);
            let answer = Message::from_bytes(&check.answer).unwrap();
            assert!(answer.has_class(MessageClass::Success));
            let mapped = answer.attribute::<XorMappedAddress>().unwrap();
            assert_eq!(mapped.addr(answer.transaction_id()), from);
            let key = ShortTermCredentials::new(ours.password.clone()).into();
            assert!(answer.validate_integrity(&key).is_ok());
        }
        let mut guessed = ours.clone();
        guessed.password = Credentials::random().password;
        assert!(
            ice.check(&write_check(&theirs, &guessed, true), from)
                .is_none()
        );
        let stranger = Credentials::random();
        assert!(
            ice.check(&write_check(&stranger, &ours, true), from)
                .is_none()
        );
        let sound = write_check(&theirs, &ours, true);
        for length in 0..sound.len() {
            assert!(ice.check(&sound[..length], from).is_none());
        }
    }

    #[test]
    fn credentials_are_as_the_standard_has_them_and_told_to_nobody() {
        let password = "p".repeat(22);
        assert!(Credentials::parse("abcd", &password).is_some());
        for (fragment, password) in [("abc", &*password), ("abcd", "short"), ("ab\"d", &password)] {
            assert!(Credentials::parse(fragment, password).is_none());
        }
        let ours = Credentials::random();
        assert!(Credentials::parse(&ours.fragment, &ours.password).is_some());
        assert!(!format!("{ours:?}").contains(&ours.password));
    }
}
