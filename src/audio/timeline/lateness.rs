//! How late sound is that was not stamped when it was made: whether there is a gap before it, or whether it was only
//! held up on its way. Chunks that are held up come late by chance, each by another time; behind a gap all of them come
//! late by the same. So a gap is believed when what comes next is late at its least *and* in the middle, compared with
//! what is usual on this way. Where the sound then goes is the [timeline](super)'s matter.

use std::collections::VecDeque;

/// Chunks whose delay is remembered.
const REMEMBERED: usize = 300;
/// Fewer than these say nothing of what is usual.
const ENOUGH: usize = 25;
/// How much of the window, from its beginning, must agree by itself: what follows may lie behind another gap.
const FIRST_PART: usize = 3;

/// What is usual: by how much chunks came later than their place on the clock, in frames.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    usual: VecDeque<i64>,
    scratch: Vec<i64>,
}

impl Lateness {
    /// Whether enough is known of the way.
    pub(super) fn knows(&self) -> bool {
        self.usual.len() >= ENOUGH
    }

    /// How late sound is, in frames: `window` says of its first chunk and of those behind it by how much each comes later
    /// than if there were no gap. Negative when it is early, and by how much that is certain: nothing comes before it was
    /// made.
    pub(super) fn of(&mut self, window: &[i64]) -> i64 {
        let least = window.iter().copied().min().unwrap_or(0);
        if least <= 0 || !self.knows() {
            return least;
        }
        let scratch = &mut self.scratch;
        scratch.clear();
        scratch.extend(&self.usual);
        let usual = of_rank(scratch, 2);
        // The least of so many is usually of this rank.
        let usually_least = of_rank(scratch, window.len() + 1);
        let mut late = least - usually_least;
        for part in [window.len().div_ceil(FIRST_PART), window.len()] {
            scratch.clear();
            scratch.extend(window.iter().take(part));
            late = late.min(of_rank(scratch, 2) - usual);
        }
        late.max(0)
    }

    /// A chunk that came so much later than its place on the clock.
    pub(super) fn learn(&mut self, late: i64) {
        if self.usual.len() == REMEMBERED {
            self.usual.pop_front();
        }
        self.usual.push_back(late);
    }
}

/// The value than which one in `share` is less.
fn of_rank(values: &mut [i64], share: usize) -> i64 {
    let rank = values.len() / share;
    if rank < values.len() {
        *values.select_nth_unstable(rank).1
    } else {
        0
    }
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
        // All of them happen to be late, but hardly by more than they often are.
        assert_eq!(lateness.of(&[25, 26, 30, 28, 40, 22, 35]), 1);
        // Behind a gap they are late by it, and by what is usual.
        assert_eq!(lateness.of(&[100, 150, 125, 131, 140, 105, 110]), 94);
        // One comes in time: the others were held up.
        assert_eq!(lateness.of(&[100, 150, 125, 131, 140, 2, 110]), 0);
        // The gap is behind the first ones.
        assert_eq!(lateness.of(&[25, 30, 35, 125, 131, 140, 105, 110]), 5);
        assert_eq!(lateness.of(&[-3, 40]), -3);
    }
}
