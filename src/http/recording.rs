//! `/recording/{stream_id}` and `/recordings`: what was said, as it is kept. There is no store behind it yet, and every
//! valid request is told so.

use actix_web::{HttpResponse, web};

use super::error::{ApiError, Code};
use crate::auth::Access;

/// Gives a recording.
pub async fn download(_: Access, stream_id: web::Path<String>) -> Result<HttpResponse, ApiError> {
    check(&stream_id)?;
    Err(unavailable())
}

/// Deletes a recording.
pub async fn delete(_: Access, stream_id: web::Path<String>) -> Result<HttpResponse, ApiError> {
    check(&stream_id)?;
    Err(unavailable())
}

/// Lists recordings.
pub async fn list(_: Access) -> Result<HttpResponse, ApiError> {
    Err(unavailable())
}

/// Exactly the specified checks: any other name may be that of a recording, or of none.
fn check(stream_id: &str) -> Result<(), ApiError> {
    if stream_id.is_empty() || stream_id.contains("..") || stream_id.contains('/') {
        return Err(ApiError::new(
            Code::InvalidRequest,
            "stream_id: must not be empty and hold neither .. nor /",
        ));
    }
    Ok(())
}

fn unavailable() -> ApiError {
    ApiError::new(
        Code::RecordingUnavailable,
        "this server keeps no recordings",
    )
}
