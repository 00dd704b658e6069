//! Repairs a stream whose writer was killed: finds its last complete page and ends the stream there.

use std::io::{self, Read, Seek, SeekFrom, Write};

use super::{CAPTURE, CRC_AT, END, HEADER, OggError, OggOpusWriter, OpusHead, crc};
use crate::format::{Channels, SampleRate};
use crate::opus::FRAME;

/// A packet of 20 ms of silence (RFC 6716, section 3.1: CELT, full band, one frame), accepted by all decoders.
pub(super) const SILENCE: [u8; 3] = [0xF8, 0xFF, 0xFE];
/// Its duration in frames at 48 kHz.
pub(super) const SILENCE_FRAMES: u64 = 960;
/// The maximum size of a page (RFC 3533, section 6).
const MAX_PAGE: usize = HEADER + 255 + 255 * 255;
/// Pages without audio: identification and comments.
pub(super) const HEADER_PAGES: u32 = 2;

/// The result of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repaired {
    /// The remaining size, in bytes.
    pub size: u64,
    /// The duration, in frames at 48 kHz.
    pub frames: u64,
    /// The number of channels.
    pub channels: u8,
    /// Whether its writer had ended it.
    pub was_ended: bool,
}

/// The last complete page.
struct Last {
    at: u64,
    page: Vec<u8>,
}

/// Truncates torn data and ends the stream with the last complete page. `None` if not even the headers are complete.
/// Reads the stream once, a page at a time.
pub fn repair(file: &mut (impl Read + Write + Seek + Truncate)) -> io::Result<Option<Repaired>> {
    file.seek(SeekFrom::Start(0))?;
    let mut reader = io::BufReader::with_capacity(64 * 1024, &mut *file);
    let (mut end, mut pages) = (0_u64, 0_u32);
    let (mut head, mut last) = (None, None);
    while let Some(page) = whole_page(&mut reader)? {
        if pages == 0 {
            head = body(&page).and_then(|body| OpusHead::read(body).ok());
        }
        pages += 1;
        let at = end;
        end += page.len() as u64;
        last = Some(Last { at, page });
    }
    let (Some(head), Some(mut last)) = (head, last) else {
        return Ok(None);
    };
    if pages < HEADER_PAGES {
        return Ok(None);
    }
    file.truncate(end)?;
    if pages == HEADER_PAGES {
        // A stream must end with a page of audio.
        last = Last {
            at: end,
            page: silent_page(&last.page, SILENCE_FRAMES),
        };
    }
    let mut was_ended = false;
    if let Some(flags) = last.page.get_mut(5) {
        was_ended = *flags & END != 0;
        *flags |= END;
    }
    seal(&mut last.page);
    file.seek(SeekFrom::Start(last.at))?;
    file.write_all(&last.page)?;
    Ok(Some(Repaired {
        size: last.at + last.page.len() as u64,
        frames: granule(&last.page).saturating_sub(head.pre_skip.into()),
        channels: head.channels.count() as u8,
        was_ended,
    }))
}

/// A stream of 20 ms of silence, to replace one without complete headers.
pub fn silent_stream() -> Result<Vec<u8>, OggError> {
    let head = OpusHead {
        channels: Channels::Mono,
        pre_skip: 0,
        input_hz: SampleRate::HZ_48000.hz(),
    };
    let mut writer = OggOpusWriter::new(head, "vivavoce", &[], 0, FRAME)?;
    let mut bytes = writer.push(&SILENCE)?.to_vec();
    bytes.extend_from_slice(&writer.finish(None));
    Ok(bytes)
}

/// Something that can be truncated.
pub trait Truncate {
    /// Truncates to this many bytes.
    fn truncate(&mut self, size: u64) -> io::Result<()>;
}

impl Truncate for std::fs::File {
    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }
}

impl Truncate for io::Cursor<Vec<u8>> {
    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.get_mut()
            .truncate(usize::try_from(size).unwrap_or(usize::MAX));
        Ok(())
    }
}

/// The next page, if it is complete and intact.
pub(super) fn whole_page(reader: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut page = Vec::new();
    if !read_more(reader, &mut page, HEADER)? || !page.starts_with(CAPTURE) {
        return Ok(None);
    }
    let segments = page.last().copied().map_or(0, usize::from);
    if !read_more(reader, &mut page, segments)? {
        return Ok(None);
    }
    let lacing = page.get(HEADER..).unwrap_or_default();
    let body = lacing.iter().map(|&value| usize::from(value)).sum();
    if !read_more(reader, &mut page, body)? || page.len() > MAX_PAGE {
        return Ok(None);
    }
    let mut sealed = page.clone();
    seal(&mut sealed);
    Ok((sealed == page).then_some(page))
}

/// Whether this many more bytes could be read.
fn read_more(reader: &mut impl Read, page: &mut Vec<u8>, more: usize) -> io::Result<bool> {
    let read = reader.take(more as u64).read_to_end(page)?;
    Ok(read == more)
}

pub(super) fn seal(page: &mut [u8]) {
    if let Some(field) = page.get_mut(CRC_AT) {
        field.fill(0);
    }
    let sum = crc(0, page).to_le_bytes();
    if let Some(field) = page.get_mut(CRC_AT) {
        field.copy_from_slice(&sum);
    }
}

fn body(page: &[u8]) -> Option<&[u8]> {
    let segments = page.get(HEADER - 1).copied().map(usize::from)?;
    let body = page.get(HEADER + segments..)?;
    body.starts_with(OpusHead::MAGIC).then_some(body)
}

pub(super) fn granule(page: &[u8]) -> u64 {
    let field = page.get(6..14).and_then(|bytes| bytes.try_into().ok());
    field.map_or(0, u64::from_le_bytes)
}

/// The page after `before`, with 20 ms of silence.
fn silent_page(before: &[u8], granule: u64) -> Vec<u8> {
    let sequence = before.get(18..22).and_then(|bytes| bytes.try_into().ok());
    let sequence = sequence.map_or(HEADER_PAGES, |bytes| {
        u32::from_le_bytes(bytes).wrapping_add(1)
    });
    let mut page = Vec::with_capacity(HEADER + 1 + SILENCE.len());
    page.extend_from_slice(CAPTURE);
    page.extend_from_slice(&[0, 0]);
    page.extend_from_slice(&granule.to_le_bytes());
    page.extend_from_slice(before.get(14..18).unwrap_or(&[0; 4]));
    page.extend_from_slice(&sequence.to_le_bytes());
    page.extend_from_slice(&[0; 4]);
    page.extend_from_slice(&[1, SILENCE.len() as u8]);
    page.extend_from_slice(&SILENCE);
    page
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::time::Duration;

    use super::super::{OggItem, OggOpusReader};
    use super::*;

    const PRE_SKIP: u16 = 312;

    fn stream(packets: u8) -> Vec<u8> {
        let head = OpusHead {
            channels: Channels::Stereo,
            pre_skip: PRE_SKIP,
            input_hz: 24_000,
        };
        let page = Duration::from_millis(100);
        let mut writer = OggOpusWriter::new(head, "vivavoce", &[("A", "b")], 7, page).unwrap();
        let mut bytes = Vec::new();
        for n in 0..packets {
            bytes.extend_from_slice(&writer.push(&[31 << 3, n, 1, 2]).unwrap());
        }
        // Never ended: the packets of the last page are lost with the process.
        bytes
    }

    fn heard(bytes: &[u8]) -> (u64, u64) {
        let mut reader = OggOpusReader::new();
        reader.push(bytes);
        let mut frames = 0;
        while let Some(item) = reader.next_item().unwrap() {
            if let OggItem::Packet(packet) = item {
                frames += u64::from(packet.heard.end - packet.heard.start);
            }
        }
        reader.finish().unwrap();
        (frames, reader.lost_pages())
    }

    #[test]
    fn a_stream_that_is_cut_off_at_any_byte_ends_with_its_last_whole_page() {
        let whole = stream(40);
        let headers = stream(1).len();
        let mut least = 0;
        for len in 0..=whole.len() {
            let mut file = Cursor::new(whole[..len].to_vec());
            let repaired = repair(&mut file).unwrap();
            let bytes = file.into_inner();
            assert_eq!(repaired.is_some(), len >= headers, "{len}");
            let Some(repaired) = repaired else { continue };
            assert_eq!(repaired.size, bytes.len() as u64);
            assert_eq!(repaired.channels, 2);
            assert_eq!(heard(&bytes), (repaired.frames, 0), "{len}");
            assert!(repaired.frames >= least);
            least = repaired.frames;
            // A second time nothing changes.
            let mut again = Cursor::new(bytes.clone());
            let was_ended = true;
            let again_repaired = Repaired {
                was_ended,
                ..repaired
            };
            assert_eq!(repair(&mut again).unwrap(), Some(again_repaired));
            assert_eq!(again.into_inner(), bytes);
        }
        assert!(least >= 30 * 960);
    }

    #[test]
    fn a_stream_with_a_wrong_byte_ends_before_it() {
        let whole = stream(40);
        for at in (200..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            let mut file = Cursor::new(bytes);
            let repaired = repair(&mut file).unwrap().unwrap();
            let bytes = file.into_inner();
            assert!(at as u64 >= repaired.size || bytes[at] == whole[at] || repaired.frames <= 960);
            assert_eq!(heard(&bytes), (repaired.frames, 0));
        }
    }
}
