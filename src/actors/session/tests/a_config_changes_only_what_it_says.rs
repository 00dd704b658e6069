//! "A second `config` orphaned the first one's provider sockets." A config is carried out as a whole or not at all; what
//! it does not change goes on, and sound is heard in the format that was announced before it.

use super::synthesiser::ramp;
use super::*;
use vivavoce_seams::ErrorKind;

#[actix::test]
async fn the_same_config_again_changes_nothing() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.send(&speak("This goes on."));
    let mut sent = client.speaks(ms(200)).await;
    client.send(&config(json!({})));
    sent.extend(client.speaks(ms(600)).await);
    assert_eq!(client.event("ready").await["stream_id"], "s");
    assert_eq!(
        client.event("tts_playback_complete").await["duration_ms"],
        520
    );
    assert_eq!(client.heard(), ramp(0, 520 * 24));
    assert_eq!(stage.recogniser.opened(), 1);
    assert_eq!(stage.recogniser.stream(0).await.heard(), sent);
}

#[actix::test]
async fn a_changed_voice_cuts_what_is_said_and_hearing_goes_on() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.send(&speak("This is cut in its middle."));
    let mut sent = client.speaks(ms(400)).await;
    client.send(&config(json!({"tts_config": {"sample_rate": 8000}})));
    client.send(&speak("Anew"));
    sent.extend(client.speaks(ms(800)).await);
    assert_eq!(stage.recogniser.stream(0).await.heard(), sent);
    let said = [
        "ready",
        "tts_started",
        "tts_interrupted",
        "ready",
        "tts_started",
        "tts_playback_complete",
    ];
    let mut kinds = client.kinds();
    kinds.retain(|kind| kind != "vad_event");
    assert_eq!(kinds, said);
    let heard = client.heard();
    assert_eq!((heard.len() - 8 * 160) % 480, 0, "whole chunks at 24 kHz");
    let anew = &heard[heard.len() - 8 * 160..];
    assert_eq!(anew, ramp(anew[0] as usize - 1, 8 * 160));
}

#[actix::test]
async fn every_sample_is_heard_in_the_format_that_it_has() {
    let stage = Stage::new();
    let client = stage.configured().await;
    stage
        .recogniser
        .opens([Opening::Takes(ms(700)), Opening::Takes(ms(300))]);
    let first = client.speaks(ms(300)).await;
    client.send(&config(json!({"stt_config": {"sample_rate": 8000}})));
    client.sends_at(8_000);
    let second = client.speaks(ms(200)).await;
    // The second is not carried out yet.
    client.send(&config(json!({"stt_config": {"sample_rate": 48_000}})));
    client.sends_at(48_000);
    let third = client.speaks(ms(1_500)).await;
    client.event("ready").await;
    client.event("ready").await;
    sleep(ms(50)).await;
    for (number, (rate, sent)) in [(16_000, first), (8_000, second), (48_000, third)]
        .into_iter()
        .enumerate()
    {
        let stream = stage.recogniser.stream(number).await;
        assert_eq!((stream.rate, stream.heard()), (rate, sent));
        assert_eq!(stream.is_over(), number < 2);
    }
}

#[actix::test]
async fn a_long_message_before_a_config_is_heard_to_its_end_by_the_former_recogniser() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let long: Vec<i16> = (1..=500).flat_map(|number| [number; 320]).collect();
    client.sound(&long);
    client.send(&config(json!({"stt_config": {"sample_rate": 8000}})));
    client.event("ready").await;
    sleep(ms(100)).await;
    let first = stage.recogniser.stream(0).await;
    assert_eq!(first.heard(), (1..=500).collect::<Vec<_>>());
    assert!(first.is_over());
}

#[actix::test]
async fn the_former_recogniser_s_last_final_is_told() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.speaks(ms(300)).await;
    stage
        .recogniser
        .stream(0)
        .await
        .ends_with(said("The end of it."));
    client.send(&config(json!({"stt_config": {"language": "de-DE"}})));
    assert_eq!(
        client.event("stt_result").await["transcript"],
        "The end of it."
    );
    assert_eq!(stage.recogniser.stream(1).await.language, "de-DE");
}

#[actix::test]
async fn a_config_that_fails_leaves_the_former_in_force() {
    let stage = Stage::new();
    let client = stage.configured().await;
    stage
        .recogniser
        .opens([Opening::Fails(ErrorKind::RateLimited { retry_after: None })]);
    client.send(&speak("This goes on."));
    client.send(&config(json!({"stt_config": {"language": "de-DE"}})));
    assert_eq!(client.event("error").await["code"], "provider_rate_limited");
    for (change, code) in [
        (
            json!({"stt_config": {"provider": "nobody"}}),
            "unsupported_provider",
        ),
        (
            json!({"tts_config": {"provider": "nobody"}}),
            "unsupported_provider",
        ),
        (
            json!({"stt_config": {"auth": {"api_key": "k"}}}),
            "invalid_provider_auth",
        ),
        (json!({"stream_id": "other"}), "invalid_message"),
        (json!({"recording": true}), "recording_unavailable"),
        (json!({"rtc": {"room_name": "r"}}), "invalid_message"),
    ] {
        client.send(&config(change));
        assert_eq!(client.event("error").await["code"], code);
    }
    let sent = client.speaks(ms(400)).await;
    let first = stage.recogniser.stream(0).await;
    assert_eq!(first.heard(), sent);
    first.says(said("Still here."));
    assert_eq!(
        client.event("stt_result").await["transcript"],
        "Still here."
    );
    assert_eq!(
        client.event("tts_playback_complete").await["duration_ms"],
        520
    );
    assert_eq!(stage.recogniser.opened(), 1);
    // It may be sent again.
    client.send(&config(json!({"stt_config": {"language": "de-DE"}})));
    client.event("ready").await;
}

#[actix::test]
async fn sound_behind_a_config_that_fails_is_heard_by_the_former_recogniser() {
    let stage = Stage::new();
    let client = stage.configured().await;
    stage.recogniser.opens([Opening::Never]);
    let mut sent = client.speaks(ms(300)).await;
    client.send(&config(json!({"stt_config": {"language": "de-DE"}})));
    sent.extend(client.speaks(ms(500)).await);
    assert_eq!(client.event("error").await["code"], "provider_timeout");
    sent.extend(client.speaks(ms(300)).await);
    assert_eq!(stage.recogniser.stream(0).await.heard(), sent);
}

#[actix::test]
async fn a_good_config_right_behind_a_bad_one_is_heard() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let bad = json!({"stt_config": {"language": "de-DE"}, "tts_config": {"provider": "nobody"}});
    client.send(&config(bad));
    client.send(&config(json!({})));
    let sent = client.speaks(ms(400)).await;
    assert_eq!(client.event("error").await["code"], "unsupported_provider");
    let streams = stage.recogniser.opened();
    let mut heard = Vec::new();
    for stream in 0..streams {
        heard.extend(stage.recogniser.stream(stream).await.heard());
    }
    assert_eq!(heard, sent);
    let last = stage.recogniser.stream(streams - 1).await;
    last.says(said("Heard."));
    assert_eq!(client.event("stt_result").await["transcript"], "Heard.");
}

#[actix::test]
async fn a_first_config_that_fails_frees_its_name_and_may_be_sent_again() {
    let stage = Stage::new();
    stage.recogniser.opens([Opening::Fails(ErrorKind::Auth)]);
    let (one, other) = (stage.connect(), stage.connect());
    one.send(&config(json!({})));
    assert_eq!(one.event("error").await["code"], "provider_auth");
    assert_eq!(stage.names().await, [""; 0]);
    other.send(&config(json!({})));
    other.event("ready").await;
    one.send(&config(json!({})));
    assert_eq!(one.event("error").await["code"], "stream_id_in_use");
    one.send(&config(json!({"stream_id": "t"})));
    one.event("ready").await;
    assert_eq!(stage.names().await, ["s", "t"]);
}

#[actix::test]
async fn commands_behind_a_config_wait_in_order() {
    let stage = Stage::new();
    stage
        .recogniser
        .opens([Opening::Takes(ms(500)), Opening::Takes(ms(500))]);
    let client = stage.connect();
    client.send(&config(json!({})));
    client.send(&speak("One"));
    client.send(&json!({"type": "clear"}));
    client.send(&speak("Two"));
    client.send(&config(json!({"stt_config": {"language": "fr-FR"}})));
    client.send(&speak("Three"));
    let mut kinds = Vec::new();
    while kinds.len() < 7 {
        sleep(ms(10)).await;
        kinds = client.kinds();
    }
    let expected = [
        "ready",
        "tts_interrupted",
        "tts_started",
        "tts_playback_complete",
        "ready",
        "tts_started",
        "tts_playback_complete",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(client.events_of("tts_interrupted")[0]["id"], "One");
}

#[actix::test]
async fn without_a_config_the_socket_closes_after_thirty_seconds() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&speak("too early"));
    assert_eq!(client.event("error").await["code"], "not_configured");
    client.sends(10, true);
    assert_eq!(client.event("error").await["code"], "not_configured");
    let (at, error) = client.event_at("error").await;
    assert_eq!(
        (&error["code"], &error["fatal"]),
        (&json!("config_timeout"), &json!(true))
    );
    assert_eq!(at.as_secs(), 30);
    assert_eq!(client.closed().await, 4408);
    stage.is_empty().await;
}
