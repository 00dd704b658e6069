//! Fair queues: when a slot becomes free it goes to the next party in round-robin order, and within a party to the one
//! that has waited longest. No party holds more slots than its share, so that short work waits for at most one round.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::{Party, Share, Tally};

/// Items queued per party. The party that was served last goes to the end.
#[derive(Debug)]
pub struct RoundRobin<K, T> {
    waiting: HashMap<K, VecDeque<T>>,
    order: VecDeque<K>,
}

impl<K, T> Default for RoundRobin<K, T> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, T> RoundRobin<K, T> {
    /// Queues an item behind the others of the same party.
    pub fn push(&mut self, of: K, item: T) {
        let waiting = self.waiting.entry(of.clone()).or_default();
        if waiting.is_empty() {
            self.order.push_back(of);
        }
        waiting.push_back(item);
    }

    /// Takes the first item of the next party in order for which `may` holds.
    pub fn pop(&mut self, may: impl Fn(&K) -> bool) -> Option<(K, T)> {
        let at = self.order.iter().position(may)?;
        let of = self.order.remove(at)?;
        let waiting = self.waiting.get_mut(&of)?;
        let item = waiting.pop_front()?;
        if waiting.is_empty() {
            self.waiting.remove(&of);
        } else {
            self.order.push_back(of.clone());
        }
        Some((of, item))
    }

    /// Removes the party's items that are no longer wanted.
    pub fn retain(&mut self, of: &K, wanted: impl FnMut(&T) -> bool) {
        let Some(waiting) = self.waiting.get_mut(of) else {
            return;
        };
        waiting.retain(wanted);
        if waiting.is_empty() {
            self.waiting.remove(of);
            self.order.retain(|other| other != of);
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A limited number of slots, and those waiting for one. Clones share the same slots.
#[derive(Debug, Clone)]
pub struct FairQueue(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    tally: Tally,
    waiting: RoundRobin<Party, oneshot::Sender<()>>,
}

impl State {
    /// Grants slots to those who may have one now.
    fn admit(&mut self) {
        while self.tally.free() > 0 {
            let tally = &self.tally;
            let next = self.waiting.pop(|party| tally.check(party, 1).is_ok());
            let Some((party, admitted)) = next else {
                return;
            };
            // Fails if the waiter has gone.
            if admitted.send(()).is_ok() {
                self.tally.hold(&party, 1);
            }
        }
    }

    fn leave(&mut self, party: &Party) {
        self.tally.release(party, 1);
        self.admit();
    }
}

/// A slot. Dropping it releases it.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct Slot {
    queue: FairQueue,
    party: Party,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.queue.state().leave(&self.party);
    }
}

/// A caller waiting for a slot.
struct Waiter<'a> {
    queue: &'a FairQueue,
    party: &'a Party,
    admitted: oneshot::Receiver<()>,
    is_in: bool,
}

impl Drop for Waiter<'_> {
    /// The waiter gave up, possibly just as it was granted a slot.
    fn drop(&mut self) {
        if self.is_in {
            return;
        }
        let mut state = self.queue.state();
        if self.admitted.try_recv().is_ok() {
            state.leave(self.party);
        } else {
            self.admitted.close();
            state.waiting.retain(self.party, |other| !other.is_closed());
        }
    }
}

impl FairQueue {
    /// A queue with this many slots, of which no party holds more than its share.
    pub fn new(slots: usize, share: Share) -> Self {
        Self(Arc::new(Mutex::new(State {
            tally: Tally::new(slots as u64, share),
            waiting: RoundRobin::default(),
        })))
    }

    /// Waits for a slot. Dropping the future gives up waiting.
    pub async fn acquire(&self, party: &Party) -> Slot {
        let admitted = {
            let mut state = self.state();
            // If a slot is free, nobody who could take it is waiting.
            if state.tally.take(party, 1).is_ok() {
                None
            } else {
                let (admit, admitted) = oneshot::channel();
                state.waiting.push(party.clone(), admit);
                Some(admitted)
            }
        };
        if let Some(admitted) = admitted {
            let mut waiter = Waiter {
                queue: self,
                party,
                admitted,
                is_in: false,
            };
            // The sender is kept until it is used.
            waiter.is_in = (&mut waiter.admitted).await.is_ok();
        }
        Slot {
            queue: self.clone(),
            party: party.clone(),
        }
    }

    /// The number of free slots.
    pub fn free(&self) -> usize {
        usize::try_from(self.state().tally.free()).unwrap_or(usize::MAX)
    }

    /// Whether no slot is taken and nobody waits.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.tally.total() == 0 && state.waiting.is_empty()
    }

    #[cfg(test)]
    pub(super) fn is_waited_for(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
