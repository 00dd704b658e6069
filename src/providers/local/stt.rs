//! The recogniser `local`: whichever model of this machine hears best, or the one that is asked for by name. Neural models
//! are those of `vivavoce models`; pocketsphinx, which Debian packages, hears where none is installed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::neural::stt::Session;
use super::neural::{Models, Speech};
use super::pocketsphinx::pool::PoolSettings;
use super::pocketsphinx::{self, Pocketsphinx};
use super::workers::{Shared, WorkerPool};
use super::{SLUG, failure, stream};
use async_trait::async_trait;
use vivavoce_audio::vad::RATE;
use vivavoce_audio::{AudioFormat, Encoding};
use vivavoce_quotas::Share;
use vivavoce_seams::parameters::{self, Parameter, converted, ignored};
use vivavoce_seams::{
    Accepts, ErrorKind, FinalDelay, ProviderError, SpeechToText, SttRequest, SttStream,
};
use vivavoce_speech::recogniser::Hearing;
use vivavoce_speech::worker::Kind;

/// The name that asks for pocketsphinx.
const POCKETSPHINX: &str = "pocketsphinx";

/// A model that hears.
#[derive(Debug)]
struct Model {
    /// Its name in the catalogue, which is also the `model` that asks for it.
    name: &'static str,
    kind: Kind,
    /// Whether it knows more than English.
    multilingual: bool,
    /// What else asks for it.
    alias: &'static str,
}

/// The models, in the order in which they are taken where none is named: as measured for a conversation on two cores
/// (benches/RESULTS.md, "Ears").
static MODELS: [Model; 3] = [
    Model {
        name: "moonshine-tiny-en",
        kind: Kind::Moonshine,
        multilingual: false,
        alias: "moonshine",
    },
    Model {
        name: "whisper-tiny.en",
        kind: Kind::Whisper,
        multilingual: false,
        alias: "tiny.en",
    },
    Model {
        name: "whisper-base",
        kind: Kind::Whisper,
        multilingual: true,
        alias: "base",
    },
];

/// What becomes of each field of `stt_config`.
static PARAMETERS: &[Parameter] = &[
    converted("language", "English, and what an installed model knows"),
    converted("languages", "found among these by multilingual models"),
    converted("model", "a model of `vivavoce models`, or `pocketsphinx`"),
    converted("encoding", "decoded"),
    converted("sample_rate", "resampled to 16 kHz"),
    converted("channels", "mixed to one"),
    ignored(
        "punctuation",
        "models write what they were trained to write",
    ),
    converted(
        "keyterms",
        "a prompt of Whisper; other models do not know them",
    ),
    ignored(
        "diarize",
        "the local recogniser does not tell speakers apart",
    ),
    converted("min_confidence", "finals below it are dropped"),
    converted("words", "times and confidence"),
    ignored("auth", "the local recogniser needs no credential"),
];

/// How the local recogniser is run.
#[derive(Debug, Clone)]
pub struct LocalSttSettings {
    /// The models.
    pub models: Models,
    /// The most workers of a model at a time.
    pub size: usize,
    /// Whether a worker of the usual model is loaded before the first is asked for.
    pub preload: bool,
    /// What one party may have of them.
    pub share: Share,
    /// The folder of pocketsphinx' model.
    pub pocketsphinx: PathBuf,
}

/// The recogniser `local`. Dropping it ends its streams and workers.
#[derive(Debug)]
pub struct LocalStt {
    settings: LocalSttSettings,
    pools: Mutex<BTreeMap<&'static str, WorkerPool<Speech<true>>>>,
    pocketsphinx: Pocketsphinx,
}

impl LocalStt {
    /// Starts to load one worker in the background, if that is wanted; must be called in a runtime.
    pub fn new(settings: LocalSttSettings) -> Self {
        let usual = usual(&settings.models);
        let mut pool = PoolSettings::new(settings.models.program());
        pool.share = settings.share;
        pool.model.clone_from(&settings.pocketsphinx);
        pool.preload = settings.preload && usual.is_none();
        pool.size = settings.size;
        let stt = Self {
            pocketsphinx: Pocketsphinx::new(pool),
            pools: Mutex::default(),
            settings,
        };
        if stt.settings.preload
            && let Some((model, folder)) = usual
        {
            tokio::spawn(stt.pool(model, &folder).tend());
        }
        stt
    }

    /// The workers of a model.
    fn pool(&self, model: &'static Model, folder: &std::path::Path) -> Arc<Shared<Speech<true>>> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(model.name).or_insert_with(|| {
            let LocalSttSettings { size, share, .. } = self.settings;
            let models = &self.settings.models;
            WorkerPool::new(models.workers(model.kind, folder, size, share))
        });
        pool.share()
    }

    /// The model that is taken where none is named: `spoken` are the languages, the expected one first.
    fn usual_for(&self, spoken: &[&str]) -> Option<(&'static Model, PathBuf)> {
        let models = &self.settings.models;
        let several = || first_installed(models, |model| model.multilingual);
        // What hears English well is better than nothing where one of several languages is wanted.
        match spoken {
            [only] if is_english(only) => usual(models),
            [first, ..] if is_english(first) => several().or_else(|| usual(models)),
            _ => several(),
        }
    }

    /// The model for a request; none means pocketsphinx.
    fn choose(
        &self,
        request: &SttRequest,
    ) -> Result<Option<(&'static Model, PathBuf)>, ProviderError> {
        let wanted = request.model.as_str();
        let english = is_english(&request.language);
        if wanted == POCKETSPHINX {
            return Ok(None);
        }
        if wanted.is_empty() {
            let spoken = std::iter::once(&request.language).chain(&request.languages);
            let spoken: Vec<&str> = spoken.map(String::as_str).collect();
            let found = self.usual_for(&spoken);
            // English is what pocketsphinx knows.
            if found.is_some() || english {
                return Ok(found);
            }
            let asked: String = request.language.chars().take(40).collect();
            return Err(failure(
                ErrorKind::InvalidRequest,
                format!(
                    "no installed model hears {asked:?}: `vivavoce models fetch whisper-base` gets one that knows a \
                     hundred languages"
                ),
            ));
        }
        let Some(model) = named(wanted) else {
            let asked: String = wanted.chars().take(40).collect();
            let mut names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
            names.push(POCKETSPHINX);
            return Err(failure(
                ErrorKind::InvalidRequest,
                format!(
                    "there is no model {asked:?}; there are {}",
                    names.join(", ")
                ),
            ));
        };
        if !model.multilingual && !english {
            let asked: String = request.language.chars().take(40).collect();
            return Err(failure(
                ErrorKind::InvalidRequest,
                format!("{} understands English only, not {asked:?}", model.name),
            ));
        }
        let folder = self.settings.models.installed(model.name).ok_or_else(|| {
            failure(
                ErrorKind::InvalidRequest,
                format!(
                    "the model {0} is not installed: `vivavoce models fetch {0}` gets it",
                    model.name
                ),
            )
        })?;
        Ok(Some((model, folder)))
    }
}

/// The model with this name.
fn named(wanted: &str) -> Option<&'static Model> {
    let mut models = MODELS.iter();
    models.find(|model| model.name == wanted || model.alias == wanted)
}

/// The first installed model of those that fit.
fn first_installed(
    models: &Models,
    fits: impl Fn(&Model) -> bool,
) -> Option<(&'static Model, PathBuf)> {
    let mut fitting = MODELS.iter().filter(|model| fits(model));
    fitting.find_map(|model| Some((model, models.installed(model.name)?)))
}

/// The model that is taken for English.
fn usual(models: &Models) -> Option<(&'static Model, PathBuf)> {
    first_installed(models, |_| true)
}

/// What hears on this machine, or what is missing.
pub fn probe(models: &Models, pocketsphinx: &std::path::Path) -> Result<String, String> {
    let installed: Vec<&str> = MODELS
        .iter()
        .filter(|model| models.installed(model.name).is_some())
        .map(|model| model.name)
        .collect();
    if installed.is_empty() {
        let found = pocketsphinx::probe(pocketsphinx);
        return found.map_err(|error| format!("{}, or run `vivavoce models fetch`", error.message));
    }
    Ok(installed.join(", "))
}

fn is_english(tag: &str) -> bool {
    primary(tag) == "en"
}

/// The primary subtag of a language tag, in lower case.
fn primary(tag: &str) -> String {
    let primary = tag.split(['-', '_']).next().unwrap_or_default();
    primary.to_ascii_lowercase()
}

#[async_trait]
impl SpeechToText for LocalStt {
    fn slug(&self) -> &'static str {
        SLUG
    }

    fn parameters(&self) -> &'static [Parameter] {
        PARAMETERS
    }

    fn ignored_because(&self, field: &str, model: &str, spoken: &[&str]) -> Option<String> {
        let taken = if model.is_empty() {
            self.usual_for(spoken).map(|(model, _)| model)
        } else {
            named(model)
        };
        let why = match field {
            "languages" if !taken.is_some_and(|model| model.multilingual) => {
                "this model knows one, whisper-base finds which is spoken"
            }
            "keyterms" if taken.is_none_or(|model| model.kind != Kind::Whisper) => {
                "this model takes none, Whisper does"
            }
            _ => return parameters::ignored_because(PARAMETERS, field),
        };
        Some(format!("{field}: {why}"))
    }

    fn translates(&self, model: &str) -> bool {
        self.finds_language(model)
    }

    fn finds_language(&self, model: &str) -> bool {
        named(model).is_some_and(|model| model.multilingual)
    }

    fn ends_at_pauses(&self) -> bool {
        true
    }

    /// 0.4 s of it is the pause that it waits for (`benches/RESULTS.md`).
    fn final_delay(&self) -> FinalDelay {
        match usual(&self.settings.models) {
            Some(_) => FinalDelay::of_ms(470, 700),
            None => self.pocketsphinx.final_delay(),
        }
    }

    fn accepts(&self) -> Accepts {
        self.pocketsphinx.accepts()
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        let Some((model, folder)) = self.choose(&request)? else {
            let model = String::new();
            return self
                .pocketsphinx
                .open(SttRequest { model, ..request })
                .await;
        };
        let takes = AudioFormat::mono(Encoding::Linear16, RATE);
        if request.format != takes {
            return Err(failure(
                ErrorKind::InvalidRequest,
                format!("the local recogniser hears {takes}, not {}", request.format),
            ));
        }
        let mut languages: Vec<String> = request.languages.iter().map(|tag| primary(tag)).collect();
        let mut language = primary(&request.language);
        if !languages.is_empty() {
            languages.push(std::mem::take(&mut language));
        }
        let hearing = Hearing {
            language,
            languages,
            keyterms: request.keyterms,
            translate: request.translate,
            partial: false,
            prefix: Vec::new(),
        };
        let (pool, party) = (self.pool(model, &folder), request.party);
        Ok(stream::open(Arc::clone(&pool), |input, events| {
            Session::new(pool, party, hearing, input, events).run()
        }))
    }
}
