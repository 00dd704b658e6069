//! Log lines that somebody outside causes: one per interval, with the number of times.

use std::time::{Duration, Instant};

/// Between two lines about the same.
const INTERVAL: Duration = Duration::from_secs(10);

/// How often something has happened since it was logged.
#[derive(Debug, Default, Clone, Copy)]
pub struct LogInterval {
    logged: Option<Instant>,
    since: u64,
}

impl LogInterval {
    /// Nothing has happened yet.
    pub const fn new() -> Self {
        Self {
            logged: None,
            since: 0,
        }
    }

    /// Counts one more time; if it is to be logged now, the times since the last line.
    pub fn count(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        let recent = |logged| now.saturating_duration_since(logged) < INTERVAL;
        if self.logged.is_some_and(recent) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_times_are_one_line_that_has_their_number() {
        let mut interval = LogInterval::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let told: Vec<u64> = (0..25_000)
            .filter_map(|ms| interval.count(at(ms)))
            .collect();
        assert_eq!(told, [1, 10_000, 10_000]);
    }
}
