//! Feeds the far end's sound to the [classifier](crate::classify) of a call: at its rate, with silence where the other side sends
//! nothing, so that its clock goes on.

use std::time::{Duration, Instant};

use crate::classify::phrases::Meaning;
use crate::classify::{Classifier, RATE, Wanted};
use vivavoce_audio::{Layout, Resampler, SampleRate};
use vivavoce_core::call::AnswerFinding;

/// Sound that is later than this does not come.
const LATE: Duration = Duration::from_millis(300);
/// What is left of that as the delay of what does come.
const DELAY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub struct Listener {
    classifier: Classifier,
    resampler: Option<Resampler>,
    began: Instant,
    /// Silence in place of sound that was late, since the last sound.
    filled: u64,
    sound: Vec<i16>,
    findings: Vec<AnswerFinding>,
}

impl Listener {
    /// Listens from now on.
    pub fn new(wanted: Wanted, now: Instant) -> Self {
        Self {
            classifier: Classifier::new(wanted),
            resampler: None,
            began: now,
            filled: 0,
            sound: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// The call is answered.
    pub fn answered(&mut self) {
        self.classifier.answered();
    }

    /// What was understood tells this.
    pub const fn words(&mut self, meaning: Meaning) {
        self.classifier.words(meaning);
    }

    /// The other side has sent this.
    pub fn hear(&mut self, sound: &[i16], rate: SampleRate) {
        self.filled = 0;
        if self
            .resampler
            .as_ref()
            .is_none_or(|resampler| resampler.input_layout().rate != rate)
        {
            self.resampler = Some(Resampler::new(Layout::mono(rate), RATE));
        }
        let Some(resampler) = &mut self.resampler else {
            return;
        };
        self.sound.clear();
        resampler.push(sound, &mut self.sound);
        self.classifier.push(&self.sound, &mut self.findings);
    }

    /// The other side has sent nothing for so long.
    pub fn pause(&mut self, time: Duration) {
        let samples = RATE.frames_in(time) as u64;
        // Some of it was filled already.
        self.silence(samples.saturating_sub(self.filled));
        self.filled = 0;
    }

    /// Time passes.
    pub fn tick(&mut self, now: Instant) {
        let due = RATE.frames_in(now.saturating_duration_since(self.began)) as u64;
        let behind = due.saturating_sub(self.classifier.position());
        if behind > RATE.frames_in(LATE) as u64 {
            let missing = behind - RATE.frames_in(DELAY) as u64;
            self.filled += missing;
            self.silence(missing);
        }
    }

    fn silence(&mut self, samples: u64) {
        self.sound.clear();
        // At most a second at once.
        let second = u64::from(RATE.hz());
        self.sound.resize(samples.min(second) as usize, 0);
        self.classifier.push(&self.sound, &mut self.findings);
    }

    /// What was found out since the last time.
    pub fn take_findings(&mut self) -> Vec<AnswerFinding> {
        std::mem::take(&mut self.findings)
    }

    /// Whether there is nothing more to find out.
    pub fn is_over(&self) -> bool {
        self.classifier.is_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_core::call::Answerer;

    #[test]
    fn a_line_without_packets_is_silent() {
        let now = Instant::now();
        let wanted = Wanted {
            network: None,
            beep_within: None,
        };
        let mut listener = Listener::new(wanted, now);
        listener.answered();
        let found = (0..300).find_map(|tick| {
            listener.tick(now + Duration::from_millis(20 * tick));
            listener.take_findings().pop()
        });
        let Some(AnswerFinding::Classified(found)) = found else {
            panic!("{found:?}");
        };
        assert_eq!(found.result, Answerer::Silence);
        assert!((3_900..4_500).contains(&found.after_ms), "{found:?}");
    }

    #[test]
    fn a_pause_that_was_filled_is_not_told_twice() {
        let now = Instant::now();
        let wanted = Wanted {
            network: None,
            beep_within: None,
        };
        let mut listener = Listener::new(wanted, now);
        listener.hear(&[0; 160], SampleRate::HZ_8000);
        listener.tick(now + Duration::from_secs(1));
        listener.pause(Duration::from_millis(980));
        let position = listener.classifier.position();
        assert!(position.abs_diff(16_000) < 500, "{position}");
    }
}
