//! The connection under gRPC calls, and the path of a call's answers through it, where the faults of the transport are
//! injected.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::dev::Extensions;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Response, Status};

use crate::faults::{Cut, Effect};
use crate::visit::Visit;
use crate::wire::{self, Wire};

/// Answers that may wait.
const WAITING: usize = 64;
/// How long a connection stays open that pretends to be.
const HALF_OPEN: Duration = Duration::from_mins(10);

/// The way of a call's answers.
pub(super) type Answers<M> = mpsc::Sender<Result<M, Status>>;

/// A connection.
#[derive(Clone)]
pub(super) struct Link {
    wire: Option<Wire>,
    /// Nothing is read or written any more, and the connection stands.
    deaf: CancellationToken,
}

impl Link {
    pub(super) fn new(tcp: TcpStream) -> (Self, Io) {
        let mut extensions = Extensions::new();
        wire::accepted(&tcp, &mut extensions);
        let link = Self {
            wire: extensions.get::<Wire>().cloned(),
            deaf: CancellationToken::new(),
        };
        let deaf = link.deaf.clone();
        (link, Io { tcp, deaf })
    }

    fn reset(&self) {
        if let Some(wire) = &self.wire {
            wire.reset();
        }
    }

    /// Whether a fault wants the connection to be refused altogether; then it is.
    pub(super) fn refuses(&self, visit: &Visit) -> bool {
        let refused = visit.effect(|effect| (*effect == Effect::Refuse).then_some(()));
        if refused.is_some() {
            self.reset();
        }
        refused.is_some()
    }

    /// The answers of a call, made by the task that `speak` gives.
    pub(super) fn stream<M, F>(
        &self,
        visit: &Visit,
        speak: impl FnOnce(Answers<M>) -> F,
    ) -> ReceiverStream<Result<M, Status>>
    where
        M: Message + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (answers, waiting) = mpsc::channel(WAITING);
        let (out, leaving) = mpsc::channel(1);
        tokio::spawn(speak(answers));
        tokio::spawn(self.clone().forward(visit.clone(), waiting, out));
        ReceiverStream::new(leaving)
    }

    /// The only answer of a call.
    pub(super) async fn whole<M: Message + 'static>(
        &self,
        visit: &Visit,
        answer: impl Future<Output = Result<M, Status>>,
    ) -> Result<Response<M>, Status> {
        let (answers, waiting) = mpsc::channel(1);
        let (out, mut leaving) = mpsc::channel(1);
        tokio::spawn(self.clone().forward(visit.clone(), waiting, out));
        let _ = answers.send(answer.await).await;
        drop(answers);
        let answer = leaving.recv().await;
        let answer = answer.unwrap_or_else(|| Err(Status::internal("Internal error encountered.")));
        answer.map(Response::new)
    }

    async fn forward<M: Message>(
        self,
        visit: Visit,
        mut waiting: mpsc::Receiver<Result<M, Status>>,
        out: mpsc::Sender<Result<M, Status>>,
    ) {
        let (mut gate, cutter) = (visit.gate(), visit.gate());
        // A timer that is begun anew with every message would never go off among many.
        let mut cut = pin!(cutter.cut());
        let mut next: Option<(Instant, Result<M, Status>)> = None;
        loop {
            let release = next.as_ref().map(|(release, _)| *release);
            tokio::select! {
                biased;
                cut = &mut cut => return self.cut(&visit, cut, &out).await,
                () = out.closed() => return,
                () = sleep_until(release.unwrap_or_else(Instant::now)), if release.is_some() => {
                    let Some((_, answer)) = next.take() else { return };
                    if gate.truncates(Instant::now()) {
                        visit.note("cut in the middle of a message");
                        return self.reset();
                    }
                    visit.sent(answer.as_ref().map_or(0, Message::encoded_len));
                    tokio::select! {
                        sent = out.send(answer) => if sent.is_err() { return },
                        cut = &mut cut => return self.cut(&visit, cut, &out).await,
                    }
                }
                answer = waiting.recv(), if release.is_none() => match answer {
                    Some(answer) => next = Some((gate.release(Instant::now()), answer)),
                    None => return,
                },
            }
        }
    }

    async fn cut<M>(&self, visit: &Visit, cut: Cut, out: &mpsc::Sender<Result<M, Status>>) {
        visit.note(format!("cut: {cut:?}"));
        match cut {
            // Google has no codes of closing: 1000 is taken for a good end, 4000 and up for the codes of gRPC.
            Cut::Close(Some(1000), _) => {}
            Cut::Close(code, reason) => {
                let reason =
                    reason.unwrap_or_else(|| "The service is currently unavailable.".to_owned());
                let code = code.and_then(|code| code.checked_sub(4000));
                let code = code.filter(|code| (1..=16).contains(code));
                let code = code.map_or(Code::Unavailable, |code| Code::from(i32::from(code)));
                let _ = out.send(Err(Status::new(code, reason))).await;
            }
            Cut::Reset => self.reset(),
            Cut::HalfOpen => {
                self.deaf.cancel();
                tokio::select! {
                    () = out.closed() => {}
                    () = sleep(HALF_OPEN) => {}
                }
            }
        }
    }
}

/// The bytes of a connection, as long as it is not deaf.
pub(super) struct Io {
    tcp: TcpStream,
    deaf: CancellationToken,
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.deaf.is_cancelled() {
            return Poll::Pending;
        }
        Pin::new(&mut self.tcp).poll_read(context, buffer)
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.deaf.is_cancelled() {
            return Poll::Pending;
        }
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}
