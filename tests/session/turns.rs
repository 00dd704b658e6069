//! The ends of turns in human speech, with the end-of-turn model: it hears them before silence does, and waits where a
//! sentence goes on. The machine may be too busy for an answer in time, in which case silence decides: whoever finds in
//! the metrics that the model did not answer says the sentence again.

use std::time::Duration;

use serde_json::json;
use vivavoce::audio::{Pcm, linear16};

use super::client::{Session, config, hears, with};
use super::sound::{WIDE, encoded, then};
use crate::harness::{Server, client, human_speech, models};

/// A machine that is too busy this many times in succession is none for this test.
const ATTEMPTS: usize = 10;

fn server() -> Server {
    Server::start_with(&[("MODELS_PATH", models::all().to_str().unwrap())])
}

fn human(name: &str) -> Pcm {
    let file = format!("librivox/sense_and_sensibility_01_austen_64kb-{name}.wav");
    let bytes = human_speech::linear16(&human_speech::human(&file));
    Pcm::new(WIDE.layout, linear16::samples(&bytes))
}

fn silence(ms: u64) -> Pcm {
    Pcm::silence(WIDE.layout, Duration::from_millis(ms))
}

/// How many questions the model has not answered.
async fn unanswered(server: &Server) -> u64 {
    let page = client().get(format!("{}/metrics", server.url)).send().await;
    let page = page.unwrap().text().await.unwrap();
    let without = ["late", "busy", "failed"]
        .map(|answer| format!(r#"vivavoce_turn_answers_total{{answer="{answer}"}} "#));
    let counts = page.lines().filter_map(|line| {
        let count = without.iter().find_map(|known| line.strip_prefix(known))?;
        Some(count.parse::<u64>().unwrap())
    });
    counts.sum()
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
    for _ in 0..ATTEMPTS {
        let before = unanswered(&server).await;
        let (session, ends) = ends(&server, "smart-turn", &sound).await;
        session.close().await;
        if ends.last().is_some_and(|(reason, _)| reason == "model") {
            return;
        }
        assert!(unanswered(&server).await > before, "{ends:?}");
    }
    panic!("the model did not answer in {ATTEMPTS} attempts");
}

#[tokio::test]
async fn a_sentence_that_goes_on_after_a_pause_is_one_turn() {
    let server = server();
    let sentence = human("0930").into_samples();
    let (first, second) = sentence.split_at(24_000);
    let pause = then(
        then(silence(500), &Pcm::new(WIDE.layout, first.to_vec())),
        &silence(900),
    );
    let sound = then(pause, &Pcm::new(WIDE.layout, second.to_vec()));
    let sound = then(sound, &silence(3_000));
    // Whether speech went on in the turn that it had begun.
    let goes_on = |session: &Session| {
        let events = session.events_of("vad_event");
        events.iter().any(|event| {
            let pause = event["silence_duration_ms"].as_u64().unwrap_or_default();
            event.text("event") == "speech_resumed" && pause > 700
        })
    };
    let (session, ends_of_turns) = ends(&server, "silence", &sound).await;
    assert!(!goes_on(&session), "{ends_of_turns:?}");
    session.close().await;
    for _ in 0..ATTEMPTS {
        let before = unanswered(&server).await;
        let (session, ends_of_turns) = ends(&server, "smart-turn", &sound).await;
        let kept = goes_on(&session);
        session.close().await;
        if kept {
            return;
        }
        assert!(unanswered(&server).await > before, "{ends_of_turns:?}");
    }
    panic!("the model did not answer in {ATTEMPTS} attempts");
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
