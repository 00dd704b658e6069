//! `GET /console`: a page and what it is made of, embedded in the binary, without external resources.

use actix_web::http::header;
use actix_web::{HttpResponse, web};

use super::body_chunks::BodyChunks;
use super::error::{ApiError, Code};

const PAGE: &str = include_str!("../../console/index.html");

const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files beside the page, with their media types.
const FILES: [(&str, &str, &str); 14] = [
    (
        "console.css",
        STYLE,
        include_str!("../../console/console.css"),
    ),
    ("main.js", SCRIPT, include_str!("../../console/main.js")),
    ("shared.js", SCRIPT, include_str!("../../console/shared.js")),
    (
        "sessions.js",
        SCRIPT,
        include_str!("../../console/sessions.js"),
    ),
    (
        "timeline.js",
        SCRIPT,
        include_str!("../../console/timeline.js"),
    ),
    ("rooms.js", SCRIPT, include_str!("../../console/rooms.js")),
    ("calls.js", SCRIPT, include_str!("../../console/calls.js")),
    (
        "recordings.js",
        SCRIPT,
        include_str!("../../console/recordings.js"),
    ),
    (
        "webhooks.js",
        SCRIPT,
        include_str!("../../console/webhooks.js"),
    ),
    (
        "vendors.js",
        SCRIPT,
        include_str!("../../console/vendors.js"),
    ),
    (
        "settings.js",
        SCRIPT,
        include_str!("../../console/settings.js"),
    ),
    ("log.js", SCRIPT, include_str!("../../console/log.js")),
    ("talk.js", SCRIPT, include_str!("../../console/talk.js")),
    ("sound.js", SCRIPT, include_str!("../../console/sound.js")),
];

/// Content security policy: only the page's own files, and the audio worklet that they create, may run; only this server may
/// be contacted.
const POLICY: &str = "default-src 'none'; script-src 'self' blob:; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page. Everything it loads comes from this server.
pub async fn show() -> HttpResponse {
    answer("text/html; charset=utf-8", PAGE)
}

/// A file of it.
pub async fn file(name: web::Path<String>) -> Result<HttpResponse, ApiError> {
    let found = FILES.iter().find(|(known, ..)| **known == **name);
    let unknown = || ApiError::new(Code::NotFound, "the console has no such file");
    let (_, media_type, text) = found.ok_or_else(unknown)?;
    Ok(answer(media_type, text))
}

fn answer(media_type: &'static str, text: &'static str) -> HttpResponse {
    HttpResponse::Ok()
        .content_type(media_type)
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .body(BodyChunks::of(text))
}
