//! The metadata of a recording, stored as `metadata.json` beside its audio.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use vivavoce_auth::{Access, TenantId};

/// The metadata of a recording (`metadata.json`). Unknown fields are ignored, so that older servers can read what newer
/// ones have written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Metadata {
    /// The session's name.
    pub stream_id: String,
    /// The owner; absent if the session had no tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether every authenticated caller may fetch it, because its session had no token while authentication was on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
    /// When the audio begins, Unix time in milliseconds.
    pub started_at: u64,
    /// The duration of the audio, in milliseconds.
    pub duration_ms: u64,
    /// The size of the audio file, in bytes.
    pub size: u64,
    /// SHA-256 of the audio file, in hexadecimal.
    pub sha256: String,
    /// 1: input and output are mixed. 2: input on the left channel, output on the right.
    pub channels: u8,
    /// The participants.
    pub participants: Vec<Participant>,
    /// False if the recording was cut off before its session ended, or is a part that others are to follow.
    pub complete: bool,
    /// Whether the session went on at another server: what is recorded there follows, and takes the place of this when both
    /// have been joined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes_on: bool,
    /// When the parts of the audio began, Unix time in milliseconds, if it was joined of those of several servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<u64>,
    /// Whether one of these parts was cut off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// The `started_at` of the part at another server that this one follows, if they could not be joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<u64>,
    /// The name of the audio file below the folder of its owner, if an egress of a room was asked to give it one. Absent: it is
    /// beside this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A participant of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Participant {
    /// The name: `client` for the client of the socket, `agent` for the speech sent to it.
    pub identity: String,
    /// The provider that recognises or synthesises this participant's speech, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

impl Metadata {
    /// When its parts began.
    pub fn begun(&self) -> &[u64] {
        match self.parts.as_slice() {
            [] => std::slice::from_ref(&self.started_at),
            parts => parts,
        }
    }

    /// When the last of its parts began.
    pub fn ends_with(&self) -> u64 {
        self.begun().last().copied().unwrap_or(self.started_at)
    }

    /// Whether the parts of another one are among its own.
    pub fn has(&self, other: &Self) -> bool {
        let begun = self.begun();
        other.begun().iter().all(|part| begun.contains(part))
    }

    /// Whether somebody may fetch it; a public recording may be fetched by more callers than may list and delete it.
    pub fn may_be_read_by(&self, access: &Access) -> bool {
        self.public || self.may_be_seen_by(access)
    }

    /// Whether somebody may list, fetch and delete it. Metadata with an invalid tenant is visible to nobody.
    pub fn may_be_seen_by(&self, access: &Access) -> bool {
        match self.tenant.as_deref().map(TenantId::new) {
            None => access.may_see(None),
            Some(Ok(tenant)) => access.may_see(Some(&tenant)),
            Some(Err(_)) => false,
        }
    }
}
