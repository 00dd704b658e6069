//! `GET /metrics`, on the main listener or at an address of its own.

use std::io;
use std::net::{SocketAddr, TcpListener};

use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::{App, HttpResponse, web};

use super::auth::public;
use super::error::{ApiError, Code};
use super::listen::Listen;
use super::{AllowedHosts, at, check_host, observe, track_connections, unknown_path};
use crate::auth::Entered;
use vivavoce_config::Settings;
use vivavoce_telemetry::metrics;

/// The path.
pub const PATH: &str = "/metrics";

/// Connections at the separate address: some collectors, and a person.
const MAX_CONNECTIONS: usize = 64;

/// Returns all metrics as OpenMetrics text. They are totals over all tenants, and changes in them reveal to a tenant
/// what others do, so they are reserved for callers without a tenant.
pub async fn show(Entered(access): Entered) -> Result<HttpResponse, ApiError> {
    if access.tenant().is_some() {
        let message = "the metrics are totals of all tenants; they are shown to callers without a tenant, and to all at metrics.address";
        return Err(ApiError::new(Code::OperatorOnly, message));
    }
    page().await
}

async fn page() -> Result<HttpResponse, ApiError> {
    let page = metrics::page().map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    Ok(HttpResponse::Ok()
        .content_type(metrics::MEDIA_TYPE)
        .body(page))
}

/// Serves only the metrics, without authentication. Returns the address and the server, which runs when awaited.
pub fn serve_alone(listener: TcpListener, settings: &Settings) -> io::Result<(SocketAddr, Server)> {
    let address = listener.local_addr()?;
    let hosts = web::Data::new(AllowedHosts::new(settings, address.ip(), true));
    let listen = Listen::of_anybody(listener, MAX_CONNECTIONS);
    listen.serve(move || {
        App::new()
            .app_data(hosts.clone())
            .wrap(from_fn(check_host))
            .wrap(from_fn(observe))
            .wrap(from_fn(track_connections))
            .service(at(PATH).get(public(page)))
            .default_service(web::to(unknown_path))
    })
}

#[cfg(test)]
mod tests {
    use actix_web::ResponseError;
    use vivavoce_auth::Access;

    use super::*;

    #[actix_web::test]
    async fn totals_of_all_are_shown_to_those_who_run_the_server_and_to_no_tenant() {
        let page = show(Entered(Access::anonymous())).await.unwrap();
        assert_eq!(page.status(), 200);
        let refused = show(Entered(Access::of_tenant("a"))).await.unwrap_err();
        assert_eq!(refused.status_code(), 403);
        assert!(refused.to_string().contains("metrics.address"), "{refused}");
    }
}
