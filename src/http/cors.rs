//! CORS: which origins' pages may use the API (`server.cors_origins`, for REST and WebSockets), preflight responses and
//! response headers. Browser credentials (cookies) are never used.

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{HttpResponse, web};

use super::{openai, requests};
pub use vivavoce_socket::Origins;

/// What a page may send in addition to safelisted requests.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, DELETE");
const HEADERS: HeaderValue =
    HeaderValue::from_static("accept, authorization, content-type, range, x-request-id");
/// Response headers that a page may read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "accept-ranges, content-range, etag, link, location, retry-after, x-audio-format, x-cache, x-ignored, x-lost-utterances, x-request-id, x-sample-rate",
);
/// How long a browser may cache a preflight response.
const MAX_AGE_SECONDS: HeaderValue = HeaderValue::from_static("600");
const VARY_PREFLIGHT: HeaderValue = HeaderValue::from_static(
    "origin, access-control-request-method, access-control-request-headers",
);
const VARY: HeaderValue = HeaderValue::from_static("origin");

/// The middleware that answers preflights of allowed origins and adds the headers that let browsers expose responses to
/// them.
pub async fn allow(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let origins = request.app_data::<web::Data<Origins>>();
    let Some(origins) = origins.filter(|origins| !origins.is_empty()) else {
        return next.call(request).await;
    };
    let origin = listed(origins, request.headers());
    let preflight = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    match origin {
        Some(origin) if preflight => {
            // OpenAI's client tells what it is and runs on, by headers of its own.
            let asked = request
                .headers()
                .get(header::ACCESS_CONTROL_REQUEST_HEADERS);
            let asked = asked.filter(|_| request.path().starts_with(openai::PREFIX));
            let headers = asked.cloned().unwrap_or(HEADERS);
            Ok(request.into_response(preflight_answer(origin, headers)))
        }
        origin => {
            let answer = next.call(request).await;
            requests::with_headers(answer, |headers| {
                headers.append(header::VARY, VARY);
                if let Some(origin) = origin {
                    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
                    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
                }
            })
        }
    }
}

fn preflight_answer(origin: HeaderValue, headers: HeaderValue) -> HttpResponse {
    HttpResponse::NoContent()
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, origin))
        .insert_header((header::ACCESS_CONTROL_ALLOW_METHODS, METHODS))
        .insert_header((header::ACCESS_CONTROL_ALLOW_HEADERS, headers))
        .insert_header((header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_SECONDS))
        .insert_header((header::VARY, VARY_PREFLIGHT))
        .finish()
}

/// The request's origin, if it is allowed.
fn listed(origins: &Origins, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    origins
        .contains(origin.to_str().ok()?)
        .then(|| origin.clone())
}
