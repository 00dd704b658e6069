//! What happens in rooms, as webhooks tell it. The core only names it; signing and sending are somebody else's.

use livekit_protocol as proto;

use vivavoce_core::party::Party;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A room was made.
    RoomStarted,
    /// It ended.
    RoomFinished,
    /// Its media is up; a join that never gets so far is not told.
    ParticipantJoined,
    /// It left or was removed.
    ParticipantLeft,
    /// It has gone before its media came up.
    ParticipantConnectionAborted,
    /// Others know of it from now on.
    TrackPublished,
    /// It ended, by itself or with its publisher.
    TrackUnpublished,
}

impl Event {
    /// Its name in a webhook.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoomStarted => "room_started",
            Self::RoomFinished => "room_finished",
            Self::ParticipantJoined => "participant_joined",
            Self::ParticipantLeft => "participant_left",
            Self::ParticipantConnectionAborted => "participant_connection_aborted",
            Self::TrackPublished => "track_published",
            Self::TrackUnpublished => "track_unpublished",
        }
    }
}

/// An event with its circumstances.
#[derive(Debug, Clone)]
pub struct RoomEvent {
    /// What happened.
    pub event: Event,
    /// Where.
    pub room: proto::Room,
    /// For whom that room counts.
    pub of: Party,
    /// To whom.
    pub participant: Option<proto::ParticipantInfo>,
    /// To which track.
    pub track: Option<proto::TrackInfo>,
    /// When, Unix milliseconds.
    pub at_ms: i64,
}
