//! `GET /metrics`: what the server counts about itself.

use actix_web::HttpResponse;

use super::error::{ApiError, Code};
use crate::auth::Access;
use crate::telemetry::metrics;

/// Answers with all metrics as OpenMetrics text.
pub async fn show(_: Access) -> Result<HttpResponse, ApiError> {
    let page = metrics::page().map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    Ok(HttpResponse::Ok()
        .content_type(metrics::MEDIA_TYPE)
        .body(page))
}
