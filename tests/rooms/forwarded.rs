//! Participants who are forwarded to another room (`ForwardParticipant`), as LiveKit's own clients ask for it, see and hear it.

use serde_json::{Value, json};

use super::api_clients::{Api, NAMES};
use super::client::{Client, Kind};
use super::events::{Inbox, json_of};
use super::video::{join_with, sees, sends};
use super::{KEY, KEYS, SECRET, call, join, keyed_server, server_with};
use crate::harness::{Server, eventually};
use crate::telephone::rig::baresip::Baresip;
use crate::telephone::{Exchange, PHONE, ROOM};

fn both(from: &str, to: &str) -> Value {
    json!({"roomAdmin": true, "room": from, "destinationRoom": to})
}

/// Forwards somebody from one room to another; gives the status and the code of the answer.
async fn forwarded(server: &Server, from: &str, identity: &str, to: &str) -> (u16, String) {
    let body = json!({"room": from, "identity": identity, "destinationRoom": to});
    let (status, answer) = call(server, "ForwardParticipant", &both(from, to), &body).await;
    let code = answer["code"].as_str().unwrap_or_default();
    (status, code.to_owned())
}

async fn forward(server: &Server, from: &str, identity: &str, to: &str) {
    assert_eq!(
        forwarded(server, from, identity, to).await,
        (200, String::new())
    );
}

/// A participant as the server shows it in a room.
async fn shown(server: &Server, room: &str, identity: &str) -> Value {
    let grants = json!({"roomAdmin": true, "room": room});
    let body = json!({"room": room, "identity": identity});
    let (status, answer) = call(server, "GetParticipant", &grants, &body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Somebody is forwarded from a room with a listener to one with two.
async fn between_rooms(kind: Kind) {
    let server = keyed_server();
    let mut ann = join(&server, kind, "kitchen", "ann").await;
    let mut bob = join(&server, Kind::Python, "kitchen", "bob").await;
    let mut cleo = join(&server, Kind::Browser, "cellar", "cleo").await;
    let mut dave = join(&server, Kind::Python, "cellar", "dave").await;
    let track = ann.publish(440).await;
    cleo.publish(800).await;
    bob.hears("ann", 440).await;
    forward(&server, "kitchen", "ann", "cellar").await;
    for listener in [&mut cleo, &mut dave, &mut bob] {
        listener.hears("ann", 440).await;
    }
    let there = shown(&server, "cellar", "ann").await;
    assert_eq!(there["kindDetails"], json!(["FORWARDED"]), "{there}");
    assert_eq!(there["tracks"][0]["sid"], json!(track));
    // Nobody of the other room is heard or seen in the first one.
    assert_eq!(
        ann.count("participant_connected", &json!({"identity": "cleo"})),
        0
    );
    ann.hears("cleo", 0).await;

    ann.command(json!({"do": "mute", "sid": track})).await;
    for listener in [&mut cleo, &mut dave, &mut bob] {
        listener.wait("track_muted", &json!({"sid": track})).await;
        listener.hears("ann", 0).await;
    }
    ann.command(json!({"do": "unmute", "sid": track})).await;
    dave.hears("ann", 440).await;
    ann.command(json!({"do": "name", "name": "Ann B."})).await;
    let named = json!({"identity": "ann", "name": "Ann B."});
    dave.wait("participant_name_changed", &named).await;
    // What the other room says to her does not arrive.
    dave.command(json!({"do": "send", "text": "for ann", "to": ["ann"]}))
        .await;
    dave.command(json!({"do": "send", "text": "for cleo"}))
        .await;
    cleo.wait("data", &json!({"text": "for cleo"})).await;

    ann.command(json!({"do": "unpublish", "sid": track})).await;
    dave.wait("track_unpublished", &json!({"sid": track})).await;
    ann.publish(600).await;
    for listener in [&mut cleo, &mut dave, &mut bob] {
        listener.hears("ann", 600).await;
    }
    assert_eq!(ann.count("data", &json!({})), 0);
    // Removed there, she goes on where she is.
    let body = json!({"room": "cellar", "identity": "ann"});
    let grants = json!({"roomAdmin": true, "room": "cellar"});
    let (status, _) = call(&server, "RemoveParticipant", &grants, &body).await;
    assert_eq!(status, 200);
    let gone = json!({"identity": "ann"});
    for listener in [&mut cleo, &mut dave] {
        listener.wait("participant_disconnected", &gone).await;
        listener.hears("ann", 0).await;
    }
    bob.hears("ann", 600).await;
    // Forwarded again, she is gone there when she leaves.
    forward(&server, "kitchen", "ann", "cellar").await;
    dave.hears("ann", 600).await;
    dave.mark();
    ann.leave().await;
    dave.next("participant_disconnected", &gone).await;
    let never = ["reconnecting", "reconnected", "disconnected"];
    for client in [bob, cleo, dave] {
        assert!(
            never
                .iter()
                .all(|event| client.count(event, &json!({})) == 0)
        );
        client.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_is_heard_in_both_rooms_until_the_forwarding_ends() {
    between_rooms(Kind::Python).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_heard_in_both_rooms_until_the_forwarding_ends() {
    between_rooms(Kind::Browser).await;
}

#[tokio::test]
async fn each_of_livekits_api_clients_forwards() {
    let server = keyed_server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    ann.publish(440).await;
    for name in NAMES {
        let mut dave = join(&server, Kind::Python, name, "dave").await;
        let mut api = Api::open(name, &server, &json!({"key": KEY, "secret": SECRET})).await;
        let to_there = json!({"room": "kitchen", "identity": "ann", "to": name});
        let answer = api.call("forward", to_there.clone()).await;
        assert!(answer.is_ok(), "{name}: {answer:?}");
        dave.hears("ann", 440).await;
        let again = api.call("forward", to_there).await;
        assert_eq!(again, Err("failed_precondition".to_owned()), "{name}");
        dave.leave().await;
    }
    ann.leave().await;
}

#[tokio::test]
async fn a_telephone_is_heard_in_another_room_and_handled_in_its_own() {
    let exchange = Exchange::with(&KEYS);
    let server = &exchange.server;
    let mut telephone = Baresip::start().await;
    let mut ann = join(server, Kind::Python, ROOM, "ann").await;
    let mut bob = join(server, Kind::Python, "desk", "bob").await;
    ann.publish(700).await;
    bob.publish(900).await;
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    telephone.hears(700).await;
    forward(server, ROOM, PHONE, "desk").await;
    bob.hears(PHONE, 440).await;
    ann.hears(PHONE, 440).await;
    telephone.hears(700).await;
    let transfer =
        |room: &str| json!({"room_name": room, "participant_identity": PHONE, "held": true});
    let hold = async |room: &str| {
        let path = "/sip/hold";
        super::ask(server, reqwest::Method::POST, path, None, &transfer(room)).await
    };
    let (status, answer) = hold("desk").await;
    assert_eq!(
        (status, &answer["error"]),
        (404, &json!("PARTICIPANT_NOT_FOUND")),
        "{answer}"
    );
    // On hold it is heard nowhere.
    let (status, answer) = hold(ROOM).await;
    assert_eq!(status, 200, "{answer}");
    bob.hears(PHONE, 0).await;
    telephone.hang_up().await;
    let gone = json!({"identity": PHONE});
    bob.wait("participant_disconnected", &gone).await;
    ann.leave().await;
    bob.leave().await;
}

#[tokio::test]
async fn who_watches_in_either_room_gets_the_layer_that_they_ask_for() {
    let server = keyed_server();
    let options = json!({"dynacast": true});
    let mut publisher = join_with(&server, Kind::Browser, "cinema", "publisher", options).await;
    let mut near = join(&server, Kind::Browser, "cinema", "near").await;
    let mut far = join(&server, Kind::Browser, "foyer", "far").await;
    publisher.command(json!({"do": "publish_film"})).await;
    let video = json!({"kind": "video"});
    near.wait("track_subscribed", &video).await;
    forward(&server, "cinema", "publisher", "foyer").await;
    far.wait("track_subscribed", &video).await;
    sees(&mut far, "publisher", |height| height > 180).await;
    let size = |width: u32, height: u32| json!({"do": "ask", "identity": "publisher", "width": width, "height": height});
    let shows = |shown: bool| json!({"do": "ask", "identity": "publisher", "enabled": shown});
    near.command(size(300, 170)).await;
    sees(&mut near, "publisher", |height| height == 180).await;
    sees(&mut far, "publisher", |height| height > 180).await;
    // What only the other room watches is sent, and no more.
    near.command(shows(false)).await;
    far.command(size(300, 170)).await;
    sees(&mut far, "publisher", |height| height == 180).await;
    sends(&mut publisher, &["q"]).await;
    far.command(shows(false)).await;
    sends(&mut publisher, &[]).await;
    far.command(shows(true)).await;
    sees(&mut far, "publisher", |height| height == 180).await;
}

#[actix_web::test]
async fn the_other_room_is_posted_who_has_come_with_which_tracks() {
    let inbox = Inbox::default();
    let url = inbox.open();
    let mut settings = KEYS.to_vec();
    settings.extend([
        ("RTC_WEBHOOK_URLS", url.as_str()),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
    ]);
    let server = server_with(&settings);
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let track = ann.publish(440).await;
    forward(&server, "kitchen", "ann", "cellar").await;
    let of_cellar = || {
        let posted = inbox.taken();
        let told = posted.iter().map(json_of);
        let told: Vec<Value> = told
            .filter(|told| told["room"]["name"] == "cellar")
            .collect();
        told
    };
    let posted = |event: &'static str| move |told: &Value| told["event"] == event;
    // A track is one once its sound comes.
    eventually("the track is not posted", || {
        of_cellar().iter().any(posted("track_published"))
    })
    .await;
    ann.leave().await;
    eventually("the end of the forwarding is not posted", || {
        of_cellar().iter().any(posted("participant_left"))
    })
    .await;
    let told = of_cellar();
    let names: Vec<&str> = told
        .iter()
        .filter_map(|told| told["event"].as_str())
        .collect();
    let expected = [
        "room_started",
        "participant_joined",
        "track_published",
        "track_unpublished",
        "participant_left",
    ];
    assert_eq!(names, expected);
    assert_eq!(told[1]["participant"]["kindDetails"], json!(["FORWARDED"]));
    assert_eq!(told[2]["track"]["sid"], json!(track));
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_nobody_is_forwarded() {
    let server = keyed_server();
    let ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let double: Client = join(&server, Kind::Python, "cellar", "ann").await;
    for (from, identity, to, code) in [
        ("kitchen", "ann", "kitchen", "invalid_argument"),
        ("kitchen", "ann", "cellar", "failed_precondition"),
        ("kitchen", "nobody", "cellar", "not_found"),
        ("attic", "ann", "cellar", "not_found"),
        ("kitchen", "ann", "", "invalid_argument"),
    ] {
        let refused = forwarded(&server, from, identity, to).await;
        assert_eq!(refused.1, code, "{identity} from {from} to {to}");
    }
    // Without the right to the other room, or to hers.
    let body = json!({"room": "kitchen", "identity": "ann", "destinationRoom": "attic"});
    for grants in [
        json!({"roomAdmin": true, "room": "kitchen"}),
        json!({"roomAdmin": true, "room": "attic", "destinationRoom": "attic"}),
        json!({"room": "kitchen", "destinationRoom": "attic"}),
    ] {
        let (status, _) = call(&server, "ForwardParticipant", &grants, &body).await;
        assert_eq!(status, 401, "{grants}");
    }
    let (_, rooms) = call(&server, "ListRooms", &json!({"roomList": true}), &json!({})).await;
    assert_eq!(rooms["rooms"].as_array().unwrap().len(), 2, "{rooms}");
    ann.leave().await;
    double.leave().await;
}
