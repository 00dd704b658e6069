//! The time, read in one place and passed as an argument, so that tests can set it.

use std::time::Instant;

/// The time, of both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For intervals.
    pub instant: Instant,
    /// Unix milliseconds, for what is told.
    pub unix_ms: i64,
}

impl Now {
    /// The time at this moment.
    pub fn read() -> Self {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            instant: Instant::now(),
            unix_ms: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        }
    }

    /// Unix seconds.
    pub fn unix_s(self) -> i64 {
        self.unix_ms / 1_000
    }
}
