//! Removes or inserts a pitch period, so that audio is a few milliseconds shorter or longer without anybody noticing:
//! the cut is made where both sides are most similar, with a cross-fade.

use std::ops::RangeInclusive;

/// The audio it is applied to: 20 ms at 48 kHz.
pub(super) const PIECE: usize = 960;
/// The duration removed or inserted: 2.5 to 15 ms, a period of 400 to 66 Hz.
const LAGS: RangeInclusive<usize> = 120..=720;
/// The decimation of the coarse search.
const STEP: usize = 4;
const COARSE: usize = PIECE / STEP;
/// The maximum cross-fade.
const OVERLAP: usize = 480;

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

/// The best cut of at most `longest` samples in the last [`PIECE`] of `sound`, if there is one.
pub(super) fn find(sound: &[i16], longest: usize) -> Option<Cut> {
    let piece = sound.last_chunk::<PIECE>()?;
    let piece = piece.map(f32::from);
    let mut coarse = [0.0_f32; COARSE];
    for (mean, of) in coarse.iter_mut().zip(piece.chunks_exact(STEP)) {
        *mean = of.iter().sum();
    }
    let (shortest, longest) = (*LAGS.start(), longest.min(*LAGS.end()));
    let near = best(&coarse, OVERLAP / STEP, shortest / STEP..=longest / STEP)?.lag * STEP;
    let (from, to) = (near.saturating_sub(STEP), near + STEP);
    best(&piece, OVERLAP, from.max(shortest)..=to.min(longest))
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

/// Removes `lag` samples from the last [`PIECE`] of `sound`. Does nothing for a lag not returned by [`find`].
pub(super) fn shorten(sound: &mut Vec<i16>, lag: usize) {
    let Some(start) = sound.len().checked_sub(PIECE) else {
        return;
    };
    let overlap = overlap(lag, PIECE, OVERLAP);
    for n in 0..overlap {
        let share = (n as f32 + 0.5) / overlap as f32;
        sound[start + n] = between(sound[start + n], sound[start + n + lag], share);
    }
    if lag + overlap <= PIECE {
        sound.drain(start + overlap..start + overlap + lag);
    }
}

/// Inserts `lag` samples into the last [`PIECE`] of `sound`. Does nothing for a lag not returned by [`find`].
pub(super) fn lengthen(sound: &mut Vec<i16>, lag: usize) {
    let Some(piece) = sound.last_chunk::<PIECE>().copied() else {
        return;
    };
    let overlap = overlap(lag, PIECE, OVERLAP);
    if lag + overlap > PIECE {
        return;
    }
    sound.truncate(sound.len() - PIECE + lag);
    sound.extend((0..overlap).map(|n| {
        let share = (n as f32 + 0.5) / overlap as f32;
        between(piece[lag + n], piece[n], share)
    }));
    sound.extend_from_slice(&piece[overlap..]);
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;

    fn tone(hz: f64) -> Vec<i16> {
        (0..2 * PIECE)
            .map(|n| (12_000.0 * (TAU * hz * n as f64 / 48_000.0).sin()) as i16)
            .collect()
    }

    #[test]
    fn a_tone_goes_on_as_it_was_with_periods_less_or_more() {
        for hz in [75.0, 110.0, 200.0, 380.0, 1_000.0] {
            let sound = tone(hz);
            let cut = find(&sound, PIECE).unwrap();
            assert!(cut.alike > 0.99, "{hz} Hz: {cut:?}");
            let steepest = sound.windows(2).map(|pair| pair[0].abs_diff(pair[1])).max();
            for (change, length) in [
                (shorten as fn(&mut Vec<i16>, usize), sound.len() - cut.lag),
                (lengthen, sound.len() + cut.lag),
            ] {
                let mut changed = sound.clone();
                change(&mut changed, cut.lag);
                assert_eq!(changed.len(), length);
                assert_eq!(changed[..PIECE], sound[..PIECE]);
                assert_eq!(changed.last(), sound.last());
                let steps = changed.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
                let click = steps.max() > steepest.map(|step| step + step / 8 + 2);
                assert!(!click, "{hz} Hz, {} to {length}", sound.len());
            }
        }
    }

    #[test]
    fn any_sound_can_be_cut_or_is_left_alone() {
        for length in [0, 10, PIECE - 1, PIECE, PIECE + 1] {
            for lag in [0, 1, 119, 120, 720, 959, 960, 961, usize::MAX / 2] {
                let loud = vec![i16::MIN; length];
                let (mut shorter, mut longer) = (loud.clone(), loud.clone());
                shorten(&mut shorter, lag);
                lengthen(&mut longer, lag);
                let changed = length >= PIECE && lag <= PIECE;
                let by = if changed { lag } else { 0 };
                assert_eq!(shorter.len(), length - by);
                assert_eq!(longer.len(), length + by);
                assert!(shorter.iter().chain(&longer).all(|&s| s == i16::MIN));
            }
            assert_eq!(find(&vec![0; length], PIECE).is_some(), length >= PIECE);
        }
    }
}
