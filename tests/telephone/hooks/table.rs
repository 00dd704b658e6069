//! The rules of the specification and the protocol for `/sip/hooks`, row by row, with two tenants.

use super::*;
use crate::harness::{stderr, vivavoce};

/// What the settings name: one hook for everybody, one of tenant `a`.
const FIXED: &str = r#"[{"host": "Fixed.example", "url": "https://fixed.example/"},
    {"host": "of-a.example", "url": "https://a.example/", "auth_id": "a", "secret": "sixteen bytes or more"}]"#;

#[rustfmt::skip]
#[tokio::test]
async fn every_caller_sees_and_changes_its_own_hooks_and_nothing_else() {
    let grants = r#"{"a": ["one.example", "TWO.example", "fixed.example", "three.example"], "b": ["one.example", "two.example", "fixed.example", "of-a.example"]}"#;
    let server = server(&[("SIP_HOOKS_JSON", FIXED), ("SIP_TENANT_HOSTS", grants)]);
    let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
    let url = "https://hooks.example/";
    let of = |host: &str, auth_id: Value| json!({"host": host, "url": url, "auth_id": auth_id});
    let hosts = |hosts: &[&str]| json!({"hosts": hosts});
    let rows = [
        (HOUSE, &get, Value::Null, 200, "fixed.example of-a.example"),
        (OF_A, &get, Value::Null, 200, "of-a.example"),
        (OF_B, &get, Value::Null, 200, ""),
        // Adding: as an array or in an object, in any case.
        (OF_A, &post, json!([hook("One.Example", url)]), 200, "of-a.example one.example"),
        (OF_B, &post, json!({"hooks": [hook("two.example.", url)]}), 200, "two.example"),
        (HOUSE, &post, json!([hook("free.example", url), of("given.example", json!("b"))]), 200,
            "fixed.example free.example given.example of-a.example one.example two.example"),
        (OF_B, &get, Value::Null, 200, "given.example two.example"),
        // Not theirs to change: all or nothing.
        (OF_B, &post, json!([hook("two.example", url), hook("one.example", url)]), 400, "INVALID_REQUEST \"hooks[1].host: belongs"),
        (OF_A, &post, json!([hook("three.example", url), hook("TWO.example", url)]), 400, "INVALID_REQUEST \"hooks[1].host: belongs"),
        (OF_A, &post, json!([hook("other.example", url)]), 400, "INVALID_REQUEST \"hooks[0].host: is not one"),
        (OF_A, &post, json!([of("one.example", json!("a"))]), 400, "INVALID_REQUEST \"hooks[0].auth_id: may be given"),
        (OF_A, &post, json!([hook("three.example", url), hook("FIXED.example", url)]), 405, "HOOK_IMMUTABLE \"hooks: fixed.example"),
        (HOUSE, &post, json!([hook("of-a.example", url)]), 405, "HOOK_IMMUTABLE \"hooks: of-a.example"),
        (OF_B, &post, json!([hook("of-a.example", url)]), 400, "INVALID_REQUEST \"hooks[0].host: belongs"),
        (OF_A, &get, Value::Null, 200, "of-a.example one.example"),
        // What does not fit is named.
        (HOUSE, &post, json!([]), 400, "INVALID_REQUEST \"hooks: must be 1"),
        (HOUSE, &post, json!([hook("x.example", url), hook("X.example", url)]), 400, "INVALID_REQUEST \"hooks[1].host: is there twice"),
        (HOUSE, &post, json!([hook("", url)]), 400, "INVALID_REQUEST \"hooks[0].host"),
        (HOUSE, &post, json!([hook("x.example:5060", url)]), 400, "INVALID_REQUEST \"hooks[0].host: must be a name"),
        (HOUSE, &post, json!([hook("x.example", "ftp://hooks.example/")]), 400, "INVALID_REQUEST \"hooks[0].url: must begin"),
        (HOUSE, &post, json!([hook("x.example", "https://u:p@hooks.example/")]), 400, "INVALID_REQUEST \"hooks[0].url: must not hold"),
        (HOUSE, &post, json!([hook("x.example", "")]), 400, "INVALID_REQUEST \"hooks[0].url"),
        (HOUSE, &post, json!([of("x.example", json!("a\n"))]), 400, "INVALID_REQUEST \"hooks[0].auth_id"),
        // A blank tenant is none.
        (HOUSE, &post, json!([of("free.example", json!(" "))]), 200,
            "fixed.example free.example given.example of-a.example one.example two.example"),
        // Removing.
        (HOUSE, &delete, hosts(&[]), 400, "INVALID_REQUEST \"hosts: must be 1"),
        (HOUSE, &delete, json!({}), 400, "INVALID_REQUEST \"hosts: is required"),
        (OF_A, &delete, hosts(&["one.example", "two.example"]), 400, "INVALID_REQUEST \"hosts[1]: belongs"),
        (OF_A, &delete, hosts(&["one.example", "fixed.example"]), 405, "HOOK_IMMUTABLE \"hosts: fixed.example"),
        (OF_A, &get, Value::Null, 200, "of-a.example one.example"),
        (OF_A, &delete, hosts(&["ONE.example", "three.example"]), 200, "of-a.example"),
        (HOUSE, &delete, hosts(&["nobody.example", "no host!", "given.example"]), 200,
            "fixed.example free.example of-a.example two.example"),
        (OF_B, &get, Value::Null, 200, "two.example"),
    ];
    for (token, method, body, status, expected) in rows {
        let what = format!("{method} {body} with {token}");
        let (got, said) = hooks(&server, token, method.clone(), body).await;
        assert_eq!(got, status, "{what}: {said}");
        let fits = if status == 200 { said == expected } else { said.starts_with(expected) };
        assert!(fits, "{what}: {said}, not {expected}");
    }
}

#[tokio::test]
async fn a_tenant_names_no_host_that_the_settings_do_not_give_it() {
    let server = server(&[("SIP_CLAIM_UNOWNED_HOSTS", "false")]);
    let url = "https://hooks.example/";
    let (post, delete) = (Method::POST, Method::DELETE);
    let given = json!({"host": "given.example", "url": url, "auth_id": "a"});
    let (status, said) = hooks(&server, HOUSE, post.clone(), json!([given])).await;
    assert_eq!((status, said.as_str()), (200, "given.example"));
    // Of nobody, of this server, and its own, which the operator set for it.
    for host in ["free.example", "127.0.0.1", "localhost", "given.example"] {
        let (status, said) = hooks(&server, OF_A, post.clone(), json!([hook(host, url)])).await;
        let expected =
            r#"INVALID_REQUEST "hooks[0].host: is not one of your hosts (sip.tenant_hosts)""#;
        assert_eq!((status, said.as_str()), (400, expected), "{host}");
    }
    let shown = hooks(&server, OF_A, Method::GET, Value::Null).await;
    assert_eq!(shown, (200, "given.example".to_owned()));
    let all = json!({"hosts": ["given.example"]});
    assert_eq!(hooks(&server, OF_A, delete, all).await.0, 200);
}

#[tokio::test]
async fn a_hook_is_shown_as_it_was_asked_for_with_its_tenant_and_without_secrets() {
    let server = server(&[("SIP_HOOKS_JSON", FIXED)]);
    let url = "https://Hooks.example/calls?of=a";
    let body = json!([hook("One.example", url)]);
    let (status, answer) = ask(&server, Method::POST, "/sip/hooks", Some(OF_A), &body).await;
    let shown = json!({"hooks": [
        {"host": "of-a.example", "url": "https://a.example/", "auth_id": "a"},
        {"host": "one.example", "url": url, "auth_id": "a"},
    ]});
    assert_eq!((status, &answer), (200, &shown));
    let (_, all) = ask(
        &server,
        Method::GET,
        "/sip/hooks",
        Some(HOUSE),
        &Value::Null,
    )
    .await;
    let fixed = json!({"host": "fixed.example", "url": "https://fixed.example/", "auth_id": null});
    assert_eq!(all["hooks"][0], fixed);
}

#[tokio::test]
async fn hooks_lead_to_public_addresses_over_tls_unless_the_settings_say_otherwise() {
    let narrow = Server::start();
    for (url, problem) in [
        ("http://hooks.example/", "must be https"),
        ("https://127.0.0.1/", "must be a public address"),
        ("https://[::ffff:10.0.0.1]/", "must be a public address"),
    ] {
        let body = json!([hook("a.example", url)]);
        let (status, answer) = ask(&narrow, Method::POST, "/sip/hooks", None, &body).await;
        assert_eq!((status, &answer["error"]), (400, &json!("INVALID_REQUEST")));
        let message = answer["message"].as_str().unwrap();
        assert_eq!(message, format!("hooks[0].url: {problem}"));
    }
}

#[test]
fn settings_of_hooks_that_do_not_fit_stop_the_start_and_no_secret_is_repeated() {
    for (setting, part) in [
        (
            "sip.hook_secret=short",
            "sip.hook_secret: must have 16 bytes",
        ),
        (
            "sip.hooks_json={}",
            "sip.hooks_json: entry 1: there is none: must be an array",
        ),
        (
            r#"sip.hooks_json=[{"host":"a.example","url":"https://a.example/","secrets":"marker"}]"#,
            "sip.hooks_json: entry 1: must be",
        ),
        (
            r#"sip.hooks_json=[{"host":"a.example","url":"https://a.example/","secret":"marker"}]"#,
            "sip.hooks_json: entry 1: secret must have 16 bytes",
        ),
        (
            r#"sip.hooks_json=[{"host":"a.example","url":"http://marker.example/"}]"#,
            "sip.hooks_json: entry 1: url must be https",
        ),
        (
            r#"sip.hooks_json=[{"host":"a:1","url":"https://a.example/"}]"#,
            "sip.hooks_json: entry 1: host must be",
        ),
        (
            r#"sip.hooks_json=[{"host":"a","url":"https://a.example/"},{"host":"A.","url":"https://b.example/"}]"#,
            "sip.hooks_json: entry 2: a is there twice",
        ),
        (
            r#"sip.tenant_hosts={"a":"a.example"}"#,
            "sip.tenant_hosts: must be",
        ),
        ("redis.url=http://:marker@a/", "redis.url: must be redis://"),
        (
            "redis.url=rediss://:marker@a/#insecure",
            "redis.url: must not have a fragment",
        ),
    ] {
        let output = vivavoce(["check", "-s", setting]);
        assert_eq!(output.status.code(), Some(2), "{setting}");
        let said = stderr(&output);
        assert!(said.contains(part), "{setting}: {said}");
        assert!(!said.contains("marker"), "{said}");
    }
}
