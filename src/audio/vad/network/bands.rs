//! What the network is shown of a frame: the logarithm of the energy of 40 bands of the last 48 ms, scaled to a mean square
//! of one. Compiled for several instruction sets, as [`layers`](super::layers) is.

// What is compiled for an instruction set must have within it what it calls.
#![allow(clippy::inline_always)]

use std::sync::LazyLock;

use multiversion::multiversion;
use vivavoce_fft::Complex32;

use super::layers::BANDS;
use super::weights::WEIGHTS;

/// The length of the transform.
pub const TRANSFORM: usize = 1_024;
/// A transform of so many complex numbers gives that of twice as many real ones.
pub const HALF: usize = TRANSFORM / 2;
/// Bins of the complex transform that are computed together: one from below, one from above.
const PAIRS: usize = HALF / 2;
/// Samples are computed with as 16-bit integers, and their energy is that of samples from −1 to 1. Each bin is computed at
/// twice its size.
const SCALE: f32 = 0.25 / (32_768.0 * 32_768.0);
/// What is added to an energy, as the logarithm of nothing is infinite.
const LEAST: f32 = 1e-20;

/// The bins where bands begin and end: band `n` rises from the `n`th to the one after it, and falls to the next.
const EDGES: [usize; BANDS + 2] = [
    4, 7, 10, 13, 17, 21, 25, 29, 33, 38, 43, 48, 54, 60, 66, 73, 80, 87, 95, 103, 112, 122, 132,
    142, 153, 165, 178, 191, 205, 220, 236, 253, 270, 289, 309, 330, 353, 376, 402, 428, 456, 486,
];

/// What does not change.
struct Tables {
    /// By bin: how far it lies between the two edges around it, 0–1.
    slopes: [f32; HALF],
    /// From the second bin on: where it lies on the unit circle of the real transform.
    turns: ([f32; PAIRS], [f32; PAIRS]),
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut slopes = [0.0; HALF];
    for edges in EDGES.windows(2) {
        let slope = &mut slopes[edges[0]..edges[1]];
        let length = slope.len() as f32;
        for (bin, risen) in slope.iter_mut().enumerate() {
            *risen = bin as f32 / length;
        }
    }
    let angle = |n: usize| (n + 1) as f64 / TRANSFORM as f64 * std::f64::consts::TAU;
    let cosines = std::array::from_fn(|n| angle(n).cos() as f32);
    let sines = std::array::from_fn(|n| -angle(n).sin() as f32);
    Tables {
        slopes,
        turns: (cosines, sines),
    }
});

/// The bands of real samples, of which `spectrum` is the complex transform where the even ones are taken as real and the odd
/// ones as imaginary parts.
pub fn bands(spectrum: &[Complex32; HALF], bands: &mut [f32; BANDS]) {
    scaled(spectrum, &TABLES, bands);
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+bmi1+bmi2",
    "x86_64+avx2+bmi1+bmi2"
))]
fn scaled(spectrum: &[Complex32; HALF], tables: &Tables, bands: &mut [f32; BANDS]) {
    let energies = energies(spectrum, tables);
    // Between two edges one band falls and the next one rises, and together they are all of it.
    let mut falling = 0.0;
    for (number, edges) in EDGES.windows(2).enumerate() {
        let (all, rising) = between(
            &energies[edges[0]..edges[1]],
            &tables.slopes[edges[0]..edges[1]],
        );
        if let Some(band) = number.checked_sub(1).and_then(|n| bands.get_mut(n)) {
            *band = (falling + all - rising + LEAST).ln();
        }
        falling = rising;
    }
    let squares: f32 = bands.iter().map(|band| band * band).sum();
    let scale = (squares / BANDS as f32).sqrt().recip();
    for (band, weight) in bands.iter_mut().zip(&WEIGHTS.bands) {
        *band = weight * *band * scale;
    }
}

// What follows is compiled into each version of its caller.

/// The energy of each bin but the first, which belongs to no band.
#[inline(always)]
fn energies(spectrum: &[Complex32; HALF], tables: &Tables) -> [f32; HALF] {
    let mut energies = [0.0; HALF];
    let (below, above) = spectrum.split_at(PAIRS);
    let (re_below, im_below) = parts(below);
    let (mut c, mut d) = parts(above);
    // From the second bin on, to that in the middle, which is its own counterpart.
    let (mut a, mut b) = ([0.0; PAIRS], [0.0; PAIRS]);
    a[..PAIRS - 1].copy_from_slice(&re_below[1..]);
    b[..PAIRS - 1].copy_from_slice(&im_below[1..]);
    (a[PAIRS - 1], b[PAIRS - 1]) = (c[0], d[0]);
    c.reverse();
    d.reverse();
    let (cosines, sines) = &tables.turns;
    let mut mirrored = [0.0; PAIRS];
    for n in 0..PAIRS {
        // The transforms of the even and of the odd samples, each twice as large, the latter turned to its place.
        let (even_re, even_im) = (a[n] + c[n], b[n] - d[n]);
        let (odd_re, odd_im) = (b[n] + d[n], c[n] - a[n]);
        let turned_re = odd_re * cosines[n] - odd_im * sines[n];
        let turned_im = odd_re * sines[n] + odd_im * cosines[n];
        let (re, im) = (even_re + turned_re, even_im + turned_im);
        energies[n + 1] = (re * re + im * im) * SCALE;
        let (re, im) = (even_re - turned_re, even_im - turned_im);
        mirrored[n] = (re * re + im * im) * SCALE;
    }
    mirrored.reverse();
    energies[PAIRS..].copy_from_slice(&mirrored);
    energies
}

#[inline(always)]
fn parts(bins: &[Complex32]) -> ([f32; PAIRS], [f32; PAIRS]) {
    let (mut re, mut im) = ([0.0; PAIRS], [0.0; PAIRS]);
    for ((re, im), bin) in re.iter_mut().zip(&mut im).zip(bins) {
        (*re, *im) = (bin.re, bin.im);
    }
    (re, im)
}

/// The sum of energies, and that of energies by their slopes, as four partial sums, so that the compiler can use vector
/// instructions.
#[inline(always)]
fn between(energies: &[f32], slopes: &[f32]) -> (f32, f32) {
    let (fours, rest) = energies.as_chunks::<4>();
    let (slope_fours, slope_rest) = slopes.as_chunks::<4>();
    let (mut all, mut rising) = ([0.0_f32; 4], [0.0_f32; 4]);
    for (four, slopes) in fours.iter().zip(slope_fours) {
        for n in 0..4 {
            all[n] += four[n];
            rising[n] += four[n] * slopes[n];
        }
    }
    for (n, (energy, slope)) in rest.iter().zip(slope_rest).enumerate() {
        all[n] += energy;
        rising[n] += energy * slope;
    }
    (all.iter().sum(), rising.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energies_are_those_of_the_real_transform() {
        let mut random = fastrand::Rng::with_seed(9);
        let mut samples: Vec<f32> = (0..TRANSFORM).map(|_| f32::from(random.i16(..))).collect();
        let mut packed: Vec<_> = samples
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[even, odd]| Complex32::new(*even, *odd))
            .collect();
        let real = vivavoce_fft::forward(TRANSFORM);
        let mut bins = real.make_output_vec();
        real.process(&mut samples, &mut bins).unwrap();
        vivavoce_fft::complex(HALF).process(&mut packed);
        let energies = energies(packed.first_chunk().unwrap(), &TABLES);
        for (n, (energy, bin)) in energies.iter().zip(&bins).enumerate().skip(1) {
            let expected = bin.norm_sqr() * SCALE * 4.0;
            let difference = (energy - expected).abs();
            assert!(
                difference < 1e-4 * expected + 1e-4,
                "{n}: {energy} {expected}"
            );
        }
    }
}
