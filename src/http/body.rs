//! Request bodies: their size is checked before they are read, and memory, time and rate while they arrive; errors name
//! the field that is wrong. Unfinished bodies of unauthenticated callers share a part of the memory.

use std::time::Duration;

use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::{self, Bytes, BytesMut};
use actix_web::{FromRequest, HttpRequest, dev};
use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::connections::AwaitedClient;
use super::entries::{Reads, bounds};
use super::error::{ApiError, Code};
use super::limits::Limits;
use vivavoce_core::json;
use vivavoce_quotas::shared_limit::Exceeded;
use vivavoce_telemetry::metrics;

/// The largest body of any request.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// How long a body may take to arrive.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take regardless of its rate.
const GRACE: Duration = Duration::from_secs(5);
/// The minimum average rate beyond that.
pub(super) const LEAST_BYTES_PER_SECOND: u64 = 1024;

/// What a body may hold without being counted in `limits.unfinished_body_bytes`: more than most bodies have.
const OWN_BYTES: usize = 16 << 10;

/// Why a body was not read completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is too large, or its head says so.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// It took too long.
    #[error("the body did not arrive within {} s", PATIENCE.as_secs())]
    Late,
    /// It arrived too slowly.
    #[error(
        "the body came slower than {LEAST_BYTES_PER_SECOND} bytes a second after {} s",
        GRACE.as_secs()
    )]
    Slow,
    /// Unfinished bodies, of this caller or of others, use up the memory for them.
    #[error("unfinished bodies {} what limits.unfinished_body_bytes allows", whose(.0))]
    NoMemory(Exceeded),
    /// The connection ended, or it did not carry valid HTTP.
    #[error("the body could not be read to its end")]
    Broken,
    /// The entry does not declare a body.
    #[error("there is no body here")]
    Undeclared,
}

const fn whose(exceeded: &Exceeded) -> &'static str {
    match exceeded {
        Exceeded::Total => "hold all of",
        Exceeded::Unauthenticated => "of callers without a token hold their part of",
        Exceeded::PerKey => "of this caller hold its part of",
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let code = match error {
            BodyError::TooLarge { .. } => Code::PayloadTooLarge,
            BodyError::Late | BodyError::Slow | BodyError::Broken => Code::InvalidRequest,
            BodyError::NoMemory(Exceeded::Total) => Code::Overloaded,
            BodyError::NoMemory(_) => Code::RateLimited,
            BodyError::Undeclared => Code::Internal,
        };
        let answer = Self::new(code, error.to_string());
        match error {
            BodyError::NoMemory(_) => answer.retry_after(Duration::from_secs(1)),
            _ => answer,
        }
    }
}

/// A JSON body: an object, or also an array if `ARRAY` is true. The content type must be JSON: web pages can send
/// requests without one to other origins without a preflight.
pub struct JsonBody<T, const ARRAY: bool = false>(pub T);

impl<T: DeserializeOwned + 'static, const ARRAY: bool> FromRequest for JsonBody<T, ARRAY> {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut dev::Payload) -> Self::Future {
        if let Err(error) = check_content_type(request) {
            return std::future::ready(Err(error)).boxed_local();
        }
        let (request, mut payload) = (request.clone(), payload.take());
        async move {
            let parse = if ARRAY { json::parse_any } else { json::parse };
            parse(&text(&request, &mut payload).await?)
                .map(Self)
                .map_err(|error| misfit(&error))
        }
        .boxed_local()
    }
}

/// The whole body of a request, if it has one, as JSON that all parsers read the same way.
pub(super) async fn read_json(
    request: &HttpRequest,
    payload: &mut dev::Payload,
) -> Result<Bytes, ApiError> {
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH);
    let some = length.is_some_and(|length| length.as_bytes() != b"0")
        || headers.contains_key(header::TRANSFER_ENCODING);
    if !some {
        return Ok(Bytes::new());
    }
    check_content_type(request)?;
    let bytes = text(request, payload).await?;
    if !bytes.is_empty() {
        json::parse_any::<Box<RawValue>>(&bytes).map_err(|error| misfit(&error))?;
    }
    Ok(bytes)
}

fn misfit(misfit: &json::Misfit) -> ApiError {
    ApiError::new(Code::InvalidRequest, misfit.to_string())
}

/// The whole body of a request, which must be text.
async fn text(request: &HttpRequest, payload: &mut dev::Payload) -> Result<Bytes, ApiError> {
    let bytes = read(request, payload).await?;
    // Parsers differ in how they handle invalid UTF-8.
    if std::str::from_utf8(&bytes).is_err() {
        return Err(ApiError::new(Code::InvalidRequest, "the body is not UTF-8"));
    }
    Ok(bytes)
}

/// The whole body of a request, up to the size its entry declares.
pub(super) async fn read(
    request: &HttpRequest,
    payload: &mut dev::Payload,
) -> Result<Bytes, BodyError> {
    let Some(Reads::Body { bytes: limit, .. }) = bounds(request).map(|bounds| bounds.reads) else {
        return Err(BodyError::Undeclared);
    };
    if declared_length(request).is_some_and(|length| length > limit as u64) {
        return Err(BodyError::TooLarge { limit });
    }
    let mut held = request
        .app_data::<web::Data<Limits>>()
        .map(|limits| limits.unfinished_body(request));
    let _awaited = AwaitedClient::of(request);
    let begun = Instant::now();
    let mut body = BytesMut::new();
    loop {
        let due = due(begun, body.len());
        let chunk = timeout_at(due, payload.next()).await.map_err(|_| {
            metrics::body_cut_off();
            if due < begun + PATIENCE {
                BodyError::Slow
            } else {
                BodyError::Late
            }
        })?;
        let chunk = match chunk {
            None => return Ok(body.freeze()),
            Some(Ok(chunk)) => chunk,
            Some(Err(PayloadError::Overflow)) => return Err(BodyError::TooLarge { limit }),
            Some(Err(_)) => return Err(BodyError::Broken),
        };
        if body.len() + chunk.len() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        body.extend_from_slice(&chunk);
        if let Some(held) = &mut held {
            let shared = body.capacity().saturating_sub(OWN_BYTES);
            held.resize(shared).map_err(|exceeded| {
                metrics::body_cut_off();
                BodyError::NoMemory(exceeded)
            })?;
        }
    }
}

pub(super) fn declared_length(request: &HttpRequest) -> Option<u64> {
    let length = request.headers().get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.trim().parse().ok()
}

/// The deadline for the rest of a body of which this much has arrived, or for more of it.
fn due(begun: Instant, received: usize) -> Instant {
    let earned = Duration::from_millis(received as u64 * 1000 / LEAST_BYTES_PER_SECOND);
    begun + (GRACE + earned).min(PATIENCE)
}

fn check_content_type(request: &HttpRequest) -> Result<(), ApiError> {
    let value = request.headers().get(header::CONTENT_TYPE);
    let media_type = value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ApiError::new(
        Code::UnsupportedMediaType,
        "the body must be JSON, with content type application/json",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::{Bounds, Callers};
    use actix_web::HttpMessage;
    use actix_web::test::TestRequest;
    use futures_util::stream;
    use std::collections::HashMap;
    use vivavoce_config::Config;
    use vivavoce_quotas::Quotas;

    const LIMIT: usize = 100_000;

    /// A request from this address, whose bodies share this much memory.
    fn request(address: &str, memory: &str) -> HttpRequest {
        of(address, &web::Data::new(limits(memory)))
    }

    fn of(address: &str, limits: &web::Data<Limits>) -> HttpRequest {
        let peer = format!("{address}:1").parse().unwrap();
        let request = TestRequest::default()
            .peer_addr(peer)
            .app_data(limits.clone());
        let request = request.to_http_request();
        request.extensions_mut().insert(Bounds {
            callers: Callers::Anybody,
            reads: Reads::Body {
                bytes: LIMIT,
                within: PATIENCE,
            },
            counted_by: "",
        });
        request
    }

    /// An endless body that arrives in chunks of this size at this interval.
    fn dripping(bytes: usize, every: Duration) -> dev::Payload {
        let drips = stream::unfold((), move |()| async move {
            tokio::time::sleep(every).await;
            Some((Ok::<_, PayloadError>(Bytes::from(vec![b' '; bytes])), ()))
        });
        dev::Payload::Stream {
            payload: Box::pin(drips),
        }
    }

    #[actix_web::test]
    async fn a_body_that_drips_is_given_up_long_before_one_that_is_long() {
        tokio::time::pause();
        let request = request("127.0.0.1", "64MiB");
        for (bytes, every_ms, error, seconds) in [
            (1, 1_000, BodyError::Slow, 5.0),
            (512, 1_000, BodyError::Slow, 9.0),
            (2_000, 1_000, BodyError::Late, 30.0),
            (20_000, 500, BodyError::TooLarge { limit: LIMIT }, 3.0),
        ] {
            let begun = Instant::now();
            let mut payload = dripping(bytes, Duration::from_millis(every_ms));
            assert_eq!(read(&request, &mut payload).await, Err(error), "{bytes}");
            let took = begun.elapsed().as_secs_f64();
            assert!((took - seconds).abs() < 1.0, "{bytes}: {took} s");
        }
    }

    #[actix_web::test]
    async fn a_length_that_is_too_large_is_refused_unread() {
        let mut payload = dripping(1, Duration::from_hours(1));
        let request = TestRequest::default().insert_header((header::CONTENT_LENGTH, "100001"));
        let request = request.to_http_request();
        let declared = bounds(&of("127.0.0.1", &web::Data::new(limits("64MiB"))));
        request.extensions_mut().insert(declared.unwrap());
        let error = read(&request, &mut payload).await.unwrap_err();
        assert_eq!(error, BodyError::TooLarge { limit: LIMIT });
    }

    fn limits(memory: &str) -> Limits {
        let flags = [("limits.unfinished_body_bytes".to_owned(), memory.to_owned())];
        let config = Config::from_sources(&flags, &HashMap::new(), None).unwrap();
        Limits::new(&config.settings, &Quotas::new(&config.settings))
    }

    #[actix_web::test]
    async fn unfinished_bodies_of_one_address_leave_memory_for_those_of_others() {
        let limits = web::Data::new(limits("200000"));
        let first = of("192.0.2.1", &limits);
        let mut payload = dripping(90_000, Duration::from_millis(1));
        let refused = read(&first, &mut payload).await;
        assert_eq!(refused, Err(BodyError::NoMemory(Exceeded::PerKey)));
        let own = of("127.0.0.1", &limits);
        let whole = stream::iter([Ok::<_, PayloadError>(Bytes::from(vec![b' '; 90_000]))]);
        let mut payload: dev::Payload = dev::Payload::Stream {
            payload: Box::pin(whole),
        };
        assert_eq!(
            read(&own, &mut payload).await.map(|body| body.len()),
            Ok(90_000)
        );
    }

    #[actix_web::test]
    async fn a_body_that_no_entry_declares_is_not_read() {
        let mut payload = dripping(1, Duration::ZERO);
        let request = TestRequest::default().to_http_request();
        assert_eq!(
            read(&request, &mut payload).await,
            Err(BodyError::Undeclared)
        );
    }
}
