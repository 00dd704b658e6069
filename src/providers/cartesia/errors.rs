//! Maps Cartesia's HTTP errors, `error` messages and close codes to kinds of errors. Its own messages are passed on without
//! anything that looks like a key.

use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde::Deserialize;

use super::SLUG;
use crate::transport::{Refusal, shortened};
use vivavoce_seams::{ErrorKind, ProviderError};

/// How the vendor's keys begin.
const KEY: &str = "sk_car_";

/// An error as the vendor describes it, in a body or in a message.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Problem {
    status_code: Option<u16>,
    error_code: Option<String>,
    title: Option<String>,
    message: Option<String>,
    request_id: Option<String>,
    /// Of which utterance, where it is of one.
    pub(super) context_id: Option<String>,
}

impl Problem {
    /// `Title: message (request …)`.
    fn words(&self) -> String {
        let said: Vec<&str> = [&self.title, &self.message]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let mut words = said.join(": ");
        if let Some(id) = &self.request_id {
            words = format!("{words} (request {id})");
        }
        without_keys(&words)
    }

    fn kind(&self, refusal: &Refusal) -> ErrorKind {
        let code = self.error_code.as_deref().unwrap_or_default();
        if ["quota", "credit"].iter().any(|word| code.contains(word)) {
            return ErrorKind::Quota;
        }
        refusal.kind()
    }
}

/// What an answer of HTTP means that is no success.
pub(super) fn refused(refusal: &Refusal) -> ProviderError {
    match serde_json::from_str::<Problem>(&refusal.body) {
        Ok(problem) => refusal.error(SLUG, problem.kind(refusal), &problem.words()),
        Err(_) => refusal.error(SLUG, refusal.kind(), &without_keys(&refusal.body)),
    }
}

/// What an `error` message means.
pub(super) fn reported(problem: &Problem) -> ProviderError {
    let status = problem
        .status_code
        .and_then(|s| StatusCode::from_u16(s).ok());
    let refusal = Refusal {
        status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        headers: HeaderMap::new(),
        body: String::new(),
    };
    refusal.error(SLUG, problem.kind(&refusal), &problem.words())
}

/// What it means that the vendor closes a socket before it was asked to.
pub(super) fn closed(frame: Option<(u16, String)>) -> ProviderError {
    let Some((code, reason)) = frame else {
        let problem = "closed the connection without a close frame";
        return ProviderError::new(SLUG, ErrorKind::Unavailable, problem);
    };
    let kind = match code {
        1000 | 1001 | 1008 if speaks_of_time(&reason) => ErrorKind::Timeout,
        1002 | 1003 | 1007 => ErrorKind::Protocol,
        1008 | 1009 => ErrorKind::InvalidRequest,
        _ => ErrorKind::Unavailable,
    };
    let refusal = format!("closed the connection: {code} {reason}");
    ProviderError::new(SLUG, kind, shortened(&without_keys(&refusal)))
}

/// What is not the vendor's protocol.
pub(super) fn unreadable(problem: impl std::fmt::Display) -> ProviderError {
    let problem = format!("sent an invalid message: {problem}");
    ProviderError::new(SLUG, ErrorKind::Protocol, shortened(&problem))
}

fn speaks_of_time(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    ["idle", "timeout", "timed out", "inactiv"]
        .iter()
        .any(|word| reason.contains(word))
}

/// The text with every word that holds a key masked.
fn without_keys(words: &str) -> String {
    words
        .split(' ')
        .map(|word| if word.contains(KEY) { "***" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LIMITED: ErrorKind = ErrorKind::RateLimited { retry_after: None };

    #[test]
    fn each_answer_has_its_kind() {
        let body = |code: &str| {
            format!(r#"{{"error_code":{code},"title":"T","message":"M","request_id":"r1"}}"#)
        };
        let words = "T: M (request r1)";
        for (status, body, kind, words) in [
            (400, body("null"), ErrorKind::InvalidRequest, words),
            (401, body("null"), ErrorKind::Auth, words),
            (403, body("null"), ErrorKind::Auth, words),
            (402, body("null"), ErrorKind::Quota, words),
            (400, body(r#""quota_exceeded""#), ErrorKind::Quota, words),
            (
                403,
                body(r#""insufficient_credits""#),
                ErrorKind::Quota,
                words,
            ),
            (
                404,
                body(r#""voice_not_found""#),
                ErrorKind::InvalidRequest,
                words,
            ),
            (408, body("null"), ErrorKind::Timeout, words),
            (429, body(r#""concurrency_limited""#), LIMITED, words),
            (500, body("null"), ErrorKind::Unavailable, words),
            (
                503,
                "Title: Message".to_owned(),
                ErrorKind::Unavailable,
                "Title: Message",
            ),
            (
                401,
                "bad key sk_car_secret".to_owned(),
                ErrorKind::Auth,
                "bad key ***",
            ),
        ] {
            let refusal = Refusal {
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::new(),
                body,
            };
            let error = refused(&refusal);
            assert_eq!(error.kind, kind, "{status} {}", refusal.body);
            assert_eq!(error.message, format!("answered {status}: {words}"));
        }
    }

    #[test]
    fn the_wait_that_the_vendor_asks_for_is_kept() {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", "7".parse().unwrap());
        let refusal = Refusal {
            status: StatusCode::TOO_MANY_REQUESTS,
            headers,
            body: String::new(),
        };
        let retry_after = Some(Duration::from_secs(7));
        assert_eq!(
            refused(&refusal).kind,
            ErrorKind::RateLimited { retry_after }
        );
    }

    #[test]
    fn each_error_message_has_its_kind() {
        for (message, kind) in [
            (
                r#"{"status_code":400,"title":"Invalid model"}"#,
                ErrorKind::InvalidRequest,
            ),
            (r#"{"status_code":401,"title":"T"}"#, ErrorKind::Auth),
            (r#"{"status_code":402,"title":"T"}"#, ErrorKind::Quota),
            (
                r#"{"status_code":429,"error_code":"concurrency_limited"}"#,
                LIMITED,
            ),
            (r#"{"status_code":504}"#, ErrorKind::Timeout),
            (r#"{"status_code":500}"#, ErrorKind::Unavailable),
            (r#"{"title":"something"}"#, ErrorKind::Unavailable),
        ] {
            let problem: Problem = serde_json::from_str(message).unwrap();
            assert_eq!(reported(&problem).kind, kind, "{message}");
        }
    }

    #[test]
    fn each_close_code_has_its_kind() {
        for (code, reason, kind) in [
            (1000, "", ErrorKind::Unavailable),
            (1000, "Idle timeout", ErrorKind::Timeout),
            (1001, "going away", ErrorKind::Unavailable),
            (1002, "", ErrorKind::Protocol),
            (1003, "", ErrorKind::Protocol),
            (1007, "", ErrorKind::Protocol),
            (1008, "policy", ErrorKind::InvalidRequest),
            (1009, "too big", ErrorKind::InvalidRequest),
            (1011, "Internal error", ErrorKind::Unavailable),
            (1012, "", ErrorKind::Unavailable),
            (1013, "", ErrorKind::Unavailable),
            (4000, "", ErrorKind::Unavailable),
        ] {
            let error = closed(Some((code, reason.to_owned())));
            assert_eq!(error.kind, kind, "{code} {reason}");
            assert!(error.message.contains(reason));
        }
        assert_eq!(closed(None).kind, ErrorKind::Unavailable);
    }
}
