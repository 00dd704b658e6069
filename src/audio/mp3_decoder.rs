//! Streaming MP3 decoding (MPEG audio layer III): finds frames in bytes of any chunking (ISO/IEC 11172-3, section
//! 2.4.1) and decodes them one by one with symphonia, buffering at most one frame. Files are decoded by
//! [`super::decode::FileDecoder`]; [`super::mp3_encoder`] encodes.

use std::fmt;

use bytes::{Buf, BytesMut};
use symphonia::core::codecs::audio::{
    AudioCodecParameters, AudioDecoder, AudioDecoderOptions, well_known::CODEC_ID_MP3,
};
use symphonia::core::packet::PacketRef;
use symphonia::core::units;
use symphonia::default::codecs::MpaDecoder;

use super::format::{Channels, FormatError, Layout, SampleRate};
use super::pcm::Pcm;

const HEADER: usize = 4;
const ID3_HEADER: usize = 10;
/// How much may precede the first frame, apart from tags, before the stream is rejected as not MP3.
const MAX_PREAMBLE: usize = 64 * 1024;
/// The delay of a decoder, in addition to the encoder's: 528 samples of the filter bank plus one.
const DECODER_DELAY: u64 = 529;

/// Why a stream cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mp3Error {
    /// There is no frame where the stream should begin.
    #[error("not an MP3 stream")]
    NotMp3,
    /// The sample rate is not supported.
    #[error(transparent)]
    Rate(#[from] FormatError),
    /// The sample rate changes within the stream.
    #[error("the sample rate changes within the MP3 stream, from {from} to {to}")]
    RateChanged {
        /// The rate of the first frame.
        from: SampleRate,
        /// The rate of the current frame.
        to: SampleRate,
    },
}

/// The four bytes at the start of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// The bits that are constant throughout a stream: version, layer and rate.
    kind: u32,
    rate: u32,
    channels: Channels,
    /// MPEG-1 has two granules a frame, MPEG-2 and 2.5 have one.
    mpeg_1: bool,
    bytes: usize,
}

impl FrameHeader {
    /// Sync word, version, layer and rate index.
    const KIND: u32 = 0xFFFE_0C00;
    const SYNC: u32 = 0xFFE0_0000;

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        /// Kilobits per second by bit-rate index. Index 0 ("free") does not determine the frame's length.
        const MPEG_1_KBPS: [usize; 15] = [
            0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
        ];
        const MPEG_2_KBPS: [usize; 15] =
            [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
        const HZ: [u32; 3] = [44_100, 48_000, 32_000];

        let word = u32::from_be_bytes(*bytes.first_chunk()?);
        if word & Self::SYNC != Self::SYNC || (word >> 17) & 3 != 1 {
            return None;
        }
        let (mpeg_1, divisor) = match (word >> 19) & 3 {
            0 => (false, 4),
            2 => (false, 2),
            3 => (true, 1),
            _ => return None,
        };
        let table = if mpeg_1 { MPEG_1_KBPS } else { MPEG_2_KBPS };
        let kbps = *table.get((word as usize >> 12) & 15)?;
        let rate = HZ.get((word as usize >> 10) & 3)? / divisor;
        if kbps == 0 {
            return None;
        }
        let padding = (word as usize >> 9) & 1;
        Some(Self {
            kind: word & Self::KIND,
            rate,
            channels: if (word >> 6) & 3 == 3 {
                Channels::Mono
            } else {
                Channels::Stereo
            },
            mpeg_1,
            bytes: (if mpeg_1 { 144 } else { 72 }) * kbps * 1_000 / rate as usize + padding,
        })
    }

    const fn samples(self) -> u64 {
        if self.mpeg_1 { 1_152 } else { 576 }
    }

    /// Bytes of side information between header and main data; a Xing tag is found after them.
    const fn side_info(self) -> usize {
        match (self.mpeg_1, self.channels) {
            (true, Channels::Stereo) => 32,
            (true, Channels::Mono) | (false, Channels::Stereo) => 17,
            (false, Channels::Mono) => 9,
        }
    }
}

/// What the first frame says about the stream if it is a Xing, Info or VBRI tag instead of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Tag {
    /// Samples per channel before the audio.
    delay: u64,
    /// Samples per channel of the audio itself.
    sound: Option<u64>,
}

impl Tag {
    fn read(header: FrameHeader, frame: &[u8]) -> Option<Self> {
        const VBRI_AT: usize = 36;
        if frame.get(VBRI_AT..)?.starts_with(b"VBRI") {
            return Some(Self::default());
        }
        let mut tag = frame.get(HEADER + header.side_info()..)?;
        if !tag.starts_with(b"Xing") && !tag.starts_with(b"Info") {
            return None;
        }
        tag.advance(4);
        let flags = tag.try_get_u32().ok()?;
        let frames = if flags & 1 == 0 {
            None
        } else {
            tag.try_get_u32().ok()
        };
        // Bytes, table of contents, quality; then the encoder's name, of which LAME's extension is the rest.
        let fields = [(2, 4), (4, 100), (8, 4)];
        let skipped: usize = fields
            .iter()
            .filter(|(flag, _)| flags & flag != 0)
            .map(|(_, len)| len)
            .sum();
        let delays = tag.get(skipped + 21..skipped + 24);
        let Some(&[a, b, c]) = delays.filter(|delays| delays.iter().any(|&byte| byte != 0)) else {
            return Some(Self::default());
        };
        let delay = u64::from(a) << 4 | u64::from(b) >> 4;
        let padding = u64::from(b & 0x0F) << 8 | u64::from(c);
        Some(Self {
            delay: delay + DECODER_DELAY,
            sound: frames.map(|frames| {
                (u64::from(frames) * header.samples()).saturating_sub(delay + padding)
            }),
        })
    }
}

/// Decodes one stream.
pub struct Mp3Decoder {
    buffer: BytesMut,
    /// Remaining bytes of an ID3 tag.
    tag_bytes: usize,
    skipped: usize,
    decoder: Option<MpaDecoder>,
    /// The first frame's header, which determines the stream's rate and channels.
    first: Option<FrameHeader>,
    layout: Option<Layout>,
    /// The channels for which the decoder was created.
    channels: Channels,
    /// Whether the last frame ended where the next is expected.
    in_sync: bool,
    ended: bool,
    delay: u64,
    sound: Option<u64>,
}

impl fmt::Debug for Mp3Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mp3Decoder")
            .field("layout", &self.layout)
            .field("waiting", &self.buffer.len())
            .finish_non_exhaustive()
    }
}

impl Default for Mp3Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Mp3Decoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            tag_bytes: 0,
            skipped: 0,
            decoder: None,
            first: None,
            layout: None,
            channels: Channels::Mono,
            in_sync: false,
            ended: false,
            delay: 0,
            sound: None,
        }
    }

    /// The layout, known from the first frame on.
    pub const fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// Pushes bytes. Drain [`Self::next_sound`] before the next call.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Signals the end, so that the last frame needs no successor.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The audio of the next frame; `None` until more bytes are pushed. Damaged frames are skipped.
    pub fn next_sound(&mut self) -> Result<Option<Pcm>, Mp3Error> {
        while let Some(header) = self.next_header()? {
            let frame = self.buffer.split_to(header.bytes).freeze();
            let layout = self.begin(header)?;
            if self.first.is_none() {
                self.first = Some(header);
                if let Some(tag) = Tag::read(header, &frame) {
                    (self.delay, self.sound) = (tag.delay, tag.sound);
                    continue;
                }
            }
            if let Some(sound) = self.decode(layout, &frame) {
                return Ok(Some(sound));
            }
        }
        if self.ended && self.first.is_none() {
            return Err(Mp3Error::NotMp3);
        }
        Ok(None)
    }

    /// The header of the frame at the start of the buffer, once the whole frame is there.
    fn next_header(&mut self) -> Result<Option<FrameHeader>, Mp3Error> {
        loop {
            let tag_bytes = self.tag_bytes.min(self.buffer.len());
            self.buffer.advance(tag_bytes);
            self.tag_bytes -= tag_bytes;
            if self.first.is_none() && self.buffer.starts_with(b"ID3") {
                if self.buffer.len() < ID3_HEADER {
                    return Ok(None);
                }
                self.tag_bytes = id3_len(&self.buffer);
                continue;
            }
            match self.sync() {
                Sync::Frame(header) => {
                    self.in_sync = true;
                    return Ok(Some(header));
                }
                Sync::More => return Ok(None),
                Sync::No => {
                    self.in_sync = false;
                    let next = self
                        .buffer
                        .iter()
                        .skip(1)
                        .position(|&b| b == 0xFF || b == b'I');
                    let skip = next.map_or(self.buffer.len(), |next| next + 1);
                    self.buffer.advance(skip);
                    self.skipped = self.skipped.saturating_add(skip);
                    if self.first.is_none() && self.skipped > MAX_PREAMBLE {
                        return Err(Mp3Error::NotMp3);
                    }
                }
            }
        }
    }

    /// Whether a frame begins here. Random bytes sometimes look like a header, so while out of sync the next frame must
    /// be of the same kind.
    fn sync(&self) -> Sync {
        if self.buffer.len() < HEADER {
            return Sync::More;
        }
        let Some(header) = FrameHeader::read(&self.buffer) else {
            return Sync::No;
        };
        if self.first.is_some_and(|first| first.kind != header.kind) && !self.in_sync {
            return Sync::No;
        }
        if self.buffer.len() < header.bytes {
            return if self.ended { Sync::No } else { Sync::More };
        }
        if self.in_sync {
            return Sync::Frame(header);
        }
        let next = &self.buffer[header.bytes..];
        match FrameHeader::read(next) {
            Some(next) if next.kind == header.kind => Sync::Frame(header),
            None if next.len() < HEADER && self.ended => Sync::Frame(header),
            None if next.len() < HEADER => Sync::More,
            _ => Sync::No,
        }
    }

    fn begin(&mut self, header: FrameHeader) -> Result<Layout, Mp3Error> {
        let rate = SampleRate::new(header.rate)?;
        let layout = *self
            .layout
            .get_or_insert(Layout::new(rate, header.channels));
        if rate != layout.rate {
            return Err(Mp3Error::RateChanged {
                from: layout.rate,
                to: rate,
            });
        }
        if self.channels != header.channels {
            self.channels = header.channels;
            self.decoder = None;
        }
        Ok(layout)
    }

    fn decode(&mut self, layout: Layout, frame: &[u8]) -> Option<Pcm> {
        if self.decoder.is_none() {
            let mut parameters = AudioCodecParameters::new();
            parameters.for_codec(CODEC_ID_MP3);
            let options = AudioDecoderOptions::default().gapless(false);
            self.decoder = MpaDecoder::try_new(&parameters, &options).ok();
        }
        let packet = PacketRef::new(0, units::Timestamp::ZERO, units::Duration::ZERO, frame);
        let decoded = self.decoder.as_mut()?.decode_ref(&packet).ok()?;
        let mut samples = Vec::new();
        decoded.copy_to_vec_interleaved(&mut samples);
        let from = Layout::new(layout.rate, self.channels);
        let sound = self.trim(Pcm::new(from, samples).into_channels(layout.channels));
        (!sound.is_empty()).then_some(sound)
    }

    /// Removes what the encoder added before and after the audio.
    fn trim(&mut self, sound: Pcm) -> Pcm {
        let frames = sound.frames() as u64;
        let skip = self.delay.min(frames);
        let keep = self
            .sound
            .map_or(frames - skip, |left| left.min(frames - skip));
        self.delay -= skip;
        self.sound = self.sound.map(|left| left - keep);
        if keep == frames {
            return sound;
        }
        let layout = sound.layout();
        let channels = layout.channels.count();
        let heard = skip as usize * channels..(skip + keep) as usize * channels;
        Pcm::new(layout, sound.samples()[heard].to_vec())
    }
}

enum Sync {
    Frame(FrameHeader),
    More,
    No,
}

/// The length of an ID3v2 tag: seven bits per byte, and ten more bytes for a footer.
fn id3_len(header: &[u8]) -> usize {
    let body = header[6..ID3_HEADER]
        .iter()
        .fold(0, |len, &byte| len << 7 | usize::from(byte & 0x7F));
    let footer = if header[5] & 0x10 == 0 { 0 } else { ID3_HEADER };
    ID3_HEADER + body + footer
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Silent frames of 64 kbit/s at 24 kHz mono, whose main data is all zero.
    fn silence(count: usize) -> Vec<u8> {
        let mut frame = [0; 192];
        frame[..4].copy_from_slice(&[0xFF, 0xF3, 0x84, 0xC0]);
        frame.repeat(count)
    }

    fn frames(bytes: &[u8], chunk: usize) -> Result<(usize, Mp3Decoder), Mp3Error> {
        let mut decoder = Mp3Decoder::new();
        let mut frames = 0;
        for piece in bytes.chunks(chunk) {
            decoder.push(piece);
            while let Some(sound) = decoder.next_sound()? {
                frames += sound.frames();
            }
        }
        decoder.end();
        while let Some(sound) = decoder.next_sound()? {
            frames += sound.frames();
        }
        Ok((frames, decoder))
    }

    #[test]
    fn headers_say_rate_channels_and_length() {
        let header = FrameHeader::read(&silence(1)).unwrap();
        assert_eq!((header.rate, header.bytes), (24_000, 192));
        let header = FrameHeader::read(&[0xFF, 0xFB, 0x92, 0x64]).unwrap();
        assert_eq!((header.rate, header.bytes), (44_100, 418));
        assert_eq!(header.channels, Channels::Stereo);
        for wrong in [
            [0xFF, 0xFB, 0xF0, 0],
            [0xFF, 0xFB, 0x0C, 0],
            [0xFF, 0xFD, 0x90, 0],
        ] {
            assert_eq!(FrameHeader::read(&wrong), None);
        }
    }

    #[test]
    fn tags_before_and_junk_between_frames_are_skipped() {
        let mut bytes = b"ID3\x04\0\0\0\0\x01\x00".to_vec();
        bytes.extend(silence(1)[..128].iter().map(|_| 0xFF));
        bytes.extend(silence(5));
        bytes.extend(b"junk\xFF\xFFjunk");
        bytes.extend(silence(5));
        bytes.extend(b"TAG and the title");
        for chunk in [1, 7, 100, 5_000] {
            let (frames, decoder) = frames(&bytes, chunk).unwrap();
            assert_eq!(frames, 10 * 576, "{chunk}");
            assert_eq!(decoder.layout(), Some(Layout::mono(SampleRate::HZ_24000)));
        }
    }

    #[test]
    fn a_cut_frame_at_the_end_is_not_heard() {
        let bytes = silence(3);
        assert_eq!(frames(&bytes[..500], 50).unwrap().0, 2 * 576);
    }

    #[test]
    fn no_frame_at_all_is_an_error() {
        assert!(matches!(frames(b"", 1), Err(Mp3Error::NotMp3)));
        assert!(matches!(frames(&[0x20; 1_000], 9), Err(Mp3Error::NotMp3)));
        let mut decoder = Mp3Decoder::new();
        decoder.push(&vec![0xFF; MAX_PREAMBLE + 10]);
        assert!(matches!(decoder.next_sound(), Err(Mp3Error::NotMp3)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_streams_never_panic_and_keep_little(
            damage in prop::collection::vec((0usize..1_920, any::<u8>()), 0..40),
            chunk in 1usize..600,
        ) {
            let mut bytes = silence(10);
            for (at, value) in damage {
                bytes[at] = value;
            }
            if let Ok((frames, decoder)) = frames(&bytes, chunk) {
                prop_assert!(frames <= 20 * 1_152);
                prop_assert!(decoder.buffer.len() < 3_000);
            }
        }
    }
}
