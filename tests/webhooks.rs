//! Webhooks as their receiver sees them: a program in Python that checks signatures, refuses, or is not there.

use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::harness::*;
use crate::session::client::Session;

const SECRET: &str = "a secret of sixteen bytes or more";

/// A receiver. Dropping it kills it.
struct Receiver {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    port: u16,
}

impl Receiver {
    /// One on this port, or any (0), that refuses so many at first.
    fn start(port: u16, failures: u32) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(root.join(".clients/python/bin/python"))
            .arg(root.join("tests/clients/webhook_receiver.py"))
            .args([&port.to_string(), SECRET, &failures.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().unwrap().unwrap();
        let port = ready.strip_prefix("ready ").unwrap().parse().unwrap();
        Self { child, lines, port }
    }

    /// What it has seen next.
    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn settings(url: &str) -> [(&str, &str); 5] {
    [
        ("WEBHOOKS_URL", url),
        ("WEBHOOKS_SECRET", SECRET),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
        ("NULL_ENABLED", "true"),
    ]
}

/// A session that says something and is closed by its client.
async fn talk(server: &Server, stream_id: &str, text: &str) {
    let config = json!({
        "type": "config", "stream_id": stream_id,
        "stt_config": {"provider": "null", "model": ""},
        "tts_config": {"provider": "null", "model": ""},
    });
    let mut session = Session::open(server, config).await;
    session.speak("a", text).await;
    session.completion_of("a").await;
    session.close().await;
}

#[actix_web::test]
async fn a_webhook_that_is_refused_comes_again_under_the_same_id_until_it_is_taken() {
    let mut receiver = Receiver::start(0, 3);
    let url = format!("http://127.0.0.1:{}/hook?key=abc", receiver.port);
    let server = Server::start_with(&settings(&url));
    talk(&server, "first", "Grüße").await;
    let seen: Vec<Value> = (0..4).map(|_| receiver.next()).collect();
    for (attempt, status) in seen.iter().zip([500, 500, 500, 204]) {
        assert_eq!(attempt["good"], true, "{attempt}");
        assert_eq!(attempt["status"], status, "{attempt}");
        assert_eq!(attempt["id"], seen[0]["id"]);
        assert_eq!(attempt["body"], seen[0]["body"]);
    }
    let body = &seen[0]["body"];
    assert_eq!(body["event"], "session.ended");
    assert_eq!(body["stream_id"], "first");
    assert_eq!(body["tts_characters"], 5);
    assert_eq!(body["reason"], "the client has gone");
    assert!(body["duration_ms"].as_u64().unwrap() > 0);
    assert!(
        body["stt_seconds"].is_number() && body.get("tenant").is_none(),
        "{body}"
    );
    let spool = server.data.path().join("webhooks");
    eventually("what was taken stays in the spool", || {
        std::fs::read_dir(&spool).unwrap().count() == 0
    })
    .await;
}

#[actix_web::test]
async fn a_webhook_survives_a_restart_while_its_receiver_is_away() {
    // A port at which nobody listens.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}/");
    let settings = settings(&url);
    let server = Server::start_with(&settings);
    talk(&server, "second", "hello").await;
    let spool = server.data.path().join("webhooks");
    let waiting = || {
        let mut files = std::fs::read_dir(&spool).unwrap();
        let file = files.next()?.unwrap().path();
        let text = std::fs::read(file).ok()?;
        serde_json::from_slice::<Value>(&text).ok()
    };
    eventually("nothing is spooled", || waiting().is_some()).await;
    let waiting = waiting().unwrap();
    assert!(!waiting.to_string().contains(SECRET), "{waiting}");
    let server = Server::start_in(server.into_data(), &settings);
    let mut receiver = Receiver::start(port, 0);
    let seen = receiver.next();
    assert_eq!((&seen["id"], &seen["good"]), (&waiting["id"], &json!(true)));
    assert_eq!(seen["body"]["stream_id"], "second");
    drop(server);
}

#[test]
fn a_receiver_out_of_reach_or_without_a_good_secret_stops_the_start() {
    let private = ["-s", "webhooks.url=https://127.0.0.1/"];
    let insecure = ["-s", "webhooks.url=http://hooks.example/"];
    let secret = ["-s", "webhooks.secret=a secret of sixteen bytes"];
    let short = ["-s", "webhooks.secret=short"];
    for (arguments, part) in [
        (
            [private, secret].concat(),
            "webhooks.url: must be a public address",
        ),
        ([insecure, secret].concat(), "webhooks.url: must be https"),
        (
            [private, short].concat(),
            "webhooks.secret: must have 16 bytes",
        ),
        (private.to_vec(), "one needs the other"),
    ] {
        let output = vivavoce([&["check"][..], &arguments].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}
