//! Joins, resumes, permissions and timers, by signalling alone.

use std::time::Duration;

use livekit_protocol as proto;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::participant_info::State;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;

use super::super::events::Event;
use super::super::{Keys, admission, token};
use super::Bench;

#[test]
fn a_join_is_answered_with_all_that_clients_insist_on() {
    let mut bench = Bench::new(|_| ());
    bench.join("bob");
    let alice = bench.join("alice");
    let join = bench.join_response(alice);
    let room = join.room.as_ref().unwrap();
    assert!(room.sid.starts_with("RM_") && room.name == "kitchen" && room.creation_time > 0);
    let me = join.participant.as_ref().unwrap();
    assert!(me.sid.starts_with("PA_") && me.identity == "alice" && me.permission.is_some());
    assert_eq!(
        join.other_participants
            .iter()
            .map(|p| p.identity.as_str())
            .collect::<Vec<_>>(),
        ["bob"]
    );
    assert!(join.ping_interval > 0 && join.ping_timeout > join.ping_interval);
    assert!(!join.subscriber_primary && join.fast_publish && join.alternative_url.is_empty());
    let server = join.server_info.as_ref().unwrap();
    assert!(!server.version.is_empty() && matches!(server.protocol, 16 | 17));
    assert!(
        join.enabled_publish_codecs
            .iter()
            .all(|codec| codec.mime != "audio/red")
    );
    let kinds = bench.told(alice).iter().map(|m| match m {
        Message::Join(_) => "join",
        Message::RefreshToken(_) => "token",
        Message::Answer(answer) if answer.id == 1 && answer.r#type == "answer" => "answer",
        _ => "other",
    });
    assert_eq!(
        kinds.take(3).collect::<Vec<_>>(),
        ["join", "token", "answer"]
    );
}

#[test]
fn the_refreshed_token_is_one_that_may_join() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let Message::RefreshToken(token) = &bench.told(alice)[1] else {
        panic!("no token")
    };
    let claims = token::verify(token, &Keys::new([("key", "secret")]), 1_800_000_100).unwrap();
    assert!(claims.video.room_join && claims.identity() == "alice" && claims.exp == 1_800_000_600);
}

#[test]
fn the_second_of_one_identity_displaces_the_first() {
    let mut bench = Bench::new(|_| ());
    let bob = bench.join("bob");
    let first = bench.join("alice");
    let old = bench.join_response(first).participant.clone().unwrap().sid;
    bench.forget();
    let second = bench.join("alice");
    assert_eq!(
        bench.leave_of(first),
        Some((Action::Disconnect, DisconnectReason::DuplicateIdentity))
    );
    let seen: Vec<_> = bench
        .updates(bob)
        .into_iter()
        .map(|p| (p.sid == old, p.state()))
        .collect();
    assert_eq!(seen, [(true, State::Disconnected), (false, State::Joined)]);
    assert_eq!(bench.join_response(second).other_participants.len(), 1);
    assert!(!bench.closed.contains(&first));
    bench.pass(Duration::from_secs(3));
    assert!(bench.closed.contains(&first) && !bench.closed.contains(&second));
}

#[test]
fn whoever_has_no_media_after_a_minute_is_removed() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    for _ in 0..5 {
        bench.pass(Duration::from_secs(10));
        bench.ask(alice, Request::Ping(1));
    }
    assert_eq!(bench.leave_of(alice), None);
    bench.pass(Duration::from_secs(11));
    assert_eq!(
        bench.leave_of(alice),
        Some((Action::Disconnect, DisconnectReason::JoinFailure))
    );
    assert!(!bench.events.contains(&Event::ParticipantJoined));
}

#[test]
fn a_socket_lost_before_there_was_media_ends_the_session() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let bob = bench.join("bob");
    bench.sfu.disconnected(alice, bench.now);
    bench.collect();
    let gone = bench.updates(bob).pop().unwrap();
    assert_eq!(
        (
            gone.identity.as_str(),
            gone.state(),
            gone.disconnect_reason()
        ),
        ("alice", State::Disconnected, DisconnectReason::SignalClose)
    );
}

#[test]
fn a_silent_signalling_connection_is_closed() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    bench.pass(Duration::from_secs(19));
    assert!(bench.closed.is_empty());
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.closed, [alice]);
}

#[test]
fn rooms_end_when_nobody_came_and_when_the_last_left() {
    let mut bench = Bench::new(|settings| settings.room.empty_timeout_s = 10);
    bench
        .sfu
        .create_room(
            &proto::CreateRoomRequest {
                name: "empty".into(),
                ..Default::default()
            },
            bench.now,
        )
        .unwrap();
    bench.pass(Duration::from_secs(9));
    assert_eq!(bench.sfu.list_rooms(&[]).len(), 1);
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.sfu.list_rooms(&[]).len(), 0);
    let alice = bench.join("alice");
    bench.ask(alice, Request::Leave(proto::LeaveRequest::default()));
    assert_eq!(bench.leave_of(alice), None, "who leaves is not told to");
    bench.pass(Duration::from_secs(19));
    assert_eq!(bench.sfu.list_rooms(&[]).len(), 1);
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.sfu.list_rooms(&[]).len(), 0);
    use Event::{ParticipantConnectionAborted, RoomFinished, RoomStarted};
    let [empty, left] = [
        &[RoomStarted, RoomFinished][..],
        &[RoomStarted, ParticipantConnectionAborted, RoomFinished],
    ];
    assert_eq!(
        bench.events,
        [empty, left].concat(),
        "no media ever came up"
    );
}

#[test]
fn a_full_room_takes_nobody_and_those_inside_may_come_back() {
    let mut bench = Bench::new(|settings| settings.room.max_participants = 1);
    bench.join("alice");
    assert_eq!(
        bench
            .sfu
            .check(&Bench::admission("bob", |_| ()))
            .unwrap_err()
            .status,
        503
    );
    assert!(bench.sfu.check(&Bench::admission("alice", |_| ())).is_ok());
    let bob = bench.join("bob");
    assert_eq!(
        bench.leave_of(bob),
        Some((Action::Disconnect, DisconnectReason::JoinFailure))
    );
    let watcher = bench.join_with("watcher", |claims| claims.video.hidden = true);
    assert_eq!(
        bench.leave_of(watcher),
        Some((Action::Disconnect, DisconnectReason::JoinFailure))
    );
}

#[test]
fn without_auto_create_an_absent_room_is_a_404_with_the_text_that_clients_know() {
    let bench = Bench::new(|settings| settings.auto_create = false);
    let refusal = bench
        .sfu
        .check(&Bench::admission("alice", |_| ()))
        .unwrap_err();
    assert_eq!(
        (refusal.status, refusal.text.as_str()),
        (404, admission::NO_ROOM)
    );
}

#[test]
fn a_resume_of_nobody_starts_anew() {
    let mut bench = Bench::new(|_| ());
    let mut stranger = Bench::admission("alice", |_| ());
    stranger.resume = Some("PA_unknown".into());
    let connection = bench.connect(stranger);
    assert_eq!(
        bench.leave_of(connection),
        Some((Action::Reconnect, DisconnectReason::StateMismatch))
    );
}

#[test]
fn who_was_to_start_anew_and_has_not_heard_it_does_not_resume() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let sid = bench.join_response(alice).participant.clone().unwrap().sid;
    bench.sfu.renew_participant("kitchen", "alice").unwrap();
    let mut again = Bench::admission("alice", |_| ());
    again.resume = Some(sid);
    let resumed = bench.connect(again);
    assert_eq!(
        bench.leave_of(resumed),
        Some((Action::Reconnect, DisconnectReason::StateMismatch))
    );
}

#[test]
fn a_resume_goes_on_with_the_same_session() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let sid = bench.join_response(alice).participant.clone().unwrap().sid;
    let track = bench.publish(alice);
    let mut again = Bench::admission("alice", |_| ());
    again.resume = Some(sid.clone());
    let resumed = bench.connect(again);
    assert!(matches!(&bench.told(resumed)[0], Message::Reconnect(_)));
    assert!(
        bench
            .updates(resumed)
            .iter()
            .any(|p| p.sid == sid && p.tracks.len() == 1)
    );
    assert!(bench.closed.contains(&alice));
    let published = vec![proto::TrackPublishedResponse {
        cid: "c".into(),
        track: Some(track),
    }];
    bench.ask(
        resumed,
        Request::SyncState(proto::SyncState {
            publish_tracks: published,
            ..Default::default()
        }),
    );
    assert_eq!(bench.leave_of(resumed), None);
    let unknown = proto::TrackInfo {
        sid: "TR_unknown".into(),
        ..Default::default()
    };
    let published = vec![proto::TrackPublishedResponse {
        cid: "c".into(),
        track: Some(unknown),
    }];
    bench.ask(
        resumed,
        Request::SyncState(proto::SyncState {
            publish_tracks: published,
            ..Default::default()
        }),
    );
    assert_eq!(
        bench.leave_of(resumed),
        Some((Action::Reconnect, DisconnectReason::StateMismatch))
    );
}

#[test]
fn what_the_token_forbids_is_not_published() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join_with("alice", |claims| {
        claims.video.can_publish_sources = vec!["camera".into()];
    });
    let microphone = proto::AddTrackRequest {
        cid: "a".into(),
        source: proto::TrackSource::Microphone as i32,
        ..Default::default()
    };
    bench.ask(alice, Request::AddTrack(microphone.clone()));
    let refused = bench.told(alice).iter().find_map(|m| {
        if let Message::RequestResponse(r) = m {
            Some(r.reason())
        } else {
            None
        }
    });
    assert_eq!(refused, Some(proto::request_response::Reason::NotAllowed));
    let camera = proto::AddTrackRequest {
        source: proto::TrackSource::Camera as i32,
        r#type: 1,
        ..microphone
    };
    bench.ask(alice, Request::AddTrack(camera));
    assert!(
        bench
            .told(alice)
            .iter()
            .any(|m| matches!(m, Message::TrackPublished(_)))
    );
}

#[test]
fn a_codec_that_is_not_supported_is_refused_by_its_name_and_one_of_two_is_enough() {
    use proto::request_response::Reason;
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let mut announce = |codecs: &[&str]| {
        let codecs = codecs.iter().map(|codec| proto::SimulcastCodec {
            codec: (*codec).to_owned(),
            ..Default::default()
        });
        let camera = proto::AddTrackRequest {
            cid: "camera".into(),
            source: proto::TrackSource::Camera as i32,
            r#type: proto::TrackType::Video as i32,
            simulcast_codecs: codecs.collect(),
            ..Default::default()
        };
        bench.ask(alice, Request::AddTrack(camera));
        bench.told(alice).last().cloned()
    };
    match announce(&["h265", "vp8"]) {
        Some(Message::RequestResponse(refused)) => {
            assert_eq!(refused.reason(), Reason::UnsupportedType);
            assert!(refused.message.contains("h265"), "{}", refused.message);
        }
        other => panic!("{other:?}"),
    }
    match announce(&["vp9", "theora"]) {
        Some(Message::TrackPublished(published)) => {
            let track = published.track.unwrap();
            assert_eq!((&*track.mime_type, track.codecs.len()), ("video/vp9", 1));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn own_metadata_needs_the_right_and_is_answered_by_its_number() {
    let mut bench = Bench::new(|_| ());
    let plain = bench.join("plain");
    let free = bench.join_with("free", |claims| {
        claims.video.can_update_own_metadata = Some(true);
    });
    let update = proto::UpdateParticipantMetadata {
        metadata: "m".into(),
        attributes: [("a".into(), "1".into())].into(),
        request_id: 9,
        ..Default::default()
    };
    for (who, expected) in [
        (plain, proto::request_response::Reason::NotAllowed),
        (free, proto::request_response::Reason::Ok),
    ] {
        bench.ask(who, Request::UpdateMetadata(update.clone()));
        let response = bench.told(who).iter().find_map(|m| {
            if let Message::RequestResponse(r) = m {
                Some((r.request_id, r.reason()))
            } else {
                None
            }
        });
        assert_eq!(response, Some((9, expected)));
    }
    let removed = proto::UpdateParticipantMetadata {
        attributes: [("a".into(), String::new())].into(),
        ..Default::default()
    };
    bench.ask(free, Request::UpdateMetadata(removed));
    let info = bench.sfu.get_participant("kitchen", "free").unwrap();
    assert_eq!((info.metadata.as_str(), info.attributes.len()), ("m", 0));
    let large = proto::UpdateParticipantMetadata {
        attributes: [("a".into(), "x".repeat(65 << 10))].into(),
        request_id: 10,
        ..Default::default()
    };
    bench.ask(free, Request::UpdateMetadata(large));
    let response = bench.told(free).iter().rev().find_map(|m| {
        if let Message::RequestResponse(r) = m {
            Some(r.reason())
        } else {
            None
        }
    });
    assert_eq!(
        response,
        Some(proto::request_response::Reason::LimitExceeded)
    );
}

#[test]
fn a_hidden_participant_is_not_seen() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    bench.forget();
    let watcher = bench.join_with("watcher", |claims| claims.video.hidden = true);
    assert!(bench.updates(alice).is_empty());
    assert_eq!(bench.join_response(watcher).other_participants.len(), 1);
    assert_eq!(bench.sfu.list_participants("kitchen").unwrap().len(), 1);
    bench.ask(watcher, Request::Leave(proto::LeaveRequest::default()));
    assert!(bench.updates(alice).is_empty());
}
