//! Ducking: the gain of speech while somebody speaks over it. It ramps between full and ducked, so that nothing clicks.

use std::time::Duration;

use vivavoce_audio::Layout;

/// About 15 dB below full.
const DUCKED: f32 = 0.178;
/// Length of a ramp from silence to full.
const RAMP: Duration = Duration::from_millis(40);

/// The gain of one output while it is ducked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DuckingGain {
    now: f32,
    target: f32,
}

impl DuckingGain {
    pub(super) const FULL: Self = Self {
        now: 1.0,
        target: 1.0,
    };
    pub(super) const SILENT: Self = Self {
        now: 0.0,
        target: 0.0,
    };

    /// Ramps down to the ducked gain.
    pub(super) const fn duck(&mut self) {
        self.target = DUCKED;
    }

    /// Ramps up to full.
    pub(super) const fn rise(&mut self) {
        self.target = 1.0;
    }

    /// Applies it to the samples that are played next. At full gain they stay as they are, bit for bit.
    pub(super) fn apply(&mut self, samples: &mut [i16], layout: Layout) {
        let step = 1.0 / layout.samples_in(RAMP).max(1) as f32;
        for sample in samples {
            let way = self.target - self.now;
            if way.abs() > step {
                self.now += step.copysign(way);
            } else if self.target < 1.0 {
                self.now = self.target;
            } else {
                *self = Self::FULL;
                return;
            }
            *sample = (f32::from(*sample) * self.now).round() as i16;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_audio::SampleRate;

    #[test]
    fn it_ducks_and_rises_without_a_step_and_leaves_the_rest_alone() {
        let layout = Layout::mono(SampleRate::HZ_16000);
        let mut gain = DuckingGain::FULL;
        let mut sound = vec![10_000; 4_000];
        gain.apply(&mut sound[..1_000], layout);
        gain.duck();
        gain.apply(&mut sound[1_000..2_000], layout);
        gain.rise();
        gain.apply(&mut sound[2_000..], layout);
        assert!(sound.windows(2).all(|pair| (pair[0] - pair[1]).abs() <= 17));
        assert_eq!(sound[999], 10_000);
        assert_eq!(sound[1_999], 1_780);
        assert_eq!(sound[3_999], 10_000);
        assert_eq!(gain, DuckingGain::FULL);
        let mut silent = DuckingGain::SILENT;
        silent.apply(&mut sound, layout);
        assert!(sound.iter().all(|sample| *sample == 0));
    }
}
