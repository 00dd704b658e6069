//! The tenant id, and [`Party`]: the subject that quotas are counted for.
//!
//! The name `Party` is our own. The usual words do not fit: a *principal* (`vivavoce_auth::Principal`) decides what
//! somebody may see and is never an address; a *tenant* is one kind of party; *client* and *caller* mean connections
//! and telephones elsewhere in this code.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The maximum length of a tenant id, in bytes.
const MAX_ID_BYTES: usize = 256;

/// A tenant's id: 1–256 bytes without control characters, not blank. Never a metric label.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(Arc<str>);

/// The text is not a valid tenant id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {MAX_ID_BYTES} bytes without control characters, and not blank")]
pub struct InvalidTenant;

impl TenantId {
    /// Validates a tenant id.
    pub fn new(id: &str) -> Result<Self, InvalidTenant> {
        let good = (1..=MAX_ID_BYTES).contains(&id.len())
            && !id.trim().is_empty()
            && !id.chars().any(char::is_control);
        good.then(|| Self(id.into())).ok_or(InvalidTenant)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TenantId {
    type Error = InvalidTenant;

    fn try_from(id: String) -> Result<Self, InvalidTenant> {
        Self::new(&id)
    }
}

impl From<TenantId> for String {
    fn from(id: TenantId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant {:?}", self.as_str())
    }
}

/// Who a resource is counted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Party {
    /// The operator of this server, as far as is known: callers authenticated without a tenant, loopback while
    /// authentication is off, and trusted proxies. Bounded only by the server's overall limits.
    #[default]
    Operator,
    /// A tenant.
    Tenant(TenantId),
    /// A caller known only by its address, or by the network the address belongs to.
    Address(IpAddr),
}

impl Party {
    /// The tenant, if the party is one.
    pub const fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Tenant(tenant) => Some(tenant),
            Self::Operator | Self::Address(_) => None,
        }
    }

    /// This tenant, or the operator if there is none.
    pub fn of_tenant(tenant: Option<&TenantId>) -> Self {
        tenant.map_or(Self::Operator, |tenant| Self::Tenant(tenant.clone()))
    }

    /// How a refusal refers to the party.
    pub const fn shown(&self) -> &'static str {
        match self {
            Self::Operator => "this server",
            Self::Tenant(_) => "one tenant",
            Self::Address(_) => "one address",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_name() {
        for id in ["", " ", "a\nb", &"x".repeat(257)] {
            assert_eq!(TenantId::new(id), Err(InvalidTenant), "{id:?}");
        }
        assert_eq!(TenantId::new("Ärzte e.V.").unwrap().as_str(), "Ärzte e.V.");
    }
}
