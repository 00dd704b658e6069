//! HTTP requests with small responses that are read as a whole: a list, a token.

use reqwest::{RequestBuilder, Response};

use super::Refusal;
use vivavoce_seams::{ErrorKind, ProviderError};

/// The largest response that is read, ten times the longest list of today.
const MAX_BYTES: usize = 16 << 20;

/// Why there is no complete response.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// Connecting, sending or receiving failed, or timed out.
    #[error(transparent)]
    Connection(#[from] reqwest::Error),
    /// The response exceeds [`MAX_BYTES`].
    #[error("the response is larger than {} MiB", MAX_BYTES >> 20)]
    TooLong,
}

/// Sends a request and returns the body of a successful response; `refused` interprets any other.
pub async fn answer(
    provider: &'static str,
    request: RequestBuilder,
    refused: impl FnOnce(&Refusal) -> ProviderError,
) -> Result<Vec<u8>, ProviderError> {
    let failed = |error: AnswerError| match error {
        AnswerError::Connection(error) => {
            let kind = if error.is_timeout() {
                ErrorKind::Timeout
            } else {
                ErrorKind::Unavailable
            };
            // URLs are long, and may contain text of the caller.
            ProviderError::new(provider, kind, error.without_url().to_string())
        }
        AnswerError::TooLong => {
            ProviderError::new(provider, ErrorKind::Protocol, error.to_string())
        }
    };
    let answer = request.send().await;
    let mut answer = answer.map_err(|error| failed(error.into()))?;
    let body = body(&mut answer).await.map_err(failed)?;
    if answer.status().is_success() {
        return Ok(body);
    }
    Err(refused(&Refusal {
        status: answer.status(),
        headers: answer.headers().clone(),
        body: String::from_utf8_lossy(&body).into_owned(),
    }))
}

/// Reads the body of a response of any status.
pub async fn body(answer: &mut Response) -> Result<Vec<u8>, AnswerError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > MAX_BYTES {
            return Err(AnswerError::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
