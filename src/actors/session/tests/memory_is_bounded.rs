//! "Memory grows until restart."

use super::synthesiser::ramp;
use super::*;

#[actix::test]
async fn a_client_that_does_not_read_is_heard_and_gets_every_final_later() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    client.reads(false);
    let mut sent = Vec::new();
    for number in 0..30 {
        client.send(&speak(&format!("Sentence {number}")));
        stream.says(partial("interim"));
        sent.extend(client.speaks(Duration::from_secs(2)).await);
        stream.says(said(&format!("Final {number}.")));
    }
    assert_eq!(stream.heard(), sent);
    let before = client.heard().len();
    client.reads(true);
    sleep(ms(1)).await;
    let waited = client.heard().len() - before;
    // Two seconds, and the lead that leaves as soon as there is room.
    assert!(waited <= 24_000 * 22 / 10, "{waited} samples");
    for number in 0..30 {
        let event = loop {
            let event = client.event("stt_result").await;
            if event["is_final"] == true {
                break event;
            }
        };
        assert_eq!(event["transcript"], format!("Final {number}."));
    }
    let interim = client.events_of("stt_result");
    let interim = interim.iter().filter(|result| result["is_final"] == false);
    assert!(interim.count() <= 2, "only the latest");
    // What waited is said from where it was held, without a gap.
    for number in 0..30 {
        client.looks_again();
        while client.event("tts_playback_complete").await["id"] != format!("Sentence {number}") {}
    }
    let heard = client.heard();
    assert_eq!(heard, ramp(0, heard.len()));
}

#[actix::test]
async fn what_waits_for_a_config_is_bounded_and_the_rest_is_refused() {
    let stage = Stage::new();
    stage
        .recogniser
        .opens([Opening::Takes(Duration::from_secs(5))]);
    let client = stage.connect();
    client.send(&config(json!({})));
    for _ in 0..300 {
        client.send(&json!({"type": "clear"}));
    }
    client.event("ready").await;
    let refused = client.events_of("error");
    assert_eq!(refused.len(), 44);
    assert!(refused.iter().all(|error| error["code"] == "overloaded"));
    for number in 0..70 {
        client.send(&speak(&format!("Number {number}")));
    }
    let last = "Number 63";
    while client.event("tts_playback_complete").await["id"] != last {}
    assert_eq!(client.events_of("error").len(), 44 + 70 - 64);
}

#[actix::test]
async fn a_client_that_sends_nonsense_and_does_not_read_is_kept_and_told_the_latest() {
    let stage = Stage::new();
    let client = stage.configured().await;
    client.reads(false);
    for number in 0..1000 {
        client.send(&json!({"type": format!("nonsense {number}")}));
        if number % 100 == 0 {
            sleep(ms(1)).await;
        }
    }
    client.reads(true);
    sleep(ms(10)).await;
    let errors = client.events_of("error");
    assert!(errors.len() <= 130, "{}", errors.len());
    let last = errors.last().unwrap()["message"].as_str().unwrap();
    assert!(last.contains("nonsense 999"), "{last}");
}

#[actix::test]
async fn a_recogniser_that_takes_nothing_costs_thirty_seconds_of_sound_and_no_more() {
    let stage = Stage::new();
    let client = stage.configured().await;
    let stream = stage.recogniser.stream(0).await;
    stream.takes(false);
    // Speech without a pause, faster than real time: nobody is slow enough to be given up yet.
    let sent = client.sends(3_000, true);
    sleep(ms(100)).await;
    stream.takes(true);
    sleep(ms(100)).await;
    let heard = stream.heard();
    let kept = &sent[sent.len() - 1_500..];
    assert!(heard.len() <= 1_500 + 16, "{}", heard.len());
    assert_eq!(&heard[heard.len() - 1_500..], kept);
}

#[actix::test]
async fn messages_beyond_their_rate_are_refused_before_they_cost_anything() {
    let stage = Stage::new();
    let client = stage.configured().await;
    for _ in 0..5_000 {
        client.send(&json!({"type": "clear"}));
        // The mailbox of the session is emptied meanwhile.
        tokio::task::yield_now().await;
    }
    sleep(ms(1)).await;
    let refused = client.events_of("error");
    assert!(!refused.is_empty());
    for error in &refused {
        assert_eq!(error["code"], "overloaded");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("200 times a second")
        );
    }
    // A second later two hundred are carried out again.
    sleep(Duration::from_secs(1)).await;
    client.looks_again();
    client.send(&speak("Hello"));
    while client.event("tts_playback_complete").await["id"] != "Hello" {}
}
