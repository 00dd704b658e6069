//! Fair scheduling of work on the media thread: payers take turns, and within each payer its connections. Each payer and
//! each connection has a rate of work; one that exceeds it is not refused, it waits. Pure state; time is an argument.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vivavoce_quotas::Party;

/// Debts are searched for paid ones when there are twice as many as the last time, and at least so many.
const DEBTS_KEPT: usize = 1_024;

/// Who the work for a connection is counted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Payer {
    /// A tenant, or an address.
    Party(Party),
    /// Connections of the operator, whose tokens anybody may have been given, count by room.
    Room(Arc<str>),
    /// Sessions and calls of this process count apart, so that they do not wait for those who are in a room with them.
    InProcess(Party),
}

impl Payer {
    /// The payer of a connection of this party to this room.
    pub fn new(party: &Party, room: &Arc<str>, in_process: bool) -> Self {
        match party {
            party if in_process => Self::InProcess(party.clone()),
            Party::Operator => Self::Room(Arc::clone(room)),
            party => Self::Party(party.clone()),
        }
    }
}

/// A rate of work, in units of [`super::limits::WORK_UNIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Units a second.
    pub per_second: u32,
    /// Units at once, after a rest.
    pub at_once: u32,
}

impl Rate {
    fn time(self, work: u32) -> Duration {
        Duration::from_secs(work.into()) / self.per_second.max(1)
    }
}

/// What each debtor owes: when it will have paid (the generic cell rate algorithm).
#[derive(Debug)]
struct Debts<K> {
    rate: Rate,
    paid_at: HashMap<K, Instant>,
    sweep_at: usize,
}

impl<K: Eq + Hash> Debts<K> {
    fn new(rate: Rate) -> Self {
        Self {
            rate,
            paid_at: HashMap::new(),
            sweep_at: DEBTS_KEPT,
        }
    }

    /// Until when a debtor has to wait; `None` if it need not.
    fn rests_until(&self, who: &K, now: Instant) -> Option<Instant> {
        let owed = self.paid_at.get(who)?.saturating_duration_since(now);
        let over = owed.saturating_sub(self.rate.time(self.rate.at_once));
        (!over.is_zero()).then(|| now + over)
    }

    fn charge(&mut self, who: K, work: u32, now: Instant) {
        if self.paid_at.len() >= self.sweep_at {
            self.paid_at.retain(|_, paid_at| *paid_at > now);
            self.sweep_at = DEBTS_KEPT.max(2 * self.paid_at.len());
        }
        let time = self.rate.time(work);
        let paid_at = self.paid_at.entry(who).or_insert(now);
        *paid_at = (*paid_at).max(now) + time;
    }
}

/// One that has to wait although there is something to do for it.
#[derive(Debug)]
enum Resting<P, C> {
    Payer(P),
    Connection(P, C),
}

/// Waiting connections, each at most once.
#[derive(Debug)]
pub struct Turns<P, C> {
    /// Those with waiting connections that do not rest.
    payers: VecDeque<P>,
    waiting: HashMap<P, VecDeque<C>>,
    everybody: HashSet<C>,
    /// By the time when they may go on, and a number that tells them apart.
    resting: BTreeMap<(Instant, u64), Resting<P, C>>,
    number: u64,
    of_payers: Debts<P>,
    of_connections: Debts<C>,
}

impl<P: Clone + Eq + Hash, C: Copy + Eq + Hash> Turns<P, C> {
    /// No one waits; each payer and each connection has this rate.
    pub fn new(payer: Rate, connection: Rate) -> Self {
        Self {
            payers: VecDeque::new(),
            waiting: HashMap::new(),
            everybody: HashSet::new(),
            resting: BTreeMap::new(),
            number: 0,
            of_payers: Debts::new(payer),
            of_connections: Debts::new(connection),
        }
    }

    /// Queues a connection.
    pub fn push(&mut self, payer: &P, who: C) {
        if self.everybody.insert(who) {
            self.queue(payer, who);
        }
    }

    fn queue(&mut self, payer: &P, who: C) {
        match self.waiting.get_mut(payer) {
            Some(waiting) => waiting.push_back(who),
            None => {
                self.waiting.insert(payer.clone(), VecDeque::from([who]));
                self.payers.push_back(payer.clone());
            }
        }
    }

    /// The next connection that need not rest.
    pub fn next(&mut self, now: Instant) -> Option<C> {
        self.wake(now);
        while let Some(payer) = self.payers.pop_front() {
            if let Some(until) = self.of_payers.rests_until(&payer, now) {
                self.rest(until, Resting::Payer(payer));
                continue;
            }
            let Some(waiting) = self.waiting.get_mut(&payer) else {
                continue;
            };
            let who = waiting.pop_front();
            if waiting.is_empty() {
                self.waiting.remove(&payer);
            } else {
                self.payers.push_back(payer.clone());
            }
            let Some(who) = who else { continue };
            if let Some(until) = self.of_connections.rests_until(&who, now) {
                self.rest(until, Resting::Connection(payer, who));
                continue;
            }
            self.everybody.remove(&who);
            return Some(who);
        }
        None
    }

    fn rest(&mut self, until: Instant, resting: Resting<P, C>) {
        self.number += 1;
        self.resting.insert((until, self.number), resting);
    }

    fn wake(&mut self, now: Instant) {
        while let Some(first) = self.resting.first_entry() {
            if first.key().0 > now {
                break;
            }
            match first.remove() {
                Resting::Payer(payer) => self.payers.push_back(payer),
                Resting::Connection(payer, who) => self.queue(&payer, who),
            }
        }
    }

    /// Counts work done for a connection.
    pub fn charge(&mut self, payer: &P, who: C, work: u32, now: Instant) {
        self.of_payers.charge(payer.clone(), work, now);
        self.of_connections.charge(who, work, now);
    }

    /// Whether a payer's work could be done at once: it need not rest, and nothing of it waits.
    pub fn is_free(&self, payer: &P, now: Instant) -> bool {
        !self.waiting.contains_key(payer) && self.of_payers.rests_until(payer, now).is_none()
    }

    /// Whether there is nothing to do, except for those that rest.
    pub fn is_empty(&self) -> bool {
        self.payers.is_empty()
    }

    /// When the first of those that rest goes on.
    pub fn due(&self) -> Option<Instant> {
        self.resting.keys().next().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Rate = Rate {
        per_second: u32::MAX,
        at_once: u32::MAX,
    };

    #[test]
    fn payers_take_turns_and_in_them_connections() {
        let (mut turns, now) = (Turns::new(ANY, ANY), Instant::now());
        for who in 0..100 {
            turns.push(&"crowd", who);
        }
        turns.push(&"pair", 200);
        turns.push(&"pair", 201);
        let mut order = Vec::new();
        for _ in 0..12 {
            let who = turns.next(now).unwrap();
            order.push(who);
            // Everyone in the crowd always has another request.
            if who < 100 {
                turns.push(&"crowd", who);
            }
        }
        assert_eq!(order, [0, 200, 1, 201, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn whoever_waits_has_one_turn() {
        let (mut turns, now) = (Turns::new(ANY, ANY), Instant::now());
        turns.push(&"room", 1);
        turns.push(&"room", 1);
        assert_eq!(turns.next(now), Some(1));
        assert_eq!(turns.next(now), None);
        assert!(turns.is_empty());
    }

    /// Serves those that always have something to do for ten seconds; returns the units that each connection got.
    fn served(
        turns: &mut Turns<&'static str, u32>,
        crowd: &[(&'static str, u32, u32)],
    ) -> Vec<u32> {
        let began = Instant::now();
        let mut got = vec![0; crowd.len()];
        for (payer, who, _) in crowd {
            turns.push(payer, *who);
        }
        let mut now = began;
        while now < began + Duration::from_secs(10) {
            match turns.next(now) {
                Some(who) => {
                    let at = crowd.iter().position(|(_, name, _)| *name == who).unwrap();
                    let (payer, _, work) = crowd[at];
                    turns.charge(&payer, who, work, now);
                    turns.push(&payer, who);
                    got[at] += work;
                }
                None => now = turns.due().unwrap(),
            }
        }
        got
    }

    #[test]
    fn whoever_always_wants_more_gets_its_rate_and_nobody_is_kept_from_theirs() {
        let rate = |per_second, at_once| Rate {
            per_second,
            at_once,
        };
        // One connection: its own rate, whatever its requests cost.
        let mut turns = Turns::new(rate(10_000, 20_000), rate(1_000, 4_000));
        let got = served(&mut turns, &[("a", 1, 500)]);
        assert!((14_000..=14_500).contains(&got[0]), "{got:?}");
        // A hundred of one payer: the payer's rate, shared; and another payer's only one has all that it may have.
        let mut turns = Turns::new(rate(10_000, 20_000), rate(1_000, 4_000));
        let crowd: Vec<_> = (0..100).map(|who| ("crowd", who, 500)).collect();
        let crowd = [crowd, vec![("other", 200, 10)]].concat();
        let got = served(&mut turns, &crowd);
        let (others, all) = (got[100], got[..100].iter().sum::<u32>());
        assert!((120_000..=120_500).contains(&all), "{all}");
        let [least, most] = [got[..100].iter().min(), got[..100].iter().max()];
        assert!(most.unwrap() - least.unwrap() <= 500);
        assert!((14_000..=14_010).contains(&others), "{others}");
    }

    #[test]
    fn after_a_rest_so_much_is_done_at_once_and_the_rest_later_in_order() {
        let rate = Rate {
            per_second: 100,
            at_once: 100,
        };
        let (mut turns, now) = (Turns::new(rate, ANY), Instant::now());
        let mut at_once = Vec::new();
        for who in 0..30 {
            turns.push(&"storm", who);
        }
        while let Some(who) = turns.next(now) {
            turns.charge(&"storm", who, 10, now);
            at_once.push(who);
        }
        // The one that exceeds it is the last.
        assert_eq!(at_once, (0..11).collect::<Vec<_>>());
        assert!(turns.is_empty() && !turns.is_free(&"storm", now) && turns.is_free(&"other", now));
        let due = turns.due().unwrap();
        assert_eq!(due, now + Duration::from_millis(100));
        assert_eq!(turns.next(due), Some(11));
        turns.push(&"other", 99);
        turns.charge(&"storm", 11, 10, due);
        assert_eq!(turns.next(due), Some(99));
        assert_eq!(turns.next(due), None);
    }

    #[test]
    fn paid_debts_are_forgotten() {
        let rate = Rate {
            per_second: 1,
            at_once: 1,
        };
        let (mut debts, now) = (Debts::new(rate), Instant::now());
        for who in 0..100_000u32 {
            debts.charge(who, 1, now + Duration::from_millis(who.into()));
        }
        assert!(debts.paid_at.len() <= 3 * DEBTS_KEPT);
    }
}
