//! The recogniser that needs no key: pocketsphinx, US English, for demonstrations and for tests that close the loop.
//! It runs in worker processes ([`pool`]), because it is native code that takes whole milliseconds at a time. A session
//! cuts its audio into utterances and leases a worker for each; the audio of the present one is kept until it is
//! recognised, so an utterance survives the worker that was hearing it.

pub mod library;
mod narrowband;
pub mod pool;
mod session;
pub mod wire;
pub mod worker;

use std::path::Path;

use super::SLUG;
use super::stream;
use super::workers::WorkerPool;
use async_trait::async_trait;
use pool::PoolSettings;
use session::Session;
use vivavoce_audio::vad::RATE;
use vivavoce_audio::{AudioFormat, Encoding};
use vivavoce_seams::{
    Accepts, ErrorKind, FinalDelay, ProviderError, SpeechToText, SttRequest, SttStream,
};

/// The language of the model.
const LANGUAGE: &str = "en-US";

/// Whether the recogniser can be used, in a few milliseconds and without loading its model: what it is, or what is
/// missing and which Debian packages bring it.
pub fn probe(model: &Path) -> Result<String, ProviderError> {
    library::check(model)
        .map(|()| format!("pocketsphinx, US English, model {}", model.display()))
        .map_err(|error| ProviderError::new(SLUG, ErrorKind::Unavailable, error.to_string()))
}

/// The provider. Dropping it ends its streams and workers.
#[derive(Debug)]
pub struct Pocketsphinx {
    settings: PoolSettings,
    pool: WorkerPool<pool::Pocketsphinx>,
}

impl Pocketsphinx {
    /// Starts to load one worker in the background, if that is wanted and the recogniser is installed; must be called in
    /// a runtime.
    pub fn new(settings: PoolSettings) -> Self {
        let pool = WorkerPool::new(settings.workers());
        if settings.preload && library::check(&settings.model).is_ok() {
            tokio::spawn(pool.share().tend());
        }
        Self { settings, pool }
    }
}

#[async_trait]
impl SpeechToText for Pocketsphinx {
    fn slug(&self) -> &'static str {
        SLUG
    }

    /// Half a second of it is the pause that it waits for (`benches/RESULTS.md`).
    fn final_delay(&self) -> FinalDelay {
        FinalDelay::of_ms(780, 940)
    }

    fn accepts(&self) -> Accepts {
        Accepts {
            encodings: &[Encoding::Linear16],
            rates: const { &[RATE.hz()] },
            stereo: false,
            stream_limit: None,
        }
    }

    async fn open(&self, request: SttRequest) -> Result<SttStream, ProviderError> {
        check_request(&request)?;
        probe(&self.settings.model)?;
        let (pool, party) = (self.pool.share(), request.party);
        Ok(stream::open(self.pool.share(), |input, events| {
            Session::new(pool, party, input, events).run()
        }))
    }
}

fn check_request(request: &SttRequest) -> Result<(), ProviderError> {
    let refuse = |message| Err(ProviderError::new(SLUG, ErrorKind::InvalidRequest, message));
    let primary = request.language.split(['-', '_']).next();
    if !primary.is_some_and(|primary| primary.eq_ignore_ascii_case("en")) {
        let asked: String = request.language.chars().take(40).collect();
        return refuse(format!(
            "the local recogniser understands English only, not {asked:?}"
        ));
    }
    if !request.model.is_empty() {
        let asked: String = request.model.chars().take(40).collect();
        return refuse(format!(
            "the local recogniser has one model only, not {asked:?}; leave the model empty"
        ));
    }
    let takes = AudioFormat::mono(Encoding::Linear16, RATE);
    if request.format != takes {
        return refuse(format!(
            "the local recogniser hears {takes}, not {}",
            request.format
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_audio::SampleRate;

    fn request(language: &str, model: &str, rate: SampleRate) -> SttRequest {
        SttRequest {
            party: vivavoce_quotas::Party::Operator,
            language: language.to_owned(),
            model: model.to_owned(),
            punctuation: true,
            keyterms: Vec::new(),
            languages: Vec::new(),
            diarize: false,
            translate: false,
            credential: None,
            format: AudioFormat::mono(Encoding::Linear16, rate),
        }
    }

    #[test]
    fn only_english_at_sixteen_kilohertz_is_understood() {
        for language in ["en", "en-US", "EN-gb", "en_AU"] {
            assert!(check_request(&request(language, "", RATE)).is_ok());
        }
        for (language, model, rate, says) in [
            ("de-DE", "", RATE, "English only"),
            ("eng", "", RATE, "English only"),
            ("", "", RATE, "English only"),
            ("en-US", "nova-3", RATE, "one model"),
            ("en-US", "", SampleRate::HZ_8000, "16000 Hz"),
        ] {
            let refused = check_request(&request(language, model, rate)).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidRequest);
            assert!(refused.message.contains(says), "{refused}");
        }
    }

    #[test]
    fn a_missing_model_names_the_packages_to_install() {
        let missing = probe(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(missing.kind, ErrorKind::Unavailable);
        assert!(
            missing.message.contains(library::DEBIAN_PACKAGES),
            "{missing}"
        );
    }
}
