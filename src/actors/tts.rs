//! The synthesiser of one session: an actor that turns the playback queue's commands into audio, one utterance at a time,
//! sentence by sentence where the text comes so, and brings it to a [`SpeechSink`]. Caching, sharing and converting are
//! left to [`Synthesizer`], pacing to the sink, restarts to the session.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::future::LocalBoxFuture;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::restarts::{RestartPolicy, Restarts, jitter};
use super::session::error_codes::{Refusal, of_synthesis};
use super::session::playback::{CHUNK, Command, UtteranceKey};
use vivavoce_audio::{AudioFormat, Encoding, Layout, Pcm, linear16};
use vivavoce_core::party::Party;
use vivavoce_core::sentences;
use vivavoce_core::ssml::Ssml;
use vivavoce_seams::{ErrorKind, ProviderError};
use vivavoce_synthesis::{
    Speech, SpeechConfig, SpokenText, SpokenWord, SynthesisError, Synthesizer,
};
use vivavoce_telemetry::conversation::{Activity, Conversation};

/// The longest `Retry-After` of a provider that an utterance waits for.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Bytes of text that are synthesised at once, about two minutes of speech: audio that was made ahead is thrown away when
/// the user interrupts, and has to be kept until then.
const PORTION_BYTES: usize = 2_000;

/// The most voice changes that wait for their utterance: as many as utterances can wait.
const MAX_CHANGES: usize = 65;

/// Takes the speech of a synthesiser, utterance by utterance, and gives it the commands of its playback queue. What is
/// brought of an utterance that was cancelled is ignored.
pub trait SpeechSink {
    /// The layout in which it takes audio.
    fn layout(&self) -> Layout;

    /// Sends commands to this synthesiser from now on.
    fn attach(&self, synthesizer: Recipient<Synthesize>);

    /// Takes audio of an utterance; waits while enough of it is queued.
    fn audio(&self, utterance: UtteranceKey, audio: Pcm) -> LocalBoxFuture<'_, ()>;

    /// The audio from `at` on speaks these bytes of the utterance's text.
    fn begin_text(&self, utterance: UtteranceKey, text: Range<usize>, at: Duration);

    /// The word at this byte of the text begins at `start` in the audio since the last [`begin_text`](Self::begin_text).
    /// Comes before the audio that it is in.
    fn word(&self, utterance: UtteranceKey, byte: usize, start: Duration);

    /// The audio of the text that was begun ends at `at`.
    fn end_text(&self, utterance: UtteranceKey, at: Duration);

    /// All audio of the utterance has been brought.
    fn done(&self, utterance: UtteranceKey);

    /// The utterance could not be synthesised.
    fn failed(&self, utterance: UtteranceKey, error: Refusal);
}

/// A command of the playback queue.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Synthesize(pub Command);

/// A report of a synthesiser to its session.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TtsReport {
    /// The number that [`TtsActor::new`] was given.
    pub attempt: u32,
    pub news: TtsNews,
}

/// What a synthesiser reports.
#[derive(Debug)]
pub enum TtsNews {
    /// The provider has failed and is tried again.
    Retrying(SynthesisError),
    /// The provider works again.
    Recovered,
    /// The provider has failed, and a fallback takes its place.
    Switched {
        /// The slug of the fallback.
        to: String,
        error: SynthesisError,
    },
    /// The utterance has failed. Others may succeed.
    Failed(SynthesisError),
    /// The actor has ended without having been dismissed.
    Stopped,
}

/// Changes the voice from this utterance on. The format stays.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ChangeVoice {
    pub from: UtteranceKey,
    pub speech: SpeechConfig,
}

/// The synthesiser of one output.
pub struct TtsActor {
    voice: Rc<Voice>,
    /// Voices that take over from an utterance on, the latest last.
    changes: VecDeque<(UtteranceKey, Rc<Voice>)>,
    job: Option<Job>,
    attempt: u32,
    report: Recipient<TtsReport>,
    dismissed: bool,
}

/// How utterances are spoken.
struct Voice {
    synthesizer: Arc<Synthesizer>,
    /// The configured provider and its fallbacks.
    choices: Vec<SpeechConfig>,
    /// Which of them is used.
    choice: Cell<usize>,
    party: Party,
    output: Rc<dyn SpeechSink>,
    /// How many characters providers have spoken.
    characters: Rc<Cell<u64>>,
    trace: Conversation,
    /// Whether the session was told that the provider fails, and not yet how that ended: the utterance that failed may have
    /// been cancelled.
    away: Cell<bool>,
}

impl Voice {
    fn new(
        synthesizer: Arc<Synthesizer>,
        config: SpeechConfig,
        party: Party,
        output: Rc<dyn SpeechSink>,
        (characters, trace): (Rc<Cell<u64>>, Conversation),
    ) -> Self {
        let format = AudioFormat {
            encoding: Encoding::Linear16,
            layout: output.layout(),
        };
        Self {
            synthesizer,
            choices: SpeechConfig { format, ..config }.choices(),
            choice: Cell::new(0),
            party,
            output,
            characters,
            trace,
            away: Cell::new(false),
        }
    }
}

/// The utterance that is being synthesised.
struct Job {
    utterance: UtteranceKey,
    text: Rc<Text>,
    /// Not a future of the actor's own: a panic of a provider must not unwind through the actor's context, which is
    /// polled once more while it is dropped.
    _task: AbortOnDropHandle<()>,
}

/// Text on its way to the task of an utterance; the playback queue bounds it.
#[derive(Default)]
struct Text {
    pieces: RefCell<VecDeque<(String, bool)>>,
    /// The document of which the text is all.
    document: Option<Arc<Ssml>>,
    more: Notify,
}

impl Text {
    fn push(&self, text: String, last: bool) {
        self.pieces.borrow_mut().push_back((text, last));
        self.more.notify_one();
    }

    async fn next(&self) -> (String, bool) {
        loop {
            let piece = self.pieces.borrow_mut().pop_front();
            if let Some(piece) = piece {
                return piece;
            }
            self.more.notified().await;
        }
    }
}

/// The task of an utterance has ended before it was done: it was cancelled, or it has panicked.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Lost(UtteranceKey);

struct LostUnlessDone {
    actor: Addr<TtsActor>,
    utterance: UtteranceKey,
    done: bool,
}

impl LostUnlessDone {
    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for LostUnlessDone {
    fn drop(&mut self) {
        if !self.done {
            // At most once per utterance.
            self.actor.do_send(Lost(self.utterance));
        }
    }
}

/// Stops the actor without a report.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Dismiss;

impl TtsActor {
    /// A synthesiser for one output, with one `tts_config`. It adds to `characters` what providers speak: the text that they
    /// were given, once its first audio has come. Each request to a provider is a part of `trace`.
    pub fn new(
        synthesizer: Arc<Synthesizer>,
        config: SpeechConfig,
        party: Party,
        output: Rc<dyn SpeechSink>,
        (characters, trace): (Rc<Cell<u64>>, Conversation),
        (attempt, report): (u32, Recipient<TtsReport>),
    ) -> Self {
        let voice = Voice::new(synthesizer, config, party, output, (characters, trace));
        Self {
            voice: Rc::new(voice),
            changes: VecDeque::new(),
            job: None,
            attempt,
            report,
            dismissed: false,
        }
    }

    /// The voice of an utterance. Utterances come in order, so that earlier voices are no longer needed.
    fn voice_of(&mut self, utterance: UtteranceKey) -> Rc<Voice> {
        while let Some((_, voice)) = self.changes.pop_front_if(|(from, _)| *from <= utterance) {
            self.voice = voice;
        }
        Rc::clone(&self.voice)
    }

    fn begin(
        &mut self,
        utterance: UtteranceKey,
        document: Option<Arc<Ssml>>,
        ctx: &mut Context<Self>,
    ) -> Rc<Text> {
        let text = Rc::new(Text {
            document,
            ..Text::default()
        });
        let voice = self.voice_of(utterance);
        let say = Say {
            framer: Framer::new(voice.output.layout()),
            document: None,
            voice,
            utterance,
            report: self.report.clone(),
            attempt: self.attempt,
        };
        let lost = LostUnlessDone {
            actor: ctx.address(),
            utterance,
            done: false,
        };
        let given = Rc::clone(&text);
        let run = async move {
            say.run(given).await;
            lost.done();
        };
        let task = tokio::task::spawn_local(run.in_current_span());
        self.job = Some(Job {
            utterance,
            text: Rc::clone(&text),
            _task: AbortOnDropHandle::new(task),
        });
        text
    }
}

impl Actor for TtsActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        // More commands than the playback queue gives between two polls.
        ctx.set_mailbox_capacity(256);
        self.voice.output.attach(ctx.address().recipient());
    }
}

impl Drop for TtsActor {
    /// Also after a panic. `do_send` although the mailbox may be full: without it the session never restarts the
    /// synthesiser, and it is one message per attempt.
    fn drop(&mut self) {
        if !self.dismissed {
            let (attempt, news) = (self.attempt, TtsNews::Stopped);
            self.report.do_send(TtsReport { attempt, news });
        }
    }
}

impl Handler<Dismiss> for TtsActor {
    type Result = ();

    fn handle(&mut self, _: Dismiss, ctx: &mut Context<Self>) {
        self.dismissed = true;
        ctx.stop();
    }
}

impl Handler<ChangeVoice> for TtsActor {
    type Result = ();

    fn handle(&mut self, ChangeVoice { from, speech }: ChangeVoice, _: &mut Context<Self>) {
        let before = &self.voice;
        let (synthesizer, output) = (Arc::clone(&before.synthesizer), Rc::clone(&before.output));
        let kept = (Rc::clone(&before.characters), before.trace.clone());
        let voice = Voice::new(synthesizer, speech, before.party.clone(), output, kept);
        // Of two changes from the same utterance on the later one counts.
        self.changes.retain(|(known, _)| *known != from);
        self.changes.push_back((from, Rc::new(voice)));
        if self.changes.len() > MAX_CHANGES
            && let Some((_, voice)) = self.changes.pop_front()
        {
            self.voice = voice;
        }
    }
}

impl Handler<Lost> for TtsActor {
    type Result = ();

    fn handle(&mut self, Lost(utterance): Lost, ctx: &mut Context<Self>) {
        if self
            .job
            .as_ref()
            .is_some_and(|job| job.utterance == utterance)
        {
            ctx.stop();
        }
    }
}

impl Handler<Synthesize> for TtsActor {
    type Result = ();

    fn handle(&mut self, Synthesize(command): Synthesize, ctx: &mut Context<Self>) {
        match command {
            Command::Synthesize {
                utterance,
                text,
                last,
                ssml,
            } => self.begin(utterance, ssml, ctx).push(text, last),
            Command::MoreText {
                utterance,
                text,
                last,
            } => {
                if let Some(job) = self.job.as_ref().filter(|job| job.utterance == utterance) {
                    job.text.push(text, last);
                }
            }
            Command::Cancel { utterance } => {
                self.job.take_if(|job| job.utterance == utterance);
            }
        }
    }
}

/// The task of one utterance.
struct Say {
    voice: Rc<Voice>,
    utterance: UtteranceKey,
    framer: Framer,
    document: Option<Arc<Ssml>>,
    report: Recipient<TtsReport>,
    attempt: u32,
}

impl Say {
    async fn run(mut self, text: Rc<Text>) {
        // Where the portion begins in the utterance's text.
        let mut at = 0;
        self.document.clone_from(&text.document);
        loop {
            let (piece, last) = text.next().await;
            let portions = match &self.document {
                // It is not divided.
                Some(_) => vec![piece.as_str()],
                None => sentences::portions(&piece, PORTION_BYTES),
            };
            for portion in portions {
                // Between sentences there may be only white space.
                if !portion.trim().is_empty()
                    && let Err(error) = self.say_patiently(portion, at).await
                {
                    let refusal = of_synthesis(&error);
                    self.tell(TtsNews::Failed(error)).await;
                    return self.voice.output.failed(self.utterance, refusal);
                }
                at += portion.len();
            }
            if last {
                break;
            }
        }
        if let Some(rest) = self.framer.finish() {
            self.voice.output.audio(self.utterance, rest).await;
        }
        self.voice.output.done(self.utterance);
    }

    /// Speaks a portion. If the provider fails, a fallback speaks the rest; without a fallback a provider that fails before
    /// its first audio is tried again a few times.
    async fn say_patiently(&mut self, text: &str, at: usize) -> Result<(), SynthesisError> {
        let mut restarts = Restarts::new(RestartPolicy::UTTERANCE);
        let mut fallbacks = self.voice.choices.len() - 1;
        // Up to where it was spoken.
        let mut said = 0;
        loop {
            let begun = self.framer.taken;
            let left = text.get(said..).unwrap_or_default();
            let Err(Cut { error, words }) = self.say(left, at + said).await else {
                if self.voice.away.replace(false) {
                    self.tell(TtsNews::Recovered).await;
                }
                return Ok(());
            };
            let silent = self.framer.taken == begun;
            if fallbacks > 0 && matches!(error, SynthesisError::Provider { .. }) {
                fallbacks -= 1;
                let heard = self.framer.duration_of(self.framer.taken - begun);
                self.fall_back(error.clone()).await;
                if silent {
                    continue;
                }
                match first_unsaid(&words, heard) {
                    Some(unsaid) => {
                        said += unsaid;
                        continue;
                    }
                    // Without word times the fallback begins with the next utterance.
                    None => return Err(error),
                }
            }
            let now = tokio::time::Instant::now();
            let delay = (silent && is_passing(&error))
                .then(|| restarts.next(now, jitter()))
                .flatten();
            let Some(delay) = delay else {
                self.voice.away.set(false);
                return Err(error);
            };
            let delay = delay.max(asked_for(&error)).min(LONGEST_RETRY);
            if !self.voice.away.replace(true) {
                self.tell(TtsNews::Retrying(error)).await;
            }
            tokio::time::sleep(delay).await;
        }
    }

    /// Uses the next provider in order from now on, after the last the first again.
    async fn fall_back(&self, error: SynthesisError) {
        let voice = &self.voice;
        let next = (voice.choice.get() + 1) % voice.choices.len();
        voice.choice.set(next);
        voice.away.set(false);
        let to = voice.choices[next].provider.clone();
        self.tell(TtsNews::Switched { to, error }).await;
    }

    /// Speaks a text that begins at this byte of the utterance's.
    async fn say(&mut self, text: &str, at: usize) -> Result<(), Cut> {
        let voice = Rc::clone(&self.voice);
        let config = voice.choices[voice.choice.get()].clone();
        let slug = config.provider.as_str();
        let activity = voice
            .trace
            .tts(slug, &config.model, config.voice_id.as_deref());
        let outcome = self.say_traced(text, at, config, &activity).await;
        if let Err(Cut { error, .. }) = &outcome {
            activity.failed(kind(error));
        }
        outcome
    }

    async fn say_traced(
        &mut self,
        text: &str,
        at: usize,
        config: SpeechConfig,
        activity: &Activity,
    ) -> Result<(), Cut> {
        let voice = Rc::clone(&self.voice);
        let takes = voice.synthesizer.takes_ssml(&config);
        // A fallback that takes no documents says what is in them.
        let document = self.document.as_ref().zip(takes);
        let document = document.map(|(document, takes)| (document.rest(at), takes));
        let (spoken, characters) = match &document {
            Some((document, takes)) => {
                let spoken = config.spoken_ssml(document);
                let (said, spoken) = spoken.map_err(SynthesisError::from)?;
                (spoken, takes.characters(&said))
            }
            None => {
                let spoken = config.spoken(text).map_err(SynthesisError::from)?;
                let characters = spoken.text.chars().count();
                (spoken, characters)
            }
        };
        let mut told = ToldWords {
            spoken,
            places: Vec::new(),
            told: 0,
        };
        let asked = tokio::time::Instant::now();
        let (synthesizer, party) = (&voice.synthesizer, &voice.party);
        // Apart: asking takes more memory than speaking, and is over soon.
        let mut speech = match &document {
            Some((document, _)) => {
                Box::pin(synthesizer.speak_ssml(config, document, party)).await?
            }
            None => Box::pin(synthesizer.speak(config, text, party)).await?,
        };
        activity.note("cached", speech.cached);
        let mut has_sound = false;
        let begun = self.framer.duration_of(self.framer.taken);
        let output = &voice.output;
        output.begin_text(self.utterance, at..at + text.len(), begun);
        let mut uncounted = if speech.cached { 0 } else { characters as u64 };
        while let Some(sound) = speech.next().await {
            // Words are told before the audio that they are in.
            for (byte, start) in told.more(&speech) {
                output.word(self.utterance, at + byte, start);
            }
            let mut sound = match sound {
                Ok(sound) => sound,
                Err(error) => {
                    let words = told.places;
                    return Err(Cut { error, words });
                }
            };
            if !std::mem::replace(&mut has_sound, true) {
                activity.delay("first_sound_ms", asked.elapsed());
            }
            let characters = voice.characters.get() + std::mem::take(&mut uncounted);
            voice.characters.set(characters);
            // Long audio that is there at once is taken piece by piece, so that other tasks can run.
            while !sound.is_empty() {
                let piece = sound.split_to(sound.len().min(self.framer.chunk_bytes()));
                if let Some(chunk) = self.framer.push(&piece) {
                    output.audio(self.utterance, chunk).await;
                }
            }
        }
        for (byte, start) in told.more(&speech) {
            output.word(self.utterance, at + byte, start);
        }
        let end = self.framer.duration_of(self.framer.taken);
        output.end_text(self.utterance, end);
        Ok(())
    }

    async fn tell(&self, news: TtsNews) {
        let attempt = self.attempt;
        // The session may be gone.
        let _ = self.report.send(TtsReport { attempt, news }).await;
    }
}

/// Speech that was cut by an error.
struct Cut {
    error: SynthesisError,
    /// Its words, as far as they are known: the byte of the text, and where it begins in the audio.
    words: Vec<(usize, Duration)>,
}

/// The words that a provider reports while it speaks a text, and where they are in it.
struct ToldWords {
    spoken: SpokenText,
    /// Those that were found.
    places: Vec<(usize, Duration)>,
    /// How many the provider has reported.
    told: usize,
}

impl ToldWords {
    /// The words that were reported since the last call.
    fn more(&mut self, speech: &Speech) -> Vec<(usize, Duration)> {
        let more = speech.words(self.told);
        self.told += more.len();
        let place = |word: &SpokenWord| Some((self.spoken.find(&word.word)?, word.start));
        let found: Vec<_> = more.iter().filter_map(place).collect();
        self.places.extend_from_slice(&found);
        found
    }
}

/// The byte of a text at which its first word begins that was not spoken whole when the audio ended after `heard`. `None`
/// where the provider reports no words.
fn first_unsaid(words: &[(usize, Duration)], heard: Duration) -> Option<usize> {
    // A word is complete where the next one has begun.
    let begun = words.iter().take_while(|(_, start)| *start <= heard);
    let last = begun.count().saturating_sub(1);
    words.get(last).map(|(byte, _)| *byte)
}

impl From<SynthesisError> for Cut {
    fn from(error: SynthesisError) -> Self {
        let words = Vec::new();
        Self { error, words }
    }
}

/// The kind of an error, for traces.
const fn kind(error: &SynthesisError) -> &'static str {
    match error {
        SynthesisError::Provider { error, .. } => error.kind.name(),
        SynthesisError::Invalid(_) | SynthesisError::UnsupportedProvider { .. } => {
            ErrorKind::InvalidRequest.name()
        }
        SynthesisError::TooLong { .. } => "too_long",
        SynthesisError::Quota(_) | SynthesisError::NoMemory => ErrorKind::Overloaded.name(),
        SynthesisError::Conversion(_) => "conversion",
        SynthesisError::Abandoned => "abandoned",
    }
}

/// Whether the same request may succeed a moment later.
const fn is_passing(error: &SynthesisError) -> bool {
    match error {
        SynthesisError::Provider { error, .. } => matches!(
            error.kind,
            ErrorKind::RateLimited { .. }
                | ErrorKind::Overloaded
                | ErrorKind::Unavailable
                | ErrorKind::Protocol
        ),
        SynthesisError::NoMemory | SynthesisError::Quota(_) | SynthesisError::Abandoned => true,
        _ => false,
    }
}

/// The provider's `Retry-After`.
fn asked_for(error: &SynthesisError) -> Duration {
    match error {
        SynthesisError::Provider {
            error:
                ProviderError {
                    kind: ErrorKind::RateLimited { retry_after },
                    ..
                },
            ..
        } => retry_after.unwrap_or_default(),
        _ => Duration::ZERO,
    }
}

/// Cuts the audio of an utterance into chunks, whatever pieces it comes in.
struct Framer {
    layout: Layout,
    held: Vec<u8>,
    /// Bytes that came.
    taken: u64,
}

impl Framer {
    const fn new(layout: Layout) -> Self {
        Self {
            layout,
            held: Vec::new(),
            taken: 0,
        }
    }

    fn chunk_bytes(&self) -> usize {
        self.layout.samples_in(CHUNK) * 2
    }

    fn duration_of(&self, bytes: u64) -> Duration {
        self.layout.rate.duration_of(bytes as usize / 2)
    }

    /// Takes at most the bytes of one chunk; returns a chunk that is complete.
    fn push(&mut self, bytes: &[u8]) -> Option<Pcm> {
        self.taken += bytes.len() as u64;
        self.held.extend_from_slice(bytes);
        let length = self.chunk_bytes();
        if self.held.len() < length {
            return None;
        }
        let samples = linear16::samples(&self.held[..length]);
        self.held.drain(..length);
        Some(Pcm::new(self.layout, samples))
    }

    /// The last chunk, padded with silence: all chunks are equally long, for encoders of frames.
    fn finish(&mut self) -> Option<Pcm> {
        let mut samples = linear16::samples(&std::mem::take(&mut self.held));
        if samples.is_empty() {
            return None;
        }
        samples.resize(self.layout.samples_in(CHUNK), 0);
        Some(Pcm::new(self.layout, samples))
    }
}
