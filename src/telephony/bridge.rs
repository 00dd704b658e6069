//! The bridge: places calls, takes them, and knows those that there are. Each is a task of its own; the rules for who may call
//! whom are the callers'.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ipnet::IpNet;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use super::agent::digest::Credentials;
use super::agent::{
    Agent, Invitation, Leg, Listen, Outbound, Protocol, Reached, TlsSettings, Unacknowledged,
    header, resolve,
};
use super::call::attributes::{self, Ends};
use super::call::task::{Command, Line, Place, Task, Wish};
use super::call::{Call, Limits};
use super::media::{CallMedia, Media, MediaSettings};
use vivavoce_auth::{Owner, Principal};
use vivavoce_config::{RoomMode, SipTransport};
use vivavoce_core::outgoing::reach::is_public;
use vivavoce_seams::rooms::link::{Join, JoinKind, LinkEvent, Listen as Hear, RoomLink};
use vivavoce_seams::rooms::telephone::{
    CallError, CallErrorKind, CallOf, CallReport, Direction, HangupCause, NewCall, NewTransfer,
    NewsSender, PlacedCall, TransferTarget, Trunk,
};
use vivavoce_telemetry::metrics::{self, SipRefusal};

/// How long calls that have ended are still told of, and how many.
const REMEMBERED: Duration = Duration::from_mins(1);
const MOST_REMEMBERED: usize = 1_000;
/// For so long a participant may take into its room.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// For so long calls may take to end when the server stops.
const STOP_PATIENCE: Duration = Duration::from_secs(4);

/// Joins rooms.
#[async_trait]
pub trait Rooms: Send + Sync + 'static {
    /// A place in a room; an error for people. A room that this makes ends when nobody is left in it.
    async fn join(&self, join: Join) -> Result<RoomLink, String>;

    /// From now on a room stays for a while when nobody is left in it: who is on the telephone there is where they say.
    /// Whoever forges calls leaves no rooms behind.
    async fn keep(&self, room: &str);
}

/// Tells whose a call is that has come in, by what its participant tells of the INVITE and the number that was called.
pub type Owners = Arc<dyn Fn(&[(String, String)], &str) -> Owner + Send + Sync>;

/// What the bridge is started with.
pub struct BridgeSettings {
    /// Where calls are taken.
    pub listen: Vec<Listen>,
    /// Who may call.
    pub allowed: Vec<IpNet>,
    /// The address that others are told.
    pub advertised: Option<IpAddr>,
    /// What TLS is spoken with.
    pub tls: TlsSettings,
    /// First part of the rooms of calls that came.
    pub room_prefix: String,
    /// Which of them share a room.
    pub room_mode: RoomMode,
    /// Whose they are; `None` where nobody asks.
    pub owners: Option<Owners>,
    /// Calls at a time.
    pub most_calls: usize,
    /// Calls at a time in one room.
    pub most_calls_per_room: usize,
    /// Calls that came and are on trial.
    pub unacknowledged: Unacknowledged,
    /// How long a call that came may last.
    pub max_duration: Duration,
    /// The sound.
    pub media: MediaSettings,
}

/// See the module.
#[derive(Clone)]
pub struct Bridge {
    inner: Arc<Inner>,
}

struct Inner {
    agent: Agent,
    media: Media,
    rooms: Arc<dyn Rooms>,
    news: NewsSender,
    settings: Kept,
    lines: Mutex<Lines>,
    /// Told each time a call, or the placing of one, has ended.
    fewer: Notify,
    /// Where everything runs.
    runtime: Handle,
    addresses: Vec<SocketAddr>,
}

/// Of the settings what is needed later.
struct Kept {
    room_prefix: String,
    room_mode: RoomMode,
    owners: Option<Owners>,
    most_calls: usize,
    most_calls_per_room: usize,
    max_duration: Duration,
}

#[derive(Default)]
struct Lines {
    live: HashMap<String, Arc<Line>>,
    /// Calls that are being placed and have no line yet.
    placing: usize,
    /// The rooms of those.
    placing_into: Vec<String>,
    ended: VecDeque<Arc<Line>>,
    stopping: bool,
    /// Whether no call is begun any more.
    closed: bool,
}

/// Room for one call; given back when dropped without becoming one.
struct Slot {
    inner: Arc<Inner>,
    room: Option<String>,
}

impl Slot {
    /// Whether there is a place in a room for this call; it is taken then.
    fn enter(&mut self, room: &str) -> bool {
        let mut lines = self.inner.lines();
        let live = lines.live.values().filter(|line| line.room == room);
        let placing = lines.placing_into.iter().filter(|one| *one == room);
        if live.count() + placing.count() >= self.inner.settings.most_calls_per_room {
            metrics::sip_refused(SipRefusal::Room);
            tracing::warn!("a telephone call was refused: sip.max_calls_per_room is reached");
            return false;
        }
        lines.placing_into.push(room.to_owned());
        drop(lines);
        self.room = Some(room.to_owned());
        true
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut lines = self.inner.lines();
        lines.placing -= 1;
        let place = lines
            .placing_into
            .iter()
            .position(|one| Some(one) == self.room.as_ref());
        if let Some(place) = place {
            lines.placing_into.swap_remove(place);
        }
        drop(lines);
        self.inner.fewer.notify_waiters();
    }
}

impl Inner {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(self: &Arc<Self>) -> Option<Slot> {
        let mut lines = self.lines();
        if lines.stopping
            || lines.closed
            || lines.live.len() + lines.placing >= self.settings.most_calls
        {
            return None;
        }
        lines.placing += 1;
        drop(lines);
        Some(Slot {
            inner: Arc::clone(self),
            room: None,
        })
    }

    /// The newest call of a participant.
    fn line_of(&self, room: &str, identity: &str) -> Option<Arc<Line>> {
        let lines = self.lines();
        let of_participant = lines
            .live
            .values()
            .filter(|line| line.room == room && line.identity == identity);
        of_participant.max_by_key(|line| line.began).cloned()
    }

    /// Runs a call until it has ended.
    fn run(self: &Arc<Self>, task: Task, slot: Slot) {
        let line = Arc::clone(&task.line);
        let mut lines = self.lines();
        lines
            .live
            .insert(line.sip_call_id.clone(), Arc::clone(&line));
        if lines.stopping {
            // It was being placed when all others were told.
            line.hang_up_for_shutdown();
        }
        drop(lines);
        drop(slot);
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            // A panic within ends this call only.
            let ended = tokio::spawn(task.run()).await;
            if ended.is_err() {
                tracing::error!(call = line.sip_call_id, "a call ended unexpectedly");
            }
            let mut lines = inner.lines();
            lines.live.remove(&line.sip_call_id);
            lines.ended.push_back(line);
            lines.forget(Instant::now());
            drop(lines);
            inner.fewer.notify_waiters();
        });
    }
}

impl Lines {
    fn none(&self) -> bool {
        self.live.is_empty() && self.placing == 0
    }

    fn forget(&mut self, now: Instant) {
        let old = |line: &Arc<Line>| {
            let ended = line.ended().unwrap_or(line.began);
            now.saturating_duration_since(ended) > REMEMBERED
        };
        while self.ended.len() > MOST_REMEMBERED || self.ended.front().is_some_and(old) {
            self.ended.pop_front();
        }
    }
}

impl Bridge {
    /// Starts. An error names the setting.
    pub async fn start(
        settings: BridgeSettings,
        rooms: Arc<dyn Rooms>,
        news: NewsSender,
    ) -> Result<Self, String> {
        let media =
            Media::start(settings.media).map_err(|error| format!("sip.rtp_ports: {error}"))?;
        let (agent, invitations) = Agent::start(
            settings.allowed,
            settings.unacknowledged,
            settings.tls,
            settings.advertised,
        );
        let mut addresses = Vec::new();
        for listen in &settings.listen {
            let Listen { protocol, address } = listen;
            let address = agent
                .listen(listen)
                .await
                .map_err(|error| format!("sip.listen: {}:{address}: {error}", protocol.name()))?;
            tracing::info!(protocol = protocol.name(), %address, "telephone calls are taken");
            addresses.push(address);
        }
        let inner = Arc::new(Inner {
            agent,
            media,
            rooms,
            news,
            settings: Kept {
                room_prefix: settings.room_prefix,
                room_mode: settings.room_mode,
                owners: settings.owners,
                most_calls: settings.most_calls,
                most_calls_per_room: settings.most_calls_per_room,
                max_duration: settings.max_duration,
            },
            lines: Mutex::default(),
            fewer: Notify::new(),
            runtime: Handle::current(),
            addresses,
        });
        tokio::spawn(take_calls(Arc::clone(&inner), invitations));
        Ok(Self { inner })
    }

    /// Where it listens, in the order of the settings.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.inner.addresses
    }

    /// Takes and places no further calls; those that there are go on.
    pub fn take_no_more(&self) {
        self.inner.lines().closed = true;
    }

    /// Ends every call and closes everything.
    pub async fn stop(&self) {
        let lines: Vec<Arc<Line>> = {
            let mut lines = self.inner.lines();
            lines.stopping = true;
            lines.live.values().cloned().collect()
        };
        for line in lines {
            line.hang_up_for_shutdown();
        }
        let ended = async {
            loop {
                // From here on it is noticed.
                let fewer = self.inner.fewer.notified();
                if self.inner.lines().none() {
                    return;
                }
                fewer.await;
            }
        };
        let _ended = timeout(STOP_PATIENCE, ended).await;
        self.inner.agent.stop();
    }

    /// Places a call.
    pub async fn call(&self, call: NewCall) -> Result<PlacedCall, CallError> {
        let inner = Arc::clone(&self.inner);
        // Whoever asks may be on a thread that ends before the call does, or lose interest.
        let placed = self.inner.runtime.spawn(inner.place(call)).await;
        placed.unwrap_or_else(|_| {
            Err(CallError::new(
                CallErrorKind::Unavailable,
                "the call could not be placed",
            ))
        })
    }

    /// Moves a call, and waits for what becomes of it.
    pub async fn transfer(
        &self,
        transfer: NewTransfer,
        accepted: oneshot::Sender<()>,
    ) -> Result<(), CallError> {
        let line = self.line(&transfer.call)?;
        let (done, outcome) = oneshot::channel();
        let wish = Wish {
            refer_to: refer_to(&transfer.to, &line.hostname),
            to: transfer.to,
            ringing: transfer.ringing_timeout,
            accepted,
            done,
        };
        let command = Command::Transfer(wish);
        line.commands.send(command).await.map_err(|_| gone())?;
        // A call that ended meanwhile counts as moved.
        outcome.await.unwrap_or(Ok(()))
    }

    /// Ends a call.
    pub async fn hang_up(&self, call: &CallOf) -> Result<(), CallError> {
        let line = self.line(call)?;
        let hang_up = Command::HangUp(HangupCause::Local);
        line.commands.send(hang_up).await.map_err(|_| gone())
    }

    /// What a participant says of its call is a text: the call with that id is its own only in the same room under the same
    /// name.
    fn line(&self, call: &CallOf) -> Result<Arc<Line>, CallError> {
        let line = self.inner.lines().live.get(&call.sip_call_id).cloned();
        let line = line.filter(|line| line.room == call.room && line.identity == call.identity);
        line.ok_or_else(gone)
    }

    /// The calls that there are, and those that ended a moment ago.
    pub fn calls(&self) -> Vec<CallReport> {
        let now = Instant::now();
        let mut lines = self.inner.lines();
        lines.forget(now);
        let all = lines.live.values().chain(&lines.ended);
        all.map(|line| line.report(now)).collect()
    }
}

impl Inner {
    async fn place(self: Arc<Self>, call: NewCall) -> Result<PlacedCall, CallError> {
        let inner = &self;
        let mut slot = inner.slot().ok_or_else(full)?;
        if !slot.enter(&call.room) {
            return Err(full_room());
        }
        let (reached, remote) = inner.reach(&call.trunk).await?;
        let mut media = inner.open(reached.local_address().ip(), remote.ip())?;
        if !call.trunk.private {
            media.public_only();
        }
        let offer = media.offer();
        let sip_call_id = call_id();
        // What is empty is not told.
        let ends = if call.hides_numbers {
            Ends::default()
        } else {
            Ends {
                outside: call.to.as_str().to_owned(),
                ours: call.from.as_str().to_owned(),
                hostname: call.trunk.gateway.host.clone(),
            }
        };
        let mut told = attributes::of_call(&sip_call_id, "dialing", &ends);
        told.extend(call.attributes.iter().cloned());
        let mut link = inner
            .join(Join {
                metadata: call.metadata.clone(),
                principal: call.principal.clone(),
                ..join(&call.room, &call.identity, &call.name, told)
            })
            .await?;
        let participant_sid = connected(&mut link).await?;
        // It is we who call.
        inner.rooms.keep(&call.room).await;
        let leg = inner.dial(&call, reached, remote, offer)?;
        link.control
            .attributes(attributes::of_dialog(leg.call_id(), None));
        let limits = Limits {
            ringing: call.ringing_timeout,
            duration: call.max_duration,
        };
        let gateway = call.trunk.gateway.to_string();
        let (line, commands) = Line::new(
            sip_call_id.clone(),
            Direction::Outbound,
            call.room,
            call.identity,
            None,
            gateway,
        );
        let task = Task {
            call: Call::outbound(limits, Instant::now()),
            leg,
            media,
            place: Place::Joined(link),
            answer: None,
            dtmf: call.dtmf,
            line,
            commands,
            rooms: Arc::clone(&inner.rooms),
            news: inner.news.clone(),
        };
        inner.run(task, slot);
        Ok(PlacedCall {
            participant_sid,
            sip_call_id,
        })
    }

    /// The way to a gateway, by the first of its addresses.
    async fn reach(&self, trunk: &Trunk) -> Result<(Reached, SocketAddr), CallError> {
        let protocol = protocol(trunk.transport);
        let gateway = &trunk.gateway;
        let addresses = resolve::addresses(&gateway.host, gateway.port, protocol).await;
        let addresses = addresses.map_err(|error| {
            let message = format!("the gateway {gateway} cannot be found: {error}");
            CallError::new(CallErrorKind::Unavailable, message)
        })?;
        if !trunk.private && !addresses.iter().all(|address| is_public(address.ip())) {
            return Err(CallError::new(
                CallErrorKind::Refused,
                format!(
                    "sip.outbound_address: the gateway {gateway} must have a public address, unless \
                     sip.allow_private_outbound says otherwise"
                ),
            ));
        }
        let problem = match addresses.first() {
            None => "it has no address".to_owned(),
            Some(address) => match self.agent.reach(protocol, *address, &gateway.host).await {
                Ok(reached) => return Ok((reached, *address)),
                Err(error) => error.to_string(),
            },
        };
        let message = format!("the gateway {gateway} cannot be reached: {problem}");
        Err(CallError::new(CallErrorKind::Unavailable, message))
    }

    fn open(&self, local: IpAddr, peer: IpAddr) -> Result<CallMedia, CallError> {
        self.media
            .open(local, peer)
            .map_err(|error| CallError::new(CallErrorKind::Full, error.to_string()))
    }

    async fn join(&self, join: Join) -> Result<RoomLink, CallError> {
        let joined = self.rooms.join(join).await;
        joined.map_err(|error| CallError::new(CallErrorKind::Unavailable, error))
    }

    fn dial(
        &self,
        call: &NewCall,
        reached: Reached,
        remote: SocketAddr,
        offer: String,
    ) -> Result<Leg, CallError> {
        let login = call.trunk.login.as_ref();
        let outbound = Outbound {
            protocol: protocol(call.trunk.transport),
            remote,
            host: call.trunk.gateway.to_string(),
            to: call.to.as_str().to_owned(),
            from: call.from.as_str().to_owned(),
            display_name: call.display_name.clone(),
            credentials: login.map(|login| Credentials {
                username: login.username.clone(),
                password: login.password.expose().to_owned(),
            }),
            headers: Vec::new(),
            private: call.trunk.private,
        };
        let leg = self.agent.call(reached, outbound, offer);
        leg.map_err(|error| CallError::new(CallErrorKind::Refused, format!("the number {error}")))
    }
}

async fn take_calls(inner: Arc<Inner>, mut invitations: mpsc::Receiver<Invitation>) {
    while let Some(invitation) = invitations.recv().await {
        take_call(&inner, invitation);
    }
}

/// A call that came.
fn take_call(inner: &Arc<Inner>, invitation: Invitation) {
    if invitation.unsupported().is_some() {
        return invitation.refuse(420);
    }
    let Some(called) = invitation.called() else {
        return invitation.refuse(404);
    };
    let Some(mut slot) = inner.slot() else {
        tracing::warn!("a telephone call was refused: sip.max_calls is reached");
        return invitation.refuse(503);
    };
    let (local, peer) = (invitation.local_address().ip(), invitation.source());
    let mut media = match inner.media.open(local, peer) {
        Ok(media) => media,
        Err(error) => {
            tracing::warn!(%error, "a telephone call was refused");
            return invitation.refuse(503);
        }
    };
    media.await_acknowledgement();
    let answer = match invitation.offer().map(|offer| media.answer(&offer)) {
        None => None,
        Some(Ok(answer)) => Some(answer),
        Some(Err(error)) => return invitation.refuse(error.status()),
    };
    let headers = invitation.headers();
    let ours = attributes::number(&called);
    let (outside, display) = attributes::caller(&headers);
    let of_headers = attributes::of_headers(&headers);
    // Known before anybody hears of the call.
    let owners = inner.settings.owners.as_ref();
    let owner = owners.map(|owners| owners(&of_headers, &ours));
    let sip_call_id = call_id();
    let room = inner.room_of(&ours, &sip_call_id, owner.as_ref());
    if !slot.enter(&room) {
        return invitation.refuse(486);
    }
    let identity = inner.identity_of(&room, &outside, &sip_call_id);
    let source = invitation.source();
    let leg = invitation.take();
    leg.ring(None);
    let ends = Ends {
        hostname: host_of(&headers).unwrap_or_else(|| source.to_string()),
        outside,
        ours,
    };
    let mut told = attributes::of_call(&sip_call_id, "ringing", &ends);
    told.extend(attributes::of_dialog(
        leg.call_id(),
        leg.remote_tag().as_deref(),
    ));
    told.extend(of_headers);
    let name = display.unwrap_or_else(|| format!("Phone {}", ends.outside).trim().to_owned());
    let joining = inner.begin_joining(Join {
        principal: principal(owner.as_ref()),
        owner: owner.clone(),
        ..join(&room, &identity, &name, told)
    });
    let hostname = leg.remote_address().to_string();
    let (line, commands) = Line::new(
        sip_call_id,
        Direction::Inbound,
        room,
        identity,
        owner,
        hostname,
    );
    let limits = Limits {
        ringing: Duration::MAX,
        duration: inner.settings.max_duration,
    };
    let task = Task {
        call: Call::inbound(limits, Instant::now()),
        leg,
        media,
        place: Place::Joining(joining),
        answer,
        dtmf: String::new(),
        line,
        commands,
        rooms: Arc::clone(&inner.rooms),
        news: inner.news.clone(),
    };
    inner.run(task, slot);
}

impl Inner {
    /// The room of a call that came. One that is another owner's while a call lasts there is not given away: the later call
    /// has a room of its own then, whatever the mode.
    fn room_of(&self, ours: &str, sip_call_id: &str, owner: Option<&Owner>) -> String {
        let room = format!("{}{ours}", self.settings.room_prefix);
        let apart = |line: &Arc<Line>| {
            line.direction == Direction::Inbound
                && line.room == room
                && (self.settings.room_mode == RoomMode::Call || line.owner.as_ref() != owner)
        };
        if self.lines().live.values().any(apart) {
            format!("{room}_{sip_call_id}")
        } else {
            room
        }
    }

    /// As LiveKit names callers; a second one of the same number in the same room is not to put the first one out.
    fn identity_of(&self, room: &str, outside: &str, sip_call_id: &str) -> String {
        let who = if outside.is_empty() {
            "anonymous"
        } else {
            outside
        };
        let identity = format!("sip_{who}");
        if self.line_of(room, &identity).is_none() {
            return identity;
        }
        let suffix = sip_call_id.trim_start_matches("SCL_");
        format!("{identity}_{suffix}")
    }

    fn begin_joining(self: &Arc<Self>, join: Join) -> oneshot::Receiver<Result<RoomLink, String>> {
        let (joined, joining) = oneshot::channel();
        let rooms = Arc::clone(&self.rooms);
        tokio::spawn(async move {
            // Dropped, the room is left.
            let _taken = joined.send(rooms.join(join).await);
        });
        joining
    }
}

fn join(room: &str, identity: &str, name: &str, attributes: Vec<(String, String)>) -> Join {
    Join {
        room: room.to_owned(),
        identity: identity.to_owned(),
        name: name.to_owned(),
        kind: JoinKind::Telephone,
        principal: Principal::Operator,
        owner: None,
        metadata: String::new(),
        attributes,
        listen: Hear::All,
        audio: true,
    }
}

/// On whose behalf a caller is in a room of this owner.
fn principal(owner: Option<&Owner>) -> Principal {
    match owner {
        Some(Owner::Tenant(tenant)) => Principal::Tenant(tenant.clone()),
        _ => Principal::Operator,
    }
}

/// Waits until a participant is in its room; its sid.
async fn connected(link: &mut RoomLink) -> Result<String, CallError> {
    let unavailable = |message: String| CallError::new(CallErrorKind::Unavailable, message);
    let first = timeout(JOIN_PATIENCE, link.events.next()).await;
    match first {
        Ok(Some(LinkEvent::Connected { sid, .. })) => Ok(sid),
        Ok(Some(LinkEvent::Ended(ending))) => Err(unavailable(ending.to_string())),
        Ok(_) => Err(unavailable("the room was left".to_owned())),
        Err(_) => Err(unavailable("the room was not joined in time".to_owned())),
    }
}

fn host_of(headers: &[(String, String)]) -> Option<String> {
    let from = headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("from"))?;
    header::Address::parse(&from.1).host().map(str::to_owned)
}

fn call_id() -> String {
    let id: String = std::iter::repeat_with(fastrand::alphanumeric)
        .take(12)
        .collect();
    format!("SCL_{id}")
}

fn full() -> CallError {
    CallError::new(
        CallErrorKind::Full,
        "there are as many calls as sip.max_calls allows",
    )
}

fn full_room() -> CallError {
    CallError::new(
        CallErrorKind::Full,
        "there are as many calls in the room as sip.max_calls_per_room allows",
    )
}

fn gone() -> CallError {
    CallError::new(
        CallErrorKind::NotFound,
        "nobody of this identity is in the room by telephone",
    )
}

const fn protocol(transport: SipTransport) -> Protocol {
    match transport {
        SipTransport::Udp => Protocol::Udp,
        SipTransport::Tcp => Protocol::Tcp,
        SipTransport::Tls => Protocol::Tls,
    }
}

/// The value of `Refer-To`: international numbers are the telephone network's, all others the gateway's.
fn refer_to(to: &TransferTarget, host: &str) -> String {
    match to {
        TransferTarget::Uri(uri) => format!("<{uri}>"),
        TransferTarget::Number(number) => {
            let number = number.as_str();
            if number.starts_with('+') {
                format!("<tel:{number}>")
            } else {
                format!("<sip:{}@{host}>", header::encode_user(number))
            }
        }
    }
}
