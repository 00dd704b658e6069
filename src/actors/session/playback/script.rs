//! The text of one utterance: how much of it synthesis has, and which part of it a listener has heard by a given time.
//! Where sentences end is decided in [`crate::sentences`].

use std::time::Duration;

use unicode_segmentation::UnicodeSegmentation;

use crate::sentences;

/// Speech of common languages in Latin script at normal speed; used only where the whole duration is not known yet.
const CHARS_PER_SECOND: f64 = 15.0;

/// What is to be said, on its way to synthesis.
#[derive(Debug, Default)]
pub(super) struct Script {
    text: String,
    /// Bytes that synthesis may have: whole sentences, or everything once the text is closed.
    complete: usize,
    /// Bytes that synthesis has.
    given: usize,
    closed: bool,
    end_given: bool,
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
    pub(super) const fn waiting(&self) -> usize {
        self.text.len() - self.given
    }

    /// Whether synthesis was told that it has everything.
    pub(super) const fn is_given(&self) -> bool {
        self.end_given
    }

    /// What synthesis may have now that it has not, and whether the text ends with it.
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

    /// The words that were heard when `played` of the sound was played: as large a part of the text as of the sound,
    /// only whole words. `sound` is what synthesis has made of the text so far; until it has `finished`, the text that
    /// it has is taken to last at least as long as it takes to say it at normal speed.
    pub(super) fn heard(&self, played: Duration, sound: Duration, finished: bool) -> String {
        let text = &self.text[..self.given];
        let chars = text.chars().count();
        let mut seconds = sound.as_secs_f64();
        if !finished {
            seconds = seconds.max(chars as f64 / CHARS_PER_SECOND);
        }
        let played = played.as_secs_f64();
        let share = if played >= seconds {
            f64::from(u8::from(played > 0.0))
        } else {
            played / seconds
        };
        first_words(text, (share * chars as f64) as usize)
            .trim()
            .to_owned()
    }
}

/// The words of `text` that end within its first `limit` characters.
fn first_words(text: &str, limit: usize) -> &str {
    let mut chars = 0;
    let end = text
        .split_word_bounds()
        .take_while(|word| {
            chars += word.chars().count();
            chars <= limit
        })
        .map(str::len)
        .sum();
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn given(text: &str) -> Script {
        let mut script = Script::default();
        script.close(text);
        assert_eq!(script.take(), Some((text.to_owned(), true)));
        script
    }

    #[test]
    fn whole_words_are_heard_in_proportion_to_the_sound() {
        let script = given("One two, three four. ");
        let heard = |tenths| script.heard(SECOND * tenths, SECOND * 10, true);
        assert_eq!(heard(0), "");
        assert_eq!(heard(1), "");
        assert_eq!(heard(2), "One");
        assert_eq!(heard(5), "One two,");
        assert_eq!(heard(10), "One two, three four.");
        assert_eq!(
            given("今天天气很好。").heard(SECOND, SECOND * 2, true),
            "今天天"
        );
    }

    #[test]
    fn the_first_sound_of_a_long_text_is_not_taken_for_all_of_it() {
        let script = given(&"word ".repeat(60));
        // 300 characters last 20 s: a tenth of them in 2 s.
        let heard = script.heard(SECOND * 2, SECOND * 2, false);
        assert_eq!(heard, ["word"; 6].join(" "));
        assert_eq!(given("").heard(SECOND, SECOND, true), "");
    }

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
