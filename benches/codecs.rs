//! What 20 ms of sound costs in the codecs, the voice activity detector and the bus. Timings on shared cores differ by
//! a fifth; the instruction counts of `benches/instructions` do not.

#![allow(missing_docs, clippy::unwrap_used)]

mod vowel;

use std::hint::black_box;

use criterion::{
    BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime,
};
use futures_util::FutureExt;
use vivavoce::audio::bus::AudioBus;
use vivavoce::audio::decode::StreamDecoder;
use vivavoce::audio::encode::StreamEncoder;
use vivavoce::audio::g711::Law;
use vivavoce::audio::opus::{FRAME, MAX_FRAME_PACKET, OpusDecoder, OpusEncoder, OpusSettings};
use vivavoce::audio::vad::{Vad, VadSettings};
use vivavoce::audio::{AudioFormat, Encoding, Layout, Pcm, SampleRate, linear16};

/// Something like a vowel: a hundred frames of 20 ms.
fn sound(layout: Layout) -> Vec<Pcm> {
    vowel::frames(layout, layout.samples_in(FRAME), 100)
}

fn packets(layout: Layout, settings: OpusSettings) -> Vec<Vec<u8>> {
    let mut encoder = OpusEncoder::new(layout, settings).unwrap();
    let mut packet = [0; MAX_FRAME_PACKET];
    sound(layout)
        .iter()
        .map(|frame| {
            let len = encoder.encode(frame.samples(), &mut packet).unwrap();
            packet[..len].to_vec()
        })
        .collect()
}

/// Measures one step over inputs that are taken in turn.
fn each<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    inputs: &[T],
    mut step: impl FnMut(&T),
) {
    let mut inputs = inputs.iter().cycle();
    group.bench_function(name, |bencher| {
        bencher.iter(|| step(black_box(inputs.next().unwrap())));
    });
}

fn codecs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("20 ms");
    let group = &mut group;
    let narrow = Layout::mono(SampleRate::HZ_8000);
    let wide = Layout::mono(SampleRate::HZ_16000);
    let full = Layout::mono(SampleRate::HZ_48000);

    for (name, law) in [("mu-law", Law::Mu), ("A-law", Law::A)] {
        let frames = sound(narrow);
        let mut codes = Vec::new();
        each(
            group,
            &format!("{name} compress, 8 kHz"),
            &frames,
            |frame| {
                codes.clear();
                law.compress(frame.samples(), &mut codes);
                black_box(&codes);
            },
        );
        let mut samples = Vec::new();
        each(group, &format!("{name} expand, 8 kHz"), &[codes], |codes| {
            samples.clear();
            law.expand(codes, &mut samples);
            black_box(&samples);
        });
    }

    let frames = sound(full);
    each(group, "linear16 encode, 48 kHz", &frames, |frame| {
        black_box(linear16::encode(frame.samples()));
    });
    let bytes = linear16::encode(frames[0].samples());
    let mut decoder = StreamDecoder::new(AudioFormat {
        encoding: Encoding::Linear16,
        layout: full,
    })
    .unwrap();
    each(group, "linear16 decode, 48 kHz", &[bytes], |bytes| {
        decoder.push(bytes).for_each(|sound| drop(black_box(sound)));
    });
    each(group, "mono to stereo and back, 48 kHz", &frames, |frame| {
        black_box(frame.clone().into_stereo().into_mono());
    });

    for complexity in [0, 5, 10] {
        let settings = OpusSettings {
            complexity,
            ..OpusSettings::SPEECH
        };
        let mut encoder = OpusEncoder::new(full, settings).unwrap();
        let mut packet = [0; MAX_FRAME_PACKET];
        let name = format!("Opus encode, 48 kHz, complexity {complexity}");
        each(group, &name, &frames, |frame| {
            black_box(encoder.encode(frame.samples(), &mut packet).unwrap());
        });
    }
    let mut decoder = OpusDecoder::new(full).unwrap();
    let mut samples = Vec::new();
    let packets = packets(full, OpusSettings::SPEECH);
    each(group, "Opus decode, 48 kHz", &packets, |packet| {
        samples.clear();
        decoder.decode(packet, &mut samples).unwrap();
        black_box(&samples);
    });
    let mut encoder = StreamEncoder::new(AudioFormat {
        encoding: Encoding::OggOpus,
        layout: full,
    })
    .unwrap();
    each(group, "Ogg/Opus encode, 48 kHz", &frames, |frame| {
        black_box(encoder.push(frame).now_or_never().unwrap().unwrap());
    });

    let mut vad = Vad::new(VadSettings::default());
    each(group, "voice activity, 16 kHz", &sound(wide), |frame| {
        black_box(vad.push(frame.samples()));
    });

    for readers in [1, 4] {
        let mut bus = AudioBus::new(16);
        let mut ends: Vec<_> = (0..readers).map(|_| bus.reader()).collect();
        let name = format!("bus, 16 kHz, {readers} readers");
        each(group, &name, &sound(wide), |frame| {
            bus.write(frame.clone());
            for end in &mut ends {
                black_box(end.try_recv().unwrap());
            }
        });
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
