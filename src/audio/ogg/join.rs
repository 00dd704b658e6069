//! Joins two streams into one: the second follows the first without a new header, so that a reader finds one stream, and all
//! players can seek in it.

use std::io::{self, Read, Write};
use std::time::Duration;

use super::repair::{HEADER_PAGES, SILENCE, SILENCE_FRAMES, granule, seal, whole_page};
use super::{BEGIN, CAPTURE, CONTINUED, END, HEADER, OpusHead};
use crate::opus::{FRAME, clock_frames};

/// Where the number of channels is in the identification header (RFC 7845, section 5.1).
pub(super) const CHANNELS: usize = 9;
/// As many packets of silence are in a page: 200 ms.
const SILENT_PACKETS: u8 = 10;
/// Where these are in a page.
const FLAGS: usize = 5;
const GRANULE: std::ops::Range<usize> = 6..14;
const SERIAL: std::ops::Range<usize> = 14..18;
const SEQUENCE: std::ops::Range<usize> = 18..22;

/// Writes both streams as one, with the headers of the first and silence between them, and returns where the audio of the
/// second begins, in frames at 48 kHz. What is cut off the end of the first is less than a packet; it is played after
/// all, as a stream can be cut at its end only. Both must be streams of ours (no packet goes on on another page) that
/// have been ended.
pub fn join(
    first: impl Read,
    silence: Duration,
    second: impl Read,
    output: impl Write,
) -> io::Result<u64> {
    let mut output = Output {
        to: output,
        serial: None,
        sequence: 0,
    };
    let (mut first, mut second) = (Pages::new(first), Pages::new(second));
    let mut position = 0;
    // Decoders mix two channels where the header says one, and play one on both sides where it says two.
    let head = second.next()?;
    let channels = head
        .as_ref()
        .and_then(|page| content(&page.bytes).1.get(CHANNELS).copied());
    while let Some(mut page) = first.next()? {
        if page.is_header {
            if let (true, Some(channels)) = (first.read == 1, channels) {
                page.set_channels(|own| own.max(channels));
            }
            output.write(&mut page.bytes, 0)?;
        } else if page.frames > 0 {
            position += page.frames;
            page.set_flags(|flags| flags & !END);
            output.write(&mut page.bytes, position)?;
        }
    }
    if first.read < HEADER_PAGES {
        return Err(invalid("the first stream has no headers"));
    }
    let mut left = silence.as_millis() / FRAME.as_millis();
    while left > 0 {
        let packets = left.min(SILENT_PACKETS.into()) as u8;
        position += u64::from(packets) * SILENCE_FRAMES;
        output.write(&mut silent_page(packets), position)?;
        left -= u128::from(packets);
    }
    let mut ended = false;
    while let Some(mut page) = second.next()? {
        if !page.is_header {
            ended = page.flags() & END != 0;
            let end = position.saturating_add(granule(&page.bytes));
            output.write(&mut page.bytes, end)?;
        }
    }
    if !ended {
        return Err(invalid("the second stream has no end"));
    }
    output.to.flush()?;
    let begins = position + u64::from(second.pre_skip);
    Ok(begins.saturating_sub(first.pre_skip.into()))
}

/// A page of so many packets of silence.
fn silent_page(packets: u8) -> Vec<u8> {
    let mut page = vec![0; HEADER];
    if let Some(capture) = page.get_mut(..CAPTURE.len()) {
        capture.copy_from_slice(CAPTURE);
    }
    if let Some(segments) = page.last_mut() {
        *segments = packets;
    }
    page.extend((0..packets).map(|_| SILENCE.len() as u8));
    page.extend((0..packets).flat_map(|_| SILENCE));
    page
}

pub(super) fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// The pages of a stream.
pub(super) struct Pages<R> {
    reader: io::BufReader<R>,
    pub(super) pre_skip: u16,
    /// The pages read.
    pub(super) read: u32,
}

pub(super) struct Page {
    pub(super) bytes: Vec<u8>,
    /// Identification or comments.
    pub(super) is_header: bool,
    /// Of its packets.
    frames: u64,
}

impl Page {
    fn flags(&self) -> u8 {
        self.bytes.get(FLAGS).copied().unwrap_or_default()
    }

    fn set_channels(&mut self, change: impl FnOnce(u8) -> u8) {
        let (lacing, _) = content(&self.bytes);
        let at = HEADER + lacing.len() + CHANNELS;
        if let Some(channels) = self.bytes.get_mut(at) {
            *channels = change(*channels);
        }
    }

    fn set_flags(&mut self, change: impl FnOnce(u8) -> u8) {
        if let Some(flags) = self.bytes.get_mut(FLAGS) {
            *flags = change(*flags);
        }
    }
}

impl<R: Read> Pages<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader: io::BufReader::with_capacity(64 * 1024, reader),
            pre_skip: 0,
            read: 0,
        }
    }

    pub(super) fn next(&mut self) -> io::Result<Option<Page>> {
        let Some(bytes) = whole_page(&mut self.reader)? else {
            return Ok(None);
        };
        self.read += 1;
        let mut page = Page {
            bytes,
            is_header: self.read <= HEADER_PAGES,
            frames: 0,
        };
        if self.read == 1 {
            let (_, content) = content(&page.bytes);
            if !content.starts_with(OpusHead::MAGIC) {
                return Err(invalid("not an Opus stream"));
            }
            let head = OpusHead::read(content).map_err(io::Error::other)?;
            self.pre_skip = head.pre_skip;
        }
        if page.is_header {
            return Ok(Some(page));
        }
        if page.flags() & (BEGIN | CONTINUED) != 0 {
            return Err(invalid("not a stream of ours"));
        }
        page.frames = frames(&page.bytes)?;
        Ok(Some(page))
    }
}

/// The lacing values and the packets of a page.
pub(super) fn content(page: &[u8]) -> (&[u8], &[u8]) {
    let segments = page.get(HEADER - 1).copied().map_or(0, usize::from);
    let content = page.get(HEADER..).unwrap_or_default();
    content.split_at_checked(segments).unwrap_or_default()
}

/// The packets of a page.
pub(super) fn packets(page: &[u8]) -> io::Result<Vec<&[u8]>> {
    let (lacing, mut rest) = content(page);
    let (mut packets, mut len) = (Vec::new(), 0);
    for &value in lacing {
        len += usize::from(value);
        if value == 255 {
            continue;
        }
        let (packet, others) = rest.split_at_checked(len).unwrap_or_default();
        packets.push(packet);
        (rest, len) = (others, 0);
    }
    if len > 0 {
        return Err(invalid("a packet goes on on another page"));
    }
    Ok(packets)
}

/// The duration of the packets of a page.
fn frames(page: &[u8]) -> io::Result<u64> {
    let mut frames = 0;
    for packet in packets(page)? {
        frames += u64::from(clock_frames(packet).map_err(io::Error::other)?);
    }
    Ok(frames)
}

struct Output<W> {
    to: W,
    /// That of the first page.
    serial: Option<[u8; 4]>,
    sequence: u32,
}

impl<W: Write> Output<W> {
    fn write(&mut self, page: &mut [u8], granule: u64) -> io::Result<()> {
        let mut serial = [0; 4];
        serial.copy_from_slice(page.get(SERIAL).ok_or(io::ErrorKind::InvalidData)?);
        let serial = *self.serial.get_or_insert(serial);
        for (place, value) in [
            (GRANULE, &granule.to_le_bytes()[..]),
            (SERIAL, &serial[..]),
            (SEQUENCE, &self.sequence.to_le_bytes()[..]),
        ] {
            let place = page.get_mut(place).ok_or(io::ErrorKind::InvalidData)?;
            place.copy_from_slice(value);
        }
        self.sequence = self.sequence.wrapping_add(1);
        seal(page);
        self.to.write_all(page)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;
    use crate::format::Channels;
    use crate::ogg::{OggItem, OggOpusReader, OggOpusWriter, PAGE_TIME, repair};

    const HEAD: OpusHead = OpusHead {
        channels: Channels::Mono,
        pre_skip: 312,
        input_hz: 24_000,
    };

    fn stream(packets: &[Vec<u8>], end: Option<u64>, serial: u32) -> Vec<u8> {
        let mut writer =
            OggOpusWriter::new(HEAD, "vivavoce", &[("A", "b")], serial, PAGE_TIME).unwrap();
        let mut bytes = writer.headers().to_vec();
        for packet in packets {
            bytes.extend_from_slice(&writer.push(packet).unwrap());
        }
        bytes.extend_from_slice(&writer.finish(end));
        bytes
    }

    fn packets(count: usize, len: usize) -> Vec<Vec<u8>> {
        let packet = |n| {
            let mut packet = vec![n as u8; len];
            packet[0] = 31 << 3;
            packet
        };
        (0..count).map(packet).collect()
    }

    fn read(bytes: &[u8]) -> (usize, Vec<Vec<u8>>, u64, u64) {
        let mut reader = OggOpusReader::new();
        reader.push(bytes);
        let (mut heads, mut found, mut heard) = (0, Vec::new(), 0);
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                OggItem::Head(_) => heads += 1,
                OggItem::Packet(packet) => {
                    heard += u64::from(packet.heard.end - packet.heard.start);
                    found.push(packet.data.to_vec());
                }
            }
        }
        (heads, found, heard, reader.lost_pages())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn one_stream_has_the_packets_of_both_and_lasts_as_long(
            counts in (1_usize..70, 1_usize..70), len in 2_usize..700, cut in 0_u64..900, gap in 0_usize..40,
        ) {
            let (first, second) = (packets(counts.0, len), packets(counts.1, len));
            let end = (counts.0 as u64 * 960).saturating_sub(312 + cut);
            let mut joined = Vec::new();
            let begins = join(
                &stream(&first, Some(end), 7)[..],
                Duration::from_millis(gap as u64 * 20 + 7),
                &stream(&second, Some(counts.1 as u64 * 960 - 312), 9)[..],
                &mut joined,
            ).unwrap();
            prop_assert_eq!(begins, (counts.0 + gap) as u64 * 960);
            let (heads, found, heard, lost) = read(&joined);
            prop_assert_eq!((heads, lost), (1, 0));
            let silence = std::iter::repeat_n(SILENCE.to_vec(), gap);
            let meant: Vec<_> = first.into_iter().chain(silence).chain(second).collect();
            prop_assert_eq!(found, meant);
            let whole = (counts.0 + gap + counts.1) as u64 * 960 - 312;
            prop_assert_eq!(heard, whole);
            let known = repair(&mut Cursor::new(joined)).unwrap().unwrap();
            prop_assert_eq!((known.frames, known.was_ended, known.channels), (whole, true, 1));
        }
    }

    #[test]
    fn two_channels_stay_two_whichever_part_has_them() {
        let stereo = OpusHead {
            channels: Channels::Stereo,
            ..HEAD
        };
        let of = |head| {
            let mut writer = OggOpusWriter::new(head, "vivavoce", &[], 1, PAGE_TIME).unwrap();
            let mut bytes = writer.push(&[31 << 3, 1, 2]).unwrap().to_vec();
            bytes.extend_from_slice(&writer.finish(None));
            bytes
        };
        for (first, second) in [(HEAD, stereo), (stereo, HEAD), (HEAD, HEAD)] {
            let mut joined = Vec::new();
            join(&of(first)[..], Duration::ZERO, &of(second)[..], &mut joined).unwrap();
            let mut reader = OggOpusReader::new();
            reader.push(&joined);
            let meant = if first == second { HEAD } else { stereo };
            assert_eq!(reader.next_item().unwrap(), Some(OggItem::Head(meant)));
        }
    }

    #[test]
    fn what_is_no_stream_or_has_no_end_is_refused() {
        let whole = stream(&packets(30, 80), None, 1);
        for broken in [&b"RIFF"[..], &whole[..whole.len() - 1], &[]] {
            assert!(join(&whole[..], Duration::ZERO, broken, io::sink()).is_err());
        }
        assert!(join(&[][..], Duration::ZERO, &whole[..], io::sink()).is_err());
    }
}
