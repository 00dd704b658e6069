//! Noise suppression for microphones and rooms. A small recurrent network (RNNoise, by `nnnoiseless`) weights the
//! frequency bands of 10 ms frames at 48 kHz; this module does the framing, resampling and alignment.
//!
//! The network's output lags by a frame. The output is shifted back by that, so that every sample keeps its position:
//! the output is as long as the input, and a word is where it was. It is only available up to [`Denoiser::HELD`] later.

use std::fmt;
use std::time::Duration;

use vivavoce_fft::nnnoiseless::DenoiseState;

use super::pcm::saturate;
use super::{Layout, Resampler, SampleRate};

/// The network's sample rate.
const RATE: SampleRate = SampleRate::HZ_48000;
/// The network's frame size: 10 ms.
const FRAME: usize = DenoiseState::FRAME_SIZE;

/// Suppresses noise in one mono stream. The output does not depend on how the input is divided into chunks.
pub struct Denoiser {
    layout: Layout,
    raise: Resampler,
    network: Box<DenoiseState<'static>>,
    lower: Resampler,
    /// An incomplete frame, at the network's rate.
    rest: Vec<i16>,
    /// Samples given to the network, and samples taken of its output.
    heard: u64,
    answered: u64,
    /// Frames given to the network.
    frames: u64,
}

impl Denoiser {
    /// The maximum delay: a frame to be filled, a frame held by the network, and both resamplers.
    pub const HELD: Duration = Duration::from_millis(28);

    /// A denoiser for mono audio at this rate.
    pub fn new(rate: SampleRate) -> Self {
        Self {
            layout: Layout::mono(rate),
            raise: Resampler::new(Layout::mono(rate), RATE),
            network: DenoiseState::new(),
            lower: Resampler::new(Layout::mono(RATE), rate),
            rest: Vec::with_capacity(FRAME),
            heard: 0,
            answered: 0,
            frames: 0,
        }
    }

    /// The layout of input and output.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Processes audio and appends to `output` what is ready.
    pub fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        let mut raised = Vec::new();
        self.raise.push(input, &mut raised);
        self.answer(&raised, u64::MAX, output);
    }

    /// Ends the input: appends what is still held, so that the output is as long as the input. The denoiser is then as
    /// good as new.
    pub fn finish(&mut self, output: &mut Vec<i16>) {
        let mut raised = Vec::new();
        self.raise.finish(&mut raised);
        let all = self.heard + raised.len() as u64;
        // Silence after the end flushes the network.
        raised.resize(raised.len() + 2 * FRAME, 0);
        self.answer(&raised, all, output);
        self.lower.finish(output);
        *self = Self::new(self.layout.rate);
    }

    /// Gives the network audio, and takes its output up to `until`.
    fn answer(&mut self, raised: &[i16], until: u64, output: &mut Vec<i16>) {
        self.heard += raised.len() as u64;
        let mut raised = raised;
        while self.rest.len() + raised.len() >= FRAME {
            let (taken, others) = raised.split_at(FRAME - self.rest.len());
            raised = others;
            self.rest.extend_from_slice(taken);
            let frame = self.frame();
            // The first output is about what was before the first sample.
            if self.frames > 1 {
                let wanted = until.saturating_sub(self.answered).min(FRAME as u64);
                self.lower.push(&frame[..wanted as usize], output);
                self.answered += wanted;
            }
        }
        self.rest.extend_from_slice(raised);
    }

    /// Processes the complete frame.
    fn frame(&mut self) -> [i16; FRAME] {
        let mut heard = [0.0; FRAME];
        let mut said = [0.0; FRAME];
        for (heard, sample) in heard.iter_mut().zip(self.rest.drain(..)) {
            *heard = f32::from(sample);
        }
        self.network.process_frame(&mut said, &heard);
        self.frames += 1;
        said.map(saturate)
    }
}

impl fmt::Debug for Denoiser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denoiser")
            .field("layout", &self.layout)
            .field("heard", &self.heard)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A synthetic voice: harmonics of a changing pitch, in syllables of a quarter second with pauses.
    fn voice(rate: SampleRate, seconds: f64) -> Vec<i16> {
        let hz = f64::from(rate.hz());
        let mut phase = 0.0;
        (0..(seconds * hz) as usize)
            .map(|n| {
                let time = n as f64 / hz;
                let pitch = 120.0 + 20.0 * (time * 9.0).sin();
                phase += std::f64::consts::TAU * pitch / hz;
                let syllable = (time * 12.0).sin().max(0.0);
                let sound: f64 = (1..20)
                    .map(|harmonic| (phase * f64::from(harmonic)).sin() / f64::from(harmonic))
                    .sum();
                (sound * syllable * 5_000.0) as i16
            })
            .collect()
    }

    fn denoised(rate: SampleRate, sound: &[i16], chunk: usize) -> Vec<i16> {
        let mut denoiser = Denoiser::new(rate);
        let mut output = Vec::new();
        for chunk in sound.chunks(chunk) {
            denoiser.push(chunk, &mut output);
        }
        denoiser.finish(&mut output);
        output
    }

    fn energy(sound: &[i16]) -> f64 {
        sound
            .iter()
            .map(|&sample| f64::from(sample).powi(2))
            .sum::<f64>()
            / sound.len() as f64
    }

    /// The shift of `output` against `input`, in samples, at which they correlate most.
    fn shift(input: &[i16], output: &[i16], most: i64) -> i64 {
        let alike = |shift: i64| -> f64 {
            let range = most as usize..input.len() - most as usize;
            range
                .map(|n| f64::from(input[n]) * f64::from(output[(n as i64 + shift) as usize]))
                .sum()
        };
        (-most..=most)
            .max_by(|a, b| alike(*a).total_cmp(&alike(*b)))
            .unwrap()
    }

    #[test]
    fn every_sample_keeps_its_place_at_every_rate() {
        for hz in [8_000u32, 11_025, 16_000, 44_100, 48_000] {
            let rate = SampleRate::new(hz).unwrap();
            let sound = voice(rate, 1.5);
            let output = denoised(rate, &sound, 331);
            assert_eq!(output.len(), sound.len(), "{hz} Hz");
            let most = i64::from(hz / 200);
            let shift = shift(&sound, &output, most);
            // The network slightly changes the phase of a voice's pitch.
            assert!(shift.abs() <= i64::from(hz / 4_000), "{shift} at {hz} Hz");
        }
    }

    #[test]
    fn noise_is_suppressed_and_silence_stays_silent() {
        let rate = SampleRate::HZ_16000;
        let mut random = fastrand::Rng::with_seed(1);
        let noise: Vec<i16> = (0..48_000).map(|_| random.i16(-1_500..1_500)).collect();
        let output = denoised(rate, &noise, 320);
        let (before, after) = (energy(&noise[16_000..]), energy(&output[16_000..]));
        assert!(after < before / 100.0, "{before} {after}");
        assert_eq!(denoised(rate, &[0; 4_000], 320), [0; 4_000]);
    }

    #[test]
    fn sound_comes_out_no_later_than_is_said() {
        for hz in [8_000u32, 16_000, 44_100, 48_000] {
            let rate = SampleRate::new(hz).unwrap();
            let mut denoiser = Denoiser::new(rate);
            let (mut given, mut output) = (0, Vec::new());
            for chunk in voice(rate, 0.5).chunks(7) {
                denoiser.push(chunk, &mut output);
                given += chunk.len();
                let held = rate.duration_of(given - output.len());
                assert!(held <= Denoiser::HELD, "{held:?} at {hz} Hz");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn the_output_is_the_same_in_any_chunking(chunk in 1usize..3_000, samples in 0usize..6_000) {
            let rate = SampleRate::HZ_16000;
            let sound = &voice(rate, 0.4)[..samples.min(6_400)];
            let whole = denoised(rate, sound, 6_400);
            prop_assert_eq!(whole.len(), sound.len());
            prop_assert_eq!(denoised(rate, sound, chunk), whole);
        }
    }
}
