//! Who answers: telephones that play greetings, tones and beeps, and what sessions and webhooks are told of them.

use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};

use super::rig::baresip::{Baresip, Kind};
use super::{Exchange, NUMBER, PHONE, ROOM};
use crate::harness::{run, speak};
use crate::rooms::ask;
use crate::session::client::{Session, config};
use crate::webhooks::{self, Receiver};

/// A call that wants to know who answers, with these fields; gives its id.
async fn call(exchange: &Exchange, telephone: &Baresip, fields: Value) -> String {
    let (status, answer) = place(exchange, &telephone.address(), fields).await;
    assert_eq!(status, 200, "{answer}");
    answer["sip_call_id"].as_str().unwrap().to_owned()
}

async fn place(exchange: &Exchange, address: &str, fields: Value) -> (u16, Value) {
    let body = json!({
        "room_name": ROOM, "participant_name": "Phone", "participant_identity": PHONE,
        "from_phone_number": "+14155550100", "to_phone_number": NUMBER,
        "sip": {"outbound_address": address},
    });
    let body = crate::session::client::with(body, fields);
    ask(&exchange.server, Method::POST, "/sip/call", None, &body).await
}

/// A telephone that plays the parts one after the other, each the arguments of sox for one, and then nothing for a while.
async fn plays(folder: &Path, parts: &[PathBuf]) -> Baresip {
    let file = folder.join("played.wav");
    let mut arguments: Vec<String> = parts
        .iter()
        .map(|part| part.display().to_string())
        .collect();
    arguments.push(file.display().to_string());
    arguments.extend(["pad", "0.3", "60"].map(str::to_owned));
    run("sox", arguments);
    Baresip::of(Kind {
        says: Some(file),
        ..Kind::default()
    })
    .await
}

/// A tone for so many seconds, and the pause behind it.
fn tone(folder: &Path, hertz: &str, seconds: &str, pause: &str) -> PathBuf {
    let file = folder.join(format!("tone-{hertz}-{seconds}.wav"));
    let path = file.display();
    let arguments =
        format!("-n -r 8000 -b 16 -c 1 {path} synth {seconds} sine {hertz} gain -12 pad 0 {pause}");
    run("sox", arguments.split_whitespace());
    file
}

/// What somebody says.
async fn says(exchange: &Exchange, folder: &Path, text: &str) -> PathBuf {
    let form = json!({"audio_format": "wav", "sample_rate": 8000});
    let sound = speak(&exchange.server, text, form)
        .await
        .bytes()
        .await
        .unwrap();
    let file = folder.join("said.wav");
    std::fs::write(&file, sound).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_and_its_beep_are_told_to_the_session_and_by_webhook() {
    let folder = tempfile::tempdir().unwrap();
    let mut receiver = Receiver::start(0, 0);
    let url = format!("http://127.0.0.1:{}/", receiver.port);
    let exchange = Exchange::with(&webhooks::settings(&url)[..4]);
    let greeting = "Hi, this is Robert and Susan Miller. We are out in the garden today, so tell us what you want.";
    let said = says(&exchange, folder.path(), greeting).await;
    let beep = tone(folder.path(), "1000", "0.4", "0");
    let pause = tone(folder.path(), "20", "0.01", "0.5");
    let telephone = plays(folder.path(), &[said, pause, beep]).await;
    let mut session = exchange.session(ROOM).await;
    let fields = json!({"classify": true, "wait_for_beep": true});
    let id = call(&exchange, &telephone, fields).await;
    let found = session.next("call_classified").await;
    assert_eq!(found.text("sip_call_id"), id);
    assert_eq!(found.text("participant_identity"), PHONE);
    assert_eq!(found.text("result"), "machine", "{found}");
    assert_eq!(found.text("reason"), "long_greeting", "{found}");
    assert!(found["sound_ms"].as_u64().unwrap() <= 2_500, "{found}");
    assert!(found["confidence"].as_f64().unwrap() >= 0.5, "{found}");
    let beep = session.next("beep").await;
    assert!(beep.is("heard"), "{beep}");
    assert!(
        beep["after_ms"].as_u64() > found["after_ms"].as_u64(),
        "{beep}"
    );
    // Whoever joins now is told, too; and everybody sees it.
    let path = format!("/rtc/rooms/{ROOM}");
    let (_, room) = ask(&exchange.server, Method::GET, &path, None, &Value::Null).await;
    let mut everybody = room["participants"].as_array().unwrap().iter();
    let phone = everybody.find(|one| one["identity"] == PHONE).unwrap();
    assert_eq!(phone["attributes"]["sip.answeredBy"], "machine", "{phone}");
    assert_eq!(phone["attributes"]["sip.beep"], "heard", "{phone}");
    exchange.hang_up(ROOM, PHONE).await;
    session.close().await;
    let mut told = Vec::new();
    while told.len() < 2 {
        let seen = receiver.next();
        assert_eq!(seen["good"], true, "{seen}");
        let body = &seen["body"];
        if ["call.classified", "call.beep"]
            .iter()
            .any(|kind| body["event"] == **kind)
        {
            assert_eq!(body["sip_call_id"], id.as_str());
            assert_eq!(body["room_name"], ROOM);
            assert_eq!(body["participant_identity"], PHONE);
            told.push(body.clone());
        }
    }
    assert_eq!(told[0]["event"], "call.classified");
    for field in ["result", "reason", "confidence", "after_ms", "sound_ms"] {
        assert_eq!(told[0][field], found[field], "{field}");
    }
    assert_eq!(told[1]["event"], "call.beep");
    assert_eq!(
        (&told[1]["heard"], &told[1]["after_ms"]),
        (&json!(true), &beep["after_ms"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_says_hello_and_waits_is_a_person() {
    let folder = tempfile::tempdir().unwrap();
    let exchange = Exchange::start();
    let said = says(&exchange, folder.path(), "Hello?").await;
    let telephone = plays(folder.path(), &[said]).await;
    let mut session = exchange.session(ROOM).await;
    call(&exchange, &telephone, json!({"classify": true})).await;
    let found = session.next("call_classified").await;
    assert_eq!(found.text("result"), "person", "{found}");
    assert!(found["sound_ms"].as_u64().unwrap() <= 2_500, "{found}");
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn information_tones_are_a_number_that_is_not_in_service() {
    let folder = tempfile::tempdir().unwrap();
    let exchange = Exchange::start();
    let tones = ["950", "1400", "1800"].map(|hertz| tone(folder.path(), hertz, "0.33", "0"));
    let telephone = plays(folder.path(), &tones).await;
    let mut session = exchange.session(ROOM).await;
    call(&exchange, &telephone, json!({"classify": true})).await;
    let found = session.next("call_classified").await;
    assert_eq!(found.text("result"), "not_in_service", "{found}");
    assert_eq!(found.text("reason"), "information_tones", "{found}");
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assistant_that_screens_is_known_by_what_the_session_understands() {
    let folder = tempfile::tempdir().unwrap();
    let exchange = Exchange::start();
    let words = "Hi. If you record your name and reason for calling, I will see if this person is available.";
    let said = says(&exchange, folder.path(), words).await;
    let telephone = plays(folder.path(), &[said]).await;
    let config = config(json!({"rtc": {"room_name": ROOM}}));
    let mut session = Session::open(&exchange.server, config).await;
    call(&exchange, &telephone, json!({"classify": true})).await;
    loop {
        let found = session.next("call_classified").await;
        if found.text("result") == "screening" {
            assert_eq!(found.text("reason"), "words", "{found}");
            break;
        }
        // By its sound alone it is a machine, or somebody who says hi.
        assert_ne!(found.text("reason"), "words", "{found}");
    }
    session.close().await;
}

#[tokio::test]
async fn a_call_that_cannot_be_classified_as_wanted_is_refused() {
    let exchange = Exchange::start();
    for (fields, field) in [
        (json!({"wait_for_beep": true}), "wait_for_beep"),
        (
            json!({"classify": true, "beep_timeout_seconds": 5}),
            "beep_timeout_seconds",
        ),
        (
            json!({"classify": true, "wait_for_beep": true, "beep_timeout_seconds": 301}),
            "beep_timeout_seconds",
        ),
        (json!({"classify": "yes"}), "classify"),
    ] {
        let (status, answer) = place(&exchange, "127.0.0.1:9", fields).await;
        assert_eq!(
            (status, &answer["error"]),
            (400, &json!("INVALID_REQUEST")),
            "{answer}"
        );
        assert!(
            answer["message"].as_str().unwrap().contains(field),
            "{answer}"
        );
    }
}
