//! The handle of the room server and the thread behind it: the only place in `rooms` with sockets, channels and a clock.
//! Everything that is decided is `world`'s; here it is fed, and what it leaves is sent.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use livekit_protocol as proto;
use str0m::net::Transmit;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc, oneshot};

use super::admission::{Admission, Refusal};
use super::events::RoomEvent;
use super::local::LocalMedia;
use super::operations::{OperationError, ParticipantChange, RoomMessage};
use super::sockets::Sockets;
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

/// What participants inside the process send is taken at most so often: with hundreds of them each frame would wake this
/// thread by itself, which costs more than to pass it on.
const LOCAL_INTERVAL: Duration = Duration::from_millis(1);

type Call = Box<dyn FnOnce(&mut World, Now) + Send>;

enum Command {
    Connect {
        connection: ConnectionId,
        admission: Box<Admission>,
        lane: Lane,
        /// Of somebody inside the process.
        local: Option<Arc<dyn LocalMedia>>,
    },
    Signal {
        connection: ConnectionId,
        bytes: Bytes,
    },
    Call(Call),
    /// The rooms end, and nothing comes after it.
    Stop,
}

/// The way to one client.
struct Lane {
    responses: mpsc::Sender<Bytes>,
    gone: Arc<AtomicBool>,
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
    next_connection: Arc<AtomicU64>,
    keys: Arc<Keys>,
    edge: Arc<Edge>,
}

#[derive(Debug, Default)]
struct Edge {
    cut_connections: AtomicU64,
    lost_events: AtomicU64,
    unsent_datagrams: AtomicU64,
    /// Some connection is gone; which one, its own flag says.
    departures: Notify,
    /// Participants inside the process that have something to send: each is here once at most.
    local: Mutex<BTreeSet<ConnectionId>>,
    wakes: Notify,
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
        let (events, told) = mpsc::channel(MOST_EVENTS);
        let edge = Arc::new(Edge::default());
        let server = Self {
            commands,
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
                        Ok(thread) => thread.run(inbox).await,
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
        let mut local = self
            .edge
            .local
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        local.insert(connection);
        drop(local);
        self.edge.wakes.notify_one();
    }

    async fn enter(
        &self,
        admission: Admission,
        media: impl FnOnce(ConnectionId) -> Option<Arc<dyn LocalMedia>>,
    ) -> Option<Connection> {
        let connection = ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed));
        let (responses, queue) = mpsc::channel(MOST_RESPONSES);
        let gone = Arc::default();
        let command = Command::Connect {
            connection,
            admission: Box::new(admission),
            lane: Lane {
                responses,
                gone: Arc::clone(&gone),
            },
            local: media(connection),
        };
        let half = || Half {
            gone: Arc::clone(&gone),
            edge: Arc::clone(&self.edge),
        };
        let opened = Connection {
            requests: Requests {
                connection,
                commands: self.commands.clone(),
                _half: half(),
            },
            responses: Responses {
                queue,
                _half: half(),
            },
        };
        self.commands.send(command).await.ok()?;
        Some(opened)
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

    /// Tells everybody that the server goes, and ends all rooms. When it is done all events were told, and whatever is asked
    /// of any clone of it is [`OperationError::Stopped`].
    pub async fn stop(&self) {
        let _stopping = self.commands.send(Command::Stop).await;
        self.commands.closed().await;
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

/// What each half of a connection says when it is dropped.
#[derive(Debug)]
struct Half {
    gone: Arc<AtomicBool>,
    edge: Arc<Edge>,
}

impl Drop for Half {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        self.edge.departures.notify_one();
    }
}

/// See [`Connection`].
#[derive(Debug)]
pub struct Requests {
    connection: ConnectionId,
    commands: mpsc::Sender<Command>,
    _half: Half,
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
    _half: Half,
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
    lanes: HashMap<ConnectionId, Lane>,
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
        let sockets = sockets.into_tokio()?;
        Ok(Self {
            world: World::new(settings, Now::read()),
            sockets,
            lanes: HashMap::new(),
            events,
            edge,
        })
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
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
        let mut local = self
            .edge
            .local
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let local = std::mem::take(&mut *local);
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
