//! The end of a session: from the decision to end it until its socket closes. In between the recognisers send their last
//! transcripts, until a deadline.

use std::time::Instant;

/// Whether a session ends, and how.
#[derive(Debug, Default)]
pub enum Ending {
    /// The session goes on.
    #[default]
    NotYet,
    /// The last transcripts are waited for.
    Draining {
        /// The close code.
        code: u16,
        reason: &'static str,
        /// When it is closed in any case.
        deadline: Instant,
        /// Whether participants with recognisers of their own are waited for.
        participants: bool,
    },
    /// The socket has been closed.
    Closed,
}

impl Ending {
    /// Whether the end has begun.
    pub const fn has_begun(&self) -> bool {
        !matches!(self, Self::NotYet)
    }

    pub const fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }

    /// The transcripts of all participants have been sent.
    pub const fn participants_drained(&mut self) {
        if let Self::Draining { participants, .. } = self {
            *participants = false;
        }
    }

    /// Whether nothing but the session's own recogniser keeps the socket open.
    pub const fn awaits_recogniser_only(&self) -> bool {
        matches!(
            self,
            Self::Draining {
                participants: false,
                ..
            }
        )
    }

    pub const fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Draining { deadline, .. } => Some(*deadline),
            Self::NotYet | Self::Closed => None,
        }
    }

    /// Closes the socket; returns the code and reason to close it with.
    pub const fn close(&mut self) -> Option<(u16, &'static str)> {
        match std::mem::replace(self, Self::Closed) {
            Self::Draining { code, reason, .. } => Some((code, reason)),
            Self::NotYet | Self::Closed => None,
        }
    }
}
