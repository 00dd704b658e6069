//! [hibari](https://pypi.org/project/hibari-tts/), a small neural voice for English (Apache-2.0): a front end from text
//! to phonemes ([`pronounce`]), a network from phonemes to the spectrum of the voice ([`acoustic`]), and the making of
//! samples from it ([`vocoder`]). Its files are those of its Python package; the code is our own.
//!
//! A sentence is planned as a whole and then made piece by piece, so that the first sound takes the same short time
//! whatever the sentence's length. When each word is heard is known before the first sound, within about 40 ms: the sound
//! is made from the durations of the phonemes.

pub mod acoustic;
mod lexicon;
mod normalise;
mod numbers;
mod oov;
pub mod pronounce;
mod table;
mod tagger;
#[cfg(test)]
mod tests;
mod tokenise;
mod traced;
mod vocoder;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use self::acoustic::Acoustic;
use self::lexicon::{Accent, PAUSES};
use self::pronounce::{Pronouncer, Said, is_foreign};
use self::table::{broken, parse, read};
use self::vocoder::{HOP, Transforms, Vocoder};
use crate::onnx::Runtime;
use crate::worker::{Model, Reply, Request, SpeechError, SpokenWord, in_16_bits};

/// Samples a second.
pub const RATE_HZ: u32 = vocoder::RATE_HZ as u32;
/// The voice that comes with the package.
pub const DEFAULT_VOICE: &str = "heart";
/// The longest text of one request, in bytes. The sentences of the server have 300 characters at most.
pub const MAX_TEXT_BYTES: usize = 2000;
/// The most phonemes that the network is given at once; it has learnt on fewer. Longer sentences are cut at a pause.
const MAX_PHONEMES: usize = 400;
/// The rates of speech that sound natural.
pub const RATES: std::ops::RangeInclusive<f32> = 0.5..=2.0;
/// What is kept before the first phoneme, in frames: 125 ms, of which 35 to 95 are silence. The network leaves a third of a
/// second there, for which a listener would wait.
const LEAD_FRAMES: usize = 10;
/// How much earlier a phoneme is heard than the network's durations say, in frames: measured 30 to 90 ms at the beginning
/// of eight sentences, so 50 ms are right within 40.
const EARLY_FRAMES: usize = 4;
/// The silence behind a sentence at a rate of 1, in samples: 150 ms. The network leaves half a second there.
const PAUSE: f32 = 0.15 * RATE_HZ as f32;
/// Frames of the first piece of sound: a quarter of a second, made while the listener waits.
const FIRST_FRAMES: usize = 20;
/// Frames of the others: what comes before one lasts longer than it takes to make.
const LATER_FRAMES: usize = 120;
/// The noise of a sentence is always the same, so the same text sounds the same.
const SEED: u64 = 0x0068_6962_6172_6921;

/// A voice of the package, as `voices.json` has it.
#[derive(Debug, Clone, Deserialize)]
pub struct Listed {
    /// BCP-47.
    pub language: String,
    /// For people.
    pub accent: String,
    /// `female` or `male`.
    pub gender: String,
    /// The file of its network.
    pub file: String,
    /// Whether it speaks British English.
    pub british: bool,
}

impl Listed {
    fn accent_of(&self) -> Accent {
        if self.british {
            Accent::British
        } else {
            Accent::American
        }
    }
}

/// The voices in a model's folder whose networks are there, and how their accent is read, by name, the default first.
pub fn voices(folder: &Path) -> Result<Vec<(String, Listed)>, SpeechError> {
    const FILE: &str = "voices.json";
    let bytes = read(folder, FILE)?;
    let listed: HashMap<String, Listed> = parse(folder, FILE, &bytes)?;
    let here = |voice: &Listed| {
        let plain = !voice.file.contains(['/', '\\']) && !voice.file.starts_with('.');
        let accent = voice.accent_of().files().into_iter();
        plain
            && accent
                .chain([voice.file.as_str()])
                .all(|file| folder.join(file).is_file())
    };
    let mut voices: Vec<_> = listed
        .into_iter()
        .filter(|(_, voice)| here(voice))
        .collect();
    voices.sort_by_key(|(name, _)| (name != DEFAULT_VOICE, name.clone()));
    Ok(voices)
}

/// The model with those of its voices that have been asked for.
pub struct Hibari {
    runtime: Runtime,
    folder: PathBuf,
    voices: Vec<(String, Listed)>,
    networks: HashMap<String, Acoustic>,
    front_ends: HashMap<Accent, Pronouncer>,
    /// The number of each phoneme.
    ids: HashMap<char, i64>,
    transforms: Transforms,
}

impl std::fmt::Debug for Hibari {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hibari with {} voices", self.voices.len())
    }
}

/// Takes what is said as it is made.
type Give<'g> = dyn FnMut(Piece, &[f32]) -> Result<(), SpeechError> + 'g;

impl Hibari {
    /// The model in a folder, with its first voice ready to speak.
    pub fn load(runtime: &Runtime, folder: &Path) -> Result<Self, SpeechError> {
        const VOCABULARY: &str = "vocab.json";
        let bytes = read(folder, VOCABULARY)?;
        let ids = parse(folder, VOCABULARY, &bytes)?;
        let mut model = Self {
            runtime: runtime.clone(),
            folder: folder.to_owned(),
            voices: voices(folder)?,
            networks: HashMap::new(),
            front_ends: HashMap::new(),
            ids,
            transforms: Transforms::default(),
        };
        let first = model.voices.first().map(|(name, _)| name.clone());
        let first = first.ok_or_else(|| broken(folder, &"there is no voice"))?;
        // The first run of a network takes longer than the others.
        model.speak("Hello.", Some(&first), 1.0, &mut |_, _| Ok(()))?;
        Ok(model)
    }

    /// What is said of a text, for checks.
    pub fn phonemes(&mut self, text: &str, voice: Option<&str>) -> Result<Vec<Said>, SpeechError> {
        let (_, accent) = self.voice(voice)?;
        self.front_end(accent)?.pronounce(text)
    }

    fn voice(&self, wanted: Option<&str>) -> Result<(String, Accent), SpeechError> {
        let mut voices = self.voices.iter();
        let found = match wanted {
            Some(wanted) => voices.find(|(name, _)| name == wanted),
            None => voices.next(),
        };
        let (name, listed) = found.ok_or_else(|| {
            let wanted: String = wanted.unwrap_or_default().chars().take(80).collect();
            SpeechError::Request(format!("hibari has no voice {wanted:?} here"))
        })?;
        Ok((name.clone(), listed.accent_of()))
    }

    fn front_end(&mut self, accent: Accent) -> Result<&mut Pronouncer, SpeechError> {
        if !self.front_ends.contains_key(&accent) {
            let loaded = Pronouncer::load(&self.runtime, &self.folder, accent)?;
            self.front_ends.insert(accent, loaded);
        }
        let loaded = self.front_ends.get_mut(&accent);
        loaded.ok_or_else(|| SpeechError::Request("there is no such accent".to_owned()))
    }

    /// Says a text. `give` is first given the words of each part of it, with their times, then the sound.
    pub fn speak(
        &mut self,
        text: &str,
        voice: Option<&str>,
        rate: f32,
        give: &mut Give<'_>,
    ) -> Result<(), SpeechError> {
        if text.len() > MAX_TEXT_BYTES {
            let message = format!("a text of {} bytes is too long", text.len());
            return Err(SpeechError::Request(message));
        }
        if !RATES.contains(&rate) {
            let message = format!("a speaking rate of {rate} is outside {RATES:?}");
            return Err(SpeechError::Request(message));
        }
        speakable(text)?;
        let (name, accent) = self.voice(voice)?;
        let said = self.front_end(accent)?.pronounce(text)?;
        let parts = cut(&said, &self.ids);
        if parts.is_empty() {
            return Err(nothing_to_say());
        }
        if !self.networks.contains_key(&name) {
            let file = self.voices.iter().find(|(known, _)| *known == name);
            let file = file.map(|(_, listed)| self.folder.join(&listed.file));
            let network = Acoustic::load(&self.runtime, &file.unwrap_or_default())?;
            self.networks.insert(name.clone(), network);
        }
        let Some(network) = self.networks.get_mut(&name) else {
            return Ok(());
        };
        let mut samples_before = 0;
        for (nth, part) in parts.iter().enumerate() {
            let plan = network.plan(&part.ids, rate)?;
            let silence = plan.ends.first().copied().unwrap_or_default();
            let cut_off = silence.saturating_sub(LEAD_FRAMES);
            let first = samples_before - ((cut_off + EARLY_FRAMES) * HOP) as i64;
            let words = words(text, part, &plan.ends, first);
            let ends = words.last().map_or(0.0, |word| word.end_seconds);
            give(Piece::Words(words), &[])?;
            let mut vocoder = Vocoder::new(&self.transforms, &plan.pitch, cut_off, SEED);
            let mut pause = Pause::default();
            let mut start = cut_off;
            while start < plan.length() {
                let frames = if start == cut_off && nth == 0 {
                    FIRST_FRAMES
                } else {
                    LATER_FRAMES
                };
                let end = (start + frames).min(plan.length());
                let spectrum = network.spectrum(&plan, start..end)?;
                let sound = pause.before(vocoder.push(&spectrum, start..end));
                samples_before += sound.len() as i64;
                give(Piece::Sound, &sound)?;
                start = end;
            }
            // Not before the time at which the last word was said to end.
            let least = (ends * f64::from(RATE_HZ)).ceil() as i64 - samples_before;
            let silence =
                pause.of(((PAUSE / rate) as usize).max(usize::try_from(least).unwrap_or_default()));
            samples_before += silence.len() as i64;
            give(Piece::Sound, &silence)?;
        }
        Ok(())
    }
}

/// Holds back what is quiet until something louder follows: behind the last word it is a pause, of which the network makes
/// too much.
#[derive(Default)]
struct Pause {
    loudest: f32,
    held: Vec<f32>,
}

impl Pause {
    /// 50 dB below the loudest sample nothing is heard.
    const QUIET: f32 = 0.003;

    /// What can be given out of what is held and these samples.
    fn before(&mut self, sound: Vec<f32>) -> Vec<f32> {
        let loudest = sound.iter().fold(self.loudest, |most, x| most.max(x.abs()));
        self.loudest = loudest;
        let heard = |x: &f32| x.abs() > loudest * Self::QUIET;
        let Some(last) = sound.iter().rposition(heard) else {
            self.held.extend(sound);
            return Vec::new();
        };
        let mut given = std::mem::take(&mut self.held);
        given.extend_from_slice(sound.get(..=last).unwrap_or_default());
        self.held
            .extend_from_slice(sound.get(last + 1..).unwrap_or_default());
        given
    }

    /// So much silence, beginning with what is held.
    fn of(mut self, samples: usize) -> Vec<f32> {
        self.held.resize(samples, 0.0);
        self.held
    }
}

/// What a voice gives.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// The words of the sound that follows, up to the next words.
    Words(Vec<SpokenWord>),
    /// Samples at [`RATE_HZ`].
    Sound,
}

/// Refuses text in which there is nothing for an English voice to say.
pub fn speakable(text: &str) -> Result<(), SpeechError> {
    let foreign = text.chars().filter(|&c| is_foreign(c)).count();
    let own = text
        .chars()
        .filter(|&c| c.is_alphanumeric() && !is_foreign(c))
        .count();
    if foreign > own {
        let message = "the text is in a script that English is not written in";
        return Err(SpeechError::Request(message.to_owned()));
    }
    if own == 0 && !text.contains(['%', '&', '+', '@', '$', '£', '€', '=', '#', '½', '¼', '¾'])
    {
        return Err(nothing_to_say());
    }
    Ok(())
}

fn nothing_to_say() -> SpeechError {
    SpeechError::Request("there is no word in the text".to_owned())
}

/// A part of a text that the network is given at once.
struct Part {
    /// The numbers of its phonemes, between two zeros.
    ids: Vec<i64>,
    /// For each thing said the range of its phonemes among the numbers, and of the text.
    said: Vec<(Range<usize>, Range<usize>)>,
}

/// Cuts what is said into parts that are not too long, where the voice pauses if it does.
fn cut(said: &[Said], ids: &HashMap<char, i64>) -> Vec<Part> {
    let numbers = |said: &Said| -> Vec<i64> {
        let known = said.phonemes.chars().filter_map(|c| ids.get(&c).copied());
        known.collect()
    };
    let space = ids.get(&' ').copied().unwrap_or_default();
    let mut parts = Vec::new();
    let mut rest = said;
    while !rest.is_empty() {
        let mut count = 0;
        let mut taken = 0;
        let mut pause = 0;
        for (nth, one) in rest.iter().enumerate() {
            count += numbers(one).len() + 1;
            if count > MAX_PHONEMES && taken > 0 {
                break;
            }
            taken = nth + 1;
            if one.space && one.phonemes.ends_with(|c| PAUSES.contains(c)) {
                pause = taken;
            }
        }
        if taken < rest.len() && pause > 0 {
            taken = pause;
        }
        let (now, later) = rest.split_at(taken);
        rest = later;
        let mut part = Part {
            ids: vec![0],
            said: Vec::new(),
        };
        for one in now {
            let mut of = numbers(one);
            // One word of more phonemes than there may be is cut off: nobody can follow it.
            of.truncate(MAX_PHONEMES);
            let start = part.ids.len();
            part.ids.extend(of);
            let is_word = one.phonemes.chars().any(char::is_alphabetic);
            if is_word && part.ids.len() > start {
                part.said.push((start..part.ids.len(), one.origin.clone()));
            }
            if one.space && part.ids.len() > 1 {
                part.ids.push(space);
            }
        }
        while part.ids.len() > 1 && part.ids.last() == Some(&space) {
            part.ids.pop();
        }
        part.ids.push(0);
        if !part.said.is_empty() {
            parts.push(part);
        }
    }
    parts
}

/// The words of the text that a part says, in its order, with their times.
fn words(text: &str, part: &Part, ends: &[usize], first_sample: i64) -> Vec<SpokenWord> {
    let seconds = |frame: usize| {
        let sample = first_sample + (frame * HOP) as i64;
        sample.max(0) as f64 / f64::from(RATE_HZ)
    };
    let end_of = |id: Option<usize>| id.and_then(|id| ends.get(id)).copied().unwrap_or_default();
    let mut words: Vec<SpokenWord> = Vec::new();
    for word in written_words(text) {
        let mut times: Option<(usize, usize)> = None;
        for (ids, origin) in &part.said {
            if origin.start < word.end && word.start < origin.end {
                let start = end_of(ids.start.checked_sub(1));
                let end = end_of(ids.end.checked_sub(1));
                times = Some(match times {
                    Some((before, after)) => (before.min(start), after.max(end)),
                    None => (start, end),
                });
            }
        }
        if let Some((start, end)) = times {
            words.push(SpokenWord {
                start_byte: word.start as u32,
                end_byte: word.end as u32,
                start_seconds: seconds(start),
                end_seconds: seconds(end),
            });
        }
    }
    // Of words that are said in another order than written ("$3 million": "three million dollars") none begins or ends
    // before the one before.
    let mut latest = (0.0f64, 0.0f64);
    for word in &mut words {
        word.start_seconds = word.start_seconds.max(latest.0);
        word.end_seconds = word.end_seconds.max(latest.1);
        latest = (word.start_seconds, word.end_seconds);
    }
    words
}

/// The words as they are written, without the marks around them.
fn written_words(text: &str) -> Vec<Range<usize>> {
    let separates = |c: char| c.is_whitespace() || matches!(c, '—' | '…');
    let mut words = Vec::new();
    let mut at = 0;
    for chunk in text.split_inclusive(separates) {
        let mark = |c: char| separates(c) || ".,;:!?\"“”„'‘’()[]{}«»*_-–".contains(c);
        let body = chunk.trim_start_matches(mark);
        let start = at + chunk.len() - body.len();
        let body = body.trim_end_matches(mark);
        if !body.is_empty() {
            words.push(start..start + body.len());
        }
        at += chunk.len();
    }
    for target in link_targets(text) {
        words.retain(|word| !target.contains(&word.start));
        for word in words.iter_mut().filter(|word| word.contains(&target.start)) {
            word.end = target.start;
        }
    }
    words
}

/// What is behind the words of links, and of `[word](/phonemes/)`: not to be read.
fn link_targets(text: &str) -> Vec<Range<usize>> {
    let mut targets = Vec::new();
    let mut at = 0;
    while let Some(open) = text.get(at..).and_then(|rest| rest.find("](")) {
        let start = at + open;
        let Some(close) = text.get(start..).and_then(|rest| rest.find(')')) else {
            break;
        };
        let end = start + close + 1;
        if text
            .get(at..start)
            .is_some_and(|before| before.contains('['))
        {
            targets.push(start..end);
        }
        at = end;
    }
    targets
}

impl Model for Hibari {
    fn answer(
        &mut self,
        request: Request,
        _: &[i16],
        reply: &mut dyn FnMut(&Reply, &[i16]) -> io::Result<()>,
    ) -> Result<(), SpeechError> {
        let Request::Speak {
            text, voice, rate, ..
        } = request
        else {
            return Err(SpeechError::Request("this model only speaks".to_owned()));
        };
        let mut give = |piece: Piece, samples: &[f32]| match piece {
            Piece::Words(words) => Ok(reply(&Reply::Words { words }, &[])?),
            Piece::Sound => Ok(reply(&Reply::Sound, &in_16_bits(samples))?),
        };
        self.speak(&text, voice.as_deref(), rate, &mut give)?;
        Ok(reply(&Reply::Said, &[])?)
    }
}
