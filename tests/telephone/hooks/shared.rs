//! Replicas share their hooks in Redis: Debian's package, with a password, with and without TLS.

use std::time::{Duration, Instant};

use super::*;
use crate::harness::PATIENCE;
use crate::harness::redis::Redis;
use crate::telephone::rig;

const PASSWORD: &str = "marker-of-redis";
const URL: &str = "https://hooks.example/";
/// For so long replicas may disagree: the second that is promised (they look every 400 ms), and one more for a machine
/// that has other work.
const AGREEMENT: Duration = Duration::from_secs(2);

/// Waits until a server shows these hosts, which another has been told just now.
async fn shows(server: &Server, hosts: &str) {
    shows_within(AGREEMENT, server, hosts).await;
}

async fn shows_within(patience: Duration, server: &Server, hosts: &str) {
    let begin = Instant::now();
    loop {
        // What counts is when it was asked, not how long the answer took.
        let asked = begin.elapsed();
        let seen = hooks(server, HOUSE, Method::GET, Value::Null).await;
        if seen == (200, hosts.to_owned()) {
            return;
        }
        assert!(asked < patience, "{seen:?} instead of {hosts}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn add(host: &str) -> Value {
    json!([hook(host, URL)])
}

#[tokio::test]
async fn replicas_agree_lose_no_change_and_go_on_while_redis_is_away() {
    let port = rig::ports(1).to_string();
    let redis = Redis::start(&["--port", &port, "--requirepass", PASSWORD]);
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{port}/3");
    let [mut one, two] = [(); 2].map(|()| {
        let tenants = crate::auth::tenants();
        let shared = settings(&tenants, &[("REDIS_URL", &url)]);
        Server::start_logged(&shared)
    });
    assert_eq!(
        hooks(&one, OF_A, Method::POST, add("a.example")).await.0,
        200
    );
    shows(&two, "a.example").await;

    // Changes at once, on both sides.
    let changes = (0..16).map(|index| {
        let server = if index % 2 == 0 { &one } else { &two };
        async move {
            hooks(
                server,
                HOUSE,
                Method::POST,
                add(&format!("h{index:02}.example")),
            )
            .await
        }
    });
    for (status, said) in futures_util::future::join_all(changes).await {
        assert_eq!(status, 200, "{said}");
    }
    let all = |more: &str| {
        let names = (0..16).map(|index| format!("h{index:02}.example"));
        let names = ["a.example".to_owned()].into_iter().chain(names);
        let names: Vec<_> = names
            .chain((!more.is_empty()).then(|| more.to_owned()))
            .collect();
        names.join(" ")
    };
    shows(&one, &all("")).await;
    shows(&two, &all("")).await;

    // Redis ends, and with it all that it held.
    drop(redis);
    let (status, said) = hooks(&one, HOUSE, Method::POST, add("z.example")).await;
    assert!(
        status == 500 && said.starts_with("STORAGE_ERROR"),
        "{status} {said}"
    );
    for server in [&one, &two] {
        assert_eq!(
            hooks(server, HOUSE, Method::GET, Value::Null).await.1,
            all("")
        );
    }
    let tenants = crate::auth::tenants();
    let shared = settings(&tenants, &[("REDIS_URL", &url)]);
    let two = Server::start_in(two.into_data(), &shared);
    assert_eq!(
        hooks(&two, HOUSE, Method::GET, Value::Null).await.1,
        all("")
    );
    let _redis = Redis::start(&["--port", &port, "--requirepass", PASSWORD]);
    assert_eq!(
        hooks(&one, HOUSE, Method::POST, add("z.example")).await.0,
        200
    );
    // After an outage they look less often for a while.
    shows_within(PATIENCE, &two, &all("z.example")).await;
    let body = json!({"hosts": ["z.example"]});
    assert_eq!(hooks(&two, HOUSE, Method::DELETE, body).await.0, 200);
    shows_within(PATIENCE, &one, &all("")).await;
    let log = one.log();
    assert!(
        log.contains("Redis does not answer") && !log.contains(PASSWORD),
        "{log}"
    );
}

#[tokio::test]
async fn redis_is_reached_with_tls_by_the_authorities_of_the_settings_and_not_without() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let port = rig::ports(1).to_string();
    let _redis = Redis::start(&[
        "--tls-port",
        &port,
        "--port",
        "0",
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
        "--requirepass",
        PASSWORD,
    ]);
    let url = format!("rediss://:{PASSWORD}@localhost:{port}");
    let known = server(&[("REDIS_URL", &url), ("OUTGOING_CA_FILE", &cert)]);
    assert_eq!(
        hooks(&known, HOUSE, Method::POST, add("a.example")).await.0,
        200
    );
    let other = server(&[("REDIS_URL", &url), ("OUTGOING_CA_FILE", &cert)]);
    shows(&other, "a.example").await;
    let unknown = server(&[("REDIS_URL", &url)]);
    assert_eq!(hooks(&unknown, HOUSE, Method::GET, Value::Null).await.1, "");
    let (status, said) = hooks(&unknown, HOUSE, Method::POST, add("b.example")).await;
    assert!(status == 500 && !said.contains(PASSWORD), "{status} {said}");
}
