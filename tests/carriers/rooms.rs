//! Calls that are participants of rooms.

use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use super::agent::{Agent, Answered};
use super::caller::{Caller, FROM, GIVEN, Kind, TO, handshake, media};
use super::{config, exchange, nothing_odd, words};
use crate::harness::*;
use crate::vendors::numbers_in;

const SECRET: &str = "a-secret-of-a-path";

/// Accounts whose calls join the room of this name.
fn accounts(room: &str) -> String {
    let accounts =
        Kind::ALL.map(|kind| json!({"kind": kind.slug(), "secret": SECRET, "room": room}));
    Value::from(accounts.to_vec()).to_string()
}

async fn call(server: &Server, kind: Kind) -> Caller {
    let url = format!("{}/{SECRET}", media(server, kind));
    Caller::over(kind, handshake(&url, &[]).await.unwrap())
}

/// Who is in a room.
async fn participants(server: &Server, room: &str) -> Vec<Value> {
    let shown = client().get(format!("{}/rtc/rooms/{room}", server.url));
    let shown = shown.send().await;
    let shown: Value = shown.unwrap().json().await.unwrap();
    shown["participants"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

/// Until somebody of this identity is in the room, or nobody is any more.
async fn in_room(server: &Server, room: &str, identity: &str, there: bool) -> Option<Value> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let everybody = participants(server, room).await;
        let found = everybody
            .into_iter()
            .find(|one| one["identity"] == identity);
        if found.is_some() == there {
            return found;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{identity} {} in {room}",
            if there { "is not" } else { "is still" }
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_each_carrier_meets_its_agent_in_a_room() {
    let agent = Agent::start().await;
    let accounts = Kind::ALL.map(|kind| {
        let room = format!("{}-{{call_id}}", kind.slug());
        json!({"kind": kind.slug(), "secret": SECRET, "room": room})
    });
    let accounts = Value::from(accounts.to_vec()).to_string();
    let backed = exchange(&agent, &[("CARRIERS_ACCOUNTS_JSON", &accounts)]).await;
    let mut calls = Vec::new();
    for kind in Kind::ALL {
        let caller = call(&backed.server, kind).await;
        calls.push((caller, agent.answer(config()).await));
    }
    let calls = calls
        .into_iter()
        .map(|(caller, answered)| converse(&backed.server, caller, answered));
    futures_util::future::join_all(calls).await;
}

/// How often words are said until they are heard whole. Where all processors are taken, a packet may be later than a jitter
/// buffer waits, which costs a word; a path that loses words has no round that is whole.
const ROUNDS: u16 = 3;
/// How long the words of a round may take.
const ROUND: Duration = Duration::from_secs(20);
/// Words of a round. Those of its first half teach the jitter buffer how late this machine is, which is nothing that a call
/// without a room has to learn; those of the second are judged.
const WORDS: u16 = 20;

/// Says words, numbered from `first` on, until they are heard whole. `heard` gives all that has been heard, once that is the
/// given word or nothing more comes.
async fn arrive(
    who: &str,
    first: u16,
    mut say: impl AsyncFnMut(Range<u16>),
    mut heard: impl AsyncFnMut(u16) -> Vec<u16>,
) {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let words = first + WORDS * round..first + WORDS * (round + 1);
        say(words.clone()).await;
        let all = heard(words.end - 1).await;
        assert!(
            all.iter().all(|word| (first..words.end).contains(word)),
            "{who} hears what nobody has said: {all:?}"
        );
        let judged: Vec<_> = words.skip(WORDS as usize / 2).collect();
        if all.ends_with(&judged) {
            return;
        }
        rounds.push(all);
    }
    panic!("{who} never hears a round of words whole: {rounds:?}");
}

/// What the agent has heard.
async fn heard_by_agent(answered: &mut Answered, last: u16) -> Vec<u16> {
    let last = last.to_string();
    let hearing = async {
        while answered.heard().last() != Some(&last) {
            answered
                .until(|event| event["type"] == "stt_result" && event["is_final"] == true)
                .await;
        }
    };
    // Without the last word the next round decides.
    let _ = tokio::time::timeout(ROUND, hearing).await;
    let words = answered.heard();
    words.iter().map(|word| word.parse().unwrap()).collect()
}

/// What the telephone has played.
async fn heard_by_caller(caller: &Caller, last: u16) -> Vec<u16> {
    let deadline = tokio::time::Instant::now() + ROUND;
    loop {
        // Listening takes its time, during which the telephone goes on.
        let sound = caller.noted(|noted| noted.heard.clone());
        let heard = numbers_in(&sound, caller.kind.rate());
        if heard.last() == Some(&last) || tokio::time::Instant::now() > deadline {
            return heard;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// A conversation of a caller and an agent in a room.
async fn converse(server: &Server, caller: Caller, mut answered: Answered) {
    let kind = caller.kind;
    let room = format!("{}-{}", kind.slug(), kind.call_id());
    let identity = format!("sip_{}", kind.number(FROM));
    let (name, value) = GIVEN;
    let expected = json!({"type": "call", "room_name": room, "participant_identity": identity,
        "from": kind.number(FROM), "to": kind.number(TO), "headers": {}, "stream_id": answered.call["stream_id"],
        "carrier": {"kind": kind.slug(), "call_id": kind.call_id(), "parameters": {name: value}}});
    assert_eq!(answered.call, expected);
    // What is said before somebody listens is heard by nobody.
    let listens = |event: &Value| event["type"] == "track_subscribed";
    if !answered.events.iter().any(listens) {
        answered.until(listens).await;
    }
    let who = format!("the agent of {kind:?}");
    arrive(
        &who,
        90,
        async |numbers| caller.say(words(numbers, kind)),
        async |last| heard_by_agent(&mut answered, last).await,
    )
    .await;
    caller.press('5');
    let dtmf = answered.next("dtmf").await;
    assert_eq!(
        (&dtmf["digit"], &dtmf["identity"]),
        (&json!("5"), &json!(identity))
    );
    if kind == Kind::Plivo {
        answered
            .send(json!({"type": "send_dtmf", "digits": "12#"}))
            .await;
        eventually("no keys", || caller.noted(|noted| noted.keys == "12#")).await;
    }
    arrive(
        &format!("the caller by {kind:?}"),
        190,
        async |numbers| {
            let text: Vec<_> = numbers.map(|number| number.to_string()).collect();
            answered.speak("a", &text.join(" ")).await;
            assert_eq!(answered.next("tts_playback_complete").await["id"], "a");
        },
        async |last| heard_by_caller(&caller, last).await,
    )
    .await;
    answered
        .send(json!({"type": "sip_transfer", "transfer_to": "+4930999999"}))
        .await;
    let refused = answered.next("sip_transfer_error").await;
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("carrier"), "{refused}");
    answered.send(json!({"type": "hangup"})).await;
    assert_eq!(caller.closed().await, 1000, "{kind:?}");
    let over = |event: &Value| event["type"] == "sip_call" && event["status"] == "hangup";
    assert_eq!(answered.until(over).await["cause"], "local", "{kind:?}");
    nothing_odd(&caller);
    drop(answered);
    in_room(server, &room, &identity, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_calls_in_one_room_hear_each_other_and_nobody_puts_out_the_other() {
    let server = Server::start_with(&[
        ("CARRIERS_ACCOUNTS_JSON", &accounts("support")),
        ("NULL_ENABLED", "true"),
    ]);
    let ann = call(&server, Kind::Twilio).await;
    let first = format!("sip_{FROM}");
    let shown = in_room(&server, "support", &first, true).await.unwrap();
    let attributes = &shown["attributes"];
    assert_eq!(shown["kind"], "SIP");
    for (name, value) in [
        ("carrier.kind", "twilio"),
        ("sip.callID", Kind::Twilio.call_id()),
        ("sip.callStatus", "active"),
        ("sip.phoneNumber", FROM),
        ("sip.trunkPhoneNumber", TO),
    ] {
        assert_eq!(attributes[name], value, "{attributes}");
    }
    // Somebody else who says to call from the same number.
    let bob = call(&server, Kind::Vonage).await;
    let second = format!("sip_{FROM}_{}", Kind::Vonage.call_id());
    in_room(&server, "support", &second, true).await;
    // Neither hears what was said by itself.
    for (who, one, other, first) in [("Bob", &ann, &bob, 290), ("Ann", &bob, &ann, 390)] {
        arrive(
            who,
            first,
            async |numbers| one.say(words(numbers, one.kind)),
            async |last| heard_by_caller(other, last).await,
        )
        .await;
    }
    // Who hangs up has left, and who is sent out has been hung up on.
    bob.hang_up();
    in_room(&server, "support", &second, false).await;
    let removed = client()
        .delete(format!("{}/rtc/participant", server.url))
        .json(&json!({"room_name": "support", "participant_identity": first}))
        .send()
        .await
        .unwrap();
    assert_eq!(removed.status(), 200);
    assert_eq!(ann.closed().await, 1000);
    nothing_odd(&ann);
    nothing_odd(&bob);
}
