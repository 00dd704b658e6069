//! The one place where kinds of errors become the socket's error codes (protocol, section 3).

use super::protocol::ErrorCode;
use vivavoce_seams::{ErrorKind, ProviderError};
use vivavoce_synthesis::SynthesisError;

/// The code and message of an `error` event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

/// The code of a provider's error; `otherwise` is for kinds that have none of their own.
pub fn of_provider(error: &ProviderError, otherwise: ErrorCode) -> Refusal {
    let code = match error.kind {
        ErrorKind::InvalidRequest | ErrorKind::Quota => ErrorCode::ProviderRejected,
        ErrorKind::Auth => ErrorCode::ProviderAuth,
        ErrorKind::NoCredential => ErrorCode::MissingProviderAuth,
        ErrorKind::RateLimited { .. } => ErrorCode::ProviderRateLimited,
        ErrorKind::Overloaded => ErrorCode::Overloaded,
        ErrorKind::Unavailable => ErrorCode::ProviderUnavailable,
        ErrorKind::Timeout => ErrorCode::ProviderTimeout,
        ErrorKind::Protocol => otherwise,
    };
    Refusal::new(code, error.to_string())
}

/// The code of a synthesis error.
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
