//! Whether a call that came is sent sound. An INVITE over UDP may be forged, and its description may name somebody who never
//! called: until the answer is acknowledged, which only who has read it can do, no more packets go out than came in. What is
//! said meanwhile is kept, so that a greeting is heard from its beginning; the delay is made good in pauses.

use std::collections::VecDeque;

use vivavoce_audio::jitter::FRAME;
use vivavoce_audio::pcm::level_dbov;

/// Frames of 20 ms that are kept, the newest: an answer or its acknowledgement that was lost comes again sooner.
const MOST_KEPT: usize = 100;
/// What is not louder is a pause (dBov below full scale).
const PAUSE_DBOV: u8 = 55;

/// See the module.
#[derive(Debug)]
pub struct Consent {
    given: bool,
    /// Packets that came and are not made up for.
    credit: u32,
    kept: VecDeque<Box<[i16; FRAME]>>,
}

impl Consent {
    /// Of a call from here: who is called has been asked for.
    pub const fn given() -> Self {
        Self {
            given: true,
            credit: 0,
            kept: VecDeque::new(),
        }
    }

    /// Of a call that came.
    pub const fn awaited() -> Self {
        Self {
            given: false,
            credit: 0,
            kept: VecDeque::new(),
        }
    }

    /// The answer was acknowledged.
    pub const fn give(&mut self) {
        self.given = true;
    }

    /// Whether it is acknowledged.
    pub const fn is_given(&self) -> bool {
        self.given
    }

    /// A packet came from who is believed.
    pub const fn heard(&mut self) {
        if !self.given {
            self.credit = self.credit.saturating_add(1);
        }
    }

    /// Takes what is to be sent now; whether something is, which `frame` holds then.
    pub fn pass(&mut self, frame: &mut [i16; FRAME]) -> bool {
        if self.given && self.kept.is_empty() {
            return true;
        }
        let pause = level_dbov(frame) >= PAUSE_DBOV;
        // Before the first word there is nothing to be kept; afterwards pauses are, unless there is time to be made good.
        let skipped = pause && (self.given || self.kept.is_empty());
        if !skipped {
            if self.kept.len() >= MOST_KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(Box::new(*frame));
        }
        if !self.given {
            let Some(credit) = self.credit.checked_sub(1) else {
                return false;
            };
            self.credit = credit;
        }
        if let Some(kept) = self.kept.pop_front() {
            *frame = *kept;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: i16 = 0;

    /// What is sent of frames that hold nothing but such a sample.
    fn sent(consent: &mut Consent, frames: impl IntoIterator<Item = i16>) -> Vec<i16> {
        let pass = |sample| {
            let mut frame = [sample; FRAME];
            consent.pass(&mut frame).then(|| frame[0])
        };
        frames.into_iter().filter_map(pass).collect()
    }

    #[test]
    fn nothing_is_sent_to_who_has_not_acknowledged_and_says_nothing() {
        let mut consent = Consent::awaited();
        assert!(sent(&mut consent, [9_000; 2_000]).is_empty());
    }

    #[test]
    fn a_greeting_is_heard_whole_once_the_call_is_acknowledged() {
        let mut consent = Consent::awaited();
        let greeting: Vec<i16> = (1..=30).map(|n| n * 1_000).collect();
        assert!(sent(&mut consent, [PAUSE; 10]).is_empty());
        assert!(sent(&mut consent, greeting[..12].iter().copied()).is_empty());
        consent.give();
        let mut heard = sent(&mut consent, greeting[12..].iter().copied());
        // The pause behind it makes the delay good, and what comes then is not late.
        heard.extend(sent(&mut consent, [PAUSE; 12]));
        assert_eq!(heard, greeting);
        assert_eq!(sent(&mut consent, [7_000, PAUSE]), [7_000, PAUSE]);
    }

    #[test]
    fn who_speaks_before_the_acknowledgement_is_sent_as_many_packets_as_came() {
        let mut consent = Consent::awaited();
        let mut count = 0;
        for n in 0..100 {
            if n % 2 == 0 {
                consent.heard();
            }
            count += sent(&mut consent, [9_000]).len();
        }
        assert_eq!(count, 50);
    }

    #[test]
    fn what_is_kept_is_the_newest_and_bounded() {
        let mut consent = Consent::awaited();
        sent(&mut consent, (1..=1_000).map(|n| n * 30));
        assert_eq!(consent.kept.len(), MOST_KEPT);
        consent.give();
        let first = 30 * (1_000 - MOST_KEPT as i16 + 2);
        assert_eq!(sent(&mut consent, [9_000]), [first]);
    }
}
