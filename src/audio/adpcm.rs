//! The two ADPCM formats found in WAV files, with four bits per sample: Microsoft's (format tag 2) and IMA's (0x11), as
//! in the 1994 multimedia data standards update. Decodes single blocks; [`super::wav`] finds them.

use bytes::Buf;

/// The variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adpcm {
    /// Microsoft's: two-tap prediction, an adaptive step.
    Ms,
    /// IMA's (DVI): the last sample and a table of steps.
    Ima,
}

impl Adpcm {
    /// The size of a block's header per channel, which contains the first samples.
    const fn header(self) -> usize {
        match self {
            Self::Ms => 7,
            Self::Ima => 4,
        }
    }

    /// Frames in a whole block; `None` if a block could not even hold its header.
    pub fn frames_of_block(self, bytes: usize, channels: usize) -> Option<u64> {
        let nibbles = bytes.checked_sub(self.header() * channels)? * 2;
        let first = match self {
            Self::Ms => 2,
            Self::Ima => 1,
        };
        Some((nibbles / channels + first) as u64)
    }

    /// Appends the interleaved samples of a block, which may be truncated.
    pub fn decode(self, block: &[u8], channels: usize, samples: &mut Vec<i16>) {
        if block.len() < self.header() * channels {
            return;
        }
        match self {
            Self::Ms => decode_ms(block, channels, samples),
            Self::Ima => decode_ima(block, channels, samples),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Ms {
    coefficients: (i32, i32),
    step: i32,
    last: i32,
    before: i32,
}

impl Ms {
    const COEFFICIENTS: [(i32, i32); 7] = [
        (256, 0),
        (512, -256),
        (0, 0),
        (192, 64),
        (240, 0),
        (460, -208),
        (392, -232),
    ];
    const ADAPTATION: [i32; 16] = [
        230, 230, 230, 230, 307, 409, 512, 614, 768, 614, 512, 409, 307, 230, 230, 230,
    ];
    /// The upper bound of the step size, which damaged blocks would otherwise grow without limit.
    const MAX_STEP: i32 = i32::MAX / 768;

    fn next(&mut self, nibble: u8) -> i16 {
        let (first, second) = self.coefficients;
        let predicted = (self.last * first + self.before * second) >> 8;
        let signed = i32::from(nibble) - if nibble < 8 { 0 } else { 16 };
        let sample = saturated(predicted + signed * self.step);
        self.before = self.last;
        self.last = sample.into();
        let step = (Self::ADAPTATION[usize::from(nibble)] * self.step) >> 8;
        self.step = step.clamp(16, Self::MAX_STEP);
        sample
    }
}

fn decode_ms(mut block: &[u8], channels: usize, samples: &mut Vec<i16>) {
    let mut states = vec![Ms::default(); channels];
    for state in &mut states {
        let predictor = usize::from(block.get_u8());
        state.coefficients = Ms::COEFFICIENTS[predictor.min(Ms::COEFFICIENTS.len() - 1)];
    }
    for state in &mut states {
        state.step = block.get_i16_le().into();
    }
    for state in &mut states {
        state.last = block.get_i16_le().into();
    }
    for state in &mut states {
        state.before = block.get_i16_le().into();
    }
    samples.extend(states.iter().map(|state| state.before as i16));
    samples.extend(states.iter().map(|state| state.last as i16));
    let nibbles = block.iter().flat_map(|byte| [byte >> 4, byte & 0x0F]);
    for (n, nibble) in nibbles.enumerate() {
        samples.push(states[n % channels].next(nibble));
    }
}

#[derive(Debug, Clone, Copy)]
struct Ima {
    last: i32,
    index: usize,
}

impl Ima {
    const STEPS: [i32; 89] = [
        7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 23, 25, 28, 31, 34, 37, 41, 45, 50, 55, 60,
        66, 73, 80, 88, 97, 107, 118, 130, 143, 157, 173, 190, 209, 230, 253, 279, 307, 337, 371,
        408, 449, 494, 544, 598, 658, 724, 796, 876, 963, 1_060, 1_166, 1_282, 1_411, 1_552, 1_707,
        1_878, 2_066, 2_272, 2_499, 2_749, 3_024, 3_327, 3_660, 4_026, 4_428, 4_871, 5_358, 5_894,
        6_484, 7_132, 7_845, 8_630, 9_493, 10_442, 11_487, 12_635, 13_899, 15_289, 16_818, 18_500,
        20_350, 22_385, 24_623, 27_086, 29_794, 32_767,
    ];
    const INDEX_CHANGE: [isize; 8] = [-1, -1, -1, -1, 2, 4, 6, 8];

    fn next(&mut self, nibble: u8) -> i16 {
        let step = Self::STEPS[self.index];
        let size = usize::from(nibble & 7);
        let change = step / 8
            + (0..3)
                .filter(|bit| size >> bit & 1 == 1)
                .map(|bit| step >> (2 - bit))
                .sum::<i32>();
        let sign = if nibble & 8 == 0 { 1 } else { -1 };
        let sample = saturated(self.last + sign * change);
        self.last = sample.into();
        self.index = self
            .index
            .saturating_add_signed(Self::INDEX_CHANGE[size])
            .min(Self::STEPS.len() - 1);
        sample
    }
}

fn decode_ima(mut block: &[u8], channels: usize, samples: &mut Vec<i16>) {
    let mut states: Vec<_> = (0..channels)
        .map(|_| {
            let last = block.get_i16_le().into();
            let index = usize::from(block.get_u16_le() & 0xFF);
            let index = index.min(Ima::STEPS.len() - 1);
            Ima { last, index }
        })
        .collect();
    samples.extend(states.iter().map(|state| state.last as i16));
    // Four bytes, eight samples, of each channel in turn.
    for group in block.chunks_exact(4 * channels) {
        let start = samples.len();
        samples.resize(start + 8 * channels, 0);
        for (channel, (state, word)) in states.iter_mut().zip(group.chunks_exact(4)).enumerate() {
            let nibbles = word.iter().flat_map(|byte| [byte & 0x0F, byte >> 4]);
            for (n, nibble) in nibbles.enumerate() {
                samples[start + n * channels + channel] = state.next(nibble);
            }
        }
    }
}

fn saturated(sample: i32) -> i16 {
    sample.clamp(i16::MIN.into(), i16::MAX.into()) as i16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_block_is_as_long_as_it_says_or_shorter(
            block in prop::collection::vec(any::<u8>(), 0..600),
            channels in 1usize..5,
            ms: bool,
        ) {
            let kind = if ms { Adpcm::Ms } else { Adpcm::Ima };
            let mut samples = Vec::new();
            kind.decode(&block, channels, &mut samples);
            let most = kind.frames_of_block(block.len(), channels).unwrap_or(0);
            prop_assert!(samples.len() as u64 <= (most + 1) * channels as u64);
        }
    }
}
