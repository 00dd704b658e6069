//! The owner of a room, and the principal that a participant acts for. The owner is stored in the room's metadata,
//! where every replica and deployment finds it: `auth_id` is the tenant, `operator` reserves the room for the operator.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::access::Access;
use vivavoce_core::party::Party;
use vivavoce_core::party::TenantId;

/// The metadata keys of the tenant, and of the operator's mark.
const TENANT: &str = "auth_id";
const OPERATOR: &str = "operator";

/// The principal that somebody acts for in a room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Principal {
    /// The operator: callers without a tenant, tokens that others have signed with the key pair, and everybody while
    /// authentication is off.
    Operator,
    /// A tenant.
    Tenant(TenantId),
    /// An unauthenticated session while authentication is on.
    Public,
}

impl Principal {
    /// The party that a room created by this principal counts for; `stranger` is the address of a caller known by
    /// nothing else.
    pub fn party(&self, stranger: Option<IpAddr>) -> Party {
        match self {
            Self::Tenant(tenant) => Party::Tenant(tenant.clone()),
            Self::Operator | Self::Public => stranger.map_or(Party::Operator, Party::Address),
        }
    }
}

/// The owner of a room, by its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// No owner.
    Nobody,
    /// The operator: no tenant may claim the room.
    Operator,
    /// A tenant.
    Tenant(TenantId),
    /// Metadata that cannot be parsed counts as somebody else's.
    Unknown,
}

impl Owner {
    /// Parses a room's metadata.
    pub fn of(metadata: &str) -> Self {
        if metadata.is_empty() {
            return Self::Nobody;
        }
        let Ok(fields) = serde_json::from_str::<Map<String, Value>>(metadata) else {
            return Self::Unknown;
        };
        // A blank one is none.
        let is_some = |id: &&Value| match id {
            Value::Null => false,
            Value::String(id) => !id.trim().is_empty(),
            _ => true,
        };
        match fields.get(TENANT).filter(is_some) {
            None if fields.get(OPERATOR) == Some(&Value::Bool(true)) => Self::Operator,
            None => Self::Nobody,
            Some(Value::String(id)) => TenantId::new(id).map_or(Self::Unknown, Self::Tenant),
            Some(_) => Self::Unknown,
        }
    }

    /// The tenant, if the owner is one.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::Tenant(tenant) => Some(tenant.as_str()),
            Self::Nobody | Self::Operator | Self::Unknown => None,
        }
    }

    /// The party that resources of the room count for.
    pub fn party(&self) -> Party {
        match self {
            Self::Tenant(tenant) => Party::Tenant(tenant.clone()),
            Self::Nobody | Self::Operator | Self::Unknown => Party::Operator,
        }
    }

    /// Whether this caller may see the room.
    pub fn lets(&self, access: &Access) -> bool {
        match self {
            Self::Nobody => access.may_see(None),
            Self::Operator => access.principal() == Principal::Operator,
            Self::Tenant(owner) => access.may_see(Some(owner)),
            Self::Unknown => *access == Access::anonymous(),
        }
    }

    /// Whether a participant may act for this principal in the room. The operator may be in every room.
    pub fn admits(&self, principal: &Principal) -> bool {
        match principal {
            Principal::Operator => true,
            Principal::Tenant(tenant) => matches!(self, Self::Tenant(owner) if owner == tenant),
            Principal::Public => *self == Self::Nobody,
        }
    }

    /// The metadata of a room after this owner has taken it over. If it had no owner, its other keys are kept; what
    /// another owner has written is dropped.
    pub fn in_place_of(&self, metadata: &str) -> String {
        let before = Self::of(metadata);
        if before == *self {
            return metadata.to_owned();
        }
        let mut fields: Map<String, Value> = match before {
            Self::Nobody => serde_json::from_str(metadata).unwrap_or_default(),
            Self::Operator | Self::Tenant(_) | Self::Unknown => Map::new(),
        };
        match self {
            Self::Tenant(tenant) => fields.insert(TENANT.to_owned(), tenant.as_str().into()),
            Self::Operator => fields.insert(OPERATOR.to_owned(), true.into()),
            Self::Nobody | Self::Unknown => return String::new(),
        };
        Value::Object(fields).to_string()
    }
}

/// How an inbound call takes its room, which the called number names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Takeover {
    /// The owner of the call, and then of the room.
    pub owner: Owner,
    /// Whether the operator has given the called number to the owner. Any other number is the caller's choice, and so
    /// would be whose room it is: that one stays its owner's.
    pub by_number: bool,
}

impl Takeover {
    /// Whether the call may take a room of this owner.
    pub fn may_take(&self, current: &Owner) -> bool {
        self.by_number
            || match current {
                Owner::Nobody => true,
                Owner::Unknown => self.owner == Owner::Operator,
                Owner::Operator | Owner::Tenant(_) => *current == self.owner,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: &str) -> TenantId {
        TenantId::new(id).unwrap()
    }

    #[test]
    fn a_room_belongs_to_whom_its_metadata_names() {
        for (metadata, owner) in [
            ("", Owner::Nobody),
            ("{}", Owner::Nobody),
            (r#"{"auth_id":null}"#, Owner::Nobody),
            (r#"{"operator":true}"#, Owner::Operator),
            (r#"{"operator":"true"}"#, Owner::Nobody),
            (r#"{"auth_id":"a","topic":"b"}"#, Owner::Tenant(tenant("a"))),
            (
                r#"{"auth_id":"a","operator":true}"#,
                Owner::Tenant(tenant("a")),
            ),
            (r#"{"auth_id":" "}"#, Owner::Nobody),
            (r#"{"auth_id":7}"#, Owner::Unknown),
            ("[]", Owner::Unknown),
            ("null", Owner::Unknown),
            ("free text", Owner::Unknown),
        ] {
            assert_eq!(Owner::of(metadata), owner, "{metadata}");
        }
    }

    #[test]
    fn a_new_owner_leaves_what_was_nobodys_and_learns_nothing_of_anothers() {
        let a = Owner::Tenant(tenant("a"));
        let fields = |metadata: &str| serde_json::from_str::<Value>(metadata).unwrap();
        for (before, owner, after) in [
            (
                r#"{"topic":"tea","auth_id":null}"#,
                &a,
                r#"{"topic":"tea","auth_id":"a"}"#,
            ),
            ("", &Owner::Operator, r#"{"operator":true}"#),
            (
                r#"{"topic":"tea"}"#,
                &Owner::Operator,
                r#"{"topic":"tea","operator":true}"#,
            ),
            (
                r#"{"auth_id":"b","secret":"of b"}"#,
                &a,
                r#"{"auth_id":"a"}"#,
            ),
            (
                r#"{"auth_id":"b","secret":"of b"}"#,
                &Owner::Operator,
                r#"{"operator":true}"#,
            ),
            (r#"{"operator":true,"k":1}"#, &a, r#"{"auth_id":"a"}"#),
            (r#"{"auth_id":"a","k":1}"#, &a, r#"{"auth_id":"a","k":1}"#),
        ] {
            let metadata = owner.in_place_of(before);
            assert_eq!(fields(&metadata), fields(after), "{before}");
            assert_eq!(Owner::of(&metadata), *owner, "{before}");
        }
    }

    #[test]
    fn what_nobody_can_read_is_shown_to_those_alone_who_may_see_everything() {
        assert!(Owner::Unknown.lets(&Access::anonymous()));
        assert!(!Owner::of("free text").lets(&Access::of_tenant("a")));
        assert!(!Owner::Unknown.lets(&Access::public()));
    }

    #[test]
    fn a_room_of_the_operator_is_not_for_tenants_and_not_for_the_public() {
        for (access, sees) in [
            (Access::anonymous(), true),
            (Access::operator_session(), true),
            (Access::of_tenant("a"), false),
            (Access::public(), false),
        ] {
            assert_eq!(Owner::Operator.lets(&access), sees, "{access:?}");
        }
    }

    #[test]
    fn a_room_admits_its_owner_and_the_operator() {
        let [a, b] = ["a", "b"].map(tenant);
        let principals = [
            Principal::Operator,
            Principal::Tenant(a.clone()),
            Principal::Tenant(b),
            Principal::Public,
        ];
        for (owner, admitted) in [
            (Owner::Nobody, [true, false, false, true]),
            (Owner::Operator, [true, false, false, false]),
            (Owner::Tenant(a), [true, true, false, false]),
            (Owner::Unknown, [true, false, false, false]),
        ] {
            let admits = principals.each_ref().map(|one| owner.admits(one));
            assert_eq!(admits, admitted, "{owner:?}");
        }
    }

    #[test]
    fn a_call_takes_the_room_of_another_owner_by_a_number_of_its_owners_alone() {
        let [a, b] = ["a", "b"].map(|id| Owner::Tenant(tenant(id)));
        let rooms = [Owner::Nobody, Owner::Operator, Owner::Unknown, a.clone(), b];
        for (owner, by_number, takes) in [
            (Owner::Operator, false, [true, true, true, false, false]),
            (a.clone(), false, [true, false, false, true, false]),
            (a, true, [true; 5]),
        ] {
            let call = Takeover { owner, by_number };
            let taken = rooms.each_ref().map(|room| call.may_take(room));
            assert_eq!(taken, takes, "{call:?}");
        }
    }

    #[test]
    fn a_principal_is_written_as_tokens_say_it() {
        let written = |principal| serde_json::to_string(&principal).unwrap();
        assert_eq!(written(Principal::Tenant(tenant("a"))), r#"{"tenant":"a"}"#);
        assert_eq!(written(Principal::Public), r#""public""#);
        let nobodys_name = serde_json::from_str::<Principal>(r#"{"tenant":""}"#);
        assert!(nobodys_name.is_err());
    }
}
