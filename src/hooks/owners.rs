//! The owner of an inbound call: the tenant of its hook, else the tenant of the called number, else the operator. A hook
//! that a tenant has set does not apply to calls to other tenants' numbers. The owner is known from the INVITE, before
//! the caller joins a room.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use super::Hooks;
use super::announcement::called_host;
use vivavoce_auth::{Owner, TenantId};
use vivavoce_config::JsonText;
use vivavoce_core::phone::PhoneNumber;

/// The telephone numbers of tenants.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TenantNumbers(HashMap<String, TenantId>);

/// Numbers reveal who speaks with whom, so they are not printed.
impl fmt::Debug for TenantNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers", self.0.len())
    }
}

impl TenantNumbers {
    /// Parses `sip.tenant_numbers`; on failure returns all problems.
    pub fn read(setting: Option<&JsonText>) -> Result<Self, Vec<String>> {
        let Some(JsonText(json)) = setting else {
            return Ok(Self::default());
        };
        let Ok(tenants) = HashMap::<String, Vec<String>>::deserialize(json) else {
            return Err(vec!["must be {\"tenant\": [\"+49…\", …]}".to_owned()]);
        };
        let mut tenants: Vec<_> = tenants.into_iter().collect();
        tenants.sort();
        let mut problems = Vec::new();
        let mut numbers: HashMap<String, TenantId> = HashMap::new();
        for (id, list) in tenants {
            let tenant = match TenantId::new(&id) {
                Ok(tenant) => tenant,
                Err(error) => {
                    problems.push(format!("a tenant {error}"));
                    continue;
                }
            };
            for (index, text) in list.iter().enumerate() {
                let place = format!("number {} of {id:?}", index + 1);
                match PhoneNumber::parse(text) {
                    Err(error) => problems.push(format!("{place} {error}")),
                    Ok(number) => {
                        let other = numbers.insert(number.as_str().to_owned(), tenant.clone());
                        if let Some(other) = other.filter(|other| *other != tenant) {
                            let other = other.as_str();
                            problems.push(format!("{place} is one of {other:?} too"));
                        }
                    }
                }
            }
        }
        if problems.is_empty() {
            Ok(Self(numbers))
        } else {
            Err(problems)
        }
    }

    /// The tenant that owns this number.
    pub fn tenant(&self, number: &str) -> Option<&TenantId> {
        let number = PhoneNumber::parse(number).ok()?;
        self.0.get(number.as_str())
    }

    /// Whether this number, as a caller ID, would be taken for one of another tenant's: gateways read `+49…`, `0049…` and
    /// `49…` alike. Whoever has the number in one of these spellings may show it in each.
    pub fn is_anothers(&self, number: &PhoneNumber, tenant: &TenantId) -> bool {
        let shown = digits(number.as_str());
        let mut alike = self.0.iter().filter(|(own, _)| digits(own) == shown);
        let is_known = alike.clone().next().is_some();
        is_known && alike.all(|(_, owner)| owner != tenant)
    }
}

/// A number without what marks it as international.
fn digits(number: &str) -> &str {
    let international = number.strip_prefix('+');
    let international = international.or_else(|| number.strip_prefix("00"));
    international.unwrap_or(number)
}

/// Determines the owners of calls. Clones share the same state.
#[derive(Clone)]
pub struct CallOwners {
    hooks: Hooks,
    numbers: Arc<TenantNumbers>,
}

impl CallOwners {
    /// Uses these hooks and numbers.
    pub fn new(hooks: Hooks, numbers: TenantNumbers) -> Self {
        Self {
            hooks,
            numbers: Arc::new(numbers),
        }
    }

    /// The owner of a call to `number`, given the INVITE headers from the participant's attributes.
    pub fn owner<'a>(&self, header: impl Fn(&str) -> Option<&'a str>, number: &str) -> Owner {
        let number_of = self.tenant_of(number);
        let hook = called_host(header).and_then(|host| self.hooks.find(&host, number_of));
        let owner = hook.and_then(|found| found.hook.owner);
        let owner = owner.or_else(|| number_of.cloned());
        owner.map_or(Owner::Operator, Owner::Tenant)
    }

    /// The tenant that owns this number.
    pub fn tenant_of(&self, number: &str) -> Option<&TenantId> {
        self.numbers.tenant(number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::configured::Configured;
    use super::super::{Host, RequestedHook};
    use super::*;
    use vivavoce_auth::Access;

    fn read(json: Value) -> Result<TenantNumbers, Vec<String>> {
        TenantNumbers::read(Some(&JsonText(json)))
    }

    #[test]
    fn a_call_is_its_hooks_tenants_then_its_numbers_and_else_the_operators() {
        let hooks = json!([
            {"host": "a.example", "url": "https://a.example/", "auth_id": "a"},
            {"host": "house.example", "url": "https://house.example/"},
        ]);
        let configured = Configured::of(Some(&JsonText(hooks)), None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let hooks = Hooks::in_folder(configured, folder.path().to_owned());
        let numbers = read(json!({"b": ["+49 (30) 1234567", "200"]})).unwrap();
        let owners = CallOwners::new(hooks, numbers);
        let owner = |to: &'static str, number: &str| {
            let header = move |name: &str| (name == "sip.h.to").then_some(to);
            owners.owner(header, number)
        };
        let tenant = |id: &str| Owner::Tenant(TenantId::new(id).unwrap());
        for (to, number, expected) in [
            ("<sip:300@A.example:5060>", "300", tenant("a")),
            // The operator has given the host to a tenant: that counts before the number.
            ("<sip:200@a.example>", "200", tenant("a")),
            ("<sip:200@house.example>", "200", tenant("b")),
            ("<sip:+49301234567@c.example>", "+49301234567", tenant("b")),
            // Numbers must match exactly.
            ("<sip:2001@c.example>", "2001", Owner::Operator),
            ("<sip:300@house.example>", "300", Owner::Operator),
            ("tel:+4940", "+4940", Owner::Operator),
            ("<sip:ann@c.example>", "ann", Owner::Operator),
        ] {
            assert_eq!(owner(to, number), expected, "{to} {number}");
        }
    }

    #[tokio::test]
    async fn what_a_tenant_has_set_is_not_for_numbers_of_another_nor_for_hosts_that_its_tenant_has_no_more()
     {
        let configured = |grants: Option<Value>| {
            let settings = json!([{"host": "house.example", "url": "https://house.example/"}]);
            let grants = grants.map(JsonText);
            Configured::of(Some(&JsonText(settings)), grants.as_ref()).unwrap()
        };
        let granted = || configured(Some(json!({"a": ["gateway.example"]})));
        let folder = tempfile::tempdir().unwrap();
        let open = |configured| Hooks::in_folder(configured, folder.path().to_owned());
        let hooks = open(granted());
        let put = async |access: Access, host: &str, auth_id: Option<&str>| {
            let request = RequestedHook {
                host: host.to_owned(),
                url: "https://added.example/".to_owned(),
                auth_id: auth_id.map(str::to_owned),
            };
            hooks.put(&access, vec![request]).await.unwrap()
        };
        put(Access::of_tenant("a"), "gateway.example", None).await;
        put(Access::anonymous(), "given.example", Some("a")).await;
        let numbers = read(json!({"a": ["100"], "b": ["200"]})).unwrap();
        let check = |hooks: &Hooks, is_granted: bool| {
            let owners = CallOwners::new(hooks.clone(), numbers.clone());
            let tenant = |id: &str| Owner::Tenant(TenantId::new(id).unwrap());
            for (host, number, owner, told) in [
                ("gateway.example", "200", tenant("b"), false),
                ("gateway.example", "100", tenant("a"), true),
                // A number without owner: the owner of the hook, as long as the host is its own.
                (
                    "gateway.example",
                    "300",
                    if is_granted {
                        tenant("a")
                    } else {
                        Owner::Operator
                    },
                    is_granted,
                ),
                // One that the operator has assigned to a tenant is for any number.
                ("given.example", "300", tenant("a"), true),
                ("given.example", "200", tenant("a"), true),
                ("house.example", "200", tenant("b"), true),
            ] {
                let to = format!("<sip:{number}@{host}>");
                let header = |name: &str| (name == "sip.h.to").then_some(to.as_str());
                assert_eq!(owners.owner(header, number), owner, "{to}");
                let host = Host::parse(host).unwrap();
                let found = hooks.find(&host, owners.tenant_of(number));
                assert_eq!(found.is_some(), told, "{to}");
            }
        };
        check(&hooks, true);
        // The owners of hooks survive a restart; what their tenants may have is up to the settings of then.
        for (configured, is_granted) in [
            (granted(), true),
            (configured(None), false),
            (configured(Some(json!({"b": ["gateway.example"]}))), false),
            (configured(None).claiming(), true),
        ] {
            let again = open(configured);
            again.open().await;
            check(&again, is_granted);
        }
    }

    #[test]
    fn a_number_of_two_tenants_or_none_is_refused() {
        let problem = |json: Value| read(json).unwrap_err().join("\n");
        let twice = problem(json!({"a": ["+49301234567"], "b": ["tel:+49 30 1234567"]}));
        assert!(twice.contains("of \"b\" is one of \"a\" too"), "{twice}");
        assert!(read(json!({"a": ["100", "1-0-0"]})).is_ok());
        assert!(problem(json!({"a": ["ann"]})).contains("is no telephone number"));
        assert!(problem(json!({"": ["100"]})).contains("a tenant must be"));
        for odd in [json!([]), json!({"a": "100"}), json!({"a": [100]})] {
            assert!(problem(odd).starts_with("must be {"));
        }
        assert_eq!(TenantNumbers::read(None), Ok(TenantNumbers::default()));
    }
}
