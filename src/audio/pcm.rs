//! Audio in memory: interleaved signed 16-bit samples with their rate and channels, so that audio cannot be labelled
//! with a rate it does not have.

use std::time::Duration;

use super::format::{Channels, Layout, SampleRate};

/// A piece of audio. It always consists of whole frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pcm {
    layout: Layout,
    samples: Vec<i16>,
}

impl Pcm {
    /// Audio from interleaved samples. An incomplete frame at the end is dropped.
    pub fn new(layout: Layout, mut samples: Vec<i16>) -> Self {
        let whole = samples.len() - samples.len() % layout.channels.count();
        samples.truncate(whole);
        Self { layout, samples }
    }

    /// Empty audio.
    pub const fn empty(layout: Layout) -> Self {
        Self {
            layout,
            samples: Vec::new(),
        }
    }

    /// Digital silence of this duration.
    pub fn silence(layout: Layout, time: Duration) -> Self {
        Self {
            layout,
            samples: vec![0; layout.samples_in(time)],
        }
    }

    /// Rate and channels.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Frames per second.
    pub const fn rate(&self) -> SampleRate {
        self.layout.rate
    }

    /// The interleaved samples.
    pub fn samples(&self) -> &[i16] {
        &self.samples
    }

    /// Consumes the audio and returns its samples.
    pub fn into_samples(self) -> Vec<i16> {
        self.samples
    }

    /// Samples per channel.
    pub fn frames(&self) -> usize {
        self.samples.len() / self.layout.channels.count()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The duration.
    pub fn duration(&self) -> Duration {
        self.layout.rate.duration_of(self.frames())
    }

    /// The audio as mono: the mean of left and right.
    pub fn into_mono(self) -> Self {
        match self.layout.channels {
            Channels::Mono => self,
            Channels::Stereo => Self {
                layout: Layout::mono(self.layout.rate),
                samples: self
                    .samples
                    .chunks_exact(2)
                    .map(|frame| i32::midpoint(i32::from(frame[0]), i32::from(frame[1])) as i16)
                    .collect(),
            },
        }
    }

    /// The audio as stereo: mono is copied to both channels.
    pub fn into_stereo(self) -> Self {
        match self.layout.channels {
            Channels::Stereo => self,
            Channels::Mono => Self {
                layout: Layout::new(self.layout.rate, Channels::Stereo),
                samples: self
                    .samples
                    .iter()
                    .flat_map(|&sample| [sample, sample])
                    .collect(),
            },
        }
    }

    /// The audio with this number of channels.
    pub fn into_channels(self, channels: Channels) -> Self {
        match channels {
            Channels::Mono => self.into_mono(),
            Channels::Stereo => self.into_stereo(),
        }
    }
}

/// The nearest sample value; values out of range are clamped.
pub(super) fn saturate(value: f32) -> i16 {
    // For floats of this magnitude the last bit of the mantissa is worth one, so the addition rounds (to even) and the
    // integer can be read off; unlike `f32::round`, this needs no function call on any processor.
    const UNIT_FRACTION: f32 = 12_582_912.0;
    let within = value.clamp(f32::from(i16::MIN), f32::from(i16::MAX));
    (within + UNIT_FRACTION).to_bits() as i16
}

/// The sum of the squares, as eight partial sums, so that the compiler can use vector instructions.
pub fn energy(samples: &[i16]) -> f32 {
    let (eights, rest) = samples.as_chunks::<8>();
    let mut sums = [0.0_f32; 8];
    for eight in eights {
        for (sum, sample) in sums.iter_mut().zip(eight) {
            *sum += f32::from(*sample) * f32::from(*sample);
        }
    }
    let rest = rest.iter().map(|sample| f32::from(*sample).powi(2));
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

/// The level in −dBov: 0 is the loudest, 127 is silence (RFC 6464, section 3).
pub fn level_dbov(samples: &[i16]) -> u8 {
    let mean = f64::from(energy(samples)) / (samples.len() as f64).max(1.0);
    if mean < 1.0 {
        return 127;
    }
    let below = -10.0 * (mean / f64::from(i16::MAX).powi(2)).log10();
    below.clamp(0.0, 127.0).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_odd_stereo_buffer_loses_its_half_frame_and_nothing_else() {
        let stereo = Layout::new(SampleRate::HZ_16000, Channels::Stereo);
        let sound = Pcm::new(stereo, vec![1, 2, 3]);
        assert_eq!(sound.samples(), [1, 2]);
        assert_eq!(Pcm::new(stereo, Vec::new()).duration(), Duration::ZERO);
    }

    #[test]
    fn twenty_milliseconds_are_three_hundred_and_twenty_frames_at_sixteen_kilohertz() {
        let sound = Pcm::silence(
            Layout::mono(SampleRate::HZ_16000),
            Duration::from_millis(20),
        );
        assert_eq!(sound.frames(), 320);
        assert_eq!(sound.duration(), Duration::from_millis(20));
    }

    #[test]
    fn values_become_the_nearest_sample_within_the_range() {
        for (value, sample) in [
            (0.4, 0),
            (-0.6, -1),
            (12_344.6, 12_345),
            (40_000.0, i16::MAX),
            (-40_000.0, i16::MIN),
            (f32::INFINITY, i16::MAX),
            (f32::NEG_INFINITY, i16::MIN),
        ] {
            assert_eq!(saturate(value), sample, "{value}");
        }
        assert!((i16::MIN..=i16::MAX).all(|sample| saturate(f32::from(sample)) == sample));
    }

    proptest! {
        #[test]
        fn mono_to_stereo_and_back_is_the_same_sound(samples: Vec<i16>) {
            let mono = Pcm::new(Layout::mono(SampleRate::HZ_8000), samples);
            prop_assert_eq!(mono.clone().into_stereo().into_mono(), mono);
        }

        #[test]
        fn mixing_down_never_overflows(left: i16, right: i16) {
            let stereo = Pcm::new(Layout::new(SampleRate::HZ_8000, Channels::Stereo), vec![left, right]);
            let mono = stereo.into_mono().into_samples()[0];
            prop_assert!((left.min(right)..=left.max(right)).contains(&mono));
        }
    }
}
