//! A request over HTTP whose answer is small and wanted whole: a list, a token. Answers that stream are their vendors'.

use reqwest::RequestBuilder;

use super::Refusal;
use vivavoce_seams::{ErrorKind, ProviderError};

/// The longest answer that is read; the longest list of today has a tenth of it.
const MOST_BYTES: usize = 16 << 20;

/// The body of a successful answer. `refused` reads the vendor's words in any other.
pub async fn answer(
    provider: &'static str,
    request: RequestBuilder,
    refused: impl FnOnce(&Refusal) -> ProviderError,
) -> Result<Vec<u8>, ProviderError> {
    let lost = |error: reqwest::Error| {
        let kind = if error.is_timeout() {
            ErrorKind::Timeout
        } else {
            ErrorKind::Unavailable
        };
        // Addresses are long, and may hold what a caller said.
        ProviderError::new(provider, kind, error.without_url().to_string())
    };
    let mut answer = request.send().await.map_err(lost)?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > MOST_BYTES {
            let problem = format!("an answer of more than {} MiB", MOST_BYTES >> 20);
            return Err(ProviderError::new(provider, ErrorKind::Protocol, problem));
        }
        body.extend_from_slice(&chunk);
    }
    if answer.status().is_success() {
        return Ok(body);
    }
    Err(refused(&Refusal {
        status: answer.status(),
        headers: answer.headers().clone(),
        body: String::from_utf8_lossy(&body).into_owned(),
    }))
}
