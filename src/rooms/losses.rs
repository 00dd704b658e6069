//! Whether packets are lost on their way to a participant. Whoever is heard by it carries what was in the packet before in each
//! of its own while they are, which costs five times as much to encode.

use std::time::{Duration, Instant};

/// A larger share than this is lost for a reason that will lose more.
const LOST: f32 = 0.003;
/// For how long more is expected to be lost after the last that was.
const EXPECTED: Duration = Duration::from_mins(5);

/// What a participant has reported of its downlink.
#[derive(Debug, Default)]
pub struct Losses {
    /// Whether there was a report. Before the first there are losses, for all that is known.
    is_known: bool,
    expected_until: Option<Instant>,
}

impl Losses {
    /// Notes what share of its packets a participant has missed of late.
    pub fn note(&mut self, share: f32, now: Instant) {
        self.is_known = true;
        if share > LOST {
            self.expected_until = Some(now + EXPECTED);
        }
    }

    /// Whether it is to be expected that more is lost.
    pub fn are_expected(&self, now: Instant) -> bool {
        !self.is_known || self.expected_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_expected_until_the_first_report_and_for_a_while_after_each() {
        let (mut losses, start) = (Losses::default(), Instant::now());
        assert!(losses.are_expected(start));
        losses.note(0.0, start);
        assert!(!losses.are_expected(start));
        losses.note(0.02, start);
        let later = start + EXPECTED / 2;
        losses.note(0.0, later);
        assert!(losses.are_expected(later));
        assert!(!losses.are_expected(start + EXPECTED));
    }
}
