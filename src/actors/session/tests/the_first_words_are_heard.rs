//! "The first words are lost: the caller's opening, or the greeting."

use super::synthesiser::ramp;
use super::*;

#[actix::test]
async fn a_slow_recogniser_hears_every_sample_from_the_first_byte_behind_config() {
    let stage = Stage::new();
    stage.recogniser.opens([Opening::Takes(ms(7_500))]);
    let client = stage.connect();
    client.send(&config(json!({})));
    let mut sent = client.sends(100, true);
    sent.extend(client.speaks(Duration::from_secs(6)).await);
    client.event("ready").await;
    sent.extend(client.speaks(Duration::from_secs(1)).await);
    let stream = stage.recogniser.stream(0).await;
    sleep(ms(10)).await;
    assert_eq!(stream.heard(), sent);
}

#[actix::test]
async fn of_sound_that_waits_too_long_the_latest_ten_seconds_are_heard() {
    let stage = Stage::new();
    stage.recogniser.opens([Opening::Takes(ms(9_900))]);
    let client = stage.connect();
    client.send(&config(json!({})));
    let sent = client.sends(600, true);
    client.event("ready").await;
    let stream = stage.recogniser.stream(0).await;
    sleep(ms(10)).await;
    assert_eq!(stream.heard(), sent[100..]);
}

#[actix::test]
async fn a_greeting_that_is_sent_with_the_config_is_heard_from_its_first_sample() {
    let stage = Stage::new();
    stage.recogniser.opens([Opening::Takes(ms(500))]);
    let client = stage.connect();
    client.send(&config(json!({})));
    client.send(&speak("Good morning"));
    client.event("tts_playback_complete").await;
    assert_eq!(
        client.kinds(),
        ["ready", "tts_started", "tts_playback_complete"]
    );
    assert_eq!(client.heard(), ramp(0, 480 * 24));
}
