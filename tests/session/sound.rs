//! What the tests say and what they hear: speech in every format that a client may send, and the clock and the ear of
//! a listener for what a server sends.

use std::time::{Duration, Instant};

use serde_json::json;
use vivavoce::audio::decode::StreamDecoder;
use vivavoce::audio::encode::{Encoded, StreamEncoder};
use vivavoce::audio::opus::{MAX_FRAME_PACKET, OpusEncoder, OpusSettings};
use vivavoce::audio::{
    AudioFormat, Channels, Encoding, Layout, Pcm, Resampler, SampleRate, linear16, wav,
};

use super::client::Chunk;
use crate::harness::{Server, speak, stderr, stdout, vivavoce};

/// What a synthesiser and a recogniser exchange when nothing else is asked for.
pub const WIDE: AudioFormat = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_16000);
/// What leaves a session when nothing else is asked for.
pub const OUTPUT: AudioFormat = AudioFormat::mono(Encoding::Linear16, SampleRate::HZ_24000);
/// Bytes of one second of [`OUTPUT`].
pub const OUTPUT_SECOND: usize = 48_000;
/// The sound in a chunk.
pub const CHUNK: Duration = Duration::from_millis(20);
/// How far ahead of real time a server may be (`socket.lead_ms`).
pub const LEAD: Duration = Duration::from_millis(200);

/// A text as the server itself speaks it, in one piece: what a session's speech is compared with.
pub async fn spoken(server: &Server, text: &str, format: AudioFormat) -> Pcm {
    let fields = json!({"audio_format": "linear16", "sample_rate": format.layout.rate.hz()});
    spoken_with(server, text, fields, format).await
}

/// The same with other fields of `tts_config`.
pub async fn spoken_with(
    server: &Server,
    text: &str,
    fields: serde_json::Value,
    format: AudioFormat,
) -> Pcm {
    let answer = speak(server, text, fields).await;
    assert_eq!(answer.status(), 200);
    let bytes = answer.bytes().await.unwrap();
    Pcm::new(format.layout, linear16::samples(&bytes))
}

/// Sentences for a recogniser, with a pause behind each.
pub async fn sentences(server: &Server, texts: &[&str], pause: Duration) -> Pcm {
    let mut sound = Pcm::empty(WIDE.layout);
    for text in texts {
        sound = then(sound, &spoken(server, text, WIDE).await);
        sound = then(sound, &Pcm::silence(WIDE.layout, pause));
    }
    sound
}

/// One sound behind another.
pub fn then(first: Pcm, second: &Pcm) -> Pcm {
    assert_eq!(first.layout(), second.layout());
    let layout = first.layout();
    let mut samples = first.into_samples();
    samples.extend_from_slice(second.samples());
    Pcm::new(layout, samples)
}

/// Sound as a client sends it: 20 ms a message (pages of Ogg as they fill).
pub async fn encoded(sound: &Pcm, format: AudioFormat) -> Vec<Encoded> {
    let sound = sound.clone().into_channels(format.layout.channels);
    let sound = Resampler::convert(sound, format.layout.rate);
    let frames = sound.samples().chunks(format.layout.samples_in(CHUNK));
    let frames = frames.map(|frame| Pcm::new(format.layout, frame.to_vec()));
    if format.encoding == Encoding::Opus {
        return packets(frames, format.layout);
    }
    let mut encoder = StreamEncoder::new(format).unwrap();
    let mut pieces = Vec::new();
    for frame in frames {
        pieces.extend(encoder.push(&frame).await.unwrap());
    }
    pieces.extend(encoder.finish().await.unwrap());
    pieces
}

/// Bare Opus, with an encoder that owes the server's own framing nothing.
fn packets(frames: impl Iterator<Item = Pcm>, layout: Layout) -> Vec<Encoded> {
    let mut encoder = OpusEncoder::new(layout, OpusSettings::SPEECH).unwrap();
    let encode = |frame: Pcm| {
        let mut frame = frame.into_samples();
        frame.resize(encoder.frame_samples(), 0);
        let mut packet = vec![0; MAX_FRAME_PACKET];
        let length = encoder.encode(&frame, &mut packet).unwrap();
        packet.truncate(length);
        Encoded {
            data: packet.into(),
            duration: CHUNK,
        }
    };
    frames.map(encode).collect()
}

/// 16 kHz sound in messages of any length, for those who do not care about samples.
pub fn chopped(sound: &Pcm, bytes: usize) -> Vec<Encoded> {
    assert_eq!(sound.layout(), WIDE.layout);
    let all = linear16::encode(sound.samples());
    let cut = |at| Encoded {
        data: all.slice(at..all.len().min(at + bytes)),
        duration: Duration::from_secs_f64(bytes as f64 / 32_000.0),
    };
    (0..all.len()).step_by(bytes).map(cut).collect()
}

/// All sound in a session's chunks, of one format from the first to the last.
pub fn decoded(chunks: &[Chunk], format: AudioFormat) -> Pcm {
    let mut decoder = StreamDecoder::new(format).unwrap();
    let mut samples = Vec::new();
    for chunk in chunks {
        for sound in decoder.push(&chunk.data) {
            samples.extend(sound.expect("the sound can be decoded").into_samples());
        }
    }
    for sound in decoder.finish() {
        samples.extend(sound.expect("the sound can be decoded").into_samples());
    }
    let layout = decoder.layout().expect("there is sound");
    Pcm::new(layout, samples)
}

/// How long linear16 of [`OUTPUT`] lasts.
pub fn duration(chunks: &[Chunk]) -> Duration {
    let bytes: usize = chunks.iter().map(|chunk| chunk.data.len()).sum();
    OUTPUT.layout.rate.duration_of(bytes / 2)
}

/// How much of one sound is another, 0–1, but for a delay of up to 100 ms, what is above 4 kHz, and its loudness.
pub fn likeness(meant: &Pcm, heard: &Pcm) -> f64 {
    const REACH: usize = 800;
    let narrow = |sound: &Pcm| {
        let sound = Resampler::convert(sound.clone().into_mono(), SampleRate::HZ_8000);
        let samples = sound.into_samples().into_iter().map(f32::from);
        samples.collect::<Vec<_>>()
    };
    let energy = |samples: &[f32]| samples.iter().map(|sample| sample * sample).sum::<f32>();
    let (meant, heard) = (narrow(meant), narrow(heard));
    let whole = (energy(&meant) * energy(&heard)).sqrt();
    // All delays at once: their spectra, multiplied.
    let size = (meant.len() + heard.len()).next_power_of_two();
    let (there, back) = (vivavoce_fft::forward(size), vivavoce_fft::inverse(size));
    let spectrum = |samples: &[f32]| {
        let (mut padded, mut bins) = (there.make_input_vec(), there.make_output_vec());
        padded[..samples.len()].copy_from_slice(samples);
        there.process(&mut padded, &mut bins).unwrap();
        bins
    };
    let mut product = spectrum(&heard);
    for (bin, meant) in product.iter_mut().zip(spectrum(&meant)) {
        *bin *= meant.conj();
    }
    let mut alike = back.make_output_vec();
    back.process(&mut product, &mut alike).unwrap();
    let later = alike[..REACH].iter();
    let earlier = alike[size - REACH..].iter();
    let best = later.chain(earlier).copied().fold(0.0, f32::max) / size as f32;
    f64::from(best / whole)
}

/// What our own `transcribe` hears.
pub fn transcribed(sound: &Pcm) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sound.wav");
    std::fs::write(&file, wav_file(sound)).unwrap();
    let output = vivavoce(["transcribe".as_ref(), file.as_os_str()]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Sound as a WAV file.
pub fn wav_file(sound: &Pcm) -> Vec<u8> {
    let data = linear16::encode(sound.samples());
    let mut file = wav::header(sound.layout(), u32::try_from(data.len()).ok()).to_vec();
    file.extend_from_slice(&data);
    file
}

/// What a listener who plays each chunk as soon as it can makes of the chunks of [`OUTPUT`].
#[derive(Debug)]
pub struct Playout {
    /// When the last sample has been played.
    pub ends: Instant,
    /// The most sound that ever waited to be played, the chunk that just came included.
    pub most_ahead: Duration,
    /// The longest that the listener had nothing to play between two chunks.
    pub longest_gap: Duration,
    /// How much had been played before it.
    pub gap_after: Duration,
    /// The sound that waited after each chunk.
    pub ahead: Vec<Duration>,
}

impl Playout {
    pub fn of(chunks: &[Chunk]) -> Self {
        let first = chunks.first().expect("there is sound");
        let mut playout = Self {
            ends: first.at,
            most_ahead: Duration::ZERO,
            longest_gap: Duration::ZERO,
            gap_after: Duration::ZERO,
            ahead: Vec::with_capacity(chunks.len()),
        };
        let mut played = Duration::ZERO;
        for chunk in chunks {
            let gap = chunk.at.saturating_duration_since(playout.ends);
            if gap > playout.longest_gap {
                (playout.longest_gap, playout.gap_after) = (gap, played);
            }
            let sound = OUTPUT.layout.rate.duration_of(chunk.data.len() / 2);
            played += sound;
            playout.ends = playout.ends.max(chunk.at) + sound;
            let ahead = playout.ends - chunk.at;
            playout.most_ahead = playout.most_ahead.max(ahead);
            playout.ahead.push(ahead);
        }
        playout
    }
}

/// A tone.
pub fn tone(layout: Layout, hz: f64, amplitude: f64, time: Duration) -> Pcm {
    let rate = f64::from(layout.rate.hz());
    let sample = |n: usize| amplitude * (std::f64::consts::TAU * hz * n as f64 / rate).sin();
    let frames = 0..layout.rate.frames_in(time);
    let samples = frames.flat_map(|n| {
        let sample = sample(n).round() as i16;
        std::iter::repeat_n(sample, layout.channels.count())
    });
    Pcm::new(layout, samples.collect())
}

/// How much of a tone is in mono sound, and how loud everything else is (root mean square).
pub fn tone_in(sound: &[i16], rate: SampleRate, hz: f64) -> (f64, f64) {
    let step = std::f64::consts::TAU * hz / f64::from(rate.hz());
    let (mut sine, mut cosine) = (0.0, 0.0);
    for (n, &sample) in sound.iter().enumerate() {
        let (sin, cos) = (step * n as f64).sin_cos();
        sine += f64::from(sample) * sin;
        cosine += f64::from(sample) * cos;
    }
    let count = sound.len() as f64;
    let (sine, cosine) = (2.0 * sine / count, 2.0 * cosine / count);
    let rest = sound.iter().enumerate().map(|(n, &sample)| {
        let (sin, cos) = (step * n as f64).sin_cos();
        (f64::from(sample) - sine * sin - cosine * cos).powi(2)
    });
    (sine.hypot(cosine), (rest.sum::<f64>() / count).sqrt())
}

/// Left and right of the same length as one sound.
pub fn stereo(left: &Pcm, right: &Pcm) -> Pcm {
    let pairs = left.samples().iter().zip(right.samples());
    let layout = Layout::new(left.rate(), Channels::Stereo);
    Pcm::new(layout, pairs.flat_map(|(&l, &r)| [l, r]).collect())
}
