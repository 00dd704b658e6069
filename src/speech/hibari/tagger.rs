//! Part-of-speech tags (those of the Penn Treebank) by an averaged perceptron: "read", "live" and "record" are said by
//! what they are in the sentence. A word that is nearly always the same has its tag in a dictionary.

use std::path::Path;

use serde::Deserialize;

use super::table::{Object, Table, Text, broken, parse, read};
use crate::worker::SpeechError;

const FILE: &str = "tagger.json.gz";
/// What stands before and behind a sentence.
const BEFORE: [&str; 2] = ["-START2-", "-START-"];
const BEHIND: [&str; 2] = ["-END-", "-END2-"];

/// The file.
#[derive(Deserialize)]
struct Model<'f> {
    tags: Vec<String>,
    #[serde(borrow)]
    tagdict: Object<Text<'f>, Text<'f>>,
    #[serde(borrow)]
    vocab: Vec<Text<'f>>,
    #[serde(borrow)]
    weights: Object<Text<'f>, Object<Text<'f>, f64>>,
}

/// The tagger.
pub struct Tagger {
    tags: Vec<String>,
    /// Words with one tag.
    known: Table<u8>,
    /// Words that features name; the others are named by their shape.
    frequent: Table<()>,
    /// For each feature the range of its weights.
    features: Table<(u32, u32)>,
    /// A tag and its weight in tenths, in which the file gives them.
    weights: Vec<(u8, i16)>,
}

impl std::fmt::Debug for Tagger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tags", self.tags.len())
    }
}

impl Tagger {
    /// The tagger of a model's folder.
    pub fn load(folder: &Path) -> Result<Self, SpeechError> {
        let bytes = read(folder, FILE)?;
        let model: Model<'_> = parse(folder, FILE, &bytes)?;
        Self::new(model).ok_or_else(|| broken(&folder.join(FILE), &"a tag is not in its list"))
    }

    fn new(model: Model<'_>) -> Option<Self> {
        let tags = model.tags;
        let tag = |name: &Text<'_>| {
            let at = tags.iter().position(|tag| *tag == name.0)?;
            u8::try_from(at).ok()
        };
        let known: Option<Vec<_>> = model
            .tagdict
            .0
            .into_iter()
            .map(|(word, name)| Some((word.0, tag(&name)?)))
            .collect();
        let mut weights = Vec::new();
        let mut features = Vec::new();
        for (feature, of) in model.weights.0 {
            let start = weights.len() as u32;
            for (name, weight) in of.0 {
                weights.push((tag(&name)?, (weight * 10.0).round() as i16));
            }
            features.push((feature.0, (start, weights.len() as u32)));
        }
        weights.shrink_to_fit();
        Some(Self {
            known: Table::new(known?),
            frequent: Table::new(model.vocab.into_iter().map(|word| (word.0, ()))),
            features: Table::new(features),
            weights,
            tags,
        })
    }

    /// The tag of each word of a sentence.
    pub fn tag(&self, words: &[&str]) -> Vec<&str> {
        let named = words.iter().map(|word| self.name(word));
        let context: Vec<String> = BEFORE
            .iter()
            .map(|&mark| mark.to_owned())
            .chain(named)
            .chain(BEHIND.iter().map(|&mark| mark.to_owned()))
            .collect();
        let [mut before_last, mut last] = BEFORE;
        let mut tags = Vec::with_capacity(words.len());
        for (at, word) in words.iter().enumerate() {
            let tag = match self.known.get(word) {
                Some(&tag) => self.tags.get(usize::from(tag)).map_or("NN", String::as_str),
                None => self.predict(
                    at,
                    word,
                    context.get(at..).unwrap_or_default(),
                    last,
                    before_last,
                ),
            };
            tags.push(tag);
            (before_last, last) = (last, tag);
        }
        tags
    }

    /// What features call a word.
    fn name(&self, word: &str) -> String {
        let digits = word.chars().all(char::is_numeric);
        let name = if word.contains('-') && !word.starts_with('-') {
            "!HYPHEN".to_owned()
        } else if digits && word.chars().count() == 4 {
            "!YEAR".to_owned()
        } else if word.starts_with(char::is_numeric) {
            "!DIGITS".to_owned()
        } else {
            word.to_lowercase()
        };
        match self.frequent.get(&name) {
            Some(()) => name,
            None => format!("<{}>", shape(word)),
        }
    }

    /// `context` begins two words before the word.
    fn predict(
        &self,
        at: usize,
        word: &str,
        context: &[String],
        last: &str,
        before_last: &str,
    ) -> &str {
        let [two_before, before, this, next, after_next, ..] = context else {
            return "NN";
        };
        let first = word.chars().next().map(String::from).unwrap_or_default();
        let features = [
            "b".to_owned(),
            format!("s3={}", end_of(word)),
            format!("p1={first}"),
            format!("w={this}"),
            format!("sh={}", shape(word)),
            if at == 0 { "i0" } else { "i+" }.to_owned(),
            format!("t-1={last}"),
            format!("t-2={before_last}"),
            format!("t-12={last},{before_last}"),
            format!("w-1={before}"),
            format!("s3-1={}", end_of(before)),
            format!("w-2={two_before}"),
            format!("w+1={next}"),
            format!("s3+1={}", end_of(next)),
            format!("w+2={after_next}"),
        ];
        let mut scores = vec![0i64; self.tags.len()];
        let mut any = false;
        for feature in &features {
            let Some(&(start, end)) = self.features.get(feature) else {
                continue;
            };
            for (tag, weight) in self
                .weights
                .get(start as usize..end as usize)
                .unwrap_or_default()
            {
                if let Some(score) = scores.get_mut(usize::from(*tag)) {
                    *score += i64::from(*weight);
                    any = true;
                }
            }
        }
        let best = scores.iter().zip(&self.tags).max();
        best.filter(|_| any).map_or("NN", |(_, tag)| tag.as_str())
    }
}

/// The last three characters.
fn end_of(word: &str) -> &str {
    let at = word.char_indices().rev().nth(2).map_or(0, |(at, _)| at);
    word.get(at..).unwrap_or_default()
}

/// What a word looks like: lower case, capitalised, digits.
fn shape(word: &str) -> String {
    let mut chars = word.chars();
    let alphabetic = !word.is_empty() && word.chars().all(char::is_alphabetic);
    if alphabetic {
        let lower = |c: char| c.is_lowercase() || !c.is_uppercase();
        let cased = word.chars().any(|c| c.is_lowercase() || c.is_uppercase());
        return if cased && word.chars().all(lower) {
            "x"
        } else if cased && word.chars().all(|c| !c.is_lowercase()) {
            if word.chars().count() > 1 { "XX" } else { "X1" }
        } else if chars.next().is_some_and(char::is_uppercase)
            && chars.clone().any(char::is_lowercase)
            && chars.all(lower)
        {
            "Xx"
        } else {
            "xX"
        }
        .to_owned();
    }
    if !word.is_empty() && word.chars().all(char::is_numeric) {
        return "d".to_owned();
    }
    let class = |c: char| match c {
        c if c.is_numeric() => 'd',
        c if c.is_alphabetic() => 'x',
        c => c,
    };
    word.chars().take(4).map(class).collect()
}
