//! Speech without a key: programs and servers of this machine. Each file is one engine or one protocol; which of them
//! answers is decided by what is installed and by the operator's settings.

mod espeak;
mod flite;
mod sentences;
pub mod tts;
mod utterance;
mod voices;
mod wav;
pub mod wyoming;

use crate::process::ProgramError;
use crate::providers::{ErrorKind, ProviderError};

/// The slug of everything in this folder.
pub const SLUG: &str = "local";

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
