//! The response to a request that is not a valid WebSocket handshake.

use actix_web::error::InternalError;
use actix_web::http::header::SEC_WEBSOCKET_VERSION;
use actix_web::{Error, ResponseError};
use vivavoce_socket::OpenError;

use super::error::{ApiError, Code};

/// The response, with the usual error body, as an error that handlers return.
pub fn refused(error: OpenError) -> Error {
    let code = match &error {
        OpenError::Origin(_) => Code::OriginNotAllowed,
        OpenError::Handshake(_) => Code::InvalidRequest,
        OpenError::Connection => Code::Internal,
    };
    let mut response = ApiError::new(code, error.to_string()).error_response();
    if let Some(version) = error.error_response().headers().get(SEC_WEBSOCKET_VERSION) {
        let headers = response.headers_mut();
        headers.insert(SEC_WEBSOCKET_VERSION, version.clone());
    }
    InternalError::from_response(error, response).into()
}
