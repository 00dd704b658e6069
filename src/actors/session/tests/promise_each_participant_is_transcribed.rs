//! With `stt_mode` "per_participant" each participant is transcribed as the client of a session without a room is: no
//! words are lost, all times are on one clock, and what it costs is counted.

use super::room::{Link, Speaker};
use super::*;

/// A client whose session transcribes each participant of the room "r", and the other end of the session's link.
async fn connected(stage: &Stage) -> (Client, Link) {
    let client = stage.connect();
    client.send(&config(
        json!({"rtc": {"room_name": "r", "stt_mode": "per_participant"}}),
    ));
    client.event("ready").await;
    (client, stage.rooms.link().1)
}

fn joined(link: &Link, identity: &str) -> Speaker {
    link.joins(identity);
    link.publishes(identity)
}

#[actix::test]
async fn a_client_that_does_not_read_gets_the_latest_of_each_participant_later() {
    let stage = Stage::new();
    let (client, link) = connected(&stage).await;
    let mut ann = joined(&link, "ann");
    ann.speaks(ms(400)).await;
    let of_ann = stage.recogniser.stream(0).await;
    let mut bob = joined(&link, "bob");
    bob.speaks(ms(400)).await;
    let of_bob = stage.recogniser.stream(1).await;
    client.reads(false);
    for number in 0..200 {
        of_ann.says(partial(&format!("ann {number}")));
        of_bob.says(partial(&format!("bob {number}")));
        sleep(ms(1)).await;
    }
    // A turn without words has three or four events.
    for _ in 0..40 {
        ann.speaks(ms(300)).await;
        ann.is_silent(ms(700)).await;
    }
    of_ann.says(partial("the last of ann"));
    of_bob.says(partial("the last of bob"));
    sleep(ms(10)).await;
    let before = client.events().len();
    client.reads(true);
    sleep(ms(100)).await;
    let read = client.events().split_off(before);
    let interim: Vec<_> = read
        .iter()
        .filter(|event| event["type"] == "stt_result" && event["is_final"] == false)
        .map(|event| event["transcript"].as_str().unwrap())
        .collect();
    let last = &interim[interim.len() - 2..];
    assert_eq!(last, ["the last of ann", "the last of bob"], "{interim:?}");
    // What was on its way already, and one of each.
    assert!(interim.len() <= 4, "{interim:?}");
    let voices = read.iter().filter(|event| event["type"] == "vad_event");
    assert!(voices.clone().count() <= 16, "{}", voices.count());
    client.closes();
    stage.is_empty().await;
}
