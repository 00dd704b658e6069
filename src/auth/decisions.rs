//! A cache of the authentication service's recent decisions. Only successful ones are cached, for as long as
//! configured; the least recently used ones are evicted.

use std::time::{Duration, Instant};

use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};

use super::service::AuthRequest;
use super::token::{Holder, Token};

/// Capacity of the cache; an entry takes about 200 bytes.
const MAX_DECISIONS: usize = 10_000;

/// A digest of token, method, path and body.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn new(token: &Token, request: &AuthRequest) -> Self {
        let fields: [&[u8]; 3] = [
            token.expose().as_bytes(),
            request.method.as_bytes(),
            request.path.as_bytes(),
        ];
        let mut digest = Sha256::new();
        for field in fields {
            digest.update((field.len() as u64).to_le_bytes());
            digest.update(field);
        }
        digest.update(&request.body);
        Self(digest.finalize().into())
    }
}

/// The cached decisions.
pub(super) struct Decisions {
    answers: Cache<Key, (Instant, Holder)>,
    keep: Duration,
}

impl Decisions {
    /// `None` if caching is off.
    pub(super) fn new(keep: Duration) -> Option<Self> {
        (!keep.is_zero()).then(|| Self {
            answers: Cache::new(MAX_DECISIONS),
            keep,
        })
    }

    /// The holder of the token, if a fresh decision is cached.
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<Holder> {
        let (answered, holder) = self.answers.get(key)?;
        (now.saturating_duration_since(answered) < self.keep).then_some(holder)
    }

    pub(super) fn put(&self, key: Key, holder: Holder, now: Instant) {
        self.answers.insert(key, (now, holder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn key([token, method, path, body]: [&'static str; 4]) -> Key {
        let request = AuthRequest::new(method, path, [], Bytes::from_static(body.as_bytes()));
        Key::new(&Token::new(token).unwrap(), &request)
    }

    #[test]
    fn an_answer_is_for_one_token_method_path_and_body() {
        let asked = ["t", "POST", "/speak", "{}"];
        for other in [
            ["u", "POST", "/speak", "{}"],
            ["t", "GET", "/speak", "{}"],
            ["t", "POST", "/speak/", "{}"],
            ["t", "POST", "/speak", "{ }"],
            ["tP", "OST", "/speak", "{}"],
            ["t", "POST", "/speak{", "}"],
        ] {
            assert!(key(asked) != key(other), "{other:?}");
        }
        assert!(key(asked) == key(asked));
    }

    #[test]
    fn an_answer_is_forgotten_in_time() {
        let decisions = Decisions::new(Duration::from_secs(10)).unwrap();
        let (key, now) = (key(["t", "GET", "/voices", ""]), Instant::now());
        decisions.put(key, Holder::of(None), now);
        assert_eq!(
            decisions.get(&key, now + Duration::from_millis(9_999)),
            Some(Holder::of(None))
        );
        assert_eq!(decisions.get(&key, now + Duration::from_secs(10)), None);
        assert!(Decisions::new(Duration::ZERO).is_none());
    }

    #[test]
    fn answers_are_bounded() {
        let decisions = Decisions::new(Duration::from_secs(10)).unwrap();
        let now = Instant::now();
        for number in 0..3 * MAX_DECISIONS as u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            decisions.put(Key(key), Holder::of(None), now);
        }
        assert!(decisions.answers.len() <= MAX_DECISIONS);
    }
}
