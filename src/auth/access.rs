//! Authorisation. Code that deals with rooms, recordings, sessions or hooks is given an [`Access`] and asks it about
//! the owner; how the access was granted is known only in this crate.

use std::net::IpAddr;

use super::room_owner::{Owner, Principal};
use vivavoce_core::party::{Party, TenantId};

/// Selects the owner where several may have something of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// This tenant.
    Of(TenantId),
    /// No tenant.
    Nobodys,
}

impl Whose {
    /// Parses the query parameter: a tenant's id, or empty for no tenant. An invalid id selects nothing.
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

/// What a caller may access, and the party that its use of resources is counted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access(Scope, Counted);

/// What is ignored in comparisons: accesses of the same scope are equal.
#[derive(Debug, Clone, Default)]
struct Counted {
    /// The address of a caller without a tenant.
    address: Option<IpAddr>,
    /// Whether the caller changes nothing.
    reads_only: bool,
}

impl Counted {
    const NOBODY: Self = Self {
        address: None,
        reads_only: false,
    };
}

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
    /// What the operator owns, and what nobody owns.
    Operator,
    /// What nobody owns.
    Public,
}

impl Access {
    /// Full access without a tenant: authentication is off, or the token belongs to no tenant.
    pub const fn anonymous() -> Self {
        Self(Scope::Everything, Counted::NOBODY)
    }

    /// Access of a tenant.
    pub(crate) const fn tenant_only(tenant: TenantId) -> Self {
        Self(Scope::Tenant(tenant), Counted::NOBODY)
    }

    /// Access of the tenant with this id.
    #[cfg(any(test, feature = "testing"))]
    #[expect(clippy::missing_panics_doc, reason = "for tests alone")]
    pub fn of_tenant(id: &str) -> Self {
        Self::tenant_only(TenantId::new(id).expect("a name"))
    }

    /// Access of whoever owns a room; of one that nobody owns, that of the operator's sessions.
    pub fn of_owner(owner: &Owner) -> Self {
        match owner {
            Owner::Tenant(tenant) => Self::tenant_only(tenant.clone()),
            Owner::Operator | Owner::Nobody => Self::operator_session(),
            Owner::Unknown => Self::public(),
        }
    }

    /// A session authenticated without a tenant: it has no access to what tenants own.
    pub const fn operator_session() -> Self {
        Self(Scope::Operator, Counted::NOBODY)
    }

    /// A session without a token while authentication is on: it has no access to what anybody owns.
    pub const fn public() -> Self {
        Self(Scope::Public, Counted::NOBODY)
    }

    /// Whether the caller is unauthenticated while authentication is on.
    pub fn is_public(&self) -> bool {
        self.0 == Scope::Public
    }

    /// The principal that the caller acts for in a room.
    pub fn principal(&self) -> Principal {
        match &self.0 {
            Scope::Everything | Scope::Operator => Principal::Operator,
            Scope::Tenant(tenant) => Principal::Tenant(tenant.clone()),
            Scope::Public => Principal::Public,
        }
    }

    /// The tenant that owns whatever is created with this access.
    pub const fn tenant(&self) -> Option<&TenantId> {
        match &self.0 {
            Scope::Tenant(tenant) => Some(tenant),
            Scope::Everything | Scope::Operator | Scope::Public => None,
        }
    }

    /// The same access, counted for this address if it has no tenant, or for the operator without an address.
    #[must_use]
    pub fn counted_by(self, address: Option<IpAddr>) -> Self {
        let counted = Counted { address, ..self.1 };
        Self(self.0, counted)
    }

    /// The same access, to look at things and not to change them.
    #[must_use]
    pub fn reading_only(self) -> Self {
        let reads_only = true;
        let counted = Counted {
            reads_only,
            ..self.1
        };
        Self(self.0, counted)
    }

    /// Whether the caller may look at things and not change them: what it sees is not less.
    pub const fn reads_only(&self) -> bool {
        self.1.reads_only
    }

    /// The party that the use of resources is counted for.
    pub fn party(&self) -> Party {
        match (&self.0, &self.1) {
            (Scope::Tenant(tenant), _) => Party::Tenant(tenant.clone()),
            (
                _,
                Counted {
                    address: Some(address),
                    ..
                },
            ) => Party::Address(*address),
            (_, Counted { address: None, .. }) => Party::Operator,
        }
    }

    /// Whether resources of all tenants are accessible.
    pub const fn sees_every_tenant(&self) -> bool {
        matches!(self.0, Scope::Everything)
    }

    /// Whether a resource of this owner is accessible; if not, it must look as if it did not exist.
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
        // The address does not affect what is accessible.
        assert_eq!(
            Access::anonymous().counted_by(Some(address)),
            Access::anonymous()
        );
    }
}
