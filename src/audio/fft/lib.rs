//! Fourier transforms, most of them of real signals, by [realfft](https://docs.rs/realfft) and
//! [rustfft](https://docs.rs/rustfft): a signal of `n` samples becomes `n / 2 + 1` complex bins, from 0 Hz to half of
//! the sample rate, and comes back `n` times as large.
//!
//! This crate is so small because of what it contains once compiled: rustfft is generic, so every crate that plans a
//! transform compiles all of its kernels anew (16 s of a core, 370,000 lines for the code generator). Others plan theirs
//! here and get them behind traits. `nnnoiseless` compiles them, too; as it is passed on from here, a profile that
//! shares generic code between crates (levels 0 and 1) has them once.

use std::sync::Arc;

pub use nnnoiseless;
use realfft::RealFftPlanner;
pub use realfft::num_complex::Complex32;
pub use realfft::{ComplexToReal, RealToComplex};
pub use rustfft::Fft;
use rustfft::FftPlanner;

/// Plans the transform of `length` samples. This computes tables: keep the plan.
pub fn forward(length: usize) -> Arc<dyn RealToComplex<f32>> {
    RealFftPlanner::new().plan_fft_forward(length)
}

/// Plans the transform of so many complex numbers to as many bins, in place.
pub fn complex(length: usize) -> Arc<dyn Fft<f32>> {
    FftPlanner::new().plan_fft_forward(length)
}

/// Plans the transform back to `length` samples; the result is `length` times as large as what [`forward`] was given.
pub fn inverse(length: usize) -> Arc<dyn ComplexToReal<f32>> {
    RealFftPlanner::new().plan_fft_inverse(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_one_bin_and_comes_back() {
        for length in [64, 400, 512] {
            let tone: Vec<f32> = (0..length)
                .map(|n| (std::f32::consts::TAU * 8.0 * n as f32 / length as f32).sin())
                .collect();
            let (there, back) = (forward(length), inverse(length));
            let mut bins = there.make_output_vec();
            there.process(&mut tone.clone(), &mut bins).unwrap();
            for (bin, value) in bins.iter().enumerate() {
                let expected = if bin == 8 { length as f32 / 2.0 } else { 0.0 };
                assert!(
                    (value.norm() - expected).abs() < 1e-3 * length as f32,
                    "bin {bin} of {length}: {value}"
                );
            }
            let mut again = back.make_output_vec();
            back.process(&mut bins, &mut again).unwrap();
            for (sample, original) in again.iter().zip(&tone) {
                assert!((sample / length as f32 - original).abs() < 1e-4);
            }
        }
    }
}
