//! The measurements, the same for every engine: nothing here knows which one it has.

use std::f64::consts::TAU;
use std::time::Instant;

use crate::engines::Engine;

/// Amplitude of the test tones: 0.9 dB below full scale, so that a ripple does not clip.
const AMPLITUDE: f64 = 29_500.0;

/// What the filter does to tones.
pub struct Quality {
    /// The largest gain or loss of a tone up to 0.40 of the lower rate.
    pub ripple_db: f64,
    /// How far everything is below the tone that should not be there: images and aliases of tones up to 0.40 of the
    /// lower rate, and all that is left of tones from 0.60 of it. 16-bit samples end at 97.
    pub rejection_db: f64,
}

/// Chunks in a run: ten seconds of sound.
const CHUNKS: usize = 500;

/// 20 ms of a standard rate, every one of which divides (22.05 kHz: 441 frames).
fn chunk_frames(rate: u32) -> usize {
    rate as usize / 50
}

/// The best of `repeats` runs over ten seconds of noise, per 20 ms of mono sound.
pub fn nanos_per_chunk(engine: &Engine, from: u32, to: u32, repeats: usize) -> f64 {
    let mut seed = 1_u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as i16 / 2
    };
    let input: Vec<i16> = (0..chunk_frames(from)).map(|_| noise()).collect();
    let mut output = Vec::with_capacity(to as usize);
    let mut resampler = (engine.open)(from, to);
    let mut best = f64::INFINITY;
    for _ in 0..repeats {
        let start = Instant::now();
        for _ in 0..CHUNKS {
            output.clear();
            resampler.push(&input, &mut output);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / CHUNKS as f64);
    }
    best
}

/// How long it takes to open what was open before, in microseconds.
pub fn open_micros(engine: &Engine, from: u32, to: u32) -> f64 {
    drop((engine.open)(from, to));
    let start = Instant::now();
    drop((engine.open)(from, to));
    start.elapsed().as_nanos() as f64 / 1000.0
}

/// Sound accepted and not delivered, in milliseconds after each chunk of 20 ms: mean and maximum.
pub fn held(engine: &Engine, from: u32, to: u32) -> (f64, f64) {
    let mut resampler = (engine.open)(from, to);
    let chunk = vec![0; chunk_frames(from)];
    let mut output = Vec::new();
    let mut held = Vec::new();
    for chunks in 1..=CHUNKS {
        resampler.push(&chunk, &mut output);
        let given_ms = output.len() as f64 * 1000.0 / f64::from(to);
        held.push(chunks as f64 * 20.0 - given_ms);
    }
    let mean = held.iter().sum::<f64>() / held.len() as f64;
    (mean, held.iter().copied().fold(f64::MIN, f64::max))
}

pub fn quality(engine: &Engine, from: u32, to: u32) -> Quality {
    let lower = f64::from(from.min(to));
    let mut quality = Quality {
        ripple_db: 0.0,
        rejection_db: f64::INFINITY,
    };
    // Steps that share no factor with the rates, so that rounding errors behave like noise.
    for hz in tones(0.0137 * lower, 0.40 * lower, 40) {
        let output = convert_tone(engine, from, to, hz);
        let (amplitude, residue) = split(&output, hz / f64::from(to));
        quality.ripple_db = quality.ripple_db.max(decibels(amplitude / AMPLITUDE).abs());
        let rejection = -decibels(residue / (AMPLITUDE / 2.0_f64.sqrt()));
        quality.rejection_db = quality.rejection_db.min(rejection);
    }
    for hz in tones(0.60 * lower, 0.4993 * f64::from(from), 120) {
        let output = convert_tone(engine, from, to, hz);
        let rejection = -decibels(rms(&output) / (AMPLITUDE / 2.0_f64.sqrt()));
        quality.rejection_db = quality.rejection_db.min(rejection);
    }
    quality
}

/// Frequencies from `low` to `high`; none when that is empty.
fn tones(low: f64, high: f64, count: usize) -> impl Iterator<Item = f64> {
    (0..count)
        .map(move |n| low + (high - low) * n as f64 / (count - 1) as f64)
        .filter(move |_| low < high)
}

/// What comes out of half a second of tone, without the ends.
fn convert_tone(engine: &Engine, from: u32, to: u32, hz: f64) -> Vec<f64> {
    let step = TAU * hz / f64::from(from);
    let input: Vec<i16> = (0..from / 2)
        .map(|n| (AMPLITUDE * (step * f64::from(n)).sin()).round() as i16)
        .collect();
    let mut output = Vec::new();
    let mut resampler = (engine.open)(from, to);
    for chunk in input.chunks(chunk_frames(from)) {
        resampler.push(chunk, &mut output);
    }
    let middle = output.len() / 4..output.len() / 4 + to as usize / 8;
    output[middle]
        .iter()
        .map(|&sample| f64::from(sample))
        .collect()
}

/// The amplitude of the tone at `frequency` (in parts of the rate) that fits `signal` best, and the effective value of
/// what is left without it.
fn split(signal: &[f64], frequency: f64) -> (f64, f64) {
    let wave = |n: usize| (TAU * frequency * n as f64).sin_cos();
    let (mut ss, mut sc, mut cc, mut xs, mut xc) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (n, x) in signal.iter().enumerate() {
        let (s, c) = wave(n);
        ss += s * s;
        sc += s * c;
        cc += c * c;
        xs += x * s;
        xc += x * c;
    }
    let determinant = ss * cc - sc * sc;
    let a = (xs * cc - xc * sc) / determinant;
    let b = (xc * ss - xs * sc) / determinant;
    let rest: Vec<f64> = signal
        .iter()
        .enumerate()
        .map(|(n, x)| x - a * wave(n).0 - b * wave(n).1)
        .collect();
    (a.hypot(b), rms(&rest))
}

fn rms(signal: &[f64]) -> f64 {
    (signal.iter().map(|x| x * x).sum::<f64>() / signal.len() as f64).sqrt()
}

fn decibels(ratio: f64) -> f64 {
    20.0 * ratio.max(1e-9).log10()
}
