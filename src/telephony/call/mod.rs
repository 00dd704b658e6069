//! The life of a call as a sans-IO state machine: events and time go in, actions come out. [`task`] connects it to SIP, the
//! room and the media.

pub mod attributes;
pub mod pin;
mod referral;
pub mod task;
#[cfg(test)]
mod tests;
mod transfer;

use std::time::{Duration, Instant};

use super::agent::{Failure, Notification};
pub use transfer::Outcome;
use transfer::{Step, Transfer};
use vivavoce_seams::rooms::telephone::{CallStatus, HangupCause};

/// An outbound call fails if the gateway has not responded at all after so long.
const SILENCE: Duration = Duration::from_secs(10);
/// The same where there is another one to try.
const IMPATIENCE: Duration = Duration::from_secs(4);
/// An inbound call is answered when a subscriber hears it, and at the latest after so long: callers are billed only for
/// what they hear, and a caller in an empty room still gets an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// How long an inbound call may take to join its room.
const JOIN_WITHIN: Duration = Duration::from_secs(10);
/// How long a caller may be asked.
const ASK_WITHIN: Duration = Duration::from_mins(1);

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A provisional response to our INVITE.
    Progress(u16),
    /// Our INVITE was accepted.
    Answered,
    /// Our INVITE was refused.
    Failed(Failure),
    /// Our INVITE was redirected to somewhere that it may go.
    Redirected,
    /// The INVITE was sent elsewhere, from where there is more.
    Redialled(bool),
    /// There was nowhere else to send it.
    NotRedialled,
    /// The caller cancelled.
    Cancelled,
    /// Our answer was not acknowledged.
    Unacknowledged,
    /// The other side hung up.
    Ended,
    /// The response to our REFER.
    Referred {
        /// The number of the attempt, as in [`Output::Refer`].
        attempt: u32,
        /// The status code, if there was a response.
        code: Option<u16>,
    },
    /// The progress of a transfer.
    Notified(Notification),
    /// Before the call joins a room, its caller must say something.
    Ask,
    /// The caller has, and the call's participant joins the room.
    Admitted,
    /// The call's participant has joined the room.
    Joined,
    /// A subscriber hears the participant.
    Heard,
    /// The participant is no longer in the room.
    Left,
    /// No audio arrived for too long.
    Silent,
    /// The two sides have no media in common, or media has failed.
    NoMedia,
    /// Hang up.
    HangUp(HangupCause),
    /// Transfer the call; it may ring there for so long.
    Transfer(Duration),
    /// Time has passed.
    Tick,
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Cancel our INVITE.
    Cancel,
    /// Send our INVITE elsewhere, in place of this one. [`Input::Redialled`] or [`Input::NotRedialled`] follows.
    Redial,
    /// Answer the call.
    Answer,
    /// Refuse the call with this status code.
    Refuse(u16),
    /// Hang up.
    Bye,
    /// Report the call's status.
    Status(CallStatus),
    /// Send REFER, as the attempt with this number.
    Refer(u32),
    /// Stop or resume playing the room to the phone.
    MuteRoom(bool),
    /// The other side has accepted the REFER.
    TransferAccepted,
    /// The outcome of a transfer.
    Transferred(Outcome),
    /// The call is over.
    Over,
}

/// Time limits of a call.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From the INVITE to the answer.
    pub ringing: Duration,
    /// From the answer on.
    pub duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Our INVITE was sent.
    Dialing {
        /// Whether there was any response.
        heard: bool,
        /// When this one was sent.
        sent: Instant,
        /// Whether there is somewhere else to send it.
        more: bool,
    },
    /// It is being sent elsewhere, because of this.
    Redialling(HangupCause),
    /// An inbound call that is joining its room.
    Incoming,
    /// Answered then, and not in a room: its caller is asked.
    Asking(Instant),
    /// Answered at the first time, and joining its room since the second.
    Entering(Instant, Instant),
    /// In its room since then, waiting for a subscriber.
    Waiting(Instant),
    Active(Instant),
    Over,
}

/// The state of one call. See the module.
#[derive(Debug)]
pub struct Call {
    phase: Phase,
    status: CallStatus,
    began: Instant,
    limits: Limits,
    transfer: Transfer,
    /// Transfers attempted until now, so that a late response is not taken for that of the next attempt.
    attempts: u32,
}

impl Call {
    /// An outbound call whose INVITE is being sent.
    /// `more` tells whether there is somewhere else to send it.
    pub const fn outbound(limits: Limits, more: bool, now: Instant) -> Self {
        Self::new(
            Phase::Dialing {
                heard: false,
                sent: now,
                more,
            },
            CallStatus::Dialing,
            limits,
            now,
        )
    }

    /// An inbound call that is ringing.
    pub const fn inbound(limits: Limits, now: Instant) -> Self {
        Self::new(Phase::Incoming, CallStatus::Ringing, limits, now)
    }

    const fn new(phase: Phase, status: CallStatus, limits: Limits, began: Instant) -> Self {
        Self {
            phase,
            status,
            began,
            limits,
            transfer: Transfer::None,
            attempts: 0,
        }
    }

    /// The call's status.
    pub const fn status(&self) -> &CallStatus {
        &self.status
    }

    /// Whether the call is answered.
    pub const fn active(&self) -> bool {
        matches!(self.phase, Phase::Active(_))
    }

    /// When [`Input::Tick`] is due at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Dialing { heard, sent, more } => {
                let ringing = self.began + self.limits.ringing;
                let silence = sent + patience(more);
                Some(if heard { ringing } else { ringing.min(silence) })
            }
            Phase::Redialling(_) => Some(self.began + self.limits.ringing),
            Phase::Incoming => Some(self.began + JOIN_WITHIN),
            Phase::Asking(since) => Some(since + ASK_WITHIN),
            Phase::Entering(_, since) => Some(since + JOIN_WITHIN),
            Phase::Waiting(joined) => Some(joined + ANSWER_WITHIN),
            Phase::Active(since) => Some(since + self.limits.duration),
            Phase::Over => None,
        };
        let transfer = self.transfer.deadline();
        phase.into_iter().chain(transfer).min()
    }

    /// Handles an event.
    pub fn handle(&mut self, input: Input, now: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        match self.phase {
            Phase::Over => {}
            Phase::Dialing { .. } | Phase::Redialling(_) => {
                self.dialing(input, now, &mut outputs);
            }
            Phase::Incoming | Phase::Waiting(_) => self.incoming(&input, now, &mut outputs),
            Phase::Asking(answered) | Phase::Entering(answered, _) => {
                self.asking(&input, answered, now, &mut outputs);
            }
            Phase::Active(since) => self.speaking(input, since, now, &mut outputs),
        }
        outputs
    }

    fn dialing(&mut self, input: Input, now: Instant, outputs: &mut Vec<Output>) {
        match input {
            Input::Progress(code) => {
                if let Phase::Dialing { heard, .. } = &mut self.phase {
                    *heard = true;
                }
                if code > 100 && self.status == CallStatus::Dialing {
                    self.tell(CallStatus::Ringing, outputs);
                }
            }
            Input::Answered => {
                self.phase = Phase::Active(now);
                self.tell(CallStatus::Active, outputs);
            }
            Input::Failed(failure) => {
                let cause = cause(&failure);
                if is_elsewhere(&failure) {
                    self.redial_or(cause, outputs);
                } else {
                    self.over(cause, outputs);
                }
            }
            Input::Redirected => {
                if let Phase::Dialing { .. } = self.phase {
                    self.phase = Phase::Redialling(HangupCause::Failed);
                    outputs.push(Output::Redial);
                }
            }
            Input::Redialled(more) => {
                if let Phase::Redialling(_) = self.phase {
                    self.phase = Phase::Dialing {
                        heard: false,
                        sent: now,
                        more,
                    };
                }
            }
            Input::NotRedialled => {
                if let Phase::Redialling(cause) = self.phase {
                    self.over(cause, outputs);
                }
            }
            Input::Ended => self.over(HangupCause::Remote, outputs),
            Input::Left => self.give_up(HangupCause::Cancelled, outputs),
            Input::HangUp(cause) => {
                let cause = match cause {
                    HangupCause::Local => HangupCause::Cancelled,
                    other => other,
                };
                self.give_up(cause, outputs);
            }
            Input::NoMedia => self.give_up(HangupCause::Media, outputs),
            Input::Transfer(_) => outputs.push(Output::Transferred(Outcome::NotActive)),
            Input::Tick => self.dialing_too_long(now, outputs),
            Input::Cancelled
            | Input::Unacknowledged
            | Input::Referred { .. }
            | Input::Notified(_)
            | Input::Ask
            | Input::Admitted
            | Input::Joined
            | Input::Heard
            | Input::Silent => {}
        }
    }

    /// Time has passed while it is dialled.
    fn dialing_too_long(&mut self, now: Instant, outputs: &mut Vec<Output>) {
        let (heard, silent) = match self.phase {
            Phase::Dialing { heard, sent, more } => (heard, now >= sent + patience(more)),
            _ => (false, false),
        };
        if now >= self.began + self.limits.ringing {
            let cause = if heard {
                HangupCause::NoAnswer
            } else {
                HangupCause::Unreachable
            };
            self.give_up(cause, outputs);
        } else if !heard && silent {
            outputs.push(Output::Cancel);
            self.redial_or(HangupCause::Unreachable, outputs);
        }
    }

    /// Sends the INVITE elsewhere, if it has not rung and there is somewhere else; otherwise the call is over.
    fn redial_or(&mut self, cause: HangupCause, outputs: &mut Vec<Output>) {
        match self.phase {
            Phase::Dialing { more: true, .. } if self.status == CallStatus::Dialing => {
                self.phase = Phase::Redialling(cause);
                outputs.push(Output::Redial);
            }
            // The former leg has nothing to say any more.
            Phase::Redialling(_) => {}
            _ => self.over(cause, outputs),
        }
    }

    fn incoming(&mut self, input: &Input, now: Instant, outputs: &mut Vec<Output>) {
        match input {
            Input::Joined => {
                if self.phase == Phase::Incoming {
                    self.phase = Phase::Waiting(now);
                }
            }
            Input::Heard => self.answer(now, outputs),
            Input::Ask => {
                self.phase = Phase::Asking(now);
                outputs.push(Output::Answer);
            }
            Input::Tick => match self.phase {
                Phase::Waiting(joined) if now >= joined + ANSWER_WITHIN => {
                    self.answer(now, outputs);
                }
                Phase::Incoming if now >= self.began + JOIN_WITHIN => {
                    self.refuse(503, HangupCause::Failed, outputs);
                }
                _ => {}
            },
            Input::Cancelled => self.over(HangupCause::Cancelled, outputs),
            // A call that ends before its answer still needs a final response (RFC 3261 section 15.1.2).
            Input::Ended => self.refuse(487, HangupCause::Cancelled, outputs),
            Input::Left => self.refuse(480, HangupCause::Local, outputs),
            Input::HangUp(HangupCause::Shutdown) => {
                self.refuse(503, HangupCause::Shutdown, outputs);
            }
            Input::HangUp(cause) => self.refuse(603, *cause, outputs),
            Input::NoMedia => self.refuse(488, HangupCause::Media, outputs),
            Input::Transfer(_) => outputs.push(Output::Transferred(Outcome::NotActive)),
            Input::Progress(_)
            | Input::Answered
            | Input::Failed(_)
            | Input::Redirected
            | Input::Redialled(_)
            | Input::NotRedialled
            | Input::Unacknowledged
            | Input::Referred { .. }
            | Input::Notified(_)
            | Input::Admitted
            | Input::Silent => {}
        }
    }

    /// An inbound call that is answered and not in its room yet.
    fn asking(
        &mut self,
        input: &Input,
        answered: Instant,
        now: Instant,
        outputs: &mut Vec<Output>,
    ) {
        let is_entering = matches!(self.phase, Phase::Entering(..));
        match input {
            Input::Admitted => self.phase = Phase::Entering(answered, now),
            Input::Joined if is_entering => {
                // The time of the call is that of its answer.
                self.phase = Phase::Active(answered);
                self.tell(CallStatus::Active, outputs);
            }
            Input::Ended => self.over(HangupCause::Remote, outputs),
            Input::Cancelled => self.over(HangupCause::Cancelled, outputs),
            Input::Left => self.hang_up(HangupCause::Failed, outputs),
            Input::Silent => self.hang_up(HangupCause::MediaTimeout, outputs),
            Input::NoMedia => self.hang_up(HangupCause::Media, outputs),
            Input::Unacknowledged => self.hang_up(HangupCause::Unreachable, outputs),
            Input::HangUp(cause) => self.hang_up(*cause, outputs),
            Input::Tick => {
                if self.deadline().is_none_or(|deadline| now < deadline) {
                    return;
                }
                let cause = if is_entering {
                    HangupCause::Failed
                } else {
                    HangupCause::Unauthorized
                };
                self.hang_up(cause, outputs);
            }
            Input::Transfer(_) => outputs.push(Output::Transferred(Outcome::NotActive)),
            Input::Progress(_)
            | Input::Answered
            | Input::Failed(_)
            | Input::Redirected
            | Input::Redialled(_)
            | Input::NotRedialled
            | Input::Referred { .. }
            | Input::Notified(_)
            | Input::Ask
            | Input::Joined
            | Input::Heard => {}
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "as all phases take it")]
    fn speaking(&mut self, input: Input, since: Instant, now: Instant, outputs: &mut Vec<Output>) {
        let step = match input {
            Input::Ended => {
                let cause = if self.transfer.moving() {
                    HangupCause::Transferred
                } else {
                    HangupCause::Remote
                };
                outputs.extend(self.transfer.ended().map(Output::Transferred));
                return self.over(cause, outputs);
            }
            // The caller cancelled while our answer was on its way: it was never sent.
            Input::Cancelled => {
                outputs.extend(self.transfer.ended().map(Output::Transferred));
                return self.over(HangupCause::Cancelled, outputs);
            }
            Input::Left => return self.hang_up(HangupCause::Local, outputs),
            Input::HangUp(cause) => return self.hang_up(cause, outputs),
            Input::Silent => return self.hang_up(HangupCause::MediaTimeout, outputs),
            Input::NoMedia => return self.hang_up(HangupCause::Media, outputs),
            Input::Unacknowledged => return self.hang_up(HangupCause::Unreachable, outputs),
            Input::Tick if now >= since + self.limits.duration => {
                return self.hang_up(HangupCause::TooLong, outputs);
            }
            Input::Tick => self.transfer.tick(now),
            Input::Transfer(ringing) => self.transfer.begin(ringing, now),
            Input::Referred { attempt, code } if attempt == self.attempts => {
                self.transfer.referred(code, now)
            }
            Input::Notified(notification) => self.transfer.notified(notification, now),
            Input::Progress(_)
            | Input::Answered
            | Input::Failed(_)
            | Input::Redirected
            | Input::Redialled(_)
            | Input::NotRedialled
            | Input::Referred { .. }
            | Input::Ask
            | Input::Admitted
            | Input::Joined
            | Input::Heard => Step::Nothing,
        };
        match step {
            Step::Nothing => {}
            Step::Begun => {
                self.attempts += 1;
                outputs.extend([Output::MuteRoom(true), Output::Refer(self.attempts)]);
            }
            Step::Accepted => outputs.push(Output::TransferAccepted),
            Step::Refused(outcome) => outputs.push(Output::Transferred(outcome)),
            Step::Failed(outcome) => {
                outputs.extend([Output::MuteRoom(false), Output::Transferred(outcome)]);
            }
            Step::Succeeded => outputs.push(Output::Transferred(Outcome::Done)),
            Step::HangUp => self.hang_up(HangupCause::Transferred, outputs),
        }
    }

    fn answer(&mut self, now: Instant, outputs: &mut Vec<Output>) {
        self.phase = Phase::Active(now);
        outputs.push(Output::Answer);
        self.tell(CallStatus::Active, outputs);
    }

    fn tell(&mut self, status: CallStatus, outputs: &mut Vec<Output>) {
        self.status = status;
        outputs.push(Output::Status(status));
    }

    fn give_up(&mut self, cause: HangupCause, outputs: &mut Vec<Output>) {
        outputs.push(Output::Cancel);
        self.over(cause, outputs);
    }

    fn refuse(&mut self, code: u16, cause: HangupCause, outputs: &mut Vec<Output>) {
        outputs.push(Output::Refuse(code));
        self.over(cause, outputs);
    }

    fn hang_up(&mut self, cause: HangupCause, outputs: &mut Vec<Output>) {
        // A pending transfer ends with the call, which counts as success.
        outputs.extend(self.transfer.ended().map(Output::Transferred));
        outputs.push(Output::Bye);
        self.over(cause, outputs);
    }

    fn over(&mut self, cause: HangupCause, outputs: &mut Vec<Output>) {
        self.phase = Phase::Over;
        self.tell(CallStatus::Hangup(cause), outputs);
        outputs.push(Output::Over);
    }
}

/// How long the first response is waited for.
const fn patience(more: bool) -> Duration {
    if more { IMPATIENCE } else { SILENCE }
}

/// Whether somebody else may do better: what RFC 3263 section 4.3 says of a server that fails, and timeouts behind it.
const fn is_elsewhere(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable => true,
        Failure::Redirected { .. } => false,
        Failure::Refused { code, .. } => matches!(code, 408 | 502..=504),
    }
}

/// The hang-up cause for a failed call.
pub fn cause(failure: &Failure) -> HangupCause {
    let code = match failure {
        Failure::Refused { code, .. } => code,
        Failure::Redirected { .. } => return HangupCause::Failed,
        Failure::Unreachable => return HangupCause::Unreachable,
    };
    match code {
        401 | 403 | 407 => HangupCause::Unauthorized,
        404 | 410 | 484 | 604 => HangupCause::NotFound,
        408 | 480 | 487 => HangupCause::NoAnswer,
        415 | 488 | 606 => HangupCause::Media,
        486 | 600 => HangupCause::Busy,
        603 | 607 | 608 => HangupCause::Declined,
        _ => HangupCause::Failed,
    }
}
