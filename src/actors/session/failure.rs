//! Failures as the socket tells them: the one place where kinds become codes (protocol, section 3).

use super::messages::ErrorCode;
use vivavoce_seams::{ErrorKind, ProviderError};
use vivavoce_synthesis::SynthesisError;

/// Something that will not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

/// A provider's failure; `otherwise` is for those that have no code of their own.
pub fn of_provider(error: &ProviderError, otherwise: ErrorCode) -> Refusal {
    let code = match error.kind {
        ErrorKind::InvalidRequest | ErrorKind::Quota => ErrorCode::ProviderRejected,
        ErrorKind::Auth => ErrorCode::ProviderAuth,
        ErrorKind::RateLimited { .. } => ErrorCode::ProviderRateLimited,
        ErrorKind::Overloaded => ErrorCode::Overloaded,
        ErrorKind::Unavailable => ErrorCode::ProviderUnavailable,
        ErrorKind::Timeout => ErrorCode::ProviderTimeout,
        ErrorKind::Protocol => otherwise,
    };
    Refusal::new(code, error.to_string())
}

/// A failure of speech.
pub fn of_synthesis(error: &SynthesisError) -> Refusal {
    let code = match error {
        SynthesisError::Provider { error, .. } => return of_provider(error, ErrorCode::TtsFailed),
        SynthesisError::Invalid(_) => ErrorCode::InvalidMessage,
        SynthesisError::UnsupportedProvider { .. } => ErrorCode::UnsupportedProvider,
        SynthesisError::NoMemory | SynthesisError::Quota(_) => ErrorCode::Overloaded,
        SynthesisError::TooLong { .. }
        | SynthesisError::Conversion(_)
        | SynthesisError::Abandoned => ErrorCode::TtsFailed,
    };
    Refusal::new(code, error.to_string())
}
