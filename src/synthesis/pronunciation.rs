//! Pronunciation overrides: whole words (Unicode word boundaries, UAX #29) are replaced before the text goes to a
//! provider; case-insensitive, literal, longest first, in one pass, so a replacement is never replaced again.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Deserialize;
use unicode_segmentation::UnicodeSegmentation;

use super::spoken::SpokenText;

/// One override, as it stands on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
pub struct Pronunciation {
    /// The word or words to replace, at most 200 bytes.
    #[schemars(length(min = 1, max = 200), regex(pattern = r"\S"))]
    pub word: String,
    /// What is said instead, at most 1000 bytes.
    #[schemars(length(max = 1000))]
    pub pronunciation: String,
}

/// The text with every override applied; `None` where that is longer than `most` bytes.
pub fn apply(text: &str, pronunciations: &[Pronunciation], most: usize) -> Option<SpokenText> {
    let mut said = SpokenText::default();
    if pronunciations.is_empty() {
        said.keep(text);
        return Some(said);
    }
    let table = Table::new(pronunciations);
    let text = Folded::new(text);
    let mut at = 0;
    for (index, &start) in text.boundaries.iter().enumerate() {
        if start < at || start == text.text.len() {
            continue;
        }
        if let Some((end, piece)) = table.longest_at(&text, start) {
            said.replace(piece, start..end);
            at = end;
        } else {
            at = text.boundaries[index + 1];
            said.keep(&text.text[start..at]);
        }
        if said.text.len() > most {
            return None;
        }
    }
    Some(said)
}

/// A text with its word boundaries and its characters in lower case, each with the byte behind the one that it came
/// from. One character may fold to several.
struct Folded<'a> {
    text: &'a str,
    boundaries: Vec<usize>,
    characters: Vec<(usize, char)>,
}

impl<'a> Folded<'a> {
    fn new(text: &'a str) -> Self {
        let mut boundaries: Vec<usize> =
            text.split_word_bound_indices().map(|(at, _)| at).collect();
        boundaries.push(text.len());
        Self {
            text,
            boundaries,
            characters: folded(text).collect(),
        }
    }

    /// The folded characters from a byte position on.
    fn from(&self, start: usize) -> &[(usize, char)] {
        &self.characters[self.characters.partition_point(|(end, _)| *end <= start)..]
    }
}

fn folded(text: &str) -> impl Iterator<Item = (usize, char)> {
    text.char_indices().flat_map(|(at, character)| {
        let end = at + character.len_utf8();
        character.to_lowercase().map(move |lower| (end, lower))
    })
}

/// The words as a tree of characters, so that looking one up costs no more than its length.
struct Table<'a> {
    /// From a node by a character to the next; the root is 0.
    next: HashMap<(usize, char), usize>,
    /// What is said for the word that ends at a node.
    said: Vec<Option<&'a str>>,
}

impl<'a> Table<'a> {
    fn new(pronunciations: &'a [Pronunciation]) -> Self {
        let mut next = HashMap::new();
        let mut said = vec![None];
        for entry in pronunciations {
            let mut node = 0;
            for (_, character) in folded(&entry.word) {
                let fresh = said.len();
                node = *next.entry((node, character)).or_insert(fresh);
                if node == fresh {
                    said.push(None);
                }
            }
            // Of two entries for one word the first counts.
            said[node].get_or_insert(entry.pronunciation.as_str());
        }
        Self { next, said }
    }

    /// The longest entry that begins at `start` and ends at a word boundary: where it ends, and what is said instead.
    fn longest_at(&self, text: &Folded<'_>, start: usize) -> Option<(usize, &'a str)> {
        let characters = text.from(start);
        let mut longest = None;
        let mut node = 0;
        for (index, &(end, character)) in characters.iter().enumerate() {
            let Some(&next) = self.next.get(&(node, character)) else {
                break;
            };
            node = next;
            // A character that folds to several must not be matched by half: its next part has the same end.
            let whole = characters
                .get(index + 1)
                .is_none_or(|&(after, _)| after != end);
            if let Some(said) = self.said[node]
                && whole
                && text.boundaries.binary_search(&end).is_ok()
            {
                longest = Some((end, said));
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(pairs: &[(&str, &str)]) -> Vec<Pronunciation> {
        let entry = |&(word, said): &(&str, &str)| Pronunciation {
            word: word.into(),
            pronunciation: said.into(),
        };
        pairs.iter().map(entry).collect()
    }

    #[test]
    fn whole_words_are_replaced_in_any_case_longest_first_in_one_pass() {
        let table = entries(&[
            ("sql", "sequel"),
            ("New York", "the Big Apple"),
            ("york", "Yorkshire"),
            ("sequel", "never said"),
            ("C++", "see plus plus"),
            ("c", "sea"),
            ("straße", "street"),
        ]);
        for (text, said) in [
            ("SQL, Sql and MySQL.", "sequel, sequel and MySQL."),
            ("New york or York?", "the Big Apple or Yorkshire?"),
            ("C++ or C", "see plus plus or sea"),
            ("die STRASSE, die Straße", "die STRASSE, die street"),
            ("", ""),
        ] {
            assert_eq!(apply(text, &table, 1_000).unwrap().text, said);
        }
    }

    #[test]
    fn a_dollar_sign_or_bracket_is_literal() {
        let table = entries(&[("$1", "one dollar"), ("(x)", "$0")]);
        let said = apply("a.b $1 (x)", &table, 1_000).unwrap();
        assert_eq!(said.text, "a.b one dollar $0");
    }

    #[test]
    fn a_text_cannot_grow_without_bound() {
        let table = entries(&[("a", &"x".repeat(500))]);
        assert!(apply(&"a ".repeat(1_000), &table, 100_000).is_none());
        assert!(apply(&"a ".repeat(10), &table, 100_000).is_some());
    }

    proptest! {
        #[test]
        fn any_text_and_any_table_give_a_text(text in "\\PC{0,60}", word in "\\PC{0,4}", said in "\\PC{0,4}") {
            let _ = apply(&text, &entries(&[(&word, &said)]), 1_000);
        }

        #[test]
        fn a_word_that_does_not_occur_changes_nothing(text in "[a-p İß]{0,60}") {
            let table = entries(&[("xyz", "never"), ("zzz", "never")]);
            prop_assert_eq!(apply(&text, &table, 1_000).unwrap().text, text);
        }
    }
}
