//! JSON request bodies: bounded before they are read, and refused with the name of the field that does not fit.

use std::time::Duration;

use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::Bytes;
use actix_web::{FromRequest, HttpRequest, dev};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::error::{ApiError, Code};
use crate::json;

/// The largest body of any request.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);

/// A JSON body: an object, or where `ARRAY` says so also an array. Its content type must say so: pages of other sites may
/// send whatever has none without asking first.
pub struct JsonBody<T, const ARRAY: bool = false>(pub T);

impl<T: DeserializeOwned + 'static, const ARRAY: bool> FromRequest for JsonBody<T, ARRAY> {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut dev::Payload) -> Self::Future {
        if let Err(error) = check_content_type(request) {
            return std::future::ready(Err(error)).boxed_local();
        }
        let bytes = read(request, payload);
        async move {
            let parse = if ARRAY { json::parse_any } else { json::parse };
            parse(&bytes.await?)
                .map(Self)
                .map_err(|error| misfit(&error))
        }
        .boxed_local()
    }
}

/// A body that is text, whatever it calls itself: what is read only if it is signed.
pub struct TextBody(pub String);

impl FromRequest for TextBody {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut dev::Payload) -> Self::Future {
        let bytes = read(request, payload);
        async move { Ok(Self(String::from_utf8_lossy(&bytes.await?).into_owned())) }.boxed_local()
    }
}

/// The whole body of a request, if it has one, as JSON that everybody reads in the same way.
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
    let bytes = read(request, payload).await?;
    if !bytes.is_empty() {
        json::parse_any::<Box<RawValue>>(&bytes).map_err(|error| misfit(&error))?;
    }
    Ok(bytes)
}

fn misfit(misfit: &json::Misfit) -> ApiError {
    ApiError::new(Code::InvalidRequest, misfit.to_string())
}

/// The whole body of a request, bounded in size and time.
fn read(
    request: &HttpRequest,
    payload: &mut dev::Payload,
) -> impl Future<Output = Result<Bytes, ApiError>> + use<> {
    let bytes = Bytes::from_request(request, payload);
    async {
        let bytes = timeout(PATIENCE, bytes).await.map_err(|_| {
            let seconds = PATIENCE.as_secs();
            let late = format!("the body did not arrive within {seconds} s");
            ApiError::new(Code::InvalidRequest, late)
        })?;
        let bytes = bytes.map_err(|error| read_error(&error))?;
        // Parsers differ in what they make of the rest.
        if std::str::from_utf8(&bytes).is_err() {
            return Err(ApiError::new(Code::InvalidRequest, "the body is not UTF-8"));
        }
        Ok(bytes)
    }
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

fn read_error(error: &actix_web::Error) -> ApiError {
    match error.as_error::<PayloadError>() {
        Some(PayloadError::Overflow) => ApiError::new(
            Code::PayloadTooLarge,
            format!("the body is larger than {MAX_BODY_BYTES} bytes"),
        ),
        _ => ApiError::new(
            Code::InvalidRequest,
            "the body could not be read to its end",
        ),
    }
}
