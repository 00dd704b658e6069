//! `/sip/queues`: requests are validated here; who waits and who is connected is up to the registry of calls.

use actix_web::web;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calls::{Overrides, gateway_or_default, invalid, refused};
use crate::auth::Entered;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::{if_given, phone_number, required};
use crate::state::AppState;
use vivavoce_actors::registry::calls::CallsError;
use vivavoce_actors::registry::calls::queues::{
    Destination, EnterQueue, LeaveQueue, ListQueues, NextCall, Person, QueueInfo, QueuedCall,
    Waiter,
};
use vivavoce_auth::TenantId;
use vivavoce_core::phone;

/// Body of `POST /sip/queues/{queue_name}/calls`.
#[derive(Deserialize, JsonSchema)]
pub struct QueueRequest {
    /// The room.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// The identity of the call's participant.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    participant_identity: Option<String>,
}

/// Body of `POST /sip/queues/{queue_name}/next`.
#[derive(Deserialize, JsonSchema)]
pub struct NextRequest {
    /// The room to which the caller is connected; it, or `transfer_to`.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"\S"))]
    room_name: Option<String>,
    /// The number that is called into the caller's room; the two are connected when it answers.
    #[schemars(length(max = 256), regex(pattern = phone::PATTERN))]
    transfer_to: Option<String>,
    /// The caller ID; default: our number of the caller's call. Only with `transfer_to`, as all that follow.
    #[schemars(length(max = 256), regex(pattern = phone::PATTERN))]
    from_phone_number: Option<String>,
    /// The identity of the person who is called; default: `sip_` and the number.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"\S"))]
    person_identity: Option<String>,
    /// The display name of that person; default: the number.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"\S"))]
    person_name: Option<String>,
    /// Who is removed from the caller's room when the two are connected.
    #[schemars(length(min = 1, max = 256), regex(pattern = r"\S"))]
    agent_identity: Option<String>,
    /// The caller's own gateway; default: the server's.
    sip: Option<Overrides>,
    /// Whose queue; may be given only by a caller without a tenant. Default: the operator's.
    #[schemars(length(min = 1, max = 256))]
    tenant: Option<String>,
}

/// Response of `GET /sip/queues`.
#[derive(Serialize, JsonSchema)]
pub struct QueueList {
    queues: Vec<QueueInfo>,
}

/// Lists the queues in which somebody waits.
pub async fn list(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<QueueList>, ApiError> {
    let queues = state.calls.send(ListQueues { access }).await?;
    Ok(web::Json(QueueList { queues }))
}

/// Puts a call into a queue.
pub async fn enter(
    Entered(access): Entered,
    state: web::Data<AppState>,
    queue: web::Path<String>,
    body: JsonBody<QueueRequest>,
) -> Result<web::Json<QueuedCall>, ApiError> {
    let JsonBody(request) = body;
    let wish = EnterQueue {
        access,
        room: required(request.room_name, "room_name")?,
        identity: required(request.participant_identity, "participant_identity")?,
        queue: queue.into_inner(),
    };
    let entered = state.calls.send(wish).await?;
    entered.map(web::Json).map_err(failed)
}

/// Takes a call out of a queue.
pub async fn leave(
    Entered(access): Entered,
    state: web::Data<AppState>,
    path: web::Path<(String, String)>,
) -> Result<web::Json<QueuedCall>, ApiError> {
    let (queue, sip_call_id) = path.into_inner();
    let wish = LeaveQueue {
        access,
        which: Waiter::Call { queue, sip_call_id },
    };
    let left = state.calls.send(wish).await?;
    left.map(web::Json).map_err(failed)
}

/// Connects the caller who waits longest.
pub async fn next(
    Entered(access): Entered,
    state: web::Data<AppState>,
    queue: web::Path<String>,
    body: JsonBody<NextRequest>,
) -> Result<web::Json<QueuedCall>, ApiError> {
    let JsonBody(mut request) = body;
    let tenant = match request.tenant.take() {
        None => None,
        Some(_) if access.tenant().is_some() => {
            return Err(invalid("tenant: is for callers without a tenant"));
        }
        Some(id) => Some(TenantId::new(&id).map_err(|_| invalid("tenant: is no tenant"))?),
    };
    let wish = NextCall {
        access,
        tenant,
        queue: queue.into_inner(),
        to: destination(request)?,
    };
    let connected = state.calls.send(wish).await?;
    connected.map(web::Json).map_err(failed)
}

fn failed(error: CallsError) -> ApiError {
    refused(error, Code::CallFailed, Code::ParticipantNotFound)
}

/// To whom a request connects a caller: a room or a number.
fn destination(request: NextRequest) -> Result<Destination, ApiError> {
    let NextRequest {
        room_name,
        transfer_to,
        from_phone_number,
        person_identity,
        person_name,
        agent_identity,
        sip,
        tenant: _,
    } = request;
    let Some(to) = transfer_to else {
        for (field, is_given) in [
            ("from_phone_number", from_phone_number.is_some()),
            ("person_identity", person_identity.is_some()),
            ("person_name", person_name.is_some()),
            ("agent_identity", agent_identity.is_some()),
            ("sip", sip.is_some()),
        ] {
            if is_given {
                return Err(invalid(&format!("{field}: needs transfer_to")));
            }
        }
        return required(room_name, "room_name").map(Destination::Room);
    };
    if room_name.is_some() {
        return Err(invalid("transfer_to: is instead of room_name"));
    }
    Ok(Destination::Number(Box::new(Person {
        to: phone_number(Some(to), "transfer_to")?,
        from: if_given(from_phone_number, "from_phone_number", phone_number)?,
        identity: if_given(person_identity, "person_identity", required)?,
        name: if_given(person_name, "person_name", required)?,
        agent: if_given(agent_identity, "agent_identity", required)?,
        gateway: gateway_or_default(sip)?,
    })))
}
