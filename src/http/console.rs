//! `GET /console`: a single page embedded in the binary, without external resources.

use std::sync::LazyLock;

use actix_web::HttpResponse;
use actix_web::http::header;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::body_chunks::BodyChunks;

const PAGE: &str = include_str!("../../console/index.html");

/// Content security policy: only the page's own inline script and style, by their hashes, and the audio worklet that
/// the script creates may run; only this server may be contacted.
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

/// The page. Everything it loads comes from this server.
pub async fn show() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY.as_str()))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .body(BodyChunks::of(PAGE))
}
