//! "A cough or a 'mhm' kills the sentence that is being spoken."

use super::synthesiser::ramp;
use super::*;

#[actix::test]
async fn a_cough_is_no_speech_and_a_word_between_does_not_cut_what_is_said() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.send(&speak("A sentence of some length."));
    client.is_silent(ms(200)).await;
    client.speaks(ms(60)).await;
    client.is_silent(ms(400)).await;
    assert_eq!(client.events_of("vad_event"), [json!(null); 0]);
    client.speaks(ms(300)).await;
    client.is_silent(ms(800)).await;
    let complete = client.event("tts_playback_complete").await;
    assert_eq!(complete["duration_ms"], 1040);
    assert_eq!(client.heard(), ramp(0, 24 * 1040));
    assert_eq!(client.events_of("tts_interrupted"), [json!(null); 0]);
    let voice = client.events_of("vad_event");
    let voice: Vec<_> = voice.iter().map(|event| &event["event"]).collect();
    assert_eq!(voice, ["speech_start", "silence_detected"]);
}

/// A session in which speech over playback is a suspicion, and what it says at first.
async fn yielding(stage: &Stage, mode: &str) -> Client {
    let client = stage.connect();
    client.send(&config(json!({"vad": {"interruption": mode}})));
    client.event("ready").await;
    client
}

/// The decisions so far, each with its reason.
fn decisions(client: &Client) -> Vec<(String, String)> {
    let events = client.events_of("interruption");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let decision = |event: &Value| (text(&event["state"]), text(&event["reason"]));
    events.iter().map(decision).collect()
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).into()
}

const LONG: &str = "A sentence that is so long that somebody may cough in its middle.";
const LONG_MS: u64 = 40 * 65;

#[actix::test]
async fn speech_is_quieter_while_somebody_coughs_and_goes_on_whole() {
    let stage = Stage::new();
    let client = yielding(&stage, "duck").await;
    client.send(&speak(LONG));
    client.is_silent(ms(400)).await;
    client.speaks(ms(260)).await;
    client.is_silent(ms(800)).await;
    let complete = client.event("tts_playback_complete").await;
    assert_eq!(complete["duration_ms"], LONG_MS);
    let expected = pairs([("suspected", "speech"), ("resumed", "too_short")]);
    assert_eq!(decisions(&client), expected);
    let (heard, said) = (client.heard(), ramp(0, 24 * LONG_MS as usize));
    assert_eq!(heard.len(), said.len());
    let changed: Vec<_> = (0..said.len())
        .filter(|&at| heard[at] != said[at])
        .collect();
    let (first, last) = (changed[0], changed[changed.len() - 1]);
    let yielded = (last - first) / 24;
    assert!((500..760).contains(&yielded), "{yielded} ms");
    let middle = usize::midpoint(first, last);
    let gain = f64::from(heard[middle]) / f64::from(said[middle]);
    assert!((20.0 * gain.log10() + 15.0).abs() < 0.1, "{gain}");
}

#[actix::test]
async fn speech_that_waits_goes_on_with_the_next_sample() {
    let stage = Stage::new();
    let client = yielding(&stage, "pause").await;
    client.send(&speak(LONG));
    client.is_silent(ms(400)).await;
    client.speaks(ms(260)).await;
    client.is_silent(ms(800)).await;
    let (suspected, _) = client.event_at("interruption").await;
    let (resumed, event) = client.event_at("interruption").await;
    assert_eq!(event["reason"], "too_short");
    let decided = resumed - suspected;
    assert!(decided >= ms(600) && decided <= ms(602), "{decided:?}");
    let (complete, event) = client.event_at("tts_playback_complete").await;
    assert_eq!(event["duration_ms"], LONG_MS);
    assert!(complete > resumed);
    let read = client.read();
    let waits = |at: &Duration| *at > suspected && *at < resumed;
    let sounds = read
        .iter()
        .filter(|(at, what)| waits(at) && matches!(what, What::Sound(_)));
    assert_eq!(sounds.count(), 0);
    let (heard, said) = (client.heard(), ramp(0, 24 * LONG_MS as usize));
    assert_eq!(heard.len(), said.len());
    let changed: Vec<_> = (0..said.len())
        .filter(|&at| heard[at] != said[at])
        .collect();
    let faded = changed[changed.len() - 1] - changed[0];
    assert!(faded <= 40 * 24, "it fades in, {faded} samples");
}

#[actix::test]
async fn a_backchannel_resumes_and_words_cut() {
    let stage = Stage::new();
    let client = yielding(&stage, "duck").await;
    let stream = stage.recogniser.stream(0).await;
    client.send(&speak(LONG));
    client.is_silent(ms(200)).await;
    client.speaks(ms(200)).await;
    stream.says(partial("Mhm"));
    client.is_silent(ms(200)).await;
    let resumed = pairs([("suspected", "speech"), ("resumed", "backchannel")]);
    assert_eq!(decisions(&client), resumed);
    stream.says(said("Mhm."));
    client.is_silent(ms(600)).await;
    client.speaks(ms(300)).await;
    stream.says(partial("wait a minute"));
    let interrupted = client.event("tts_interrupted").await;
    let told = decisions(&client);
    assert_eq!(
        told[2..],
        pairs([("suspected", "speech"), ("confirmed", "words")])
    );
    let heard = interrupted["heard_text"].as_str().unwrap();
    assert!(LONG.starts_with(heard) && !heard.is_empty());
    // What is said next is as loud as ever.
    let before = client.heard().len();
    client.send(&speak("Yes?"));
    client.event("tts_playback_complete").await;
    let next = &client.heard()[before..];
    let said = ramp(next[0] as usize - 1, 160 * 24);
    assert_eq!(next, said);
}

#[actix::test]
async fn protected_speech_does_not_yield() {
    let stage = Stage::new();
    let client = yielding(&stage, "pause").await;
    client.send(&json!({"type": "speak", "text": LONG, "allow_interruption": false}));
    client.is_silent(ms(200)).await;
    client.speaks(ms(900)).await;
    stage.recogniser.stream(0).await.says(said("Stop it now."));
    client.event("tts_playback_complete").await;
    assert_eq!(decisions(&client), []);
    assert_eq!(client.heard(), ramp(0, 24 * LONG_MS as usize));
}

#[actix::test]
async fn what_the_client_clears_is_not_decided_and_what_follows_does_not_yield() {
    let stage = Stage::new();
    let client = yielding(&stage, "pause").await;
    client.send(&speak(LONG));
    client.is_silent(ms(200)).await;
    client.speaks(ms(300)).await;
    client.send(&json!({"type": "clear"}));
    client.event("tts_interrupted").await;
    let expected = pairs([("suspected", "speech"), ("resumed", "cleared")]);
    assert_eq!(decisions(&client), expected);
    client.send(&speak("Next"));
    let (started, _) = client.event_at("tts_started").await;
    let (complete, _) = client.event_at("tts_playback_complete").await;
    assert!(complete - started <= ms(162));
}
