//! Rooms created by inbound calls on trial.

use std::sync::Arc;

use bytes::Bytes;
use livekit_protocol as proto;
use proto::signal_request::Message as Request;

use vivavoce_seams::rooms::link::{Frame, Packet};

use super::super::local::{Delivery, LocalMedia};
use super::super::{ConnectionId, Route};
use super::Bench;

/// Neither sends nor receives.
#[derive(Debug)]
pub struct Silent;

impl LocalMedia for Silent {
    fn awake(&self) {}

    fn next_frame(&self) -> Option<Frame> {
        None
    }

    fn next_message(&self) -> Option<(Delivery, Bytes)> {
        None
    }

    fn hear(&self, _track: &str, _packet: Packet) {}

    fn receive(&self, _delivery: Delivery, _message: &Bytes) -> bool {
        true
    }
}

/// An inbound call joins the room.
fn call(bench: &mut Bench, identity: &str) -> ConnectionId {
    let mut admission = Bench::admission(identity, |claims| claims.kind = "sip".into());
    let told = [("sip.phoneNumber".to_owned(), "+4930123".to_owned())];
    admission.claims.attributes = told.into();
    admission.route = Route::OneConnection;
    bench.connections += 1;
    let connection = ConnectionId(bench.connections);
    let (sfu, now) = (&mut bench.sfu, bench.now);
    sfu.connect_local(connection, admission, Arc::new(Silent), now);
    bench.collect();
    connection
}

fn hang_up(bench: &mut Bench, call: ConnectionId) {
    bench.ask(call, Request::Leave(proto::LeaveRequest::default()));
}

fn rooms(bench: &Bench) -> usize {
    bench.sfu.list_rooms(&[]).len()
}

#[test]
fn a_call_that_nobody_has_acknowledged_leaves_no_room_behind() {
    let mut bench = Bench::new(|_| ());
    for _ in 0..3 {
        let caller = call(&mut bench, "caller");
        hang_up(&mut bench, caller);
        assert_eq!(rooms(&bench), 0);
        let caller = call(&mut bench, "caller");
        bench.sfu.disconnected(caller, bench.now);
        assert_eq!(rooms(&bench), 0);
    }
    // The room ends with the last of several.
    let first = call(&mut bench, "first");
    let second = call(&mut bench, "second");
    hang_up(&mut bench, first);
    assert_eq!(rooms(&bench), 1);
    hang_up(&mut bench, second);
    assert_eq!(rooms(&bench), 0);
}

#[test]
fn participants_who_say_much_about_themselves_do_not_keep_a_call_out() {
    let mut bench = Bench::new(|_| ());
    let said = super::super::limits::ROOM_STATE_BYTES / 50;
    for n in 0..51 {
        bench.join_with(&format!("mallory{n}"), |claims| {
            claims.metadata = "x".repeat(said);
        });
    }
    let caller = call(&mut bench, "caller");
    assert!(bench.leave_of(caller).is_none());
    let inside = bench.sfu.list_participants("kitchen").unwrap();
    let caller = inside.iter().find(|inside| inside.identity == "caller");
    assert_eq!(caller.unwrap().attributes.len(), 1);
}

#[test]
fn a_room_stays_for_a_while_that_is_more_than_such_a_calls() {
    for case in ["kept", "somebody else", "there before", "made meanwhile"] {
        let mut bench = Bench::new(|_| ());
        let request = proto::CreateRoomRequest {
            name: "kitchen".into(),
            ..Default::default()
        };
        if case == "there before" {
            bench.sfu.create_room(&request, bench.now).unwrap();
        }
        let caller = call(&mut bench, "caller");
        match case {
            "kept" => bench.sfu.keep_room("kitchen", bench.now).unwrap(),
            "somebody else" => {
                let other = bench.join("other");
                hang_up(&mut bench, other);
            }
            "made meanwhile" => drop(bench.sfu.create_room(&request, bench.now).unwrap()),
            _ => {}
        }
        hang_up(&mut bench, caller);
        assert_eq!(rooms(&bench), 1, "{case}");
        bench.pass(std::time::Duration::from_secs(21));
        assert_eq!(rooms(&bench), 0, "{case}");
    }
}
