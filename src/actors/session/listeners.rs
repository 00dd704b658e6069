//! The participants of a room heard each alone (`rtc.stt_mode` `per_participant`): a small actor for each of them, with a
//! hearing, a recogniser and turns of its own, all decided by the same [`Session`] state as a client's. What it tells is
//! told with who it is about; who speaks over playback interrupts it as ever.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use super::door;
use super::hearing::{EarNews, Hearing};
use super::messages::{
    ClientMessage, ErrorCode, ListenConfig, RoomConfig, ServerMessage, SessionConfig, StreamId,
    VadConfig,
};
use super::player::Player;
use super::state::{Command, Effect, LAST_WORDS, Prepared, Session};
use super::turn::Moment;
use super::{SessionServices, recogniser};
use crate::room::Listener;
use crate::start_in_span;
use crate::stt::feed::Feed;
use crate::stt::{Stop, SttActor, SttNews, SttReport};
use crate::supervision::{RestartPolicy, Restarts, jitter};
use vivavoce_audio::{Layout, Pcm, SampleRate};
use vivavoce_quotas::{Party, Permit, Refused};
use vivavoce_socket::SocketWriter;

/// Participants that are heard at once; further ones are not.
const MOST_LISTENERS: usize = 32;
/// Participants that are remembered because there was no recogniser for them.
const MOST_UNHEARD: usize = 1_024;
const LAYOUT: Layout = Layout::mono(SampleRate::HZ_48000);

/// What all listeners of a session share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) services: Arc<SessionServices>,
    /// For whom their recognisers count.
    pub(super) party: Party,
    pub(super) writer: SocketWriter,
    /// What is being said, if anything can be.
    pub(super) player: Rc<RefCell<Option<Player>>>,
    /// How to listen.
    pub(super) wanted: Rc<RefCell<(ListenConfig, VadConfig)>>,
    /// The providers of which it was told, since `wanted` was set, what they ignore of it.
    pub(super) ignored_told: Rc<RefCell<Vec<&'static str>>>,
    /// Of the recording.
    pub(super) session: Hearing,
    /// Holds a token of each listener that lives, also of one whose participant has left.
    pub(super) listening: TaskTracker,
    /// How much was transcribed of all of them together.
    pub(super) transcribed: Rc<Cell<Duration>>,
}

impl Common {
    fn provider_event(&self, state: &'static str, provider: String, message: String) {
        let event = ServerMessage::ProviderEvent {
            kind: "stt",
            state,
            provider,
            message,
        };
        self.writer.event(event.to_json());
    }

    /// The sound of a participant that comes from now on is for this config. False when too many wait already.
    fn expect(
        &self,
        hearing: &Hearing,
        config: u64,
        (listen, vad): &(ListenConfig, VadConfig),
    ) -> bool {
        let accepted = door::accepted(&self.services.providers, listen);
        hearing.expect(config, Some((listen, accepted)), vad, true)
    }
}

/// Transcribes each participant alone.
pub(super) struct Each {
    common: Common,
    /// How much of the room the session has heard, in samples of [`LAYOUT`]: the clock of all participants.
    clock: Cell<u64>,
    participants: RefCell<HashMap<String, Participant>>,
    /// Participants for whom there was no recogniser: they are not heard until they come again.
    unheard: RefCell<HashSet<String>>,
    /// The session ends: nobody is heard any more.
    ended: Cell<bool>,
}

struct Participant {
    hearing: Hearing,
    listener: Addr<ListenerActor>,
    /// Whether the listener has come to an end by itself: one that is gone without it has panicked.
    has_ended: Rc<Cell<bool>>,
    restarts: Restarts,
    /// It has panicked too often, or there is no recogniser for another.
    given_up: bool,
    /// Up to where on the clock there was audio of theirs.
    heard_until: u64,
}

impl Participant {
    fn has_panicked(&self) -> bool {
        !self.given_up && !self.has_ended.get() && !self.listener.connected()
    }
}

impl Each {
    pub(super) fn new(common: Common) -> Self {
        Self {
            common,
            clock: Cell::new(0),
            participants: RefCell::default(),
            unheard: RefCell::default(),
            ended: Cell::new(false),
        }
    }

    /// One more recogniser, if there may be one; if not, the client is told once of each participant.
    fn count(&self, identity: &str) -> Option<Permit> {
        let mut unheard = self.unheard.borrow_mut();
        if unheard.contains(identity) {
            return None;
        }
        let taken = self
            .common
            .services
            .quotas
            .recognisers
            .take(&self.common.party);
        let told = |refused: &Refused| {
            let refusal = ServerMessage::refusal(ErrorCode::Overloaded, refused.to_string());
            self.common.writer.error(refusal.to_json());
            if unheard.len() < MOST_UNHEARD {
                unheard.insert(identity.to_owned());
            }
        };
        taken.inspect_err(told).ok()
    }

    /// Starts another listener in place of one that has panicked, after a while. What is heard until then waits for it.
    fn restart(&self, identity: &str, participant: &mut Participant) {
        let provider = self.common.wanted.borrow().0.provider.clone();
        let delay = participant.restarts.next(Instant::now(), jitter());
        let Some(delay) = delay else {
            participant.given_up = true;
            let failed = format!("the transcription of {identity:?} has failed too often");
            let refusal = format!("{failed}; nothing more is heard until they leave and return");
            self.common.provider_event("failed", provider, failed);
            let refusal = ServerMessage::refusal(ErrorCode::SttFailed, refusal);
            return self.common.writer.error(refusal.to_json());
        };
        let Some(permit) = self.count(identity) else {
            participant.given_up = true;
            return;
        };
        let failed = format!("the transcription of {identity:?} has failed and is started again");
        self.common.provider_event("reconnecting", provider, failed);
        let start = duration_of(self.clock.get());
        let (hearing, listener, has_ended) =
            ListenerActor::start_for(identity, &self.common, permit, start, delay);
        participant.hearing = hearing;
        participant.listener = listener;
        participant.has_ended = has_ended;
        participant.heard_until = self.clock.get();
    }

    /// The session ends: what was said is understood first, within this time. The future ends when all of it was told.
    pub(super) fn end(&self, patience: Duration) -> impl Future<Output = ()> + use<> {
        self.ended.set(true);
        self.finish_all(patience);
        let listening = self.common.listening.clone();
        listening.close();
        async move { listening.wait().await }
    }

    fn finish_all(&self, patience: Duration) {
        for (_, participant) in self.participants.borrow_mut().drain() {
            // One for each life.
            participant.listener.do_send(Finish { patience });
        }
    }

    /// How to listen from now on.
    pub(super) fn change_listen(&self, listen: ListenConfig) {
        let vad = self.common.wanted.borrow().1;
        self.change(listen, vad);
    }

    /// How to look for voice activity from now on.
    pub(super) fn change_vad(&self, vad: VadConfig) {
        let listen = self.common.wanted.borrow().0.clone();
        self.change(listen, vad);
    }

    fn change(&self, listen: ListenConfig, vad: VadConfig) {
        let wanted = (listen, vad);
        if *self.common.wanted.borrow() == wanted {
            return;
        }
        if self.common.wanted.borrow().0 != wanted.0 {
            self.common.ignored_told.borrow_mut().clear();
        }
        *self.common.wanted.borrow_mut() = wanted;
        for participant in self.participants.borrow().values() {
            // One for each config.
            participant.listener.do_send(Change);
        }
    }
}

impl Listener for Each {
    fn hear(&self, samples: &[i16]) {
        self.clock.set(self.clock.get() + samples.len() as u64);
        self.common
            .session
            .overhear(&Pcm::new(LAYOUT, samples.to_vec()));
    }

    fn hear_one(&self, identity: &str, samples: &[i16]) {
        let mut participants = self.participants.borrow_mut();
        let now = self.clock.get();
        if self.ended.get() {
            return;
        }
        if !participants.contains_key(identity) {
            if participants.len() >= MOST_LISTENERS {
                return;
            }
            let Some(permit) = self.count(identity) else {
                return;
            };
            let start = duration_of(now);
            let delay = Duration::ZERO;
            let (hearing, listener, has_ended) =
                ListenerActor::start_for(identity, &self.common, permit, start, delay);
            let participant = Participant {
                hearing,
                listener,
                has_ended,
                restarts: Restarts::new(RestartPolicy::RECOGNISER),
                given_up: false,
                heard_until: now,
            };
            participants.insert(identity.to_owned(), participant);
        }
        if let Some(participant) = participants.get_mut(identity) {
            if participant.has_panicked() {
                self.restart(identity, participant);
            }
            // One that has ended by itself hears nothing more either, and costs nothing.
            if participant.given_up || !participant.listener.connected() {
                return;
            }
            // They had no track meanwhile.
            let gap = now.saturating_sub(participant.heard_until);
            if gap > 0 {
                participant.hearing.skip(duration_of(gap));
            }
            participant.heard_until = now + samples.len() as u64;
            let sound = vivavoce_audio::linear16::encode(samples);
            if participant.hearing.hear(sound).is_ok() {
                let transcribed = &self.common.transcribed;
                transcribed.set(transcribed.get() + duration_of(samples.len() as u64));
            }
        }
    }

    fn lost(&self, identity: &str) {
        self.unheard.borrow_mut().remove(identity);
        if let Some(participant) = self.participants.borrow_mut().remove(identity) {
            // One for each life.
            let patience = LAST_WORDS;
            participant.listener.do_send(Finish { patience });
        }
    }
}

impl Drop for Each {
    fn drop(&mut self) {
        self.finish_all(LAST_WORDS);
    }
}

fn duration_of(samples: u64) -> Duration {
    LAYOUT.rate.duration_of(samples as usize)
}

/// The participant has left, or the session: what was said is understood first.
#[derive(Message)]
#[rtype(result = "()")]
struct Finish {
    /// How long the last words may take.
    patience: Duration,
}

/// What is wanted has changed.
#[derive(Message)]
#[rtype(result = "()")]
struct Change;

/// Hears one participant.
struct ListenerActor {
    identity: String,
    common: Common,
    state: Session,
    hearing: Hearing,
    recognisers: Vec<(u32, Addr<SttActor>, Feed)>,
    /// Of the config in force.
    feed: Option<Feed>,
    configs: u64,
    /// What the first config wants: its sound comes before the actor has started.
    first: Option<(ListenConfig, VadConfig)>,
    /// How long it waits before it is carried out.
    delay: Duration,
    /// Whether the client is to be told when the participant is transcribed again.
    recovers: bool,
    /// See [`Participant`].
    has_ended: Rc<Cell<bool>>,
    alarm: Option<(std::time::Instant, SpawnHandle)>,
    _counted: Permit,
    _listening: TaskTrackerToken,
}

impl ListenerActor {
    /// `start` is the place of the first sample in the session's audio. It begins after `delay`; one that has a delay takes
    /// the place of one that has panicked.
    fn start_for(
        identity: &str,
        common: &Common,
        permit: Permit,
        start: Duration,
        delay: Duration,
    ) -> (Hearing, Addr<Self>, Rc<Cell<bool>>) {
        let (hearing, news) = Hearing::new();
        hearing.begin_at(start);
        let first = common.wanted.borrow().clone();
        common.expect(&hearing, 1, &first);
        let (identity, common) = (identity.to_owned(), common.clone());
        let heard = hearing.clone();
        let listening = common.listening.token();
        let has_ended = Rc::new(Cell::new(false));
        let ended = Rc::clone(&has_ended);
        let patience = common.services.settings.config_timeout;
        let begin = move |context: &mut Context<Self>| {
            context.add_stream(tokio_stream::wrappers::ReceiverStream::new(news));
            Self {
                state: Session::new(Instant::now().into_std(), patience),
                identity,
                common,
                hearing: heard,
                recognisers: Vec::new(),
                feed: None,
                configs: 1,
                first: Some(first),
                delay,
                recovers: !delay.is_zero(),
                has_ended: ended,
                alarm: None,
                _counted: permit,
                _listening: listening,
            }
        };
        (hearing, start_in_span(begin), has_ended)
    }

    fn moment(&self) -> Moment {
        self.hearing.moment()
    }

    fn look_at_output(&mut self, moment: Moment) {
        let player = self.common.player.borrow();
        let is_interruptible = player.as_ref().is_some_and(Player::is_interruptible);
        self.state.plays(is_interruptible, moment.heard);
    }

    fn begin(&mut self, context: &mut Context<Self>) {
        if let Some(first) = self.first.take() {
            self.configure(first, context);
        }
    }

    fn reconfigure(&mut self, context: &mut Context<Self>) {
        // Whatever was waited for: the configs are in order.
        self.begin(context);
        self.configs += 1;
        let wanted = self.common.wanted.borrow().clone();
        if self.common.expect(&self.hearing, self.configs, &wanted) {
            self.configure(wanted, context);
        }
    }

    fn configure(&mut self, (listen, vad): (ListenConfig, VadConfig), context: &mut Context<Self>) {
        let wanted = SessionConfig {
            stream_id: Some(StreamId::random()).filter(|_| self.configs == 1),
            stt: Some(listen),
            tts: None,
            loading_audio: None,
            vad,
            rtc: None,
            recording: false,
        };
        self.state.message(Command {
            config: self.configs,
            message: ClientMessage::Config(Box::new(wanted)),
            bytes: 0,
        });
        self.carry_out(context);
    }

    fn carry_out(&mut self, context: &mut Context<Self>) {
        // What is decided may bring more to be decided.
        loop {
            let effects = self.state.take_effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                self.effect(effect, context);
            }
        }
        self.set_alarm(context);
    }

    fn effect(&mut self, effect: Effect, context: &mut Context<Self>) {
        match effect {
            Effect::Tell(message) => self.tell(&message),
            Effect::Prepare { config, wanted, .. } => {
                let feed = self.hearing.feed(config);
                let is_heard = feed
                    .zip(self.feed.as_ref())
                    .is_some_and(|((feed, _), in_force)| feed.is(in_force));
                let patience = wanted
                    .stt
                    .as_ref()
                    .map(|listen| recogniser::patience(&self.common.services.providers, listen));
                let prepared = Prepared {
                    clip: None,
                    is_heard,
                    patience: patience.unwrap_or_default(),
                    room: None,
                };
                let now = self.moment().now;
                self.state.prepared(config, Ok(prepared), now);
            }
            Effect::Commit { config, vad, .. } => {
                self.hearing.commit(config, &vad);
                self.feed = self.hearing.feed(config).map(|(feed, _)| feed);
            }
            Effect::Discard { config } => self.hearing.discard(config),
            Effect::StartStt {
                life,
                config,
                listen,
            } => self.start_recogniser(life, config, listen, context),
            Effect::EndStt { life } => {
                let ending = self.recognisers.iter().find(|(known, ..)| *known == life);
                if let Some((_, _, feed)) = ending {
                    self.hearing.end(feed);
                }
            }
            Effect::Finalize => self.hearing.finalize(),
            Effect::Close { .. } => {
                self.has_ended.set(true);
                context.stop();
            }
            effect => self.to_player(&effect),
        }
    }

    /// Whoever speaks over playback has it yield, as the session's config says.
    fn to_player(&self, effect: &Effect) {
        let player = self.common.player.borrow();
        let Some(player) = &*player else { return };
        match effect {
            Effect::Yield(mode) => player.yields(*mode),
            Effect::Resume => player.resumes(),
            Effect::Clear => player.clear(),
            // A listener neither speaks nor is in a room.
            _ => {}
        }
    }

    fn tell(&mut self, message: &ServerMessage) {
        if matches!(message, ServerMessage::Ready { .. }) {
            if std::mem::take(&mut self.recovers) {
                let provider = self.common.wanted.borrow().0.provider.clone();
                let message = format!(
                    "{:?} is transcribed again; what was said just before it failed may be lost",
                    self.identity
                );
                self.common.provider_event("recovered", provider, message);
            }
            return;
        }
        let Ok(mut value) = serde_json::to_value(message) else {
            return;
        };
        let about_somebody = matches!(
            message,
            ServerMessage::SttResult(_)
                | ServerMessage::VadEvent(_)
                | ServerMessage::Interruption(_)
        );
        if let (true, Some(fields)) = (about_somebody, value.as_object_mut()) {
            let identity = Value::from(self.identity.as_str());
            fields.insert("identity".to_owned(), identity);
        }
        if let ServerMessage::SttResult(result) = message
            && result.is_final
        {
            let mut result = result.clone();
            result.identity = Some(self.identity.clone());
            self.common.session.note_final(&result);
        }
        let text = value.to_string();
        #[cfg(test)]
        assert!(!text.contains(super::tests::POISON_WORDS), "a mistake");
        match message {
            ServerMessage::Error { .. } => self.common.writer.error(text),
            ServerMessage::SttResult(result) if !result.is_final => {
                let identity = &self.identity;
                self.common
                    .writer
                    .latest_about("stt_result", identity, text);
            }
            ServerMessage::VadEvent(event) => {
                let (kind, identity) = (event.event.name(), &self.identity);
                self.common.writer.latest_about(kind, identity, text);
            }
            _ => self.common.writer.event(text),
        }
    }

    fn start_recogniser(
        &mut self,
        life: u32,
        config: u64,
        listen: ListenConfig,
        context: &mut Context<Self>,
    ) {
        let Some((feed, _)) = self.hearing.feed(config) else {
            return;
        };
        let report = context.address().recipient();
        self.tell_ignored(&listen);
        let providers = &self.common.services.providers;
        let party = self.common.party.clone();
        let Some(actor) = recogniser::actor(providers, listen, &feed, party, report, life) else {
            return;
        };
        let actor = start_in_span(|_| actor);
        self.recognisers.push((life, actor, feed));
    }

    /// What a provider ignores is told once for all participants.
    fn tell_ignored(&mut self, listen: &ListenConfig) {
        let providers = &self.common.services.providers;
        let Some(provider) = providers.speech_to_text(&listen.provider) else {
            return;
        };
        {
            let mut told = self.common.ignored_told.borrow_mut();
            if told.contains(&provider.slug()) {
                return;
            }
            told.push(provider.slug());
        }
        if let Some(ignored) = recogniser::ignored(provider.as_ref(), listen) {
            self.tell(&ignored);
        }
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
            let alarm = context.spawn(alarm.into_actor(self).map(|(), listener, context| {
                listener.alarm = None;
                let moment = listener.moment();
                listener.look_at_output(moment);
                listener.state.tick(moment);
                listener.carry_out(context);
            }));
            self.alarm = Some((at, alarm));
        }
    }
}

impl Actor for ListenerActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        let hearing = self.hearing.clone().run().in_current_span();
        context.spawn(hearing.into_actor(self));
        if self.delay.is_zero() {
            self.begin(context);
        } else {
            context.run_later(self.delay, Self::begin);
        }
    }
}

impl Drop for ListenerActor {
    fn drop(&mut self) {
        for (_, recogniser, _) in &self.recognisers {
            recogniser.do_send(Stop);
        }
    }
}

impl Handler<Change> for ListenerActor {
    type Result = ();

    fn handle(&mut self, _: Change, context: &mut Context<Self>) {
        self.reconfigure(context);
    }
}

impl Handler<Finish> for ListenerActor {
    type Result = ();

    fn handle(&mut self, Finish { patience }: Finish, context: &mut Context<Self>) {
        let moment = self.moment();
        let reason = "the participant has left";
        self.state.end_within(1000, reason, patience, moment);
        self.carry_out(context);
    }
}

impl Handler<SttReport> for ListenerActor {
    type Result = ();

    fn handle(&mut self, report: SttReport, context: &mut Context<Self>) {
        let life = report.life;
        if matches!(report.news, SttNews::Stopped(_)) {
            self.recognisers.retain(|(known, ..)| *known != life);
        }
        let lost = self.hearing.undecoded();
        let moment = self.moment();
        self.look_at_output(moment);
        self.state.stt(report, lost, moment);
        self.carry_out(context);
    }
}

impl StreamHandler<EarNews> for ListenerActor {
    fn handle(&mut self, news: EarNews, context: &mut Context<Self>) {
        let moment = self.moment();
        self.look_at_output(moment);
        self.state.ear(news, moment);
        self.carry_out(context);
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}

/// Whether a config wants everybody heard alone.
pub(super) fn listens_alone(room: Option<&RoomConfig>) -> Option<&ListenConfig> {
    room.and_then(|room| room.listen.as_deref())
}
