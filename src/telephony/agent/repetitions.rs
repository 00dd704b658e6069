//! Requests that were received before. The stack responds to each repetition with the last response again, which may be
//! many times as large: over UDP, where the source can be forged, somebody could have it sent to others. A client repeats a
//! request at intervals of T1 (500 ms, RFC 3261 section 17.1), so that more frequent ones need no response.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use rsipstack::sip::Method;
use rsipstack::transaction::key::TransactionKey;

/// Repetitions of a request are answered at most this often: with room for clients with a shorter T1, and for jitter.
const INTERVAL: Duration = Duration::from_millis(250);

/// Which request of a transaction is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Repeated {
    Request,
    Cancel,
    /// The stack takes an ACK that comes before the final response for a repetition of the INVITE.
    Ack,
}

impl Repeated {
    pub fn of(method: &Method) -> Self {
        match method {
            Method::Cancel => Self::Cancel,
            Method::Ack => Self::Ack,
            _ => Self::Request,
        }
    }
}

/// When repetitions were answered last, by transaction and by which of its requests is repeated. There are at most three
/// times as many entries as the stack has transactions.
#[derive(Debug)]
pub(super) struct Repetitions<K = (TransactionKey, Repeated)> {
    answered: HashMap<K, Instant>,
    swept: Option<Instant>,
}

impl<K> Default for Repetitions<K> {
    fn default() -> Self {
        Self {
            answered: HashMap::new(),
            swept: None,
        }
    }
}

impl<K: Eq + Hash> Repetitions<K> {
    /// Whether one more repetition is answered.
    pub fn answers(&mut self, key: K, now: Instant) -> bool {
        let recent = |at: Instant| now.saturating_duration_since(at) < INTERVAL;
        if !self.swept.is_some_and(recent) {
            self.swept = Some(now);
            self.answered.retain(|_, at| recent(*at));
        }
        if self.answered.get(&key).is_some_and(|at| recent(*at)) {
            return false;
        }
        self.answered.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_repeated_without_a_pause_is_answered_four_times_a_second() {
        let mut repetitions = Repetitions::default();
        let start = Instant::now();
        let answered = (0..10_000).filter(|ms| {
            let now = start + Duration::from_millis(*ms);
            repetitions.answers("flood", now)
        });
        assert_eq!(answered.count(), 40);
        // Nothing is left of it, and others are answered meanwhile.
        let now = start + Duration::from_secs(10);
        assert!(repetitions.answers("other", now) && !repetitions.answers("other", now));
        assert_eq!(repetitions.answered.len(), 1);
    }

    #[test]
    fn whoever_repeats_as_often_as_the_timers_say_is_answered_each_time() {
        let mut repetitions = Repetitions::default();
        let start = Instant::now();
        for ms in [0, 500, 1_480, 3_500, 7_500, 11_500] {
            assert!(repetitions.answers("call", start + Duration::from_millis(ms)));
        }
    }
}
