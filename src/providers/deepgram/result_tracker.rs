//! Decides for Nova and Flux which results are reported. Empty ones are reported only where they replace a partial or answer
//! a finalisation, and the end of speech is reported once per utterance.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::silence_padding::SilencePadding;
use crate::transport::stt_driver::SttIo;
use vivavoce_seams::{SttEvent, Transcript, Word};

/// A finalisation that has nothing to make final may go unanswered.
const ANSWER: Duration = Duration::from_secs(1);

/// A word as both models write it. Flux may leave the times out.
#[derive(Debug, Deserialize)]
pub(super) struct VendorWord {
    word: String,
    punctuated_word: Option<String>,
    start: Option<f64>,
    end: Option<f64>,
    confidence: Option<f32>,
    speaker: Option<u32>,
}

/// The words at their places in the caller's sound; none where the vendor does not say where they are.
pub(super) fn words(words: Vec<VendorWord>, padding: &SilencePadding) -> Vec<Word> {
    let placed = |word: VendorWord| {
        Some(Word {
            start: padding.place(word.start?),
            end: padding.place(word.end?),
            word: word.punctuated_word.unwrap_or(word.word),
            confidence: word.confidence,
            speaker: word.speaker.map(|speaker| speaker.to_string()),
        })
    };
    let words: Option<Vec<_>> = words.into_iter().map(placed).collect();
    words.unwrap_or_default()
}

/// What was told so far.
#[derive(Debug, Default)]
pub(super) struct ResultTracker {
    /// A partial was told whose final has not been.
    owes_final: bool,
    /// Something was told since the last end of speech.
    spoken: bool,
    /// When a finalisation is taken for answered.
    finalizing: Option<Instant>,
}

impl ResultTracker {
    /// A finalisation was asked for.
    pub(super) fn finalizing(&mut self, now: Instant) {
        self.finalizing = Some(now + ANSWER);
    }

    /// When [`ResultTracker::tick`] is due.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.finalizing
    }

    /// A finalisation stays unanswered: there was nothing to make final, unless a final is still on its way.
    pub(super) fn tick(&mut self, io: &mut SttIo<'_>) {
        self.finalizing = None;
        if !self.owes_final {
            io.events.push(SttEvent::Final(Transcript::default()));
        }
    }

    /// The segment so far.
    pub(super) fn partial(&mut self, heard: Transcript, io: &mut SttIo<'_>) {
        if !heard.text.is_empty() {
            self.owes_final = true;
            self.spoken = true;
            io.events.push(SttEvent::Partial(heard));
        }
    }

    /// The segment as it stays; `answer` to a finalisation.
    pub(super) fn last(&mut self, heard: Transcript, answer: bool, io: &mut SttIo<'_>) {
        let answered = answer && self.finalizing.take().is_some();
        let owed = std::mem::take(&mut self.owes_final);
        self.spoken |= !heard.text.is_empty();
        if !heard.text.is_empty() || owed || answered {
            io.events.push(SttEvent::Final(heard));
        }
    }

    /// The speaker has finished; said once, however often the vendor does.
    pub(super) fn end_of_speech(&mut self, io: &mut SttIo<'_>) {
        if std::mem::take(&mut self.spoken) {
            io.events.push(SttEvent::EndOfSpeech);
        }
    }
}
