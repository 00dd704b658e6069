//! A connected worker: what it registered for, how busy it is, and which of two is asked first.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::time::Instant;

use livekit_protocol as proto;
use proto::{JobType, WorkerStatus};

use super::job::Job;
use super::{JobKey, REGISTRATION};
use crate::{Now, limits};
use vivavoce_auth::{Access, Owner, Principal};
use vivavoce_quotas::Party;
use vivavoce_telemetry::metrics;

/// What a job is taken to add to the load of a worker that has none to judge by.
const LOAD_OF_A_JOB: f32 = 0.1;

/// What the token of a worker says.
#[derive(Debug, Clone)]
pub struct WorkerCredentials {
    /// The principal that it works for.
    pub principal: Principal,
    /// The party that it counts for.
    pub party: Party,
    /// The API key that signed its token, which signs those of its agents.
    pub api_key: String,
}

impl WorkerCredentials {
    /// The principal as tokens say it: the operator's say nothing.
    pub(super) fn tenant(&self) -> Option<Principal> {
        match &self.principal {
            Principal::Operator => None,
            other => Some(other.clone()),
        }
    }
}

/// What a worker has registered for.
#[derive(Debug)]
pub(super) struct Registered {
    pub kind: JobType,
    pub agent_name: String,
    pub namespace: String,
    pub deployment: String,
    pub version: String,
    /// What its agents may do in rooms.
    pub permissions: proto::ParticipantPermission,
}

impl Registered {
    /// From its first message. The error names the field.
    pub fn read(said: proto::RegisterWorkerRequest) -> Result<Self, &'static str> {
        let kind =
            JobType::try_from(said.r#type).map_err(|_| "type: is not a known type of job")?;
        let long = |text: &str| text.chars().count() > limits::NAME_CHARACTERS;
        let namespace = said.namespace.unwrap_or_default();
        for (text, problem) in [
            (&said.agent_name, "agent_name: is too long"),
            (&namespace, "namespace: is too long"),
            (&said.deployment, "deployment: is too long"),
            (&said.version, "version: is too long"),
        ] {
            if long(text) {
                return Err(problem);
            }
        }
        let all = || proto::ParticipantPermission {
            can_subscribe: true,
            can_publish: true,
            can_publish_data: true,
            can_update_metadata: true,
            ..Default::default()
        };
        Ok(Self {
            kind,
            agent_name: said.agent_name,
            namespace,
            deployment: said.deployment,
            version: said.version,
            permissions: said.allowed_permissions.unwrap_or_else(all),
        })
    }
}

/// A worker.
#[derive(Debug)]
pub(super) struct Worker {
    pub sid: String,
    pub credentials: WorkerCredentials,
    pub registered: Option<Registered>,
    connected: Now,
    status: WorkerStatus,
    draining: bool,
    /// As it told last, from 0 to 1.
    load: f32,
    /// The number of its last status that is counted.
    seq: u64,
    /// Jobs that were offered to it since it told its load.
    pub placed: u32,
    /// Jobs that it was offered or has, and that have not ended.
    pub jobs: BTreeSet<JobKey>,
    #[expect(dead_code, reason = "counts until it is dropped")]
    present: metrics::Present,
}

impl Worker {
    pub fn new(sid: String, credentials: WorkerCredentials, now: Now) -> Self {
        Self {
            sid,
            credentials,
            registered: None,
            connected: now,
            status: WorkerStatus::WsAvailable,
            draining: false,
            load: 0.0,
            seq: 0,
            placed: 0,
            jobs: BTreeSet::new(),
            present: metrics::agent_worker_connected(),
        }
    }

    /// Whether it has not registered in time.
    pub fn is_late(&self, now: Instant) -> bool {
        self.registered.is_none() && self.connected.instant + REGISTRATION <= now
    }

    /// Takes what it says of itself. Numbered statuses may come in another order.
    pub fn update(&mut self, said: &proto::UpdateWorkerStatus) {
        if said.seq != 0 && said.seq <= self.seq {
            return;
        }
        self.seq = said.seq;
        if said.status.is_some() {
            self.status = said.status();
        }
        self.draining = said.draining;
        self.load = if said.load.is_nan() {
            1.0
        } else {
            said.load.clamp(0.0, 1.0)
        };
        self.placed = 0;
    }

    /// Whether it may be offered a job.
    pub fn takes_jobs(&self) -> bool {
        self.registered.is_some() && self.status == WorkerStatus::WsAvailable && !self.draining
    }

    /// Whether it is a worker of the agent that a dispatch asks for.
    pub fn is_named(&self, asked: &proto::RoomAgentDispatch) -> bool {
        self.registered.as_ref().is_some_and(|registered| {
            registered.agent_name == asked.agent_name && registered.deployment == asked.deployment
        })
    }

    /// Whether it may work in a room of this owner: a tenant's workers do in the rooms of the tenant, the operator's in all.
    pub fn may_serve(&self, owner: &Owner) -> bool {
        owner.admits(&self.credentials.principal)
    }

    /// What it registered for, if jobs of this type and dispatch are for it.
    pub fn serves(
        &self,
        kind: JobType,
        asked: &proto::RoomAgentDispatch,
        owner: &Owner,
    ) -> Option<&Registered> {
        let serves = self.is_named(asked) && self.may_serve(owner);
        self.registered
            .as_ref()
            .filter(|registered| serves && registered.kind == kind)
    }

    /// Whether it is a worker for a job, whatever its room.
    pub fn is_of(&self, job: &Job) -> bool {
        self.is_named(&job.asked)
            && self.registered.as_ref().is_some_and(|registered| {
                registered.kind == job.kind && registered.namespace == job.namespace
            })
    }

    /// Which of two is asked first: in a tenant's room the tenant's, then the one with less load, counting what it was
    /// offered since it last told its load, then the one with fewer jobs.
    pub fn order(&self, other: &Self) -> Ordering {
        let operators = |worker: &Self| worker.credentials.principal == Principal::Operator;
        operators(self)
            .cmp(&operators(other))
            .then(self.expected_load().total_cmp(&other.expected_load()))
            .then(self.jobs.len().cmp(&other.jobs.len()))
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn expected_load(&self) -> f32 {
        let known = self.jobs.len().saturating_sub(self.placed as usize);
        let each = if known == 0 {
            LOAD_OF_A_JOB
        } else {
            (self.load / known as f32).max(LOAD_OF_A_JOB / 10.0)
        };
        self.load + each * self.placed as f32
    }

    /// Whether a caller may see it.
    pub fn is_seen_by(&self, access: &Access) -> bool {
        match &self.credentials.principal {
            Principal::Tenant(tenant) => access.may_see(Some(tenant)),
            Principal::Operator | Principal::Public => access.principal() == Principal::Operator,
        }
    }

    /// What is shown of it, once it has registered.
    pub fn view(&self) -> Option<WorkerView> {
        let registered = self.registered.as_ref()?;
        Some(WorkerView {
            id: self.sid.clone(),
            agent_name: registered.agent_name.clone(),
            namespace: registered.namespace.clone(),
            kind: registered.kind,
            version: registered.version.clone(),
            available: self.takes_jobs(),
            draining: self.draining,
            load: self.load,
            jobs: self.jobs.len(),
            connected_ms: self.connected.unix_ms,
        })
    }
}

/// A registered worker, as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// `AW_…`.
    pub id: String,
    /// The name of its agent, empty for the unnamed one.
    pub agent_name: String,
    /// The namespace.
    pub namespace: String,
    /// The type of its jobs.
    pub kind: JobType,
    /// Of its SDK.
    pub version: String,
    /// Whether it takes jobs.
    pub available: bool,
    /// Whether it finishes its jobs and takes no more.
    pub draining: bool,
    /// As it told last, from 0 to 1.
    pub load: f32,
    /// The number of its jobs.
    pub jobs: usize,
    /// Unix milliseconds.
    pub connected_ms: i64,
}
