//! Tables that map Deepgram's HTTP errors, close codes and error messages to kinds of errors.

use serde::Deserialize;

use super::SLUG;
use crate::transport::{Refusal, shortened};
use vivavoce_seams::{ErrorKind, ProviderError};

/// The vendor's own codes, by their beginnings; the first that fits counts. They stand in the reason of a close, and in
/// error messages.
const CODES: &[(&str, ErrorKind)] = &[
    ("NET-0001", ErrorKind::Timeout),
    ("NET-", ErrorKind::Unavailable),
    // More characters than the plan lets through in this time.
    ("DATA-0001", ErrorKind::RateLimited { retry_after: None }),
    ("DATA-", ErrorKind::InvalidRequest),
    ("MESSAGE-", ErrorKind::InvalidRequest),
    ("BIG-", ErrorKind::InvalidRequest),
];

/// Close codes, where the reason says nothing; all others are [`ErrorKind::Unavailable`].
const CLOSES: &[(u16, ErrorKind)] = &[
    (1002, ErrorKind::Protocol),
    (1003, ErrorKind::Protocol),
    (1007, ErrorKind::Protocol),
    (1008, ErrorKind::InvalidRequest),
    (1009, ErrorKind::InvalidRequest),
];

/// Error codes of HTTP bodies that say more than the status.
const ERR_CODES: &[(&str, ErrorKind)] = &[("ASR_PAYMENT_REQUIRED", ErrorKind::Quota)];

/// The bodies of HTTP errors, which come in two shapes.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    err_code: String,
    err_msg: String,
    message: String,
    details: String,
    request_id: String,
}

/// An error message on a socket.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Failure {
    code: String,
    variant: String,
    description: String,
    message: String,
}

/// A refused handshake or request.
pub(super) fn refused(refusal: &Refusal) -> ProviderError {
    let body: Body = serde_json::from_str(&refusal.body).unwrap_or_default();
    let told = joined(&[&body.err_msg, &body.message, &body.details]);
    let words = if told.is_empty() {
        refusal.header("dg-error").unwrap_or(&refusal.body)
    } else {
        &told
    };
    let known = ERR_CODES.iter().find(|(code, _)| *code == body.err_code);
    let kind = known.map_or_else(|| refusal.kind(), |(_, kind)| *kind);
    let mut error = refusal.error(SLUG, kind, words);
    let request = refusal.header("dg-request-id").unwrap_or(&body.request_id);
    if !request.is_empty() {
        error.message = format!("{} (request {})", error.message, shortened(request));
    }
    error
}

/// The vendor has closed a socket that was still needed.
pub(super) fn closed(frame: Option<(u16, String)>) -> ProviderError {
    let Some((code, reason)) = frame else {
        let problem = "the connection ended without a close frame";
        return ProviderError::new(SLUG, ErrorKind::Unavailable, problem);
    };
    let by_code = || CLOSES.iter().find(|(close, _)| *close == code);
    let kind = by_words(&reason)
        .or_else(|| by_code().map(|(_, kind)| *kind))
        .unwrap_or(ErrorKind::Unavailable);
    let words = shortened(&reason);
    let message = format!("closed the connection with {code} {words}");
    ProviderError::new(SLUG, kind, message.trim_end())
}

/// An error message on a socket.
pub(super) fn failed(failure: &Failure) -> ProviderError {
    let kind = by_words(&failure.code)
        .or_else(|| by_words(&failure.description))
        .unwrap_or(ErrorKind::Unavailable);
    let Failure {
        code,
        variant,
        description,
        message,
    } = failure;
    let words = joined(&[code, variant, description, message]);
    ProviderError::new(SLUG, kind, shortened(&words))
}

/// What is not the vendor's protocol.
pub(super) fn unreadable(problem: impl std::fmt::Display) -> ProviderError {
    let message = format!("sent an invalid message: {problem}");
    ProviderError::new(SLUG, ErrorKind::Protocol, message)
}

fn by_words(words: &str) -> Option<ErrorKind> {
    let known = CODES.iter().find(|(code, _)| words.starts_with(code));
    known.map(|(_, kind)| *kind)
}

fn joined(parts: &[&String]) -> String {
    let parts = parts.iter().filter(|part| !part.is_empty());
    parts
        .map(|part| part.as_str())
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reqwest::StatusCode;
    use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn refusal(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Refusal {
        let headers = headers.iter().map(|&(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        Refusal {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.collect::<HeaderMap>(),
            body: body.to_owned(),
        }
    }

    #[test]
    fn every_refusal_has_its_kind_and_the_vendors_words() {
        let later = ErrorKind::RateLimited {
            retry_after: Some(Duration::from_secs(7)),
        };
        let request: (&str, &str) = ("dg-request-id", "r-1");
        for (refusal, kind, message) in [
            (
                refusal(
                    400,
                    &[],
                    r#"{"category":"INVALID_QUERY","message":"No such model","details":"m"}"#,
                ),
                ErrorKind::InvalidRequest,
                "answered 400: No such model: m",
            ),
            (
                refusal(
                    401,
                    &[request],
                    r#"{"err_code":"INVALID_AUTH","err_msg":"Invalid credentials."}"#,
                ),
                ErrorKind::Auth,
                "answered 401: Invalid credentials. (request r-1)",
            ),
            (refusal(402, &[], ""), ErrorKind::Quota, "answered 402"),
            (
                refusal(
                    400,
                    &[],
                    r#"{"err_code":"ASR_PAYMENT_REQUIRED","err_msg":"No credit","request_id":"r-2"}"#,
                ),
                ErrorKind::Quota,
                "answered 400: No credit (request r-2)",
            ),
            (
                refusal(403, &[("dg-error", "not yours")], "<html>"),
                ErrorKind::Auth,
                "answered 403: not yours",
            ),
            (
                refusal(429, &[("retry-after", "7")], "Too many requests"),
                later,
                "answered 429: Too many requests",
            ),
            (
                refusal(503, &[], ""),
                ErrorKind::Unavailable,
                "answered 503",
            ),
        ] {
            let error = refused(&refusal);
            assert_eq!((error.kind, error.message.as_str()), (kind, message));
        }
    }

    #[test]
    fn every_close_has_its_kind() {
        use ErrorKind::{InvalidRequest, Protocol, RateLimited, Timeout, Unavailable};
        for (code, reason, kind) in [
            (1000, "", Unavailable),
            (1001, "", Unavailable),
            (1002, "", Protocol),
            (1003, "MESSAGE-0000", InvalidRequest),
            (1003, "", Protocol),
            (1007, "", Protocol),
            (1008, "DATA-0000", InvalidRequest),
            (1008, "DATA-0001", RateLimited { retry_after: None }),
            (1008, "", InvalidRequest),
            (1009, "BIG-0000", InvalidRequest),
            (1011, "NET-0000", Unavailable),
            (1011, "NET-0001", Timeout),
            (1011, "NET-0003", Unavailable),
            (1012, "", Unavailable),
            (4000, "", Unavailable),
        ] {
            let error = closed(Some((code, reason.to_owned())));
            assert_eq!(error.kind, kind, "{code} {reason}");
            let message = format!("closed the connection with {code} {reason}");
            assert_eq!(error.message, message.trim_end());
        }
        assert_eq!(closed(None).kind, Unavailable);
    }

    #[test]
    fn every_error_message_has_its_kind() {
        for (message, kind, words) in [
            (
                r#"{"type":"Error","variant":"SchemaError","description":"bad","message":"worse"}"#,
                ErrorKind::Unavailable,
                "SchemaError: bad: worse",
            ),
            (
                r#"{"type":"Error","code":"NET-0001","description":"idle"}"#,
                ErrorKind::Timeout,
                "NET-0001: idle",
            ),
            (
                r#"{"type":"Error","description":"DATA-0000","message":"no sound"}"#,
                ErrorKind::InvalidRequest,
                "DATA-0000: no sound",
            ),
        ] {
            let error = failed(&serde_json::from_str(message).unwrap());
            assert_eq!((error.kind, error.message.as_str()), (kind, words));
        }
    }
}
