//! The order of delivery. Each receiver has a lane of its own, so that a slow receiver delays nobody else; within a
//! lane parties take turns, and a webhook that is refused does not hold up the others. A pure data structure: no disk,
//! no network, time is an argument.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use super::Source;
use vivavoce_core::backoff::Backoff;
use vivavoce_quotas::{Share, Tally};

/// Concurrent deliveries, in all and per receiver.
const MAX_CONCURRENT: usize = 256;
const MAX_CONCURRENT_PER_RECEIVER: usize = 4;
/// The pauses after failures.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(500), Duration::from_mins(1), 0.2);

/// The outcome of a delivery attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The receiver accepted it.
    Delivered,
    /// The receiver answered, but did not accept this webhook.
    Refused {
        /// The pause that the receiver asked for (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The receiver cannot be reached or is overloaded.
    Unavailable,
}

/// A queued item.
#[derive(Debug)]
struct Waiting<T> {
    item: T,
    attempts: u32,
    /// An attempt that fails after this moment is the last one.
    until: Instant,
    /// How the last attempt ended.
    last: Option<Outcome>,
}

/// An item to deliver now; to be returned with [`Queue::finished`].
#[derive(Debug)]
pub(super) struct Due<K, T> {
    pub(super) lane: K,
    of: Source,
    pub(super) item: T,
    attempts: u32,
    until: Instant,
}

type ByDueTime<T> = BTreeMap<(Instant, u64), Waiting<T>>;

#[derive(Debug)]
struct Lane<T> {
    /// In context-robin order: the party that was served last is at the end.
    waiting: VecDeque<(Source, ByDueTime<T>)>,
    in_progress: usize,
    /// The last attempt could not reach the receiver: until one succeeds, only one delivery at a time probes it.
    unavailable: bool,
}

/// The lanes of all receivers.
#[derive(Debug)]
pub(super) struct Queue<K, T> {
    lanes: HashMap<K, Lane<T>>,
    /// Deliveries in progress, by party.
    tally: Tally,
    serial: u64,
    patience: Duration,
}

impl<K: Clone + Eq + Hash, T> Queue<K, T> {
    /// An empty queue in which delivery is attempted for `patience`.
    pub(super) fn new(patience: Duration, share: Share) -> Self {
        Self {
            lanes: HashMap::new(),
            tally: Tally::new(MAX_CONCURRENT as u64, share),
            serial: 0,
            patience,
        }
    }

    /// Adds an item for a receiver, counted for `of`.
    pub(super) fn add(&mut self, lane: K, of: Source, item: T, now: Instant) {
        let waiting = Waiting {
            item,
            attempts: 0,
            until: now + self.patience,
            last: None,
        };
        self.wait(lane, of, waiting, now);
    }

    fn wait(&mut self, lane: K, of: Source, waiting: Waiting<T>, due: Instant) {
        self.serial += 1;
        let lane = self.lanes.entry(lane).or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            in_progress: 0,
            unavailable: false,
        });
        let key = (due, self.serial);
        match lane.waiting.iter_mut().find(|(other, _)| *other == of) {
            Some((_, known)) => drop(known.insert(key, waiting)),
            None => lane
                .waiting
                .push_back((of, BTreeMap::from([(key, waiting)]))),
        }
    }

    /// The number of items that wait or are being delivered.
    pub(super) fn len(&self) -> usize {
        let waiting = self.lanes.values().flat_map(|lane| &lane.waiting);
        let waiting: usize = waiting.map(|(_, items)| items.len()).sum();
        usize::try_from(self.tally.total()).unwrap_or(usize::MAX) + waiting
    }

    /// What waits, with how many attempts have failed, how the last one ended, and when the next one is due; those that are
    /// being delivered are not among it.
    pub(super) fn waiting(
        &self,
    ) -> impl Iterator<Item = (&Source, &T, u32, Option<Outcome>, Instant)> {
        let parties = self.lanes.values().flat_map(|lane| &lane.waiting);
        parties.flat_map(|(of, items)| {
            let items = items.iter();
            items.map(move |((due, _), one)| (of, &one.item, one.attempts, one.last, *due))
        })
    }

    /// Has the waiting items for which `wanted` is true delivered now; how many there are.
    pub(super) fn hasten(&mut self, now: Instant, wanted: impl Fn(&Source, &T) -> bool) -> usize {
        let mut found = 0;
        for lane in self.lanes.values_mut() {
            for (of, items) in &mut lane.waiting {
                let due = |one: &Waiting<T>| wanted(of, &one.item);
                let keys: Vec<_> = items
                    .iter()
                    .filter(|(_, one)| due(one))
                    .map(|(key, _)| *key)
                    .collect();
                for (at, serial) in keys {
                    if let Some(one) = items.remove(&(at, serial)) {
                        items.insert((at.min(now), serial), one);
                        found += 1;
                    }
                }
            }
        }
        found
    }

    /// Takes the next item to deliver: of the receivers that have something due, the one that has waited longest, and
    /// within it the party whose turn it is.
    pub(super) fn next(&mut self, now: Instant) -> Option<Due<K, T>> {
        if self.tally.free() == 0 {
            return None;
        }
        let tally = &self.tally;
        let free = self.lanes.iter_mut().filter(|(_, lane)| lane.has_place());
        let first = free.filter_map(|(key, lane)| {
            let (at, due) = lane.first(now, tally)?;
            Some((due, key, lane, at))
        });
        let (_, key, lane, at) = first.min_by_key(|(due, ..)| *due)?;
        let (of, mut items) = lane.waiting.remove(at)?;
        let (
            _,
            Waiting {
                item,
                attempts,
                until,
                last: _,
            },
        ) = items.pop_first()?;
        if !items.is_empty() {
            lane.waiting.push_back((of.clone(), items));
        }
        lane.in_progress += 1;
        self.tally.hold(&of.party, 1);
        Some(Due {
            lane: key.clone(),
            of,
            item,
            attempts,
            until,
        })
    }

    /// When [`Self::next`] will return something, if nothing else happens.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let free = self.lanes.values().filter(|lane| lane.has_place());
        let waiting = free.flat_map(|lane| &lane.waiting);
        // Parties with too many deliveries in progress wait for one of these to end.
        let may = waiting.filter(|(of, _)| self.tally.check(&of.party, 1).is_ok());
        may.filter_map(|(_, items)| Some(items.first_key_value()?.0.0))
            .min()
    }

    /// Reports the outcome of a delivery. Returns the items that are finished: with `true` if delivered, with `false`
    /// if delivery was given up. `chance` is a random number from 0 to 1.
    pub(super) fn finished(
        &mut self,
        due: Due<K, T>,
        outcome: Outcome,
        now: Instant,
        chance: f64,
    ) -> Vec<(T, bool)> {
        let Due {
            lane: key,
            of,
            item,
            attempts,
            until,
        } = due;
        self.tally.release(&of.party, 1);
        let mut over = Vec::new();
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.in_progress = lane.in_progress.saturating_sub(1);
            lane.heard(outcome, now, &mut over);
        }
        let asked = match outcome {
            Outcome::Delivered => None,
            Outcome::Refused { retry_after } => Some(retry_after.unwrap_or_default()),
            Outcome::Unavailable => Some(Duration::ZERO),
        };
        match asked {
            None => over.push((item, true)),
            Some(_) if now >= until => over.push((item, false)),
            Some(asked) => {
                let pause = BACKOFF.delay(attempts, chance);
                let pause = pause.max(asked.min(BACKOFF.longest));
                let waiting = Waiting {
                    item,
                    attempts: attempts.saturating_add(1),
                    until,
                    last: Some(outcome),
                };
                self.wait(key.clone(), of, waiting, now + pause);
            }
        }
        if self.lanes.get(&key).is_some_and(Lane::is_over) {
            self.lanes.remove(&key);
        }
        over
    }
}

impl<T> Lane<T> {
    const fn has_place(&self) -> bool {
        self.in_progress
            < if self.unavailable {
                1
            } else {
                MAX_CONCURRENT_PER_RECEIVER
            }
    }

    fn is_over(&self) -> bool {
        self.in_progress == 0 && self.waiting.is_empty()
    }

    /// The party whose turn it is, of those with an item due and a free delivery slot, and since when the item is due.
    fn first(&self, now: Instant, tally: &Tally) -> Option<(usize, (Instant, u64))> {
        let mut waiting = self.waiting.iter().enumerate();
        waiting.find_map(|(at, (of, items))| {
            let (&due, _) = items.first_key_value()?;
            (due.0 <= now && tally.check(&of.party, 1).is_ok()).then_some((at, due))
        })
    }

    /// Applies the outcome of one delivery to everything that waits for the same receiver.
    fn heard(&mut self, outcome: Outcome, now: Instant, over: &mut Vec<(T, bool)>) {
        let was_away = std::mem::replace(&mut self.unavailable, outcome == Outcome::Unavailable);
        if self.unavailable {
            for (_, items) in &mut self.waiting {
                let (late, rest) = std::mem::take(items)
                    .into_iter()
                    .partition::<ByDueTime<T>, _>(|(_, waiting)| now >= waiting.until);
                *items = rest;
                over.extend(late.into_values().map(|waiting| (waiting.item, false)));
            }
            self.waiting.retain(|(_, items)| !items.is_empty());
        } else if was_away {
            for (_, items) in &mut self.waiting {
                let all = std::mem::take(items).into_iter();
                *items = all
                    .map(|((due, serial), one)| ((due.min(now), serial), one))
                    .collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_mins(10);
    const REFUSED: Outcome = Outcome::Refused { retry_after: None };

    fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_receiver_that_does_not_answer_delays_nobody_else() {
        let now = Instant::now();
        let mut queue = Queue::new(PATIENCE, Share::default());
        for item in 0..100 {
            queue.add("slow", Source::default(), item, now);
        }
        let slow: Vec<_> = std::iter::from_fn(|| queue.next(now)).collect();
        assert_eq!(slow.len(), MAX_CONCURRENT_PER_RECEIVER);
        queue.add("quick", Source::default(), 100, now);
        assert_eq!(queue.next(now).unwrap().item, 100);
    }

    #[test]
    fn what_is_hastened_is_due_at_once() {
        let now = Instant::now();
        let mut queue = Queue::new(PATIENCE, Share::default());
        for item in 0..2 {
            queue.add("settings", Source::default(), item, now);
            let due = queue.next(now).unwrap();
            queue.finished(due, REFUSED, now, 0.5);
        }
        assert!(queue.next(now).is_none());
        let told: Vec<_> = queue
            .waiting()
            .map(|(_, item, attempts, last, _)| (*item, attempts, last))
            .collect();
        assert_eq!(told, [(0, 1, Some(REFUSED)), (1, 1, Some(REFUSED))]);
        assert_eq!(queue.hasten(now, |_, item| *item == 1), 1);
        assert_eq!(queue.next(now).unwrap().item, 1);
        assert!(queue.next(now).is_none());
    }

    fn of(tenant: &str, recording: bool) -> Source {
        let tenant = vivavoce_auth::TenantId::new(tenant).unwrap();
        Source {
            party: vivavoce_quotas::Party::Tenant(tenant),
            recording,
        }
    }

    #[test]
    fn thousands_of_one_tenant_delay_anothers_by_one_round() {
        let now = Instant::now();
        let mut queue = Queue::new(PATIENCE, Share::default());
        for item in 0..5_000 {
            queue.add("settings", of("greedy", false), item, now);
        }
        queue.add("settings", of("greedy", true), 7_000, now);
        queue.add("settings", of("innocent", true), 9_000, now);
        let first: Vec<_> = std::iter::from_fn(|| queue.next(now)).collect();
        let first: Vec<_> = first.into_iter().map(|due| due.item).collect();
        assert_eq!(first, [0, 7_000, 9_000, 1]);
    }

    #[test]
    fn a_tenant_with_many_slow_receivers_leaves_deliveries_to_others() {
        let now = Instant::now();
        let mut queue = Queue::new(PATIENCE, Share::default());
        for lane in 0..1_000 {
            queue.add(lane, of("greedy", false), lane, now);
        }
        while queue.next(now).is_some() {}
        assert_eq!(queue.next_due(), None);
        queue.add(2_000, of("innocent", false), 2_000, now);
        assert_eq!(queue.next_due(), Some(now));
        assert_eq!(queue.next(now).unwrap().item, 2_000);
    }

    #[test]
    fn one_that_is_refused_delays_none_that_are_not() {
        let now = Instant::now();
        let mut queue = Queue::new(PATIENCE, Share::default());
        queue.add("a", Source::default(), 1, now);
        queue.add("a", Source::default(), 2, now);
        let first = queue.next(now).unwrap();
        assert!(queue.finished(first, REFUSED, now, 0.0).is_empty());
        let second = queue.next(now).unwrap();
        assert_eq!(
            queue.finished(second, Outcome::Delivered, now, 0.0),
            [(2, true)]
        );
        assert!(queue.next(now).is_none());
        let due = queue.next_due().unwrap();
        assert_eq!(due, now + BACKOFF.first);
        assert_eq!(queue.next(due).unwrap().item, 1);
    }

    #[test]
    fn one_asks_whether_a_receiver_is_back_and_the_others_follow_at_once() {
        let now = Instant::now();
        let mut queue = Queue::new(PATIENCE, Share::default());
        for item in 0..10 {
            queue.add("a", Source::default(), item, now);
        }
        let tried: Vec<_> = std::iter::from_fn(|| queue.next(now)).collect();
        for due in tried {
            queue.finished(due, Outcome::Unavailable, now, 0.0);
        }
        let probe = queue.next(now).unwrap();
        assert!(queue.next(now).is_none(), "more than one asks");
        queue.finished(probe, Outcome::Delivered, now, 0.0);
        let mut delivered = 1;
        while let Some(due) = queue.next(now) {
            delivered += queue.finished(due, Outcome::Delivered, now, 0.0).len();
        }
        assert_eq!((delivered, queue.len()), (10, 0));
        assert!(queue.lanes.is_empty());
    }

    #[test]
    fn attempts_go_on_for_the_whole_patience_and_no_longer() {
        let mut now = Instant::now();
        let begin = now;
        let mut queue = Queue::new(PATIENCE, Share::default());
        queue.add("a", Source::default(), 1, now);
        let mut attempts = 0;
        loop {
            let due = queue.next(now).unwrap();
            attempts += 1;
            let over = queue.finished(due, Outcome::Unavailable, now, 0.5);
            if !over.is_empty() {
                assert_eq!(over, [(1, false)]);
                break;
            }
            now = queue.next_due().unwrap();
        }
        assert!(now - begin >= PATIENCE && now - begin < PATIENCE + BACKOFF.longest);
        assert!((10..30).contains(&attempts), "{attempts}");
    }

    #[test]
    fn a_receiver_may_say_when_it_wants_to_be_asked_again_within_bounds() {
        let now = Instant::now();
        for (asked, pause) in [(second(7), second(7)), (second(100_000), BACKOFF.longest)] {
            let mut queue = Queue::new(PATIENCE, Share::default());
            queue.add("a", Source::default(), 1, now);
            let due = queue.next(now).unwrap();
            let refused = Outcome::Refused {
                retry_after: Some(asked),
            };
            queue.finished(due, refused, now, 0.0);
            assert_eq!(queue.next_due(), Some(now + pause));
        }
    }
}
