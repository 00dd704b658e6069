//! Calls reported to hooks: to whose, which ones, and that none is lost or reported twice. SIP participants are room
//! clients whose token has that kind; events are signed with LiveKit's own package.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use livekit_api::access_token::AccessToken;
use sha2::{Digest, Sha256};

use super::*;
use crate::harness::{client, eventually};
use crate::rooms::client::{Client, Kind};
use crate::rooms::events::Inbox;
use crate::rooms::{KEY, SECRET, call, server_elsewhere, token};
use crate::telephone::rig::sipp::{Scenario, Sipp};
use crate::telephone::{Exchange, rig};
use crate::webhooks::Receiver;

/// What LiveKit posts when a telephone joins a room.
fn joined(id: &str, room: &str, attributes: &Value) -> Value {
    json!({
        "event": "participant_joined", "id": id, "createdAt": "1700000000",
        "room": {"sid": "RM_1", "name": room, "emptyTimeout": 300},
        "participant": {
            "sid": "PA_1", "identity": "sip_+4940", "name": "Phone +4940", "kind": "SIP", "state": "ACTIVE",
            "attributes": attributes,
        },
    })
}

/// Attributes of a call to a host.
fn to(host: &str) -> Value {
    json!({
        "sip.phoneNumber": "+4940", "sip.trunkPhoneNumber": "+4930", "sip.callID": "SCL_1",
        "sip.h.to": format!("\"Us\" <sip:+4930@{host}:5060;user=phone>"), "sip.h.x-account": "7",
    })
}

fn digest(body: &str) -> String {
    STANDARD.encode(Sha256::digest(body))
}

/// Signed as LiveKit does.
fn signed(secret: &str, body: &str) -> String {
    let token = AccessToken::with_api_key(KEY, secret);
    token.with_sha256(&digest(body)).to_jwt().unwrap()
}

async fn post(server: &Server, authorization: &str, body: &str) -> u16 {
    let request = client()
        .post(format!("{}/rtc/webhook", server.url))
        .header("authorization", authorization)
        .header("content-type", "application/webhook+json")
        .body(body.to_owned());
    request.send().await.unwrap().status().as_u16()
}

async fn post_event(server: &Server, event: &Value) {
    let body = event.to_string();
    assert_eq!(post(server, &signed(SECRET, &body), &body).await, 200);
}

/// A room without an owner.
async fn make_room(server: &Server, room: &str, metadata: &str) {
    let grants = json!({"roomCreate": true});
    let body = json!({"name": room, "metadata": metadata});
    let (status, answer) = call(server, "CreateRoom", &grants, &body).await;
    assert_eq!(status, 200, "{answer}");
}

/// The metadata of a room.
async fn metadata(server: &Server, room: &str) -> Value {
    let body = json!({"names": [room]});
    let (_, answer) = call(server, "ListRooms", &json!({"roomList": true}), &body).await;
    let text = answer["rooms"][0]["metadata"].as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_default()
}

/// How often calls had this outcome.
async fn told(server: &Server, outcome: &str) -> u64 {
    let request = client().get(format!("{}/metrics", server.url));
    let page = request.bearer_auth(HOUSE).send().await.unwrap();
    let page = page.text().await.unwrap();
    let line = format!("calls_told_total{{outcome=\"{outcome}\"}} ");
    let count = page.lines().find_map(|row| row.split_once(&line));
    count.map_or(0, |(_, count)| count.parse().unwrap())
}

async fn add(server: &Server, token: &str, host: &str, port: u16) {
    let body = json!([hook(
        host,
        &format!("http://127.0.0.1:{port}/calls?of={host}")
    )]);
    let (status, said) = hooks(server, token, Method::POST, body).await;
    assert_eq!(status, 200, "{said}");
}

fn spool(server: &Server) -> Vec<String> {
    let folder = server.data.path().join("webhooks");
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let files = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    files.collect()
}

#[actix_web::test]
async fn a_call_is_told_to_the_hook_of_its_host_whose_tenant_owns_the_room_by_then() {
    let mut receiver = Receiver::checking(COMMON, 0, 3);
    let server = server(&[]);
    add(&server, OF_A, "sip.example", receiver.port).await;
    make_room(&server, "call-1", r#"{"topic": "tea"}"#).await;
    post_event(&server, &joined("EV_1", "call-1", &to("SIP.example"))).await;
    // Refused three times, and told again as the same event.
    let seen: Vec<Value> = (0..4).map(|_| receiver.next()).collect();
    for (attempt, status) in seen.iter().zip([500, 500, 500, 204]) {
        assert_eq!(
            (&attempt["good"], &attempt["status"]),
            (&json!(true), &json!(status))
        );
        assert_eq!(
            (&attempt["id"], &attempt["body"]),
            (&seen[0]["id"], &seen[0]["body"])
        );
    }
    assert_eq!(
        seen[0]["body"],
        json!({
            "participant": {"name": "Phone +4940", "identity": "sip_+4940", "sid": "PA_1"},
            "room": {"name": "call-1", "sid": "RM_1"},
            "from_phone_number": "+4940", "to_phone_number": "+4930",
            "room_prefix": "call-", "sip_host": "sip.example",
            "sip_headers": {"to": "\"Us\" <sip:+4930@SIP.example:5060;user=phone>", "x-account": "7"},
        })
    );
    let owned = json!({"topic": "tea", "auth_id": "a"});
    assert_eq!(metadata(&server, "call-1").await, owned);
    let (status, _) = ask(
        &server,
        Method::GET,
        "/rtc/rooms/call-1",
        Some(OF_A),
        &Value::Null,
    )
    .await;
    assert_eq!(status, 200);
}

#[actix_web::test]
async fn a_call_survives_a_restart_while_its_hook_is_away_and_no_secret_is_on_disk() {
    let own = "a secret of the settings alone";
    let port = rig::ports(1);
    let fixed = json!([{"host": "sip.example", "url": format!("http://127.0.0.1:{port}/"), "auth_id": "b", "secret": own}]);
    let fixed = fixed.to_string();
    let more = [("SIP_HOOKS_JSON", fixed.as_str())];
    let server = server(&more);
    make_room(&server, "call-1", "").await;
    post_event(&server, &joined("EV_1", "call-1", &to("sip.example"))).await;
    assert_eq!(metadata(&server, "call-1").await, json!({"auth_id": "b"}));
    let waiting = spool(&server);
    assert_eq!(waiting.len(), 1);
    assert!(
        !waiting[0].contains(own) && !waiting[0].contains(COMMON),
        "{waiting:?}"
    );
    let id = serde_json::from_str::<Value>(&waiting[0]).unwrap()["id"].clone();
    // Killed while it waits.
    let server = server_in(server.kill(), &more);
    let mut receiver = Receiver::checking(own, port, 1);
    for status in [500, 204] {
        let seen = receiver.next();
        assert_eq!(
            (&seen["id"], &seen["good"], &seen["status"]),
            (&id, &json!(true), &json!(status))
        );
    }
    // LiveKit posts it again to the server that does not remember: the receiver knows it by its id.
    make_room(&server, "call-1", "").await;
    post_event(&server, &joined("EV_1", "call-1", &to("sip.example"))).await;
    assert_eq!(receiver.next()["id"], id);
}

#[actix_web::test]
async fn a_call_is_told_once_and_never_to_a_hook_of_another_tenant_than_its_room() {
    let mut receiver = Receiver::checking(COMMON, 0, 0);
    let server = server(&[]);
    add(&server, OF_A, "a.example", receiver.port).await;
    add(&server, HOUSE, "house.example", receiver.port).await;
    for (room, metadata) in [
        ("call-b", r#"{"auth_id": "b"}"#),
        ("call-odd", "not JSON"),
        ("call-1", r#"{"auth_id": "a"}"#),
    ] {
        make_room(&server, room, metadata).await;
    }
    let mut nobody = joined("EV_5", "call-1", &to("a.example"));
    nobody["participant"]["kind"] = json!("STANDARD");
    let mut left = joined("EV_6", "call-1", &to("a.example"));
    left["event"] = json!("participant_left");
    for event in [
        joined("EV_1", "call-b", &to("a.example")),
        joined("EV_2", "call-odd", &to("a.example")),
        joined("EV_3", "call-gone", &to("a.example")),
        joined("EV_4", "call-1", &to("unknown.example")),
        nobody,
        left,
        joined("EV_7", "call-1", &json!({"sip.phoneNumber": "+4940"})),
        joined(
            "EV_8",
            "call-1",
            &json!({"sip.h.to": "<sip:a@a.example>", "sip.h.x-to-ip": "192.0.2.1"}),
        ),
        json!({"event": "something_new", "id": "EV_9"}),
    ] {
        post_event(&server, &event).await;
    }
    for (outcome, count) in [
        ("not_theirs", 3),
        ("no_hook", 2),
        ("no_host", 1),
        ("told", 0),
    ] {
        assert_eq!(told(&server, outcome).await, count, "{outcome}");
    }
    let again = joined("EV_10", "call-1", &to("a.example"));
    for _ in 0..3 {
        post_event(&server, &again).await;
    }
    // A hook that belongs to nobody is told of everybody's rooms, and takes none.
    post_event(&server, &joined("EV_11", "call-b", &to("house.example"))).await;
    let seen = [receiver.next(), receiver.next()];
    let mut hosts = seen
        .each_ref()
        .map(|seen| seen["body"]["sip_host"].as_str().unwrap());
    hosts.sort_unstable();
    assert_eq!(hosts, ["a.example", "house.example"]);
    assert_eq!(
        (told(&server, "told").await, told(&server, "again").await),
        (2, 2)
    );
    assert_eq!(metadata(&server, "call-b").await, json!({"auth_id": "b"}));
    eventually("what was taken stays in the spool", || {
        spool(&server).is_empty()
    })
    .await;
}

#[actix_web::test]
async fn a_call_for_whose_hook_nothing_signs_is_not_told_and_said_to_be_lost() {
    let tenants = auth::tenants();
    let unsigned: Vec<_> = settings(&tenants, &[])
        .into_iter()
        .filter(|(name, _)| *name != "SIP_HOOK_SECRET")
        .chain([(
            "SIP_HOOKS_JSON",
            r#"[{"host": "sip.example", "url": "https://a.example/"}]"#,
        )])
        .collect();
    let mut server = Server::start_logged(&unsigned);
    make_room(&server, "call-1", "").await;
    post_event(&server, &joined("EV_1", "call-1", &to("sip.example"))).await;
    assert_eq!(told(&server, "unsigned").await, 1);
    assert!(spool(&server).is_empty());
    let log = server.log();
    assert_eq!(log.matches("sip.hook_secret").count(), 2, "{log}");
}

#[actix_web::test]
async fn events_with_a_wrong_altered_or_stale_signature_are_refused_and_not_told() {
    let server = server(&[]);
    add(&server, OF_A, "sip.example", rig::ports(1)).await;
    make_room(&server, "call-1", "").await;
    let body = joined("EV_1", "call-1", &to("sip.example")).to_string();
    let altered = body.replace("+4940", "+4941");
    let good = signed(SECRET, &body);
    let claims = json!({"sha256": digest(&body)});
    let stale = token(-600, &json!({}), &claims);
    let of_room = token(
        600,
        &json!({"roomJoin": true, "room": "call-1"}),
        &json!({}),
    );
    for (authorization, body) in [
        (
            signed("another secret that is as long as it must be", &body).as_str(),
            &body,
        ),
        (good.as_str(), &altered),
        (stale.as_str(), &body),
        (of_room.as_str(), &body),
        (OF_A, &body),
        ("", &body),
    ] {
        assert_eq!(
            post(&server, authorization, body).await,
            401,
            "{authorization}"
        );
    }
    assert!(spool(&server).is_empty());
    let fresh = token(600, &json!({}), &claims);
    assert_eq!(post(&server, &fresh, &body).await, 200);
    assert_eq!(spool(&server).len(), 1);
}

#[actix_web::test]
async fn a_telephone_in_a_room_of_this_server_is_told_and_one_in_a_room_elsewhere_too() {
    let mut here = Receiver::checking(COMMON, 0, 0);
    let mut there = Receiver::checking(COMMON, 0, 0);
    let tenants = auth::tenants();
    let inbox = Inbox::default();
    let telling = inbox.open();
    let rooms = server(&[
        ("RTC_WEBHOOK_URLS", &telling),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
    ]);
    add(&rooms, OF_A, "sip.example", here.port).await;
    let mut elsewhere = settings(&tenants, &[]);
    elsewhere.retain(|(name, _)| !name.starts_with("RTC_"));
    let replica = server_elsewhere(&rooms.url, &elsewhere);
    add(&replica, OF_A, "sip.example", there.port).await;
    let grants = json!({"roomJoin": true, "room": "call-+4930"});
    let who = json!({"sub": "sip_+4940", "name": "Phone +4940", "kind": "sip", "attributes": to("sip.example")});
    let token = token(600, &grants, &who);
    let url = rooms.url.replace("http", "ws");
    let mut phone = Client::start(Kind::Python, &url, "sip_+4940", &token, &json!({}));
    let sid = phone.connected().await;
    let first = here.next();
    assert_eq!(
        metadata(&rooms, "call-+4930").await,
        json!({"auth_id": "a"})
    );
    let calls = || {
        let posted = inbox.taken().into_iter();
        posted.filter(|posted| posted.body.contains("participant_joined"))
    };
    eventually("nobody is told", || calls().count() == 1).await;
    for posted in calls() {
        assert_eq!(
            post(&replica, &posted.authorization, &posted.body).await,
            200
        );
    }
    let seen = [first, there.next()];
    for seen in &seen {
        assert_eq!(
            (&seen["good"], &seen["body"]["participant"]["sid"]),
            (&json!(true), &json!(sid))
        );
    }
    assert_eq!(seen[0]["id"], seen[1]["id"], "one event, whoever tells it");
    phone.leave().await;
}

#[actix_web::test]
async fn a_call_from_the_network_is_told_to_the_hook_of_the_host_that_it_names() {
    let mut receiver = Receiver::checking(COMMON, 0, 0);
    let tenants = auth::tenants();
    let exchange = Exchange::with(&settings(&tenants, &[]));
    let server = &exchange.server;
    add(server, OF_A, "127.0.0.1", receiver.port).await;
    add(server, OF_B, "sip.example", receiver.port).await;
    for (called, headers, host, tenant) in [
        ("+4930", "", "127.0.0.1", "a"),
        ("+4931", "X-To-IP: SIP.example:5060\n", "sip.example", "b"),
    ] {
        let scenario = Scenario::is_answered(headers).ends();
        let mut telephone = Sipp::call(&scenario, called, &exchange.address());
        let seen = receiver.next();
        assert_eq!(seen["good"], true, "{seen}");
        let room = format!("call-{called}");
        // Its owner was there before its hook was told.
        assert_eq!(metadata(server, &room).await, json!({"auth_id": tenant}));
        let told = &seen["body"];
        for (field, value) in [
            ("sip_host", host),
            ("from_phone_number", "+14155550100"),
            ("to_phone_number", called),
            ("room_prefix", "call-"),
        ] {
            assert_eq!(told[field], value, "{field} of {told}");
        }
        assert_eq!(told["room"]["name"], room.as_str(), "{told}");
        telephone.passed().await;
    }
}
