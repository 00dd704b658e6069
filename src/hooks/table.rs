//! The rules for hooks: which hook applies, who owns it, and who may change it, for configured hooks, which cannot be
//! changed, and added ones. Only decides; storing is left to others.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::configured::{Configured, ConfiguredHook};
use super::host::Host;
use super::url::check_url;
use vivavoce_auth::{Access, TenantId};

/// The maximum number of added hooks, in total and per tenant.
pub const MAX_HOOKS: usize = 10_000;
pub const MAX_HOOKS_PER_TENANT: usize = 1_000;

/// A hook: where calls to a host are reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// The host.
    pub host: Host,
    /// The URL as its creator wrote it.
    pub url: String,
    /// The tenant that owns it.
    #[serde(
        rename = "auth_id",
        default,
        skip_serializing_if = "Option::is_none",
        with = "owner"
    )]
    pub owner: Option<TenantId>,
    /// Whether it was added by a caller without a tenant. Stored, but never shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_operator: bool,
}

/// A requested hook, before validation.
#[derive(Debug, Clone)]
pub struct RequestedHook {
    /// The host.
    pub host: String,
    /// The URL.
    pub url: String,
    /// The requested owner.
    pub auth_id: Option<String>,
}

/// Why hooks cannot be changed or shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The request is invalid; the message names the field.
    #[error("{0}")]
    Invalid(String),
    /// The settings define a hook for this host.
    #[error("{0}: this server's settings name this host")]
    Immutable(String),
    /// The hooks cannot be read or written.
    #[error("hooks cannot be stored or read: {0}")]
    Storage(String),
}

/// The added hooks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Added(BTreeMap<Host, Hook>);

impl Added {
    /// All of them, ordered by host.
    pub fn hooks(&self) -> impl Iterator<Item = &Hook> {
        self.0.values()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        for host in &change.removed {
            self.0.remove(host);
        }
        for hook in &change.put {
            self.0.insert(hook.host.clone(), hook.clone());
        }
    }
}

impl FromIterator<Hook> for Added {
    fn from_iter<T: IntoIterator<Item = Hook>>(hooks: T) -> Self {
        let hooks = hooks.into_iter().take(MAX_HOOKS);
        Self(hooks.map(|hook| (hook.host.clone(), hook)).collect())
    }
}

/// A change of the added hooks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Hooks to add or replace.
    pub put: Vec<Hook>,
    /// Hooks to remove.
    pub removed: Vec<Host>,
}

impl Change {
    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.removed.is_empty()
    }

    /// Changes that were decided one after the other, as one.
    pub fn of_all(changes: impl IntoIterator<Item = Self>) -> Self {
        let mut last = BTreeMap::new();
        for Self { put, removed } in changes {
            last.extend(removed.into_iter().map(|host| (host, None)));
            last.extend(put.into_iter().map(|hook| (hook.host.clone(), Some(hook))));
        }
        let mut all = Self::default();
        for (host, hook) in last {
            match hook {
                Some(hook) => all.put.push(hook),
                None => all.removed.push(host),
            }
        }
        all
    }
}

/// Configured and added hooks together.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// From the settings.
    pub configured: &'a Configured,
    /// Added at run time.
    pub added: &'a Added,
}

/// A hook that applies.
#[derive(Debug, Clone, Copy)]
pub enum Applicable<'a> {
    /// A configured one, which may have its own secret.
    Configured(&'a ConfiguredHook),
    /// An added one.
    Added(&'a Hook),
}

impl<'a> Applicable<'a> {
    /// The hook itself.
    pub const fn hook(self) -> &'a Hook {
        match self {
            Self::Configured(own) => &own.hook,
            Self::Added(hook) => hook,
        }
    }

    /// Whether it applies to calls to a number of this tenant, or to a number without owner. What the operator has set
    /// applies to all. What a tenant has set does not apply to another tenant's number, and to a number without owner
    /// only for a host that is the tenant's by the settings of now: the hook may be older than they are.
    fn is_for(self, number_of: Option<&TenantId>, configured: &Configured) -> bool {
        let hook = self.hook();
        let Some(owner) = &hook.owner else {
            return true;
        };
        match number_of {
            _ if hook.by_operator => true,
            Some(tenant) => owner == tenant,
            None => configured.grants(owner, &hook.host),
        }
    }
}

impl<'a> Table<'a> {
    /// These hooks together.
    pub const fn of(configured: &'a Configured, added: &'a Added) -> Self {
        Self { configured, added }
    }

    /// The hook for a host. A hook added before the settings defined one stays in force until it is removed, except
    /// that a tenant's hook never replaces one that the settings assign to somebody else.
    pub fn find(&self, host: &Host) -> Option<Applicable<'a>> {
        self.of_host(host).next()
    }

    /// The hook for a call to this host; `number_of` is the tenant that owns the called number.
    pub fn find_for(&self, host: &Host, number_of: Option<&TenantId>) -> Option<Applicable<'a>> {
        self.of_host(host)
            .find(|holding| holding.is_for(number_of, self.configured))
    }

    /// The hooks of a host, in order of precedence.
    fn of_host(&self, host: &Host) -> impl Iterator<Item = Applicable<'a>> + use<'a> {
        let own = self.configured.get(host);
        let of_another = |hook: &&Hook| {
            let owners = hook.owner.as_ref().zip(own?.hook.owner.as_ref());
            owners.map(|(one, other)| one != other)
        };
        let added = self.added.0.get(host);
        let added = added.filter(|hook| of_another(hook) != Some(true));
        let added = added.map(Applicable::Added);
        added.into_iter().chain(own.map(Applicable::Configured))
    }

    /// How many hooks tenants have set for hosts that the settings do not give them.
    pub fn not_granted(&self) -> usize {
        let added = self.added.hooks().filter(|hook| !hook.by_operator);
        let set = added.filter_map(|hook| Some((hook, hook.owner.as_ref()?)));
        set.filter(|(hook, owner)| !self.configured.grants(owner, &hook.host))
            .count()
    }

    /// The hooks that a caller may see, ordered by host.
    pub fn shown(&self, access: &Access) -> Vec<Hook> {
        let hosts: BTreeSet<&Host> = self.configured.hosts().chain(self.added.0.keys()).collect();
        hosts
            .into_iter()
            .filter_map(|host| self.find(host))
            .map(Applicable::hook)
            .filter(|hook| access.may_see(hook.owner.as_ref()))
            .cloned()
            .collect()
    }

    /// Computes the change that adds these hooks: all or none.
    pub fn put(&self, access: &Access, requests: Vec<RequestedHook>) -> Result<Change, HookError> {
        let mut hooks = BTreeMap::new();
        for (index, request) in requests.into_iter().enumerate() {
            let refused =
                |field: &str, problem: &str| invalid(&format!("hooks[{index}].{field}"), problem);
            let host = Host::parse(&request.host);
            let host = host
                .ok_or_else(|| refused("host", "must be a name or an address, without a port"))?;
            self.check_granted(access, &host)
                .and_then(|()| self.check_free(access, &host))
                .map_err(|problem| refused("host", problem))?;
            check_url(&request.url, self.configured.egress_policy())
                .map_err(|problem| refused("url", &problem))?;
            // A blank one is none.
            let owner = request.auth_id.filter(|id| !id.trim().is_empty());
            let owner = match (access.tenant(), owner) {
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
                url: request.url,
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

    /// Computes the change that removes these hosts' added hooks: all or none. Unknown hosts are ignored.
    pub fn remove(&self, access: &Access, hosts: &[String]) -> Result<Change, HookError> {
        let mut removed = BTreeSet::new();
        let mut immutable = None;
        for (index, text) in hosts.iter().enumerate() {
            let refused = |problem: &str| invalid(&format!("hosts[{index}]"), problem);
            // An invalid host is an unknown one.
            let Some(host) = Host::parse(text) else {
                continue;
            };
            // A tenant gets rid of its own hook even when the host is not its own any more.
            let added = self.added.0.get(&host);
            let owner = added.and_then(|hook| hook.owner.as_ref());
            if owner.is_none() || owner != access.tenant() {
                self.check_granted(access, &host)
                    .and_then(|()| self.check_free(access, &host))
                    .map_err(refused)?;
            }
            if added.is_some() {
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

    /// Checks that the settings let a tenant have a hook for this host.
    fn check_granted(&self, access: &Access, host: &Host) -> Result<(), &'static str> {
        let tenant = access.tenant();
        let granted = tenant.is_none_or(|tenant| self.configured.grants(tenant, host));
        granted
            .then_some(())
            .ok_or("is not one of your hosts (sip.tenant_hosts)")
    }

    /// Checks that nobody else than this tenant has a hook for this host. A host that only the settings name is not checked
    /// here, because its hook cannot be changed anyway.
    fn check_free(&self, access: &Access, host: &Host) -> Result<(), &'static str> {
        let Some(tenant) = access.tenant() else {
            return Ok(());
        };
        let free = match (self.added.0.get(host), self.configured.get(host)) {
            (Some(hook), _) => access.may_see(hook.owner.as_ref()),
            (None, Some(own)) => own.hook.owner.as_ref().is_none_or(|owner| owner == tenant),
            (None, None) => true,
        };
        free.then_some(()).ok_or("belongs to somebody else")
    }

    fn check_bounds(&self, change: &Change) -> Result<(), HookError> {
        let added = &self.added.0;
        let new = change
            .put
            .iter()
            .filter(|hook| !added.contains_key(&hook.host));
        if added.len() + new.count() > MAX_HOOKS {
            let problem = format!("this server keeps {MAX_HOOKS} at most");
            return Err(invalid("hooks", &problem));
        }
        let mut of_tenants = HashMap::<&TenantId, usize>::new();
        for owner in change.put.iter().filter_map(|hook| hook.owner.as_ref()) {
            *of_tenants.entry(owner).or_default() += 1;
        }
        let replaced: BTreeSet<_> = change.put.iter().map(|hook| &hook.host).collect();
        for hook in added.values().filter(|hook| !replaced.contains(&hook.host)) {
            let count = hook
                .owner
                .as_ref()
                .and_then(|owner| of_tenants.get_mut(owner));
            if let Some(count) = count {
                *count += 1;
            }
        }
        for count in of_tenants.into_values() {
            if count > MAX_HOOKS_PER_TENANT {
                let problem = format!("one tenant has {MAX_HOOKS_PER_TENANT} at most");
                return Err(invalid("hooks", &problem));
            }
        }
        Ok(())
    }
}

fn invalid(field: &str, problem: &str) -> HookError {
    HookError::Invalid(format!("{field}: {problem}"))
}

/// (De)serialises a tenant as its id.
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
