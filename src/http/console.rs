//! `GET /console`: one page, in the binary, that needs nothing from anywhere else.

use std::sync::LazyLock;

use actix_web::HttpResponse;
use actix_web::http::header;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::pieces::Pieces;

const PAGE: &str = include_str!("../../console/index.html");

/// Nothing runs but the script and the style that stand in the page, known by their hashes, and the audio worklet that
/// the script makes; nothing is asked but this server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src {} blob:; style-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash_of("script"),
        hash_of("style")
    )
});

/// The source expression of an element's text (CSP Level 3, section 2.3.1).
fn hash_of(element: &str) -> String {
    let (opening, closing) = (format!("<{element}>"), format!("</{element}>"));
    let text = PAGE
        .split_once(&opening)
        .and_then(|(_, rest)| rest.split_once(&closing))
        .map_or("", |(text, _)| text);
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

/// The page. Whatever it loads comes from this server.
pub async fn show() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY.as_str()))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .body(Pieces::of(PAGE))
}
