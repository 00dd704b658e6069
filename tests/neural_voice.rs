//! The neural voice of provider `local`: understood, its words told to the word, refusing what it cannot say.

use std::collections::HashSet;

use serde_json::{Value, json};
use vivavoce::audio::linear16;

use crate::harness::{Server, assert_error, client, models, share_of_words, speak};
use crate::session::client::{Session, config};

fn server() -> Server {
    Server::start_with(&[("MODELS_PATH", models::all().to_str().unwrap())])
}

async fn voices(server: &Server) -> Vec<String> {
    let url = format!("{}/voices", server.url);
    let body: Value = client()
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let mut ids = Vec::new();
    let mut open = vec![&body];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(values) => open.extend(values),
            Value::Object(fields) => {
                ids.extend(fields.get("id").and_then(Value::as_str).map(str::to_owned));
                open.extend(fields.values());
            }
            _ => {}
        }
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn the_neural_voice_is_taken_and_understood() {
    let server = server();
    let said = "The children played outside until it got dark. Thank you for calling our office.";
    for fields in [
        json!({}),
        json!({"model": "hibari"}),
        json!({"voice_id": "hibari-heart"}),
    ] {
        let wanted = json!({"audio_format": "wav", "sample_rate": 24_000});
        let fields = crate::session::client::with(wanted, fields);
        let response = speak(&server, said, fields).await;
        assert_eq!(response.status(), 200, "{:?}", response.text().await);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("said.wav");
        std::fs::write(&file, response.bytes().await.unwrap()).unwrap();
        let output = crate::harness::vivavoce(["transcribe", file.to_str().unwrap()]);
        let heard = crate::harness::stdout(&output);
        let share = share_of_words(said, &heard);
        assert!(share >= 0.8, "{heard:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neural_voices_are_listed_and_their_models_can_be_named() {
    let server = server();
    let ids: HashSet<String> = voices(&server).await.into_iter().collect();
    for id in ["hibari-heart", "piper-en_US-joe-medium", "flite-slt"] {
        assert!(ids.contains(id), "{id} is not among {ids:?}");
    }
    for fields in [
        json!({"model": "piper"}),
        json!({"voice_id": "slt"}),
        json!({"voice_id": "piper-en_US-joe-medium"}),
    ] {
        let response = speak(&server, "Hello there.", fields.clone()).await;
        assert_eq!(response.status(), 200, "{fields}");
        assert!(response.bytes().await.unwrap().len() > 10_000, "{fields}");
    }
    let unknown = speak(&server, "Hello.", json!({"model": "nothing"})).await;
    assert_eq!(unknown.status(), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_in_another_script_is_refused_with_the_voice_that_would_say_it() {
    let server = server();
    for (text, voice) in [
        ("Привет, как дела?", "espeak-ru"),
        ("今天天气很好。", "espeak-"),
    ] {
        let refused = speak(&server, text, json!({"model": ""})).await;
        assert_error(refused, 400, "INVALID_REQUEST", voice).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn words_of_the_neural_voice_are_told_exactly() {
    const TEXT: &str = "On the 3rd of March, 250 people paid $9.99 each at 7 pm, didn't they?";
    let server = server();
    let says =
        json!({"provider": "local", "model": "hibari", "sample_rate": 24_000, "progress": true});
    let mut session = Session::open(&server, config(json!({"tts_config": says}))).await;
    session.speak("whole", TEXT).await;
    session.completion_of("whole").await;
    let told = session.events_of("tts_progress");
    let texts: Vec<_> = told.iter().map(|event| event.text("text")).collect();
    assert_eq!(texts, TEXT.split(' ').collect::<Vec<_>>());
    assert!(told.iter().all(|event| !event.is("estimated")));
    let starts: Vec<_> = told.iter().map(|event| event.time("played_ms")).collect();
    assert!(starts.is_sorted(), "{starts:?}");
    let sound = session.sound();
    let samples: usize = sound
        .iter()
        .map(|chunk| linear16::samples(&chunk.data).len())
        .sum();
    assert!(starts.last().unwrap().as_secs_f64() < samples as f64 / 24_000.0);

    session.speak("cut", TEXT).await;
    let mut event = session.next("tts_progress").await;
    while event["id"] != "cut" || event["word_index"].as_u64() < Some(5) {
        event = session.next("tts_progress").await;
    }
    session.command("clear").await;
    let interrupted = session.next("tts_interrupted").await;
    let heard = interrupted.text("heard_text");
    assert!(TEXT.starts_with(heard), "{interrupted}");
    let played = interrupted.time("played_ms");
    let begun = starts.iter().filter(|start| **start <= played).count();
    let words = heard.split_whitespace().count();
    assert!(
        words.abs_diff(begun) <= 1,
        "{words} of {begun} words: {interrupted}"
    );
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_is_replaced() {
    let server = server();
    let hello = || speak(&server, "Hello there.", json!({"model": "hibari"}));
    assert_eq!(hello().await.status(), 200);
    for worker in server.children("vivavoce") {
        let _ = std::process::Command::new("kill")
            .args(["-9", &worker.to_string()])
            .status();
    }
    let again = speak(&server, "Hello there again.", json!({"model": "hibari"})).await;
    assert_eq!(again.status(), 200);
    assert!(again.bytes().await.unwrap().len() > 10_000);
}
