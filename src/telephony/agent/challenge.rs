//! Digest authentication of a server (RFC 3261 section 22.4, RFC 7616): challenges inbound calls, and checks what
//! they answer. Nothing is kept of a caller before the answer is right: a nonce is its time and a MAC over what it was made
//! for, the Call-ID and the source, and is good for one call and a minute.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;

use super::digest::{Credentials, Hash, Parameters};
use super::header::quote;

/// How long a nonce can be answered.
const LIFETIME: Duration = Duration::from_mins(1);
/// The most nonces that are remembered as used, and the most addresses whose wrong answers are counted.
const MOST_KEPT: usize = 4_096;
/// Wrong answers of one address in a minute; then it is not listened to until that is over.
const MOST_WRONG: u32 = 10;
const MINUTE: Duration = Duration::from_mins(1);

/// The realm where a trunk names none.
pub const REALM: &str = "vivavoce";

/// Challenges callers. Clock and randomness come from outside but for the key, which is of this process.
pub struct Challenger {
    key: hmac::Key,
    began: Instant,
    used: Mutex<VecDeque<(Duration, String)>>,
    /// Wrong answers by address, and when the first one came.
    wrong: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

impl fmt::Debug for Challenger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Challenger")
    }
}

/// An INVITE that is to be authenticated.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// Its method: INVITE, or REGISTER.
    pub method: &'static str,
    /// Its Call-ID.
    pub call_id: &'a str,
    /// Where it comes from.
    pub source: IpAddr,
    /// The values of its `Authorization` and `Proxy-Authorization`.
    pub answers: &'a [String],
}

/// What an INVITE has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The right password.
    Right,
    /// Nothing, of this realm.
    Missing,
    /// To a challenge that is too old, used, or somebody else's.
    Stale,
    /// With the wrong name or password.
    Wrong,
    /// Somebody at this address is guessing.
    Guessing,
}

impl Challenger {
    /// With a key of its own.
    pub fn new(began: Instant) -> Self {
        let mut key = [0; 32];
        for part in key.chunks_mut(8) {
            part.copy_from_slice(&crate::random::u64().to_be_bytes());
        }
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            began,
            used: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    /// The value of `WWW-Authenticate`. It asks for MD5 alone: SIPp and telephones of a few years ago fail at a second value with
    /// an algorithm that they do not know, whatever the order (RFC 8760 section 2.4 expects otherwise). Whoever listens to calls
    /// is kept out by TLS.
    pub fn challenge(&self, realm: &str, asking: &Asking<'_>, stale: bool, now: Instant) -> String {
        let nonce = self.nonce(self.age(now), realm, asking);
        let stale = if stale { ", stale=true" } else { "" };
        format!(
            "Digest realm={}, nonce=\"{nonce}\", algorithm=MD5, qop=\"auth\"{stale}",
            quote(realm)
        )
    }

    /// Checks the answer of an INVITE.
    pub fn check(
        &self,
        realm: &str,
        credentials: &Credentials,
        asking: &Asking<'_>,
        now: Instant,
    ) -> Answer {
        let mut answers = asking
            .answers
            .iter()
            .filter_map(|value| Given::parse(value));
        let Some(given) = answers.find(|given| given.realm == realm) else {
            return Answer::Missing;
        };
        let age = self.age(now);
        let Some(made) = self.made(&given.nonce, realm, asking) else {
            return Answer::Stale;
        };
        if age.saturating_sub(made) > LIFETIME {
            return Answer::Stale;
        }
        if !self.may_guess(asking.source, now) {
            return Answer::Guessing;
        }
        if !given.is_by(asking.method, credentials) {
            self.note_wrong(asking.source, now);
            return Answer::Wrong;
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while used.len() >= MOST_KEPT
            || used
                .front()
                .is_some_and(|(then, _)| age.saturating_sub(*then) > LIFETIME)
        {
            used.pop_front();
        }
        if used.iter().any(|(_, nonce)| *nonce == given.nonce) {
            return Answer::Stale;
        }
        used.push_back((age, given.nonce));
        Answer::Right
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    fn nonce(&self, age: Duration, realm: &str, asking: &Asking<'_>) -> String {
        // Fine enough that two challenges of one call differ: a nonce is good once.
        let moment = age.as_millis();
        let source = asking.source.to_canonical();
        let text = format!("{moment}\n{realm}\n{}\n{source}", asking.call_id);
        let mac = hmac::sign(&self.key, text.as_bytes());
        let mut nonce = format!("{moment:x}.");
        for byte in mac.as_ref().iter().take(16) {
            // Writing to a String cannot fail.
            let _ = write!(nonce, "{byte:02x}");
        }
        nonce
    }

    /// When a nonce was made, if it was made for this INVITE.
    fn made(&self, nonce: &str, realm: &str, asking: &Asking<'_>) -> Option<Duration> {
        let (moment, _) = nonce.split_once('.')?;
        let age = Duration::from_millis(u64::from_str_radix(moment, 16).ok()?);
        let expected = self.nonce(age, realm, asking);
        let same = verify_slices_are_equal(expected.as_bytes(), nonce.as_bytes());
        same.ok().map(|()| age)
    }

    fn may_guess(&self, source: IpAddr, now: Instant) -> bool {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let known = wrong.get(&source);
        known.is_none_or(|(count, since)| {
            *count < MOST_WRONG || now.saturating_duration_since(*since) > MINUTE
        })
    }

    fn note_wrong(&self, source: IpAddr, now: Instant) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() >= MOST_KEPT && !wrong.contains_key(&source) {
            wrong.clear();
        }
        let (count, since) = wrong.entry(source).or_insert((0, now));
        if now.saturating_duration_since(*since) > MINUTE {
            (*count, *since) = (0, now);
        }
        *count += 1;
    }
}

/// The parts of an answer.
struct Given {
    username: String,
    realm: String,
    nonce: String,
    uri: String,
    response: String,
    /// Nonce count and the client's nonce, with `qop=auth`.
    counted: Option<(String, String)>,
}

impl Given {
    /// `None` if it is malformed, or answers what was not asked.
    fn parse(value: &str) -> Option<Self> {
        let parameters = Parameters::parse(value)?;
        let find = |name| parameters.get(name);
        if find("algorithm").is_some_and(|name| !name.eq_ignore_ascii_case("MD5")) {
            return None;
        }
        let counted = match find("qop") {
            // RFC 2069; some telephones still do.
            None => None,
            Some(qop) if qop.eq_ignore_ascii_case("auth") => Some((find("nc")?, find("cnonce")?)),
            Some(_) => return None,
        };
        Some(Self {
            username: find("username")?,
            realm: find("realm")?,
            nonce: find("nonce")?,
            uri: find("uri")?,
            response: find("response")?,
            counted,
        })
    }

    fn is_by(&self, method: &str, credentials: &Credentials) -> bool {
        let Credentials { username, password } = credentials;
        let hash = |text: String| Hash::Md5.hex(&text);
        let secret = hash(format!("{username}:{}:{password}", self.realm));
        let request = hash(format!("{method}:{}", self.uri));
        let nonce = &self.nonce;
        let expected = match &self.counted {
            None => hash(format!("{secret}:{nonce}:{request}")),
            Some((count, cnonce)) => {
                hash(format!("{secret}:{nonce}:{count}:{cnonce}:auth:{request}"))
            }
        };
        let given = self.response.to_ascii_lowercase();
        let same = verify_slices_are_equal(expected.as_bytes(), given.as_bytes()).is_ok();
        same && self.username == *username
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::super::digest::{Asker, Authenticator};
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn ann(password: &str) -> Credentials {
        Credentials {
            username: "ann".to_owned(),
            password: password.to_owned(),
        }
    }

    /// The answer of a client to a challenge of this call.
    fn answer(challenger: &Challenger, call_id: &str, password: &str, now: Instant) -> Vec<String> {
        let asking = Asking {
            method: "INVITE",
            call_id,
            source: HERE,
            answers: &[],
        };
        let challenge = challenger.challenge("r", &asking, false, now);
        let mut client = Authenticator::new(Some(ann(password)));
        assert!(client.challenged(Asker::Server, std::iter::once(&*challenge)));
        let answers = client.answers("INVITE", "sip:1@h").into_iter();
        answers.map(|(_, value)| value).collect()
    }

    fn checked(challenger: &Challenger, call_id: &str, answers: &[String], now: Instant) -> Answer {
        let asking = Asking {
            method: "INVITE",
            call_id,
            source: HERE,
            answers,
        };
        challenger.check("r", &ann("secret"), &asking, now)
    }

    #[test]
    fn a_call_with_the_password_comes_in_once() {
        let now = Instant::now();
        let challenger = Challenger::new(now);
        let right = answer(&challenger, "1", "secret", now);
        assert_eq!(checked(&challenger, "1", &[], now), Answer::Missing);
        // For another call, and too late.
        assert_eq!(checked(&challenger, "2", &right, now), Answer::Stale);
        let late = now + LIFETIME + Duration::from_secs(1);
        assert_eq!(checked(&challenger, "1", &right, late), Answer::Stale);
        assert_eq!(checked(&challenger, "1", &right, now), Answer::Right);
        assert_eq!(checked(&challenger, "1", &right, now), Answer::Stale);
        // A process that has another key has made no challenge.
        assert_eq!(
            checked(&Challenger::new(now), "1", &right, now),
            Answer::Stale
        );
    }

    #[test]
    fn whoever_guesses_is_not_listened_to_for_a_while() {
        let now = Instant::now();
        let challenger = Challenger::new(now);
        for number in 0..MOST_WRONG {
            let wrong = answer(&challenger, &number.to_string(), "wrong", now);
            let seen = checked(&challenger, &number.to_string(), &wrong, now);
            assert_eq!(seen, Answer::Wrong);
        }
        let right = answer(&challenger, "a", "secret", now);
        assert_eq!(checked(&challenger, "a", &right, now), Answer::Guessing);
        let later = now + MINUTE + Duration::from_secs(1);
        let right = answer(&challenger, "b", "secret", later);
        assert_eq!(checked(&challenger, "b", &right, later), Answer::Right);
    }

    #[test]
    fn the_old_form_is_understood() {
        let now = Instant::now();
        let challenger = Challenger::new(now);
        let asking = Asking {
            method: "INVITE",
            call_id: "1",
            source: HERE,
            answers: &[],
        };
        let md5 = challenger.challenge("r", &asking, true, now);
        assert!(md5.ends_with("stale=true"), "{md5}");
        let old = md5
            .replace(", qop=\"auth\"", "")
            .replace(", algorithm=MD5", "");
        let mut client = Authenticator::new(Some(ann("secret")));
        assert!(client.challenged(Asker::Server, std::iter::once(&*old)));
        let answers: Vec<_> = client
            .answers("INVITE", "sip:1@h")
            .into_iter()
            .map(|(_, value)| value)
            .collect();
        assert!(!answers[0].contains("qop"), "{answers:?}");
        assert_eq!(checked(&challenger, "1", &answers, now), Answer::Right);
    }

    proptest! {
        #[test]
        fn no_answer_is_too_broken(text in "(Digest )?\\PC{0,80}", nonce in "\\PC{0,20}") {
            let now = Instant::now();
            let challenger = Challenger::new(now);
            let broken = [text, format!("Digest realm=r, username=ann, uri=a, response=b, nonce=\"{nonce}\"")];
            prop_assert_ne!(checked(&challenger, "1", &broken, now), Answer::Right);
        }
    }
}
