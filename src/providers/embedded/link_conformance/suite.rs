//! The promises that every kind of link keeps.

use super::network::{Network, Weather};
use super::*;

/// Makes a test of each promise for each of these kinds.
macro_rules! promises {
    ($($kind:ident = $module:ident),* { $($promise:ident),* $(,)? }) => {
        promises!(@ [$($kind = $module),*] [$($promise),*]);
    };
    (@ [$($kind:ident = $module:ident),*] $promises:tt) => {
        $(promises!(@@ $kind $module $promises);)*
    };
    (@@ $kind:ident $module:ident [$($promise:ident),*]) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    super::$promise(super::Kind::$kind).await;
                }
            )*
        }
    };
}

promises! { One = one, Two = two, Local = local {
    sound_goes_both_ways_in_order,
    messages_go_both_ways,
    a_mute_is_seen_and_stops_sound,
    comings_and_goings_are_told,
    whoever_is_not_listened_to_is_not_heard,
    a_link_ends_with_its_reason,
    nothing_is_left_behind,
    a_session_without_sound_has_messages,
    a_server_that_asks_to_start_anew_gets_it,
    rooms_on_two_threads_come_together_and_nobody_notices,
}}

// Over the network the server's queue is longer than any burst, and a client that does not read loses its place.
promises! { Local = local_only {
    a_burst_of_messages_arrives_whole_at_whoever_reads_it_late,
}}

// There is no network within the process.
promises! { One = network_one, Two = network_two {
    a_cut_socket_is_resumed_and_sound_goes_on,
    a_network_that_was_gone_comes_back,
    a_network_gone_for_good_ends_the_link,
    a_bad_network_costs_packets_and_not_the_track,
    a_refused_token_is_told,
}}

async fn a_burst_of_messages_arrives_whole_at_whoever_reads_it_late(kind: Kind) {
    const MESSAGES: usize = 10_000;
    let house = House::new(kind);
    let mut ann = house.enter("ann").await;
    for n in 0..MESSAGES {
        let message = vivavoce_rooms::RoomMessage {
            payload: n.to_string().into_bytes(),
            ..vivavoce_rooms::RoomMessage::default()
        };
        let sent = house.server.send_data("kitchen".to_owned(), message);
        sent.await.unwrap();
    }
    for n in 0..MESSAGES {
        assert_eq!(&*ann.message().await.payload, n.to_string().as_bytes());
    }
}

/// One speaks, and the other hears all of it in order.
async fn talk(speaker: &mut Guest, listener: &mut Guest, frames: u32) {
    let (whom, from) = (speaker.identity.clone(), speaker.said);
    let ((), heard) = tokio::join!(speaker.say(frames), listener.hear(&whom, frames as usize));
    assert_eq!(heard, (from..from + frames).collect::<Vec<_>>());
}

/// Speaks until the other hears it: with two peer connections the server cannot send before it has read the answer, which
/// the answering side does not notice.
async fn reach(speaker: &mut Guest, listener: &mut Guest) {
    let whom = speaker.identity.clone();
    let audio = &listener.heard[&whom];
    let reaching = async {
        loop {
            speaker.say(1).await;
            let newest = format!("{whom} says {}", speaker.said - 1);
            let heard =
                async {
                    while audio.next().await.is_some_and(|packet| {
                        packet.payload != Payload::Opus(newest.as_bytes().into())
                    }) {}
                };
            if tokio::time::timeout(10 * FRAME, heard).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reaching).await.unwrap();
}

/// Two who hear each other.
async fn two(house: &House) -> (Guest, Guest) {
    let (mut ann, mut bob) = (house.enter("ann").await, house.enter("bob").await);
    tokio::join!(ann.hears("bob"), bob.hears("ann"));
    tokio::join!(ann.listened(), bob.listened());
    reach(&mut ann, &mut bob).await;
    reach(&mut bob, &mut ann).await;
    (ann, bob)
}

async fn sound_goes_both_ways_in_order(kind: Kind) {
    let house = House::new(kind);
    let (mut ann, mut bob) = two(&house).await;
    talk(&mut ann, &mut bob, 30).await;
    talk(&mut bob, &mut ann, 30).await;
    assert_eq!((ann.publish.dropped(), bob.publish.dropped()), (0, 0));
    let late = house.enter("cid").await;
    let (mut ann, mut cid) = (ann, late);
    cid.hears("ann").await;
    reach(&mut ann, &mut cid).await;
    talk(&mut ann, &mut cid, 30).await;
}

async fn messages_go_both_ways(kind: Kind) {
    let house = House::new(kind);
    let (mut ann, mut bob) = (house.enter("ann").await, house.enter("bob").await);
    let mut cid = house.enter("cid").await;
    for (reliable, text) in [(true, "first"), (true, "second")] {
        ann.send(text, reliable, &[]);
        let got = bob.message().await;
        assert_eq!(
            (got.identity.as_deref(), got.topic.as_deref()),
            (Some("ann"), Some("messages"))
        );
        assert_eq!((&*got.payload, got.reliable), (text.as_bytes(), reliable));
    }
    bob.send("unreliable", false, &["ann"]);
    let got = ann.message().await;
    assert_eq!((&*got.payload, got.reliable), (&b"unreliable"[..], false));
    let words: Vec<String> = (0..500)
        .map(|n| format!("{n}{}", "x".repeat(1_000)))
        .collect();
    words.iter().for_each(|word| bob.send(word, true, &["cid"]));
    for text in ["first", "second"] {
        assert_eq!(
            &*cid.message().await.payload,
            text.as_bytes(),
            "everybody got what was for everybody"
        );
    }
    for word in &words {
        assert_eq!(&*cid.message().await.payload, word.as_bytes());
    }
    let message = vivavoce_rooms::RoomMessage {
        payload: b"from the server".to_vec(),
        ..Default::default()
    };
    house
        .server
        .send_data("kitchen".to_owned(), message)
        .await
        .unwrap();
    let got = ann.message().await;
    assert_eq!(
        (&*got.payload, got.identity),
        (&b"from the server"[..], None)
    );
    let large = Outgoing {
        payload: vec![0; 70_000].into(),
        ..Outgoing::default()
    };
    assert_eq!(
        ann.control.send(large),
        Err(vivavoce_seams::rooms::link::SendError::TooLarge)
    );
}

async fn a_mute_is_seen_and_stops_sound(kind: Kind) {
    let house = House::new(kind);
    let (mut ann, mut bob) = two(&house).await;
    let muted = |now: bool| move |event: &LinkEvent| matches!(event, LinkEvent::TrackMuted { identity, muted, .. } if identity == "ann" && *muted == now);
    ann.control.mute(true);
    bob.happens("mute", muted(true)).await;
    ann.say(5).await;
    ann.control.mute(false);
    bob.happens("end of the mute", muted(false)).await;
    talk(&mut ann, &mut bob, 5).await;
    let sid = present(&house.server).await[0].tracks[0].sid.clone();
    for now in [true, false] {
        let mute =
            house
                .server
                .mute_track("kitchen".to_owned(), "ann".to_owned(), sid.clone(), now);
        mute.await.unwrap();
        ann.happens(
            "word of it",
            |event| matches!(event, LinkEvent::Muted(muted) if *muted == now),
        )
        .await;
        bob.happens("mute", muted(now)).await;
    }
    talk(&mut ann, &mut bob, 5).await;
}

async fn comings_and_goings_are_told(kind: Kind) {
    let house = House::new(kind);
    let mut ann = house.enter("ann").await;
    let bob = house.enter("bob").await;
    let info = ann
        .until("newcomer", |event| match event {
            LinkEvent::ParticipantJoined(info) if info.identity == "bob" => Ok(info),
            other => Err(other),
        })
        .await;
    assert_eq!(
        (info.name.as_str(), info.kind()),
        ("BOB", proto::participant_info::Kind::Agent)
    );
    assert_eq!(
        info.attributes.get("colour").map(String::as_str),
        Some("blue")
    );
    let track = ann
        .until("track", |event| match event {
            LinkEvent::TrackPublished { identity, track } if identity == "bob" => Ok(track),
            other => Err(other),
        })
        .await;
    assert_eq!(
        (track.source(), track.muted),
        (proto::TrackSource::Microphone, false)
    );
    let change = vivavoce_rooms::ParticipantChange {
        metadata: Some("new".to_owned()),
        ..Default::default()
    };
    let changed = house
        .server
        .update_participant("kitchen".to_owned(), "bob".to_owned(), change);
    changed.await.unwrap();
    ann.happens(
        "change",
        |event| matches!(event, LinkEvent::ParticipantUpdated(info) if info.metadata == "new"),
    )
    .await;
    bob.control.leave().await;
    ann.happens(
        "end of the track",
        |event| matches!(event, LinkEvent::TrackUnpublished { sid, .. } if *sid == track.sid),
    )
    .await;
    ann.happens(
        "farewell",
        |event| matches!(event, LinkEvent::ParticipantLeft(info) if info.identity == "bob"),
    )
    .await;
}

async fn whoever_is_not_listened_to_is_not_heard(kind: Kind) {
    let house = House::new(kind);
    let only_bob = Join {
        listen: Listen::Only(vec!["bob".to_owned()]),
        ..join("ann")
    };
    let mut ann = house.enter_as(only_bob, PATIENCE).await;
    let (mut bob, mut cid) = (house.enter("bob").await, house.enter("cid").await);
    ann.hears("bob").await;
    bob.listened().await;
    reach(&mut bob, &mut ann).await;
    talk(&mut bob, &mut ann, 5).await;
    assert!(
        !ann.unread
            .iter()
            .any(|event| matches!(event, LinkEvent::TrackSubscribed { .. }))
    );
    ann.control.listen(Listen::Only(vec!["cid".to_owned()]));
    ann.hears("cid").await;
    reach(&mut cid, &mut ann).await;
    talk(&mut cid, &mut ann, 5).await;
    bob.say(5).await;
    assert_eq!(
        ann.heard["bob"].next().await,
        None,
        "a track that is not listened to any more ends"
    );
    for _ in 0..3 {
        ann.control.listen(Listen::All);
        ann.hears("bob").await;
        reach(&mut bob, &mut ann).await;
        talk(&mut bob, &mut ann, 5).await;
        ann.control.listen(Listen::Only(vec![]));
        while ann.heard["bob"].next().await.is_some() {}
    }
}

async fn a_link_ends_with_its_reason(kind: Kind) {
    let house = House::new(kind);
    let mut ann = house.enter("ann").await;
    let mut again = house.enter("ann").await;
    assert_eq!(ann.ending().await, Ending::Duplicate);
    assert_ne!(ann.sid, again.sid);
    house
        .server
        .remove_participant("kitchen".to_owned(), "ann".to_owned())
        .await
        .unwrap();
    assert_eq!(again.ending().await, Ending::Removed);
    assert_eq!(
        again.control.send(Outgoing::default()),
        Err(vivavoce_seams::rooms::link::SendError::Ended)
    );
    let mut bob = house.enter("bob").await;
    house
        .server
        .delete_room("kitchen".to_owned())
        .await
        .unwrap();
    assert_eq!(bob.ending().await, Ending::RoomDeleted);
    assert!(bob.events.next().await.is_none());
}

async fn nothing_is_left_behind(kind: Kind) {
    let house = House::new(kind);
    let (mut ann, bob) = two(&house).await;
    bob.control.leave().await;
    let alone = || async { (present(&house.server).await.len() == 1).then_some(()) };
    eventually("the one who left is gone", alone).await;
    while ann.heard["bob"].next().await.is_some() {}
    let cid = house.enter("cid").await;
    drop(cid);
    ann.happens(
        "farewell",
        |event| matches!(event, LinkEvent::ParticipantLeft(info) if info.identity == "cid"),
    )
    .await;
    drop(ann);
    let empty = || async { present(&house.server).await.is_empty().then_some(()) };
    eventually("nobody is left", empty).await;
}

async fn a_session_without_sound_has_messages(kind: Kind) {
    let house = House::new(kind);
    let silent = Join {
        audio: false,
        ..join("ann")
    };
    let mut ann = house.enter_as(silent, PATIENCE).await;
    let mut bob = house.enter("bob").await;
    ann.happens("track", |event| {
        matches!(event, LinkEvent::TrackPublished { .. })
    })
    .await;
    bob.send("hello", true, &[]);
    assert_eq!(&*ann.message().await.payload, b"hello");
    ann.send("well", true, &[]);
    assert_eq!(&*bob.message().await.payload, b"well");
    assert!(
        !ann.unread
            .iter()
            .any(|event| matches!(event, LinkEvent::TrackSubscribed { .. }))
    );
    assert!(
        !bob.unread
            .iter()
            .any(|event| matches!(event, LinkEvent::TrackPublished { .. }))
    );
}

async fn a_cut_socket_is_resumed_and_sound_goes_on(kind: Kind) {
    let house = House::new(kind);
    let (mut ann, mut bob) = two(&house).await;
    for _ in 0..2 {
        talk(&mut ann, &mut bob, 5).await;
        house.edge.cut();
        // Media is not affected.
        talk(&mut ann, &mut bob, 50).await;
        for guest in [&mut ann, &mut bob] {
            guest
                .happens("loss", |event| matches!(event, LinkEvent::Reconnecting))
                .await;
            guest
                .happens("resumption", |event| {
                    matches!(event, LinkEvent::Reconnected { resumed: true })
                })
                .await;
        }
        let sids: Vec<String> = present(&house.server)
            .await
            .into_iter()
            .map(|info| info.sid)
            .collect();
        assert_eq!(
            sids,
            [ann.sid.clone(), bob.sid.clone()],
            "the same sessions"
        );
        ann.send("after", true, &[]);
        assert_eq!(&*bob.message().await.payload, b"after");
    }
    let cid = house.enter("cid").await;
    ann.hears("cid").await;
    cid.control.leave().await;
}

async fn a_network_that_was_gone_comes_back(kind: Kind) {
    let weather = Weather {
        loss: 0.0,
        jitter: Duration::ZERO,
    };
    // After 15 s media counts as lost; a little later the server has removed the participant.
    let long = std::env::var_os("VIVAVOCE_LONG").is_some();
    for seconds in if long { &[3, 10, 25][..] } else { &[3] } {
        let (sockets, network) = Network::around(weather, 1).await;
        let house = House::on(kind, sockets);
        let (mut ann, mut bob) = two(&house).await;
        network.down(true);
        house.edge.down(true);
        for guest in [&mut ann, &mut bob] {
            guest
                .happens("loss", |event| matches!(event, LinkEvent::Reconnecting))
                .await;
        }
        bob.send("in the dark", true, &[]);
        ann.say(seconds * 50).await;
        network.down(false);
        house.edge.down(false);
        let mut resumed = true;
        for guest in [&mut ann, &mut bob] {
            resumed &= guest
                .until("return", |event| match event {
                    LinkEvent::Reconnected { resumed } => Ok(resumed),
                    other => Err(other),
                })
                .await;
        }
        assert!(
            resumed || *seconds > 20,
            "the same session after {seconds} s"
        );
        assert_eq!(&*ann.message().await.payload, b"in the dark");
        if !resumed {
            bob.heard.clear();
            bob.hears("ann").await;
        }
        reach(&mut ann, &mut bob).await;
        talk(&mut ann, &mut bob, 20).await;
    }
}

async fn a_network_gone_for_good_ends_the_link(kind: Kind) {
    let house = House::new(kind);
    let mut ann = house.enter_as(join("ann"), Duration::from_secs(2)).await;
    house.edge.down(true);
    ann.happens("loss", |event| matches!(event, LinkEvent::Reconnecting))
        .await;
    assert!(matches!(ann.ending().await, Ending::Network(_)));
    let nobody = house.connect(join("bob"), PATIENCE).await;
    assert!(matches!(nobody, Err(Ending::Network(_))));
}

async fn a_bad_network_costs_packets_and_not_the_track(kind: Kind) {
    let weather = Weather {
        loss: 0.05,
        jitter: Duration::from_millis(30),
    };
    for seed in 1..=3 {
        let (sockets, _network) = Network::around(weather, seed).await;
        let house = House::on(kind, sockets);
        let (mut ann, mut bob) = two(&house).await;
        let audio = bob.heard.remove("ann").unwrap();
        let reading = tokio::spawn(async move {
            let mut packets = Vec::new();
            while let Some(packet) = audio.next().await {
                // The silence that the room sends before the first frame may come behind it.
                if packet.payload != Payload::Opus([0xf8, 0xff, 0xfe].as_slice().into()) {
                    packets.push(packet);
                }
            }
            (packets, audio.dropped())
        });
        ann.say(200).await;
        for n in 0..20 {
            ann.send(&n.to_string(), true, &[]);
        }
        for n in 0..20 {
            assert_eq!(&*bob.message().await.payload, n.to_string().as_bytes());
        }
        let lost_here = ann.publish.dropped();
        ann.control.leave().await;
        let (packets, dropped) = reading.await.unwrap();
        assert!(
            packets.len() >= 150 && dropped == 0,
            "seed {seed}: {} {lost_here}",
            packets.len()
        );
        assert_eq!(lost_here, 0);
        // A lost packet leaves a gap of the same size in the sequence numbers, so that it can be concealed.
        let said = |payload: &Payload| -> u64 {
            let Payload::Opus(payload) = payload else {
                panic!("frames that are encoded arrive encoded");
            };
            std::str::from_utf8(payload).unwrap()[9..].parse().unwrap()
        };
        let shift = packets[0].sequence - said(&packets[0].payload);
        for packet in &packets {
            assert_eq!(packet.sequence - said(&packet.payload), shift);
            let time = packet.timestamp.wrapping_sub(packets[0].timestamp);
            assert_eq!(
                time,
                ((said(&packet.payload) as u32).wrapping_sub(said(&packets[0].payload) as u32))
                    .wrapping_mul(960)
            );
        }
    }
}

async fn a_server_that_asks_to_start_anew_gets_it(kind: Kind) {
    let house = House::new(kind);
    let (mut ann, mut bob) = two(&house).await;
    house
        .server
        .renew_participant("kitchen".to_owned(), "ann".to_owned())
        .await
        .unwrap();
    ann.happens("return", |event| {
        matches!(event, LinkEvent::Reconnected { resumed: false })
    })
    .await;
    assert_eq!(ann.heard["bob"].next().await, None, "the old readers end");
    tokio::join!(ann.hears("bob"), bob.hears("ann"));
    ann.listened().await;
    reach(&mut ann, &mut bob).await;
    reach(&mut bob, &mut ann).await;
    talk(&mut ann, &mut bob, 10).await;
    talk(&mut bob, &mut ann, 10).await;
    ann.send("hello", true, &[]);
    assert_eq!(&*bob.message().await.payload, b"hello");
    assert_eq!(present(&house.server).await.len(), 2);
}

async fn a_refused_token_is_told(kind: Kind) {
    let house = House::new(kind);
    let refused = house
        .connect_with(join("ann"), "no token".to_owned(), PATIENCE)
        .await;
    assert!(
        matches!(&refused, Err(Ending::Refused(why)) if why.contains("401")),
        "{refused:?}"
    );
}

/// Somebody is forwarded to a room of another thread: the smaller room goes there, with its sockets, sound and messages.
async fn rooms_on_two_threads_come_together_and_nobody_notices(kind: Kind) {
    let house = House::new(kind);
    let thread_of = |room| house.server.thread_of(room);
    let in_room = |room: &str, identity: &str| Join {
        room: room.to_owned(),
        ..join(identity)
    };
    let (mut ann, mut bob) = two(&house).await;
    let mut others = Vec::new();
    for identity in ["cat", "dan", "eve"] {
        let join = in_room("cellar", identity);
        others.push(house.enter_as(join, Duration::from_mins(1)).await);
    }
    let (kitchen, cellar) = (thread_of("kitchen"), thread_of("cellar"));
    assert_ne!(kitchen, cellar);
    let forward = house.server.forward_participant(
        "kitchen".to_owned(),
        "ann".to_owned(),
        "cellar".to_owned(),
    );
    // Said while the room is on its way, too.
    let (forwarded, ()) = tokio::join!(forward, ann.say(25));
    forwarded.unwrap();
    assert_eq!(
        (thread_of("kitchen"), thread_of("cellar")),
        (cellar, cellar)
    );
    for listener in &mut others {
        listener.hears("ann").await;
        reach(&mut ann, listener).await;
    }
    reach(&mut ann, &mut bob).await;
    talk(&mut ann, &mut bob, 25).await;
    talk(&mut bob, &mut ann, 25).await;
    bob.send("hello", true, &[]);
    assert_eq!(&*ann.message().await.payload, b"hello");

    // A third room, on the other thread, is the smaller one of the next two.
    let fay = in_room("attic", "fay");
    let mut fay = house.enter_as(fay, Duration::from_mins(1)).await;
    assert_eq!(thread_of("attic"), kitchen);
    let forward = house.server.forward_participant(
        "kitchen".to_owned(),
        "bob".to_owned(),
        "attic".to_owned(),
    );
    forward.await.unwrap();
    assert_eq!(thread_of("attic"), cellar);
    fay.hears("bob").await;
    reach(&mut bob, &mut fay).await;
    reach(&mut bob, &mut ann).await;
    talk(&mut bob, &mut ann, 25).await;
    let rooms = house.server.list_rooms(Vec::new()).await.unwrap();
    let rooms: Vec<_> = rooms.into_iter().map(|room| room.name).collect();
    assert_eq!(rooms, ["kitchen", "cellar", "attic"]);

    // The seats of rooms that have ended are free.
    for room in ["kitchen", "cellar", "attic"] {
        house.server.delete_room(room.to_owned()).await.unwrap();
    }
    assert_eq!(ann.ending().await, Ending::RoomDeleted);
    assert_eq!(thread_of("kitchen"), 0);
}
