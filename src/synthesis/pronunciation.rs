//! Pronunciation overrides: whole words (Unicode word boundaries, UAX #29) are replaced before the text goes to a
//! provider; case-insensitive, literal, longest first, in one pass, so a replacement is never replaced again.

use std::collections::HashMap;

use serde::Deserialize;
use unicode_segmentation::UnicodeSegmentation;

/// One override, as it stands on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
pub struct Pronunciation {
    /// The word or words to replace.
    pub word: String,
    /// What is said instead.
    pub pronunciation: String,
}

/// The text with every override applied.
pub fn apply(text: &str, pronunciations: &[Pronunciation]) -> String {
    if pronunciations.is_empty() {
        return text.to_owned();
    }
    let table = Table::new(pronunciations);
    let mut boundaries: Vec<usize> = text.split_word_bound_indices().map(|(at, _)| at).collect();
    boundaries.push(text.len());
    let mut said = String::with_capacity(text.len());
    let mut at = 0;
    for (index, &start) in boundaries.iter().enumerate() {
        if start < at || start == text.len() {
            continue;
        }
        let next = boundaries[index + 1];
        match table.longest_at(&text[start..], |end| {
            boundaries.binary_search(&(start + end)).is_ok()
        }) {
            Some((end, replacement)) => {
                said.push_str(replacement);
                at = start + end;
            }
            None => {
                said.push_str(&text[start..next]);
                at = next;
            }
        }
    }
    said
}

/// Folded words by their first character, longest first.
struct Table<'a>(HashMap<char, Vec<(Vec<char>, &'a str)>>);

impl<'a> Table<'a> {
    fn new(pronunciations: &'a [Pronunciation]) -> Self {
        let mut table: HashMap<char, Vec<(Vec<char>, &str)>> = HashMap::new();
        for entry in pronunciations {
            let word: Vec<char> = folded(&entry.word)
                .map(|(_, character)| character)
                .collect();
            if let Some(&first) = word.first() {
                table
                    .entry(first)
                    .or_default()
                    .push((word, &entry.pronunciation));
            }
        }
        for entries in table.values_mut() {
            entries.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        }
        Self(table)
    }

    /// The longest entry at the beginning of `text` that ends at a boundary: where it ends, and what replaces it.
    fn longest_at(
        &self,
        text: &str,
        is_boundary: impl Fn(usize) -> bool,
    ) -> Option<(usize, &'a str)> {
        let first = folded(text).next()?.1;
        self.0.get(&first)?.iter().find_map(|(word, replacement)| {
            let mut end = 0;
            let mut characters = folded(text);
            for expected in word {
                let (after, character) = characters.next()?;
                if character != *expected {
                    return None;
                }
                end = after;
            }
            // A character that folds to several may be matched by half; the next one then has the same end.
            let whole = characters.next().is_none_or(|(after, _)| after != end);
            (whole && is_boundary(end)).then_some((end, *replacement))
        })
    }
}

/// Lower-case characters, each with the byte position behind the character that it came from.
fn folded(text: &str) -> impl Iterator<Item = (usize, char)> {
    text.char_indices().flat_map(|(at, character)| {
        character
            .to_lowercase()
            .map(move |lower| (at + character.len_utf8(), lower))
    })
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
            assert_eq!(apply(text, &table), said);
        }
    }

    #[test]
    fn a_dollar_sign_or_bracket_is_literal() {
        assert_eq!(
            apply(
                "a.b $1 (x)",
                &entries(&[("$1", "one dollar"), ("(x)", "$0")])
            ),
            "a.b one dollar $0"
        );
    }

    proptest! {
        #[test]
        fn any_text_and_any_table_give_a_text(text in "\\PC{0,60}", word in "\\PC{0,4}", said in "\\PC{0,4}") {
            let _ = apply(&text, &entries(&[(&word, &said)]));
        }

        #[test]
        fn a_word_that_does_not_occur_changes_nothing(text in "[a-p İß]{0,60}") {
            prop_assert_eq!(apply(&text, &entries(&[("xyz", "never"), ("zzz", "never")])), text);
        }
    }
}
