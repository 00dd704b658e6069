//! How many messages a client may send its session. Sessions share threads, so that one that is sent thousands of messages
//! would delay others. Time is an argument; what becomes of messages beyond the rate is left to the socket's handler.

use std::time::Instant;

use vivavoce_core::token_bucket::TokenBucket;

/// Messages per second, in the long run: more than a language model has tokens.
pub const PER_SECOND: u32 = 200;
/// Messages at once.
const AT_ONCE: u32 = 2_000;
/// A message costs as much as one more for each time that it is so long.
const BYTES: u32 = 16 << 10;

/// What a client may still send.
#[derive(Debug, Clone, Copy)]
pub struct MessageRate(Option<TokenBucket>);

impl Default for MessageRate {
    fn default() -> Self {
        Self(Some(TokenBucket::new(PER_SECOND, AT_ONCE)))
    }
}

impl MessageRate {
    /// That of a client that is a part of this server, and limits itself.
    pub const UNLIMITED: Self = Self(None);

    /// Whether a message of so many bytes is within the rate.
    pub fn accepts(&mut self, bytes: usize, now: Instant) -> bool {
        let cost = 1.0 + bytes as f64 / f64::from(BYTES);
        self.0.as_mut().is_none_or(|bucket| bucket.take(cost, now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_come_at_once_and_then_so_many_a_second_and_long_ones_count_for_more() {
        let mut rate = MessageRate::default();
        let mut now = Instant::now();
        let accepted = |rate: &mut MessageRate, bytes, now| {
            (0..5_000).filter(|_| rate.accepts(bytes, now)).count()
        };
        assert_eq!(accepted(&mut rate, 0, now), 2_000);
        now += Duration::from_secs(1);
        assert_eq!(accepted(&mut rate, 0, now), 200);
        now += Duration::from_hours(1);
        assert_eq!(accepted(&mut rate, 1 << 20, now), 30);
        now += Duration::from_secs(1);
        assert_eq!(accepted(&mut rate, 1 << 20, now), 3);
    }
}
