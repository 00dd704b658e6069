//! Maps ElevenLabs' HTTP errors, error messages and close reasons to kinds of errors.

use serde_json::Value;

use super::SLUG;
use crate::transport::{Refusal, shortened};
use vivavoce_seams::{ErrorKind, ProviderError};

const RATE_LIMITED: ErrorKind = ErrorKind::RateLimited { retry_after: None };

/// The vendor's names of failures, wherever they stand: `message_type` of recognition, `error` of the socket that speaks,
/// `code` or `status` of HTTP.
const NAMES: &[(&str, ErrorKind)] = &[
    ("auth_error", ErrorKind::Auth),
    ("unaccepted_terms", ErrorKind::Auth),
    ("invalid_api_key", ErrorKind::Auth),
    ("missing_api_key", ErrorKind::Auth),
    ("needs_authorization", ErrorKind::Auth),
    ("missing_permissions", ErrorKind::Auth),
    ("detected_unusual_activity", ErrorKind::Auth),
    ("quota_exceeded", ErrorKind::Quota),
    ("payment_required", ErrorKind::Quota),
    ("rate_limited", RATE_LIMITED),
    ("rate_limit_exceeded", RATE_LIMITED),
    ("resource_exhausted", RATE_LIMITED),
    ("queue_overflow", RATE_LIMITED),
    ("commit_throttled", RATE_LIMITED),
    ("system_busy", RATE_LIMITED),
    ("too_many_concurrent_requests", RATE_LIMITED),
    ("concurrent_limit_exceeded", RATE_LIMITED),
    ("max_active_conversations", RATE_LIMITED),
    ("input_error", ErrorKind::InvalidRequest),
    ("invalid_request", ErrorKind::InvalidRequest),
    ("chunk_size_exceeded", ErrorKind::InvalidRequest),
    ("invalid_parameters", ErrorKind::InvalidRequest),
    ("max_character_limit_exceeded", ErrorKind::InvalidRequest),
    ("voice_not_found", ErrorKind::InvalidRequest),
    ("model_not_found", ErrorKind::InvalidRequest),
    ("session_time_limit_exceeded", ErrorKind::Timeout),
    ("insufficient_audio_activity", ErrorKind::Timeout),
    ("input_timeout_exceeded", ErrorKind::Timeout),
    ("transcriber_error", ErrorKind::Unavailable),
    ("error", ErrorKind::Unavailable),
];
/// What only dearer plans may do: `only_for_creator+`, `only_for_pro+`.
const DEARER_PLAN: &str = "only_for_";

/// The kind of a failure by its name.
pub(super) fn named(name: &str) -> Option<ErrorKind> {
    if name.starts_with(DEARER_PLAN) {
        return Some(ErrorKind::InvalidRequest);
    }
    let known = NAMES.iter().find(|(known, _)| *known == name);
    known.map(|(_, kind)| *kind)
}

/// A refused handshake or request.
pub(super) fn refused(refusal: &Refusal) -> ProviderError {
    let detail = Detail::of(&refusal.body);
    let kind = match (detail.name.as_deref().and_then(named), refusal.kind()) {
        // The headers may know how long to wait.
        (None | Some(ErrorKind::RateLimited { .. }), by_status @ ErrorKind::RateLimited { .. }) => {
            by_status
        }
        (Some(kind), _) | (None, kind) => kind,
    };
    let words = match refusal.header("request-id") {
        Some(id) => format!("{} (request {id})", shortened(&detail.words)),
        None => detail.words,
    };
    refusal.error(SLUG, kind, &words)
}

/// An error message of a socket: its name and what it says.
pub(super) fn told(name: &str, words: &str) -> ProviderError {
    let kind = named(name).unwrap_or(ErrorKind::Unavailable);
    let words = shortened(words);
    let message = if words.is_empty() {
        shortened(name)
    } else {
        format!("{}: {words}", shortened(name))
    };
    ProviderError::new(SLUG, kind, message)
}

/// A socket that the vendor has closed before it had done its work.
pub(super) fn closed(frame: Option<&(u16, String)>) -> ProviderError {
    let Some((code, reason)) = frame else {
        let problem = "the connection ended";
        return ProviderError::new(SLUG, ErrorKind::Unavailable, problem);
    };
    let reason = shortened(reason);
    let kind = match code {
        1002 | 1003 | 1007 => ErrorKind::Protocol,
        1008 => violated(&reason),
        1009 => ErrorKind::InvalidRequest,
        _ => ErrorKind::Unavailable,
    };
    ProviderError::new(SLUG, kind, format!("closed with {code}: {reason}"))
}

/// The vendor closes with 1008 whatever was wrong; the reason tells, in words or by the name of an error.
fn violated(reason: &str) -> ErrorKind {
    let reason = reason.to_ascii_lowercase();
    let by_name = NAMES
        .iter()
        .filter(|(name, _)| *name != "error")
        .find(|(name, _)| reason.contains(name));
    match by_name {
        Some((_, kind)) => *kind,
        None if reason.contains("simultaneous contexts") => RATE_LIMITED,
        None if reason.contains("new text input") || reason.contains("timeout") => {
            ErrorKind::Timeout
        }
        None if reason.contains("api key") => ErrorKind::Auth,
        None => ErrorKind::InvalidRequest,
    }
}

/// What a body of HTTP tells.
struct Detail {
    /// The failure's name.
    name: Option<String>,
    /// The vendor's words.
    words: String,
}

impl Detail {
    /// `detail` is an object (of an older or a newer shape), a list of what is wrong with the request, or a text.
    fn of(body: &str) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let plain = || Self {
            name: None,
            words: body.to_owned(),
        };
        let Ok(mut body) = serde_json::from_str::<Value>(body) else {
            return plain();
        };
        match body.get_mut("detail").map(Value::take).unwrap_or_default() {
            Value::Object(detail) => Self {
                name: ["code", "status"]
                    .iter()
                    .filter_map(|key| detail.get(*key)?.as_str())
                    .find(|name| named(name).is_some())
                    .map(str::to_owned),
                words: detail.get("message").and_then(text).unwrap_or_default(),
            },
            Value::Array(problems) => Self {
                name: None,
                words: problems
                    .iter()
                    .filter_map(|problem| problem["msg"].as_str())
                    .collect::<Vec<_>>()
                    .join("; "),
            },
            Value::String(words) => Self { name: None, words },
            _ => plain(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reqwest::StatusCode;
    use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn refusal(status: u16, body: &str, header: Option<(&'static str, &'static str)>) -> Refusal {
        let headers = header.map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        Refusal {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::from_iter(headers),
            body: body.to_owned(),
        }
    }

    #[test]
    fn every_shape_of_a_refusal_is_read() {
        let rows = [
            (
                401,
                r#"{"detail":{"status":"invalid_api_key","message":"Invalid API key"}}"#,
                ErrorKind::Auth,
                "answered 401: Invalid API key",
            ),
            (
                401,
                r#"{"detail":{"type":"t","code":"quota_exceeded","message":"12 credits remain","status":"x"}}"#,
                ErrorKind::Quota,
                "answered 401: 12 credits remain",
            ),
            (
                403,
                r#"{"detail":{"status":"only_for_creator+","message":"not on this plan"}}"#,
                ErrorKind::InvalidRequest,
                "answered 403: not on this plan",
            ),
            (402, "", ErrorKind::Quota, "answered 402"),
            (
                404,
                r#"{"detail":{"status":"voice_not_found","message":"A voice was not found"}}"#,
                ErrorKind::InvalidRequest,
                "answered 404: A voice was not found",
            ),
            (
                422,
                r#"{"detail":[{"loc":["query","x"],"msg":"Field required","type":"missing"},{"msg":"Bad"}]}"#,
                ErrorKind::InvalidRequest,
                "answered 422: Field required; Bad",
            ),
            (
                400,
                r#"{"detail":"No"}"#,
                ErrorKind::InvalidRequest,
                "answered 400: No",
            ),
            (
                503,
                "<html>\n</html>",
                ErrorKind::Unavailable,
                "answered 503: <html> </html>",
            ),
            (504, "", ErrorKind::Timeout, "answered 504"),
            (
                429,
                r#"{"detail":{"status":"too_many_concurrent_requests","message":"wait"}}"#,
                RATE_LIMITED,
                "answered 429: wait",
            ),
        ];
        for (status, body, kind, message) in rows {
            let error = refused(&refusal(status, body, None));
            assert_eq!((error.kind, error.message.as_str()), (kind, message));
        }
    }

    #[test]
    fn a_refusal_keeps_its_wait_and_the_number_of_its_request() {
        let body = r#"{"detail":{"status":"system_busy","message":"busy"}}"#;
        let error = refused(&refusal(429, body, Some(("retry-after", "7"))));
        let retry_after = Some(Duration::from_secs(7));
        assert_eq!(error.kind, ErrorKind::RateLimited { retry_after });
        let error = refused(&refusal(429, body, Some(("request-id", "r1"))));
        assert_eq!(error.message, "answered 429: busy (request r1)");
    }

    #[test]
    fn every_name_of_a_failure_has_its_kind() {
        for (name, kind) in NAMES {
            assert_eq!(told(name, "why").kind, *kind);
            assert_eq!(told(name, "why").message, format!("{name}: why"));
        }
        assert_eq!(named("only_for_pro+"), Some(ErrorKind::InvalidRequest));
        assert_eq!(told("new_error", "").kind, ErrorKind::Unavailable);
    }

    #[test]
    fn a_close_tells_by_its_code_and_its_reason() {
        let rows = [
            (1000, "", ErrorKind::Unavailable),
            (1001, "going away", ErrorKind::Unavailable),
            (1007, "", ErrorKind::Protocol),
            (
                1008,
                "Maximum simultaneous contexts per connection (5)",
                RATE_LIMITED,
            ),
            (1008, "max_active_conversations", RATE_LIMITED),
            (
                1008,
                "Have not received a new text input within the timeout of 20.0 seconds",
                ErrorKind::Timeout,
            ),
            (1008, "Invalid API key", ErrorKind::Auth),
            (1008, "You have quota_exceeded", ErrorKind::Quota),
            (
                1008,
                "A first message must be a space",
                ErrorKind::InvalidRequest,
            ),
            (1009, "", ErrorKind::InvalidRequest),
            (1011, "", ErrorKind::Unavailable),
            (1013, "", ErrorKind::Unavailable),
        ];
        for (code, reason, kind) in rows {
            let error = closed(Some(&(code, reason.to_owned())));
            assert_eq!(error.kind, kind, "{code} {reason}");
            assert_eq!(error.message, format!("closed with {code}: {reason}"));
        }
        assert_eq!(closed(None).kind, ErrorKind::Unavailable);
    }
}
