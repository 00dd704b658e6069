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
use tokio::sync::mpsc;

use super::events::RoomEvent;
use super::server::{Command, Edge, Lane};
use super::sockets::Sockets;
use super::world::World;
use super::{ConnectionId, Now, Settings};

/// Datagrams taken from one socket before anything else has its turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Larger than any datagram that media travels in.
const DATAGRAM_BYTES: usize = 2_048;
/// What participants inside the process send is taken at most so often: with hundreds of them each frame would wake this
/// thread by itself, which costs more than to pass it on.
const LOCAL_INTERVAL: Duration = Duration::from_millis(1);

/// See the module.
pub(super) struct MediaThread {
    world: World,
    sockets: Vec<(UdpSocket, SocketAddr)>,
    lanes: HashMap<ConnectionId, Lane>,
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
            events,
            edge,
        })
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        let edge = Arc::clone(&self.edge);
        // Whether somebody inside has something to send, and when that is looked at.
        let (mut waiting, mut due) = (false, Now::read().instant);
        loop {
            let deadline = self.world.deadline();
            let deadline = if waiting { deadline.min(due) } else { deadline };
            let deadline = tokio::time::Instant::from_std(deadline);
            tokio::select! {
                () = readable(&self.sockets) => {}
                command = inbox.recv() => {
                    if !self.obey(command) {
                        break;
                    }
                }
                () = edge.departures.notified() => {
                    // What was said on a connection before it went comes first: that somebody leaves, above all.
                    let gone = self.gone();
                    let mut said = inbox.len();
                    while said > 0 && self.obey(inbox.recv().await) {
                        said -= 1;
                        self.flush();
                    }
                    if said > 0 {
                        break;
                    }
                    self.departed(&gone);
                }
                () = edge.wakes.notified(), if !waiting => waiting = self.anybody_waits(),
                () = tokio::time::sleep_until(deadline) => {}
            }
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

    /// Carries out a command; `false` when there shall be no more.
    fn obey(&mut self, command: Option<Command>) -> bool {
        match command {
            None | Some(Command::Stop) => false,
            Some(command) => {
                // What was sent before somebody left is heard.
                self.woken();
                self.command(command);
                true
            }
        }
    }

    fn gone(&self) -> Vec<ConnectionId> {
        let lanes = self.lanes.iter();
        let gone = lanes.filter(|(_, lane)| lane.gone.load(Ordering::Acquire));
        gone.map(|(connection, _)| *connection).collect()
    }

    /// Forgets connections that are gone.
    fn departed(&mut self, gone: &[ConnectionId]) {
        for connection in gone {
            self.lanes.remove(connection);
            self.world.disconnected(*connection, Now::read());
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
        let now = Now::read();
        match command {
            Command::Connect {
                connection,
                admission,
                lane,
                local,
            } => {
                // One that is gone already was perhaps looked for in vain.
                if !lane.gone.load(Ordering::Acquire) {
                    self.lanes.insert(connection, lane);
                    match local {
                        Some(media) => {
                            self.world.connect_local(connection, *admission, media, now);
                        }
                        None => self.world.connect(connection, *admission, now),
                    }
                }
            }
            Command::Signal { connection, bytes } => self.world.signal(connection, &bytes, now),
            Command::Call(call) => call(&mut self.world, now),
            // The loop ends with it.
            Command::Stop => {}
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
        for (connection, bytes) in outputs.signals {
            let Some(lane) = self.lanes.get(&connection) else {
                continue;
            };
            // One that is gone is known by its departure, which comes after what was said on it.
            let sent = lane.responses.try_send(bytes);
            if matches!(sent, Err(mpsc::error::TrySendError::Full(_))) {
                self.edge.cut_connections.fetch_add(1, Ordering::Relaxed);
                self.lanes.remove(&connection);
                self.world.disconnected(connection, Now::read());
            }
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
