//! Moonshine, by Useful Sensors: an English recogniser whose cost grows with the utterance, from its maker's own networks
//! (`encoder_model.ort`, `decoder_model_merged.ort`) and `tokenizer.bin`. It says neither where words are nor whether
//! anybody spoke; the places of words are spread over the utterance by their length.

use std::path::Path;

use crate::onnx::{Input, Network, Runtime, Value, tensor};
use crate::recogniser::{
    Heard, HeardWord, Hearing, LOST, RATE_HZ, Recogniser, probability, repeats, voiced,
};
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
/// Samples over which loudness is judged.
const FRAME: usize = RATE_HZ / 50;
/// What begins a word in the tokeniser's spelling.
const SPACE: &str = "\u{2581}";
/// Words that are as unlikely as these, 0.4 each, are no words: in noise of voices more of them are invented than heard,
/// and without noise nothing that is right is as unlikely (measured by `benches/ears`).
const NONSENSE: f32 = -0.92;
/// Copies of a word, and of a longer phrase, with which a text that has no end is no text any more.
const ENDLESS: [usize; 2] = [6, 4];

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

    /// Tokens, each with its probability. They begin with `prefix`.
    fn decode(
        &mut self,
        sound: &[f32],
        prefix: &[u32],
        most: usize,
    ) -> Result<(Vec<u32>, Vec<f32>), SpeechError> {
        let mask = vec![1i64; sound.len()];
        let inputs = vec![
            ("input_values", Input::of(&[1, sound.len()], sound)?),
            ("attention_mask", Input::of(&[1, sound.len()], &mask)?),
        ];
        let states = self.encoder.run(inputs)?.take("last_hidden_state")?;
        let (shape, _) = tensor::<f32>(&states)?;
        let places = shape.get(1).copied().unwrap_or_default();
        let mut past: Vec<Value> = Vec::with_capacity(self.kept.len());
        for (_, _, own) in &self.kept {
            let length = if *own { 0 } else { places };
            past.push(Value::zeros(&[1, HEADS, length, HEAD])?);
        }
        let (mut tokens, mut likely) = (prefix.to_vec(), Vec::new());
        let mut ids: Vec<i64> = vec![BEGIN.into()];
        ids.extend(prefix.iter().map(|&token| i64::from(token)));
        let mut again = false;
        while tokens.len() < most {
            let mut inputs = vec![
                // In samples: the decoder thins it out itself, as the encoder thinned out the sound.
                (
                    "encoder_attention_mask",
                    Input::of(&[1, sound.len()], &mask)?,
                ),
                ("input_ids", Input::of(&[1, ids.len()], &ids)?),
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
            let mut rows = logits.chunks((logits.len() / ids.len()).max(1));
            for &token in prefix.iter().filter(|_| !again) {
                likely.push(
                    rows.next()
                        .map_or(0.0, |row| probability(row, token as usize)),
                );
            }
            let (token, probability) = likeliest(rows.next().unwrap_or_default());
            if token == END {
                break;
            }
            tokens.push(token);
            likely.push(probability);
            // A repetition from which it finds its way back may have been said.
            let often = if tokens.len() < most { LOST } else { ENDLESS };
            if let Some(keep) = repeats(&tokens, often) {
                tokens.truncate(keep);
                likely.truncate(keep);
                break;
            }
            (ids, again) = (vec![token.into()], true);
        }
        Ok((tokens, likely))
    }

    /// The words of tokens, each with the least likely of its tokens.
    fn words(&self, tokens: &[u32], likely: &[f32]) -> Vec<(String, f32)> {
        let mut words: Vec<(Vec<u8>, f32)> = Vec::new();
        for (&token, &likely) in tokens.iter().zip(likely) {
            let Some(bytes) = self.tokens.get(token as usize) else {
                continue;
            };
            match (bytes.strip_prefix(SPACE.as_bytes()), words.last_mut()) {
                (None, Some((word, least))) => {
                    word.extend(bytes);
                    *least = least.min(likely);
                }
                (None, None) => words.push((bytes.to_vec(), likely)),
                (Some(bytes), _) => words.push((bytes.to_vec(), likely)),
            }
        }
        let text = |bytes: Vec<u8>| {
            let text = String::from_utf8_lossy(&bytes).replace(SPACE, " ");
            text.trim().to_owned()
        };
        let words = words.into_iter().map(|(word, least)| (text(word), least));
        words.filter(|(word, _)| !word.is_empty()).collect()
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
        let known = |token: &&u32| (**token as usize) < self.tokens.len() && **token > END;
        let prefix: Vec<u32> = hearing.prefix.iter().filter(known).copied().collect();
        let (tokens, likely) = self.decode(&sound, &prefix[..prefix.len().min(most / 2)], most)?;
        let log: f32 = likely.iter().map(|p| p.max(1e-9).ln()).sum();
        let mean = log / likely.len().max(1) as f32;
        let language = "en".to_owned();
        let said = self.words(&tokens, &likely);
        let text: Vec<&str> = said.iter().map(|(word, _)| word.as_str()).collect();
        let text = text.join(" ");
        if mean < NONSENSE || is_invented(&text, mean.exp()) {
            return Ok(Heard {
                language,
                ..Heard::default()
            });
        }
        let confidence = mean.exp().clamp(0.0, 1.0);
        let words = if hearing.partial {
            Vec::new()
        } else {
            spread(&said, &voice(samples))
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

/// Whether nobody said this: what the model writes of noise, tones and breath (benches/RESULTS.md, "Ears"). It was trained on
/// films and their subtitles.
fn is_invented(text: &str, confidence: f32) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    // Whoever says no more than "you" is written with a full stop.
    let known = text == "You" || text.starts_with("Thank you for watching");
    let again = (3..=words.len() / 2).any(|length| {
        let phrases = words.windows(2 * length);
        phrases
            .into_iter()
            .any(|both| both[..length] == both[length..])
    });
    !text.chars().any(char::is_alphanumeric) || known || (again && confidence < 0.7)
}

/// The seconds at which each stretch of 20 ms with a voice in it begins.
fn voice(samples: &[i16]) -> Vec<f64> {
    let frames = voiced(samples, FRAME).into_iter().enumerate();
    frames
        .filter(|(_, voiced)| *voiced)
        .map(|(at, _)| (at * FRAME) as f64 / RATE_HZ as f64)
        .collect()
}

/// Words over where there is a voice, each as long as its letters and a space are of all: the model does not say where
/// they are.
fn spread(words: &[(String, f32)], voiced: &[f64]) -> Vec<HeardWord> {
    let size = |word: &str| word.chars().count() + 1;
    let total: usize = words.iter().map(|(word, _)| size(word)).sum();
    let place = |letters: usize| {
        let at = (letters * voiced.len()) / total.max(1);
        voiced.get(at.min(voiced.len().saturating_sub(1))).copied()
    };
    let mut letters = 0;
    words
        .iter()
        .map(|(word, confidence)| {
            let start = place(letters).unwrap_or_default();
            letters += size(word);
            // The sound before the next word is still this one's.
            let last = place(letters.saturating_sub(1)).unwrap_or_default();
            HeardWord {
                word: word.clone(),
                start,
                end: (last + FRAME as f64 / RATE_HZ as f64).max(start),
                confidence: *confidence,
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
    (best.0 as u32, probability(logits, best.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_tokenizer_cut_anywhere_is_an_error_or_shorter_and_no_panic() {
        let whole = std::fs::read(testing::model("moonshine-tiny-en/tokenizer.bin")).unwrap();
        assert_eq!(tokens(&whole).unwrap().len(), 32_768);
        for length in [0, 1, 5, 6, 1000, whole.len() - 1] {
            let cut = tokens(&whole[..length]);
            assert!(cut.is_none_or(|tokens| tokens.len() < 32_768));
        }
    }

    #[test]
    fn words_are_where_there_is_a_voice() {
        let loud = [vec![0i16; 16_000], vec![9_000; 16_000]].concat();
        let said = [("one".to_owned(), 0.5), ("two".to_owned(), 0.75)];
        let words = spread(&said, &voice(&loud));
        let places: Vec<_> = words.iter().map(|word| (word.start, word.end)).collect();
        assert!(places[0].0 >= 1.0 && places[0].1 <= 1.5, "{places:?}");
        assert!(places[1].0 >= 1.49 && places[1].1 <= 2.0, "{places:?}");
        assert_eq!(spread(&said, &[]).len(), 2);
    }

    #[test]
    fn of_sentences_that_a_human_reads_nineteen_words_of_twenty_are_heard() {
        let folder = testing::model("moonshine-tiny-en");
        let mut model = Moonshine::load(&testing::runtime(), &folder).unwrap();
        let (mut all, mut wrong) = (0, 0);
        for (samples, said) in testing::sentences() {
            let heard = model.hear(&samples, &Hearing::default()).unwrap();
            all += said.len();
            wrong += testing::words_wrong(&said, &testing::words(&heard.text));
        }
        assert!(all >= 60 && wrong * 20 <= all, "{wrong} of {all} words");
    }

    #[test]
    fn an_utterance_of_any_length_is_heard() {
        let folder = testing::model("moonshine-tiny-en");
        let mut model = Moonshine::load(&testing::runtime(), &folder).unwrap();
        for seconds in [1, 9, 10, 20, 29] {
            let buzz = (0..seconds * RATE_HZ as i32).map(|at| (at % 133 * 40 - 2_660) as i16);
            let heard = model.hear(&buzz.collect::<Vec<_>>(), &Hearing::default());
            assert!(heard.is_ok(), "{seconds} s: {heard:?}");
        }
    }

    #[test]
    fn what_is_written_of_noise_is_no_text() {
        for text in [
            "♪",
            "You",
            "Thank you for watching!",
            "I'm going to I'm going to be",
        ] {
            assert!(is_invented(text, 0.5), "{text}");
        }
        for text in [
            "You.",
            "Thank you.",
            "No, no, no.",
            "I'm going to be going to bed",
        ] {
            assert!(!is_invented(text, 0.5), "{text}");
        }
    }

    #[test]
    fn silence_and_noise_and_nothing_do_not_fail() {
        let folder = testing::model("moonshine-tiny-en");
        let mut model = Moonshine::load(&testing::runtime(), &folder).unwrap();
        for samples in [vec![], vec![0; 160], vec![0; 32_000], vec![i16::MIN; 9_000]] {
            let heard = model.hear(&samples, &Hearing::default()).unwrap();
            assert!(heard.words.len() < 10, "{heard:?}");
        }
        let german = Hearing {
            language: "de".to_owned(),
            ..Hearing::default()
        };
        assert!(matches!(
            model.hear(&[0; 1_600], &german),
            Err(SpeechError::Request(_))
        ));
    }
}
