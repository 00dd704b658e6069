//! Removes or inserts a pitch period, so that audio is a few milliseconds shorter or longer without anybody noticing:
//! the cut is made where both sides are most similar, with a cross-fade.

use std::ops::RangeInclusive;

/// What is removed or inserted of a piece of 20 ms, as parts of it: 2.5 to 15 ms, a period of 400 to 66 Hz.
const SHORTEST: usize = 8;
const LONGEST: (usize, usize) = (3, 4);
/// The maximum cross-fade, as a part of it.
const OVERLAP: usize = 2;
/// Samples of a piece that the coarse search goes by, at least: as many as there are at 12 kHz.
const COARSE: usize = 240;

/// The length of the cross-fade for this lag: both ends must lie within the piece.
fn overlap(lag: usize, piece: usize, longest: usize) -> usize {
    piece.saturating_sub(lag).min(longest)
}

/// A possible cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cut {
    /// Samples to remove or insert.
    pub(super) lag: usize,
    /// The similarity of both sides: 1 is identical, 0 is uncorrelated.
    pub(super) alike: f32,
}

/// The best cut of at most `longest` samples in the last 20 ms of `sound`, which are `piece` samples, if there is one.
pub(super) fn find(sound: &[i16], piece: usize, longest: usize) -> Option<Cut> {
    let start = sound.len().checked_sub(piece)?;
    let (shortest, longest) = (piece / SHORTEST, longest.min(piece * LONGEST.0 / LONGEST.1));
    let overlap = piece / OVERLAP;
    let piece: Vec<f32> = sound.get(start..)?.iter().copied().map(f32::from).collect();
    let step = piece.len() / COARSE;
    if step <= 1 {
        return best(&piece, overlap, shortest..=longest);
    }
    let means: Vec<f32> = piece.chunks_exact(step).map(|of| of.iter().sum()).collect();
    let near = best(&means, overlap / step, shortest / step..=longest / step)?.lag * step;
    let (from, to) = (near.saturating_sub(step), near + step);
    best(&piece, overlap, from.max(shortest)..=to.min(longest))
}

fn best(piece: &[f32], longest_overlap: usize, lags: RangeInclusive<usize>) -> Option<Cut> {
    lags.map(|lag| {
        let overlap = overlap(lag, piece.len(), longest_overlap);
        let (left, right) = (&piece[..overlap], &piece[lag..lag + overlap]);
        let (mut product, mut left_energy, mut right_energy) = (0.0_f32, 1.0_f32, 1.0_f32);
        for (left, right) in left.iter().zip(right) {
            product += left * right;
            left_energy += left * left;
            right_energy += right * right;
        }
        let alike = product / (left_energy * right_energy).sqrt();
        Cut { lag, alike }
    })
    .max_by(|left, right| left.alike.total_cmp(&right.alike))
}

/// Cross-fades: `share` of the second, the rest of the first.
fn between(first: i16, second: i16, share: f32) -> i16 {
    // The result lies between two samples, so it is a valid sample.
    (f32::from(first) + (f32::from(second) - f32::from(first)) * share).round() as i16
}

/// Removes `lag` samples from the last 20 ms of `sound`, which are `piece` samples. Does nothing for a lag not returned by
/// [`find`].
pub(super) fn shorten(sound: &mut Vec<i16>, piece: usize, lag: usize) {
    let Some(start) = sound.len().checked_sub(piece) else {
        return;
    };
    let overlap = overlap(lag, piece, piece / OVERLAP);
    for n in 0..overlap {
        let share = (n as f32 + 0.5) / overlap as f32;
        sound[start + n] = between(sound[start + n], sound[start + n + lag], share);
    }
    if lag + overlap <= piece {
        sound.drain(start + overlap..start + overlap + lag);
    }
}

/// Inserts `lag` samples into the last 20 ms of `sound`, which are `piece` samples. Does nothing for a lag not returned by
/// [`find`].
pub(super) fn lengthen(sound: &mut Vec<i16>, piece: usize, lag: usize) {
    let Some(start) = sound.len().checked_sub(piece) else {
        return;
    };
    let overlap = overlap(lag, piece, piece / OVERLAP);
    if lag + overlap > piece {
        return;
    }
    let last = sound.split_off(start);
    sound.extend_from_slice(&last[..lag]);
    sound.extend((0..overlap).map(|n| {
        let share = (n as f32 + 0.5) / overlap as f32;
        between(last[lag + n], last[n], share)
    }));
    sound.extend_from_slice(&last[overlap..]);
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;

    /// Of each bandwidth.
    const PIECES: [usize; 3] = [160, 320, 960];

    fn tone(hz: f64, piece: usize) -> Vec<i16> {
        let rate = 50.0 * piece as f64;
        (0..2 * piece)
            .map(|n| (12_000.0 * (TAU * hz * n as f64 / rate).sin()) as i16)
            .collect()
    }

    #[test]
    fn a_tone_goes_on_as_it_was_with_periods_less_or_more() {
        let tones = [75.0, 110.0, 200.0, 380.0, 1_000.0];
        for (piece, hz) in PIECES
            .into_iter()
            .flat_map(|piece| tones.map(|hz| (piece, hz)))
        {
            let sound = tone(hz, piece);
            let cut = find(&sound, piece, piece).unwrap();
            assert!(cut.alike > 0.99, "{hz} Hz: {cut:?}");
            let steepest = sound.windows(2).map(|pair| pair[0].abs_diff(pair[1])).max();
            for (change, length) in [
                (
                    shorten as fn(&mut Vec<i16>, usize, usize),
                    sound.len() - cut.lag,
                ),
                (lengthen, sound.len() + cut.lag),
            ] {
                let mut changed = sound.clone();
                change(&mut changed, piece, cut.lag);
                assert_eq!(changed.len(), length);
                assert_eq!(changed[..piece], sound[..piece]);
                // Of a period that is no whole number of samples it is not quite the same.
                let ends = [&changed, &sound].map(|sound| *sound.last().unwrap());
                assert!(ends[0].abs_diff(ends[1]) < 16, "{hz} Hz: {ends:?}");
                let steps = changed.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
                let click = steps.max() > steepest.map(|step| step + step / 8 + 2);
                assert!(!click, "{hz} Hz, {} to {length}", sound.len());
            }
        }
    }

    #[test]
    fn any_sound_can_be_cut_or_is_left_alone() {
        let lengths = |piece| [0, 10, piece - 1, piece, piece + 1].map(|length| (piece, length));
        for (piece, length) in PIECES.into_iter().flat_map(lengths) {
            for lag in [0, 1, 119, 120, 720, 959, 960, 961, usize::MAX / 2] {
                let loud = vec![i16::MIN; length];
                let (mut shorter, mut longer) = (loud.clone(), loud.clone());
                shorten(&mut shorter, piece, lag);
                lengthen(&mut longer, piece, lag);
                let changed = length >= piece && lag <= piece;
                let by = if changed { lag } else { 0 };
                assert_eq!(shorter.len(), length - by);
                assert_eq!(longer.len(), length + by);
                assert!(shorter.iter().chain(&longer).all(|&s| s == i16::MIN));
            }
            assert_eq!(
                find(&vec![0; length], piece, piece).is_some(),
                length >= piece
            );
        }
    }
}
