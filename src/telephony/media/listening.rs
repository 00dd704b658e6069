//! Feeds the far end's sound to the [classifier](crate::classify) of a call: at its rate, with silence where the other side sends
//! nothing, so that its clock goes on.

use std::time::{Duration, Instant};

use crate::classify::phrases::Meaning;
use crate::classify::{Classifier, RATE, Wanted};
use vivavoce_audio::{Layout, Resampler, SampleRate};
use vivavoce_core::call::AnswerFinding;

/// Sound that is later than this does not come, where nothing has come yet or the other side is known to pause …
const LATE: Duration = Duration::from_millis(300);
/// … and where it has sent all the time so far: what stands still then is the network or a busy machine, and it is no pause of
/// somebody who has said hello. Most telephones send silence as sound; one that does not is heard later by this, once. With the
/// longest greeting of a person before it, it is decided within 2.5 s all the same.
const STANDS_STILL: Duration = Duration::from_millis(600);
/// What is left of either as the delay of what does come.
const DELAY: Duration = Duration::from_millis(100);
/// However slowly it comes, what is heard is no further behind than this.
const MOST_BEHIND: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Listener {
    classifier: Classifier,
    /// There is one as soon as there was sound.
    resampler: Option<Resampler>,
    began: Instant,
    /// When the last sound came; when listening began, before there was any.
    last: Instant,
    /// Silence in place of sound that was late, since then.
    filled: u64,
    /// Whether the other side is known to send nothing in pauses.
    pauses: bool,
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
            last: now,
            filled: 0,
            pauses: false,
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
    pub fn hear(&mut self, sound: &[i16], rate: SampleRate, now: Instant) {
        self.last = now;
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

    /// The other side has sent nothing for so long, by its own clock.
    pub fn pause(&mut self, time: Duration) {
        let samples = RATE.frames_in(time) as u64;
        // Some of it was filled already.
        self.silence(samples.saturating_sub(self.filled));
        self.filled = 0;
        self.pauses = true;
    }

    /// The other side says that it sends no sound while there is none (comfort noise, RFC 3389).
    pub const fn comfort_noise(&mut self) {
        self.pauses = true;
    }

    /// Time passes.
    pub fn tick(&mut self, now: Instant) {
        let due = RATE.frames_in(now.saturating_duration_since(self.last)) as u64;
        let missing = due.saturating_sub(self.filled);
        let has_sent_all_the_time = self.resampler.is_some() && !self.pauses;
        let late = if has_sent_all_the_time && self.filled == 0 {
            STANDS_STILL
        } else {
            LATE
        };
        if missing > RATE.frames_in(late) as u64 {
            self.filled += self.silence(missing - RATE.frames_in(DELAY) as u64);
        }
        let listened = now.saturating_duration_since(self.began);
        let due = RATE.frames_in(listened.saturating_sub(MOST_BEHIND)) as u64;
        self.silence(due.saturating_sub(self.classifier.position()));
    }

    /// Gives how much of it was heard: at most a second at once.
    fn silence(&mut self, samples: u64) -> u64 {
        let samples = samples.min(RATE.hz().into());
        self.sound.clear();
        self.sound.resize(samples as usize, 0);
        self.classifier.push(&self.sound, &mut self.findings);
        samples
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

    const NOTHING: Wanted = Wanted {
        network: None,
        beep_within: None,
    };

    #[test]
    fn a_line_without_packets_is_silent() {
        let now = Instant::now();
        let mut listener = Listener::new(NOTHING, now);
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

    /// Hears 20 ms, and then nothing for 0.5 s. Gives samples that are filled at the end of it.
    fn filled_meanwhile(now: Instant, listener: &mut Listener) -> u64 {
        listener.hear(&[0; 160], SampleRate::HZ_8000, now);
        let before = listener.classifier.position();
        for tick in 0..=25 {
            listener.tick(now + Duration::from_millis(20 * tick));
        }
        listener.classifier.position() - before
    }

    #[test]
    fn a_pause_that_was_filled_is_not_told_twice() {
        let now = Instant::now();
        let mut listener = Listener::new(NOTHING, now);
        listener.comfort_noise();
        let filled = filled_meanwhile(now, &mut listener);
        assert!((3_000..8_000).contains(&filled), "{filled}");
        listener.pause(Duration::from_millis(980));
        let position = listener.classifier.position();
        assert!(position.abs_diff(16_000) < 500, "{position}");
    }

    #[test]
    fn sound_that_stands_still_is_no_pause() {
        let now = Instant::now();
        let mut listener = Listener::new(NOTHING, now);
        assert_eq!(filled_meanwhile(now, &mut listener), 0);
        // All of it comes at once, and the time that was lost is not made up for.
        let now = now + Duration::from_millis(500);
        for _ in 0..10 {
            assert_eq!(filled_meanwhile(now, &mut listener), 0);
        }
        // It does not come any more.
        let before = listener.classifier.position();
        for tick in 0..=150 {
            listener.tick(now + Duration::from_millis(20 * tick));
        }
        let filled = listener.classifier.position() - before;
        assert!((43_000..48_000).contains(&filled), "{filled}");
    }

    #[test]
    fn a_line_that_sends_a_little_all_the_time_does_not_stop_the_clock() {
        let began = Instant::now();
        let mut listener = Listener::new(NOTHING, began);
        for second in 0..60 {
            filled_meanwhile(began + Duration::from_secs(second), &mut listener);
        }
        let behind = 60 * 16_000 - listener.classifier.position();
        assert!((16_000..6 * 16_000).contains(&behind), "{behind}");
    }
}
