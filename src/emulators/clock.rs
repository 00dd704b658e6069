//! The emulators' clock: limits, keep-alives and delays of minutes pass in seconds when it is set faster. Positions in audio
//! are not affected.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How much faster than real time the emulators' timers run.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    speed: f64,
}

impl Default for Clock {
    /// Real time.
    fn default() -> Self {
        Self { speed: 1.0 }
    }
}

/// A speed that is not within 0.01–10 000.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a clock cannot run {0} times as fast; use 0.01 to 10000")]
pub struct ClockError(f64);

impl Clock {
    /// A clock on which `speed` seconds pass in each second.
    pub fn new(speed: f64) -> Result<Self, ClockError> {
        if (0.01..=10_000.0).contains(&speed) {
            Ok(Self { speed })
        } else {
            Err(ClockError(speed))
        }
    }

    /// How long the emulated `time` takes.
    pub fn real(&self, time: Duration) -> Duration {
        Duration::try_from_secs_f64(time.as_secs_f64() / self.speed).unwrap_or(Duration::MAX)
    }

    /// What a real time is on this clock.
    pub fn emulated(&self, real: Duration) -> Duration {
        Duration::try_from_secs_f64(real.as_secs_f64() * self.speed).unwrap_or(Duration::MAX)
    }

    /// When the emulated `time` has passed since `from`; `None` is never.
    pub fn after(&self, from: Instant, time: Duration) -> Option<Instant> {
        from.checked_add(self.real(time))
    }

    /// Waits for the emulated `time`.
    pub async fn sleep(&self, time: Duration) {
        tokio::time::sleep(self.real(time)).await;
    }

    /// A timer that goes off once the emulated `time` has passed; with `None` never.
    pub fn timer(&self, time: Option<Duration>) -> Timer {
        let mut timer = Timer {
            clock: *self,
            time,
            due: None,
        };
        timer.restart();
        timer
    }
}

/// For limits and keep-alive rules: goes off unless it is restarted in time.
#[derive(Debug, Clone, Copy)]
pub struct Timer {
    clock: Clock,
    time: Option<Duration>,
    due: Option<Instant>,
}

impl Timer {
    /// Gives the whole time again.
    pub fn restart(&mut self) {
        let now = Instant::now();
        self.due = self.time.and_then(|time| self.clock.after(now, time));
    }

    /// Waits until it goes off. May be dropped and called again.
    pub async fn expired(&self) {
        at(self.due).await;
    }
}

/// Waits until then, not at all where that is now (timers ring on the next whole millisecond); `None` is never.
pub(super) async fn at(due: Option<Instant>) {
    match due {
        Some(due) if due <= Instant::now() => {}
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_minute_passes_in_six_seconds_at_ten_times_the_speed() {
        let clock = Clock::new(10.0).unwrap();
        let start = Instant::now();
        clock.timer(Some(Duration::from_mins(1))).expired().await;
        assert_eq!(start.elapsed(), Duration::from_secs(6));
        assert_eq!(clock.emulated(start.elapsed()), Duration::from_mins(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_restarted_in_time_does_not_go_off() {
        let mut timer = Clock::default().timer(Some(Duration::from_secs(10)));
        for _ in 0..3 {
            tokio::time::timeout(Duration::from_secs(9), timer.expired())
                .await
                .unwrap_err();
            timer.restart();
        }
    }

    #[test]
    fn no_speed_stops_the_clock() {
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Clock::new(speed).is_err());
        }
    }
}
