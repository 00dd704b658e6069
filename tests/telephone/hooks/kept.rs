//! Changed hooks survive a restart, and a change that cannot be stored is refused.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

const URL: &str = "https://hooks.example/";

fn file(server: &Server) -> PathBuf {
    server.data.path().join("hooks.json")
}

#[tokio::test]
async fn hooks_survive_a_restart_in_a_file_for_this_user_alone_without_secrets() {
    let server = server(&[]);
    let body = json!([hook("one.example", URL)]);
    assert_eq!(hooks(&server, OF_A, Method::POST, body).await.0, 200);
    let mode = std::fs::metadata(file(&server))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(file(&server)).unwrap();
    assert!(
        text.contains("one.example") && !text.contains(COMMON),
        "{text}"
    );
    // Killed, not stopped. Earlier versions had the file with the cache.
    let data = server.kill();
    let cache = data.path().join("cache");
    std::fs::create_dir_all(&cache).unwrap();
    std::fs::rename(data.path().join("hooks.json"), cache.join("hooks.json")).unwrap();
    let server = server_in(data, &[]);
    assert!(!cache.join("hooks.json").exists() && file(&server).exists());
    let all = (200, "one.example".to_owned());
    assert_eq!(hooks(&server, OF_A, Method::GET, Value::Null).await, all);
    assert_eq!(hooks(&server, OF_B, Method::GET, Value::Null).await.1, "");
}

#[tokio::test]
async fn a_host_that_the_settings_come_to_name_reverts_to_them_when_its_own_hook_is_removed() {
    let server = server(&[]);
    let body = json!([hook("one.example", URL)]);
    assert_eq!(
        hooks(&server, HOUSE, Method::POST, body.clone()).await.0,
        200
    );
    let fixed = [(
        "SIP_HOOKS_JSON",
        r#"[{"host": "one.example", "url": "https://fixed.example/"}]"#,
    )];
    let server = server_in(server.into_data(), &fixed);
    let url = async |method, body: &Value| {
        let (status, answer) = ask(&server, method, "/sip/hooks", Some(HOUSE), body).await;
        assert_eq!(status, 200, "{answer}");
        answer["hooks"][0]["url"].as_str().unwrap().to_owned()
    };
    assert_eq!(url(Method::GET, &Value::Null).await, URL);
    assert_eq!(hooks(&server, HOUSE, Method::POST, body).await.0, 405);
    let removed = json!({"hosts": ["ONE.example"]});
    assert_eq!(
        url(Method::DELETE, &removed).await,
        "https://fixed.example/"
    );
    assert_eq!(hooks(&server, HOUSE, Method::DELETE, removed).await.0, 405);
    assert_eq!(
        url(Method::GET, &Value::Null).await,
        "https://fixed.example/"
    );
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_and_does_not_hold() {
    let server = server(&[]);
    let body = |host: &str| json!([hook(host, URL)]);
    assert_eq!(
        hooks(&server, HOUSE, Method::POST, body("one.example"))
            .await
            .0,
        200
    );
    std::fs::remove_file(file(&server)).unwrap();
    std::fs::create_dir_all(file(&server).join("in the way")).unwrap();
    for (method, body) in [
        (Method::POST, body("two.example")),
        (Method::DELETE, json!({"hosts": ["one.example"]})),
    ] {
        let (status, said) = hooks(&server, HOUSE, method, body).await;
        assert_eq!(status, 500);
        assert!(said.starts_with("STORAGE_ERROR"), "{said}");
    }
    let held = hooks(&server, HOUSE, Method::GET, Value::Null).await;
    assert_eq!(held, (200, "one.example".to_owned()));
    // The next server cannot read it either, and says so until it can.
    let server = server_in(server.into_data(), &[]);
    let (status, said) = hooks(&server, HOUSE, Method::GET, Value::Null).await;
    assert_eq!(status, 500, "{said}");
    std::fs::remove_dir_all(file(&server)).unwrap();
    assert_eq!(hooks(&server, HOUSE, Method::GET, Value::Null).await.0, 200);
}

#[tokio::test]
async fn a_file_that_is_damaged_is_left_aside_and_stops_nobody() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("hooks.json"), "{\"hooks\": [{").unwrap();
    let server = server_in(data, &[]);
    assert_eq!(hooks(&server, HOUSE, Method::GET, Value::Null).await.0, 200);
    let aside = server.data.path().join("hooks.unreadable");
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "{\"hooks\": [{");
    let body = json!([hook("one.example", URL)]);
    assert_eq!(hooks(&server, HOUSE, Method::POST, body).await.0, 200);
}
