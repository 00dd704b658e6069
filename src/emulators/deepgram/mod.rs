//! Emulates Deepgram, as far as its own SDKs and our client use it: authentication and the wording of errors. Recognition is
//! in [`listen`], [`prerecorded`] and [`turns`], synthesis in [`speak`] and [`speak_turns`], the lists in [`models`].

mod listen;
mod models;
mod prerecorded;
mod query;
mod speak;
mod speak_turns;
mod turns;

use actix_web::error::InternalError;
use actix_web::http::StatusCode;
use actix_web::http::header::{AUTHORIZATION, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, guard, web};
use serde_json::json;

use super::elevenlabs::is_elevenlabs;
use super::visit::{Refusal, Visit, credential};
use super::{Direction, Emulation, Vendor};

/// Its routes, on the listeners for HTTP.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    service
        .route("/v1/listen", web::get().to(listen::open))
        .service(
            web::resource("/v1/listen")
                .guard(guard::Post())
                .app_data(web::PayloadConfig::new(prerecorded::FILE_BYTES))
                .to(prerecorded::answer),
        )
        .route("/v2/listen", web::get().to(turns::open))
        .route("/v1/speak", web::get().to(speak::open))
        .route("/v1/speak", web::post().to(speak::answer))
        .route("/v2/speak", web::get().to(speak_turns::open))
        .route("/v2/speak", web::post().to(speak_turns::answer))
        .route(
            "/v1/models",
            // ElevenLabs has the same path.
            web::get()
                .guard(guard::Not(guard::fn_guard(is_elevenlabs)))
                .to(models::list),
        )
        .route("/v1/auth/grant", web::post().to(models::grant));
}

/// Opens the visit; the error is what a client gets that is not let in.
fn admitted(
    request: &HttpRequest,
    emulation: &web::Data<Emulation>,
    direction: Direction,
) -> Result<Visit, actix_web::Error> {
    let visit = emulation.visit(request, Vendor::Deepgram, direction);
    match visit.admit(key(request)) {
        Ok(()) => Ok(visit),
        Err(refusal) => Err(refused(&visit, &refusal)),
    }
}

/// The key of a request: after `Token` or `Bearer`, in any case. Browsers, which cannot set that header, offer the same
/// two words as subprotocols.
fn key(request: &HttpRequest) -> Option<&str> {
    let header = |name| request.headers().get(name)?.to_str().ok();
    let known = |scheme: &str| ["token", "bearer"].contains(&scheme.to_ascii_lowercase().as_str());
    if let Some(value) = header(AUTHORIZATION) {
        let scheme = value.split_whitespace().next()?;
        return known(scheme).then(|| credential(value));
    }
    let mut offered = header(SEC_WEBSOCKET_PROTOCOL)?.split(',').map(str::trim);
    offered.find(|protocol| known(protocol))?;
    offered.next()
}

/// Every answer says which request it is the answer to.
fn tell_request_id(response: &mut HttpResponse, request_id: uuid::Uuid) {
    if let Ok(value) = HeaderValue::from_str(&request_id.to_string()) {
        let name = HeaderName::from_static("dg-request-id");
        response.headers_mut().insert(name, value);
    }
}

/// What the vendor says with a status: `err_code` and `err_msg`.
const WORDS: &[(u16, &str, &str)] = &[
    (401, "INVALID_AUTH", "Invalid credentials."),
    (
        402,
        "ASR_PAYMENT_REQUIRED",
        "Project does not have enough credits for this request.",
    ),
    (
        403,
        "INSUFFICIENT_PERMISSIONS",
        "Project does not have access to the requested model.",
    ),
    (
        429,
        "TOO_MANY_REQUESTS",
        "Too many requests. Please try again later.",
    ),
    (503, "SERVICE_UNAVAILABLE", "Please try again later."),
];

fn refused(visit: &Visit, refusal: &Refusal) -> actix_web::Error {
    let status = refusal.status;
    let words = WORDS.iter().find(|(known, ..)| *known == status.as_u16());
    let reason = status.canonical_reason().unwrap_or("Error");
    let (_, code, message) = words.copied().unwrap_or((0, reason, reason));
    failure(refusal.response(), visit, code, message)
}

/// A request that is not in order.
fn bad_request(visit: &Visit, message: &str) -> actix_web::Error {
    visit.note(format!("bad request: {message}"));
    let response = HttpResponse::build(StatusCode::BAD_REQUEST);
    failure(response, visit, "Bad Request", message)
}

fn failure(
    mut response: HttpResponseBuilder,
    visit: &Visit,
    code: &str,
    message: &str,
) -> actix_web::Error {
    let request_id = visit.request_id().to_string();
    let answer = response
        .insert_header(("dg-error", message))
        .insert_header(("dg-request-id", request_id.as_str()))
        .json(json!({"err_code": code, "err_msg": message, "request_id": request_id}));
    InternalError::from_response(message.to_owned(), answer).into()
}
