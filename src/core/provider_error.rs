//! What can go wrong at a provider.

use std::time::Duration;

/// What went wrong at a provider, in the only distinctions that a caller acts on. HTTP statuses and socket codes are
/// derived from it in one place each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The provider will never accept this request: a voice, model or language that it does not have.
    InvalidRequest,
    /// The credential is missing or refused.
    Auth,
    /// The credential's plan or credit is used up; the same will not succeed soon.
    Quota,
    /// Too many requests; try again after this long, where the provider said so.
    RateLimited {
        /// The provider's own `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Our own bound is reached (workers, permits, queue).
    Overloaded,
    /// The provider, its program or its network is not there.
    Unavailable,
    /// It did not answer in time.
    Timeout,
    /// It answered with something that is not its protocol.
    Protocol,
}

/// A failure of a provider. The message is for people, names the cause that the provider gave and never a credential.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{provider}: {message}")]
pub struct ProviderError {
    /// The provider's slug.
    pub provider: &'static str,
    /// What kind of failure.
    pub kind: ErrorKind,
    /// The cause, for people.
    pub message: String,
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
