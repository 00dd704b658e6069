//! The state of a room: its settings, its members, and when it ends.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use livekit_protocol as proto;

use super::ParticipantKey;
use super::outbound::Held;
use super::pace::Pace;
use vivavoce_core::party::Party;
use vivavoce_telemetry::metrics;

/// Settings of a room.
#[derive(Debug, Clone, PartialEq)]
pub struct RoomSettings {
    /// Seconds until a room that nobody has joined ends.
    pub empty_timeout_s: u32,
    /// Seconds until a room ends after its last participant has left.
    pub departure_timeout_s: u32,
    /// Limit of participants; 0 for that of the server.
    pub max_participants: u32,
    /// Free text.
    pub metadata: String,
    /// Agents to be dispatched to a room when it is created; the unnamed one if there are none.
    pub agents: Vec<proto::RoomAgentDispatch>,
}

/// The only way of media to a participant that wants no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Tcp,
    /// By the TURN server over TLS.
    Relayed,
}

/// A room. See the module.
#[derive(Debug)]
pub struct Room {
    /// `RM_…`.
    pub sid: String,
    /// Its name, unique among existing rooms.
    pub name: String,
    pub settings: RoomSettings,
    pub created_ms: i64,
    /// Its members, in order of joining.
    pub members: Vec<ParticipantKey>,
    /// When it ends unless somebody joins.
    pub ends_at: Option<Instant>,
    /// Whether it was created by an inbound call, and had no members but callers that have not proved their address: it
    /// ends with them.
    pub on_trial: bool,
    /// Active speakers as last reported: sid and level.
    pub speakers: Vec<(String, f32)>,
    /// Whether the number of participants has changed since it was last reported.
    pub counts_changed: bool,
    /// Nonces of recent messages of the server API, to drop repetitions.
    pub nonces: VecDeque<Vec<u8>>,
    /// Who has asked to be reached in one way only, for the next time they join.
    pub ways: HashMap<Box<str>, Way>,
    /// The number of its recordings.
    pub recordings: u32,
    /// The party that the room and its participants count for.
    pub party: Party,
    /// The rate limit of its state updates.
    pub pace: Pace,
    /// Bytes queued for its members.
    pub held: Held,
    /// Counts it as a room that exists.
    #[expect(dead_code, reason = "counts until it is dropped")]
    pub present: metrics::Present,
}

impl Room {
    /// What clients are told of it; the counts are the caller's.
    pub fn info(&self, participants: u32, publishers: u32) -> proto::Room {
        proto::Room {
            sid: self.sid.clone(),
            name: self.name.clone(),
            empty_timeout: self.settings.empty_timeout_s,
            departure_timeout: self.settings.departure_timeout_s,
            max_participants: self.settings.max_participants,
            creation_time: self.created_ms / 1_000,
            creation_time_ms: self.created_ms,
            enabled_codecs: enabled_codecs(),
            metadata: self.settings.metadata.clone(),
            num_participants: participants,
            num_publishers: publishers,
            active_recording: self.recordings > 0,
            ..Default::default()
        }
    }
}

/// The codecs that clients may publish. Redundant audio (RED) is not among them, because some subscribers would need it
/// converted.
pub fn enabled_codecs() -> Vec<proto::Codec> {
    let mimes = [
        "audio/opus",
        "video/VP8",
        "video/H264",
        "video/VP9",
        "video/AV1",
        "video/rtx",
    ];
    mimes
        .into_iter()
        .map(|mime| proto::Codec {
            mime: mime.to_owned(),
            ..Default::default()
        })
        .collect()
}
