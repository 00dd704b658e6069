//! Hold and warm transfers: two telephones and an agent, and who hears whom at each step.

use reqwest::Method;
use serde_json::{Value, json};

use super::rig::baresip::{Baresip, Kind};
use super::rig::sipp::{Scenario, Sipp};
use super::rig::{PATIENCE, tone};
use super::{Exchange, NUMBER, PHONE, ROOM};
use crate::harness::client;
use crate::rooms::client::{Client as Participant, Kind as Client};
use crate::rooms::{ask, join};
use crate::session::client::Session;
use crate::session::recorded::stored;

/// What is heard on hold, by the caller, and by whom is called.
const MUSIC: u32 = 1_000;
const CALLER: u32 = 440;
pub const PERSON: u32 = 600;
pub const AGENT: u32 = 700;

/// A telephone that plays this tone.
async fn telephone(hertz: u32) -> Baresip {
    Baresip::of(Kind {
        hertz,
        ..Kind::default()
    })
    .await
}

/// A server whose calls on hold hear a tone.
fn exchange(settings: &[(&str, &str)]) -> (Exchange, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let music = folder.path().join("music.wav");
    tone::wav(&music, 16_000, MUSIC, 3);
    let mut all = vec![("SIP_HOLD_SOUND", music.to_str().unwrap())];
    all.extend_from_slice(settings);
    (Exchange::with(&all), folder)
}

pub async fn post(exchange: &Exchange, path: &str, body: Value) -> (u16, Value) {
    ask(&exchange.server, Method::POST, path, None, &body).await
}

/// Begins a warm transfer of the caller to whoever is at this address; gives its id.
pub async fn begin(exchange: &Exchange, address: &str) -> String {
    let body = json!({
        "room_name": ROOM, "participant_identity": PHONE, "transfer_to": NUMBER, "mode": "warm",
        "person_identity": "person", "sip": {"outbound_address": address},
    });
    let (status, answer) = post(exchange, "/sip/transfer", body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["person_identity"], "person", "{answer}");
    answer["transfer_id"].as_str().unwrap().to_owned()
}

/// Completes or cancels it.
pub async fn finish(exchange: &Exchange, id: &str, how: &str, body: Value) -> Value {
    let (status, answer) = post(exchange, &format!("/sip/transfers/{id}/{how}"), body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Waits until a transfer is in this state; gives why it is.
pub async fn becomes(exchange: &Exchange, id: &str, state: &str) -> String {
    let path = format!("/sip/transfers/{id}");
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let (status, transfer) =
            ask(&exchange.server, Method::GET, &path, None, &Value::Null).await;
        assert_eq!(status, 200, "{transfer}");
        if transfer["state"] == state {
            return transfer["reason"].as_str().unwrap_or_default().to_owned();
        }
        assert!(
            std::time::Instant::now() < deadline,
            "not {state}: {transfer}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Whether the caller is on hold, as its attributes tell.
async fn is_held(exchange: &Exchange, held: bool) {
    let path = format!("/rtc/rooms/{ROOM}");
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let (_, room) = ask(&exchange.server, Method::GET, &path, None, &Value::Null).await;
        let everybody = room["participants"].as_array().unwrap().iter();
        let mut caller = everybody
            .filter(|one| one["identity"] == PHONE)
            .map(|one| one["attributes"]["sip.hold"] == "true");
        if caller.next_back() == Some(held) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{held}: {room}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_caller_on_hold_hears_music_and_is_not_heard() {
    let mut caller = telephone(CALLER).await;
    let (exchange, _folder) = exchange(&[]);
    let mut ann = join(&exchange.server, Client::Python, ROOM, "ann").await;
    ann.publish(AGENT).await;
    let mut session = exchange.session(ROOM).await;
    let id = exchange.call(&caller.address()).await;
    exchange.answered(&id).await;
    ann.hears(PHONE, CALLER).await;
    session.send(json!({"type": "hold"})).await;
    caller.hears(MUSIC).await;
    ann.hears(PHONE, 0).await;
    // Keys are told.
    caller.press("5").await;
    assert_eq!(session.next("dtmf").await.text("digit"), "5");
    let hold = |fields: Value| {
        let mut body = json!({"room_name": ROOM, "participant_identity": PHONE});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        body
    };
    let (status, answer) = post(&exchange, "/sip/hold", hold(json!({"music": false}))).await;
    assert_eq!(
        (status, &answer["status"]),
        (200, &json!("held")),
        "{answer}"
    );
    caller.hears(0).await;
    let (_, answer) = post(&exchange, "/sip/hold", hold(json!({"held": false}))).await;
    assert_eq!(answer["status"], "resumed", "{answer}");
    caller.hears(AGENT).await;
    ann.hears(PHONE, CALLER).await;
    let (status, answer) = post(
        &exchange,
        "/sip/hold",
        json!({"room_name": ROOM, "participant_identity": "ann"}),
    )
    .await;
    assert_eq!(status, 404, "{answer}");
    ann.leave().await;
}

#[tokio::test]
async fn who_hears_whom_at_each_step_of_a_warm_transfer() {
    let (mut caller, mut person) = (telephone(CALLER).await, telephone(PERSON).await);
    let (exchange, _folder) = exchange(&[]);
    let mut ann = join(&exchange.server, Client::Python, ROOM, "ann").await;
    ann.publish(AGENT).await;
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;
    ann.hears(PHONE, CALLER).await;
    caller.hears(AGENT).await;

    let id = begin(&exchange, &person.address()).await;
    becomes(&exchange, &id, "consulting").await;
    caller.hears(MUSIC).await;
    ann.hears(PHONE, 0).await;
    ann.hears("person", PERSON).await;
    person.hears(AGENT).await;
    // It has one, and is held by it.
    let body = json!({"room_name": ROOM, "participant_identity": PHONE, "held": false});
    let (status, answer) = post(&exchange, "/sip/hold", body).await;
    assert_eq!(status, 500, "{answer}");

    // The agent stays: all three hear each other.
    finish(&exchange, &id, "complete", json!({"agent": "stay"})).await;
    becomes(&exchange, &id, "complete").await;
    ann.hears(PHONE, CALLER).await;
    ann.hears("person", PERSON).await;
    exchange.hang_up(ROOM, "ann").await;
    ann.leave().await;
    caller.hears(PERSON).await;
    person.hears(CALLER).await;

    // Who is left alone is hung up.
    caller.hang_up().await;
    person.next("CALL_CLOSED").await;
}

#[tokio::test]
async fn a_cancelled_transfer_and_a_person_who_hangs_up_give_the_caller_back() {
    let (mut caller, mut person) = (telephone(CALLER).await, telephone(PERSON).await);
    let (exchange, _folder) = exchange(&[]);
    let mut ann = join(&exchange.server, Client::Python, ROOM, "ann").await;
    ann.publish(AGENT).await;
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;

    let id = begin(&exchange, &person.address()).await;
    becomes(&exchange, &id, "consulting").await;
    person.hears(AGENT).await;
    finish(&exchange, &id, "cancel", json!({})).await;
    assert_eq!(becomes(&exchange, &id, "cancelled").await, "cancelled");
    person.next("CALL_CLOSED").await;
    caller.hears(AGENT).await;
    ann.hears(PHONE, CALLER).await;
    let (status, answer) = post(
        &exchange,
        &format!("/sip/transfers/{id}/complete"),
        json!({}),
    )
    .await;
    assert_eq!(status, 500, "{answer}");

    let id = begin(&exchange, &person.address()).await;
    becomes(&exchange, &id, "consulting").await;
    caller.hears(MUSIC).await;
    person.hang_up().await;
    assert_eq!(becomes(&exchange, &id, "failed").await, "person_left");
    caller.hears(AGENT).await;

    // A second person is called while the first one's transfer is over.
    let mut busy = Sipp::start(Scenario::called().reply("486 Busy Here").receive("ACK")).await;
    let id = begin(&exchange, &busy.address()).await;
    assert_eq!(becomes(&exchange, &id, "failed").await, "busy");
    busy.passed().await;
    is_held(&exchange, false).await;
    ann.leave().await;
}

#[tokio::test]
async fn an_agent_on_the_socket_consults_connects_and_leaves() {
    let (mut caller, mut person) = (telephone(CALLER).await, telephone(PERSON).await);
    let address = person.address();
    let (exchange, _folder) = exchange(&[("SIP_OUTBOUND_ADDRESS", &address)]);
    let mut agent = exchange.session(ROOM).await;
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;
    agent.send(json!({"type": "complete_transfer"})).await;
    agent.refused("call_failed").await;
    agent
        .send(json!({"type": "sip_transfer", "transfer_to": NUMBER, "mode": "warm"}))
        .await;
    let ringing = agent.next("sip_transfer_state").await;
    assert_eq!(ringing.text("state"), "ringing", "{ringing}");
    assert_eq!(ringing.text("participant_identity"), PHONE);
    assert_eq!(ringing.text("transfer_to"), NUMBER);
    let identity = ringing.text("person_identity").to_owned();
    assert_eq!(identity, format!("sip_{NUMBER}"));
    let consulting = agent.next("sip_transfer_state").await;
    assert_eq!(consulting.text("state"), "consulting", "{consulting}");
    caller.hears(MUSIC).await;
    // The agent of another socket finds out how it is.
    let late = json!({
        "type": "config", "rtc": {"room_name": ROOM, "service_participant_identity": "late"},
        "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
    });
    let mut late = Session::open(&exchange.server, late).await;
    assert_eq!(
        late.next("sip_transfer_state").await.text("state"),
        "consulting"
    );
    late.close().await;
    agent.send(json!({"type": "complete_transfer"})).await;
    let complete = agent.next("sip_transfer_state").await;
    assert_eq!(complete.text("state"), "complete", "{complete}");
    // It leaves, or is removed.
    assert_eq!(agent.closed().await, 1000);
    caller.hears(PERSON).await;
    person.hears(CALLER).await;
    person.hang_up().await;
    caller.next("CALL_CLOSED").await;
}

#[tokio::test]
async fn a_caller_who_hangs_up_leaves_no_person_ringing_or_waiting() {
    let (exchange, _folder) = exchange(&[("SIP_TRANSFER_CALLER_LEFT_TEXT", "Goodbye.")]);
    let _agent = exchange.session(ROOM).await;
    for answers in [false, true] {
        let mut caller = telephone(CALLER).await;
        let call = exchange.call(&caller.address()).await;
        exchange.answered(&call).await;
        if answers {
            let mut person = telephone(PERSON).await;
            let id = begin(&exchange, &person.address()).await;
            becomes(&exchange, &id, "consulting").await;
            caller.hang_up().await;
            assert_eq!(becomes(&exchange, &id, "failed").await, "caller_left");
            // They hear why.
            person.next("CALL_CLOSED").await;
        } else {
            let rings = Scenario::called().reply("180 Ringing").cancelled();
            let mut person = Sipp::start(rings).await;
            let id = begin(&exchange, &person.address()).await;
            let rings = |call: &Value| {
                call["participant_identity"] == "person" && call["status"] == "ringing"
            };
            exchange.until("ringing", rings).await;
            caller.hang_up().await;
            assert_eq!(becomes(&exchange, &id, "failed").await, "caller_left");
            person.passed().await;
        }
    }
}

#[tokio::test]
async fn when_the_agent_dies_the_caller_is_given_back() {
    let mut caller = telephone(CALLER).await;
    let (exchange, _folder) = exchange(&[("SIP_TRANSFER_AGENT_SECONDS", "1")]);
    let agent = exchange.session(ROOM).await;
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;
    let rings = Scenario::called().reply("180 Ringing").cancelled();
    let mut person = Sipp::start(rings).await;
    let id = begin(&exchange, &person.address()).await;
    is_held(&exchange, true).await;
    // The socket breaks.
    drop(agent);
    assert_eq!(becomes(&exchange, &id, "cancelled").await, "agent_left");
    person.passed().await;
    is_held(&exchange, false).await;

    let agent = exchange.session(ROOM).await;
    let mut person = telephone(PERSON).await;
    let id = begin(&exchange, &person.address()).await;
    becomes(&exchange, &id, "consulting").await;
    caller.hears(MUSIC).await;
    drop(agent);
    assert_eq!(becomes(&exchange, &id, "cancelled").await, "agent_left");
    person.next("CALL_CLOSED").await;
    is_held(&exchange, false).await;
    caller.hears(0).await;
}

#[tokio::test]
async fn when_the_agent_dies_the_two_are_connected_where_that_is_set() {
    let (mut caller, mut person) = (telephone(CALLER).await, telephone(PERSON).await);
    let settings = [
        ("SIP_TRANSFER_AGENT_SECONDS", "1"),
        ("SIP_TRANSFER_WITHOUT_AGENT", "complete"),
    ];
    let (exchange, _folder) = exchange(&settings);
    let agent = exchange.session(ROOM).await;
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;
    let id = begin(&exchange, &person.address()).await;
    becomes(&exchange, &id, "consulting").await;
    drop(agent);
    becomes(&exchange, &id, "complete").await;
    caller.hears(PERSON).await;
    person.hears(CALLER).await;
    caller.hang_up().await;
    person.next("CALL_CLOSED").await;
}

/// Somebody with the token of a supervisor.
async fn supervisor(exchange: &Exchange, identity: &str, how: Value) -> Participant {
    let mut body = json!({
        "room_name": ROOM, "participant_name": identity, "participant_identity": identity,
    });
    body.as_object_mut()
        .unwrap()
        .extend(how.as_object().unwrap().clone());
    let (status, answer) = post(exchange, "/rtc/token", body).await;
    assert_eq!(status, 200, "{answer}");
    let [url, token] = ["rtc_url", "token"].map(|field| answer[field].as_str().unwrap());
    let mut client = Participant::start(Client::Python, url, identity, token, &json!({}));
    client.connected().await;
    client
}

#[tokio::test]
async fn a_supervisor_listens_unseen_and_whispers_to_the_agent_alone() {
    const SUPERVISOR: u32 = 1_300;
    let mut caller = telephone(CALLER).await;
    let (exchange, _folder) = exchange(&[]);
    let mut ann = join(&exchange.server, Client::Python, ROOM, "ann").await;
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;
    ann.hears(PHONE, CALLER).await;
    let mut listener = supervisor(&exchange, "ear", json!({"supervise": "listen"})).await;
    listener.hears(PHONE, CALLER).await;
    let how = json!({"supervise": "whisper", "whisper_to": ["ann"]});
    let mut whisperer = supervisor(&exchange, "whisperer", how).await;
    whisperer.publish(SUPERVISOR).await;
    whisperer.hears(PHONE, CALLER).await;
    ann.hears("whisperer", SUPERVISOR).await;
    // Nobody else hears it: the caller has nothing to hear.
    caller.hears(0).await;
    let path = format!("/rtc/rooms/{ROOM}");
    let (_, room) = ask(&exchange.server, Method::GET, &path, None, &Value::Null).await;
    let everybody = room["participants"].as_array().unwrap().iter();
    let mut names: Vec<&str> = everybody
        .map(|one| one["identity"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["ann", PHONE, "whisperer"], "{room}");
    let (status, answer) = post(
        &exchange,
        "/rtc/token",
        json!({"room_name": ROOM, "participant_name": "a", "participant_identity": "a", "supervise": "shout"}),
    )
    .await;
    assert_eq!(status, 400, "{answer}");
    for client in [ann, listener, whisperer] {
        client.leave().await;
    }
}

#[tokio::test]
async fn a_recorded_call_hears_so_and_its_transcript_keeps_no_card_number() {
    let caller = telephone(0).await;
    let folder = tempfile::tempdir().unwrap();
    let audit = folder.path().join("audit.jsonl");
    let (exchange, _folder) = exchange(&[
        ("RECORDING_ANNOUNCEMENT_TEXT", "This call is recorded."),
        ("RECORDING_REDACT", "cards"),
        ("RECORDING_HIDE_KEYS", "true"),
        ("RECORDING_AUDIT_FILE", audit.to_str().unwrap()),
    ]);
    let call = exchange.call(&caller.address()).await;
    exchange.answered(&call).await;
    let config = json!({
        "type": "config", "stream_id": "call", "rtc": {"room_name": ROOM, "enable_recording": true},
        "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""},
    });
    let mut session = Session::open(&exchange.server, config).await;
    session.completion_of("recording_announcement").await;
    session
        .speak("a", "Your card is four one one one, 1111 1111 1111.")
        .await;
    session.completion_of("a").await;
    session.close().await;
    stored(&exchange.server, "call").await;
    let url = format!("{}/recording/call/transcript", exchange.server.url);
    let lines = client().get(url).send().await.unwrap();
    let lines = lines.text().await.unwrap();
    assert!(lines.contains("This call is recorded."), "{lines}");
    assert!(lines.contains("Your card is [redacted]."), "{lines}");
    assert!(!lines.contains("1111"), "{lines}");
    let (status, _) = ask(
        &exchange.server,
        Method::DELETE,
        "/recording/call",
        None,
        &Value::Null,
    )
    .await;
    assert_eq!(status, 200);
    let noted = std::fs::read_to_string(&audit).unwrap();
    let noted: Vec<Value> = noted
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let actions: Vec<&str> = noted
        .iter()
        .map(|line| line["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["audio", "transcript", "delete"], "{noted:?}");
    assert_eq!(noted[0]["stream_id"], "call");
    assert_eq!(noted[0]["address"], "127.0.0.1");
}
