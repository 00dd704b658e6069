//! Signatures that count once. A handshake that somebody has read on its way, or in a log, opens no second socket. Bounded.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};

use super::Signature;
use super::signatures::FRESH;

/// The most that are remembered; at this rate none is forgotten while it is fresh: 218 calls a second.
const MAX_REMEMBERED: usize = 131_072;
/// A signature may be from the past or the future by as much as it may differ from now.
const REMEMBERED_FOR: Duration = FRESH.saturating_mul(2);

/// Those that were used. Where the signature has no time, a copy is known for as long as this remembers it.
#[derive(Debug, Default)]
pub struct UsedSignatures {
    known: HashSet<[u8; 32]>,
    order: VecDeque<(Instant, [u8; 32])>,
}

impl UsedSignatures {
    /// Uses a signature; `false` if it was used before.
    pub fn take(&mut self, signature: &Signature, now: Instant) -> bool {
        let Signature::Once(signature) = signature else {
            return true;
        };
        let is_over =
            |(used, _): &(Instant, _)| now.saturating_duration_since(*used) > REMEMBERED_FOR;
        while self.order.front().is_some_and(is_over) {
            self.forget_first();
        }
        let Ok(key) = <[u8; 32]>::try_from(digest(&SHA256, signature).as_ref()) else {
            return false;
        };
        let is_new = self.known.insert(key);
        if is_new {
            if self.order.len() >= MAX_REMEMBERED {
                self.forget_first();
            }
            self.order.push_back((now, key));
        }
        is_new
    }

    fn forget_first(&mut self) {
        if let Some((_, forgotten)) = self.order.pop_front() {
            self.known.remove(&forgotten);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(number: usize) -> Signature {
        Signature::Once(number.to_be_bytes().into())
    }

    #[test]
    fn a_signature_counts_once_while_it_could_be_fresh() {
        let mut used = UsedSignatures::default();
        let now = Instant::now();
        assert!(used.take(&once(1), now));
        assert!(!used.take(&once(1), now + REMEMBERED_FOR));
        assert!(used.take(&once(2), now + REMEMBERED_FOR));
        let later = now + REMEMBERED_FOR + Duration::from_secs(1);
        assert!(used.take(&once(1), later));
        assert!(!used.take(&once(2), later));
        assert!(used.take(&Signature::Repeated, now) && used.take(&Signature::Repeated, now));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut used = UsedSignatures::default();
        let now = Instant::now();
        (0..=MAX_REMEMBERED).for_each(|number| assert!(used.take(&once(number), now)));
        assert_eq!(
            (used.known.len(), used.order.len()),
            (MAX_REMEMBERED, MAX_REMEMBERED)
        );
        assert!(!used.take(&once(1), now));
    }
}
