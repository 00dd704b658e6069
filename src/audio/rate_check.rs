//! Whether speech can have the rate that its samples are said to have. Samples that are taken for those of a lower rate sound
//! slower and lower, and the other way round: the pitch of the voice and the middle of its spectrum move together, by the
//! ratio of the rates. Their mean is alike for all voices within a factor of two, so that a ratio of three is told with
//! hardly a doubt, one of two where the voice is not a high one that became a low one. Where it cannot be told, nothing is.

use std::fmt;
use std::sync::{Arc, LazyLock};

use vivavoce_fft::{Complex32, ComplexToReal, RealToComplex, forward, inverse};

use super::vad::RATE;

/// How speech sounds whose rate cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongRate {
    /// Too slow and too low: the true rate is higher.
    Slow,
    /// Too fast and too high: the true rate is lower.
    Fast,
}

/// What is looked at once: 128 ms, several periods of the lowest voice at a third of its rate.
const FRAME: usize = 2_048;
/// The distance of two looks, and the most of them at one stretch of speech: they take the time of the session's thread.
const STEP: usize = 1_600;
const MAX_LOOKS: usize = 6;
/// Pitch is looked for at half the rate.
const PITCH_RATE: f32 = 8_000.0;
const PITCH_FRAME: usize = FRAME / 2;
/// Zeros behind the frame, more than the longest period, so that its correlation does not wrap around.
const PITCH_FFT: usize = 2 * PITCH_FRAME;
/// The shortest period, 1 kHz, and the longest, 25 Hz.
const PERIODS: std::ops::Range<usize> = 8..320;
/// How alike two periods of a voice are.
const VOICED: f32 = 0.6;
/// The middle of the spectrum is looked for in frames of this length.
const SPECTRUM_FRAME: usize = PITCH_FRAME;
/// A frame whose mean square is less is no speech: −50 dBFS.
const FAINT: f32 = 100.0 * 100.0;
/// After so many looks it is over: there is no voice in what is taken for speech.
const MOST_LOOKS: usize = 200;
/// After how many voiced looks it is decided. The third decision is the last.
const DECISIONS: [usize; 3] = [16, 24, 48];
/// A tone, or the hum of the mains, has its pitch all the time within 3 %; so has hardly a voice.
const STEADY: f32 = 0.03;
const STEADY_SHARE: f32 = 0.7;
/// The mean of pitch and middle in Hz beyond which the rate cannot be true. Of 68 recordings of people and of synthetic voices,
/// sixteen voiced looks each, it was between 120 and 531 (99 of 100: 147 to 515); at a third of the rate 96 in the middle, at
/// three times of it 850. Over a telephone, in noise, with hum, and muffled it was no further out.
const LOWEST: f32 = 118.0;
const HIGHEST: f32 = 640.0;
/// Where no voice can be whose rate is a third or three times of what it is said to be: then the first decision is the last.
const SURE: std::ops::Range<f32> = 180.0..360.0;
/// How much the pitch counts; the rest is the middle's.
const PITCH_WEIGHT: f32 = 0.4;

/// What so many voiced looks say.
enum Verdict {
    Wrong(WrongRate),
    True,
    /// More may tell.
    Open,
}

/// Listens to the speech of one stream until it is known, or has been for long enough.
#[derive(Default)]
pub struct RateCheck {
    looks: usize,
    /// Of the voiced looks, in Hz.
    pitches: Vec<f32>,
    /// The sum of the power spectra.
    spectrum: Vec<f32>,
    decisions: usize,
}

/// Of all streams: their tables are larger than all else that a check keeps.
static TRANSFORMS: LazyLock<Transforms> = LazyLock::new(Transforms::default);

struct Transforms {
    pitch: Arc<dyn RealToComplex<f32>>,
    back: Arc<dyn ComplexToReal<f32>>,
    spectrum: Arc<dyn RealToComplex<f32>>,
    /// What the correlation of the window alone would be.
    taper: Vec<f32>,
    /// A Hann window, of a frame of pitch and of one of the spectrum.
    window: Vec<f32>,
}

impl Default for Transforms {
    fn default() -> Self {
        let mut transforms = Self {
            pitch: forward(PITCH_FFT),
            back: inverse(PITCH_FFT),
            spectrum: forward(SPECTRUM_FRAME),
            taper: Vec::new(),
            window: hann(PITCH_FRAME),
        };
        let flat = vec![1.0; PITCH_FRAME];
        transforms.taper = transforms.correlation(&flat).unwrap_or_default();
        transforms
    }
}

impl fmt::Debug for RateCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (voiced, decisions) = (self.pitches.len(), self.decisions);
        write!(
            f,
            "RateCheck {{ voiced: {voiced}, decisions: {decisions} }}"
        )
    }
}

impl RateCheck {
    /// Whether there is nothing more to be told.
    pub const fn is_over(&self) -> bool {
        self.decisions >= DECISIONS.len() || self.looks >= MOST_LOOKS
    }

    /// Takes a stretch of speech, at the rate of voice activity detection. Tells what is wrong once.
    pub fn hear(&mut self, speech: &[i16]) -> Option<WrongRate> {
        if self.is_over() {
            return None;
        }
        let step = STEP.max(speech.len() / MAX_LOOKS);
        for frame in speech.windows(FRAME).step_by(step) {
            self.look(frame);
        }
        let due = *DECISIONS.get(self.decisions)?;
        if self.pitches.len() < due {
            return None;
        }
        self.decisions += 1;
        let verdict = self.verdict();
        if matches!(verdict, Verdict::Wrong(_) | Verdict::True) {
            self.decisions = DECISIONS.len();
        }
        match verdict {
            Verdict::Wrong(wrong) => Some(wrong),
            Verdict::True | Verdict::Open => None,
        }
    }

    fn look(&mut self, frame: &[i16]) {
        let frame: Vec<f32> = frame.iter().map(|&sample| f32::from(sample)).collect();
        let power: f32 = frame.iter().map(|sample| sample * sample).sum();
        if power < FAINT * frame.len() as f32 {
            return;
        }
        self.looks += 1;
        let transforms = &*TRANSFORMS;
        self.pitches.extend(transforms.pitch_of(&frame));
        self.spectrum.resize(SPECTRUM_FRAME / 2 + 1, 0.0);
        for half in frame.chunks_exact(SPECTRUM_FRAME) {
            transforms.add_spectrum(half, &mut self.spectrum);
        }
    }

    fn verdict(&self) -> Verdict {
        let Some(pitch) = median(&self.pitches) else {
            return Verdict::Open;
        };
        let is_near = |other: &&f32| (*other / pitch - 1.0).abs() < STEADY;
        let near = self.pitches.iter().filter(is_near).count();
        if near as f32 > STEADY_SHARE * self.pitches.len() as f32 {
            return Verdict::Open;
        }
        let middle = self.middle();
        let mean = pitch.powf(PITCH_WEIGHT) * middle.powf(1.0 - PITCH_WEIGHT);
        match mean {
            mean if mean < LOWEST => Verdict::Wrong(WrongRate::Slow),
            mean if mean > HIGHEST => Verdict::Wrong(WrongRate::Fast),
            mean if SURE.contains(&mean) => Verdict::True,
            _ => Verdict::Open,
        }
    }

    /// The frequency that has half of the energy below it.
    fn middle(&self) -> f32 {
        let half = self.spectrum.iter().sum::<f32>() / 2.0;
        let mut below = 0.0;
        let reaches_half = |power: &f32| {
            below += power;
            below >= half
        };
        let bin = self.spectrum.iter().position(reaches_half).unwrap_or(0);
        bin as f32 * RATE.hz() as f32 / SPECTRUM_FRAME as f32
    }
}

impl Transforms {
    /// The pitch of a frame in Hz, where it has one.
    fn pitch_of(&self, frame: &[f32]) -> Option<f32> {
        let halved: Vec<f32> = frame
            .chunks_exact(2)
            .map(|pair| pair.iter().sum::<f32>() / 2.0)
            .collect();
        let mean = halved.iter().sum::<f32>() / halved.len().max(1) as f32;
        let centred: Vec<f32> = halved.iter().map(|sample| sample - mean).collect();
        let correlation = self.correlation(&centred)?;
        let alike = |period: usize| -> f32 {
            let at = |of: &[f32]| of.get(period).copied().unwrap_or_default();
            at(&correlation) / at(&self.taper).max(f32::MIN_POSITIVE)
        };
        // Near neighbours are alike in any sound: what counts lies behind the first place where they are not.
        let first = PERIODS.clone().find(|&period| alike(period) < 0.3)?;
        let best = (first..PERIODS.end).map(alike).fold(0.0, f32::max);
        if best < VOICED {
            return None;
        }
        // Two periods are as alike as one.
        let is_peak = |&period: &usize| {
            let here = alike(period);
            here >= 0.9 * best && here >= alike(period - 1) && here >= alike(period + 1)
        };
        let period = (first..PERIODS.end).find(is_peak)?;
        Some(PITCH_RATE / period as f32)
    }

    /// How alike a windowed frame is to itself, by the distance, beginning with 1.
    fn correlation(&self, frame: &[f32]) -> Option<Vec<f32>> {
        let mut padded = self.windowed(frame);
        padded.resize(PITCH_FFT, 0.0);
        let mut bins = self.pitch.make_output_vec();
        self.pitch.process(&mut padded, &mut bins).ok()?;
        for bin in &mut bins {
            *bin = Complex32::new(bin.norm_sqr(), 0.0);
        }
        self.back.process(&mut bins, &mut padded).ok()?;
        padded.truncate(PERIODS.end + 1);
        let whole = padded.first().copied().filter(|&whole| whole > 0.0)?;
        padded.iter_mut().for_each(|value| *value /= whole);
        Some(padded)
    }

    fn windowed(&self, frame: &[f32]) -> Vec<f32> {
        let both = frame.iter().zip(&self.window);
        both.map(|(sample, weight)| sample * weight).collect()
    }

    fn add_spectrum(&self, frame: &[f32], sum: &mut [f32]) {
        let mut frame = self.windowed(frame);
        let mut bins = self.spectrum.make_output_vec();
        if self.spectrum.process(&mut frame, &mut bins).is_ok() {
            for (sum, bin) in sum.iter_mut().zip(&bins) {
                *sum += bin.norm_sqr();
            }
        }
    }
}

/// A Hann window of this length.
fn hann(length: usize) -> Vec<f32> {
    let step = std::f32::consts::TAU / length as f32;
    let shape = |n: usize| 0.5 - 0.5 * (step * n as f32).cos();
    (0..length).map(shape).collect()
}

fn median(values: &[f32]) -> Option<f32> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of vowels, with a melody, of a voice of this pitch; `slower` than it speaks.
    fn voice(pitch: f32, slower: f32, seconds: usize) -> Vec<i16> {
        const VOWELS: [[f32; 3]; 4] = [
            [700.0, 1_200.0, 2_600.0],
            [300.0, 2_200.0, 2_900.0],
            [450.0, 900.0, 2_500.0],
            [550.0, 1_700.0, 2_500.0],
        ];
        // The vocal tract of a high voice is shorter.
        let shorter = (pitch / 120.0).powf(0.25);
        let mut phase = 0.0_f32;
        let sample = |n: usize| {
            let time = n as f32 / 16_000.0 / slower;
            let melody = pitch * (1.0 + 0.2 * (std::f32::consts::TAU * 0.25 * time).sin()) / slower;
            phase = (phase + melody / 16_000.0).fract();
            let formants = VOWELS[(time * 4.0) as usize % VOWELS.len()];
            let harmonics = (7_000.0 / melody) as usize;
            let sum: f32 = (1..=harmonics.min(60))
                .map(|k| {
                    let hz = k as f32 * melody * slower / shorter;
                    let resonance = |f: &f32| 1.0 / (1.0 + ((hz - f) / 80.0).powi(2));
                    let gain: f32 = formants.iter().map(resonance).sum::<f32>() + 0.01;
                    let tilt = (120.0 / hz).min(1.0);
                    gain * tilt * (std::f32::consts::TAU * phase * k as f32).sin()
                })
                .sum();
            (sum * 6_000.0) as i16
        };
        (0..16_000 * seconds).map(sample).collect()
    }

    fn heard(sound: &[i16]) -> Option<WrongRate> {
        let mut check = RateCheck::default();
        sound.chunks(24_000).find_map(|speech| check.hear(speech))
    }

    #[test]
    fn voices_of_men_women_and_children_have_their_rate() {
        for pitch in [75.0, 95.0, 120.0, 160.0, 210.0, 260.0, 330.0] {
            assert_eq!(heard(&voice(pitch, 1.0, 10)), None, "{pitch} Hz");
            assert_eq!(heard(&voice(pitch, 0.92, 10)), None, "{pitch} Hz");
            assert_eq!(heard(&voice(pitch, 1.09, 10)), None, "{pitch} Hz");
        }
    }

    #[test]
    fn three_times_too_slow_or_too_fast_is_told_once() {
        for pitch in [95.0, 120.0, 160.0] {
            let slow = voice(pitch, 3.0, 12);
            assert_eq!(heard(&slow), Some(WrongRate::Slow), "{pitch} Hz");
        }
        for pitch in [160.0, 210.0, 260.0] {
            let fast = voice(pitch, 1.0 / 3.0, 12);
            assert_eq!(heard(&fast), Some(WrongRate::Fast), "{pitch} Hz");
        }
        let mut check = RateCheck::default();
        let told = |sound: &[i16], check: &mut RateCheck| {
            let heard = sound.chunks(24_000).filter_map(|speech| check.hear(speech));
            heard.count()
        };
        let slow = voice(120.0, 3.0, 20);
        assert_eq!(told(&slow, &mut check), 1);
        assert!(check.is_over());
        assert_eq!(told(&slow, &mut check), 0);
    }

    #[test]
    fn silence_noise_tones_and_hum_tell_nothing() {
        let mut noise = 1_u32;
        let mut next = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 16) as i16 / 4
        };
        let noise: Vec<i16> = (0..200_000).map(|_| next()).collect();
        assert_eq!(heard(&noise), None);
        assert_eq!(heard(&vec![0; 200_000]), None);
        for hz in [50.0, 60.0, 100.0, 440.0, 900.0, 3_000.0] {
            let at = |n: u32| std::f32::consts::TAU * hz * n as f32 / 16_000.0;
            let tone: Vec<i16> = (0..200_000)
                .map(|n| (9_000.0 * at(n).sin()) as i16)
                .collect();
            assert_eq!(heard(&tone), None, "{hz} Hz");
        }
    }
}
