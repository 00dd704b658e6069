//! Moonshine, by Useful Sensors: an English recogniser whose cost grows with the utterance, from its maker's own networks
//! (`encoder_model.ort`, `decoder_model_merged.ort`) and `tokenizer.bin`. It says neither where words are nor whether
//! anybody spoke; the places of words are spread over the utterance by their length.

use std::path::Path;

use crate::onnx::{Input, Network, Runtime, Value, tensor};
use crate::recogniser::{Heard, HeardWord, Hearing, RATE_HZ, Recogniser, repeats};
use crate::worker::SpeechError;

const BEGIN: u32 = 1;
const END: u32 = 2;
/// Layers of the decoder, heads of each and their width: of the size "tiny".
const LAYERS: usize = 6;
const HEADS: usize = 8;
const HEAD: usize = 36;
/// The most tokens of a vocabulary.
const MAX_TOKENS: usize = 100_000;
/// Nobody says more tokens in a second.
const TOKENS_PER_SECOND: f64 = 7.5;
/// The encoder needs a quarter of a second.
const SHORTEST: usize = RATE_HZ / 2;
/// What begins a word in the tokeniser's spelling.
const SPACE: &str = "\u{2581}";
/// Words that are as unlikely as these are no words.
const NONSENSE: f32 = -1.6;

/// A loaded model.
#[derive(Debug)]
pub struct Moonshine {
    encoder: Network,
    decoder: Network,
    tokens: Vec<Box<[u8]>>,
    /// The values that the decoder keeps: what goes in, what comes out, and whether it is of the decoder's own tokens.
    kept: Vec<(String, String, bool)>,
}

impl Moonshine {
    /// Loads the files of a folder.
    pub fn load(runtime: &Runtime, folder: &Path) -> Result<Self, SpeechError> {
        let file = folder.join("tokenizer.bin");
        let failed = |cause: String| SpeechError::File {
            file: file.display().to_string(),
            cause,
        };
        let bytes = std::fs::read(&file).map_err(|error| failed(error.to_string()))?;
        let tokens = tokens(&bytes).ok_or_else(|| failed("it is no tokenizer".to_owned()))?;
        let encoder = Network::load(runtime, &folder.join("encoder_model.ort"))?;
        encoder.expect(&["input_values", "attention_mask"], &["last_hidden_state"])?;
        let decoder = Network::load(runtime, &folder.join("decoder_model_merged.ort"))?;
        decoder.expect(
            &["input_ids", "encoder_hidden_states", "use_cache_branch"],
            &["logits"],
        )?;
        let mut kept = Vec::with_capacity(4 * LAYERS);
        for layer in 0..LAYERS {
            for (side, own) in [("decoder", true), ("encoder", false)] {
                for part in ["key", "value"] {
                    kept.push((
                        format!("past_key_values.{layer}.{side}.{part}"),
                        format!("present.{layer}.{side}.{part}"),
                        own,
                    ));
                }
            }
        }
        Ok(Self {
            encoder,
            decoder,
            tokens,
            kept,
        })
    }

    fn decode(&mut self, sound: &[f32], most: usize) -> Result<(Vec<u32>, Vec<f32>), SpeechError> {
        let mask = vec![1i64; sound.len()];
        let inputs = vec![
            ("input_values", Input::of(&[1, sound.len()], sound)?),
            ("attention_mask", Input::of(&[1, sound.len()], &mask)?),
        ];
        let states = self.encoder.run(inputs)?.take("last_hidden_state")?;
        let (shape, _) = tensor::<f32>(&states)?;
        let places = shape.get(1).copied().unwrap_or_default();
        let mask = vec![1i64; places];
        let mut past: Vec<Value> = Vec::with_capacity(self.kept.len());
        for (_, _, own) in &self.kept {
            let length = if *own { 0 } else { places };
            past.push(Value::zeros(&[1, HEADS, length, HEAD])?);
        }
        let (mut tokens, mut likely) = (Vec::new(), Vec::new());
        let mut last = BEGIN;
        let mut again = false;
        while tokens.len() < most {
            let ids = [i64::from(last)];
            let mut inputs = vec![
                ("encoder_attention_mask", Input::of(&[1, places], &mask)?),
                ("input_ids", Input::of(&[1, 1], &ids)?),
                ("encoder_hidden_states", Input::again(&states)),
                ("use_cache_branch", Input::new(&[1], vec![again])?),
            ];
            for ((name, _, _), value) in self.kept.iter().zip(&past) {
                inputs.push((name, Input::again(value)));
            }
            let mut outputs = self.decoder.run(inputs)?;
            let logits = outputs.take("logits")?;
            for ((_, name, own), value) in self.kept.iter().zip(&mut past) {
                // What it computed of the sound comes with the first token only.
                if *own || !again {
                    *value = outputs.take(name)?;
                }
            }
            let (_, logits) = tensor::<f32>(&logits)?;
            let (token, probability) = likeliest(logits);
            if token == END {
                break;
            }
            tokens.push(token);
            likely.push(probability);
            if let Some(keep) = repeats(&tokens) {
                tokens.truncate(keep);
                likely.truncate(keep);
                break;
            }
            (last, again) = (token, true);
        }
        Ok((tokens, likely))
    }

    fn text(&self, tokens: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &token in tokens {
            bytes.extend(self.tokens.get(token as usize).into_iter().flatten());
        }
        let text = String::from_utf8_lossy(&bytes).replace(SPACE, " ");
        text.trim().to_owned()
    }
}

impl Recogniser for Moonshine {
    fn hear(&mut self, samples: &[i16], hearing: &Hearing) -> Result<Heard, SpeechError> {
        if !matches!(hearing.language.as_str(), "" | "en") {
            return Err(SpeechError::Request(format!(
                "it does not know the language {:?}",
                hearing.language
            )));
        }
        let mut sound: Vec<f32> = samples.iter().map(|&x| f32::from(x) / 32_768.0).collect();
        sound.resize(sound.len().max(SHORTEST), 0.0);
        let seconds = samples.len() as f64 / RATE_HZ as f64;
        let most = (seconds * TOKENS_PER_SECOND) as usize + 4;
        let (tokens, likely) = self.decode(&sound, most)?;
        let log: f32 = likely.iter().map(|p| p.max(1e-9).ln()).sum();
        let mean = log / likely.len().max(1) as f32;
        let language = "en".to_owned();
        let text = self.text(&tokens);
        if text.is_empty() || mean < NONSENSE {
            return Ok(Heard {
                language,
                ..Heard::default()
            });
        }
        let confidence = mean.exp().clamp(0.0, 1.0);
        let words = if hearing.partial {
            Vec::new()
        } else {
            spread(&text, seconds, confidence)
        };
        Ok(Heard {
            text,
            language,
            words,
            tokens,
            confidence,
            no_speech: 0.0,
        })
    }
}

/// Words over the time of an utterance, each as long as its letters and a space are of all.
fn spread(text: &str, seconds: f64, confidence: f32) -> Vec<HeardWord> {
    let size = |word: &str| word.chars().count() as f64 + 1.0;
    let total: f64 = text.split_whitespace().map(size).sum();
    let mut at = 0.0;
    text.split_whitespace()
        .map(|word| {
            let start = at;
            at += seconds * size(word) / total;
            HeardWord {
                word: word.to_owned(),
                start,
                end: at,
                confidence,
            }
        })
        .collect()
}

/// Each token is preceded by its length: a byte, or two where the first is 128 or more.
fn tokens(mut bytes: &[u8]) -> Option<Vec<Box<[u8]>>> {
    let mut tokens = Vec::new();
    while let [first, rest @ ..] = bytes {
        let (length, rest) = match rest {
            [second, rest @ ..] if *first >= 128 => {
                (usize::from(*first) - 128 + 128 * usize::from(*second), rest)
            }
            _ => (usize::from(*first), rest),
        };
        let (token, rest) = rest.split_at_checked(length)?;
        tokens.push(token.into());
        bytes = rest;
        if tokens.len() > MAX_TOKENS {
            return None;
        }
    }
    (tokens.len() > END as usize).then_some(tokens)
}

fn likeliest(logits: &[f32]) -> (u32, f32) {
    let mut best = (END as usize, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    let sum: f32 = logits.iter().map(|logit| (logit - best.1).exp()).sum();
    (best.0 as u32, 1.0 / sum)
}
