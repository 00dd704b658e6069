//! What a client sends that is of the protocol, and probably not what it wanted: a file where samples are due, the samples
//! of two channels as those of one, a marked-up text. Its effect is noise, or silence, and nothing that a client could see;
//! so it is told once, with the remedy. Nothing is refused here: each of these can be right.

use vivavoce_audio::format::{AudioFormat, Channels, Encoding, SampleRate};
use vivavoce_audio::rate_check::WrongRate;

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
const SPEECH: u64 = 330 * 330;
/// Bytes of a sample of each of two channels.
const MOMENT: usize = 4;
/// How different neighbours are on the average where every second step is within one moment: in one channel both kinds of
/// steps are alike.
const ALIKE: f64 = 0.35;
/// One channel is silent where it has less than this of the other's energy.
const SILENT: f64 = 0.01;

/// How much of the sound is looked at for the frames of an MP3 file, and after which lengths.
const MP3_LOOKS: [usize; 3] = [2 << 10, 4 << 10, 8 << 10];
/// So many headers in a row, each where the frame before it ends, are no accident.
const MP3_FRAMES: usize = 5;
/// The rates at which people record.
const USUAL_RATES: [u32; 5] = [8_000, 16_000, 24_000, 44_100, 48_000];

/// Looks at what a client sends as sound, until it has seen enough.
#[derive(Debug, Default)]
pub struct SoundWatch {
    format: Option<AudioFormat>,
    has_begun: bool,
    /// Where the frames of an MP3 file are looked for.
    mp3: Option<Mp3Search>,
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
            mp3: (format.encoding != Encoding::OggOpus).then(Mp3Search::default),
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
                self.mp3 = None;
                self.stereo = None;
                return Some(found);
            }
        }
        if let Some(found) = self.mp3.as_mut().and_then(|search| search.hear(bytes)) {
            self.mp3 = None;
            if found {
                self.stereo = None;
                return Some(Misuse::Container("an MP3 file"));
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

/// Finds an MP3 file that has no tag at its beginning: nothing but frames, each of which says how long it is.
#[derive(Debug, Default)]
struct Mp3Search {
    begin: Vec<u8>,
    looks: usize,
}

impl Mp3Search {
    /// Whether it is one, once that is known.
    fn hear(&mut self, bytes: &[u8]) -> Option<bool> {
        let [.., most] = MP3_LOOKS;
        let missing = most.saturating_sub(self.begin.len());
        let taken = bytes.get(..missing).unwrap_or(bytes);
        self.begin.extend_from_slice(taken);
        let due = |length: &&usize| **length <= self.begin.len();
        let looks = MP3_LOOKS.iter().filter(due).count();
        if looks == self.looks {
            return None;
        }
        self.looks = looks;
        if has_mp3_frames(&self.begin) {
            return Some(true);
        }
        (looks == MP3_LOOKS.len()).then_some(false)
    }
}

/// Whether there are frames of MPEG audio, layer III, one behind the other. Those of a tone that repeats with the length of a
/// frame would be the same ones again.
fn has_mp3_frames(bytes: &[u8]) -> bool {
    let begins = |start: usize| {
        let mut at = start;
        let first = mp3_frame(bytes, at)?;
        let mut differ = false;
        for _ in 1..MP3_FRAMES {
            let frame = mp3_frame(bytes, at)?;
            let next = mp3_frame(bytes, at + frame.length)?;
            if next.kind != first.kind {
                return None;
            }
            let body = |from: usize| bytes.get(from + 4..from + frame.length.min(next.length));
            let bodies = body(at).zip(body(at + frame.length));
            differ |= bodies.is_some_and(|(this, next)| this != next);
            at += frame.length;
        }
        differ.then_some(())
    };
    (0..bytes.len()).any(|start| begins(start).is_some())
}

#[derive(Debug, Clone, Copy)]
struct Mp3Frame {
    length: usize,
    /// Version, layer and rate, which stay in one file.
    kind: (u8, u8),
}

/// The frame whose header is there (ISO 11172-3, 2.4.2.3, and 13818-3).
fn mp3_frame(bytes: &[u8], at: usize) -> Option<Mp3Frame> {
    const KBITS: [[usize; 14]; 2] = [
        [
            32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
        ],
        [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
    ];
    let &[0xff, second, third, fourth] = bytes.get(at..at + 4)? else {
        return None;
    };
    let (version, layer) = (second >> 3 & 0b11, second >> 1 & 0b11);
    let is_sync = second >> 5 == 0b111 && layer == 0b01 && fourth & 0b11 != 0b10;
    let halvings = match version {
        0b11 => 0,
        0b10 => 1,
        0b00 => 2,
        _ => return None,
    };
    let base = *[44_100, 48_000, 32_000].get(usize::from(third >> 2 & 0b11))?;
    let later = usize::from(halvings > 0);
    let index = usize::from(third >> 4).checked_sub(1)?;
    let kbits = KBITS.get(later)?.get(index)?;
    let padding = usize::from(third >> 1 & 1);
    let length = (144_000 >> later) * kbits / (base >> halvings) + padding;
    is_sync.then_some(Mp3Frame {
        length,
        kind: (second & 0b1_1110, third >> 2 & 0b11),
    })
}

/// What is told of speech that cannot have the rate that the client says; nothing where there is no other usual rate that
/// would make it so.
pub fn wrong_rate(wrong: WrongRate, said: SampleRate) -> Option<String> {
    let said = said.hz();
    let fits = |&&hz: &&u32| match wrong {
        WrongRate::Slow => hz >= 2 * said,
        WrongRate::Fast => 2 * hz <= said,
    };
    let rates: Vec<String> = USUAL_RATES
        .iter()
        .filter(fits)
        .map(u32::to_string)
        .collect();
    if rates.is_empty() {
        return None;
    }
    let sounds = match wrong {
        WrongRate::Slow => "slower and lower",
        WrongRate::Fast => "faster and higher",
    };
    let rates = rates.join(" or ");
    Some(format!(
        "stt_config.sample_rate: the speech sounds {sounds} than people speak at {said}; its samples are probably of \
         {rates}: set the rate that they have"
    ))
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
        if self.rest.is_empty() && bytes.len().is_multiple_of(MOMENT) {
            return self.hear_whole(bytes);
        }
        let mut rest = std::mem::take(&mut self.rest);
        rest.extend_from_slice(bytes);
        let (whole, behind) = rest.split_at(rest.len() / MOMENT * MOMENT);
        let verdict = self.hear_whole(whole);
        self.rest = behind.to_vec();
        verdict
    }

    /// The same for whole moments. It is asked for every message until somebody has spoken, so what is no speech must cost
    /// little.
    fn hear_whole(&mut self, bytes: &[u8]) -> Option<bool> {
        let moments = bytes.len() / MOMENT;
        let squares = bytes.chunks_exact(2).map(|pair| {
            let sample = i32::from(i16::from_le_bytes([pair[0], pair[1]]));
            u64::from((sample * sample).unsigned_abs())
        });
        if squares.sum::<u64>() < SPEECH * 2 * moments as u64 {
            return None;
        }
        let mut before: Option<(f64, f64)> = None;
        for moment in bytes.chunks_exact(MOMENT) {
            let even = f64::from(i16::from_le_bytes([moment[0], moment[1]]));
            let odd = f64::from(i16::from_le_bytes([moment[2], moment[3]]));
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
        self.samples += 2 * moments;
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

    /// A file of so many frames without a tag, with something in them. `padded` frames are one byte longer.
    fn mp3(second: u8, third: u8, length: usize, frames: usize) -> Vec<u8> {
        let mut noise = 7_u32;
        let frame = |n: usize| {
            let padded = n % 3 == 1;
            let mut frame = vec![0xff, second, third | u8::from(padded) << 1, 0xc4];
            frame.resize_with(length + usize::from(padded), || {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (noise >> 24) as u8
            });
            frame
        };
        (0..frames).flat_map(frame).collect()
    }

    #[test]
    fn mp3_files_without_a_tag_are_told_by_their_frames() {
        let found = Some(Misuse::Container("an MP3 file"));
        // 128 kbit/s at 44.1 kHz, 32 at 24 kHz, 8 at 8 kHz, 320 at 48 kHz.
        for (second, third, length) in [
            (0xfb, 0x90, 417),
            (0xf3, 0x44, 96),
            (0xe3, 0x18, 72),
            (0xfb, 0xe4, 960),
        ] {
            let file = mp3(second, third, length, 40);
            assert_eq!(heard(&file), found, "{second:x} {third:x}");
            // A stream that is cut anywhere.
            let rest = file.get(length / 2..).unwrap();
            assert_eq!(heard(rest), found, "{second:x} {third:x}");
            let mut watch = watch(Encoding::Mulaw);
            assert_eq!(file.chunks(160).find_map(|piece| watch.hear(piece)), found);
            // Frames that are not where they should be.
            let torn: Vec<u8> = file
                .chunks(length - 1)
                .flat_map(|frame| [frame, &[0; 3]].concat())
                .collect();
            assert_ne!(heard(&torn), found, "{second:x} {third:x}");
        }
        assert_eq!(
            watch(Encoding::OggOpus).hear(&mp3(0xfb, 0x90, 417, 40)),
            None
        );
    }

    #[test]
    fn samples_are_no_frames_of_mp3() {
        let file = Some(Misuse::Container("an MP3 file"));
        let samples = |seed: u32, spread: u32| {
            let mut noise = seed;
            let next = move |_| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (i64::from((noise >> 16) % spread) - i64::from(spread / 2)) as i16
            };
            bytes((0..8_000).map(next))
        };
        for seed in 0..200 {
            for spread in [2, 20, 1_100, 3_000, 60_000] {
                assert_ne!(heard(&samples(seed, spread)), file);
            }
        }
        for value in i16::MIN..=i16::MAX {
            let constant = bytes([value; 64]).repeat(32);
            assert!(!has_mp3_frames(&constant), "{value}");
        }
        // A tone that repeats with the length of a frame, and holds the header of one.
        let header = [0xff, 0xfb, 0x94, 0xc4];
        let mut period = bytes((0..192).map(|n| (9_000.0 * (f64::from(n) / 30.5).sin()) as i16));
        period.splice(..4, header);
        assert_ne!(heard(&period.repeat(30)), file);
        assert_ne!(heard(&bytes(voice(3))), file);
    }

    #[test]
    fn a_wrong_rate_names_those_that_would_be_right() {
        let rate = |hz: u32| SampleRate::new(hz).unwrap();
        let told = |wrong, hz| wrong_rate(wrong, rate(hz));
        let slow = told(WrongRate::Slow, 16_000).unwrap();
        assert!(
            slow.contains("44100 or 48000") && slow.contains("sample_rate"),
            "{slow}"
        );
        assert!(
            told(WrongRate::Fast, 48_000)
                .unwrap()
                .contains("8000 or 16000 or 24000")
        );
        assert_eq!(told(WrongRate::Slow, 48_000), None);
        assert_eq!(told(WrongRate::Fast, 8_000), None);
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
