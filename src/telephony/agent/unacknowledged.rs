//! Inbound calls whose answer is not acknowledged yet. The source address of an INVITE over UDP can be forged, and only who
//! has read our answer can acknowledge it; until then a call is on trial. Trials are limited per address and in total. At
//! the limit, a trial that has been answered for a while gives way to a new call, so that a flood of forged INVITEs does
//! not keep genuine callers out. A trial that ends in any other way than by the ACK of its answer (it was cancelled or
//! refused) keeps its place for a moment, so that the limit of an address is one of its calls a second, too.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

/// A trial may give way once it has been answered for so long: longer than any round trip.
const GRACE: Duration = Duration::from_millis(500);
/// A trial that ended without the ACK of its answer keeps its place for so long.
const REST: Duration = Duration::from_secs(1);

/// Limits of calls on trial.
#[derive(Debug, Clone, Copy)]
pub struct Unacknowledged {
    /// In total.
    pub most: usize,
    /// Per address.
    pub most_of_address: usize,
    /// How long an answer is retransmitted.
    pub patience: Duration,
}

impl Default for Unacknowledged {
    fn default() -> Self {
        Self {
            most: 200,
            most_of_address: 100,
            patience: Duration::from_secs(8),
        }
    }
}

/// The calls on trial.
#[derive(Debug)]
struct Table {
    bounds: Unacknowledged,
    /// Oldest first.
    waiting: Vec<Waiting>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    number: u64,
    address: IpAddr,
    answered: Option<Instant>,
    /// When it ended without the ACK of its answer.
    ended: Option<Instant>,
}

impl Waiting {
    /// Whether its grace period is over.
    fn is_overdue(&self, now: Instant) -> bool {
        let since = self.ended.or(self.answered);
        since.is_some_and(|since| now.saturating_duration_since(since) >= GRACE)
    }
}

/// A new trial, and the one that gives way to it.
#[derive(Debug, PartialEq, Eq)]
struct Admitted {
    number: u64,
    instead_of: Option<u64>,
}

impl Table {
    const fn new(bounds: Unacknowledged) -> Self {
        Self {
            bounds,
            waiting: Vec::new(),
            next: 0,
        }
    }

    /// Admits a new trial, if there is a place or another can give way.
    fn admit(&mut self, from: IpAddr, now: Instant) -> Option<Admitted> {
        let rests = |ended: Instant| now.saturating_duration_since(ended) < REST;
        self.waiting.retain(|one| one.ended.is_none_or(rests));
        let address = network(from);
        let own = self.count(address);
        let instead_of = if own >= self.bounds.most_of_address {
            Some(self.oldest(address, now)?)
        } else if self.waiting.len() >= self.bounds.most {
            Some(self.of_the_heaviest(address, own, now)?)
        } else {
            None
        };
        if let Some(number) = instead_of {
            self.remove(number);
        }
        let number = self.next;
        self.next += 1;
        self.waiting.push(Waiting {
            number,
            address,
            answered: None,
            ended: None,
        });
        Some(Admitted { number, instead_of })
    }

    fn count(&self, address: IpAddr) -> usize {
        let own = |waiting: &&Waiting| waiting.address == address;
        self.waiting.iter().filter(own).count()
    }

    /// The oldest answered trial of an address whose grace period is over. One that has ended keeps its place.
    fn oldest(&self, address: IpAddr, now: Instant) -> Option<u64> {
        let fits =
            |one: &&Waiting| one.address == address && one.ended.is_none() && one.is_overdue(now);
        self.waiting.iter().find(fits).map(|one| one.number)
    }

    /// The trial that gives way: one of an address with the most trials, to an address with fewer (one that has ended, if
    /// there is one); otherwise one whose grace period is over. Among addresses with equally many, the oldest goes, so that
    /// a flood from many addresses replaces its own.
    fn of_the_heaviest(&self, address: IpAddr, own: usize, now: Instant) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for one in &self.waiting {
            *counts.entry(one.address).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let heaviest_first = || {
            let heaviest = |one: &&Waiting| counts.get(&one.address) == Some(&most);
            self.waiting.iter().filter(heaviest)
        };
        let heavier = || {
            let others = || heaviest_first().filter(|one| one.address != address);
            let ended = others().find(|one| one.ended.is_some());
            ended.or_else(|| others().find(|one| one.answered.is_some()))
        };
        let instead = (most > own + 1).then(heavier).flatten();
        let instead = instead.or_else(|| heaviest_first().find(|one| one.is_overdue(now)));
        instead.map(|one| one.number)
    }

    fn answered(&mut self, number: u64, now: Instant) {
        let mut waiting = self.waiting.iter_mut();
        if let Some(one) = waiting.find(|one| one.number == number) {
            one.answered.get_or_insert(now);
        }
    }

    /// It ended without the ACK of its answer.
    fn ended(&mut self, number: u64, now: Instant) {
        let mut waiting = self.waiting.iter_mut();
        if let Some(one) = waiting.find(|one| one.number == number) {
            one.ended.get_or_insert(now);
        }
    }

    fn remove(&mut self, number: u64) {
        self.waiting.retain(|one| one.number != number);
    }
}

/// The network that limits count for: an IPv6 /64 belongs to one customer.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(bits).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// The table, with the tokens of those that give way.
#[derive(Debug)]
pub(super) struct Trials {
    state: Mutex<State>,
    patience: Duration,
}

#[derive(Debug)]
struct State {
    table: Table,
    given_up: HashMap<u64, CancellationToken>,
}

impl Trials {
    pub fn new(bounds: Unacknowledged) -> Arc<Self> {
        Arc::new(Self {
            patience: bounds.patience,
            state: Mutex::new(State {
                table: Table::new(bounds),
                given_up: HashMap::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a trial, if there is a place.
    pub fn begin(self: &Arc<Self>, from: IpAddr, now: Instant) -> Option<Trial> {
        let given_up = CancellationToken::new();
        let mut state = self.state();
        let Admitted { number, instead_of } = state.table.admit(from, now)?;
        let other = instead_of.and_then(|number| state.given_up.remove(&number));
        state.given_up.insert(number, given_up.clone());
        drop(state);
        if let Some(other) = other {
            other.cancel();
        }
        let watch = Watch {
            of: Arc::clone(self),
            number,
            given_up,
        };
        Some(Trial(watch))
    }
}

/// A call on trial. Dropping it ends the trial; unless it was acknowledged, its place is free a moment later.
#[derive(Debug)]
pub(super) struct Trial(Watch);

/// Observes a trial.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    of: Arc<Trials>,
    number: u64,
    given_up: CancellationToken,
}

impl Trial {
    pub fn watch(&self) -> Watch {
        self.0.clone()
    }

    /// The answer was acknowledged by somebody who has read it: the place is free.
    pub fn acknowledged(&self) {
        self.0.of.state().table.remove(self.0.number);
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let mut state = self.0.of.state();
        state.table.ended(self.0.number, now());
        state.given_up.remove(&self.0.number);
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Watch {
    /// The answer is being sent; the trial is given up if there is no ACK while it is retransmitted.
    pub async fn answered(self, ended: impl Future<Output = ()>) {
        self.of.state().table.answered(self.number, now());
        tokio::select! {
            () = ended => {}
            () = tokio::time::sleep(self.of.patience) => self.given_up.cancel(),
        }
    }

    /// Whether the trial was given up.
    pub fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// Resolves when the trial is given up.
    pub async fn given_up(&self) {
        self.given_up.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn table(most: usize, most_of_address: usize) -> Table {
        Table::new(Unacknowledged {
            most,
            most_of_address,
            ..Unacknowledged::default()
        })
    }

    #[test]
    fn a_flood_that_nobody_acknowledges_keeps_few_places_and_lets_others_in() {
        let mut table = table(20, 10);
        let mut now = Instant::now();
        let flood = |table: &mut Table, from, now| {
            let admitted = (0..520).filter_map(|_| table.admit(address(from), now));
            admitted.map(|one| one.number).collect::<Vec<_>>()
        };
        let first = flood(&mut table, 1, now);
        assert_eq!(first.len(), 10);
        let second = flood(&mut table, 2, now);
        assert_eq!(second.len(), 10);
        // All were answered a moment ago: another address still gets a place.
        for number in first.iter().chain(&second) {
            table.answered(*number, now);
        }
        let honest = table.admit(address(3), now).unwrap();
        assert!(honest.instead_of.is_some());
        assert_eq!(table.waiting.len(), 20);
        // So does a genuine call from the forged address, once the grace period of others is over.
        assert_eq!(table.admit(address(2), now), None);
        now += GRACE;
        assert!(table.admit(address(2), now).unwrap().instead_of.is_some());
        assert_eq!(table.waiting.len(), 20);
        // The oldest answered trial gives way first; a genuine one has ended by then.
        table.remove(honest.number);
        assert!(table.admit(address(3), now).unwrap().instead_of.is_none());
    }

    #[test]
    fn a_flood_of_many_addresses_with_one_call_each_lets_others_in() {
        let mut table = table(200, 100);
        let mut now = Instant::now();
        for last in 0..200 {
            let admitted = table.admit(address(last), now).unwrap();
            table.answered(admitted.number, now);
            now += Duration::from_millis(15);
        }
        // The newest is within its grace period, the oldest is not.
        for last in 200..=255 {
            let admitted = table.admit(address(last), now).unwrap();
            assert!(admitted.instead_of.is_some());
            table.answered(admitted.number, now);
            now += Duration::from_millis(15);
        }
        assert_eq!(table.waiting.len(), 200);
    }

    #[test]
    fn who_is_not_answered_yet_is_never_given_up() {
        let mut table = table(3, 3);
        let mut now = Instant::now();
        for _ in 0..3 {
            assert!(table.admit(address(1), now).is_some());
        }
        now += 100 * GRACE;
        assert_eq!(table.admit(address(1), now), None);
        assert_eq!(table.admit(address(2), now), None);
    }

    #[test]
    fn calls_that_are_acknowledged_are_not_counted() {
        let mut table = table(3, 2);
        let now = Instant::now();
        for _ in 0..1_000 {
            let admitted = table.admit(address(1), now).unwrap();
            assert_eq!(admitted.instead_of, None);
            table.answered(admitted.number, now);
            table.remove(admitted.number);
        }
    }

    #[test]
    fn calls_that_are_taken_back_leave_their_places_a_moment_later() {
        let mut table = table(20, 10);
        let start = Instant::now();
        // INVITE and CANCEL in turns, a thousand times a second, for ten seconds.
        let mut begun = Vec::new();
        for ms in 0..10_000 {
            let now = start + Duration::from_millis(ms);
            if let Some(admitted) = table.admit(address(1), now) {
                assert_eq!(admitted.instead_of, None);
                table.answered(admitted.number, now);
                table.ended(admitted.number, now);
                begun.push(ms);
            }
        }
        assert_eq!(begun.len(), 100, "ten a second");
        let now = start + Duration::from_millis(9_100);
        assert_eq!(table.count(address(1)), 10);
        // Other addresses do not wait for them: those that have ended give way first.
        let live = table.admit(address(2), now).unwrap();
        table.answered(live.number, now);
        for _ in 0..9 {
            assert_eq!(table.admit(address(2), now).unwrap().instead_of, None);
        }
        let third = table.admit(address(3), now).unwrap().instead_of.unwrap();
        assert!(third < live.number);
        assert_eq!(table.waiting.len(), 20);
        // Without a flood, all places are free again after a second.
        let now = start + Duration::from_secs(12);
        table.admit(address(3), now);
        assert_eq!(table.count(address(1)), 0);
    }

    #[test]
    fn calls_that_are_taken_back_at_many_addresses_let_others_in() {
        let mut table = table(200, 100);
        let mut now = Instant::now();
        for last in 0..=255 {
            let admitted = table.admit(address(last), now).unwrap();
            table.ended(admitted.number, now);
            now += Duration::from_millis(3);
        }
        assert!(table.waiting.len() <= 200);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address_and_an_address_within_ipv6_is_that_address() {
        let read = |text: &str| network(text.parse().unwrap());
        assert_eq!(read("2001:db8::1"), read("2001:db8::ffff:1"));
        assert_ne!(read("2001:db8::1"), read("2001:db8:0:1::1"));
        assert_eq!(read("::ffff:192.0.2.1"), address(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_repeated_for_so_long_and_who_gives_way_is_told() {
        let bounds = Unacknowledged {
            most: 1,
            ..Unacknowledged::default()
        };
        let trials = Trials::new(bounds);
        let first = trials.begin(address(1), now()).unwrap();
        let began = tokio::time::Instant::now();
        first.watch().answered(std::future::pending()).await;
        assert_eq!(began.elapsed(), bounds.patience);
        assert!(first.watch().is_given_up());
        drop(first);
        // Acknowledged in time.
        let second = trials.begin(address(1), now() + GRACE).unwrap();
        second.watch().answered(async {}).await;
        assert!(!second.watch().is_given_up());
        // It replaces one whose grace period is over.
        let later = now() + GRACE;
        let third = trials.begin(address(1), later).unwrap();
        assert!(second.watch().is_given_up() && !third.watch().is_given_up());
        // Its end does not end the one that replaced it.
        drop(second);
        assert!(trials.begin(address(1), later).is_none());
        third.acknowledged();
        drop(third);
        let fourth = trials.begin(address(1), later).unwrap();
        // One that was cancelled leaves its place later.
        drop(fourth);
        assert!(trials.begin(address(1), now()).is_none());
        assert!(trials.begin(address(1), now() + REST).is_some());
    }
}
