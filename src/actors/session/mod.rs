//! A session: the actor behind one socket. It owns a recogniser and a synthesiser as child actors, makes them anew when
//! they die, and carries out what [`state::Session`] decides. Sound goes past it: in through [`hearing`], out through
//! [`player`], both on the thread that the session lives on for life.

mod account;
mod door;
mod ear;
mod failure;
mod gain;
mod hearing;
mod interruption;
mod listeners;
mod loading;
pub mod messages;
mod place;
pub mod playback;
pub mod player;
mod recogniser;
mod recording;
mod schema;
mod state;
mod succession;
mod telephone;
#[cfg(test)]
mod tests;
pub mod turn;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use account::Account;
pub use door::Door;
use failure::Refusal;
use hearing::{EarNews, Hearing};
pub use loading::Clip;
pub use messages::StreamId;
use messages::{ErrorCode, ListenConfig, RoomConfig, ServerMessage, SessionConfig};
use place::Place;
use player::Player;
use recording::Recording;
pub use schema::socket_schema;
use state::{Command, Effect, Prepared, Session, SoundOf};
use turn::{Moment, VoiceEventKind};

use super::recorder::RecordingFailed;
use super::registry::calls::CallRegistry;
use super::registry::rooms::RoomRegistry;
use super::registry::sessions::{NameTaken, Register, Registration, SessionRegistry};
use super::room::{self, Entered};
use super::start_in_span;
use super::stt::feed::Feed;
use super::stt::{Stop, SttActor, SttNews, SttReport};
use super::tts::{ChangeVoice, Dismiss, TtsActor, TtsReport};
use vivavoce_audio::Encoding;
use vivavoce_auth::{Access, Pass};
use vivavoce_quotas::shared_limit;
use vivavoce_quotas::{Permit, Quotas, Refused};
use vivavoce_recordings::Recordings;
use vivavoce_recordings::egress::{Egress, Egresses};
use vivavoce_recordings::journal::Journal;
use vivavoce_seams::{Credential, ProviderTable, SpeechToText};
use vivavoce_socket::SocketWriter;
use vivavoce_synthesis::{SpeechConfig, SynthesisError, Synthesizer};
use vivavoce_telemetry::metrics::{self, OpenSession};
use vivavoce_telemetry::traces::SessionTrace;
use vivavoce_webhooks::Webhooks;

/// Messages of a client that wait to be looked at: more than come in one read.
const MAILBOX: usize = 2048;

/// Messages that are looked at before others have their turn.
const BURST: usize = 32;

/// How long a recogniser that takes another's place waits for a lull.
const LULL_PATIENCE: Duration = Duration::from_secs(1);

/// How long a message waits for a client that has many events to read yet.
const EVENT_PATIENCE: Duration = Duration::from_millis(100);

/// What differs from server to server.
#[derive(Debug, Clone, Copy)]
pub struct SessionSettings {
    /// How long a client may take to send a config that can be carried out.
    pub config_timeout: Duration,
    /// How far ahead of real time sound leaves; [`Duration::MAX`] is without pacing.
    pub lead: Duration,
    /// Of the encoder of what is said in a room, 0 (cheap) to 10.
    pub room_complexity: u8,
    /// Whether a session without a token may record while authentication is on.
    pub public_recordings: bool,
}

/// What all sessions share.
pub struct SessionServices {
    /// Who hears.
    pub providers: Arc<ProviderTable>,
    /// Who speaks.
    pub synthesizer: Arc<Synthesizer>,
    /// Who has which name.
    pub sessions: Addr<SessionRegistry>,
    /// Who knows whose rooms there are; `None` where there are none.
    pub rooms: Option<Addr<RoomRegistry>>,
    /// Who knows the calls; `None` where there are none.
    pub calls: Option<Addr<CallRegistry>>,
    /// Who is told that a session has ended, if anybody is.
    pub webhooks: Option<Webhooks>,
    /// Where recordings go; `None` where nothing is recorded.
    pub recordings: Option<Arc<Recordings>>,
    /// Recordings that whoever keeps the rooms makes; `None` where nobody does.
    pub egresses: Option<Arc<Egresses>>,
    /// What each may take from the others.
    pub quotas: Quotas,
    /// Cancelled when sessions have to end because the server does.
    pub closing: CancellationToken,
    /// See there.
    pub settings: SessionSettings,
}

/// Whoever opens a session.
pub struct Caller {
    /// Whose things they may touch.
    pub access: Access,
    /// Tells when their token is not good any more, where that can be known.
    pub pass: Option<Pass>,
    /// The id of the request that opened it.
    pub request_id: String,
    /// Where they have reached this server, as clients of rooms do.
    pub own_url: String,
}

/// What a session holds as long as it lives, so that others know.
pub struct Places {
    /// One of the sessions that there may be.
    pub session: Permit,
    /// One of the sockets that may be without config; given back with the first.
    pub unconfigured: shared_limit::Permit,
    /// The server waits for it when it stops.
    pub work: TaskTrackerToken,
}

/// A message of the client.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct FromClient(Command);

/// The socket is gone, and the session with it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct SocketClosed;

/// The server ends the session.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct EndSession {
    /// With this close code.
    pub code: u16,
    /// For people.
    pub reason: &'static str,
}

/// A recogniser in its current life.
struct Recogniser {
    life: u32,
    actor: Addr<SttActor>,
    feed: Feed,
}

/// The actor.
pub struct SessionActor {
    services: Arc<SessionServices>,
    /// Whose it is.
    access: Access,
    /// Until the session has started.
    pass: Option<Pass>,
    state: Session,
    writer: SocketWriter,
    hearing: Hearing,
    /// The one in force, the one that is being opened, and those that finish.
    recognisers: Vec<Recogniser>,
    /// They count as one.
    recogniser_permit: Option<Permit>,
    /// Of the config in force, and which that is.
    feed: Option<Feed>,
    in_force: u64,
    /// Of configs that were replaced, as long as somebody finishes hearing them.
    former_feeds: Vec<(u64, Feed)>,
    /// The output in force.
    output: Option<Player>,
    /// The same, for those who hear the participants of a room.
    output_of_room: Rc<RefCell<Option<Player>>>,
    synthesiser: Option<Addr<TtsActor>>,
    name: Option<Registration>,
    /// Of the config that is being carried out.
    name_asked_for: Option<Registration>,
    recording: Option<Recording>,
    /// Of the config that is being carried out.
    journal_asked_for: Option<Journal>,
    /// A recording that whoever keeps the room makes.
    egress: Option<Egress>,
    /// Of the config that is being carried out.
    egress_asked_for: Option<Egress>,
    place: Option<Place>,
    /// Of the config that is being carried out.
    entered_for: Option<(Entered, RoomConfig)>,
    room_turn: room::Turn,
    own_url: String,
    unconfigured: Option<shared_limit::Permit>,
    /// Messages that were looked at.
    messages: usize,
    alarm: Option<(std::time::Instant, SpawnHandle)>,
    /// Transfers and hang-ups that are under way.
    wishes: usize,
    /// Of which config and provider it was said what is ignored.
    ignored_told: Option<(u64, &'static str)>,
    account: Account,
    _session: Permit,
    work: TaskTrackerToken,
    _open: OpenSession,
    trace: SessionTrace,
}

/// Starts a session of this caller, and returns its socket's handler.
pub fn open(
    services: Arc<SessionServices>,
    places: Places,
    caller: Caller,
    writer: SocketWriter,
) -> Door {
    let (hearing, news) = Hearing::new();
    let providers = Arc::clone(&services.providers);
    let (heard, sent) = (hearing.clone(), writer.clone());
    let trace = SessionTrace::begin(&caller.request_id);
    let span = trace.span();
    let begin = move |context: &mut Context<SessionActor>| {
        context.set_mailbox_capacity(MAILBOX);
        context.add_stream(tokio_stream::wrappers::ReceiverStream::new(news));
        let now = Instant::now().into_std();
        SessionActor {
            state: Session::new(now, services.settings.config_timeout),
            account: Account::new(services.webhooks.clone(), &caller.access),
            services,
            access: caller.access,
            pass: caller.pass,
            writer,
            hearing,
            recognisers: Vec::new(),
            recogniser_permit: None,
            feed: None,
            in_force: 0,
            former_feeds: Vec::new(),
            output: None,
            output_of_room: Rc::default(),
            synthesiser: None,
            name: None,
            name_asked_for: None,
            recording: None,
            journal_asked_for: None,
            egress: None,
            egress_asked_for: None,
            place: None,
            entered_for: None,
            room_turn: room::Turn::default(),
            own_url: caller.own_url,
            unconfigured: Some(places.unconfigured),
            messages: 0,
            alarm: None,
            wishes: 0,
            ignored_told: None,
            _session: places.session,
            work: places.work,
            _open: metrics::session_opened(),
            trace,
        }
    };
    let session = span.in_scope(|| start_in_span(begin));
    Door::new(session, heard, sent, providers, span)
}

impl Actor for SessionActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.spawn(self.hearing.clone().run().into_actor(self));
        let closing = self.services.closing.clone().cancelled_owned();
        context.spawn(closing.into_actor(self).map(|(), session, context| {
            let moment = session.moment();
            session.state.end(1001, "the server is stopping", moment);
            session.carry_out(context);
        }));
        if let Some(pass) = self.pass.take() {
            context.spawn(pass.into_actor(self).map(|why, session, context| {
                tracing::info!(reason = why.reason(), "a session ends with its token");
                let moment = session.moment();
                session.state.expel(why.reason(), moment);
                session.carry_out(context);
            }));
        }
        self.set_alarm(context);
    }
}

impl Drop for SessionActor {
    /// However it ends, also by a panic: the children go with it, and the socket, whose closing tells the door.
    fn drop(&mut self) {
        for recogniser in &self.recognisers {
            recogniser.actor.do_send(Stop);
        }
        if let Some(synthesiser) = &self.synthesiser {
            synthesiser.do_send(Dismiss);
        }
        self.discard_journal();
        self.writer.close(1011, "internal error");
        self.account.ends(self.hearing.position());
    }
}

impl SessionActor {
    fn moment(&self) -> Moment {
        self.hearing.moment()
    }

    /// Tells the state what the output does.
    fn look_at_output(&mut self, moment: Moment) {
        let is_interruptible = self.output.as_ref().is_some_and(Player::is_interruptible);
        self.state.plays(is_interruptible, moment.heard);
    }

    /// Does what the state has decided.
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
                session.look_at_output(moment);
                session.state.tick(moment);
                session.carry_out(context);
            }));
            self.alarm = Some((at, alarm));
        }
    }

    fn effect(&mut self, effect: Effect, context: &mut Context<Self>) {
        match effect {
            Effect::Tell(message) => self.tell(&message),
            Effect::Prepare {
                config,
                stream_id,
                wanted,
                sound,
            } => self.prepare(config, stream_id, *wanted, sound, context),
            Effect::Commit {
                config,
                vad,
                recording,
                egress,
            } => {
                self.hearing.commit(config, &vad);
                self.record(recording, context);
                self.record_elsewhere(egress, context);
                self.take_place(vad, context);
                self.show_recording();
                let feed = self.hearing.feed(config).map(|(feed, _)| feed);
                let former = std::mem::replace(&mut self.feed, feed);
                let replaced = std::mem::replace(&mut self.in_force, config);
                self.former_feeds
                    .extend(former.map(|feed| (replaced, feed)));
                self.forget_former_feeds();
                self.account.begins();
                self.name = self.name.take().or_else(|| self.name_asked_for.take());
                self.unconfigured = None;
            }
            Effect::Discard { config } => {
                self.hearing.discard(config);
                self.name_asked_for = None;
                self.entered_for = None;
                self.egress_asked_for = None;
                self.discard_journal();
            }
            Effect::StartStt {
                life,
                config,
                listen,
            } => self.start_recogniser(life, config, listen, context),
            Effect::EndStt { life } => {
                let ending = self.recognisers.iter().find(|known| known.life == life);
                if let Some(ending) = ending {
                    self.hearing.end(&ending.feed);
                }
            }
            Effect::EndParticipants(patience) => self.end_participants(patience, context),
            Effect::Finalize => self.hearing.finalize(),
            Effect::SetOutput(speech) => self.set_output(speech.as_deref(), context),
            Effect::ChangeVoice(speech) => self.change_voice(*speech),
            Effect::StartTts { life, speech } => self.start_synthesiser(life, *speech, context),
            Effect::TtsLost => self.synthesiser_lost(),
            Effect::SetClip(clip) => {
                if let Some(player) = &self.output {
                    player.set_clip(clip);
                }
            }
            Effect::Load(on) => {
                if let Some(player) = &self.output {
                    player.load(on);
                }
            }
            Effect::SendToRoom(message) => self.send_to_room(message, context),
            Effect::Telephone(wish) => self.telephone(wish, context),
            Effect::ChangeRoom(config) => self.change_room(*config),
            Effect::Speak(speak) => {
                self.account.speaks(&speak.text);
                let refused = self.output.as_ref().map(|player| player.speak(speak));
                if let Some(Err(overloaded)) = refused {
                    self.refuse(ErrorCode::Overloaded, overloaded.to_string());
                }
            }
            Effect::Clear => {
                if let Some(player) = &self.output {
                    player.clear();
                }
            }
            Effect::Yield(mode) => {
                if let Some(player) = &self.output {
                    player.yields(mode);
                }
            }
            Effect::Resume => {
                if let Some(player) = &self.output {
                    player.resumes();
                }
            }
            Effect::Close { code, reason } => {
                tracing::debug!(code, reason, "a session closes its socket");
                self.account.closes(reason);
                self.writer.close(code, reason);
                context.stop();
            }
        }
    }

    fn tell(&mut self, message: &ServerMessage) {
        let text = message.to_json();
        // A voice may be understood that was not noticed before.
        if matches!(message, ServerMessage::SttResult(heard) if !heard.transcript.is_empty()) {
            self.trace.turn_goes_on();
        }
        match message {
            ServerMessage::SttResult(result) if !result.is_final => {
                self.writer.latest("stt_result", text);
            }
            ServerMessage::SttResult(result) => {
                if let Some(recording) = &self.recording {
                    recording.tap.note_final(result);
                }
                self.writer.event(text);
            }
            ServerMessage::VadEvent(event) => {
                match (event.event, event.reason) {
                    (VoiceEventKind::SpeechStart, _) => self.trace.turn_goes_on(),
                    (VoiceEventKind::TurnEnd, Some(reason)) => self.trace.turn_ends(reason.name()),
                    _ => {}
                }
                self.writer.latest(event.event.name(), text);
            }
            ServerMessage::Error { .. } => self.writer.error(text),
            // Others decide how many there are: what a slow client loses is theirs.
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

    fn refuse(&mut self, code: ErrorCode, message: impl Into<String>) {
        self.tell(&ServerMessage::refusal(code, message));
    }

    /// Finds out whether a config can be carried out, without starting anything.
    fn prepare(
        &mut self,
        config: u64,
        stream_id: StreamId,
        wanted: SessionConfig,
        sound: SoundOf,
        context: &mut Context<Self>,
    ) {
        let checked = self
            .check(&wanted)
            .and_then(|()| self.count_recogniser(&wanted))
            .and_then(|()| self.find_sound(config, &wanted, sound, context));
        let is_heard = match checked {
            Ok(is_heard) => is_heard,
            Err(refusal) => {
                let now = self.moment().now;
                self.state.prepared(config, Err(refusal), now);
                return self.carry_out(context);
            }
        };
        let patience = self.patience(&wanted);
        if self.name.is_none() {
            self.account.asks(&stream_id);
        }
        let begin = self.begin_recording(&stream_id, &wanted);
        let begin_elsewhere = self.begin_egress(&stream_id, &wanted);
        let enter = self.enter_room(&wanted);
        let register = self.name.is_none().then(|| Register {
            stream_id,
            access: self.access.clone(),
            session: context.address().recipient(),
        });
        let sessions = self.services.sessions.clone();
        let rate = wanted.tts.as_ref().map(|tts| tts.format);
        let prepare = async move {
            let name = match register {
                None => None,
                Some(register) => match sessions.send(register).await {
                    Ok(Ok(name)) => Some(name),
                    Ok(Err(NameTaken)) => {
                        let problem = "stream_id: a live session has this name";
                        return Err(Refusal::new(ErrorCode::StreamIdInUse, problem));
                    }
                    Err(error) => return Err(Refusal::new(ErrorCode::Internal, error.to_string())),
                },
            };
            let clip = match (wanted.loading_audio, rate) {
                // Elsewhere it could not be mixed; loading_start says so.
                (Some(audio), Some(format)) if format.encoding == Encoding::Linear16 => {
                    let decode = move || Clip::decode(&audio, format.layout.rate);
                    let clip = tokio::task::spawn_blocking(decode).await;
                    Some(clip.map_err(|error| {
                        Refusal::new(ErrorCode::Internal, format!("loading_audio: {error}"))
                    })?)
                }
                _ => None,
            };
            let entered = enter.await?;
            let journal = begin.await?;
            // The room is there now.
            let egress = begin_elsewhere.await?;
            let prepared = Prepared {
                clip,
                is_heard,
                patience,
                room: None,
            };
            Ok((name, journal, egress, entered, prepared))
        };
        context.spawn(
            prepare
                .into_actor(self)
                .map(move |outcome, session, context| {
                    let prepared = outcome.map(|(name, journal, egress, entered, mut prepared)| {
                        session.name_asked_for = name;
                        session.journal_asked_for = journal;
                        session.egress_asked_for = egress;
                        let shown = entered
                            .as_ref()
                            .map(|(entered, config)| session.shown(entered, config));
                        prepared.room = shown;
                        session.entered_for = entered;
                        prepared
                    });
                    let now = session.moment().now;
                    session.state.prepared(config, prepared, now);
                    // A config that was given up meanwhile.
                    if !session.state.is_carrying_out(config) && !session.state.is_in_force(config)
                    {
                        session.entered_for = None;
                        session.egress_asked_for = None;
                        session.discard_journal();
                    }
                    session.carry_out(context);
                }),
        );
    }

    /// What can be said of a config at once.
    fn check(&self, wanted: &SessionConfig) -> Result<(), Refusal> {
        let records = wanted.records() || wanted.room_for_egress().is_some();
        if records && self.access.is_public() && !self.services.settings.public_recordings {
            let problem =
                "recording: a session without a token records only with auth.public_recordings";
            return Err(Refusal::new(ErrorCode::RecordingUnavailable, problem));
        }
        let providers = &self.services.providers;
        let alone = listeners::listens_alone(wanted.rtc.as_ref());
        if let Some(listen) = wanted.stt.as_ref().or(alone) {
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

    /// A session that hears is counted once, however often its recogniser is replaced.
    fn count_recogniser(&mut self, wanted: &SessionConfig) -> Result<(), Refusal> {
        if wanted.stt.is_some() && self.recogniser_permit.is_none() {
            let taken = self.services.quotas.recognisers.take(&self.access.party());
            let refused = |error: Refused| Refusal::new(ErrorCode::Overloaded, error.to_string());
            self.recogniser_permit = Some(taken.map_err(refused)?);
        }
        Ok(())
    }

    /// Finds the sound for a config's recogniser. Whether the recogniser in force hears it already.
    fn find_sound(
        &self,
        config: u64,
        wanted: &SessionConfig,
        sound: SoundOf,
        context: &mut Context<Self>,
    ) -> Result<bool, Refusal> {
        let Some(listen) = &wanted.stt else {
            if matches!(sound, SoundOf::Session { .. }) {
                self.hearing.follow(config);
            }
            return Ok(false);
        };
        let (SoundOf::Message { anew } | SoundOf::Session { anew }) = sound;
        if matches!(sound, SoundOf::Session { .. }) {
            self.hearing.follow(config);
        }
        let Some((feed, layout)) = self.hearing.feed(config) else {
            let problem = "stt_config: this format cannot be decoded";
            return Err(Refusal::new(ErrorCode::Internal, problem));
        };
        let is_heard = self.feed.as_ref().is_some_and(|known| known.is(&feed));
        let accepted = door::accepted(&self.services.providers, listen);
        // A recogniser that was given up leaves its feed to the next, who hears what is kept.
        if !is_heard || (!anew && layout.rate == accepted.layout.rate) {
            return Ok(is_heard);
        }
        self.hearing.hand_over(config, listen, accepted);
        context.run_later(LULL_PATIENCE, move |session, _| {
            session.hearing.make_handover(config);
        });
        Ok(false)
    }

    /// How long each recogniser of a config may take over a final.
    fn patience(&self, wanted: &SessionConfig) -> Vec<Duration> {
        let listen = wanted.stt.as_ref();
        listen.map_or_else(Vec::new, |listen| {
            recogniser::patience(&self.services.providers, listen)
        })
    }

    /// The feed of a config, also of one that was replaced and is still heard.
    fn feed_of(&self, config: u64) -> Option<Feed> {
        let mut former = self.former_feeds.iter();
        if let Some((_, feed)) = former.find(|(known, _)| *known == config) {
            return Some(feed.clone());
        }
        self.hearing.feed(config).map(|(feed, _)| feed)
    }

    fn forget_former_feeds(&mut self) {
        let state = &self.state;
        self.former_feeds
            .retain(|(config, _)| state.needs_sound_of(*config));
    }

    fn start_recogniser(
        &mut self,
        life: u32,
        config: u64,
        listen: ListenConfig,
        context: &mut Context<Self>,
    ) {
        let provider = self.services.providers.speech_to_text(&listen.provider);
        let (Some(provider), Some(feed)) = (provider, self.feed_of(config)) else {
            // Both were there when the config was checked, and stay as long as it is heard.
            return;
        };
        if self.feed.is_some() && self.state.is_in_force(config) {
            metrics::stt_restarted();
        }
        self.tell_ignored(config, provider.as_ref(), &listen);
        let report = context.address().recipient();
        let providers = &self.services.providers;
        let Some(actor) =
            recogniser::actor(providers, listen, &feed, self.access.party(), report, life)
        else {
            return;
        };
        let actor = start_in_span(|_| actor);
        self.recognisers.push(Recogniser { life, actor, feed });
    }

    /// Wishes that a provider does not know are said once for each config.
    fn tell_ignored(&mut self, config: u64, provider: &dyn SpeechToText, listen: &ListenConfig) {
        let told = (config, provider.slug());
        if self.ignored_told == Some(told) {
            return;
        }
        self.ignored_told = Some(told);
        if let Some(ignored) = recogniser::ignored(provider, listen) {
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
        }
        let Some(speech) = speech else { return };
        let mouth = self.place.as_ref().map(|place| place.mouth.clone());
        let lead = match &mouth {
            Some(_) => room::LEAD,
            None => self.services.settings.lead,
        };
        let player = Player::new(self.writer.clone(), speech.format, lead, mouth);
        player.tell_words(speech.progress);
        player.set_recorder(
            self.recording
                .as_ref()
                .map(|recording| recording.tap.clone()),
        );
        // The clip comes behind it, and goes on where the one before was heard.
        player.load(loads);
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

    fn start_synthesiser(&mut self, life: u32, speech: SpeechConfig, context: &mut Context<Self>) {
        let Some(player) = self.output.clone() else {
            return;
        };
        let synthesizer = Arc::clone(&self.services.synthesizer);
        let party = self.access.party();
        let report = (life, context.address().recipient());
        let actor = TtsActor::new(synthesizer, speech, party, player, report);
        let actor = start_in_span(|_| actor);
        self.synthesiser = Some(actor);
    }

    /// What is queued so far is said as it was to be.
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
        let lost = self.output.as_ref().is_some_and(Player::synthesizer_lost);
        if lost {
            self.refuse(
                ErrorCode::TtsFailed,
                "the synthesiser has ended in the middle",
            );
        }
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
        // Every other field was checked when the message was read.
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
        let moment = self.moment();
        self.look_at_output(moment);
        self.state.message(command);
        self.carry_out(context);
        self.messages += 1;
        // What was told meanwhile has its chance to be sent before more is.
        if !self.writer.has_event_room() {
            let writer = self.writer.clone();
            let room = async move {
                // A client that does not read is not waited for: its sound is heard, and what it is told has its bound.
                let _late = tokio::time::timeout(EVENT_PATIENCE, writer.event_room()).await;
            };
            context.wait(room.into_actor(self));
        } else if self.messages.is_multiple_of(BURST) {
            context.wait(tokio::task::yield_now().into_actor(self));
        }
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
        let life = report.life;
        let stopped = matches!(report.news, SttNews::Stopped(_));
        let lost = self.feed.as_ref().map_or(Duration::ZERO, Feed::lost) + self.hearing.undecoded();
        if stopped {
            self.recognisers.retain(|known| known.life != life);
        }
        let moment = self.moment();
        self.look_at_output(moment);
        self.state.stt(report, lost, moment);
        self.carry_out(context);
        self.forget_former_feeds();
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

impl StreamHandler<EarNews> for SessionActor {
    fn handle(&mut self, news: EarNews, context: &mut Context<Self>) {
        let moment = self.moment();
        self.look_at_output(moment);
        self.state.ear(news, moment);
        self.carry_out(context);
    }

    /// Its end is the session's.
    fn finished(&mut self, _: &mut Context<Self>) {}
}
