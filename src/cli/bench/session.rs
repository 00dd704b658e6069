//! A session of a client: what it sends, and what it receives with the time of arrival.

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::load::{PATIENCE, SessionError, check_open, socket_config};

/// A session that may speak and hear.
pub(super) struct Session {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// When its config was sent, and when it was ready.
    pub(super) configured: Instant,
    pub(super) ready: Instant,
    /// Whether a fallback had taken over by then.
    pub(super) switched: bool,
}

/// What came.
#[derive(Debug)]
pub(super) enum Came {
    /// Bytes of sound.
    Sound(usize),
    /// A message.
    Event(Value),
}

impl Came {
    /// Whether it is a message of this type; where there is such a field, also with this `state`.
    pub(super) fn is(&self, kind: &str, state: &str) -> bool {
        let Self::Event(event) = self else {
            return false;
        };
        event["type"] == kind && (state.is_empty() || event["state"] == state)
    }

    /// Whether it is a message of which this is so.
    pub(super) fn has(&self, flag: &str) -> bool {
        matches!(self, Self::Event(event) if event[flag] == true)
    }
}

impl Session {
    /// Connects, configures, and waits until it is ready.
    pub(super) async fn open(url: &str, config: Value) -> Result<Self, SessionError> {
        let opening = connect_async_with_config(url, Some(socket_config()), true);
        let opened = timeout(PATIENCE, opening).await;
        let (socket, _) = opened.map_err(|_| SessionError::Silent)??;
        let now = Instant::now();
        let mut session = Self {
            socket,
            configured: now,
            ready: now,
            switched: false,
        };
        session.send(config).await?;
        session.configured = Instant::now();
        loop {
            let (at, came) = session.next().await?;
            session.switched |= came.is("provider_event", "switched");
            match came {
                Came::Event(event) if event["type"] == "ready" => {
                    session.ready = at;
                    return Ok(session);
                }
                Came::Event(event) if event["type"] == "error" => {
                    return Err(SessionError::Refused(event.to_string()));
                }
                _ => {}
            }
        }
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, message: Value) -> Result<(), SessionError> {
        let message = Message::text(message.to_string());
        Ok(self.socket.send(message).await?)
    }

    /// Sends sound.
    pub(super) async fn send_sound(&mut self, sound: bytes::Bytes) -> Result<(), SessionError> {
        Ok(self.socket.send(Message::Binary(sound)).await?)
    }

    /// What comes next. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<(Instant, Came), SessionError> {
        loop {
            let message = timeout(PATIENCE, self.socket.next()).await;
            let message = message.map_err(|_| SessionError::Silent)?;
            let at = Instant::now();
            match message {
                None => return Err(SessionError::Closed(String::new())),
                Some(Ok(Message::Binary(sound))) => return Ok((at, Came::Sound(sound.len()))),
                Some(Ok(Message::Text(text))) => {
                    let event = serde_json::from_str(&text).unwrap_or_default();
                    return Ok((at, Came::Event(event)));
                }
                Some(message) => check_open(&message?)?,
            }
        }
    }

    /// Says goodbye; a server that does not answer is not waited for.
    pub(super) async fn close(mut self) {
        let _ = self.socket.close(None).await;
    }
}
