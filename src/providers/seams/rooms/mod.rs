//! The seam to whoever keeps rooms: the server in this process or a LiveKit deployment. Rooms and participants are
//! described in LiveKit's own messages, which both speak. Whose rooms they are stands in their metadata: both ways of changing
//! it are such that of two who race one finds out that it has lost, and whoever does something in a room says on whose behalf
//! ([`Access`]), so that it is not done in one that has become somebody else's meanwhile.

pub mod egress;
mod event;
pub mod key;
pub mod limits;
pub mod link;
mod now;
pub mod packets;
pub mod shapes;
pub mod telephone;
pub mod token;
pub mod view;
pub mod wire;

use std::time::Duration;

use async_trait::async_trait;
use livekit_protocol::{ParticipantInfo, Room, TrackInfo, WebhookEvent};

pub use event::{EventError, SignedEvent};
pub use key::ApiKey;
pub use now::Now;
use vivavoce_auth::{Access, Owner, TenantId};
use vivavoce_quotas::{Party, Refused};

/// Keeps rooms.
#[async_trait]
pub trait RoomProvider: Send + Sync {
    /// Its name in `rtc.mode` and in messages.
    fn slug(&self) -> &'static str;

    /// Where clients connect (`ws://` or `wss://`); `None` where that is this server's own address.
    fn url(&self) -> Option<&str>;

    /// All rooms.
    async fn rooms(&self) -> Result<Vec<Room>, RoomError>;

    /// One of them.
    async fn room(&self, name: &str) -> Result<Option<Room>, RoomError>;

    /// A room and who is in it, if there is one of this name for this caller; as one step where the rooms know whose they are.
    /// Where they do not, the room is the caller's before and after it is looked into.
    async fn look_into(
        &self,
        name: &str,
        by: &Access,
    ) -> Result<Option<(Room, Vec<ParticipantInfo>)>, RoomError> {
        let before = self.room(name).await?;
        if before.is_none_or(|room| !Owner::of(&room.metadata).lets(by)) {
            return Ok(None);
        }
        let participants = self.participants(name).await?;
        let after = self.room(name).await?;
        let after = after.filter(|room| Owner::of(&room.metadata).lets(by));
        Ok(after.map(|room| (room, participants)))
    }

    /// Who is in a room; nobody in one that there is not.
    async fn participants(&self, room: &str) -> Result<Vec<ParticipantInfo>, RoomError>;

    /// Makes a room with this metadata unless there is one of its name. It counts for whoever makes it.
    async fn create(&self, name: &str, metadata: &str, by: &Party) -> Result<Creation, RoomError>;

    /// Whether the rooms themselves remove whoever may not be in one by the owner in its metadata, and let nobody in who may
    /// not. Where they do not, it is done from outside, a moment later.
    fn keeps_owners(&self) -> bool {
        false
    }

    /// Changes a room's metadata if it still is `expected`, and says whether it did.
    async fn replace_metadata(
        &self,
        room: &str,
        expected: &str,
        metadata: &str,
    ) -> Result<bool, RoomError>;

    /// Ends a room and sends everybody out; one that there is not for this caller is ended.
    async fn delete(&self, room: &str, by: &Access) -> Result<(), RoomError>;

    /// The same for a room in which nobody is left but perhaps this caller under this identity; any other stays.
    async fn delete_deserted(
        &self,
        room: &str,
        identity: &str,
        by: &Access,
    ) -> Result<(), RoomError> {
        let others = self.participants(room).await?;
        if others.iter().all(|other| other.identity == identity) {
            self.delete(room, by).await?;
        }
        Ok(())
    }

    /// Shows whether a room is being recorded, where that can be shown.
    async fn show_recording(&self, room: &str, recorded: bool) -> Result<(), RoomError>;

    /// Sends somebody out of a room.
    async fn remove(&self, room: &str, identity: &str, by: &Access) -> Result<(), RoomError>;

    /// Moves a telephone to another room, which this caller must see as well.
    async fn move_to(
        &self,
        _room: &str,
        _identity: &str,
        _destination: &str,
        _by: &Access,
    ) -> Result<(), RoomError> {
        Err(RoomError {
            provider: self.slug(),
            kind: RoomErrorKind::Refused,
            message: "nobody is moved to another room here".to_owned(),
        })
    }

    /// Mutes or unmutes a track for everybody.
    async fn mute(
        &self,
        track: &TrackOf<'_>,
        muted: bool,
        by: &Access,
    ) -> Result<TrackInfo, RoomError>;

    /// Joins a room as an agent. The answer comes when the room was joined; its media may still be on its way.
    async fn connect(&self, join: link::Join) -> Result<link::RoomLink, RoomError>;

    /// Who carries calls into these rooms, if anybody.
    fn telephone(&self) -> Option<std::sync::Arc<dyn telephone::Telephone>> {
        None
    }

    /// A token that opens one room.
    fn token(&self, pass: &RoomPass<'_>) -> Result<String, RoomError>;

    /// Whether the rooms have signed, for now, the event that this `Authorization` comes before.
    fn check_signature(&self, authorization: &str) -> Result<(), EventError>;

    /// Reads an event that the rooms have posted to us.
    fn read_event(&self, event: &SignedEvent) -> Result<WebhookEvent, EventError>;
}

/// What became of a wish to make a room.
#[derive(Debug, Clone, PartialEq)]
pub enum Creation {
    /// It is there now.
    Created,
    /// Another one had the name.
    Exists(Box<Room>),
}

/// A track, by where it is.
#[derive(Debug, Clone, Copy)]
pub struct TrackOf<'a> {
    /// The room.
    pub room: &'a str,
    /// Whose it is.
    pub identity: &'a str,
    /// Its id.
    pub sid: &'a str,
}

/// What a token is to say. It grants joining this room, publishing, subscribing, data and changing one's own metadata.
#[derive(Debug, Clone, Copy)]
pub struct RoomPass<'a> {
    /// The room.
    pub room: &'a str,
    /// Who it is for.
    pub identity: &'a str,
    /// What others read.
    pub name: &'a str,
    /// How long it can be used.
    pub lifetime: Duration,
    /// The tenant who asked for it; the operator's otherwise. Rooms of this process let nobody in with another tenant's.
    pub tenant: Option<&'a TenantId>,
    /// Whether it is for somebody who supervises a conversation.
    pub supervises: Option<&'a Supervision>,
}

/// How somebody supervises a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supervision {
    /// Hears everybody, unseen and unheard.
    Listen,
    /// Is heard by participants of these identities only, where there is none by agents only.
    Whisper(Vec<String>),
}

/// What went wrong, in the distinctions that a caller acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomErrorKind {
    /// No such room, or none for whoever asks.
    NoRoom,
    /// No such participant or track; of a deployment also no such room.
    NotFound,
    /// The provider refuses it.
    Refused,
    /// The provider cannot be reached, or does not answer in time.
    Unavailable,
    /// It answered something else than it should.
    Protocol,
    /// A quota of our own is used up.
    Quota(Refused),
}

impl RoomError {
    /// Why a room was not joined.
    pub fn joining(provider: &'static str, ending: &link::Ending) -> Self {
        let kind = match ending {
            link::Ending::Network(_) => RoomErrorKind::Unavailable,
            link::Ending::Quota(refused) => RoomErrorKind::Quota(*refused),
            _ => RoomErrorKind::Refused,
        };
        Self {
            provider,
            kind,
            message: ending.to_string(),
        }
    }
}

/// A room provider's failure.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{provider}: {message}")]
pub struct RoomError {
    /// Who.
    pub provider: &'static str,
    /// What kind.
    pub kind: RoomErrorKind,
    /// What it said. Never a secret.
    pub message: String,
}
