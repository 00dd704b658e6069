//! One stream of speech: its audio is cut into utterances, each is heard by a leased worker, and the worker's reports
//! become the stream's events. While a worker is awaited, loads or answers, the audio that comes in the meantime waits
//! in the bounded sink.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::LANGUAGE;
use super::library::{CepstralMean, UNKNOWN_SPEAKER};
use super::narrowband::Narrowband;
use super::pool::Pocketsphinx;
use super::wire::{Command, HeardWord, Report};
use crate::local::SLUG;
use crate::local::stream::{self, Events};
use crate::local::utterance::{Cut, Ended, LONGEST_UTTERANCE, UtteranceCutter};
use crate::local::workers::{self, PoolError, hung, out_of_turn};
use vivavoce_audio::vad::RATE;
use vivavoce_quotas::Party;
use vivavoce_seams::{ProviderError, SttEvent, SttInput, Transcript, Word};

/// Samples that are written to a worker at a time: 100 ms, between two looks at its reports.
const PIECE: usize = 1_600;

type Shared = workers::Shared<Pocketsphinx>;
type Lease = workers::Lease<Pocketsphinx>;

/// An open stream.
pub struct Session {
    pool: Arc<Shared>,
    party: Party,
    cuts: Cuts,
    events: Events,
    /// What was learned of the speaker so far.
    mean: CepstralMean,
    /// Something was reported since the speaker last finished.
    in_turn: bool,
}

/// An utterance while it is heard. The audio is kept for a second try.
struct Utterance {
    first_sample: u64,
    audio: Vec<i16>,
    ended: Option<Ended>,
}

impl Session {
    pub fn new(
        pool: Arc<Shared>,
        party: Party,
        input: mpsc::Receiver<SttInput>,
        events: Events,
    ) -> Self {
        Self {
            pool,
            party,
            cuts: Cuts::new(input),
            events,
            mean: UNKNOWN_SPEAKER,
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

    /// Hears one utterance to its end and reports it. A worker that fails gets a successor that hears it all again.
    async fn recognise(&mut self, mut utterance: Utterance) {
        let mut heard = self.hear(&mut utterance).await;
        if let Err(error) = &heard
            && !matches!(error, PoolError::Busy { .. })
        {
            tracing::warn!(%error, "an utterance is heard again by another worker");
            heard = self.hear(&mut utterance).await;
        }
        match heard {
            Ok((words, mean)) => {
                self.mean = mean;
                let text = utterance.transcript(words);
                if !text.text.is_empty() {
                    self.report(SttEvent::Final(text)).await;
                }
            }
            Err(error) => {
                self.pool.keep_one_warm();
                let lost = ProviderError::new(SLUG, error.kind(), error.to_string());
                self.report(SttEvent::UtteranceLost(lost)).await;
                // What is still to come of it has nobody to hear it.
                while utterance.ended.is_none() && utterance.more(self.cuts.next().await) {
                    utterance.audio.clear();
                }
            }
        }
        if self.in_turn && utterance.ended != Some(Ended::Length) {
            self.report(SttEvent::EndOfSpeech).await;
            self.in_turn = false;
        }
    }

    async fn report(&mut self, event: SttEvent) {
        self.in_turn = true;
        // Fails when nobody reads any more, which ends the session elsewhere.
        let _ = self.events.send(Ok(event)).await;
    }

    async fn hear(
        &mut self,
        utterance: &mut Utterance,
    ) -> Result<(Vec<HeardWord>, CepstralMean), PoolError> {
        let mut worker = self.pool.lease(&self.party).await?;
        worker.send(&Command::Begin(self.mean).to_bytes()).await?;
        let mut sent = 0;
        loop {
            while let Some(piece) = utterance.piece(sent) {
                sent += piece.len();
                let audio = Command::Audio(piece.to_vec()).to_bytes();
                worker.send(&audio).await?;
            }
            if utterance.ended.is_some() {
                break;
            }
            tokio::select! {
                report = worker.report() => match report? {
                    Report::Partial { text } => self.partial(text),
                    other => return Err(out_of_turn::<Pocketsphinx>(&other)),
                },
                cut = self.cuts.next() => {
                    utterance.more(cut);
                }
            }
        }
        worker.send(&Command::End.to_bytes()).await?;
        let answer = self.answer(&mut worker, utterance).await?;
        worker.give_back();
        Ok(answer)
    }

    async fn answer(
        &mut self,
        worker: &mut Lease,
        utterance: &Utterance,
    ) -> Result<(Vec<HeardWord>, CepstralMean), PoolError> {
        let length = RATE.duration_of(utterance.audio.len());
        let limit = self.pool.deadlines().answer + length;
        let deadline = Instant::now() + limit;
        loop {
            let report = timeout_at(deadline, worker.report()).await;
            match report.map_err(|_| hung::<Pocketsphinx>("answer", limit))?? {
                Report::Partial { text } => self.partial(text),
                Report::Final { words, mean } => return Ok((words, mean)),
                other => return Err(out_of_turn::<Pocketsphinx>(&other)),
            }
        }
    }

    /// Reports a partial, unless the reader is behind: a later one will say more.
    fn partial(&mut self, text: String) {
        if text.is_empty() && !self.in_turn {
            return;
        }
        let partial = Transcript {
            text,
            language: Some(LANGUAGE.to_owned()),
            ..Transcript::default()
        };
        if self.events.try_send(Ok(SttEvent::Partial(partial))).is_ok() {
            self.in_turn = true;
        }
    }
}

impl Utterance {
    fn new(first_sample: u64) -> Self {
        Self {
            first_sample,
            audio: Vec::with_capacity(RATE.frames_in(LONGEST_UTTERANCE)),
            ended: None,
        }
    }

    /// Takes what comes next; `false` once there is no more.
    fn more(&mut self, cut: Option<Cut>) -> bool {
        match cut {
            Some(Cut::Audio(samples)) => self.audio.extend(samples),
            Some(Cut::End(why)) => self.ended = Some(why),
            // The cutter ends every utterance before the next begins and before the stream ends.
            Some(Cut::Begin(_)) | None => self.ended = Some(Ended::Asked),
        }
        self.ended.is_none()
    }

    /// The next samples to send.
    fn piece(&self, sent: usize) -> Option<&[i16]> {
        self.audio.get(sent..)?.chunks(PIECE).next()
    }

    /// The words with their places in the stream.
    fn transcript(&self, words: Vec<HeardWord>) -> Transcript {
        let begin = RATE.duration_of(self.first_sample as usize).as_secs_f64();
        let lasts = RATE.duration_of(self.audio.len()).as_secs_f64();
        let words: Vec<Word> = words
            .into_iter()
            .map(|heard| Word {
                word: heard.word,
                start: begin + heard.start,
                end: begin + heard.end,
                confidence: Some(heard.confidence),
                speaker: None,
            })
            .collect();
        let said: Vec<&str> = words.iter().map(|word| word.word.as_str()).collect();
        let sum: f32 = words.iter().filter_map(|word| word.confidence).sum();
        Transcript {
            text: said.join(" "),
            // The recogniser's own probability of a whole utterance is next to nothing even where every word is right.
            confidence: (!words.is_empty()).then(|| sum / words.len() as f32),
            words,
            language: Some(LANGUAGE.to_owned()),
            end: Some(begin + lasts),
        }
    }
}

/// The input, cut, and filled where it came over a telephone.
struct Cuts {
    cuts: stream::Cuts,
    narrowband: Narrowband,
}

impl Cuts {
    fn new(input: mpsc::Receiver<SttInput>) -> Self {
        Self {
            cuts: stream::Cuts::new(input, UtteranceCutter::default()),
            narrowband: Narrowband::new(),
        }
    }

    /// The next cut; `None` at the end of the input. Cancel-safe.
    async fn next(&mut self) -> Option<Cut> {
        let mut cut = self.cuts.next().await?;
        match &mut cut {
            Cut::Begin(_) => self.narrowband.begin(),
            Cut::Audio(samples) => self.narrowband.fill(samples),
            Cut::End(_) => {}
        }
        Some(cut)
    }
}
