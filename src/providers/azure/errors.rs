//! Maps Azure's HTTP errors, close codes and statuses to kinds of errors. Azure reports quotas and throttling as invalid
//! data (1007), so the reason of a close frame takes precedence over its code.

use serde_json::Value;

use super::SLUG;
use crate::transport::{Refusal, shortened};
use vivavoce_seams::{ErrorKind, ProviderError};

const RATE_LIMITED: ErrorKind = ErrorKind::RateLimited { retry_after: None };

/// What a close frame means: its code, a part of its reason in lower case (the first row that fits counts), the kind.
const CLOSES: &[(u16, &str, ErrorKind)] = &[
    (1000, "idle", ErrorKind::Timeout),
    (1000, "", ErrorKind::Unavailable),
    (1001, "", ErrorKind::Unavailable),
    (1002, "", ErrorKind::Protocol),
    (1003, "", ErrorKind::Protocol),
    (1005, "", ErrorKind::Unavailable),
    (1007, "quota", RATE_LIMITED),
    (1007, "throttl", RATE_LIMITED),
    (1007, "toomanyrequests", RATE_LIMITED),
    (1007, "too many requests", RATE_LIMITED),
    (1007, "", ErrorKind::InvalidRequest),
    (1008, "", ErrorKind::InvalidRequest),
    (1009, "", ErrorKind::InvalidRequest),
    (1013, "duration", ErrorKind::InvalidRequest),
    (4000, "", ErrorKind::Protocol),
    (4429, "", RATE_LIMITED),
];

/// What a phrase's `RecognitionStatus` means; the others are no failures.
const STATUSES: &[(&str, ErrorKind)] = &[
    ("TooManyRequests", RATE_LIMITED),
    ("Forbidden", ErrorKind::Auth),
    ("BadRequest", ErrorKind::InvalidRequest),
    ("Error", ErrorKind::Unavailable),
];

/// The connection was closed: by this code and reason, or without.
pub(super) fn closed(frame: Option<&(u16, String)>) -> ProviderError {
    let Some((code, reason)) = frame else {
        let problem = "dropped the connection";
        return ProviderError::new(SLUG, ErrorKind::Unavailable, problem);
    };
    let lower = reason.to_ascii_lowercase();
    let row = CLOSES
        .iter()
        .find(|(known, part, _)| known == code && lower.contains(part));
    // 1011, 1012 and 1013 are troubles of the service's own, and so is what nobody has heard of.
    let kind = row.map_or(ErrorKind::Unavailable, |(_, _, kind)| *kind);
    let problem = format!("closed the connection: {code} {}", shortened(reason));
    ProviderError::new(SLUG, kind, problem.trim_end())
}

/// The error of a phrase with this status, where it is one.
pub(super) fn status(status: &str) -> Option<ProviderError> {
    let (_, kind) = STATUSES
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(status))?;
    let problem = format!("recognition has ended with {}", shortened(status));
    Some(ProviderError::new(SLUG, *kind, problem))
}

/// A handshake or a request that was refused: some answers have a JSON body, most have words or nothing.
pub(super) fn refused(refusal: &Refusal) -> ProviderError {
    let body: Option<Value> = serde_json::from_str(&refusal.body).ok();
    let words = body.as_ref().and_then(|body| {
        let message = body.pointer("/error/message").or(body.get("message"));
        message?.as_str()
    });
    let words = words.unwrap_or(&refusal.body);
    let mut error = refusal.error(SLUG, refusal.kind(), words);
    if let Some(id) = ["x-requestid", "apim-request-id"]
        .iter()
        .find_map(|name| refusal.header(name))
    {
        error.message = format!("{} (request {})", error.message, shortened(id));
    }
    error
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;
    use reqwest::header::HeaderMap;

    use super::*;

    #[test]
    fn every_row_of_close_codes_is_reached() {
        for (code, part, kind) in CLOSES {
            let error = closed(Some(&(*code, format!("xx {} yy", part.to_uppercase()))));
            assert_eq!(error.kind, *kind, "{code} {part}");
            assert!(error.message.contains(&code.to_string()), "{error}");
        }
        for code in [1011, 1012, 1013, 4999] {
            let error = closed(Some(&(code, "Instance is shutting down".into())));
            assert_eq!(error.kind, ErrorKind::Unavailable, "{code}");
        }
        assert_eq!(closed(None).kind, ErrorKind::Unavailable);
    }

    #[test]
    fn statuses_are_errors_or_none() {
        for (name, kind) in STATUSES {
            assert_eq!(status(name).unwrap().kind, *kind);
        }
        for name in [
            "Success",
            "NoMatch",
            "InitialSilenceTimeout",
            "BabbleTimeout",
            "EndOfDictation",
        ] {
            assert!(status(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_refusal_has_the_services_words_and_its_id() {
        let refusal = |status, body: &str| Refusal {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::from_iter([(
                "apim-request-id".parse().unwrap(),
                "r1".parse().unwrap(),
            )]),
            body: body.to_owned(),
        };
        let error = refused(&refusal(
            401,
            r#"{"error":{"code":"401","message":"Access denied"}}"#,
        ));
        assert_eq!(error.kind, ErrorKind::Auth);
        assert_eq!(error.message, "answered 401: Access denied (request r1)");
        let error = refused(&refusal(429, "Quota exceeded."));
        assert_eq!(error.kind, RATE_LIMITED);
        assert_eq!(error.message, "answered 429: Quota exceeded. (request r1)");
        assert_eq!(refused(&refusal(503, "")).kind, ErrorKind::Unavailable);
        assert_eq!(refused(&refusal(400, "")).kind, ErrorKind::InvalidRequest);
    }
}
