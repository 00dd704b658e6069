//! Voices of neural models: which are installed, and how a worker is asked to say a sentence. A worker that is not heard to
//! the end still finishes its sentence, which takes it a fraction of the sentence's length, rather than being killed and
//! loaded again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::{AskError, Models, Speech};
use crate::local::espeak::ESPEAK;
use crate::local::voices::LocalVoice;
use crate::local::workers::{Lease, Shared, WorkerPool, hung, out_of_turn};
use vivavoce_audio::format::SampleRate;
use vivavoce_core::process::{Limits, ProgramError};
use vivavoce_quotas::{Party, Share};
use vivavoce_seams::Voice;
use vivavoce_speech::piper::{PhonemicWord, Settings};
use vivavoce_speech::worker::{self, Kind, Reply, Request, SpeechError, SpokenWord};
use vivavoce_speech::{hibari, piper};

/// The model that speaks English, in the catalogue; also the `model` that asks for it.
pub const HIBARI: &str = "hibari";
/// The `model` that asks for a voice of Piper's; what the names of their models begin with.
pub const PIPER: &str = "piper";
/// How long the list of voices is believed.
const LIST_TTL: Duration = Duration::from_secs(5);
/// Pieces of a sentence that wait to be taken: more than the longest sentence has.
const PIECES: usize = 256;
/// What phonemes of a clause may cost.
const PHONEMES_LIMITS: Limits = Limits {
    time: Duration::from_secs(5),
    output: 1 << 18,
};

/// A voice of a neural model.
#[derive(Debug, Clone)]
pub struct NeuralVoice {
    /// What we show, and its rate.
    pub voice: LocalVoice,
    /// Its model in the catalogue.
    pub model: String,
    folder: PathBuf,
    engine: Engine,
}

#[derive(Debug, Clone)]
enum Engine {
    Hibari {
        voice: String,
    },
    Piper {
        espeak: String,
        speaker: Option<String>,
    },
}

impl NeuralVoice {
    /// The `model` that asks for it.
    pub fn engine(&self) -> &'static str {
        match self.engine {
            Engine::Hibari { .. } => HIBARI,
            Engine::Piper { .. } => PIPER,
        }
    }

    /// The rates of speech that it takes.
    pub fn rates(&self) -> std::ops::RangeInclusive<f64> {
        let rates = match self.engine {
            Engine::Hibari { .. } => hibari::RATES,
            Engine::Piper { .. } => piper::RATES,
        };
        f64::from(*rates.start())..=f64::from(*rates.end())
    }

    fn kind(&self) -> Kind {
        match self.engine {
            Engine::Hibari { .. } => Kind::Hibari,
            Engine::Piper { .. } => Kind::Piper,
        }
    }

    /// What a worker is asked for a sentence. eSpeak NG writes the phonemes for Piper.
    pub async fn request(
        &self,
        text: &str,
        speaking_rate: f64,
        search_path: &OsStr,
    ) -> Result<Request, ProgramError> {
        let rate = speaking_rate as f32;
        Ok(match &self.engine {
            Engine::Hibari { voice } => Request::Speak {
                text: text.to_owned(),
                voice: Some(voice.clone()),
                rate,
            },
            Engine::Piper { espeak, speaker } => Request::SpeakPhonemes {
                words: phonemes(text, espeak, search_path).await?,
                speaker: speaker.clone(),
                rate,
            },
        })
    }
}

/// The installed neural voices and their workers.
#[derive(Debug)]
pub struct NeuralVoices {
    models: Models,
    /// The most workers of a model.
    size: usize,
    share: Share,
    listed: Mutex<Option<(Instant, Arc<[NeuralVoice]>)>>,
    pools: Mutex<BTreeMap<String, WorkerPool<Speech<false>>>>,
}

impl NeuralVoices {
    /// Nothing is started yet.
    pub fn new(models: Models, size: usize, share: Share) -> Self {
        Self {
            models,
            size,
            share,
            listed: Mutex::default(),
            pools: Mutex::default(),
        }
    }

    /// The voices, best first.
    pub fn list(&self) -> Arc<[NeuralVoice]> {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, voices)) = &*listed
            && when.elapsed() < LIST_TTL
        {
            return Arc::clone(voices);
        }
        let voices: Arc<[NeuralVoice]> = self.read().into();
        *listed = Some((Instant::now(), Arc::clone(&voices)));
        voices
    }

    fn read(&self) -> Vec<NeuralVoice> {
        let mut voices = Vec::new();
        if let Some(folder) = self.models.installed(HIBARI) {
            match hibari::voices(&folder) {
                Ok(found) => voices.extend(
                    found
                        .into_iter()
                        .filter_map(|(name, listed)| of_hibari(&name, listed, &folder)),
                ),
                Err(error) => tracing::warn!(%error, "the voices of hibari cannot be listed"),
            }
        }
        let names = self.models.names();
        for name in names.iter().filter(|name| name.starts_with("piper-")) {
            let known = self.models.installed(name);
            // A voice that somebody has put there is not in the catalogue.
            let folder = known.or_else(|| {
                let folder = self.models.root().join(name);
                self.models.installed(super::RUNTIME)?;
                folder.is_dir().then_some(folder)
            });
            let Some(folder) = folder else {
                continue;
            };
            match Settings::load(&folder) {
                Ok((settings, _)) => voices.extend(of_piper(name, &settings, &folder)),
                Err(error) => tracing::warn!(%error, "the voice {name} cannot be used"),
            }
        }
        voices
    }

    /// The workers of a voice's model.
    pub fn pool(&self, voice: &NeuralVoice) -> Arc<Shared<Speech<false>>> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(voice.model.clone()).or_insert_with(|| {
            let (size, share) = (self.size, self.share);
            WorkerPool::new(
                self.models
                    .workers(voice.kind(), &voice.folder, size, share),
            )
        });
        pool.share()
    }
}

fn of_hibari(name: &str, listed: hibari::Listed, folder: &std::path::Path) -> Option<NeuralVoice> {
    let language = listed.language;
    Some(NeuralVoice {
        voice: LocalVoice {
            shown: Voice {
                id: format!("{HIBARI}-{name}"),
                name: name.to_owned(),
                languages: with_bare(&language),
                language,
                gender: listed.gender,
                accent: listed.accent,
                sample: String::new(),
                sample_rates: vec![hibari::RATE_HZ],
                tags: vec![HIBARI.to_owned(), "neural".to_owned()],
            },
            called: name.to_owned(),
            rate: SampleRate::new(hibari::RATE_HZ).ok()?,
        },
        model: HIBARI.to_owned(),
        folder: folder.to_owned(),
        engine: Engine::Hibari {
            voice: name.to_owned(),
        },
    })
}

/// A voice, or one for each of its speakers: `piper-de_DE-mls/2422`.
fn of_piper(model: &str, settings: &Settings, folder: &std::path::Path) -> Vec<NeuralVoice> {
    let Ok(rate) = SampleRate::new(settings.rate_hz()) else {
        tracing::warn!("the voice {model} has a rate of sound that is not known");
        return Vec::new();
    };
    let language = settings.language();
    let of = |speaker: Option<String>| {
        let id = match &speaker {
            Some(speaker) => format!("{model}/{speaker}"),
            None => model.to_owned(),
        };
        NeuralVoice {
            voice: LocalVoice {
                shown: Voice {
                    name: id.strip_prefix("piper-").unwrap_or(&id).to_owned(),
                    id,
                    languages: with_bare(&language),
                    language: language.clone(),
                    gender: String::new(),
                    accent: String::new(),
                    sample: String::new(),
                    sample_rates: vec![settings.rate_hz()],
                    tags: vec![PIPER.to_owned(), "neural".to_owned()],
                },
                called: model.to_owned(),
                rate,
            },
            model: model.to_owned(),
            folder: folder.to_owned(),
            engine: Engine::Piper {
                espeak: settings.espeak_voice().to_owned(),
                speaker,
            },
        }
    };
    match settings.speakers() {
        speakers if speakers.len() > 1 => speakers.into_iter().map(|name| of(Some(name))).collect(),
        _ => vec![of(None)],
    }
}

/// A language tag, and without its region.
fn with_bare(language: &str) -> Vec<String> {
    let mut languages = vec![language.to_owned()];
    if let Some((bare, _)) = language.split_once('-') {
        languages.push(bare.to_owned());
    }
    languages
}

/// What a worker gives of a sentence.
#[derive(Debug)]
pub enum Piece {
    /// Words of the sound that follows.
    Words(Vec<SpokenWord>),
    /// The next samples.
    Sound(Vec<i16>),
}

/// Has a worker say a sentence, if one is free within `patience`. The pieces end after the sentence, or with the error.
pub async fn speak(
    pool: &Arc<Shared<Speech<false>>>,
    party: &Party,
    request: &Request,
    patience: Duration,
) -> Result<mpsc::Receiver<Result<Piece, AskError>>, AskError> {
    let frame = worker::frame(request, &[]).map_err(SpeechError::from)?;
    let ready = pool.deadlines().ready;
    let mut lease = pool.lease_within(party, patience, ready).await?;
    lease.send(&frame).await?;
    let (pieces, taken) = mpsc::channel(PIECES);
    let limit = pool.deadlines().answer;
    tokio::spawn(listen(lease, limit, pieces).in_current_span());
    Ok(taken)
}

/// Hears a worker to the end of its sentence, whether or not anybody still takes the pieces.
async fn listen(
    mut lease: Lease<Speech<false>>,
    limit: Duration,
    pieces: mpsc::Sender<Result<Piece, AskError>>,
) {
    loop {
        let piece = match next_piece(&mut lease, limit).await {
            Ok(Some(piece)) => Ok(piece),
            Ok(None) => {
                lease.give_back();
                return;
            }
            Err(error) => Err(error),
        };
        let refused = matches!(piece, Err(AskError::Refused(_)));
        let failed = piece.is_err();
        // Nobody may listen any more.
        let _ = pieces.send(piece).await;
        if refused {
            lease.give_back();
            return;
        }
        if failed {
            return;
        }
    }
}

async fn next_piece(
    lease: &mut Lease<Speech<false>>,
    limit: Duration,
) -> Result<Option<Piece>, AskError> {
    let report = timeout(limit, lease.report()).await;
    let report = report.map_err(|_| hung::<Speech<false>>("speak", limit))??;
    match report {
        (Reply::Words { words }, _) => Ok(Some(Piece::Words(words))),
        (Reply::Sound, sound) => Ok(Some(Piece::Sound(sound))),
        (Reply::Said, _) => Ok(None),
        (Reply::Refused { message }, _) => Err(AskError::Refused(message)),
        report => Err(AskError::Pool(out_of_turn::<Speech<false>>(&report))),
    }
}

/// The phonemes of a text, clause by clause, so that marks are where they were. A clause of as many words in phonemes as
/// it has in writing has the place of each; where eSpeak NG writes a number in several or two words as one, the words of
/// that clause have none.
async fn phonemes(
    text: &str,
    espeak: &str,
    search_path: &OsStr,
) -> Result<Vec<PhonemicWord>, ProgramError> {
    let file = ESPEAK.program.find_in(search_path)?;
    let mut words = Vec::new();
    for (start, clause, mark) in clauses(text) {
        let arguments = ["-q", "--ipa", "-b", "1", "-v", espeak, "--stdin"];
        let mut running = ESPEAK
            .program
            .start_file(&file, arguments, PHONEMES_LIMITS)?;
        if let Some(mut stdin) = running.take_stdin() {
            // Two brackets would begin a passage in phonemes.
            let _ = stdin.write_all(clause.replace('[', " [ ").as_bytes()).await;
        }
        let printed = running.read_all().await?;
        let printed = String::from_utf8_lossy(&printed);
        let said: Vec<&str> = printed.split_whitespace().collect();
        let written = written_words(start, clause);
        let exact = written.len() == said.len();
        for (nth, phonemes) in said.iter().enumerate() {
            let mark = if nth + 1 == said.len() { mark } else { "" };
            words.push(PhonemicWord {
                phonemes: format!("{phonemes}{mark}"),
                written: written.get(nth).copied().filter(|_| exact),
            });
        }
    }
    Ok(words)
}

/// The clauses of a text: where each begins, its words, and the mark behind it.
fn clauses(text: &str) -> Vec<(usize, &str, &'static str)> {
    let mut clauses = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let end = at + c.len_utf8();
        let ends = chars
            .peek()
            .is_none_or(|(_, next)| next.is_whitespace() || "\"”’)»".contains(*next));
        let mark = match c {
            ',' | '،' | '、' | '，' => ",",
            ';' => ";",
            ':' => ":",
            '?' | '？' | '؟' => "?",
            '!' | '！' => "!",
            '.' | '。' | '।' | '…' => ".",
            _ => continue,
        };
        if ends || c.len_utf8() > 1 {
            clauses.push((start, text.get(start..at).unwrap_or_default(), mark));
            start = end;
        }
    }
    clauses.push((start, text.get(start..).unwrap_or_default(), ""));
    clauses.retain(|(_, clause, _)| clause.chars().any(char::is_alphanumeric));
    clauses
}

fn written_words(start: usize, clause: &str) -> Vec<(u32, u32)> {
    let mut words = Vec::new();
    let mut at = start;
    for chunk in clause.split_inclusive(char::is_whitespace) {
        let body = chunk.trim_start_matches(|c: char| !c.is_alphanumeric());
        let begin = at + chunk.len() - body.len();
        let body = body.trim_end_matches(|c: char| !c.is_alphanumeric());
        if !body.is_empty() {
            words.push((begin as u32, (begin + body.len()) as u32));
        }
        at += chunk.len();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_keep_their_marks_and_places() {
        let text = "Hallo, Welt! Es kostet 3,50 Euro.";
        let found = clauses(text);
        let seen: Vec<_> = found
            .iter()
            .map(|(_, clause, mark)| (*clause, *mark))
            .collect();
        assert_eq!(
            seen,
            [
                ("Hallo", ","),
                (" Welt", "!"),
                (" Es kostet 3,50 Euro", ".")
            ]
        );
        for (start, clause, _) in found {
            assert_eq!(&text[start..start + clause.len()], clause);
            for (from, to) in written_words(start, clause) {
                assert!(!text[from as usize..to as usize].contains(' '));
            }
        }
        assert!(clauses("?! …").is_empty());
    }

    #[tokio::test]
    async fn espeak_writes_the_phonemes_of_each_word() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let words = phonemes("Guten Tag, Welt.", "de", &path).await.unwrap();
        let written: Vec<_> = words.iter().map(|word| word.written).collect();
        assert_eq!(written, [Some((0, 5)), Some((6, 9)), Some((11, 15))]);
        assert!(words[1].phonemes.ends_with(',') && words[2].phonemes.ends_with('.'));
    }
}
