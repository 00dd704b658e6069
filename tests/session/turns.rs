//! The ends of turns in human speech, with the end-of-turn model: it hears them before silence does, and waits where a
//! sentence goes on.

use std::time::Duration;

use serde_json::json;
use vivavoce::audio::{Pcm, linear16};

use super::client::{Session, config, hears, with};
use super::sound::{WIDE, encoded, then};
use crate::harness::{Server, human_speech, models};

fn server() -> Server {
    Server::start_with(&[
        ("MODELS_PATH", models::all().to_str().unwrap()),
        // However busy the machine is.
        ("LOCAL_TURN_DEADLINE_MS", "20000"),
    ])
}

fn human(name: &str) -> Pcm {
    let file = format!("librivox/sense_and_sensibility_01_austen_64kb-{name}.wav");
    let bytes = human_speech::linear16(&human_speech::human(&file));
    Pcm::new(WIDE.layout, linear16::samples(&bytes))
}

fn silence(ms: u64) -> Pcm {
    Pcm::silence(WIDE.layout, Duration::from_millis(ms))
}

/// A session whose turns are ended by this, and not because its recogniser is late on a busy machine.
async fn session(server: &Server, turn_model: &str) -> Session {
    let vad = json!({"vad": {"turn_model": turn_model, "speech_final_timeout_ms": 20_000}});
    Session::open(server, with(hears(json!({})), vad)).await
}

/// Why each turn has ended so far.
fn ends(session: &Session) -> Vec<String> {
    let events = session.events_of("vad_event");
    let ends = events
        .iter()
        .filter(|event| event.text("event") == "turn_end");
    ends.map(|end| end.text("reason").to_owned()).collect()
}

#[tokio::test]
async fn a_finished_sentence_ends_its_turn_before_silence_would() {
    let server = server();
    let sound = then(then(silence(500), &human("0920")), &silence(3_000));
    let mut session = session(&server, "smart-turn").await;
    let speaking = session.hear(encoded(&sound, WIDE).await);
    session.end_of_turn().await;
    speaking.await;
    assert_eq!(ends(&session), ["model"]);
    session.close().await;
}

#[tokio::test]
async fn a_sentence_that_goes_on_after_a_pause_is_one_turn() {
    let server = server();
    let sentence = human("0930").into_samples();
    // In the middle of a word, which nobody takes for an end.
    let (first, second) = sentence.split_at(24_000);
    let [first, second] = [first, second].map(|half| Pcm::new(WIDE.layout, half.to_vec()));

    // Silence ends a turn there, whatever is to come.
    let mut by_silence = session(&server, "silence").await;
    let first_half = encoded(&first, WIDE).await;
    by_silence.hear_turns(vec![first_half]).await;
    let why = ends(&by_silence);
    assert!(
        ["silence", "provider"].contains(&why[0].as_str()),
        "{why:?}"
    );
    by_silence.close().await;

    let sound = then(then(silence(500), &first), &silence(900));
    let sound = then(then(sound, &second), &silence(3_000));
    let mut by_model = session(&server, "smart-turn").await;
    let speaking = by_model.hear(encoded(&sound, WIDE).await);
    by_model.end_of_turn().await;
    speaking.await;
    let events = by_model.events_of("vad_event");
    let goes_on = events.iter().any(|event| {
        let pause = event["silence_duration_ms"].as_u64().unwrap_or_default();
        event.text("event") == "speech_resumed" && pause > 700
    });
    assert!(goes_on, "{events:?}");
    assert_eq!(ends(&by_model).len(), 1, "{events:?}");
    by_model.close().await;
}

#[tokio::test]
async fn a_model_that_is_not_installed_cannot_be_named() {
    let empty = tempfile::tempdir().unwrap();
    let server = Server::start_with(&[("MODELS_PATH", empty.path().to_str().unwrap())]);
    let mut session = Session::connect(&server).await;
    let wanted = config(json!({"vad": {"turn_model": "smart-turn"}}));
    session.send(wanted).await;
    let refused = session.refused("provider_unavailable").await;
    let message = refused.text("message");
    assert!(
        message.contains("vivavoce models fetch smart-turn"),
        "{message}"
    );
    // Left to the server it is silence.
    session.send(config(json!({}))).await;
    session.next("ready").await;
    session.close().await;
}
