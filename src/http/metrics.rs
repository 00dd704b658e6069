//! `GET /metrics`: what the server counts about itself, among the other doors or at an address of its own.

use std::io;
use std::net::SocketAddr;

use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpResponse, HttpServer, web};

use super::auth::public;
use super::error::{ApiError, Code};
use super::{at, observe, socket, unknown_path};
use crate::auth::Access;
use crate::telemetry::metrics;

/// Where it is.
pub const PATH: &str = "/metrics";

/// Connections at once at an address of its own: some collectors, and somebody who looks.
const MAX_CONNECTIONS: usize = 64;

/// Answers with all metrics as OpenMetrics text.
pub async fn show(_: Access) -> Result<HttpResponse, ApiError> {
    page().await
}

async fn page() -> Result<HttpResponse, ApiError> {
    let page = metrics::page().map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    Ok(HttpResponse::Ok()
        .content_type(metrics::MEDIA_TYPE)
        .body(page))
}

/// Listens at an address that shows the metrics to whoever reaches it, and nothing else. Gives the address with its port,
/// and the server, which runs when it is awaited.
pub fn serve_alone(address: SocketAddr) -> io::Result<(SocketAddr, Server)> {
    let server = HttpServer::new(|| {
        App::new()
            .wrap(from_fn(observe))
            .service(at(PATH).get(public(page)))
            .default_service(web::to(unknown_path))
    })
    .disable_signals()
    .workers(1)
    .max_connections(MAX_CONNECTIONS)
    .on_connect(socket::accepted)
    .bind(address)?;
    let address = server.addrs().first().copied().unwrap_or(address);
    Ok((address, server.run()))
}
