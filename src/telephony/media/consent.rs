//! Consent of an inbound caller to receive media. An INVITE over UDP may be forged, with a session description that points
//! at a victim: until the answer is acknowledged, which takes someone who has read it, nothing is sent. Audio is buffered
//! meanwhile, so that a greeting is heard from its beginning; the delay is recovered in pauses.

use std::collections::VecDeque;

use vivavoce_audio::pcm::{Pcm, level_dbov};
use vivavoce_audio::{Bandwidth, Layout, Resampler};

/// Frames of 20 ms that are buffered, the newest: a lost answer or ACK is repeated sooner.
const MOST_KEPT: usize = 100;
/// A frame at or below this level (dBov) is a pause.
const PAUSE_DBOV: u8 = 55;

/// Consent of one call. See the module.
#[derive(Debug)]
pub struct Consent {
    given: bool,
    kept: VecDeque<Box<[i16]>>,
}

impl Consent {
    /// For an outbound call: it was us who called.
    pub const fn given() -> Self {
        Self {
            given: true,
            kept: VecDeque::new(),
        }
    }

    /// For an inbound call.
    pub const fn awaited() -> Self {
        Self {
            given: false,
            kept: VecDeque::new(),
        }
    }

    /// The answer was acknowledged.
    pub const fn give(&mut self) {
        self.given = true;
    }

    /// Whether the answer was acknowledged.
    pub const fn is_given(&self) -> bool {
        self.given
    }

    /// Whether frames pass as they come: it was acknowledged, and nothing is left from before.
    pub fn is_settled(&self) -> bool {
        self.given && self.kept.is_empty()
    }

    /// The call has another rate from now on, and what is kept, too.
    pub fn convert(&mut self, from: Bandwidth, to: Bandwidth) {
        let kept: Vec<i16> = self.kept.drain(..).flatten().collect();
        let kept = Resampler::convert(Pcm::new(Layout::mono(from.rate()), kept), to.rate());
        let frames = kept.samples().chunks(to.frame());
        self.kept.extend(frames.map(Box::from));
    }

    /// Takes the next frame. If it returns `true`, `frame` is to be sent: it holds the oldest one buffered.
    pub fn pass(&mut self, frame: &mut Vec<i16>) -> bool {
        if self.given && self.kept.is_empty() {
            return true;
        }
        let pause = level_dbov(frame) >= PAUSE_DBOV;
        // Before the first word nothing needs to be buffered; later pauses are, unless there is delay to recover.
        let skipped = pause && (self.given || self.kept.is_empty());
        if !skipped {
            if self.kept.len() >= MOST_KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(frame.as_slice().into());
        }
        if !self.given {
            return false;
        }
        if let Some(kept) = self.kept.pop_front() {
            *frame = kept.into_vec();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: i16 = 0;

    /// What is sent of frames filled with these samples.
    fn sent(consent: &mut Consent, frames: impl IntoIterator<Item = i16>) -> Vec<i16> {
        let pass = |sample| {
            let mut frame = vec![sample; 160];
            consent.pass(&mut frame).then(|| frame[0])
        };
        frames.into_iter().filter_map(pass).collect()
    }

    #[test]
    fn nothing_is_sent_to_who_has_not_acknowledged() {
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
        // The following pause recovers the delay; later audio is on time.
        heard.extend(sent(&mut consent, [PAUSE; 12]));
        assert_eq!(heard, greeting);
        assert_eq!(sent(&mut consent, [7_000, PAUSE]), [7_000, PAUSE]);
    }

    #[test]
    fn a_greeting_is_as_long_at_another_rate() {
        let mut consent = Consent::awaited();
        sent(&mut consent, [9_000; 30]);
        consent.convert(Bandwidth::Narrowband, Bandwidth::Fullband);
        assert_eq!(consent.kept.len(), 30);
        assert!(consent.kept.iter().all(|frame| frame.len() == 960));
        assert!((8_900..9_100).contains(&consent.kept[15][400]));
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
