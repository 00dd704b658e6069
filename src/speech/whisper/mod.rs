//! Whisper, in sizes from tiny to small: OpenAI's recogniser for English or a hundred languages, from weights in
//! CTranslate2's layout. An utterance is heard whole; its window is as long as the utterance and a little silence, not
//! thirty seconds.

mod network;
mod weights;
mod words;

use std::path::Path;

use crate::mel;
use crate::onnx::{Input, Network, OnnxError, Runtime, Value, tensor};
use crate::recogniser::{Heard, Hearing, RATE_HZ, Recogniser, probability, repeats};
use crate::tokens::Vocabulary;
use crate::worker::SpeechError;
use network::Sizes;
use weights::Weights;
use words::Attention;

/// Silence behind an utterance: short windows are unlike anything that the model was trained on, and without silence it
/// says sentences twice (benches/RESULTS.md, "Ears").
const SILENCE: usize = 3 * RATE_HZ;
/// The shortest window.
const SHORTEST: usize = 10 * RATE_HZ;
/// The longest window.
const LONGEST: usize = 30 * RATE_HZ;
/// Samples of a position of the encoder.
const POSITION: usize = 2 * mel::HOP;
/// Nobody says more tokens in a second.
const TOKENS_PER_SECOND: usize = 9;
/// Nor are keyterms worth more than these.
const MAX_KEYTERM_TOKENS: usize = 96;
/// An utterance is noise where nobody spoke with this probability and the words are not likely either.
const NO_SPEECH: f32 = 0.5;
const UNLIKELY: f32 = -1.0;
/// Words that are as unlikely as these are no words, whoever spoke.
const NONSENSE: f32 = -2.2;

/// The tokens that are no text.
#[derive(Debug, Clone, Copy)]
struct Special {
    end: u32,
    start: u32,
    transcribe: u32,
    previous: u32,
    no_speech: u32,
    no_timestamps: u32,
    /// The first language and how many there are; none of a model for English alone.
    languages: (u32, u32),
}

impl Special {
    /// They follow the text, one later where there are languages.
    fn of(vocabulary: usize) -> Self {
        let multilingual = vocabulary == 51_865;
        let end = if multilingual { 50_257 } else { 50_256 };
        Self {
            end,
            start: end + 1,
            transcribe: end + 102,
            previous: end + 104,
            no_speech: end + 105,
            no_timestamps: end + 106,
            languages: (end + 2, if multilingual { 99 } else { 0 }),
        }
    }
}

/// What `config.json` says.
#[derive(serde::Deserialize)]
struct Config {
    /// Heads that attend to where a word is: layer and head.
    alignment_heads: Vec<[usize; 2]>,
    /// Tokens that are not written.
    #[serde(default)]
    suppress_ids: Vec<u32>,
    #[serde(default)]
    suppress_ids_begin: Vec<u32>,
}

/// A loaded model.
#[derive(Debug)]
pub struct Whisper {
    weights: Weights,
    sizes: Sizes,
    special: Special,
    vocabulary: Vocabulary,
    encoder: Network,
    decoder: Network,
    positions: Vec<f32>,
    token_positions: Vec<f32>,
    /// Layers whose attention shows where words are, and the heads of each.
    alignment: Vec<(usize, Vec<usize>)>,
    names: Vec<LayerNames>,
    suppressed: Vec<bool>,
    suppressed_first: Vec<u32>,
}

/// The names of a layer's values.
#[derive(Debug)]
struct LayerNames {
    key: String,
    value: String,
    cross_key: String,
    cross_value: String,
    next_key: String,
    next_value: String,
}

/// The decoder in the middle of an utterance.
struct Decoding {
    cross: Vec<(Value, Value)>,
    past: Vec<(Value, Value)>,
    length: usize,
    attention: Vec<Vec<f32>>,
    positions: usize,
}

impl Decoding {
    /// Where the decoder listened after a token, as a position of the encoder.
    fn place(&self, token: usize) -> f32 {
        let mut sum = 0.0;
        for rows in &self.attention {
            let row = rows.chunks(self.positions).nth(token).unwrap_or_default();
            let total: f32 = row.iter().sum();
            let at = row
                .iter()
                .enumerate()
                .map(|(at, weight)| at as f32 * weight);
            sum += at.sum::<f32>() / total.max(f32::MIN_POSITIVE);
        }
        sum / self.attention.len().max(1) as f32
    }
}

/// Short windows make the model say a sentence twice. How many tokens are said once, where the last ones repeat those
/// before them and the decoder has gone back to the sound of those: people who repeat themselves move on.
fn heard_again(tokens: &[u32], place: impl Fn(usize) -> f32) -> Option<usize> {
    for length in 3..=tokens.len() / 2 {
        let second = tokens.len() - length;
        let first = second - length;
        if tokens[first..second] != tokens[second..] {
            continue;
        }
        let mean = |from: usize| (from..from + length).map(&place).sum::<f32>() / length as f32;
        if mean(second) <= mean(first) + length as f32 {
            return Some(second);
        }
    }
    None
}

impl Whisper {
    /// Loads `model.bin`, `vocabulary.txt` and `config.json` of a folder.
    pub fn load(runtime: &Runtime, folder: &Path) -> Result<Self, SpeechError> {
        let weights = Weights::open(&folder.join("model.bin"))?;
        let sizes = Sizes::of(&weights)?;
        let vocabulary = Vocabulary::load(&folder.join("vocabulary.txt"))?;
        let file = folder.join("config.json");
        let failed = |cause: String| SpeechError::File {
            file: file.display().to_string(),
            cause,
        };
        let config = std::fs::read(&file).map_err(|error| failed(error.to_string()))?;
        let config: Config =
            serde_json::from_slice(&config).map_err(|error| failed(error.to_string()))?;
        let special = Special::of(sizes.vocabulary);
        if vocabulary.number("<|startoftranscript|>") != Some(special.start) {
            return Err(failed("the vocabulary is not Whisper's".to_owned()));
        }
        let mut alignment: Vec<(usize, Vec<usize>)> = Vec::new();
        for [layer, head] in config.alignment_heads {
            if layer >= sizes.decoder_layers || head >= sizes.heads {
                return Err(failed(format!("there is no head {head} in layer {layer}")));
            }
            match alignment.iter_mut().find(|(known, _)| *known == layer) {
                Some((_, heads)) => heads.push(head),
                None => alignment.push((layer, vec![head])),
            }
        }
        let mut suppressed = vec![false; sizes.vocabulary];
        // Nothing that is no text, but for the end.
        let never = special.end as usize + 1..sizes.vocabulary;
        let listed = config.suppress_ids.iter().map(|&token| token as usize);
        for token in never.chain(listed) {
            if let Some(suppressed) = suppressed.get_mut(token) {
                *suppressed = true;
            }
        }
        let shows: Vec<usize> = alignment.iter().map(|(layer, _)| *layer).collect();
        let encoder = Network::from_bytes(runtime, &network::encoder(&weights, sizes)?)?;
        let decoder = Network::from_bytes(runtime, &network::decoder(&weights, sizes, &shows)?)?;
        let table = |name: &str, rows| weights.tensor(name, &[rows, sizes.width]);
        let positions = table("encoder/position_encodings/encodings", sizes.positions)?;
        let token_positions = table("decoder/position_encodings/encodings", sizes.context)?;
        let names = (0..sizes.decoder_layers)
            .map(|layer| LayerNames {
                key: format!("key_{layer}"),
                value: format!("value_{layer}"),
                cross_key: format!("cross_key_{layer}"),
                cross_value: format!("cross_value_{layer}"),
                next_key: format!("next_key_{layer}"),
                next_value: format!("next_value_{layer}"),
            })
            .collect();
        Ok(Self {
            positions,
            token_positions,
            sizes,
            special,
            vocabulary,
            encoder,
            decoder,
            alignment,
            names,
            suppressed,
            suppressed_first: config.suppress_ids_begin,
            weights,
        })
    }

    fn encode(&mut self, samples: &[i16]) -> Result<Decoding, SpeechError> {
        let window = (samples.len() + SILENCE).clamp(SHORTEST, LONGEST);
        let positions = (window.div_ceil(POSITION)).min(self.sizes.positions);
        let mut sound = vec![0f32; positions * POSITION];
        for (to, sample) in sound.iter_mut().zip(samples) {
            *to = f32::from(*sample) / 32_768.0;
        }
        let mut mel = mel::log_mel(&sound);
        mel.normalise();
        let encoded = &self.positions[..positions * self.sizes.width];
        let inputs = vec![
            (
                "mel",
                Input::of(&[1, self.sizes.bands, mel.frames], &mel.data)?,
            ),
            (
                "positions",
                Input::of(&[1, positions, self.sizes.width], encoded)?,
            ),
        ];
        let mut outputs = self.encoder.run(inputs)?;
        let mut cross = Vec::with_capacity(self.names.len());
        let mut past = Vec::with_capacity(self.names.len());
        let (heads, head) = (self.sizes.heads, self.sizes.head());
        for names in &self.names {
            cross.push((
                outputs.take(&names.cross_key)?,
                outputs.take(&names.cross_value)?,
            ));
            past.push((
                Value::zeros(&[1, heads, head, 0])?,
                Value::zeros(&[1, heads, 0, head])?,
            ));
        }
        Ok(Decoding {
            cross,
            past,
            length: 0,
            attention: vec![Vec::new(); self.alignment.iter().map(|(_, heads)| heads.len()).sum()],
            positions,
        })
    }

    /// Decodes further tokens: the logits after each of them.
    fn decode(&mut self, decoding: &mut Decoding, tokens: &[u32]) -> Result<Vec<f32>, SpeechError> {
        let width = self.sizes.width;
        let (n, total) = (tokens.len(), decoding.length + tokens.len());
        let mut x = Vec::with_capacity(n * width);
        for (at, &token) in tokens.iter().enumerate() {
            let row = self
                .weights
                .row("decoder/embeddings/weight", token as usize)?;
            let position = (decoding.length + at) * width;
            let position = self
                .token_positions
                .get(position..position + width)
                .ok_or_else(|| {
                    SpeechError::Request("the utterance has too many tokens".to_owned())
                })?;
            x.extend(row.iter().zip(position).map(|(x, p)| x + p));
        }
        let mut mask = vec![0f32; n * total];
        for (at, row) in mask.chunks_mut(total).enumerate() {
            row[decoding.length + at + 1..].fill(f32::MIN);
        }
        let mut inputs = vec![
            ("x", Input::of(&[1, n, width], &x)?),
            ("mask", Input::of(&[n, total], &mask)?),
        ];
        let layers = self.names.iter().zip(&decoding.cross).zip(&decoding.past);
        for ((names, cross), past) in layers {
            inputs.push((&names.key, Input::again(&past.0)));
            inputs.push((&names.value, Input::again(&past.1)));
            inputs.push((&names.cross_key, Input::again(&cross.0)));
            inputs.push((&names.cross_value, Input::again(&cross.1)));
        }
        let mut outputs = self.decoder.run(inputs)?;
        let mut past = Vec::with_capacity(self.names.len());
        for names in &self.names {
            past.push((
                outputs.take(&names.next_key)?,
                outputs.take(&names.next_value)?,
            ));
        }
        decoding.past = past;
        decoding.length = total;
        let mut kept = decoding.attention.iter_mut();
        for (layer, heads) in &self.alignment {
            let value = outputs.take(&format!("attention_{layer}"))?;
            let (_, weights) = tensor::<f32>(&value)?;
            let size = n * decoding.positions;
            for (&head, kept) in heads.iter().zip(&mut kept) {
                kept.extend(
                    weights
                        .get(head * size..(head + 1) * size)
                        .unwrap_or_default(),
                );
            }
        }
        let logits = outputs.take("logits")?;
        let (_, logits) = tensor::<f32>(&logits)?;
        if logits.len() != n * self.sizes.vocabulary {
            return Err(OnnxError::Run("the decoder answers in another size".to_owned()).into());
        }
        Ok(logits.to_vec())
    }

    /// The likeliest token that may be written, and its probability among all.
    fn choose(&self, logits: &[f32], first: bool) -> (u32, f32) {
        let mut best = (self.special.end as usize, f32::NEG_INFINITY);
        for (token, (&logit, &suppressed)) in logits.iter().zip(&self.suppressed).enumerate() {
            let suppressed = suppressed
                || first
                    && self.suppressed_first.contains(&(token as u32))
                    && token != self.special.end as usize;
            if logit > best.1 && !suppressed {
                best = (token, logit);
            }
        }
        (best.0 as u32, probability(logits, best.0))
    }

    /// The token of the language: as asked for, or the likeliest of those that may be spoken.
    fn language(
        &mut self,
        decoding: &mut Decoding,
        hearing: &Hearing,
    ) -> Result<Option<u32>, SpeechError> {
        let (first, count) = self.special.languages;
        if count == 0 {
            return Ok(None);
        }
        let named = |language: &String| self.vocabulary.number(&format!("<|{language}|>"));
        if !hearing.language.is_empty() {
            return named(&hearing.language).map(Some).ok_or_else(|| {
                SpeechError::Request(format!(
                    "it does not know the language {:?}",
                    hearing.language
                ))
            });
        }
        let mut among: Vec<u32> = hearing.languages.iter().filter_map(named).collect();
        if among.is_empty() {
            among = (first..first + count).collect();
        }
        let logits = self.decode(decoding, &[self.special.start])?;
        let likeliest = among.into_iter().max_by(|&a, &b| {
            let logit = |token: u32| logits.get(token as usize).copied().unwrap_or(f32::MIN);
            logit(a).total_cmp(&logit(b))
        });
        // The text is decoded from the beginning again.
        let (heads, head) = (self.sizes.heads, self.sizes.head());
        for past in &mut decoding.past {
            *past = (
                Value::zeros(&[1, heads, head, 0])?,
                Value::zeros(&[1, heads, 0, head])?,
            );
        }
        decoding.length = 0;
        decoding.attention.iter_mut().for_each(Vec::clear);
        Ok(likeliest)
    }

    fn language_name(&self, token: u32) -> String {
        let name = self.vocabulary.text(&[token]);
        name.trim_matches(['<', '|', '>']).to_owned()
    }

    /// Keyterms as what was said before, which makes them likelier.
    fn keyterms(&self, keyterms: &[String]) -> Vec<u32> {
        if keyterms.is_empty() {
            return Vec::new();
        }
        let mut tokens = self
            .vocabulary
            .encode(&format!(" {}.", keyterms.join(", ")));
        tokens.truncate(MAX_KEYTERM_TOKENS);
        tokens
    }
}

impl Recogniser for Whisper {
    fn hear(&mut self, samples: &[i16], hearing: &Hearing) -> Result<Heard, SpeechError> {
        let samples = &samples[..samples.len().min(LONGEST - SILENCE)];
        let mut decoding = self.encode(samples)?;
        let language = self.language(&mut decoding, hearing)?;
        let mut prompt = Vec::new();
        let keyterms = self.keyterms(&hearing.keyterms);
        if !keyterms.is_empty() {
            prompt.push(self.special.previous);
            prompt.extend(keyterms);
        }
        let start = prompt.len();
        prompt.push(self.special.start);
        if let Some(language) = language {
            prompt.extend([language, self.special.transcribe]);
        }
        prompt.push(self.special.no_timestamps);
        let begins = prompt.len();
        let text = |token: &&u32| **token < self.special.end;
        let prefix: Vec<u32> = hearing.prefix.iter().filter(text).copied().collect();
        prompt.extend(&prefix[..prefix.len().min(64)]);

        let logits = self.decode(&mut decoding, &prompt)?;
        let row = |row: usize| {
            let width = self.sizes.vocabulary;
            logits.get(row * width..(row + 1) * width).unwrap_or(&[])
        };
        let no_speech = probability(row(start), self.special.no_speech as usize);
        let mut tokens: Vec<u32> = prompt[begins..].to_vec();
        let mut probabilities: Vec<f32> = tokens
            .iter()
            .enumerate()
            .map(|(at, &token)| probability(row(begins + at - 1), token as usize))
            .collect();
        let mut next = row(prompt.len() - 1).to_vec();
        let most = samples.len() * TOKENS_PER_SECOND / RATE_HZ + 12;
        let most = most.min(self.sizes.context - prompt.len() - 1);
        while tokens.len() < most {
            let (token, likely) = self.choose(&next, tokens.is_empty());
            if token == self.special.end {
                break;
            }
            tokens.push(token);
            probabilities.push(likely);
            if let Some(keep) = repeats(&tokens) {
                tokens.truncate(keep);
                probabilities.truncate(keep);
                break;
            }
            next = self.decode(&mut decoding, &[token])?;
            if let Some(keep) = heard_again(&tokens, |token| decoding.place(begins + token)) {
                tokens.truncate(keep);
                probabilities.truncate(keep);
                break;
            }
        }
        let log: f32 = probabilities.iter().map(|p| p.max(1e-9).ln()).sum();
        let mean = log / probabilities.len().max(1) as f32;
        let noise = (no_speech > NO_SPEECH && mean < UNLIKELY) || mean < NONSENSE;
        let language = language.map_or_else(|| "en".to_owned(), |token| self.language_name(token));
        if noise || tokens.is_empty() {
            return Ok(Heard {
                language,
                no_speech,
                ..Heard::default()
            });
        }
        let words = if hearing.partial {
            Vec::new()
        } else {
            let attention = attention(&decoding, begins - 1, tokens.len() + 1, samples.len());
            let spaced = !matches!(language.as_str(), "zh" | "ja" | "th" | "lo" | "my");
            words::words(
                &self.vocabulary,
                &tokens,
                &probabilities,
                &attention,
                spaced,
            )
        };
        Ok(Heard {
            text: self.vocabulary.text(&tokens).trim().to_owned(),
            confidence: mean.exp().clamp(0.0, 1.0),
            words,
            tokens,
            language,
            no_speech,
        })
    }
}

/// The attention of the last tokens, to where there was sound.
fn attention(decoding: &Decoding, skip: usize, tokens: usize, samples: usize) -> Attention {
    let all = decoding.positions;
    let positions = samples.div_ceil(POSITION).min(all);
    let heads = decoding
        .attention
        .iter()
        .map(|rows| {
            rows.chunks(all)
                .skip(skip)
                .take(tokens)
                .flat_map(|row| &row[..positions.min(row.len())])
                .copied()
                .collect()
        })
        .collect();
    Attention { heads, positions }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_sentence_that_is_heard_again_is_said_once_and_one_that_is_repeated_twice() {
        let tokens = [1, 2, 3, 4, 1, 2, 3, 4];
        let back = [10.0, 20.0, 30.0, 40.0, 10.0, 20.0, 30.0, 40.0];
        assert_eq!(heard_again(&tokens, |token| back[token]), Some(4));
        assert_eq!(heard_again(&tokens, |token| token as f32 * 10.0), None);
        assert_eq!(heard_again(&tokens[..7], |token| back[token]), None);
    }

    #[test]
    fn nothing_silence_and_noise_are_no_words() {
        let folder = testing::model("whisper-tiny.en");
        let mut model = Whisper::load(&testing::runtime(), &folder).unwrap();
        for samples in [vec![], vec![0; 160], vec![0; 32_000]] {
            let heard = model.hear(&samples, &Hearing::default()).unwrap();
            assert_eq!(
                (heard.text.as_str(), heard.words.len()),
                ("", 0),
                "{heard:?}"
            );
        }
    }
}
