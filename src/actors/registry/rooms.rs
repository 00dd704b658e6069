//! Rooms, for the HTTP handlers: who owns them, and what a caller may do in them. The registry holds no copy of what the
//! room provider knows; it asks, decides, and lets the provider act (protocol, sections 4 and 5).
//!
//! The owner of a room is kept in its metadata. A room of another owner looks as if it did not exist, except to a request
//! for a token. When a room gets an owner, participants who may not be in it are removed: by the room provider where it
//! knows owners, from here where it does not.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use livekit_protocol::participant_info::Kind;
use livekit_protocol::{ParticipantInfo, Room, TrackInfo, WebhookEvent};

use super::hooks::CallJoined;
pub use vivavoce_auth::Owner;
use vivavoce_auth::{Access, TenantId};
use vivavoce_core::party::Party;
use vivavoce_hooks::announcement::{is_guest, is_inbound};
use vivavoce_seams::rooms::key;
use vivavoce_seams::{
    Creation, EventError, RoomError, RoomErrorKind, RoomPass, RoomProvider, SignedEvent,
    Supervision, TrackOf,
};
use vivavoce_telemetry::metrics;

#[cfg(test)]
mod tests;

/// How often claiming a room is tried again because it has changed meanwhile.
const MOST_ATTEMPTS: usize = 5;

/// Why a request about a room failed.
#[derive(Debug, thiserror::Error)]
pub enum RoomsError {
    /// This server has no rooms.
    #[error("this server has no rooms: rtc.mode is off")]
    NotConfigured,
    /// The room has another owner.
    #[error("room_name: this room belongs to somebody else")]
    AccessDenied,
    /// A participant has the identity that a session asks for.
    #[error("service_participant_identity: somebody in this room is called so")]
    IdentityTaken,
    /// No such room, or it has another owner.
    #[error("room_name: there is no such room")]
    NoRoom,
    /// No participant with this identity.
    #[error("participant_identity: nobody in this room is called so")]
    NoParticipant,
    /// No such track.
    #[error("track_sid: the participant has no such track")]
    NoTrack,
    /// The provider failed.
    #[error(transparent)]
    Provider(#[from] RoomError),
    /// The provider failed to remove a participant.
    #[error(transparent)]
    Removal(RoomError),
    /// The provider failed to mute a track.
    #[error(transparent)]
    Mute(RoomError),
    /// The posted body is no signed event of the room provider.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The event could not be queued for its webhooks.
    #[error("the call cannot be told to its hook: {0}")]
    Untold(String),
}

/// Asks for a token. With a tenant the room is created, and claimed for the tenant, before the token is issued.
#[derive(Debug, Message)]
#[rtype(result = "Result<Admission, RoomsError>")]
pub struct Admit {
    pub access: Access,
    pub room: String,
    pub identity: String,
    /// The display name.
    pub name: String,
    /// Whether it is for somebody who supervises a conversation.
    pub supervises: Option<Supervision>,
}

/// A token and the URL that it is for; `None` means this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    pub token: String,
    /// Where to connect.
    pub url: Option<String>,
}

/// Prepares a room for a session: it exists, with the right owner, before the session joins it.
#[derive(Debug, Message)]
#[rtype(result = "Result<OpenRoom, RoomsError>")]
pub struct EnterRoom {
    pub access: Access,
    pub room: String,
    /// The identity of the session in it.
    pub identity: String,
}

/// A room that a session may join.
#[derive(Clone)]
pub struct OpenRoom {
    /// Its provider.
    pub provider: Arc<dyn RoomProvider>,
    /// Whether it was created for this session.
    pub created: bool,
}

/// Whether a session may stay in a room of a deployment that it has joined anew: a deployment that has forgotten the room has
/// forgotten whose it was, and lets anybody join. A room that is nobody's is the tenant's again.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Result<(), RoomsError>")]
pub struct ReturnToRoom {
    pub access: Access,
    pub room: String,
}

/// Lists the rooms that a caller may see.
#[derive(Debug, Message)]
#[rtype(result = "Result<Vec<Room>, RoomsError>")]
pub struct ListRooms {
    pub access: Access,
}

/// Shows a room with its participants.
#[derive(Debug, Message)]
#[rtype(result = "Result<(Room, Vec<ParticipantInfo>), RoomsError>")]
pub struct ShowRoom {
    pub access: Access,
    pub room: String,
}

/// Removes a participant.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), RoomsError>")]
pub struct RemoveParticipant {
    pub access: Access,
    pub room: String,
    pub identity: String,
}

/// Mutes or unmutes a track.
#[derive(Debug, Message)]
#[rtype(result = "Result<TrackInfo, RoomsError>")]
pub struct MuteTrack {
    pub access: Access,
    pub room: String,
    pub identity: String,
    /// Which.
    pub track: String,
    /// Whether it is muted or unmuted.
    pub muted: bool,
}

/// Checks whether the `Authorization` of a posted event is signed by the room provider.
#[derive(Message)]
#[rtype(result = "Result<(), RoomsError>")]
pub struct CheckSignature(pub String);

/// Takes a posted event, if the room provider has signed it.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), RoomsError>")]
pub struct TakeEvent(pub SignedEvent);

/// An event of a room of this process.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RoomHappening(pub Arc<WebhookEvent>);

pub struct RoomRegistry {
    rooms: Option<Rooms>,
    calls: Option<Recipient<CallJoined>>,
}

/// The settings of the registry.
#[derive(Clone)]
pub struct Rooms {
    /// The room provider.
    pub provider: Arc<dyn RoomProvider>,
    /// How long a token is valid.
    pub token_lifetime: Duration,
    /// Whether a room without an owner is claimed for the first tenant that asks for a token.
    pub claim_unowned: bool,
    /// Whether authentication is on: then the rooms of calls have an owner.
    pub guarded: bool,
}

/// What became of the wish that a room be its call's owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is.
    Owned,
    /// There is a call of another owner's: the later one must go.
    Occupied,
}

impl RoomRegistry {
    /// A registry of these rooms; `None` where there are none.
    pub const fn new(rooms: Option<Rooms>) -> Self {
        Self { rooms, calls: None }
    }

    /// The same, with a recipient for telephones that join a room.
    #[must_use]
    pub fn telling(self, calls: Recipient<CallJoined>) -> Self {
        Self {
            calls: Some(calls),
            ..self
        }
    }

    fn rooms(&self) -> Result<Rooms, RoomsError> {
        self.rooms.clone().ok_or(RoomsError::NotConfigured)
    }
}

impl Rooms {
    /// The room with its participants, if this caller may see it.
    pub(super) async fn look_into(
        &self,
        access: &Access,
        name: &str,
    ) -> Result<(Room, Vec<ParticipantInfo>), RoomsError> {
        let seen = self.provider.look_into(name, access).await?;
        seen.ok_or(RoomsError::NoRoom)
    }

    /// The room; `None` if it had to be created with this metadata.
    async fn found_or_made(
        &self,
        name: &str,
        metadata: &str,
        by: &Party,
    ) -> Result<Option<Room>, RoomsError> {
        if let Some(room) = self.provider.room(name).await? {
            return Ok(Some(room));
        }
        Ok(match self.provider.create(name, metadata, by).await? {
            Creation::Created => None,
            Creation::Exists(room) => Some(*room),
        })
    }

    /// Makes sure that the room exists and is the tenant's; whether it was created.
    async fn claim(&self, name: &str, tenant: &TenantId) -> Result<bool, RoomsError> {
        let tenants = Owner::Tenant(tenant.clone());
        let (party, metadata) = (tenants.party(), tenants.in_place_of(""));
        for _ in 0..MOST_ATTEMPTS {
            let made = self.found_or_made(name, &metadata, &party);
            let Some(room) = made.await? else {
                return Ok(true);
            };
            match Owner::of(&room.metadata) {
                Owner::Tenant(owner) if owner == *tenant => return Ok(false),
                Owner::Nobody if self.claim_unowned && !self.has_call(name).await? => {
                    if self.give_to(&room, &tenants, None).await? {
                        return Ok(false);
                    }
                }
                Owner::Nobody | Owner::Operator | Owner::Tenant(_) | Owner::Unknown => {
                    return Err(RoomsError::AccessDenied);
                }
            }
        }
        Err(self.restless())
    }

    /// Claims an existing room for the tenant, unless it has another owner.
    pub(super) async fn give(&self, name: &str, tenant: &TenantId) -> Result<(), RoomsError> {
        for _ in 0..MOST_ATTEMPTS {
            let room = self.provider.room(name).await?.ok_or(RoomsError::NoRoom)?;
            match Owner::of(&room.metadata) {
                Owner::Tenant(owner) if owner == *tenant => return Ok(()),
                Owner::Nobody => {
                    let tenants = Owner::Tenant(tenant.clone());
                    if self.give_to(&room, &tenants, None).await? {
                        return Ok(());
                    }
                }
                Owner::Operator | Owner::Tenant(_) | Owner::Unknown => {
                    return Err(RoomsError::AccessDenied);
                }
            }
        }
        Err(self.restless())
    }

    /// Makes sure that a room that a telephone has joined belongs to the owner of the call. With `comes_in`, an inbound call,
    /// the owner takes the room over from another one, unless another call is in it.
    pub(super) async fn take(
        &self,
        name: &str,
        owner: &Owner,
        caller: &str,
        comes_in: bool,
    ) -> Result<Taken, RoomsError> {
        for _ in 0..MOST_ATTEMPTS {
            let room = self.provider.room(name).await?.ok_or(RoomsError::NoRoom)?;
            let before = Owner::of(&room.metadata);
            let free = match &before {
                Owner::Nobody => true,
                // Unreadable metadata means the operator's room.
                Owner::Unknown if *owner == Owner::Operator => return Ok(Taken::Owned),
                before if before == owner => return Ok(Taken::Owned),
                // The rooms of this process claim it for its call before the caller joins.
                _ if !comes_in || self.provider.keeps_owners() => return Ok(Taken::Owned),
                Owner::Operator | Owner::Tenant(_) | Owner::Unknown => false,
            };
            if !free && self.has_call_beside(name, caller).await? {
                return Ok(Taken::Occupied);
            }
            if self.give_to(&room, owner, Some(caller)).await? {
                return Ok(Taken::Owned);
            }
        }
        Err(self.restless())
    }

    /// Changes the owner of a room that has not changed meanwhile, and removes those who may not be in it then; whether it
    /// did.
    async fn give_to(
        &self,
        room: &Room,
        owner: &Owner,
        caller: Option<&str>,
    ) -> Result<bool, RoomsError> {
        let metadata = owner.in_place_of(&room.metadata);
        let replaced = self
            .provider
            .replace_metadata(&room.name, &room.metadata, &metadata);
        if !replaced.await? {
            return Ok(false);
        }
        if !self.provider.keeps_owners() {
            let before = Owner::of(&room.metadata);
            self.send_out(&room.name, &before, caller).await?;
        }
        Ok(true)
    }

    /// Sends out who may not be in a room that has just become somebody's. A deployment does not say on whose behalf its
    /// participants are there: of a room that was a tenant's nobody stays but the caller, of every other everybody but
    /// sessions without a token.
    async fn send_out(
        &self,
        name: &str,
        before: &Owner,
        caller: Option<&str>,
    ) -> Result<(), RoomsError> {
        let others = self.provider.participants(name).await?;
        let may_not_stay = |other: &&ParticipantInfo| {
            Some(other.identity.as_str()) != caller
                && (matches!(before, Owner::Tenant(_)) || is_public(other))
        };
        let mut failed = Ok(());
        for other in others.iter().filter(may_not_stay) {
            let sent = self.send_away(name, &other.identity).await;
            failed = failed.and(sent);
        }
        failed
    }

    /// Sends somebody away who may not be in a room. It is tried again: nothing else would see to it.
    pub(super) async fn send_away(&self, name: &str, identity: &str) -> Result<(), RoomsError> {
        metrics::removed_by_owner();
        tracing::info!(
            provider = self.provider.slug(),
            "somebody is removed from a room that is somebody else's now"
        );
        let mut removed = Ok(());
        for _ in 0..MOST_ATTEMPTS {
            let everything = Access::anonymous();
            removed = match self.provider.remove(name, identity, &everything).await {
                // The participant has left meanwhile.
                Err(RoomError {
                    kind: RoomErrorKind::NoRoom | RoomErrorKind::NotFound,
                    ..
                }) => return Ok(()),
                removed => removed,
            };
            if removed.is_ok() {
                break;
            }
        }
        removed.map_err(RoomsError::Removal)
    }

    /// Whether there is a telephone call in a room.
    async fn has_call(&self, name: &str) -> Result<bool, RoomsError> {
        let everybody = self.provider.participants(name).await?;
        Ok(everybody.iter().any(|one| one.kind() == Kind::Sip))
    }

    /// Whether there is another inbound call in a room.
    async fn has_call_beside(&self, name: &str, caller: &str) -> Result<bool, RoomsError> {
        let everybody = self.provider.participants(name).await?;
        let is_other = |one: &ParticipantInfo| {
            one.kind() == Kind::Sip && one.identity != caller && is_inbound(one)
        };
        Ok(everybody.iter().any(is_other))
    }

    fn restless(&self) -> RoomsError {
        RoomsError::Provider(RoomError {
            provider: self.provider.slug(),
            kind: RoomErrorKind::Unavailable,
            message: "others keep changing this room; try again".to_owned(),
        })
    }

    /// Sees to it that there is a room for a call: one that is made is the caller's, one that is there must be (or the
    /// caller has no tenant). One of nobody is the operator's from then on, while authentication is on.
    pub(super) async fn open_for_call(
        &self,
        access: &Access,
        name: &str,
    ) -> Result<Owner, RoomsError> {
        let callers = match access.tenant() {
            Some(tenant) => Owner::Tenant(tenant.clone()),
            None if self.guarded => Owner::Operator,
            None => Owner::Nobody,
        };
        for _ in 0..MOST_ATTEMPTS {
            let metadata = callers.in_place_of("");
            let party = access.party();
            let made = self.found_or_made(name, &metadata, &party);
            let Some(room) = made.await? else {
                return Ok(callers);
            };
            match Owner::of(&room.metadata) {
                Owner::Nobody if callers == Owner::Operator => {
                    if self.give_to(&room, &callers, None).await? {
                        return Ok(callers);
                    }
                }
                owner if owner.lets(access) => return Ok(owner),
                _ => return Err(RoomsError::NoRoom),
            }
        }
        Err(self.restless())
    }

    /// Somebody in a room that this caller may see, and whose room it is.
    pub(super) async fn seen(
        &self,
        access: &Access,
        room: &str,
        identity: &str,
    ) -> Result<(Owner, ParticipantInfo), RoomsError> {
        if access.is_public() {
            return Err(RoomsError::NoParticipant);
        }
        let (room, everybody) = self.look_into(access, room).await?;
        Ok((Owner::of(&room.metadata), find(everybody, identity)?))
    }

    async fn enter(&self, wish: EnterRoom) -> Result<OpenRoom, RoomsError> {
        let created = if let Some(tenant) = wish.access.tenant() {
            self.claim(&wish.room, tenant).await?
        } else {
            let party = wish.access.party();
            match self.found_or_made(&wish.room, "", &party).await? {
                None => true,
                Some(room) => {
                    if !Owner::of(&room.metadata).lets(&wish.access) {
                        return Err(RoomsError::AccessDenied);
                    }
                    if wish.access.is_public() {
                        self.check_stranger(&wish).await?;
                    }
                    false
                }
            }
        };
        Ok(OpenRoom {
            provider: Arc::clone(&self.provider),
            created,
        })
    }

    async fn take_back(&self, wish: &ReturnToRoom) -> Result<(), RoomsError> {
        if let Some(tenant) = wish.access.tenant() {
            return self.give(&wish.room, tenant).await;
        }
        let room = self.provider.room(&wish.room).await?;
        let room = room.ok_or(RoomsError::NoRoom)?;
        if Owner::of(&room.metadata).lets(&wish.access) {
            Ok(())
        } else {
            Err(RoomsError::AccessDenied)
        }
    }

    /// Whoever nobody knows is in no room of a call, and puts nobody out. The rooms of this process look again when the
    /// session joins.
    async fn check_stranger(&self, wish: &EnterRoom) -> Result<(), RoomsError> {
        let everybody = self.provider.participants(&wish.room).await?;
        if everybody.iter().any(|one| one.kind() == Kind::Sip) {
            return Err(RoomsError::AccessDenied);
        }
        if everybody.iter().any(|one| one.identity == wish.identity) {
            return Err(RoomsError::IdentityTaken);
        }
        Ok(())
    }

    async fn admit(&self, wish: Admit) -> Result<Admission, RoomsError> {
        if let Some(tenant) = wish.access.tenant() {
            self.claim(&wish.room, tenant).await?;
        }
        let pass = RoomPass {
            room: &wish.room,
            identity: &wish.identity,
            name: &wish.name,
            lifetime: self.token_lifetime,
            tenant: wish.access.tenant(),
            supervises: wish.supervises.as_ref(),
        };
        Ok(Admission {
            token: self.provider.token(&pass)?,
            url: self.provider.url().map(str::to_owned),
        })
    }

    async fn remove(&self, wish: RemoveParticipant) -> Result<(), RoomsError> {
        let (_, everybody) = self.look_into(&wish.access, &wish.room).await?;
        find(everybody, &wish.identity)?;
        let RemoveParticipant {
            access,
            room,
            identity,
        } = &wish;
        let removed = self.provider.remove(room, identity, access).await;
        removed.map_err(|error| match error.kind {
            // It has become another's meanwhile.
            RoomErrorKind::NoRoom => RoomsError::NoRoom,
            // The participant has left meanwhile.
            RoomErrorKind::NotFound => RoomsError::NoParticipant,
            _ => RoomsError::Removal(error),
        })
    }

    async fn mute(&self, wish: MuteTrack) -> Result<TrackInfo, RoomsError> {
        let (_, everybody) = self.look_into(&wish.access, &wish.room).await?;
        let somebody = find(everybody, &wish.identity)?;
        if !somebody.tracks.iter().any(|track| track.sid == wish.track) {
            return Err(RoomsError::NoTrack);
        }
        let track = TrackOf {
            room: &wish.room,
            identity: &wish.identity,
            sid: &wish.track,
        };
        let muted = self.provider.mute(&track, wish.muted, &wish.access).await;
        muted.map_err(|error| match error.kind {
            RoomErrorKind::NoRoom => RoomsError::NoRoom,
            RoomErrorKind::NotFound => RoomsError::NoTrack,
            _ => RoomsError::Mute(error),
        })
    }
}

/// The participant with this identity.
fn find(everybody: Vec<ParticipantInfo>, identity: &str) -> Result<ParticipantInfo, RoomsError> {
    let mut everybody = everybody.into_iter();
    let somebody = everybody.find(|somebody| somebody.identity == identity);
    somebody.ok_or(RoomsError::NoParticipant)
}

/// Whether this is a session without a token in a room of a deployment. It cannot change what its attributes say.
fn is_public(participant: &ParticipantInfo) -> bool {
    let access = participant.attributes.get(key::ACCESS);
    access.is_some_and(|access| access == key::PUBLIC)
}

impl Actor for RoomRegistry {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        context.set_mailbox_capacity(1024);
    }
}

impl Handler<Admit> for RoomRegistry {
    type Result = ResponseFuture<<Admit as Message>::Result>;

    fn handle(&mut self, wish: Admit, _: &mut Context<Self>) -> Self::Result {
        let rooms = self.rooms();
        Box::pin(async move { rooms?.admit(wish).await })
    }
}

impl Handler<EnterRoom> for RoomRegistry {
    type Result = ResponseFuture<<EnterRoom as Message>::Result>;

    fn handle(&mut self, wish: EnterRoom, _: &mut Context<Self>) -> Self::Result {
        let rooms = self.rooms();
        Box::pin(async move { rooms?.enter(wish).await })
    }
}

impl Handler<ReturnToRoom> for RoomRegistry {
    type Result = ResponseFuture<<ReturnToRoom as Message>::Result>;

    fn handle(&mut self, wish: ReturnToRoom, _: &mut Context<Self>) -> Self::Result {
        let rooms = self.rooms();
        Box::pin(async move { rooms?.take_back(&wish).await })
    }
}

impl Handler<ListRooms> for RoomRegistry {
    type Result = ResponseFuture<<ListRooms as Message>::Result>;

    fn handle(&mut self, wish: ListRooms, _: &mut Context<Self>) -> Self::Result {
        let rooms = self.rooms();
        Box::pin(async move {
            let mut list = rooms?.provider.rooms().await?;
            list.retain(|room| Owner::of(&room.metadata).lets(&wish.access));
            Ok(list)
        })
    }
}

impl Handler<ShowRoom> for RoomRegistry {
    type Result = ResponseFuture<<ShowRoom as Message>::Result>;

    fn handle(&mut self, wish: ShowRoom, _: &mut Context<Self>) -> Self::Result {
        let rooms = self.rooms();
        Box::pin(async move { rooms?.look_into(&wish.access, &wish.room).await })
    }
}

impl Handler<RemoveParticipant> for RoomRegistry {
    type Result = ResponseFuture<<RemoveParticipant as Message>::Result>;

    fn handle(&mut self, wish: RemoveParticipant, _: &mut Context<Self>) -> Self::Result {
        let rooms = self.rooms();
        Box::pin(async move { rooms?.remove(wish).await })
    }
}

impl Handler<MuteTrack> for RoomRegistry {
    type Result = ResponseFuture<<MuteTrack as Message>::Result>;

    fn handle(&mut self, wish: MuteTrack, _: &mut Context<Self>) -> Self::Result {
        let rooms = self.rooms();
        Box::pin(async move { rooms?.mute(wish).await })
    }
}

impl Handler<CheckSignature> for RoomRegistry {
    type Result = Result<(), RoomsError>;

    fn handle(
        &mut self,
        CheckSignature(authorization): CheckSignature,
        _: &mut Context<Self>,
    ) -> Self::Result {
        Ok(self.rooms()?.provider.check_signature(&authorization)?)
    }
}

impl Handler<TakeEvent> for RoomRegistry {
    type Result = ResponseFuture<<TakeEvent as Message>::Result>;

    fn handle(&mut self, TakeEvent(posted): TakeEvent, _: &mut Context<Self>) -> Self::Result {
        let event = self
            .rooms()
            .and_then(|rooms| Ok(rooms.provider.read_event(&posted)?));
        match event {
            Ok(event) => self.happened(Arc::new(event)),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }
}

impl Handler<RoomHappening> for RoomRegistry {
    type Result = ResponseFuture<()>;

    fn handle(
        &mut self,
        RoomHappening(event): RoomHappening,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let told = self.happened(event);
        // It was logged where it failed, and nobody posts it again.
        Box::pin(async { drop(told.await) })
    }
}

impl RoomRegistry {
    /// Whatever the event, it is taken: there will be some that this server does not know.
    fn happened(&self, event: Arc<WebhookEvent>) -> ResponseFuture<Result<(), RoomsError>> {
        metrics::room_event(&event.event);
        tracing::debug!(event = event.event, id = event.id, "a room's event");
        let (Some(calls), Some(rooms), true) = (&self.calls, &self.rooms, is_guest(&event)) else {
            return Box::pin(async { Ok(()) });
        };
        let joined = CallJoined {
            event,
            rooms: rooms.clone(),
        };
        let told = calls.send(joined);
        Box::pin(async move {
            told.await
                .unwrap_or_else(|error| Err(RoomsError::Untold(error.to_string())))
        })
    }
}
