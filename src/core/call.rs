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

/// Who has answered an outbound call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answerer {
    /// Somebody who says a few words and waits.
    Person,
    /// An answering machine, a mailbox or a menu.
    Machine,
    /// An assistant that asks who calls and why before it lets anybody through.
    Screening,
    /// A fax machine.
    Fax,
    /// Nobody says anything.
    Silence,
    /// An announcement that the number cannot be called, by its tones or words.
    NotInService,
    /// A busy or congestion tone.
    Busy,
}

impl Answerer {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Person,
        Self::Machine,
        Self::Screening,
        Self::Fax,
        Self::Silence,
        Self::NotInService,
        Self::Busy,
    ];

    /// Inverse of [`Self::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// The value used in events and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Machine => "machine",
            Self::Screening => "screening",
            Self::Fax => "fax",
            Self::Silence => "silence",
            Self::NotInService => "not_in_service",
            Self::Busy => "busy",
        }
    }
}

/// What tells who has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnswerReason {
    /// A few words, and then a pause.
    ShortGreeting,
    /// Speech that goes on.
    LongGreeting,
    /// More words than a few, and then somebody waits for an answer.
    Waits,
    /// What the recogniser has understood.
    Words,
    /// A beep after a greeting.
    Beep,
    /// The three special information tones.
    InformationTones,
    /// The busy tone of a telephone network.
    BusyTone,
    /// The congestion tone.
    CongestionTone,
    /// A continuous number-unobtainable tone.
    UnobtainableTone,
    /// A tone of a fax machine.
    FaxTone,
    /// There is nothing to hear.
    NoSound,
}

impl AnswerReason {
    const ALL: [Self; 11] = [
        Self::ShortGreeting,
        Self::LongGreeting,
        Self::Waits,
        Self::Words,
        Self::Beep,
        Self::InformationTones,
        Self::BusyTone,
        Self::CongestionTone,
        Self::UnobtainableTone,
        Self::FaxTone,
        Self::NoSound,
    ];

    /// Inverse of [`Self::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// The value used in events and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ShortGreeting => "short_greeting",
            Self::LongGreeting => "long_greeting",
            Self::Waits => "waits",
            Self::Words => "words",
            Self::Beep => "beep",
            Self::InformationTones => "information_tones",
            Self::BusyTone => "busy_tone",
            Self::CongestionTone => "congestion_tone",
            Self::UnobtainableTone => "unobtainable_tone",
            Self::FaxTone => "fax_tone",
            Self::NoSound => "no_sound",
        }
    }
}

/// Who has answered, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classification {
    /// Who.
    pub result: Answerer,
    /// How sure that is, in percent.
    pub confidence: u8,
    /// What tells it.
    pub reason: AnswerReason,
    /// Time of the far end's sound from the answer to this; before the answer, from the first sound.
    pub after_ms: u32,
    /// The same from the first word or tone; 0 where there was none.
    pub sound_ms: u32,
}

/// What listening to the far end of an outbound call finds out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFinding {
    /// Who has answered. A later one corrects it.
    Classified(Classification),
    /// The beep of a machine is over, or did not come in time.
    Beep {
        /// Whether there was one.
        heard: bool,
        /// Time of the far end's sound from the answer to its end, or to when it was waited for no longer.
        after_ms: u32,
    },
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
    /// Packets sent that were passed on from another telephone as they were.
    pub relayed: u64,
    /// Packets lost on the way to the other side, according to its RTCP reports.
    pub lost_there: u64,
    /// Time from the answer to the first packet received.
    pub first_received: Option<Duration>,
    /// Time from the answer to the first packet sent.
    pub first_sent: Option<Duration>,
}
