//! A session: the actor behind one socket. It owns the recognisers and the synthesiser as child actors and carries out
//! what [`state::Session`] decides. Audio bypasses its mailbox: in through [`audio_input`], out through [`player`], both on
//! the session's thread.

mod audio_input;
pub mod backchannel;
mod barge_in;
mod calls;
mod ducking;
pub mod error_codes;
mod given;
mod inner;
mod input_pipeline;
mod listening;
mod loading;
mod message_rate;
mod misuse;
mod participant_transcribers;
pub mod playback;
pub mod player;
pub mod protocol;
mod recording;
mod release;
mod responding;
mod room_membership;
mod socket_handler;
mod state;
mod stt_handover;
#[cfg(test)]
mod tests;
pub mod turn;
mod turn_metrics;
mod usage;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use audio_input::{AudioInput, InputEvent};
use error_codes::Refusal;
pub use given::fuzz_given;
use given::{Giving, TakenOver};
pub use inner::{InnerSession, open_session};
use listening::Listening;
pub use loading::Clip;
pub use message_rate::MessageRate;
use player::Player;
pub use protocol::StreamId;
pub use protocol::socket_schema;
use protocol::{
    ErrorCode, ListenConfig, Origin, RoomConfig, ServerMessage, SessionParams, TurnModelChoice,
    WarningCode,
};
use recording::Recording;
use room_membership::RoomMembership;
pub use socket_handler::SessionSocket;
pub(crate) use socket_handler::cannot_resume;
use socket_handler::{Elsewhere, Resumption, Watch};
use state::recogniser::TurnResources;
use state::{Command, Effect, Preparation, Prepared, Session};
use turn::{Moment, VoiceEventKind};
use turn_metrics::TurnClock;
use usage::Usage;

use super::recorder::RecordingFailed;
use super::registry::calls::CallRegistry;
use super::registry::resumes::{ResumableSession, ResumeToken, Resumes, ResumingSocket};
use super::registry::rooms::RoomRegistry;
use super::registry::sessions::{NameTaken, Register, Registration, SessionRegistry};
use super::responder::{DismissResponder, ResponderActor};
use super::room::{self, Entered};
use super::start_in_span;
use super::stt::SttReport;
use super::tts::{ChangeVoice, Dismiss, TtsActor, TtsReport};
use vivavoce_audio::Encoding;
use vivavoce_auth::{Access, Pass, TenantId};
use vivavoce_core::dialect::Dialect;
use vivavoce_llm::Endpoints;
use vivavoce_quotas::shared_limit;
use vivavoce_quotas::{Permit, Quotas, Refused};
use vivavoce_recordings::egress::{Egress, Egresses};
use vivavoce_recordings::journal::Journal;
use vivavoce_recordings::{self as recordings, Recordings};
use vivavoce_replicas::{Handshake, Replicas};
use vivavoce_seams::{Credential, ProviderTable};
use vivavoce_socket::{SessionFacts, SocketWriter};
use vivavoce_synthesis::{SpeechConfig, SynthesisError, Synthesizer};
use vivavoce_telemetry::conversation::Conversation;
use vivavoce_telemetry::metrics::{self, OpenSession};
use vivavoce_telemetry::vendors;
use vivavoce_webhooks::Webhooks;

/// Capacity of the mailbox: more messages than come in one read of the socket.
const MAILBOX: usize = 2048;

/// Messages of a client after which the actor yields.
const BURST: usize = 32;

/// How long a recogniser that takes over waits for a quiet gap in the audio.
const QUIET_GAP_PATIENCE: Duration = Duration::from_secs(1);

/// The most tokens of a session: its client may lose its socket again and again before it gets the next one.
const TOKENS: usize = 8;

/// How long the next message waits for a client that has many events to read.
const EVENT_PATIENCE: Duration = Duration::from_millis(100);

/// Settings of the server that concern sessions.
#[derive(Debug, Clone, Copy)]
pub struct SessionSettings {
    /// How long a client may take until its first config is in force.
    pub config_timeout: Duration,
    /// How long a session waits for its client when the socket broke.
    pub resume_within: Duration,
    /// How long sessions may last once the server stops.
    pub drain_within: Duration,
    /// How far ahead of real time speech is sent; [`Duration::MAX`] means without pacing.
    pub lead: Duration,
    /// Complexity of the Opus encoder in rooms, 0 (cheap) to 10.
    pub room_complexity: u8,
    /// Whether a session without a token may record while authentication is on.
    pub public_recordings: bool,
}

/// What all sessions share.
pub struct SessionServices {
    pub providers: Arc<ProviderTable>,
    /// The language models, for sessions that the server leads.
    pub llm: Arc<Endpoints>,
    pub synthesizer: Arc<Synthesizer>,
    pub sessions: Addr<SessionRegistry>,
    /// `None` on a server without rooms.
    pub rooms: Option<Addr<RoomRegistry>>,
    /// `None` on a server without telephone calls.
    pub calls: Option<Addr<CallRegistry>>,
    /// Where `session.ended` is reported; `None` without webhooks.
    pub webhooks: Option<Webhooks>,
    /// `None` on a server that does not record.
    pub recordings: Option<Arc<Recordings>>,
    /// Recordings that the room provider makes; `None` where it does not.
    pub egresses: Option<Arc<Egresses>>,
    pub quotas: Quotas,
    /// Cancelled when the server is to stop, as soon as its sessions have ended.
    pub draining: CancellationToken,
    /// Cancelled when another server has taken over the address of this one: its clients stay with it.
    pub replaced: CancellationToken,
    /// Cancelled when the server stops.
    pub closing: CancellationToken,
    pub settings: SessionSettings,
    /// The operator's lists of backchannels.
    pub backchannels: Arc<backchannel::Lists>,
    /// Sessions whose clients may come back.
    pub resumes: Arc<Resumes>,
    /// Other servers with sessions; `None` where this one stands alone.
    pub replicas: Option<Arc<Replicas>>,
    /// In which clients name things.
    pub dialect: Arc<Dialect>,
}

impl SessionServices {
    /// What there is for the turns of a session.
    fn turn_resources(&self) -> TurnResources {
        TurnResources {
            has_model: self.providers.turn_model().is_some(),
            backchannels: Arc::clone(&self.backchannels),
        }
    }
}

/// The client that opens a session.
pub struct Caller {
    /// Which tenant's resources it may use.
    pub access: Access,
    /// Resolves when its token is no longer valid, where that can be known.
    pub pass: Option<Pass>,
    /// The id of the request that opened the session.
    pub request_id: String,
    /// The URL under which it has reached this server, as clients of rooms do.
    pub own_url: String,
    /// How it has opened its socket, where that may go on at another replica.
    pub handshake: Option<Handshake>,
    /// Whether another replica has opened its socket that takes the session where that may be given away.
    pub takes: bool,
    /// How far ahead of real time its speech is sent at least, where it takes that in large pieces.
    pub least_lead: Duration,
}

/// The permits that a session holds.
pub struct Places {
    /// Counts as one of the allowed sessions; without one the socket may only go on with another session.
    pub session: Option<Permit>,
    /// Counts as one of the allowed sockets without config; given back with the first config.
    pub unconfigured: shared_limit::Permit,
    /// The server waits for it when it stops.
    pub work: TaskTrackerToken,
}

/// A message of the client.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct FromClient(Command);

/// The socket has closed: the session ends at once.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct SocketClosed;

/// The client has come back with another socket.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Resumed {
    /// Sound that it has missed and that is not kept any more.
    lost: Duration,
}

/// The socket has gone, and the client may come back.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct SocketLost;

/// The client is no longer authorised.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Expel(pub &'static str);

/// The server ends the session.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct EndSession {
    /// The close code.
    pub code: u16,
    pub reason: &'static str,
}

/// What a pending config has acquired. Dropping it gives everything back.
#[derive(Default)]
struct PendingConfig {
    config: u64,
    /// The name, where the session has none yet.
    name: Option<Registration>,
    journal: Option<Journal>,
    /// The recording that the room's provider makes.
    egress: Option<Egress>,
    room: Option<(Entered, RoomConfig)>,
    /// What whoever looks at the session sees of it.
    facts: SessionFacts,
}

impl Drop for PendingConfig {
    fn drop(&mut self) {
        if let Some(journal) = self.journal.take() {
            recordings::abandon(journal);
        }
    }
}

/// The session behind one socket.
pub struct SessionActor {
    services: Arc<SessionServices>,
    access: Access,
    state: Session,
    writer: SocketWriter,
    listening: Listening,
    /// All recognisers of the session count as one.
    recogniser_permit: Option<Permit>,
    output: Option<Player>,
    /// The same, shared with the transcribers of participants.
    output_of_room: Rc<RefCell<Option<Player>>>,
    synthesiser: Option<Addr<TtsActor>>,
    /// Leads the conversation, where the server does.
    responder: Option<Addr<ResponderActor>>,
    /// Shared with the player of the output.
    turn_clock: Rc<RefCell<TurnClock>>,
    /// While there is no output: what was cut of the last one.
    cut_ids: playback::CutIds,
    pending: Option<Box<PendingConfig>>,
    name: Option<Registration>,
    /// Where another socket of the client comes to.
    resuming_sockets: tokio::sync::mpsc::Sender<Box<ResumingSocket>>,
    /// The tokens with which it comes, the last one first: that may not have arrived.
    resume_tokens: VecDeque<ResumeToken>,
    recording: Option<Recording>,
    /// What is still to be said about it.
    announcement: Option<String>,
    /// Whether the client is still to be told that the first part of the recording is elsewhere.
    divided: bool,
    /// The recording that the room's provider makes.
    egress: Option<Egress>,
    membership: Option<RoomMembership>,
    membership_lock: room::MembershipLock,
    own_url: String,
    least_lead: Duration,
    unconfigured: Option<shared_limit::Permit>,
    /// Messages handled so far.
    messages: usize,
    alarm: Option<(std::time::Instant, SpawnHandle)>,
    /// Transfers and hang-ups in progress.
    call_commands: usize,
    /// The config and provider for which ignored options were reported last.
    ignored_told: Option<(u64, &'static str)>,
    usage: Usage,
    _session: Option<Permit>,
    work: TaskTrackerToken,
    _open: OpenSession,
    trace: Conversation,
    giving: Giving,
    taken_over: TakenOver,
}

/// Starts a session, and returns the handler of its socket.
pub fn open(
    services: Arc<SessionServices>,
    places: Places,
    caller: Caller,
    writer: SocketWriter,
) -> SessionSocket {
    let (input, events) = AudioInput::watched(writer.timeline().clone());
    let request_id = caller.request_id.clone();
    writer
        .timeline()
        .describe(|facts| facts.request_id = request_id);
    let (resuming_sockets, sockets) = tokio::sync::mpsc::channel(1);
    let resumption =
        Resumption {
            sessions: Arc::clone(&services.resumes),
            sockets,
            within: services.settings.resume_within,
            access: caller.access.clone(),
            may_begin: places.session.is_some(),
            takes: caller.takes,
            elsewhere: services.replicas.clone().zip(caller.handshake).map(
                |(replicas, handshake)| Elsewhere {
                    replicas,
                    handshake,
                    work: places.work.task_tracker().token(),
                    closing: services.closing.clone(),
                },
            ),
        };
    let providers = Arc::clone(&services.providers);
    let dialect = Arc::clone(&services.dialect);
    let (party, quota) = (caller.access.party(), services.quotas.recognisers.clone());
    let sent = writer.clone();
    let tenant = caller.access.tenant().map(TenantId::as_str);
    let trace = Conversation::begin(&caller.request_id, tenant);
    let listening = Listening::new(
        input.clone(),
        Arc::clone(&providers),
        (party, quota),
        trace.clone(),
    );
    let span = trace.span();
    let begin = move |context: &mut Context<SessionActor>| {
        context.set_mailbox_capacity(MAILBOX);
        context.add_stream(tokio_stream::wrappers::ReceiverStream::new(events));
        let now = Instant::now().into_std();
        SessionActor {
            state: Session::new(
                now,
                services.settings.config_timeout,
                services.turn_resources(),
            ),
            usage: Usage::new(services.webhooks.clone(), &caller.access),
            services,
            access: caller.access,
            writer,
            listening,
            recogniser_permit: None,
            output: None,
            output_of_room: Rc::default(),
            synthesiser: None,
            responder: None,
            turn_clock: Rc::new(RefCell::new(TurnClock::new(trace.clone()))),
            cut_ids: playback::CutIds::default(),
            pending: None,
            name: None,
            resuming_sockets,
            resume_tokens: VecDeque::new(),
            recording: None,
            announcement: None,
            divided: false,
            egress: None,
            membership: None,
            membership_lock: room::MembershipLock::default(),
            own_url: caller.own_url,
            least_lead: caller.least_lead,
            unconfigured: Some(places.unconfigured),
            messages: 0,
            alarm: None,
            call_commands: 0,
            ignored_told: None,
            _session: places.session,
            work: places.work,
            _open: metrics::session_opened(),
            trace,
            giving: Giving::default(),
            taken_over: TakenOver::default(),
        }
    };
    let session = span.in_scope(|| start_in_span(begin));
    let watch = span.in_scope(|| {
        caller
            .pass
            .map(|pass| Watch::begin(pass, session.clone().recipient()))
    });
    SessionSocket::new(
        session,
        input,
        sent,
        (providers, dialect),
        span,
        (resumption, watch),
    )
}

impl Actor for SessionActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.spawn(self.listening.input.clone().run().into_actor(self));
        let closing = self.services.closing.clone().cancelled_owned();
        context.spawn(closing.into_actor(self).map(|(), session, context| {
            let moment = session.moment();
            session.state.end(1001, "the server is stopping", moment);
            session.carry_out(context);
        }));
        let draining = self.services.draining.clone().cancelled_owned();
        context.spawn(draining.into_actor(self).map(|(), session, context| {
            let left = session.services.settings.drain_within;
            session.tell(&ServerMessage::Draining {
                deadline: player::timestamp() + left.as_millis() as u64,
            });
            session.begin_to_move(context);
        }));
        self.set_alarm(context);
    }
}

impl Drop for SessionActor {
    /// However the session ends, also by a panic, its children and its socket end with it.
    fn drop(&mut self) {
        if let Some(synthesiser) = &self.synthesiser {
            synthesiser.do_send(Dismiss);
        }
        if let Some(responder) = &self.responder {
            responder.do_send(DismissResponder);
        }
        self.writer.close(1011, "internal error");
        self.usage.ends(self.listening.input.position());
    }
}

impl SessionActor {
    /// Tells the state what is being played.
    fn look_at_output(&mut self) {
        let output = self.output.as_ref().map(Player::output_state);
        let heard = self.listening.input.position();
        self.state.set_playing(output.unwrap_or_default(), heard);
    }

    fn moment(&mut self) -> Moment {
        self.look_at_output();
        self.listening.input.moment()
    }

    /// Carries out what the state has decided.
    fn carry_out(&mut self, context: &mut Context<Self>) {
        for effect in self.state.take_effects() {
            self.effect(effect, context);
        }
        self.set_alarm(context);
    }

    fn set_alarm(&mut self, context: &mut Context<Self>) {
        let due = self.state.next_deadline();
        if self.alarm.as_ref().map(|(at, _)| *at) == due {
            return;
        }
        if let Some((_, alarm)) = self.alarm.take() {
            context.cancel_future(alarm);
        }
        if let Some(at) = due {
            let alarm = tokio::time::sleep_until(Instant::from_std(at));
            let alarm = context.spawn(alarm.into_actor(self).map(|(), session, context| {
                session.alarm = None;
                let moment = session.moment();
                session.state.tick(moment);
                session.carry_out(context);
            }));
            self.alarm = Some((at, alarm));
        }
    }

    /// Queues text, or refuses it.
    pub(super) fn queue_speech(&mut self, speak: playback::Speak) {
        let origin = Origin {
            message: Some("speak"),
            id: speak.id.clone(),
        };
        if let (Some(document), Some(voice)) = (&speak.ssml, self.state.voice())
            && let Err(refused) = self.services.synthesizer.check_ssml(voice, document)
        {
            let refused = refused.to_string();
            return self.refuse(&origin, ErrorCode::InvalidMessage, refused);
        }
        self.turn_clock.borrow_mut().text(Instant::now());
        let refused = self.output.as_ref().map(|player| player.speak(speak));
        if let Some(Err(overloaded)) = refused {
            self.refuse(&origin, ErrorCode::Overloaded, overloaded.to_string());
        }
    }

    fn effect(&mut self, effect: Effect, context: &mut Context<Self>) {
        match effect {
            Effect::Tell(ServerMessage::Ready {
                stream_id, room, ..
            }) => {
                let resume_token = self.new_token(&context.address());
                self.tell(&ServerMessage::Ready {
                    stream_id,
                    room,
                    resume_token,
                });
                self.announce_recording();
            }
            Effect::Tell(message) => self.tell(&message),
            Effect::Prepare(preparation) => self.prepare(*preparation, context),
            Effect::Commit {
                config,
                vad,
                recording,
                egress,
                resume,
            } => {
                self.writer.keep_sent(resume);
                let state = &self.state;
                self.listening
                    .commit(config, &vad, |config| state.drains(config));
                let mut pending = self.pending.take().unwrap_or_default();
                let announces = pending.room.is_some() || self.membership.is_some();
                let facts = std::mem::take(&mut pending.facts);
                self.writer.timeline().describe(|known| {
                    let request_id = std::mem::take(&mut known.request_id);
                    *known = SessionFacts {
                        request_id,
                        ..facts
                    };
                });
                self.record(recording, pending.journal.take(), announces, context);
                self.record_egress(egress, pending.egress.take(), context);
                self.start_membership(vad, pending.room.take(), context);
                self.show_recording();
                self.usage.begins();
                self.name = self.name.take().or_else(|| pending.name.take());
                self.unconfigured = None;
            }
            Effect::Discard { config } => {
                self.listening.discard(config);
                self.discard_pending(config);
            }
            Effect::StartStt {
                attempt,
                config,
                listen,
            } => {
                if self.state.is_in_force(config) {
                    metrics::stt_restarted();
                }
                self.tell_ignored(config, &listen);
                let report = context.address().recipient();
                self.listening.start(attempt, config, listen, report);
            }
            Effect::EndStt { attempt } => self.listening.end(attempt),
            Effect::StopStt { attempt } => self.listening.stop(attempt),
            Effect::EndParticipants(patience) => self.end_participants(patience, context),
            Effect::Finalize => self.listening.input.finalize(),
            Effect::AskModel { question, since } => {
                let asked = self.listening.ask_model(since).into_actor(self);
                context.spawn(asked.map(move |answer, session, context| {
                    let moment = session.moment();
                    session.state.answered(question, answer, moment);
                    session.carry_out(context);
                }));
            }
            Effect::SetOutput(speech) => self.set_output(speech.as_deref(), context),
            Effect::ChangeVoice(speech) => self.change_voice(*speech),
            Effect::StartTts { attempt, speech } => {
                self.start_synthesiser(attempt, *speech, context);
            }
            Effect::TtsLost => self.synthesiser_lost(),
            Effect::SetClip(clip) => self.to_player(|player| player.set_clip(clip)),
            Effect::Load(on) => self.to_player(|player| player.load(on)),
            Effect::PauseRecording(paused) => self.pause_recording(paused),
            Effect::SendToRoom(message) => self.send_to_room(message, context),
            Effect::Call(command) => self.call(command, context),
            Effect::ChangeRoom(config) => self.change_room(*config),
            Effect::Speak(speak) => self.queue_speech(speak),
            Effect::Lead(agent) => self.lead(agent.map(|agent| *agent), context),
            Effect::Respond(respond) => self.have_answer(respond),
            Effect::FunctionResult(result) => self.function_returned(result),
            Effect::Clear => self.clear_all(),
            Effect::ClearId(id) => self.to_player(|player| player.clear_id(&id)),
            Effect::Yield(mode) => self.to_player(|player| player.yields(mode)),
            Effect::Resume => self.to_player(Player::resumes),
            Effect::Close { code, reason } => {
                self.close(code, reason);
                context.stop();
            }
        }
    }

    /// Closes the socket, unless the session goes on elsewhere.
    fn close(&mut self, code: u16, reason: &'static str) {
        self.trace.ends(code, reason);
        if !self.is_given() {
            tracing::debug!(code, reason, "a session closes its socket");
            self.usage.closes(reason);
            self.writer.close(code, reason);
        }
    }

    fn to_player(&self, order: impl FnOnce(&Player)) {
        if let Some(player) = &self.output {
            order(player);
        }
    }

    /// A new token, with which the client may come back where it may at all.
    fn new_token(&mut self, address: &Addr<Self>) -> String {
        let session = self.resumable(address);
        let ticket = self.services.resumes.register(session);
        let token = ticket.token().to_owned();
        if self.writer.keeps_sent() {
            self.resume_tokens.truncate(TOKENS - 1);
            self.resume_tokens.push_front(ticket);
        } else {
            self.resume_tokens.clear();
        }
        token
    }

    fn resumable(&self, address: &Addr<Self>) -> ResumableSession {
        ResumableSession {
            access: self.access.clone(),
            expel: address.clone().recipient(),
            resuming_sockets: self.resuming_sockets.clone(),
            writer: self.writer.clone(),
        }
    }

    fn tell(&mut self, message: &ServerMessage) {
        let text = message.to_json();
        // A transcript may come before voice activity.
        if matches!(message, ServerMessage::SttResult(heard) if !heard.transcript.is_empty()) {
            self.turn_clock.borrow_mut().goes_on();
        }
        if let (ServerMessage::SttResult(result), Some(membership)) = (message, &self.membership) {
            membership.words.heard(None, &result.transcript);
        }
        match message {
            ServerMessage::SttResult(result) if !result.is_final => {
                self.writer.latest("stt_result", text);
            }
            ServerMessage::SttResult(result) => {
                if result.is_speech_final {
                    self.turn_clock.borrow_mut().heard(Instant::now());
                }
                if let Some(recording) = &self.recording {
                    recording
                        .tap
                        .note_final(result, self.listening.input.position());
                }
                if let (Some(said), false) = (&result.turn_transcript, result.backchannel)
                    && !self.keeps_turn(said)
                {
                    self.turn_for_responder(said);
                }
                self.writer.event(text);
            }
            ServerMessage::ProviderEvent {
                kind,
                state: "switched",
                provider,
                ..
            } => {
                vendors::took_over(kind, provider);
                self.writer.event(text);
            }
            ServerMessage::VadEvent(event) => {
                self.writer.latest(event.event.name(), text);
                if event.event == VoiceEventKind::SpeechStart {
                    self.turn_clock.borrow_mut().goes_on();
                }
                if event.event == VoiceEventKind::TurnEnd {
                    let reason = event.reason.map_or("unknown", |reason| reason.name());
                    let silence = Duration::from_millis(event.silence_duration_ms.unwrap_or(0));
                    let told =
                        self.turn_clock
                            .borrow_mut()
                            .turn_ends(reason, silence, Instant::now());
                    told.into_iter()
                        .for_each(|told| self.writer.event(told.to_json()));
                }
            }
            // The end of an utterance comes from its player, and is never dropped.
            ServerMessage::Error { .. } => self.writer.error(text),
            // Others decide how many there are: a slow client loses some.
            ServerMessage::Message { .. } => {
                if !self.writer.message(text) {
                    let lost = "messages of the room were dropped: the client reads too slowly";
                    let told = ServerMessage::refusal(ErrorCode::Overloaded, lost);
                    self.writer.latest("messages_dropped", told.to_json());
                }
            }
            _ => self.writer.event(text),
        }
    }

    fn refuse(&mut self, origin: &Origin, code: ErrorCode, message: impl Into<String>) {
        self.tell(&ServerMessage::refusal(code, message).answering(origin));
    }

    /// Acquires what a config needs beside its providers.
    fn prepare(&mut self, preparation: Preparation, context: &mut Context<Self>) {
        let audio = self
            .check(&preparation.params)
            .and_then(|()| self.count_recogniser(&preparation))
            .and_then(|()| self.find_audio(&preparation, context));
        let is_sent = match audio {
            Ok(is_sent) => is_sent,
            Err(refusal) => {
                let moment = self.moment();
                self.state
                    .prepared(preparation.config, Err(refusal), moment);
                return self.carry_out(context);
            }
        };
        let Preparation {
            config,
            stream_id,
            params: wanted,
            loading_audio,
            ..
        } = preparation;
        let listen = wanted.stt.as_ref();
        let manners = listen.map_or_else(Vec::new, |listen| {
            listening::manners(&self.services.providers, listen)
        });
        if self.name.is_none() {
            self.usage.asks(&stream_id);
            self.trace.is_called(stream_id.as_str());
        }
        let begin = self.begin_recording(config, &stream_id, &wanted);
        let begin_egress = self.begin_egress(&stream_id, &wanted);
        let enter = self.enter_room(&wanted);
        let register = self.name.is_none().then(|| Register {
            stream_id,
            access: self.access.clone(),
            session: context.address().recipient(),
            socket: Some(self.writer.clone()),
        });
        let facts = facts(&wanted);
        let sessions = self.services.sessions.clone();
        let format = wanted.tts.map(|tts| tts.format);
        let prepare = async move {
            let mut pending = PendingConfig {
                config,
                name: None,
                journal: None,
                egress: None,
                room: None,
                facts,
            };
            if let Some(register) = register {
                pending.name = match sessions.send(register).await {
                    Ok(Ok(name)) => Some(name),
                    Ok(Err(NameTaken)) => {
                        let problem = "stream_id: a live session has this name";
                        return Err(Refusal::new(ErrorCode::StreamIdInUse, problem));
                    }
                    Err(error) => return Err(Refusal::new(ErrorCode::Internal, error.to_string())),
                };
            }
            let clip = match (loading_audio, format) {
                // It can be mixed only with linear16; loading_start says so.
                (Some(audio), Some(format)) if format.encoding == Encoding::Linear16 => {
                    let decode = move || Clip::decode(&audio, format.layout.rate);
                    let clip = tokio::task::spawn_blocking(decode).await;
                    Some(clip.map_err(|error| {
                        Refusal::new(ErrorCode::Internal, format!("loading_audio: {error}"))
                    })?)
                }
                _ => None,
            };
            pending.room = enter.await?;
            pending.journal = begin.await?;
            // It needs the room.
            pending.egress = begin_egress.await?;
            Ok((clip, pending))
        };
        let prepare = prepare.into_actor(self);
        context.spawn(prepare.map(move |outcome, session, context| {
            let prepared = outcome.map(|(clip, pending)| {
                let joined = pending.room.as_ref();
                let room = joined.map(|(entered, config)| session.shown(entered, config));
                session.pending = Some(Box::new(pending));
                Prepared {
                    clip,
                    is_sent,
                    manners,
                    room,
                }
            });
            let moment = session.moment();
            session.state.prepared(config, prepared, moment);
            // The session may have ended meanwhile.
            if !session.state.is_pending(config) && !session.state.is_in_force(config) {
                session.discard_pending(config);
            }
            session.carry_out(context);
        }));
    }

    /// Gives back what a config has acquired that is not carried out.
    fn discard_pending(&mut self, config: u64) {
        self.pending.take_if(|pending| pending.config == config);
        if self.recording.is_none() {
            self.listening.input.record_nothing();
        }
    }

    /// Refuses what cannot be carried out whatever the providers say.
    fn check(&self, wanted: &SessionParams) -> Result<(), Refusal> {
        let records = wanted.records() || wanted.room_for_egress().is_some();
        if records && self.access.is_public() && !self.services.settings.public_recordings {
            let problem =
                "recording: a session without a token records only with auth.public_recordings";
            return Err(Refusal::new(ErrorCode::RecordingUnavailable, problem));
        }
        let providers = &self.services.providers;
        if wanted.vad.turn_model == TurnModelChoice::SmartTurn && providers.turn_model().is_none() {
            let problem = "vad.turn_model: smart-turn is not installed on this server; \
                `vivavoce models fetch smart-turn` installs it";
            return Err(Refusal::new(ErrorCode::ProviderUnavailable, problem));
        }
        if let Some(agent) = &wanted.agent {
            self.endpoint(agent)?;
        }
        if let Some(listen) = wanted.listen() {
            check_recogniser(providers, listen, "stt_config")?;
            for (index, fallback) in listen.fallback.iter().enumerate() {
                let field = format!("stt_config.fallback[{index}]");
                check_recogniser(providers, fallback, &field)?;
            }
        }
        if let Some(speech) = &wanted.tts {
            self.services
                .synthesizer
                .check(speech)
                .map_err(|error| cannot_speak(&error))?;
        }
        Ok(())
    }

    /// A session that hears is counted once, and once more for each recogniser that was replaced, until that has ended.
    fn count_recogniser(&mut self, preparation: &Preparation) -> Result<(), Refusal> {
        if preparation.params.stt.is_none() {
            return Ok(());
        }
        let refused = |error: Refused| Refusal::new(ErrorCode::Overloaded, error.to_string());
        if self.recogniser_permit.is_none() {
            let taken = self.services.quotas.recognisers.take(&self.access.party());
            self.recogniser_permit = Some(taken.map_err(refused)?);
        }
        let is_new =
            !preparation.is_update && self.listening.is_sent(preparation.config) == Some(false);
        if preparation.replaces_recogniser || is_new {
            self.listening.reserve().map_err(refused)?;
        }
        Ok(())
    }

    /// Finds the audio of a config, and hands it over to its recogniser if that replaces the one in force. Whether the one in
    /// force is sent it already.
    fn find_audio(
        &self,
        preparation: &Preparation,
        context: &mut Context<Self>,
    ) -> Result<bool, Refusal> {
        let config = preparation.config;
        if preparation.is_update {
            self.listening.input.follow(config);
        }
        let Some(listen) = &preparation.params.stt else {
            return Ok(false);
        };
        let input = &self.listening.input;
        let (Some((_, layout)), Some(is_sent)) =
            (input.buffer(config), self.listening.is_sent(config))
        else {
            let problem = "stt_config: this format cannot be decoded";
            return Err(Refusal::new(ErrorCode::Internal, problem));
        };
        let accepted = listening::accepted(&self.services.providers, listen);
        // A recogniser that was given up on leaves its buffer to the next one.
        if !is_sent || (!preparation.replaces_recogniser && layout.rate == accepted.layout.rate) {
            return Ok(is_sent);
        }
        input.hand_over(config, listen, accepted);
        context.run_later(QUIET_GAP_PATIENCE, move |session, _| {
            session.listening.input.make_handover(config);
        });
        Ok(false)
    }

    /// Options that a provider does not support are told once per config.
    fn tell_ignored(&mut self, config: u64, listen: &ListenConfig) {
        let ignored = listening::ignored(&self.services.providers, listen);
        if let Some((slug, ignored)) = ignored
            && self.ignored_told.replace((config, slug)) != Some((config, slug))
            && let Some(ignored) = ignored
        {
            self.tell(&ignored);
        }
    }

    fn set_output(&mut self, speech: Option<&SpeechConfig>, context: &mut Context<Self>) {
        if let Some(synthesiser) = self.synthesiser.take() {
            synthesiser.do_send(Dismiss);
        }
        let mut loads = false;
        self.output_of_room.take();
        if let Some(before) = self.output.take() {
            loads = before.loads();
            before.stop();
            self.cut_ids = before.take_cut_ids();
        }
        let Some(speech) = speech else { return };
        let publisher = self
            .membership
            .as_ref()
            .map(|membership| membership.publisher.clone());
        let lead = match &publisher {
            Some(_) => room::LEAD,
            None => self.services.settings.lead.max(self.least_lead),
        };
        let clock = Rc::clone(&self.turn_clock);
        let player = Player::new(self.writer.clone(), speech.format, lead, publisher, clock);
        player.tell_words(speech.progress);
        player.remember_cut(std::mem::take(&mut self.cut_ids));
        player.set_recorder(
            self.recording
                .as_ref()
                .map(|recording| recording.tap.clone()),
        );
        // The clip is set afterwards; it plays on if the one before was playing.
        player.load(loads);
        player.set_responder(self.responder.clone());
        let task = AbortOnDropHandle::new(tokio::task::spawn_local(
            player.clone().run().in_current_span(),
        ));
        context.spawn(task.into_actor(self).map(|ended, session, context| {
            if ended.is_err_and(|error| error.is_panic()) {
                session.writer.close(1011, "internal error");
                context.stop();
            }
        }));
        *self.output_of_room.borrow_mut() = Some(player.clone());
        self.output = Some(player);
    }

    fn start_synthesiser(
        &mut self,
        attempt: u32,
        speech: SpeechConfig,
        context: &mut Context<Self>,
    ) {
        let Some(player) = self.output.clone() else {
            return;
        };
        let synthesizer = Arc::clone(&self.services.synthesizer);
        let party = self.access.party();
        let report = (attempt, context.address().recipient());
        let trace = self.trace.clone();
        let characters = self.usage.of_speech();
        let player = Rc::new(player);
        let actor = TtsActor::new(
            synthesizer,
            speech,
            party,
            player,
            (characters, trace),
            report,
        );
        let actor = start_in_span(|_| actor);
        self.synthesiser = Some(actor);
    }

    /// Utterances that are queued already are spoken as before.
    fn change_voice(&self, speech: SpeechConfig) {
        if let (Some(player), Some(synthesiser)) = (&self.output, &self.synthesiser) {
            player.tell_words(speech.progress);
            let from = player.next_utterance();
            // At most one for each message of the client.
            synthesiser.do_send(ChangeVoice { from, speech });
        }
    }

    fn synthesiser_lost(&mut self) {
        self.synthesiser = None;
        self.to_player(Player::synthesizer_lost);
    }
}

/// What whoever looks at a session sees of its config: nothing that a credential could be in.
fn facts(of: &SessionParams) -> SessionFacts {
    SessionFacts {
        request_id: String::new(),
        stt: of.listen().map(|listen| listen.provider.clone()),
        tts: of.tts.as_ref().map(|speech| speech.provider.clone()),
        language: of.listen().map(|listen| listen.language.clone()),
        silence_ms: (of.vad.enabled && of.listen().is_some()).then(|| of.vad.silence_ms.into()),
        room: of.rtc.as_ref().map(|room| room.room_name.clone()),
        led: of.agent.is_some(),
    }
}

fn unsupported(field: &str, slug: &str, known: &[&str]) -> Refusal {
    let slug: String = slug.chars().take(40).collect();
    let known = known.join(", ");
    Refusal::new(
        ErrorCode::UnsupportedProvider,
        format!("{field}.provider: there is no {slug:?}; this server has: {known}"),
    )
}

fn cannot_speak(error: &SynthesisError) -> Refusal {
    let code = match error {
        SynthesisError::UnsupportedProvider { .. } => ErrorCode::UnsupportedProvider,
        // All other fields were checked when the message was parsed.
        _ => ErrorCode::InvalidProviderAuth,
    };
    Refusal::new(code, error.to_string())
}

fn check_recogniser(
    providers: &ProviderTable,
    listen: &ListenConfig,
    field: &str,
) -> Result<(), Refusal> {
    let Some(provider) = providers.speech_to_text(&listen.provider) else {
        let known = providers.speech_to_text_slugs();
        return Err(unsupported(field, &listen.provider, &known));
    };
    Credential::of_caller(&listen.auth, provider.credential_fields())
        .map_err(|problem| invalid_auth(&format!("{field}.auth"), &problem))?;
    Ok(())
}

fn invalid_auth(field: &str, problem: &str) -> Refusal {
    Refusal::new(
        ErrorCode::InvalidProviderAuth,
        format!("{field}: {problem}"),
    )
}

impl Handler<FromClient> for SessionActor {
    type Result = ();

    fn handle(&mut self, FromClient(command): FromClient, context: &mut Context<Self>) {
        self.look_at_output();
        self.state.message(command);
        self.carry_out(context);
        self.messages += 1;
        // Events are sent before the next message causes more of them.
        if !self.writer.has_event_room() {
            let writer = self.writer.clone();
            let room = async move {
                // A client that does not read is not waited for: its audio is transcribed, and its events are bounded.
                let _late = tokio::time::timeout(EVENT_PATIENCE, writer.event_room()).await;
            };
            context.wait(room.into_actor(self));
        } else if self.messages.is_multiple_of(BURST) {
            context.wait(tokio::task::yield_now().into_actor(self));
        }
    }
}

impl Handler<Resumed> for SessionActor {
    type Result = ();

    fn handle(&mut self, Resumed { lost }: Resumed, context: &mut Context<Self>) {
        self.to_player(Player::socket_changes);
        self.stays();
        self.state.resumed();
        self.carry_out(context);
        if !lost.is_zero() {
            let lost = lost.as_millis();
            self.tell(&ServerMessage::Warning {
                message: format!(
                    "{lost} ms of speech are not kept any more, and were not sent again"
                ),
                code: WarningCode::SoundLost,
                in_reply_to: Some("resume"),
                id: None,
            });
        }
    }
}

impl Handler<SocketLost> for SessionActor {
    type Result = ();

    fn handle(&mut self, _: SocketLost, _: &mut Context<Self>) {
        self.to_player(Player::socket_changes);
    }
}

impl Handler<Expel> for SessionActor {
    type Result = ();

    fn handle(&mut self, Expel(why): Expel, context: &mut Context<Self>) {
        tracing::info!(reason = why, "a session ends with its token");
        let moment = self.moment();
        self.state.expel(why, moment);
        self.carry_out(context);
    }
}

impl Handler<SocketClosed> for SessionActor {
    type Result = ();

    fn handle(&mut self, _: SocketClosed, context: &mut Context<Self>) {
        context.stop();
    }
}

impl Handler<EndSession> for SessionActor {
    type Result = ();

    fn handle(&mut self, order: EndSession, context: &mut Context<Self>) {
        let moment = self.moment();
        self.state.end(order.code, order.reason, moment);
        self.carry_out(context);
    }
}

impl Handler<RecordingFailed> for SessionActor {
    type Result = ();

    fn handle(&mut self, RecordingFailed(problem): RecordingFailed, context: &mut Context<Self>) {
        if self.recording.take().is_some() {
            self.tap(None);
            let store = self.services.recordings.as_ref();
            let store = store.map_or("off", |recordings| recordings.store().slug());
            self.state.recording_failed(store, problem);
            self.show_recording();
            self.carry_out(context);
        }
    }
}

impl Handler<SttReport> for SessionActor {
    type Result = ();

    fn handle(&mut self, report: SttReport, context: &mut Context<Self>) {
        let lost = self.listening.reported(&report);
        let moment = self.moment();
        self.state.stt(report, lost, moment);
        self.carry_out(context);
        let state = &self.state;
        self.listening.forget_drained(|config| state.drains(config));
    }
}

impl Handler<TtsReport> for SessionActor {
    type Result = ();

    fn handle(&mut self, report: TtsReport, context: &mut Context<Self>) {
        let now = Instant::now().into_std();
        self.state.tts(report, now);
        self.carry_out(context);
    }
}

impl StreamHandler<InputEvent> for SessionActor {
    fn handle(&mut self, news: InputEvent, context: &mut Context<Self>) {
        let moment = self.moment();
        self.state.input(news, moment);
        self.carry_out(context);
    }

    /// The input ends with the session.
    fn finished(&mut self, _: &mut Context<Self>) {}
}
