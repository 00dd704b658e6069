//! "The transcript contains words that nobody heard."

use super::synthesiser::PER_CHARACTER;
use super::*;
use vivavoce_seams::ErrorKind;

static TEXT: &str = "Hello there, dear old world";

fn words() -> Vec<(&'static str, Duration)> {
    let begin = |word: &str| word.as_ptr() as usize - TEXT.as_ptr() as usize;
    let words = TEXT.split(' ');
    words
        .map(|word| (word, PER_CHARACTER * begin(word) as u32))
        .collect()
}

#[actix::test]
async fn each_word_is_told_when_it_begins_to_be_heard() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&config(json!({"tts_config": {"progress": true}})));
    client.event("ready").await;
    client.send(&speak(TEXT));
    let (started, _) = client.event_at("tts_started").await;
    for (index, (word, start)) in words().into_iter().enumerate() {
        let (at, told) = client.event_at("tts_progress").await;
        let expected = json!({
            "type": "tts_progress", "id": TEXT, "word_index": index, "text": word,
            "played_ms": start.as_millis() as u64, "estimated": false,
        });
        assert_eq!(told, expected);
        let late = (at - started).saturating_sub(start);
        assert!(at - started >= start && late <= ms(2), "{word} {late:?}");
    }
    client.event("tts_playback_complete").await;
    assert_eq!(client.events_of("tts_progress").len(), words().len());
}

#[actix::test]
async fn what_was_cut_off_has_exactly_the_words_that_were_heard_whole() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&config(json!({"tts_config": {"progress": true}})));
    client.event("ready").await;
    for cut_after in (0..27).map(|n| ms(n * 40 + 13)) {
        let told = client.events_of("tts_progress").len();
        client.send(&speak(TEXT));
        client.event("tts_started").await;
        sleep(cut_after).await;
        client.send(&json!({"type": "clear"}));
        let interrupted = client.event("tts_interrupted").await;
        let played = ms(interrupted["played_ms"].as_u64().unwrap());
        let begun = words().iter().filter(|(_, start)| *start <= played).count();
        let whole: Vec<_> = words()[..begun - 1].iter().map(|(word, _)| *word).collect();
        assert_eq!(interrupted["heard_text"], whole.join(" "), "{played:?}");
        client.is_silent(ms(500)).await;
        assert_eq!(client.events_of("tts_progress").len() - told, begun);
    }
}

#[actix::test]
async fn what_was_heard_is_told_in_the_clients_own_words() {
    let stage = Stage::new();
    let client = stage.connect();
    let pronunciations = json!([{"word": "SQL", "pronunciation": "sequel"}]);
    let says = json!({"progress": true, "pronunciations": pronunciations});
    client.send(&config(json!({"tts_config": says})));
    client.event("ready").await;
    client.send(&speak("Use SQL now, please"));
    client.event("tts_started").await;
    // "Use sequel now" has 14 characters.
    sleep(ms(14 * 40 - 70)).await;
    client.send(&json!({"type": "clear"}));
    assert_eq!(
        client.event("tts_interrupted").await["heard_text"],
        "Use SQL"
    );
    assert_eq!(stage.synthesiser.asked(), ["Use sequel now, please"]);
    let told = client.events_of("tts_progress");
    let told: Vec<_> = told
        .iter()
        .map(|event| event["text"].as_str().unwrap())
        .collect();
    assert_eq!(told, ["Use", "SQL", "now,"]);
}

#[actix::test]
async fn where_the_voice_tells_no_words_they_are_estimated_and_said_to_be() {
    let stage = Stage::new();
    stage.synthesiser.tells_no_words();
    let client = stage.connect();
    client.send(&config(json!({"tts_config": {"progress": true}})));
    client.event("ready").await;
    client.send(&speak(TEXT));
    client.event("tts_playback_complete").await;
    let told = client.events_of("tts_progress");
    let expected: Vec<_> = words().iter().map(|(word, _)| json!(word)).collect();
    let texts: Vec<_> = told.iter().map(|event| event["text"].clone()).collect();
    assert_eq!(texts, expected, "{told:#?}");
    assert!(told.iter().all(|event| event["estimated"] == true));
    // This voice needs as long for each letter: the estimate is right within a word.
    for (event, (word, start)) in told.iter().zip(words()) {
        let off = ms(event["played_ms"].as_u64().unwrap()).abs_diff(start);
        assert!(off <= ms(200), "{word} {off:?}");
    }
}

#[actix::test]
async fn the_usage_is_what_providers_have_spoken() {
    let stage = Stage::new();
    let client = stage.connect();
    let pronunciations = json!([{"word": "SQL", "pronunciation": "sequel"}]);
    client.send(&config(
        json!({"tts_config": {"pronunciations": pronunciations}}),
    ));
    client.event("ready").await;
    // The first attempt brings no audio.
    stage.synthesiser.says([Way::Fails(ErrorKind::Unavailable)]);
    client.send(&speak("Use SQL now"));
    client.event("tts_playback_complete").await;
    let slow = Way::Slow(Duration::from_secs(10), ms(100));
    stage.synthesiser.says([slow]);
    // Some of these are refused, and all others are cut before a provider has them.
    for _ in 0..100 {
        client.send(&speak(&"x".repeat(1_000)));
    }
    client.send(&json!({"type": "clear"}));
    client.event("error").await;
    client.closes();
    stage.is_empty().await;
    assert_eq!(stage.synthesiser.asked()[..2], ["Use sequel now"; 2]);
    assert_eq!(TTS_CHARACTERS.get(), "Use sequel now".len() as u64);
}
