//! Listening: the audio input of one speaker and the recognisers that are sent its audio. A session listens to its client
//! or to the mix of its room, a transcriber to one participant. Which recogniser is started and ended when is decided by
//! [`RecogniserMachine`](super::state::recogniser::RecogniserMachine).

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::time::Instant;

use super::audio_input::AudioInput;
use super::protocol::{ListenConfig, ServerMessage, TurnModelChoice, VadConfig};
use super::turn::{Answer, Manner};
use crate::start_in_span;
use crate::stt::replay_buffer::ReplayBuffer;
use crate::stt::{Stop, SttActor, SttNews, SttReport};
use vivavoce_audio::{AudioFormat, Encoding};
use vivavoce_core::party::Party;
use vivavoce_quotas::{Permit, Quota, Refused};
use vivavoce_seams::{Credential, FinalDelay, NoAnswer, ProviderTable, SttRequest, TurnModel};
use vivavoce_telemetry::conversation::Conversation;
use vivavoce_telemetry::metrics::{self, TurnAnswer};

/// How likely it must be that somebody has finished.
const FINISHED: f32 = 0.5;

pub(super) struct Listening {
    pub(super) input: AudioInput,
    providers: Arc<ProviderTable>,
    trace: Conversation,
    /// For whom the recognisers count.
    party: Party,
    quota: Quota,
    /// Counts those that run besides the first, which the owner of this counts itself.
    counted: Vec<Permit>,
    /// For the one that is to be opened next.
    reserved: Option<Permit>,
    /// The one in force, the one that is being opened, and those that drain.
    recognisers: Vec<Recogniser>,
    /// The config in force, and the buffer of its audio.
    in_force: Option<(u64, ReplayBuffer)>,
    /// The same of configs that were replaced, while recognisers drain their audio.
    former: Vec<(u64, ReplayBuffer)>,
}

struct Recogniser {
    attempt: u32,
    actor: Addr<SttActor>,
    buffer: ReplayBuffer,
}

impl Listening {
    /// The recognisers of `party` count for `quota`.
    pub(super) fn new(
        input: AudioInput,
        providers: Arc<ProviderTable>,
        (party, quota): (Party, Quota),
        trace: Conversation,
    ) -> Self {
        Self {
            input,
            providers,
            trace,
            party,
            quota,
            counted: Vec::new(),
            reserved: None,
            recognisers: Vec::new(),
            in_force: None,
            former: Vec::new(),
        }
    }

    /// Reserves a place in the quota for a recogniser that is opened beside those that run. A former one runs until it has
    /// drained the audio that it was sent.
    pub(super) fn reserve(&mut self) -> Result<(), Refused> {
        if self.reserved.is_none() && self.recognisers.len() > self.counted.len() {
            self.reserved = Some(self.quota.take(&self.party)?);
        }
        Ok(())
    }

    /// A config will not be carried out.
    pub(super) fn discard(&mut self, config: u64) {
        self.input.discard(config);
        self.reserved = None;
    }

    /// Whether the recogniser in force is sent the audio of this config; `None` if the config has none.
    pub(super) fn is_sent(&self, config: u64) -> Option<bool> {
        let (buffer, _) = self.input.buffer(config)?;
        let in_force = self.in_force.as_ref();
        Some(in_force.is_some_and(|(_, known)| known.is(&buffer)))
    }

    /// The config is in force. `drains` says whether a recogniser still drains the audio of a config.
    pub(super) fn commit(&mut self, config: u64, vad: &VadConfig, drains: impl Fn(u64) -> bool) {
        let model = self.turn_model(vad);
        if let Some(model) = &model {
            // It gets ready where it will be asked.
            model.warm_up();
        }
        self.input.commit(config, vad, model.is_some());
        self.reserved = None;
        let buffer = self.input.buffer(config);
        let in_force = buffer.map(|(buffer, _)| (config, buffer));
        self.former
            .extend(std::mem::replace(&mut self.in_force, in_force));
        self.forget_drained(drains);
    }

    pub(super) fn forget_drained(&mut self, drains: impl Fn(u64) -> bool) {
        self.former.retain(|(config, _)| drains(*config));
        self.counted
            .truncate(self.recognisers.len().saturating_sub(1));
    }

    /// Starts a recogniser over the audio of a config.
    pub(super) fn start(
        &mut self,
        attempt: u32,
        config: u64,
        listen: ListenConfig,
        report: Recipient<SttReport>,
    ) {
        let provider = self.providers.speech_to_text(&listen.provider);
        let former = self.former.iter().find(|(known, _)| *known == config);
        let buffer = former.map(|(_, buffer)| buffer.clone());
        let buffer = buffer.or_else(|| self.input.buffer(config).map(|(buffer, _)| buffer));
        let (Some(provider), Some(buffer)) = (provider, buffer) else {
            // Both were there when the config was checked, and stay as long as its audio is transcribed.
            return;
        };
        let has_fallback = !listen.fallback.is_empty();
        let layout = buffer.layout();
        // Telephone audio that is sent as it came stays compressed: compressing it again gives the same bytes.
        let encoding = match listen.format {
            AudioFormat {
                encoding: law @ (Encoding::Mulaw | Encoding::Alaw),
                layout: same,
            } if same == layout => law,
            _ => Encoding::Linear16,
        };
        let credential = Credential::of_caller(&listen.auth, provider.credential_fields());
        let request = SttRequest {
            party: self.party.clone(),
            language: listen.language,
            model: listen.model,
            punctuation: listen.punctuation,
            format: provider.accepts().nearest(AudioFormat { encoding, layout }),
            keyterms: listen.keyterms,
            languages: listen.languages,
            diarize: listen.diarize,
            translate: false,
            // It was checked with the config.
            credential: credential.unwrap_or_default(),
        };
        let activity = self.trace.stt(provider.slug(), &request.model);
        activity.note("language", request.language.clone());
        let actor = SttActor::new(provider, request, buffer.clone(), report, attempt);
        let actor = actor.traced(activity);
        let actor = if has_fallback {
            actor.with_fallback()
        } else {
            actor
        };
        self.recognisers.push(Recogniser {
            attempt,
            actor: start_in_span(|_| actor),
            buffer,
        });
        if self.recognisers.len() > self.counted.len() + 1 {
            // One that is started again for what it still has to drain was there before.
            let hold = || self.quota.hold(&self.party);
            let permit = self.reserved.take().unwrap_or_else(hold);
            self.counted.push(permit);
        }
    }

    /// The model that hears whether turns have ended, where one is asked.
    fn turn_model(&self, vad: &VadConfig) -> Option<Arc<dyn TurnModel>> {
        let asks = vad.enabled && vad.turn_model != TurnModelChoice::Silence;
        self.providers.turn_model().filter(|_| asks)
    }

    /// Asks the model whether the speaker has finished whose turn began at `since`.
    pub(super) fn ask_model(&self, since: Duration) -> impl Future<Output = Answer> + use<> {
        let model = self.providers.turn_model();
        let sound = self.input.turn_sound(since);
        async move {
            let (Some(model), Some(sound)) = (model, sound) else {
                return Answer::None;
            };
            let asked = Instant::now();
            let answer = model.finished(sound).await;
            let (answer, told) = match answer {
                Ok(finished) if finished > FINISHED => (Answer::Finished, TurnAnswer::Finished),
                Ok(_) => (Answer::Unfinished, TurnAnswer::Unfinished),
                Err(NoAnswer::Late) => (Answer::None, TurnAnswer::Late),
                Err(NoAnswer::Busy) => (Answer::None, TurnAnswer::Busy),
                Err(NoAnswer::Failed(_)) => (Answer::None, TurnAnswer::Failed),
            };
            metrics::turn_model_asked(told, asked.elapsed());
            answer
        }
    }

    /// Ends a recogniser and its stream at once.
    pub(super) fn stop(&self, attempt: u32) {
        let mut recognisers = self.recognisers.iter();
        if let Some(stopped) = recognisers.find(|known| known.attempt == attempt) {
            stopped.actor.do_send(Stop);
        }
    }

    /// Lets a recogniser drain the audio that it has.
    pub(super) fn end(&self, attempt: u32) {
        let mut recognisers = self.recognisers.iter();
        if let Some(ending) = recognisers.find(|known| known.attempt == attempt) {
            self.input.end(&ending.buffer);
        }
    }

    /// Sees a report before the machine does. Returns how much audio was dropped so far.
    pub(super) fn reported(&mut self, report: &SttReport) -> Duration {
        if matches!(report.news, SttNews::Stopped(_)) {
            self.recognisers
                .retain(|known| known.attempt != report.attempt);
        }
        let buffer = self.in_force.as_ref().map(|(_, buffer)| buffer);
        buffer.map_or(Duration::ZERO, ReplayBuffer::lost) + self.input.undecoded()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        for recogniser in &self.recognisers {
            recogniser.actor.do_send(Stop);
        }
    }
}

/// The format in which a config's recogniser takes the audio of its input.
pub(super) fn accepted(providers: &ProviderTable, listen: &ListenConfig) -> AudioFormat {
    let offered = AudioFormat {
        encoding: Encoding::Linear16,
        layout: listen.format.layout,
    };
    // A config with an unknown provider is refused, and its audio with it.
    providers
        .speech_to_text(&listen.provider)
        .map_or(offered, |provider| provider.accepts().nearest(offered))
}

/// How each recogniser of a config ends what it hears.
pub(super) fn manners(providers: &ProviderTable, listen: &ListenConfig) -> Vec<Manner> {
    let choices = (0..listen.choices()).map(|number| listen.choice(number).provider);
    let manner = |slug: String| {
        let known = providers.speech_to_text(&slug);
        let delay = known
            .as_ref()
            .map_or(FinalDelay::UNKNOWN, |known| known.final_delay());
        Manner {
            final_patience: delay.patience(),
            ends_at_pauses: known.is_some_and(|known| known.ends_at_pauses()),
        }
    };
    choices.map(manner).collect()
}

/// The slug of a config's provider, and what the client is told of the options that it does not support, if any.
pub(super) fn ignored(
    providers: &ProviderTable,
    listen: &ListenConfig,
) -> Option<(&'static str, Option<ServerMessage>)> {
    let provider = providers.speech_to_text(&listen.provider)?;
    let requested = [
        ("keyterms", !listen.keyterms.is_empty()),
        ("languages", !listen.languages.is_empty()),
        ("diarize", listen.diarize),
        ("punctuation", !listen.punctuation),
        ("min_confidence", listen.min_confidence > 0.0),
    ];
    let spoken: Vec<&str> = listen.spoken().collect();
    let ignored: Vec<_> = requested
        .into_iter()
        .filter(|(_, requested)| *requested)
        .filter_map(|(field, _)| provider.ignored_because(field, &listen.model, &spoken))
        .collect();
    let slug = provider.slug();
    let event = || ServerMessage::provider_event("stt", "ignored", slug, ignored.join("; "));
    Some((slug, (!ignored.is_empty()).then(event)))
}
