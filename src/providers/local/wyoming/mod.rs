//! Client of the Wyoming protocol, by which self-hosted recognisers and synthesisers (faster-whisper, Piper, Vosk)
//! are reached. Here: where the server is, one connection to it with its deadlines, and what it says it can do. The
//! framing is in `wire.rs`; the server's address is the operator's setting and never a client's.

pub mod stt;
pub mod tts;
mod wire;

use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::codec::{Encoder, FramedRead};

pub use stt::WyomingStt;
pub use tts::WyomingTts;
use wire::{Event, Wire, WireError};

use super::failure;
use vivavoce_config::Endpoint;
use vivavoce_seams::{ErrorKind, ProviderError};

/// How long the server may take to accept what we send.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// How long to look for the last words of a server that has hung up.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(200);

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// A connection to a server.
struct Connection {
    socket: FramedRead<Box<dyn Socket>, Wire>,
    endpoint: Endpoint,
}

/// What a client asks of the server at an endpoint.
trait Server {
    /// Connects to it.
    async fn connect(&self, limit: Duration) -> Result<Connection, ProviderError>;
    /// What the server says it can do.
    async fn describe(&self, limit: Duration) -> Result<Info, ProviderError>;
    /// It has not done this in time.
    fn late(&self, what: &str, limit: Duration) -> ProviderError;
    /// What it says cannot be understood, or no longer comes.
    fn broken(&self, error: &WireError) -> ProviderError;
}

impl Server for Endpoint {
    async fn connect(&self, limit: Duration) -> Result<Connection, ProviderError> {
        let connecting = async {
            let socket: Box<dyn Socket> = match self {
                Self::Tcp(host, port) => {
                    let socket = TcpStream::connect((host.as_str(), *port)).await?;
                    socket.set_nodelay(true)?;
                    Box::new(socket)
                }
                Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            };
            Ok(socket)
        };
        let socket = match timeout(limit, connecting).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return Err(self.broken(&WireError::Io(error))),
            Err(_) => return Err(self.late("accept the connection", limit)),
        };
        Ok(Connection {
            socket: FramedRead::new(socket, Wire::default()),
            endpoint: self.clone(),
        })
    }

    async fn describe(&self, limit: Duration) -> Result<Info, ProviderError> {
        let asking = async {
            let mut connection = self.connect(limit).await?;
            connection.send(Event::new("describe", Value::Null)).await?;
            loop {
                let event = connection.next().await?;
                if event.kind == "info" {
                    return event.parse().map_err(|error| self.broken(&error));
                }
            }
        };
        match timeout(limit, asking).await {
            Ok(info) => info,
            Err(_) => Err(self.late("describe itself", limit)),
        }
    }

    fn late(&self, what: &str, limit: Duration) -> ProviderError {
        failure(
            ErrorKind::Timeout,
            format!("{self} did not {what} within {} ms", limit.as_millis()),
        )
    }

    fn broken(&self, error: &WireError) -> ProviderError {
        let kind = match error {
            WireError::Io(_) | WireError::Truncated => ErrorKind::Unavailable,
            _ => ErrorKind::Protocol,
        };
        failure(kind, format!("{self}: {error}"))
    }
}

impl Connection {
    /// The next event. Can be cancelled without losing any. The end of the connection is an error here, and so is an
    /// `error` event.
    async fn next(&mut self) -> Result<Event, ProviderError> {
        match self.socket.next().await {
            Some(Ok(event)) if event.kind == "error" => {
                let said = event.text("text").unwrap_or("an error without a text");
                let endpoint = &self.endpoint;
                Err(failure(
                    ErrorKind::Unavailable,
                    format!("{endpoint} reports: {said}"),
                ))
            }
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.endpoint.broken(&error)),
            None => Err(failure(
                ErrorKind::Unavailable,
                format!("{} closed the connection", self.endpoint),
            )),
        }
    }

    /// Sends an event. Where that fails, the reason is what the server last said, if it said one.
    async fn send(&mut self, event: Event) -> Result<(), ProviderError> {
        let mut bytes = BytesMut::new();
        let encoded = Wire::default().encode(event, &mut bytes);
        encoded.map_err(|error| self.endpoint.broken(&error))?;
        let writing = self.socket.get_mut().write_all(&bytes);
        let error = match timeout(WRITE_LIMIT, writing).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => return Err(self.endpoint.late("take what was sent", WRITE_LIMIT)),
        };
        match timeout(LAST_WORDS_LIMIT, self.next()).await {
            Ok(Err(reason)) => Err(reason),
            _ => Err(self.endpoint.broken(&WireError::Io(error))),
        }
    }
}

/// The parts of an `info` event that we use.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Info {
    asr: Vec<AsrProgram>,
    tts: Vec<TtsProgram>,
}

#[derive(Debug, Clone, Deserialize)]
struct AsrProgram {
    name: String,
    #[serde(default)]
    models: Vec<AsrModel>,
}

#[derive(Debug, Clone, Deserialize)]
struct AsrModel {
    name: String,
    #[serde(default)]
    languages: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct TtsProgram {
    name: String,
    #[serde(default)]
    voices: Vec<TtsVoice>,
    #[serde(default)]
    supports_synthesize_streaming: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct TtsVoice {
    name: String,
    description: Option<String>,
    #[serde(default)]
    languages: Vec<String>,
    speakers: Option<Vec<TtsSpeaker>>,
    #[serde(default = "installed")]
    installed: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct TtsSpeaker {
    name: String,
}

const fn installed() -> bool {
    true
}

/// Asks the server for another program than its first.
fn select_program(name: &str) -> Event {
    Event::new("select-program", serde_json::json!({ "name": name }))
}
