//! The socket edge: WebSocket (RFC 6455) over a request of `actix-web`, with reading and writing independent of each
//! other, so that a client that does not read is still heard (protocol, section 1). What messages mean is the
//! handler's matter.
//!
//! The server needs two settings: `h1_write_buffer_size(WRITE_BUFFER_BYTES)` and `on_connect(accepted)`.
//!
//! ```text
//! request payload ─> reading task ─> Frames ─> SocketHandler::text, binary
//!                      │ pongs, pings, close, idle
//!                      ▼
//! response body  <── Outbox <── SocketWriter::event, latest, audio, cut_audio, close
//! ```

mod backlog;
mod budget;
mod connection;
mod echo;
mod frames;
mod origins;
mod outbox;
mod reader;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpMessage, HttpRequest, HttpResponse, ResponseError, web};
use actix_web_actors::ws::HandshakeError;

pub use backlog::{Backlog, MAX_WAITING_BYTES};
pub use budget::MessageBudget;
pub use connection::{WRITE_BUFFER_BYTES, accepted, prepare};
pub use echo::echo;
pub use frames::{FrameError, Frames, Input, MAX_BINARY_BYTES, MAX_TEXT_BYTES};
pub use origins::Origins;
pub use outbox::{Audio, AudioRefused, CLOSE_PATIENCE, Closed, ClosedBy, MAX_EVENTS};
pub use reader::{PING_INTERVAL, SocketHandler};
pub use writer::SocketWriter;

use self::connection::Connection;
use self::reader::Reader;
use self::writer::{Body, Shared};
use vivavoce_core::party::Party;

/// What differs from server to server.
#[derive(Debug, Clone)]
pub struct SocketSettings {
    /// Origins of pages that may connect beside the server's own.
    pub allowed_origins: Origins,
    /// How long a client may send no frame of any kind.
    pub idle_timeout: Duration,
    /// How long a message may take from its first byte to its last.
    pub message_timeout: Duration,
    /// What messages that are not complete may hold, together with those of all other sockets of the server.
    pub unfinished: Arc<MessageBudget>,
    /// What events that its client does not read may hold, together with those of all other sockets of the server.
    pub backlog: Arc<Backlog>,
    /// Audio that may wait for a client that reads slowly.
    pub max_buffered_audio: Duration,
}

/// Why a request does not become a socket.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A page of another origin, which is not on the list.
    #[error("pages of {0} may not connect; server.cors_origins names those that may")]
    Origin(String),
    /// Not a WebSocket handshake of version 13.
    #[error("this is no WebSocket handshake: {0}")]
    Handshake(#[from] HandshakeError),
    /// The server was not set up with [`accepted`], or the connection carries a socket already.
    #[error("this connection cannot carry a socket")]
    Connection,
}

/// Plain text; a server with error bodies of its own makes them of this error itself.
impl ResponseError for OpenError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::Origin(_) => StatusCode::FORBIDDEN,
            Self::Handshake(_) => StatusCode::BAD_REQUEST,
            Self::Connection => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        if matches!(self, Self::Handshake(HandshakeError::UnsupportedVersion)) {
            // RFC 6455, section 4.2.2.
            response.insert_header((header::SEC_WEBSOCKET_VERSION, "13"));
        }
        response.body(self.to_string())
    }
}

/// Makes a socket of a request. `handler` is called only when the handshake is good. The socket belongs to the worker
/// thread that calls this.
pub fn open<H: SocketHandler>(
    request: &HttpRequest,
    payload: web::Payload,
    settings: &SocketSettings,
    handler: impl FnOnce(SocketWriter) -> H,
) -> Result<HttpResponse, OpenError> {
    check_origin(request, &settings.allowed_origins)?;
    // Stricter about version and key than the handshake itself.
    actix_http::ws::verify_handshake(request.head())?;
    let mut response = actix_web_actors::ws::handshake(request)?;
    let connection = Arc::new(Connection::take(request).ok_or(OpenError::Connection)?);

    // On whose account unfinished messages are held, and what it does not read, was found out before.
    let key: Option<Party> = request.extensions().get().cloned();
    let key = key.unwrap_or_default();
    let shared = Shared::new(settings, key.clone());
    let handler = handler(SocketWriter(Arc::clone(&shared)));
    let reader = Reader::new(
        handler,
        Arc::clone(&shared),
        Arc::clone(&connection),
        settings,
        key,
    );
    actix_web::rt::spawn(reader.run(payload));
    Ok(response.streaming(Body::new(shared, connection)))
}

/// A socket without HTTP: `payload` brings what its client sends, and what comes back is what the client may read.
#[cfg(any(test, feature = "testing"))]
#[expect(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "for tests alone"
)]
pub fn open_in_memory<H: SocketHandler>(
    payload: impl futures_util::Stream<Item = Result<bytes::Bytes, actix_web::error::PayloadError>>
    + Unpin
    + 'static,
    settings: &SocketSettings,
    handler: impl FnOnce(SocketWriter) -> H,
) -> futures_util::stream::LocalBoxStream<'static, Result<bytes::Bytes, actix_web::Error>> {
    let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
    let connection = Arc::new(Connection::from(socket2::Socket::from(near)));
    let shared = Shared::new(settings, Party::Operator);
    let handler = handler(SocketWriter(Arc::clone(&shared)));
    let reader = Reader::new(
        handler,
        Arc::clone(&shared),
        Arc::clone(&connection),
        settings,
        Party::Operator,
    );
    actix_web::rt::spawn(reader.run(payload));
    Box::pin(Body::new(shared, connection))
}

/// Browsers name the page's origin, other clients need not.
fn check_origin(request: &HttpRequest, allowed: &Origins) -> Result<(), OpenError> {
    let Some(origin) = request.headers().get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = String::from_utf8_lossy(origin.as_bytes());
    let host = request.headers().get(header::HOST);
    let own = host
        .and_then(|host| host.to_str().ok())
        .zip(origin.split_once("://"))
        .is_some_and(|(host, (_, authority))| authority.eq_ignore_ascii_case(host));
    if own || allowed.contains(&origin) {
        Ok(())
    } else {
        Err(OpenError::Origin(origin.into_owned()))
    }
}
