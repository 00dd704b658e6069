//! What is told of every request: its id, in the answer and in every log line that it causes; its line in the access
//! log; its count. Of its path only the pattern is told, of its query and its headers nothing.

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::InternalError;
use actix_web::http::Method;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{HttpMessage, HttpRequest};
use opentelemetry::propagation::Extractor;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::limits::{PROBES, path};
use vivavoce_telemetry::metrics::{self, Answered};
use vivavoce_telemetry::traces;

/// The request's id, in and out.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The trace that the request belongs to.
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
/// The longest id that is taken over.
const MAX_ID_BYTES: usize = 128;
/// In place of the pattern, where no route has the path.
const NO_ROUTE: &str = "none";

/// The id of a request, for what goes on after it.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// That of a request; empty where nobody observes it.
    pub fn of(request: &HttpRequest) -> String {
        let extensions = request.extensions();
        let id = extensions.get().map(|Self(id)| id.to_str());
        id.and_then(Result::ok).unwrap_or_default().to_owned()
    }
}

/// The headers of a request, as they say which trace it belongs to.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    /// Of several, none: nobody could say which one is meant.
    fn get(&self, key: &str) -> Option<&str> {
        let mut values = self.0.get_all(key);
        let value = values.next()?.to_str().ok()?;
        values.next().is_none().then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// The outermost middleware.
pub async fn observe(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let begun = Instant::now();
    let id = id(request.headers());
    let method = name(request.method());
    let probe =
        matches!(path(request.request()), "/metrics") || PROBES.contains(&path(request.request()));
    // At the highest level, so that whatever is logged carries it.
    let span = tracing::error_span!("request", request_id = id.to_str().unwrap_or_default());
    if request.headers().contains_key(TRACE_PARENT) {
        traces::continue_trace(&span, &Headers(request.headers()));
    }
    request.extensions_mut().insert(RequestId(id.clone()));
    async move {
        let answer = next.call(request).await;
        // The route is known now; before, it would have to be looked for.
        let (status, route) = match &answer {
            Ok(response) => (response.status(), response.request().match_pattern()),
            Err(error) => (error.as_response_error().status_code(), None),
        };
        let (status, duration) = (status.as_u16(), begun.elapsed());
        let route = route.unwrap_or_else(|| NO_ROUTE.to_owned());
        let duration_ms = duration.as_micros() as f64 / 1e3;
        if probe {
            tracing::debug!(method, route, status, duration_ms, "answered");
        } else {
            tracing::info!(method, route, status, duration_ms, "answered");
        }
        traces::answered(&Span::current(), method, &route, status);
        metrics::answered(
            Answered {
                method,
                route,
                status,
            },
            duration,
        );
        with_headers(answer, |headers| drop(headers.insert(REQUEST_ID, id)))
    }
    .instrument(span)
    .await
}

/// The answer with other headers, also where it is an error that nobody has made a response of yet.
pub fn with_headers(
    answer: Result<ServiceResponse, actix_web::Error>,
    change: impl FnOnce(&mut HeaderMap),
) -> Result<ServiceResponse, actix_web::Error> {
    match answer {
        Ok(mut response) => {
            change(response.headers_mut());
            Ok(response)
        }
        Err(error) => {
            let mut response = error.error_response();
            change(response.headers_mut());
            Err(InternalError::from_response(error, response).into())
        }
    }
}

/// The caller's id where it has a good one, else a new one.
fn id(headers: &HeaderMap) -> HeaderValue {
    let good = |id: &&HeaderValue| {
        (1..=MAX_ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers
        .get(REQUEST_ID)
        .filter(good)
        .cloned()
        .unwrap_or_else(|| {
            let new = uuid::Uuid::new_v4().simple().to_string();
            new.try_into().unwrap_or(HeaderValue::from_static("-"))
        })
}

/// The method's name, where it is one that somebody may use here: anybody can invent others.
fn name(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let known = KNOWN.iter().find(|known| method.as_str() == **known);
    known.copied().unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(sent: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_str(sent).unwrap());
        id(&headers).to_str().unwrap().to_owned()
    }

    #[test]
    fn an_id_of_visible_characters_is_taken_over_and_any_other_replaced() {
        let longest = "x".repeat(MAX_ID_BYTES);
        for good in ["a", "0af7651916cd43dd-8448/eb!", &longest] {
            assert_eq!(id_of(good), good);
        }
        let too_long = "x".repeat(MAX_ID_BYTES + 1);
        for bad in ["", "a b", "a\tb", "é", &too_long] {
            let new = id_of(bad);
            assert_eq!(new.len(), 32, "{bad:?} became {new}");
        }
        assert_ne!(id_of(""), id_of(""));
    }

    #[test]
    fn invented_methods_are_one() {
        assert_eq!(name(&Method::GET), "GET");
        assert_eq!(name(&Method::from_bytes(b"BREW").unwrap()), "other");
    }
}
