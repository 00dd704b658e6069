//! What every recogniser of this crate is asked and answers: one utterance at a time, whole or as much of it as there is.

use std::io;

use serde::{Deserialize, Serialize};

use crate::worker::{Model, Reply, Request, SpeechError};

/// The rate that recognisers hear, in Hz.
pub const RATE_HZ: usize = 16_000;
/// The longest utterance, in samples: 27 s, so that 3 s of silence after it fit into the 30 s that models were trained on.
pub const LONGEST: usize = 27 * RATE_HZ;

/// How to hear an utterance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Hearing {
    /// The language, as its primary subtag in lower case (`en`); empty lets the model find out, where it can.
    pub language: String,
    /// The languages that may be found; empty means every one that the model knows.
    pub languages: Vec<String>,
    /// Words and phrases that may be said.
    pub keyterms: Vec<String>,
    /// What is said in another language is written in English, where the model can.
    #[serde(default)]
    pub translate: bool,
    /// The utterance is not complete: its text is wanted quickly, without the places of its words.
    pub partial: bool,
    /// What the text begins with for certain, as said by an earlier partial.
    pub prefix: Vec<u32>,
}

/// An utterance as it was heard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// The text; empty where nothing was said.
    pub text: String,
    /// The language, as its primary subtag.
    pub language: String,
    /// Its words with their places; none of a partial.
    pub words: Vec<HeardWord>,
    /// The model's own units, for [`Hearing::prefix`].
    pub tokens: Vec<u32>,
    /// 0–1.
    pub confidence: f32,
    /// How likely nobody spoke, 0–1, where the model says it.
    pub no_speech: f32,
}

/// A word of an utterance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeardWord {
    /// The word with its punctuation.
    pub word: String,
    /// Seconds from the beginning of the utterance.
    pub start: f64,
    /// Seconds from the beginning of the utterance.
    pub end: f64,
    /// 0–1.
    pub confidence: f32,
}

/// A model that hears.
pub trait Recogniser {
    /// Hears an utterance of at most [`LONGEST`] samples at [`RATE_HZ`].
    fn hear(&mut self, samples: &[i16], hearing: &Hearing) -> Result<Heard, SpeechError>;
}

impl<R: Recogniser> Model for R {
    fn answer(
        &mut self,
        request: Request,
        sound: &[i16],
        reply: &mut dyn FnMut(&Reply, &[i16]) -> io::Result<()>,
    ) -> Result<(), SpeechError> {
        let Request::Hear(hearing) = request else {
            return Err(SpeechError::Request("this model only hears".to_owned()));
        };
        // What is beyond is not heard.
        let heard = self.hear(&sound[..sound.len().min(LONGEST)], &hearing)?;
        Ok(reply(&Reply::Heard(heard), &[])?)
    }
}

/// The probability of a token.
pub fn probability(logits: &[f32], token: usize) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
    let logit = logits.get(token);
    logit.map_or(0.0, |logit| (logit - most).exp() / sum)
}

/// Copies of a word, and of a phrase of three tokens or more, that nobody says one after the other: whoever writes them has
/// lost the thread and does not find it again.
pub const LOST: [usize; 2] = [12, 8];

/// Where the last tokens repeat themselves as often as this, a word or two and a longer phrase: how many of them belong to
/// no more than one repetition.
pub fn repeats(tokens: &[u32], [words, phrases]: [usize; 2]) -> Option<usize> {
    for length in 1..=12 {
        let times = if length < 3 { words } else { phrases };
        let Some(begin) = tokens.len().checked_sub(length * times) else {
            break;
        };
        let tail = &tokens[begin..];
        let (first, rest) = tail.split_at(length);
        if rest.chunks(length).all(|chunk| chunk == first) {
            return Some(begin + length);
        }
    }
    None
}

/// For each frame of so many samples whether there is a voice in it: whether it is louder than a twentieth of the loudest.
pub fn voiced(samples: &[i16], frame: usize) -> Vec<bool> {
    let loudness = |frame: &[i16]| {
        let sum: f64 = frame.iter().map(|&x| f64::from(x).powi(2)).sum();
        (sum / frame.len().max(1) as f64).sqrt()
    };
    let loud: Vec<f64> = samples.chunks(frame).map(loudness).collect();
    let least = loud.iter().copied().fold(0.0, f64::max) / 20.0;
    loud.into_iter().map(|loud| loud >= least).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_without_end_is_cut_to_one() {
        assert_eq!(repeats(&[1, 2, 3, 4, 5], LOST), None);
        let word = [&[9][..], &[7; 12]].concat();
        assert_eq!(repeats(&word, LOST), Some(2));
        let phrase = [&[9][..], &[1, 2, 3].repeat(8)].concat();
        assert_eq!(repeats(&phrase, LOST), Some(4));
        // People laugh, and sing.
        for said in [&word[..8], &phrase[..13], &[1, 5].repeat(7)] {
            assert_eq!(repeats(said, LOST), None);
        }
    }
}
