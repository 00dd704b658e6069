//! What the server tells the receiver of its settings (protocol, section 7).

use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::Source;
use vivavoce_auth::TenantId;
use vivavoce_quotas::Party;

/// The body of a webhook.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Notice {
    /// The session that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_id: Option<String>,
    /// Whose session or room it was; absent where it had no tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// When it happened, Unix time in milliseconds.
    pub timestamp: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: NoticeEvent,
    /// For whom it counts while it waits.
    #[serde(skip)]
    pub party: Party,
}

/// What happened, by its name in `event`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event")]
pub enum NoticeEvent {
    /// A recording is in the store, whole.
    #[serde(rename = "recording.stored")]
    RecordingStored(RecordingFile),
    /// A recording will never be in the store.
    #[serde(rename = "recording.failed")]
    RecordingFailed {
        /// What was to be stored.
        #[serde(flatten)]
        file: RecordingFile,
        /// Why it could not be, for people.
        message: String,
    },
    /// A session has ended.
    #[serde(rename = "session.ended")]
    SessionEnded {
        /// Why, for people.
        reason: String,
        /// From its first config to its end, in milliseconds.
        duration_ms: u64,
        /// Seconds of sound that were recognised.
        stt_seconds: f64,
        /// Characters of text that were given to a synthesiser.
        tts_characters: u64,
    },
    /// A telephone call has come further.
    #[serde(rename = "call.status")]
    CallStatus {
        /// Which.
        sip_call_id: String,
        /// The room.
        room_name: String,
        /// Who it is there.
        participant_identity: String,
        /// `inbound` or `outbound`.
        direction: &'static str,
        /// `dialing`, `ringing`, `active` or `hangup`.
        status: &'static str,
        /// Why it is over, where it is.
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<&'static str>,
        /// From the answer to the end, in milliseconds, where it is over.
        #[serde(skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
    },
    /// A telephone call was moved to another number, or was not.
    #[serde(rename = "transfer.status")]
    TransferStatus {
        /// Which, where that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        sip_call_id: Option<String>,
        /// The room.
        room_name: String,
        /// Who it is there.
        participant_identity: String,
        /// As it was dialled.
        transfer_to: String,
        /// What became of it.
        #[serde(flatten)]
        outcome: TransferOutcome,
    },
}

/// What became of a transfer, by its name in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum TransferOutcome {
    /// The other side was moved, or has hung up meanwhile.
    Complete,
    /// The call goes on as it was.
    Failed {
        /// Why, for people.
        message: String,
    },
}

/// The sound of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RecordingFile {
    /// Its key in the store.
    pub key: String,
    /// How long it lasts, in milliseconds.
    pub duration_ms: u64,
    /// Its bytes.
    pub size: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

impl Notice {
    /// The id of the event. What happens once to a recording has the same one however often it is told, also by another
    /// process; everything else is told once and has a new one.
    pub(super) fn event_id(&self) -> uuid::Uuid {
        let (name, file) = match &self.event {
            NoticeEvent::RecordingStored(file) => ("recording.stored", file),
            NoticeEvent::RecordingFailed { file, .. } => ("recording.failed", file),
            NoticeEvent::SessionEnded { .. }
            | NoticeEvent::CallStatus { .. }
            | NoticeEvent::TransferStatus { .. } => return uuid::Uuid::new_v4(),
        };
        let stream_id = self.stream_id.as_deref().unwrap_or_default();
        let mut hash = Sha256::new();
        for part in [name, stream_id, &file.key, &file.sha256] {
            hash.update(part);
            hash.update([0]);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let [first, _] = *digest.as_chunks::<16>().0 else {
            return uuid::Uuid::new_v4();
        };
        uuid::Builder::from_custom_bytes(first).into_uuid()
    }

    /// Something that happens now to a session.
    pub fn now(stream_id: &str, tenant: Option<&str>, event: NoticeEvent) -> Self {
        Self {
            stream_id: Some(stream_id.to_owned()),
            ..Self::of_room(tenant, event)
        }
    }

    /// Something that happens now in a room of this tenant.
    pub fn of_room(tenant: Option<&str>, event: NoticeEvent) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            stream_id: None,
            tenant: tenant.map(str::to_owned),
            timestamp: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            event,
            party: tenant
                .and_then(|tenant| TenantId::new(tenant).ok())
                .map_or(Party::Operator, Party::Tenant),
        }
    }

    /// The same, counted for somebody of whom the notice does not tell.
    #[must_use]
    pub fn counted_for(self, party: Party) -> Self {
        Self { party, ..self }
    }

    /// For whom it counts, and among what.
    pub(super) fn source(&self) -> Source {
        Source {
            party: self.party.clone(),
            recording: match self.event {
                NoticeEvent::RecordingStored(_) | NoticeEvent::RecordingFailed { .. } => true,
                NoticeEvent::SessionEnded { .. }
                | NoticeEvent::CallStatus { .. }
                | NoticeEvent::TransferStatus { .. } => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_happens_to_a_call_names_no_session() {
        let event = NoticeEvent::TransferStatus {
            sip_call_id: None,
            room_name: "kitchen".to_owned(),
            participant_identity: "caller".to_owned(),
            transfer_to: "1000".to_owned(),
            outcome: TransferOutcome::Failed {
                message: "busy".to_owned(),
            },
        };
        let notice = Notice {
            timestamp: 7,
            ..Notice::of_room(Some("acme"), event)
        };
        assert_eq!(
            serde_json::to_value(notice).unwrap(),
            json!({
                "event": "transfer.status", "tenant": "acme", "timestamp": 7, "room_name": "kitchen",
                "participant_identity": "caller", "transfer_to": "1000", "status": "failed", "message": "busy",
            })
        );
    }

    #[test]
    fn a_body_is_flat_and_names_its_event() {
        let file = RecordingFile {
            key: "recordings/a/audio.ogg".to_owned(),
            duration_ms: 1_500,
            size: 9,
            sha256: "ab".to_owned(),
        };
        let failed = NoticeEvent::RecordingFailed {
            file,
            message: "taken".to_owned(),
        };
        let notice = Notice {
            timestamp: 7,
            ..Notice::now("a", Some("acme"), failed)
        };
        let later = Notice {
            timestamp: 8,
            ..notice.clone()
        };
        assert_eq!(notice.event_id(), later.event_id());
        let other = Notice {
            stream_id: Some("b".to_owned()),
            ..notice.clone()
        };
        assert_ne!(notice.event_id(), other.event_id());
        assert_eq!(
            serde_json::to_value(notice).unwrap(),
            json!({
                "event": "recording.failed", "stream_id": "a", "tenant": "acme", "timestamp": 7,
                "key": "recordings/a/audio.ogg", "duration_ms": 1500, "size": 9, "sha256": "ab", "message": "taken",
            })
        );
    }
}
