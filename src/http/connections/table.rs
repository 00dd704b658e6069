//! Decides which connections are evicted when there is no room: a plain table of unauthenticated connections, and the
//! number of each tenant's. Of unauthenticated connections, the oldest of the address that holds most are evicted, so
//! that a flood makes room for newcomers out of its own connections; authenticated ones are never evicted, but a tenant
//! that has used up its share gets no more. No clock, no I/O.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use vivavoce_quotas::{Party, Share, Tally, Why};

/// Addresses examined for a connection that can be evicted, those with most connections first.
const MAX_CANDIDATES: usize = 64;

/// The limits of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Connections in total, at which others are evicted to make room.
    pub(super) total: usize,
    /// Additional connections, reserved for unauthenticated newcomers.
    pub(super) newcomers: usize,
    /// The share of both that one tenant may use.
    pub(super) share: Share,
    /// Of the total, unauthenticated connections.
    pub(super) unauthenticated: usize,
    /// Unanswered bytes of unauthenticated connections.
    pub(super) bytes: usize,
    /// Of these, from one address.
    pub(super) bytes_per_address: usize,
    /// Whether a connection may also be evicted while it is served: only where legitimate clients can authenticate.
    pub(super) cuts_served: bool,
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client has something to send: a handshake, a head, a body.
    Waiting,
    /// The client waits for a response, or reads it.
    Serving,
}

/// Identifies an entry; a new one for each phase, in increasing order.
pub(super) type Ticket = u64;

/// A connection.
#[derive(Debug)]
struct Entry<C> {
    /// What the adapter needs to close it.
    cut: C,
    bytes: usize,
}

/// The connections of an address, ordered by how long they have been in their phase.
#[derive(Debug)]
struct Held<C> {
    waiting: BTreeMap<Ticket, Entry<C>>,
    serving: BTreeMap<Ticket, Entry<C>>,
    bytes: usize,
}

impl<C> Held<C> {
    const fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            serving: BTreeMap::new(),
            bytes: 0,
        }
    }

    fn count(&self) -> usize {
        self.waiting.len() + self.serving.len()
    }

    /// The oldest connection; `None` if there is none.
    fn oldest(&self) -> Ticket {
        let first = |entries: &BTreeMap<Ticket, Entry<C>>| entries.keys().next().copied();
        let oldest = [first(&self.waiting), first(&self.serving)];
        oldest.into_iter().flatten().min().unwrap_or_default()
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Entry<C>> {
        let entry = self.waiting.remove(&ticket);
        entry.or_else(|| self.serving.remove(&ticket))
    }

    fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Entry<C>> {
        let entry = self.waiting.get_mut(&ticket);
        entry.or_else(|| self.serving.get_mut(&ticket))
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Table<C> {
    bounds: Bounds,
    next: Ticket,
    /// Authenticated connections per party.
    known: Tally,
    count: usize,
    bytes: usize,
    addresses: HashMap<IpAddr, Held<C>>,
    /// Of addresses with the same number, the one with the oldest connection comes last.
    by_count: BTreeSet<(usize, Reverse<Ticket>, IpAddr)>,
    by_bytes: BTreeSet<(usize, IpAddr)>,
}

impl<C> Table<C> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            next: 0,
            known: Tally::new((bounds.total + bounds.newcomers) as u64, bounds.share),
            count: 0,
            bytes: 0,
            addresses: HashMap::new(),
            by_count: BTreeSet::new(),
            by_bytes: BTreeSet::new(),
        }
    }

    /// Adds an authenticated connection. The operator is never refused.
    pub(super) fn take(&mut self, party: &Party) -> Result<(), Why> {
        if *party == Party::Operator {
            self.known.hold(party, 1);
            return Ok(());
        }
        if self.known.free() <= self.bounds.newcomers as u64 {
            return Err(Why::Full);
        }
        self.known.take(party, 1)
    }

    /// An authenticated connection has ended.
    pub(super) fn release(&mut self, party: &Party) {
        self.known.release(party, 1);
    }

    #[cfg(test)]
    pub(super) fn known_of<const N: usize>(&self, parties: &[Party; N]) -> [u64; N] {
        parties.each_ref().map(|party| self.known.of(party))
    }

    /// Adds an unauthenticated connection, which waits for its client; also returns the one to evict for it.
    pub(super) fn admit(&mut self, address: IpAddr, cut: C) -> (Ticket, Option<C>) {
        let known = usize::try_from(self.known.total()).unwrap_or(usize::MAX);
        let room = self.bounds.total.saturating_sub(known);
        let room = room.min(self.bounds.unauthenticated).max(1);
        let victim = (self.count >= room).then(|| self.oldest()).flatten();
        let victim = victim.and_then(|(address, ticket)| self.remove(address, ticket));
        let ticket = self.ticket();
        self.change(address, |held| {
            held.waiting.insert(ticket, Entry { cut, bytes: 0 });
        });
        (ticket, victim.map(|entry| entry.cut))
    }

    /// The connection enters another phase; `None` if it has been evicted. A response settles what was sent for it.
    pub(super) fn enter(
        &mut self,
        address: IpAddr,
        ticket: Ticket,
        phase: Phase,
        answered: bool,
    ) -> Option<Ticket> {
        let mut entry = self.remove(address, ticket)?;
        if answered {
            entry.bytes = 0;
        }
        let ticket = self.ticket();
        self.change(address, |held| {
            held.bytes += entry.bytes;
            match phase {
                Phase::Waiting => held.waiting.insert(ticket, entry),
                Phase::Serving => held.serving.insert(ticket, entry),
            };
        });
        Some(ticket)
    }

    /// The connection has sent more bytes; returns the connections to evict, which may include itself.
    pub(super) fn sent(&mut self, address: IpAddr, ticket: Ticket, bytes: usize) -> Vec<C> {
        let mut known = false;
        self.change(address, |held| {
            if let Some(entry) = held.get_mut(ticket) {
                entry.bytes += bytes;
                held.bytes += bytes;
                known = true;
            }
        });
        let mut cut = Vec::new();
        let of = |table: &Self| table.addresses.get(&address).map_or(0, |held| held.bytes);
        while known && of(self) > self.bounds.bytes_per_address {
            let Some(largest) = self.remove_largest(address) else {
                break;
            };
            cut.push(largest);
        }
        while self.bytes > self.bounds.bytes {
            let Some((_, most)) = self.by_bytes.last().copied() else {
                break;
            };
            let Some(largest) = self.remove_largest(most) else {
                break;
            };
            cut.push(largest);
        }
        cut
    }

    /// Removes an unauthenticated connection; returns whether it was still in the table.
    pub(super) fn leave(&mut self, address: IpAddr, ticket: Ticket) -> bool {
        self.remove(address, ticket).is_some()
    }

    const fn ticket(&mut self) -> Ticket {
        self.next += 1;
        self.next
    }

    /// Selects the connection to evict: of the address with most connections, the one that has waited longest for its
    /// client.
    fn oldest(&self) -> Option<(IpAddr, Ticket)> {
        let addresses = self.by_count.iter().rev().take(MAX_CANDIDATES);
        let mut candidates = addresses.filter_map(|(_, _, address)| {
            let held = self.addresses.get(address)?;
            let waiting = held.waiting.first_key_value();
            let served = || held.serving.first_key_value();
            let oldest = waiting.or_else(|| self.bounds.cuts_served.then(served).flatten());
            oldest.map(|(ticket, _)| (*address, *ticket))
        });
        candidates.next()
    }

    fn remove_largest(&mut self, address: IpAddr) -> Option<C> {
        let held = self.addresses.get(&address)?;
        let all = held.waiting.iter().chain(&held.serving);
        let (ticket, _) = all.max_by_key(|(_, entry)| entry.bytes)?;
        let ticket = *ticket;
        self.remove(address, ticket).map(|entry| entry.cut)
    }

    fn remove(&mut self, address: IpAddr, ticket: Ticket) -> Option<Entry<C>> {
        let mut removed = None;
        self.change(address, |held| {
            removed = held.remove(ticket);
            held.bytes -= removed.as_ref().map_or(0, |entry| entry.bytes);
        });
        removed
    }

    /// Changes the state of an address and the indexes derived from it.
    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut Held<C>)) {
        let held = self.addresses.entry(address).or_insert_with(Held::new);
        let (count, bytes, oldest) = (held.count(), held.bytes, held.oldest());
        change(held);
        let (new_count, new_bytes, new_oldest) = (held.count(), held.bytes, held.oldest());
        if new_count == 0 {
            self.addresses.remove(&address);
        }
        if (count, oldest) != (new_count, new_oldest) {
            self.by_count.remove(&(count, Reverse(oldest), address));
            if new_count > 0 {
                self.by_count
                    .insert((new_count, Reverse(new_oldest), address));
            }
        }
        if bytes != new_bytes {
            self.by_bytes.remove(&(bytes, address));
            if new_bytes > 0 {
                self.by_bytes.insert((new_bytes, address));
            }
        }
        self.count = self.count + new_count - count;
        self.bytes = self.bytes + new_bytes - bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        total: 100,
        newcomers: 0,
        share: Share::percent(75),
        unauthenticated: 10,
        bytes: 100,
        bytes_per_address: 40,
        cuts_served: true,
    };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// A table in which each connection is identified by its name.
    fn table(bounds: Bounds) -> Table<&'static str> {
        Table::new(bounds)
    }

    #[test]
    fn a_flood_of_one_address_makes_room_out_of_its_own_and_the_oldest_goes_first() {
        let mut table = table(BOUNDS);
        table.admit(address(1), "alone");
        for n in 0..9 {
            let name = if n == 0 { "oldest" } else { "flood" };
            assert_eq!(table.admit(address(2), name).1, None);
        }
        assert_eq!(table.admit(address(3), "another").1, Some("oldest"));
        for _ in 0..1_000 {
            assert_eq!(table.admit(address(2), "flood").1, Some("flood"));
        }
        assert_eq!(table.count, 10);
    }

    #[test]
    fn of_many_addresses_with_one_connection_each_the_oldest_gives_way_whatever_its_address() {
        let mut table = table(BOUNDS);
        for last in 0..10 {
            table.admit(address(last), if last == 0 { "oldest" } else { "flood" });
        }
        // Greater than all others, and just arrived.
        assert_eq!(table.admit(address(200), "newcomer").1, Some("oldest"));
        for last in 10..19 {
            assert_eq!(table.admit(address(last), "flood").1, Some("flood"));
        }
    }

    #[test]
    fn who_waits_for_an_answer_gives_way_after_those_who_keep_us_waiting() {
        let mut table = table(BOUNDS);
        let (served, _) = table.admit(address(1), "served");
        table
            .enter(address(1), served, Phase::Serving, false)
            .unwrap();
        for _ in 0..9 {
            table.admit(address(1), "idle");
        }
        for _ in 0..9 {
            assert_eq!(table.admit(address(1), "new").1, Some("idle"));
        }
        assert_eq!(table.admit(address(1), "newer").1, Some("new"));
        assert_eq!(table.addresses[&address(1)].serving.len(), 1);
    }

    #[test]
    fn without_authentication_nobody_is_cut_who_waits_for_an_answer() {
        let mut table = table(Bounds {
            cuts_served: false,
            ..BOUNDS
        });
        for _ in 0..10 {
            let (ticket, _) = table.admit(address(1), "served");
            table
                .enter(address(1), ticket, Phase::Serving, false)
                .unwrap();
        }
        assert_eq!(table.admit(address(2), "new").1, None);
        assert_eq!(table.admit(address(2), "newer").1, Some("new"));
    }

    #[test]
    fn an_answered_client_is_the_youngest_of_those_who_wait() {
        let mut table = table(BOUNDS);
        let (mut first, _) = table.admit(address(1), "first");
        for _ in 0..9 {
            table.admit(address(1), "later");
        }
        for (phase, answered) in [(Phase::Serving, false), (Phase::Waiting, true)] {
            first = table.enter(address(1), first, phase, answered).unwrap();
        }
        assert_eq!(table.admit(address(2), "new").1, Some("later"));
    }

    #[test]
    fn what_is_held_elsewhere_leaves_less_room_and_never_none() {
        let mut table = table(BOUNDS);
        (0..98).for_each(|_| table.take(&Party::Operator).unwrap());
        table.admit(address(1), "a");
        table.admit(address(1), "b");
        assert_eq!(table.admit(address(1), "c").1, Some("a"));
        (0..10).for_each(|_| table.take(&Party::Operator).unwrap());
        assert_eq!(table.admit(address(1), "d").1, Some("b"));
    }

    fn tenant(id: &str) -> Party {
        Party::Tenant(vivavoce_auth::TenantId::new(id).unwrap())
    }

    /// How many connections a party gets, and why no more.
    fn all_of(table: &mut Table<&'static str>, party: &Party) -> (usize, Why) {
        let mut taken = 0;
        loop {
            match table.take(party) {
                Ok(()) => taken += 1,
                Err(why) => return (taken, why),
            }
        }
    }

    #[test]
    fn a_tenant_on_all_that_it_may_have_leaves_places_to_others_and_to_newcomers() {
        let mut table = table(BOUNDS);
        let (greedy, why) = all_of(&mut table, &tenant("greedy"));
        assert_eq!((greedy, why), (75, Why::Share("one tenant")));
        // Nobody has to be evicted to get in, and the next tenant has a share as well.
        for last in 0..10 {
            assert_eq!(table.admit(address(last), "new").1, None);
        }
        assert_eq!(all_of(&mut table, &tenant("innocent")).0, 19);
        table.take(&Party::Operator).unwrap();
        // A party that releases some may take some again, depending on what others hold now.
        (0..60).for_each(|_| table.release(&tenant("greedy")));
        assert!(all_of(&mut table, &tenant("greedy")).0 > 30);
    }

    #[test]
    fn the_known_leave_room_for_newcomers_and_whoever_runs_the_server_is_let_in() {
        let mut table = table(Bounds {
            newcomers: 5,
            share: Share::NONE,
            ..BOUNDS
        });
        assert_eq!(all_of(&mut table, &tenant("a")), (100, Why::Full));
        table.take(&Party::Operator).unwrap();
    }

    #[test]
    fn bytes_in_all_are_taken_from_the_address_that_holds_most_of_them() {
        let mut table = table(BOUNDS);
        let mut tickets = Vec::new();
        for (n, name) in [(1, "one"), (2, "two"), (3, "three"), (4, "four")] {
            tickets.push((address(n), table.admit(address(n), name).0));
        }
        for ((address, ticket), bytes) in tickets[..3].iter().zip([30, 38, 30]) {
            assert!(table.sent(*address, *ticket, bytes).is_empty());
        }
        let (address, ticket) = tickets[3];
        assert_eq!(table.sent(address, ticket, 10), ["two"]);
        assert_eq!(table.bytes, 70);
    }

    #[test]
    fn an_address_that_sends_more_than_its_share_loses_its_largest_connection() {
        let mut table = table(BOUNDS);
        let (large, _) = table.admit(address(1), "large");
        let (small, _) = table.admit(address(1), "small");
        assert!(table.sent(address(1), large, 35).is_empty());
        assert_eq!(table.sent(address(1), small, 6), ["large"]);
        assert_eq!(table.sent(address(1), small, 40), ["small"]);
        assert_eq!((table.count, table.bytes), (0, 0));
    }

    #[test]
    fn an_answer_settles_what_was_sent() {
        let mut table = table(BOUNDS);
        let (ticket, _) = table.admit(address(1), "a");
        assert!(table.sent(address(1), ticket, 40).is_empty());
        let ticket = table
            .enter(address(1), ticket, Phase::Serving, false)
            .unwrap();
        assert_eq!(table.bytes, 40);
        let ticket = table
            .enter(address(1), ticket, Phase::Waiting, true)
            .unwrap();
        assert_eq!(table.bytes, 0);
        assert!(table.leave(address(1), ticket));
        assert!(!table.leave(address(1), ticket));
        assert!(
            table.addresses.is_empty() && table.by_count.is_empty() && table.by_bytes.is_empty()
        );
    }

    #[test]
    fn a_connection_that_was_cut_is_of_no_account() {
        let mut table = table(Bounds {
            unauthenticated: 1,
            ..BOUNDS
        });
        let (first, _) = table.admit(address(1), "first");
        assert_eq!(table.admit(address(1), "second").1, Some("first"));
        assert_eq!(table.enter(address(1), first, Phase::Serving, false), None);
        assert!(table.sent(address(1), first, 50).is_empty());
        assert!(!table.leave(address(1), first));
        assert_eq!((table.count, table.bytes), (1, 0));
    }
}
