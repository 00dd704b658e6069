//! Cuts a stream of speech into utterances: from a little before a voice begins to a little after it has paused, no
//! longer than a recogniser can be asked to remember. Every sample of a voice is in exactly one utterance. Pure: sound
//! goes in, cuts come out; the recogniser and the clock are elsewhere.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::audio::SampleRate;

/// The only rate that is listened to.
pub const RATE: SampleRate = SampleRate::HZ_16000;
/// Samples that are scored at a time.
const FRAME: usize = 256;
/// A voice begins with this score in as many frames in a row.
const ENTER: f32 = 0.65;
const ENTER_FRAMES: usize = 3;
/// A voice goes on with at least this score.
const STAY: f32 = 0.5;
/// Kept from before the first frame of a voice: soft beginnings score low.
const PRE_ROLL: usize = ms(300);
/// A pause this long ends the utterance.
const HANG_OVER: usize = ms(500);
/// From this length on the first frame without voice ends the utterance.
const LONG: usize = ms(12_000);
/// An utterance is never longer.
const LONGEST: usize = ms(15_000);

/// The longest utterance that is cut.
pub const LONGEST_UTTERANCE: Duration = Duration::from_secs(15);

const fn ms(milliseconds: usize) -> usize {
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

/// The voice probability, 0–1, of the next [`FRAME`] samples.
type Score = Box<dyn FnMut(&[i16]) -> f32 + Send>;

/// Cuts one stream of mono samples at [`RATE`].
pub struct UtteranceCutter {
    score: Score,
    /// Samples of frames that were scored.
    position: u64,
    /// The beginning of the next frame.
    frame: Vec<i16>,
    /// What was heard since the last utterance, up to the pre-roll and the frames of an onset.
    before: VecDeque<i16>,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Quiet { onset_frames: usize },
    Speaking { length: usize, pause: usize },
}

const QUIET: State = State::Quiet { onset_frames: 0 };

impl fmt::Debug for UtteranceCutter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UtteranceCutter")
            .field("position", &self.position)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl UtteranceCutter {
    /// A cutter that listens with the earshot detector.
    pub fn new() -> Self {
        let mut detector = earshot::Detector::default();
        Self::with_score(Box::new(move |frame| detector.predict_i16(frame)))
    }

    fn with_score(score: Score) -> Self {
        Self {
            score,
            position: 0,
            frame: Vec::with_capacity(FRAME),
            before: VecDeque::with_capacity(PRE_ROLL + ENTER_FRAMES * FRAME),
            state: QUIET,
        }
    }

    /// Hears the next samples of the stream.
    pub fn push(&mut self, mut samples: &[i16], cuts: &mut impl Extend<Cut>) {
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(FRAME - self.frame.len()));
            self.frame.extend_from_slice(now);
            samples = later;
            if self.frame.len() == FRAME {
                let frame = std::mem::replace(&mut self.frame, Vec::with_capacity(FRAME));
                self.hear(frame, cuts);
            }
        }
    }

    /// Ends the utterance that is under way, if there is one, with the last sample that was heard.
    pub fn finish(&mut self, cuts: &mut impl Extend<Cut>) {
        let rest = std::mem::take(&mut self.frame);
        self.position += rest.len() as u64;
        match self.state {
            State::Speaking { .. } => cuts.extend([Cut::Audio(rest), Cut::End(Ended::Asked)]),
            State::Quiet { .. } => self.remember(rest),
        }
        self.state = QUIET;
    }

    fn hear(&mut self, frame: Vec<i16>, cuts: &mut impl Extend<Cut>) {
        let score = (self.score)(&frame);
        self.position += FRAME as u64;
        match self.state {
            State::Quiet { onset_frames } => {
                self.remember(frame);
                self.state = if score < ENTER {
                    QUIET
                } else if onset_frames + 1 < ENTER_FRAMES {
                    State::Quiet {
                        onset_frames: onset_frames + 1,
                    }
                } else {
                    self.begin(cuts)
                };
            }
            State::Speaking { length, pause } => {
                let length = length + FRAME;
                let pause = if score < STAY { pause + FRAME } else { 0 };
                cuts.extend([Cut::Audio(frame)]);
                self.state = self.go_on_or_end(length, pause, cuts);
            }
        }
    }

    fn begin(&mut self, cuts: &mut impl Extend<Cut>) -> State {
        let audio = Vec::from(std::mem::take(&mut self.before));
        let length = audio.len();
        cuts.extend([Cut::Begin(self.position - length as u64), Cut::Audio(audio)]);
        State::Speaking { length, pause: 0 }
    }

    fn go_on_or_end(&self, length: usize, pause: usize, cuts: &mut impl Extend<Cut>) -> State {
        if pause >= HANG_OVER {
            cuts.extend([Cut::End(Ended::Pause)]);
            QUIET
        } else if length + FRAME > LONGEST || (length >= LONG && pause > 0) {
            cuts.extend([Cut::End(Ended::Length), Cut::Begin(self.position)]);
            State::Speaking { length: 0, pause }
        } else {
            State::Speaking { length, pause }
        }
    }

    fn remember(&mut self, samples: Vec<i16>) {
        self.before.extend(samples);
        let excess = self
            .before
            .len()
            .saturating_sub(PRE_ROLL + ENTER_FRAMES * FRAME);
        self.before.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A stream whose samples count up, so that each is known again, scored by what the test says of each frame.
    fn cuts(scores: Vec<f32>, chunk: usize, finish_after: Option<usize>) -> Vec<Cut> {
        let total = scores.len() * FRAME;
        let mut scores = scores.into_iter();
        let mut cutter =
            UtteranceCutter::with_score(Box::new(move |_| scores.next().unwrap_or(0.0)));
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
        let pause = HANG_OVER.next_multiple_of(FRAME);
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
        assert_eq!(heard[0], (0, (gap + 1) * FRAME, Ended::Length));
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
                for (n, onset) in scores.windows(ENTER_FRAMES).enumerate() {
                    if onset.iter().all(|&score| score >= ENTER) {
                        let (begin, end) = ((n * FRAME) as u64, ((n + ENTER_FRAMES) * FRAME) as u64);
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
