//! "When a provider fails to open, or dies and cannot be reached again, the next one takes over: from what no final has
//! covered (hearing), at the next unspoken word or utterance (speaking)."

use super::*;
use vivavoce_seams::ErrorKind;

fn with_spares() -> Value {
    config(json!({
        "stt_config": {"fallback": [{"provider": "spare"}]},
        "tts_config": {"fallback": [{"provider": "spare", "model": ""}]},
    }))
}

async fn ready(stage: &Stage) -> Client {
    let client = stage.connect();
    client.send(&with_spares());
    client.event("ready").await;
    client
}

fn events(client: &Client) -> Vec<(String, String)> {
    let events = client.events_of("provider_event");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let events = events.iter();
    events
        .map(|event| (text(&event["state"]), text(&event["provider"])))
        .collect()
}

fn switched(to: &str) -> (String, String) {
    ("switched".to_owned(), to.to_owned())
}

#[actix::test]
async fn a_recogniser_that_does_not_open_is_replaced_before_the_session_is_ready() {
    let stage = Stage::new();
    stage.recogniser.opens([Opening::Fails(ErrorKind::Auth)]);
    let client = stage.connect();
    client.send(&with_spares());
    let sent = client.sends(5, true);
    client.event("ready").await;
    sleep(ms(10)).await;
    assert_eq!(stage.spare_recogniser.stream(0).await.heard(), sent);
    assert_eq!(events(&client), [switched("spare")]);
    assert_eq!(client.events_of("error").len(), 0);
}

#[actix::test]
async fn one_that_never_answers_is_not_waited_for_longer_than_three_seconds() {
    let stage = Stage::new();
    stage.recogniser.opens([Opening::Never]);
    let client = stage.connect();
    client.send(&with_spares());
    let (at, _) = client.event_at("ready").await;
    assert!((ms(3_000)..ms(3_100)).contains(&at), "{at:?}");
}

#[actix::test]
async fn a_recogniser_that_cannot_be_reached_again_is_replaced_with_nothing_lost() {
    let stage = Stage::new();
    let client = ready(&stage).await;
    let first = client.speaks(ms(300)).await;
    stage
        .recogniser
        .opens([Opening::Fails(ErrorKind::Unavailable)]);
    let dropped = client.now();
    stage.recogniser.stream(0).await.drops();
    let spare = stage.spare_recogniser.stream(0).await;
    assert!(
        client.now() - dropped <= ms(20),
        "the failure was visible at once"
    );
    let second = client.speaks(ms(300)).await;
    assert_eq!(spare.heard(), [first, second].concat());
    let told = events(&client);
    let state = |state: &str, provider: &str| (state.to_owned(), provider.to_owned());
    assert_eq!(
        told,
        [
            state("reconnecting", "scripted"),
            switched("spare"),
            state("recovered", "spare")
        ]
    );
}

#[actix::test]
async fn a_drop_that_is_mended_at_once_changes_nothing() {
    let stage = Stage::new();
    let client = ready(&stage).await;
    let first = client.speaks(ms(300)).await;
    stage.recogniser.stream(0).await.drops();
    let again = stage.recogniser.stream(1).await;
    let second = client.speaks(ms(300)).await;
    assert_eq!(again.heard(), [first, second].concat());
    assert_eq!(stage.spare_recogniser.opened(), 0);
}

#[actix::test]
async fn one_that_opens_and_refuses_what_it_is_sent_is_replaced_too() {
    let stage = Stage::new();
    let client = ready(&stage).await;
    let sent = client.speaks(ms(300)).await;
    let dropped = client.now();
    stage.recogniser.stream(0).await.drops();
    stage.recogniser.stream(1).await.drops();
    let spare = stage.spare_recogniser.stream(0).await;
    assert!(client.now() - dropped <= ms(20));
    client.speaks(ms(20)).await;
    assert!(spare.heard().starts_with(&sent));
    assert_eq!(stage.recogniser.opened(), 2);
    assert_eq!(client.events_of("error").len(), 0);
}

#[actix::test]
async fn one_that_has_heard_or_lasted_is_asked_again_as_often_as_it_drops() {
    let stage = Stage::new();
    let client = ready(&stage).await;
    client.speaks(ms(100)).await;
    stage.recogniser.stream(0).await.drops();
    stage.recogniser.stream(1).await.says(said("Hello"));
    client.event("stt_result").await;
    stage.recogniser.stream(1).await.drops();
    stage.recogniser.stream(2).await;
    sleep(ms(1_100)).await;
    stage.recogniser.stream(2).await.drops();
    stage.recogniser.stream(3).await;
    assert_eq!(stage.spare_recogniser.opened(), 0);
}

#[actix::test]
async fn after_the_last_fallback_the_first_is_asked_again_but_not_one_that_is_hopeless() {
    let stage = Stage::new();
    let client = ready(&stage).await;
    stage
        .recogniser
        .opens([Opening::Fails(ErrorKind::Unavailable)]);
    stage
        .spare_recogniser
        .opens([Opening::Fails(ErrorKind::Quota)]);
    stage.recogniser.stream(0).await.drops();
    stage.recogniser.stream(1).await.drops();
    stage.recogniser.stream(2).await;
    assert_eq!(stage.spare_recogniser.opened(), 0);
    let sent = client.speaks(ms(100)).await;
    assert_eq!(stage.recogniser.stream(2).await.heard(), sent);
}

#[actix::test]
async fn a_voice_that_fails_before_its_first_sound_is_replaced_at_once() {
    let stage = Stage::new();
    stage.synthesiser.says([Way::Fails(ErrorKind::Unavailable)]);
    let client = ready(&stage).await;
    let asked = client.now();
    client.send(&speak("Hello there"));
    let (started, _) = client.event_at("tts_started").await;
    assert!(started - asked <= ms(20), "{:?}", started - asked);
    client.event("tts_playback_complete").await;
    client.send(&speak("Next"));
    client.event("tts_playback_complete").await;
    assert_eq!(stage.spare_synthesiser.asked(), ["Hello there", "Next"]);
    assert_eq!(events(&client), [switched("spare")]);
    assert_eq!(client.events_of("error").len(), 0);
}

#[actix::test]
async fn one_that_fails_in_the_middle_is_replaced_at_the_first_word_that_was_not_complete() {
    let stage = Stage::new();
    // "Hello there my" lasts 14 characters of 40 ms each; "my" begins after 480 ms.
    stage.synthesiser.says([Way::FailsAfter(ms(500))]);
    let client = ready(&stage).await;
    client.send(&speak("Hello there my friend"));
    let complete = client.event("tts_playback_complete").await;
    assert_eq!(stage.spare_synthesiser.asked(), ["my friend"]);
    assert_eq!(complete["duration_ms"], 500 + 9 * 40);
    assert_eq!(client.events_of("error").len(), 0);
}

#[actix::test]
async fn without_words_the_next_utterance_is_the_fallback_s_first() {
    let stage = Stage::new();
    stage.synthesiser.tells_no_words();
    stage.synthesiser.says([Way::FailsAfter(ms(500))]);
    let client = ready(&stage).await;
    client.send(&speak("Hello there my friend"));
    client.send(&speak("Next"));
    let failed = client.event("error").await;
    assert_eq!(failed["code"], "provider_unavailable");
    assert_eq!(failed["played_ms"], 500);
    assert_eq!(client.event("tts_playback_complete").await["id"], "Next");
    assert_eq!(stage.spare_synthesiser.asked(), ["Next"]);
}

#[actix::test]
async fn when_all_fail_there_is_one_clear_error() {
    let stage = Stage::new();
    stage.synthesiser.says([Way::Fails(ErrorKind::Auth)]);
    stage.spare_synthesiser.says([Way::Fails(ErrorKind::Auth)]);
    let client = ready(&stage).await;
    client.send(&speak("Hello"));
    assert_eq!(client.event("error").await["code"], "provider_auth");
    assert_eq!(client.events_of("error").len(), 1);
}

#[actix::test]
async fn a_fallback_is_checked_with_the_config() {
    let stage = Stage::new();
    let client = stage.connect();
    for (part, fallback, code, names) in [
        (
            "stt_config",
            json!([{"provider": "nobody"}]),
            "unsupported_provider",
            "stt_config.fallback[0].provider",
        ),
        (
            "stt_config",
            json!([{}]),
            "invalid_message",
            "stt_config.fallback[0].provider",
        ),
        (
            "stt_config",
            json!([{"provider": "spare", "fallback": [{"provider": "spare"}]}]),
            "invalid_message",
            "stt_config.fallback[0].fallback",
        ),
        (
            "stt_config",
            json!([{"provider": "spare", "auth": {"x": "y"}}]),
            "invalid_provider_auth",
            "stt_config.fallback[0].auth",
        ),
        (
            "tts_config",
            json!([{"model": ""}]),
            "invalid_message",
            "tts_config.fallback: [0].provider",
        ),
        (
            "tts_config",
            json!([{"provider": "nobody", "model": ""}]),
            "unsupported_provider",
            "nobody",
        ),
    ] {
        client.send(&config(json!({part: {"fallback": fallback}})));
        let error = client.event("error").await;
        assert_eq!(error["code"], code, "{error}");
        assert!(
            error["message"].as_str().unwrap().contains(names),
            "{error}"
        );
    }
}
