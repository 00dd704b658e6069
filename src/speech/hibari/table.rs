//! A sorted table of words in two allocations, for dictionaries of a hundred thousand entries, and the reading of the
//! compressed JSON files that they come in.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde::Deserialize;

use crate::worker::SpeechError;

/// The most that a file may unpack to. The largest takes five megabytes.
const MAX_UNPACKED_BYTES: u64 = 64 << 20;

/// Words, each with a value.
#[derive(Debug)]
pub struct Table<V> {
    words: String,
    /// Where each word begins and ends, and its value, sorted by the word.
    entries: Vec<(u32, u32, V)>,
}

impl<V> Table<V> {
    /// A table of these entries; of several for a word any may be found.
    pub fn new<'e>(entries: impl IntoIterator<Item = (Cow<'e, str>, V)>) -> Self {
        let mut words = String::new();
        let mut places = Vec::new();
        for (word, value) in entries {
            let start = words.len() as u32;
            words.push_str(&word);
            places.push((start, words.len() as u32, value));
        }
        let at = |place: &(u32, u32, V)| words.get(place.0 as usize..place.1 as usize);
        places.sort_by(|one, other| at(one).cmp(&at(other)));
        words.shrink_to_fit();
        places.shrink_to_fit();
        Self {
            words,
            entries: places,
        }
    }

    /// The value of a word.
    pub fn get(&self, word: &str) -> Option<&V> {
        let found = self.entries.binary_search_by(|(start, end, _)| {
            let known = self.words.get(*start as usize..*end as usize);
            known.unwrap_or_default().cmp(word)
        });
        self.entries.get(found.ok()?).map(|(_, _, value)| value)
    }
}

/// Text in a JSON file, copied only where it has escapes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub struct Text<'f>(#[serde(borrow)] pub Cow<'f, str>);

/// A JSON object in the order of the file.
pub struct Object<K, V>(pub Vec<(K, V)>);

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for Object<K, V> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<K, V>(std::marker::PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> serde::de::Visitor<'de> for Visitor<K, V> {
            type Value = Object<K, V>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Object(entries))
            }
        }

        deserializer.deserialize_map(Visitor(std::marker::PhantomData))
    }
}

/// The bytes of a file of the model, unpacked if its name ends in `.gz`.
pub fn read(folder: &Path, name: &str) -> Result<Vec<u8>, SpeechError> {
    let path = folder.join(name);
    let mut bytes = Vec::new();
    let read = std::fs::File::open(&path).and_then(|file| {
        if Path::new(name).extension().is_some_and(|end| end == "gz") {
            GzDecoder::new(file)
                .take(MAX_UNPACKED_BYTES)
                .read_to_end(&mut bytes)
        } else {
            file.take(MAX_UNPACKED_BYTES).read_to_end(&mut bytes)
        }
    });
    read.map_err(|error| broken(&path, &error))?;
    Ok(bytes)
}

/// What a JSON file of the model holds, from its bytes.
pub fn parse<'f, T: Deserialize<'f>>(
    folder: &Path,
    name: &str,
    bytes: &'f [u8],
) -> Result<T, SpeechError> {
    serde_json::from_slice(bytes).map_err(|error| broken(&folder.join(name), &error))
}

/// The error of a file that is missing or not what it should be.
pub fn broken(path: &Path, cause: &dyn std::fmt::Display) -> SpeechError {
    SpeechError::File {
        file: path.display().to_string(),
        cause: cause.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_table_is_found_and_no_other() {
        let words = ["b", "", "ab", "a", "é"];
        let table = Table::new(
            words
                .iter()
                .enumerate()
                .map(|(at, word)| ((*word).into(), at)),
        );
        for (at, word) in words.iter().enumerate() {
            assert_eq!(table.get(word), Some(&at));
        }
        assert_eq!(table.get("c"), None);
    }
}
