//! `/sip/hooks`: where telephone events of a host are sent. What a request must hold is checked here; nothing keeps the
//! hooks yet, and every valid change is told so.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use actix_web::{HttpResponse, web};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::auth::Access;
use crate::http::body::JsonBody;
use crate::http::error::{ApiError, Code};
use crate::http::fields::required;

/// The most hooks of one request.
const MAX_HOOKS: usize = 1000;

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

/// Lists hooks: as long as there is no telephone there are none.
pub async fn list(_: Access) -> web::Json<HookList> {
    web::Json(HookList { hooks: Vec::new() })
}

/// Adds hooks.
pub async fn put(_: Access, body: JsonBody<HooksRequest, true>) -> Result<HttpResponse, ApiError> {
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
pub async fn remove(_: Access, body: JsonBody<HostsRequest>) -> Result<HttpResponse, ApiError> {
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
