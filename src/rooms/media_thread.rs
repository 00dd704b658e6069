//! The thread of all rooms: datagrams, signalling, frames of participants inside the process and clocks go into the
//! [`World`] here, and what it says goes out. Nothing else touches the world, and nothing here waits.

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

use super::events::RoomEvent;
use super::outbound::{Overfull, Pushed};
use super::server::{Command, Edge, Lane};
use super::sockets::Sockets;
use super::turns::Turns;
use super::world::World;
use super::{ConnectionId, Now, Settings};
use vivavoce_telemetry::metrics;

/// Datagrams taken from one socket before anything else has its turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Larger than any datagram that media travels in.
const DATAGRAM_BYTES: usize = 2_048;
/// What participants inside the process send is taken at most so often: with hundreds of them each frame would wake this
/// thread by itself, which costs more than to pass it on.
const LOCAL_INTERVAL: Duration = Duration::from_millis(1);

/// Whoever has so much waiting may be cut off when there is too much in all.
const BEHIND_BYTES: usize = 512 << 10;

/// See the module.
pub(super) struct MediaThread {
    world: World,
    sockets: Vec<(UdpSocket, SocketAddr)>,
    lanes: HashMap<ConnectionId, Lane>,
    /// Connections that have something to say.
    turns: Turns<Arc<str>, ConnectionId>,
    events: mpsc::Sender<RoomEvent>,
    edge: Arc<Edge>,
}

impl MediaThread {
    pub(super) fn new(
        settings: Settings,
        sockets: Sockets,
        events: mpsc::Sender<RoomEvent>,
        edge: Arc<Edge>,
    ) -> io::Result<Self> {
        let sockets = sockets.into_tokio()?;
        Ok(Self {
            world: World::new(settings, Now::read()),
            sockets,
            lanes: HashMap::new(),
            turns: Turns::default(),
            events,
            edge,
        })
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        let edge = Arc::clone(&self.edge);
        // Whether somebody inside has something to send, and when that is looked at.
        let (mut waiting, mut due) = (false, Now::read().instant);
        loop {
            if self.turns.is_empty() && !self.world.has_more_to_do() {
                let deadline = self.world.deadline();
                let deadline = if waiting { deadline.min(due) } else { deadline };
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
                // There always is something to do: between two steps the sockets are looked at, and all the others.
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
            let now = Now::read();
            if waiting && due <= now.instant {
                self.woken();
                (waiting, due) = (false, now.instant + LOCAL_INTERVAL);
            }
            self.flush();
            self.receive();
            let now = Now::read();
            if self.world.deadline() <= now.instant {
                self.world.tick(now);
                self.flush();
            }
        }
        self.world.end_all_rooms(Now::read());
        self.flush();
    }

    /// Lets those have a turn who have something to say or are gone.
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
            // One that is not known yet has its turn when it is.
            if let Some(lane) = self.lanes.get(&connection) {
                self.turns.push(&lane.room, connection);
            }
        }
    }

    /// One step: what one connection said first, of all that it said. What was said on a connection before it went is heard,
    /// that somebody leaves above all; only what it could not hear the answer of is left out.
    fn serve(&mut self) {
        let Some(connection) = self.turns.next() else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&connection) else {
            return;
        };
        let gone = lane.gone.load(Ordering::Acquire);
        match lane.requests.try_recv() {
            Ok(waiting) => {
                let room = Arc::clone(&lane.room);
                self.turns.push(&room, connection);
                self.woken();
                if !(gone && waiting.asked.wants_an_answer()) {
                    self.world.asked(connection, waiting.asked, Now::read());
                }
            }
            Err(_) if gone => {
                self.lanes.remove(&connection);
                self.world.disconnected(connection, Now::read());
            }
            Err(_) => {}
        }
    }

    fn anybody_waits(&self) -> bool {
        let local = self.edge.local.lock();
        !local.unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes what participants inside the process have to send.
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
            self.world.local_media(connection, Now::read());
        }
    }

    fn command(&mut self, command: Command) {
        // What was sent before somebody left is heard.
        self.woken();
        let now = Now::read();
        match command {
            Command::Connect {
                connection,
                admission,
                offer,
                lane,
                local,
            } => {
                // One that is gone before it has said anything was never here.
                if lane.gone.load(Ordering::Acquire) && lane.requests.is_empty() {
                    return;
                }
                self.turns.push(&lane.room, connection);
                self.lanes.insert(connection, lane);
                match local {
                    Some(media) => self.world.connect_local(connection, *admission, media, now),
                    None => self.world.connect_with(connection, *admission, *offer, now),
                }
            }
            Command::Call(call) => call(&mut self.world, now),
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
                        self.world
                            .datagram(source, *advertised, datagram, Now::read());
                        self.flush();
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // An earlier datagram was refused by its receiver (ICMP); there may be more to read.
                    Err(_) => {}
                }
            }
        }
    }

    /// Sends what the world left. Closing a connection is forgetting its queue: the socket's writer sees the end of it.
    fn flush(&mut self) {
        let outputs = self.world.take_outputs();
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
                // One that is gone is known by its departure, which comes after what was said on it.
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
            if self.events.try_send(event).is_err() {
                self.edge.lost_events.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Cuts off a client that does not read. What waits for it is dropped, not told.
    fn cut(&mut self, connection: ConnectionId) {
        if let Some(lane) = self.lanes.remove(&connection) {
            lane.responses.abandon();
            self.edge.cut_connections.fetch_add(1, Ordering::Relaxed);
            metrics::room_client_cut_off();
            self.world.disconnected(connection, Now::read());
        }
    }

    /// More waits than may: whoever is furthest behind goes, in the room of a connection or anywhere.
    fn cut_the_slowest(&mut self, connection: ConnectionId, overfull: Overfull) {
        let room = self
            .lanes
            .get(&connection)
            .map(|lane| Arc::clone(&lane.room));
        let of_interest =
            |lane: &&Lane| overfull == Overfull::Server || Some(&lane.room) == room.as_ref();
        let lanes = self.lanes.iter().filter(|(_, lane)| of_interest(lane));
        let behind = lanes.map(|(connection, lane)| (lane.responses.bytes(), *connection));
        // Whoever was only just told a lot is none of those.
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
            // As good as lost on the way; what must arrive is sent again by its protocol.
            self.edge.unsent_datagrams.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Waits until one of the sockets has something.
async fn readable(sockets: &[(UdpSocket, SocketAddr)]) {
    let ready = std::future::poll_fn(|context| {
        let any = sockets
            .iter()
            .any(|(socket, _)| socket.poll_recv_ready(context).is_ready());
        if any { Poll::Ready(()) } else { Poll::Pending }
    });
    pin!(ready).await;
}
