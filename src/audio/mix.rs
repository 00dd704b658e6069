//! Mixing of mono sources, each with a gain that may change linearly over time; the sum is clipped at full scale. All
//! sources of a mix have the same rate.

use std::time::Duration;

use super::format::SampleRate;
use super::pcm::saturate;

/// The duration of a fade that is neither noticed as such nor clicks.
pub const FADE: Duration = Duration::from_millis(30);

/// An amplitude factor from 0 (silence) to [`Gain::MAX`]. Values outside are clamped; NaN is silence.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Gain(f32);

impl Gain {
    /// Silence.
    pub const SILENCE: Self = Self(0.0);
    /// Unchanged.
    pub const UNITY: Self = Self(1.0);
    /// Four times the amplitude, 12 dB.
    pub const MAX: Self = Self(4.0);

    /// A gain from a factor.
    pub const fn new(factor: f32) -> Self {
        if factor.is_nan() {
            Self::SILENCE
        } else {
            Self(factor.clamp(Self::SILENCE.0, Self::MAX.0))
        }
    }

    /// The factor.
    pub const fn factor(self) -> f32 {
        self.0
    }
}

/// The gain of a source over time: constant, or moving from one value to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fader {
    from: f32,
    to: f32,
    /// Length of the fade, in samples; 0 when there is none.
    length: usize,
    /// Samples of it that have passed.
    passed: usize,
}

impl Fader {
    /// A constant gain.
    pub const fn new(gain: Gain) -> Self {
        Self {
            from: gain.0,
            to: gain.0,
            length: 0,
            passed: 0,
        }
    }

    /// Moves linearly from the current gain to another over `time`; at once if that is zero.
    pub fn fade_to(&mut self, gain: Gain, rate: SampleRate, time: Duration) {
        *self = Self {
            from: self.gain().0,
            to: gain.0,
            length: rate.frames_in(time),
            passed: 0,
        };
    }

    /// The gain of the next sample.
    pub fn gain(&self) -> Gain {
        Gain(self.at(self.passed))
    }

    /// Whether the gain is constant.
    pub const fn is_settled(&self) -> bool {
        self.passed >= self.length
    }

    fn at(&self, sample: usize) -> f32 {
        if sample < self.length {
            self.from + (self.to - self.from) * (sample as f32 / self.length as f32)
        } else {
            self.to
        }
    }

    /// Calls `each` with the gain of every sample, and advances.
    fn run(&mut self, samples: usize, mut each: impl FnMut(usize, f32)) {
        let fading = samples.min(self.length - self.passed);
        for sample in 0..fading {
            each(sample, self.at(self.passed + sample));
        }
        self.passed += fading;
        for sample in fading..samples {
            each(sample, self.to);
        }
    }

    /// Applies the gain in place.
    pub fn apply(&mut self, sound: &mut [i16]) {
        self.run(sound.len(), |sample, gain| {
            sound[sample] = saturate(f32::from(sound[sample]) * gain);
        });
    }
}

/// Sums up one block after another, reusing its memory.
#[derive(Debug, Default)]
pub struct Mixer {
    sum: Vec<f32>,
}

impl Mixer {
    /// Begins a block of `length` silent samples.
    pub fn begin(&mut self, samples: usize) {
        self.sum.clear();
        self.sum.resize(samples, 0.0);
    }

    /// Adds a source. A shorter source is padded with silence, the excess of a longer one is ignored; the fader
    /// advances by the length of the block.
    pub fn add(&mut self, source: &[i16], fader: &mut Fader) {
        let heard = source.len().min(self.sum.len());
        let (sum, source) = (&mut self.sum[..heard], &source[..heard]);
        fader.run(heard, |sample, gain| {
            sum[sample] += f32::from(source[sample]) * gain;
        });
        fader.run(self.sum.len() - heard, |_, _| {});
    }

    /// Ends the block: appends the sum, clipped at full scale.
    pub fn finish(&mut self, output: &mut Vec<i16>) {
        output.extend(self.sum.drain(..).map(saturate));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mix(sources: &[Vec<i16>], samples: usize) -> Vec<i16> {
        let mut mixer = Mixer::default();
        mixer.begin(samples);
        for source in sources {
            mixer.add(source, &mut Fader::new(Gain::UNITY));
        }
        let mut output = Vec::new();
        mixer.finish(&mut output);
        output
    }

    #[test]
    fn a_gain_is_always_a_number_within_its_range() {
        for (factor, gain) in [
            (f32::NAN, Gain::SILENCE),
            (-1.0, Gain::SILENCE),
            (f32::INFINITY, Gain::MAX),
            (1.0, Gain::UNITY),
        ] {
            assert_eq!(Gain::new(factor), gain);
        }
    }

    #[test]
    fn the_loudest_sounds_together_are_full_scale() {
        assert_eq!(mix(&vec![vec![i16::MIN; 3]; 100], 3), [i16::MIN; 3]);
        assert_eq!(mix(&vec![vec![i16::MAX; 3]; 100], 3), [i16::MAX; 3]);
    }

    #[test]
    fn a_short_source_is_silent_for_the_rest_and_a_long_one_is_cut() {
        assert_eq!(mix(&[vec![1], vec![2, 3, 4]], 2), [3, 3]);
        assert!(mix(&[vec![1]], 0).is_empty());
        assert_eq!(mix(&[], 2), [0, 0]);
    }

    #[test]
    fn a_fade_is_a_straight_line_of_thirty_milliseconds() {
        let rate = SampleRate::HZ_8000;
        let mut fader = Fader::new(Gain::SILENCE);
        fader.fade_to(Gain::UNITY, rate, FADE);
        let mut sound = vec![24_000; 300];
        fader.apply(&mut sound);
        for (n, &sample) in (0_i16..).zip(&sound) {
            assert_eq!(sample, (n * 100).min(24_000));
        }
        assert!(fader.is_settled());
    }

    #[test]
    fn a_fade_that_turns_round_goes_on_from_where_it_was() {
        let rate = SampleRate::HZ_8000;
        let mut fader = Fader::new(Gain::UNITY);
        fader.fade_to(Gain::SILENCE, rate, FADE);
        let mut sound = vec![10_000; 120];
        fader.apply(&mut sound);
        assert_eq!(fader.gain(), Gain::new(0.5));
        fader.fade_to(Gain::UNITY, rate, FADE);
        let mut sound = vec![10_000; 1];
        fader.apply(&mut sound);
        assert_eq!(sound, [5_000]);
        fader.fade_to(Gain::SILENCE, rate, Duration::ZERO);
        assert_eq!((fader.gain(), fader.is_settled()), (Gain::SILENCE, true));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn silence_and_a_sound_are_that_sound(sound: Vec<i16>) {
            prop_assert_eq!(mix(&[vec![0; sound.len()], sound.clone()], sound.len()), sound);
        }

        #[test]
        fn the_sum_is_exact_up_to_full_scale(
            sources in proptest::collection::vec(proptest::collection::vec(any::<i16>(), 40), 0..8),
        ) {
            let expected: Vec<i16> = (0..40)
                .map(|n| sources.iter().map(|source| i64::from(source[n])).sum::<i64>())
                .map(|sum| sum.clamp(i16::MIN.into(), i16::MAX.into()) as i16)
                .collect();
            prop_assert_eq!(mix(&sources, 40), expected);
        }

        #[test]
        fn a_fade_does_not_depend_on_the_blocks(
            sound in proptest::collection::vec(any::<i16>(), 0..600),
            block in 1_usize..200,
            (from, to) in (0.0_f32..4.0, 0.0_f32..4.0),
        ) {
            let mut whole = Fader::new(Gain::new(from));
            whole.fade_to(Gain::new(to), SampleRate::HZ_8000, FADE);
            let mut blocks = whole;
            let mut expected = sound.clone();
            whole.apply(&mut expected);
            let (mut mixer, mut output) = (Mixer::default(), Vec::new());
            for block in sound.chunks(block) {
                mixer.begin(block.len());
                mixer.add(block, &mut blocks);
                mixer.finish(&mut output);
            }
            prop_assert_eq!(output, expected);
            prop_assert_eq!(whole, blocks);
        }
    }
}
