//! `/rtc/…`: tokens, rooms and participants. What a request must hold is checked here; there are no rooms behind it yet,
//! and every valid request is told so.

use std::collections::BTreeMap;

use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::body::JsonBody;
use super::error::{ApiError, Code};
use super::fields::required;
use crate::auth::Access;

/// Body of `POST /rtc/token`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct TokenRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// What people read.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_name: Option<String>,
    /// Who, as the room knows them.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
}

/// Body of `DELETE /rtc/participant`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct RemoveRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// Who, as the room knows them.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
}

/// Body of `POST /rtc/participant/mute`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct MuteRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// Who, as the room knows them.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
    /// Which of their tracks.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    track_sid: Option<String>,
    /// Whether it is to be silent.
    #[schemars(required)]
    muted: Option<bool>,
}

/// Answer of `POST /rtc/token`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TokenAnswer {
    /// Opens this room only.
    token: String,
    /// As asked.
    room_name: String,
    /// As asked.
    participant_identity: String,
    /// Where to connect.
    rtc_url: String,
}

/// Answer of `GET /rtc/rooms`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RoomList {
    rooms: Vec<RoomSummary>,
}

/// A room in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RoomSummary {
    /// As it was created.
    name: String,
    /// Who is in it now.
    num_participants: u32,
    /// Unix time in seconds.
    creation_time: i64,
}

/// Answer of `GET /rtc/rooms/{room_name}`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RoomDetails {
    /// Of this session of the room.
    sid: String,
    /// As it was created.
    name: String,
    /// Who is in it now.
    num_participants: u32,
    /// 0 means no limit.
    max_participants: u32,
    /// Unix time in seconds.
    creation_time: i64,
    /// JSON text of whoever created it; `auth_id` in it is the owner.
    metadata: String,
    /// Whether it is being recorded.
    active_recording: bool,
    /// Who is in it.
    participants: Vec<Participant>,
}

/// Somebody in a room.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Participant {
    sid: String,
    identity: String,
    name: String,
    #[schemars(extend("enum" = ["JOINING", "JOINED", "ACTIVE", "DISCONNECTED"]))]
    state: String,
    #[schemars(extend("enum" = ["STANDARD", "INGRESS", "EGRESS", "SIP", "AGENT"]))]
    kind: String,
    /// Unix time in seconds.
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
    kind: String,
    source: String,
    name: String,
    muted: bool,
    mime_type: String,
}

/// Answer of `DELETE /rtc/participant`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Removed {
    #[schemars(extend("const" = "removed"))]
    status: String,
    room_name: String,
    participant_identity: String,
}

/// Answer of `POST /rtc/participant/mute`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MuteAnswer {
    room_name: String,
    participant_identity: String,
    track_sid: String,
    muted: bool,
}

/// Makes a token for one room.
pub async fn token(_: Access, body: JsonBody<TokenRequest>) -> Result<HttpResponse, ApiError> {
    let JsonBody(request) = body;
    required(request.room_name, "room_name")?;
    required(request.participant_name, "participant_name")?;
    required(request.participant_identity, "participant_identity")?;
    Err(not_configured())
}

/// Lists rooms.
pub async fn rooms(_: Access) -> Result<HttpResponse, ApiError> {
    Err(not_configured())
}

/// Shows one room.
pub async fn room(_: Access, _: web::Path<String>) -> Result<HttpResponse, ApiError> {
    Err(not_configured())
}

/// Removes a participant.
pub async fn remove(_: Access, body: JsonBody<RemoveRequest>) -> Result<HttpResponse, ApiError> {
    let JsonBody(request) = body;
    required(request.room_name, "room_name")?;
    required(request.participant_identity, "participant_identity")?;
    Err(not_configured())
}

/// Mutes or unmutes a track.
pub async fn mute(_: Access, body: JsonBody<MuteRequest>) -> Result<HttpResponse, ApiError> {
    let JsonBody(request) = body;
    required(request.room_name, "room_name")?;
    required(request.participant_identity, "participant_identity")?;
    required(request.track_sid, "track_sid")?;
    if request.muted.is_none() {
        return Err(ApiError::new(Code::InvalidRequest, "muted: is required"));
    }
    Err(not_configured())
}

/// Takes events of the room provider.
pub async fn webhook() -> Result<HttpResponse, ApiError> {
    Err(not_configured())
}

/// The answer as long as there are no rooms.
pub fn not_configured() -> ApiError {
    ApiError::new(Code::RtcNotConfigured, "this server has no rooms")
}
