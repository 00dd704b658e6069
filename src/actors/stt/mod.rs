//! Speech to text: one attempt at a recogniser's stream. The actor opens the stream, sends it the audio of a
//! [`ReplayBuffer`], reports what comes back, and ends with the stream. It never reconnects: the session, which supervises
//! it, starts the next attempt over the same buffer, which replays the audio that no final covers. A dropped stream and a
//! panic are handled alike.
//!
//! Audio bypasses the mailbox: the [`ReplayBuffer`] is written by plain calls, including [finalize](ReplayBuffer::finalize)
//! and [end](ReplayBuffer::end), which must keep their position in it. While everything before it has been sent, the same
//! call hands it to the recogniser. Only one attempt may use a buffer at a time.
//!
//! Where the provider limits the length of streams, the actor rotates within its attempt: at a pause late in the old
//! stream, whose last finals are reported before the new one is sent anything.

pub mod replay_buffer;
mod stream_clock;
#[cfg(test)]
mod tests;
mod uplink;

use std::cell::Cell;
use std::future;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, Recipient, WeakAddr};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

pub use replay_buffer::{LIMIT, LIMIT_WHILE_CONFIGURED, ReplayBuffer};

use replay_buffer::Upload;
use uplink::Uplink;
use vivavoce_seams::{
    ErrorKind, ProviderError, SpeechToText, SttEvent, SttRequest, SttStream, Transcript,
};
use vivavoce_telemetry::conversation::Activity;
use vivavoce_telemetry::metrics::{self, Task};

/// How long opening a stream may take.
const OPENING: Duration = Duration::from_secs(10);
/// How long it may take where there is a fallback.
const OPENING_WITH_FALLBACK: Duration = Duration::from_secs(3);
/// How long a recogniser may leave audio unread.
const SENDING: Duration = Duration::from_secs(20);
/// How long a recogniser has for its last finals.
const LAST_FINALS: Duration = Duration::from_secs(5);
/// No recogniser takes longer to transcribe what it was sent.
const TRANSCRIBED_WITHIN: Duration = Duration::from_secs(5);
/// How long before the provider's limit a stream is rotated at the latest.
const BEFORE_LIMIT: Duration = Duration::from_secs(2);

/// A report of one attempt. Reports come in order; each is handled before the next is sent.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SttReport {
    /// The number that [`SttActor::new`] was given.
    pub attempt: u32,
    pub news: SttNews,
}

/// What an attempt reports: `Opened` at most once and first, `Stopped` exactly once and last.
#[derive(Debug)]
pub enum SttNews {
    /// The stream is open; the audio that the buffer has kept is being sent.
    Opened,
    /// An event of the recogniser, its times in the session's audio.
    Heard(SttEvent),
    /// The attempt is over: `Ok` after [`ReplayBuffer::end`], else why.
    Stopped(Result<(), ProviderError>),
}

/// Stops an attempt and its stream at once. Dropping the actor's address does the same.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Stop;

/// One attempt at a recogniser's stream.
pub struct SttActor {
    /// Taken when the actor starts.
    attempt: Option<Box<Attempt>>,
    /// Not a future of the actor's own, which would keep it alive without an address.
    task: Option<AbortOnDropHandle<()>>,
}

impl SttActor {
    /// An attempt that has not started. `request` asks for linear16, mulaw or alaw, mono, at a rate that the provider takes;
    /// `attempt` numbers its reports. The attempt before it over the same buffer must have reported [`SttNews::Stopped`].
    pub fn new(
        provider: Arc<dyn SpeechToText>,
        request: SttRequest,
        buffer: ReplayBuffer,
        report: Recipient<SttReport>,
        attempt: u32,
    ) -> Self {
        let attempt = Box::new(Attempt {
            provider,
            request,
            buffer,
            report,
            number: attempt,
            opening: OPENING,
            final_asked: Cell::new(None),
            has_final: Cell::new(false),
            activity: None,
        });
        Self {
            attempt: Some(attempt),
            task: None,
        }
    }

    /// There is a fallback: opening may not take long.
    pub fn with_fallback(mut self) -> Self {
        if let Some(attempt) = &mut self.attempt {
            attempt.opening = OPENING_WITH_FALLBACK;
        }
        self
    }

    /// A part of a trace, which ends with the attempt.
    pub fn traced(mut self, activity: Activity) -> Self {
        if let Some(attempt) = &mut self.attempt {
            attempt.activity = Some(activity);
        }
        self
    }
}

impl Actor for SttActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        if let Some(attempt) = self.attempt.take() {
            let live = attempt.live(context.address().downgrade());
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

struct Attempt {
    provider: Arc<dyn SpeechToText>,
    request: SttRequest,
    buffer: ReplayBuffer,
    report: Recipient<SttReport>,
    number: u32,
    /// How long opening may take.
    opening: Duration,
    /// When a final was requested that has not come yet.
    final_asked: Cell<Option<Instant>>,
    /// Whether there has been a final since the last end of speech.
    has_final: Cell<bool>,
    activity: Option<Activity>,
}

/// Why the upload has stopped.
enum UploadEnd {
    /// All audio has been sent.
    Done,
    /// The provider's limit is near.
    NearLimit,
    /// The recogniser has closed its side; its events say why.
    Refused,
}

/// Reports `Stopped` however an attempt ends, also by a panic.
struct StopGuard {
    outcome: Result<(), ProviderError>,
    buffer: ReplayBuffer,
    report: Recipient<SttReport>,
    number: u32,
    actor: WeakAddr<SttActor>,
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(()));
        if outcome.is_err() {
            self.buffer.interrupt();
        }
        // `do_send` although the mailbox may be full: without it the supervisor never restarts the recogniser, and it is
        // one message per attempt.
        self.report.do_send(SttReport {
            attempt: self.number,
            news: SttNews::Stopped(outcome),
        });
        if let Some(actor) = self.actor.upgrade() {
            actor.do_send(Stop);
        }
    }
}

impl Attempt {
    /// Boxed, as a future has room twice for what it is given.
    async fn live(self: Box<Self>, actor: WeakAddr<SttActor>) {
        let mut guard = StopGuard {
            outcome: Err(self.error(
                ErrorKind::Unavailable,
                "the task of the recogniser has panicked or was aborted",
            )),
            buffer: self.buffer.clone(),
            report: self.report.clone(),
            number: self.number,
            actor,
        };
        guard.outcome = tokio::select! {
            outcome = self.streams() => outcome,
            () = self.patience_after_end() => Ok(()),
        };
        if let Err(error) = &guard.outcome {
            metrics::provider_failed(error);
            if let Some(activity) = &self.activity {
                activity.failed(error.kind.name());
            }
        }
    }

    async fn patience_after_end(&self) {
        self.buffer.ended().await;
        sleep(LAST_FINALS).await;
    }

    /// Runs one stream after the other until the audio ends.
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
        let delay = asked.elapsed();
        metrics::provider_began(Task::Stt, self.provider.slug(), delay);
        if let Some(activity) = &self.activity {
            activity.delay("opened_ms", delay);
        }
        Ok(stream)
    }

    /// Runs one stream to its end; returns the next one if the audio goes on.
    async fn converse(&self, stream: SttStream) -> Result<Option<SttStream>, ProviderError> {
        self.buffer.rewind();
        self.has_final.set(false);
        let layout = self.buffer.layout();
        let uplink = Rc::new(Uplink::new(
            stream.sink,
            layout,
            &*self.provider,
            &self.request,
        ));
        let answered = Rc::downgrade(&uplink);
        let upload = self.upload(uplink);
        let mut downlink = pin!(self.downlink(stream.events, answered));
        let uploaded = tokio::select! {
            biased;
            ended = &mut downlink => return Err(self.why(ended)),
            uploaded = upload => uploaded?,
        };
        match uploaded {
            // `patience_after_end` bounds how long that may take.
            UploadEnd::Done => downlink.await.map(|()| None),
            UploadEnd::Refused => Err(self.why(self.last_finals(downlink).await)),
            UploadEnd::NearLimit => {
                let (ended, next) = tokio::join!(self.last_finals(downlink), self.open());
                match ended {
                    Ok(()) => self.buffer.acknowledge(self.buffer.sent()),
                    Err(error) => {
                        tracing::warn!(%error, "the next stream is sent the end of the last one again");
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
        let late = |_| {
            self.error(
                ErrorKind::Timeout,
                "the recogniser did not send its last finals in time",
            )
        };
        timeout(LAST_FINALS, downlink).await.map_err(late)?
    }

    /// Sends the audio of the buffer. The stream ends when `uplink` is dropped.
    async fn upload(&self, uplink: Rc<Uplink>) -> Result<UploadEnd, ProviderError> {
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
                () = &mut last_moment => return Ok(UploadEnd::NearLimit),
                upload = self.buffer.next(&uplink) => upload,
            };
            if matches!(upload, Upload::Finalize | Upload::End) {
                self.final_asked.set(Some(Instant::now()));
            }
            // Apart: mostly sound is sent by the call that brings it.
            if !Box::pin(self.send(&uplink, &upload)).await? {
                return Ok(UploadEnd::Refused);
            }
            if matches!(upload, Upload::End) {
                return Ok(UploadEnd::Done);
            }
            if uplink.is_late() && self.buffer.is_silent() {
                return Ok(UploadEnd::NearLimit);
            }
        }
    }

    /// Whether the recogniser has accepted it.
    async fn send(&self, uplink: &Uplink, upload: &Upload) -> Result<bool, ProviderError> {
        let sent = match upload {
            Upload::Sound(chunk) => timeout(SENDING, uplink.send(chunk)).await,
            Upload::Finalize => timeout(SENDING, uplink.finalize()).await,
            Upload::End => return Ok(true),
        };
        let sent = sent.map_err(|_| {
            self.error(
                ErrorKind::Timeout,
                "the recogniser has stopped reading audio",
            )
        })?;
        if let (Ok(()), Upload::Sound(chunk)) = (&sent, upload) {
            self.buffer.accepted(chunk);
            self.suspect(uplink)?;
        }
        Ok(sent.is_ok())
    }

    /// What only sounds like speech has no answer either: so a stream is suspected once, and where there is a fallback once
    /// more, until something has been understood again.
    fn suspect(&self, uplink: &Uplink) -> Result<(), ProviderError> {
        let has_fallback = self.opening == OPENING_WITH_FALLBACK;
        if uplink.is_suspect() && self.buffer.suspects(1 + u8::from(has_fallback)) {
            let problem = "has not answered, although somebody is speaking";
            return Err(self.error(ErrorKind::Timeout, problem));
        }
        Ok(())
    }

    /// Reports the events of the stream until it ends.
    async fn downlink(
        &self,
        mut events: Events,
        uplink: Weak<Uplink>,
    ) -> Result<(), ProviderError> {
        let mut owes_final = false;
        while let Some(event) = events.next().await {
            let mut event = event?;
            if let SttEvent::Partial(heard) | SttEvent::Final(heard) = &mut event {
                self.buffer.place_words(heard);
            }
            self.count(&event);
            if let Some(uplink) = uplink.upgrade() {
                uplink.answered();
            }
            if let SttEvent::Partial(heard) | SttEvent::Final(heard) = &event
                && !heard.text.is_empty()
            {
                self.buffer.trusts();
            }
            let covered = self.covered(&event, &mut owes_final);
            // Acknowledged only after the report has been handled: an attempt that ends in between leaves it to the next.
            self.tell(SttNews::Heard(event)).await?;
            if let Some(until) = covered {
                self.buffer.acknowledge(until);
            }
        }
        Ok(())
    }

    fn count(&self, event: &SttEvent) {
        match event {
            SttEvent::Final(_) => {
                if let Some(asked) = self.final_asked.take() {
                    let delay = asked.elapsed();
                    metrics::provider_finished(Task::Stt, self.provider.slug(), delay);
                    if let Some(activity) = &self.activity {
                        activity.delay("last_final_ms", delay);
                    }
                }
            }
            SttEvent::UtteranceLost(error) => metrics::provider_failed(error),
            SttEvent::Partial(_) | SttEvent::EndOfSpeech => {}
        }
    }

    /// Up to where the session's audio need not be replayed.
    fn covered(&self, event: &SttEvent, owes_final: &mut bool) -> Option<Duration> {
        match event {
            SttEvent::Partial(heard) => {
                *owes_final = !heard.text.is_empty();
                if *owes_final {
                    self.buffer.recogniser_hears_speech();
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
                Some(
                    self.buffer
                        .latest_pause()
                        .unwrap_or_else(|| self.buffer.sent()),
                )
            }
            SttEvent::EndOfSpeech if *owes_final => None,
            // The final has covered that utterance; what was said since is still being transcribed.
            SttEvent::EndOfSpeech if self.has_final.take() => None,
            SttEvent::EndOfSpeech => self.buffer.latest_pause(),
        }
    }

    /// What a final covers that does not say where it ends. Audio that was sent after the utterance must not count as
    /// transcribed; replaying too much after a drop is the lesser evil.
    fn surely_transcribed(&self) -> Option<Duration> {
        self.buffer
            .end_of_utterance(Instant::now().checked_sub(TRANSCRIBED_WITHIN))
    }

    /// Reports to the supervisor and waits until it has handled the report.
    async fn tell(&self, news: SttNews) -> Result<(), ProviderError> {
        let report = SttReport {
            attempt: self.number,
            news,
        };
        let gone = |_| {
            self.error(
                ErrorKind::Unavailable,
                "the session of the recogniser is gone",
            )
        };
        self.report.send(report).await.map_err(gone)
    }

    /// The error of a stream that has ended too early.
    fn why(&self, ended: Result<(), ProviderError>) -> ProviderError {
        ended.err().unwrap_or_else(|| {
            self.error(
                ErrorKind::Unavailable,
                "the recogniser has closed the stream",
            )
        })
    }

    fn error(&self, kind: ErrorKind, message: &str) -> ProviderError {
        ProviderError::new(self.provider.slug(), kind, message)
    }
}

/// Where the last word ends, or the segment where there are no word times.
fn end_of(heard: &Transcript) -> Option<Duration> {
    let ends = heard.words.iter().map(|word| word.end);
    let end = ends.reduce(f64::max).or(heard.end)?;
    Duration::try_from_secs_f64(end).ok()
}
