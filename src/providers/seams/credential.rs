//! Credentials for vendors: the server's own from the settings, or the caller's from `auth`. A vendor declares the fields
//! that it needs as data; a caller's credential is validated against them here. `Debug` never shows a value.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use vivavoce_config::value::Secret;

/// A caller's own credential, in the shape of its provider; empty means the server's. `Debug` does not show it.
#[derive(Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct OwnCredential(Map<String, Value>);

impl OwnCredential {
    /// Whether the server's is meant.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for OwnCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "none" } else { "***" })
    }
}

/// A field of `auth` that a vendor needs.
#[derive(Debug, Clone, Copy)]
pub struct CredentialField {
    /// Its name on the wire.
    pub name: &'static str,
    /// The text that is kept of it, or what is wrong with it (completes "must …").
    pub check: fn(&Value) -> Result<String, &'static str>,
    /// Whether a caller may leave it out, and has the server's: a place, never a key.
    pub is_servers_by_default: bool,
}

impl CredentialField {
    /// A key: text that may stand in a header.
    pub const fn key(name: &'static str) -> Self {
        Self {
            name,
            check: key,
            is_servers_by_default: false,
        }
    }
}

fn key(value: &Value) -> Result<String, &'static str> {
    const PROBLEM: &str = "be 1 to 4096 printable ASCII characters";
    let text = value.as_str().ok_or(PROBLEM)?;
    let printable = |byte: u8| byte.is_ascii_graphic();
    let fits = (1..=4096).contains(&text.len()) && text.bytes().all(printable);
    fits.then(|| text.to_owned()).ok_or(PROBLEM)
}

/// A complete credential. Cheap to clone; `Debug` does not show it.
#[derive(Clone)]
pub struct Credential {
    fields: Arc<[(&'static str, Secret)]>,
    fingerprint: [u8; 32],
}

impl Credential {
    /// The server's own.
    pub fn new(fields: impl IntoIterator<Item = (&'static str, Secret)>) -> Self {
        let fields: Arc<[_]> = fields.into_iter().collect();
        let mut hash = Sha256::new();
        for (name, value) in fields.iter() {
            for part in [name.as_bytes(), value.expose().as_bytes()] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        Self {
            fields,
            fingerprint: hash.finalize().into(),
        }
    }

    /// The caller's, where there is one; the error says which field is wrong and never quotes a value.
    pub fn of_caller(
        auth: &OwnCredential,
        needed: &[CredentialField],
    ) -> Result<Option<Self>, String> {
        if auth.is_empty() {
            return Ok(None);
        }
        let names: Vec<_> = needed.iter().map(|field| field.name).collect();
        if names.is_empty() {
            return Err("this provider takes no credentials".to_owned());
        }
        if auth.0.keys().any(|name| !names.contains(&name.as_str())) {
            return Err(format!("holds a field beside {}", names.join(", ")));
        }
        let field = |field: &CredentialField| {
            let value = auth.0.get(field.name).ok_or("be given")?;
            Ok((field.name, Secret::new((field.check)(value)?)))
        };
        let mut fields = Vec::with_capacity(needed.len());
        let is_given = |field: &&CredentialField| {
            auth.0.contains_key(field.name) || !field.is_servers_by_default
        };
        for wanted in needed.iter().filter(is_given) {
            let checked = field(wanted);
            fields
                .push(checked.map_err(|problem: &str| format!("{} must {problem}", wanted.name))?);
        }
        Ok(Some(Self::new(fields)))
    }

    /// A field's value; empty where there is none by that name.
    pub fn get(&self, name: &str) -> &str {
        let field = self.fields.iter().find(|(known, _)| *known == name);
        field.map_or("", |(_, value)| value.expose())
    }

    /// What of it is secret: not where it is good.
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let secret = self.fields.iter().filter(|(name, _)| *name != "region");
        secret.map(|(_, value)| value)
    }

    /// Names it without telling it: for keys of caches and pools.
    pub const fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Names a server's credential, or that it has none.
    pub fn fingerprint_of(servers: Option<&Self>) -> [u8; 32] {
        servers.map_or([0; 32], Self::fingerprint)
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FIELDS: &[CredentialField] = &[
        CredentialField::key("api_key"),
        CredentialField {
            name: "region",
            check: |value| {
                let text = value.as_str().filter(|text| *text == "eastus");
                text.map(str::to_owned).ok_or("be eastus")
            },
            is_servers_by_default: false,
        },
    ];

    fn checked(auth: Value) -> Result<Option<Credential>, String> {
        let auth: OwnCredential = serde_json::from_value(auth).unwrap();
        Credential::of_caller(&auth, FIELDS)
    }

    #[test]
    fn a_callers_credential_is_complete_or_refused_by_field() {
        let good = checked(json!({"api_key": "k1", "region": "eastus"}));
        let good = good.unwrap().unwrap();
        assert_eq!((good.get("api_key"), good.get("region")), ("k1", "eastus"));
        assert!(checked(json!({})).unwrap().is_none());
        for (auth, problem) in [
            (json!({"api_key": "k1"}), "region must be given"),
            (
                json!({"api_key": "k1", "region": "marker"}),
                "region must be eastus",
            ),
            (
                json!({"api_key": "", "region": "eastus"}),
                "api_key must be 1",
            ),
            (
                json!({"api_key": "marker\r\nx: y", "region": "eastus"}),
                "api_key must be 1",
            ),
            (
                json!({"api_key": 7, "region": "eastus"}),
                "api_key must be 1",
            ),
            (
                json!({"api_key": "k", "region": "eastus", "x": 1}),
                "holds a field beside",
            ),
        ] {
            let refused = checked(auth.clone()).unwrap_err();
            assert!(refused.starts_with(problem), "{auth}: {refused}");
            assert!(!refused.contains("marker"));
        }
    }

    #[test]
    fn a_credential_is_named_by_all_its_fields_and_never_shown() {
        let credential = |key: &str, region: &str| {
            Credential::new([
                ("api_key", Secret::new(key)),
                ("region", Secret::new(region)),
            ])
        };
        let one = credential("marker", "eastus");
        assert_eq!(
            one.fingerprint(),
            credential("marker", "eastus").fingerprint()
        );
        assert_ne!(
            one.fingerprint(),
            credential("markere", "astus").fingerprint()
        );
        assert!(!format!("{one:?}").contains("marker"));
    }
}
