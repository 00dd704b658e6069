//! The end of speech that is cut in a room: it fades within a frame, and some frames of silence follow. A receiver that
//! simply gets nothing more takes that for loss and goes on with the last sound that it heard, a vowel for 150 to 250 ms.

use std::time::Duration;

use tokio::time::Instant;

use super::playback::CHUNK;

/// Frames of silence after the fade: until receivers continue silence.
const SILENT_FRAMES: usize = 5;
/// Speech whose last frame left longer ago than this has ended by itself.
const GAP: Duration = Duration::from_millis(60);

/// What was sent last.
#[derive(Debug)]
pub(super) struct LastFrame {
    pub(super) samples: Vec<i16>,
    pub(super) left: Instant,
}

impl LastFrame {
    /// The frame with which it fades, and the silence that follows; `None` where it was not cut in the middle.
    pub(super) fn release(self, now: Instant) -> Option<(Vec<i16>, Silence)> {
        if now.saturating_duration_since(self.left) > GAP {
            return None;
        }
        let count = self.samples.len();
        // Backwards it continues where the frame ended, without a step.
        let backwards = self.samples.iter().rev().enumerate();
        let faded = backwards.map(|(nth, sample)| {
            let gain = 1.0 - (nth + 1) as f32 / count as f32;
            (f32::from(*sample) * gain).round() as i16
        });
        let silence = Silence {
            due: self.left + 2 * CHUNK,
            frames: SILENT_FRAMES,
        };
        Some((faded.collect(), silence))
    }
}

/// Frames of silence that are still to be sent.
#[derive(Debug)]
pub(super) struct Silence {
    due: Instant,
    frames: usize,
}

impl Silence {
    /// When the next frame is due; `None` when all were sent.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.frames > 0).then_some(self.due)
    }

    /// Whether a frame is to be sent now.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            self.frames -= 1;
            self.due += CHUNK;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fades_without_a_step_to_silence_and_only_where_speech_was_cut() {
        let now = Instant::now();
        let last = || LastFrame {
            samples: (0..960).map(|n| 20 * n).collect(),
            left: now,
        };
        let (faded, mut silence) = last().release(now + GAP).unwrap();
        assert!(faded.windows(2).all(|pair| (pair[0] - pair[1]).abs() < 60));
        assert!((19_180 - faded[0]).abs() < 60 && faded[959] == 0);
        assert!(last().release(now + GAP + CHUNK).is_none());
        let mut at = now;
        let mut sent = 0;
        while let Some(due) = silence.due() {
            assert!(!silence.take(due - Duration::from_millis(1)));
            assert!(silence.take(due));
            assert!(due >= at + CHUNK);
            (at, sent) = (due, sent + 1);
        }
        assert_eq!(sent, SILENT_FRAMES);
    }
}
