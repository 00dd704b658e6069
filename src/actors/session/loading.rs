//! The loading sound: a short clip of the client's that is played in a loop, also under speech, until it is stopped. Checked
//! and decoded here; when it is played is decided by the session, and its frames are sent by the player.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::protocol::LoadingAudio;
use vivavoce_audio::decode::StreamDecoder;
use vivavoce_audio::mix::{FADE, Fader, Gain, Mixer};
use vivavoce_audio::{
    AudioFormat, Channels, Encoding, Layout, OfflineResampler, Pcm, SampleRate, wav,
};
use vivavoce_core::json::Misfit;

/// The most bytes after decoding (protocol, section 2).
pub const MAX_BYTES: usize = 1_920_000;
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);

fn misfit(field: &str, problem: impl Into<String>) -> Misfit {
    Misfit {
        place: format!("loading_audio.{field}"),
        problem: problem.into(),
    }
}

/// A clip at the rate of the output, in one channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Clip {
    samples: Arc<[i16]>,
    rate: SampleRate,
    volume: Gain,
}

impl Clip {
    /// Decodes the clip of a `config`. Takes some milliseconds.
    pub fn decode(audio: &LoadingAudio, rate: SampleRate) -> Result<Self, Misfit> {
        // Four characters are three bytes; longer clips are refused before they are decoded.
        if audio.data.len() / 4 * 3 > MAX_BYTES + wav::HEADER_LEN + 2 {
            return Err(misfit("data", format!("is longer than {MAX_BYTES} bytes")));
        }
        let bytes = BASE64
            .decode(audio.data.trim())
            .map_err(|error| misfit("data", format!("is no base64: {error}")))?;
        let sound = if is_wav(audio, &bytes)? {
            of_wav(&bytes)?
        } else {
            of_pcm(audio, &bytes)?
        };
        let length = sound.duration();
        if !(SHORTEST..=LONGEST).contains(&length) {
            let problem = format!("lasts {} ms, not 250 to 10000", length.as_millis());
            return Err(misfit("data", problem));
        }
        let sound = resampled_loop(&sound.into_mono(), rate);
        let volume = audio.volume.unwrap_or(1.0).clamp(0.0, 1.0);
        Ok(Self {
            samples: sound.into(),
            rate,
            volume: Gain::new(volume as f32),
        })
    }
}

fn is_wav(audio: &LoadingAudio, bytes: &[u8]) -> Result<bool, Misfit> {
    match audio.format.as_deref() {
        None => Ok(bytes.starts_with(b"RIFF")),
        Some("wav") => Ok(true),
        Some("pcm") => Ok(false),
        Some(_) => Err(misfit("format", "must be wav or pcm")),
    }
}

fn of_wav(bytes: &[u8]) -> Result<Pcm, Misfit> {
    let unreadable = |error: &dyn std::fmt::Display| misfit("data", error.to_string());
    let mut reader = wav::WavReader::new();
    let mut samples = Vec::new();
    reader
        .push(bytes, &mut samples)
        .map_err(|error| unreadable(&error))?;
    reader
        .finish(&mut samples)
        .map_err(|error| unreadable(&error))?;
    let format = reader.format().filter(wav::WavFormat::is_pcm16);
    let format = format.ok_or_else(|| misfit("data", "is no WAV of 16-bit PCM"))?;
    let channels = Channels::try_from(u64::from(format.channels()))
        .map_err(|_| misfit("data", "must have 1 or 2 channels"))?;
    Ok(Pcm::new(Layout::new(format.rate(), channels), samples))
}

fn of_pcm(audio: &LoadingAudio, bytes: &[u8]) -> Result<Pcm, Misfit> {
    let hz = audio
        .sample_rate
        .ok_or_else(|| misfit("sample_rate", "is required for pcm"))?;
    let rate = SampleRate::new(hz)
        .ok()
        .filter(|rate| *rate <= SampleRate::MAX_WIRE)
        .ok_or_else(|| misfit("sample_rate", "must be from 8000 to 48000"))?;
    let channels = Channels::try_from(audio.channels.unwrap_or(1))
        .map_err(|_| misfit("channels", "must be 1 or 2"))?;
    if bytes.len() > MAX_BYTES {
        return Err(misfit("data", format!("is longer than {MAX_BYTES} bytes")));
    }
    if !bytes.len().is_multiple_of(2 * channels.count()) {
        return Err(misfit("data", "is no whole number of 16-bit frames"));
    }
    let layout = Layout::new(rate, channels);
    let format = AudioFormat {
        encoding: Encoding::Linear16,
        layout,
    };
    let mut samples = Vec::with_capacity(bytes.len() / 2);
    let mut decoder =
        StreamDecoder::new(format).map_err(|error| misfit("data", error.to_string()))?;
    for chunk in decoder.push(bytes) {
        let chunk = chunk.map_err(|error| misfit("data", error.to_string()))?;
        samples.extend_from_slice(chunk.samples());
    }
    Ok(Pcm::new(layout, samples))
}

/// Resamples a loop without a seam: with its own end before it and its own beginning behind it, which are then cut off.
fn resampled_loop(sound: &Pcm, rate: SampleRate) -> Vec<i16> {
    let from = sound.rate();
    if from == rate {
        return sound.samples().to_vec();
    }
    let around = from.frames_in(SHORTEST).min(sound.frames());
    let samples = sound.samples();
    let mut resampler = OfflineResampler::new(Layout::mono(from), rate);
    let mut output = Vec::new();
    resampler.push(&samples[samples.len() - around..], &mut output);
    resampler.push(samples, &mut output);
    resampler.push(&samples[..around], &mut output);
    resampler.finish(&mut output);
    let scaled = |frames: usize| {
        let frames = frames as u64 * u64::from(rate.hz());
        usize::try_from(frames / u64::from(from.hz())).unwrap_or(usize::MAX)
    };
    let first = scaled(around).min(output.len());
    let length = scaled(samples.len()).min(output.len() - first);
    output.drain(..first);
    output.truncate(length);
    output
}

/// The loading sound of a session, playing or not.
#[derive(Debug)]
pub struct LoadingSound {
    clip: Clip,
    /// The next sample.
    position: usize,
    wanted: bool,
    fader: Fader,
    mixer: Mixer,
    block: Vec<i16>,
}

impl LoadingSound {
    /// A clip that is not playing.
    pub fn new(clip: Clip) -> Self {
        Self {
            clip,
            position: 0,
            wanted: false,
            fader: Fader::new(Gain::SILENCE),
            mixer: Mixer::default(),
            block: Vec::new(),
        }
    }

    /// Starts it, or goes on with the loop while it fades out. Idempotent.
    pub fn start(&mut self) {
        if !std::mem::replace(&mut self.wanted, true) {
            if !self.is_heard() {
                self.position = 0;
            }
            self.fader.fade_to(self.clip.volume, self.clip.rate, FADE);
        }
    }

    /// Fades it out. Idempotent.
    pub fn stop(&mut self) {
        if std::mem::replace(&mut self.wanted, false) {
            self.fader.fade_to(Gain::SILENCE, self.clip.rate, FADE);
        }
    }

    /// Whether it adds anything to the output.
    pub fn is_heard(&self) -> bool {
        self.wanted || !self.fader.is_settled()
    }

    /// Mixes the next samples of the loop under `sound`.
    pub fn mix_into(&mut self, sound: &mut Vec<i16>) {
        self.block.clear();
        while self.block.len() < sound.len() {
            let missing = sound.len() - self.block.len();
            let piece = &self.clip.samples[self.position..];
            let piece = &piece[..piece.len().min(missing)];
            self.block.extend_from_slice(piece);
            self.position = (self.position + piece.len()) % self.clip.samples.len();
        }
        self.mixer.begin(sound.len());
        self.mixer.add(sound, &mut Fader::new(Gain::UNITY));
        self.mixer.add(&self.block, &mut self.fader);
        sound.clear();
        self.mixer.finish(sound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: SampleRate = SampleRate::HZ_24000;

    /// Seeded; 100,000 in the long run.
    #[test]
    fn whatever_comes_as_a_loading_sound_is_a_clip_or_an_error_and_never_a_panic() {
        let rounds = std::env::var_os("VIVAVOCE_LONG").map_or(500, |_| 100_000);
        let mut random = fastrand::Rng::with_seed(5);
        let header = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\0\0\0\0";
        for _ in 0..rounds {
            let mut bytes = header.to_vec();
            bytes.resize(random.usize(0..20_000), 0);
            for _ in 0..random.usize(0..8) {
                let end = bytes.len().min(60);
                if let Some(byte) = bytes.get_mut(random.usize(0..=end)) {
                    *byte = random.u8(..);
                }
            }
            let mut data = BASE64.encode(bytes);
            if random.u8(0..8) == 0 {
                data.truncate(random.usize(0..=data.len()));
            }
            let audio = LoadingAudio {
                data,
                format: random
                    .choice([None, Some("wav"), Some("pcm"), Some("x")])
                    .flatten()
                    .map(str::to_owned),
                sample_rate: random
                    .choice([None, Some(0), Some(16_000), Some(u64::MAX)])
                    .flatten(),
                channels: random
                    .choice([None, Some(0), Some(1), Some(2), Some(u64::MAX)])
                    .flatten(),
                volume: random
                    .choice([None, Some(f64::NAN), Some(-1.0), Some(f64::MAX)])
                    .flatten(),
            };
            let _ = Clip::decode(&audio, RATE);
        }
    }

    fn tone(rate: SampleRate, frames: usize) -> Vec<i16> {
        let step = std::f64::consts::TAU * 400.0 / f64::from(rate.hz());
        (0..frames)
            .map(|n| (8_000.0 * (n as f64 * step).sin()).round() as i16)
            .collect()
    }

    fn pcm(samples: &[i16], rate: u64) -> LoadingAudio {
        let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
        LoadingAudio {
            data: BASE64.encode(bytes),
            format: None,
            sample_rate: Some(rate),
            channels: None,
            volume: None,
        }
    }

    fn sound(clip: Clip) -> LoadingSound {
        LoadingSound::new(clip)
    }

    /// What leaves of silence in blocks of 20 ms.
    fn heard(loading: &mut LoadingSound, blocks: usize) -> Vec<i16> {
        let mut all = Vec::new();
        for _ in 0..blocks {
            let mut block = vec![0; RATE.frames_in(Duration::from_millis(20))];
            loading.mix_into(&mut block);
            all.extend(block);
        }
        all
    }

    #[test]
    fn the_loop_is_the_clip_again_and_again_after_a_fade_of_thirty_milliseconds() {
        let samples = tone(RATE, 6_007);
        let mut loading = sound(Clip::decode(&pcm(&samples, 24_000), RATE).unwrap());
        loading.start();
        let heard = heard(&mut loading, 60);
        let fade = RATE.frames_in(FADE);
        assert_eq!(heard[0], 0);
        for (n, &sample) in heard.iter().enumerate().skip(fade) {
            assert_eq!(sample, samples[n % samples.len()], "sample {n}");
        }
    }

    #[test]
    fn starting_and_stopping_twice_changes_nothing_and_the_stop_is_a_fade() {
        let samples = vec![8_000; 12_000];
        let clip = Clip::decode(&pcm(&samples, 24_000), RATE).unwrap();
        let mut loading = sound(clip);
        assert!(!loading.is_heard());
        loading.stop();
        assert!(!loading.is_heard());
        loading.start();
        heard(&mut loading, 5);
        loading.start();
        assert!(heard(&mut loading, 1).iter().all(|&s| s == 8_000));
        loading.stop();
        let end = heard(&mut loading, 2);
        assert!(
            end.windows(2).all(|pair| pair[0] - pair[1] <= 13),
            "no step"
        );
        assert_eq!(end.last(), Some(&0));
        assert!(!loading.is_heard());
    }

    #[test]
    fn a_resampled_loop_has_no_step_at_its_seam() {
        // A whole number of periods: the loop is an endless tone.
        let samples = tone(SampleRate::HZ_16000, 40 * 150);
        let mut loading = sound(Clip::decode(&pcm(&samples, 16_000), RATE).unwrap());
        loading.start();
        let heard = heard(&mut loading, 100);
        let expected = tone(RATE, heard.len());
        for (n, (&is, &should)) in heard.iter().zip(&expected).enumerate().skip(720) {
            assert!((is - should).abs() < 40, "sample {n}: {is} for {should}");
        }
    }

    #[test]
    fn it_is_mixed_under_speech_at_its_volume() {
        let mut audio = pcm(&vec![1_000; 12_000], 24_000);
        audio.volume = Some(0.5);
        let mut loading = sound(Clip::decode(&audio, RATE).unwrap());
        loading.start();
        heard(&mut loading, 2);
        let mut speech = vec![2_000; 480];
        loading.mix_into(&mut speech);
        assert_eq!(speech, vec![2_500; 480]);
    }

    #[test]
    fn stereo_and_wav_are_taken_and_bad_clips_name_the_field() {
        let layout = Layout::new(RATE, Channels::Stereo);
        let mut file = wav::header(layout, Some(48_000)).to_vec();
        file.extend((0..12_000).flat_map(|_| [100_i16, 300].map(i16::to_le_bytes).concat()));
        let of = |data: Vec<u8>, format: Option<&str>| LoadingAudio {
            data: BASE64.encode(data),
            format: format.map(str::to_owned),
            sample_rate: None,
            channels: None,
            volume: Some(7.0),
        };
        let clip = Clip::decode(&of(file, None), RATE).unwrap();
        assert!(clip.samples.iter().all(|&s| s == 200) && clip.samples.len() == 12_000);
        assert_eq!(clip.volume, Gain::UNITY);
        let seconds = |s: usize| vec![0_i16; 8_000 * s];
        let cases = [
            (of(vec![0; 100], None), "loading_audio.sample_rate"),
            (of(vec![0; 100], Some("mp3")), "loading_audio.format"),
            (of(vec![0; 100], Some("wav")), "loading_audio.data"),
            (pcm(&seconds(1), 7_999), "loading_audio.sample_rate"),
            (pcm(&seconds(11), 8_000), "loading_audio.data"),
            (pcm(&[0; 1_999], 8_000), "loading_audio.data"),
            (
                LoadingAudio {
                    channels: Some(3),
                    ..pcm(&seconds(1), 8_000)
                },
                "loading_audio.channels",
            ),
            (
                LoadingAudio {
                    data: "no base64!".to_owned(),
                    ..pcm(&[], 8_000)
                },
                "loading_audio.data",
            ),
            (
                pcm(&vec![0; MAX_BYTES / 2 + 2], 48_000),
                "loading_audio.data",
            ),
        ];
        for (audio, place) in cases {
            assert_eq!(Clip::decode(&audio, RATE).unwrap_err().place, place);
        }
    }
}
