//! The network that scores frames, that of `earshot`, and what it looks at: the energy of 40 bands of the last 48 ms, of this
//! frame and of the two before. The crate itself is what tests compare with: it computes both without vector instructions, and
//! takes 8 KiB for each stream.

mod bands;
mod layers;
mod weights;

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use multiversion::multiversion;
use vivavoce_fft::{Complex32, Fft};

use super::{FRAME, Score};
use bands::HALF;
use layers::{BANDS, CONTEXT, State};

/// Samples that the network looks at: three frames.
const WINDOW: usize = 3 * FRAME;
/// How much of a sample is taken from the next one: speech has little energy at high frequencies.
const PRE_EMPHASIS: f32 = 0.97;

/// What does not change.
struct Tables {
    transform: Arc<dyn Fft<f32>>,
    window: [f32; WINDOW],
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| Tables {
    transform: vivavoce_fft::complex(HALF),
    // A periodic Hann window.
    window: std::array::from_fn(|n| {
        let phase = n as f64 / WINDOW as f64 * std::f64::consts::TAU;
        (0.5 - 0.5 * phase.cos()) as f32
    }),
});

/// Where a frame is worked on. One for all streams of a thread, so that it stays in the processor's cache.
struct Bench {
    spectrum: [Complex32; HALF],
    scratch: Vec<Complex32>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench {
        spectrum: [Complex32::default(); HALF],
        scratch: vec![Complex32::default(); TABLES.transform.get_inplace_scratch_len()],
    });
}

/// The network of one stream, with what it remembers.
struct Network {
    /// The two frames before, and the sample before them.
    before: [i16; WINDOW - FRAME + 1],
    /// By frame, the latest last.
    features: [[f32; BANDS]; CONTEXT],
    state: State,
}

/// The network at the start of a stream.
pub fn network() -> Score {
    let mut network = Box::new(Network {
        before: [0; WINDOW - FRAME + 1],
        features: [[0.0; BANDS]; CONTEXT],
        state: [[0; layers::UNITS]; 2],
    });
    Box::new(move |frame| BENCH.with_borrow_mut(|bench| network.score(frame, bench)))
}

impl Network {
    fn score(&mut self, frame: &[i16], bench: &mut Bench) -> f32 {
        self.transform(frame, bench);
        self.features.rotate_left(1);
        let [.., latest] = &mut self.features;
        bands::bands(&bench.spectrum, latest);
        layers::predict(&self.features, &mut self.state)
    }

    /// The complex transform of the last three frames, even samples as real and odd ones as imaginary parts.
    fn transform(&mut self, frame: &[i16], bench: &mut Bench) {
        let mut samples = [0; WINDOW + 1];
        let (before, latest) = samples.split_at_mut(self.before.len());
        before.copy_from_slice(&self.before);
        for (latest, sample) in latest.iter_mut().zip(frame) {
            *latest = *sample;
        }
        self.before.copy_from_slice(&samples[FRAME..]);
        let (windowed, padding) = bench.spectrum.split_at_mut(WINDOW / 2);
        let tables = &*TABLES;
        let mut emphasised = [0.0; WINDOW];
        emphasise(&samples, &tables.window, &mut emphasised);
        for (pair, [even, odd]) in windowed.iter_mut().zip(emphasised.as_chunks().0) {
            *pair = Complex32::new(*even, *odd);
        }
        padding.fill(Complex32::default());
        let transform = &tables.transform;
        transform.process_with_scratch(&mut bench.spectrum, &mut bench.scratch);
    }
}

/// The samples behind a filter that raises high frequencies, within the window.
#[multiversion(targets("x86_64+avx2"))]
fn emphasise(samples: &[i16; WINDOW + 1], window: &[f32; WINDOW], emphasised: &mut [f32; WINDOW]) {
    for n in 0..WINDOW {
        let sample = f32::from(samples[n + 1]) - PRE_EMPHASIS * f32::from(samples[n]);
        emphasised[n] = sample * window[n];
    }
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

    /// The layers alone compute what the crate does, bit by bit.
    #[test]
    fn layers_are_those_of_earshot() {
        use earshot::{DefaultPredictor, Predictor};
        let mut random = fastrand::Rng::with_seed(5);
        let mut theirs = DefaultPredictor::new();
        let mut state = [[0; layers::UNITS]; 2];
        let mut features = [[0.0; BANDS]; CONTEXT];
        let mut scores = Vec::new();
        for _ in 0..2_000 {
            features.rotate_left(1);
            let loudness = random.f32() * 20.0;
            features[CONTEXT - 1] = std::array::from_fn(|_| loudness - random.f32() * 25.0);
            theirs.normalize(&mut features[CONTEXT - 1]);
            let expected = theirs.predict(features.as_flattened(), &mut [0.0; 1_026]);
            let score = layers::predict(&features, &mut state);
            assert_eq!(score.to_bits(), expected.to_bits(), "{score} {expected}");
            scores.push(score);
        }
        scores.sort_by(f32::total_cmp);
        let (least, most) = (scores[0], scores[1_999]);
        assert!(least < 0.4 && most > 0.9, "{least} {most}");
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
