//! The format of a cached synthesis: the word timings, followed by the audio. The words are a count, then for each its
//! start in microseconds, its length in bytes and its text; all numbers are little-endian.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::single_flight::SpokenWord;

/// Encodes the word timings that precede the audio.
pub(super) fn pack(words: &[SpokenWord]) -> Bytes {
    let told = words.iter().filter_map(|SpokenWord { word, start }| {
        Some((
            u64::try_from(start.as_micros()).ok()?,
            u16::try_from(word.len()).ok()?,
            word,
        ))
    });
    let mut packed = BytesMut::new();
    packed.put_u32_le(told.clone().count() as u32);
    for (start, length, word) in told {
        packed.put_u64_le(start);
        packed.put_u16_le(length);
        packed.put_slice(word.as_bytes());
    }
    packed.freeze()
}

/// Decodes the word timings and the audio; `None` if it was not encoded here.
pub(super) fn unpack(mut kept: Bytes) -> Option<(Vec<SpokenWord>, Bytes)> {
    let mut words = Vec::new();
    for _ in 0..kept.try_get_u32_le().ok()? {
        let start = Duration::from_micros(kept.try_get_u64_le().ok()?);
        let length = usize::from(kept.try_get_u16_le().ok()?);
        if kept.len() < length {
            return None;
        }
        let word = String::from_utf8(kept.split_to(length).to_vec()).ok()?;
        words.push(SpokenWord { word, start });
    }
    Some((words, kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_and_sound_come_back(
            told in prop::collection::vec(("\\PC{0,20}", 0..u64::MAX), 0..9),
            sound in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let word = |(word, micros)| SpokenWord { word, start: Duration::from_micros(micros) };
            let told: Vec<_> = told.into_iter().map(word).collect();
            let kept = [&pack(&told)[..], &sound].concat();
            prop_assert_eq!(unpack(kept.into()), Some((told, Bytes::from(sound))));
        }

        #[test]
        fn no_bytes_end_the_process(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = unpack(bytes.into());
        }
    }
}
