//! Reconnection of each LiveKit client: its signalling is cut, the server renews, removes or replaces it, its token
//! expires. Printed as a table of behaviours and clients, for one and two peer connections.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{Client, Kind};
use super::proxy::Proxy;
use super::{ask, call, join, keyed_server, token};
use crate::harness::{Server, client, some_of};

/// How far past its end a token is taken (clocks differ), in seconds.
const LEEWAY: i64 = 60;

/// A client under test and somebody beside it who is never disturbed. Both publish and hear each other.
struct Scene {
    server: Arc<Server>,
    proxy: Proxy,
    room: String,
    options: Value,
    subject: Client,
    witness: Client,
    /// Sids of the subject and of its track.
    session: String,
    track: String,
}

impl Scene {
    async fn set(server: Arc<Server>, kind: Kind, room: String, options: Value) -> Self {
        let token = join_token(&room, "subject", 600);
        Self::set_with(server, kind, room, options, &token).await
    }

    async fn set_with(
        server: Arc<Server>,
        kind: Kind,
        room: String,
        options: Value,
        token: &str,
    ) -> Self {
        let proxy = Proxy::before(&server).await;
        let mut subject = Client::start(kind, &proxy.url, "subject", token, &options);
        let mut witness = join(&server, Kind::Python, &room, "witness").await;
        let session = subject.connected().await;
        witness.publish(440).await;
        let track = subject.publish(660).await;
        subject.hears("witness", 440).await;
        witness.hears("subject", 660).await;
        subject.mark();
        witness.mark();
        Self {
            server,
            proxy,
            room,
            options,
            subject,
            witness,
            session,
            track,
        }
    }

    /// What the server knows of the subject.
    async fn known(&self) -> Value {
        let admin = json!({"roomAdmin": true, "room": self.room});
        let whom = json!({"room": self.room, "identity": "subject"});
        let (status, known) = call(&self.server, "GetParticipant", &admin, &whom).await;
        assert_eq!(status, 200, "{known}");
        known
    }

    /// Both are heard, and the subject's session is the one it was.
    async fn same_session(&mut self) {
        self.subject.hears("witness", 440).await;
        self.witness.hears("subject", 660).await;
        let known = self.known().await;
        let track = &known["tracks"][0];
        assert_eq!(
            (&known["sid"], &track["sid"]),
            (&json!(self.session), &json!(self.track))
        );
        for (event, fields) in [
            ("participant_disconnected", json!({})),
            ("track_unpublished", json!({})),
            ("track_unsubscribed", json!({})),
        ] {
            for client in [&self.subject, &self.witness] {
                let count = client.count(event, &fields);
                assert_eq!(
                    count,
                    0,
                    "{event} to {}: {:?}",
                    client.identity,
                    client.told()
                );
            }
        }
        assert_eq!(self.subject.count("track_subscribed", &json!({})), 1);
        assert_eq!(self.witness.count("track_subscribed", &json!({})), 1);
    }

    /// The subject is there again with another session, publishes what it published, and both are heard.
    async fn new_session(&mut self) {
        let of = json!({"identity": "subject"});
        self.witness.next("participant_disconnected", &of).await;
        self.witness.next("participant_connected", &of).await;
        self.witness.next("track_subscribed", &of).await;
        self.subject.hears("witness", 440).await;
        self.witness.hears("subject", 660).await;
        let known = self.known().await;
        assert_ne!(known["sid"], json!(self.session));
        assert_eq!(known["tracks"].as_array().unwrap().len(), 1);
    }
}

fn join_token(room: &str, identity: &str, seconds: i64) -> String {
    let grants = json!({"roomJoin": true, "room": room, "canUpdateOwnMetadata": true});
    token(seconds, &grants, &json!({"sub": identity}))
}

/// The numbers in the messages of somebody.
fn numbers(client: &Client, identity: &str) -> Vec<u32> {
    let messages = client.all("data");
    let from = messages
        .iter()
        .filter(|message| message["identity"] == identity);
    from.map(|message| message["text"].as_str().unwrap().parse().unwrap())
        .collect()
}

async fn say(client: &mut Client, number: u32) {
    client
        .command(json!({"do": "send", "text": number.to_string()}))
        .await;
}

/// Its socket is cut while both speak and write: nothing is published anew, no message is lost, doubled or swapped.
async fn resumes(mut scene: Scene) {
    const MESSAGES: u32 = 20;
    const CUT_AT: u32 = 5;
    for number in 0..MESSAGES {
        if number == CUT_AT {
            scene.proxy.cut();
            scene.subject.next("reconnecting", &json!({})).await;
        }
        say(&mut scene.witness, number).await;
        say(&mut scene.subject, number).await;
    }
    scene.subject.next("reconnected", &json!({})).await;
    scene.same_session().await;
    let last = (MESSAGES - 1).to_string();
    for (client, from) in [
        (&mut scene.subject, "witness"),
        (&mut scene.witness, "subject"),
    ] {
        client
            .wait("data", &json!({"text": last, "identity": from}))
            .await;
        assert_eq!(numbers(client, from), (0..MESSAGES).collect::<Vec<_>>());
    }
    let asked = scene.proxy.asked();
    let told = scene.subject.told();
    assert_eq!(
        asked.len(),
        2,
        "one connection and one more: {asked:?}; {told:?}"
    );
}

/// It is muted while its socket is away; the other side knows afterwards. LiveKit's client for Node cannot mute, it
/// publishes another track instead.
async fn acts_meanwhile(mut scene: Scene) {
    scene.proxy.cut();
    scene.subject.next("reconnecting", &json!({})).await;
    if scene.subject.kind == Kind::Node {
        let track = scene.subject.publish(880).await;
        let published = json!({"sid": track});
        scene.witness.next("track_subscribed", &published).await;
        scene.witness.hears("subject", 880).await;
        return;
    }
    let track = json!({"sid": scene.track});
    scene
        .subject
        .command(json!({"do": "mute", "sid": scene.track}))
        .await;
    scene.subject.next("reconnected", &json!({})).await;
    scene.witness.next("track_muted", &track).await;
    scene.witness.hears("subject", 0).await;
}

/// It is cut off twice.
async fn resumes_twice(mut scene: Scene) {
    for _ in 0..2 {
        scene.proxy.cut();
        scene.subject.next("reconnecting", &json!({})).await;
        scene.subject.next("reconnected", &json!({})).await;
    }
    scene.same_session().await;
}

async fn simulated(scene: &mut Scene, scenario: &str) {
    // Some clients lose the answer to the command with their session.
    let command = json!({"do": "simulate", "scenario": scenario});
    let _ = scene.subject.attempt(command).await;
}

/// The server asks for it.
async fn starts_anew(mut scene: Scene) {
    simulated(&mut scene, "full").await;
    scene.new_session().await;
}

/// The server closes its socket again while it resumes. Whether it tries that once more or starts anew is the client's
/// affair.
async fn comes_back_after_a_failed_resume(mut scene: Scene) {
    simulated(&mut scene, "failing resume").await;
    scene.subject.next("reconnected", &json!({})).await;
    // Clients tell of a new session before they have published again.
    let published = async || scene.known().await["tracks"].as_array().map_or(0, Vec::len);
    while published().await != 1 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    scene.subject.hears("witness", 440).await;
    scene.witness.hears("subject", 660).await;
}

/// The server forgets it without a word.
async fn starts_anew_when_it_is_forgotten(mut scene: Scene) {
    simulated(&mut scene, "node failure").await;
    scene.new_session().await;
}

/// The server asks it to connect again.
async fn resumes_when_asked(mut scene: Scene) {
    simulated(&mut scene, "migration").await;
    scene.subject.next("reconnected", &json!({})).await;
    scene.same_session().await;
}

/// The server ends.
async fn hears_that_the_server_ends(mut scene: Scene) {
    simulated(&mut scene, "server leave").await;
    let left = scene.subject.next("disconnected", &json!({})).await;
    assert_eq!(left["reason"], 3, "{left}");
}

/// A second of the same identity.
async fn gives_way_to_its_double(mut scene: Scene) {
    let kind = scene.subject.kind;
    let token = join_token(&scene.room, "subject", 600);
    let mut double = Client::start(kind, &scene.proxy.url, "subject", &token, &scene.options);
    let session = double.connected().await;
    let left = scene.subject.next("disconnected", &json!({})).await;
    assert_eq!(left["reason"], 2, "{left}");
    let of = json!({"identity": "subject"});
    scene.witness.next("participant_disconnected", &of).await;
    double.publish(880).await;
    scene.witness.hears("subject", 880).await;
    assert_eq!(scene.known().await["sid"], json!(session));
    assert_eq!(scene.subject.count("reconnecting", &json!({})), 0);
}

async fn is_removed(mut scene: Scene) {
    let body = json!({"room_name": scene.room, "participant_identity": "subject"});
    let (status, answer) = ask(
        &scene.server,
        Method::DELETE,
        "/rtc/participant",
        None,
        &body,
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    let left = scene.subject.next("disconnected", &json!({})).await;
    assert_eq!(left["reason"], 4, "{left}");
    let of = json!({"identity": "subject"});
    scene.witness.next("participant_disconnected", &of).await;
    assert_eq!(scene.subject.count("reconnecting", &json!({})), 0);
}

/// Its room is deleted, and it may come again into a new one of that name.
async fn loses_its_room(mut scene: Scene) {
    let (create, room) = (json!({"roomCreate": true}), json!({"room": scene.room}));
    let (status, answer) = call(&scene.server, "DeleteRoom", &create, &room).await;
    assert_eq!(status, 200, "{answer}");
    for client in [&mut scene.subject, &mut scene.witness] {
        let left = client.next("disconnected", &json!({})).await;
        assert_eq!(left["reason"], 5, "{left}");
        assert_eq!(client.count("reconnecting", &json!({})), 0);
    }
    let token = join_token(&scene.room, "subject", 600);
    let kind = scene.subject.kind;
    let mut again = Client::start(kind, &scene.proxy.url, "subject", &token, &scene.options);
    again.connected().await;
}

/// The token that it came with ends: the one that it was given meanwhile lets it in again.
async fn outlives_its_token(server: Arc<Server>, kind: Kind, room: String, options: Value) {
    let token = join_token(&room, "subject", 8 - LEEWAY);
    let mut scene = Scene::set_with(server, kind, room, options, &token).await;
    let validate = format!("{}/rtc/validate?access_token={token}", scene.server.url);
    let ended = async || client().get(&validate).send().await.unwrap().status() == 401;
    while !ended().await {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    simulated(&mut scene, "full").await;
    scene.new_session().await;
}

type Run = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A behaviour with its name, and whether it depends on the way of joining.
type Case = (&'static str, Behaviour, bool);
type Behaviour = fn(Arc<Server>, Kind, String, Value) -> Run;

/// A behaviour that begins with a scene.
macro_rules! in_scene {
    ($behaviour:ident) => {
        |server, kind, room, options| {
            Box::pin(async move { $behaviour(Scene::set(server, kind, room, options).await).await })
        }
    };
}

/// What is tried.
const BEHAVIOURS: &[Case] = &[
    ("resume after its socket is cut", in_scene!(resumes), true),
    ("two resumes", in_scene!(resumes_twice), false),
    (
        "mute or publish while cut off",
        in_scene!(acts_meanwhile),
        false,
    ),
    ("resume when asked", in_scene!(resumes_when_asked), true),
    ("full reconnect when asked", in_scene!(starts_anew), true),
    (
        "return after a failed resume",
        in_scene!(comes_back_after_a_failed_resume),
        true,
    ),
    (
        "full reconnect after being forgotten",
        in_scene!(starts_anew_when_it_is_forgotten),
        false,
    ),
    (
        "duplicate identity",
        in_scene!(gives_way_to_its_double),
        false,
    ),
    ("removed by REST", in_scene!(is_removed), false),
    ("room deleted", in_scene!(loses_its_room), false),
    ("server ends", in_scene!(hears_that_the_server_ends), false),
    (
        "token ends, refreshed in time",
        |server, kind, room, options| Box::pin(outlives_its_token(server, kind, room, options)),
        false,
    ),
];

/// What became of a behaviour, in a word or in the words of whatever failed.
async fn outcome(run: Run) -> Result<(), String> {
    let failed = match tokio::spawn(run).await {
        Ok(()) => return Ok(()),
        Err(failed) => failed.into_panic(),
    };
    let text = failed.downcast_ref::<String>().cloned();
    let text = text.or_else(|| failed.downcast_ref::<&str>().map(ToString::to_string));
    Err(text.unwrap_or_else(|| "it failed".to_owned()))
}

/// Puts every client through some of these behaviours, in a long run all of them, the clients beside each other, and prints the table.
async fn table(title: &str, behaviours: &[Case], some: usize, options: Value) {
    let behaviours = &some_of(behaviours, some);
    let server = Arc::new(keyed_server());
    let columns = Kind::ALL.map(|kind| {
        let (server, options) = (Arc::clone(&server), options.clone());
        async move {
            let mut column = Vec::new();
            for (number, (_, behaviour, _)) in behaviours.iter().enumerate() {
                let room = format!("{kind:?}-{number}");
                column.push(
                    outcome(behaviour(Arc::clone(&server), kind, room, options.clone())).await,
                );
            }
            column
        }
    });
    let columns = join_all(columns).await;
    let mut printed = format!("{title:40}");
    for kind in Kind::ALL {
        printed += &format!("{:10}", format!("{kind:?}"));
    }
    let mut wrong = BTreeMap::new();
    for (number, (name, ..)) in behaviours.iter().enumerate() {
        printed += &format!("\n{name:40}");
        for (kind, column) in Kind::ALL.iter().zip(&columns) {
            let outcome = &column[number];
            printed += &format!("{:10}", if outcome.is_ok() { "yes" } else { "NO" });
            if let Err(text) = outcome {
                wrong.insert((*name, format!("{kind:?}")), text.clone());
            }
        }
    }
    println!("{printed}");
    assert!(wrong.is_empty(), "{wrong:#?}\n{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_live_through_what_happens_to_them() {
    table("one peer connection", BEHAVIOURS, 3, json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_with_two_connections_live_through_what_happens_to_them() {
    let depends = BEHAVIOURS.iter().filter(|(.., depends)| *depends);
    let depends: Vec<_> = depends.copied().collect();
    table("two peer connections", &depends, 1, json!({"two": true})).await;
}
