//! "Mhm" over the server's speech neither cuts it nor is an answer; nor is what a recogniser is not sure of.

use super::*;
use vivavoce_seams::{SttEvent, Transcript};

const LONG: &str = "A sentence that is so long that somebody may say something in its middle.";

fn finals(client: &Client) -> Vec<Value> {
    let mut results = client.events_of("stt_result");
    results.retain(|result| result["is_final"] == true);
    results
}

async fn speaking(stage: &Stage, fields: Value) -> Client {
    let client = stage.connect();
    client.send(&config(fields));
    client.event("ready").await;
    client.send(&speak(LONG));
    client.is_silent(ms(400)).await;
    client
}

#[actix::test]
async fn a_backchannel_over_speech_is_told_and_ends_no_turn() {
    let stage = Stage::new();
    let client = speaking(&stage, json!({})).await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(300)).await;
    stream.says(partial("mh"));
    client.is_silent(ms(300)).await;
    stream.says(said("Mhm."));
    client.is_silent(ms(4_000)).await;
    let finals = finals(&client);
    assert_eq!(finals.len(), 1, "{finals:?}");
    assert_eq!(finals[0]["transcript"], "Mhm.");
    assert_eq!(finals[0]["backchannel"], true);
    assert_eq!(finals[0]["is_speech_final"], false);
    assert_eq!(client.events_of("tts_interrupted"), [json!(null); 0]);
}

#[actix::test]
async fn the_turn_after_a_backchannel_has_only_its_own_words() {
    let stage = Stage::new();
    let client = speaking(&stage, json!({})).await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(300)).await;
    client.is_silent(ms(300)).await;
    stream.says(said("Okay."));
    client.is_silent(ms(300)).await;
    client.speaks(ms(800)).await;
    stream.says(said("Stop that."));
    client.is_silent(ms(2_000)).await;
    let finals = finals(&client);
    assert_eq!(finals[0]["backchannel"], true);
    assert_eq!(finals[1].get("backchannel"), None);
    let turn = finals.last().unwrap();
    assert_eq!(turn["turn_transcript"], "Stop that.");
}

#[actix::test]
async fn the_same_word_is_an_answer_when_the_server_is_silent() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(300)).await;
    stream.says(said("Okay."));
    client.is_silent(ms(2_000)).await;
    let finals = finals(&client);
    assert_eq!(finals.last().unwrap()["turn_transcript"], "Okay.");
    assert!(finals.iter().all(|told| told.get("backchannel").is_none()));
}

#[actix::test]
async fn what_is_loud_or_long_is_no_backchannel() {
    let stage = Stage::new();
    let client = speaking(&stage, json!({})).await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(1_400)).await;
    stream.says(said("Right."));
    client.is_silent(ms(2_000)).await;
    assert!(finals(&client)[0].get("backchannel").is_none());
}

fn sure(text: &str, confidence: Option<f32>) -> SttEvent {
    SttEvent::Final(Transcript {
        text: text.to_owned(),
        confidence,
        ..Transcript::default()
    })
}

#[actix::test]
async fn a_final_below_the_confidence_asked_for_is_dropped_and_taken_back() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&config(json!({"stt_config": {"min_confidence": 0.5}})));
    client.event("ready").await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(600)).await;
    stream.says(partial("elite"));
    stream.says(sure("Elite you.", Some(0.4)));
    client.is_silent(ms(3_000)).await;
    assert_eq!(finals(&client), [json!(null); 0]);
    let results = client.events_of("stt_result");
    assert_eq!(results.last().unwrap()["transcript"], "");
    // What is sure enough is told, and what says nothing about it.
    for (text, confidence) in [("One.", Some(0.5)), ("Two.", None)] {
        client.speaks(ms(600)).await;
        stream.says(sure(text, confidence));
        client.is_silent(ms(3_000)).await;
        assert_eq!(finals(&client).last().unwrap()["turn_transcript"], text);
    }
    client.send(&config(json!({"stt_config": {"min_confidence": 1.5}})));
    let refused = client.event("error").await["message"].to_string();
    assert!(refused.contains("stt_config.min_confidence"), "{refused}");
}
