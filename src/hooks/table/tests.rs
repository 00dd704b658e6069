//! Who may see and change what: the specification's and the protocol's rules, one by one.

use super::*;
use vivavoce_config::JsonText;

fn configured(hooks: serde_json::Value, grants: Option<serde_json::Value>) -> Configured {
    Configured::of(Some(&JsonText(hooks)), grants.map(JsonText).as_ref()).unwrap()
}

/// Nothing configured; tenants may name any host.
fn none() -> Configured {
    configured(serde_json::json!([]), None).claiming()
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

fn hook(name: &str, owner: Option<&str>) -> Hook {
    Hook {
        host: host(name),
        url: format!("https://hooks.example/{name}"),
        owner: owner.map(|id| TenantId::new(id).unwrap()),
        by_operator: false,
    }
}

fn request(host: &str) -> RequestedHook {
    RequestedHook {
        host: host.to_owned(),
        url: "https://hooks.example/new".to_owned(),
        auth_id: None,
    }
}

fn hosts(hooks: &[Hook]) -> Vec<&str> {
    hooks.iter().map(|hook| hook.host.as_str()).collect()
}

fn text(error: HookError) -> String {
    match error {
        HookError::Invalid(text) => format!("400 {text}"),
        HookError::Immutable(text) => format!("405 {text}"),
        HookError::Storage(text) => format!("500 {text}"),
    }
}

/// What each of three callers gets: one without a tenant, tenant a, tenant b.
fn callers() -> [Access; 3] {
    [
        Access::anonymous(),
        Access::of_tenant("a"),
        Access::of_tenant("b"),
    ]
}

#[test]
fn everybody_sees_their_own_and_who_has_no_tenant_sees_all() {
    let configured = configured(
        serde_json::json!([
            {"host": "c.example", "url": "https://c.example/"},
            {"host": "D.example", "url": "https://d.example/", "auth_id": "a", "secret": "0123456789abcdef"},
        ]),
        None,
    );
    let added = [
        hook("b.example", Some("b")),
        hook("a.example", Some("a")),
        hook("z.example", None),
    ]
    .into_iter()
    .collect();
    let table = Table {
        configured: &configured,
        added: &added,
    };
    let seen = callers().map(|access| table.shown(&access));
    assert_eq!(
        hosts(&seen[0]),
        [
            "a.example",
            "b.example",
            "c.example",
            "d.example",
            "z.example"
        ]
    );
    assert_eq!(hosts(&seen[1]), ["a.example", "d.example"]);
    assert_eq!(hosts(&seen[2]), ["b.example"]);
}

#[test]
fn a_hook_is_added_for_its_tenant_and_replaces_that_of_the_same_host_in_any_spelling() {
    let configured = none();
    let added = [hook("a.example", Some("a"))].into_iter().collect();
    let table = Table {
        configured: &configured,
        added: &added,
    };
    let [anonymous, a, _] = callers();
    let change = table.put(&a, vec![request("A.Example."), request("new.example")]);
    let mut after: Added = added.clone();
    after.apply(&change.unwrap());
    let hooks: Vec<_> = after.hooks().cloned().collect();
    assert_eq!(hosts(&hooks), ["a.example", "new.example"]);
    for hook in &hooks {
        assert_eq!(hook.url, "https://hooks.example/new");
        assert_eq!(hook.owner.as_ref().map(TenantId::as_str), Some("a"));
    }
    let mut given = request("b.example");
    given.auth_id = Some("b".to_owned());
    let change = table
        .put(&anonymous, vec![given, request("a.example")])
        .unwrap();
    let owners = change.put.iter().map(|hook| hook.owner.as_ref());
    let owners: Vec<_> = owners.map(|owner| owner.map(TenantId::as_str)).collect();
    assert_eq!(owners, [None, Some("b")]);
}

#[test]
fn one_hook_that_does_not_fit_refuses_all_and_is_named() {
    let configured = configured(
        serde_json::json!([
            {"host": "fixed.example", "url": "https://c.example/"},
            {"host": "fixed-b.example", "url": "https://c.example/", "auth_id": "b"},
        ]),
        Some(serde_json::json!({
            "a": ["good.example", "B.example", "z.example", "fixed.example", "fixed-b.example"], "b": ["b.example"],
        })),
    );
    let added = [hook("b.example", Some("b")), hook("z.example", None)]
        .into_iter()
        .collect();
    let table = Table {
        configured: &configured,
        added: &added,
    };
    let [anonymous, a, _] = callers();
    let with = |url: &str, auth_id: Option<&str>| RequestedHook {
        url: url.to_owned(),
        auth_id: auth_id.map(str::to_owned),
        ..request("bad.example")
    };
    for (access, bad, expected) in [
        (
            &anonymous,
            request("a:5060"),
            "400 hooks[1].host: must be a name",
        ),
        (
            &anonymous,
            request("GOOD.example"),
            "400 hooks[1].host: is there twice",
        ),
        (
            &anonymous,
            with("http://a.example/", None),
            "400 hooks[1].url: must be https",
        ),
        (
            &anonymous,
            with("https://10.0.0.1/", None),
            "400 hooks[1].url: must be a public",
        ),
        (
            &anonymous,
            with("https://a.example/", Some("a b\n")),
            "400 hooks[1].auth_id: must be",
        ),
        (
            &anonymous,
            request("Fixed.example"),
            "405 hooks: fixed.example",
        ),
        (&a, request("fixed.example"), "405 hooks: fixed.example"),
        (
            &a,
            request("fixed-b.example"),
            "400 hooks[1].host: belongs to somebody else",
        ),
        (
            &a,
            request("b.example"),
            "400 hooks[1].host: belongs to somebody else",
        ),
        (
            &a,
            request("z.example"),
            "400 hooks[1].host: belongs to somebody else",
        ),
        (
            &a,
            request("other.example"),
            "400 hooks[1].host: is not one of your hosts",
        ),
    ] {
        let refused = text(
            table
                .put(access, vec![request("good.example"), bad])
                .unwrap_err(),
        );
        assert!(refused.starts_with(expected), "{refused}, not {expected}");
    }
    let mut of_a = request("good.example");
    of_a.auth_id = Some("a".to_owned());
    let refused = text(table.put(&a, vec![of_a]).unwrap_err());
    assert!(
        refused.starts_with("400 hooks[0].auth_id: may be given only"),
        "{refused}"
    );
    assert!(table.put(&a, vec![request("good.example")]).is_ok());
}

#[test]
fn what_was_added_is_removed_unknown_hosts_are_ignored_and_one_that_is_fixed_refuses_all() {
    let configured = configured(
        serde_json::json!([{"host": "fixed.example", "url": "https://c.example/"}]),
        None,
    )
    .claiming();
    let added = [hook("a.example", Some("a")), hook("b.example", Some("b"))]
        .into_iter()
        .collect();
    let table = Table {
        configured: &configured,
        added: &added,
    };
    let [anonymous, a, _] = callers();
    let remove = |access: &Access, hosts: &[&str]| {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        table.remove(access, &hosts).map_err(text)
    };
    let removed = |hosts: &[&str]| {
        Ok(Change {
            put: Vec::new(),
            removed: hosts.iter().map(|name| host(name)).collect(),
        })
    };
    assert_eq!(
        remove(
            &anonymous,
            &[
                "B.Example",
                "nobody.example",
                "a b",
                "a.example",
                "a.example"
            ]
        ),
        removed(&["a.example", "b.example"])
    );
    assert_eq!(
        remove(&a, &["a.example", "nobody.example"]),
        removed(&["a.example"])
    );
    for (access, host, expected) in [
        (&a, "b.example", "400 hosts[1]: belongs to somebody else"),
        (&a, "fixed.example", "405 hosts: fixed.example"),
        (&anonymous, "FIXED.example", "405 hosts: fixed.example"),
    ] {
        let refused = remove(access, &["a.example", host]).unwrap_err();
        assert!(refused.starts_with(expected), "{refused}, not {expected}");
    }
}

#[test]
fn what_was_added_before_the_settings_named_its_host_holds_until_it_is_removed() {
    let configured = configured(
        serde_json::json!([{"host": "a.example", "url": "https://fixed.example/"}]),
        None,
    );
    let added: Added = [hook("a.example", None)].into_iter().collect();
    let table = Table {
        configured: &configured,
        added: &added,
    };
    let anonymous = Access::anonymous();
    let url = |table: Table<'_>| table.shown(&anonymous)[0].url.clone();
    assert_eq!(url(table), "https://hooks.example/a.example");
    assert!(matches!(
        table.put(&anonymous, vec![request("a.example")]),
        Err(HookError::Immutable(_))
    ));
    let change = table.remove(&anonymous, &["A.example".to_owned()]).unwrap();
    let mut after = added.clone();
    after.apply(&change);
    let table = Table {
        configured: &configured,
        added: &after,
    };
    assert_eq!(url(table), "https://fixed.example/");
    assert!(matches!(
        table.remove(&anonymous, &["a.example".to_owned()]),
        Err(HookError::Immutable(_))
    ));
}

#[test]
fn what_one_tenant_has_added_is_never_in_the_place_of_what_the_settings_give_to_another() {
    let fixed = |owner: serde_json::Value| {
        let entry = serde_json::json!({"host": "a.example", "url": "https://fixed.example/", "auth_id": owner});
        configured(serde_json::json!([entry]), None)
    };
    for (settings, added, holds) in [
        ("a", Some("b"), "https://fixed.example/"),
        ("a", Some("a"), "https://hooks.example/a.example"),
        ("a", None, "https://hooks.example/a.example"),
    ] {
        let configured = fixed(settings.into());
        let added = [hook("a.example", added)].into_iter().collect();
        let table = Table {
            configured: &configured,
            added: &added,
        };
        let found = table.find(&host("a.example")).unwrap();
        assert_eq!(found.hook().url, holds, "{added:?}");
        let remove = table.remove(&Access::anonymous(), &["a.example".to_owned()]);
        assert_eq!(remove.unwrap().removed.len(), 1);
    }
}

#[test]
fn where_a_tenants_hook_is_not_for_a_call_that_of_the_settings_is() {
    let entry = serde_json::json!({"host": "a.example", "url": "https://fixed.example/"});
    let configured = configured(serde_json::json!([entry]), None).claiming();
    let added = [hook("a.example", Some("a"))].into_iter().collect();
    let table = Table {
        configured: &configured,
        added: &added,
    };
    for (number_of, holds) in [
        (None, "https://hooks.example/a.example"),
        (Some("a"), "https://hooks.example/a.example"),
        (Some("b"), "https://fixed.example/"),
    ] {
        let number_of = number_of.map(|id| TenantId::new(id).unwrap());
        let found = table.find_for(&host("a.example"), number_of.as_ref());
        assert_eq!(found.unwrap().hook().url, holds, "{number_of:?}");
    }
}

#[test]
fn a_tenant_names_no_host_that_the_settings_do_not_give_it_and_gets_rid_of_one_it_had() {
    let grants = serde_json::json!({"b": ["b.example"]});
    for grants in [None, Some(grants)] {
        let configured = configured(serde_json::json!([]), grants);
        let added = [hook("old.example", Some("a")), hook("b.example", Some("b"))]
            .into_iter()
            .collect();
        let table = Table {
            configured: &configured,
            added: &added,
        };
        let [anonymous, a, _] = callers();
        let of_nobody = ["free.example", "127.0.0.1", "localhost", "old.example"];
        // Where another's hook is, the same is said.
        for host in of_nobody.into_iter().chain(["b.example"]) {
            let refused = text(table.put(&a, vec![request(host)]).unwrap_err());
            let expected = "400 hooks[0].host: is not one of your hosts (sip.tenant_hosts)";
            assert_eq!(refused, expected, "{host}");
            assert!(table.put(&anonymous, vec![request(host)]).is_ok());
        }
        for host in ["free.example", "b.example"] {
            let refused = text(table.remove(&a, &[host.to_owned()]).unwrap_err());
            let expected = "400 hosts[0]: is not one of your hosts (sip.tenant_hosts)";
            assert_eq!(refused, expected, "{host}");
        }
        assert_eq!(
            table.not_granted(),
            1 + usize::from(!configured.grants(&TenantId::new("b").unwrap(), &host("b.example")))
        );
        let change = table.remove(&a, &["old.example".to_owned()]);
        assert_eq!(change.unwrap().removed, [host("old.example")]);
    }
}

#[test]
fn there_are_only_so_many_hooks_of_one_tenant_and_in_all() {
    let configured = none();
    let many = |owner: Option<&str>, count: usize| -> Added {
        (0..count)
            .map(|index| hook(&format!("h{index}.example"), owner))
            .collect()
    };
    let [anonymous, a, b] = callers();
    let of_a = many(Some("a"), MAX_HOOKS_PER_TENANT);
    let table = Table {
        configured: &configured,
        added: &of_a,
    };
    let new = || vec![request("new.example")];
    let refused = text(table.put(&a, new()).unwrap_err());
    assert!(
        refused.starts_with("400 hooks: one tenant has 1000"),
        "{refused}"
    );
    assert!(table.put(&a, vec![request("h0.example")]).is_ok());
    assert!(table.put(&b, new()).is_ok());
    let all = many(None, MAX_HOOKS);
    let table = Table {
        configured: &configured,
        added: &all,
    };
    let refused = text(table.put(&anonymous, new()).unwrap_err());
    assert!(
        refused.starts_with("400 hooks: this server keeps"),
        "{refused}"
    );
    assert!(table.put(&anonymous, vec![request("h0.example")]).is_ok());
}

#[test]
fn changes_one_after_the_other_are_one_of_which_the_last_counts() {
    let put = |hosts: &[&str], owner: &str| Change {
        put: hosts.iter().map(|name| hook(name, Some(owner))).collect(),
        removed: Vec::new(),
    };
    let removed = |hosts: &[&str]| Change {
        put: Vec::new(),
        removed: hosts.iter().map(|name| host(name)).collect(),
    };
    let changes = [
        put(&["a.example", "b.example"], "a"),
        removed(&["a.example", "c.example", "d.example"]),
        put(&["d.example", "b.example"], "b"),
    ];
    let before: Added = [hook("c.example", None), hook("e.example", None)]
        .into_iter()
        .collect();
    let mut one_by_one = before.clone();
    for change in &changes {
        one_by_one.apply(change);
    }
    let mut at_once = before;
    let all = Change::of_all(changes);
    assert_eq!((all.put.len(), all.removed.len()), (2, 2));
    at_once.apply(&all);
    assert_eq!(at_once, one_by_one);
}
