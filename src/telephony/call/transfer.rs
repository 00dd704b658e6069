//! The transfer of a call by REFER (RFC 3515). It ends with a final response in a NOTIFY, the end of the subscription, or
//! the end of the call.

use std::time::{Duration, Instant};

use super::super::agent::Notification;

/// A transferred call is hung up after so long unless the other side does, as in LiveKit's SIP service.
pub(super) const BYE_AFTER: Duration = Duration::from_secs(1);

/// The outcome of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call was transferred, or has ended after the REFER was accepted.
    Done,
    /// The call has ended before.
    Left,
    /// The REFER or the new call was refused.
    Rejected(u16),
    /// The subscription ended without a final response.
    Untold,
    /// There was no final response in time.
    Timeout,
    /// The call is not answered yet.
    NotActive,
}

/// The progress of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    None,
    /// REFER was sent; deadline of the transfer.
    Asked(Instant),
    /// REFER was accepted; deadline of the transfer.
    Accepted(Instant),
    /// The new call is answered; when to hang up this one.
    Done(Instant),
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    Begun,
    Accepted,
    /// It cannot begin.
    Refused(Outcome),
    /// It failed; the call continues.
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

    /// Whether the outcome is open.
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
            // A second request for the same target waits for the outcome of the first.
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

    /// A NOTIFY may arrive before the response to REFER.
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

    /// Whether a transfer is under way or done.
    pub const fn moving(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// The call has ended: the outcome for those that wait.
    pub const fn ended(&mut self) -> Option<Outcome> {
        let outcome = match self {
            Self::Asked(_) => Some(Outcome::Left),
            Self::Accepted(_) => Some(Outcome::Done),
            Self::None | Self::Done(_) => None,
        };
        *self = Self::None;
        outcome
    }

    const fn fail(&mut self, outcome: Outcome) -> Step {
        *self = Self::None;
        Step::Failed(outcome)
    }
}
