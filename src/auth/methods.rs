//! The authentication methods configured in the settings, validated as far as possible without reading files.

use std::path::PathBuf;

use serde::Deserialize;

use super::secrets::Secrets;
use super::token::{Holder, Token};
use vivavoce_config::{Auth, HttpUrl, JsonText, Secret, SocketAuth};
use vivavoce_core::party::TenantId;

/// What the secrets of our examples begin with.
const EXAMPLE: &str = "change-me";
/// Shorter secrets are considered guessable (specification, section 8).
const GOOD_SECRET_BYTES: usize = 32;

/// The configured methods.
#[derive(Default)]
pub(super) struct Methods {
    pub(super) secrets: Secrets,
    /// The service's URL, and the file of the signing key.
    pub(super) service: Option<(HttpUrl, PathBuf)>,
}

/// Contradictions in the settings, each with its key. The messages contain no secrets.
pub fn problems(settings: &Auth) -> Vec<String> {
    Methods::from_settings(settings).err().unwrap_or_default()
}

/// Settings that are valid but probably not intended.
pub fn warnings(settings: &Auth) -> Vec<String> {
    let mut warnings = Vec::new();
    let short = |secret: &Secret| secret.expose().len() < GOOD_SECRET_BYTES;
    for (key, secret) in [
        ("auth.api_secret", &settings.api_secret),
        ("auth.read_secret", &settings.read_secret),
    ] {
        let Some(secret) = secret else { continue };
        if short(secret) {
            warnings.push(format!(
                "{key} is shorter than {GOOD_SECRET_BYTES} bytes: it can be guessed"
            ));
        }
        if secret.expose().starts_with(EXAMPLE) {
            warnings.push(format!(
                "{key} is that of an example, which everybody knows: `openssl rand -hex 32` makes one"
            ));
        }
    }
    let entries = settings.api_secrets_json.as_ref().map(entries);
    for entry in entries.and_then(Result::ok).iter().flatten() {
        if short(&Secret::new(entry.secret.as_str())) {
            warnings.push(format!(
                "auth.api_secrets_json: the secret of {:?} is shorter than {GOOD_SECRET_BYTES} bytes: it can be guessed",
                entry.id
            ));
        }
    }
    let method = settings.api_secret.is_some()
        || settings.read_secret.is_some()
        || settings.api_secrets_json.is_some()
        || settings.service_url.is_some();
    if method && !settings.required {
        warnings.push("auth.required is false: callers need no token".to_owned());
    }
    if settings.required && settings.socket() == SocketAuth::Public {
        let records = if settings.public_recordings {
            ", record what every authenticated caller may fetch (auth.public_recordings)"
        } else {
            ""
        };
        warnings.push(format!(
            "auth.socket is public: whoever reaches /ws can, without a token, speak and listen at this server's expense, \
             and enter rooms that nobody owns and no telephone is in{records}"
        ));
    }
    for (key, secret) in [
        ("auth.api_secret", &settings.api_secret),
        ("auth.read_secret", &settings.read_secret),
    ] {
        if settings.require_tenant && secret.is_some() {
            warnings.push(format!(
                "auth.require_tenant: {key} belongs to no tenant, so it is never accepted"
            ));
        }
    }
    warnings
}

impl Methods {
    pub(super) fn from_settings(settings: &Auth) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut methods = Self::default();
        if let Some(secret) = &settings.api_secret {
            let holder = Holder {
                tenant: None,
                reads_only: false,
            };
            methods.add("auth.api_secret", secret.expose(), holder, &mut problems);
        }
        if let Some(secret) = &settings.read_secret {
            let holder = Holder {
                tenant: None,
                reads_only: true,
            };
            methods.add("auth.read_secret", secret.expose(), holder, &mut problems);
        }
        if let Some(json) = &settings.api_secrets_json {
            match entries(json) {
                Ok(entries) => methods.add_tenants(&entries, &mut problems),
                Err(problem) => problems.push(format!("auth.api_secrets_json: {problem}")),
            }
        }
        match (&settings.service_url, &settings.signing_key_path) {
            (Some(url), Some(key)) => methods.service = Some((url.clone(), key.clone())),
            (Some(_), None) => problems.push(
                "auth.signing_key_path: is required with auth.service_url: it signs the requests to the service"
                    .to_owned(),
            ),
            (None, Some(_)) => problems.push(
                "auth.service_url: is required with auth.signing_key_path: the key signs requests to this service"
                    .to_owned(),
            ),
            (None, None) => {}
        }
        if settings.socket == Some(SocketAuth::Required) && !settings.required {
            problems.push(
                "auth.socket: required has no effect while auth.required is false".to_owned(),
            );
        }
        let public = settings.required && settings.socket() == SocketAuth::Public;
        if settings.public_recordings && !public {
            problems.push(
                "auth.public_recordings: has no effect unless auth.required is true and auth.socket is public"
                    .to_owned(),
            );
        }
        let none = methods.secrets.is_empty() && methods.service.is_none();
        if settings.required && none && problems.is_empty() {
            problems.push(
                "auth.required: nobody could come in: set auth.api_secret, auth.api_secrets_json, or both \
                 auth.service_url and auth.signing_key_path"
                    .to_owned(),
            );
        }
        if problems.is_empty() {
            Ok(methods)
        } else {
            Err(problems)
        }
    }

    fn add_tenants(&mut self, entries: &[Entry], problems: &mut Vec<String>) {
        for (index, entry) in entries.iter().enumerate() {
            let place = format!("auth.api_secrets_json: entry {}", index + 1);
            match TenantId::new(&entry.id) {
                Err(problem) => problems.push(format!("{place}: id {problem}")),
                // One that changes nothing may stand beside the other.
                Ok(_) if entries[..index].iter().any(|other| other.is_same(entry)) => {
                    problems.push(format!("{place}: id {:?} is there twice", entry.id));
                }
                Ok(tenant) => {
                    let holder = Holder {
                        tenant: Some(tenant),
                        reads_only: entry.read_only,
                    };
                    self.add(&place, &entry.secret, holder, problems);
                }
            }
        }
    }

    fn add(&mut self, place: &str, secret: &str, holder: Holder, problems: &mut Vec<String>) {
        match Token::new(secret) {
            None => problems.push(format!(
                "{place}: a secret must not be empty and not contain spaces: no client could send it"
            )),
            Some(secret) if !self.secrets.add(&secret, holder) => {
                problems.push(format!("{place}: this secret has another owner already"));
            }
            Some(_) => {}
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: String,
    secret: String,
    #[serde(default)]
    read_only: bool,
}

impl Entry {
    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && self.read_only == other.read_only
    }
}

/// serde's error for an invalid entry may quote it, so it is not repeated.
fn entries(json: &JsonText) -> Result<Vec<Entry>, String> {
    let list = json.0.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or("must be an array with at least one {\"id\", \"secret\"}")?;
    let entry = |(index, value)| {
        Entry::deserialize(value).map_err(|_: serde_json::Error| {
            format!(
                "entry {}: must be {{\"id\", \"secret\"}}, both texts, and \"read_only\", true or false, where it is",
                index + 1
            )
        })
    };
    list.iter().enumerate().map(entry).collect()
}
