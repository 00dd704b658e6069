//! The handle of the room server, and what it shares with the media threads. Together they are the only place in this crate
//! with sockets, channels and a clock; all decisions are in `sfu`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use livekit_protocol as proto;
use str0m::net::Transmit;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::admission::{Admission, Refusal};
use super::dispatch::WorkerId;
use super::events::{self, EventReceiver};
use super::local::LocalMedia;
use super::media_thread::{Door, MediaThread};
use super::offers::{DescriptionError, Offer};
use super::operations::{OperationError, ParticipantChange, RoomMessage};
use super::outbound::Outbound;
use super::relocating::Parcel;
use super::sfu::{Counters, Sfu};
use super::shared::Shared;
use super::signalling::Asked;
use super::sockets::{OpenSockets, Sockets};
use super::tcp::{self, Listeners, Owner, Path};
use super::threads::{CurrentBell, Inbox, Threads};
use super::token::Keys;
use super::turn::{self, TurnSockets};
use super::turns::Payer;
use super::webrtc::Addresses;
use super::workers::WorkerInput;
use super::{ConnectionId, Now, RoomKey, Settings, limits};
use vivavoce_auth::Takeover;
use vivavoce_core::party::Party;

/// How often two rooms are brought together before it is given up: meanwhile one of them may have gone elsewhere.
const ATTEMPTS: usize = 8;
/// Rooms listed at a time.
const ROOMS_AT_ONCE: usize = 256;
/// A message up to this size is parsed in place.
const READ_AT_ONCE_BYTES: usize = 4 << 10;
/// Most offers are shorter.
const SHORT_BYTES: usize = 32 << 10;

/// A closure to run on a media thread; without the rooms where the two that it is about are on two threads.
type Call = Box<dyn FnOnce(Option<&mut Sfu>, Now) + Send>;
/// The parsed offer of a join request.
pub(super) type FirstOffer = Option<Result<Offer, DescriptionError>>;

/// A command to a media thread.
pub(super) enum Command {
    Connect {
        connection: ConnectionId,
        joining: Box<Joining>,
        lane: Lane,
    },
    /// On the thread of a room, and of another one.
    Call {
        room: Option<String>,
        other: Option<String>,
        call: Call,
    },
    Worker {
        worker: WorkerId,
        input: WorkerInput,
    },
    /// A room is to go to another thread, with those that it cannot be parted from.
    Relocate {
        room: String,
        to: usize,
        by: mpsc::OwnedPermit<Command>,
        done: oneshot::Sender<()>,
    },
    /// Rooms come from another thread.
    Arrive(Box<Arriving>),
    /// To the thread that reads the media port: datagrams to be sent by what only it has, connections and relays.
    Carry(Vec<Transmit>),
    /// To the same: what came over a connection belongs to somebody.
    Belongs(Path, Owner),
}

/// Rooms on their way to another thread, with the queues of their clients.
pub(super) struct Arriving {
    pub parcel: Parcel,
    pub lanes: Vec<(ConnectionId, Lane)>,
}

/// Who joins, or resumes.
pub(super) struct Joining {
    pub admission: Admission,
    pub offer: FirstOffer,
    /// For a participant in this process.
    pub local: Option<Arc<dyn LocalMedia>>,
}

/// The queues of one client.
pub(super) struct Lane {
    pub room: Arc<str>,
    /// Connections of one payer take turns together.
    pub payer: Payer,
    /// Whoever waits for their turn to join.
    pub joining: Option<Box<Joining>>,
    pub requests: mpsc::Receiver<Waiting>,
    pub responses: Arc<Outbound>,
    pub gone: Arc<AtomicBool>,
    pub bell: CurrentBell,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.responses.close();
    }
}

/// A queued request, with the permits for its bytes.
pub(super) struct Waiting {
    pub asked: Asked,
    /// Its length as it came.
    pub bytes: usize,
    _place: OwnedSemaphorePermit,
}

/// Counters of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Of the SFU.
    pub sfu: Counters,
    /// Signalling connections cut because the client did not read.
    pub cut_connections: u64,
    /// Events dropped because the queue was full.
    pub lost_events: u64,
    /// Datagrams that the kernel did not accept, or of which a thread had too many waiting.
    pub unsent_datagrams: u64,
}

/// A running room server. Clones share it; it ends when the last is dropped, or on [`Self::stop`].
#[derive(Debug, Clone)]
pub struct RoomServer {
    threads: Arc<Threads>,
    _alive: Arc<DropGuard>,
    next_connection: Arc<AtomicU64>,
    keys: Arc<Keys>,
    edge: Arc<Edge>,
}

/// What the media threads share with their handles.
#[derive(Debug, Default)]
pub(super) struct Edge {
    pub cut_connections: AtomicU64,
    pub replaced_messages: AtomicU64,
    pub lost_events: AtomicU64,
    pub unsent_datagrams: AtomicU64,
    /// Cancelled when the server stops.
    pub stopping: CancellationToken,
    /// Long messages are parsed one at a time, in order of arrival: each client waits for one at a time.
    pub reading: Reading,
}

/// See [`Edge::reading`].
#[derive(Debug)]
pub(super) struct Reading {
    /// For messages as long as most offers.
    short: Semaphore,
    /// For longer ones, so that the others do not wait for them.
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
    /// Parses a message of `bytes` bytes off the media threads and those of sockets. `None` if the parser panicked.
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

/// Where media come in.
#[derive(Debug)]
pub struct MediaPorts {
    /// Over UDP.
    pub udp: Sockets,
    /// Over TCP (RFC 6544).
    pub tcp: Listeners,
    /// By a TURN server, with its realm; [`Settings::turn`] is what clients are told of it.
    pub turn: Option<(TurnSockets, String)>,
}

fn runtime() -> io::Result<Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()
}

fn run(thread: MediaThread, inbox: Inbox, runtime: Runtime) -> io::Result<()> {
    let builder = std::thread::Builder::new().name("rooms".to_owned());
    builder.spawn(move || runtime.block_on(thread.run(inbox)))?;
    Ok(())
}

impl RoomServer {
    /// Starts the media threads on these sockets; clients are told their addresses. The receiver yields the events of all
    /// rooms.
    pub fn start(settings: Settings, sockets: Sockets) -> io::Result<(Self, EventReceiver)> {
        let media = MediaPorts {
            udp: sockets,
            tcp: Listeners::default(),
            turn: None,
        };
        Self::start_at(settings, media)
    }

    /// The same for clients of networks that let only some of it through, too.
    pub fn start_at(
        mut settings: Settings,
        media: MediaPorts,
    ) -> io::Result<(Self, EventReceiver)> {
        let MediaPorts {
            udp: sockets,
            tcp: listeners,
            turn,
        } = media;
        settings.addresses = Addresses {
            udp: sockets.advertised(),
            tcp: listeners.advertised(),
        };
        let arrivals = tcp::arrivals();
        if let Some((sockets, realm)) = turn {
            let credentials = settings
                .turn
                .as_ref()
                .map(|offer| offer.credentials.clone());
            let credentials = credentials.ok_or(io::ErrorKind::InvalidInput)?;
            let policy = turn::Policy::new(realm, credentials, settings.addresses.udp.clone());
            turn::start(sockets, Arc::new(policy), arrivals.0.clone())?;
        }
        let (threads, inboxes) = Threads::new(settings.threads);
        let (events, told) = events::queue(settings.bounds.share);
        let edge = Arc::new(Edge::default());
        let server = Self {
            threads: Arc::clone(&threads),
            _alive: Arc::new(edge.stopping.clone().drop_guard()),
            next_connection: Arc::default(),
            keys: Arc::new(settings.keys.clone()),
            edge: Arc::clone(&edge),
        };
        let shared = Arc::new(Shared::new(&settings));
        let runtimes = inboxes.iter().map(|_| runtime());
        let runtimes: Vec<Runtime> = runtimes.collect::<io::Result<_>>()?;
        // The first one reads the media port.
        let (sockets, door): (OpenSockets, _) = {
            let _entered = runtimes.first().map(Runtime::enter);
            let door = Door::open(listeners, arrivals, threads.count())?;
            (sockets.open()?.into(), door)
        };
        let mut door = Some(door);
        // Ids follow from no other.
        let mut seeds = fastrand::Rng::with_seed(!settings.seed);
        for (index, (inbox, runtime)) in inboxes.into_iter().zip(runtimes).enumerate() {
            let settings = Settings {
                seed: if index == 0 {
                    settings.seed
                } else {
                    seeds.u64(..)
                },
                ..settings.clone()
            };
            let thread = MediaThread::new(
                Arc::clone(&threads),
                Sfu::new(settings, (Arc::clone(&shared), index), Now::read()),
                (Arc::clone(&sockets), door.take()),
                (events.clone(), Arc::clone(&edge)),
            );
            run(thread, inbox, runtime)?;
        }
        Ok((server, told))
    }

    /// The keys that tokens are signed with.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Whether a client may join now; the refusal's text is for the client.
    pub async fn check(&self, admission: &Admission) -> Result<(), Refusal> {
        let admission = admission.without_luggage();
        let room = admission.room.clone();
        let check = move |sfu: &mut Sfu, _| sfu.check(&admission);
        let checked = self.call_in(&room, check).await;
        checked.unwrap_or_else(|_| Err(Refusal::new(503, "the room server is not running")))
    }

    /// Opens a signalling connection; `None` if the server has stopped.
    pub async fn connect(&self, admission: Admission) -> Option<Connection> {
        self.enter(admission, |_| None).await
    }

    /// Lets a participant in this process join, whose media is given what to wake the server by; `None` if the server has
    /// stopped.
    pub async fn connect_local(
        &self,
        admission: Admission,
        media: impl FnOnce(LocalWaker) -> Arc<dyn LocalMedia>,
    ) -> Option<Connection> {
        self.enter(admission, |waker| Some(media(waker))).await
    }

    async fn enter(
        &self,
        mut admission: Admission,
        media: impl FnOnce(LocalWaker) -> Option<Arc<dyn LocalMedia>>,
    ) -> Option<Connection> {
        let connection = self.fresh_connection();
        let thread = self.threads.of(&admission.room);
        let bell = CurrentBell::new(&self.threads.bell(thread));
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
        let room: Arc<str> = admission.room.as_str().into();
        let local = media(LocalWaker {
            connection,
            bell: bell.clone(),
        });
        let lane = Lane {
            payer: Payer::new(&admission.party, &room, local.is_some()),
            room,
            joining: None,
            requests,
            responses: Arc::clone(&responses),
            gone: Arc::clone(&gone),
            bell: bell.clone(),
        };
        let half = || Half {
            connection,
            gone: Arc::clone(&gone),
            bell: bell.clone(),
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
            joining: Box::new(Joining {
                admission,
                offer,
                local,
            }),
            lane,
        };
        self.send(thread, command).await.ok()?;
        Some(opened)
    }

    /// A number that no connection had before.
    pub(super) fn fresh_connection(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// To the thread that does what is about no room.
    pub(super) fn commands(&self) -> Option<&mpsc::Sender<Command>> {
        self.threads.commands(0)
    }

    /// The number of the thread that a room is on, or would be on.
    pub fn thread_of(&self, room: &str) -> usize {
        self.threads.of(room)
    }

    async fn send(&self, thread: usize, command: Command) -> Result<(), OperationError> {
        let commands = self.threads.commands(thread);
        let commands = commands.ok_or(OperationError::Stopped)?;
        let sent = commands.send(command).await;
        sent.map_err(|_| OperationError::Stopped)
    }

    /// Runs a closure on a thread.
    async fn call_on<T: Send + 'static>(
        &self,
        thread: usize,
        (room, other): (Option<&str>, Option<&str>),
        work: impl FnOnce(Option<&mut Sfu>, Now) -> T + Send + 'static,
    ) -> Result<T, OperationError> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |sfu, now| {
            let _ = answer.send(work(sfu, now));
        });
        let command = Command::Call {
            room: room.map(str::to_owned),
            other: other.map(str::to_owned),
            call,
        };
        self.send(thread, command).await?;
        answered.await.map_err(|_| OperationError::Stopped)
    }

    /// Runs a closure that is about no room.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Sfu, Now) -> T + Send + 'static,
    ) -> Result<T, OperationError> {
        let called = self.call_on(0, (None, None), |sfu, now| sfu.map(|sfu| work(sfu, now)));
        called.await?.ok_or(OperationError::Stopped)
    }

    /// Runs a closure on the thread of a room.
    pub(super) async fn call_in<T: Send + 'static>(
        &self,
        room: &str,
        work: impl FnOnce(&mut Sfu, Now) -> T + Send + 'static,
    ) -> Result<T, OperationError> {
        let thread = self.threads.of(room);
        let work = |sfu: Option<&mut Sfu>, now| sfu.map(|sfu| work(sfu, now));
        let called = self.call_on(thread, (Some(room), None), work).await;
        called?.ok_or(OperationError::Stopped)
    }

    /// Runs a closure on the thread of two rooms, which come together for it.
    pub(super) async fn call_in_both<T: Send + 'static>(
        &self,
        (room, other): (&str, &str),
        work: impl FnOnce(&mut Sfu, Now) -> T + Clone + Send + 'static,
    ) -> Result<T, OperationError> {
        for _ in 0..ATTEMPTS {
            let thread = self.threads.of(room);
            let work = work.clone();
            let work = |sfu: Option<&mut Sfu>, now| sfu.map(|sfu| work(sfu, now));
            let called = self.call_on(thread, (Some(room), Some(other)), work);
            if let Some(done) = called.await? {
                return Ok(done);
            }
            self.bring_together(room, other).await?;
        }
        Err(OperationError::FailedPrecondition(
            "destination_room: is on its way to another thread; try again",
        ))
    }

    /// Lets the smaller of two rooms go to the thread of the other one.
    async fn bring_together(&self, room: &str, other: &str) -> Result<(), OperationError> {
        let weigh = async |name: &str| {
            let named = name.to_owned();
            let weigh = move |sfu: &mut Sfu, _| sfu.weight(&named);
            self.call_in(name, weigh).await
        };
        let own = weigh(room).await?.ok_or(OperationError::NoRoom)?;
        // One that does not exist comes to be where it is asked for.
        let Some(others) = weigh(other).await? else {
            return Ok(());
        };
        let (smaller, greater) = if own < others {
            (room, other)
        } else {
            (other, room)
        };
        let to = self.threads.of(greater);
        let commands = self.threads.commands(to);
        let commands = commands.ok_or(OperationError::Stopped)?.clone();
        let by = commands.reserve_owned().await;
        let (done, relocated) = oneshot::channel();
        let command = Command::Relocate {
            room: smaller.to_owned(),
            to,
            by: by.map_err(|_| OperationError::Stopped)?,
            done,
        };
        self.send(self.threads.of(smaller), command).await?;
        relocated.await.map_err(|_| OperationError::Stopped)
    }

    /// Runs a closure on each thread.
    async fn call_everywhere<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Sfu) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, OperationError> {
        let mut all = Vec::new();
        for thread in 0..self.threads.count() {
            let work = work.clone();
            let called = self.call_on(thread, (None, None), move |sfu, _| sfu.map(work));
            all.extend(called.await?);
        }
        Ok(all)
    }

    /// See [`Sfu::create_room`].
    pub async fn create_room(
        &self,
        request: proto::CreateRoomRequest,
    ) -> Result<proto::Room, OperationError> {
        let room = request.name.clone();
        self.call_in(&room, move |sfu, now| sfu.create_room(&request, now))
            .await?
    }

    /// See [`Sfu::create_new_room`].
    pub async fn create_new_room(
        &self,
        request: proto::CreateRoomRequest,
        party: Party,
    ) -> Result<Result<proto::Room, proto::Room>, OperationError> {
        let room = request.name.clone();
        let create = move |sfu: &mut Sfu, now| sfu.create_new_room(&request, &party, now);
        self.call_in(&room, create).await?
    }

    /// See [`Sfu::replace_room_metadata`].
    pub async fn replace_room_metadata(
        &self,
        name: String,
        expected: String,
        metadata: String,
    ) -> Result<bool, OperationError> {
        self.call_in(&name.clone(), move |sfu, now| {
            sfu.replace_room_metadata(&name, &expected, metadata, now)
        })
        .await?
    }

    /// Rooms, all or those named, oldest first.
    pub async fn list_rooms(&self, names: Vec<String>) -> Result<Vec<proto::Room>, OperationError> {
        let mut all = Vec::new();
        if names.is_empty() {
            for thread in 0..self.threads.count() {
                all.extend(self.rooms_on(thread).await?);
            }
        } else {
            let one = names.first().filter(|_| names.len() == 1).cloned();
            let list = move |sfu: &mut Sfu| sfu.rooms_named(&names);
            let listed = match one {
                Some(name) => vec![self.call_in(&name, move |sfu, _| list(sfu)).await?],
                None => self.call_everywhere(list).await?,
            };
            all.extend(listed.into_iter().flatten());
        }
        all.sort_by_key(|(key, _)| *key);
        // One that has gone to another thread meanwhile may be there twice.
        all.dedup_by_key(|(key, _)| *key);
        Ok(all.into_iter().map(|(_, room)| room).collect())
    }

    async fn rooms_on(&self, thread: usize) -> Result<Vec<(RoomKey, proto::Room)>, OperationError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let next =
                move |sfu: Option<&mut Sfu>, _| sfu.map(|sfu| sfu.some_rooms(after, ROOMS_AT_ONCE));
            let some = self.call_on(thread, (None, None), next).await?;
            let (some, last) = some.ok_or(OperationError::Stopped)?;
            all.extend(some);
            after = last;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// The names of the rooms in which somebody is.
    pub async fn in_use(&self) -> Vec<String> {
        let all = self.list_rooms(Vec::new()).await.unwrap_or_default();
        let used = all.into_iter().filter(|room| room.num_participants > 0);
        used.map(|room| room.name).collect()
    }

    /// See [`Sfu::delete_room`].
    pub async fn delete_room(&self, name: String) -> Result<(), OperationError> {
        self.call_in(&name.clone(), move |sfu, now| sfu.delete_room(&name, now))
            .await?
    }

    /// See [`Sfu::keep_room`].
    pub async fn keep_room(&self, name: String) -> Result<(), OperationError> {
        self.call_in(&name.clone(), move |sfu, now| sfu.keep_room(&name, now))
            .await?
    }

    /// Whether an inbound call may take the room of this name. Another owner may have it by the time the call joins, which
    /// is then refused.
    pub async fn may_take(&self, room: String, call: Takeover) -> Result<bool, OperationError> {
        self.call_in(&room.clone(), move |sfu, _| sfu.may_take(&room, &call))
            .await
    }

    /// See [`Sfu::show_recording`].
    pub async fn show_recording(&self, name: String, recorded: bool) -> Result<(), OperationError> {
        self.call_in(&name.clone(), move |sfu, _| {
            sfu.show_recording(&name, recorded)
        })
        .await?
    }

    /// See [`Sfu::update_room_metadata`].
    pub async fn update_room_metadata(
        &self,
        name: String,
        metadata: String,
    ) -> Result<proto::Room, OperationError> {
        self.call_in(&name.clone(), move |sfu, now| {
            sfu.update_room_metadata(&name, metadata, now)
        })
        .await?
    }

    /// See [`Sfu::list_participants`].
    pub async fn list_participants(
        &self,
        room: String,
    ) -> Result<Vec<proto::ParticipantInfo>, OperationError> {
        self.call_in(&room.clone(), move |sfu, _| sfu.list_participants(&room))
            .await?
    }

    /// See [`Sfu::get_participant`].
    pub async fn get_participant(
        &self,
        room: String,
        identity: String,
    ) -> Result<proto::ParticipantInfo, OperationError> {
        self.call_in(&room.clone(), move |sfu, _| {
            sfu.get_participant(&room, &identity)
        })
        .await?
    }

    /// See [`Sfu::remove_participant`].
    pub async fn remove_participant(
        &self,
        room: String,
        identity: String,
    ) -> Result<(), OperationError> {
        self.call_in(&room.clone(), move |sfu, now| {
            sfu.remove_participant(&room, &identity, now)
        })
        .await?
    }

    /// See [`Sfu::move_participant`].
    pub async fn move_participant(
        &self,
        room: String,
        identity: String,
        destination: String,
    ) -> Result<(), OperationError> {
        let rooms = (room.clone(), destination.clone());
        let work =
            move |sfu: &mut Sfu, now| sfu.move_participant(&room, &identity, &destination, now);
        self.call_in_both((&rooms.0, &rooms.1), work).await?
    }

    /// See [`Sfu::forward_participant`].
    pub async fn forward_participant(
        &self,
        room: String,
        identity: String,
        destination: String,
    ) -> Result<(), OperationError> {
        let rooms = (room.clone(), destination.clone());
        let work =
            move |sfu: &mut Sfu, now| sfu.forward_participant(&room, &identity, &destination, now);
        self.call_in_both((&rooms.0, &rooms.1), work).await?
    }

    /// See [`Sfu::renew_participant`].
    pub async fn renew_participant(
        &self,
        room: String,
        identity: String,
    ) -> Result<(), OperationError> {
        self.call_in(&room.clone(), move |sfu, _| {
            sfu.renew_participant(&room, &identity)
        })
        .await?
    }

    /// See [`Sfu::mute_track`].
    pub async fn mute_track(
        &self,
        room: String,
        identity: String,
        track: String,
        muted: bool,
    ) -> Result<proto::TrackInfo, OperationError> {
        self.call_in(&room.clone(), move |sfu, now| {
            sfu.mute_track(&room, &identity, &track, muted, now)
        })
        .await?
    }

    /// See [`Sfu::update_participant`].
    pub async fn update_participant(
        &self,
        room: String,
        identity: String,
        change: ParticipantChange,
    ) -> Result<proto::ParticipantInfo, OperationError> {
        self.call_in(&room.clone(), move |sfu, now| {
            sfu.update_participant(&room, &identity, change, now)
        })
        .await?
    }

    /// See [`Sfu::update_subscriptions`].
    pub async fn update_subscriptions(
        &self,
        room: String,
        identity: String,
        subscription: proto::UpdateSubscription,
    ) -> Result<(), OperationError> {
        self.call_in(&room.clone(), move |sfu, now| {
            sfu.update_subscriptions(&room, &identity, &subscription, now)
        })
        .await?
    }

    /// See [`Sfu::send_data`].
    pub async fn send_data(
        &self,
        room: String,
        message: RoomMessage,
    ) -> Result<(), OperationError> {
        self.call_in(&room.clone(), move |sfu, now| {
            sfu.send_data(&room, message, now)
        })
        .await?
    }

    /// Tells all participants that the server stops, and ends all rooms. When it returns, all events were sent, and every
    /// later operation fails with [`OperationError::Stopped`].
    pub async fn stop(&self) {
        self.edge.stopping.cancel();
        for thread in 0..self.threads.count() {
            if let Some(commands) = self.threads.commands(thread) {
                commands.closed().await;
            }
        }
    }

    /// The counters.
    pub async fn counters(&self) -> Result<ServerCounters, OperationError> {
        let counters = self.call_everywhere(|sfu| sfu.counters()).await?;
        Ok(ServerCounters {
            sfu: counters
                .into_iter()
                .fold(Counters::default(), Counters::and),
            cut_connections: self.edge.cut_connections.load(Ordering::Relaxed),
            lost_events: self.edge.lost_events.load(Ordering::Relaxed),
            unsent_datagrams: self.edge.unsent_datagrams.load(Ordering::Relaxed),
        })
    }
}

/// The signalling connection of one client, in two halves for the tasks that read and write its socket. If either is
/// dropped, the connection counts as lost.
#[derive(Debug)]
pub struct Connection {
    /// From the client.
    pub requests: Requests,
    /// To the client.
    pub responses: Responses,
}

/// Reports the loss of the connection when dropped.
#[derive(Debug)]
struct Half {
    connection: ConnectionId,
    gone: Arc<AtomicBool>,
    bell: CurrentBell,
    edge: Arc<Edge>,
}

impl Drop for Half {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        self.bell.ask(self.connection);
    }
}

/// Wakes the server for a participant in this process.
#[derive(Debug, Clone)]
pub struct LocalWaker {
    connection: ConnectionId,
    bell: CurrentBell,
}

impl LocalWaker {
    /// The participant has frames or messages to send. To be called once until they were taken.
    pub fn wake(&self) {
        self.bell.wake(self.connection);
    }
}

/// See [`Connection`].
#[derive(Debug)]
pub struct Requests {
    queue: mpsc::Sender<Waiting>,
    /// A permit per byte that may wait.
    places: Arc<Semaphore>,
    half: Half,
}

impl Requests {
    /// Queues a binary frame, an encoded `SignalRequest`. Waits while the queue is full; `false` if the server has stopped.
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
            bytes: bytes as usize,
            _place: place,
        };
        // A closed connection shows by the end of its responses, after the last of them.
        if self.queue.send(waiting).await.is_ok() {
            self.half.bell.ask(self.half.connection);
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
    /// The next binary frame, an encoded `SignalResponse`; `None` if the socket should be closed.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.queue.next().await
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}
