//! Queues: callers wait on hold, hear their position from time to time, and are connected in the order in which they came, to a
//! room or to a number. The [`table`] knows the order; a task waits with each caller, and does what is done to its call.
//!
//! A queue is there while somebody waits in it, in the memory of this process, as the calls are.

pub mod table;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use actix::prelude::*;
use futures_util::future::BoxFuture;
use livekit_protocol::ParticipantInfo;
use livekit_protocol::participant_info::Kind;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep_until, timeout};

use self::table::{Limits, NoPlace, Place, QueueOf, Table};
use super::warm::BeginTransfer;
use super::warm::machine::{Failed, State};
use super::{CallRegistry, Calls, CallsError, OwnGateway, Owner, RoomsError, precondition};
use vivavoce_auth::{Access, TenantId};
use vivavoce_config::{QueueTimeout, Sip};
use vivavoce_core::phone::PhoneNumber;
use vivavoce_core::unix_time::unix_ms;
use vivavoce_hooks::announcement::is_by_carrier;
use vivavoce_seams::RoomErrorKind;
use vivavoce_seams::rooms::telephone::{
    CallError, CallErrorKind, CallOf, CallStatus, Hold, Telephone, attribute, status_of,
};
use vivavoce_telemetry::metrics;
use vivavoce_webhooks::{Event, EventKind};

/// How long a caller may take to arrive in another room.
const MOVED_WITHIN: Duration = Duration::from_secs(5);
/// How long after its end a call may not be known to be over.
const GONE_WITHIN: Duration = Duration::from_secs(1);
/// The pause between a position and the music.
const BREATH: Duration = Duration::from_millis(300);
/// Requests that wait for one caller.
const MOST_ORDERS: usize = 16;

/// Puts a caller into a queue.
#[derive(Debug, Message)]
#[rtype(result = "Result<QueuedCall, CallsError>")]
pub struct EnterQueue {
    pub access: Access,
    pub room: String,
    /// The caller.
    pub identity: String,
    pub queue: String,
}

/// Takes a caller out of a queue, off hold, in the room where it is.
#[derive(Debug, Message)]
#[rtype(result = "Result<QueuedCall, CallsError>")]
pub struct LeaveQueue {
    pub access: Access,
    pub which: Waiter,
}

/// Somebody who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiter {
    /// A call in a queue of this name.
    Call { queue: String, sip_call_id: String },
    /// A telephone in this room.
    InRoom { room: String, identity: String },
}

/// Connects the caller who waits longest.
#[derive(Debug, Message)]
#[rtype(result = "Result<QueuedCall, CallsError>")]
pub struct NextCall {
    pub access: Access,
    /// Whose queue, where the caller of the API has no tenant.
    pub tenant: Option<TenantId>,
    pub queue: String,
    pub to: Destination,
}

/// To whom a caller is connected.
#[derive(Debug, Clone)]
pub enum Destination {
    /// Whoever is in this room.
    Room(String),
    /// Whoever answers at this number, which is called into the caller's room.
    Number(Box<Person>),
}

/// A person who is called for somebody who waits; as for [`BeginTransfer`].
#[derive(Debug, Clone)]
pub struct Person {
    pub to: PhoneNumber,
    pub from: Option<PhoneNumber>,
    pub identity: Option<String>,
    pub name: Option<String>,
    /// Who leaves the room of the caller then.
    pub agent: Option<String>,
    pub gateway: OwnGateway,
}

/// Lists the queues that a caller of the API may see, with those who wait in them.
#[derive(Debug, Message)]
#[rtype(result = "Vec<QueueInfo>")]
pub struct ListQueues {
    pub access: Access,
}

/// A queue in which somebody waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QueueInfo {
    pub queue_name: String,
    /// Whose it is; null without a tenant.
    pub tenant: Option<String>,
    /// Those who wait, the first one first.
    pub calls: Vec<QueuedCall>,
}

/// A call in a queue. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QueuedCall {
    pub queue_name: String,
    /// The call.
    pub sip_call_id: String,
    /// The room it is in.
    pub room_name: String,
    /// The identity of the caller there.
    pub participant_identity: String,
    /// How it is.
    #[schemars(extend("enum" = ["waiting", "connecting", "connected", "left"]))]
    pub state: &'static str,
    /// How many wait before it, itself included; null unless it waits.
    pub position: Option<u32>,
    /// When it came.
    pub entered_at: u64,
    /// The transfer by which it is connected to a number; null otherwise.
    pub transfer_id: Option<String>,
}

/// The settings of queues.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    limits: Limits,
    /// How often a position is said; only at the beginning where absent.
    announce: Option<Duration>,
    /// How long somebody waits at most.
    longest: Option<Duration>,
    /// What becomes of them then.
    then: QueueTimeout,
}

impl From<&Sip> for Rules {
    fn from(sip: &Sip) -> Self {
        let some = |time: Duration| Some(time).filter(|time| !time.is_zero());
        Self {
            limits: Limits {
                calls: sip.queue_max_calls,
                queues: sip.queue_max_queues,
            },
            announce: some(sip.queue_announce_seconds),
            longest: some(sip.queue_max_seconds),
            then: sip.queue_timeout,
        }
    }
}

/// The queues.
#[derive(Debug, Default)]
pub struct Queues {
    table: Mutex<Table<Kept>>,
    /// Somebody has come, gone, or is being connected.
    moved: Notify,
}

/// What is kept with a caller.
#[derive(Debug, Clone)]
struct Kept {
    call: CallOf,
    owner: Owner,
    entered_at: u64,
    transfer_id: Option<String>,
    orders: mpsc::Sender<Order>,
}

/// A request for a caller's task, and who is told the outcome.
#[derive(Debug)]
enum Order {
    Leave(oneshot::Sender<Result<QueuedCall, CallsError>>),
    Connect(
        Access,
        Destination,
        oneshot::Sender<Result<QueuedCall, CallsError>>,
    ),
}

/// How somebody has ceased to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Connected,
    CallerLeft,
    Removed,
    Timeout,
}

impl End {
    const fn state(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::CallerLeft | Self::Removed | Self::Timeout => "left",
        }
    }

    const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Connected => None,
            Self::CallerLeft => Some("caller_left"),
            Self::Removed => Some("removed"),
            Self::Timeout => Some("timeout"),
        }
    }
}

impl Queues {
    fn table(&self) -> MutexGuard<'_, Table<Kept>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call waits.
    pub(super) fn holds(&self, sip_call_id: &str) -> bool {
        self.table().place(sip_call_id).is_some()
    }

    fn place(&self, sip_call_id: &str) -> Option<Place> {
        self.table().place(sip_call_id)
    }

    /// Takes the one who waits longest.
    fn next(&self, queue: &QueueOf) -> Option<mpsc::Sender<Order>> {
        let orders = self.table().next(queue)?.orders.clone();
        self.moved.notify_waiters();
        Some(orders)
    }

    fn back(&self, sip_call_id: &str) {
        self.table().back(sip_call_id);
        self.moved.notify_waiters();
    }

    fn leave(&self, sip_call_id: &str) {
        self.table().leave(sip_call_id);
        self.moved.notify_waiters();
    }

    /// Changes what is shown of a caller.
    fn describe(&self, sip_call_id: &str, change: impl FnOnce(&mut Kept)) {
        if let Some(kept) = self.table().find(sip_call_id) {
            change(kept);
        }
    }

    fn find(&self, access: &Access, which: &Waiter) -> Option<mpsc::Sender<Order>> {
        let table = self.table();
        let mut all = table.all().filter(|(_, kept, _)| kept.owner.lets(access));
        let found = all.find(|(of, kept, _)| match which {
            Waiter::Call { queue, sip_call_id } => {
                of.name == *queue && kept.call.sip_call_id == *sip_call_id
            }
            Waiter::InRoom { room, identity } => {
                kept.call.room == *room && kept.call.identity == *identity
            }
        });
        found.map(|(_, kept, _)| kept.orders.clone())
    }

    fn list(&self, access: &Access) -> Vec<QueueInfo> {
        let mut queues: Vec<QueueInfo> = Vec::new();
        let mut last = None;
        let table = self.table();
        for (queue, kept, place) in table.all().filter(|(_, kept, _)| kept.owner.lets(access)) {
            if last != Some(queue) {
                queues.push(QueueInfo {
                    queue_name: queue.name.clone(),
                    tenant: queue.tenant.as_ref().map(|id| id.as_str().to_owned()),
                    calls: Vec::new(),
                });
                last = Some(queue);
            }
            if let Some(shown) = queues.last_mut() {
                shown.calls.push(kept.shown(&queue.name, Some(place), None));
            }
        }
        queues.sort_by(|one, other| {
            (&one.tenant, &one.queue_name).cmp(&(&other.tenant, &other.queue_name))
        });
        queues
    }
}

impl Kept {
    fn shown(&self, queue: &str, place: Option<Place>, end: Option<End>) -> QueuedCall {
        QueuedCall {
            queue_name: queue.to_owned(),
            sip_call_id: self.call.sip_call_id.clone(),
            room_name: self.call.room.clone(),
            participant_identity: self.call.identity.clone(),
            state: match (end, place) {
                (Some(end), _) => end.state(),
                (None, Some(Place::Connecting)) => "connecting",
                (None, Some(Place::Waiting(_)) | None) => "waiting",
            },
            position: match place {
                Some(Place::Waiting(position)) if end.is_none() => Some(position),
                _ => None,
            },
            entered_at: self.entered_at,
            transfer_id: self.transfer_id.clone(),
        }
    }
}

/// Whether somebody in a room can take a call: not one who waits there.
fn takes_calls(one: &ParticipantInfo) -> bool {
    let is_held = one
        .attributes
        .get(attribute::HOLD)
        .is_some_and(|held| held == "true");
    !is_held && !matches!(one.kind(), Kind::Egress | Kind::Ingress)
}

impl Calls {
    async fn enter_queue(self, wish: EnterQueue) -> Result<QueuedCall, CallsError> {
        let EnterQueue {
            access,
            room,
            identity,
            queue,
        } = wish;
        // Its name is looked at before anything is.
        QueueOf::named(None, queue.clone()).ok_or(CallsError::QueueName)?;
        let (owner, caller) = self.on_the_phone(&access, &room, &identity).await?;
        let tenant = owner.tenant().and_then(|id| TenantId::new(id).ok());
        if access.tenant().is_some() && access.tenant() != tenant.as_ref() {
            return Err(RoomsError::NoRoom.into());
        }
        let queue = QueueOf::named(tenant, queue).ok_or(CallsError::QueueName)?;
        if is_by_carrier(&caller) {
            return Err(CallsError::ByCarrier);
        }
        if status_of(&caller) != Some(CallStatus::Active) {
            return Err(precondition("the call is not answered yet"));
        }
        let telephone = self.telephone()?;
        let call = CallOf::participant(&room, &caller);
        if self.transfers.holds(&call.sip_call_id) {
            return Err(precondition("a transfer of this call holds it"));
        }
        let (orders, receiver) = mpsc::channel(MOST_ORDERS);
        let kept = Kept {
            call: call.clone(),
            owner,
            entered_at: unix_ms(SystemTime::now()),
            transfer_id: None,
            orders,
        };
        let limits = self.rules.queues.limits;
        let entered =
            self.queues
                .table()
                .enter(queue.clone(), &call.sip_call_id, limits, kept.clone());
        entered.map_err(|problem| match problem {
            NoPlace::Waits => precondition(&problem.to_string()),
            NoPlace::Queue | NoPlace::Queues => CallsError::QueueFull(problem),
        })?;
        let ticket = Ticket {
            queues: Arc::clone(&self.queues),
            sip_call_id: call.sip_call_id.clone(),
        };
        telephone.hold(&call, Hold::Music).await?;
        metrics::queue_entered();
        tracing::info!(call = call.sip_call_id, "a caller waits in a queue");
        let now = Instant::now();
        let waiting = Waiting {
            telephone,
            queue,
            kept,
            ticket,
            entered: now,
            told: None,
            says_at: Some(now),
            saying: None,
            music_at: None,
            transfer: None,
            calls: self,
        };
        let shown = waiting.shown(None);
        actix::spawn(waiting.run(receiver));
        Ok(shown)
    }

    async fn leave_queue(self, wish: LeaveQueue) -> Result<QueuedCall, CallsError> {
        let LeaveQueue { access, which } = wish;
        let orders = self.queues.find(&access, &which);
        let orders = orders.filter(|_| !access.is_public());
        let orders = orders.ok_or(CallsError::NoQueuedCall)?;
        let (done, outcome) = oneshot::channel();
        // The task of one who has gone has ended.
        let sent = orders.send(Order::Leave(done)).await;
        sent.map_err(|_| CallsError::NoQueuedCall)?;
        outcome.await.map_err(|_| CallsError::NoQueuedCall)?
    }

    async fn next_call(self, wish: NextCall) -> Result<QueuedCall, CallsError> {
        let NextCall {
            access,
            tenant,
            queue,
            to,
        } = wish;
        if access.is_public() {
            return Err(CallsError::EmptyQueue);
        }
        let tenant = access.tenant().cloned().or(tenant);
        let queue = QueueOf::named(tenant, queue).ok_or(CallsError::QueueName)?;
        if let Destination::Room(name) = &to {
            let (room, everybody) = self.rooms.look_into(&access, name).await?;
            let owner = Owner::of(&room.metadata);
            if owner.tenant() != queue.tenant.as_ref().map(TenantId::as_str) {
                return Err(RoomsError::NoRoom.into());
            }
            if !everybody.iter().any(takes_calls) {
                return Err(precondition("room_name: nobody is there to take the call"));
            }
        }
        // One who has hung up in this moment is passed over.
        while let Some(orders) = self.queues.next(&queue) {
            let (done, outcome) = oneshot::channel();
            let order = Order::Connect(access.clone(), to.clone(), done);
            if orders.send(order).await.is_err() {
                continue;
            }
            match outcome.await {
                Err(_) | Ok(Err(CallsError::CallerGone)) => {}
                Ok(outcome) => return outcome,
            }
        }
        Err(CallsError::EmptyQueue)
    }
}

/// A caller's place in the table, as long as its task runs.
struct Ticket {
    queues: Arc<Queues>,
    sip_call_id: String,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queues.leave(&self.sip_call_id);
    }
}

/// Somebody who waits.
struct Waiting {
    calls: Calls,
    telephone: Arc<dyn Telephone>,
    queue: QueueOf,
    kept: Kept,
    ticket: Ticket,
    entered: Instant,
    /// Where it was when that was told last.
    told: Option<Place>,
    /// When its position is said again.
    says_at: Option<Instant>,
    /// How long it takes, once the words are there.
    saying: Option<BoxFuture<'static, Result<Duration, CallError>>>,
    /// When the music goes on.
    music_at: Option<Instant>,
    /// How the call ends by which it is connected.
    transfer: Option<oneshot::Receiver<State>>,
}

/// What comes of something; never, where there is nothing.
async fn outcome<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

impl Waiting {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let (ledger, queues) = (
            Arc::clone(&self.calls.ledger),
            Arc::clone(&self.calls.queues),
        );
        loop {
            let (changed, moved) = (ledger.changed(), queues.moved.notified());
            tokio::pin!(changed, moved);
            // From here on no change is missed.
            changed.as_mut().enable();
            moved.as_mut().enable();
            let status = ledger.status(&self.kept.call.sip_call_id);
            if matches!(status, Some(CallStatus::Hangup(_))) {
                return self.end(End::CallerLeft).await;
            }
            self.tell_place().await;
            let due = self.due();
            let flow = tokio::select! {
                () = &mut changed => ControlFlow::Continue(()),
                () = &mut moved => ControlFlow::Continue(()),
                // The table has the other end as long as this task runs.
                Some(order) = orders.recv() => self.carry_out(order).await,
                end = outcome(&mut self.transfer) => self.transferred(end.ok()),
                said = outcome(&mut self.saying) => {
                    self.said(said);
                    ControlFlow::Continue(())
                }
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {
                    self.tick().await
                }
            };
            if let ControlFlow::Break(end) = flow {
                return self.end(end).await;
            }
        }
    }

    /// When something is to be done that nobody asks for. Nothing is while it is being connected.
    fn due(&self) -> Option<Instant> {
        if self.transfer.is_some() {
            return None;
        }
        let over = self.calls.rules.queues.longest;
        let over = over.map(|longest| self.entered + longest);
        [self.says_at, self.music_at, over]
            .into_iter()
            .flatten()
            .min()
    }

    async fn tick(&mut self) -> ControlFlow<End> {
        let now = Instant::now();
        let rules = self.calls.rules.queues;
        let waits = now.saturating_duration_since(self.entered);
        if rules.longest.is_some_and(|longest| waits >= longest) {
            self.give_up(rules.then).await;
            return ControlFlow::Break(End::Timeout);
        }
        if self.music_at.is_some_and(|at| now >= at) {
            self.music_at = None;
            self.hold(Hold::Music).await;
        }
        if self.says_at.is_some_and(|at| now >= at) {
            self.say_position();
        }
        ControlFlow::Continue(())
    }

    /// The words may have to be made first; whoever comes meanwhile does not wait for them.
    fn say_position(&mut self) {
        self.says_at = None;
        let call = self.kept.call.clone();
        let place = self.calls.queues.place(&call.sip_call_id);
        let Some(Place::Waiting(position)) = place else {
            return;
        };
        let telephone = Arc::clone(&self.telephone);
        self.saying = Some(Box::pin(async move {
            telephone.say_position(&call, position).await
        }));
    }

    fn said(&mut self, said: Result<Duration, CallError>) {
        self.saying = None;
        // Who has hung up meanwhile is told by the ledger.
        let length = said.unwrap_or_default();
        let now = Instant::now();
        self.music_at = (!length.is_zero()).then(|| now + length + BREATH);
        let announce = self.calls.rules.queues.announce;
        self.says_at = announce.map(|announce| now + length + announce);
    }

    async fn hold(&self, hold: Hold) {
        if let Err(error) = self.telephone.hold(&self.kept.call, hold).await {
            tracing::debug!(%error, "a caller who waits has gone");
        }
    }

    /// Nobody has come for too long.
    async fn give_up(&self, then: QueueTimeout) {
        let call = &self.kept.call;
        let back = then == QueueTimeout::Back && {
            let everybody = self.calls.rooms.provider.participants(&call.room).await;
            // Nobody knows: whoever is there hears them.
            everybody.map_or(true, |everybody| {
                let mut others = everybody.iter().filter(|one| one.identity != call.identity);
                others.any(takes_calls)
            })
        };
        if back {
            self.hold(Hold::Off).await;
        } else if let Err(error) = self.telephone.hang_up(call).await {
            tracing::debug!(%error, "a caller who waits has gone");
        }
    }

    async fn carry_out(&mut self, order: Order) -> ControlFlow<End> {
        if self.saying.take().is_some() {
            self.says_at = Some(Instant::now());
        }
        match order {
            Order::Leave(done) if self.transfer.is_some() => {
                let _gone = done.send(Err(precondition("the call is being connected")));
                ControlFlow::Continue(())
            }
            Order::Leave(done) => {
                self.hold(Hold::Off).await;
                self.ticket.queues.leave(&self.kept.call.sip_call_id);
                let _gone = done.send(Ok(self.shown(Some(End::Removed))));
                ControlFlow::Break(End::Removed)
            }
            Order::Connect(access, Destination::Room(room), done) => {
                match self.connect_to_room(&access, room).await {
                    Ok(()) => {
                        self.ticket.queues.leave(&self.kept.call.sip_call_id);
                        let _gone = done.send(Ok(self.shown(Some(End::Connected))));
                        ControlFlow::Break(End::Connected)
                    }
                    Err(error) => self.not_connected(error, done).await,
                }
            }
            Order::Connect(access, Destination::Number(person), done) => {
                match self.call_person(access, *person).await {
                    Ok(()) => {
                        let _gone = done.send(Ok(self.shown(None)));
                        ControlFlow::Continue(())
                    }
                    Err(error) => self.not_connected(error, done).await,
                }
            }
        }
    }

    /// Whoever wanted to take it cannot: it waits as before, or has hung up.
    async fn not_connected(
        &self,
        error: CallsError,
        done: oneshot::Sender<Result<QueuedCall, CallsError>>,
    ) -> ControlFlow<End> {
        let may_be_gone = match &error {
            CallsError::Call(error) => error.kind == CallErrorKind::NotFound,
            CallsError::Rooms(RoomsError::NoParticipant) => true,
            CallsError::Rooms(RoomsError::Provider(error)) => {
                matches!(error.kind, RoomErrorKind::NotFound | RoomErrorKind::NoRoom)
            }
            _ => false,
        };
        // The ledger is told a moment after a call has ended.
        let over = self.calls.ledger.over(&self.kept.call.sip_call_id);
        if may_be_gone && timeout(GONE_WITHIN, over).await.is_ok() {
            let _gone = done.send(Err(CallsError::CallerGone));
            return ControlFlow::Break(End::CallerLeft);
        }
        self.calls.queues.back(&self.kept.call.sip_call_id);
        let _gone = done.send(Err(error));
        ControlFlow::Continue(())
    }

    async fn connect_to_room(&mut self, access: &Access, room: String) -> Result<(), CallsError> {
        let call = self.kept.call.clone();
        if call.room != room {
            let provider = &self.calls.rooms.provider;
            let moved = provider.move_to(&call.room, &call.identity, &room, access);
            moved.await.map_err(RoomsError::from)?;
            let ledger = Arc::clone(&self.calls.ledger);
            let arrived = ledger.is_in(&call.sip_call_id, &room);
            if timeout(MOVED_WITHIN, arrived).await.is_err() {
                tracing::warn!("a call does not say that it is in another room");
            }
            self.kept.call.room.clone_from(&room);
            self.calls.queues.describe(&call.sip_call_id, |kept| {
                kept.call.room = room;
            });
        }
        Ok(self.telephone.hold(&self.kept.call, Hold::Off).await?)
    }

    async fn call_person(&mut self, access: Access, person: Person) -> Result<(), CallsError> {
        let (ended, end) = oneshot::channel();
        let begin = BeginTransfer {
            access,
            room: self.kept.call.room.clone(),
            identity: self.kept.call.identity.clone(),
            to: person.to,
            from: person.from,
            person_identity: person.identity,
            person_name: person.name,
            agent: person.agent,
            gateway: person.gateway,
            queued: Some(ended),
        };
        let begun = self.calls.clone().begin_transfer(begin).await?;
        self.transfer = Some(end);
        self.set_transfer(Some(begun.transfer_id));
        Ok(())
    }

    fn set_transfer(&mut self, id: Option<String>) {
        self.kept.transfer_id.clone_from(&id);
        let call = &self.kept.call.sip_call_id;
        self.calls.queues.describe(call, |kept| {
            kept.transfer_id = id;
        });
    }

    fn transferred(&mut self, end: Option<State>) -> ControlFlow<End> {
        self.transfer = None;
        match end {
            Some(State::Complete) => return ControlFlow::Break(End::Connected),
            Some(State::Failed(Failed::CallerLeft)) => return ControlFlow::Break(End::CallerLeft),
            // The person is not there, or nobody has let it be so.
            _ => {}
        }
        self.set_transfer(None);
        self.calls.queues.back(&self.kept.call.sip_call_id);
        // The transfer has begun the music anew.
        self.music_at = None;
        self.says_at = Some(Instant::now());
        ControlFlow::Continue(())
    }

    fn shown(&self, end: Option<End>) -> QueuedCall {
        let place = self.calls.queues.place(&self.kept.call.sip_call_id);
        self.kept.shown(&self.queue.name, place, end)
    }

    /// Tells the room where it is, and the webhook whether it waits or is being connected, where that has changed.
    async fn tell_place(&mut self) {
        let place = self.calls.queues.place(&self.kept.call.sip_call_id);
        let before = std::mem::replace(&mut self.told, place);
        if place == before || place.is_none() {
            return;
        }
        let moved_up = matches!(
            (before, place),
            (Some(Place::Waiting(_)), Some(Place::Waiting(_)))
        );
        self.tell(None, !moved_up).await;
    }

    async fn end(mut self, end: End) {
        self.ticket.queues.leave(&self.kept.call.sip_call_id);
        metrics::queue_left(end.reason().unwrap_or("connected"), self.entered.elapsed());
        tracing::info!(
            call = self.kept.call.sip_call_id,
            state = end.state(),
            reason = end.reason(),
            "a caller waits no longer"
        );
        self.tell(Some(end), true).await;
    }

    async fn tell(&mut self, end: Option<End>, by_webhook: bool) {
        let shown = self.shown(end);
        let reason = end.and_then(End::reason);
        let position = shown
            .position
            .map(|position| position.to_string())
            .unwrap_or_default();
        let attributes = [
            (attribute::QUEUE, shown.queue_name.as_str()),
            (attribute::QUEUE_STATE, shown.state),
            (attribute::QUEUE_POSITION, &position),
            (attribute::QUEUE_REASON, reason.unwrap_or_default()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        // Who has hung up is not described.
        let _told = self
            .telephone
            .describe(&self.kept.call, attributes.into())
            .await;
        let Some(webhooks) = self.calls.webhooks.as_ref().filter(|_| by_webhook) else {
            return;
        };
        let waited = self.entered.elapsed().as_millis();
        let event = EventKind::QueueStatus {
            queue_name: shown.queue_name,
            sip_call_id: shown.sip_call_id,
            room_name: shown.room_name,
            participant_identity: shown.participant_identity,
            status: shown.state,
            position: shown.position,
            waited_ms: u64::try_from(waited).unwrap_or(u64::MAX),
            transfer_id: shown.transfer_id,
            reason,
        };
        let event = Event::of_room(self.kept.owner.tenant(), event);
        webhooks.enqueue(&event).await;
    }
}

impl Handler<EnterQueue> for CallRegistry {
    type Result = ResponseFuture<<EnterQueue as Message>::Result>;

    fn handle(&mut self, wish: EnterQueue, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.enter_queue(wish))
    }
}

impl Handler<LeaveQueue> for CallRegistry {
    type Result = ResponseFuture<<LeaveQueue as Message>::Result>;

    fn handle(&mut self, wish: LeaveQueue, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.leave_queue(wish))
    }
}

impl Handler<NextCall> for CallRegistry {
    type Result = ResponseFuture<<NextCall as Message>::Result>;

    fn handle(&mut self, wish: NextCall, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.next_call(wish))
    }
}

impl Handler<ListQueues> for CallRegistry {
    type Result = MessageResult<ListQueues>;

    fn handle(&mut self, ListQueues { access }: ListQueues, _: &mut Context<Self>) -> Self::Result {
        let calls = self.0.as_ref().filter(|_| !access.is_public());
        MessageResult(calls.map_or_else(Vec::new, |calls| calls.queues.list(&access)))
    }
}
