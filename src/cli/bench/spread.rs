//! The distribution of a measured time: median and 99th percentile.

use serde::Serialize;

/// Milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// Of how many.
    pub(super) count: usize,
}

impl Spread {
    /// By nearest rank; `None` of nothing.
    pub(super) fn of(times_ms: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut times: Vec<f64> = times_ms.into_iter().collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (times.len() as f64 * share).ceil() as usize;
            times.get(rank.max(1) - 1).copied()
        };
        Some(Self {
            p50_ms: at(0.5)?,
            p99_ms: at(0.99)?,
            max_ms: times.last().copied()?,
            count: times.len(),
        })
    }

    /// `p50 / p99`.
    pub(super) fn shown(of: Option<Self>) -> String {
        of.map_or_else(
            || "–".to_owned(),
            |spread| format!("{:.1} / {:.1}", spread.p50_ms, spread.p99_ms),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_sorted_times() {
        let spread = Spread::of((1..=200).rev().map(f64::from)).unwrap();
        let expected = Spread {
            p50_ms: 100.0,
            p99_ms: 198.0,
            max_ms: 200.0,
            count: 200,
        };
        assert_eq!(spread, expected);
        assert_eq!(Spread::shown(Spread::of([7.0])), "7.0 / 7.0");
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::shown(Spread::of([1.25, 3.0])), "1.2 / 3.0");
    }
}
