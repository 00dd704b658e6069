//! What is known of a recording, as `metadata.json` keeps it beside the sound.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use vivavoce_auth::{Access, TenantId};

/// `metadata.json`. Unknown fields are left alone, so that older servers read what newer ones have written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
    /// The session's name.
    pub stream_id: String,
    /// Whose it is; nobody's where the session was made without a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether every authenticated caller may fetch it: its session had no token while authentication was on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
    /// When the sound begins, Unix time in milliseconds.
    pub started_at: u64,
    /// How long the sound lasts, in milliseconds.
    pub duration_ms: u64,
    /// Bytes of the sound's file.
    pub size: u64,
    /// SHA-256 of the sound's file, in hexadecimal.
    pub sha256: String,
    /// 1 where both sides are mixed, 2 where the left channel is what was heard and the right what was played.
    pub channels: u8,
    /// Who is in it.
    pub participants: Vec<Participant>,
    /// False where the recording was cut off before its session ended.
    pub complete: bool,
}

/// One of those who are heard in a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Participant {
    /// Its name: `client` for whoever is behind the socket, `agent` for what is said to them.
    pub identity: String,
    /// Who recognises or synthesises for it, where somebody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

impl Metadata {
    /// Whether somebody may fetch it, which may be more than may list and delete it.
    pub fn may_be_read_by(&self, access: &Access) -> bool {
        self.public || self.may_be_seen_by(access)
    }

    /// Whether it is there for somebody. What has a tenant that could be nobody's name is for nobody.
    pub fn may_be_seen_by(&self, access: &Access) -> bool {
        match self.tenant.as_deref().map(TenantId::new) {
            None => access.may_see(None),
            Some(Ok(tenant)) => access.may_see(Some(&tenant)),
            Some(Err(_)) => false,
        }
    }
}
