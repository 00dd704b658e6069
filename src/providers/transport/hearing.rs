//! Runs a vendor's recognition protocol over a socket: gathers sound to the chunks that the vendor likes, keeps the
//! connection alive, finds out when it is dead, and ends the stream in the vendor's own way when the sound ends.

use std::future;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_tungstenite::tungstenite::Message;

use super::websocket::{Received, Socket, receive};
use super::{Outgoing, Permit};
use vivavoce_seams::{AudioSink, ErrorKind, ProviderError, SttEvent, SttInput, SttStream};

/// Chunks of sound that may wait for the driver.
const CHUNKS_HELD: usize = 64;
/// Events that may wait for the listener.
const EVENTS_HELD: usize = 64;
/// Sound that is too little for the vendor's chunk is sent after so long.
const GATHERING: Duration = Duration::from_millis(200);
/// A vendor that has said nothing for so long is pinged.
const QUIET: Duration = Duration::from_secs(5);
/// One that has not even answered the ping after so long is gone.
const GONE: Duration = Duration::from_secs(12);

/// What a protocol works with.
pub struct Act<'a> {
    /// The time.
    pub now: Instant,
    /// What shall be sent.
    pub out: &'a mut Outgoing,
    /// What was heard.
    pub events: &'a mut Vec<SttEvent>,
}

/// Whether a stream goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// More may come.
    Continue,
    /// Everything that was due has come.
    Finished,
}

/// A vendor's recognition protocol: what each step means in messages. It does no I/O and knows no clock.
pub trait Protocol: Send + 'static {
    /// The socket has been opened.
    fn begin(&mut self, _act: &mut Act<'_>) {}
    /// Whether the vendor has said that it listens; sound waits until then.
    fn is_open(&self) -> bool {
        true
    }
    /// Bytes of sound that are sent at once; less at the end, and when little comes.
    fn chunk_bytes(&self) -> usize;
    /// Sound, never empty.
    fn audio(&mut self, audio: Bytes, act: &mut Act<'_>);
    /// What was heard so far shall become final; the stream goes on.
    fn finalize(&mut self, act: &mut Act<'_>);
    /// There will be no more sound.
    fn end(&mut self, act: &mut Act<'_>);
    /// How long the vendor bears to be sent nothing.
    fn keep_alive(&self) -> Option<Duration> {
        None
    }
    /// Nothing was sent for [`Protocol::keep_alive`].
    fn idle(&mut self, _act: &mut Act<'_>) {}
    /// When [`Protocol::tick`] is due.
    fn deadline(&self) -> Option<Instant> {
        None
    }
    /// The deadline has come. An error ends the stream.
    fn tick(&mut self, _act: &mut Act<'_>) -> Result<Flow, ProviderError> {
        Ok(Flow::Continue)
    }
    /// A message has come; [`Received::Closed`] is the last one, and must not be answered by [`Flow::Continue`].
    fn receive(&mut self, message: Received, act: &mut Act<'_>) -> Result<Flow, ProviderError>;
}

/// Begins the protocol on an open socket and, once the vendor listens, lets it run until the sink is dropped and the
/// last words have come, or until the events are dropped. The permit is held as long.
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
        last_sent: Instant::now(),
        last_received: Instant::now(),
        pinged: false,
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
    /// Whether the sound has ended.
    ended: bool,
    last_sent: Instant,
    last_received: Instant,
    pinged: bool,
}

/// What happens next.
enum Next {
    Received(Result<Option<Received>, ProviderError>),
    Input(Option<SttInput>),
    Deadline,
    Unwanted,
}

impl<P: Protocol> Driver<P> {
    /// Lets the protocol do something.
    fn act<T>(&mut self, step: impl FnOnce(&mut P, &mut Act<'_>) -> T) -> T {
        let mut act = Act {
            now: Instant::now(),
            out: &mut self.out,
            events: &mut self.heard,
        };
        step(&mut self.protocol, &mut act)
    }

    /// The handshake of the protocol itself. How long it may take is its caller's patience.
    async fn begin(&mut self) -> Result<(), ProviderError> {
        self.act(P::begin);
        self.send().await?;
        while !self.protocol.is_open() {
            let received = receive(self.socket.provider, &mut self.socket.stream).await?;
            self.last_received = Instant::now();
            let Some(received) = received else { continue };
            if self.act(|protocol, act| protocol.receive(received, act))? == Flow::Finished {
                return Err(self.error(ErrorKind::Unavailable, "ended before it had begun"));
            }
            self.send().await?;
        }
        Ok(())
    }

    async fn run(mut self) {
        if let Err(error) = self.converse().await {
            // Nobody may be left to hear it.
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
        self.pinged = false;
        match received {
            None => Ok(Flow::Continue),
            Some(received) => {
                let closed = matches!(received, Received::Closed(_));
                let flow = self.act(|protocol, act| protocol.receive(received, act))?;
                if closed && flow == Flow::Continue {
                    return Err(self.error(ErrorKind::Unavailable, "has closed the connection"));
                }
                Ok(flow)
            }
        }
    }

    fn take(&mut self, input: Option<SttInput>) -> Flow {
        match input {
            Some(SttInput::Audio(audio)) if audio.is_empty() => {}
            Some(SttInput::Audio(audio)) => self.gather(audio),
            Some(SttInput::Finalize) => {
                self.send_gathered();
                self.act(P::finalize);
            }
            None => {
                self.ended = true;
                self.send_gathered();
                self.act(P::end);
            }
        }
        Flow::Continue
    }

    fn gather(&mut self, audio: Bytes) {
        let enough = self.protocol.chunk_bytes();
        if self.gathered.is_empty() && audio.len() >= enough {
            return self.act(|protocol, act| protocol.audio(audio, act));
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
            self.act(|protocol, act| protocol.audio(audio, act));
        }
    }

    fn deadline(&self) -> Instant {
        let patience = if self.pinged { GONE } else { QUIET };
        let gathered = (!self.gathered.is_empty()).then(|| self.gathered_since + GATHERING);
        let idle = self.keep_alive().map(|bears| self.last_sent + bears);
        [gathered, idle, self.protocol.deadline()]
            .into_iter()
            .flatten()
            .fold(self.last_received + patience, Instant::min)
    }

    /// After the sound has ended the vendor is not kept waiting any more.
    fn keep_alive(&self) -> Option<Duration> {
        self.protocol.keep_alive().filter(|_| !self.ended)
    }

    fn tick(&mut self) -> Result<Flow, ProviderError> {
        let now = Instant::now();
        if now >= self.last_received + GONE {
            return Err(self.error(ErrorKind::Timeout, "does not answer any more"));
        }
        if now >= self.last_received + QUIET && !self.pinged {
            self.pinged = true;
            self.out.ping();
        }
        if now >= self.gathered_since + GATHERING {
            self.send_gathered();
        }
        if self
            .keep_alive()
            .is_some_and(|bears| now >= self.last_sent + bears)
        {
            self.act(P::idle);
            self.last_sent = now;
        }
        if self.protocol.deadline().is_some_and(|due| now >= due) {
            return self.act(P::tick);
        }
        Ok(Flow::Continue)
    }

    async fn send(&mut self) -> Result<(), ProviderError> {
        let messages = self.out.take();
        if messages.is_empty() {
            return Ok(());
        }
        // A ping is for us, not for the vendor's patience.
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
