//! The HTTP interface: one file per resource, the error body, and the list of routes. Handlers validate requests and
//! build responses; the work is done by actors, the synthesiser or the rooms.
//!
//! # The way of a request
//!
//! 1. [`Connections`] admits a TCP connection before TLS and before a byte is read. Unauthenticated connections have a
//!    share of the total; when there is no room, the oldest connection of the address that holds most is evicted. A
//!    connection that pipelines too much, is silent for too long, or does not read its response is closed.
//! 2. [`Listen`] speaks TLS if configured, then HTTP/1.1.
//! 3. Middleware, from the outside in: connection tracking, request ids with the access log ([`observe`]), the check of
//!    `Host` against DNS rebinding ([`AllowedHosts`]), CORS ([`Origins`]), and the request rate per address ([`Limits`]).
//! 4. The route. Each method of each path is declared with its callers and limits ([`Entry`]), and the declarations are
//!    enforced: a body that is not declared is not read. `docs/threat-model.md` has a table generated from them.
//! 5. Authentication, for protected routes, which hands the handler an `Access`.
//!
//! # Bodies, errors, bounds
//!
//! A body is limited in size (per entry), in time and rate, and in the memory that unfinished bodies hold together. JSON
//! errors name the field and never repeat its value. Every failure becomes `{"error": CODE, "message": text}` in one
//! place ([`ApiError`], [`Code`]; protocol, section 4).
//!
//! Numbers of requests, connections, sockets and sessions are limited per address and tenant by settings below
//! `limits.`; refusals name the setting.
//!
//! # Other interfaces
//!
//! `GET /ws` opens a session over a WebSocket ([`socket`] is a crate of its own). `/rtc` is the signalling endpoint of
//! embedded rooms, `/agent` that of agent workers, and `/twirp/…` LiveKit's server API; all use LiveKit's tokens. Below `/v1/`
//! is OpenAI's audio API ([`openai`]), below `/carrier/` are the doors of telephone carriers ([`carrier`]). `/openapi.json` is generated from the types that handlers read and write.

mod agent_workers;
mod auth;
mod body;
mod body_chunks;
pub mod carrier;
mod connections;
mod console;
mod cors;
mod dialect;
mod docs;
mod entries;
mod error;
mod fields;
mod former;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod handshake;
mod health;
mod host;
pub mod inspect;
mod limits;
mod listen;
mod metrics;
pub mod openai;
pub mod openapi;
mod peer;
mod recording;
mod requests;
mod rtc;
mod sessions;
mod signal;
mod sip;
mod speak;
mod state;
mod twirp;
mod voices;
mod whip;
mod ws;

use actix_web::http::Method;
use actix_web::{HttpRequest, web};

use auth::{protected, public};
pub use body::MAX_BODY_BYTES;
pub use connections::{Connections, track as track_connections};
pub use cors::{Origins, allow as allow_origins};
pub use dialect::respell;
pub use entries::{Bounds, Callers, Entry, Reads};
use entries::{Endpoint, Handling, at};
pub use error::{ApiError, Code};
pub use former::{AtFormer, SuccessorKey, ask_former, check_successor};
pub use host::{AllowedHosts, check as check_host};
pub use limits::{Limits, by_address as limit_by_address};
pub use listen::Listen;
pub use metrics::serve_alone as serve_metrics_alone;
pub use requests::observe;
pub use state::AppState;
pub use twirp::{livekit_api_page, trunk_problems};
pub use vivavoce_core::listener_tls as tls;
pub use vivavoce_socket as socket;
pub use whip::Sessions as WhipSessions;
pub use ws::Sockets;

/// All routes with their callers; `/metrics` only if `with_metrics`.
pub fn configure(app: &mut web::ServiceConfig, with_metrics: bool) {
    let bad_query = |error: actix_web::error::QueryPayloadError, _: &HttpRequest| {
        ApiError::new(Code::InvalidRequest, format!("query: {error}")).into()
    };
    app.app_data(web::PayloadConfig::new(MAX_BODY_BYTES))
        .app_data(web::QueryConfig::default().error_handler(bad_query));
    for endpoint in all_endpoints() {
        if with_metrics || endpoint.path != metrics::PATH {
            app.service(endpoint);
        }
    }
    app.default_service(web::to(unknown_path));
}

/// All HTTP entry points with their limits.
pub fn entries() -> Vec<Entry> {
    let endpoints = all_endpoints();
    endpoints
        .flat_map(|endpoint| endpoint.entries().collect::<Vec<_>>())
        .collect()
}

fn all_endpoints() -> impl Iterator<Item = Endpoint> {
    let others = livekit_endpoints()
        .into_iter()
        .chain(openai::endpoints())
        .chain(carrier::endpoints());
    endpoints().into_iter().chain(others)
}

/// The paths of LiveKit's protocol, which are documented by LiveKit. Clients given a URL with a trailing slash request
/// paths with two.
fn livekit_endpoints() -> Vec<Endpoint> {
    let signed = |handling: Handling| handling.for_callers(Callers::KeyPair);
    let call = signed(public(twirp::call)).with_body();
    let mut endpoints = vec![at("/twirp/{service}/{method}").on(Method::POST, call)];
    let socket = |handling| {
        let bytes = signal::MAX_MESSAGE_BYTES;
        signed(handling).with_messages(bytes, "30s", "limits.connections")
    };
    let offer = |handling| signed(handling).with_offer();
    endpoints.extend([
        at("/whip")
            .on(Method::POST, offer(public(whip::publish)))
            .on(Method::OPTIONS, public(signal::preflight)),
        at("/whep")
            .on(Method::POST, offer(public(whip::play)))
            .on(Method::OPTIONS, public(signal::preflight)),
    ]);
    for path in ["/whip/{id}", "/whep/{id}"] {
        endpoints.push(
            at(path)
                .on(Method::DELETE, signed(public(whip::end)).with_body())
                .on(Method::PATCH, public(whip::patch))
                .on(Method::OPTIONS, public(signal::preflight)),
        );
    }
    for slashes in ["/", "//"] {
        let under = |path| at(format!("{slashes}{path}"));
        let workers = signed(public(agent_workers::connect)).with_messages(
            agent_workers::MAX_MESSAGE_BYTES,
            "30s",
            "limits.connections",
        );
        endpoints.push(under("agent").on(Method::GET, workers));
        endpoints.extend([
            under("rtc").on(Method::GET, socket(public(signal::two_connections))),
            under("rtc/v1").on(Method::GET, socket(public(signal::one_connection))),
            under("rtc/validate")
                .get(signed(public(signal::validate_two)))
                .on(Method::OPTIONS, public(signal::preflight)),
            under("rtc/v1/validate")
                .get(signed(public(signal::validate_one)))
                .on(Method::OPTIONS, public(signal::preflight)),
        ]);
    }
    endpoints
}

/// All paths with their methods; [`openapi`] describes the same.
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
        at("/console/{file}").get(public(console::file)),
        at("/inspect/caller").get(protected(inspect::caller)),
        at("/inspect/sessions").get(protected(inspect::sessions)),
        at("/inspect/sessions/{id}").get(protected(inspect::session)),
        at("/inspect/recordings").get(protected(inspect::recordings)),
        at("/inspect/webhooks").get(protected(inspect::webhooks)),
        at("/inspect/webhooks/retry").on(Method::POST, protected(inspect::retry_webhooks).with_body()),
        at("/inspect/vendors").get(protected(inspect::vendors)),
        at("/inspect/models").get(protected(inspect::models)),
        at("/inspect/settings").get(protected(inspect::settings)),
        at("/inspect/log").get(protected(inspect::log)),
        at("/voices").get(protected(voices::list)),
        at("/speak").on(Method::POST, protected(speak::speak).with_body()),
        at("/ws").on(Method::GET, ws::handling()),
        at("/sessions").get(protected(sessions::list)),
        at("/sessions/{stream_id}").on(Method::DELETE, protected(sessions::end).with_body()),
        at("/rtc/token").on(Method::POST, protected(rtc::token).with_body()),
        at("/rtc/rooms").get(protected(rtc::rooms)),
        at("/rtc/rooms/{room_name}").get(protected(rtc::room)),
        at("/rtc/participant").on(Method::DELETE, protected(rtc::remove).with_body()),
        at("/rtc/participant/mute").on(Method::POST, protected(rtc::mute).with_body()),
        at("/rtc/webhook").on(Method::POST, public(rtc::webhook).for_callers(Callers::KeyPair).with_body()),
        at("/recordings").get(protected(recording::list)),
        at("/recording/{stream_id:.*}/transcript").get(protected(recording::transcript)),
        at("/recording/{stream_id:.*}").get(protected(recording::download)).on(Method::DELETE, protected(recording::delete).with_body()),
        at("/sip/call").on(Method::POST, protected(sip::calls::call).with_body()),
        at("/sip/transfer").on(Method::POST, protected(sip::calls::transfer).with_body()),
        at("/sip/traces").get(protected(sip::traces::list)),
        at("/sip/traces/{trace_id}").get(protected(sip::traces::show)),
        at("/sip/transfers").get(protected(sip::calls::transfers)),
        at("/sip/transfers/{transfer_id}").get(protected(sip::calls::show_transfer)),
        at("/sip/transfers/{transfer_id}/complete").on(Method::POST, protected(sip::calls::complete_transfer).with_body()),
        at("/sip/transfers/{transfer_id}/cancel").on(Method::POST, protected(sip::calls::cancel_transfer).with_body()),
        at("/sip/hold").on(Method::POST, protected(sip::calls::hold).with_body()),
        at("/sip/queues").get(protected(sip::queues::list)),
        at("/sip/queues/{queue_name}/calls").on(Method::POST, protected(sip::queues::enter).with_body()),
        at("/sip/queues/{queue_name}/calls/{sip_call_id}").on(Method::DELETE, protected(sip::queues::leave).with_body()),
        at("/sip/queues/{queue_name}/next").on(Method::POST, protected(sip::queues::next).with_body()),
        at("/sip/hooks")
            .get(protected(sip::hooks::list))
            .on(Method::POST, protected(sip::hooks::put).with_body())
            .on(Method::DELETE, protected(sip::hooks::remove).with_body()),
    ]
}

async fn unknown_path(request: HttpRequest) -> Result<String, ApiError> {
    Err(ApiError::new(
        Code::NotFound,
        format!("there is nothing at {}", request.path()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_a_row_of_its_own() {
        let rows: Vec<String> = entries().iter().map(ToString::to_string).collect();
        println!("{}", rows.join("\n"));
        let different: std::collections::BTreeSet<_> = rows.iter().collect();
        assert_eq!(different.len(), rows.len());
        let speak = "| `POST /speak` | token | body 1048576 | 30s | limits.connections |";
        assert!(rows.iter().any(|row| row == speak));
    }

    #[test]
    fn every_entry_says_who_may_take_it_and_what_it_may_cost() {
        let entries = entries();
        assert!(entries.len() > 40, "{}", entries.len());
        for Entry {
            method,
            path,
            bounds,
        } in &entries
        {
            assert!(bounds.counted_by.starts_with("limits."), "{path}");
            match bounds.reads {
                Reads::Nothing => {
                    let reading = matches!(*method, Method::POST | Method::DELETE);
                    assert!(!reading, "{method} {path} declares no body");
                }
                Reads::Body { bytes, within } => {
                    assert!((1..=MAX_BODY_BYTES).contains(&bytes) && !within.is_zero());
                    let known = bounds.callers != Callers::Anybody;
                    assert!(known, "{method} {path} reads a body of whoever sends one");
                }
                Reads::Upload { bytes, within } => {
                    assert!(bytes > MAX_BODY_BYTES && !within.is_zero());
                    let known = bounds.callers == Callers::Authenticated;
                    assert!(known, "{method} {path} keeps a file of whoever sends one");
                }
                Reads::Messages { bytes, idle } => assert!(bytes > 0 && !idle.is_empty()),
            }
        }
    }
}
