//! Estimates how late audio without timestamps is: whether there is a gap before it, or whether it was only delayed.
//! Delays are random and differ from chunk to chunk; after a gap all chunks are late by the same amount. So a gap is
//! assumed if the following chunks are late both at their minimum *and* at their median, compared with the usual delays
//! on this connection. The [recording clock](super) then positions the audio.

use std::collections::VecDeque;

/// Chunks whose delay is remembered.
const REMEMBERED: usize = 300;
/// With fewer than these, the usual delay is unknown.
const ENOUGH: usize = 25;
/// The part of the window, from its beginning, that must agree by itself: what follows may be after another gap.
const FIRST_PART: usize = 3;

/// The usual delays: how much later than their positions chunks arrived, in frames.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    usual: VecDeque<i64>,
    /// The same in order, as ranks are asked for with each chunk.
    ordered: Vec<i64>,
    scratch: Vec<i64>,
}

impl Lateness {
    /// Whether enough is known about the connection.
    pub(super) fn knows(&self) -> bool {
        self.usual.len() >= ENOUGH
    }

    /// How late audio is, in frames: `window` contains for its first chunk and the following ones how much later each
    /// arrived than without a gap. Negative if it is early, which is certain: nothing arrives before it was spoken.
    pub(super) fn of(&mut self, window: &[i64]) -> i64 {
        let least = window.iter().copied().min().unwrap_or(0);
        if least <= 0 || !self.knows() {
            return least;
        }
        let usual = of_rank(&self.ordered, 2);
        // The minimum of this many values usually has this rank.
        let usually_least = of_rank(&self.ordered, window.len() + 1);
        let mut late = least - usually_least;
        for part in [window.len().div_ceil(FIRST_PART), window.len()] {
            if late <= 0 {
                break;
            }
            self.scratch.clear();
            self.scratch.extend(window.iter().take(part));
            self.scratch.sort_unstable();
            late = late.min(of_rank(&self.scratch, 2) - usual);
        }
        late.max(0)
    }

    /// Records by how much a chunk was later than its position.
    pub(super) fn learn(&mut self, late: i64) {
        if self.usual.len() == REMEMBERED
            && let Some(oldest) = self.usual.pop_front()
            && let Ok(place) = self.ordered.binary_search(&oldest)
        {
            self.ordered.remove(place);
        }
        self.usual.push_back(late);
        let place = self.ordered.partition_point(|known| *known < late);
        self.ordered.insert(place, late);
    }
}

/// The value that one in `share` of these, which are in order, is below.
fn of_rank(ordered: &[i64], share: usize) -> i64 {
    ordered.get(ordered.len() / share).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_late_where_nothing_comes() {
        assert_eq!(Lateness::default().of(&[]), 0);
    }

    #[test]
    fn delays_that_are_usual_are_no_gap() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.of(&[30, 50, 40]), 30);
        for n in 0..100 {
            lateness.learn(n % 60);
        }
        // All of them happen to be late, but hardly more than usual.
        assert_eq!(lateness.of(&[25, 26, 30, 28, 40, 22, 35]), 1);
        // After a gap they are late by the gap plus the usual delay.
        assert_eq!(lateness.of(&[100, 150, 125, 131, 140, 105, 110]), 94);
        // One is on time, so the others were delayed.
        assert_eq!(lateness.of(&[100, 150, 125, 131, 140, 2, 110]), 0);
        // The gap comes after the first ones.
        assert_eq!(lateness.of(&[25, 30, 35, 125, 131, 140, 105, 110]), 5);
        assert_eq!(lateness.of(&[-3, 40]), -3);
    }
}
