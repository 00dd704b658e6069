//! "A dropped socket ends a conversation."

use super::synthesiser::ramp;
use super::*;

/// Sound of the synthesiser for this many characters.
const fn sound_of(characters: usize) -> usize {
    characters * 40 * 24
}

fn resume(token: &str, last_event: u64, received: usize) -> Value {
    json!({"type": "resume", "token": token, "last_event": last_event, "received_bytes": received})
}

/// A client whose session may be resumed, and its token.
async fn ready(stage: &Stage) -> (Client, String) {
    let client = stage.connect();
    client.send(&config(json!({"resume": true})));
    let token = token_of(&client.event("ready").await);
    (client, token)
}

fn token_of(ready: &Value) -> String {
    ready["resume_token"].as_str().unwrap().to_owned()
}

fn last_event(client: &Client) -> u64 {
    client
        .events()
        .iter()
        .filter_map(|event| event["seq"].as_u64())
        .max()
        .unwrap_or(0)
}

#[actix::test]
async fn what_is_being_said_goes_on_where_the_listener_lost_it() {
    // How much of what was sent before the break never came.
    tokio::time::pause();
    for in_flight in [0, 1, 7] {
        let stage = Stage::in_paused_time(LEAD);
        let (client, token) = ready(&stage).await;
        client.send(&speak(&"a".repeat(50)));
        client.send(&speak(&"b".repeat(20)));
        client.event("tts_started").await;
        sleep(ms(700)).await;
        client.breaks();
        sleep(ms(10)).await;
        let mut heard = client.heard();
        heard.truncate(heard.len() - in_flight * 480);
        sleep(Duration::from_secs(20)).await;
        assert_eq!(client.events_of("tts_playback_complete").len(), 0);

        let again = stage.connect();
        again.send(&resume(&token, last_event(&client), 2 * heard.len()));
        let first = again.event("tts_playback_complete").await;
        assert_eq!(
            (&first["id"], &first["duration_ms"]),
            (&json!("a".repeat(50)), &json!(2_000))
        );
        again.event("tts_playback_complete").await;
        heard.extend(again.heard());
        let (one, two) = (sound_of(50), sound_of(20));
        assert_eq!(heard.len(), one + two, "{in_flight} in flight");
        assert_eq!(heard[..one], ramp(0, one), "{in_flight} in flight");
        let mut seqs: Vec<u64> = client
            .events()
            .iter()
            .map(|e| e["seq"].as_u64().unwrap())
            .collect();
        seqs.extend(again.events().iter().map(|e| e["seq"].as_u64().unwrap()));
        assert!(seqs.is_sorted_by(|one, other| one < other), "{seqs:?}");
        again.closes();
        stage.is_empty().await;
    }
}

#[actix::test]
async fn it_is_cut_again_and_again_at_any_moment_and_nothing_is_lost_or_said_twice() {
    let stage = Stage::new();
    let (mut client, mut token) = ready(&stage).await;
    client.send(&speak(&"a".repeat(200)));
    let mut heard = Vec::new();
    for pause in [3, 190, 201, 1_400, 0, 2_711, 35, 60] {
        sleep(ms(pause)).await;
        client.breaks();
        sleep(ms(pause % 90)).await;
        heard.extend(client.heard());
        let again = stage.connect();
        again.send(&resume(&token, last_event(&client), 2 * heard.len()));
        token = token_of(&again.event("ready").await);
        client = again;
    }
    let complete = client.event("tts_playback_complete").await;
    assert_eq!(complete["duration_ms"], 8_000);
    heard.extend(client.heard());
    assert_eq!(heard.len(), sound_of(200));
    assert_eq!(heard, ramp(0, sound_of(200)));
}

#[actix::test]
async fn heard_text_is_what_was_heard_before_and_after_the_break() {
    let stage = Stage::new();
    let (client, token) = ready(&stage).await;
    let text = "one two three four five six seven eight nine ten";
    client.send(&speak(text));
    client.event("tts_started").await;
    sleep(ms(300)).await;
    client.breaks();
    sleep(ms(5)).await;
    let received = 2 * client.heard().len();
    sleep(Duration::from_secs(5)).await;
    let again = stage.connect();
    again.send(&resume(&token, last_event(&client), received));
    again.event("ready").await;
    sleep(ms(400)).await;
    again.send(&json!({"type": "clear"}));
    let cut = again.event("tts_interrupted").await;
    let played = cut["played_ms"].as_u64().unwrap();
    // What had come before the break, and 400 ms after it.
    let expected = received as u64 / 48 + 400;
    assert!(
        played.abs_diff(expected) <= 40,
        "{played} instead of {expected}"
    );
    let heard = cut["heard_text"].as_str().unwrap();
    assert!(text.starts_with(heard) && !heard.is_empty(), "{heard:?}");
}

#[actix::test]
async fn what_the_client_kept_is_recognised_and_what_was_heard_meanwhile_is_told() {
    let stage = Stage::new();
    let (client, token) = ready(&stage).await;
    client.speaks(ms(400)).await;
    client.breaks();
    sleep(ms(100)).await;
    // The recogniser is late.
    stage.recogniser.stream(0).await.says(said("Before."));
    sleep(ms(100)).await;
    assert_eq!(client.events_of("stt_result").len(), 0);
    let again = stage.connect();
    again.send(&resume(&token, last_event(&client), 0));
    assert_eq!(again.event("stt_result").await["transcript"], "Before.");
    again.event("ready").await;
    again.sends(100, true);
    sleep(ms(100)).await;
    assert_eq!(stage.recogniser.opened(), 1);
    stage.recogniser.stream(0).await.says(said("After."));
    assert_eq!(again.event("stt_result").await["transcript"], "After.");
    assert_eq!(stage.names().await, ["s"]);
    again.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn a_socket_that_only_seems_to_live_is_closed_when_its_client_comes_back() {
    let stage = Stage::new();
    let (client, token) = ready(&stage).await;
    let again = stage.connect();
    again.send(&resume(&token, last_event(&client), 0));
    again.event("ready").await;
    assert_eq!(client.closed().await, 4410);
    again.send(&speak("Yes"));
    again.event("tts_playback_complete").await;
    assert_eq!(stage.names().await, ["s"]);
}

#[actix::test]
async fn who_does_not_come_back_or_did_not_ask_or_has_gone_ends_as_ever() {
    let stage = Stage::new();
    let (client, token) = ready(&stage).await;
    client.breaks();
    sleep(Duration::from_secs(29)).await;
    assert_eq!(stage.names().await, ["s"]);
    let others: Vec<_> = (0..7)
        .map(|_| stage.sessions.take(&Party::Operator).unwrap())
        .collect();
    assert!(stage.sessions.take(&Party::Operator).is_err(), "it counts");
    drop(others);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(stage.names().await, [""; 0]);
    let late = stage.connect();
    late.send(&resume(&token, 1, 0));
    let refused = late.event("error").await;
    assert_eq!(
        (&refused["code"], &refused["in_reply_to"]),
        (&json!("cannot_resume"), &json!("resume"))
    );
    // The socket is as good as any other.
    late.send(&config(json!({"resume": true})));
    late.event("ready").await;
    late.closes();
    sleep(ms(10)).await;
    assert_eq!(stage.names().await, [""; 0]);
    let plain = stage.configured().await;
    plain.breaks();
    stage.is_empty().await;
}

#[actix::test]
async fn a_token_is_its_tenants_and_used_once_and_a_new_config_takes_the_name() {
    let stage = Stage::new();
    let [mine, other] = ["mine", "other"].map(Access::of_tenant);
    let client = stage.connect_as(mine.clone(), None);
    client.send(&config(json!({"resume": true})));
    let token = token_of(&client.event("ready").await);
    client.breaks();
    sleep(ms(10)).await;
    let thief = stage.connect_as(other, None);
    thief.send(&resume(&token, 1, 0));
    assert_eq!(thief.event("error").await["code"], "cannot_resume");
    let again = stage.connect_as(mine.clone(), None);
    again.send(&resume(&token, 1, 0));
    again.event("ready").await;
    // It has the next token.
    again.send(&json!({"type": "clear"}));
    sleep(ms(10)).await;
    let twice = stage.connect_as(mine.clone(), None);
    twice.send(&resume(&token, 1, 0));
    assert_eq!(twice.event("error").await["code"], "cannot_resume");
    again.breaks();
    sleep(ms(10)).await;
    // Another beginning of the same conversation does not wait for the old one.
    twice.send(&config(json!({})));
    twice.event("ready").await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(stage.names().await.len(), 1);
}

#[actix::test]
async fn what_cannot_be_told_any_more_says_so() {
    let stage = Stage::new();
    let (client, token) = ready(&stage).await;
    client.breaks();
    sleep(ms(10)).await;
    for number in 0..250 {
        stage
            .recogniser
            .stream(0)
            .await
            .says(said(&format!("Number {number}.")));
        sleep(ms(1)).await;
    }
    let again = stage.connect();
    again.send(&resume(&token, 1, 0));
    let refused = again.event("error").await;
    assert_eq!(refused["code"], "cannot_resume");
    assert_eq!(again.closed().await, 4404);
    stage.is_empty().await;
}

#[actix::test]
async fn a_server_that_is_going_to_stop_says_when() {
    let stage = Stage::new();
    let client = stage.configured().await;
    stage.services.draining.cancel();
    let draining = client.event("draining").await;
    let left = draining["deadline"].as_u64().unwrap() - super::super::player::timestamp();
    assert!((29_000..=30_000).contains(&left), "{draining}");
    client.send(&speak("It goes on"));
    client.event("tts_playback_complete").await;
}

#[actix::test]
async fn a_listener_who_stopped_reading_hears_the_rest_at_another_socket_and_the_clock_knows() {
    let stage = Stage::new();
    let (client, token) = ready(&stage).await;
    client.send(&speak(&"a".repeat(500)));
    client.event("tts_started").await;
    sleep(ms(500)).await;
    // Its network is gone, and nobody knows.
    client.reads(false);
    sleep(ms(50)).await;
    let received = client.heard().len();
    sleep(Duration::from_secs(8)).await;
    let again = stage.connect();
    again.send(&resume(&token, last_event(&client), 2 * received));
    again.event("ready").await;
    sleep(ms(1_000)).await;
    again.send(&json!({"type": "clear"}));
    let cut = again.event("tts_interrupted").await;
    let played = cut["played_ms"].as_u64().unwrap();
    let expected = received as u64 / 24 + 1_000;
    assert!(
        played.abs_diff(expected) <= 60,
        "{played} instead of {expected}"
    );
    assert_eq!(again.heard()[..24_000], ramp(received, 24_000));
}

#[actix::test]
async fn a_socket_that_breaks_before_it_is_ready_may_come_back_with_the_same_token() {
    let stage = Stage::new();
    let (client, token) = ready(&stage).await;
    client.breaks();
    for _ in 0..3 {
        sleep(ms(20)).await;
        let again = stage.connect();
        again.send(&resume(&token, 1, 0));
        again.event("ready").await;
        again.breaks();
    }
    sleep(ms(20)).await;
    assert_eq!(stage.names().await, ["s"]);
}

#[actix::test]
async fn who_has_used_all_places_may_resume_and_begin_nothing() {
    let stage = Stage::new();
    let (client, token) = ready(&stage).await;
    let _others: Vec<_> = (0..7)
        .map(|_| stage.sessions.take(&Party::Operator).unwrap())
        .collect();
    client.breaks();
    sleep(ms(20)).await;
    let again = stage.connect();
    again.send(&config(json!({"stream_id": "t"})));
    assert_eq!(again.event("error").await["code"], "overloaded");
    let again = stage.connect();
    again.send(&resume(&token, 1, 0));
    again.event("ready").await;
    again.send(&speak("Yes"));
    again.event("tts_playback_complete").await;
}
