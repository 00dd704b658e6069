//! Maps the times of a recogniser's stream to the session's audio. A stream counts the audio that it was sent, which
//! differs from the session's by what was replayed, shortened or dropped.

use std::collections::VecDeque;

use vivavoce_audio::SampleRate;

/// The most stretches that are kept. A replay has at most 30 (silence is trimmed only where more than a second of it
/// lies between speech); beyond that audio is dropped faster than it is transcribed.
const LONGEST: usize = 64;

/// The audio that one stream was sent, as stretches without a gap. Positions are samples.
#[derive(Debug)]
pub(super) struct StreamClock {
    rate: f64,
    stretches: VecDeque<Stretch>,
    /// Samples that the stream was sent.
    sent: u64,
}

#[derive(Debug)]
struct Stretch {
    /// Where it begins in the stream.
    stream: u64,
    /// Where it begins in the session.
    session: u64,
}

impl StreamClock {
    pub(super) fn new(rate: SampleRate) -> Self {
        Self {
            rate: f64::from(rate.hz()),
            stretches: VecDeque::new(),
            sent: 0,
        }
    }

    /// The stream was sent this many samples from this place in the session.
    pub(super) fn append(&mut self, session: u64, samples: u64) {
        let stream = self.sent;
        self.sent += samples;
        let goes_on = self
            .stretches
            .back()
            .is_some_and(|last| last.session + (stream - last.stream) == session);
        if !goes_on {
            if self.stretches.len() == LONGEST {
                self.stretches.pop_front();
            }
            self.stretches.push_back(Stretch { stream, session });
        }
    }

    /// The position in the session, in seconds from the buffer's first sample, of the start of a word.
    pub(super) fn begin(&self, stream_seconds: f64) -> f64 {
        self.place(stream_seconds, |stretch| stretch <= stream_seconds)
    }

    /// The same for the end of a word: a word that ends with a stretch has not reached the next.
    pub(super) fn end(&self, stream_seconds: f64) -> f64 {
        self.place(stream_seconds, |stretch| stretch < stream_seconds)
    }

    fn place(&self, seconds: f64, has_begun: impl Fn(f64) -> bool) -> f64 {
        let begun = |stretch: &Stretch| has_begun(stretch.stream as f64 / self.rate);
        let after = self.stretches.partition_point(begun);
        let stretch = self.stretches.get(after.saturating_sub(1));
        let shift = stretch.map_or(0, |at| at.session as i64 - at.stream as i64);
        seconds + shift as f64 / self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_places_whatever_was_left_out() {
        let mut clock = StreamClock::new(SampleRate::HZ_8000);
        // Seconds 1–3 and 5–6 of the session, which the stream heard as its seconds 0–2 and 2–3.
        clock.append(8_000, 8_000);
        clock.append(16_000, 8_000);
        clock.append(40_000, 8_000);
        let places = [0.0, 1.5, 2.0, 2.5].map(|at| (clock.begin(at), clock.end(at)));
        assert_eq!(places, [(1.0, 1.0), (2.5, 2.5), (5.0, 3.0), (5.5, 5.5)]);
        assert_eq!(clock.stretches.len(), 2);
    }

    #[test]
    fn a_stream_full_of_gaps_costs_no_more_than_its_bound() {
        let mut clock = StreamClock::new(SampleRate::HZ_8000);
        for gap in 0..10_000 {
            clock.append(gap * 320, 160);
        }
        assert_eq!(clock.stretches.len(), LONGEST);
        let last = clock.begin(9_999.0 * 0.02);
        assert!((last - 9_999.0 * 0.04).abs() < 1e-6, "{last}");
    }
}
