//! The session's name, which is also that of its recording.

use schemars::JsonSchema;
use serde::Serialize;

use crate::json::Misfit;

/// A session's name, chosen by the client or generated.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, JsonSchema)]
pub struct StreamId(
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = r"^[A-Za-z0-9](\.?[A-Za-z0-9_-])*\.?$")
    )]
    String,
);

impl StreamId {
    /// Validates a name from a client: 1–128 characters of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit,
    /// without `..`.
    pub fn parse(text: &str) -> Result<Self, Misfit> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let valid = (1..=128).contains(&text.len())
            && text.chars().all(allowed)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && !text.contains("..");
        if valid {
            return Ok(Self(text.to_owned()));
        }
        Err(Misfit {
            place: "stream_id".to_owned(),
            problem: "must be 1 to 128 characters of A-Z a-z 0-9 . _ -, begin with a letter or digit and hold no two dots in a row".to_owned(),
        })
    }

    /// A new, unique name.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
