//! What a session, or a listener of one participant, asks of the recogniser that it starts.

use std::time::Duration;

use actix::prelude::*;

use super::messages::{ListenConfig, ServerMessage};
use crate::stt::feed::Feed;
use crate::stt::{SttActor, SttReport};
use vivavoce_audio::{AudioFormat, Encoding};
use vivavoce_core::party::Party;
use vivavoce_seams::{Credential, FinalDelay, ProviderTable, SpeechToText, SttRequest, parameters};

/// The recogniser of a config, over the sound that it is to hear; `None` where its provider has gone.
pub(super) fn actor(
    providers: &ProviderTable,
    listen: ListenConfig,
    feed: &Feed,
    party: Party,
    report: Recipient<SttReport>,
    life: u32,
) -> Option<SttActor> {
    let provider = providers.speech_to_text(&listen.provider)?;
    let layout = feed.layout();
    let stands_by = !listen.fallback.is_empty();
    // Telephone sound that nothing has changed goes up as it came: compressing it again gives the same bytes.
    let encoding = match listen.format {
        AudioFormat {
            encoding: law @ (Encoding::Mulaw | Encoding::Alaw),
            layout: same,
        } if same == layout => law,
        _ => Encoding::Linear16,
    };
    let heard = AudioFormat { encoding, layout };
    let credential = Credential::of_caller(&listen.auth, provider.credential_fields());
    let request = SttRequest {
        party,
        language: listen.language,
        model: listen.model,
        punctuation: listen.punctuation,
        format: provider.accepts().nearest(heard),
        keyterms: listen.keyterms,
        languages: listen.languages,
        diarize: listen.diarize,
        // It was checked with the config.
        credential: credential.unwrap_or_default(),
    };
    let actor = SttActor::new(provider, request, feed.clone(), report, life);
    Some(if stands_by {
        actor.with_fallback()
    } else {
        actor
    })
}

/// How long each recogniser of a config may take over a final.
pub(super) fn patience(providers: &ProviderTable, listen: &ListenConfig) -> Vec<Duration> {
    let choices = (0..listen.choices()).map(|number| listen.choice(number).provider);
    let known = choices.map(|slug| providers.speech_to_text(&slug));
    known
        .map(|provider| provider.map_or(FinalDelay::UNKNOWN, |known| known.final_delay()))
        .map(FinalDelay::patience)
        .collect()
}

/// What is told of requested options that a provider does not support; `None` where it supports them all.
pub(super) fn ignored(provider: &dyn SpeechToText, listen: &ListenConfig) -> Option<ServerMessage> {
    let requested = [
        ("keyterms", !listen.keyterms.is_empty()),
        ("languages", !listen.languages.is_empty()),
        ("diarize", listen.diarize),
        ("punctuation", !listen.punctuation),
    ];
    let ignored: Vec<_> = requested
        .into_iter()
        .filter(|(_, requested)| *requested)
        .filter_map(|(field, _)| parameters::ignored_because(provider.parameters(), field))
        .collect();
    (!ignored.is_empty()).then(|| ServerMessage::ProviderEvent {
        kind: "stt",
        state: "ignored",
        provider: provider.slug().to_owned(),
        message: ignored.join("; "),
    })
}
