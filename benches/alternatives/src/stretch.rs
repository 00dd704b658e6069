//! Time stretching of recorded speech, fed 20 ms at a time. Compared are: how long each holds sound back, how exact the
//! duration is, how far the spectrum is from that of the original at the same place, and how much of the voice's
//! periodicity is lost (echoes, roughness).

use std::num::NonZeroU16;

use realfft::RealFftPlanner;
use signalsmith_stretch::Stretch as Signalsmith;
use vivavoce_audio::SampleRate;
use vivavoce_audio::stretch::{Speed, Stretch};

use crate::sound::{correlation, level, percentile, speech, to_f32};

/// What most vendors speak at.
const HZ: u32 = 24_000;
const CHUNK: usize = HZ as usize / 50;
const SPEEDS: [f64; 6] = [0.5, 0.75, 1.25, 1.5, 2.0, 3.0];
const ENGINES: [&str; 4] = ["ours", "sonic", "wsola", "signalsmith"];

mod sonic {
    use std::ffi::{c_float, c_int, c_short};

    #[repr(C)]
    pub struct Stream {
        _private: [u8; 0],
    }

    unsafe extern "C" {
        pub fn sonicCreateStream(hz: c_int, channels: c_int) -> *mut Stream;
        pub fn sonicDestroyStream(stream: *mut Stream);
        pub fn sonicSetSpeed(stream: *mut Stream, speed: c_float);
        pub fn sonicWriteShortToStream(stream: *mut Stream, samples: *const c_short, count: c_int) -> c_int;
        pub fn sonicReadShortFromStream(stream: *mut Stream, samples: *mut c_short, most: c_int) -> c_int;
        pub fn sonicFlushStream(stream: *mut Stream) -> c_int;
    }
}

trait Engine {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>);
    fn finish(&mut self, output: &mut Vec<i16>);
    /// Samples at the beginning of the output that are not of the input.
    fn lead(&self) -> usize {
        0
    }
}

struct Ours(Stretch);

impl Engine for Ours {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        self.0.push(input, output);
    }

    fn finish(&mut self, output: &mut Vec<i16>) {
        self.0.finish(output);
    }
}

struct Sonic(*mut sonic::Stream);

impl Sonic {
    fn read(&mut self, output: &mut Vec<i16>) {
        let mut piece = [0_i16; 2_048];
        loop {
            // SAFETY: the stream lives as long as this, and the length is that of the array.
            let count = unsafe {
                sonic::sonicReadShortFromStream(self.0, piece.as_mut_ptr(), piece.len() as i32)
            };
            if count <= 0 {
                return;
            }
            output.extend(&piece[..count as usize]);
        }
    }
}

impl Engine for Sonic {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        // SAFETY: as above.
        unsafe { sonic::sonicWriteShortToStream(self.0, input.as_ptr(), input.len() as i32) };
        self.read(output);
    }

    fn finish(&mut self, output: &mut Vec<i16>) {
        // SAFETY: as above.
        unsafe { sonic::sonicFlushStream(self.0) };
        self.read(output);
    }
}

impl Drop for Sonic {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { sonic::sonicDestroyStream(self.0) };
    }
}

struct Wsola(wsola::TimeStretch);

impl Wsola {
    fn read(&mut self, output: &mut Vec<i16>) {
        let mut piece = vec![0.0; self.0.min_output_buff_size()];
        // It ends with an error: that it needs more.
        while let Ok(count) = self.0.pull(&mut piece) {
            output.extend(integers(&piece[..count]));
        }
    }
}

impl Engine for Wsola {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        self.0.push(&floats(input));
        self.read(output);
    }

    fn finish(&mut self, output: &mut Vec<i16>) {
        self.0.set_draining();
        self.read(output);
    }
}

struct Smith {
    stretch: Signalsmith,
    speed: f64,
    owed: f64,
}

impl Engine for Smith {
    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        self.owed += input.len() as f64 / self.speed;
        let mut piece = vec![0.0; self.owed as usize];
        self.owed -= piece.len() as f64;
        self.stretch.process(floats(input), &mut piece);
        output.extend(integers(&piece));
    }

    fn finish(&mut self, output: &mut Vec<i16>) {
        // What is held back of the input is moved out by silence.
        let rest = vec![0; self.stretch.input_latency()];
        self.push(&rest, output);
        let mut piece = vec![0.0; self.stretch.output_latency()];
        self.stretch.flush(&mut piece);
        output.extend(integers(&piece));
    }

    fn lead(&self) -> usize {
        self.stretch.output_latency() + (self.stretch.input_latency() as f64 / self.speed) as usize
    }
}

fn floats(samples: &[i16]) -> Vec<f32> {
    samples.iter().map(|&sample| f32::from(sample) / 32_768.0).collect()
}

fn integers(samples: &[f32]) -> impl Iterator<Item = i16> {
    samples.iter().map(|sample| (sample * 32_768.0) as i16)
}

fn engine(name: &str, speed: f64) -> Box<dyn Engine> {
    match name {
        "ours" => {
            let speed = Speed::new(speed).expect("a speed");
            Box::new(Ours(Stretch::new(SampleRate::HZ_24000, speed)))
        }
        "sonic" => {
            // SAFETY: the stream is destroyed with what it is given to.
            let stream = unsafe { sonic::sonicCreateStream(HZ as i32, 1) };
            unsafe { sonic::sonicSetSpeed(stream, speed as f32) };
            Box::new(Sonic(stream))
        }
        "wsola" => {
            let (hz, mono) = (HZ.try_into().expect("a rate"), NonZeroU16::MIN);
            let mut stretch = wsola::TimeStretch::new(hz, mono).expect("a stretcher");
            stretch.set_tempo(speed as f32);
            Box::new(Wsola(stretch))
        }
        _ => Box::new(Smith {
            stretch: Signalsmith::preset_default(1, HZ),
            speed,
            owed: 0.0,
        }),
    }
}

/// What comes out, and the most that was held back, in milliseconds of input.
#[inline(never)]
fn counted_stretch(engine: &mut dyn Engine, speed: f64, input: &[i16]) -> (Vec<i16>, f64) {
    let (mut output, mut taken, mut held) = (Vec::new(), 0, 0.0_f64);
    let lead = engine.lead();
    for chunk in input.chunks(CHUNK) {
        engine.push(chunk, &mut output);
        taken += chunk.len();
        let given = output.len().saturating_sub(lead) as f64 * speed;
        held = held.max(taken as f64 - given);
    }
    engine.finish(&mut output);
    output.drain(..lead.min(output.len()));
    (output, held * 1_000.0 / f64::from(HZ))
}

/// The logarithms of the energy in bands that become wider upwards, as the ear's do.
struct Bands {
    plan: std::sync::Arc<dyn realfft::RealToComplex<f32>>,
    window: Vec<f32>,
    edges: Vec<usize>,
}

const FRAME: usize = 768;

impl Bands {
    fn new() -> Self {
        let mel = |hz: f32| 1_127.0 * (1.0 + hz / 700.0).ln();
        let hz = |mel: f32| 700.0 * ((mel / 1_127.0).exp() - 1.0);
        let (low, high) = (mel(80.0), mel(8_000.0));
        let edges = (0..=24).map(|band| {
            let hz = hz(low + (high - low) * band as f32 / 24.0);
            (hz * FRAME as f32 / HZ as f32).round() as usize
        });
        let window = (0..FRAME).map(|n| {
            0.5 - 0.5 * (std::f32::consts::TAU * (n as f32 + 0.5) / FRAME as f32).cos()
        });
        Self {
            plan: RealFftPlanner::new().plan_fft_forward(FRAME),
            window: window.collect(),
            edges: edges.collect(),
        }
    }

    fn of(&self, frame: &[f32]) -> Vec<f32> {
        let mut input: Vec<f32> = frame.iter().zip(&self.window).map(|(s, w)| s * w).collect();
        let mut spectrum = self.plan.make_output_vec();
        self.plan.process(&mut input, &mut spectrum).expect("a spectrum");
        let bands = self.edges.windows(2).map(|edges| {
            let bins = &spectrum[edges[0]..edges[1].max(edges[0] + 1)];
            let energy: f32 = bins.iter().map(|bin| bin.norm_sqr()).sum();
            10.0 * (energy / bins.len() as f32 + 1e4).log10()
        });
        bands.collect()
    }
}

/// The best correlation of a stretch with itself a period of a voice (60–400 Hz) later.
fn periodicity(sound: &[f32]) -> f32 {
    let (shortest, longest) = (HZ as usize / 400, HZ as usize / 60);
    let length = sound.len() - longest;
    let lags = (shortest..longest).step_by(2);
    lags.map(|lag| correlation(&sound[..length], &sound[lag..lag + length]))
        .fold(0.0, f32::max)
}

struct Quality {
    /// Mean distance of the spectra in decibels, and the 95th percentile.
    distance: f32,
    far: f32,
    /// How much less periodic voiced sound is than in the original.
    roughness: f32,
}

fn quality(bands: &Bands, input: &[f32], output: &[f32], speed: f64) -> Quality {
    let step = HZ as usize / 200;
    let reach = 4_isize;
    let of_input: Vec<Vec<f32>> =
        (0..(input.len() - FRAME) / step).map(|n| bands.of(&input[n * step..][..FRAME])).collect();
    let (mut distances, mut lost) = (Vec::new(), Vec::new());
    let mut at = 0;
    let long = FRAME + HZ as usize / 60;
    while at + long < output.len() {
        let middle = (at + FRAME / 2) as f64 * speed - FRAME as f64 / 2.0;
        let nearest = (middle / step as f64).round() as isize;
        let from = middle.max(0.0) as usize;
        if from + long < input.len() && level(&input[from..from + FRAME]) > 600.0 {
            let here = bands.of(&output[at..][..FRAME]);
            let places = (nearest - reach..=nearest + reach)
                .filter_map(|place| of_input.get(usize::try_from(place).ok()?));
            let distance = |there: &Vec<f32>| {
                let apart = there.iter().zip(&here).map(|(a, b)| (a - b).abs());
                apart.sum::<f32>() / here.len() as f32
            };
            distances.push(places.map(distance).fold(f32::MAX, f32::min));
            let was = periodicity(&input[from..from + long]);
            if was > 0.8 {
                lost.push(was - periodicity(&output[at..at + long]));
            }
        }
        at += HZ as usize / 100;
    }
    let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
    Quality {
        distance: mean(&distances),
        roughness: mean(&lost),
        far: percentile(&mut distances, 95),
    }
}

pub fn compare(files: &[&str]) {
    let input = speech(files, HZ);
    let (bands, original) = (Bands::new(), to_f32(&input));
    println!("| speed | engine | held ms | duration off by ms | spectrum off by dB, mean / p95 | periodicity lost |");
    println!("|--:|---|--:|--:|--:|--:|");
    for speed in SPEEDS {
        for name in ENGINES {
            let mut engine = engine(name, speed);
            let (output, held) = counted_stretch(engine.as_mut(), speed, &input);
            let off = output.len() as f64 - input.len() as f64 / speed;
            let Quality { distance, far, roughness } =
                quality(&bands, &original, &to_f32(&output), speed);
            println!(
                "| {speed} | {name} | {held:.0} | {:+.0} | {distance:.2} / {far:.2} | {roughness:.3} |",
                off * 1_000.0 / f64::from(HZ)
            );
        }
    }
}

/// At 1.25 times the speed, for an instruction counter; tells how many seconds it was.
pub fn count(name: &str, files: &[&str]) {
    let input = speech(files, HZ);
    counted_stretch(engine(name, 1.25).as_mut(), 1.25, &input);
    println!("{}", input.len() as f64 / f64::from(HZ));
}
