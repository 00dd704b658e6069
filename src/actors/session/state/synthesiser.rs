//! The synthesiser of a session: when it is started, started again after a failure, and given up on, and what the client
//! is told of its provider. What is spoken when is decided by the [playback queue](crate::session::playback).

use std::time::Instant;

use super::Effect;
use crate::restarts::{RestartPolicy, Restarts, jitter};
use crate::session::protocol::{ErrorCode, ServerMessage};
use crate::tts::{TtsNews, TtsReport};
use vivavoce_synthesis::SpeechConfig;

/// Why nothing is spoken once the synthesiser was given up on.
pub const GIVEN_UP: &str =
    "the synthesiser has failed too often; nothing is spoken until config is sent again";

#[derive(Debug, Default)]
pub struct SynthesiserMachine {
    current: Option<Synthesiser>,
    attempts: u32,
}

#[derive(Debug)]
struct Synthesiser {
    speech: SpeechConfig,
    attempt: u32,
    /// The provider that speaks: the configured one, or a fallback.
    provider: String,
    restarts: Restarts,
    restart_at: Option<Instant>,
    /// Whether the client knows that the provider fails.
    away: bool,
    /// Given up on.
    failed: bool,
}

impl SynthesiserMachine {
    /// Whether it was given up on.
    pub fn has_failed(&self) -> bool {
        self.current.as_ref().is_some_and(|tts| tts.failed)
    }

    /// Applies the speech of a config. After an update the utterances that are queued are spoken as before.
    pub fn configure(&mut self, speech: Option<&SpeechConfig>, is_update: bool) -> Vec<Effect> {
        match (speech, &mut self.current) {
            (None, None) => Vec::new(),
            (Some(speech), Some(tts)) if !tts.failed && tts.speech == *speech => Vec::new(),
            (Some(speech), Some(tts)) if !tts.failed && is_update => {
                tts.provider.clone_from(&speech.provider);
                tts.speech.clone_from(speech);
                vec![Effect::ChangeVoice(Box::new(speech.clone()))]
            }
            (speech, _) => {
                self.current = None;
                let mut effects = vec![Effect::SetOutput(speech.cloned().map(Box::new))];
                effects.extend(speech.map(|speech| self.start(speech)));
                effects
            }
        }
    }

    fn start(&mut self, speech: &SpeechConfig) -> Effect {
        self.attempts += 1;
        self.current = Some(Synthesiser {
            speech: speech.clone(),
            attempt: self.attempts,
            provider: speech.provider.clone(),
            restarts: Restarts::new(RestartPolicy::SYNTHESISER),
            restart_at: None,
            away: false,
            failed: false,
        });
        Effect::StartTts {
            attempt: self.attempts,
            speech: Box::new(speech.clone()),
        }
    }

    /// Takes a report of the synthesiser.
    pub fn report(&mut self, report: TtsReport, now: Instant) -> Vec<Effect> {
        let TtsReport { attempt, news } = report;
        let current = self.current.as_mut();
        let Some(tts) = current.filter(|tts| tts.attempt == attempt) else {
            return Vec::new();
        };
        let event = |state, provider: &str, message| {
            let message = ServerMessage::provider_event("tts", state, provider, message);
            Effect::Tell(message)
        };
        match news {
            TtsNews::Retrying(error) => {
                tts.away = true;
                vec![event("reconnecting", &tts.provider, error.to_string())]
            }
            TtsNews::Recovered => {
                tts.away = false;
                let message = "it speaks again".to_owned();
                vec![event("recovered", &tts.provider, message)]
            }
            TtsNews::Switched { to, error } => {
                tts.away = false;
                tts.provider = to;
                vec![event("switched", &tts.provider, error.to_string())]
            }
            TtsNews::Failed(error) => {
                // The utterance ends with this error when what there is of it has been played.
                let was_away = std::mem::take(&mut tts.away);
                let failed = was_away.then(|| event("failed", &tts.provider, error.to_string()));
                failed.into_iter().collect()
            }
            TtsNews::Stopped => {
                let delay = tts.restarts.next(now.into(), jitter());
                tts.restart_at = delay.map(|delay| now + delay);
                if delay.is_some() {
                    return vec![Effect::TtsLost];
                }
                tts.failed = true;
                let failed = "the synthesiser has failed too often".to_owned();
                let refusal = ServerMessage::refusal(ErrorCode::TtsFailed, GIVEN_UP);
                vec![
                    Effect::TtsLost,
                    event("failed", &tts.provider, failed),
                    Effect::Tell(refusal),
                    // Nothing will speak the utterances that wait: the new output begins without them.
                    Effect::SetOutput(Some(Box::new(tts.speech.clone()))),
                ]
            }
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.current.as_ref().and_then(|tts| tts.restart_at)
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) -> Option<Effect> {
        let tts = self.current.as_mut()?;
        tts.restart_at.take_if(|at| *at <= now)?;
        self.attempts += 1;
        tts.attempt = self.attempts;
        Some(Effect::StartTts {
            attempt: tts.attempt,
            speech: Box::new(tts.speech.clone()),
        })
    }
}
