//! Webhooks as their receiver sees them: a program in Python that checks signatures, refuses, or is not there.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::harness::*;
use crate::session::client::Session;
use crate::session::recorded::{hears, recorded, recording};

pub const SECRET: &str = "a secret of sixteen bytes or more";

/// A receiver. Dropping it kills it.
pub struct Receiver {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// Where it listens.
    pub port: u16,
}

impl Receiver {
    /// One on this port, or any (0), that refuses so many at first.
    pub fn start(port: u16, failures: u32) -> Self {
        Self::checking(SECRET, port, failures)
    }

    /// The same, with signatures of this secret.
    pub fn checking(secret: &str, port: u16, failures: u32) -> Self {
        Self::with(&[&port.to_string(), secret, &failures.to_string()])
    }

    /// One on any port that looks for headers with this word.
    pub fn in_dialect(word: &str) -> Self {
        Self::with(&["0", SECRET, "0", word])
    }

    fn with(arguments: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(root.join(".clients/python/bin/python"))
            .arg(root.join("tests/clients/webhook_receiver.py"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (read, lines) = mpsc::sync_channel(1_000);
        // It ends with the program.
        std::thread::spawn(move || {
            let mut lines = output.lines().map_while(Result::ok);
            lines.try_for_each(|line| read.send(line))
        });
        let ready = lines.recv_timeout(PATIENCE).unwrap();
        let port = ready.strip_prefix("ready ").unwrap().parse().unwrap();
        Self { child, lines, port }
    }

    /// What it has seen next.
    pub fn next(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE);
        serde_json::from_str(&line.expect("nothing was told in time")).unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The settings of a server that tells it.
pub fn settings(url: &str) -> [(&'static str, &str); 5] {
    [
        ("WEBHOOKS_URL", url),
        ("WEBHOOKS_SECRET", SECRET),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
        ("NULL_ENABLED", "true"),
    ]
}

/// A session that says something and is closed by its client.
pub async fn talk(server: &Server, stream_id: &str, text: &str) {
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

/// The next of this kind.
/// What it sees of this kind next.
pub fn next_of(receiver: &mut Receiver, event: &str) -> Value {
    loop {
        let seen = receiver.next();
        assert_eq!(seen["good"], true, "{seen}");
        if seen["body"]["event"] == event {
            return seen;
        }
    }
}

#[actix_web::test]
async fn a_recording_that_is_stored_is_told_with_what_is_known_of_it_and_always_as_the_same_event()
{
    // It refuses everything at first, then it is away.
    let mut receiver = Receiver::start(0, u32::MAX);
    let port = receiver.port;
    let url = format!("http://127.0.0.1:{port}/");
    let settings = settings(&url);
    let server = Server::start_with(&settings);
    recorded(&server, "call").await;
    let refused = next_of(&mut receiver, "recording.stored");
    assert_eq!(refused["status"], 500);
    drop(receiver);
    let mut told = server.into_data();
    let known: Value = serde_json::from_slice(
        &std::fs::read(told.path().join("recordings/call/metadata.json")).unwrap(),
    )
    .unwrap();

    // Another process tells it as well, and once more where the first has died before the journal was gone.
    for _ in 0..2 {
        let server = Server::start_in(told, &settings);
        let mut receiver = Receiver::start(port, 0);
        let seen = next_of(&mut receiver, "recording.stored");
        assert_eq!(
            (&seen["id"], &seen["status"]),
            (&refused["id"], &json!(204))
        );
        let body = &seen["body"];
        let expected = json!({
            "event": "recording.stored", "stream_id": "call", "timestamp": body["timestamp"],
            "key": "recordings/call/audio.ogg", "duration_ms": known["duration_ms"],
            "size": known["size"], "sha256": known["sha256"],
        });
        assert_eq!(body, &expected);
        assert!(body["timestamp"].as_u64() >= known["started_at"].as_u64());
        let spool = server.data.path().join("webhooks");
        eventually("what was taken stays in the spool", || {
            std::fs::read_dir(&spool).unwrap().count() == 0
        })
        .await;
        told = server.into_data();
        let journal = told.path().join("recordings/.journal/call");
        std::fs::create_dir(&journal).unwrap();
        for file in ["audio.ogg", "transcript.jsonl", "metadata.json"] {
            let kept = told.path().join("recordings/call").join(file);
            std::fs::copy(kept, journal.join(file)).unwrap();
        }
    }
}

#[actix_web::test]
async fn a_recording_whose_key_is_taken_is_told_to_have_failed() {
    let mut receiver = Receiver::start(0, 0);
    let url = format!("http://127.0.0.1:{}/", receiver.port);
    let server = Server::start_with(&settings(&url));
    let session = Session::open(&server, recording("taken")).await;
    hears(&session, 1).await;
    let folder = server.data.path().join("recordings/taken");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("audio.ogg"), "something else").unwrap();
    session.close().await;
    let failed = next_of(&mut receiver, "recording.failed");
    let body = &failed["body"];
    assert_eq!(
        (&body["stream_id"], &body["key"]),
        (&json!("taken"), &json!("recordings/taken/audio.ogg"))
    );
    assert_eq!(body["message"], "the key is taken");
    let journal = server.data.path().join("recordings/.journal/taken");
    let size = std::fs::metadata(journal.join("audio.ogg")).unwrap().len();
    assert_eq!(body["size"], size);
    assert_eq!(body["sha256"].as_str().unwrap().len(), 64);
    assert!(body["duration_ms"].as_u64().unwrap() >= 900);
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
