//! Who is asking, as far as it must be known to count what they take: tenants, and everybody else.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest tenant id, in bytes.
const MAX_ID_BYTES: usize = 256;

/// A tenant's id: 1–256 bytes without control characters. Never a metric label.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(Arc<str>);

/// A text that is no tenant id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {MAX_ID_BYTES} bytes without control characters")]
pub struct InvalidTenant;

impl TenantId {
    /// The id of this name.
    pub fn new(id: &str) -> Result<Self, InvalidTenant> {
        let good = (1..=MAX_ID_BYTES).contains(&id.len()) && !id.chars().any(char::is_control);
        good.then(|| Self(id.into())).ok_or(InvalidTenant)
    }

    /// Its text.
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

/// Who is counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Party {
    /// Whoever runs this server, as far as is known: callers who authenticated without a tenant, loopback while
    /// authentication is off, trusted proxies. Bounded by the server's limits only.
    #[default]
    Operator,
    /// A tenant.
    Tenant(TenantId),
    /// A caller of whom nothing but the address, or the network of one, is known.
    Address(IpAddr),
}

impl Party {
    /// The tenant, if it is one.
    pub const fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Tenant(tenant) => Some(tenant),
            Self::Operator | Self::Address(_) => None,
        }
    }

    /// This tenant, or whoever runs the server where there is none.
    pub fn of_tenant(tenant: Option<&TenantId>) -> Self {
        tenant.map_or(Self::Operator, |tenant| Self::Tenant(tenant.clone()))
    }

    /// How a refusal speaks of it.
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
        for id in ["", "a\nb", &"x".repeat(257)] {
            assert_eq!(TenantId::new(id), Err(InvalidTenant), "{id:?}");
        }
        assert_eq!(TenantId::new("Ärzte e.V.").unwrap().as_str(), "Ärzte e.V.");
    }
}
