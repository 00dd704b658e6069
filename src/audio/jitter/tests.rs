//! Networks made of numbers, in virtual time: a publisher with a clock of its own sends speech, packets are lost and
//! overtake each other, and what is handed out is compared with what was said.

use std::f32::consts::TAU;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::opus::{Application, MAX_FRAME_PACKET, OpusEncoder, OpusSettings};
use super::*;

/// Something like speech: voiced syllables of changing pitch, pauses between phrases, a little noise under all of it.
fn speech(seconds: usize) -> Vec<i16> {
    let mut random = fastrand::Rng::with_seed(9);
    let (mut phase, mut sound) = (0.0_f32, Vec::with_capacity(seconds * 48_000));
    let mut syllable = 0;
    while sound.len() < seconds * 48_000 {
        syllable += 1;
        let pause = if syllable % 7 == 0 { 28_800 } else { 1_920 };
        let length = 6_000 + random.usize(0..6_000);
        let (pitch, formant) = (90.0 + 110.0 * random.f32(), 400.0 + 500.0 * random.f32());
        for n in 0..length + pause {
            let share = n as f32 / length as f32;
            let rise = (share.min(1.0) * TAU / 2.0).sin().max(0.0).sqrt();
            phase = (phase + pitch * (1.0 + 0.2 * share) / 48_000.0).fract();
            // A pulse that rings at the formant, once a period.
            let since = phase / pitch;
            let ring = (TAU * formant * since).sin() * (-since * 250.0).exp();
            let noise = (random.f32() - 0.5) * 40.0;
            sound.push((ring * rise * 12_000.0 + noise) as i16);
        }
    }
    sound.truncate(seconds * 48_000);
    sound
}

fn encoded(sound: &[i16]) -> Vec<Payload> {
    let settings = OpusSettings {
        application: Application::Voip,
        complexity: 0,
        fec_loss_percent: Some(10),
        ..OpusSettings::SPEECH
    };
    let mut encoder = OpusEncoder::new(Layout::mono(SampleRate::HZ_48000), settings).unwrap();
    let mut packet = [0; MAX_FRAME_PACKET];
    sound
        .chunks_exact(FRAME)
        .map(|frame| {
            let length = encoder.encode(frame, &mut packet).unwrap();
            Payload::Opus(Arc::from(&packet[..length]))
        })
        .collect()
}

/// As a publisher in this process sends it.
fn samples(sound: &[i16]) -> Vec<Payload> {
    let frames = sound.as_chunks::<FRAME>().0.iter();
    frames
        .map(|frame| Payload::Pcm(Samples::new(frame).unwrap()))
        .collect()
}

fn decoded(packets: &[Payload]) -> Vec<i16> {
    let mut decoder = Decoder::new(&packets[0], Bandwidth::Fullband).unwrap();
    let mut sound = Vec::new();
    for packet in packets {
        decoder.decode(packet, &mut sound).unwrap();
    }
    sound
}

/// What happens to packets on their way.
#[derive(Clone, Copy)]
struct Network {
    loss: f64,
    /// Packets that are lost one after the other, on average.
    burst: f64,
    /// Each packet is late by up to this, on its own.
    jitter_ms: f64,
    /// How much faster the publisher's clock is than ours.
    drift_ppm: f64,
    seed: u64,
}

const PERFECT: Network = Network {
    loss: 0.0,
    burst: 1.0,
    jitter_ms: 0.0,
    drift_ppm: 0.0,
    seed: 1,
};
const FIRST_NUMBER: u64 = 65_500;
const FIRST_TIMESTAMP: u32 = u32::MAX - 100_000;

impl Network {
    /// When so many packets of 20 ms arrive, in milliseconds, in order of arrival. The lost ones are left out.
    fn arrivals(self, packets: usize) -> Vec<(f64, usize)> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        // Two states (Gilbert): what follows a lost packet is more likely to be lost, too.
        let (mut lost, stays) = (false, 1.0 - 1.0 / self.burst);
        let mut arrivals: Vec<_> = (0..packets)
            .filter_map(|n| {
                let sent = n as f64 * 20.0 / (1.0 + self.drift_ppm / 1e6);
                let arrives = sent + 40.0 + random.f64() * self.jitter_ms;
                let begins = self.loss * (1.0 - stays) / (1.0 - self.loss);
                lost = random.f64() < if lost { stays } else { begins };
                (!lost).then_some((arrives, n))
            })
            .collect();
        arrivals.sort_by(|left, right| left.0.total_cmp(&right.0));
        arrivals
    }
}

struct Call {
    start: Instant,
    buffer: JitterBuffer,
    arrivals: std::iter::Peekable<std::vec::IntoIter<(f64, usize)>>,
    pulls: u32,
}

/// One frame as it was handed out.
struct Pulled {
    heard: Heard,
    frame: [i16; FRAME],
    /// Where in the publisher's sound it is from, if it is.
    from: Option<usize>,
    depth_ms: f64,
}

impl Call {
    fn new(arrivals: Vec<(f64, usize)>) -> Self {
        Self {
            start: Instant::now(),
            buffer: JitterBuffer::new(Bandwidth::Fullband),
            arrivals: arrivals.into_iter().peekable(),
            pulls: 0,
        }
    }

    fn at(&self, ms: f64) -> Instant {
        self.start + Duration::from_secs_f64(ms / 1e3)
    }

    /// 20 ms pass.
    fn pull(&mut self, payload: impl Fn(usize) -> (u32, Payload)) -> Pulled {
        let mut frame = [1; FRAME];
        let heard = self.take(&mut frame, payload);
        let end = self.buffer.next.map(|next| {
            next.timestamp - i64::from(FIRST_TIMESTAMP) - self.buffer.ready.len() as i64
        });
        Pulled {
            heard,
            frame,
            from: end.and_then(|end| usize::try_from(end - FRAME as i64).ok()),
            depth_ms: self.buffer.stats().depth.as_secs_f64() * 1e3,
        }
    }

    fn take(&mut self, frame: &mut [i16], payload: impl Fn(usize) -> (u32, Payload)) -> Heard {
        let now = f64::from(self.pulls) * 20.0 + 7.0;
        self.pulls += 1;
        while let Some((at, n)) = self.arrivals.next_if(|(at, _)| *at <= now) {
            let (timestamp, payload) = payload(n);
            self.buffer.push(Arrived {
                sequence: FIRST_NUMBER + n as u64,
                timestamp: FIRST_TIMESTAMP.wrapping_add(timestamp),
                payload,
                at: self.at(at),
                level: None,
            });
        }
        let heard = self.buffer.pull(self.at(now), frame);
        assert!(self.buffer.ready_ticks() < 7 * FRAME);
        heard
    }

    fn pull_20_ms_of(&mut self, packets: &[Payload]) -> Pulled {
        self.pull(|n| ((n * FRAME) as u32, packets[n % packets.len()].clone()))
    }
}

fn energy(sound: impl IntoIterator<Item = f64>) -> f64 {
    sound.into_iter().map(|sample| sample * sample).sum::<f64>()
}

/// Decibels, of the voice over the difference.
fn likeness(heard: &[i16], said: &[i16]) -> f64 {
    let voice = energy(said.iter().map(|&s| f64::from(s)));
    let pairs = heard.iter().zip(said);
    let difference = energy(pairs.map(|(&h, &s)| f64::from(h) - f64::from(s)));
    (10.0 * ((voice + 1.0) / (difference + 1.0)).log10()).clamp(-10.0, 40.0)
}

fn is_loud(sound: &[i16]) -> bool {
    root_mean_square(sound) > 1_000.0
}

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * percent / 100]
}

#[test]
fn over_a_perfect_network_every_sample_is_handed_out_as_it_was_sent_20_ms_after_it_came() {
    let sound = speech(10);
    for packets in [encoded(&sound), samples(&sound)] {
        as_it_was_sent(&packets);
    }
}

fn as_it_was_sent(packets: &[Payload]) {
    let said = decoded(packets);
    let mut call = Call::new(PERFECT.arrivals(packets.len()));
    let mut heard = 0;
    for _ in 0..packets.len() + 2 {
        let pulled = call.pull_20_ms_of(packets);
        // The first packet rises out of silence.
        if let Some(from) = pulled.from.filter(|from| *from >= RISE)
            && let Some(said) = said.get(from..from + FRAME)
        {
            assert_eq!(pulled.heard, Heard::Voice);
            assert!((15.0..=40.0).contains(&pulled.depth_ms));
            assert!(pulled.frame == *said);
            heard += 1;
        }
    }
    assert!(heard >= packets.len() - 2);
    let stats = call.buffer.stats();
    assert_eq!((stats.lost, stats.late, stats.recovered), (0, 0, 0));
    assert_eq!((stats.shortened, stats.lengthened), (0, 0));
    assert_eq!(stats.concealed, Duration::ZERO);
}

#[test]
fn loss_and_jitter_leave_no_hole_and_cost_little_delay() {
    let packets = encoded(&speech(60));
    let said = decoded(&packets);
    for (jitter_ms, burst, seed) in [
        (30.0, 1.0, 1),
        (30.0, 1.0, 2),
        (30.0, 1.0, 3),
        (60.0, 1.0, 1),
        (30.0, 2.5, 1),
        (30.0, 2.5, 2),
    ] {
        let network = Network {
            loss: 0.05,
            burst,
            jitter_ms,
            seed,
            ..PERFECT
        };
        let arrivals = network.arrivals(packets.len());
        let mut numbers: Vec<_> = arrivals.iter().map(|(_, n)| *n).collect();
        numbers.sort_unstable();
        let longest_loss = numbers.windows(2).map(|pair| pair[1] - pair[0] - 1).max();
        let mut call = Call::new(arrivals);
        let (mut depths, mut alike, mut holes) = (Vec::new(), Vec::new(), 0);
        let mut kinds = [0_u32; 4];
        let (mut pause, mut longest_pause) = (0, 0);
        for _ in 0..packets.len() {
            let pulled = call.pull_20_ms_of(&packets);
            kinds[pulled.heard as usize] += 1;
            let Some(said) = pulled.from.and_then(|from| said.get(from..from + FRAME)) else {
                continue;
            };
            depths.push(pulled.depth_ms);
            if is_loud(said) {
                alike.push(likeness(&pulled.frame, said));
                let silent = pulled
                    .frame
                    .chunks(240)
                    .all(|part| part.iter().all(|s| s.abs() < 50));
                pause = if silent { pause + 1 } else { 0 };
                longest_pause = longest_pause.max(pause);
                holes += u32::from(silent);
            }
        }
        let stats = call.buffer.stats();
        let share = |count: u64| 100.0 * count as f64 / packets.len() as f64;
        println!(
            "{jitter_ms} ms, bursts of {burst}, seed {seed}: lost {:.1} %, late {:.2} %, recovered {:.1} %, concealed {:.2} % of the time, shortened {}, \
             lengthened {}, depth p50 {:.0} p99 {:.0} ms, target {:?}, likeness p1 {:.0} p5 {:.0} p50 {:.0} mean {:.1} dB, \
             frames silent/voice/recovered/concealed {kinds:?}, holes {holes}",
            share(stats.lost),
            share(stats.late),
            share(stats.recovered),
            100.0 * stats.concealed.as_secs_f64() / 60.0,
            stats.shortened,
            stats.lengthened,
            percentile(&mut depths, 50),
            percentile(&mut depths, 99),
            stats.target,
            percentile(&mut alike, 1),
            percentile(&mut alike, 5),
            percentile(&mut alike, 50),
            alike.iter().sum::<f64>() / alike.len() as f64,
        );
        // What is lost for longer than 100 ms has faded.
        assert!(longest_pause <= longest_loss.unwrap_or(0).saturating_sub(4));
        assert!(share(stats.late) < 1.5);
        // Of a burst only the last can be recovered, and only where the next one carries it, as most of speech does.
        let recoverable = if burst > 1.0 { 0.4 / burst } else { 0.6 };
        assert!(share(stats.recovered) > recoverable * share(stats.lost));
        assert!(percentile(&mut depths, 50) < jitter_ms + 50.0);
        assert!(percentile(&mut depths, 99) < jitter_ms + 65.0);
    }
}

/// What has no redundancy is concealed where it is lost, and goes on with no break.
#[test]
fn samples_that_are_lost_are_concealed() {
    let tone: Vec<i16> = (0..20 * 48_000)
        .map(|n| ((n as f32 * 200.0 / 48_000.0).fract() * TAU).sin() * 10_000.0)
        .map(|sample| sample as i16)
        .collect();
    let packets = samples(&tone);
    let network = Network {
        loss: 0.05,
        ..PERFECT
    };
    let arrivals = network.arrivals(packets.len());
    let lost = packets.len() - arrivals.len();
    assert!(lost > 20);
    let mut call = Call::new(arrivals);
    let mut frames = Vec::new();
    for _ in 0..packets.len() - 10 {
        let pulled = call.pull_20_ms_of(&packets);
        assert!(frames.len() < 5 || is_loud(&pulled.frame));
        frames.push(pulled.frame);
    }
    let stats = call.buffer.stats();
    assert!(stats.lost + 3 > lost as u64 && stats.recovered == 0);
    assert!(stats.concealed.as_millis() as u64 >= 20 * (stats.lost - 3));
    // Its own steepest step is 262.
    assert_eq!(clicks(&frames[5..], 700), 0);
}

/// A publisher that encodes from now on, for somebody who has joined, or no longer.
#[test]
fn samples_and_packets_of_one_track_follow_each_other_without_a_click() {
    let tone: Vec<i16> = (0..20 * 48_000)
        .map(|n| ((n as f32 * 300.0 / 48_000.0).fract() * TAU).sin() * 10_000.0)
        .map(|sample| sample as i16)
        .collect();
    let (opus, pcm) = (encoded(&tone), samples(&tone));
    let mut call = Call::new(PERFECT.arrivals(opus.len()));
    let mut frames = Vec::new();
    for _ in 0..opus.len() - 10 {
        let of = |n: usize| {
            if (n / 50).is_multiple_of(2) {
                &pcm[n]
            } else {
                &opus[n]
            }
        };
        let pulled = call.pull(|n| ((n * FRAME) as u32, of(n).clone()));
        frames.push(pulled.frame);
    }
    let stats = call.buffer.stats();
    assert_eq!(
        (stats.lost, stats.late, stats.concealed),
        (0, 0, Duration::ZERO)
    );
    assert_eq!(clicks(&frames[5..], 700), 0);
}

const TONE_HZ: f32 = 300.0;

/// A tone as publishers of each bandwidth send it, and encoded.
fn tones(seconds: usize) -> Vec<(&'static str, Vec<Payload>)> {
    let tone = |bandwidth: Bandwidth| -> Vec<i16> {
        let rate = bandwidth.rate().hz() as usize;
        let phase = |n: usize| (n as f32 * TONE_HZ / rate as f32).fract() * TAU;
        let samples = (0..seconds * rate).map(phase);
        samples
            .map(|phase| (phase.sin() * 10_000.0) as i16)
            .collect()
    };
    let sent = |bandwidth: Bandwidth| {
        let sound = tone(bandwidth);
        let frames = sound.chunks_exact(bandwidth.frame());
        frames
            .map(|frame| Payload::Pcm(Samples::new(frame).unwrap()))
            .collect()
    };
    let [narrow, wide, superwide, full] = Bandwidth::ALL.map(sent);
    let opus = encoded(&tone(Bandwidth::Fullband));
    vec![
        ("narrow", narrow),
        ("wide", wide),
        ("superwide", superwide),
        ("full", full),
        ("opus", opus),
    ]
}

/// How much of this is the tone, in decibels over the rest.
fn clearness(sound: &[i16], rate_hz: u32) -> f64 {
    let (mut sine, mut cosine, mut all) = (0.0, 0.0, 0.0);
    for (n, sample) in sound.iter().enumerate() {
        let phase = f64::from(TAU) * f64::from(TONE_HZ) * n as f64 / f64::from(rate_hz);
        let sample = f64::from(*sample);
        sine += sample * phase.sin();
        cosine += sample * phase.cos();
        all += sample * sample;
    }
    let tone = 2.0 * (sine * sine + cosine * cosine) / sound.len() as f64;
    10.0 * (tone / (all - tone).max(1.0)).log10()
}

/// Whoever listens, and in whatever form it comes: all of it is heard once and at its pitch, and what is lost leaves no hole and no
/// click.
#[test]
fn sound_of_every_bandwidth_is_heard_at_every_other() {
    for (name, packets) in &tones(10) {
        for bandwidth in Bandwidth::ALL {
            for (loss, drift_ppm) in [(0.0, 0.0), (0.05, 0.0), (0.0, -300.0), (0.0, 300.0)] {
                // What libopus makes up for what is lost is its own.
                if loss > 0.0 && *name == "opus" {
                    continue;
                }
                let network = Network {
                    loss,
                    drift_ppm,
                    ..PERFECT
                };
                let of = format!("{name} at {bandwidth:?}, {loss}, {drift_ppm}");
                let mut call = Call::new(network.arrivals(packets.len()));
                call.buffer = JitterBuffer::new(bandwidth);
                let mut sound = Vec::new();
                for _ in 0..packets.len() - 10 {
                    let mut frame = vec![1; bandwidth.frame()];
                    call.take(&mut frame, |n| ((n * FRAME) as u32, packets[n].clone()));
                    sound.extend(frame);
                }
                let sound = &sound[10 * bandwidth.frame()..];
                let rate = bandwidth.rate().hz();
                let second = sound.chunks_exact(rate as usize);
                let clear = second.map(|second| clearness(second, rate));
                // Where something is made up or cut out, its phase is another.
                let (least, most) = clear.fold((100.0, -100.0), |(least, most), clear| {
                    (clear.min(least), clear.max(most))
                });
                let is_whole = (loss, drift_ppm) == (0.0, 0.0);
                let clearness = if is_whole { least } else { most };
                assert!(is_loud(sound) && clearness > 20.0, "{of}: {clearness} dB");
                let stats = call.buffer.stats();
                if loss == 0.0 {
                    let lost = (stats.lost, stats.late, stats.concealed);
                    assert_eq!(lost, (0, 0, Duration::ZERO), "{of}");
                }
                // The steepest of the tone, and as much again for what is made up.
                let steepest = 2.7 * 10_000.0 * TAU * TONE_HZ / rate as f32;
                let steps = sound.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
                let step = f32::from(steps.max().unwrap());
                assert!(step < steepest, "{of}: {step} of {steepest}");
                assert!(sound.chunks_exact(bandwidth.frame()).all(is_loud), "{of}");
            }
        }
    }
}

/// A call whose codec changes goes on with what comes next, and later changes back.
#[test]
fn who_takes_another_bandwidth_loses_less_than_a_frame() {
    for (name, packets) in &tones(4) {
        let mut call = Call::new(PERFECT.arrivals(packets.len()));
        let mut quiet = 0;
        for n in 0..packets.len() - 10 {
            let bandwidth = Bandwidth::ALL[n / 40 % 4];
            if n % 40 == 0 {
                call.buffer.convert(bandwidth);
            }
            let mut frame = vec![1; bandwidth.frame()];
            call.take(&mut frame, |n| ((n * FRAME) as u32, packets[n].clone()));
            quiet += usize::from(n > 5 && !is_loud(&frame));
        }
        assert!(quiet <= 4, "{name}: {quiet}");
        assert_eq!(call.buffer.stats().late, 0, "{name}");
    }
}

#[test]
fn a_clock_that_drifts_is_followed_without_a_click() {
    // An hour with `VIVAVOCE_LONG`.
    let minutes = if std::env::var_os("VIVAVOCE_LONG").is_some() {
        60
    } else {
        4
    };
    let packets = encoded(&speech(60));
    for drift_ppm in [-300.0, -200.0, 200.0, 300.0] {
        let network = Network {
            drift_ppm,
            jitter_ms: 10.0,
            ..PERFECT
        };
        let mut call = Call::new(network.arrivals(minutes * 3_001));
        let (mut depths, mut kinds) = (Vec::new(), [0_u32; 4]);
        for n in 0..minutes * 3_000 - 60 {
            let pulled = call.pull_20_ms_of(&packets);
            if n > 500 {
                depths.push(pulled.depth_ms);
                kinds[pulled.heard as usize] += 1;
            }
        }
        let stats = call.buffer.stats();
        println!(
            "{drift_ppm} ppm, {minutes} min: depth p1 {:.0} p50 {:.0} p100 {:.0} ms, shortened {}, lengthened {}, \
             concealed {:?}, late {}, {kinds:?}",
            percentile(&mut depths, 1),
            percentile(&mut depths, 50),
            percentile(&mut depths, 100),
            stats.shortened,
            stats.lengthened,
            stats.concealed,
            stats.late
        );
        assert!(percentile(&mut depths, 0) > 10.0 && percentile(&mut depths, 100) < 70.0);
        assert_eq!(stats.late, 0);
        // Until the jitter is known.
        assert!(stats.concealed <= Duration::from_millis(10));
        let (corrected, other) = if drift_ppm > 0.0 {
            (stats.shortened, stats.lengthened)
        } else {
            (stats.lengthened, stats.shortened)
        };
        let owed_ms = minutes as f64 * 60.0 * drift_ppm.abs() / 1e3;
        assert!(
            corrected as f64 > owed_ms / 15.0 - 3.0 && (corrected as f64) < owed_ms / 2.0 + 4.0
        );
        assert!(other < 4);
    }
}

/// How many steps are larger than those of the tone itself.
fn clicks(frames: &[[i16; FRAME]], steepest: u16) -> usize {
    let sound = frames.as_flattened();
    let steps = sound.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
    steps.filter(|step| *step > steepest).count()
}

#[test]
fn a_tone_from_a_clock_that_drifts_has_no_click_in_it() {
    let tone: Vec<i16> = (0..30 * 48_000)
        .map(|n| ((n as f32 * 300.0 / 48_000.0).fract() * TAU).sin() * 10_000.0)
        .map(|sample| sample as i16)
        .collect();
    // Without its beginning it can be repeated.
    let (opus, pcm) = (encoded(&tone).split_off(50), samples(&tone));
    for (drift_ppm, packets) in [
        (-300.0, &opus),
        (300.0, &opus),
        (-300.0, &pcm),
        (300.0, &pcm),
    ] {
        let network = Network {
            drift_ppm,
            ..PERFECT
        };
        let length = 4 * packets.len();
        let mut call = Call::new(network.arrivals(length));
        let frames: Vec<_> = (0..length - 10)
            .map(|_| call.pull_20_ms_of(packets).frame)
            .collect();
        let stats = call.buffer.stats();
        assert!(stats.shortened + stats.lengthened > 0);
        assert_eq!(clicks(&frames[20..], 700), 0);
    }
}

#[test]
fn depth_grows_at_once_when_the_network_slows_down_and_comes_back_afterwards() {
    let packets = encoded(&speech(60));
    let mut arrivals = PERFECT.arrivals(packets.len());
    for (at, n) in &mut arrivals[500..1_000] {
        *at += (*n * 7_919 % 100) as f64;
    }
    arrivals.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut call = Call::new(arrivals);
    let depths: Vec<_> = (0..packets.len())
        .map(|_| call.pull_20_ms_of(&packets).depth_ms)
        .collect();
    assert!(depths[490] < 45.0);
    assert!(depths[550] > 95.0, "{}", depths[550]);
    assert!(depths[550..1_000].iter().all(|depth| *depth < 200.0));
    assert!(depths[2_500] < 60.0, "{}", depths[2_500]);
    let stats = call.buffer.stats();
    assert!(stats.late <= 5, "{stats:?}");
}

#[test]
fn words_that_a_stalled_network_held_back_are_all_heard() {
    let packets = encoded(&speech(10));
    let mut arrivals = PERFECT.arrivals(packets.len());
    for (at, _) in &mut arrivals[200..215] {
        *at = 4_340.0;
    }
    let mut call = Call::new(arrivals);
    for _ in 0..packets.len() {
        call.pull_20_ms_of(&packets);
    }
    let stats = call.buffer.stats();
    assert_eq!((stats.lost, stats.late, stats.overrun), (0, 0, 0));
    assert!(stats.concealed <= Duration::from_millis(120), "{stats:?}");
}

#[test]
fn where_nothing_is_sent_there_is_silence_and_no_endless_concealment() {
    let packets = encoded(&speech(10));
    // A second of talk, two of nothing; the numbers go on, the timestamps jump.
    let place = |n: usize| n + n / 50 * 100;
    let arrivals = (0..packets.len())
        .map(|n| (place(n) as f64 * 20.0 + 40.0, n))
        .collect();
    let mut call = Call::new(arrivals);
    let mut kinds = [0_u32; 4];
    for _ in 0..place(packets.len() - 1) {
        let pulled = call.pull(|n| ((place(n) * FRAME) as u32, packets[n].clone()));
        kinds[pulled.heard as usize] += 1;
        if pulled.heard == Heard::Silence {
            assert_eq!(pulled.frame, [0; FRAME]);
        }
    }
    let stats = call.buffer.stats();
    assert_eq!((stats.lost, stats.late), (0, 0));
    assert_eq!(stats.concealed, Duration::ZERO, "{stats:?} {kinds:?}");
    // 120 ms after each talk spurt.
    assert!(kinds[Heard::Concealed as usize] <= 8 * 10, "{kinds:?}");
    assert!(kinds[Heard::Voice as usize] >= 495, "{kinds:?}");
}

#[test]
fn doubles_are_heard_once_and_a_packet_after_its_time_not_at_all() {
    let packets = encoded(&speech(4));
    let mut arrivals = PERFECT.arrivals(packets.len());
    let twice = arrivals.clone();
    arrivals.extend(twice.iter().map(|(at, n)| (at + 3.0, *n)));
    arrivals.retain(|(_, n)| *n != 120);
    arrivals.push((120.0 * 20.0 + 400.0, 120));
    arrivals.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut call = Call::new(arrivals);
    for _ in 0..packets.len() + 4 {
        call.pull_20_ms_of(&packets);
    }
    let stats = call.buffer.stats();
    assert_eq!(stats.received, 200);
    assert_eq!((stats.duplicates, stats.late, stats.lost), (199, 1, 0));
}

#[test]
fn a_publisher_that_starts_anew_is_heard_again_at_once() {
    let packets = encoded(&speech(4));
    let mut call = Call::new(Vec::new());
    let (mut voices, mut frame) = (0, [0; FRAME]);
    for (n, packet) in packets.iter().enumerate() {
        let anew = n >= 100;
        let at = call.at(n as f64 * 20.0);
        call.buffer.push(Arrived {
            sequence: if anew { 9_000_000 } else { 5 } + n as u64,
            timestamp: if anew { 77 } else { 3_000_000_000 } + (n * FRAME) as u32,
            payload: packet.clone(),
            at,
            level: None,
        });
        let heard = call.buffer.pull(at + Duration::from_millis(5), &mut frame);
        voices += u32::from(heard == Heard::Voice);
    }
    let stats = call.buffer.stats();
    assert_eq!((stats.restarts, stats.lost, stats.late), (1, 0, 0));
    assert!(voices >= 195, "{voices}");
}

#[test]
fn packets_of_every_length_are_heard_without_a_gap() {
    let sound = speech(4);
    for ms_tenths in [25, 50, 100, 200, 400, 600] {
        let length = ms_tenths * 48 / 10;
        let mut encoder =
            ::opus::Encoder::new(48_000, ::opus::Channels::Stereo, ::opus::Application::Audio)
                .unwrap();
        let packets: Vec<Payload> = sound
            .chunks_exact(length)
            .map(|frame| {
                let stereo: Vec<i16> = frame.iter().flat_map(|&s| [s, s]).collect();
                Payload::Opus(encoder.encode_vec(&stereo, 1_500).unwrap().into())
            })
            .collect();
        let arrivals = (0..packets.len())
            .map(|n| (n as f64 * ms_tenths as f64 / 10.0 + 60.0, n))
            .collect();
        let mut call = Call::new(arrivals);
        let (mut voices, mut loud) = (0, 0);
        for _ in 0..200 {
            let pulled = call.pull(|n| ((n * length) as u32, packets[n].clone()));
            voices += u32::from(pulled.heard == Heard::Voice);
            loud += u32::from(is_loud(&pulled.frame));
        }
        assert!(voices >= 185, "{ms_tenths}: {voices}");
        let said = sound.chunks(FRAME).filter(|frame| is_loud(frame)).count() as u32;
        assert!(loud + 8 > said, "{ms_tenths}: {loud} of {said}");
        assert_eq!(call.buffer.stats().concealed, Duration::ZERO, "{ms_tenths}");
    }
}

#[test]
fn who_never_pulls_keeps_a_second() {
    let packets = encoded(&speech(10));
    let mut call = Call::new(Vec::new());
    for (n, packet) in packets.iter().enumerate() {
        let at = call.at(n as f64 * 20.0);
        call.buffer.push(Arrived {
            sequence: n as u64,
            timestamp: (n * FRAME) as u32,
            payload: packet.clone(),
            at,
            level: None,
        });
        assert!(call.buffer.waiting.len() <= 50);
    }
    assert_eq!(call.buffer.stats().overrun, 450);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_comes_there_are_20_ms_and_no_more_than_a_second_is_kept(
        packets in proptest::collection::vec(
            (any::<u64>(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..40), 0_u64..3_000_000, 0_usize..40),
            0..60,
        ),
        near: bool,
    ) {
        let start = Instant::now();
        let mut bandwidth = Bandwidth::Fullband;
        let mut buffer = JitterBuffer::new(bandwidth);
        for (sequence, timestamp, payload, micros, choice) in packets {
            let (sequence, timestamp) = if near { (sequence % 64, timestamp % 60_000) } else { (sequence, timestamp) };
            let at = start + Duration::from_micros(micros);
            let payload = match payload.len() % 4 {
                0 => {
                    let from = Bandwidth::ALL[payload.len() / 4 % 4];
                    Payload::Pcm(Samples::new(&vec![7; from.frame()]).unwrap())
                }
                _ => Payload::Opus(payload.into()),
            };
            buffer.push(Arrived { sequence, timestamp, payload, at, level: None });
            if let Some(other) = Bandwidth::ALL.get(choice) {
                bandwidth = *other;
                buffer.convert(bandwidth);
            }
            if choice < 20 {
                buffer.pull(at, &mut vec![0; bandwidth.frame()]);
                prop_assert!(buffer.ready_ticks() < 7 * FRAME);
            }
            prop_assert!(buffer.waiting.len() <= MOST_PACKETS);
            prop_assert!(buffer.transits.fastest().is_none() || buffer.stats().received > 0);
        }
    }
}
