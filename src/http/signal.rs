//! `/rtc` and `/rtc/v1`: the signalling endpoints of embedded rooms, where LiveKit clients connect with LiveKit tokens,
//! and `…/validate`, where they ask why connecting failed. The messages are handled in [`vivavoce_rooms`].
//!
//! Pages of any origin may use them: access depends on the token, as with LiveKit. Allowing any origin to read
//! responses matters above all for refusals, which a browser would otherwise report as an unreachable server.

use std::time::Duration;

use actix_http::ws::CloseCode;
use actix_web::http::{ConnectionType, StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, ResponseError as _, web};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::former::AtFormer;
use super::state::AppState;
use super::{auth, limits};
use vivavoce_rooms::{Admission, Connection, Now, Refusal, RoomServer, Route, admit};
use vivavoce_socket::{Input, Messages, OpenError, check_handshake, open_messages};

/// The maximum size of a client's message.
pub const MAX_MESSAGE_BYTES: usize = vivavoce_rooms::limits::SIGNAL_BYTES;
/// After this many bytes a client must prove that it reads, by answering a ping, before it is sent as much again; what
/// it has not read waits where it is counted.
const WINDOW_BYTES: usize = 128 << 10;
/// The payload of those pings; other pings have none.
const READ_SO_FAR: &[u8] = b"read";
/// The ping interval.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long a client may be silent; it sends a message every five seconds, and answers pings.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client that does not read may block sending.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// `GET /rtc/v1`: a single peer connection.
pub async fn one_connection(
    state: web::Data<AppState>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    join(Route::OneConnection, &state, &request, payload).await
}

/// `GET /rtc`: one peer connection per direction.
pub async fn two_connections(
    state: web::Data<AppState>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    join(Route::TwoConnections, &state, &request, payload).await
}

/// `GET /rtc/v1/validate`.
pub async fn validate_one(state: web::Data<AppState>, request: HttpRequest) -> HttpResponse {
    validate(Route::OneConnection, &state, &request).await
}

/// `GET /rtc/validate`.
pub async fn validate_two(state: web::Data<AppState>, request: HttpRequest) -> HttpResponse {
    validate(Route::TwoConnections, &state, &request).await
}

/// Answers CORS preflights.
pub async fn preflight() -> HttpResponse {
    HttpResponse::NoContent()
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"))
        .insert_header((
            header::ACCESS_CONTROL_ALLOW_METHODS,
            "OPTIONS, HEAD, GET, POST, PATCH, DELETE",
        ))
        .insert_header((header::ACCESS_CONTROL_ALLOW_HEADERS, "*"))
        .insert_header((header::ACCESS_CONTROL_MAX_AGE, "86400"))
        .finish()
}

async fn validate(route: Route, state: &AppState, request: &HttpRequest) -> HttpResponse {
    let (rooms, admission) = match admission(route, state, request) {
        Ok(admitted) => admitted,
        Err(refusal) => return refused(&refusal),
    };
    if let Some(former) = where_it_is(state, &admission.room) {
        return former.pass(request).await;
    }
    match rooms.check(&admission).await {
        Ok(()) => plain(StatusCode::OK, "success"),
        Err(refusal) => refused(&refusal),
    }
}

/// The server that this one replaces, if the room is there.
pub(super) fn where_it_is<'s>(state: &'s AppState, room: &str) -> Option<&'s AtFormer> {
    let former = state.former.as_ref();
    former.filter(|former| former.has_room(room))
}

/// The embedded rooms, as long as somebody may come.
pub(super) fn open_rooms(state: &AppState) -> Result<&RoomServer, Refusal> {
    let rooms = state.embedded_rooms.as_ref();
    let rooms = rooms.ok_or_else(|| Refusal::new(404, "this server has no embedded rooms"))?;
    if state.refuses() {
        return Err(Refusal::new(503, "the server is stopping; try another"));
    }
    Ok(rooms)
}

pub(super) fn authorization(request: &HttpRequest) -> Option<&str> {
    let header = request.headers().get(header::AUTHORIZATION);
    header.and_then(|value| value.to_str().ok())
}

fn admission<'a>(
    route: Route,
    state: &'a AppState,
    request: &HttpRequest,
) -> Result<(&'a RoomServer, Admission), Refusal> {
    let rooms = open_rooms(state)?;
    let authorization = authorization(request);
    let admission = admit(
        route,
        request.query_string(),
        authorization,
        rooms.keys(),
        Now::read().unix_s(),
    )?;
    // While a token is required to get a room token, its holder got it from the operator or as a tenant.
    let stranger = auth::stranger(request).filter(|_| state.auth.is_none());
    let admission = Admission {
        party: admission.claims.principal().party(stranger),
        ..admission
    };
    Ok((rooms, admission))
}

async fn join(
    route: Route,
    state: &AppState,
    request: &HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    if !request.headers().contains_key(header::UPGRADE) {
        return plain(StatusCode::NOT_FOUND, "this is a WebSocket");
    }
    let (rooms, admission) = match admission(route, state, request) {
        Ok(admitted) => admitted,
        Err(refusal) => return refused(&refusal),
    };
    let former = where_it_is(state, &admission.room);
    if former.is_none()
        && let Err(refusal) = rooms.check(&admission).await
    {
        return refused(&refusal);
    }
    // Only joining is limited, not asking whether one might.
    let principal = admission.claims.principal();
    let party = principal.party(None);
    if let Err(full) = limits::authenticated(request, party.tenant()) {
        let mut response = refused(&Refusal::of_quota(full));
        response
            .head_mut()
            .set_connection_type(ConnectionType::Close);
        return response;
    }
    if let Some(former) = former {
        return former.carry(request, payload).await;
    }
    if let Err(error) = check_handshake(request) {
        return no_socket(&error);
    }
    let Some(connection) = rooms.connect(admission).await else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "the rooms have closed");
    };
    let carry = |messages| carry(messages, connection);
    open_messages(request, payload, MAX_MESSAGE_BYTES, carry)
        .unwrap_or_else(|error| no_socket(&error))
}

/// Relays messages both ways until either side closes.
async fn carry(mut messages: Messages, connection: Connection) {
    let Connection {
        requests,
        mut responses,
    } = connection;
    let mut ping = interval(PING_INTERVAL);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    // The bytes sent since the last flow-control ping, and when it was sent if it has not been answered yet.
    let (mut unmarked_bytes, mut marked): (usize, Option<Instant>) = (0, None);
    let reason = loop {
        tokio::select! {
            message = messages.next() => {
                heard = Instant::now();
                match message {
                    Some(Ok(Input::Binary(frame))) => {
                        if !requests.send(frame).await {
                            break Some(CloseCode::Away);
                        }
                    }
                    Some(Ok(Input::Ping(bytes))) => {
                        let answered = timeout(WRITE_PATIENCE, messages.pong(&bytes)).await;
                        if !matches!(answered, Ok(Ok(()))) {
                            break None;
                        }
                    }
                    Some(Ok(Input::Pong(said))) if said.as_ref() == READ_SO_FAR => {
                        marked = None;
                    }
                    Some(Ok(Input::Pong(_) | Input::Fragment)) => {}
                    Some(Ok(Input::Text(_))) => break Some(CloseCode::Unsupported),
                    Some(Ok(Input::Close(_))) => break Some(CloseCode::Normal),
                    Some(Err(error)) => break Some(error.close_code().into()),
                    None => break None,
                }
            }
            response = responses.next(), if marked.is_none() || unmarked_bytes < WINDOW_BYTES => {
                let Some(frame) = response else { break Some(CloseCode::Normal) };
                unmarked_bytes += frame.len();
                let sent = timeout(WRITE_PATIENCE, messages.binary(&frame)).await;
                if !matches!(sent, Ok(Ok(()))) {
                    break None;
                }
                if marked.is_none() && unmarked_bytes >= WINDOW_BYTES {
                    (unmarked_bytes, marked) = (0, Some(Instant::now()));
                    let sent = timeout(WRITE_PATIENCE, messages.ping(READ_SO_FAR)).await;
                    if !matches!(sent, Ok(Ok(()))) {
                        break None;
                    }
                }
            }
            _ = ping.tick() => {
                let late = marked.is_some_and(|at| at.elapsed() > WRITE_PATIENCE);
                let sent = timeout(WRITE_PATIENCE, messages.ping(b"")).await;
                if late || heard.elapsed() > IDLE_TIMEOUT || !matches!(sent, Ok(Ok(()))) {
                    break None;
                }
            }
        }
    };
    // The room knows before the client does.
    drop((requests, responses));
    if let Some(code) = reason {
        messages.close(code.into()).await;
    }
}

pub(super) fn refused(refusal: &Refusal) -> HttpResponse {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    plain(status, &refusal.text)
}

/// The response to what is no handshake.
pub(super) fn no_socket(error: &OpenError) -> HttpResponse {
    let mut response = error.error_response();
    let anyone = header::HeaderValue::from_static("*");
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, anyone);
    response
}

pub(super) fn plain(status: StatusCode, text: &str) -> HttpResponse {
    HttpResponse::build(status)
        .content_type("text/plain; charset=utf-8")
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"))
        .body(text.to_owned())
}
