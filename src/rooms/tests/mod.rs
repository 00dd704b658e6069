//! Rooms in virtual time, without sockets. [`Bench`] drives an SFU; `sessions` and `operations` test it by signalling
//! alone, `offers` with recorded offers of real clients, `hostile` with attacks, `media`, `data` and `crowd` with peer
//! connections over lossy networks (`stage`), and `fuzz` with invalid input.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use prost::Message as _;
use proto::DisconnectReason;
use proto::leave_request::Action;
use proto::signal_request::Message as Request;
use proto::signal_response::Message;

use super::events::Event;
use super::sfu::Sfu;
use super::shared::Shared;
use super::token::{self, Claims};
use super::{Admission, ConnectionId, Keys, Now, ParticipantKey, Route, Settings, admission};

pub const BROWSER_JOIN: &str = include_str!("../testdata/offers/browser-join.sdp");
pub const BROWSER_PUBLISH: &str = include_str!("../testdata/offers/browser-publish.sdp");
pub const BROWSER_UNPUBLISH: &str = include_str!("../testdata/offers/browser-unpublish.sdp");

mod crowd;
mod data;
mod fast_path;
mod forwarded;
mod fuzz;
mod held;
mod hostile;
mod media;
mod moving;
mod offers;
mod operations;
mod owners;
mod pictures;
mod recorders;
mod relaying;
mod relocating;
mod server;
mod sessions;
mod stage;
mod trial;

/// An SFU with its own clock, and the messages that each connection received.
pub struct Bench {
    pub sfu: Sfu,
    pub now: Now,
    inboxes: HashMap<ConnectionId, Vec<Message>>,
    pub closed: Vec<ConnectionId>,
    pub events: Vec<Event>,
    connections: u64,
    /// Datagrams on their way to clients.
    pub datagrams: Vec<str0m::net::Transmit>,
}

impl Bench {
    pub fn new(change: impl FnOnce(&mut Settings)) -> Self {
        let now = Now {
            instant: Instant::now(),
            unix_ms: 1_800_000_000_000,
        };
        let mut settings = Settings {
            keys: Keys::new([("key", "secret")]),
            addresses: crate::Addresses {
                udp: vec!["192.0.2.1:5000".parse().unwrap()],
                tcp: Vec::new(),
            },
            seed: 7,
            ..Settings::default()
        };
        change(&mut settings);
        let shared = Arc::new(Shared::new(&settings));
        let sfu = Sfu::new(settings, (shared, 0), now);
        Self {
            sfu,
            now,
            inboxes: HashMap::new(),
            closed: vec![],
            events: vec![],
            connections: 0,
            datagrams: vec![],
        }
    }

    pub fn admission(identity: &str, change: impl FnOnce(&mut Claims)) -> Admission {
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

    pub fn connect(&mut self, admission: Admission) -> ConnectionId {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.sfu.connect(connection, admission, self.now);
        self.collect();
        connection
    }

    pub fn join_with(&mut self, identity: &str, change: impl FnOnce(&mut Claims)) -> ConnectionId {
        let mut admission = Self::admission(identity, change);
        admission.route = Route::OneConnection;
        admission.offer = Some(offer(BROWSER_JOIN, 1));
        self.connect(admission)
    }

    pub fn join(&mut self, identity: &str) -> ConnectionId {
        self.join_with(identity, |_| ())
    }

    pub fn ask(&mut self, connection: ConnectionId, request: Request) {
        let bytes = proto::SignalRequest {
            message: Some(request),
        }
        .encode_to_vec();
        self.sfu.signal(connection, &bytes.into(), self.now);
        self.collect();
    }

    pub fn publish(&mut self, connection: ConnectionId) -> proto::TrackInfo {
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

    pub fn pass(&mut self, time: Duration) {
        let end = self.now.instant + time;
        while self.now.instant < end {
            let soonest = self.now.instant + Duration::from_millis(1);
            let next = self.sfu.deadline().max(soonest).min(end);
            self.now.unix_ms += (next - self.now.instant).as_millis() as i64;
            self.now.instant = next;
            self.sfu.tick(self.now);
            self.collect();
        }
    }

    pub fn collect(&mut self) {
        self.sfu.settle(self.now);
        let outputs = self.sfu.take_outputs();
        for (connection, told) in outputs.signals {
            let response = proto::SignalResponse::decode(told.bytes.clone()).unwrap();
            self.inboxes
                .entry(connection)
                .or_default()
                .push(response.message.unwrap());
        }
        self.closed.extend(outputs.closes);
        self.datagrams.extend(outputs.datagrams);
        self.events
            .extend(outputs.events.iter().map(|event| event.event));
    }

    pub fn told(&self, connection: ConnectionId) -> &[Message] {
        self.inboxes
            .get(&connection)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    /// The address that clients send media to.
    pub fn world_address() -> std::net::SocketAddr {
        "192.0.2.1:5000".parse().unwrap()
    }

    pub fn key_of(&self, identity: &str) -> ParticipantKey {
        let room = self.sfu.room_names["kitchen"];
        self.sfu.participant_in(room, identity).unwrap()
    }

    pub fn forget(&mut self) {
        self.inboxes.clear();
    }

    pub fn join_response(&self, connection: ConnectionId) -> &proto::JoinResponse {
        match &self.told(connection)[0] {
            Message::Join(join) => join,
            other => panic!("the first message is {other:?}"),
        }
    }

    /// What a connection was told of participants, oldest first: sid and state.
    pub fn updates(&self, connection: ConnectionId) -> Vec<proto::ParticipantInfo> {
        let updates = self
            .told(connection)
            .iter()
            .filter_map(|message| match message {
                Message::Update(update) => Some(update.participants.clone()),
                _ => None,
            });
        updates.flatten().collect()
    }

    pub fn leave_of(&self, connection: ConnectionId) -> Option<(Action, DisconnectReason)> {
        self.told(connection)
            .iter()
            .find_map(|message| match message {
                Message::Leave(leave) => Some((leave.action(), leave.reason())),
                _ => None,
            })
    }
}

pub fn offer(sdp: &str, id: u32) -> proto::SessionDescription {
    proto::SessionDescription {
        r#type: "offer".into(),
        sdp: sdp.replace('\n', "\r\n").replace("\r\r", "\r"),
        id,
        ..Default::default()
    }
}
