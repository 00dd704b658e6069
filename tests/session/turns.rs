//! The ends of turns in human speech, with the end-of-turn model: it hears them before silence does, and waits where a
//! sentence goes on.

use std::time::Duration;

use serde_json::{Value, json};
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

fn turns_by(turn_model: &str) -> Value {
    let vad = json!({"vad": {"turn_model": turn_model}});
    with(hears(json!({})), vad)
}

/// The ends of turns in this sound: why each ended, and after how much silence.
async fn ends(server: &Server, turn_model: &str, sound: &Pcm) -> (Session, Vec<(String, u64)>) {
    let config = with(hears(json!({})), json!({"vad": {"turn_model": turn_model}}));
    let mut session = Session::open(server, config).await;
    let speaking = session.hear(encoded(sound, WIDE).await);
    session.end_of_turn().await;
    speaking.await;
    let ends = session.events_of("vad_event");
    let ends = ends
        .iter()
        .filter(|event| event.text("event") == "turn_end");
    let ends = ends.map(|end| {
        let silence = end["silence_duration_ms"].as_u64().unwrap_or_default();
        (end.text("reason").to_owned(), silence)
    });
    let ends = ends.collect();
    (session, ends)
}

#[tokio::test]
async fn a_finished_sentence_ends_its_turn_before_silence_would() {
    let server = server();
    let sound = then(then(silence(500), &human("0920")), &silence(3_000));
    let (session, ends) = ends(&server, "smart-turn", &sound).await;
    session.close().await;
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0].0, "model", "{ends:?}");
}

#[tokio::test]
async fn a_sentence_that_goes_on_after_a_pause_is_one_turn() {
    let server = server();
    let sentence = human("0930").into_samples();
    let cut = |at: usize| {
        let (first, second) = sentence.split_at(at);
        [first, second].map(|half| Pcm::new(WIDE.layout, half.to_vec()))
    };
    // By silence alone they are two, each of which has words.
    let halves = cut(27_200);
    let mut session = Session::open(&server, turns_by("silence")).await;
    let halves_sent = [
        encoded(&halves[0], WIDE).await,
        encoded(&halves[1], WIDE).await,
    ];
    session.hear_turns(halves_sent.into()).await;
    session.close().await;

    // In the middle of a word, which nobody takes for an end.
    let halves = cut(24_000);
    let sound = then(then(silence(500), &halves[0]), &silence(900));
    let sound = then(then(sound, &halves[1]), &silence(3_000));
    let (session, ends_of_turns) = ends(&server, "smart-turn", &sound).await;
    let events = session.events_of("vad_event");
    let goes_on = events.iter().any(|event| {
        let pause = event["silence_duration_ms"].as_u64().unwrap_or_default();
        event.text("event") == "speech_resumed" && pause > 700
    });
    assert!(goes_on, "{events:?}");
    assert_eq!(ends_of_turns.len(), 1, "{ends_of_turns:?}");
    session.close().await;
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
