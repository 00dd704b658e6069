//! The way of audio to one stream of a recogniser: in which format it goes, and whether the stream is suspected to be
//! dead. The task of the [attempt](super) uploads with it. While that waits for audio, whoever pushes some uploads it in
//! the same call, and no task is woken in between.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::replay_buffer::Chunk;
use vivavoce_audio::g711::Law;
use vivavoce_audio::{Encoding, Layout, Resampler, linear16};
use vivavoce_seams::{AudioSink, SpeechToText, SttClosed, SttRequest};

/// The share of [`SpeechToText::answers_within`] that must have been speech.
const ENOUGH_SPEECH: f64 = 0.7;
/// Speech without an answer is forgotten when no more of it came for this long.
const FORGIVEN_AFTER: Duration = Duration::from_secs(5);
/// The share of the provider's limit after which a stream is rotated at a pause.
const LATE: f64 = 0.8;

/// The way up to one stream.
#[derive(Debug)]
pub(super) struct Uplink {
    sink: AudioSink,
    /// What the chunks have.
    from: Layout,
    law: Option<Law>,
    /// From the buffer's rate to the one of the request, where they differ.
    resampler: RefCell<Option<Resampler>>,
    /// How long speech may be unanswered.
    answers_within: Option<Duration>,
    unanswered: Cell<Unanswered>,
    /// From when on the stream is rotated at a pause.
    late_from: Option<Instant>,
}

/// Speech that the stream was sent and has not said a word about.
#[derive(Debug, Clone, Copy, Default)]
struct Unanswered {
    /// When the first of it was sent.
    since: Option<Instant>,
    /// When the last of it was sent.
    last: Option<Instant>,
    speech: Duration,
}

impl Uplink {
    /// Of a stream that has just opened, for audio of a layout.
    pub(super) fn new(
        sink: AudioSink,
        from: Layout,
        provider: &dyn SpeechToText,
        request: &SttRequest,
    ) -> Self {
        let to = request.format.layout;
        let limit = provider.accepts().stream_limit;
        Self {
            sink,
            from,
            law: match request.format.encoding {
                Encoding::Mulaw => Some(Law::Mu),
                Encoding::Alaw => Some(Law::A),
                _ => None,
            },
            resampler: RefCell::new((from != to).then(|| Resampler::new(from, to.rate))),
            answers_within: provider.answers_within(),
            unanswered: Cell::default(),
            late_from: limit.map(|limit| Instant::now() + limit.mul_f64(LATE)),
        }
    }

    /// Whether the stream is to be rotated at the next pause.
    pub(super) fn is_late(&self) -> bool {
        self.late_from.is_some_and(|late| late <= Instant::now())
    }

    /// Sends a chunk; waits while the recogniser is behind.
    pub(super) async fn send(&self, chunk: &Chunk) -> Result<(), SttClosed> {
        self.sink.send(self.converted(&chunk.sound)).await?;
        self.count(chunk);
        Ok(())
    }

    /// Requests a final.
    pub(super) async fn finalize(&self) -> Result<(), SttClosed> {
        self.sink.finalize().await
    }

    /// Sends the chunk that `next` returns, where the recogniser takes one at once and the task has nothing to decide
    /// afterwards. Returns that chunk; `None` means that nothing was done.
    pub(super) fn try_send(&self, next: impl FnOnce() -> Option<Chunk>) -> Option<Chunk> {
        if self.is_late() || self.is_suspect() {
            return None;
        }
        let permit = self.sink.try_reserve()?;
        let chunk = next()?;
        permit.send(self.converted(&chunk.sound));
        self.count(&chunk);
        Some(chunk)
    }

    /// The recogniser has said something.
    pub(super) fn answered(&self) {
        self.unanswered.take();
    }

    /// Whether speech has been unanswered for too long: a stream that answers pings and not the speaker is dead, too.
    pub(super) fn is_suspect(&self) -> bool {
        let Some(limit) = self.answers_within else {
            return false;
        };
        let unanswered = self.unanswered.get();
        let is_late = unanswered.since.is_some_and(|at| at.elapsed() >= limit);
        is_late && unanswered.speech >= limit.mul_f64(ENOUGH_SPEECH)
    }

    /// Counts what was sent.
    fn count(&self, chunk: &Chunk) {
        if self.answers_within.is_none() || chunk.is_pause() {
            return;
        }
        let now = Instant::now();
        let mut unanswered = self.unanswered.get();
        // Coughs of ten minutes are no speech.
        let is_over = |last: Instant| now - last >= FORGIVEN_AFTER;
        if unanswered.last.is_some_and(is_over) {
            unanswered = Unanswered::default();
        }
        unanswered.since.get_or_insert(now);
        unanswered.last = Some(now);
        unanswered.speech += self.from.rate.duration_of(chunk.sound.len() / 2);
        self.unanswered.set(unanswered);
    }

    /// Converts the buffer's linear16 to the format of the request.
    fn converted(&self, sound: &Bytes) -> Bytes {
        let mut resampler = self.resampler.borrow_mut();
        if self.law.is_none() && resampler.is_none() {
            return sound.clone();
        }
        let mut samples = linear16::samples(sound);
        if let Some(resampler) = resampler.as_mut() {
            let mut resampled = Vec::new();
            resampler.push(&samples, &mut resampled);
            samples = resampled;
        }
        match self.law {
            Some(law) => {
                let mut codes = Vec::with_capacity(samples.len());
                law.compress(&samples, &mut codes);
                codes.into()
            }
            None => linear16::encode(&samples),
        }
    }
}
