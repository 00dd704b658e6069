//! Everything that is sent to a client, over WebSockets and in HTTP bodies alike: bytes pass the connection's gate message
//! by message, and the faults of the transport (delays, cuts, resets, silence) are injected here, so that a vendor's code
//! only sends.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, MessageBody};
use actix_web::{HttpResponse, HttpResponseBuilder};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::faults::{Cut, Gate};
use super::visit::Visit;

/// Messages that may wait.
const WAITING: usize = 64;
/// How long a connection stays open that pretends to be: a client that does not notice in that time never will.
const HALF_OPEN: Duration = Duration::from_mins(10);
/// How long a client may take to answer a goodbye.
pub(super) const GOODBYE: Duration = Duration::from_secs(2);

/// Nobody receives any more: the client has gone, or a fault has cut the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is gone")]
pub struct Gone;

/// The end of a message that was cut: a close frame on a socket, nothing in a body.
pub(super) type Goodbye = fn(&Visit, Option<u16>, Option<&str>) -> Option<Bytes>;

/// The sending side. Everything given to it leaves before the body ends, which it does when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Outlet {
    messages: mpsc::Sender<(Instant, Bytes)>,
    urgent: mpsc::Sender<Urgent>,
}

/// What does not wait for its turn.
#[derive(Debug)]
enum Urgent {
    Message(Bytes),
    /// Nothing follows.
    Last(Bytes),
}

/// What the other tasks of a connection need to know.
#[derive(Debug, Clone, Default)]
pub(super) struct Ends {
    /// A goodbye of ours is on its way.
    pub closing: CancellationToken,
    /// The client has said goodbye.
    pub answered: CancellationToken,
    /// Nothing more is read, and the connection looks as if it were open.
    pub deaf: CancellationToken,
    /// It is over.
    pub over: CancellationToken,
}

impl Outlet {
    /// Starts the task that sends. It belongs to the worker thread that calls this.
    pub fn open(visit: Visit, goodbye: Option<Goodbye>, ends: Ends) -> (Self, Body) {
        let (messages, waiting) = mpsc::channel(WAITING);
        let (urgent, urgent_waiting) = mpsc::channel(WAITING);
        let (body, pieces) = mpsc::channel(1);
        let body_visit = goodbye.is_some().then(|| visit.clone());
        let pump = Pump {
            gate: visit.gate(),
            visit,
            goodbye,
            messages: waiting,
            urgent: urgent_waiting,
            body,
            ends,
        };
        actix_web::rt::spawn(pump.run());
        let body = Body {
            pieces,
            finishes: body_visit,
        };
        (Self { messages, urgent }, body)
    }

    /// Sends a message in its turn.
    pub async fn send(&self, message: Bytes) -> Result<(), Gone> {
        let message = (Instant::now(), message);
        self.messages.send(message).await.map_err(|_| Gone)
    }

    /// Sends before everything that waits, and whatever the gate says. Dropped when too much of it waits.
    pub fn send_urgent(&self, message: Bytes) {
        let _ = self.urgent.try_send(Urgent::Message(message));
    }

    /// Sends before everything that waits, and nothing after it.
    pub async fn send_last(&self, message: Bytes) {
        let _ = self.urgent.send(Urgent::Last(message)).await;
    }
}

struct Pump {
    visit: Visit,
    gate: Gate,
    /// Of sockets.
    goodbye: Option<Goodbye>,
    messages: mpsc::Receiver<(Instant, Bytes)>,
    urgent: mpsc::Receiver<Urgent>,
    body: mpsc::Sender<Result<Bytes, Cutoff>>,
    ends: Ends,
}

impl Pump {
    async fn run(mut self) {
        if let Some(cut) = self.forward().await {
            self.cut(cut).await;
        }
        self.ends.over.cancel();
    }

    /// Sends what comes, until nothing does any more (`None`) or a fault says so.
    async fn forward(&mut self) -> Option<Cut> {
        let mut next: Option<(Instant, Bytes)> = None;
        loop {
            let release = next.as_ref().map(|(release, _)| *release);
            tokio::select! {
                biased;
                cut = self.gate.cut() => return Some(cut),
                Some(urgent) = self.urgent.recv() => {
                    let (message, last) = match urgent {
                        Urgent::Message(message) => (message, false),
                        Urgent::Last(message) => (message, true),
                    };
                    match self.give(message).await {
                        Ok(()) if last => return None,
                        Ok(()) => {}
                        Err(cut) => return cut,
                    }
                }
                () = sleep_until(release.unwrap_or_else(Instant::now)), if release.is_some() => {
                    let (_, message) = next.take()?;
                    if self.gate.truncates(Instant::now()) {
                        return self.truncated(message).await;
                    }
                    self.visit.sent(message.len());
                    match self.give(message).await {
                        Ok(()) => {}
                        Err(cut) => return cut,
                    }
                }
                message = self.messages.recv(), if release.is_none() => {
                    let (asked, message) = message?;
                    next = Some((self.gate.release(asked), message));
                }
            }
        }
    }

    /// Hands bytes to the transport; a client that does not read is cut like any other.
    async fn give(&self, bytes: Bytes) -> Result<(), Option<Cut>> {
        if bytes.is_empty() {
            // HTTP would take it for the end of the body.
            return Ok(());
        }
        tokio::select! {
            sent = self.body.send(Ok(bytes)) => sent.map_err(|_| None),
            cut = self.gate.cut() => Err(Some(cut)),
        }
    }

    async fn truncated(&self, message: Bytes) -> Option<Cut> {
        self.visit.note("cut in the middle of a message");
        let half = message.slice(..message.len() / 2);
        let _ = self.body.send(Ok(half)).await;
        let _ = self.body.send(Err(Cutoff)).await;
        None
    }

    async fn cut(&self, cut: Cut) {
        self.visit.note(format!("cut: {cut:?}"));
        match cut {
            Cut::Close(code, reason) => {
                self.ends.closing.cancel();
                let goodbye = self
                    .goodbye
                    .and_then(|goodbye| goodbye(&self.visit, code, reason.as_deref()));
                match goodbye {
                    Some(goodbye) => {
                        let _ = self.body.send(Ok(goodbye)).await;
                        let _late = timeout(GOODBYE, self.ends.answered.cancelled()).await;
                    }
                    None => {
                        let _ = self.body.send(Err(Cutoff)).await;
                    }
                }
            }
            Cut::Reset => self.visit.reset(),
            Cut::HalfOpen => {
                self.ends.deaf.cancel();
                tokio::select! {
                    () = self.body.closed() => {}
                    () = sleep(HALF_OPEN) => {}
                }
            }
        }
    }
}

/// The connection ends before what it carries does.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("cut on purpose")]
pub struct Cutoff;

/// The body of an answer that goes through the gate.
#[derive(Debug)]
pub struct Body {
    pieces: mpsc::Receiver<Result<Bytes, Cutoff>>,
    /// Of a socket: its end is that of the connection.
    finishes: Option<Visit>,
}

impl Stream for Body {
    type Item = Result<Bytes, Cutoff>;
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.pieces.poll_recv(context);
        if let (Poll::Ready(None), Some(visit)) = (&next, &self.finishes) {
            visit.finish();
        }
        next
    }
}

impl MessageBody for Body {
    type Error = Cutoff;
    fn size(&self) -> BodySize {
        BodySize::Stream
    }
    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Cutoff>>> {
        Stream::poll_next(self, context)
    }
}

impl Visit {
    /// An answer whose body comes in pieces, each of them a message to the faults: streamed speech, lines of JSON.
    /// The stream is dropped when the client has gone.
    pub fn stream(
        &self,
        mut response: HttpResponseBuilder,
        pieces: impl Stream<Item = Bytes> + 'static,
    ) -> HttpResponse {
        let (outlet, body) = Outlet::open(self.clone(), None, Ends::default());
        actix_web::rt::spawn(async move {
            let mut pieces = std::pin::pin!(pieces);
            while let Some(piece) = pieces.next().await {
                if outlet.send(piece).await.is_err() {
                    return;
                }
            }
        });
        response.body(body)
    }
}
