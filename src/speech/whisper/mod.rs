//! Whisper, in sizes from tiny to small: OpenAI's recogniser for English or a hundred languages, from weights in
//! CTranslate2's layout. An utterance is heard whole; its window is as long as the utterance and a little silence, not
//! thirty seconds.

mod network;
mod repetition;
mod weights;
mod words;

use std::path::Path;

use crate::mel;
use crate::onnx::{Input, Network, OnnxError, Runtime, Value, tensor};
use crate::recogniser::{Heard, Hearing, LOST, RATE_HZ, Recogniser, probability, repeats};
use crate::tokens::Vocabulary;
use crate::worker::SpeechError;
use network::Sizes;
use repetition::{Voice, invented};
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
/// Nor is more of an utterance taken from an earlier partial.
const MAX_PREFIX_TOKENS: usize = 64;
/// An utterance is noise where nobody spoke with this probability and the words are not likely either.
const NO_SPEECH: f32 = 0.5;
const UNLIKELY: f32 = -1.0;
/// How often the decoder is sent back to where it began to repeat itself, to say something else there.
const RETRIES: usize = 2;
/// Words that are as unlikely as these are no words, whoever spoke.
const NONSENSE: f32 = -2.2;

/// The tokens that are no text.
#[derive(Debug, Clone, Copy)]
struct Special {
    end: u32,
    start: u32,
    translate: u32,
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
            translate: end + 101,
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
    /// Back to before the first token.
    fn begin_again(&mut self, sizes: Sizes) -> Result<(), SpeechError> {
        let (heads, head) = (sizes.heads, sizes.head());
        self.past.clear();
        for _ in &self.cross {
            self.past.push((
                Value::zeros(&[1, heads, head, 0])?,
                Value::zeros(&[1, heads, 0, head])?,
            ));
        }
        self.length = 0;
        self.attention.iter_mut().for_each(Vec::clear);
        Ok(())
    }
}

/// What the decoder is given before the text.
struct Prompt {
    tokens: Vec<u32>,
    /// Which of them begins the utterance; keyterms come before it.
    start: usize,
}

/// A text as it is decoded: its tokens, each with its probability.
#[derive(Default)]
struct Said {
    tokens: Vec<u32>,
    probabilities: Vec<f32>,
    /// How likely nobody spoke.
    no_speech: f32,
}

impl Said {
    fn truncate(&mut self, tokens: usize) {
        self.tokens.truncate(tokens);
        self.probabilities.truncate(tokens);
    }
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
        for names in &self.names {
            cross.push((
                outputs.take(&names.cross_key)?,
                outputs.take(&names.cross_value)?,
            ));
        }
        Ok(Decoding {
            cross,
            past: Vec::new(),
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
    fn choose(&self, logits: &[f32], first: bool, never: Option<u32>) -> (u32, f32) {
        let mut best = (self.special.end as usize, f32::NEG_INFINITY);
        for (token, (&logit, &suppressed)) in logits.iter().zip(&self.suppressed).enumerate() {
            let suppressed = suppressed
                || never == Some(token as u32)
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
        decoding.begin_again(self.sizes)?;
        let logits = self.decode(decoding, &[self.special.start])?;
        let likeliest = among.into_iter().max_by(|&a, &b| {
            let logit = |token: u32| logits.get(token as usize).copied().unwrap_or(f32::MIN);
            logit(a).total_cmp(&logit(b))
        });
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

    fn prompt(&self, hearing: &Hearing, language: Option<u32>) -> Prompt {
        let mut tokens = Vec::new();
        let keyterms = self.keyterms(&hearing.keyterms);
        if !keyterms.is_empty() {
            tokens.push(self.special.previous);
            tokens.extend(keyterms);
        }
        let start = tokens.len();
        tokens.push(self.special.start);
        if let Some(language) = language {
            let task = if hearing.translate {
                self.special.translate
            } else {
                self.special.transcribe
            };
            tokens.extend([language, task]);
        }
        tokens.push(self.special.no_timestamps);
        Prompt { tokens, start }
    }

    /// Decodes the text behind the prompt, which begins with `prefix`. Where the decoder repeats what it has just written
    /// though nobody said it again, the text ends, or goes on with something else if there is more to hear.
    fn transcribe(
        &mut self,
        decoding: &mut Decoding,
        prompt: &Prompt,
        prefix: Vec<u32>,
        samples: &[i16],
    ) -> Result<Said, SpeechError> {
        let voice = Voice::of(samples, POSITION);
        let most = samples.len() * TOKENS_PER_SECOND / RATE_HZ + 12;
        let most = most.min(self.sizes.context - prompt.tokens.len() - 1);
        let mut said = Said {
            tokens: prefix,
            ..Said::default()
        };
        let mut never = None;
        for attempt in 0..=RETRIES {
            let kept = said.tokens.len();
            let next = self.begin(decoding, prompt, &mut said)?;
            self.go_on(decoding, next, never, most, &mut said)?;
            if never.is_some()
                && mean(said.probabilities.get(kept..).unwrap_or_default()) < UNLIKELY
            {
                said.truncate(kept);
                break;
            }
            let heard = attention(
                decoding,
                prompt.tokens.len() - 1,
                said.tokens.len() + 1,
                samples.len(),
            );
            let starts = words::token_starts(&heard, said.tokens.len() + 1);
            let Some(again) = invented(&self.vocabulary, &said.tokens, &starts, &voice) else {
                break;
            };
            never = said.tokens.get(again).copied();
            said.truncate(again);
            if attempt == RETRIES || !voice.goes_on(starts[again]) {
                break;
            }
        }
        Ok(said)
    }

    /// Feeds the prompt and what is known of the text: the logits of the token behind it.
    fn begin(
        &mut self,
        decoding: &mut Decoding,
        prompt: &Prompt,
        said: &mut Said,
    ) -> Result<Vec<f32>, SpeechError> {
        decoding.begin_again(self.sizes)?;
        let logits = self.decode(decoding, &[&prompt.tokens[..], &said.tokens].concat())?;
        let mut rows = logits.chunks(self.sizes.vocabulary).skip(prompt.start);
        let start = rows.next().unwrap_or_default();
        said.no_speech = probability(start, self.special.no_speech as usize);
        let mut rows = rows.skip(prompt.tokens.len() - prompt.start - 2);
        said.probabilities.clear();
        for (&token, row) in said.tokens.iter().zip(&mut rows) {
            said.probabilities.push(probability(row, token as usize));
        }
        Ok(rows.next().unwrap_or_default().to_vec())
    }

    /// Decodes until the end, or until nobody could have said as much. `never` is not the next token.
    fn go_on(
        &mut self,
        decoding: &mut Decoding,
        mut next: Vec<f32>,
        mut never: Option<u32>,
        most: usize,
        said: &mut Said,
    ) -> Result<(), SpeechError> {
        while said.tokens.len() < most {
            let (token, likely) = self.choose(&next, said.tokens.is_empty(), never.take());
            if token == self.special.end {
                break;
            }
            said.tokens.push(token);
            said.probabilities.push(likely);
            next = self.decode(decoding, &[token])?;
            if repeats(&said.tokens, LOST).is_some() {
                break;
            }
        }
        Ok(())
    }
}

impl Recogniser for Whisper {
    fn hear(&mut self, samples: &[i16], hearing: &Hearing) -> Result<Heard, SpeechError> {
        let samples = &samples[..samples.len().min(LONGEST - SILENCE)];
        let mut decoding = self.encode(samples)?;
        let language = self.language(&mut decoding, hearing)?;
        let prompt = self.prompt(hearing, language);
        let text = |token: &&u32| **token < self.special.end;
        let prefix = hearing.prefix.iter().filter(text).take(MAX_PREFIX_TOKENS);
        let prefix = prefix.copied().collect();
        let said = self.transcribe(&mut decoding, &prompt, prefix, samples)?;
        let mean = mean(&said.probabilities);
        let no_speech = said.no_speech;
        let noise = (no_speech > NO_SPEECH && mean < UNLIKELY) || mean < NONSENSE;
        let language = language.map_or_else(|| "en".to_owned(), |token| self.language_name(token));
        if noise || said.tokens.is_empty() {
            return Ok(Heard {
                language,
                no_speech,
                ..Heard::default()
            });
        }
        let words = if hearing.partial {
            Vec::new()
        } else {
            let count = said.tokens.len() + 1;
            let attention = attention(&decoding, prompt.tokens.len() - 1, count, samples.len());
            let spaced = !matches!(language.as_str(), "zh" | "ja" | "th" | "lo" | "my");
            words::words(
                &self.vocabulary,
                &said.tokens,
                &said.probabilities,
                &attention,
                spaced,
            )
        };
        Ok(Heard {
            text: self.vocabulary.text(&said.tokens).trim().to_owned(),
            confidence: mean.exp().clamp(0.0, 1.0),
            words,
            tokens: said.tokens,
            language,
            no_speech,
        })
    }
}

/// The mean of the logarithms of probabilities.
fn mean(probabilities: &[f32]) -> f32 {
    let log: f32 = probabilities.iter().map(|p| p.max(1e-9).ln()).sum();
    log / probabilities.len().max(1) as f32
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
    fn what_is_said_again_is_heard_again_and_what_follows_it_too() {
        let folder = testing::model("whisper-tiny.en");
        let mut model = Whisper::load(&testing::runtime(), &folder).unwrap();
        for (said, heard, times, last) in [
            ("C Q, C Q, C Q, calling from London.", "cq", 3..7, "london"),
            (
                "Mayday, mayday, mayday, this is the sailing boat Blue Star.",
                "mayday",
                3..5,
                "star",
            ),
            (
                "Let it be, let it be, let it be, let it be, whisper words of wisdom.",
                "let it be",
                4..6,
                "wisdom",
            ),
            // Without guards the model goes on turning it off.
            (
                "Turn it off. Turn it off. Turn it off now.",
                "turn it off",
                3..4,
                "now",
            ),
            ("No, no, no, that is not it.", "no no no", 1..2, "it"),
        ] {
            let text = model.hear(&testing::spoken(said), &Hearing::default());
            let words = testing::words(&text.unwrap().text);
            let text = format!(" {} ", words.join(" "));
            assert_eq!(words.last().map(String::as_str), Some(last), "{text}");
            let count = text.matches(&format!(" {heard}")).count();
            assert!(times.contains(&count), "{text}");
        }
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
