//! `/sip/call` and `/sip/transfer`: what a request must hold is checked here; there is no telephone behind it yet, and
//! every valid request is told so.

use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth::Access;
use crate::http::body::JsonBody;
use crate::http::error::{ApiError, Code};
use crate::http::fields::{phone_number, required};
use crate::http::state::AppState;
use crate::phone;

/// Body of `POST /sip/call`.
#[derive(Deserialize, JsonSchema)]
pub struct CallRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// What people read.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_name: Option<String>,
    /// Who, as the room knows them.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
    /// Whose number is shown; the SIP provider must know it.
    #[schemars(required, length(max = 256), regex(pattern = phone::PATTERN))]
    from_phone_number: Option<String>,
    /// Whom to call.
    #[schemars(required, length(max = 256), regex(pattern = phone::PATTERN))]
    to_phone_number: Option<String>,
    /// The caller's own gateway; the server's when absent.
    sip: Option<Overrides>,
}

/// The caller's own gateway.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("dependentRequired" = {"auth_password": ["auth_username"]}))]
pub struct Overrides {
    /// `hostname` or `hostname:port`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,253}(:[1-9][0-9]{0,4})?$"))]
    outbound_address: Option<String>,
    /// For the gateway; required with `auth_password`.
    auth_username: Option<String>,
    /// For the gateway.
    #[schemars(extend("format" = "password"))]
    auth_password: Option<String>,
}

/// Body of `POST /sip/transfer`.
#[derive(Deserialize, JsonSchema)]
pub struct TransferRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// Who, as the room knows them.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
    /// Whom to call instead.
    #[schemars(required, length(max = 256), regex(pattern = phone::PATTERN))]
    transfer_to: Option<String>,
}

/// Answer of `POST /sip/call`.
#[derive(Serialize, JsonSchema)]
pub struct CallAnswer {
    #[schemars(extend("const" = "initiated"))]
    status: String,
    room_name: String,
    participant_identity: String,
    /// Of the room.
    participant_id: String,
    sip_call_id: String,
}

/// Answer of `POST /sip/transfer`.
#[derive(Serialize, JsonSchema)]
pub struct TransferAnswer {
    #[schemars(extend("const" = "initiated"))]
    status: String,
    room_name: String,
    participant_identity: String,
    /// As it is dialled.
    transfer_to: String,
}

/// Calls a number into a room.
pub async fn call(
    _: Access,
    state: web::Data<AppState>,
    body: JsonBody<CallRequest>,
) -> Result<HttpResponse, ApiError> {
    let JsonBody(request) = body;
    required(request.room_name, "room_name")?;
    required(request.participant_name, "participant_name")?;
    required(request.participant_identity, "participant_identity")?;
    phone_number(request.from_phone_number, "from_phone_number")?;
    phone_number(request.to_phone_number, "to_phone_number")?;
    let outbound = request.sip.map(check_outbound).transpose()?.flatten();
    if outbound
        .or_else(|| state.outbound_address.clone())
        .is_none()
    {
        return Err(ApiError::new(
            Code::OutboundAddressNotConfigured,
            "neither sip.outbound_address of the request nor that of the server says where calls go",
        ));
    }
    Err(not_built(Code::CallFailed))
}

/// The telephone is not built yet.
fn not_built(code: Code) -> ApiError {
    ApiError::new(code, "this server cannot telephone yet")
}

/// The address of a request: `hostname` or `hostname:port`.
fn check_outbound(outbound: Overrides) -> Result<Option<String>, ApiError> {
    let refused = |field: &str, problem: &str| {
        ApiError::new(Code::InvalidRequest, format!("sip.{field}: {problem}"))
    };
    let Overrides {
        outbound_address,
        auth_username,
        auth_password,
    } = outbound;
    if auth_password.is_some() && auth_username.is_none() {
        return Err(refused("auth_username", "is required with auth_password"));
    }
    let Some(address) = outbound_address else {
        return Ok(None);
    };
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (address.as_str(), None),
    };
    let host_fits = !host.is_empty()
        && host.len() <= 253
        && host
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']'));
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if host_fits && port_fits {
        Ok(Some(address))
    } else {
        Err(refused(
            "outbound_address",
            "must be hostname or hostname:port",
        ))
    }
}

/// Transfers a call.
pub async fn transfer(
    _: Access,
    body: JsonBody<TransferRequest>,
) -> Result<HttpResponse, ApiError> {
    let JsonBody(request) = body;
    required(request.room_name, "room_name")?;
    required(request.participant_identity, "participant_identity")?;
    phone_number(request.transfer_to, "transfer_to")?;
    Err(not_built(Code::TransferFailed))
}
