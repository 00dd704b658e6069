//! Asks a caller for a PIN: what is said to them when, and what they have entered. Time and digits go in; whether a PIN is the
//! right one is decided elsewhere.

use std::time::{Duration, Instant};

/// How long the first digit is waited for before the question is repeated, the question itself included.
const SILENCE: Duration = Duration::from_secs(12);
/// How long the next digit is waited for before what there is counts as entered.
const PAUSE: Duration = Duration::from_secs(5);
/// How often the question is asked without an answer, and how many wrong answers there may be.
const MOST_QUESTIONS: u8 = 3;
const MOST_WRONG: u8 = 3;

/// What is said, or played, to somebody on the telephone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prompt {
    /// Asks for the PIN.
    EnterPin,
    /// The PIN was wrong.
    WrongPin,
    /// What somebody on hold hears, again and again.
    Hold,
    /// The caller for whom somebody was called has hung up.
    CallerLeft,
    /// Where somebody is in a queue.
    Position(u32),
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Wait,
    /// A digit came: what is being said is not to be said to its end.
    Hush,
    /// Say this, from its beginning.
    Say(Prompt),
    /// Try this PIN; empty where `#` alone was pressed.
    Try(String),
    /// End the call.
    GiveUp,
}

/// A PIN that is being entered.
#[derive(Debug)]
pub struct PinEntry {
    /// After so many digits the PIN is complete.
    longest: usize,
    digits: String,
    /// When the question was asked, or the last digit came.
    since: Instant,
    questions: u8,
    wrong: u8,
}

impl PinEntry {
    /// The question is asked now.
    pub const fn new(longest: usize, now: Instant) -> Self {
        Self {
            longest,
            digits: String::new(),
            since: now,
            questions: 1,
            wrong: 0,
        }
    }

    /// When [`Self::tick`] is due.
    pub fn deadline(&self) -> Instant {
        self.since
            + if self.digits.is_empty() {
                SILENCE
            } else {
                PAUSE
            }
    }

    /// A key was pressed: `#` ends the PIN, `*` begins it anew.
    pub fn press(&mut self, key: char, now: Instant) -> Step {
        self.since = now;
        match key {
            '#' => return Step::Try(std::mem::take(&mut self.digits)),
            '*' => self.digits.clear(),
            digit if digit.is_ascii_digit() => self.digits.push(digit),
            _ => {}
        }
        if self.digits.len() >= self.longest.max(1) {
            return Step::Try(std::mem::take(&mut self.digits));
        }
        Step::Hush
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) -> Step {
        if now < self.deadline() {
            return Step::Wait;
        }
        self.since = now;
        if !self.digits.is_empty() {
            return Step::Try(std::mem::take(&mut self.digits));
        }
        self.questions += 1;
        if self.questions > MOST_QUESTIONS {
            return Step::GiveUp;
        }
        Step::Say(Prompt::EnterPin)
    }

    /// What was tried was wrong.
    pub const fn refused(&mut self, now: Instant) -> Step {
        self.since = now;
        self.wrong += 1;
        if self.wrong >= MOST_WRONG {
            return Step::GiveUp;
        }
        Step::Say(Prompt::WrongPin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(entry: &mut PinEntry, keys: &str, now: Instant) -> Step {
        keys.chars()
            .fold(Step::Wait, |_, key| entry.press(key, now))
    }

    #[test]
    fn a_pin_ends_with_its_last_digit_with_a_hash_or_with_a_pause() {
        let mut now = Instant::now();
        let mut entry = PinEntry::new(4, now);
        assert_eq!(press(&mut entry, "123", now), Step::Hush);
        assert_eq!(press(&mut entry, "4", now), Step::Try("1234".to_owned()));
        assert_eq!(press(&mut entry, "12#", now), Step::Try("12".to_owned()));
        assert_eq!(press(&mut entry, "99*12", now), Step::Hush);
        assert_eq!(entry.tick(now), Step::Wait);
        now += PAUSE;
        assert_eq!(entry.tick(now), Step::Try("12".to_owned()));
        assert_eq!(press(&mut entry, "#", now), Step::Try(String::new()));
        assert_eq!(press(&mut entry, "A1", now), Step::Hush);
    }

    #[test]
    fn whoever_does_not_answer_or_only_guesses_is_hung_up() {
        let mut now = Instant::now();
        let mut entry = PinEntry::new(4, now);
        for _ in 1..MOST_QUESTIONS {
            now += SILENCE;
            assert_eq!(entry.tick(now), Step::Say(Prompt::EnterPin));
        }
        now += SILENCE;
        assert_eq!(entry.tick(now), Step::GiveUp);
        let mut entry = PinEntry::new(4, now);
        for _ in 1..MOST_WRONG {
            assert_eq!(entry.refused(now), Step::Say(Prompt::WrongPin));
        }
        assert_eq!(entry.refused(now), Step::GiveUp);
    }
}
