//! The hooks of the settings, which cannot be changed at run time; which tenants may add hooks for which hosts; the
//! egress policy and the signing secrets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::Deserialize;

use super::host::Host;
use super::table::Hook;
use super::url::check_url;
use vivavoce_auth::TenantId;
use vivavoce_config::{JsonText, Secret, Settings};
use vivavoce_core::egress_policy::EgressPolicy;
use vivavoce_webhooks::{HookKeys, MIN_SECRET_BYTES};

/// What the settings say about hooks.
#[derive(Clone, Default)]
pub struct Configured {
    hooks: BTreeMap<Host, ConfiguredHook>,
    grants: Grants,
    secret: Option<Secret>,
    egress: EgressPolicy,
}

/// For which hosts the hooks of tenants are.
#[derive(Clone)]
enum Grants {
    /// For any that nobody else has: `sip.claim_unowned_hosts`, and whenever authentication is off.
    Any,
    /// For those that the settings list, tenant by tenant.
    Listed(HashMap<TenantId, HashSet<Host>>),
}

impl Default for Grants {
    fn default() -> Self {
        Self::Listed(HashMap::new())
    }
}

/// A hook of the settings.
#[derive(Clone)]
pub struct ConfiguredHook {
    /// The hook.
    pub hook: Hook,
    /// The secret that signs for it instead of the server's.
    pub secret: Option<Secret>,
}

impl fmt::Debug for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.hooks.keys()).finish()
    }
}

impl fmt::Debug for ConfiguredHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hook.fmt(f)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    host: String,
    url: String,
    auth_id: Option<String>,
    secret: Option<String>,
}

impl Configured {
    /// Reads the settings; on failure returns all problems.
    pub fn new(settings: &Settings) -> Result<Self, Vec<String>> {
        let sip = &settings.sip;
        let egress = EgressPolicy {
            insecure: sip.allow_insecure_hooks,
            private: sip.allow_private_hooks,
        };
        let read = Self::read(
            sip.hooks_json.as_ref(),
            sip.tenant_hosts.as_ref(),
            sip.hook_secret.clone(),
            egress,
        );
        // An operator who says whose the numbers are has not left it to who names a host first.
        let claims = sip.claim_unowned_hosts;
        let claiming = sip.tenant_hosts.is_none() && claims.unwrap_or(sip.tenant_numbers.is_none());
        if claiming || !settings.auth.required {
            // Without authentication nobody is a tenant, and hooks that tenants set before stay in force.
            read.map(Self::claiming)
        } else {
            read
        }
    }

    /// The same, where a tenant may name any host that nobody else has.
    pub(super) fn claiming(self) -> Self {
        Self {
            grants: Grants::Any,
            ..self
        }
    }

    /// For tests: hooks and grants as they would be in the settings.
    #[cfg(test)]
    pub(super) fn of(
        hooks: Option<&JsonText>,
        grants: Option<&JsonText>,
    ) -> Result<Self, Vec<String>> {
        Self::read(hooks, grants, None, EgressPolicy::default())
    }

    fn read(
        hooks_json: Option<&JsonText>,
        tenant_hosts: Option<&JsonText>,
        secret: Option<Secret>,
        egress: EgressPolicy,
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut hooks = BTreeMap::new();
        for (index, entry) in entries(hooks_json).into_iter().enumerate() {
            let place = format!("sip.hooks_json: entry {}", index + 1);
            match entry.and_then(|entry| own(entry, egress)) {
                Err(problem) => problems.push(format!("{place}: {problem}")),
                Ok(own) => {
                    if let Some(twice) = hooks.insert(own.hook.host.clone(), own) {
                        let host = twice.hook.host;
                        problems.push(format!("{place}: {host} is there twice"));
                    }
                }
            }
        }
        if secret.as_ref().is_some_and(short) {
            problems.push(format!("sip.hook_secret: {TOO_SHORT}"));
        }
        let grants = tenant_hosts.map(grants).transpose();
        let grants = grants.unwrap_or_else(|problem| {
            problems.push(format!("sip.tenant_hosts: {problem}"));
            None
        });
        if problems.is_empty() {
            Ok(Self {
                hooks,
                grants: grants.map_or_else(Grants::default, Grants::Listed),
                secret,
                egress,
            })
        } else {
            Err(problems)
        }
    }

    /// The configured hook for a host.
    pub fn get(&self, host: &Host) -> Option<&ConfiguredHook> {
        self.hooks.get(host)
    }

    /// The hosts that the settings name.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.hooks.keys()
    }

    /// Whether a tenant may have a hook for this host, as long as nobody else has one.
    pub fn grants(&self, tenant: &TenantId, host: &Host) -> bool {
        match &self.grants {
            Grants::Any => true,
            Grants::Listed(grants) => grants.get(tenant).is_some_and(|hosts| hosts.contains(host)),
        }
    }

    /// Which addresses hooks may have.
    pub const fn egress_policy(&self) -> EgressPolicy {
        self.egress
    }

    /// The signing secrets: a configured hook's own if it has one, the server's for all others.
    pub fn keys(&self) -> HookKeys {
        let own = self.hooks.iter().filter_map(|(host, own)| {
            let secret = own.secret.clone()?;
            Some((host.as_str().to_owned(), secret))
        });
        HookKeys {
            own: own.collect(),
            common: self.secret.clone(),
            egress: self.egress,
        }
    }

    /// Whether there is a secret for a hook; `own` is the host of a configured one.
    pub fn signs(&self, own: Option<&Host>) -> bool {
        let own = own.and_then(|host| self.hooks.get(host)?.secret.as_ref());
        own.is_some() || self.secret.is_some()
    }

    /// Settings that are valid but probably not intended.
    pub fn warnings(&self) -> Vec<String> {
        if self.secret.is_some() {
            return Vec::new();
        }
        let unsigned = self.hooks.values().filter(|own| own.secret.is_none());
        unsigned
            .map(|own| {
                let host = &own.hook.host;
                format!("sip.hooks_json: nothing is told to the hook of {host}, for which nothing signs: sip.hook_secret")
            })
            .collect()
    }
}

const TOO_SHORT: &str = "must have 16 bytes or more";
const _: () = assert!(MIN_SECRET_BYTES == 16);

fn short(secret: &Secret) -> bool {
    secret.expose().len() < MIN_SECRET_BYTES
}

/// serde's error for an invalid entry may quote it, so it is not repeated.
fn entries(json: Option<&JsonText>) -> Vec<Result<Entry, String>> {
    let Some(JsonText(json)) = json else {
        return Vec::new();
    };
    let Some(list) = json.as_array() else {
        return vec![Err("there is none: must be an array".to_owned())];
    };
    let entry = |value| {
        Entry::deserialize(value).map_err(|_: serde_json::Error| {
            "must be {\"host\", \"url\", \"auth_id\"?, \"secret\"?}, all of them texts".to_owned()
        })
    };
    list.iter().map(entry).collect()
}

fn own(entry: Entry, egress: EgressPolicy) -> Result<ConfiguredHook, String> {
    let host = Host::parse(&entry.host);
    let host = host.ok_or("host must be a name or an address, without a port")?;
    check_url(&entry.url, egress).map_err(|problem| {
        let allow = "sip.allow_insecure_hooks, sip.allow_private_hooks allow more";
        format!("url {problem}; {allow}")
    })?;
    // A blank one is none.
    let owner = entry.auth_id.filter(|id| !id.trim().is_empty());
    let owner = owner.map(|id| TenantId::new(&id)).transpose();
    let secret = entry.secret.map(Secret::new);
    if secret.as_ref().is_some_and(short) {
        return Err(format!("secret {TOO_SHORT}"));
    }
    Ok(ConfiguredHook {
        hook: Hook {
            host,
            url: entry.url,
            owner: owner.map_err(|error| format!("auth_id {error}"))?,
            by_operator: true,
        },
        secret,
    })
}

fn grants(JsonText(json): &JsonText) -> Result<HashMap<TenantId, HashSet<Host>>, String> {
    let tenants = HashMap::<String, HashSet<Host>>::deserialize(json)
        .map_err(|_: serde_json::Error| "must be {\"tenant\": [\"host\", …]}".to_owned())?;
    let tenant = |(id, hosts): (String, _)| {
        let id = TenantId::new(&id).map_err(|error| format!("a tenant {error}"))?;
        Ok((id, hosts))
    };
    tenants.into_iter().map(tenant).collect()
}
