//! The phonemes of words that are in no dictionary, by a small network that reads their letters.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::lexicon::Accent;
use super::table::{parse, read};
use crate::onnx::{Input, Network, Runtime, tensor};
use crate::worker::SpeechError;

/// What the network's numbers stand for. In its output 0 is a blank.
#[derive(Debug, Deserialize)]
struct Alphabet {
    #[serde(rename = "in")]
    letters: Vec<char>,
    #[serde(rename = "out")]
    phonemes: Vec<char>,
    maxlen: usize,
}

/// The network.
#[derive(Debug)]
pub struct UnknownWords {
    network: Network,
    letters: HashMap<char, i64>,
    phonemes: Vec<char>,
    longest: usize,
}

impl UnknownWords {
    /// The network of a model's folder.
    pub fn load(runtime: &Runtime, folder: &Path, accent: Accent) -> Result<Self, SpeechError> {
        let [.., network, names] = accent.files();
        let bytes = read(folder, names)?;
        let alphabet: Alphabet = parse(folder, names, &bytes)?;
        let network = Network::load(runtime, &folder.join(network))?;
        network.expect(&["chars"], &["ids"])?;
        Ok(Self {
            network,
            letters: alphabet.letters.into_iter().zip(1..).collect(),
            phonemes: alphabet.phonemes,
            longest: alphabet.maxlen.max(1),
        })
    }

    /// How a word is said; empty where it has no letter that the network knows. A word that is too long for it is read in
    /// parts.
    pub fn word(&mut self, word: &str) -> Result<String, SpeechError> {
        let letters: Vec<i64> = word
            .chars()
            .filter_map(|letter| self.letters.get(&letter).copied())
            .collect();
        let mut said = String::new();
        for part in letters.chunks(self.longest) {
            let inputs = vec![("chars", Input::of(&[1, part.len()], part)?)];
            let ids = self.network.run(inputs)?.take("ids")?;
            let (_, ids) = tensor::<i64>(&ids)?;
            let mut last = 0;
            for &id in ids {
                if id != last && id > 0 {
                    let phoneme = usize::try_from(id - 1).ok();
                    said.extend(phoneme.and_then(|at| self.phonemes.get(at)));
                }
                last = id;
            }
        }
        Ok(said)
    }
}
