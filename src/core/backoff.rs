//! Back-off: how long to wait before something that has failed is tried again. Delays grow up to a limit, less a random share,
//! so that many clients of one server do not return at the same moment. How often to retry is the caller's decision: for
//! recognisers and synthesisers `actors/restarts.rs`, for webhooks `webhooks/retries.rs`, for uploads `recordings/uploader.rs`.

use std::time::Duration;

/// The delays between attempts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    /// How much longer each further delay is.
    pub factor: f64,
    /// No delay is longer.
    pub longest: Duration,
    /// The share of a delay, 0–1, that is left to chance.
    pub jitter: f64,
}

impl Backoff {
    /// Delays that are each twice as long as the one before.
    pub const fn doubling(first: Duration, longest: Duration, jitter: f64) -> Self {
        Self {
            first,
            factor: 2.0,
            longest,
            jitter,
        }
    }

    /// The delay after a failure that so many failures came before. `chance` is a random number, 0–1: it only shortens.
    pub fn delay(&self, earlier: u32, chance: f64) -> Duration {
        let exponent = i32::try_from(earlier).unwrap_or(i32::MAX);
        let grown = self.first.as_secs_f64() * self.factor.powi(exponent);
        let full = grown.min(self.longest.as_secs_f64());
        let share = self.jitter * chance.clamp(0.0, 1.0);
        Duration::try_from_secs_f64(full * (1.0 - share))
            .map_or(self.longest, |delay| delay.min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BACKOFF: Backoff =
        Backoff::doubling(Duration::from_millis(100), Duration::from_secs(5), 0.2);

    #[test]
    fn delays_grow_to_the_longest() {
        let delays = [0, 1, 2, 5, 6, 100, u32::MAX].map(|earlier| BACKOFF.delay(earlier, 0.0));
        let millis = delays.map(|delay| delay.as_millis());
        assert_eq!(millis, [100, 200, 400, 3_200, 5_000, 5_000, 5_000]);
    }

    proptest! {
        #[test]
        fn chance_only_shortens_a_delay_and_by_its_share(earlier: u32, chance in 0.0..=1.0) {
            let full = BACKOFF.delay(earlier, 0.0);
            let delay = BACKOFF.delay(earlier, chance);
            prop_assert!(delay <= full);
            prop_assert!(delay >= full.mul_f64(1.0 - BACKOFF.jitter - 1e-9));
        }
    }
}
