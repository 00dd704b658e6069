//! Output that clients have not read, over all sockets of a server: how much it is, and whose. Beside it each socket
//! has a small allowance of its own. When too much waits, the socket furthest behind is closed, among the sockets of
//! the party that holds most or that exceeds its share: clients that read lose nothing to those that do not.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::writer::Shared;
use vivavoce_quotas::{Party, Share, Tally};

/// What may wait for a socket without being counted: more than ever waits for a client that reads.
pub(super) const OWN_BYTES: usize = 64 << 10;

/// What may wait for all sockets together, beyond that.
pub const MAX_WAITING_BYTES: usize = 128 << 20;

/// The unread output of a server's sockets.
#[derive(Debug)]
pub struct Backlog {
    next: AtomicU64,
    counted: Mutex<Counted<Weak<Shared>>>,
}

impl Backlog {
    /// A backlog of which no party may use more than its share.
    pub fn new(share: Share) -> Arc<Self> {
        Arc::new(Self {
            next: AtomicU64::default(),
            counted: Mutex::new(Counted::new(MAX_WAITING_BYTES, share)),
        })
    }
}

/// The entry of one socket.
#[derive(Debug)]
pub(super) struct BacklogEntry {
    backlog: Arc<Backlog>,
    party: Party,
    number: u64,
    socket: Weak<Shared>,
}

impl BacklogEntry {
    pub(super) fn of(backlog: &Arc<Backlog>, party: Party, socket: Weak<Shared>) -> Self {
        Self {
            number: backlog.next.fetch_add(1, Ordering::Relaxed),
            backlog: Arc::clone(backlog),
            party,
            socket,
        }
    }

    /// Counts `bytes` more or less; returns the sockets to close for it. The caller must not hold an outbox's lock.
    pub(super) fn change(&self, bytes: isize) -> Vec<Arc<Shared>> {
        let counted = &self.backlog.counted;
        let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
        let amount = bytes.unsigned_abs();
        if bytes < 0 {
            counted.less(self.number, amount);
            return Vec::new();
        }
        let furthest = counted.more(self.number, &self.party, amount, &self.socket);
        drop(counted);
        furthest.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for BacklogEntry {
    fn drop(&mut self) {
        let counted = &self.backlog.counted;
        let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.less(self.number, usize::MAX);
    }
}

/// The sockets that are behind, and how far.
#[derive(Debug)]
struct Counted<C> {
    most: u64,
    tally: Tally,
    behind: HashMap<u64, Behind<C>>,
}

#[derive(Debug)]
struct Behind<C> {
    party: Party,
    bytes: u64,
    /// What is needed to close it.
    socket: C,
}

impl<C: Clone> Counted<C> {
    fn new(most: usize, share: Share) -> Self {
        let most = most as u64;
        Self {
            most,
            tally: Tally::new(most, share),
            behind: HashMap::new(),
        }
    }

    /// Counts more for a socket; returns the sockets to close, which may include itself. They are no longer counted.
    fn more(&mut self, number: u64, party: &Party, bytes: usize, socket: &C) -> Vec<C> {
        let behind = self.behind.entry(number).or_insert_with(|| Behind {
            party: party.clone(),
            bytes: 0,
            socket: socket.clone(),
        });
        behind.bytes += bytes as u64;
        self.tally.hold(party, bytes as u64);
        let mut closed = Vec::new();
        while let Some(furthest) = self.too_far(party) {
            closed.extend(self.behind.get(&furthest).map(|one| one.socket.clone()));
            self.less(furthest, usize::MAX);
        }
        closed
    }

    /// Counts less for a socket, down to nothing.
    fn less(&mut self, number: u64, bytes: usize) {
        let Entry::Occupied(mut behind) = self.behind.entry(number) else {
            return;
        };
        let less = behind.get().bytes.min(bytes as u64);
        self.tally.release(&behind.get().party, less);
        behind.get_mut().bytes -= less;
        if behind.get().bytes == 0 {
            behind.remove();
        }
    }

    /// The socket furthest behind, if too much waits after `party` was counted more.
    fn too_far(&self, party: &Party) -> Option<u64> {
        let furthest = |of: &dyn Fn(&Party) -> bool| {
            let theirs = self.behind.iter().filter(|(_, one)| of(&one.party));
            let most = theirs.max_by_key(|(_, one)| (self.tally.of(&one.party), one.bytes));
            most.map(|(number, _)| *number)
        };
        if self.tally.total() > self.most {
            let (largest, _) = self.tally.largest()?;
            furthest(&|other| other == largest)
        } else if self.tally.check(party, 0).is_ok() {
            None
        } else if let Party::Address(_) = party {
            // All addresses together have one share, too.
            furthest(&|other| matches!(other, Party::Address(_)))
        } else {
            furthest(&|other| other == party)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(id: &str) -> Party {
        Party::Tenant(vivavoce_core::party::TenantId::new(id).unwrap())
    }

    fn address(last: u8) -> Party {
        Party::Address([192, 0, 2, last].into())
    }

    /// Sockets are identified by their numbers.
    fn counted(share: Share) -> Counted<u64> {
        Counted::new(1_000, share)
    }

    fn more(counted: &mut Counted<u64>, number: u64, party: &Party, bytes: usize) -> Vec<u64> {
        counted.more(number, party, bytes, &number)
    }

    #[test]
    fn a_tenant_whose_clients_do_not_read_loses_its_own_the_furthest_behind_first() {
        let mut counted = counted(Share::default());
        assert!(more(&mut counted, 100, &tenant("innocent"), 200).is_empty());
        let greedy = tenant("greedy");
        for number in 0..5 {
            assert!(more(&mut counted, number, &greedy, 100 + number as usize).is_empty());
        }
        // Three quarters of what they hold and what is free.
        assert_eq!(more(&mut counted, 5, &greedy, 103), [4]);
        assert_eq!(more(&mut counted, 6, &greedy, 500), [6]);
        assert!(more(&mut counted, 100, &tenant("innocent"), 100).is_empty());
        for number in 0..200 {
            counted.less(number, usize::MAX);
        }
        assert!(counted.tally.is_empty() && counted.behind.is_empty());
    }

    #[test]
    fn where_all_is_held_whoever_holds_most_gives_way() {
        let mut counted = counted(Share::NONE);
        let operator = Party::Operator;
        assert!(more(&mut counted, 1, &operator, 300).is_empty());
        assert!(more(&mut counted, 2, &operator, 400).is_empty());
        assert!(more(&mut counted, 3, &tenant("a"), 300).is_empty());
        assert_eq!(more(&mut counted, 4, &tenant("b"), 1), [2]);
        assert_eq!(counted.tally.total(), 601);
        // A closed socket that still reads the rest is not counted.
        counted.less(2, 400);
        assert_eq!(counted.tally.total(), 601);
    }

    #[test]
    fn strangers_have_one_share_and_the_address_that_holds_most_of_it_gives_way() {
        let mut counted = counted(Share::default().with_addresses_as_one());
        assert!(more(&mut counted, 1, &address(1), 300).is_empty());
        assert!(more(&mut counted, 2, &address(2), 200).is_empty());
        assert!(more(&mut counted, 3, &address(3), 180).is_empty());
        assert_eq!(more(&mut counted, 4, &address(4), 100), [1]);
        assert!(more(&mut counted, 9, &tenant("a"), 200).is_empty());
    }
}
