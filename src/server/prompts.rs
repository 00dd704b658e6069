//! What callers hear outside of their room, before they are in it or on hold: the recordings of the settings, or their texts
//! in the default voice.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::ServerError;
use crate::audio::decode::{FileDecoder, FileLimits};
use crate::audio::format::{Channels, SampleRate};
use crate::audio::{Pcm, linear16, offline};
use crate::config::{Settings, Sip};
use crate::providers::ProviderTable;
use crate::quotas::Party;
use crate::synthesis::{Synthesizer, TtsConfig};
use crate::telephony::bridge;
use crate::telephony::call::pin::Prompt;

/// The longest recording.
const LONGEST: Duration = Duration::from_mins(1);
/// What is said again and again is said after so long.
const PAUSE: Duration = Duration::from_secs(8);
/// Positions in a queue whose words are kept in memory. Others are those of the cache of speech.
const KEPT_POSITIONS: u32 = 10;
/// The rate of the sound of a prompt.
const RATE: SampleRate = SampleRate::HZ_48000;

/// The prompts, each made when it is needed for the first time.
pub struct Prompts {
    /// What is said where there is no recording.
    enter_pin: String,
    wrong_pin: String,
    hold: String,
    caller_left: String,
    position: String,
    /// For so many positions there are recordings.
    recorded_positions: u32,
    providers: Arc<ProviderTable>,
    synthesizer: Arc<Synthesizer>,
    made: Mutex<HashMap<Prompt, Arc<[i16]>>>,
}

impl Prompts {
    /// From the settings. Recordings are read, so that what is wrong with them is known at the start.
    pub fn open(
        settings: &Settings,
        providers: &Arc<ProviderTable>,
        synthesizer: &Arc<Synthesizer>,
    ) -> Result<Self, ServerError> {
        let sip = &settings.sip;
        let mut prompts = Self {
            enter_pin: sip.pin_text.clone(),
            wrong_pin: sip.wrong_pin_text.clone(),
            hold: sip.hold_text.clone(),
            caller_left: sip.transfer_caller_left_text.clone(),
            position: sip.queue_text.clone(),
            recorded_positions: 0,
            providers: Arc::clone(providers),
            synthesizer: Arc::clone(synthesizer),
            made: Mutex::default(),
        };
        for (setting, file, prompt) in files(sip) {
            let sound = recorded(setting, file).map_err(ServerError::Prompts)?;
            prompts.keep(prompt, &sound);
            if let Prompt::Position(position) = prompt {
                prompts.recorded_positions = position;
            }
        }
        Ok(prompts)
    }

    fn text(&self, prompt: Prompt) -> Cow<'_, str> {
        match prompt {
            Prompt::EnterPin => Cow::Borrowed(&self.enter_pin),
            Prompt::WrongPin => Cow::Borrowed(&self.wrong_pin),
            Prompt::Hold => Cow::Borrowed(&self.hold),
            Prompt::CallerLeft => Cow::Borrowed(&self.caller_left),
            Prompt::Position(position) => self
                .position
                .replace("{position}", &position.to_string())
                .into(),
        }
    }

    /// Of recordings of positions the last one is for all that follow.
    fn recorded(&self, prompt: Prompt) -> Prompt {
        match prompt {
            Prompt::Position(position) if self.recorded_positions > 0 => {
                Prompt::Position(position.min(self.recorded_positions))
            }
            prompt => prompt,
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
        let text = self.text(prompt);
        if text.trim().is_empty() {
            return Ok(Arc::default());
        }
        let speech = self
            .synthesizer
            .speak(config, &text, &Party::Operator)
            .await;
        let mut speech = speech.map_err(|error| error.to_string())?;
        let chunks = speech.whole().await.map_err(|error| error.to_string())?;
        let mut samples = Vec::new();
        for chunk in chunks {
            samples.extend(linear16::samples(&chunk));
        }
        if prompt == Prompt::Hold {
            // It is said again and again.
            samples.resize(samples.len() + RATE.frames_in(PAUSE), 0);
        }
        Ok(samples.into())
    }
}

#[async_trait]
impl bridge::Prompts for Prompts {
    async fn sound(&self, prompt: Prompt) -> Option<Arc<[i16]>> {
        let prompt = self.recorded(prompt);
        let known = {
            let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            made.get(&prompt).cloned()
        };
        if known.is_some() {
            return known;
        }
        match self.spoken(prompt).await {
            Ok(sound) => {
                if !matches!(prompt, Prompt::Position(position) if position > KEPT_POSITIONS) {
                    self.keep(prompt, &sound);
                }
                Some(sound)
            }
            Err(error) => {
                tracing::warn!(?prompt, error, "a prompt cannot be said");
                None
            }
        }
    }
}

/// The recordings that settings name, with their settings, and what each is for.
pub(super) fn files(sip: &Sip) -> impl Iterator<Item = (&'static str, &Path, Prompt)> {
    let named = [
        ("sip.pin_sound", &sip.pin_sound, Prompt::EnterPin),
        (
            "sip.wrong_pin_sound",
            &sip.wrong_pin_sound,
            Prompt::WrongPin,
        ),
        ("sip.hold_sound", &sip.hold_sound, Prompt::Hold),
    ];
    let named = named
        .into_iter()
        .filter_map(|(setting, file, prompt)| Some((setting, file.as_deref()?, prompt)));
    let positions = (1..).zip(&sip.queue_sounds.0).map(|(position, file)| {
        (
            "sip.queue_sounds",
            Path::new(file),
            Prompt::Position(position),
        )
    });
    named.chain(positions)
}

/// The sound of a recording. The error names the setting and the file.
pub(super) fn recorded(setting: &str, path: &Path) -> Result<Arc<[i16]>, String> {
    let unusable =
        |error: &dyn std::fmt::Display| format!("{setting}: {}: {error}", path.display());
    let file = File::open(path).map_err(|error| unusable(&error))?;
    let limits = FileLimits { duration: LONGEST };
    let decoder = FileDecoder::open(file, limits).map_err(|error| unusable(&error))?;
    let layout = decoder.layout();
    let mut samples = Vec::new();
    for part in decoder {
        samples.extend(part.map_err(|error| unusable(&error))?.into_samples());
    }
    let sound = Pcm::new(layout, samples).into_channels(Channels::Mono);
    Ok(offline::OfflineResampler::convert(sound, RATE)
        .into_samples()
        .into())
}
