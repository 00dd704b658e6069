//! RIFF/WAVE: headers for 16-bit PCM, written at once or patched afterwards, and a streaming reader for PCM of any
//! width, float, G.711 and ADPCM that tolerates wrong lengths in the header.

use super::adpcm::Adpcm;
use super::format::{Layout, SampleRate};
use super::g711::Law;
use super::linear16;

/// The size of the headers we write.
pub const HEADER_LEN: usize = 44;
/// The part of it that is included in the RIFF length.
const COUNTED: u32 = 36;
/// The size of its format chunk.
const FORMAT_LEN: u32 = 16;
/// Lengths from here on come from programs that did not know them (0x7ffff000 from espeak-ng, 0xffffffff).
const FAKE_LEN: u32 = 0x7FFF_0000;
/// The maximum size of a format chunk; the longest one defined has 40 bytes.
const MAX_FORMAT_CHUNK: u32 = 1_024;
/// The maximum number of channels that are mixed down.
const MAX_CHANNELS: u16 = 32;

/// Why a WAV stream cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WavError {
    /// It does not begin like a WAV stream.
    #[error("not a WAV stream")]
    NotWav,
    /// It ended before its audio.
    #[error("the WAV header is cut off")]
    CutOff,
    /// The header contradicts itself.
    #[error("damaged WAV header: {0}")]
    Header(&'static str),
    /// The sample rate is not supported.
    #[error(transparent)]
    Rate(#[from] super::format::FormatError),
    /// The coding is not supported.
    #[error("unsupported WAV coding: format tag {tag:#06x} with {bits} bits")]
    Coding {
        /// `wFormatTag`.
        tag: u16,
        /// `wBitsPerSample`.
        bits: u16,
    },
}

/// The coding of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleFormat {
    /// 16-bit integers.
    I16,
    /// 32-bit integers.
    I32,
    /// 16-bit floating point.
    F16,
    /// 32-bit floating point.
    F32,
    /// G.711, one byte each.
    Companded(Law),
}

impl SampleFormat {
    /// `wFormatTag` and bytes per sample.
    const fn tag_and_bytes(self) -> (u16, u16) {
        match self {
            Self::I16 => (PCM, 2),
            Self::I32 => (PCM, 4),
            Self::F16 => (FLOAT, 2),
            Self::F32 => (FLOAT, 4),
            Self::Companded(Law::A) => (A_LAW, 1),
            Self::Companded(Law::Mu) => (MU_LAW, 1),
        }
    }
}

/// The length of the data after a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataLength {
    /// Known. A length that does not fit into the header becomes [`Self::Unknown`].
    Known(u32),
    /// Unknown, written as the maximum, as most programs write and understand it.
    Unknown,
    /// Unknown, written as zeros, as some services expect.
    UnknownAsZero,
}

/// The header of 16-bit PCM with `data_len` bytes of samples; `None` (or more than fits) for a stream of unknown
/// length.
pub fn header(layout: Layout, data_len: Option<u32>) -> [u8; HEADER_LEN] {
    let length = data_len.map_or(DataLength::Unknown, DataLength::Known);
    header_of(SampleFormat::I16, layout, length)
}

/// The header of samples in this format.
pub fn header_of(samples: SampleFormat, layout: Layout, length: DataLength) -> [u8; HEADER_LEN] {
    let (riff_len, data_len) = match length {
        DataLength::Known(len) if len <= u32::MAX - COUNTED => (len + COUNTED, len),
        DataLength::Known(_) | DataLength::Unknown => (u32::MAX, u32::MAX),
        DataLength::UnknownAsZero => (0, 0),
    };
    let (tag, bytes) = samples.tag_and_bytes();
    let channels = layout.channels.count() as u16;
    let frame = channels * bytes;
    let rate = layout.rate.hz();
    let mut header = [0; HEADER_LEN];
    header[0..4].copy_from_slice(b"RIFF");
    header[4..8].copy_from_slice(&riff_len.to_le_bytes());
    header[8..16].copy_from_slice(b"WAVEfmt ");
    header[16..20].copy_from_slice(&FORMAT_LEN.to_le_bytes());
    header[20..22].copy_from_slice(&tag.to_le_bytes());
    header[22..24].copy_from_slice(&channels.to_le_bytes());
    header[24..28].copy_from_slice(&rate.to_le_bytes());
    header[28..32].copy_from_slice(&(rate * u32::from(frame)).to_le_bytes());
    header[32..34].copy_from_slice(&frame.to_le_bytes());
    header[34..36].copy_from_slice(&(8 * bytes).to_le_bytes());
    header[36..40].copy_from_slice(b"data");
    header[40..44].copy_from_slice(&data_len.to_le_bytes());
    header
}

/// Our header plus the size of an empty extension of the format chunk (`cbSize`), which the specification requires for
/// anything but PCM; few programs write it and none miss it.
pub fn with_extension_size(header: [u8; HEADER_LEN]) -> [u8; HEADER_LEN + 2] {
    let mut longer = [0; HEADER_LEN + 2];
    longer[..36].copy_from_slice(&header[..36]);
    longer[38..].copy_from_slice(&header[36..]);
    longer[16..20].copy_from_slice(&(FORMAT_LEN + 2).to_le_bytes());
    let riff_len = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if !matches!(riff_len, 0 | u32::MAX) {
        longer[4..8].copy_from_slice(&riff_len.saturating_add(2).to_le_bytes());
    }
    longer
}

/// Writes the true length into a finished stream of `total_len` bytes that began with our [`header`]. `start` is at
/// least its first [`HEADER_LEN`] bytes; a stream that is too short or too long for a length is left as it is.
pub fn patch_length(start: &mut [u8], total_len: u64) {
    let Some(data_len) = total_len
        .checked_sub(HEADER_LEN as u64)
        .and_then(|len| u32::try_from(len).ok())
        .filter(|&len| len <= u32::MAX - COUNTED)
    else {
        return;
    };
    if let Some(header) = start.get_mut(..HEADER_LEN) {
        header[4..8].copy_from_slice(&(data_len + COUNTED).to_le_bytes());
        header[40..44].copy_from_slice(&data_len.to_le_bytes());
    }
}

const PCM: u16 = 1;
const MS_ADPCM: u16 = 2;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const IMA_ADPCM: u16 = 0x11;
const EXTENSIBLE: u16 = 0xFFFE;

/// The coding of samples in a readable stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    U8,
    I16,
    I24,
    I32,
    F32,
    F64,
    Companded(Law),
    Adpcm(Adpcm),
}

impl Coding {
    fn new(tag: u16, bits: u16) -> Result<Self, WavError> {
        Ok(match (tag, bits) {
            (PCM, 8) => Self::U8,
            (PCM, 16) => Self::I16,
            (PCM, 24) => Self::I24,
            (PCM, 32) => Self::I32,
            (FLOAT, 32) => Self::F32,
            (FLOAT, 64) => Self::F64,
            (A_LAW, 8) => Self::Companded(Law::A),
            (MU_LAW, 8) => Self::Companded(Law::Mu),
            (MS_ADPCM, 4) => Self::Adpcm(Adpcm::Ms),
            (IMA_ADPCM, 4) => Self::Adpcm(Adpcm::Ima),
            _ => return Err(WavError::Coding { tag, bits }),
        })
    }

    /// The size of the smallest decodable block: a frame, except for ADPCM. `None` if `block_bytes` from the header is
    /// not possible.
    fn block(self, block_bytes: usize, channels: usize) -> Option<usize> {
        let frame = match self {
            Self::U8 | Self::Companded(_) => channels,
            Self::I16 => channels * 2,
            Self::I24 => channels * 3,
            Self::I32 | Self::F32 => channels * 4,
            Self::F64 => channels * 8,
            Self::Adpcm(kind) => {
                return kind
                    .frames_of_block(block_bytes, channels)
                    .map(|_| block_bytes);
            }
        };
        (frame == block_bytes).then_some(frame)
    }
}

/// The format chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WavFormat {
    coding: Coding,
    channels: u16,
    rate: SampleRate,
    block_bytes: usize,
}

impl WavFormat {
    fn read(chunk: &[u8]) -> Result<Self, WavError> {
        let word = |at: usize| {
            let pair = chunk.get(at..at + 2).and_then(|pair| pair.try_into().ok());
            pair.map(u16::from_le_bytes)
                .ok_or(WavError::Header("the format chunk is too short"))
        };
        let bits = word(14)?;
        let tag = match word(0)? {
            // The actual tag is at the beginning of the 16-byte GUID of the coding.
            EXTENSIBLE => word(24)?,
            tag => tag,
        };
        let channels = word(2)?;
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(WavError::Header("no channels, or too many"));
        }
        let hz = u32::from(word(4)?) | u32::from(word(6)?) << 16;
        let coding = Coding::new(tag, bits)?;
        let block_bytes = coding
            .block(word(12)?.into(), channels.into())
            .ok_or(WavError::Header("frames of an impossible length"))?;
        Ok(Self {
            coding,
            channels,
            rate: SampleRate::new(hz)?,
            block_bytes,
        })
    }

    /// The channels in the stream.
    pub const fn channels(&self) -> u16 {
        self.channels
    }

    /// Frames per second.
    pub const fn rate(&self) -> SampleRate {
        self.rate
    }

    /// Whether the samples are 16-bit PCM in the file as well.
    pub const fn is_pcm16(&self) -> bool {
        matches!(self.coding, Coding::I16)
    }

    /// Frames in this many bytes.
    fn frames_in(&self, bytes: u64) -> u64 {
        let frames = match self.coding {
            Coding::Adpcm(kind) => kind.frames_of_block(self.block_bytes, self.channels.into()),
            _ => Some(1),
        };
        (bytes / self.block_bytes as u64).saturating_mul(frames.unwrap_or(0))
    }

    /// Appends the samples of whole blocks, as 16 bits.
    fn decode(&self, bytes: &[u8], samples: &mut Vec<i16>) {
        let words = |width| bytes.chunks_exact(width);
        // Conversion from float saturates; NaN becomes silence.
        let float = |value: f64| (value * 32_768.0).round() as i16;
        match self.coding {
            Coding::U8 => samples.extend(bytes.iter().map(|&b| (i16::from(b) - 128) << 8)),
            Coding::I16 => linear16::decode(bytes, samples),
            Coding::I24 => samples.extend(words(3).map(|w| i16::from_le_bytes([w[1], w[2]]))),
            Coding::I32 => samples.extend(words(4).map(|w| i16::from_le_bytes([w[2], w[3]]))),
            Coding::F32 => samples.extend(words(4).map(|word| {
                let value = word.try_into().map_or(0.0, f32::from_le_bytes);
                float(value.into())
            })),
            Coding::F64 => samples.extend(
                words(8).map(|word| float(word.try_into().map_or(0.0, f64::from_le_bytes))),
            ),
            Coding::Companded(law) => law.expand(bytes, samples),
            Coding::Adpcm(kind) => {
                for block in bytes.chunks(self.block_bytes) {
                    kind.decode(block, self.channels.into(), samples);
                }
            }
        }
    }
}

/// Reads a WAV stream: bytes in any chunking in, interleaved samples out.
#[derive(Debug)]
pub struct WavReader {
    state: State,
    format: Option<WavFormat>,
    /// An incomplete header or frame.
    held: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The RIFF header, twelve bytes.
    Riff,
    /// A chunk header, eight bytes.
    Chunk,
    /// The format chunk, with its size.
    Format(usize),
    /// An ignored chunk, with its remaining bytes.
    Skip(u64),
    /// Samples, with their remaining bytes; if the length is not credible, until the end of the stream.
    Sound(Option<u64>),
    /// After the samples.
    After,
}

impl WavReader {
    /// A reader at the start of a stream.
    pub const fn new() -> Self {
        Self {
            state: State::Riff,
            format: None,
            held: Vec::new(),
        }
    }

    /// The layout of the samples, known once the header has been read.
    pub fn format(&self) -> Option<WavFormat> {
        self.format.filter(|_| self.has_begun())
    }

    /// The remaining frames according to the header; `None` if it does not know.
    pub fn frames_left(&self) -> Option<u64> {
        let State::Sound(bytes) = self.state else {
            return Some(0);
        };
        Some(self.format?.frames_in(bytes?))
    }

    fn has_begun(&self) -> bool {
        matches!(self.state, State::Sound(_) | State::After)
    }

    /// Appends the samples in the next bytes of the stream.
    pub fn push(&mut self, mut bytes: &[u8], samples: &mut Vec<i16>) -> Result<(), WavError> {
        while !bytes.is_empty() {
            match self.state {
                State::Riff => {
                    if self.hold(&mut bytes, 12) {
                        self.riff()?;
                    }
                }
                State::Chunk => {
                    if self.hold(&mut bytes, 8) {
                        self.chunk()?;
                    }
                }
                State::Format(len) => {
                    if self.hold(&mut bytes, len) {
                        self.format = Some(WavFormat::read(&self.held)?);
                        self.held.clear();
                        // Chunks are aligned to even positions.
                        self.state = State::Skip(len as u64 % 2);
                    }
                }
                State::Skip(len) => {
                    let skipped = len.min(bytes.len() as u64);
                    bytes = &bytes[skipped as usize..];
                    self.state = match len - skipped {
                        0 => State::Chunk,
                        rest => State::Skip(rest),
                    };
                }
                State::Sound(rest) => bytes = self.sound(bytes, rest, samples),
                State::After => return Ok(()),
            }
        }
        Ok(())
    }

    /// Signals the end and appends an incomplete last ADPCM block: an error if the stream had no audio.
    pub fn finish(&mut self, samples: &mut Vec<i16>) -> Result<(), WavError> {
        let format = self.format().ok_or(WavError::CutOff)?;
        if let Coding::Adpcm(_) = format.coding {
            format.decode(&std::mem::take(&mut self.held), samples);
        }
        Ok(())
    }

    /// Moves bytes into `held` until it has `len`; true once it has.
    fn hold(&mut self, bytes: &mut &[u8], len: usize) -> bool {
        let wanted = len.saturating_sub(self.held.len()).min(bytes.len());
        let (taken, rest) = bytes.split_at(wanted);
        self.held.extend_from_slice(taken);
        *bytes = rest;
        self.held.len() >= len
    }

    fn riff(&mut self) -> Result<(), WavError> {
        let known = [&b"RIFF"[..], b"RF64", b"BW64"].contains(&&self.held[..4]);
        if !known || &self.held[8..12] != b"WAVE" {
            return Err(WavError::NotWav);
        }
        self.held.clear();
        self.state = State::Chunk;
        Ok(())
    }

    fn chunk(&mut self) -> Result<(), WavError> {
        let len = self.held[4..8].try_into().map_or(0, u32::from_le_bytes);
        self.state = match &self.held[..4] {
            b"fmt " if len > MAX_FORMAT_CHUNK => {
                return Err(WavError::Header("the format chunk is too long"));
            }
            b"fmt " => State::Format(len as usize),
            b"data" if self.format.is_none() => {
                return Err(WavError::Header("samples without a format"));
            }
            // Programs that stream also write 0.
            b"data" if len == 0 || len >= FAKE_LEN => State::Sound(None),
            b"data" => State::Sound(Some(len.into())),
            _ => State::Skip(u64::from(len) + u64::from(len % 2)),
        };
        self.held.clear();
        // An empty chunk is complete without further bytes.
        match self.state {
            State::Skip(0) => self.state = State::Chunk,
            State::Format(0) => return Err(WavError::Header("the format chunk is too short")),
            _ => {}
        }
        Ok(())
    }

    /// Decodes the audio at the start of `bytes` and returns what follows it.
    fn sound<'a>(
        &mut self,
        bytes: &'a [u8],
        rest: Option<u64>,
        samples: &mut Vec<i16>,
    ) -> &'a [u8] {
        let taken = rest.map_or(bytes.len(), |rest| {
            usize::try_from(rest).unwrap_or(usize::MAX).min(bytes.len())
        });
        let (sound, after) = bytes.split_at(taken);
        self.state = match rest.map(|rest| rest - taken as u64) {
            Some(0) => State::After,
            rest => State::Sound(rest),
        };
        if let Some(format) = self.format {
            whole_frames(&mut self.held, sound, format.block_bytes, |blocks| {
                format.decode(blocks, samples);
            });
        }
        after
    }
}

impl Default for WavReader {
    fn default() -> Self {
        Self::new()
    }
}

/// Passes the whole frames in `held` and `bytes` to `decode`, copying at most one frame, and holds the remainder for
/// the next call.
pub(super) fn whole_frames(
    held: &mut Vec<u8>,
    mut bytes: &[u8],
    frame: usize,
    mut decode: impl FnMut(&[u8]),
) {
    if !held.is_empty() {
        let (missing, rest) = bytes.split_at((frame - held.len() % frame).min(bytes.len()));
        held.extend_from_slice(missing);
        bytes = rest;
        if held.len() < frame {
            return;
        }
        decode(held);
        held.clear();
    }
    let (whole, part) = bytes.split_at(bytes.len() - bytes.len() % frame);
    if !whole.is_empty() {
        decode(whole);
    }
    held.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Channels;
    use proptest::prelude::*;

    const STEREO: Layout = Layout::new(SampleRate::HZ_16000, Channels::Stereo);

    fn read(bytes: &[u8], chunk: usize) -> Result<(Option<WavFormat>, Vec<i16>), WavError> {
        let mut reader = WavReader::new();
        let mut samples = Vec::new();
        for piece in bytes.chunks(chunk.max(1)) {
            reader.push(piece, &mut samples)?;
        }
        reader.finish(&mut samples)?;
        Ok((reader.format(), samples))
    }

    fn chunked(tag: u16, channels: u16, bits: u16, before: &[u8], data: &[u8]) -> Vec<u8> {
        let frame = channels * bits / 8;
        let mut bytes = b"RIFF\0\0\0\0WAVE".to_vec();
        bytes.extend_from_slice(before);
        bytes.extend_from_slice(b"fmt \x10\0\0\0");
        for word in [tag, channels, 8_000, 0, 8_000 * frame, 0, frame, bits] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(b"data");
        bytes.extend_from_slice(&(data.len() as u32).to_le_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    #[test]
    fn what_we_write_we_read() {
        let samples: Vec<i16> = (0..1_000).collect();
        for len in [Some(2_000), None] {
            let mut bytes = header(STEREO, len).to_vec();
            bytes.extend_from_slice(&linear16::encode(&samples));
            let (format, read) = read(&bytes, 3).unwrap();
            assert_eq!(read, samples);
            assert_eq!(format.unwrap().rate(), SampleRate::HZ_16000);
            assert_eq!(format.unwrap().channels(), 2);
        }
    }

    #[test]
    fn every_header_names_its_samples_and_its_length() {
        let formats = [
            (SampleFormat::I16, 1, 2),
            (SampleFormat::I32, 1, 4),
            (SampleFormat::F16, 3, 2),
            (SampleFormat::F32, 3, 4),
            (SampleFormat::Companded(Law::A), 6, 1),
            (SampleFormat::Companded(Law::Mu), 7, 1),
        ];
        for (samples, tag, bytes) in formats {
            let number =
                |header: &[u8], at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
            let header = header_of(samples, STEREO, DataLength::Known(1_000));
            assert_eq!(number(&header, 20), tag);
            assert_eq!(number(&header, 32), 2 * bytes);
            assert_eq!(number(&header, 34), 8 * bytes);
            assert_eq!(header[28..32], (32_000 * u32::from(bytes)).to_le_bytes());
            assert_eq!((number(&header, 4), number(&header, 40)), (1_036, 1_000));
            let longer = with_extension_size(header);
            assert_eq!(longer[20..36], header[20..36]);
            assert_eq!((number(&longer, 4), number(&longer, 16)), (1_038, 18));
            assert_eq!(longer[36..38], [0, 0]);
            assert_eq!(longer[38..], header[36..]);
        }
    }

    #[test]
    fn an_unknown_length_is_the_highest_number_or_zero() {
        for (length, number) in [
            (DataLength::Unknown, u32::MAX),
            (DataLength::Known(u32::MAX - 35), u32::MAX),
            (DataLength::UnknownAsZero, 0),
        ] {
            let header = header_of(SampleFormat::I16, STEREO, length);
            assert_eq!(header[4..8], number.to_le_bytes());
            assert_eq!(header[40..44], number.to_le_bytes());
            let longer = with_extension_size(header);
            assert_eq!(longer[4..8], number.to_le_bytes());
            assert_eq!(longer[42..46], number.to_le_bytes());
        }
    }

    #[test]
    fn a_finished_stream_gets_its_true_length() {
        let mut bytes = header(STEREO, None).to_vec();
        bytes.extend_from_slice(&[0; 400]);
        let total = bytes.len() as u64;
        patch_length(&mut bytes, total);
        assert_eq!(bytes[..HEADER_LEN], header(STEREO, Some(400)));
        patch_length(&mut bytes[..10], total);
        patch_length(&mut bytes, 10);
        patch_length(&mut bytes, 5_000_000_000);
        assert_eq!(bytes[..HEADER_LEN], header(STEREO, Some(400)));
    }

    #[test]
    fn chunks_that_nobody_knows_are_skipped_before_and_after_the_sound() {
        let mut bytes = chunked(
            PCM,
            1,
            16,
            b"LIST\x05\0\0\0abcde\0JUNK\0\0\0\0",
            &[1, 0, 2, 0],
        );
        bytes.extend_from_slice(b"LIST\x04\0\0\0abcd");
        for chunk in 1..20 {
            assert_eq!(read(&bytes, chunk).unwrap().1, [1, 2]);
        }
    }

    #[test]
    fn a_length_that_cannot_be_true_means_to_the_end() {
        for len in [0u32, 0x7FFF_F000, u32::MAX] {
            let mut bytes = header(Layout::mono(SampleRate::HZ_8000), None).to_vec();
            bytes[40..44].copy_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(&[5, 0, 6, 0, 7]);
            assert_eq!(read(&bytes, 7).unwrap().1, [5, 6]);
        }
    }

    #[test]
    fn every_coding_gives_the_same_half_scale() {
        let cases: [(u16, u16, &[u8]); 7] = [
            (PCM, 8, &[0xC0]),
            (PCM, 16, &[0, 0x40]),
            (PCM, 24, &[0, 0, 0x40]),
            (PCM, 32, &[0, 0, 0, 0x40]),
            (FLOAT, 32, &[0, 0, 0, 0x3F]),
            (FLOAT, 64, &[0, 0, 0, 0, 0, 0, 0xE0, 0x3F]),
            (MU_LAW, 8, &[0x8F]),
        ];
        for (tag, bits, data) in cases {
            let sample = read(&chunked(tag, 1, bits, b"", data), 5).unwrap().1[0];
            assert!(
                (16_000..=16_800).contains(&sample),
                "{tag} {bits}: {sample}"
            );
        }
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        assert_eq!(read(b"ID3 and so on", 4), Err(WavError::NotWav));
        assert_eq!(read(b"RIFF", 4), Err(WavError::CutOff));
        let mpeg = chunked(0x55, 1, 0, b"", &[]);
        assert!(matches!(
            read(&mpeg, 9),
            Err(WavError::Coding { tag: 0x55, .. })
        ));
        let mut fast = chunked(PCM, 1, 16, b"", &[]);
        fast[24..28].copy_from_slice(&4_000_000_000u32.to_le_bytes());
        assert!(matches!(read(&fast, 9), Err(WavError::Rate(_))));
        let silent = chunked(PCM, 0, 16, b"", &[]);
        assert!(matches!(read(&silent, 9), Err(WavError::Header(_))));
        assert!(matches!(
            read(b"RIFF\0\0\0\0WAVEdata\x04\0\0\0abcd", 9),
            Err(WavError::Header(_))
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn damaged_headers_never_panic(at in 0usize..60, value: u8, cut in 0usize..60) {
            let mut bytes = chunked(PCM, 2, 16, b"LIST\x02\0\0\0ab", &[1, 0, 2, 0, 3, 0]);
            bytes.truncate(cut);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            let _ = read(&bytes, 7);
        }
    }
}
