//! Whose a call is that comes in: its hook's tenant, else that of the number that was called, else the operator. What a tenant
//! has set as a hook is not for calls to numbers of others. Known from the INVITE, before the caller joins a room.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;

use super::Hooks;
use super::announcement::called_host;
use vivavoce_auth::{Owner, TenantId};
use vivavoce_config::JsonText;
use vivavoce_core::phone::PhoneNumber;

/// Numbers and whose they are.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TenantNumbers(HashMap<String, TenantId>);

/// Numbers say who speaks with whom: they are not shown.
impl fmt::Debug for TenantNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers", self.0.len())
    }
}

impl TenantNumbers {
    /// From `sip.tenant_numbers`; otherwise everything that is wrong with it.
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

    fn tenant(&self, number: &str) -> Option<&TenantId> {
        let number = PhoneNumber::parse(number).ok()?;
        self.0.get(number.as_str())
    }
}

/// Decides whose a call is. Clones are the same.
#[derive(Clone)]
pub struct CallOwners {
    hooks: Hooks,
    numbers: Arc<TenantNumbers>,
}

impl CallOwners {
    /// By these hooks and numbers.
    pub fn new(hooks: Hooks, numbers: TenantNumbers) -> Self {
        Self {
            hooks,
            numbers: Arc::new(numbers),
        }
    }

    /// Whose a call to this number is, by what its participant tells of the INVITE's headers.
    pub fn owner<'a>(&self, header: impl Fn(&str) -> Option<&'a str>, number: &str) -> Owner {
        let number_of = self.tenant_of(number);
        let hook = called_host(header).and_then(|host| self.hooks.find(&host, number_of));
        let owner = hook.and_then(|found| found.hook.owner);
        let owner = owner.or_else(|| number_of.cloned());
        owner.map_or(Owner::Operator, Owner::Tenant)
    }

    /// The tenant that has this number.
    pub fn tenant_of(&self, number: &str) -> Option<&TenantId> {
        self.numbers.tenant(number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::configured::Configured;
    use super::super::{Host, Wish};
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
            ("<sip:200@A.example:5060>", "200", tenant("a")),
            ("<sip:200@house.example>", "200", tenant("b")),
            ("<sip:+49301234567@c.example>", "+49301234567", tenant("b")),
            // Exact numbers, not their beginnings.
            ("<sip:2001@c.example>", "2001", Owner::Operator),
            ("<sip:300@house.example>", "300", Owner::Operator),
            ("tel:+4940", "+4940", Owner::Operator),
            ("<sip:ann@c.example>", "ann", Owner::Operator),
        ] {
            assert_eq!(owner(to, number), expected, "{to} {number}");
        }
    }

    #[tokio::test]
    async fn what_a_tenant_has_set_is_not_for_calls_to_numbers_of_another() {
        let settings = json!([{"host": "house.example", "url": "https://house.example/"}]);
        let configured = Configured::of(Some(&JsonText(settings)), None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let hooks = Hooks::in_folder(configured, folder.path().to_owned());
        let put = async |access: Access, host: &str, auth_id: Option<&str>| {
            let wish = Wish {
                host: host.to_owned(),
                url: "https://added.example/".to_owned(),
                auth_id: auth_id.map(str::to_owned),
            };
            hooks.put(&access, vec![wish]).await.unwrap()
        };
        put(Access::of_tenant("a"), "gateway.example", None).await;
        put(Access::anonymous(), "given.example", Some("a")).await;
        let numbers = read(json!({"a": ["100"], "b": ["200"]})).unwrap();
        let check = |hooks: &Hooks| {
            let owners = CallOwners::new(hooks.clone(), numbers.clone());
            let tenant = |id: &str| Owner::Tenant(TenantId::new(id).unwrap());
            for (host, number, owner, told) in [
                ("gateway.example", "200", tenant("b"), false),
                ("gateway.example", "100", tenant("a"), true),
                // Nobody's number: whoever set the hook.
                ("gateway.example", "300", tenant("a"), true),
                // What the operator has set for a tenant says more than a number.
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
        check(&hooks);
        // The next process knows who has set what.
        let configured = json!([{"host": "house.example", "url": "https://house.example/"}]);
        let configured = Configured::of(Some(&JsonText(configured)), None).unwrap();
        let again = Hooks::in_folder(configured, folder.path().to_owned());
        again.open().await;
        check(&again);
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
