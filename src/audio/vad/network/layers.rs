//! The layers of `earshot`'s network, in its arithmetic and to its last bit: two convolutions with a maximum between them, a
//! third whose result is a 16-bit integer, and two recurrent layers in integers (minGRU). What is computed is what the
//! crate computes; here the channels lie side by side, and the code is compiled for several instruction sets, of which the
//! processor's is chosen at run time: less than a third of the time.

// What is compiled for an instruction set must have within it what it calls.
#![allow(clippy::inline_always)]

use multiversion::multiversion;

use super::weights::{Convolution, WEIGHTS};

pub const BANDS: usize = 40;
/// The frames whose bands the network sees.
pub const CONTEXT: usize = 3;
pub const CHANNELS: usize = 16;
/// The units of one recurrent layer.
pub const UNITS: usize = 64;
/// What the first recurrent layer is given.
pub const FIRST: usize = CHANNELS * QUARTERED;

/// Places along the bands, from layer to layer.
const KERNELS: usize = BANDS - 2;
const POOLED: usize = (KERNELS - 3) / 2 + 1;
const HALVED: usize = POOLED / 2;
const QUARTERED: usize = HALVED.div_ceil(2);

/// One as an integer of 24 fractional bits, less the last of them.
const ONE: i64 = 0xff_ffff;
/// One, in a sum of products of weights and states.
const OUTPUT_ONE: f32 = 16_777_216.0;
/// The largest float below one half: what is added before the fraction is cut off, so that halves are rounded away from zero.
const BELOW_HALF: f32 = 0.499_999_97;

/// What the network remembers of a stream.
pub type State = [[i16; UNITS]; 2];

/// The probability of voice in the last of three frames.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+bmi1+bmi2",
    "x86_64+avx2+bmi1+bmi2"
))]
pub fn predict(features: &[[f32; BANDS]; CONTEXT], state: &mut State) -> f32 {
    let weights = &WEIGHTS;
    let third = third_layer(&second_layer(&first_layer(features)));
    let [first, second] = state;
    recur(&third, first, &weights.recurrent_first);
    recur(first, second, &weights.recurrent_second);
    let [of_first, of_second] = &weights.output;
    let sum = dot(first, of_first).wrapping_add(dot(second, of_second));
    1.0 / (1.0 + (-(sum as f32) / OUTPUT_ONE).exp())
}

// What follows is compiled into each version of its caller.

#[inline(always)]
fn first_layer(features: &[[f32; BANDS]; CONTEXT]) -> [[f32; CHANNELS]; POOLED] {
    let weights = &WEIGHTS;
    let mut row = [0.0; KERNELS];
    for (place, sum) in row.iter_mut().enumerate() {
        for (frame, taps) in features.iter().zip(weights.kernel.as_chunks::<3>().0) {
            for (tap, weight) in taps.iter().enumerate() {
                *sum += frame[place + tap] * weight;
            }
        }
    }
    let mut layer = [[0.0; CHANNELS]; POOLED];
    for (place, channels) in layer.iter_mut().enumerate() {
        // The maximum of three multiples of something is that of its maximum or of its minimum.
        let [one, two, three] = [row[2 * place], row[2 * place + 1], row[2 * place + 2]];
        let most = one.max(two).max(three);
        let least = one.min(two).min(three);
        for (n, channel) in channels.iter_mut().enumerate() {
            let weight = weights.spread[n];
            let value = if weight > 0.0 { most } else { least };
            *channel = (value * weight + weights.spread_bias[n]).max(0.0);
        }
    }
    layer
}

#[inline(always)]
fn second_layer(before: &[[f32; CHANNELS]; POOLED]) -> [[f32; CHANNELS]; HALVED] {
    let weights = &WEIGHTS;
    let mut layer = [[0.0; CHANNELS]; HALVED];
    for (place, channels) in layer.iter_mut().enumerate() {
        let mixed = convolve(before, place, &weights.second);
        for n in 0..CHANNELS {
            channels[n] = (mixed[n] + weights.second_bias[n]).max(0.0);
        }
    }
    layer
}

#[inline(always)]
fn third_layer(before: &[[f32; CHANNELS]; HALVED]) -> [i16; FIRST] {
    let mut layer = [0; FIRST];
    let places = layer.as_chunks_mut::<CHANNELS>().0;
    for (place, channels) in places.iter_mut().enumerate() {
        let mixed = convolve(before, place, &WEIGHTS.third);
        for n in 0..CHANNELS {
            let value = (mixed[n] * 32_768.0).clamp(-32_768.0, 32_767.0);
            channels[n] = (value + BELOW_HALF.copysign(value)) as i16;
        }
    }
    layer
}

/// Three neighbours, of which the middle one is at twice this place, channel by channel, then mixed.
#[inline(always)]
fn convolve<const N: usize>(
    before: &[[f32; CHANNELS]; N],
    place: usize,
    weights: &Convolution,
) -> [f32; CHANNELS] {
    let mut channels = [0.0; CHANNELS];
    for (tap, taps) in weights.taps.iter().enumerate() {
        let neighbour = (2 * place + tap).checked_sub(1);
        if let Some(neighbour) = neighbour.and_then(|place| before.get(place)) {
            for n in 0..CHANNELS {
                channels[n] += neighbour[n] * taps[n];
            }
        }
    }
    let mut mixed = [0.0; CHANNELS];
    for (channel, row) in channels.iter().zip(&weights.mix) {
        for n in 0..CHANNELS {
            mixed[n] += channel * row[n];
        }
    }
    mixed
}

#[inline(always)]
fn recur<const N: usize>(
    input: &[i16; N],
    state: &mut [i16; UNITS],
    weights: &[[i16; N]; 2 * UNITS],
) {
    let mut sums = [0; 2 * UNITS];
    for (sum, row) in sums.iter_mut().zip(weights) {
        *sum = dot(input, row);
    }
    let (candidates, gates) = sums.split_at(UNITS);
    for ((unit, candidate), gate) in state.iter_mut().zip(candidates).zip(gates) {
        let gate = i64::from(gate << 2).clamp(0, ONE);
        let next = (ONE - gate) * (i64::from(*unit) << 9) + gate * i64::from(*candidate);
        *unit = (next >> 33).clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16;
    }
}

#[inline(always)]
fn dot(one: &[i16], other: &[i16]) -> i32 {
    let products = one.iter().zip(other);
    products.fold(0_i32, |sum, (one, other)| {
        sum.wrapping_add(i32::from(*one) * i32::from(*other))
    })
}
