//! `/rtc/…`: tokens, rooms and participants. Requests are validated here; everything else is up to
//! [`vivavoce_actors::registry::rooms::RoomRegistry`].

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use livekit_protocol::participant_info::{Kind, State};
use livekit_protocol::{self as livekit, ParticipantInfo, TrackInfo, TrackSource, TrackType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::body::{self, JsonBody};
use super::error::{ApiError, Code};
use super::fields::{MAX_NAME_CHARS, required};
use super::former::SuccessorKey;
use super::limits::{self, Limits};
use super::listen::Entrance;
use super::state::AppState;
use crate::auth::Entered;
use vivavoce_actors::registry::rooms::{
    Admit, CheckSignature, ListRooms, MuteTrack, RemoveParticipant, RoomsError, ShowRoom, TakeEvent,
};
use vivavoce_core::dialect::Dialect;
use vivavoce_replicas::ROOMS_URL;
use vivavoce_seams::{EventError, RoomError, RoomErrorKind, SignedEvent, Supervision};

/// Body of `POST /rtc/token`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct TokenRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// The display name.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_name: Option<String>,
    /// The participant's identity.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
    /// Makes it the token of a supervisor. `listen`: hears everybody, unseen and unheard. `whisper`: is heard by `whisper_to` only.
    #[schemars(extend("enum" = ["listen", "whisper"]))]
    supervise: Option<String>,
    /// Identities of those who hear a whisper; all agents if absent.
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 1, max = 256), regex(pattern = r"\S"))
    )]
    whisper_to: Option<Vec<String>>,
}

/// Who may hear a whisper.
const MOST_WHISPERED_TO: usize = 64;

impl TokenRequest {
    fn supervision(&mut self) -> Result<Option<Supervision>, ApiError> {
        let refused = |problem: &str| ApiError::new(Code::InvalidRequest, problem.to_owned());
        let to = self.whisper_to.take();
        match self.supervise.as_deref() {
            Some("whisper") => {
                let Some(to) = to else {
                    return Ok(Some(Supervision::Whisper(Vec::new())));
                };
                let fits = |identity: &String| {
                    !identity.trim().is_empty() && identity.chars().count() <= MAX_NAME_CHARS
                };
                if !(1..=MOST_WHISPERED_TO).contains(&to.len()) || !to.iter().all(fits) {
                    return Err(refused("whisper_to: must be 1 to 64 identities"));
                }
                Ok(Some(Supervision::Whisper(to)))
            }
            _ if to.is_some() => Err(refused("whisper_to: is for supervise whisper")),
            Some("listen") => Ok(Some(Supervision::Listen)),
            Some(_) => Err(refused("supervise: must be listen or whisper")),
            None => Ok(None),
        }
    }
}

/// Body of `DELETE /rtc/participant`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct RemoveRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// The participant's identity.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
}

/// Body of `POST /rtc/participant/mute`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct MuteRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// The participant's identity.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
    /// The track's id.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    track_sid: Option<String>,
    /// Whether to mute or unmute.
    #[schemars(required)]
    muted: Option<bool>,
}

/// Response of `POST /rtc/token`.
#[derive(Debug, JsonSchema)]
pub struct TokenAnswer {
    /// A token for this room only.
    token: String,
    /// The room, as requested.
    room_name: String,
    /// The identity, as requested.
    participant_identity: String,
    /// The URL to connect to.
    rtc_url: String,
    /// In which these fields are named.
    #[schemars(skip)]
    dialect: Arc<Dialect>,
}

impl Serialize for TokenAnswer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = [
            ("token", &self.token),
            ("room_name", &self.room_name),
            ("participant_identity", &self.participant_identity),
            ("rtc_url", &self.rtc_url),
        ];
        serializer.collect_map(fields.map(|(name, value)| (self.dialect.field(name), value)))
    }
}

/// Response of `GET /rtc/rooms`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RoomList {
    rooms: Vec<RoomSummary>,
}

/// A room in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RoomSummary {
    /// The room's name.
    name: String,
    /// The current number of participants.
    num_participants: u32,
    /// Creation time, Unix time in seconds.
    creation_time: i64,
}

/// Response of `GET /rtc/rooms/{room_name}`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RoomDetails {
    /// The id of this instance of the room.
    sid: String,
    /// The room's name.
    name: String,
    /// The current number of participants.
    num_participants: u32,
    /// The maximum number of participants; 0 means no limit.
    max_participants: u32,
    /// Creation time, Unix time in seconds.
    creation_time: i64,
    /// JSON text of whoever created it; `auth_id` in it is the owner.
    metadata: String,
    /// Whether it is being recorded.
    active_recording: bool,
    /// The participants.
    participants: Vec<Participant>,
}

/// A participant of a room.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RoomParticipant")]
pub struct Participant {
    sid: String,
    identity: String,
    name: String,
    #[schemars(extend("enum" = ["JOINING", "JOINED", "ACTIVE", "DISCONNECTED"]))]
    state: &'static str,
    #[schemars(extend("enum" = ["STANDARD", "INGRESS", "EGRESS", "SIP", "AGENT"]))]
    kind: &'static str,
    /// Time of joining, Unix time in seconds.
    joined_at: i64,
    metadata: String,
    attributes: BTreeMap<String, String>,
    is_publisher: bool,
    tracks: Vec<Track>,
}

/// A track of a participant.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Track {
    sid: String,
    #[schemars(extend("enum" = ["AUDIO", "VIDEO", "DATA"]))]
    kind: &'static str,
    /// LiveKit's name of the source: `MICROPHONE`, `CAMERA`, `SCREEN_SHARE`, `SCREEN_SHARE_AUDIO` or `UNKNOWN`.
    source: &'static str,
    name: String,
    muted: bool,
    mime_type: String,
}

/// Response of `DELETE /rtc/participant`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Removed {
    #[schemars(extend("const" = "removed"))]
    status: &'static str,
    room_name: String,
    participant_identity: String,
}

/// Response of `POST /rtc/participant/mute`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MuteAnswer {
    room_name: String,
    participant_identity: String,
    track_sid: String,
    muted: bool,
}

impl From<livekit::Room> for RoomSummary {
    fn from(room: livekit::Room) -> Self {
        Self {
            name: room.name,
            num_participants: room.num_participants,
            creation_time: room.creation_time,
        }
    }
}

impl RoomDetails {
    fn new(room: livekit::Room, participants: Vec<ParticipantInfo>) -> Self {
        Self {
            sid: room.sid,
            name: room.name,
            // A deployment counts them some time later, and no agents.
            num_participants: u32::try_from(participants.len()).unwrap_or(u32::MAX),
            max_participants: room.max_participants,
            creation_time: room.creation_time,
            metadata: room.metadata,
            active_recording: room.active_recording,
            participants: participants.into_iter().map(Participant::from).collect(),
        }
    }
}

impl From<ParticipantInfo> for Participant {
    fn from(info: ParticipantInfo) -> Self {
        // Kinds added later are shown as standard participants.
        let kind = match info.kind() {
            kind @ (Kind::Ingress | Kind::Egress | Kind::Sip | Kind::Agent) => kind,
            _ => Kind::Standard,
        };
        Self {
            state: state(info.state()),
            kind: kind.as_str_name(),
            sid: info.sid,
            identity: info.identity,
            name: info.name,
            joined_at: info.joined_at,
            metadata: info.metadata,
            attributes: info.attributes.into_iter().collect(),
            is_publisher: info.is_publisher,
            tracks: info.tracks.into_iter().map(Track::from).collect(),
        }
    }
}

const fn state(state: State) -> &'static str {
    match state {
        State::Joining => "JOINING",
        State::Joined => "JOINED",
        State::Active => "ACTIVE",
        State::Disconnected => "DISCONNECTED",
    }
}

impl From<TrackInfo> for Track {
    fn from(track: TrackInfo) -> Self {
        Self {
            kind: TrackType::as_str_name(&track.r#type()),
            source: TrackSource::as_str_name(&track.source()),
            sid: track.sid,
            name: track.name,
            muted: track.muted,
            mime_type: track.mime_type,
        }
    }
}

/// Creates a token for one room.
pub async fn token(
    Entered(access): Entered,
    state: web::Data<AppState>,
    http: HttpRequest,
    body: JsonBody<TokenRequest>,
) -> Result<web::Json<TokenAnswer>, ApiError> {
    let JsonBody(mut request) = body;
    let supervises = request.supervision()?;
    let wish = Admit {
        access,
        supervises,
        room: required(request.room_name, "room_name")?,
        name: required(request.participant_name, "participant_name")?,
        identity: required(request.participant_identity, "participant_identity")?,
    };
    let (room_name, participant_identity) = (wish.room.clone(), wish.identity.clone());
    let admission = state.rooms.send(wish).await??;
    Ok(web::Json(TokenAnswer {
        token: admission.token,
        room_name,
        participant_identity,
        rtc_url: admission.url.unwrap_or_else(|| own_url(&http)),
        dialect: Arc::clone(&state.dialect),
    }))
}

/// The URL of this server's own rooms: where the request has just reached this server.
pub(super) fn own_url(request: &HttpRequest) -> String {
    if let Some(url) = told_by_successor(request) {
        return url;
    }
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    let entrance = request.conn_data::<Entrance>();
    let is_secure = entrance.is_some_and(|entrance| entrance.secure);
    let limits = request.app_data::<web::Data<Limits>>();
    // A proxy that ends TLS is where clients come in.
    let is_secure = is_secure || limits.is_some_and(|limits| limits.came_by_tls(request));
    let scheme = if is_secure { "wss" } else { "ws" };
    match (host, entrance) {
        (Some(host), _) => format!("{scheme}://{host}"),
        (None, Some(entrance)) => format!("{scheme}://{}", entrance.address),
        (None, None) => format!("{scheme}://localhost"),
    }
}

/// The same where the server that replaces this one passes it on: clients know only that one.
fn told_by_successor(request: &HttpRequest) -> Option<String> {
    let key = request.app_data::<web::Data<SuccessorKey>>()?;
    key.0.as_ref()?;
    let url = request.headers().get(ROOMS_URL)?;
    url.to_str().ok().map(str::to_owned)
}

/// Lists rooms.
pub async fn rooms(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<RoomList>, ApiError> {
    // The cost of a list grows with the number of rooms, so callers take turns.
    let turn = state.room_lists.acquire(&access.party()).await;
    let list = state.rooms.send(ListRooms { access }).await;
    drop(turn);
    let mut rooms: Vec<_> = list??.into_iter().map(RoomSummary::from).collect();
    rooms.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(web::Json(RoomList { rooms }))
}

/// Shows one room.
pub async fn room(
    Entered(access): Entered,
    state: web::Data<AppState>,
    name: web::Path<String>,
) -> Result<web::Json<RoomDetails>, ApiError> {
    let room = name.into_inner();
    let shown = state.rooms.send(ShowRoom { access, room }).await;
    let (room, participants) = shown??;
    Ok(web::Json(RoomDetails::new(room, participants)))
}

/// Removes a participant.
pub async fn remove(
    Entered(access): Entered,
    state: web::Data<AppState>,
    body: JsonBody<RemoveRequest>,
) -> Result<web::Json<Removed>, ApiError> {
    let JsonBody(request) = body;
    let room_name = required(request.room_name, "room_name")?;
    let participant_identity = required(request.participant_identity, "participant_identity")?;
    let wish = RemoveParticipant {
        access,
        room: room_name.clone(),
        identity: participant_identity.clone(),
    };
    state.rooms.send(wish).await??;
    Ok(web::Json(Removed {
        status: "removed",
        room_name,
        participant_identity,
    }))
}

/// Mutes or unmutes a track.
pub async fn mute(
    Entered(access): Entered,
    state: web::Data<AppState>,
    body: JsonBody<MuteRequest>,
) -> Result<web::Json<MuteAnswer>, ApiError> {
    let JsonBody(request) = body;
    let missing = || ApiError::new(Code::InvalidRequest, "muted: is required");
    let wish = MuteTrack {
        access,
        room: required(request.room_name, "room_name")?,
        identity: required(request.participant_identity, "participant_identity")?,
        track: required(request.track_sid, "track_sid")?,
        muted: request.muted.ok_or_else(missing)?,
    };
    let (room_name, participant_identity) = (wish.room.clone(), wish.identity.clone());
    let track = state.rooms.send(wish).await??;
    Ok(web::Json(MuteAnswer {
        room_name,
        participant_identity,
        track_sid: track.sid,
        muted: track.muted,
    }))
}

/// Receives webhooks of the room provider. The signature's token is checked before the body is read.
pub async fn webhook(
    state: web::Data<AppState>,
    http: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let authorization = http.headers().get(header::AUTHORIZATION);
    let authorization = authorization.and_then(|value| value.to_str().ok());
    let authorization = authorization.unwrap_or_default().to_owned();
    let signature = CheckSignature(authorization.clone());
    state.rooms.send(signature).await??;
    limits::authenticated(&http, None)?;
    let body = body::read(&http, &mut payload.into_inner()).await?;
    let posted = TakeEvent(SignedEvent {
        authorization,
        body: String::from_utf8_lossy(&body).into_owned(),
    });
    state.rooms.send(posted).await??;
    Ok(HttpResponse::Ok().finish())
}

impl From<RoomsError> for ApiError {
    fn from(error: RoomsError) -> Self {
        if let RoomsError::Provider(RoomError {
            kind: RoomErrorKind::Quota(refused),
            ..
        }) = &error
        {
            return (*refused).into();
        }
        let code = match &error {
            RoomsError::NotConfigured => Code::RtcNotConfigured,
            RoomsError::AccessDenied | RoomsError::IdentityTaken => Code::RoomAccessDenied,
            RoomsError::NoRoom => Code::RoomNotFound,
            RoomsError::NoParticipant => Code::ParticipantNotFound,
            RoomsError::NoTrack => Code::TrackNotFound,
            RoomsError::Provider(_) => Code::RtcError,
            RoomsError::Removal(_) => Code::RemovalFailed,
            RoomsError::Mute(_) => Code::MuteFailed,
            RoomsError::Event(EventError::Signature) => Code::Unauthorized,
            RoomsError::Event(_) => Code::InvalidRequest,
            RoomsError::Untold(_) => Code::StorageError,
        };
        if let RoomsError::Provider(cause) | RoomsError::Removal(cause) | RoomsError::Mute(cause) =
            &error
        {
            tracing::warn!(provider = cause.provider, kind = ?cause.kind, "the room provider failed");
        }
        Self::new(code, error.to_string())
    }
}
