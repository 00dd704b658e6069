//! Rooms that go from one thread to another, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use str0m::media::Mid;
use str0m::net::Protocol;
use str0m_netem::NetemConfig;

use super::super::sfu::Sfu;
use super::stage::{Stage, bad_network, reliable};

/// Lets a room go to another thread, which has that room alone from then on; what is left behind.
fn relocate(stage: &mut Stage, room: &str, thread: usize) -> Sfu {
    let now = stage.bench.now;
    stage.bench.collect();
    let former = &mut stage.bench.sfu;
    let there = (Arc::clone(&former.shared), thread);
    let mut other = Sfu::new(former.settings.clone(), there, now);
    other.unpack(former.pack(room), now);
    let former = std::mem::replace(&mut stage.bench.sfu, other);
    stage.bench.collect();
    former
}

fn assert_nothing_is_left(sfu: &Sfu) {
    assert!(sfu.rooms.is_empty() && sfu.room_names.is_empty());
    assert!(sfu.participants.is_empty() && sfu.connections.is_empty());
    assert!(sfu.routes.is_empty() && sfu.deadlines.is_empty());
}

/// Three who hear each other, each with its track.
fn three(network: NetemConfig) -> (Stage, Vec<(usize, Mid)>) {
    let mut stage = Stage::new(network);
    let all: Vec<usize> = ["a", "b", "c"].map(|name| stage.join(name)).to_vec();
    stage.run(Duration::from_secs(1), &[]);
    let mut speakers = vec![];
    for who in all {
        speakers.push((who, stage.publish(who, &format!("cid{who}"))));
        stage.run(Duration::from_secs(1), &[]);
    }
    (stage, speakers)
}

#[test]
fn everything_goes_on_in_a_room_that_goes_from_thread_to_thread() {
    let (mut stage, speakers) = three(NetemConfig::new());
    for thread in [1, 2, 0] {
        stage.run(Duration::from_secs(1), &speakers);
        let left = relocate(&mut stage, "kitchen", thread);
        assert_nothing_is_left(&left);
    }
    stage.run(Duration::from_secs(1), &speakers);
    for (listener, _) in &speakers {
        for (speaker, _) in &speakers {
            let heard = stage.clients[*listener].heard_of(*speaker);
            let expected: Vec<u64> = (1..=heard.len() as u64).collect();
            assert_eq!(heard, expected);
            assert!(listener == speaker || heard.len() >= 198, "{}", heard.len());
        }
    }
    stage.send(0, "_reliable", &reliable(1));
    stage.run(Duration::from_secs(1), &[]);
    assert_eq!(stage.clients[1].messages.len(), 1);

    // A later one finds the room, and its addresses and names are known until it has ended.
    let late = stage.join("late");
    stage.run(Duration::from_secs(2), &speakers);
    assert!(stage.clients[late].heard_of(0).len() > 40);
    let shared = Arc::clone(&stage.bench.sfu.shared);
    assert!(!shared.addressees.is_empty());
    stage.bench.sfu.end_all_rooms(stage.bench.now);
    assert_nothing_is_left(&stage.bench.sfu);
    assert!(shared.addressees.is_empty() && shared.places().participants.is_empty());
}

#[test]
fn who_has_no_route_yet_or_reconnects_is_found_after_the_move_too() {
    let (mut stage, speakers) = three(bad_network());
    let newcomer = stage.join("d");
    relocate(&mut stage, "kitchen", 1);
    stage.cut(0);
    stage.resume(0, vec![]);
    stage.run(Duration::from_secs(5), &speakers);
    let before = stage.clients[newcomer].heard_of(0).len();
    assert!(before > 100, "{before}");
    relocate(&mut stage, "kitchen", 2);
    stage.run(Duration::from_secs(5), &speakers);
    let after = stage.clients[newcomer].heard_of(0).len();
    assert!(after > before + 150, "{before} {after}");
}

#[test]
fn an_address_that_another_thread_has_heard_of_is_taken_back_by_the_next_request() {
    let (mut stage, speakers) = three(NetemConfig::new());
    let addressees = Arc::clone(&stage.bench.sfu.shared.addressees);
    let source = (Protocol::Udp, stage.clients[0].address);
    let media = [0x80; 12];
    assert_eq!(addressees.thread_of(source, &media), Some(0));
    addressees.learn(source, 1);
    stage.run(Duration::from_secs(10), &speakers);
    assert_eq!(addressees.thread_of(source, &media), Some(0));
}
