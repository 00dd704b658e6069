//! The text as a voice says it, with the client's own words behind it: which word of the client's a voice means when it
//! tells that a word begins. Pronunciations put other words in the place of the client's, and voices write words in
//! their own way.

use std::ops::Range;

/// How far ahead a word is looked for, in bytes: one that is not found at all must not be taken for a later one.
const LOOK_AHEAD: usize = 80;

/// What is said, and what was written.
#[derive(Debug, Default)]
pub struct SpokenText {
    /// What is said.
    pub text: String,
    replaced: Vec<Replaced>,
    /// Up to where the voice has told its words.
    told: usize,
}

/// A part of the client's text in whose place another is said.
#[derive(Debug)]
struct Replaced {
    said: Range<usize>,
    written: Range<usize>,
}

impl SpokenText {
    /// Appends what is said as it was written.
    pub(super) fn keep(&mut self, piece: &str) {
        self.text.push_str(piece);
    }

    /// Appends what is said instead of a part of the client's text.
    pub(super) fn replace(&mut self, piece: &str, written: Range<usize>) {
        let start = self.text.len();
        self.text.push_str(piece);
        self.replaced.push(Replaced {
            said: start..self.text.len(),
            written,
        });
    }

    /// The byte of the client's text where the word is that the voice tells next; `None` where it cannot be found.
    pub fn find(&mut self, word: &str) -> Option<usize> {
        let word = word.trim();
        let rest = self.text.get(self.told..).filter(|_| !word.is_empty())?;
        let at = find(rest, word).or_else(|| find(&rest.to_lowercase(), &word.to_lowercase()))?;
        let said = self.told + at;
        // Lower case may be longer: then the next search begins within a character, and goes on behind it.
        let end = said + word.len();
        self.told = (end..=self.text.len()).find(|at| self.text.is_char_boundary(*at))?;
        Some(self.written(said))
    }

    /// Where this byte of what is said was written.
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
            // Within it words stand about as far on as what is said instead.
            None => {
                let (into, of) = (said - part.said.start, part.said.len());
                part.written.start + into * part.written.len() / of.max(1)
            }
        }
    }
}

/// The next place of a word that does not begin in the middle of another; in scripts without spaces any place.
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
    use super::super::pronunciation::{Pronunciation, apply};
    use super::*;
    use proptest::prelude::*;

    fn spoken(text: &str, entries: &[(&str, &str)]) -> SpokenText {
        let entry = |&(word, said): &(&str, &str)| Pronunciation {
            word: word.into(),
            pronunciation: said.into(),
        };
        let entries: Vec<_> = entries.iter().map(entry).collect();
        apply(text, &entries, 10_000).unwrap()
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
