//! The metrics, and the page of `GET /metrics`. Events are reported by calling a function named after them; metric
//! names appear only here, and labels never contain a tenant, room, identity or number. A call costs a few atomic
//! additions, so the media plane can afford one per frame.

mod calls;
mod process;

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::{
    EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder, MetricEncoder, NoLabelSet,
    text,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

use super::vendors;
use vivavoce_core::provider_error::ProviderError;

use calls::Calls;
pub use calls::{
    SipRefusal, call_answered, call_began, call_classified, call_ended, call_sounded,
    queue_entered, queue_left, sip_call_refused, sip_gateways, sip_phones, sip_refused,
    sip_registered, sip_registrations,
};

/// The media type of [`page`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// Input audio reached the recogniser, this long after it had been read from the client.
pub fn input_delay(delay: Duration) {
    METRICS.input_delay.observe(delay);
}

/// Output audio entered the socket's queue, this long after it was ready and due.
pub fn output_delay(delay: Duration) {
    METRICS.output_delay.observe(delay);
}

/// A session has started; it ends when the returned guard is dropped.
pub fn session_opened() -> OpenSession {
    METRICS.session_opened()
}

/// Counts a session as live.
#[derive(Debug)]
#[must_use = "dropping it counts the session as closed"]
pub struct OpenSession {
    live: Gauge,
    closed: Counter,
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.live.dec();
        self.closed.inc();
    }
}

/// The limit at which audio was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropCause {
    /// Too much arrived while a `config` was being processed.
    Configuring,
    /// Too much had arrived since the last final transcript to be replayed to a new recogniser stream.
    Replay,
    /// Input could not be decoded fast enough.
    Decoding,
    /// Audio could not be recorded fast enough.
    Recording,
}

impl EncodeLabelValue for DropCause {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Configuring => "configuring",
            Self::Replay => "replay",
            Self::Decoding => "decoding",
            Self::Recording => "recording",
        })
    }
}

/// Audio was dropped.
pub fn audio_dropped(cause: DropCause, sound: Duration) {
    let counter = METRICS.audio_dropped.get_or_create(&Cause { cause });
    counter.inc_by(sound.as_secs_f64());
}

/// A recogniser stream broke and was reopened.
pub fn stt_restarted() {
    METRICS.stt_restarts.inc();
}

/// A final was dropped because it was less certain than its session asks for.
pub fn final_dropped() {
    METRICS.finals_dropped.inc();
}

/// A client came back to its session with another socket.
pub fn session_resumed() {
    METRICS.resumes.inc();
}

/// A session of a draining replica goes on here.
pub fn session_taken_over() {
    METRICS.taken_over.inc();
}

/// A client's socket was passed on to the replica where its session runs; it ends there when the returned guard is dropped.
pub fn socket_forwarded() -> ForwardedSocket {
    METRICS.forwarded.inc();
    ForwardedSocket(METRICS.forwarded.clone())
}

/// Counts a socket as passed on.
#[derive(Debug)]
#[must_use = "dropping it counts the socket as gone"]
pub struct ForwardedSocket(Gauge);

impl Drop for ForwardedSocket {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Text was dropped that was on its way when its utterance was cut.
pub fn late_text_dropped() {
    METRICS.late_texts_dropped.inc();
}

/// A turn has ended for this reason, as events name it.
pub fn turn_ended(reason: &'static str) {
    METRICS.turns.get_or_create(&TurnLabel { reason }).inc();
}

/// The first sound of the answer to a turn has left, this long after the end of speech.
pub fn turn_answered(delay: Duration) {
    METRICS.turn_answered.observe(delay.as_secs_f64());
}

/// Speech of a session was cut off while it was played.
pub fn speech_interrupted() {
    METRICS.interruptions.inc();
}

/// Somebody has said that they listen, and nothing else.
pub fn backchannel_heard() {
    METRICS.backchannels.inc();
}

/// An embedded room exists, until the guard is dropped.
pub fn room_opened() -> Present {
    Present::among(&METRICS.rooms)
}

/// A participant is in an embedded room, until the guard is dropped.
pub fn participant_joined() -> Present {
    Present::among(&METRICS.participants)
}

/// An agent worker is connected, until the guard is dropped.
pub fn agent_worker_connected() -> Present {
    Present::among(&METRICS.agent_workers)
}

/// A job of an agent exists, until the guard is dropped.
pub fn agent_job_created() -> Present {
    Present::among(&METRICS.agent_jobs)
}

/// How a job of an agent has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentJobEnd {
    /// The agent has done it, or it has ended with its room.
    Succeeded,
    /// The agent failed, or was lost.
    Failed,
    /// No worker has taken it.
    NotTaken,
}

impl EncodeLabelValue for AgentJobEnd {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::NotTaken => "not_taken",
        })
    }
}

/// A job of an agent has ended.
pub fn agent_job_ended(outcome: AgentJobEnd) {
    let label = AgentJobLabel { outcome };
    METRICS.agent_jobs_ended.get_or_create(&label).inc();
}

/// What became of a question to the end-of-turn model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnAnswer {
    /// The speaker has finished.
    Finished,
    /// The speaker goes on.
    Unfinished,
    /// It did not answer in time.
    Late,
    /// Too many questions were waiting.
    Busy,
    /// It cannot answer.
    Failed,
}

impl EncodeLabelValue for TurnAnswer {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Finished => "finished",
            Self::Unfinished => "unfinished",
            Self::Late => "late",
            Self::Busy => "busy",
            Self::Failed => "failed",
        })
    }
}

/// The end-of-turn model was asked; this long after that the answer was there, or silence had to decide.
pub fn turn_model_asked(answer: TurnAnswer, delay: Duration) {
    let label = TurnAnswerLabel { answer };
    METRICS.turn_answers.get_or_create(&label).inc();
    METRICS.turn_answer_delay.observe(delay);
}

/// An event was superseded by a later one before a slow client had read it.
pub fn event_coalesced() {
    METRICS.events_coalesced.inc();
}

/// A session's socket was closed because its client did not read fast enough.
pub fn socket_fell_behind() {
    METRICS.sockets_fell_behind.inc();
}

/// A room message was dropped because a session's client did not read fast enough.
pub fn room_message_dropped() {
    METRICS.room_messages_dropped.inc();
}

/// A client's message was refused because it was too slow or too large to complete.
pub fn message_cut_off() {
    METRICS.messages_cut_off.inc();
}

/// A request body was refused because it was too slow or too large to complete.
pub fn body_cut_off() {
    METRICS.bodies_cut_off.inc();
}

/// A message of a carrier, or to one, was dropped: it came too fast, or is not read.
pub fn carrier_message_dropped() {
    METRICS.carrier_messages_dropped.inc();
}

/// Why a connection was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionCut {
    /// Its address had the maximum number of connections.
    Address,
    /// It was evicted in favour of another.
    Evicted,
    /// It had sent too many unanswered bytes.
    Bytes,
    /// No request arrived in time.
    Overdue,
    /// The client did not read the response in time.
    Unread,
}

impl EncodeLabelValue for ConnectionCut {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Address => "address",
            Self::Evicted => "evicted",
            Self::Bytes => "bytes",
            Self::Overdue => "overdue",
            Self::Unread => "unread",
        })
    }
}

/// A connection was closed.
pub fn connection_cut(cause: ConnectionCut) {
    METRICS.connections_cut.get_or_create(&Cut { cause }).inc();
}

/// A request was refused because of a limit, named by its setting.
pub fn limit_reached(limit: &'static str) {
    METRICS
        .limits_reached
        .get_or_create(&LimitLabel { limit })
        .inc();
}

/// The task of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// Speech-to-text.
    Stt,
    /// Text-to-speech.
    Tts,
}

impl EncodeLabelValue for Task {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Stt => "stt",
            Self::Tts => "tts",
        })
    }
}

/// Time to the provider's first audio, or to the open stream.
pub fn provider_began(task: Task, provider: &'static str, delay: Duration) {
    let delays = METRICS.first_bytes.get_or_create(&By { task, provider });
    delays.observe(delay.as_secs_f64());
    vendors::began(task, provider, delay);
}

/// Time from the end of the text to the last audio, or from the end of the audio to the final transcript.
pub fn provider_finished(task: Task, provider: &'static str, delay: Duration) {
    let delays = METRICS.finals.get_or_create(&By { task, provider });
    delays.observe(delay.as_secs_f64());
    vendors::finished(task, provider, delay);
}

/// A provider failed.
pub fn provider_failed(error: &ProviderError) {
    let ProviderError { provider, kind, .. } = *error;
    let failure = Failure {
        provider,
        kind: kind.name(),
    };
    METRICS.provider_errors.get_or_create(&failure).inc();
    vendors::failed(provider, kind.name());
}

/// A synthesis was requested; whether it was in the cache.
pub fn cache_asked(hit: bool) {
    let counter = if hit {
        &METRICS.cache_hits
    } else {
        &METRICS.cache_misses
    };
    counter.inc();
}

/// A synthesis waits for a slot, until the guard is dropped.
pub fn synthesis_waits() -> Present {
    Present::among(&METRICS.syntheses_waiting)
}

/// A recogniser's worker process is busy, until the guard is dropped.
pub fn recogniser_works() -> Present {
    Present::among(&METRICS.recognisers_busy)
}

/// Increments a gauge until it is dropped.
#[derive(Debug)]
#[must_use = "it is counted as long as it is kept"]
pub struct Present(Gauge);

impl Present {
    fn among(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The number of recordings waiting for upload, and the age of the oldest.
pub fn recordings_waiting(count: usize, oldest: Duration) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    METRICS.recordings_waiting.set(count);
    let oldest = i64::try_from(oldest.as_secs()).unwrap_or(i64::MAX);
    METRICS.recordings_oldest.set(oldest);
}

/// A recording has been uploaded.
pub fn recording_stored() {
    METRICS.recordings_stored.inc();
}

/// Audio of a recording was not on disk in time.
pub fn recording_late() {
    METRICS.recordings_late.inc();
}

/// An attempt to upload a recording failed.
pub fn recording_upload_failed() {
    METRICS.recording_upload_failures.inc();
}

/// Why a webhook was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WebhookLoss {
    /// The spool or the disk was full.
    Spool,
    /// The receiver was unavailable for too long.
    Receiver,
}

impl EncodeLabelValue for WebhookLoss {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Spool => "spool",
            Self::Receiver => "receiver",
        })
    }
}

/// A request was refused because a quota was used up.
pub fn quota_refused(quota: &'static str) {
    METRICS
        .quota_refusals
        .get_or_create(&OfQuota { quota })
        .inc();
}

/// What became of the notification that a telephone has joined a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallTold {
    /// It will be sent to the hook.
    Told,
    /// It had been sent before.
    Again,
    /// The called host is unknown.
    NoHost,
    /// There is no hook for the host.
    NoHook,
    /// The room belongs to another tenant than the hook, or has ended.
    NotTheirs,
    /// There is no secret to sign for the hook.
    Unsigned,
    /// The rooms or the spool failed.
    Failed,
}

impl EncodeLabelValue for CallTold {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Told => "told",
            Self::Again => "again",
            Self::NoHost => "no_host",
            Self::NoHook => "no_hook",
            Self::NotTheirs => "not_theirs",
            Self::Unsigned => "unsigned",
            Self::Failed => "failed",
        })
    }
}

/// A telephone has joined a room.
pub fn call_told(outcome: CallTold) {
    METRICS.calls_told.get_or_create(&Telling { outcome }).inc();
}

/// What became of dialling an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentDial {
    /// It has taken the call.
    Taken,
    /// It was not there, or has not sent `config`.
    Failed,
    /// No agent has taken the call in time.
    Unanswered,
}

impl EncodeLabelValue for AgentDial {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Taken => "taken",
            Self::Failed => "failed",
            Self::Unanswered => "unanswered",
        })
    }
}

/// An agent was dialled.
pub fn agent_dialled(outcome: AgentDial) {
    METRICS
        .agent_dials
        .get_or_create(&Dialling { outcome })
        .inc();
}

/// A webhook was dropped.
pub fn webhook_lost(cause: WebhookLoss) {
    METRICS.webhooks_lost.get_or_create(&Loss { cause }).inc();
}

/// A delivery of a webhook was attempted; whether it succeeded.
pub fn webhook_tried(delivered: bool) {
    let counter = if delivered {
        &METRICS.webhooks_delivered
    } else {
        &METRICS.webhook_failures
    };
    counter.inc();
}

/// A participant was removed because the room changed its owner.
pub fn removed_by_owner() {
    METRICS.removed_by_owner.inc();
}

/// An event happened in a room. Event names unknown to this version are counted together.
pub fn room_event(name: &str) {
    const KNOWN: [&str; 7] = [
        "room_started",
        "room_finished",
        "participant_joined",
        "participant_left",
        "participant_connection_aborted",
        "track_published",
        "track_unpublished",
    ];
    let event = KNOWN.into_iter().find(|known| *known == name);
    let event = event.unwrap_or("other");
    METRICS
        .room_events
        .get_or_create(&RoomEventLabel { event })
        .inc();
}

/// The kinds of input from participants of embedded rooms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoomInput {
    /// A session description.
    Description,
    /// A signalling message.
    Signal,
    /// A message on a data channel.
    Message,
    /// A call of the room service API.
    Call,
    /// A message of an agent worker.
    Worker,
}

impl EncodeLabelValue for RoomInput {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        encoder.write_str(match self {
            Self::Description => "description",
            Self::Signal => "signal",
            Self::Message => "message",
            Self::Call => "call",
            Self::Worker => "worker",
        })
    }
}

/// Input exceeded a limit and was not parsed.
pub fn room_input_refused(input: RoomInput) {
    let label = RoomInputLabel { input };
    METRICS.room_inputs_refused.get_or_create(&label).inc();
}

/// A participant's signalling connection was closed because it did not read.
pub fn room_client_cut_off() {
    METRICS.room_clients_cut_off.inc();
}

/// The number of webhooks waiting for delivery.
pub fn webhooks_waiting(count: usize) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    METRICS.webhooks_waiting.set(count);
}

/// An answered request. The route is a pattern, never a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Answered {
    /// One of the standard methods, or `other`.
    pub method: &'static str,
    /// The pattern of the route.
    pub route: String,
    /// The status code.
    pub status: u16,
}

/// A request was answered, this long after its head had been read. The time to send the body is not included.
pub fn answered(answered: Answered, delay: Duration) {
    METRICS.http_requests.get_or_create(&answered).inc();
    let route = Route {
        route: answered.route,
    };
    let delays = METRICS.http_request_durations.get_or_create(&route);
    delays.observe(delay.as_secs_f64());
}

/// All metrics in the OpenMetrics text format ([`MEDIA_TYPE`]).
pub fn page() -> Result<String, fmt::Error> {
    METRICS.page()
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: DropCause,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TurnLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TurnAnswerLabel {
    answer: TurnAnswer,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoomEventLabel {
    event: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AgentJobLabel {
    outcome: AgentJobEnd,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoomInputLabel {
    input: RoomInput,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cut {
    cause: ConnectionCut,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Loss {
    cause: WebhookLoss,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQuota {
    quota: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Telling {
    outcome: CallTold,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Dialling {
    outcome: AgentDial,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    task: Task,
    provider: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    provider: &'static str,
    kind: &'static str,
}

/// A histogram of slow operations: rare enough for a lock.
type Durations = Histogram;

/// From 1 ms to 1 min.
fn durations() -> Durations {
    Histogram::new([
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    ])
}

/// All metrics.
struct Metrics {
    registry: Registry,
    /// With names that every program has, without our prefix.
    process: Registry,
    input_delay: Delays,
    output_delay: Delays,
    sessions: Gauge,
    sessions_opened: Counter,
    sessions_closed: Counter,
    audio_dropped: Family<Cause, Counter<f64, AtomicU64>>,
    stt_restarts: Counter,
    finals_dropped: Counter,
    late_texts_dropped: Counter,
    resumes: Counter,
    taken_over: Counter,
    forwarded: Gauge,
    turns: Family<TurnLabel, Counter>,
    turn_answered: Durations,
    interruptions: Counter,
    backchannels: Counter,
    rooms: Gauge,
    participants: Gauge,
    turn_answers: Family<TurnAnswerLabel, Counter>,
    turn_answer_delay: Delays,
    events_coalesced: Counter,
    room_messages_dropped: Counter,
    messages_cut_off: Counter,
    sockets_fell_behind: Counter,
    bodies_cut_off: Counter,
    carrier_messages_dropped: Counter,
    connections_cut: Family<Cut, Counter>,
    limits_reached: Family<LimitLabel, Counter>,
    first_bytes: Family<By, Durations>,
    finals: Family<By, Durations>,
    provider_errors: Family<Failure, Counter>,
    cache_hits: Counter,
    cache_misses: Counter,
    syntheses_waiting: Gauge,
    recognisers_busy: Gauge,
    recordings_waiting: Gauge,
    recordings_oldest: Gauge,
    recordings_stored: Counter,
    recordings_late: Counter,
    recording_upload_failures: Counter,
    webhooks_delivered: Counter,
    webhook_failures: Counter,
    webhooks_lost: Family<Loss, Counter>,
    webhooks_waiting: Gauge,
    quota_refusals: Family<OfQuota, Counter>,
    calls_told: Family<Telling, Counter>,
    agent_dials: Family<Dialling, Counter>,
    agent_workers: Gauge,
    agent_jobs: Gauge,
    agent_jobs_ended: Family<AgentJobLabel, Counter>,
    room_events: Family<RoomEventLabel, Counter>,
    removed_by_owner: Counter,
    room_inputs_refused: Family<RoomInputLabel, Counter>,
    room_clients_cut_off: Counter,
    http_requests: Family<Answered, Counter>,
    http_request_durations: Family<Route, Durations>,
    calls: Calls,
}

impl Metrics {
    fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("vivavoce"),
            process: Registry::default(),
            input_delay: Delays::default(),
            output_delay: Delays::default(),
            sessions: Gauge::default(),
            sessions_opened: Counter::default(),
            sessions_closed: Counter::default(),
            audio_dropped: Family::default(),
            stt_restarts: Counter::default(),
            finals_dropped: Counter::default(),
            late_texts_dropped: Counter::default(),
            resumes: Counter::default(),
            taken_over: Counter::default(),
            forwarded: Gauge::default(),
            turns: Family::default(),
            turn_answered: durations(),
            interruptions: Counter::default(),
            backchannels: Counter::default(),
            rooms: Gauge::default(),
            participants: Gauge::default(),
            turn_answers: Family::default(),
            turn_answer_delay: Delays::default(),
            events_coalesced: Counter::default(),
            room_messages_dropped: Counter::default(),
            messages_cut_off: Counter::default(),
            sockets_fell_behind: Counter::default(),
            bodies_cut_off: Counter::default(),
            carrier_messages_dropped: Counter::default(),
            connections_cut: Family::default(),
            limits_reached: Family::default(),
            first_bytes: Family::new_with_constructor(durations),
            finals: Family::new_with_constructor(durations),
            provider_errors: Family::default(),
            cache_hits: Counter::default(),
            cache_misses: Counter::default(),
            syntheses_waiting: Gauge::default(),
            recognisers_busy: Gauge::default(),
            recordings_waiting: Gauge::default(),
            recordings_oldest: Gauge::default(),
            recordings_stored: Counter::default(),
            recordings_late: Counter::default(),
            recording_upload_failures: Counter::default(),
            webhooks_delivered: Counter::default(),
            webhook_failures: Counter::default(),
            webhooks_lost: Family::default(),
            webhooks_waiting: Gauge::default(),
            quota_refusals: Family::default(),
            calls_told: Family::default(),
            agent_dials: Family::default(),
            agent_workers: Gauge::default(),
            agent_jobs: Gauge::default(),
            agent_jobs_ended: Family::default(),
            room_events: Family::default(),
            removed_by_owner: Counter::default(),
            room_inputs_refused: Family::default(),
            room_clients_cut_off: Counter::default(),
            http_requests: Family::default(),
            http_request_durations: Family::new_with_constructor(durations),
            calls: Calls::new(),
        };
        metrics.register_process();
        metrics.register_sessions();
        metrics.register_turns();
        metrics.register_providers();
        metrics.register_recordings();
        metrics.register_webhooks();
        metrics.register_http();
        metrics.calls.register(&mut metrics.registry);
        metrics.begin_at_zero();
        metrics
    }

    /// Has the page show events that alerts wait for before the first of them: Prometheus sees a counter rise only if it knew
    /// it before.
    fn begin_at_zero(&self) {
        for cause in [
            DropCause::Configuring,
            DropCause::Replay,
            DropCause::Decoding,
            DropCause::Recording,
        ] {
            let counter = self.audio_dropped.get_or_create(&Cause { cause });
            counter.inc_by(0.0);
        }
        for cause in [WebhookLoss::Spool, WebhookLoss::Receiver] {
            self.webhooks_lost.get_or_create(&Loss { cause }).inc_by(0);
        }
        for outcome in [
            AgentJobEnd::Succeeded,
            AgentJobEnd::Failed,
            AgentJobEnd::NotTaken,
        ] {
            let label = AgentJobLabel { outcome };
            self.agent_jobs_ended.get_or_create(&label).inc_by(0);
        }
        for outcome in [AgentDial::Taken, AgentDial::Failed, AgentDial::Unanswered] {
            let label = Dialling { outcome };
            self.agent_dials.get_or_create(&label).inc_by(0);
        }
    }

    /// Registers the metrics; the library adds the prefix, the unit and `_total`.
    fn register_sessions(&mut self) {
        let registry = &mut self.registry;
        registry.register_with_unit(
            "input_delay",
            "From a frame's arrival to the recogniser",
            Unit::Seconds,
            self.input_delay.clone(),
        );
        registry.register_with_unit(
            "output_delay",
            "From a chunk being ready and due to the socket's queue",
            Unit::Seconds,
            self.output_delay.clone(),
        );
        registry.register("sessions", "Live sessions", self.sessions.clone());
        registry.register(
            "sessions_opened",
            "Sessions that have begun",
            self.sessions_opened.clone(),
        );
        registry.register(
            "sessions_closed",
            "Sessions that have ended",
            self.sessions_closed.clone(),
        );
        registry.register_with_unit(
            "audio_dropped",
            "Sound thrown away because a bound was reached",
            Unit::Seconds,
            self.audio_dropped.clone(),
        );
        registry.register(
            "stt_restarts",
            "Recogniser streams that broke and were opened again",
            self.stt_restarts.clone(),
        );
        registry.register(
            "finals_dropped",
            "Finals below the confidence that their session asks for",
            self.finals_dropped.clone(),
        );
        registry.register(
            "session_resumes",
            "Sockets with which clients came back to their sessions",
            self.resumes.clone(),
        );
        registry.register(
            "sessions_taken_over",
            "Sessions of draining replicas that went on here",
            self.taken_over.clone(),
        );
        registry.register(
            "forwarded_sockets",
            "Sockets that are passed on to the replicas where their sessions run",
            self.forwarded.clone(),
        );
        registry.register(
            "tts_late_texts",
            "Texts of utterances that were cut before they came, which were dropped",
            self.late_texts_dropped.clone(),
        );
        registry.register(
            "turn_answers",
            "Questions to the end-of-turn model, by what became of them",
            self.turn_answers.clone(),
        );
        registry.register_with_unit(
            "turn_answer_delay",
            "From a question to the end-of-turn model to its answer, or until silence had to decide",
            Unit::Seconds,
            self.turn_answer_delay.clone(),
        );
        registry.register(
            "events_coalesced",
            "Events replaced by later ones before a slow client had read them",
            self.events_coalesced.clone(),
        );
        registry.register(
            "room_messages_dropped",
            "Messages of rooms dropped because the client of a session read too slowly",
            self.room_messages_dropped.clone(),
        );
        registry.register(
            "sockets_fell_behind",
            "Sockets of sessions closed because too much waited for clients that did not read",
            self.sockets_fell_behind.clone(),
        );
        registry.register(
            "messages_cut_off",
            "Messages of clients that took too long or too much memory to be complete",
            self.messages_cut_off.clone(),
        );
    }

    fn register_turns(&mut self) {
        let registry = &mut self.registry;
        registry.register("turns", "Turns that have ended, by why", self.turns.clone());
        registry.register_with_unit(
            "turn_first_sound",
            "From the end of speech to the first sound of the answer",
            Unit::Seconds,
            self.turn_answered.clone(),
        );
        registry.register(
            "interruptions",
            "Utterances that were cut off while they were played",
            self.interruptions.clone(),
        );
        registry.register(
            "backchannels",
            "Finals that only said that somebody listens",
            self.backchannels.clone(),
        );
    }

    fn register_process(&mut self) {
        self.process
            .register_collector(Box::new(process::ProcessCollector));
        let build = Family::<Build, Gauge>::default();
        let version = env!("CARGO_PKG_VERSION");
        build.get_or_create(&Build { version }).set(1);
        self.registry
            .register("build_info", "The version that runs; always 1", build);
    }

    fn register_providers(&mut self) {
        let registry = &mut self.registry;
        registry.register_with_unit(
            "provider_first_byte",
            "From a text to its first sound, or from opening a recogniser's stream to the open stream",
            Unit::Seconds,
            self.first_bytes.clone(),
        );
        registry.register_with_unit(
            "provider_final",
            "From a text to its last sound, or from the end of an utterance to its final transcript",
            Unit::Seconds,
            self.finals.clone(),
        );
        registry.register(
            "provider_errors",
            "Failures of providers",
            self.provider_errors.clone(),
        );
        registry.register(
            "cache_hits",
            "Speech that was in the cache",
            self.cache_hits.clone(),
        );
        registry.register(
            "cache_misses",
            "Speech that was not in the cache",
            self.cache_misses.clone(),
        );
        registry.register(
            "syntheses_waiting",
            "Syntheses that wait for a place at their provider",
            self.syntheses_waiting.clone(),
        );
        registry.register(
            "recognisers_busy",
            "Local recognisers at work",
            self.recognisers_busy.clone(),
        );
    }

    fn register_recordings(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "recordings_waiting",
            "Recordings on this disk that wait for the store",
            self.recordings_waiting.clone(),
        );
        registry.register_with_unit(
            "recordings_waiting_oldest",
            "How long the oldest of them has waited",
            Unit::Seconds,
            self.recordings_oldest.clone(),
        );
        registry.register(
            "recordings_stored",
            "Recordings that the store has taken",
            self.recordings_stored.clone(),
        );
        registry.register(
            "recordings_late",
            "Times that a recording was more than half a second behind on its way to the disk",
            self.recordings_late.clone(),
        );
        registry.register(
            "recording_upload_failures",
            "Attempts to store a recording that failed",
            self.recording_upload_failures.clone(),
        );
    }

    fn register_webhooks(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "webhooks_delivered",
            "Webhooks that their receivers have taken",
            self.webhooks_delivered.clone(),
        );
        registry.register(
            "webhook_failures",
            "Attempts to deliver a webhook that failed",
            self.webhook_failures.clone(),
        );
        registry.register(
            "webhooks_lost",
            "Webhooks that were given up",
            self.webhooks_lost.clone(),
        );
        registry.register(
            "quota_refusals",
            "Wishes that were refused because a quota was used up",
            self.quota_refusals.clone(),
        );
        registry.register(
            "webhooks_waiting",
            "Webhooks that wait for their receivers",
            self.webhooks_waiting.clone(),
        );
        registry.register(
            "calls_told",
            "Telephones that joined a room, by what became of telling their hooks",
            self.calls_told.clone(),
        );
        registry.register(
            "agent_dials",
            "Agents that were dialled, by what became of it",
            self.agent_dials.clone(),
        );
        registry.register(
            "agent_workers",
            "Agent workers that are connected",
            self.agent_workers.clone(),
        );
        registry.register(
            "agent_jobs",
            "Jobs of agents that have not ended",
            self.agent_jobs.clone(),
        );
        registry.register(
            "agent_jobs_ended",
            "Jobs of agents that have ended, by how",
            self.agent_jobs_ended.clone(),
        );
        registry.register("rooms", "Embedded rooms", self.rooms.clone());
        registry.register(
            "room_participants",
            "Participants of embedded rooms",
            self.participants.clone(),
        );
        registry.register(
            "room_events",
            "What happened in rooms",
            self.room_events.clone(),
        );
        registry.register(
            "room_removals",
            "Participants who were removed because their room became somebody else's",
            self.removed_by_owner.clone(),
        );
        registry.register(
            "room_inputs_refused",
            "What participants of embedded rooms sent that held more than it may",
            self.room_inputs_refused.clone(),
        );
        registry.register(
            "room_clients_cut_off",
            "Signalling connections of embedded rooms cut off because nobody read",
            self.room_clients_cut_off.clone(),
        );
    }

    fn register_http(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "bodies_cut_off",
            "Bodies of requests that took too long or too much memory to be complete",
            self.bodies_cut_off.clone(),
        );
        registry.register(
            "carrier_messages_dropped",
            "Messages of telephone carriers, and sound for them, that came too fast or were not read",
            self.carrier_messages_dropped.clone(),
        );
        registry.register(
            "connections_cut",
            "Connections cut, by what they had too much of",
            self.connections_cut.clone(),
        );
        registry.register(
            "limits_reached",
            "Refusals because a limit was reached, by its setting",
            self.limits_reached.clone(),
        );
        registry.register(
            "http_requests",
            "Requests that were answered",
            self.http_requests.clone(),
        );
        registry.register_with_unit(
            "http_request_duration",
            "From a request's head to its answer's",
            Unit::Seconds,
            self.http_request_durations.clone(),
        );
    }

    fn session_opened(&self) -> OpenSession {
        self.sessions_opened.inc();
        self.sessions.inc();
        OpenSession {
            live: self.sessions.clone(),
            closed: self.sessions_closed.clone(),
        }
    }

    fn page(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        text::encode_registry(&mut page, &self.process)?;
        text::encode_registry(&mut page, &self.registry)?;
        text::encode_eof(&mut page)?;
        Ok(page)
    }
}

const DECADES: usize = 5;
/// Ten steps per decade, each about a quarter larger: the R10 series of preferred numbers (ISO 3).
const STEPS: [u64; 10] = [100, 125, 160, 200, 250, 315, 400, 500, 630, 800];
/// The upper bounds of the buckets in nanoseconds, from 10 µs to 1 s; the last bucket is unbounded.
const BOUNDS_NS: [u64; DECADES * STEPS.len() + 1] = {
    let mut bounds = [1_000_000_000; DECADES * STEPS.len() + 1];
    let mut unit = 100;
    let mut index = 0;
    while index < DECADES * STEPS.len() {
        bounds[index] = STEPS[index % STEPS.len()] * unit;
        index += 1;
        if index % STEPS.len() == 0 {
            unit *= 10;
        }
    }
    bounds
};

/// Places that threads count in.
const PLACES: usize = 64;

/// The place of this thread, which is its own as long as there are no more threads than places.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: usize = NEXT.fetch_add(1, Relaxed) % PLACES;
    }
    PLACE.with(|place| *place)
}

/// A histogram of delays. The library's own takes a lock per observation, for which all worker threads would contend; and what
/// they all count in goes from core to core each time, so that each has a place of its own.
#[derive(Debug, Clone, Default)]
pub struct Delays(Arc<Places>);

#[derive(Debug)]
struct Places([OnceLock<Box<Buckets>>; PLACES]);

/// As large as what a core takes at a time, with its neighbour.
#[derive(Debug)]
#[repr(align(128))]
struct Buckets {
    counts: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Default for Places {
    fn default() -> Self {
        Self([const { OnceLock::new() }; PLACES])
    }
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl Delays {
    /// Records one delay.
    pub fn observe(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|&bound| bound < nanos);
        let buckets = self.0.0[place()].get_or_init(Box::default);
        buckets.counts[bucket].fetch_add(1, Relaxed);
        buckets.sum_ns.fetch_add(nanos, Relaxed);
    }

    fn sum(&self, counter: impl Fn(&Buckets) -> &AtomicU64) -> u64 {
        let taken = self.0.0.iter().filter_map(OnceLock::get);
        taken.map(|buckets| counter(buckets).load(Relaxed)).sum()
    }

    /// The counts per bucket: upper bound in seconds (the last is infinite) and observations.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_NS.iter().map(|&bound| bound as f64 / 1e9);
        let counts = (0..=BOUNDS_NS.len()).map(|bucket| self.sum(|of| &of.counts[bucket]));
        bounds.chain([f64::INFINITY]).zip(counts).collect()
    }
}

impl TypedMetric for Delays {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Delays {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        let buckets = self.buckets();
        // Summed from the buckets shown, so that the page is consistent while other threads keep counting.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.sum(|of| &of.sum_ns) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample's value in the text format.
    fn value(page: &str, sample: &str) -> String {
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {sample} in\n{page}"))
            .to_owned()
    }

    #[test]
    fn bounds_ascend_from_10_microseconds_to_a_second_in_steps_of_a_quarter() {
        assert_eq!(BOUNDS_NS[..3], [10_000, 12_500, 16_000]);
        assert_eq!(
            BOUNDS_NS[BOUNDS_NS.len() - 2..],
            [800_000_000, 1_000_000_000]
        );
        for pair in BOUNDS_NS.windows(2) {
            let step = pair[1] as f64 / pair[0] as f64;
            assert!((1.2..1.3).contains(&step), "{pair:?}");
        }
    }

    #[test]
    fn a_delay_is_counted_under_every_bound_that_it_does_not_exceed() {
        let metrics = Metrics::new();
        for micros in [0, 10, 11, 2_000, 3_000_000] {
            metrics.input_delay.observe(Duration::from_micros(micros));
        }
        let page = metrics.page().unwrap();
        let below = |bound: &str| {
            let sample = format!("vivavoce_input_delay_seconds_bucket{{le=\"{bound}\"}}");
            value(&page, &sample)
        };
        assert_eq!(below("0.00001"), "2");
        assert_eq!(below("0.0000125"), "3");
        assert_eq!(below("0.0016"), "3");
        assert_eq!(below("0.002"), "4");
        assert_eq!(below("1.0"), "4");
        assert_eq!(below("+Inf"), "5");
        assert_eq!(value(&page, "vivavoce_input_delay_seconds_count"), "5");
        assert_eq!(value(&page, "vivavoce_input_delay_seconds_sum"), "3.002021");
    }

    #[test]
    fn delays_of_more_threads_than_there_are_places_are_all_counted() {
        let delays = Delays::default();
        std::thread::scope(|scope| {
            for micros in 1..=2 * PLACES as u64 {
                let delays = &delays;
                scope.spawn(move || delays.observe(Duration::from_micros(micros)));
            }
        });
        let counted: u64 = delays.buckets().iter().map(|(_, count)| count).sum();
        let all: u64 = (1..=2 * PLACES as u64).sum();
        assert_eq!(counted, 2 * PLACES as u64);
        assert_eq!(delays.sum(|of| &of.sum_ns), all * 1_000);
    }

    #[test]
    fn a_session_is_live_until_it_is_dropped() {
        let metrics = Metrics::new();
        let live = || value(&metrics.page().unwrap(), "vivavoce_sessions");
        let session = metrics.session_opened();
        assert_eq!(live(), "1");
        drop(session);
        assert_eq!(live(), "0");
        let page = metrics.page().unwrap();
        assert_eq!(value(&page, "vivavoce_sessions_opened_total"), "1");
        assert_eq!(value(&page, "vivavoce_sessions_closed_total"), "1");
    }

    #[test]
    fn what_alerts_wait_for_is_on_the_page_before_it_happens() {
        let page = Metrics::new().page().unwrap();
        for sample in [
            "vivavoce_audio_dropped_seconds_total{cause=\"recording\"}",
            "vivavoce_webhooks_lost_total{cause=\"spool\"}",
            "vivavoce_webhooks_lost_total{cause=\"receiver\"}",
            "vivavoce_agent_jobs_ended_total{outcome=\"not_taken\"}",
            "vivavoce_agent_dials_total{outcome=\"unanswered\"}",
        ] {
            assert_eq!(value(&page, sample).parse(), Ok(0.0), "{sample}");
        }
    }

    #[test]
    fn sound_that_was_dropped_is_counted_by_cause() {
        let metrics = Metrics::new();
        for (cause, ms) in [(DropCause::Replay, 20), (DropCause::Decoding, 40)] {
            let counter = metrics.audio_dropped.get_or_create(&Cause { cause });
            counter.inc_by(Duration::from_millis(ms).as_secs_f64());
        }
        let page = metrics.page().unwrap();
        let dropped = |cause: &str| {
            let sample = format!("vivavoce_audio_dropped_seconds_total{{cause=\"{cause}\"}}");
            value(&page, &sample)
        };
        assert_eq!(
            (dropped("replay"), dropped("decoding")),
            ("0.02".to_owned(), "0.04".to_owned())
        );
    }
}
