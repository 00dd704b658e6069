//! `POST /twirp/livekit.RoomService/…`, `…/livekit.AgentDispatchService/…`, `…/livekit.SIP/…` and `…/livekit.Egress/…`: LiveKit's server API for the embedded rooms, in protobuf
//! and JSON, for LiveKit's server SDKs. Tokens are LiveKit's, not this server's own, and tenants do not apply: whoever
//! holds the key pair owns all rooms.
//!
//! Errors are Twirp's (`{"code", "msg", "meta"?}`). What the embedded rooms do with each method and field stands in [`table`]:
//! methods that they lack are `unimplemented`, fields that would have no effect `invalid_argument`.

mod dial;
mod dispatch;
mod egress;
mod rooms;
mod sip;
mod support;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::Addr;
use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::support::Method;
pub use self::support::{page as livekit_api_page, trunk_problems};
use super::body::{self, BodyError};
use super::former::AtFormer;
use super::limits;
use super::state::AppState;
use vivavoce_actors::egress::EgressService;
use vivavoce_actors::registry::calls::CallRegistry;
use vivavoce_rooms::shapes::Shaped;
use vivavoce_rooms::token::{self, Claims};
use vivavoce_rooms::wire::{self, Excess};
use vivavoce_rooms::{Now, RoomServer};
use vivavoce_telemetry::metrics::{self, RoomInput};
use vivavoce_telephony::trunks::Trunks;

const ROOM_SERVICE: &str = "livekit.RoomService";
const SIP_SERVICE: &str = "livekit.SIP";
const EGRESS_SERVICE: &str = "livekit.Egress";
const DISPATCH_SERVICE: &str = "livekit.AgentDispatchService";
/// The content type of errors and JSON responses: LiveKit's JavaScript client compares it as a whole.
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/protobuf";

/// A Twirp error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    code: &'static str,
    message: String,
    /// Additional fields, for programs.
    meta: BTreeMap<&'static str, String>,
}

impl Failure {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            meta: BTreeMap::new(),
        }
    }

    fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new("unauthenticated", message)
    }

    /// LiveKit's server uses this code, although the caller is authenticated.
    fn not_permitted() -> Self {
        Self::unauthenticated("permissions denied")
    }

    fn status(&self) -> StatusCode {
        match self.code {
            "invalid_argument" | "malformed" => StatusCode::BAD_REQUEST,
            "unauthenticated" => StatusCode::UNAUTHORIZED,
            "permission_denied" => StatusCode::FORBIDDEN,
            "canceled" | "deadline_exceeded" => StatusCode::REQUEST_TIMEOUT,
            "aborted" | "already_exists" => StatusCode::CONFLICT,
            "not_found" | "bad_route" => StatusCode::NOT_FOUND,
            "failed_precondition" => StatusCode::PRECONDITION_FAILED,
            "resource_exhausted" => StatusCode::TOO_MANY_REQUESTS,
            "unimplemented" => StatusCode::NOT_IMPLEMENTED,
            "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn answer(&self) -> HttpResponse {
        self.answer_as(self.status())
    }

    fn answer_as(&self, status: StatusCode) -> HttpResponse {
        #[derive(Serialize)]
        struct Body<'a> {
            code: &'a str,
            msg: &'a str,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            meta: &'a BTreeMap<&'static str, String>,
        }
        let body = Body {
            code: self.code,
            msg: &self.message,
            meta: &self.meta,
        };
        HttpResponse::build(status)
            .insert_header((header::CONTENT_TYPE, JSON))
            .body(serde_json::to_vec(&body).unwrap_or_default())
    }
}

impl From<BodyError> for Failure {
    fn from(error: BodyError) -> Self {
        let code = match error {
            BodyError::TooLarge { .. } | BodyError::Broken => "malformed",
            BodyError::Late | BodyError::Slow => "deadline_exceeded",
            BodyError::NoMemory(_) => "resource_exhausted",
            BodyError::Undeclared => "internal",
        };
        Self::new(code, error.to_string())
    }
}

/// The encoding of a request, which its response uses as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Protobuf,
    Json,
}

impl Wire {
    fn of(request: &HttpRequest) -> Result<Self, Failure> {
        let written = request.headers().get(header::CONTENT_TYPE);
        let written = written.and_then(|value| value.to_str().ok()).unwrap_or("");
        match written.split(';').next().unwrap_or("").trim() {
            PROTOBUF => Ok(Self::Protobuf),
            JSON => Ok(Self::Json),
            other => Err(Failure::new(
                "bad_route",
                format!("content type {other:?} is neither {PROTOBUF} nor {JSON}"),
            )),
        }
    }

    /// Decodes a body, if it is within the limits.
    pub(super) fn read<T: Shaped + DeserializeOwned>(self, body: &[u8]) -> Result<T, Failure> {
        let malformed = |error: String| Failure::new("malformed", error);
        let refused = |excess: Excess| {
            metrics::room_input_refused(RoomInput::Call);
            malformed(excess.to_string())
        };
        match self {
            Self::Protobuf => T::read(body).map_err(refused),
            Self::Json => {
                wire::check_json(body).map_err(refused)?;
                serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))
            }
        }
    }

    fn answer<T: Message + Serialize>(self, answer: &T) -> Result<HttpResponse, Failure> {
        let (kind, body) = match self {
            Self::Protobuf => (PROTOBUF, answer.encode_to_vec()),
            Self::Json => {
                let text = serde_json::to_vec(answer);
                (
                    JSON,
                    text.map_err(|error| Failure::new("internal", error.to_string()))?,
                )
            }
        };
        let mut response = HttpResponse::Ok();
        response.insert_header((header::CONTENT_TYPE, kind));
        Ok(response.body(body))
    }
}

/// Handles a call.
pub async fn call(
    state: web::Data<AppState>,
    path: web::Path<(String, String)>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    let (service, method) = path.into_inner();
    let answer = async {
        let Some(rooms) = &state.embedded_rooms else {
            return Err(Failure::new(
                "unimplemented",
                "this server has no embedded rooms",
            ));
        };
        let wire = Wire::of(&request)?;
        let claims = claims(&request, rooms.keys())?;
        // Everything in the head is checked before a byte of the body is read.
        let known = support::find(&service, &method)?;
        if !is_permitted(&service, &method, &claims) {
            return Err(Failure::not_permitted());
        }
        limits::authenticated(&request, None)
            .map_err(|refused| Failure::new("resource_exhausted", refused.to_string()))?;
        let body = match body::read(&request, &mut payload.into_inner()).await {
            Err(error @ BodyError::TooLarge { .. }) => {
                // Twirp has no code for it, and its clients go by the code.
                return Ok(Failure::from(error).answer_as(StatusCode::PAYLOAD_TOO_LARGE));
            }
            body => body?,
        };
        let call = Call {
            rooms,
            calls: &state.calls,
            trunks: state.trunks.as_ref(),
            egress: state.egress.as_ref(),
            former: state.former.as_ref(),
            claims,
            wire,
            method: known,
            body: &body,
        };
        match service.as_str() {
            ROOM_SERVICE => call.room_service().await,
            SIP_SERVICE => call.sip_service().await,
            EGRESS_SERVICE => Box::pin(call.egress_service()).await,
            _ => call.dispatch_service().await,
        }
    };
    answer.await.unwrap_or_else(|failure| failure.answer())
}

/// The claims of the request's token.
fn claims(request: &HttpRequest, keys: &token::Keys) -> Result<Claims, Failure> {
    let header = request.headers().get(header::AUTHORIZATION);
    let header = header.and_then(|value| value.to_str().ok()).unwrap_or("");
    let token = header
        .strip_prefix("Bearer ")
        .ok_or_else(|| Failure::unauthenticated("no access token was given"))?;
    token::verify(token, keys, Now::read().unix_s())
        .map_err(|error| Failure::unauthenticated(error.to_string()))
}

/// Whether a token may use this method at all; the room is in the body.
fn is_permitted(service: &str, method: &str, claims: &Claims) -> bool {
    match service {
        ROOM_SERVICE => rooms::may_allow(method, &claims.video),
        SIP_SERVICE => sip::may_allow(method, claims),
        EGRESS_SERVICE => claims.video.room_record,
        _ => claims.video.room_admin,
    }
}

struct Call<'a> {
    rooms: &'a RoomServer,
    calls: &'a Addr<CallRegistry>,
    trunks: Option<&'a Arc<Trunks>>,
    egress: Option<&'a EgressService>,
    former: Option<&'a AtFormer>,
    claims: Claims,
    wire: Wire,
    method: &'static Method,
    body: &'a [u8],
}

impl Call<'_> {
    /// The decoded request, if the token allows it and all of it would happen.
    pub(super) fn read<T: Shaped + DeserializeOwned + Serialize>(
        &self,
        allowed: impl FnOnce(&T, &Claims) -> bool,
    ) -> Result<T, Failure> {
        let said = self.wire.read::<T>(self.body)?;
        if !allowed(&said, &self.claims) {
            return Err(Failure::not_permitted());
        }
        support::check(self.method.fields, &said, "")?;
        Ok(said)
    }

    /// The same where the head of the request says who may.
    fn anywhere<T: Shaped + DeserializeOwned + Serialize>(&self) -> Result<T, Failure> {
        self.read(|_, _| true)
    }

    /// The table names a method that nothing here does: a mistake of ours.
    fn forgotten(&self) -> Failure {
        Failure::new("internal", format!("nothing does {}", self.method.name))
    }

    /// The same for a method that concerns one room.
    fn of_room<T: Shaped + DeserializeOwned + Serialize>(
        &self,
        room: impl FnOnce(&T) -> &str,
    ) -> Result<T, Failure> {
        self.read(|said: &T, claims| {
            let grants = &claims.video;
            grants.room_admin && grants.room == room(said)
        })
    }
}
