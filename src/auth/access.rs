//! Whose things somebody may touch. Code that reaches for a room, a recording, a session or a hook is given an
//! [`Access`], and asks it about the owner; where that comes from is a matter of this folder alone.

use std::net::IpAddr;

use super::owner::Principal;
use vivavoce_core::party::{Party, TenantId};

/// Whose thing of a name is wanted, where several may have one of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// This tenant's.
    Of(TenantId),
    /// Nobody's.
    Nobodys,
}

impl Whose {
    /// As it stands in a query: a tenant's id, or nothing. What can be nobody's name names nothing.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::Nobodys),
            tenant => TenantId::new(tenant).ok().map(Self::Of),
        }
    }

    /// The tenant.
    pub fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Of(tenant) => Some(tenant),
            Self::Nobodys => None,
        }
    }
}

/// Who asks, as far as it matters to whose things they may touch, and for whom what they take is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access(Scope, Counted);

/// The address of somebody of whom nothing else is known. It makes nobody another: accesses to the same are equal.
#[derive(Debug, Clone, Default)]
struct Counted(Option<IpAddr>);

impl PartialEq for Counted {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Counted {}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    Everything,
    Tenant(TenantId),
    /// Of what has an owner only the operator's own.
    Operator,
    /// What nobody owns.
    Public,
}

impl Access {
    /// Somebody without a tenant where nobody needs one: authentication is off, or the token belongs to none.
    pub const fn anonymous() -> Self {
        Self(Scope::Everything, Counted(None))
    }

    /// A tenant.
    pub(crate) const fn tenant_only(tenant: TenantId) -> Self {
        Self(Scope::Tenant(tenant), Counted(None))
    }

    /// A tenant of this name.
    #[cfg(any(test, feature = "testing"))]
    #[expect(clippy::missing_panics_doc, reason = "for tests alone")]
    pub fn of_tenant(id: &str) -> Self {
        Self::tenant_only(TenantId::new(id).expect("a name"))
    }

    /// A session of somebody without a tenant while authentication is on: what a tenant owns is not for it.
    pub const fn operator_session() -> Self {
        Self(Scope::Operator, Counted(None))
    }

    /// A session without a token while authentication is on: what has an owner is not for it.
    pub const fn public() -> Self {
        Self(Scope::Public, Counted(None))
    }

    /// Whether nobody knows who this is.
    pub fn is_public(&self) -> bool {
        self.0 == Scope::Public
    }

    /// On whose behalf they are in a room.
    pub fn principal(&self) -> Principal {
        match &self.0 {
            Scope::Everything | Scope::Operator => Principal::Operator,
            Scope::Tenant(tenant) => Principal::Tenant(tenant.clone()),
            Scope::Public => Principal::Public,
        }
    }

    /// Whose they are: what is made with this access belongs to this tenant.
    pub const fn tenant(&self) -> Option<&TenantId> {
        match &self.0 {
            Scope::Tenant(tenant) => Some(tenant),
            Scope::Everything | Scope::Operator | Scope::Public => None,
        }
    }

    /// The same, counted by its address where it has no tenant; by whoever runs the server where there is no address.
    #[must_use]
    pub fn counted_by(self, address: Option<IpAddr>) -> Self {
        Self(self.0, Counted(address))
    }

    /// For whom what they take is counted.
    pub fn party(&self) -> Party {
        match (&self.0, &self.1) {
            (Scope::Tenant(tenant), _) => Party::Tenant(tenant.clone()),
            (_, Counted(Some(address))) => Party::Address(*address),
            (_, Counted(None)) => Party::Operator,
        }
    }

    /// Whether the things of all tenants are there for them.
    pub const fn sees_every_tenant(&self) -> bool {
        matches!(self.0, Scope::Everything)
    }

    /// Whether something of this owner is there for them; if not, it must look as if it were not there at all.
    pub fn may_see(&self, owner: Option<&TenantId>) -> bool {
        match &self.0 {
            Scope::Everything => true,
            Scope::Tenant(tenant) => owner == Some(tenant),
            Scope::Operator | Scope::Public => owner.is_none(),
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
        assert_eq!(seen(Access::operator_session()), [true, false, false]);
        assert_eq!(seen(Access::public()), [true, false, false]);
    }

    #[test]
    fn whoever_has_no_tenant_is_counted_by_their_address_where_they_are_strangers() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let of = |access: Access| access.counted_by(Some(address)).party();
        assert_eq!(of(Access::public()), Party::Address(address));
        assert_eq!(of(Access::anonymous()), Party::Address(address));
        let a = TenantId::new("a").unwrap();
        assert_eq!(of(Access::tenant_only(a.clone())), Party::Tenant(a));
        assert_eq!(Access::anonymous().party(), Party::Operator);
        // It opens and closes nothing.
        assert_eq!(
            Access::anonymous().counted_by(Some(address)),
            Access::anonymous()
        );
    }
}
