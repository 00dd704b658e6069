//! Speech recognition of one speaker, the client of a session or a participant of its room: when a recogniser is started,
//! started again, replaced by a fallback, handed over to the next and given up on, and what becomes of its transcripts and
//! of voice activity: turns, barge-in, and the messages about them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::restarts::{RestartPolicy, Restarts, jitter};
use crate::session::audio_input::InputEvent;
use crate::session::backchannel::{self, BackchannelDetector, Phrases, SpeechSound};
use crate::session::barge_in::{BargeInDetector, InterruptionMode, InterruptionReason, Step};
use crate::session::error_codes::{Refusal, of_provider};
use crate::session::misuse;
use crate::session::protocol::{
    ErrorCode, ListenConfig, Origin, ServerMessage, TurnModelChoice, VadConfig, WarningCode,
};
use crate::session::stt_handover::{Draining, SttHandover};
use crate::session::turn::{Answer, Manner, ModelUse, Moment, TurnDetector, TurnEvent};
use crate::stt::{SttNews, SttReport};
use vivavoce_audio::rate_check::WrongRate;
use vivavoce_audio::vad::VadEvent;
use vivavoce_seams::{ErrorKind, ProviderError, SttEvent, Transcript};
use vivavoce_telemetry::metrics;

/// The most voice activity that is kept until the first config is in force: more than ten seconds of audio can bring.
const MAX_EARLY: usize = 256;
/// A recogniser that has lasted this long has worked, even if there was nothing to transcribe.
const PROVEN: Duration = Duration::from_secs(1);

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Output {
    /// Send this to the client.
    Tell(ServerMessage),
    /// Start a recogniser over the audio of this config.
    Start {
        /// Names it in its reports.
        attempt: u32,
        config: u64,
        listen: ListenConfig,
    },
    /// Let a recogniser drain the audio that it has.
    End { attempt: u32 },
    /// End a recogniser that drains at once.
    Stop { attempt: u32 },
    /// Request a final from the recogniser.
    Finalize,
    /// Ask the model whether the speaker has finished; [`RecogniserMachine::answered`] takes its answer.
    AskModel {
        /// Numbers the question.
        question: u64,
        /// Where in the session's audio the turn begins.
        since: Duration,
    },
    /// Let playback yield to the speaker.
    Yield(InterruptionMode),
    /// Let playback go on.
    Resume,
    /// Cut playback.
    Cut,
    /// The recogniser of the config that is being prepared is ready: [`RecogniserMachine::commit`] may follow.
    Ready,
    /// None of the recognisers of that config can be opened.
    Failed(Refusal),
}

/// What the server has for the turns of its sessions.
#[derive(Debug, Clone, Default)]
pub struct TurnResources {
    /// Whether a model is installed that hears whether a speaker has finished.
    pub has_model: bool,
    /// The backchannels of each language.
    pub backchannels: Arc<backchannel::Lists>,
}

#[derive(Debug, Default)]
pub struct RecogniserMachine {
    resources: TurnResources,
    current: Option<Recogniser>,
    /// Of the config that is being prepared.
    next: Option<Next>,
    handover: SttHandover,
    vad: VadConfig,
    turns: Option<TurnDetector>,
    barge_in: BargeInDetector,
    backchannels: BackchannelDetector,
    /// Those of the languages that are spoken.
    phrases: Phrases,
    /// Whether speech is being played that may be cut.
    playing: bool,
    /// Whether speech is being played.
    speaks: bool,
    /// How much audio the session has heard.
    heard: Duration,
    /// Voice activity before the first config was in force.
    early: Vec<(VadEvent, Moment)>,
    attempts: u32,
    is_ending: bool,
    /// What is wrong with the rate of the sound, which was told.
    wrong_rate: Option<WrongRate>,
    outputs: Vec<Output>,
}

#[derive(Debug)]
struct Next {
    config: u64,
    listen: Option<ListenConfig>,
    manners: Vec<Manner>,
    opening: Option<Opening>,
}

/// A recogniser that is being opened.
#[derive(Debug, Clone, Copy)]
struct Opening {
    attempt: u32,
    choice: usize,
}

/// The recogniser in force, started again when it fails.
#[derive(Debug)]
struct Recogniser {
    /// The config whose audio it is sent.
    config: u64,
    listen: ListenConfig,
    /// How each of the configured recognisers ends what it hears.
    manners: Vec<Manner>,
    /// Its position among the session's recognisers: the number of its first attempt.
    order: u32,
    attempt: u32,
    provider: String,
    restarts: Restarts,
    restart_at: Option<Instant>,
    /// Whether the client knows that it is away.
    away: bool,
    /// How much dropped audio the client knows of.
    lost_told: Duration,
    /// Given up on.
    failed: bool,
    /// Which of the configured recognisers it is: 0, or a fallback.
    choice: usize,
    /// Those that will never work, however often they are tried, as bits.
    hopeless: u8,
    /// Whether the current attempt has worked: the first one by opening, which the config waited for. Some recognisers
    /// refuse only the audio that they are sent, so that for later ones opening alone proves nothing.
    works: bool,
    /// When the current attempt was opened.
    opened_at: Option<Instant>,
}

impl Recogniser {
    const fn is_running(&self) -> bool {
        self.restart_at.is_none() && !self.failed
    }

    /// Whether the current attempt has worked; the next one has not yet.
    fn take_works(&mut self, error: &ProviderError, now: Instant) -> bool {
        let opened = self.opened_at.take();
        let lasted = opened.is_some_and(|at| now.saturating_duration_since(at) >= PROVEN);
        // One that was silent until somebody lost patience has not worked, however long that took.
        let was_silent = error.kind == ErrorKind::Timeout;
        std::mem::take(&mut self.works) || (lasted && !was_silent)
    }

    /// Which recogniser is tried next after this error: the same if it has worked and may do so again, else the next in
    /// order, the first again after the last. `None` if none may.
    fn next_choice(&mut self, error: &ProviderError, worked: bool) -> Option<usize> {
        let count = self.listen.choices();
        let hopeless = matches!(
            error.kind,
            ErrorKind::Auth
                | ErrorKind::NoCredential
                | ErrorKind::InvalidRequest
                | ErrorKind::Quota
        );
        if hopeless {
            self.hopeless |= 1 << self.choice;
        } else if worked || count == 1 {
            return Some(self.choice);
        }
        let mut others = (1..=count).map(|step| (self.choice + step) % count);
        others.find(|choice| self.hopeless & (1 << choice) == 0)
    }

    fn event(&self, state: &'static str, message: String) -> Output {
        Output::Tell(stt_event(state, &self.provider, message))
    }
}

fn stt_event(state: &'static str, provider: &str, message: String) -> ServerMessage {
    ServerMessage::provider_event("stt", state, provider, message)
}

impl RecogniserMachine {
    pub fn new(resources: TurnResources) -> Self {
        Self {
            resources,
            ..Self::default()
        }
    }

    fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Takes what is being played, and how much audio the session has heard.
    pub const fn set_playing(&mut self, output: OutputState, heard: Duration) {
        self.playing = output.is_interruptible;
        self.speaks = output.speaks;
        self.heard = heard;
    }

    /// Whether nobody speaks, no words are owed, and no recogniser is being replaced.
    pub fn is_quiet(&self, now: Instant) -> bool {
        let mut turns = self.turns.iter();
        self.next.is_none() && turns.all(|turns| turns.is_idle(now))
    }

    /// Whether a recogniser is in force that this config would replace. One that was given up on is not replaced: the next
    /// one transcribes the audio that was kept for it.
    pub fn would_replace(&self, listen: Option<&ListenConfig>) -> bool {
        let current = self.current.as_ref().filter(|stt| !stt.failed);
        current.is_some_and(|stt| Some(&stt.listen) != listen)
    }

    /// Opens a recogniser for a config, unless the one in force `is_sent` its audio already. [`Output::Ready`] or
    /// [`Output::Failed`] follows. `manners` is how each of its recognisers ends what it hears.
    pub fn prepare(
        &mut self,
        config: u64,
        listen: Option<ListenConfig>,
        manners: Vec<Manner>,
        is_sent: bool,
    ) -> Vec<Output> {
        let goes_on = self.current.as_ref().is_some_and(|stt| !stt.failed);
        let opens = listen.is_some() && !(goes_on && is_sent);
        self.next = Some(Next {
            config,
            listen,
            manners,
            opening: None,
        });
        if opens {
            self.open(0);
        } else {
            self.outputs.push(Output::Ready);
        }
        self.take()
    }

    /// Opens one of the recognisers of the config that is being prepared.
    fn open(&mut self, choice: usize) {
        let Some(next) = &mut self.next else { return };
        let Some(listen) = &next.listen else { return };
        self.attempts += 1;
        let attempt = self.attempts;
        next.opening = Some(Opening { attempt, choice });
        self.outputs.push(Output::Start {
            attempt,
            config: next.config,
            listen: listen.choice(choice),
        });
    }

    /// The config that is being prepared will not be carried out.
    pub fn abandon(&mut self) {
        self.next = None;
        self.early.clear();
    }

    /// The config that was prepared is in force. The recogniser that it replaces drains.
    pub fn commit(&mut self, vad: VadConfig, moment: Moment) -> Vec<Output> {
        let Some(next) = self.next.take() else {
            return Vec::new();
        };
        if (next.opening.is_some() || next.listen.is_none())
            && let Some(old) = self.current.take()
        {
            self.retire(&old, moment);
        }
        let languages = next.listen.iter().flat_map(ListenConfig::spoken);
        self.phrases = self.resources.backchannels.of(languages);
        let phrases = self.phrases.clone();
        let steps = self.barge_in.configure(&vad, phrases, self.heard);
        self.apply(steps);
        match (next.listen, next.opening, &mut self.current) {
            (Some(listen), Some(opening), current) => {
                *current = Some(Recogniser {
                    config: next.config,
                    provider: listen.choice(opening.choice).provider,
                    listen,
                    manners: next.manners,
                    order: opening.attempt,
                    attempt: opening.attempt,
                    restarts: Restarts::new(RestartPolicy::RECOGNISER),
                    restart_at: None,
                    away: false,
                    lost_told: Duration::ZERO,
                    failed: false,
                    choice: opening.choice,
                    hopeless: 0,
                    works: true,
                    opened_at: None,
                });
            }
            (Some(listen), None, Some(current)) => {
                current.config = next.config;
                current.listen = listen;
                current.manners = next.manners;
            }
            _ => {}
        }
        self.vad = vad;
        self.set_turns();
        self.take()
    }

    /// The voice activity that came before the first config was in force.
    pub fn replay_early(&mut self) -> Vec<Output> {
        for (event, moment) in std::mem::take(&mut self.early) {
            self.voice(event, None, moment);
        }
        self.take()
    }

    /// Lets a recogniser that was replaced drain. One that waits to be started again is started for it.
    fn retire(&mut self, old: &Recogniser, moment: Moment) {
        let listen = old.listen.choice(old.choice);
        let mut attempt = old.attempt;
        if old.restart_at.is_some() && !old.failed {
            self.attempts += 1;
            attempt = self.attempts;
            self.outputs.push(Output::Start {
                attempt,
                config: old.config,
                listen: listen.clone(),
            });
        }
        self.outputs.push(Output::End { attempt });
        if old.failed {
            return;
        }
        let one = (old.order, attempt);
        if let Some(oldest) = self.handover.retire(one, old.config, listen, moment.now) {
            let attempt = oldest.attempt;
            self.outputs.push(Output::Stop { attempt });
            let why = "the last words before an earlier change could not be transcribed: there were too many changes";
            self.last_words_lost(&oldest, why.to_owned());
            self.release_waiting(moment);
        }
    }

    /// The end of a turn depends on the config and on the recogniser.
    fn set_turns(&mut self) {
        let Some(stt) = &self.current else { return };
        let mut settings = self.vad.turn_settings();
        let manner = stt.manners.get(stt.choice);
        if let Some(manner) = manner {
            settings.final_patience = manner.final_patience;
        }
        let flags_pauses = manner.is_some_and(|manner| manner.ends_at_pauses);
        settings.model = match self.vad.turn_model {
            _ if !self.resources.has_model || !self.vad.enabled => ModelUse::Off,
            TurnModelChoice::Silence => ModelUse::Off,
            _ if flags_pauses => ModelUse::OverPauses,
            TurnModelChoice::Installed => ModelUse::Beside,
            TurnModelChoice::SmartTurn => ModelUse::First,
        };
        match &mut self.turns {
            Some(turns) => turns.set(settings),
            turns => *turns = Some(TurnDetector::new(settings)),
        }
    }

    /// Takes a report of a recogniser. `lost` is how much audio was dropped so far because none could be sent it.
    pub fn report(&mut self, report: SttReport, lost: Duration, moment: Moment) -> Vec<Output> {
        let SttReport { attempt, news } = report;
        let opening = self.next.as_ref().and_then(|next| next.opening);
        if let Some(opening) = opening.filter(|opening| opening.attempt == attempt) {
            match news {
                SttNews::Opened => self.outputs.push(Output::Ready),
                SttNews::Heard(_) => {}
                SttNews::Stopped(outcome) => self.opening_failed(opening, outcome),
            }
            return self.take();
        }
        self.tell_loss(attempt, lost);
        match news {
            SttNews::Heard(event) => self.transcribed(attempt, event, moment),
            SttNews::Opened => self.recovered(attempt, lost, moment),
            SttNews::Stopped(outcome) if self.handover.order_of(attempt).is_some() => {
                self.draining_stopped(attempt, outcome, moment);
            }
            SttNews::Stopped(outcome) => self.stopped(attempt, outcome, moment),
        }
        self.take()
    }

    /// A recogniser of the config that is being prepared cannot be opened: the next fallback is tried.
    fn opening_failed(&mut self, opening: Opening, outcome: Result<(), ProviderError>) {
        let error = outcome.err().unwrap_or_else(ended_early);
        let listen = self.next.as_ref().and_then(|next| next.listen.as_ref());
        let choice = opening.choice + 1;
        let fallback = listen.filter(|listen| choice < listen.choices());
        let Some(provider) = fallback.map(|listen| listen.choice(choice).provider) else {
            let refusal = of_provider(&error, ErrorCode::SttFailed);
            return self.outputs.push(Output::Failed(refusal));
        };
        self.tell(stt_event("switched", &provider, error.to_string()));
        self.open(choice);
    }

    /// A recogniser that drains has finished, or needs another attempt to.
    fn draining_stopped(
        &mut self,
        attempt: u32,
        outcome: Result<(), ProviderError>,
        moment: Moment,
    ) {
        let next = self.attempts + 1;
        if outcome.is_err()
            && let Some(draining) = self.handover.revive(attempt, next)
        {
            self.attempts = next;
            let start = Output::Start {
                attempt: next,
                config: draining.config,
                listen: draining.listen.clone(),
            };
            return self.outputs.extend([start, Output::End { attempt: next }]);
        }
        let draining = self.handover.ended(attempt);
        if let (Some(draining), Err(error)) = (draining, outcome) {
            self.last_words_lost(&draining, error.message);
        }
        self.release_waiting(moment);
    }

    fn last_words_lost(&mut self, draining: &Draining, why: String) {
        self.tell(stt_event("failed", &draining.listen.provider, why));
    }

    /// Takes the events that no draining recogniser holds back any more.
    fn release_waiting(&mut self, moment: Moment) {
        for (event, heard) in self.handover.due() {
            self.understood(event, Moment { heard, ..moment });
        }
    }

    fn transcribed(&mut self, attempt: u32, mut event: SttEvent, moment: Moment) {
        let current = self.current.as_mut();
        let order = match current.filter(|stt| stt.attempt == attempt) {
            Some(stt) => {
                stt.works = true;
                let of_fallback = stt.choice.checked_sub(1);
                let listen = of_fallback.and_then(|index| stt.listen.fallback.get(index));
                let listen = listen.unwrap_or(&stt.listen);
                drop_if_uncertain(&mut event, listen);
                if matches!(&event, SttEvent::Final(heard) if !heard.text.is_empty()) {
                    stt.restarts.forgive(moment.now.into());
                }
                stt.order
            }
            // The end of the audio of a draining recogniser is not the end of a turn.
            None if matches!(event, SttEvent::EndOfSpeech) => return,
            None => {
                if let Some(listen) = self.handover.listen_of(attempt) {
                    drop_if_uncertain(&mut event, listen);
                }
                self.handover.order_of(attempt).unwrap_or_default()
            }
        };
        if let Some(event) = self.handover.take(order, event, moment.heard) {
            self.understood(event, moment);
        }
        self.release_waiting(moment);
    }

    fn understood(&mut self, event: SttEvent, moment: Moment) {
        if let SttEvent::UtteranceLost(error) = &event {
            let refusal = of_provider(error, ErrorCode::SttFailed);
            self.refuse(refusal.code, refusal.message);
        }
        let steps = self.barge_in.stt(&event, moment, self.playing);
        self.apply(steps);
        let is_backchannel = match &event {
            SttEvent::Final(segment) => {
                let (phrases, heard) = (&self.phrases, moment.heard);
                let detector = &mut self.backchannels;
                detector.is_backchannel(segment, phrases, heard, self.speaks)
            }
            _ => false,
        };
        if is_backchannel {
            metrics::backchannel_heard();
        }
        if let Some(turns) = &mut self.turns {
            let events = match event {
                SttEvent::Final(segment) if is_backchannel => turns.backchannel(segment, moment),
                event => turns.stt(event, moment),
            };
            self.turned(events);
        }
    }

    /// The client says that the speaker has finished.
    fn client_ends(&mut self, moment: Moment) -> Vec<Output> {
        if let Some(turns) = &mut self.turns {
            let events = turns.client_ends(moment);
            self.turned(events);
        }
        self.take()
    }

    fn turned(&mut self, events: Vec<TurnEvent>) {
        self.outputs
            .extend(events.into_iter().map(|event| match event {
                TurnEvent::Result(result) => Output::Tell(ServerMessage::SttResult(result)),
                TurnEvent::Voice(event) => Output::Tell(ServerMessage::VadEvent(event)),
                TurnEvent::Finalize => Output::Finalize,
                TurnEvent::AskModel { question, since } => Output::AskModel { question, since },
            }));
    }

    fn apply(&mut self, steps: Vec<Step>) {
        self.outputs
            .extend(steps.into_iter().map(|step| match step {
                Step::Yield(mode) => Output::Yield(mode),
                Step::Resume => Output::Resume,
                Step::Cut => Output::Cut,
                Step::Tell(event) => Output::Tell(ServerMessage::Interruption(event)),
            }));
    }

    /// Tells the client of dropped audio; what was dropped while the recogniser was away is told when it is back.
    fn tell_loss(&mut self, attempt: u32, lost: Duration) {
        let current = self.current.as_mut();
        let Some(stt) = current.filter(|stt| stt.attempt == attempt && !stt.away) else {
            return;
        };
        let more = lost.saturating_sub(std::mem::replace(&mut stt.lost_told, lost));
        if !more.is_zero() {
            let ms = more.as_millis();
            let message =
                format!("{ms} ms of audio came faster than it can be transcribed and were dropped");
            self.refuse(ErrorCode::Overloaded, message);
        }
    }

    fn recovered(&mut self, attempt: u32, lost: Duration, moment: Moment) {
        let current = self.current.as_mut();
        let Some(stt) = current.filter(|stt| stt.attempt == attempt) else {
            return;
        };
        stt.opened_at = Some(moment.now);
        if std::mem::take(&mut stt.away) {
            let lost = lost.saturating_sub(std::mem::replace(&mut stt.lost_told, lost));
            let message = if lost.is_zero() {
                "everything that was said meanwhile is transcribed".to_owned()
            } else {
                format!("{} ms of audio had to be dropped", lost.as_millis())
            };
            let event = stt.event("recovered", message);
            self.outputs.push(event);
        }
    }

    fn stopped(&mut self, attempt: u32, outcome: Result<(), ProviderError>, moment: Moment) {
        let current = self.current.as_mut();
        let Some(stt) = current.filter(|stt| stt.attempt == attempt) else {
            return;
        };
        if self.is_ending {
            self.current = None;
            return;
        }
        let error = outcome.err().unwrap_or_else(ended_early);
        let worked = stt.take_works(&error, moment.now);
        let next = stt.next_choice(&error, worked);
        let delay = next.and_then(|_| stt.restarts.next(moment.now.into(), jitter()));
        let (Some(next), Some(delay)) = (next, delay) else {
            stt.failed = true;
            let refusal = of_provider(&error, ErrorCode::SttFailed);
            let failed = stt.event("failed", error.message);
            self.outputs.push(failed);
            let message = refusal.message;
            let message = format!("{message}; nothing is transcribed until config is sent again");
            return self.refuse(ErrorCode::SttFailed, message);
        };
        // A fallback is tried without delay, and where there are any, so is the first attempt after one that has worked.
        let has_fallbacks = stt.listen.choices() > 1;
        let at_once = next > stt.choice || (has_fallbacks && next == stt.choice && worked);
        let delay = if at_once { Duration::ZERO } else { delay };
        stt.restart_at = Some(moment.now + delay);
        let was_away = std::mem::replace(&mut stt.away, true);
        if std::mem::replace(&mut stt.choice, next) != next {
            stt.provider = stt.listen.choice(next).provider;
            let switched = stt.event("switched", error.to_string());
            self.outputs.push(switched);
            self.set_turns();
        } else if !was_away {
            let reconnecting = stt.event("reconnecting", error.message);
            self.outputs.push(reconnecting);
        }
    }

    /// Takes an event of the audio input.
    pub fn input(&mut self, event: InputEvent, moment: Moment) -> Vec<Output> {
        match event {
            InputEvent::Voice { event, sound } => self.voice(event, sound, moment),
            InputEvent::TurnEnds => return self.client_ends(moment),
            InputEvent::Undecodable(problem) => {
                self.refuse(ErrorCode::InvalidMessage, format!("binary: {problem}"));
            }
            InputEvent::WrongRate { wrong, said } => {
                if let Some(message) = misuse::wrong_rate(wrong, said)
                    && self.wrong_rate.replace(wrong).is_none()
                {
                    self.tell(ServerMessage::Warning {
                        message,
                        code: WarningCode::WrongSampleRate,
                        in_reply_to: Origin::of("binary").message,
                        id: None,
                    });
                }
            }
        }
        self.take()
    }

    fn voice(&mut self, event: VadEvent, sound: Option<SpeechSound>, moment: Moment) {
        self.backchannels.vad(event, sound, self.speaks);
        if let Some(turns) = &mut self.turns {
            let events = turns.vad(event, moment);
            self.turned(events);
            let steps = self.barge_in.vad(event, moment, self.playing);
            self.apply(steps);
        } else if self.early.len() < MAX_EARLY {
            self.early.push((event, moment));
        }
    }

    /// Takes the model's answer to a question ([`Output::AskModel`]).
    pub fn answered(&mut self, question: u64, answer: Answer, moment: Moment) -> Vec<Output> {
        if let Some(turns) = &mut self.turns {
            let events = turns.answer(question, answer, moment);
            self.turned(events);
        }
        self.take()
    }

    /// Whether somebody interrupts is no longer the question.
    pub fn abandon_barge_in(&mut self, reason: InterruptionReason) -> Vec<Output> {
        let steps = self.barge_in.abandon(reason, self.heard);
        self.apply(steps);
        self.take()
    }

    /// When [`Self::tick`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.current.as_ref().and_then(|stt| stt.restart_at),
            self.handover.deadline(),
            self.turns.as_ref().and_then(TurnDetector::next_deadline),
            self.barge_in.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Lets time pass.
    pub fn tick(&mut self, moment: Moment) -> Vec<Output> {
        if let Some(turns) = &mut self.turns {
            let events = turns.tick(moment);
            self.turned(events);
        }
        for draining in self.handover.give_up(moment.now) {
            let why = "the last words before the change could not be transcribed in time";
            self.last_words_lost(&draining, why.to_owned());
            self.release_waiting(moment);
        }
        let steps = self.barge_in.tick(moment, self.playing);
        self.apply(steps);
        let is_due =
            |stt: &mut Recogniser| stt.restart_at.take_if(|at| *at <= moment.now).is_some();
        if let Some(stt) = &mut self.current
            && is_due(stt)
        {
            self.attempts += 1;
            stt.attempt = self.attempts;
            self.outputs.push(Output::Start {
                attempt: stt.attempt,
                config: stt.config,
                listen: stt.listen.choice(stt.choice),
            });
        }
        self.take()
    }

    /// The session ends: the recogniser drains and is not started again.
    pub fn end(&mut self) -> Vec<Output> {
        self.is_ending = true;
        self.next = None;
        if let Some(attempt) = self
            .current
            .as_ref()
            .filter(|stt| stt.is_running())
            .map(|stt| stt.attempt)
        {
            self.outputs.push(Output::End { attempt });
        } else {
            self.current = None;
        }
        self.take()
    }

    /// Whether all transcripts have come, once it [ends](Self::end).
    pub fn is_drained(&self) -> bool {
        self.current.is_none() && self.handover.is_over()
    }

    /// Whether a recogniser still drains the audio of this config.
    pub fn drains(&self, config: u64) -> bool {
        self.handover.needs(config)
    }

    /// Nothing is waited for any longer: the last transcripts and turns are told.
    pub fn close(&mut self, moment: Moment) -> Vec<Output> {
        self.handover.end();
        self.release_waiting(moment);
        if let Some(turns) = &mut self.turns {
            let events = turns.end(moment);
            self.turned(events);
        }
        self.take()
    }

    fn tell(&mut self, message: ServerMessage) {
        self.outputs.push(Output::Tell(message));
    }

    fn refuse(&mut self, code: ErrorCode, message: impl Into<String>) {
        self.tell(ServerMessage::refusal(code, message));
    }
}

/// A final below the confidence that was asked for becomes an empty one: there is nothing more to come of it.
fn drop_if_uncertain(event: &mut SttEvent, listen: &ListenConfig) {
    let SttEvent::Final(segment) = event else {
        return;
    };
    let is_below = |confidence: f32| confidence < listen.min_confidence;
    if !segment.text.is_empty() && segment.confidence.is_some_and(is_below) {
        metrics::final_dropped();
        *segment = Transcript {
            end: segment.end,
            ..Transcript::default()
        };
    }
}

/// What is being played.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutputState {
    /// Speech that may be cut.
    pub is_interruptible: bool,
    /// Speech.
    pub speaks: bool,
}

fn ended_early() -> ProviderError {
    let problem = "the recogniser has closed the stream early";
    ProviderError::new("stt", ErrorKind::Protocol, problem)
}
