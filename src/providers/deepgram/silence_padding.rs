//! Silence that is sent to keep a stream alive, and the mapping of Deepgram's timestamps, which count it, to the caller's
//! audio, which does not.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::bytes_per_second;
use vivavoce_audio::format::{AudioFormat, Encoding};

/// Places that are remembered before the oldest are taken for settled.
const REMEMBERED: usize = 64;

/// The sound of one stream and the silence within it.
#[derive(Debug)]
pub(super) struct SilencePadding {
    bytes_per_second: usize,
    silent_byte: u8,
    bytes_per_sample: usize,
    /// Bytes on the stream so far, silence included.
    sent: usize,
    /// Silence before everything that may still be asked for.
    settled: usize,
    /// Silence after that, in its order.
    gaps: VecDeque<Gap>,
}

/// Bytes of silence, and where they begin on the stream.
#[derive(Debug)]
struct Gap {
    at: usize,
    bytes: usize,
}

impl SilencePadding {
    /// For a stream in this format.
    pub(super) fn new(format: AudioFormat) -> Self {
        let (silent_byte, bytes_per_sample) = match format.encoding {
            Encoding::Mulaw => (0xFF, 1),
            Encoding::Alaw => (0xD5, 1),
            _ => (0, 2),
        };
        Self {
            bytes_per_second: bytes_per_second(format),
            silent_byte,
            bytes_per_sample,
            sent: 0,
            settled: 0,
            gaps: VecDeque::new(),
        }
    }

    /// The caller's sound was sent.
    pub(super) fn sound(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    /// Whether nothing was sent so far.
    pub(super) const fn is_untouched(&self) -> bool {
        self.sent == 0
    }

    /// Silence to be sent now.
    pub(super) fn silence(&mut self, time: Duration) -> Bytes {
        let samples =
            self.bytes_per_second as f64 * time.as_secs_f64() / self.bytes_per_sample as f64;
        let bytes = samples as usize * self.bytes_per_sample;
        match self.gaps.back_mut() {
            Some(last) if last.at + last.bytes == self.sent => last.bytes += bytes,
            _ => self.gaps.push_back(Gap {
                at: self.sent,
                bytes,
            }),
        }
        self.sent += bytes;
        if self.gaps.len() > REMEMBERED
            && let Some(oldest) = self.gaps.pop_front()
        {
            self.settled += oldest.bytes;
        }
        vec![self.silent_byte; bytes].into()
    }

    /// Where a time of the vendor's is in the caller's sound, in seconds.
    pub(super) fn place(&self, seconds: f64) -> f64 {
        if self.settled == 0 && self.gaps.is_empty() {
            return seconds;
        }
        let seconds_of = |bytes: usize| bytes as f64 / self.bytes_per_second as f64;
        let before = |gap: &Gap| (seconds - seconds_of(gap.at)).clamp(0.0, seconds_of(gap.bytes));
        let silence = seconds_of(self.settled) + self.gaps.iter().map(before).sum::<f64>();
        (seconds - silence).max(0.0)
    }

    /// Nothing before this time of the vendor's will be asked for any more.
    pub(super) fn settle(&mut self, seconds: f64) {
        let until = (seconds * self.bytes_per_second as f64) as usize;
        while let Some(gap) = self.gaps.pop_front_if(|gap| gap.at + gap.bytes <= until) {
            self.settled += gap.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_audio::format::SampleRate;

    const SECOND: Duration = Duration::from_secs(1);

    fn padding(encoding: Encoding) -> SilencePadding {
        SilencePadding::new(AudioFormat::mono(encoding, SampleRate::HZ_8000))
    }

    #[test]
    fn silence_is_silent_in_each_encoding() {
        for (encoding, byte, bytes) in [
            (Encoding::Linear16, 0, 16_000),
            (Encoding::Mulaw, 0xFF, 8_000),
            (Encoding::Alaw, 0xD5, 8_000),
        ] {
            assert_eq!(padding(encoding).silence(SECOND), vec![byte; bytes]);
        }
    }

    /// Places in milliseconds of the caller's sound.
    fn places<const N: usize>(padding: &SilencePadding, at: [f64; N]) -> [u64; N] {
        at.map(|seconds| (padding.place(seconds) * 1000.0).round() as u64)
    }

    #[test]
    fn times_are_those_of_the_callers_sound() {
        let mut padding = padding(Encoding::Linear16);
        assert_eq!(places(&padding, [3.0]), [3_000]);
        padding.silence(SECOND);
        padding.silence(SECOND);
        padding.sound(16_000);
        padding.silence(SECOND);
        padding.sound(16_000);
        // 0–2 silence, 2–3 sound, 3–4 silence, 4–5 sound.
        let at = [0.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5];
        let meant = [0, 0, 500, 1_000, 1_000, 1_000, 1_500];
        assert_eq!(places(&padding, at), meant);
        padding.settle(1.0);
        assert_eq!(places(&padding, at), meant);
        padding.settle(4.5);
        assert_eq!(places(&padding, [4.5]), [1_500]);
        assert!(padding.gaps.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut padding = padding(Encoding::Alaw);
        for _ in 0..1_000 {
            padding.silence(SECOND);
            padding.sound(8_000);
        }
        assert_eq!(padding.gaps.len(), REMEMBERED);
        assert_eq!(places(&padding, [2_000.0]), [1_000_000]);
    }
}
