//! Operations of the server API.

use livekit_protocol as proto;
use proto::signal_response::Message;

use super::super::{OperationError, ParticipantChange, RoomMessage};
use super::Bench;
use vivavoce_auth::TenantId;
use vivavoce_core::party::Party;

#[test]
fn a_revoked_permission_takes_the_track_away() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let track = bench.publish(alice);
    let permission = proto::ParticipantPermission {
        can_subscribe: true,
        ..Default::default()
    };
    let change = ParticipantChange {
        permission: Some(permission),
        ..Default::default()
    };
    let info = bench
        .sfu
        .update_participant("kitchen", "alice", change, bench.now)
        .unwrap();
    bench.collect();
    assert!(info.tracks.is_empty());
    assert!(
        bench
            .told(alice)
            .iter()
            .any(|m| matches!(m, Message::TrackUnpublished(told) if told.track_sid == track.sid))
    );
}

#[test]
fn one_of_several_makes_a_room_and_one_of_several_changes_it() {
    let mut bench = Bench::new(|_| ());
    let now = bench.now;
    let wish = |metadata: &str| proto::CreateRoomRequest {
        name: "new".into(),
        metadata: metadata.into(),
        ..Default::default()
    };
    let first = bench
        .sfu
        .create_new_room(&wish("mine"), &Party::Operator, now)
        .unwrap();
    let second = bench
        .sfu
        .create_new_room(&wish("yours"), &Party::Operator, now)
        .unwrap();
    assert_eq!(first.unwrap().metadata, "mine");
    assert_eq!(second.unwrap_err().metadata, "mine");
    let mut replace = |expected: &str, metadata: &str| {
        let sfu = &mut bench.sfu;
        sfu.replace_room_metadata("new", expected, metadata.to_owned(), now)
    };
    assert_eq!(replace("mine", "changed"), Ok(true));
    assert_eq!(replace("mine", "late"), Ok(false));
    assert_eq!(replace("changed", "again"), Ok(true));
    assert_eq!(bench.sfu.list_rooms(&[])[0].metadata, "again");
}

#[test]
fn operations_name_what_is_missing() {
    let mut bench = Bench::new(|_| ());
    let now = bench.now;
    assert_eq!(
        bench.sfu.delete_room("none", now),
        Err(OperationError::NoRoom)
    );
    bench.join("alice");
    assert_eq!(
        bench.sfu.remove_participant("kitchen", "bob", now),
        Err(OperationError::NoParticipant)
    );
    assert_eq!(
        bench
            .sfu
            .mute_track("kitchen", "alice", "TR_x", true, now)
            .unwrap_err(),
        OperationError::NoTrack
    );
    let nonce = RoomMessage {
        nonce: vec![1; 3],
        ..RoomMessage::default()
    };
    assert!(matches!(
        bench.sfu.send_data("kitchen", nonce, now),
        Err(OperationError::InvalidArgument(_))
    ));
    let nameless = proto::CreateRoomRequest::default();
    assert!(matches!(
        bench.sfu.create_room(&nameless, now),
        Err(OperationError::InvalidArgument(_))
    ));
}

#[test]
fn a_server_mutes_and_does_not_unmute() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let track = bench.publish(alice);
    assert!(
        bench
            .sfu
            .mute_track("kitchen", "alice", &track.sid, true, bench.now)
            .unwrap()
            .muted
    );
    bench.collect();
    assert!(
        bench
            .told(alice)
            .iter()
            .any(|m| matches!(m, Message::Mute(mute) if mute.muted && mute.sid == track.sid))
    );
    let refused = bench
        .sfu
        .mute_track("kitchen", "alice", &track.sid, false, bench.now);
    assert!(matches!(
        refused,
        Err(OperationError::FailedPrecondition(_))
    ));
}

/// A room to be created.
fn wanted(name: String) -> proto::CreateRoomRequest {
    proto::CreateRoomRequest {
        name,
        ..Default::default()
    }
}

fn tenant(id: &str) -> Party {
    Party::Tenant(TenantId::new(id).unwrap())
}

#[test]
fn a_tenant_that_makes_rooms_without_end_leaves_a_quarter_to_others_and_gets_back_what_ends() {
    let mut bench = Bench::new(|settings| settings.bounds.rooms = 100);
    let now = bench.now;
    let mut make = |name: String, party: &Party| {
        let made = bench.sfu.create_new_room(&wanted(name), party, now);
        made.map(|made| assert!(made.is_ok()))
    };
    let greedy = tenant("greedy");
    let made = (0..)
        .map_while(|n| make(format!("g{n}"), &greedy).ok())
        .count();
    assert_eq!(made, 75);
    let refused = make("one more".into(), &greedy).unwrap_err().to_string();
    assert!(refused.contains("quota rooms"), "{refused}");
    for n in 0..10 {
        make(format!("i{n}"), &tenant("innocent")).unwrap();
    }
    bench.sfu.end_all_rooms(now);
    assert!(bench.sfu.shared.places().rooms.is_empty());
    let again = bench
        .sfu
        .create_new_room(&wanted("again".into()), &greedy, now);
    assert!(again.is_ok());
}

#[test]
fn participants_count_for_whoever_made_the_room_and_are_given_back_when_they_leave() {
    let mut bench = Bench::new(|settings| settings.bounds.participants = 8);
    let now = bench.now;
    let greedy = tenant("greedy");
    // The room of `Bench::admission`.
    let kitchen = wanted("kitchen".into());
    let made = bench.sfu.create_new_room(&kitchen, &greedy, now);
    assert!(made.unwrap().is_ok());
    for n in 0..6 {
        bench.join(&format!("guest {n}"));
    }
    let next = Bench::admission("guest 6", |_| ());
    let refused = bench.sfu.check(&next).unwrap_err();
    assert_eq!(refused.status, 429);
    assert!(
        refused.text.contains("quota participants"),
        "{}",
        refused.text
    );
    // Existing participants may reconnect, and others have rooms of their own.
    assert!(
        bench
            .sfu
            .check(&Bench::admission("guest 5", |_| ()))
            .is_ok()
    );
    let elsewhere = Bench::admission("ann", |claims| claims.video.room = "cellar".into());
    assert!(bench.sfu.check(&elsewhere).is_ok());
    bench.sfu.end_all_rooms(now);
    assert!(bench.sfu.shared.places().participants.is_empty());
}

#[test]
fn all_rooms_are_listed_piece_by_piece_in_their_order() {
    let mut bench = Bench::new(|_| ());
    let now = bench.now;
    for n in 0..25 {
        let made = bench.sfu.create_room(&wanted(n.to_string()), now);
        made.unwrap();
    }
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let (some, last) = bench.sfu.some_rooms(after, 10);
        assert!(some.len() <= 10);
        names.extend(some.into_iter().map(|(_, room)| room.name));
        after = last;
        if after.is_none() {
            break;
        }
    }
    let all: Vec<_> = (0..25).map(|n| n.to_string()).collect();
    assert_eq!(names, all);
    let named = bench.sfu.list_rooms(&[
        "7".to_owned(),
        "3".to_owned(),
        "7".to_owned(),
        "x".to_owned(),
    ]);
    let named: Vec<_> = named.into_iter().map(|room| room.name).collect();
    assert_eq!(named, ["3", "7"]);
}
