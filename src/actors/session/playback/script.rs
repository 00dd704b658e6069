//! The text of one utterance, and how much of it synthesis has been given. Where sentences end is decided in
//! [`vivavoce_core::sentences`]; which words were played, in [`super::word_timeline`].

use std::sync::Arc;

use vivavoce_core::sentences;
use vivavoce_core::ssml::Ssml;

/// Text on its way to synthesis.
#[derive(Debug, Default)]
pub(super) struct Script {
    text: String,
    /// Bytes that may be synthesised: whole sentences, or everything once the text is closed.
    complete: usize,
    /// Bytes that synthesis has been given.
    given: usize,
    closed: bool,
    end_given: bool,
    /// The document of which it is the text, until synthesis has been given it.
    document: Option<Arc<Ssml>>,
}

impl Script {
    /// Adds text. Sentences that are complete with it may be synthesised.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.complete += sentences::complete_len(&self.text[self.complete..]);
    }

    /// The text ends with `text`: all of it may be synthesised.
    pub(super) fn close(&mut self, text: &str) {
        self.text.push_str(text);
        self.complete = self.text.len();
        self.closed = true;
    }

    /// All of it is the text of this document.
    pub(super) fn mark_up(&mut self, document: Arc<Ssml>) {
        self.document = Some(document);
    }

    pub(super) fn take_document(&mut self) -> Option<Arc<Ssml>> {
        self.document.take()
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    pub(super) const fn len(&self) -> usize {
        self.text.len()
    }

    /// Bytes that wait for synthesis.
    pub(super) fn waiting(&self) -> usize {
        let text = self.text.len() - self.given;
        let document = self.document.as_ref();
        document.map_or(text, |document| document.bytes().max(text))
    }

    /// Whether synthesis was told that it has everything.
    pub(super) const fn is_given(&self) -> bool {
        self.end_given
    }

    /// The text that synthesis may be given now, and whether the utterance ends with it.
    pub(super) fn take(&mut self) -> Option<(String, bool)> {
        let ready = &self.text[self.given..self.complete];
        let ends = self.closed && !self.end_given;
        if !ends && ready.trim().is_empty() {
            return None;
        }
        let ready = ready.to_owned();
        self.given = self.complete;
        self.end_given = ends;
        Some((ready, ends))
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_written_as_it_is_said_is_given_by_sentences() {
        let mut script = Script::default();
        for token in ["\n", " Hel", "lo wor", "ld."] {
            script.push(token);
            assert_eq!(script.take(), None);
        }
        script.push(" How are");
        assert_eq!(script.take(), Some(("\n Hello world. ".to_owned(), false)));
        assert_eq!(script.waiting(), "How are".len());
        script.close(" you");
        assert_eq!(script.take(), Some(("How are you".to_owned(), true)));
        assert!(script.is_given());
        assert_eq!(script.take(), None);
    }
}
