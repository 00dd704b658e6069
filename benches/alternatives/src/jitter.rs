//! Jitter buffers in virtual time. Speech is sent as Opus packets of 20 ms over networks that lose and delay them; what is
//! played is compared with what was said: each 200 ms of speech is looked for in the output, and where it is most alike is
//! when it was heard.

use std::sync::Arc;
use std::time::{Duration, Instant};

use neteq::codec::AudioDecoder;
use neteq::{AudioPacket, NetEq, NetEqConfig, RtpHeader};
use vivavoce_audio::jitter::{Arrived, FRAME, Heard, JitterBuffer, Payload};
use vivavoce_audio::opus::{
    Application, MAX_FRAME_PACKET, OpusDecoder, OpusEncoder, OpusSettings,
};
use vivavoce_audio::{Layout, SampleRate};

use crate::sound::{at_rate, correlation, level, percentile, speech, to_f32};

const HZ: u32 = 48_000;
/// The rate at which sound is compared.
const COMPARED_HZ: u32 = 8_000;
const PACKET: Duration = Duration::from_millis(20);
const TICK: Duration = Duration::from_millis(10);
/// When the first frame is asked for: not when a packet is sent.
const PHASE: Duration = Duration::from_millis(7);
/// The latest that something is looked for, in milliseconds.
const LATEST_MS: usize = 700;

trait Engine {
    /// A packet arrives.
    fn push(&mut self, number: usize, packet: &Arc<[u8]>, at: Duration);
    /// Every 10 ms.
    fn pull(&mut self, now: Duration, output: &mut Vec<i16>);
    /// How much was made up.
    fn concealed(&self) -> Duration;
}

struct Ours {
    buffer: JitterBuffer,
    start: Instant,
    ticks: u64,
    concealed: Duration,
}

impl Engine for Ours {
    fn push(&mut self, number: usize, packet: &Arc<[u8]>, at: Duration) {
        self.buffer.push(Arrived {
            sequence: number as u64,
            timestamp: (number * FRAME) as u32,
            payload: Payload::Opus(Arc::clone(packet)),
            at: self.start + at,
            level: None,
        });
    }

    fn pull(&mut self, now: Duration, output: &mut Vec<i16>) {
        self.ticks += 1;
        if self.ticks % 2 == 1 {
            let mut frame = [0; FRAME];
            let heard = self.buffer.pull(self.start + now, &mut frame);
            if heard == Heard::Concealed {
                self.concealed += PACKET;
            }
            output.extend(frame);
        }
    }

    fn concealed(&self) -> Duration {
        self.concealed
    }
}

struct NetEqs {
    neteq: NetEq,
}

/// The decoder that ours has as well.
struct Decoder(OpusDecoder);

impl AudioDecoder for Decoder {
    fn sample_rate(&self) -> u32 {
        HZ
    }

    fn channels(&self) -> u8 {
        1
    }

    fn decode(&mut self, encoded: &[u8]) -> neteq::Result<Vec<f32>> {
        let mut samples = Vec::new();
        self.0.decode(encoded, &mut samples).expect("Opus");
        Ok(samples.iter().map(|&sample| f32::from(sample) / 32_768.0).collect())
    }
}

impl Engine for NetEqs {
    fn push(&mut self, number: usize, packet: &Arc<[u8]>, at: Duration) {
        web_time::set(at);
        let header = RtpHeader::new(number as u16, (number * FRAME) as u32, 1, 111, false);
        let packet = AudioPacket::new(header, packet.to_vec(), HZ, 1, 20);
        self.neteq.insert_packet(packet).expect("neteq takes it");
    }

    fn pull(&mut self, now: Duration, output: &mut Vec<i16>) {
        web_time::set(now);
        let frame = self.neteq.get_audio().expect("neteq gives it");
        let samples = frame.samples.iter();
        output.extend(samples.map(|sample| (sample * 32_768.0) as i16));
    }

    fn concealed(&self) -> Duration {
        let stats = self.neteq.get_statistics();
        Duration::from_secs_f64(stats.lifetime.concealed_samples as f64 / f64::from(HZ))
    }
}

const ENGINES: [&str; 2] = ["ours", "neteq"];

fn engine(name: &str) -> Box<dyn Engine> {
    if name == "ours" {
        return Box::new(Ours {
            buffer: JitterBuffer::new(vivavoce_audio::Bandwidth::Fullband),
            start: Instant::now(),
            ticks: 0,
            concealed: Duration::ZERO,
        });
    }
    let config = NetEqConfig {
        sample_rate: HZ,
        channels: 1,
        ..NetEqConfig::default()
    };
    let mut neteq = NetEq::new(config).expect("a NetEQ");
    let layout = Layout::mono(SampleRate::HZ_48000);
    neteq.register_decoder(111, Box::new(Decoder(OpusDecoder::new(layout).expect("a decoder"))));
    Box::new(NetEqs { neteq })
}

/// When packets arrive, in order of arrival; the lost ones are left out.
type Arrivals = Vec<(Duration, usize)>;

/// Each packet is late by up to `jitter_ms` on its own; losses come in bursts of a mean length.
fn random(packets: usize, loss: f64, burst: f64, jitter_ms: f64) -> Arrivals {
    let mut random = fastrand::Rng::with_seed(1);
    let (mut lost, stays) = (false, 1.0 - 1.0 / burst);
    let begins = loss * (1.0 - stays) / (1.0 - loss);
    let arrivals = (0..packets).filter_map(|number| {
        let late = Duration::from_secs_f64(random.f64() * jitter_ms / 1e3);
        lost = random.f64() < if lost { stays } else { begins };
        (!lost).then_some((PACKET * number as u32 + late, number))
    });
    in_order(arrivals.collect())
}

/// Every five seconds nothing arrives for 200 ms, and then all of it.
fn stalls(packets: usize) -> Arrivals {
    let arrivals = random(packets, 0.0, 1.0, 5.0).into_iter();
    let late = arrivals.map(|(at, number)| {
        let within = at.as_millis() % 5_000;
        let end = if within < 200 { 200 - within } else { 0 };
        (at + Duration::from_millis(end as u64), number)
    });
    in_order(late.collect())
}

/// As `record_trace.py` recorded it, again and again.
fn recorded(packets: usize) -> Arrivals {
    let trace: Vec<(usize, u64)> = include_str!("../busy-machine.csv")
        .lines()
        .filter_map(|line| {
            let (number, micros) = line.split_once(',')?;
            Some((number.parse().ok()?, micros.parse().ok()?))
        })
        .collect();
    let fastest = trace.iter().map(|(number, at)| *at as i64 - 20_000 * *number as i64).min();
    let fastest = fastest.unwrap_or_default();
    let arrivals = (0..packets).map(|number| {
        let (before, at) = trace[number % trace.len()];
        let late = (at as i64 - 20_000 * before as i64 - fastest) as u64;
        (PACKET * number as u32 + Duration::from_micros(late), number)
    });
    in_order(arrivals.collect())
}

fn in_order(mut arrivals: Arrivals) -> Arrivals {
    arrivals.sort_by_key(|(at, _)| *at);
    arrivals
}

fn networks(packets: usize) -> Vec<(&'static str, Arrivals)> {
    vec![
        ("perfect", random(packets, 0.0, 1.0, 0.0)),
        ("a busy machine, recorded", recorded(packets)),
        ("jitter 30 ms", random(packets, 0.0, 1.0, 30.0)),
        ("jitter 30 ms, 5 % lost", random(packets, 0.05, 1.0, 30.0)),
        ("jitter 60 ms, 5 % lost", random(packets, 0.05, 1.0, 60.0)),
        ("jitter 30 ms, 5 % lost in bursts of 2.5", random(packets, 0.05, 2.5, 30.0)),
        ("200 ms of nothing every 5 s", stalls(packets)),
    ]
}

fn encoded(sound: &[i16]) -> Vec<Arc<[u8]>> {
    let settings = OpusSettings {
        application: Application::Voip,
        complexity: 5,
        fec_loss_percent: Some(10),
        ..OpusSettings::SPEECH
    };
    let layout = Layout::mono(SampleRate::HZ_48000);
    let mut encoder = OpusEncoder::new(layout, settings).expect("an encoder");
    let mut packet = [0; MAX_FRAME_PACKET];
    let frames = sound.chunks_exact(FRAME);
    let packets = frames.map(|frame| {
        let length = encoder.encode(frame, &mut packet).expect("a packet");
        Arc::from(&packet[..length])
    });
    packets.collect()
}

fn decoded(packets: &[Arc<[u8]>]) -> Vec<i16> {
    let layout = Layout::mono(SampleRate::HZ_48000);
    let mut decoder = OpusDecoder::new(layout).expect("a decoder");
    let mut sound = Vec::new();
    for packet in packets {
        decoder.decode(packet, &mut sound).expect("sound");
    }
    sound
}

/// What is played, from [`PHASE`] on.
#[inline(never)]
fn counted_jitter(engine: &mut dyn Engine, packets: &[Arc<[u8]>], arrivals: &Arrivals) -> Vec<i16> {
    let mut output = Vec::with_capacity((packets.len() + 50) * FRAME);
    let mut arrivals = arrivals.iter().peekable();
    let ticks = (packets.len() + 40) * 2;
    for tick in 0..ticks {
        let now = PHASE + TICK * tick as u32;
        while let Some((at, number)) = arrivals.next_if(|(at, _)| *at <= now) {
            engine.push(*number, &packets[*number], *at);
        }
        engine.pull(now, &mut output);
    }
    output
}

struct Measured {
    /// Of each stretch of speech: after how long it was heard, in milliseconds, and how alike.
    delays: Vec<f32>,
    alike: Vec<f32>,
}

/// Looks for each 200 ms of what was said in what was played.
fn measure(said: &[i16], played: &[i16]) -> Measured {
    let said = to_f32(&at_rate(said, HZ, COMPARED_HZ));
    let played = to_f32(&at_rate(played, HZ, COMPARED_HZ));
    let (window, hop) = (COMPARED_HZ as usize / 5, COMPARED_HZ as usize / 10);
    let per_ms = COMPARED_HZ as usize / 1_000;
    let phase = PHASE.as_millis() as usize * per_ms;
    let mut measured = Measured {
        delays: Vec::new(),
        alike: Vec::new(),
    };
    let mut from = 0;
    while from + window + (LATEST_MS + 10) * per_ms < said.len().min(played.len() + phase) {
        let stretch = &said[from..from + window];
        if level(stretch) > 600.0 {
            let begin = from.saturating_sub(phase);
            let best = |places: &mut dyn Iterator<Item = usize>| {
                places
                    .filter(|at| at + window <= played.len())
                    .map(|at| (at, correlation(stretch, &played[at..at + window])))
                    .max_by(|a, b| a.1.total_cmp(&b.1))
            };
            // Roughly at first; a voice has little above 1.3 kHz.
            let rough = best(&mut (begin..begin + LATEST_MS * per_ms).step_by(3));
            let exact = rough.and_then(|(at, _)| best(&mut (at.saturating_sub(3)..=at + 3)));
            if let Some((at, alike)) = exact {
                let late = (at + phase) as f32 - from as f32;
                measured.delays.push(late / per_ms as f32);
                measured.alike.push(alike);
            }
        }
        from += hop;
    }
    measured
}

pub fn compare(files: &[&str]) {
    let sound = speech(files, HZ);
    let packets = encoded(&sound);
    let said = decoded(&packets);
    println!(
        "{:.0} s of speech\n\n| network | engine | heard after ms, p50 / p99 | alike, p50 / p10 / p1 | damaged | made up |",
        said.len() as f64 / f64::from(HZ)
    );
    println!("|---|---|--:|--:|--:|--:|");
    for (network, arrivals) in networks(packets.len()) {
        for name in ENGINES {
            let mut engine = engine(name);
            let played = counted_jitter(engine.as_mut(), &packets, &arrivals);
            let mut measured = measure(&said, &played);
            let total = measured.alike.len() as f32;
            let damaged = measured.alike.iter().filter(|alike| **alike < 0.8).count() as f32;
            // What is not recognised says nothing of the delay.
            let known = measured.delays.iter().zip(&measured.alike);
            let mut delays: Vec<f32> =
                known.filter(|(_, alike)| **alike >= 0.8).map(|(delay, _)| *delay).collect();
            println!(
                "| {network} | {name} | {:.0} / {:.0} | {:.3} / {:.3} / {:.3} | {:.1} % | {:.1} % |",
                percentile(&mut delays, 50),
                percentile(&mut delays, 99),
                percentile(&mut measured.alike, 50),
                percentile(&mut measured.alike, 10),
                percentile(&mut measured.alike, 1),
                100.0 * damaged / total,
                100.0 * engine.concealed().as_secs_f64() * f64::from(HZ) / said.len() as f64,
            );
        }
    }
}

/// One network, for an instruction counter; tells how many seconds it was.
pub fn count(name: &str, files: &[&str]) {
    let packets = encoded(&speech(files, HZ));
    let arrivals = random(packets.len(), 0.05, 1.0, 30.0);
    if name == "decoder" {
        counted_decoder(&packets);
    } else {
        counted_jitter(engine(name).as_mut(), &packets, &arrivals);
    }
    println!("{}", packets.len() as f64 * PACKET.as_secs_f64());
}

/// What both contain.
#[inline(never)]
fn counted_decoder(packets: &[Arc<[u8]>]) {
    decoded(packets);
}
