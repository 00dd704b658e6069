//! Rooms in virtual time, without sockets: clients here are signalling connections with the offers that real clients
//! sent, and what they are told is read back.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use prost::Message as _;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::participant_info::State;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;

use super::events::Event;
use super::token::{self, Claims};
use super::world::World;
use super::{
    Admission, ConnectionId, Keys, Now, OperationError, ParticipantChange, RoomMessage, Route,
    Settings, admission,
};

const BROWSER_JOIN: &str = include_str!("testdata/offers/browser-join.sdp");
const BROWSER_PUBLISH: &str = include_str!("testdata/offers/browser-publish.sdp");
const BROWSER_UNPUBLISH: &str = include_str!("testdata/offers/browser-unpublish.sdp");

/// A world with a clock of its own and the messages that each connection got.
struct Bench {
    world: World,
    now: Now,
    inboxes: HashMap<ConnectionId, Vec<Message>>,
    closed: Vec<ConnectionId>,
    events: Vec<Event>,
    connections: u64,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Settings)) -> Self {
        let now = Now {
            instant: Instant::now(),
            unix_ms: 1_800_000_000_000,
        };
        let mut settings = Settings {
            keys: Keys::new([("key", "secret")]),
            addresses: vec!["192.0.2.1:5000".parse().unwrap()],
            seed: 7,
            ..Settings::default()
        };
        change(&mut settings);
        let world = World::new(settings, now);
        Self {
            world,
            now,
            inboxes: HashMap::new(),
            closed: vec![],
            events: vec![],
            connections: 0,
        }
    }

    fn admission(identity: &str, change: impl FnOnce(&mut Claims)) -> Admission {
        let mut claims = Claims {
            iss: "key".into(),
            sub: identity.into(),
            exp: 1_800_003_600,
            ..Claims::default()
        };
        claims.video.room_join = true;
        claims.video.room = "kitchen".into();
        change(&mut claims);
        let keys = Keys::new([("key", "secret")]);
        let bearer = format!("Bearer {}", token::mint(&claims, &keys).unwrap());
        admission::admit(
            Route::TwoConnections,
            "",
            Some(&bearer),
            &keys,
            1_800_000_000,
        )
        .unwrap()
    }

    fn connect(&mut self, admission: Admission) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.world.connect(connection, admission, self.now);
        self.collect();
        connection
    }

    fn join_with(&mut self, identity: &str, change: impl FnOnce(&mut Claims)) -> ConnectionId {
        let mut admission = Self::admission(identity, change);
        admission.route = Route::OneConnection;
        admission.offer = Some(offer(BROWSER_JOIN, 1));
        self.connect(admission)
    }

    fn join(&mut self, identity: &str) -> ConnectionId {
        self.join_with(identity, |_| ())
    }

    fn ask(&mut self, connection: ConnectionId, request: Request) {
        let bytes = proto::SignalRequest {
            message: Some(request),
        }
        .encode_to_vec();
        self.world.signal(connection, &bytes.into(), self.now);
        self.collect();
    }

    fn publish(&mut self, connection: ConnectionId) -> proto::TrackInfo {
        let track = BROWSER_PUBLISH
            .lines()
            .filter_map(|line| line.trim_end().strip_prefix("a=msid:"))
            .next_back();
        let cid = track.unwrap().split(' ').nth(1).unwrap().to_owned();
        let source = proto::TrackSource::Microphone as i32;
        self.ask(
            connection,
            Request::AddTrack(proto::AddTrackRequest {
                cid,
                source,
                ..Default::default()
            }),
        );
        self.ask(connection, Request::Offer(offer(BROWSER_PUBLISH, 2)));
        let published = self
            .told(connection)
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::TrackPublished(published) => published.track.clone(),
                _ => None,
            });
        published.unwrap()
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now.instant + time;
        while self.now.instant < end {
            let next = self
                .world
                .deadline()
                .clamp(self.now.instant + Duration::from_millis(1), end);
            self.now.unix_ms += (next - self.now.instant).as_millis() as i64;
            self.now.instant = next;
            self.world.tick(self.now);
            self.collect();
        }
    }

    fn collect(&mut self) {
        let outputs = self.world.take_outputs();
        for (connection, bytes) in outputs.signals {
            let response = proto::SignalResponse::decode(bytes).unwrap();
            self.inboxes
                .entry(connection)
                .or_default()
                .push(response.message.unwrap());
        }
        self.closed.extend(outputs.closes);
        self.events
            .extend(outputs.events.iter().map(|event| event.event));
    }

    fn told(&self, connection: ConnectionId) -> &[Message] {
        self.inboxes
            .get(&connection)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    fn forget(&mut self) {
        self.inboxes.clear();
    }

    fn join_response(&self, connection: ConnectionId) -> &proto::JoinResponse {
        match &self.told(connection)[0] {
            Message::Join(join) => join,
            other => panic!("the first message is {other:?}"),
        }
    }

    /// What a connection was told of participants, oldest first: sid and state.
    fn updates(&self, connection: ConnectionId) -> Vec<proto::ParticipantInfo> {
        let updates = self
            .told(connection)
            .iter()
            .filter_map(|message| match message {
                Message::Update(update) => Some(update.participants.clone()),
                _ => None,
            });
        updates.flatten().collect()
    }

    fn leave_of(&self, connection: ConnectionId) -> Option<(Action, DisconnectReason)> {
        self.told(connection)
            .iter()
            .find_map(|message| match message {
                Message::Leave(leave) => Some((leave.action(), leave.reason())),
                _ => None,
            })
    }
}

fn offer(sdp: &str, id: u32) -> proto::SessionDescription {
    proto::SessionDescription {
        r#type: "offer".into(),
        sdp: sdp.replace('\n', "\r\n").replace("\r\r", "\r"),
        id,
        ..Default::default()
    }
}

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
    bench.world.disconnected(alice, bench.now);
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
        .world
        .create_room(
            &proto::CreateRoomRequest {
                name: "empty".into(),
                ..Default::default()
            },
            bench.now,
        )
        .unwrap();
    bench.pass(Duration::from_secs(9));
    assert_eq!(bench.world.list_rooms(&[]).len(), 1);
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.world.list_rooms(&[]).len(), 0);
    let alice = bench.join("alice");
    bench.ask(alice, Request::Leave(proto::LeaveRequest::default()));
    assert_eq!(bench.leave_of(alice), None, "who leaves is not told to");
    bench.pass(Duration::from_secs(19));
    assert_eq!(bench.world.list_rooms(&[]).len(), 1);
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.world.list_rooms(&[]).len(), 0);
    use Event::{RoomFinished, RoomStarted};
    assert_eq!(
        bench.events,
        [RoomStarted, RoomFinished, RoomStarted, RoomFinished]
    );
}

#[test]
fn a_full_room_takes_nobody_and_those_inside_may_come_back() {
    let mut bench = Bench::new(|settings| settings.room.max_participants = 1);
    bench.join("alice");
    assert_eq!(
        bench
            .world
            .check(&Bench::admission("bob", |_| ()))
            .unwrap_err()
            .status,
        503
    );
    assert!(
        bench
            .world
            .check(&Bench::admission("alice", |_| ()))
            .is_ok()
    );
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
        .world
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
fn a_track_is_announced_with_its_section_and_is_gone_with_it() {
    let mut bench = Bench::new(|_| ());
    let bob = bench.join("bob");
    let alice = bench.join("alice");
    bench.forget();
    let track = bench.publish(alice);
    assert!(track.sid.starts_with("TR_AM"));
    let seen = bench.updates(bob).pop().unwrap();
    assert_eq!(
        (
            seen.tracks[0].sid.as_str(),
            seen.tracks[0].mime_type.as_str(),
            seen.tracks[0].mid.as_str()
        ),
        (track.sid.as_str(), "audio/opus", "7")
    );
    bench.ask(
        alice,
        Request::Mute(proto::MuteTrackRequest {
            sid: track.sid.clone(),
            muted: true,
        }),
    );
    assert!(bench.updates(bob).pop().unwrap().tracks[0].muted);
    bench.ask(alice, Request::Offer(offer(BROWSER_UNPUBLISH, 3)));
    let last = bench.updates(bob).pop().unwrap();
    assert!(last.tracks.is_empty() && last.version > seen.version);
    assert_eq!(
        bench.events,
        [
            Event::RoomStarted,
            Event::TrackPublished,
            Event::TrackUnpublished
        ]
    );
}

#[test]
fn a_track_that_is_there_is_in_the_first_answer() {
    let mut bench = Bench::new(|_| ());
    let alice = bench.join("alice");
    let sid = bench.join_response(alice).participant.clone().unwrap().sid;
    let track = bench.publish(alice);
    let bob = bench.join("bob");
    let answer = bench
        .told(bob)
        .iter()
        .find_map(|m| {
            if let Message::Answer(answer) = m {
                Some(answer)
            } else {
                None
            }
        })
        .unwrap();
    assert_eq!(
        answer.mid_to_track_id,
        HashMap::from([("0".to_owned(), track.sid.clone())])
    );
    assert!(
        answer
            .sdp
            .contains(&format!("a=msid:{sid}|{0} {0}", track.sid))
    );
    assert_eq!(answer.sdp.matches("a=inactive").count(), 5);
    assert!(
        bench
            .told(alice)
            .iter()
            .any(|m| matches!(m, Message::TrackSubscribed(told) if told.track_sid == track.sid))
    );
    let refused = bench.join_with("carol", |claims| claims.video.can_subscribe = Some(false));
    let answer = bench
        .told(refused)
        .iter()
        .find_map(|m| {
            if let Message::Answer(answer) = m {
                Some(answer)
            } else {
                None
            }
        })
        .unwrap();
    assert!(answer.mid_to_track_id.is_empty());
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
    let info = bench.world.get_participant("kitchen", "free").unwrap();
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
    assert_eq!(bench.world.list_participants("kitchen").unwrap().len(), 1);
    bench.ask(watcher, Request::Leave(proto::LeaveRequest::default()));
    assert!(bench.updates(alice).is_empty());
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

#[test]
fn garbage_on_a_connection_closes_it_and_harms_nobody() {
    let mut bench = Bench::new(|_| ());
    let bob = bench.join("bob");
    for garbage in [&b"\xff\xff\xff\xff"[..], b"\x0a\x80"] {
        let alice = bench.join("alice");
        bench
            .world
            .signal(alice, &garbage.to_vec().into(), bench.now);
        bench.collect();
        assert!(bench.closed.contains(&alice));
    }
    for sdp in [
        "",
        "v=0\r\n",
        "v=0\r\nm=audio 9 X 1\r\n",
        &BROWSER_JOIN[..400],
        "\u{0}\u{1}",
    ] {
        let alice = bench.join("alice");
        bench.ask(alice, Request::Offer(offer(sdp, 5)));
        assert_eq!(
            bench.leave_of(alice).map(|(action, _)| action),
            Some(Action::Reconnect),
            "{sdp:?}"
        );
    }
    bench.ask(bob, Request::Ping(1));
    assert!(matches!(bench.told(bob).last(), Some(Message::Pong(_))));
}

#[test]
fn every_recorded_offer_is_answered() {
    let offers = [
        [
            BROWSER_JOIN,
            BROWSER_PUBLISH,
            BROWSER_UNPUBLISH,
            include_str!("testdata/offers/browser-again.sdp"),
        ],
        [
            include_str!("testdata/offers/node-join.sdp"),
            include_str!("testdata/offers/node-publish.sdp"),
            include_str!("testdata/offers/node-unpublish.sdp"),
            include_str!("testdata/offers/node-again.sdp"),
        ],
        [
            include_str!("testdata/offers/python-join.sdp"),
            include_str!("testdata/offers/python-publish.sdp"),
            include_str!("testdata/offers/python-unpublish.sdp"),
            include_str!("testdata/offers/python-again.sdp"),
        ],
    ];
    for chain in offers {
        let mut bench = Bench::new(|_| ());
        let mut admission = Bench::admission("alice", |_| ());
        admission.route = Route::OneConnection;
        admission.offer = Some(offer(chain[0], 1));
        let alice = bench.connect(admission);
        for (id, sdp) in chain.iter().enumerate().skip(1) {
            let source = proto::TrackSource::Microphone as i32;
            bench.ask(
                alice,
                Request::AddTrack(proto::AddTrackRequest {
                    cid: format!("c{id}"),
                    source,
                    ..Default::default()
                }),
            );
            bench.ask(alice, Request::Offer(offer(sdp, id as u32 + 1)));
        }
        let answers: Vec<_> = bench
            .told(alice)
            .iter()
            .filter_map(|m| {
                if let Message::Answer(answer) = m {
                    Some(answer)
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(
            answers.iter().map(|answer| answer.id).collect::<Vec<_>>(),
            [1, 2, 3, 4]
        );
        for (answer, sdp) in answers.iter().zip(chain) {
            let offered = super::sdp::sections(sdp).unwrap();
            let answered = super::sdp::sections(&answer.sdp).unwrap();
            assert_eq!(
                offered.iter().map(|s| s.mid).collect::<Vec<_>>(),
                answered.iter().map(|s| s.mid).collect::<Vec<_>>()
            );
            let publishes = offered
                .iter()
                .filter(|s| s.direction.sends() && s.kind != super::sdp::SectionKind::Application);
            for section in publishes {
                let answer = answered.iter().find(|s| s.mid == section.mid).unwrap();
                assert_eq!(answer.direction, super::sdp::Direction::RecvOnly);
            }
            assert!(
                answer.sdp.contains("a=ice-lite") && answer.sdp.contains("192.0.2.1 5000 typ host")
            );
        }
        let tracks = bench
            .world
            .get_participant("kitchen", "alice")
            .unwrap()
            .tracks;
        assert!(!tracks.is_empty());
    }
}
