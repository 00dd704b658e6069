//! What callers hear before they are in a room: the recordings of the settings, or their texts in the default voice.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::ServerError;
use crate::audio::decode::{FileDecoder, FileLimits};
use crate::audio::format::{Channels, SampleRate};
use crate::audio::{Pcm, linear16, offline};
use crate::config::Settings;
use crate::providers::ProviderTable;
use crate::quotas::Party;
use crate::synthesis::{Synthesizer, TtsConfig};
use crate::telephony::bridge;
use crate::telephony::call::pin::Prompt;

/// The longest recording.
const LONGEST: Duration = Duration::from_mins(1);
/// The rate of the sound of a prompt.
const RATE: SampleRate = SampleRate::HZ_48000;

/// The prompts, each made when it is needed for the first time.
pub struct Prompts {
    enter_pin: Words,
    wrong_pin: Words,
    providers: Arc<ProviderTable>,
    synthesizer: Arc<Synthesizer>,
    made: Mutex<HashMap<Prompt, Arc<[i16]>>>,
}

/// What a prompt says.
struct Words {
    file: Option<PathBuf>,
    text: String,
}

impl Prompts {
    /// From the settings. Recordings are read, so that what is wrong with them is known at the start.
    pub fn open(
        settings: &Settings,
        providers: &Arc<ProviderTable>,
        synthesizer: &Arc<Synthesizer>,
    ) -> Result<Self, ServerError> {
        let sip = &settings.sip;
        let words = |file: &Option<PathBuf>, text: &str| Words {
            file: file.clone(),
            text: text.to_owned(),
        };
        let prompts = Self {
            enter_pin: words(&sip.pin_sound, &sip.pin_text),
            wrong_pin: words(&sip.wrong_pin_sound, &sip.wrong_pin_text),
            providers: Arc::clone(providers),
            synthesizer: Arc::clone(synthesizer),
            made: Mutex::default(),
        };
        for (setting, prompt) in [
            ("sip.pin_sound", Prompt::EnterPin),
            ("sip.wrong_pin_sound", Prompt::WrongPin),
        ] {
            let Some(file) = &prompts.words(prompt).file else {
                continue;
            };
            let sound = recorded(file).map_err(|error| {
                ServerError::Prompts(format!("{setting}: {}: {error}", file.display()))
            })?;
            prompts.keep(prompt, &sound);
        }
        Ok(prompts)
    }

    const fn words(&self, prompt: Prompt) -> &Words {
        match prompt {
            Prompt::EnterPin => &self.enter_pin,
            Prompt::WrongPin => &self.wrong_pin,
        }
    }

    fn keep(&self, prompt: Prompt, sound: &Arc<[i16]>) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.insert(prompt, Arc::clone(sound));
    }

    /// Says a prompt in the default voice: the local one where there is one.
    async fn spoken(&self, prompt: Prompt) -> Result<Arc<[i16]>, String> {
        let slugs = self.providers.text_to_speech_slugs();
        let local = slugs.iter().find(|slug| **slug == "local");
        let slug = local.or(slugs.first()).ok_or("there is no voice")?;
        let config = TtsConfig::of(slug, RATE).check();
        let config = config.map_err(|error| format!("{} {}", error.field, error.problem))?;
        let text = &self.words(prompt).text;
        let speech = self.synthesizer.speak(config, text, &Party::Operator).await;
        let mut speech = speech.map_err(|error| error.to_string())?;
        let chunks = speech.whole().await.map_err(|error| error.to_string())?;
        let mut samples = Vec::new();
        for chunk in chunks {
            samples.extend(linear16::samples(&chunk));
        }
        Ok(samples.into())
    }
}

#[async_trait]
impl bridge::Prompts for Prompts {
    async fn sound(&self, prompt: Prompt) -> Option<Arc<[i16]>> {
        let known = {
            let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            made.get(&prompt).cloned()
        };
        if known.is_some() {
            return known;
        }
        match self.spoken(prompt).await {
            Ok(sound) => {
                self.keep(prompt, &sound);
                Some(sound)
            }
            Err(error) => {
                tracing::warn!(?prompt, error, "a prompt cannot be said");
                None
            }
        }
    }
}

/// The sound of a recording.
fn recorded(path: &Path) -> Result<Arc<[i16]>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let limits = FileLimits { duration: LONGEST };
    let decoder = FileDecoder::open(file, limits).map_err(|error| error.to_string())?;
    let layout = decoder.layout();
    let mut samples = Vec::new();
    for part in decoder {
        samples.extend(part.map_err(|error| error.to_string())?.into_samples());
    }
    let sound = Pcm::new(layout, samples).into_channels(Channels::Mono);
    Ok(offline::OfflineResampler::convert(sound, RATE)
        .into_samples()
        .into())
}
