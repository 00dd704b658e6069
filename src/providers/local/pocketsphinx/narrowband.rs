//! Telephone speech for a recogniser that was trained on wideband: what came over a telephone has nothing above 4 kHz,
//! not even noise, and there the logarithms of the features fall without bottom and drown the rest. [`Narrowband`]
//! notices that and puts a little noise there. It hears utterances only; the detector of speech hears them without it.

use std::f64::consts::PI;
use std::sync::LazyLock;

use vivavoce_audio::window::kaiser;

/// Taps of the high-pass that looks at the upper band.
const TAPS: usize = 65;
/// Its edge in parts of the sample rate, 5.5 kHz: what is below 4.8 kHz, where the resampler from 8 kHz stops, is down
/// by 82 dB.
const EDGE: f64 = 5_500.0 / 16_000.0;
/// Shape of its Kaiser window.
const KAISER_BETA: f64 = 8.0;
/// Samples that are judged at a time, 8 ms. A click lasts, with the filter, for two at most.
const WINDOW: usize = 128;
/// Windows in a row with sound above the edge that make speech wideband.
const ALIVE: usize = 3;
/// The least RMS of sound above the edge. The rounding of samples leaves 0.2 there, 0.36 in the worst window of
/// telephone speech, and the softest recordings of people have 1.2 in most.
const AUDIBLE: f32 = 0.7;
/// And its least share of the whole: resampling leaves up to 86 dB less than there was below.
const SHARE: f32 = 1e-4;
/// RMS of the noise as a share of the loudest speech: 38 dB below. More hides words, less leaves the band empty.
const NOISE: f32 = 0.0125;
/// What a window leaves of the loudest before it: half of it in ten seconds.
const FADE: f32 = 0.999_446;

/// Fills the upper band of one stream of 16 kHz speech for as long as that is empty. Wideband speech stays as it is.
#[derive(Debug)]
pub struct Narrowband {
    /// Sound that was heard and is still needed: the past of the filter, and a window that is not complete.
    heard: Vec<i16>,
    /// Windows in a row with sound above the edge.
    alive: usize,
    /// RMS of the loudest window, fading.
    loudest: f32,
    noise: Noise,
}

impl Narrowband {
    /// For a stream of which nothing was heard.
    pub fn new() -> Self {
        Self {
            heard: Vec::new(),
            alive: 0,
            loudest: 0.0,
            noise: Noise::new(),
        }
    }

    /// What comes next does not follow what was heard last: an utterance begins.
    pub fn begin(&mut self) {
        self.heard.clear();
        if self.alive < ALIVE {
            self.alive = 0;
        }
    }

    /// Takes the next samples of an utterance, and fills what they lack.
    pub fn fill(&mut self, samples: &mut [i16]) {
        if self.alive < ALIVE {
            self.judge(samples);
        }
        if self.alive < ALIVE {
            let rms = self.loudest * NOISE;
            for sample in samples {
                let filled = f32::from(*sample) + rms * self.noise.next();
                // A cast saturates.
                *sample = filled.round() as i16;
            }
        }
    }

    fn judge(&mut self, samples: &[i16]) {
        self.heard.extend(samples);
        let mut from = 0;
        while self.alive < ALIVE
            && let Some(window) = self.heard.get(from..from + TAPS - 1 + WINDOW)
        {
            from += WINDOW;
            let all = rms(window.iter().map(|&sample| f32::from(sample)));
            let above = rms(window.windows(TAPS).map(above_edge));
            self.loudest = all.max(self.loudest * FADE);
            // What is cut off above full scale splashes over the whole band.
            let clipped = window.iter().any(|&s| s == i16::MIN || s == i16::MAX);
            let alive = above >= AUDIBLE && above >= all * SHARE && !clipped;
            self.alive = if alive { self.alive + 1 } else { 0 };
        }
        self.heard.drain(..from);
    }
}

/// RMS of samples.
fn rms(samples: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = samples.len() as f32;
    (samples.map(|sample| sample * sample).sum::<f32>() / count).sqrt()
}

/// The sound above [`EDGE`] in the middle of so many samples as there are taps.
fn above_edge(samples: &[i16]) -> f32 {
    let products = samples.iter().zip(&*HIGH_PASS);
    products.map(|(&sample, tap)| f32::from(sample) * tap).sum()
}

/// A windowed sinc, turned over to pass what is above its edge.
static HIGH_PASS: LazyLock<[f32; TAPS]> = LazyLock::new(|| {
    let middle = (TAPS / 2) as f64;
    std::array::from_fn(|n| {
        let at = n as f64 - middle;
        let low_pass = match at {
            0.0 => 2.0 * EDGE,
            at => (2.0 * PI * EDGE * at).sin() / (PI * at),
        };
        let all_pass = f64::from(u8::from(at == 0.0));
        ((all_pass - low_pass) * kaiser(at / middle, KAISER_BETA)) as f32
    })
});

/// Noise that rises by 12 dB per octave, so that it is where the telephone has nothing and not where the words are.
/// The same for every stream: what was heard once is heard again.
#[derive(Debug)]
struct Noise {
    /// Of xorshift (Marsaglia 2003).
    state: u32,
    /// The last two white samples.
    past: [f32; 2],
}

impl Noise {
    fn new() -> Self {
        Self {
            state: 0x9E37_79B9,
            past: [0.0; 2],
        }
    }

    /// The next sample, at an RMS of 1.
    fn next(&mut self) -> f32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        // Uniform from -1 to 1 has a mean square of a third.
        let white = (self.state as f32 / 2f32.powi(31) - 1.0) * 3f32.sqrt();
        let [last, before] = self.past;
        self.past = [white, last];
        (white - 2.0 * last + before) / 6f32.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vivavoce_audio::g711::Law;
    use vivavoce_audio::{Layout, Resampler, SampleRate};

    /// Harmonics of a voice at 120 Hz up to `highest` Hz, falling by 6 dB per octave, after a silence.
    fn voice(rate: SampleRate, highest: f64, amplitude: f64) -> Vec<i16> {
        let rate = f64::from(rate.hz());
        let silence = std::iter::repeat_n(0, (0.2 * rate) as usize);
        let voice = (0..rate as usize).map(|n| {
            let phase = n as f64 / rate * 120.0 * 2.0 * PI;
            let harmonics = (1..).take_while(|k| f64::from(*k) * 120.0 < highest);
            let sum: f64 = harmonics
                .map(|k| (f64::from(k) * (phase + f64::from(k))).sin() / f64::from(k))
                .sum();
            // It takes 100 ms to begin.
            let onset = (n as f64 / rate / 0.1).min(1.0);
            (sum * amplitude * onset) as i16
        });
        silence.chain(voice).collect()
    }

    fn upsampled(narrow: &[i16]) -> Vec<i16> {
        let from = Layout::mono(SampleRate::HZ_8000);
        let mut resampler = Resampler::new(from, SampleRate::HZ_16000);
        let mut samples = Vec::new();
        resampler.push(narrow, &mut samples);
        resampler.finish(&mut samples);
        samples
    }

    fn telephone(amplitude: f64) -> Vec<i16> {
        upsampled(&voice(SampleRate::HZ_8000, 3_400.0, amplitude))
    }

    fn wideband() -> Vec<i16> {
        voice(SampleRate::HZ_16000, 7_500.0, 3_000.0)
    }

    /// As the cutter hands it out: the pre-roll with the onset, then frame by frame.
    fn fill(narrowband: &mut Narrowband, sound: &[i16]) -> Vec<i16> {
        let mut sound = sound.to_vec();
        let (first, rest) = sound.split_at_mut(5_568);
        narrowband.begin();
        narrowband.fill(first);
        rest.chunks_mut(256)
            .for_each(|frame| narrowband.fill(frame));
        sound
    }

    /// RMS of the voice's second half above the edge, and of the whole of it.
    fn levels(sound: &[i16]) -> (f32, f32) {
        let sound = &sound[sound.len() / 2..];
        (
            rms(sound.windows(TAPS).map(above_edge)),
            rms(sound.iter().map(|&sample| f32::from(sample))),
        )
    }

    #[test]
    fn the_high_pass_hears_nothing_of_the_telephone_and_all_of_the_highest_band() {
        let gain = |hz: f64| {
            let response = |part: fn(f64) -> f64| -> f64 {
                let taps = HIGH_PASS.iter().enumerate();
                taps.map(|(n, &tap)| f64::from(tap) * part(n as f64 * hz / 16_000.0 * 2.0 * PI))
                    .sum()
            };
            20.0 * response(f64::cos).hypot(response(f64::sin)).log10()
        };
        for hz in (0..=4_800).step_by(10) {
            assert!(gain(f64::from(hz)) < -80.0, "{hz} Hz");
        }
        for hz in (6_000..8_000).step_by(10) {
            assert!(gain(f64::from(hz)).abs() < 0.2, "{hz} Hz");
        }
    }

    #[test]
    fn wideband_speech_is_not_touched_not_even_its_beginning() {
        let sound = wideband();
        assert_eq!(fill(&mut Narrowband::new(), &sound), sound);
    }

    #[test]
    fn telephone_speech_gets_noise_above_and_keeps_its_words() {
        // From a whisper to overload.
        for amplitude in [100.0, 3_000.0, 20_000.0] {
            let sound = telephone(amplitude);
            let mut samples = Vec::new();
            let mut codes = Vec::new();
            Law::Mu.compress(&voice(SampleRate::HZ_8000, 3_400.0, amplitude), &mut codes);
            Law::Mu.expand(&codes, &mut samples);
            for sound in [sound, upsampled(&samples)] {
                let mut narrowband = Narrowband::new();
                let filled = fill(&mut narrowband, &sound);
                assert!(narrowband.alive < ALIVE);
                let added: Vec<i16> = sound.iter().zip(&filled).map(|(a, b)| b - a).collect();
                let (_, speech) = levels(&sound);
                let (above, noise) = levels(&added);
                for share in [above / speech, noise / speech] {
                    assert!((0.006..0.06).contains(&share), "{amplitude}: {share}");
                }
                assert!(above > noise * 0.6, "{amplitude}: {above} of {noise}");
            }
        }
    }

    #[test]
    fn one_stream_is_filled_as_the_other() {
        let sound = telephone(3_000.0);
        let filled = fill(&mut Narrowband::new(), &sound);
        assert_eq!(fill(&mut Narrowband::new(), &sound), filled);
        assert_ne!(filled, sound);
    }

    #[test]
    fn a_click_or_a_joint_does_not_make_telephone_speech_wideband() {
        let mut sound = telephone(3_000.0);
        sound[2_000] = 20_000;
        sound[9_000] = -20_000;
        sound.drain(12_000..12_345);
        let mut narrowband = Narrowband::new();
        for _ in 0..3 {
            assert_ne!(fill(&mut narrowband, &sound), sound);
        }
        assert!(narrowband.alive < ALIVE);
    }

    #[test]
    fn a_stream_that_was_wideband_once_stays_so() {
        let mut narrowband = Narrowband::new();
        fill(&mut narrowband, &wideband());
        let sound = telephone(3_000.0);
        assert_eq!(fill(&mut narrowband, &sound), sound);
    }

    #[test]
    fn silence_stays_silent() {
        let silence = vec![0; 16_000];
        assert_eq!(fill(&mut Narrowband::new(), &silence), silence);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever is heard, it keeps its length, and what is kept of it is bounded.
        #[test]
        fn nothing_overflows(chunks in prop::collection::vec((prop::collection::vec(any::<i16>(), 0..700), any::<bool>()), 0..12)) {
            let mut narrowband = Narrowband::new();
            for (mut chunk, begins) in chunks {
                if begins {
                    narrowband.begin();
                }
                narrowband.fill(&mut chunk);
                prop_assert!(narrowband.alive >= ALIVE || narrowband.heard.len() < TAPS - 1 + WINDOW);
            }
        }
    }
}
