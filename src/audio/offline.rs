//! Sample rate conversion of audio that nobody listens to in real time: clips, files, cached speech. Any pair of rates,
//! mono or stereo; the length is exact and the audio keeps its position in time.
//!
//! There are two resamplers because there are two tasks. This one is [rubato](https://docs.rs/rubato), a
//! well-maintained library, and the first choice. The other, [`super::resample`], is our own, for live audio: it delays
//! by less than 2 ms where this one collects [`BLOCK_FRAMES`], takes a quarter of the time, and shares its filters
//! between streams where rubato computes a table for each (`benches/RESULTS.md`, "Resamplers side by side").
//!
//! The filter is the one measured there: its passband ends at 0.40 of the lower rate (−0.1 dB), its stopband begins at
//! 0.60 (−93 dB).

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{
    Async, FixedAsync, Resampler as _, SincInterpolationParameters, SincInterpolationType,
    WindowFunction,
};

use super::format::{Layout, SampleRate};
use super::pcm::{Pcm, saturate};
use super::resample::{Ratio, frames_for};

/// The length of the filter in frames of the lower rate: the shortest that meets the requirements of the live resampler
/// with one of rubato's windows.
const SPAN: f64 = 32.0;
/// rubato rounds the length up to a multiple of this.
const SPAN_STEP: usize = 8;
/// The −6 dB point of the filter, as a fraction of half the lower rate.
const CUTOFF: f32 = 0.95;
/// If both parts of the ratio are at most this, each position between two input frames has a row of its own. The
/// largest part of a standard pair is 640 (22.05 to 32 kHz).
const EXACT_PART: u32 = 640;
/// Rows per frame of the lower rate otherwise, with cubic interpolation between them: an error below −100 dB.
const INTERPOLATED_ROWS: f64 = 64.0;
/// rubato gets this many frames at a time, so that the output does not depend on how the input is divided, nor memory
/// on chunk sizes. 10 ms at 24 kHz.
const BLOCK_FRAMES: usize = 256;

/// Converts the rate of a finite stream, which may arrive in chunks.
#[derive(Debug)]
pub struct OfflineResampler {
    from: Layout,
    to: SampleRate,
    /// Frames received since the start.
    accepted: u64,
    /// Frames returned since the start.
    delivered: u64,
    /// `None` when both rates are the same.
    engine: Option<Engine>,
}

impl OfflineResampler {
    /// Converts from layout `from` to the same channels at `to`. Computing the filter takes up to a millisecond.
    pub fn new(from: Layout, to: SampleRate) -> Self {
        Self {
            from,
            to,
            accepted: 0,
            delivered: 0,
            engine: Ratio::between(from.rate, to)
                .map(|ratio| Engine::new(ratio, from.channels.count())),
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
        match &mut self.engine {
            None => output.extend_from_slice(input),
            Some(engine) => engine.push(input, output),
        }
        self.accepted += frames as u64;
        self.delivered += ((output.len() - before) / channels) as u64;
    }

    /// Ends the input: appends the remaining audio, so that the output has [`Self::frames_for`] the whole input. The
    /// resampler is then as good as new.
    pub fn finish(&mut self, output: &mut Vec<i16>) {
        let owed = self
            .frames_for(self.accepted)
            .saturating_sub(self.delivered);
        if let Some(engine) = &mut self.engine {
            // At most a block and the length of the filter, so it fits.
            engine.finish(owed as usize, output);
        }
        self.accepted = 0;
        self.delivered = 0;
    }

    /// The number of output frames for this many input frames: the same duration, rounded to the nearest frame.
    pub fn frames_for(&self, input_frames: u64) -> u64 {
        frames_for(input_frames, self.from.rate, self.to)
    }

    /// Converts a whole piece of audio.
    pub fn convert(sound: Pcm, to: SampleRate) -> Pcm {
        if sound.rate() == to {
            return sound;
        }
        let mut resampler = Self::new(sound.layout(), to);
        let frames = usize::try_from(resampler.frames_for(sound.frames() as u64)).unwrap_or(0);
        let mut output = Vec::with_capacity(frames * sound.layout().channels.count());
        resampler.push(sound.samples(), &mut output);
        resampler.finish(&mut output);
        Pcm::new(resampler.output_layout(), output)
    }
}

/// rubato, plus what its interface leaves to the caller: whole blocks, and compensating the filter's delay.
#[derive(Debug)]
struct Engine {
    /// `None` if rubato rejected the parameters, which no two rates can cause; then the output is silence.
    rubato: Option<Async<f32>>,
    channels: usize,
    alignment: Alignment,
    /// Whether the leading silence has been pushed.
    begun: bool,
    /// Output samples still to be dropped.
    drop: usize,
    /// Interleaved samples, less than a block between two calls.
    block: Vec<f32>,
    /// rubato's last output.
    converted: Vec<f32>,
}

impl Engine {
    fn new(ratio: Ratio, channels: usize) -> Self {
        let length = ((SPAN / ratio.band()).ceil() as usize).next_multiple_of(SPAN_STEP);
        let (rows, interpolation) = if ratio.up.max(ratio.down) <= EXACT_PART {
            (ratio.up, SincInterpolationType::Nearest)
        } else {
            // A power of two: rubato multiplies positions by it in two places, which must round alike.
            let rows = (INTERPOLATED_ROWS * ratio.band()).ceil() as u32;
            (rows.next_power_of_two(), SincInterpolationType::Cubic)
        };
        let parameters = SincInterpolationParameters {
            sinc_len: length,
            f_cutoff: Some(CUTOFF),
            oversampling_factor: rows as usize,
            interpolation,
            window: WindowFunction::BlackmanHarris,
        };
        let rubato = Async::new_sinc(
            f64::from(ratio.up) / f64::from(ratio.down),
            1.0,
            &parameters,
            BLOCK_FRAMES,
            channels,
            FixedAsync::Input,
        );
        debug_assert!(rubato.is_ok(), "rubato takes every ratio of two rates");
        Self {
            rubato: rubato.ok(),
            channels,
            alignment: Alignment::new(ratio, length, rows),
            begun: false,
            drop: 0,
            block: Vec::with_capacity(BLOCK_FRAMES * channels),
            converted: Vec::new(),
        }
    }

    fn push(&mut self, input: &[i16], output: &mut Vec<i16>) {
        if !self.begun {
            self.begin(output);
        }
        self.take(input, output);
    }

    /// Pushes the leading silence that aligns an output frame with the first input frame.
    fn begin(&mut self, output: &mut Vec<i16>) {
        self.begun = true;
        self.drop = self.alignment.dropped * self.channels;
        let mut silence = self.alignment.silence * self.channels;
        while silence > 0 {
            let piece = silence.min(BLOCK_FRAMES);
            // All output for it is dropped.
            self.take(&[0; BLOCK_FRAMES][..piece], output);
            silence -= piece;
        }
    }

    fn take(&mut self, mut input: &[i16], output: &mut Vec<i16>) {
        let whole = BLOCK_FRAMES * self.channels;
        while !input.is_empty() {
            let (taken, rest) = input.split_at((whole - self.block.len()).min(input.len()));
            self.block
                .extend(taken.iter().map(|&sample| f32::from(sample)));
            input = rest;
            if self.block.len() == whole {
                self.convert(output);
            }
        }
    }

    /// Appends the output for a whole block; `None` if rubato failed, which no block can cause.
    fn convert(&mut self, output: &mut Vec<i16>) -> Option<()> {
        let rubato = self.rubato.as_mut()?;
        let frames = rubato.output_frames_next();
        self.converted.resize(frames * self.channels, 0.0);
        let source = InterleavedSlice::new(&self.block, self.channels, BLOCK_FRAMES);
        let target = InterleavedSlice::new_mut(&mut self.converted, self.channels, frames);
        let given = rubato.process_into_buffer(&source.ok()?, &mut target.ok()?, None);
        debug_assert!(given.is_ok(), "{given:?} with the buffers that it wants");
        self.block.clear();
        let (_, given) = given.ok()?;
        let given = &self.converted[..given * self.channels];
        let (dropped, heard) = given.split_at(self.drop.min(given.len()));
        self.drop -= dropped.len();
        output.extend(heard.iter().map(|&sample| saturate(sample)));
        Some(())
    }

    /// Appends the last `owed` frames, followed by silence, and restarts.
    fn finish(&mut self, owed: usize, output: &mut Vec<i16>) {
        let end = output.len() + owed * self.channels;
        while output.len() < end {
            self.block.resize(BLOCK_FRAMES * self.channels, 0.0);
            if self.convert(output).is_none() {
                break;
            }
        }
        output.resize(end, 0);
        self.block.clear();
        self.begun = false;
        if let Some(rubato) = &mut self.rubato {
            rubato.reset();
        }
    }
}

/// The silence pushed before the audio, and how much output to drop for it, so that the first remaining output frame is
/// aligned with the first input frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Alignment {
    /// Input frames.
    silence: usize,
    /// Output frames.
    dropped: usize,
}

impl Alignment {
    /// rubato's output frame `n` is `(n + 1) * down / up + 1 / rows` input frames after a point half a filter before
    /// the input. So the leading silence is chosen such that this is a whole number of frames for some `n`. With a row
    /// for each position this is exact; otherwise the closest is chosen, within a hundredth of a frame.
    fn new(ratio: Ratio, length: usize, rows: u32) -> Self {
        let (up, down, rows) = (u64::from(ratio.up), u64::from(ratio.down), u64::from(rows));
        // In units of 1 / (`up * rows`) of an input frame.
        let step = down * rows;
        let place = |silence: u64| (silence + length as u64 / 2) * up * rows - up;
        let off = |silence: &u64| {
            let beyond = place(*silence) % step;
            beyond.min(step - beyond)
        };
        let silence = (0..down).min_by_key(off).unwrap_or(0);
        Self {
            silence: silence as usize,
            dropped: ((place(silence) + step / 2) / step - 1) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use proptest::prelude::*;

    use super::super::format::Channels;
    use super::super::test_signals::{
        any_rate, level, pulse, rate, rms, rounded, square_wave, standard_pairs, time_of_pulse,
        tone,
    };
    use super::*;
    use crate::Resampler;

    /// Few to many positions, rows for all and between rows, up and down.
    const ODD: [(u32, u32); 8] = [
        (11_025, 48_000),
        (48_000, 11_025),
        (12_345, 44_100),
        (44_101, 8_000),
        (8_000, 47_999),
        (192_000, 8_000),
        (191_999, 8_000),
        (44_100, 44_101),
    ];
    fn pairs() -> impl Iterator<Item = (u32, u32)> {
        standard_pairs().chain(ODD)
    }

    fn convert_mono(from: u32, to: u32, input: &[i16]) -> Vec<i16> {
        let sound = Pcm::new(Layout::mono(rate(from)), input.to_vec());
        OfflineResampler::convert(sound, rate(to)).into_samples()
    }

    /// How far the middle of a tone is below it, in decibels, after `expected` was taken off.
    fn below(output: &[i16], expected: impl Fn(usize) -> f64) -> f64 {
        let middle = output.len() / 4..output.len() * 3 / 4;
        let rest = rms(middle.map(|n| f64::from(output[n]) - expected(n)));
        -level(rest)
    }

    #[test]
    fn a_tone_is_the_same_tone_at_the_same_time() {
        // The passband's loss, the images and the place in time in one: what is left of the tone after the very tone
        // was taken off. 0.1 dB alone are 39 dB.
        for (from, to) in pairs() {
            let lower = f64::from(from.min(to));
            for (part, least) in [
                (0.0313, 85.0),
                (0.1571, 85.0),
                (0.2917, 85.0),
                (0.3713, 65.0),
                (0.4, 38.0),
            ] {
                let hz = part * lower;
                let output = convert_mono(from, to, &rounded(&tone(hz, from, from / 10)));
                let expected = tone(hz, to, output.len() as u32);
                let rest = below(&output, |n| expected[n]);
                assert!(rest > least, "{from} to {to}: {rest:.1} dB at {part}");
            }
        }
    }

    #[test]
    fn nothing_is_heard_of_what_the_lower_rate_cannot_hold() {
        for (from, to) in pairs() {
            for part in [0.6, 0.6131, 0.6517, 0.7713, 0.9971, 1.4773, 2.2719] {
                let hz = part * f64::from(from.min(to));
                if hz < 0.499 * f64::from(from) {
                    let output = convert_mono(from, to, &rounded(&tone(hz, from, from / 10)));
                    let rejection = below(&output, |_| 0.0);
                    assert!(
                        rejection > 90.0,
                        "{from} to {to}: {rejection:.1} dB at {part}"
                    );
                }
            }
        }
    }

    #[test]
    fn sound_stays_where_it_was_in_time() {
        for (from, to) in pairs() {
            let output = convert_mono(from, to, &pulse(from));
            let seconds = time_of_pulse(&output, to);
            assert!((seconds - 0.05).abs() < 1e-6, "{from} to {to}: {seconds} s");
        }
    }

    #[test]
    fn both_resamplers_make_the_same_of_speech() {
        // What one made may be followed by what the other made: a clip under live speech, an answer from the cache.
        for (from, to) in pairs() {
            let speech: Vec<i16> = (0..from / 5)
                .map(|n| {
                    let t = f64::from(n) / f64::from(from);
                    let voice: f64 = (1..20)
                        .map(|k| (TAU * 140.0 * f64::from(k) * t).sin())
                        .sum();
                    (voice * 1_500.0 * (TAU * 5.0 * t).sin()).round() as i16
                })
                .collect();
            let live =
                Resampler::convert(Pcm::new(Layout::mono(rate(from)), speech.clone()), rate(to));
            let offline = convert_mono(from, to, &speech);
            assert_eq!(live.samples().len(), offline.len(), "{from} to {to}");
            let most = offline
                .iter()
                .zip(live.samples())
                .map(|(a, b)| a.abs_diff(*b))
                .max();
            assert!(most < Some(120), "{from} to {to}: {most:?}");
        }
    }

    #[test]
    fn a_constant_stays_constant() {
        for (from, to) in pairs() {
            let output = convert_mono(from, to, &vec![20_000; from as usize / 10]);
            let middle = output.len() / 4..output.len() * 3 / 4;
            assert!(
                output[middle].iter().all(|x| x.abs_diff(20_000) <= 2),
                "{from} to {to}"
            );
        }
    }

    #[test]
    fn silence_stays_silence_and_nothing_in_is_nothing_out() {
        for (from, to) in pairs() {
            let silence = convert_mono(from, to, &vec![0; from as usize / 10]);
            assert!(silence.iter().all(|&x| x == 0), "{from} to {to}");
            assert!(convert_mono(from, to, &[]).is_empty());
        }
        let empty = Pcm::empty(Layout::new(rate(44_100), Channels::Stereo));
        assert!(OfflineResampler::convert(empty, rate(8_000)).is_empty());
    }

    #[test]
    fn full_scale_saturates_and_never_wraps() {
        for (from, to) in pairs() {
            let output = convert_mono(from, to, &square_wave(from));
            assert!(output.contains(&i16::MAX) && output.contains(&i16::MIN));
            let jumps = output
                .windows(2)
                .filter(|pair| pair[0].abs_diff(pair[1]) > 60_000);
            assert!(jumps.count() <= 8, "{from} to {to}");
        }
    }

    #[test]
    fn the_same_rate_is_the_same_sound_at_once() {
        let mut resampler = OfflineResampler::new(Layout::mono(rate(8_000)), rate(8_000));
        let mut output = Vec::new();
        resampler.push(&[1, -2, i16::MIN], &mut output);
        assert_eq!(output, [1, -2, i16::MIN]);
        resampler.finish(&mut output);
        assert_eq!(output.len(), 3);
    }

    #[test]
    fn half_a_frame_is_dropped() {
        let stereo = Layout::new(rate(8_000), Channels::Stereo);
        let mut resampler = OfflineResampler::new(stereo, rate(16_000));
        let mut output = Vec::new();
        resampler.push(&[5, 6, 7], &mut output);
        resampler.finish(&mut output);
        assert_eq!(output.len(), 4);
    }

    #[test]
    fn what_is_held_does_not_grow_and_all_of_it_comes_in_the_end() {
        for (from, to) in pairs() {
            let mut resampler = OfflineResampler::new(Layout::mono(rate(from)), rate(to));
            let mut output = Vec::new();
            let filter = SPAN / f64::from(from.min(to)) + 8.0 / f64::from(from);
            let most = BLOCK_FRAMES as f64 / f64::from(from) + filter;
            for chunk in 1..=100 {
                resampler.push(&vec![0; from as usize / 50], &mut output);
                let frames = chunk * u64::from(from / 50);
                let held = frames as f64 / f64::from(from) - output.len() as f64 / f64::from(to);
                assert!(held < most, "{from} to {to}: {held} s");
            }
            resampler.finish(&mut output);
            let frames = resampler.frames_for(100 * u64::from(from / 50));
            assert_eq!(output.len() as u64, frames, "{from} to {to}");
        }
    }

    #[test]
    fn a_resampler_that_has_finished_is_as_new() {
        for (from, to) in pairs() {
            let input = rounded(&tone(440.0, from, from / 20));
            let mut resampler = OfflineResampler::new(Layout::mono(rate(from)), rate(to));
            let once = |resampler: &mut OfflineResampler| {
                let mut output = Vec::new();
                resampler.push(&input, &mut output);
                resampler.finish(&mut output);
                output
            };
            let first = once(&mut resampler);
            assert_eq!(first, once(&mut resampler), "{from} to {to}");
        }
    }

    #[test]
    fn an_hour_ends_where_it_should() {
        // Positions are added up in floating point; rows are found by them to the end.
        let (from, to) = (22_050, 32_000);
        let mut resampler = OfflineResampler::new(Layout::mono(rate(from)), rate(to));
        let (mut output, mut frames) = (Vec::new(), 0);
        let silence = vec![0; from as usize];
        for _ in 0..3_600 {
            resampler.push(&silence, &mut output);
            frames += output.len();
            output.clear();
        }
        let hz = 1_000.0;
        resampler.push(&rounded(&tone(hz, from, from)), &mut output);
        resampler.finish(&mut output);
        assert_eq!(frames + output.len(), 3_601 * to as usize);
        let tail = output.split_off(output.len() - to as usize);
        let expected = tone(hz, to, to);
        let rest = below(&tail, |n| expected[n]);
        assert!(rest > 75.0, "{rest:.1} dB");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn how_the_sound_is_cut_does_not_matter(
            from in any_rate(),
            to in any_rate(),
            stereo: bool,
            input in proptest::collection::vec(any::<i16>(), 0..3000),
            cuts in proptest::collection::vec(1_usize..700, 1..8),
        ) {
            let channels = if stereo { Channels::Stereo } else { Channels::Mono };
            let layout = Layout::new(rate(from), channels);
            let input = Pcm::new(layout, input);
            let mut resampler = OfflineResampler::new(layout, rate(to));
            let (mut cut, mut rest) = (Vec::new(), input.samples());
            for frames in cuts.iter().cycle() {
                let (chunk, after) = rest.split_at((frames * channels.count()).min(rest.len()));
                resampler.push(chunk, &mut cut);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            resampler.finish(&mut cut);
            let whole = OfflineResampler::convert(input.clone(), rate(to));
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
            let both = OfflineResampler::convert(Pcm::new(stereo, frames.concat()), rate(to));
            for side in 0..2 {
                let one: Vec<i16> = frames.iter().map(|frame| frame[side]).collect();
                let heard = both.samples().iter().skip(side).step_by(2);
                let alone = convert_mono(from, to, &one);
                // Of two channels rubato adds up the interpolated filters first, and rounds otherwise.
                prop_assert!(heard.zip(&alone).all(|(a, b)| a.abs_diff(*b) <= 1));
                prop_assert_eq!(both.frames(), alone.len());
            }
        }
    }
}
