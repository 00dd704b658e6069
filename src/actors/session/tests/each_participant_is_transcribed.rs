//! With `stt_mode` "per_participant" each participant is transcribed as the client of a session without a room is: no
//! words are lost, all times are on one clock, and what it costs is counted.

use super::room::{Link, Speaker};
use super::*;
use tokio::time::Instant;
use vivavoce_seams::parameters::{Parameter, ignored};
use vivavoce_seams::rooms::link::LinkEvent;
use vivavoce_seams::{SttEvent, Transcript, Word};

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

/// A final of one word, with its place in what the stream was sent.
fn word(text: &str, start: f64, end: f64) -> SttEvent {
    SttEvent::Final(Transcript {
        text: text.to_owned(),
        words: vec![Word {
            word: text.to_owned(),
            start,
            end,
            confidence: None,
            speaker: None,
        }],
        ..Transcript::default()
    })
}

fn finals(client: &Client) -> Vec<Value> {
    let mut results = client.events_of("stt_result");
    results.retain(|result| result["is_final"] == true);
    results
}

fn around(value: f64, expected: f64) -> bool {
    (value - expected).abs() < 0.2
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

#[actix::test]
async fn the_times_of_all_participants_are_on_one_clock() {
    let stage = Stage::new();
    let (client, link) = connected(&stage).await;
    // Nobody is heard yet: the clock does not run.
    sleep(ms(5_000)).await;
    let mut ann = joined(&link, "ann");
    let begun = Instant::now();
    ann.speaks(ms(600)).await;
    ann.is_silent(ms(2_400)).await;
    let start = client.event("vad_event").await;
    assert_eq!(start["identity"], "ann");
    let ms_of = |event: &Value| event["timestamp_ms"].as_f64().unwrap() / 1_000.0;
    assert!(around(ms_of(&start), 0.1), "{start}");

    let mut bob = joined(&link, "bob");
    let bob_came = begun.elapsed().as_secs_f64();
    bob.speaks(ms(600)).await;
    stage
        .recogniser
        .stream(1)
        .await
        .says(word("bob", 0.25, 0.5));
    let heard = client.event("stt_result").await;
    let start = heard["words"][0]["start"].as_f64().unwrap();
    assert!(around(start, bob_came + 0.25), "{heard} after {bob_came}");
    let voices = client.events_of("vad_event");
    let of_bob = voices.iter().find(|event| event["identity"] == "bob");
    let of_bob = of_bob.unwrap();
    assert!(around(ms_of(of_bob), bob_came), "{of_bob} after {bob_came}");

    // Time passes for ann, too, while she has no track.
    let ann_left = begun.elapsed().as_secs_f64();
    link.tell(LinkEvent::TrackUnpublished {
        identity: "ann".to_owned(),
        sid: "TR_ann".to_owned(),
    });
    bob.is_silent(ms(10_000)).await;
    let mut ann = link.publishes("ann");
    let ann_back = begun.elapsed().as_secs_f64();
    ann.speaks(ms(600)).await;
    let voices = client.events_of("vad_event");
    let of_ann = voices.iter().rev().find(|event| event["identity"] == "ann");
    let of_ann = of_ann.unwrap();
    assert_eq!(of_ann["event"], "speech_start");
    assert!(around(ms_of(of_ann), ann_back), "{of_ann} after {ann_back}");
    // For her recogniser there was no gap.
    let (start, end) = (ann_left + 0.25, ann_left + 0.5);
    let stream = stage.recogniser.stream(0).await;
    stream.says(word("ann", start, end));
    let heard = loop {
        let heard = client.event("stt_result").await;
        if heard["identity"] == "ann" {
            break heard;
        }
    };
    let start = heard["words"][0]["start"].as_f64().unwrap();
    assert!(around(start, ann_back + 0.25), "{heard} after {ann_back}");
    client.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn what_is_transcribed_of_each_participant_is_counted() {
    let stage = Stage::new();
    let (client, link) = connected(&stage).await;
    let mut ann = joined(&link, "ann");
    let begun = Instant::now();
    ann.speaks(ms(2_000)).await;
    let mut bob = joined(&link, "bob");
    let bob_came = Instant::now();
    bob.speaks(ms(1_000)).await;
    let expected = begun.elapsed() + bob_came.elapsed();
    client.closes();
    stage.is_empty().await;
    // About three seconds of ann, the last of them of bob, too.
    let seconds = STT_SECONDS.get();
    let expected = expected.as_secs_f64();
    assert!(around(seconds, expected), "{seconds}, not {expected}");
}

#[actix::test]
async fn the_last_words_of_each_participant_are_told_when_the_server_ends_the_session() {
    tokio::time::pause();
    for (stops, code) in [(false, 1000), (true, 1001)] {
        let stage = Stage::in_paused_time(LEAD);
        let (client, link) = connected(&stage).await;
        let mut ann = joined(&link, "ann");
        ann.speaks(ms(400)).await;
        let mut bob = joined(&link, "bob");
        bob.speaks(ms(400)).await;
        for (number, name) in ["ann", "bob"].iter().enumerate() {
            let stream = stage.recogniser.stream(number).await;
            stream.says(partial("last"));
            stream.ends_with(said(&format!("Last words of {name}.")));
        }
        sleep(ms(10)).await;
        if stops {
            stage.services.closing.cancel();
        } else {
            stage.end("s").await;
        }
        assert_eq!(client.closed().await, code);
        for name in ["ann", "bob"] {
            let of_whom = |result: &&Value| result["identity"] == *name;
            let results = finals(&client);
            let mut results = results.iter().filter(of_whom);
            let last = results.next_back().unwrap_or_else(|| panic!("of {name}"));
            assert_eq!(last["turn_transcript"], format!("Last words of {name}."));
            let voices = client.events_of("vad_event");
            let last = voices.iter().rev().find(of_whom).unwrap();
            assert_eq!(last["reason"], "session_end");
        }
        stage.is_empty().await;
    }
}

#[actix::test]
async fn a_participant_of_whom_nothing_more_comes_does_not_hold_up_the_end() {
    let stage = Stage::new();
    let (client, link) = connected(&stage).await;
    let mut ann = joined(&link, "ann");
    ann.speaks(ms(400)).await;
    let stream = stage.recogniser.stream(0).await;
    stream.says(said("Before."));
    stream.takes(false);
    ann.speaks(ms(400)).await;
    let begun = client.now();
    stage.end("s").await;
    assert_eq!(client.closed().await, 1000);
    assert!(client.now() - begun <= Duration::from_secs(3));
    // What there was of the turn is told all the same.
    let last = finals(&client).pop().unwrap();
    assert_eq!(last["turn_transcript"], "Before.");
    stream.takes(true);
    stage.is_empty().await;
}

#[actix::test]
async fn two_tracks_of_one_participant_are_heard_together() {
    let stage = Stage::new();
    let (client, link) = connected(&stage).await;
    let mut microphone = joined(&link, "ann");
    let mut screen = link.publishes_as("ann", "TR_screen");
    futures_util::future::join(
        microphone.speaks_at(ms(1_000), 12_000.0),
        screen.speaks_at(ms(1_000), 12_000.0),
    )
    .await;
    futures_util::future::join(microphone.is_silent(ms(200)), screen.is_silent(ms(200))).await;
    let stream = stage.recogniser.stream(0).await;
    let heard = stream.louder_than(0);
    // 1.2 s at 16 kHz, not twice that.
    assert!((16_700..20_700).contains(&heard), "{heard} samples");
    // One of them alone is less than so loud.
    let loud = stream.louder_than(20_000);
    assert!(loud > 3_300, "{loud} samples");
    assert_eq!(stage.recogniser.opened(), 1);
    client.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn ignored_options_are_told_once_for_all_participants_and_again_with_another_config() {
    const TABLE: &[Parameter] = &[
        ignored("keyterms", "it does not know any"),
        ignored("diarize", "it does not tell them apart"),
    ];
    let stage = Stage::new();
    stage.recogniser.ignores(TABLE);
    let client = stage.connect();
    client.send(&config(json!({
        "stt_config": {"keyterms": ["Vivavoce"]},
        "rtc": {"room_name": "r", "stt_mode": "per_participant"},
    })));
    client.event("ready").await;
    let (_, link) = stage.rooms.link();
    let mut ann = joined(&link, "ann");
    ann.speaks(ms(200)).await;
    let mut bob = joined(&link, "bob");
    bob.speaks(ms(200)).await;
    stage.recogniser.stream(1).await;
    let told = client.events_of("provider_event");
    let [told] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(
        (&told["kind"], &told["state"], &told["provider"]),
        (&json!("stt"), &json!("ignored"), &json!("scripted"))
    );
    assert_eq!(told["message"], "keyterms: it does not know any");
    client.send(&json!({"type": "update_config", "vad": {"silence_ms": 700}}));
    client.event("ready").await;
    sleep(ms(100)).await;
    assert_eq!(client.events_of("provider_event").len(), 1);
    client.send(&json!({"type": "update_config", "stt_config": {"diarize": true}}));
    client.event("ready").await;
    futures_util::future::join(ann.is_silent(ms(1_200)), bob.is_silent(ms(1_200))).await;
    stage.recogniser.stream(3).await;
    assert_eq!(client.events_of("provider_event").len(), 2);
    client.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn a_participant_whose_transcription_has_panicked_is_transcribed_again() {
    let stage = Stage::new();
    let (client, link) = connected(&stage).await;
    let mut ann = joined(&link, "ann");
    ann.speaks(ms(400)).await;
    stage.recogniser.stream(0).await.says(said(POISON_WORDS));
    ann.speaks(ms(1_000)).await;
    let stream = stage.recogniser.stream(1).await;
    // What was said while nobody listened has waited.
    assert!(stream.louder_than(10_000) > 6_600);
    stream.says(said("and again"));
    let heard = client.event("stt_result").await;
    assert_eq!(
        (&heard["identity"], &heard["transcript"]),
        (&json!("ann"), &json!("and again"))
    );
    let states = client.events_of("provider_event");
    let states: Vec<_> = states.iter().map(|event| &event["state"]).collect();
    assert_eq!(states, ["reconnecting", "recovered"]);
    // One that does so again and again is given up.
    for number in 2..=10 {
        stage
            .recogniser
            .stream(number - 1)
            .await
            .says(said(POISON_WORDS));
        ann.speaks(ms(5_200)).await;
    }
    stage.recogniser.stream(10).await.says(said(POISON_WORDS));
    ann.speaks(ms(200)).await;
    assert_eq!(client.event("error").await["code"], "stt_failed");
    ann.speaks(ms(6_000)).await;
    assert_eq!(stage.recogniser.opened(), 11);
    client.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn an_update_of_vad_leaves_each_recogniser_as_it_is() {
    let stage = Stage::new();
    let (client, link) = connected(&stage).await;
    let mut ann = joined(&link, "ann");
    ann.speaks(ms(400)).await;
    client.send(&json!({"type": "update_config", "vad": {"silence_ms": 700}}));
    client.event("ready").await;
    ann.speaks(ms(2_000)).await;
    assert_eq!(client.events_of("provider_event"), [Value::Null; 0]);
    assert_eq!(stage.recogniser.opened(), 1);
    stage.recogniser.stream(0).await.says(said("still here"));
    let heard = client.event("stt_result").await;
    assert_eq!(heard["transcript"], "still here");
    client.closes();
    stage.is_empty().await;
}
