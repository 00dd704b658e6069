//! Whether packets of sound are lost on their way to a participant. Whoever is heard by it carries what was in the packet
//! before in each of its own while they are, which costs five times as much to encode.

use std::time::{Duration, Instant};

/// A larger share than this is missed for a reason that will lose more; fewer are concealed well.
const LOST: f32 = 0.01;
/// For how long more is expected to be lost after the last that was.
const EXPECTED: Duration = Duration::from_mins(5);
/// For how long nothing is known of who has come. Receivers report every few seconds what they are sent.
const UNKNOWN: Duration = Duration::from_secs(30);

/// What a participant has reported of its downlink.
#[derive(Debug)]
pub struct Losses {
    unknown_until: Instant,
    expected_until: Option<Instant>,
}

impl Losses {
    /// Of who has come now: for all that is known, it misses packets.
    pub fn new(now: Instant) -> Self {
        Self {
            unknown_until: now + UNKNOWN,
            expected_until: None,
        }
    }

    /// Notes what share of its packets a participant has missed of late.
    pub fn note(&mut self, share: f32, now: Instant) {
        self.unknown_until = now;
        if share > LOST {
            self.expected_until = Some(now + EXPECTED);
        }
    }

    /// Whether it is to be expected that more is lost.
    pub fn are_expected(&self, now: Instant) -> bool {
        now < self.unknown_until || self.expected_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_expected_until_the_first_report_and_for_a_while_after_each() {
        let start = Instant::now();
        let mut losses = Losses::new(start);
        assert!(losses.are_expected(start));
        losses.note(0.0, start);
        assert!(!losses.are_expected(start));
        // One packet of 250.
        losses.note(0.004, start);
        assert!(!losses.are_expected(start));
        losses.note(0.02, start);
        let later = start + EXPECTED / 2;
        losses.note(0.0, later);
        assert!(losses.are_expected(later));
        assert!(!losses.are_expected(start + EXPECTED));
    }

    #[test]
    fn who_reports_nothing_is_sent_nothing() {
        let start = Instant::now();
        let losses = Losses::new(start);
        assert!(losses.are_expected(start + UNKNOWN / 2));
        assert!(!losses.are_expected(start + UNKNOWN));
    }
}
