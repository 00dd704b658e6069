//! Paths in the words of another server of the family (`dialect.room_provider`).

use actix_web::HttpMessage;
use actix_web::body::BoxBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Uri;
use actix_web::middleware::Next;
use actix_web::web;

use crate::limits;
use crate::state::AppState;

/// The path that was asked for, where it was another one.
pub(super) struct AskedPath(pub(super) String);

/// The middleware that reads the dialect's paths as ours.
pub async fn respell(
    mut request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let state = request.app_data::<web::Data<AppState>>();
    let path = state.and_then(|state| state.dialect.path(request.path()));
    if let Some(uri) = path.and_then(|path| with_path(request.uri(), &path)) {
        let asked = AskedPath(limits::path(request.request()).to_owned());
        request.extensions_mut().insert(asked);
        request.match_info_mut().get_mut().update(&uri);
        request.head_mut().uri = uri;
    }
    next.call(request).await
}

fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    let query = uri
        .query()
        .map_or_else(String::new, |query| format!("?{query}"));
    parts.path_and_query = Some(format!("{path}{query}").parse().ok()?);
    Uri::from_parts(parts).ok()
}
