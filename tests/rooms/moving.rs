//! Participants who are moved to another room (`MoveParticipant`), as for a warm transfer.

use reqwest::Method;
use serde_json::json;

use super::client::{Client, Kind};
use super::{ask, call, join, keyed_server};
use crate::harness::Server;
use crate::telephone::rig::baresip::Baresip;
use crate::telephone::{Exchange, PHONE, ROOM};

/// Moves somebody from one room to another; gives the status and the code of the answer.
async fn moved(server: &Server, from: &str, identity: &str, to: &str) -> (u16, String) {
    let grants = json!({"roomAdmin": true, "room": from, "destinationRoom": to});
    let body = json!({"room": from, "identity": identity, "destinationRoom": to});
    let (status, answer) = call(server, "MoveParticipant", &grants, &body).await;
    (
        status,
        answer["code"].as_str().unwrap_or_default().to_owned(),
    )
}

/// Somebody is moved from between two others to a third.
async fn between_rooms(kind: Kind) {
    let server = keyed_server();
    let mut ann = join(&server, kind, "kitchen", "ann").await;
    let mut bob = join(&server, Kind::Python, "kitchen", "bob").await;
    let mut cleo = join(&server, Kind::Browser, "cellar", "cleo").await;
    ann.publish(440).await;
    bob.publish(600).await;
    cleo.publish(800).await;
    ann.hears("bob", 600).await;
    bob.hears("ann", 440).await;
    bob.mark();
    assert_eq!(
        moved(&server, "kitchen", "ann", "cellar").await,
        (200, String::new())
    );
    ann.wait("moved", &json!({"room": "cellar"})).await;
    bob.next("participant_disconnected", &json!({"identity": "ann"}))
        .await;
    cleo.hears("ann", 440).await;
    ann.hears("cleo", 800).await;
    ann.hears("bob", 0).await;
    // And back, into a room that waits for its end.
    assert_eq!(
        moved(&server, "cellar", "ann", "kitchen").await,
        (200, String::new())
    );
    bob.hears("ann", 440).await;
    ann.hears("bob", 600).await;
    let never = ["reconnecting", "reconnected", "disconnected"];
    assert!(never.iter().all(|event| ann.count(event, &json!({})) == 0));
    for client in [ann, bob, cleo] {
        client.leave().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_is_moved_with_their_tracks_and_without_reconnecting() {
    between_rooms(Kind::Python).await;
    between_rooms(Kind::Browser).await;
}

#[tokio::test]
async fn a_telephone_is_moved_to_the_room_of_somebody_else() {
    let exchange = Exchange::with(&super::KEYS);
    let server = &exchange.server;
    let mut telephone = Baresip::start().await;
    let mut ann = join(server, Kind::Python, ROOM, "ann").await;
    let mut bob = join(server, Kind::Python, "desk", "bob").await;
    ann.publish(700).await;
    bob.publish(900).await;
    let id = exchange.call(&telephone.address()).await;
    exchange.answered(&id).await;
    telephone.hears(700).await;
    assert_eq!(
        moved(server, ROOM, PHONE, "desk").await,
        (200, String::new())
    );
    telephone.hears(900).await;
    bob.hears(PHONE, 440).await;
    ann.hears(PHONE, 0).await;
    // The call is where the telephone is, and can be transferred from there.
    let there = |call: &serde_json::Value| call["room_name"] == "desk";
    exchange.until("in the other room", there).await;
    let transfer = json!({
        "room_name": "desk", "participant_identity": PHONE, "transfer_to": "+14155550177",
    });
    let (status, answer) = ask(server, Method::POST, "/sip/transfer", None, &transfer).await;
    assert!(
        status != 404 && !answer.to_string().contains("gone"),
        "{status} {answer}"
    );
    telephone.hang_up().await;
    telephone.next("CALL_CLOSED").await;
    ann.leave().await;
    bob.leave().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_nobody_is_moved() {
    let server = keyed_server();
    let ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let double: Client = join(&server, Kind::Python, "cellar", "ann").await;
    let code =
        async |from: &str, identity: &str, to: &str| moved(&server, from, identity, to).await.1;
    assert_eq!(code("kitchen", "ann", "kitchen").await, "invalid_argument");
    assert_eq!(
        code("kitchen", "ann", "cellar").await,
        "failed_precondition"
    );
    assert_eq!(code("kitchen", "nobody", "cellar").await, "not_found");
    assert_eq!(code("attic", "ann", "cellar").await, "not_found");
    assert_eq!(code("kitchen", "ann", "").await, "invalid_argument");
    // Without the right to the other room.
    let grants = json!({"roomAdmin": true, "room": "kitchen"});
    let body = json!({"room": "kitchen", "identity": "ann", "destinationRoom": "attic"});
    let (status, _) = call(&server, "MoveParticipant", &grants, &body).await;
    assert_eq!(status, 401);
    assert_eq!(ann.count("moved", &json!({})), 0);
    ann.leave().await;
    double.leave().await;
}
