//! `/sip/call`, `/sip/transfer`, `/sip/transfers` and `/sip/hold`: requests are validated here; everything else is up to the
//! registry of calls.

use std::time::Duration;

use actix_web::web;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth::Entered;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::{MAX_NAME_CHARS, if_given, phone_number, required};
use crate::state::AppState;
use vivavoce_actors::registry::calls::warm::machine::Agent;
use vivavoce_actors::registry::calls::warm::{
    BeginTransfer, Finish, FinishTransfer, HoldCall, ListTransfers, TransferInfo, Way, Which,
};
use vivavoce_actors::registry::calls::{
    CallsError, OwnGateway, PlaceCall, SIP_URI_PATTERN, SipUri, Target, TransferCall, Until,
};
use vivavoce_auth::Access;
use vivavoce_config::Secret;
use vivavoce_core::phone::{self, Gateway};
use vivavoce_seams::rooms::telephone::{CallErrorKind, Classify, Hold, Login, TransferTarget};

/// The longest display name, in bytes.
const MAX_DISPLAY_NAME: usize = 128;
/// How long the beep of an answering machine is waited for, by default and at most.
const BEEP_SECONDS: u32 = 60;
pub const MOST_BEEP_SECONDS: u32 = 300;

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
    /// The number to call; it, or `to_sip_uri`.
    #[schemars(length(max = 256), regex(pattern = phone::PATTERN))]
    to_phone_number: Option<String>,
    /// The SIP URI to call instead, `sip:user@host` at a host that `sip.allowed_hosts` names, or `sip:user` for a telephone that is
    /// registered here.
    #[schemars(length(max = 256), regex(pattern = SIP_URI_PATTERN))]
    to_sip_uri: Option<String>,
    /// The name that is shown beside the caller ID, where the gateway passes it on.
    #[schemars(length(max = 128))]
    from_display_name: Option<String>,
    /// Whether the called side is not to see who calls.
    hide_caller_id: Option<bool>,
    /// Whether it is found out who answers: event `call_classified`, webhook `call.classified`.
    #[schemars(extend("default" = false))]
    classify: Option<bool>,
    /// Whether the beep of an answering machine is waited for: event `beep`, webhook `call.beep`. Only with `classify`.
    #[schemars(extend("default" = false))]
    wait_for_beep: Option<bool>,
    /// How long, from when it is known to be a machine. Only with `wait_for_beep`.
    #[schemars(range(min = 1, max = 300), extend("default" = 60))]
    beep_timeout_seconds: Option<u32>,
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
    /// `blind`: the other side is asked to call the number (REFER). `warm`: the number is called into the room while the caller
    /// is on hold, and the two are connected later.
    #[schemars(extend("enum" = ["blind", "warm"], "default" = "blind"))]
    mode: Option<String>,
    /// The caller ID of a warm transfer; default: our number of the caller's call.
    #[schemars(length(max = 256), regex(pattern = phone::PATTERN))]
    from_phone_number: Option<String>,
    /// The identity of the person who is called by a warm transfer; default: `sip_` and the number.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"\S"))]
    person_identity: Option<String>,
    /// The display name of that person; default: the number.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"\S"))]
    person_name: Option<String>,
    /// Who is removed from the room when a warm transfer is completed.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"\S"))]
    agent_identity: Option<String>,
    /// The caller's own gateway for a warm transfer; default: the server's.
    sip: Option<Overrides>,
}

/// Body of `POST /sip/transfers/{transfer_id}/complete`.
#[derive(Deserialize, JsonSchema)]
pub struct CompleteRequest {
    /// Whether the agent leaves, or stays and all three hear each other.
    #[schemars(extend("enum" = ["leave", "stay"], "default" = "leave"))]
    agent: Option<String>,
    /// How the two are connected: in the room, or by their own exchange (REFER with `Replaces`), which leaves this server out; where
    /// that does not take it, in the room.
    #[schemars(extend("enum" = ["room", "refer"], "default" = "room"))]
    by: Option<String>,
}

/// Body of `POST /sip/transfers/{transfer_id}/cancel`.
#[derive(Deserialize, JsonSchema)]
pub struct CancelRequest {}

/// Body of `POST /sip/hold`.
#[derive(Deserialize, JsonSchema)]
pub struct HoldRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// The identity of the call's participant.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
    /// Whether the call is put on hold or taken off.
    #[schemars(extend("default" = true))]
    held: Option<bool>,
    /// Whether it hears `sip.hold_sound` or `sip.hold_text` meanwhile.
    #[schemars(extend("default" = true))]
    music: Option<bool>,
}

/// Response of `POST /sip/hold`.
#[derive(Serialize, JsonSchema)]
pub struct HoldAnswer {
    #[schemars(extend("enum" = ["held", "resumed"]))]
    status: &'static str,
    room_name: String,
    participant_identity: String,
}

/// Response of `GET /sip/transfers`.
#[derive(Serialize, JsonSchema)]
pub struct TransferList {
    transfers: Vec<TransferInfo>,
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
    /// The id of a warm transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer_id: Option<String>,
    /// The identity of the person who is called by a warm transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    person_identity: Option<String>,
    /// That person's call.
    #[serde(skip_serializing_if = "Option::is_none")]
    person_sip_call_id: Option<String>,
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
        to: target(request.to_phone_number, request.to_sip_uri)?,
        display_name: display_name(request.from_display_name)?,
        hides_caller: request.hide_caller_id.unwrap_or_default(),
        classify: classify(
            request.classify,
            request.wait_for_beep,
            request.beep_timeout_seconds,
        )?,
        gateway: gateway_or_default(request.sip)?,
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

/// Whom a request calls: a number or a URI.
fn target(number: Option<String>, uri: Option<String>) -> Result<Target, ApiError> {
    let refused = |message: String| ApiError::new(Code::InvalidRequest, message);
    match (number, uri) {
        (Some(_), Some(_)) => Err(refused(
            "to_sip_uri: is instead of to_phone_number".to_owned(),
        )),
        (number, None) => phone_number(number, "to_phone_number").map(Target::Number),
        (None, Some(uri)) => {
            let uri = SipUri::parse(&uri);
            let uri = uri.map_err(|problem| refused(format!("to_sip_uri: {problem}")));
            uri.map(Target::Uri)
        }
    }
}

/// What is to be found out of who answers.
fn classify(
    classify: Option<bool>,
    wait_for_beep: Option<bool>,
    seconds: Option<u32>,
) -> Result<Option<Classify>, ApiError> {
    let waits = wait_for_beep.unwrap_or_default();
    if waits && !classify.unwrap_or_default() {
        return Err(invalid("wait_for_beep: needs classify"));
    }
    if seconds.is_some() && !waits {
        return Err(invalid("beep_timeout_seconds: needs wait_for_beep"));
    }
    let seconds = seconds.unwrap_or(BEEP_SECONDS);
    if !(1..=MOST_BEEP_SECONDS).contains(&seconds) {
        return Err(invalid("beep_timeout_seconds: must be from 1 to 300"));
    }
    let beep_within = waits.then(|| Duration::from_secs(seconds.into()));
    let wanted = classify.unwrap_or_default();
    Ok(wanted.then_some(Classify { beep_within }))
}

/// What is shown beside the caller ID.
fn display_name(said: Option<String>) -> Result<Option<String>, ApiError> {
    let said = said.filter(|name| !name.is_empty());
    let fits = |name: &String| name.len() <= MAX_DISPLAY_NAME && !name.contains(char::is_control);
    if !said.as_ref().is_none_or(fits) {
        let problem = "from_display_name: must be at most 128 bytes without control characters";
        return Err(ApiError::new(Code::InvalidRequest, problem));
    }
    Ok(said)
}

/// The gateway of a request's call, with its credentials.
pub(super) fn own_gateway(overrides: Overrides) -> Result<OwnGateway, ApiError> {
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
    let is_warm = match request.mode.as_deref() {
        None | Some("blind") => false,
        Some("warm") => true,
        Some(_) => return Err(invalid("mode: must be blind or warm")),
    };
    let names = [
        ("person_identity", &request.person_identity),
        ("person_name", &request.person_name),
        ("agent_identity", &request.agent_identity),
    ];
    let of_warm = [("from_phone_number", &request.from_phone_number)];
    let mut of_warm = of_warm.iter().chain(&names);
    if let Some((field, _)) = of_warm.find(|(_, value)| value.is_some() && !is_warm) {
        return Err(invalid(&format!("{field}: is for mode warm")));
    }
    if request.sip.is_some() && !is_warm {
        return Err(invalid("sip: is for mode warm"));
    }
    let mut answer = TransferAnswer {
        status: INITIATED.to_owned(),
        room_name: room.clone(),
        participant_identity: identity.clone(),
        transfer_to: to.as_str().to_owned(),
        transfer_id: None,
        person_identity: None,
        person_sip_call_id: None,
    };
    let failed = |error| refused(error, Code::TransferFailed, Code::ParticipantNotFound);
    if !is_warm {
        let wish = TransferCall {
            access,
            room,
            identity,
            to: TransferTarget::Number(to),
            ringing_timeout: None,
            until: Until::Accepted,
        };
        let moved = state.calls.send(wish).await?;
        moved.map_err(failed)?;
        return Ok(web::Json(answer));
    }
    let wish = BeginTransfer {
        access,
        room,
        identity,
        to,
        from: if_given(request.from_phone_number, "from_phone_number", phone_number)?,
        person_identity: if_given(request.person_identity, "person_identity", required)?,
        person_name: if_given(request.person_name, "person_name", required)?,
        agent: if_given(request.agent_identity, "agent_identity", required)?,
        gateway: gateway_or_default(request.sip)?,
        queued: None,
    };
    let begun = state.calls.send(wish).await?.map_err(failed)?;
    answer.transfer_id = Some(begun.transfer_id);
    answer.person_identity = Some(begun.person_identity);
    answer.person_sip_call_id = Some(begun.person_sip_call_id);
    Ok(web::Json(answer))
}

/// The gateway that a request names, or the one of the settings.
pub(super) fn gateway_or_default(own: Option<Overrides>) -> Result<OwnGateway, ApiError> {
    own.map_or_else(|| Ok(OwnGateway::default()), own_gateway)
}

pub(super) fn invalid(message: &str) -> ApiError {
    ApiError::new(Code::InvalidRequest, message.to_owned())
}

/// Lists warm transfers.
pub async fn transfers(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<TransferList>, ApiError> {
    let transfers = state.calls.send(ListTransfers { access }).await?;
    Ok(web::Json(TransferList { transfers }))
}

/// Shows a warm transfer.
pub async fn show_transfer(
    Entered(access): Entered,
    state: web::Data<AppState>,
    id: web::Path<String>,
) -> Result<web::Json<TransferInfo>, ApiError> {
    let transfers = state.calls.send(ListTransfers { access }).await?;
    let mut transfers = transfers.into_iter();
    let found = transfers.find(|transfer| transfer.transfer_id == *id);
    let none = || ApiError::new(Code::NotFound, CallsError::NoTransfer.to_string());
    found.map(web::Json).ok_or_else(none)
}

/// Connects the two of a warm transfer.
pub async fn complete_transfer(
    Entered(access): Entered,
    state: web::Data<AppState>,
    id: web::Path<String>,
    body: JsonBody<CompleteRequest>,
) -> Result<web::Json<TransferInfo>, ApiError> {
    let JsonBody(request) = body;
    let agent = match request.agent.as_deref() {
        None | Some("leave") => Agent::Leave,
        Some("stay") => Agent::Stay,
        Some(_) => return Err(invalid("agent: must be leave or stay")),
    };
    let way = Way::parse(request.by.as_deref());
    let way = way.ok_or_else(|| invalid("by: must be room or refer"))?;
    finish(
        &state,
        access,
        id.into_inner(),
        Finish::Complete(agent, way),
    )
    .await
}

/// Ends a warm transfer; the caller is off hold.
pub async fn cancel_transfer(
    Entered(access): Entered,
    state: web::Data<AppState>,
    id: web::Path<String>,
    _: JsonBody<CancelRequest>,
) -> Result<web::Json<TransferInfo>, ApiError> {
    finish(&state, access, id.into_inner(), Finish::Cancel).await
}

async fn finish(
    state: &AppState,
    access: Access,
    id: String,
    finish: Finish,
) -> Result<web::Json<TransferInfo>, ApiError> {
    let wish = FinishTransfer {
        access,
        which: Which::Id(id),
        finish,
        agent: None,
    };
    let finished = state.calls.send(wish).await?;
    let failed = |error| refused(error, Code::TransferFailed, Code::ParticipantNotFound);
    finished.map(web::Json).map_err(failed)
}

/// Puts a call on hold, or takes it off.
pub async fn hold(
    Entered(access): Entered,
    state: web::Data<AppState>,
    body: JsonBody<HoldRequest>,
) -> Result<web::Json<HoldAnswer>, ApiError> {
    let JsonBody(request) = body;
    let held = request.held.unwrap_or(true);
    let wish = HoldCall {
        access,
        room: required(request.room_name, "room_name")?,
        identity: required(request.participant_identity, "participant_identity")?,
        hold: match (held, request.music.unwrap_or(true)) {
            (false, _) => Hold::Off,
            (true, false) => Hold::Silence,
            (true, true) => Hold::Music,
        },
    };
    let answer = HoldAnswer {
        status: if held { "held" } else { "resumed" },
        room_name: wish.room.clone(),
        participant_identity: wish.identity.clone(),
    };
    let held = state.calls.send(wish).await?;
    held.map_err(|error| refused(error, Code::CallFailed, Code::ParticipantNotFound))?;
    Ok(web::Json(answer))
}

/// Maps an error of the registry of calls; `failed` is the code for errors without one of their own, `missing` for
/// something that does not exist: a participant to transfer, or for a new call something at the provider.
pub(super) fn refused(error: CallsError, failed: Code, missing: Code) -> ApiError {
    let message = error.to_string();
    let code = match error {
        CallsError::Rooms(error) => return error.into(),
        CallsError::Quota(refused) => return refused.into(),
        CallsError::NoAddress => Code::OutboundAddressNotConfigured,
        CallsError::NotAllowed { .. } | CallsError::HostNotAllowed { .. } => {
            Code::DestinationNotAllowed
        }
        CallsError::OthersNumber
        | CallsError::NoCallerId
        | CallsError::NotClassified(_)
        | CallsError::QueueName => Code::InvalidRequest,
        CallsError::NoTransfer | CallsError::EmptyQueue | CallsError::NoQueuedCall => {
            Code::NotFound
        }
        CallsError::QueueFull(_) => Code::Overloaded,
        CallsError::CallerGone => Code::ParticipantNotFound,
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
        | CallsError::Transfer(_)
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
    fn a_beep_is_waited_for_where_it_is_found_out_who_answers() {
        let wanted = classify(Some(true), Some(true), Some(5)).unwrap().unwrap();
        assert_eq!(wanted.beep_within, Some(Duration::from_secs(5)));
        let wanted = classify(Some(true), None, None).unwrap().unwrap();
        assert_eq!(wanted.beep_within, None);
        assert!(classify(None, Some(false), None).unwrap().is_none());
        for (wants, waits, seconds, field) in [
            (None, Some(true), None, "wait_for_beep"),
            (Some(false), Some(true), None, "wait_for_beep"),
            (Some(true), None, Some(5), "beep_timeout_seconds"),
            (Some(true), Some(true), Some(0), "beep_timeout_seconds"),
            (Some(true), Some(true), Some(301), "beep_timeout_seconds"),
        ] {
            let refused = classify(wants, waits, seconds).unwrap_err().to_string();
            assert!(refused.contains(&format!("{field}: ")), "{refused}");
        }
    }

    #[test]
    fn only_one_who_is_moved_can_be_missing() {
        let missing = || CallError::new(CallErrorKind::NotFound, "no such trunk").into();
        let call = refused(missing(), Code::CallFailed, Code::CallFailed);
        assert_eq!(call.status_code(), 500);
        let transfer = refused(missing(), Code::TransferFailed, Code::ParticipantNotFound);
        assert_eq!(transfer.status_code(), 404);
    }
}
