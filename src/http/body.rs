//! JSON request bodies: bounded before they are read, and refused with the name of the field that does not fit.

use std::time::Duration;

use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::Bytes;
use actix_web::{FromRequest, HttpRequest, dev};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::error::{ApiError, Code};
use crate::json;

/// The largest body of any request.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);

/// A JSON body: an object, or where `ARRAY` says so also an array. A missing content type counts as JSON, any other than
/// `application/json` does not.
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
            let misfit =
                |misfit: json::Misfit| ApiError::new(Code::InvalidRequest, misfit.to_string());
            let parse = if ARRAY { json::parse_any } else { json::parse };
            parse(&bytes.await?).map(Self).map_err(misfit)
        }
        .boxed_local()
    }
}

/// The whole body of a request, bounded in size and time.
pub(super) fn read(
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
        bytes.map_err(|error| read_error(&error))
    }
}

fn check_content_type(request: &HttpRequest) -> Result<(), ApiError> {
    let Some(value) = request.headers().get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let media_type = value
        .to_str()
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
