//! One scenario of the audio path, so and so many times, to be run under callgrind by `run.py` beside this file:
//! `instructions SCENARIO COUNT`. Each of ours stands beside the same work by libopus alone.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod recording;
#[path = "../vowel/mod.rs"]
mod vowel;

use std::hint::black_box;
use std::time::{Duration, Instant};

use vivavoce::actors::session::playback::{PlaybackQueue, Sound, Speak};
use vivavoce::actors::session::turn::{Moment, TurnDetector, TurnSettings};
use vivavoce::audio::decode::StreamDecoder;
use vivavoce::audio::denoise::Denoiser;
use vivavoce::audio::encode::StreamEncoder;
use vivavoce::audio::g711::Law;
use vivavoce::audio::ogg::{OggOpusWriter, OpusHead, PAGE_TIME};
use vivavoce::audio::opus::{FRAME, MAX_FRAME_PACKET, OpusDecoder, OpusEncoder, OpusSettings};
use vivavoce::audio::vad::{RATE, Vad, VadEvent, VadSettings};
use vivavoce::audio::{AudioFormat, Channels, Encoding, Layout, Pcm, SampleRate, linear16};
use vivavoce::providers::{SttEvent, Transcript};

const FRAMES: usize = 50;

/// A second of something like a vowel, in frames of 20 ms.
fn sound(layout: Layout) -> Vec<Pcm> {
    vowel::frames(layout, layout.samples_in(FRAME), FRAMES)
}

/// libopus with the settings of [`OpusSettings::SPEECH`].
fn raw_encoder(layout: Layout) -> opus::Encoder {
    let settings = OpusSettings::SPEECH;
    let hz = layout.rate.hz();
    let mut encoder =
        opus::Encoder::new(hz, opus::Channels::Mono, opus::Application::Audio).unwrap();
    let bitrate = opus::Bitrate::Bits(settings.bitrate_bps as i32);
    encoder.set_bitrate(bitrate).unwrap();
    encoder.set_complexity(settings.complexity.into()).unwrap();
    encoder
}

fn packets(layout: Layout) -> Vec<Vec<u8>> {
    let mut encoder = raw_encoder(layout);
    sound(layout)
        .iter()
        .map(|frame| {
            encoder
                .encode_vec(frame.samples(), MAX_FRAME_PACKET)
                .unwrap()
        })
        .collect()
}

/// A stream of Ogg/Opus without an end: its headers, then a page for every ten packets.
fn pages(layout: Layout, packets: &[Vec<u8>], count: usize) -> Vec<bytes::Bytes> {
    let head = OpusHead {
        channels: layout.channels,
        pre_skip: 312,
        input_hz: layout.rate.hz(),
    };
    let mut writer = OggOpusWriter::new(head, "bench", &[], 1, PAGE_TIME).unwrap();
    let packets = packets.iter().cycle().take(count);
    packets.map(|packet| writer.push(packet).unwrap()).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let scenario = arguments.get(1).map_or("", String::as_str);
    let count: usize = arguments.get(2).map_or(0, |count| count.parse().unwrap());
    let narrow = Layout::mono(SampleRate::HZ_8000);
    let wide = Layout::mono(SampleRate::HZ_16000);
    let speech = Layout::mono(SampleRate::HZ_24000);
    let full = Layout::mono(SampleRate::HZ_48000);
    match scenario {
        "opus-encode-raw-24k" => raw_encode(speech, count),
        "opus-encode-24k" => encode(speech, count),
        "opus-stream-encode-24k" => stream_encode(Encoding::Opus, speech, count),
        "ogg-opus-stream-encode-24k" => stream_encode(Encoding::OggOpus, speech, count),
        "opus-encode-raw-48k" => raw_encode(full, count),
        "opus-encode-48k" => encode(full, count),
        "opus-decode-raw-48k" => raw_decode(full, count),
        "opus-decode-48k" => decode(full, count),
        "opus-stream-decode-48k" => stream_decode(Encoding::Opus, full, count),
        "ogg-opus-stream-decode-48k" => stream_decode(Encoding::OggOpus, full, count),
        "opus-decode-raw-16k" => raw_decode(wide, count),
        "opus-decode-16k" => decode(wide, count),
        "opus-stream-decode-16k" => stream_decode(Encoding::Opus, wide, count),
        "linear16-stream-decode-16k" => stream_decode(Encoding::Linear16, wide, count),
        "mulaw-stream-decode-8k" => stream_decode(Encoding::Mulaw, narrow, count),
        "mulaw-compress-8k" => compress(Law::Mu, narrow, count),
        "alaw-compress-8k" => compress(Law::A, narrow, count),
        "vad-16k" => vad(&sound(wide), count),
        "vad-noise-16k" => vad(&noise(wide), count),
        "denoise-16k" => denoise(wide, count),
        "denoise-48k" => denoise(full, count),
        "turns" => turns(count),
        "playback" => playback(count),
        "record-passed" => recording::record(Channels::Mono, 5, count),
        other => match other.rsplit_once('-') {
            Some(("record", complexity)) => {
                recording::record(Channels::Stereo, complexity.parse().unwrap(), count);
            }
            Some(("record-raw", complexity)) => raw_record(complexity.parse().unwrap(), count),
            _ => panic!("no scenario {other:?}"),
        },
    }
}

fn raw_encode(layout: Layout, count: usize) {
    let mut encoder = raw_encoder(layout);
    let mut packet = [0; MAX_FRAME_PACKET];
    for frame in sound(layout).iter().cycle().take(count) {
        black_box(encoder.encode(frame.samples(), &mut packet).unwrap());
    }
}

/// libopus with the settings of a recording in stereo.
fn raw_record(complexity: i32, count: usize) {
    let layout = Layout::new(SampleRate::HZ_16000, Channels::Stereo);
    let channels = opus::Channels::Stereo;
    let mut encoder =
        opus::Encoder::new(layout.rate.hz(), channels, opus::Application::Audio).unwrap();
    encoder.set_bitrate(opus::Bitrate::Bits(48_000)).unwrap();
    encoder.set_complexity(complexity).unwrap();
    let mut packet = [0; MAX_FRAME_PACKET];
    let frames = sound(Layout::mono(layout.rate));
    // What is heard was said a frame before it comes; what is played is heard as it leaves.
    let played = frames.iter().cycle().skip(frames.len() - 1);
    let both = frames.iter().zip(played).map(|(left, right)| {
        let both = left.samples().iter().zip(right.samples());
        both.flat_map(|(left, right)| [*left, *right]).collect()
    });
    for frame in both.collect::<Vec<Vec<_>>>().iter().cycle().take(count) {
        black_box(encoder.encode(frame, &mut packet).unwrap());
    }
}

fn encode(layout: Layout, count: usize) {
    let mut encoder = OpusEncoder::new(layout, OpusSettings::SPEECH).unwrap();
    let mut packet = [0; MAX_FRAME_PACKET];
    for frame in sound(layout).iter().cycle().take(count) {
        black_box(encoder.encode(frame.samples(), &mut packet).unwrap());
    }
}

fn stream_encode(encoding: Encoding, layout: Layout, count: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut encoder = StreamEncoder::new(AudioFormat { encoding, layout }).unwrap();
        for frame in sound(layout).iter().cycle().take(count) {
            black_box(encoder.push(frame).await.unwrap());
        }
    });
}

fn raw_decode(layout: Layout, count: usize) {
    let mut decoder = opus::Decoder::new(layout.rate.hz(), opus::Channels::Mono).unwrap();
    let mut samples = vec![0; layout.samples_in(FRAME)];
    for packet in packets(layout).iter().cycle().take(count) {
        black_box(decoder.decode(packet, &mut samples, false).unwrap());
    }
}

fn decode(layout: Layout, count: usize) {
    let mut decoder = OpusDecoder::new(layout).unwrap();
    let mut samples = Vec::new();
    for packet in packets(layout).iter().cycle().take(count) {
        samples.clear();
        decoder.decode(packet, &mut samples).unwrap();
        black_box(&samples);
    }
}

fn stream_decode(encoding: Encoding, layout: Layout, count: usize) {
    let mut decoder = StreamDecoder::new(AudioFormat { encoding, layout }).unwrap();
    let chunks = match encoding {
        Encoding::OggOpus => pages(layout, &packets(layout), count),
        Encoding::Opus => packets(layout).into_iter().map(Into::into).collect(),
        Encoding::Mulaw => vec![vec![0x35; layout.samples_in(FRAME)].into()],
        _ => vec![linear16::encode(sound(layout)[0].samples())],
    };
    for chunk in chunks.iter().cycle().take(count) {
        for sound in decoder.push(chunk) {
            black_box(sound.unwrap());
        }
    }
}

fn compress(law: Law, layout: Layout, count: usize) {
    let mut codes = Vec::new();
    for frame in sound(layout).iter().cycle().take(count) {
        codes.clear();
        law.compress(frame.samples(), &mut codes);
        black_box(&codes);
    }
}

/// A second of noise 46 dB below full scale.
fn noise(layout: Layout) -> Vec<Pcm> {
    let mut random = fastrand::Rng::with_seed(5);
    let frame = || {
        Pcm::new(
            layout,
            (0..layout.samples_in(FRAME))
                .map(|_| random.i16(-285..=285))
                .collect(),
        )
    };
    std::iter::repeat_with(frame).take(FRAMES).collect()
}

fn vad(sound: &[Pcm], count: usize) {
    let mut vad = Vad::new(VadSettings::default());
    for frame in sound.iter().cycle().take(count) {
        black_box(vad.push(frame.samples()));
    }
}

fn denoise(layout: Layout, count: usize) {
    let mut denoiser = Denoiser::new(layout.rate);
    let mut clean = Vec::new();
    for frame in sound(layout).iter().cycle().take(count) {
        clean.clear();
        denoiser.push(frame.samples(), &mut clean);
        black_box(&clean);
    }
}

/// A talker who pauses in every second, ends a turn in every fourth, and is understood word by word.
fn turns(count: usize) {
    let mut turns = TurnDetector::new(TurnSettings::default());
    let begin = Instant::now();
    let heard = |text: &str| Transcript {
        text: text.to_owned(),
        ..Transcript::default()
    };
    for frame in 0..count as u64 {
        let heard_so_far = FRAME * (frame as u32 + 1);
        let moment = Moment {
            now: begin + heard_so_far,
            heard: heard_so_far,
            onset: false,
        };
        let at = RATE.frames_in(heard_so_far) as u64;
        let event = match frame % 200 {
            0 => Some(VadEvent::SpeechStart { at }),
            150 => Some(VadEvent::SilenceBegan { at }),
            175 => Some(VadEvent::SpeechEnd { at: at - 8_000 }),
            n if n < 150 && n % 50 == 40 => Some(VadEvent::SilenceBegan { at }),
            n if n < 150 && n % 50 == 0 => Some(VadEvent::SpeechResumed { at }),
            _ => None,
        };
        if let Some(event) = event {
            black_box(turns.vad(event, moment));
        }
        match frame % 200 {
            165 => drop(black_box(
                turns.stt(SttEvent::Final(heard("one two")), moment),
            )),
            n if n < 150 && n % 15 == 14 => {
                let words = if n % 2 == 0 { "one" } else { "one two" };
                black_box(turns.stt(SttEvent::Partial(heard(words)), moment));
            }
            _ => {}
        }
        if turns.next_deadline().is_some_and(|due| due <= moment.now) {
            black_box(turns.tick(moment));
        }
    }
}

/// A chunk of speech with what the estimate of words goes by.
#[derive(Clone)]
struct Spoken(Pcm);

impl Sound for Spoken {
    fn duration(&self) -> Duration {
        self.0.duration()
    }

    fn loudness(&self) -> Option<[u16; 2]> {
        let halves = self.0.samples().split_at(self.0.samples().len() / 2);
        Some([halves.0, halves.1].map(|half| {
            let sum: u64 = half.iter().map(|s| u64::from(s.unsigned_abs())).sum();
            (sum / (half.len() as u64).max(1)) as u16
        }))
    }
}

/// Utterances of a second each, whose sound comes as it is played, to a client that is told of words that have to be
/// estimated.
fn playback(count: usize) {
    const TEXT: &str = "so many words";
    let frames = sound(Layout::mono(SampleRate::HZ_24000));
    let begin = Instant::now();
    let mut queue = PlaybackQueue::new(FRAME * 10);
    queue.tell_words(true);
    let mut utterance = queue.next_key();
    for (place, frame) in (0..count as u32).zip(frames.into_iter().cycle()) {
        let now = begin + FRAME * place;
        let within = place % 50;
        if within == 0 {
            let spoken = Speak {
                ssml: None,
                text: TEXT.to_owned(),
                flush: true,
                allow_interruption: true,
                replace: false,
                id: None,
            };
            (utterance, _) = queue.speak(spoken, now).unwrap().unwrap();
            while let Some(output) = queue.poll(now) {
                black_box(output);
            }
            queue.begin_text(utterance, 0..TEXT.len(), Duration::ZERO);
        }
        assert!(queue.sound(utterance, Spoken(frame)).is_ok());
        if within == 49 {
            queue.end_text(utterance, FRAME * 50);
            queue.done(utterance);
        }
        while let Some(output) = queue.poll(now) {
            black_box(output);
        }
        black_box(queue.next_wakeup(now));
    }
}
