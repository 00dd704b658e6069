//! Calls that came and whose answer nobody has acknowledged yet. Who sends an INVITE over UDP need not be who it says, and
//! only who has read our answer can acknowledge it; so until then a call is on trial: few of an address, and few in all. Where
//! there are as many as may be, one that has been answered for a while without a word gives way to the next, so that a
//! flood does not keep out who means it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

/// An answer that has not been acknowledged after so long may be given up for another call: longer than any way there and back.
const GRACE: Duration = Duration::from_millis(500);

/// How many may be on trial, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Unacknowledged {
    /// In all.
    pub most: usize,
    /// Of one address.
    pub most_of_address: usize,
    /// An answer is repeated for so long.
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

/// Those that wait, by number.
#[derive(Debug)]
struct Table {
    bounds: Unacknowledged,
    /// The oldest first.
    waiting: Vec<Waiting>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    number: u64,
    address: IpAddr,
    answered: Option<Instant>,
}

/// A place among those that wait, and whoever has to give way for it.
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

    /// Takes one more, if there is a place or one can be made.
    fn admit(&mut self, from: IpAddr, now: Instant) -> Option<Admitted> {
        let address = network(from);
        let own = self.count(address);
        let instead_of = if own >= self.bounds.most_of_address {
            Some(self.oldest(address, Some(now))?)
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
        });
        Some(Admitted { number, instead_of })
    }

    fn count(&self, address: IpAddr) -> usize {
        let own = |waiting: &&Waiting| waiting.address == address;
        self.waiting.iter().filter(own).count()
    }

    /// The oldest answered one of an address; with a time, only if it had its time.
    fn oldest(&self, address: IpAddr, now: Option<Instant>) -> Option<u64> {
        let fits = |waiting: &&Waiting| {
            waiting.address == address
                && waiting.answered.is_some_and(|answered| {
                    now.is_none_or(|now| now.saturating_duration_since(answered) >= GRACE)
                })
        };
        self.waiting.iter().find(fits).map(|one| one.number)
    }

    /// One of an address that has the most gives way to one of an address that has fewer; else one that had its time. Of
    /// several addresses with as many the oldest call goes, so that a flood of many addresses goes round by itself.
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
        let heavier =
            || heaviest_first().find(|one| one.address != address && one.answered.is_some());
        let timed_out = |one: &&Waiting| {
            one.answered
                .is_some_and(|answered| now.saturating_duration_since(answered) >= GRACE)
        };
        let instead = (most > own + 1).then(heavier).flatten();
        let instead = instead.or_else(|| heaviest_first().find(timed_out));
        instead.map(|one| one.number)
    }

    fn answered(&mut self, number: u64, now: Instant) {
        let mut waiting = self.waiting.iter_mut();
        if let Some(one) = waiting.find(|one| one.number == number) {
            one.answered.get_or_insert(now);
        }
    }

    fn remove(&mut self, number: u64) {
        self.waiting.retain(|one| one.number != number);
    }
}

/// Whose bounds an address has: of IPv6 a whole network is one customer's.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(bits).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// The table with those who are told to give way.
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

    /// A place for one more call; `None` where there is none.
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

/// A call on trial. Dropped, it is not any more.
#[derive(Debug)]
pub(super) struct Trial(Watch);

/// What is known of a call on trial by those who do not end the trial.
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
}

impl Drop for Trial {
    fn drop(&mut self) {
        let mut state = self.0.of.state();
        state.table.remove(self.0.number);
        state.given_up.remove(&self.0.number);
    }
}

impl Watch {
    /// The last answer was sent; it is given up when nobody acknowledges it for as long as it is repeated.
    pub async fn answered(self, ended: impl Future<Output = ()>) {
        self.of.state().table.answered(self.number, Instant::now());
        tokio::select! {
            () = ended => {}
            () = tokio::time::sleep(self.of.patience) => self.given_up.cancel(),
        }
    }

    /// Whether nobody is waited for any more.
    pub fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// Returns when nobody is waited for any more.
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
        // All have been answered, a moment ago: somebody else gets a place all the same.
        for number in first.iter().chain(&second) {
            table.answered(*number, now);
        }
        let honest = table.admit(address(3), now).unwrap();
        assert!(honest.instead_of.is_some());
        assert_eq!(table.waiting.len(), 20);
        // So does an honest call of the address that is forged, once others had their time.
        assert_eq!(table.admit(address(2), now), None);
        now += GRACE;
        assert!(table.admit(address(2), now).unwrap().instead_of.is_some());
        assert_eq!(table.waiting.len(), 20);
        // Who was there first and has been answered gives way first; who is honest has gone by then.
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
        // The newest has not had its time, and the oldest has.
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
        let first = trials.begin(address(1), Instant::now()).unwrap();
        let began = tokio::time::Instant::now();
        first.watch().answered(std::future::pending()).await;
        assert_eq!(began.elapsed(), bounds.patience);
        assert!(first.watch().is_given_up());
        // Acknowledged in time.
        drop(first);
        let second = trials.begin(address(1), Instant::now()).unwrap();
        second.watch().answered(async {}).await;
        assert!(!second.watch().is_given_up());
        // In the place of one that had its time.
        let later = Instant::now() + GRACE;
        let third = trials.begin(address(1), later).unwrap();
        assert!(second.watch().is_given_up() && !third.watch().is_given_up());
        // Its end is not the end of the one in its place.
        drop(second);
        assert!(trials.begin(address(1), later).is_none());
        drop(third);
        assert!(trials.begin(address(1), later).is_some());
    }
}
