//! "It answers before the user has finished, or never."

use super::*;
use vivavoce_seams::{FinalDelay, SttEvent};

/// The texts of the turns that have ended, and why they have.
fn turns(client: &Client) -> Vec<(String, String)> {
    let results = client.events_of("stt_result");
    let texts = results.iter().filter(|r| r["is_speech_final"] == true);
    let texts = texts.map(|r| r["turn_transcript"].as_str().unwrap().to_owned());
    let voice = client.events_of("vad_event");
    let ends = voice.iter().filter(|v| v["event"] == "turn_end");
    let reasons = ends.map(|v| v["reason"].as_str().unwrap().to_owned());
    texts.zip(reasons).collect()
}

fn ended(text: &str, reason: &str) -> (String, String) {
    (text.to_owned(), reason.to_owned())
}

#[actix::test]
async fn a_turn_ends_once_whatever_comes_first() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    let mut expected = Vec::new();

    // The final is there before the pause has lasted.
    client.speaks(ms(600)).await;
    stream.says(partial("one"));
    client.is_silent(ms(100)).await;
    stream.says(said("One."));
    client.is_silent(ms(200)).await;
    assert_eq!(turns(&client), expected, "not in a short pause");
    client.is_silent(ms(3000)).await;
    expected.push(ended("One.", "silence"));
    assert_eq!(turns(&client), expected);

    // The final comes late, after a pause between.
    client.speaks(ms(400)).await;
    stream.says(partial("two"));
    client.is_silent(ms(300)).await;
    client.speaks(ms(400)).await;
    client.is_silent(ms(1000)).await;
    assert_eq!(turns(&client), expected, "not without its text");
    stream.says(said("Two and a half."));
    client.is_silent(ms(3000)).await;
    expected.push(ended("Two and a half.", "silence"));
    assert_eq!(turns(&client), expected);

    // The provider's own flag wins.
    client.speaks(ms(600)).await;
    stream.says(said("Three."));
    stream.says(SttEvent::EndOfSpeech);
    client.is_silent(ms(3000)).await;
    expected.push(ended("Three.", "provider"));
    assert_eq!(turns(&client), expected);
}

#[actix::test]
async fn a_turn_ends_though_the_client_stops_sending_in_its_middle() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(600)).await;
    stream.says(said("Half a sen"));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(turns(&client), [ended("Half a sen", "timeout")]);
    assert!(stream.finalizes() <= 1);
}

#[actix::test]
async fn a_turn_ends_though_a_config_has_come_in_its_middle() {
    tokio::time::pause();
    for change in [
        json!({"vad": {"silence_ms": 700}}),
        json!({"stt_config": {"sample_rate": 8000}}),
    ] {
        let stage = Stage::in_paused_time(LEAD);
        let client = stage.configured().await;
        let stream = stage.recogniser.stream(0).await;
        client.speaks(ms(600)).await;
        stream.says(said("Before."));
        client.send(&config(change.clone()));
        if change["stt_config"].is_object() {
            client.sends_at(8_000);
        }
        client.event("ready").await;
        client.is_silent(Duration::from_secs(8)).await;
        assert_eq!(turns(&client), [ended("Before.", "timeout")], "{change}");
    }
}

/// As measured of the fastest and of the slowest vendor.
const FAST: FinalDelay = FinalDelay::of_ms(247, 298);
const SLOW: FinalDelay = FinalDelay::of_ms(1_016, 1_345);

#[actix::test]
async fn a_final_is_asked_for_as_soon_as_it_is_late_for_its_recogniser() {
    tokio::time::pause();
    for (delay, in_time, late) in [(FAST, 400, 200), (SLOW, 1_700, 200)] {
        let stage = Stage::in_paused_time(LEAD);
        stage.recogniser.finals_take(delay);
        let client = stage.configured().await;
        let stream = stage.recogniser.stream(0).await;
        client.speaks(ms(600)).await;
        stream.says(partial("one"));
        client.is_silent(ms(in_time)).await;
        assert_eq!(stream.finalizes(), 0, "{delay:?}");
        client.is_silent(ms(late)).await;
        assert_eq!(stream.finalizes(), 1, "{delay:?}");
        stream.says(said("One."));
        client.is_silent(ms(100)).await;
        assert_eq!(turns(&client), [ended("One.", "timeout")]);
    }
}

#[actix::test]
async fn a_slow_recogniser_s_final_belongs_to_its_turn_however_short_the_time_out_is() {
    let stage = Stage::new();
    stage.recogniser.finals_take(SLOW);
    let client = stage.connect();
    client.send(&config(json!({"vad": {"speech_final_timeout_ms": 600}})));
    client.event("ready").await;
    let stream = stage.recogniser.stream(0).await;
    for words in ["One.", "Two."] {
        client.speaks(ms(600)).await;
        stream.says(partial(words));
        client.is_silent(ms(1_340)).await;
        stream.says(said(words));
        client.is_silent(ms(3_000)).await;
    }
    let ends = turns(&client);
    assert_eq!(ends, [ended("One.", "timeout"), ended("Two.", "timeout")]);
}

#[actix::test]
async fn a_turn_whose_final_never_comes_ends_when_it_is_hopeless() {
    tokio::time::pause();
    for (delay, lasts) in [(FAST, 1_300), (SLOW, 4_200)] {
        let stage = Stage::in_paused_time(LEAD);
        stage.recogniser.finals_take(delay);
        let client = stage.configured().await;
        let stream = stage.recogniser.stream(0).await;
        client.speaks(ms(600)).await;
        stream.says(said("Half of"));
        stream.says(partial("it"));
        client.is_silent(ms(lasts)).await;
        assert_eq!(turns(&client), [ended("Half of", "timeout")], "{delay:?}");
    }
}
