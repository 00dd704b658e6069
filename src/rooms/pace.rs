//! How much of what somebody says of itself others are told, and when: so many bytes a second, counted for each who is
//! told. What exceeds that is told later, and then only the newest. State only; its clock is the housekeeping's.

use super::limits::{TOLD_BYTES_AT_ONCE, TOLD_BYTES_PER_SECOND};
use super::speakers::INTERVAL_MS;

/// What is paid off between two looks.
const PER_INTERVAL: u64 = TOLD_BYTES_PER_SECOND * INTERVAL_MS as u64 / 1_000;
/// Whoever told a crowd a lot is not silenced for minutes.
const MOST_OWED: u64 = TOLD_BYTES_AT_ONCE + 10 * TOLD_BYTES_PER_SECOND;

/// See the module.
#[derive(Debug, Default)]
pub struct Pace {
    owed: u64,
    /// Whether something is to be told when there may be more.
    waiting: bool,
}

impl Pace {
    /// Whether something may be told now. If not, it waits.
    pub fn admit(&mut self) -> bool {
        self.waiting = self.owed > TOLD_BYTES_AT_ONCE;
        !self.waiting
    }

    /// So much was told.
    pub fn spend(&mut self, bytes: u64) {
        self.owed = self.owed.saturating_add(bytes).min(MOST_OWED);
    }

    /// An interval of the housekeeping has passed. Says whether what waits may be told.
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
