//! A call that is moved elsewhere (RFC 3515): the wish, what is said to it, and the three ways in which it ends — a final
//! answer that is told, the end of telling, and the end of the call.

use std::time::{Duration, Instant};

use super::super::agent::Notification;

/// Whoever was moved hangs up by itself, or is hung up after so long, as LiveKit's service does.
const BYE_AFTER: Duration = Duration::from_secs(1);

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call is elsewhere, or has ended meanwhile.
    Done,
    /// Somebody said no.
    Rejected(u16),
    /// Nothing is told any more, and nothing final was.
    Untold,
    /// It did not happen in time.
    Timeout,
    /// There is no call yet that could be moved.
    NotActive,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    None,
    /// The wish was sent; what it is waited for until then.
    Asked(Instant),
    /// It was taken.
    Accepted(Instant),
    /// They speak elsewhere; this call is to end then.
    Done(Instant),
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Begun,
    Accepted,
    /// It never began.
    Refused(Outcome),
    /// The call goes on.
    Failed(Outcome),
    Succeeded,
    HangUp,
}

impl Transfer {
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::Asked(until) | Self::Accepted(until) | Self::Done(until) => Some(*until),
        }
    }

    /// Whether nothing is known of it yet.
    const fn pending(&self) -> bool {
        matches!(self, Self::Asked(_) | Self::Accepted(_))
    }

    pub fn begin(&mut self, ringing: Duration, now: Instant) -> Step {
        match self {
            Self::None => {
                *self = Self::Asked(now + ringing);
                Step::Begun
            }
            Self::Done(_) => Step::Refused(Outcome::Done),
            // Whoever asks for the same waits with those who did before.
            Self::Asked(_) | Self::Accepted(_) => Step::Nothing,
        }
    }

    pub fn referred(&mut self, code: Option<u16>, now: Instant) -> Step {
        let Self::Asked(until) = *self else {
            return Step::Nothing;
        };
        match code {
            Some(200..=299) => {
                *self = Self::Accepted(until);
                Step::Accepted
            }
            Some(code) => self.fail(Outcome::Rejected(code)),
            None if now < until => self.fail(Outcome::Rejected(408)),
            None => self.fail(Outcome::Timeout),
        }
    }

    /// May come before the answer to the wish.
    pub fn notified(&mut self, notification: Notification, now: Instant) -> Step {
        if !self.pending() {
            return Step::Nothing;
        }
        match notification.code {
            Some(200..=299) => {
                *self = Self::Done(now + BYE_AFTER);
                Step::Succeeded
            }
            Some(code) if code >= 300 => self.fail(Outcome::Rejected(code)),
            _ if notification.last => self.fail(Outcome::Untold),
            _ => Step::Nothing,
        }
    }

    pub fn tick(&mut self, now: Instant) -> Step {
        match *self {
            Self::Asked(until) | Self::Accepted(until) if now >= until => {
                self.fail(Outcome::Timeout)
            }
            Self::Done(until) if now >= until => Step::HangUp,
            _ => Step::Nothing,
        }
    }

    /// Whether the call is being moved, or was.
    pub const fn moving(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// The call has ended; what whoever waits is told.
    pub const fn ended(&mut self) -> Option<Outcome> {
        let pending = self.pending();
        *self = Self::None;
        if pending { Some(Outcome::Done) } else { None }
    }

    const fn fail(&mut self, outcome: Outcome) -> Step {
        *self = Self::None;
        Step::Failed(outcome)
    }
}
