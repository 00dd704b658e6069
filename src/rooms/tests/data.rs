//! Data between participants whose networks are bad, whose connections break, or who do not read.

use std::time::Duration;

use livekit_protocol as proto;
use str0m_netem::{Netem, NetemConfig, Probability, RandomLoss};

use super::super::peer::MOST_QUEUED_BYTES;
use super::super::{RoomMessage, Route};
use super::stage::{STEP, Stage, bad_network, reliable};

/// A client's view: it tracks the sequence number of each sender and drops duplicates.
fn understood(stage: &Stage, who: usize) -> Vec<u32> {
    let mut last = 0;
    let mut taken = Vec::new();
    for message in &stage.clients[who].messages {
        if message.sequence > last {
            last = message.sequence;
            taken.push(last);
        }
    }
    taken
}

fn received_of(stage: &Stage, who: usize, sender: &str) -> Vec<proto::DataChannelReceiveState> {
    let sender = stage.bench.sfu.get_participant("kitchen", sender).unwrap();
    vec![proto::DataChannelReceiveState {
        publisher_sid: sender.sid,
        last_seq: understood(stage, who).last().copied().unwrap_or(0),
    }]
}

fn deaf(stage: &Stage) -> NetemConfig {
    stage.network.loss(RandomLoss::new(Probability::new(1.0)))
}

/// Sends a numbered message every step for a while.
fn write(stage: &mut Stage, from: usize, sequence: &mut u32, steps: u32) {
    for _ in 0..steps {
        *sequence += 1;
        stage.send(from, "_reliable", &reliable(*sequence));
        stage.run(STEP, &[]);
    }
}

#[test]
fn what_was_sent_while_one_was_away_is_had_once_and_in_order() {
    for seed in 0..8 {
        let mut stage = Stage::new(bad_network().seed(seed));
        let [a, b, c] = ["a", "b", "c"].map(|name| stage.join(name));
        stage.run(Duration::from_secs(6), &[]);
        let mut sequence = 0;
        write(&mut stage, a, &mut sequence, 20);
        stage.cut(b);
        let network = deaf(&stage);
        stage.clients[b].down = Netem::new(network);
        stage.clients[b].up = Netem::new(network);
        write(&mut stage, a, &mut sequence, 100);
        // Another network, as when a phone leaves the house.
        stage.clients[b].down = Netem::new(bad_network().seed(seed + 100));
        stage.clients[b].up = Netem::new(bad_network().seed(seed + 200));
        let received = received_of(&stage, b, "a");
        stage.resume(b, received);
        write(&mut stage, a, &mut sequence, 20);
        stage.run(Duration::from_secs(12), &[]);
        let all: Vec<u32> = (1..=sequence).collect();
        assert_eq!(understood(&stage, c), all, "who stayed, seed {seed}");
        assert_eq!(understood(&stage, b), all, "who was away, seed {seed}");
    }
}

#[test]
fn what_a_resuming_sender_repeats_is_had_once() {
    for seed in 0..8 {
        let mut stage = Stage::new(bad_network().seed(seed));
        let [a, b] = ["a", "b"].map(|name| stage.join(name));
        stage.run(Duration::from_secs(6), &[]);
        let mut sequence = 0;
        write(&mut stage, a, &mut sequence, 20);
        stage.cut(a);
        let network = deaf(&stage);
        stage.clients[a].down = Netem::new(network);
        stage.clients[a].up = Netem::new(network);
        write(&mut stage, a, &mut sequence, 60);
        stage.clients[a].down = Netem::new(bad_network().seed(seed + 100));
        stage.clients[a].up = Netem::new(bad_network().seed(seed + 200));
        stage.resume(a, vec![]);
        let told = stage.bench.told(stage.clients[a].connection);
        let known = told.iter().find_map(|message| match message {
            proto::signal_response::Message::Reconnect(told) => Some(told.last_message_seq),
            _ => None,
        });
        let known = known.unwrap();
        assert!(
            (1..60).contains(&known),
            "it says how far it has come: {known}"
        );
        for again in known + 1..=sequence {
            stage.send(a, "_reliable", &reliable(again));
        }
        write(&mut stage, a, &mut sequence, 20);
        stage.run(Duration::from_secs(12), &[]);
        let got = stage.clients[b]
            .messages
            .iter()
            .map(|message| message.sequence);
        assert_eq!(
            got.collect::<Vec<_>>(),
            (1..=sequence).collect::<Vec<_>>(),
            "seed {seed}"
        );
    }
}

#[test]
fn a_browser_that_resumes_is_never_told_that_nothing_arrived() {
    let told_by = |sdk: proto::client_info::Sdk| {
        let mut stage = Stage::new(NetemConfig::new());
        let a = stage.join("a");
        stage.run(Duration::from_secs(1), &[]);
        stage.cut(a);
        let mut admission = super::Bench::admission("a", |_| ());
        admission.route = Route::OneConnection;
        admission.client.sdk = sdk as i32;
        admission.resume = Some(String::new());
        let resumed = stage.bench.connect(admission);
        stage.run(STEP, &[]);
        let told = stage.bench.told(resumed);
        told.iter().find_map(|message| match message {
            proto::signal_response::Message::Reconnect(told) => Some(told.last_message_seq),
            _ => None,
        })
    };
    assert_eq!(told_by(proto::client_info::Sdk::Js), Some(1));
    assert_eq!(told_by(proto::client_info::Sdk::Node), Some(0));
}

#[test]
fn who_joins_gets_what_was_sent_before_its_channels_opened() {
    let mut stage = Stage::new(bad_network());
    let a = stage.join("a");
    stage.run(Duration::from_secs(4), &[]);
    let mut sequence = 0;
    write(&mut stage, a, &mut sequence, 10);
    stage.run(Duration::from_secs(1), &[]);
    let b = stage.join("b");
    write(&mut stage, a, &mut sequence, 400);
    stage.run(Duration::from_secs(6), &[]);
    let got = understood(&stage, b);
    let first = got[0];
    assert!(
        (10..14).contains(&first),
        "nothing from before it came: {first}"
    );
    assert_eq!(got, (first..=sequence).collect::<Vec<_>>());
}

#[test]
fn a_slow_receiver_harms_only_itself() {
    let mut stage = Stage::new(NetemConfig::new());
    let [a, b, slow] = ["a", "b", "slow"].map(|name| stage.join(name));
    stage.run(Duration::from_secs(1), &[]);
    let voice = stage.publish(a, "voice");
    stage.run(Duration::from_secs(1), &[(a, voice)]);
    stage.clients[slow].down = Netem::new(deaf(&stage));
    let before = stage.clients[b].heard_of(a).len();
    let mut sequence = 0;
    let mut most_queued = 0;
    for _ in 0..400 {
        let message = RoomMessage {
            payload: vec![0; 60_000],
            destination_identities: vec!["slow".to_owned()],
            ..RoomMessage::default()
        };
        let now = stage.bench.now;
        stage.bench.sfu.send_data("kitchen", message, now).unwrap();
        write(&mut stage, a, &mut sequence, 1);
        stage.run(STEP * 3, &[(a, voice)]);
        most_queued = most_queued.max(stage.bench.sfu.held().queued_bytes);
    }
    assert!((MOST_QUEUED_BYTES / 2..=MOST_QUEUED_BYTES).contains(&most_queued));
    assert_eq!(
        stage.bench.sfu.held().queued_bytes,
        0,
        "what waited is let go"
    );
    assert_eq!(
        stage.bench.sfu.counters().slow_receivers,
        1,
        "it is told once"
    );
    let renewed = (
        proto::leave_request::Action::Reconnect,
        proto::DisconnectReason::UnknownReason,
    );
    assert_eq!(
        stage.bench.leave_of(stage.clients[slow].connection),
        Some(renewed)
    );
    stage.run(Duration::from_secs(1), &[]);
    assert_eq!(understood(&stage, b), (1..=sequence).collect::<Vec<_>>());
    let said = stage.clients[a].sent as usize;
    assert_eq!(stage.clients[b].heard_of(a).len() - before, said - before);
}

#[test]
fn what_is_kept_of_a_sender_is_bounded() {
    let mut stage = Stage::new(NetemConfig::new());
    let [a, _] = ["a", "b"].map(|name| stage.join(name));
    stage.run(Duration::from_secs(1), &[]);
    let mut most_kept = 0;
    for sequence in 1..=120 {
        let mut packet = reliable(sequence);
        if let Some(proto::data_packet::Value::User(user)) = &mut packet.value {
            user.payload = vec![0; 30_000];
        }
        stage.send(a, "_reliable", &packet);
        stage.run(STEP * 2, &[]);
        most_kept = most_kept.max(stage.bench.sfu.held().kept_bytes);
    }
    assert!((1 << 20..=2 << 20).contains(&most_kept), "{most_kept}");
    stage.run(Duration::from_secs(21), &[]);
    stage.send(a, "_reliable", &reliable(121));
    stage.run(Duration::from_secs(1), &[]);
    assert!(
        stage.bench.sfu.held().kept_bytes < 1_000,
        "what is old is let go"
    );
}
