//! `POST /v1/realtime/client_secrets`: keys for browsers and telephones, which open Realtime sessions for a few minutes and
//! nothing else. A key is a JWT that carries whose it is and what its sessions begin with, so that nothing is kept here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_web::web;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::invalid;
use super::realtime::{Said, begins};
use crate::auth::Entered;
use crate::body::JsonBody;
use crate::error::{ApiError, Code};
use crate::state::AppState;
use vivavoce_auth::{Access, TenantId};
use vivavoce_config::Secret;
use vivavoce_realtime::Version;

/// What keys begin with, as OpenAI's.
const PREFIX: &str = "ek_";
/// How long a key opens sessions.
const DEFAULT: u64 = 600;
const SHORTEST: u64 = 10;
const LONGEST: u64 = 7_200;
/// The longest session that a key carries, in bytes: it is sent in a header.
const MAX_SESSION_BYTES: usize = 24 << 10;
/// Bytes of the key that signs.
const MIN_KEY_BYTES: usize = 32;

/// Makes keys and reads them.
pub struct ClientSecrets {
    signs: EncodingKey,
    reads: DecodingKey,
}

/// What a key says.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    exp: u64,
    /// Whose it is; nobody's where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// What sessions begin with.
    session: Value,
    /// In the shape of the beta.
    #[serde(default)]
    beta: bool,
}

/// What a key opens.
pub(super) struct Opened {
    pub(super) access: Access,
    pub(super) session: Value,
    pub(super) version: Version,
}

impl ClientSecrets {
    /// Signs with the key of the settings; with one of its own where there is none.
    pub fn new(key: Option<&Secret>) -> Self {
        let own = || {
            let bytes = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
            bytes.map(uuid::Uuid::into_bytes).concat()
        };
        let key = key.map_or_else(own, |key| key.expose().as_bytes().to_vec());
        Self {
            signs: EncodingKey::from_secret(&key),
            reads: DecodingKey::from_secret(&key),
        }
    }

    fn make(&self, claims: &Claims) -> Result<String, ApiError> {
        let signed = jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &self.signs);
        let signed = signed.map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
        Ok(format!("{PREFIX}{signed}"))
    }

    /// Reads a key; `None` where a text is none.
    pub(super) fn open(&self, key: &str) -> Option<Result<Opened, ApiError>> {
        let token = key.strip_prefix(PREFIX)?;
        Some(self.read(token).ok_or_else(|| {
            let problem = "the client secret has expired, or is not of this server";
            ApiError::new(Code::Unauthorized, problem)
        }))
    }

    fn read(&self, token: &str) -> Option<Opened> {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        let claims = jsonwebtoken::decode::<Claims>(token, &self.reads, &validation).ok()?;
        let claims = claims.claims;
        let access = match claims.tenant {
            None => Access::anonymous(),
            Some(tenant) => {
                Access::of_owner(&vivavoce_auth::Owner::Tenant(TenantId::new(&tenant).ok()?))
            }
        };
        let beta = claims.beta;
        Some(Opened {
            access,
            session: claims.session,
            version: if beta {
                Version::Beta
            } else {
                Version::Current
            },
        })
    }
}

/// Problems with the setting.
pub(super) fn problem(key: Option<&Secret>) -> Option<String> {
    let short = key.is_some_and(|key| key.expose().len() < MIN_KEY_BYTES);
    short.then(|| format!("openai.client_secret_key: must have {MIN_KEY_BYTES} bytes or more"))
}

/// Body of `POST /v1/realtime/client_secrets`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRequest {
    expires_after: Option<ExpiresAfter>,
    session: Option<Value>,
}

/// How long the key opens sessions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpiresAfter {
    anchor: Option<String>,
    seconds: Option<u64>,
}

/// A key, and what its sessions begin with.
#[derive(Debug, Serialize)]
pub struct SecretObject {
    value: String,
    expires_at: u64,
    session: Value,
}

/// Makes a key.
pub async fn create(
    Entered(access): Entered,
    state: web::Data<AppState>,
    JsonBody(request): JsonBody<SecretRequest>,
) -> Result<web::Json<SecretObject>, ApiError> {
    let seconds = seconds(request.expires_after.as_ref())?;
    let session = request
        .session
        .unwrap_or_else(|| json!({"type": "realtime"}));
    let (value, expires_at, shown) = made(&state, &access, session, seconds, Version::Current)?;
    Ok(web::Json(SecretObject {
        value,
        expires_at,
        session: shown,
    }))
}

/// The same in the shape of the beta: `POST /v1/realtime/sessions`.
pub async fn create_beta(
    Entered(access): Entered,
    state: web::Data<AppState>,
    JsonBody(session): JsonBody<Value>,
) -> Result<web::Json<Value>, ApiError> {
    beta(&state, &access, session)
}

/// The same for transcripts: `POST /v1/realtime/transcription_sessions`.
pub async fn create_beta_transcription(
    Entered(access): Entered,
    state: web::Data<AppState>,
    JsonBody(mut session): JsonBody<Value>,
) -> Result<web::Json<Value>, ApiError> {
    if session.is_object() {
        session["type"] = json!("transcription");
    }
    beta(&state, &access, session)
}

/// How long a key opens sessions.
fn seconds(after: Option<&ExpiresAfter>) -> Result<u64, ApiError> {
    if let Some(anchor) = after.and_then(|after| after.anchor.as_deref())
        && anchor != "created_at"
    {
        return Err(invalid("expires_after.anchor: must be created_at"));
    }
    let seconds = after.and_then(|after| after.seconds).unwrap_or(DEFAULT);
    if !(SHORTEST..=LONGEST).contains(&seconds) {
        return Err(invalid("expires_after.seconds: must be from 10 to 7200"));
    }
    Ok(seconds)
}

fn beta(
    state: &AppState,
    access: &Access,
    mut session: Value,
) -> Result<web::Json<Value>, ApiError> {
    let wanted = session.as_object_mut();
    let wanted = wanted.and_then(|fields| fields.remove("client_secret"));
    let after = wanted
        .as_ref()
        .and_then(|wanted| wanted.get("expires_after"));
    let after = after.map(|after| {
        ExpiresAfter::deserialize(after)
            .map_err(|_| invalid("client_secret.expires_after: must be {\"anchor\", \"seconds\"}"))
    });
    let seconds = seconds(after.transpose()?.as_ref())?;
    let (value, expires_at, mut shown) = made(state, access, session, seconds, Version::Beta)?;
    shown["client_secret"] = json!({"value": value, "expires_at": expires_at});
    Ok(web::Json(shown))
}

fn made(
    state: &AppState,
    access: &Access,
    session: Value,
    seconds: u64,
    version: Version,
) -> Result<(String, u64, Value), ApiError> {
    if session.to_string().len() > MAX_SESSION_BYTES {
        return Err(invalid(
            "session: must have at most 24 KiB: the key carries it",
        ));
    }
    let said = Said {
        model: None,
        intent: None,
    };
    let (object, names) = begins(state, access, version, &said, Some(&session))?;
    let id = format!("sess_{}", uuid::Uuid::new_v4().simple());
    let shown = object.shown(version, &id, &names);
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since.map_or(0, |since: Duration| since.as_secs());
    let expires_at = now + seconds;
    let claims = Claims {
        exp: expires_at,
        tenant: access.tenant().map(|tenant| tenant.as_str().to_owned()),
        session,
        beta: version == Version::Beta,
    };
    Ok((state.openai.secrets.make(&claims)?, expires_at, shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(exp: u64) -> Claims {
        Claims {
            exp,
            tenant: Some("shop".to_owned()),
            session: json!({"type": "realtime"}),
            beta: false,
        }
    }

    #[test]
    fn a_key_opens_sessions_of_its_maker_until_it_expires_and_only_here() {
        let here = ClientSecrets::new(None);
        let key = here.make(&claims(u64::from(u32::MAX))).unwrap();
        let opened = here.open(&key).unwrap().ok().unwrap();
        assert_eq!(opened.access.tenant().unwrap().as_str(), "shop");
        assert!(here.open("another token").is_none());
        assert!(here.open(&here.make(&claims(1)).unwrap()).unwrap().is_err());
        let elsewhere = ClientSecrets::new(None);
        assert!(elsewhere.open(&key).unwrap().is_err());
        let shared = Secret::new("0123456789abcdef0123456789abcdef");
        let (one, other) = (
            ClientSecrets::new(Some(&shared)),
            ClientSecrets::new(Some(&shared)),
        );
        assert!(
            other
                .open(&one.make(&claims(u64::from(u32::MAX))).unwrap())
                .unwrap()
                .is_ok()
        );
        assert!(problem(Some(&Secret::new("short"))).is_some());
    }
}
