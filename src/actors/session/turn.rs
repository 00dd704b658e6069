//! Endpointing: when a speaker has finished a turn, and what was said in it. A pure state machine that combines voice
//! activity with the recogniser's transcripts, and the answers of a model where there is one, into the client's
//! `stt_result`s and `vad_event`s. Audio, timers, the model and the recogniser's stream are left to the caller, which has
//! one detector per speaker.
//!
//! A turn opens with the first speech or the first text and ends exactly once, with one `turn_end`. If it has text, one
//! `stt_result` with `is_speech_final` comes before that and carries all of it. The first of these ends it:
//!
//! | reason | when |
//! |---|---|
//! | `provider` | the recogniser reports the end of speech and owes no final. If it still owes one, the final is waited for |
//! | `model` | the model, asked in the pause, hears that the speaker has finished. If the finals do not reach up to the pause, one is requested and waited for |
//! | `silence` | the pause has lasted (`silence_ms`) and the finals reach up to it, unless the model hears that the speaker has not finished |
//! | `timeout` | there was no speech and no text for `speech_final_timeout_ms`. After a pause that has lasted, already when the recogniser's final is overdue |
//! | `max_turn` | the turn is longer than `max_turn_ms`, speech or not; or its text is longer than 64 KiB |
//! | `client` | the client says that the speaker has finished ([`TurnDetector::client_ends`]); what was said before that is waited for |
//! | `session_end` | [`TurnDetector::end`] |
//!
//! If the recogniser still owes a final when a turn is to end, one is requested, and the turn waits for as long as its
//! finals take ([`TurnSettings::final_patience`]).
//!
//! Finals are told when they come and are never held back. The end is usually found later: the result that says so then has
//! an empty `transcript` beside the `turn_transcript`, so that nothing is told twice. Only finals make text. One that comes
//! after its turn has ended is not lost, and is told as the text of a turn of its own. Where the turn before still owed it,
//! and nobody has spoken since, that turn has had its `turn_end`, and there is no other.

use std::mem;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use vivavoce_audio::vad::{RATE, VadEvent, VadSettings};
use vivavoce_seams::{FinalDelay, SttEvent, SttResult, Transcript};

/// How far before a pause its last word may end: recognisers and voice activity detection do not agree to the frame.
const WORD_SLACK: Duration = Duration::from_millis(300);
/// The same for a final without word times, which covers the audio that had been heard when it came: voice activity
/// detection puts the beginning of a pause at the edge of a frame, and its last frames of speech may be silence already.
const FRAME_SLACK: Duration = Duration::from_millis(50);
/// Speech has stopped if no audio has come for this long: the client has stopped sending in the middle of it.
const STALL: Duration = Duration::from_secs(2);
/// Less speech behind a final is a breath, or the end of its last word.
const A_WORD: Duration = Duration::from_millis(400);
/// How long an onset of speech postpones a deadline.
const GLIMPSE: Duration = Duration::from_millis(100);
/// How long a pause lasts before the model is asked, where `silence_ms` is not so short that half of it is less: the model
/// has learned from pauses of that length.
const MODEL_PAUSE: Duration = Duration::from_millis(200);
/// Text that is later than this behind the end of a turn is not what that turn was still owed.
const BELATED: Duration = Duration::from_secs(10);
/// The most text that is kept for one turn: beyond it the turn ends as if it had lasted too long.
const LONGEST_TURN_BYTES: usize = 64 * 1024;

/// The settings of endpointing: the `vad` part of a session's `config`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnSettings {
    /// Whether voice activity is used. Without it, turns end by the provider's end of speech and the timeout.
    pub enabled: bool,
    /// The score, 0–1, from which audio is speech.
    pub threshold: f32,
    /// Silence that ends a turn whose text is complete.
    pub silence: Duration,
    /// Shorter speech is ignored.
    pub min_speech: Duration,
    /// How long after the last speech and the last text a turn ends in any case.
    pub speech_final_timeout: Duration,
    /// How long a turn may last; `None` is for ever.
    pub max_turn: Option<Duration>,
    /// How long after the last speech the recogniser's final is waited for before it is requested, and again after that:
    /// [`FinalDelay::patience`](vivavoce_seams::FinalDelay::patience) of the recogniser.
    pub final_patience: Duration,
    /// Whether a model is asked in pauses.
    pub model: ModelUse,
}

/// What the model that hears whether a speaker has finished is used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModelUse {
    /// It is not asked.
    #[default]
    Off,
    /// It is asked, and the provider's end of speech ends a turn whatever the answer.
    Beside,
    /// It is asked, and a provider's end of speech that it does not confirm waits as long as silence would.
    First,
    /// It is asked, and the provider's end of speech is nothing but a pause: like silence, it does not end a turn that the
    /// model hears is unfinished.
    OverPauses,
}

/// How a recogniser ends what it hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manner {
    /// How long its final is waited for.
    pub final_patience: Duration,
    /// Whether its end of speech is nothing but a pause.
    pub ends_at_pauses: bool,
}

/// What the model says of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The speaker has finished.
    Finished,
    /// The speaker goes on.
    Unfinished,
    /// There is no answer: silence decides.
    None,
}

impl Default for TurnSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            threshold: 0.65,
            silence: Duration::from_millis(500),
            min_speech: Duration::from_millis(100),
            speech_final_timeout: Duration::from_millis(1_800),
            max_turn: None,
            final_patience: FinalDelay::UNKNOWN.patience(),
            model: ModelUse::Off,
        }
    }
}

impl TurnSettings {
    /// The voice activity detection whose events belong to these settings.
    pub fn vad(&self) -> VadSettings {
        VadSettings {
            threshold: self.threshold,
            min_speech: self.min_speech,
            hang_over: self.silence,
        }
    }
}

/// Now, on both of a session's clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The monotonic clock: deadlines run on when a client stops sending.
    pub now: Instant,
    /// How much audio the session has heard: what `timestamp_ms` counts.
    pub heard: Duration,
    /// Whether speech seems to begin at the end of it, which voice activity detection cannot tell yet.
    pub onset: bool,
}

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEvent {
    /// Tell the client a transcript.
    Result(SttResult),
    /// Tell the client of voice activity.
    Voice(VoiceEvent),
    /// Request a final: the turn is over and waits for it.
    Finalize,
    /// Ask the model whether the speaker has finished; [`TurnDetector::answer`] takes the answer to this question.
    AskModel {
        /// Numbers the question.
        question: u64,
        /// Where in the session's audio the turn begins.
        since: Duration,
    },
}

/// The body of a `vad_event`. Within a turn they come as `speech_start`, then `silence_detected` and `speech_resumed` by
/// turns, then `turn_end`. A turn that only the recogniser has heard has just its `turn_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct VoiceEvent {
    /// What happened.
    pub event: VoiceEventKind,
    /// Where in the session's audio it happened; for the end of a turn, where it was decided. Never goes back.
    pub timestamp_ms: u64,
    /// How long the pause was that ends with this event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence_duration_ms: Option<u64>,
    /// Why the turn has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<TurnEndReason>,
}

/// What voice activity detection, or the end of a turn, tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VoiceEventKind {
    /// Somebody begins to speak, and a turn with it.
    SpeechStart,
    /// A pause, perhaps the end.
    SilenceDetected,
    /// It was not the end.
    SpeechResumed,
    /// The turn is over.
    TurnEnd,
}

impl VoiceEventKind {
    /// As on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SpeechStart => "speech_start",
            Self::SilenceDetected => "silence_detected",
            Self::SpeechResumed => "speech_resumed",
            Self::TurnEnd => "turn_end",
        }
    }
}

/// Why a turn has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnEndReason {
    /// The recogniser said so.
    Provider,
    /// The model heard it.
    Model,
    /// A pause, with all text there.
    Silence,
    /// Nothing new for too long.
    Timeout,
    /// The turn was too long.
    MaxTurn,
    /// The client said so: `end_turn`.
    Client,
    /// The session is over.
    SessionEnd,
}

impl TurnEndReason {
    /// Its name, as on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Model => "model",
            Self::Silence => "silence",
            Self::Timeout => "timeout",
            Self::MaxTurn => "max_turn",
            Self::Client => "client",
            Self::SessionEnd => "session_end",
        }
    }
}

/// The state of voice activity. Positions are in the session's audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    Speech,
    /// Silence that may still be a pause.
    Pause {
        since: Duration,
    },
    /// Silence that has lasted.
    Silence {
        since: Duration,
    },
}

/// What the model is asked, or has said, of the current pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// There is no pause, or the model is not used.
    None,
    /// It is asked then.
    Due(Instant),
    /// It has not answered yet.
    Asked(u64),
    Answered(Answer),
}

/// A turn in progress.
#[derive(Debug)]
struct Turn {
    /// Where in the session's audio it begins.
    began: Duration,
    /// The finals so far, joined.
    text: String,
    confidence: MeanConfidence,
    language: Option<String>,
    /// The interim text for which the recogniser still owes a final.
    partial: String,
    /// Up to where the finals cover the session's audio.
    reach: Duration,
    /// Whether speech was detected in it, and told.
    voiced: bool,
    /// Whether it is what the turn before was owed, which has ended without it.
    belated: bool,
    /// When it is over if nothing more comes; `None` is beyond the range of the clock.
    deadline: Option<Instant>,
    /// The audio that had been heard when the deadline was set.
    heard_before: Duration,
    /// The provider has said that the speaker has finished, which the model does not confirm: when that ends it.
    flagged: Option<Instant>,
    /// When it has lasted too long.
    must_end: Option<Instant>,
    /// The turn is over for this reason; only its last final is waited for, until the deadline.
    ending: Option<TurnEndReason>,
}

/// The mean confidence of a turn, its segments weighted by their words.
#[derive(Debug, Default)]
struct MeanConfidence {
    sum: f32,
    words: f32,
}

/// Detects the turns of one speaker.
#[derive(Debug)]
pub struct TurnDetector {
    settings: TurnSettings,
    voice: Voice,
    turn: Option<Turn>,
    question: Question,
    /// How many were asked.
    questions: u64,
    /// The last turn ended without the provider's end of speech, which may still come and is then ignored.
    flag_outstanding: bool,
    /// When the last turn ended without text that the recogniser owed it. Speech since then is of another turn.
    owed_since: Option<Instant>,
    /// The latest position that was told.
    told: Duration,
    events: Vec<TurnEvent>,
}

impl TurnDetector {
    /// A detector without a turn.
    pub fn new(settings: TurnSettings) -> Self {
        Self {
            settings,
            voice: Voice::Silence {
                since: Duration::ZERO,
            },
            turn: None,
            question: Question::None,
            questions: 0,
            flag_outstanding: false,
            owed_since: None,
            told: Duration::ZERO,
            events: Vec::new(),
        }
    }

    /// Whether there is silence, no turn, and no text that the last one may still be owed.
    pub fn is_idle(&self, now: Instant) -> bool {
        let passed = |since| now.saturating_duration_since(since);
        let is_owed = self
            .owed_since
            .is_some_and(|since| passed(since) <= BELATED);
        self.turn.is_none() && matches!(self.voice, Voice::Silence { .. }) && !is_owed
    }

    /// Changes the settings, also for the turn in progress.
    pub const fn set(&mut self, settings: TurnSettings) {
        self.settings = settings;
    }

    /// Takes an event of voice activity detection. Positions are samples at its rate since the session began; a
    /// [`Vad`](vivavoce_audio::vad::Vad) that was started later needs its own offset added.
    pub fn vad(&mut self, event: VadEvent, moment: Moment) -> Vec<TurnEvent> {
        if self.settings.enabled {
            match event {
                VadEvent::SpeechStart { at } | VadEvent::SpeechResumed { at } => {
                    self.speech_begins(position(at), moment);
                }
                VadEvent::SilenceBegan { at } => self.speech_pauses(position(at), moment),
                VadEvent::SpeechEnd { at } => {
                    let since = position(at);
                    self.voice = Voice::Silence { since };
                    self.silence_has_lasted(moment);
                }
            }
        }
        mem::take(&mut self.events)
    }

    /// Takes an event of the recogniser. An utterance that it lost is told to the client by the caller.
    pub fn stt(&mut self, event: SttEvent, moment: Moment) -> Vec<TurnEvent> {
        self.revive(moment);
        match event {
            SttEvent::Partial(segment) => self.partial(segment, moment),
            SttEvent::Final(segment) => self.final_segment(segment, moment),
            SttEvent::EndOfSpeech => self.provider_ends(moment),
            SttEvent::UtteranceLost(_) => {
                self.flag_outstanding = false;
                self.nothing_more(moment);
            }
        }
        mem::take(&mut self.events)
    }

    /// Takes a final that is nothing but a backchannel: it is told, and is no text of a turn.
    pub fn backchannel(&mut self, mut segment: Transcript, moment: Moment) -> Vec<TurnEvent> {
        self.revive(moment);
        self.flag_outstanding = false;
        trim(&mut segment.text);
        if let Some(turn) = &mut self.turn {
            turn.partial.clear();
        }
        self.events.push(TurnEvent::Result(SttResult {
            backchannel: true,
            ..told(segment, true, None)
        }));
        self.nothing_more(moment);
        mem::take(&mut self.events)
    }

    /// Takes the answer to a question ([`TurnEvent::AskModel`]). One that comes after speech has gone on is ignored.
    pub fn answer(&mut self, question: u64, answer: Answer, moment: Moment) -> Vec<TurnEvent> {
        if self.question != Question::Asked(question) {
            return Vec::new();
        }
        let answer = match (answer, self.voice) {
            // Silence has decided already, or speech seems to begin again.
            (Answer::Unfinished, Voice::Silence { .. }) => Answer::None,
            (Answer::Finished, _) if moment.onset => Answer::None,
            (answer, _) => answer,
        };
        self.question = Question::Answered(answer);
        let paused = self.silence_until(moment.heard).unwrap_or_default();
        if let Some(mut turn) = self.turn.take_if(|turn| turn.ending.is_none()) {
            let is_flagged = turn.flagged.is_some();
            match answer {
                Answer::Unfinished => {
                    if self.settings.model == ModelUse::OverPauses {
                        turn.flagged = None;
                    } else if is_flagged {
                        let left = self.settings.silence.saturating_sub(paused);
                        turn.flagged = moment.now.checked_add(left);
                    }
                    self.turn = Some(turn);
                }
                Answer::Finished | Answer::None if is_flagged => {
                    self.turn = Some(turn);
                    self.flag_ends(moment);
                }
                Answer::Finished => self.model_ends(turn, moment),
                Answer::None => self.turn = Some(turn),
            }
        }
        mem::take(&mut self.events)
    }

    /// When [`TurnDetector::tick`] is due. Events that come before the tick, however late it is, are handled first and may
    /// postpone the deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        let turn = self.turn.as_ref()?;
        let asks = match self.question {
            Question::Due(at) => Some(at),
            _ => None,
        };
        let others = [turn.must_end, turn.flagged, asks].into_iter().flatten();
        let others = others.filter(|_| turn.ending.is_none());
        turn.deadline.into_iter().chain(others).min()
    }

    /// Lets time pass. Ticks before the deadline do nothing.
    pub fn tick(&mut self, moment: Moment) -> Vec<TurnEvent> {
        self.revive(moment);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= moment.now);
        self.ask_if_due(moment);
        if let Some(turn) = self
            .turn
            .take_if(|turn| turn.ending.is_none() && due(turn.must_end))
        {
            self.end_with_all_text(turn, TurnEndReason::MaxTurn, moment);
        } else if let Some(turn) = &self.turn
            && turn.ending.is_none()
            && due(turn.flagged)
        {
            self.flag_ends(moment);
        } else if let Some(turn) = self.turn.take_if(|turn| due(turn.deadline)) {
            match turn.ending {
                None if self.speech_goes_on(&turn, moment) => self.go_on(turn, moment),
                None => self.end_with_all_text(turn, TurnEndReason::Timeout, moment),
                Some(reason) => self.close(turn, reason, None, moment),
            }
        }
        mem::take(&mut self.events)
    }

    /// The client says that the speaker has finished: the turn ends once all that was said before is text, at once where it is.
    /// Exactly one `turn_end` follows, also where nobody has spoken.
    pub fn client_ends(&mut self, moment: Moment) -> Vec<TurnEvent> {
        let speaks = !self.settings.enabled || self.voice == Voice::Speech;
        let turn = self.turn.take();
        match turn {
            // The last turn has ended, and nobody has spoken since.
            None if !speaks && self.owed_since.is_none() => {
                let reason = Some(TurnEndReason::Client);
                self.tell(VoiceEventKind::TurnEnd, moment.heard, None, reason);
            }
            Some(turn) if !speaks && turn.is_complete() && self.reaches_pause(&turn) => {
                self.close(turn, TurnEndReason::Client, None, moment);
            }
            turn => {
                let mut turn = turn.unwrap_or_else(|| self.open(moment.heard, moment));
                turn.belated = false;
                turn.flagged = None;
                self.events.push(TurnEvent::Finalize);
                self.await_final(&mut turn, TurnEndReason::Client, moment);
                self.turn = Some(turn);
            }
        }
        mem::take(&mut self.events)
    }

    /// Ends the turn with the session, after the last event of the recogniser.
    pub fn end(&mut self, moment: Moment) -> Vec<TurnEvent> {
        if let Some(turn) = self.turn.take() {
            self.close(turn, TurnEndReason::SessionEnd, None, moment);
        }
        mem::take(&mut self.events)
    }

    fn speech_begins(&mut self, at: Duration, moment: Moment) {
        let silence = self.silence_until(at);
        self.voice = Voice::Speech;
        self.question = Question::None;
        self.owed_since = None;
        match self.turn.take() {
            None => {
                let turn = self.open(at, moment);
                self.turn = Some(turn);
            }
            Some(mut turn) => {
                // Whoever goes on had not finished.
                turn.flagged = None;
                // The rest of it is of the speaker's next turn.
                turn.belated = false;
                turn.began = turn.began.min(at);
                if mem::replace(&mut turn.voiced, true) {
                    self.tell(VoiceEventKind::SpeechResumed, at, silence, None);
                } else {
                    self.tell(VoiceEventKind::SpeechStart, at, None, None);
                }
                // Later speech extends a turn, unless it is too long or the provider has ended it and owes its final.
                let stays = match turn.ending {
                    Some(TurnEndReason::Provider) => !turn.partial.is_empty(),
                    reason => {
                        matches!(reason, Some(TurnEndReason::MaxTurn | TurnEndReason::Client))
                    }
                };
                if !stays {
                    turn.ending = None;
                }
                self.go_on(turn, moment);
            }
        }
    }

    fn speech_pauses(&mut self, since: Duration, moment: Moment) {
        self.voice = Voice::Pause { since };
        self.question = Question::None;
        // The rest of speech whose turn was ended by the provider is no pause of a turn.
        if let Some(turn) = self.turn.take_if(|turn| turn.voiced) {
            self.tell(VoiceEventKind::SilenceDetected, since, None, None);
            self.go_on(turn, moment);
            self.expect_question(moment);
        }
    }

    fn partial(&mut self, mut segment: Transcript, moment: Moment) {
        trim(&mut segment.text);
        if segment.text.is_empty() {
            self.take_back_partial();
            self.end_if_silent(moment);
            return;
        }
        self.flag_outstanding = false;
        let mut turn = self.turn_or_new(moment);
        if turn.partial == segment.text {
            self.turn = Some(turn);
        } else {
            turn.partial.clone_from(&segment.text);
            self.events.push(result(segment, false, None));
            self.go_on(turn, moment);
        }
    }

    fn final_segment(&mut self, mut segment: Transcript, moment: Moment) {
        self.flag_outstanding = false;
        trim(&mut segment.text);
        if segment.text.is_empty() {
            self.nothing_more(moment);
            return;
        }
        let mut turn = self.turn_or_new(moment);
        turn.add(&segment, moment.heard);
        let reason = match turn.ending {
            // The final of what was said before an earlier pause.
            Some(TurnEndReason::Model) if !self.reaches_pause(&turn) => None,
            Some(TurnEndReason::Client)
                if self.voice != Voice::Speech && !self.reaches_pause(&turn) =>
            {
                None
            }
            None if self.has_finished(&turn) => Some(TurnEndReason::Silence),
            None if turn.text.len() >= LONGEST_TURN_BYTES => Some(TurnEndReason::MaxTurn),
            ending => ending,
        };
        match reason {
            Some(reason) => self.close(turn, reason, Some(segment), moment),
            None => {
                self.events.push(result(segment, true, None));
                // All that was said before the pause is there, so the pause need not last any longer for it.
                if self.is_unfinished() && turn.is_complete() && self.reaches_pause(&turn) {
                    self.turn = Some(turn);
                } else {
                    self.go_on(turn, moment);
                }
            }
        }
    }

    /// The provider's end of speech. It ends a turn that has its text; otherwise the final is still to come, or it was a
    /// noise that ends at the deadline.
    fn provider_ends(&mut self, moment: Moment) {
        if mem::take(&mut self.flag_outstanding) {
            return;
        }
        let is_unfinished = self.is_unfinished();
        let Some(turn) = &mut self.turn else {
            return;
        };
        // A provider that has heard nothing of this turn speaks of one before: it says twice that it has ended.
        let is_unheard = turn.text.is_empty() && turn.partial.is_empty();
        if is_unheard && self.voice == Voice::Speech {
            return;
        }
        let is_open = turn.ending.is_none();
        if is_open && is_unfinished && self.settings.model == ModelUse::OverPauses {
            return;
        }
        let has_lasted = matches!(self.voice, Voice::Silence { .. });
        let outranks = matches!(self.settings.model, ModelUse::First | ModelUse::OverPauses);
        let outranked = outranks && !has_lasted;
        let confirmed = matches!(
            self.question,
            Question::Answered(Answer::Finished | Answer::None)
        );
        if outranked && !confirmed && is_open {
            let paused = match (self.question, self.voice) {
                (Question::Answered(_), Voice::Pause { since }) => {
                    moment.heard.saturating_sub(since)
                }
                _ => Duration::ZERO,
            };
            let left = self.settings.silence.saturating_sub(paused);
            turn.flagged = moment.now.checked_add(left);
            return;
        }
        self.flag_ends(moment);
    }

    /// The provider's end of speech counts.
    fn flag_ends(&mut self, moment: Moment) {
        let Some(mut turn) = self.turn.take() else {
            return;
        };
        turn.flagged = None;
        let reason = match turn.ending {
            None | Some(TurnEndReason::Timeout) => TurnEndReason::Provider,
            Some(reason) => reason,
        };
        if turn.is_complete() {
            self.close(turn, reason, None, moment);
        } else {
            if turn.ending != Some(reason) {
                self.await_final(&mut turn, reason, moment);
            }
            self.turn = Some(turn);
        }
    }

    /// The recogniser has lost an utterance: no more text comes of it.
    fn nothing_more(&mut self, moment: Moment) {
        self.take_back_partial();
        if let Some(turn) = self.turn.take_if(|turn| turn.ending.is_some())
            && let Some(reason) = turn.ending
        {
            self.close(turn, reason, None, moment);
        } else {
            self.end_if_silent(moment);
        }
    }

    fn take_back_partial(&mut self) {
        if let Some(turn) = &mut self.turn
            && !mem::take(&mut turn.partial).is_empty()
        {
            self.events.push(result(Transcript::default(), false, None));
        }
    }

    /// The pause has lasted for `silence_ms`.
    fn silence_has_lasted(&mut self, moment: Moment) {
        let flagged = |turn: &Turn| turn.ending.is_none() && turn.flagged.is_some();
        if self.turn.as_ref().is_some_and(flagged) {
            self.flag_ends(moment);
        } else if !self.is_unfinished() {
            self.end_if_silent(moment);
            self.expect_final(moment);
        }
    }

    /// Has the model asked as soon as the pause that has just begun has lasted a little.
    fn expect_question(&mut self, moment: Moment) {
        let is_open = |turn: &Turn| turn.ending.is_none();
        if self.settings.model == ModelUse::Off || !self.turn.as_ref().is_some_and(is_open) {
            return;
        }
        if let Some(left) = self.until_question(moment) {
            let at = moment.now.checked_add(left);
            self.question = at.map_or(Question::None, Question::Due);
        }
    }

    /// How much longer the pause has to last before the model is asked; `None` where there is none.
    fn until_question(&self, moment: Moment) -> Option<Duration> {
        let pause = MODEL_PAUSE.min(self.settings.silence / 2);
        Some(pause.saturating_sub(self.silence_until(moment.heard)?))
    }

    fn ask_if_due(&mut self, moment: Moment) {
        let Question::Due(at) = self.question else {
            return;
        };
        let Some(turn) = &self.turn else {
            return;
        };
        if at > moment.now || turn.ending.is_some() {
            return;
        }
        match self.until_question(moment) {
            // The pause is counted in audio, which may be late.
            Some(left) if !left.is_zero() => {
                let at = moment.now.checked_add(left);
                self.question = at.map_or(Question::None, Question::Due);
            }
            Some(_) => {
                self.questions += 1;
                self.question = Question::Asked(self.questions);
                self.events.push(TurnEvent::AskModel {
                    question: self.questions,
                    since: turn.began,
                });
            }
            None => self.question = Question::None,
        }
    }

    /// The model has heard that the speaker has finished.
    fn model_ends(&mut self, mut turn: Turn, moment: Moment) {
        if turn.is_complete() && self.reaches_pause(&turn) {
            self.close(turn, TurnEndReason::Model, None, moment);
        } else {
            self.events.push(TurnEvent::Finalize);
            self.await_final(&mut turn, TurnEndReason::Model, moment);
            self.turn = Some(turn);
        }
    }

    const fn is_unfinished(&self) -> bool {
        matches!(self.question, Question::Answered(Answer::Unfinished))
    }

    /// Whether the finals cover everything before the pause.
    fn reaches_pause(&self, turn: &Turn) -> bool {
        match self.voice {
            Voice::Speech => false,
            Voice::Pause { since } | Voice::Silence { since } => turn.reach >= since,
        }
    }

    /// Whether so much was said behind the last final that there are words in it.
    fn owes_words(&self, turn: &Turn) -> bool {
        match self.voice {
            Voice::Speech => true,
            Voice::Pause { since } | Voice::Silence { since } => {
                since.saturating_sub(turn.reach) >= A_WORD
            }
        }
    }

    fn end_if_silent(&mut self, moment: Moment) {
        if let Some(turn) = self.turn.take() {
            if turn.ending.is_none() && self.has_finished(&turn) {
                self.close(turn, TurnEndReason::Silence, None, moment);
            } else {
                self.turn = Some(turn);
            }
        }
    }

    /// Silence has lasted without a final: it is waited for as long as it may take this recogniser.
    fn expect_final(&mut self, moment: Moment) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.ending.is_none()) else {
            return;
        };
        // Without interim text a transcript may still come: for that there is the timeout.
        let understood = !turn.text.is_empty() || !turn.partial.is_empty();
        if let (true, Voice::Silence { since }) = (turn.voiced && understood, self.voice) {
            let waited = moment.heard.saturating_sub(since);
            let left = self.settings.final_patience.saturating_sub(waited);
            let overdue = moment.now.checked_add(left);
            turn.deadline = turn.deadline.into_iter().chain(overdue).min();
        }
    }

    /// Ends a turn whose time is up: at once, or with the final that the recogniser still owes.
    fn end_with_all_text(&mut self, mut turn: Turn, reason: TurnEndReason, moment: Moment) {
        let held = match self.voice {
            Voice::Speech => true,
            Voice::Pause { .. } => turn.text.is_empty(),
            Voice::Silence { .. } => false,
        };
        // Last words without interim text, in a turn that has some: their final would become the text of the next turn.
        let owed = !turn.text.is_empty() && turn.voiced && self.owes_words(&turn);
        let waits = held || owed || !turn.partial.is_empty();
        if waits && moment.onset && moment.heard > turn.heard_before {
            // Requesting a final now would cut a word in two that begins, perhaps the turn's next one.
            turn.deadline = moment.now.checked_add(GLIMPSE);
            turn.heard_before = moment.heard;
            self.turn = Some(turn);
        } else if waits {
            self.events.push(TurnEvent::Finalize);
            self.await_final(&mut turn, reason, moment);
            self.turn = Some(turn);
        } else {
            self.close(turn, reason, None, moment);
        }
    }

    /// Tells the one end of a turn; `segment` is its last final, if that was not told yet.
    fn close(
        &mut self,
        turn: Turn,
        reason: TurnEndReason,
        segment: Option<Transcript>,
        moment: Moment,
    ) {
        self.flag_outstanding = reason != TurnEndReason::Provider && turn.flagged.is_none();
        self.question = Question::None;
        // Interim text that was taken back leaves it owed.
        let is_left = turn.belated && turn.text.is_empty();
        let lacks_text = turn.text.is_empty() || !turn.partial.is_empty();
        let is_owed = (turn.voiced && lacks_text) || is_left;
        self.owed_since = is_owed.then_some(moment.now);
        if !turn.text.is_empty() {
            let segment = segment.unwrap_or_else(|| Transcript {
                confidence: turn.confidence.mean(),
                language: turn.language,
                ..Transcript::default()
            });
            self.events.push(result(segment, true, Some(turn.text)));
        }
        if turn.belated {
            return;
        }
        let silence = self.silence_until(moment.heard).filter(|_| turn.voiced);
        self.tell(VoiceEventKind::TurnEnd, moment.heard, silence, Some(reason));
        // Speech that is cut short goes on. After the provider's end of speech it is more likely the tail of the last word.
        if reason == TurnEndReason::MaxTurn && self.voice == Voice::Speech {
            let turn = self.open(moment.heard, moment);
            self.turn = Some(turn);
        }
    }

    /// A turn that begins at `at`.
    fn open(&mut self, at: Duration, moment: Moment) -> Turn {
        let voiced = self.voice == Voice::Speech;
        if voiced {
            self.tell(VoiceEventKind::SpeechStart, at, None, None);
        }
        let max_turn = self.settings.max_turn;
        Turn {
            began: at,
            text: String::new(),
            confidence: MeanConfidence::default(),
            language: None,
            partial: String::new(),
            reach: Duration::ZERO,
            voiced,
            belated: false,
            deadline: self.deadline(moment.now),
            heard_before: moment.heard,
            flagged: None,
            must_end: max_turn.and_then(|max| moment.now.checked_add(max)),
            ending: None,
        }
    }

    fn turn_or_new(&mut self, moment: Moment) -> Turn {
        match self.turn.take() {
            Some(turn) => turn,
            None => {
                let since = self.owed_since.take();
                let waited = since.map(|since| moment.now.saturating_duration_since(since));
                let mut turn = self.open(moment.heard, moment);
                turn.belated = !turn.voiced && waited.is_some_and(|waited| waited <= BELATED);
                turn
            }
        }
    }

    /// There was speech or text: the deadline is postponed, unless the turn waits only for its last final.
    fn go_on(&mut self, mut turn: Turn, moment: Moment) {
        if turn.ending.is_none() {
            turn.deadline = self.deadline(moment.now);
            turn.heard_before = moment.heard;
        }
        self.turn = Some(turn);
    }

    /// A client that had stopped sending in the middle of its speech sends again: the turn was not over.
    fn revive(&mut self, moment: Moment) {
        if let Some(mut turn) = self
            .turn
            .take_if(|turn| turn.ending == Some(TurnEndReason::Timeout))
        {
            if self.speech_goes_on(&turn, moment) {
                turn.ending = None;
            }
            self.go_on(turn, moment);
        }
    }

    fn await_final(&self, turn: &mut Turn, reason: TurnEndReason, moment: Moment) {
        turn.ending = Some(reason);
        let patience = match reason {
            // It is overdue already.
            TurnEndReason::Timeout => self.settings.final_patience,
            _ => self
                .settings
                .final_patience
                .max(self.settings.speech_final_timeout),
        };
        turn.deadline = moment.now.checked_add(patience);
        turn.heard_before = moment.heard;
    }

    /// The next deadline. While somebody speaks, it is when to check whether audio still comes.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let timeout = self.settings.speech_final_timeout;
        now.checked_add(match self.voice {
            Voice::Speech => timeout.max(STALL),
            Voice::Pause { .. } | Voice::Silence { .. } => timeout,
        })
    }

    fn speech_goes_on(&self, turn: &Turn, moment: Moment) -> bool {
        self.voice == Voice::Speech && moment.heard > turn.heard_before
    }

    /// Whether silence has lasted after speech that is all transcribed. Silence without speech before it proves nothing: the
    /// speech may be too soft for the threshold.
    fn has_finished(&self, turn: &Turn) -> bool {
        let has_lasted = matches!(self.voice, Voice::Silence { .. }) && !self.is_unfinished();
        has_lasted && turn.voiced && turn.is_complete() && self.reaches_pause(turn)
    }

    fn silence_until(&self, at: Duration) -> Option<Duration> {
        match self.voice {
            Voice::Speech => None,
            Voice::Pause { since } | Voice::Silence { since } => Some(at.saturating_sub(since)),
        }
    }

    fn tell(
        &mut self,
        event: VoiceEventKind,
        at: Duration,
        silence: Option<Duration>,
        reason: Option<TurnEndReason>,
    ) {
        // An onset is reported a little after it happened, perhaps after a deadline in between.
        self.told = self.told.max(at);
        self.events.push(TurnEvent::Voice(VoiceEvent {
            event,
            timestamp_ms: self.told.as_millis() as u64,
            silence_duration_ms: silence.map(|silence| silence.as_millis() as u64),
            reason,
        }));
    }
}

impl Turn {
    /// Whether there is text, and no interim text for which a final is owed.
    fn is_complete(&self) -> bool {
        !self.text.is_empty() && self.partial.is_empty()
    }

    /// Adds a final that came when this much audio had been heard.
    fn add(&mut self, segment: &Transcript, heard: Duration) {
        self.partial.clear();
        join(&mut self.text, &segment.text);
        self.confidence.add(segment);
        if segment.language.is_some() {
            self.language.clone_from(&segment.language);
        }
        let last_word = segment.words.last();
        let end = last_word.and_then(|word| Duration::try_from_secs_f64(word.end).ok());
        let reach = match end {
            Some(end) => end.saturating_add(WORD_SLACK),
            None => heard.saturating_add(FRAME_SLACK),
        };
        self.reach = self.reach.max(reach);
    }
}

impl MeanConfidence {
    fn add(&mut self, segment: &Transcript) {
        if let Some(confidence) = segment.confidence {
            let words = segment.text.split_whitespace().count() as f32;
            self.sum += confidence * words;
            self.words += words;
        }
    }

    fn mean(&self) -> Option<f32> {
        (self.words > 0.0).then(|| self.sum / self.words)
    }
}

fn position(samples: u64) -> Duration {
    RATE.duration_of(usize::try_from(samples).unwrap_or(usize::MAX))
}

fn told(segment: Transcript, is_final: bool, turn_transcript: Option<String>) -> SttResult {
    SttResult {
        transcript: segment.text,
        is_final,
        is_speech_final: turn_transcript.is_some(),
        confidence: segment.confidence,
        turn_transcript,
        words: segment.words,
        language: segment.language,
        backchannel: false,
        identity: None,
    }
}

fn result(segment: Transcript, is_final: bool, turn_transcript: Option<String>) -> TurnEvent {
    TurnEvent::Result(told(segment, is_final, turn_transcript))
}

fn trim(text: &mut String) {
    if text.trim().len() < text.len() {
        *text = text.trim().to_owned();
    }
}

/// Appends a segment, with a space where the script has spaces between words.
fn join(text: &mut String, segment: &str) {
    let spaced = |c: Option<char>| c.is_some_and(|c| !is_written_without_spaces(c));
    if spaced(text.chars().last()) || (!text.is_empty() && spaced(segment.chars().next())) {
        text.push(' ');
    }
    text.push_str(segment);
}

/// Thai, Lao, Myanmar and Khmer; Chinese characters and kana with their punctuation.
const fn is_written_without_spaces(c: char) -> bool {
    matches!(c, '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}'
        | '\u{3000}'..='\u{30FF}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}'
        | '\u{F900}'..='\u{FAFF}' | '\u{FF00}'..='\u{FFEF}' | '\u{20000}'..='\u{3FFFF}')
}

#[cfg(test)]
mod tests {
    use super::TurnEndReason::{MaxTurn, Model, Provider, SessionEnd, Silence, Timeout};
    use super::*;
    use proptest::prelude::*;
    use vivavoce_seams::{ErrorKind, ProviderError, Word};

    const STEP_MS: u64 = 10;
    /// How long the modelled voice activity detection must hear something to be sure of it.
    const SURE_MS: u64 = 50;

    /// A session in virtual time: audio goes through a model of voice activity detection, deadlines are kept to the
    /// step, and what the client is told is noted with its time.
    struct Scene {
        turns: TurnDetector,
        start: Instant,
        now_ms: u64,
        heard_ms: u64,
        voice: Voice,
        /// For how long the audio has been other than `voice` says.
        against_ms: u64,
        told: Vec<(u64, TurnEvent)>,
    }

    impl Scene {
        fn new(settings: TurnSettings) -> Self {
            Self {
                turns: TurnDetector::new(settings),
                start: Instant::now(),
                now_ms: 0,
                heard_ms: 0,
                voice: Voice::Silence {
                    since: Duration::ZERO,
                },
                against_ms: 0,
                told: Vec::new(),
            }
        }

        fn usual() -> Self {
            Self::new(TurnSettings::default())
        }

        fn without_vad() -> Self {
            Self::new(TurnSettings {
                enabled: false,
                ..TurnSettings::default()
            })
        }

        fn with_max_turn(max: u64) -> Self {
            Self::new(TurnSettings {
                max_turn: Some(ms(max)),
                ..TurnSettings::default()
            })
        }

        fn moment(&self) -> Moment {
            Moment {
                now: self.start + ms(self.now_ms),
                heard: ms(self.heard_ms),
                onset: self.voice != Voice::Speech && self.against_ms > 0,
            }
        }

        fn note(&mut self, events: Vec<TurnEvent>) {
            let now = self.now_ms;
            self.told
                .extend(events.into_iter().map(|event| (now, event)));
        }

        /// Lets time pass without audio.
        fn stall(&mut self, length_ms: u64) -> &mut Self {
            for _ in 0..length_ms / STEP_MS {
                self.now_ms += STEP_MS;
                let deadline = self.turns.next_deadline();
                if deadline.is_some_and(|at| at <= self.moment().now) {
                    let events = self.turns.tick(self.moment());
                    self.note(events);
                }
            }
            self
        }

        fn sound(&mut self, speech: bool, length_ms: u64) -> &mut Self {
            for _ in 0..length_ms / STEP_MS {
                self.stall(STEP_MS);
                self.heard_ms += STEP_MS;
                if let Some(event) = self.activity(speech) {
                    let events = self.turns.vad(event, self.moment());
                    self.note(events);
                }
            }
            self
        }

        fn activity(&mut self, speech: bool) -> Option<VadEvent> {
            let opposed = speech != (self.voice == Voice::Speech);
            self.against_ms = if opposed {
                self.against_ms + STEP_MS
            } else {
                0
            };
            let since = ms(self.heard_ms - self.against_ms);
            let at = since.as_millis() as u64 * 16;
            let sure = self.against_ms >= SURE_MS;
            let (voice, event) = match self.voice {
                Voice::Speech if sure => (Voice::Pause { since }, VadEvent::SilenceBegan { at }),
                Voice::Pause { .. } if sure => (Voice::Speech, VadEvent::SpeechResumed { at }),
                Voice::Silence { .. } if sure => (Voice::Speech, VadEvent::SpeechStart { at }),
                Voice::Pause { since }
                    if !opposed && ms(self.heard_ms) >= since + self.turns.settings.silence =>
                {
                    let at = since.as_millis() as u64 * 16;
                    (Voice::Silence { since }, VadEvent::SpeechEnd { at })
                }
                _ => return None,
            };
            (self.voice, self.against_ms) = (voice, 0);
            Some(event)
        }

        /// The latest question is answered.
        fn answer(&mut self, answer: Answer) -> &mut Self {
            let question = self.turns.questions;
            let events = self.turns.answer(question, answer, self.moment());
            self.note(events);
            self
        }

        /// When the model was asked.
        fn questions(&self) -> Vec<u64> {
            let asked = |event: &TurnEvent| matches!(event, TurnEvent::AskModel { .. });
            let asked = self.told.iter().filter(|(_, event)| asked(event));
            asked.map(|(at, _)| *at).collect()
        }

        fn speech(&mut self, length_ms: u64) -> &mut Self {
            self.sound(true, length_ms)
        }

        fn silence(&mut self, length_ms: u64) -> &mut Self {
            self.sound(false, length_ms)
        }

        fn stt(&mut self, event: SttEvent) -> &mut Self {
            let events = self.turns.stt(event, self.moment());
            self.note(events);
            self
        }

        fn partial(&mut self, text: &str) -> &mut Self {
            self.stt(SttEvent::Partial(said(text)))
        }

        fn final_segment(&mut self, text: &str) -> &mut Self {
            self.stt(SttEvent::Final(said(text)))
        }

        /// A final whose last word ends there.
        fn timed_final(&mut self, text: &str, end_ms: u64) -> &mut Self {
            let end = end_ms as f64 / 1_000.0;
            let word = Word {
                word: text.to_owned(),
                start: end - 0.2,
                end,
                confidence: None,
                speaker: None,
            };
            self.stt(SttEvent::Final(Transcript {
                words: vec![word],
                ..said(text)
            }))
        }

        fn flag(&mut self) -> &mut Self {
            self.stt(SttEvent::EndOfSpeech)
        }

        fn client_ends(&mut self) -> &mut Self {
            let events = self.turns.client_ends(self.moment());
            self.note(events);
            self
        }

        fn lost(&mut self) -> &mut Self {
            let error = ProviderError::new("local", ErrorKind::Timeout, "test");
            self.stt(SttEvent::UtteranceLost(error))
        }

        fn end(&mut self) -> &mut Self {
            let events = self.turns.end(self.moment());
            self.note(events);
            self
        }

        fn results(&self) -> impl Iterator<Item = &SttResult> {
            self.told.iter().filter_map(|(_, event)| match event {
                TurnEvent::Result(result) => Some(result),
                _ => None,
            })
        }

        fn voices(&self) -> impl Iterator<Item = (u64, &VoiceEvent)> {
            self.told.iter().filter_map(|(now, event)| match event {
                TurnEvent::Voice(event) => Some((*now, event)),
                _ => None,
            })
        }

        /// The text of every turn that had one.
        fn turns(&self) -> Vec<&str> {
            self.results()
                .filter_map(|result| result.turn_transcript.as_deref())
                .collect()
        }

        /// When every turn ended and why.
        fn ends(&self) -> Vec<(u64, TurnEndReason)> {
            self.voices()
                .filter_map(|(now, event)| event.reason.map(|reason| (now, reason)))
                .collect()
        }

        fn finalizes(&self) -> usize {
            let finalize = |(_, event): &&(u64, TurnEvent)| *event == TurnEvent::Finalize;
            self.told.iter().filter(finalize).count()
        }

        /// `event timestamp_ms silence_duration_ms`, one after the other.
        fn heard(&self) -> Vec<(VoiceEventKind, u64, Option<u64>)> {
            self.voices()
                .map(|(_, told)| (told.event, told.timestamp_ms, told.silence_duration_ms))
                .collect()
        }
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn said(text: &str) -> Transcript {
        Transcript {
            text: text.to_owned(),
            ..Transcript::default()
        }
    }

    #[test]
    fn a_client_ends_a_turn_once_and_with_all_that_was_said() {
        use super::TurnEndReason::Client;
        let reasons = |scene: &Scene| -> Vec<_> {
            scene.ends().into_iter().map(|(_, reason)| reason).collect()
        };
        // In mid-speech: the final is requested and waited for, and speech that goes on does not take the end back.
        let mut scene = Scene::usual();
        scene.speech(1_000).client_ends();
        assert_eq!((scene.finalizes(), scene.ends().len()), (1, 0));
        scene.speech(200).final_segment("all of it");
        assert_eq!(reasons(&scene), [Client]);
        assert_eq!(scene.turns(), ["all of it"]);

        // Where nobody has spoken, it ends at once; where no final comes, after its time.
        let mut scene = Scene::usual();
        scene.silence(1_000).client_ends();
        assert_eq!(reasons(&scene), [Client]);
        scene.speech(1_000).client_ends().stall(5_000);
        assert_eq!(reasons(&scene), [Client, Client]);
        assert!(scene.turns().is_empty());

        // The final of what was said before an earlier pause does not end it.
        let mut scene = Scene::usual();
        scene.speech(1_000).silence(200).speech(1_000).silence(200);
        scene.client_ends().timed_final("first", 900);
        assert!(scene.ends().is_empty());
        scene.timed_final("second", 2_100);
        assert_eq!(scene.turns(), ["first second"]);

        // Without voice activity detection a final is waited for in any case.
        let mut scene = Scene::without_vad();
        scene.silence(100).client_ends();
        assert!(scene.ends().is_empty());
        scene.final_segment("said softly");
        assert_eq!(reasons(&scene), [Client]);
        assert_eq!(scene.turns(), ["said softly"]);
    }

    #[test]
    fn the_flag_after_the_final_ends_the_turn_without_saying_anything_twice() {
        let mut scene = Scene::usual();
        scene.speech(1_000).partial("hel").silence(300);
        scene.final_segment("hello").flag().silence(5_000);
        let results: Vec<_> = scene
            .results()
            .map(|told| {
                (
                    told.transcript.as_str(),
                    told.is_final,
                    told.is_speech_final,
                )
            })
            .collect();
        assert_eq!(
            results,
            [
                ("hel", false, false),
                ("hello", true, false),
                ("", true, true)
            ]
        );
        assert_eq!(scene.turns(), ["hello"]);
        assert_eq!(scene.ends(), [(1_300, Provider)]);
    }

    #[test]
    fn the_flag_before_the_final_waits_for_it() {
        let mut scene = Scene::usual();
        scene.speech(1_000).partial("hello").silence(200).flag();
        assert_eq!(scene.ends(), []);
        scene.silence(200).final_segment("hello").silence(5_000);
        assert_eq!(scene.turns(), ["hello"]);
        assert_eq!(scene.ends(), [(1_400, Provider)]);
        let last = scene.results().last().unwrap();
        assert_eq!(last.transcript, "hello", "one result says all of it");
    }

    #[test]
    fn a_flag_whose_final_never_comes_ends_the_turn_all_the_same() {
        let mut scene = Scene::usual();
        scene.speech(1_000).final_segment("well").partial("well I");
        scene.flag().silence(5_000);
        assert_eq!(scene.turns(), ["well"]);
        assert_eq!(scene.ends(), [(2_800, Provider)]);
    }

    #[test]
    fn the_flag_for_a_noise_is_no_turn() {
        let mut scene = Scene::without_vad();
        scene.flag().silence(5_000);
        assert_eq!(scene.told, []);
    }

    #[test]
    fn speech_after_the_flag_for_a_noise_is_not_cut_by_it() {
        let mut scene = Scene::usual();
        scene.speech(200).silence(600).flag().silence(300);
        scene.speech(1_000).final_segment("now").speech(500);
        assert_eq!(scene.ends(), []);
        scene.final_segment("really").flag();
        assert_eq!(scene.turns(), ["now really"]);
    }

    #[test]
    fn a_provider_that_says_twice_that_a_turn_has_ended_does_not_end_the_next_one() {
        let mut scene = Scene::usual();
        scene.speech(1_000).final_segment("one").flag().silence(700);
        // The next turn is spoken, and not heard yet.
        scene.speech(600).flag().speech(3_000);
        assert_eq!(scene.ends().len(), 1);
        scene.final_segment("two").speech(500).partial("and a");
        scene.speech(500).final_segment("and a half").flag();
        assert_eq!(scene.turns(), ["one", "two and a half"]);
        assert_eq!(scene.ends().len(), 2);
    }

    #[test]
    fn the_final_of_a_turn_that_has_ended_without_it_does_not_end_it_again() {
        for partial in ["", "hello"] {
            let mut scene = Scene::usual();
            scene.speech(1_000).partial(partial).silence(6_000);
            assert_eq!(scene.ends().len(), 1, "it was overdue");
            scene.final_segment("hello").flag().silence(5_000);
            assert_eq!(scene.turns(), ["hello"]);
            assert_eq!(scene.ends().len(), 1);
            // What is spoken then is another turn.
            scene.speech(1_000).final_segment("again").flag();
            assert_eq!(scene.turns(), ["hello", "again"]);
            assert_eq!(scene.ends().len(), 2);
        }
    }

    #[test]
    fn it_is_not_idle_while_words_are_owed() {
        let mut scene = Scene::usual();
        let idle = |scene: &Scene| scene.turns.is_idle(scene.moment().now);
        assert!(idle(&scene));
        scene.speech(1_000);
        assert!(!idle(&scene));
        scene.silence(6_000);
        assert_eq!(scene.ends().len(), 1, "the final is overdue");
        assert!(!idle(&scene), "and may still come");
        scene.final_segment("late").flag().silence(5_000);
        assert!(idle(&scene));
        // A cough has no words.
        scene.speech(300).silence(20_000);
        assert!(idle(&scene));
    }

    #[test]
    fn text_of_speech_that_only_the_recogniser_hears_is_a_turn_with_its_end() {
        let mut scene = Scene::usual();
        scene
            .speech(1_000)
            .final_segment("loud")
            .flag()
            .silence(2_000);
        scene.final_segment("soft").silence(5_000);
        assert_eq!(scene.ends().len(), 2);
        // A cough was owed nothing any more after a while.
        scene.speech(300).silence(20_000).final_segment("very soft");
        scene.silence(5_000);
        assert_eq!(scene.turns(), ["loud", "soft", "very soft"]);
        assert_eq!(scene.ends().len(), 4);
    }

    #[test]
    fn speech_behind_a_belated_final_makes_it_a_turn_with_its_end() {
        let mut scene = Scene::usual();
        scene
            .speech(1_000)
            .partial("I")
            .silence(6_000)
            .final_segment("I");
        scene
            .silence(300)
            .speech(1_000)
            .final_segment("know")
            .flag();
        assert_eq!(scene.turns(), ["I know"]);
        assert_eq!(scene.ends().len(), 2);
    }

    #[test]
    fn a_final_in_the_pause_ends_the_turn_when_the_silence_has_lasted() {
        let mut scene = Scene::usual();
        scene.speech(1_000).silence(200).final_segment("hello");
        scene.silence(5_000);
        assert_eq!(scene.turns(), ["hello"]);
        assert_eq!(scene.ends(), [(1_500, Silence)]);
    }

    #[test]
    fn a_final_after_the_silence_ends_the_turn_at_once() {
        let mut scene = Scene::usual();
        scene.speech(1_000).silence(900).final_segment("hello");
        assert_eq!(scene.ends(), [(1_900, Silence)]);
        let last = scene.results().last().unwrap();
        assert!(last.is_speech_final && last.transcript == "hello");
        // Its flag comes late and ends nothing, not even the next turn.
        scene.speech(500).flag().speech(500);
        assert_eq!(scene.ends().len(), 1);
        scene.final_segment("again").speech(500);
        assert_eq!(scene.ends().len(), 1);
        scene.final_segment("friend").flag();
        assert_eq!(scene.turns(), ["hello", "again friend"]);
    }

    #[test]
    fn a_final_from_before_the_last_words_waits_for_theirs() {
        let mut scene = Scene::usual();
        scene.speech(1_000).final_segment("I would like");
        scene.speech(1_000).silence(700);
        assert_eq!(scene.ends(), [], "the second half is not understood yet");
        scene.final_segment("to order");
        assert_eq!(scene.turns(), ["I would like to order"]);
        assert_eq!(scene.ends(), [(2_700, Silence)]);
    }

    #[test]
    fn a_final_without_times_that_comes_with_the_last_sample_of_speech_covers_it() {
        let mut scene = Scene::usual();
        scene.speech(980).final_segment("hello");
        // What is heard of speech lasts a frame longer than what is understood.
        scene.speech(20).silence(1_000);
        assert_eq!(scene.turns(), ["hello"]);
        assert_eq!(scene.ends(), [(1_500, Silence)]);
    }

    #[test]
    fn word_times_tell_which_speech_a_slow_final_covers() {
        let mut scene = Scene::usual();
        scene.speech(1_000).silence(400).speech(500).silence(300);
        scene.timed_final("one", 950).silence(500);
        assert_eq!(scene.ends(), []);
        scene.timed_final("two", 1_800);
        assert_eq!(scene.turns(), ["one two"]);
        assert_eq!(scene.ends(), [(2_700, Silence)]);
    }

    #[test]
    fn a_partial_without_its_final_keeps_silence_from_ending_the_turn() {
        let mut scene = Scene::usual();
        scene.speech(1_000).silence(100);
        scene.final_segment("one").partial("tw").silence(1_000);
        assert_eq!(scene.ends(), []);
        scene.final_segment("two");
        assert_eq!(scene.turns(), ["one two"]);
    }

    #[test]
    fn without_voice_activity_the_deadline_after_the_last_final_ends_the_turn() {
        let mut scene = Scene::without_vad();
        scene.speech(1_000).final_segment("hello").speech(1_000);
        scene.final_segment("there").silence(1_790);
        assert_eq!(scene.ends(), []);
        scene.silence(5_000);
        assert_eq!(scene.turns(), ["hello there"]);
        assert_eq!(scene.ends(), [(3_800, Timeout)]);
        assert_eq!(scene.heard(), [(VoiceEventKind::TurnEnd, 3_790, None)]);
    }

    #[test]
    fn silence_proves_nothing_about_speech_too_soft_to_be_heard() {
        let mut scene = Scene::usual();
        scene.silence(1_000).final_segment("I would like");
        scene.silence(1_000).final_segment("to order");
        scene.silence(5_000);
        assert_eq!(scene.turns(), ["I would like to order"]);
        assert_eq!(scene.ends(), [(3_800, Timeout)]);
    }

    #[test]
    fn a_partial_that_says_something_new_extends_the_turn_and_a_repeated_one_does_not() {
        let mut scene = Scene::without_vad();
        scene.final_segment("one").silence(1_500);
        scene.partial("two").silence(1_500).partial("two three");
        scene.silence(1_500).partial("two three").silence(290);
        assert_eq!(scene.finalizes(), 0);
        scene.silence(10);
        assert_eq!(scene.finalizes(), 1);
        assert_eq!(scene.results().count(), 3);
    }

    #[test]
    fn a_recogniser_that_is_late_is_not_asked_for_its_final_in_the_middle_of_a_first_word() {
        let patience = TurnSettings::default().final_patience.as_millis() as u64;
        let mut scene = Scene::usual();
        scene
            .speech(1_000)
            .partial("one")
            .silence(patience - 2 * STEP_MS);
        scene.speech(SURE_MS + 1_000);
        assert_eq!(scene.finalizes(), 0);
        scene.final_segment("one").flag().silence(300);
        scene.final_segment("two").flag();
        assert_eq!(scene.turns(), ["one", "two"]);
    }

    #[test]
    fn last_words_without_interim_text_are_waited_for_when_the_time_is_up() {
        let patience = TurnSettings::default().final_patience.as_millis() as u64;
        let mut scene = Scene::usual();
        scene.speech(1_000).final_segment("one").silence(200);
        scene.speech(1_000).silence(patience + 2 * STEP_MS);
        assert_eq!(scene.finalizes(), 1);
        assert_eq!(scene.ends(), []);
        scene.silence(patience / 2).final_segment("two");
        assert_eq!(scene.turns(), ["one two"]);
        scene.silence(patience);
        assert_eq!(scene.ends().len(), 1);
    }

    #[test]
    fn what_only_seems_to_be_a_voice_puts_the_end_of_a_turn_off_by_little_and_not_for_ever() {
        let patience = TurnSettings::default().final_patience.as_millis() as u64;
        let mut scene = Scene::usual();
        scene
            .speech(1_000)
            .partial("one")
            .silence(patience - 2 * STEP_MS);
        scene.speech(3 * STEP_MS);
        assert_eq!(scene.finalizes(), 0);
        // The client sends no more.
        scene.stall(2 * GLIMPSE.as_millis() as u64);
        assert_eq!(scene.finalizes(), 1);
        scene.stall(2 * patience);
        assert_eq!(scene.ends().len(), 1);
    }

    #[test]
    fn speech_before_the_deadline_extends_the_turn() {
        let mut scene = Scene::usual();
        scene.speech(900).final_segment("one");
        scene.speech(100).silence(1_500);
        scene.speech(1_000).silence(200).final_segment("two");
        scene.silence(5_000);
        assert_eq!(scene.turns(), ["one two"]);
        assert_eq!(scene.ends(), [(4_000, Silence)]);
        use VoiceEventKind::{SilenceDetected, SpeechResumed, SpeechStart, TurnEnd};
        assert_eq!(
            scene.heard(),
            [
                (SpeechStart, 0, None),
                (SilenceDetected, 1_000, None),
                (SpeechResumed, 2_500, Some(1_500)),
                (SilenceDetected, 3_500, None),
                (TurnEnd, 4_000, Some(500)),
            ]
        );
    }

    #[test]
    fn a_final_after_the_end_is_a_turn_of_its_own() {
        let mut scene = Scene::usual();
        scene
            .speech(1_000)
            .silence(100)
            .final_segment("hello")
            .flag();
        scene.silence(500).final_segment("there").silence(5_000);
        assert_eq!(scene.turns(), ["hello", "there"]);
        assert_eq!(scene.ends(), [(1_100, Provider), (3_400, Timeout)]);
    }

    #[test]
    fn a_final_after_the_end_joins_what_is_said_next() {
        let mut scene = Scene::usual();
        scene
            .speech(1_000)
            .silence(100)
            .final_segment("hello")
            .flag();
        scene.silence(500).final_segment("there").silence(500);
        scene.speech(1_000).final_segment("friend").flag();
        assert_eq!(scene.turns(), ["hello", "there friend"]);
    }

    #[test]
    fn a_partial_after_the_end_opens_the_next_turn() {
        let mut scene = Scene::without_vad();
        scene.final_segment("one").flag().partial("two");
        scene.final_segment("two").flag();
        assert_eq!(scene.turns(), ["one", "two"]);
    }

    #[test]
    fn too_long_a_turn_ends_with_the_text_of_what_was_heard_and_the_speaker_has_the_next() {
        let mut scene = Scene::with_max_turn(3_000);
        scene.speech(4_000);
        assert_eq!(scene.finalizes(), 1, "the recogniser is asked once");
        assert_eq!(scene.ends(), []);
        scene.final_segment("and so on").flag();
        assert_eq!(scene.turns(), ["and so on"]);
        assert_eq!(scene.ends(), [(4_000, MaxTurn)]);
        scene
            .speech(500)
            .silence(200)
            .final_segment("and on")
            .flag();
        assert_eq!(scene.turns(), ["and so on", "and on"]);
        let starts = |(_, told): &(u64, &VoiceEvent)| told.event == VoiceEventKind::SpeechStart;
        assert_eq!(scene.voices().filter(starts).count(), 2);
    }

    #[test]
    fn too_long_a_turn_ends_even_when_the_recogniser_does_not_answer() {
        let mut scene = Scene::with_max_turn(3_000);
        scene.speech(1_000).final_segment("one").speech(10_000);
        // Since the onset was sure, and as long again as a deadline.
        assert_eq!(scene.ends()[0], (50 + 3_000 + 1_800, MaxTurn));
        assert_eq!(scene.turns(), ["one"]);
    }

    #[test]
    fn text_without_end_is_cut() {
        let mut scene = Scene::usual();
        scene.speech(100);
        let segment = "x".repeat(999);
        for _ in 0..200 {
            scene.final_segment(&segment);
        }
        assert_eq!(scene.turns().len(), 3);
        assert!(scene.turns().iter().all(|text| text.len() < 67_000));
    }

    #[test]
    fn an_utterance_lost_in_the_middle_leaves_the_rest_of_the_turn() {
        let mut scene = Scene::usual();
        scene.speech(1_000).final_segment("one").partial("tw");
        scene.lost();
        let taken_back = scene.results().last().unwrap();
        assert!(taken_back.transcript.is_empty() && !taken_back.is_final);
        scene.speech(1_000).final_segment("three").flag();
        assert_eq!(scene.turns(), ["one three"]);
    }

    #[test]
    fn a_lost_utterance_alone_is_no_speech_final() {
        let mut scene = Scene::usual();
        scene.speech(1_000).silence(500).lost().flag();
        scene.silence(5_000);
        assert_eq!(scene.turns(), [""; 0]);
        assert_eq!(scene.ends(), [(3_300, Provider)]);
    }

    #[test]
    fn speech_that_nobody_understands_ends_without_a_speech_final() {
        let mut scene = Scene::usual();
        scene.speech(1_000).silence(5_000);
        assert_eq!(scene.results().count(), 0);
        // 50 ms to be sure of the silence.
        assert_eq!(scene.ends(), [(2_850, Timeout)]);
    }

    #[test]
    fn a_client_that_stops_sending_in_its_middle_still_gets_its_turn() {
        let mut scene = Scene::usual();
        scene.speech(1_000).partial("good").stall(2_500);
        assert_eq!(scene.finalizes(), 1);
        scene.final_segment("good night").stall(5_000);
        assert_eq!(scene.turns(), ["good night"]);
        assert_eq!(scene.ends(), [(3_500, Timeout)]);
    }

    #[test]
    fn a_client_that_stops_sending_in_a_pause_still_gets_its_turn() {
        let mut scene = Scene::usual();
        scene.speech(1_000).silence(200).stall(2_000);
        assert_eq!(scene.finalizes(), 1);
        scene.final_segment("good night");
        assert_eq!(scene.turns(), ["good night"]);
        assert_eq!(scene.ends(), [(3_200, Timeout)]);
    }

    #[test]
    fn a_hiccup_of_the_network_does_not_end_what_is_being_said() {
        let mut scene = Scene::new(TurnSettings {
            speech_final_timeout: ms(300),
            ..TurnSettings::default()
        });
        scene.speech(1_000).final_segment("good").stall(1_500);
        scene.speech(500).final_segment("night");
        assert_eq!((scene.finalizes(), scene.ends()), (0, vec![]));
    }

    #[test]
    fn a_client_that_sends_again_after_a_stall_goes_on_with_its_turn() {
        let mut scene = Scene::usual();
        scene.speech(1_000).stall(3_500).speech(500);
        assert_eq!(scene.finalizes(), 1);
        scene.final_segment("good").speech(500);
        assert_eq!(scene.ends(), []);
        scene.silence(100).final_segment("night").silence(500);
        assert_eq!(scene.turns(), ["good night"]);
    }

    #[test]
    fn the_end_of_the_session_ends_the_turn_once() {
        let mut scene = Scene::usual();
        scene.speech(1_000).final_segment("good bye").end().end();
        assert_eq!(scene.turns(), ["good bye"]);
        assert_eq!(scene.ends(), [(1_000, SessionEnd)]);
        let mut scene = Scene::usual();
        scene.silence(1_000).end();
        assert_eq!(scene.told, []);
    }

    #[test]
    fn the_last_result_has_the_confidence_of_the_turn_by_its_words() {
        let mut scene = Scene::without_vad();
        for (text, confidence) in [
            ("one two three", Some(0.9)),
            ("four", Some(0.5)),
            ("five", None),
        ] {
            scene.stt(SttEvent::Final(Transcript {
                confidence,
                language: Some("en-GB".to_owned()),
                ..said(text)
            }));
        }
        scene.flag();
        let last = scene.results().last().unwrap();
        assert!((last.confidence.unwrap() - 0.8).abs() < 1e-6);
        assert_eq!(last.language.as_deref(), Some("en-GB"));
    }

    #[test]
    fn segments_are_joined_as_their_script_does() {
        for (segments, whole) in [
            (vec![" good ", "", "\tmorning. "], "good morning."),
            (vec!["今日は。", "元気ですか"], "今日は。元気ですか"),
            (vec!["これは", "Rust", "です"], "これは Rust です"),
        ] {
            let mut scene = Scene::without_vad();
            for segment in segments {
                scene.final_segment(segment);
            }
            scene.flag();
            assert_eq!(scene.turns(), [whole]);
        }
    }

    #[test]
    fn times_beyond_the_clock_mean_never() {
        let mut scene = Scene::new(TurnSettings {
            speech_final_timeout: Duration::MAX,
            max_turn: Some(Duration::MAX),
            ..TurnSettings::default()
        });
        scene
            .speech(1_000)
            .timed_final("one", u64::MAX)
            .silence(200);
        assert_eq!(scene.turns.next_deadline(), None);
        scene.flag();
        assert_eq!(scene.turns(), ["one"]);
    }

    #[test]
    fn events_have_the_names_and_only_the_fields_of_the_wire() {
        let mut scene = Scene::usual();
        scene
            .speech(1_000)
            .silence(200)
            .final_segment("one")
            .silence(500);
        let json: Vec<_> = scene
            .told
            .iter()
            .map(|(_, event)| match event {
                TurnEvent::Result(result) => serde_json::to_string(result).unwrap(),
                TurnEvent::Voice(event) => serde_json::to_string(event).unwrap(),
                TurnEvent::Finalize | TurnEvent::AskModel { .. } => String::new(),
            })
            .collect();
        assert_eq!(
            json,
            [
                r#"{"event":"speech_start","timestamp_ms":0}"#,
                r#"{"event":"silence_detected","timestamp_ms":1000}"#,
                r#"{"transcript":"one","is_final":true,"is_speech_final":false,"confidence":null}"#,
                r#"{"transcript":"","is_final":true,"is_speech_final":true,"confidence":null,"turn_transcript":"one"}"#,
                r#"{"event":"turn_end","timestamp_ms":1500,"silence_duration_ms":500,"reason":"silence"}"#,
            ]
        );
    }

    /// A model is asked in pauses.
    mod the_model {
        use super::*;

        fn scene(model: ModelUse) -> Scene {
            Scene::new(TurnSettings {
                model,
                ..TurnSettings::default()
            })
        }

        #[test]
        fn is_asked_once_in_each_pause_that_has_lasted_a_little() {
            let mut scene = scene(ModelUse::Beside);
            scene.speech(1_000).silence(150).speech(500).silence(150);
            scene.speech(500).silence(400).speech(500);
            scene.silence(3_000);
            assert_eq!(scene.questions(), [2_510, 3_410]);
            let mut off = super::Scene::usual();
            off.speech(1_000).silence(3_000);
            assert_eq!(off.questions(), [0; 0]);
        }

        #[test]
        fn is_asked_in_the_time_of_the_audio() {
            let mut scene = scene(ModelUse::Beside);
            scene.speech(1_000).silence(100).stall(500);
            assert_eq!(scene.questions(), [0; 0]);
            scene.silence(200);
            assert_eq!(scene.questions().len(), 1);
        }

        #[test]
        fn ends_a_turn_with_its_text_or_asks_for_it() {
            let mut scene = scene(ModelUse::Beside);
            scene.speech(1_000).silence(100).final_segment("one");
            scene.silence(160).answer(Answer::Finished);
            assert_eq!(scene.ends(), [(1_260, Model)]);
            scene.silence(1_000).speech(1_000).partial("two");
            scene.silence(260).answer(Answer::Finished);
            assert_eq!(scene.ends().len(), 1);
            scene.silence(100).final_segment("two");
            assert_eq!(scene.ends().len(), 2);
            assert_eq!(scene.turns(), ["one", "two"]);
        }

        #[test]
        fn holds_a_turn_open_until_the_time_out() {
            let mut scene = scene(ModelUse::Beside);
            scene.speech(1_000).silence(100).final_segment("one");
            scene.silence(160).answer(Answer::Unfinished);
            scene.silence(3_000);
            assert_eq!(scene.ends(), [(2_900, Timeout)]);
            // A final that comes later does not lengthen that.
            let mut scene = self::scene(ModelUse::Beside);
            scene.speech(1_000).silence(260).answer(Answer::Unfinished);
            scene.silence(700).final_segment("one").silence(3_000);
            assert_eq!(scene.ends(), [(2_850, Timeout)]);
        }

        #[test]
        fn is_not_believed_when_silence_has_decided_or_speech_begins_again() {
            let mut late = scene(ModelUse::Beside);
            late.speech(1_000).silence(600).answer(Answer::Unfinished);
            late.final_segment("one");
            assert_eq!(late.ends(), [(1_600, Silence)]);
            let mut onset = scene(ModelUse::Beside);
            onset.speech(1_000).silence(100).final_segment("one");
            onset.silence(160).speech(20).answer(Answer::Finished);
            assert_eq!(onset.ends(), []);
            let mut resumed = scene(ModelUse::Beside);
            resumed.speech(1_000).silence(300).speech(100);
            resumed.answer(Answer::Finished).final_segment("one");
            assert_eq!(resumed.ends(), []);
        }

        #[test]
        fn comes_before_the_provider_where_it_was_named() {
            for (answer, ends) in [
                (Answer::Finished, 1_260),
                (Answer::None, 1_260),
                (Answer::Unfinished, 1_500),
            ] {
                let mut scene = scene(ModelUse::First);
                scene.speech(1_000).silence(100).final_segment("one").flag();
                assert_eq!(scene.ends(), [], "{answer:?}");
                scene.silence(160).answer(answer).silence(2_000);
                assert_eq!(scene.ends(), [(ends, Provider)], "{answer:?}");
            }
            // One that is nothing but a pause is none where the speaker has not finished.
            for flags_first in [true, false] {
                let mut scene = scene(ModelUse::OverPauses);
                scene.speech(1_000).silence(100).final_segment("one");
                if flags_first {
                    scene.flag();
                }
                scene.silence(160).answer(Answer::Unfinished);
                if !flags_first {
                    scene.silence(200).flag();
                }
                scene.silence(3_000);
                assert_eq!(scene.ends(), [(2_900, Timeout)]);
            }
            // In the middle of speech it waits as long.
            let mut scene = scene(ModelUse::First);
            scene.speech(1_000).final_segment("one").flag().speech(600);
            assert_eq!(scene.ends(), [(1_500, Provider)]);
        }
    }

    #[test]
    fn a_backchannel_is_no_text_and_ends_nothing() {
        let mut scene = Scene::usual();
        scene.speech(300).silence(100).partial("mhm");
        let events = scene.turns.backchannel(said("mhm"), scene.moment());
        scene.note(events);
        scene.silence(600);
        assert_eq!(scene.turns(), [""; 0]);
        assert_eq!(scene.ends(), []);
        scene.speech(500).final_segment("what").silence(2_000);
        assert_eq!(scene.turns(), ["what"]);
        assert_eq!(scene.ends().len(), 1);
    }

    /// A cough or a "mhm" neither ends nor splits a turn.
    mod a_cough_is_not_a_turn {
        use super::*;

        #[test]
        fn a_cough_that_is_heard_is_told_and_ends_nothing_with_text() {
            let mut scene = Scene::usual();
            // The recogniser thinks of a word, then better of it.
            scene.speech(250).partial("huh").silence(500);
            scene.final_segment("").flag().silence(3_000);
            assert_eq!(scene.turns(), [""; 0]);
            assert_eq!(scene.ends().len(), 1);
            scene
                .speech(1_000)
                .silence(300)
                .final_segment("sorry")
                .flag();
            assert_eq!(scene.turns(), ["sorry"], "and the next turn is whole");
        }

        #[test]
        fn a_cough_in_a_turn_neither_ends_nor_splits_it() {
            let mut scene = Scene::usual();
            scene.speech(1_000).silence(200).final_segment("I would");
            scene.speech(150).silence(200).lost().speech(800);
            scene.silence(200).final_segment("like two").silence(500);
            assert_eq!(scene.turns(), ["I would like two"]);
        }
    }

    /// A turn ends neither while the user is still speaking nor never.
    mod neither_too_early_nor_never {
        use super::*;

        #[test]
        fn someone_who_thinks_between_words_is_let_finish() {
            let mut scene = Scene::usual();
            scene.speech(800).silence(450).final_segment("my number is");
            for digits in ["five five", "one two", "three"] {
                scene.speech(600).partial(digits).silence(450);
                scene.final_segment(digits);
            }
            assert_eq!(scene.ends(), []);
            scene.silence(100);
            assert_eq!(scene.turns(), ["my number is five five one two three"]);
        }

        #[test]
        fn a_slow_recogniser_is_waited_for_and_its_final_is_answered_at_once() {
            let mut scene = Scene::usual();
            scene.speech(2_000).partial("book a").silence(1_340);
            assert_eq!(scene.ends(), []);
            scene.final_segment("book a table");
            assert_eq!(scene.ends(), [(3_340, Silence)]);
        }

        #[test]
        fn a_recogniser_that_forgets_its_final_is_asked_for_it() {
            let mut scene = Scene::usual();
            scene.speech(1_000).partial("hello").silence(1_850);
            assert_eq!(scene.finalizes(), 1);
            scene.silence(200).final_segment("hello");
            assert_eq!(scene.turns(), ["hello"]);
        }

        #[test]
        fn a_recogniser_that_says_nothing_at_all_leaves_no_turn_open() {
            let mut scene = Scene::usual();
            scene.speech(1_000).partial("hello").silence(10_000);
            // Overdue since the last speech, and as long again.
            assert_eq!(scene.ends(), [(2_800 + 1_800, Timeout)]);
            assert_eq!(scene.turns.next_deadline(), None);
        }
    }

    #[derive(Debug, Clone)]
    enum Act {
        Speech(u64),
        Silence(u64),
        Stall(u64),
        Partial(u8),
        Final,
        TimedFinal,
        EmptyFinal,
        EmptyPartial,
        Flag,
        Lost,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            3 => (1u64..250).prop_map(|n| Act::Speech(n * STEP_MS)),
            3 => (1u64..250).prop_map(|n| Act::Silence(n * STEP_MS)),
            1 => (1u64..500).prop_map(|n| Act::Stall(n * STEP_MS)),
            2 => (0u8..3).prop_map(Act::Partial),
            3 => Just(Act::Final),
            1 => Just(Act::TimedFinal),
            1 => Just(Act::EmptyFinal),
            1 => Just(Act::EmptyPartial),
            2 => Just(Act::Flag),
            1 => Just(Act::Lost),
        ];
        prop::collection::vec(act, 0..60)
    }

    /// Plays `acts` and the end; returns every final in order.
    fn play(scene: &mut Scene, acts: &[Act]) -> Vec<String> {
        let mut finals = Vec::new();
        for act in acts {
            let text = format!("s{}", finals.len());
            match *act {
                Act::Speech(length) => scene.speech(length),
                Act::Silence(length) => scene.silence(length),
                Act::Stall(length) => scene.stall(length),
                Act::Partial(n) => scene.partial(&format!("p{n}")),
                Act::Final => scene.final_segment(&text),
                Act::TimedFinal => scene.timed_final(&text, scene.heard_ms / 2),
                Act::EmptyFinal => scene.final_segment(" "),
                Act::EmptyPartial => scene.partial(""),
                Act::Flag => scene.flag(),
                Act::Lost => scene.lost(),
            };
            if matches!(act, Act::Final | Act::TimedFinal) {
                finals.push(text);
            }
        }
        scene.end();
        finals
    }

    fn any_settings() -> impl Strategy<Value = TurnSettings> {
        (
            any::<bool>(),
            0u64..3_000,
            0u64..3_000,
            prop::option::of(500u64..8_000),
        )
            .prop_map(|(enabled, silence, timeout, max_turn)| TurnSettings {
                enabled,
                silence: ms(silence),
                speech_final_timeout: ms(timeout),
                max_turn: max_turn.map(ms),
                ..TurnSettings::default()
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_text_is_lost_or_told_twice_and_a_turn_with_text_ends_exactly_once(
            settings in any_settings(), acts in acts(),
        ) {
            let mut scene = Scene::new(settings);
            let finals = play(&mut scene, &acts);
            prop_assert_eq!(scene.turns().join(" "), finals.join(" "));
            // What was told as finals between two ends is what the end says.
            let mut segments: Vec<&str> = Vec::new();
            let mut speech_final = false;
            // Whether text could be what the turn before was owed, whose end was told.
            let mut belated = false;
            for (_, event) in &scene.told {
                match event {
                    TurnEvent::Result(told) => {
                        speech_final &= !belated;
                        prop_assert!(!speech_final, "a speech final ends its turn at once");
                        prop_assert_eq!(told.is_speech_final, told.turn_transcript.is_some());
                        if told.is_final && !told.transcript.is_empty() {
                            segments.push(&told.transcript);
                        }
                        if let Some(whole) = &told.turn_transcript {
                            prop_assert_eq!(&segments.join(" "), whole);
                            prop_assert!(told.is_final && !whole.is_empty());
                            segments.clear();
                            speech_final = true;
                        }
                    }
                    TurnEvent::Voice(VoiceEvent { event: VoiceEventKind::TurnEnd, .. }) => {
                        prop_assert!(segments.is_empty(), "a turn with text ends with a speech final");
                        speech_final = false;
                        belated = true;
                    }
                    other => {
                        prop_assert!(!speech_final || belated);
                        speech_final = false;
                        belated &= !matches!(other, TurnEvent::Voice(_));
                    }
                }
            }
            prop_assert!(segments.is_empty() && (belated || !speech_final));
            prop_assert_eq!(scene.turns.next_deadline(), None);
        }

        #[test]
        fn what_is_heard_is_told_in_order_and_its_times_never_go_back(
            settings in any_settings(), acts in acts(),
        ) {
            use VoiceEventKind::{SilenceDetected, SpeechResumed, SpeechStart, TurnEnd};
            let mut scene = Scene::new(settings);
            play(&mut scene, &acts);
            let mut last = 0;
            let mut before = TurnEnd;
            for (event, timestamp, silence) in scene.heard() {
                prop_assert!(timestamp >= last);
                let follows = match event {
                    SpeechStart => before == TurnEnd,
                    SilenceDetected => matches!(before, SpeechStart | SpeechResumed),
                    SpeechResumed => before == SilenceDetected && silence.is_some(),
                    TurnEnd => true,
                };
                prop_assert!(follows, "{event:?} after {before:?}");
                prop_assert!(settings.enabled || event == TurnEnd);
                (last, before) = (timestamp, event);
            }
        }

        #[test]
        fn what_is_spoken_ends_once_whatever_a_vendor_says_and_in_whatever_order(
            settings in any_settings(), acts in acts(),
        ) {
            let mut scene = Scene::new(TurnSettings { enabled: true, ..settings });
            play(&mut scene, &acts);
            // When a turn ended without its text, and whether what comes since then is that text.
            let mut owed: Option<u64> = None;
            let mut belated = false;
            let mut last = 0;
            let later = BELATED.as_millis() as u64;
            // Of the turn that is open.
            let (mut spoken, mut has_text) = (false, false);
            for (at, event) in &scene.told {
                belated &= at - std::mem::replace(&mut last, *at) <= later;
                match event {
                    TurnEvent::Voice(VoiceEvent { event: VoiceEventKind::SpeechStart, .. }) => {
                        prop_assert!(!spoken, "a turn begins once");
                        (spoken, belated, owed) = (true, false, None);
                    }
                    TurnEvent::Voice(VoiceEvent { event: VoiceEventKind::TurnEnd, .. }) => {
                        prop_assert!(!belated, "a turn ends again with the text that it was owed");
                        owed = (spoken && !has_text).then_some(*at);
                        (spoken, has_text) = (false, false);
                    }
                    TurnEvent::Result(told) => {
                        if let Some(ended) = owed.take() {
                            belated = at - ended <= later;
                        }
                        has_text |= told.is_final;
                        if belated && told.is_speech_final {
                            (belated, has_text) = (false, false);
                        }
                    }
                    _ => {}
                }
            }
        }

        #[test]
        fn nobody_who_speaks_is_ended_by_silence_or_time(settings in any_settings(), acts in acts()) {
            let mut scene = Scene::new(TurnSettings { enabled: true, ..settings });
            // With audio all the time, as the model hears it.
            let acts: Vec<_> = acts.into_iter().filter(|act| !matches!(act, Act::Stall(_))).collect();
            play(&mut scene, &acts);
            let mut speaking = false;
            let mut reasons = Vec::new();
            for (_, told) in scene.voices() {
                match told.event {
                    VoiceEventKind::SpeechStart | VoiceEventKind::SpeechResumed => speaking = true,
                    VoiceEventKind::SilenceDetected => speaking = false,
                    VoiceEventKind::TurnEnd => {
                        if mem::take(&mut speaking) {
                            reasons.extend(told.reason);
                        }
                    }
                }
            }
            prop_assert!(reasons.iter().all(|why| matches!(why, Provider | MaxTurn | SessionEnd)), "{reasons:?}");
        }

        #[test]
        fn a_deadline_never_comes_nearer_and_every_turn_ends_by_itself(
            settings in any_settings(), acts in acts(),
        ) {
            let mut scene = Scene::new(TurnSettings { enabled: false, ..settings });
            let mut last = None;
            for act in &acts {
                play_one(&mut scene, act);
                let deadline = scene.turns.next_deadline();
                if scene.told.iter().any(|(_, told)| matches!(told, TurnEvent::Voice(_))) {
                    // A turn has ended: the next has deadlines of its own.
                    scene.told.clear();
                } else if let (Some(last), Some(deadline)) = (last, deadline) {
                    prop_assert!(deadline >= last);
                }
                last = deadline;
            }
            scene.silence(2 * 3_000 + 2_000);
            prop_assert_eq!(scene.turns.next_deadline(), None);
        }
    }

    fn play_one(scene: &mut Scene, act: &Act) {
        match act {
            Act::Speech(length) | Act::Silence(length) | Act::Stall(length) => scene.stall(*length),
            Act::Partial(n) => scene.partial(&format!("p{n}")),
            Act::Final | Act::TimedFinal => scene.final_segment("s"),
            Act::EmptyFinal => scene.final_segment(""),
            Act::EmptyPartial => scene.partial(""),
            Act::Flag => scene.flag(),
            Act::Lost => scene.lost(),
        };
    }
}
