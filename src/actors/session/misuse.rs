//! What a client sends that is of the protocol, and probably not what it wanted: a file where samples are due, the samples
//! of two channels as those of one, a marked-up text. Its effect is noise, or silence, and nothing that a client could see;
//! so it is told once, with the remedy. Nothing is refused here: each of these can be right.

use vivavoce_audio::format::{AudioFormat, Channels, Encoding};

/// What is probably wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misuse {
    /// A file, by its first bytes.
    Container(&'static str),
    /// Text that stands for bytes.
    Base64,
    /// Two channels, said to be one.
    Stereo,
}

/// Bytes that are looked at for base64: as short as a message of audio may be.
const BASE64_LOOK: usize = 64;
/// Fewer different characters are a constant tone or silence, whose bytes may be letters.
const BASE64_VARIETY: usize = 16;
/// How many samples of speech are listened to for a second channel.
const STEREO_SAMPLES: usize = 16_000;
/// The mean square above which samples are speech: −40 dBFS.
const SPEECH: f64 = 330.0 * 330.0;
/// How different neighbours are on the average where every second step is within one moment: in one channel both kinds of
/// steps are alike.
const ALIKE: f64 = 0.35;
/// One channel is silent where it has less than this of the other's energy.
const SILENT: f64 = 0.01;

/// Looks at what a client sends as sound, until it has seen enough.
#[derive(Debug, Default)]
pub struct SoundWatch {
    format: Option<AudioFormat>,
    has_begun: bool,
    stereo: Option<Channelling>,
}

impl SoundWatch {
    /// The sound from here on is said to have this format.
    pub fn expect(&mut self, format: AudioFormat) {
        let linear = format.encoding == Encoding::Linear16;
        let mono = format.layout.channels == Channels::Mono;
        *self = Self {
            format: Some(format),
            has_begun: false,
            stereo: (linear && mono).then(Channelling::default),
        };
    }

    /// Looks at one message.
    pub fn hear(&mut self, bytes: &[u8]) -> Option<Misuse> {
        let encoding = self.format?.encoding;
        if !std::mem::replace(&mut self.has_begun, true) && encoding != Encoding::OggOpus {
            let file = container(bytes).map(Misuse::Container);
            if let Some(found) = file.or_else(|| is_base64(bytes).then_some(Misuse::Base64)) {
                // What follows is no sound.
                self.stereo = None;
                return Some(found);
            }
        }
        let verdict = self.stereo.as_mut()?.hear(bytes)?;
        self.stereo = None;
        verdict.then_some(Misuse::Stereo)
    }
}

impl Misuse {
    /// What is told, and what to do.
    pub fn message(self) -> String {
        match self {
            Self::Container(name) => format!(
                "the sound begins like {name}, and is taken for raw samples: send its samples without the header, or \
                 ogg_opus with stt_config.encoding \"ogg_opus\""
            ),
            Self::Base64 => "the sound looks like base64, and is taken for raw samples: send the bytes themselves in \
                             binary messages"
                .to_owned(),
            Self::Stereo => "the sound looks like two channels, and is taken for one: set stt_config.channels to 2, or \
                             send one of them"
                .to_owned(),
        }
    }
}

/// The name of a kind of file, by its first bytes.
fn container(bytes: &[u8]) -> Option<&'static str> {
    let at = |place: usize, magic: &[u8]| bytes.get(place..).is_some_and(|b| b.starts_with(magic));
    match () {
        () if at(0, b"RIFF") && at(8, b"WAVE") => Some("a WAV file"),
        () if at(0, b"OggS") => Some("an Ogg file"),
        () if at(0, b"fLaC") => Some("a FLAC file"),
        () if at(0, b"ID3") => Some("an MP3 file"),
        () if at(0, &[0x1a, 0x45, 0xdf, 0xa3]) => Some("a WebM file"),
        () if at(4, b"ftyp") => Some("an MP4 file"),
        () => None,
    }
}

/// Whether bytes are the letters of base64.
pub fn is_base64(bytes: &[u8]) -> bool {
    let look = bytes
        .get(..bytes.len().min(4 * BASE64_LOOK))
        .unwrap_or_default();
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(byte);
    let mut seen = [false; 256];
    look.iter().for_each(|&byte| seen[usize::from(byte)] = true);
    let variety = seen.iter().filter(|seen| **seen).count();
    look.len() >= BASE64_LOOK && variety >= BASE64_VARIETY && look.iter().all(is_letter)
}

/// Tells the samples of two channels from those of one.
#[derive(Debug, Default)]
struct Channelling {
    /// The last samples of the message before: a message may end within a moment.
    rest: Vec<u8>,
    samples: usize,
    /// Squares of the steps from even to odd samples, and from odd to even ones.
    within: f64,
    between: f64,
    even: f64,
    odd: f64,
    /// Squares of the steps within each half.
    even_steps: f64,
    odd_steps: f64,
}

impl Channelling {
    /// Whether there are two channels, once that is known.
    fn hear(&mut self, bytes: &[u8]) -> Option<bool> {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.len() / 4 * 4;
        let taken: Vec<u8> = self.rest.drain(..whole).collect();
        let moments: Vec<(f64, f64)> = taken
            .chunks_exact(4)
            .filter_map(|moment| match *moment {
                [a, b, c, d] => Some((
                    f64::from(i16::from_le_bytes([a, b])),
                    f64::from(i16::from_le_bytes([c, d])),
                )),
                _ => None,
            })
            .collect();
        let energy: f64 = moments
            .iter()
            .map(|(even, odd)| even * even + odd * odd)
            .sum();
        if energy < SPEECH * 2.0 * moments.len() as f64 {
            return None;
        }
        let mut before: Option<(f64, f64)> = None;
        for &(even, odd) in &moments {
            self.within += (odd - even).powi(2);
            self.even += even * even;
            self.odd += odd * odd;
            if let Some((even_before, odd_before)) = before {
                self.between += (even - odd_before).powi(2);
                self.even_steps += (even - even_before).powi(2);
                self.odd_steps += (odd - odd_before).powi(2);
            }
            before = Some((even, odd));
        }
        self.samples += 2 * moments.len();
        (self.samples >= STEREO_SAMPLES).then(|| self.are_two())
    }

    fn are_two(&self) -> bool {
        let less = |one: f64, other: f64, part: f64| one.min(other) < part * one.max(other);
        // Tones of a quarter of the rate have such steps, too; each half of them alternates, which no voice does.
        let (loud, steps) = if self.even > self.odd {
            (self.even, self.even_steps)
        } else {
            (self.odd, self.odd_steps)
        };
        let is_voice = steps < loud;
        is_voice && (less(self.within, self.between, ALIKE) || less(self.even, self.odd, SILENT))
    }
}

/// Whether a text has the tags of SSML.
pub fn has_markup(text: &str) -> bool {
    const TAGS: [&str; 6] = [
        "<speak",
        "<break",
        "<prosody",
        "<say-as",
        "<phoneme",
        "<emphasis",
    ];
    text.contains('<') && TAGS.iter().any(|tag| text.contains(tag))
}

/// Whether there is anything in a text that a voice could say.
pub fn is_speakable(text: &str) -> bool {
    text.chars()
        .any(|c| c.is_alphanumeric() || "%&+=@#$€£¥°§".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_audio::format::SampleRate;

    fn watch(encoding: Encoding) -> SoundWatch {
        let mut watch = SoundWatch::default();
        watch.expect(AudioFormat::mono(encoding, SampleRate::HZ_16000));
        watch
    }

    /// Half a second of something like a vowel with noise in it.
    fn voice(seed: u32) -> Vec<i16> {
        let mut noise = seed;
        let sample = |n: usize| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let tone = |hz: f64| (std::f64::consts::TAU * hz * n as f64 / 16_000.0).sin();
            let sound = 5_000.0 * tone(140.0) + 2_000.0 * tone(700.0) + 1_000.0 * tone(2_400.0);
            (sound + f64::from(noise >> 20) / 4.0) as i16
        };
        (0..32_000).map(sample).collect()
    }

    fn bytes(samples: impl IntoIterator<Item = i16>) -> Vec<u8> {
        samples.into_iter().flat_map(i16::to_le_bytes).collect()
    }

    fn heard(sound: &[u8]) -> Option<Misuse> {
        let mut watch = watch(Encoding::Linear16);
        sound.chunks(642).find_map(|piece| watch.hear(piece))
    }

    #[test]
    fn files_and_base64_are_told_from_samples() {
        let file = [b"RIFF\x24\0\0\0WAVEfmt ".as_slice(), &[0; 600]].concat();
        assert_eq!(heard(&file), Some(Misuse::Container("a WAV file")));
        assert_eq!(
            watch(Encoding::Mulaw).hear(b"ID3\x04\0\0"),
            Some(Misuse::Container("an MP3 file"))
        );
        assert_eq!(watch(Encoding::OggOpus).hear(b"OggS\0"), None);
        let text = b"UklGRiQAAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YQAAAAD+/wEA".repeat(4);
        assert_eq!(heard(&text), Some(Misuse::Base64));
        // Silence in A-law is a letter.
        assert_eq!(watch(Encoding::Alaw).hear(&[0x55; 640]), None);
    }

    #[test]
    fn two_channels_are_told_from_one() {
        let (one, other) = (voice(1), voice(2));
        assert_eq!(heard(&bytes(one.iter().copied())), None);
        let twice = one.iter().flat_map(|&sample| [sample, sample]);
        assert_eq!(heard(&bytes(twice)), Some(Misuse::Stereo));
        let half = one.iter().flat_map(|&sample| [sample, 0]);
        assert_eq!(heard(&bytes(half)), Some(Misuse::Stereo));
        let near = one
            .iter()
            .zip(&other)
            .flat_map(|(&one, &other)| [one, other]);
        assert_eq!(heard(&bytes(near)), Some(Misuse::Stereo));
    }

    #[test]
    fn tones_silence_and_noise_are_one_channel() {
        let tone = |hz: f64| {
            let at = |n: u32| std::f64::consts::TAU * hz * f64::from(n) / 16_000.0 + 0.785;
            bytes((0..32_000).map(|n| (9_000.0 * at(n).sin()) as i16))
        };
        for hz in [440.0, 1_000.0, 4_000.0, 7_000.0, 8_000.0] {
            assert_eq!(heard(&tone(hz)), None, "{hz} Hz");
        }
        assert_eq!(heard(&vec![0; 64_000]), None);
        let mut noise = 1u32;
        let mut next = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 16) as i16 / 4
        };
        assert_eq!(heard(&bytes((0..32_000).map(|_| next()))), None);
    }

    #[test]
    fn markup_and_signs_are_told_from_text() {
        assert!(has_markup("<speak>Hello</speak>") && has_markup("A <break time=\"1s\"/> b"));
        assert!(!has_markup("if a < b, then break") && !has_markup("<3"));
        assert!(is_speakable("é") && is_speakable("你") && is_speakable("+"));
        assert!(!is_speakable("...") && !is_speakable("🙂 !"));
    }
}
