//! Runs a vendor's recognition protocol over a socket: collects audio into chunks of the vendor's preferred size, sends
//! keep-alives, detects dead connections, and ends the stream in the vendor's own way when the audio ends.

use std::future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_tungstenite::tungstenite::Message;

pub use super::protocol_io::SttIo;
use super::websocket::{Received, Socket, receive};
use super::{Outgoing, Permit};
use vivavoce_seams::{AudioSink, ErrorKind, ProviderError, SttEvent, SttInput, SttStream};

/// The capacity of the audio channel, in chunks.
const CHUNKS_HELD: usize = 64;
/// The capacity of the event channel.
const EVENTS_HELD: usize = 64;
/// Audio that does not fill a chunk is sent after this time.
const GATHERING: Duration = Duration::from_millis(200);
/// When a vendor that sends nothing is pinged, and when it is considered dead, as not even a pong has come.
struct Patience {
    quiet: Duration,
    gone: Duration,
}

/// While audio is sent: somebody may be speaking, and waits for an answer.
const SENDING: Patience = Patience {
    quiet: Duration::from_millis(1_500),
    gone: Duration::from_secs(3),
};
/// While none is.
const RESTING: Patience = Patience {
    quiet: Duration::from_secs(5),
    gone: Duration::from_secs(12),
};
/// Audio is sent as long as the last of it is not older.
const SENT_LATELY: Duration = Duration::from_secs(1);

/// Whether a stream continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// More messages are expected.
    Continue,
    /// The vendor has sent everything.
    Finished,
}

/// A vendor's recognition protocol: translates each step into messages. It does no I/O and reads no clock.
pub trait Protocol: Send + 'static {
    /// The socket is open.
    fn begin(&mut self, _io: &mut SttIo<'_>) {}
    /// Whether the vendor is ready for audio; it is held back until then.
    fn is_open(&self) -> bool {
        true
    }
    /// The preferred chunk size in bytes. Chunks are smaller at the end, and when little audio arrives.
    fn chunk_bytes(&self) -> usize;
    /// Sends audio, never empty.
    fn audio(&mut self, audio: Bytes, io: &mut SttIo<'_>);
    /// Requests a final of everything so far; the stream continues.
    fn finalize(&mut self, io: &mut SttIo<'_>);
    /// The audio has ended.
    fn end(&mut self, io: &mut SttIo<'_>);
    /// The interval of keep-alives.
    fn keep_alive(&self) -> Option<Duration> {
        None
    }
    /// Nothing was sent for [`Protocol::keep_alive`].
    fn idle(&mut self, _io: &mut SttIo<'_>) {}
    /// When [`Protocol::tick`] is due.
    fn deadline(&self) -> Option<Instant> {
        None
    }
    /// The deadline has come. An error ends the stream.
    fn tick(&mut self, _io: &mut SttIo<'_>) -> Result<Flow, ProviderError> {
        Ok(Flow::Continue)
    }
    /// Handles a message. [`Received::Closed`] is the last one and must not return [`Flow::Continue`].
    fn receive(&mut self, message: Received, io: &mut SttIo<'_>) -> Result<Flow, ProviderError>;
}

/// Starts the protocol on an open socket and, once the vendor is ready, runs it until the sink is dropped and the last
/// results have arrived, or until the events are dropped. The permit is held as long.
pub async fn open(
    socket: Socket,
    protocol: impl Protocol,
    permit: Permit,
) -> Result<SttStream, ProviderError> {
    let (sink, input) = AudioSink::channel(CHUNKS_HELD);
    let (events, heard) = mpsc::channel(EVENTS_HELD);
    let mut driver = Driver {
        socket,
        protocol,
        input,
        events,
        out: Outgoing::default(),
        heard: Vec::new(),
        gathered: BytesMut::new(),
        gathered_since: Instant::now(),
        ended: false,
        last_audio: None,
        last_sent: Instant::now(),
        last_received: Instant::now(),
        pinged: None,
    };
    driver.begin().await?;
    tokio::spawn(async move {
        let _permit = permit;
        driver.run().await;
    });
    let events = ReceiverStream::new(heard).boxed();
    Ok(SttStream { sink, events })
}

struct Driver<P> {
    socket: Socket,
    protocol: P,
    input: mpsc::Receiver<SttInput>,
    events: mpsc::Sender<Result<SttEvent, ProviderError>>,
    out: Outgoing,
    heard: Vec<SttEvent>,
    gathered: BytesMut,
    gathered_since: Instant,
    /// Whether the audio has ended.
    ended: bool,
    last_audio: Option<Instant>,
    last_sent: Instant,
    last_received: Instant,
    pinged: Option<Instant>,
}

enum Next {
    Received(Result<Option<Received>, ProviderError>),
    Input(Option<SttInput>),
    Deadline,
    Unwanted,
}

impl<P: Protocol> Driver<P> {
    /// Runs one step of the protocol.
    fn step<T>(&mut self, action: impl FnOnce(&mut P, &mut SttIo<'_>) -> T) -> T {
        let mut io = SttIo {
            now: Instant::now(),
            out: &mut self.out,
            events: &mut self.heard,
        };
        action(&mut self.protocol, &mut io)
    }

    /// The handshake of the protocol itself, without a timeout of its own.
    async fn begin(&mut self) -> Result<(), ProviderError> {
        self.step(P::begin);
        self.send().await?;
        while !self.protocol.is_open() {
            let received = receive(self.socket.provider, &mut self.socket.stream).await?;
            self.last_received = Instant::now();
            let Some(received) = received else { continue };
            if self.step(|protocol, io| protocol.receive(received, io))? == Flow::Finished {
                return Err(self.error(
                    ErrorKind::Unavailable,
                    "closed the stream before it was ready",
                ));
            }
            self.send().await?;
        }
        Ok(())
    }

    async fn run(mut self) {
        if let Err(error) = self.converse().await {
            // The receiver may be gone.
            let _ = self.events.send(Err(error)).await;
        }
        self.out.close();
        let _ = self.send().await;
    }

    async fn converse(&mut self) -> Result<(), ProviderError> {
        loop {
            let flow = match self.next().await {
                Next::Unwanted => return Ok(()),
                Next::Received(received) => self.received(received?)?,
                Next::Input(input) => self.take(input),
                Next::Deadline => self.tick()?,
            };
            self.send().await?;
            for event in self.heard.drain(..) {
                if self.events.send(Ok(event)).await.is_err() {
                    return Ok(());
                }
            }
            if flow == Flow::Finished {
                return Ok(());
            }
        }
    }

    async fn next(&mut self) -> Next {
        let deadline = self.deadline();
        tokio::select! {
            biased;
            received = receive(self.socket.provider, &mut self.socket.stream) => Next::Received(received),
            () = self.events.closed() => Next::Unwanted,
            () = sleep_until(deadline) => Next::Deadline,
            input = input(&mut self.input, self.ended) => Next::Input(input),
        }
    }

    fn received(&mut self, received: Option<Received>) -> Result<Flow, ProviderError> {
        self.last_received = Instant::now();
        self.pinged = None;
        match received {
            None => Ok(Flow::Continue),
            Some(received) => {
                let closed = matches!(received, Received::Closed(_));
                let flow = self.step(|protocol, io| protocol.receive(received, io))?;
                if closed && flow == Flow::Continue {
                    return Err(self.error(ErrorKind::Unavailable, "closed the connection"));
                }
                Ok(flow)
            }
        }
    }

    fn take(&mut self, input: Option<SttInput>) -> Flow {
        match input {
            Some(SttInput::Audio(audio)) if audio.is_empty() => {}
            Some(SttInput::Audio(audio)) => {
                self.last_audio = Some(Instant::now());
                self.gather(audio);
            }
            Some(SttInput::Finalize) => {
                self.send_gathered();
                self.step(P::finalize);
            }
            None => {
                self.ended = true;
                self.send_gathered();
                self.step(P::end);
            }
        }
        Flow::Continue
    }

    fn gather(&mut self, audio: Bytes) {
        let enough = self.protocol.chunk_bytes();
        if self.gathered.is_empty() && audio.len() >= enough {
            return self.step(|protocol, io| protocol.audio(audio, io));
        }
        if self.gathered.is_empty() {
            self.gathered_since = Instant::now();
        }
        self.gathered.extend_from_slice(&audio);
        if self.gathered.len() >= enough {
            self.send_gathered();
        }
    }

    fn send_gathered(&mut self) {
        if !self.gathered.is_empty() {
            let audio = self.gathered.split().freeze();
            self.step(|protocol, io| protocol.audio(audio, io));
        }
    }

    fn patience(&self, now: Instant) -> &'static Patience {
        let is_late = |at: &Instant| now.saturating_duration_since(*at) < SENT_LATELY;
        match self.last_audio.filter(is_late) {
            Some(_) => &SENDING,
            None => &RESTING,
        }
    }

    /// When the vendor is dead, if nothing comes before. A pong has as long as it has when a ping is sent in time: this
    /// task may have been late itself, and so may the audio after a pause.
    fn gone_at(&self, patience: &Patience) -> Option<Instant> {
        let after_ping = self.pinged? + (patience.gone - patience.quiet);
        Some(after_ping.max(self.last_received + patience.gone))
    }

    fn deadline(&self) -> Instant {
        let patience = self.patience(Instant::now());
        let quiet = self.last_received + patience.quiet;
        let dead = self.gone_at(patience).unwrap_or(quiet);
        let gathered = (!self.gathered.is_empty()).then(|| self.gathered_since + GATHERING);
        let idle = self.keep_alive().map(|bears| self.last_sent + bears);
        [gathered, idle, self.protocol.deadline()]
            .into_iter()
            .flatten()
            .fold(dead, Instant::min)
    }

    /// No keep-alives are sent after the audio has ended.
    fn keep_alive(&self) -> Option<Duration> {
        self.protocol.keep_alive().filter(|_| !self.ended)
    }

    fn tick(&mut self) -> Result<Flow, ProviderError> {
        let now = Instant::now();
        let patience = self.patience(now);
        if self.gone_at(patience).is_some_and(|at| now >= at) {
            return Err(self.error(ErrorKind::Timeout, "stopped responding"));
        }
        if now >= self.last_received + patience.quiet && self.pinged.is_none() {
            self.pinged = Some(now);
            self.out.ping();
        }
        if now >= self.gathered_since + GATHERING {
            self.send_gathered();
        }
        if self
            .keep_alive()
            .is_some_and(|bears| now >= self.last_sent + bears)
        {
            self.step(P::idle);
            self.last_sent = now;
        }
        if self.protocol.deadline().is_some_and(|due| now >= due) {
            return self.step(P::tick);
        }
        Ok(Flow::Continue)
    }

    async fn send(&mut self) -> Result<(), ProviderError> {
        let messages = self.out.take();
        if messages.is_empty() {
            return Ok(());
        }
        // A ping does not count as a keep-alive.
        if messages
            .iter()
            .any(|message| !matches!(message, Message::Ping(_)))
        {
            self.last_sent = Instant::now();
        }
        self.socket.sink.send(messages).await
    }

    fn error(&self, kind: ErrorKind, message: &str) -> ProviderError {
        ProviderError::new(self.socket.provider, kind, message)
    }
}

async fn input(input: &mut mpsc::Receiver<SttInput>, ended: bool) -> Option<SttInput> {
    if ended {
        future::pending::<()>().await;
    }
    input.recv().await
}
