//! Simulated sessions: people who speak for two seconds, request two seconds of speech while they send the noise that
//! they are in, and so on. Each sends a 20 ms frame of 16 kHz linear16 on schedule, reads everything, and counts. Their
//! starts are spread evenly over the period, so that the load is constant.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, timeout};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::sound::{RATE_HZ, Sounds};
use crate::providers::null::SLUG as NULL;
use crate::telemetry::metrics::Delays;

/// What one frame lasts.
pub(super) const FRAME: Duration = Duration::from_millis(20);
const FRAME_SAMPLES: usize = 320;
/// Frames from one `speak` to the next; the person speaks in the second half.
const CYCLE_FRAMES: u64 = 200;
/// How long a cycle lasts.
pub(super) const CYCLE: Duration = FRAME.saturating_mul(CYCLE_FRAMES as u32);
/// Over what time the sessions begin: as they are then spread over a cycle, they are spread over a frame too.
pub(super) const SPREAD: Duration = CYCLE.saturating_add(FRAME);
/// Sessions that are being connected at once.
const CONNECTING: usize = 32;
/// How long connecting one may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Who is on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// A server of the protocol.
    Server,
    /// A bare echo, which knows no messages.
    Echo,
}

/// Why a session was not, or did not last.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The socket.
    #[error("{0}")]
    Socket(#[from] tungstenite::Error),
    /// The server ended it.
    #[error("the server closed the socket{0}")]
    Closed(String),
    /// The server refused the configuration.
    #[error("the server answered {0}")]
    Refused(String),
    /// Nothing was heard.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Silent,
}

/// What all sessions have counted together.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) frames_sent: AtomicU64,
    pub(super) audio_messages: AtomicU64,
    pub(super) audio_bytes: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) spoken: AtomicU64,
    /// `error` messages and sessions that ended.
    pub(super) failures: AtomicU64,
    /// From asking for speech to its first byte, or from a frame to its echo.
    pub(super) answers: Delays,
    first_failure: Mutex<Option<String>>,
}

impl Tally {
    fn fail(&self, problem: &impl ToString) {
        self.failures.fetch_add(1, Relaxed);
        let mut first = self
            .first_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| problem.to_string());
    }

    /// What went wrong first.
    pub(super) fn first_failure(&self) -> Option<String> {
        self.first_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Small buffers: frames are small, and there are thousands of sockets.
pub(super) fn socket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(4 << 10)
        .write_buffer_size(0)
}

/// Connected sessions that send nothing yet.
pub(super) struct Ready {
    peer: Peer,
    sockets: Vec<Socket>,
}

/// Connects so many sessions and configures them, with these fields beside those that the load needs.
pub(super) async fn connect(
    url: &str,
    peer: Peer,
    sessions: usize,
    fields: &Map<String, Value>,
) -> Result<Ready, SessionError> {
    let sockets = stream::iter(0..sessions)
        .map(|_| async move {
            timeout(PATIENCE, connect_one(url, peer, fields))
                .await
                .map_err(|_| SessionError::Silent)?
        })
        .buffered(CONNECTING)
        .try_collect()
        .await?;
    Ok(Ready { peer, sockets })
}

async fn connect_one(
    url: &str,
    peer: Peer,
    fields: &Map<String, Value>,
) -> Result<Socket, SessionError> {
    let (mut socket, _) = connect_async_with_config(url, Some(socket_config()), true).await?;
    if peer == Peer::Echo {
        return Ok(socket);
    }
    let mut config = json!({
        "type": "config",
        "stt_config": {"provider": NULL, "sample_rate": RATE_HZ},
        "tts_config": {
            "provider": NULL, "model": "", "audio_format": "linear16", "sample_rate": RATE_HZ,
        },
    });
    if let Some(config) = config.as_object_mut() {
        config.extend(fields.clone());
    }
    socket.send(Message::text(config.to_string())).await?;
    while let Some(message) = socket.next().await {
        match message? {
            Message::Text(text) => match Event::kind_of(&text) {
                Some("ready") => return Ok(socket),
                _ => return Err(SessionError::Refused(text.to_string())),
            },
            message => check_open(&message)?,
        }
    }
    Err(SessionError::Closed(String::new()))
}

pub(super) fn check_open(message: &Message) -> Result<(), SessionError> {
    match message {
        Message::Close(reason) => {
            let reason = reason.as_ref();
            let said = reason.map(|frame| format!(": {} {}", frame.code, frame.reason));
            Err(SessionError::Closed(said.unwrap_or_default()))
        }
        _ => Ok(()),
    }
}

/// The head of any message of the server's.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    r#type: &'a str,
}

impl<'a> Event<'a> {
    fn kind_of(text: &'a str) -> Option<&'a str> {
        let event: Event = serde_json::from_str(text).ok()?;
        Some(event.r#type)
    }
}

/// Sessions under way; dropping it ends them.
pub(super) struct Load {
    /// What they count.
    pub(super) tally: Arc<Tally>,
    _sessions: JoinSet<()>,
}

impl Ready {
    /// Lets them begin, all within [`SPREAD`].
    pub(super) fn start(self, sounds: &Arc<Sounds>) -> Load {
        let tally = Arc::new(Tally::default());
        let clock = Instant::now();
        let count = self.sockets.len() as u64;
        let mut sessions = JoinSet::new();
        for (number, socket) in (0..).zip(self.sockets) {
            let session = Session {
                peer: self.peer,
                number,
                socket,
                clock,
                count,
                sounds: Arc::clone(sounds),
                tally: Arc::clone(&tally),
                asked: None,
            };
            let share = number as f64 / count as f64;
            sessions.spawn(session.run(clock + SPREAD.mul_f64(share)));
        }
        Load {
            tally,
            _sessions: sessions,
        }
    }
}

struct Session {
    peer: Peer,
    number: u64,
    /// How many sessions there are.
    count: u64,
    socket: Socket,
    /// When the load began.
    clock: Instant,
    sounds: Arc<Sounds>,
    tally: Arc<Tally>,
    /// When speech was asked for of which nothing has come yet.
    asked: Option<Instant>,
}

impl Session {
    async fn run(mut self, first: Instant) {
        let mut ticks = interval_at(first, FRAME);
        let mut frame = 0;
        loop {
            let done = tokio::select! {
                _ = ticks.tick() => {
                    frame += 1;
                    self.send(frame - 1).await
                }
                message = self.socket.next() => match message {
                    Some(Ok(message)) => self.take(message),
                    Some(Err(error)) => Err(error.into()),
                    None => Err(SessionError::Closed(String::new())),
                },
            };
            if let Err(error) = done {
                return self.tally.fail(&error);
            }
        }
    }

    /// Sends a frame, and at the beginning of a cycle asks for speech.
    async fn send(&mut self, frame: u64) -> Result<(), SessionError> {
        let voiced = frame % CYCLE_FRAMES >= CYCLE_FRAMES / 2;
        if self.peer == Peer::Server && frame.is_multiple_of(CYCLE_FRAMES) {
            let speak = json!({"type": "speak", "text": text(self.number, frame / CYCLE_FRAMES)});
            self.asked = Some(Instant::now());
            self.tally.spoken.fetch_add(1, Relaxed);
            self.socket.feed(Message::text(speak.to_string())).await?;
        }
        let sound = match (self.peer, voiced) {
            (Peer::Server, _) => {
                let position = frame * FRAME_SAMPLES as u64;
                let (one, of) = (self.number, self.count);
                self.sounds.next(one, of, position, FRAME_SAMPLES, voiced)
            }
            (Peer::Echo, true) => self.stamped(),
            (Peer::Echo, false) => Bytes::from_static(&[0; 2 * FRAME_SAMPLES]),
        };
        self.socket.send(Message::Binary(sound)).await?;
        self.tally.frames_sent.fetch_add(1, Relaxed);
        Ok(())
    }

    fn take(&mut self, message: Message) -> Result<(), SessionError> {
        match message {
            Message::Binary(sound) => {
                self.tally.audio_messages.fetch_add(1, Relaxed);
                self.tally
                    .audio_bytes
                    .fetch_add(sound.len() as u64, Relaxed);
                let sent = match self.peer {
                    Peer::Server => self.asked.take(),
                    Peer::Echo => self.stamp(&sound),
                };
                if let Some(sent) = sent {
                    self.tally.answers.observe(sent.elapsed());
                }
                Ok(())
            }
            Message::Text(text) => {
                self.tally.events.fetch_add(1, Relaxed);
                if Event::kind_of(&text).is_none_or(|kind| kind == "error") {
                    self.tally.fail(&text);
                }
                Ok(())
            }
            message => check_open(&message),
        }
    }

    /// A frame that says when it was sent; the echo sends back what does not begin with a zero.
    fn stamped(&self) -> Bytes {
        let mut frame = BytesMut::zeroed(2 * FRAME_SAMPLES);
        let nanos = self.clock.elapsed().as_nanos() as u64;
        frame[0] = 1;
        frame[1..9].copy_from_slice(&nanos.to_le_bytes());
        frame.freeze()
    }

    fn stamp(&self, frame: &[u8]) -> Option<Instant> {
        let nanos = u64::from_le_bytes(frame.get(1..9)?.try_into().ok()?);
        self.clock.checked_add(Duration::from_nanos(nanos))
    }
}

/// Two seconds of speech, at 60 ms a character, and never the same.
fn text(session: u64, utterance: u64) -> String {
    format!("Session {session:05} speaks for the {utterance:04}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speech_fills_half_of_a_cycle() {
        let characters = text(7, 12).chars().count() as u32;
        let spoken = Duration::from_millis(60) * characters;
        assert_eq!(spoken, Duration::from_millis(1_980));
        assert_eq!(CYCLE, Duration::from_secs(4));
    }
}
