//! Emulates OpenAI's audio API, as far as its own SDKs and our client use it: speech and transcriptions over HTTP, whole,
//! streamed and as events, and transcriptions over a WebSocket. This file has what they share: keys, models and errors.

mod realtime;
mod speech;
mod transcriptions;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use bytes::Bytes;
use serde_json::{Value, json};

use super::engine::EngineError;
use super::visit::{Refusal, Visit, header_credential};
use super::{Direction, Emulation, Vendor};

/// Its routes, on the listeners for HTTP.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    service
        .route("/v1/realtime", web::get().to(realtime::open))
        .route("/v1/audio/speech", web::post().to(speech::speak))
        .route(
            "/v1/audio/transcriptions",
            web::post().to(transcriptions::transcribe),
        )
        .route(
            "/v1/audio/translations",
            web::post().to(transcriptions::transcribe),
        );
}

/// Opens the visit of a request, where it is let in; otherwise the answer.
fn admit(
    request: &HttpRequest,
    emulation: &web::Data<Emulation>,
    direction: Direction,
) -> Result<Visit, Box<HttpResponse>> {
    let visit = emulation.visit(request, Vendor::OpenAi, direction);
    match visit.admit(header_credential(request, "authorization")) {
        Ok(()) => Ok(visit),
        Err(refusal) => Err(refused(&refusal, &visit).into()),
    }
}

/// Why a request is refused, as the vendor says it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<&'static str>,
    message: String,
}

impl Problem {
    /// A field that is wrong.
    fn of(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error",
            code: None,
            param: Some(param),
            message: message.into(),
        }
    }

    fn no_model(model: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            code: Some("model_not_found"),
            ..Self::of(
                "model",
                format!("The model `{model}` does not exist or you do not have access to it."),
            )
        }
    }

    /// The engine behind it does not work.
    fn failed(error: &EngineError) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "server_error",
            code: None,
            param: None,
            message: error.to_string(),
        }
    }

    fn response(&self, visit: &Visit) -> HttpResponse {
        with_id(HttpResponse::build(self.status), visit).json(self.body())
    }

    fn body(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        }})
    }
}

fn with_id(mut builder: HttpResponseBuilder, visit: &Visit) -> HttpResponseBuilder {
    builder.insert_header((
        "x-request-id",
        format!("req_{}", visit.request_id().simple()),
    ));
    builder
}

/// A refusal of the doorkeeper.
fn refused(refusal: &Refusal, visit: &Visit) -> HttpResponse {
    let (kind, code, message) = match refusal.status.as_u16() {
        401 => (
            "invalid_request_error",
            Some("invalid_api_key"),
            "Incorrect API key provided.",
        ),
        429 => (
            "requests",
            Some("rate_limit_exceeded"),
            "Rate limit reached for requests.",
        ),
        500..=599 => (
            "server_error",
            None,
            "The server had an error while processing your request.",
        ),
        _ => (
            "invalid_request_error",
            None,
            "The request cannot be carried out.",
        ),
    };
    let problem = Problem {
        status: refusal.status,
        kind,
        code,
        param: None,
        message: message.to_owned(),
    };
    with_id(refusal.response(), visit).json(problem.body())
}

/// One event of a stream of them.
fn event(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_said_as_the_vendor_does() {
        let body = Problem::no_model("x").body();
        assert_eq!(
            (&body["error"]["code"], &body["error"]["param"]),
            (&json!("model_not_found"), &json!("model"))
        );
        assert_eq!(
            Problem::of("speed", "no").body()["error"]["code"],
            Value::Null
        );
    }
}
