//! Transcription of each participant of a room by itself (`rtc.stt_mode` `per_participant`): a small actor per participant
//! that [listens](Listening) to them as a session listens to its client, with recognisers, turns and barge-in decided by the
//! same [`RecogniserMachine`]. Its events carry the participant's identity.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use super::SessionServices;
use super::audio_input::{AudioInput, InputEvent};
use super::barge_in::InterruptionReason;
use super::error_codes::Refusal;
use super::listening::{self, Listening};
use super::player::Player;
use super::protocol::{ErrorCode, ListenConfig, ServerMessage, VadConfig};
use super::state::LAST_WORDS;
use super::state::ending::Ending;
use super::state::recogniser::{Output, RecogniserMachine};
use super::turn::Moment;
use crate::restarts::{RestartPolicy, Restarts, jitter};
use crate::room::{AnswerWords, LAYOUT, RoomAudioSink};
use crate::start_in_span;
use crate::stt::SttReport;
use vivavoce_audio::{Bandwidth, Pcm};
use vivavoce_quotas::{Party, Permit, Refused};
use vivavoce_socket::SocketWriter;
use vivavoce_telemetry::conversation::Conversation;

/// The most participants that are transcribed at once; further ones are not.
const MAX_TRANSCRIBERS: usize = 32;
/// The most participants that are remembered because there was no recogniser for them.
const MAX_REJECTED: usize = 1_024;

/// How participants are listened to.
pub(super) type Wanted = (ListenConfig, VadConfig);

/// What all transcribers of a session share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) services: Arc<SessionServices>,
    /// For whom their recognisers count.
    pub(super) party: Party,
    pub(super) trace: Conversation,
    pub(super) writer: SocketWriter,
    /// The output of the session, if it has one.
    pub(super) player: Rc<RefCell<Option<Player>>>,
    pub(super) wanted: Rc<RefCell<Wanted>>,
    /// The providers whose unsupported options the client was told of since `wanted` was set.
    pub(super) ignored_told: Rc<RefCell<Vec<&'static str>>>,
    /// The audio input of the session, for its recording.
    pub(super) session: AudioInput,
    /// How much audio of the room the session has heard, in samples of [`LAYOUT`]: the clock of all participants.
    pub(super) clock: Rc<Cell<u64>>,
    /// Passes words on to calls that want to know who has answered.
    pub(super) words: Rc<AnswerWords>,
    /// Holds a token of each running transcriber, also of one whose participant has left.
    pub(super) running: TaskTracker,
    /// How much was transcribed of all of them together.
    pub(super) transcribed: Rc<Cell<Duration>>,
}

impl Common {
    fn provider_event(&self, state: &'static str, message: String) {
        let provider = &self.wanted.borrow().0.provider;
        let event = ServerMessage::provider_event("stt", state, provider, message);
        self.writer.event(event.to_json());
    }

    /// How much of the spectrum is of use to the recognisers that are wanted.
    fn bandwidth(&self) -> Bandwidth {
        let (listen, vad) = &*self.wanted.borrow();
        if vad.noise_suppression {
            return Bandwidth::Fullband;
        }
        Bandwidth::of(
            listening::accepted(&self.services.providers, listen)
                .layout
                .rate,
        )
    }

    /// The audio of a participant that comes from now on is for this config. False when too many are pending.
    fn expect(&self, input: &AudioInput, config: u64, (listen, vad): &Wanted) -> bool {
        let accepted = listening::accepted(&self.services.providers, listen);
        input.expect(config, Some((listen, accepted)), vad, true)
    }
}

/// Transcribes each participant by itself.
pub(super) struct ParticipantTranscribers {
    common: Common,
    participants: RefCell<HashMap<String, Participant>>,
    /// Participants for whom there was no recogniser: they are not transcribed until they leave and return.
    rejected: RefCell<HashSet<String>>,
    /// How much of the spectrum the recognisers take that are wanted.
    wanted_bandwidth: Cell<Bandwidth>,
    /// The session ends: no more audio is accepted.
    ended: Cell<bool>,
}

struct Participant {
    running: Running,
    restarts: Restarts,
    /// Its transcriber has panicked too often, or there is no recogniser for another.
    given_up: bool,
    /// Up to where on the clock it had audio.
    heard_until: u64,
}

/// A transcriber that was started.
struct Running {
    input: AudioInput,
    transcriber: Addr<TranscriberActor>,
    /// Whether it has ended in order: one that is gone otherwise has panicked.
    has_ended: Rc<Cell<bool>>,
}

impl Participant {
    fn has_panicked(&self) -> bool {
        !self.given_up && !self.running.has_ended.get() && !self.running.transcriber.connected()
    }
}

impl ParticipantTranscribers {
    pub(super) fn new(common: Common) -> Self {
        Self {
            wanted_bandwidth: Cell::new(common.bandwidth()),
            common,
            participants: RefCell::default(),
            rejected: RefCell::default(),
            ended: Cell::new(false),
        }
    }

    /// Takes a permit for one more recogniser; if there is none the client is told once per participant.
    fn count(&self, identity: &str) -> Option<Permit> {
        let mut rejected = self.rejected.borrow_mut();
        if rejected.contains(identity) {
            return None;
        }
        let common = &self.common;
        let taken = common.services.quotas.recognisers.take(&common.party);
        let told = |refused: &Refused| {
            let refusal = ServerMessage::refusal(ErrorCode::Overloaded, refused.to_string());
            common.writer.error(refusal.to_json());
            if rejected.len() < MAX_REJECTED {
                rejected.insert(identity.to_owned());
            }
        };
        taken.inspect_err(told).ok()
    }

    /// Starts a transcriber after `delay`; one with a delay replaces one that has panicked.
    fn start(&self, identity: &str, permit: Permit, delay: Duration) -> Running {
        let start = duration_of(self.common.clock.get());
        TranscriberActor::start_for(identity, &self.common, permit, start, delay)
    }

    /// Replaces a transcriber that has panicked, after a while. Audio waits for the new one meanwhile.
    fn restart(&self, identity: &str, participant: &mut Participant) {
        let Some(delay) = participant.restarts.next(Instant::now(), jitter()) else {
            participant.given_up = true;
            let failed = format!("the transcription of {identity:?} has failed too often");
            let refusal =
                format!("{failed}; nothing more is transcribed until they leave and return");
            self.common.provider_event("failed", failed);
            let refusal = ServerMessage::refusal(ErrorCode::SttFailed, refusal);
            return self.common.writer.error(refusal.to_json());
        };
        let Some(permit) = self.count(identity) else {
            participant.given_up = true;
            return;
        };
        let failed = format!("the transcription of {identity:?} has failed and is started again");
        self.common.provider_event("reconnecting", failed);
        participant.running = self.start(identity, permit, delay);
        participant.heard_until = self.common.clock.get();
    }

    /// Lets all transcribers drain within this time. The future ends when they have.
    pub(super) fn end(&self, patience: Duration) -> impl Future<Output = ()> + use<> {
        self.ended.set(true);
        self.finish_all(patience);
        let running = self.common.running.clone();
        running.close();
        async move { running.wait().await }
    }

    fn finish_all(&self, patience: Duration) {
        for (_, participant) in self.participants.borrow_mut().drain() {
            // Once per participant.
            participant.running.transcriber.do_send(Finish { patience });
        }
    }

    pub(super) fn change_listen(&self, listen: ListenConfig) {
        let vad = self.common.wanted.borrow().1;
        self.change((listen, vad));
    }

    pub(super) fn change_vad(&self, vad: VadConfig) {
        let listen = self.common.wanted.borrow().0.clone();
        self.change((listen, vad));
    }

    fn change(&self, wanted: Wanted) {
        if *self.common.wanted.borrow() == wanted {
            return;
        }
        if self.common.wanted.borrow().0 != wanted.0 {
            self.common.ignored_told.borrow_mut().clear();
        }
        *self.common.wanted.borrow_mut() = wanted;
        self.wanted_bandwidth.set(self.common.bandwidth());
        for participant in self.participants.borrow().values() {
            // Once per config.
            participant.running.transcriber.do_send(Change);
        }
    }
}

impl RoomAudioSink for ParticipantTranscribers {
    fn bandwidth(&self) -> Bandwidth {
        if self.common.session.is_recorded() {
            return Bandwidth::Fullband;
        }
        let participants = self.participants.borrow();
        let heard = participants
            .values()
            .filter(|participant| !participant.given_up && !participant.running.has_ended.get())
            .map(|participant| participant.running.input.bandwidth());
        // Where a change has failed the former recognisers go on.
        heard.fold(self.wanted_bandwidth.get(), Bandwidth::max)
    }

    fn push_mix(&self, sound: Pcm) {
        let clock = &self.common.clock;
        clock.set(clock.get() + samples_of(&sound));
        self.common.session.record_only(&sound);
    }

    fn wants_participant(&self, identity: &str) -> bool {
        if self.ended.get() {
            return false;
        }
        let participants = self.participants.borrow();
        match participants.get(identity) {
            Some(participant) => !participant.given_up,
            None => {
                participants.len() < MAX_TRANSCRIBERS && !self.rejected.borrow().contains(identity)
            }
        }
    }

    fn push_participant(&self, identity: &str, sound: Pcm) {
        if self.ended.get() {
            return;
        }
        let mut participants = self.participants.borrow_mut();
        let now = self.common.clock.get();
        if !participants.contains_key(identity) {
            if participants.len() >= MAX_TRANSCRIBERS {
                return;
            }
            let Some(permit) = self.count(identity) else {
                return;
            };
            let participant = Participant {
                running: self.start(identity, permit, Duration::ZERO),
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
            let Running {
                input, transcriber, ..
            } = &participant.running;
            // One that has ended in order transcribes nothing more.
            if participant.given_up || !transcriber.connected() {
                return;
            }
            // Meanwhile they had no track.
            let gap = now.saturating_sub(participant.heard_until);
            if gap > 0 {
                input.skip(duration_of(gap));
            }
            let length = samples_of(&sound);
            participant.heard_until = now + length;
            if input.push_room(sound) {
                let transcribed = &self.common.transcribed;
                transcribed.set(transcribed.get() + duration_of(length));
            }
        }
    }

    fn participant_left(&self, identity: &str) {
        self.rejected.borrow_mut().remove(identity);
        if let Some(participant) = self.participants.borrow_mut().remove(identity) {
            // Once per participant.
            let patience = LAST_WORDS;
            participant.running.transcriber.do_send(Finish { patience });
        }
    }
}

impl Drop for ParticipantTranscribers {
    fn drop(&mut self) {
        self.finish_all(LAST_WORDS);
    }
}

/// How long it is, in samples of [`LAYOUT`]: a multiple of every rate in which rooms are heard.
fn samples_of(sound: &Pcm) -> u64 {
    sound.frames() as u64 * u64::from(LAYOUT.rate.hz() / sound.layout().rate.hz())
}

fn duration_of(samples: u64) -> Duration {
    LAYOUT.rate.duration_of(samples as usize)
}

/// The participant has left, or the session ends: the recogniser drains within this time.
#[derive(Message)]
#[rtype(result = "()")]
struct Finish {
    patience: Duration,
}

/// `wanted` has changed.
#[derive(Message)]
#[rtype(result = "()")]
struct Change;

/// Transcribes one participant.
struct TranscriberActor {
    identity: String,
    common: Common,
    listening: Listening,
    machine: RecogniserMachine,
    ending: Ending,
    /// The number of the latest config.
    configs: u64,
    /// Configs that wait to be carried out; the first one's audio comes before the actor has started. The input bounds
    /// them.
    waiting: VecDeque<(u64, Wanted)>,
    /// The config whose recogniser is being opened.
    pending: Option<(u64, VadConfig)>,
    /// How long it waits before the first config is carried out.
    delay: Duration,
    /// Whether the client is to be told that the participant is transcribed again.
    recovers: bool,
    has_ended: Rc<Cell<bool>>,
    alarm: Option<(std::time::Instant, SpawnHandle)>,
    _counted: Permit,
    _running: TaskTrackerToken,
}

impl TranscriberActor {
    /// `start` is the position of the first sample in the session's audio.
    fn start_for(
        identity: &str,
        common: &Common,
        permit: Permit,
        start: Duration,
        delay: Duration,
    ) -> Running {
        let (input, events) = AudioInput::new();
        input.begin_at(start);
        let first = common.wanted.borrow().clone();
        common.expect(&input, 1, &first);
        let (identity, common) = (identity.to_owned(), common.clone());
        let providers = Arc::clone(&common.services.providers);
        let quota = common.services.quotas.recognisers.clone();
        let party = common.party.clone();
        let trace = common.trace.clone();
        let listening = Listening::new(input.clone(), providers, (party, quota), trace);
        let has_ended = Rc::new(Cell::new(false));
        let ended = Rc::clone(&has_ended);
        let machine = RecogniserMachine::new(common.services.turn_resources());
        let begin = move |context: &mut Context<Self>| {
            context.add_stream(tokio_stream::wrappers::ReceiverStream::new(events));
            Self {
                _running: common.running.token(),
                identity,
                common,
                listening,
                machine,
                ending: Ending::default(),
                configs: 1,
                waiting: VecDeque::from([(1, first)]),
                pending: None,
                delay,
                recovers: !delay.is_zero(),
                has_ended: ended,
                alarm: None,
                _counted: permit,
            }
        };
        Running {
            input,
            transcriber: start_in_span(begin),
            has_ended,
        }
    }

    /// Now, with what the machine has to know of the output.
    fn moment(&mut self) -> Moment {
        let moment = self.listening.input.moment();
        let player = self.common.player.borrow();
        let output = player.as_ref().map(Player::output_state);
        self.machine
            .set_playing(output.unwrap_or_default(), moment.heard);
        moment
    }

    /// Carries out the next config that waits, unless one is pending.
    fn configure(&mut self, context: &mut Context<Self>) {
        if self.pending.is_some() || self.ending.has_begun() {
            return;
        }
        let Some((config, (listen, vad))) = self.waiting.pop_front() else {
            return;
        };
        self.pending = Some((config, vad));
        if self.machine.would_replace(Some(&listen))
            && let Err(refused) = self.listening.reserve()
        {
            let refusal = Refusal::new(ErrorCode::Overloaded, refused.to_string());
            return self.follow(vec![Output::Failed(refusal)], context);
        }
        let manners = listening::manners(&self.common.services.providers, &listen);
        let is_sent = self.listening.is_sent(config).unwrap_or_default();
        let outputs = self.machine.prepare(config, Some(listen), manners, is_sent);
        self.follow(outputs, context);
    }

    fn commit(&mut self, context: &mut Context<Self>) {
        let Some((config, vad)) = self.pending.take() else {
            return;
        };
        let moment = self.moment();
        let outputs = self.machine.commit(vad, moment);
        let machine = &self.machine;
        self.listening
            .commit(config, &vad, |config| machine.drains(config));
        self.follow(outputs, context);
        if std::mem::take(&mut self.recovers) {
            let message = format!(
                "{:?} is transcribed again; what was said just before it failed may be lost",
                self.identity
            );
            self.common.provider_event("recovered", message);
        }
        let outputs = self.machine.replay_early();
        self.follow(outputs, context);
    }

    /// Does what the machine has decided.
    fn follow(&mut self, outputs: Vec<Output>, context: &mut Context<Self>) {
        for output in outputs {
            match output {
                Output::Tell(message) => self.tell(&message),
                Output::Start {
                    attempt,
                    config,
                    listen,
                } => {
                    self.tell_ignored(&listen);
                    let report = context.address().recipient();
                    self.listening.start(attempt, config, listen, report);
                }
                Output::End { attempt } => self.listening.end(attempt),
                Output::Stop { attempt } => self.listening.stop(attempt),
                Output::Finalize => self.listening.input.finalize(),
                Output::AskModel { question, since } => {
                    let asked = self.listening.ask_model(since).into_actor(self);
                    context.spawn(asked.map(move |answer, transcriber, context| {
                        let moment = transcriber.moment();
                        let outputs = transcriber.machine.answered(question, answer, moment);
                        transcriber.follow(outputs, context);
                    }));
                }
                Output::Yield(mode) => self.to_player(|player| player.yields(mode)),
                Output::Resume => self.to_player(Player::resumes),
                Output::Cut => self.to_player(Player::clear),
                Output::Ready => {
                    self.commit(context);
                    self.configure(context);
                }
                Output::Failed(refusal) => {
                    self.machine.abandon();
                    if let Some((config, _)) = self.pending.take() {
                        self.listening.discard(config);
                    }
                    self.tell(&ServerMessage::refusal(refusal.code, refusal.message));
                    self.configure(context);
                }
            }
        }
        if self.ending.awaits_recogniser_only() && self.machine.is_drained() {
            self.close(context);
        }
        self.set_alarm(context);
    }

    fn close(&mut self, context: &mut Context<Self>) {
        self.ending.close();
        let moment = self.moment();
        let outputs = self.machine.close(moment);
        self.follow(outputs, context);
        self.has_ended.set(true);
        context.stop();
    }

    /// Playback yields to whoever speaks over it, as the config of the session says.
    fn to_player(&self, order: impl FnOnce(&Player)) {
        if let Some(player) = &*self.common.player.borrow() {
            order(player);
        }
    }

    fn tell(&self, message: &ServerMessage) {
        let Ok(mut value) = serde_json::to_value(message) else {
            return;
        };
        let is_about_participant = matches!(
            message,
            ServerMessage::SttResult(_)
                | ServerMessage::VadEvent(_)
                | ServerMessage::Interruption(_)
        );
        if let (true, Some(fields)) = (is_about_participant, value.as_object_mut()) {
            let identity = Value::from(self.identity.as_str());
            fields.insert("identity".to_owned(), identity);
        }
        if let ServerMessage::SttResult(result) = message {
            let words = &self.common.words;
            words.heard(Some(&self.identity), &result.transcript);
        }
        if let ServerMessage::SttResult(result) = message
            && result.is_final
        {
            let mut result = result.clone();
            result.identity = Some(self.identity.clone());
            let heard = duration_of(self.common.clock.get());
            self.common.session.note_final(&result, heard);
        }
        let text = value.to_string();
        #[cfg(test)]
        assert!(!text.contains(super::tests::POISON_WORDS), "a mistake");
        let (writer, identity) = (&self.common.writer, &self.identity);
        match message {
            ServerMessage::Error { .. } => writer.error(text),
            ServerMessage::SttResult(result) if !result.is_final => {
                writer.latest_about("stt_result", identity, text);
            }
            ServerMessage::VadEvent(event) => {
                writer.latest_about(event.event.name(), identity, text);
            }
            _ => writer.event(text),
        }
    }

    /// Options that a provider does not support are told once for all participants.
    fn tell_ignored(&self, listen: &ListenConfig) {
        let providers = &self.common.services.providers;
        let Some((slug, ignored)) = listening::ignored(providers, listen) else {
            return;
        };
        let mut told = self.common.ignored_told.borrow_mut();
        if !told.contains(&slug) {
            told.push(slug);
            if let Some(ignored) = ignored {
                self.tell(&ignored);
            }
        }
    }

    fn set_alarm(&mut self, context: &mut Context<Self>) {
        let deadlines = [self.machine.next_deadline(), self.ending.deadline()];
        let due = deadlines.into_iter().flatten().min();
        if self.alarm.as_ref().map(|(at, _)| *at) == due {
            return;
        }
        if let Some((_, alarm)) = self.alarm.take() {
            context.cancel_future(alarm);
        }
        if let Some(at) = due {
            let alarm = tokio::time::sleep_until(Instant::from_std(at));
            let alarm = context.spawn(alarm.into_actor(self).map(|(), transcriber, context| {
                transcriber.alarm = None;
                transcriber.tick(context);
            }));
            self.alarm = Some((at, alarm));
        }
    }

    fn tick(&mut self, context: &mut Context<Self>) {
        let moment = self.moment();
        if self.ending.deadline().is_some_and(|at| at <= moment.now) {
            return self.close(context);
        }
        let outputs = self.machine.tick(moment);
        self.follow(outputs, context);
    }
}

impl Actor for TranscriberActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        let input = self.listening.input.clone().run().in_current_span();
        context.spawn(input.into_actor(self));
        if self.delay.is_zero() {
            self.configure(context);
        } else {
            context.run_later(self.delay, Self::configure);
        }
    }
}

impl Handler<Change> for TranscriberActor {
    type Result = ();

    fn handle(&mut self, _: Change, context: &mut Context<Self>) {
        let config = self.configs + 1;
        let wanted = self.common.wanted.borrow().clone();
        if self.common.expect(&self.listening.input, config, &wanted) {
            self.configs = config;
            self.waiting.push_back((config, wanted));
        }
        self.configure(context);
    }
}

impl Handler<Finish> for TranscriberActor {
    type Result = ();

    fn handle(&mut self, Finish { patience }: Finish, context: &mut Context<Self>) {
        if self.ending.has_begun() {
            return;
        }
        let moment = self.moment();
        if let Some((config, _)) = self.pending.take() {
            self.listening.input.discard(config);
        }
        self.ending = Ending::Draining {
            code: 1000,
            reason: "the participant has left",
            deadline: moment.now + patience,
            participants: false,
        };
        let mut outputs = self.machine.abandon_barge_in(InterruptionReason::Ended);
        outputs.extend(self.machine.end());
        self.follow(outputs, context);
    }
}

impl Handler<SttReport> for TranscriberActor {
    type Result = ();

    fn handle(&mut self, report: SttReport, context: &mut Context<Self>) {
        let lost = self.listening.reported(&report);
        let moment = self.moment();
        let outputs = self.machine.report(report, lost, moment);
        self.follow(outputs, context);
        let machine = &self.machine;
        self.listening
            .forget_drained(|config| machine.drains(config));
    }
}

impl StreamHandler<InputEvent> for TranscriberActor {
    fn handle(&mut self, event: InputEvent, context: &mut Context<Self>) {
        let moment = self.moment();
        let outputs = self.machine.input(event, moment);
        self.follow(outputs, context);
    }

    fn finished(&mut self, _: &mut Context<Self>) {}
}
