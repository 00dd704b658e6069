//! Sessions in rooms of a deployment that cannot be reached: for a while, for good, or from the start.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{AGENT, clip, says_until_heard, spoken, understood};
use crate::harness::*;
use crate::rooms::client::{Client, Kind};
use crate::rooms::network::{Network, Weather};
use crate::rooms::proxy::Proxy;
use crate::rooms::{KEY, SECRET, ask, call, join, server_elsewhere, server_with};
use crate::session::client::{Event, Session, config};

/// A deployment, a server that uses it, and all that is between them.
struct Scene {
    deployment: Server,
    signalling: Proxy,
    media: Network,
    server: Server,
}

impl Scene {
    async fn set(environment: &[(&str, &str)]) -> Self {
        let media = Network::open(Weather::FAIR, 1).await;
        let mut settings = vec![("RTC_API_KEY", KEY), ("RTC_API_SECRET", SECRET)];
        settings.extend(media.settings());
        let deployment = server_with(&settings);
        let signalling = Proxy::before(&deployment).await;
        let server = server_elsewhere(&signalling.url, environment);
        Self {
            deployment,
            signalling,
            media,
            server,
        }
    }

    /// A session in the room, and somebody whom nothing happens to.
    async fn peopled(&self) -> (Session, Client) {
        let fields = json!({
            "rtc": {"room_name": "kitchen"}, "loading_audio": {"data": clip(), "format": "wav"},
        });
        let mut session = Session::open(&self.server, config(fields)).await;
        self.media.spare_newcomers();
        let mut ann = join(&self.deployment, Kind::Python, "kitchen", "ann").await;
        session.next("participant_connected").await;
        ann.wait("track_subscribed", &json!({"identity": AGENT}))
            .await;
        (session, ann)
    }

    /// Whether nothing comes from the deployment to the server, or back.
    fn down(&self, down: bool) {
        self.media.down(down);
        self.signalling.down(down);
    }

    /// The same, and nobody is told: connections stand, and nothing comes of them.
    fn black_hole(&self, hole: bool) {
        self.media.down(hole);
        self.signalling.black_hole(hole);
    }

    /// Who is in the room.
    async fn present(&self) -> Vec<String> {
        let path = "/rtc/rooms/kitchen";
        let (_, room) = ask(&self.deployment, Method::GET, path, None, &Value::Null).await;
        let participants = room["participants"].as_array().cloned().unwrap_or_default();
        let identity = |one: &Value| one["identity"].as_str().unwrap().to_owned();
        participants.iter().map(identity).collect()
    }
}

/// What is told next of the room's connection.
pub async fn told(session: &mut Session) -> Event {
    loop {
        let event = session.next("provider_event").await;
        if event["kind"] == "rtc" {
            assert_eq!(event["provider"], "livekit");
            return event;
        }
    }
}

/// The session ends because of its room.
async fn is_lost(session: &mut Session) {
    let event = told(session).await;
    assert_eq!(event.text("state"), "failed", "{event}");
    let error = session.next("error").await;
    assert_eq!(error["code"], "rtc_failed", "{error}");
    assert_eq!(error["fatal"], true, "{error}");
    assert_eq!(session.closed().await, 1011);
}

/// How everything between server and deployment goes and comes back.
type Turn = fn(&Scene, bool);

/// Everything between server and deployment is gone for a while: the talk goes on after it.
async fn lives_through(outage: Duration, turn: Turn, environment: &[(&str, &str)]) {
    let scene = Scene::set(environment).await;
    let folder = tempfile::tempdir().unwrap();
    let (mut session, mut ann) = scene.peopled().await;
    session.command("loading_start").await;
    ann.hears(AGENT, 600).await;
    turn(&scene, true);
    let gone = tokio::time::Instant::now();
    assert_eq!(told(&mut session).await.text("state"), "reconnecting");
    ann.hears(AGENT, 0).await;
    tokio::time::sleep_until(gone + outage).await;
    turn(&scene, false);
    assert_eq!(told(&mut session).await.text("state"), "recovered");
    ann.hears(AGENT, 600).await;
    session.command("loading_stop").await;
    ann.hears(AGENT, 0).await;

    let file = spoken(&scene.server, &folder, SENTENCES[1]).await;
    says_until_heard(&mut ann, &mut session, &file, SENTENCES[1]).await;
    ann.command(json!({"do": "keep", "identity": AGENT})).await;
    session.speak("a", SENTENCES[6]).await;
    session.completion_of("a").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let file = folder.path().join("heard.wav");
    ann.command(json!({"do": "save", "identity": AGENT, "file": file}))
        .await;
    let heard = understood(&file);
    assert!(
        share_of_words(SENTENCES[6], &heard) >= 0.8,
        "understood {heard:?}"
    );
    let written = json!({"type": "send_message", "message": "still here", "role": "assistant"});
    session.send(written).await;
    ann.wait("data", &json!({"identity": AGENT})).await;
    assert_eq!(scene.present().await.len(), 2);
    session.close().await;
    ann.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lives_through_three_seconds_without_its_room() {
    lives_through(Duration::from_secs(3), Scene::down, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lives_through_ten_seconds_without_its_room() {
    lives_through(Duration::from_secs(10), Scene::down, &[]).await;
}

/// Whether what takes minutes is to be seen too.
/// Ten seconds; with `VIVAVOCE_LONG` a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_finds_its_room_again_behind_a_black_hole() {
    let seconds = if is_long() { 60 } else { 10 };
    let patient = [("RTC_RECONNECT_SECONDS", "90")];
    lives_through(Duration::from_secs(seconds), Scene::black_hole, &patient).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lives_through_a_minute_without_its_room_where_it_may() {
    if is_long() {
        let patient = [("RTC_RECONNECT_SECONDS", "90")];
        lives_through(Duration::from_mins(1), Scene::down, &patient).await;
    }
}

/// Five seconds of patience; with `VIVAVOCE_LONG` the usual minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_room_has_fallen_into_a_black_hole_ends() {
    let hasty: &[_] = &[("RTC_RECONNECT_SECONDS", "5")];
    let scene = Scene::set(if is_long() { &[] } else { hasty }).await;
    let (mut session, mut ann) = scene.peopled().await;
    scene.black_hole(true);
    assert_eq!(told(&mut session).await.text("state"), "reconnecting");
    if is_long() {
        // Longer than anything here is waited for.
        tokio::time::sleep(Duration::from_secs(50)).await;
    }
    is_lost(&mut session).await;
    ann.wait("participant_disconnected", &json!({"identity": AGENT}))
        .await;
    assert_eq!(scene.present().await, ["ann"]);
    ann.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_room_is_gone_for_good_ends() {
    let scene = Scene::set(&[("RTC_RECONNECT_SECONDS", "5")]).await;
    let (mut session, mut ann) = scene.peopled().await;
    scene.down(true);
    assert_eq!(told(&mut session).await.text("state"), "reconnecting");
    is_lost(&mut session).await;
    ann.wait("participant_disconnected", &json!({"identity": AGENT}))
        .await;
    assert_eq!(scene.present().await, ["ann"]);
    // Who comes later has the room again.
    scene.down(false);
    let again = config(json!({"rtc": {"room_name": "kitchen"}}));
    Session::open(&scene.server, again).await.close().await;
    ann.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_when_its_deployment_is_killed() {
    let scene = Scene::set(&[("RTC_RECONNECT_SECONDS", "5")]).await;
    let (mut session, ann) = scene.peopled().await;
    let Scene {
        deployment,
        signalling,
        media,
        server,
    } = scene;
    drop(deployment.kill());
    assert_eq!(told(&mut session).await.text("state"), "reconnecting");
    is_lost(&mut session).await;
    ann.kill().await;
    drop((signalling, media, server));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_room() {
    let scene = Scene::set(&[]).await;
    let (mut session, mut ann) = scene.peopled().await;
    let (grants, room) = (json!({"roomCreate": true}), json!({"room": "kitchen"}));
    let (status, answer) = call(&scene.deployment, "DeleteRoom", &grants, &room).await;
    assert_eq!(status, 200, "{answer}");
    let event = told(&mut session).await;
    assert_eq!(event.text("state"), "failed", "{event}");
    assert!(event.text("message").contains("deleted"), "{event}");
    assert_eq!(session.closed().await, 1000);
    ann.wait("disconnected", &json!({})).await;
    assert_eq!(scene.present().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_that_cannot_be_reached_refuses_the_config() {
    let scene = Scene::set(&[]).await;
    let mut session = Session::connect(&scene.server).await;
    let wanted = config(json!({"rtc": {"room_name": "kitchen"}}));
    scene.down(true);
    session.send(wanted.clone()).await;
    session.refused("rtc_failed").await;
    // Signalling alone is not enough.
    scene.signalling.down(false);
    session.send(wanted.clone()).await;
    session.refused("rtc_failed").await;
    scene.down(false);
    session.send(wanted).await;
    session.next("ready").await;
    assert_eq!(scene.present().await, [AGENT]);
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_takes_no_token_of_ours_refuses_the_config() {
    let wrong = "a secret that the deployment does not know";
    let scene = Scene::set(&[("RTC_API_SECRET", wrong)]).await;
    let mut session = Session::connect(&scene.server).await;
    session
        .send(config(json!({"rtc": {"room_name": "kitchen"}})))
        .await;
    let refused = session.refused("rtc_failed").await;
    assert!(!refused.text("message").contains(wrong), "{refused}");
    session.send(config(json!({}))).await;
    session.next("ready").await;
    session.close().await;
    assert_eq!(scene.present().await, [""; 0]);
}
