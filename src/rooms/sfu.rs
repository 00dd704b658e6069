//! The SFU as a sans-IO state machine.
//!
//! A *selective forwarding unit* is the server of a conference that forwards each participant's media to the others without
//! mixing it (RFC 7667 section 3.7): one upload per participant, one download per subscription. [`Sfu`] holds all rooms of
//! a server without sockets, threads or clocks: datagrams, signalling messages and the time go in, and [`Outputs`] come
//! out, so that tests run in virtual time.
//!
//! This file has the state, the demultiplexing of datagrams, and the timers. The messages are handled in `session`,
//! `signalling`, `publishing`, `subscribing`, `media`, `data` and `operations`, each an `impl Sfu`.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use livekit_protocol as proto;
use prost::Message as _;
use proto::signal_response::Message;
use str0m::Input;
use str0m::net::{Protocol, Receive, Transmit};

use super::addressees::{Addressee, Names, Source, stun_ufrag};
use super::events::{Event, RoomEvent};
use super::outbound::{Told, Topic};
use super::participant::{Participant, Side};
use super::peer::{Arrival, Certificate, Peer, Polled, Queued};
use super::room::Room;
use super::shared::Shared;
use super::{ConnectionId, Now, ParticipantKey, RoomKey, Settings, speakers};

/// The interval of timers, speaker updates and counts.
const HOUSEKEEPING: Duration = Duration::from_millis(speakers::INTERVAL_MS as u64);
/// How long the rest of a picture is waited for. It comes at once from whoever does not pace what it sends.
const PICTURE_WAIT: Duration = Duration::from_millis(1);
/// How long a client has to close its socket after a `leave`.
const LEAVE_LINGER: Duration = Duration::from_secs(2);
/// Source addresses that are remembered per participant.
pub(super) const MOST_ROUTES: usize = 32;
/// Outputs of one peer connection before others get their turn.
const MOST_PER_TURN: usize = 1_000;

/// What the media thread has to send. Taken after each input.
#[derive(Default)]
pub struct Outputs {
    /// Encoded `SignalResponse`s, in order.
    pub signals: Vec<(ConnectionId, Arc<Told>)>,
    /// Signalling connections to close after their messages.
    pub closes: Vec<ConnectionId>,
    /// Signalling connections whose participants are in another room now.
    pub moves: Vec<(ConnectionId, Arc<str>)>,
    /// Datagrams.
    pub datagrams: Vec<Transmit>,
    /// For webhooks.
    pub events: Vec<RoomEvent>,
    /// The names of rooms that have ended.
    pub ended: Vec<String>,
    /// Rooms on other threads, to which agents of a kind are to be dispatched.
    pub launches: Vec<(String, proto::JobType)>,
}

/// Counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that belong to no participant.
    pub stray_datagrams: u64,
    /// Media packets forwarded.
    pub forwarded_packets: u64,
    /// Those of them that went past str0m.
    pub fast_packets: u64,
    /// Data messages forwarded.
    pub forwarded_messages: u64,
    /// Receivers that had to reconnect because they were too far behind.
    pub slow_receivers: u64,
    /// Peer connections given up because str0m failed.
    pub broken_connections: u64,
    /// Session descriptions refused.
    pub refused_descriptions: u64,
    /// Signalling messages refused.
    pub refused_signals: u64,
}

impl Counters {
    /// Those of two together.
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            stray_datagrams: self.stray_datagrams + other.stray_datagrams,
            forwarded_packets: self.forwarded_packets + other.forwarded_packets,
            fast_packets: self.fast_packets + other.fast_packets,
            forwarded_messages: self.forwarded_messages + other.forwarded_messages,
            slow_receivers: self.slow_receivers + other.slow_receivers,
            broken_connections: self.broken_connections + other.broken_connections,
            refused_descriptions: self.refused_descriptions + other.refused_descriptions,
            refused_signals: self.refused_signals + other.refused_signals,
        }
    }
}

/// The rooms of one thread of a server. See the module.
pub struct Sfu {
    pub(super) shared: Arc<Shared>,
    pub(super) settings: Settings,
    pub(super) certificate: Certificate,
    pub(super) rng: fastrand::Rng,
    pub(super) rooms: HashMap<RoomKey, Room>,
    pub(super) room_names: HashMap<String, RoomKey>,
    /// Boxed: the table has many places that are free.
    pub(super) participants: HashMap<ParticipantKey, Box<Participant>>,
    pub(super) connections: HashMap<ConnectionId, ParticipantKey>,
    pub(super) outputs: Outputs,
    pub(super) counters: Counters,
    /// Connections that were told to leave, and when they are closed at the latest.
    pub(super) leaving: VecDeque<(Instant, ConnectionId)>,
    pub(super) routes: HashMap<Source, (ParticipantKey, Side)>,
    /// The number of its thread.
    pub(super) thread: usize,
    pub(super) deadlines: BTreeSet<(Instant, ParticipantKey, Side)>,
    queue: VecDeque<(ParticipantKey, Side)>,
    unfinished: Unfinished,
    /// Rooms on trial that the last member has left.
    pub(super) deserted: Vec<RoomKey>,
    /// Members of large rooms whose subscriptions are to be reconciled, and since when.
    pub(super) reconciling: VecDeque<ParticipantKey>,
    pub(super) unreconciled: HashSet<ParticipantKey>,
    pub(super) reconcile_at: Option<Instant>,
    /// Units of work that the size of rooms added to requests, see [`Self::take_work`].
    work: u32,
    housekeeping_at: Instant,
}

/// Peer connections that have a part of a picture.
#[derive(Default)]
struct Unfinished {
    peers: Vec<(ParticipantKey, Side)>,
    /// How many of them have not got the rest, with some that have left.
    waiting: usize,
    /// Until when they wait.
    until: Option<Instant>,
}

impl Unfinished {
    fn add(&mut self, key: ParticipantKey, side: Side, until: Instant) {
        self.peers.push((key, side));
        self.waiting += 1;
        self.until.get_or_insert(until);
    }

    /// One has the rest: nobody is woken for those of whom none waits.
    fn one_less(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.peers.clear();
            self.until = None;
        }
    }
}

impl Sfu {
    /// One without rooms. Those of a server have their seeds, and so their ids, each for itself.
    pub fn new(settings: Settings, (shared, thread): (Arc<Shared>, usize), now: Now) -> Self {
        Self {
            shared,
            thread,
            rng: fastrand::Rng::with_seed(settings.seed),
            settings,
            certificate: Certificate::new(),
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
            unfinished: Unfinished::default(),
            deserted: Vec::new(),
            reconciling: VecDeque::new(),
            unreconciled: HashSet::new(),
            reconcile_at: None,
            work: 0,
            housekeeping_at: now.instant + HOUSEKEEPING,
        }
    }

    /// Takes the outputs since the last call.
    pub fn take_outputs(&mut self) -> Outputs {
        std::mem::take(&mut self.outputs)
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes the units of work that the size of the room added to the last request or join.
    pub fn take_work(&mut self) -> u32 {
        std::mem::take(&mut self.work)
    }

    /// Counts work that is proportional to this.
    pub(super) fn worked(&mut self, things: usize, per_unit: usize) {
        let units = u32::try_from(things / per_unit).unwrap_or(u32::MAX);
        self.work = self.work.saturating_add(units);
    }

    /// Whether work was put off, which [`Self::tick`] continues.
    pub fn has_more_to_do(&self) -> bool {
        self.reconcile_at.is_some()
    }

    /// When [`Self::tick`] is due.
    pub fn deadline(&self) -> Instant {
        let media = self.deadlines.first().map(|(at, ..)| *at);
        let others = [self.reconcile_at, self.unfinished.until]
            .into_iter()
            .flatten();
        let earliest = media.into_iter().chain(others).min();
        earliest.map_or(self.housekeeping_at, |at| at.min(self.housekeeping_at))
    }

    /// Handles timers.
    pub fn tick(&mut self, now: Now) {
        while let Some(&(at, key, side)) = self.deadlines.first() {
            if at > now.instant {
                break;
            }
            self.deadlines.pop_first();
            let Some(peer) = self.peer_mut(key, side) else {
                continue;
            };
            // It was put off since.
            if peer.due > now.instant {
                let due = peer.due;
                peer.deadline = Some(due);
                self.deadlines.insert((due, key, side));
                continue;
            }
            peer.deadline = None;
            self.touch(key, side);
        }
        if self
            .unfinished
            .until
            .is_some_and(|until| until <= now.instant)
        {
            self.release_unfinished();
        }
        if self.reconcile_at.is_some() {
            self.reconcile_some(now);
        }
        if self.housekeeping_at <= now.instant {
            self.housekeeping_at = now.instant + HOUSEKEEPING;
            self.keep_house(now);
            self.shared.agents().dispatcher.tick(now);
        }
        self.settle(now);
    }

    /// Closes a connection after the client had time to read why. The Rust SDK takes a socket that closes right after a
    /// `leave` for a lost connection, and reconnects.
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
        self.adapt_rooms(&rooms, now);
        for room in rooms {
            self.tell_speakers(room, now);
            self.begin_silent_tracks(room, now);
            self.tell_counts(room);
            // One of them may be able to relay now, or no longer miss packets.
            self.pair(room, now);
            if self
                .rooms
                .get(&room)
                .is_some_and(|room| room.ends_at.is_some_and(|at| at <= now.instant))
            {
                self.end_room(room, proto::DisconnectReason::RoomClosed, now);
            }
        }
    }

    /// Handles a datagram received on one of the addresses in the settings; whom it belongs to, if it is somebody. What others
    /// are to be sent waits for [`Self::settle`], so that those of several datagrams go together.
    pub fn receive(
        &mut self,
        source: Source,
        destination: SocketAddr,
        bytes: &[u8],
        now: Now,
    ) -> Option<(ParticipantKey, Side)> {
        let received = Receive::new(source.0, source.1, destination, bytes).ok();
        let path = (source.0, source.1, destination);
        let owner = received.and_then(|received| self.take(path, received, bytes, now));
        match owner {
            // At once: str0m keeps one packet that has arrived.
            Some((key, side)) => self.poll(key, side, now),
            None => self.stray(),
        }
        owner
    }

    fn take(
        &mut self,
        (protocol, client, destination): (Protocol, SocketAddr, SocketAddr),
        received: Receive<'_>,
        bytes: &[u8],
        now: Now,
    ) -> Option<(ParticipantKey, Side)> {
        let input = Input::Receive(now.instant, received);
        let (key, side) = self.route((protocol, client), &input, bytes)?;
        let peer = self.peer_mut(key, side)?;
        if !peer.receive(input, bytes) {
            return None;
        }
        peer.paths.heard(protocol, client, destination, now.instant);
        Some((key, side))
    }

    /// Demultiplexes a datagram: by its source address, or by the user name of a STUN request.
    fn route(
        &mut self,
        source: Source,
        input: &Input<'_>,
        bytes: &[u8],
    ) -> Option<(ParticipantKey, Side)> {
        if let Some(&(key, side)) = self.routes.get(&source)
            && self
                .peer_mut(key, side)
                .is_some_and(|peer| peer.accepts(input))
        {
            // Meanwhile somebody on another thread may have been heard from there.
            if stun_ufrag(bytes).is_some() {
                self.shared.addressees.learn(source, self.thread);
            }
            return Some((key, side));
        }
        // Anything but STUN must come from an address that was checked before. A connection is asked only if the user fragment
        // matches: anyone can send STUN, and asking is expensive.
        let of = self.shared.addressees.named(stun_ufrag(bytes)?)?;
        let found = (of.key, of.side);
        if of.thread != self.thread || !self.peer_mut(found.0, found.1)?.accepts(input) {
            return None;
        }
        // A client has few addresses; one with ever new ones starts over.
        let known = self
            .routes
            .values()
            .filter(|(key, _)| *key == found.0)
            .count();
        if known >= MOST_ROUTES {
            self.forget_routes(|key| key == found.0);
        }
        self.route_to(source, found);
        Some(found)
    }

    /// What comes from here is for this peer connection.
    pub(super) fn route_to(&mut self, source: Source, owner: (ParticipantKey, Side)) {
        self.routes.insert(source, owner);
        self.shared.addressees.learn(source, self.thread);
    }

    /// Takes the addresses that these participants were heard from.
    pub(super) fn forget_routes(
        &mut self,
        are_gone: impl Fn(ParticipantKey) -> bool,
    ) -> Vec<(Source, (ParticipantKey, Side))> {
        let routes = self.routes.extract_if(|_, (of, _)| are_gone(*of));
        let routes: Vec<_> = routes.collect();
        let sources = routes.iter().map(|(source, _)| *source);
        self.shared.addressees.forget(sources, self.thread);
        routes
    }

    /// For a new peer connection.
    pub(super) fn names(&self, key: ParticipantKey, side: Side) -> Names {
        let of = Addressee {
            thread: self.thread,
            key,
            side,
        };
        Names::new(&self.shared.addressees, of)
    }

    /// A datagram belongs to no participant.
    pub(super) const fn stray(&mut self) {
        self.counters.stray_datagrams += 1;
    }

    pub(super) fn peer_mut(&mut self, key: ParticipantKey, side: Side) -> Option<&mut Peer> {
        self.participants.get_mut(&key)?.link.peer_mut(side)
    }

    /// Queues a changed peer connection to be polled, until it has no output left.
    pub(super) fn touch(&mut self, key: ParticipantKey, side: Side) {
        if let Some(peer) = self.peer_mut(key, side) {
            peer.drain();
            self.touch_to_send(key, side);
        }
    }

    /// Queues a peer connection to be polled that was given packets, and nothing else.
    pub(super) fn touch_to_send(&mut self, key: ParticipantKey, side: Side) {
        let Some(peer) = self.peer_mut(key, side) else {
            return;
        };
        let before = std::mem::replace(&mut peer.queued, Queued::Yes);
        if before != Queued::Yes {
            self.queue.push_back((key, side));
        }
        if before == Queued::WhenWhole {
            self.unfinished.one_less();
        }
    }

    /// Queues a peer connection that has a part of a picture, when it has all of it, or soon. To poll it costs more than a packet
    /// does, and the packets of a picture leave in one go.
    pub(super) fn touch_for_picture(&mut self, key: ParticipantKey, side: Side, now: Now) {
        if let Some(peer) = self.peer_mut(key, side)
            && peer.queued == Queued::No
        {
            peer.queued = Queued::WhenWhole;
            self.unfinished.add(key, side, now.instant + PICTURE_WAIT);
        }
    }

    /// Queues all that have a part of a picture.
    pub(super) fn release_unfinished(&mut self) {
        for (key, side) in std::mem::take(&mut self.unfinished).peers {
            let peer = self.peer_mut(key, side);
            if peer.is_some_and(|peer| peer.queued == Queued::WhenWhole) {
                self.touch_to_send(key, side);
            }
        }
    }

    /// Polls changed peer connections until none has output left, or what it was given has left.
    pub fn settle(&mut self, now: Now) {
        for key in std::mem::take(&mut self.deserted) {
            let room = self.rooms.get(&key);
            if room.is_some_and(|room| room.on_trial && room.members.is_empty()) {
                self.end_room(key, proto::DisconnectReason::RoomClosed, now);
            }
        }
        while let Some((key, side)) = self.queue.pop_front() {
            if let Some(peer) = self.peer_mut(key, side) {
                peer.queued = Queued::No;
            }
            self.poll(key, side, now);
        }
    }

    /// Polls a peer connection until it rests, or others must have their turn.
    fn poll(&mut self, key: ParticipantKey, side: Side, now: Now) {
        for turn in 0.. {
            let Some(peer) = self.peer_mut(key, side) else {
                return;
            };
            match peer.poll(now.instant) {
                Polled::Transmit(transmit) => self.outputs.datagrams.push(transmit),
                Polled::Arrival(arrival) => self.arrived(key, side, arrival, now),
                Polled::Wait(at) => return self.rest(key, side, at),
            }
            if turn == MOST_PER_TURN {
                return self.touch(key, side);
            }
        }
    }

    /// A peer connection has nothing to do until then.
    fn rest(&mut self, key: ParticipantKey, side: Side, at: Instant) {
        let Some(peer) = self.peer_mut(key, side) else {
            return;
        };
        peer.due = at;
        // An earlier look moves itself: that is cheaper than to move it with each packet.
        if peer.deadline.is_none_or(|before| at < before) {
            if let Some(before) = peer.deadline.replace(at) {
                self.deadlines.remove(&(before, key, side));
            }
            self.deadlines.insert((at, key, side));
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
            Arrival::Estimate => self.adapt_soon(key, now),
            Arrival::Loss(loss) => {
                if let Some(participant) = self.participants.get_mut(&key) {
                    participant.loss = loss;
                }
            }
            Arrival::Missed(share) => {
                if let Some(participant) = self.participants.get_mut(&key) {
                    participant.losses.note(share, now.instant);
                }
            }
        }
    }

    /// Drops a participant's peer connections, closing them or not.
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
        self.forget_routes(|key| key == participant.key);
    }

    /// A number that was never used before.
    pub(super) fn fresh_key(&mut self) -> u64 {
        self.shared.fresh_key()
    }

    /// A sid with this prefix and twelve unambiguous characters.
    pub(super) fn sid(&mut self, prefix: &str) -> Arc<str> {
        sid(&mut self.rng, prefix).into()
    }

    /// Sends a message to a participant, if it is connected.
    pub(super) fn tell(&mut self, key: ParticipantKey, message: Message) {
        self.tell_newest(key, message, None);
    }

    /// The same; with a topic, only the newest is kept.
    pub(super) fn tell_newest(
        &mut self,
        key: ParticipantKey,
        message: Message,
        topic: Option<Topic>,
    ) {
        let Some(participant) = self.participants.get(&key) else {
            return;
        };
        if let Some(connection) = participant.connection {
            let told = self.encoded(Some(participant.room), message, topic);
            self.outputs.signals.push((connection, told));
        }
    }

    pub(super) fn tell_connection(&mut self, connection: ConnectionId, message: Message) {
        let told = self.encoded(None, message, None);
        self.outputs.signals.push((connection, told));
    }

    /// Encodes a message once for all its receivers.
    fn encoded(&self, room: Option<RoomKey>, message: Message, topic: Option<Topic>) -> Arc<Told> {
        let response = proto::SignalResponse {
            message: Some(message),
        };
        let room = room.and_then(|room| self.rooms.get(&room));
        let of_room = room.map(|room| room.held.clone()).unwrap_or_default();
        let held = [of_room, self.shared.held.clone()];
        Told::new(response.encode_to_vec().into(), topic, held)
    }

    /// Sends a message to everyone in a room but one. Returns the bytes, counted once per receiver.
    pub(super) fn tell_room(
        &mut self,
        key: RoomKey,
        message: Message,
        topic: Option<Topic>,
        except: Option<ParticipantKey>,
    ) -> u64 {
        self.tell_members(key, message, topic, |member| Some(member.key) != except)
    }

    /// Sends a message to the members of a room that `to` selects. Returns the bytes, counted once per receiver.
    pub(super) fn tell_members(
        &mut self,
        key: RoomKey,
        message: Message,
        topic: Option<Topic>,
        to: impl Fn(&Participant) -> bool,
    ) -> u64 {
        let told = self.encoded(Some(key), message, topic);
        let Some(room) = self.rooms.get(&key) else {
            return 0;
        };
        let before = self.outputs.signals.len();
        let members = room
            .members
            .iter()
            .filter_map(|key| self.participants.get(key));
        for member in members.filter(|member| to(member)) {
            if let Some(connection) = member.connection {
                let told = Arc::clone(&told);
                self.outputs.signals.push((connection, told));
            }
        }
        (told.bytes.len() * (self.outputs.signals.len() - before)) as u64
    }

    /// Tells everyone in the room, itself included, the state of a participant, and the rooms that it is forwarded to. A hidden
    /// one is told alone. Beyond its rate limit the update is delayed, see [`super::pace`].
    pub(super) fn announce(&mut self, key: ParticipantKey, now: Now) {
        self.reflect(key, now);
        let Some(participant) = self.participants.get_mut(&key) else {
            return;
        };
        participant.version += 1;
        if !participant.pace.admit() {
            return;
        }
        let (room, visible) = (participant.room, participant.visible());
        let update = Message::Update(proto::ParticipantUpdate {
            participants: vec![participant.info()],
        });
        let topic = Some(Topic::Participant(key));
        if visible {
            let cost = self.tell_room(room, update, topic, None);
            if let Some(participant) = self.participants.get_mut(&key) {
                participant.pace.spend(cost);
            }
        } else {
            self.tell_newest(key, update, topic);
        }
    }

    /// What clients are told of a room.
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

    /// Records an event for webhooks.
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
        // Nobody is told of who records or mixes for others.
        let is_unseen = |info: &proto::ParticipantInfo| {
            let hidden = info.permission.as_ref().is_some_and(|may| may.hidden);
            hidden && info.kind() == proto::participant_info::Kind::Egress
        };
        if participant.as_ref().is_some_and(is_unseen) {
            return;
        }
        let of = room.party.clone();
        let room = self.room_info(room);
        self.tell_dispatcher(event, &room, participant.as_ref(), now);
        self.outputs.events.push(RoomEvent {
            event,
            room,
            of,
            participant,
            track,
            at_ms: now.unix_ms,
        });
    }

    fn tell_counts(&mut self, key: RoomKey) {
        let Some(room) = self.rooms.get_mut(&key) else {
            return;
        };
        if room.pace.rest() || std::mem::take(&mut room.counts_changed) {
            self.tell_room_info(key);
        }
    }

    /// Tells everyone in a room its state, delayed beyond its rate limit.
    pub(super) fn tell_room_info(&mut self, key: RoomKey) {
        let Some(room) = self.rooms.get_mut(&key) else {
            return;
        };
        if !room.pace.admit() {
            return;
        }
        let Some(room) = self.rooms.get(&key) else {
            return;
        };
        let info = self.room_info(room);
        let update = Message::RoomUpdate(proto::RoomUpdate { room: Some(info) });
        let cost = self.tell_room(key, update, Some(Topic::Room), None);
        if let Some(room) = self.rooms.get_mut(&key) {
            room.pace.spend(cost);
        }
    }
}

/// A sid with this prefix and twelve unambiguous characters.
pub(super) fn sid(rng: &mut fastrand::Rng, prefix: &str) -> String {
    const ALPHABET: &[u8] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut sid = prefix.to_owned();
    while sid.len() < 3 + 12 {
        sid.push(char::from(*rng.choice(ALPHABET).unwrap_or(&b'2')));
    }
    sid
}
