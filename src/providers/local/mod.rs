//! Speech without a key: programs and servers of this machine. Each file is one engine or one protocol; which of them
//! answers is decided by what is installed and by the operator's settings.

mod espeak;
mod flite;
pub mod neural;
pub mod pocketsphinx;
mod scripts;
mod stream;
pub mod stt;
pub mod tts;
pub mod utterance;
mod voices;
mod wav;
pub mod workers;
pub mod wyoming;

use std::io;
use std::path::Path;
use std::sync::Arc;

use neural::Models;
use neural::tts::NeuralVoices;
use neural::turn::SmartTurn;
use stt::{LocalStt, LocalSttSettings};
use tts::{EngineState, LocalTts, LocalTtsSettings};
use vivavoce_config as config;
use vivavoce_core::process::ProgramError;
use vivavoce_quotas::Share;
use vivavoce_seams::{ErrorKind, ProviderError, ProviderTable};
use wyoming::stt::SttDeadlines;
use wyoming::{WyomingStt, WyomingTts};

/// The slug of everything in this folder.
pub const SLUG: &str = "local";

/// A way to hear or to speak on this machine.
#[derive(Debug)]
pub struct Engine {
    /// `hears` or `speaks`.
    pub role: &'static str,
    /// A description, or what is missing and which package brings it.
    pub found: Result<String, String>,
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.found {
            Ok(description) => write!(f, "{:6}  {description}", self.role),
            Err(missing) => write!(f, "{:6}  missing: {missing}", self.role),
        }
    }
}

/// Looks for the engines that the settings allow, without starting them or connecting to them.
pub fn engines(settings: &config::Providers, models: &Path) -> Vec<Engine> {
    // Nothing is started, so there is nobody to run them.
    let models = Models::new("", models);
    let hears = match &settings.local_stt_url {
        Some(server) => Ok(format!("the Wyoming server at {server}")),
        None => stt::probe(&models, &settings.local_model_path),
    };
    let mut engines = vec![Engine {
        role: "hears",
        found: hears,
    }];
    let speaks = |found| Engine {
        role: "speaks",
        found,
    };
    if let Some(server) = &settings.local_tts_url {
        engines.push(speaks(Ok(format!("the Wyoming server at {server}"))));
        return engines;
    }
    let neural = NeuralVoices::new(models, 1, Share::NONE);
    for voice in neural.list().iter() {
        engines.push(speaks(Ok(format!(
            "{}, {}",
            voice.voice.shown.id, voice.voice.shown.language
        ))));
    }
    let programs = tts::probe(&LocalTtsSettings::default().search_path);
    engines.extend(programs.into_iter().map(|(name, state)| {
        speaks(match state {
            EngineState::Found(file) => Ok(format!("{name}, {}", file.display())),
            EngineState::Missing(package) => {
                Err(format!("{name}; install the Debian package {package}"))
            }
        })
    }));
    engines
}

/// Adds what the settings name. Must be called in a runtime.
pub fn add_to(
    table: &mut ProviderTable,
    settings: &config::Providers,
    models: &Path,
    share: Share,
) -> io::Result<()> {
    let models = Models::new(std::env::current_exe()?, models);
    match &settings.local_tts_url {
        Some(server) => table.add_text_to_speech(Arc::new(WyomingTts::new(server.clone()))),
        None => table.add_text_to_speech(Arc::new(LocalTts::new(LocalTtsSettings {
            models: Some(models.clone()),
            preload: settings.local_stt_preload,
            share,
            ..LocalTtsSettings::default()
        }))),
    }
    if let Some(model) = SmartTurn::installed(&models, settings.local_turn_deadline_ms.0) {
        table.set_turn_model(Arc::new(model));
    }
    if let Some(server) = &settings.local_stt_url {
        let stt = WyomingStt::new(server.clone(), SttDeadlines::default());
        table.add_speech_to_text(Arc::new(stt));
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    table.add_speech_to_text(Arc::new(LocalStt::new(LocalSttSettings {
        models,
        size: match settings.local_stt_workers {
            0 => cores,
            workers => workers,
        },
        preload: settings.local_stt_preload,
        share,
        pocketsphinx: settings.local_model_path.clone(),
    })));
    Ok(())
}

fn failure(kind: ErrorKind, message: impl Into<String>) -> ProviderError {
    ProviderError::new(SLUG, kind, message)
}

fn program_failure(error: &ProgramError) -> ProviderError {
    let kind = match error {
        ProgramError::Missing { .. } | ProgramError::Io { .. } | ProgramError::Failed { .. } => {
            ErrorKind::Unavailable
        }
        ProgramError::Timeout { .. } => ErrorKind::Timeout,
        ProgramError::TooMuch { .. } => ErrorKind::Protocol,
    };
    failure(kind, error.to_string())
}
