//! Emulates Azure Speech, as far as its own SDKs and our client use it: recognition and synthesis over its framing of a
//! WebSocket, synthesis over HTTP, voices, tokens. Written from what the SDKs send and accept; close reasons and bodies that
//! are not documented are plausible guesses.

mod frames;
pub(crate) mod ssml;
mod stt;
mod tts;
mod voices;

use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::json;

use super::visit::{Visit, header_credential};
use super::{Direction, Emulation, Vendor};

/// A connection without a message is closed after so long, with these words.
const IDLE: Duration = Duration::from_mins(5);
const IDLE_REASON: &str = "Exceeded maximum websocket connection idle duration(> 300000ms)";
/// Units of time in one second.
const TICKS: f64 = 1e7;

/// Its routes, on the listeners for HTTP.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    for path in [
        "/stt/speech/universal/v2",
        "/speech/recognition/{mode}/cognitiveservices/v1",
    ] {
        service.route(path, web::get().to(stt::open));
    }
    for path in [
        "/cognitiveservices/websocket/{version}",
        "/tts/cognitiveservices/websocket/{version}",
    ] {
        service.route(path, web::get().to(tts::open));
    }
    for path in [
        "/cognitiveservices/voices/list",
        "/tts/cognitiveservices/voices/list",
    ] {
        service.route(path, web::get().to(voices::list));
    }
    service.route("/cognitiveservices/v1", web::post().to(tts::post));
    service.route("/sts/v1.0/issueToken", web::post().to(issue_token));
}

/// The answer to a client that is not let in: by its key, which is in a header or in the query, or by a token.
fn refusal(visit: &Visit, request: &HttpRequest) -> Option<HttpResponse> {
    const KEY: &str = "Ocp-Apim-Subscription-Key";
    let of_query = || {
        let mut pairs = form_urlencoded::parse(request.query_string().as_bytes());
        let found = pairs.find(|(name, _)| name.eq_ignore_ascii_case(KEY));
        found.map(|(_, value)| value.into_owned())
    };
    let key = header_credential(request, KEY)
        .map(str::to_owned)
        .or_else(of_query)
        .or_else(|| header_credential(request, "authorization").map(str::to_owned))
        // The SDK sends an empty one beside its key.
        .filter(|key| key != "Bearer");
    visit.admit(key.as_deref()).err().map(|refusal| {
        let mut response = refusal.response();
        response.insert_header(("apim-request-id", visit.request_id().to_string()));
        if refusal.status == StatusCode::UNAUTHORIZED {
            let message = "Access denied due to invalid subscription key or wrong API endpoint.";
            return response.json(json!({"error": {"code": "401", "message": message}}));
        }
        let reason = refusal.status.canonical_reason();
        response.body(reason.unwrap_or_default())
    })
}

/// A token, which opens what its key does. Ours is the key.
async fn issue_token(request: HttpRequest, emulation: web::Data<Emulation>) -> HttpResponse {
    let visit = emulation.visit(&request, Vendor::Azure, Direction::Voices);
    if let Some(refused) = refusal(&visit, &request) {
        return refused;
    }
    let key = header_credential(&request, "Ocp-Apim-Subscription-Key");
    HttpResponse::Ok()
        .content_type("application/jwt")
        .body(key.unwrap_or_default().to_owned())
}

/// An id as the service writes them.
fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// A parameter of the query.
fn parameter(request: &HttpRequest, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(request.query_string().as_bytes());
    pairs
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.into_owned())
}

/// A time in the service's units.
fn ticks(time: Duration) -> u64 {
    (time.as_secs_f64() * TICKS).round() as u64
}
