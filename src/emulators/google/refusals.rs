//! Google's errors, as gRPC statuses with details and as REST bodies.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use prost::Message;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::faults::RetryAfter;
use crate::visit::Refusal;
use vivavoce_providers::google::wire::rpc;

const NO_CREDENTIAL: &str = "Request is missing required authentication credential. Expected OAuth 2 access token, login cookie or other valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.";
const BAD_CREDENTIAL: &str = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.";
const RATE: &str = "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service 'speech.googleapis.com'.";

/// What a refused client is told; `has_key` when it has sent a credential.
pub(super) fn status(refusal: &Refusal, has_key: bool) -> Status {
    let (code, message, reason) = match refusal.status.as_u16() {
        401 if has_key => (
            Code::Unauthenticated,
            BAD_CREDENTIAL,
            "ACCESS_TOKEN_TYPE_UNSUPPORTED",
        ),
        401 => (Code::Unauthenticated, NO_CREDENTIAL, "CREDENTIALS_MISSING"),
        402 | 403 => (
            Code::PermissionDenied,
            "The caller does not have permission",
            "IAM_PERMISSION_DENIED",
        ),
        404 => (Code::NotFound, "Requested entity was not found.", ""),
        408 | 504 => (
            Code::DeadlineExceeded,
            "Deadline expired before operation could complete.",
            "",
        ),
        429 => (Code::ResourceExhausted, RATE, "RATE_LIMIT_EXCEEDED"),
        500 => (Code::Internal, "Internal error encountered.", ""),
        501..=599 => (
            Code::Unavailable,
            "The service is currently unavailable.",
            "",
        ),
        _ => (
            Code::InvalidArgument,
            "Request contains an invalid argument.",
            "",
        ),
    };
    let mut details = Vec::new();
    if !reason.is_empty() {
        let info = rpc::ErrorInfo {
            reason: reason.to_owned(),
            domain: "googleapis.com".to_owned(),
        };
        details.push(rpc::Any::new("ErrorInfo", &info));
    }
    if let RetryAfter::Seconds(seconds) | RetryAfter::Date(seconds) = refusal.retry_after {
        let delay = std::time::Duration::from_secs(seconds);
        let retry = rpc::RetryInfo {
            retry_delay: Some(delay.into()),
        };
        details.push(rpc::Any::new("RetryInfo", &retry));
    }
    let whole = rpc::Status {
        code: code as i32,
        message: message.to_owned(),
        details,
    };
    Status::with_details(code, message, whole.encode_to_vec().into())
}

/// The same as an answer of REST.
pub(super) fn response(status: &Status) -> HttpResponse {
    let (http, name) = match status.code() {
        Code::InvalidArgument => (StatusCode::BAD_REQUEST, "INVALID_ARGUMENT"),
        Code::Unauthenticated => (StatusCode::UNAUTHORIZED, "UNAUTHENTICATED"),
        Code::PermissionDenied => (StatusCode::FORBIDDEN, "PERMISSION_DENIED"),
        Code::NotFound => (StatusCode::NOT_FOUND, "NOT_FOUND"),
        Code::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED"),
        Code::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "DEADLINE_EXCEEDED"),
        Code::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL"),
    };
    let details = rpc::Status::decode(status.details()).unwrap_or_default();
    let details: Vec<Value> = details.details.iter().filter_map(detail).collect();
    let mut error = json!({
        "code": http.as_u16(),
        "message": status.message(),
        "status": name,
    });
    if !details.is_empty() {
        error["details"] = details.into();
    }
    HttpResponse::build(http).json(json!({ "error": error }))
}

fn detail(any: &rpc::Any) -> Option<Value> {
    let value = any.value.as_slice();
    match any.type_url.rsplit('.').next()? {
        "ErrorInfo" => {
            let info = rpc::ErrorInfo::decode(value).ok()?;
            Some(json!({"@type": any.type_url, "reason": info.reason, "domain": info.domain}))
        }
        "RetryInfo" => {
            let delay = rpc::RetryInfo::decode(value).ok()?.retry_delay?.time();
            Some(json!({"@type": any.type_url, "retryDelay": format!("{}s", delay.as_secs())}))
        }
        _ => None,
    }
}
