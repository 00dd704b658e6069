//! What all media threads have in common. Each has the state of its own rooms in an [`Sfu`](super::sfu::Sfu); here is what is counted,
//! numbered or told for all of them. Locks are held for a look or a count; on the way of sound only
//! the thread that reads the media port looks, for whom a datagram is that is not for its own rooms.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use livekit_protocol as proto;
use tokio::sync::mpsc;

use super::addressees::Addressees;
use super::dispatch::{Dispatcher, ForWorkers, WorkerId};
use super::outbound::Held;
use super::{Bounds, Now, Settings, session};
use vivavoce_quotas::Tally;
use vivavoce_telemetry::metrics;

/// The quotas of rooms and participants.
pub(super) struct Places {
    pub rooms: Tally,
    pub participants: Tally,
}

/// Agent workers, and what they are told.
pub(super) struct Agents {
    pub dispatcher: Dispatcher,
    pub lanes: HashMap<WorkerId, mpsc::Sender<proto::ServerMessage>>,
}

/// See the module.
pub(super) struct Shared {
    /// Bytes of all messages that are still queued.
    pub held: Held,
    pub addressees: Arc<Addressees>,
    next_key: AtomicU64,
    places: Mutex<Places>,
    agents: Mutex<Agents>,
    /// Whether workers are to be told something.
    agents_told: AtomicBool,
}

impl Shared {
    pub fn new(settings: &Settings) -> Self {
        let Bounds {
            rooms,
            participants,
            share,
        } = settings.bounds;
        let places = Places {
            rooms: Tally::new(rooms as u64, share),
            participants: Tally::new(participants as u64, share),
        };
        let server_info = session::server_info(settings);
        // Ids of workers and jobs follow from no other.
        let seed = fastrand::Rng::with_seed(settings.seed).u64(..);
        let agents = Agents {
            dispatcher: Dispatcher::new(settings.keys.clone(), server_info, share, seed),
            lanes: HashMap::new(),
        };
        Self {
            held: Held::default(),
            addressees: Arc::default(),
            next_key: AtomicU64::new(0),
            places: Mutex::new(places),
            agents: Mutex::new(agents),
            agents_told: AtomicBool::new(false),
        }
    }

    /// A number that was never used before. Later ones are greater.
    pub fn fresh_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The quotas. Two threads that check at one time may both find the last place free.
    pub fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent workers.
    pub fn agents(&self) -> AgentsGuard<'_> {
        AgentsGuard {
            agents: self.agents.lock().unwrap_or_else(PoisonError::into_inner),
            told: &self.agents_told,
        }
    }

    /// Sends workers what they are to be told, in order, whichever thread has caused it. One that does not read is cut off.
    pub fn tell_workers(&self, now: Now) {
        if !self.agents_told.load(Ordering::Acquire) {
            return;
        }
        let mut agents = self.agents();
        self.agents_told.store(false, Ordering::Release);
        loop {
            let told = agents.dispatcher.take_outputs();
            if told.is_empty() {
                return;
            }
            agents.tell(told, now);
        }
    }
}

impl Agents {
    fn tell(&mut self, told: ForWorkers, now: Now) {
        for (worker, message) in told.messages {
            let lane = self.lanes.get(&worker);
            if lane.is_some_and(|lane| lane.try_send(message).is_err()) {
                metrics::room_client_cut_off();
                self.gone(worker, now);
            }
        }
        for worker in told.closes {
            self.gone(worker, now);
        }
    }

    /// The connection of a worker is lost.
    pub fn gone(&mut self, worker: WorkerId, now: Now) {
        if self.lanes.remove(&worker).is_some() {
            self.dispatcher.gone(worker, now);
        }
    }

    /// Notices workers whose connections were dropped without a word.
    pub fn notice_gone(&mut self, now: Now) {
        let gone = self.lanes.iter().filter(|(_, lane)| lane.is_closed());
        let gone: Vec<WorkerId> = gone.map(|(worker, _)| *worker).collect();
        for worker in gone {
            self.gone(worker, now);
        }
    }
}

/// [`Agents`], locked.
pub(super) struct AgentsGuard<'a> {
    agents: MutexGuard<'a, Agents>,
    told: &'a AtomicBool,
}

impl Deref for AgentsGuard<'_> {
    type Target = Agents;

    fn deref(&self) -> &Agents {
        &self.agents
    }
}

impl DerefMut for AgentsGuard<'_> {
    fn deref_mut(&mut self) -> &mut Agents {
        &mut self.agents
    }
}

impl Drop for AgentsGuard<'_> {
    fn drop(&mut self) {
        if self.agents.dispatcher.has_outputs() {
            self.told.store(true, Ordering::Release);
        }
    }
}
