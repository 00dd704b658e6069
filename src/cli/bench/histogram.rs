//! Histograms as `GET /metrics` shows them, and quantiles derived from them.

use std::collections::BTreeMap;
use std::time::Duration;

/// Counts by bucket, bounds ascending.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Histogram {
    /// Upper bound in seconds (the last is infinite), and how many lay below it and above the one before.
    buckets: Vec<(f64, u64)>,
}

impl From<Vec<(f64, u64)>> for Histogram {
    fn from(buckets: Vec<(f64, u64)>) -> Self {
        Self { buckets }
    }
}

impl Histogram {
    /// The histogram of this name on a page of metrics; empty when it is not there.
    pub(super) fn on_page(page: &str, name: &str) -> Self {
        let samples = page.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?.strip_prefix("_bucket{le=\"")?;
            let (bound, count) = rest.split_once("\"} ")?;
            // The bound of the last is written "+Inf", which is a number to Rust too.
            Some((bound.parse().ok()?, count.trim().parse().ok()?))
        });
        // On the page each bucket holds those below it too.
        let mut below = 0;
        let buckets = samples.map(|(bound, cumulative): (f64, u64)| {
            let count = cumulative.saturating_sub(below);
            below = cumulative;
            (bound, count)
        });
        Self {
            buckets: buckets.collect(),
        }
    }

    /// What has been counted since `earlier`, a former state of the same histogram.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let former: BTreeMap<u64, u64> = earlier
            .buckets
            .iter()
            .map(|(bound, count)| (bound.to_bits(), *count))
            .collect();
        let grown = self.buckets.iter().map(|(bound, count)| {
            let before = former.get(&bound.to_bits()).copied().unwrap_or(0);
            (*bound, count.saturating_sub(before))
        });
        Self {
            buckets: grown.collect(),
        }
    }

    /// How many were counted.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The time below which this share (0–1) lies, evenly spread within its bucket; beyond the last finite bound that
    /// bound. `None` where nothing was counted.
    pub(super) fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = self.count() as f64 * share;
        let mut below = 0.0;
        let mut lower = 0.0;
        for &(bound, count) in self.buckets.iter().filter(|(_, count)| *count > 0) {
            lower = self.lower_bound(bound);
            let inside = (rank - below) / count as f64;
            if inside <= 1.0 {
                let width = if bound.is_finite() {
                    bound - lower
                } else {
                    0.0
                };
                return Some(Duration::from_secs_f64(lower + width * inside.max(0.0)));
            }
            below += count as f64;
        }
        (below > 0.0).then(|| Duration::from_secs_f64(lower))
    }

    fn lower_bound(&self, upper: f64) -> f64 {
        let lower = self.buckets.iter().rev().find(|(bound, _)| *bound < upper);
        lower.map_or(0.0, |(bound, _)| *bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_gives_the_histogram_back() {
        let page = "# TYPE x_delay_seconds histogram\nx_delay_seconds_sum 1.5\nx_delay_seconds_count 7\n\
            x_delay_seconds_bucket{le=\"0.00001\"} 2\nx_delay_seconds_bucket{le=\"0.002\"} 6\n\
            x_delay_seconds_bucket{le=\"+Inf\"} 7\nother_seconds_bucket{le=\"+Inf\"} 9\n";
        let expected = Histogram::from(vec![(0.000_01, 2), (0.002, 4), (f64::INFINITY, 1)]);
        assert_eq!(Histogram::on_page(page, "x_delay_seconds"), expected);
        assert_eq!(Histogram::on_page(page, "y_seconds").count(), 0);
    }

    #[test]
    fn only_what_came_since_counts() {
        let before = Histogram::from(vec![(0.1, 10), (f64::INFINITY, 1)]);
        let after = Histogram::from(vec![(0.1, 13), (f64::INFINITY, 1)]);
        let grown = after.since(&before);
        assert_eq!(grown, Histogram::from(vec![(0.1, 3), (f64::INFINITY, 0)]));
        assert_eq!(after.since(&Histogram::default()), after);
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let histogram = Histogram::from(vec![
            (0.001, 50),
            (0.002, 0),
            (0.004, 50),
            (f64::INFINITY, 0),
        ]);
        let ms = |share| histogram.quantile(share).unwrap().as_secs_f64() * 1e3;
        for (share, expected) in [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 3.0), (1.0, 4.0)] {
            assert!(
                (ms(share) - expected).abs() < 1e-6,
                "{share}: {}",
                ms(share)
            );
        }
        let late = Histogram::from(vec![(0.5, 0), (1.0, 0), (f64::INFINITY, 3)]);
        assert_eq!(late.quantile(0.5), Some(Duration::from_secs(1)));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
