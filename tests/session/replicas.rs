//! Sessions whose clients come back at another server, which passes their sockets on (protocol, section 1, "Replicas").

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::client::{Session, config, with};
use super::endurance::times;
use super::recorded::stored;
use super::resume::{BREAKS, Stubborn, assert_whole, metric, said_in_pieces};
use super::sound::{OUTPUT, WIDE, encoded, sentences, spoken};
use crate::harness::redis::Redis;
use crate::harness::{SENTENCES, Server, client, eventually, ffprobe, share_of_words};
use crate::telephone::rig;

/// Two servers that share a Redis.
pub struct Pair {
    pub servers: [Server; 2],
    _redis: Redis,
}

impl Pair {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(environment: &[(&str, &str)]) -> Self {
        Self::start_each([environment; 2])
    }

    /// The first one with settings that the second has not.
    pub fn start_with_first(environment: &[(&str, &str)]) -> Self {
        Self::start_each([environment, &[]])
    }

    fn start_each(environments: [&[(&str, &str)]; 2]) -> Self {
        let port = rig::ports(1).to_string();
        let redis = Redis::start(&["--port", &port]);
        let url = format!("redis://127.0.0.1:{port}");
        Self {
            servers: environments.map(|environment| {
                let mut all = vec![("REDIS_URL", url.as_str())];
                all.extend(environment);
                Server::start_with(&all)
            }),
            _redis: redis,
        }
    }
}

/// A server alone, and what starts another beside it.
pub fn first_of_a_pair() -> (Server, impl Fn() -> Server) {
    let port = rig::ports(1).to_string();
    let redis = Redis::start(&["--port", &port]);
    let start = move || {
        let _lives = &redis;
        Server::start_with(&[("REDIS_URL", &format!("redis://127.0.0.1:{port}"))])
    };
    (start(), start)
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_goes_on_at_the_sample_where_the_connection_broke_at_another_replica() {
    let pair = Pair::start();
    let meant = spoken(&pair.servers[0], SENTENCES[0], OUTPUT).await;
    let [first, second] = &pair.servers;
    let all = (0..times(12, 200) as u64).map(|seed| {
        // From one to the other, there again, and at either.
        let next = [second, second, [first, second][seed as usize % 2]];
        said_in_pieces(first, next, seed)
    });
    assert_whole(&meant, &join_all(all).await);
    // Nothing is left of what was passed on, and no session was ever at the other server.
    let gone = "vivavoce_forwarded_sockets 0";
    let begin = tokio::time::Instant::now();
    while metric(&pair.servers[1], "vivavoce_forwarded_sockets").await != gone {
        assert!(begin.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let resumes = "vivavoce_session_resumes_total";
    let count = times(12, 200) * BREAKS;
    assert_eq!(metric(first, resumes).await, format!("{resumes} {count}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_recognised_and_recorded_whole_although_half_of_them_came_to_another_replica() {
    let pair = Pair::start();
    let pause = Duration::from_secs(1);
    let speech = sentences(&pair.servers[0], &SENTENCES[..2], pause).await;
    let speech = encoded(&speech, WIDE).await;
    let said: Duration = speech.iter().map(|piece| piece.duration).sum();
    let recorded = json!({"recording": true, "stream_id": "two-halves"});
    let mut client = Stubborn::open(&pair.servers[0], recorded).await;
    let half = speech.len() / 2;
    let (before, after) = (speech[..half].to_vec(), speech[half..].to_vec());
    client.session.hear(before).await;
    client.breaks_towards(&pair.servers[1]).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    client.comes_back().await;
    client.session.hear(after).await;
    let meant = SENTENCES[..2].join(" ");
    let all = || share_of_words(&meant, &client.finals()) >= 0.8;
    eventually("words are missing", all).await;
    client.session.close().await;
    // One recording, at the server of the session, as long as what was said.
    let file = stored(&pair.servers[0], "two-halves").await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.ogg");
    std::fs::write(&path, &file).unwrap();
    let told = ffprobe(&path, &[]);
    let seconds: f64 = told["format"]["duration"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();

    assert!(
        seconds >= said.as_secs_f64() - 0.1,
        "{seconds} s of {said:?}"
    );
}

#[tokio::test]
async fn a_replica_that_was_killed_is_named_as_the_reason() {
    let Pair {
        servers: [first, second],
        _redis,
    } = Pair::start();
    let mut client = Stubborn::open(&first, json!({})).await;
    let (token, last_event) = (client.token.clone(), client.last_event);
    client.breaks_towards(&second).await;
    let mut session = client.session;
    first.kill();
    let resume = json!({"type": "resume", "token": token, "last_event": last_event});
    session.send(resume).await;
    let refused = session.refused("cannot_resume").await;
    let message = refused.text("message");
    assert!(
        message.contains("the server that holds the session cannot be asked"),
        "{refused}"
    );
    assert_eq!(session.closed().await, 4404);
    // A token whose server nobody knows.
    let mut session = Session::connect(&second).await;
    let token = format!("{}.{}", "0".repeat(32), "0".repeat(64));
    let resume = json!({"type": "resume", "token": token, "last_event": 0});
    session.send(resume).await;
    let refused = session.refused("cannot_resume").await;
    assert!(refused.text("message").contains("is gone"), "{refused}");
    assert_eq!(session.closed().await, 4404);
}

#[tokio::test]
async fn a_session_of_a_server_that_is_told_to_stop_goes_on_through_another_replica() {
    let mut pair = Pair::start();
    let [first, second] = &mut pair.servers;
    let mut client = Stubborn::open(first, json!({})).await;
    client.session.speak("a", SENTENCES[0]).await;
    first.terminate();
    client.session.next("draining").await;
    client.breaks_towards(second).await;
    client.comes_back().await;
    client.session.completion_of("a").await;
    // It waits for the session alone.
    client.session.close().await;
    assert!(pair.servers[0].ended().success());
}

#[tokio::test]
async fn a_token_of_a_server_that_was_started_anew_goes_in_no_circle() {
    let port = rig::ports(1).to_string();
    let redis_port = rig::ports(1).to_string();
    let _redis = Redis::start(&["--port", &redis_port]);
    let url = format!("redis://127.0.0.1:{redis_port}");
    let fixed = format!("http://127.0.0.1:{port}");
    let environment = [
        ("REDIS_URL", url.as_str()),
        ("REDIS_REPLICA_URL", fixed.as_str()),
        ("SERVER_PORT", port.as_str()),
    ];
    // Both tell Redis the same place; only the second is there.
    let first = Server::start_with(&environment[..2]);
    let client = Stubborn::open(&first, json!({})).await;
    let token = client.token.clone();
    let folder = tempfile::tempdir().unwrap();
    let mut second = std::process::Command::new(crate::harness::VIVAVOCE)
        .args(["serve", "--port", &port, "--data-dir"])
        .arg(folder.path())
        .envs(environment)
        .env("RTC_UDP_PORT", "0")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    rig::listened("tcp", port.parse().unwrap()).await;
    let mut session = Session::connect_to(&format!("ws://127.0.0.1:{port}/ws")).await;
    let resume = json!({"type": "resume", "token": token, "last_event": 0});
    session.send(resume).await;
    let refused = session.refused("cannot_resume").await;
    let message = refused.text("message");
    assert!(message.contains("no session waits for it"), "{refused}");
    client.session.command("clear").await;
    second.kill().unwrap();
    second.wait().unwrap();
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_begins_no_session_although_it_has_replicas() {
    let mut pair = Pair::start();
    let [first, _] = &mut pair.servers;
    let client = Session::open(first, config(json!({}))).await;
    first.terminate();
    let ready = format!("{}/readyz", first.url);
    let begin = tokio::time::Instant::now();
    while client_status(&ready).await != 503 {
        assert!(begin.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut late = Session::connect(first).await;
    late.send(config(json!({}))).await;
    late.refused("overloaded").await;
    client.close().await;
}

async fn client_status(url: &str) -> u16 {
    client().get(url).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn another_tenants_session_is_not_found_at_another_replica_either() {
    let secrets = r#"[{"id": "one", "secret": "correct-horse-battery-1"}, {"id": "two", "secret": "correct-horse-battery-2"}]"#;
    let pair = Pair::start_with(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRETS_JSON", secrets),
    ]);
    let [first, second] = &pair.servers;
    let mut session = Session::connect_as(first, Some("correct-horse-battery-1")).await;
    session
        .send(config(with(json!({"resume": true}), json!({}))))
        .await;
    let token = session.next("ready").await.text("resume_token").to_owned();
    let resume: Value = json!({"type": "resume", "token": token, "last_event": 1});
    let mut others = Session::connect_as(second, Some("correct-horse-battery-2")).await;
    others.send(resume.clone()).await;
    let refused = others.refused("cannot_resume").await;
    let message = refused.text("message");
    assert!(message.contains("no session waits for it"), "{refused}");
    // Their own is.
    let mut own = Session::connect_as(second, Some("correct-horse-battery-1")).await;
    own.send(resume).await;
    own.next("ready").await;
    own.speak("a", SENTENCES[0]).await;
    own.completion_of("a").await;
    own.close().await;
}
