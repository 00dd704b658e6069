//! `/agent`: where agent workers connect, with a LiveKit token that grants `agent`. The messages are LiveKit's, in protobuf
//! or JSON as the worker sends them; they are handled in [`vivavoce_rooms`].

use std::time::Duration;

use actix_http::ws::{CloseCode, CloseReason};
use actix_web::http::{ConnectionType, StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, web};
use livekit_protocol as proto;
use prost::Message as _;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::signal::{self, no_socket, plain};
use super::state::AppState;
use super::{auth, limits};
use vivavoce_rooms::dispatch::WorkerCredentials;
use vivavoce_rooms::shapes::Shaped as _;
use vivavoce_rooms::{
    Now, Refusal, RoomServer, WorkerConnection, admit_worker, limits as bounds, wire,
};
use vivavoce_socket::{Input, Messages, check_handshake, open_messages};
use vivavoce_telemetry::metrics::{self, RoomInput};

/// The maximum size of a worker's message.
pub const MAX_MESSAGE_BYTES: usize = bounds::WORKER_BYTES;
/// The ping interval.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// How long a worker may be silent; it answers pings.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a worker that does not read may block sending.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// `GET /agent`.
pub async fn connect(
    state: web::Data<AppState>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    if !request.headers().contains_key(header::UPGRADE) {
        return plain(StatusCode::NOT_FOUND, "this is a WebSocket");
    }
    let (rooms, credentials) = match admission(&state, &request) {
        Ok(admitted) => admitted,
        Err(refusal) => return refused(&refusal),
    };
    if let Err(full) = limits::authenticated(&request, credentials.party.tenant()) {
        return refused(&Refusal::of_quota(full));
    }
    if let Err(error) = check_handshake(&request) {
        return no_socket(&error);
    }
    let connection = match rooms.connect_worker(credentials).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(full)) => return refused(&Refusal::of_quota(full)),
        Err(stopped) => return plain(StatusCode::SERVICE_UNAVAILABLE, &stopped.to_string()),
    };
    let carry = |messages| carry(messages, connection);
    open_messages(&request, payload, MAX_MESSAGE_BYTES, carry)
        .unwrap_or_else(|error| no_socket(&error))
}

fn admission<'a>(
    state: &'a AppState,
    request: &HttpRequest,
) -> Result<(&'a RoomServer, WorkerCredentials), Refusal> {
    let rooms = signal::open_rooms(state)?;
    let (query, now_s) = (request.query_string(), Now::read().unix_s());
    let claims = admit_worker(query, signal::authorization(request), rooms.keys(), now_s)?;
    let principal = claims.principal();
    // As for participants: while a token is required, its holder got it from the operator.
    let stranger = auth::stranger(request).filter(|_| state.auth.is_none());
    let credentials = WorkerCredentials {
        party: principal.party(stranger),
        principal,
        api_key: claims.iss,
    };
    Ok((rooms, credentials))
}

/// Relays messages both ways until either side closes.
async fn carry(mut messages: Messages, mut connection: WorkerConnection) {
    let mut ping = interval(PING_INTERVAL);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    let mut in_json = false;
    let mut rate = Rate::new(heard);
    let reason = loop {
        tokio::select! {
            message = messages.next() => {
                heard = Instant::now();
                let read = match message {
                    Some(Ok(Input::Binary(frame))) => {
                        in_json = false;
                        read_binary(&frame)
                    }
                    Some(Ok(Input::Text(text))) => {
                        in_json = true;
                        read_json(text.as_bytes())
                    }
                    Some(Ok(Input::Ping(bytes))) => {
                        let answered = timeout(WRITE_PATIENCE, messages.pong(&bytes)).await;
                        if !matches!(answered, Ok(Ok(()))) {
                            break None;
                        }
                        continue;
                    }
                    Some(Ok(Input::Pong(_) | Input::Fragment)) => continue,
                    Some(Ok(Input::Close(_))) => break Some(CloseCode::Normal.into()),
                    Some(Err(error)) => break Some(CloseCode::from(error.close_code()).into()),
                    None => break None,
                };
                match read {
                    Ok(message) => {
                        rate.wait().await;
                        if !connection.send(message).await {
                            break Some(CloseCode::Away.into());
                        }
                    }
                    Err(problem) => break Some(CloseReason {
                        code: CloseCode::Invalid,
                        description: Some(problem),
                    }),
                }
            }
            message = connection.next() => {
                let Some(message) = message else { break Some(CloseCode::Away.into()) };
                let sending = async {
                    if in_json {
                        messages.text(&serde_json::to_string(&message).unwrap_or_default()).await
                    } else {
                        messages.binary(&message.encode_to_vec()).await
                    }
                };
                if !matches!(timeout(WRITE_PATIENCE, sending).await, Ok(Ok(()))) {
                    break None;
                }
            }
            _ = ping.tick() => {
                let sent = timeout(WRITE_PATIENCE, messages.ping(b"")).await;
                if heard.elapsed() > IDLE_TIMEOUT || !matches!(sent, Ok(Ok(()))) {
                    break None;
                }
            }
        }
    };
    drop(connection);
    if let Some(reason) = reason {
        messages.close(reason).await;
    }
}

fn read_binary(bytes: &[u8]) -> Result<proto::WorkerMessage, String> {
    proto::WorkerMessage::read(bytes).map_err(|excess| {
        metrics::room_input_refused(RoomInput::Worker);
        excess.to_string()
    })
}

fn read_json(text: &[u8]) -> Result<proto::WorkerMessage, String> {
    wire::check_json(text).map_err(|excess| {
        metrics::room_input_refused(RoomInput::Worker);
        excess.to_string()
    })?;
    // A close has room for 123 bytes.
    let problem = |error: serde_json::Error| error.to_string().chars().take(100).collect();
    serde_json::from_slice(text).map_err(problem)
}

/// The rate of a worker's messages: all of them are handled where media is forwarded.
struct Rate {
    left: f64,
    at: Instant,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self {
            left: bounds::WORKER_MESSAGES_AT_ONCE.into(),
            at: now,
        }
    }

    /// Waits until another message may be handled.
    async fn wait(&mut self) {
        let per_second = f64::from(bounds::WORKER_MESSAGES_PER_SECOND);
        let earned = self.at.elapsed().as_secs_f64() * per_second;
        self.at = Instant::now();
        self.left = (self.left + earned).min(bounds::WORKER_MESSAGES_AT_ONCE.into()) - 1.0;
        if self.left < 0.0 {
            sleep(Duration::from_secs_f64(-self.left / per_second)).await;
        }
    }
}

fn refused(refusal: &Refusal) -> HttpResponse {
    let mut response = signal::refused(refusal);
    if refusal.quota.is_some() {
        response
            .head_mut()
            .set_connection_type(ConnectionType::Close);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_sends_too_much_is_slowed_down_and_not_cut_off() {
        let began = Instant::now();
        let mut rate = Rate::new(began);
        for _ in 0..bounds::WORKER_MESSAGES_AT_ONCE {
            rate.wait().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..bounds::WORKER_MESSAGES_PER_SECOND {
            rate.wait().await;
        }
        let took = began.elapsed().as_secs_f64();
        assert!((0.9..1.5).contains(&took), "{took}");
    }

    #[test]
    fn what_is_no_message_of_a_worker_is_refused_and_a_registration_is_read_in_both_forms() {
        let register = read_json(br#"{"register":{"type":"JT_PUBLISHER","agentName":"cook"}}"#);
        let register = register.unwrap();
        assert_eq!(read_binary(&register.encode_to_vec()).unwrap(), register);
        let problem = read_json(br#"{"register":{"type":"JT_COOK"}}"#).unwrap_err();
        assert!(!problem.is_empty() && problem.len() <= 123, "{problem}");
        let ids = vec!["AJ_1".to_owned(); 2_000];
        let migrate = proto::MigrateJobRequest { job_ids: ids };
        let message = Some(proto::worker_message::Message::MigrateJob(migrate));
        let problem = read_binary(&proto::WorkerMessage { message }.encode_to_vec()).unwrap_err();
        assert!(problem.contains("job_ids"), "{problem}");
    }
}
