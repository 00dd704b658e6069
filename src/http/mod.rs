//! The doors: one file per resource, the error body, and the list of routes. Handlers check and answer; whatever
//! they need done they ask of an actor or of the synthesiser.

mod body;
mod console;
mod cors;
mod error;
mod fields;
mod health;
mod limits;
mod metrics;
mod peer;
mod recording;
mod requests;
mod rtc;
mod sessions;
mod sip;
pub mod socket;
mod speak;
mod state;
pub mod tls;
mod voices;
mod ws;

use actix_web::http::Method;
use actix_web::{HttpRequest, Resource, web};

pub use body::MAX_BODY_BYTES;
pub use cors::{Origins, allow as allow_origins};
pub use error::{ApiError, Code};
pub use limits::{Limits, TenantPlace, by_address as limit_by_address};
pub use requests::observe;
pub use state::AppState;
pub use ws::Sockets;

/// All routes.
pub fn configure(app: &mut web::ServiceConfig) {
    let bad_query = |error: actix_web::error::QueryPayloadError, _: &HttpRequest| {
        ApiError::new(Code::InvalidRequest, format!("query: {error}")).into()
    };
    app.app_data(web::PayloadConfig::new(MAX_BODY_BYTES))
        .app_data(web::QueryConfig::default().error_handler(bad_query))
        .service(only(web::resource("/"), &[Method::GET, Method::HEAD]).get_and_head(health::alive))
        .service(
            only(web::resource("/healthz"), &[Method::GET, Method::HEAD])
                .get_and_head(health::alive),
        )
        .service(
            only(web::resource("/readyz"), &[Method::GET, Method::HEAD])
                .get_and_head(health::ready),
        )
        .service(
            only(web::resource("/metrics"), &[Method::GET, Method::HEAD])
                .get_and_head(metrics::show),
        )
        .service(
            only(web::resource("/voices"), &[Method::GET, Method::HEAD]).get_and_head(voices::list),
        )
        .service(only(web::resource("/speak"), &[Method::POST]).route(web::post().to(speak::speak)))
        .service(only(web::resource("/ws"), &[Method::GET]).route(web::get().to(ws::open)))
        .service(
            only(web::resource("/console"), &[Method::GET, Method::HEAD])
                .get_and_head(console::show),
        )
        .service(
            only(web::resource("/sessions"), &[Method::GET, Method::HEAD])
                .get_and_head(sessions::list),
        )
        .service(
            only(web::resource("/sessions/{stream_id}"), &[Method::DELETE])
                .route(web::delete().to(sessions::end)),
        )
        .configure(rooms)
        .configure(telephone)
        .default_service(web::to(unknown_path));
}

fn rooms(app: &mut web::ServiceConfig) {
    app.service(
        only(web::resource("/rtc/token"), &[Method::POST]).route(web::post().to(rtc::token)),
    )
    .service(
        only(web::resource("/rtc/rooms"), &[Method::GET, Method::HEAD]).get_and_head(rtc::rooms),
    )
    .service(
        only(
            web::resource("/rtc/rooms/{room_name}"),
            &[Method::GET, Method::HEAD],
        )
        .get_and_head(rtc::room),
    )
    .service(
        only(web::resource("/rtc/participant"), &[Method::DELETE])
            .route(web::delete().to(rtc::remove)),
    )
    .service(
        only(web::resource("/rtc/participant/mute"), &[Method::POST])
            .route(web::post().to(rtc::mute)),
    )
    .service(
        only(web::resource("/rtc/webhook"), &[Method::POST]).route(web::post().to(rtc::webhook)),
    )
    .service(
        only(web::resource("/recordings"), &[Method::GET, Method::HEAD])
            .get_and_head(recording::list),
    )
    .service(
        only(
            web::resource("/recording/{stream_id:.*}"),
            &[Method::GET, Method::HEAD, Method::DELETE],
        )
        .get_and_head(recording::download)
        .route(web::delete().to(recording::delete)),
    );
}

fn telephone(app: &mut web::ServiceConfig) {
    app.service(only(web::resource("/sip/call"), &[Method::POST]).route(web::post().to(sip::call)))
        .service(
            only(web::resource("/sip/transfer"), &[Method::POST])
                .route(web::post().to(sip::transfer)),
        )
        .service(
            only(
                web::resource("/sip/hooks"),
                &[Method::GET, Method::HEAD, Method::POST, Method::DELETE],
            )
            .get_and_head(sip::hooks)
            .route(web::post().to(sip::add_hooks))
            .route(web::delete().to(sip::remove_hooks)),
        );
}

/// A resource that answers every other method with 405 and `Allow`.
fn only(resource: Resource, methods: &'static [Method]) -> Resource {
    resource.default_service(web::to(move |request: HttpRequest| async move {
        Err::<String, _>(ApiError::method_not_allowed(request.method(), methods))
    }))
}

/// `HEAD` is answered like `GET`; the connection leaves the body out.
trait GetAndHead {
    fn get_and_head<F, Args>(self, handler: F) -> Self
    where
        F: actix_web::Handler<Args> + Clone,
        Args: actix_web::FromRequest + 'static,
        F::Output: actix_web::Responder + 'static;
}

impl GetAndHead for Resource {
    fn get_and_head<F, Args>(self, handler: F) -> Self
    where
        F: actix_web::Handler<Args> + Clone,
        Args: actix_web::FromRequest + 'static,
        F::Output: actix_web::Responder + 'static,
    {
        self.route(web::get().to(handler.clone()))
            .route(web::head().to(handler))
    }
}

async fn unknown_path(request: HttpRequest) -> Result<String, ApiError> {
    Err(ApiError::new(
        Code::NotFound,
        format!("there is nothing at {}", request.path()),
    ))
}
