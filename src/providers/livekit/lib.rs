//! Rooms of a LiveKit deployment, through its server API. Written against LiveKit server 1.9 and later.
//!
//! LiveKit overwrites the metadata of a room that is created twice, and knows no conditional change: what this process
//! does to one room happens one after the other, and is read back. Two processes that claim the same new room at the
//! same moment may both believe that it is theirs; the one that wrote last owns it.

pub mod egress;
pub mod link;
mod server_api;
pub mod telephone;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use dashmap::DashMap;
use livekit_protocol as proto;
use livekit_protocol::{ParticipantInfo, Room, TrackInfo, WebhookEvent};
use prost::Message;
use tokio::sync::{Mutex, OwnedMutexGuard};

use vivavoce_auth::{Access, Owner};
use vivavoce_config::{RoomMode, Rtc, RtcMode, Sip, VendorUrl};
use vivavoce_quotas::Party;

use vivavoce_seams::rooms::link::{Join, RoomLink};
use vivavoce_seams::rooms::telephone::{NewsSender, Telephone};
use vivavoce_seams::rooms::{
    ApiKey, Creation, EventError, RoomError, RoomErrorKind, RoomPass, RoomProvider, SignedEvent,
    Supervision, TrackOf,
};

use link::{Links, Options, Server};
use server_api::{ApiError, Grant, ServerApi, code};
use telephone::LiveKitTelephone;
use vivavoce_providers::transport::Transport;

const SLUG: &str = "livekit";

/// A deployment.
pub struct LiveKit {
    api: Arc<ServerApi>,
    telephone: Arc<LiveKitTelephone>,
    key: ApiKey,
    url: String,
    deployment: Server,
    patience: Duration,
    /// Started with the first of them.
    links: OnceLock<Links>,
    /// One change of a room's metadata at a time.
    changing: DashMap<String, Arc<Mutex<()>>>,
}

impl LiveKit {
    /// `url` is that of the deployment, `public_url` where clients connect. A lost link to a room is sought for `patience`.
    /// What happens to calls that are placed through it goes to `news`.
    pub fn new(
        url: &VendorUrl,
        public_url: &VendorUrl,
        key: ApiKey,
        transport: Transport,
        patience: Duration,
        news: NewsSender,
    ) -> Self {
        let api = Arc::new(ServerApi::new(url.url(), key.clone(), &transport));
        Self {
            telephone: Arc::new(LiveKitTelephone::new(Arc::clone(&api), &key, news)),
            api,
            key,
            url: public_url.socket(),
            deployment: Server {
                provider: SLUG,
                url: url.url().clone(),
                transport,
            },
            patience,
            links: OnceLock::new(),
            changing: DashMap::new(),
        }
    }

    /// The deployment that the settings name; `None` where they name none, or not all of it ([`problems`]).
    pub fn from_settings(settings: &Rtc, transport: Transport, news: NewsSender) -> Option<Self> {
        if mode(settings) != RtcMode::Livekit {
            return None;
        }
        let url = settings.url.as_ref()?;
        let key = ApiKey::from_settings(settings)?;
        Some(Self::new(
            url,
            settings.public_url.as_ref().unwrap_or(url),
            key,
            transport,
            settings.reconnect_seconds,
            news,
        ))
    }

    /// Sees to it, for as long as it takes, that those may call in whom the settings name.
    pub fn provision(&self, settings: &Sip) -> Option<impl Future<Output = ()> + use<>> {
        let inbound = telephone::Inbound::from_settings(settings)?;
        Some(telephone::provision(Arc::clone(&self.api), inbound))
    }

    /// Calls a method of the room service.
    async fn call<A: Message + Default>(
        &self,
        method: &str,
        grant: Grant<'_>,
        request: &impl Message,
    ) -> Result<A, RoomError> {
        let method = format!("RoomService/{method}");
        let answer = self.api.call(&method, grant, request).await;
        answer.map_err(RoomError::from)
    }

    async fn list(&self, names: Vec<String>) -> Result<Vec<Room>, RoomError> {
        let request = proto::ListRoomsRequest { names };
        let answer: proto::ListRoomsResponse =
            self.call("ListRooms", Grant::RoomList, &request).await?;
        Ok(answer.rooms)
    }

    fn links(&self) -> Result<&Links, RoomError> {
        if let Some(links) = self.links.get() {
            return Ok(links);
        }
        let started = Links::start().map_err(|error| RoomError {
            provider: SLUG,
            kind: RoomErrorKind::Unavailable,
            message: error.to_string(),
        })?;
        // Of two who start them at the same time one is too late, and its threads end.
        Ok(self.links.get_or_init(|| started))
    }

    /// Asks whose a room is just before something is done in it. A deployment does nothing on a condition: what remains is
    /// the time of one request.
    async fn check(&self, name: &str, by: &Access) -> Result<(), RoomError> {
        // Whoever may do everything need not be asked about.
        if *by == Access::anonymous() {
            return Ok(());
        }
        match self.room(name).await? {
            Some(room) if Owner::of(&room.metadata).lets(by) => Ok(()),
            _ => Err(RoomError {
                provider: SLUG,
                kind: RoomErrorKind::NoRoom,
                message: "there is no such room".to_owned(),
            }),
        }
    }

    /// Until what is returned is dropped, nobody else of this process changes the room's metadata.
    async fn lock(&self, room: &str) -> OwnedMutexGuard<()> {
        // Whoever finds a lock that nobody holds or waits for may remove it.
        self.changing
            .retain(|name, lock| name == room || Arc::strong_count(lock) > 1);
        let lock = Arc::clone(&self.changing.entry(room.to_owned()).or_default());
        lock.lock_owned().await
    }
}

/// Which rooms the settings mean.
pub fn mode(settings: &Rtc) -> RtcMode {
    let by_url = || match settings.url {
        Some(_) => RtcMode::Livekit,
        None => RtcMode::Embedded,
    };
    settings.mode.unwrap_or_else(by_url)
}

/// What does not fit, each with its key.
pub fn problems(settings: &Rtc, sip: &Sip) -> Vec<String> {
    if mode(settings) != RtcMode::Livekit {
        return Vec::new();
    }
    let apart = (sip.room_mode == Some(RoomMode::Call)).then(|| {
        "sip.room_mode: call needs embedded rooms: a LiveKit deployment names the rooms of its calls itself"
            .to_owned()
    });
    let missing = [
        ("rtc.url", settings.url.is_none()),
        ("rtc.api_key", settings.api_key.is_none()),
        ("rtc.api_secret", settings.api_secret.is_none()),
    ];
    let missing = missing.into_iter().filter(|(_, missing)| *missing);
    missing
        .map(|(key, _)| format!("{key}: rooms of a LiveKit deployment need it"))
        .chain(apart)
        .collect()
}

#[async_trait]
impl RoomProvider for LiveKit {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn url(&self) -> Option<&str> {
        Some(&self.url)
    }

    async fn rooms(&self) -> Result<Vec<Room>, RoomError> {
        self.list(Vec::new()).await
    }

    async fn room(&self, name: &str) -> Result<Option<Room>, RoomError> {
        let rooms = self.list(vec![name.to_owned()]).await?;
        Ok(rooms.into_iter().find(|room| room.name == name))
    }

    async fn participants(&self, room: &str) -> Result<Vec<ParticipantInfo>, RoomError> {
        let request = proto::ListParticipantsRequest {
            room: room.to_owned(),
        };
        let answer: Result<proto::ListParticipantsResponse, _> = self
            .call("ListParticipants", Grant::RoomAdmin(room), &request)
            .await;
        match answer {
            Err(error) if error.kind == RoomErrorKind::NotFound => Ok(Vec::new()),
            answer => Ok(answer?.participants),
        }
    }

    async fn create(&self, name: &str, metadata: &str, _: &Party) -> Result<Creation, RoomError> {
        let _changing = self.lock(name).await;
        if let Some(room) = self.room(name).await? {
            return Ok(Creation::Exists(Box::new(room)));
        }
        let request = proto::CreateRoomRequest {
            name: name.to_owned(),
            metadata: metadata.to_owned(),
            ..Default::default()
        };
        self.call::<()>("CreateRoom", Grant::RoomCreate, &request)
            .await?;
        match self.room(name).await? {
            Some(room) if room.metadata != metadata => Ok(Creation::Exists(Box::new(room))),
            Some(_) => Ok(Creation::Created),
            None => Err(unsettled(name)),
        }
    }

    async fn replace_metadata(
        &self,
        room: &str,
        expected: &str,
        metadata: &str,
    ) -> Result<bool, RoomError> {
        let _changing = self.lock(room).await;
        let before = self.room(room).await?;
        if before.is_none_or(|before| before.metadata != expected) {
            return Ok(false);
        }
        let request = proto::UpdateRoomMetadataRequest {
            room: room.to_owned(),
            metadata: metadata.to_owned(),
        };
        self.call::<()>("UpdateRoomMetadata", Grant::RoomAdmin(room), &request)
            .await?;
        let after = self.room(room).await?.ok_or_else(|| unsettled(room))?;
        Ok(after.metadata == metadata)
    }

    async fn delete(&self, room: &str, by: &Access) -> Result<(), RoomError> {
        let request = proto::DeleteRoomRequest {
            room: room.to_owned(),
        };
        let deleted = match self.check(room, by).await {
            Ok(()) => self.call("DeleteRoom", Grant::RoomCreate, &request).await,
            refused => refused,
        };
        match deleted {
            Err(RoomError {
                kind: RoomErrorKind::NoRoom | RoomErrorKind::NotFound,
                ..
            }) => Ok(()),
            deleted => deleted,
        }
    }

    /// LiveKit shows its own recordings only.
    async fn show_recording(&self, _room: &str, _recorded: bool) -> Result<(), RoomError> {
        Ok(())
    }

    async fn remove(&self, room: &str, identity: &str, by: &Access) -> Result<(), RoomError> {
        self.check(room, by).await?;
        let removed = self.api.remove_participant(room, identity).await;
        removed.map_err(RoomError::from)
    }

    async fn mute(
        &self,
        track: &TrackOf<'_>,
        muted: bool,
        by: &Access,
    ) -> Result<TrackInfo, RoomError> {
        let TrackOf {
            room,
            identity,
            sid,
        } = track;
        self.check(room, by).await?;
        let request = proto::MuteRoomTrackRequest {
            room: (*room).to_owned(),
            identity: (*identity).to_owned(),
            track_sid: (*sid).to_owned(),
            muted,
        };
        let answer: Result<proto::MuteRoomTrackResponse, _> = self
            .call("MutePublishedTrack", Grant::RoomAdmin(room), &request)
            .await;
        let answer = answer.map_err(|mut error| {
            if !muted && error.kind == RoomErrorKind::Refused {
                error.message +=
                    "; LiveKit unmutes remotely where its setting room.enable_remote_unmute is on";
            }
            error
        })?;
        answer.track.ok_or_else(|| RoomError {
            provider: SLUG,
            kind: RoomErrorKind::Protocol,
            message: format!("track {sid:?} was muted or unmuted, and is not in the answer"),
        })
    }

    async fn connect(&self, join: Join) -> Result<RoomLink, RoomError> {
        let token = self.key.agent_token(SLUG, &join)?;
        let options = Options {
            join,
            token,
            patience: self.patience,
        };
        let joined = self
            .links()?
            .connect(self.deployment.clone(), options)
            .await;
        joined.map_err(|ending| RoomError::joining(SLUG, &ending))
    }

    fn telephone(&self) -> Option<Arc<dyn Telephone>> {
        Some(Arc::clone(&self.telephone) as Arc<dyn Telephone>)
    }

    fn token(&self, pass: &RoomPass<'_>) -> Result<String, RoomError> {
        if matches!(pass.supervises, Some(Supervision::Whisper(_))) {
            return Err(RoomError {
                provider: SLUG,
                kind: RoomErrorKind::Refused,
                message: "supervise: whispering needs embedded rooms".to_owned(),
            });
        }
        self.key.token(SLUG, pass)
    }

    fn check_signature(&self, authorization: &str) -> Result<(), EventError> {
        self.key.check_signature(authorization)
    }

    fn read_event(&self, event: &SignedEvent) -> Result<WebhookEvent, EventError> {
        let event = self.key.read_event(event)?;
        self.telephone.happened(&event);
        Ok(event)
    }
}

fn unsettled(room: &str) -> RoomError {
    RoomError {
        provider: SLUG,
        kind: RoomErrorKind::Protocol,
        message: format!("room {room:?} was made, and is not there"),
    }
}

impl From<ApiError> for RoomError {
    fn from(error: ApiError) -> Self {
        let kind = match &error {
            ApiError::Twirp(answer) => match answer.code.as_str() {
                code::NOT_FOUND => RoomErrorKind::NotFound,
                code::UNAVAILABLE | code::DEADLINE_EXCEEDED | code::RESOURCE_EXHAUSTED => {
                    RoomErrorKind::Unavailable
                }
                _ => RoomErrorKind::Refused,
            },
            ApiError::Connection(_) | ApiError::Foreign(_) => RoomErrorKind::Unavailable,
            ApiError::Answer(_) => RoomErrorKind::Protocol,
            ApiError::Token(_) => RoomErrorKind::Refused,
        };
        Self {
            provider: SLUG,
            kind,
            message: error.to_string(),
        }
    }
}
