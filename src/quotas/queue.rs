//! Waiting in turn: a place of a few goes to whoever's turn it is, party by party, and not to whoever came first; within a
//! party the first comes first. So that those who wait for short work wait for no longer than a round, nobody holds more
//! places than their share.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::{Party, Share, Tally};

/// What waits, each for somebody. Whoever had a turn comes last.
#[derive(Debug)]
pub struct InTurn<K, T> {
    waiting: HashMap<K, VecDeque<T>>,
    order: VecDeque<K>,
}

impl<K, T> Default for InTurn<K, T> {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, T> InTurn<K, T> {
    /// Puts something behind all others of the same.
    pub fn push(&mut self, of: K, item: T) {
        let waiting = self.waiting.entry(of.clone()).or_default();
        if waiting.is_empty() {
            self.order.push_back(of);
        }
        waiting.push_back(item);
    }

    /// Takes the first of whoever's turn it is, of those who may have one.
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

    /// Forgets of somebody's what is not wanted any more.
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

/// A few places, and those who wait for one. Clones are the same.
#[derive(Debug, Clone)]
pub struct FairQueue(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    tally: Tally,
    waiting: InTurn<Party, oneshot::Sender<()>>,
}

impl State {
    /// Lets in whoever may come now.
    fn admit(&mut self) {
        while self.tally.free() > 0 {
            let tally = &self.tally;
            let next = self.waiting.pop(|party| tally.check(party, 1).is_ok());
            let Some((party, admitted)) = next else {
                return;
            };
            // Fails when they have gone meanwhile.
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

/// A place, as long as it is kept.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct Place {
    queue: FairQueue,
    party: Party,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.state().leave(&self.party);
    }
}

/// Somebody who waits.
struct Waiter<'a> {
    queue: &'a FairQueue,
    party: &'a Party,
    admitted: oneshot::Receiver<()>,
    is_in: bool,
}

impl Drop for Waiter<'_> {
    /// They have given up, perhaps in the moment in which they were let in.
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
    /// So many places, of which nobody has more than their share.
    pub fn new(places: usize, share: Share) -> Self {
        Self(Arc::new(Mutex::new(State {
            tally: Tally::new(places as u64, share),
            waiting: InTurn::default(),
        })))
    }

    /// A place for somebody, when it is their turn. Whoever drops the future waits no more.
    pub async fn acquire(&self, party: &Party) -> Place {
        let admitted = {
            let mut state = self.state();
            // Where a place is free nobody waits who might have it.
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
            // The other end is kept until it is used.
            waiter.is_in = (&mut waiter.admitted).await.is_ok();
        }
        Place {
            queue: self.clone(),
            party: party.clone(),
        }
    }

    /// How many places nobody has.
    pub fn free(&self) -> usize {
        usize::try_from(self.state().tally.free()).unwrap_or(usize::MAX)
    }

    /// Whether nobody has a place or waits for one.
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
