//! Agent workers at the SFU: what happens in rooms is told to the [`Dispatcher`](super::dispatch::Dispatcher), and the
//! dispatches of the server API are made. Also the handle of a worker's connection. WebSockets are left to `http`.

use livekit_protocol as proto;
use proto::participant_info::Kind;
use proto::{JobType, ParticipantInfo};
use tokio::sync::{mpsc, oneshot};

use super::dispatch::{JobView, WAITING, WorkerCredentials, WorkerId, WorkerView};
use super::events::Event;
use super::operations::{OperationError, check_name};
use super::participant::Participant;
use super::server::{Command, RoomServer};
use super::sfu::Sfu;
use super::{Now, RoomKey, limits};
use vivavoce_auth::{Access, Owner};
use vivavoce_quotas::Refused;

/// What a worker does.
pub(super) enum WorkerInput {
    /// It has connected; it is told by `lane`.
    Connected {
        credentials: WorkerCredentials,
        lane: mpsc::Sender<proto::ServerMessage>,
        answer: oneshot::Sender<Result<(), Refused>>,
    },
    /// It has sent a message.
    Said(Box<proto::WorkerMessage>),
    /// Its connection is lost.
    Gone,
}

/// What can have an agent: whoever is no agent itself, and no recorder.
fn is_served(info: &ParticipantInfo) -> bool {
    !matches!(info.kind(), Kind::Agent | Kind::Egress)
}

impl Sfu {
    /// Tells the dispatcher of an event.
    pub(super) fn tell_dispatcher(
        &mut self,
        event: Event,
        room: &proto::Room,
        participant: Option<&ParticipantInfo>,
        now: Now,
    ) {
        let identity = participant.map_or("", |info| info.identity.as_str());
        let served = participant.filter(|info| is_served(info));
        match event {
            Event::RoomStarted | Event::TrackUnpublished => {}
            Event::RoomFinished => self
                .shared
                .agents()
                .dispatcher
                .room_finished(&room.name, now),
            Event::ParticipantJoined => {
                self.shared
                    .agents()
                    .dispatcher
                    .joined(&room.name, identity, now);
                if served.is_some() {
                    let kind = JobType::JtParticipant;
                    self.shared
                        .agents()
                        .dispatcher
                        .launch(room, kind, served, None, now);
                }
            }
            Event::ParticipantLeft | Event::ParticipantConnectionAborted => {
                self.shared
                    .agents()
                    .dispatcher
                    .left(&room.name, identity, now);
            }
            Event::TrackPublished => {
                if served.is_some() {
                    let kind = JobType::JtPublisher;
                    self.shared
                        .agents()
                        .dispatcher
                        .launch(room, kind, served, None, now);
                }
            }
        }
    }

    /// Dispatches agents to a room that has waited for it: one that was created by a call whose caller has not proved its
    /// address costs the workers nothing.
    pub(super) fn open_to_agents(&mut self, key: RoomKey, now: Now) {
        let Some(room) = self.rooms.get(&key) else {
            return;
        };
        if !room.on_trial && self.shared.agents().dispatcher.is_held(&room.name) {
            let info = self.room_info(room);
            self.shared.agents().dispatcher.open_room(&info, now);
        }
    }

    /// The dispatcher learns whose a room is.
    pub(super) fn tell_owner(&mut self, key: RoomKey) {
        if let Some(room) = self.rooms.get(&key) {
            let owner = Owner::of(&room.settings.metadata);
            self.shared
                .agents()
                .dispatcher
                .room_owned(&room.name, owner);
        }
    }

    /// A worker has sent a message.
    pub(super) fn worker_said(
        &mut self,
        worker: WorkerId,
        message: proto::WorkerMessage,
        now: Now,
    ) {
        let Some(kind) = self.shared.agents().dispatcher.said(worker, message, now) else {
            return;
        };
        let rooms = self.shared.agents().dispatcher.rooms_for(worker);
        for name in rooms {
            if self.room_names.contains_key(&name) {
                self.launch(&name, kind, now);
            } else {
                self.outputs.launches.push((name, kind));
            }
        }
    }

    /// Dispatches agents of a worker that has come to a room.
    pub(super) fn launch(&mut self, room: &str, kind: JobType, now: Now) {
        if let Some(key) = self.room_names.get(room) {
            self.launch_in(*key, kind, None, now);
        }
    }

    /// Dispatches agents for what a room is and who is in it: for those of late, unless it is for one dispatch.
    fn launch_in(&mut self, key: RoomKey, kind: JobType, only: Option<&str>, now: Now) {
        let Some(room) = self.rooms.get(&key) else {
            return;
        };
        let info = self.room_info(room);
        if kind == JobType::JtRoom {
            return self
                .shared
                .agents()
                .dispatcher
                .launch(&info, kind, None, only, now);
        }
        let wanted = |member: &&Participant| {
            let recent = now.instant.saturating_duration_since(member.joined) < WAITING;
            let published = member.published().next().is_some();
            (recent || only.is_some())
                && member.was_active
                && (kind == JobType::JtParticipant || published)
        };
        let members: Vec<ParticipantInfo> = self
            .members(key)
            .filter(wanted)
            .map(Participant::info)
            .filter(is_served)
            .collect();
        for member in members {
            self.shared
                .agents()
                .dispatcher
                .launch(&info, kind, Some(&member), only, now);
        }
    }

    /// Requests an agent for a room, which is created if it does not exist.
    pub fn create_dispatch(
        &mut self,
        request: proto::CreateAgentDispatchRequest,
        now: Now,
    ) -> Result<proto::AgentDispatch, OperationError> {
        let room = request.room;
        check_name(&room)?;
        let asked = proto::RoomAgentDispatch {
            agent_name: request.agent_name,
            metadata: request.metadata,
            restart_policy: request.restart_policy,
            deployment: request.deployment,
            attributes: request.attributes,
        };
        check_agents(std::slice::from_ref(&asked))?;
        if !self.room_names.contains_key(&room) {
            let request = proto::CreateRoomRequest {
                name: room.clone(),
                agents: vec![asked],
                ..Default::default()
            };
            self.create_room(&request, now)?;
            let created = self.shared.agents().dispatcher.list_dispatches(&room, "")?;
            return created.into_iter().next().ok_or(OperationError::NoDispatch);
        }
        let info = self.get_room(&room)?;
        let created = self
            .shared
            .agents()
            .dispatcher
            .create_dispatch(&info, asked, now)?;
        if let Some(key) = self.room_names.get(&room).copied() {
            for kind in [JobType::JtPublisher, JobType::JtParticipant] {
                self.launch_in(key, kind, Some(&created.id), now);
            }
        }
        Ok(created)
    }
}

/// Whether requests for agents are within the limits; the error names the field.
pub(super) fn check_agents(agents: &[proto::RoomAgentDispatch]) -> Result<(), OperationError> {
    let refused = |problem| Err(OperationError::InvalidArgument(problem));
    if agents.len() > limits::DISPATCHES_PER_ROOM {
        return refused("agents: are too many");
    }
    for agent in agents {
        if agent.agent_name.chars().count() > limits::NAME_CHARACTERS {
            return refused("agent_name: is too long");
        }
        if agent.deployment.chars().count() > limits::NAME_CHARACTERS {
            return refused("deployment: is too long");
        }
        if agent.metadata.len() > limits::METADATA_BYTES {
            return refused("metadata: is too large");
        }
        if limits::size_of(&agent.attributes) > limits::ATTRIBUTES_BYTES {
            return refused("attributes: are too large");
        }
    }
    Ok(())
}

/// The workers and jobs that a caller may see.
#[derive(Debug, Clone, Default)]
pub struct AgentViews {
    /// Registered workers.
    pub workers: Vec<WorkerView>,
    /// Jobs that have not ended.
    pub jobs: Vec<JobView>,
}

impl RoomServer {
    /// Connects a worker. The outer error means that the server has stopped.
    pub async fn connect_worker(
        &self,
        credentials: WorkerCredentials,
    ) -> Result<Result<WorkerConnection, Refused>, OperationError> {
        let worker = WorkerId(self.fresh_connection().0);
        let commands = self.commands().ok_or(OperationError::Stopped)?;
        let (lane, inbox) = mpsc::channel(limits::WORKER_WAITING);
        let (answer, answered) = oneshot::channel();
        let connection = WorkerConnection {
            worker,
            commands: commands.clone(),
            inbox,
        };
        let input = WorkerInput::Connected {
            credentials,
            lane,
            answer,
        };
        let sent = commands.send(Command::Worker { worker, input }).await;
        sent.map_err(|_| OperationError::Stopped)?;
        let answer = answered.await.map_err(|_| OperationError::Stopped)?;
        Ok(answer.map(|()| connection))
    }

    /// See [`Sfu::create_dispatch`].
    pub async fn create_dispatch(
        &self,
        request: proto::CreateAgentDispatchRequest,
    ) -> Result<proto::AgentDispatch, OperationError> {
        let room = request.room.clone();
        self.call_in(&room, move |sfu, now| sfu.create_dispatch(request, now))
            .await?
    }

    /// Ends a dispatch and its jobs.
    pub async fn delete_dispatch(
        &self,
        room: String,
        dispatch: String,
    ) -> Result<proto::AgentDispatch, OperationError> {
        self.call(move |sfu, now| {
            sfu.shared
                .agents()
                .dispatcher
                .delete_dispatch(&room, &dispatch, now)
        })
        .await?
    }

    /// The dispatches of a room; one, if one is named.
    pub async fn list_dispatches(
        &self,
        room: String,
        dispatch: String,
    ) -> Result<Vec<proto::AgentDispatch>, OperationError> {
        self.call(move |sfu, _| {
            sfu.shared
                .agents()
                .dispatcher
                .list_dispatches(&room, &dispatch)
        })
        .await?
    }

    /// The workers and jobs that a caller may see.
    pub async fn agents(&self, access: Access) -> Result<AgentViews, OperationError> {
        self.call(move |sfu, _| {
            let dispatcher = &sfu.shared.agents().dispatcher;
            AgentViews {
                workers: dispatcher.workers_for(&access),
                jobs: dispatcher.jobs_for(&access),
            }
        })
        .await
    }
}

/// The connection of a worker. It counts as lost when this is dropped.
#[derive(Debug)]
pub struct WorkerConnection {
    worker: WorkerId,
    commands: mpsc::Sender<Command>,
    inbox: mpsc::Receiver<proto::ServerMessage>,
}

impl WorkerConnection {
    /// Passes on a message of the worker; `false` if the server has stopped.
    pub async fn send(&self, message: proto::WorkerMessage) -> bool {
        let (worker, input) = (self.worker, WorkerInput::Said(Box::new(message)));
        let sent = self.commands.send(Command::Worker { worker, input }).await;
        sent.is_ok()
    }

    /// The next message for the worker; `None` if its socket should be closed.
    pub async fn next(&mut self) -> Option<proto::ServerMessage> {
        self.inbox.recv().await
    }
}

impl Drop for WorkerConnection {
    fn drop(&mut self) {
        // Where the queue is full, the media thread sees that nobody receives any more.
        let (worker, input) = (self.worker, WorkerInput::Gone);
        let _ = self.commands.try_send(Command::Worker { worker, input });
    }
}
