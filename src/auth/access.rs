//! Whose things somebody may touch. Code that reaches for a room, a recording, a session or a hook is given an
//! [`Access`], and asks it about the owner; where that comes from is a matter of this folder alone.

use std::fmt;
use std::sync::Arc;

/// The longest tenant id, in bytes.
const MAX_ID_BYTES: usize = 256;

/// A tenant's id: 1–256 bytes without control characters. Never a metric label.
#[derive(Clone, PartialEq, Eq, Hash)]
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

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant {:?}", self.as_str())
    }
}

/// Who asks, as far as it matters to whose things they may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access(Scope);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    Everything,
    Tenant(TenantId),
    Unowned,
}

impl Access {
    /// Somebody without a tenant where nobody needs one: authentication is off, or the token belongs to none.
    pub const fn anonymous() -> Self {
        Self(Scope::Everything)
    }

    /// A tenant.
    pub(super) const fn tenant_only(tenant: TenantId) -> Self {
        Self(Scope::Tenant(tenant))
    }

    /// A tenant of this name.
    #[cfg(test)]
    pub(crate) fn of_tenant(id: &str) -> Self {
        Self::tenant_only(TenantId::new(id).expect("a name"))
    }

    /// A session without a tenant while authentication is on: what has an owner is not for it.
    pub(super) const fn unowned() -> Self {
        Self(Scope::Unowned)
    }

    /// Whose they are: what is made with this access belongs to this tenant.
    pub const fn tenant(&self) -> Option<&TenantId> {
        match &self.0 {
            Scope::Tenant(tenant) => Some(tenant),
            Scope::Everything | Scope::Unowned => None,
        }
    }

    /// Whether something of this owner is there for them; if not, it must look as if it were not there at all.
    pub fn may_see(&self, owner: Option<&TenantId>) -> bool {
        match &self.0 {
            Scope::Everything => true,
            Scope::Tenant(tenant) => owner == Some(tenant),
            Scope::Unowned => owner.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_sees_its_own_and_nothing_else() {
        let [a, b] = ["a", "b"].map(|id| TenantId::new(id).unwrap());
        let owners = [None, Some(&a), Some(&b)];
        let seen = |access: Access| owners.map(|owner| access.may_see(owner));
        assert_eq!(seen(Access::tenant_only(a.clone())), [false, true, false]);
        assert_eq!(seen(Access::anonymous()), [true, true, true]);
        assert_eq!(seen(Access::unowned()), [true, false, false]);
    }

    #[test]
    fn a_tenant_has_a_name() {
        for id in ["", "a\nb", &"x".repeat(257)] {
            assert_eq!(TenantId::new(id), Err(InvalidTenant), "{id:?}");
        }
        assert_eq!(TenantId::new("Ärzte e.V.").unwrap().as_str(), "Ärzte e.V.");
    }
}
