//! The gate before the network: it is asked about sound that may be speech, and not about noise that stays as it is.

use std::collections::VecDeque;

use super::{Decider, Score, VadSettings};
use crate::pcm::energy;

/// A score under which a frame is certainly no speech, whatever the threshold.
const NO_VOICE: f32 = 0.35;
/// After this many frames without voice the network is asked about louder sound only: it remembers nothing else by then.
const CALM: u32 = 8;
/// How much louder than its noise sound must become for the network to be asked about it, as a ratio of energies: 2 dB.
/// Speech that raises the level by less is 2 dB below the noise, where the network does not find it either.
const HEADROOM: f32 = 1.6;
/// The share of a frame in the level of the noise: an average over half a second.
const ADAPTATION: f32 = 1.0 / 32.0;
/// How much fainter than the noise sound must have become for the noise to be over, as a ratio of energies: 4 dB. What is heard
/// in what follows is found out anew, as a voice may be fainter than what was there before it.
const FAINTER: f32 = 2.5;
/// For how many frames.
const OVER: u32 = 4;
/// How many of the frames that it was not asked about the network hears before louder sound, in which its beginning is.
const LOOKS_BACK: usize = 4;

/// The same scores, but for noise that stays as loud as it is: the network is not asked about that, and its last score,
/// which was that of noise, stands.
pub fn sparing(mut network: Score, settings: VadSettings) -> Score {
    let mut gate = Gate::new(settings);
    Box::new(move |frame| gate.score(frame, &mut network))
}

/// Decides which frames the network is asked about.
#[derive(Debug)]
struct Gate {
    /// The score under which a frame is no voice.
    no_voice: f32,
    /// The last score.
    score: f32,
    /// Frames without voice in a row, up to [`CALM`], where the gate closes.
    calm: u32,
    /// The energy of a frame of the noise, a mean.
    level: f32,
    /// Frames in a row that are much fainter than the noise.
    fainter: u32,
    /// The level when the gate closed. A voice that grows slowly must not become noise.
    closed_at: f32,
    /// The last frames that the network was not asked about.
    missed: VecDeque<Box<[i16]>>,
}

impl Gate {
    fn new(settings: VadSettings) -> Self {
        Self {
            no_voice: NO_VOICE.min(Decider::new(settings).leave),
            score: 0.0,
            calm: 0,
            level: 0.0,
            fainter: 0,
            closed_at: 0.0,
            missed: VecDeque::with_capacity(LOOKS_BACK),
        }
    }

    fn score(&mut self, frame: &[i16], network: &mut Score) -> f32 {
        let energy = energy(frame);
        if self.calm == CALM {
            self.fainter = if energy * FAINTER < self.level {
                self.fainter + 1
            } else {
                0
            };
            if energy <= self.level * HEADROOM && self.fainter < OVER {
                let level = self.level + (energy - self.level) * ADAPTATION;
                self.level = level.min(self.closed_at);
                self.miss(frame);
                return self.score;
            }
            for missed in &self.missed {
                network(missed);
            }
            self.missed.clear();
            self.calm = 0;
            self.fainter = 0;
        }
        self.score = network(frame);
        if self.score >= self.no_voice {
            self.calm = 0;
        } else {
            self.level = if self.calm == 0 {
                energy
            } else {
                self.level + (energy - self.level) / (self.calm + 1) as f32
            };
            self.calm += 1;
            self.closed_at = self.level;
        }
        self.score
    }

    /// Keeps a frame for when the network is asked again.
    fn miss(&mut self, frame: &[i16]) {
        if self.missed.len() < LOOKS_BACK {
            self.missed.push_back(frame.into());
        } else if let Some(mut oldest) = self.missed.pop_front() {
            oldest.copy_from_slice(frame);
            self.missed.push_back(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FRAME;
    use super::*;

    /// A gate's network that notes what it is asked about, by its first sample, and always finds this much voice.
    fn noting(voice: f32) -> (Score, std::sync::mpsc::Receiver<i16>) {
        let (asked, about) = std::sync::mpsc::channel();
        let score = move |frame: &[i16]| {
            let _ = asked.send(frame[0]);
            voice
        };
        (Box::new(score), about)
    }

    /// A frame of this loudness, which begins with its number.
    fn numbered(number: i16, loudness: i16) -> Vec<i16> {
        let mut frame = vec![loudness; FRAME];
        frame[0] = number;
        frame
    }

    #[test]
    fn the_network_is_asked_about_louder_sound_and_hears_how_it_began() {
        let (network, asked) = noting(0.1);
        let mut score = sparing(network, VadSettings::default());
        let calm = CALM as i16;
        for number in 0..100 {
            assert!((score(&numbered(number, 1_000)) - 0.1).abs() < f32::EPSILON);
        }
        assert!(asked.try_iter().eq(0..calm));
        // A fifth louder is 1.6 dB.
        score(&numbered(100, 1_200));
        assert_eq!(asked.try_iter().count(), 0);
        // A third louder is 2.5 dB.
        score(&numbered(101, 1_333));
        assert!(asked.try_iter().eq([97, 98, 99, 100, 101]));
        // What it has heard once it does not hear again.
        score(&numbered(102, 1_000));
        assert!(asked.try_iter().eq([102]));
    }

    #[test]
    fn voice_that_grows_slowly_does_not_become_noise() {
        let (network, asked) = noting(0.1);
        let mut score = sparing(network, VadSettings::default());
        // 6 dB in eight seconds.
        for number in 0..500 {
            score(&numbered(number, 1_000 + 2 * number));
        }
        let louder = asked.try_iter().find(|number| *number > CALM as i16);
        assert!(louder.is_some_and(|number| number < 150), "{louder:?}");
    }

    #[test]
    fn what_follows_loud_noise_is_heard_however_faint_it_is() {
        let (network, asked) = noting(0.1);
        let mut score = sparing(network, VadSettings::default());
        let mut hear = |first: i16, loudness: i16| {
            for number in first..first + 60 {
                score(&numbered(number, loudness));
            }
        };
        hear(0, 8_000);
        hear(100, 0);
        hear(200, 2_000);
        hear(300, 500);
        let asked: Vec<_> = asked.try_iter().collect();
        // Of what is fainter the network hears all, as the frames before are heard again.
        for first in [100, 200, 300] {
            let heard = (first..first + CALM as i16).all(|number| asked.contains(&number));
            assert!(heard, "{first}: {asked:?}");
        }
        assert!(asked.len() < 80, "{asked:?}");
    }

    #[test]
    fn the_network_is_asked_about_every_frame_of_voice() {
        for (voice, threshold) in [(0.4, 0.65), (0.02, 0.02)] {
            let (network, asked) = noting(voice);
            let settings = VadSettings {
                threshold,
                ..VadSettings::default()
            };
            let mut score = sparing(network, settings);
            for number in 0..100 {
                score(&numbered(number, 1_000));
            }
            assert!(asked.try_iter().eq(0..100), "{voice}");
        }
    }
}
