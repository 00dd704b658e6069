//! The media thread, the I/O driver of the [`Sfu`]: datagrams, signalling messages, frames of local participants and time
//! go in; datagrams, messages and events come out. Only this thread touches the `Sfu`, and it never blocks.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use livekit_protocol as proto;
use str0m::net::{Protocol, Transmit};
use tokio::sync::mpsc::{self, error::TryRecvError};

use super::dispatch::WorkerId;
use super::events::EventSender;
use super::outbound::{Overfull, Pushed};
use super::server::{Command, Edge, Joining, Lane};
use super::sfu::Sfu;
use super::sockets::Sockets;
use super::tcp::{Arrival, Arrivals, Connections, Listeners};
use super::turn::is_relayed;
use super::turns::{Payer, Rate, Turns};
use super::workers::WorkerInput;
use super::{ConnectionId, Now, Settings, limits};
use vivavoce_takeover::OpenDatagrams;
use vivavoce_telemetry::metrics;

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

/// The media thread. See the module.
pub(super) struct MediaThread {
    sfu: Sfu,
    sockets: Vec<(OpenDatagrams, SocketAddr)>,
    connections: Connections,
    lanes: HashMap<ConnectionId, Lane>,
    /// Connections with requests waiting, in turn.
    turns: Turns<Payer, ConnectionId>,
    /// Those that wait to join, apart from the others: whoever is in a room does not wait for them.
    joins: Turns<Payer, ConnectionId>,
    /// To agent workers.
    workers: HashMap<WorkerId, mpsc::Sender<proto::ServerMessage>>,
    events: EventSender,
    edge: Arc<Edge>,
}

impl MediaThread {
    pub(super) fn new(
        settings: Settings,
        (sockets, listeners, arrivals): (Sockets, Listeners, Arrivals),
        events: EventSender,
        edge: Arc<Edge>,
    ) -> io::Result<Self> {
        let sockets = sockets.open()?;
        Ok(Self {
            sfu: Sfu::new(settings, Now::read()),
            sockets,
            connections: Connections::accept(listeners, arrivals)?,
            lanes: HashMap::new(),
            turns: Turns::new(OF_PARTY, OF_CONNECTION),
            joins: Turns::new(OF_JOINS, OF_JOINS),
            workers: HashMap::new(),
            events,
            edge,
        })
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        let edge = Arc::clone(&self.edge);
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
                    () = readable(&self.sockets) => {}
                    Some(arrival) = self.connections.changed() => self.receive_over_tcp(arrival),
                    command = inbox.recv() => match command {
                        Some(command) => self.command(command),
                        None => break,
                    },
                    () = edge.asked.notified() => self.line_up(),
                    () = edge.wakes.notified(), if !waiting => waiting = self.anybody_waits(),
                    () = tokio::time::sleep_until(deadline) => {}
                }
            } else {
                // There is always something left to do: sockets are looked at between two steps.
                tokio::task::yield_now().await;
                if edge.stopping.is_cancelled() {
                    break;
                }
                match inbox.try_recv() {
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
            let now = Now::read();
            if self.sfu.deadline() <= now.instant {
                self.check_workers(now);
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
                .edge
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
            self.join(connection, *joining, now);
        }
    }

    fn join(&mut self, connection: ConnectionId, joining: Joining, now: Now) {
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
        let local = self.edge.local.lock();
        !local.unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes what local participants have to send.
    fn woken(&mut self) {
        let local = {
            let mut local = self
                .edge
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
                // Sessions and calls are counted by quotas of their own, and need no peer connection.
                if joining.local.is_some() || self.joins.is_free(&lane.payer, now.instant) {
                    self.lanes.insert(connection, lane);
                    return self.join(connection, *joining, now);
                }
                self.joins.push(&lane.payer, connection);
                lane.joining = Some(joining);
                // A loss from before it was known was not noticed.
                if !lane.gone.load(Ordering::Acquire) {
                    self.lanes.insert(connection, lane);
                }
            }
            Command::Call(call) => call(&mut self.sfu, now),
            Command::Worker { worker, input } => self.worker(worker, input, now),
        }
    }

    fn worker(&mut self, worker: WorkerId, input: WorkerInput, now: Now) {
        match input {
            WorkerInput::Connected {
                credentials,
                lane,
                answer,
            } => {
                let taken = self.sfu.worker_connected(worker, credentials, now);
                if taken.is_ok() {
                    self.workers.insert(worker, lane);
                }
                // Whoever does not wait for it any more drops the connection.
                let _ = answer.send(taken);
            }
            WorkerInput::Said(message) => {
                if self.workers.contains_key(&worker) {
                    self.sfu.worker_said(worker, *message, now);
                }
            }
            WorkerInput::Gone => {
                if self.workers.remove(&worker).is_some() {
                    self.sfu.worker_gone(worker, now);
                }
            }
        }
    }

    /// Notices workers whose connections were dropped without a word.
    fn check_workers(&mut self, now: Now) {
        let gone = self.workers.extract_if(|_, lane| lane.is_closed());
        let gone: Vec<WorkerId> = gone.map(|(worker, _)| worker).collect();
        for worker in gone {
            self.sfu.worker_gone(worker, now);
        }
    }

    fn receive(&mut self) {
        let mut buffer = [0; DATAGRAM_BYTES];
        for index in 0..self.sockets.len() {
            for count in 1..=DATAGRAMS_PER_TURN {
                let Some((socket, advertised)) = self.sockets.get(index) else {
                    break;
                };
                match socket.try_recv_from(&mut buffer) {
                    // Relays are of this process, and nothing comes from outside of where they are said to be.
                    Ok((_, source)) if is_relayed(source.ip()) => {}
                    Ok((length, source)) => {
                        let datagram = buffer.get(..length).unwrap_or_default();
                        let (path, now) = ((Protocol::Udp, source), Now::read());
                        let owner = self.sfu.receive(path, *advertised, datagram, now);
                        if owner.is_none() {
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

    /// Sends what datagrams have caused.
    fn settle(&mut self) {
        self.sfu.settle(Now::read());
        self.flush();
    }

    fn receive_all_over_tcp(&mut self) {
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some(arrival) = self.connections.next() else {
                break;
            };
            self.receive_over_tcp(arrival);
        }
    }

    fn receive_over_tcp(&mut self, arrival: Arrival) {
        let Some((path, datagram)) = self.connections.note(arrival) else {
            return;
        };
        let (source, advertised) = path;
        // A relay is a client's own address for UDP, however that client reaches it.
        let protocol = if is_relayed(source.ip()) {
            Protocol::Udp
        } else {
            Protocol::Tcp
        };
        let now = Now::read();
        let owner = self
            .sfu
            .receive((protocol, source), advertised, &datagram, now);
        if let Some(owner) = owner {
            self.connections.belongs(path, owner);
        }
        self.settle();
    }

    /// Sends the output of the SFU. A connection is closed by dropping its queue: the writer of its socket sees the end of
    /// it.
    fn flush(&mut self) {
        let outputs = self.sfu.take_outputs();
        for transmit in outputs.datagrams {
            self.transmit(&transmit);
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
        for (worker, message) in outputs.workers.messages {
            let lane = self.workers.get(&worker);
            if lane.is_some_and(|lane| lane.try_send(message).is_err()) {
                self.workers.remove(&worker);
                metrics::room_client_cut_off();
                self.sfu.worker_gone(worker, Now::read());
            }
        }
        for worker in outputs.workers.closes {
            if self.workers.remove(&worker).is_some() {
                self.sfu.worker_gone(worker, Now::read());
            }
        }
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

    fn transmit(&self, transmit: &Transmit) {
        let path = (transmit.destination, transmit.source);
        let by_relay = || is_relayed(path.0.ip()) && self.connections.is_open(path);
        if transmit.proto == Protocol::Tcp || by_relay() {
            if !self.connections.send(path, &transmit.contents) {
                self.edge.unsent_datagrams.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let Some((socket, _)) = self
            .sockets
            .iter()
            .find(|(_, advertised)| *advertised == transmit.source)
        else {
            return;
        };
        let sent = socket.socket();
        let sent = sent.try_send_to(&transmit.contents, transmit.destination);
        if sent.is_err() {
            // Lost, as it may be on the way; reliable protocols retransmit.
            self.edge.unsent_datagrams.fetch_add(1, Ordering::Relaxed);
        }
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
