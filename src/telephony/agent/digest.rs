//! Digest authentication of a client (RFC 3261 section 22, RFC 7616, RFC 8760). It remembers challenges and answers all of
//! them in each request, because a proxy and the server behind it may both challenge.

use std::fmt::{self, Write as _};

use md5::{Digest as _, Md5};
use sha2::{Digest as _, Sha256};

use super::header::quote;

/// How often one request is repeated because of challenges: a proxy and a server, each with a stale nonce.
const MOST_ROUNDS: u8 = 6;

/// A user name and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// As the gateway knows it.
    pub username: String,
    /// Masked in `Debug`.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// Who challenges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// The server: 401 and `WWW-Authenticate`.
    Server,
    /// A proxy: 407 and `Proxy-Authenticate`.
    Proxy,
}

impl Asker {
    /// The challenger for a status code.
    pub const fn of_status(code: u16) -> Option<Self> {
        match code {
            401 => Some(Self::Server),
            407 => Some(Self::Proxy),
            _ => None,
        }
    }
}

/// The hash of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hash {
    Md5,
    Sha256,
}

impl Hash {
    pub(super) fn hex(self, text: &str) -> String {
        let bytes = match self {
            Self::Md5 => Md5::digest(text).to_vec(),
            Self::Sha256 => Sha256::digest(text).to_vec(),
        };
        bytes.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

/// A challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    realm: String,
    nonce: String,
    opaque: Option<String>,
    /// As it was written, to be repeated in the response.
    algorithm: Option<String>,
    hash: Hash,
    session: bool,
    qop: bool,
    stale: bool,
}

impl Challenge {
    /// Parses the value of a challenge header. `None` if it is malformed, or needs what is not supported.
    pub fn parse(value: &str) -> Option<Self> {
        let parameters = Parameters::parse(value)?;
        let find = |name| parameters.get(name);
        let algorithm = find("algorithm");
        let name = algorithm.as_deref().unwrap_or("MD5").to_ascii_uppercase();
        let (hash, session) = match name.as_str() {
            "MD5" => (Hash::Md5, false),
            "MD5-SESS" => (Hash::Md5, true),
            "SHA-256" | "SHA256" => (Hash::Sha256, false),
            "SHA-256-SESS" | "SHA256-SESS" => (Hash::Sha256, true),
            _ => return None,
        };
        let qop = match find("qop") {
            None => false,
            Some(list) => {
                let auth = list
                    .split(',')
                    .any(|one| one.trim().eq_ignore_ascii_case("auth"));
                // `auth-int` alone is not supported, and nobody asks for it.
                if !auth {
                    return None;
                }
                true
            }
        };
        Some(Self {
            realm: find("realm")?,
            nonce: find("nonce")?,
            opaque: find("opaque"),
            algorithm,
            hash,
            session,
            qop,
            stale: find("stale").is_some_and(|stale| stale.eq_ignore_ascii_case("true")),
        })
    }

    /// The value of the response header; `count` is the nonce count.
    fn answer(
        &self,
        credentials: &Credentials,
        method: &str,
        uri: &str,
        count: u32,
        cnonce: &str,
    ) -> String {
        let hash = |text: String| self.hash.hex(&text);
        let Credentials { username, password } = credentials;
        let (realm, nonce) = (&self.realm, &self.nonce);
        let mut secret = hash(format!("{username}:{realm}:{password}"));
        if self.session {
            secret = hash(format!("{secret}:{nonce}:{cnonce}"));
        }
        let request = hash(format!("{method}:{uri}"));
        let response = if self.qop {
            hash(format!(
                "{secret}:{nonce}:{count:08x}:{cnonce}:auth:{request}"
            ))
        } else {
            hash(format!("{secret}:{nonce}:{request}"))
        };
        let mut value = format!(
            "Digest username={}, realm={}, nonce={}, uri={}, response=\"{response}\"",
            quote(username),
            quote(realm),
            quote(nonce),
            quote(uri),
        );
        if let Some(algorithm) = &self.algorithm {
            value.push_str(&format!(", algorithm={algorithm}"));
        }
        if let Some(opaque) = &self.opaque {
            value.push_str(&format!(", opaque={}", quote(opaque)));
        }
        if self.qop || self.session {
            value.push_str(&format!(", cnonce=\"{cnonce}\""));
        }
        if self.qop {
            value.push_str(&format!(", qop=auth, nc={count:08x}"));
        }
        value
    }
}

/// A challenge, and how often its nonce was used.
#[derive(Debug)]
struct Asked {
    by: Asker,
    challenge: Challenge,
    uses: u32,
}

/// Answers the challenges of one call, in every later request, too.
#[derive(Debug)]
pub struct Authenticator {
    credentials: Option<Credentials>,
    asked: Vec<Asked>,
    rounds: u8,
}

impl Authenticator {
    /// Without credentials, no challenge is answered.
    pub const fn new(credentials: Option<Credentials>) -> Self {
        Self {
            credentials,
            asked: Vec::new(),
            rounds: 0,
        }
    }

    /// A new request begins: it may be challenged as often as the first.
    pub const fn begin(&mut self) {
        self.rounds = 0;
    }

    /// Takes the challenges of a response; whether it is worth sending the request again.
    pub fn challenged<'a>(&mut self, by: Asker, values: impl Iterator<Item = &'a str>) -> bool {
        self.rounds += 1;
        if self.credentials.is_none() || self.rounds > MOST_ROUNDS {
            return false;
        }
        let mut realms: Vec<String> = Vec::new();
        let mut again = false;
        for challenge in values.filter_map(Challenge::parse) {
            // Of several challenges for one realm, the first that is supported counts (RFC 8760 section 2.4).
            if realms.contains(&challenge.realm) {
                continue;
            }
            realms.push(challenge.realm.clone());
            let known = self
                .asked
                .iter_mut()
                .find(|asked| asked.by == by && asked.challenge.realm == challenge.realm);
            match known {
                // A fresh nonce was used and refused: the password is wrong.
                Some(asked) if asked.uses == 1 && !challenge.stale => return false,
                Some(asked) => {
                    asked.challenge = challenge;
                    asked.uses = 0;
                }
                None => self.asked.push(Asked {
                    by,
                    challenge,
                    uses: 0,
                }),
            }
            again = true;
        }
        again
    }

    /// The headers that answer all challenges, for one request.
    pub fn answers(&mut self, method: &str, uri: &str) -> Vec<(Asker, String)> {
        let Some(credentials) = &self.credentials else {
            return Vec::new();
        };
        let asked = self.asked.iter_mut();
        asked
            .map(|asked| {
                asked.uses += 1;
                let cnonce = format!("{:016x}", crate::random::u64());
                let answer = asked
                    .challenge
                    .answer(credentials, method, uri, asked.uses, &cnonce);
                (asked.by, answer)
            })
            .collect()
    }
}

/// What a challenge says, or an answer to one: `Digest` and its parameters (RFC 7616, sections 3.3 and 3.4).
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// `None` if the scheme is another one.
    pub(super) fn parse(value: &str) -> Option<Self> {
        let (scheme, rest) = value.trim().split_once(char::is_whitespace)?;
        scheme
            .eq_ignore_ascii_case("digest")
            .then(|| Self(pairs(rest)))
    }

    /// The value of the first parameter of this name, unquoted.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let found = self
            .0
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.clone())
    }
}

/// The `name=value` pairs of a list with commas, unquoted.
fn pairs(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((name, rest)) = text.split_once('=') {
        let name = name.trim_matches(|c: char| c == ',' || c.is_whitespace());
        let rest = rest.trim_start();
        let (value, after) = match rest.strip_prefix('"') {
            Some(inner) => unquote(inner),
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (value, after) = rest.split_at(end);
                (value.trim().to_owned(), after)
            }
        };
        found.push((name.to_owned(), value));
        text = after;
    }
    found
}

/// What is before the closing quote, and what is after it.
fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, text.get(at + 1..).unwrap_or_default()),
            _ => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mufasa(password: &str) -> Credentials {
        Credentials {
            username: "Mufasa".to_owned(),
            password: password.to_owned(),
        }
    }

    #[test]
    fn a_name_begins_no_other_header() {
        let challenge = Challenge::parse("Digest realm=\"r\", nonce=\"n\"").unwrap();
        let credentials = Credentials {
            username: "a\r\nX-Evil: 1\0".to_owned(),
            ..mufasa("secret")
        };
        let answer = challenge.answer(&credentials, "INVITE", "sip:a@h", 1, "c");
        assert!(
            answer.starts_with("Digest username=\"aX-Evil: 1\", "),
            "{answer}"
        );
    }

    #[test]
    fn the_examples_of_the_rfcs_come_out() {
        // RFC 2617 section 3.5.
        let challenge = Challenge::parse(
            r#"Digest realm="testrealm@host.com", qop="auth,auth-int", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093", opaque="5ccc069c403ebaf9f0171e9517f40e41""#,
        )
        .unwrap();
        let answer = challenge.answer(
            &mufasa("Circle Of Life"),
            "GET",
            "/dir/index.html",
            1,
            "0a4f113b",
        );
        assert!(
            answer.contains(r#"response="6629fae49393a05397450978507c4ef1""#),
            "{answer}"
        );
        assert!(answer.contains("qop=auth, nc=00000001"), "{answer}");
        // RFC 7616 section 3.9.1.
        for (algorithm, response) in [
            (
                "SHA-256",
                "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
            ),
            ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ] {
            let text = format!(
                r#"Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm={algorithm}, nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS""#
            );
            let answer = Challenge::parse(&text).unwrap().answer(
                &mufasa("Circle of Life"),
                "GET",
                "/dir/index.html",
                1,
                "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
            );
            assert!(
                answer.contains(&format!("response=\"{response}\"")),
                "{answer}"
            );
        }
    }

    fn ask(authenticator: &mut Authenticator, by: Asker, challenge: &str) -> bool {
        authenticator.challenged(by, std::iter::once(challenge))
    }

    #[test]
    fn a_proxy_and_a_server_are_both_answered() {
        let mut authenticator = Authenticator::new(Some(mufasa("x")));
        assert!(authenticator.answers("INVITE", "sip:a@b").is_empty());
        assert!(ask(
            &mut authenticator,
            Asker::Proxy,
            r#"Digest realm="p", nonce="1", qop="auth""#
        ));
        assert_eq!(authenticator.answers("INVITE", "sip:a@b").len(), 1);
        assert!(ask(
            &mut authenticator,
            Asker::Server,
            r#"Digest realm="s", nonce="2""#
        ));
        let answers = authenticator.answers("INVITE", "sip:a@b");
        assert_eq!(answers.len(), 2);
        assert!(answers[0].1.contains("nc=00000002"), "{answers:?}");
        // The proxy accepts each nonce once.
        assert!(ask(
            &mut authenticator,
            Asker::Proxy,
            r#"Digest realm="p", nonce="3", qop="auth""#
        ));
        let answers = authenticator.answers("INVITE", "sip:a@b");
        assert!(
            answers[0].1.contains(r#"nonce="3""#) && answers[0].1.contains("nc=00000001"),
            "{answers:?}"
        );
    }

    #[test]
    fn a_wrong_password_is_tried_once() {
        let mut authenticator = Authenticator::new(Some(mufasa("x")));
        let challenge = r#"Digest realm="p", nonce="1""#;
        assert!(ask(&mut authenticator, Asker::Server, challenge));
        authenticator.answers("INVITE", "sip:a@b");
        assert!(!ask(
            &mut authenticator,
            Asker::Server,
            r#"Digest realm="p", nonce="2""#
        ));
        assert!(ask(
            &mut authenticator,
            Asker::Server,
            r#"Digest realm="p", nonce="2", stale=TRUE"#
        ));
    }

    #[test]
    fn somebody_who_always_says_stale_is_given_up() {
        let mut authenticator = Authenticator::new(Some(mufasa("x")));
        let mut rounds = 0;
        while ask(
            &mut authenticator,
            Asker::Server,
            r#"Digest realm="p", nonce="1", stale=true"#,
        ) {
            authenticator.answers("INVITE", "sip:a@b");
            rounds += 1;
        }
        assert_eq!(rounds, MOST_ROUNDS);
    }

    #[test]
    fn without_credentials_or_with_an_unknown_algorithm_nothing_is_answered() {
        let challenge = r#"Digest realm="p", nonce="1""#;
        assert!(!ask(
            &mut Authenticator::new(None),
            Asker::Server,
            challenge
        ));
        let mut authenticator = Authenticator::new(Some(mufasa("x")));
        for unknown in [
            r#"Digest realm="p", nonce="1", algorithm=AKAv1-MD5"#,
            r#"Digest realm="p", nonce="1", qop="auth-int""#,
            "Basic realm=\"p\"",
            "Digest",
        ] {
            assert!(
                !ask(&mut authenticator, Asker::Server, unknown),
                "{unknown}"
            );
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let authenticator = Authenticator::new(Some(mufasa("hakuna")));
        assert!(!format!("{authenticator:?}").contains("hakuna"));
    }

    proptest! {
        #[test]
        fn no_challenge_is_too_broken(text in "(Digest )?\\PC{0,80}") {
            let _ = Challenge::parse(&text);
        }
    }
}
