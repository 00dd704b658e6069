//! The events that are posted to the receiver configured in the settings (protocol, section 7).

use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::Source;
use vivavoce_auth::TenantId;
use vivavoce_quotas::Party;

/// The body of a webhook.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Event {
    /// The session that the event is about, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_id: Option<String>,
    /// The tenant of the session or room; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// When the event queued, Unix time in milliseconds.
    pub timestamp: u64,
    /// The event with its own fields.
    #[serde(flatten)]
    pub kind: EventKind,
    /// The party that the event counts for while it waits.
    #[serde(skip)]
    pub party: Party,
}

/// The kinds of events, by their `event` name.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event")]
pub enum EventKind {
    /// A recording has been stored completely.
    #[serde(rename = "recording.stored")]
    RecordingStored(RecordingFile),
    /// A recording could not be stored and never will be.
    #[serde(rename = "recording.failed")]
    RecordingFailed {
        /// The recording's audio file.
        #[serde(flatten)]
        file: RecordingFile,
        /// The reason, for people.
        message: String,
    },
    /// A session has ended.
    #[serde(rename = "session.ended")]
    SessionEnded {
        /// The reason, for people.
        reason: String,
        /// Time from the first `config` to the end, in milliseconds.
        duration_ms: u64,
        /// Seconds of audio that were recognised.
        stt_seconds: f64,
        /// Characters of text that were synthesised.
        tts_characters: u64,
    },
    /// The status of a telephone call has changed.
    #[serde(rename = "call.status")]
    CallStatus {
        /// The call.
        sip_call_id: String,
        /// The room it is in.
        room_name: String,
        /// The call's participant in the room.
        participant_identity: String,
        /// `inbound` or `outbound`.
        direction: &'static str,
        /// `dialing`, `ringing`, `active` or `hangup`.
        status: &'static str,
        /// The hangup cause, once the call has ended.
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<&'static str>,
        /// Time from the answer to the end, in milliseconds, once the call has ended.
        #[serde(skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
    },
    /// It is known who has answered an outbound call (`classify` of `POST /sip/call`); a later one corrects it.
    #[serde(rename = "call.classified")]
    CallClassified {
        /// The call.
        sip_call_id: String,
        /// The room it is in.
        room_name: String,
        /// The call's participant in the room.
        participant_identity: String,
        /// `person`, `machine`, `screening`, `fax`, `silence`, `not_in_service` or `busy`.
        result: &'static str,
        /// How sure that is, 0 to 1.
        confidence: f64,
        /// What tells it, as in the event `call_classified` of sessions.
        reason: &'static str,
        /// Time from the answer until it was known, in milliseconds.
        after_ms: u32,
        /// Time from the first word or tone until then, in milliseconds; 0 where there was none.
        sound_ms: u32,
    },
    /// The beep of an answering machine is over, or has not come (`wait_for_beep` of `POST /sip/call`).
    #[serde(rename = "call.beep")]
    CallBeep {
        /// The call.
        sip_call_id: String,
        /// The room it is in.
        room_name: String,
        /// The call's participant in the room.
        participant_identity: String,
        /// Whether there was one.
        heard: bool,
        /// Time from the answer until it was over, or was waited for no longer, in milliseconds.
        after_ms: u32,
    },
    /// Somebody waits in a queue, is being connected, or waits no longer.
    #[serde(rename = "queue.status")]
    QueueStatus {
        /// The queue.
        queue_name: String,
        /// The call.
        sip_call_id: String,
        /// The room it is in.
        room_name: String,
        /// The call's participant in the room.
        participant_identity: String,
        /// `waiting`, `connecting`, `connected` or `left`.
        status: &'static str,
        /// How many wait before it, itself included, while it waits.
        #[serde(skip_serializing_if = "Option::is_none")]
        position: Option<u32>,
        /// How long it has waited, in milliseconds.
        waited_ms: u64,
        /// The transfer by which it is connected to a number.
        #[serde(skip_serializing_if = "Option::is_none")]
        transfer_id: Option<String>,
        /// Why it has left: `caller_left`, `removed` or `timeout`.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'static str>,
    },
    /// A transfer of a telephone call has completed or failed; a warm one has come further.
    #[serde(rename = "transfer.status")]
    TransferStatus {
        /// The call, where known.
        #[serde(skip_serializing_if = "Option::is_none")]
        sip_call_id: Option<String>,
        /// The room it is in.
        room_name: String,
        /// The call's participant in the room.
        participant_identity: String,
        /// The number or SIP URI, as given in the request.
        transfer_to: String,
        /// `warm` of a warm transfer.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<&'static str>,
        /// The id of a warm transfer.
        #[serde(skip_serializing_if = "Option::is_none")]
        transfer_id: Option<String>,
        /// The person who is called by a warm transfer, in the room.
        #[serde(skip_serializing_if = "Option::is_none")]
        person_identity: Option<String>,
        /// The outcome.
        #[serde(flatten)]
        outcome: TransferOutcome,
    },
}

/// The outcome of a transfer, by its `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum TransferOutcome {
    /// A warm transfer has begun: the person's telephone rings.
    Ringing,
    /// The person of a warm transfer has answered.
    Consulting,
    /// A warm transfer was cancelled: the caller is off hold.
    Cancelled {
        /// The reason.
        message: String,
    },
    /// The call was transferred, or the other side hung up in the meantime.
    Complete,
    /// The call continues as before.
    Failed {
        /// The reason, for people.
        message: String,
    },
}

/// The audio file of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RecordingFile {
    /// The key in the store.
    pub key: String,
    /// The duration, in milliseconds.
    pub duration_ms: u64,
    /// The size, in bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Whether it is a part: the session went on at another server, which reports the whole.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub goes_on: bool,
}

impl Event {
    /// The event id. Events about recordings happen once but may be reported several times, also by another process, so
    /// their id is derived from their content; all other events get a random id.
    pub(super) fn event_id(&self) -> uuid::Uuid {
        let (name, file) = match &self.kind {
            EventKind::RecordingStored(file) => ("recording.stored", file),
            EventKind::RecordingFailed { file, .. } => ("recording.failed", file),
            EventKind::SessionEnded { .. }
            | EventKind::CallStatus { .. }
            | EventKind::CallClassified { .. }
            | EventKind::CallBeep { .. }
            | EventKind::QueueStatus { .. }
            | EventKind::TransferStatus { .. } => return uuid::Uuid::new_v4(),
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

    /// An event of a session that happens now.
    pub fn now(stream_id: &str, tenant: Option<&str>, kind: EventKind) -> Self {
        Self {
            stream_id: Some(stream_id.to_owned()),
            ..Self::of_room(tenant, kind)
        }
    }

    /// An event of a room of this tenant that happens now.
    pub fn of_room(tenant: Option<&str>, kind: EventKind) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            stream_id: None,
            tenant: tenant.map(str::to_owned),
            timestamp: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            kind,
            party: tenant
                .and_then(|tenant| TenantId::new(tenant).ok())
                .map_or(Party::Operator, Party::Tenant),
        }
    }

    /// Counts the event for another party than its tenant.
    #[must_use]
    pub fn counted_for(self, party: Party) -> Self {
        Self { party, ..self }
    }

    /// The party it counts for, and whether it is about a recording.
    pub(super) fn source(&self) -> Source {
        Source {
            party: self.party.clone(),
            recording: match self.kind {
                EventKind::RecordingStored(_) | EventKind::RecordingFailed { .. } => true,
                EventKind::SessionEnded { .. }
                | EventKind::CallStatus { .. }
                | EventKind::CallClassified { .. }
                | EventKind::CallBeep { .. }
                | EventKind::QueueStatus { .. }
                | EventKind::TransferStatus { .. } => false,
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
        let event = EventKind::TransferStatus {
            sip_call_id: None,
            room_name: "kitchen".to_owned(),
            participant_identity: "caller".to_owned(),
            transfer_to: "1000".to_owned(),
            mode: None,
            transfer_id: None,
            person_identity: None,
            outcome: TransferOutcome::Failed {
                message: "busy".to_owned(),
            },
        };
        let event = Event {
            timestamp: 7,
            ..Event::of_room(Some("acme"), event)
        };
        assert_eq!(
            serde_json::to_value(event).unwrap(),
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
            goes_on: false,
        };
        let failed = EventKind::RecordingFailed {
            file,
            message: "taken".to_owned(),
        };
        let event = Event {
            timestamp: 7,
            ..Event::now("a", Some("acme"), failed)
        };
        let later = Event {
            timestamp: 8,
            ..event.clone()
        };
        assert_eq!(event.event_id(), later.event_id());
        let other = Event {
            stream_id: Some("b".to_owned()),
            ..event.clone()
        };
        assert_ne!(event.event_id(), other.event_id());
        assert_eq!(
            serde_json::to_value(event).unwrap(),
            json!({
                "event": "recording.failed", "stream_id": "a", "tenant": "acme", "timestamp": 7,
                "key": "recordings/a/audio.ogg", "duration_ms": 1500, "size": 9, "sha256": "ab", "message": "taken",
            })
        );
    }
}
