//! A media thread, the I/O driver of an [`Sfu`]: datagrams, signalling messages, frames of local participants and time
//! go in; datagrams, messages and events come out. Only this thread touches its `Sfu`, and it never blocks.
//!
//! Rooms are spread over as many threads as there are cores. One of them reads the media port, and passes on what is for others
//! (`addressees`); each sends for itself.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use str0m::net::{Protocol, Transmit};
use tokio::net::UdpSocket;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio::sync::{mpsc, oneshot};

use super::addressees::{Source, stun_ufrag};
use super::dispatch::WorkerId;
use super::events::EventSender;
use super::outbound::{Overfull, Pushed};
use super::relocating::Parcel;
use super::segments::Segments;
use super::server::{Arriving, Command, Edge, Joining, Lane};
use super::sfu::Sfu;
use super::sockets::OpenSockets;
use super::tcp::{Arrival, Arrivals, Connections, Listeners, Owner};
use super::threads::{Bell, Bundle, Inbox, Threads};
use super::turn::is_relayed;
use super::turns::{Payer, Rate, Turns};
use super::workers::WorkerInput;
use super::{ConnectionId, Now, limits};
use vivavoce_takeover::OpenDatagrams;
use vivavoce_telemetry::metrics;

/// The thread that reads the media port.
const DOOR: usize = 0;
/// Datagrams read from one socket before other work gets its turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Those after which what they cause is sent: a listener is polled once for what has come for it in them. More would let the first
/// wait for long.
const DATAGRAMS_AT_ONCE: usize = 16;
/// Size of the receive buffer, larger than any datagram of media.
const DATAGRAM_BYTES: usize = 2_048;
/// How often frames of local participants are taken: with hundreds of them, waking the thread for each frame would cost
/// more than forwarding it.
const LOCAL_INTERVAL: Duration = Duration::from_millis(1);

/// A connection with so much waiting may be cut when the total limit is exceeded.
const BEHIND_BYTES: usize = 512 << 10;

/// The work on requests of one connection, and of all connections of one payer.
const OF_CONNECTION: Rate = Rate {
    per_second: limits::CONNECTION_WORK_PER_SECOND,
    at_once: limits::CONNECTION_WORK_AT_ONCE,
};
const OF_PARTY: Rate = Rate {
    per_second: limits::PARTY_WORK_PER_SECOND,
    at_once: limits::PARTY_WORK_AT_ONCE,
};
/// The work on joins of one payer.
const OF_JOINS: Rate = Rate {
    per_second: limits::JOINS_WORK_PER_SECOND,
    at_once: limits::JOINS_WORK_AT_ONCE,
};

/// Where media come in: of the one thread that reads the media port.
pub(super) struct Door {
    connections: Connections,
    /// What was read for each thread, and is to be passed on.
    read: Vec<Bundle>,
}

impl Door {
    /// To be called in the runtime of the thread.
    pub(super) fn open(
        listeners: Listeners,
        arrivals: Arrivals,
        threads: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            connections: Connections::accept(listeners, arrivals)?,
            read: (0..threads).map(|_| Bundle::default()).collect(),
        })
    }
}

/// A media thread. See the module.
pub(super) struct MediaThread {
    threads: Arc<Threads>,
    bell: Arc<Bell>,
    sfu: Sfu,
    sockets: OpenSockets,
    door: Option<Door>,
    /// Datagrams that only the door can send.
    carried: Vec<Transmit>,
    segments: Segments,
    lanes: HashMap<ConnectionId, Lane>,
    /// Connections with requests waiting, in turn.
    turns: Turns<Payer, ConnectionId>,
    /// Those that wait to join, apart from the others: whoever is in a room does not wait for them.
    joins: Turns<Payer, ConnectionId>,
    events: EventSender,
    edge: Arc<Edge>,
}

impl MediaThread {
    pub(super) fn new(
        threads: Arc<Threads>,
        sfu: Sfu,
        (sockets, door): (OpenSockets, Option<Door>),
        (events, edge): (EventSender, Arc<Edge>),
    ) -> Self {
        Self {
            bell: threads.bell(sfu.thread),
            threads,
            sfu,
            sockets,
            door,
            carried: Vec::new(),
            segments: Segments::new(),
            lanes: HashMap::new(),
            turns: Turns::new(OF_PARTY, OF_CONNECTION),
            joins: Turns::new(OF_JOINS, OF_JOINS),
            events,
            edge,
        }
    }

    pub(super) async fn run(mut self, mut inbox: Inbox) {
        let (edge, bell) = (Arc::clone(&self.edge), Arc::clone(&self.bell));
        // Whether a local participant has something to send, and when to look.
        let (mut waiting, mut due) = (false, Now::read().instant);
        loop {
            let idle = self.turns.is_empty() && self.joins.is_empty();
            if idle && !self.sfu.has_more_to_do() {
                let deadline = self.sfu.deadline();
                let deadline = if waiting { deadline.min(due) } else { deadline };
                let rested = self.turns.due().into_iter().chain(self.joins.due());
                let deadline = rested.fold(deadline, std::time::Instant::min);
                let deadline = tokio::time::Instant::from_std(deadline);
                tokio::select! {
                    () = edge.stopping.cancelled() => break,
                    () = readable(&self.sockets), if self.door.is_some() => {}
                    Some(arrival) = changed(&mut self.door) => self.receive_over_tcp(arrival),
                    Some(bundle) = inbox.bundles.recv() => self.receive_bundle(&bundle),
                    command = inbox.commands.recv() => match command {
                        Some(command) => self.command(command),
                        None => break,
                    },
                    () = bell.asked.notified() => self.line_up(),
                    () = bell.wakes.notified(), if !waiting => waiting = self.anybody_waits(),
                    () = tokio::time::sleep_until(deadline) => {}
                }
            } else {
                // There is always something left to do: sockets are looked at between two steps.
                tokio::task::yield_now().await;
                if edge.stopping.is_cancelled() {
                    break;
                }
                match inbox.commands.try_recv() {
                    Ok(command) => self.command(command),
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => break,
                }
                self.line_up();
                waiting = waiting || self.anybody_waits();
            }
            self.serve();
            self.serve_join();
            let now = Now::read();
            if waiting && due <= now.instant {
                self.woken();
                (waiting, due) = (false, now.instant + LOCAL_INTERVAL);
            }
            self.flush();
            self.receive();
            self.receive_all_over_tcp();
            self.receive_bundles(&mut inbox);
            let now = Now::read();
            if self.sfu.deadline() <= now.instant {
                if self.door.is_some() {
                    self.sfu.shared.agents().notice_gone(now);
                }
                self.sfu.tick(now);
                self.flush();
            }
        }
        self.sfu.end_all_rooms(Now::read());
        self.flush();
    }

    /// Queues connections that have requests, or are gone.
    fn line_up(&mut self) {
        let waiting = {
            let mut waiting = self
                .bell
                .waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *waiting)
        };
        for connection in waiting {
            // An unknown connection gets its turn once it is known, one that waits to join once it has.
            let Some(lane) = self.lanes.get(&connection) else {
                continue;
            };
            if lane.joining.is_none() {
                self.turns.push(&lane.payer, connection);
            } else if lane.gone.load(Ordering::Acquire) {
                self.lanes.remove(&connection);
            }
        }
    }

    /// Handles the first request of one connection. Requests made before the connection was lost are still handled, a leave
    /// above all, except those whose response cannot be delivered.
    fn serve(&mut self) {
        let Some(connection) = self.turns.next(Now::read().instant) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&connection) else {
            return;
        };
        let gone = lane.gone.load(Ordering::Acquire);
        match lane.requests.try_recv() {
            Ok(waiting) => {
                let payer = lane.payer.clone();
                self.turns.push(&payer, connection);
                self.woken();
                if !(gone && waiting.asked.wants_an_answer()) {
                    let work = waiting.asked.work(waiting.bytes);
                    let now = Now::read();
                    self.sfu.asked(connection, waiting.asked, now);
                    let work = work.saturating_add(self.sfu.take_work());
                    self.turns.charge(&payer, connection, work, now.instant);
                }
            }
            Err(_) if gone => {
                self.lanes.remove(&connection);
                self.sfu.disconnected(connection, Now::read());
            }
            Err(_) => {}
        }
    }

    /// Lets the next one join.
    fn serve_join(&mut self) {
        let now = Now::read();
        let Some(connection) = self.joins.next(now.instant) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&connection) else {
            return;
        };
        if let Some(joining) = lane.joining.take() {
            self.woken();
            // The room may have come to another thread while it waited.
            if let Some(thread) = self.elsewhere(&joining.admission.room)
                && let Some(lane) = self.lanes.remove(&connection)
            {
                return self.pass_join(thread, connection, joining, lane);
            }
            self.join(connection, *joining, now);
        }
    }

    fn join(&mut self, connection: ConnectionId, joining: Joining, now: Now) {
        let room = joining.admission.room.clone();
        self.join_here(connection, joining, now);
        self.take_back(&room);
    }

    fn join_here(&mut self, connection: ConnectionId, joining: Joining, now: Now) {
        let Joining {
            admission,
            offer,
            local,
        } = joining;
        let Some(lane) = self.lanes.get(&connection) else {
            return;
        };
        let payer = lane.payer.clone();
        self.turns.push(&payer, connection);
        let Some(media) = local else {
            let offered = offer.as_ref().and_then(|offer| offer.as_ref().ok());
            let sections = offered.map_or(0, |offer| offer.reduced.sections);
            let work = limits::JOIN_WORK + u32::try_from(sections).unwrap_or(u32::MAX / 2);
            self.sfu.connect_with(connection, admission, offer, now);
            let work = work.saturating_add(self.sfu.take_work());
            self.joins.charge(&payer, connection, work, now.instant);
            return;
        };
        self.sfu.connect_local(connection, admission, media, now);
    }

    fn anybody_waits(&self) -> bool {
        let local = self.bell.local.lock();
        !local.unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes what local participants have to send.
    fn woken(&mut self) {
        let local = {
            let mut local = self
                .bell
                .local
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *local)
        };
        for connection in local {
            self.sfu.local_media(connection, Now::read());
        }
    }

    fn command(&mut self, command: Command) {
        // What was sent before the participant left is still delivered.
        self.woken();
        let now = Now::read();
        match command {
            Command::Connect {
                connection,
                joining,
                mut lane,
            } => {
                // A connection that was lost without any request never existed.
                if lane.gone.load(Ordering::Acquire) && lane.requests.is_empty() {
                    return;
                }
                if let Some(thread) = self.elsewhere(&joining.admission.room) {
                    return self.pass_join(thread, connection, joining, lane);
                }
                // Sessions and calls are counted by quotas of their own, and need no peer connection.
                if joining.local.is_some() || self.joins.is_free(&lane.payer, now.instant) {
                    self.lanes.insert(connection, lane);
                    return self.join(connection, *joining, now);
                }
                self.take_back(&joining.admission.room);
                self.joins.push(&lane.payer, connection);
                lane.joining = Some(joining);
                // A loss from before it was known was not noticed.
                if !lane.gone.load(Ordering::Acquire) {
                    self.lanes.insert(connection, lane);
                }
            }
            Command::Call { room, other, call } => {
                if let Some(thread) = room.as_deref().and_then(|room| self.elsewhere(room)) {
                    return self.pass(thread, Command::Call { room, other, call });
                }
                let other_is_here = |other: &str| self.elsewhere(other).is_none();
                let are_here = other.as_deref().is_none_or(other_is_here);
                call(are_here.then_some(&mut self.sfu), now);
                for room in room.iter().chain(&other) {
                    self.take_back(room);
                }
            }
            Command::Worker { worker, input } => self.worker(worker, input, now),
            Command::Relocate { room, to, by, done } => self.relocate(&room, to, by, done),
            Command::Arrive(arriving) => self.arrive(*arriving, now),
            Command::Carry(datagrams) => {
                for transmit in datagrams {
                    self.transmit(transmit);
                }
            }
            Command::Belongs(path, owner) => {
                if let Some(door) = &mut self.door {
                    door.connections.belongs(path, owner);
                }
            }
        }
    }

    /// The thread of a room, if it is another one. A room that does not exist is here from now on, until [`Self::take_back`].
    fn elsewhere(&self, room: &str) -> Option<usize> {
        let thread = self.threads.seat(room, self.sfu.thread);
        (thread != self.sfu.thread).then_some(thread)
    }

    /// A room that did not come to be, or has ended, is nowhere any more.
    fn take_back(&self, room: &str) {
        if !self.sfu.room_names.contains_key(room) {
            self.threads.take_back(room, self.sfu.thread);
        }
    }

    /// Passes a command on to another thread, which has more to do than it can take only for a while.
    fn pass(&self, thread: usize, command: Command) {
        let Some(commands) = self.threads.commands(thread) else {
            return;
        };
        if let Err(TrySendError::Full(command)) = commands.try_send(command) {
            let commands = commands.clone();
            tokio::spawn(async move {
                // It has stopped, as this one will.
                let _ = commands.send(command).await;
            });
        }
    }

    fn pass_join(
        &self,
        thread: usize,
        connection: ConnectionId,
        joining: Box<Joining>,
        lane: Lane,
    ) {
        lane.bell.become_that_of(&self.threads.bell(thread));
        let command = Command::Connect {
            connection,
            joining,
            lane,
        };
        self.pass(thread, command);
    }

    /// Lets a room go to another thread, with those that it cannot be parted from and the queues of all their clients.
    fn relocate(
        &mut self,
        room: &str,
        to: usize,
        by: mpsc::OwnedPermit<Command>,
        done: oneshot::Sender<()>,
    ) {
        // What has happened to it until now is done here.
        self.sfu.settle(Now::read());
        self.flush();
        if to != self.sfu.thread && self.elsewhere(room).is_none() {
            let parcel = self.sfu.pack(room);
            let names: Vec<String> = parcel.names().map(str::to_owned).collect();
            let lanes = self.take_lanes(&parcel, &names);
            self.threads.relocate(&names, to, || {
                by.send(Command::Arrive(Box::new(Arriving { parcel, lanes })));
            });
            // Where there was none by this name, there is none here either.
            self.take_back(room);
        }
        // Whoever has asked does not wait any more.
        let _ = done.send(());
    }

    /// The queues of those in the rooms, and of those who wait to join them. Whoever was told to leave is let go here.
    fn take_lanes(&mut self, parcel: &Parcel, rooms: &[String]) -> Vec<(ConnectionId, Lane)> {
        let present: HashSet<ConnectionId> = parcel.connections().collect();
        let goes = |connection: &ConnectionId, lane: &mut Lane| {
            let waits = lane.joining.is_some() && rooms.iter().any(|room| **room == *lane.room);
            waits || present.contains(connection)
        };
        self.lanes.extract_if(goes).collect()
    }

    fn arrive(&mut self, arriving: Arriving, now: Now) {
        let Arriving { parcel, lanes } = arriving;
        self.sfu.unpack(parcel, now);
        for (connection, lane) in lanes {
            // What was asked from now on is told to this thread; what was asked before is looked for.
            lane.bell.become_that_of(&self.bell);
            if lane.joining.is_some() {
                self.joins.push(&lane.payer, connection);
            } else {
                self.turns.push(&lane.payer, connection);
            }
            self.lanes.insert(connection, lane);
            self.sfu.local_media(connection, now);
        }
    }

    fn worker(&mut self, worker: WorkerId, input: WorkerInput, now: Now) {
        match input {
            WorkerInput::Connected {
                credentials,
                lane,
                answer,
            } => {
                let mut agents = self.sfu.shared.agents();
                let taken = agents.dispatcher.connected(worker, credentials, now);
                if taken.is_ok() {
                    agents.lanes.insert(worker, lane);
                }
                // Whoever does not wait for it any more drops the connection.
                let _ = answer.send(taken);
            }
            WorkerInput::Said(message) => {
                let is_known = self.sfu.shared.agents().lanes.contains_key(&worker);
                if is_known {
                    self.sfu.worker_said(worker, *message, now);
                }
            }
            WorkerInput::Gone => self.sfu.shared.agents().gone(worker, now),
        }
    }

    fn receive(&mut self) {
        if self.door.is_none() {
            return;
        }
        let mut buffer = [0; DATAGRAM_BYTES];
        let sockets = Arc::clone(&self.sockets);
        for (socket, advertised) in &*sockets {
            for count in 1..=DATAGRAMS_PER_TURN {
                match socket.try_recv_from(&mut buffer) {
                    // Relays are of this process, and nothing comes from outside of where they are said to be.
                    Ok((_, source)) if is_relayed(source.ip()) => {}
                    Ok((length, source)) => {
                        let datagram = buffer.get(..length).unwrap_or_default();
                        let path = ((Protocol::Udp, source), *advertised);
                        if !self.read(path, datagram) {
                            socket.pass_on(source, datagram);
                        }
                        if count % DATAGRAMS_AT_ONCE == 0 {
                            self.settle();
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // An ICMP error about an earlier datagram; there may be more to read.
                    Err(_) => {}
                }
            }
            self.settle();
        }
    }

    /// Takes a datagram of the media port, or lays it aside for the thread that it is for. `false` if it is nobody's.
    fn read(&mut self, (source, advertised): (Source, SocketAddr), datagram: &[u8]) -> bool {
        match self.thread_of(source, datagram) {
            Some(thread) if thread == self.sfu.thread => {
                let owner = self.sfu.receive(source, advertised, datagram, Now::read());
                if let Some(owner) = owner {
                    self.belongs((source, advertised), owner);
                }
                owner.is_some()
            }
            Some(thread) => {
                let bundle = self
                    .door
                    .as_mut()
                    .and_then(|door| door.read.get_mut(thread));
                if let Some(bundle) = bundle {
                    bundle.push((source, advertised), datagram);
                }
                true
            }
            None => {
                self.sfu.stray();
                false
            }
        }
    }

    /// The thread that a datagram is for.
    fn thread_of(&self, source: Source, datagram: &[u8]) -> Option<usize> {
        // Most of what is for this thread is known without asking.
        let is_own = || self.sfu.routes.contains_key(&source) && stun_ufrag(datagram).is_none();
        if self.threads.count() == 1 || is_own() {
            return Some(self.sfu.thread);
        }
        self.sfu.shared.addressees.thread_of(source, datagram)
    }

    /// Takes what the door has read for this thread.
    fn receive_bundles(&mut self, inbox: &mut Inbox) {
        for _ in 0..DATAGRAMS_PER_TURN {
            let Ok(bundle) = inbox.bundles.try_recv() else {
                break;
            };
            self.receive_bundle(&bundle);
        }
    }

    fn receive_bundle(&mut self, bundle: &Bundle) {
        for (source, advertised, datagram) in bundle.iter() {
            let owner = self.sfu.receive(source, advertised, datagram, Now::read());
            if let Some(owner) = owner {
                self.belongs((source, advertised), owner);
            }
        }
        self.settle();
    }

    /// What came over a connection belongs to somebody.
    fn belongs(&mut self, ((protocol, source), advertised): (Source, SocketAddr), owner: Owner) {
        if protocol == Protocol::Udp && !is_relayed(source.ip()) {
            return;
        }
        let path = (source, advertised);
        match &mut self.door {
            Some(door) => door.connections.belongs(path, owner),
            // One that is lost is told by the next datagram.
            None => {
                let belongs = Command::Belongs(path, owner);
                let door = self.threads.commands(DOOR);
                let _ = door.map(|door| door.try_send(belongs));
            }
        }
    }

    /// Sends what datagrams have caused, and passes on what is for others.
    fn settle(&mut self) {
        self.sfu.settle(Now::read());
        self.flush();
        let Some(door) = &mut self.door else {
            return;
        };
        for (thread, bundle) in door.read.iter_mut().enumerate() {
            if !bundle.is_empty() && !self.threads.pass(thread, std::mem::take(bundle)) {
                self.edge.unsent_datagrams.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn receive_all_over_tcp(&mut self) {
        for _ in 0..DATAGRAMS_PER_TURN {
            let arrival = self.door.as_mut().and_then(|door| door.connections.next());
            let Some(arrival) = arrival else {
                break;
            };
            self.receive_over_tcp(arrival);
        }
    }

    fn receive_over_tcp(&mut self, arrival: Arrival) {
        let noted = self
            .door
            .as_mut()
            .and_then(|door| door.connections.note(arrival));
        let Some((path, datagram)) = noted else {
            return;
        };
        let (source, advertised) = path;
        // A relay is a client's own address for UDP, however that client reaches it.
        let protocol = if is_relayed(source.ip()) {
            Protocol::Udp
        } else {
            Protocol::Tcp
        };
        self.read(((protocol, source), advertised), &datagram);
        self.settle();
    }

    /// Sends the output of the SFU. A connection is closed by dropping its queue: the writer of its socket sees the end of
    /// it.
    fn flush(&mut self) {
        let outputs = self.sfu.take_outputs();
        let mut datagrams = outputs.datagrams.into_iter();
        while !datagrams.as_slice().is_empty() {
            let count = self.segments.together(datagrams.as_slice());
            let several = datagrams.as_slice().get(..count).filter(|_| count > 1);
            let have_left = several.is_some_and(|several| self.transmit_together(several));
            for transmit in datagrams.by_ref().take(count) {
                if !have_left {
                    self.transmit(transmit);
                }
            }
        }
        if !self.carried.is_empty() {
            let carried = Command::Carry(std::mem::take(&mut self.carried));
            let door = self.threads.commands(DOOR);
            if door.is_none_or(|door| door.try_send(carried).is_err()) {
                self.edge.unsent_datagrams.fetch_add(1, Ordering::Relaxed);
            }
        }
        for (connection, room) in outputs.moves {
            if let Some(lane) = self.lanes.get_mut(&connection) {
                if let Payer::Room(paying) = &mut lane.payer {
                    paying.clone_from(&room);
                }
                lane.room = room;
            }
        }
        let mut too_much = None;
        for (connection, told) in outputs.signals {
            let Some(lane) = self.lanes.get(&connection) else {
                continue;
            };
            if let Some(overfull) = told.overfull() {
                too_much = Some((connection, overfull));
            }
            match lane.responses.push(told) {
                // A lost connection is handled when its loss is reported, after its requests.
                Pushed::Queued => {}
                Pushed::Replaced => {
                    self.edge.replaced_messages.fetch_add(1, Ordering::Relaxed);
                }
                Pushed::TooFarBehind => self.cut(connection),
            }
        }
        if let Some((connection, overfull)) = too_much {
            self.cut_the_slowest(connection, overfull);
        }
        for connection in outputs.closes {
            self.lanes.remove(&connection);
        }
        for room in outputs.ended {
            self.take_back(&room);
        }
        for (room, kind) in outputs.launches {
            let thread = self.threads.of(&room);
            if thread != self.sfu.thread {
                let named = room.clone();
                let launch = move |sfu: Option<&mut Sfu>, now| {
                    if let Some(sfu) = sfu {
                        sfu.launch(&named, kind, now);
                    }
                };
                let command = Command::Call {
                    room: Some(room),
                    other: None,
                    call: Box::new(launch),
                };
                self.pass(thread, command);
            }
        }
        self.sfu.shared.tell_workers(Now::read());
        for event in outputs.events {
            if !self.events.send(event) {
                self.edge.lost_events.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Cuts a client that does not read. Its queue is dropped.
    fn cut(&mut self, connection: ConnectionId) {
        if let Some(lane) = self.lanes.remove(&connection) {
            lane.responses.abandon();
            self.edge.cut_connections.fetch_add(1, Ordering::Relaxed);
            metrics::room_client_cut_off();
            self.sfu.disconnected(connection, Now::read());
        }
    }

    /// A total limit is exceeded: the connection furthest behind is cut, in one room or on the server.
    fn cut_the_slowest(&mut self, connection: ConnectionId, overfull: Overfull) {
        let room = self
            .lanes
            .get(&connection)
            .map(|lane| Arc::clone(&lane.room));
        let of_interest =
            |lane: &&Lane| overfull == Overfull::Server || Some(&lane.room) == room.as_ref();
        let lanes = self.lanes.iter().filter(|(_, lane)| of_interest(lane));
        let behind = lanes.map(|(connection, lane)| (lane.responses.bytes(), *connection));
        // One that was only just sent a lot is not behind.
        if let Some((_, slowest)) = behind.max().filter(|(bytes, _)| *bytes >= BEHIND_BYTES) {
            self.cut(slowest);
        }
    }

    fn transmit(&mut self, transmit: Transmit) {
        let path = (transmit.destination, transmit.source);
        let is_relayed = is_relayed(path.0.ip());
        if transmit.proto == Protocol::Tcp || is_relayed {
            let Some(door) = &self.door else {
                return self.carried.push(transmit);
            };
            if transmit.proto == Protocol::Tcp || door.connections.is_open(path) {
                if !door.connections.send(path, &transmit.contents) {
                    self.edge.unsent_datagrams.fetch_add(1, Ordering::Relaxed);
                }
                return;
            }
        }
        let Some(socket) = socket_of(&self.sockets, transmit.source) else {
            return;
        };
        let sent = socket.try_send_to(&transmit.contents, transmit.destination);
        if sent.is_err() {
            // Lost, as it may be on the way; reliable protocols retransmit.
            self.edge.unsent_datagrams.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends datagrams of one way in one go; `false` if they are to be sent one by one.
    fn transmit_together(&mut self, datagrams: &[Transmit]) -> bool {
        let source = datagrams.first().map(|first| first.source);
        let Some(socket) = source.and_then(|source| socket_of(&self.sockets, source)) else {
            return false;
        };
        let sent = self.segments.send(socket, datagrams);
        if let Some(Err(_)) = sent {
            let lost = datagrams.len() as u64;
            self.edge
                .unsent_datagrams
                .fetch_add(lost, Ordering::Relaxed);
        }
        sent.is_some()
    }
}

/// The socket that has this address for others.
fn socket_of(sockets: &OpenSockets, source: SocketAddr) -> Option<&UdpSocket> {
    let mut sockets = sockets.iter();
    let (socket, _) = sockets.find(|(_, advertised)| *advertised == source)?;
    Some(socket.socket())
}

/// What happens to a connection, on the thread that has them.
async fn changed(door: &mut Option<Door>) -> Option<Arrival> {
    match door {
        Some(door) => door.connections.changed().await,
        None => std::future::pending().await,
    }
}

/// Resolves when a socket is readable.
async fn readable(sockets: &[(OpenDatagrams, SocketAddr)]) {
    let ready = std::future::poll_fn(|context| {
        let any = sockets
            .iter()
            .any(|(socket, _)| socket.poll_readable(context).is_ready());
        if any { Poll::Ready(()) } else { Poll::Pending }
    });
    pin!(ready).await;
}
