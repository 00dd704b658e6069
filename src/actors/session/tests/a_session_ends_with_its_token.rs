//! "A session whose token the authentication service has accepted ends with `error` `unauthorized` and 1008."

use futures_util::FutureExt;

use super::*;
use vivavoce_auth::Withdrawn;

/// A token that is good for so long.
fn ends_after(time: Duration, why: Withdrawn) -> Pass {
    sleep(time).map(move |()| why).boxed_local()
}

#[actix::test]
async fn it_is_told_why_and_then_closed_with_1008() {
    tokio::time::pause();
    for (why, part) in [
        (Withdrawn::Expired, "expired"),
        (Withdrawn::Revoked, "not accepted"),
    ] {
        let stage = Stage::in_paused_time(LEAD);
        let client = stage.connect_with(Some(ends_after(Duration::from_mins(1), why)));
        client.send(&config(json!({})));
        client.event("ready").await;
        sleep(Duration::from_secs(59)).await;
        assert_eq!(client.events_of("error"), [] as [Value; 0]);
        let (at, error) = client.event_at("error").await;
        assert_eq!(at.as_secs(), 60);
        assert_eq!(
            (&error["code"], &error["fatal"]),
            (&json!("unauthorized"), &json!(true))
        );
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        assert_eq!(client.closed().await, 1008);
        stage.is_empty().await;
    }
}

#[actix::test]
async fn speech_stops_at_once_and_what_was_said_is_still_told() {
    let stage = Stage::new();
    let client = stage.connect_with(Some(ends_after(Duration::from_secs(2), Withdrawn::Revoked)));
    client.send(&config(json!({})));
    client.event("ready").await;
    stage
        .recogniser
        .stream(0)
        .await
        .ends_with(said("Last words."));
    client.send(&speak(
        "A sentence that takes far longer than the token lasts",
    ));
    client.event("tts_started").await;
    client.speaks(ms(500)).await;
    let (told, _) = client.event_at("error").await;
    assert_eq!(
        client.event("stt_result").await["transcript"],
        "Last words."
    );
    assert_eq!(client.closed().await, 1008);
    let late = client
        .read()
        .into_iter()
        .filter(|(at, what)| matches!(what, What::Sound(_)) && *at > told + ms(20));
    assert_eq!(late.count(), 0);
}

#[actix::test]
async fn also_before_its_config() {
    let stage = Stage::new();
    let client = stage.connect_with(Some(ends_after(Duration::from_secs(1), Withdrawn::Expired)));
    assert_eq!(client.event("error").await["code"], "unauthorized");
    assert_eq!(client.closed().await, 1008);
    stage.is_empty().await;
}
