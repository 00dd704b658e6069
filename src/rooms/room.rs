//! A room: its settings, who is in it, and when it ends. State only.

use std::collections::VecDeque;
use std::time::Instant;

use livekit_protocol as proto;

use super::ParticipantKey;
use super::outbound::Held;
use super::pace::Pace;
use vivavoce_core::party::Party;

/// What a room is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomSettings {
    /// Seconds after which a room that nobody joined ends.
    pub empty_timeout_s: u32,
    /// Seconds after which a room ends that the last participant left.
    pub departure_timeout_s: u32,
    /// Participants at a time; 0 for as many as the server takes.
    pub max_participants: u32,
    /// Free text about the room.
    pub metadata: String,
}

/// See the module.
#[derive(Debug)]
pub struct Room {
    /// `RM_…`.
    pub sid: String,
    /// Its name, unique among those that live.
    pub name: String,
    pub settings: RoomSettings,
    pub created_ms: i64,
    /// Everybody in it, in order of joining.
    pub members: Vec<ParticipantKey>,
    /// When it ends unless somebody joins.
    pub ends_at: Option<Instant>,
    /// Whether it was made by a call, and nobody has been in it but callers of whom nothing is known yet: it goes with them.
    pub on_trial: bool,
    /// Speakers as they were last told: sid and level.
    pub speakers: Vec<(String, f32)>,
    /// Whether the number of participants changed since it was told.
    pub counts_changed: bool,
    /// Nonces of the newest messages sent through the server's API, to leave out repetitions.
    pub nonces: VecDeque<Vec<u8>>,
    /// How many record it.
    pub recordings: u32,
    /// Who has made it: it counts for them, and so does whoever is in it.
    pub party: Party,
    /// What is told of it, and when.
    pub pace: Pace,
    /// The bytes that wait for those in it.
    pub held: Held,
}

impl Room {
    /// What clients are told of it; the counts come from who knows the participants.
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

/// What clients may publish. Redundant audio (RED) is not among it, so that nobody needs it converted.
pub fn enabled_codecs() -> Vec<proto::Codec> {
    let mimes = ["audio/opus", "video/VP8", "video/H264", "video/rtx"];
    mimes
        .into_iter()
        .map(|mime| proto::Codec {
            mime: mime.to_owned(),
            ..Default::default()
        })
        .collect()
}
