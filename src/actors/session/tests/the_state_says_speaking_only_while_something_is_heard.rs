//! "The state says 'speaking' but nothing is heard; silence after an interruption."

use super::synthesiser::ramp;
use super::*;

#[actix::test]
async fn it_starts_with_its_first_sound_and_is_complete_when_that_was_played() {
    let stage = Stage::new();
    stage
        .synthesiser
        .says([Way::Slow(Duration::from_secs(3), ms(250))]);
    let client = stage.configured().await;
    let asked = client.now();
    client.send(&speak("Ten letters"));
    let (started, _) = client.event_at("tts_started").await;
    assert_eq!((started - asked).as_secs(), 3);
    let (complete, event) = client.event_at("tts_playback_complete").await;
    assert_eq!(event["duration_ms"], 440);
    let sound: Vec<_> = client
        .read()
        .into_iter()
        .filter_map(|(at, what)| matches!(what, What::Sound(_)).then_some(at))
        .collect();
    assert_eq!(sound[0], started);
    // The last of them came when the synthesiser had it, and was not complete before it was played.
    let last = *sound.last().unwrap();
    assert!(
        complete >= last + ms(20) && complete <= last + ms(72),
        "{complete:?} {last:?}"
    );
}

#[actix::test]
async fn after_an_interruption_the_next_sentence_is_heard_at_once() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.send(&speak("A sentence that will never come to its end."));
    client.event("tts_started").await;
    sleep(ms(500)).await;
    let cleared = client.now();
    client.send(&json!({"type": "clear"}));
    client.send(&speak("Next"));
    let (told, interrupted) = client.event_at("tts_interrupted").await;
    assert!(told - cleared <= ms(20));
    assert!((500..503).contains(&interrupted["played_ms"].as_u64().unwrap()));
    let (started, event) = client.event_at("tts_started").await;
    assert_eq!(event["id"], "Next");
    assert!(started - cleared <= ms(20));
    client.event("tts_playback_complete").await;
    let read = client.read();
    let sound = |read: &[(Duration, What)]| -> Vec<i16> {
        let sound = read.iter().filter_map(|(_, what)| match what {
            What::Sound(samples) => Some(samples.clone()),
            _ => None,
        });
        sound.flatten().collect()
    };
    let interruption = |(_, what): &(Duration, What)| matches!(what, What::Event(event) if event["type"] == "tts_interrupted");
    let (first, next) = read.split_at(read.iter().position(interruption).unwrap());
    let (first, next) = (sound(first), sound(next));
    assert_eq!(first, ramp(0, first.len()));
    assert_eq!(
        next,
        ramp(next[0] as usize - 1, 160 * 24),
        "all of it and nothing else"
    );
}

#[actix::test]
async fn a_protected_utterance_that_fails_leaves_nobody_deaf_or_mute() {
    let stage = Stage::new();
    stage.synthesiser.says([Way::FailsAfter(ms(300))]);
    let client = stage.configured().await;
    let protected =
        json!({"type": "speak", "text": "Protected", "id": "p", "allow_interruption": false});
    client.send(&protected);
    client.send(&speak("Behind it, and rather long"));
    client.event("tts_started").await;
    client.send(&json!({"type": "clear"}));
    let failed = client.event("error").await;
    assert_eq!(
        (&failed["code"], &failed["id"]),
        (&json!("provider_unavailable"), &json!("p"))
    );
    client.event("tts_interrupted").await;
    stage.recogniser.stream(0).await.says(said("Hello."));
    assert_eq!(client.event("stt_result").await["transcript"], "Hello.");
    client.send(&speak("Again"));
    client.event("tts_started").await;
    client.send(&json!({"type": "clear"}));
    assert_eq!(client.event("tts_interrupted").await["id"], "Again");
}

#[actix::test]
async fn protection_holds_against_clear_and_replace_until_its_last_sample_was_played() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.send(
        &json!({"type": "speak", "text": "Protected!", "id": "p", "allow_interruption": false}),
    );
    client.send(&speak("cleared"));
    client.event("tts_started").await;
    client.send(&json!({"type": "clear"}));
    client.send(&json!({"type": "speak", "text": "In place", "id": "r", "replace": true}));
    let complete = client.event("tts_playback_complete").await;
    assert_eq!(
        (&complete["id"], &complete["duration_ms"]),
        (&json!("p"), &json!(400))
    );
    assert_eq!(client.event("tts_interrupted").await["id"], "cleared");
    assert_eq!(client.event("tts_started").await["id"], "r");
    client.send(&json!({"type": "clear"}));
    assert_eq!(client.event("tts_interrupted").await["id"], "r");
}

#[actix::test]
async fn protected_speech_goes_on_when_what_was_before_it_is_cleared() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.send(&speak(&"a".repeat(100)));
    let protected = json!({
        "type": "speak", "text": "b".repeat(500), "allow_interruption": false, "id": "protected",
    });
    client.send(&protected);
    client.event("tts_started").await;
    // By then as much of it is there as may wait, and its synthesis waits for room.
    sleep(ms(1_000)).await;
    client.send(&json!({"type": "clear"}));
    client.event("tts_interrupted").await;
    let complete = client.event("tts_playback_complete").await;
    assert_eq!(complete["id"], "protected");
    assert_eq!(complete["duration_ms"], 20_000);
}
