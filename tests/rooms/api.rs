//! LiveKit's server API as its own clients use it.

use reqwest::Method;
use serde_json::json;

use super::client::Kind;
use super::{ask, call, join, keyed_server, token};
use crate::harness::client;

#[tokio::test]
async fn rooms_are_made_listed_changed_and_deleted_in_json() {
    let server = keyed_server();
    let (create, list) = (json!({"roomCreate": true}), json!({"roomList": true}));
    let admin = json!({"roomAdmin": true, "room": "kitchen"});
    let wish = json!({"name": "kitchen", "emptyTimeout": 60, "max_participants": "3", "metadata": "m", "unknown": 1});
    let (status, room) = call(&server, "CreateRoom", &create, &wish).await;
    assert_eq!(status, 200, "{room}");
    assert_eq!(
        (
            &room["name"],
            &room["maxParticipants"],
            &room["emptyTimeout"]
        ),
        (&json!("kitchen"), &json!(3), &json!(60))
    );
    let sid = room["sid"].clone();
    let (_, again) = call(&server, "CreateRoom", &create, &json!({"name": "kitchen"})).await;
    assert_eq!(
        (&again["sid"], &again["metadata"]),
        (&sid, &json!("m")),
        "it is the same"
    );
    let (_, rooms) = call(
        &server,
        "ListRooms",
        &list,
        &json!({"names": ["kitchen", "none"]}),
    )
    .await;
    assert_eq!(rooms["rooms"].as_array().unwrap().len(), 1);
    let change = json!({"room": "kitchen", "metadata": "n"});
    let (status, room) = call(&server, "UpdateRoomMetadata", &admin, &change).await;
    assert_eq!((status, &room["metadata"]), (200, &json!("n")));
    let (status, answer) = call(&server, "DeleteRoom", &create, &json!({"room": "kitchen"})).await;
    assert_eq!((status, answer), (200, json!({})));
    let (status, answer) = call(&server, "DeleteRoom", &create, &json!({"room": "kitchen"})).await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));
}

#[tokio::test]
async fn whoever_may_not_is_told_so_in_twirps_words() {
    let server = keyed_server();
    let nothing = json!({});
    let other = json!({"roomAdmin": true, "room": "other"});
    let room = json!({"room": "kitchen", "identity": "ann"});
    for (method, grants, body, expected) in [
        (
            "CreateRoom",
            &nothing,
            json!({"name": "a"}),
            (401, "unauthenticated"),
        ),
        ("ListRooms", &nothing, json!({}), (401, "unauthenticated")),
        (
            "GetParticipant",
            &other,
            room.clone(),
            (401, "unauthenticated"),
        ),
        (
            "GetParticipant",
            &json!({"roomAdmin": true, "room": "kitchen"}),
            room,
            (404, "not_found"),
        ),
        (
            "CreateRoom",
            &json!({"roomCreate": true}),
            json!({"name": ""}),
            (400, "invalid_argument"),
        ),
        (
            "CreateRoom",
            &json!({"roomCreate": true}),
            json!({"name": 7}),
            (400, "malformed"),
        ),
        ("PerformRpc", &nothing, json!({}), (501, "unimplemented")),
        ("Nonsense", &nothing, json!({}), (404, "bad_route")),
    ] {
        let (status, answer) = call(&server, method, grants, &body).await;
        assert_eq!(
            (status, answer["code"].as_str().unwrap()),
            expected,
            "{method} {body}: {answer}"
        );
    }
    let path = format!("{}/twirp/livekit.RoomService/ListRooms", server.url);
    let bare = client().post(&path).json(&json!({})).send().await.unwrap();
    assert_eq!(bare.status(), 401);
    assert_eq!(bare.headers()["content-type"], "application/json");
    let text = client()
        .post(&path)
        .bearer_auth(token(600, &json!({"roomList": true}), &json!({})))
        .body("x")
        .send()
        .await
        .unwrap();
    assert_eq!(text.status(), 404);
    let (status, answer) = ask(
        &server,
        Method::POST,
        "/twirp/livekit.Ingress/ListIngress",
        Some(&token(600, &nothing, &json!({}))),
        &json!({}),
    )
    .await;
    assert_eq!((status, &answer["code"]), (501, &json!("unimplemented")));
}

#[tokio::test]
async fn the_server_sends_data_and_changes_participants() {
    let server = keyed_server();
    let mut ann = join(&server, Kind::Python, "kitchen", "ann").await;
    let mut bob = join(&server, Kind::Python, "kitchen", "bob").await;
    let admin = json!({"roomAdmin": true, "room": "kitchen"});
    let data = json!({"room": "kitchen", "data": "aGVsbG8=", "kind": "RELIABLE", "topic": "t", "destinationIdentities": ["ann"]});
    let (status, answer) = call(&server, "SendData", &admin, &data).await;
    assert_eq!(status, 200, "{answer}");
    ann.wait(
        "data",
        &json!({"text": "hello", "topic": "t", "identity": null}),
    )
    .await;
    let change = json!({"room": "kitchen", "identity": "ann", "name": "Ann B.", "metadata": "m", "attributes": {"k": "v"}});
    let (status, changed) = call(&server, "UpdateParticipant", &admin, &change).await;
    assert_eq!(
        (status, &changed["name"], &changed["attributes"]),
        (200, &json!("Ann B."), &json!({"k": "v"})),
        "{changed}"
    );
    bob.wait(
        "participant_name_changed",
        &json!({"identity": "ann", "name": "Ann B."}),
    )
    .await;
    bob.wait(
        "participant_metadata_changed",
        &json!({"identity": "ann", "metadata": "m"}),
    )
    .await;
    assert_eq!(
        bob.count("data", &json!({"text": "hello"})),
        0,
        "it was for ann"
    );

    let track = ann.publish(440).await;
    bob.hears("ann", 440).await;
    let subscriptions = |on: bool| json!({"room": "kitchen", "identity": "bob", "trackSids": [track], "subscribe": on});
    for on in [false, true] {
        let (status, answer) =
            call(&server, "UpdateSubscriptions", &admin, &subscriptions(on)).await;
        assert_eq!(status, 200, "{answer}");
        bob.hears("ann", if on { 440 } else { 0 }).await;
    }
    // Whoever may not publish any more stops publishing.
    let permission = json!({"canSubscribe": true, "canPublish": false, "canPublishData": true});
    let change = json!({"room": "kitchen", "identity": "ann", "permission": permission});
    bob.mark();
    let (status, answer) = call(&server, "UpdateParticipant", &admin, &change).await;
    assert_eq!(status, 200, "{answer}");
    bob.next("track_unpublished", &json!({"sid": track})).await;

    let (status, _) = call(
        &server,
        "RemoveParticipant",
        &admin,
        &json!({"room": "kitchen", "identity": "bob"}),
    )
    .await;
    assert_eq!(status, 200);
    assert_eq!(bob.next("disconnected", &json!({})).await["reason"], 4);
    let (status, _) = call(
        &server,
        "DeleteRoom",
        &json!({"roomCreate": true}),
        &json!({"room": "kitchen"}),
    )
    .await;
    assert_eq!(status, 200);
    assert_eq!(ann.next("disconnected", &json!({})).await["reason"], 5);
}
