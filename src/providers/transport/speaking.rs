//! Runs a vendor's synthesis protocol over a socket: dials or takes a warm socket, sends the text as it comes, tells audio
//! and words as they come, and keeps the socket for the next utterance. An utterance that nobody wants any more is called
//! off in the vendor's own way.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

pub use super::hearing::Flow;
pub use super::pool::{Idle, Key, Pool};
use super::websocket::{Handshake, Received, Socket, receive};
use super::{Outgoing, Permits, Transport};
use vivavoce_audio::format::AudioFormat;
use vivavoce_quotas::Party;
use vivavoce_seams::{ErrorKind, ProviderError, TextStream, TtsEvent, TtsRequest, TtsStream};

/// Events that may wait for the listener: sound beyond them waits at the vendor.
const EVENTS_HELD: usize = 64;
/// A vendor that owes sound and says nothing for so long has failed.
const STALLED: Duration = Duration::from_secs(8);
/// How long an utterance that was called off may take to end, so that its socket can be used again.
const CALLED_OFF: Duration = Duration::from_secs(2);

/// What a protocol works with.
pub struct Act<'a> {
    /// What shall be sent.
    pub out: &'a mut Outgoing,
    /// What has come.
    pub events: &'a mut Vec<TtsEvent>,
}

/// A vendor's synthesis protocol for one utterance: what each step means in messages. It does no I/O.
pub trait Protocol: Send + 'static {
    /// The utterance begins, on a new socket or on one that has been used.
    fn begin(&mut self, act: &mut Act<'_>);
    /// More of the text, never empty.
    fn text(&mut self, piece: &str, act: &mut Act<'_>);
    /// The text is complete.
    fn end(&mut self, act: &mut Act<'_>);
    /// The utterance is not wanted any more. True where the vendor will say that it has ended
    /// ([`Flow::Finished`]); else the socket is closed.
    fn cancel(&mut self, _act: &mut Act<'_>) -> bool {
        false
    }
    /// Whether the socket can be used again as soon as the vendor was told of a call-off: what it still says of this
    /// utterance is known by its mark.
    fn marks_its_messages(&self) -> bool {
        false
    }
    /// Asked once the text is complete: whether all of its sound has come, so that no message will tell.
    fn is_said(&self) -> bool {
        false
    }
    /// The share of what one socket may be asked for that this utterance has used: a socket that is used up is not kept.
    fn wear(&self) -> f32 {
        0.0
    }
    /// A message has come; [`Flow::Finished`] when all of the utterance's sound has. [`Received::Closed`] is the last one.
    fn receive(&mut self, message: Received, act: &mut Act<'_>) -> Result<Flow, ProviderError>;
}

/// What the utterances of one vendor share.
#[derive(Debug)]
pub struct Line {
    /// Its slug.
    pub provider: &'static str,
    /// How it is reached.
    pub transport: Transport,
    /// Its warm sockets.
    pub pool: Pool,
    /// How long they stay so; `None` for a vendor whose sockets say one utterance.
    pub idle: Option<Idle>,
    /// How many sockets a credential may have in use.
    pub permits: Permits,
    /// What a refused handshake means.
    pub refused: fn(&super::Refusal) -> ProviderError,
}

/// One utterance.
pub struct Utterance<F> {
    /// Where and how to knock.
    pub handshake: Handshake,
    /// Whose credential is used.
    pub credential: [u8; 32],
    /// The format of its sound.
    pub format: AudioFormat,
    /// Makes its protocol; once more when a warm socket turns out to be dead.
    pub protocol: F,
}

impl Line {
    /// Says an utterance. Failures come with the sound.
    pub fn speak<P: Protocol>(
        self: &Arc<Self>,
        utterance: Utterance<impl FnMut() -> P + Send + 'static>,
        request: &TtsRequest,
        text: TextStream,
    ) -> TtsStream {
        let format = utterance.format;
        let (events, said) = mpsc::channel(EVENTS_HELD);
        let speaking = Speaking {
            line: Arc::clone(self),
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
    line: Arc<Line>,
    key: Key,
    handshake: Handshake,
    patience: Duration,
    party: Party,
    text: TextStream,
    /// What the text has brought so far, until there is sound: a dead socket's text is said again.
    taken: Vec<String>,
    text_ended: bool,
    events: mpsc::Sender<Result<TtsEvent, ProviderError>>,
    /// Whether something was heard of the utterance.
    sounded: bool,
}

/// How a conversation over one socket ended well.
enum End {
    /// Everything was said.
    Said,
    /// Nobody wants the rest, and the socket is in the middle of it.
    Unwanted,
}

impl Speaking {
    async fn run<P: Protocol>(mut self, mut make: impl FnMut() -> P) {
        let outcome = self.say(&mut make).await;
        let last = match outcome {
            Ok(()) => Ok(TtsEvent::Done),
            Err(error) => Err(error),
        };
        // Nobody may be left to hear it.
        let _ = self.events.send(last).await;
    }

    async fn say<P: Protocol>(
        &mut self,
        make: &mut impl FnMut() -> P,
    ) -> Result<(), ProviderError> {
        let line = Arc::clone(&self.line);
        let _permit = line
            .permits
            .acquire(self.key.credential, &self.party, self.patience)
            .await?;
        if let Some(mut socket) = line.pool.take(&self.key).await {
            let mut protocol = make();
            match self.converse(&mut socket, &mut protocol).await {
                Ok(end) => return self.settle(socket, protocol, end).await,
                Err(error) if self.sounded => return Err(error),
                Err(error) => {
                    tracing::debug!(provider = line.provider, %error, "a warm connection was dead");
                }
            }
        }
        let dialled = line
            .transport
            .dial(line.provider, self.handshake.clone(), self.patience)
            .await;
        let mut socket = dialled.map_err(|error| error.read(line.refused))?;
        let mut protocol = make();
        let end = self.converse(&mut socket, &mut protocol).await?;
        self.settle(socket, protocol, end).await
    }

    /// Lets the vendor say all of the text.
    async fn converse(
        &mut self,
        socket: &mut Socket,
        protocol: &mut impl Protocol,
    ) -> Result<End, ProviderError> {
        let mut out = Outgoing::default();
        let mut said = Vec::new();
        let mut act = Act {
            out: &mut out,
            events: &mut said,
        };
        protocol.begin(&mut act);
        for piece in &self.taken {
            protocol.text(piece, &mut act);
        }
        if self.text_ended {
            protocol.end(&mut act);
        }
        let mut heard_of = Instant::now();
        loop {
            socket.send(&mut out).await?;
            if self.text_ended && protocol.is_said() {
                return Ok(End::Said);
            }
            let mut act = Act {
                out: &mut out,
                events: &mut said,
            };
            let flow = tokio::select! {
                biased;
                received = receive(socket.provider, &mut socket.stream) => {
                    heard_of = Instant::now();
                    match received? {
                        None => Flow::Continue,
                        Some(received) => self.received(received, protocol, &mut act)?,
                    }
                }
                () = self.events.closed() => return Ok(End::Unwanted),
                piece = self.text.next(), if !self.text_ended => {
                    match piece {
                        Some(piece) if piece.is_empty() => {}
                        Some(piece) => {
                            protocol.text(&piece, &mut act);
                            if !self.sounded {
                                self.taken.push(piece);
                            }
                        }
                        None => {
                            self.text_ended = true;
                            protocol.end(&mut act);
                        }
                    }
                    heard_of = Instant::now();
                    Flow::Continue
                }
                () = sleep_until(heard_of + STALLED), if self.text_ended => {
                    let problem = format!("owes sound and has said nothing for {} s", STALLED.as_secs());
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
                // What is left to send is for the next utterance's sake.
                socket.send(&mut out).await?;
                return Ok(End::Said);
            }
        }
    }

    fn received(
        &self,
        received: Received,
        protocol: &mut impl Protocol,
        act: &mut Act<'_>,
    ) -> Result<Flow, ProviderError> {
        let closed = matches!(received, Received::Closed(_));
        let flow = protocol.receive(received, act)?;
        if closed && flow == Flow::Continue {
            let problem = "has closed the connection before everything was said";
            return Err(ProviderError::new(
                self.line.provider,
                ErrorKind::Unavailable,
                problem,
            ));
        }
        Ok(flow)
    }

    /// What becomes of the socket.
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
        match self.line.idle {
            Some(mut idle) if reusable && socket.worn < 1.0 => {
                idle.oldest = idle.oldest.min(self.line.transport.oldest);
                self.line.pool.put(self.key.clone(), socket, idle);
            }
            _ => {
                let mut out = Outgoing::default();
                out.close();
                // Everything was said.
                let _ = socket.send(&mut out).await;
            }
        }
        Ok(())
    }
}

/// Ends an utterance early; true when the socket is free again.
async fn call_off(socket: &mut Socket, protocol: &mut impl Protocol) -> bool {
    let mut out = Outgoing::default();
    let mut unheard = Vec::new();
    let mut act = Act {
        out: &mut out,
        events: &mut unheard,
    };
    if !protocol.cancel(&mut act) || socket.send(&mut out).await.is_err() {
        return false;
    }
    if protocol.marks_its_messages() {
        return true;
    }
    let ended = async {
        loop {
            let received = socket.receive().await.ok()?;
            let closed = matches!(received, Received::Closed(_));
            let mut act = Act {
                out: &mut out,
                events: &mut unheard,
            };
            let flow = protocol.receive(received, &mut act).ok()?;
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
