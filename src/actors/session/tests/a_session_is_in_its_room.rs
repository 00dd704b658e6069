//! A session with `rtc` hears the people of its room, speaks to them, and tells its client who comes, goes and writes.

use livekit_protocol::TrackInfo;

use super::*;
use vivavoce_seams::RoomErrorKind;
use vivavoce_seams::rooms::link::{Ending, LinkEvent};

/// A `config` for the room "r".
#[allow(clippy::needless_pass_by_value)] // so that scenarios read well
fn in_room(fields: Value) -> Value {
    let mut room = json!({"room_name": "r"});
    room.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    config(json!({"rtc": room}))
}

/// The ramp that is said is loud where it begins anew, after 30,000 samples: at this rate in every second.
fn loud_in_room() -> Value {
    config(json!({"rtc": {"room_name": "r"}, "tts_config": {"sample_rate": 48_000}}))
}

#[actix::test]
async fn ready_names_the_room_and_its_people_are_told_as_they_come_and_go() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&in_room(json!({})));
    let ready = client.event("ready").await;
    assert_eq!(
        (&ready["rtc_room_name"], &ready["rtc_url"]),
        (&json!("r"), &json!("ws://here"))
    );
    assert_eq!(ready["service_participant_identity"], "voice-agent");
    assert_eq!(ready["service_participant_name"], "Voice Agent");
    let (join, link) = stage.rooms.link();
    assert_eq!(
        (join.room.as_str(), join.identity.as_str()),
        ("r", "voice-agent")
    );
    assert!(join.audio);
    link.joins("ann");
    let event = client.event("participant_connected").await;
    assert_eq!(event["participant"]["identity"], "ann");
    assert_eq!(event["participant"]["name"], "ANN");
    assert_eq!(event["participant"]["room"], "r");
    let _ann = link.publishes("ann");
    let event = client.event("track_subscribed").await;
    assert_eq!(event["track"]["track_sid"], "TR_ann");
    assert_eq!(event["track"]["name"], "microphone");
    assert_eq!(event["track"]["track_kind"], "audio");
    link.says("ann", "chat", b"hello");
    let event = client.event("message").await;
    assert_eq!(event["message"]["message"], "hello");
    assert_eq!(event["message"]["identity"], "ann");
    assert_eq!(event["message"]["topic"], "chat");
    link.says("ann", "chat", &[0xff, 0]);
    let event = client.event("message").await;
    assert_eq!(event["message"]["data"], "/wA=");
    assert!(event["message"].get("message").is_none());
    client.send(
        &json!({"type": "send_message", "message": "hi", "role": "assistant", "debug": {"n": 1}}),
    );
    sleep(ms(10)).await;
    let [(topic, text)] = &link.messages()[..] else {
        panic!("{:?}", link.messages());
    };
    assert_eq!(topic, "messages");
    let body: Value = serde_json::from_str(text).unwrap();
    assert_eq!(
        body,
        json!({"message": "hi", "role": "assistant", "debug": {"n": 1}})
    );
    link.leaves("ann");
    let event = client.event("participant_disconnected").await;
    assert_eq!(event["participant"]["identity"], "ann");
    client.closes();
    stage.is_empty().await;
    assert!(link.was_left());
    assert_eq!(
        stage.rooms.names(),
        [""; 0],
        "it made the room, and nobody is left"
    );
}

#[actix::test]
async fn what_people_say_is_heard_and_what_is_said_reaches_them_frame_by_frame() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&loud_in_room());
    client.event("ready").await;
    let (_, link) = stage.rooms.link();
    link.joins("ann");
    let mut ann = link.publishes("ann");
    link.tell(LinkEvent::Listened);
    ann.speaks(ms(600)).await;
    ann.is_silent(ms(800)).await;
    client.event("vad_event").await;
    stage.recogniser.stream(0).await.says(said("hello there"));
    let heard = client.event("stt_result").await;
    assert_eq!(heard["transcript"], "hello there");
    let loud = stage.recogniser.stream(0).await.louder_than(10_000);
    // 600 ms at 16 kHz of a sine: two thirds of its samples are beyond half its height.
    assert!((5_300..7_400).contains(&loud), "{loud}");

    // 40 ms for each of its characters.
    client.send(&json!({"type": "speak", "text": "twenty-five characters ok", "id": "a"}));
    client.event("tts_started").await;
    client.event("tts_playback_complete").await;
    let frames = link.frames();
    assert_eq!(frames.len(), 50);
    for pair in frames.windows(2) {
        let [(at, frame), (next_at, next)] = pair else {
            unreachable!()
        };
        assert_eq!(next.timestamp.wrapping_sub(frame.timestamp), 960);
        assert!(*next_at - *at <= ms(21), "{:?}", *next_at - *at);
        assert!(!next.marker);
    }
    assert!(frames[0].1.marker);
    let (first, last) = (frames[0].0, frames[49].0);
    assert!(last - first >= ms(49 * 20 - 40), "{:?}", last - first);
    let sound = link.sound();
    assert!(sound.iter().any(|sample| sample.unsigned_abs() > 1_000));
}

#[actix::test]
async fn a_room_is_heard_at_the_rate_that_was_asked_for() {
    let asked = [
        (json!({}), 16_000),
        (json!({"sample_rate": 8_000}), 8_000),
        (json!({"sample_rate": 48_000, "encoding": "opus"}), 48_000),
    ];
    let stage = Stage::new();
    for mode in ["mixed", "per_participant"] {
        for (asked, rate) in &asked {
            let client = stage.connect();
            let opened = stage.recogniser.opened();
            let rtc = json!({"room_name": "r", "stt_mode": mode});
            client.send(&config(json!({"stt_config": asked, "rtc": rtc})));
            client.event("ready").await;
            let (_, link) = stage.rooms.link();
            link.joins("ann");
            let mut ann = link.publishes("ann");
            ann.speaks(ms(1_000)).await;
            ann.is_silent(ms(200)).await;
            let stream = stage.recogniser.stream(opened).await;
            assert_eq!(stream.rate, *rate, "{mode}");
            // Two thirds of a sine's samples are beyond half its height.
            let loud = stream.louder_than(10_000) as f64 / f64::from(*rate);
            assert!((0.55..0.75).contains(&loud), "{mode} {rate}: {loud} s");
            client.closes();
            stage.is_empty().await;
        }
    }
}

#[actix::test]
async fn a_room_is_spoken_to_at_the_rate_that_was_asked_for() {
    // The configurations of each bandwidth in RFC 6716, section 3.1: of SILK or hybrid, and of CELT.
    let (narrow, wide) = ([0..=3, 16..=19], [8..=11, 20..=23]);
    let (superwide, full) = ([12..=13, 24..=27], [14..=15, 28..=31]);
    let asked = [
        (json!({}), superwide.clone()),
        (json!({"sample_rate": 8_000}), narrow.clone()),
        (json!({"sample_rate": 16_000, "audio_format": "wav"}), wide),
        (json!({"sample_rate": 22_050}), superwide),
        (json!({"sample_rate": 44_100}), full),
        (json!({"audio_format": "mulaw"}), narrow),
    ];
    let stage = Stage::new();
    for (asked, bandwidth) in asked {
        let client = stage.connect();
        client.send(&config(
            json!({"rtc": {"room_name": "r"}, "tts_config": asked}),
        ));
        client.event("ready").await;
        let (_, link) = stage.rooms.link();
        link.tell(LinkEvent::Listened);
        client.send(&json!({"type": "speak", "text": "twenty-five characters ok", "id": "a"}));
        client.event("tts_playback_complete").await;
        let frames = link.frames();
        assert_eq!(frames.len(), 50, "{asked}");
        let of = |packet: &[u8]| packet[0] >> 3;
        let configurations = frames
            .iter()
            .map(|(_, frame)| of(frame.opus.as_ref().unwrap()));
        // The encoder may begin with less.
        let configurations: Vec<u8> = configurations.skip(5).collect();
        let is_its = |configuration| bandwidth.iter().any(|its| its.contains(configuration));
        assert!(
            configurations.iter().all(is_its),
            "{asked}: {configurations:?}"
        );
        for pair in frames.windows(2) {
            assert_eq!(pair[1].1.timestamp.wrapping_sub(pair[0].1.timestamp), 960);
        }
        client.closes();
        stage.is_empty().await;
    }
}

/// A session says four seconds in its room, where somebody listens.
async fn says_four_seconds(stage: &Stage) -> (client::Client, room::Link) {
    let client = stage.connect();
    client.send(&loud_in_room());
    client.event("ready").await;
    let (_, link) = stage.rooms.link();
    link.tell(LinkEvent::Listened);
    client.send(&json!({"type": "speak", "text": "x".repeat(100), "id": "a"}));
    client.event("tts_started").await;
    (client, link)
}

/// A thread that does not run for a while makes no gap in what is said: frames follow each other, late ones at once.
#[actix::test]
async fn a_server_that_is_late_says_everything_without_a_pause() {
    let stage = Stage::new();
    let (client, link) = says_four_seconds(&stage).await;
    for late in [30, 90, 150, 120, 60, 140] {
        sleep(ms(300)).await;
        // More to say comes just then.
        let id = late.to_string();
        client.send(&json!({"type": "speak", "text": "y", "id": id}));
        tokio::time::advance(ms(late)).await;
    }
    for _ in 0..7 {
        client.event("tts_playback_complete").await;
    }
    let frames = link.frames();
    assert_eq!(frames.len(), 212);
    for (n, (at, frame)) in frames.iter().enumerate() {
        let since = frame.timestamp.wrapping_sub(frames[0].1.timestamp);
        assert_eq!((since, frame.marker), (960 * n as u32, n == 0));
        let due = ms(20) * n as u32;
        let late = (*at - frames[0].0).saturating_sub(due);
        assert!(late <= ms(150), "frame {n}: {late:?}");
    }
    let took = frames[211].0 - frames[0].0;
    assert!((ms(4_140)..ms(4_241)).contains(&took), "{took:?}");
}

#[actix::test]
async fn cleared_speech_stops_within_a_frame() {
    let stage = Stage::new();
    let (client, link) = says_four_seconds(&stage).await;
    sleep(ms(1_000)).await;
    client.send(&json!({"type": "clear"}));
    client.event("tts_interrupted").await;
    // Its last frame fades, before the end is told.
    let so_far = link.frames().len();
    assert!((51..=54).contains(&so_far), "{so_far}");
    sleep(ms(500)).await;
    // So that receivers do not go on with what they heard last, silence follows, frame by frame.
    let frames = link.frames();
    assert_eq!(frames.len(), so_far + 5);
    for pair in frames[so_far - 2..].windows(2) {
        let [(at, frame), (next_at, next)] = pair else {
            unreachable!()
        };
        assert_eq!(next.timestamp.wrapping_sub(frame.timestamp), 960);
        assert!(*next_at - *at <= ms(41), "{:?}", *next_at - *at);
    }
    let loudest = |sound: &[i16]| sound.iter().map(|sample| sample.unsigned_abs()).max();
    let sound = link.sound();
    let (speech, rest) = sound.split_at((so_far - 1) * 960);
    assert!(loudest(speech) > Some(5_000), "{:?}", loudest(speech));
    // The decoder is a few milliseconds behind the encoder.
    let silence = &rest[2 * 960..];
    assert!(loudest(silence) < Some(200), "{:?}", loudest(silence));
    let so_far = frames.len();
    // What is said next has its place on the clock behind the pause.
    client.send(&json!({"type": "speak", "text": "next", "id": "b"}));
    client.event("tts_playback_complete").await;
    let frames = link.frames();
    let (last, next) = (&frames[so_far - 1].1, &frames[so_far].1);
    let passed = next.timestamp.wrapping_sub(last.timestamp);
    assert!(
        next.marker && (15_000..25_000).contains(&passed),
        "{passed}"
    );
}

#[actix::test]
async fn nothing_is_said_before_somebody_listens_for_two_seconds_at_most() {
    let stage = Stage::new();
    for (listens_after, expected) in [(Some(ms(700)), ms(700)), (None, ms(2_000))] {
        let client = stage.connect();
        client.send(&config(
            json!({"stream_id": format!("s{}", expected.as_millis()), "rtc": {"room_name": "r"}}),
        ));
        client.event("ready").await;
        let (_, link) = stage.rooms.link();
        // It may have been in the room for long.
        sleep(ms(5_000)).await;
        let asked = tokio::time::Instant::now();
        client.send(&json!({"type": "speak", "text": "hello", "id": "a"}));
        if let Some(after) = listens_after {
            sleep(after).await;
            assert_eq!(link.frames().len(), 0);
            link.tell(LinkEvent::Listened);
        }
        client.event("tts_playback_complete").await;
        let late = link.frames()[0].0 - asked;
        assert!(late >= expected && late < expected + ms(50), "{late:?}");
        client.closes();
    }
    stage.is_empty().await;
}

#[actix::test]
async fn a_session_that_is_left_alone_ends_and_one_that_nobody_came_to_waits() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&in_room(json!({"empty_timeout_seconds": 5})));
    client.event("ready").await;
    let (_, link) = stage.rooms.link();
    sleep(ms(30_000)).await;
    link.joins("ann");
    link.leaves("ann");
    sleep(ms(4_000)).await;
    link.joins("bob");
    sleep(ms(4_000)).await;
    link.leaves("bob");
    let left = tokio::time::Instant::now();
    assert_eq!(client.closed().await, 1000);
    let waited = left.elapsed();
    assert!(waited >= ms(5_000) && waited < ms(8_000), "{waited:?}");
    stage.is_empty().await;
    assert!(link.was_left());
}

#[actix::test]
async fn whoever_loses_the_room_is_told_why() {
    tokio::time::pause();
    for (ending, code, is_error) in [
        (Ending::Removed, 1000, false),
        (Ending::Disowned, 1000, false),
        (Ending::Duplicate, 1000, false),
        (Ending::RoomDeleted, 1000, false),
        (Ending::Network("gone for 60 s".to_owned()), 1011, true),
        (Ending::Refused("stopping".to_owned()), 1011, true),
    ] {
        let stage = Stage::in_paused_time(LEAD);
        let client = stage.connect();
        client.send(&in_room(json!({})));
        client.event("ready").await;
        let (_, link) = stage.rooms.link();
        link.tell(LinkEvent::Reconnecting);
        let event = client.event("provider_event").await;
        assert_eq!(
            (&event["kind"], &event["state"]),
            (&json!("rtc"), &json!("reconnecting"))
        );
        link.tell(LinkEvent::Reconnected { resumed: true });
        assert_eq!(client.event("provider_event").await["state"], "recovered");
        link.ends(ending.clone());
        let event = client.event("provider_event").await;
        assert_eq!(
            (&event["state"], &event["provider"]),
            (&json!("failed"), &json!("scripted"))
        );
        assert_eq!(event["message"], ending.to_string());
        if is_error {
            let error = client.event("error").await;
            assert_eq!(
                (&error["code"], &error["fatal"]),
                (&json!("rtc_failed"), &json!(true))
            );
        }
        assert_eq!(client.closed().await, code, "{ending:?}");
        stage.is_empty().await;
    }
}

#[actix::test]
async fn a_room_that_cannot_be_entered_refuses_the_config_which_may_be_sent_again() {
    let stage = Stage::new();
    let client = stage.connect();
    stage.rooms.keep("r", r#"{"auth_id": "somebody"}"#, &[]);
    stage.rooms.refuses(RoomErrorKind::Unavailable);
    client.send(&in_room(json!({})));
    let error = client.event("error").await;
    assert_eq!(
        (&error["code"], &error["fatal"]),
        (&json!("rtc_failed"), &json!(false))
    );
    assert!(error["message"].as_str().unwrap().contains("not now"));
    client.send(&in_room(json!({})));
    client.event("ready").await;
    let (_, link) = stage.rooms.link();

    // The room stays what it is, what can change of it does.
    for (rtc, place) in [
        (json!({"room_name": "other"}), "rtc.room_name"),
        (
            json!({"room_name": "r", "service_participant_identity": "b"}),
            "rtc.service_participant_identity",
        ),
        (
            json!({"room_name": "r", "stt_mode": "per_participant"}),
            "rtc.stt_mode",
        ),
        (Value::Null, "rtc"),
    ] {
        client.send(&config(json!({"rtc": rtc})));
        let error = client.event("error").await;
        assert_eq!(error["code"], "invalid_message");
        assert!(
            error["message"].as_str().unwrap().starts_with(place),
            "{error}"
        );
    }
    client.send(&in_room(
        json!({"delete_room": "always", "listen_participants": ["ann"]}),
    ));
    let ready = client.event("ready").await;
    assert_eq!(ready["rtc_room_name"], "r");
    link.says("bob", "chat", b"not for it");
    link.says("ann", "chat", b"for it");
    assert_eq!(
        client.event("message").await["message"]["message"],
        "for it"
    );
    client.sound(&[0; 320]);
    client.sound(&[0; 320]);
    let error = client.event("error").await;
    assert_eq!(error["code"], "audio_disabled");
    client.closes();
    stage.is_empty().await;
    assert_eq!(
        stage.rooms.names(),
        [""; 0],
        "it was to be deleted in any case"
    );
}

#[actix::test]
async fn a_room_that_was_there_or_has_people_left_is_not_deleted() {
    let stage = Stage::new();
    stage.rooms.keep("r", "", &[]);
    for delete in ["auto", "never"] {
        let client = stage.connect();
        client.send(&in_room(json!({"delete_room": delete})));
        client.event("ready").await;
        client.closes();
        sleep(ms(100)).await;
        assert_eq!(stage.rooms.names(), ["r"], "{delete}");
    }
    stage.is_empty().await;
}

#[actix::test]
async fn a_room_that_has_become_somebody_elses_is_not_deleted() {
    let stage = Stage::new();
    for (access, owner) in [
        (Access::public(), r#"{"auth_id":"a"}"#),
        (Access::public(), r#"{"operator":true}"#),
        (Access::of_tenant("b"), r#"{"auth_id":"a"}"#),
    ] {
        let client = stage.connect_as(access.clone(), None);
        client.send(&in_room(json!({"delete_room": "always"})));
        client.event("ready").await;
        stage.rooms.keep("r", owner, &["caller"]);
        let (_, link) = stage.rooms.link();
        link.ends(Ending::Disowned);
        assert_eq!(client.closed().await, 1000);
        stage.is_empty().await;
        assert_eq!(stage.rooms.names(), ["r"], "{access:?} {owner}");
        // The next one finds none.
        stage.rooms.forget("r");
    }
}

#[actix::test]
async fn a_session_without_a_token_puts_nobody_out() {
    let stage = Stage::new();
    stage.rooms.keep("r", "", &["ann"]);
    let client = stage.connect_as(Access::public(), None);
    let wish = |identity: &str| {
        in_room(json!({"service_participant_identity": identity, "delete_room": "always"}))
    };
    client.send(&wish("ann"));
    let refused = client.event("error").await;
    assert_eq!(
        (&refused["code"], &refused["fatal"]),
        (&json!("room_access_denied"), &json!(false))
    );
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.starts_with("rtc: service_participant_identity:"),
        "{message}"
    );
    // Under a name of its own it may come, and leaves the room to who is there.
    client.send(&wish("stranger"));
    client.event("ready").await;
    client.closes();
    stage.is_empty().await;
    assert_eq!(stage.rooms.names(), ["r"]);
    // One that nobody else is in it does delete.
    stage.rooms.keep("r", "", &[]);
    let client = stage.connect_as(Access::public(), None);
    client.send(&wish("stranger"));
    client.event("ready").await;
    client.closes();
    stage.is_empty().await;
    assert_eq!(stage.rooms.names(), [""; 0]);
    // Who runs the server does both.
    stage.rooms.keep("r", "", &["ann"]);
    let client = stage.connect();
    client.send(&wish("ann"));
    client.event("ready").await;
    client.closes();
    stage.is_empty().await;
    assert_eq!(stage.rooms.names(), [""; 0]);
}

#[actix::test]
async fn a_session_without_a_token_does_not_record() {
    let stage = Stage::new();
    let client = stage.connect_as(Access::public(), None);
    for wanted in [
        json!({"recording": true}),
        json!({"rtc": {"room_name": "r", "enable_recording": true}}),
        json!({"rtc": {"room_name": "r", "enable_recording": true, "recording": "egress"}}),
    ] {
        client.send(&config(wanted));
        let refused = client.event("error").await;
        assert_eq!(refused["code"], "recording_unavailable");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("auth.public_recordings"), "{message}");
    }
    assert_eq!(stage.rooms.names(), [""; 0]);
}

#[actix::test]
async fn a_session_without_sound_is_in_a_room_too() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&json!({"type": "config", "audio": false, "rtc": {"room_name": "r"}}));
    client.event("ready").await;
    let (join, link) = stage.rooms.link();
    assert!(!join.audio);
    link.joins("ann");
    client.event("participant_connected").await;
    let event = LinkEvent::TrackPublished {
        identity: "ann".to_owned(),
        track: Box::new(TrackInfo::default()),
    };
    link.tell(event);
    link.says("ann", "chat", b"hello");
    client.event("message").await;
    client.send(&json!({"type": "speak", "text": "hello"}));
    assert_eq!(client.event("error").await["code"], "audio_disabled");
    client.send(&json!({"type": "send_message", "message": "hi", "role": "user", "topic": "t"}));
    sleep(ms(10)).await;
    assert_eq!(link.messages()[0].0, "t");
    client.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn people_who_are_heard_alone_are_told_by_name_and_each_ends_its_own_turns() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&in_room(json!({"stt_mode": "per_participant"})));
    client.event("ready").await;
    assert_eq!(stage.recogniser.opened(), 0, "nobody is there to be heard");
    let (_, link) = stage.rooms.link();
    let [mut ann, mut bob] = ["ann", "bob"].map(|name| {
        link.joins(name);
        link.publishes(name)
    });
    link.tell(LinkEvent::Listened);
    // Bob speaks first, so that it is his recogniser that hears loud audio.
    bob.speaks(ms(400)).await;
    let streams = [
        stage.recogniser.stream(0).await,
        stage.recogniser.stream(1).await,
    ];
    let loud = streams.each_ref().map(|stream| stream.louder_than(10_000));
    let of_bob = usize::from(loud[1] > loud[0]);
    assert!(loud[of_bob] > 1_660 && loud[1 - of_bob] == 0, "{loud:?}");
    streams[of_bob].says(said("it is bob"));
    let heard = client.event("stt_result").await;
    assert_eq!(
        (&heard["identity"], &heard["transcript"]),
        (&json!("bob"), &json!("it is bob"))
    );
    ann.speaks(ms(400)).await;
    streams[1 - of_bob].says(said("it is ann"));
    ann.is_silent(ms(1_500)).await;
    bob.is_silent(ms(1_500)).await;
    let results = client.events_of("stt_result");
    let turns = results
        .iter()
        .filter(|result| result["is_speech_final"] == true);
    let mut turns: Vec<_> = turns
        .map(|result| {
            (
                result["identity"].as_str().unwrap(),
                result["turn_transcript"].as_str().unwrap(),
            )
        })
        .collect();
    turns.sort_unstable();
    assert_eq!(turns, [("ann", "it is ann"), ("bob", "it is bob")]);
    let voices = client.events_of("vad_event");
    assert!(
        voices.iter().all(|event| event["identity"].is_string()),
        "{voices:?}"
    );
    // Who leaves is understood to the end, and its recogniser goes.
    streams[of_bob].ends_with(said("bye"));
    link.leaves("bob");
    client.event("participant_disconnected").await;
    loop {
        let heard = client.event("stt_result").await;
        if heard["transcript"] == "bye" {
            assert_eq!(heard["identity"], "bob");
            break;
        }
    }
    assert_eq!(stage.recogniser.live(), 1);
    client.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn an_update_changes_how_people_are_heard_alone() {
    let stage = Stage::new();
    let client = stage.connect();
    client.send(&in_room(json!({"stt_mode": "per_participant"})));
    client.event("ready").await;
    let (_, link) = stage.rooms.link();
    link.joins("ann");
    let mut ann = link.publishes("ann");
    ann.speaks(ms(400)).await;
    let before = stage.recogniser.stream(0).await;
    assert_eq!(before.language, "en-US");
    client.send(&json!({"type": "update_config", "stt_config": {"language": "de-DE"}}));
    client.event("ready").await;
    ann.speaks(ms(400)).await;
    let after = stage.recogniser.stream(1).await;
    assert_eq!(after.language, "de-DE");
    after.says(said("hier ist ann"));
    let heard = client.event("stt_result").await;
    assert_eq!(heard["identity"], "ann");
    // Also who comes later.
    link.joins("bob");
    let mut bob = link.publishes("bob");
    bob.speaks(ms(400)).await;
    assert_eq!(stage.recogniser.stream(2).await.language, "de-DE");
    ann.is_silent(ms(1_500)).await;
    assert_eq!(stage.recogniser.live(), 2, "the one before has gone");
    client.send(&json!({"type": "update_config", "stt_config": {"sample_rate": 8000}}));
    assert_eq!(client.event("error").await["code"], "invalid_message");
    client.closes();
    stage.is_empty().await;
}
