//! A sound on its way to the phone: a prompt, or music that is played while the call waits. It is kept once for all calls,
//! at the rate of rooms, and converted as it is played.

use std::sync::Arc;

use vivavoce_audio::Bandwidth;
use vivavoce_audio::resample::EvenResampler;

/// Samples of a frame of the sound.
const FRAME: usize = Bandwidth::Fullband.frame();

/// See the module.
#[derive(Debug)]
pub struct Clip {
    sound: Arc<[i16]>,
    /// The place in it.
    at: usize,
    /// Whether it is played again and again.
    repeats: bool,
    resampler: EvenResampler,
}

impl Clip {
    /// For a call of this bandwidth; `None` if there is nothing to play.
    pub fn new(sound: Arc<[i16]>, repeats: bool, bandwidth: Bandwidth) -> Option<Self> {
        (!sound.is_empty()).then(|| Self {
            sound,
            at: 0,
            repeats,
            resampler: resampler(bandwidth),
        })
    }

    /// The call has another bandwidth from now on.
    pub fn convert(&mut self, bandwidth: Bandwidth) {
        self.resampler = resampler(bandwidth);
    }

    /// Adds the next 20 ms to what the phone hears. `false` once it is over.
    pub fn add_to(&mut self, heard: &mut [i16]) -> bool {
        let due = self.sound.get(self.at..).unwrap_or_default();
        let due = due.get(..FRAME).unwrap_or(due);
        self.resampler.push(due);
        self.resampler.push(&[0; FRAME][due.len()..]);
        let said = self.resampler.take(heard.len());
        for (sample, said) in heard.iter_mut().zip(said) {
            *sample = sample.saturating_add(said);
        }
        self.at += FRAME;
        if self.repeats && self.at >= self.sound.len() {
            self.at = 0;
        }
        // Its end is held back when the last of it is given to the resampler.
        self.at < self.sound.len() + FRAME
    }
}

fn resampler(bandwidth: Bandwidth) -> EvenResampler {
    EvenResampler::new(Bandwidth::Fullband.rate(), bandwidth.rate())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound(length: usize) -> Arc<[i16]> {
        (0..length)
            .map(|n| ((n as f32 * 0.03).sin() * 8_000.0) as i16)
            .collect()
    }

    /// Converted as it is played, it is what it is when it is converted at once, up to its last sample.
    #[test]
    fn a_clip_is_heard_to_its_end_at_every_rate() {
        for bandwidth in Bandwidth::ALL {
            for length in [5 * FRAME, 5 * FRAME + 300] {
                let mut clip = Clip::new(sound(length), false, bandwidth).unwrap();
                let mut heard = Vec::new();
                let mut goes_on = true;
                while goes_on {
                    let mut frame = vec![0; bandwidth.frame()];
                    goes_on = clip.add_to(&mut frame);
                    heard.extend(frame);
                }
                let mut resampler = resampler(bandwidth);
                resampler.push(&sound(length));
                resampler.push(&[0; 2 * FRAME]);
                let whole: Vec<i16> = resampler.take(heard.len()).collect();
                assert!(heard == whole, "{bandwidth:?}, {length}");
                // All of it, with its end, which rings for a moment where it is cut off.
                let end = length / bandwidth.ticks();
                let loud = |sample: &i16| sample.abs() > 1_000;
                assert!(
                    heard[end - 20..end].iter().any(loud),
                    "{bandwidth:?}, {length}"
                );
                let late = bandwidth.frame() / 4;
                assert!(heard[end + late..].iter().all(|sample| *sample == 0));
            }
        }
    }

    #[test]
    fn music_is_played_again_and_nothing_is_not_played() {
        let mut clip = Clip::new(sound(FRAME), true, Bandwidth::Narrowband).unwrap();
        for _ in 0..50 {
            let mut frame = vec![0; 160];
            assert!(clip.add_to(&mut frame));
            assert!(frame.iter().any(|sample| *sample != 0));
        }
        assert!(Clip::new(Arc::from([]), true, Bandwidth::Narrowband).is_none());
    }

    #[test]
    fn what_is_heard_already_stays() {
        let mut clip = Clip::new(sound(FRAME), false, Bandwidth::Fullband).unwrap();
        let mut heard = vec![i16::MAX; FRAME];
        clip.add_to(&mut heard);
        assert!(heard.contains(&i16::MAX));
        assert_eq!(heard[5], i16::MAX);
    }
}
