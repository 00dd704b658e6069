//! The promises of rooms of a LiveKit deployment, kept with LiveKit's own server: those of sessions, and of the paths under
//! `/rtc` for two tenants. What its webhooks tell is in [`super::events`].

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::agent::failures::told;
use super::agent::{self, AGENT, clip, says_until_heard, tenants};
use super::client::{Client, Kind};
use super::proxy::Proxy;
use super::rest::{self, A, B, guarded, outcome, wish};
use super::{ask, server_elsewhere};
use crate::harness::livekit::{LiveKit, free_ports};
use crate::harness::redis::Redis;
use crate::harness::{PATIENCE, SENTENCES, Server, client, is_long, stderr, vivavoce};
use crate::session::client::{Session, config};

/// A server whose rooms are those of the LiveKit that all tests share.
fn server() -> Server {
    server_elsewhere(LiveKit::shared(), &[])
}

/// The same with two tenants.
fn with_tenants(more: &[(&str, &str)]) -> Server {
    tenants_at(LiveKit::shared(), more)
}

fn tenants_at(url: &str, more: &[(&str, &str)]) -> Server {
    let tenants = rest::tenants();
    let mut settings = guarded(&tenants).to_vec();
    settings.extend_from_slice(more);
    server_elsewhere(url, &settings)
}

#[tokio::test]
async fn a_person_and_a_session_talk() {
    agent::talk(&server(), LiveKit::shared(), "talk").await;
}

#[tokio::test]
async fn a_person_in_a_browser_talks_with_a_session() {
    agent::talk_in_a_browser(&server(), "browser").await;
}

#[tokio::test]
async fn each_participant_is_transcribed_by_name() {
    agent::transcribes_each(&server(), "each").await;
}

#[tokio::test]
async fn a_session_that_is_cut_off_falls_silent() {
    agent::is_cut(&server(), "cut").await;
}

#[tokio::test]
async fn a_session_that_is_removed_or_killed_leaves_its_room() {
    agent::leave_when_they_must(&server(), "leave").await;
}

#[tokio::test]
async fn a_session_ends_with_its_room_and_deletes_its_own() {
    agent::ends_with_its_room(&server(), "end", true).await;
}

#[tokio::test]
async fn sessions_enter_no_room_of_another_tenant() {
    let server = with_tenants(&[("AUTH_SOCKET", "public")]);
    tenants::keeps_rooms_apart(&server, "apart-").await;
}

#[tokio::test]
async fn a_room_is_its_tenants_alone() {
    let server = with_tenants(&[]);
    rest::belongs_to_its_tenant(&server, "alone-").await;
    rest::one_of_two_wins(&server, "alone-", 10).await;
}

#[tokio::test]
async fn a_room_without_an_owner_is_claimed_where_that_is_allowed() {
    for allowed in [true, false] {
        let setting = allowed.to_string();
        let server = with_tenants(&[("AUTH_CLAIM_UNOWNED_ROOMS", &setting)]);
        rest::is_claimed(&server, &format!("claimed-{allowed}"), allowed).await;
    }
}

#[tokio::test]
async fn participants_are_removed_and_muted_by_whom_the_room_belongs_to() {
    // LiveKit shows the redundancy that its clients wrap sound in (RFC 2198), ours what is in it.
    // The client says itself that it is muted now, and where that comes behind the unmute LiveKit's server mutes it again.
    rest::removes_and_mutes(&with_tenants(&[]), "removed", "audio/red", 10).await;
}

#[tokio::test]
async fn a_deployment_that_takes_no_token_of_ours_refuses_the_config() {
    let wrong = "a secret that the deployment does not know";
    let server = server_elsewhere(LiveKit::shared(), &[("RTC_API_SECRET", wrong)]);
    let mut session = Session::connect(&server).await;
    let fields = json!({"rtc": {"room_name": "refused"}});
    session.send(config(fields)).await;
    let refused = session.refused("rtc_failed").await;
    assert!(!refused.text("message").contains(wrong), "{refused}");
    session.send(config(json!({}))).await;
    session.next("ready").await;
    session.close().await;
}

/// A session of tenant `a` in a room, which plays its loading sound.
async fn sounds(server: &Server, room: &str) -> Session {
    let fields = json!({
        "rtc": {"room_name": room}, "loading_audio": {"data": clip(), "format": "wav"},
    });
    let mut session = Session::connect_as(server, Some(A)).await;
    session.send(config(fields)).await;
    session.next("ready").await;
    session.command("loading_start").await;
    session
}

/// Somebody whom tenant `a` lets in.
async fn comes(server: &Server, room: &str, identity: &str) -> Client {
    let body =
        json!({"room_name": room, "participant_name": identity, "participant_identity": identity});
    let (status, answer) = ask(server, Method::POST, "/rtc/token", Some(A), &body).await;
    assert_eq!(status, 200, "{answer}");
    let [url, token] = ["rtc_url", "token"].map(|field| answer[field].as_str().unwrap());
    let mut client = Client::start(Kind::Python, url, identity, token, &json!({}));
    client.connected().await;
    client
}

/// A session that has lost its room is in it again, and the room is its tenant's.
async fn has_recovered(server: &Server, session: &mut Session, room: &str) -> Client {
    assert_eq!(told(session).await.text("state"), "recovered");
    let path = format!("/rtc/rooms/{room}");
    let (status, shown) = ask(server, Method::GET, &path, Some(A), &Value::Null).await;
    assert_eq!(status, 200, "{shown}");
    assert_eq!(shown["metadata"], r#"{"auth_id":"a"}"#);
    let refused = ask(server, Method::POST, "/rtc/token", Some(B), &wish(room)).await;
    assert_eq!(outcome(&refused), (403, "ROOM_ACCESS_DENIED"));

    let mut bob = comes(server, room, "bob").await;
    bob.hears(AGENT, 600).await;
    session.command("loading_stop").await;
    bob.hears(AGENT, 0).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spoken.wav");
    let output = file.to_str().unwrap();
    let said = vivavoce([
        "say",
        SENTENCES[1],
        "--format",
        "wav",
        "--sample-rate",
        "48000",
        "--output",
        output,
    ]);
    assert!(said.status.success(), "{}", stderr(&said));
    says_until_heard(&mut bob, session, &file, SENTENCES[1]).await;
    bob
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_a_kill_of_its_room_and_remote_unmuting_needs_a_setting() {
    let mut livekit = LiveKit::started("");
    let server = tenants_at(&livekit.url, &[("AUTH_SOCKET", "public")]);
    let mut session = sounds(&server, "kitchen").await;
    let mut ann = comes(&server, "kitchen", "ann").await;
    ann.hears(AGENT, 600).await;
    livekit.kill();
    assert_eq!(told(&mut session).await.text("state"), "reconnecting");
    ann.kill().await;
    livekit.start("");
    let mut bob = has_recovered(&server, &mut session, "kitchen").await;

    let track = bob.publish(440).await;
    let body = |muted: bool| json!({"room_name": "kitchen", "participant_identity": "bob", "track_sid": track, "muted": muted});
    let path = "/rtc/participant/mute";
    // LiveKit's API knows a track a moment after its publisher does.
    let deadline = Instant::now() + PATIENCE;
    let muted = loop {
        let muted = ask(&server, Method::POST, path, Some(A), &body(true)).await;
        if outcome(&muted) != (404, "TRACK_NOT_FOUND") || Instant::now() > deadline {
            break muted;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(outcome(&muted), (200, ""));
    let refused = ask(&server, Method::POST, path, Some(A), &body(false)).await;
    assert_eq!(outcome(&refused), (500, "MUTE_FAILED"), "{refused:?}");
    let message = refused.1["message"].as_str().unwrap();
    assert!(message.contains("room.enable_remote_unmute"), "{message}");
    session.close().await;
    bob.leave().await;
}

/// A LiveKit without a Redis forgets its rooms when it ends, and so whose they were.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_does_not_return_to_a_room_that_has_become_anothers() {
    let mut livekit = LiveKit::started("");
    let way = Proxy::to(&livekit.url).await;
    let server = tenants_at(&way.url, &[("AUTH_SOCKET", "public")]);
    let mut session = sounds(&server, "kitchen").await;
    way.down(true);
    assert_eq!(told(&mut session).await.text("state"), "reconnecting");
    livekit.kill();
    livekit.start("");
    let others = tenants_at(&livekit.url, &[]);
    let of_b = ask(
        &others,
        Method::POST,
        "/rtc/token",
        Some(B),
        &wish("kitchen"),
    )
    .await;
    assert_eq!(outcome(&of_b), (200, ""));
    way.down(false);
    let event = told(&mut session).await;
    assert_eq!(event.text("state"), "failed", "{event}");
    assert!(event.text("message").contains("somebody else"), "{event}");
    assert_eq!(session.closed().await, 1000);
}

/// Two nodes share a Redis. The one that a room is at is killed: LiveKit misses it after some seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_the_node_of_its_room() {
    if !is_long() {
        return;
    }
    let [redis_port, metrics] = free_ports();
    let _redis = Redis::start(&["--port", &redis_port.to_string()]);
    let redis = format!("redis: {{address: '127.0.0.1:{redis_port}'}}");
    let near = LiveKit::started(&redis);
    let mut far = LiveKit::started(&format!("{redis}\nprometheus: {{port: {metrics}}}"));
    let server = tenants_at(&near.url, &[("AUTH_SOCKET", "public")]);
    let rooms_there = async || {
        let page = client().get(format!("http://127.0.0.1:{metrics}/metrics"));
        let page = page.send().await.unwrap().text().await.unwrap();
        let count = page
            .lines()
            .find(|line| line.starts_with("livekit_room_total{"));
        count.and_then(|line| line.rsplit(' ').next()?.parse().ok()) == Some(1.0)
    };
    // Which node a new room is at is LiveKit's affair.
    let mut others = Vec::new();
    let (mut session, room) = loop {
        let room = format!("room-{}", others.len());
        let session = sounds(&server, &room).await;
        if rooms_there().await {
            break (session, room);
        }
        others.push(session);
        assert!(others.len() < 50, "every room is at one node");
    };
    let mut ann = comes(&server, &room, "ann").await;
    ann.hears(AGENT, 600).await;
    far.kill();
    assert_eq!(told(&mut session).await.text("state"), "reconnecting");
    ann.kill().await;
    let bob = has_recovered(&server, &mut session, &room).await;
    session.close().await;
    bob.leave().await;
    for session in others {
        session.close().await;
    }
}
