//! Statistics of packet arrivals: transit times, losses and duplicates. All times are in ticks of a room's clock, as in the module above.

use std::collections::VecDeque;

/// How much of the past is considered.
const WINDOW: i64 = 10 * 48_000;
/// Packets that are closer together count as one, the slowest of them: playout is in steps of 20 ms.
const GRAIN: i64 = 960;
/// After a pause of this length the publisher's clock may have drifted relative to ours.
const PAUSE: i64 = 48_000;
/// One packet in this many may be too late for the depth: waiting for all would be waiting for outliers.
const OUTLIERS: usize = 100;

/// Transit times up to a constant: arrival minus timestamp. Their differences are the jitter, their drift is that of
/// the publisher's clock.
#[derive(Debug, Default)]
pub(super) struct Transits {
    /// At most one per [`GRAIN`] of [`WINDOW`].
    recent: VecDeque<Recent>,
    /// Their transits in sorted order: sorting for each packet would cost more than decoding it.
    sorted: Vec<i32>,
    /// The timestamp of the newest of them.
    newest: i64,
    /// What transits are counted from: that of the first packet.
    origin: i64,
    fastest: i64,
    slow: i64,
}

/// A packet that has come: half as large as with all of its numbers, as each track keeps hundreds.
#[derive(Debug, Clone, Copy)]
struct Recent {
    /// The lower half of its timestamp.
    at: u32,
    /// From [`Transits::origin`].
    transit: i32,
}

impl Recent {
    /// How long before `timestamp` it was, at most half of what can be counted.
    const fn before(self, timestamp: i64) -> i64 {
        lower(timestamp).wrapping_sub(self.at).cast_signed() as i64
    }
}

const fn lower(timestamp: i64) -> u32 {
    (timestamp & u32::MAX as i64) as u32
}

impl Transits {
    /// Records a packet.
    pub(super) fn push(&mut self, timestamp: i64, transit: i64) {
        if self.recent.is_empty() {
            self.origin = transit;
        }
        // Beyond half a day it is no transit.
        let since = (transit - self.origin).clamp(i32::MIN.into(), i32::MAX.into());
        let transit = since as i32;
        if !self.recent.is_empty() && timestamp - self.newest > PAUSE {
            self.carry_over(timestamp, transit);
        }
        match self.recent.back_mut() {
            // Includes packets that were overtaken: they count by their arrival.
            Some(newest) if timestamp - self.newest < GRAIN => {
                if transit <= newest.transit && since >= self.fastest - self.origin {
                    return;
                }
                let slower = transit.max(newest.transit);
                let before = std::mem::replace(&mut newest.transit, slower);
                self.forget(before);
                self.note(slower);
            }
            _ => {
                let at = lower(timestamp);
                self.newest = timestamp;
                self.recent.push_back(Recent { at, transit });
                self.note(transit);
            }
        }
        while let Some(oldest) = self.recent.front()
            && oldest.before(timestamp) > WINDOW
        {
            let transit = oldest.transit;
            self.recent.pop_front();
            self.forget(transit);
        }
        self.evaluate(transit);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.recent.clear();
        self.sorted.clear();
    }

    /// The transit of the fastest packet; `None` before the first.
    pub(super) fn fastest(&self) -> Option<i64> {
        (!self.recent.is_empty()).then_some(self.fastest)
    }

    /// How much slower than the fastest the slowest were, except for outliers.
    pub(super) const fn spread(&self) -> i64 {
        self.slow - self.fastest
    }

    /// After a pause the jitter is as before, but the clocks may not be.
    fn carry_over(&mut self, timestamp: i64, transit: i32) {
        let median = self.sorted.get(self.sorted.len() / 2).copied();
        let drift = transit.saturating_sub(median.unwrap_or(transit));
        let pause = lower(timestamp - self.newest - GRAIN);
        for recent in &mut self.recent {
            recent.at = recent.at.wrapping_add(pause);
            recent.transit = recent.transit.saturating_add(drift);
        }
        for transit in &mut self.sorted {
            *transit = transit.saturating_add(drift);
        }
        self.newest = timestamp - GRAIN;
    }

    fn note(&mut self, transit: i32) {
        let place = self.sorted.partition_point(|other| *other < transit);
        self.sorted.insert(place, transit);
    }

    fn forget(&mut self, transit: i32) {
        if let Ok(place) = self.sorted.binary_search(&transit) {
            self.sorted.remove(place);
        }
    }

    fn evaluate(&mut self, latest: i32) {
        let last = self.sorted.len().saturating_sub(1);
        let slow = last - self.sorted.len() / OUTLIERS;
        let fastest = self.sorted.first().copied().unwrap_or(latest);
        let slow = self.sorted.get(slow).copied().unwrap_or(latest);
        self.fastest = self.origin + i64::from(fastest);
        self.slow = self.origin + i64::from(slow);
    }
}

/// The packets received, by sequence number. Counts as RFC 3550 does (appendix A.3): lost packets were expected and
/// never received, whether in time or not.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    highest: Option<u64>,
    /// A bit for [`Self::highest`] and each of those before it.
    seen: u128,
    expected: u64,
    received: u64,
    duplicates: u64,
}

impl Sequences {
    /// Records a number; false if it was received before.
    pub(super) fn push(&mut self, sequence: u64) -> bool {
        let Some(highest) = self.highest else {
            self.highest = Some(sequence);
            self.seen = 1;
            self.expected += 1;
            self.received += 1;
            return true;
        };
        if sequence > highest {
            let ahead = sequence - highest;
            let shifted = u32::try_from(ahead)
                .ok()
                .and_then(|by| self.seen.checked_shl(by));
            self.seen = shifted.unwrap_or(0) | 1;
            self.highest = Some(sequence);
            self.expected += ahead;
        } else {
            // Numbers from further back cannot be told from duplicates, and are useless anyway.
            let bit = u32::try_from(highest - sequence)
                .ok()
                .and_then(|by| 1_u128.checked_shl(by));
            match bit {
                Some(bit) if self.seen & bit == 0 => self.seen |= bit,
                _ => {
                    self.duplicates += 1;
                    return false;
                }
            }
        }
        self.received += 1;
        true
    }

    /// The next number starts a new sequence; the sums continue.
    pub(super) const fn restart(&mut self) {
        self.highest = None;
        self.seen = 0;
    }

    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    pub(super) const fn duplicates(&self) -> u64 {
        self.duplicates
    }

    pub(super) const fn lost(&self) -> u64 {
        self.expected.saturating_sub(self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_all_but_one_in_a_hundred() {
        let mut transits = Transits::default();
        for n in 0..500 {
            let slow = match n % 100 {
                99 => 9_000,
                _ => n % 10 * 100,
            };
            transits.push(n * 960, 5_000 + slow);
        }
        assert_eq!(transits.fastest(), Some(5_000));
        assert_eq!(transits.spread(), 900);
    }

    /// In whatever order packets come, and after pauses too.
    #[test]
    fn transits_are_in_order_at_any_time() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut transits = Transits::default();
        let mut timestamp = 0;
        for _ in 0..5_000 {
            timestamp += match random.u8(..) {
                0 => 3 * PAUSE,
                1..=20 => -2_880,
                _ => 960,
            };
            transits.push(timestamp, random.i64(0..4_000));
            let recent = transits.recent.iter();
            let mut expected: Vec<i32> = recent.map(|recent| recent.transit).collect();
            expected.sort_unstable();
            assert_eq!(transits.sorted, expected);
            let fastest = transits.origin + i64::from(expected[0]);
            assert_eq!(transits.fastest, fastest);
        }
    }

    /// Beyond what half of a number can count, too.
    #[test]
    fn a_day_is_as_a_minute() {
        let mut transits = Transits::default();
        let day = 24 * 3_600 * 48_000_i64;
        for start in [
            0,
            i64::from(u32::MAX) - 240_000,
            day,
            day + i64::from(i32::MAX),
        ] {
            for n in 0..600 {
                transits.push(start + n * 960, 7_000 + n % 10 * 100);
                assert!(transits.recent.len() <= 501);
            }
            assert_eq!(transits.fastest(), Some(7_000));
            assert_eq!(transits.spread(), 900);
        }
        transits.clear();
        transits.push(0, 0);
        transits.push(960, i64::MAX / 8);
        assert_eq!(transits.spread(), i64::from(i32::MAX));
    }

    #[test]
    fn one_slow_packet_among_the_first_counts_at_once() {
        let mut transits = Transits::default();
        transits.push(0, 100);
        transits.push(960, 4_100);
        assert_eq!(transits.spread(), 4_000);
    }

    #[test]
    fn after_a_pause_the_jitter_is_remembered_and_the_drift_is_not_taken_for_jitter() {
        let mut transits = Transits::default();
        for n in 0..500 {
            transits.push(n * 960, n % 10 * 100);
        }
        let hour = 3_600 * 48_000;
        transits.push(hour, 50_000);
        assert!(transits.spread() <= 1_000);
        assert!((49_000..=50_000).contains(&transits.fastest().unwrap()));
    }

    #[test]
    fn lost_ones_doubles_and_late_ones_are_told_apart() {
        let mut sequences = Sequences::default();
        let fresh = [7, 8, 10, 8, 9, 9, 13, 500, 12].map(|number| sequences.push(number));
        assert_eq!(
            fresh,
            [true, true, true, false, true, false, true, true, false]
        );
        assert_eq!(sequences.received(), 6);
        assert_eq!(sequences.duplicates(), 3);
        assert_eq!(sequences.lost(), 500 - 7 + 1 - 6);
        sequences.restart();
        assert!(sequences.push(3));
        assert_eq!(sequences.received(), 7);
        assert_eq!(sequences.lost(), 500 - 7 + 1 - 6);
    }
}
