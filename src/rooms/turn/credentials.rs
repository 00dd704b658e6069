//! Who may allocate: names that tell when they expire, and passwords that only the server can make of them, so that it need
//! not remember whom it has given some (draft-uberti-behave-turn-rest-00).

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// How long a nonce is good, after which a client is given the next one (RFC 8489, section 9.2).
const NONCE_LASTS_S: i64 = 3_600;
/// Longer names are not ours.
const MAX_NAME_BYTES: usize = 256;

/// What credentials and nonces are made with.
#[derive(Clone)]
pub struct Credentials {
    secret: Vec<u8>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// Those that follow from a secret of the server.
    pub fn of_secret(secret: &str) -> Self {
        Self {
            secret: mac(secret.as_bytes(), &[b"turn"]),
        }
    }

    /// The name and the password of a participant, with which it may allocate for so long. `party` is for whom that counts.
    pub fn issue(
        &self,
        (party, participant): (&str, &str),
        now_s: i64,
        valid: Duration,
    ) -> (String, String) {
        let expiry = now_s.saturating_add(i64::try_from(valid.as_secs()).unwrap_or(i64::MAX));
        // Names are told to whoever sees the network.
        let party = mac(&self.secret, &[b"party", party.as_bytes()]);
        let party = STANDARD.encode(party.get(..9).unwrap_or_default());
        let name = format!("{expiry}:{party}:{participant}");
        let password = self.password(&name);
        (name, password)
    }

    /// The password of a name.
    pub fn password(&self, name: &str) -> String {
        STANDARD.encode(mac(&self.secret, &[b"password", name.as_bytes()]))
    }

    /// What a client shows with its next request, so that what somebody recorded is of no use to others, or later.
    pub fn nonce(&self, client: SocketAddr, now_s: i64) -> String {
        let proof = mac(
            &self.secret,
            &[
                b"nonce",
                &now_s.to_be_bytes(),
                client.to_string().as_bytes(),
            ],
        );
        let proof = proof.get(..12).unwrap_or_default();
        format!("{now_s:x}-{}", STANDARD.encode(proof))
    }

    /// Whether this client was given this nonce, not long ago.
    pub fn is_fresh(&self, nonce: &str, client: SocketAddr, now_s: i64) -> bool {
        let given = nonce.split_once('-').map(|(given, _)| given);
        let given = given.and_then(|given| i64::from_str_radix(given, 16).ok());
        given.is_some_and(|given| {
            (given..given.saturating_add(NONCE_LASTS_S)).contains(&now_s)
                && self.nonce(client, given) == nonce
        })
    }
}

/// For whom an allocation with this name counts.
pub fn party_of(name: &str) -> &str {
    name.split(':').nth(1).unwrap_or_default()
}

/// Whether a name is still good for an allocation; one that was made with it may live on.
pub fn is_valid(name: &str, now_s: i64) -> bool {
    let expiry = name.split_once(':').map(|(expiry, _)| expiry);
    let expiry = expiry.and_then(|expiry| expiry.parse::<i64>().ok());
    name.len() <= MAX_NAME_BYTES && expiry.is_some_and(|expiry| now_s < expiry)
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    // Keys of any length are taken.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        return Vec::new();
    };
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_expire_and_passwords_are_those_of_the_server() {
        let ours = Credentials::of_secret("a secret");
        let issue =
            |party, participant| ours.issue((party, participant), 1_000, Duration::from_mins(1));
        let (name, password) = issue("kitchen", "PA_1");
        assert!(
            name.starts_with("1060:") && name.ends_with(":PA_1"),
            "{name}"
        );
        assert!(!name.contains("kitchen"), "{name}");
        assert_eq!(party_of(&name), party_of(&issue("kitchen", "PA_2").0));
        assert_ne!(party_of(&name), party_of(&issue("cellar", "PA_1").0));
        assert_eq!(ours.password(&name), password);
        assert_ne!(Credentials::of_secret("another").password(&name), password);
        assert!(is_valid(&name, 1_059) && !is_valid(&name, 1_060));
        for bad in ["", "PA_1", "x:PA_1", &format!("9999:{}", "x".repeat(300))] {
            assert!(!is_valid(bad, 0), "{bad}");
        }
    }

    #[test]
    fn a_nonce_is_of_one_client_and_for_an_hour() {
        let ours = Credentials::of_secret("a secret");
        let (client, other) = ("10.0.0.1:5".parse().unwrap(), "10.0.0.1:6".parse().unwrap());
        let nonce = ours.nonce(client, 1_000);
        assert!(ours.is_fresh(&nonce, client, 1_000) && ours.is_fresh(&nonce, client, 4_599));
        assert!(!ours.is_fresh(&nonce, client, 4_600) && !ours.is_fresh(&nonce, client, 999));
        assert!(!ours.is_fresh(&nonce, other, 1_000));
        for bad in [
            "",
            "-",
            "x-y",
            "3e8-",
            "-3e8-AAAA",
            &nonce.replace("3e8", "3e9"),
        ] {
            assert!(!ours.is_fresh(bad, client, 1_000), "{bad}");
        }
    }
}
