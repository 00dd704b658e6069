//! [Piper](https://github.com/rhasspy/piper)'s voices: networks of the VITS family for many languages, each one file with
//! its settings beside it (`NAME.onnx`, `NAME.onnx.json`). They read phonemes as eSpeak NG writes them, which the server
//! asks that program for: nothing of it is linked.
//!
//! The network is cut in two before its decoder, which only sees some frames to both sides, so that sound is given out
//! piece by piece. What each phoneme takes is a value inside the network, so words have exact times.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use icu_normalizer::DecomposingNormalizerBorrowed;
use serde::{Deserialize, Serialize};

use crate::onnx::subgraph::Graph;
use crate::onnx::{Input, Network, OnnxError, Runtime, tensor};
use crate::worker::{Model, Reply, Request, SpeechError, SpokenWord, in_16_bits};

/// The most phonemes of one request: twice what a sentence of the server takes.
pub const MAX_PHONEMES: usize = 1500;
/// The rates of speech that sound natural.
pub const RATES: std::ops::RangeInclusive<f32> = 0.5..=2.0;
/// Frames to either side that a frame of the decoder depends on, and some more.
const CONTEXT: usize = 24;
/// Frames of the first piece of sound and of the others, of 12 ms each.
const FIRST_FRAMES: usize = 24;
const LATER_FRAMES: usize = 120;
/// Silence behind a sentence, in parts of a second.
const SILENCE_PART: u32 = 5;
/// The most that a settings file may have.
const MAX_SETTINGS_BYTES: u64 = 1 << 20;
/// The weights of the decoder's first convolution, by which it is found.
const DECODER: &str = "dec.conv_pre.weight";

/// A voice's settings, as far as they matter.
#[derive(Debug, Clone, Deserialize)]
pub struct Settings {
    audio: Audio,
    espeak: Espeak,
    inference: Inference,
    phoneme_id_map: HashMap<String, Vec<i64>>,
    #[serde(default)]
    speaker_id_map: HashMap<String, i64>,
    #[serde(default)]
    language: Option<Language>,
}

#[derive(Debug, Clone, Deserialize)]
struct Audio {
    sample_rate: u32,
}

#[derive(Debug, Clone, Deserialize)]
struct Espeak {
    voice: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Inference {
    noise_scale: f32,
    length_scale: f32,
    noise_w: f32,
}

#[derive(Debug, Clone, Deserialize)]
struct Language {
    code: String,
}

impl Settings {
    /// The settings in a voice's folder, and the file of its network.
    pub fn load(folder: &Path) -> Result<(Self, PathBuf), SpeechError> {
        let broken = |file: &Path, cause: &dyn std::fmt::Display| SpeechError::File {
            file: file.display().to_string(),
            cause: cause.to_string(),
        };
        let found = std::fs::read_dir(folder)
            .map_err(|error| broken(folder, &error))?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().ends_with(".onnx.json"));
        let file = found.ok_or_else(|| broken(folder, &"there is no voice of Piper"))?;
        let size = file.metadata().map_or(0, |meta| meta.len());
        if size > MAX_SETTINGS_BYTES {
            return Err(broken(&file, &"it is too large"));
        }
        let bytes = std::fs::read(&file).map_err(|error| broken(&file, &error))?;
        let settings: Self =
            serde_json::from_slice(&bytes).map_err(|error| broken(&file, &error))?;
        Ok((settings, file.with_extension("")))
    }

    /// Samples a second.
    pub fn rate_hz(&self) -> u32 {
        self.audio.sample_rate
    }

    /// The voice of eSpeak NG that writes its phonemes.
    pub fn espeak_voice(&self) -> &str {
        &self.espeak.voice
    }

    /// BCP-47.
    pub fn language(&self) -> String {
        let code = self
            .language
            .as_ref()
            .map(|language| language.code.as_str());
        code.unwrap_or(self.espeak_voice()).replace('_', "-")
    }

    /// The names of its speakers, if it has several.
    pub fn speakers(&self) -> Vec<String> {
        let mut names: Vec<_> = self.speaker_id_map.iter().collect();
        names.sort_by_key(|(_, id)| **id);
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }
}

/// A word in phonemes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhonemicWord {
    /// Phonemes of the International Phonetic Alphabet, as eSpeak NG writes them, with the mark that follows.
    pub phonemes: String,
    /// The word of the text that it is, in bytes, where that is known.
    pub written: Option<(u32, u32)>,
}

/// A loaded voice.
#[derive(Debug)]
pub struct Piper {
    settings: Settings,
    first: Network,
    decoder: Network,
    /// Names of values inside the network.
    durations: String,
    latent: String,
    channels: usize,
    /// Whether the parts want to know the speaker.
    speaker_in: [bool; 2],
}

/// Takes the words and the sound as they are made.
type Give<'g> = dyn FnMut(Option<Vec<SpokenWord>>, &[f32]) -> Result<(), SpeechError> + 'g;

impl Piper {
    /// The voice in a folder.
    pub fn load(runtime: &Runtime, folder: &Path) -> Result<Self, SpeechError> {
        let (settings, file) = Settings::load(folder)?;
        let model = std::fs::read(&file).map_err(|error| SpeechError::File {
            file: file.display().to_string(),
            cause: error.to_string(),
        })?;
        let graph = Graph::parse(&model)?;
        let nodes = graph.nodes();
        let durations = nodes.iter().find(|node| node.op_type == "Ceil");
        let Some([durations]) = durations.map(|node| node.outputs.as_slice()) else {
            return Err(OnnxError::Foreign("durations".to_owned()).into());
        };
        let decoder = nodes.iter().find(|node| node.inputs.contains(&DECODER));
        let Some([latent, weights, ..]) = decoder.map(|node| node.inputs.as_slice()) else {
            return Err(OnnxError::Foreign(DECODER.to_owned()).into());
        };
        let channels = graph.shape(weights).and_then(|shape| shape.get(1).copied());
        let channels =
            channels.ok_or_else(|| OnnxError::Foreign("channels of the decoder".to_owned()))?;
        let first = graph.cut(&[], &[durations, latent])?;
        let decoder = graph.cut(&[(latent, &[Some(1), Some(channels), None])], &["output"])?;
        let first = Network::from_bytes(runtime, &first)?;
        let decoder = Network::from_bytes(runtime, &decoder)?;
        first.expect(&["input", "input_lengths", "scales"], &[])?;
        decoder.expect(&[], &["output"])?;
        let wants = |network: &Network| network.expect(&["sid"], &[]).is_ok();
        let mut voice = Self {
            speaker_in: [wants(&first), wants(&decoder)],
            first,
            decoder,
            durations: (*durations).to_owned(),
            latent: (*latent).to_owned(),
            channels,
            settings,
        };
        // The first run takes longer than the others.
        let word = PhonemicWord {
            phonemes: "a".to_owned(),
            written: None,
        };
        voice.speak(&[word], None, 1.0, &mut |_, _| Ok(()))?;
        Ok(voice)
    }

    /// Says words. `give` is given their times first, then the sound.
    pub fn speak(
        &mut self,
        words: &[PhonemicWord],
        speaker: Option<&str>,
        rate: f32,
        give: &mut Give<'_>,
    ) -> Result<(), SpeechError> {
        if !RATES.contains(&rate) {
            let message = format!("a speaking rate of {rate} is outside {RATES:?}");
            return Err(SpeechError::Request(message));
        }
        let speaker = match speaker {
            None => 0,
            Some(name) => *self.settings.speaker_id_map.get(name).ok_or_else(|| {
                let name: String = name.chars().take(80).collect();
                SpeechError::Request(format!("this voice has no speaker {name:?}"))
            })?,
        };
        let (ids, places) = self.ids(words)?;
        let inference = &self.settings.inference;
        let scales = vec![
            inference.noise_scale,
            inference.length_scale / rate,
            inference.noise_w,
        ];
        let mut inputs = vec![
            ("input", Input::of(&[1, ids.len()], &ids)?),
            ("input_lengths", Input::new(&[1], vec![ids.len() as i64])?),
            ("scales", Input::new(&[3], scales)?),
        ];
        let [speaker_first, speaker_decoder] = self.speaker_in;
        if speaker_first {
            inputs.push(("sid", Input::new(&[1], vec![speaker])?));
        }
        let mut outputs = self.first.run(inputs)?;
        let durations = outputs.take(&self.durations)?;
        let (_, durations) = tensor::<f32>(&durations)?;
        let latent = outputs.take(&self.latent)?;
        let (shape, latent) = tensor::<f32>(&latent)?;
        let frames = match shape.as_slice() {
            [1, channels, frames] if *channels == self.channels => *frames,
            _ => return Err(OnnxError::Foreign("frames of phonemes".to_owned()).into()),
        };
        let ends: Vec<usize> = durations
            .iter()
            .scan(0, |end, frames| {
                *end += *frames as usize;
                Some(*end)
            })
            .collect();
        let mut told = false;
        let mut start = 0;
        while start < frames {
            let count = if start == 0 {
                FIRST_FRAMES
            } else {
                LATER_FRAMES
            };
            let end = (start + count).min(frames);
            let from = start.saturating_sub(CONTEXT);
            let to = (end + CONTEXT).min(frames);
            let seen: Vec<f32> = latent
                .chunks(frames)
                .flat_map(|channel| channel.get(from..to).unwrap_or_default())
                .copied()
                .collect();
            let shape = [1, self.channels, to - from];
            let mut inputs = vec![(self.latent.as_str(), Input::new(&shape, seen)?)];
            if speaker_decoder {
                inputs.push(("sid", Input::new(&[1], vec![speaker])?));
            }
            let sound = self.decoder.run(inputs)?.take("output")?;
            let (_, sound) = tensor::<f32>(&sound)?;
            let hop = sound.len() / (to - from).max(1);
            if !told {
                give(Some(self.times(&places, &ends, hop)), &[])?;
                told = true;
            }
            let wanted = (start - from) * hop..(end - from) * hop;
            give(None, sound.get(wanted).unwrap_or_default())?;
            start = end;
        }
        let silence = self.settings.rate_hz() / SILENCE_PART;
        give(None, &vec![0.0; silence as usize])
    }

    /// The numbers of the phonemes, each followed by a blank, between marks of the beginning and the end; and where each
    /// word that is known in the text is among them.
    #[expect(clippy::type_complexity, reason = "a list and its places")]
    fn ids(
        &self,
        words: &[PhonemicWord],
    ) -> Result<(Vec<i64>, Vec<(Range<usize>, (u32, u32))>), SpeechError> {
        let map = &self.settings.phoneme_id_map;
        let of = |mark: &str| map.get(mark).cloned().unwrap_or_default();
        let blank = of("_");
        let mut ids = of("^");
        ids.extend(&blank);
        let mut places = Vec::new();
        let normal = DecomposingNormalizerBorrowed::new_nfd();
        let push = |ids: &mut Vec<i64>, c: char| {
            if let Some(known) = map.get(c.encode_utf8(&mut [0; 4]) as &str) {
                ids.extend(known);
                ids.extend(&blank);
            }
        };
        for (nth, word) in words.iter().enumerate() {
            if nth > 0 {
                push(&mut ids, ' ');
            }
            let start = ids.len();
            let mut end = start;
            for c in normal.normalize(&word.phonemes).chars() {
                push(&mut ids, c);
                // A mark takes time that belongs to no word.
                if !",;:.!?".contains(c) {
                    end = ids.len();
                }
            }
            if let Some(written) = word.written.filter(|_| end > start) {
                places.push((start..end, written));
            }
            if ids.len() > MAX_PHONEMES * 2 {
                return Err(SpeechError::Request("the text is too long".to_owned()));
            }
        }
        ids.extend(of("$"));
        if ids.len() <= 3 {
            return Err(SpeechError::Request(
                "there is no word in the text".to_owned(),
            ));
        }
        Ok((ids, places))
    }

    fn times(
        &self,
        places: &[(Range<usize>, (u32, u32))],
        ends: &[usize],
        hop: usize,
    ) -> Vec<SpokenWord> {
        let rate = f64::from(self.settings.rate_hz().max(1));
        let seconds = |id: Option<usize>| {
            let frame = id.and_then(|id| ends.get(id)).copied().unwrap_or_default();
            (frame * hop) as f64 / rate
        };
        let time = |(ids, (start_byte, end_byte)): &(Range<usize>, (u32, u32))| SpokenWord {
            start_byte: *start_byte,
            end_byte: *end_byte,
            start_seconds: seconds(ids.start.checked_sub(1)),
            end_seconds: seconds(ids.end.checked_sub(1)),
        };
        places.iter().map(time).collect()
    }
}

impl Model for Piper {
    fn answer(
        &mut self,
        request: Request,
        _: &[i16],
        reply: &mut dyn FnMut(&Reply, &[i16]) -> io::Result<()>,
    ) -> Result<(), SpeechError> {
        let Request::SpeakPhonemes {
            words,
            speaker,
            rate,
        } = request
        else {
            return Err(SpeechError::Request(
                "this model speaks phonemes".to_owned(),
            ));
        };
        let mut give = |times: Option<Vec<SpokenWord>>, samples: &[f32]| match times {
            Some(words) => Ok(reply(&Reply::Words { words }, &[])?),
            None => Ok(reply(&Reply::Sound, &in_16_bits(samples))?),
        };
        self.speak(&words, speaker.as_deref(), rate, &mut give)?;
        Ok(reply(&Reply::Said, &[])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn word(phonemes: &str, written: (u32, u32)) -> PhonemicWord {
        PhonemicWord {
            phonemes: phonemes.to_owned(),
            written: Some(written),
        }
    }

    #[test]
    fn a_voice_says_phonemes_with_times_within_the_sound() {
        let folder = testing::model("piper-en_US-joe-medium");
        let mut voice = Piper::load(&testing::runtime(), &folder).unwrap();
        assert_eq!(voice.settings.language(), "en-US");
        let words = [word("həlˈoʊ", (0, 5)), word("ðˈɛɹ.", (6, 11))];
        let (mut times, mut sound) = (Vec::new(), Vec::new());
        voice
            .speak(&words, None, 1.0, &mut |words, samples| {
                times.extend(words.unwrap_or_default());
                sound.extend_from_slice(samples);
                Ok(())
            })
            .unwrap();
        let seconds = sound.len() as f64 / f64::from(voice.settings.rate_hz());
        let [hello, there] = times.as_slice() else {
            panic!("{times:?}");
        };
        assert!(
            hello.start_seconds < hello.end_seconds && hello.end_seconds <= there.start_seconds
        );
        assert!(there.end_seconds < seconds, "{there:?} of {seconds}");
        let loudest = sound
            .iter()
            .fold(0.0f32, |most, sample| most.max(sample.abs()));
        assert!((0.05..=1.5).contains(&loudest), "{loudest}");
        let nobody = voice.speak(&words, Some("nobody"), 1.0, &mut |_, _| Ok(()));
        assert!(matches!(nobody, Err(SpeechError::Request(_))));
        let nothing = voice.speak(&[], None, 1.0, &mut |_, _| Ok(()));
        assert!(matches!(nothing, Err(SpeechError::Request(_))));
    }

    #[test]
    fn a_folder_without_a_voice_and_settings_that_are_none_are_errors() {
        let folder = testing::model("smart-turn");
        assert!(matches!(
            Settings::load(&folder),
            Err(SpeechError::File { .. })
        ));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.onnx.json"), "{\"audio\": 5}").unwrap();
        let broken = Settings::load(folder.path());
        assert!(matches!(broken, Err(SpeechError::File { .. })));
    }
}
