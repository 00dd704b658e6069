//! Sentences of flite's voices, with pauses of known length, and noise.

use std::ops::Range;
use std::process::Command;
use std::time::Duration;

use fastrand::Rng;

use vivavoce_audio::{Layout, Pcm, Resampler, SampleRate};

const RATE: usize = 16_000;
/// How many turns there are.
const TURNS: usize = 60;
const VOICES: [&str; 4] = ["slt", "rms", "awb", "kal16"];
const PHRASES: [&str; 16] = [
    "I would like to book a table",
    "for four people on Friday evening",
    "could you tell me",
    "when the next train to the airport leaves",
    "my account number is",
    "seven three nine, two two one",
    "no, that is not what I meant",
    "what I meant was the other one",
    "well",
    "let me think about it for a moment",
    "the doctor said that I should call again",
    "yes please",
    "it stopped working after the update",
    "and now the light keeps blinking",
    "thank you very much",
    "is there anything else that you need",
];

/// A stretch of speech without a pause worth the name: from the first loud sample to the last.
#[derive(Debug, Clone)]
pub struct Phrase {
    pub begin: Duration,
    pub end: Duration,
}

/// Turns, one after the other.
pub struct Scene {
    sound: Vec<i16>,
    pub phrases: Vec<Phrase>,
    /// The phrases of each turn.
    pub turns: Vec<Range<usize>>,
    pub lasts: Duration,
    seed: u64,
    babble: Vec<i16>,
}

/// What the speech is in.
#[derive(Debug, Clone, Copy)]
pub enum Noise {
    White,
    Pink,
    /// Six other voices at once.
    Babble,
}

impl Noise {
    pub const ALL: [Self; 3] = [Self::White, Self::Pink, Self::Babble];
}

fn flite(voice: &str, text: &str) -> Vec<i16> {
    let path = std::env::temp_dir().join(format!("turns-{}.wav", std::process::id()));
    let said = Command::new("flite")
        .args(["-voice", voice, "-t", text, "-o"])
        .arg(&path)
        .status();
    assert!(said.is_ok_and(|status| status.success()), "flite {voice}");
    let file = std::fs::read(&path).unwrap();
    let _ = std::fs::remove_file(&path);
    let rate = u32::from_le_bytes(file[24..28].try_into().unwrap());
    let samples = file[44..].chunks_exact(2);
    let samples = samples.map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]]));
    let layout = Layout::mono(SampleRate::new(rate).unwrap());
    let sound = Pcm::new(layout, samples.collect());
    Resampler::convert(sound, SampleRate::HZ_16000).into_samples()
}

/// Without the silence around it.
fn trimmed(sound: &[i16]) -> Vec<i16> {
    let loud = |sample: &i16| sample.unsigned_abs() > 300;
    let begin = sound.iter().position(loud).unwrap_or(0);
    let end = sound
        .iter()
        .rposition(loud)
        .map_or(sound.len(), |at| at + 1);
    sound[begin..end].to_vec()
}

fn power(sound: &[i16]) -> f64 {
    let sum: f64 = sound.iter().map(|&sample| f64::from(sample).powi(2)).sum();
    sum / sound.len().max(1) as f64
}

fn time(samples: usize) -> Duration {
    Duration::from_micros(samples as u64 * 1_000_000 / RATE as u64)
}

impl Scene {
    pub fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let spoken: Vec<Vec<Vec<i16>>> = VOICES
            .iter()
            .map(|voice| {
                let phrases = PHRASES.iter().map(|text| trimmed(&flite(voice, text)));
                phrases.collect()
            })
            .collect();
        let mut sound = vec![0; RATE];
        let (mut phrases, mut turns) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            let voice = &spoken[random.usize(..spoken.len())];
            let first = phrases.len();
            let count = random.usize(1..=3);
            for number in 0..count {
                if number > 0 {
                    // Most pauses inside a turn are short: half of them below 450 ms.
                    let pause = 200.0 * 10_f64.powf(random.f64().powf(1.5));
                    sound.resize(sound.len() + pause as usize * RATE / 1_000, 0);
                }
                let begin = time(sound.len());
                sound.extend(&voice[random.usize(..voice.len())]);
                let end = time(sound.len());
                phrases.push(Phrase { begin, end });
            }
            turns.push(first..phrases.len());
            let gap = random.usize(1_500..3_000);
            sound.resize(sound.len() + gap * RATE / 1_000, 0);
        }
        let lasts = time(sound.len());
        let babble = babble(&spoken, sound.len(), &mut random);
        Self {
            sound,
            phrases,
            turns,
            lasts,
            seed,
            babble,
        }
    }

    /// The scene in noise; the ratio is that of the speech, without its pauses, to the noise.
    pub fn in_noise(&self, noise: Noise, decibels: f64) -> Vec<i16> {
        let mut random = Rng::with_seed(self.seed);
        let noise: Vec<f64> = match noise {
            Noise::White => self.sound.iter().map(|_| random.f64() - 0.5).collect(),
            Noise::Pink => pink(self.sound.len(), &mut random),
            Noise::Babble => self
                .babble
                .iter()
                .map(|&sample| f64::from(sample))
                .collect(),
        };
        let speech: Vec<i16> = self
            .phrases
            .iter()
            .flat_map(|phrase| {
                let place = |at: Duration| (at.as_secs_f64() * RATE as f64) as usize;
                self.sound[place(phrase.begin)..place(phrase.end)].to_vec()
            })
            .collect();
        let noise_power: f64 = noise.iter().map(|sample| sample * sample).sum();
        let noise_power = noise_power / noise.len() as f64;
        let gain = (power(&speech) / noise_power / 10_f64.powf(decibels / 10.0)).sqrt();
        let mixed = self.sound.iter().zip(noise);
        mixed
            .map(|(&speech, noise)| (f64::from(speech) + gain * noise) as i16)
            .collect()
    }
}

/// Voss' sum of noises that change half as often each.
fn pink(samples: usize, random: &mut Rng) -> Vec<f64> {
    let mut rows = [0.0; 12];
    (0..samples)
        .map(|n| {
            let row = ((n as u64 + 1).trailing_zeros() as usize).min(rows.len() - 1);
            rows[row] = random.f64() - 0.5;
            rows.iter().sum::<f64>() + random.f64() - 0.5
        })
        .collect()
}

fn babble(spoken: &[Vec<Vec<i16>>], samples: usize, random: &mut Rng) -> Vec<i16> {
    let mut sum = vec![0i32; samples];
    for speaker in 0..6 {
        let voice = &spoken[speaker % spoken.len()];
        let mut at = random.usize(..RATE);
        while at < samples {
            let phrase = &voice[random.usize(..voice.len())];
            for (sum, sample) in sum[at..].iter_mut().zip(phrase) {
                *sum += i32::from(*sample) / 6;
            }
            at += phrase.len() + random.usize(..RATE / 4);
        }
    }
    sum.into_iter().map(|sample| sample as i16).collect()
}
