//! Hearing: one life of one recogniser's stream. The actor opens the stream, sends it the sound of a [`Feed`], reports
//! what comes back, and ends with the stream. It never dials again: the session, which supervises it, makes the next
//! life over the same feed, and that replays what no final has covered. A drop and a panic are the same to it.
//!
//! Sound goes past the mailbox: [`Feed`] is written by plain calls, also to [finalize](Feed::finalize) and to
//! [end](Feed::end), which must keep their place in it. Only one life may use a feed at a time.
//!
//! Where the provider limits its streams, the actor changes to a new one within its life: at a pause late in the old
//! one, whose last finals are reported before the new one hears anything.

pub mod feed;
#[cfg(test)]
mod tests;
mod timeline;

use std::cell::{Cell, RefCell};
use std::future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, Recipient, WeakAddr};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

pub use feed::{Feed, LIMIT, LIMIT_WHILE_CONFIGURED};

use feed::Upload;
use vivavoce_audio::companding::Law;
use vivavoce_audio::{Encoding, Resampler, linear16};
use vivavoce_seams::{
    AudioSink, ErrorKind, ProviderError, SpeechToText, SttEvent, SttRequest, SttStream, Transcript,
};
use vivavoce_telemetry::metrics::{self, Task};

/// How long opening a stream may take.
const OPENING: Duration = Duration::from_secs(10);
/// How long it may take where another recogniser stands by.
const OPENING_WITH_FALLBACK: Duration = Duration::from_secs(3);
/// How long a recogniser may refuse sound.
const SENDING: Duration = Duration::from_secs(20);
/// How long a recogniser has for its last finals.
const LAST_FINALS: Duration = Duration::from_secs(5);
/// No recogniser needs longer to transcribe what it was sent.
const TRANSCRIBED_WITHIN: Duration = Duration::from_secs(5);
/// A stream is left at the latest so long before the provider's limit.
const BEFORE_LIMIT: Duration = Duration::from_secs(2);
/// The share of the limit after which it is left at a pause.
const LATE: f64 = 0.8;

/// What one life has to say. They come in order; each is handled before the next is sent.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SttReport {
    /// Which life: the number that [`SttActor::new`] was given.
    pub life: u32,
    /// What there is to say.
    pub news: SttNews,
}

/// The news of a life: `Opened` at most once and first, `Stopped` exactly once and last.
#[derive(Debug)]
pub enum SttNews {
    /// The stream is open; what the feed has kept is on its way.
    Opened,
    /// What was heard, the words at their places in the session's audio.
    Heard(SttEvent),
    /// The life is over: `Ok` after [`Feed::end`], else why.
    Stopped(Result<(), ProviderError>),
}

/// Ends a life at once, with its stream. Dropping the actor's address does the same.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// One life of a recogniser's stream.
pub struct SttActor {
    /// What to start with, until it has started.
    life: Option<Life>,
    /// An actor's own futures would keep it alive without an address; a task ends with it.
    task: Option<AbortOnDropHandle<()>>,
}

impl SttActor {
    /// A life that has not begun. `request` asks for linear16, mulaw or alaw, mono, at a rate that the provider takes;
    /// `life` numbers its reports. The life before it over the same feed must have reported [`SttNews::Stopped`].
    pub fn new(
        provider: Arc<dyn SpeechToText>,
        request: SttRequest,
        feed: Feed,
        report: Recipient<SttReport>,
        life: u32,
    ) -> Self {
        let life = Life {
            provider,
            request,
            feed,
            report,
            number: life,
            opening: OPENING,
            resampler: RefCell::default(),
            final_asked: Cell::new(None),
            has_final: Cell::new(false),
        };
        Self {
            life: Some(life),
            task: None,
        }
    }
}

impl SttActor {
    /// Somebody else stands by: opening may not take long.
    pub fn with_fallback(mut self) -> Self {
        if let Some(life) = &mut self.life {
            life.opening = OPENING_WITH_FALLBACK;
        }
        self
    }
}

impl Actor for SttActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        if let Some(life) = self.life.take() {
            let live = life.live(context.address().downgrade());
            let task = tokio::task::spawn_local(live.in_current_span());
            self.task = Some(AbortOnDropHandle::new(task));
        }
    }
}

impl Handler<Stop> for SttActor {
    type Result = ();

    fn handle(&mut self, _: Stop, context: &mut Context<Self>) {
        context.stop();
    }
}

type Events = BoxStream<'static, Result<SttEvent, ProviderError>>;

/// What a life is made of.
struct Life {
    provider: Arc<dyn SpeechToText>,
    request: SttRequest,
    feed: Feed,
    report: Recipient<SttReport>,
    number: u32,
    /// How long opening may take.
    opening: Duration,
    /// From the feed's rate to the one of the request, where they differ.
    resampler: RefCell<Option<Resampler>>,
    /// When the final was asked for that has not come yet.
    final_asked: Cell<Option<Instant>>,
    /// There has been a final since the last end of speech.
    has_final: Cell<bool>,
}

/// Why no more sound goes up.
enum Uplink {
    /// All of it was sent.
    Done,
    /// The provider's limit is near.
    NearLimit,
    /// The recogniser takes no more; its events say why.
    Refused,
}

/// Tells the supervisor, however a life ends.
struct Farewell {
    outcome: Result<(), ProviderError>,
    feed: Feed,
    report: Recipient<SttReport>,
    number: u32,
    actor: WeakAddr<SttActor>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        if outcome.is_err() {
            self.feed.interrupt();
        }
        // Past the mailbox's capacity: a supervisor that misses this stays deaf, and it is one message a life.
        self.report.do_send(SttReport {
            life: self.number,
            news: SttNews::Stopped(outcome),
        });
        if let Some(actor) = self.actor.upgrade() {
            actor.do_send(Stop);
        }
    }
}

impl Life {
    async fn live(self, actor: WeakAddr<SttActor>) {
        let mut farewell = Farewell {
            outcome: Err(self.error(ErrorKind::Unavailable, "the recogniser's task has ended")),
            feed: self.feed.clone(),
            report: self.report.clone(),
            number: self.number,
            actor,
        };
        farewell.outcome = tokio::select! {
            outcome = self.streams() => outcome,
            () = self.patience_after_end() => Ok(()),
        };
        if let Err(error) = &farewell.outcome {
            metrics::provider_failed(error);
        }
    }

    async fn patience_after_end(&self) {
        self.feed.ended().await;
        sleep(LAST_FINALS).await;
    }

    /// One stream after the other, until the sound ends.
    async fn streams(&self) -> Result<(), ProviderError> {
        let mut stream = self.open().await?;
        self.tell(SttNews::Opened).await?;
        while let Some(next) = self.converse(stream).await? {
            stream = next;
        }
        Ok(())
    }

    async fn open(&self) -> Result<SttStream, ProviderError> {
        let late = |_| self.error(ErrorKind::Timeout, "opening a stream took too long");
        let asked = Instant::now();
        let opening = self.provider.open(self.request.clone());
        let stream = timeout(self.opening, opening).await.map_err(late)??;
        metrics::provider_began(Task::Stt, self.provider.slug(), asked.elapsed());
        Ok(stream)
    }

    /// Serves one stream to its end; gives the next one if the sound goes on.
    async fn converse(&self, stream: SttStream) -> Result<Option<SttStream>, ProviderError> {
        self.feed.rewind();
        self.has_final.set(false);
        let (from, to) = (self.feed.layout(), self.request.format.layout);
        *self.resampler.borrow_mut() = (from != to).then(|| Resampler::new(from, to.rate));
        let uplink = self.uplink(stream.sink);
        let mut downlink = pin!(self.downlink(stream.events));
        let uplink = tokio::select! {
            biased;
            ended = &mut downlink => return Err(self.why(ended)),
            uplink = uplink => uplink?,
        };
        match uplink {
            // How long that may take is bounded with the life.
            Uplink::Done => downlink.await.map(|()| None),
            Uplink::Refused => Err(self.why(self.last_finals(downlink).await)),
            Uplink::NearLimit => {
                let (ended, next) = tokio::join!(self.last_finals(downlink), self.open());
                match ended {
                    Ok(()) => self.feed.acknowledge(self.feed.sent()),
                    Err(error) => {
                        tracing::warn!(%error, "the next stream hears the end of the last one again");
                    }
                }
                next.map(Some)
            }
        }
    }

    async fn last_finals(
        &self,
        downlink: impl Future<Output = Result<(), ProviderError>>,
    ) -> Result<(), ProviderError> {
        let late = |_| self.error(ErrorKind::Timeout, "the recogniser does not come to an end");
        timeout(LAST_FINALS, downlink).await.map_err(late)?
    }

    /// Sends what the feed has.
    async fn uplink(&self, sink: AudioSink) -> Result<Uplink, ProviderError> {
        let opened = Instant::now();
        let limit = self.provider.accepts().stream_limit;
        let mut last_moment = pin!(async {
            match limit {
                Some(limit) => sleep(limit - BEFORE_LIMIT.min(limit / 5)).await,
                None => future::pending().await,
            }
        });
        loop {
            let upload = tokio::select! {
                biased;
                () = &mut last_moment => return Ok(Uplink::NearLimit),
                upload = self.feed.next() => upload,
            };
            if matches!(upload, Upload::Finalize | Upload::End) {
                self.final_asked.set(Some(Instant::now()));
            }
            if !self.send(&sink, &upload).await? {
                return Ok(Uplink::Refused);
            }
            if matches!(upload, Upload::End) {
                return Ok(Uplink::Done);
            }
            let late = limit.is_some_and(|limit| opened.elapsed() >= limit.mul_f64(LATE));
            if late && self.feed.is_silent() {
                return Ok(Uplink::NearLimit);
            }
        }
    }

    /// Whether the recogniser has taken it.
    async fn send(&self, sink: &AudioSink, upload: &Upload) -> Result<bool, ProviderError> {
        let sent = match upload {
            Upload::Sound(chunk) => timeout(SENDING, sink.send(self.converted(&chunk.sound))).await,
            Upload::Finalize => timeout(SENDING, sink.finalize()).await,
            Upload::End => return Ok(true),
        };
        let sent = sent.map_err(|_| {
            self.error(
                ErrorKind::Timeout,
                "the recogniser has stopped taking sound",
            )
        })?;
        if let (Ok(()), Upload::Sound(chunk)) = (&sent, upload) {
            self.feed.accepted(chunk);
        }
        Ok(sent.is_ok())
    }

    /// The feed's linear16 in the format of the request.
    fn converted(&self, sound: &Bytes) -> Bytes {
        let law = match self.request.format.encoding {
            Encoding::Mulaw => Some(Law::Mu),
            Encoding::Alaw => Some(Law::A),
            _ => None,
        };
        let mut resampler = self.resampler.borrow_mut();
        if law.is_none() && resampler.is_none() {
            return sound.clone();
        }
        let mut samples = linear16::samples(sound);
        if let Some(resampler) = resampler.as_mut() {
            let mut resampled = Vec::new();
            resampler.push(&samples, &mut resampled);
            samples = resampled;
        }
        match law {
            Some(law) => {
                let mut codes = Vec::with_capacity(samples.len());
                law.compress(&samples, &mut codes);
                codes.into()
            }
            None => linear16::encode(&samples),
        }
    }

    /// Reports what comes back, until the events end.
    async fn downlink(&self, mut events: Events) -> Result<(), ProviderError> {
        let mut owes_final = false;
        while let Some(event) = events.next().await {
            let mut event = event?;
            if let SttEvent::Partial(heard) | SttEvent::Final(heard) = &mut event {
                self.feed.place_words(heard);
            }
            self.count(&event);
            let covered = self.covered(&event, &mut owes_final);
            // Only what has arrived counts as heard: a life that ends in between leaves it to the next.
            self.tell(SttNews::Heard(event)).await?;
            if let Some(until) = covered {
                self.feed.acknowledge(until);
            }
        }
        Ok(())
    }

    fn count(&self, event: &SttEvent) {
        match event {
            SttEvent::Final(_) => {
                if let Some(asked) = self.final_asked.take() {
                    metrics::provider_finished(Task::Stt, self.provider.slug(), asked.elapsed());
                }
            }
            SttEvent::UtteranceLost(error) => metrics::provider_failed(error),
            SttEvent::Partial(_) | SttEvent::EndOfSpeech => {}
        }
    }

    /// Up to where the session's audio need not be heard again.
    fn covered(&self, event: &SttEvent, owes_final: &mut bool) -> Option<Duration> {
        match event {
            SttEvent::Partial(heard) => {
                *owes_final = !heard.text.is_empty();
                if *owes_final {
                    self.feed.recogniser_hears_speech();
                }
                None
            }
            SttEvent::Final(heard) => {
                *owes_final = false;
                self.has_final.set(true);
                end_of(heard).or_else(|| self.surely_transcribed())
            }
            SttEvent::UtteranceLost(_) => {
                *owes_final = false;
                Some(self.feed.latest_pause().unwrap_or_else(|| self.feed.sent()))
            }
            SttEvent::EndOfSpeech if *owes_final => None,
            // The final has covered what it ends; what was said since is still on its way.
            SttEvent::EndOfSpeech if self.has_final.take() => None,
            SttEvent::EndOfSpeech => self.feed.latest_pause(),
        }
    }

    /// What a final covers that does not say where it ends. More has been sent meanwhile, which must not count as
    /// transcribed: rather than too much, some of it is heard again after a drop.
    fn surely_transcribed(&self) -> Option<Duration> {
        self.feed
            .end_of_utterance(Instant::now().checked_sub(TRANSCRIBED_WITHIN))
    }

    /// Waits until the supervisor has handled it.
    async fn tell(&self, news: SttNews) -> Result<(), ProviderError> {
        let report = SttReport {
            life: self.number,
            news,
        };
        let gone = |_| self.error(ErrorKind::Unavailable, "nobody listens to the recogniser");
        self.report.send(report).await.map_err(gone)
    }

    /// Why a stream that was to go on has ended.
    fn why(&self, ended: Result<(), ProviderError>) -> ProviderError {
        ended.err().unwrap_or_else(|| {
            self.error(
                ErrorKind::Unavailable,
                "the recogniser has ended the stream",
            )
        })
    }

    fn error(&self, kind: ErrorKind, message: &str) -> ProviderError {
        ProviderError::new(self.provider.slug(), kind, message)
    }
}

/// Where the last word ends, where words are known, or else the segment.
fn end_of(heard: &Transcript) -> Option<Duration> {
    let ends = heard.words.iter().map(|word| word.end);
    let end = ends.reduce(f64::max).or(heard.end)?;
    Duration::try_from_secs_f64(end).ok()
}
