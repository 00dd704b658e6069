//! Log-mel spectrograms of mono sound at 16 kHz, as networks of the Whisper family take them: 80 bands of the Slaney
//! scale up to 8 kHz, windows of 25 ms (Hann) centred on every 10 ms, the sound mirrored at both ends. How a network
//! wants them scaled is a step of its own ([`Mel::normalise`]); how long the sound is, and what it is padded with, is
//! left to the caller.

use std::sync::{Arc, OnceLock};

use vivavoce_fft::{Complex32, RealToComplex, forward};

/// The rate of the sound, in Hz.
pub const RATE_HZ: usize = 16_000;
/// Bands of a spectrogram.
pub const BANDS: usize = 80;
/// Samples from one frame to the next.
pub const HOP: usize = 160;
const WINDOW: usize = 400;
const BINS: usize = WINDOW / 2 + 1;
/// The least energy of a band: its logarithm is finite in silence too.
const FLOOR: f32 = 1e-10;
/// Decades below the loudest band at which [`Mel::normalise`] cuts.
const DECADES: f32 = 8.0;

/// A spectrogram: for each band the decimal logarithm of its energy in each frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Mel {
    /// Frames of each band.
    pub frames: usize,
    /// [`BANDS`] rows of `frames` values, the lowest band first.
    pub data: Vec<f32>,
}

impl Mel {
    /// The loudest value; that of silence where there is no frame.
    pub fn loudest(&self) -> f32 {
        self.data.iter().copied().fold(FLOOR.log10(), f32::max)
    }

    /// The scale of Whisper: what is eight decades below the loudest band is as quiet as it gets, and values lie around
    /// −1 to 1.
    pub fn normalise(&mut self) {
        let quietest = self.loudest() - DECADES;
        for value in &mut self.data {
            *value = (value.max(quietest) + 4.0) / 4.0;
        }
    }
}

/// The spectrogram of this sound, with a frame for every whole [`HOP`]: sound that is shorter has none.
pub fn log_mel(samples: &[f32]) -> Mel {
    let frames = samples.len() / HOP;
    let mut data = vec![FLOOR.log10(); BANDS * frames];
    let tables = tables();
    let mirrored = mirror(samples);
    let mut windowed = tables.fft.make_input_vec();
    let mut spectrum = tables.fft.make_output_vec();
    let mut scratch = tables.fft.make_scratch_vec();
    let mut power = [0.0; BINS];
    for (frame, sound) in mirrored
        .windows(WINDOW)
        .step_by(HOP)
        .take(frames)
        .enumerate()
    {
        for ((to, sample), weight) in windowed.iter_mut().zip(sound).zip(&tables.hann) {
            *to = sample * weight;
        }
        let transformed =
            tables
                .fft
                .process_with_scratch(&mut windowed, &mut spectrum, &mut scratch);
        debug_assert!(transformed.is_ok(), "the buffers are the plan's own");
        for (to, bin) in power.iter_mut().zip(&spectrum) {
            *to = Complex32::norm_sqr(bin);
        }
        let column = data.iter_mut().skip(frame).step_by(frames);
        for (value, band) in column.zip(&tables.bands) {
            *value = band.energy(&power).max(FLOOR).log10();
        }
    }
    Mel { frames, data }
}

/// The sound with half a window before and behind it, mirrored at its first and last sample.
fn mirror(samples: &[f32]) -> Vec<f32> {
    const HALF: usize = WINDOW / 2;
    let Some(last) = samples.len().checked_sub(1).filter(|&last| last > 0) else {
        return Vec::new();
    };
    // Sound that is shorter than half a window is mirrored more than once.
    let fold = |distance: usize| {
        let at = distance % (2 * last);
        at.min(2 * last - at)
    };
    let at = |index: usize| samples.get(index).copied().unwrap_or_default();
    let mut mirrored = Vec::with_capacity(samples.len() + WINDOW);
    mirrored.extend((1..=HALF).rev().map(|distance| at(fold(distance))));
    mirrored.extend_from_slice(samples);
    mirrored.extend((1..=HALF).map(|distance| at(fold(last + distance))));
    mirrored
}

struct Tables {
    fft: Arc<dyn RealToComplex<f32>>,
    hann: [f32; WINDOW],
    bands: Vec<Band>,
}

/// The weights of a band from its first bin on: a triangle, of which most bins are no part.
struct Band {
    first: usize,
    weights: Vec<f32>,
}

impl Band {
    fn energy(&self, power: &[f32; BINS]) -> f32 {
        let bins = power.iter().skip(self.first);
        bins.zip(&self.weights)
            .map(|(bin, weight)| bin * weight)
            .sum()
    }
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| Tables {
        fft: forward(WINDOW),
        // Of a period of the window's length, as for a spectrogram, and not symmetric.
        hann: std::array::from_fn(|at| {
            let phase = std::f64::consts::TAU * at as f64 / WINDOW as f64;
            (0.5 - 0.5 * phase.cos()) as f32
        }),
        bands: bands(),
    })
}

/// Triangles of equal area, evenly spread over the mel scale, each as wide as from the middle of the one before it to
/// that of the next.
fn bands() -> Vec<Band> {
    let top = mel(RATE_HZ as f64 / 2.0);
    let edge = |at: usize| hertz(top * at as f64 / (BANDS + 1) as f64);
    let band = |at: usize| {
        let [low, middle, high] = [at, at + 1, at + 2].map(edge);
        let weights = (0..BINS).map(|bin| {
            let hertz = bin as f64 * RATE_HZ as f64 / WINDOW as f64;
            let rising = (hertz - low) / (middle - low);
            let falling = (high - hertz) / (high - middle);
            (rising.min(falling).max(0.0) * 2.0 / (high - low)) as f32
        });
        let weights: Vec<_> = weights
            .enumerate()
            .filter(|&(_, weight)| weight > 0.0)
            .collect();
        Band {
            first: weights.first().map_or(0, |&(bin, _)| bin),
            weights: weights.into_iter().map(|(_, weight)| weight).collect(),
        }
    };
    (0..BANDS).map(band).collect()
}

/// Where Slaney's scale turns from linear to logarithmic.
const TURN_HZ: f64 = 1000.0;
const TURN_MEL: f64 = 15.0;
const HZ_PER_MEL: f64 = TURN_HZ / TURN_MEL;

/// Mels in which a frequency grows by a factor of e, above the turn: 27 of them make 6.4.
fn mels_per_e() -> f64 {
    27.0 / 6.4_f64.ln()
}

fn mel(hertz: f64) -> f64 {
    if hertz < TURN_HZ {
        hertz / HZ_PER_MEL
    } else {
        TURN_MEL + (hertz / TURN_HZ).ln() * mels_per_e()
    }
}

fn hertz(mel: f64) -> f64 {
    if mel < TURN_MEL {
        mel * HZ_PER_MEL
    } else {
        TURN_HZ * ((mel - TURN_MEL) / mels_per_e()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Band, frame and value: computed of `sound(4000)` with librosa.
    const RAW: [(usize, usize, f32); 8] = [
        (0, 0, -0.4753),
        (5, 3, -7.6236),
        (10, 12, 0.9508),
        (11, 24, 1.2982),
        (40, 1, -4.6161),
        (55, 13, -0.0603),
        (60, 20, -6.0289),
        (79, 24, -4.9253),
    ];
    const NORMALISED: [(usize, usize, f32); 8] = [
        (0, 0, 0.8812),
        (5, 3, -0.6725),
        (10, 12, 1.2377),
        (11, 24, 1.3246),
        (40, 1, -0.1540),
        (55, 13, 0.9849),
        (60, 20, -0.5072),
        (79, 24, -0.2313),
    ];

    /// Two tones and a little of something like noise.
    fn sound(samples: usize) -> Vec<f32> {
        let sample = |at: usize| {
            let second = at as f64 / RATE_HZ as f64;
            let noise = (at * 7919 % 1000) as f64 / 1000.0 - 0.5;
            let tones = 0.3 * (std::f64::consts::TAU * 440.0 * second).sin()
                + 0.1 * (std::f64::consts::TAU * 3100.0 * second).sin();
            (tones + 0.01 * noise) as f32
        };
        (0..samples).map(sample).collect()
    }

    #[test]
    fn a_spectrogram_is_that_of_the_reference() {
        let mut mel = log_mel(&sound(4000));
        assert_eq!((mel.frames, mel.data.len()), (25, BANDS * 25));
        let near = |mel: &Mel, expected: [(usize, usize, f32); 8]| {
            for (band, frame, expected) in expected {
                let value = mel.data[band * mel.frames + frame];
                assert!(
                    (value - expected).abs() < 2e-3,
                    "{band}, {frame}: {value}, not {expected}"
                );
            }
        };
        near(&mel, RAW);
        mel.normalise();
        near(&mel, NORMALISED);
    }

    #[test]
    fn silence_is_quiet_and_finite() {
        let mut mel = log_mel(&vec![0.0; RATE_HZ]);
        assert!(mel.data.iter().all(|value| (value + 10.0).abs() < 1e-4));
        mel.normalise();
        assert!(mel.data.iter().all(|value| value.is_finite()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn sound_of_any_length_has_a_frame_for_every_hop(samples in prop::collection::vec(-1.0f32..1.0, 0..1200)) {
            let mel = log_mel(&samples);
            prop_assert_eq!(mel.frames, samples.len() / HOP);
            prop_assert_eq!(mel.data.len(), BANDS * mel.frames);
            prop_assert!(mel.data.iter().all(|value| value.is_finite()));
        }
    }
}
