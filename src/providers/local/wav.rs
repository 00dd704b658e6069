//! The RIFF header in front of what a speech program prints. Lengths in it are ignored: a program that writes to a
//! pipe cannot know them, and prints nought or a huge number. Files are decoded elsewhere; this is for streams of
//! 16-bit PCM whose end is the end of the program's output.
//!
//! The reader of any WAV stream, [`vivavoce_audio::wav::WavReader`], is not used here because it believes every length
//! that is plausible, reads codings that no speech program of ours prints, and waits for a header of any length: here
//! each of these is an error that says what was printed.

use bytes::{Buf, Bytes, BytesMut};

use vivavoce_audio::format::{Channels, Layout, SampleRate};

/// A header longer than this is none.
const MAX_HEADER: usize = 4096;
/// `WAVE_FORMAT_PCM` of the RIFF specification.
const PCM: u16 = 1;

/// Why this is not the sound that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WavError {
    /// It does not begin like a RIFF/WAVE stream.
    #[error("it did not print a WAV stream")]
    NotWav,
    /// It ended before its sound began.
    #[error("it printed {0} bytes and no sound")]
    NoSound(usize),
    /// It is WAV of another kind than 16-bit PCM in a layout of ours.
    #[error(
        "it printed WAV in an unsupported format (tag {tag}, {bits} bits, {channels} channels, {hz} Hz)"
    )]
    Unsupported {
        /// Format tag.
        tag: u16,
        /// Bits per sample.
        bits: u16,
        /// Channels.
        channels: u16,
        /// Frames per second.
        hz: u32,
    },
}

/// Strips the header from a stream and gives whole samples.
#[derive(Debug, Default)]
pub struct WavStream {
    layout: Option<Layout>,
    pending: BytesMut,
}

impl WavStream {
    /// Rate and channels, once the header has been read.
    pub const fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// Takes what was printed; gives the whole samples in it, possibly none.
    pub fn push(&mut self, printed: &[u8]) -> Result<Bytes, WavError> {
        self.pending.extend_from_slice(printed);
        if self.layout.is_none() {
            let Some((layout, length)) = parse_header(&self.pending)? else {
                return Ok(Bytes::new());
            };
            self.pending.advance(length);
            self.layout = Some(layout);
        }
        let whole = self.pending.len() & !1;
        Ok(self.pending.split_to(whole).freeze())
    }

    /// The program has ended. A trailing half sample is dropped.
    pub fn finish(&self) -> Result<(), WavError> {
        match self.layout {
            Some(_) => Ok(()),
            None => Err(WavError::NoSound(self.pending.len())),
        }
    }
}

/// Layout and length of the header, or `None` while more bytes are needed.
fn parse_header(bytes: &[u8]) -> Result<Option<(Layout, usize)>, WavError> {
    let riff = bytes.len().min(4);
    let wave = bytes.len().clamp(8, 12);
    if bytes[..riff] != b"RIFF"[..riff]
        || bytes
            .get(8..wave)
            .is_some_and(|tag| tag != &b"WAVE"[..wave - 8])
    {
        return Err(WavError::NotWav);
    }
    let mut layout = None;
    let mut at = 12;
    while let Some((head, body)) = bytes.get(at..).and_then(<[u8]>::split_first_chunk::<8>) {
        let (id, length) = head.split_at(4);
        if id == b"data" {
            let layout = layout.ok_or(WavError::NotWav)?;
            return Ok(Some((layout, at + 8)));
        }
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if length > MAX_HEADER {
            return Err(WavError::NotWav);
        }
        if id == b"fmt " {
            match body.get(..length) {
                Some(body) => layout = Some(parse_format(body)?),
                None => break,
            }
        }
        // Chunks are padded to an even length.
        at += 8 + length + length % 2;
    }
    if bytes.len() > MAX_HEADER || at > MAX_HEADER {
        return Err(WavError::NotWav);
    }
    Ok(None)
}

fn parse_format(mut body: &[u8]) -> Result<Layout, WavError> {
    if body.len() < 16 {
        return Err(WavError::NotWav);
    }
    let tag = body.get_u16_le();
    let channels = body.get_u16_le();
    let hz = body.get_u32_le();
    body.advance(6);
    let bits = body.get_u16_le();
    let layout = SampleRate::new(hz).and_then(|rate| {
        let channels = Channels::try_from(u64::from(channels))?;
        Ok(Layout::new(rate, channels))
    });
    match layout {
        Ok(layout) if tag == PCM && bits == 16 => Ok(layout),
        _ => Err(WavError::Unsupported {
            tag,
            bits,
            channels,
            hz,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wav(hz: u32, bits: u16, length: u32, sound: &[u8]) -> Vec<u8> {
        let mut wav = b"RIFF".to_vec();
        wav.extend(length.to_le_bytes());
        wav.extend(b"WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0\x01\0\x01\0");
        wav.extend(hz.to_le_bytes());
        wav.extend((hz * 2).to_le_bytes());
        wav.extend([2, 0]);
        wav.extend(bits.to_le_bytes());
        wav.extend(b"data");
        wav.extend(length.to_le_bytes());
        wav.extend(sound);
        wav
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_sound_is_the_same_however_it_is_cut(
            sound in prop::collection::vec(any::<u8>(), 0..200),
            length in prop::sample::select(vec![0, 0x7fff_f000, u32::MAX]),
            chunk in 1usize..70,
        ) {
            let mut stream = WavStream::default();
            let mut heard = Vec::new();
            for printed in wav(22_050, 16, length, &sound).chunks(chunk) {
                heard.extend(stream.push(printed).unwrap());
            }
            stream.finish().unwrap();
            prop_assert_eq!(stream.layout(), Some(Layout::mono(SampleRate::new(22_050u32).unwrap())));
            prop_assert_eq!(&heard, &sound[..sound.len() & !1]);
        }

        #[test]
        fn garbage_is_an_error_and_never_sound(garbage in prop::collection::vec(any::<u8>(), 0..6000)) {
            let mut stream = WavStream::default();
            let pushed = stream.push(&garbage).and_then(|_| stream.finish());
            prop_assert!(pushed.is_err());
        }
    }

    #[test]
    fn rates_and_depths_that_are_not_ours_are_errors() {
        for (hz, bits) in [(0, 16), (4_000_000_000 / 2, 16), (16_000, 8)] {
            let pushed = WavStream::default().push(&wav(hz, bits, 0, &[]));
            assert!(matches!(pushed, Err(WavError::Unsupported { .. })));
        }
    }

    #[test]
    fn a_header_without_end_is_refused() {
        let mut endless = b"RIFF\0\0\0\0WAVE".to_vec();
        endless.extend(b"junk\0\0\0\0".repeat(1000));
        assert_eq!(WavStream::default().push(&endless), Err(WavError::NotWav));
    }
}
