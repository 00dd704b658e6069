//! Pronunciation overrides: whole words (Unicode word boundaries, UAX #29) are replaced before the text is sent to a
//! provider. Matching is literal, case-insensitive, longest first and in one pass, so a replacement is never replaced
//! again.
//!
//! Entries are sorted once; a lookup is one binary search, so that a text costs about the same however many there are.

use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use unicode_segmentation::UnicodeSegmentation;

use super::alignment::SpokenText;

/// A pronunciation override, as it is on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
pub struct Pronunciation {
    /// The word or words to replace, at most 200 bytes.
    #[schemars(length(min = 1, max = 200), regex(pattern = r"\S"))]
    pub word: String,
    /// The replacement, at most 1000 bytes.
    #[schemars(length(max = 1000))]
    pub pronunciation: String,
}

/// Pronunciation overrides, prepared once for all texts that they are applied to.
pub struct Pronunciations {
    /// The entries, by their folded words.
    entries: Vec<Entry>,
    digest: Option<[u8; 32]>,
}

struct Entry {
    /// The word, case-folded.
    word: Box<str>,
    said: Box<str>,
    /// The longest other entry whose word this one begins with.
    within: Option<usize>,
}

impl Pronunciations {
    /// Prepares entries; of several for a word the first counts.
    pub fn new(pronunciations: &[Pronunciation]) -> Self {
        let mut digest = Sha256::new();
        for entry in pronunciations {
            // Length-prefixed, so that different lists never give the same bytes.
            for text in [&entry.word, &entry.pronunciation] {
                digest.update((text.len() as u64).to_le_bytes());
                digest.update(text);
            }
        }
        let mut entries: Vec<Entry> = pronunciations
            .iter()
            .filter(|entry| !entry.word.is_empty())
            .map(|entry| Entry {
                word: entry.word.chars().flat_map(char::to_lowercase).collect(),
                said: entry.pronunciation.as_str().into(),
                within: None,
            })
            .collect();
        // Stable: the first of equal ones stays first.
        entries.sort_by(|one, other| one.word.cmp(&other.word));
        entries.dedup_by(|later, first| later.word == first.word);
        // The entries that the current one may begin with, each beginning with the one before it.
        let mut open: Vec<(usize, Box<str>)> = Vec::new();
        for (index, entry) in entries.iter_mut().enumerate() {
            while open
                .pop_if(|(_, word)| !entry.word.starts_with(&**word))
                .is_some()
            {}
            entry.within = open.last().map(|(index, _)| *index);
            open.push((index, entry.word.clone()));
        }
        Self {
            entries,
            digest: (!pronunciations.is_empty()).then(|| digest.finalize().into()),
        }
    }

    /// A digest of all entries as they were given, if there are any.
    pub const fn digest(&self) -> Option<&[u8; 32]> {
        self.digest.as_ref()
    }

    /// The text with every override applied; `None` if the result is longer than `most` bytes.
    pub fn apply(&self, text: &str, most: usize) -> Option<SpokenText> {
        let mut said = SpokenText::default();
        if self.entries.is_empty() {
            said.keep(text);
            return Some(said);
        }
        let folded = Folded::new(text);
        let mut at = 0;
        for (here, next) in folded
            .boundaries
            .iter()
            .zip(folded.boundaries.iter().skip(1))
        {
            if here.written < at {
                continue;
            }
            if let Some((end, piece)) = self.longest_at(&folded, here.folded) {
                said.replace(piece, here.written..end);
                at = end;
            } else {
                at = next.written;
                said.keep(text.get(here.written..at)?);
            }
            if said.text.len() > most {
                return None;
            }
        }
        Some(said)
    }

    /// The longest entry between this word boundary and a later one: its end in the text, and its replacement.
    fn longest_at(&self, text: &Folded, start: usize) -> Option<(usize, &str)> {
        let rest = text.text.get(start..)?;
        // Every entry that the rest begins with is this one, or one that this one begins with.
        let behind = self.entries.partition_point(|entry| *entry.word <= *rest);
        let last = self.entries.get(behind.checked_sub(1)?)?;
        let bytes = last.word.bytes().zip(rest.bytes());
        let alike = bytes.take_while(|(one, other)| one == other).count();
        let within = |entry: &&Entry| entry.within.and_then(|within| self.entries.get(within));
        std::iter::successors(Some(last), within)
            .filter(|entry| entry.word.len() <= alike)
            .find_map(|entry| Some((text.boundary(start + entry.word.len())?, &*entry.said)))
    }
}

impl Default for Pronunciations {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl PartialEq for Pronunciations {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl std::fmt::Debug for Pronunciations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pronunciations", self.entries.len())
    }
}

/// A text, case-folded, with its word boundaries.
struct Folded {
    text: String,
    boundaries: Vec<Boundary>,
}

/// A word boundary, as a byte position in the text as it was written, and case-folded.
struct Boundary {
    written: usize,
    folded: usize,
}

impl Folded {
    fn new(text: &str) -> Self {
        let mut folded = String::with_capacity(text.len());
        let mut boundaries = Vec::new();
        for (written, word) in text.split_word_bound_indices() {
            boundaries.push(Boundary {
                written,
                folded: folded.len(),
            });
            folded.extend(word.chars().flat_map(char::to_lowercase));
        }
        boundaries.push(Boundary {
            written: text.len(),
            folded: folded.len(),
        });
        Self {
            text: folded,
            boundaries,
        }
    }

    /// The position in the text as it was written, if there is a word boundary at this one.
    fn boundary(&self, folded: usize) -> Option<usize> {
        let boundaries = &self.boundaries;
        let index = boundaries.binary_search_by_key(&folded, |boundary| boundary.folded);
        Some(boundaries.get(index.ok()?)?.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(pairs: &[(&str, &str)]) -> Pronunciations {
        let entry = |&(word, said): &(&str, &str)| Pronunciation {
            word: word.into(),
            pronunciation: said.into(),
        };
        Pronunciations::new(&pairs.iter().map(entry).collect::<Vec<_>>())
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
            assert_eq!(table.apply(text, 1_000).unwrap().text, said);
        }
    }

    #[test]
    fn a_dollar_sign_or_bracket_is_literal() {
        let table = entries(&[("$1", "one dollar"), ("(x)", "$0")]);
        let said = table.apply("a.b $1 (x)", 1_000).unwrap();
        assert_eq!(said.text, "a.b one dollar $0");
    }

    #[test]
    fn a_text_cannot_grow_without_bound() {
        let table = entries(&[("a", &"x".repeat(500))]);
        assert!(table.apply(&"a ".repeat(1_000), 100_000).is_none());
        assert!(table.apply(&"a ".repeat(10), 100_000).is_some());
    }

    /// The longest entry that the text has at a word boundary and that ends at one, found by trying all.
    fn tried(text: &str, pairs: &[(String, String)]) -> String {
        let lower = |text: &str| {
            text.chars()
                .flat_map(char::to_lowercase)
                .collect::<String>()
        };
        let mut bounds: Vec<usize> = text.split_word_bound_indices().map(|(at, _)| at).collect();
        bounds.push(text.len());
        let (mut said, mut at) = (String::new(), 0);
        for (n, &start) in bounds.iter().enumerate() {
            if start < at || start == text.len() {
                continue;
            }
            let ends = bounds[n + 1..].iter().rev();
            let found = ends.filter_map(|end| {
                let word = lower(&text[start..*end]);
                let pair = pairs.iter().find(|(entry, _)| lower(entry) == word)?;
                Some((*end, pair.1.as_str()))
            });
            let (end, piece) = found.max_by_key(|(end, _)| *end).unwrap_or_else(|| {
                let end = bounds[n + 1];
                (end, &text[start..end])
            });
            said.push_str(piece);
            at = end;
        }
        said
    }

    proptest! {
        #[test]
        fn the_longest_of_all_entries_is_found(
            text in "[abAB İßẞ.]{0,30}",
            pairs in prop::collection::vec(("[ab Bİß.]{0,6}", "[x-z]{0,3}"), 0..30),
        ) {
            let borrowed: Vec<_> = pairs.iter().map(|(word, said)| (word.as_str(), said.as_str())).collect();
            let said = entries(&borrowed).apply(&text, 100_000).unwrap();
            prop_assert_eq!(said.text, tried(&text, &pairs));
        }

        #[test]
        fn any_text_and_any_table_give_a_text(text in "\\PC{0,60}", word in "\\PC{0,4}", said in "\\PC{0,4}") {
            let _ = entries(&[(&word, &said)]).apply(&text, 1_000);
        }

        #[test]
        fn a_word_that_does_not_occur_changes_nothing(text in "[a-p İß]{0,60}") {
            let table = entries(&[("xyz", "never"), ("zzz", "never")]);
            prop_assert_eq!(table.apply(&text, 1_000).unwrap().text, text);
        }
    }
}
