//! The doors: one file per resource, the error body, and the list of routes. Handlers check and answer; whatever
//! they need done they ask of an actor or of the synthesiser.

mod body;
mod console;
mod docs;
mod error;
mod fields;
mod health;
mod metrics;
pub mod openapi;
mod recording;
mod rtc;
mod sessions;
mod sip;
pub mod socket;
mod speak;
mod state;
mod voices;
mod ws;

use actix_web::dev::{AppService, HttpServiceFactory};
use actix_web::http::Method;
use actix_web::{FromRequest, Handler, HttpRequest, Resource, Responder, Route, web};

pub use body::MAX_BODY_BYTES;
pub use error::{ApiError, Code};
pub use state::AppState;
pub use ws::Sockets;

/// All routes.
pub fn configure(app: &mut web::ServiceConfig) {
    let bad_query = |error: actix_web::error::QueryPayloadError, _: &HttpRequest| {
        ApiError::new(Code::InvalidRequest, format!("query: {error}")).into()
    };
    app.app_data(web::PayloadConfig::new(MAX_BODY_BYTES))
        .app_data(web::QueryConfig::default().error_handler(bad_query));
    for endpoint in endpoints() {
        app.service(endpoint);
    }
    app.default_service(web::to(unknown_path));
}

/// Every path with its methods; [`openapi`] describes the same.
#[rustfmt::skip]
fn endpoints() -> Vec<Endpoint> {
    vec![
        at("/").get(to(health::alive)),
        at("/healthz").get(to(health::alive)),
        at("/readyz").get(to(health::ready)),
        at("/metrics").get(to(metrics::show)),
        at("/openapi.json").get(to(openapi::show)),
        at("/schemas/socket.json").get(to(openapi::show_socket_schema)),
        at("/docs").get(to(docs::show)),
        at("/console").get(to(console::show)),
        at("/voices").get(to(voices::list)),
        at("/speak").on(Method::POST, to(speak::speak)),
        at("/ws").on(Method::GET, to(ws::open)),
        at("/sessions").get(to(sessions::list)),
        at("/sessions/{stream_id}").on(Method::DELETE, to(sessions::end)),
        at("/rtc/token").on(Method::POST, to(rtc::token)),
        at("/rtc/rooms").get(to(rtc::rooms)),
        at("/rtc/rooms/{room_name}").get(to(rtc::room)),
        at("/rtc/participant").on(Method::DELETE, to(rtc::remove)),
        at("/rtc/participant/mute").on(Method::POST, to(rtc::mute)),
        at("/rtc/webhook").on(Method::POST, to(rtc::webhook)),
        at("/recordings").get(to(recording::list)),
        at("/recording/{stream_id:.*}").get(to(recording::download)).on(Method::DELETE, to(recording::delete)),
        at("/sip/call").on(Method::POST, to(sip::call)),
        at("/sip/transfer").on(Method::POST, to(sip::transfer)),
        at("/sip/hooks")
            .get(to(sip::hooks))
            .on(Method::POST, to(sip::add_hooks))
            .on(Method::DELETE, to(sip::remove_hooks)),
    ]
}

fn to<F, Args>(handler: F) -> impl Fn() -> Route
where
    F: Handler<Args>,
    Args: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    move || web::route().to(handler.clone())
}

/// A path and what it answers to; any other method is 405 with `Allow`.
struct Endpoint {
    path: &'static str,
    routes: Vec<Route>,
    methods: Vec<Method>,
}

fn at(path: &'static str) -> Endpoint {
    Endpoint {
        path,
        routes: Vec::new(),
        methods: Vec::new(),
    }
}

impl Endpoint {
    fn on(mut self, method: Method, route: impl Fn() -> Route) -> Self {
        self.routes.push(route().method(method.clone()));
        self.methods.push(method);
        self
    }

    /// `HEAD` is answered like `GET`; the connection leaves the body out.
    fn get(self, route: impl Fn() -> Route) -> Self {
        self.on(Method::GET, &route).on(Method::HEAD, &route)
    }
}

impl HttpServiceFactory for Endpoint {
    fn register(self, config: &mut AppService) {
        let methods = self.methods;
        let other = web::to(move |request: HttpRequest| {
            let refused = ApiError::method_not_allowed(request.method(), &methods);
            async { Err::<String, _>(refused) }
        });
        let resource = self
            .routes
            .into_iter()
            .fold(web::resource(self.path), Resource::route);
        resource.default_service(other).register(config);
    }
}

async fn unknown_path(request: HttpRequest) -> Result<String, ApiError> {
    Err(ApiError::new(
        Code::NotFound,
        format!("there is nothing at {}", request.path()),
    ))
}
