//! Turn-taking: when a speaker has finished, and what was said until then. A pure state machine that joins what voice
//! activity detection hears with what a recogniser understands, and makes the client's `stt_result`s and `vad_event`s
//! of it. Audio, timers and the recogniser's stream are the caller's; so is whose turn it is where several people are
//! heard (one detector each).
//!
//! A turn opens with the first speech or the first text and ends exactly once, with one `turn_end`. If it has text, one
//! `stt_result` with `is_speech_final` comes before that and carries all of it. Which comes first of these ends it:
//!
//! | reason | when |
//! |---|---|
//! | `provider` | the recogniser says so and owes no final. If it still owes one, the final is waited for |
//! | `silence` | the pause has lasted (`silence_ms`) and the finals reach up to it |
//! | `timeout` | nothing new was said or understood for `speech_final_timeout_ms`; whatever is heard sets it back |
//! | `max_turn` | the turn is longer than `max_turn_ms`, speech or not; or its text is longer than 64 KiB |
//! | `session_end` | [`TurnDetector::end`] |
//!
//! Finals are told when they come and are never held back: the end is usually found later, and then the result that
//! says so has an empty `transcript` (nothing is said twice) beside the `turn_transcript`. Only finals make text. One that
//! comes after its turn has ended opens the next, so nothing is lost and nothing ends twice.

use std::mem;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::audio::vad::{RATE, VadEvent, VadSettings};
use crate::providers::{SttEvent, Transcript, Word};

/// How far before a pause the last word may end and still be the last one before it: recognisers and voice activity
/// detection do not agree to the frame.
const WORD_SLACK: Duration = Duration::from_millis(300);
/// Speech of which no sample has come for this long is not going on: the client has stopped sending in its middle.
const STALL: Duration = Duration::from_secs(2);
/// The most text that is kept for one turn: beyond it the turn ends as if it had lasted too long.
const LONGEST_TURN_BYTES: usize = 64 * 1024;

/// When a turn is over: the `vad` part of a session's `config`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnSettings {
    /// Whether voice activity is listened to. Without it, turns end by the provider's flag and the time-out.
    pub enabled: bool,
    /// The score, 0–1, from which sound is speech.
    pub threshold: f32,
    /// Silence that ends a turn whose text is complete.
    pub silence: Duration,
    /// Speech shorter than this never was any.
    pub min_speech: Duration,
    /// How long after the last speech and the last text a turn ends in any case.
    pub speech_final_timeout: Duration,
    /// How long a turn may last; `None` is for ever.
    pub max_turn: Option<Duration>,
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
            ..VadSettings::default()
        }
    }
}

/// Now, on both of a session's clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The clock on the wall: deadlines run on when a client stops sending.
    pub now: Instant,
    /// How much audio the session has heard: what `timestamp_ms` counts.
    pub heard: Duration,
}

/// What a detector wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEvent {
    /// Tell the client what was understood.
    Result(SttResult),
    /// Tell the client what was heard.
    Voice(VoiceEvent),
    /// Ask the recogniser to make final what it has heard: the turn is over and waits for it.
    Finalize,
}

/// The body of an `stt_result`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SttResult {
    /// The text of this segment; empty where only the end of the turn is told, or an interim result is taken back.
    pub transcript: String,
    /// Whether the segment stays as it is.
    pub is_final: bool,
    /// Whether the turn is over.
    pub is_speech_final: bool,
    /// 0–1 of this segment; of the whole turn where the segment is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f32>,
    /// All text of the turn, on its last result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_transcript: Option<String>,
    /// The words of this segment where known, in seconds of session audio.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
    /// BCP-47 where the provider says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

/// The body of a `vad_event`. Within a turn they come as `speech_start`, then `silence_detected` and `speech_resumed` by
/// turns, then `turn_end`. A turn that only the recogniser has heard has just its `turn_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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

/// What a [`VoiceEvent`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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

/// Why a turn has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnEndReason {
    /// The recogniser said so.
    Provider,
    /// A pause, with all text there.
    Silence,
    /// Nothing new for too long.
    Timeout,
    /// The turn was too long.
    MaxTurn,
    /// The session is over.
    SessionEnd,
}

/// What voice activity detection says, whosever turn it is. Positions are session audio.
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

/// A turn under way.
#[derive(Debug)]
struct Turn {
    /// The finals so far, joined.
    text: String,
    confidence: MeanConfidence,
    language: Option<String>,
    /// What the recogniser has understood and still owes a final for.
    partial: String,
    /// The session audio that the finals are known to cover.
    reach: Duration,
    /// Whether speech was heard in it, and told.
    voiced: bool,
    /// When it is over even if nothing comes; `None` is beyond the clock.
    deadline: Option<Instant>,
    /// The audio that had been heard when the deadline was set.
    heard_before: Duration,
    /// When it is too long.
    must_end: Option<Instant>,
    /// The turn is over for this reason; only the final of what was heard is waited for, until the deadline.
    ending: Option<TurnEndReason>,
}

/// The confidence of a turn: that of its segments by their words.
#[derive(Debug, Default)]
struct MeanConfidence {
    sum: f32,
    words: f32,
}

/// One speaker's turns.
#[derive(Debug)]
pub struct TurnDetector {
    settings: TurnSettings,
    voice: Voice,
    turn: Option<Turn>,
    /// The last turn ended without the provider's flag, which may still come and then means nothing.
    flag_outstanding: bool,
    /// The latest position told.
    told: Duration,
    events: Vec<TurnEvent>,
}

impl TurnDetector {
    /// A detector that has heard nothing yet.
    pub fn new(settings: TurnSettings) -> Self {
        Self {
            settings,
            voice: Voice::Silence {
                since: Duration::ZERO,
            },
            turn: None,
            flag_outstanding: false,
            told: Duration::ZERO,
            events: Vec::new(),
        }
    }

    /// Takes what voice activity detection has heard. Positions are samples at its rate since the session began; a
    /// [`Vad`](crate::audio::vad::Vad) that was started later needs its own offset added.
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
                    self.end_if_silent(moment);
                }
            }
        }
        mem::take(&mut self.events)
    }

    /// Takes what the recogniser has understood. An utterance that it lost is told to the client by the caller.
    pub fn stt(&mut self, event: SttEvent, moment: Moment) -> Vec<TurnEvent> {
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

    /// When [`TurnDetector::tick`] is due. Anything that comes before the tick, however late that is, is heard first
    /// and may set the deadline back.
    pub fn next_deadline(&self) -> Option<Instant> {
        let turn = self.turn.as_ref()?;
        let must_end = turn.must_end.filter(|_| turn.ending.is_none());
        turn.deadline.into_iter().chain(must_end).min()
    }

    /// Lets time pass. Ticks that nothing is due at do nothing.
    pub fn tick(&mut self, moment: Moment) -> Vec<TurnEvent> {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= moment.now);
        if let Some(turn) = self
            .turn
            .take_if(|turn| turn.ending.is_none() && due(turn.must_end))
        {
            self.end_with_all_text(turn, TurnEndReason::MaxTurn, moment);
        } else if let Some(mut turn) = self.turn.take_if(|turn| due(turn.deadline)) {
            match turn.ending {
                None | Some(TurnEndReason::Timeout) if self.speech_goes_on(&turn, moment) => {
                    turn.ending = None;
                    self.go_on(turn, moment);
                }
                None => self.end_with_all_text(turn, TurnEndReason::Timeout, moment),
                Some(reason) => self.close(turn, reason, None, moment),
            }
        }
        mem::take(&mut self.events)
    }

    /// Ends the turn because the session does. To be called when the recogniser has said its last.
    pub fn end(&mut self, moment: Moment) -> Vec<TurnEvent> {
        if let Some(turn) = self.turn.take() {
            self.close(turn, TurnEndReason::SessionEnd, None, moment);
        }
        mem::take(&mut self.events)
    }

    fn speech_begins(&mut self, at: Duration, moment: Moment) {
        let silence = self.silence_until(at);
        self.voice = Voice::Speech;
        match self.turn.take() {
            None => {
                let turn = self.open(at, moment);
                self.turn = Some(turn);
            }
            Some(mut turn) => {
                if mem::replace(&mut turn.voiced, true) {
                    self.tell(VoiceEventKind::SpeechResumed, at, silence, None);
                } else {
                    self.tell(VoiceEventKind::SpeechStart, at, None, None);
                }
                // Later speech extends a turn, unless it is too long or the provider has ended it and owes its final.
                let stays = match turn.ending {
                    Some(TurnEndReason::Provider) => !turn.partial.is_empty(),
                    reason => reason == Some(TurnEndReason::MaxTurn),
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
        // What is left of speech after its turn was ended by the provider is nobody's pause.
        if let Some(turn) = self.turn.take_if(|turn| turn.voiced) {
            self.tell(VoiceEventKind::SilenceDetected, since, None, None);
            self.go_on(turn, moment);
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
        if turn.ending == Some(TurnEndReason::Timeout) && self.speech_goes_on(&turn, moment) {
            turn.ending = None;
        }
        let reason = match turn.ending {
            None if self.has_finished(&turn) => Some(TurnEndReason::Silence),
            None if turn.text.len() >= LONGEST_TURN_BYTES => Some(TurnEndReason::MaxTurn),
            ending => ending,
        };
        match reason {
            Some(reason) => self.close(turn, reason, Some(segment), moment),
            None => {
                self.events.push(result(segment, true, None));
                self.go_on(turn, moment);
            }
        }
    }

    /// The provider's own flag. It ends what has its text; otherwise the final is still to come, or it was a noise that
    /// lapses at the deadline.
    fn provider_ends(&mut self, moment: Moment) {
        if mem::take(&mut self.flag_outstanding) {
            return;
        }
        let Some(mut turn) = self.turn.take() else {
            return;
        };
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

    /// What the recogniser was hearing has come to nothing.
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
            self.events
                .push(result(Transcript::default(), false, None));
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

    /// Ends a turn whose time is up: at once, or with the final of what the recogniser must still be holding.
    fn end_with_all_text(&mut self, mut turn: Turn, reason: TurnEndReason, moment: Moment) {
        let held = match self.voice {
            Voice::Speech => true,
            Voice::Pause { .. } => turn.text.is_empty(),
            Voice::Silence { .. } => false,
        };
        if held || !turn.partial.is_empty() {
            self.events.push(TurnEvent::Finalize);
            self.await_final(&mut turn, reason, moment);
            self.turn = Some(turn);
        } else {
            self.close(turn, reason, None, moment);
        }
    }

    /// Tells the one end of a turn, `segment` being its last final where that was not told yet.
    fn close(
        &mut self,
        turn: Turn,
        reason: TurnEndReason,
        segment: Option<Transcript>,
        moment: Moment,
    ) {
        self.flag_outstanding = reason != TurnEndReason::Provider;
        if !turn.text.is_empty() {
            let segment = segment.unwrap_or_else(|| Transcript {
                confidence: turn.confidence.mean(),
                language: turn.language,
                ..Transcript::default()
            });
            self.events.push(result(segment, true, Some(turn.text)));
        }
        let silence = self
            .silence_until(moment.heard)
            .filter(|_| turn.voiced);
        self.tell(VoiceEventKind::TurnEnd, moment.heard, silence, Some(reason));
        // Whoever is cut short goes on speaking. After the provider's flag it is more likely the tail of the last word.
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
            text: String::new(),
            confidence: MeanConfidence::default(),
            language: None,
            partial: String::new(),
            reach: Duration::ZERO,
            voiced,
            deadline: self.deadline(moment.now),
            heard_before: moment.heard,
            must_end: max_turn.and_then(|max| moment.now.checked_add(max)),
            ending: None,
        }
    }

    fn turn_or_new(&mut self, moment: Moment) -> Turn {
        match self.turn.take() {
            Some(turn) => turn,
            None => self.open(moment.heard, moment),
        }
    }

    /// Something was said or understood: the deadline moves, unless it is that of a turn that has ended already.
    fn go_on(&mut self, mut turn: Turn, moment: Moment) {
        if turn.ending.is_none() {
            turn.deadline = self.deadline(moment.now);
            turn.heard_before = moment.heard;
        }
        self.turn = Some(turn);
    }

    fn await_final(&self, turn: &mut Turn, reason: TurnEndReason, moment: Moment) {
        turn.ending = Some(reason);
        turn.deadline = moment.now.checked_add(self.settings.speech_final_timeout);
        turn.heard_before = moment.heard;
    }

    /// When nothing new is too long ago. While somebody speaks, it is the time to see whether audio still comes.
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

    /// Whether silence has lasted after speech that is all understood. A silence in which no speech was heard before
    /// proves nothing: it may be too soft for the threshold.
    fn has_finished(&self, turn: &Turn) -> bool {
        match self.voice {
            Voice::Silence { since } => turn.voiced && turn.is_complete() && turn.reach >= since,
            Voice::Speech | Voice::Pause { .. } => false,
        }
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
        // An onset is known a little after it happened, perhaps after a deadline in between.
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
    /// Whether there is text and no more of it is on the way, as far as the recogniser has said.
    fn is_complete(&self) -> bool {
        !self.text.is_empty() && self.partial.is_empty()
    }

    /// Adds a final that has come when `heard` had been heard.
    fn add(&mut self, segment: &Transcript, heard: Duration) {
        self.partial.clear();
        join(&mut self.text, &segment.text);
        self.confidence.add(segment);
        if segment.language.is_some() {
            self.language.clone_from(&segment.language);
        }
        let last_word = segment.words.last();
        let end = last_word.and_then(|word| Duration::try_from_secs_f64(word.end).ok());
        // Without times, a final covers at most what was heard when it came.
        let reach = end.map_or(heard, |end| end.saturating_add(WORD_SLACK));
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

fn result(segment: Transcript, is_final: bool, turn_transcript: Option<String>) -> TurnEvent {
    TurnEvent::Result(SttResult {
        transcript: segment.text,
        is_final,
        is_speech_final: turn_transcript.is_some(),
        confidence: segment.confidence,
        turn_transcript,
        words: segment.words,
        language: segment.language,
    })
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
