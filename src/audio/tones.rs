//! Pure tones in a 16 kHz mono stream: a lone sine, or two at once, as telephone networks, fax machines and answering
//! machines send them. A tone is where nearly all energy of a short spectrum is in one or two places that stay where they
//! are. What a tone means is decided elsewhere.

use std::f32::consts::TAU;
use std::fmt;
use std::sync::Arc;

use vivavoce_fft::{Complex32, RealToComplex, forward};

use super::format::SampleRate;

/// The detector's sample rate. Positions are samples at this rate since the first one pushed.
pub const RATE: SampleRate = SampleRate::HZ_16000;
/// Samples from one spectrum to the next: 10 ms.
pub const HOP: usize = 160;
/// Samples of a spectrum: 32 ms, so that a tone of 100 ms fills several, and tones 90 Hz apart are two.
const WINDOW: usize = 512;
const BIN_HZ: f32 = 16_000.0 / WINDOW as f32;
/// Half the width of a sine in the spectrum of a Hann window, in bins.
const LOBE: usize = 2;
/// Energy below this bin is hum (120 Hz), above that one it is beyond the band of telephones (3.8 kHz).
const LOWEST: usize = 4;
const HIGHEST: usize = 122;
/// Tones are looked for from 280 Hz to 2.5 kHz.
const FIRST_TONE: usize = 9;
const LAST_TONE: usize = 80;
/// The share of the energy that one or two sines must have.
const PURITY: f32 = 0.75;
/// A second sine is at most so much weaker in energy than the first: 10 dB.
const WEAKER: f32 = 0.1;
/// Tones below this level are noise.
const QUIETEST_DBFS: f32 = -48.0;
/// A tone has ended where it is so much weaker than it was.
const FALL_DB: f32 = 12.0;
/// Spectra that may fit worse in between: two sines close to each other fade in and out.
const BRIDGED: u32 = 4;
/// Shorter tones are none: 40 ms.
const SHORTEST: u32 = 4;

/// A tone that has ended, or goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tone {
    /// Its frequency, the lower one of two. Two that are less than 90 Hz apart are one, between them.
    pub low_hz: f32,
    /// The higher one of two.
    pub high_hz: Option<f32>,
    /// The first sample.
    pub start: u64,
    /// The sample behind the last one so far.
    pub end: u64,
    /// How far apart the lowest and the highest measurement of `low_hz` are.
    pub spread_hz: f32,
    /// The mean share of the energy that is in it.
    pub purity: f32,
}

impl Tone {
    /// Its length, in milliseconds.
    pub const fn ms(&self) -> u64 {
        (self.end - self.start) / 16
    }

    /// Whether it is a lone sine of this frequency, give or take.
    pub fn is_at(&self, hz: f32, tolerance: f32) -> bool {
        self.high_hz.is_none() && (self.low_hz - hz).abs() <= tolerance
    }
}

/// What a spectrum has.
#[derive(Debug, Clone, Copy)]
struct Note {
    low: f32,
    high: Option<f32>,
    purity: f32,
    level: f32,
}

/// Notes that are one tone.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u64,
    end: u64,
    notes: u32,
    low: f32,
    high: Option<f32>,
    least: f32,
    most: f32,
    purity: f32,
    loudest: f32,
}

impl Run {
    const fn new(note: Note, at: u64) -> Self {
        Self {
            start: at,
            end: at + HOP as u64,
            notes: 1,
            low: note.low,
            high: note.high,
            least: note.low,
            most: note.low,
            purity: note.purity,
            loudest: note.level,
        }
    }

    fn fits(&self, note: &Note) -> bool {
        let near = |a: f32, b: f32| (a - b).abs() <= (a * 0.03).max(30.0);
        let high = match (self.high, note.high) {
            (None, None) => true,
            (Some(a), Some(b)) => near(a, b),
            _ => false,
        };
        high && near(self.low, note.low) && note.level >= self.loudest - FALL_DB
    }

    fn extend(&mut self, note: &Note, at: u64) {
        self.end = at + HOP as u64;
        self.notes += 1;
        let weight = 1.0 / self.notes as f32;
        self.low += (note.low - self.low) * weight;
        self.purity += (note.purity - self.purity) * weight;
        if let (Some(mean), Some(high)) = (&mut self.high, note.high) {
            *mean += (high - *mean) * weight;
        }
        // The edges of a tone are blurred.
        if note.level >= self.loudest - 3.0 {
            self.least = self.least.min(note.low);
            self.most = self.most.max(note.low);
        }
        self.loudest = self.loudest.max(note.level);
    }

    const fn tone(&self) -> Tone {
        Tone {
            low_hz: self.low,
            high_hz: self.high,
            start: self.start,
            end: self.end,
            spread_hz: self.most - self.least,
            purity: self.purity,
        }
    }
}

/// Finds tones in one stream.
pub struct ToneDetector {
    transform: Arc<dyn RealToComplex<f32>>,
    window: Vec<f32>,
    /// The last samples; [`WINDOW`] of them once there are so many.
    recent: Vec<f32>,
    input: Vec<f32>,
    spectrum: Vec<Complex32>,
    scratch: Vec<Complex32>,
    energy: Vec<f32>,
    /// Samples pushed.
    position: u64,
    current: Option<Run>,
    /// Spectra since the last one that fits.
    misses: u32,
    /// What may come after the current one.
    next: Option<Run>,
}

impl ToneDetector {
    /// A detector at the start of a stream.
    pub fn new() -> Self {
        let transform = forward(WINDOW);
        let hann = |n: usize| 0.5 - 0.5 * (TAU * n as f32 / WINDOW as f32).cos();
        Self {
            window: (0..WINDOW).map(hann).collect(),
            recent: Vec::with_capacity(WINDOW + HOP),
            input: transform.make_input_vec(),
            spectrum: transform.make_output_vec(),
            scratch: transform.make_scratch_vec(),
            energy: vec![0.0; WINDOW / 2 + 1],
            transform,
            position: 0,
            current: None,
            misses: 0,
            next: None,
        }
    }

    /// The tone that goes on, if there is one.
    pub fn current(&self) -> Option<Tone> {
        let run = self.current.filter(|run| run.notes >= SHORTEST)?;
        Some(run.tone())
    }

    /// Takes the next [`HOP`] samples, or fewer where the stream ends. Returns a tone that has ended, which is known
    /// 60 ms later.
    pub fn push(&mut self, samples: &[i16]) -> Option<Tone> {
        let samples = samples.get(..HOP).unwrap_or(samples);
        self.position += samples.len() as u64;
        let scale = 1.0 / 32_768.0;
        let scaled = samples.iter().map(|sample| f32::from(*sample) * scale);
        self.recent.extend(scaled);
        if self.recent.len() < WINDOW {
            return None;
        }
        self.recent.drain(..self.recent.len() - WINDOW);
        let note = self.note();
        // The middle of the window.
        let at = self.position.saturating_sub((WINDOW / 2 + HOP / 2) as u64);
        self.take(note, at)
    }

    fn take(&mut self, note: Option<Note>, at: u64) -> Option<Tone> {
        let Some(current) = &mut self.current else {
            self.current = note.map(|note| Run::new(note, at));
            self.misses = 0;
            return None;
        };
        if let Some(note) = note.filter(|note| current.fits(note)) {
            current.extend(&note, at);
            self.next = None;
            self.misses = 0;
            return None;
        }
        self.misses += 1;
        self.next = match (self.next.take(), note) {
            (Some(mut next), Some(note)) if next.fits(&note) => {
                next.extend(&note, at);
                Some(next)
            }
            (_, Some(note)) => Some(Run::new(note, at)),
            (_, None) => None,
        };
        // What is too short is given up at once.
        if self.misses <= BRIDGED && current.notes >= SHORTEST {
            return None;
        }
        let ended = *current;
        self.current = self.next.take();
        self.misses = 0;
        (ended.notes >= SHORTEST).then(|| ended.tone())
    }

    /// What the last window has.
    fn note(&mut self) -> Option<Note> {
        for ((input, sample), weight) in self.input.iter_mut().zip(&self.recent).zip(&self.window) {
            *input = sample * weight;
        }
        // The mean square of a Hann window is 3/8.
        let square: f32 = self.input.iter().map(|x| x * x).sum();
        let level = 10.0 * (square / (0.375 * WINDOW as f32)).max(1e-12).log10();
        if level < QUIETEST_DBFS {
            return None;
        }
        let transformed = self.transform.process_with_scratch(
            &mut self.input,
            &mut self.spectrum,
            &mut self.scratch,
        );
        transformed.ok()?;
        for (energy, bin) in self.energy.iter_mut().zip(&self.spectrum) {
            *energy = bin.norm_sqr();
        }
        let energy = &self.energy;
        let sum = |from: usize, to: usize| -> f32 {
            energy.get(from..to).unwrap_or_default().iter().sum()
        };
        let total = sum(LOWEST, HIGHEST);
        let first = peak(energy, |_| true)?;
        let of_first = sum(first - LOBE, first + LOBE + 1);
        let lone = Note {
            low: frequency(energy, first),
            high: None,
            purity: of_first / total,
            level,
        };
        if lone.purity >= PURITY {
            let second = peak(energy, |bin| bin.abs_diff(first) > LOBE)?;
            let of_second = sum(second - LOBE, second + LOBE + 1);
            if of_second < WEAKER * of_first || second.abs_diff(first) <= LOBE + 1 {
                return Some(lone);
            }
        }
        let second = peak(energy, |bin| bin.abs_diff(first) > LOBE)?;
        let of_second = sum(second - LOBE, second + LOBE + 1);
        let both = (of_first + of_second) / total;
        if both < PURITY || of_second < WEAKER * of_first {
            return None;
        }
        let (a, b) = (frequency(energy, first), frequency(energy, second));
        Some(Note {
            low: a.min(b),
            high: Some(a.max(b)),
            purity: both.min(1.0),
            level,
        })
    }
}

impl Default for ToneDetector {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ToneDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToneDetector")
            .field("position", &self.position)
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

/// The strongest bin among these in which a tone may be.
fn peak(energy: &[f32], among: impl Fn(usize) -> bool) -> Option<usize> {
    let bins = (FIRST_TONE..=LAST_TONE).filter(|bin| among(*bin));
    bins.max_by(|a, b| {
        let of = |bin: &usize| energy.get(*bin).copied().unwrap_or_default();
        of(a).total_cmp(&of(b))
    })
}

/// The frequency of a sine whose strongest bin is this one, from its neighbours (a parabola through their logarithms).
fn frequency(energy: &[f32], bin: usize) -> f32 {
    let log = |bin: usize| energy.get(bin).copied().unwrap_or_default().max(1e-20).ln();
    let (left, middle, right) = (log(bin - 1), log(bin), log(bin + 1));
    let curve = left - 2.0 * middle + right;
    let offset = if curve < 0.0 {
        (0.5 * (left - right) / curve).clamp(-0.5, 0.5)
    } else {
        0.0
    };
    (bin as f32 + offset) * BIN_HZ
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sines for so many milliseconds, each with this amplitude.
    fn sines(hz: &[f32], ms: u64, amplitude: f32) -> Vec<i16> {
        let sample = |n: u64| {
            let time = n as f32 / 16_000.0;
            let sum: f32 = hz.iter().map(|hz| (TAU * hz * time).sin()).sum();
            (sum * amplitude) as i16
        };
        (0..ms * 16).map(sample).collect()
    }

    fn tones(sound: &[i16]) -> Vec<Tone> {
        let mut detector = ToneDetector::new();
        let mut padded = sound.to_vec();
        padded.extend([0; 16 * 150]);
        padded
            .chunks(HOP)
            .filter_map(|hop| detector.push(hop))
            .collect()
    }

    #[test]
    fn a_tone_is_found_with_its_frequency_and_its_length() {
        for (hz, ms) in [(425.0, 480), (1_000.0, 100), (2_100.0, 3_000), (950.0, 330)] {
            let mut sound = vec![0; 16 * 200];
            sound.extend(sines(&[hz], ms, 6_000.0));
            let found = tones(&sound);
            let [tone] = found[..] else {
                panic!("{hz} Hz: {found:?}");
            };
            assert!(tone.is_at(hz, 3.0), "{tone:?}");
            assert!(tone.ms().abs_diff(ms) <= 30, "{hz} Hz, {ms} ms: {tone:?}");
            assert!((tone.start / 16).abs_diff(200) <= 20, "{tone:?}");
            assert!(tone.spread_hz < 5.0 && tone.purity > 0.95, "{tone:?}");
        }
    }

    #[test]
    fn two_sines_are_one_tone() {
        let found = tones(&sines(&[480.0, 620.0], 500, 4_000.0));
        let [tone] = found[..] else {
            panic!("{found:?}");
        };
        assert!((tone.low_hz - 480.0).abs() < 12.0, "{tone:?}");
        assert!((tone.high_hz.unwrap() - 620.0).abs() < 12.0, "{tone:?}");
        // Too near to each other to be told apart.
        let found = tones(&sines(&[440.0, 480.0], 2_000, 4_000.0));
        let [tone] = found[..] else {
            panic!("{found:?}");
        };
        assert!(tone.is_at(460.0, 25.0) && tone.ms() > 1_900, "{tone:?}");
    }

    #[test]
    fn tones_that_follow_each_other_are_three() {
        let mut sound = Vec::new();
        for hz in [950.0, 1_400.0, 1_800.0] {
            sound.extend(sines(&[hz], 330, 5_000.0));
        }
        let found = tones(&sound);
        assert_eq!(found.len(), 3, "{found:?}");
        for (tone, hz) in found.iter().zip([950.0, 1_400.0, 1_800.0]) {
            assert!(
                tone.is_at(hz, 5.0) && tone.ms().abs_diff(330) < 50,
                "{tone:?}"
            );
        }
    }

    #[test]
    fn noise_many_sines_and_quiet_are_no_tone() {
        let mut noise = 1_u32;
        let noise: Vec<i16> = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 18) as i16 - 8_192
        })
        .take(16_000)
        .collect();
        assert_eq!(tones(&noise), []);
        assert_eq!(tones(&sines(&[300.0, 600.0, 900.0], 1_000, 3_000.0)), []);
        assert_eq!(tones(&sines(&[1_000.0], 1_000, 60.0)), []);
    }
}
