//! Sample rate conversion of live audio: a polyphase windowed-sinc filter for any pair of rates, mono or stereo. It
//! delays by less than 2 ms and keeps the audio's position in time; [`super::stretch`] changes durations,
//! [`super::Pcm`] channels.
//!
//! This resampler is for live audio, where thousands of streams share a processor and every millisecond counts:
//! compared with rubato it takes a quarter of the time, shares its filters between streams of the same rates, where
//! rubato computes a table for each (up to 1 ms), and has a shorter delay (`benches/RESULTS.md`, "Resamplers side by
//! side"). Whole files, which nobody listens to in real time, are converted by rubato: [`super::offline`].
//!
//! Frame `n` of the output is at `n * from / to` frames of the input. Around that point the filter spans [`SPAN`]
//! frames of the *lower* of the two rates; its passband ends at 0.40 of that rate (−0.15 dB) and its stopband begins at
//! 0.60 (−86 dB), for both aliases and images. The ratio is a fraction, so the position between two input frames takes
//! as many values as its numerator: if these are few, each has its own row of taps and the result is exact; otherwise
//! the taps are interpolated between neighbouring rows, with an error below −100 dB.

use std::collections::VecDeque;
use std::f64::consts::PI;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use multiversion::multiversion;

use super::format::{Layout, SampleRate};
use super::pcm::{Pcm, saturate};
use super::window::kaiser;

/// At most so much is held back.
const HELD_BACK: Duration = Duration::from_millis(2);
/// The length of the filter in frames of the lower rate. Together with [`CUTOFF`] and [`KAISER_BETA`] it is the
/// shortest multiple of [`LANES`] that achieves 80 dB at 0.60 and 1 dB at 0.40; the other two were found by searching
/// for the most rejection at 0.15 dB of loss.
const SPAN: usize = 24;
/// The cutoff of the sinc, as a fraction of the lower rate. Below one half: the margin of the passband pays for a
/// shorter filter.
const CUTOFF: f64 = 0.48;
/// Shape of the Kaiser window.
const KAISER_BETA: f64 = 9.1;
/// Independent sums in the inner loop, so that the compiler can use vector registers.
const LANES: usize = 8;
/// If both parts of the ratio are at most this, each position between two input frames has a row of its own. The
/// largest part of a standard pair is 640 (22.05 to 32 kHz).
const EXACT_PART: u32 = 640;
/// Rows per frame of the lower rate otherwise.
const INTERPOLATED_ROWS: u32 = 512;
/// Filters cached for the next resampler with the same ratio. The standard pairs have 26 ratios; the rest is for
/// others, which evict each other. A filter takes at most 85 kB.
const KEPT_FILTERS: usize = 64;
/// Input is processed in blocks of this many frames: large enough to amortise the bookkeeping, small enough for the
/// first-level cache and to bound the memory of a resampler whatever the chunk size.
const BLOCK_FRAMES: usize = 512;

/// Converts the rate of a stream. The output does not depend on how the input is divided into chunks.
#[derive(Debug)]
pub struct Resampler {
    from: Layout,
    to: SampleRate,
    /// Frames received since the start.
    accepted: u64,
    /// Frames returned since the start.
    delivered: u64,
    /// `None` when both rates are the same.
    converter: Option<Converter>,
}

impl Resampler {
    /// Converts from layout `from` to the same channels at `to`.
    pub fn new(from: Layout, to: SampleRate) -> Self {
        Self {
            from,
            to,
            accepted: 0,
            delivered: 0,
            converter: Ratio::between(from.rate, to)
                .map(|ratio| Converter::new(FILTERS.get(ratio), from.channels.count())),
        }
    }

    /// The layout of the input.
    pub const fn input_layout(&self) -> Layout {
        self.from
    }

    /// The layout of the output.
    pub const fn output_layout(&self) -> Layout {
        Layout::new(self.to, self.from.channels)
    }

    /// Takes interleaved samples and appends to `output` what is ready. An incomplete frame at the end is dropped.
    pub fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        let channels = self.from.channels.count();
        let frames = input.len() / channels;
        let input = &input[..frames * channels];
        let before = output.len();
        match &mut self.converter {
            None => output.extend_from_slice(input),
            Some(converter) => {
                for block in input.chunks(BLOCK_FRAMES * channels) {
                    converter.push(block, output);
                }
            }
        }
        self.accepted += frames as u64;
        self.delivered += ((output.len() - before) / channels) as u64;
    }

    /// Ends the input: appends the remaining audio, so that the output has [`Self::frames_for`] the whole input. The
    /// resampler is then as good as new.
    pub fn finish(&mut self, output: &mut Vec<i16>) {
        let owed = self.frames_for(self.accepted) - self.delivered;
        if let Some(converter) = &mut self.converter {
            // At most the length of the filter, so it fits.
            converter.finish(owed as usize, output);
        }
        self.accepted = 0;
        self.delivered = 0;
    }

    /// The number of output frames for this many input frames: the same duration, rounded to the nearest frame.
    pub fn frames_for(&self, input_frames: u64) -> u64 {
        frames_for(input_frames, self.from.rate, self.to)
    }

    /// The current delay: input that has not been returned yet.
    pub fn held(&self) -> Duration {
        let (from, to) = (u128::from(self.from.rate.hz()), u128::from(self.to.hz()));
        let accepted = u128::from(self.accepted) * to;
        let delivered = u128::from(self.delivered) * from;
        let nanos = accepted.saturating_sub(delivered) * 1_000_000_000 / (from * to);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Converts a whole piece of live audio; use [`super::OfflineResampler`] for anything else.
    pub fn convert(sound: Pcm, to: SampleRate) -> Pcm {
        let mut resampler = Self::new(sound.layout(), to);
        if resampler.converter.is_none() {
            return sound;
        }
        let frames = usize::try_from(resampler.frames_for(sound.frames() as u64)).unwrap_or(0);
        let mut output = Vec::with_capacity(frames * sound.layout().channels.count());
        resampler.push(sound.samples(), &mut output);
        resampler.finish(&mut output);
        Pcm::new(resampler.output_layout(), output)
    }
}

/// Converts mono sound piece by piece: as much silence as is held back at most comes first, so that there is as much for each
/// piece as it lasts.
#[derive(Debug)]
pub struct EvenResampler {
    /// `None` when both rates are the same.
    resampler: Option<Resampler>,
    converted: Vec<i16>,
}

impl EvenResampler {
    /// Converts from one rate to the other.
    pub fn new(from: SampleRate, to: SampleRate) -> Self {
        let resampler = (from != to).then(|| Resampler::new(Layout::mono(from), to));
        let held_back = match resampler {
            Some(_) => to.frames_in(HELD_BACK),
            None => 0,
        };
        Self {
            resampler,
            converted: vec![0; held_back],
        }
    }

    /// Takes samples.
    pub fn push(&mut self, samples: &[i16]) {
        match &mut self.resampler {
            Some(resampler) => resampler.push(samples, &mut self.converted),
            None => self.converted.extend_from_slice(samples),
        }
    }

    /// The next `length` samples, or as many as there are.
    pub fn take(&mut self, length: usize) -> std::vec::Drain<'_, i16> {
        self.converted.drain(..length.min(self.converted.len()))
    }
}

/// The number of frames at one rate with the same duration as `frames` at another, rounded to the nearest.
pub(super) fn frames_for(frames: u64, from: SampleRate, to: SampleRate) -> u64 {
    let (from, to) = (u128::from(from.hz()), u128::from(to.hz()));
    let nearest = (2 * u128::from(frames) * to + from) / (2 * from);
    u64::try_from(nearest).unwrap_or(u64::MAX)
}

/// Output rate over input rate in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ratio {
    /// Positions between two input frames.
    pub(super) up: u32,
    /// Positions from one output frame to the next.
    pub(super) down: u32,
}

impl Ratio {
    /// The ratio of two rates; `None` when they are the same.
    pub(super) fn between(from: SampleRate, to: SampleRate) -> Option<Self> {
        let (mut divisor, mut rest) = (from.hz(), to.hz());
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        (from != to).then(|| Self {
            up: to.hz() / divisor,
            down: from.hz() / divisor,
        })
    }

    /// The lower of the two rates, as a fraction of the input rate.
    pub(super) fn band(self) -> f64 {
        (f64::from(self.up) / f64::from(self.down)).min(1.0)
    }
}

/// Filters by ratio, least recently used first, so that many streams of the same rates share a table.
#[derive(Debug, Default)]
struct FilterCache(Mutex<VecDeque<Arc<Filter>>>);

impl FilterCache {
    fn get(&self, ratio: Ratio) -> Arc<Filter> {
        if let Some(found) = Self::take_up(&mut self.lock(), ratio) {
            return found;
        }
        // Computed outside the lock: it takes a few milliseconds.
        let computed = Arc::new(Filter::new(ratio));
        let mut kept = self.lock();
        if let Some(found) = Self::take_up(&mut kept, ratio) {
            return found;
        }
        if kept.len() == KEPT_FILTERS {
            kept.pop_front();
        }
        kept.push_back(Arc::clone(&computed));
        computed
    }

    fn take_up(kept: &mut VecDeque<Arc<Filter>>, ratio: Ratio) -> Option<Arc<Filter>> {
        let place = kept.iter().position(|filter| filter.ratio == ratio)?;
        let found = kept.remove(place)?;
        kept.push_back(Arc::clone(&found));
        Some(found)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Filter>>> {
        // Each change is a single operation on the queue, so a poisoned lock is usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The filters of this process.
static FILTERS: LazyLock<FilterCache> = LazyLock::new(FilterCache::default);

/// The taps for a ratio: for each row, an evenly spaced position between two input frames, the weights of the `taps`
/// input frames around it.
#[derive(Debug)]
struct Filter {
    ratio: Ratio,
    /// Taps in a row; a multiple of [`LANES`].
    taps: usize,
    /// Rows per input frame, plus one for the position of the next frame.
    rows: u32,
    weights: Vec<f32>,
}

impl Filter {
    fn new(ratio: Ratio) -> Self {
        let band = ratio.band();
        let taps = ((SPAN as f64 / band).ceil() as usize).next_multiple_of(LANES);
        let rows = if ratio.up.max(ratio.down) <= EXACT_PART {
            ratio.up
        } else {
            (f64::from(INTERPOLATED_ROWS) * band).ceil() as u32
        };
        let half = (taps / 2) as f64;
        let mut weights = Vec::with_capacity((rows as usize + 1) * taps);
        for row in 0..=rows {
            let position = f64::from(row) / f64::from(rows);
            let distances = (0..taps).map(|tap| tap as f64 + 1.0 - half - position);
            let row: Vec<f64> = distances
                .map(|x| sinc(2.0 * CUTOFF * band * x) * kaiser(x / half, KAISER_BETA))
                .collect();
            // Each row passes a constant unchanged; otherwise the rows would modulate it.
            let sum: f64 = row.iter().sum();
            weights.extend(row.iter().map(|weight| (weight / sum) as f32));
        }
        Self {
            ratio,
            taps,
            rows,
            weights,
        }
    }

    fn row(&self, row: u32) -> &[f32] {
        let start = row as usize * self.taps;
        &self.weights[start..start + self.taps]
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        1.0
    } else {
        (PI * x).sin() / (PI * x)
    }
}

/// The position of the next output frame: `phase / up` after the centre of the window that starts at `frame`.
#[derive(Debug, Clone, Copy, Default)]
struct Position {
    frame: usize,
    phase: u32,
}

impl Position {
    /// The position `frames` output frames later.
    fn after(self, frames: usize, ratio: Ratio) -> Self {
        let positions = u64::from(self.phase) + frames as u64 * u64::from(ratio.down);
        Self {
            frame: self.frame + (positions / u64::from(ratio.up)) as usize,
            phase: (positions % u64::from(ratio.up)) as u32,
        }
    }

    /// This position and those of the next output frames, `count` in all.
    fn following(mut self, count: usize, ratio: Ratio) -> impl ExactSizeIterator<Item = Self> {
        let Ratio { up, down } = ratio;
        let (whole, part) = ((down / up) as usize, down % up);
        (0..count).map(move |_| {
            let here = self;
            self.frame += whole;
            self.phase += part;
            if self.phase >= up {
                self.phase -= up;
                self.frame += 1;
            }
            here
        })
    }
}

/// Computes the next output frames of one channel, the first at `at`; all their windows lie within `history`. The last four
/// terms of each sum are left to be added: the compiler vectorises each half better if it does not see the other.
///
/// The sums have as many independent parts as a vector register of AVX2 has places, and the same ones without it: the output is
/// the same on every processor.
#[multiversion(targets("x86_64+avx2"))]
fn run(filter: &Filter, at: Position, history: &[f32], output: &mut [Quad]) {
    let positions = at.following(output.len(), filter.ratio);
    if filter.rows != filter.ratio.up {
        let rows_per_phase = f64::from(filter.rows) / f64::from(filter.ratio.up);
        for (output, at) in output.iter_mut().zip(positions) {
            let window = &history[at.frame..at.frame + filter.taps];
            let position = f64::from(at.phase) * rows_per_phase;
            let row = position as u32;
            let beyond = (position - f64::from(row)) as f32;
            let low = dot(window, filter.row(row));
            let high = dot(window, filter.row(row + 1));
            for lane in 0..LANES / 2 {
                output[lane] = low[lane] + (high[lane] - low[lane]) * beyond;
            }
        }
        return;
    }
    // Known lengths allow unrolling, which is a fifth to a third faster: all ratios up, most ratios down, and 48 to 8 kHz.
    match filter.taps {
        24 => run_exact::<24>(filter, positions, history, output),
        32 => run_exact::<32>(filter, positions, history, output),
        40 => run_exact::<40>(filter, positions, history, output),
        48 => run_exact::<48>(filter, positions, history, output),
        72 => run_exact::<72>(filter, positions, history, output),
        144 => run_exact::<144>(filter, positions, history, output),
        _ => {
            for (output, at) in output.iter_mut().zip(positions) {
                let window = &history[at.frame..at.frame + filter.taps];
                *output = dot(window, filter.row(at.phase));
            }
        }
    }
}

#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "it is compiled into each version of its caller"
)]
fn run_exact<const TAPS: usize>(
    filter: &Filter,
    positions: impl ExactSizeIterator<Item = Position>,
    history: &[f32],
    output: &mut [Quad],
) {
    let (rows, _) = filter.weights.as_chunks::<TAPS>();
    for (output, at) in output.iter_mut().zip(positions) {
        let window = &history[at.frame..at.frame + TAPS];
        *output = dot(window, &rows[at.phase as usize]);
    }
}

/// A sum whose last four terms are still to be added.
type Quad = [f32; LANES / 2];

/// The dot product of two slices of the same length, a multiple of [`LANES`].
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "it is compiled into each version of its caller"
)]
fn dot(left: &[f32], right: &[f32]) -> Quad {
    let mut sums = [0.0_f32; LANES];
    let (left, right) = (left.as_chunks::<LANES>().0, right.as_chunks::<LANES>().0);
    for (left, right) in left.iter().zip(right) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    std::array::from_fn(|lane| sums[lane] + sums[lane + LANES / 2])
}

/// A running filter: its position and the input it still needs.
#[derive(Debug)]
struct Converter {
    filter: Arc<Filter>,
    /// Input by channel, from the first frame that the next output frame needs.
    history: Vec<Vec<f32>>,
    /// The position of the next output frame in it.
    at: Position,
    /// One channel of an output block, before rounding.
    scratch: Vec<Quad>,
}

impl Converter {
    fn new(filter: Arc<Filter>, channels: usize) -> Self {
        // The first output frame is aligned with the first input frame: what its window covers before that is silence.
        let history = vec![vec![0.0; filter.taps / 2 - 1]; channels];
        Self {
            filter,
            history,
            at: Position::default(),
            scratch: Vec::new(),
        }
    }

    /// Takes at most [`BLOCK_FRAMES`] whole frames.
    fn push(&mut self, block: &[i16], output: &mut Vec<i16>) {
        match &mut self.history[..] {
            [mono] => mono.extend(block.iter().map(|&sample| f32::from(sample))),
            channels => {
                for (channel, history) in channels.iter_mut().enumerate() {
                    let frames = block.as_chunks::<2>().0.iter();
                    history.extend(frames.map(|frame| f32::from(frame[channel])));
                }
            }
        }
        let frames = self.ready();
        let channels = self.history.len();
        let start = output.len();
        output.resize(start + frames * channels, 0);
        for (channel, history) in self.history.iter().enumerate() {
            self.scratch.resize(frames, Quad::default());
            run(&self.filter, self.at, history, &mut self.scratch);
            let output = &mut output[start..];
            match channels {
                1 => write(output.iter_mut(), &self.scratch),
                _ => write(output.iter_mut().skip(channel).step_by(2), &self.scratch),
            }
        }
        let next = self.at.after(frames, self.filter.ratio);
        for history in &mut self.history {
            history.drain(..next.frame.min(history.len()));
        }
        self.at = Position { frame: 0, ..next };
    }

    /// Output frames whose whole window has arrived.
    fn ready(&self) -> usize {
        let Ratio { up, down } = self.filter.ratio;
        let Some(room) = self.history[0].len().checked_sub(self.filter.taps) else {
            return 0;
        };
        let positions = (room as u64 + 1) * u64::from(up) - u64::from(self.at.phase);
        positions.div_ceil(u64::from(down)) as usize
    }

    /// Appends the last `owed` frames, followed by silence, and restarts.
    fn finish(&mut self, owed: usize, output: &mut Vec<i16>) {
        let channels = self.history.len();
        let end = output.len() + owed * channels;
        let silence = [0; BLOCK_FRAMES];
        while output.len() < end {
            self.push(&silence, output);
        }
        output.truncate(end);
        *self = Self::new(Arc::clone(&self.filter), channels);
    }
}

/// Rounds the output of [`Filter::run`].
fn write<'a>(places: impl Iterator<Item = &'a mut i16>, sums: &[Quad]) {
    for (place, &[a, b, c, d]) in places.zip(sums) {
        *place = saturate((a + b) + (c + d));
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use proptest::prelude::*;

    use super::super::format::Channels;
    use super::super::test_signals::{
        AMPLITUDE, any_rate, decibels, level, pulse, rate, rms, rounded, square_wave,
        standard_pairs, time_of_pulse, tone,
    };
    use super::*;

    /// Everything that comes out when `input` goes in, cut where `cuts` (cycled) says.
    fn convert(from: Layout, to: u32, input: &[i16], cuts: &[usize]) -> Vec<i16> {
        let mut resampler = Resampler::new(from, rate(to));
        let (mut output, mut rest) = (Vec::new(), input);
        for cut in cuts.iter().cycle() {
            let (chunk, after) = rest.split_at((cut * from.channels.count()).min(rest.len()));
            resampler.push(chunk, &mut output);
            rest = after;
            if rest.is_empty() || cuts.iter().all(|&cut| cut == 0) {
                break;
            }
        }
        resampler.push(rest, &mut output);
        resampler.finish(&mut output);
        output
    }

    fn convert_mono(from: u32, to: u32, input: &[i16]) -> Vec<i16> {
        convert(Layout::mono(rate(from)), to, input, &[input.len().max(1)])
    }

    /// Loss of a tone, and how far below it everything else is, in decibels.
    fn measure(from: u32, to: u32, hz: f64) -> (f64, f64) {
        let output = convert_mono(from, to, &rounded(&tone(hz, from, from / 10)));
        let middle = &output[output.len() / 4..output.len() * 3 / 4];
        // The least-squares fit of a sine of that frequency, its phase unknown.
        let wave: Vec<(f64, f64)> = (0..middle.len())
            .map(|n| (TAU * hz * n as f64 / f64::from(to)).sin_cos())
            .collect();
        let sum = |term: &dyn Fn(f64, f64, f64) -> f64| -> f64 {
            let samples = middle.iter().zip(&wave);
            samples.map(|(&x, &(s, c))| term(f64::from(x), s, c)).sum()
        };
        let (ss, sc, cc) = (
            sum(&|_, s, _| s * s),
            sum(&|_, s, c| s * c),
            sum(&|_, _, c| c * c),
        );
        let (xs, xc) = (sum(&|x, s, _| x * s), sum(&|x, _, c| x * c));
        let determinant = ss * cc - sc * sc;
        let (a, b) = (
            (xs * cc - xc * sc) / determinant,
            (xc * ss - xs * sc) / determinant,
        );
        let rest: Vec<f64> = middle
            .iter()
            .zip(&wave)
            .map(|(&x, (s, c))| f64::from(x) - a * s - b * c)
            .collect();
        (
            -decibels(a.hypot(b) / AMPLITUDE),
            -level(rms(rest.into_iter())),
        )
    }

    fn assert_demands(from: u32, to: u32) {
        let lower = f64::from(from.min(to));
        for part in [0.0313, 0.1571, 0.2917, 0.3713, 0.4] {
            let (loss, rest) = measure(from, to, part * lower);
            assert!(
                loss.abs() < 0.2,
                "{from} to {to}: {loss:.2} dB at {part} of the lower rate"
            );
            assert!(
                rest > 80.0,
                "{from} to {to}: only {rest:.1} dB above its images at {part}"
            );
        }
        for part in [0.6, 0.6131, 0.6517, 0.7713, 0.9971, 1.4773, 2.2719] {
            let hz = part * lower;
            if hz < 0.499 * f64::from(from) {
                let output = convert_mono(from, to, &rounded(&tone(hz, from, from / 10)));
                let middle = output[output.len() / 4..output.len() * 3 / 4].iter();
                let rejection = -level(rms(middle.map(|&x| f64::from(x))));
                assert!(
                    rejection > 80.0,
                    "{from} to {to}: {rejection:.1} dB at {part}"
                );
            }
        }
    }

    #[test]
    fn every_standard_pair_passes_speech_and_rejects_aliases_and_images() {
        for (from, to) in standard_pairs() {
            assert_demands(from, to);
        }
    }

    #[test]
    fn odd_rates_are_as_clean_as_the_standard_ones() {
        // The last two have too many positions for a row each.
        for (from, to) in [
            (11_025, 48_000),
            (48_000, 11_025),
            (12_345, 44_100),
            (44_101, 8_000),
        ] {
            assert_demands(from, to);
        }
        assert_eq!(
            Filter::new(Ratio::between(rate(44_101), rate(8_000)).unwrap()).rows,
            93
        );
    }

    #[test]
    fn less_than_two_milliseconds_are_held_after_every_twenty() {
        for (from, to) in standard_pairs() {
            let mut resampler = Resampler::new(Layout::mono(rate(from)), rate(to));
            let mut output = Vec::new();
            for chunk in 1..=100 {
                resampler.push(&vec![0; from as usize / 50], &mut output);
                let held = chunk as f64 * 0.02 - output.len() as f64 / f64::from(to);
                assert!(held < 0.002, "{from} to {to}: {held} s");
                let claimed = resampler.held().as_secs_f64();
                assert!((claimed - held).abs() < 1e-6, "{claimed} is not {held}");
            }
            resampler.finish(&mut output);
            assert_eq!(
                (output.len(), resampler.held()),
                (2 * to as usize, Duration::ZERO)
            );
        }
    }

    #[test]
    fn there_is_as_much_for_each_piece_as_it_lasts() {
        for (from, to) in standard_pairs().chain([(16_000, 16_000)]) {
            let mut resampler = EvenResampler::new(rate(from), rate(to));
            let mut taken = 0;
            for chunk in 1..=100 {
                resampler.push(&vec![100; from as usize / 50]);
                // At 11,025 and 22,050 Hz 20 ms are no whole number of samples.
                let due = chunk * (from as usize / 50) * to as usize / from as usize;
                let length = due - taken;
                assert_eq!(resampler.take(length).count(), length, "{from} to {to}");
                taken = due;
            }
        }
    }

    #[test]
    fn the_same_rate_is_the_same_sound_at_once() {
        let mut resampler = Resampler::new(Layout::mono(rate(8_000)), rate(8_000));
        let mut output = Vec::new();
        resampler.push(&[1, -2, i16::MIN], &mut output);
        assert_eq!(
            (&output[..], resampler.held()),
            (&[1, -2, i16::MIN][..], Duration::ZERO)
        );
        resampler.finish(&mut output);
        assert_eq!(output.len(), 3);
    }

    #[test]
    fn sound_stays_where_it_was_in_time() {
        for (from, to) in standard_pairs().chain([(12_345, 44_100), (192_000, 8_000)]) {
            let output = convert_mono(from, to, &pulse(from));
            let seconds = time_of_pulse(&output, to);
            assert!((seconds - 0.05).abs() < 1e-5, "{from} to {to}: {seconds} s");
        }
    }

    #[test]
    fn full_scale_saturates_and_never_wraps() {
        for (from, to) in standard_pairs() {
            let lowest = convert_mono(from, to, &vec![i16::MIN; from as usize / 50]);
            let middle = lowest.len() / 4..lowest.len() * 3 / 4;
            assert!(
                lowest[middle].iter().all(|&x| x <= i16::MIN + 1),
                "{from} to {to}"
            );
            assert!(lowest.iter().all(|&x| x < 100), "{from} to {to}");
            // A full-scale square wave overshoots by a tenth: that must be cut off.
            let output = convert_mono(from, to, &square_wave(from));
            assert!(output.contains(&i16::MAX) && output.contains(&i16::MIN));
            let jump = |pair: &[i16]| pair[0].abs_diff(pair[1]);
            let high = output.windows(2).filter(|pair| jump(pair) > 60_000).count();
            assert!(high <= 8, "{from} to {to}: {high} jumps");
        }
    }

    #[test]
    fn nothing_in_is_nothing_out() {
        assert!(convert_mono(8_000, 48_000, &[]).is_empty());
        let empty = Pcm::empty(Layout::new(rate(44_100), Channels::Stereo));
        assert!(Resampler::convert(empty, rate(8_000)).is_empty());
    }

    #[test]
    fn half_a_frame_is_dropped() {
        let stereo = Layout::new(rate(8_000), Channels::Stereo);
        let mut resampler = Resampler::new(stereo, rate(16_000));
        let mut output = Vec::new();
        resampler.push(&[5, 6, 7], &mut output);
        resampler.finish(&mut output);
        assert_eq!(output.len(), 4);
    }

    #[test]
    fn filters_are_shared_and_odd_rates_do_not_pile_up() {
        let cache = FilterCache::default();
        let ratio = |from, to| Ratio::between(rate(from), rate(to)).unwrap();
        let double = cache.get(ratio(8_000, 16_000));
        assert!(Arc::ptr_eq(&double, &cache.get(ratio(24_000, 48_000))));
        for odd in 0..100 {
            let filter = cache.get(ratio(191_999 - odd, 8_000));
            assert!(filter.weights.len() * size_of::<f32>() <= 85_000);
            cache.get(ratio(8_000, 16_000));
        }
        assert_eq!(cache.lock().len(), KEPT_FILTERS);
        assert!(Arc::ptr_eq(&double, &cache.get(ratio(8_000, 16_000))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn how_the_sound_is_cut_does_not_matter(
            from in any_rate(),
            to in any_rate(),
            stereo: bool,
            input in proptest::collection::vec(any::<i16>(), 0..3000),
            cuts in proptest::collection::vec(0_usize..700, 1..8),
        ) {
            let channels = if stereo { Channels::Stereo } else { Channels::Mono };
            let layout = Layout::new(rate(from), channels);
            let input = Pcm::new(layout, input);
            let cut = convert(layout, to, input.samples(), &cuts);
            let whole = Resampler::convert(input.clone(), rate(to));
            prop_assert_eq!(&cut[..], whole.samples());
            let frames = (input.frames() as f64 * f64::from(to) / f64::from(from)).round();
            prop_assert_eq!(whole.frames(), frames as usize);
        }

        #[test]
        fn two_channels_are_two_sounds(
            from in any_rate(),
            to in any_rate(),
            frames in proptest::collection::vec(any::<[i16; 2]>(), 0..500),
        ) {
            let stereo = Layout::new(rate(from), Channels::Stereo);
            let both = Resampler::convert(Pcm::new(stereo, frames.concat()), rate(to));
            for side in 0..2 {
                let one: Vec<i16> = frames.iter().map(|frame| frame[side]).collect();
                let heard: Vec<i16> = both.samples().iter().skip(side).step_by(2).copied().collect();
                prop_assert_eq!(heard, convert_mono(from, to, &one));
            }
        }
    }
}
