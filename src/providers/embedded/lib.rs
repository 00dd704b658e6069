//! The room provider of the rooms and the SIP bridge in this process.

mod events;
pub mod link;
#[cfg(test)]
mod link_conformance;
mod messages;
pub mod sip;
mod turn;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use livekit_protocol::{CreateRoomRequest, ParticipantInfo, Room, TrackInfo, WebhookEvent};

use vivavoce_auth::Access;
use vivavoce_config::{OptionalPort, Rtc, VendorUrl};
use vivavoce_quotas::Party;
use vivavoce_rooms::{
    self as rooms, Bounds, EventReceiver, Keys, Listeners, OperationError, RoomServer, Sockets,
};
use vivavoce_seams::rooms::link::{Join, RoomLink};
use vivavoce_seams::rooms::telephone::Telephone;
use vivavoce_seams::rooms::{
    ApiKey, Creation, EventError, RoomError, RoomErrorKind, RoomPass, RoomProvider, SignedEvent,
    TrackOf,
};

use rustls::ServerConfig;
use vivavoce_rooms::MediaPorts;
use vivavoce_rooms::turn::{Credentials, Offer};
use vivavoce_takeover::{self as takeover, Former, SocketUse};

pub use events::told;

const SLUG: &str = "embedded";
const IS_AT_FORMER: &str = "the room is still at the server that this one replaces; open another socket, whose first config names the room";

/// Why embedded rooms cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The signing key cannot be stored.
    #[error("data_dir: cannot store the signing key of rooms there: {0}")]
    Key(#[source] io::Error),
    /// The media port cannot be opened.
    #[error("rtc.udp_port, rtc.advertised_addresses: {0}")]
    Media(#[source] io::Error),
    /// The media port cannot be opened for TCP.
    #[error("rtc.tcp_port: {0}")]
    Tcp(#[source] io::Error),
    /// A port of the TURN server cannot be opened.
    #[error("rtc.turn.{0}: {1}")]
    Turn(&'static str, #[source] io::Error),
}

/// Starts embedded rooms. `claim_unowned` says whether an unowned room is claimed by the first tenant who joins.
pub fn start(
    settings: &Rtc,
    data_dir: &Path,
    claim_unowned: bool,
    bounds: Bounds,
    (all, tls): (&takeover::Sockets, Option<ServerConfig>),
) -> Result<Started, EmbeddedError> {
    let key = match ApiKey::from_settings(settings) {
        Some(key) => key,
        None => ApiKey::kept(data_dir).map_err(EmbeddedError::Key)?,
    };
    let addresses = rooms::local_addresses(&settings.advertised_addresses.0);
    let addresses = addresses.map_err(EmbeddedError::Media)?;
    let sockets = Sockets::take_or_bind((all, SocketUse::RoomsUdp), &addresses, settings.udp_port);
    let sockets = sockets.map_err(|error| EmbeddedError::Media(taken(error, settings.udp_port)))?;
    let listeners = listeners(settings, &addresses, all).map_err(EmbeddedError::Tcp)?;
    let keys = Keys::new([(key.key.clone(), key.secret.clone())]);
    let turn = turn::open(settings, &addresses, all, tls)?;
    let (turn, urls) = turn.unzip();
    let offer = urls.map(|urls| Offer {
        urls,
        credentials: Credentials::of_secret(&key.secret),
    });
    let settings_of_rooms = rooms::Settings {
        keys,
        remote_unmute: true,
        claim_unowned,
        bounds,
        most_per_room: settings.participants_per_room,
        threads: match settings.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        },
        turn: offer,
        ..rooms::Settings::default()
    };
    let media = MediaPorts {
        udp: sockets,
        tcp: listeners,
        turn,
    };
    let started = RoomServer::start_at(settings_of_rooms, media);
    let (server, events) = started.map_err(EmbeddedError::Media)?;
    let url = settings.public_url.as_ref().map(VendorUrl::socket);
    Ok(Started {
        provider: Embedded::new(server.clone(), key.clone(), url),
        server,
        key,
        events,
    })
}

/// The port where clients of rooms connect by TCP, if they get no UDP through.
const TCP_PORT: u16 = 7_881;

/// Opens the TCP port. One that the operator has not chosen may be another if it is taken.
fn listeners(
    settings: &Rtc,
    addresses: &[(IpAddr, IpAddr)],
    all: &takeover::Sockets,
) -> io::Result<Listeners> {
    let bind = |port| Listeners::take_or_bind((all, SocketUse::RoomsTcp), addresses, port);
    match settings.tcp_port {
        Some(OptionalPort::Off) => Ok(Listeners::default()),
        Some(OptionalPort::At(port)) => bind(port).map_err(|error| {
            let help = "RTC_TCP_PORT=0 takes any that is free, off opens none";
            io::Error::new(error.kind(), format!("TCP port {port}: {error}; {help}"))
        }),
        None if settings.udp_port == 0 => {
            let listeners = bind(0)?;
            let port = listeners.advertised().first().map(SocketAddr::port);
            let port = port.unwrap_or_default();
            tracing::info!("clients of rooms without UDP are told TCP port {port} (RTC_TCP_PORT)");
            Ok(listeners)
        }
        None => bind(TCP_PORT).or_else(|error| {
            if error.kind() != io::ErrorKind::AddrInUse {
                return Err(error);
            }
            let others = bind(0)?;
            let port = others.advertised().first().map(SocketAddr::port);
            tracing::info!(
                "TCP port {TCP_PORT} is taken: clients of rooms without UDP are told port {} (RTC_TCP_PORT chooses one)",
                port.unwrap_or_default()
            );
            Ok(others)
        }),
    }
}

/// Says what to do about a port in use.
fn taken(error: io::Error, port: u16) -> io::Error {
    if error.kind() != io::ErrorKind::AddrInUse {
        return error;
    }
    let help = "RTC_UDP_PORT=0 takes any that is free, RTC_MODE=off opens no rooms";
    io::Error::new(
        error.kind(),
        format!("UDP port {port} is used by another process: {help}"),
    )
}

/// Running rooms.
pub struct Started {
    /// The provider.
    pub provider: Embedded,
    /// The server.
    pub server: RoomServer,
    /// Tokens and events are signed with this key.
    pub key: ApiKey,
    /// Events of all rooms.
    pub events: EventReceiver,
}

/// The provider of embedded rooms.
pub struct Embedded {
    server: RoomServer,
    key: ApiKey,
    url: Option<String>,
    telephone: Option<Arc<dyn Telephone>>,
    former: Option<Arc<Former>>,
}

impl Embedded {
    /// `url` is the address that clients are told to connect to, if it is not this server's own.
    pub const fn new(server: RoomServer, key: ApiKey, url: Option<String>) -> Self {
        Self {
            server,
            key,
            url,
            telephone: None,
            former: None,
        }
    }

    /// The same after another server, some of whose rooms are still there.
    #[must_use]
    pub fn with_former(self, former: Option<Arc<Former>>) -> Self {
        Self { former, ..self }
    }

    /// The same with telephone calls.
    #[must_use]
    pub fn with_telephone(self, telephone: Arc<dyn Telephone>) -> Self {
        Self {
            telephone: Some(telephone),
            ..self
        }
    }
}

#[async_trait]
impl RoomProvider for Embedded {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    async fn rooms(&self) -> Result<Vec<Room>, RoomError> {
        self.server.list_rooms(Vec::new()).await.map_err(failure)
    }

    async fn room(&self, name: &str) -> Result<Option<Room>, RoomError> {
        let rooms = self.server.list_rooms(vec![name.to_owned()]).await;
        Ok(rooms.map_err(failure)?.pop())
    }

    async fn look_into(
        &self,
        name: &str,
        by: &Access,
    ) -> Result<Option<(Room, Vec<ParticipantInfo>)>, RoomError> {
        match self.server.on_behalf_of(by).look_into(name).await {
            Err(OperationError::NoRoom) => Ok(None),
            seen => seen.map(Some).map_err(failure),
        }
    }

    async fn participants(&self, room: &str) -> Result<Vec<ParticipantInfo>, RoomError> {
        match self.server.list_participants(room.to_owned()).await {
            Err(OperationError::NoRoom) => Ok(Vec::new()),
            answer => answer.map_err(failure),
        }
    }

    async fn create(&self, name: &str, metadata: &str, by: &Party) -> Result<Creation, RoomError> {
        let request = CreateRoomRequest {
            name: name.to_owned(),
            metadata: metadata.to_owned(),
            ..CreateRoomRequest::default()
        };
        let created = self.server.create_new_room(request, by.clone()).await;
        Ok(match created.map_err(failure)? {
            Ok(_) => Creation::Created,
            Err(existing) => Creation::Exists(Box::new(existing)),
        })
    }

    fn keeps_owners(&self) -> bool {
        true
    }

    async fn replace_metadata(
        &self,
        room: &str,
        expected: &str,
        metadata: &str,
    ) -> Result<bool, RoomError> {
        let (room, expected, metadata) =
            (room.to_owned(), expected.to_owned(), metadata.to_owned());
        match self
            .server
            .replace_room_metadata(room, expected, metadata)
            .await
        {
            Err(OperationError::NoRoom) => Ok(false),
            replaced => replaced.map_err(failure),
        }
    }

    async fn delete(&self, room: &str, by: &Access) -> Result<(), RoomError> {
        match self.server.on_behalf_of(by).delete_room(room).await {
            Err(OperationError::NoRoom) => Ok(()),
            deleted => deleted.map_err(failure),
        }
    }

    async fn delete_deserted(
        &self,
        room: &str,
        identity: &str,
        by: &Access,
    ) -> Result<(), RoomError> {
        let rooms = self.server.on_behalf_of(by);
        let deleted = rooms.delete_deserted_room(room, identity.to_owned());
        match deleted.await {
            Err(OperationError::NoRoom) => Ok(()),
            deleted => deleted.map_err(failure),
        }
    }

    async fn show_recording(&self, room: &str, recorded: bool) -> Result<(), RoomError> {
        match self.server.show_recording(room.to_owned(), recorded).await {
            Err(OperationError::NoRoom) => Ok(()),
            shown => shown.map_err(failure),
        }
    }

    async fn remove(&self, room: &str, identity: &str, by: &Access) -> Result<(), RoomError> {
        let rooms = self.server.on_behalf_of(by);
        let removed = rooms.remove_participant(room, identity.to_owned());
        removed.await.map_err(failure)
    }

    async fn move_to(
        &self,
        room: &str,
        identity: &str,
        destination: &str,
        by: &Access,
    ) -> Result<(), RoomError> {
        let [identity, destination] = [identity, destination].map(str::to_owned);
        let rooms = self.server.on_behalf_of(by);
        let moved = rooms.move_participant(room, identity, destination);
        moved.await.map_err(failure)
    }

    async fn mute(
        &self,
        track: &TrackOf<'_>,
        muted: bool,
        by: &Access,
    ) -> Result<TrackInfo, RoomError> {
        let [identity, sid] = [track.identity, track.sid].map(str::to_owned);
        let rooms = self.server.on_behalf_of(by);
        let answer = rooms.mute_track(track.room, identity, sid, muted).await;
        answer.map_err(failure)
    }

    async fn connect(&self, join: Join) -> Result<RoomLink, RoomError> {
        if let Some(former) = &self.former
            && former.has_room(&join.room)
        {
            return Err(RoomError {
                provider: SLUG,
                kind: RoomErrorKind::Unavailable,
                message: IS_AT_FORMER.to_owned(),
            });
        }
        let joined = link::connect(&self.server, &self.key.key, join).await;
        joined.map_err(|ending| RoomError::joining(SLUG, &ending))
    }

    fn telephone(&self) -> Option<Arc<dyn Telephone>> {
        self.telephone.clone()
    }

    fn token(&self, pass: &RoomPass<'_>) -> Result<String, RoomError> {
        self.key.token(SLUG, pass)
    }

    fn check_signature(&self, authorization: &str) -> Result<(), EventError> {
        self.key.check_signature(authorization)
    }

    fn read_event(&self, event: &SignedEvent) -> Result<WebhookEvent, EventError> {
        self.key.read_event(event)
    }
}

fn failure(error: OperationError) -> RoomError {
    let kind = match error {
        OperationError::NoRoom => RoomErrorKind::NoRoom,
        OperationError::NoParticipant | OperationError::NoTrack | OperationError::NoDispatch => {
            RoomErrorKind::NotFound
        }
        OperationError::Stopped => RoomErrorKind::Unavailable,
        OperationError::Quota(refused) => RoomErrorKind::Quota(refused),
        OperationError::InvalidArgument(_) | OperationError::FailedPrecondition(_) => {
            RoomErrorKind::Refused
        }
    };
    RoomError {
        provider: SLUG,
        kind,
        message: error.to_string(),
    }
}
