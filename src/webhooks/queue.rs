//! Which webhook is delivered when: each receiver has a lane of its own, so that a slow one delays nobody else, and
//! within a lane one that is refused delays none that are not. Knows neither disk nor network.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Deliveries under way at once, in all and to one receiver.
const AT_ONCE: usize = 256;
const AT_ONCE_TO_ONE: usize = 4;
/// The first pause after a failure, twice as long each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The share of a pause that is left to chance.
const JITTER: f64 = 0.2;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The receiver has it.
    Delivered,
    /// The receiver is there and does not want this one now.
    Refused {
        /// When it would like to see it again, where it said so.
        retry_after: Option<Duration>,
    },
    /// The receiver is not there.
    Away,
}

/// Something that waits.
#[derive(Debug)]
struct Waiting<T> {
    item: T,
    attempts: u32,
    /// After a failure behind this moment there is no other attempt.
    until: Instant,
}

/// What may be delivered now; comes back with [`Queue::finished`].
#[derive(Debug)]
pub(super) struct Due<K, T> {
    pub(super) lane: K,
    pub(super) item: T,
    attempts: u32,
    until: Instant,
}

#[derive(Debug)]
struct Lane<T> {
    waiting: BTreeMap<(Instant, u64), Waiting<T>>,
    under_way: usize,
    /// The last thing that was heard of the receiver was nothing: one at a time asks whether it is back.
    away: bool,
}

/// All lanes.
#[derive(Debug)]
pub(super) struct Queue<K, T> {
    lanes: HashMap<K, Lane<T>>,
    under_way: usize,
    serial: u64,
    patience: Duration,
}

impl<K: Clone + Eq + Hash, T> Queue<K, T> {
    /// Lanes in which nothing is tried again once it has waited for `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            lanes: HashMap::new(),
            under_way: 0,
            serial: 0,
            patience,
        }
    }

    /// Something new for a receiver.
    pub(super) fn add(&mut self, lane: K, item: T, now: Instant) {
        let waiting = Waiting {
            item,
            attempts: 0,
            until: now + self.patience,
        };
        self.wait(lane, waiting, now);
    }

    fn wait(&mut self, lane: K, waiting: Waiting<T>, due: Instant) {
        self.serial += 1;
        let lane = self.lanes.entry(lane).or_insert_with(|| Lane {
            waiting: BTreeMap::new(),
            under_way: 0,
            away: false,
        });
        lane.waiting.insert((due, self.serial), waiting);
    }

    /// How many wait or are under way.
    pub(super) fn len(&self) -> usize {
        self.under_way
            + self
                .lanes
                .values()
                .map(|lane| lane.waiting.len())
                .sum::<usize>()
    }

    /// Takes what may be delivered now: of all receivers that have something due, the one that has waited longest.
    pub(super) fn next(&mut self, now: Instant) -> Option<Due<K, T>> {
        if self.under_way >= AT_ONCE {
            return None;
        }
        let free = self.lanes.iter_mut().filter(|(_, lane)| lane.has_place());
        let first = free.filter_map(|(key, lane)| {
            let (&due, _) = lane.waiting.first_key_value()?;
            (due.0 <= now).then_some((due, key, lane))
        });
        let (_, key, lane) = first.min_by_key(|(due, ..)| *due)?;
        let (
            _,
            Waiting {
                item,
                attempts,
                until,
            },
        ) = lane.waiting.pop_first()?;
        lane.under_way += 1;
        self.under_way += 1;
        Some(Due {
            lane: key.clone(),
            item,
            attempts,
            until,
        })
    }

    /// When [`Self::next`] has something that it does not have now, if nothing else happens.
    pub(super) fn next_due(&self) -> Option<Instant> {
        if self.under_way >= AT_ONCE {
            return None;
        }
        let free = self.lanes.values().filter(|lane| lane.has_place());
        free.filter_map(|lane| Some(lane.waiting.first_key_value()?.0.0))
            .min()
    }

    /// A delivery has ended. Gives what is over and why not: everything with `true` is delivered, the rest has waited
    /// too long. `chance` is a random number, 0–1.
    pub(super) fn finished(
        &mut self,
        due: Due<K, T>,
        outcome: Outcome,
        now: Instant,
        chance: f64,
    ) -> Vec<(T, bool)> {
        let Due {
            lane: key,
            item,
            attempts,
            until,
        } = due;
        self.under_way = self.under_way.saturating_sub(1);
        let mut over = Vec::new();
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.under_way = lane.under_way.saturating_sub(1);
            lane.heard(outcome, now, &mut over);
        }
        let asked = match outcome {
            Outcome::Delivered => None,
            Outcome::Refused { retry_after } => Some(retry_after.unwrap_or_default()),
            Outcome::Away => Some(Duration::ZERO),
        };
        match asked {
            None => over.push((item, true)),
            Some(_) if now >= until => over.push((item, false)),
            Some(asked) => {
                let pause = pause(attempts, chance).max(asked.min(LONGEST_PAUSE));
                let waiting = Waiting {
                    item,
                    attempts: attempts.saturating_add(1),
                    until,
                };
                self.wait(key.clone(), waiting, now + pause);
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
        self.under_way < if self.away { 1 } else { AT_ONCE_TO_ONE }
    }

    fn is_over(&self) -> bool {
        self.under_way == 0 && self.waiting.is_empty()
    }

    /// What one delivery says about the receiver counts for everything that waits for it.
    fn heard(&mut self, outcome: Outcome, now: Instant, over: &mut Vec<(T, bool)>) {
        let was_away = std::mem::replace(&mut self.away, outcome == Outcome::Away);
        if self.away {
            let (late, rest) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition::<BTreeMap<_, _>, _>(|(_, waiting)| now >= waiting.until);
            self.waiting = rest;
            over.extend(late.into_values().map(|waiting| (waiting.item, false)));
        } else if was_away {
            let all = std::mem::take(&mut self.waiting).into_iter();
            self.waiting = all
                .map(|((due, serial), one)| ((due.min(now), serial), one))
                .collect();
        }
    }
}

fn pause(attempts: u32, chance: f64) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(attempts.min(16)));
    pause
        .min(LONGEST_PAUSE)
        .mul_f64(1.0 - JITTER * chance.clamp(0.0, 1.0))
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
        let mut queue = Queue::new(PATIENCE);
        for item in 0..100 {
            queue.add("slow", item, now);
        }
        let slow: Vec<_> = std::iter::from_fn(|| queue.next(now)).collect();
        assert_eq!(slow.len(), AT_ONCE_TO_ONE);
        queue.add("quick", 100, now);
        assert_eq!(queue.next(now).unwrap().item, 100);
    }

    #[test]
    fn one_that_is_refused_delays_none_that_are_not() {
        let now = Instant::now();
        let mut queue = Queue::new(PATIENCE);
        queue.add("a", 1, now);
        queue.add("a", 2, now);
        let first = queue.next(now).unwrap();
        assert!(queue.finished(first, REFUSED, now, 0.0).is_empty());
        let second = queue.next(now).unwrap();
        assert_eq!(
            queue.finished(second, Outcome::Delivered, now, 0.0),
            [(2, true)]
        );
        assert!(queue.next(now).is_none());
        let due = queue.next_due().unwrap();
        assert_eq!(due, now + FIRST_PAUSE);
        assert_eq!(queue.next(due).unwrap().item, 1);
    }

    #[test]
    fn one_asks_whether_a_receiver_is_back_and_the_others_follow_at_once() {
        let now = Instant::now();
        let mut queue = Queue::new(PATIENCE);
        for item in 0..10 {
            queue.add("a", item, now);
        }
        let tried: Vec<_> = std::iter::from_fn(|| queue.next(now)).collect();
        for due in tried {
            queue.finished(due, Outcome::Away, now, 0.0);
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
        let mut queue = Queue::new(PATIENCE);
        queue.add("a", 1, now);
        let mut attempts = 0;
        loop {
            let due = queue.next(now).unwrap();
            attempts += 1;
            let over = queue.finished(due, Outcome::Away, now, 0.5);
            if !over.is_empty() {
                assert_eq!(over, [(1, false)]);
                break;
            }
            now = queue.next_due().unwrap();
        }
        assert!(now - begin >= PATIENCE && now - begin < PATIENCE + LONGEST_PAUSE);
        assert!((10..30).contains(&attempts), "{attempts}");
    }

    #[test]
    fn a_receiver_may_say_when_it_wants_to_be_asked_again_within_bounds() {
        let now = Instant::now();
        for (asked, pause) in [(second(7), second(7)), (second(100_000), LONGEST_PAUSE)] {
            let mut queue = Queue::new(PATIENCE);
            queue.add("a", 1, now);
            let due = queue.next(now).unwrap();
            let refused = Outcome::Refused {
                retry_after: Some(asked),
            };
            queue.finished(due, refused, now, 0.0);
            assert_eq!(queue.next_due(), Some(now + pause));
        }
    }
}
