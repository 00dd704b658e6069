//! The one line per vendor: which providers this server has, made from the settings.

use std::sync::Arc;

use super::veil::{Veil, Veiled};
use super::{SpeechToText, TextToSpeech};

/// Every provider that there is, by slug.
#[derive(Default)]
pub struct ProviderTable {
    text_to_speech: Vec<Arc<dyn TextToSpeech>>,
    speech_to_text: Vec<Arc<dyn SpeechToText>>,
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

    /// Takes the server's credentials, and those of callers, out of what each of them says of failures.
    pub fn veil(&mut self, servers: &Veil) {
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
