//! The handle of the room server and the thread behind it: the only place in `rooms` with sockets, channels and a clock.
//! Everything that is decided is `world`'s; here it is fed, and what it leaves is sent.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use bytes::Bytes;
use livekit_protocol as proto;
use str0m::net::Transmit;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};

use super::admission::{Admission, Refusal};
use super::events::RoomEvent;
use super::local::LocalMedia;
use super::operations::{OperationError, ParticipantChange, RoomMessage};
use super::token::Keys;
use super::world::{Counters, World};
use super::{ConnectionId, Now, Settings};

/// Requests that wait for the media thread; whoever brings another waits.
const MOST_COMMANDS: usize = 1_024;
/// Signalling messages that wait for a client. One that is further behind is cut off and resumes.
const MOST_RESPONSES: usize = 1_024;
/// Events that wait for whoever sends webhooks; more are lost and counted.
const MOST_EVENTS: usize = 4_096;
/// Datagrams taken from one socket before anything else has its turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Larger than any datagram that media travels in.
const DATAGRAM_BYTES: usize = 2_048;
/// Of the kernel's buffers: a burst of one picture to many receivers fits.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// One UDP socket per address, each with the address that clients know it by.
#[derive(Debug)]
pub struct Sockets(Vec<(StdUdpSocket, SocketAddr)>);

impl Sockets {
    /// Opens `port` (0: any that is free at all of them) at these addresses, each with the one that is told to clients.
    pub fn bind(addresses: &[(IpAddr, IpAddr)], port: u16) -> io::Result<Self> {
        const ATTEMPTS: usize = 16;
        let mut failed = io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "no address to open the media port at",
        );
        for _ in 0..if port == 0 { ATTEMPTS } else { 1 } {
            match Self::bind_once(addresses, port) {
                Ok(sockets) if sockets.0.is_empty() => break,
                Ok(sockets) => return Ok(sockets),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn bind_once(addresses: &[(IpAddr, IpAddr)], mut port: u16) -> io::Result<Self> {
        let mut bound = Vec::new();
        for (local, advertised) in addresses {
            let domain = socket2::Domain::for_address((*local, port).into());
            let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
            // Best effort: the kernel caps them without an error.
            let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
            let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
            socket.set_nonblocking(true)?;
            socket.bind(&SocketAddr::from((*local, port)).into())?;
            let socket = StdUdpSocket::from(socket);
            port = socket.local_addr()?.port();
            bound.push((socket, SocketAddr::from((*advertised, port))));
        }
        Ok(Self(bound))
    }

    /// What clients are told.
    pub fn advertised(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|(_, advertised)| *advertised).collect()
    }
}

/// The addresses of this machine at which media can be reached, each with itself; or those that are given, each with
/// the local address that stands behind it.
pub fn local_addresses(advertised: &[IpAddr]) -> io::Result<Vec<(IpAddr, IpAddr)>> {
    let interfaces = if_addrs::get_if_addrs()?;
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let local: Vec<IpAddr> = interfaces
        .iter()
        .map(if_addrs::Interface::ip)
        .filter(usable)
        .collect();
    if advertised.is_empty() {
        return Ok(local
            .into_iter()
            .map(|address| (address, address))
            .collect());
    }
    let behind = |outside: &IpAddr| {
        if local.contains(outside) {
            *outside
        } else {
            outgoing_address(outside.is_ipv4())
        }
    };
    Ok(advertised
        .iter()
        .map(|outside| (behind(outside), *outside))
        .collect())
}

/// The local address from which packets to the Internet leave; none is sent to find out.
fn outgoing_address(v4: bool) -> IpAddr {
    let (any, far): (IpAddr, IpAddr) = if v4 {
        (
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(192, 0, 2, 1).into(),
        )
    } else {
        (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        )
    };
    let found = StdUdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((far, 9))?;
        socket.local_addr()
    });
    found.map_or(any, |address| address.ip())
}

type Call = Box<dyn FnOnce(&mut World, Now) + Send>;

enum Command {
    Connect {
        connection: ConnectionId,
        admission: Box<Admission>,
        responses: mpsc::Sender<Bytes>,
        /// Of somebody inside the process.
        local: Option<Arc<dyn LocalMedia>>,
    },
    Signal {
        connection: ConnectionId,
        bytes: Bytes,
    },
    Call(Call),
}

/// What the server counts, with what was lost at its edges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Inside.
    pub world: Counters,
    /// Signalling connections cut off because they did not read.
    pub cut_connections: u64,
    /// Events nobody took in time.
    pub lost_events: u64,
    /// Datagrams that the kernel did not take.
    pub unsent_datagrams: u64,
}

/// A running room server. Clones are handles of the same; it ends when the last is dropped or when it is stopped.
#[derive(Debug, Clone)]
pub struct RoomServer {
    commands: mpsc::Sender<Command>,
    gone: mpsc::UnboundedSender<ConnectionId>,
    woken: mpsc::UnboundedSender<ConnectionId>,
    next_connection: Arc<AtomicU64>,
    keys: Arc<Keys>,
    edge: Arc<Edge>,
}

#[derive(Debug, Default)]
struct Edge {
    cut_connections: AtomicU64,
    lost_events: AtomicU64,
    unsent_datagrams: AtomicU64,
}

impl RoomServer {
    /// Starts the media thread on these sockets; their addresses become those that clients are told. What happens in
    /// rooms comes out of the second value.
    pub fn start(
        mut settings: Settings,
        sockets: Sockets,
    ) -> io::Result<(Self, mpsc::Receiver<RoomEvent>)> {
        settings.addresses = sockets.advertised();
        let (commands, inbox) = mpsc::channel(MOST_COMMANDS);
        // Bounded by two per connection.
        let (gone, leavers) = mpsc::unbounded_channel();
        // Bounded by one per participant inside the process.
        let (woken, wakes) = mpsc::unbounded_channel();
        let (events, told) = mpsc::channel(MOST_EVENTS);
        let edge = Arc::new(Edge::default());
        let server = Self {
            commands,
            gone,
            woken,
            next_connection: Arc::default(),
            keys: Arc::new(settings.keys.clone()),
            edge: Arc::clone(&edge),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("rooms".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    match MediaThread::new(settings, sockets, events, edge) {
                        Ok(thread) => thread.run(inbox, leavers, wakes).await,
                        Err(error) => tracing::error!(%error, "the media port cannot be read"),
                    }
                });
            })?;
        Ok((server, told))
    }

    /// The keys that tokens are signed with.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Whether a client may join now; the text of a refusal is for it.
    pub async fn check(&self, admission: &Admission) -> Result<(), Refusal> {
        let admission = admission.clone();
        let checked = self.call(move |world, _| world.check(&admission)).await;
        checked.unwrap_or_else(|_| Err(Refusal::new(503, "the room server is not running")))
    }

    /// Opens a signalling connection; `None` when the server has stopped.
    pub async fn connect(&self, admission: Admission) -> Option<Connection> {
        self.enter(admission, |_| None).await
    }

    /// Lets somebody inside the process join. What its media is may depend on the connection's number, by which it is
    /// woken; `None` when the server has stopped.
    pub async fn connect_local(
        &self,
        admission: Admission,
        media: impl FnOnce(ConnectionId) -> Arc<dyn LocalMedia>,
    ) -> Option<Connection> {
        self.enter(admission, |connection| Some(media(connection)))
            .await
    }

    /// Says that somebody inside the process has frames or messages to send. To be called once until they were taken.
    pub fn wake_local(&self, connection: ConnectionId) {
        let _ = self.woken.send(connection);
    }

    async fn enter(
        &self,
        admission: Admission,
        media: impl FnOnce(ConnectionId) -> Option<Arc<dyn LocalMedia>>,
    ) -> Option<Connection> {
        let connection = ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed));
        let (responses, queue) = mpsc::channel(MOST_RESPONSES);
        let command = Command::Connect {
            connection,
            admission: Box::new(admission),
            responses,
            local: media(connection),
        };
        self.commands.send(command).await.ok()?;
        let gone = Arc::new(Gone {
            connection,
            gone: self.gone.clone(),
        });
        Some(Connection {
            requests: Requests {
                connection,
                commands: self.commands.clone(),
                _gone: Arc::clone(&gone),
            },
            responses: Responses { queue, _gone: gone },
        })
    }

    /// Does something with the world on its thread.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut World, Now) -> T + Send + 'static,
    ) -> Result<T, OperationError> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |world, now| {
            let _ = answer.send(work(world, now));
        });
        self.commands
            .send(Command::Call(call))
            .await
            .map_err(|_| OperationError::Stopped)?;
        answered.await.map_err(|_| OperationError::Stopped)
    }

    /// See [`World::create_room`].
    pub async fn create_room(
        &self,
        request: proto::CreateRoomRequest,
    ) -> Result<proto::Room, OperationError> {
        self.call(move |world, now| world.create_room(&request, now))
            .await?
    }

    /// See [`World::create_new_room`].
    pub async fn create_new_room(
        &self,
        request: proto::CreateRoomRequest,
    ) -> Result<Result<proto::Room, proto::Room>, OperationError> {
        self.call(move |world, now| world.create_new_room(&request, now))
            .await?
    }

    /// See [`World::replace_room_metadata`].
    pub async fn replace_room_metadata(
        &self,
        name: String,
        expected: String,
        metadata: String,
    ) -> Result<bool, OperationError> {
        self.call(move |world, _| world.replace_room_metadata(&name, &expected, metadata))
            .await?
    }

    /// See [`World::list_rooms`].
    pub async fn list_rooms(&self, names: Vec<String>) -> Result<Vec<proto::Room>, OperationError> {
        self.call(move |world, _| world.list_rooms(&names)).await
    }

    /// See [`World::delete_room`].
    pub async fn delete_room(&self, name: String) -> Result<(), OperationError> {
        self.call(move |world, now| world.delete_room(&name, now))
            .await?
    }

    /// See [`World::show_recording`].
    pub async fn show_recording(&self, name: String, recorded: bool) -> Result<(), OperationError> {
        self.call(move |world, _| world.show_recording(&name, recorded))
            .await?
    }

    /// See [`World::update_room_metadata`].
    pub async fn update_room_metadata(
        &self,
        name: String,
        metadata: String,
    ) -> Result<proto::Room, OperationError> {
        self.call(move |world, _| world.update_room_metadata(&name, metadata))
            .await?
    }

    /// See [`World::list_participants`].
    pub async fn list_participants(
        &self,
        room: String,
    ) -> Result<Vec<proto::ParticipantInfo>, OperationError> {
        self.call(move |world, _| world.list_participants(&room))
            .await?
    }

    /// See [`World::get_participant`].
    pub async fn get_participant(
        &self,
        room: String,
        identity: String,
    ) -> Result<proto::ParticipantInfo, OperationError> {
        self.call(move |world, _| world.get_participant(&room, &identity))
            .await?
    }

    /// See [`World::remove_participant`].
    pub async fn remove_participant(
        &self,
        room: String,
        identity: String,
    ) -> Result<(), OperationError> {
        self.call(move |world, now| world.remove_participant(&room, &identity, now))
            .await?
    }

    /// See [`World::renew_participant`].
    pub async fn renew_participant(
        &self,
        room: String,
        identity: String,
    ) -> Result<(), OperationError> {
        self.call(move |world, _| world.renew_participant(&room, &identity))
            .await?
    }

    /// See [`World::mute_track`].
    pub async fn mute_track(
        &self,
        room: String,
        identity: String,
        track: String,
        muted: bool,
    ) -> Result<proto::TrackInfo, OperationError> {
        self.call(move |world, _| world.mute_track(&room, &identity, &track, muted))
            .await?
    }

    /// See [`World::update_participant`].
    pub async fn update_participant(
        &self,
        room: String,
        identity: String,
        change: ParticipantChange,
    ) -> Result<proto::ParticipantInfo, OperationError> {
        self.call(move |world, now| world.update_participant(&room, &identity, change, now))
            .await?
    }

    /// See [`World::update_subscriptions`].
    pub async fn update_subscriptions(
        &self,
        room: String,
        identity: String,
        subscription: proto::UpdateSubscription,
    ) -> Result<(), OperationError> {
        self.call(move |world, now| {
            world.update_subscriptions(&room, &identity, &subscription, now)
        })
        .await?
    }

    /// See [`World::send_data`].
    pub async fn send_data(
        &self,
        room: String,
        message: RoomMessage,
    ) -> Result<(), OperationError> {
        self.call(move |world, now| world.send_data(&room, message, now))
            .await?
    }

    /// Tells everybody that the server goes, and ends all rooms.
    pub async fn stop(&self) -> Result<(), OperationError> {
        self.call(World::end_all_rooms).await
    }

    /// What was counted.
    pub async fn counters(&self) -> Result<ServerCounters, OperationError> {
        let world = self.call(|world, _| world.counters()).await?;
        Ok(ServerCounters {
            world,
            cut_connections: self.edge.cut_connections.load(Ordering::Relaxed),
            lost_events: self.edge.lost_events.load(Ordering::Relaxed),
            unsent_datagrams: self.edge.unsent_datagrams.load(Ordering::Relaxed),
        })
    }
}

/// One client's signalling: its two halves belong to whoever reads and whoever writes its socket. When either is
/// dropped the connection counts as lost.
#[derive(Debug)]
pub struct Connection {
    /// To the server.
    pub requests: Requests,
    /// From the server.
    pub responses: Responses,
}

#[derive(Debug)]
struct Gone {
    connection: ConnectionId,
    gone: mpsc::UnboundedSender<ConnectionId>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = self.gone.send(self.connection);
    }
}

/// See [`Connection`].
#[derive(Debug)]
pub struct Requests {
    connection: ConnectionId,
    commands: mpsc::Sender<Command>,
    _gone: Arc<Gone>,
}

impl Requests {
    /// Hands over one binary frame, an encoded `SignalRequest`. Waits while the server is busy; `false` when it stopped.
    pub async fn send(&self, frame: Bytes) -> bool {
        self.commands
            .send(Command::Signal {
                connection: self.connection,
                bytes: frame,
            })
            .await
            .is_ok()
    }
}

/// See [`Connection`].
#[derive(Debug)]
pub struct Responses {
    queue: mpsc::Receiver<Bytes>,
    _gone: Arc<Gone>,
}

impl Responses {
    /// The next binary frame, an encoded `SignalResponse`; `None` when the socket shall be closed.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.queue.recv().await
    }
}

struct MediaThread {
    world: World,
    sockets: Vec<(UdpSocket, SocketAddr)>,
    responses: HashMap<ConnectionId, mpsc::Sender<Bytes>>,
    events: mpsc::Sender<RoomEvent>,
    edge: Arc<Edge>,
}

impl MediaThread {
    fn new(
        settings: Settings,
        sockets: Sockets,
        events: mpsc::Sender<RoomEvent>,
        edge: Arc<Edge>,
    ) -> io::Result<Self> {
        let sockets = sockets
            .0
            .into_iter()
            .map(|(socket, advertised)| Ok((UdpSocket::from_std(socket)?, advertised)));
        let sockets = sockets.collect::<io::Result<_>>()?;
        Ok(Self {
            world: World::new(settings, Now::read()),
            sockets,
            responses: HashMap::new(),
            events,
            edge,
        })
    }

    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Command>,
        mut leavers: mpsc::UnboundedReceiver<ConnectionId>,
        mut woken: mpsc::UnboundedReceiver<ConnectionId>,
    ) {
        loop {
            let deadline = tokio::time::Instant::from_std(self.world.deadline());
            tokio::select! {
                () = readable(&self.sockets) => {}
                command = inbox.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                Some(connection) = leavers.recv() => {
                    self.responses.remove(&connection);
                    self.world.disconnected(connection, Now::read());
                }
                Some(connection) = woken.recv() => self.world.local_media(connection, Now::read()),
                () = tokio::time::sleep_until(deadline) => {}
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

    fn command(&mut self, command: Command) {
        let now = Now::read();
        match command {
            Command::Connect {
                connection,
                admission,
                responses,
                local,
            } => {
                self.responses.insert(connection, responses);
                match local {
                    Some(media) => self.world.connect_local(connection, *admission, media, now),
                    None => self.world.connect(connection, *admission, now),
                }
            }
            Command::Signal { connection, bytes } => self.world.signal(connection, &bytes, now),
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
        for (connection, bytes) in outputs.signals {
            let Some(queue) = self.responses.get(&connection) else {
                continue;
            };
            let sent = queue.try_send(bytes);
            if matches!(sent, Err(mpsc::error::TrySendError::Full(_))) {
                self.edge.cut_connections.fetch_add(1, Ordering::Relaxed);
            }
            if sent.is_err() {
                self.responses.remove(&connection);
                self.world.disconnected(connection, Now::read());
            }
        }
        for connection in outputs.closes {
            self.responses.remove(&connection);
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
