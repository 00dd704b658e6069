//! A WebSocket to a vendor, with timeouts for connecting and writing. Extensions are not offered.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};
use url::Url;

use super::{Refusal, Transport};
use vivavoce_seams::{ErrorKind, ProviderError};

/// The largest message that is accepted, more than any vendor sends at once.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The read buffer. tungstenite zeroes it on every read attempt, twice per chunk of audio sent: with its default of 128 KiB
/// this took 95 % of a recogniser client's CPU time.
const READ_BYTES: usize = 4 << 10;
/// The part of a refusal's body that is kept.
const MAX_REFUSAL_BYTES: usize = 4096;
/// The timeout of a write.
const WRITING: Duration = Duration::from_secs(10);

pub(super) trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// An open socket.
pub struct Socket {
    pub(super) provider: &'static str,
    pub(super) sink: Sink,
    pub(super) stream: Stream,
    pub(super) opened: Instant,
    /// How much of the vendor's limit per socket has been used, 0–1.
    pub(super) worn: f32,
}

pub(super) type Stream = SplitStream<WebSocketStream<Box<dyn Pipe>>>;

pub(super) struct Sink {
    provider: &'static str,
    sink: SplitSink<WebSocketStream<Box<dyn Pipe>>, Message>,
}

/// The URL and headers of a WebSocket handshake.
#[derive(Debug, Clone)]
pub struct Handshake {
    /// `ws`, `wss`, `http` or `https`.
    pub url: Url,
    /// Additional headers. Secret values must be marked as sensitive.
    pub headers: HeaderMap,
}

/// Why a handshake has failed.
#[derive(Debug)]
pub enum DialError {
    /// The vendor did not upgrade the connection.
    Refused(Box<Refusal>),
    /// The vendor cannot be reached, or did not answer in time.
    Unreachable(ProviderError),
}

impl Handshake {
    /// A handshake without additional headers.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            headers: HeaderMap::new(),
        }
    }

    /// Adds a header with a secret value.
    pub fn secret(mut self, name: HeaderName, value: &str) -> Self {
        // Credentials have been checked to be printable.
        if let Ok(mut value) = HeaderValue::from_str(value) {
            value.set_sensitive(true);
            self.headers.insert(name, value);
        }
        self
    }
}

/// A message from the vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Bytes),
    /// The vendor closed the connection, with this code and reason. It is the last message.
    Closed(Option<(u16, String)>),
}

impl Transport {
    /// Opens a socket within `patience`.
    pub async fn dial(
        &self,
        provider: &'static str,
        handshake: Handshake,
        patience: Duration,
    ) -> Result<Socket, DialError> {
        match timeout(patience, self.dial_patiently(provider, handshake)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(DialError::Unreachable(ProviderError::new(
                provider,
                ErrorKind::Timeout,
                format!("no connection within {} s", patience.as_secs_f32()),
            ))),
        }
    }

    async fn dial_patiently(
        &self,
        provider: &'static str,
        handshake: Handshake,
    ) -> Result<Socket, DialError> {
        let unreachable = |problem: String| {
            DialError::Unreachable(ProviderError::new(
                provider,
                ErrorKind::Unavailable,
                problem,
            ))
        };
        let mut url = handshake.url;
        let secure = matches!(url.scheme(), "https" | "wss");
        // Between these four schemes every change is allowed.
        let _ = url.set_scheme(if secure { "wss" } else { "ws" });
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port_or_known_default().unwrap_or(443);
        let tcp = connect(&host, port)
            .await
            .map_err(|error| unreachable(format!("{host}:{port}: {error}")))?;
        let pipe: Box<dyn Pipe> = if secure {
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .map_err(|error| unreachable(format!("{host}: {error}")))?;
            let connector = TlsConnector::from(self.tls());
            let tls = connector.connect(name, tcp).await;
            Box::new(tls.map_err(|error| unreachable(format!("{host}: TLS: {error}")))?)
        } else {
            Box::new(tcp)
        };
        let mut request = url
            .as_str()
            .into_client_request()
            .map_err(|error| unreachable(format!("{host}: {error}")))?;
        request.headers_mut().extend(handshake.headers);
        let limits = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let opened = client_async_with_config(request, pipe, Some(limits)).await;
        let (socket, _) = opened.map_err(|error| match error {
            tungstenite::Error::Http(answer) => DialError::Refused(Box::new(refusal(*answer))),
            other => unreachable(format!("{host}: {other}")),
        })?;
        let (sink, stream) = socket.split();
        Ok(Socket {
            provider,
            sink: Sink { provider, sink },
            stream,
            opened: Instant::now(),
            worn: 0.0,
        })
    }
}

/// A TCP connection without Nagle's algorithm. An IPv6 address may be in brackets.
pub async fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = match host.trim_matches(['[', ']']).parse() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => tokio::net::lookup_host((host, port)).await?.collect(),
    };
    let tcp = TcpStream::connect(&*addresses).await?;
    // Audio chunks are small and must not be delayed.
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

fn refusal(answer: tungstenite::http::Response<Option<Vec<u8>>>) -> Refusal {
    let (head, body) = answer.into_parts();
    let body = body.unwrap_or_default();
    let body = &body[..body.len().min(MAX_REFUSAL_BYTES)];
    Refusal {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8_lossy(body).into_owned(),
    }
}

impl Sink {
    /// Sends messages in order.
    pub(super) async fn send(&mut self, messages: Vec<Message>) -> Result<(), ProviderError> {
        let provider = self.provider;
        let sending = async {
            for message in messages {
                self.sink.feed(message).await?;
            }
            self.sink.flush().await
        };
        match timeout(WRITING, sending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(broken(provider, &error)),
            Err(_) => Err(ProviderError::new(
                provider,
                ErrorKind::Timeout,
                "stopped accepting data",
            )),
        }
    }
}

fn broken(provider: &'static str, error: &tungstenite::Error) -> ProviderError {
    ProviderError::new(
        provider,
        ErrorKind::Unavailable,
        format!("the connection was lost: {error}"),
    )
}

/// The next message; pings are answered. `None` is a control frame, which only shows that the vendor is alive.
pub(super) async fn receive(
    provider: &'static str,
    stream: &mut Stream,
) -> Result<Option<Received>, ProviderError> {
    let received = match stream.next().await {
        Some(Ok(Message::Text(text))) => Received::Text(text.as_str().to_owned()),
        Some(Ok(Message::Binary(bytes))) => Received::Binary(bytes),
        Some(Ok(Message::Close(frame))) => {
            Received::Closed(frame.map(|frame| (frame.code.into(), frame.reason.to_string())))
        }
        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => return Ok(None),
        None
        | Some(Err(
            tungstenite::Error::ConnectionClosed
            | tungstenite::Error::AlreadyClosed
            | tungstenite::Error::Protocol(
                tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
            ),
        )) => Received::Closed(None),
        Some(Err(error @ (tungstenite::Error::Io(_) | tungstenite::Error::Tls(_)))) => {
            return Err(broken(provider, &error));
        }
        Some(Err(error)) => {
            let problem = format!("sent an invalid WebSocket frame: {error}");
            return Err(ProviderError::new(provider, ErrorKind::Protocol, problem));
        }
    };
    Ok(Some(received))
}

impl DialError {
    /// Converts it to an error; `refused` interprets a refusal.
    pub fn read(self, refused: impl FnOnce(&Refusal) -> ProviderError) -> ProviderError {
        match self {
            Self::Unreachable(error) => error,
            Self::Refused(refusal) => refused(&refusal),
        }
    }

    /// Converts it to an error by the status alone.
    pub fn plain(self, provider: &'static str) -> ProviderError {
        self.read(|refusal| refusal.error(provider, refusal.kind(), &refusal.body))
    }
}

impl Socket {
    /// Sends messages, for use without a driver.
    pub async fn send(&mut self, out: &mut super::Outgoing) -> Result<(), ProviderError> {
        self.sink.send(out.take()).await
    }

    /// The next message, for use without a driver.
    pub async fn receive(&mut self) -> Result<Received, ProviderError> {
        loop {
            if let Some(received) = receive(self.provider, &mut self.stream).await? {
                return Ok(received);
            }
        }
    }
}
