//! `GET /sessions` and `DELETE /sessions/{stream_id}`: live sessions, telephone calls, agent workers and their jobs.

use std::time::Duration;

use actix_web::web;
use livekit_protocol::JobType;
use schemars::JsonSchema;
use serde::Serialize;

use super::error::{ApiError, Code};
use super::recording::{Of, several};
use super::state::AppState;
use crate::auth::Entered;
use vivavoce_actors::registry::calls::{
    CallInfo, ListCalls, ListGateways, ListRefused, ListRegistrations,
};
use vivavoce_actors::registry::sessions::{EndByName, ListSessions, NotEnded, SessionInfo};
use vivavoce_actors::session::StreamId;
use vivavoce_core::unix_time::unix_ms;
use vivavoce_rooms::AgentViews;
use vivavoce_rooms::dispatch::{JobView, WorkerView};
use vivavoce_seams::rooms::telephone::{
    GatewayReport, PhoneReport, RefusedCall, RegistrationReport, RegistrationState,
};

/// How long ending a session may take; longer than it takes to play out its last words.
const PATIENCE: Duration = Duration::from_secs(8);

/// Response of `GET /sessions`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionList {
    sessions: Vec<SessionInfo>,
    /// Telephone calls, including those that ended in the last minute.
    calls: Vec<CallInfo>,
    /// Inbound calls that were refused lately, the newest last; only the operator sees them.
    refused_calls: Vec<RefusedCallInfo>,
    /// Accounts at PBXs and carriers that the server keeps registered; only the operator sees them.
    sip_registrations: Vec<SipRegistration>,
    /// The gateways of the settings and how they are; only the operator sees them.
    sip_gateways: Vec<SipGateway>,
    /// Telephones that may register here: the caller's.
    sip_phones: Vec<SipPhone>,
    /// Agent workers that have registered with embedded rooms.
    agent_workers: Vec<AgentWorker>,
    /// Jobs of agents that have not ended.
    agent_jobs: Vec<AgentJob>,
}

/// An inbound call that was refused.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RefusedCallInfo {
    /// The id of its trace, for `GET /sip/traces/{trace_id}`.
    trace_id: String,
    /// When, for the last time, in Unix milliseconds.
    at: u64,
    /// The address that it came from.
    source: String,
    /// The calling number; empty where it was refused before anybody looked.
    from: String,
    /// The called number; empty likewise.
    to: String,
    /// The SIP status that it got.
    status: u16,
    /// Why, for people.
    reason: String,
    /// How often the same has happened.
    times: u64,
}

impl From<RefusedCall> for RefusedCallInfo {
    fn from(refused: RefusedCall) -> Self {
        Self {
            trace_id: refused.trace_id,
            at: unix_ms(refused.at),
            source: refused.source,
            from: refused.from,
            to: refused.to,
            status: refused.status,
            reason: refused.reason,
            times: refused.times,
        }
    }
}

/// An account at a PBX or carrier.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SipRegistration {
    /// Who is called there.
    user: String,
    /// Where.
    registrar: String,
    /// How it is.
    #[schemars(extend("enum" = ["trying", "registered", "refused", "unreachable"]))]
    state: &'static str,
    /// The SIP status with which the registrar refuses it; null otherwise.
    status: Option<u16>,
    /// Until when it is registered, in Unix milliseconds; null while it is not.
    expires_at: Option<u64>,
}

impl From<RegistrationReport> for SipRegistration {
    fn from(report: RegistrationReport) -> Self {
        Self {
            user: report.user,
            registrar: report.registrar,
            state: report.state.as_str(),
            status: match report.state {
                RegistrationState::Refused(status) => Some(status),
                _ => None,
            },
            expires_at: report.expires_at.map(unix_ms),
        }
    }
}

/// A gateway of the settings.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SipGateway {
    /// Where.
    address: String,
    /// How it is reached.
    #[schemars(extend("enum" = ["udp", "tcp", "tls"]))]
    transport: &'static str,
    /// How it is: `unknown` where it is not asked (`sip.gateway_check_seconds`).
    #[schemars(extend("enum" = ["unknown", "up", "down"]))]
    state: &'static str,
    /// When it was asked last, in Unix milliseconds; null where it was not.
    checked_at: Option<u64>,
    /// How long its answer took, in milliseconds; null where there was none.
    round_trip_ms: Option<f64>,
}

impl From<GatewayReport> for SipGateway {
    fn from(report: GatewayReport) -> Self {
        Self {
            address: report.address,
            transport: report.transport,
            state: report.state.as_str(),
            checked_at: report.checked_at.map(unix_ms),
            round_trip_ms: report.round_trip.map(|time| time.as_secs_f64() * 1_000.0),
        }
    }
}

/// A telephone that may register here.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SipPhone {
    /// Its name.
    user: String,
    /// Whose it is; null where it is the operator's.
    tenant: Option<String>,
    /// Where it is; null while it is not registered.
    address: Option<String>,
    /// Until when it is registered, in Unix milliseconds; null likewise.
    expires_at: Option<u64>,
}

impl From<PhoneReport> for SipPhone {
    fn from(report: PhoneReport) -> Self {
        Self {
            user: report.user,
            tenant: report.tenant.map(|tenant| tenant.as_str().to_owned()),
            address: report.address,
            expires_at: report.expires_at.map(unix_ms),
        }
    }
}

/// An agent worker. Times are Unix milliseconds.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AgentWorker {
    /// Its id.
    worker_id: String,
    /// The name of its agent; empty for the unnamed one, which is dispatched automatically.
    agent_name: String,
    /// The namespace, which may be empty.
    namespace: String,
    /// What its jobs are for.
    #[schemars(extend("enum" = ["room", "publisher", "participant"]))]
    job_type: &'static str,
    /// The version of its SDK.
    version: String,
    /// Whether it takes jobs.
    #[schemars(extend("enum" = ["available", "full", "draining"]))]
    status: &'static str,
    /// As it told last, from 0 to 1.
    load: f32,
    /// The number of its jobs.
    jobs: usize,
    /// When it connected.
    connected_at: i64,
}

/// A job of an agent. Times are Unix milliseconds.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AgentJob {
    /// Its id.
    job_id: String,
    /// The dispatch that it comes from.
    dispatch_id: String,
    /// The name of the agent, which may be empty.
    agent_name: String,
    /// What it is for.
    #[schemars(extend("enum" = ["room", "publisher", "participant"]))]
    job_type: &'static str,
    /// The room.
    room_name: String,
    /// The participant that it is for; null where it is for the room.
    participant_identity: Option<String>,
    /// The identity of the agent in the room; null before the job is assigned.
    agent_identity: Option<String>,
    /// How far it is.
    #[schemars(extend("enum" = ["waiting", "offered", "assigned", "running", "leaving"]))]
    state: &'static str,
    /// The worker that was asked, or does it; null where there is none.
    worker_id: Option<String>,
    /// When it was created.
    created_at: i64,
}

const fn job_type(kind: JobType) -> &'static str {
    match kind {
        JobType::JtRoom => "room",
        JobType::JtPublisher => "publisher",
        JobType::JtParticipant => "participant",
    }
}

impl From<WorkerView> for AgentWorker {
    fn from(worker: WorkerView) -> Self {
        Self {
            worker_id: worker.id,
            agent_name: worker.agent_name,
            namespace: worker.namespace,
            job_type: job_type(worker.kind),
            version: worker.version,
            status: match worker {
                WorkerView { draining: true, .. } => "draining",
                WorkerView {
                    available: true, ..
                } => "available",
                _ => "full",
            },
            load: worker.load,
            jobs: worker.jobs,
            connected_at: worker.connected_ms,
        }
    }
}

impl From<JobView> for AgentJob {
    fn from(job: JobView) -> Self {
        Self {
            job_id: job.id,
            dispatch_id: job.dispatch_id,
            agent_name: job.agent_name,
            job_type: job_type(job.kind),
            room_name: job.room_name,
            participant_identity: job.participant_identity,
            agent_identity: job.agent_identity,
            state: job.state,
            worker_id: job.worker_id,
            created_at: job.created_ms,
        }
    }
}

/// Response of `DELETE /sessions/{stream_id}`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Ended {
    #[schemars(extend("const" = "ended"))]
    status: &'static str,
    stream_id: StreamId,
}

/// Lists configured sessions, calls, agent workers and jobs.
pub async fn list(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<SessionList>, ApiError> {
    let calls = ListCalls {
        access: access.clone(),
    };
    let calls = state.calls.send(calls).await?;
    let registrations = ListRegistrations {
        access: access.clone(),
    };
    let registrations = state.calls.send(registrations).await?;
    let refused = ListRefused {
        access: access.clone(),
    };
    let refused = state.calls.send(refused).await?;
    let gateways = ListGateways {
        access: access.clone(),
    };
    let (gateways, phones) = state.calls.send(gateways).await?;
    let agents = match &state.embedded_rooms {
        // Rooms that have stopped have none.
        Some(rooms) => rooms.agents(access.clone()).await.unwrap_or_default(),
        None => AgentViews::default(),
    };
    let list = state.sessions.send(ListSessions { access }).await;
    let sessions = list?;
    Ok(web::Json(SessionList {
        sessions,
        calls,
        refused_calls: refused.into_iter().map(RefusedCallInfo::from).collect(),
        sip_registrations: registrations
            .into_iter()
            .map(SipRegistration::from)
            .collect(),
        sip_gateways: gateways.into_iter().map(SipGateway::from).collect(),
        sip_phones: phones.into_iter().map(SipPhone::from).collect(),
        agent_workers: agents.workers.into_iter().map(AgentWorker::from).collect(),
        agent_jobs: agents.jobs.into_iter().map(AgentJob::from).collect(),
    }))
}

/// Ends a session, and responds when it has ended.
pub async fn end(
    Entered(access): Entered,
    state: web::Data<AppState>,
    name: web::Path<String>,
    of: web::Query<Of>,
) -> Result<web::Json<Ended>, ApiError> {
    let unknown = || ApiError::new(Code::NotFound, "stream_id: no live session has this name");
    let stream_id = StreamId::parse(&name).map_err(|_| unknown())?;
    let order = EndByName {
        stream_id: stream_id.clone(),
        whose: of.whose()?,
        access,
    };
    let gone = state.sessions.send(order).await?;
    let gone = gone.map_err(|why| match why {
        NotEnded::Unknown => unknown(),
        NotEnded::Several => several(),
    })?;
    let ended = tokio::time::timeout(PATIENCE, gone.cancelled()).await;
    ended.map_err(|_| ApiError::new(Code::Internal, "the session does not end"))?;
    let status = "ended";
    Ok(web::Json(Ended { status, stream_id }))
}
