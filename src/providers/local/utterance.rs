//! Cuts a stream of speech into utterances: from a little before a voice begins to a little after it has paused, no
//! longer than a recogniser can be asked to remember. Every sample of a voice is in exactly one utterance. Pure: sound
//! goes in, cuts come out; the recogniser and the clock are elsewhere.

use std::collections::VecDeque;
use std::time::Duration;

use vivavoce_audio::vad::{FRAME, Vad, VadEvent, VadSettings};

/// When a voice counts as one. A single short word is an utterance, so it takes no longer than the detector needs to
/// tell it from a click.
const VOICE: VadSettings = VadSettings {
    threshold: 0.65,
    min_speech: Duration::from_millis(ONSET as u64 / 16),
    hang_over: Duration::from_millis(500),
};
const ONSET: usize = 3 * FRAME;
/// Kept from before the first frame of a voice: soft beginnings score low.
const PRE_ROLL: usize = ms(300);
/// From this length on the next gap between two words ends the utterance.
const LONG: usize = ms(12_000);
/// An utterance is never longer.
const LONGEST: usize = ms(15_000);

/// The longest utterance that is cut.
pub const LONGEST_UTTERANCE: Duration = Duration::from_secs(15);

/// Samples of a time.
pub const fn ms(milliseconds: usize) -> usize {
    milliseconds * 16
}

/// Why an utterance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The voice paused.
    Pause,
    /// It was too long; the next utterance goes on with the next sample. The cut waits for a gap between two words for
    /// as long as it can. It does not look back for a quieter place, because the recogniser has heard past that.
    Length,
    /// It was asked for, or the stream ended.
    Asked,
}

/// What comes out: `Begin`, any number of `Audio`, `End`, and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// An utterance begins with this sample of the stream.
    Begin(u64),
    /// The next samples of it.
    Audio(Vec<i16>),
    /// It is complete.
    End(Ended),
}

/// Cuts one stream of mono samples at [`RATE`](vivavoce_audio::vad::RATE).
#[derive(Debug)]
pub struct UtteranceCutter {
    vad: Vad,
    /// What was heard and not handed out: the pre-roll and an onset, or a frame that is not complete.
    waiting: VecDeque<i16>,
    /// Samples of the utterance that is under way, if there is one.
    length: Option<usize>,
    /// Samples since the last voice of an utterance, at its end too.
    quiet: usize,
}

impl Default for UtteranceCutter {
    /// A cutter that has heard nothing yet.
    fn default() -> Self {
        Self::with_vad(Vad::new(VOICE))
    }
}

impl UtteranceCutter {
    fn with_vad(vad: Vad) -> Self {
        Self {
            vad,
            waiting: VecDeque::new(),
            length: None,
            quiet: 0,
        }
    }

    /// A cutter that ends utterances at pauses of this length.
    pub fn pausing(pause: Duration) -> Self {
        Self::with_vad(Vad::new(VadSettings {
            hang_over: pause,
            ..VOICE
        }))
    }

    /// For how long nobody has spoken, in samples, within the utterance or at the end of the last one.
    pub const fn quiet(&self) -> usize {
        self.quiet
    }

    /// Hears the next samples of the stream.
    pub fn push(&mut self, mut samples: &[i16], cuts: &mut impl Extend<Cut>) {
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(self.vad.missing()));
            samples = later;
            self.waiting.extend(now);
            // A frame has one event at most.
            let event = self.vad.push(now).pop();
            if self.vad.missing() == FRAME {
                self.decide(event, cuts);
            }
        }
    }

    /// Ends the utterance that is under way, if there is one, with the last sample that was heard.
    pub fn finish(&mut self, cuts: &mut impl Extend<Cut>) {
        self.vad.interrupt();
        match self.length.take() {
            Some(_) => cuts.extend([Cut::Audio(self.take_waiting()), Cut::End(Ended::Asked)]),
            None => self.forget(),
        }
    }

    /// Takes what the detector says of the frame that was just completed.
    fn decide(&mut self, event: Option<VadEvent>, cuts: &mut impl Extend<Cut>) {
        self.quiet = match event {
            Some(VadEvent::SpeechEnd { at }) => (self.vad.position() - at) as usize,
            _ => self.vad.pause() as usize,
        };
        let before = match (self.length, event) {
            (Some(length), _) => length,
            (None, Some(VadEvent::SpeechStart { at })) => {
                cuts.extend([Cut::Begin(self.begin(at))]);
                0
            }
            (None, _) => return self.forget(),
        };
        let audio = self.take_waiting();
        let length = before + audio.len();
        cuts.extend([Cut::Audio(audio)]);
        self.length = if let Some(VadEvent::SpeechEnd { .. }) = event {
            cuts.extend([Cut::End(Ended::Pause)]);
            None
        } else if length + FRAME > LONGEST || (length >= LONG && self.vad.is_pause()) {
            cuts.extend([Cut::End(Ended::Length), Cut::Begin(self.vad.position())]);
            Some(0)
        } else {
            Some(length)
        };
    }

    /// Leaves only what belongs to a voice that began with sample `at`, and says with which sample that begins.
    fn begin(&mut self, at: u64) -> u64 {
        let oldest = self.vad.position() - self.waiting.len() as u64;
        let begin = at.saturating_sub(PRE_ROLL as u64).max(oldest);
        self.waiting.drain(..(begin - oldest) as usize);
        begin
    }

    fn take_waiting(&mut self) -> Vec<i16> {
        std::mem::take(&mut self.waiting).into()
    }

    /// Forgets what no utterance can begin with any more.
    fn forget(&mut self) {
        let excess = self.waiting.len().saturating_sub(PRE_ROLL + ONSET);
        self.waiting.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vivavoce_audio::vad::RATE;

    /// A stream whose samples count up, so that each is known again, scored by what the test says of each frame.
    fn cuts(scores: Vec<f32>, chunk: usize, finish_after: Option<usize>) -> Vec<Cut> {
        let total = scores.len() * FRAME;
        let mut scores = scores.into_iter();
        let score = Box::new(move |_: &[i16]| scores.next().unwrap_or(0.0));
        let mut cutter = UtteranceCutter::with_vad(Vad::with_score(VOICE, score));
        let samples: Vec<i16> = (0..total).map(|at| at as i16).collect();
        let mut cuts = Vec::new();
        for (n, piece) in samples.chunks(chunk).enumerate() {
            cutter.push(piece, &mut cuts);
            if finish_after.is_some_and(|every| n % every == every - 1) {
                cutter.finish(&mut cuts);
            }
        }
        cutter.finish(&mut cuts);
        cuts
    }

    /// Begin, length and end of each utterance; fails unless the audio is the stream's own at that place.
    fn utterances(cuts: &[Cut]) -> Vec<(u64, usize, Ended)> {
        let mut utterances = Vec::new();
        let mut open: Option<(u64, Vec<i16>)> = None;
        for cut in cuts {
            match (cut, &mut open) {
                (Cut::Begin(at), None) => open = Some((*at, Vec::new())),
                (Cut::Audio(samples), Some((_, audio))) => audio.extend(samples),
                (Cut::End(why), Some(_)) => {
                    let (at, audio) = open.take().unwrap();
                    for (n, &sample) in audio.iter().enumerate() {
                        assert_eq!(
                            sample,
                            (at + n as u64) as i16,
                            "a sample is not in its place"
                        );
                    }
                    utterances.push((at, audio.len(), *why));
                }
                (cut, _) => panic!("out of order: {cut:?}"),
            }
        }
        assert!(open.is_none(), "an utterance without an end");
        utterances
    }

    fn frames(script: &[(usize, f32)]) -> Vec<f32> {
        let frames = script
            .iter()
            .map(|&(frames, score)| std::iter::repeat_n(score, frames));
        frames.flatten().collect()
    }

    #[test]
    fn an_utterance_has_what_came_before_the_voice_and_ends_after_the_pause() {
        let heard = utterances(&cuts(
            frames(&[(100, 0.0), (50, 0.9), (100, 0.0)]),
            320,
            None,
        ));
        let pause = RATE.frames_in(VOICE.hang_over).next_multiple_of(FRAME);
        let begin = 100 * FRAME - PRE_ROLL;
        let length = PRE_ROLL + 50 * FRAME + pause;
        assert_eq!(heard, [(begin as u64, length, Ended::Pause)]);
    }

    #[test]
    fn a_short_dip_does_not_end_an_utterance_and_a_short_peak_does_not_begin_one() {
        let dips = frames(&[(20, 0.0), (10, 0.9), (20, 0.3), (10, 0.55), (20, 0.1)]);
        assert_eq!(utterances(&cuts(dips, 256, None)).len(), 1);
        let peaks = frames(&[(20, 0.0), (2, 0.9), (20, 0.0), (2, 0.9), (20, 0.6)]);
        assert_eq!(utterances(&cuts(peaks, 256, None)), []);
    }

    #[test]
    fn a_long_utterance_is_cut_between_two_words_and_goes_on_with_the_next_sample() {
        let gap = 13_000 * 16 / FRAME;
        let heard = utterances(&cuts(
            frames(&[(gap, 0.9), (3, 0.2), (600, 0.9)]),
            1000,
            None,
        ));
        assert_eq!(heard[0], (0, (gap + 3) * FRAME, Ended::Length));
        assert_eq!(heard[1].0, heard[0].1 as u64);
    }

    #[test]
    fn a_voice_without_a_gap_is_cut_at_the_limit() {
        let heard = utterances(&cuts(frames(&[(3000, 0.9)]), 4000, None));
        assert!(heard.iter().all(|&(_, length, _)| length <= LONGEST));
        let total: usize = heard.iter().map(|&(_, length, _)| length).sum();
        assert_eq!(total, 3000 * FRAME);
        assert_eq!(LONGEST_UTTERANCE, RATE.duration_of(LONGEST));
    }

    #[test]
    fn silence_is_forgotten_however_it_is_pushed_and_finished() {
        for chunk in [100, 16_000] {
            let mut cutter = UtteranceCutter::default();
            let mut cuts = Vec::new();
            for _ in 0..100 {
                cutter.push(&vec![0; chunk], &mut cuts);
                cutter.finish(&mut cuts);
            }
            assert_eq!(cuts, []);
            assert!(cutter.waiting.len() <= PRE_ROLL + ONSET);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whatever the scores, the chunks and the finalizing: in order, in place, none twice, every onset inside.
        #[test]
        fn no_voice_is_lost_or_heard_twice(
            script in prop::collection::vec((1usize..120, prop::sample::select(vec![0.0f32, 0.4, 0.55, 0.7, 1.0])), 1..20),
            chunk in 1usize..3000,
            finish_after in prop::option::of(1usize..200),
        ) {
            let scores = frames(&script);
            let total = scores.len() * FRAME;
            let heard = utterances(&cuts(scores.clone(), chunk, finish_after));
            let mut from = 0;
            for &(begin, length, _) in &heard {
                prop_assert!(begin >= from && length <= LONGEST);
                from = begin + length as u64;
            }
            prop_assert!(from <= total as u64);
            if finish_after.is_none() {
                prop_assert_eq!(cuts(scores.clone(), chunk, None), cuts(scores.clone(), total, None));
                for (n, onset) in scores.windows(ONSET / FRAME).enumerate() {
                    if onset.iter().all(|&score| score >= VOICE.threshold) {
                        let (begin, end) = ((n * FRAME) as u64, (n * FRAME + ONSET) as u64);
                        let covered: u64 = heard
                            .iter()
                            .map(|&(at, length, _)| {
                                (at + length as u64).min(end).saturating_sub(at.max(begin))
                            })
                            .sum();
                        prop_assert_eq!(covered, end - begin);
                    }
                }
            }
        }
    }
}
