//! Decoding. [`StreamDecoder`] decodes a stream in a declared format as it arrives; [`FileDecoder`] decodes whole files
//! of any supported format, detected by content. Both produce audio in chunks and buffer little; resampling is left to
//! the resampler.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

use bytes::Bytes;
use symphonia::core::audio::Channels as AnyChannels;
use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::common::Limit;
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use super::format::{AudioFormat, Channels, Encoding, FormatError, Layout, SampleRate};
use super::g711::Law;
use super::linear16;
use super::mp3_decoder::{Mp3Decoder, Mp3Error};
use super::ogg::{self, OggError, OggItem, OggOpusReader, OggPacket, OpusHead};
use super::opus::{self, OpusDecoder, OpusError};
use super::pcm::Pcm;
use super::wav::{WavError, WavFormat, WavReader, whole_frames};

/// Why bytes could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// An Opus packet.
    #[error(transparent)]
    Opus(#[from] OpusError),
    /// An Ogg/Opus stream.
    #[error(transparent)]
    Ogg(#[from] OggError),
    /// A WAV stream.
    #[error(transparent)]
    Wav(#[from] WavError),
    /// An MP3 stream.
    #[error(transparent)]
    Mp3(#[from] Mp3Error),
    /// The sample rate is not supported.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file is in none of the supported formats.
    #[error("the file is neither WAV, MP3, FLAC nor Ogg/Opus: {0}")]
    Unrecognised(#[source] SymphoniaError),
    /// The file contains no audio.
    #[error("there is no sound in the file")]
    NoSound,
    /// The file is too damaged.
    #[error("the file cannot be decoded: {0}")]
    File(#[source] SymphoniaError),
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is longer than allowed.
    #[error("the file is longer than the {} s that are allowed", .0.as_secs())]
    TooLong(Duration),
}

/// Decodes one stream in a declared format. Bytes may be pushed in any chunks, except that for bare Opus one push is
/// one packet.
///
/// A header takes precedence over the declared format: [`Self::layout`] tells the actual one. After an error in a
/// stream with a header nothing more is decoded; for bare Opus, a damaged packet costs only itself.
#[derive(Debug)]
pub struct StreamDecoder {
    decoder: Decoder,
}

#[derive(Debug)]
enum Decoder {
    Linear16 {
        layout: Layout,
        held: Vec<u8>,
    },
    Companded {
        law: Law,
        layout: Layout,
        held: Vec<u8>,
    },
    Wav(WavReader),
    OggOpus(OggOpusDecoder),
    Opus(OpusDecoder),
    Mp3(Mp3Decoder),
    /// An error has been reported; further input is meaningless.
    Failed,
}

impl StreamDecoder {
    /// A decoder at the start of a stream. Opus is decoded at the declared rate if Opus supports it, else at 48 kHz.
    pub fn new(format: AudioFormat) -> Result<Self, DecodeError> {
        let layout = format.layout;
        let held = Vec::new();
        let companded = |law| Decoder::Companded {
            law,
            layout,
            held: Vec::new(),
        };
        let decoder = match format.encoding {
            Encoding::Linear16 => Decoder::Linear16 { layout, held },
            Encoding::Mulaw => companded(Law::Mu),
            Encoding::Alaw => companded(Law::A),
            Encoding::Wav => Decoder::Wav(WavReader::new()),
            Encoding::OggOpus => Decoder::OggOpus(OggOpusDecoder::new(opus_rate(layout.rate))),
            Encoding::Opus => {
                let layout = Layout::new(opus_rate(layout.rate), layout.channels);
                Decoder::Opus(OpusDecoder::new(layout)?)
            }
            Encoding::Mp3 => Decoder::Mp3(Mp3Decoder::new()),
        };
        Ok(Self { decoder })
    }

    /// The layout of the audio: known at once if there is no header, else once the header has been read.
    pub fn layout(&self) -> Option<Layout> {
        match &self.decoder {
            Decoder::Linear16 { layout, .. } | Decoder::Companded { layout, .. } => Some(*layout),
            Decoder::Wav(reader) => reader.format().map(wav_layout),
            Decoder::OggOpus(decoder) => decoder.layout(),
            Decoder::Opus(decoder) => Some(decoder.layout()),
            Decoder::Mp3(decoder) => decoder.layout(),
            Decoder::Failed => None,
        }
    }

    /// The audio in the next bytes, decoded lazily: a few bytes of Opus may contain minutes. Iterate to the end before
    /// the next push.
    pub fn push<'a>(&'a mut self, bytes: &'a [u8]) -> Chunks<'a> {
        match &mut self.decoder {
            Decoder::OggOpus(decoder) => decoder.reader.push(bytes),
            Decoder::Mp3(decoder) => decoder.push(bytes),
            _ => {}
        }
        Chunks {
            decoder: &mut self.decoder,
            bytes: Some(bytes),
            packet: None,
            ended: false,
        }
    }

    /// The audio held back until the end. A truncated stream is not an error once its audio has begun.
    pub fn finish(&mut self) -> Chunks<'_> {
        if let Decoder::Mp3(decoder) = &mut self.decoder {
            decoder.end();
        }
        Chunks {
            decoder: &mut self.decoder,
            bytes: None,
            packet: None,
            ended: true,
        }
    }
}

/// The rate at which to decode Opus.
const fn opus_rate(declared: SampleRate) -> SampleRate {
    if opus::has_rate(declared) {
        declared
    } else {
        SampleRate::HZ_48000
    }
}

/// An iterator over chunks of decoded audio.
#[derive(Debug)]
#[must_use = "nothing is decoded before it is iterated over"]
pub struct Chunks<'a> {
    decoder: &'a mut Decoder,
    /// The bytes pushed, for formats that need no buffer.
    bytes: Option<&'a [u8]>,
    /// The bare Opus packet that was decoded.
    packet: Option<&'a [u8]>,
    ended: bool,
}

impl Iterator for Chunks<'_> {
    type Item = Result<Pcm, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let decoded = self.decode();
        match decoded {
            Ok(sound) => sound.map(Ok),
            Err(error) => {
                if !matches!(self.decoder, Decoder::Opus(_)) {
                    *self.decoder = Decoder::Failed;
                }
                Some(Err(error))
            }
        }
    }
}

impl Chunks<'_> {
    /// The Opus packet from which the last chunk was decoded, if it was.
    pub fn packet(&self) -> Option<&[u8]> {
        match &*self.decoder {
            Decoder::OggOpus(decoder) => Some(&decoder.packet),
            _ => self.packet,
        }
    }

    fn decode(&mut self) -> Result<Option<Pcm>, DecodeError> {
        let bytes = self.bytes.take();
        let mut samples = Vec::new();
        let layout = match (&mut *self.decoder, bytes) {
            (Decoder::Linear16 { layout, held }, Some(bytes)) => {
                samples.reserve_exact(bytes.len() / 2 + 1);
                whole_frames(held, bytes, layout.channels.count() * 2, |frames| {
                    linear16::decode(frames, &mut samples);
                });
                *layout
            }
            (Decoder::Companded { law, layout, held }, Some(bytes)) => {
                samples.reserve_exact(bytes.len() + 1);
                whole_frames(held, bytes, layout.channels.count(), |frames| {
                    law.expand(frames, &mut samples);
                });
                *layout
            }
            (Decoder::Opus(decoder), Some(packet)) => {
                decoder.decode(packet, &mut samples)?;
                self.packet = Some(packet);
                decoder.layout()
            }
            (Decoder::Wav(reader), Some(bytes)) => {
                reader.push(bytes, &mut samples)?;
                return Ok(wav_sound(reader, samples));
            }
            (Decoder::Wav(reader), None) if std::mem::take(&mut self.ended) => {
                reader.finish(&mut samples)?;
                return Ok(wav_sound(reader, samples));
            }
            (Decoder::OggOpus(decoder), _) => {
                let sound = decoder.next_sound()?;
                if sound.is_none() && std::mem::take(&mut self.ended) {
                    decoder.reader.finish()?;
                }
                return Ok(sound);
            }
            (Decoder::Mp3(decoder), _) => return Ok(decoder.next_sound()?),
            _ => return Ok(None),
        };
        Ok(some(Pcm::new(layout, samples)))
    }
}

fn some(sound: Pcm) -> Option<Pcm> {
    (!sound.is_empty()).then_some(sound)
}

/// The audio returned by a reader, if any.
fn wav_sound(reader: &WavReader, samples: Vec<i16>) -> Option<Pcm> {
    let format = reader.format()?;
    some(mix_down(samples, format.channels().into(), format.rate()))
}

fn wav_layout(format: WavFormat) -> Layout {
    Layout::new(
        format.rate(),
        channels_after_mixing(format.channels().into()),
    )
}

/// What remains of a number of channels.
const fn channels_after_mixing(channels: usize) -> Channels {
    match channels {
        2 => Channels::Stereo,
        _ => Channels::Mono,
    }
}

/// Audio of any number of channels as mono or stereo: more than two channels are averaged.
fn mix_down(samples: Vec<i16>, channels: usize, rate: SampleRate) -> Pcm {
    let layout = Layout::new(rate, channels_after_mixing(channels));
    if channels <= 2 {
        return Pcm::new(layout, samples);
    }
    let mixed = samples.chunks_exact(channels).map(|frame| {
        let sum: i32 = frame.iter().map(|&sample| i32::from(sample)).sum();
        (sum / channels as i32) as i16
    });
    Pcm::new(layout, mixed.collect())
}

/// Ogg/Opus decoding, for streams and files.
#[derive(Debug)]
struct OggOpusDecoder {
    reader: OggOpusReader,
    rate: SampleRate,
    /// The channels of the first header; chained streams are converted to them.
    head: Option<OpusHead>,
    decoder: Option<OpusDecoder>,
    /// The newest packet.
    packet: Bytes,
}

impl OggOpusDecoder {
    fn new(rate: SampleRate) -> Self {
        Self {
            reader: OggOpusReader::new(),
            rate,
            head: None,
            decoder: None,
            packet: Bytes::new(),
        }
    }

    fn layout(&self) -> Option<Layout> {
        self.head.map(|head| Layout::new(self.rate, head.channels))
    }

    fn next_sound(&mut self) -> Result<Option<Pcm>, DecodeError> {
        while let Some(item) = self.reader.next_item()? {
            match item {
                OggItem::Head(head) => {
                    let first = *self.head.get_or_insert(head);
                    let layout = Layout::new(self.rate, first.channels);
                    self.decoder = Some(OpusDecoder::new(layout)?);
                }
                OggItem::Packet(packet) => {
                    let sound = self.decode(&packet)?;
                    self.packet = packet.data;
                    if let Some(sound) = sound {
                        return Ok(Some(sound));
                    }
                }
            }
        }
        Ok(None)
    }

    fn decode(&mut self, packet: &OggPacket) -> Result<Option<Pcm>, DecodeError> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(None);
        };
        let layout = decoder.layout();
        let mut samples = Vec::new();
        decoder.decode(&packet.data, &mut samples)?;
        // Pre-skip and end are given at 48 kHz; at lower rates fractions of frames are rounded the same way at both
        // ends, so that the length is right.
        let at = |clock: u32| {
            let frames = clock.div_ceil(opus::CLOCK_HZ / layout.rate.hz());
            (frames as usize * layout.channels.count()).min(samples.len())
        };
        let (start, end) = (at(packet.heard.start), at(packet.heard.end));
        samples.truncate(end);
        samples.drain(..start.min(end));
        Ok(some(Pcm::new(layout, samples)))
    }
}

/// Limits of decoding a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// The maximum duration decoded.
    pub duration: Duration,
}

/// Decodes a file chunk by chunk. A truncated file yields what is there; damaged packets are skipped.
pub struct FileDecoder {
    source: Source,
    layout: Layout,
    duration: Option<Duration>,
    limits: FileLimits,
    frames: u64,
    ended: bool,
}

enum Source {
    Wav {
        file: Box<dyn ReadSeek>,
        reader: Box<WavReader>,
        /// What was decoded along with the header.
        first: Vec<i16>,
    },
    OggOpus {
        file: Box<dyn ReadSeek>,
        decoder: Box<OggOpusDecoder>,
    },
    Symphonia {
        format: Box<dyn FormatReader>,
        decoder: Box<dyn AudioDecoder>,
        track: u32,
    },
}

/// A file, or its bytes in a cursor.
trait ReadSeek: Read + Seek + Send + Sync {}
impl<T: Read + Seek + Send + Sync> ReadSeek for T {}

/// What symphonia wants to know beside the bytes.
struct KnownLength<R> {
    file: R,
    len: u64,
}

impl<R: Read> Read for KnownLength<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

impl<R: Seek> Seek for KnownLength<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl<R: Read + Seek + Send + Sync> MediaSource for KnownLength<R> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len)
    }
}

impl fmt::Debug for FileDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDecoder")
            .field("layout", &self.layout)
            .field("duration", &self.duration)
            .finish_non_exhaustive()
    }
}

/// The read size, and how much of a file is searched for its first audio and for its last page.
const READ: usize = 16 * 1024;
const TAIL: u64 = 128 * 1024;

impl FileDecoder {
    /// Opens a WAV, MP3, FLAC or Ogg/Opus file and reads up to its first audio. Opening and iterating block on the
    /// file.
    pub fn open(
        mut file: impl Read + Seek + Send + Sync + 'static,
        limits: FileLimits,
    ) -> Result<Self, DecodeError> {
        let len = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut magic = Vec::new();
        file.by_ref().take(4).read_to_end(&mut magic)?;
        file.rewind()?;
        let (source, layout, duration) = match &magic[..] {
            b"OggS" => open_ogg_opus(Box::new(file), len)?,
            b"RIFF" | b"RF64" | b"BW64" => open_wav(Box::new(file))?,
            _ => open_with_symphonia(Box::new(file), len)?,
        };
        Ok(Self {
            source,
            layout,
            duration,
            limits,
            frames: 0,
            ended: false,
        })
    }

    /// The layout of the audio.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The total duration, if the file tells; for MP3 without a tag an estimate.
    pub const fn duration(&self) -> Option<Duration> {
        self.duration
    }

    fn decode(&mut self) -> Result<Option<Pcm>, DecodeError> {
        match &mut self.source {
            Source::Wav {
                file,
                reader,
                first,
            } => next_of_wav(file, reader, first),
            Source::OggOpus { file, decoder } => next_of_ogg_opus(file, decoder),
            Source::Symphonia {
                format,
                decoder,
                track,
            } => next_of_symphonia(format.as_mut(), decoder.as_mut(), *track, self.layout),
        }
    }
}

impl Iterator for FileDecoder {
    type Item = Result<Pcm, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.decode().transpose();
        if let Some(Ok(sound)) = &item {
            self.frames += sound.frames() as u64;
            let most = self.layout.rate.frames_in(self.limits.duration) as u64;
            if self.frames > most {
                self.ended = true;
                return Some(Err(DecodeError::TooLong(self.limits.duration)));
            }
        }
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// A decoder at the start of the audio, its layout, and its duration.
type Opened = (Source, Layout, Option<Duration>);

fn open_wav(mut file: Box<dyn ReadSeek>) -> Result<Opened, DecodeError> {
    let mut reader = Box::new(WavReader::new());
    let mut first = Vec::new();
    let format = loop {
        let more = read_wav(&mut file, &mut reader, &mut first)?;
        match reader.format() {
            Some(format) => break format,
            None if more => {}
            None => return Err(WavError::CutOff.into()),
        }
    };
    let duration = reader
        .frames_left()
        .map(|frames| frames + first.len() as u64 / u64::from(format.channels()))
        .and_then(|frames| usize::try_from(frames).ok())
        .map(|frames| format.rate().duration_of(frames));
    let source = Source::Wav {
        file,
        reader,
        first,
    };
    Ok((source, wav_layout(format), duration))
}

/// Reads and decodes more; whether there was more to read.
fn read_wav(
    file: &mut impl Read,
    reader: &mut WavReader,
    samples: &mut Vec<i16>,
) -> Result<bool, DecodeError> {
    let mut bytes = [0; READ];
    let read = file.read(&mut bytes)?;
    reader.push(&bytes[..read], samples)?;
    Ok(read > 0)
}

fn next_of_wav(
    file: &mut impl Read,
    reader: &mut WavReader,
    first: &mut Vec<i16>,
) -> Result<Option<Pcm>, DecodeError> {
    let mut samples = std::mem::take(first);
    while samples.is_empty() {
        if !read_wav(file, reader, &mut samples)? {
            reader.finish(&mut samples)?;
            break;
        }
    }
    Ok(wav_sound(reader, samples))
}

fn open_ogg_opus(mut file: Box<dyn ReadSeek>, len: u64) -> Result<Opened, DecodeError> {
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    file.by_ref().take(TAIL).read_to_end(&mut tail)?;
    file.rewind()?;

    let mut decoder = Box::new(OggOpusDecoder::new(SampleRate::HZ_48000));
    let head = loop {
        match decoder.reader.next_item()? {
            Some(OggItem::Head(head)) => break head,
            Some(OggItem::Packet(_)) => {}
            None if read_more(&mut file, &mut decoder.reader)? => {}
            None => {
                decoder.reader.finish()?;
                return Err(DecodeError::NoSound);
            }
        }
    };
    let layout = Layout::new(decoder.rate, head.channels);
    decoder.head = Some(head);
    decoder.decoder = Some(OpusDecoder::new(layout)?);
    let duration = ogg::total_frames(head, &tail)
        .and_then(|frames| usize::try_from(frames).ok())
        .map(|frames| SampleRate::HZ_48000.duration_of(frames));
    Ok((Source::OggOpus { file, decoder }, layout, duration))
}

/// Whether there was more to read.
fn read_more(file: &mut impl Read, reader: &mut OggOpusReader) -> io::Result<bool> {
    let mut bytes = [0; READ];
    let read = file.read(&mut bytes)?;
    reader.push(&bytes[..read]);
    Ok(read > 0)
}

fn next_of_ogg_opus(
    file: &mut impl Read,
    decoder: &mut OggOpusDecoder,
) -> Result<Option<Pcm>, DecodeError> {
    loop {
        match decoder.next_sound() {
            Ok(Some(sound)) => return Ok(Some(sound)),
            Ok(None) if read_more(file, &mut decoder.reader)? => {}
            Ok(None) => return Ok(None),
            // A packet is damaged; the next one may be intact.
            Err(DecodeError::Opus(_) | DecodeError::Ogg(OggError::Packet(_))) => {}
            Err(error) => return Err(error),
        }
    }
}

fn open_with_symphonia(file: Box<dyn ReadSeek>, len: u64) -> Result<Opened, DecodeError> {
    /// Pictures and lyrics are of no use; tags are skipped, not stored.
    const KEPT_METADATA: Limit = Limit::Maximum(64 * 1024);
    let file = Box::new(KnownLength { file, len });
    let stream = MediaSourceStream::new(file, MediaSourceStreamOptions::default());
    let metadata = MetadataOptions::default()
        .limit_tag_bytes(KEPT_METADATA)
        .limit_visual_bytes(KEPT_METADATA);
    let format = symphonia::default::get_probe()
        .probe(&Hint::new(), stream, FormatOptions::default(), metadata)
        .map_err(DecodeError::Unrecognised)?;
    let track = format
        .default_track(TrackType::Audio)
        .ok_or(DecodeError::NoSound)?;
    let Some(CodecParameters::Audio(parameters)) = &track.codec_params else {
        return Err(DecodeError::NoSound);
    };
    let rate = SampleRate::new(parameters.sample_rate.ok_or(DecodeError::NoSound)?)?;
    let channels = parameters.channels.as_ref().map_or(1, AnyChannels::count);
    let decoder = symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map_err(DecodeError::File)?;
    let layout = Layout::new(rate, channels_after_mixing(channels));
    let duration = duration_of(track, rate, len);
    let track = track.id;
    let source = Source::Symphonia {
        format,
        decoder,
        track,
    };
    Ok((source, layout, duration))
}

/// The duration that the file claims, unless it cannot be true: programs that stream write lengths they do not know.
fn duration_of(track: &Track, rate: SampleRate, file_len: u64) -> Option<Duration> {
    /// None of the supported codecs packs more frames than this into a byte over any length of time.
    const MAX_FRAMES_PER_BYTE: u64 = 600;
    let frames = track.num_frames?;
    (frames <= file_len.saturating_mul(MAX_FRAMES_PER_BYTE))
        .then(|| rate.duration_of(usize::try_from(frames).unwrap_or(usize::MAX)))
}

fn next_of_symphonia(
    format: &mut dyn FormatReader,
    decoder: &mut dyn AudioDecoder,
    track: u32,
    layout: Layout,
) -> Result<Option<Pcm>, DecodeError> {
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) if packet.track_id == track => packet,
            Ok(Some(_)) => continue,
            Ok(None) => return Ok(None),
            // The end of a truncated file, or of one whose header promised too much.
            Err(SymphoniaError::IoError(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(None);
            }
            Err(SymphoniaError::IoError(error)) => return Err(error.into()),
            Err(error) => return Err(DecodeError::File(error)),
        };
        let buffer = match decoder.decode(&packet) {
            Ok(buffer) => buffer,
            // According to symphonia only this packet is damaged.
            Err(SymphoniaError::DecodeError(_) | SymphoniaError::IoError(_)) => continue,
            Err(error) => return Err(DecodeError::File(error)),
        };
        let rate = SampleRate::new(buffer.spec().rate())?;
        if rate != layout.rate {
            return Err(DecodeError::File(SymphoniaError::ResetRequired));
        }
        let channels = buffer.spec().channels().count();
        let mut samples = Vec::new();
        buffer.copy_to_vec_interleaved(&mut samples);
        let sound = mix_down(samples, channels.max(1), rate).into_channels(layout.channels);
        if !sound.is_empty() {
            return Ok(Some(sound));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opus::{MAX_FRAME_PACKET, OpusEncoder, OpusSettings};
    use crate::wav;

    fn decoder(encoding: Encoding, hz: u32, channels: Channels) -> StreamDecoder {
        let layout = Layout::new(SampleRate::new(hz).unwrap(), channels);
        StreamDecoder::new(AudioFormat { encoding, layout }).unwrap()
    }

    fn samples(decoder: &mut StreamDecoder, bytes: &[u8]) -> Vec<i16> {
        decoder
            .push(bytes)
            .flat_map(|sound| sound.unwrap().into_samples())
            .collect()
    }

    fn packet(layout: Layout) -> Vec<u8> {
        let mut encoder = OpusEncoder::new(layout, OpusSettings::SPEECH).unwrap();
        let mut packet = vec![0; MAX_FRAME_PACKET];
        let silence = vec![0; encoder.frame_samples()];
        let len = encoder.encode(&silence, &mut packet).unwrap();
        packet.truncate(len);
        packet
    }

    #[test]
    fn half_a_frame_waits_for_its_other_half() {
        let mut stereo = decoder(Encoding::Linear16, 16_000, Channels::Stereo);
        assert!(samples(&mut stereo, &[1, 0, 2]).is_empty());
        assert_eq!(samples(&mut stereo, &[0, 3, 0, 4]), [1, 2]);
        assert!(samples(&mut stereo, &[]).is_empty());
        assert_eq!(samples(&mut stereo, &[0, 5]), [3, 4]);
        assert_eq!(stereo.finish().count(), 0);

        let mut stereo = decoder(Encoding::Mulaw, 8_000, Channels::Stereo);
        assert!(samples(&mut stereo, &[0xFF]).is_empty());
        assert_eq!(samples(&mut stereo, &[0xFF, 0xFF]), [0, 0]);
    }

    #[test]
    fn the_header_wins_over_what_was_declared() {
        let mut decoder = decoder(Encoding::Wav, 8_000, Channels::Mono);
        assert_eq!(decoder.layout(), None);
        let truth = Layout::new(SampleRate::HZ_48000, Channels::Stereo);
        assert!(samples(&mut decoder, &wav::header(truth, None)).is_empty());
        assert_eq!(decoder.layout(), Some(truth));
        assert_eq!(samples(&mut decoder, &[1, 0, 2, 0]), [1, 2]);
    }

    #[test]
    fn opus_at_a_rate_that_it_lacks_is_decoded_at_its_own() {
        let mut decoder = decoder(Encoding::Opus, 44_100, Channels::Mono);
        let layout = Layout::mono(SampleRate::HZ_48000);
        assert_eq!(decoder.layout(), Some(layout));
        assert_eq!(samples(&mut decoder, &packet(layout)).len(), 960);
    }

    #[test]
    fn a_damaged_opus_packet_costs_only_itself() {
        let layout = Layout::mono(SampleRate::HZ_16000);
        let mut decoder = decoder(Encoding::Opus, 16_000, Channels::Mono);
        for garbage in [&[][..], &[0xFF], &[0x03, 0x3F]] {
            assert!(decoder.push(garbage).all(|sound| sound.is_err()));
        }
        assert_eq!(samples(&mut decoder, &packet(layout)).len(), 320);
    }

    #[test]
    fn one_failure_is_reported_once() {
        for encoding in [Encoding::Wav, Encoding::OggOpus, Encoding::Mp3] {
            let mut decoder = decoder(encoding, 16_000, Channels::Mono);
            let garbage = [0x20; 10_000];
            let mut failures = 0;
            for _ in 0..20 {
                failures += decoder.push(&garbage).filter(Result::is_err).count();
            }
            failures += decoder.finish().filter(Result::is_err).count();
            assert_eq!(failures, 1, "{encoding}");
        }
    }

    #[test]
    fn a_stream_that_ends_before_it_began_says_so() {
        for encoding in [Encoding::Wav, Encoding::OggOpus, Encoding::Mp3] {
            let mut decoder = decoder(encoding, 16_000, Channels::Mono);
            let results: Vec<_> = decoder.finish().collect();
            assert!(matches!(results[..], [Err(_)]), "{encoding}");
        }
    }

    #[test]
    fn more_than_two_channels_become_their_mean() {
        let rate = SampleRate::HZ_8000;
        let mixed = mix_down(vec![30_000, 30_000, 30_000, -3, -3, 0], 3, rate);
        assert_eq!(mixed, Pcm::new(Layout::mono(rate), vec![30_000, -2]));
    }
}
