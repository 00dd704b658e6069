//! How the bandwidth of a subscriber is divided among its video.
//!
//! Audio is not counted: it always goes first. What the estimate leaves is given out level by level, by priority: everything
//! gets its lowest layer before anything gets a better one. Where even the lowest layer does not fit, a track is paused.
//!
//! An estimate varies and a layer's rate does, too. So what is forwarded already may exceed the estimate a little, what would
//! be new must fit with some room to spare. After a step down nothing rises for a while that would fill the estimate, and for
//! longer when rising turns out to have been wrong ([`Patience`]): an estimate is the less sure the more it exceeds what is sent.
//!
//! Pure functions of their arguments and the time.

use std::time::{Duration, Instant};

use super::layers::Offered;

/// What a new layer must leave, as a share of it.
const ROOM_SHARE: u64 = 7;
/// How far what is forwarded may exceed the estimate, as a share of that.
const EXCESS_SHARE: u64 = 12;
/// By how much an estimate exceeds what rises all the same, as a share of that.
const WIDE_SHARE: u64 = 2;
/// What fills the estimate does not rise for so long after a step down, at first and at most.
const FIRST_REST: Duration = Duration::from_secs(3);
const LONGEST_REST: Duration = Duration::from_secs(12);
/// A step down so soon after one up shows that it was wrong.
const RECENT: Duration = Duration::from_secs(10);

/// What a track has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It has only just been asked for.
    New,
    /// Nothing, for want of bandwidth.
    Paused,
    /// The layer of this rank among those that it can have.
    Layer(usize),
}

/// A track that a subscriber wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// 1 goes first; 0 comes last.
    pub priority: u32,
    /// Pictures of screens go before those of cameras.
    pub screen: bool,
    /// The layers it can have, in rising order.
    pub offered: Vec<Offered>,
    pub held: Held,
}

/// The rank of the layer that each track gets; `None` is nothing. Without a budget there is enough for all.
pub fn allocate(budget: Option<u64>, demands: &[Demand], may_rise: bool) -> Vec<Option<usize>> {
    let mut given = vec![None; demands.len()];
    let Some(budget) = budget else {
        for (given, demand) in given.iter_mut().zip(demands) {
            *given = demand.offered.len().checked_sub(1);
        }
        return given;
    };
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|at| {
        let demand = demands.get(*at);
        demand.map(|demand| (demand.priority.wrapping_sub(1), !demand.screen))
    });
    let mut spent = 0u64;
    let levels = demands.iter().map(|demand| demand.offered.len()).max();
    for level in 0..levels.unwrap_or(0) {
        for at in &order {
            let (Some(demand), Some(given)) = (demands.get(*at), given.get_mut(*at)) else {
                continue;
            };
            let Some(choice) = demand.offered.get(level) else {
                continue;
            };
            // Without the level below, there is none above.
            if level > 0 && *given != level.checked_sub(1) {
                continue;
            }
            let before = given.and_then(|rank| demand.offered.get(rank));
            let after = spent - before.map_or(0, |before| before.bps) + choice.bps;
            let rises = match demand.held {
                Held::New => false,
                Held::Paused => true,
                Held::Layer(rank) => level > rank,
            };
            let is_held = matches!(demand.held, Held::Layer(rank) if level <= rank);
            let fits = if is_held {
                after <= budget + budget / EXCESS_SHARE
            } else {
                after + choice.bps / ROOM_SHARE <= budget
            };
            let is_wide = after + after / WIDE_SHARE <= budget;
            if fits && (!rises || may_rise || is_wide) {
                *given = Some(level);
                spent = after;
            }
        }
    }
    given
}

/// When what a subscriber gets may become better again.
#[derive(Debug, Default)]
pub struct Patience {
    lowered: Option<Instant>,
    raised: Option<Instant>,
    rest: Option<Duration>,
}

impl Patience {
    /// Whether something may rise.
    pub fn may_rise(&self, now: Instant) -> bool {
        let rest = self.rest.unwrap_or(FIRST_REST);
        self.lowered
            .is_none_or(|lowered| now.saturating_duration_since(lowered) >= rest)
    }

    /// Something has risen.
    pub fn raised(&mut self, now: Instant) {
        self.raised = Some(now);
    }

    /// Something had to become worse.
    pub fn lowered(&mut self, now: Instant) {
        let again = self
            .raised
            .is_some_and(|raised| now.saturating_duration_since(raised) < RECENT);
        let rest = self.rest.unwrap_or(FIRST_REST);
        // What is lowered in one go is one step.
        let same = self
            .lowered
            .is_some_and(|lowered| now.saturating_duration_since(lowered) < FIRST_REST / 2);
        self.rest = Some(match (again, same) {
            (true, false) => (rest * 2).min(LONGEST_REST),
            (true, true) => rest,
            (false, _) => FIRST_REST,
        });
        self.lowered = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{LayerId, Quality};

    const KBPS: [u64; 3] = [150, 500, 1_700];

    fn demand(priority: u32, held: Held) -> Demand {
        let offered = KBPS.iter().zip(Quality::ALL).zip(0..);
        Demand {
            priority,
            screen: false,
            offered: offered
                .map(|((kbps, quality), place)| Offered {
                    layer: LayerId { encoding: 0, place },
                    quality,
                    bps: kbps * 1_000,
                })
                .collect(),
            held,
        }
    }

    fn given(kbps: u64, demands: &[Demand]) -> Vec<Option<usize>> {
        allocate(Some(kbps * 1_000), demands, true)
    }

    #[test]
    fn everything_gets_something_before_anything_gets_more_and_priority_decides() {
        use Held::New;
        let two = [demand(0, New), demand(1, New)];
        assert_eq!(allocate(None, &two, false), [Some(2); 2]);
        assert_eq!(given(10_000, &two), [Some(2); 2]);
        assert_eq!(given(2_500, &two), [Some(1), Some(2)]);
        assert_eq!(given(1_200, &two), [Some(1); 2]);
        assert_eq!(given(800, &two), [Some(0), Some(1)]);
        assert_eq!(given(330, &two), [Some(0); 2]);
        assert_eq!(given(200, &two), [None, Some(0)]);
        assert_eq!(given(100, &two), [None; 2]);
        let mut screen = demand(0, New);
        screen.screen = true;
        assert_eq!(given(200, &[demand(0, New), screen]), [None, Some(0)]);
    }

    #[test]
    fn what_is_held_stays_a_little_longer_and_what_is_new_needs_room() {
        let one = |held| [demand(0, held)];
        assert_eq!(given(1_600, &one(Held::Layer(2))), [Some(2)]);
        assert_eq!(given(1_500, &one(Held::Layer(2))), [Some(1)]);
        assert_eq!(given(1_800, &one(Held::Layer(1))), [Some(1)]);
        assert_eq!(given(2_000, &one(Held::Layer(1))), [Some(2)]);
        assert_eq!(given(145, &one(Held::Layer(0))), [Some(0)]);
        assert_eq!(given(145, &one(Held::Paused)), [None]);
    }

    #[test]
    fn while_patience_is_asked_for_only_that_rises_which_does_not_fill_the_estimate() {
        let resting = |kbps: u64, held| allocate(Some(kbps * 1_000), &[demand(0, held)], false);
        assert_eq!(resting(224, Held::Paused), [None]);
        assert_eq!(resting(225, Held::Paused), [Some(0)]);
        assert_eq!(resting(749, Held::Layer(0)), [Some(0)]);
        assert_eq!(resting(750, Held::Layer(0)), [Some(1)]);
        assert_eq!(resting(2_549, Held::Layer(0)), [Some(1)]);
        assert_eq!(resting(2_549, Held::Layer(2)), [Some(2)]);
        assert_eq!(resting(2_550, Held::Layer(0)), [Some(2)]);
        // What has only just been asked for has not risen.
        assert_eq!(resting(2_000, Held::New), [Some(2)]);
    }

    #[test]
    fn rising_in_vain_makes_the_next_attempt_later() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut patience = Patience::default();
        assert!(patience.may_rise(start));
        patience.lowered(start);
        assert!(!patience.may_rise(at(2)) && patience.may_rise(at(3)));
        let (mut now, mut rests) = (3, Vec::new());
        for _ in 0..5 {
            patience.raised(at(now));
            patience.lowered(at(now + 2));
            let rest = (1..100).find(|rest| patience.may_rise(at(now + 2 + rest)));
            rests.push(rest.unwrap());
            now += 2 + rest.unwrap();
        }
        assert_eq!(rests, [6, 12, 12, 12, 12]);
        patience.raised(at(now));
        patience.lowered(at(now + 60));
        assert!(patience.may_rise(at(now + 63)));
    }
}
