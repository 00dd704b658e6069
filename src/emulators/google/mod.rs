//! Google's server, as far as its own SDKs and our client use it: gRPC on a listener of its own, REST beside the others.

use std::sync::Arc;

use actix_web::web;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Emulation;

/// Its routes, on the listeners for HTTP.
pub(super) fn routes(_: &mut web::ServiceConfig) {}

/// Serves gRPC without TLS (h2c) until it is told to stop.
pub(super) async fn serve(
    listener: TcpListener,
    emulation: Arc<Emulation>,
    stop: CancellationToken,
) {
    stop.cancelled().await;
    drop((listener, emulation));
}
