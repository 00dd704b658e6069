//! Ogg/Opus (RFC 3533, RFC 7845): packing packets into pages and back, as pure structs that process bytes, not files.
//! Times are in frames at 48 kHz, the clock of Opus; [`super::opus`] codes the packets.

mod join;
mod mute;
mod repair;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::format::{Channels, SampleRate};
use super::opus::{OpusError, clock_frames};

pub use join::join;
pub use mute::{Silenced, Stretch, mute};
pub use repair::{Repaired, Truncate, repair, silent_stream};

/// The default duration of a page: RFC 7845 recommends at most a second, and live listeners want less.
pub const PAGE_TIME: Duration = Duration::from_millis(200);

const CAPTURE: &[u8; 4] = b"OggS";
/// The size of a page header before its lacing values.
const HEADER: usize = 27;
const CRC_AT: Range<usize> = 22..26;
const MAX_LACING: usize = 255;
const MAX_BODY: usize = MAX_LACING * 255;
/// A granule position without meaning (RFC 3533, section 6).
const NO_GRANULE: u64 = u64::MAX;
/// How much may precede the first page before the stream is rejected as not Ogg.
const MAX_PREAMBLE: usize = 64 * 1024;

const CONTINUED: u8 = 1;
const BEGIN: u8 = 2;
const END: u8 = 4;

/// Why a stream cannot be written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OggError {
    /// There is no page where the stream should begin.
    #[error("not an Ogg stream")]
    NotOgg,
    /// An Ogg stream without Opus.
    #[error("no Opus stream in this Ogg stream")]
    NoOpus,
    /// An Opus stream of an unsupported kind.
    #[error("unsupported Ogg/Opus stream: {0}")]
    Unsupported(&'static str),
    /// A header that violates RFC 7845.
    #[error("damaged Ogg/Opus header: {0}")]
    Header(&'static str),
    /// Vendor and tags do not fit into one page.
    #[error("the comment header has {0} bytes; at most {MAX_BODY} fit")]
    Tags(usize),
    /// Not an Opus packet.
    #[error(transparent)]
    Packet(#[from] OpusError),
}

/// The identification header (RFC 7845, section 5.1) of a mono or stereo stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpusHead {
    /// Mono or stereo.
    pub channels: Channels,
    /// Frames at 48 kHz to skip at the start of the decoded audio.
    pub pre_skip: u16,
    /// The sample rate before encoding, for information only.
    pub input_hz: u32,
}

impl OpusHead {
    const MAGIC: &[u8; 8] = b"OpusHead";
    const LEN: usize = 19;

    fn write(self) -> [u8; Self::LEN] {
        let mut packet = [0; Self::LEN];
        packet[..8].copy_from_slice(Self::MAGIC);
        packet[8] = 1;
        packet[9] = self.channels.count() as u8;
        packet[10..12].copy_from_slice(&self.pre_skip.to_le_bytes());
        packet[12..16].copy_from_slice(&self.input_hz.to_le_bytes());
        // Output gain and mapping family stay zero.
        packet
    }

    fn read(mut packet: &[u8]) -> Result<Self, OggError> {
        if packet.len() < Self::LEN {
            return Err(OggError::Header("the identification header is too short"));
        }
        packet.advance(Self::MAGIC.len());
        if packet.get_u8() > 15 {
            return Err(OggError::Unsupported("a version after 1"));
        }
        let channels = packet.get_u8();
        let pre_skip = packet.get_u16_le();
        let input_hz = packet.get_u32_le();
        let gain = packet.get_i16_le();
        if packet.get_u8() != 0 {
            return Err(OggError::Unsupported("more than two channels"));
        }
        // Section 5.1 requires players to apply it; speech encoders never write it.
        if gain != 0 {
            return Err(OggError::Unsupported("an output gain"));
        }
        Ok(Self {
            channels: u64::from(channels)
                .try_into()
                .map_err(|_| OggError::Header("neither one nor two channels"))?,
            pre_skip,
            input_hz,
        })
    }
}

/// The comment header (RFC 7845, section 5.2): the encoder's vendor, then names and values.
fn write_tags(vendor: &str, tags: &[(&str, &str)]) -> Result<Vec<u8>, OggError> {
    let len = tags
        .iter()
        .map(|(name, value)| 5 + name.len() + value.len());
    let len = 16 + vendor.len() + len.sum::<usize>();
    if len >= MAX_BODY {
        return Err(OggError::Tags(len));
    }
    let mut packet = Vec::with_capacity(len);
    packet.extend_from_slice(b"OpusTags");
    packet.put_u32_le(vendor.len() as u32);
    packet.extend_from_slice(vendor.as_bytes());
    packet.put_u32_le(tags.len() as u32);
    for (name, value) in tags {
        packet.put_u32_le((name.len() + 1 + value.len()) as u32);
        packet.extend_from_slice(name.as_bytes());
        packet.push(b'=');
        packet.extend_from_slice(value.as_bytes());
    }
    Ok(packet)
}

/// Writes a stream: packets in, pages out. The newest packet is always held back, because the last page must contain a
/// packet in order to carry the end of the audio.
#[derive(Debug)]
pub struct OggOpusWriter {
    serial: u32,
    sequence: u32,
    pre_skip: u16,
    page_frames: u32,
    /// Frames at 48 kHz in the pages written and in the current one.
    position: u64,
    /// The same at the start of the current page.
    page_start: u64,
    lacing: Vec<u8>,
    body: Vec<u8>,
    /// The header pages, until they have been taken.
    output: BytesMut,
}

impl OggOpusWriter {
    /// A stream with its headers. `serial` distinguishes streams in one file: random, or any number if there is one
    /// stream. `page_time` is the duration of a page.
    pub fn new(
        head: OpusHead,
        vendor: &str,
        tags: &[(&str, &str)],
        serial: u32,
        page_time: Duration,
    ) -> Result<Self, OggError> {
        let mut writer = Self {
            serial,
            sequence: 0,
            pre_skip: head.pre_skip,
            page_frames: u32::try_from(SampleRate::HZ_48000.frames_in(page_time))
                .unwrap_or(u32::MAX),
            position: 0,
            page_start: 0,
            lacing: Vec::with_capacity(MAX_LACING),
            body: Vec::new(),
            output: BytesMut::new(),
        };
        writer.add(&head.write());
        writer.end_page(BEGIN, 0);
        writer.add(&write_tags(vendor, tags)?);
        writer.end_page(0, 0);
        Ok(writer)
    }

    /// The headers, if no packet has taken them yet.
    pub fn headers(&mut self) -> Bytes {
        self.output.split().freeze()
    }

    /// Adds a packet and returns the bytes that are complete, often none.
    pub fn push(&mut self, packet: &[u8]) -> Result<Bytes, OggError> {
        let frames = clock_frames(packet)?;
        if lacing_of(packet) + self.lacing.len() > MAX_LACING
            || self.position - self.page_start >= u64::from(self.page_frames)
        {
            self.end_page(0, self.position);
        }
        if lacing_of(packet) > MAX_LACING {
            return Err(OpusError::Packet("it is longer than a page").into());
        }
        self.add(packet);
        self.position += u64::from(frames);
        Ok(self.output.split().freeze())
    }

    /// The duration of complete pages without the pre-skip, in frames at 48 kHz.
    pub fn frames_written(&self) -> u64 {
        self.page_start.saturating_sub(self.pre_skip.into())
    }

    /// Ends the stream. If `frames` (at 48 kHz, without pre-skip) is given, the audio ends there; this can only shorten
    /// what is in the last page.
    pub fn finish(mut self, frames: Option<u64>) -> Bytes {
        let end = frames.map_or(self.position, |frames| {
            frames
                .saturating_add(self.pre_skip.into())
                .clamp(self.page_start, self.position)
        });
        self.end_page(END, end);
        self.output.freeze()
    }

    fn add(&mut self, packet: &[u8]) {
        self.lacing
            .resize(self.lacing.len() + packet.len() / 255, 255);
        self.lacing.push((packet.len() % 255) as u8);
        self.body.extend_from_slice(packet);
    }

    fn end_page(&mut self, flags: u8, granule: u64) {
        let start = self.output.len();
        self.output
            .reserve(HEADER + self.lacing.len() + self.body.len());
        self.output.put_slice(CAPTURE);
        self.output.put_u8(0);
        self.output.put_u8(flags);
        self.output.put_u64_le(granule);
        self.output.put_u32_le(self.serial);
        self.output.put_u32_le(self.sequence);
        self.output.put_u32_le(0);
        self.output.put_u8(self.lacing.len() as u8);
        self.output.put_slice(&self.lacing);
        self.output.put_slice(&self.body);
        let page = &mut self.output[start..];
        let crc = crc(0, page);
        page[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        self.sequence = self.sequence.wrapping_add(1);
        self.page_start = self.position;
        self.lacing.clear();
        self.body.clear();
    }
}

/// The number of lacing values of a packet (RFC 3533, section 5).
const fn lacing_of(packet: &[u8]) -> usize {
    packet.len() / 255 + 1
}

/// A packet that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OggPacket {
    /// The Opus packet.
    pub data: Bytes,
    /// Which of its frames at 48 kHz to play: the others are pre-skip or lie beyond the end.
    pub heard: Range<u32>,
}

/// What the reader returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OggItem {
    /// A stream begins, the first or a chained one: continue with a new decoder.
    Head(OpusHead),
    /// The next packet.
    Packet(OggPacket),
}

/// Reads streams: bytes in any chunking in, packets out. Damaged or missing pages are skipped and counted, streams
/// other than Opus are ignored, and a chained stream begins with its own header. Buffers at most one page beyond what
/// was pushed.
#[derive(Debug, Default)]
pub struct OggOpusReader {
    buffer: BytesMut,
    items: VecDeque<Result<OggItem, OggError>>,
    stream: Option<Stream>,
    pages: u64,
    lost_pages: u64,
    skipped: usize,
}

#[derive(Debug)]
struct Stream {
    serial: u32,
    next_sequence: u32,
    /// Frames at 48 kHz of pre-skip still to be dropped.
    skip: u32,
    /// The granule position at the end of the last page, unless pages have been missing since.
    position: Option<u64>,
    part: Part,
    /// The beginning of a packet that continues on the next page.
    partial: Option<BytesMut>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Tags,
    Sound,
    Ended,
}

/// A page whose checksum has been verified.
struct Page {
    flags: u8,
    granule: u64,
    serial: u32,
    sequence: u32,
    lacing: Bytes,
    body: Bytes,
}

impl OggOpusReader {
    /// A reader at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Pushes bytes. Drain [`Self::next_item`] before the next call.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next item; `None` until more bytes are pushed.
    pub fn next_item(&mut self) -> Result<Option<OggItem>, OggError> {
        while self.items.is_empty() {
            match self.next_page()? {
                Some(page) => self.take(&page)?,
                None => return Ok(None),
            }
        }
        self.items.pop_front().transpose()
    }

    /// Signals the end: an error if there was no Opus stream. A truncated stream is not an error.
    pub fn finish(&self) -> Result<(), OggError> {
        match (&self.stream, self.pages) {
            (Some(_), _) => Ok(()),
            (None, 0) => Err(OggError::NotOgg),
            (None, _) => Err(OggError::NoOpus),
        }
    }

    /// The number of missing or damaged pages.
    pub const fn lost_pages(&self) -> u64 {
        self.lost_pages
    }

    fn next_page(&mut self) -> Result<Option<Page>, OggError> {
        loop {
            self.skip_to_capture()?;
            let Some(&segments) = self.buffer.get(HEADER - 1) else {
                return Ok(None);
            };
            let lacing_end = HEADER + usize::from(segments);
            let Some(lacing) = self.buffer.get(HEADER..lacing_end) else {
                return Ok(None);
            };
            let body: usize = lacing.iter().map(|&value| usize::from(value)).sum();
            let Some(page) = self.buffer.get(..lacing_end + body) else {
                return Ok(None);
            };
            let crc = crc(
                crc(crc(0, &page[..CRC_AT.start]), &[0; 4]),
                &page[CRC_AT.end..],
            );
            if page[CAPTURE.len()] != 0 || page[CRC_AT] != crc.to_le_bytes() {
                // Skips the whole header rather than one byte: pages nested in pages would otherwise take quadratic
                // time.
                self.buffer.advance(lacing_end);
                continue;
            }
            self.pages += 1;
            let mut header = self.buffer.split_to(HEADER).freeze();
            header.advance(CAPTURE.len() + 1);
            return Ok(Some(Page {
                flags: header.get_u8(),
                granule: header.get_u64_le(),
                serial: header.get_u32_le(),
                sequence: header.get_u32_le(),
                lacing: self.buffer.split_to(usize::from(segments)).freeze(),
                body: self.buffer.split_to(body).freeze(),
            }));
        }
    }

    /// Drops bytes up to the next capture pattern, or all except a possible beginning of one.
    fn skip_to_capture(&mut self) -> Result<(), OggError> {
        let skip = self
            .buffer
            .windows(CAPTURE.len())
            .position(|window| window == CAPTURE)
            .unwrap_or_else(|| self.buffer.len().saturating_sub(CAPTURE.len() - 1));
        self.buffer.advance(skip);
        self.skipped = self.skipped.saturating_add(skip);
        if self.pages == 0 && self.skipped > MAX_PREAMBLE {
            return Err(OggError::NotOgg);
        }
        Ok(())
    }

    fn take(&mut self, page: &Page) -> Result<(), OggError> {
        if page.flags & BEGIN != 0 {
            return self.begin(page);
        }
        let stream = match &mut self.stream {
            Some(stream) if stream.serial == page.serial && stream.part != Part::Ended => stream,
            Some(_) => return Ok(()),
            // All streams begin before the first page that continues one (RFC 3533, section 4).
            None => return Err(OggError::NoOpus),
        };
        let missing = page.sequence.wrapping_sub(stream.next_sequence);
        stream.next_sequence = page.sequence.wrapping_add(1);
        if missing != 0 {
            self.lost_pages += u64::from(missing.min(u32::MAX / 2));
            stream.partial = None;
            stream.position = None;
        }
        stream.take(page, &mut self.items);
        Ok(())
    }

    fn begin(&mut self, page: &Page) -> Result<(), OggError> {
        // A second stream that begins beside ours is multiplexed with it; one that begins after our audio is chained.
        let beside = matches!(&self.stream, Some(stream) if stream.part == Part::Tags);
        if beside || !page.body.starts_with(OpusHead::MAGIC) {
            return Ok(());
        }
        let head = OpusHead::read(&page.body)?;
        self.stream = Some(Stream {
            serial: page.serial,
            next_sequence: page.sequence.wrapping_add(1),
            skip: head.pre_skip.into(),
            position: Some(0),
            part: Part::Tags,
            partial: None,
        });
        self.items.push_back(Ok(OggItem::Head(head)));
        Ok(())
    }
}

impl Stream {
    fn take(&mut self, page: &Page, items: &mut VecDeque<Result<OggItem, OggError>>) {
        let first = items.len();
        let mut frames_of_page = 0;
        for data in self.packets(page) {
            if self.part == Part::Tags {
                self.part = Part::Sound;
                continue;
            }
            items.push_back(match clock_frames(&data) {
                Ok(frames) => {
                    frames_of_page += u64::from(frames);
                    let skipped = self.skip.min(frames);
                    self.skip -= skipped;
                    let heard = skipped..frames;
                    Ok(OggItem::Packet(OggPacket { data, heard }))
                }
                Err(error) => Err(error.into()),
            });
        }
        let ends = page.flags & END != 0;
        if let (true, Some(start)) = (ends, self.position) {
            let beyond = (start + frames_of_page).saturating_sub(page.granule);
            trim(items.range_mut(first..), beyond);
        }
        if ends {
            self.part = Part::Ended;
        } else if page.granule != NO_GRANULE {
            self.position = Some(page.granule.min(u64::MAX / 2));
        }
    }

    /// The packets that end on this page.
    fn packets(&mut self, page: &Page) -> Vec<Bytes> {
        let mut packets = Vec::new();
        let mut body = page.body.clone();
        let mut partial = self.partial.take();
        // The end of a packet whose beginning was lost.
        let mut headless = false;
        if page.flags & CONTINUED == 0 {
            partial = None;
        } else {
            headless = partial.is_none();
        }
        let mut len = 0;
        for &value in &page.lacing {
            len += usize::from(value);
            if value == 255 {
                continue;
            }
            let data = body.split_to(len);
            len = 0;
            match partial.take() {
                Some(mut start) => {
                    start.extend_from_slice(&data);
                    packets.push(start.freeze());
                }
                None if headless => headless = false,
                None => packets.push(data),
            }
        }
        if page.lacing.last() == Some(&255) && !headless {
            self.partial = Some(self.grown(partial.unwrap_or_default(), &body));
        }
        packets
    }

    /// Continues a packet. Comment headers may be huge and are not stored; no audio packet is longer than a page.
    fn grown(&self, mut partial: BytesMut, more: &[u8]) -> BytesMut {
        if self.part == Part::Sound && partial.len() + more.len() <= MAX_BODY {
            partial.extend_from_slice(more);
        }
        partial
    }
}

/// Drops `beyond` frames from the end of a page's packets; packets without any frames left are not returned.
fn trim<'a>(
    items: impl DoubleEndedIterator<Item = &'a mut Result<OggItem, OggError>>,
    mut beyond: u64,
) {
    for item in items.rev() {
        if let Ok(OggItem::Packet(packet)) = item {
            let len = u64::from(packet.heard.end - packet.heard.start);
            let cut = beyond.min(len);
            packet.heard.end -= cut as u32;
            beyond -= cut;
        }
    }
}

/// CRC-32 of RFC 3533, section 6: polynomial 0x04c11db7, neither reflected nor inverted, the checksum field as zero.
fn crc(start: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut value = (index as u32) << 24;
            let mut bit = 0;
            while bit < 8 {
                let carry = value >> 31;
                value = (value << 1) ^ (carry * 0x04c1_1db7);
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    bytes.iter().fold(start, |crc, &byte| {
        (crc << 8) ^ TABLE[usize::from((crc >> 24) as u8 ^ byte)]
    })
}

/// The duration of a whole file, in frames at 48 kHz, from its first header and the last page in `tail` (its last
/// bytes, at least one page).
pub fn total_frames(head: OpusHead, tail: &[u8]) -> Option<u64> {
    let mut reader = OggOpusReader::new();
    // The whole tail counts as found, so that a page cut off at its beginning does not matter.
    reader.pages = 1;
    reader.push(tail);
    let mut last = None;
    while let Ok(Some(page)) = reader.next_page() {
        if page.granule != NO_GRANULE {
            last = Some(page.granule);
        }
    }
    last?.checked_sub(head.pre_skip.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: OpusHead = OpusHead {
        channels: Channels::Mono,
        pre_skip: 312,
        input_hz: 24_000,
    };

    /// A 20 ms packet (CELT, 20 ms, mono) with a number in it.
    fn packet(n: u8, len: usize) -> Vec<u8> {
        let mut packet = vec![n; len.max(2)];
        packet[0] = 31 << 3;
        packet
    }

    fn stream(packets: &[Vec<u8>], end: Option<u64>, serial: u32) -> Vec<u8> {
        let tags = [("TITLE", "Ein Lied")];
        let mut writer = OggOpusWriter::new(HEAD, "vivavoce", &tags, serial, PAGE_TIME).unwrap();
        let mut bytes = Vec::new();
        for packet in packets {
            bytes.extend_from_slice(&writer.push(packet).unwrap());
        }
        bytes.extend_from_slice(&writer.finish(end));
        bytes
    }

    fn numbered(count: u8) -> Vec<Vec<u8>> {
        (0..count).map(|n| packet(n, 80)).collect()
    }

    fn read(bytes: &[u8], chunk: usize) -> (Vec<Result<OggItem, OggError>>, OggOpusReader) {
        let mut reader = OggOpusReader::new();
        let mut items = Vec::new();
        for piece in bytes.chunks(chunk.max(1)) {
            reader.push(piece);
            while let Some(item) = reader.next_item().transpose() {
                items.push(item);
            }
        }
        (items, reader)
    }

    fn sound(items: &[Result<OggItem, OggError>]) -> Vec<OggPacket> {
        items
            .iter()
            .filter_map(|item| match item {
                Ok(OggItem::Packet(packet)) => Some(packet.clone()),
                _ => None,
            })
            .collect()
    }

    fn heard(packets: &[OggPacket]) -> u64 {
        packets
            .iter()
            .map(|packet| u64::from(packet.heard.end - packet.heard.start))
            .sum()
    }

    #[test]
    fn what_was_written_is_read_and_lasts_as_long_as_it_should() {
        for end in [None, Some(40_000), Some(47_688)] {
            let packets = numbered(50);
            let bytes = stream(&packets, end, 7);
            let (items, reader) = read(&bytes, 100);
            assert_eq!(items[0], Ok(OggItem::Head(HEAD)));
            let found = sound(&items);
            assert!(found.iter().map(|found| &found.data[..]).eq(&packets));
            // What is already in a page cannot be taken back: the last page begins at 40 packets.
            let expected = end.unwrap_or(50 * 960 - 312).max(40 * 960 - 312);
            assert_eq!(heard(&found), expected);
            assert_eq!(reader.lost_pages(), 0);
            assert_eq!(
                total_frames(HEAD, &bytes[bytes.len() / 2..]),
                Some(expected)
            );
        }
    }

    #[test]
    fn a_page_leaves_about_every_two_hundred_milliseconds() {
        let mut writer = OggOpusWriter::new(HEAD, "v", &[], 1, PAGE_TIME).unwrap();
        let mut since_page = 0;
        assert!(!writer.push(&packet(0, 80)).unwrap().is_empty(), "headers");
        for n in 1..200 {
            since_page += 1;
            if !writer.push(&packet(n, 80)).unwrap().is_empty() {
                assert_eq!(since_page, 10);
                since_page = 0;
            }
        }
    }

    #[test]
    fn a_stream_without_a_packet_has_headers_and_an_end() {
        let bytes = stream(&[], None, 1);
        let (items, reader) = read(&bytes, 1);
        assert_eq!(items, [Ok(OggItem::Head(HEAD))]);
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn chained_streams_each_begin_with_a_head() {
        let mut bytes = stream(&numbered(30), None, 1);
        bytes.extend(stream(&numbered(20), None, 2));
        let (items, _) = read(&bytes, 1_000);
        let heads = items.iter().filter(|i| matches!(i, Ok(OggItem::Head(_))));
        assert_eq!(heads.count(), 2);
        assert_eq!(heard(&sound(&items)), 50 * 960 - 2 * 312);
    }

    /// Pages of `bytes`, cut apart.
    fn pages(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut starts: Vec<_> = (0..bytes.len())
            .filter(|&at| bytes[at..].starts_with(CAPTURE))
            .collect();
        starts.push(bytes.len());
        starts
            .windows(2)
            .map(|ends| bytes[ends[0]..ends[1]].to_vec())
            .collect()
    }

    #[test]
    fn another_stream_between_our_pages_is_ignored() {
        let ours = pages(&stream(&numbered(30), None, 1));
        let theirs = pages(&stream(&numbered(25), None, 2));
        let mixed: Vec<u8> = (0..ours.len().max(theirs.len()))
            .flat_map(|n| [ours.get(n), theirs.get(n)])
            .flatten()
            .flatten()
            .copied()
            .collect();
        let (items, reader) = read(&mixed, 333);
        assert_eq!(sound(&items).len(), 30);
        assert_eq!(reader.lost_pages(), 0);
    }

    #[test]
    fn a_damaged_page_costs_itself_and_is_counted() {
        let mut pages = pages(&stream(&numbered(50), None, 1));
        pages[4][60] ^= 1;
        let (items, reader) = read(&pages.concat(), 64);
        let found = sound(&items);
        assert_eq!(found.len(), 40);
        assert_eq!(found[20].data, packet(30, 80));
        assert_eq!(reader.lost_pages(), 1);
    }

    #[test]
    fn other_sound_in_ogg_and_no_ogg_at_all_are_errors() {
        let mut writer = OggOpusWriter::new(HEAD, "v", &[], 1, PAGE_TIME).unwrap();
        writer.output.clear();
        writer.add(b"\x01vorbis and so on");
        writer.end_page(BEGIN, 0);
        writer.add(b"more of it");
        writer.end_page(0, 0);
        let (items, _) = read(&writer.output, 10);
        assert_eq!(items, [Err(OggError::NoOpus)]);

        let mut reader = OggOpusReader::new();
        reader.push(&[0x55; 100]);
        assert_eq!(reader.next_item(), Ok(None));
        assert_eq!(reader.finish(), Err(OggError::NotOgg));
        reader.push(&vec![0x55; MAX_PREAMBLE]);
        assert_eq!(reader.next_item(), Err(OggError::NotOgg));
    }

    #[test]
    fn tags_that_fill_more_than_a_page_are_refused() {
        let long = "x".repeat(70_000);
        let refused = OggOpusWriter::new(HEAD, "v", &[("COMMENT", &long)], 1, PAGE_TIME);
        assert!(matches!(refused, Err(OggError::Tags(_))));
    }

    #[test]
    fn a_packet_that_spans_pages_is_put_together() {
        let mut writer = OggOpusWriter::new(HEAD, "v", &[], 1, PAGE_TIME).unwrap();
        let long = packet(9, 700);
        writer.lacing = vec![255, 255];
        writer.body = long[..510].to_vec();
        writer.end_page(0, NO_GRANULE);
        writer.lacing = vec![190];
        writer.body = long[510..].to_vec();
        writer.end_page(CONTINUED | END, 960);
        let (items, _) = read(&writer.output, 50);
        assert_eq!(sound(&items)[0].data, long);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_packets_in_any_chunks_come_back(
            lens in prop::collection::vec(2usize..3_000, 0..60),
            chunk in 1usize..5_000,
        ) {
            let packets: Vec<_> = lens.iter().map(|&len| packet(len as u8, len)).collect();
            let (items, _) = read(&stream(&packets, None, 3), chunk);
            let found = sound(&items);
            prop_assert!(found.iter().map(|found| &found.data[..]).eq(&packets));
        }

        #[test]
        fn a_cut_or_flipped_stream_gives_packets_of_the_whole_one_or_an_error(
            cut in 0usize..3_000,
            flip in 0usize..3_000,
            bit in 0u8..8,
        ) {
            let packets = numbered(30);
            let mut bytes = stream(&packets, None, 3);
            bytes.truncate(cut);
            if let Some(byte) = bytes.get_mut(flip) {
                *byte ^= 1 << bit;
            }
            let (items, reader) = read(&bytes, 500);
            for found in sound(&items) {
                prop_assert!(packets.iter().any(|packet| packet == &found.data[..]));
            }
            prop_assert!(reader.buffer.len() <= HEADER + MAX_LACING + MAX_BODY);
        }

        #[test]
        fn garbage_between_capture_patterns_is_survived(garbage: Vec<Vec<u8>>) {
            let bytes: Vec<u8> = garbage.iter().flat_map(|g| CAPTURE.iter().chain(g)).copied().collect();
            let (items, _) = read(&bytes, 100);
            prop_assert!(sound(&items).is_empty());
        }
    }
}
