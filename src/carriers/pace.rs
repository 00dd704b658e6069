//! How much a carrier may send: sound at twice real time on average, and not many messages without sound. What exceeds it is
//! dropped and counted, because a carrier that floods must not slow down others.

use std::time::{Duration, Instant};

/// The sound that may come at once: more than waits in a carrier while a network stands still.
const BURST: Duration = Duration::from_secs(10);
/// Messages a second; 20 ms of sound each are 50.
const MESSAGES_PER_SECOND: f64 = 200.0;
/// Messages that may come at once.
const MESSAGES_AT_ONCE: f64 = 2_000.0;

/// What one socket may still send.
#[derive(Debug)]
pub struct InputPace {
    sound: Duration,
    messages: f64,
    at: Instant,
}

impl InputPace {
    /// A socket that has sent nothing.
    pub const fn new(now: Instant) -> Self {
        Self {
            sound: BURST,
            messages: MESSAGES_AT_ONCE,
            at: now,
        }
    }

    fn goes_on(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = now;
        self.sound = BURST.min(self.sound.saturating_add(passed.saturating_mul(2)));
        self.messages = MESSAGES_AT_ONCE.min(
            passed
                .as_secs_f64()
                .mul_add(MESSAGES_PER_SECOND, self.messages),
        );
    }

    /// Whether another message is read.
    pub fn message(&mut self, now: Instant) -> bool {
        self.goes_on(now);
        let has = self.messages >= 1.0;
        if has {
            self.messages -= 1.0;
        }
        has
    }

    /// Whether so much sound is taken.
    pub fn sound(&mut self, sound: Duration, now: Instant) -> bool {
        self.goes_on(now);
        let rest = self.sound.checked_sub(sound);
        self.sound = rest.unwrap_or(self.sound);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_real_time_is_taken_and_more_is_not() {
        let mut now = Instant::now();
        let mut pace = InputPace::new(now);
        let packet = Duration::from_millis(20);
        for _ in 0..10_000 {
            now += packet / 2;
            assert!(pace.message(now) && pace.sound(packet, now));
        }
        let taken = (0..10_000).filter(|_| pace.sound(packet, now)).count();
        assert!((499..=500).contains(&taken), "{taken}");
        let read = (0..10_000).filter(|_| pace.message(now)).count();
        assert!((1_999..=2_000).contains(&read), "{read}");
        assert!(!pace.message(now));
    }
}
