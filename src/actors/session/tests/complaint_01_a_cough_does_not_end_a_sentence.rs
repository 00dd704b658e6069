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
