//! The paths under `/rtc` by the specification: statuses, order of checks, tenants.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use super::client::Kind;
use super::{ask, join, server, server_with};
use crate::harness::Server;

pub const A: &str = "secret-of-a-that-is-long-enough-for-this";
pub const B: &str = "secret-of-b-that-is-long-enough-for-this";
pub const NOBODY: &str = "secret-of-nobody-long-enough-for-this-too";

/// Two tenants, and a caller without one.
pub fn with_tenants(more: &[(&str, &str)]) -> Server {
    let tenants = tenants();
    let mut settings = guarded(&tenants).to_vec();
    settings.extend_from_slice(more);
    server_with(&settings)
}

/// The tenants, as a server takes them.
pub fn tenants() -> String {
    json!([{"id": "a", "secret": A}, {"id": "b", "secret": B}]).to_string()
}

/// Settings of a server that lets only these and [`NOBODY`] in.
pub fn guarded(tenants: &str) -> [(&str, &str); 3] {
    [
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", NOBODY),
        ("AUTH_API_SECRETS_JSON", tenants),
    ]
}

pub fn wish(room: &str) -> Value {
    json!({"room_name": room, "participant_name": "Ann", "participant_identity": "ann"})
}

/// Status and code of an answer.
pub fn outcome((status, answer): &(u16, Value)) -> (u16, &str) {
    (*status, answer["error"].as_str().unwrap_or(""))
}

#[tokio::test]
async fn a_token_is_a_livekit_token_for_one_room() {
    let server = server();
    let (status, answer) = ask(&server, Method::POST, "/rtc/token", None, &wish("kitchen")).await;
    assert_eq!(status, 200, "{answer}");
    let own = server.url.replacen("http", "ws", 1);
    assert_eq!(answer["rtc_url"], own);
    assert_eq!(
        (&answer["room_name"], &answer["participant_identity"]),
        (&json!("kitchen"), &json!("ann"))
    );
    let claims = claims(answer["token"].as_str().unwrap());
    assert_eq!(
        (&claims["sub"], &claims["name"]),
        (&json!("ann"), &json!("Ann"))
    );
    let grants = json!({
        "roomJoin": true, "room": "kitchen", "canPublish": true, "canSubscribe": true, "canPublishData": true,
        "canUpdateOwnMetadata": true,
    });
    assert_eq!(claims["video"], grants);
    let lifetime = claims["exp"].as_i64().unwrap() - claims["nbf"].as_i64().unwrap_or_default();
    assert!((3_500..=3_700).contains(&lifetime), "{lifetime}");
    // Nobody made a room by asking without a tenant.
    let (_, rooms) = ask(&server, Method::GET, "/rtc/rooms", None, &Value::Null).await;
    assert_eq!(rooms, json!({"rooms": []}));
}

fn claims(token: &str) -> Value {
    use base64::Engine;
    let part = token.split('.').nth(1).unwrap();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(part)
        .unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// Rooms whose names begin so are the tenants' who made them.
pub async fn belongs_to_its_tenant(server: &Server, prefix: &str) {
    let [of_a, of_b] = ["of-a", "of-b"].map(|room| format!("{prefix}{room}"));
    let token = async |room: &str, tenant| {
        ask(
            server,
            Method::POST,
            "/rtc/token",
            Some(tenant),
            &wish(room),
        )
        .await
    };
    assert_eq!(outcome(&token(&of_a, A).await), (200, ""));
    assert_eq!(outcome(&token(&of_b, B).await), (200, ""));
    assert_eq!(outcome(&token(&of_a, A).await), (200, ""));
    assert_eq!(outcome(&token(&of_a, B).await), (403, "ROOM_ACCESS_DENIED"));
    assert_eq!(outcome(&token(&of_a, NOBODY).await), (200, ""));

    let get =
        async |path: &str, tenant| ask(server, Method::GET, path, Some(tenant), &Value::Null).await;
    for (tenant, names) in [
        (A, vec![&of_a]),
        (B, vec![&of_b]),
        (NOBODY, vec![&of_a, &of_b]),
    ] {
        let (status, list) = get("/rtc/rooms", tenant).await;
        assert_eq!(status, 200);
        let shown = list["rooms"].as_array().unwrap().iter();
        let shown: Vec<_> = shown
            .map(|room| room["name"].as_str().unwrap())
            .filter(|name| name.starts_with(prefix))
            .collect();
        assert_eq!(shown, names);
    }
    let path = format!("/rtc/rooms/{of_a}");
    let (status, room) = get(&path, A).await;
    assert_eq!(status, 200);
    assert!(room["sid"].as_str().unwrap().starts_with("RM_"), "{room}");
    assert_eq!(room["metadata"], r#"{"auth_id":"a"}"#);
    assert_eq!(
        (
            &room["num_participants"],
            &room["max_participants"],
            &room["active_recording"]
        ),
        (&json!(0), &json!(0), &json!(false))
    );
    assert_eq!(room["participants"], json!([]));
    assert_eq!(outcome(&get(&path, NOBODY).await), (200, ""));
    // What is another's looks as if it were not there.
    let missing = format!("/rtc/rooms/{prefix}nowhere");
    let [foreign, missing] = [get(&path, B).await, get(&missing, B).await];
    assert_eq!(outcome(&foreign), (404, "ROOM_NOT_FOUND"));
    assert_eq!(foreign, missing);
}

#[tokio::test]
async fn a_room_is_its_tenants_alone() {
    belongs_to_its_tenant(&with_tenants(&[]), "").await;
}

/// Two tenants ask for so many new rooms at the same time.
pub async fn one_of_two_wins(server: &Server, prefix: &str, rounds: usize) {
    for round in 0..rounds {
        let room = format!("{prefix}race-{round}");
        let body = wish(&room);
        let ask = |tenant| ask(server, Method::POST, "/rtc/token", Some(tenant), &body);
        let (a, b) = tokio::join!(ask(A), ask(B));
        let mut statuses = [a.0, b.0];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 403], "{a:?} {b:?}");
    }
}

#[tokio::test]
async fn of_two_tenants_who_race_for_a_new_room_one_owns_it() {
    one_of_two_wins(&with_tenants(&[]), "", 20).await;
}

/// Whether a tenant may claim a room that is nobody's, by the server's setting.
pub async fn is_claimed(server: &Server, room: &str, allowed: bool) {
    let (_, answer) = ask(
        server,
        Method::POST,
        "/rtc/token",
        Some(NOBODY),
        &wish(room),
    )
    .await;
    let [url, token] = ["rtc_url", "token"].map(|field| answer[field].as_str().unwrap());
    let mut ann = super::Client::start(Kind::Python, url, "ann", token, &json!({}));
    ann.connected().await;
    let path = format!("/rtc/rooms/{room}");
    let shown = async || {
        ask(server, Method::GET, &path, Some(A), &Value::Null)
            .await
            .0
    };
    assert_eq!(shown().await, 404, "it has no owner yet");
    let (status, answer) = ask(server, Method::POST, "/rtc/token", Some(A), &wish(room)).await;
    assert_eq!(status, if allowed { 200 } else { 403 }, "{answer}");
    assert_eq!(shown().await, if allowed { 200 } else { 404 });
    ann.leave().await;
}

#[tokio::test]
async fn a_room_without_an_owner_is_claimed_where_that_is_allowed() {
    for allowed in [true, false] {
        let setting = allowed.to_string();
        let server = with_tenants(&[("AUTH_CLAIM_UNOWNED_ROOMS", &setting)]);
        is_claimed(&server, "free", allowed).await;
    }
}

/// Ann is in the room as the protocol describes a participant, with this track of this type.
fn assert_shown(room: &Value, track: &str, mime: &str) {
    let [shown] = &room["participants"].as_array().unwrap()[..] else {
        panic!("{room}")
    };
    let fields: BTreeMap<_, _> = shown.as_object().unwrap().iter().collect();
    let names: Vec<_> = fields.keys().map(|key| key.as_str()).collect();
    assert_eq!(
        names,
        [
            "attributes",
            "identity",
            "is_publisher",
            "joined_at",
            "kind",
            "metadata",
            "name",
            "sid",
            "state",
            "tracks"
        ]
    );
    assert_eq!(
        (
            &shown["identity"],
            &shown["name"],
            &shown["state"],
            &shown["kind"],
            &shown["is_publisher"]
        ),
        (
            &json!("ann"),
            &json!("Ann"),
            &json!("ACTIVE"),
            &json!("STANDARD"),
            &json!(true)
        )
    );
    assert_eq!(shown["metadata"], "hers");
    let [published] = &shown["tracks"].as_array().unwrap()[..] else {
        panic!("{shown}")
    };
    assert_eq!(
        (
            &published["sid"],
            &published["kind"],
            &published["source"],
            &published["muted"]
        ),
        (
            &json!(track),
            &json!("AUDIO"),
            &json!("MICROPHONE"),
            &json!(false)
        )
    );
    assert_eq!(published["mime_type"], mime);
}

/// Every refusal of the two paths that change something, in the order of their checks. Sound is shown with this type.
/// `tries` is how often an unmute is asked for until it holds.
pub async fn removes_and_mutes(server: &Server, room: &str, mime: &str, tries: u32) {
    let (status, answer) = ask(server, Method::POST, "/rtc/token", Some(A), &wish(room)).await;
    assert_eq!(status, 200, "{answer}");
    let url = answer["rtc_url"].as_str().unwrap();
    let mut ann = super::Client::start(
        Kind::Python,
        url,
        "ann",
        answer["token"].as_str().unwrap(),
        &json!({}),
    );
    ann.connected().await;
    let track = ann.publish(440).await;
    ann.command(json!({"do": "metadata", "metadata": "hers"}))
        .await;
    // It is a track of the room when its media has been negotiated.
    let path = format!("/rtc/rooms/{room}");
    let mut shown = Value::Null;
    for _ in 0..100 {
        (_, shown) = ask(server, Method::GET, &path, Some(A), &Value::Null).await;
        let ann = &shown["participants"][0];
        if ann["is_publisher"] == true && ann["metadata"] == "hers" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_shown(&shown, &track, mime);

    let mute = |room: &str, identity: &str, sid: &str| json!({"room_name": room, "participant_identity": identity, "track_sid": sid, "muted": true});
    let path = "/rtc/participant/mute";
    for (tenant, body, expected) in [
        (A, mute("", "ann", &track), (400, "INVALID_REQUEST")),
        (A, mute(room, "", &track), (400, "INVALID_REQUEST")),
        (A, mute(room, "ann", ""), (400, "INVALID_REQUEST")),
        (A, mute("nowhere", "ann", &track), (404, "ROOM_NOT_FOUND")),
        (B, mute(room, "ann", &track), (404, "ROOM_NOT_FOUND")),
        (A, mute(room, "bob", &track), (404, "PARTICIPANT_NOT_FOUND")),
        (A, mute(room, "ann", "TR_none"), (404, "TRACK_NOT_FOUND")),
        (A, mute(room, "ann", &track), (200, "")),
    ] {
        let answer = ask(server, Method::POST, path, Some(tenant), &body).await;
        assert_eq!(outcome(&answer), expected, "{body}: {answer:?}");
    }
    ann.next("track_muted", &json!({"sid": track})).await;
    let body = json!({"room_name": room, "participant_identity": "ann", "track_sid": track, "muted": false});
    let mut unmuted = (0, Value::Null);
    for _ in 0..tries {
        unmuted = ask(server, Method::POST, path, Some(A), &body).await;
        if unmuted.1["muted"] == false {
            break;
        }
    }
    assert_eq!(outcome(&unmuted), (200, ""));
    assert_eq!(unmuted.1["muted"], false, "{unmuted:?}");

    let remove =
        |room: &str, identity: &str| json!({"room_name": room, "participant_identity": identity});
    let path = "/rtc/participant";
    for (tenant, body, expected) in [
        (A, remove(room, " "), (400, "INVALID_REQUEST")),
        (A, remove("nowhere", "ann"), (404, "ROOM_NOT_FOUND")),
        (B, remove(room, "ann"), (404, "ROOM_NOT_FOUND")),
        (A, remove(room, "bob"), (404, "PARTICIPANT_NOT_FOUND")),
        (A, remove(room, "ann"), (200, "")),
    ] {
        let answer = ask(server, Method::DELETE, path, Some(tenant), &body).await;
        assert_eq!(outcome(&answer), expected, "{body}: {answer:?}");
    }
    let left = ann.next("disconnected", &json!({})).await;
    assert_eq!(left["reason"], 4, "removed by the server");
}

#[tokio::test]
async fn participants_are_removed_and_muted_by_whom_the_room_belongs_to() {
    removes_and_mutes(&with_tenants(&[]), "room", "audio/opus", 1).await;
}

#[tokio::test]
async fn a_server_without_rooms_says_so() {
    let server = server_with(&[("RTC_MODE", "off")]);
    let body = wish("room");
    for (method, path, body) in [
        (Method::POST, "/rtc/token", &body),
        (Method::GET, "/rtc/rooms", &Value::Null),
        (Method::GET, "/rtc/rooms/room", &Value::Null),
        (Method::DELETE, "/rtc/participant", &body),
    ] {
        let answer = ask(&server, method, path, None, body).await;
        assert_eq!(
            outcome(&answer),
            (500, "RTC_NOT_CONFIGURED"),
            "{path}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn a_room_of_a_deployment_that_is_away_is_an_error_that_names_it() {
    let server = server_with(&[
        ("RTC_MODE", "livekit"),
        ("RTC_URL", "ws://127.0.0.1:9"),
        ("RTC_API_KEY", "key"),
        ("RTC_API_SECRET", "a secret of at least thirty-two bytes"),
    ]);
    let answer = ask(&server, Method::GET, "/rtc/rooms", None, &Value::Null).await;
    assert_eq!(outcome(&answer), (500, "RTC_ERROR"), "{answer:?}");
    let message = answer.1["message"].as_str().unwrap();
    assert!(message.starts_with("livekit: "), "{message}");
    assert!(!message.contains("secret of"), "{message}");
}

/// The same paths, where rooms are at a LiveKit deployment: a second server of ours speaks its protocol.
#[tokio::test]
async fn the_same_api_serves_a_deployment_by_one_setting() {
    let (key, secret) = ("key", "a secret of at least thirty-two bytes");
    let pair = [("RTC_API_KEY", key), ("RTC_API_SECRET", secret)];
    let deployment = server_with(&pair);
    let url = deployment.url.replacen("http", "ws", 1);
    let server = with_tenants(&[
        pair[0],
        pair[1],
        ("RTC_MODE", "livekit"),
        ("RTC_URL", url.as_str()),
    ]);
    let (status, answer) = ask(&server, Method::POST, "/rtc/token", Some(A), &wish("room")).await;
    assert_eq!((status, &answer["rtc_url"]), (200, &json!(url)), "{answer}");
    let refused = ask(&server, Method::POST, "/rtc/token", Some(B), &wish("room")).await;
    assert_eq!(outcome(&refused), (403, "ROOM_ACCESS_DENIED"));
    let mut ann = super::Client::start(
        Kind::Python,
        &url,
        "ann",
        answer["token"].as_str().unwrap(),
        &json!({}),
    );
    ann.connected().await;
    let (status, room) = ask(
        &server,
        Method::GET,
        "/rtc/rooms/room",
        Some(A),
        &Value::Null,
    )
    .await;
    assert_eq!(
        (status, &room["num_participants"]),
        (200, &json!(1)),
        "{room}"
    );
    assert_eq!(room["participants"][0]["identity"], "ann");
    let foreign = ask(
        &server,
        Method::GET,
        "/rtc/rooms/room",
        Some(B),
        &Value::Null,
    )
    .await;
    assert_eq!(outcome(&foreign), (404, "ROOM_NOT_FOUND"));
    let body = json!({"room_name": "room", "participant_identity": "ann"});
    let answer = ask(&server, Method::DELETE, "/rtc/participant", Some(A), &body).await;
    assert_eq!(outcome(&answer), (200, ""));
    ann.next("disconnected", &json!({})).await;
}

#[tokio::test]
async fn whoever_is_killed_is_gone_from_the_room() {
    let server = server();
    let mut ann = join(&server, Kind::Python, "room", "ann").await;
    let bob = join(&server, Kind::Python, "room", "bob").await;
    ann.wait("participant_connected", &json!({"identity": "bob"}))
        .await;
    bob.kill().await;
    ann.wait("participant_disconnected", &json!({"identity": "bob"}))
        .await;
    let (_, room) = ask(&server, Method::GET, "/rtc/rooms/room", None, &Value::Null).await;
    assert_eq!(room["num_participants"], 1, "{room}");
    ann.leave().await;
}
