//! Observation of requests: the request id, in the response and in all log lines; the access log; metrics. Only the
//! route's pattern is recorded, never the path, query or headers. Metrics count every request; the log has a line for
//! each of a known caller, and for strangers' as many as do not fill a disk.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::InternalError;
use actix_web::http::Method;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{HttpMessage, HttpRequest, web};
use opentelemetry::propagation::Extractor;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::limits::{PROBES, path};
use super::state::AppState;
use vivavoce_core::token_bucket::TokenBucket;
use vivavoce_quotas::Party;
use vivavoce_telemetry::metrics::{self, Answered};
use vivavoce_telemetry::traces;

/// The header of the request id, in requests and responses.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header of the trace that the request belongs to.
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
/// The maximum length of an id accepted from the client.
const MAX_ID_BYTES: usize = 128;
/// Paths that are polled by people's pages.
const INSPECTION: &str = "/inspect/";
/// Replaces the pattern if no route matches.
const NO_ROUTE: &str = "none";
/// Lines of the access log about strangers each second, and in a burst.
const STRANGERS_LINES_PER_SECOND: u32 = 10;
const STRANGERS_BURST: u32 = 100;
/// How often the log says how many lines it does not have.
const TOLD_INTERVAL: Duration = Duration::from_secs(10);

/// Of this process.
static STRANGERS: Mutex<StrangersLines> = Mutex::new(StrangersLines::new());

/// The id of a request, for work that continues after it.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The id of a request; empty if the middleware is not active.
    pub fn of(request: &HttpRequest) -> String {
        let extensions = request.extensions();
        let id = extensions.get().map(|Self(id)| id.to_str());
        id.and_then(Result::ok).unwrap_or_default().to_owned()
    }
}

/// The request's headers, for the trace context.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    /// `None` if there are several, because it would be ambiguous.
    fn get(&self, key: &str) -> Option<&str> {
        let mut values = self.0.get_all(key);
        let value = values.next()?.to_str().ok()?;
        values.next().is_none().then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// Which requests of strangers have a line in the access log.
#[derive(Debug)]
struct StrangersLines {
    rate: TokenBucket,
    /// Requests without a line that the log does not mention yet, and when the first of them was.
    missing: u64,
    first_missing: Option<Instant>,
}

impl StrangersLines {
    const fn new() -> Self {
        Self {
            rate: TokenBucket::new(STRANGERS_LINES_PER_SECOND, STRANGERS_BURST),
            missing: 0,
            first_missing: None,
        }
    }

    /// Whether another request has a line; otherwise it is counted.
    fn take(&mut self, now: Instant) -> bool {
        let fits = self.rate.take(1.0, now.into_std());
        if !fits {
            self.missing += 1;
            self.first_missing.get_or_insert(now);
        }
        fits
    }

    /// How many requests the log is to say have no line, if it is time to.
    fn due(&mut self, now: Instant) -> Option<u64> {
        let first = self.first_missing?;
        if now.saturating_duration_since(first) < TOLD_INTERVAL {
            return None;
        }
        self.first_missing = None;
        Some(std::mem::take(&mut self.missing))
    }
}

/// Whether a request has a line in the access log.
fn is_logged(is_stranger: bool, now: Instant) -> bool {
    let mut lines = STRANGERS.lock().unwrap_or_else(PoisonError::into_inner);
    let logged = !is_stranger || lines.take(now);
    // Told by whichever request comes next: after a flood that is a probe's.
    let missing = lines.due(now);
    drop(lines);
    if let Some(requests) = missing {
        tracing::info!(parent: None, requests, "requests of unknown callers have no line here");
    }
    logged
}

/// A route's pattern without regular expressions: `/recording/{stream_id:.*}` is `/recording/{stream_id}`.
fn label(pattern: &str) -> String {
    let mut label = String::with_capacity(pattern.len());
    let mut depth = 0_u32;
    let mut in_expression = false;
    for c in pattern.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ':' if depth == 1 => in_expression = true,
            _ => {}
        }
        in_expression &= depth > 0;
        if !in_expression {
            label.push(c);
        }
    }
    label
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
    // Whoever watches asks every second: what is answered then would be most of the log that is watched.
    let looks = *request.method() == Method::GET && path(request.request()).starts_with(INSPECTION);
    // At error level, so that the span is attached to every log line.
    let span = tracing::error_span!("request", request_id = id.to_str().unwrap_or_default());
    if request.headers().contains_key(TRACE_PARENT) {
        traces::continue_trace(&span, &Headers(request.headers()));
    }
    request.extensions_mut().insert(RequestId(id.clone()));
    let state = request.app_data::<web::Data<AppState>>();
    let authenticates = state.is_some_and(|state| state.auth.is_some());
    async move {
        let answer = next.call(request).await;
        // Only now the matched route is known.
        let mut tenant = None;
        let (status, route, is_known) = match &answer {
            Ok(response) => {
                let request = response.request();
                let extensions = request.extensions();
                let party = extensions.get::<Party>();
                // A public socket's callers are counted by address.
                let is_known = matches!(party, Some(Party::Operator | Party::Tenant(_)));
                if let Some(Party::Tenant(known)) = party {
                    tenant = Some(known.as_str().to_owned());
                }
                (response.status(), request.match_pattern(), is_known)
            }
            Err(error) => (error.as_response_error().status_code(), None, false),
        };
        // Where nobody authenticates, whoever is not refused is the operator.
        let is_look = looks && status.is_success();
        let is_refused = status.is_client_error() || status.is_server_error();
        let is_stranger = !is_known && (authenticates || is_refused);
        let (status, duration) = (status.as_u16(), begun.elapsed());
        let route = route.map_or_else(|| NO_ROUTE.to_owned(), |route| label(&route));
        let duration_ms = duration.as_micros() as f64 / 1e3;
        let logged = is_logged(is_stranger && !probe, Instant::now());
        if probe || is_look {
            tracing::debug!(method, route, status, duration_ms, "answered");
        } else if logged {
            // The route and not the path: a path may hold a telephone number.
            tracing::info!(method, route, status, duration_ms, tenant, "answered");
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

/// Adds headers to a response, also to an error that has not been converted to one yet.
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

/// The client's id if it is valid, otherwise a new one.
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

/// The method's name, if it is one that exists here: clients can invent others.
fn name(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let known = KNOWN.iter().find(|known| method.as_str() == **known);
    known.copied().unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_told_without_their_expressions() {
        for (pattern, told) in [
            ("/healthz", "/healthz"),
            ("/recording/{stream_id:.*}", "/recording/{stream_id}"),
            ("/a/{b:[0-9]{2,3}}/{c}", "/a/{b}/{c}"),
        ] {
            assert_eq!(label(pattern), told);
        }
    }

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
    fn a_flood_of_strangers_has_some_lines_and_is_summed_up_in_one() {
        let mut lines = StrangersLines::new();
        let begun = Instant::now();
        // 1,000 requests a second for 10 s.
        let mut logged = 0;
        let mut told = Vec::new();
        for index in 0..10_000 {
            let now = begun + Duration::from_millis(index);
            logged += u64::from(lines.take(now));
            told.extend(lines.due(now));
        }
        assert!((190..=201).contains(&logged), "{logged}");
        assert!(told.is_empty(), "{told:?}");
        // The next request says how many are missing, once.
        let later = begun + Duration::from_secs(20);
        assert_eq!(lines.due(later), Some(10_000 - logged));
        assert_eq!(lines.due(later), None);
        // A few a second have a line each, always.
        for index in 1..1_000 {
            let now = later + Duration::from_millis(index * 100);
            assert!(lines.take(now) && lines.due(now).is_none());
        }
    }

    #[test]
    fn invented_methods_are_one() {
        assert_eq!(name(&Method::GET), "GET");
        assert_eq!(name(&Method::from_bytes(b"BREW").unwrap()), "other");
    }
}
