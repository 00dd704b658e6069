//! Types shared by everything that deals with telephone calls: direction, hangup cause and media statistics.

use std::time::Duration;

/// Direction of a call, seen from this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The call came in.
    Inbound,
    /// This server placed the call.
    Outbound,
}

impl Direction {
    /// The value used in events and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// Why a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HangupCause {
    /// The telephone hung up.
    Remote,
    /// This server hung up: on request, or because the participant or the room ended.
    Local,
    /// An outbound call was cancelled on request while it was ringing.
    Cancelled,
    /// Busy (486, 600).
    Busy,
    /// The callee rejected the call (603 and others).
    Declined,
    /// Nobody answered in time (408, 480, or our own limit).
    NoAnswer,
    /// No such number (404, 410, 484, 604).
    NotFound,
    /// The gateway rejects our credentials (401, 403, 407).
    Unauthorized,
    /// The gateway does not answer, or its address cannot be used.
    Unreachable,
    /// The two sides have no codec or transport in common (415, 488).
    Media,
    /// No RTP arrived for too long.
    MediaTimeout,
    /// The call was transferred.
    Transferred,
    /// The call reached its maximum duration.
    TooLong,
    /// The gateway failed (all other responses).
    Failed,
    /// The server is shutting down.
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

    /// Inverse of [`Self::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == text)
    }

    /// The value used in events and on the wire.
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

/// Media statistics of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MediaReport {
    /// `PCMU`, `PCMA`, `G722` or `opus`.
    pub codec: &'static str,
    /// Whether the media is encrypted (SRTP).
    pub encrypted: bool,
    /// Packets received.
    pub received: u64,
    /// Packets expected but not received.
    pub lost: u64,
    /// Interarrival jitter (RFC 3550 section 6.4.1), in milliseconds.
    pub jitter_ms: f64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost on the way to the other side, according to its RTCP reports.
    pub lost_there: u64,
    /// Time from the answer to the first packet received.
    pub first_received: Option<Duration>,
    /// Time from the answer to the first packet sent.
    pub first_sent: Option<Duration>,
}
