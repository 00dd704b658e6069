//! Participants forwarded to other rooms: what is seen and heard of them there, what they may not do, and how it ends.

use std::time::Duration;

use livekit_protocol as proto;
use proto::participant_info::KindDetail;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;
use str0m_netem::NetemConfig;

use super::super::events::Event;
use super::super::sfu::Sfu;
use super::super::{OperationError, ParticipantChange, limits};
use super::Bench;
use super::moving::{admission, join, moved, owner, present, tenant};
use super::stage::{Stage, reliable};
use vivavoce_auth::{Owner, Principal, TenantId};

fn forwarded(
    bench: &mut Bench,
    from: &str,
    identity: &str,
    to: &str,
) -> Result<(), OperationError> {
    let now = bench.now;
    let forwarded = bench.sfu.forward_participant(from, identity, to, now);
    bench.collect();
    forwarded
}

fn seen(bench: &Bench, room: &str, identity: &str) -> Option<proto::ParticipantInfo> {
    bench.sfu.get_participant(room, identity).ok()
}

/// The field that a request is refused by.
#[track_caller]
fn refused_by<T: std::fmt::Debug>(outcome: Result<T, OperationError>) -> String {
    let (OperationError::FailedPrecondition(why) | OperationError::InvalidArgument(why)) =
        outcome.unwrap_err()
    else {
        panic!("it is not refused by a field");
    };
    why.split_once(": ").unwrap().0.to_owned()
}

#[test]
fn both_rooms_hear_somebody_who_is_forwarded_and_who_hears_its_own_room_only() {
    let mut stage = Stage::new(NetemConfig::new());
    let (ann, bob) = (stage.join("ann"), stage.join("bob"));
    let (cleo, dave) = (
        stage.join_in("cellar", "cleo"),
        stage.join_in("attic", "dave"),
    );
    stage.run(Duration::from_secs(1), &[]);
    let microphone = stage.publish(ann, "microphone");
    let of_cleo = stage.publish(cleo, "of cleo");
    stage.run(Duration::from_secs(1), &[]);
    for room in ["cellar", "attic"] {
        forwarded(&mut stage.bench, "kitchen", "ann", room).unwrap();
    }
    stage.run(Duration::from_secs(1), &[]);
    let speakers = [(ann, microphone), (cleo, of_cleo)];
    stage.run(Duration::from_secs(2), &speakers);
    for (listener, speaker, hears) in [
        (bob, ann, true),
        (cleo, ann, true),
        (dave, ann, true),
        (ann, cleo, false),
        (bob, cleo, false),
    ] {
        let heard = stage.clients[listener].heard_of(speaker);
        let all: Vec<u64> = (1..=heard.len() as u64).collect();
        assert_eq!(heard, all);
        assert_eq!(
            heard.len() >= 98,
            hears,
            "{listener} of {speaker}: {heard:?}"
        );
    }
    // Its new room is told that it speaks, under the name that it has there.
    let sid = seen(&stage.bench, "cellar", "ann").unwrap().sid;
    let speaks = |message: &Message| matches!(message, Message::SpeakersChanged(told) if told.speakers.iter().any(|one| one.active && one.sid == sid));
    let told = stage.bench.told(stage.clients[cleo].connection);
    assert!(told.iter().any(speaks));
    // A track that comes later is heard as well.
    let second = stage.publish(ann, "second");
    stage.run(Duration::from_secs(1), &[]);
    let before = stage.clients[dave].heard_of(ann).len();
    stage.run(Duration::from_secs(1), &[(ann, second)]);
    assert!(stage.clients[dave].heard_of(ann).len() >= before + 45);
    stage.unpublish(ann, second);
    stage.run(Duration::from_secs(1), &[]);
    assert_eq!(seen(&stage.bench, "attic", "ann").unwrap().tracks.len(), 1);
    // Where the forwarding has ended, nothing is heard, and elsewhere it goes on.
    let now = stage.bench.now;
    stage
        .bench
        .sfu
        .remove_participant("cellar", "ann", now)
        .unwrap();
    stage.bench.collect();
    stage.run(Duration::from_secs(1), &[]);
    let before = [cleo, dave, bob].map(|who| stage.clients[who].heard_of(ann).len());
    stage.run(Duration::from_secs(1), &[(ann, microphone)]);
    let after = [cleo, dave, bob].map(|who| stage.clients[who].heard_of(ann).len());
    assert_eq!(before[0], after[0]);
    assert!(after[1] >= before[1] + 45 && after[2] >= before[2] + 45);
}

#[test]
fn data_is_neither_sent_to_the_other_room_nor_received_from_there() {
    let mut stage = Stage::new(NetemConfig::new());
    let (ann, bob) = (stage.join("ann"), stage.join("bob"));
    let cleo = stage.join_in("cellar", "cleo");
    stage.run(Duration::from_secs(1), &[]);
    forwarded(&mut stage.bench, "kitchen", "ann", "cellar").unwrap();
    stage.run(Duration::from_secs(1), &[]);
    stage.send(ann, "_reliable", &reliable(1));
    stage.send(cleo, "_reliable", &reliable(1));
    stage.run(Duration::from_secs(1), &[]);
    let messages = |stage: &Stage, who: usize| stage.clients[who].messages.len();
    assert_eq!(messages(&stage, bob), 1);
    assert_eq!((messages(&stage, cleo), messages(&stage, ann)), (0, 0));
    assert_eq!(stage.bench.sfu.counters().slow_receivers, 0);
}

#[test]
fn the_other_room_sees_what_changes() {
    let mut bench = Bench::new(|_| ());
    let ann = join(&mut bench, "kitchen", "ann", Principal::Operator);
    let cleo = join(&mut bench, "cellar", "cleo", Principal::Operator);
    let track = bench.publish(ann);
    bench.forget();
    bench.events.clear();
    forwarded(&mut bench, "kitchen", "ann", "cellar").unwrap();
    assert_eq!(
        bench.events,
        [Event::ParticipantJoined, Event::TrackPublished]
    );
    let there = seen(&bench, "cellar", "ann").unwrap();
    let here = seen(&bench, "kitchen", "ann").unwrap();
    assert_eq!(there.kind_details, [KindDetail::Forwarded as i32]);
    assert_ne!(there.sid, here.sid);
    assert_eq!(there.tracks, here.tracks);
    let permission = there.permission.unwrap();
    assert!(permission.can_publish && !permission.can_subscribe && !permission.can_publish_data);
    assert_eq!(bench.updates(cleo).last().unwrap().sid, there.sid);
    assert!(bench.updates(ann).is_empty());

    bench.forget();
    let mute = proto::MuteTrackRequest {
        sid: track.sid.clone(),
        muted: true,
    };
    bench.ask(ann, Request::Mute(mute));
    assert!(bench.updates(cleo).last().unwrap().tracks[0].muted);
    let change = ParticipantChange {
        name: Some("Ann B.".to_owned()),
        metadata: Some("m".to_owned()),
        attributes: [("k".to_owned(), "v".to_owned())].into(),
        permission: None,
    };
    let now = bench.now;
    bench
        .sfu
        .update_participant("kitchen", "ann", change, now)
        .unwrap();
    bench.collect();
    let told = bench.updates(cleo).pop().unwrap();
    assert_eq!(
        (
            told.name.as_str(),
            told.metadata.as_str(),
            told.attributes["k"].as_str()
        ),
        ("Ann B.", "m", "v")
    );
    assert_eq!(told.kind_details, [KindDetail::Forwarded as i32]);
    // Whoever may no longer publish does so nowhere.
    bench.events.clear();
    let change = ParticipantChange {
        permission: Some(proto::ParticipantPermission::default()),
        ..ParticipantChange::default()
    };
    bench
        .sfu
        .update_participant("kitchen", "ann", change, now)
        .unwrap();
    bench.collect();
    assert_eq!(bench.events, [Event::TrackUnpublished; 2]);
    assert!(seen(&bench, "cellar", "ann").unwrap().tracks.is_empty());
    // And who joins later finds the same.
    let dave = join(&mut bench, "cellar", "dave", Principal::Operator);
    let others = &bench.join_response(dave).other_participants;
    assert!(others.iter().any(|other| other.sid == there.sid));
}

#[test]
fn a_publisher_decides_who_subscribes_in_the_other_room_too() {
    let mut bench = Bench::new(|_| ());
    let ann = join(&mut bench, "kitchen", "ann", Principal::Operator);
    let cleo = join(&mut bench, "cellar", "cleo", Principal::Operator);
    let track = bench.publish(ann);
    forwarded(&mut bench, "kitchen", "ann", "cellar").unwrap();
    let room = bench.sfu.room_names["cellar"];
    let wants = |sfu: &Sfu| {
        let cleo = sfu.participant_in(room, "cleo").unwrap();
        sfu.wanted(cleo).len()
    };
    assert_eq!(wants(&bench.sfu), 1);
    bench.forget();
    for (all_participants, wanted) in [(false, 0), (true, 1)] {
        let permission = proto::SubscriptionPermission {
            all_participants,
            ..proto::SubscriptionPermission::default()
        };
        bench.ask(ann, Request::SubscriptionPermission(permission));
        assert_eq!(wants(&bench.sfu), wanted);
        let there = seen(&bench, "cellar", "ann").unwrap();
        let told = bench
            .told(cleo)
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::SubscriptionPermissionUpdate(update) => Some(update.clone()),
                _ => None,
            });
        let told = told.unwrap();
        assert_eq!(
            (told.participant_sid, told.track_sid, told.allowed),
            (there.sid, track.sid.clone(), all_participants)
        );
    }
}

/// How a forwarding ends.
type End = fn(&mut Bench);

#[test]
fn a_forwarding_ends_with_whoever_is_forwarded_and_with_either_room() {
    let ends: [(&str, End); 7] = [
        ("it leaves", |bench| {
            let room = bench.sfu.room_names["kitchen"];
            let ann = bench.sfu.participant_in(room, "ann").unwrap();
            let connection = bench.sfu.participants[&ann].connection.unwrap();
            bench.ask(connection, Request::Leave(proto::LeaveRequest::default()));
        }),
        ("it is removed there", |bench| {
            let now = bench.now;
            bench.sfu.remove_participant("cellar", "ann", now).unwrap();
        }),
        ("the other room is deleted", |bench| {
            bench.sfu.delete_room("cellar", bench.now).unwrap();
        }),
        ("its room is deleted", |bench| {
            bench.sfu.delete_room("kitchen", bench.now).unwrap();
        }),
        ("it is moved to a third room", |bench| {
            moved(bench, "kitchen", "ann", "attic").unwrap();
        }),
        ("it is moved to that room", |bench| {
            moved(bench, "kitchen", "ann", "cellar").unwrap();
        }),
        ("somebody of its identity joins there", |bench| {
            join(bench, "cellar", "ann", Principal::Operator);
        }),
    ];
    for (how, end) in ends {
        let mut bench = Bench::new(|_| ());
        join(&mut bench, "kitchen", "ann", Principal::Operator);
        let cleo = join(&mut bench, "cellar", "cleo", Principal::Operator);
        forwarded(&mut bench, "kitchen", "ann", "cellar").unwrap();
        let there = seen(&bench, "cellar", "ann").unwrap();
        bench.forget();
        end(&mut bench);
        bench.collect();
        let of_it = |sfu: &Sfu| sfu.participants.values().any(|one| *one.sid == *there.sid);
        assert!(!of_it(&bench.sfu), "{how}");
        let sources = bench.sfu.participants.values();
        assert!(sources.clone().all(|one| one.forwarded.is_empty()), "{how}");
        if how != "the other room is deleted" {
            let told = bench.updates(cleo);
            let left = told.iter().find(|one| one.sid == there.sid).unwrap();
            assert_eq!(
                left.state(),
                proto::participant_info::State::Disconnected,
                "{how}"
            );
        }
        let names: Vec<String> = bench.sfu.room_names.keys().cloned().collect();
        for name in names {
            bench.sfu.delete_room(&name, bench.now).unwrap();
        }
        assert!(bench.sfu.shared.places().participants.is_empty(), "{how}");
        assert!(bench.sfu.participants.is_empty(), "{how}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_its_field() {
    let mut bench = Bench::new(|_| ());
    for (room, identity) in [("kitchen", "ann"), ("kitchen", "bob"), ("cellar", "bob")] {
        join(&mut bench, room, identity, Principal::Operator);
    }
    bench.connect(admission("kitchen", "late", Principal::Operator));
    let mut hidden = admission("kitchen", "ghost", Principal::Operator);
    hidden.claims.video.hidden = true;
    bench.connect(hidden);
    let try_it = |bench: &mut Bench, from: &str, identity: &str, to: &str| {
        refused_by(forwarded(bench, from, identity, to))
    };
    let bench = &mut bench;
    assert_eq!(
        try_it(bench, "kitchen", "ann", "kitchen"),
        "destination_room"
    );
    assert_eq!(
        try_it(bench, "kitchen", "bob", "cellar"),
        "destination_room"
    );
    assert_eq!(try_it(bench, "kitchen", "late", "cellar"), "identity");
    assert_eq!(try_it(bench, "kitchen", "ghost", "cellar"), "identity");
    let nobody = forwarded(bench, "kitchen", "nobody", "cellar");
    assert_eq!(nobody, Err(OperationError::NoParticipant));
    assert_eq!(
        forwarded(bench, "loft", "ann", "cellar"),
        Err(OperationError::NoRoom)
    );

    forwarded(bench, "kitchen", "ann", "cellar").unwrap();
    assert_eq!(
        try_it(bench, "kitchen", "ann", "cellar"),
        "destination_room"
    );
    // It is not there to be sent on, or changed.
    assert_eq!(try_it(bench, "cellar", "ann", "attic"), "identity");
    assert_eq!(
        refused_by(moved(bench, "cellar", "ann", "attic")),
        "identity"
    );
    let now = bench.now;
    let muted = bench.sfu.mute_track("cellar", "ann", "TR_x", true, now);
    assert_eq!(refused_by(muted), "identity");
    let change = ParticipantChange::default();
    let changed = bench.sfu.update_participant("cellar", "ann", change, now);
    assert_eq!(refused_by(changed), "identity");
    let all = proto::UpdateSubscription::default();
    let subscribed = bench.sfu.update_subscriptions("cellar", "ann", &all, now);
    assert_eq!(refused_by(subscribed), "identity");
    // Nor does a client resume as somebody who has none.
    let mut resume = admission("cellar", "ann", Principal::Operator);
    resume.resume = Some(String::new());
    let connection = bench.connect(resume);
    assert!(bench.leave_of(connection).is_some());

    for number in 1..limits::FORWARDED_TO {
        forwarded(bench, "kitchen", "ann", &format!("room {number}")).unwrap();
    }
    assert_eq!(try_it(bench, "kitchen", "ann", "one more"), "identity");
    assert!(!bench.sfu.room_names.contains_key("one more"));
}

#[test]
fn nobody_is_forwarded_into_the_room_of_another_tenant() {
    let mut bench = Bench::new(|_| ());
    join(&mut bench, "kitchen", "ann", tenant("a"));
    join(&mut bench, "cellar", "bob", tenant("b"));
    let refused = forwarded(&mut bench, "kitchen", "ann", "cellar");
    assert_eq!(refused_by(refused), "destination_room");
    assert_eq!(present(&bench, "cellar"), ["bob"]);
    // A room that nobody owns is that of whoever is forwarded there, and no longer for whom it lets in no more.
    forwarded(&mut bench, "kitchen", "ann", "attic").unwrap();
    let of_a = Owner::Tenant(TenantId::new("a").unwrap());
    assert_eq!(owner(&bench, "attic"), of_a);
    let stranger = bench.sfu.check(&admission("attic", "eve", tenant("b")));
    assert_eq!(stranger.unwrap_err().status, 403);
    let metadata = Owner::Tenant(TenantId::new("b").unwrap()).in_place_of("");
    let now = bench.now;
    bench
        .sfu
        .update_room_metadata("attic", metadata, now)
        .unwrap();
    assert!(present(&bench, "attic").is_empty());
    assert_eq!(present(&bench, "kitchen"), ["ann"]);
}

#[test]
fn somebody_who_is_forwarded_takes_a_place_in_the_other_room() {
    let mut bench = Bench::new(|settings| settings.bounds.participants = 3);
    join(&mut bench, "kitchen", "ann", Principal::Operator);
    let small = proto::CreateRoomRequest {
        name: "small".to_owned(),
        max_participants: 1,
        ..Default::default()
    };
    bench.sfu.create_room(&small, bench.now).unwrap();
    join(&mut bench, "small", "bob", Principal::Operator);
    let refused = forwarded(&mut bench, "kitchen", "ann", "small");
    assert_eq!(refused_by(refused), "destination_room");
    forwarded(&mut bench, "kitchen", "ann", "cellar").unwrap();
    let room = bench.sfu.get_room("cellar").unwrap();
    assert_eq!(room.num_participants, 1);
    // The third place was the last one.
    let refused = forwarded(&mut bench, "kitchen", "ann", "attic");
    assert!(
        matches!(refused, Err(OperationError::Quota(_))),
        "{refused:?}"
    );
    assert!(!bench.sfu.room_names.contains_key("attic"));
    // Moved to where it is forwarded to, it needs none.
    moved(&mut bench, "kitchen", "ann", "cellar").unwrap();
    assert_eq!(present(&bench, "cellar"), ["ann"]);
}

#[test]
fn what_somebody_says_of_itself_must_fit_into_all_its_rooms() {
    let mut bench = Bench::new(|_| ());
    let text = "x".repeat(limits::METADATA_BYTES);
    let talkative = ParticipantChange {
        metadata: Some(text),
        ..ParticipantChange::default()
    };
    for number in 0..limits::ROOM_STATE_BYTES / limits::METADATA_BYTES {
        let identity = format!("p{number}");
        join(&mut bench, "cellar", &identity, Principal::Operator);
        let (change, now) = (talkative.clone(), bench.now);
        bench
            .sfu
            .update_participant("cellar", &identity, change, now)
            .unwrap();
    }
    join(&mut bench, "kitchen", "ann", Principal::Operator);
    forwarded(&mut bench, "kitchen", "ann", "cellar").unwrap();
    let now = bench.now;
    let refused = bench
        .sfu
        .update_participant("kitchen", "ann", talkative, now);
    assert!(
        matches!(refused, Err(OperationError::InvalidArgument(_))),
        "{refused:?}"
    );
}
