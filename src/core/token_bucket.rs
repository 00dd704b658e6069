//! A token bucket. Time is an argument; what happens to what exceeds it is the caller's decision.

use std::time::{Duration, Instant};

/// The tokens left, and how fast they come back.
#[derive(Debug, Clone, Copy)]
pub struct TokenBucket {
    most: f64,
    per_second: f64,
    left: f64,
    since: Option<Instant>,
}

impl TokenBucket {
    /// `per_second` tokens come back each second, up to `most` for a burst.
    pub const fn new(per_second: u32, most: u32) -> Self {
        Self {
            most: most as f64,
            per_second: per_second as f64,
            left: most as f64,
            since: None,
        }
    }

    /// Takes tokens if there are enough.
    pub fn take(&mut self, amount: f64, now: Instant) -> bool {
        if let Some(since) = self.since {
            let passed = now.saturating_duration_since(since);
            self.refill(passed);
        }
        self.since = Some(now);
        let fits = self.left >= amount;
        if fits {
            self.left -= amount;
        }
        fits
    }

    /// Takes tokens even if there are not enough: later requests wait for them.
    pub const fn charge(&mut self, amount: f64) {
        self.left -= amount;
    }

    fn refill(&mut self, passed: Duration) {
        let back = passed.as_secs_f64() * self.per_second;
        self.left = (self.left + back).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_fits_and_then_what_comes_back() {
        let mut bucket = TokenBucket::new(10, 5);
        let mut now = Instant::now();
        let taken = (0..20).filter(|_| bucket.take(1.0, now)).count();
        assert_eq!(taken, 5);
        now += Duration::from_millis(100);
        assert!(bucket.take(1.0, now) && !bucket.take(1.0, now));
        // A clock that goes back adds nothing, and a long pause no more than a burst.
        assert!(!bucket.take(1.0, now - Duration::from_millis(50)));
        now += Duration::from_hours(1);
        let taken = (0..20).filter(|_| bucket.take(1.0, now)).count();
        assert_eq!(taken, 5);
    }
}
