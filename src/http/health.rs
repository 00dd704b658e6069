//! `GET /`, `/healthz` and `/readyz`: whether the server is there, alive, and willing.

use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::Serialize;

use super::state::AppState;

/// How the server is.
#[derive(Serialize, JsonSchema)]
pub struct Health {
    #[schemars(extend("enum" = ["OK", "draining"]))]
    status: &'static str,
}

/// `GET /` and `GET /healthz`: 200 whenever the server can be reached.
pub async fn alive() -> HttpResponse {
    HttpResponse::Ok().json(Health { status: "OK" })
}

/// `GET /readyz`: 200 when new work is welcome, 503 while the server drains.
pub async fn ready(state: web::Data<AppState>) -> HttpResponse {
    if state.draining.is_cancelled() {
        HttpResponse::ServiceUnavailable().json(Health { status: "draining" })
    } else {
        HttpResponse::Ok().json(Health { status: "OK" })
    }
}
