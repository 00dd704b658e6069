//! Sample rates, signals and measurements shared by the tests of both resamplers.

use std::f64::consts::TAU;

use proptest::prelude::*;

use super::format::SampleRate;

pub const STANDARD: [u32; 7] = [8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];
/// The amplitude of test tones: 0.9 dB below full scale.
pub const AMPLITUDE: f64 = 29_500.0;

pub fn rate(hz: u32) -> SampleRate {
    SampleRate::new(hz).unwrap()
}

/// All pairs of different standard rates.
pub fn standard_pairs() -> impl Iterator<Item = (u32, u32)> {
    let all = STANDARD.into_iter();
    all.flat_map(|from| STANDARD.map(|to| (from, to)))
        .filter(|(from, to)| from != to)
}

/// A standard rate, or any other.
pub fn any_rate() -> impl Strategy<Value = u32> {
    prop_oneof![proptest::sample::select(&STANDARD[..]), 8_000_u32..=192_000]
}

/// A sine of [`AMPLITUDE`].
pub fn tone(hz: f64, rate: u32, frames: u32) -> Vec<f64> {
    (0..frames)
        .map(|n| AMPLITUDE * (TAU * hz * f64::from(n) / f64::from(rate)).sin())
        .collect()
}

pub fn rounded(signal: &[f64]) -> Vec<i16> {
    signal.iter().map(|x| x.round() as i16).collect()
}

/// A tenth of a second with a smooth pulse of 2 ms in its middle.
pub fn pulse(rate: u32) -> Vec<i16> {
    let at = |n: f64| (n / f64::from(rate) - 0.05) / 0.002;
    (0..rate / 10)
        .map(|n| (20_000.0 * (-at(f64::from(n)).powi(2)).exp()).round() as i16)
        .collect()
}

/// The time of a pulse in seconds: its centre of gravity.
pub fn time_of_pulse(signal: &[i16], rate: u32) -> f64 {
    let weight: f64 = signal.iter().map(|&x| f64::from(x)).sum();
    let moment: f64 = (0..)
        .zip(signal)
        .map(|(n, &x)| f64::from(n) * f64::from(x))
        .sum();
    moment / weight / f64::from(rate)
}

/// 20 ms of a full-scale square wave of 200 Hz.
pub fn square_wave(rate: u32) -> Vec<i16> {
    (0..rate / 50)
        .map(|n| {
            if n % (rate / 200) < rate / 400 {
                i16::MAX
            } else {
                i16::MIN
            }
        })
        .collect()
}

pub fn rms(signal: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = signal.len() as f64;
    (signal.map(|x| x * x).sum::<f64>() / count).sqrt()
}

/// The level of a signal with this RMS in decibels, relative to a tone of [`AMPLITUDE`].
pub fn level(rms: f64) -> f64 {
    decibels(rms / (AMPLITUDE / 2.0_f64.sqrt()))
}

pub fn decibels(ratio: f64) -> f64 {
    20.0 * ratio.max(1e-9).log10()
}
