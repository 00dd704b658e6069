//! Which hooks hold, whose they are, and who may change them: those of the settings, which nobody changes, and those that
//! were added since, which are kept elsewhere. Decides, and keeps nothing itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::configured::{Configured, Own};
use super::host::Host;
use super::url::check_url;
use vivavoce_auth::{Access, TenantId};

/// Hooks that were added, in all and of one tenant.
pub const MOST_HOOKS: usize = 10_000;
pub const MOST_OF_A_TENANT: usize = 1_000;

/// Where calls to a host are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// The host.
    pub host: Host,
    /// Where to, as whoever added it wrote it.
    pub url: String,
    /// The tenant whose it is.
    #[serde(
        rename = "auth_id",
        default,
        skip_serializing_if = "Option::is_none",
        with = "owner"
    )]
    pub owner: Option<TenantId>,
    /// Whether a caller without a tenant has added it. Kept with it and shown to nobody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_operator: bool,
}

/// A hook that somebody wants, as it was written.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The host.
    pub host: String,
    /// Where to.
    pub url: String,
    /// Whose it is to be.
    pub auth_id: Option<String>,
}

/// Why hooks are not changed, or cannot be shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The wish does not fit; the text names the field.
    #[error("{0}")]
    Invalid(String),
    /// The settings name the host.
    #[error("{0}: this server's settings name this host")]
    Immutable(String),
    /// What is kept cannot be read or written.
    #[error("hooks cannot be kept: {0}")]
    Storage(String),
}

/// Hooks that were added while servers ran.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Added(BTreeMap<Host, Hook>);

impl Added {
    /// In the order of their hosts.
    pub fn hooks(&self) -> impl Iterator<Item = &Hook> {
        self.0.values()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// With this change.
    #[must_use]
    pub fn with(&self, change: &Change) -> Self {
        let mut hooks = self.0.clone();
        for host in &change.removed {
            hooks.remove(host);
        }
        for hook in &change.put {
            hooks.insert(hook.host.clone(), hook.clone());
        }
        Self(hooks)
    }
}

impl FromIterator<Hook> for Added {
    fn from_iter<T: IntoIterator<Item = Hook>>(hooks: T) -> Self {
        let hooks = hooks.into_iter().take(MOST_HOOKS);
        Self(hooks.map(|hook| (hook.host.clone(), hook)).collect())
    }
}

/// What is to become of the hooks that were added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// New ones, or others in the place of old ones.
    pub put: Vec<Hook>,
    /// What is there no more.
    pub removed: Vec<Host>,
}

impl Change {
    /// Whether everything stays as it is.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.removed.is_empty()
    }
}

/// Both kinds together.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// By the settings.
    pub configured: &'a Configured,
    /// Added since.
    pub added: &'a Added,
}

/// Which of the two holds for a host.
#[derive(Debug, Clone, Copy)]
pub enum Holding<'a> {
    /// That of the settings, with its own secret where it has one.
    Configured(&'a Own),
    /// The one that was added.
    Added(&'a Hook),
}

impl<'a> Holding<'a> {
    /// The hook itself.
    pub const fn hook(self) -> &'a Hook {
        match self {
            Self::Configured(own) => &own.hook,
            Self::Added(hook) => hook,
        }
    }

    /// Whether it is for calls to a number of this tenant, or of none. A number is given by the operator, and a host is
    /// whosever names it first: what a tenant has set is not for the calls of another.
    fn is_for(self, number_of: Option<&TenantId>) -> bool {
        match self {
            Self::Configured(_) => true,
            Self::Added(hook) => {
                let mut owners = hook.owner.iter().zip(number_of);
                hook.by_operator || owners.all(|(own, other)| own == other)
            }
        }
    }
}

impl<'a> Table<'a> {
    /// The hook that holds for a host. One that was added before the settings named its host stays in force until it is
    /// removed; but what a tenant has added is never in the place of what the settings give to another.
    pub fn find(&self, host: &Host) -> Option<Holding<'a>> {
        self.of_host(host).next()
    }

    /// The one that holds for a call to this host, by whose number was called.
    pub fn find_for(&self, host: &Host, number_of: Option<&TenantId>) -> Option<Holding<'a>> {
        self.of_host(host).find(|holding| holding.is_for(number_of))
    }

    /// Those of a host, each in the place of the next.
    fn of_host(&self, host: &Host) -> impl Iterator<Item = Holding<'a>> + use<'a> {
        let own = self.configured.get(host);
        let of_another = |hook: &&Hook| {
            let owners = hook.owner.as_ref().zip(own?.hook.owner.as_ref());
            owners.map(|(one, other)| one != other)
        };
        let added = self.added.0.get(host);
        let added = added.filter(|hook| of_another(hook) != Some(true));
        let added = added.map(Holding::Added);
        added.into_iter().chain(own.map(Holding::Configured))
    }

    /// What a caller may see of what holds, in the order of the hosts.
    pub fn shown(&self, access: &Access) -> Vec<Hook> {
        let hosts: BTreeSet<&Host> = self.configured.hosts().chain(self.added.0.keys()).collect();
        hosts
            .into_iter()
            .filter_map(|host| self.find(host))
            .map(Holding::hook)
            .filter(|hook| access.may_see(hook.owner.as_ref()))
            .cloned()
            .collect()
    }

    /// What is to change so that these hooks hold: all of them, or none.
    pub fn put(&self, access: &Access, wishes: Vec<Wish>) -> Result<Change, HookError> {
        let mut hooks = BTreeMap::new();
        for (index, wish) in wishes.into_iter().enumerate() {
            let refused =
                |field: &str, problem: &str| invalid(&format!("hooks[{index}].{field}"), problem);
            let host = Host::parse(&wish.host);
            let host = host
                .ok_or_else(|| refused("host", "must be a name or an address, without a port"))?;
            self.check_scope(access, &host)
                .map_err(|problem| refused("host", problem))?;
            check_url(&wish.url, self.configured.reach())
                .map_err(|problem| refused("url", &problem))?;
            let owner = match (access.tenant(), wish.auth_id) {
                (Some(_), Some(_)) => {
                    let problem = "may be given only by a caller without a tenant";
                    return Err(refused("auth_id", problem));
                }
                (Some(tenant), None) => Some(tenant.clone()),
                (None, Some(id)) => Some(
                    TenantId::new(&id).map_err(|error| refused("auth_id", &error.to_string()))?,
                ),
                (None, None) => None,
            };
            let hook = Hook {
                host: host.clone(),
                url: wish.url,
                owner,
                by_operator: access.tenant().is_none(),
            };
            if hooks.insert(host, hook).is_some() {
                return Err(refused("host", "is there twice"));
            }
        }
        for host in hooks.keys() {
            if self.configured.get(host).is_some() {
                return Err(HookError::Immutable(format!("hooks: {host}")));
            }
        }
        let change = Change {
            put: hooks.into_values().collect(),
            removed: Vec::new(),
        };
        self.check_bounds(&change)?;
        Ok(change)
    }

    /// What is to change so that these hosts have no hook that was added: all of them, or none. What nobody knows is
    /// ignored.
    pub fn remove(&self, access: &Access, hosts: &[String]) -> Result<Change, HookError> {
        let mut removed = BTreeSet::new();
        let mut immutable = None;
        for (index, text) in hosts.iter().enumerate() {
            let refused = |problem: &str| invalid(&format!("hosts[{index}]"), problem);
            // What cannot be a host is one that nobody knows.
            let Some(host) = Host::parse(text) else {
                continue;
            };
            self.check_scope(access, &host).map_err(refused)?;
            if self.added.0.contains_key(&host) {
                removed.insert(host);
            } else if self.configured.get(&host).is_some() {
                immutable.get_or_insert(host);
            }
        }
        match immutable {
            Some(host) => Err(HookError::Immutable(format!("hosts: {host}"))),
            None => Ok(Change {
                put: Vec::new(),
                removed: removed.into_iter().collect(),
            }),
        }
    }

    /// A tenant's hosts are those that it was granted, and that nobody else has. A host that only the settings name is
    /// everybody's as far as this goes: it cannot be changed anyhow.
    fn check_scope(&self, access: &Access, host: &Host) -> Result<(), &'static str> {
        let Some(tenant) = access.tenant() else {
            return Ok(());
        };
        if !self.configured.grants(tenant, host) {
            return Err("is not one of your hosts");
        }
        let free = match (self.added.0.get(host), self.configured.get(host)) {
            (Some(hook), _) => access.may_see(hook.owner.as_ref()),
            (None, Some(own)) => own.hook.owner.as_ref().is_none_or(|owner| owner == tenant),
            (None, None) => true,
        };
        free.then_some(()).ok_or("belongs to somebody else")
    }

    fn check_bounds(&self, change: &Change) -> Result<(), HookError> {
        let after = self.added.with(change);
        if after.0.len() > MOST_HOOKS {
            let problem = format!("this server keeps {MOST_HOOKS} at most");
            return Err(invalid("hooks", &problem));
        }
        let mut of_tenants = BTreeMap::<&str, usize>::new();
        for owner in after.hooks().filter_map(|hook| hook.owner.as_ref()) {
            *of_tenants.entry(owner.as_str()).or_default() += 1;
        }
        let grown = change.put.iter().filter_map(|hook| hook.owner.as_ref());
        for owner in grown {
            if of_tenants.get(owner.as_str()) > Some(&MOST_OF_A_TENANT) {
                let problem = format!("one tenant has {MOST_OF_A_TENANT} at most");
                return Err(invalid("hooks", &problem));
            }
        }
        Ok(())
    }
}

fn invalid(field: &str, problem: &str) -> HookError {
    HookError::Invalid(format!("{field}: {problem}"))
}

/// A tenant as its id.
mod owner {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use vivavoce_auth::TenantId;

    #[expect(clippy::ref_option, reason = "as serde calls it")]
    pub(super) fn serialize<S: Serializer>(
        owner: &Option<TenantId>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        owner.as_ref().map(TenantId::as_str).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<TenantId>, D::Error> {
        let id = Option::<String>::deserialize(deserializer)?;
        let tenant = |id: String| TenantId::new(&id).map_err(de::Error::custom);
        id.map(tenant).transpose()
    }
}

#[cfg(test)]
mod tests;
