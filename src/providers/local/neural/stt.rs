//! One stream of speech to a model that hears whole utterances. While somebody speaks, what was said so far is heard again
//! every few hundred milliseconds, if a worker is free; at a pause it is heard once more, ahead of need, so that the final
//! is there when the pause is long enough to end the utterance. Sound that comes while a worker is awaited or works waits
//! in the bounded sink and in the utterance, which is bounded too.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use unicode_segmentation::UnicodeSegmentation;

use super::{AskError, Speech, ask};
use crate::local::SLUG;
use crate::local::stream::{Cuts, Events};
use crate::local::utterance::{Cut, Ended, LONGEST_UTTERANCE, UtteranceCutter, ms};
use crate::local::workers::{PoolError, Shared};
use vivavoce_audio::vad::RATE;
use vivavoce_quotas::Party;
use vivavoce_seams::{ProviderError, SttEvent, SttInput, Transcript, Word};
use vivavoce_speech::recogniser::{Heard, Hearing};
use vivavoce_speech::worker::{Reply, Request};

/// New samples from one partial to the next.
const PARTIAL: usize = ms(400);
/// Of fewer samples nothing can be said.
const SHORTEST: usize = ms(500);
/// A pause of so many samples is heard as if it ended the utterance.
const AHEAD: usize = ms(200);
/// Each of the last tokens of a partial may still become another.
const UNSETTLED: usize = 3;

/// The pause that ends an utterance: short, as the final is heard ahead of it.
const PAUSE: Duration = Duration::from_millis(400);

type Pool = Shared<Speech<true>>;

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
    /// What was heard of it last, while it went on.
    tokens: Vec<u32>,
    text: String,
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
    /// Somebody's stream, heard like this.
    pub fn new(
        pool: Arc<Pool>,
        party: Party,
        hearing: Hearing,
        input: mpsc::Receiver<SttInput>,
        events: Events,
    ) -> Self {
        Self {
            pool,
            party,
            hearing,
            cuts: Cuts::new(input, UtteranceCutter::pausing(PAUSE)),
            events,
            in_turn: false,
        }
    }

    /// Serves the stream until its input ends.
    pub async fn run(mut self) {
        while let Some(cut) = self.cuts.next().await {
            if let Cut::Begin(first_sample) = cut {
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
                cut = self.cuts.next() => utterance.take(cut, self.cuts.quiet()),
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
                let lost = ProviderError::new(SLUG, error.kind(), error.to_string());
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
            let limit = pool.deadlines().answer + RATE.duration_of(length);
            let lease = pool.lease(&party).await?;
            // A worker that is not waited for any more finishes all the same, which is quicker than loading another.
            let asked = async move { ask(lease, &Request::Hear(hearing), &audio, limit).await };
            match joined(tokio::spawn(asked.in_current_span()).await)? {
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
                utterance.tokens = heard.tokens;
                // Words that are cut in their middle become others: of "okay" such a model has heard "I'll kill".
                let agreed = agreement(&heard.text, &utterance.text).to_owned();
                utterance.text = heard.text;
                if !agreed.is_empty() {
                    self.partial(agreed, heard.language);
                }
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
        let mut tried = joined(self.ask(utterance, false).answer.await);
        if let Err(error) = &tried
            && error.may_be_tried_again()
        {
            tracing::warn!(%error, "an utterance is heard again by another worker");
            tried = joined(self.ask(utterance, false).answer.await);
        }
        tried
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

/// The words with which both texts begin, as the newer one has them, without the mark behind the last one: it stands there
/// because the sound was cut.
fn agreement<'t>(newer: &'t str, older: &str) -> &'t str {
    let words = newer.unicode_word_indices().zip(older.unicode_words());
    let agreed = words.take_while(|((_, now), before)| now.to_lowercase() == before.to_lowercase());
    let end = agreed.last().map_or(0, |((at, word), _)| at + word.len());
    &newer[..end]
}

/// The answer to what was asked; never without. Cancel-safe.
async fn answer(asked: &mut Option<Asked>) -> Result<Heard, AskError> {
    match asked {
        Some(asked) => joined((&mut asked.answer).await),
        None => std::future::pending().await,
    }
}

/// What a task has answered, which may have ended without.
fn joined<T>(task: Result<Result<T, AskError>, JoinError>) -> Result<T, AskError> {
    task.unwrap_or_else(|error| {
        Err(PoolError::Died {
            name: "recogniser",
            cause: error.to_string(),
        }
        .into())
    })
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
            text: String::new(),
            prefix: Vec::new(),
            ahead: None,
        }
    }

    fn take(&mut self, cut: Option<Cut>, quiet: usize) {
        match cut {
            Some(Cut::Audio(samples)) => {
                self.audio.extend(samples);
                self.quiet = quiet;
            }
            Some(Cut::End(why)) => self.ended = Some(why),
            // The cutter ends every utterance before the next begins and before the stream ends.
            Some(Cut::Begin(_)) | None => self.ended = Some(Ended::Asked),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_hearings_agree_on_is_told() {
        for (newer, older, agreed) in [
            ("I'll kill.", "", ""),
            ("Ok,", "I'll kill.", ""),
            ("Please bring me a glee.", "Please bring.", "Please bring"),
            (
                "please, bring me a glass",
                "Please bring me a glee.",
                "please, bring me a",
            ),
            ("Straße ist lang", "straße ist.", "Straße ist"),
            ("今天天气很冷。", "今天天气好", "今天天气"),
            ("", "One two", ""),
        ] {
            assert_eq!(agreement(newer, older), agreed, "{newer}");
        }
    }
}
