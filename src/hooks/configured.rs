//! What the settings say about hooks: those that nobody can change, who may add others for which hosts, how far away they
//! may be, and what signs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::Deserialize;

use super::host::Host;
use super::table::Hook;
use super::url::check_url;
use vivavoce_auth::TenantId;
use vivavoce_config::{JsonText, Secret, Settings};
use vivavoce_core::outgoing::reach::Reach;
use vivavoce_webhooks::{HookKeys, MIN_SECRET_BYTES};

/// See the module.
#[derive(Clone, Default)]
pub struct Configured {
    hooks: BTreeMap<Host, Own>,
    grants: Option<HashMap<TenantId, HashSet<Host>>>,
    secret: Option<Secret>,
    reach: Reach,
}

/// A hook of the settings.
#[derive(Clone)]
pub struct Own {
    /// The hook.
    pub hook: Hook,
    /// What signs for it instead of the server's secret.
    pub secret: Option<Secret>,
}

impl fmt::Debug for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.hooks.keys()).finish()
    }
}

impl fmt::Debug for Own {
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
    /// From the settings of the server; otherwise everything that is wrong with them.
    pub fn new(settings: &Settings) -> Result<Self, Vec<String>> {
        let sip = &settings.sip;
        let reach = Reach {
            insecure: sip.allow_insecure_hooks,
            private: sip.allow_private_hooks,
        };
        Self::read(
            sip.hooks_json.as_ref(),
            sip.tenant_hosts.as_ref(),
            sip.hook_secret.clone(),
            reach,
        )
    }

    /// Those of a test, with hooks and grants as the settings have them.
    #[cfg(test)]
    pub(super) fn of(
        hooks: Option<&JsonText>,
        grants: Option<&JsonText>,
    ) -> Result<Self, Vec<String>> {
        Self::read(hooks, grants, None, Reach::default())
    }

    fn read(
        hooks_json: Option<&JsonText>,
        tenant_hosts: Option<&JsonText>,
        secret: Option<Secret>,
        reach: Reach,
    ) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut hooks = BTreeMap::new();
        for (index, entry) in entries(hooks_json).into_iter().enumerate() {
            let place = format!("sip.hooks_json: entry {}", index + 1);
            match entry.and_then(|entry| own(entry, reach)) {
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
                grants,
                secret,
                reach,
            })
        } else {
            Err(problems)
        }
    }

    /// The hook of the settings for a host.
    pub fn get(&self, host: &Host) -> Option<&Own> {
        self.hooks.get(host)
    }

    /// The hosts that the settings name.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.hooks.keys()
    }

    /// Whether a tenant may have a hook for this host.
    pub fn grants(&self, tenant: &TenantId, host: &Host) -> bool {
        self.grants.as_ref().is_none_or(|grants| {
            let hosts = grants.get(tenant);
            hosts.is_some_and(|hosts| hosts.contains(host))
        })
    }

    /// How far away hooks may be.
    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// What signs: for one of these hooks its own secret if it has one, for every other that of the server.
    pub fn keys(&self) -> HookKeys {
        let own = self.hooks.iter().filter_map(|(host, own)| {
            let secret = own.secret.clone()?;
            Some((host.as_str().to_owned(), secret))
        });
        HookKeys {
            own: own.collect(),
            common: self.secret.clone(),
            reach: self.reach,
        }
    }

    /// Whether anything signs for a hook; `own` is one of these.
    pub fn signs(&self, own: Option<&Host>) -> bool {
        let own = own.and_then(|host| self.hooks.get(host)?.secret.as_ref());
        own.is_some() || self.secret.is_some()
    }

    /// What an operator may not have meant.
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

/// What serde would say of an entry that does not fit may quote it, so it is not repeated.
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

fn own(entry: Entry, reach: Reach) -> Result<Own, String> {
    let host = Host::parse(&entry.host);
    let host = host.ok_or("host must be a name or an address, without a port")?;
    check_url(&entry.url, reach).map_err(|problem| {
        let allow = "sip.allow_insecure_hooks, sip.allow_private_hooks allow more";
        format!("url {problem}; {allow}")
    })?;
    let owner = entry.auth_id.map(|id| TenantId::new(&id)).transpose();
    let secret = entry.secret.map(Secret::new);
    if secret.as_ref().is_some_and(short) {
        return Err(format!("secret {TOO_SHORT}"));
    }
    Ok(Own {
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
