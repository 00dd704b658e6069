//! Pacing: how much audio may be sent now so that a listener who plays it as it arrives is never more than a small lead
//! behind, and how much has been played. A pure calculation; the queue and the timer belong to the caller.

use std::time::{Duration, Instant};

/// The default lead over real time.
pub const LEAD: Duration = Duration::from_millis(200);

/// The playback clock of a listener. Durations are those of the decoded audio.
#[derive(Debug, Clone)]
pub struct Pacer {
    lead: Duration,
    /// When the last sample sent will have been played.
    played_out: Option<Instant>,
    /// Everything sent and not cut.
    left: Duration,
}

impl Pacer {
    /// A pacer with at most `lead`.
    pub const fn new(lead: Duration) -> Self {
        Self {
            lead,
            played_out: None,
            left: Duration::ZERO,
        }
    }

    /// How much may be sent now. A chunk is sent when it fits entirely.
    pub fn allowance(&self, now: Instant) -> Duration {
        self.lead.saturating_sub(self.unplayed(now))
    }

    /// How long to wait until `chunk` may be sent; zero means now. A chunk longer than the lead may be sent when
    /// nothing is left to play.
    pub fn wait(&self, now: Instant, chunk: Duration) -> Duration {
        let room = self.lead.saturating_sub(chunk);
        self.unplayed(now).saturating_sub(room)
    }

    /// Records that `sound` is sent now. After a gap the clock starts anew.
    pub fn leave(&mut self, now: Instant, sound: Duration) {
        let start = self.played_out.map_or(now, |end| end.max(now));
        self.played_out = Some(start + sound);
        self.left += sound;
    }

    /// What has been sent and not been played yet.
    pub fn unplayed(&self, now: Instant) -> Duration {
        self.played_out
            .map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
    }

    /// How much has been played since the start.
    pub fn played(&self, now: Instant) -> Duration {
        self.left.saturating_sub(self.unplayed(now))
    }

    /// When everything sent will have been played; `None` before anything was sent.
    pub const fn played_out(&self) -> Option<Instant> {
        self.played_out
    }

    /// The listener drops what has not been played: the clock stops at `now`. Returns how much that was.
    pub fn clear(&mut self, now: Instant) -> Duration {
        let cut = self.unplayed(now);
        self.left = self.left.saturating_sub(cut);
        self.played_out = self.played_out.map(|end| end.min(now));
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: Duration = Duration::from_millis(20);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Lets as many chunks leave as may.
    fn drain(pacer: &mut Pacer, now: Instant, chunk: Duration) -> u32 {
        let mut count = 0;
        while pacer.wait(now, chunk).is_zero() {
            pacer.leave(now, chunk);
            count += 1;
        }
        count
    }

    #[test]
    fn the_lead_leaves_at_once_and_then_one_chunk_every_twenty_milliseconds() {
        let start = Instant::now();
        let mut pacer = Pacer::new(LEAD);
        assert_eq!(drain(&mut pacer, start, CHUNK), 10);
        assert_eq!(pacer.allowance(start), Duration::ZERO);
        assert_eq!(pacer.wait(start, CHUNK), CHUNK);
        assert_eq!(drain(&mut pacer, start + ms(19), CHUNK), 0);
        assert_eq!(drain(&mut pacer, start + ms(20), CHUNK), 1);
        assert_eq!(pacer.played(start + ms(20)), ms(20));
    }

    #[test]
    fn sound_after_a_gap_is_not_rushed() {
        let start = Instant::now();
        let mut pacer = Pacer::new(LEAD);
        pacer.leave(start, CHUNK);
        let later = start + ms(5_000);
        assert_eq!(pacer.played(later), CHUNK);
        assert_eq!(drain(&mut pacer, later, CHUNK), 10);
    }

    #[test]
    fn cleared_sound_does_not_count_as_played() {
        let start = Instant::now();
        let mut pacer = Pacer::new(LEAD);
        drain(&mut pacer, start, CHUNK);
        let now = start + ms(50);
        assert_eq!(pacer.clear(now), ms(150));
        assert_eq!(pacer.played(now + ms(1_000)), ms(50));
        assert_eq!(pacer.allowance(now), LEAD);
    }

    #[test]
    fn a_chunk_longer_than_the_lead_leaves_when_the_last_one_was_played() {
        let start = Instant::now();
        let mut pacer = Pacer::new(ms(100));
        assert!(pacer.wait(start, ms(250)).is_zero());
        pacer.leave(start, ms(250));
        assert_eq!(pacer.wait(start + ms(50), ms(250)), ms(200));
        assert!(pacer.wait(start + ms(250), ms(250)).is_zero());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn ten_minutes_do_not_drift(
            // Frames of a chunk at 44.1 kHz, which are no whole number of nanoseconds.
            frames in 441usize..2_000,
            delays_us in prop::collection::vec(0u64..15_000, 64),
        ) {
            let rate = crate::SampleRate::new(44_100u64).unwrap();
            let chunk = rate.duration_of(frames);
            let start = Instant::now();
            let mut pacer = Pacer::new(LEAD);
            let mut left = 0usize;
            let mut now = start;
            let mut delays = delays_us.iter().cycle();
            while now - start < Duration::from_mins(10) {
                left += drain(&mut pacer, now, chunk) as usize * frames;
                let ahead = rate.duration_of(left).checked_sub(now - start);
                // Never more than the lead ahead, never so late that the listener runs dry.
                prop_assert!(ahead.is_some_and(|ahead| ahead <= LEAD + ms(1)));
                prop_assert!(ahead.is_some_and(|ahead| ahead + chunk + ms(1) >= LEAD));
                // The timer fires late by any amount below the lead.
                let late = Duration::from_micros(*delays.next().unwrap());
                now += pacer.wait(now, chunk) + late;
            }
        }
    }
}
