//! Maps OpenAI's errors to kinds of errors.

use serde::Deserialize;

use super::SLUG;
use crate::transport::Refusal;
use vivavoce_seams::{ErrorKind, ProviderError};

/// Codes and types that say more than the status.
const CODES: &[(&str, ErrorKind)] = &[
    ("insufficient_quota", ErrorKind::Quota),
    ("billing_hard_limit_reached", ErrorKind::Quota),
    ("invalid_api_key", ErrorKind::Auth),
    ("model_not_found", ErrorKind::InvalidRequest),
];

/// The body of an error. Servers of others also write the error as a text, or under another name.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    error: Problem,
    message: String,
    detail: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Problem {
    Object {
        #[serde(default)]
        message: Option<String>,
        #[serde(default, rename = "type")]
        kind: Option<String>,
        #[serde(default)]
        code: serde_json::Value,
    },
    Text(String),
}

impl Default for Problem {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// A refused request.
pub(super) fn refused(refusal: &Refusal) -> ProviderError {
    let body: Body = serde_json::from_str(&refusal.body).unwrap_or_default();
    let (told, names) = match body.error {
        Problem::Object {
            message,
            kind,
            code,
        } => {
            let code = code.as_str().map(str::to_owned);
            (message.unwrap_or_default(), [code, kind])
        }
        Problem::Text(text) => (text, [None, None]),
    };
    let detail = body.detail.as_str().unwrap_or_default();
    let words = [told.as_str(), &body.message, detail, &refusal.body];
    let words = words.iter().find(|words| !words.is_empty());
    let known = names.iter().flatten().find_map(|name| {
        let known = CODES.iter().find(|(code, _)| code == name);
        known.map(|(_, kind)| *kind)
    });
    let kind = known.unwrap_or_else(|| refusal.kind());
    let mut error = refusal.error(SLUG, kind, words.copied().unwrap_or_default());
    if let Some(request) = refusal.header("x-request-id") {
        let request = crate::transport::shortened(request);
        error.message = format!("{} (request {request})", error.message);
    }
    error
}

/// The connection has failed. Its URL is left out.
pub(super) fn broken(error: reqwest::Error) -> ProviderError {
    let kind = if error.is_timeout() {
        ErrorKind::Timeout
    } else {
        ErrorKind::Unavailable
    };
    let causes = vivavoce_core::causes::causes(&error.without_url());
    ProviderError::new(SLUG, kind, causes)
}

/// What is not the vendor's protocol.
pub(super) fn unreadable(problem: impl std::fmt::Display) -> ProviderError {
    let message = format!("sent an invalid answer: {problem}");
    ProviderError::new(SLUG, ErrorKind::Protocol, message)
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;
    use reqwest::header::HeaderMap;

    use super::*;

    #[test]
    fn every_refusal_has_its_kind_and_the_servers_words() {
        for (status, body, kind, message) in [
            (
                401,
                r#"{"error":{"message":"Incorrect API key","type":"invalid_request_error","code":"invalid_api_key"}}"#,
                ErrorKind::Auth,
                "answered 401: Incorrect API key",
            ),
            (
                429,
                r#"{"error":{"message":"No credit","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                ErrorKind::Quota,
                "answered 429: No credit",
            ),
            (
                404,
                r#"{"error":{"message":"No such model","code":null}}"#,
                ErrorKind::InvalidRequest,
                "answered 404: No such model",
            ),
            (
                400,
                r#"{"error":"file too long"}"#,
                ErrorKind::InvalidRequest,
                "answered 400: file too long",
            ),
            (
                500,
                r#"{"detail":"the model is not loaded"}"#,
                ErrorKind::Unavailable,
                "answered 500: the model is not loaded",
            ),
            (503, "busy", ErrorKind::Unavailable, "answered 503: busy"),
        ] {
            let error = refused(&Refusal {
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::new(),
                body: body.to_owned(),
            });
            assert_eq!((error.kind, error.message.as_str()), (kind, message));
        }
    }
}
