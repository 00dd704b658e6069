//! `update_config` changes a running session: one recogniser follows the other without a gap or an overlap, and what is
//! queued to be said is said as it would have been.

use super::*;
use vivavoce_seams::ErrorKind;

fn update(mut parts: Value) -> Value {
    parts["type"] = json!("update_config");
    parts
}

fn transcripts(client: &Client) -> Vec<String> {
    let mut results = client.events_of("stt_result");
    results.retain(|result| result["is_final"] == true && result["transcript"] != "");
    let text = |result: &Value| result["transcript"].as_str().unwrap().to_owned();
    results.iter().map(text).collect()
}

#[actix::test]
async fn one_recogniser_follows_the_other_in_a_pause() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let mut sent = client.speaks(ms(300)).await;
    client.send(&update(json!({"stt_config": {"provider": "spare"}})));
    sent.extend(client.speaks(ms(300)).await);
    assert_eq!(client.event("ready").await["stream_id"], "s");
    let (former, next) = (
        stage.recogniser.stream(0).await,
        stage.spare_recogniser.stream(0).await,
    );
    assert_eq!((former.heard(), next.heard()), (sent.clone(), vec![]));
    let pause = client.is_silent(ms(300)).await;
    let later = client.speaks(ms(300)).await;
    let heard = [former.heard(), next.heard()].concat();
    sent.extend(pause.iter().chain(&later));
    assert_eq!(heard, sent);
    let cut = next.heard()[0];
    assert!(pause[1..10].contains(&cut), "{cut} of {pause:?}");
    assert_eq!(former.finalizes(), 1);
    assert!(former.is_over() && !next.is_over());
}

#[actix::test]
async fn whoever_never_pauses_is_heard_to_the_sample_all_the_same() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let mut sent = client.speaks(ms(300)).await;
    client.send(&update(json!({"stt_config": {"language": "de-DE"}})));
    sent.extend(client.speaks(ms(3_000)).await);
    let (former, next) = (
        stage.recogniser.stream(0).await,
        stage.recogniser.stream(1).await,
    );
    assert_eq!([former.heard(), next.heard()].concat(), sent);
    assert_eq!((next.language.as_str(), former.is_over()), ("de-DE", true));
    assert!(next.heard().len() > 50);
}

#[actix::test]
async fn words_are_told_in_the_order_in_which_they_were_said() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.speaks(ms(300)).await;
    let former = stage.recogniser.stream(0).await;
    former.takes(false);
    former.ends_with(said("Said before."));
    client.send(&update(json!({"stt_config": {"provider": "spare"}})));
    client.event("ready").await;
    client.is_silent(ms(200)).await;
    client.speaks(ms(300)).await;
    let next = stage.spare_recogniser.stream(0).await;
    next.says(partial("said"));
    next.says(said("Said behind."));
    sleep(ms(500)).await;
    assert_eq!(transcripts(&client), [""; 0]);
    former.takes(true);
    sleep(ms(100)).await;
    assert_eq!(transcripts(&client), ["Said before.", "Said behind."]);
    next.says(said("Said last."));
    sleep(ms(10)).await;
    assert_eq!(transcripts(&client).len(), 3);
}

#[actix::test]
async fn a_former_recogniser_that_never_ends_is_given_up() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.speaks(ms(300)).await;
    stage.recogniser.stream(0).await.takes(false);
    client.send(&update(json!({"stt_config": {"provider": "spare"}})));
    client.event("ready").await;
    client.is_silent(ms(200)).await;
    let next = stage.spare_recogniser.stream(0).await;
    next.says(said("Said behind."));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(transcripts(&client), ["Said behind."]);
}

#[actix::test]
async fn an_update_that_fails_leaves_the_former_in_force_with_every_sample() {
    let stage = Stage::new();
    let client = stage.configured().await;
    for (opening, code) in [
        (Opening::Never, "provider_timeout"),
        (Opening::Fails(ErrorKind::Auth), "provider_auth"),
    ] {
        let before = stage.recogniser.stream(0).await.heard().len();
        stage.spare_recogniser.opens([opening]);
        let mut sent = client.speaks(ms(300)).await;
        client.send(&update(json!({
            "stt_config": {"provider": "spare"}, "tts_config": {"provider": "spare"}, "vad": {"silence_ms": 200},
        })));
        sent.extend(client.is_silent(ms(200)).await);
        sent.extend(client.speaks(ms(500)).await);
        assert_eq!(client.event("error").await["code"], code);
        sent.extend(client.speaks(ms(300)).await);
        let heard = stage.recogniser.stream(0).await.heard();
        assert_eq!(heard[before..], sent, "{code}");
    }
    client.send(&speak("Said as before."));
    client.event("tts_playback_complete").await;
    assert_eq!(stage.synthesiser.asked(), ["Said as before."]);
    assert_eq!(stage.recogniser.opened(), 1);
}

#[actix::test]
async fn what_is_queued_plays_out_in_the_old_voice() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.send(&speak("This plays out."));
    client.send(&speak("And this."));
    client.send(&json!({"type": "speak", "text": "This is still", "id": "open", "flush": false}));
    client.event("tts_started").await;
    client.send(&update(json!({"tts_config": {"provider": "spare"}})));
    client.send(&json!({"type": "speak", "text": " written.", "id": "open"}));
    client.send(&speak("Anew."));
    for id in ["This plays out.", "And this.", "open", "Anew."] {
        assert_eq!(client.event("tts_playback_complete").await["id"], id);
    }
    assert_eq!(client.events_of("tts_interrupted"), [json!(null); 0]);
    assert_eq!(stage.spare_synthesiser.asked(), ["Anew."]);
    let said = stage.synthesiser.asked().concat();
    assert_eq!(said, "This plays out.And this.This is still written.");
}

#[actix::test]
async fn what_is_not_given_stays_as_it_is() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&config(
        json!({"stt_config": {"language": "fr-FR"}, "vad": {"silence_ms": 300}}),
    ));
    client.event("ready").await;
    client.send(&update(json!({"stt_config": {"keyterms": ["Vivavoce"]}})));
    client.send(&update(json!({"vad": {"threshold": 0.5}})));
    client.send(&update(json!({})));
    for _ in 0..3 {
        client.event("ready").await;
    }
    assert_eq!(stage.recogniser.opened(), 2);
    let stream = stage.recogniser.stream(1).await;
    assert_eq!(stream.language, "fr-FR");
    client.is_silent(ms(100)).await;
    client.speaks(ms(400)).await;
    stream.says(said("Oui."));
    client.is_silent(ms(380)).await;
    let ended = client.events_of("stt_result");
    assert_eq!(ended.last().unwrap()["is_speech_final"], true);
    // The same config again is another way to say so.
    let same = json!({
        "stt_config": {"language": "fr-FR", "keyterms": ["Vivavoce"]},
        "vad": {"silence_ms": 300, "threshold": 0.5},
    });
    client.send(&config(same));
    client.event("ready").await;
    assert_eq!(stage.recogniser.opened(), 2);
}

#[actix::test]
async fn what_cannot_change_is_refused_with_its_name() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&update(json!({"vad": {"silence_ms": 300}})));
    assert_eq!(client.event("error").await["code"], "not_configured");
    client.send(&json!({"type": "config", "audio": false, "stream_id": "s"}));
    client.event("ready").await;
    client.send(&update(json!({"stt_config": {"provider": "scripted"}})));
    assert_eq!(client.event("error").await["code"], "audio_disabled");
    client.send(&config(json!({})));
    client.event("ready").await;
    for (part, field, value) in [
        ("stt_config", "sample_rate", json!(8_000)),
        ("stt_config", "channels", json!(2)),
        ("stt_config", "encoding", json!("mulaw")),
        ("stt_config", "fallback", json!([{}])),
        ("tts_config", "sample_rate", json!(8_000)),
        ("tts_config", "audio_format", json!("mulaw")),
        ("tts_config", "speaking_rate", json!(9)),
        ("vad", "threshold", json!(2)),
        ("vad", "silence_ms", json!("long")),
    ] {
        client.send(&update(json!({part: {field: value}})));
        let error = client.event("error").await;
        assert_eq!(error["code"], "invalid_message", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{part}.{field}")), "{message}");
    }
    client.send(&update(json!({"stt_config": {"provider": "nobody"}})));
    assert_eq!(client.event("error").await["code"], "unsupported_provider");
    let sent = client.speaks(ms(300)).await;
    assert_eq!(stage.recogniser.stream(0).await.heard(), sent);
    assert_eq!(stage.recogniser.opened(), 1);
}

#[actix::test]
async fn what_was_said_while_the_former_recogniser_was_away_is_heard() {
    tokio::time::pause();
    for change in [
        update(json!({"stt_config": {"provider": "spare"}})),
        config(json!({"stt_config": {"provider": "spare"}})),
        config(json!({"stt_config": {"provider": "spare", "sample_rate": 8_000}})),
    ] {
        let stage = Stage::in_paused_time(LEAD);
        let client = stage.configured().await;
        let mut sent = client.speaks(ms(300)).await;
        stage.recogniser.stream(0).await.drops();
        sent.extend(client.speaks(ms(100)).await);
        client.send(&change);
        if change["stt_config"]["sample_rate"].is_number() {
            client.sends_at(8_000);
        }
        sent.extend(client.is_silent(ms(200)).await);
        client.event("ready").await;
        sent.extend(client.speaks(ms(300)).await);
        sleep(ms(2_000)).await;
        let again = stage.recogniser.stream(1).await;
        let next = stage.spare_recogniser.stream(0).await;
        assert_eq!([again.heard(), next.heard()].concat(), sent, "{change}");
        assert!(again.is_over());
    }
}

#[actix::test]
async fn a_former_recogniser_that_fails_while_it_finishes_is_asked_again() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let mut sent = client.speaks(ms(300)).await;
    let former = stage.recogniser.stream(0).await;
    former.takes(false);
    client.send(&update(json!({"stt_config": {"provider": "spare"}})));
    client.event("ready").await;
    sent.extend(client.is_silent(ms(200)).await);
    former.drops();
    let again = stage.recogniser.stream(1).await;
    again.ends_with(said("Before."));
    sent.extend(client.speaks(ms(300)).await);
    sleep(ms(100)).await;
    let next = stage.spare_recogniser.stream(0).await;
    assert_eq!([again.heard(), next.heard()].concat(), sent);
    assert!(again.is_over());
}

#[actix::test]
async fn a_session_that_ends_in_the_middle_of_an_update_tells_the_last_words_of_both() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.speaks(ms(300)).await;
    let former = stage.recogniser.stream(0).await;
    former.takes(false);
    former.ends_with(said("One."));
    client.send(&update(json!({"stt_config": {"provider": "spare"}})));
    client.event("ready").await;
    client.is_silent(ms(200)).await;
    let next = stage.spare_recogniser.stream(0).await;
    client.speaks(ms(300)).await;
    next.ends_with(said("Two."));
    let end = stage.end("s");
    let resumes = async {
        sleep(ms(500)).await;
        former.takes(true);
    };
    tokio::join!(end, resumes);
    assert_eq!(transcripts(&client), ["One.", "Two."]);
    assert_eq!(stage.spare_recogniser.live(), 0);
    stage.is_empty().await;
}

/// A stage with so many recognisers for all.
fn stage_with(recognisers: usize) -> (Stage, Quota) {
    let mut stage = Stage::new();
    let quota = Quota::new(Kind::Recognisers, recognisers, Share::NONE);
    let services = Arc::get_mut(&mut stage.services).unwrap();
    services.quotas.recognisers = quota.clone();
    (stage, quota)
}

#[actix::test]
async fn former_recognisers_are_few_and_counted_until_they_have_ended() {
    let (stage, quota) = stage_with(100);
    let address = std::net::IpAddr::from([192, 0, 2, 1]);
    let access = Access::anonymous().counted_by(Some(address));
    let party = access.party();
    let client = stage.connect_as(access, None);
    client.send(&config(json!({})));
    client.event("ready").await;
    assert_eq!(quota.of(&party), 1);
    for number in 0..20 {
        // The former one takes nothing any more, so that it cannot finish.
        stage.recogniser.stream(number).await.takes(false);
        client.speaks(ms(100)).await;
        let language = ["de-DE", "fr-FR"][number % 2];
        client.send(&update(json!({"stt_config": {"language": language}})));
        client.event("ready").await;
        client.is_silent(ms(200)).await;
        assert_eq!(quota.of(&party), 1 + (number as u64 + 1).min(3));
    }
    let failed = client.events_of("provider_event");
    assert_eq!(failed.len(), 17, "{failed:?}");
    for number in 0..20 {
        stage.recogniser.stream(number).await.takes(true);
    }
    sleep(Duration::from_secs(40)).await;
    assert_eq!(quota.of(&party), 1);
    assert_eq!(stage.recogniser.live(), 1);
    client.closes();
    stage.is_empty().await;
    assert_eq!(quota.of(&party), 0);
}

#[actix::test]
async fn an_update_that_no_recogniser_is_left_for_changes_nothing() {
    let (stage, _) = stage_with(1);
    let client = stage.configured().await;
    let mut sent = client.speaks(ms(300)).await;
    client.send(&update(json!({"stt_config": {"language": "de-DE"}})));
    let error = client.event("error").await;
    assert_eq!(error["code"], "overloaded", "{error}");
    assert!(error["message"].as_str().unwrap().contains("recognisers"));
    // What needs no further recogniser changes all the same.
    client.send(&update(json!({"vad": {"silence_ms": 300}})));
    client.event("ready").await;
    sent.extend(client.speaks(ms(300)).await);
    assert_eq!(stage.recogniser.opened(), 1);
    assert_eq!(stage.recogniser.stream(0).await.heard(), sent);
}
