//! The candidates: how likely 16 ms of sound at 16 kHz are speech.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nnnoiseless::DenoiseState;
use webrtc_vad::{SampleRate as Rate, Vad as WebRtc, VadMode};

use vivavoce_audio::denoise::Denoiser;
use vivavoce_audio::vad::{Score, VadSettings, network, sparing};
use vivavoce_audio::{Layout, Resampler, SampleRate};

/// One of them.
pub struct Candidate {
    pub name: &'static str,
    pub score: fn() -> Score,
}

pub const CANDIDATES: [Candidate; 5] = [
    Candidate {
        name: "earshot behind a gate (ours)",
        score: || gated().0,
    },
    Candidate {
        name: "WebRTC, mode 3",
        score: webrtc,
    },
    Candidate {
        name: "RNNoise's own",
        score: rnnoise,
    },
    Candidate {
        name: "energy over the noise floor",
        score: energy,
    },
    Candidate {
        name: "earshot, asked about every frame",
        score: network,
    },
];
/// The place of the network without the gate.
pub const UNGATED: usize = 4;

pub fn denoised(sound: &[i16]) -> Vec<i16> {
    let mut denoiser = Denoiser::new(SampleRate::HZ_16000);
    let mut output = Vec::with_capacity(sound.len());
    denoiser.push(sound, &mut output);
    denoiser.finish(&mut output);
    output
}

/// The network with what it computes itself.
pub fn earshot() -> Score {
    let mut detector = earshot::Detector::default_boxed();
    Box::new(move |frame| detector.predict_i16(frame))
}

/// What sessions use, and how often its network has been asked.
pub fn gated() -> (Score, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let mut network = network();
    let counted = move |frame: &[i16]| {
        count.fetch_add(1, Ordering::Relaxed);
        network(frame)
    };
    (sparing(Box::new(counted), VadSettings::default()), asked)
}

thread_local! {
    static WEBRTC: RefCell<WebRtc> = RefCell::new(WebRtc::new_with_rate(Rate::Rate16kHz));
}

/// It decides frames of 10 ms: the share of those that end within ours.
fn webrtc() -> Score {
    WEBRTC.with_borrow_mut(|vad| {
        *vad = WebRtc::new_with_rate_and_mode(Rate::Rate16kHz, VadMode::VeryAggressive);
    });
    let mut held = Vec::new();
    let mut last = 0.0;
    Box::new(move |frame| {
        held.extend_from_slice(frame);
        let mut said = Vec::new();
        while held.len() >= 160 {
            let rest = held.split_off(160);
            let speech = WEBRTC.with_borrow_mut(|vad| vad.is_voice_segment(&held));
            said.push(f32::from(u8::from(speech.unwrap_or(false))));
            held = rest;
        }
        if !said.is_empty() {
            last = said.iter().sum::<f32>() / said.len() as f32;
        }
        last
    })
}

/// The probability that the denoiser's network gives beside the bands.
fn rnnoise() -> Score {
    let mut network = DenoiseState::new();
    let mut raise = Resampler::new(Layout::mono(SampleRate::HZ_16000), SampleRate::HZ_48000);
    let mut held = Vec::new();
    let mut last = 0.0;
    Box::new(move |frame| {
        raise.push(frame, &mut held);
        while held.len() >= DenoiseState::FRAME_SIZE {
            let rest = held.split_off(DenoiseState::FRAME_SIZE);
            let input: Vec<f32> = held.iter().map(|&sample| f32::from(sample)).collect();
            last = network.process_frame(&mut [0.0; DenoiseState::FRAME_SIZE], &input);
            held = rest;
        }
        last
    })
}

/// Half at 6 dB over the faintest of the last second and a half, and more the louder.
fn energy() -> Score {
    let mut recent = std::collections::VecDeque::new();
    Box::new(move |frame| {
        let sum: f64 = frame.iter().map(|&sample| f64::from(sample).powi(2)).sum();
        let decibels = 10.0 * (sum / frame.len() as f64 + 1.0).log10();
        recent.push_back(decibels);
        if recent.len() > 94 {
            recent.pop_front();
        }
        let floor = recent.iter().copied().fold(f64::MAX, f64::min);
        (1.0 / (1.0 + (-(decibels - floor - 6.0) / 2.0).exp())) as f32
    })
}
