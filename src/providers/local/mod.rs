//! Speech without a key: programs and servers of this machine. Each file is one engine or one protocol; which of them
//! answers is decided by what is installed and by the operator's settings.

mod espeak;
mod flite;
pub mod pocketsphinx;
pub mod tts;
pub mod utterance;
mod voices;
mod wav;
pub mod workers;
pub mod wyoming;

use std::io;
use std::sync::Arc;

use pocketsphinx::Pocketsphinx;
use pocketsphinx::pool::PoolSettings;
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
pub fn engines(settings: &config::Providers) -> Vec<Engine> {
    let hears = match &settings.local_stt_url {
        Some(server) => Ok(format!("the Wyoming server at {server}")),
        None => pocketsphinx::probe(&settings.local_model_path).map_err(|error| error.message),
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
    share: Share,
) -> io::Result<()> {
    match &settings.local_tts_url {
        Some(server) => table.add_text_to_speech(Arc::new(WyomingTts::new(server.clone()))),
        None => table.add_text_to_speech(Arc::new(LocalTts::new(LocalTtsSettings::default()))),
    }
    if let Some(server) = &settings.local_stt_url {
        let stt = WyomingStt::new(server.clone(), SttDeadlines::default());
        table.add_speech_to_text(Arc::new(stt));
        return Ok(());
    }
    let mut pool = PoolSettings::new(std::env::current_exe()?);
    pool.share = share;
    pool.model.clone_from(&settings.local_model_path);
    pool.preload = settings.local_stt_preload;
    if settings.local_stt_workers > 0 {
        pool.size = settings.local_stt_workers;
    }
    table.add_speech_to_text(Arc::new(Pocketsphinx::new(pool)));
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
