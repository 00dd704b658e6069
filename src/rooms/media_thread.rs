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

use str0m::net::Transmit;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::{self, error::TryRecvError};

use super::events::EventSender;
use super::outbound::{Overfull, Pushed};
use super::server::{Command, Edge, Joining, Lane};
use super::sfu::Sfu;
use super::sockets::Sockets;
use super::turns::{Payer, Rate, Turns};
use super::{ConnectionId, Now, Settings, limits};
use vivavoce_telemetry::metrics;

/// Datagrams read from one socket before other work gets its turn.
const DATAGRAMS_PER_TURN: usize = 64;
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
    sockets: Vec<(UdpSocket, SocketAddr)>,
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
        settings: Settings,
        sockets: Sockets,
        events: EventSender,
        edge: Arc<Edge>,
    ) -> io::Result<Self> {
        let sockets = sockets.into_tokio()?;
        Ok(Self {
            sfu: Sfu::new(settings, Now::read()),
            sockets,
            lanes: HashMap::new(),
            turns: Turns::new(OF_PARTY, OF_CONNECTION),
            joins: Turns::new(OF_JOINS, OF_JOINS),
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
            let now = Now::read();
            if self.sfu.deadline() <= now.instant {
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
        }
    }

    fn receive(&mut self) {
        let mut buffer = [0; DATAGRAM_BYTES];
        for index in 0..self.sockets.len() {
            for _ in 0..DATAGRAMS_PER_TURN {
                let Some((socket, advertised)) = self.sockets.get(index) else {
                    break;
                };
                match socket.try_recv_from(&mut buffer) {
                    Ok((length, source)) => {
                        let datagram = buffer.get(..length).unwrap_or_default();
                        self.sfu
                            .datagram(source, *advertised, datagram, Now::read());
                        self.flush();
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // An ICMP error about an earlier datagram; there may be more to read.
                    Err(_) => {}
                }
            }
        }
    }

    /// Sends the output of the SFU. A connection is closed by dropping its queue: the writer of its socket sees the end of
    /// it.
    fn flush(&mut self) {
        let outputs = self.sfu.take_outputs();
        for transmit in outputs.datagrams {
            self.transmit(&transmit);
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
        let Some((socket, _)) = self
            .sockets
            .iter()
            .find(|(_, advertised)| *advertised == transmit.source)
        else {
            return;
        };
        if socket
            .try_send_to(&transmit.contents, transmit.destination)
            .is_err()
        {
            // Lost, as it may be on the way; reliable protocols retransmit.
            self.edge.unsent_datagrams.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Resolves when a socket is readable.
async fn readable(sockets: &[(UdpSocket, SocketAddr)]) {
    let ready = std::future::poll_fn(|context| {
        let any = sockets
            .iter()
            .any(|(socket, _)| socket.poll_recv_ready(context).is_ready());
        if any { Poll::Ready(()) } else { Poll::Pending }
    });
    pin!(ready).await;
}
