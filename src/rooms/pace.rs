//! Rate limit of state updates: a token bucket for what participants say about themselves, counted once per receiver,
//! because one update in a large room is sent to all. An update that exceeds it is delayed, and then only the newest state
//! is sent. Pure state; its clock is the SFU's housekeeping.

use super::limits::{TOLD_BYTES_AT_ONCE, TOLD_BYTES_PER_SECOND};
use super::speakers::INTERVAL_MS;

/// Bytes that come back per interval.
const PER_INTERVAL: u64 = TOLD_BYTES_PER_SECOND * INTERVAL_MS as u64 / 1_000;
/// Limits the debt, so that one large update is not followed by minutes of silence.
const MOST_OWED: u64 = TOLD_BYTES_AT_ONCE + 10 * TOLD_BYTES_PER_SECOND;

/// The rate limit of one participant or room. See the module.
#[derive(Debug, Default)]
pub struct Pace {
    owed: u64,
    /// Whether an update is delayed.
    waiting: bool,
}

impl Pace {
    /// Whether an update may be sent now. If not, it is delayed.
    pub fn admit(&mut self) -> bool {
        self.waiting = self.owed > TOLD_BYTES_AT_ONCE;
        !self.waiting
    }

    /// Counts sent bytes.
    pub fn spend(&mut self, bytes: u64) {
        self.owed = self.owed.saturating_add(bytes).min(MOST_OWED);
    }

    /// An interval has passed; whether a delayed update may be sent.
    pub fn rest(&mut self) -> bool {
        self.owed = self.owed.saturating_sub(PER_INTERVAL);
        self.waiting && self.owed <= TOLD_BYTES_AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_allows_some_at_once_and_then_so_much_a_second() {
        let (mut pace, mut told) = (Pace::default(), 0);
        for _ in 0..10_000 / INTERVAL_MS {
            for _ in 0..1_000 {
                if pace.admit() {
                    pace.spend(100_000);
                    told += 100_000;
                }
            }
            pace.rest();
        }
        let most = TOLD_BYTES_AT_ONCE + 10 * TOLD_BYTES_PER_SECOND;
        assert!(
            (most - PER_INTERVAL..most + 200_000).contains(&told),
            "{told}"
        );
    }

    #[test]
    fn what_waits_is_told_within_seconds_however_much_was_told() {
        let mut pace = Pace::default();
        assert!(pace.admit() && !pace.rest());
        pace.spend(u64::MAX);
        assert!(!pace.admit());
        let rests = (0..1_000).position(|_| pace.rest()).unwrap();
        assert!(rests as u64 * u64::from(INTERVAL_MS) <= 10_500, "{rests}");
    }
}
