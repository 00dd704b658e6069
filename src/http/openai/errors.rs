//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

use actix_web::HttpResponse;
use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::middleware::Next;
use serde::Serialize;
use serde_json::json;

use super::PREFIX;
use super::fields::{SPEECH, TRANSCRIPTIONS};
use crate::error::{ApiError, Code};
use actix_web::ResponseError;

/// The body of every error.
#[derive(Debug, Serialize)]
struct Body<'a> {
    error: Problem<'a>,
}

/// What official clients show, and make their kinds of errors from.
#[derive(Debug, Serialize)]
pub(super) struct Problem<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    /// The field that is wrong.
    param: Option<&'a str>,
    code: String,
}

impl<'a> Problem<'a> {
    pub(super) fn of(error: &ApiError, message: &'a str) -> Self {
        let code = match error.code() {
            Code::MissingAuthHeader | Code::InvalidAuthHeader | Code::Unauthorized => {
                "invalid_api_key".to_owned()
            }
            Code::ModelNotFound => "model_not_found".to_owned(),
            Code::RateLimited | Code::ProviderRateLimited => "rate_limit_exceeded".to_owned(),
            code => json!(code).as_str().unwrap_or_default().to_lowercase(),
        };
        let kind = match error.status_code() {
            StatusCode::TOO_MANY_REQUESTS => "requests",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Self {
            message,
            kind,
            param: field(error.code(), message),
            code,
        }
    }
}

/// Our messages about a field begin with its name.
fn field(code: Code, message: &str) -> Option<&str> {
    let of_field = matches!(
        code,
        Code::InvalidRequest | Code::ModelNotFound | Code::PayloadTooLarge
    );
    let (name, _) = message.split_once(": ")?;
    let whole = name.split('.').next().unwrap_or(name);
    let mut known = SPEECH.iter().chain(TRANSCRIPTIONS);
    let is_known = known.any(|field| field.name.trim_end_matches("[]") == whole);
    (of_field && is_known).then_some(name)
}

/// The text of an error.
pub(super) fn text(error: &ApiError) -> String {
    let message = error.to_string();
    let body = Body {
        error: Problem::of(error, &message),
    };
    // A struct of texts can always be serialised.
    serde_json::to_string(&body).unwrap_or_default()
}

/// The middleware that gives errors of these paths their shape, wherever they were made.
pub async fn shape_errors(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    if !request.path().starts_with(PREFIX) {
        return next.call(request).await;
    }
    let answer = next.call(request).await?;
    let error = answer.response().extensions().get::<ApiError>().cloned();
    let Some(error) = error else {
        return Ok(answer);
    };
    let text = text(&error);
    let (request, response) = answer.into_parts();
    Ok(ServiceResponse::new(request, with_body(response, text)))
}

fn with_body(response: HttpResponse, text: String) -> HttpResponse {
    let mut response = response.set_body(text.boxed());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn an_error_names_its_field_and_kind_as_openai_does() {
        for (code, message, kind, param, named) in [
            (
                Code::InvalidRequest,
                "speed: must be from 0.25 to 4.0",
                "invalid_request_error",
                json!("speed"),
                "invalid_request",
            ),
            (
                Code::Unauthorized,
                "the token is not valid: ask again",
                "invalid_request_error",
                Value::Null,
                "invalid_api_key",
            ),
            (
                Code::ModelNotFound,
                "model: there is none",
                "invalid_request_error",
                json!("model"),
                "model_not_found",
            ),
            (
                Code::RateLimited,
                "too much",
                "requests",
                Value::Null,
                "rate_limit_exceeded",
            ),
            (
                Code::Overloaded,
                "too much",
                "server_error",
                Value::Null,
                "overloaded",
            ),
        ] {
            let text = text(&ApiError::new(code, message));
            let body: Value = serde_json::from_str(&text).unwrap();
            let wanted = json!({"error": {
                "message": message, "type": kind, "param": param, "code": named,
            }});
            assert_eq!(body, wanted);
        }
    }
}
