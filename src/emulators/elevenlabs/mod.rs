//! ElevenLabs's server, as far as its own SDKs and our client use it.

use actix_web::web;

/// Its routes, on the listeners for HTTP.
pub(super) fn routes(_: &mut web::ServiceConfig) {}
