//! Maps gRPC statuses with their details, and errors of the token exchange, to kinds of errors.

use std::error::Error;
use std::time::Duration;

use prost::Message;
use serde::Deserialize;
use tonic::{Code, Status};

use super::SLUG;
use super::wire::rpc;
use crate::transport::{Refusal, shortened};
use vivavoce_seams::{ErrorKind, ProviderError};

/// The longest wait that is believed.
const LONGEST_RETRY: Duration = Duration::from_hours(1);

/// Ends of a stream that say nothing but that it has lasted long enough, or heard nothing for too long: another one
/// goes on where it has ended.
const ENDS: &[&str] = &[
    "max duration",
    "maximum allowed stream duration",
    "no more client requests",
    "long duration elapsed without",
];

/// A failed call as an error.
pub(super) fn of_status(status: &Status) -> ProviderError {
    let details = details(status);
    let reason = details
        .iter()
        .find_map(|detail| decoded::<rpc::ErrorInfo>(detail, "ErrorInfo"))
        .map(|info| info.reason)
        .unwrap_or_default();
    let kind = kind(status, &reason, retry_after(&details));
    let mut words = shortened(status.message());
    if let Some(cause) = innermost(status) {
        words = format!("{words}: {}", shortened(&cause));
    }
    let code = format!("{:?}", status.code());
    let message = match (words.as_str(), reason.as_str()) {
        ("", "") => format!("answered {code}"),
        (words, "") => format!("answered {code}: {words}"),
        (words, reason) => format!("answered {code} ({}): {words}", shortened(reason)),
    };
    ProviderError::new(SLUG, kind, message)
}

fn kind(status: &Status, reason: &str, retry_after: Option<Duration>) -> ErrorKind {
    match status.code() {
        Code::Aborted | Code::OutOfRange if is_end(status.message()) => ErrorKind::Unavailable,
        Code::PermissionDenied if reason == "BILLING_DISABLED" => ErrorKind::Quota,
        Code::Unauthenticated | Code::PermissionDenied => ErrorKind::Auth,
        Code::ResourceExhausted => ErrorKind::RateLimited { retry_after },
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => ErrorKind::InvalidRequest,
        Code::DeadlineExceeded => ErrorKind::Timeout,
        Code::Ok => ErrorKind::Protocol,
        Code::Cancelled
        | Code::Unknown
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => ErrorKind::Unavailable,
    }
}

fn is_end(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ENDS.iter().any(|end| message.contains(end))
}

fn details(status: &Status) -> Vec<rpc::Any> {
    rpc::Status::decode(status.details())
        .map(|status| status.details)
        .unwrap_or_default()
}

fn decoded<T: Message + Default>(detail: &rpc::Any, name: &str) -> Option<T> {
    let of_type = detail.type_url.rsplit('.').next() == Some(name);
    of_type
        .then(|| T::decode(detail.value.as_slice()).ok())
        .flatten()
}

fn retry_after(details: &[rpc::Any]) -> Option<Duration> {
    let mut delays = details
        .iter()
        .filter_map(|detail| decoded::<rpc::RetryInfo>(detail, "RetryInfo")?.retry_delay);
    Some(delays.next()?.time().min(LONGEST_RETRY))
}

/// What has gone wrong beneath gRPC, where something has.
fn innermost(status: &Status) -> Option<String> {
    let mut cause: &dyn Error = status.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

/// A refused exchange of a claim for a token.
pub(super) fn token_refused(refusal: &Refusal) -> ProviderError {
    #[derive(Deserialize)]
    struct Body {
        error: String,
        #[serde(default)]
        error_description: String,
    }
    let kind = match refusal.kind() {
        // A claim that is not taken is a credential that is not.
        ErrorKind::InvalidRequest => ErrorKind::Auth,
        other => other,
    };
    let words = serde_json::from_str(&refusal.body).map_or_else(
        |_| "the exchange of the token was refused".to_owned(),
        |body: Body| format!("{} {}", body.error, body.error_description),
    );
    refusal.error(SLUG, kind, &words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::StatusCode;
    use reqwest::header::HeaderMap;

    #[test]
    fn each_code_is_of_its_kind() {
        use ErrorKind::{Auth, InvalidRequest, Quota, RateLimited, Timeout, Unavailable};
        let limited = RateLimited { retry_after: None };
        for (code, message, kind) in [
            (Code::InvalidArgument, "bad model", InvalidRequest),
            (Code::NotFound, "no recognizer", InvalidRequest),
            (Code::FailedPrecondition, "", InvalidRequest),
            (Code::OutOfRange, "sample rate", InvalidRequest),
            (Code::Unimplemented, "", InvalidRequest),
            (
                Code::OutOfRange,
                "Exceeded maximum allowed stream duration of 305 seconds.",
                Unavailable,
            ),
            (
                Code::OutOfRange,
                "Audio Timeout Error: Long duration elapsed without audio.",
                Unavailable,
            ),
            (
                Code::Aborted,
                "Max duration of 5 minutes reached for stream.",
                Unavailable,
            ),
            (
                Code::Aborted,
                "Stream timed out after receiving no more client requests.",
                Unavailable,
            ),
            (Code::Aborted, "conflict", Unavailable),
            (Code::Unauthenticated, "", Auth),
            (Code::PermissionDenied, "", Auth),
            (Code::ResourceExhausted, "quota", limited),
            (Code::DeadlineExceeded, "", Timeout),
            (Code::Unavailable, "", Unavailable),
            (Code::Internal, "", Unavailable),
            (Code::Unknown, "", Unavailable),
            (Code::DataLoss, "", Unavailable),
            (Code::Cancelled, "The operation was cancelled.", Unavailable),
        ] {
            let error = of_status(&Status::new(code, message));
            assert_eq!(error.kind, kind, "{code:?} {message}");
            assert!(error.message.contains(message), "{}", error.message);
        }
        let billing = with_details(
            Code::PermissionDenied,
            rpc::Any::new(
                "ErrorInfo",
                &rpc::ErrorInfo {
                    reason: "BILLING_DISABLED".to_owned(),
                    domain: "googleapis.com".to_owned(),
                },
            ),
        );
        let error = of_status(&billing);
        assert_eq!(error.kind, Quota);
        assert!(error.message.contains("BILLING_DISABLED"));
    }

    fn with_details(code: Code, detail: rpc::Any) -> Status {
        let details = rpc::Status {
            code: code as i32,
            message: "why".to_owned(),
            details: vec![detail],
        };
        Status::with_details(code, "why", details.encode_to_vec().into())
    }

    #[test]
    fn the_wait_that_is_asked_for_is_found_in_the_details() {
        for (asked, believed) in [(7, 7), (999_999_999, 3600)] {
            let delay = Duration::from_secs(asked).into();
            let detail = rpc::RetryInfo {
                retry_delay: Some(delay),
            };
            let status = with_details(Code::ResourceExhausted, rpc::Any::new("RetryInfo", &detail));
            let retry_after = Some(Duration::from_secs(believed));
            let error = of_status(&status);
            assert_eq!(error.kind, ErrorKind::RateLimited { retry_after });
        }
        let nonsense = Status::with_details(Code::Internal, "why", vec![1, 2, 3].into());
        assert_eq!(of_status(&nonsense).kind, ErrorKind::Unavailable);
    }

    #[test]
    fn a_refused_exchange_is_a_matter_of_the_credential() {
        let refused = |status: u16, body: &str| {
            token_refused(&Refusal {
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::new(),
                body: body.to_owned(),
            })
        };
        let body =
            r#"{"error":"invalid_grant","error_description":"Invalid grant: account not found"}"#;
        let error = refused(400, body);
        assert_eq!(error.kind, ErrorKind::Auth);
        assert_eq!(
            error.message,
            "answered 400: invalid_grant Invalid grant: account not found"
        );
        assert_eq!(refused(401, "{}").kind, ErrorKind::Auth);
        assert_eq!(refused(503, "<html>").kind, ErrorKind::Unavailable);
    }
}
