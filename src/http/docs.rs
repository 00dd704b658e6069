//! `GET /docs`: the API reference, a single page embedded in the binary that reads `/openapi.json`, without external
//! resources.

use actix_web::HttpResponse;
use actix_web::http::header;

use super::body_chunks::BodyChunks;

const PAGE: &str = include_str!("../../console/reference.html");

/// The page.
pub async fn show() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .insert_header((
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .body(BodyChunks::of(PAGE))
}
