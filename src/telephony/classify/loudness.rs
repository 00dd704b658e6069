//! Whether somebody speaks near the telephone: the level of sound against the quietest and the loudest of the last seconds. Voice
//! activity alone takes people in the background, and steady noise, for somebody who has answered.

use vivavoce_audio::tones::HOP;

/// Hops of a level: 30 ms.
const SMOOTHED: usize = 3;
/// Hops whose highest level counts: 160 ms, as long as a syllable is quiet.
const HELD: usize = 16;
pub const HELD_SAMPLES: u64 = (HELD * HOP) as u64;
/// Hops of a half of the time in which the quietest is looked for.
const HALF: u32 = 60;
/// Speech is louder than this …
const LEAST_DBFS: f32 = -50.0;
/// … than the quietest by so much, …
const ABOVE_FLOOR_DB: f32 = 7.0;
/// … and than the loudest minus this.
const BELOW_LOUDEST_DB: f32 = 14.0;
/// Silence, in decibels.
const SILENCE_DBFS: f32 = -100.0;

/// See the module.
#[derive(Debug)]
pub struct Loudness {
    energies: [f32; SMOOTHED],
    levels: [f32; HELD],
    hops: u32,
    /// The quietest of this half, and of the one before.
    floors: [f32; 2],
    loudest: f32,
}

impl Loudness {
    /// At the start of a stream.
    pub const fn new() -> Self {
        Self {
            energies: [0.0; SMOOTHED],
            levels: [SILENCE_DBFS; HELD],
            hops: 0,
            floors: [0.0; 2],
            loudest: SILENCE_DBFS,
        }
    }

    /// Takes a hop; `speaks` tells whether it may be speech.
    pub fn take(&mut self, sound: &[i16], speaks: bool) {
        let square = |sample: &i16| (f32::from(*sample) / 32_768.0).powi(2);
        let energy = sound.iter().map(square).sum::<f32>() / HOP as f32;
        self.energies.rotate_right(1);
        self.energies[0] = energy;
        let mean = self.energies.iter().sum::<f32>() / SMOOTHED as f32;
        let level = (10.0 * mean.max(1e-10).log10()).max(SILENCE_DBFS);
        self.levels.rotate_right(1);
        self.levels[0] = level;
        if self.hops.is_multiple_of(HALF) {
            self.floors = [level, self.floors[0]];
        }
        self.floors[0] = self.floors[0].min(level);
        self.hops = self.hops.wrapping_add(1);
        if speaks {
            self.loudest = self.loudest.max(level);
        }
    }

    /// The level of the last 30 ms.
    pub const fn now(&self) -> f32 {
        self.levels[0]
    }

    /// The highest level of the last 160 ms.
    pub fn level(&self) -> f32 {
        self.levels.iter().copied().fold(SILENCE_DBFS, f32::max)
    }

    /// Whether it is loud enough for somebody who has answered.
    pub fn is_near(&self) -> bool {
        let level = self.level();
        let floor = self.floors[0].min(self.floors[1]);
        level >= LEAST_DBFS
            && level >= floor + ABOVE_FLOOR_DB
            && level >= self.loudest - BELOW_LOUDEST_DB
    }

    /// What was heard so far was in the background.
    pub const fn restart(&mut self) {
        self.loudest = SILENCE_DBFS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound(amplitude: i16) -> Vec<i16> {
        (0..HOP)
            .map(|n| if n % 2 == 0 { amplitude } else { -amplitude })
            .collect()
    }

    #[test]
    fn a_voice_is_louder_than_what_is_behind_it() {
        let mut loudness = Loudness::new();
        let mut hear = |amplitude, hops: u32| {
            for _ in 0..hops {
                loudness.take(&sound(amplitude), true);
            }
            loudness.is_near()
        };
        assert!(!hear(0, 50));
        assert!(hear(4_000, 20), "a voice after silence");
        assert!(!hear(400, 50), "the background is 20 dB lower");
        assert!(hear(2_000, 20), "the voice again, somewhat lower");
        assert!(!hear(2_000, 300), "it is steady noise");
        assert!(!hear(40, 300), "too quiet for anybody");
    }
}
