//! How much of something may come in a time: a token bucket. Time is an argument; what is done with what does not fit is
//! others' business.

use std::time::{Duration, Instant};

/// What is saved up for a burst, and what comes back each second.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    most: f64,
    per_second: f64,
    left: f64,
    since: Option<Instant>,
}

impl Allowance {
    /// So much each second, and at once `most` after a while without.
    pub const fn new(per_second: u32, most: u32) -> Self {
        Self {
            most: most as f64,
            per_second: per_second as f64,
            left: most as f64,
            since: None,
        }
    }

    /// Whether so much still fits; it is taken then.
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

    /// Takes more than was asked for at first, even where it does not fit: what comes next waits for it.
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
        let mut allowance = Allowance::new(10, 5);
        let mut now = Instant::now();
        let taken = (0..20).filter(|_| allowance.take(1.0, now)).count();
        assert_eq!(taken, 5);
        now += Duration::from_millis(100);
        assert!(allowance.take(1.0, now) && !allowance.take(1.0, now));
        // A clock that goes back gives nothing, and a long pause no more than a burst.
        assert!(!allowance.take(1.0, now - Duration::from_millis(50)));
        now += Duration::from_hours(1);
        let taken = (0..20).filter(|_| allowance.take(1.0, now)).count();
        assert_eq!(taken, 5);
    }
}
