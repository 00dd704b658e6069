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
fn one_of_several_claims_a_room() {
    let mut bench = Bench::new(|_| ());
    let now = bench.now;
    assert_eq!(
        bench.world.claim_room("new", "mine", now).unwrap().metadata,
        "mine"
    );
    assert_eq!(
        bench
            .world
            .claim_room("new", "yours", now)
            .unwrap()
            .metadata,
        "mine"
    );
    bench
        .world
        .create_room(
            &proto::CreateRoomRequest {
                name: "bare".into(),
                ..Default::default()
            },
            now,
        )
        .unwrap();
    assert_eq!(
        bench
            .world
            .claim_room("bare", "yours", now)
            .unwrap()
            .metadata,
        "yours"
    );
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
