//! What the streams of the recognisers in worker processes share: how one is opened and ends, and its sound, cut into
//! utterances. How an utterance is heard is each recogniser's own.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use super::SLUG;
use super::utterance::{Cut, UtteranceCutter};
use super::workers::{Protocol, Shared};
use vivavoce_audio::linear16;
use vivavoce_seams::{AudioSink, ErrorKind, ProviderError, SttEvent, SttInput, SttStream};

/// Chunks that wait on their way up: 2.5 s of the usual 20 ms.
const SINK_CHUNKS: usize = 128;
/// Events that wait to be read. Partials beyond are skipped; finals wait for room.
const EVENTS: usize = 32;
/// More chunks than this wait only where sound comes faster than it is spoken.
const BEHIND: usize = 8;

/// Where the events of a stream go.
pub type Events = mpsc::Sender<Result<SttEvent, ProviderError>>;

/// Opens a stream. `session` serves it, until its input ends, nobody reads its events, or the pool is closed.
pub fn open<P, S>(
    pool: Arc<Shared<P>>,
    session: impl FnOnce(mpsc::Receiver<SttInput>, Events) -> S,
) -> SttStream
where
    P: Protocol,
    S: Future<Output = ()> + Send + 'static,
{
    pool.keep_one_warm();
    let (sink, input) = AudioSink::channel(SINK_CHUNKS);
    let (events, received) = mpsc::channel(EVENTS);
    let session = session(input, events.clone());
    let serve = async move {
        tokio::select! {
            () = session => {}
            () = events.closed() => {}
            () = pool.closed() => {
                let error = ProviderError::new(SLUG, ErrorKind::Unavailable, "the recogniser was shut down");
                // Best effort: a reader that is behind sees the end of the events.
                let _ = events.try_send(Err(error));
            }
        }
        // An utterance that was left in its middle may have cost its worker.
        pool.keep_one_warm();
    };
    tokio::spawn(serve.in_current_span());
    SttStream {
        sink,
        events: Box::pin(ReceiverStream::new(received)),
    }
}

/// The sound of a stream, cut.
pub struct Cuts {
    input: mpsc::Receiver<SttInput>,
    cutter: UtteranceCutter,
    waiting: VecDeque<Cut>,
    input_ended: bool,
}

impl Cuts {
    /// The cuts of this cutter.
    pub fn new(input: mpsc::Receiver<SttInput>, cutter: UtteranceCutter) -> Self {
        Self {
            input,
            cutter,
            waiting: VecDeque::new(),
            input_ended: false,
        }
    }

    /// The next cut; `None` at the end of the input. Cancel-safe.
    pub async fn next(&mut self) -> Option<Cut> {
        loop {
            if let Some(cut) = self.waiting.pop_front() {
                return Some(cut);
            }
            if self.input_ended {
                return None;
            }
            match self.input.recv().await {
                Some(SttInput::Audio(bytes)) => {
                    self.cutter
                        .push(&linear16::samples(&bytes), &mut self.waiting);
                }
                Some(SttInput::Finalize) => self.cutter.finish(&mut self.waiting),
                None => {
                    self.input_ended = true;
                    self.cutter.finish(&mut self.waiting);
                }
            }
        }
    }

    /// For how long nobody had spoken at the end of the last cut, in samples.
    pub fn quiet(&self) -> usize {
        let waiting = self.waiting.iter().map(|cut| match cut {
            Cut::Audio(samples) => samples.len(),
            Cut::Begin(_) | Cut::End(_) => 0,
        });
        self.cutter.quiet().saturating_sub(waiting.sum())
    }

    /// Whether sound comes faster than it is spoken, or the stream is behind.
    pub fn is_behind(&self) -> bool {
        self.input.len() > BEHIND
    }
}
