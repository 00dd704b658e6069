//! `GET /`, `/healthz` and `/readyz`: liveness and readiness.

use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::Serialize;

use super::state::AppState;

/// The state of the server.
#[derive(Serialize, JsonSchema)]
pub struct Health {
    #[schemars(extend("enum" = ["OK", "draining"]))]
    status: &'static str,
}

/// `GET /` and `GET /healthz`: 200 whenever the server is running.
pub async fn alive() -> HttpResponse {
    HttpResponse::Ok().json(Health { status: "OK" })
}

/// `GET /readyz`: 200 if the server accepts new work, 503 while it drains.
pub async fn ready(state: web::Data<AppState>) -> HttpResponse {
    if state.draining.is_cancelled() {
        HttpResponse::ServiceUnavailable().json(Health { status: "draining" })
    } else {
        HttpResponse::Ok().json(Health { status: "OK" })
    }
}
