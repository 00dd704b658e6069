//! `/sip/…`: calls, transfers and hooks. What a request must hold is checked here; there is no telephone behind it yet,
//! and every valid request is told so.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use actix_web::{HttpResponse, web};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::body::JsonBody;
use super::error::{ApiError, Code};
use super::fields::{phone_number, required};
use super::state::AppState;
use crate::auth::Access;
use crate::phone;

/// The most hooks of one request.
const MAX_HOOKS: usize = 1000;

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

impl JsonSchema for HooksRequest {
    fn schema_name() -> Cow<'static, str> {
        "HooksRequest".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let hook = generator.subschema_for::<HookRequest>();
        let hooks = json!({"type": "array", "items": hook, "minItems": 1, "maxItems": MAX_HOOKS});
        json_schema!({
            "description": "Hooks to add or replace: the array itself, or an object around it.",
            "oneOf": [
                hooks,
                {"type": "object", "properties": {"hooks": hooks}, "required": ["hooks"]},
            ],
        })
    }
}

/// Where telephone events of a host are sent.
#[derive(Deserialize, JsonSchema)]
pub struct HookRequest {
    /// Compared without regard to case; no two of a request may be the same.
    #[schemars(required, length(min = 1, max = 256), regex(pattern = r"\S"))]
    host: Option<String>,
    /// Where to.
    #[schemars(required, length(max = 256), regex(pattern = "^https://"))]
    url: Option<String>,
}

/// Body of `DELETE /sip/hooks`.
#[derive(Deserialize, JsonSchema)]
pub struct HostsRequest {
    /// Compared without regard to case; unknown ones are ignored.
    #[schemars(
        required,
        length(min = 1, max = 1000),
        inner(length(min = 1, max = 256), regex(pattern = r"\S"))
    )]
    hosts: Option<Vec<String>>,
}

/// Answer of everything under `/sip/hooks`.
#[derive(Serialize, JsonSchema)]
pub struct HookList {
    hooks: Vec<Hook>,
}

/// A hook, without its secret.
#[derive(Serialize, JsonSchema)]
pub struct Hook {
    host: String,
    url: String,
    /// The tenant that it belongs to.
    auth_id: Option<String>,
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

/// Lists hooks: as long as there is no telephone there are none.
pub async fn hooks(_: Access) -> web::Json<HookList> {
    web::Json(HookList { hooks: Vec::new() })
}

/// Adds hooks.
pub async fn add_hooks(
    _: Access,
    body: JsonBody<HooksRequest, true>,
) -> Result<HttpResponse, ApiError> {
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
