//! The bridge between SIP and rooms: places outbound calls ([`outbound`]), accepts inbound calls ([`inbound`]), and keeps the table of calls.
//! Each call is a task. Whether a tenant may call is checked by the caller.

mod checks;
mod inbound;
mod outbound;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ipnet::IpNet;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::agent::challenge::Challenger;
use super::agent::{Agent, AgentSettings, Listen, Protocol, TlsSettings, Unacknowledged, header};
use super::call::pin::Prompt;
use super::call::task::{CallHandle, Command, HoldRequest, Sound, Task, TransferRequest};
use super::media::{CallMedia, Media, MediaSettings};
use super::phones::{Phone, Phones};
use super::registrations::{Account, Registrar};
use super::trunks::Trunks;
pub use inbound::Desk;
pub use outbound::{Elsewhere, Redial, Redialled, Referred};
use vivavoce_audio::SampleRate;
use vivavoce_auth::{Owner, Principal, Takeover};
use vivavoce_config::{AcceptReplaces, RoomMode, SipTransport};
use vivavoce_quotas::{Permit, Quota};
use vivavoce_seams::rooms::link::{Join, JoinKind, Listen as Hear, RoomLink};
use vivavoce_seams::rooms::telephone::{
    CallError, CallErrorKind, CallOf, CallReport, CallTrace, Callee, GatewayReport, HangupCause,
    Hold, Line, NewCall, NewTransfer, NewsSender, PhoneReport, PlacedCall, RefusedCall,
    RegistrationReport, TransferTarget, Trunk,
};
use vivavoce_takeover::Sockets;
use vivavoce_telemetry::metrics::{self, SipRefusal};

/// How long, and how many, ended calls are still reported.
const REMEMBERED: Duration = Duration::from_mins(1);
const MOST_REMEMBERED: usize = 1_000;
/// How long, and of how many calls that have failed, the traces are kept.
const FAILED_REMEMBERED: Duration = Duration::from_hours(1);
const MOST_FAILED: usize = 200;
/// How long joining a room may take.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// How long after its last words a phone is hung up: they are on their way.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// How long two others may take to be connected with each other.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);
/// How long ending all calls may take when the server stops.
const STOP_PATIENCE: Duration = Duration::from_secs(4);

/// The rooms that calls join.
#[async_trait]
pub trait Rooms: Send + Sync + 'static {
    /// Joins a room, which is created if it does not exist, and ends when its last participant leaves. The error is for
    /// people.
    async fn join(&self, join: Join) -> Result<RoomLink, String>;

    /// Whether somebody in the room has this identity.
    async fn has(&self, room: &str, identity: &str) -> bool;

    /// Whether an inbound call may take the room of this name, which may have another owner.
    async fn may_take(&self, room: &str, call: &Takeover) -> bool;

    /// From now on the room outlives its last participant for a while, as any other room: the caller has proved to be at
    /// its address. Forged calls leave no rooms behind.
    async fn keep(&self, room: &str);
}

/// What callers hear before they are in a room.
#[async_trait]
pub trait Prompts: Send + Sync + 'static {
    /// The sound of a prompt: 16-bit samples, mono at 48 kHz; `None` where there is none.
    async fn sound(&self, prompt: Prompt) -> Option<Arc<[i16]>>;
}

/// Decides who owns an inbound call, from the participant attributes of the INVITE's headers and the called number.
pub type Owners = Arc<dyn Fn(&[(String, String)], &str) -> Takeover + Send + Sync>;

/// Decides about the URI of a redirection.
pub type Redirects = Arc<dyn Fn(&str) -> Option<(Callee, Trunk)> + Send + Sync>;

/// Settings of the bridge.
pub struct BridgeSettings {
    /// Where to listen for SIP.
    pub listen: Vec<Listen>,
    /// Those of a former server.
    pub sockets: Sockets,
    /// Networks that may call.
    pub allowed: Vec<IpNet>,
    /// The address that others are told, behind a NAT.
    pub advertised: Option<IpAddr>,
    /// TLS of both roles.
    pub tls: TlsSettings,
    /// Prefix of the rooms of inbound calls.
    pub room_prefix: String,
    /// Which inbound calls share a room.
    pub room_mode: RoomMode,
    /// Decides who owns inbound calls; `None` without tenants.
    pub owners: Option<Owners>,
    /// What each tenant may have of them. Calls that are placed have asked for theirs.
    pub quota: Quota,
    /// Limit of concurrent calls.
    pub most_calls: usize,
    /// Limit of concurrent calls in one room.
    pub most_calls_per_room: usize,
    /// Limits of inbound calls whose answer is not acknowledged yet.
    pub unacknowledged: Unacknowledged,
    /// Limit of the duration of inbound calls.
    pub max_duration: Duration,
    /// Media settings.
    pub media: MediaSettings,
    /// The trunks and dispatch rules of inbound calls, if there can be any.
    pub trunks: Option<Arc<Trunks>>,
    /// Whose INVITE may take the place of a call.
    pub replaces: AcceptReplaces,
    /// Whether transfers to international numbers name them by `sip:` and not by `tel:`.
    pub refers_by_sip: bool,
    /// Whether traces of calls show numbers.
    pub trace_numbers: bool,
    /// The gateways of the settings, and how often they are asked how they are; none are asked for zero.
    pub gateways: Vec<Trunk>,
    /// See `gateways`.
    pub gateway_checks: Duration,
    /// Says whether a call may be redirected to a URI, and how it is reached there; none may without it.
    pub redirects: Option<Redirects>,
    /// The same of whom the other side of a call wants in its place; nobody without it.
    pub referrals: Option<Redirects>,
    /// Telephones that may register here.
    pub phones: Vec<Phone>,
    /// Accounts that are kept registered elsewhere.
    pub registrations: Vec<Account>,
    /// What callers hear before they are in a room, if there is anything to say it.
    pub prompts: Option<Arc<dyn Prompts>>,
}

/// A handle of the bridge; clones share it. See the module.
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
    calls: Mutex<Calls>,
    /// Notified whenever a call, or an attempt to place one, has ended.
    fewer: Notify,
    /// Keeps accounts registered.
    registrar: Registrar,
    /// The runtime that calls run on.
    runtime: Handle,
    addresses: Vec<SocketAddr>,
}

/// The settings that are needed after the start.
struct Kept {
    room_prefix: String,
    room_mode: RoomMode,
    owners: Option<Owners>,
    quota: Quota,
    most_calls: usize,
    most_calls_per_room: usize,
    max_duration: Duration,
    replaces: AcceptReplaces,
    refers_by_sip: bool,
    trunks: Option<Arc<Trunks>>,
    prompts: Option<Arc<dyn Prompts>>,
    challenger: Challenger,
    health: outbound::Health,
    referrals: Option<Redirects>,
    redirects: Option<Redirects>,
    gateways: checks::Gateways,
}

#[derive(Default)]
struct Calls {
    live: HashMap<String, Arc<CallHandle>>,
    /// Calls that are being placed and have no handle yet.
    placing: usize,
    /// The rooms they will join.
    placing_into: Vec<String>,
    ended: VecDeque<Arc<CallHandle>>,
    /// Those that have failed, for longer.
    failed: VecDeque<Arc<CallHandle>>,
    stopping: bool,
    /// Whether new calls are refused.
    closed: bool,
}

/// A place for one call, released when dropped unless the call has started.
struct Slot {
    inner: Arc<Inner>,
    room: Option<String>,
    /// Whether a call that is live has the place.
    occupied: bool,
    /// The unit of the quota for this place. It is given back after the place: else whoever ends calls would have places
    /// that count for nobody while their ends are on their way.
    permit: Option<Permit>,
}

impl Slot {
    /// Takes a place in a room, if there is one.
    fn enter(&mut self, room: &str) -> bool {
        let mut calls = self.inner.table();
        let live = calls.live.values().filter(|handle| handle.is_in(room));
        let placing = calls.placing_into.iter().filter(|one| *one == room);
        if live.count() + placing.count() >= self.inner.settings.most_calls_per_room {
            metrics::sip_refused(SipRefusal::Room);
            tracing::warn!("refused a call: sip.max_calls_per_room is reached");
            return false;
        }
        calls.placing_into.push(room.to_owned());
        drop(calls);
        self.room = Some(room.to_owned());
        true
    }

    /// A call has the place from now on. It counts once at any time: if it counted twice for a moment, another call could be
    /// refused meanwhile though there is a line.
    fn occupy(&mut self, handle: &Arc<CallHandle>) {
        let inner = Arc::clone(&self.inner);
        let mut calls = inner.table();
        self.give_back(&mut calls);
        self.occupied = true;
        let call = Arc::clone(handle);
        calls.live.insert(handle.sip_call_id.clone(), call);
        if calls.stopping {
            // It was being placed when the others were told.
            handle.hang_up_for_shutdown();
        }
    }

    fn give_back(&self, calls: &mut Calls) {
        calls.placing -= 1;
        let place = calls
            .placing_into
            .iter()
            .position(|one| Some(one) == self.room.as_ref());
        if let Some(place) = place {
            calls.placing_into.swap_remove(place);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.occupied {
            self.give_back(&mut self.inner.table());
        }
        self.inner.fewer.notify_waiters();
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(self: &Arc<Self>) -> Option<Slot> {
        let mut calls = self.table();
        if calls.stopping
            || calls.closed
            || calls.live.len() + calls.placing >= self.settings.most_calls
        {
            return None;
        }
        calls.placing += 1;
        drop(calls);
        Some(Slot {
            inner: Arc::clone(self),
            room: None,
            occupied: false,
            permit: None,
        })
    }

    /// The newest call of a participant.
    fn call_of(&self, room: &str, identity: &str) -> Option<Arc<CallHandle>> {
        let calls = self.table();
        let of_participant = calls
            .live
            .values()
            .filter(|handle| handle.is_in(room) && handle.is_called(identity));
        of_participant.max_by_key(|handle| handle.began).cloned()
    }

    /// Runs a call to its end.
    fn run(self: &Arc<Self>, task: Task, mut slot: Slot) {
        let handle = Arc::clone(&task.handle);
        slot.occupy(&handle);
        let permit = slot.permit.take();
        drop(slot);
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            // A panic in it ends this call only.
            let ended = tokio::spawn(task.run()).await;
            if ended.is_err() {
                tracing::error!(call = handle.sip_call_id, "the task of a call panicked");
            }
            let mut calls = inner.table();
            calls.live.remove(&handle.sip_call_id);
            if handle.has_failed() {
                calls.failed.push_back(Arc::clone(&handle));
            }
            calls.ended.push_back(handle);
            calls.forget(Instant::now());
            drop(calls);
            drop(permit);
            inner.fewer.notify_waiters();
        });
    }
}

impl Calls {
    fn none(&self) -> bool {
        self.live.is_empty() && self.placing == 0
    }

    fn forget(&mut self, now: Instant) {
        forget(&mut self.ended, (REMEMBERED, MOST_REMEMBERED), now);
        forget(&mut self.failed, (FAILED_REMEMBERED, MOST_FAILED), now);
    }
}

/// Forgets calls that ended too long ago, and those that are too many.
fn forget(ended: &mut VecDeque<Arc<CallHandle>>, (age, most): (Duration, usize), now: Instant) {
    let old = |handle: &Arc<CallHandle>| {
        let ended = handle.ended().unwrap_or(handle.began);
        now.saturating_duration_since(ended) > age
    };
    while ended.front().is_some_and(old) {
        ended.pop_front();
    }
    while ended.len() > most {
        let dropped = oldest_of_whoever_has_most(ended);
        ended.remove(dropped.unwrap_or_default());
    }
}

/// The oldest call that has ended of the owner who has most of these: the calls of one forget none of another's.
fn oldest_of_whoever_has_most(ended: &VecDeque<Arc<CallHandle>>) -> Option<usize> {
    fn whose(handle: &Arc<CallHandle>) -> Option<&str> {
        handle.owner.as_ref().and_then(Owner::tenant)
    }
    let mut counts: HashMap<Option<&str>, usize> = HashMap::new();
    for handle in ended {
        *counts.entry(whose(handle)).or_default() += 1;
    }
    let (most, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    ended.iter().position(|handle| whose(handle) == most)
}

impl Bridge {
    /// Starts the bridge. An error names the setting.
    pub async fn start(
        settings: BridgeSettings,
        rooms: Arc<dyn Rooms>,
        news: NewsSender,
    ) -> Result<Self, String> {
        let media =
            Media::start(settings.media).map_err(|error| format!("sip.rtp_ports: {error}"))?;
        let (agent, invitations) = Agent::with(AgentSettings {
            allowed: settings.allowed,
            unacknowledged: settings.unacknowledged,
            tls: settings.tls,
            advertised: settings.advertised,
            shows_users: settings.trace_numbers,
            phones: Phones::new(settings.phones),
            refers: settings.referrals.is_some(),
            replaces: settings.replaces != AcceptReplaces::Off,
        });
        let mut addresses = Vec::new();
        for listen in &settings.listen {
            let Listen { protocol, address } = listen;
            let address = agent
                .listen_at(listen, &settings.sockets)
                .await
                .map_err(|error| format!("sip.listen: {}:{address}: {error}", protocol.name()))?;
            tracing::info!(protocol = protocol.name(), %address, "listening for SIP calls");
            addresses.push(address);
        }
        let registrar = Registrar::start(&agent, agent.registrars(), settings.registrations);
        let inner = Arc::new(Inner {
            agent,
            media,
            rooms,
            news,
            settings: Kept {
                room_prefix: settings.room_prefix,
                room_mode: settings.room_mode,
                owners: settings.owners,
                quota: settings.quota,
                most_calls: settings.most_calls,
                most_calls_per_room: settings.most_calls_per_room,
                max_duration: settings.max_duration,
                replaces: settings.replaces,
                refers_by_sip: settings.refers_by_sip,
                trunks: settings.trunks,
                prompts: settings.prompts,
                challenger: Challenger::new(Instant::now()),
                health: outbound::Health::default(),
                redirects: settings.redirects,
                referrals: settings.referrals,
                gateways: checks::Gateways::new(settings.gateways),
            },
            registrar,
            calls: Mutex::default(),
            fewer: Notify::new(),
            runtime: Handle::current(),
            addresses,
        });
        if !settings.gateway_checks.is_zero() {
            checks::begin(&inner, settings.gateway_checks);
        }
        tokio::spawn(inbound::take_calls(Arc::clone(&inner), invitations));
        Ok(Self { inner })
    }

    /// The addresses listened on, in the order of the settings.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.inner.addresses
    }

    /// Refuses new calls; existing ones continue.
    pub fn take_no_more(&self) {
        self.inner.table().closed = true;
    }

    /// Ends all calls and closes all sockets.
    pub async fn stop(&self) {
        self.inner.registrar.stop().await;
        let handles: Vec<Arc<CallHandle>> = {
            let mut calls = self.inner.table();
            calls.stopping = true;
            calls.live.values().cloned().collect()
        };
        for handle in handles {
            handle.hang_up_for_shutdown();
        }
        let ended = async {
            loop {
                // Registered before the check, so that no notification is missed.
                let fewer = self.inner.fewer.notified();
                if self.inner.table().none() {
                    return;
                }
                fewer.await;
            }
        };
        let _ended = timeout(STOP_PATIENCE, ended).await;
        self.inner.agent.stop();
    }

    /// Places a call.
    pub async fn call(&self, call: NewCall, line: Line) -> Result<PlacedCall, CallError> {
        let inner = Arc::clone(&self.inner);
        // The caller's thread may end before the call does, or the caller may lose interest.
        let placed = self
            .inner
            .runtime
            .spawn(outbound::place(inner, call, line))
            .await;
        placed.unwrap_or_else(|_| {
            Err(CallError::new(
                CallErrorKind::Unavailable,
                "the call could not be placed",
            ))
        })
    }

    /// Transfers a call and waits for the outcome.
    pub async fn transfer(
        &self,
        transfer: NewTransfer,
        accepted: oneshot::Sender<()>,
    ) -> Result<(), CallError> {
        self.refer(transfer, accepted, false).await
    }

    async fn refer(
        &self,
        transfer: NewTransfer,
        accepted: oneshot::Sender<()>,
        strict: bool,
    ) -> Result<(), CallError> {
        let handle = self.handle(&transfer.call)?;
        let (done, outcome) = oneshot::channel();
        let request = TransferRequest {
            refer_to: refer_to(
                &transfer.to,
                &handle.hostname,
                self.inner.settings.refers_by_sip,
            ),
            to: transfer.to,
            ringing: transfer.ringing_timeout,
            strict,
            accepted,
            done,
        };
        let command = Command::Transfer(request);
        handle.commands.send(command).await.map_err(|_| gone())?;
        // A call that has ended meanwhile counts as transferred.
        outcome
            .await
            .unwrap_or_else(|_| if strict { Err(gone()) } else { Ok(()) })
    }

    /// Connects the other sides of two calls without us.
    pub async fn connect(&self, first: &CallOf, second: &CallOf) -> Result<(), CallError> {
        let second = self.handle(second)?;
        let uri = second.dialog().and_then(|dialog| dialog.replacing());
        let uri = uri.ok_or_else(|| {
            let message =
                "the second call is not answered yet, or its address is not one for others";
            CallError::new(CallErrorKind::Precondition, message)
        })?;
        let transfer = NewTransfer {
            call: first.clone(),
            to: TransferTarget::Uri(uri),
            ringing_timeout: CONNECT_WITHIN,
        };
        self.refer(transfer, oneshot::channel().0, true).await
    }

    /// Ends a call.
    pub async fn hang_up(&self, call: &CallOf) -> Result<(), CallError> {
        let handle = self.handle(call)?;
        let hang_up = Command::HangUp(HangupCause::Local);
        handle.commands.send(hang_up).await.map_err(|_| gone())
    }

    /// Puts a call on hold, or takes it off.
    pub async fn hold(&self, call: &CallOf, hold: Hold) -> Result<(), CallError> {
        let handle = self.handle(call)?;
        let held = hold != Hold::Off;
        self.part(&handle, Some(held), None).await?;
        // It may have to be made first; by then the call may be off hold.
        if hold == Hold::Music
            && let Some(samples) = self.sound(Prompt::Hold).await
        {
            let sound = Sound {
                samples,
                repeats: true,
            };
            self.part(&handle, None, Some(sound)).await?;
        }
        Ok(())
    }

    /// Tells somebody on hold where they are in a queue; gives how long that takes.
    pub async fn say_position(&self, call: &CallOf, position: u32) -> Result<Duration, CallError> {
        let handle = self.handle(call)?;
        let Some(samples) = self.sound(Prompt::Position(position)).await else {
            return Ok(Duration::ZERO);
        };
        let length = SampleRate::HZ_48000.duration_of(samples.len());
        if !length.is_zero() {
            let sound = Sound {
                samples,
                repeats: false,
            };
            self.part(&handle, None, Some(sound)).await?;
        }
        Ok(length)
    }

    async fn part(
        &self,
        handle: &CallHandle,
        held: Option<bool>,
        sound: Option<Sound>,
    ) -> Result<(), CallError> {
        let (done, possible) = oneshot::channel();
        let request = HoldRequest { held, sound, done };
        let command = Command::Hold(request);
        handle.commands.send(command).await.map_err(|_| gone())?;
        match possible.await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let message = "the call is not answered yet";
                Err(CallError::new(CallErrorKind::Precondition, message))
            }
            Err(_) => Err(gone()),
        }
    }

    /// Tells a call what was understood of what its phone has said. A busy call does without.
    pub fn heard(&self, call: &CallOf, text: &str) {
        if let Ok(handle) = self.handle(call) {
            let _full = handle.commands.try_send(Command::Heard(text.to_owned()));
        }
    }

    /// Changes attributes of a call's participant.
    pub async fn describe(
        &self,
        call: &CallOf,
        attributes: Vec<(String, String)>,
    ) -> Result<(), CallError> {
        let handle = self.handle(call)?;
        let (done, told) = oneshot::channel();
        let command = Command::Describe(attributes, done);
        handle.commands.send(command).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())
    }

    /// Tells somebody that the caller for whom they were called has gone, and ends their call.
    pub async fn dismiss(&self, call: &CallOf) -> Result<(), CallError> {
        let handle = self.handle(call)?;
        if let Some(samples) = self.sound(Prompt::CallerLeft).await {
            let length = SampleRate::HZ_48000.duration_of(samples.len());
            let sound = Sound {
                samples,
                repeats: false,
            };
            if self.part(&handle, Some(true), Some(sound)).await.is_ok() {
                sleep(length + LAST_WORDS).await;
            }
        }
        self.hang_up(call).await
    }

    async fn sound(&self, prompt: Prompt) -> Option<Arc<[i16]>> {
        self.inner.settings.prompts.as_ref()?.sound(prompt).await
    }

    /// The call id in a participant's attributes is only text: the call is theirs if room and identity match, too.
    fn handle(&self, call: &CallOf) -> Result<Arc<CallHandle>, CallError> {
        let handle = self.inner.table().live.get(&call.sip_call_id).cloned();
        let handle =
            handle.filter(|handle| handle.is_in(&call.room) && handle.is_called(&call.identity));
        handle.ok_or_else(gone)
    }

    /// The inbound calls that were refused lately.
    pub fn refused(&self) -> Vec<RefusedCall> {
        self.inner.agent.refused().all()
    }

    /// What was seen of calls: those that were refused, those that have failed, and those that there are. Without messages.
    pub fn traces(&self) -> Vec<CallTrace> {
        let mut traces = self.inner.agent.refused().traces();
        let mut calls = self.inner.table();
        calls.forget(Instant::now());
        let ended = calls.ended.iter().filter(|handle| !handle.has_failed());
        let all = calls.failed.iter().chain(ended).chain(calls.live.values());
        traces.extend(all.map(|handle| handle.trace(false)));
        drop(calls);
        traces.sort_by_key(|trace| trace.at);
        traces
    }

    /// The trace of this id, with its messages.
    pub fn trace(&self, id: &str) -> Option<CallTrace> {
        let found = {
            let calls = self.inner.table();
            let of_id = |handle: &&Arc<CallHandle>| handle.sip_call_id == id;
            let ended = calls.failed.iter().chain(&calls.ended).find(of_id);
            calls.live.get(id).or(ended).cloned()
        };
        match found {
            Some(handle) => Some(handle.trace(true)),
            None => self.inner.agent.refused().trace(id),
        }
    }

    /// The gateways of the settings.
    pub fn gateways(&self) -> Vec<GatewayReport> {
        self.inner.settings.gateways.reports()
    }

    /// The telephones that may register here.
    pub fn phones(&self) -> Vec<PhoneReport> {
        self.inner.agent.phones().reports(Instant::now())
    }

    /// The accounts that are kept registered.
    pub fn registrations(&self) -> Vec<RegistrationReport> {
        self.inner.registrar.reports()
    }

    /// The calls there are, and those that ended a moment ago.
    pub fn calls(&self) -> Vec<CallReport> {
        let now = Instant::now();
        let mut calls = self.inner.table();
        calls.forget(now);
        let all = calls.live.values().chain(&calls.ended);
        all.map(|handle| handle.report(now)).collect()
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
        room_config: None,
        listen: Hear::All,
        audio: true,
    }
}

fn call_id() -> String {
    let id: String = std::iter::repeat_with(fastrand::alphanumeric)
        .take(12)
        .collect();
    format!("SCL_{id}")
}

fn full() -> CallError {
    CallError::new(CallErrorKind::Full, "sip.max_calls is reached")
}

fn full_room() -> CallError {
    CallError::new(CallErrorKind::Full, "sip.max_calls_per_room is reached")
}

fn gone() -> CallError {
    CallError::new(
        CallErrorKind::NotFound,
        "no SIP participant with this identity is in the room",
    )
}

fn protocol(trunk: &Trunk) -> Protocol {
    let over_websocket = trunk.via.as_ref().is_some_and(|via| via.over_websocket);
    match trunk.transport {
        SipTransport::Udp => Protocol::Udp,
        SipTransport::Tcp if over_websocket => Protocol::Ws,
        SipTransport::Tcp => Protocol::Tcp,
        SipTransport::Tls if over_websocket => Protocol::Wss,
        SipTransport::Tls => Protocol::Tls,
    }
}

/// The value of `Refer-To`: international numbers belong to the telephone network, all others to the gateway; with `by_sip` all
/// do, for telephones that know no `tel:`.
fn refer_to(to: &TransferTarget, host: &str, by_sip: bool) -> String {
    match to {
        TransferTarget::Uri(uri) => format!("<{uri}>"),
        TransferTarget::Number(number) => {
            let number = number.as_str();
            if number.starts_with('+') && !by_sip {
                format!("<tel:{number}>")
            } else {
                format!("<sip:{}@{host}>", header::encode_user(number))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_auth::TenantId;
    use vivavoce_core::phone::PhoneNumber;
    use vivavoce_seams::rooms::telephone::Direction;

    #[test]
    fn a_transfer_names_an_international_number_as_the_settings_say() {
        let to = |number: &str| TransferTarget::Number(PhoneNumber::parse(number).unwrap());
        let abroad = to("+4930123456");
        assert_eq!(refer_to(&abroad, "gw", false), "<tel:+4930123456>");
        assert_eq!(refer_to(&abroad, "gw", true), "<sip:+4930123456@gw>");
        assert_eq!(refer_to(&to("101"), "gw", false), "<sip:101@gw>");
        let uri = TransferTarget::Uri("sips:a@b".to_owned());
        assert_eq!(refer_to(&uri, "gw", true), "<sips:a@b>");
    }

    #[test]
    fn the_calls_of_one_tenant_forget_no_report_of_another() {
        let mut calls = Calls::default();
        let mut end = |id: &str, tenant: &str| {
            let owner = Some(Owner::Tenant(TenantId::new(tenant).unwrap()));
            let direction = Direction::Inbound;
            let [id, room] = [id, "room"].map(str::to_owned);
            let none = String::new;
            let (handle, _) = CallHandle::new(id, direction, room, none(), owner, none());
            if handle.has_failed() {
                calls.failed.push_back(Arc::clone(&handle));
            }
            calls.ended.push_back(handle);
            calls.forget(Instant::now());
        };
        end("of a", "a");
        for number in 0..2 * MOST_REMEMBERED {
            end(&number.to_string(), "b");
        }
        assert_eq!(calls.ended.len(), MOST_REMEMBERED);
        assert_eq!(calls.ended[0].sip_call_id, "of a");
        // Of those of b the oldest were forgotten.
        let oldest = (MOST_REMEMBERED + 1).to_string();
        assert_eq!(calls.ended[1].sip_call_id, oldest);
    }
}
