//! How discreet recordings are, by tenant: how long they are kept, what their transcripts leave out, whether pressed keys are
//! recorded, and what is announced before one begins. The rules come from the settings.

use std::collections::HashMap;
use std::time::Duration;

use super::redaction::Redaction;

/// The rules for the recordings of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// How long they are kept; for ever if absent.
    pub retention: Option<Duration>,
    /// What transcripts leave out.
    pub redaction: Redaction,
    /// Whether the sound of that is silent.
    pub redacts_sound: bool,
    /// Whether nothing is recorded while keys of a telephone are pressed.
    pub hides_keys: bool,
    /// What is said before a recording begins that holds a room.
    pub announcement: Option<String>,
}

impl Rules {
    /// Whether some of the sound may have to be silenced.
    pub fn silences(&self) -> bool {
        self.redacts_sound && !self.redaction.is_empty()
    }
}

/// The rules of all tenants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discretion {
    /// Of those without rules of their own, and of what belongs to nobody.
    pub everybody: Rules,
    /// Of tenants.
    pub tenants: HashMap<String, Rules>,
}

impl Discretion {
    /// The rules for recordings of this tenant, or of nobody.
    pub fn of(&self, tenant: Option<&str>) -> &Rules {
        let own = tenant.and_then(|tenant| self.tenants.get(tenant));
        own.unwrap_or(&self.everybody)
    }

    /// Whether some recordings are deleted one day.
    pub fn forgets(&self) -> bool {
        let mut all = self.tenants.values().chain([&self.everybody]);
        all.any(|rules| rules.retention.is_some())
    }
}
