//! The providers of this server, by slug.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::veil::{Veil, Veiled};
use super::{Credential, SpeechToText, TextToSpeech, TurnModel};
use vivavoce_config::Secret;

/// The slug of a provider that clients may also know by another name.
pub fn canonical_slug(name: &str) -> &str {
    match name {
        "microsoft-azure" => "azure",
        slug => slug,
    }
}

/// Every provider that there is, by slug. All of them may be replaced while sessions run: whoever has looked one up keeps it.
#[derive(Default)]
pub struct ProviderTable(ArcSwap<Entries>);

#[derive(Default, Clone)]
struct Entries {
    text_to_speech: Vec<Arc<dyn TextToSpeech>>,
    speech_to_text: Vec<Arc<dyn SpeechToText>>,
    turn_model: Option<Arc<dyn TurnModel>>,
    /// The server's own credentials.
    secrets: Vec<Secret>,
}

impl ProviderTable {
    fn change(&mut self, change: impl FnOnce(&mut Entries)) {
        let mut entries = Entries::clone(&self.0.load());
        change(&mut entries);
        self.0.store(Arc::new(entries));
    }

    /// Adds a synthesiser.
    pub fn add_text_to_speech(&mut self, provider: Arc<dyn TextToSpeech>) {
        self.change(|entries| entries.text_to_speech.push(provider));
    }

    /// Adds a recogniser.
    pub fn add_speech_to_text(&mut self, provider: Arc<dyn SpeechToText>) {
        self.change(|entries| entries.speech_to_text.push(provider));
    }

    /// Sets the model that hears whether a speaker has finished.
    pub fn set_turn_model(&mut self, model: Arc<dyn TurnModel>) {
        self.change(|entries| entries.turn_model = Some(model));
    }

    /// The model that hears whether a speaker has finished; `None` where it is not installed.
    pub fn turn_model(&self) -> Option<Arc<dyn TurnModel>> {
        self.0.load().turn_model.clone()
    }

    /// Adds the server's own credential for a provider, which [`ProviderTable::veil`] hides.
    pub fn add_own_credential(&mut self, own: Option<&Credential>) {
        let secrets = own.into_iter().flat_map(Credential::secrets);
        let secrets: Vec<Secret> = secrets.cloned().collect();
        self.change(|entries| entries.secrets.extend(secrets));
    }

    /// Takes the server's credentials, and those of callers, out of the errors of every provider.
    pub fn veil(&mut self) {
        self.change(|entries| {
            let servers = Veil::over(&entries.secrets);
            for provider in &mut entries.text_to_speech {
                *provider = Arc::new(Veiled::new(Arc::clone(provider), servers.clone()));
            }
            for provider in &mut entries.speech_to_text {
                *provider = Arc::new(Veiled::new(Arc::clone(provider), servers.clone()));
            }
        });
    }

    /// Puts the providers of these slugs, and the model of turns, of another table before its own.
    pub fn keep(&mut self, of: &Self, slugs: &[&str]) {
        let kept = of.0.load_full();
        self.change(|entries| {
            let voices = kept.text_to_speech.iter();
            let voices = voices
                .filter(|provider| slugs.contains(&provider.slug()))
                .cloned();
            entries
                .text_to_speech
                .splice(0..0, voices.collect::<Vec<_>>());
            let ears = kept.speech_to_text.iter();
            let ears = ears
                .filter(|provider| slugs.contains(&provider.slug()))
                .cloned();
            entries
                .speech_to_text
                .splice(0..0, ears.collect::<Vec<_>>());
            entries.turn_model.clone_from(&kept.turn_model);
        });
    }

    /// Has the providers of another table from now on.
    pub fn replace(&self, by: &Self) {
        self.0.store(by.0.load_full());
    }

    /// The synthesiser of this slug.
    pub fn text_to_speech(&self, slug: &str) -> Option<Arc<dyn TextToSpeech>> {
        let entries = self.0.load();
        let slug = canonical_slug(slug);
        let mut providers = entries.text_to_speech.iter();
        providers.find(|provider| provider.slug() == slug).cloned()
    }

    /// The recogniser of this slug.
    pub fn speech_to_text(&self, slug: &str) -> Option<Arc<dyn SpeechToText>> {
        let entries = self.0.load();
        let slug = canonical_slug(slug);
        let mut providers = entries.speech_to_text.iter();
        providers.find(|provider| provider.slug() == slug).cloned()
    }

    /// All synthesisers.
    pub fn all_text_to_speech(&self) -> Vec<Arc<dyn TextToSpeech>> {
        self.0.load().text_to_speech.clone()
    }

    /// All recognisers.
    pub fn all_speech_to_text(&self) -> Vec<Arc<dyn SpeechToText>> {
        self.0.load().speech_to_text.clone()
    }

    /// Slugs of all synthesisers.
    pub fn text_to_speech_slugs(&self) -> Vec<&'static str> {
        let entries = self.0.load();
        let providers = entries.text_to_speech.iter();
        providers.map(|provider| provider.slug()).collect()
    }

    /// Slugs of all recognisers.
    pub fn speech_to_text_slugs(&self) -> Vec<&'static str> {
        let entries = self.0.load();
        let providers = entries.speech_to_text.iter();
        providers.map(|provider| provider.slug()).collect()
    }
}
