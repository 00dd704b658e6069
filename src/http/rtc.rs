//! `/rtc/…`: tokens, rooms and participants. What a request must hold is checked here; there are no rooms behind it yet,
//! and every valid request is told so.

use actix_web::{HttpResponse, web};
use serde::Deserialize;

use super::body::JsonBody;
use super::error::{ApiError, Code};
use super::fields::required;
use crate::auth::Access;

/// Body of `POST /rtc/token`.
#[derive(Debug, Deserialize)]
pub struct TokenRequest {
    room_name: Option<String>,
    participant_name: Option<String>,
    participant_identity: Option<String>,
}

/// Body of `DELETE /rtc/participant`.
#[derive(Debug, Deserialize)]
pub struct RemoveRequest {
    room_name: Option<String>,
    participant_identity: Option<String>,
}

/// Body of `POST /rtc/participant/mute`.
#[derive(Debug, Deserialize)]
pub struct MuteRequest {
    room_name: Option<String>,
    participant_identity: Option<String>,
    track_sid: Option<String>,
    muted: Option<bool>,
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
