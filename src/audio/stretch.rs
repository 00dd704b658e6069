//! Time stretching of live speech without changing its pitch: WSOLA (Verhelst and Roelands 1993). Overlapping segments
//! are taken from the input at a different pace than they are output, each from the position where it best continues
//! the previous segment. Designed for a single voice, not for music; [`super::resample`] changes rates.

use std::f32::consts::PI;
use std::time::Duration;

use super::format::SampleRate;
use super::pcm::saturate;

/// The output per segment, and the length of the cross-fade. Segments are twice as long. Long enough for a period of
/// the lowest voice, short enough not to repeat a syllable's onset.
const HOP: Duration = Duration::from_millis(12);
/// How far from its nominal position a segment may be taken. Both directions together span a period of 62 Hz.
const REACH: Duration = Duration::from_millis(8);
/// The approximate sample rate of the coarse search.
const COARSE_HZ: u32 = 8_000;
/// Input is processed in blocks of this many samples, so that memory is bounded whatever the chunk size.
const BLOCK: usize = 2_048;
/// Independent sums, so that the compiler can use vector registers.
const LANES: usize = 8;

/// A speed out of range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("speed {0} is outside {min} to {max}", min = Speed::SLOWEST.0, max = Speed::FASTEST.0)]
pub struct SpeedError(f64);

/// The speed as a factor: 2 halves the duration.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Speed(f64);

impl Speed {
    /// A quarter of the speed.
    pub const SLOWEST: Self = Self(0.25);
    /// Unchanged.
    pub const NORMAL: Self = Self(1.0);
    /// Four times the speed.
    pub const FASTEST: Self = Self(4.0);

    /// A speed from a factor; anything outside [`Self::SLOWEST`]`..=`[`Self::FASTEST`] is an error.
    pub fn new(factor: f64) -> Result<Self, SpeedError> {
        if (Self::SLOWEST.0..=Self::FASTEST.0).contains(&factor) {
            Ok(Self(factor))
        } else {
            Err(SpeedError(factor))
        }
    }

    /// The factor.
    pub const fn factor(self) -> f64 {
        self.0
    }
}

/// Changes the speed of a mono stream. The output does not depend on how the input is divided into chunks.
#[derive(Debug)]
pub struct Stretch {
    speed: Speed,
    /// [`HOP`] in samples.
    hop: usize,
    /// [`REACH`] in samples.
    reach: usize,
    /// Input that may still be needed.
    input: Vec<f32>,
    /// Samples before it, since the start.
    dropped: u64,
    /// Samples output since the start.
    delivered: u64,
    /// The position of the last segment in the input; `None` before the first.
    last: Option<u64>,
    /// The rising half of a Hann window, [`HOP`] long.
    rise: Vec<f32>,
    search: Search,
}

impl Stretch {
    /// For audio at `rate`, to be played at `speed`.
    pub fn new(rate: SampleRate, speed: Speed) -> Self {
        let hop = rate.frames_in(HOP);
        let rise = (0..hop).map(|n| 0.5 - 0.5 * (PI * (n as f32 + 0.5) / hop as f32).cos());
        Self {
            speed,
            hop,
            reach: rate.frames_in(REACH),
            input: Vec::new(),
            dropped: 0,
            delivered: 0,
            last: None,
            rise: rise.collect(),
            search: Search::new((rate.hz() / COARSE_HZ) as usize),
        }
    }

    /// Takes samples and appends to `output` what is ready.
    pub fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        if self.speed == Speed::NORMAL {
            output.extend_from_slice(input);
            return;
        }
        for block in input.chunks(BLOCK) {
            self.input
                .extend(block.iter().map(|&sample| f32::from(sample)));
            while self.is_certain() {
                let (place, reach) = (self.place(), self.reach as u64);
                let places = Places {
                    first: place.saturating_sub(reach),
                    place,
                    last: place + reach,
                };
                self.put_down(places, self.hop, output);
            }
            self.forget();
        }
    }

    /// Ends the input: appends the rest, so that the output lasts as long as the input divided by the speed. The
    /// stretcher is then as good as new.
    pub fn finish(&mut self, output: &mut Vec<i16>) {
        let accepted = self.accepted();
        let owed = (accepted as f64 / self.speed.0).round() as u64;
        // Audio shorter than a segment is padded with silence.
        self.input
            .resize(self.input.len() + 2 * (self.hop + self.reach), 0.0);
        while self.delivered < owed {
            // The last segments end with the input rather than at their nominal positions, so that the end is heard at
            // any speed; those before are taken where they are complete.
            let rest = usize::try_from(owed - self.delivered).unwrap_or(usize::MAX);
            let latest = accepted.saturating_sub(rest.min(2 * self.hop) as u64);
            let place = if rest > 2 * self.hop {
                self.place()
            } else {
                latest
            };
            let last = latest.min(place + self.reach as u64);
            let first = last.saturating_sub(2 * self.reach as u64);
            let places = Places { first, place, last };
            self.put_down(places, rest.min(self.hop), output);
        }
        self.input.clear();
        (self.dropped, self.delivered, self.last) = (0, 0, None);
    }

    /// Samples received since the start.
    fn accepted(&self) -> u64 {
        self.dropped + self.input.len() as u64
    }

    /// The nominal position of the next segment in the input.
    fn place(&self) -> u64 {
        (self.delivered as f64 * self.speed.0) as u64
    }

    /// Whether the next segment no longer depends on future input: all its candidate positions have arrived, it is
    /// complete (two hops: one for output, one for continuation), and enough follows to fade in the end of the audio.
    fn is_certain(&self) -> bool {
        let accepted = self.accepted();
        let end = (self.delivered + 2 * self.hop as u64) as f64 * self.speed.0;
        self.place() + (self.reach + 2 * self.hop) as u64 <= accepted && end <= accepted as f64
    }

    /// Takes the next segment and appends `length` samples, at most a hop.
    fn put_down(&mut self, places: Places, length: usize, output: &mut Vec<i16>) {
        let Places { first, place, last } = places;
        let at = |place: u64| (place - self.dropped) as usize;
        let from = if let Some(before) = self.last {
            let expected = &self.input[at(before + self.hop as u64)..][..self.hop];
            let region = &self.input[at(first)..at(last) + self.hop];
            let nominal = place.clamp(first, last) - first;
            let from = first + self.search.best(expected, region, nominal as usize) as u64;
            let piece = &self.input[at(from)..][..self.hop];
            let faded = piece.iter().zip(expected).zip(&self.rise);
            let samples = faded.map(|((new, old), rise)| saturate(old + (new - old) * rise));
            output.extend(samples.take(length));
            from
        } else {
            let piece = &self.input[..length];
            output.extend(piece.iter().map(|&sample| saturate(sample)));
            0
        };
        self.last = Some(from);
        self.delivered += length as u64;
    }

    /// Drops input that no segment can need any more.
    fn forget(&mut self) {
        let going_on = self.last.map_or(0, |last| last + self.hop as u64);
        let searched = self.place().saturating_sub(self.reach as u64);
        let at_the_end = self
            .accepted()
            .saturating_sub(2 * (self.hop + self.reach) as u64);
        let needed = going_on.min(searched).min(at_the_end);
        let unneeded = needed.saturating_sub(self.dropped) as usize;
        self.input.drain(..unneeded);
        self.dropped += unneeded as u64;
    }
}

/// The candidate positions of a segment, in samples since the start; `place` is preferred.
#[derive(Debug, Clone, Copy)]
struct Places {
    first: u64,
    place: u64,
    last: u64,
}

/// Finds the position most similar to the expected continuation: first coarsely, then sample by sample.
#[derive(Debug)]
struct Search {
    /// The decimation of the coarse search.
    step: usize,
    expected: Vec<f32>,
    region: Vec<f32>,
}

impl Search {
    fn new(step: usize) -> Self {
        Self {
            step: step.max(1),
            expected: Vec::new(),
            region: Vec::new(),
        }
    }

    /// The offset in `region` most similar to `expected`; `nominal` if no other is better.
    fn best(&mut self, expected: &[f32], region: &[f32], nominal: usize) -> usize {
        let last = region.len() - expected.len();
        if self.step == 1 {
            return most_alike(expected, region, 0..=last, nominal);
        }
        let coarse = |samples: &[f32], means: &mut Vec<f32>| {
            means.clear();
            means.extend(
                samples
                    .chunks_exact(self.step)
                    .map(|of| of.iter().sum::<f32>()),
            );
        };
        coarse(expected, &mut self.expected);
        coarse(region, &mut self.region);
        let offsets = 0..=self.region.len() - self.expected.len();
        let place = (nominal / self.step).min(*offsets.end());
        let near = most_alike(&self.expected, &self.region, offsets, place);
        let near = if near == place {
            nominal
        } else {
            near * self.step
        };
        let around = near.saturating_sub(self.step)..=(near + self.step).min(last);
        most_alike(expected, region, around, near.min(last))
    }
}

/// The offset among `offsets` with the highest normalised correlation with `expected`; `nominal` (one of them) unless
/// another is better.
fn most_alike(
    expected: &[f32],
    region: &[f32],
    offsets: std::ops::RangeInclusive<usize>,
    nominal: usize,
) -> usize {
    let alike = |offset: usize| {
        let piece = &region[offset..offset + expected.len()];
        // One is added to handle silence; samples are integers, so it is negligible otherwise.
        dot(piece, expected) / (dot(piece, piece) + 1.0).sqrt()
    };
    let mut best = (nominal, alike(nominal));
    for offset in offsets {
        let alike = alike(offset);
        if alike > best.1 {
            best = (offset, alike);
        }
    }
    best.0
}

/// The dot product of two slices of the same length.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (left, left_rest) = left.as_chunks::<LANES>();
    let (right, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left.iter().zip(right) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest = left_rest
        .iter()
        .zip(right_rest)
        .map(|(left, right)| left * right);
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use proptest::prelude::*;

    use super::*;

    const SPEEDS: [f64; 9] = [0.25, 0.4, 0.5, 0.8, 0.97, 1.1, 1.5, 2.0, 4.0];

    fn stretch(rate: u32, speed: f64, input: &[i16], chunk: usize) -> Vec<i16> {
        let rate = SampleRate::new(rate).unwrap();
        let mut stretch = Stretch::new(rate, Speed::new(speed).unwrap());
        let mut output = Vec::new();
        for chunk in input.chunks(chunk) {
            stretch.push(chunk, &mut output);
            stretch.push(&[], &mut output);
        }
        stretch.finish(&mut output);
        output
    }

    fn tone(hz: f64, rate: u32) -> Vec<i16> {
        (0..rate)
            .map(|n| (20_000.0 * (TAU * hz * f64::from(n) / f64::from(rate)).sin()).round() as i16)
            .collect()
    }

    /// A second of a vowel: glottal pulses through two resonances.
    fn vowel(pitch_hz: f64, rate: u32) -> Vec<i16> {
        let period = f64::from(rate) / pitch_hz;
        let pulse = |n: u32| f64::from(u8::from(f64::from(n) % period < 1.0));
        let mut sound: Vec<f64> = (0..rate).map(pulse).collect();
        for (formant_hz, bandwidth_hz) in [(700.0, 90.0), (1_220.0, 110.0)] {
            let radius = (-TAU / 2.0 * bandwidth_hz / f64::from(rate)).exp();
            let turn = 2.0 * radius * (TAU * formant_hz / f64::from(rate)).cos();
            for n in 2..sound.len() {
                sound[n] += turn * sound[n - 1] - radius * radius * sound[n - 2];
            }
        }
        let peak = sound.iter().fold(0.0_f64, |peak, x| peak.max(x.abs()));
        sound.iter().map(|x| (x / peak * 20_000.0) as i16).collect()
    }

    /// Frequency from upward zero crossings, interpolating the ends.
    fn frequency(sound: &[i16], rate: u32) -> f64 {
        let crossings: Vec<f64> = sound
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| pair[0] < 0 && pair[1] >= 0)
            .map(|(n, pair)| {
                let (below, above) = (f64::from(pair[0]), f64::from(pair[1]));
                n as f64 + below / (below - above)
            })
            .collect();
        let time = crossings[crossings.len() - 1] - crossings[0];
        (crossings.len() - 1) as f64 / time * f64::from(rate)
    }

    /// Pitch from the autocorrelation between 60 and 400 Hz.
    fn pitch(sound: &[i16], rate: u32) -> f64 {
        let lags = rate as usize / 400..=rate as usize / 60;
        let alike = |lag: usize| -> f64 {
            let pairs = sound.iter().zip(&sound[lag..]);
            let sum: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            sum / (sound.len() - lag) as f64
        };
        // Multiples of the period are as good as the period: take the shortest, at its peak.
        let most = lags.clone().map(alike).fold(f64::MIN, f64::max);
        let good = |&lag: &usize| alike(lag) > 0.85 * most && alike(lag) >= alike(lag + 1);
        let best = lags.clone().find(good).unwrap();
        f64::from(rate) / best as f64
    }

    fn rms(sound: &[i16]) -> f64 {
        let squares: f64 = sound.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        (squares / sound.len() as f64).sqrt()
    }

    fn steepest(sound: &[i16]) -> u16 {
        let jumps = sound.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
        jumps.max().unwrap_or(0)
    }

    #[test]
    fn a_tone_keeps_its_pitch_its_level_and_its_smoothness() {
        for rate in [8_000, 24_000, 44_100] {
            for hz in [97.3, 211.7, 440.0, 1_234.5, 3_100.0] {
                let input = tone(hz, rate);
                for speed in SPEEDS {
                    let output = stretch(rate, speed, &input, 441);
                    let context = format!("{hz} Hz at {rate} Hz, speed {speed}");
                    let heard = frequency(&output, rate);
                    assert!((heard / hz - 1.0).abs() < 0.005, "{context}: {heard} Hz");
                    let level = 20.0 * (rms(&output) / rms(&input)).log10();
                    assert!(level.abs() < 1.0, "{context}: {level} dB");
                    let (jump, own) = (steepest(&output), steepest(&input));
                    assert!(
                        f64::from(jump) < 1.1 * f64::from(own),
                        "{context}: {jump}, {own}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_voice_keeps_its_pitch() {
        for rate in [8_000, 16_000, 48_000] {
            for pitch_hz in [80.0, 120.0, 230.0] {
                let input = vowel(pitch_hz, rate);
                for speed in [0.25, 0.6, 1.3, 4.0] {
                    let heard = pitch(&stretch(rate, speed, &input, 1_000), rate);
                    let close = (heard / pitch_hz - 1.0).abs() < 0.02;
                    assert!(close, "{heard} Hz for {pitch_hz} at {rate}, speed {speed}");
                }
            }
        }
    }

    #[test]
    fn normal_speed_is_the_same_sound_at_once() {
        let mut stretch = Stretch::new(SampleRate::HZ_8000, Speed::NORMAL);
        let mut output = Vec::new();
        stretch.push(&[1, i16::MIN, i16::MAX], &mut output);
        assert_eq!(output, [1, i16::MIN, i16::MAX]);
        stretch.finish(&mut output);
        assert_eq!(output.len(), 3);
    }

    #[test]
    fn the_beginning_and_the_end_of_the_sound_are_heard() {
        for speed in SPEEDS {
            // Silence with a loud start and a loud end of 30 ms each.
            let mut input = tone(300.0, 8_000);
            input[240..7_760].fill(0);
            let output = stretch(8_000, speed, &input, 160);
            assert!(rms(&output[..60]) > 10_000.0, "start at speed {speed}");
            assert!(
                rms(&output[output.len() - 50..]) > 10_000.0,
                "end at speed {speed}"
            );
        }
    }

    #[test]
    fn a_speed_out_of_range_is_an_error() {
        for factor in [0.0, 0.249, 4.001, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Speed::new(factor).is_err(), "{factor}");
        }
        assert!(Speed::new(0.25).is_ok() && Speed::new(4.0).is_ok());
    }

    #[test]
    fn memory_does_not_grow_with_the_sound() {
        for speed in SPEEDS {
            let mut stretch = Stretch::new(SampleRate::HZ_8000, Speed::new(speed).unwrap());
            let mut output = Vec::new();
            for _ in 0..20 {
                output.clear();
                stretch.push(&tone(300.0, 8_000), &mut output);
                assert!(stretch.input.capacity() < 4 * BLOCK, "speed {speed}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_sound_in_any_chunks_lasts_as_long_as_it_should(
            rate in prop_oneof![Just(8_000_u32), Just(22_050), 8_000_u32..=192_000],
            speed in 0.25..=4.0_f64,
            input in proptest::collection::vec(any::<i16>(), 0..6000),
            chunk in 1_usize..3000,
        ) {
            let output = stretch(rate, speed, &input, chunk);
            prop_assert_eq!(output.len(), (input.len() as f64 / speed).round() as usize);
            prop_assert_eq!(output, stretch(rate, speed, &input, input.len().max(1)));
        }

        #[test]
        fn the_lowest_sample_everywhere_stays_there(speed in 0.25..=4.0_f64, length in 400_usize..4000) {
            let output = stretch(8_000, speed, &vec![i16::MIN; length], 160);
            prop_assert!(output.iter().all(|&sample| sample == i16::MIN));
        }
    }
}
