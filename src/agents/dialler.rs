//! The actor that dials agents. Each call has a task on one of the dialler's threads, where its session lives, too.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::prelude::*;
use arc_swap::ArcSwapOption;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::apology::{BUFFER, apologise};
use super::dial::Clients;
use super::line::{Line, OnLine};
use super::routes::{AgentRoute, AgentRoutes};
use super::socket::{AgentSocket, Given, Progress};
use vivavoce_actors::registry::hooks::CallForAgent;
use vivavoce_actors::registry::rooms::{RoomsError, ShowRoom};
use vivavoce_actors::restarts::jitter;
use vivavoce_actors::session::protocol::ServerMessage;
use vivavoce_actors::session::{self, Caller, Places, SessionServices};
use vivavoce_auth::{Access, Owner, TenantId};
use vivavoce_core::backoff::Backoff;
use vivavoce_core::dialect::Dialect;
use vivavoce_core::tls_roots::Authorities;
use vivavoce_quotas::Refused;
use vivavoce_quotas::shared_limit::{SharedLimit, Size};
use vivavoce_socket::{Closed, ClosedBy, SocketHandler, SocketSettings, SocketWriter, run_dialled};
use vivavoce_telemetry::metrics::{self, AgentDial};

/// How long an agent must have had a call, at least, to be dialled as if for the first time when its socket breaks.
const SOUND: Duration = Duration::from_secs(5);
/// The pauses after every address of an agent has failed.
const PAUSES: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(4), 0.3);

/// What the dialler needs of the server.
pub struct DiallerParts {
    pub services: Arc<SessionServices>,
    pub sockets: SocketSettings,
    /// The server waits for it when it stops.
    pub work: TaskTracker,
    /// The URL of this server, for clients of its rooms.
    pub own_url: String,
    /// How many threads carry the sessions of agents.
    pub threads: usize,
}

/// Dials agents for calls.
pub struct AgentDialler {
    shared: Arc<Shared>,
    /// Started with the first call.
    threads: Vec<Arbiter>,
    next: usize,
}

struct Shared {
    parts: DiallerParts,
    /// `None` without agents.
    plan: ArcSwapOption<DialPlan>,
    unconfigured: Arc<SharedLimit>,
    /// Rooms in which there is an agent, or will be; at most one for each call.
    rooms: Mutex<HashSet<String>>,
}

/// Which agents are dialled, and with what.
pub struct DialPlan {
    routes: AgentRoutes,
    clients: Clients,
}

impl DialPlan {
    /// A plan for the agents of the settings.
    pub fn new(
        routes: AgentRoutes,
        authorities: &Authorities,
        dialect: Dialect,
    ) -> io::Result<Self> {
        let clients = Clients::new(authorities, routes.egress, dialect)?;
        Ok(Self { routes, clients })
    }
}

/// Dials these agents from now on; calls that have one keep it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct DialOthers(pub Option<DialPlan>);

impl AgentDialler {
    /// A dialler for these agents.
    pub fn new(parts: DiallerParts, plan: Option<DialPlan>) -> Self {
        // The quota of sessions bounds them.
        let total = usize::MAX;
        let unconfigured = SharedLimit::new(Size {
            total,
            unauthenticated: total,
            per_key: total,
        });
        let shared = Shared {
            parts,
            plan: ArcSwapOption::new(plan.map(Arc::new)),
            unconfigured,
            rooms: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            threads: Vec::new(),
            next: 0,
        }
    }

    /// The thread for the next call.
    fn thread(&mut self) -> Option<&Arbiter> {
        if self.threads.is_empty() {
            let threads = self.shared.parts.threads.max(1);
            self.threads.extend((0..threads).map(|_| Arbiter::new()));
        }
        self.next = (self.next + 1) % self.threads.len();
        self.threads.get(self.next)
    }
}

impl Actor for AgentDialler {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(1024);
    }
}

impl Handler<DialOthers> for AgentDialler {
    type Result = ();

    fn handle(&mut self, DialOthers(plan): DialOthers, _: &mut Context<Self>) {
        self.shared.plan.store(plan.map(Arc::new));
    }
}

impl Handler<CallForAgent> for AgentDialler {
    type Result = ();

    fn handle(&mut self, call: CallForAgent, _: &mut Context<Self>) {
        let shared = Arc::clone(&self.shared);
        let Some(plan) = shared.plan.load_full() else {
            return;
        };
        if !call.is_telephone && !plan.routes.rooms {
            return;
        }
        let tenant = call.owner.as_ref().and_then(|owner| match owner {
            Owner::Tenant(tenant) => Some(tenant),
            _ => None,
        });
        let route = plan
            .routes
            .of(call.host.as_ref(), call.to.as_deref(), tenant);
        let Some(route) = route.cloned() else {
            return;
        };
        let access = match &call.owner {
            Some(owner) => Access::of_owner(owner),
            // Nobody has to say who they are.
            None => Access::anonymous(),
        };
        let Some(place) = RoomPlace::take(&shared, &call.room_name) else {
            return;
        };
        let task = AgentCall {
            shared,
            plan,
            route,
            access: access.clone(),
            place: InRoom {
                access,
                call,
                _place: place,
            },
        };
        if let Some(thread) = self.thread() {
            // Only a system that is stopping has no threads.
            let _stopping = thread.spawn_fn(move || {
                actix::spawn(task.serve());
            });
        }
    }
}

/// Agents for calls that are in no room.
#[derive(Clone)]
pub struct AgentLines(Arc<Shared>);

/// The agent of such a call.
pub struct LineAgent {
    shared: Arc<Shared>,
    plan: Arc<DialPlan>,
    route: AgentRoute,
}

impl AgentDialler {
    /// Agents for calls that are in no room.
    pub fn lines(&self) -> AgentLines {
        AgentLines(Arc::clone(&self.shared))
    }
}

impl AgentLines {
    /// The agent of a call to this number, which belongs to this tenant; `None` where there is none.
    pub fn agent_of(&self, number: Option<&str>, tenant: Option<&TenantId>) -> Option<LineAgent> {
        let plan = self.0.plan.load_full()?;
        let route = plan.routes.of(None, number, tenant).cloned()?;
        Some(LineAgent {
            shared: Arc::clone(&self.0),
            plan,
            route,
        })
    }
}

impl LineAgent {
    /// Dials until an agent has taken the call, and again when its socket breaks; returns when the call needs none any more.
    /// Must be called in a `LocalSet`, as actors are.
    pub async fn serve(self, line: Rc<dyn Line>, access: Access) {
        let call = AgentCall {
            shared: self.shared,
            plan: self.plan,
            route: self.route,
            access,
            place: OnLine(line),
        };
        call.serve().await;
    }
}

/// A room has an agent, until this is dropped.
struct RoomPlace {
    shared: Arc<Shared>,
    room: String,
}

impl RoomPlace {
    /// `None` where the room has one already.
    fn take(shared: &Arc<Shared>, room: &str) -> Option<Self> {
        let mut rooms = shared.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.insert(room.to_owned()).then(|| Self {
            shared: Arc::clone(shared),
            room: room.to_owned(),
        })
    }
}

impl Drop for RoomPlace {
    fn drop(&mut self) {
        let mut rooms = self
            .shared
            .rooms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        rooms.remove(&self.room);
    }
}

/// Where a call is that gets an agent.
pub(crate) trait Place {
    /// The handler of the agent's socket.
    type Socket: SocketHandler;

    /// What the agent is told first.
    fn told(&self, stream_id: &str) -> ServerMessage;

    /// Whether whoever it is for has gone.
    async fn is_over(&self, services: &SessionServices) -> bool;

    /// Resolves when whoever it is for has gone, if that can be waited for.
    async fn over(&self) {
        std::future::pending::<()>().await;
    }

    /// The room of the call, if it is in one.
    fn room(&self) -> Option<&str> {
        None
    }

    /// Opens a session for an agent.
    fn open(&self, opening: Opening) -> Self::Socket;
}

/// What opens the session of an agent.
pub(crate) struct Opening {
    pub(crate) services: Arc<SessionServices>,
    pub(crate) sockets: SocketSettings,
    pub(crate) places: Places,
    pub(crate) caller: Caller,
    pub(crate) stream_id: String,
    pub(crate) progress: Rc<Progress>,
    /// To the agent.
    pub(crate) writer: SocketWriter,
}

/// A call of a room.
struct InRoom {
    access: Access,
    call: CallForAgent,
    _place: RoomPlace,
}

impl Place for InRoom {
    type Socket = AgentSocket;

    fn told(&self, stream_id: &str) -> ServerMessage {
        let call = &self.call;
        ServerMessage::Call {
            room_name: Some(call.room_name.clone()),
            participant_identity: call.participant_identity.clone(),
            from: call.from.clone(),
            to: call.to.clone(),
            headers: call.headers.clone(),
            stream_id: stream_id.to_owned(),
            carrier: call.carrier.clone(),
        }
    }

    async fn is_over(&self, services: &SessionServices) -> bool {
        let Some(rooms) = &services.rooms else {
            return true;
        };
        let shown = rooms.send(ShowRoom {
            access: self.access.clone(),
            room: self.call.room_name.clone(),
        });
        let identity = &self.call.participant_identity;
        match shown.await {
            Ok(Ok((_, participants))) => {
                !participants.iter().any(|known| known.identity == *identity)
            }
            Ok(Err(RoomsError::NoRoom | RoomsError::AccessDenied)) => true,
            // Whoever cannot be asked may know it the next time.
            Ok(Err(_)) | Err(_) => false,
        }
    }

    fn room(&self) -> Option<&str> {
        Some(&self.call.room_name)
    }

    fn open(&self, opening: Opening) -> AgentSocket {
        let given = Given {
            stream_id: opening.stream_id,
            room_name: self.call.room_name.clone(),
            dialect: Arc::clone(&opening.services.dialect),
        };
        let writer = opening.writer.clone();
        let session = session::open(opening.services, opening.places, opening.caller, writer);
        AgentSocket::new(session, given, opening.progress, opening.writer)
    }
}

/// A call and its agent.
struct AgentCall<P> {
    shared: Arc<Shared>,
    plan: Arc<DialPlan>,
    route: AgentRoute,
    access: Access,
    place: P,
}

/// What became of an attempt.
enum Outcome {
    /// The agent has done its work.
    Done,
    /// The agent's socket broke in the middle.
    Broke,
    /// There was no agent.
    Failed,
}

impl<P: Place> AgentCall<P> {
    async fn serve(self) {
        let routes = &self.plan.routes;
        let mut began = Instant::now();
        let addresses = self.route.urls.len().max(1);
        let mut attempt = 0;
        loop {
            let Some(url) = self.route.urls.get(attempt % addresses) else {
                return;
            };
            if self.is_over().await {
                return;
            }
            let dialled = Instant::now();
            match self.attempt(url).await {
                Outcome::Done => return,
                Outcome::Failed => attempt += 1,
                Outcome::Broke => {
                    tracing::warn!("an agent's socket broke in mid-call");
                    // One that dies as soon as it has a call is no agent.
                    if dialled.elapsed() >= routes.patience.max(SOUND) {
                        (began, attempt) = (Instant::now(), 0);
                    } else {
                        attempt += 1;
                    }
                }
            }
            if began.elapsed() >= routes.patience {
                break;
            }
            if attempt.is_multiple_of(addresses) {
                let earlier = u32::try_from(attempt / addresses).unwrap_or(u32::MAX);
                sleep(PAUSES.delay(earlier.saturating_sub(1), jitter())).await;
            }
        }
        if self.is_over().await {
            return;
        }
        metrics::agent_dialled(AgentDial::Unanswered);
        tracing::error!("no agent has taken a call within agent.patience_seconds");
        if let Some(text) = &routes.apology {
            self.apologise(text).await;
        }
    }

    /// Dials an address, and is that agent's session until it ends.
    async fn attempt(&self, url: &reqwest::Url) -> Outcome {
        let routes = &self.plan.routes;
        let host = url.host_str().unwrap_or_default();
        let id = Uuid::new_v4().to_string();
        let dialling = self.plan.clients.dial(url, &self.route.secret, &id);
        let failed = |why: &str| {
            metrics::agent_dialled(AgentDial::Failed);
            tracing::warn!(agent = host, why, "an agent does not take a call");
            Outcome::Failed
        };
        let stopping = self.shared.parts.services.draining.cancelled();
        let dialled = tokio::select! {
            dialled = timeout(routes.connect_timeout, dialling) => dialled,
            () = stopping => return failed("the server is stopping"),
            () = self.place.over() => return failed("the caller has gone"),
        };
        let stream = match dialled {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return failed(&error.to_string()),
            Err(_) => return failed("it does not answer within agent.connect_timeout_seconds"),
        };
        let stream_id = id;
        let progress = Rc::new(Progress::default());
        let writer = Rc::new(OnceCell::new());
        let running = self.session(stream, &stream_id, (&progress, &writer));
        let late = async {
            sleep(routes.connect_timeout).await;
            if !progress.configured.get()
                && let Some(writer) = writer.get()
            {
                SocketWriter::close(writer, 4408, "no config came in time");
            }
            std::future::pending::<()>().await;
        };
        let ran = tokio::select! {
            ran = running => ran,
            () = late => return Outcome::Failed,
        };
        if let Err(refused) = ran {
            return failed(&refused.to_string());
        }
        if !progress.configured.get() {
            return failed("it has not sent config");
        }
        metrics::agent_dialled(AgentDial::Taken);
        match progress.closed.take() {
            // Its config was refused, and no other came.
            Some(closed) if closed.code == 4408 => Outcome::Failed,
            Some(closed) if !broke(&closed) => Outcome::Done,
            _ => Outcome::Broke,
        }
    }

    /// A session over a socket to an agent, until it ends.
    async fn session(
        &self,
        stream: impl AsyncRead + AsyncWrite + 'static,
        stream_id: &str,
        (progress, kept): (&Rc<Progress>, &Rc<OnceCell<SocketWriter>>),
    ) -> Result<(), Refused> {
        let parts = &self.shared.parts;
        let party = self.access.party();
        let session = parts.services.quotas.sessions.take(&party)?;
        let Ok(unconfigured) = self.shared.unconfigured.acquire(party.clone(), 1) else {
            return Ok(());
        };
        let places = Places {
            session: Some(session),
            unconfigured,
            work: parts.work.token(),
        };
        let caller = Caller {
            access: self.access.clone(),
            pass: None,
            request_id: stream_id.to_owned(),
            own_url: parts.own_url.clone(),
            handshake: None,
            takes: false,
            least_lead: Duration::ZERO,
        };
        let told = self.place.told(stream_id);
        let opening = |writer: SocketWriter| Opening {
            services: Arc::clone(&parts.services),
            sockets: parts.sockets.clone(),
            places,
            caller,
            stream_id: stream_id.to_owned(),
            progress: Rc::clone(progress),
            writer,
        };
        run_dialled(stream, &parts.sockets, party, |writer| {
            // Before anything that the session says.
            writer.event(told.to_json());
            let _first = kept.set(writer.clone());
            self.place.open(opening(writer))
        })
        .await;
        Ok(())
    }

    /// Whether nobody need be dialled any more: the server stops, or whoever it is for has gone.
    async fn is_over(&self) -> bool {
        let services = &self.shared.parts.services;
        services.draining.is_cancelled() || self.place.is_over(services).await
    }

    async fn apologise(&self, text: &str) {
        let (near, far) = tokio::io::duplex(BUFFER);
        let stream_id = Uuid::new_v4().to_string();
        let (progress, writer) = (Rc::default(), Rc::default());
        let providers = Arc::clone(&self.shared.parts.services.providers);
        let session = self.session(near, &stream_id, (&progress, &writer));
        let apology = apologise(far, &providers, self.place.room(), text);
        let (ran, ()) = tokio::join!(session, apology);
        if let Err(refused) = ran {
            tracing::warn!(%refused, "an apology could not be said");
        }
    }
}

/// Whether a socket has ended as one does whose agent is in trouble.
fn broke(closed: &Closed) -> bool {
    match closed.by {
        ClosedBy::Transport => true,
        ClosedBy::Client => matches!(closed.code, 1001 | 1006 | 1011 | 1012),
        ClosedBy::Edge => closed.code == 4409,
        ClosedBy::Server => false,
    }
}
