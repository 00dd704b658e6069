//! The media threads, and on which of them each room is. Whoever wants something of a room asks for its *seat*: the thread that it
//! is on, or the one with the fewest rooms where it does not exist yet. A seat that was given to a room that did not come to be is
//! taken back by its thread.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::{Notify, mpsc};

use super::ConnectionId;
use super::addressees::Source;
use super::server::Command;

/// Joins and API calls that wait for a thread; further callers wait.
const MOST_COMMANDS: usize = 1_024;
/// Bundles of datagrams that wait for a thread; further ones are lost, as they may be on the way.
const MOST_BUNDLES: usize = 256;

/// How a thread is told that there is something for it.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// Connections that have requests, or are gone; each at most once.
    pub waiting: Mutex<BTreeSet<ConnectionId>>,
    pub asked: Notify,
    /// Local participants that have something to send; each at most once.
    pub local: Mutex<BTreeSet<ConnectionId>>,
    pub wakes: Notify,
}

/// The bell of the thread that a connection is on.
#[derive(Debug, Clone)]
pub(super) struct CurrentBell(Arc<RwLock<Arc<Bell>>>);

impl CurrentBell {
    pub fn new(bell: &Arc<Bell>) -> Self {
        Self(Arc::new(RwLock::new(Arc::clone(bell))))
    }

    /// The connection is on another thread from now on, which is to look what was asked before.
    pub fn become_that_of(&self, bell: &Arc<Bell>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(bell);
    }

    /// Marks a connection as having requests, or gone.
    pub fn ask(&self, connection: ConnectionId) {
        let bell = self.0.read().unwrap_or_else(PoisonError::into_inner);
        insert(&bell.waiting, connection);
        bell.asked.notify_one();
    }

    /// Marks a local participant as having something to send.
    pub fn wake(&self, connection: ConnectionId) {
        let bell = self.0.read().unwrap_or_else(PoisonError::into_inner);
        insert(&bell.local, connection);
        bell.wakes.notify_one();
    }
}

fn insert(connections: &Mutex<BTreeSet<ConnectionId>>, connection: ConnectionId) {
    let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
    connections.insert(connection);
}

/// Datagrams that one thread has read for another, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    bytes: Vec<u8>,
    /// From where and to where each was sent, and how long it is.
    each: Vec<(Source, SocketAddr, usize)>,
}

impl Bundle {
    pub fn push(&mut self, (source, destination): (Source, SocketAddr), datagram: &[u8]) {
        self.bytes.extend_from_slice(datagram);
        self.each.push((source, destination, datagram.len()));
    }

    pub const fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Each with its source and its destination.
    pub fn iter(&self) -> impl Iterator<Item = (Source, SocketAddr, &[u8])> {
        let mut rest = &self.bytes[..];
        self.each.iter().map(move |(source, destination, length)| {
            let (datagram, after) = rest.split_at_checked(*length).unwrap_or_default();
            rest = after;
            (*source, *destination, datagram)
        })
    }
}

/// What others reach a thread by.
#[derive(Debug)]
struct Thread {
    commands: mpsc::Sender<Command>,
    bundles: mpsc::Sender<Bundle>,
    bell: Arc<Bell>,
}

/// A thread's own ends.
pub(super) struct Inbox {
    pub commands: mpsc::Receiver<Command>,
    pub bundles: mpsc::Receiver<Bundle>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Threads {
    each: Vec<Thread>,
    seats: Mutex<Seats>,
}

#[derive(Debug, Default)]
struct Seats {
    rooms: HashMap<String, usize>,
    /// How many each thread has.
    taken: Vec<usize>,
}

impl Seats {
    fn give(&mut self, room: &str, thread: usize) {
        self.take_back(room);
        self.rooms.insert(room.to_owned(), thread);
        if let Some(taken) = self.taken.get_mut(thread) {
            *taken += 1;
        }
    }

    fn take_back(&mut self, room: &str) {
        if let Some(thread) = self.rooms.remove(room)
            && let Some(taken) = self.taken.get_mut(thread)
        {
            *taken -= 1;
        }
    }

    fn emptiest(&self) -> usize {
        let threads = self.taken.iter().enumerate();
        threads
            .min_by_key(|(_, taken)| **taken)
            .map_or(0, |(thread, _)| thread)
    }
}

impl Threads {
    /// This many, at least one, with the ends of each.
    pub fn new(count: usize) -> (Arc<Self>, Vec<Inbox>) {
        let count = count.max(1);
        let ends = (0..count).map(|_| {
            let (commands, inbox) = mpsc::channel(MOST_COMMANDS);
            let (bundles, datagrams) = mpsc::channel(MOST_BUNDLES);
            let thread = Thread {
                commands,
                bundles,
                bell: Arc::default(),
            };
            let inbox = Inbox {
                commands: inbox,
                bundles: datagrams,
            };
            (thread, inbox)
        });
        let (each, inboxes) = ends.unzip();
        let seats = Seats {
            rooms: HashMap::new(),
            taken: vec![0; count],
        };
        let threads = Self {
            each,
            seats: Mutex::new(seats),
        };
        (Arc::new(threads), inboxes)
    }

    pub const fn count(&self) -> usize {
        self.each.len()
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread of a room, or the one that it would be on.
    pub fn of(&self, room: &str) -> usize {
        let seats = self.seats();
        let seat = seats.rooms.get(room).copied();
        seat.unwrap_or_else(|| seats.emptiest())
    }

    /// The thread of a room; if it has none, this one from now on.
    pub fn seat(&self, room: &str, here: usize) -> usize {
        let mut seats = self.seats();
        if let Some(thread) = seats.rooms.get(room) {
            return *thread;
        }
        seats.give(room, here);
        here
    }

    /// Rooms go to another thread. Nobody asks for them there before they were sent.
    pub fn relocate(&self, rooms: &[String], to: usize, send: impl FnOnce()) {
        let mut seats = self.seats();
        for room in rooms {
            seats.give(room, to);
        }
        send();
    }

    /// A room has ended, or did not come to be, on this thread.
    pub fn take_back(&self, room: &str, here: usize) {
        let mut seats = self.seats();
        if seats.rooms.get(room) == Some(&here) {
            seats.take_back(room);
        }
    }

    /// What commands for a thread are sent to.
    pub fn commands(&self, thread: usize) -> Option<&mpsc::Sender<Command>> {
        self.each.get(thread).map(|thread| &thread.commands)
    }

    /// Passes datagrams to a thread; `false` if they are lost.
    pub fn pass(&self, thread: usize, bundle: Bundle) -> bool {
        let thread = self.each.get(thread);
        thread.is_some_and(|thread| thread.bundles.try_send(bundle).is_ok())
    }

    pub fn bell(&self, thread: usize) -> Arc<Bell> {
        let thread = self.each.get(thread);
        thread
            .map(|thread| Arc::clone(&thread.bell))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use str0m::net::Protocol;

    use super::*;

    #[test]
    fn rooms_are_spread_over_threads_and_keep_their_seats() {
        let (threads, _inboxes) = Threads::new(3);
        let seat = |room: &str| threads.seat(room, threads.of(room));
        let mut seats: Vec<usize> = ["a", "b", "c"].map(seat).to_vec();
        assert_eq!(["a", "b", "c"].map(seat).to_vec(), seats);
        seats.sort_unstable();
        assert_eq!(seats, [0, 1, 2]);
        // The one that has a room less gets the next.
        let of_b = seat("b");
        threads.take_back("b", of_b + 1);
        assert_eq!(threads.of("b"), of_b);
        threads.take_back("b", of_b);
        assert_eq!(seat("d"), of_b);
        threads.relocate(&["a".to_owned()], of_b, || {});
        assert_eq!(threads.seat("a", 0), of_b);
        // Asking alone takes no seat.
        assert_ne!(threads.of("e"), of_b);
        assert_eq!(threads.of("e"), threads.of("f"));
    }

    #[test]
    fn datagrams_come_out_of_a_bundle_as_they_went_in() {
        let mut bundle = Bundle::default();
        assert!(bundle.is_empty());
        let address = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let all: [&[u8]; 3] = [b"one", b"", b"three"];
        for (port, datagram) in (1..).zip(all) {
            bundle.push(((Protocol::Udp, address(port)), address(9)), datagram);
        }
        let read: Vec<_> = bundle.iter().collect();
        assert_eq!(read.len(), 3);
        for (port, (read, datagram)) in (1..).zip(read.into_iter().zip(all)) {
            assert_eq!(read, ((Protocol::Udp, address(port)), address(9), datagram));
        }
    }
}
