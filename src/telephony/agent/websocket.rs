//! SIP over WebSocket (RFC 7118), for telephones in browsers: each message of SIP is one of WebSocket. One task and one
//! bounded queue per direction, as in `stream`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use rsipstack::transport::{SipConnection, TransportEvent};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::header::SEC_WEBSOCKET_PROTOCOL;
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};
use tokio_util::sync::CancellationToken;

use super::bounds::LARGEST;
use super::stream::{IDLE, Outgoing, STRANGERS_PATIENCE, Taker, WRITE_PATIENCE, next_bytes};

/// The name of SIP among the protocols over WebSocket (RFC 7118 section 8.1).
const SUBPROTOCOL: &str = "sip";
/// A keep-alive (RFC 5626 section 4.4.1).
const PING: &[u8] = b"\r\n\r\n";

/// Takes the handshake of a browser.
pub(super) async fn accept<S>(stream: S) -> io::Result<WebSocketStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limits = WebSocketConfig::default()
        .max_message_size(Some(LARGEST))
        .max_frame_size(Some(LARGEST))
        .write_buffer_size(0)
        .max_write_buffer_size(2 * LARGEST);
    let accepted = accept_hdr_async_with_config(stream, choose, Some(limits));
    accepted.await.map_err(io::Error::other)
}

/// Speaks SIP, or nothing.
#[expect(clippy::result_large_err, reason = "the library's own type")]
fn choose(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    let offered = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL);
    let offered = offered.iter().filter_map(|value| value.to_str().ok());
    let mut names = offered.flat_map(|value| value.split(',').map(str::trim));
    if names.any(|name| name.eq_ignore_ascii_case(SUBPROTOCOL)) {
        let chosen = HeaderValue::from_static(SUBPROTOCOL);
        response
            .headers_mut()
            .insert(SEC_WEBSOCKET_PROTOCOL, chosen);
        return Ok(response);
    }
    let mut refusal = ErrorResponse::new(Some(
        "this is a port of SIP over WebSocket: the subprotocol must be sip (RFC 7118)\n".to_owned(),
    ));
    *refusal.status_mut() = StatusCode::BAD_REQUEST;
    Err(refusal)
}

/// Reads and writes until the socket ends, or `closed` is cancelled; then cancels `closed`.
pub(super) fn carry<S, T>(
    socket: WebSocketStream<S>,
    (connection, outgoing): (SipConnection, Outgoing),
    remote: SocketAddr,
    closed: CancellationToken,
    taker: Arc<T>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: Taker,
{
    let (sink, stream) = socket.split();
    let (pongs, pinged) = mpsc::channel(1);
    tokio::spawn(writing(sink, outgoing.0, pinged, closed.clone()));
    tokio::spawn(reading(stream, taker, (remote, connection), pongs, closed));
}

async fn writing<S>(
    mut sink: SplitSink<WebSocketStream<S>, Message>,
    mut messages: mpsc::Receiver<TransportEvent>,
    mut pinged: mpsc::Receiver<()>,
    closed: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let next = next_bytes(&mut messages, &mut pinged, &closed);
        let Some(bytes) = next.await else {
            break;
        };
        // Text, as clients expect, unless it is none.
        let message = match Utf8Bytes::try_from(bytes) {
            Ok(text) => Message::Text(text),
            Err(_) => continue,
        };
        let written = timeout(WRITE_PATIENCE, sink.send(message));
        if !matches!(written.await, Ok(Ok(()))) {
            break;
        }
    }
    closed.cancel();
    let _closed = timeout(WRITE_PATIENCE, sink.close()).await;
}

async fn reading<S, T>(
    mut stream: SplitStream<WebSocketStream<S>>,
    taker: Arc<T>,
    (remote, connection): (SocketAddr, SipConnection),
    pongs: mpsc::Sender<()>,
    closed: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: Taker,
{
    let mut until = Instant::now() + STRANGERS_PATIENCE;
    loop {
        let read = tokio::select! {
            biased;
            () = closed.cancelled() => break,
            read = timeout_at(until, stream.next()) => read,
        };
        let message = match read {
            Ok(Some(Ok(message))) => message,
            Err(_) if taker.keeps(remote) => {
                until = Instant::now() + IDLE;
                continue;
            }
            Ok(_) | Err(_) => break,
        };
        let bytes: &[u8] = match &message {
            Message::Text(text) => text.as_bytes(),
            Message::Binary(bytes) => bytes,
            Message::Close(_) => break,
            _ => &[],
        };
        let mut in_call = false;
        if bytes == PING {
            // One pong answers many pings.
            let _asked = pongs.try_send(());
        } else if !bytes.iter().all(u8::is_ascii_whitespace) {
            in_call = taker.take(bytes, remote, &connection).await;
        }
        if in_call || !taker.stranger(remote) {
            until = Instant::now() + IDLE;
        }
    }
    closed.cancel();
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// What a handshake with these protocols is answered.
    async fn answered(protocols: &str) -> String {
        let (here, mut there) = tokio::io::duplex(LARGEST);
        let request = format!(
            "GET /any HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{protocols}\r\n"
        );
        there.write_all(request.as_bytes()).await.unwrap();
        let _socket = accept(here).await;
        let mut answer = vec![0; 1_024];
        let length = there.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    #[tokio::test]
    async fn sip_is_spoken_and_nothing_else() {
        let sip = answered("Sec-WebSocket-Protocol: chat, SIP\r\n").await;
        assert!(sip.starts_with("HTTP/1.1 101"), "{sip}");
        assert!(
            sip.to_lowercase().contains("sec-websocket-protocol: sip"),
            "{sip}"
        );
        for other in ["", "Sec-WebSocket-Protocol: chat\r\n"] {
            let answer = answered(other).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
            assert!(answer.contains("subprotocol must be sip"), "{answer}");
        }
    }
}
