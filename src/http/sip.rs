//! `/sip/…`: calls, transfers and hooks. What a request must hold is checked here; there is no telephone behind it yet,
//! and every valid request is told so.

use std::collections::HashSet;
use std::fmt;

use actix_web::{HttpResponse, web};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::body::JsonBody;
use super::error::{ApiError, Code};
use super::fields::{phone_number, required};
use super::rtc::not_configured;
use super::state::AppState;
use crate::auth::Access;

/// The most hooks of one request.
const MAX_HOOKS: usize = 1000;

/// Body of `POST /sip/call`.
#[derive(Deserialize)]
pub struct CallRequest {
    room_name: Option<String>,
    participant_name: Option<String>,
    participant_identity: Option<String>,
    from_phone_number: Option<String>,
    to_phone_number: Option<String>,
    sip: Option<Overrides>,
}

/// The caller's own gateway.
#[derive(Deserialize)]
pub struct Overrides {
    outbound_address: Option<String>,
    auth_username: Option<String>,
    auth_password: Option<String>,
}

/// Body of `POST /sip/transfer`.
#[derive(Deserialize)]
pub struct TransferRequest {
    room_name: Option<String>,
    participant_identity: Option<String>,
    transfer_to: Option<String>,
}

/// Body of `POST /sip/hooks`: the array itself, or an object around it.
pub struct HooksRequest(Vec<HookRequest>);

impl<'de> Deserialize<'de> for HooksRequest {
    /// By hand, so that what does not fit is named in either form.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EitherForm;

        impl<'de> Visitor<'de> for EitherForm {
            type Value = HooksRequest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of hooks, or an object with one as hooks")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, array: A) -> Result<HooksRequest, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(array)).map(HooksRequest)
            }

            fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<HooksRequest, A::Error> {
                #[derive(Deserialize)]
                struct Wrapped {
                    #[serde(default)]
                    hooks: Vec<HookRequest>,
                }
                Wrapped::deserialize(MapAccessDeserializer::new(object))
                    .map(|wrapped| HooksRequest(wrapped.hooks))
            }
        }

        deserializer.deserialize_any(EitherForm)
    }
}

/// One hook of a request.
#[derive(Deserialize)]
pub struct HookRequest {
    host: Option<String>,
    url: Option<String>,
}

/// Body of `DELETE /sip/hooks`.
#[derive(Deserialize)]
pub struct HostsRequest {
    hosts: Option<Vec<String>>,
}

/// Answer of everything under `/sip/hooks`.
#[derive(Serialize)]
pub struct HookList {
    hooks: [(); 0],
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
    Err(not_configured())
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
    Err(not_configured())
}

/// Lists hooks: as long as there is no telephone there are none.
pub async fn hooks(_: Access) -> web::Json<HookList> {
    web::Json(HookList { hooks: [] })
}

/// Adds hooks.
pub async fn add_hooks(_: Access, body: JsonBody<HooksRequest>) -> Result<HttpResponse, ApiError> {
    let JsonBody(HooksRequest(hooks)) = body;
    let refused = |problem: String| ApiError::new(Code::InvalidRequest, problem);
    if hooks.is_empty() || hooks.len() > MAX_HOOKS {
        return Err(refused(format!("hooks: must be 1 to {MAX_HOOKS}")));
    }
    let mut hosts = HashSet::new();
    for (index, hook) in hooks.into_iter().enumerate() {
        let host = required(hook.host, &format!("hooks[{index}].host"))?;
        let url = required(hook.url, &format!("hooks[{index}].url"))?;
        if !url.starts_with("https://") {
            return Err(refused(format!(
                "hooks[{index}].url: must begin with https://"
            )));
        }
        if !hosts.insert(host.to_lowercase()) {
            return Err(refused(format!("hooks[{index}].host: is there twice")));
        }
    }
    Err(no_telephone())
}

/// Removes hooks.
pub async fn remove_hooks(
    _: Access,
    body: JsonBody<HostsRequest>,
) -> Result<HttpResponse, ApiError> {
    let JsonBody(HostsRequest { hosts }) = body;
    let refused = |problem: String| ApiError::new(Code::InvalidRequest, problem);
    let hosts = hosts.ok_or_else(|| refused("hosts: is required".to_owned()))?;
    if hosts.is_empty() || hosts.len() > MAX_HOOKS {
        return Err(refused(format!("hosts: must be 1 to {MAX_HOOKS}")));
    }
    for (index, host) in hosts.into_iter().enumerate() {
        required(Some(host), &format!("hosts[{index}]"))?;
    }
    Err(no_telephone())
}

fn no_telephone() -> ApiError {
    ApiError::new(Code::StorageError, "this server keeps no hooks")
}
