//! The synthesiser of one session: an actor that turns the playback queue's commands into sound, one utterance at a
//! time, sentence by sentence where the text comes so, and brings it to the player. Caching, sharing and converting are
//! [`Synthesizer`]'s work; when the sound leaves is the player's. It is stopped and made anew by the session.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::session::playback::{Command, UtteranceKey};
use super::session::player::{CHUNK, Player};
use super::supervision::{RestartPolicy, Restarts, jitter};
use vivavoce_audio::{AudioFormat, Encoding, Layout, Pcm, linear16};
use vivavoce_core::party::Party;
use vivavoce_core::sentences;
use vivavoce_seams::{ErrorKind, ProviderError};
use vivavoce_synthesis::{
    Speech, SpeechConfig, SpokenText, SpokenWord, SynthesisError, Synthesizer,
};

/// The longest that a provider's own `Retry-After` is waited for while an utterance hangs on it.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Text that is synthesised at once, about two minutes of speech: what is made ahead of a listener who interrupts is
/// thrown away, and has to be kept until then.
const PORTION_BYTES: usize = 2_000;

/// Changes that wait for their utterance at most: there are no more utterances that wait.
const MAX_CHANGES: usize = 65;

/// A command of the playback queue.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Synthesize(pub Command);

/// What a synthesiser tells its session.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TtsReport {
    /// Which of the session's synthesisers says so.
    pub life: u32,
    /// What happened.
    pub news: TtsNews,
}

/// See [`TtsReport`].
#[derive(Debug)]
pub enum TtsNews {
    /// The provider has failed and is asked again.
    Retrying(SynthesisError),
    /// It speaks again.
    Recovered,
    /// The provider has failed, and a fallback takes its place.
    Switched {
        /// The slug of the fallback.
        to: String,
        /// Why.
        error: SynthesisError,
    },
    /// The utterance has failed. Others may succeed.
    Failed(SynthesisError),
    /// The actor has ended without having been told to.
    Stopped,
}

/// What is queued from this utterance on is said in another way. The format stays.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ChangeVoice {
    /// The first one.
    pub from: UtteranceKey,
    /// How it is said.
    pub speech: SpeechConfig,
}

/// The actor.
pub struct TtsActor {
    voice: Rc<Voice>,
    /// What says the utterances from a key on instead, the latest last.
    changes: VecDeque<(UtteranceKey, Rc<Voice>)>,
    job: Option<Job>,
    life: u32,
    report: Recipient<TtsReport>,
    /// Whether it ends because its session wants it to.
    dismissed: bool,
}

/// What every utterance is said with.
struct Voice {
    synthesizer: Arc<Synthesizer>,
    /// What is asked for, and what instead.
    choices: Vec<SpeechConfig>,
    /// Which of them speaks.
    choice: Cell<usize>,
    party: Party,
    player: Player,
    /// Whether the session was told that the provider fails, and not yet how that ended: the utterance that met with it
    /// may have been called off.
    away: Cell<bool>,
}

impl Voice {
    fn new(
        synthesizer: Arc<Synthesizer>,
        config: SpeechConfig,
        party: Party,
        player: Player,
    ) -> Self {
        let format = AudioFormat {
            encoding: Encoding::Linear16,
            layout: player.layout(),
        };
        Self {
            synthesizer,
            choices: SpeechConfig { format, ..config }.choices(),
            choice: Cell::new(0),
            party,
            player,
            away: Cell::new(false),
        }
    }
}

/// The utterance in hand.
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

/// The task of an utterance has ended before it was done: it was called off, or it has panicked.
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
            // At most one per utterance.
            self.actor.do_send(Lost(self.utterance));
        }
    }
}

/// Ends the actor; nothing is reported any more.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Dismiss;

impl TtsActor {
    /// A synthesiser for one player, which says everything with one `tts_config`.
    pub fn new(
        synthesizer: Arc<Synthesizer>,
        config: SpeechConfig,
        party: Party,
        player: Player,
        (life, report): (u32, Recipient<TtsReport>),
    ) -> Self {
        let voice = Voice::new(synthesizer, config, party, player);
        Self {
            voice: Rc::new(voice),
            changes: VecDeque::new(),
            job: None,
            life,
            report,
            dismissed: false,
        }
    }

    /// Who says an utterance. Whoever said those before it is not needed any more: they come in order.
    fn voice_of(&mut self, utterance: UtteranceKey) -> Rc<Voice> {
        while let Some((_, voice)) = self.changes.pop_front_if(|(from, _)| *from <= utterance) {
            self.voice = voice;
        }
        Rc::clone(&self.voice)
    }

    fn begin(&mut self, utterance: UtteranceKey, ctx: &mut Context<Self>) -> Rc<Text> {
        let text = Rc::new(Text::default());
        let voice = self.voice_of(utterance);
        let say = Say {
            framer: Framer::new(voice.player.layout()),
            voice,
            utterance,
            report: self.report.clone(),
            life: self.life,
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
        // More than the playback queue asks for between two turns of the thread.
        ctx.set_mailbox_capacity(256);
        self.voice
            .player
            .set_synthesizer(Some(ctx.address().recipient()));
    }
}

impl Drop for TtsActor {
    /// Also when it has panicked. Past the mailbox's capacity: a session that misses this stays mute, and it is one
    /// message a life.
    fn drop(&mut self) {
        if !self.dismissed {
            let (life, news) = (self.life, TtsNews::Stopped);
            self.report.do_send(TtsReport { life, news });
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
        let (synthesizer, player) = (Arc::clone(&before.synthesizer), before.player.clone());
        let voice = Voice::new(synthesizer, speech, before.party.clone(), player);
        // Of two changes before the same utterance the later one counts.
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
            } => self.begin(utterance, ctx).push(text, last),
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
    report: Recipient<TtsReport>,
    life: u32,
}

impl Say {
    async fn run(mut self, text: Rc<Text>) {
        // Where the portion begins in the utterance's text.
        let mut at = 0;
        loop {
            let (piece, last) = text.next().await;
            for portion in sentences::portions(&piece, PORTION_BYTES) {
                // Between sentences there may be nothing but white space.
                if !portion.trim().is_empty()
                    && let Err(error) = self.say_patiently(portion, at).await
                {
                    self.tell(TtsNews::Failed(error)).await;
                    return self.voice.player.failed(self.utterance);
                }
                at += portion.len();
            }
            if last {
                break;
            }
        }
        if let Some(rest) = self.framer.finish() {
            self.voice.player.sound(self.utterance, rest).await;
        }
        self.voice.player.done(self.utterance);
    }

    /// Says a piece; a fallback says what of it the provider leaves unsaid, and where there is none a provider that fails
    /// before its first sound is asked again a few times.
    async fn say_patiently(&mut self, text: &str, at: usize) -> Result<(), SynthesisError> {
        let mut restarts = Restarts::new(RestartPolicy::UTTERANCE);
        let mut fallbacks = self.voice.choices.len() - 1;
        // Up to where it was said.
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
                    // Where the provider tells no words the next utterance is the fallback's first.
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

    /// The next provider in order speaks from now on, after the last the first again.
    async fn fall_back(&self, error: SynthesisError) {
        let voice = &self.voice;
        let next = (voice.choice.get() + 1) % voice.choices.len();
        voice.choice.set(next);
        voice.away.set(false);
        let to = voice.choices[next].provider.clone();
        self.tell(TtsNews::Switched { to, error }).await;
    }

    /// Says a text that stands there in the utterance's.
    async fn say(&mut self, text: &str, at: usize) -> Result<(), Cut> {
        let voice = Rc::clone(&self.voice);
        let config = voice.choices[voice.choice.get()].clone();
        let mut told = ToldWords {
            spoken: config.spoken(text).map_err(SynthesisError::from)?,
            places: Vec::new(),
            told: 0,
        };
        let mut speech = voice.synthesizer.speak(config, text, &voice.party).await?;
        let begun = self.framer.duration_of(self.framer.taken);
        let player = &voice.player;
        player.begin_text(self.utterance, at..at + text.len(), begun);
        while let Some(sound) = speech.next().await {
            // Places are known before the sound is heard that they are for.
            for (byte, start) in told.more(&speech) {
                player.word(self.utterance, at + byte, start);
            }
            let mut sound = match sound {
                Ok(sound) => sound,
                Err(error) => {
                    let words = told.places;
                    return Err(Cut { error, words });
                }
            };
            // Long sound that is there at once is taken piece by piece, so that others have their turn.
            while !sound.is_empty() {
                let piece = sound.split_to(sound.len().min(self.framer.chunk_bytes()));
                if let Some(chunk) = self.framer.push(&piece) {
                    player.sound(self.utterance, chunk).await;
                }
            }
        }
        for (byte, start) in told.more(&speech) {
            player.word(self.utterance, at + byte, start);
        }
        let end = self.framer.duration_of(self.framer.taken);
        player.end_text(self.utterance, end);
        Ok(())
    }

    async fn tell(&self, news: TtsNews) {
        let life = self.life;
        // A session that has gone wants no news.
        let _ = self.report.send(TtsReport { life, news }).await;
    }
}

/// Speech that has ended too early.
struct Cut {
    error: SynthesisError,
    /// What is known of its words: each one's byte of the text, and where it begins in the sound.
    words: Vec<(usize, Duration)>,
}

/// The words that a voice tells while it says a text, and where they are in it.
struct ToldWords {
    spoken: SpokenText,
    /// Those that were found.
    places: Vec<(usize, Duration)>,
    /// How many the voice has told.
    told: usize,
}

impl ToldWords {
    /// Those that were told since this was asked.
    fn more(&mut self, speech: &Speech) -> Vec<(usize, Duration)> {
        let more = speech.words(self.told);
        self.told += more.len();
        let place = |word: &SpokenWord| Some((self.spoken.find(&word.word)?, word.start));
        let found: Vec<_> = more.iter().filter_map(place).collect();
        self.places.extend_from_slice(&found);
        found
    }
}

/// The byte of a text where its first word begins that was not said when the sound ended after `heard`. `None` where
/// its voice does not tell.
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

/// Whether the same may succeed a moment later.
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

/// How long the provider wants to be left alone.
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

/// Cuts the sound of an utterance into chunks, whatever pieces it comes in.
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

    /// Takes at most the bytes of one chunk; gives one when it is complete.
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

    /// The last part of a chunk, with silence behind it: every chunk is equally long, also for encoders of frames.
    fn finish(&mut self) -> Option<Pcm> {
        let mut samples = linear16::samples(&std::mem::take(&mut self.held));
        if samples.is_empty() {
            return None;
        }
        samples.resize(self.layout.samples_in(CHUNK), 0);
        Some(Pcm::new(self.layout, samples))
    }
}
