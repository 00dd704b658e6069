//! The control interface for tests: sets and clears faults while the emulators run, and reports what every connection did.

use actix_web::{HttpResponse, web};
use serde::Deserialize;

use super::Emulation;
use super::faults::Fault;

/// The body of `POST /control/faults`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Faults {
    /// Each written as for `--fault`.
    faults: Vec<String>,
}

/// Its routes.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    service
        .route("/control/faults", web::get().to(list))
        .route("/control/faults", web::post().to(add))
        .route("/control/faults", web::delete().to(clear))
        .route("/control/log", web::get().to(log))
        .route("/control/log", web::delete().to(forget));
}

async fn list(emulation: web::Data<Emulation>) -> HttpResponse {
    let faults = emulation.faults.all();
    let faults: Vec<String> = faults.iter().map(Fault::to_string).collect();
    HttpResponse::Ok().json(serde_json::json!({ "faults": faults }))
}

/// All of them, or none.
async fn add(emulation: web::Data<Emulation>, body: web::Json<Faults>) -> HttpResponse {
    let faults: Result<Vec<Fault>, _> = body.faults.iter().map(|fault| fault.parse()).collect();
    let faults = match faults {
        Ok(faults) => faults,
        Err(error) => return refused(&error),
    };
    for fault in faults {
        if let Err(error) = emulation.faults.add(fault) {
            return refused(&error);
        }
    }
    list(emulation).await
}

fn refused(error: &dyn std::error::Error) -> HttpResponse {
    HttpResponse::BadRequest().json(serde_json::json!({ "error": error.to_string() }))
}

async fn clear(emulation: web::Data<Emulation>) -> HttpResponse {
    emulation.faults.clear();
    HttpResponse::NoContent().finish()
}

async fn log(emulation: web::Data<Emulation>) -> HttpResponse {
    let connections = emulation.log.all();
    HttpResponse::Ok().json(serde_json::json!({ "connections": connections }))
}

async fn forget(emulation: web::Data<Emulation>) -> HttpResponse {
    emulation.log.clear();
    HttpResponse::NoContent().finish()
}
