//! From the spectrum of the voice to samples. A frame is the sum of three: a train of pulses at the pitch, shaped (what
//! rings), noise, shaped (what hisses), and a part with a phase of its own. Frames overlap by three quarters; samples are
//! given out as soon as no later frame adds to them.

use std::f32::consts::PI;
use std::ops::Range;
use std::sync::Arc;

use vivavoce_fft::{Complex32, ComplexToReal, RealToComplex, forward, inverse};

use super::acoustic::Spectrum;

/// Samples a second.
pub const RATE_HZ: usize = 24_000;
/// Samples from one frame to the next: 12.5 ms.
pub const HOP: usize = 300;
/// Samples of a frame.
const WINDOW: usize = 1200;
const HALF: usize = WINDOW / 2;
/// Below this pitch there is no voice.
const LOWEST_HZ: f32 = 40.0;
/// The highest overtone.
const HIGHEST_HZ: f32 = 11_000.0;
/// The greatest logarithm of a magnitude.
const LOUDEST: f32 = 7.0;

/// The transforms, made once.
pub struct Transforms {
    forth: Arc<dyn RealToComplex<f32>>,
    back: Arc<dyn ComplexToReal<f32>>,
    window: Vec<f32>,
}

impl std::fmt::Debug for Transforms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transforms").finish_non_exhaustive()
    }
}

impl Default for Transforms {
    fn default() -> Self {
        let hann = |at| 0.5 - 0.5 * (2.0 * PI * at as f32 / WINDOW as f32).cos();
        Self {
            forth: forward(WINDOW),
            back: inverse(WINDOW),
            window: (0..WINDOW).map(hann).collect(),
        }
    }
}

/// One sentence on its way to samples.
pub struct Vocoder<'t> {
    transforms: &'t Transforms,
    /// The pulses of the whole sentence.
    pulses: Vec<f32>,
    noise: Noise,
    frames: usize,
    /// What has been added up so far, from the first sample that is not given out; and the windows' squares.
    sum: Vec<f32>,
    squares: Vec<f32>,
    /// Samples given out or left out, of the sentence with half a frame before it.
    given: usize,
    /// How many of them are left out at the beginning.
    silent: usize,
    buffers: Buffers,
}

struct Buffers {
    samples: Vec<f32>,
    source: Vec<Complex32>,
    bins: Vec<Complex32>,
    scratch: Vec<Complex32>,
}

impl std::fmt::Debug for Vocoder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} samples of {}", self.given, self.frames * HOP)
    }
}

impl<'t> Vocoder<'t> {
    /// For a sentence with this pitch in each frame, of which the sound begins with frame `first`. Of one seed the noise
    /// is always the same.
    pub fn new(transforms: &'t Transforms, pitch: &[f32], first: usize, seed: u64) -> Self {
        let scratch = transforms
            .forth
            .get_scratch_len()
            .max(transforms.back.get_scratch_len());
        Self {
            transforms,
            pulses: pulses(pitch),
            noise: Noise(seed | 1),
            frames: pitch.len(),
            silent: HALF + first * HOP,
            sum: Vec::new(),
            squares: Vec::new(),
            given: first * HOP,
            buffers: Buffers {
                samples: vec![0.0; WINDOW],
                source: transforms.forth.make_output_vec(),
                bins: transforms.back.make_input_vec(),
                scratch: vec![Complex32::default(); scratch],
            },
        }
    }

    /// Adds these frames, the next ones of the sentence, and gives out the samples that are complete.
    pub fn push(&mut self, spectrum: &Spectrum, frames: Range<usize>) -> Vec<f32> {
        for (nth, frame) in frames.clone().enumerate() {
            self.add(spectrum, nth, frame);
        }
        let complete = if frames.end == self.frames {
            HALF + self.frames * HOP
        } else {
            frames.end * HOP
        };
        self.give(complete)
    }

    fn add(&mut self, spectrum: &Spectrum, nth: usize, frame: usize) {
        let window = &self.transforms.window;
        let buffers = &mut self.buffers;
        for (at, (sample, weight)) in buffers.samples.iter_mut().zip(window).enumerate() {
            let position = mirrored(frame * HOP + at, self.pulses.len());
            let pulse = self.pulses.get(position).copied().unwrap_or_default();
            *sample = pulse * weight / HOP as f32;
        }
        // The lengths are those of the plan: it does not fail.
        let _ = self.transforms.forth.process_with_scratch(
            &mut buffers.samples,
            &mut buffers.source,
            &mut buffers.scratch,
        );
        for (bin, (source, out)) in buffers.source.iter().zip(&mut buffers.bins).enumerate() {
            let [harmonic, turn, noise, rest, phase] =
                [0, 1, 2, 3, 4].map(|part| spectrum.at(part, bin, nth));
            let magnitude = |log: f32| log.min(LOUDEST).exp();
            let ringing = Complex32::from_polar(magnitude(harmonic), PI * turn.tanh());
            let hissing = self.noise.complex() * magnitude(noise);
            let own = Complex32::from_polar(magnitude(rest), phase);
            *out = source * ringing + hissing + own;
        }
        if let Some(first) = buffers.bins.first_mut() {
            first.im = 0.0;
        }
        if let Some(last) = buffers.bins.last_mut() {
            last.im = 0.0;
        }
        let _ = self.transforms.back.process_with_scratch(
            &mut buffers.bins,
            &mut buffers.samples,
            &mut buffers.scratch,
        );
        let start = (frame * HOP).saturating_sub(self.given);
        let end = start + WINDOW;
        if self.sum.len() < end {
            self.sum.resize(end, 0.0);
            self.squares.resize(end, 0.0);
        }
        let places = self.sum.iter_mut().zip(&mut self.squares).skip(start);
        for ((sum, square), (sample, weight)) in places.zip(buffers.samples.iter().zip(window)) {
            *sum += sample * weight / WINDOW as f32;
            *square += weight * weight;
        }
    }

    /// Gives out what comes before this sample; the half frame before the sentence is left out.
    fn give(&mut self, complete: usize) -> Vec<f32> {
        let count = complete.saturating_sub(self.given).min(self.sum.len());
        let silent = self.silent.saturating_sub(self.given).min(count);
        let sums = self.sum.drain(..count);
        let squares = self.squares.drain(..count);
        let samples = sums.zip(squares).skip(silent);
        let samples = samples
            .map(|(sum, square)| sum / square.max(1e-11))
            .collect();
        self.given += count;
        samples
    }
}

/// The position in a signal with half a frame before it and behind it, which mirror it.
fn mirrored(padded: usize, length: usize) -> usize {
    let last = length.saturating_sub(1);
    match padded.checked_sub(HALF) {
        None => HALF - padded,
        Some(at) if at > last => (2 * last).saturating_sub(at),
        Some(at) => at,
    }
}

/// A train of pulses: all overtones of the pitch, equally loud.
fn pulses(pitch: &[f32]) -> Vec<f32> {
    let of = |frame: usize| pitch.get(frame).copied().unwrap_or_default();
    let last = pitch.len().saturating_sub(1);
    let mut pulses = Vec::with_capacity(pitch.len() * HOP);
    let mut turns = 0.0f64;
    for frame in 0..pitch.len() {
        for at in 0..HOP {
            // Between the middles of two frames the pitch is on a line.
            let place = (at as f32 + 0.5) / HOP as f32 - 0.5;
            let (one, other, way) = if place < 0.0 {
                (of(frame.saturating_sub(1)), of(frame), place + 1.0)
            } else {
                (of(frame), of((frame + 1).min(last)), place)
            };
            let hz = one * (1.0 - way) + other * way;
            let voiced = hz > LOWEST_HZ;
            let hz = hz.max(LOWEST_HZ);
            turns = (turns + f64::from(hz) / RATE_HZ as f64).fract();
            if !voiced {
                pulses.push(0.0);
                continue;
            }
            let angle = (2.0 * std::f64::consts::PI * turns) as f32;
            let overtones = (HIGHEST_HZ / hz).floor() + 0.5;
            let below = 2.0 * (angle * 0.5).sin();
            // At the top of a pulse both sides of the fraction are zero.
            let sum = if below.abs() <= 2e-3 {
                overtones
            } else {
                (overtones * angle).sin() / below
            };
            pulses.push(sum - 0.5);
        }
    }
    pulses
}

/// White noise, by xorshift64*.
struct Noise(u64);

impl Noise {
    /// A number between 0 and 1, neither included.
    fn uniform(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 41;
        (bits as f32 + 0.5) / (1u32 << 23) as f32
    }

    /// Both parts normal, of variance 1 (Box and Muller).
    fn complex(&mut self) -> Complex32 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        Complex32::from_polar(radius, 2.0 * PI * self.uniform())
    }
}
