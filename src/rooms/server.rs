//! The handle of the room server, and what it shares with the thread behind it. With that thread it is the only place in
//! `rooms` with sockets, channels and a clock; everything that is decided is `world`'s.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use livekit_protocol as proto;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::admission::{Admission, Refusal};
use super::events::RoomEvent;
use super::local::LocalMedia;
use super::media_thread::MediaThread;
use super::offers::{DescriptionError, Offer};
use super::operations::{OperationError, ParticipantChange, RoomMessage};
use super::outbound::Outbound;
use super::signalling::Asked;
use super::sockets::Sockets;
use super::token::Keys;
use super::world::{Counters, World};
use super::{ConnectionId, Now, Settings, limits};
use vivavoce_core::party::Party;

/// Joins and calls of the server's API that wait for the media thread; whoever brings another waits.
const MOST_COMMANDS: usize = 1_024;
/// Rooms that are listed in one go.
const ROOMS_AT_ONCE: usize = 256;
/// Events that wait for whoever sends webhooks; more are lost and counted.
const MOST_EVENTS: usize = 4_096;
/// A message so short is read at once wherever it is.
const READ_AT_ONCE_BYTES: usize = 4 << 10;
/// Most offers are no longer.
const SHORT_BYTES: usize = 32 << 10;

/// Something that is done on the thread.
type Call = Box<dyn FnOnce(&mut World, Now) + Send>;
/// An offer that came with a join, read.
pub(super) type FirstOffer = Option<Result<Offer, DescriptionError>>;

/// What is asked of the thread.
pub(super) enum Command {
    Connect {
        connection: ConnectionId,
        admission: Box<Admission>,
        offer: Box<FirstOffer>,
        lane: Lane,
        /// Of somebody inside the process.
        local: Option<Arc<dyn LocalMedia>>,
    },
    Call(Call),
}

/// The way from and to one client.
pub(super) struct Lane {
    /// Clients of one room have their turns together.
    pub room: Arc<str>,
    pub requests: mpsc::Receiver<Waiting>,
    pub responses: Arc<Outbound>,
    pub gone: Arc<AtomicBool>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.responses.close();
    }
}

/// A request that waits for its turn, in the place that its bytes take.
pub(super) struct Waiting {
    pub asked: Asked,
    _place: OwnedSemaphorePermit,
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

/// What the thread shares with its handles.
#[derive(Debug, Default)]
pub(super) struct Edge {
    pub cut_connections: AtomicU64,
    pub replaced_messages: AtomicU64,
    pub lost_events: AtomicU64,
    pub unsent_datagrams: AtomicU64,
    /// Connections that have something to say, or are gone: each is here once at most.
    pub waiting: Mutex<BTreeSet<ConnectionId>>,
    pub asked: Notify,
    /// The rooms end, whatever waits.
    pub stopping: CancellationToken,
    /// What takes long to read is read by one at a time, in the order of asking: each client asks for one thing at a time.
    pub reading: Reading,
    /// Participants inside the process that have something to send: each is here once at most.
    pub local: Mutex<BTreeSet<ConnectionId>>,
    pub wakes: Notify,
}

impl Edge {
    /// Says that a connection has something to say, or is gone.
    fn wait(&self, connection: ConnectionId) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(connection);
        drop(waiting);
        self.asked.notify_one();
    }
}

/// See [`Edge::reading`].
#[derive(Debug)]
pub(super) struct Reading {
    /// For what is as long as most offers are.
    short: Semaphore,
    /// For what is longer, so that the rest does not wait for it.
    long: Semaphore,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            short: Semaphore::new(1),
            long: Semaphore::new(1),
        }
    }
}

impl Reading {
    /// Reads something of so many bytes where it delays neither sound nor sockets. `None` when the reader failed.
    async fn read<T: Send + 'static>(
        &self,
        bytes: usize,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if bytes <= READ_AT_ONCE_BYTES {
            return Some(read());
        }
        let turns = if bytes <= SHORT_BYTES {
            &self.short
        } else {
            &self.long
        };
        let _turn = turns.acquire().await;
        tokio::task::spawn_blocking(read).await.ok()
    }
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
        let admission = admission.without_luggage();
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
        mut admission: Admission,
        media: impl FnOnce(ConnectionId) -> Option<Arc<dyn LocalMedia>>,
    ) -> Option<Connection> {
        let connection = ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed));
        let offer = match admission.offer.take() {
            Some(offer) => {
                let bytes = offer.sdp.len();
                self.edge
                    .reading
                    .read(bytes, move || Offer::read(&offer))
                    .await
            }
            None => None,
        };
        let (queue, requests) = mpsc::channel(limits::WAITING_REQUESTS);
        let (responses, gone) = (Arc::<Outbound>::default(), Arc::default());
        let lane = Lane {
            room: admission.room.as_str().into(),
            requests,
            responses: Arc::clone(&responses),
            gone: Arc::clone(&gone),
        };
        let half = || Half {
            connection,
            gone: Arc::clone(&gone),
            edge: Arc::clone(&self.edge),
        };
        let opened = Connection {
            requests: Requests {
                queue,
                places: Arc::new(Semaphore::new(limits::WAITING_REQUEST_BYTES)),
                half: half(),
            },
            responses: Responses {
                queue: responses,
                _half: half(),
            },
        };
        let command = Command::Connect {
            connection,
            admission: Box::new(admission),
            offer: Box::new(offer),
            lane,
            local: media(connection),
        };
        self.commands.send(command).await.ok()?;
        Some(opened)
    }

    /// Does something with the world on its thread.
    pub(super) async fn call<T: Send + 'static>(
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
        party: Party,
    ) -> Result<Result<proto::Room, proto::Room>, OperationError> {
        self.call(move |world, now| world.create_new_room(&request, &party, now))
            .await?
    }

    /// See [`World::replace_room_metadata`].
    pub async fn replace_room_metadata(
        &self,
        name: String,
        expected: String,
        metadata: String,
    ) -> Result<bool, OperationError> {
        self.call(move |world, now| world.replace_room_metadata(&name, &expected, metadata, now))
            .await?
    }

    /// See [`World::list_rooms`]; all rooms where none is named.
    pub async fn list_rooms(&self, names: Vec<String>) -> Result<Vec<proto::Room>, OperationError> {
        if !names.is_empty() {
            return self.call(move |world, _| world.list_rooms(&names)).await;
        }
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let next = move |world: &mut World, _| world.some_rooms(after, ROOMS_AT_ONCE);
            let (some, last) = self.call(next).await?;
            all.extend(some);
            after = last;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// See [`World::delete_room`].
    pub async fn delete_room(&self, name: String) -> Result<(), OperationError> {
        self.call(move |world, now| world.delete_room(&name, now))
            .await?
    }

    /// See [`World::keep_room`].
    pub async fn keep_room(&self, name: String) -> Result<(), OperationError> {
        self.call(move |world, _| world.keep_room(&name)).await?
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
        self.call(move |world, now| world.update_room_metadata(&name, metadata, now))
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
        self.edge.stopping.cancel();
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
    connection: ConnectionId,
    gone: Arc<AtomicBool>,
    edge: Arc<Edge>,
}

impl Drop for Half {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        self.edge.wait(self.connection);
    }
}

/// See [`Connection`].
#[derive(Debug)]
pub struct Requests {
    queue: mpsc::Sender<Waiting>,
    /// One for each byte that may wait.
    places: Arc<Semaphore>,
    half: Half,
}

impl Requests {
    /// Hands over one binary frame, an encoded `SignalRequest`. Waits while as much waits as may; `false` when the server
    /// stopped.
    pub async fn send(&self, frame: Bytes) -> bool {
        let edge = &self.half.edge;
        let bytes = frame.len().min(limits::WAITING_REQUEST_BYTES);
        let Ok(bytes) = u32::try_from(bytes) else {
            return false;
        };
        let Ok(place) = Arc::clone(&self.places).acquire_many_owned(bytes).await else {
            return false;
        };
        let read = move || Asked::read(&frame);
        let Some(asked) = edge.reading.read(bytes as usize, read).await else {
            return false;
        };
        let waiting = Waiting {
            asked,
            _place: place,
        };
        // A connection that was closed says so by the end of its responses, after what it was told last.
        if self.queue.send(waiting).await.is_ok() {
            edge.wait(self.half.connection);
        }
        !edge.stopping.is_cancelled()
    }
}

/// See [`Connection`].
#[derive(Debug)]
pub struct Responses {
    queue: Arc<Outbound>,
    _half: Half,
}

impl Responses {
    /// The next binary frame, an encoded `SignalResponse`; `None` when the socket shall be closed.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.queue.next().await
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}
