//! `GET /`, `/healthz` and `/readyz`: liveness and readiness.

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use schemars::JsonSchema;
use serde::Serialize;

use super::state::AppState;

/// The state of the server.
#[derive(Serialize, JsonSchema)]
pub struct Health {
    #[schemars(extend("enum" = ["OK", "draining"]))]
    status: &'static str,
    /// The models of local speech that are installed, by their names in `vivavoce models list`; only of `/readyz`.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<String>>,
}

impl Health {
    const fn of(status: &'static str) -> Self {
        Self {
            status,
            models: None,
        }
    }
}

/// `GET /` and `GET /healthz`: 200 whenever the server is running. Any page may read it: LiveKit's client for browsers asks
/// here whether a server is there (`prepareConnection`).
pub async fn alive() -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"))
        .json(Health::of("OK"))
}

/// `GET /readyz`: 200 if the server accepts new work, 503 while it drains.
pub async fn ready(state: web::Data<AppState>) -> HttpResponse {
    if state.draining.is_cancelled() {
        HttpResponse::ServiceUnavailable()
            .insert_header((header::RETRY_AFTER, 1))
            .json(Health::of("draining"))
    } else {
        HttpResponse::Ok().json(Health {
            models: Some((state.models)()),
            ..Health::of("OK")
        })
    }
}
