//! The doors: one file per resource, the error body, and the list of routes. Handlers check and answer; whatever
//! they need done they ask of an actor or of the synthesiser.

mod auth;
mod body;
mod console;
mod cors;
mod docs;
mod error;
mod fields;
mod health;
mod limits;
mod metrics;
pub mod openapi;
mod peer;
mod pieces;
mod recording;
mod requests;
mod rtc;
mod sessions;
mod signal;
mod sip;
pub mod socket;
mod speak;
mod state;
pub mod tls;
mod twirp;
mod voices;
mod ws;

use actix_web::dev::{AppService, HttpServiceFactory};
use actix_web::http::Method;
use actix_web::{HttpRequest, Resource, Route, web};

use auth::{protected, public};
pub use body::MAX_BODY_BYTES;
pub use cors::{Origins, allow as allow_origins};
pub use error::{ApiError, Code};
pub use limits::{AddressPlace, Limits, TenantPlace, by_address as limit_by_address};
pub use metrics::serve_alone as serve_metrics_alone;
pub use requests::observe;
pub use state::AppState;
pub use ws::Sockets;

/// All routes, each with who may take it; those of the metrics only where they are `with_metrics`.
pub fn configure(app: &mut web::ServiceConfig, with_metrics: bool) {
    let bad_query = |error: actix_web::error::QueryPayloadError, _: &HttpRequest| {
        ApiError::new(Code::InvalidRequest, format!("query: {error}")).into()
    };
    app.app_data(web::PayloadConfig::new(MAX_BODY_BYTES))
        .app_data(web::QueryConfig::default().error_handler(bad_query));
    for endpoint in endpoints().into_iter().chain(livekit_endpoints()) {
        if with_metrics || endpoint.path != metrics::PATH {
            app.service(endpoint);
        }
    }
    app.default_service(web::to(unknown_path));
}

/// Paths of LiveKit's own protocol, which LiveKit's documents describe and not ours. Clients that are given an address with a
/// slash at its end ask with two.
fn livekit_endpoints() -> Vec<Endpoint> {
    let mut endpoints = vec![at("/twirp/{service}/{method}").on(Method::POST, public(twirp::call))];
    for slashes in ["/", "//"] {
        let under = |path| at(format!("{slashes}{path}"));
        endpoints.extend([
            under("rtc").on(Method::GET, public(signal::two_connections)),
            under("rtc/v1").on(Method::GET, public(signal::one_connection)),
            under("rtc/validate")
                .get(public(signal::validate_two))
                .on(Method::OPTIONS, public(signal::preflight)),
            under("rtc/v1/validate")
                .get(public(signal::validate_one))
                .on(Method::OPTIONS, public(signal::preflight)),
        ]);
    }
    endpoints
}

/// Every path with its methods; [`openapi`] describes the same.
#[rustfmt::skip]
fn endpoints() -> Vec<Endpoint> {
    vec![
        at("/").get(public(health::alive)),
        at("/healthz").get(public(health::alive)),
        at("/readyz").get(public(health::ready)),
        at(metrics::PATH).get(protected(metrics::show)),
        at("/openapi.json").get(public(openapi::show)),
        at("/schemas/socket.json").get(public(openapi::show_socket_schema)),
        at("/docs").get(public(docs::show)),
        at("/console").get(public(console::show)),
        at("/voices").get(protected(voices::list)),
        at("/speak").on(Method::POST, protected(speak::speak)),
        at("/ws").on(Method::GET, public(ws::open)),
        at("/sessions").get(protected(sessions::list)),
        at("/sessions/{stream_id}").on(Method::DELETE, protected(sessions::end)),
        at("/rtc/token").on(Method::POST, protected(rtc::token)),
        at("/rtc/rooms").get(protected(rtc::rooms)),
        at("/rtc/rooms/{room_name}").get(protected(rtc::room)),
        at("/rtc/participant").on(Method::DELETE, protected(rtc::remove)),
        at("/rtc/participant/mute").on(Method::POST, protected(rtc::mute)),
        at("/rtc/webhook").on(Method::POST, public(rtc::webhook)),
        at("/recordings").get(protected(recording::list)),
        at("/recording/{stream_id:.*}/transcript").get(protected(recording::transcript)),
        at("/recording/{stream_id:.*}").get(protected(recording::download)).on(Method::DELETE, protected(recording::delete)),
        at("/sip/call").on(Method::POST, protected(sip::calls::call)),
        at("/sip/transfer").on(Method::POST, protected(sip::calls::transfer)),
        at("/sip/hooks")
            .get(protected(sip::hooks::list))
            .on(Method::POST, protected(sip::hooks::put))
            .on(Method::DELETE, protected(sip::hooks::remove)),
    ]
}

/// A path and what it answers to; any other method is 405 with `Allow`, whoever asks.
struct Endpoint {
    path: String,
    routes: Vec<Route>,
    methods: Vec<Method>,
}

fn at(path: impl Into<String>) -> Endpoint {
    Endpoint {
        path: path.into(),
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
