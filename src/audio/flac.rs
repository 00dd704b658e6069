//! FLAC (RFC 9639), written as the sound comes: the header says neither how long it is nor what its digest is, as neither is
//! known then. Reading is symphonia's ([`crate::decode`]).

use flacenc::bitsink::ByteSink;
use flacenc::component::{BitRepr, Stream, StreamInfo};
use flacenc::config;
use flacenc::error::{Verified, Verify};
use flacenc::source::{Fill, FrameBuf};

use super::format::Layout;

/// Frames of the sound in one of the stream: 48 ms at 24 kHz.
const BLOCK: usize = 1_152;
/// The shortest last one that the encoder takes; it is filled with silence.
const SHORTEST: usize = 32;
const BITS: usize = 16;

/// Sound that the encoder does not take. It takes every rate and layout of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot be written as FLAC: {0}")]
pub struct FlacError(String);

/// Writes one stream.
pub struct FlacEncoder {
    config: Verified<config::Encoder>,
    info: StreamInfo,
    /// Less than a block.
    waiting: Vec<i32>,
    blocks: usize,
}

impl FlacEncoder {
    /// An encoder, and the header of its stream.
    pub fn start(layout: Layout) -> Result<(Self, Vec<u8>), FlacError> {
        let channels = layout.channels.count();
        let mut info =
            StreamInfo::new(layout.rate.hz() as usize, channels, BITS).map_err(problem)?;
        info.set_block_sizes(BLOCK, BLOCK).map_err(problem)?;
        // Unknown.
        info.set_frame_sizes(0, 0).map_err(problem)?;
        let config = config::Encoder::default().into_verified();
        let config = config.map_err(|(_, error)| problem(error))?;
        let mut header = ByteSink::new();
        let stream = Stream::with_stream_info(info.clone());
        stream.write(&mut header).map_err(problem)?;
        let encoder = Self {
            config,
            info,
            waiting: Vec::with_capacity(BLOCK * channels),
            blocks: 0,
        };
        Ok((encoder, header.into_inner()))
    }

    /// Takes interleaved samples; returns the blocks that they have completed.
    pub fn push(&mut self, samples: &[i16]) -> Result<Vec<u8>, FlacError> {
        let mut written = ByteSink::new();
        let block = BLOCK * self.info.channels();
        for &sample in samples {
            self.waiting.push(sample.into());
            if self.waiting.len() == block {
                self.write(BLOCK, &mut written)?;
            }
        }
        Ok(written.into_inner())
    }

    /// The rest of the stream.
    pub fn finish(mut self) -> Result<Vec<u8>, FlacError> {
        let mut written = ByteSink::new();
        let channels = self.info.channels();
        if !self.waiting.is_empty() {
            let frames = self.waiting.len().div_ceil(channels).max(SHORTEST);
            self.waiting.resize(frames * channels, 0);
            self.write(frames, &mut written)?;
        }
        Ok(written.into_inner())
    }

    fn write(&mut self, frames: usize, written: &mut ByteSink) -> Result<(), FlacError> {
        let mut block = FrameBuf::with_size(self.info.channels(), frames).map_err(problem)?;
        block.fill_interleaved(&self.waiting).map_err(problem)?;
        self.waiting.clear();
        let number = self.blocks;
        self.blocks += 1;
        let frame = flacenc::encode_fixed_size_frame(&self.config, &block, number, &self.info);
        frame.map_err(problem)?.write(written).map_err(problem)
    }
}

fn problem(error: impl std::fmt::Display) -> FlacError {
    FlacError(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::time::Duration;

    use super::*;
    use crate::decode::{FileDecoder, FileLimits};
    use crate::format::{Channels, SampleRate};

    /// What is read again of so many frames that were pushed in pieces of this length.
    fn read_again(layout: Layout, samples: &[i16], piece: usize) -> Vec<i16> {
        let (mut encoder, mut file) = FlacEncoder::start(layout).unwrap();
        for piece in samples.chunks(piece) {
            file.extend(encoder.push(piece).unwrap());
        }
        file.extend(encoder.finish().unwrap());
        let limits = FileLimits {
            duration: Duration::from_mins(1),
        };
        let decoder = FileDecoder::open(Cursor::new(file), limits).unwrap();
        assert_eq!(decoder.layout(), layout);
        decoder
            .flat_map(|sound| sound.unwrap().into_samples())
            .collect()
    }

    #[test]
    fn every_sample_is_read_again() {
        let mut random = fastrand::Rng::with_seed(9);
        for (hz, channels, frames) in [
            (24_000_u32, Channels::Mono, 30_000),
            (8_000, Channels::Mono, 1_152),
            (48_000, Channels::Stereo, 10_001),
            (16_000, Channels::Mono, 1_160),
        ] {
            let layout = Layout::new(SampleRate::new(hz).unwrap(), channels);
            let count = frames * channels.count();
            let samples: Vec<i16> = (0..count)
                .map(|at| ((at as f64 / 20.0).sin() * 20_000.0) as i16 + random.i16(-300..300))
                .collect();
            let again = read_again(layout, &samples, 777);
            assert!(again.starts_with(&samples), "{hz} Hz, {frames} frames");
            // Filled up with silence.
            let filled = &again[samples.len()..];
            assert!(filled.len() < SHORTEST && filled.iter().all(|&sample| sample == 0));
        }
    }
}
