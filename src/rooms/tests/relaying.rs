//! Who is alone with whom, so that the two may relay to each other without the room; and in which forms frames are wanted by those who
//! are there.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use livekit_protocol as proto;
use proto::signal_request::Message as Request;

use vivavoce_seams::rooms::link::{Forms, Frame, Packet, Payload, Relay, Relayed, Samples};
use vivavoce_seams::rooms::view;

use super::super::local::{Delivery, LocalMedia};
use super::super::{ConnectionId, Route};
use super::Bench;

/// A telephone that can take what is relayed, and knows whom it may relay to.
#[derive(Debug, Default)]
struct Telephone {
    own: Option<Arc<Nowhere>>,
    needs_opus: bool,
    forms: Mutex<Option<Forms>>,
    to_send: Mutex<Option<Frame>>,
    heard: Mutex<Vec<Payload>>,
    other: Mutex<Option<Weak<dyn Relay>>>,
}

#[derive(Debug)]
struct Nowhere;

impl Relay for Nowhere {
    fn takes(&self, _encoding: &str) -> bool {
        false
    }

    fn relay(&self, _packet: &Relayed<'_>) -> bool {
        false
    }

    fn stop(&self) {}
}

impl LocalMedia for Telephone {
    fn awake(&self) {}

    fn next_frame(&self) -> Option<Frame> {
        self.to_send.lock().unwrap().take()
    }

    fn next_message(&self) -> Option<(Delivery, Bytes)> {
        None
    }

    fn hear(&self, _track: &str, packet: Packet) {
        self.heard.lock().unwrap().push(packet.payload);
    }

    fn needs_opus(&self) -> bool {
        self.needs_opus
    }

    fn want(&self, forms: Forms) {
        *self.forms.lock().unwrap() = Some(forms);
    }

    fn relay(&self) -> Option<Weak<dyn Relay>> {
        let own: Weak<Nowhere> = Arc::downgrade(self.own.as_ref()?);
        Some(own)
    }

    fn relay_to(&self, other: Option<Weak<dyn Relay>>) {
        *self.other.lock().unwrap() = other;
    }

    fn receive(&self, _delivery: Delivery, _message: &Bytes) -> bool {
        true
    }
}

impl Telephone {
    /// Whether it may relay to this one.
    fn relays_to(&self, other: &Self) -> bool {
        let told = self.other.lock().unwrap().as_ref().and_then(Weak::upgrade);
        let own = other.own.as_ref().map(|own| Arc::as_ptr(own).cast::<()>());
        told.map(|told| Arc::as_ptr(&told).cast::<()>()) == own
    }

    fn relays(&self) -> bool {
        self.other.lock().unwrap().is_some()
    }

    /// Whether its frames are wanted as Opus, and as samples.
    fn wanted(&self) -> (bool, bool) {
        let forms = self.forms.lock().unwrap().unwrap();
        (forms.opus, forms.pcm)
    }

    /// Whether they are to carry what was in the one before.
    fn wants_redundancy(&self) -> bool {
        self.forms.lock().unwrap().unwrap().redundancy
    }

    /// What it has heard since the last time.
    fn heard(&self) -> Vec<Payload> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

/// Joins, publishes and hears everybody.
fn call(bench: &mut Bench, identity: &str, relays: bool) -> (ConnectionId, Arc<Telephone>) {
    let telephone = Telephone {
        own: relays.then(|| Arc::new(Nowhere)),
        ..Telephone::default()
    };
    enter(bench, identity, telephone)
}

fn enter(
    bench: &mut Bench,
    identity: &str,
    telephone: Telephone,
) -> (ConnectionId, Arc<Telephone>) {
    let telephone = Arc::new(telephone);
    let mut admission = Bench::admission(identity, |claims| claims.kind = "sip".into());
    admission.route = Route::OneConnection;
    admission.auto_subscribe = true;
    bench.connections += 1;
    let connection = ConnectionId(bench.connections);
    let media = Arc::clone(&telephone) as Arc<dyn LocalMedia>;
    let (sfu, now) = (&mut bench.sfu, bench.now);
    sfu.connect_local(connection, admission, media, now);
    bench.ask(
        connection,
        Request::AddTrack(view::microphone(identity, false)),
    );
    (connection, telephone)
}

fn track_of(bench: &Bench, identity: &str) -> String {
    let inside = bench.sfu.list_participants("kitchen").unwrap();
    let inside = inside.iter().find(|inside| inside.identity == identity);
    inside.unwrap().tracks[0].sid.clone()
}

#[test]
fn two_relay_to_each_other_while_nobody_else_is_there() {
    let mut bench = Bench::new(|_| ());
    let (_, ann) = call(&mut bench, "ann", true);
    assert!(!ann.relays());
    let (bobs, bob) = call(&mut bench, "bob", true);
    assert!(ann.relays_to(&bob) && bob.relays_to(&ann));
    // Whoever it is, and whatever they hear or say: also who is hidden.
    let eve = bench.join_with("eve", |claims| claims.video.hidden = true);
    assert!(!ann.relays() && !bob.relays());
    bench.ask(eve, Request::Leave(proto::LeaveRequest::default()));
    assert!(ann.relays_to(&bob) && bob.relays_to(&ann));
    let (carols, carol) = call(&mut bench, "carol", true);
    assert!(!ann.relays() && !bob.relays() && !carol.relays());
    bench.ask(carols, Request::Leave(proto::LeaveRequest::default()));
    assert!(ann.relays_to(&bob) && bob.relays_to(&ann));
    bench.ask(bobs, Request::Leave(proto::LeaveRequest::default()));
    assert!(!ann.relays() && !bob.relays());
}

#[test]
fn who_is_muted_or_not_subscribed_to_is_not_relayed() {
    let mut bench = Bench::new(|_| ());
    let (_, ann) = call(&mut bench, "ann", true);
    let (bobs, bob) = call(&mut bench, "bob", true);
    let sid = track_of(&bench, "bob");
    for muted in [true, false] {
        let request = proto::MuteTrackRequest {
            sid: sid.clone(),
            muted,
        };
        bench.ask(bobs, Request::Mute(request));
        assert_eq!((ann.relays(), bob.relays()), (true, !muted));
    }
    let sid = track_of(&bench, "ann");
    for subscribe in [false, true] {
        let request = proto::UpdateSubscription {
            track_sids: vec![sid.clone()],
            subscribe,
            ..Default::default()
        };
        bench.ask(bobs, Request::Subscription(request));
        assert_eq!((ann.relays(), bob.relays()), (subscribe, true));
    }
    let moved = bench
        .sfu
        .move_participant("kitchen", "bob", "cellar", bench.now);
    moved.unwrap();
    assert!(!ann.relays() && !bob.relays());
}

/// A session has no packets of a telephone to give and takes none, and who is not in this process does neither.
#[test]
fn others_than_telephones_are_forwarded_to() {
    let mut bench = Bench::new(|_| ());
    let (_, ann) = call(&mut bench, "ann", true);
    let (agents, agent) = call(&mut bench, "agent", false);
    assert!(!ann.relays() && agent.relays_to(&ann));
    bench.ask(agents, Request::Leave(proto::LeaveRequest::default()));
    bench.join("web");
    bench.pass(Duration::from_secs(1));
    assert!(!ann.relays());
}

/// A frame is encoded for those who need that: who is not in this process, and recorders.
#[test]
fn frames_are_wanted_in_the_forms_that_those_who_are_there_take() {
    let mut bench = Bench::new(|_| ());
    let (_, ann) = call(&mut bench, "ann", false);
    assert_eq!(ann.wanted(), (false, false));
    let (bobs, bob) = call(&mut bench, "bob", false);
    assert_eq!((ann.wanted(), bob.wanted()), ((false, true), (false, true)));
    let web = bench.join("web");
    assert_eq!((ann.wanted(), bob.wanted()), ((true, true), (true, true)));
    bench.ask(bobs, Request::Leave(proto::LeaveRequest::default()));
    assert_eq!(ann.wanted(), (true, false));
    bench.ask(web, Request::Leave(proto::LeaveRequest::default()));
    assert_eq!(ann.wanted(), (false, false));
    let recorder = Telephone {
        needs_opus: true,
        ..Telephone::default()
    };
    let (_, recorder) = enter(&mut bench, "recorder", recorder);
    assert_eq!(
        (ann.wanted(), recorder.wanted()),
        ((true, false), (false, true))
    );
}

/// Redundancy is for those who miss packets, and for those of whom that is not known yet.
#[test]
fn packets_carry_redundancy_while_somebody_misses_some() {
    let mut bench = Bench::new(|_| ());
    let (_, ann) = call(&mut bench, "ann", false);
    assert!(!ann.wants_redundancy());
    bench.join("web");
    assert!(ann.wants_redundancy());
    let note = |bench: &mut Bench, missed: f32| {
        let now = bench.now.instant;
        let mut everybody = bench.sfu.participants.values_mut();
        let web = everybody.find(|one| &*one.identity == "web").unwrap();
        web.losses.note(missed, now);
        bench.pass(Duration::from_secs(1));
        ann.wants_redundancy()
    };
    for (missed, wanted) in [(0.0, false), (0.05, true), (0.0, true)] {
        assert_eq!(note(&mut bench, missed), wanted, "{missed}");
    }
}

/// Who only stands for somebody of another room misses nothing.
#[test]
fn who_is_forwarded_to_a_room_asks_nobody_there_for_redundancy() {
    let mut bench = Bench::new(|_| ());
    let (_, ann) = call(&mut bench, "ann", false);
    call(&mut bench, "bob", false);
    let now = bench.now;
    let moved = bench.sfu.move_participant("kitchen", "bob", "cellar", now);
    moved.unwrap();
    let forwarded = bench
        .sfu
        .forward_participant("cellar", "bob", "kitchen", now);
    forwarded.unwrap();
    bench.collect();
    assert_eq!(bench.sfu.list_participants("kitchen").unwrap().len(), 2);
    assert!(!ann.wants_redundancy());
}

/// Of a frame that has both, each takes its own; one that is not encoded is lost to those who need that.
#[test]
fn samples_pass_to_those_who_take_them() {
    let mut bench = Bench::new(|_| ());
    let (anns, ann) = call(&mut bench, "ann", false);
    let (_, bob) = call(&mut bench, "bob", false);
    let recorder = Telephone {
        needs_opus: true,
        ..Telephone::default()
    };
    let (_, recorder) = enter(&mut bench, "recorder", recorder);
    let opus: Arc<[u8]> = [0xF8, 0xFF, 0xFE].as_slice().into();
    let pcm = Samples::new(&[7; 960]).unwrap();
    let packet = || vec![Payload::Opus(Arc::clone(&opus))];
    let samples = || vec![Payload::Pcm(pcm.clone())];
    for (timestamp, encoded, plain, to_bob, to_recorder) in [
        (0, true, true, samples(), packet()),
        (960, true, false, packet(), packet()),
        (1_920, false, true, samples(), vec![]),
        (2_880, false, false, vec![], vec![]),
    ] {
        *ann.to_send.lock().unwrap() = Some(Frame {
            opus: encoded.then(|| Arc::clone(&opus)),
            pcm: plain.then(|| pcm.clone()),
            timestamp,
            marker: false,
            level: 20,
        });
        bench.sfu.local_media(anns, bench.now);
        assert_eq!((bob.heard(), recorder.heard()), (to_bob, to_recorder));
    }
}
