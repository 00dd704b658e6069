//! The hooks of inbound calls, for the HTTP handlers and the rooms: who may see and change them, and what they are told when
//! a telephone joins a room (protocol, section 4). The rules and the storage are in [`Hooks`], delivery in the webhooks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use actix::prelude::*;
use livekit_protocol::{ParticipantInfo, WebhookEvent};
use uuid::Uuid;

use super::rooms::{Rooms, RoomsError, Taken};
use crate::session::protocol::CarrierOfCall;
use vivavoce_auth::{Access, Owner};
use vivavoce_core::party::Party;
use vivavoce_hooks::announcement::{
    Announcement, RecentEvents, announcement, called_host, event_id, is_by_carrier, is_call,
    is_inbound,
};
use vivavoce_hooks::{CallOwners, Found, Hook, HookError, Hooks, Host, RequestedHook};
use vivavoce_seams::rooms::telephone::attribute;
use vivavoce_telemetry::metrics::{self, CallTold};
use vivavoce_webhooks::{HookAddress, Webhooks};
pub use vivavoce_webhooks::{WaitingWebhook, WaitingWebhooks};

/// How many calls are remembered, so that none is told twice.
const MOST_REMEMBERED: usize = 10_000;

/// Lists the hooks that a caller may see.
#[derive(Debug, Message)]
#[rtype(result = "Result<Vec<Hook>, HookError>")]
pub struct ListHooks {
    pub access: Access,
}

/// Adds or replaces hooks, all or none; returns the list afterwards.
#[derive(Debug, Message)]
#[rtype(result = "Result<Vec<Hook>, HookError>")]
pub struct PutHooks {
    pub access: Access,
    pub wishes: Vec<RequestedHook>,
}

/// Removes the hooks of hosts, all or none; returns the list afterwards.
#[derive(Debug, Message)]
#[rtype(result = "Result<Vec<Hook>, HookError>")]
pub struct RemoveHooks {
    pub access: Access,
    pub hosts: Vec<String>,
}

/// Lists the webhooks that wait, of those that a caller may see.
#[derive(Debug, Message)]
#[rtype(result = "WaitingWebhooks")]
pub struct ListWaiting {
    pub access: Access,
}

/// Has one of those sent again now, or all; returns how many.
#[derive(Debug, Message)]
#[rtype(result = "usize")]
pub struct SendAgain {
    pub access: Access,
    pub id: Option<String>,
}

/// A telephone has joined a room. Answered once the webhook is on disk, so that it survives a crash of the process.
#[derive(Message)]
#[rtype(result = "Result<(), RoomsError>")]
pub struct CallJoined {
    /// The room's event.
    pub event: Arc<WebhookEvent>,
    /// The room provider that reported it.
    pub rooms: Rooms,
}

/// Somebody is in a room for whom an agent may be dialled.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct CallForAgent {
    pub room_name: String,
    pub participant_identity: String,
    /// The calling number.
    pub from: Option<String>,
    /// The called number.
    pub to: Option<String>,
    /// The called host.
    pub host: Option<Host>,
    /// The known SIP headers, by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Whose room it is; `None` while nobody asks.
    pub owner: Option<Owner>,
    /// Whether it is an inbound call.
    pub is_telephone: bool,
    /// Where it comes from, if by a carrier's socket.
    pub carrier: Option<CarrierOfCall>,
}

/// Tells this recipient of calls from now on.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct DialAgentsBy(pub Recipient<CallForAgent>);

pub struct HookRegistry {
    hooks: Hooks,
    teller: Arc<Teller>,
}

/// Tells hooks.
struct Teller {
    hooks: Hooks,
    webhooks: Webhooks,
    room_prefix: Option<String>,
    /// Whose calls are; `None` where nobody asks.
    owners: Option<CallOwners>,
    told: Mutex<RecentEvents>,
    /// Who dials agents; none before the first one is set, and without agents.
    agents: OnceLock<Recipient<CallForAgent>>,
}

impl HookRegistry {
    /// A registry of these hooks, which are told through these webhooks. `room_prefix` is how rooms of inbound calls begin.
    /// `owners` says whose calls are, where that is asked.
    pub fn new(
        hooks: Hooks,
        webhooks: Webhooks,
        room_prefix: Option<String>,
        owners: Option<CallOwners>,
    ) -> Self {
        let teller = Teller {
            hooks: hooks.clone(),
            webhooks,
            room_prefix,
            owners,
            told: Mutex::new(RecentEvents::new(MOST_REMEMBERED)),
            agents: OnceLock::new(),
        };
        Self {
            hooks,
            teller: Arc::new(teller),
        }
    }
}

impl Actor for HookRegistry {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(1024);
        let hooks = self.hooks.clone();
        context.spawn(async move { hooks.watch().await }.into_actor(self));
    }
}

impl Handler<ListWaiting> for HookRegistry {
    type Result = ResponseFuture<WaitingWebhooks>;

    fn handle(&mut self, message: ListWaiting, _: &mut Context<Self>) -> Self::Result {
        let webhooks = self.teller.webhooks.clone();
        Box::pin(async move { webhooks.waiting(message.access).await })
    }
}

impl Handler<SendAgain> for HookRegistry {
    type Result = ResponseFuture<usize>;

    fn handle(&mut self, message: SendAgain, _: &mut Context<Self>) -> Self::Result {
        let webhooks = self.teller.webhooks.clone();
        Box::pin(async move { webhooks.send_again(message.access, message.id).await })
    }
}

impl Handler<ListHooks> for HookRegistry {
    type Result = ResponseFuture<<ListHooks as Message>::Result>;

    fn handle(&mut self, ListHooks { access }: ListHooks, _: &mut Context<Self>) -> Self::Result {
        let hooks = self.hooks.clone();
        Box::pin(async move { hooks.shown(&access).await })
    }
}

impl Handler<PutHooks> for HookRegistry {
    type Result = ResponseFuture<<PutHooks as Message>::Result>;

    fn handle(&mut self, wish: PutHooks, _: &mut Context<Self>) -> Self::Result {
        let hooks = self.hooks.clone();
        Box::pin(async move { hooks.put(&wish.access, wish.wishes).await })
    }
}

impl Handler<RemoveHooks> for HookRegistry {
    type Result = ResponseFuture<<RemoveHooks as Message>::Result>;

    fn handle(&mut self, wish: RemoveHooks, _: &mut Context<Self>) -> Self::Result {
        let hooks = self.hooks.clone();
        Box::pin(async move { hooks.remove(&wish.access, &wish.hosts).await })
    }
}

impl Handler<DialAgentsBy> for HookRegistry {
    type Result = ();

    fn handle(&mut self, DialAgentsBy(dialler): DialAgentsBy, _: &mut Context<Self>) {
        let _first = self.teller.agents.set(dialler);
    }
}

impl Handler<CallJoined> for HookRegistry {
    type Result = ResponseFuture<<CallJoined as Message>::Result>;

    fn handle(&mut self, joined: CallJoined, _: &mut Context<Self>) -> Self::Result {
        let teller = Arc::clone(&self.teller);
        Box::pin(async move { teller.tell(&joined).await })
    }
}

impl Teller {
    async fn tell(&self, CallJoined { event, rooms }: &CallJoined) -> Result<(), RoomsError> {
        if !is_call(event) {
            self.dial_agent(
                event,
                event.room.as_ref().map(|room| Owner::of(&room.metadata)),
            );
            return Ok(());
        }
        let id = event_id(event);
        if !self.told().is_new(id) {
            metrics::call_told(CallTold::Again);
            return Ok(());
        }
        let outcome = self.tell_anew(id, event, rooms).await;
        match &outcome {
            Ok(outcome) => metrics::call_told(*outcome),
            Err(error) => {
                // Whoever has posted it may post it again.
                self.told().forget(id);
                metrics::call_told(CallTold::Failed);
                tracing::error!(%error, event = event.id, "a call could not be told to its hook");
            }
        }
        outcome.map(drop)
    }

    async fn tell_anew(
        &self,
        id: Uuid,
        event: &WebhookEvent,
        rooms: &Rooms,
    ) -> Result<CallTold, RoomsError> {
        if self.settle_owner(event, rooms).await? == Taken::Occupied {
            return Ok(CallTold::NotTheirs);
        }
        if event.participant.as_ref().is_some_and(is_by_carrier) {
            // Its room was made for whoever the carrier's account belongs to.
            self.dial_agent(
                event,
                event.room.as_ref().map(|room| Owner::of(&room.metadata)),
            );
        } else if event.participant.as_ref().is_some_and(is_inbound) {
            self.dial_agent(event, self.owner_of(event));
        }
        let Some(call) = announcement(event, self.room_prefix.as_deref()) else {
            tracing::debug!(event = event.id, "a call names no host");
            return Ok(CallTold::NoHost);
        };
        let host = call.sip_host.as_str();
        let number = call.to_phone_number.as_deref().unwrap_or_default();
        let owners = self.owners.as_ref();
        let number_of = owners.and_then(|owners| owners.tenant_of(number));
        let Some(Found { hook, configured }) = self.hooks.find(&call.sip_host, number_of) else {
            tracing::debug!(host, event = event.id, "no hook is for the host of a call");
            return Ok(CallTold::NoHook);
        };
        if let Some(owner) = &hook.owner {
            match rooms.give(&call.room.name, owner).await {
                Ok(()) => {}
                Err(RoomsError::AccessDenied | RoomsError::NoRoom) => {
                    tracing::warn!(
                        host,
                        event = event.id,
                        "a call is not told: its room is not, or another's than its hook"
                    );
                    return Ok(CallTold::NotTheirs);
                }
                Err(error) => return Err(error),
            }
        }
        let signer = configured.then_some(&call.sip_host);
        if !self.hooks.configured().signs(signer) {
            tracing::error!(
                host,
                event = event.id,
                "a call is not told: nothing signs for its hook (sip.hook_secret)"
            );
            return Ok(CallTold::Unsigned);
        }
        let address = HookAddress {
            url: hook.url.parse().map_err(untold)?,
            signer: signer.map(|host| host.as_str().to_owned()),
        };
        let body = body(&call).map_err(untold)?;
        let of = Party::of_tenant(hook.owner.as_ref());
        let sent = self.webhooks.send(id, address, of, body).await;
        sent.map_err(untold)?;
        Ok(CallTold::Told)
    }

    /// Gives the room to the owner of the call that has joined it, while authentication is on. Whoever called into a room
    /// where another owner's call lasts is sent out.
    async fn settle_owner(&self, event: &WebhookEvent, rooms: &Rooms) -> Result<Taken, RoomsError> {
        let (Some(owners), Some(room), Some(caller)) =
            (&self.owners, &event.room, &event.participant)
        else {
            return Ok(Taken::Owned);
        };
        let comes_in = is_inbound(caller);
        // Whoever has it called by us owns the room already; only others' calls find it without an owner.
        let owner = if comes_in {
            owner_of_call(owners, caller)
        } else {
            Owner::Operator
        };
        let taken = rooms.take(&room.name, &owner, &caller.identity, comes_in);
        match taken.await {
            // It has ended meanwhile.
            Err(RoomsError::NoRoom) => Ok(Taken::Owned),
            Ok(Taken::Occupied) => {
                tracing::warn!(
                    event = event.id,
                    "a caller is sent out: another owner's call is in the room"
                );
                rooms.send_away(&room.name, &caller.identity).await?;
                Ok(Taken::Occupied)
            }
            taken => taken,
        }
    }

    /// Whose an inbound call is; `None` while nobody asks.
    fn owner_of(&self, event: &WebhookEvent) -> Option<Owner> {
        let caller = event.participant.as_ref()?;
        Some(owner_of_call(self.owners.as_ref()?, caller))
    }

    /// Has an agent dialled for whoever has joined, if there are agents.
    fn dial_agent(&self, event: &WebhookEvent, owner: Option<Owner>) {
        let (Some(agents), Some(room), Some(caller)) =
            (self.agents.get(), &event.room, &event.participant)
        else {
            return;
        };
        // What people say of themselves is not what a telephone network says of a call.
        let is_telephone = is_call(event);
        let told = |name: &str| caller.attributes.get(name).filter(|_| is_telephone);
        let known = |name: &str| told(name).filter(|value| !value.is_empty()).cloned();
        let headers = caller.attributes.iter().filter(|_| is_telephone);
        let headers = headers.filter_map(|(name, value)| {
            let name = name.strip_prefix(attribute::HEADER)?;
            Some((name.to_owned(), value.clone()))
        });
        let call = CallForAgent {
            room_name: room.name.clone(),
            participant_identity: caller.identity.clone(),
            from: known(attribute::PHONE_NUMBER),
            to: known(attribute::TRUNK_PHONE_NUMBER),
            host: called_host(|name| told(name).map(String::as_str)),
            headers: headers.collect(),
            owner: owner.filter(|_| self.owners.is_some()),
            is_telephone,
            carrier: told(attribute::CARRIER).map(|kind| CarrierOfCall {
                kind: kind.clone(),
                call_id: known(attribute::CALL_ID).unwrap_or_default(),
                parameters: parameters(caller),
            }),
        };
        if let Err(error) = agents.try_send(call) {
            tracing::error!(%error, event = event.id, "no agent can be dialled for a call");
        }
    }

    fn told(&self) -> std::sync::MutexGuard<'_, RecentEvents> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the answer document gave to a call by a carrier's socket.
fn parameters(caller: &ParticipantInfo) -> BTreeMap<String, String> {
    let attributes = caller.attributes.iter();
    let given = attributes.filter_map(|(name, value)| {
        let name = name.strip_prefix(attribute::CARRIER_PARAMETER)?;
        Some((name.to_owned(), value.clone()))
    });
    given.collect()
}

fn owner_of_call(owners: &CallOwners, caller: &ParticipantInfo) -> Owner {
    let known = |name: &str| {
        let value = caller.attributes.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    };
    let number = known(attribute::TRUNK_PHONE_NUMBER).unwrap_or_default();
    owners.owner(known, number)
}

fn body(call: &Announcement) -> serde_json::Result<String> {
    serde_json::to_string(call)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what errors are mapped with"
)]
fn untold(error: impl ToString) -> RoomsError {
    RoomsError::Untold(error.to_string())
}
