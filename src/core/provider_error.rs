//! The error type of all providers.

use std::time::Duration;

/// The kind of a provider failure, with only the distinctions that callers act on. HTTP statuses and socket error
/// codes are derived from it in one place each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The provider will never accept this request, for example because it does not have the voice, model or
    /// language.
    InvalidRequest,
    /// The credential is refused.
    Auth,
    /// Neither the server nor the caller has a credential.
    NoCredential,
    /// The credential's plan or credit is exhausted; retrying soon will not help.
    Quota,
    /// Too many requests; retry after this long, where the provider said so.
    RateLimited {
        /// The provider's own `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// One of our own limits is reached (workers, permits, queue).
    Overloaded,
    /// The provider, its program or the network is not available.
    Unavailable,
    /// The provider did not answer in time.
    Timeout,
    /// The provider violated its protocol.
    Protocol,
}

/// A provider failure. The message is meant for people: it contains the provider's own reason and never a
/// credential.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{provider}: {message}")]
pub struct ProviderError {
    /// The provider's slug.
    pub provider: &'static str,
    /// The kind.
    pub kind: ErrorKind,
    /// The cause, for people.
    pub message: String,
}

impl ErrorKind {
    /// Its name in metrics and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::Auth => "auth",
            Self::NoCredential => "no_credential",
            Self::Quota => "quota",
            Self::RateLimited { .. } => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
        }
    }
}

impl ProviderError {
    /// A failure of `provider`.
    pub fn new(provider: &'static str, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            provider,
            kind,
            message: message.into(),
        }
    }
}
