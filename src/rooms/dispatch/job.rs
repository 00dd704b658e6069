//! A job: an agent in a room, from its creation until it has ended.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use proto::{JobStatus, JobType};

use super::{NANOS_PER_MS, WAITING, WorkerId};
use crate::{Now, limits};
use vivavoce_quotas::Party;
use vivavoce_telemetry::metrics;

/// How long a worker that declines a job is not asked again: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// How far a job is.
#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    /// For a worker that takes it.
    Waiting,
    /// A worker was asked.
    Offered { until: Instant },
    /// A worker has accepted; its agent has not joined. No deadline once the worker says that the job runs.
    Assigned { until: Option<Instant> },
    /// The agent is in the room. Without a worker if that is lost.
    Running,
    /// The agent has left the room.
    Leaving { until: Instant },
}

/// A job that has not ended.
#[derive(Debug)]
pub(super) struct Job {
    pub sid: String,
    pub dispatch: String,
    pub kind: JobType,
    pub namespace: String,
    pub room_name: String,
    room: proto::Room,
    participant: Option<proto::ParticipantInfo>,
    pub asked: proto::RoomAgentDispatch,
    /// The party that it counts for.
    pub party: Party,
    /// When it was created.
    pub at: Now,
    pub wait_until: Instant,
    pub state: State,
    /// Whom it was offered to, or who does it.
    pub worker: Option<WorkerId>,
    /// Workers that have declined it: how often, and until when they are not asked again.
    declined: HashMap<WorkerId, (u32, Instant)>,
    /// When a worker that has declined may be asked again.
    pub ask_again: Option<Instant>,
    /// The identity of its agent, once it is assigned.
    pub agent_identity: Option<String>,
    /// How often it was assigned.
    pub assignments: u32,
    pub started_ms: i64,
    pub updated_ms: i64,
    #[expect(dead_code, reason = "counts until it is dropped")]
    present: metrics::Present,
}

impl Job {
    /// In a room, for a participant or none, of a dispatch.
    pub fn new(
        sid: String,
        kind: JobType,
        namespace: String,
        (room, participant): (&proto::Room, Option<&proto::ParticipantInfo>),
        (dispatch, asked): (&str, &proto::RoomAgentDispatch),
        party: Party,
        now: Now,
    ) -> Self {
        Self {
            sid,
            dispatch: dispatch.to_owned(),
            kind,
            namespace,
            room_name: room.name.clone(),
            room: room.clone(),
            participant: participant.cloned(),
            asked: asked.clone(),
            party,
            at: now,
            wait_until: now.instant + WAITING,
            state: State::Waiting,
            worker: None,
            declined: HashMap::new(),
            ask_again: None,
            agent_identity: None,
            assignments: 0,
            started_ms: 0,
            updated_ms: now.unix_ms,
            present: metrics::agent_job_created(),
        }
    }

    /// When something is to be done about it.
    pub fn due(&self) -> Option<Instant> {
        match self.state {
            State::Waiting => self.ask_again.into_iter().chain([self.wait_until]).min(),
            State::Offered { until } | State::Leaving { until } => Some(until),
            State::Assigned { until } => until,
            State::Running => None,
        }
    }

    /// A worker does not take it for now. It is asked again, as it may only have been busy with another job, but less and
    /// less often.
    pub fn decline(&mut self, worker: WorkerId, now: Instant) {
        let (times, until) = self.declined.entry(worker).or_insert((0, now));
        let pause = FIRST_PAUSE.saturating_mul(1 << (*times).min(8));
        *until = now + pause.min(LONGEST_PAUSE);
        *times += 1;
    }

    /// A worker that was busy is so no more.
    pub fn forgive(&mut self, worker: WorkerId) {
        self.declined.remove(&worker);
    }

    /// Whether a worker may be asked.
    pub fn may_ask(&self, worker: WorkerId, now: Instant) -> bool {
        let declined = self.declined.get(&worker);
        declined.is_none_or(|(_, until)| *until <= now)
    }

    /// It waits for workers that become free, or that may be asked again.
    pub fn wait(&mut self, now: Instant) {
        let pauses = self.declined.values().map(|(_, until)| *until);
        self.ask_again = pauses.filter(|until| *until > now).min();
        self.worker = None;
        self.state = State::Waiting;
    }

    /// Whether it is the job of this type for a participant, or for the room.
    pub fn is_for(
        &self,
        kind: JobType,
        namespace: &str,
        participant: Option<&proto::ParticipantInfo>,
    ) -> bool {
        let identity = |info: &proto::ParticipantInfo| info.identity.clone();
        self.kind == kind
            && self.namespace == namespace
            && self.participant.as_ref().map(identity) == participant.map(identity)
    }

    /// Whether it is for this participant.
    pub fn is_about(&self, identity: &str) -> bool {
        let participant = self.participant.as_ref();
        participant.is_some_and(|info| info.identity == identity)
    }

    /// As LiveKit's protocol shows it.
    #[expect(deprecated, reason = "workers with a namespace still read it")]
    pub fn shown(&self) -> proto::Job {
        let status = match self.state {
            State::Waiting | State::Offered { .. } => JobStatus::JsPending,
            State::Assigned { .. } | State::Running | State::Leaving { .. } => JobStatus::JsRunning,
        };
        let nanos = |ms: i64| ms.saturating_mul(NANOS_PER_MS);
        proto::Job {
            id: self.sid.clone(),
            dispatch_id: self.dispatch.clone(),
            r#type: self.kind as i32,
            room: Some(self.room.clone()),
            participant: self.participant.clone(),
            namespace: self.namespace.clone(),
            metadata: self.asked.metadata.clone(),
            agent_name: self.asked.agent_name.clone(),
            state: Some(proto::JobState {
                status: status as i32,
                started_at: nanos(self.started_ms),
                updated_at: nanos(self.updated_ms),
                participant_identity: self.agent_identity.clone().unwrap_or_default(),
                ..Default::default()
            }),
            deployment: self.asked.deployment.clone(),
            attributes: self.asked.attributes.clone(),
            ..Default::default()
        }
    }

    /// What is shown of it on the server's own pages.
    pub fn view(&self, worker_id: Option<String>) -> JobView {
        JobView {
            id: self.sid.clone(),
            dispatch_id: self.dispatch.clone(),
            agent_name: self.asked.agent_name.clone(),
            kind: self.kind,
            room_name: self.room_name.clone(),
            participant_identity: self.participant.as_ref().map(|info| info.identity.clone()),
            agent_identity: self.agent_identity.clone(),
            state: match self.state {
                State::Waiting => "waiting",
                State::Offered { .. } => "offered",
                State::Assigned { .. } => "assigned",
                State::Running => "running",
                State::Leaving { .. } => "leaving",
            },
            worker_id,
            created_ms: self.at.unix_ms,
        }
    }
}

/// Whether a job that has ended was for the room, or for this session of a participant.
#[expect(deprecated, reason = "workers with a namespace still read it")]
pub(super) fn was_for(
    ended: &proto::Job,
    kind: JobType,
    namespace: &str,
    participant: Option<&proto::ParticipantInfo>,
) -> bool {
    let sid = |info: &proto::ParticipantInfo| info.sid.clone();
    ended.r#type() == kind
        && ended.namespace == namespace
        && ended.participant.as_ref().map(sid) == participant.map(sid)
}

/// What is wrong with what a worker says of the participant that its agent will be; the room would refuse it.
pub(super) fn problem_with(answer: &proto::AvailabilityResponse) -> Option<&'static str> {
    let long = |text: &str| text.chars().count() > limits::NAME_CHARACTERS;
    if long(&answer.participant_identity) {
        return Some("participant_identity: is too long");
    }
    if long(&answer.participant_name) {
        return Some("participant_name: is too long");
    }
    if answer.participant_metadata.len() > limits::AGENT_TEXT_BYTES {
        return Some("participant_metadata: is too long");
    }
    let attributes = &answer.participant_attributes;
    if attributes.len() >= limits::ATTRIBUTES
        || limits::size_of(attributes) > limits::AGENT_TEXT_BYTES
    {
        return Some("participant_attributes: are too many");
    }
    None
}

/// A job that has not ended, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// `AJ_…`.
    pub id: String,
    /// `AD_…`.
    pub dispatch_id: String,
    /// The name of the agent, empty for the unnamed one.
    pub agent_name: String,
    /// The type.
    pub kind: JobType,
    /// The room.
    pub room_name: String,
    /// The participant that it is for, if it is for one.
    pub participant_identity: Option<String>,
    /// The identity of the agent, once the job is assigned.
    pub agent_identity: Option<String>,
    /// How far it is.
    pub state: &'static str,
    /// Who was asked, or does it.
    pub worker_id: Option<String>,
    /// Unix milliseconds.
    pub created_ms: i64,
}
