//! Callers who interrupt, carriers that flood, agents that are away, and a server that stops.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use vivavoce::audio::{AudioFormat, Encoding};

use super::agent::Agent;
use super::caller::{Caller, FROM, Kind, TO};
use super::{deaf, quiet};
use crate::harness::*;
use crate::session::sound::spoken;
use crate::telephone::agents::Example;
use crate::telephone::rig;

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_of_the_examples_answers_a_carrier_as_it_does_a_telephone() {
    let port = rig::ports(2);
    let example = Example::start(port);
    example.prints("waiting for calls").await;
    let server = Server::start_with(&[
        ("AGENT_URL", &format!("ws://127.0.0.1:{port}/")),
        ("AGENT_SECRET", "0123456789abcdef"),
        ("AGENT_ALLOW_INSECURE", "true"),
        ("AGENT_ALLOW_PRIVATE", "true"),
    ]);
    let kind = Kind::Twilio;
    let format = AudioFormat::mono(Encoding::Linear16, kind.rate());
    let goodbye = spoken(&server, "Thank you, and goodbye.", format).await;
    let caller = Caller::call(&server, kind).await;
    let told = example.prints("call: ").await;
    assert!(
        told.contains(&format!("from {FROM} to {TO} in None")),
        "{told}"
    );
    // After the greeting.
    tokio::time::sleep(Duration::from_secs(4)).await;
    caller.say(goodbye.samples().to_vec());
    example.prints("heard: ").await;
    let over = example.prints("over: ").await;
    assert!(over.contains("over: local"), "{over}");
    assert_eq!(caller.closed().await, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_interrupts_is_heard_and_the_carrier_drops_the_rest() {
    let agent = Agent::start().await;
    let server = quiet(&agent, &[]);
    let kind = Kind::Twilio;
    let format = AudioFormat::mono(Encoding::Linear16, kind.rate());
    let question = spoken(&server, SENTENCES[3], format).await;
    let caller = Caller::call(&server, kind).await;
    let config = json!({"type": "config", "stt_config": {"provider": "local"},
        "tts_config": {"provider": "local", "model": ""}, "vad": {"interruption": "pause"}});
    let mut answered = agent.answer(config).await;
    answered.speak("long", &SENTENCES.join(" ")).await;
    answered.next("tts_started").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    caller.say(question.samples().to_vec());
    let cut = answered.next("tts_interrupted").await;
    let heard = cut["heard_text"].as_str().unwrap();
    assert!(
        SENTENCES.join(" ").starts_with(heard) && !heard.is_empty(),
        "{cut}"
    );
    eventually("it is not cleared", || {
        caller.noted(|noted| noted.clears == 1)
    })
    .await;
    let confirmed = answered
        .events
        .iter()
        .find(|event| event["state"] == "confirmed");
    assert!(confirmed.is_some(), "{:?}", answered.events);
    caller.hang_up();
    answered.until(|event| event["status"] == "hangup").await;
}

#[tokio::test]
async fn a_carrier_that_floods_loses_what_is_too_much_and_the_call_goes_on() {
    let agent = Agent::start().await;
    let server = quiet(&agent, &[]);
    let caller = Caller::call(&server, Kind::Twilio).await;
    let mut answered = agent.answer(deaf()).await;
    answered.next("sip_call").await;
    let payload = "/".repeat(16_000);
    for _ in 0..20 {
        // A second and a half each.
        let media = json!({"event": "media", "media": {"track": "inbound", "payload": payload}});
        caller.send(Message::text(media.to_string()));
    }
    caller.press('7');
    assert_eq!(answered.next("dtmf").await["digit"], "7");
    let page = client()
        .get(format!("{}/metrics", server.url))
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let name = "vivavoce_carrier_messages_dropped_total ";
    let dropped = page
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    assert!(dropped.parse::<u64>().unwrap() >= 10, "{dropped}");
    caller.hang_up();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_for_whom_there_is_no_agent_hears_why_and_is_hung_up() {
    let away = SocketAddr::from((Ipv4Addr::LOCALHOST, rig::ports(2)));
    let server = Server::start_with(&[
        ("AGENT_URL", &format!("ws://{away}/")),
        ("AGENT_SECRET", "0123456789abcdef"),
        ("AGENT_ALLOW_INSECURE", "true"),
        ("AGENT_ALLOW_PRIVATE", "true"),
        ("AGENT_PATIENCE_SECONDS", "0.5"),
        (
            "AGENT_UNAVAILABLE_TEXT",
            "All our lines are busy. Please call again later.",
        ),
    ]);
    let caller = Caller::call(&server, Kind::Twilio).await;
    assert_eq!(caller.closed().await, 1000);
    let loud = caller.noted(|noted| {
        let pieces = noted.heard.chunks(160);
        let level = |piece: &[i16]| {
            piece
                .iter()
                .map(|&sample| f64::from(sample).abs())
                .sum::<f64>()
        };
        pieces.filter(|piece| level(piece) > 200.0 * 160.0).count()
    });
    // Some two seconds of speech.
    assert!((50..250).contains(&loud), "{loud} pieces");
}

#[tokio::test]
async fn a_server_that_stops_tells_the_agent_and_waits_for_the_call_as_long_as_for_any_session() {
    let agent = Agent::start().await;
    let mut server = quiet(&agent, &[("SHUTDOWN_DRAIN_SECONDS", "2")]);
    let caller = Caller::call(&server, Kind::Vonage).await;
    let mut answered = agent.answer(deaf()).await;
    answered.next("sip_call").await;
    server.terminate();
    answered.next("draining").await;
    caller.press('3');
    assert_eq!(answered.next("dtmf").await["digit"], "3");
    assert_eq!(answered.closed().await, 1001);
    assert_eq!(caller.closed().await, 1000);
    assert!(server.ended().success());
}
