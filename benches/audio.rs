//! What our handling of sound costs, per 20 ms of mono sound unless the name says otherwise. One function per topic;
//! how the resampler compares with others is the business of `benches/resamplers`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use vivavoce::audio::jitter::{Arrived, FRAME, Payload};
use vivavoce::audio::mix::{FADE, Fader, Gain, Mixer};
use vivavoce::audio::opus::{MAX_FRAME_PACKET, OpusEncoder, OpusSettings};
use vivavoce::audio::stretch::{Speed, Stretch};
use vivavoce::audio::track_receiver::{PacketSource, TrackReceiver};
use vivavoce::audio::{Bandwidth, Channels, Layout, Pcm, Resampler, SampleRate};

criterion_group!(benches, resampler, channels, mixer, stretch, room);
criterion_main!(benches);

/// 20 ms at `hz` of something that is neither silence nor clipped: a buzz at 125 Hz with noise on it.
fn chunk(hz: u32) -> Vec<i16> {
    let mut seed = 1_u32;
    let sample = |n: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let phase = n * 125 % hz;
        (phase * 20_000 / hz) as i16 - 10_000 + ((seed >> 16) as i16) / 16
    };
    (0..hz / 50).map(sample).collect()
}

fn rate(hz: u32) -> SampleRate {
    SampleRate::new(hz).expect("a rate within the range")
}

fn resampler(c: &mut Criterion) {
    let mut group = c.benchmark_group("resampler");
    let pairs = [
        (8_000, 16_000),
        (8_000, 48_000),
        (16_000, 48_000),
        (22_050, 48_000),
        (24_000, 48_000),
        (44_100, 48_000),
        (48_000, 8_000),
        (48_000, 16_000),
        (48_000, 24_000),
        (48_000, 44_100),
        // Too many positions for a row of taps each.
        (12_345, 48_000),
    ];
    for (from, to) in pairs {
        for channels in [Channels::Mono, Channels::Stereo] {
            let input = Pcm::new(Layout::mono(rate(from)), chunk(from)).into_channels(channels);
            let mut resampler = Resampler::new(input.layout(), rate(to));
            let mut output = Vec::new();
            let name = BenchmarkId::new(format!("{channels:?}"), format!("{from}-{to}"));
            group.bench_function(name, |b| {
                b.iter(|| {
                    output.clear();
                    resampler.push(black_box(input.samples()), &mut output);
                });
            });
        }
    }
    group.finish();
}

fn channels(c: &mut Criterion) {
    let mono = Pcm::new(Layout::mono(rate(48_000)), chunk(48_000));
    let stereo = mono.clone().into_stereo();
    c.bench_function("channels/mono to stereo", |b| {
        b.iter_batched(|| mono.clone(), Pcm::into_stereo, BatchSize::SmallInput);
    });
    c.bench_function("channels/stereo to mono", |b| {
        b.iter_batched(|| stereo.clone(), Pcm::into_mono, BatchSize::SmallInput);
    });
}

fn mixer(c: &mut Criterion) {
    let input = chunk(48_000);
    let mut mixer = Mixer::default();
    let mut output = Vec::new();
    let mut steady = Fader::new(Gain::new(0.7));
    c.bench_function("mixer/4 sources at 48000", |b| {
        b.iter(|| {
            output.clear();
            mixer.begin(input.len());
            for _ in 0..4 {
                mixer.add(black_box(&input), &mut steady);
            }
            mixer.finish(&mut output);
        });
    });
    c.bench_function("mixer/fade at 48000", |b| {
        b.iter(|| {
            let mut fader = Fader::new(Gain::SILENCE);
            fader.fade_to(Gain::UNITY, rate(48_000), FADE);
            output.clear();
            output.extend_from_slice(black_box(&input));
            fader.apply(&mut output);
        });
    });
}

fn stretch(c: &mut Criterion) {
    let mut group = c.benchmark_group("stretch");
    for hz in [8_000, 24_000, 48_000] {
        for factor in [0.25, 0.8, 1.5, 4.0] {
            let speed = Speed::new(factor).expect("a speed within the range");
            let mut stretch = Stretch::new(rate(hz), speed);
            let (input, mut output) = (chunk(hz), Vec::new());
            group.bench_function(format!("{hz} x{factor}"), |b| {
                b.iter(|| {
                    output.clear();
                    stretch.push(black_box(&input), &mut output);
                });
            });
        }
    }
    group.finish();
}

#[derive(Default)]
struct Wire(Rc<RefCell<VecDeque<Arrived>>>);

impl PacketSource for Wire {
    fn next_packet(&mut self) -> Option<Arrived> {
        self.0.borrow_mut().pop_front()
    }
}

/// What one listener costs in a room in which everybody speaks.
fn room(c: &mut Criterion) {
    let mut encoder = OpusEncoder::new(Layout::mono(rate(48_000)), OpusSettings::SPEECH)
        .expect("a rate that Opus has");
    let mut packet = [0; MAX_FRAME_PACKET];
    let sound = chunk(48_000);
    let packets: Vec<Arc<[u8]>> = (0..50)
        .map(|_| {
            let length = encoder
                .encode(&sound, &mut packet)
                .expect("a frame of 20 ms");
            packet.iter().take(length).copied().collect()
        })
        .collect();
    for (tracks, bandwidth) in [
        (1, Bandwidth::Fullband),
        (1, Bandwidth::Wideband),
        (1, Bandwidth::Narrowband),
        (6, Bandwidth::Fullband),
        (30, Bandwidth::Fullband),
        (64, Bandwidth::Fullband),
    ] {
        let mut receiver = TrackReceiver::new(bandwidth);
        let mut wires = Vec::new();
        for number in 0..tracks {
            let wire = Wire::default();
            wires.push(Rc::clone(&wire.0));
            let (identity, sid) = (format!("speaker {number}"), format!("TR_{number}"));
            let added = receiver.add(identity, sid, wire);
            assert!(added, "a track is left out");
        }
        let mut mixed = vec![0; bandwidth.frame()];
        let (mut at, mut sequence) = (Instant::now(), 0_u64);
        c.bench_function(&format!("room/{tracks} who speak, {bandwidth:?}"), |b| {
            b.iter(|| {
                let payload = &packets[sequence as usize % packets.len()];
                for wire in &wires {
                    wire.borrow_mut().push_back(Arrived {
                        sequence,
                        timestamp: sequence as u32 * FRAME as u32,
                        payload: Payload::Opus(Arc::clone(payload)),
                        at,
                        level: Some(20),
                    });
                }
                receiver.next(at, |_| false, |_, _| {}, &mut mixed);
                sequence += 1;
                at += Duration::from_millis(20);
                black_box(&mixed);
            });
        });
    }
}
