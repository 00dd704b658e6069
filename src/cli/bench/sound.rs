//! What simulated people send: the speech of a local voice, with the noise of a room 20 dB below it, and that noise alone.
//! Detectors of voice are cheap in digital silence, which no telephone and no microphone sends.

use std::process::Command;

use bytes::Bytes;
use fastrand::Rng;

use super::Failure;
use crate::audio::linear16;

pub(super) const RATE_HZ: u32 = 16_000;
/// How much fainter than speech the noise is, as a ratio of amplitudes: 20 dB.
const NOISE: f32 = 0.1;
/// How loud speech is while somebody speaks (RMS): 26 dB below full scale.
const LOUDNESS: f32 = 1_640.0;
/// Blocks of 20 ms that are this much fainter than the loudest one are pauses, and do not count for the loudness: 30 dB.
const PAUSE: f32 = 0.001;
const BLOCK: usize = 320;
/// The noise is the same in every run.
const SEED: u64 = 20_261_127;
/// How fast the voice speaks, in turns.
const RATES: [&str; 3] = ["1.0", "0.9", "1.15"];
const SENTENCES: [&str; 12] = [
    "Good morning, I am calling about the order that I placed last week.",
    "The parcel was to come on Monday, and nobody has heard of it since.",
    "Could you look up the number for me, please?",
    "It is seven, four, four, nine, two, one, and then a zero.",
    "I have already written two letters, but there was no answer.",
    "My daughter needs the violin for a concert on the twenty-third.",
    "No, the other address, the one in Bridge Street.",
    "Well, that would be very kind of you.",
    "What does it cost if somebody brings it in the evening?",
    "In that case I would rather fetch it myself on my way home.",
    "Is the shop open until eight o'clock, as it used to be?",
    "Thank you, you have been a great help, and have a nice day.",
];

/// Two recordings of one length, which repeat: speech with noise, and noise alone.
#[derive(Debug)]
pub(super) struct Sounds {
    speech: Bytes,
    noise: Bytes,
}

impl Sounds {
    /// Speech by the default local voice of this program.
    pub(super) fn spoken() -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(Failure::work)?;
        let mut speech = Vec::new();
        for (sentence, rate) in SENTENCES.iter().zip(RATES.iter().cycle()) {
            let hz = RATE_HZ.to_string();
            let said = Command::new(&program)
                .args(["say", sentence, "--rate", rate, "--format", "linear16"])
                .args(["--sample-rate", &hz, "--output", "-"])
                .output()
                .map_err(Failure::work)?;
            if !said.status.success() {
                return Err(Failure::work(format!(
                    "the load speaks by a local voice, and there is none: {}",
                    String::from_utf8_lossy(&said.stderr).trim()
                )));
            }
            speech.extend(linear16::samples(&said.stdout));
        }
        Ok(Self::of(&speech))
    }

    /// These samples, as loud as speech is on a line, in noise.
    fn of(speech: &[i16]) -> Self {
        let gain = LOUDNESS / loudness(speech).max(1.0);
        let noise: Vec<f32> = pink(speech.len())
            .into_iter()
            .map(|sample| sample * LOUDNESS * NOISE)
            .collect();
        let both = speech
            .iter()
            .zip(&noise)
            .map(|(voice, noise)| (f32::from(*voice) * gain + noise) as i16);
        Self {
            speech: linear16::encode(&both.collect::<Vec<_>>()),
            noise: linear16::encode(
                &noise
                    .iter()
                    .map(|sample| *sample as i16)
                    .collect::<Vec<_>>(),
            ),
        }
    }

    /// The next `samples` of somebody of this many, from where all of them are `position` samples after their beginning:
    /// no two send the same at one time.
    pub(super) fn next(
        &self,
        one: u64,
        of: u64,
        position: u64,
        samples: usize,
        voice: bool,
    ) -> Bytes {
        let sound = if voice { &self.speech } else { &self.noise };
        let there = sound.len() / 2;
        let starts = there.saturating_sub(samples).max(1) as u64;
        let begin = (starts * one / of.max(1) + position) % starts;
        let begin = begin as usize * 2;
        sound.slice(begin..(begin + samples * 2).min(sound.len()))
    }
}

/// The loudness of what is not a pause (RMS).
fn loudness(speech: &[i16]) -> f32 {
    let energies: Vec<f32> = speech
        .chunks(BLOCK)
        .map(crate::audio::pcm::energy)
        .collect();
    let loudest = energies.iter().copied().fold(0.0, f32::max);
    let voiced: Vec<f32> = energies
        .into_iter()
        .filter(|energy| *energy > loudest * PAUSE)
        .collect();
    (voiced.iter().sum::<f32>() / (voiced.len() * BLOCK).max(1) as f32).sqrt()
}

/// Noise with the same energy in every octave, as rooms have it, of RMS 1: white noise through three one-pole filters
/// (Paul Kellet's economy method).
fn pink(samples: usize) -> Vec<f32> {
    let mut random = Rng::with_seed(SEED);
    let mut low = [0.0_f32; 3];
    let next = || {
        let white = random.f32() * 2.0 - 1.0;
        low[0] = 0.997_65 * low[0] + white * 0.099_046;
        low[1] = 0.963 * low[1] + white * 0.296_516_4;
        low[2] = 0.57 * low[2] + white * 1.052_691_3;
        low.iter().sum::<f32>() + white * 0.1848
    };
    let mut noise: Vec<f32> = std::iter::repeat_with(next).take(samples).collect();
    let energy: f32 = noise.iter().map(|sample| sample * sample).sum();
    let gain = 1.0
        / (energy / samples.max(1) as f32)
            .sqrt()
            .max(f32::MIN_POSITIVE);
    noise.iter_mut().for_each(|sample| *sample *= gain);
    noise
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(samples: impl Iterator<Item = f32> + Clone) -> f32 {
        let count = samples.clone().count() as f32;
        20.0 * (samples.map(|sample| sample * sample).sum::<f32>() / count)
            .sqrt()
            .log10()
    }

    #[test]
    fn noise_is_20_db_below_speech_and_never_digital_silence() {
        // Two seconds of a voice, one of a pause.
        let voice = (0..32_000).map(|n| if n / 53 % 2 == 0 { 9_000 } else { -9_000 });
        let speech: Vec<i16> = voice.chain(std::iter::repeat_n(0, 16_000)).collect();
        let sounds = Sounds::of(&speech);
        let samples = |bytes: &Bytes| -> Vec<f32> {
            let samples = bytes.as_chunks().0.iter();
            samples
                .map(|bytes| f32::from(i16::from_le_bytes(*bytes)))
                .collect()
        };
        let (speech, noise) = (samples(&sounds.speech), samples(&sounds.noise));
        let apart = level(speech[..32_000].iter().copied()) - level(noise.iter().copied());
        assert!((19.5..20.6).contains(&apart), "{apart}");
        assert!(
            noise
                .chunks(BLOCK)
                .all(|block| block.iter().any(|sample| *sample != 0.0))
        );
    }

    #[test]
    fn no_two_send_the_same_at_one_time_and_nobody_runs_out() {
        let sounds = Sounds::of(
            &(0..16_000)
                .map(|n: i32| (n * 7 % 9_001) as i16)
                .collect::<Vec<_>>(),
        );
        for position in [0, 320, 15_360, 1_000_000_000] {
            for voice in [true, false] {
                let all: std::collections::BTreeSet<Bytes> = (0..40)
                    .map(|one| sounds.next(one, 40, position, 320, voice))
                    .collect();
                assert_eq!(all.len(), 40, "{position}");
                assert!(all.iter().all(|frame| frame.len() == 640));
            }
        }
    }
}
