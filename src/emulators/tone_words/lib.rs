//! The scripted code: every number up to 9999 is a word of six tones, so that what was lost, doubled or swapped
//! between two ends can be counted exactly. Any recording of it will do: 8 kHz µ-law, MP3, Opus, other rates, chunks
//! cut anywhere. What a recogniser makes of the words, and of the silence between them, is the engine's matter.
//!
//! A tone is one bin of a 64-point Fourier transform at 8 kHz and lasts eight such blocks, 64 ms. The first tone says
//! that a word begins, four carry the digits, the last one their checksum; digits at even and odd places have bins of
//! their own, so that no tone follows itself. The listener looks at every 64 ms of sound, in steps of 2 ms, and takes
//! the place where six tones in a row are purest and loudest.

use std::array::from_fn;
use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::sync::LazyLock;
use std::time::Duration;

use vivavoce_audio::{Layout, Resampler, SampleRate};

/// How many numbers there are, from 0 on.
pub const NUMBERS: u16 = 10_000;
/// How long a word sounds.
pub const WORD: Duration = Duration::from_millis(TONE_MS * TONES as u64);
/// The silence after a word that is spoken at the usual rate.
pub const GAP: Duration = Duration::from_millis(96);

const TONES: usize = 6;
const TONE_MS: u64 = 64;
/// The bin of the tone that begins a word: 625 Hz. Those of the digits follow, up to 3125 Hz, which is within the
/// telephone band and the passband of every resampler.
const FIRST_BIN: usize = 5;
const BINS: usize = 21;
/// Points of the transform, and samples after which every bin's oscillator is where it began.
const BLOCK: usize = 64;
const RATE: SampleRate = SampleRate::HZ_8000;
/// Samples between two looks.
const HOP: usize = 16;
/// Looks from the beginning of a tone to its end.
const HOPS_PER_TONE: usize = 8 * BLOCK / HOP;
/// How long a tone takes to rise and to fall: without it, clicks would fill the other bins.
const RAMP_SECONDS: f64 = 0.004;
/// −10 dB of full scale.
const AMPLITUDE: f64 = 10_000.0;
/// The part of all energy that must be in one bin. A word at its place has 0.95; two voices at once have less than half.
const PURE: f32 = 0.6;
/// The faintest tone that counts, as an amplitude: 60 dB below full scale.
const FAINTEST: f32 = 33.0;
/// Sound, as the mean of squares: −45 dB of full scale.
const LOUD: i64 = 180 * 180;
/// Looks after the best one before a word is taken as it is: 8 ms.
const AFTERTHOUGHT: u64 = 4;

/// The number that stands for a word of a text: digits for themselves, anything else for a hash of it that never
/// changes. Case and the punctuation around a word do not count; what has no letter or digit is no word.
pub fn number_of(word: &str) -> Option<u16> {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
    if bare.is_empty() {
        return None;
    }
    let digits = bare.bytes().all(|byte| byte.is_ascii_digit());
    let number = bare.parse().ok().filter(|number| *number < NUMBERS);
    if let (true, Some(number)) = (digits, number) {
        return Some(number);
    }
    // FNV-1a, 32 bits.
    let hash = bare.to_lowercase().bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    Some((hash % u32::from(NUMBERS)) as u16)
}

/// A number as a word of linear16 sound, with the silence that follows. Numbers from [`NUMBERS`] on begin again at 0.
pub fn speak(number: u16, rate: SampleRate) -> Vec<i16> {
    speak_with_gap(number, rate, GAP)
}

/// The same with another silence.
pub fn speak_with_gap(number: u16, rate: SampleRate, gap: Duration) -> Vec<i16> {
    let tone_seconds = TONE_MS as f64 / 1000.0;
    let mut samples: Vec<i16> = (0..rate.frames_in(WORD))
        .map(|frame| frame as f64 / f64::from(rate.hz()))
        .zip(std::iter::repeat(tones(number)))
        .map(|(seconds, tones)| {
            let tone = ((seconds / tone_seconds) as usize).min(TONES - 1);
            let within = seconds - tone as f64 * tone_seconds;
            let edge = (within.min(tone_seconds - within) / RAMP_SECONDS).clamp(0.0, 1.0);
            let loudness = AMPLITUDE * (1.0 - (edge * TAU / 2.0).cos()) / 2.0;
            (loudness * (TAU * hertz(tones[tone]) * within).sin()) as i16
        })
        .collect();
    samples.resize(rate.frames_in(WORD + gap), 0);
    samples
}

fn hertz(bin: u8) -> f64 {
    (FIRST_BIN + bin as usize) as f64 * f64::from(RATE.hz()) / BLOCK as f64
}

/// The bins of a word, counted from the first one in use.
fn tones(number: u16) -> [u8; TONES] {
    let digits = [1000, 100, 10, 1].map(|place: u16| (number / place % 10) as u8);
    let [a, b, c, d] = digits;
    [0, even(a), odd(b), even(c), odd(d), even(checksum(digits))]
}

const fn even(digit: u8) -> u8 {
    1 + 2 * digit
}

const fn odd(digit: u8) -> u8 {
    2 + 2 * digit
}

/// Changes with every single digit.
fn checksum(digits: [u8; 4]) -> u8 {
    let weighted = digits.iter().zip([3_u8, 1, 7, 9]);
    (weighted
        .map(|(digit, weight)| u32::from(digit * weight))
        .sum::<u32>()
        % 10) as u8
}

fn number_in(tones: [u8; TONES]) -> Option<u16> {
    let digit = |place: usize| {
        let bin = tones[place].checked_sub(1)?;
        (usize::from(bin % 2) == (place + 1) % 2).then_some(bin / 2)
    };
    let digits = [digit(1)?, digit(2)?, digit(3)?, digit(4)?];
    let valid = tones[0] == 0 && digit(5)? == checksum(digits);
    let number = digits
        .iter()
        .fold(0_u16, |number, digit| number * 10 + u16::from(*digit));
    valid.then_some(number)
}

/// A word that was heard, with its place in the sound since the listener was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToneWord {
    /// Which.
    pub number: u16,
    /// Where its first tone begins, in samples at the listener's rate; right within 2 ms.
    pub start: u64,
    /// Where its last tone ends.
    pub end: u64,
}

/// Every bin's oscillator over one block, in 14 bits: sums of products with samples are exact, however long they run.
static OSCILLATORS: LazyLock<[[(i32, i32); BINS]; BLOCK]> = LazyLock::new(|| {
    from_fn(|sample| {
        from_fn(|bin| {
            let angle = TAU * ((FIRST_BIN + bin) * sample) as f64 / BLOCK as f64;
            let scaled = |value: f64| (value * SCALE).round() as i32;
            (scaled(angle.cos()), scaled(angle.sin()))
        })
    })
});
const SCALE: f64 = (1 << 14) as f64;

/// What one step of sound adds to each bin.
#[derive(Debug, Clone, Copy)]
struct Hop {
    bins: [(i64, i64); BINS],
    energy: i64,
}

const SILENT: Hop = Hop {
    bins: [(0, 0); BINS],
    energy: 0,
};

/// The strongest tone in the 64 ms before a step's end.
#[derive(Debug, Clone, Copy, Default)]
struct Tone {
    bin: u8,
    /// Whether hardly anything else was to be heard.
    pure: bool,
    amplitude: f32,
}

/// The best place so far for a word.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    number: u16,
    score: f32,
    /// The step with which its last tone ends.
    hop: u64,
}

/// Hears words in sound that comes in pieces of any size.
#[derive(Debug)]
pub struct Listener {
    rate: SampleRate,
    resampler: Resampler,
    /// At 8 kHz: less than one step.
    waiting: Vec<i16>,
    /// The steps of the present 64 ms, and their sum.
    hops: VecDeque<Hop>,
    sum: Hop,
    /// The tone at each step, as far back as a word is long.
    tones: VecDeque<Tone>,
    /// Steps so far.
    heard: u64,
    /// The step that ends the last sound, and for how many steps there has been sound without a break.
    last_loud: u64,
    loud_run: u64,
    candidate: Option<Candidate>,
    /// The next word cannot end before.
    not_before: u64,
}

impl Listener {
    /// Hears linear16 sound at `rate` in one channel.
    pub fn new(rate: SampleRate) -> Self {
        Self {
            rate,
            resampler: Resampler::new(Layout::mono(rate), RATE),
            waiting: Vec::new(),
            hops: VecDeque::from([SILENT; HOPS_PER_TONE]),
            sum: SILENT,
            tones: VecDeque::from([Tone::default(); HOPS_PER_TONE * (TONES - 1) + 1]),
            heard: 0,
            last_loud: 0,
            loud_run: 0,
            candidate: None,
            not_before: 0,
        }
    }

    /// Takes more sound and gives the words that are complete with it, 8 ms after their end at the latest.
    pub fn hear(&mut self, samples: &[i16]) -> Vec<ToneWord> {
        let mut at_8_khz = std::mem::take(&mut self.waiting);
        self.resampler.push(samples, &mut at_8_khz);
        self.look(&at_8_khz)
    }

    /// The sound has ended: gives the word that was waiting to be sure. The listener is then not to be used.
    pub fn finish(&mut self) -> Vec<ToneWord> {
        let mut at_8_khz = std::mem::take(&mut self.waiting);
        self.resampler.finish(&mut at_8_khz);
        at_8_khz.resize(at_8_khz.len() + (AFTERTHOUGHT as usize + 1) * HOP, 0);
        self.look(&at_8_khz)
    }

    /// How long nothing has been heard, words or other.
    pub fn quiet(&self) -> Duration {
        RATE.duration_of((self.heard - self.last_loud) as usize * HOP)
    }

    /// For how long something has been heard without a pause of more than 2 ms; zero when nothing is heard now.
    pub fn sounding(&self) -> Duration {
        RATE.duration_of(self.loud_run as usize * HOP)
    }

    /// How much sound was listened to.
    pub fn position(&self) -> Duration {
        RATE.duration_of(self.heard as usize * HOP)
    }

    fn look(&mut self, at_8_khz: &[i16]) -> Vec<ToneWord> {
        let (steps, rest) = at_8_khz.as_chunks();
        let words = steps.iter().filter_map(|step| self.step(step)).collect();
        self.waiting = rest.to_vec();
        words
    }

    fn step(&mut self, samples: &[i16; HOP]) -> Option<ToneWord> {
        let hop = self.transform(samples);
        self.heard += 1;
        if hop.energy > LOUD * HOP as i64 {
            self.last_loud = self.heard;
            self.loud_run += 1;
        } else {
            self.loud_run = 0;
        }
        if let Some(left) = self.hops.pop_front() {
            for (sum, (new, old)) in self.sum.bins.iter_mut().zip(hop.bins.iter().zip(left.bins)) {
                *sum = (sum.0 + new.0 - old.0, sum.1 + new.1 - old.1);
            }
            self.sum.energy += hop.energy - left.energy;
        }
        self.hops.push_back(hop);
        self.tones.pop_front();
        self.tones.push_back(self.strongest());
        self.consider();
        self.decide()
    }

    fn transform(&self, samples: &[i16; HOP]) -> Hop {
        let mut hop = SILENT;
        let phase = (self.heard as usize * HOP) % BLOCK;
        for (&sample, oscillators) in samples.iter().zip(&OSCILLATORS[phase..]) {
            let sample = i64::from(sample);
            hop.energy += sample * sample;
            for (sum, &(cos, sin)) in hop.bins.iter_mut().zip(oscillators) {
                *sum = (
                    sum.0 + sample * i64::from(cos),
                    sum.1 + sample * i64::from(sin),
                );
            }
        }
        hop
    }

    fn strongest(&self) -> Tone {
        let power = |&(re, im): &(i64, i64)| {
            let (re, im) = (re as f64 / SCALE, im as f64 / SCALE);
            re * re + im * im
        };
        let powers = self.sum.bins.iter().map(power).enumerate();
        let Some((bin, power)) = powers.max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return Tone::default();
        };
        // A sine of amplitude A over N samples: power (A·N/2)², energy A²·N/2.
        let samples = (HOPS_PER_TONE * HOP) as f64;
        let amplitude = (2.0 * power.sqrt() / samples) as f32;
        let share = (2.0 * power / (samples * self.sum.energy.max(1) as f64)) as f32;
        Tone {
            bin: bin as u8,
            pure: share >= PURE && amplitude >= FAINTEST,
            amplitude,
        }
    }

    /// Whether a word ends here.
    fn consider(&mut self) {
        let tones: [Tone; TONES] = from_fn(|tone| self.tones[tone * HOPS_PER_TONE]);
        if self.heard < self.not_before || !tones.iter().all(|tone| tone.pure) {
            return;
        }
        if let Some(number) = number_in(tones.map(|tone| tone.bin)) {
            let score = tones.iter().map(|tone| tone.amplitude).sum();
            if self.candidate.is_none_or(|best| best.score < score) {
                let hop = self.heard;
                self.candidate = Some(Candidate { number, score, hop });
            }
        }
    }

    fn decide(&mut self) -> Option<ToneWord> {
        let best = self
            .candidate
            .filter(|best| self.heard >= best.hop + AFTERTHOUGHT)?;
        self.candidate = None;
        let word_hops = (TONES * HOPS_PER_TONE) as u64;
        // Two words do not overlap; half a tone of this one may still look like a word.
        self.not_before = best.hop + word_hops - HOPS_PER_TONE as u64;
        let at = |hop: u64| hop * HOP as u64 * u64::from(self.rate.hz()) / u64::from(RATE.hz());
        Some(ToneWord {
            number: best.number,
            start: at(best.hop.saturating_sub(word_hops)),
            end: at(best.hop),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vivavoce_audio::convert::Converter;
    use vivavoce_audio::g711::Law;
    use vivavoce_audio::{AudioFormat, Encoding, linear16};

    fn said(numbers: impl IntoIterator<Item = u16>, rate: SampleRate) -> Vec<i16> {
        let words = numbers.into_iter().map(|number| speak(number, rate));
        words.flatten().collect()
    }

    fn heard(samples: &[i16], rate: SampleRate) -> Vec<u16> {
        let mut listener = Listener::new(rate);
        let mut words = listener.hear(samples);
        words.extend(listener.finish());
        words.iter().map(|word| word.number).collect()
    }

    fn noise(amplitude: i16, samples: usize, seed: u64) -> Vec<i16> {
        let mut random = fastrand::Rng::with_seed(seed);
        std::iter::repeat_with(|| random.i16(-amplitude..=amplitude))
            .take(samples)
            .collect()
    }

    #[test]
    fn every_number_survives_the_telephone() {
        let mut codes = Vec::new();
        Law::Mu.compress(&said(0..NUMBERS, RATE), &mut codes);
        let mut samples = Vec::new();
        Law::Mu.expand(&codes, &mut samples);
        assert!(heard(&samples, RATE).into_iter().eq(0..NUMBERS));
    }

    #[test]
    fn every_rate_says_and_hears_the_same() {
        for hz in [
            8_000_u32, 11_025, 12_345, 16_000, 22_050, 24_000, 44_100, 48_000,
        ] {
            let rate = SampleRate::new(hz).unwrap();
            let numbers: Vec<u16> = (0..NUMBERS).step_by(401).collect();
            assert_eq!(heard(&said(numbers.clone(), rate), rate), numbers, "{hz}");
        }
    }

    #[tokio::test]
    async fn codecs_leave_the_words() {
        let numbers: Vec<u16> = (0..NUMBERS).step_by(199).collect();
        for (encoding, hz) in [
            (Encoding::Mp3, 16_000),
            (Encoding::Mp3, 44_100),
            (Encoding::OggOpus, 8_000),
            (Encoding::OggOpus, 16_000),
            (Encoding::OggOpus, 48_000),
            (Encoding::Alaw, 16_000_u32),
        ] {
            let rate = SampleRate::HZ_24000;
            let plain = AudioFormat::mono(Encoding::Linear16, rate);
            let coded = AudioFormat::mono(encoding, SampleRate::new(hz).unwrap());
            let through = async |from, to, bytes: &[u8]| {
                let mut converter = Converter::live(from, to, 1.0).unwrap();
                let mut converted = converter.push(bytes).await.unwrap().to_vec();
                converted.extend(converter.finish().await.unwrap());
                converted
            };
            let bytes = linear16::encode(&said(numbers.clone(), rate));
            let bytes = through(plain, coded, &bytes).await;
            let bytes = through(coded, plain, &bytes).await;
            assert_eq!(
                heard(&linear16::samples(&bytes), rate),
                numbers,
                "{encoding} at {hz} Hz"
            );
        }
    }

    #[test]
    fn a_word_is_where_it_was_said() {
        for hz in [8_000_u32, 16_000, 44_100] {
            let rate = SampleRate::new(hz).unwrap();
            let before = rate.frames_in(Duration::from_millis(1_237));
            let mut samples = vec![0; before];
            samples.extend(said([4711, 12], rate));
            let words = Listener::new(rate).hear(&samples);
            let slot = rate.frames_in(WORD + GAP);
            let tolerance = (hz / 500) as u64;
            for (index, word) in words.iter().enumerate() {
                let start = (before + index * slot) as u64;
                let end = start + rate.frames_in(WORD) as u64;
                assert!(
                    word.start.abs_diff(start) <= tolerance,
                    "{hz} {word:?} {start}"
                );
                assert!(word.end.abs_diff(end) <= tolerance, "{hz} {word:?} {end}");
            }
            assert_eq!(words.len(), 2);
        }
    }

    #[test]
    fn the_last_word_needs_no_silence_after_it() {
        for rate in [RATE, SampleRate::HZ_48000] {
            let word = speak_with_gap(1234, rate, Duration::ZERO);
            assert_eq!(heard(&word, rate), [1234]);
        }
    }

    #[test]
    fn half_a_word_is_none() {
        let word = speak(1234, RATE);
        let half = word.len() / 2;
        assert_eq!(heard(&word[..half], RATE), [0_u16; 0]);
        assert_eq!(heard(&word[half..], RATE), [0_u16; 0]);
    }

    #[test]
    fn a_word_that_is_heard_twice_was_said_twice() {
        assert_eq!(heard(&said([7, 7, 7], RATE), RATE), [7, 7, 7]);
    }

    #[test]
    fn noise_and_pure_tones_make_no_words() {
        assert_eq!(heard(&noise(20_000, 8_000 * 60, 1), RATE), [0_u16; 0]);
        let tone: Vec<i16> = (0..80_000)
            .map(|sample| (10_000.0 * (TAU * 625.0 * sample as f64 / 8_000.0).sin()) as i16)
            .collect();
        assert_eq!(heard(&tone, RATE), [0_u16; 0]);
    }

    #[test]
    fn words_are_heard_through_noise() {
        let mut samples = said([17, 4, 9999], RATE);
        let rushing = noise(3_000, samples.len(), 2);
        samples
            .iter_mut()
            .zip(rushing)
            .for_each(|(sample, noise)| *sample += noise);
        assert_eq!(heard(&samples, RATE), [17, 4, 9999]);
    }

    #[test]
    fn digits_stand_for_themselves_and_words_always_for_the_same() {
        assert_eq!(number_of("4711"), Some(4711));
        assert_eq!(number_of("(0012),"), Some(12));
        assert_eq!(number_of("Hello"), number_of("hello!"));
        assert_ne!(number_of("hello"), number_of("world"));
        assert_eq!(number_of("hello"), Some(1723));
        assert!(number_of("10000").is_some_and(|number| number < NUMBERS));
        assert_eq!(number_of("–"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn order_is_kept_however_the_sound_is_cut(
            numbers in prop::collection::vec(0..NUMBERS, 1..12),
            chunk in 1_usize..3_000,
            hz in 8_000_u32..=48_000,
            lead in 0_usize..2_000,
        ) {
            let rate = SampleRate::new(hz).unwrap();
            let mut samples = vec![0; lead];
            samples.extend(said(numbers.clone(), rate));
            let mut listener = Listener::new(rate);
            let mut words: Vec<_> = samples.chunks(chunk).flat_map(|chunk| listener.hear(chunk)).collect();
            words.extend(listener.finish());
            let words: Vec<u16> = words.iter().map(|word| word.number).collect();
            prop_assert_eq!(words, numbers);
        }

        #[test]
        fn noise_between_words_is_no_word(
            numbers in prop::collection::vec(0..NUMBERS, 1..6),
            amplitude in 1_i16..20_000,
            pause in 0_usize..8_000,
            seed: u64,
        ) {
            let mut samples = Vec::new();
            for &number in &numbers {
                samples.extend(noise(amplitude, pause, seed ^ u64::from(number)));
                samples.extend(speak(number, RATE));
            }
            prop_assert_eq!(heard(&samples, RATE), numbers);
        }
    }
}
