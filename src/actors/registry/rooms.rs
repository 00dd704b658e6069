//! Rooms, for the doors: whose they are, and what a caller may do in them. The registry holds no copy of what the room
//! provider knows; it asks, decides, and lets the provider act (protocol, sections 4 and 5).
//!
//! A room's owner is `auth_id` of its metadata. A room of somebody else looks as if it were not there, save where a token
//! for it is asked for.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use livekit_protocol::{ParticipantInfo, Room, TrackInfo, WebhookEvent};
use serde_json::{Map, Value};

use super::hooks::CallJoined;
use crate::auth::{Access, TenantId};
use crate::hooks::announcement::is_call;
use crate::providers::{
    Creation, EventError, RoomError, RoomErrorKind, RoomPass, RoomProvider, SignedEvent, TrackOf,
};
use crate::telemetry::metrics;

/// How often a room is claimed anew because others change it meanwhile.
const MOST_ATTEMPTS: usize = 5;

/// Why something was not done with a room.
#[derive(Debug, thiserror::Error)]
pub enum RoomsError {
    /// There are no rooms.
    #[error("this server has no rooms: rtc.mode is off")]
    NotConfigured,
    /// The room is another's.
    #[error("room_name: this room belongs to somebody else")]
    AccessDenied,
    /// No such room, or another's.
    #[error("room_name: there is no such room")]
    NoRoom,
    /// Nobody of this identity.
    #[error("participant_identity: nobody in this room is called so")]
    NoParticipant,
    /// No such track.
    #[error("track_sid: the participant has no such track")]
    NoTrack,
    /// The provider failed.
    #[error(transparent)]
    Provider(#[from] RoomError),
    /// It failed to remove somebody.
    #[error(transparent)]
    Removal(RoomError),
    /// It failed to mute a track.
    #[error(transparent)]
    Mute(RoomError),
    /// What was posted is no event of these rooms.
    #[error(transparent)]
    Event(#[from] EventError),
    /// What happened can not be told to those who have to know it.
    #[error("the call cannot be told to its hook: {0}")]
    Untold(String),
}

/// Asks for a token. With a tenant the room is made, and becomes the tenant's, before there is one.
#[derive(Debug, Message)]
#[rtype(result = "Result<Admission, RoomsError>")]
pub struct Admit {
    /// Who asks.
    pub access: Access,
    /// The room.
    pub room: String,
    /// Who is to join.
    pub identity: String,
    /// What others read.
    pub name: String,
}

/// A token, and where it is good; `None` is this server's own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The token.
    pub token: String,
    /// Where to connect.
    pub url: Option<String>,
}

/// Opens a room to a session: it is there, and of the right owner, before the session joins it.
#[derive(Debug, Message)]
#[rtype(result = "Result<OpenRoom, RoomsError>")]
pub struct EnterRoom {
    /// Whose session it is.
    pub access: Access,
    /// The room.
    pub room: String,
}

/// A room that a session may join.
#[derive(Clone)]
pub struct OpenRoom {
    /// Who keeps it.
    pub provider: Arc<dyn RoomProvider>,
    /// Whether it was not there before.
    pub created: bool,
}

/// Lists the rooms that somebody may see.
#[derive(Debug, Message)]
#[rtype(result = "Result<Vec<Room>, RoomsError>")]
pub struct ListRooms {
    /// Who asks.
    pub access: Access,
}

/// Shows one room and who is in it.
#[derive(Debug, Message)]
#[rtype(result = "Result<(Room, Vec<ParticipantInfo>), RoomsError>")]
pub struct ShowRoom {
    /// Who asks.
    pub access: Access,
    /// The room.
    pub room: String,
}

/// Sends somebody out.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), RoomsError>")]
pub struct RemoveParticipant {
    /// Who asks.
    pub access: Access,
    /// The room.
    pub room: String,
    /// Who is to go.
    pub identity: String,
}

/// Mutes or unmutes a track.
#[derive(Debug, Message)]
#[rtype(result = "Result<TrackInfo, RoomsError>")]
pub struct MuteTrack {
    /// Who asks.
    pub access: Access,
    /// The room.
    pub room: String,
    /// Whose track.
    pub identity: String,
    /// Which.
    pub track: String,
    /// Whether it is to be silent.
    pub muted: bool,
}

/// Takes an event that somebody has posted, if the rooms have signed it.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), RoomsError>")]
pub struct TakeEvent(pub SignedEvent);

/// Something has happened in a room.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RoomHappening(pub Arc<WebhookEvent>);

/// The actor.
pub struct RoomRegistry {
    rooms: Option<Rooms>,
    calls: Option<Recipient<CallJoined>>,
}

/// How rooms are given away.
#[derive(Clone)]
pub struct Rooms {
    /// Who keeps them.
    pub provider: Arc<dyn RoomProvider>,
    /// How long a token can be used.
    pub token_lifetime: Duration,
    /// Whether a room without an owner becomes that of the first tenant who asks for a token.
    pub claim_unowned: bool,
}

impl RoomRegistry {
    /// A registry of these rooms; `None` where there are none.
    pub const fn new(rooms: Option<Rooms>) -> Self {
        Self { rooms, calls: None }
    }

    /// The same, with somebody who is told when a telephone joins a room.
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

/// Whose a room is, by its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// Nobody's.
    Nobody,
    /// A tenant's.
    Tenant(TenantId),
    /// What nobody can read counts as another's.
    Unknown,
}

impl Owner {
    /// Reads a room's metadata.
    pub fn of(metadata: &str) -> Self {
        if metadata.is_empty() {
            return Self::Nobody;
        }
        let Ok(fields) = serde_json::from_str::<Map<String, Value>>(metadata) else {
            return Self::Unknown;
        };
        match fields.get("auth_id") {
            None | Some(Value::Null) => Self::Nobody,
            Some(Value::String(id)) => TenantId::new(id).map_or(Self::Unknown, Self::Tenant),
            Some(_) => Self::Unknown,
        }
    }

    /// The tenant, if it is one's.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::Tenant(tenant) => Some(tenant.as_str()),
            Self::Nobody | Self::Unknown => None,
        }
    }

    /// Whether this caller may see the room.
    pub fn lets(&self, access: &Access) -> bool {
        match self {
            Self::Nobody => access.may_see(None),
            Self::Tenant(owner) => access.may_see(Some(owner)),
            Self::Unknown => *access == Access::anonymous(),
        }
    }
}

/// The same metadata with an owner; all other keys stay.
fn owned(metadata: &str, tenant: &TenantId) -> String {
    let mut fields: Map<String, Value> = serde_json::from_str(metadata).unwrap_or_default();
    fields.insert("auth_id".to_owned(), tenant.as_str().into());
    Value::Object(fields).to_string()
}

impl Rooms {
    /// The room, if this caller may see it.
    async fn visible(&self, access: &Access, name: &str) -> Result<Room, RoomsError> {
        let room = self.provider.room(name).await?.ok_or(RoomsError::NoRoom)?;
        if Owner::of(&room.metadata).lets(access) {
            Ok(room)
        } else {
            Err(RoomsError::NoRoom)
        }
    }

    /// The room, made with this metadata if it was not there; `None` says that it was made.
    async fn found_or_made(&self, name: &str, metadata: &str) -> Result<Option<Room>, RoomsError> {
        if let Some(room) = self.provider.room(name).await? {
            return Ok(Some(room));
        }
        Ok(match self.provider.create(name, metadata).await? {
            Creation::Created => None,
            Creation::Exists(room) => Some(*room),
        })
    }

    /// Sees to it that the room is there and the tenant's; whether it was made.
    async fn claim(&self, name: &str, tenant: &TenantId) -> Result<bool, RoomsError> {
        for _ in 0..MOST_ATTEMPTS {
            let Some(room) = self.found_or_made(name, &owned("", tenant)).await? else {
                return Ok(true);
            };
            match Owner::of(&room.metadata) {
                Owner::Tenant(owner) if owner == *tenant => return Ok(false),
                Owner::Nobody if self.claim_unowned => {
                    let metadata = owned(&room.metadata, tenant);
                    let replaced = self
                        .provider
                        .replace_metadata(name, &room.metadata, &metadata);
                    if replaced.await? {
                        return Ok(false);
                    }
                }
                Owner::Nobody | Owner::Tenant(_) | Owner::Unknown => {
                    return Err(RoomsError::AccessDenied);
                }
            }
        }
        Err(self.restless())
    }

    /// Makes a room that there is the tenant's, unless it is another's already.
    pub(super) async fn give(&self, name: &str, tenant: &TenantId) -> Result<(), RoomsError> {
        for _ in 0..MOST_ATTEMPTS {
            let room = self.provider.room(name).await?.ok_or(RoomsError::NoRoom)?;
            match Owner::of(&room.metadata) {
                Owner::Tenant(owner) if owner == *tenant => return Ok(()),
                Owner::Nobody => {
                    let metadata = owned(&room.metadata, tenant);
                    let replaced = self
                        .provider
                        .replace_metadata(name, &room.metadata, &metadata);
                    if replaced.await? {
                        return Ok(());
                    }
                }
                Owner::Tenant(_) | Owner::Unknown => return Err(RoomsError::AccessDenied),
            }
        }
        Err(self.restless())
    }

    fn restless(&self) -> RoomsError {
        RoomsError::Provider(RoomError {
            provider: self.provider.slug(),
            kind: RoomErrorKind::Unavailable,
            message: "others keep changing this room; try again".to_owned(),
        })
    }

    /// Sees to it that there is a room for a call: one that is made is the caller's, one that is there must be (or the
    /// caller has no tenant).
    pub(super) async fn open_for_call(
        &self,
        access: &Access,
        name: &str,
    ) -> Result<Owner, RoomsError> {
        let metadata = access
            .tenant()
            .map_or_else(String::new, |tenant| owned("", tenant));
        let Some(room) = self.found_or_made(name, &metadata).await? else {
            return Ok(Owner::of(&metadata));
        };
        let owner = Owner::of(&room.metadata);
        if owner.lets(access) {
            Ok(owner)
        } else {
            Err(RoomsError::NoRoom)
        }
    }

    /// Somebody in a room that this caller may see, and whose room it is.
    pub(super) async fn seen(
        &self,
        access: &Access,
        room: &str,
        identity: &str,
    ) -> Result<(Owner, ParticipantInfo), RoomsError> {
        let visible = self.visible(access, room).await?;
        let participant = self.participant(room, identity).await?;
        Ok((Owner::of(&visible.metadata), participant))
    }

    async fn enter(&self, wish: EnterRoom) -> Result<OpenRoom, RoomsError> {
        let created = if let Some(tenant) = wish.access.tenant() {
            self.claim(&wish.room, tenant).await?
        } else {
            match self.found_or_made(&wish.room, "").await? {
                None => true,
                Some(room) if Owner::of(&room.metadata).lets(&wish.access) => false,
                Some(_) => return Err(RoomsError::AccessDenied),
            }
        };
        Ok(OpenRoom {
            provider: Arc::clone(&self.provider),
            created,
        })
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
        };
        Ok(Admission {
            token: self.provider.token(&pass)?,
            url: self.provider.url().map(str::to_owned),
        })
    }

    async fn participant(&self, room: &str, identity: &str) -> Result<ParticipantInfo, RoomsError> {
        let everybody = self.provider.participants(room).await?;
        let somebody = everybody
            .into_iter()
            .find(|somebody| somebody.identity == identity);
        somebody.ok_or(RoomsError::NoParticipant)
    }

    async fn remove(&self, wish: RemoveParticipant) -> Result<(), RoomsError> {
        self.visible(&wish.access, &wish.room).await?;
        self.participant(&wish.room, &wish.identity).await?;
        let removed = self.provider.remove(&wish.room, &wish.identity).await;
        removed.map_err(|error| match error.kind {
            // They have left meanwhile.
            RoomErrorKind::NotFound => RoomsError::NoParticipant,
            _ => RoomsError::Removal(error),
        })
    }

    async fn mute(&self, wish: MuteTrack) -> Result<TrackInfo, RoomsError> {
        self.visible(&wish.access, &wish.room).await?;
        let somebody = self.participant(&wish.room, &wish.identity).await?;
        if !somebody.tracks.iter().any(|track| track.sid == wish.track) {
            return Err(RoomsError::NoTrack);
        }
        let track = TrackOf {
            room: &wish.room,
            identity: &wish.identity,
            sid: &wish.track,
        };
        let muted = self.provider.mute(&track, wish.muted).await;
        muted.map_err(|error| match error.kind {
            RoomErrorKind::NotFound => RoomsError::NoTrack,
            _ => RoomsError::Mute(error),
        })
    }
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
        Box::pin(async move {
            let rooms = rooms?;
            let room = rooms.visible(&wish.access, &wish.room).await?;
            let participants = rooms.provider.participants(&wish.room).await?;
            Ok((room, participants))
        })
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
        let (Some(calls), Some(rooms), true) = (&self.calls, &self.rooms, is_call(&event)) else {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: &str) -> TenantId {
        TenantId::new(id).unwrap()
    }

    #[test]
    fn a_room_belongs_to_whom_its_metadata_names() {
        for (metadata, owner) in [
            ("", Owner::Nobody),
            ("{}", Owner::Nobody),
            (r#"{"auth_id":null}"#, Owner::Nobody),
            (r#"{"auth_id":"a","topic":"b"}"#, Owner::Tenant(tenant("a"))),
            (r#"{"auth_id":""}"#, Owner::Unknown),
            (r#"{"auth_id":7}"#, Owner::Unknown),
            ("[]", Owner::Unknown),
            ("null", Owner::Unknown),
            ("free text", Owner::Unknown),
        ] {
            assert_eq!(Owner::of(metadata), owner, "{metadata}");
        }
    }

    #[test]
    fn a_new_owner_leaves_other_keys_as_they_are() {
        let metadata = owned(r#"{"topic":"tea","auth_id":null}"#, &tenant("a"));
        let fields: Value = serde_json::from_str(&metadata).unwrap();
        assert_eq!(fields, serde_json::json!({"topic": "tea", "auth_id": "a"}));
    }

    #[test]
    fn what_nobody_can_read_is_shown_to_those_alone_who_may_see_everything() {
        assert!(Owner::Unknown.lets(&Access::anonymous()));
        assert!(!Owner::of("free text").lets(&Access::of_tenant("a")));
    }
}
