//! The codecs of telephone calls, mono. `offer_answer` decides which one a call uses.

use audio_codec::g722::{G722Decoder, G722Encoder};
use audio_codec::{Decoder as _, Encoder as _};

use super::Codec;
use vivavoce_audio::g711::Law;
use vivavoce_audio::opus::{
    Application, MAX_FRAME_PACKET, OpusDecoder, OpusEncoder, OpusError, OpusSettings,
};
use vivavoce_audio::{Bandwidth, Layout, SampleRate};

/// The longest packet that is decoded, in milliseconds.
const LONGEST_MS: usize = 120;
/// Bit rate of Opus towards the phone: fullband speech with forward error correction.
const OPUS_BPS: u32 = 32_000;
/// The packet loss that forward error correction is dimensioned for.
const EXPECTED_LOSS_PERCENT: u8 = 10;

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 4] = [Self::Pcmu, Self::Pcma, Self::G722, Self::Opus];

    /// How much of the spectrum it carries.
    pub const fn bandwidth(self) -> Bandwidth {
        match self {
            Self::Pcmu | Self::Pcma => Bandwidth::Narrowband,
            Self::G722 => Bandwidth::Wideband,
            Self::Opus => Bandwidth::Fullband,
        }
    }

    /// Sample rate of the audio.
    pub const fn rate(self) -> SampleRate {
        self.bandwidth().rate()
    }

    /// Clock rate of the RTP timestamps.
    pub const fn clock_hz(self) -> u32 {
        match self {
            Self::Pcmu | Self::Pcma | Self::G722 => 8_000,
            Self::Opus => 48_000,
        }
    }

    /// Samples as timestamp units.
    pub const fn ticks(self, samples: usize) -> u32 {
        let samples = samples as u32;
        match self {
            Self::G722 => samples / 2,
            _ => samples,
        }
    }

    /// Timestamp units as samples.
    pub const fn samples(self, ticks: u32) -> usize {
        match self {
            Self::G722 => 2 * ticks as usize,
            _ => ticks as usize,
        }
    }
}

/// Decodes payloads.
pub enum Decoder {
    /// G.711.
    Law(Law),
    /// G.722.
    G722(Box<G722Decoder>),
    /// Opus.
    Opus(OpusDecoder),
}

impl Decoder {
    /// For a new stream.
    pub fn new(codec: Codec) -> Result<Self, OpusError> {
        Ok(match codec {
            Codec::Pcmu => Self::Law(Law::Mu),
            Codec::Pcma => Self::Law(Law::A),
            Codec::G722 => Self::G722(Box::default()),
            Codec::Opus => Self::Opus(OpusDecoder::new(Layout::mono(codec.rate()))?),
        })
    }

    /// Appends the decoded payload; nothing if it is longer than phones send.
    pub fn decode(&mut self, payload: &[u8], samples: &mut Vec<i16>) {
        if payload.len() > 8 * LONGEST_MS {
            return;
        }
        match self {
            Self::Law(law) => law.expand(payload, samples),
            Self::G722(decoder) => {
                let start = samples.len();
                samples.resize(start + decoder.max_decode_samples(payload.len()), 0);
                let place = samples.get_mut(start..).unwrap_or_default();
                let decoded = decoder.decode_into(payload, place).unwrap_or(0);
                samples.truncate(start + decoded);
            }
            // An invalid packet is skipped.
            Self::Opus(decoder) => drop(decoder.decode(payload, samples)),
        }
    }
}

/// Encodes payloads.
pub enum Encoder {
    /// G.711.
    Law(Law),
    /// G.722.
    G722(Box<G722Encoder>),
    /// Opus.
    Opus(Box<OpusEncoder>),
}

impl Encoder {
    /// For a new stream; `complexity` is that of Opus.
    pub fn new(codec: Codec, complexity: u8) -> Result<Self, OpusError> {
        let settings = OpusSettings {
            application: Application::Voip,
            bitrate_bps: OPUS_BPS,
            complexity,
            fec_loss_percent: Some(EXPECTED_LOSS_PERCENT),
        };
        Ok(match codec {
            Codec::Pcmu => Self::Law(Law::Mu),
            Codec::Pcma => Self::Law(Law::A),
            Codec::G722 => Self::G722(Box::default()),
            Codec::Opus => Self::Opus(Box::new(OpusEncoder::new(
                Layout::mono(codec.rate()),
                settings,
            )?)),
        })
    }

    /// Appends the payload for these samples, for Opus 20 ms. `false` if there is none.
    pub fn encode(&mut self, samples: &[i16], payload: &mut Vec<u8>) -> bool {
        let start = payload.len();
        match self {
            Self::Law(law) => law.compress(samples, payload),
            Self::G722(encoder) => {
                payload.resize(start + encoder.max_encode_bytes(samples.len()), 0);
                let place = payload.get_mut(start..).unwrap_or_default();
                let encoded = encoder.encode_into(samples, place).unwrap_or(0);
                payload.truncate(start + encoded);
            }
            Self::Opus(encoder) => {
                payload.resize(start + MAX_FRAME_PACKET, 0);
                let place = payload.get_mut(start..).unwrap_or_default();
                let encoded = encoder.encode(samples, place).unwrap_or(0);
                payload.truncate(start + encoded);
            }
        }
        payload.len() > start
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Decoder")
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encoder")
    }
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;

    use super::*;

    #[test]
    fn every_codec_gives_back_what_it_was_given() {
        for codec in Codec::ALL {
            let rate = codec.rate().hz();
            let mut encoder = Encoder::new(codec, 5).unwrap();
            let mut decoder = Decoder::new(codec).unwrap();
            let (mut payload, mut heard) = (Vec::new(), Vec::new());
            let tone = |n: u32| (8_000.0 * (TAU * 700.0 * n as f32 / rate as f32).sin()) as i16;
            let sound: Vec<i16> = (0..rate).map(tone).collect();
            for frame in sound.chunks_exact(rate as usize / 50) {
                payload.clear();
                assert!(encoder.encode(frame, &mut payload));
                decoder.decode(&payload, &mut heard);
            }
            assert_eq!(heard.len(), sound.len(), "{codec:?}");
            let late = heard.split_at(heard.len() / 2).1;
            let (mut re, mut im, mut energy) = (0.0, 0.0, 0.0);
            for (n, sample) in late.iter().enumerate() {
                let phase = TAU * 700.0 * n as f32 / rate as f32;
                re += f32::from(*sample) * phase.cos();
                im += f32::from(*sample) * phase.sin();
                energy += f32::from(*sample).powi(2);
            }
            let share = 2.0 * (re * re + im * im) / (late.len() as f32 * energy);
            assert!(share > 0.98, "{codec:?}: {share}");
        }
    }

    #[test]
    fn no_payload_is_too_strange() {
        let mut rng = fastrand::Rng::with_seed(3);
        for codec in Codec::ALL {
            let mut decoder = Decoder::new(codec).unwrap();
            for round in 0..2_000_usize {
                let payload: Vec<u8> = (0..round % 1_000).map(|_| rng.u8(..)).collect();
                let mut samples = Vec::new();
                decoder.decode(&payload, &mut samples);
                assert!(samples.len() <= LONGEST_MS * codec.rate().hz() as usize / 1_000);
            }
        }
    }
}
