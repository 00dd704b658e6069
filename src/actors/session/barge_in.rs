//! Barge-in: decides whether speech over playback interrupts it. Such speech is a suspicion at first: playback yields at
//! once, and within a window it is resumed or cut, depending on how long the speech lasts and on its transcript. A pure
//! state machine: voice activity, transcripts and the time are its input, and the owner of the output carries out its
//! [`Step`]s.
//!
//! | within the window | decision | reason |
//! |---|---|---|
//! | a final, or two words, that are no backchannel | confirmed at once | `words` |
//! | only a backchannel ("mhm", "okay") and then a pause | resumed at once | `backchannel` |
//! | a single other word that is not final, until the window has passed | confirmed then | `words` |
//! | a backchannel, and speech until the window has passed | resumed then | `backchannel` |
//! | speech without words until the window has passed | confirmed then | `speech` |
//! | a sound without words that is over, such as a cough | resumed when the window has passed | `too_short` |
//! | the client clears, replaces or configures | resumed | `cleared` |
//! | playback has ended | resumed | `ended` |
//!
//! The length of speech is counted in audio: where audio is late, the window is extended once.
//!
//! Transcripts may arrive after playback has been resumed, because recognisers are late: two words confirm the
//! interruption without a window. One word does not, because some recognisers hear a word in every cough.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backchannel::{Phrases, words};
use super::protocol::VadConfig;
use super::turn::Moment;
use vivavoce_audio::vad::{RATE, VadEvent};
use vivavoce_seams::{SttEvent, Transcript};

/// How long after playback has been resumed a late transcript may still confirm the interruption.
const LATE_WORDS: Duration = Duration::from_secs(2);
/// How far before the speech that voice activity detection has found its first word may begin.
const WORD_SLACK: f64 = 0.3;

/// What the output does while it is not known whether it is interrupted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptionMode {
    /// It goes on, and only the client interrupts.
    #[default]
    Off,
    /// It goes on more quietly.
    Duck,
    /// It waits.
    Pause,
}

/// The body of an `interruption`. Each `suspected` is followed by one of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct InterruptionEvent {
    /// What was decided.
    pub state: InterruptionState,
    /// Why.
    pub reason: InterruptionReason,
    /// Where in the session's audio it was decided.
    pub timestamp_ms: u64,
}

/// How far the decision is whether somebody interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptionState {
    /// Somebody speaks over playback, which yields.
    Suspected,
    /// It was no interruption: playback is as it was.
    Resumed,
    /// It is one: playback is cut.
    Confirmed,
}

/// Why it was decided so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptionReason {
    /// Voice.
    Speech,
    /// Words that are no backchannel.
    Words,
    /// Words that only say that somebody listens.
    Backchannel,
    /// A sound without words that was soon over.
    TooShort,
    /// The client has decided itself.
    Cleared,
    /// There is nothing left to interrupt.
    Ended,
}

/// What the owner of the output has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Yield: duck or pause the output.
    Yield(InterruptionMode),
    /// Play on at full gain.
    Resume,
    /// Cut all speech that may be interrupted.
    Cut,
    /// Tell the client.
    Tell(InterruptionEvent),
}

/// The transcript since the suspicion began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Understood {
    Nothing,
    Backchannel,
    /// One word that may change yet.
    OneWord,
    Words,
}

/// Speech over playback.
#[derive(Debug, Clone, Copy)]
struct Speech {
    /// Where it begins, in seconds of session audio.
    at: f64,
    /// How many words the recogniser's current segment had before it.
    known: usize,
}

#[derive(Debug)]
struct Suspicion {
    speech: Speech,
    understood: Understood,
    deadline: Instant,
    /// Whether the window has been extended for late audio.
    extended: bool,
}

/// Detects barge-in for one speaker.
#[derive(Debug, Default)]
pub struct BargeInDetector {
    mode: InterruptionMode,
    window: Duration,
    backchannels: Phrases,
    suspicion: Option<Suspicion>,
    /// Speech after which playback was resumed, and until when a late transcript may still confirm it.
    passed: Option<(Speech, Instant)>,
    speaking: bool,
    /// Words of the recogniser's current segment, which is not final.
    words: usize,
}

impl BargeInDetector {
    /// Applies a config. An open suspicion ends if the mode changes.
    pub fn configure(
        &mut self,
        vad: &VadConfig,
        backchannels: Phrases,
        heard: Duration,
    ) -> Vec<Step> {
        let mode = std::mem::replace(&mut self.mode, vad.interruption);
        self.window = Duration::from_millis(vad.interruption_window_ms.into());
        self.backchannels = backchannels;
        if mode == self.mode {
            return Vec::new();
        }
        self.abandon(InterruptionReason::Cleared, heard)
    }

    /// Drops an open suspicion. `heard` is how much audio the session has heard.
    pub fn abandon(&mut self, reason: InterruptionReason, heard: Duration) -> Vec<Step> {
        self.passed = None;
        match self.suspicion.take() {
            Some(_) => resumed(reason, heard),
            None => Vec::new(),
        }
    }

    /// Takes an event of voice activity detection. `playing` is whether speech is being played that may be cut.
    pub fn vad(&mut self, event: VadEvent, moment: Moment, playing: bool) -> Vec<Step> {
        let mut steps = self.tick(moment, playing);
        match event {
            VadEvent::SpeechStart { at } | VadEvent::SpeechResumed { at } => {
                self.speaking = true;
                if playing && self.suspicion.is_none() && self.mode != InterruptionMode::Off {
                    let speech = Speech {
                        at: at as f64 / f64::from(RATE.hz()),
                        known: self.words,
                    };
                    self.passed = None;
                    self.suspicion = Some(Suspicion {
                        speech,
                        understood: Understood::Nothing,
                        extended: false,
                        deadline: moment.now + self.window,
                    });
                    let (state, reason) =
                        (InterruptionState::Suspected, InterruptionReason::Speech);
                    steps.extend([Step::Yield(self.mode), tell(state, reason, moment.heard)]);
                }
            }
            VadEvent::SilenceBegan { .. } | VadEvent::SpeechEnd { .. } => {
                self.speaking = false;
                let understood = self.suspicion.as_ref().map(|open| open.understood);
                if understood == Some(Understood::Backchannel) {
                    steps.extend(self.resume(InterruptionReason::Backchannel, moment));
                }
            }
        }
        steps
    }

    /// Takes an event of the recogniser.
    pub fn stt(&mut self, event: &SttEvent, moment: Moment, playing: bool) -> Vec<Step> {
        let (heard, is_final) = match event {
            SttEvent::Partial(heard) => (heard, false),
            SttEvent::Final(heard) => (heard, true),
            SttEvent::EndOfSpeech | SttEvent::UtteranceLost(_) => return Vec::new(),
        };
        let mut steps = self.tick(moment, playing);
        let open = self.suspicion.as_ref().map(|open| open.speech);
        let passed = self.passed.map(|(speech, _)| speech);
        if let Some(speech) = open.or(passed).filter(|_| playing) {
            let words = words_of(heard, speech);
            // After playback was resumed a single word is not enough, even if it is final.
            let is_sure = is_final && self.suspicion.is_some();
            let understood = self.understand(&words, is_final, is_sure);
            steps.extend(self.understood(understood, moment));
        }
        self.words = if is_final {
            0
        } else {
            words(&heard.text).len()
        };
        if is_final {
            // The next transcript belongs to another segment.
            let passed = self.passed.as_mut().map(|(speech, _)| speech);
            let open = self.suspicion.as_mut().map(|open| &mut open.speech);
            open.into_iter()
                .chain(passed)
                .for_each(|speech| speech.known = 0);
        }
        steps
    }

    fn understood(&mut self, understood: Understood, moment: Moment) -> Vec<Step> {
        let speaking = self.speaking;
        match (&mut self.suspicion, understood) {
            (Some(_), Understood::Words) => self.confirm(InterruptionReason::Words, moment),
            (Some(_), Understood::Backchannel) if !speaking => {
                self.resume(InterruptionReason::Backchannel, moment)
            }
            (Some(open), understood) => {
                open.understood = understood;
                Vec::new()
            }
            (None, Understood::Words) => {
                let (state, reason) = (InterruptionState::Suspected, InterruptionReason::Words);
                let mut steps = vec![tell(state, reason, moment.heard)];
                steps.extend(self.confirm(InterruptionReason::Words, moment));
                steps
            }
            (None, _) => Vec::new(),
        }
    }

    fn understand(&self, words: &[String], is_final: bool, is_sure: bool) -> Understood {
        let others = self.backchannels.others(words, is_final);
        match (words.len(), others) {
            (0, _) => Understood::Nothing,
            (_, 0) => Understood::Backchannel,
            (_, 1) if !is_sure => Understood::OneWord,
            _ => Understood::Words,
        }
    }

    /// When [`Self::tick`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.suspicion.as_ref().map(|open| open.deadline)
    }

    /// Lets time pass.
    pub fn tick(&mut self, moment: Moment, playing: bool) -> Vec<Step> {
        self.passed.take_if(|(_, until)| *until <= moment.now);
        if !playing {
            return self.abandon(InterruptionReason::Ended, moment.heard);
        }
        let window = self.window;
        let due = self.suspicion.as_mut();
        let Some(open) = due.filter(|open| open.deadline <= moment.now) else {
            return Vec::new();
        };
        // Audio that the network delays is waited for once.
        let lasted = moment.heard.as_secs_f64() - open.speech.at;
        let is_long = lasted + 0.001 >= window.as_secs_f64();
        let is_open = open.understood == Understood::Nothing && self.speaking && !is_long;
        if is_open && !std::mem::replace(&mut open.extended, true) {
            open.deadline = moment.now + window;
            return Vec::new();
        }
        match open.understood {
            Understood::OneWord | Understood::Words => {
                self.confirm(InterruptionReason::Words, moment)
            }
            Understood::Backchannel => self.resume(InterruptionReason::Backchannel, moment),
            Understood::Nothing if self.speaking && is_long => {
                self.confirm(InterruptionReason::Speech, moment)
            }
            Understood::Nothing => self.resume(InterruptionReason::TooShort, moment),
        }
    }

    fn resume(&mut self, reason: InterruptionReason, moment: Moment) -> Vec<Step> {
        let open = self.suspicion.take();
        self.passed = open.map(|open| (open.speech, moment.now + LATE_WORDS));
        resumed(reason, moment.heard)
    }

    fn confirm(&mut self, reason: InterruptionReason, moment: Moment) -> Vec<Step> {
        self.suspicion = None;
        self.passed = None;
        let told = tell(InterruptionState::Confirmed, reason, moment.heard);
        vec![told, Step::Cut]
    }
}

fn resumed(reason: InterruptionReason, heard: Duration) -> Vec<Step> {
    let told = tell(InterruptionState::Resumed, reason, heard);
    vec![Step::Resume, told]
}

const fn tell(state: InterruptionState, reason: InterruptionReason, heard: Duration) -> Step {
    Step::Tell(InterruptionEvent {
        state,
        reason,
        timestamp_ms: heard.as_millis() as u64,
    })
}

/// The words of a segment that belong to this speech: by their places where they are told, else those that the segment
/// did not have before.
fn words_of(heard: &Transcript, speech: Speech) -> Vec<String> {
    if heard.words.is_empty() {
        return words(&heard.text).into_iter().skip(speech.known).collect();
    }
    let its = heard
        .words
        .iter()
        .filter(|word| word.start >= speech.at - WORD_SLACK);
    its.flat_map(|word| words(&word.word)).collect()
}

#[cfg(test)]
mod tests;
