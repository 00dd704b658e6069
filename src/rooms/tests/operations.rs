//! What a server's API asks of the rooms.

use livekit_protocol as proto;
use proto::signal_response::Message;

use super::super::{OperationError, ParticipantChange, RoomMessage};
use super::Bench;

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
        .world
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
    let first = bench.world.create_new_room(&wish("mine"), now).unwrap();
    let second = bench.world.create_new_room(&wish("yours"), now).unwrap();
    assert_eq!(first.unwrap().metadata, "mine");
    assert_eq!(second.unwrap_err().metadata, "mine");
    let mut replace = |expected: &str, metadata: &str| {
        let world = &mut bench.world;
        world.replace_room_metadata("new", expected, metadata.to_owned())
    };
    assert_eq!(replace("mine", "changed"), Ok(true));
    assert_eq!(replace("mine", "late"), Ok(false));
    assert_eq!(replace("changed", "again"), Ok(true));
    assert_eq!(bench.world.list_rooms(&[])[0].metadata, "again");
}

#[test]
fn operations_name_what_is_missing() {
    let mut bench = Bench::new(|_| ());
    let now = bench.now;
    assert_eq!(
        bench.world.delete_room("none", now),
        Err(OperationError::NoRoom)
    );
    bench.join("alice");
    assert_eq!(
        bench.world.remove_participant("kitchen", "bob", now),
        Err(OperationError::NoParticipant)
    );
    assert_eq!(
        bench
            .world
            .mute_track("kitchen", "alice", "TR_x", true)
            .unwrap_err(),
        OperationError::NoTrack
    );
    let nonce = RoomMessage {
        nonce: vec![1; 3],
        ..RoomMessage::default()
    };
    assert!(matches!(
        bench.world.send_data("kitchen", nonce, now),
        Err(OperationError::InvalidArgument(_))
    ));
    let nameless = proto::CreateRoomRequest::default();
    assert!(matches!(
        bench.world.create_room(&nameless, now),
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
            .world
            .mute_track("kitchen", "alice", &track.sid, true)
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
        .world
        .mute_track("kitchen", "alice", &track.sid, false);
    assert!(matches!(
        refused,
        Err(OperationError::FailedPrecondition(_))
    ));
}
