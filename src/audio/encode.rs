//! Encoding into every [`Encoding`], for HTTP responses and sockets. The audio must already have the encoder's rate and
//! channels; chunking, pacing and sending are left to the caller.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::format::{AudioFormat, Encoding, FormatError, Layout, SampleRate};
use super::g711::Law;
use super::linear16;
use super::mp3_encoder::Mp3Encoder;
use super::ogg::{self, OggError, OggOpusWriter, OpusHead};
use super::opus::{self, FRAME, MAX_FRAME_PACKET, OpusEncoder, OpusError, OpusSettings};
use super::pcm::Pcm;
use super::wav;
use vivavoce_core::process::ProgramError;

/// Why audio could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The encoding does not support the rate.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The audio has another layout than the encoder was created for.
    #[error("the encoder takes {expected}, not {got}")]
    Layout {
        /// The encoder's layout.
        expected: Layout,
        /// The layout of the audio.
        got: Layout,
    },
    /// The Opus encoder failed.
    #[error(transparent)]
    Opus(#[from] OpusError),
    /// The Ogg writer failed.
    #[error(transparent)]
    Ogg(#[from] OggError),
    /// The MP3 encoder, an external program, failed.
    #[error(transparent)]
    Mp3(#[from] ProgramError),
}

/// Encoded bytes; for bare Opus exactly one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The bytes.
    pub data: Bytes,
    /// The duration of the audio in them; zero for a header.
    pub duration: Duration,
}

/// Encodes one stream.
#[derive(Debug)]
pub struct StreamEncoder {
    layout: Layout,
    encoder: Encoder,
}

#[derive(Debug)]
enum Encoder {
    Linear16,
    Wav {
        begun: bool,
    },
    Companded(Law),
    Opus(Framer),
    OggOpus {
        framer: Framer,
        writer: Option<Box<OggOpusWriter>>,
    },
    Mp3(Box<Mp3Encoder>),
}

impl StreamEncoder {
    /// An encoder at the start of a stream. MP3 starts the program `lame` and must be called in a tokio runtime.
    pub fn new(format: AudioFormat) -> Result<Self, EncodeError> {
        Self::with_pages(format, ogg::PAGE_TIME)
    }

    /// The same for a listener who plays it as it arrives: every Opus packet gets an Ogg page of its own.
    pub fn live(format: AudioFormat) -> Result<Self, EncodeError> {
        Self::with_pages(format, FRAME)
    }

    fn with_pages(format: AudioFormat, page_time: Duration) -> Result<Self, EncodeError> {
        let layout = format.layout;
        format.encoding.output_rate(Some(layout.rate.hz().into()))?;
        let encoder = match format.encoding {
            Encoding::Linear16 => Encoder::Linear16,
            Encoding::Wav => Encoder::Wav { begun: false },
            Encoding::Mulaw => Encoder::Companded(Law::Mu),
            Encoding::Alaw => Encoder::Companded(Law::A),
            Encoding::Mp3 => Encoder::Mp3(Box::new(Mp3Encoder::start(layout)?)),
            Encoding::Opus => Encoder::Opus(Framer::new(layout)?),
            Encoding::OggOpus => {
                let framer = Framer::new(layout)?;
                let writer = Some(Box::new(ogg_writer(&framer.encoder, page_time)?));
                Encoder::OggOpus { framer, writer }
            }
        };
        Ok(Self { layout, encoder })
    }

    /// The layout it takes.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Encodes audio and returns what is ready, in order. Only MP3 ever waits, a few seconds at most.
    pub async fn push(&mut self, sound: &Pcm) -> Result<Vec<Encoded>, EncodeError> {
        if sound.layout() != self.layout {
            return Err(EncodeError::Layout {
                expected: self.layout,
                got: sound.layout(),
            });
        }
        let samples = sound.samples();
        let duration = sound.duration();
        let mut ready = Vec::new();
        match &mut self.encoder {
            Encoder::Linear16 => give(&mut ready, linear16::encode(samples), duration),
            Encoder::Wav { begun } => {
                if !std::mem::replace(begun, true) {
                    give(&mut ready, wav_header(self.layout), Duration::ZERO);
                }
                give(&mut ready, linear16::encode(samples), duration);
            }
            Encoder::Companded(law) => {
                let mut codes = Vec::with_capacity(samples.len());
                law.compress(samples, &mut codes);
                give(&mut ready, codes.into(), duration);
            }
            Encoder::Opus(framer) => framer.push(samples, |packet| {
                give(&mut ready, Bytes::copy_from_slice(packet), FRAME);
                Ok(())
            })?,
            Encoder::OggOpus { framer, writer } => {
                if let Some(writer) = writer {
                    let before = writer.frames_written();
                    let mut pages = Pages::default();
                    framer.push(samples, |packet| {
                        pages.add(writer.push(packet)?);
                        Ok(())
                    })?;
                    let frames = writer.frames_written() - before;
                    give(&mut ready, pages.bytes(), clock_duration(frames));
                }
            }
            Encoder::Mp3(encoder) => {
                let bytes = encoder.push(samples).await?;
                let duration = encoder.duration_of(bytes.len());
                give(&mut ready, bytes, duration);
            }
        }
        Ok(ready)
    }

    /// The rest of the stream: an incomplete frame, and the end. Nothing can be pushed afterwards.
    pub async fn finish(&mut self) -> Result<Vec<Encoded>, EncodeError> {
        let mut ready = Vec::new();
        match &mut self.encoder {
            Encoder::Linear16 | Encoder::Companded(_) => {}
            Encoder::Wav { begun } => {
                if !std::mem::replace(begun, true) {
                    give(&mut ready, wav_header(self.layout), Duration::ZERO);
                }
            }
            Encoder::Opus(framer) => {
                if framer.frames > 0 {
                    framer.finish(|packet| {
                        give(&mut ready, Bytes::copy_from_slice(packet), FRAME);
                        Ok(())
                    })?;
                }
            }
            Encoder::OggOpus { framer, writer } => {
                if let Some(mut writer) = writer.take() {
                    let before = writer.frames_written();
                    let mut pages = Pages::default();
                    framer.finish(|packet| {
                        pages.add(writer.push(packet)?);
                        Ok(())
                    })?;
                    let frames = framer.clock_frames();
                    pages.add(writer.finish(Some(frames)));
                    let rest = frames.saturating_sub(before);
                    give(&mut ready, pages.bytes(), clock_duration(rest));
                }
            }
            Encoder::Mp3(encoder) => {
                let bytes = encoder.finish().await?;
                let duration = encoder.duration_of(bytes.len());
                give(&mut ready, bytes, duration);
            }
        }
        Ok(ready)
    }
}

fn give(ready: &mut Vec<Encoded>, data: Bytes, duration: Duration) {
    if !data.is_empty() {
        ready.push(Encoded { data, duration });
    }
}

/// A header for unknown length; [`wav::patch_length`] fills it in where the stream is stored.
fn wav_header(layout: Layout) -> Bytes {
    Bytes::copy_from_slice(&wav::header(layout, None))
}

fn clock_duration(frames: u64) -> Duration {
    SampleRate::HZ_48000.duration_of(usize::try_from(frames).unwrap_or(usize::MAX))
}

fn ogg_writer(encoder: &OpusEncoder, page_time: Duration) -> Result<OggOpusWriter, OggError> {
    /// The serial number distinguishes streams in one file; ours has one, and equal audio should give equal bytes.
    const SERIAL: u32 = 1;
    let head = OpusHead {
        channels: encoder.layout().channels,
        pre_skip: encoder.pre_skip(),
        input_hz: encoder.layout().rate.hz(),
    };
    let tags = [("ENCODER", concat!("vivavoce ", env!("CARGO_PKG_VERSION")))];
    OggOpusWriter::new(head, ::opus::version(), &tags, SERIAL, page_time)
}

/// Pages completed in one go; nearly always none or one, which is not copied.
#[derive(Default)]
struct Pages {
    first: Bytes,
    more: BytesMut,
}

impl Pages {
    fn add(&mut self, page: Bytes) {
        if self.first.is_empty() {
            self.first = page;
        } else if !page.is_empty() {
            if self.more.is_empty() {
                self.more.extend_from_slice(&self.first);
            }
            self.more.extend_from_slice(&page);
        }
    }

    fn bytes(self) -> Bytes {
        if self.more.is_empty() {
            self.first
        } else {
            self.more.freeze()
        }
    }
}

/// Cuts audio into Opus frames and encodes them.
#[derive(Debug)]
struct Framer {
    encoder: OpusEncoder,
    /// An incomplete frame.
    held: Vec<i16>,
    /// Frames (one sample per channel) received.
    frames: u64,
    /// Frames encoded, including padding.
    encoded: u64,
    packet: Box<[u8; MAX_FRAME_PACKET]>,
}

impl Framer {
    fn new(layout: Layout) -> Result<Self, OpusError> {
        let speech = OpusSettings::SPEECH;
        let settings = OpusSettings {
            bitrate_bps: speech.bitrate_bps * layout.channels.count() as u32,
            ..speech
        };
        Ok(Self {
            encoder: OpusEncoder::new(layout, settings)?,
            held: Vec::new(),
            frames: 0,
            encoded: 0,
            packet: Box::new([0; MAX_FRAME_PACKET]),
        })
    }

    fn push(
        &mut self,
        mut samples: &[i16],
        mut packet: impl FnMut(&[u8]) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let frame = self.encoder.frame_samples();
        self.frames += (samples.len() / self.encoder.layout().channels.count()) as u64;
        if !self.held.is_empty() {
            let (missing, rest) = samples.split_at((frame - self.held.len()).min(samples.len()));
            self.held.extend_from_slice(missing);
            samples = rest;
            if self.held.len() < frame {
                return Ok(());
            }
            let held = std::mem::take(&mut self.held);
            self.encode(&held, &mut packet)?;
        }
        let whole = samples.chunks_exact(frame);
        self.held.extend_from_slice(whole.remainder());
        for frame in whole {
            self.encode(frame, &mut packet)?;
        }
        Ok(())
    }

    /// Encodes the last, incomplete frame, padded with silence, and as much silence as the decoder lags behind.
    fn finish(
        &mut self,
        mut packet: impl FnMut(&[u8]) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let hz = self.encoder.layout().rate.hz();
        let lag = u64::from(self.encoder.pre_skip()).div_ceil(u64::from(opus::CLOCK_HZ / hz));
        while self.encoded < self.frames + lag {
            let mut last = std::mem::take(&mut self.held);
            last.resize(self.encoder.frame_samples(), 0);
            self.encode(&last, &mut packet)?;
        }
        Ok(())
    }

    fn encode(
        &mut self,
        frame: &[i16],
        packet: &mut impl FnMut(&[u8]) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let len = self.encoder.encode(frame, self.packet.as_mut_slice())?;
        self.encoded += (frame.len() / self.encoder.layout().channels.count()) as u64;
        packet(&self.packet[..len])
    }

    /// The number of frames received, at 48 kHz.
    fn clock_frames(&self) -> u64 {
        self.frames * u64::from(opus::CLOCK_HZ / self.encoder.layout().rate.hz())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Channels;
    use crate::decode::StreamDecoder;
    use proptest::prelude::*;

    fn format(encoding: Encoding, hz: u32, channels: Channels) -> AudioFormat {
        let layout = Layout::new(SampleRate::new(hz).unwrap(), channels);
        AudioFormat { encoding, layout }
    }

    fn sound(layout: Layout, frames: usize) -> Pcm {
        let samples = (0..frames * layout.channels.count()).map(|n| (n * 97 % 20_000) as i16);
        Pcm::new(layout, samples.collect())
    }

    /// Everything an encoder returns for `sound`, pushed in chunks of this many frames.
    fn encode(format: AudioFormat, sound: &Pcm, chunk: usize) -> Vec<Encoded> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut encoder = StreamEncoder::new(format).unwrap();
            let mut all = Vec::new();
            for piece in sound
                .samples()
                .chunks(chunk * format.layout.channels.count())
            {
                let piece = Pcm::new(format.layout, piece.to_vec());
                all.extend(encoder.push(&piece).await.unwrap());
            }
            all.extend(encoder.finish().await.unwrap());
            all
        })
    }

    fn decode(format: AudioFormat, encoded: &[Encoded]) -> Vec<Pcm> {
        let mut decoder = StreamDecoder::new(format).unwrap();
        let mut chunks = Vec::new();
        for encoded in encoded {
            chunks.extend(decoder.push(&encoded.data).map(Result::unwrap));
        }
        chunks.extend(decoder.finish().map(Result::unwrap));
        assert_eq!(decoder.layout(), Some(format.layout));
        assert!(chunks.iter().all(|chunk| chunk.layout() == format.layout));
        chunks
    }

    fn frames(chunks: &[Pcm]) -> usize {
        chunks.iter().map(Pcm::frames).sum()
    }

    #[test]
    fn what_is_lossless_comes_back_as_it_was_and_what_is_not_as_long_as_it_was() {
        for channels in [Channels::Mono, Channels::Stereo] {
            for encoding in [
                Encoding::Linear16,
                Encoding::Wav,
                Encoding::Mulaw,
                Encoding::Alaw,
                Encoding::OggOpus,
            ] {
                let format = format(encoding, 24_000, channels);
                let sound = sound(format.layout, 24_321);
                let encoded = encode(format, &sound, 777);
                let heard = decode(format, &encoded);
                assert_eq!(frames(&heard), sound.frames(), "{format}");
                let lasts: Duration = encoded.iter().map(|encoded| encoded.duration).sum();
                // Each chunk's duration is rounded down to a nanosecond.
                assert!(
                    sound.duration().abs_diff(lasts) < Duration::from_micros(1),
                    "{format}"
                );
                if matches!(encoding, Encoding::Linear16 | Encoding::Wav) {
                    let samples: Vec<_> = heard.into_iter().flat_map(Pcm::into_samples).collect();
                    assert_eq!(samples, sound.samples());
                }
            }
        }
    }

    #[test]
    fn bare_opus_is_packets_of_twenty_milliseconds_that_hold_all_of_the_sound() {
        let format = format(Encoding::Opus, 16_000, Channels::Mono);
        let encoded = encode(format, &sound(format.layout, 16_000), 100);
        assert!(encoded.iter().all(|encoded| encoded.duration == FRAME));
        // A second, and one packet for the decoder's delay.
        assert_eq!(encoded.len(), 51);
        assert_eq!(frames(&decode(format, &encoded)), 51 * 320);
    }

    #[test]
    fn no_sound_at_all_is_a_stream_without_sound() {
        for encoding in [
            Encoding::Wav,
            Encoding::OggOpus,
            Encoding::Opus,
            Encoding::Mulaw,
        ] {
            let format = format(encoding, 48_000, Channels::Mono);
            let encoded = encode(format, &Pcm::empty(format.layout), 1);
            let mut decoder = StreamDecoder::new(format).unwrap();
            for encoded in &encoded {
                assert_eq!(decoder.push(&encoded.data).count(), 0, "{format}");
            }
            let with_header = matches!(encoding, Encoding::Wav | Encoding::OggOpus);
            assert_eq!(encoded.is_empty(), !with_header);
        }
    }

    #[tokio::test]
    async fn sound_of_another_rate_is_refused() {
        let mulaw = format(Encoding::Mulaw, 8_000, Channels::Mono);
        let mut encoder = StreamEncoder::new(mulaw).unwrap();
        let wide = sound(Layout::mono(SampleRate::HZ_16000), 10);
        assert!(matches!(
            encoder.push(&wide).await,
            Err(EncodeError::Layout { .. })
        ));
        let odd = format(Encoding::Opus, 44_100, Channels::Mono);
        assert!(matches!(
            StreamEncoder::new(odd),
            Err(EncodeError::Format(_))
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn the_sound_in_ogg_is_exact_to_the_sample(
            rate in prop::sample::select(vec![8_000u32, 12_000, 16_000, 24_000, 48_000]),
            len in 0usize..20_000,
            chunk in 1usize..3_000,
        ) {
            let format = format(Encoding::OggOpus, rate, Channels::Mono);
            let sound = sound(format.layout, len);
            let heard = decode(format, &encode(format, &sound, chunk));
            prop_assert_eq!(frames(&heard), len);
        }
    }
}
