//! `/sip/call` and `/sip/transfer`: requests are validated here; everything else is up to the registry of calls.

use actix_web::web;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth::Entered;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::{MAX_NAME_CHARS, phone_number, required};
use crate::state::AppState;
use vivavoce_actors::registry::calls::{CallsError, OwnGateway, PlaceCall, TransferCall, Until};
use vivavoce_config::Secret;
use vivavoce_core::phone::{self, Gateway};
use vivavoce_seams::rooms::telephone::{CallErrorKind, Login, TransferTarget};

/// The status of an accepted request.
const INITIATED: &str = "initiated";

/// Body of `POST /sip/call`.
#[derive(Deserialize, JsonSchema)]
pub struct CallRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// The display name of the call's participant.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_name: Option<String>,
    /// The identity of the call's participant.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
    /// The caller ID; the SIP provider must accept it.
    #[schemars(required, length(max = 256), regex(pattern = phone::PATTERN))]
    from_phone_number: Option<String>,
    /// The number to call.
    #[schemars(required, length(max = 256), regex(pattern = phone::PATTERN))]
    to_phone_number: Option<String>,
    /// The caller's own gateway; default: the server's.
    sip: Option<Overrides>,
}

/// The caller's own gateway.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("dependentRequired" = {"auth_password": ["auth_username"]}))]
pub struct Overrides {
    /// `hostname` or `hostname:port`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,253}(:[1-9][0-9]{0,4})?$"))]
    outbound_address: Option<String>,
    /// User name at the gateway; required with `auth_password`.
    auth_username: Option<String>,
    /// Password at the gateway.
    #[schemars(extend("format" = "password"))]
    auth_password: Option<String>,
}

/// Body of `POST /sip/transfer`.
#[derive(Deserialize, JsonSchema)]
pub struct TransferRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// The identity of the call's participant.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
    /// The number to transfer to.
    #[schemars(required, length(max = 256), regex(pattern = phone::PATTERN))]
    transfer_to: Option<String>,
}

/// Response of `POST /sip/call`.
#[derive(Serialize, JsonSchema)]
pub struct CallAnswer {
    #[schemars(extend("const" = "initiated"))]
    status: String,
    room_name: String,
    participant_identity: String,
    /// The participant's id in the room.
    participant_id: String,
    sip_call_id: String,
}

/// Response of `POST /sip/transfer`.
#[derive(Serialize, JsonSchema)]
pub struct TransferAnswer {
    #[schemars(extend("const" = "initiated"))]
    status: String,
    room_name: String,
    participant_identity: String,
    /// The number in the form in which it is dialled.
    transfer_to: String,
}

/// Calls a number into a room.
pub async fn call(
    Entered(access): Entered,
    state: web::Data<AppState>,
    body: JsonBody<CallRequest>,
) -> Result<web::Json<CallAnswer>, ApiError> {
    let JsonBody(request) = body;
    let wish = PlaceCall {
        access,
        room: required(request.room_name, "room_name")?,
        name: required(request.participant_name, "participant_name")?,
        identity: required(request.participant_identity, "participant_identity")?,
        from: phone_number(request.from_phone_number, "from_phone_number")?,
        to: phone_number(request.to_phone_number, "to_phone_number")?,
        gateway: request
            .sip
            .map_or_else(|| Ok(OwnGateway::default()), own_gateway)?,
    };
    let (room_name, participant_identity) = (wish.room.clone(), wish.identity.clone());
    let placed = state.calls.send(wish).await?;
    let placed = placed.map_err(|error| refused(error, Code::CallFailed, Code::CallFailed))?;
    Ok(web::Json(CallAnswer {
        status: INITIATED.to_owned(),
        room_name,
        participant_identity,
        participant_id: placed.participant_sid,
        sip_call_id: placed.sip_call_id,
    }))
}

/// The gateway of a request's call, with its credentials.
fn own_gateway(overrides: Overrides) -> Result<OwnGateway, ApiError> {
    let refused = |field: &str, problem: &str| {
        ApiError::new(Code::InvalidRequest, format!("sip.{field}: {problem}"))
    };
    let Overrides {
        outbound_address,
        auth_username,
        auth_password,
    } = overrides;
    let fits = |text: &str| text.len() <= MAX_NAME_CHARS && !text.chars().any(char::is_control);
    let login = match (auth_username, auth_password) {
        (None, None) => None,
        (None, Some(_)) => return Err(refused("auth_username", "is required with auth_password")),
        (Some(username), _) if username.is_empty() || !fits(&username) => {
            return Err(refused(
                "auth_username",
                "must be 1 to 256 visible characters",
            ));
        }
        (Some(_), Some(password)) if !fits(&password) => {
            return Err(refused(
                "auth_password",
                "must be at most 256 visible characters",
            ));
        }
        (Some(username), password) => Some(Login {
            username,
            password: Secret::new(password.unwrap_or_default()),
        }),
    };
    let read = |address: String| {
        let problem = "must be hostname or hostname:port";
        Gateway::parse(&address).ok_or_else(|| refused("outbound_address", problem))
    };
    Ok(OwnGateway {
        address: outbound_address.map(read).transpose()?,
        login,
    })
}

/// Transfers a call to another number.
pub async fn transfer(
    Entered(access): Entered,
    state: web::Data<AppState>,
    body: JsonBody<TransferRequest>,
) -> Result<web::Json<TransferAnswer>, ApiError> {
    let JsonBody(request) = body;
    let room = required(request.room_name, "room_name")?;
    let identity = required(request.participant_identity, "participant_identity")?;
    let to = phone_number(request.transfer_to, "transfer_to")?;
    let answer = TransferAnswer {
        status: INITIATED.to_owned(),
        room_name: room.clone(),
        participant_identity: identity.clone(),
        transfer_to: to.as_str().to_owned(),
    };
    let wish = TransferCall {
        access,
        room,
        identity,
        to: TransferTarget::Number(to),
        ringing_timeout: None,
        until: Until::Accepted,
    };
    let moved = state.calls.send(wish).await?;
    moved.map_err(|error| refused(error, Code::TransferFailed, Code::ParticipantNotFound))?;
    Ok(web::Json(answer))
}

/// Maps an error of the registry of calls; `failed` is the code for errors without one of their own, `missing` for
/// something that does not exist: a participant to transfer, or for a new call something at the provider.
fn refused(error: CallsError, failed: Code, missing: Code) -> ApiError {
    let message = error.to_string();
    let code = match error {
        CallsError::Rooms(error) => return error.into(),
        CallsError::Quota(refused) => return refused.into(),
        CallsError::NoAddress => Code::OutboundAddressNotConfigured,
        CallsError::NotAllowed { .. } => Code::DestinationNotAllowed,
        CallsError::OthersNumber => Code::InvalidRequest,
        CallsError::Call(error) => {
            tracing::info!(kind = ?error.kind, "a call was not placed or moved");
            match error.kind {
                CallErrorKind::NotFound => missing,
                CallErrorKind::Full => Code::Overloaded,
                _ => failed,
            }
        }
        CallsError::NoTelephone(_)
        | CallsError::Unencrypted
        | CallsError::ByCarrier
        | CallsError::Unanswered(_) => failed,
    };
    ApiError::new(code, message)
}

#[cfg(test)]
mod tests {
    use actix_web::ResponseError as _;

    use super::*;
    use vivavoce_seams::rooms::telephone::CallError;

    #[test]
    fn only_one_who_is_moved_can_be_missing() {
        let missing = || CallError::new(CallErrorKind::NotFound, "no such trunk").into();
        let call = refused(missing(), Code::CallFailed, Code::CallFailed);
        assert_eq!(call.status_code(), 500);
        let transfer = refused(missing(), Code::TransferFailed, Code::ParticipantNotFound);
        assert_eq!(transfer.status_code(), 404);
    }
}
