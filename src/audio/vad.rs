//! Voice activity detection: where speech begins, pauses and ends in a 16 kHz mono stream. A small neural network
//! (that of `earshot`) scores frames of 16 ms; hysteresis, a minimum duration and a hang-over turn scores into events. What an
//! event means for a turn or an utterance is decided elsewhere.
//!
//! The [network] dominates the cost of a session, and most of what a line carries is not speech: a [gate] asks it only
//! where something may have changed.

mod gate;
mod network;

use std::fmt;
use std::time::Duration;

use super::format::SampleRate;

pub use gate::sparing;
pub use network::network;

/// The detector's sample rate. Positions are samples at this rate since the first one pushed.
pub const RATE: SampleRate = SampleRate::HZ_16000;
/// Samples per score.
pub const FRAME: usize = 256;
/// Consecutive frames that must agree before the state changes; a click is shorter.
const CONSECUTIVE: u64 = 3;
/// The hysteresis: how far below the threshold the score may fall before it counts as silence.
const HYSTERESIS: f32 = 0.15;

/// The detector's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VadSettings {
    /// The score, 0–1, above which a frame is speech. It stays speech down to 0.15 less.
    pub threshold: f32,
    /// Shorter speech is ignored.
    pub min_speech: Duration,
    /// The hang-over: silence after which speech has ended.
    pub hang_over: Duration,
}

impl Default for VadSettings {
    fn default() -> Self {
        Self {
            threshold: 0.65,
            min_speech: Duration::from_millis(100),
            hang_over: Duration::from_millis(500),
        }
    }
}

/// A frame without louder samples than this is silent: 66 dB below full scale, where no speech is intelligible.
const QUIET: u16 = 16;
/// After this many silent frames the network's memory contains only silence, so it need not run for further ones.
const SETTLED: u32 = 16;

/// An event with the sample position where it happened. Events are delivered later than that, because the detector must
/// be sure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VadEvent {
    /// Speech has begun.
    SpeechStart {
        /// The first sample of speech, without pre-roll.
        at: u64,
    },
    /// A pause, possibly the end.
    SilenceBegan {
        /// The first sample of the pause.
        at: u64,
    },
    /// Speech continues after a pause.
    SpeechResumed {
        /// The first sample of speech after the pause.
        at: u64,
    },
    /// The pause has lasted for the hang-over: speech has ended.
    SpeechEnd {
        /// The first sample of the pause.
        at: u64,
    },
}

impl VadEvent {
    /// The same event in a stream in which the detector's first sample is at this position.
    pub const fn later(self, start: u64) -> Self {
        match self {
            Self::SpeechStart { at } => Self::SpeechStart { at: at + start },
            Self::SilenceBegan { at } => Self::SilenceBegan { at: at + start },
            Self::SpeechResumed { at } => Self::SpeechResumed { at: at + start },
            Self::SpeechEnd { at } => Self::SpeechEnd { at: at + start },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Silence,
    /// Possibly the beginning of speech.
    Onset {
        at: u64,
    },
    Speech,
    Pause {
        at: u64,
    },
}

/// The probability of voice, 0–1, in the next [`FRAME`] samples.
pub type Score = Box<dyn FnMut(&[i16]) -> f32 + Send>;

/// The detector for one stream.
pub struct Vad {
    score: Score,
    /// Consecutive silent frames, up to [`SETTLED`].
    quiet: u32,
    /// The samples of an incomplete frame.
    frame: Vec<i16>,
    decider: Decider,
}

/// Turns scores into events: everything but the network.
#[derive(Debug)]
struct Decider {
    enter: f32,
    leave: f32,
    min_speech: u64,
    hang_over: u64,
    state: State,
    /// The first sample of the next frame.
    position: u64,
    /// Consecutive frames that contradict the current state.
    against: u64,
}

impl Vad {
    /// A detector at the start of a stream.
    pub fn new(settings: VadSettings) -> Self {
        Self::with_score(settings, sparing(network(), settings))
    }

    /// A detector with a given scorer.
    pub fn with_score(settings: VadSettings, score: Score) -> Self {
        Self {
            score,
            quiet: 0,
            frame: Vec::with_capacity(FRAME),
            decider: Decider::new(settings),
        }
    }

    /// Samples in complete frames so far: everything before this position is decided.
    pub const fn position(&self) -> u64 {
        self.decider.position
    }

    /// Samples until the next frame is complete.
    pub fn missing(&self) -> usize {
        FRAME - self.frame.len()
    }

    /// Whether speech has paused for less than the hang-over.
    pub const fn is_pause(&self) -> bool {
        matches!(self.decider.state, State::Pause { .. })
    }

    /// For how many samples speech has paused.
    pub const fn pause(&self) -> u64 {
        match self.decider.state {
            State::Pause { at } => self.decider.position - at,
            _ => 0,
        }
    }

    /// Whether there is speech: a possible beginning, speech, or a pause.
    pub const fn is_active(&self) -> bool {
        !matches!(self.decider.state, State::Silence)
    }

    /// Whether the last frames may be the beginning of speech, which is not certain yet.
    pub const fn is_onset(&self) -> bool {
        match self.decider.state {
            State::Onset { .. } => true,
            State::Silence | State::Pause { .. } => self.decider.against > 0,
            State::Speech => false,
        }
    }

    /// Ends speech at the last sample, without an event: what follows is a new onset.
    pub fn interrupt(&mut self) {
        self.decider.position += self.frame.len() as u64;
        self.frame.clear();
        self.decider.state = State::Silence;
        self.decider.against = 0;
    }

    /// Takes samples and returns the events in order.
    pub fn push(&mut self, mut samples: &[i16]) -> Vec<VadEvent> {
        let mut events = Vec::new();
        while !samples.is_empty() {
            let (score, rest) = if self.frame.is_empty() && samples.len() >= FRAME {
                let (frame, rest) = samples.split_at(FRAME);
                (score_of(&mut self.score, &mut self.quiet, frame), rest)
            } else {
                let missing = self.missing().min(samples.len());
                let (part, rest) = samples.split_at(missing);
                self.frame.extend_from_slice(part);
                if self.frame.len() < FRAME {
                    break;
                }
                let score = score_of(&mut self.score, &mut self.quiet, &self.frame);
                self.frame.clear();
                (score, rest)
            };
            samples = rest;
            events.extend(self.decider.decide(score));
        }
        events
    }
}

fn score_of(score: &mut Score, quiet: &mut u32, frame: &[i16]) -> f32 {
    if frame.iter().any(|sample| sample.unsigned_abs() > QUIET) {
        *quiet = 0;
    } else if *quiet < SETTLED {
        *quiet += 1;
    } else {
        return 0.0;
    }
    score(frame)
}

impl fmt::Debug for Vad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vad")
            .field("decider", &self.decider)
            .finish_non_exhaustive()
    }
}

fn samples_in(time: Duration) -> u64 {
    RATE.frames_in(time) as u64
}

impl Decider {
    fn new(settings: VadSettings) -> Self {
        Self {
            enter: settings.threshold,
            // Even a low threshold has some hysteresis.
            leave: (settings.threshold - HYSTERESIS).max(settings.threshold / 2.0),
            min_speech: samples_in(settings.min_speech),
            hang_over: samples_in(settings.hang_over),
            state: State::Silence,
            position: 0,
            against: 0,
        }
    }

    /// Processes the score of the next frame.
    fn decide(&mut self, score: f32) -> Option<VadEvent> {
        let opposes = match self.state {
            State::Silence | State::Pause { .. } => score >= self.enter,
            State::Onset { .. } | State::Speech => score < self.leave,
        };
        self.position += FRAME as u64;
        self.against = if opposes { self.against + 1 } else { 0 };
        let turned = self.against >= CONSECUTIVE;
        // Where the frames that contradict the state began.
        let since = self.position - self.against * FRAME as u64;
        let (state, event) = match self.state {
            State::Silence if turned => (State::Onset { at: since }, None),
            State::Onset { .. } if opposes => (State::Silence, None),
            State::Speech if turned => (
                State::Pause { at: since },
                Some(VadEvent::SilenceBegan { at: since }),
            ),
            State::Pause { .. } if turned => {
                (State::Speech, Some(VadEvent::SpeechResumed { at: since }))
            }
            State::Pause { at } if !opposes && self.position - at >= self.hang_over => {
                (State::Silence, Some(VadEvent::SpeechEnd { at }))
            }
            state => (state, None),
        };
        if state != self.state {
            self.against = 0;
            self.state = state;
        }
        // Immediately, if the frames that led here were long enough.
        if let State::Onset { at } = self.state
            && self.position - at >= self.min_speech
        {
            self.state = State::Speech;
            return Some(VadEvent::SpeechStart { at });
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_network_is_not_asked_about_lasting_quiet_and_would_say_that_it_is_none() {
        let mut network = network();
        let mut noise = (0_u32..).map(|n| {
            let mixed = n
                .wrapping_mul(2_654_435_761)
                .rotate_left(13)
                .wrapping_mul(2_246_822_519);
            (mixed >> 16) as i16 % (QUIET as i16 + 1)
        });
        for _ in 0..200 {
            let frame: Vec<i16> = noise.by_ref().take(FRAME).collect();
            let score = network(&frame);
            assert!(score < 0.3, "{score}");
        }
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counts = std::sync::Arc::clone(&asked);
        let count = move |_: &[i16]| {
            counts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            0.0
        };
        let mut vad = Vad::with_score(VadSettings::default(), Box::new(count));
        let mut push = |value: i16, frames: usize| {
            vad.push(&vec![value; FRAME * frames]);
            asked.swap(0, std::sync::atomic::Ordering::Relaxed)
        };
        assert_eq!(push(-16, 100), SETTLED);
        assert_eq!(push(17, 100), 100);
        assert_eq!(push(16, 100), SETTLED);
    }

    fn decide(scores: impl IntoIterator<Item = f32>, settings: VadSettings) -> Vec<VadEvent> {
        let mut decider = Decider::new(settings);
        scores
            .into_iter()
            .filter_map(|score| decider.decide(score))
            .collect()
    }

    fn frames(score: f32, count: usize) -> impl Iterator<Item = f32> {
        std::iter::repeat_n(score, count)
    }

    fn noise(amplitude: f64, seconds: usize) -> Vec<i16> {
        let mut state = 0x2545_F491_4F6C_DD1Du64;
        (0..seconds * 16_000)
            .map(|_| {
                // Twelve uniform numbers make a normal one.
                let sum: f64 = (0..12)
                    .map(|_| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        (state >> 11) as f64 / (1u64 << 53) as f64
                    })
                    .sum();
                ((sum - 6.0) * amplitude * 32_768.0) as i16
            })
            .collect()
    }

    fn tones(hz: &[f64], seconds: usize) -> Vec<i16> {
        (0..seconds * 16_000)
            .map(|n| {
                let time = n as f64 / 16_000.0 * std::f64::consts::TAU;
                let sum: f64 = hz.iter().map(|hz| (time * hz).sin()).sum();
                (sum * 12_000.0) as i16
            })
            .collect()
    }

    #[test]
    fn speech_begins_pauses_resumes_and_ends_where_the_scores_say() {
        let scores = frames(0.0, 10)
            .chain(frames(0.9, 20))
            .chain(frames(0.1, 10))
            .chain(frames(0.9, 20))
            .chain(frames(0.1, 40));
        let at = |frame: u64| frame * FRAME as u64;
        assert_eq!(
            decide(scores, VadSettings::default()),
            [
                VadEvent::SpeechStart { at: at(10) },
                VadEvent::SilenceBegan { at: at(30) },
                VadEvent::SpeechResumed { at: at(40) },
                VadEvent::SilenceBegan { at: at(60) },
                VadEvent::SpeechEnd { at: at(60) },
            ]
        );
    }

    #[test]
    fn a_cough_is_not_speech() {
        let scores = frames(0.0, 5).chain(frames(0.95, 6)).chain(frames(0.0, 60));
        assert_eq!(decide(scores, VadSettings::default()), []);
    }

    #[test]
    fn a_score_between_the_thresholds_neither_starts_nor_ends_speech() {
        assert_eq!(decide(frames(0.6, 100), VadSettings::default()), []);
        let scores = frames(0.9, 10).chain(frames(0.55, 100));
        assert_eq!(
            decide(scores, VadSettings::default()),
            [VadEvent::SpeechStart { at: 0 }]
        );
    }

    #[test]
    fn noise_tones_and_telephone_keys_are_not_speech() {
        let sounds = [
            ("white noise at -40 dB", noise(0.01, 10)),
            ("white noise at -20 dB", noise(0.1, 10)),
            ("440 Hz", tones(&[440.0], 10)),
            ("DTMF 5", tones(&[770.0, 1_336.0], 10)),
            ("silence", vec![0; 160_000]),
        ];
        for (name, sound) in sounds {
            let events = Vad::new(VadSettings::default()).push(&sound);
            assert_eq!(events, [], "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn events_are_the_same_in_any_chunking(chunk in 1usize..5_000) {
            // A threshold under everything makes speech of noise and tells it from a pause of a minimum score.
            let settings = VadSettings { threshold: 0.02, ..VadSettings::default() };
            let mut sound = noise(0.02, 1);
            sound.extend(tones(&[310.0, 620.0, 930.0, 1_240.0], 1));
            sound.extend(vec![0; 16_000]);
            sound.extend(tones(&[200.0, 400.0, 2_600.0], 1));
            sound.extend(vec![0; 16_000]);
            let events = |chunk| -> Vec<VadEvent> {
                let mut vad = Vad::new(settings);
                sound.chunks(chunk).flat_map(|piece| vad.push(piece)).collect()
            };
            let whole = events(sound.len());
            prop_assert!(!whole.is_empty());
            prop_assert_eq!(events(chunk), whole);
        }

        #[test]
        fn events_alternate_and_their_positions_never_go_back(scores in prop::collection::vec(0.0f32..1.0, 0..2_000)) {
            // Slow changes, so that runs happen.
            let smooth = scores.iter().flat_map(|&score| frames(score, 4));
            let mut last = 0;
            let mut speech = false;
            for event in decide(smooth, VadSettings::default()) {
                let (at, before, after) = match event {
                    VadEvent::SpeechStart { at } => (at, false, true),
                    VadEvent::SilenceBegan { at } | VadEvent::SpeechResumed { at } => (at, true, true),
                    VadEvent::SpeechEnd { at } => (at, true, false),
                };
                prop_assert_eq!(speech, before);
                prop_assert!(at >= last);
                (speech, last) = (after, at);
            }
        }
    }

    #[test]
    fn after_an_interruption_speech_begins_anew_and_no_sample_is_forgotten() {
        let mut vad = Vad::with_score(VadSettings::default(), Box::new(|_| 0.9));
        let begins = vad.push(&[1_000; 10 * FRAME + 100]);
        assert_eq!(begins, [VadEvent::SpeechStart { at: 0 }]);
        vad.interrupt();
        let at = 10 * FRAME as u64 + 100;
        assert_eq!((vad.position(), vad.missing()), (at, FRAME));
        let begins = vad.push(&[1_000; 10 * FRAME]);
        assert_eq!(begins, [VadEvent::SpeechStart { at }]);
    }
}
