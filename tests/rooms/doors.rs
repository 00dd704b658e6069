//! Admission to rooms without media: who may join, why not, limits of a connection, and what it is told.

use std::collections::HashMap;

use livekit_protocol as proto;
use proto::request_response::Reason;
use proto::signal_request::Message as Request;
use proto::signal_response::Message as Response;
use reqwest::Method;
use serde_json::json;

use super::signal::{Signal, join_request, wrapped};
use super::{call, keyed_server, token};
use crate::harness::{Server, client};

fn pass(identity: &str) -> String {
    let grants = json!({"roomJoin": true, "room": "kitchen", "canUpdateOwnMetadata": true});
    token(600, &grants, &json!({"sub": identity}))
}

async fn present(server: &Server) -> Vec<String> {
    let admin = json!({"roomAdmin": true, "room": "kitchen"});
    let (_, list) = call(
        server,
        "ListParticipants",
        &admin,
        &json!({"room": "kitchen"}),
    )
    .await;
    let participants = list["participants"].as_array().cloned().unwrap_or_default();
    let identities = participants.iter().map(|one| one["identity"].as_str());
    identities.map(|one| one.unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_door_says_why_it_stays_shut_to_any_page() {
    let server = keyed_server();
    let join = join_request(&proto::JoinRequest::default(), false);
    let valid = pass("ann");
    let nowhere = token(600, &json!({"room": "kitchen"}), &json!({"sub": "ann"}));
    let nobody = token(
        600,
        &json!({"roomJoin": true, "room": "kitchen"}),
        &json!({}),
    );
    let ended = token(
        -3_600,
        &json!({"roomJoin": true, "room": "kitchen"}),
        &json!({"sub": "ann"}),
    );
    let bomb = wrapped(&vec![0; 40 << 20], true);
    let v1 = |token: &str| format!("/rtc/v1/validate?join_request={join}&access_token={token}");
    let v0 = |token: &str| format!("/rtc/validate?access_token={token}");
    for (path, status) in [
        (v0(&valid), 200),
        (v1(&valid), 200),
        (format!("/{}", v0(&valid)), 200),
        (format!("/{}", v1(&valid)), 200),
        ("/rtc/validate".to_owned(), 401),
        (v0("nonsense"), 401),
        (v0(&nowhere), 401),
        (v1(&nowhere), 401),
        (v0(&ended), 401),
        (v1(&nobody), 400),
        (format!("/rtc/v1/validate?access_token={valid}"), 400),
        (
            format!("/rtc/v1/validate?access_token={valid}&join_request=!"),
            400,
        ),
        (
            format!("/rtc/v1/validate?access_token={valid}&join_request={bomb}"),
            400,
        ),
    ] {
        let asked = client()
            .get(format!("{}{path}", server.url))
            .header("origin", "https://page.example");
        let answer = asked.send().await.unwrap();
        let shown = path.chars().take(60).collect::<String>();
        assert_eq!(answer.status(), status, "{shown}");
        assert_eq!(
            answer.headers()["access-control-allow-origin"],
            "*",
            "{shown}"
        );
        let text = answer.text().await.unwrap();
        assert_eq!(text == "success", status == 200, "{shown}: {text}");
        // The socket itself is refused in the same way.
        let socket = Signal::open(&server, &path.replace("/validate", "")).await;
        assert_eq!(socket.err().unwrap_or(200), status, "{shown}");
    }
    for path in ["/rtc/validate", "/rtc/v1/validate"] {
        let asked = client()
            .request(Method::OPTIONS, format!("{}{path}", server.url))
            .header("origin", "https://page.example")
            .header("access-control-request-method", "GET")
            .header("access-control-request-headers", "x-anything");
        let answer = asked.send().await.unwrap();
        assert!(answer.status().is_success());
        for header in ["origin", "methods", "headers"] {
            let name = format!("access-control-allow-{header}");
            assert!(answer.headers().contains_key(&name), "{name}");
        }
    }
    // A token in the header, which pages cannot set, counts as well; and a GET that is no socket is nothing.
    let path = format!("{}/rtc/validate", server.url);
    let answer = client().get(path).bearer_auth(&valid).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let path = format!("{}/rtc?access_token={valid}", server.url);
    assert_eq!(client().get(path).send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn pings_are_answered_and_what_is_unknown_is_passed_over() {
    let server = keyed_server();
    let (mut signal, _) = Signal::join(&server, &pass("ann")).await;
    // A field that no protocol knows yet.
    signal.send_bytes(vec![0xFA, 0x3F, 0x01, 0x00]).await;
    let ping = proto::Ping {
        timestamp: 7,
        rtt: 0,
    };
    signal.ask(Request::PingReq(ping)).await;
    let pong = signal
        .until(|response| match response {
            Response::PongResp(pong) => Some(pong),
            _ => None,
        })
        .await;
    assert_eq!(pong.last_ping_timestamp, 7);
    signal.ask(Request::Ping(7)).await;
    let told = |response| matches!(response, Response::Pong(_)).then_some(());
    signal.until(told).await;
}

#[tokio::test]
async fn a_refreshed_token_opens_the_door() {
    let server = keyed_server();
    let (mut signal, _) = Signal::join(&server, &pass("ann")).await;
    let refreshed = signal
        .until(|response| match response {
            Response::RefreshToken(token) => Some(token),
            _ => None,
        })
        .await;
    assert_ne!(refreshed, pass("ann"));
    let (_, join) = Signal::join(&server, &refreshed).await;
    assert_eq!(join.participant.unwrap().identity, "ann");
}

#[tokio::test]
async fn whoever_never_had_media_is_gone_with_its_socket() {
    let server = keyed_server();
    let (ann, _) = Signal::join(&server, &pass("ann")).await;
    let (mut bob, join) = Signal::join(&server, &pass("bob")).await;
    assert_eq!(join.other_participants.len(), 1);
    drop(ann);
    let left = bob
        .until(|response| match response {
            Response::Update(mut update) => update.participants.pop(),
            _ => None,
        })
        .await;
    let reason = proto::DisconnectReason::SignalClose;
    assert_eq!(
        (left.identity.as_str(), left.disconnect_reason()),
        ("ann", reason)
    );
    assert_eq!(present(&server).await, ["bob"]);
}

#[tokio::test]
async fn a_message_that_is_too_large_or_nonsense_ends_its_connection_alone() {
    let server = keyed_server();
    for bytes in [vec![0; (2 << 20) + 1], vec![0xFF; 100]] {
        let (mut ann, _) = Signal::join(&server, &pass("ann")).await;
        let (mut bob, _) = Signal::join(&server, &pass("bob")).await;
        ann.send_bytes(bytes).await;
        while ann.next().await.is_some() {}
        bob.ask(Request::Ping(1)).await;
        let told = |response| matches!(response, Response::Pong(_)).then_some(());
        bob.until(told).await;
    }
}

#[tokio::test]
async fn a_body_of_the_api_has_a_limit() {
    let server = keyed_server();
    let admin = json!({"roomAdmin": true, "room": "kitchen"});
    let large = json!({"room": "kitchen", "metadata": "x".repeat(20 << 20)});
    let (status, _) = call(&server, "UpdateRoomMetadata", &admin, &large).await;
    assert_eq!(status, 413);
}

/// A participant's attributes as the update that follows a change tells them.
async fn attributes_told(signal: &mut Signal, identity: &str) -> HashMap<String, String> {
    signal
        .until(|response| match response {
            Response::Update(update) => update
                .participants
                .into_iter()
                .find(|participant| participant.identity == identity)
                .map(|participant| participant.attributes),
            _ => None,
        })
        .await
}

fn change(id: u32, attributes: &[(&str, &str)]) -> Request {
    let pairs = attributes.iter();
    Request::UpdateMetadata(proto::UpdateParticipantMetadata {
        request_id: id,
        attributes: pairs
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        ..Default::default()
    })
}

async fn response_to(signal: &mut Signal, id: u32) -> Reason {
    signal
        .until(|response| match response {
            Response::RequestResponse(answer) if answer.request_id == id => Some(answer.reason()),
            _ => None,
        })
        .await
}

#[tokio::test]
async fn attributes_are_set_changed_deleted_and_limited() {
    let server = keyed_server();
    let grants = json!({"roomJoin": true, "room": "kitchen", "canUpdateOwnMetadata": true});
    let born = json!({"sub": "ann", "attributes": {"born": "with", "gone": "soon"}});
    let (mut bob, _) = Signal::join(&server, &pass("bob")).await;
    let (mut ann, join) = Signal::join(&server, &token(600, &grants, &born)).await;
    let map = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    let first = map(&[("born", "with"), ("gone", "soon")]);
    assert_eq!(join.participant.unwrap().attributes, first);
    assert_eq!(attributes_told(&mut bob, "ann").await, first);
    ann.ask(change(1, &[("gone", ""), ("born", "again"), ("new", "1")]))
        .await;
    let second = map(&[("born", "again"), ("new", "1")]);
    assert_eq!(attributes_told(&mut bob, "ann").await, second);
    assert_eq!(response_to(&mut ann, 1).await, Reason::Ok);
    ann.ask(change(2, &[("large", &"x".repeat(70_000))])).await;
    assert_eq!(response_to(&mut ann, 2).await, Reason::LimitExceeded);
    ann.ask(change(3, &[("new", "2")])).await;
    let third = map(&[("born", "again"), ("new", "2")]);
    assert_eq!(
        attributes_told(&mut bob, "ann").await,
        third,
        "nothing of the refused one"
    );
    let admin = json!({"roomAdmin": true, "room": "kitchen"});
    for (field, value) in [
        ("attributes", json!({"large": "x".repeat(70_000)})),
        ("metadata", json!("x".repeat(600_000))),
        ("name", json!("x".repeat(300))),
    ] {
        let body = json!({"room": "kitchen", "identity": "ann", field: value});
        let (status, answer) = call(&server, "UpdateParticipant", &admin, &body).await;
        assert_eq!(
            (status, &answer["code"]),
            (400, &json!("invalid_argument")),
            "{field}"
        );
    }
    // Whoever may not change its own is told so.
    let (mut cid, _) = Signal::join(
        &server,
        &token(
            600,
            &json!({"roomJoin": true, "room": "kitchen"}),
            &json!({"sub": "cid"}),
        ),
    )
    .await;
    cid.ask(change(4, &[("a", "b")])).await;
    assert_eq!(response_to(&mut cid, 4).await, Reason::NotAllowed);
}

#[tokio::test]
async fn a_subscription_to_what_is_not_there_is_answered() {
    let server = keyed_server();
    let (mut ann, _) = Signal::join(&server, &pass("ann")).await;
    let subscription = proto::UpdateSubscription {
        track_sids: vec!["TR_nothing".to_owned()],
        subscribe: true,
        ..Default::default()
    };
    ann.ask(Request::Subscription(subscription)).await;
    let answer = ann
        .until(|response| match response {
            Response::SubscriptionResponse(answer) => Some(answer),
            _ => None,
        })
        .await;
    let not_found = proto::SubscriptionError::SeTrackNotfound;
    assert_eq!(
        (answer.track_sid.as_str(), answer.err()),
        ("TR_nothing", not_found)
    );
}

#[tokio::test]
async fn a_room_is_left_by_the_clients_word_and_by_the_servers() {
    let server = keyed_server();
    let (mut ann, _) = Signal::join(&server, &pass("ann")).await;
    ann.ask(Request::Leave(proto::LeaveRequest::default()))
        .await;
    while ann.next().await.is_some() {}
    assert_eq!(present(&server).await, Vec::<String>::new());
    let (mut bob, _) = Signal::join(&server, &pass("bob")).await;
    let create = json!({"roomCreate": true});
    let (status, _) = call(&server, "DeleteRoom", &create, &json!({"room": "kitchen"})).await;
    assert_eq!(status, 200);
    let leave = bob
        .until(|response| match response {
            Response::Leave(leave) => Some(leave),
            _ => None,
        })
        .await;
    assert_eq!(leave.reason(), proto::DisconnectReason::RoomDeleted);
    while bob.next().await.is_some() {}
    let (_, join) = Signal::join(&server, &pass("bob")).await;
    assert_eq!(join.room.unwrap().name, "kitchen");
    let (_, rooms) = call(&server, "ListRooms", &json!({"roomList": true}), &json!({})).await;
    assert_eq!(rooms["rooms"].as_array().map(Vec::len), Some(1), "{rooms}");
}
