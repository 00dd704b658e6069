//! `/sip/hooks`: hooks for inbound calls, by called host. Requests are validated here; what may be changed, and where
//! it is stored, is up to the registry.

use std::borrow::Cow;
use std::fmt;

use actix_web::http::Method;
use actix_web::web;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::AppState;
use crate::auth::Entered;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::fields::required;
use vivavoce_actors::registry::hooks::{ListHooks, PutHooks, RemoveHooks};
use vivavoce_hooks::{self as hooks, HookError, MAX_URL_BYTES, RequestedHook};

/// The maximum number of hooks per request.
const MAX_HOOKS: usize = 1000;
/// Host names and IPv4 addresses; IPv6 addresses with or without brackets.
const HOST: &str = r"^[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?$|^\[?[0-9A-Fa-f:.]+\]?$";

/// Body of `POST /sip/hooks`: the array itself, or an object containing it.
pub struct HooksRequest(Vec<HookRequest>);

impl<'de> Deserialize<'de> for HooksRequest {
    /// Implemented by hand, so that errors name the field in either form.
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

/// A hook for calls to a host.
#[derive(Deserialize, JsonSchema)]
pub struct HookRequest {
    /// A name or an address, without a port, compared case-insensitively. Unique within a request.
    #[schemars(required, length(min = 1, max = 253), regex(pattern = HOST))]
    host: Option<String>,
    /// The URL to notify: https at a public address, unless the server's settings allow more.
    #[schemars(required, length(max = MAX_URL_BYTES), regex(pattern = "^https?://"))]
    url: Option<String>,
    /// The tenant that it belongs to; only for callers without a tenant.
    #[schemars(length(min = 1, max = 256))]
    auth_id: Option<String>,
}

/// Body of `DELETE /sip/hooks`.
#[derive(Deserialize, JsonSchema)]
pub struct HostsRequest {
    /// Compared case-insensitively; unknown hosts are ignored.
    #[schemars(
        required,
        length(min = 1, max = 1000),
        inner(length(min = 1, max = 256), regex(pattern = r"\S"))
    )]
    hosts: Option<Vec<String>>,
}

/// Response of everything under `/sip/hooks`.
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

impl From<Vec<hooks::Hook>> for HookList {
    fn from(hooks: Vec<hooks::Hook>) -> Self {
        let shown = |hook: hooks::Hook| Hook {
            host: hook.host.as_str().to_owned(),
            url: hook.url,
            auth_id: hook.owner.map(|owner| owner.as_str().to_owned()),
        };
        Self {
            hooks: hooks.into_iter().map(shown).collect(),
        }
    }
}

/// Lists hooks.
pub async fn list(
    Entered(access): Entered,
    state: web::Data<AppState>,
) -> Result<web::Json<HookList>, ApiError> {
    let hooks = state.hooks.send(ListHooks { access }).await;
    Ok(web::Json(hooks??.into()))
}

/// Adds or replaces hooks.
pub async fn put(
    Entered(access): Entered,
    state: web::Data<AppState>,
    body: JsonBody<HooksRequest, true>,
) -> Result<web::Json<HookList>, ApiError> {
    let JsonBody(HooksRequest(hooks)) = body;
    if hooks.is_empty() || hooks.len() > MAX_HOOKS {
        return Err(refused(format!("hooks: must be 1 to {MAX_HOOKS}")));
    }
    let wish = |(index, hook): (usize, HookRequest)| {
        let url = hook.url.filter(|url| !url.trim().is_empty());
        Ok(RequestedHook {
            host: required(hook.host, &format!("hooks[{index}].host"))?,
            url: url.ok_or_else(|| refused(format!("hooks[{index}].url: is required")))?,
            auth_id: hook.auth_id,
        })
    };
    let wishes = hooks.into_iter().enumerate().map(wish);
    let wishes = wishes.collect::<Result<_, ApiError>>()?;
    let hooks = state.hooks.send(PutHooks { access, wishes }).await;
    Ok(web::Json(hooks??.into()))
}

/// Removes hooks.
pub async fn remove(
    Entered(access): Entered,
    state: web::Data<AppState>,
    body: JsonBody<HostsRequest>,
) -> Result<web::Json<HookList>, ApiError> {
    let JsonBody(HostsRequest { hosts }) = body;
    let hosts = hosts.ok_or_else(|| refused("hosts: is required".to_owned()))?;
    if hosts.is_empty() || hosts.len() > MAX_HOOKS {
        return Err(refused(format!("hosts: must be 1 to {MAX_HOOKS}")));
    }
    let host = |(index, host)| required(Some(host), &format!("hosts[{index}]"));
    let hosts = hosts.into_iter().enumerate().map(host);
    let hosts = hosts.collect::<Result<_, ApiError>>()?;
    let hooks = state.hooks.send(RemoveHooks { access, hosts }).await;
    Ok(web::Json(hooks??.into()))
}

fn refused(problem: String) -> ApiError {
    ApiError::new(Code::InvalidRequest, problem)
}

impl From<HookError> for ApiError {
    fn from(error: HookError) -> Self {
        let text = error.to_string();
        match error {
            HookError::Invalid(_) => Self::new(Code::InvalidRequest, text),
            HookError::Immutable(_) => {
                Self::new(Code::HookImmutable, text).allowing(&[Method::GET, Method::HEAD])
            }
            HookError::Storage(_) => {
                tracing::error!(%error, "hooks cannot be read or changed");
                Self::new(Code::StorageError, text)
            }
        }
    }
}
