//! Recorders and mixers of this process: they are there for others, and nobody sees them.

use std::sync::Arc;
use std::time::Duration;

use livekit_protocol as proto;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;

use super::super::ConnectionId;
use super::super::admission::Hears;
use super::Bench;
use super::trial::Silent;

/// Somebody who records joins, or mixes.
fn recorder(bench: &mut Bench, identity: &str) -> ConnectionId {
    let admission = Bench::admission(identity, |claims| {
        claims.kind = "egress".into();
        claims.video.hidden = true;
        claims.video.recorder = true;
    });
    bench.connections += 1;
    let connection = ConnectionId(bench.connections);
    let (sfu, now) = (&mut bench.sfu, bench.now);
    sfu.connect_local(connection, admission, Arc::new(Silent), now);
    bench.collect();
    connection
}

#[test]
fn a_recorder_takes_no_place_is_not_seen_and_keeps_no_room() {
    let mut bench = Bench::new(|settings| settings.room.max_participants = 1);
    let ann = bench.join("ann");
    bench.forget();
    let eve = recorder(&mut bench, "EG_1");
    assert!(bench.leave_of(eve).is_none());
    assert!(bench.updates(ann).is_empty());
    let room = bench.sfu.list_rooms(&[]).remove(0);
    assert_eq!(room.num_participants, 1);
    assert_eq!(bench.sfu.list_participants(&room.name).unwrap().len(), 1);
    bench.ask(ann, Request::Leave(proto::LeaveRequest::default()));
    bench.pass(Duration::from_secs(u64::from(room.departure_timeout) + 5));
    assert!(bench.sfu.list_rooms(&[]).is_empty());
    assert!(bench.leave_of(eve).is_some());
}

#[test]
fn only_who_hears_the_mix_hears_who_mixes() {
    let mut bench = Bench::new(|_| ());
    let mixer = recorder(&mut bench, "mix-1");
    let track = proto::AddTrackRequest {
        cid: "mix".into(),
        ..proto::AddTrackRequest::default()
    };
    bench.ask(mixer, Request::AddTrack(track));
    let ann = bench.join("ann");
    let microphone = [bench.publish(ann).sid];
    let mut wanted = |identity: &str, hears: Option<Hears>| {
        let mut admission = Bench::admission(identity, |_| ());
        admission.once = hears;
        bench.connect(admission);
        let wanted = bench.sfu.wanted(bench.key_of(identity));
        let tracks: Vec<String> = wanted.iter().map(|one| one.track.to_string()).collect();
        tracks
    };
    let of = |identity: &str| Some(Hears::Participant(identity.to_owned()));
    assert_eq!(wanted("a", None), microphone);
    assert_eq!(wanted("b", of("ann")), microphone);
    assert_eq!(wanted("c", of("mix-1")), [""; 0]);
    assert_eq!(wanted("d", Some(Hears::Nothing)), [""; 0]);
    let mix = wanted("e", Some(Hears::Mix));
    assert!(mix.len() == 1 && mix != microphone, "{mix:?}");
    let told = bench.told(mixer).iter();
    assert!(
        told.clone()
            .any(|told| matches!(told, Message::TrackPublished(_)))
    );
}
