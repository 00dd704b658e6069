//! The server's side of a vendor's WebSocket: messages in and out and a close code, with faults and the record handled here.
//! Compression is declined and pings are answered; the messages themselves are the vendor's.

use std::future::poll_fn;
use std::pin::Pin;

use actix_http::ws::{CloseCode, CloseReason, OpCode, Parser};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::outlet::{Ends, GOODBYE, Gone, Outlet};
use super::visit::Visit;
use vivavoce_socket::{FrameError, Frames, Input};

/// Messages that may wait for the vendor's code.
const WAITING: usize = 64;
/// Subprotocols that one client or another insists on being granted.
const PROTOCOLS: &[&str] = &["token", "bearer", "USP", "realtime"];

/// What a client says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Bytes),
    /// It closes, and that was answered: nothing follows. Without a code it is 1005.
    Close {
        /// RFC 6455, section 7.4.
        code: u16,
        /// What it says.
        reason: String,
    },
}

/// An open socket.
#[derive(Debug)]
pub struct Socket {
    incoming: mpsc::Receiver<Message>,
    outlet: Outlet,
    ends: Ends,
    visit: Visit,
    closed: bool,
}

/// Makes a socket of a request and has it served. The answer is the handshake's, to which headers may be added. When
/// `serve` returns, the socket is closed with 1000 if it was not closed.
pub fn accept<F>(
    request: &HttpRequest,
    payload: web::Payload,
    visit: Visit,
    serve: F,
) -> Result<HttpResponse, actix_web::Error>
where
    F: AsyncFnOnce(&mut Socket) + 'static,
{
    actix_http::ws::verify_handshake(request.head())?;
    let mut response = actix_web_actors::ws::handshake_with_protocols(request, PROTOCOLS)?;
    let ends = Ends::default();
    let (outlet, body) = Outlet::open(visit.clone(), Some(goodbye), ends.clone());
    let (sender, incoming) = mpsc::channel(WAITING);
    let reader = Reader {
        frames: Frames::default(),
        incoming: sender,
        outlet: outlet.clone(),
        ends: ends.clone(),
        visit: visit.clone(),
    };
    actix_web::rt::spawn(reader.run(payload));
    actix_web::rt::spawn(async move {
        let mut socket = Socket {
            incoming,
            outlet,
            ends,
            visit,
            closed: false,
        };
        serve(&mut socket).await;
        socket.finish().await;
    });
    Ok(response.streaming(body))
}

impl Socket {
    /// The client's next message; `None` when it has gone or a fault has cut the connection. May be dropped and called
    /// again.
    pub async fn recv(&mut self) -> Option<Message> {
        self.incoming.recv().await
    }

    /// Sends a text message. Waits while the client does not read.
    pub async fn send_text(&self, text: impl Into<String>) -> Result<(), Gone> {
        self.send(OpCode::Text, text.into().into()).await
    }

    /// Sends a value as JSON in a text message.
    pub async fn send_json(&self, value: &serde_json::Value) -> Result<(), Gone> {
        self.send_text(value.to_string()).await
    }

    /// Sends a binary message. Waits while the client does not read.
    pub async fn send_binary(&self, bytes: impl Into<Bytes>) -> Result<(), Gone> {
        self.send(OpCode::Binary, bytes.into()).await
    }

    async fn send(&self, opcode: OpCode, payload: Bytes) -> Result<(), Gone> {
        if self.closed {
            return Err(Gone);
        }
        self.outlet.send(frame(opcode, &payload)).await
    }

    /// Says goodbye after everything that was sent; only the first time counts. With 1005 the close frame has no code,
    /// with 1006 there is none.
    pub async fn close(&mut self, code: u16, reason: &str) {
        if !std::mem::replace(&mut self.closed, true) {
            self.visit.note(format!("closed with {code} {reason}"));
            self.ends.closing.cancel();
            if let Some(frame) = close_frame(code, reason) {
                let _ = self.outlet.send(frame).await;
            }
        }
    }

    /// The connection's visit.
    pub const fn visit(&self) -> &Visit {
        &self.visit
    }

    async fn finish(mut self) {
        self.close(1000, "").await;
        let answered = async { while self.incoming.recv().await.is_some() {} };
        let _late = timeout(GOODBYE, answered).await;
        self.ends.over.cancel();
    }
}

/// A frame as a server sends it.
fn frame(opcode: OpCode, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(payload.len() + 10);
    Parser::write_message(&mut bytes, payload, opcode, true, false);
    bytes.freeze()
}

fn close_frame(code: u16, reason: &str) -> Option<Bytes> {
    let reason = match code {
        1006 => return None,
        1005 => None,
        code => Some(CloseReason {
            code: CloseCode::from(code),
            // The payload of a control frame has 125 bytes.
            description: Some(reason[..reason.floor_char_boundary(123)].to_owned()),
        }),
    };
    let mut bytes = BytesMut::new();
    Parser::write_close(&mut bytes, reason, false);
    Some(bytes.freeze())
}

/// What a fault says at the end, in the vendor's words where it has none of its own.
fn goodbye(visit: &Visit, code: Option<u16>, reason: Option<&str>) -> Option<Bytes> {
    let (own_code, own_reason) = visit.vendor().usual_close();
    let own_reason = if code.is_none() { own_reason } else { "" };
    close_frame(code.unwrap_or(own_code), reason.unwrap_or(own_reason))
}

/// The task that reads, so that a client is heard and answered whatever the vendor's code waits for.
struct Reader {
    frames: Frames,
    incoming: mpsc::Sender<Message>,
    outlet: Outlet,
    ends: Ends,
    visit: Visit,
}

impl Reader {
    async fn run(mut self, mut payload: web::Payload) {
        let Ends { deaf, over, .. } = self.ends.clone();
        tokio::select! {
            biased;
            () = deaf.cancelled() => {
                // To the vendor's code the client has gone; to the client nothing has changed.
                drop(self.incoming);
                over.cancelled().await;
            }
            () = over.cancelled() => {}
            () = self.read(&mut payload) => {}
        }
    }

    async fn read(&mut self, payload: &mut web::Payload) {
        while let Some(Ok(chunk)) =
            poll_fn(|context| Pin::new(&mut *payload).poll_next(context)).await
        {
            self.frames.push(&chunk);
            loop {
                match self.frames.next_frame() {
                    Ok(Some(input)) => {
                        if self.input(input).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return self.refuse(error).await,
                }
            }
        }
        self.visit.note("the client went without a goodbye");
    }

    /// `Err` when nothing that follows matters.
    async fn input(&self, input: Input) -> Result<(), Gone> {
        let message = match input {
            Input::Text(text) => Message::Text(text.into()),
            Input::Binary(bytes) => Message::Binary(bytes),
            Input::Ping(payload) => {
                self.outlet.send_urgent(frame(OpCode::Pong, &payload));
                return Ok(());
            }
            Input::Pong(_) | Input::Fragment => return Ok(()),
            Input::Close(reason) => {
                self.closed(reason).await;
                return Err(Gone);
            }
        };
        self.visit.received(match &message {
            Message::Text(text) => text.len(),
            Message::Binary(bytes) => bytes.len(),
            Message::Close { .. } => 0,
        });
        self.incoming.send(message).await.map_err(|_| Gone)
    }

    async fn closed(&self, reason: Option<CloseReason>) {
        let code = reason.as_ref().map_or(1005, |reason| reason.code.into());
        let reason = reason
            .and_then(|reason| reason.description)
            .unwrap_or_default();
        self.visit
            .note(format!("the client closed with {code} {reason}"));
        self.ends.answered.cancel();
        if !self.ends.closing.is_cancelled()
            && let Some(answer) = close_frame(code, "")
        {
            self.outlet.send_last(answer).await;
        }
        let _ = self.incoming.send(Message::Close { code, reason }).await;
    }

    async fn refuse(&self, error: FrameError) {
        self.visit.note(error.to_string());
        if let Some(goodbye) = close_frame(error.close_code(), &error.to_string()) {
            let _ = self.outlet.send(goodbye).await;
        }
    }
}
