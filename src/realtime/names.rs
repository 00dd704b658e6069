//! What the names in a session mean at this server.

/// A provider's model, and perhaps its voice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The provider's slug.
    pub provider: String,
    /// Its model; empty means its default.
    pub model: String,
    /// The voice; its default where absent.
    pub voice: Option<String>,
}

impl Named {
    /// As a request could name it.
    pub fn name(&self) -> String {
        if self.model.is_empty() {
            self.provider.clone()
        } else {
            format!("{}/{}", self.provider, self.model)
        }
    }
}

/// Looks names up.
pub trait Names: Send + Sync {
    /// The recogniser of this name, else the one that the settings name. On failure why there is none.
    fn recogniser(&self, name: Option<&str>) -> Result<Named, String>;
    /// The voice of this name, else the one that the settings name.
    fn voice(&self, name: Option<&str>) -> Result<Named, String>;
    /// A language as recognisers know it: `en` is `en-US`.
    fn language(&self, language: &str) -> String;
    /// Whether a model is installed that hears the end of turns.
    fn has_turn_model(&self) -> bool;
}
