//! "An actor that fails takes down its session and nothing else", and a recogniser or synthesiser not even that.

use super::*;
use vivavoce_seams::ErrorKind;

#[actix::test]
async fn a_recogniser_that_drops_in_mid_speech_is_replaced_and_nothing_is_lost_or_doubled() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let first = stage.recogniser.stream(0).await;
    let mut sent = client.speaks(ms(500)).await;
    first.says(partial("half a"));
    stage.recogniser.opens([
        Opening::Fails(ErrorKind::Unavailable),
        Opening::Takes(ms(300)),
    ]);
    first.drops();
    sent.extend(client.speaks(ms(2_000)).await);
    let reconnecting = client.event("provider_event").await;
    assert_eq!(
        (&reconnecting["state"], &reconnecting["kind"]),
        (&json!("reconnecting"), &json!("stt"))
    );
    let recovered = client.event("provider_event").await;
    assert_eq!(recovered["state"], "recovered");
    assert_eq!(
        recovered["message"],
        "everything that was said meanwhile is transcribed"
    );
    let second = stage.recogniser.stream(1).await;
    assert_eq!(second.heard(), sent);
    second.says(said("Half a sentence."));
    sent.extend(client.is_silent(ms(3_000)).await);
    let results = client.events_of("stt_result");
    let ends = results
        .iter()
        .filter(|result| result["is_speech_final"] == true);
    assert_eq!(ends.count(), 1);
    assert_eq!(client.events_of("error").len(), 0);
    assert_eq!(stage.recogniser.opened(), 2);
}

#[actix::test]
async fn a_loss_is_told_with_the_recovery_from_it_and_not_again() {
    let stage = Stage::new();
    let client = stage.configured().await;
    stage.recogniser.opens([Opening::Takes(ms(9_000))]);
    stage.recogniser.stream(0).await.drops();
    client.event("provider_event").await;
    client.sends(1_600, true);
    let recovered = client.event("provider_event").await;
    assert_eq!(recovered["message"], "2000 ms of audio had to be dropped");
    sleep(ms(100)).await;
    let second = stage.recogniser.stream(1).await;
    assert_eq!(second.heard().len(), 1_500);
    second.says(said("All of it."));
    second.says(vivavoce_seams::SttEvent::EndOfSpeech);
    sleep(ms(100)).await;
    second.drops();
    client.event("provider_event").await;
    let recovered = client.event("provider_event").await;
    assert_eq!(
        recovered["message"],
        "everything that was said meanwhile is transcribed"
    );
}

#[actix::test]
async fn a_recogniser_that_fails_for_ever_is_given_up_once_and_the_session_still_speaks() {
    let stage = Stage::new();
    let client = stage.configured().await;
    stage
        .recogniser
        .opens([Opening::Fails(ErrorKind::Unavailable); 10]);
    stage.recogniser.stream(0).await.drops();
    client.speaks(Duration::from_secs(40)).await;
    let states = client.events_of("provider_event");
    let states: Vec<_> = states.iter().map(|event| &event["state"]).collect();
    assert_eq!(states, ["reconnecting", "failed"]);
    let errors = client.events_of("error");
    assert_eq!(
        (errors.len(), &errors[0]["code"]),
        (1, &json!("stt_failed"))
    );
    client.send(&speak("Speaks"));
    client.event("tts_playback_complete").await;
    client.send(&config(json!({})));
    client.event("ready").await;
    let stream = stage.recogniser.stream(1).await;
    let sent = client.speaks(ms(500)).await;
    let heard = stream.heard();
    assert_eq!(heard[heard.len() - sent.len()..], sent);
}

#[actix::test]
async fn a_recogniser_that_panics_is_replaced() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let mut sent = client.speaks(ms(300)).await;
    stage.recogniser.opens([Opening::Panics]);
    stage.recogniser.stream(0).await.panics();
    sent.extend(client.speaks(ms(1_000)).await);
    let second = stage.recogniser.stream(1).await;
    assert_eq!(second.heard(), sent);
    let states = client.events_of("provider_event");
    let states: Vec<_> = states.iter().map(|event| &event["state"]).collect();
    assert_eq!(states, ["reconnecting", "recovered"]);
    client.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn a_synthesiser_that_panics_is_asked_again() {
    let stage = Stage::new();
    stage.synthesiser.says([Way::Panics]);
    let client = stage.configured().await;
    client.send(&speak("Hello"));
    assert_eq!(
        client.event("tts_playback_complete").await["duration_ms"],
        200
    );
    let states = client.events_of("provider_event");
    let states: Vec<_> = states.iter().map(|event| &event["state"]).collect();
    assert_eq!(states, ["reconnecting", "recovered"]);
}

#[actix::test]
async fn a_synthesiser_that_ends_is_made_anew_and_given_up_after_three_times() {
    let stage = Stage::new();
    let client = stage.configured().await;
    for _ in 0..3 {
        stage.synthesiser.says([Way::TakesItsCallerAlong]);
        client.send(&speak("Hello"));
        let failed = client.event("error").await;
        assert_eq!(
            (&failed["code"], &failed["id"]),
            (&json!("tts_failed"), &json!("Hello"))
        );
        client.send(&speak("Next"));
        assert_eq!(client.event("tts_playback_complete").await["id"], "Next");
    }
    stage.synthesiser.says([Way::TakesItsCallerAlong]);
    client.send(&speak("Hello"));
    // It is given up on, and what it was saying fails.
    assert_eq!(client.event("provider_event").await["state"], "failed");
    let failed = client.event("error").await;
    assert_eq!(
        (&failed["code"], &failed["id"]),
        (&json!("tts_failed"), &Value::Null)
    );
    assert_eq!(client.event("error").await["id"], "Hello");
    client.looks_again();
    client.send(&speak("Unheard"));
    sleep(Duration::from_secs(10)).await;
    let last = client.events().pop().unwrap();
    assert_eq!(
        (&last["type"], &last["code"]),
        (&json!("error"), &json!("tts_failed"))
    );
    assert_eq!(client.events_of("tts_interrupted").len(), 0);
    client.send(&config(json!({})));
    sleep(ms(10)).await;
    client.send(&speak("Heard again"));
    while client.event("tts_playback_complete").await["id"] != "Heard again" {}
}

#[actix::test]
async fn a_panic_in_the_way_in_ends_its_session_and_no_other() {
    // What fits is heard as it is read; what is long, in a future of the session.
    tokio::time::pause();
    for samples in [320, 16_000] {
        let stage = Stage::in_paused_time(LEAD);
        let (one, other) = (stage.configured().await, stage.connect());
        other.send(&config(json!({"stream_id": "other"})));
        other.event("ready").await;
        one.sound(&vec![POISON; samples]);
        in_time(async {
            while stage.names().await.len() > 1 {
                sleep(ms(100)).await;
            }
        })
        .await;
        let sent = other.speaks(ms(200)).await;
        assert_eq!(stage.recogniser.stream(1).await.heard(), sent);
        other.closes();
        stage.is_empty().await;
    }
}
