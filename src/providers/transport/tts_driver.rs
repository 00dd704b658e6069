//! Runs a vendor's synthesis protocol over a socket: connects or takes an idle socket from the pool, streams text up and
//! audio and words down, and returns the socket to the pool. An utterance whose stream is dropped is cancelled in the
//! vendor's own way.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

pub use super::pool::{Idle, Key, Pool};
pub use super::protocol_io::TtsIo;
pub use super::stt_driver::Flow;
use super::websocket::{Handshake, Received, Socket, receive};
use super::{Outgoing, VendorEndpoint};
use vivavoce_audio::format::AudioFormat;
use vivavoce_quotas::Party;
use vivavoce_seams::{ErrorKind, ProviderError, TextStream, TtsEvent, TtsRequest, TtsStream};

/// The capacity of the event channel; a slow reader holds the vendor back.
const EVENTS_HELD: usize = 64;
/// A vendor that sends nothing for this long while audio is outstanding has failed: before the first of it, which a model
/// may think about, and after it, when somebody is hearing that.
pub const FIRST_SOUND: Duration = Duration::from_secs(5);
pub const STALLED: Duration = Duration::from_secs(3);
/// How long a cancelled utterance may take to end for its socket to be reused.
const CALLED_OFF: Duration = Duration::from_secs(2);

/// A vendor's synthesis protocol for one utterance: translates each step into messages. It does no I/O.
pub trait Protocol: Send + 'static {
    /// The utterance begins, on a new or a reused socket.
    fn begin(&mut self, io: &mut TtsIo<'_>);
    /// More of the text, never empty.
    fn text(&mut self, piece: &str, io: &mut TtsIo<'_>);
    /// The text is complete.
    fn end(&mut self, io: &mut TtsIo<'_>);
    /// Cancels the utterance. True where the vendor will confirm its end ([`Flow::Finished`]); otherwise the socket is
    /// closed.
    fn cancel(&mut self, _io: &mut TtsIo<'_>) -> bool {
        false
    }
    /// Whether messages name their utterance, so that the socket can be reused as soon as a cancellation is sent.
    fn marks_its_messages(&self) -> bool {
        false
    }
    /// Asked once the text is complete: whether all audio has arrived already, so that no message will say so.
    fn is_said(&self) -> bool {
        false
    }
    /// How much of the vendor's limit per socket this utterance has used, 0–1. A socket at its limit is not reused.
    fn wear(&self) -> f32 {
        0.0
    }
    /// Handles a message; [`Flow::Finished`] when all audio of the utterance has arrived. [`Received::Closed`] is the last.
    fn receive(&mut self, message: Received, io: &mut TtsIo<'_>) -> Result<Flow, ProviderError>;
}

/// A vendor's synthesis endpoint with its idle sockets.
#[derive(Debug)]
pub struct TtsEndpoint {
    /// Address, credential and connections.
    pub vendor: VendorEndpoint,
    pool: Pool,
    /// How long idle sockets are kept; `None` where a socket serves one utterance.
    idle: Option<Idle>,
}

/// One utterance.
pub struct Utterance<F> {
    /// The handshake of a new socket.
    pub handshake: Handshake,
    /// The fingerprint of the credential.
    pub credential: [u8; 32],
    /// The format of its audio.
    pub format: AudioFormat,
    /// Creates the protocol; called again when a reused socket turns out to be dead.
    pub protocol: F,
}

impl TtsEndpoint {
    /// `idle` is how long idle sockets are kept; `None` where a socket serves one utterance.
    pub fn new(vendor: VendorEndpoint, idle: Option<Idle>) -> Self {
        Self {
            vendor,
            pool: Pool::default(),
            idle,
        }
    }

    /// Starts an utterance. Failures are reported as events.
    pub fn speak<P: Protocol>(
        self: &Arc<Self>,
        utterance: Utterance<impl FnMut() -> P + Send + 'static>,
        request: &TtsRequest,
        text: TextStream,
    ) -> TtsStream {
        let format = utterance.format;
        let (events, said) = mpsc::channel(EVENTS_HELD);
        let speaking = Speaking {
            endpoint: Arc::clone(self),
            key: Key {
                url: utterance.handshake.url.to_string(),
                credential: utterance.credential,
            },
            handshake: utterance.handshake,
            patience: request.connection_timeout,
            party: request.party.clone(),
            text,
            taken: Vec::new(),
            text_ended: false,
            events,
            sounded: false,
        };
        tokio::spawn(speaking.run(utterance.protocol));
        let events = ReceiverStream::new(said).boxed();
        TtsStream { format, events }
    }
}

struct Speaking {
    endpoint: Arc<TtsEndpoint>,
    key: Key,
    handshake: Handshake,
    patience: Duration,
    party: Party,
    text: TextStream,
    /// The text so far, until the first audio: it is sent again when a reused socket is dead.
    taken: Vec<String>,
    text_ended: bool,
    events: mpsc::Sender<Result<TtsEvent, ProviderError>>,
    /// Whether audio has arrived.
    sounded: bool,
}

/// How an utterance has ended.
enum End {
    /// All audio has arrived.
    Said,
    /// The stream was dropped in the middle.
    Unwanted,
}

impl Speaking {
    async fn run<P: Protocol>(mut self, mut make: impl FnMut() -> P) {
        let outcome = self.say(&mut make).await;
        let last = match outcome {
            Ok(()) => Ok(TtsEvent::Done),
            Err(error) => Err(error),
        };
        // The receiver may be gone.
        let _ = self.events.send(last).await;
    }

    async fn say<P: Protocol>(
        &mut self,
        make: &mut impl FnMut() -> P,
    ) -> Result<(), ProviderError> {
        let endpoint = Arc::clone(&self.endpoint);
        let vendor = &endpoint.vendor;
        let _permit = vendor
            .permit(self.key.credential, &self.party, self.patience)
            .await?;
        if let Some(mut socket) = endpoint.pool.take(&self.key).await {
            let mut protocol = make();
            match self.converse(&mut socket, &mut protocol).await {
                Ok(end) => return self.settle(socket, protocol, end).await,
                Err(error) if self.sounded => return Err(error),
                Err(error) => {
                    tracing::debug!(provider = vendor.slug(), %error, "a warm connection was dead");
                }
            }
        }
        let mut socket = vendor.dial(self.handshake.clone(), self.patience).await?;
        let mut protocol = make();
        let end = self.converse(&mut socket, &mut protocol).await?;
        self.settle(socket, protocol, end).await
    }

    /// Sends all text and forwards all events.
    async fn converse(
        &mut self,
        socket: &mut Socket,
        protocol: &mut impl Protocol,
    ) -> Result<End, ProviderError> {
        let mut out = Outgoing::default();
        let mut said = Vec::new();
        let mut io = TtsIo {
            now: Instant::now(),
            out: &mut out,
            events: &mut said,
        };
        protocol.begin(&mut io);
        for piece in &self.taken {
            protocol.text(piece, &mut io);
        }
        if self.text_ended {
            protocol.end(&mut io);
        }
        let mut heard_of = Instant::now();
        loop {
            socket.send(&mut out).await?;
            if self.text_ended && protocol.is_said() {
                return Ok(End::Said);
            }
            let mut io = TtsIo {
                now: Instant::now(),
                out: &mut out,
                events: &mut said,
            };
            let patience = if self.sounded { STALLED } else { FIRST_SOUND };
            let flow = tokio::select! {
                biased;
                received = receive(socket.provider, &mut socket.stream) => {
                    heard_of = Instant::now();
                    match received? {
                        None => Flow::Continue,
                        Some(received) => self.received(received, protocol, &mut io)?,
                    }
                }
                () = self.events.closed() => return Ok(End::Unwanted),
                piece = self.text.next(), if !self.text_ended => {
                    match piece {
                        Some(piece) if piece.is_empty() => {}
                        Some(piece) => {
                            protocol.text(&piece, &mut io);
                            if !self.sounded {
                                self.taken.push(piece);
                            }
                        }
                        None => {
                            self.text_ended = true;
                            protocol.end(&mut io);
                        }
                    }
                    heard_of = Instant::now();
                    Flow::Continue
                }
                () = sleep_until(heard_of + patience), if self.text_ended => {
                    let problem = format!("sent nothing for {} s while audio was outstanding", patience.as_secs());
                    return Err(ProviderError::new(socket.provider, ErrorKind::Timeout, problem));
                }
            };
            for event in said.drain(..) {
                if matches!(event, TtsEvent::Audio(_)) {
                    self.sounded = true;
                    self.taken.clear();
                }
                if self.events.send(Ok(event)).await.is_err() {
                    return Ok(End::Unwanted);
                }
            }
            if flow == Flow::Finished {
                // Pending messages concern the state of the socket.
                socket.send(&mut out).await?;
                return Ok(End::Said);
            }
        }
    }

    fn received(
        &self,
        received: Received,
        protocol: &mut impl Protocol,
        io: &mut TtsIo<'_>,
    ) -> Result<Flow, ProviderError> {
        let closed = matches!(received, Received::Closed(_));
        let flow = protocol.receive(received, io)?;
        if closed && flow == Flow::Continue {
            let problem = "closed the connection before all audio was sent";
            return Err(ProviderError::new(
                self.endpoint.vendor.slug(),
                ErrorKind::Unavailable,
                problem,
            ));
        }
        Ok(flow)
    }

    /// Returns the socket to the pool, or closes it.
    async fn settle(
        &mut self,
        mut socket: Socket,
        mut protocol: impl Protocol,
        end: End,
    ) -> Result<(), ProviderError> {
        let reusable = match end {
            End::Said => true,
            End::Unwanted => call_off(&mut socket, &mut protocol).await,
        };
        socket.worn += protocol.wear();
        match self.endpoint.idle {
            Some(mut idle) if reusable && socket.worn < 1.0 => {
                idle.oldest = idle.oldest.min(self.endpoint.vendor.transport.oldest);
                self.endpoint.pool.put(self.key.clone(), socket, idle);
            }
            _ => {
                let mut out = Outgoing::default();
                out.close();
                // The utterance is complete, whatever becomes of the socket.
                let _ = socket.send(&mut out).await;
            }
        }
        Ok(())
    }
}

/// Cancels an utterance; true when the socket can be reused.
async fn call_off(socket: &mut Socket, protocol: &mut impl Protocol) -> bool {
    let mut out = Outgoing::default();
    let mut unheard = Vec::new();
    let mut io = TtsIo {
        now: Instant::now(),
        out: &mut out,
        events: &mut unheard,
    };
    if !protocol.cancel(&mut io) || socket.send(&mut out).await.is_err() {
        return false;
    }
    if protocol.marks_its_messages() {
        return true;
    }
    let ended = async {
        loop {
            let received = socket.receive().await.ok()?;
            let closed = matches!(received, Received::Closed(_));
            let mut io = TtsIo {
                now: Instant::now(),
                out: &mut out,
                events: &mut unheard,
            };
            let flow = protocol.receive(received, &mut io).ok()?;
            unheard.clear();
            match flow {
                _ if closed => return None,
                Flow::Finished => return Some(()),
                Flow::Continue => {}
            }
        }
    };
    tokio::time::timeout(CALLED_OFF, ended)
        .await
        .is_ok_and(|ended| ended.is_some())
}
