//! Samples as bytes: signed 16-bit little-endian PCM (`linear16`). Headers, rates and incomplete frames are left to the
//! callers.

use bytes::Bytes;

/// Appends the samples in `bytes`; an odd byte at the end is ignored.
pub fn decode(bytes: &[u8], samples: &mut Vec<i16>) {
    let pairs = bytes.chunks_exact(2);
    samples.extend(pairs.map(|pair| i16::from_le_bytes([pair[0], pair[1]])));
}

/// The samples in `bytes`; an odd byte at the end is ignored.
pub fn samples(bytes: &[u8]) -> Vec<i16> {
    let mut samples = Vec::with_capacity(bytes.len() / 2);
    decode(bytes, &mut samples);
    samples
}

/// The bytes of `samples`.
pub fn encode(samples: &[i16]) -> Bytes {
    let mut bytes = vec![0; samples.len() * 2];
    for (pair, sample) in bytes.chunks_exact_mut(2).zip(samples) {
        pair.copy_from_slice(&sample.to_le_bytes());
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_low_byte_comes_first() {
        assert_eq!(encode(&[0x0102, -2]).as_ref(), [0x02, 0x01, 0xFE, 0xFF]);
    }

    proptest! {
        #[test]
        fn bytes_and_samples_are_the_same_sound(samples: Vec<i16>) {
            let mut back = Vec::new();
            decode(&encode(&samples), &mut back);
            prop_assert_eq!(back, samples);
        }
    }
}
