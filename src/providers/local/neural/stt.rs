//! One stream of speech to a model that hears whole utterances. While somebody speaks, what was said so far is heard again
//! every few hundred milliseconds, if a worker is free; at a pause it is heard once more, ahead of need, so that the final
//! is there when the pause is long enough to end the utterance. Sound that comes while a worker is awaited or works waits
//! in the bounded sink and in the utterance, which is bounded too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::{AskError, Speech, ask};
use crate::local::SLUG;
use crate::local::utterance::{Cut, Ended, LONGEST_UTTERANCE, UtteranceCutter};
use crate::local::workers::{PoolError, Shared};
use vivavoce_audio::linear16;
use vivavoce_audio::vad::RATE;
use vivavoce_quotas::Party;
use vivavoce_seams::{ErrorKind, ProviderError, SttEvent, SttInput, Transcript, Word};
use vivavoce_speech::recogniser::{Heard, Hearing};
use vivavoce_speech::worker::{Reply, Request};

/// New sound from one partial to the next, and before the first.
const PARTIAL: usize = 16 * 400;
/// A partial is heard only of sound with a voice in it; of less than this nothing can be said.
const SHORTEST: usize = 16 * 500;
/// A pause of this length is heard as if it ended the utterance.
const AHEAD: usize = 16 * 200;
/// Each of the last words of a partial may still become another.
const UNSETTLED: usize = 3;

/// Chunks that wait where a stream is behind.
const BEHIND: usize = 8;
/// The pause that ends an utterance: short, as the final is heard ahead of it.
const PAUSE: Duration = Duration::from_millis(400);

type Pool = Shared<Speech<true>>;
type Events = mpsc::Sender<Result<SttEvent, ProviderError>>;

/// An open stream.
pub struct Session {
    pool: Arc<Pool>,
    party: Party,
    hearing: Hearing,
    cuts: Cuts,
    events: Events,
    /// Something was reported since the speaker last finished.
    in_turn: bool,
}

/// An utterance while it is heard.
struct Utterance {
    first_sample: u64,
    audio: Vec<i16>,
    /// Samples since the last voice.
    quiet: usize,
    ended: Option<Ended>,
    /// What is being heard: up to which sample, and whether as a partial.
    asked: Option<Asked>,
    /// Up to where it was asked last.
    asked_at: usize,
    /// What the last partial had.
    tokens: Vec<u32>,
    /// What two partials have agreed on: later ones begin with it.
    prefix: Vec<u32>,
    /// What was heard at a pause, of so many samples.
    ahead: Option<(usize, Heard)>,
}

struct Asked {
    length: usize,
    partial: bool,
    answer: AbortOnDropHandle<Result<Heard, AskError>>,
}

impl Session {
    /// Serves somebody's stream until its input ends, nobody reads its events, or the pool is closed.
    pub fn start(
        pool: Arc<Pool>,
        party: Party,
        hearing: Hearing,
        input: mpsc::Receiver<SttInput>,
        events: Events,
    ) {
        let session = Self {
            party,
            hearing,
            cuts: Cuts::new(input),
            events: events.clone(),
            pool: Arc::clone(&pool),
            in_turn: false,
        };
        let run = async move {
            tokio::select! {
                () = session.run() => {}
                () = events.closed() => {}
                () = pool.closed() => {
                    let error = ProviderError::new(SLUG, ErrorKind::Unavailable, "the recogniser was shut down");
                    // Best effort: a reader that is behind sees the end of the events.
                    let _ = events.try_send(Err(error));
                }
            }
            pool.keep_one_warm();
        };
        tokio::spawn(run.in_current_span());
    }

    async fn run(mut self) {
        while let Some(cut) = self.cuts.next().await {
            if let (Cut::Begin(first_sample), _) = cut {
                self.recognise(Utterance::new(first_sample)).await;
            }
        }
    }

    /// Hears one utterance to its end and reports it.
    async fn recognise(&mut self, mut utterance: Utterance) {
        while utterance.ended.is_none() {
            self.look(&mut utterance);
            tokio::select! {
                heard = answer(&mut utterance.asked) => self.heard(&mut utterance, heard),
                cut = self.cuts.next() => utterance.take(cut),
            }
        }
        match self.finish(&mut utterance).await {
            Ok(heard) => {
                let text = utterance.transcript(heard);
                if !text.text.is_empty() {
                    self.report(SttEvent::Final(text)).await;
                } else if self.in_turn {
                    // What the partials said was no speech.
                    self.partial(String::new(), String::new());
                }
            }
            Err(error) => {
                let lost = ProviderError::new(SLUG, kind(&error), error.to_string());
                self.report(SttEvent::UtteranceLost(lost)).await;
            }
        }
        // Whether the turn is over is not for it to say: it knows no more than that nobody speaks.
        self.in_turn &= utterance.ended == Some(Ended::Length);
    }

    /// Has what there is of an utterance heard, when it is time and nobody has to wait for it.
    fn look(&self, utterance: &mut Utterance) {
        let length = utterance.audio.len();
        // What comes faster than it is spoken is a file: nobody waits for its partials.
        if utterance.asked.is_some() || !self.pool.is_free() || self.cuts.is_behind() {
            return;
        }
        let paused = utterance.quiet >= AHEAD;
        let fresh = utterance
            .ahead
            .as_ref()
            .is_none_or(|(at, _)| *at + utterance.quiet < length);
        let partial = if paused && fresh && length >= SHORTEST {
            false
        } else if !paused && length >= SHORTEST && length - utterance.asked_at >= PARTIAL {
            true
        } else {
            return;
        };
        utterance.asked_at = length;
        utterance.asked = Some(self.ask(utterance, partial));
    }

    fn ask(&self, utterance: &Utterance, partial: bool) -> Asked {
        let hearing = Hearing {
            partial,
            prefix: if partial {
                utterance.prefix.clone()
            } else {
                Vec::new()
            },
            ..self.hearing.clone()
        };
        let (pool, party) = (Arc::clone(&self.pool), self.party.clone());
        let audio = utterance.audio.clone();
        let length = audio.len();
        let answer = async move {
            let limit = pool.deadlines().answer + RATE.duration_of(audio.len());
            let lease = pool.lease(&party).await?;
            match ask(lease, &Request::Hear(hearing), &audio, limit).await? {
                Reply::Heard(heard) => Ok(heard),
                _ => Err(PoolError::Garbage {
                    name: "recogniser",
                    said: "an answer to something else".to_owned(),
                }
                .into()),
            }
        };
        Asked {
            length,
            partial,
            answer: AbortOnDropHandle::new(tokio::spawn(answer.in_current_span())),
        }
    }

    /// Takes an answer while the utterance goes on.
    fn heard(&mut self, utterance: &mut Utterance, heard: Result<Heard, AskError>) {
        let Some(asked) = utterance.asked.take() else {
            return;
        };
        match heard {
            Ok(heard) if asked.partial => {
                let agreed = heard
                    .tokens
                    .iter()
                    .zip(&utterance.tokens)
                    .take_while(|(now, before)| now == before)
                    .count();
                let settled = agreed.min(heard.tokens.len().saturating_sub(UNSETTLED));
                if settled > utterance.prefix.len() {
                    utterance.prefix = heard.tokens[..settled].to_vec();
                }
                utterance.tokens.clone_from(&heard.tokens);
                self.partial(heard.text, heard.language);
            }
            Ok(heard) => {
                self.partial(heard.text.clone(), heard.language.clone());
                utterance.ahead = Some((asked.length, heard));
            }
            // The utterance is heard again at its end.
            Err(error) => {
                tracing::debug!(%error, "an utterance was not heard ahead of its end");
                self.pool.keep_one_warm();
            }
        }
    }

    /// The final of an utterance that is complete. A worker that fails gets a successor that hears it again.
    async fn finish(&mut self, utterance: &mut Utterance) -> Result<Heard, AskError> {
        if let Some(asked) = utterance.asked.take()
            && !asked.partial
            && asked.length + utterance.quiet >= utterance.audio.len()
        {
            let length = asked.length;
            if let Ok(Ok(heard)) = asked.answer.await {
                utterance.ahead = Some((length, heard));
            }
        }
        if let Some((length, heard)) = utterance.ahead.take()
            && length + utterance.quiet >= utterance.audio.len()
        {
            return Ok(heard);
        }
        let mut tried = self.ask(utterance, false).answer.await;
        if let Ok(Err(AskError::Pool(error))) = &tried
            && !matches!(error, PoolError::Busy { .. })
        {
            tracing::warn!(%error, "an utterance is heard again by another worker");
            tried = self.ask(utterance, false).answer.await;
        }
        tried.unwrap_or_else(|_| {
            Err(PoolError::Died {
                name: "recogniser",
                cause: "its task was cancelled".to_owned(),
            }
            .into())
        })
    }

    async fn report(&mut self, event: SttEvent) {
        self.in_turn = true;
        // Fails when nobody reads any more, which ends the session elsewhere.
        let _ = self.events.send(Ok(event)).await;
    }

    /// Reports a partial, unless the reader is behind: a later one will say more.
    fn partial(&mut self, text: String, language: String) {
        if text.is_empty() && !self.in_turn {
            return;
        }
        let partial = Transcript {
            text,
            language: (!language.is_empty()).then_some(language),
            ..Transcript::default()
        };
        if self.events.try_send(Ok(SttEvent::Partial(partial))).is_ok() {
            self.in_turn = true;
        }
    }
}

/// The answer to what was asked; never without. Cancel-safe.
async fn answer(asked: &mut Option<Asked>) -> Result<Heard, AskError> {
    match asked {
        Some(asked) => (&mut asked.answer).await.unwrap_or_else(|_| {
            Err(PoolError::Died {
                name: "recogniser",
                cause: "its task was cancelled".to_owned(),
            }
            .into())
        }),
        None => std::future::pending().await,
    }
}

/// What an error is to a caller.
fn kind(error: &AskError) -> ErrorKind {
    match error {
        AskError::Pool(error) => error.kind(),
        AskError::Refused(_) => ErrorKind::InvalidRequest,
        AskError::Request(_) => ErrorKind::Protocol,
    }
}

impl Utterance {
    fn new(first_sample: u64) -> Self {
        Self {
            first_sample,
            audio: Vec::with_capacity(RATE.frames_in(LONGEST_UTTERANCE)),
            quiet: 0,
            ended: None,
            asked: None,
            asked_at: 0,
            tokens: Vec::new(),
            prefix: Vec::new(),
            ahead: None,
        }
    }

    fn take(&mut self, cut: Option<(Cut, usize)>) {
        match cut {
            Some((Cut::Audio(samples), quiet)) => {
                self.audio.extend(samples);
                self.quiet = quiet;
            }
            Some((Cut::End(why), _)) => self.ended = Some(why),
            // The cutter ends every utterance before the next begins and before the stream ends.
            Some((Cut::Begin(_), _)) | None => self.ended = Some(Ended::Asked),
        }
    }

    /// The words with their places in the stream.
    fn transcript(&self, heard: Heard) -> Transcript {
        let begin = RATE.duration_of(self.first_sample as usize).as_secs_f64();
        let lasts = RATE.duration_of(self.audio.len()).as_secs_f64();
        let words = heard
            .words
            .into_iter()
            .map(|word| Word {
                word: word.word,
                start: begin + word.start,
                end: begin + word.end.min(lasts),
                confidence: Some(word.confidence),
                speaker: None,
            })
            .collect();
        Transcript {
            confidence: (!heard.text.is_empty()).then_some(heard.confidence),
            text: heard.text,
            words,
            language: (!heard.language.is_empty()).then_some(heard.language),
            end: Some(begin + lasts),
        }
    }
}

/// The input, cut. With each cut comes how long nobody has spoken, in samples.
struct Cuts {
    input: mpsc::Receiver<SttInput>,
    cutter: UtteranceCutter,
    waiting: VecDeque<Cut>,
    input_ended: bool,
}

impl Cuts {
    fn new(input: mpsc::Receiver<SttInput>) -> Self {
        Self {
            input,
            cutter: UtteranceCutter::pausing(PAUSE),
            waiting: VecDeque::new(),
            input_ended: false,
        }
    }

    /// Whether more sound waits than somebody says in a moment.
    fn is_behind(&self) -> bool {
        self.input.len() > BEHIND
    }

    /// The next cut; `None` at the end of the input. Cancel-safe.
    async fn next(&mut self) -> Option<(Cut, usize)> {
        loop {
            if let Some(cut) = self.waiting.pop_front() {
                let waiting: usize = self
                    .waiting
                    .iter()
                    .map(|cut| match cut {
                        Cut::Audio(samples) => samples.len(),
                        Cut::Begin(_) | Cut::End(_) => 0,
                    })
                    .sum();
                return Some((cut, self.cutter.quiet().saturating_sub(waiting)));
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
}
