//! The socket edge: WebSockets (RFC 6455) on top of actix-web requests (protocol, section 1). What messages mean is up
//! to the handler.
//!
//! # Reading and writing are independent
//!
//! Only the handshake comes from `actix-web-actors`. After it the socket takes the connection from the HTTP server
//! ([`Lent`]). Bytes that come become calls of a [`SocketHandler`]; those that go are taken from a bounded queue that a
//! [`SocketWriter`] fills. So input from a client that does not read its output is still processed, which a single actor
//! polled by a response body could not do.
//!
//! ```text
//! connection ─> Reader ─> Frames ─> SocketHandler::text, binary
//!                 │ pongs, pings, close, idle
//!                 ▼
//! connection <─ Outbox <── SocketWriter::event, latest, audio, cut_audio, close
//! ```
//!
//! # Output
//!
//! Over a plain connection what is sent is written by the call that sends it, as long as nothing waits and the kernel takes it.
//! Otherwise it is queued:
//!
//! Events are queued in order. A *latest* event replaces an older one of its kind that has not been sent, so that a slow
//! client gets the current state instead of history. Audio has a queue of its own that can be cut: after barge-in,
//! nothing but what the kernel has already accepted is still sent.
//!
//! # Bounds
//!
//! A text message has at most [`MAX_TEXT_BYTES`], a binary one [`MAX_BINARY_BYTES`], and incomplete messages of all
//! sockets share a [`MessageBudget`]. Output that clients do not read shares the [`Backlog`] of [`MAX_WAITING_BYTES`],
//! and a socket has at most [`MAX_EVENTS`] events waiting: a client that falls too far behind is closed, and of several
//! the one furthest behind of the party that holds most. Clients that are silent, or that take too long over a message,
//! are closed as well.
//!
//! The HTTP server runs over [`Lent`] connections with `h1_write_buffer_size(WRITE_BUFFER_BYTES)`, puts their [`Loan`]
//! into their data, and asks their [`Successor`] after each poll.
//!
//! # Sockets that this server opens
//!
//! [`dial`] makes the handshake as the client; [`run_dialled`] runs a socket over such a connection.
//!
//! # Protocols that do one thing after another
//!
//! [`open_messages`] makes a socket that is read and written by one task, without a queue.
//!
//! # Sockets within this server
//!
//! [`open_inner`] makes one whose client is another part of this process: no frames, no pings, the same bounds.
//!
//! # Example
//!
//! ```
//! use vivavoce_socket::{Frames, Input};
//!
//! // The masked text frame of RFC 6455, section 5.7, arriving in two pieces.
//! let frame = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
//! let mut frames = Frames::default();
//! frames.push(&frame[..4]);
//! assert!(frames.next_frame().unwrap().is_none());
//! frames.push(&frame[4..]);
//! let Some(Input::Text(text)) = frames.next_frame().unwrap() else {
//!     panic!("a text message");
//! };
//! assert_eq!(&text[..], "Hello");
//! ```

mod backlog;
mod budget;
mod carry;
mod dial;
mod dialled;
mod echo;
mod frames;
mod handover;
mod inner;
mod messages;
mod origins;
mod outbox;
mod reader;
mod relay;
mod sent_log;
mod timeline;
mod wire;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpMessage, HttpRequest, HttpResponse, HttpResponseBuilder, ResponseError, web};
use actix_web_actors::ws::HandshakeError;
use futures_util::FutureExt;

pub use backlog::{Backlog, MAX_WAITING_BYTES};
pub use budget::MessageBudget;
pub use dial::{DialError, dial};
pub use dialled::{run_dialled, text_frame_of_server};
pub use echo::echo;
pub use frames::{FrameError, Frames, Input, MAX_BINARY_BYTES, MAX_TEXT_BYTES};
pub use handover::{Connection, Lent, Loan, Successor, Transport, WRITE_BUFFER_BYTES};
pub use inner::{InnerClient, open_inner};
pub use messages::{Messages, open_messages};
pub use origins::Origins;
pub use outbox::{
    Audio, AudioRefused, CLOSE_PATIENCE, Closed, ClosedBy, MAX_EVENTS, MOVES, Message, SUPERSEDED,
};
pub use reader::{PING_INTERVAL, SocketHandler};
pub use relay::{FromClient, Relay, Relayed, relay};
pub use sent_log::{CannotResume, SentState, fuzz_sent};
pub use timeline::{
    Doing, LEVEL, Loudness, SessionFacts, Timeline, TimelineEntry, TimelinePart, TimelineSummary,
};
pub use writer::{DetachedSocket, SocketWriter};

use self::carry::{carry, carry_plain};
use self::handover::{Upgrade, reset};
use self::reader::Reader;
use self::writer::{Body, Shared};
use vivavoce_core::party::Party;

/// The settings of sockets.
#[derive(Debug, Clone)]
pub struct SocketSettings {
    /// Origins whose pages may connect, besides the server's own.
    pub allowed_origins: Origins,
    /// How long a client may send no frame of any kind.
    pub idle_timeout: Duration,
    /// How long a message may take from its first byte to its last.
    pub message_timeout: Duration,
    /// The memory of incomplete messages, shared by all sockets of the server.
    pub unfinished: Arc<MessageBudget>,
    /// The memory of unread output, shared by all sockets of the server.
    pub backlog: Arc<Backlog>,
    /// The maximum audio queued for a slow client.
    pub max_buffered_audio: Duration,
}

#[cfg(test)]
impl SocketSettings {
    /// Those of tests, as far as they do not have their own.
    fn of_tests() -> Self {
        Self {
            allowed_origins: Origins::default(),
            idle_timeout: Duration::from_mins(1),
            message_timeout: Duration::from_secs(30),
            unfinished: Arc::new(MessageBudget::new(1 << 20)),
            backlog: Backlog::new(vivavoce_quotas::Share::NONE),
            max_buffered_audio: Duration::from_secs(2),
        }
    }
}

/// Why a request was not upgraded.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The page's origin is not allowed.
    #[error("pages of {0} may not connect; server.cors_origins names those that may")]
    Origin(String),
    /// Not a valid WebSocket handshake of version 13.
    #[error("this is no WebSocket handshake: {0}")]
    Handshake(#[from] HandshakeError),
    /// The connection is not [`Lent`], or it carries a socket already.
    #[error("this connection cannot carry a socket")]
    Connection,
}

/// Plain text; servers with an error format of their own convert this error.
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

/// Upgrades a request. `handler` is called only if the handshake is valid. The socket belongs to the worker thread that
/// calls this.
pub fn open<H: SocketHandler>(
    request: &HttpRequest,
    payload: web::Payload,
    settings: &SocketSettings,
    handler: impl FnOnce(SocketWriter) -> H,
) -> Result<HttpResponse, OpenError> {
    check_origin(request, &settings.allowed_origins)?;
    let (mut response, loan) = accept(request)?;

    // The party was determined by the middleware.
    let key: Option<Party> = request.extensions().get().cloned();
    let key = key.unwrap_or_default();
    let shared = Shared::new(settings, key.clone());
    let handler = handler(SocketWriter::new(Arc::clone(&shared)));
    let mut reader = Reader::new(handler, Arc::clone(&shared), settings, key);
    let body = Body::new(shared);
    let socket = move |io, came: &[u8]| {
        reader.came(came);
        match io {
            Connection::Plain(io) => carry_plain(io, reader, body).boxed_local(),
            io @ Connection::Secure(_) => carry(io, reader, body, Ok, reset).boxed_local(),
        }
    };
    Ok(response.streaming(Upgrade::new(loan, payload, socket)))
}

/// Whether a request is a handshake. Stricter about version and key than what makes the answer.
pub fn check_handshake(request: &HttpRequest) -> Result<(), OpenError> {
    Ok(actix_http::ws::verify_handshake(request.head())?)
}

/// The answer to a handshake, and its connection, which is a socket's from now on.
fn accept(request: &HttpRequest) -> Result<(HttpResponseBuilder, Loan), OpenError> {
    check_handshake(request)?;
    let response = actix_web_actors::ws::handshake(request)?;
    let loan = Loan::of(request).and_then(Loan::claim);
    Ok((response, loan.ok_or(OpenError::Connection)?))
}

/// A socket without HTTP: `payload` is what the client sends, and what is returned are the frames that it may read.
#[cfg(any(test, feature = "testing"))]
pub fn open_in_memory<H: SocketHandler>(
    payload: impl futures_util::Stream<Item = std::io::Result<bytes::Bytes>> + Unpin + 'static,
    settings: &SocketSettings,
    handler: impl FnOnce(SocketWriter) -> H,
) -> futures_util::stream::LocalBoxStream<'static, bytes::Bytes> {
    let shared = Shared::new(settings, Party::Operator);
    let handler = handler(SocketWriter::new(Arc::clone(&shared)));
    let mut reader = Reader::new(handler, Arc::clone(&shared), settings, Party::Operator);
    actix_web::rt::spawn(async move {
        let payload = std::cell::RefCell::new(tokio_util::io::StreamReader::new(payload));
        reader.run(&payload).await;
    });
    Box::pin(Body::new(shared))
}

/// Browsers send the page's origin; other clients need not.
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
