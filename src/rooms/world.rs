//! All rooms of a server as one value without sockets, threads or clocks: input and the time come in, what is to be sent
//! waits in [`Outputs`]. This file holds the state, the way of a datagram in and out, and the timers; what a message
//! means is in `session`, `signalling`, `publishing`, `subscribing`, `media`, `data` and `operations`, each an `impl World`.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_response::Message;
use str0m::Input;
use str0m::net::{Protocol, Receive, Transmit};

use super::events::{Event, RoomEvent};
use super::participant::{Participant, Side};
use super::peer::{Arrival, Peer, Polled};
use super::room::Room;
use super::{ConnectionId, Now, ParticipantKey, RoomKey, Settings, speakers};

/// How often timers, speakers and counts are looked at.
const HOUSEKEEPING: Duration = Duration::from_millis(speakers::INTERVAL_MS as u64);
/// How long a client has to close its socket after it was told to leave.
const LEAVE_LINGER: Duration = Duration::from_secs(2);
/// Addresses of one participant that are remembered.
pub(super) const MOST_ROUTES: usize = 32;
/// What a peer connection may yield in one go before others have their turn.
const MOST_PER_TURN: usize = 1_000;

/// What the world wants done outside. Fetched after each input.
#[derive(Default)]
pub struct Outputs {
    /// Encoded `SignalResponse`s, in order.
    pub signals: Vec<(ConnectionId, Bytes)>,
    /// Signalling connections to be closed, after what is sent to them.
    pub closes: Vec<ConnectionId>,
    /// Datagrams.
    pub datagrams: Vec<Transmit>,
    /// For webhooks.
    pub events: Vec<RoomEvent>,
}

/// What the server counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that belong to nobody.
    pub stray_datagrams: u64,
    /// Media packets sent on to a subscriber.
    pub forwarded_packets: u64,
    /// Data messages sent on to a receiver.
    pub forwarded_messages: u64,
    /// Receivers whose session was renewed because they were too far behind.
    pub slow_receivers: u64,
    /// Peer connections given up because of a fault inside them.
    pub broken_connections: u64,
}

/// See the module.
pub struct World {
    pub(super) settings: Settings,
    pub(super) rng: fastrand::Rng,
    pub(super) rooms: HashMap<RoomKey, Room>,
    pub(super) room_names: HashMap<String, RoomKey>,
    pub(super) participants: HashMap<ParticipantKey, Participant>,
    pub(super) connections: HashMap<ConnectionId, ParticipantKey>,
    pub(super) outputs: Outputs,
    pub(super) counters: Counters,
    /// Connections that were told to leave, and when they are closed if the client has not done it.
    pub(super) leaving: VecDeque<(Instant, ConnectionId)>,
    pub(super) routes: HashMap<SocketAddr, (ParticipantKey, Side)>,
    pub(super) deadlines: BTreeSet<(Instant, ParticipantKey, Side)>,
    queue: VecDeque<(ParticipantKey, Side)>,
    next_key: u64,
    housekeeping_at: Instant,
}

impl World {
    /// A world without rooms.
    pub fn new(settings: Settings, now: Now) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(settings.seed),
            settings,
            rooms: HashMap::new(),
            room_names: HashMap::new(),
            participants: HashMap::new(),
            connections: HashMap::new(),
            outputs: Outputs::default(),
            counters: Counters::default(),
            leaving: VecDeque::new(),
            routes: HashMap::new(),
            deadlines: BTreeSet::new(),
            queue: VecDeque::new(),
            next_key: 0,
            housekeeping_at: now.instant + HOUSEKEEPING,
        }
    }

    /// What is to be done outside since the last time.
    pub fn take_outputs(&mut self) -> Outputs {
        std::mem::take(&mut self.outputs)
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// When [`Self::tick`] is due.
    pub fn deadline(&self) -> Instant {
        let media = self.deadlines.first().map(|(at, ..)| *at);
        media.map_or(self.housekeeping_at, |at| at.min(self.housekeeping_at))
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Now) {
        while let Some(&(at, key, side)) = self.deadlines.first() {
            if at > now.instant {
                break;
            }
            self.deadlines.pop_first();
            if let Some(peer) = self.peer_mut(key, side) {
                peer.deadline = None;
                peer.handle(Input::Timeout(now.instant));
                self.touch(key, side);
            }
        }
        if self.housekeeping_at <= now.instant {
            self.housekeeping_at = now.instant + HOUSEKEEPING;
            self.keep_house(now);
        }
        self.settle(now);
    }

    /// Closes a connection after the client had time to read why. Some of the Rust core's take a socket that closes
    /// right behind a `leave` for a lost one, and come back.
    pub(super) fn close_soon(&mut self, connection: ConnectionId, now: Now) {
        self.leaving
            .push_back((now.instant + LEAVE_LINGER, connection));
    }

    fn keep_house(&mut self, now: Now) {
        while let Some((_, connection)) = self.leaving.pop_front_if(|(at, _)| *at <= now.instant) {
            self.outputs.closes.push(connection);
        }
        let keys: Vec<ParticipantKey> = self.participants.keys().copied().collect();
        for key in keys {
            self.check_timers(key, now);
        }
        let rooms: Vec<RoomKey> = self.rooms.keys().copied().collect();
        for room in rooms {
            self.tell_speakers(room, now);
            self.tell_counts(room);
            if self
                .rooms
                .get(&room)
                .is_some_and(|room| room.ends_at.is_some_and(|at| at <= now.instant))
            {
                self.end_room(room, proto::DisconnectReason::RoomClosed, now);
            }
        }
    }

    /// A datagram that came to one of the addresses in the settings.
    pub fn datagram(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        bytes: &[u8],
        now: Now,
    ) {
        let Ok(receive) = Receive::new(Protocol::Udp, source, destination, bytes) else {
            self.counters.stray_datagrams += 1;
            return;
        };
        let input = Input::Receive(now.instant, receive);
        let Some((key, side)) = self.route(source, &input, bytes) else {
            self.counters.stray_datagrams += 1;
            return;
        };
        let Some(peer) = self.peer_mut(key, side) else {
            return;
        };
        if !peer.ssrcs.admit(bytes) {
            self.counters.stray_datagrams += 1;
            return;
        }
        peer.handle(input);
        self.touch(key, side);
        self.settle(now);
    }

    /// Who a datagram is for: whoever had the last from there, else whom its STUN user name fits.
    fn route(
        &mut self,
        source: SocketAddr,
        input: &Input<'_>,
        bytes: &[u8],
    ) -> Option<(ParticipantKey, Side)> {
        if let Some(&(key, side)) = self.routes.get(&source)
            && self
                .peer_mut(key, side)
                .is_some_and(|peer| peer.accepts(input))
        {
            return Some((key, side));
        }
        // RFC 7983: STUN begins with 0 to 3. Everything else comes from an address that was checked before.
        if bytes.first().is_none_or(|first| *first > 3) {
            return None;
        }
        let mut found = None;
        'search: for participant in self.participants.values_mut() {
            for side in participant.link.sides() {
                if participant
                    .link
                    .peer_mut(side)
                    .is_some_and(|peer| peer.accepts(input))
                {
                    found = Some((participant.key, side));
                    break 'search;
                }
            }
        }
        let found = found?;
        // A client has a few addresses in its life; one that shows up at ever new ones starts over.
        let known = self
            .routes
            .values()
            .filter(|(key, _)| *key == found.0)
            .count();
        if known >= MOST_ROUTES {
            self.routes.retain(|_, (key, _)| *key != found.0);
        }
        self.routes.insert(source, found);
        Some(found)
    }

    pub(super) fn peer_mut(&mut self, key: ParticipantKey, side: Side) -> Option<&mut Peer> {
        self.participants.get_mut(&key)?.link.peer_mut(side)
    }

    /// Notes that a peer connection was changed and has to be polled.
    pub(super) fn touch(&mut self, key: ParticipantKey, side: Side) {
        if let Some(peer) = self.peer_mut(key, side)
            && !std::mem::replace(&mut peer.queued, true)
        {
            self.queue.push_back((key, side));
        }
    }

    /// Polls every peer connection that was changed until none has anything to say.
    pub(super) fn settle(&mut self, now: Now) {
        while let Some((key, side)) = self.queue.pop_front() {
            if let Some(peer) = self.peer_mut(key, side) {
                peer.queued = false;
            }
            for turn in 0.. {
                let Some(peer) = self.peer_mut(key, side) else {
                    break;
                };
                match peer.poll(now.instant) {
                    Polled::Transmit(transmit) => self.outputs.datagrams.push(transmit),
                    Polled::Arrival(arrival) => self.arrived(key, side, arrival, now),
                    Polled::Wait(at) => {
                        let before = peer.deadline.replace(at);
                        if let Some(before) = before {
                            self.deadlines.remove(&(before, key, side));
                        }
                        self.deadlines.insert((at, key, side));
                        break;
                    }
                }
                if turn == MOST_PER_TURN {
                    self.touch(key, side);
                    break;
                }
            }
        }
    }

    fn arrived(&mut self, key: ParticipantKey, side: Side, arrival: Arrival, now: Now) {
        match arrival {
            Arrival::Connected => self.media_connected(key, side, now),
            Arrival::Silent => self.media_lost(key, side, now),
            Arrival::Heard => self.media_heard(key),
            Arrival::Closed => {
                let broken = self
                    .peer_mut(key, side)
                    .is_some_and(|peer| peer.is_broken());
                self.counters.broken_connections += u64::from(broken);
                self.media_closed(key, side, now);
            }
            Arrival::ChannelOpen => self.channel_open(key, side, now),
            Arrival::Message(channel, bytes) => self.message(key, channel, &bytes, now),
            Arrival::Rtp { mid, rid, packet } => self.rtp(key, &mid, rid, &packet, now),
            Arrival::KeyframeWanted(mid, kind) => self.keyframe_wanted(key, &mid, kind, now),
            Arrival::Loss(loss) => {
                if let Some(participant) = self.participants.get_mut(&key) {
                    participant.loss = loss;
                }
            }
        }
    }

    /// Forgets a participant's peer connections, with or without a goodbye to the other side.
    pub(super) fn retire(&mut self, participant: &mut Participant, goodbye: bool, now: Now) {
        for side in participant.link.sides() {
            let Some(peer) = participant.link.peer_mut(side) else {
                continue;
            };
            if let Some(at) = peer.deadline.take() {
                self.deadlines.remove(&(at, participant.key, side));
            }
            if !goodbye {
                continue;
            }
            peer.close();
            for _ in 0..MOST_PER_TURN {
                match peer.poll(now.instant) {
                    Polled::Transmit(transmit) => self.outputs.datagrams.push(transmit),
                    Polled::Arrival(_) => {}
                    Polled::Wait(_) => break,
                }
            }
        }
        self.routes.retain(|_, (key, _)| *key != participant.key);
    }

    /// A number that was never given before.
    pub(super) fn fresh_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    /// A sid with this prefix: twelve characters in all of which none looks like another.
    pub(super) fn sid(&mut self, prefix: &str) -> Arc<str> {
        const ALPHABET: &[u8] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
        let mut sid = prefix.to_owned();
        while sid.len() < 3 + 12 {
            sid.push(char::from(*self.rng.choice(ALPHABET).unwrap_or(&b'2')));
        }
        sid.into()
    }

    /// Sends a message to a participant, if it is reachable.
    pub(super) fn tell(&mut self, key: ParticipantKey, message: Message) {
        if let Some(connection) = self
            .participants
            .get(&key)
            .and_then(|participant| participant.connection)
        {
            self.tell_connection(connection, message);
        }
    }

    pub(super) fn tell_connection(&mut self, connection: ConnectionId, message: Message) {
        let response = proto::SignalResponse {
            message: Some(message),
        };
        self.outputs
            .signals
            .push((connection, response.encode_to_vec().into()));
    }

    /// Sends a message to everybody in a room but one.
    pub(super) fn tell_room(
        &mut self,
        room: RoomKey,
        message: Message,
        except: Option<ParticipantKey>,
    ) {
        let Some(room) = self.rooms.get(&room) else {
            return;
        };
        let bytes: Bytes = proto::SignalResponse {
            message: Some(message),
        }
        .encode_to_vec()
        .into();
        for key in &room.members {
            let connection = self
                .participants
                .get(key)
                .and_then(|participant| participant.connection);
            if let Some(connection) = connection.filter(|_| Some(*key) != except) {
                self.outputs.signals.push((connection, bytes.clone()));
            }
        }
    }

    /// Tells everybody, itself included, how a participant is now. A hidden one is told alone.
    pub(super) fn announce(&mut self, key: ParticipantKey) {
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        participant.version += 1;
        let (room, visible) = (participant.room, participant.visible());
        let update = Message::Update(proto::ParticipantUpdate {
            participants: vec![participant.info()],
        });
        if visible {
            self.tell_room(room, update, None);
        } else {
            self.tell(key, update);
        }
    }

    /// What is told of a room.
    pub(super) fn room_info(&self, room: &Room) -> proto::Room {
        let members = || {
            room.members
                .iter()
                .filter_map(|key| self.participants.get(key))
                .filter(|member| member.counts())
        };
        let publishers = members()
            .filter(|member| member.published().next().is_some())
            .count();
        room.info(
            u32::try_from(members().count()).unwrap_or(u32::MAX),
            u32::try_from(publishers).unwrap_or(u32::MAX),
        )
    }

    /// Notes an event for webhooks.
    pub(super) fn record(
        &mut self,
        event: Event,
        room: RoomKey,
        participant: Option<proto::ParticipantInfo>,
        track: Option<proto::TrackInfo>,
        now: Now,
    ) {
        let Some(room) = self.rooms.get(&room) else {
            return;
        };
        let room = self.room_info(room);
        self.outputs.events.push(RoomEvent {
            event,
            room,
            participant,
            track,
            at_ms: now.unix_ms,
        });
    }

    fn tell_counts(&mut self, key: RoomKey) {
        let Some(room) = self.rooms.get_mut(&key) else {
            return;
        };
        if std::mem::take(&mut room.counts_changed) {
            self.tell_room_info(key);
        }
    }

    /// Tells everybody how a room is now.
    pub(super) fn tell_room_info(&mut self, key: RoomKey) {
        let Some(room) = self.rooms.get(&key) else {
            return;
        };
        let info = self.room_info(room);
        self.tell_room(
            key,
            Message::RoomUpdate(proto::RoomUpdate { room: Some(info) }),
            None,
        );
    }
}
