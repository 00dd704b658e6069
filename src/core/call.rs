//! What is said of telephone calls everywhere: who called whom, why a call is over, and how its sound did.

use std::time::Duration;

/// Who called whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// They called us.
    Inbound,
    /// We called them.
    Outbound,
}

impl Direction {
    /// As the events say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// Why a call is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HangupCause {
    /// The telephone hung up.
    Remote,
    /// We hung up: by wish, or because the participant or the room was ended.
    Local,
    /// It rang before anybody picked up, and we gave it up by wish.
    Cancelled,
    /// Busy (486, 600).
    Busy,
    /// They would not (603 and others).
    Declined,
    /// Nobody picked up in time (408, 480, our own limit).
    NoAnswer,
    /// No such number (404, 410, 484, 604).
    NotFound,
    /// The gateway refuses us (401, 403, 407).
    Unauthorized,
    /// Nobody answers at the gateway's address, or it cannot be used.
    Unreachable,
    /// The two sides have no way to speak in common (415, 488).
    Media,
    /// No sound came for too long.
    MediaTimeout,
    /// It was moved elsewhere.
    Transferred,
    /// It lasted as long as it may.
    TooLong,
    /// The gateway failed (other answers).
    Failed,
    /// The server stops.
    Shutdown,
}

impl HangupCause {
    const ALL: [Self; 15] = [
        Self::Remote,
        Self::Local,
        Self::Cancelled,
        Self::Busy,
        Self::Declined,
        Self::NoAnswer,
        Self::NotFound,
        Self::Unauthorized,
        Self::Unreachable,
        Self::Media,
        Self::MediaTimeout,
        Self::Transferred,
        Self::TooLong,
        Self::Failed,
        Self::Shutdown,
    ];

    /// The one that [`Self::as_str`] calls so.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == text)
    }

    /// As the events say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Remote => "remote",
            Self::Local => "local",
            Self::Cancelled => "cancelled",
            Self::Busy => "busy",
            Self::Declined => "declined",
            Self::NoAnswer => "no_answer",
            Self::NotFound => "not_found",
            Self::Unauthorized => "unauthorized",
            Self::Unreachable => "unreachable",
            Self::Media => "media",
            Self::MediaTimeout => "media_timeout",
            Self::Transferred => "transferred",
            Self::TooLong => "too_long",
            Self::Failed => "failed",
            Self::Shutdown => "shutdown",
        }
    }
}

/// How the sound of a call does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MediaReport {
    /// `PCMU`, `PCMA`, `G722` or `opus`.
    pub codec: &'static str,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Packets that came.
    pub received: u64,
    /// Packets that should have come and did not.
    pub lost: u64,
    /// Interarrival jitter (RFC 3550 section 6.4.1), in milliseconds.
    pub jitter_ms: f64,
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that the other side missed, by its reports.
    pub lost_there: u64,
    /// From the answer to the first packet that came.
    pub first_received: Option<Duration>,
    /// From the answer to the first packet that was sent.
    pub first_sent: Option<Duration>,
}
