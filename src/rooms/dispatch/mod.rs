//! Dispatch of agents to rooms, for workers that speak LiveKit's agent protocol.
//!
//! A *worker* is a program that runs agents: it registers under an agent name and a type of job. A *dispatch* asks for an
//! agent of that name in a room; each room whose creator names no agents has one for the unnamed agent. A dispatch becomes
//! *jobs*: one for the room, one for each participant that publishes, or one for each participant, as the workers of that
//! name have registered. A job is offered to one worker at a time; the one that accepts is assigned the job with a token,
//! with which its agent joins the room.
//!
//! [`Dispatcher`] is sans-IO: what workers say, what happens in rooms and the time go in, messages to workers come out. The
//! SFU holds it and tells it of rooms (`workers`).

mod job;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use proto::server_message::Message as ToWorker;
use proto::worker_message::Message as FromWorker;
use proto::{JobStatus, JobType};

pub use job::JobView;
use job::{Job, State};
use worker::{Registered, Worker};
pub use worker::{WorkerCredentials, WorkerView};

use super::operations::OperationError;
use super::token::{self, Claims, Keys};
use super::{Now, limits, sfu};
use vivavoce_auth::{Access, Owner};
use vivavoce_quotas::{self as quotas, Refused, Share, Tally};
use vivavoce_telemetry::metrics::{self, AgentJobEnd};

/// How long a worker has to register.
pub const REGISTRATION: Duration = Duration::from_secs(10);
/// How long a worker has to accept a job before another one is asked.
pub const ANSWER: Duration = Duration::from_secs(10);
/// How long a job waits for a worker that takes it.
pub const WAITING: Duration = Duration::from_mins(1);
/// How long the agent of an assigned job has to join, unless its worker says that the job runs.
pub const STARTING: Duration = Duration::from_mins(1);
/// How long the worker of an agent that has left has to say how the job ended, and the agent to come back.
pub const LEAVING: Duration = Duration::from_secs(10);
/// How often a job is assigned: once, and again when the worker is lost.
const MOST_ASSIGNMENTS: u32 = 4;
/// Jobs that have ended are remembered so many per dispatch.
const MOST_ENDED: usize = 16;
/// The attribute with the name of the agent that a participant is, in LiveKit's older and its current spelling.
const AGENT_NAMES: [&str; 2] = ["lk.agent_name", "lk.agent.name"];
/// The validity of the token of an assignment; the room refreshes it.
const TOKEN_S: i64 = 3_600;

/// The connection of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u64);

/// A job, in order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct JobKey(u64);

/// What workers are sent. Taken after each input.
#[derive(Debug, Default)]
pub struct ForWorkers {
    /// In order.
    pub messages: Vec<(WorkerId, proto::ServerMessage)>,
    /// Connections to close.
    pub closes: Vec<WorkerId>,
}

impl ForWorkers {
    /// Whether there is nothing to be sent.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.closes.is_empty()
    }
}

/// A request for an agent in a room.
#[derive(Debug)]
struct Dispatch {
    sid: String,
    asked: proto::RoomAgentDispatch,
    /// Whether nobody has asked for it by name.
    automatic: bool,
    created_ms: i64,
    /// Workers that register until then get a job; `None` while the room waits for its dispatch.
    open_until: Option<Instant>,
    /// Jobs that have not ended.
    jobs: Vec<JobKey>,
    /// The last jobs that have ended.
    ended: VecDeque<proto::Job>,
}

/// The dispatches of a room.
#[derive(Debug)]
struct RoomDispatches {
    owner: Owner,
    dispatches: Vec<Dispatch>,
    /// Jobs by the identity of their agents.
    agents: HashMap<String, JobKey>,
    /// Whether agents are dispatched to it yet.
    open: bool,
}

/// See the module.
pub struct Dispatcher {
    keys: Keys,
    server_info: proto::ServerInfo,
    rng: fastrand::Rng,
    workers: BTreeMap<WorkerId, Worker>,
    rooms: HashMap<String, RoomDispatches>,
    /// Jobs that have not ended.
    jobs: BTreeMap<JobKey, Job>,
    sids: HashMap<String, JobKey>,
    next_job: u64,
    worker_places: Tally,
    job_places: Tally,
    /// Dispatches by when somebody is told that there is no worker for them.
    opened: VecDeque<(Instant, String, String)>,
    out: ForWorkers,
}

impl Dispatcher {
    /// Without workers and rooms. Tokens are signed with these keys; `server_info` is told to workers.
    pub fn new(keys: Keys, server_info: proto::ServerInfo, share: Share, seed: u64) -> Self {
        Self {
            keys,
            server_info,
            rng: fastrand::Rng::with_seed(seed),
            workers: BTreeMap::new(),
            rooms: HashMap::new(),
            jobs: BTreeMap::new(),
            sids: HashMap::new(),
            next_job: 0,
            worker_places: Tally::new(limits::AGENT_WORKERS as u64, share),
            job_places: Tally::new(limits::AGENT_JOBS as u64, share),
            opened: VecDeque::new(),
            out: ForWorkers::default(),
        }
    }

    /// Whether workers are to be sent something.
    pub fn has_outputs(&self) -> bool {
        !self.out.is_empty()
    }

    /// Takes what workers are to be sent.
    pub fn take_outputs(&mut self) -> ForWorkers {
        std::mem::take(&mut self.out)
    }

    fn sid(&mut self, prefix: &str) -> String {
        sfu::sid(&mut self.rng, prefix)
    }

    fn tell(&mut self, worker: WorkerId, message: ToWorker) {
        let message = Some(message);
        self.out
            .messages
            .push((worker, proto::ServerMessage { message }));
    }

    // Workers

    /// A worker has connected; it has [`REGISTRATION`] to register.
    pub fn connected(
        &mut self,
        id: WorkerId,
        credentials: WorkerCredentials,
        now: Now,
    ) -> Result<(), Refused> {
        let taken = self.worker_places.take(&credentials.party, 1);
        taken.map_err(|why| {
            metrics::quota_refused(quotas::Kind::AgentWorkers.name());
            Refused {
                kind: quotas::Kind::AgentWorkers,
                why,
            }
        })?;
        let sid = self.sid("AW_");
        self.workers.insert(id, Worker::new(sid, credentials, now));
        Ok(())
    }

    /// The connection of a worker is lost. Its jobs whose agents have not joined go to others; agents that are in their
    /// rooms stay there.
    pub fn gone(&mut self, id: WorkerId, now: Now) {
        let Some(worker) = self.workers.remove(&id) else {
            return;
        };
        self.worker_places.release(&worker.credentials.party, 1);
        if worker.registered.is_some() {
            tracing::info!(
                worker = worker.sid,
                jobs = worker.jobs.len(),
                "an agent worker has disconnected"
            );
        }
        for key in worker.jobs {
            let Some(job) = self.jobs.get_mut(&key) else {
                continue;
            };
            match job.state {
                State::Waiting => {}
                State::Offered { .. } | State::Assigned { .. } => {
                    tracing::warn!(
                        job = job.sid,
                        worker = worker.sid,
                        "the worker of a job was lost before it began"
                    );
                    self.again(key, now);
                }
                State::Running => job.worker = None,
                State::Leaving { .. } => {
                    job.worker = None;
                    self.lost(key, now);
                }
            }
        }
    }

    /// Handles a message of a worker. Returns the type of job that it has registered for, when it has just done so: rooms
    /// that are open to its agent are then to be told by [`Self::launch`].
    pub fn said(
        &mut self,
        id: WorkerId,
        message: proto::WorkerMessage,
        now: Now,
    ) -> Option<JobType> {
        let registered = self.workers.get(&id)?.registered.is_some();
        match message.message? {
            FromWorker::Register(request) if !registered => return self.register(id, request, now),
            FromWorker::Ping(ping) => {
                let pong = proto::WorkerPong {
                    last_timestamp: ping.timestamp,
                    timestamp: now.unix_ms,
                };
                self.tell(id, ToWorker::Pong(pong));
            }
            _ if !registered => {}
            FromWorker::Availability(answer) => self.answered(id, answer, now),
            FromWorker::UpdateWorker(update) => self.updated(id, &update, now),
            FromWorker::UpdateJob(update) => self.job_updated(id, &update, now),
            FromWorker::MigrateJob(request) => self.reclaimed(id, request),
            FromWorker::Register(_) => {
                tracing::debug!("an agent worker has registered twice");
            }
            FromWorker::SimulateJob(_) => {}
        }
        None
    }

    fn register(
        &mut self,
        id: WorkerId,
        request: proto::RegisterWorkerRequest,
        now: Now,
    ) -> Option<JobType> {
        let server_info = Some(self.server_info.clone());
        let worker = self.workers.get_mut(&id)?;
        let registered = match Registered::read(request) {
            Ok(registered) => registered,
            Err(problem) => {
                tracing::warn!(worker = worker.sid, problem, "an agent worker was refused");
                self.out.closes.push(id);
                return None;
            }
        };
        tracing::info!(
            worker = worker.sid,
            agent = registered.agent_name,
            kind = registered.kind.as_str_name(),
            version = registered.version,
            "an agent worker has registered"
        );
        let (kind, worker_id) = (registered.kind, worker.sid.clone());
        worker.registered = Some(registered);
        let response = proto::RegisterWorkerResponse {
            worker_id,
            server_info,
            ..Default::default()
        };
        self.tell(id, ToWorker::Register(response));
        self.place_waiting(now);
        Some(kind)
    }

    /// The rooms with a dispatch that this worker might serve.
    pub fn rooms_for(&self, id: WorkerId) -> Vec<String> {
        let Some(worker) = self.workers.get(&id) else {
            return Vec::new();
        };
        let serves = |room: &RoomDispatches| {
            room.open
                && worker.may_serve(&room.owner)
                && room
                    .dispatches
                    .iter()
                    .any(|one| worker.is_named(&one.asked))
        };
        let rooms = self.rooms.iter().filter(|(_, room)| serves(room));
        rooms.map(|(name, _)| name.clone()).collect()
    }

    fn updated(&mut self, id: WorkerId, update: &proto::UpdateWorkerStatus, now: Now) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let was = worker.takes_jobs();
        worker.update(update);
        if was || !worker.takes_jobs() {
            return;
        }
        // What it declined while it was full it may take now.
        for job in self.jobs.values_mut() {
            job.forgive(id);
        }
        self.place_waiting(now);
    }

    /// A worker that has come back tells which jobs its agents still do.
    fn reclaimed(&mut self, id: WorkerId, request: proto::MigrateJobRequest) {
        for sid in request.job_ids {
            let Some(key) = self.sids.get(&sid).copied() else {
                continue;
            };
            let (Some(job), Some(worker)) = (self.jobs.get_mut(&key), self.workers.get_mut(&id))
            else {
                continue;
            };
            let owner = self.rooms.get(&job.room_name).map(|room| &room.owner);
            if !owner.is_some_and(|owner| worker.may_serve(owner)) || !worker.is_of(job) {
                continue;
            }
            match (job.worker, job.state) {
                (None, State::Running) => {
                    job.worker = Some(id);
                    worker.jobs.insert(key);
                    tracing::info!(
                        job = job.sid,
                        worker = worker.sid,
                        "a worker has come back to its job"
                    );
                }
                (Some(other), _) if other == id => {}
                // Another one does it by now, or will.
                _ => self.tell(
                    id,
                    ToWorker::Termination(proto::JobTermination { job_id: sid }),
                ),
            }
        }
    }

    // Rooms

    /// A room was created, with the agents that its creator named. Nothing is dispatched before [`Self::open_room`].
    pub fn room_created(
        &mut self,
        name: &str,
        owner: Owner,
        mut agents: Vec<proto::RoomAgentDispatch>,
        now: Now,
    ) {
        let automatic = agents.is_empty();
        if automatic {
            agents.push(proto::RoomAgentDispatch::default());
        }
        agents.truncate(limits::DISPATCHES_PER_ROOM);
        let dispatches = agents
            .into_iter()
            .map(|asked| Dispatch {
                sid: self.sid("AD_"),
                asked,
                automatic,
                created_ms: now.unix_ms,
                open_until: None,
                jobs: Vec::new(),
                ended: VecDeque::new(),
            })
            .collect();
        let room = RoomDispatches {
            owner,
            dispatches,
            agents: HashMap::new(),
            open: false,
        };
        self.rooms.insert(name.to_owned(), room);
    }

    /// Whether agents are still to be dispatched to a room.
    pub fn is_held(&self, room: &str) -> bool {
        self.rooms.get(room).is_some_and(|room| !room.open)
    }

    /// Dispatches agents to a room from now on.
    pub fn open_room(&mut self, info: &proto::Room, now: Now) {
        let Some(room) = self.rooms.get_mut(&info.name) else {
            return;
        };
        if std::mem::replace(&mut room.open, true) {
            return;
        }
        let until = now.instant + WAITING;
        for dispatch in &mut room.dispatches {
            dispatch.open_until = Some(until);
            if !dispatch.automatic {
                let room = info.name.clone();
                self.opened.push_back((until, room, dispatch.sid.clone()));
            }
        }
        self.launch(info, JobType::JtRoom, None, None, now);
    }

    /// A room has another owner: its jobs are for the owner's workers.
    pub fn room_owned(&mut self, name: &str, owner: Owner) {
        if let Some(room) = self.rooms.get_mut(name) {
            room.owner = owner;
        }
    }

    /// A room has ended, and with it its jobs.
    pub fn room_finished(&mut self, name: &str, now: Now) {
        let keys: Vec<JobKey> = self.rooms.get(name).map_or_else(Vec::new, |room| {
            let jobs = room.dispatches.iter().flat_map(|dispatch| &dispatch.jobs);
            jobs.copied().collect()
        });
        for key in keys {
            self.cancel(key, "the room has ended", now);
        }
        self.rooms.remove(name);
    }

    /// Creates the jobs of this type that the dispatches of a room have not led to yet, for the namespaces of their
    /// workers; with a participant, those for it; `only` those of one dispatch.
    pub fn launch(
        &mut self,
        info: &proto::Room,
        kind: JobType,
        participant: Option<&proto::ParticipantInfo>,
        only: Option<&str>,
        now: Now,
    ) {
        let Some(room) = self.rooms.get(&info.name).filter(|room| room.open) else {
            return;
        };
        let mut wanted = Vec::new();
        for (at, dispatch) in room.dispatches.iter().enumerate() {
            let closed = dispatch.open_until.is_none_or(|until| until <= now.instant);
            let other = only.is_some_and(|sid| sid != dispatch.sid);
            if other || (kind == JobType::JtRoom && closed) {
                continue;
            }
            let mut namespaces = HashSet::new();
            for worker in self.workers.values() {
                let Some(registered) = worker.serves(kind, &dispatch.asked, &room.owner) else {
                    continue;
                };
                if namespaces.insert(registered.namespace.as_str()) {
                    wanted.push((at, registered.namespace.clone()));
                }
            }
        }
        for (at, namespace) in wanted {
            self.create_job(info, at, kind, namespace, participant, now);
        }
    }

    fn create_job(
        &mut self,
        info: &proto::Room,
        at: usize,
        kind: JobType,
        namespace: String,
        participant: Option<&proto::ParticipantInfo>,
        now: Now,
    ) {
        let sid = self.sid("AJ_");
        let Some(room) = self.rooms.get_mut(&info.name) else {
            return;
        };
        let Some(dispatch) = room.dispatches.get_mut(at) else {
            return;
        };
        let same = |job: &Job| job.is_for(kind, &namespace, participant);
        let mut live = dispatch.jobs.iter().filter_map(|key| self.jobs.get(key));
        if live.any(same)
            || dispatch
                .ended
                .iter()
                .any(|job| job::was_for(job, kind, &namespace, participant))
        {
            return;
        }
        let party = room.owner.party();
        if self.job_places.take(&party, 1).is_err() {
            metrics::quota_refused(quotas::Kind::AgentJobs.name());
            tracing::warn!(
                dispatch = dispatch.sid,
                "there are too many agent jobs: one was not created"
            );
            return;
        }
        let key = JobKey(self.next_job);
        self.next_job += 1;
        let job = Job::new(
            sid,
            kind,
            namespace,
            (info, participant),
            (dispatch.sid.as_str(), &dispatch.asked),
            party,
            now,
        );
        dispatch.jobs.push(key);
        self.sids.insert(job.sid.clone(), key);
        self.jobs.insert(key, job);
        self.place(key, now);
    }

    /// The agent of a job has joined its room, or anybody else has.
    pub fn joined(&mut self, room: &str, identity: &str, now: Now) {
        let key = self
            .rooms
            .get(room)
            .and_then(|room| room.agents.get(identity));
        let Some(job) = key.and_then(|key| self.jobs.get_mut(key)) else {
            return;
        };
        if let State::Assigned { .. } | State::Leaving { .. } = job.state {
            if let State::Assigned { .. } = job.state {
                tracing::info!(
                    job = job.sid,
                    dispatch = job.dispatch,
                    agent = job.asked.agent_name,
                    "an agent has joined"
                );
            }
            job.state = State::Running;
            job.updated_ms = now.unix_ms;
        }
    }

    /// A participant has left. If it is the agent of a job, its worker says how the job ended; without a worker, another one
    /// gets the job. A job that waits for a participant that has left is dropped.
    pub fn left(&mut self, room: &str, identity: &str, now: Now) {
        let Some(room) = self.rooms.get(room) else {
            return;
        };
        let agent = room.agents.get(identity).copied();
        let dispatched = room.dispatches.iter().flat_map(|dispatch| &dispatch.jobs);
        let waiting = dispatched.filter(|key| {
            let job = self.jobs.get(*key);
            job.is_some_and(|job| {
                job.is_about(identity)
                    && matches!(job.state, State::Waiting | State::Offered { .. })
            })
        });
        let waiting: Vec<JobKey> = waiting.copied().collect();
        for key in waiting {
            self.cancel(key, "the participant has left", now);
        }
        let Some(key) = agent else { return };
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        if !matches!(job.state, State::Running) {
            return;
        }
        let until = now.instant + LEAVING;
        job.state = State::Leaving { until };
        if job.worker.is_none() {
            self.lost(key, now);
        }
    }

    // Jobs

    /// Offers a job to the worker that has most room for it, or lets it wait.
    fn place(&mut self, key: JobKey, now: Now) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        let owner = self.rooms.get(&job.room_name).map(|room| &room.owner);
        let Some(owner) = owner else { return };
        let candidates = self.workers.iter().filter(|(id, worker)| {
            worker.takes_jobs()
                && worker.is_of(job)
                && worker.may_serve(owner)
                && job.may_ask(**id, now.instant)
        });
        let best = candidates.min_by(|(_, a), (_, b)| a.order(b));
        let Some((id, _)) = best else {
            return job.wait(now.instant);
        };
        let id = *id;
        job.worker = Some(id);
        job.state = State::Offered {
            until: now.instant + ANSWER,
        };
        let resuming = job.assignments > 0;
        let mut offered = job.shown();
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.jobs.insert(key);
            worker.placed += 1;
            if let Some(state) = &mut offered.state {
                state.worker_id.clone_from(&worker.sid);
            }
        }
        let request = proto::AvailabilityRequest {
            job: Some(offered),
            resuming,
        };
        self.tell(id, ToWorker::Availability(request));
    }

    fn place_waiting(&mut self, now: Now) {
        let jobs = self.jobs.iter();
        let waiting = jobs.filter(|(_, job)| matches!(job.state, State::Waiting));
        let waiting: Vec<JobKey> = waiting.map(|(key, _)| *key).collect();
        for key in waiting {
            self.place(key, now);
        }
    }

    /// Takes a job from its worker and offers it to another.
    fn again(&mut self, key: JobKey, now: Now) {
        self.release(key);
        if let Some(job) = self.jobs.get_mut(&key) {
            job.wait_until = now.instant + WAITING;
        }
        self.place(key, now);
    }

    /// Takes a job from its worker.
    fn release(&mut self, key: JobKey) -> Option<WorkerId> {
        let job = self.jobs.get_mut(&key)?;
        let worker = job.worker.take();
        if let Some(identity) = job.agent_identity.take()
            && let Some(room) = self.rooms.get_mut(&job.room_name)
            && room.agents.get(&identity) == Some(&key)
        {
            room.agents.remove(&identity);
        }
        if let Some(worker) = worker.and_then(|id| self.workers.get_mut(&id)) {
            worker.jobs.remove(&key);
        }
        worker
    }

    /// An agent has left and its worker is lost: the job failed in the midst of it, and another worker goes on.
    fn lost(&mut self, key: JobKey, now: Now) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let never = job.asked.restart_policy() == proto::JobRestartPolicy::JrpNever;
        if never || job.assignments >= MOST_ASSIGNMENTS {
            return self.end(key, JobStatus::JsFailed, "the worker was lost", now);
        }
        tracing::warn!(
            job = job.sid,
            dispatch = job.dispatch,
            "the worker of a job was lost: another one gets it"
        );
        self.again(key, now);
    }

    /// A worker answers whether it takes a job.
    fn answered(&mut self, id: WorkerId, answer: proto::AvailabilityResponse, now: Now) {
        let key = self.sids.get(&answer.job_id).copied();
        let Some((key, job)) = key.and_then(|key| Some((key, self.jobs.get_mut(&key)?))) else {
            return;
        };
        if job.worker != Some(id) || !matches!(job.state, State::Offered { .. }) {
            return;
        }
        if answer.terminate {
            return self.end(key, JobStatus::JsSuccess, "", now);
        }
        let problem = job::problem_with(&answer);
        if let (true, Some(problem)) = (answer.available, problem) {
            tracing::warn!(
                job = job.sid,
                problem,
                "the answer of an agent worker was refused"
            );
        }
        if !answer.available || problem.is_some() {
            job.decline(id, now.instant);
            self.release(key);
            return self.place(key, now);
        }
        self.assign(key, id, answer, now);
    }

    /// Whether this agent is the one that has this job.
    pub fn expects(&self, job: &str, identity: &str) -> bool {
        let job = self.sids.get(job).and_then(|key| self.jobs.get(key));
        job.is_some_and(|job| job.agent_identity.as_deref() == Some(identity))
    }

    fn assign(&mut self, key: JobKey, id: WorkerId, answer: proto::AvailabilityResponse, now: Now) {
        let (Some(job), Some(worker)) = (self.jobs.get_mut(&key), self.workers.get(&id)) else {
            return;
        };
        let Some(registered) = &worker.registered else {
            return;
        };
        let identity = if answer.participant_identity.is_empty() {
            format!("agent-{}", job.sid)
        } else {
            answer.participant_identity
        };
        let mut attributes = answer.participant_attributes;
        for name in AGENT_NAMES {
            attributes.insert(name.to_owned(), registered.agent_name.clone());
        }
        let mut claims = Claims {
            iss: worker.credentials.api_key.clone(),
            sub: identity.clone(),
            nbf: now.unix_s(),
            exp: now.unix_s().saturating_add(TOKEN_S),
            name: answer.participant_name,
            kind: "agent".to_owned(),
            metadata: answer.participant_metadata,
            attributes,
            vivavoce: worker.credentials.tenant(),
            agent_job: Some(job.sid.clone()),
            ..Claims::default()
        };
        claims.video.room_join = true;
        claims.video.room.clone_from(&job.room_name);
        claims.set_permission(&registered.permissions);
        let Some(token) = token::mint(&claims, &self.keys) else {
            return self.end(
                key,
                JobStatus::JsFailed,
                "the token could not be signed",
                now,
            );
        };
        job.agent_identity = Some(identity.clone());
        job.assignments += 1;
        job.started_ms = now.unix_ms;
        job.updated_ms = now.unix_ms;
        job.state = State::Assigned {
            until: Some(now.instant + STARTING),
        };
        let mut shown = job.shown();
        if let Some(state) = &mut shown.state {
            state.worker_id.clone_from(&worker.sid);
        }
        tracing::info!(
            job = job.sid,
            dispatch = job.dispatch,
            worker = worker.sid,
            agent = job.asked.agent_name,
            "an agent job was assigned"
        );
        if let Some(room) = self.rooms.get_mut(&job.room_name) {
            room.agents.insert(identity, key);
        }
        let assignment = proto::JobAssignment {
            job: Some(shown),
            url: None,
            token,
        };
        self.tell(id, ToWorker::Assignment(assignment));
    }

    /// A worker tells of a job: of one that is not, or not any more, its own nothing is taken.
    fn job_updated(&mut self, id: WorkerId, update: &proto::UpdateJobStatus, now: Now) {
        let key = self.sids.get(&update.job_id).copied();
        let Some((key, job)) = key.and_then(|key| Some((key, self.jobs.get_mut(&key)?))) else {
            return;
        };
        if job.worker != Some(id) || matches!(job.state, State::Offered { .. }) {
            return;
        }
        job.updated_ms = now.unix_ms;
        match update.status() {
            JobStatus::JsPending => {}
            JobStatus::JsRunning => {
                if let State::Assigned { until } = &mut job.state {
                    *until = None;
                }
            }
            status => {
                let told: String = update.error.chars().take(limits::NAME_CHARACTERS).collect();
                self.end(key, status, &told, now);
            }
        }
    }

    /// Ends a job from this side: its worker is told to end it.
    fn cancel(&mut self, key: JobKey, why: &'static str, now: Now) {
        let Some(job) = self.jobs.get(&key) else {
            return;
        };
        let has_run = matches!(job.state, State::Running | State::Leaving { .. });
        let assigned = has_run || matches!(job.state, State::Assigned { .. });
        if let Some(worker) = job.worker.filter(|_| assigned) {
            let job_id = job.sid.clone();
            self.tell(
                worker,
                ToWorker::Termination(proto::JobTermination { job_id }),
            );
        }
        let status = if has_run {
            JobStatus::JsSuccess
        } else {
            JobStatus::JsFailed
        };
        self.end(key, status, if has_run { "" } else { why }, now);
    }

    fn end(&mut self, key: JobKey, status: JobStatus, error: &str, now: Now) {
        let identity = self
            .jobs
            .get(&key)
            .and_then(|job| job.agent_identity.clone());
        let worker = self.release(key);
        let Some(mut job) = self.jobs.remove(&key) else {
            return;
        };
        self.sids.remove(&job.sid);
        self.job_places.release(&job.party, 1);
        job.agent_identity = identity;
        let ended = match (status, job.assignments) {
            (JobStatus::JsSuccess, _) => AgentJobEnd::Succeeded,
            (_, 0) => AgentJobEnd::NotTaken,
            _ => AgentJobEnd::Failed,
        };
        metrics::agent_job_ended(ended);
        if error.is_empty() {
            tracing::info!(
                job = job.sid,
                dispatch = job.dispatch,
                "an agent job has ended"
            );
        } else {
            // Its worker's words may quote what people said.
            tracing::info!(job = job.sid, dispatch = job.dispatch, outcome = ?ended, "an agent job has ended");
            tracing::debug!(job = job.sid, error, "why an agent job has ended");
        }
        let mut shown = job.shown();
        if let Some(state) = &mut shown.state {
            state.status = status as i32;
            error.clone_into(&mut state.error);
            if let Some(worker) = worker.and_then(|id| self.workers.get(&id)) {
                state.worker_id.clone_from(&worker.sid);
            }
            state.updated_at = now.unix_ms.saturating_mul(NANOS_PER_MS);
            state.ended_at = state.updated_at;
        }
        let room = self.rooms.get_mut(&job.room_name);
        let dispatch = room.and_then(|room| {
            let mut dispatches = room.dispatches.iter_mut();
            dispatches.find(|dispatch| dispatch.sid == job.dispatch)
        });
        if let Some(dispatch) = dispatch {
            dispatch.jobs.retain(|live| *live != key);
            dispatch.ended.push_back(shown);
            if dispatch.ended.len() > MOST_ENDED {
                dispatch.ended.pop_front();
            }
        }
    }

    /// Handles timers.
    pub fn tick(&mut self, now: Now) {
        let late = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.is_late(now.instant));
        let late: Vec<WorkerId> = late.map(|(id, _)| *id).collect();
        for id in late {
            tracing::warn!("an agent worker has not registered in time");
            self.out.closes.push(id);
            self.gone(id, now);
        }
        let due = self
            .jobs
            .iter()
            .filter(|(_, job)| job.due().is_some_and(|at| at <= now.instant));
        let due: Vec<JobKey> = due.map(|(key, _)| *key).collect();
        for key in due {
            self.overdue(key, now);
        }
        while let Some((_, room, dispatch)) =
            self.opened.pop_front_if(|(at, ..)| *at <= now.instant)
        {
            self.check_served(&room, &dispatch);
        }
    }

    fn overdue(&mut self, key: JobKey, now: Now) {
        let Some(job) = self.jobs.get_mut(&key) else {
            return;
        };
        let worker = job.worker;
        match job.state {
            State::Waiting if job.wait_until > now.instant => self.place(key, now),
            State::Waiting => {
                tracing::warn!(
                    job = job.sid,
                    dispatch = job.dispatch,
                    agent = job.asked.agent_name,
                    "no worker has taken an agent job in {WAITING:?}"
                );
                self.end(
                    key,
                    JobStatus::JsFailed,
                    "no worker has taken the job in time",
                    now,
                );
            }
            State::Offered { .. } => {
                tracing::warn!(
                    job = job.sid,
                    "a worker has not answered whether it takes a job in {ANSWER:?}: another one is asked"
                );
                if let Some(worker) = worker {
                    job.decline(worker, now.instant);
                }
                self.release(key);
                self.place(key, now);
            }
            State::Assigned { .. } => {
                tracing::warn!(
                    job = job.sid,
                    dispatch = job.dispatch,
                    "the agent of a job has not joined in {STARTING:?}"
                );
                if let Some(worker) = worker {
                    let job_id = job.sid.clone();
                    job.decline(worker, now.instant);
                    self.tell(
                        worker,
                        ToWorker::Termination(proto::JobTermination { job_id }),
                    );
                }
                if self
                    .jobs
                    .get(&key)
                    .is_some_and(|job| job.assignments < MOST_ASSIGNMENTS)
                {
                    return self.again(key, now);
                }
                self.end(key, JobStatus::JsFailed, "the agent has not joined", now);
            }
            State::Leaving { .. } => {
                if let Some(worker) = worker {
                    let job_id = job.sid.clone();
                    self.tell(
                        worker,
                        ToWorker::Termination(proto::JobTermination { job_id }),
                    );
                }
                self.end(key, JobStatus::JsFailed, "the agent has left the room", now);
            }
            State::Running => {}
        }
    }

    /// Says that nobody serves a dispatch, if so.
    fn check_served(&self, room: &str, sid: &str) {
        let Some(room) = self.rooms.get(room) else {
            return;
        };
        let Some(dispatch) = room.dispatches.iter().find(|one| one.sid == *sid) else {
            return;
        };
        let served = self
            .workers
            .values()
            .any(|worker| worker.is_named(&dispatch.asked) && worker.may_serve(&room.owner));
        if !served && dispatch.jobs.is_empty() && dispatch.ended.is_empty() {
            tracing::warn!(
                dispatch = dispatch.sid,
                agent = dispatch.asked.agent_name,
                "no worker has registered for a dispatch in {WAITING:?}"
            );
        }
    }

    // The server API

    /// Adds a dispatch to a room.
    pub fn create_dispatch(
        &mut self,
        info: &proto::Room,
        asked: proto::RoomAgentDispatch,
        now: Now,
    ) -> Result<proto::AgentDispatch, OperationError> {
        let sid = self.sid("AD_");
        let room = self
            .rooms
            .get_mut(&info.name)
            .ok_or(OperationError::NoRoom)?;
        if room.dispatches.len() >= limits::DISPATCHES_PER_ROOM {
            return Err(OperationError::FailedPrecondition(
                "the room has as many agent dispatches as this server allows",
            ));
        }
        let until = now.instant + WAITING;
        self.opened
            .push_back((until, info.name.clone(), sid.clone()));
        room.dispatches.push(Dispatch {
            sid: sid.clone(),
            asked,
            automatic: false,
            created_ms: now.unix_ms,
            open_until: Some(until),
            jobs: Vec::new(),
            ended: VecDeque::new(),
        });
        self.launch(info, JobType::JtRoom, None, Some(&sid), now);
        self.show(&info.name, &sid)
    }

    /// Ends a dispatch and its jobs.
    pub fn delete_dispatch(
        &mut self,
        room: &str,
        sid: &str,
        now: Now,
    ) -> Result<proto::AgentDispatch, OperationError> {
        let mut shown = self.show(room, sid)?;
        let dispatches = self.rooms.get(room).map(|room| &room.dispatches);
        let found = dispatches.and_then(|all| all.iter().find(|dispatch| dispatch.sid == sid));
        let jobs = found
            .map(|dispatch| dispatch.jobs.clone())
            .unwrap_or_default();
        for key in jobs {
            self.cancel(key, "the dispatch was deleted", now);
        }
        if let Some(room) = self.rooms.get_mut(room) {
            room.dispatches.retain(|dispatch| dispatch.sid != sid);
        }
        if let Some(state) = &mut shown.state {
            state.deleted_at = now.unix_ms.saturating_mul(NANOS_PER_MS);
        }
        Ok(shown)
    }

    /// The dispatches of a room; one, if one is named.
    pub fn list_dispatches(
        &self,
        room: &str,
        sid: &str,
    ) -> Result<Vec<proto::AgentDispatch>, OperationError> {
        let dispatches = self.rooms.get(room).ok_or(OperationError::NoRoom)?;
        let chosen = dispatches
            .dispatches
            .iter()
            .filter(|one| sid.is_empty() || one.sid == sid);
        Ok(chosen.map(|dispatch| self.shown(room, dispatch)).collect())
    }

    fn show(&self, room: &str, sid: &str) -> Result<proto::AgentDispatch, OperationError> {
        let found = self.list_dispatches(room, sid)?.into_iter().next();
        found
            .filter(|_| !sid.is_empty())
            .ok_or(OperationError::NoDispatch)
    }

    fn shown(&self, room: &str, dispatch: &Dispatch) -> proto::AgentDispatch {
        let live = dispatch.jobs.iter().filter_map(|key| self.jobs.get(key));
        let live = live.map(|job| {
            let mut shown = job.shown();
            let worker = job.worker.and_then(|id| self.workers.get(&id));
            if let (Some(state), Some(worker)) = (&mut shown.state, worker) {
                state.worker_id.clone_from(&worker.sid);
            }
            shown
        });
        proto::AgentDispatch {
            id: dispatch.sid.clone(),
            agent_name: dispatch.asked.agent_name.clone(),
            room: room.to_owned(),
            metadata: dispatch.asked.metadata.clone(),
            state: Some(proto::AgentDispatchState {
                jobs: dispatch.ended.iter().cloned().chain(live).collect(),
                created_at: dispatch.created_ms.saturating_mul(NANOS_PER_MS),
                deleted_at: 0,
            }),
            restart_policy: dispatch.asked.restart_policy,
            deployment: dispatch.asked.deployment.clone(),
            attributes: dispatch.asked.attributes.clone(),
        }
    }

    /// The registered workers that this caller may see, in order of connecting.
    pub fn workers_for(&self, access: &Access) -> Vec<WorkerView> {
        let seen = self
            .workers
            .values()
            .filter(|worker| worker.is_seen_by(access));
        seen.filter_map(Worker::view).collect()
    }

    /// The jobs that have not ended in the rooms that this caller may see, in order of creation.
    pub fn jobs_for(&self, access: &Access) -> Vec<JobView> {
        let seen = self.jobs.values().filter(|job| {
            let room = self.rooms.get(&job.room_name);
            room.is_some_and(|room| room.owner.lets(access))
        });
        seen.map(|job| {
            let worker = job.worker.and_then(|id| self.workers.get(&id));
            job.view(worker.map(|worker| worker.sid.clone()))
        })
        .collect()
    }
}

/// LiveKit's times of dispatches and jobs are in nanoseconds.
const NANOS_PER_MS: i64 = 1_000_000;
