//! Cartesia's raw sample formats, three more than our own, converted to and from 16-bit samples.

use bytes::{Bytes, BytesMut};

use vivavoce_audio::Encoding;
use vivavoce_audio::g711::Law;
use vivavoce_audio::wav::SampleFormat;

/// How a raw sample is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raw {
    /// As one of our own.
    Ours(Encoding),
    /// 32-bit integers.
    S32,
    /// 16-bit floating point.
    F16,
    /// 32-bit floating point.
    F32,
}

impl Raw {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "pcm_s16le" => Self::Ours(Encoding::Linear16),
            "pcm_mulaw" => Self::Ours(Encoding::Mulaw),
            "pcm_alaw" => Self::Ours(Encoding::Alaw),
            "pcm_s32le" => Self::S32,
            "pcm_f16le" => Self::F16,
            "pcm_f32le" => Self::F32,
            _ => return None,
        })
    }

    /// What the engines hear and speak for it.
    pub(super) const fn ours(self) -> Encoding {
        match self {
            Self::Ours(encoding) => encoding,
            Self::S32 | Self::F16 | Self::F32 => Encoding::Linear16,
        }
    }

    /// Bytes of a sample.
    pub(super) const fn width(self) -> usize {
        match self {
            Self::Ours(Encoding::Mulaw | Encoding::Alaw) => 1,
            Self::Ours(_) | Self::F16 => 2,
            Self::S32 | Self::F32 => 4,
        }
    }

    /// What a WAV header says of it.
    pub(super) const fn samples(self) -> SampleFormat {
        match self {
            Self::Ours(Encoding::Alaw) => SampleFormat::Companded(Law::A),
            Self::Ours(Encoding::Mulaw) => SampleFormat::Companded(Law::Mu),
            Self::Ours(_) => SampleFormat::I16,
            Self::S32 => SampleFormat::I32,
            Self::F16 => SampleFormat::F16,
            Self::F32 => SampleFormat::F32,
        }
    }

    /// What the engines speak, as the vendor writes it.
    pub(super) fn write(self, audio: Bytes) -> Bytes {
        let wide = |sample: &dyn Fn(i16) -> [u8; 4]| {
            let samples = audio.chunks_exact(2);
            samples
                .flat_map(|two| sample(i16::from_le_bytes([two[0], two[1]])))
                .collect()
        };
        match self {
            Self::F32 => wide(&|sample| (f32::from(sample) / 32_768.0).to_le_bytes()),
            Self::S32 => wide(&|sample| (i32::from(sample) << 16).to_le_bytes()),
            // The vendor does not speak in 16-bit floats.
            Self::Ours(_) | Self::F16 => audio,
        }
    }
}

/// Reads samples that may be cut anywhere.
#[derive(Debug)]
pub(super) struct Reader {
    raw: Raw,
    left_over: BytesMut,
}

impl Reader {
    pub(super) fn new(raw: Raw) -> Self {
        Self {
            raw,
            left_over: BytesMut::new(),
        }
    }

    /// What the engines hear of it.
    pub(super) fn read(&mut self, bytes: Bytes) -> Bytes {
        if let Raw::Ours(_) = self.raw {
            return bytes;
        }
        self.left_over.extend_from_slice(&bytes);
        let width = self.raw.width();
        let whole = self.left_over.len() / width * width;
        let samples = self.left_over.split_to(whole);
        let samples = samples.chunks_exact(width);
        samples
            .flat_map(|bytes| self.raw.sample(bytes).to_le_bytes())
            .collect()
    }
}

impl Raw {
    /// A sample in 16 bits.
    fn sample(self, bytes: &[u8]) -> i16 {
        let level = match (self, bytes) {
            (Self::F16, &[low, high]) => half(u16::from_le_bytes([low, high])),
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::S32, &[_, _, low, high]) => return i16::from_le_bytes([low, high]),
            _ => 0.0,
        };
        (level * 32_767.0).round() as i16
    }
}

/// A number of IEEE 754 binary16.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f32::from(bits & 0x3FF));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        _ => sign * (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_their_level_however_they_are_written_and_cut() {
        for (name, bytes) in [
            ("pcm_s32le", [0, 0, 0, 0x40, 0, 0, 0, 0xC0].to_vec()),
            (
                "pcm_f32le",
                [0.5f32.to_le_bytes(), (-0.5f32).to_le_bytes()].concat(),
            ),
            ("pcm_f16le", vec![0x00, 0x38, 0x00, 0xB8]),
        ] {
            let raw = Raw::named(name).unwrap();
            let mut reader = Reader::new(raw);
            let heard: Vec<u8> = bytes
                .chunks(3)
                .flat_map(|cut| reader.read(Bytes::copy_from_slice(cut)))
                .collect();
            let levels: Vec<i16> = heard
                .chunks(2)
                .map(|two| i16::from_le_bytes([two[0], two[1]]))
                .collect();
            assert!((levels[0] - 16_384).abs() <= 1, "{name}: {levels:?}");
            assert!((levels[1] + 16_384).abs() <= 1, "{name}: {levels:?}");
        }
        let spoken = Raw::F32.write(Bytes::from_static(&[0, 0x40]));
        assert_eq!(spoken[..], 0.5f32.to_le_bytes());
    }
}
