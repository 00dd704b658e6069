//! What a session decides, as pure state machines: [`config`] knows which message is carried out when and what is in force,
//! [`recogniser`] and [`synthesiser`] supervise the two providers and turn their reports into messages, [`ending`] closes
//! the session in order. [`Session`] connects them. Audio does not come here and time does not pass by itself: the actor
//! around it ([`super::SessionActor`]) brings every input and carries out the [`Effect`]s.

pub mod config;
pub mod ending;
pub mod recogniser;
pub mod synthesiser;

use std::time::{Duration, Instant};

use bytestring::ByteString;
use serde_json::Value;

use super::audio_input::InputEvent;
use super::barge_in::{InterruptionMode, InterruptionReason};
use super::error_codes::Refusal;
use super::loading::Clip;
use super::playback::Speak;
use super::protocol::{
    AgentConfig, CallCommand, ClientMessage, ErrorCode, ListenConfig, LoadingAudio, Origin,
    RoomConfig, RoomOfSession, SendMessage, ServerMessage, SessionParams, StreamId, VadConfig,
};
use super::turn::{Answer, Manner, Moment};
use crate::responder::{FunctionResult, Respond};
use crate::stt::SttReport;
use crate::tts::TtsReport;
use config::{AUDIO_DISABLED, Admission, ConfigMachine};
use ending::Ending;
use recogniser::{Output, OutputState, RecogniserMachine, TurnResources};
use synthesiser::SynthesiserMachine;
use vivavoce_audio::{Layout, SampleRate};
use vivavoce_core::json::Misfit;
use vivavoce_seams::rooms::link::Ending as RoomEnding;
use vivavoce_synthesis::SpeechConfig;

/// How long the last transcripts may take when the server ends a session.
pub const LAST_WORDS: Duration = Duration::from_millis(2_500);
/// How much earlier those of participants must be there, so that they are sent before the socket closes.
const PARTICIPANTS_EARLIER: Duration = Duration::from_millis(100);

/// A message of the client.
#[derive(Debug)]
pub struct Command {
    /// Its number, if it is a config.
    pub config: u64,
    pub message: ClientMessage,
    /// How a config or an update of it was said, where that may be said again at another server.
    pub text: Option<ByteString>,
    /// Its length on the wire.
    pub bytes: usize,
}

/// What has to be prepared for a config.
#[derive(Debug)]
pub struct Preparation {
    pub config: u64,
    /// The session's name: the one it has, or the one it shall have.
    pub stream_id: StreamId,
    pub params: SessionParams,
    pub loading_audio: Option<LoadingAudio>,
    /// An `update_config`: its audio comes where that of the config in force comes.
    pub is_update: bool,
    /// It replaces the recogniser in force, though the format of its audio may be the same.
    pub replaces_recogniser: bool,
}

/// What was found out about a config before any provider is started.
#[derive(Debug)]
pub struct Prepared {
    /// The loading sound, if one was given.
    pub clip: Option<Result<Clip, Misfit>>,
    /// Whether the recogniser in force is sent the config's audio already.
    pub is_sent: bool,
    /// How each of the recognisers that it names ends what it hears.
    pub manners: Vec<Manner>,
    /// The room that was joined.
    pub room: Option<RoomOfSession>,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Send this to the client.
    Tell(ServerMessage),
    /// Find out whether a config can be carried out; the answer is [`Session::prepared`].
    Prepare(Box<Preparation>),
    /// The config is in force.
    Commit {
        config: u64,
        vad: VadConfig,
        /// Whether it is recorded, and the rates of both sides.
        recording: Option<(SampleRate, SampleRate)>,
        /// Whether the room's provider records it.
        egress: bool,
        /// Whether the session waits for its client when the socket breaks.
        resume: bool,
    },
    /// The config will not be carried out.
    Discard {
        config: u64,
    },
    /// Start a recogniser over the audio of this config.
    StartStt {
        /// Names it in its reports.
        attempt: u32,
        config: u64,
        listen: ListenConfig,
    },
    /// Let a recogniser drain the audio that it has.
    EndStt {
        attempt: u32,
    },
    /// End a recogniser that drains at once.
    StopStt {
        attempt: u32,
    },
    /// Let the recognisers of participants drain within this time; [`Session::participants_ended`] follows.
    EndParticipants(Duration),
    /// Request a final from the recogniser.
    Finalize,
    /// Ask the model whether the speaker has finished; [`Session::answered`] takes its answer.
    AskModel {
        /// Numbers the question.
        question: u64,
        /// Where in the session's audio the turn begins.
        since: Duration,
    },
    /// Lead the conversation like this from now on; `None`: do not.
    Lead(Option<Box<AgentConfig>>),
    /// Have the language model answer.
    Respond(Respond),
    /// Tell it what a function returned.
    FunctionResult(FunctionResult),
    /// Stop the output with everything that is queued, and begin one with this config; `None` ends it.
    SetOutput(Option<Box<SpeechConfig>>),
    /// Speak what is queued from now on with this config.
    ChangeVoice(Box<SpeechConfig>),
    /// Start a synthesiser for the output.
    StartTts {
        /// Names it in its reports.
        attempt: u32,
        speech: Box<SpeechConfig>,
    },
    /// The synthesiser has gone: fail the utterance that it was speaking.
    TtsLost,
    /// Set the loading sound.
    SetClip(Option<Clip>),
    /// Start or stop the loading sound.
    Load(bool),
    /// Record silence, or sound again.
    PauseRecording(bool),
    SendToRoom(SendMessage),
    Call(CallCommand),
    /// Apply what may change of the room's config.
    ChangeRoom(Box<RoomConfig>),
    /// Queue text.
    Speak(Speak),
    /// Cut speech.
    Clear,
    /// Cut the utterances with this id.
    ClearId(String),
    /// Let speech yield to somebody who may be interrupting it.
    Yield(InterruptionMode),
    /// Let it go on as it was.
    Resume,
    /// Close the socket.
    Close {
        code: u16,
        reason: &'static str,
    },
}

/// The session.
#[derive(Debug)]
pub struct Session {
    config: ConfigMachine,
    recogniser: RecogniserMachine,
    synthesiser: SynthesiserMachine,
    ending: Ending,
    effects: Vec<Effect>,
    /// Up to which config it is what it was at another server: its client knows of those before.
    taken_over: Option<u64>,
}

impl Session {
    /// How utterances are spoken that are queued now.
    pub fn voice(&self) -> Option<&SpeechConfig> {
        self.config.configured().ok()?.params.tts.as_ref()
    }

    /// A session whose socket has just been opened.
    pub fn new(now: Instant, config_timeout: Duration, resources: TurnResources) -> Self {
        Self {
            config: ConfigMachine::new(now, config_timeout),
            recogniser: RecogniserMachine::new(resources),
            synthesiser: SynthesiserMachine::default(),
            ending: Ending::default(),
            effects: Vec::new(),
            taken_over: None,
        }
    }

    /// The session was another server's: so many configs make it what it was there.
    pub const fn takes_over(&mut self, configs: u64) {
        self.taken_over = Some(configs);
    }

    /// Whether a config is one that the session had at another server.
    pub fn is_taken_over(&self, config: u64) -> bool {
        self.taken_over.is_some_and(|last| config <= last)
    }

    /// The messages that make another session what this one is; `None` where it cannot go on elsewhere.
    pub fn may_be_given(&self) -> Option<Vec<Value>> {
        if self.ending.has_begun() {
            return None;
        }
        self.config.said()
    }

    /// Whether nobody speaks, all words have come, and nothing is being changed.
    pub fn is_quiet(&self, now: Instant) -> bool {
        self.config.pending_number().is_none() && self.recogniser.is_quiet(now)
    }

    /// What is to be done now, in this order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub fn is_in_force(&self, config: u64) -> bool {
        let in_force = self.config.in_force();
        in_force.is_some_and(|known| known.config == config)
    }

    pub fn is_pending(&self, config: u64) -> bool {
        self.config.is_pending(config)
    }

    /// Whether a recogniser that was replaced still drains the audio of this config.
    pub fn drains(&self, config: u64) -> bool {
        self.recogniser.drains(config)
    }

    /// Takes a message; while a config is pending it waits.
    pub fn message(&mut self, command: Command) {
        if self.ending.has_begun() {
            return;
        }
        match self.config.admit(command) {
            Admission::Now(command) => self.carry_out(command),
            Admission::Waits => {}
            Admission::Refused(command) => {
                let origin = command.message.origin();
                if let ClientMessage::Config(_) = command.message {
                    let config = command.config;
                    self.effects.push(Effect::Discard { config });
                }
                let message = "too many messages wait for the config that is pending";
                let refusal = ServerMessage::refusal(ErrorCode::Overloaded, message);
                self.tell(refusal.answering(&origin));
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        let Command {
            config,
            message,
            text,
            ..
        } = command;
        let (origin, before) = (message.origin(), self.effects.len());
        self.carry_out_message(config, message, text);
        for effect in self.effects.iter_mut().skip(before) {
            if let Effect::Tell(told) = effect {
                told.answer(&origin);
            }
        }
    }

    fn carry_out_message(&mut self, config: u64, message: ClientMessage, text: Option<ByteString>) {
        match message {
            ClientMessage::Config(wanted) => match self.config.configure(config, *wanted, text) {
                Ok(()) => self.prepare(config),
                Err(refusal) => self.config_failed(config, refusal),
            },
            ClientMessage::UpdateConfig(update) => {
                match self.config.update(config, *update, text) {
                    Ok(()) => self.prepare(config),
                    Err(refusal) => self.refuse(refusal.code, refusal.message),
                }
            }
            ClientMessage::EndTurn => self.end_turn(),
            message => match self.action(message) {
                Ok(effect) => self.effects.push(effect),
                Err(refusal) => self.refuse(refusal.code, refusal.message),
            },
        }
    }

    /// The client says that the speaker has finished. The turn ends where its sound does, which the input tells.
    fn end_turn(&mut self) {
        let listens = match self.config.configured() {
            Ok(in_force) => in_force.params.stt.is_some(),
            Err(refusal) => return self.refuse(refusal.code, refusal.message),
        };
        if !listens {
            let problem = "end_turn: the session hears nobody, or each participant for themselves";
            self.refuse(ErrorCode::AudioDisabled, problem);
        }
    }

    /// What a message other than a config asks for.
    fn action(&mut self, message: ClientMessage) -> Result<Effect, Refusal> {
        let in_force = self.config.configured()?;
        let (has_room, has_clip) = (in_force.room.is_some(), in_force.clip.is_some());
        let speaks = in_force.params.tts.is_some();
        let is_led = in_force.params.agent.is_some();
        let records = in_force.params.records();
        let refused = |code, problem| Err(Refusal::new(code, problem));
        match message {
            ClientMessage::SendMessage(_) | ClientMessage::Call(_) if !has_room => {
                refused(ErrorCode::RtcNotConfigured, "the session is in no room")
            }
            ClientMessage::Respond(_) | ClientMessage::FunctionResult(_) if !is_led => refused(
                ErrorCode::InvalidMessage,
                "there is no language model: config has no agent",
            ),
            ClientMessage::Respond(respond) => Ok(Effect::Respond(respond)),
            ClientMessage::FunctionResult(result) => Ok(Effect::FunctionResult(result)),
            ClientMessage::SendMessage(message) => Ok(Effect::SendToRoom(message)),
            ClientMessage::Call(command) => Ok(Effect::Call(command)),
            ClientMessage::PauseRecording(_) if !records => refused(
                ErrorCode::RecordingUnavailable,
                "this session records nothing itself: it needs recording in config",
            ),
            ClientMessage::PauseRecording(paused) => Ok(Effect::PauseRecording(paused)),
            _ if !speaks => refused(ErrorCode::AudioDisabled, AUDIO_DISABLED),
            ClientMessage::Speak(_) if self.synthesiser.has_failed() => {
                refused(ErrorCode::TtsFailed, synthesiser::GIVEN_UP)
            }
            ClientMessage::Speak(speak) => {
                if speak.replace {
                    self.abandon_barge_in(InterruptionReason::Cleared);
                }
                Ok(Effect::Speak(speak))
            }
            ClientMessage::Clear { id: None } => {
                self.abandon_barge_in(InterruptionReason::Cleared);
                Ok(Effect::Clear)
            }
            // Whoever is interrupting what is being played goes on doing so, where that is something else.
            ClientMessage::Clear { id: Some(id) } => Ok(Effect::ClearId(id)),
            ClientMessage::LoadingStart | ClientMessage::LoadingStop if !has_clip => refused(
                ErrorCode::LoadingUnavailable,
                "there is no loading sound: it needs loading_audio in config, and linear16 output",
            ),
            ClientMessage::LoadingStart => Ok(Effect::Load(true)),
            ClientMessage::LoadingStop => Ok(Effect::Load(false)),
            ClientMessage::Resume(_)
            | ClientMessage::EndTurn
            | ClientMessage::Config(_)
            | ClientMessage::UpdateConfig(_) => {
                refused(ErrorCode::Internal, "a config is no action")
            }
        }
    }

    /// Has the pending config prepared.
    fn prepare(&mut self, config: u64) {
        let Some(pending) = self.config.pending(config) else {
            return;
        };
        let listen = pending.params.stt.as_ref();
        let preparation = Preparation {
            config,
            stream_id: pending.stream_id.clone(),
            replaces_recogniser: self.recogniser.would_replace(listen),
            params: pending.params.clone(),
            loading_audio: pending.loading_audio.take(),
            is_update: pending.is_update,
        };
        self.effects.push(Effect::Prepare(Box::new(preparation)));
    }

    fn config_failed(&mut self, config: u64, refusal: Refusal) {
        let message = match self.config.abandon() {
            Some(pending) if pending.is_update => "update_config",
            _ => "config",
        };
        self.recogniser.abandon();
        self.effects.push(Effect::Discard { config });
        let refusal = ServerMessage::refusal(refusal.code, refusal.message);
        self.tell(refusal.answering(&Origin::of(message)));
        if self.is_taken_over(config) {
            self.ending.close();
            let reason = "this server cannot go on with the session";
            self.effects.push(Effect::Close { code: 1011, reason });
        }
    }

    /// Takes what was found out about a config.
    pub fn prepared(&mut self, config: u64, prepared: Result<Prepared, Refusal>, moment: Moment) {
        let Some(pending) = self.config.pending(config) else {
            return;
        };
        let Prepared {
            clip,
            is_sent,
            manners,
            room,
        } = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                self.config_failed(config, refusal);
                return self.carry_on();
            }
        };
        pending.room = room;
        let listen = pending.params.stt.clone();
        match clip {
            Some(Ok(clip)) => pending.clip = Some(clip),
            Some(Err(misfit)) => {
                let code = ErrorCode::InvalidLoadingAudio;
                let refusal = ServerMessage::refusal(code, misfit.to_string());
                self.tell(refusal.answering(&Origin::of("config")));
            }
            None => {}
        }
        let outputs = self.recogniser.prepare(config, listen, manners, is_sent);
        self.follow(outputs, moment);
    }

    /// The recogniser of the pending config is ready: the config comes into force.
    fn commit(&mut self, moment: Moment) {
        let Some(change) = self.config.commit() else {
            return;
        };
        let Some(in_force) = self.config.in_force() else {
            return;
        };
        let (config, clip) = (in_force.config, in_force.clip.clone());
        let SessionParams {
            stt,
            tts,
            vad,
            rtc,
            agent,
            ..
        } = in_force.params.clone();
        let rate = |layout: Layout| layout.rate;
        // A room is recorded as it sounds, not as its recogniser hears it.
        let heard = stt.filter(|_| rtc.is_none());
        let heard = heard.map(|stt| stt.format.layout);
        let played = tts.as_ref().map(|tts| tts.format.layout);
        let rates = [heard, played].map(|layout| layout.map_or(SampleRate::HZ_48000, rate));
        self.effects.push(Effect::Commit {
            config,
            vad,
            recording: in_force.params.records().then_some(rates.into()),
            egress: in_force.params.room_for_egress().is_some(),
            resume: in_force.params.resume,
        });
        let outputs = self.recogniser.commit(vad, moment);
        self.follow(outputs, moment);
        let effects = self.synthesiser.configure(tts.as_ref(), change.is_update);
        let is_new_output = matches!(effects.first(), Some(Effect::SetOutput(_)));
        if is_new_output {
            self.abandon_barge_in(InterruptionReason::Cleared);
        }
        self.effects.extend(effects);
        if is_new_output || change.changes_clip {
            self.effects.push(Effect::SetClip(clip));
        }
        if let Some(rtc) = rtc.filter(|_| change.changes_room) {
            self.effects.push(Effect::ChangeRoom(Box::new(rtc)));
        }
        self.tell_ready();
        self.effects.push(Effect::Lead(agent.map(Box::new)));
        let outputs = self.recogniser.replay_early();
        self.follow(outputs, moment);
        self.carry_on();
    }

    /// The session has a new socket.
    pub fn resumed(&mut self) {
        self.tell_ready();
    }

    fn tell_ready(&mut self) {
        let in_force = self.config.in_force();
        let is_known = |config| self.taken_over.is_some_and(|last| config < last);
        if in_force.is_some_and(|in_force| is_known(in_force.config)) {
            return;
        }
        let room = in_force.map(|in_force| in_force.room.clone());
        if let (Some(stream_id), Some(room)) = (self.config.stream_id().cloned(), room) {
            // The token is added where it is made.
            let resume_token = String::new();
            self.tell(ServerMessage::Ready {
                stream_id,
                room,
                resume_token,
            });
        }
    }

    /// Carries out what waited for the config, up to the next one.
    fn carry_on(&mut self) {
        while let Some(command) = self.config.next() {
            self.carry_out(command);
        }
    }

    /// Does what the recogniser's machine has decided.
    fn follow(&mut self, outputs: Vec<Output>, moment: Moment) {
        for output in outputs {
            let effect = match output {
                Output::Tell(message) => Effect::Tell(message),
                Output::Start {
                    attempt,
                    config,
                    listen,
                } => Effect::StartStt {
                    attempt,
                    config,
                    listen,
                },
                Output::End { attempt } => Effect::EndStt { attempt },
                Output::Stop { attempt } => Effect::StopStt { attempt },
                Output::Finalize => Effect::Finalize,
                Output::AskModel { question, since } => Effect::AskModel { question, since },
                Output::Yield(mode) => Effect::Yield(mode),
                Output::Resume => Effect::Resume,
                Output::Cut => Effect::Clear,
                Output::Ready => {
                    self.commit(moment);
                    continue;
                }
                Output::Failed(refusal) => {
                    if let Some(config) = self.config.pending_number() {
                        self.config_failed(config, refusal);
                        self.carry_on();
                    }
                    continue;
                }
            };
            self.effects.push(effect);
        }
        if self.ending.awaits_recogniser_only() && self.recogniser.is_drained() {
            self.close(moment);
        }
    }

    /// Takes what is being played, and how much audio the session has heard.
    pub const fn set_playing(&mut self, output: OutputState, heard: Duration) {
        self.recogniser.set_playing(output, heard);
    }

    /// Takes the model's answer to a question ([`Effect::AskModel`]).
    pub fn answered(&mut self, question: u64, answer: Answer, moment: Moment) {
        let outputs = self.recogniser.answered(question, answer, moment);
        self.follow(outputs, moment);
    }

    fn abandon_barge_in(&mut self, reason: InterruptionReason) {
        for output in self.recogniser.abandon_barge_in(reason) {
            match output {
                Output::Resume => self.effects.push(Effect::Resume),
                Output::Tell(message) => self.tell(message),
                _ => {}
            }
        }
    }

    /// Takes a report of a recogniser. `lost` is how much audio was dropped so far because none could be sent it.
    pub fn stt(&mut self, report: SttReport, lost: Duration, moment: Moment) {
        let outputs = self.recogniser.report(report, lost, moment);
        self.follow(outputs, moment);
    }

    /// Takes a report of a synthesiser.
    pub fn tts(&mut self, report: TtsReport, now: Instant) {
        let effects = self.synthesiser.report(report, now);
        // The loading sound does not need a synthesiser.
        let is_new_output = matches!(effects.last(), Some(Effect::SetOutput(_)));
        self.effects.extend(effects);
        if let Some(in_force) = self.config.in_force().filter(|_| is_new_output) {
            self.effects.push(Effect::SetClip(in_force.clip.clone()));
        }
    }

    /// Takes an event of the audio input.
    pub fn input(&mut self, event: InputEvent, moment: Moment) {
        let outputs = self.recogniser.input(event, moment);
        self.follow(outputs, moment);
    }

    /// The session has been alone in its room for long enough.
    pub fn deserted(&mut self, moment: Moment) {
        self.end(1000, "nobody else is left in the room", moment);
    }

    /// The session is no longer in its room.
    pub fn room_lost(&mut self, provider: &str, ending: &RoomEnding, moment: Moment) {
        if self.ending.has_begun() {
            return;
        }
        self.provider_event("rtc", "failed", provider, ending.to_string());
        let (code, reason) = match ending {
            RoomEnding::Left => (1000, "the room was left"),
            RoomEnding::Removed => (1000, "the session was removed from its room"),
            RoomEnding::Disowned => (1000, "the room belongs to somebody else now"),
            RoomEnding::Duplicate => (1000, "another participant took the session's identity"),
            RoomEnding::RoomDeleted => (1000, "the room was deleted"),
            RoomEnding::Refused(_)
            | RoomEnding::Quota(_)
            | RoomEnding::Network(_)
            | RoomEnding::Overrun => {
                self.fail(ErrorCode::RtcFailed, ending.to_string());
                (1011, "the room was lost")
            }
        };
        self.end(code, reason, moment);
    }

    /// The link to the room is lost, or re-established.
    pub fn room_changes(&mut self, state: &'static str, provider: &str, message: &str) {
        self.provider_event("rtc", state, provider, message.to_owned());
    }

    /// The recording has failed.
    pub fn recording_failed(&mut self, store: &str, problem: String) {
        self.provider_event("recording", "failed", store, problem);
    }

    /// When [`Session::tick`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.ending.is_closed() {
            return None;
        }
        let deadlines = [
            self.config.next_deadline(),
            self.recogniser.next_deadline(),
            self.synthesiser.next_deadline(),
            self.ending.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Lets time pass.
    pub fn tick(&mut self, moment: Moment) {
        if self.ending.is_closed() {
            return;
        }
        if self.ending.deadline().is_some_and(|at| at <= moment.now) {
            return self.close(moment);
        }
        if let Some(timeout) = self.config.timed_out(moment.now) {
            let seconds = timeout.as_secs_f64();
            let message = format!("no config came into force within {seconds} s");
            self.fail(ErrorCode::ConfigTimeout, message);
            self.ending.close();
            let reason = "no config";
            return self.effects.push(Effect::Close { code: 4408, reason });
        }
        let outputs = self.recogniser.tick(moment);
        self.follow(outputs, moment);
        self.effects.extend(self.synthesiser.tick(moment.now));
    }

    /// The server ends the session: the last audio is transcribed first, speech is cut.
    pub fn end(&mut self, code: u16, reason: &'static str, moment: Moment) {
        if self.ending.has_begun() {
            return;
        }
        if let Some(config) = self.config.end() {
            self.effects.push(Effect::Discard { config });
        }
        let in_force = self.config.in_force();
        let rtc = in_force.and_then(|in_force| in_force.params.rtc.as_ref());
        let participants = rtc.is_some_and(|rtc| rtc.listen.is_some());
        self.abandon_barge_in(InterruptionReason::Ended);
        self.effects.push(Effect::SetOutput(None));
        if participants {
            let patience = LAST_WORDS.saturating_sub(PARTICIPANTS_EARLIER);
            self.effects.push(Effect::EndParticipants(patience));
        }
        self.ending = Ending::Draining {
            code,
            reason,
            deadline: moment.now + LAST_WORDS,
            participants,
        };
        let outputs = self.recogniser.end();
        self.follow(outputs, moment);
    }

    /// The last transcripts of all participants have been sent.
    pub fn participants_ended(&mut self, moment: Moment) {
        self.ending.participants_drained();
        self.follow(Vec::new(), moment);
    }

    /// Ends the session because its client is no longer authorised.
    pub fn expel(&mut self, why: &'static str, moment: Moment) {
        if self.ending.has_begun() {
            return;
        }
        self.fail(ErrorCode::Unauthorized, why.to_owned());
        self.end(1008, why, moment);
    }

    fn close(&mut self, moment: Moment) {
        let closing = self.ending.close();
        let outputs = self.recogniser.close(moment);
        self.follow(outputs, moment);
        if let Some((code, reason)) = closing {
            self.effects.push(Effect::Close { code, reason });
        }
    }

    fn tell(&mut self, message: ServerMessage) {
        self.effects.push(Effect::Tell(message));
    }

    fn refuse(&mut self, code: ErrorCode, message: impl Into<String>) {
        self.tell(ServerMessage::refusal(code, message));
    }

    /// Tells an error that ends the session.
    fn fail(&mut self, code: ErrorCode, message: String) {
        let mut error = ServerMessage::refusal(code, message);
        if let ServerMessage::Error { fatal, .. } = &mut error {
            *fatal = true;
        }
        self.tell(error);
    }

    fn provider_event(
        &mut self,
        kind: &'static str,
        state: &'static str,
        provider: &str,
        message: String,
    ) {
        let event = ServerMessage::provider_event(kind, state, provider, message);
        self.tell(event);
    }
}
