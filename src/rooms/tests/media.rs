//! Media and messages through the SFU, over good and bad networks.

use std::time::{Duration, Instant};

use livekit_protocol as proto;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use str0m::media::Mid;
use str0m::net::Protocol;
use str0m::rtp::RtpPacket;
use str0m_netem::{Netem, NetemConfig, Probability, RandomLoss};

use super::Bench;
use super::stage::{Stage, bad_network, reliable};

#[test]
fn everybody_hears_everybody_and_nobody_itself() {
    let mut stage = Stage::new(NetemConfig::new());
    let all: Vec<usize> = ["a", "b", "c"]
        .into_iter()
        .map(|name| stage.join(name))
        .collect();
    stage.run(Duration::from_secs(1), &[]);
    let mut speakers = vec![];
    for who in &all {
        speakers.push((*who, stage.publish(*who, &format!("cid{who}"))));
        // A client has one pending offer at a time.
        stage.run(Duration::from_secs(1), &[]);
    }
    stage.run(Duration::from_secs(2), &speakers);
    for listener in &all {
        for speaker in &all {
            let heard = stage.clients[*listener].heard_of(*speaker);
            let expected: Vec<u64> = if listener == speaker {
                vec![]
            } else {
                (1..=heard.len() as u64).collect()
            };
            assert_eq!(heard, expected);
            assert!(listener == speaker || heard.len() >= 98, "{}", heard.len());
        }
    }
    let speaks = |message: &Message| matches!(message, Message::SpeakersChanged(told) if told.speakers.iter().any(|s| s.active));
    assert!(
        stage
            .bench
            .told(stage.clients[0].connection)
            .iter()
            .any(speaks)
    );
}

#[test]
fn what_is_said_on_several_tracks_at_once_comes_at_once() {
    let mut stage = Stage::new(NetemConfig::new());
    let (speaker, listener) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(1), &[]);
    let mut tracks = vec![];
    for cid in ["one", "two", "three"] {
        tracks.push((speaker, stage.publish(speaker, cid)));
        stage.run(Duration::from_secs(1), &[]);
    }
    stage.run(Duration::from_secs(2), &tracks);
    let heard = stage.clients[listener].heard.iter();
    let said = heard.filter(|(_, packet)| packet.payload.starts_with(b"0 says"));
    let times: Vec<Instant> = said.map(|(_, packet)| packet.timestamp).collect();
    assert!(times.len() >= 3 * 98, "{}", times.len());
    let mut together = times.chunk_by(|one, other| one == other);
    assert!(together.all(|packets| packets.len() == 3));
}

#[test]
fn a_track_that_is_silent_when_it_is_subscribed_begins_and_goes_on_without_a_gap() {
    let mut stage = Stage::new(NetemConfig::new());
    let (speaker, listener) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(1), &[]);
    let mid = stage.publish(speaker, "cid");
    stage.run(Duration::from_secs(5), &[]);
    let numbers = |stage: &Stage| -> Vec<u64> {
        let heard = stage.clients[listener].heard.iter();
        heard.map(|(_, packet)| *packet.seq_no).collect()
    };
    let silence = numbers(&stage);
    // All that its receiver can take, and no more.
    assert!((1..=5).contains(&silence.len()), "{silence:?}");
    assert!(stage.clients[listener].heard_of(speaker).is_empty());
    stage.run(Duration::from_secs(1), &[(speaker, mid)]);
    let all = numbers(&stage);
    assert!(all.len() >= silence.len() + 48, "{all:?}");
    assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1), "{all:?}");
    let heard = stage.clients[listener].heard_of(speaker);
    assert_eq!(heard, (1..=heard.len() as u64).collect::<Vec<_>>());
}

#[test]
fn who_joins_is_told_the_quality_of_the_others_once_and_when_it_is_connected() {
    let mut stage = Stage::new(NetemConfig::new());
    let a = stage.join("a");
    stage.run(Duration::from_secs(3), &[]);
    let b = stage.join("b");
    // The first quality of `a` is known now, and `b` has only just joined.
    stage.run(Duration::from_secs(4), &[]);
    let sid = |stage: &mut Stage, who: usize| {
        let told = stage.bench.told(stage.clients[who].connection);
        told.iter().find_map(|message| match message {
            Message::Join(join) => join.participant.clone().map(|info| info.sid),
            _ => None,
        })
    };
    let of_a = sid(&mut stage, a).unwrap();
    let told_of = |stage: &mut Stage, who: usize, sid: &str| {
        let told = stage.bench.told(stage.clients[who].connection);
        told.iter()
            .filter_map(|message| match message {
                Message::ConnectionQuality(told) => Some(told.updates.clone()),
                _ => None,
            })
            .flatten()
            .filter(|update| update.participant_sid == sid)
            .count()
    };
    assert_eq!(told_of(&mut stage, a, &of_a), 1);
    assert_eq!(told_of(&mut stage, b, &of_a), 0);
    stage.run(Duration::from_secs(4), &[]);
    assert_eq!(told_of(&mut stage, b, &of_a), 1);
}

#[test]
fn a_bad_network_costs_packets_and_not_the_stream() {
    let mut stage = Stage::new(bad_network());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(5), &[]);
    let mid = stage.publish(a, "cid");
    stage.run(Duration::from_secs(2), &[]);
    stage.run(Duration::from_secs(20), &[(a, mid)]);
    let heard = stage.clients[b].heard_of(a);
    assert!(
        (820..1_000).contains(&heard.len()),
        "{} of 1000 through two links of 5 % loss",
        heard.len()
    );
    // The subscriber's sequence numbers have the same gaps as the publisher's, behind the silence with which it began.
    let is_silence = |packet: &RtpPacket| std::str::from_utf8(&packet.payload).is_err();
    let numbers: Vec<(u64, u64)> = stage.clients[b]
        .heard
        .iter()
        .filter(|(_, packet)| !is_silence(packet))
        .map(|(_, p)| *p.seq_no)
        .zip(heard.iter().copied())
        .collect();
    let shift = numbers[0].0 - numbers[0].1;
    assert!(
        numbers
            .iter()
            .all(|(sequence, said)| sequence - said == shift)
    );
}

#[test]
fn reliable_messages_arrive_in_order_signed_and_once() {
    let mut stage = Stage::new(bad_network());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(6), &[]);
    for sequence in [1, 2, 2, 3, 1, 4] {
        stage.send(a, "_reliable", &reliable(sequence));
    }
    stage.run(Duration::from_secs(6), &[]);
    let got: Vec<u32> = stage.clients[b]
        .messages
        .iter()
        .map(|packet| packet.sequence)
        .collect();
    assert_eq!(got, [1, 2, 3, 4]);
    assert!(
        stage.clients[b]
            .messages
            .iter()
            .all(|packet| packet.participant_identity == "a"
                && packet.participant_sid.starts_with("PA_")
                && packet.participant_sid != "PA_liar")
    );
    assert!(stage.clients[a].messages.is_empty());
}

#[test]
fn a_resume_repeats_no_message_that_is_on_its_way() {
    let mut stage = Stage::new(bad_network());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(6), &[]);
    for sequence in 1..=4 {
        stage.send(a, "_reliable", &reliable(sequence));
    }
    stage.run(Duration::from_millis(50), &[]);
    let join = stage.bench.join_response(stage.clients[b].connection);
    let of_a = join.other_participants[0].sid.clone();
    let mut again = super::Bench::admission("b", |_| ());
    again.resume = join.participant.as_ref().map(|b| b.sid.clone());
    let resumed = stage.bench.connect(again);
    // What the client reports is old when it arrives.
    let behind = proto::DataChannelReceiveState {
        publisher_sid: of_a,
        last_seq: 1,
    };
    let state = proto::SyncState {
        datachannel_receive_states: vec![behind],
        ..Default::default()
    };
    stage.bench.ask(resumed, Request::SyncState(state));
    stage.send(a, "_reliable", &reliable(5));
    stage.run(Duration::from_secs(6), &[]);
    let got = stage.clients[b].messages.iter();
    let got: Vec<u32> = got.map(|packet| packet.sequence).collect();
    assert_eq!(got, [1, 2, 3, 4, 5]);
}

#[test]
fn a_message_goes_to_those_it_names() {
    let mut stage = Stage::new(NetemConfig::new());
    let (a, b, c) = (stage.join("a"), stage.join("b"), stage.join("c"));
    stage.run(Duration::from_secs(1), &[]);
    stage.send(
        a,
        "_lossy",
        &proto::DataPacket {
            destination_identities: vec!["c".into()],
            ..reliable(0)
        },
    );
    stage.run(Duration::from_secs(1), &[]);
    assert_eq!(
        (
            stage.clients[b].messages.len(),
            stage.clients[c].messages.len()
        ),
        (0, 1)
    );
}

#[test]
fn a_slot_that_is_used_again_sends_under_another_ssrc() {
    let mut stage = Stage::new(NetemConfig::new());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(1), &[]);
    let mid = stage.publish(a, "cid");
    stage.run(Duration::from_secs(1), &[(a, mid)]);
    let track = stage.clients[b].tracks.values().next().unwrap().clone();
    let connection = stage.clients[b].connection;
    for subscribe in [false, true] {
        let wish = proto::UpdateSubscription {
            track_sids: vec![track.clone()],
            subscribe,
            ..Default::default()
        };
        stage.bench.ask(connection, Request::Subscription(wish));
        stage.run(Duration::from_secs(1), &[(a, mid)]);
    }
    let mut ssrcs: Vec<(Mid, u32)> = stage.clients[b]
        .heard
        .iter()
        .map(|(mid, packet)| (*mid, *packet.header.ssrc))
        .collect();
    ssrcs.dedup();
    assert_eq!(ssrcs.len(), 2, "{ssrcs:?}");
    assert_ne!(ssrcs[0].1, ssrcs[1].1);
}

#[test]
fn lost_media_asks_for_a_resume_and_ends_after_the_grace() {
    let mut stage = Stage::new(NetemConfig::new());
    let (a, b) = (stage.join("a"), stage.join("b"));
    stage.run(Duration::from_secs(2), &[]);
    stage.clients[b].up =
        Netem::new(NetemConfig::new().loss(RandomLoss::new(Probability::new(1.0))));
    let ping = |stage: &mut Stage| {
        for who in [a, b] {
            let connection = stage.clients[who].connection;
            stage.bench.ask(connection, Request::Ping(1));
        }
    };
    for _ in 0..3 {
        stage.run(Duration::from_secs(6), &[]);
        ping(&mut stage);
    }
    let resume = (
        proto::leave_request::Action::Resume,
        proto::DisconnectReason::ConnectionTimeout,
    );
    assert_eq!(
        stage.bench.leave_of(stage.clients[b].connection),
        Some(resume)
    );
    stage.run(Duration::from_secs(6), &[]);
    assert!(stage.bench.sfu.get_participant("kitchen", "b").is_err());
    assert!(stage.bench.sfu.get_participant("kitchen", "a").is_ok());
}

#[test]
fn coming_and_going_leaves_nothing_behind() {
    let mut stage = Stage::new(NetemConfig::new());
    let a = stage.join("a");
    stage.run(Duration::from_secs(1), &[]);
    let mid = stage.publish(a, "cid");
    stage.run(Duration::from_millis(500), &[(a, mid)]);
    for _ in 0..12 {
        let guest = stage.join("guest");
        stage.run(Duration::from_secs(1), &[]);
        let theirs = stage.publish(guest, "guest");
        stage.run(Duration::from_secs(1), &[(a, mid), (guest, theirs)]);
        assert!(stage.clients[guest].heard_of(a).len() > 40);
        assert!(
            stage.clients[a].heard_of(guest).len() > 20,
            "{}",
            stage.clients[a].heard_of(guest).len()
        );
        let connection = stage.clients[guest].connection;
        stage
            .bench
            .ask(connection, Request::Leave(proto::LeaveRequest::default()));
        let connection = stage.clients[a].connection;
        stage.bench.ask(connection, Request::Ping(1));
        stage.run(Duration::from_millis(500), &[(a, mid)]);
    }
    assert!(stage.clients[a].slots.len() <= 4, "slots are used again");
    let held = stage.bench.sfu.held();
    let counts = (held.rooms, held.participants, held.connections, held.routes);
    assert_eq!(counts, (1, 1, 1, 1), "{held:?}");
}

/// A media packet from somebody without the keys that claims to belong to a section; the extension's number is str0m's.
fn forged(ssrc: u32, mid: Mid) -> Vec<u8> {
    let mut packet = vec![0x90, 111, 0, 1, 0, 0, 0, 0];
    packet.extend(ssrc.to_be_bytes());
    let id = str0m::rtp::ExtensionMap::standard().id_of(str0m::rtp::Extension::RtpMid);
    let mut extension = vec![id.unwrap() << 4 | (mid.len() as u8 - 1)];
    extension.extend(mid.as_bytes());
    extension.resize(extension.len().next_multiple_of(4), 0);
    packet.extend([0xBE, 0xDE, 0, (extension.len() / 4) as u8]);
    packet.extend(extension);
    packet.extend([7; 60]);
    packet
}

#[test]
fn forged_media_costs_no_client_its_own() {
    let mut stage = Stage::new(NetemConfig::new());
    stage.unannounced = true;
    let [a, b] = ["a", "b"].map(|name| stage.join(name));
    stage.run(Duration::from_secs(1), &[]);
    let voice = stage.publish(a, "voice");
    stage.run(Duration::from_secs(3), &[(a, voice)]);
    let before = stage.clients[b].heard_of(a).len();
    assert!(before > 100);
    let source = stage.clients[a].address;
    for ssrc in 1..=5_000 {
        let now = stage.bench.now;
        let packet = forged(ssrc, voice);
        let sfu = &mut stage.bench.sfu;
        sfu.receive(
            (Protocol::Udp, source),
            Bench::world_address(),
            &packet,
            now,
        );
    }
    stage.run(Duration::from_secs(2), &[(a, voice)]);
    let after = stage.clients[b].heard_of(a).len();
    assert!(after >= before + 98, "the stream goes on: {before} {after}");
    let second = stage.publish(a, "second");
    stage.run(Duration::from_secs(2), &[(a, second)]);
    let later = stage.clients[b].heard_of(a).len();
    assert!(later >= after + 80, "a new one is heard: {after} {later}");
}
