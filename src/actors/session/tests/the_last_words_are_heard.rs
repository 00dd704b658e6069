//! "The last words are cut at hang-up."

use super::*;

#[actix::test]
async fn a_session_that_the_server_ends_tells_its_last_words_first() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.send(&speak("This is cut by the end of the session."));
    let sent = client.speaks(ms(900)).await;
    stream.says(partial("last"));
    stream.ends_with(said("Last words."));
    stage.end("s").await;
    assert_eq!(client.closed().await, 1000);
    assert_eq!(stream.heard(), sent);
    let results = client.events_of("stt_result");
    let finals: Vec<_> = results.iter().filter(|r| r["is_final"] == true).collect();
    assert_eq!(finals[0]["transcript"], "Last words.");
    let last = finals.last().unwrap();
    assert_eq!(last["is_speech_final"], true);
    assert_eq!(last["turn_transcript"], "Last words.");
    let voice = client.events_of("vad_event");
    assert_eq!(voice.last().unwrap()["reason"], "session_end");
    assert_eq!(client.events_of("tts_interrupted").len(), 1);
    stage.is_empty().await;
}

#[actix::test]
async fn a_recogniser_that_says_nothing_more_does_not_hold_up_the_end() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(500)).await;
    stream.says(said("Before."));
    stream.takes(false);
    client.sends(100, true);
    let begun = client.now();
    stage.end("s").await;
    assert_eq!(client.closed().await, 1000);
    assert!(client.now() - begun <= Duration::from_secs(3));
    stream.takes(true);
    stage.is_empty().await;
}

#[actix::test]
async fn a_long_message_is_heard_to_its_end_though_the_session_ends_behind_it() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    let long: Vec<i16> = (1..=200).flat_map(|number| [number; 320]).collect();
    client.sound(&long);
    // The message has been read and waits to be decoded.
    tokio::task::yield_now().await;
    stage.end("s").await;
    assert_eq!(stream.heard(), (1..=200).collect::<Vec<_>>());
}

#[actix::test]
async fn the_server_s_end_is_the_end_of_its_sessions() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(300)).await;
    stream.ends_with(said("Bye."));
    stage.services.closing.cancel();
    assert_eq!(client.event("stt_result").await["transcript"], "Bye.");
    assert_eq!(client.closed().await, 1001);
    stage.is_empty().await;
}
