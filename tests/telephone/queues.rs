//! Queues: telephones that wait for a person, hear where they are, and are taken in the order in which they came.

use reqwest::Method;
use serde_json::{Value, json};

use super::rig::baresip::{Baresip, Kind};
use super::rig::sipp::{Scenario, Sipp};
use super::rig::{PATIENCE, tone};
use super::{Exchange, NUMBER};
use crate::auth::{HOUSE, OF_A, OF_B, tenants};
use crate::rooms::client::Kind as Client;
use crate::rooms::{ask, join};
use crate::session::client::Session;
use crate::webhooks::Receiver;

/// What is heard on hold, and at the first three positions.
const MUSIC: u32 = 1_000;
const POSITIONS: [u32; 3] = [500, 600, 800];
const CALLER: u32 = 440;
const PERSON: u32 = 650;
const AGENT: u32 = 700;

/// A server whose callers hear tones while they wait.
fn exchange(settings: &[(&str, &str)]) -> (Exchange, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let sound = |name: &str, hertz, seconds| {
        let file = folder.path().join(name);
        tone::wav(&file, 16_000, hertz, seconds);
        file.to_str().unwrap().to_owned()
    };
    let music = sound("music.wav", MUSIC, 3);
    let positions = POSITIONS.map(|hertz| sound(&format!("{hertz}.wav"), hertz, 2));
    let positions = positions.join(",");
    let mut all = vec![
        ("SIP_HOLD_SOUND", music.as_str()),
        ("SIP_QUEUE_SOUNDS", &positions),
        ("SIP_QUEUE_ANNOUNCE_SECONDS", "2"),
    ];
    all.extend_from_slice(settings);
    (Exchange::with(&all), folder)
}

/// A telephone that is called into a room of its own name.
struct Caller {
    name: &'static str,
    phone: Baresip,
    call: String,
}

impl Caller {
    async fn new(exchange: &Exchange, token: Option<&str>, name: &'static str) -> Self {
        let phone = Baresip::of(Kind {
            hertz: CALLER,
            ..Kind::default()
        })
        .await;
        let body = json!({
            "room_name": name, "participant_name": name, "participant_identity": name,
            "from_phone_number": "+14155550100", "to_phone_number": NUMBER,
            "sip": {"outbound_address": phone.address()},
        });
        let (status, answer) = ask(&exchange.server, Method::POST, "/sip/call", token, &body).await;
        assert_eq!(status, 200, "{answer}");
        let call = answer["sip_call_id"].as_str().unwrap().to_owned();
        if token.is_none() {
            exchange.answered(&call).await;
        }
        Self { name, phone, call }
    }

    /// Asks that it wait in a queue until it is answered and does.
    async fn waits(&self, exchange: &Exchange, token: Option<&str>, queue: &str) -> Value {
        let path = format!("/sip/queues/{queue}/calls");
        let body = json!({"room_name": self.name, "participant_identity": self.name});
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let (status, answer) = ask(&exchange.server, Method::POST, &path, token, &body).await;
            let early = status == 500 && answer.to_string().contains("is not answered yet");
            if !early {
                assert_eq!(status, 200, "{answer}");
                assert_eq!(answer["state"], "waiting", "{answer}");
                return answer;
            }
            assert!(std::time::Instant::now() < deadline, "{answer}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}

async fn next(exchange: &Exchange, token: Option<&str>, queue: &str, body: Value) -> (u16, Value) {
    let path = format!("/sip/queues/{queue}/next");
    ask(&exchange.server, Method::POST, &path, token, &body).await
}

/// Who waits, as somebody sees it: queue, tenant, room, and position, null of one who is being connected.
async fn waiting(exchange: &Exchange, token: Option<&str>) -> Value {
    let (status, list) = ask(
        &exchange.server,
        Method::GET,
        "/sip/queues",
        token,
        &Value::Null,
    )
    .await;
    assert_eq!(status, 200, "{list}");
    let queues = list["queues"].as_array().unwrap().iter();
    let calls = queues.flat_map(|queue| {
        let calls = queue["calls"].as_array().unwrap().iter();
        calls.map(move |call| {
            json!([
                queue["queue_name"],
                queue["tenant"],
                call["room_name"],
                call["position"]
            ])
        })
    });
    calls.collect()
}

/// Waits until they do like this.
async fn wait_like(exchange: &Exchange, token: Option<&str>, wanted: Value) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let seen = waiting(exchange, token).await;
        if seen == wanted {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{seen}, not {wanted}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The next that a session is told of a queue: state, position and reason.
async fn told(session: &mut Session) -> Value {
    let event = session.next("queue_state").await;
    json!([event["state"], event["position"], event["reason"]])
}

#[tokio::test]
async fn callers_hear_their_position_move_up_and_are_taken_in_their_order() {
    let (exchange, _folder) = exchange(&[]);
    // Before anybody calls: telephones have a minute of sound.
    let mut ann = join(&exchange.server, Client::Python, "ann", "ann").await;
    ann.publish(AGENT).await;
    let (mut ada, mut bob, mut eve) = tokio::join!(
        Caller::new(&exchange, None, "ada"),
        Caller::new(&exchange, None, "bob"),
        Caller::new(&exchange, None, "eve"),
    );
    let mut with_eve = exchange.session("eve").await;
    for caller in [&ada, &bob] {
        caller.waits(&exchange, None, "support").await;
    }
    with_eve
        .send(json!({"type": "queue_call", "queue": "support"}))
        .await;
    assert_eq!(told(&mut with_eve).await, json!(["waiting", 3, null]));
    ada.phone.hears(POSITIONS[0]).await;
    bob.phone.hears(POSITIONS[1]).await;
    eve.phone.hears(POSITIONS[2]).await;
    ada.phone.hears(MUSIC).await;
    let all = json!([
        ["support", null, "ada", 1],
        ["support", null, "bob", 2],
        ["support", null, "eve", 3]
    ]);
    assert_eq!(waiting(&exchange, None).await, all);
    // Nobody else has a say in where they are.
    let body = json!({"room_name": "ada", "participant_identity": "ada", "held": false});
    let (status, answer) = ask(&exchange.server, Method::POST, "/sip/hold", None, &body).await;
    assert_eq!(status, 500, "{answer}");

    bob.phone.hang_up().await;
    assert_eq!(told(&mut with_eve).await, json!(["waiting", 2, null]));
    eve.phone.hears(POSITIONS[1]).await;

    let (status, taken) = next(&exchange, None, "support", json!({"room_name": "ann"})).await;
    assert_eq!(status, 200, "{taken}");
    assert_eq!(taken["sip_call_id"], ada.call.as_str(), "{taken}");
    assert_eq!(
        (&taken["state"], &taken["room_name"]),
        (&json!("connected"), &json!("ann"))
    );
    ada.phone.hears(AGENT).await;
    ann.hears("ada", CALLER).await;
    assert_eq!(told(&mut with_eve).await, json!(["waiting", 1, null]));
    eve.phone.hears(POSITIONS[0]).await;

    // A session takes the next one.
    let mut taker = exchange.session("office").await;
    taker
        .send(json!({"type": "next_call", "queue": "support"}))
        .await;
    // It may come as it was a moment before.
    let mut state = told(&mut taker).await;
    while state == json!(["waiting", 1, null]) || state[0] == "connecting" {
        state = told(&mut taker).await;
    }
    assert_eq!(state, json!(["connected", null, null]));
    assert_eq!(
        taker.next("sip_call").await.text("participant_identity"),
        "eve"
    );
    eve.phone.hears(0).await;
    taker
        .send(json!({"type": "next_call", "queue": "support"}))
        .await;
    taker.refused("participant_not_found").await;
    let (status, answer) = next(&exchange, None, "support", json!({"room_name": "ann"})).await;
    assert_eq!((status, &answer["error"]), (404, &json!("NOT_FOUND")));
    assert_eq!(waiting(&exchange, None).await, json!([]));
    ann.leave().await;
}

#[tokio::test]
async fn a_number_is_called_for_the_first_one_who_waits_as_before_if_nobody_answers() {
    let mut receiver = Receiver::start(0, 0);
    let url = format!("http://127.0.0.1:{}/", receiver.port);
    let (exchange, _folder) = exchange(&[
        ("WEBHOOKS_URL", &url),
        ("WEBHOOKS_SECRET", "a secret of sixteen bytes or more"),
        ("WEBHOOKS_ALLOW_INSECURE", "true"),
        ("WEBHOOKS_ALLOW_PRIVATE", "true"),
    ]);
    let mut ada = Caller::new(&exchange, None, "ada").await;
    let bob = Caller::new(&exchange, None, "bob").await;
    ada.waits(&exchange, None, "support").await;
    bob.waits(&exchange, None, "support").await;
    ada.phone.hears(MUSIC).await;

    let rings = Scenario::called()
        .reply("180 Ringing")
        .reply("486 Busy Here");
    let mut busy = Sipp::start(rings.receive("ACK")).await;
    let to = |address: String| json!({"transfer_to": NUMBER, "sip": {"outbound_address": address}});
    let (status, taken) = next(&exchange, None, "support", to(busy.address())).await;
    assert_eq!(status, 200, "{taken}");
    assert_eq!(taken["state"], "connecting", "{taken}");
    assert!(taken["transfer_id"].is_string(), "{taken}");
    busy.passed().await;
    let both = json!([["support", null, "ada", 1], ["support", null, "bob", 2]]);
    wait_like(&exchange, None, both.clone()).await;
    ada.phone.hears(POSITIONS[0]).await;

    // Nobody is in this room any more: whoever asked for it has gone.
    let ann = join(&exchange.server, Client::Python, "ann", "ann").await;
    ann.leave().await;
    let path = "/rtc/rooms/ann";
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let (status, room) = ask(&exchange.server, Method::GET, path, None, &Value::Null).await;
        let everybody = room["participants"].as_array();
        if status == 404 || everybody.is_some_and(Vec::is_empty) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{room}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (status, answer) = next(&exchange, None, "support", json!({"room_name": "ann"})).await;
    assert!(matches!(status, 404 | 500), "{answer}");
    let (status, answer) = next(&exchange, None, "support", json!({"room_name": "ada"})).await;
    assert_eq!(status, 500, "{answer}");
    assert_eq!(waiting(&exchange, None).await, both);

    let mut person = Baresip::of(Kind {
        hertz: PERSON,
        ..Kind::default()
    })
    .await;
    let (status, taken) = next(&exchange, None, "support", to(person.address())).await;
    assert_eq!(status, 200, "{taken}");
    ada.phone.hears(PERSON).await;
    person.hears(CALLER).await;
    wait_like(&exchange, None, json!([["support", null, "bob", 1]])).await;

    // One who waits and is wanted no more.
    let path = format!("/sip/queues/support/calls/{}", bob.call);
    let (status, left) = ask(&exchange.server, Method::DELETE, &path, None, &Value::Null).await;
    assert_eq!((status, &left["state"]), (200, &json!("left")), "{left}");
    let (status, answer) = ask(&exchange.server, Method::DELETE, &path, None, &Value::Null).await;
    assert_eq!(status, 404, "{answer}");

    let mut seen = Vec::new();
    while seen.len() < 7 {
        let body = receiver.next()["body"].clone();
        if body["event"] == "queue.status" {
            seen.push(json!([
                body["room_name"],
                body["status"],
                body["position"],
                body["reason"]
            ]));
        }
    }
    let of = |room: &str| -> Vec<&Value> { seen.iter().filter(|one| one[0] == room).collect() };
    assert_eq!(
        of("ada"),
        [
            &json!(["ada", "waiting", 1, null]),
            &json!(["ada", "connecting", null, null]),
            &json!(["ada", "waiting", 1, null]),
            &json!(["ada", "connecting", null, null]),
            &json!(["ada", "connected", null, null]),
        ]
    );
    assert_eq!(
        of("bob"),
        [
            &json!(["bob", "waiting", 2, null]),
            &json!(["bob", "left", null, "removed"])
        ]
    );
}

#[tokio::test]
async fn who_has_waited_long_enough_is_given_back_and_nobody_waits_beyond_the_bounds() {
    let (exchange, _folder) = exchange(&[
        ("SIP_QUEUE_MAX_SECONDS", "6"),
        ("SIP_QUEUE_MAX_CALLS", "2"),
        ("SIP_QUEUE_MAX_QUEUES", "1"),
    ]);
    let mut ada = Caller::new(&exchange, None, "ada").await;
    let mut bob = Caller::new(&exchange, None, "bob").await;
    let eve = Caller::new(&exchange, None, "eve").await;
    let mut with_ada = exchange.session("ada").await;
    ada.waits(&exchange, None, "sales").await;
    bob.waits(&exchange, None, "sales").await;
    let body = json!({"room_name": "eve", "participant_identity": "eve"});
    for (queue, setting) in [
        ("sales", "queue_max_calls"),
        ("support", "queue_max_queues"),
    ] {
        let path = format!("/sip/queues/{queue}/calls");
        let (status, answer) = ask(&exchange.server, Method::POST, &path, None, &body).await;
        assert_eq!((status, &answer["error"]), (503, &json!("OVERLOADED")));
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains(setting), "{message}");
    }
    let (status, answer) = ask(
        &exchange.server,
        Method::POST,
        "/sip/queues/-/calls",
        None,
        &body,
    )
    .await;
    assert_eq!(status, 400, "{answer}");
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .starts_with("queue_name: "),
        "{answer}"
    );

    ada.phone.hears(MUSIC).await;
    // Its session goes on with it.
    while told(&mut with_ada).await != json!(["left", null, "timeout"]) {}
    ada.phone.hears(0).await;
    // Nobody is there for this one.
    bob.phone.next("CALL_CLOSED").await;
    assert_eq!(waiting(&exchange, None).await, json!([]));
    drop(eve);
}

#[tokio::test]
async fn tenants_have_queues_of_their_own() {
    let tenants = tenants();
    let (exchange, _folder) = exchange(&[
        ("AUTH_REQUIRED", "true"),
        ("AUTH_API_SECRET", HOUSE),
        ("AUTH_API_SECRETS_JSON", tenants.as_str()),
    ]);
    let ada = Caller::new(&exchange, Some(OF_A), "ada").await;
    let bob = Caller::new(&exchange, Some(OF_B), "bob").await;
    let eve = Caller::new(&exchange, Some(HOUSE), "eve").await;
    ada.waits(&exchange, Some(OF_A), "support").await;
    bob.waits(&exchange, Some(OF_B), "support").await;
    // It is the queue of its owner, whoever puts it there.
    eve.waits(&exchange, Some(HOUSE), "support").await;
    let seen = waiting(&exchange, Some(OF_A)).await;
    assert_eq!(seen, json!([["support", "a", "ada", 1]]));
    let seen = waiting(&exchange, Some(OF_B)).await;
    assert_eq!(seen, json!([["support", "b", "bob", 1]]));
    let seen = waiting(&exchange, Some(HOUSE)).await;
    assert_eq!(seen.as_array().unwrap().len(), 3, "{seen}");

    // Another's call, and another's room, are none.
    let body = json!({"room_name": "ada", "participant_identity": "ada"});
    let path = "/sip/queues/other/calls";
    let (status, answer) = ask(&exchange.server, Method::POST, path, Some(OF_B), &body).await;
    assert_eq!((status, &answer["error"]), (404, &json!("ROOM_NOT_FOUND")));
    let path = format!("/sip/queues/support/calls/{}", ada.call);
    let (status, answer) = ask(
        &exchange.server,
        Method::DELETE,
        &path,
        Some(OF_B),
        &Value::Null,
    )
    .await;
    assert_eq!(status, 404, "{answer}");
    let to_ada = json!({"room_name": "ada"});
    let (status, answer) = next(&exchange, Some(OF_B), "support", to_ada.clone()).await;
    assert_eq!((status, &answer["error"]), (404, &json!("ROOM_NOT_FOUND")));
    let (status, answer) = next(&exchange, Some(HOUSE), "support", to_ada).await;
    assert_eq!((status, &answer["error"]), (404, &json!("ROOM_NOT_FOUND")));
    let as_a = json!({"room_name": "bob", "tenant": "a"});
    let (status, answer) = next(&exchange, Some(OF_B), "support", as_a).await;
    assert_eq!(status, 400, "{answer}");

    let config = json!({
        "type": "config", "rtc": {"room_name": "desk-a"},
        "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
    });
    let mut desk = Session::connect_as(&exchange.server, Some(OF_A)).await;
    desk.send(config).await;
    desk.next("ready").await;
    // The operator may do it for a tenant.
    let for_a = json!({"room_name": "desk-a", "tenant": "a"});
    let (status, taken) = next(&exchange, Some(HOUSE), "support", for_a).await;
    assert_eq!(status, 200, "{taken}");
    assert_eq!(taken["sip_call_id"], ada.call.as_str());
    let (status, answer) = next(
        &exchange,
        Some(OF_A),
        "support",
        json!({"room_name": "desk-a"}),
    )
    .await;
    assert_eq!((status, &answer["error"]), (404, &json!("NOT_FOUND")));
    let seen = waiting(&exchange, Some(OF_B)).await;
    assert_eq!(seen, json!([["support", "b", "bob", 1]]));
    drop((bob, eve));
}
