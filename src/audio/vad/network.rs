//! The network that scores frames, `earshot`'s, and what it looks at: the energy of 40 bands of the last 48 ms, of this
//! frame and of the two before. That is computed here instead of by `earshot` itself, which takes a transform without
//! vector instructions and 8 KiB for each stream: most of what detection costs. The network itself is its own, by a part
//! of its interface that may change, so its version is pinned.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use earshot::{DefaultPredictor, Predictor};
use vivavoce_fft::{Complex32, RealToComplex, forward};

use super::{FRAME, Score};

/// Samples that the network looks at: three frames.
const WINDOW: usize = 3 * FRAME;
/// The length of the transform; the window is padded with zeros.
const TRANSFORM: usize = 1_024;
const BINS: usize = TRANSFORM / 2 + 1;
const BANDS: usize = 40;
/// The frames whose bands the network sees.
const CONTEXT: usize = 3;
/// How much of a sample is taken from the next one: speech has little energy at high frequencies.
const PRE_EMPHASIS: f32 = 0.97;
/// Samples are computed with as 16-bit integers, and their energy is that of samples from −1 to 1.
const SCALE: f32 = 1.0 / (32_768.0 * 32_768.0);
/// What is added to an energy, as the logarithm of nothing is infinite.
const LEAST: f32 = 1e-20;
/// What the network needs to compute.
const SCRATCH: usize = TRANSFORM + 2;

/// The bins where bands begin and end: band `n` rises from the `n`th to the one after it, and falls to the next.
const EDGES: [usize; BANDS + 2] = [
    4, 7, 10, 13, 17, 21, 25, 29, 33, 38, 43, 48, 54, 60, 66, 73, 80, 87, 95, 103, 112, 122, 132,
    142, 153, 165, 178, 191, 205, 220, 236, 253, 270, 289, 309, 330, 353, 376, 402, 428, 456, 486,
];

/// What does not change.
struct Tables {
    transform: Arc<dyn RealToComplex<f32>>,
    window: [f32; WINDOW],
    /// By bin: how far it lies between the two edges around it, 0–1.
    slopes: [f32; BINS],
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut slopes = [0.0; BINS];
    for edges in EDGES.windows(2) {
        let slope = &mut slopes[edges[0]..edges[1]];
        let length = slope.len() as f32;
        for (bin, risen) in slope.iter_mut().enumerate() {
            *risen = bin as f32 / length;
        }
    }
    Tables {
        transform: forward(TRANSFORM),
        // A periodic Hann window.
        window: std::array::from_fn(|n| {
            let phase = n as f64 / WINDOW as f64 * std::f64::consts::TAU;
            (0.5 - 0.5 * phase.cos()) as f32
        }),
        slopes,
    }
});

/// Where a frame is worked on. One for all streams of a thread, so that it stays in the processor's cache.
struct Bench {
    samples: Vec<f32>,
    spectrum: Vec<Complex32>,
    scratch: Vec<Complex32>,
    energies: [f32; BINS],
    network: [f32; SCRATCH],
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench {
        samples: TABLES.transform.make_input_vec(),
        spectrum: TABLES.transform.make_output_vec(),
        scratch: TABLES.transform.make_scratch_vec(),
        energies: [0.0; BINS],
        network: [0.0; SCRATCH],
    });
}

/// The network of one stream, with what it remembers.
struct Network {
    /// The two frames before, emphasised.
    before: [f32; WINDOW - FRAME],
    last: f32,
    /// By frame, the latest last.
    features: [f32; CONTEXT * BANDS],
    predictor: DefaultPredictor,
}

/// The network at the start of a stream.
pub fn network() -> Score {
    let mut network = Box::new(Network {
        before: [0.0; WINDOW - FRAME],
        last: 0.0,
        features: [0.0; CONTEXT * BANDS],
        predictor: DefaultPredictor::new(),
    });
    Box::new(move |frame| BENCH.with_borrow_mut(|bench| network.score(frame, bench)))
}

impl Network {
    fn score(&mut self, frame: &[i16], bench: &mut Bench) -> f32 {
        self.spectrum(frame, bench);
        self.features.copy_within(BANDS.., 0);
        let latest = &mut self.features[(CONTEXT - 1) * BANDS..];
        bands(&bench.energies, latest);
        self.predictor.normalize(latest);
        self.predictor.predict(&self.features, &mut bench.network)
    }

    /// The energy of each bin of the last three frames.
    fn spectrum(&mut self, frame: &[i16], bench: &mut Bench) {
        let emphasised = &mut bench.samples[WINDOW - FRAME..WINDOW];
        for (out, sample) in emphasised.iter_mut().zip(frame) {
            let sample = f32::from(*sample);
            *out = sample - PRE_EMPHASIS * self.last;
            self.last = sample;
        }
        bench.samples[..WINDOW - FRAME].copy_from_slice(&self.before);
        self.before.copy_from_slice(&bench.samples[FRAME..WINDOW]);
        for (sample, factor) in bench.samples.iter_mut().zip(&TABLES.window) {
            *sample *= factor;
        }
        bench.samples[WINDOW..].fill(0.0);
        // It fails for other lengths than its own only.
        let _ = TABLES.transform.process_with_scratch(
            &mut bench.samples,
            &mut bench.spectrum,
            &mut bench.scratch,
        );
        for (energy, bin) in bench.energies.iter_mut().zip(&bench.spectrum) {
            *energy = bin.norm_sqr() * SCALE;
        }
    }
}

/// The logarithm of the energy of each band.
fn bands(energies: &[f32; BINS], bands: &mut [f32]) {
    // Between two edges one band falls and the next one rises, and together they are all of it.
    let mut falling = 0.0;
    for (number, edges) in EDGES.windows(2).enumerate() {
        let (all, rising) = between(
            &energies[edges[0]..edges[1]],
            &TABLES.slopes[edges[0]..edges[1]],
        );
        if let Some(band) = number
            .checked_sub(1)
            .and_then(|before| bands.get_mut(before))
        {
            *band = (falling + all - rising + LEAST).ln();
        }
        falling = rising;
    }
}

/// The sum of energies, and that of energies by their slopes, as four partial sums, so that the compiler can use vector
/// instructions.
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

    /// Something like a voice that comes and goes, in noise.
    fn sound() -> Vec<i16> {
        let mut random = fastrand::Rng::with_seed(4);
        (0..200 * FRAME)
            .map(|n| {
                let time = n as f64 / 16_000.0 * std::f64::consts::TAU;
                let pitch = 110.0 + 20.0 * (time * 0.7).sin();
                let voice: f64 = (1..25)
                    .map(|k| (time * pitch * f64::from(k)).sin() / f64::from(k))
                    .sum();
                let loudness = (time * 1.3).sin().max(0.0) * 4_000.0;
                (voice * loudness + f64::from(random.i16(-200..=200))) as i16
            })
            .collect()
    }

    #[test]
    fn scores_are_those_that_earshot_gives_itself() {
        let (mut ours, mut theirs) = (network(), earshot::Detector::default_boxed());
        let (mut most, mut least) = (0.0_f32, 1.0_f32);
        for frame in sound().as_chunks::<FRAME>().0 {
            let (ours, theirs) = (ours(frame), theirs.predict_i16(frame));
            assert!((ours - theirs).abs() < 0.01, "{ours} {theirs}");
            (most, least) = (most.max(theirs), least.min(theirs));
        }
        assert!(most > 0.7 && least < 0.3, "{least} {most}");
    }

    #[test]
    fn streams_of_one_thread_do_not_mix() {
        let sound = sound();
        let frames = sound.as_chunks::<FRAME>().0;
        let mut alone = network();
        let expected: Vec<_> = frames.iter().map(|frame| alone(frame)).collect();
        let (mut one, mut other) = (network(), network());
        let beside = frames
            .iter()
            .zip(frames.iter().rev())
            .map(|(frame, others)| {
                other(others);
                one(frame)
            });
        assert_eq!(beside.collect::<Vec<_>>(), expected);
    }
}
