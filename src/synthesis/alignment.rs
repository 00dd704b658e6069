//! Aligns the words that a provider reports with the client's text. Pronunciations replace words of the client's text,
//! and providers spell words in their own way.

use std::ops::Range;

/// How far ahead to search for a word, in bytes, so that a word which cannot be found is not mistaken for a later one.
const LOOK_AHEAD: usize = 80;

/// The text given to the provider, with its alignment to the client's text.
#[derive(Debug, Default)]
pub struct SpokenText {
    /// The text given to the provider.
    pub text: String,
    replaced: Vec<Replaced>,
    /// The end of the last word reported.
    told: usize,
}

/// A part of the client's text that was replaced.
#[derive(Debug)]
struct Replaced {
    said: Range<usize>,
    written: Range<usize>,
}

impl SpokenText {
    /// Appends text that is the same in both.
    pub(super) fn keep(&mut self, piece: &str) {
        self.text.push_str(piece);
    }

    /// Appends the replacement of a part of the client's text.
    pub(super) fn replace(&mut self, piece: &str, written: Range<usize>) {
        let start = self.text.len();
        self.text.push_str(piece);
        self.replaced.push(Replaced {
            said: start..self.text.len(),
            written,
        });
    }

    /// Appends another text, which begins at `at` in the client's.
    pub(super) fn append(&mut self, other: Self, at: usize) {
        let begin = self.text.len();
        self.text.push_str(&other.text);
        if other.replaced.is_empty() && begin == at {
            return;
        }
        // What is the same in both lies elsewhere where something before it was replaced.
        let kept = |said: Range<usize>, written: Range<usize>| Replaced {
            said: begin + said.start..begin + said.end,
            written: at + written.start..at + written.end,
        };
        let replaced = other.replaced.into_iter();
        self.replaced.push(kept(0..0, 0..0));
        self.replaced
            .extend(replaced.map(|part| kept(part.said, part.written)));
    }

    /// The byte offset in the client's text of the next word reported; `None` if it cannot be found.
    pub fn find(&mut self, word: &str) -> Option<usize> {
        let word = word.trim();
        let rest = self.text.get(self.told..).filter(|_| !word.is_empty())?;
        let at = find(rest, word).or_else(|| find(&rest.to_lowercase(), &word.to_lowercase()))?;
        let said = self.told + at;
        // Lower-casing may change the length; then the next search starts at the following character boundary.
        let end = said + word.len();
        self.told = (end..=self.text.len()).find(|at| self.text.is_char_boundary(*at))?;
        Some(self.written(said))
    }

    /// The offset in the client's text of a byte of the spoken text.
    fn written(&self, said: usize) -> usize {
        let behind = self
            .replaced
            .partition_point(|part| part.said.start <= said);
        let Some(part) = behind
            .checked_sub(1)
            .and_then(|last| self.replaced.get(last))
        else {
            return said;
        };
        match said.checked_sub(part.said.end) {
            Some(after) => part.written.end + after,
            // Within a replacement, positions are interpolated.
            None => {
                let (into, of) = (said - part.said.start, part.said.len());
                part.written.start + into * part.written.len() / of.max(1)
            }
        }
    }
}

/// The next occurrence of a word that does not begin inside another word; in scripts without spaces, any occurrence.
fn find(text: &str, word: &str) -> Option<usize> {
    let is_near = |(at, _): &(usize, &str)| *at <= LOOK_AHEAD;
    let begins = |(at, _): &(usize, &str)| {
        let before = text
            .get(..*at)
            .and_then(|before| before.chars().next_back());
        let first = word.chars().next();
        let both = before.zip(first);
        !both.is_some_and(|(before, first)| before.is_alphanumeric() && first.is_alphanumeric())
    };
    let mut near = text.match_indices(word).take_while(is_near).peekable();
    let any = near.peek().map(|(at, _)| *at);
    near.find(begins).map(|(at, _)| at).or(any)
}

#[cfg(test)]
mod tests {
    use super::super::pronunciation::{Pronunciation, Pronunciations};
    use super::*;
    use proptest::prelude::*;

    fn spoken(text: &str, entries: &[(&str, &str)]) -> SpokenText {
        let entry = |&(word, said): &(&str, &str)| Pronunciation {
            word: word.into(),
            pronunciation: said.into(),
        };
        let entries: Vec<_> = entries.iter().map(entry).collect();
        Pronunciations::new(&entries).apply(text, 10_000).unwrap()
    }

    #[test]
    fn words_are_found_in_order_as_whole_words() {
        let text = "The cat, a cat and 今天 Here";
        let mut said = spoken(text, &[]);
        let words = [
            "the", "cat,", "a", "cat", "and", "今", "天", "twenty", "here",
        ];
        let found: Vec<_> = words.into_iter().map(|word| said.find(word)).collect();
        let at = |word: &str| text.find(word);
        let second_cat = Some(11);
        let here = at("Here");
        let expected = [
            Some(0),
            at("cat"),
            Some(9),
            second_cat,
            at("and"),
            at("今"),
            at("天"),
            None,
            here,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_word_that_is_said_otherwise_is_found_where_it_was_written() {
        let entries = [("SQL", "sequel"), ("New York", "the Big Apple")];
        let mut said = spoken("Use SQL in New York now", &entries);
        assert_eq!(said.text, "Use sequel in the Big Apple now");
        let words = ["Use", "sequel", "in", "the", "Big", "Apple", "now"];
        let found: Vec<_> = words.into_iter().map(|word| said.find(word)).collect();
        let at = [0, 4, 8, 11, 13, 15, 20].map(Some);
        assert_eq!(found, at);
    }

    proptest! {
        #[test]
        fn any_words_are_found_within_the_text(
            text in "\\PC{0,60}", entry in "\\PC{1,4}", said in "\\PC{0,6}", words in prop::collection::vec("\\PC{0,5}", 0..8),
        ) {
            let mut spoken = spoken(&text, &[(&entry, &said)]);
            for word in words {
                if let Some(at) = spoken.find(&word) {
                    prop_assert!(at <= text.len());
                }
            }
        }
    }
}
