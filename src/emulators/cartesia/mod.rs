//! Emulates Cartesia, as far as its own SDKs and our client use it: authentication and the wording of errors. Recognition is
//! in [`stt`], synthesis in [`tts`], sample formats in [`pcm`].

mod pcm;
mod stt;
mod tts;
mod voices;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::visit::{Refusal, Visit, header_credential};
use super::{Direction, Emulation, Vendor};

/// The first version whose errors are JSON.
const JSON_ERRORS: &str = "2026-03-01";

/// Its routes, on the listeners for HTTP.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    service
        .route("/stt/websocket", web::get().to(stt::manual))
        .route("/stt/turns/websocket", web::get().to(stt::turns))
        .route("/tts/websocket", web::get().to(tts::websocket))
        .route("/tts/bytes", web::post().to(tts::bytes))
        .route("/tts/sse", web::post().to(tts::sse))
        .route("/voices", web::get().to(voices::list))
        .route("/voices/{id}", web::get().to(voices::one))
        .route("/access-token", web::post().to(voices::access_token));
}

/// Something that the vendor does not like.
#[derive(Debug, Clone)]
struct Problem {
    status: StatusCode,
    code: Option<&'static str>,
    title: &'static str,
    message: String,
}

impl Problem {
    fn new(
        status: StatusCode,
        code: Option<&'static str>,
        title: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            code,
            title,
            message: message.into(),
        }
    }

    /// A request that is wrong.
    fn bad(title: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, None, title, message)
    }

    /// Something inside has failed.
    fn inside(error: impl std::fmt::Display) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, None, "Internal server error", error.to_string())
    }

    fn of(status: StatusCode) -> Self {
        let (code, title, message) = match status.as_u16() {
            401 => (None, "Unauthorized", "Invalid credentials provided."),
            402 => (
                Some("quota_exceeded"),
                "Out of credits",
                "Your credits are used up.",
            ),
            403 => (None, "Forbidden", "You have no access to this resource."),
            404 => (None, "Not found", "There is no such resource."),
            429 => (
                Some("concurrency_limited"),
                "Too many concurrent requests",
                "You have exceeded your plan's concurrency limit.",
            ),
            400..=499 => (None, "Bad request", "The request cannot be carried out."),
            _ => (None, "Internal server error", "Something went wrong."),
        };
        Self::new(status, code, title, message)
    }

    fn fields(&self, visit: &Visit) -> Value {
        json!({
            "error_code": self.code,
            "title": self.title,
            "message": self.message,
            "request_id": visit.request_id().to_string(),
        })
    }

    /// As a message over a socket.
    fn event(&self, visit: &Visit) -> Value {
        let mut event = self.fields(visit);
        event["type"] = "error".into();
        event["status_code"] = self.status.as_u16().into();
        event["done"] = true.into();
        event
    }
}

/// Somebody at the door.
struct Caller {
    visit: Visit,
    /// Whether errors are told in JSON.
    json: bool,
    key: Option<String>,
}

impl Caller {
    /// Lets somebody in who has a key and says which version is spoken.
    fn admit(
        request: &HttpRequest,
        emulation: &web::Data<Emulation>,
        direction: Direction,
    ) -> Result<Self, Box<HttpResponse>> {
        let visit = emulation.visit(request, Vendor::Cartesia, direction);
        let query = |names: &[&str]| {
            form_urlencoded::parse(request.query_string().as_bytes())
                .find(|(name, _)| names.contains(&name.as_ref()))
                .map(|(_, value)| value.into_owned())
        };
        let header = |name: &str| header_credential(request, name).map(str::to_owned);
        let version = query(&["cartesia_version"]).or_else(|| header("cartesia-version"));
        let key = header("authorization")
            .or_else(|| header("x-api-key"))
            .or_else(|| query(&["access_token", "api_key"]));
        let caller = Self {
            json: version
                .as_deref()
                .is_none_or(|version| version >= JSON_ERRORS),
            visit,
            key,
        };
        if let Err(refusal) = caller.visit.admit(caller.key.as_deref()) {
            return Err(Box::new(caller.refuse(&refusal)));
        }
        if version.is_none() {
            let problem = Problem::bad("Missing version", "Send a Cartesia-Version.");
            return Err(Box::new(caller.answer(&problem)));
        }
        Ok(caller)
    }

    fn refuse(&self, refusal: &Refusal) -> HttpResponse {
        let problem = Problem::of(refusal.status);
        self.body(refusal.response(), &problem)
    }

    fn answer(&self, problem: &Problem) -> HttpResponse {
        self.body(HttpResponse::build(problem.status), problem)
    }

    fn body(
        &self,
        mut response: actix_web::HttpResponseBuilder,
        problem: &Problem,
    ) -> HttpResponse {
        if self.json {
            response.json(problem.fields(&self.visit))
        } else {
            response.body(format!("{}: {}", problem.title, problem.message))
        }
    }
}
