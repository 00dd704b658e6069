//! The providers of this server, by slug.

use std::sync::Arc;

use super::veil::{Veil, Veiled};
use super::{Credential, SpeechToText, TextToSpeech, TurnModel};
use vivavoce_config::Secret;

/// Every provider that there is, by slug.
#[derive(Default)]
pub struct ProviderTable {
    text_to_speech: Vec<Arc<dyn TextToSpeech>>,
    speech_to_text: Vec<Arc<dyn SpeechToText>>,
    turn_model: Option<Arc<dyn TurnModel>>,
    /// The server's own credentials.
    secrets: Vec<Secret>,
}

impl ProviderTable {
    /// Adds a synthesiser.
    pub fn add_text_to_speech(&mut self, provider: Arc<dyn TextToSpeech>) {
        self.text_to_speech.push(provider);
    }

    /// Adds a recogniser.
    pub fn add_speech_to_text(&mut self, provider: Arc<dyn SpeechToText>) {
        self.speech_to_text.push(provider);
    }

    /// Sets the model that hears whether a speaker has finished.
    pub fn set_turn_model(&mut self, model: Arc<dyn TurnModel>) {
        self.turn_model = Some(model);
    }

    /// The model that hears whether a speaker has finished; `None` where it is not installed.
    pub fn turn_model(&self) -> Option<Arc<dyn TurnModel>> {
        self.turn_model.clone()
    }

    /// Adds the server's own credential for a provider, which [`ProviderTable::veil`] hides.
    pub fn add_own_credential(&mut self, own: Option<&Credential>) {
        let secrets = own.into_iter().flat_map(Credential::secrets);
        self.secrets.extend(secrets.cloned());
    }

    /// Takes the server's credentials, and those of callers, out of the errors of every provider.
    pub fn veil(&mut self) {
        let servers = Veil::over(&self.secrets);
        for provider in &mut self.text_to_speech {
            *provider = Arc::new(Veiled::new(Arc::clone(provider), servers.clone()));
        }
        for provider in &mut self.speech_to_text {
            *provider = Arc::new(Veiled::new(Arc::clone(provider), servers.clone()));
        }
    }

    /// The synthesiser of this slug.
    pub fn text_to_speech(&self, slug: &str) -> Option<Arc<dyn TextToSpeech>> {
        self.text_to_speech
            .iter()
            .find(|provider| provider.slug() == slug)
            .cloned()
    }

    /// The recogniser of this slug.
    pub fn speech_to_text(&self, slug: &str) -> Option<Arc<dyn SpeechToText>> {
        self.speech_to_text
            .iter()
            .find(|provider| provider.slug() == slug)
            .cloned()
    }

    /// All synthesisers.
    pub fn all_text_to_speech(&self) -> Vec<Arc<dyn TextToSpeech>> {
        self.text_to_speech.clone()
    }

    /// All recognisers.
    pub fn all_speech_to_text(&self) -> Vec<Arc<dyn SpeechToText>> {
        self.speech_to_text.clone()
    }

    /// Slugs of all synthesisers.
    pub fn text_to_speech_slugs(&self) -> Vec<&'static str> {
        self.text_to_speech
            .iter()
            .map(|provider| provider.slug())
            .collect()
    }

    /// Slugs of all recognisers.
    pub fn speech_to_text_slugs(&self) -> Vec<&'static str> {
        self.speech_to_text
            .iter()
            .map(|provider| provider.slug())
            .collect()
    }
}
