//! Warm transfers: the caller is on hold while the agent speaks with a person who was called into the same room, and then the
//! two are connected. The [`machine`] decides; a task for each transfer tells it what happens and does what it says.
//!
//! Calls are watched in the ledger. Agents are whoever else is in the room, of any kind, so that one that is dialled again, or
//! a worker's, counts as well: the room is asked who is there, at intervals and when somebody has hung up.

pub mod machine;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use actix::prelude::*;
use livekit_protocol::ParticipantInfo;
use livekit_protocol::participant_info::Kind;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};

use self::machine::{Agent, Input, Machine, Output, Refusal, Rules, State, WithoutAgent};
use super::{CallRegistry, Calls, CallsError, OwnGateway, Owner, PlaceCall, Target, precondition};
use crate::ids::alphanumeric;
use vivavoce_auth::Access;
use vivavoce_config::{Sip, TransferWithoutAgent};
use vivavoce_core::phone::PhoneNumber;
use vivavoce_core::unix_time::unix_ms;
use vivavoce_hooks::announcement::is_by_carrier;
use vivavoce_seams::rooms::telephone::{
    CallErrorKind, CallOf, CallStatus, Hold, attribute, status_of,
};
use vivavoce_webhooks::{Event, EventKind, TransferOutcome};

/// How often a room is asked who is there.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long an agent that is to leave may still be there once it was told.
const GRACE: Duration = Duration::from_millis(500);
/// How long transfers that are over are shown, and how many of them at most.
const SHOWN: Duration = Duration::from_mins(1);
const MOST_SHOWN: usize = 1_000;
/// Requests that wait for one transfer.
const MOST_ORDERS: usize = 16;

/// Begins a warm transfer.
#[derive(Debug, Message)]
#[rtype(result = "Result<TransferInfo, CallsError>")]
pub struct BeginTransfer {
    pub access: Access,
    pub room: String,
    /// The caller.
    pub identity: String,
    /// Whom to call.
    pub to: PhoneNumber,
    /// Whose number is shown; that of ours which the caller's call is on where absent.
    pub from: Option<PhoneNumber>,
    pub person_identity: Option<String>,
    pub person_name: Option<String>,
    /// Who leaves when the transfer is completed.
    pub agent: Option<String>,
    pub gateway: OwnGateway,
    /// Of a caller who waits in a queue, and is told the end: the two are connected as soon as the person answers, and a caller
    /// who is not connected stays on hold.
    pub queued: Option<oneshot::Sender<State>>,
}

/// Completes or cancels a warm transfer.
#[derive(Debug, Message)]
#[rtype(result = "Result<TransferInfo, CallsError>")]
pub struct FinishTransfer {
    pub access: Access,
    pub which: Which,
    pub finish: Finish,
    /// Who leaves then, in place of the one named at the beginning.
    pub agent: Option<String>,
}

/// A warm transfer of somebody's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// By its id.
    Id(String),
    /// The one that is under way in this room.
    InRoom(String),
}

/// How a transfer is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    Complete(Agent, Way),
    Cancel,
}

/// How the two are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In the room.
    Room,
    /// By their own exchange, with REFER and `Replaces`, if that takes it; else in the room.
    Refer,
}

impl Way {
    /// As the API says it.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("room") => Some(Self::Room),
            Some("refer") => Some(Self::Refer),
            Some(_) => None,
        }
    }
}

/// Lists the warm transfers that a caller may see, oldest first.
#[derive(Debug, Message)]
#[rtype(result = "Vec<TransferInfo>")]
pub struct ListTransfers {
    pub access: Access,
}

/// Puts a call on hold, or takes it off.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), CallsError>")]
pub struct HoldCall {
    pub access: Access,
    pub room: String,
    pub identity: String,
    pub hold: Hold,
}

/// A warm transfer, as the API shows it. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TransferInfo {
    /// Its id.
    pub transfer_id: String,
    /// The room.
    pub room_name: String,
    /// The identity of the caller.
    pub participant_identity: String,
    /// The caller's call.
    pub sip_call_id: String,
    /// The number of the person, in the form in which it is dialled.
    pub transfer_to: String,
    /// The identity of the person.
    pub person_identity: String,
    /// The person's call.
    pub person_sip_call_id: String,
    /// Who leaves when it is completed; null where nobody was named.
    pub agent_identity: Option<String>,
    /// How it is.
    #[schemars(extend("enum" = ["ringing", "consulting", "complete", "cancelled", "failed"]))]
    pub state: &'static str,
    /// Why it was cancelled or has failed; null otherwise.
    pub reason: Option<&'static str>,
    /// How the two were connected: in the room, or by their own exchange; null before.
    #[schemars(extend("enum" = ["room", "refer", null]))]
    pub connected_by: Option<&'static str>,
    /// When it began.
    pub started_at: u64,
    /// When the person answered; null before.
    pub answered_at: Option<u64>,
    /// When it was completed, cancelled or failed; null before.
    pub ended_at: Option<u64>,
}

impl From<&Sip> for Rules {
    fn from(sip: &Sip) -> Self {
        Self {
            agent_patience: sip.transfer_agent_seconds,
            without_agent: match sip.transfer_without_agent {
                TransferWithoutAgent::Back => WithoutAgent::Back,
                TransferWithoutAgent::Complete => WithoutAgent::Complete,
            },
            consult: sip.transfer_consult_seconds,
            of_queue: false,
        }
    }
}

/// The warm transfers that there are, and those that ended a moment ago.
#[derive(Debug, Default)]
pub struct Transfers(Mutex<BTreeMap<u64, Entry>>);

#[derive(Debug)]
struct Entry {
    info: TransferInfo,
    owner: Owner,
    orders: mpsc::Sender<Order>,
    ended: Option<Instant>,
}

/// A request for a transfer's task, and who is told the outcome.
#[derive(Debug)]
struct Order {
    finish: Finish,
    agent: Option<String>,
    done: oneshot::Sender<Result<(), Refusal>>,
}

impl Entry {
    /// Whether it can still be completed or cancelled.
    const fn is_open(&self) -> bool {
        self.ended.is_none()
    }
}

/// Holds a caller's place in the table until the transfer has begun.
struct Reserved<'a> {
    transfers: &'a Transfers,
    key: u64,
    begun: bool,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.begun {
            self.transfers.table().remove(&self.key);
        }
    }
}

impl Transfers {
    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a transfer into the table, unless its caller has one.
    fn reserve(&self, entry: Entry) -> Option<Reserved<'_>> {
        let mut table = self.table();
        forget(&mut table, Instant::now());
        let call = &entry.info.sip_call_id;
        if table
            .values()
            .any(|other| other.is_open() && other.info.sip_call_id == *call)
        {
            return None;
        }
        let key = table.last_key_value().map_or(0, |(last, _)| last + 1);
        table.insert(key, entry);
        drop(table);
        Some(Reserved {
            transfers: self,
            key,
            begun: false,
        })
    }

    /// Changes what is shown of one.
    fn change<T>(&self, key: u64, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.table().get_mut(&key).map(change)
    }

    fn find(&self, access: &Access, which: &Which) -> Option<(u64, mpsc::Sender<Order>)> {
        let table = self.table();
        let seen = |entry: &Entry| entry.owner.lets(access);
        let meant = |entry: &Entry| match which {
            Which::Id(id) => entry.info.transfer_id == *id,
            Which::InRoom(room) => entry.is_open() && entry.info.room_name == *room,
        };
        let found = table.iter().find(|(_, entry)| seen(entry) && meant(entry));
        found.map(|(key, entry)| (*key, entry.orders.clone()))
    }

    /// Whether a transfer holds this call.
    pub(super) fn holds(&self, sip_call_id: &str) -> bool {
        let table = self.table();
        table
            .values()
            .any(|entry| entry.is_open() && entry.info.sip_call_id == sip_call_id)
    }

    fn list(&self, access: &Access) -> Vec<TransferInfo> {
        let mut table = self.table();
        forget(&mut table, Instant::now());
        let seen = table.values().filter(|entry| entry.owner.lets(access));
        seen.map(|entry| entry.info.clone()).collect()
    }
}

fn forget(table: &mut BTreeMap<u64, Entry>, now: Instant) {
    table.retain(|_, entry| {
        let age = entry
            .ended
            .map(|ended| now.saturating_duration_since(ended));
        age.is_none_or(|age| age < SHOWN)
    });
    let ended: Vec<u64> = table
        .iter()
        .filter(|(_, entry)| !entry.is_open())
        .map(|(key, _)| *key)
        .collect();
    for key in ended.iter().take(ended.len().saturating_sub(MOST_SHOWN)) {
        table.remove(key);
    }
}

/// A transfer that begins.
fn begun(wish: &BeginTransfer, caller: &CallOf, person: String) -> TransferInfo {
    TransferInfo {
        transfer_id: format!("TRF_{}", alphanumeric(12)),
        room_name: wish.room.clone(),
        participant_identity: wish.identity.clone(),
        sip_call_id: caller.sip_call_id.clone(),
        transfer_to: wish.to.as_str().to_owned(),
        person_identity: person,
        person_sip_call_id: String::new(),
        agent_identity: wish.agent.clone(),
        state: State::Ringing.as_str(),
        reason: None,
        connected_by: None,
        started_at: unix_ms(SystemTime::now()),
        answered_at: None,
        ended_at: None,
    }
}

/// Who the person will be in the room.
fn person_identity(
    wanted: Option<String>,
    number: &PhoneNumber,
    everybody: &[ParticipantInfo],
) -> Result<String, CallsError> {
    let is_taken = |identity: &str| everybody.iter().any(|one| one.identity == identity);
    match wanted {
        Some(wanted) if is_taken(&wanted) => Err(precondition(
            "person_identity: somebody in the room is called so",
        )),
        Some(wanted) => Ok(wanted),
        None => {
            let identity = format!("sip_{}", number.as_str());
            if is_taken(&identity) {
                Ok(format!("{identity}_{}", alphanumeric(6)))
            } else {
                Ok(identity)
            }
        }
    }
}

impl Calls {
    async fn hold(self, wish: HoldCall) -> Result<(), CallsError> {
        let HoldCall {
            access,
            room,
            identity,
            hold,
        } = wish;
        let (_, caller) = self.on_the_phone(&access, &room, &identity).await?;
        if is_by_carrier(&caller) {
            return Err(CallsError::ByCarrier);
        }
        let call = CallOf::participant(&room, &caller);
        if self.transfers.holds(&call.sip_call_id) {
            return Err(precondition("a transfer of this call holds it"));
        }
        if self.queues.holds(&call.sip_call_id) {
            return Err(precondition("the call waits in a queue"));
        }
        Ok(self.telephone()?.hold(&call, hold).await?)
    }

    pub(super) async fn begin_transfer(
        self,
        wish: BeginTransfer,
    ) -> Result<TransferInfo, CallsError> {
        self.rules.check(&wish.to, "transfer_to")?;
        let (owner, caller) = self
            .on_the_phone(&wish.access, &wish.room, &wish.identity)
            .await?;
        if is_by_carrier(&caller) {
            return Err(CallsError::ByCarrier);
        }
        if status_of(&caller) != Some(CallStatus::Active) {
            return Err(precondition("the call is not answered yet"));
        }
        let ours = caller.attributes.get(attribute::TRUNK_PHONE_NUMBER);
        let ours = ours.and_then(|number| PhoneNumber::parse(number).ok());
        let from = wish.from.clone().or(ours);
        let from = from.ok_or(CallsError::NoCallerId)?;
        let everybody = self.rooms.provider.participants(&wish.room).await;
        let everybody = everybody.map_err(super::RoomsError::from)?;
        let identity = person_identity(wish.person_identity.clone(), &wish.to, &everybody)?;
        let call = CallOf::participant(&wish.room, &caller);
        let (orders, receiver) = mpsc::channel(MOST_ORDERS);
        let info = begun(&wish, &call, identity.clone());
        let entry = Entry {
            info: info.clone(),
            owner: owner.clone(),
            orders,
            ended: None,
        };
        let of_queue = wish.queued.is_some();
        if !of_queue && self.queues.holds(&call.sip_call_id) {
            return Err(precondition("the call waits in a queue"));
        }
        let transfers = Arc::clone(&self.transfers);
        let mut reserved = transfers
            .reserve(entry)
            .ok_or_else(|| precondition("a transfer of this call is under way"))?;
        let telephone = self.telephone()?;
        let (machine, first) = Machine::begin(Rules {
            of_queue,
            ..self.rules.transfers
        });
        // Before anything rings, so that a telephone that cannot be held is refused without having called anybody.
        telephone.hold(&call, Hold::Music).await?;
        let name = wish
            .person_name
            .unwrap_or_else(|| wish.to.as_str().to_owned());
        let placed = self.clone().place(PlaceCall {
            access: wish.access.clone(),
            room: wish.room.clone(),
            identity: identity.clone(),
            name,
            from,
            to: Target::Number(wish.to),
            display_name: None,
            hides_caller: false,
            gateway: wish.gateway,
            classify: None,
        });
        let placed = match placed.await {
            Ok(placed) => placed,
            Err(error) => {
                if !of_queue {
                    let _gone = telephone.hold(&call, Hold::Off).await;
                }
                return Err(error);
            }
        };
        reserved.begun = true;
        let info = TransferInfo {
            person_sip_call_id: placed.sip_call_id.clone(),
            ..info
        };
        self.transfers
            .change(reserved.key, |entry| entry.info = info.clone());
        let person = CallOf {
            room: wish.room,
            identity,
            sip_call_id: placed.sip_call_id,
        };
        let running = Running {
            key: reserved.key,
            calls: self,
            owner,
            access: wish.access,
            caller: call,
            person,
            agent: wish.agent,
            queued: wish.queued,
            by_refer: false,
            machine,
        };
        tracing::info!(transfer = info.transfer_id, "a warm transfer has begun");
        actix::spawn(running.run(first, receiver));
        Ok(info)
    }

    async fn finish_transfer(self, wish: FinishTransfer) -> Result<TransferInfo, CallsError> {
        let (key, orders) = self
            .transfers
            .find(&wish.access, &wish.which)
            .filter(|_| !wish.access.is_public())
            .ok_or(CallsError::NoTransfer)?;
        let (done, outcome) = oneshot::channel();
        let order = Order {
            finish: wish.finish,
            agent: wish.agent,
            done,
        };
        // The task of one that is over has ended.
        let over = || CallsError::Transfer(Refusal::Over);
        orders.send(order).await.map_err(|_| over())?;
        outcome
            .await
            .map_err(|_| over())?
            .map_err(CallsError::Transfer)?;
        let info = self.transfers.change(key, |entry| entry.info.clone());
        info.ok_or(CallsError::NoTransfer)
    }
}

/// A transfer that is under way.
struct Running {
    key: u64,
    calls: Calls,
    owner: Owner,
    access: Access,
    caller: CallOf,
    person: CallOf,
    agent: Option<String>,
    /// Who is told the end, where the caller waits in a queue.
    queued: Option<oneshot::Sender<State>>,
    /// Whether the two have each other without us.
    by_refer: bool,
    machine: Machine,
}

impl Running {
    async fn run(mut self, first: Vec<Output>, mut orders: mpsc::Receiver<Order>) {
        // The hold has been done.
        let first = first.into_iter().filter(|output| *output != Output::Hold);
        self.perform(first.collect()).await;
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ledger = Arc::clone(&self.calls.ledger);
        loop {
            let changed = ledger.changed();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            self.observe().await;
            if self.machine.is_over() {
                return;
            }
            let deadline = self.machine.deadline();
            let watched = self.machine.watches();
            tokio::select! {
                () = &mut changed => {}
                // None come any more once the table has forgotten it, after it was completed.
                Some(order) = orders.recv() => self.order(order).await,
                _ = looks.tick(), if watched => self.look().await,
                () = sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                    self.give(Input::Tick).await;
                }
            }
        }
    }

    /// Takes what the ledger says of the two calls.
    async fn observe(&mut self) {
        let status = |call: &CallOf| self.calls.ledger.status(&call.sip_call_id);
        let (caller, person) = (status(&self.caller), status(&self.person));
        // While the two are connected nobody is looked for before.
        let over = |status| matches!(status, Some(CallStatus::Hangup(_)));
        if !self.machine.watches() && (over(caller) || over(person)) {
            self.look().await;
        }
        if over(caller) {
            self.give(Input::CallerGone).await;
        }
        match person {
            Some(CallStatus::Active) => self.give(Input::Answered).await,
            Some(CallStatus::Hangup(cause)) => self.give(Input::PersonGone(cause)).await,
            Some(CallStatus::Dialing | CallStatus::Ringing) | None => {}
        }
    }

    /// Looks who else is in the room.
    async fn look(&mut self) {
        let everybody = self.calls.rooms.provider.participants(&self.caller.room);
        match everybody.await {
            Ok(everybody) => {
                let is_agent = |one: &ParticipantInfo| {
                    one.identity != self.caller.identity
                        && one.identity != self.person.identity
                        && !matches!(one.kind(), Kind::Egress | Kind::Ingress)
                };
                let there = everybody.iter().any(is_agent);
                self.give(Input::Agents(there)).await;
            }
            // Nobody knows: nothing is decided by that.
            Err(error) => tracing::warn!(%error, "who is in the room of a transfer is not known"),
        }
    }

    async fn order(&mut self, order: Order) {
        let Order {
            finish,
            agent,
            done,
        } = order;
        let input = match finish {
            Finish::Complete(agent, way) => {
                if way == Way::Refer && self.machine.may_complete() {
                    self.connect_elsewhere().await;
                }
                Input::Complete(agent)
            }
            Finish::Cancel => Input::Cancel,
        };
        let outcome = match self.machine.handle(input, Instant::now()) {
            Ok(outputs) => {
                self.agent = agent.or(self.agent.take());
                self.perform(outputs).await;
                if self.by_refer {
                    self.end_person();
                }
                Ok(())
            }
            Err(refusal) => Err(refusal),
        };
        let _gone = done.send(outcome);
    }

    /// Has the two connected by their own exchange. What happens meanwhile is looked at afterwards.
    async fn connect_elsewhere(&mut self) {
        let Ok(telephone) = self.calls.telephone() else {
            return;
        };
        match telephone.connect(&self.caller, &self.person).await {
            Ok(()) => self.by_refer = true,
            Err(error) => {
                tracing::info!(%error, "the two of a transfer are connected in the room, as their exchange has not done it");
                // One of the two may have gone meanwhile; the ledger is told a moment after the call has ended.
                if error.kind == CallErrorKind::NotFound {
                    let ledger = Arc::clone(&self.calls.ledger);
                    let _told = timeout(GRACE, async {
                        while !self.machine.is_over() {
                            let changed = ledger.changed();
                            tokio::pin!(changed);
                            changed.as_mut().enable();
                            self.observe().await;
                            if !self.machine.is_over() {
                                changed.await;
                            }
                        }
                    })
                    .await;
                }
                self.observe().await;
            }
        }
    }

    async fn give(&mut self, input: Input) {
        // Only what is asked for is refused.
        if let Ok(outputs) = self.machine.handle(input, Instant::now()) {
            self.perform(outputs).await;
        }
    }

    async fn perform(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            if let Err(error) = self.act(output).await {
                // Who has hung up meanwhile is told by the ledger.
                tracing::debug!(%error, ?output, "a step of a transfer was not possible");
            }
        }
    }

    async fn act(&mut self, output: Output) -> Result<(), CallsError> {
        let telephone = self.calls.telephone()?;
        match output {
            Output::Hold => telephone.hold(&self.caller, Hold::Music).await?,
            Output::Release => telephone.hold(&self.caller, Hold::Off).await?,
            Output::HangUpPerson => telephone.hang_up(&self.person).await?,
            Output::HangUpCaller => telephone.hang_up(&self.caller).await?,
            Output::DismissPerson => {
                let person = self.person.clone();
                // It takes as long as what is said.
                actix::spawn(async move { telephone.dismiss(&person).await });
            }
            Output::RemoveAgent => self.remove_agent(),
            Output::Tell(state) => self.tell(state).await,
        }
        Ok(())
    }

    /// Ends the person's call here, unless the person does, who has the caller now.
    fn end_person(&self) {
        let Ok(telephone) = self.calls.telephone() else {
            return;
        };
        let person = self.person.clone();
        actix::spawn(async move {
            sleep(GRACE * 2).await;
            if let Err(error) = telephone.hang_up(&person).await {
                tracing::debug!(%error, "the person of a transfer has ended the call");
            }
        });
    }

    fn remove_agent(&self) {
        let Some(agent) = self.agent.clone() else {
            return;
        };
        let provider = Arc::clone(&self.calls.rooms.provider);
        let (room, access) = (self.caller.room.clone(), self.access.clone());
        actix::spawn(async move {
            sleep(GRACE).await;
            if let Err(error) = provider.remove(&room, &agent, &access).await {
                tracing::debug!(%error, "the agent of a transfer has left by itself");
            }
        });
    }

    async fn tell(&mut self, state: State) {
        let now = unix_ms(SystemTime::now());
        let is_end = !matches!(state, State::Ringing | State::Consulting);
        let info = self.calls.transfers.change(self.key, |entry| {
            let info = &mut entry.info;
            info.state = state.as_str();
            info.reason = state.reason();
            if state == State::Consulting {
                info.answered_at = Some(now);
            }
            if state == State::Complete {
                info.connected_by = Some(if self.by_refer { "refer" } else { "room" });
            }
            if is_end {
                info.ended_at = Some(now);
                entry.ended = Some(Instant::now());
            }
            entry.info.clone()
        });
        let Some(info) = info else { return };
        tracing::info!(
            transfer = info.transfer_id,
            state = info.state,
            reason = info.reason,
            "a warm transfer has come further"
        );
        let attributes: Vec<(String, String)> = [
            (attribute::TRANSFER_ID, info.transfer_id.as_str()),
            (attribute::TRANSFER_STATE, info.state),
            (attribute::TRANSFER_REASON, info.reason.unwrap_or_default()),
            (attribute::TRANSFER_TO, &info.transfer_to),
            (attribute::TRANSFER_CALLER, &info.participant_identity),
            (attribute::TRANSFER_PERSON, &info.person_identity),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        if let Ok(telephone) = self.calls.telephone() {
            for call in [&self.caller, &self.person] {
                // One of the two may have gone.
                let _told = telephone.describe(call, attributes.clone()).await;
            }
        }
        if let Some(webhooks) = &self.calls.webhooks {
            webhooks.enqueue(&event(info, state, &self.owner)).await;
        }
        if is_end && let Some(queued) = self.queued.take() {
            let _gone = queued.send(state);
        }
    }
}

fn event(info: TransferInfo, state: State, owner: &Owner) -> Event {
    let message = state.reason().unwrap_or_default().to_owned();
    let event = EventKind::TransferStatus {
        sip_call_id: Some(info.sip_call_id),
        room_name: info.room_name,
        participant_identity: info.participant_identity,
        transfer_to: info.transfer_to,
        mode: Some("warm"),
        transfer_id: Some(info.transfer_id),
        person_identity: Some(info.person_identity),
        outcome: match state {
            State::Ringing => TransferOutcome::Ringing,
            State::Consulting => TransferOutcome::Consulting,
            State::Complete => TransferOutcome::Complete,
            State::Cancelled(_) => TransferOutcome::Cancelled { message },
            State::Failed(_) => TransferOutcome::Failed { message },
        },
    };
    Event::of_room(owner.tenant(), event)
}

impl Handler<BeginTransfer> for CallRegistry {
    type Result = ResponseFuture<<BeginTransfer as Message>::Result>;

    fn handle(&mut self, wish: BeginTransfer, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.begin_transfer(wish))
    }
}

impl Handler<FinishTransfer> for CallRegistry {
    type Result = ResponseFuture<<FinishTransfer as Message>::Result>;

    fn handle(&mut self, wish: FinishTransfer, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.finish_transfer(wish))
    }
}

impl Handler<HoldCall> for CallRegistry {
    type Result = ResponseFuture<<HoldCall as Message>::Result>;

    fn handle(&mut self, wish: HoldCall, _: &mut Context<Self>) -> Self::Result {
        self.with(|calls| calls.hold(wish))
    }
}

impl Handler<ListTransfers> for CallRegistry {
    type Result = MessageResult<ListTransfers>;

    fn handle(
        &mut self,
        ListTransfers { access }: ListTransfers,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let calls = self.0.as_ref().filter(|_| !access.is_public());
        MessageResult(calls.map_or_else(Vec::new, |calls| calls.transfers.list(&access)))
    }
}
