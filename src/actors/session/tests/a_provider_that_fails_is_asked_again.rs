//! "A provider that fails before the first sound of a sentence is asked again up to three times."

use super::synthesiser::ramp;
use super::*;
use vivavoce_seams::ErrorKind;

const DOWN: Way = Way::Fails(ErrorKind::Unavailable);

fn states(client: &Client) -> Vec<String> {
    let events = client.events_of("provider_event");
    let states = events
        .iter()
        .map(|event| event["state"].as_str().unwrap().to_owned());
    states.collect()
}

#[actix::test]
async fn before_the_first_sound_it_is_asked_again_with_back_off() {
    let stage = Stage::new();
    stage.synthesiser.says([DOWN; 3]);
    let client = stage.configured().await;
    let begun = client.now();
    client.send(&speak("Hello"));
    let (started, _) = client.event_at("tts_started").await;
    // 100, 300 and 900 ms, each up to a fifth shorter by chance.
    assert!(
        (ms(1_040)..ms(1_310)).contains(&(started - begun)),
        "{:?}",
        started - begun
    );
    client.event("tts_playback_complete").await;
    assert_eq!(client.heard(), ramp(0, 200 * 24));
    assert_eq!(states(&client), ["reconnecting", "recovered"]);
    assert_eq!(client.events_of("error").len(), 0);
}

#[actix::test]
async fn after_three_times_the_utterance_fails_and_the_next_one_does_not() {
    let stage = Stage::new();
    stage.synthesiser.says([DOWN; 4]);
    let client = stage.configured().await;
    client.send(&speak("Hello"));
    client.send(&speak("Next"));
    let failed = client.event("error").await;
    assert_eq!(failed["code"], "provider_unavailable");
    assert_eq!(
        (&failed["id"], &failed["played_ms"]),
        (&json!("Hello"), &json!(0))
    );
    assert_eq!(client.event("tts_playback_complete").await["id"], "Next");
    assert_eq!(states(&client), ["reconnecting", "failed"]);
    assert_eq!(client.events_of("error").len(), 1);
}

#[actix::test]
async fn after_its_first_sound_it_is_not_asked_again_and_what_there_is_is_heard() {
    let stage = Stage::new();
    stage.synthesiser.says([Way::FailsAfter(ms(300))]);
    let client = stage.configured().await;
    client.send(&speak("A sentence"));
    let (at, failed) = client.event_at("error").await;
    assert_eq!(failed["code"], "provider_unavailable");
    assert_eq!(failed["played_ms"], 300);
    assert!(at >= ms(300));
    assert_eq!(client.events_of("tts_interrupted").len(), 0);
    assert_eq!(client.heard(), ramp(0, 300 * 24));
    assert_eq!(stage.synthesiser.asked(), ["A sentence"]);
}

#[actix::test]
async fn clear_ends_the_patience_and_the_next_success_is_the_recovery() {
    let stage = Stage::new();
    stage.synthesiser.says([DOWN; 3]);
    let client = stage.configured().await;
    client.send(&speak("Hello"));
    client.event("provider_event").await;
    sleep(ms(600)).await;
    let cleared = client.now();
    client.send(&json!({"type": "clear"}));
    let (at, event) = client.event_at("tts_interrupted").await;
    assert_eq!(event["id"], "Hello");
    assert!(at - cleared <= ms(20));
    client.send(&speak("Next"));
    assert_eq!(client.event("tts_playback_complete").await["id"], "Next");
    assert_eq!(
        stage.synthesiser.asked(),
        ["Hello", "Hello", "Hello", "Next"]
    );
    assert_eq!(states(&client), ["reconnecting", "recovered"]);
}
