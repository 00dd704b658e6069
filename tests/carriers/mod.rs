//! Calls that come by the media sockets of telephone carriers, each emulated by a caller of ours that is written after the vendor's
//! pages ([`caller`]).

mod agent;
mod caller;
mod doors;
mod pipecat;
mod rooms;
mod trouble;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::harness::*;
use crate::session::endurance::times;
use crate::vendors::{Backed, numbers_in, scripted, tone_words};
use agent::{Agent, Answered};
use caller::{Caller, FROM, GIVEN, Kind, TO, handshake, media};

/// A server with emulated vendors that dials this agent.
async fn exchange(agent: &Agent, more: &[(&str, &str)]) -> Backed {
    let settings = agent.settings();
    let mut settings: Vec<_> = settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    settings.extend_from_slice(more);
    Backed::with(scripted(&[]).await, &settings)
}

/// A server without vendors that dials this agent.
fn quiet(agent: &Agent, more: &[(&str, &str)]) -> Server {
    let settings = agent.settings();
    let mut settings: Vec<_> = settings
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    settings.push(("NULL_ENABLED", "true"));
    settings.extend_from_slice(more);
    Server::start_with(&settings)
}

/// Hears and says tone-words.
fn config() -> Value {
    json!({"type": "config", "stt_config": {"provider": "deepgram"},
        "tts_config": {"provider": "elevenlabs", "model": ""}, "vad": {"enabled": false}})
}

/// Hears and says nothing.
fn deaf() -> Value {
    json!({"type": "config", "stt_config": {"provider": "null"}, "tts_config": {"provider": "null", "model": ""}})
}

fn words(numbers: impl IntoIterator<Item = u16>, kind: Kind) -> Vec<i16> {
    let mut sound = tone_words(numbers, kind.rate());
    // The recogniser ends its words in a pause.
    sound.extend(std::iter::repeat_n(0, kind.rate().hz() as usize));
    sound
}

fn nothing_odd(caller: &Caller) {
    let odd = caller.noted(|noted| noted.odd.clone());
    assert!(odd.is_empty(), "{:?}: {odd:?}", caller.kind);
}

/// Until the caller has heard these words, behind others.
async fn plays(caller: &Caller, numbers: &[u16]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Listening takes its time, during which the telephone goes on.
        let sound = caller.noted(|noted| noted.heard.clone());
        let heard = numbers_in(&sound, caller.kind.rate());
        if heard.ends_with(numbers) {
            return;
        }
        assert!(Instant::now() < deadline, "{:?}: {heard:?}", caller.kind);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Until the agent has heard these words, and no others.
async fn hears(answered: &mut Answered, numbers: &[u16]) {
    let expected: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    while answered.heard().len() < expected.len() {
        answered
            .until(|event| event["type"] == "stt_result" && event["is_final"] == true)
            .await;
    }
    assert_eq!(answered.heard(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_each_carrier_is_understood_answered_and_hung_up() {
    let agent = Agent::start().await;
    let backed = exchange(&agent, &[]).await;
    let mut calls = Vec::new();
    for kind in Kind::ALL {
        let caller = Caller::call(&backed.server, kind).await;
        calls.push((caller, agent.answer(config()).await));
    }
    let calls = calls.into_iter().map(|(caller, mut answered)| async move {
        let kind = caller.kind;
        let (name, value) = GIVEN;
        let expected = json!({"type": "call", "room_name": null, "participant_identity": format!("sip_{}", kind.number(FROM)),
            "from": kind.number(FROM), "to": kind.number(TO), "headers": {}, "stream_id": answered.call["stream_id"],
            "carrier": {"kind": kind.slug(), "call_id": kind.call_id(), "parameters": {name: value}}});
        assert_eq!(answered.call, expected);
        let active = answered.next("sip_call").await;
        assert_eq!(
            (&active["status"], &active["sip_call_id"]),
            (&json!("active"), &json!(kind.call_id()))
        );
        caller.say(words(100..110, kind));
        hears(&mut answered, &(100..110).collect::<Vec<_>>()).await;
        caller.press('5');
        let dtmf = answered.next("dtmf").await;
        assert_eq!(
            (&dtmf["digit"], &dtmf["identity"]),
            (&json!("5"), &answered.call["participant_identity"])
        );
        answered
            .send(json!({"type": "send_dtmf", "digits": "12#"}))
            .await;
        if kind == Kind::Plivo {
            eventually("no keys", || caller.noted(|noted| noted.keys == "12#")).await;
        } else {
            assert_eq!(answered.next("error").await["code"], "call_failed");
        }
        answered.speak("a", "201 202 203 204 205").await;
        assert_eq!(answered.next("tts_playback_complete").await["id"], "a");
        answered.send(json!({"type": "hangup"})).await;
        let over = answered.next("sip_call").await;
        assert_eq!(
            (&over["status"], &over["cause"]),
            (&json!("hangup"), &json!("local")),
            "{kind:?}"
        );
        assert_eq!(caller.closed().await, 1000, "{kind:?}");
        // What was said before has been heard to its end, and the server was told.
        let marks = usize::from(kind != Kind::Genesys);
        assert_eq!(caller.noted(|noted| noted.marks.len()), marks, "{kind:?}");
        let heard = caller.noted(|noted| numbers_in(&noted.heard, kind.rate()));
        assert_eq!(heard, [201, 202, 203, 204, 205], "{kind:?}");
        assert_eq!(answered.closed().await, 1000);
        nothing_odd(&caller);
    });
    futures_util::future::join_all(calls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn minutes_of_both_sides_are_heard_to_the_word() {
    let agent = Agent::start().await;
    let backed = exchange(&agent, &[]).await;
    // A word is half a second.
    let count = times(20, 360) as u16;
    let mut calls = Vec::new();
    for kind in Kind::ALL {
        let caller = Caller::call(&backed.server, kind).await;
        calls.push((caller, agent.answer(config()).await));
    }
    let calls = calls.into_iter().map(|(caller, mut answered)| async move {
        let numbers: Vec<u16> = (1_000..1_000 + count).collect();
        caller.say(words(numbers.iter().copied(), caller.kind));
        let said: Vec<u16> = (5_000..5_000 + count).collect();
        for (place, few) in said.chunks(10).enumerate() {
            let text: Vec<_> = few.iter().map(ToString::to_string).collect();
            answered
                .speak(&place.to_string(), &(text.join(" ") + "."))
                .await;
        }
        hears(&mut answered, &numbers).await;
        let last = ((said.len() - 1) / 10).to_string();
        let is_last =
            |event: &Value| event["type"] == "tts_playback_complete" && event["id"] == *last;
        if !answered.events.iter().any(is_last) {
            answered.until(is_last).await;
        }
        answered.send(json!({"type": "hangup"})).await;
        assert_eq!(caller.closed().await, 1000);
        let heard = caller.noted(|noted| numbers_in(&noted.heard, caller.kind.rate()));
        assert_eq!(heard, said, "{:?}", caller.kind);
        nothing_odd(&caller);
    });
    futures_util::future::join_all(calls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_cut_stops_at_the_carrier_and_the_agent_knows_what_was_heard() {
    let agent = Agent::start().await;
    let backed = exchange(&agent, &[]).await;
    for kind in Kind::ALL {
        let caller = Caller::call(&backed.server, kind).await;
        let mut answered = agent.answer(config()).await;
        let said: Vec<u16> = (300..340).collect();
        let text: Vec<_> = said.iter().map(ToString::to_string).collect();
        answered.speak("long", &text.join(" ")).await;
        answered.next("tts_started").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        answered.send(json!({"type": "clear"})).await;
        let cut = answered.next("tts_interrupted").await;
        eventually("it is not cleared", || {
            caller.noted(|noted| noted.clears > 0)
        })
        .await;
        assert_eq!(cut["id"], "long", "{cut}");
        let known: Vec<u16> = cut["heard_text"]
            .as_str()
            .unwrap()
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let heard = caller.noted(|noted| numbers_in(&noted.heard, kind.rate()));
        // Emulated voices that tell when their words begin.
        assert!(
            known.len() >= 3 && said.starts_with(&heard) && heard.len().abs_diff(known.len()) <= 1,
            "{kind:?}: {heard:?}, {cut}"
        );
        let milliseconds =
            caller.noted(|noted| noted.heard.len()) as u64 * 1_000 / u64::from(kind.rate().hz());
        let played = cut["played_ms"].as_u64().unwrap();
        assert!(
            milliseconds.abs_diff(played) < 300,
            "{kind:?}: {milliseconds}, {cut}"
        );
        // And what is said next is heard from its beginning.
        answered.speak("next", "401 402").await;
        assert_eq!(answered.next("tts_playback_complete").await["id"], "next");
        plays(&caller, &[401, 402]).await;
        assert_eq!(caller.noted(|noted| noted.clears), 1, "{kind:?}");
        caller.hang_up();
        let is_over = |event: &Value| event["type"] == "sip_call" && event["status"] == "hangup";
        assert_eq!(answered.until(is_over).await["cause"], "remote", "{kind:?}");
        nothing_odd(&caller);
    }
}

#[tokio::test]
async fn however_a_call_ends_its_agent_is_told_and_nothing_is_left() {
    let agent = Agent::start().await;
    let server = quiet(&agent, &[]);
    for (cause, end) in [
        ("failed", Caller::drop_socket as fn(&Caller)),
        ("remote", Caller::hang_up),
    ] {
        let caller = Caller::call(&server, Kind::Twilio).await;
        let mut answered = agent.answer(deaf()).await;
        answered.next("sip_call").await;
        end(&caller);
        let over = answered.next("sip_call").await;
        assert_eq!(
            (&over["status"], &over["cause"]),
            (&json!("hangup"), &json!(cause))
        );
        assert_eq!(answered.closed().await, 1000);
    }
    // The agent has done its work: there is nobody left to talk to.
    let caller = Caller::call(&server, Kind::Twilio).await;
    let answered = agent.answer(deaf()).await;
    answered.close().await;
    assert_eq!(caller.closed().await, 1000);
    // Its socket breaks: it is dialled again, in the same call.
    let caller = Caller::call(&server, Kind::Twilio).await;
    let first = agent.answer(deaf()).await;
    let id = first.call["carrier"]["call_id"].clone();
    drop(first);
    let mut again = agent.answer(deaf()).await;
    assert_eq!(again.call["carrier"]["call_id"], id);
    caller.press('1');
    assert_eq!(again.next("dtmf").await["digit"], "1");
    // Its session is ended.
    let ended = client().delete(format!(
        "{}/sessions/{}",
        server.url,
        again.call["stream_id"].as_str().unwrap()
    ));
    assert_eq!(ended.send().await.unwrap().status(), 200);
    assert_eq!(caller.closed().await, 1000);
    let sessions: Value = client()
        .get(format!("{}/sessions", server.url))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(sessions["sessions"], json!([]));
}

#[tokio::test]
async fn an_agent_says_nothing_of_rooms_and_sends_no_sound() {
    let agent = Agent::start().await;
    let server = quiet(&agent, &[]);
    let _caller = Caller::call(&server, Kind::Twilio).await;
    let mut answered = agent.accept().await;
    let mut room = deaf();
    room["rtc"] = json!({"room_name": "lobby"});
    answered.send(room).await;
    let refused = answered.next("error").await;
    assert_eq!(
        (&refused["code"], &refused["in_reply_to"]),
        (&json!("invalid_message"), &json!("config")),
        "{refused}"
    );
    answered.send(deaf()).await;
    answered.next("ready").await;
    answered.send_binary(vec![0; 320]).await;
    answered.send_binary(vec![0; 320]).await;
    assert_eq!(answered.next("error").await["code"], "audio_disabled");
    answered
        .send(json!({"type": "sip_transfer", "transfer_to": "+4930555"}))
        .await;
    assert_eq!(
        answered.next("sip_transfer_error").await["code"],
        "transfer_failed"
    );
    answered
        .send(json!({"type": "hangup", "participant_identity": "somebody"}))
        .await;
    assert_eq!(
        answered.next("error").await["code"],
        "participant_not_found"
    );
}

#[tokio::test]
async fn a_carrier_that_says_something_else_is_told_what_and_a_call_without_an_agent_ends() {
    let server = Server::start_with(&[("SOCKET_CONFIG_TIMEOUT_SECONDS", "1")]);
    let began = Instant::now();
    let mut socket = handshake(&media(&server, Kind::Twilio), &[]).await.unwrap();
    assert_eq!(close_of(&mut socket).await.0, 4408);
    assert!(began.elapsed() < Duration::from_secs(10));
    for (kind, message, code, reason) in [
        (Kind::Twilio, Message::text("{"), 1007, "body"),
        (
            Kind::Twilio,
            Message::text(r#"{"event":"media","media":{"payload":7}}"#),
            1007,
            "media.payload",
        ),
        (
            Kind::Twilio,
            Message::text(r#"{"event":"media","media":{"payload":"fw=="}}"#),
            1007,
            "before the call",
        ),
        (
            Kind::Twilio,
            Message::binary(vec![0; 160]),
            1007,
            "must be text",
        ),
        (
            Kind::Twilio,
            Message::text(" ".repeat(70_000)),
            1009,
            "64 KiB",
        ),
        (Kind::Vonage, Message::binary(vec![0; 3]), 1007, "16 bits"),
        (
            Kind::Genesys,
            Message::text(r#"{"type":"open"}"#),
            1007,
            "seq",
        ),
    ] {
        use futures_util::SinkExt;
        let mut socket = handshake(&media(&server, kind), &[]).await.unwrap();
        socket.send(message).await.unwrap();
        let closed = close_of(&mut socket).await;
        assert!(
            closed.0 == code && closed.1.contains(reason),
            "{kind:?}: {closed:?}"
        );
    }
    let caller = Caller::call(&server, Kind::Twilio).await;
    assert_eq!(caller.closed().await, 1000);
    assert_eq!(
        handshake(
            &format!("{}/carrier/nobody/media", server.url.replace("http", "ws")),
            &[]
        )
        .await
        .unwrap_err(),
        404
    );
}

#[tokio::test]
async fn a_second_call_by_one_socket_ends_the_first() {
    let agent = Agent::start().await;
    let server = quiet(&agent, &[]);
    let caller = Caller::call(&server, Kind::Twilio).await;
    let mut answered = agent.answer(deaf()).await;
    answered.next("sip_call").await;
    let start = r#"{"event":"start","start":{"streamSid":"MZ1","callSid":"CA1"}}"#;
    caller.send(Message::text(start));
    assert_eq!(caller.closed().await, 1007);
    assert_eq!(answered.next("sip_call").await["cause"], "failed");
}

async fn close_of<S>(socket: &mut tokio_tungstenite::WebSocketStream<S>) -> (u16, String)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    use futures_util::StreamExt;
    let closed = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(Some(frame)) = message {
                return (frame.code.into(), frame.reason.to_string());
            }
        }
        (1006, String::new())
    };
    tokio::time::timeout(PATIENCE, closed)
        .await
        .expect("it does not close")
}
