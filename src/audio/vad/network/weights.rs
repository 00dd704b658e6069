//! The weights of the network, those of `earshot` 1.2.2 (pyke.io, MIT or Apache-2.0), whose file `earshot.bin` is: numbers
//! in little-endian order, first floats, from [`RECURRENT`] on 16-bit integers. Where columns are computed side by side they
//! are turned here, so that what is computed together lies together.

use super::layers::{BANDS, CHANNELS, FIRST, UNITS};

const BYTES: &[u8; 39_940] = include_bytes!("earshot.bin");

/// A convolution of three taps along the bands for each channel, then a mix of the channels.
pub struct Convolution {
    /// By tap, by channel.
    pub taps: [[f32; CHANNELS]; 3],
    /// By channel that goes in, by channel that comes out.
    pub mix: [[f32; CHANNELS]; CHANNELS],
}

pub struct Weights {
    /// What each band is multiplied by.
    pub bands: [f32; BANDS],
    /// The first convolution, over three frames and three bands.
    pub kernel: [f32; 9],
    /// How much of its result each channel takes.
    pub spread: [f32; CHANNELS],
    pub spread_bias: [f32; CHANNELS],
    pub second: Convolution,
    pub second_bias: [f32; CHANNELS],
    pub third: Convolution,
    /// By unit what it would become, then by unit how much of that it becomes.
    pub recurrent_first: [[i16; FIRST]; 2 * UNITS],
    pub recurrent_second: [[i16; UNITS]; 2 * UNITS],
    pub output: [[i16; UNITS]; 2],
}

/// Where parts begin, in floats.
const KERNEL: usize = BANDS;
const SPREAD: usize = KERNEL + 9;
const SECOND: usize = SPREAD + 2 * CHANNELS;
const OF_CONVOLUTION: usize = 3 * CHANNELS + CHANNELS * CHANNELS;
const THIRD: usize = SECOND + OF_CONVOLUTION + CHANNELS;
/// The integers, of which a float is as long as two.
const RECURRENT: usize = 2 * (THIRD + OF_CONVOLUTION);
const RECURRENT_SECOND: usize = RECURRENT + 2 * UNITS * FIRST;
const OUTPUT: usize = RECURRENT_SECOND + 2 * UNITS * UNITS;

pub static WEIGHTS: Weights = Weights {
    bands: floats(0),
    kernel: floats(KERNEL),
    spread: floats(SPREAD),
    spread_bias: floats(SPREAD + CHANNELS),
    second: convolution(SECOND),
    second_bias: floats(SECOND + OF_CONVOLUTION),
    third: convolution(THIRD),
    recurrent_first: rows(RECURRENT),
    recurrent_second: rows(RECURRENT_SECOND),
    output: rows(OUTPUT),
};

const _: () = assert!(2 * (OUTPUT + 2 * UNITS) == BYTES.len());

const fn floats<const N: usize>(first: usize) -> [f32; N] {
    let mut floats = [0.0; N];
    let mut n = 0;
    while n < N {
        floats[n] = float(first + n);
        n += 1;
    }
    floats
}

const fn float(place: usize) -> f32 {
    let at = 4 * place;
    f32::from_le_bytes([BYTES[at], BYTES[at + 1], BYTES[at + 2], BYTES[at + 3]])
}

const fn convolution(first: usize) -> Convolution {
    let mut convolution = Convolution {
        taps: [[0.0; CHANNELS]; 3],
        mix: [[0.0; CHANNELS]; CHANNELS],
    };
    let mut channel = 0;
    while channel < CHANNELS {
        let mut tap = 0;
        while tap < 3 {
            convolution.taps[tap][channel] = float(first + 3 * channel + tap);
            tap += 1;
        }
        let mut out = 0;
        while out < CHANNELS {
            let place = 3 * CHANNELS + CHANNELS * out + channel;
            convolution.mix[channel][out] = float(first + place);
            out += 1;
        }
        channel += 1;
    }
    convolution
}

const fn rows<const N: usize, const ROWS: usize>(first: usize) -> [[i16; N]; ROWS] {
    let mut rows = [[0; N]; ROWS];
    let mut row = 0;
    while row < ROWS {
        let mut n = 0;
        while n < N {
            let at = 2 * (first + N * row + n);
            rows[row][n] = i16::from_le_bytes([BYTES[at], BYTES[at + 1]]);
            n += 1;
        }
        row += 1;
    }
    rows
}
