//! `GET /console`: one page, in the binary, that needs nothing from anywhere else.

use actix_web::HttpResponse;
use actix_web::http::header;

const PAGE: &str = include_str!("../../console/index.html");

/// The page. Whatever it loads comes from this server.
pub async fn show() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .insert_header((
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'unsafe-inline' blob: 'self'; style-src 'unsafe-inline'; \
             connect-src 'self' ws: wss:; img-src data:; media-src blob: data:; worker-src blob:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .body(PAGE)
}
