//! Owners of rooms, and which sessions may join: in embedded rooms and in those of a deployment.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Server, eventually};
use crate::rooms::events::{Inbox, json_of};
use crate::rooms::rest::{A, B, NOBODY, guarded, outcome, tenants, wish, with_tenants};
use crate::rooms::{ask, keyed_server, server_elsewhere};
use crate::session::client::Session;

/// A session that only reads and writes in a room.
fn enters(room: &str, identity: &str) -> Value {
    json!({"type": "config", "audio": false, "rtc": {"room_name": room, "service_participant_identity": identity}})
}

/// A session of whoever has this token is not let in, and can go elsewhere.
async fn is_refused(server: &Server, token: Option<&str>, room: &str, elsewhere: &str) -> Session {
    let mut session = Session::connect_as(server, token).await;
    session.send(enters(room, "refused")).await;
    let refused = session.refused("room_access_denied").await;
    assert!(refused.text("message").starts_with("rtc: "), "{refused}");
    session.send(enters(elsewhere, elsewhere)).await;
    let ready = session.next("ready").await;
    assert_eq!(ready["rtc_room_name"], elsewhere);
    session
}

/// A session of whoever has this token is let in.
async fn enters_as(server: &Server, token: Option<&str>, room: &str, identity: &str) -> Session {
    let mut session = Session::connect_as(server, token).await;
    session.send(enters(room, identity)).await;
    session.next("ready").await;
    session
}

/// What the server shows of a room to whoever has this token.
async fn shown(server: &Server, room: &str, token: &str) -> (u16, Value) {
    let path = format!("/rtc/rooms/{room}");
    ask(server, Method::GET, &path, Some(token), &Value::Null).await
}

/// Asks for a token for a room.
async fn admitted(server: &Server, room: &str, token: &str) -> (u16, Value) {
    ask(server, Method::POST, "/rtc/token", Some(token), &wish(room)).await
}

/// Rooms whose names begin so are entered by whom they belong to.
pub async fn keeps_rooms_apart(server: &Server, prefix: &str) {
    let [of_a, new_of_a, free] = ["of-a", "new-of-a", "free"].map(|room| format!("{prefix}{room}"));
    // By a token; by a session.
    assert_eq!(outcome(&admitted(server, &of_a, A).await), (200, ""));
    let mut own = vec![enters_as(server, Some(A), &of_a, "first").await];
    own.push(enters_as(server, Some(A), &new_of_a, "second").await);
    for room in [&of_a, &new_of_a] {
        let (status, found) = shown(server, room, A).await;
        assert_eq!(status, 200, "{found}");
        assert_eq!(found["metadata"], r#"{"auth_id":"a"}"#);
        assert_eq!(found["num_participants"], 1, "{found}");
        assert_eq!(outcome(&shown(server, room, B).await).0, 404);
        let refused = admitted(server, room, B).await;
        assert_eq!(outcome(&refused), (403, "ROOM_ACCESS_DENIED"));
        let elsewhere = format!("{room}-beside");
        let others = [
            (Some(B), format!("{elsewhere}-of-b")),
            (None, format!("{elsewhere}-of-nobody")),
            (Some(NOBODY), format!("{elsewhere}-of-the-house")),
        ];
        for (token, elsewhere) in others {
            own.push(is_refused(server, token, room, &elsewhere).await);
        }
        let (_, found) = shown(server, room, A).await;
        assert_eq!(found["num_participants"], 1, "{found}");
    }

    // What nobody owns is for whoever has no tenant, and stays so.
    own.push(enters_as(server, None, &free, "third").await);
    own.push(enters_as(server, Some(NOBODY), &free, "fourth").await);
    let (status, found) = shown(server, &free, NOBODY).await;
    assert_eq!((status, &found["metadata"]), (200, &json!("")), "{found}");
    assert_eq!(found["num_participants"], 2, "{found}");
    for session in own {
        session.close().await;
    }
}

#[tokio::test]
async fn sessions_enter_no_room_of_another_tenant() {
    keeps_rooms_apart(&with_tenants(&[("AUTH_SOCKET", "public")]), "").await;
}

#[tokio::test]
async fn sessions_enter_no_room_of_another_tenant_in_a_deployment() {
    let deployment = keyed_server();
    let tenants = tenants();
    let mut settings = guarded(&tenants).to_vec();
    settings.push(("AUTH_SOCKET", "public"));
    let server = server_elsewhere(&deployment.url, &settings);
    keeps_rooms_apart(&server, "").await;
}

#[tokio::test]
async fn a_room_without_an_owner_is_claimed_by_a_session_where_that_is_allowed() {
    for allowed in ["true", "false"] {
        let server = with_tenants(&[
            ("AUTH_SOCKET", "public"),
            ("AUTH_CLAIM_UNOWNED_ROOMS", allowed),
        ]);
        let mut first = enters_as(&server, None, "free", "first").await;
        let second = if allowed == "true" {
            let second = enters_as(&server, Some(A), "free", "second").await;
            // Whoever has no token does not stay in what is somebody's.
            assert_eq!(first.closed().await, 1000);
            assert_eq!(shown(&server, "free", A).await.0, 200);
            is_refused(&server, None, "free", "still-free")
                .await
                .close()
                .await;
            second
        } else {
            is_refused(&server, Some(A), "free", "of-a").await
        };
        if allowed == "false" {
            first.close().await;
        }
        second.close().await;
    }
}

#[actix_web::test]
async fn a_room_has_its_owner_before_anybody_joins() {
    let inbox = Inbox::default();
    let url = inbox.open();
    let server = with_tenants(&[
        ("RTC_WEBHOOK_URLS", &url),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
    ]);
    let session = enters_as(&server, Some(A), "kitchen", "agent").await;
    eventually("the session is not told of", || inbox.taken().len() >= 2).await;
    let told: Vec<Value> = inbox.taken().iter().map(json_of).collect();
    assert_eq!(told[0]["event"], "room_started");
    assert_eq!(told[1]["event"], "participant_joined");
    assert_eq!(told[1]["participant"]["identity"], "agent");
    for event in &told {
        assert_eq!(event["room"]["metadata"], r#"{"auth_id":"a"}"#, "{event}");
    }
    session.close().await;
}
