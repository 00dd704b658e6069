//! A model is asked in the first pause whether the speaker has finished; whatever it does, silence decides in the end.

use super::turn_model::Says;
use super::*;
use vivavoce_seams::{NoAnswer, SttEvent, Transcript};

/// The texts of the turns that have ended, and why they have.
fn turns(client: &Client) -> Vec<(String, String)> {
    let results = client.events_of("stt_result");
    let texts = results.iter().filter(|r| r["is_speech_final"] == true);
    let texts = texts.map(|r| r["turn_transcript"].as_str().unwrap().to_owned());
    texts.zip(reasons(client)).collect()
}

fn reasons(client: &Client) -> Vec<String> {
    let voice = client.events_of("vad_event");
    let ends = voice.iter().filter(|v| v["event"] == "turn_end");
    ends.map(|v| v["reason"].as_str().unwrap().to_owned())
        .collect()
}

fn ended(text: &str, reason: &str) -> (String, String) {
    (text.to_owned(), reason.to_owned())
}

const FINISHED: Says = Says::After(Duration::from_millis(60), 0.9);
const UNFINISHED: Says = Says::After(Duration::from_millis(60), 0.1);

#[actix::test]
async fn a_finished_sentence_ends_its_turn_early_and_asks_for_its_final() {
    let stage = Stage::new();
    stage.model.says([FINISHED, FINISHED]);
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    // The final is there already.
    client.speaks(ms(600)).await;
    stream.says(said("One."));
    client.is_silent(ms(160)).await;
    assert_eq!(turns(&client), []);
    client.is_silent(ms(160)).await;
    assert_eq!(turns(&client), [ended("One.", "model")]);
    assert_eq!(stream.finalizes(), 0);
    client.is_silent(ms(1_000)).await;
    // It has to be asked for.
    client.speaks(ms(600)).await;
    stream.says(partial("two"));
    client.is_silent(ms(320)).await;
    assert_eq!((turns(&client).len(), stream.finalizes()), (1, 1));
    stream.says(said("Two."));
    client.is_silent(ms(3_000)).await;
    assert_eq!(
        turns(&client),
        [ended("One.", "model"), ended("Two.", "model")]
    );
}

#[actix::test]
async fn the_model_hears_the_turn_and_a_little_before_it_and_no_turn_before() {
    let stage = Stage::new();
    stage.model.says([FINISHED, UNFINISHED, FINISHED]);
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.is_silent(ms(2_000)).await;
    client.speaks(ms(600)).await;
    stream.says(said("One."));
    client.is_silent(ms(2_000)).await;
    client.speaks(ms(400)).await;
    client.is_silent(ms(400)).await;
    client.speaks(ms(12_000)).await;
    stream.says(said("Two."));
    client.is_silent(ms(1_000)).await;
    let asked = stage.model.asked();
    let around = |(all, loud): (usize, usize), expected: (usize, usize)| {
        all.abs_diff(expected.0) < 40 && loud.abs_diff(expected.1) < 40
    };
    assert!(around(asked[0], (1_300, 600)), "{asked:?}");
    assert!(around(asked[1], (1_100, 400)), "{asked:?}");
    assert!(around(asked[2], (8_000, 7_800)), "{asked:?}");
    assert_eq!(asked.len(), 3);
}

#[actix::test]
async fn an_unfinished_sentence_waits_longer_than_silence_but_not_for_ever() {
    let stage = Stage::new();
    stage.model.says([UNFINISHED, FINISHED, UNFINISHED]);
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(600)).await;
    stream.says(said("I would like"));
    client.is_silent(ms(1_500)).await;
    assert_eq!(turns(&client), []);
    client.speaks(ms(600)).await;
    stream.says(said("an apple."));
    client.is_silent(ms(400)).await;
    let first = ended("I would like an apple.", "model");
    assert_eq!(turns(&client), std::slice::from_ref(&first));
    client.is_silent(ms(1_000)).await;
    client.speaks(ms(600)).await;
    stream.says(said("And"));
    client.is_silent(ms(3_000)).await;
    assert_eq!(turns(&client), [first, ended("And", "timeout")]);
}

#[actix::test]
async fn without_an_answer_silence_decides() {
    tokio::time::pause();
    for says in [
        Says::After(Duration::from_secs(1), 0.1),
        Says::Fails(NoAnswer::Busy),
        Says::Fails(NoAnswer::Failed("dead".to_owned())),
        Says::Nothing,
    ] {
        let stage = Stage::in_paused_time(LEAD);
        stage.model.says([says.clone()]);
        let client = stage.configured().await;
        let stream = stage.recogniser.stream(0).await;
        client.speaks(ms(600)).await;
        stream.says(said("One."));
        client.is_silent(ms(3_000)).await;
        assert_eq!(turns(&client), [ended("One.", "silence")], "{says:?}");
    }
}

#[actix::test]
async fn speech_that_goes_on_takes_back_what_the_model_has_said() {
    let stage = Stage::new();
    // The first answer comes when speech has gone on already, the second before its final.
    stage
        .model
        .says([Says::After(ms(240), 0.9), FINISHED, FINISHED]);
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(600)).await;
    stream.says(partial("one"));
    client.is_silent(ms(260)).await;
    client.speaks(ms(600)).await;
    client.is_silent(ms(340)).await;
    client.speaks(ms(600)).await;
    stream.says(said("One and two"));
    client.speaks(ms(100)).await;
    assert_eq!(turns(&client), []);
    stream.says(said("and three."));
    client.is_silent(ms(1_000)).await;
    assert_eq!(turns(&client), [ended("One and two and three.", "model")]);
}

#[actix::test]
async fn by_default_the_provider_s_end_of_speech_wins() {
    let stage = Stage::new();
    stage.model.says([UNFINISHED]);
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(600)).await;
    stream.says(said("One."));
    client.is_silent(ms(300)).await;
    stream.says(SttEvent::EndOfSpeech);
    client.is_silent(ms(40)).await;
    assert_eq!(turns(&client), [ended("One.", "provider")]);
}

#[actix::test]
async fn a_named_model_comes_before_the_provider_s_end_of_speech() {
    tokio::time::pause();
    let named = json!({"vad": {"turn_model": "smart-turn"}});
    // The flag comes before or after the answer, which contradicts it: silence_ms passes first.
    for flag_after in [100, 300] {
        let stage = Stage::in_paused_time(LEAD);
        stage.model.says([UNFINISHED, UNFINISHED]);
        let client = stage.connect();
        client.send(&config(named.clone()));
        client.event("ready").await;
        let stream = stage.recogniser.stream(0).await;
        client.speaks(ms(600)).await;
        stream.says(said("One."));
        client.is_silent(ms(flag_after)).await;
        stream.says(SttEvent::EndOfSpeech);
        client.is_silent(ms(440 - flag_after)).await;
        assert_eq!(turns(&client), [], "{flag_after}");
        client.is_silent(ms(200)).await;
        assert_eq!(turns(&client), [ended("One.", "provider")], "{flag_after}");
        // Whoever goes on has not finished.
        client.is_silent(ms(1_000)).await;
        client.speaks(ms(600)).await;
        stream.says(said("Two"));
        client.is_silent(ms(flag_after)).await;
        stream.says(SttEvent::EndOfSpeech);
        client.is_silent(ms(400 - flag_after)).await;
        client.speaks(ms(1_000)).await;
        assert_eq!(turns(&client).len(), 1, "{flag_after}");
    }
    // One that is confirmed, or not contradicted, ends it at once.
    for says in [FINISHED, Says::Fails(NoAnswer::Busy)] {
        let stage = Stage::in_paused_time(LEAD);
        stage.model.says([says]);
        let client = stage.connect();
        client.send(&config(named.clone()));
        client.event("ready").await;
        let stream = stage.recogniser.stream(0).await;
        client.speaks(ms(600)).await;
        stream.says(said("One."));
        client.is_silent(ms(100)).await;
        stream.says(SttEvent::EndOfSpeech);
        client.is_silent(ms(220)).await;
        assert_eq!(turns(&client), [ended("One.", "provider")]);
    }
}

#[actix::test]
async fn a_config_can_leave_the_model_out_and_cannot_name_one_that_is_not_there() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&config(json!({"vad": {"turn_model": "silence"}})));
    client.event("ready").await;
    client.speaks(ms(600)).await;
    stage.recogniser.stream(0).await.says(said("One."));
    client.is_silent(ms(3_000)).await;
    assert_eq!(turns(&client), [ended("One.", "silence")]);
    assert_eq!(stage.model.asked(), []);

    let stage = Stage::without_model_in_paused_time();
    let client = stage.connect();
    client.send(&config(json!({"vad": {"turn_model": "smart-turn"}})));
    let refused = client.event("error").await;
    assert_eq!(refused["code"], "provider_unavailable");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("vad.turn_model"), "{message}");
    assert!(
        message.contains("vivavoce models fetch smart-turn"),
        "{message}"
    );
    for wrong in [
        json!({"turn_model": "other"}),
        json!({"turn_model": "smart-turn", "enabled": false}),
    ] {
        client.send(&config(json!({"vad": wrong})));
        let refused = client.event("error").await;
        assert_eq!(refused["code"], "invalid_message", "{wrong}");
    }
}

#[actix::test]
async fn a_cough_that_the_model_takes_for_an_end_is_a_turn_without_text() {
    let stage = Stage::new();
    stage.model.says([FINISHED]);
    let client = stage.configured().await;
    client.speaks(ms(200)).await;
    client.is_silent(ms(4_000)).await;
    assert_eq!(turns(&client), []);
    assert_eq!(reasons(&client), ["model"]);
}

#[actix::test]
async fn a_late_final_of_what_was_said_before_does_not_end_the_turn_without_its_last_words() {
    let stage = Stage::new();
    stage.model.says([UNFINISHED, FINISHED]);
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.speaks(ms(1_000)).await;
    client.is_silent(ms(600)).await;
    client.speaks(ms(1_000)).await;
    client.is_silent(ms(320)).await;
    assert_eq!(stream.finalizes(), 1);
    let placed = |text: &str, end: f64| {
        let word = vivavoce_seams::Word {
            word: text.to_owned(),
            start: end - 0.3,
            end,
            confidence: None,
            speaker: None,
        };
        SttEvent::Final(Transcript {
            text: text.to_owned(),
            words: vec![word],
            ..Transcript::default()
        })
    };
    stream.says(placed("Mine", 1.0));
    client.is_silent(ms(100)).await;
    assert_eq!(turns(&client), []);
    stream.says(placed("is Bob.", 2.6));
    client.is_silent(ms(100)).await;
    assert_eq!(turns(&client), [ended("Mine is Bob.", "model")]);
}

#[actix::test]
async fn the_turns_of_each_participant_of_a_room_are_heard_by_it() {
    let stage = Stage::new();
    stage.model.says([FINISHED]);
    let client = stage.connect();
    client.send(&config(
        json!({"rtc": {"room_name": "r", "stt_mode": "per_participant"}}),
    ));
    client.event("ready").await;
    let link = stage.rooms.link().1;
    link.joins("ann");
    let mut ann = link.publishes("ann");
    ann.speaks(ms(600)).await;
    let stream = stage.recogniser.stream(0).await;
    stream.says(said("One."));
    ann.is_silent(ms(360)).await;
    assert_eq!(turns(&client), [ended("One.", "model")]);
    let ends = client.events_of("vad_event");
    assert_eq!(ends.last().unwrap()["identity"], "ann");
    assert_eq!(stage.model.asked().len(), 1);
}
