//! What a call does: a state machine that is given what happens and the time, and says what is to be done. The wire, the room
//! and the sound are its surroundings', see [`task`].

pub mod attributes;
pub mod task;
#[cfg(test)]
mod tests;
mod transfer;

use std::time::{Duration, Instant};

use super::agent::{Failure, Notification};
pub use transfer::Outcome;
use transfer::{Step, Transfer};
use vivavoce_seams::rooms::telephone::{CallStatus, HangupCause};

/// A gateway that has not said anything after so long is not there.
const SILENCE: Duration = Duration::from_secs(10);
/// A call that came is answered when somebody in the room hears it, and after so long in any case: whoever calls is billed
/// only for what they hear, and still hears something where nobody is there yet.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// For so long a call that came may take to get into its room.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

/// What happens.
#[derive(Debug)]
pub enum Input {
    /// A provisional answer to our call.
    Progress(u16),
    /// Our call was taken.
    Answered,
    /// It was not.
    Failed(Failure),
    /// Whoever called has given up.
    Cancelled,
    /// Our answer did not arrive.
    Unacknowledged,
    /// The telephone has hung up.
    Ended,
    /// What was said to our REFER for this wish.
    Referred {
        /// As in [`Output::Refer`].
        wish: u32,
        /// The status, if there was any.
        code: Option<u16>,
    },
    /// What has become of it.
    Notified(Notification),
    /// The caller's participant is in the room.
    Joined,
    /// Somebody hears the participant.
    Heard,
    /// The participant is not in the room any more.
    Left,
    /// No sound came for too long.
    Silent,
    /// The two sides have no sound in common, or there is none.
    NoMedia,
    /// The call is to end.
    HangUp(HangupCause),
    /// The call is to be moved; it may ring there for so long.
    Transfer(Duration),
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Take our call back.
    Cancel,
    /// Answer.
    Answer,
    /// Refuse, with this status.
    Refuse(u16),
    /// Hang up.
    Bye,
    /// Tell everybody where the call is.
    Status(CallStatus),
    /// Send REFER, for the wish of this number.
    Refer(u32),
    /// Keep the room from the telephone, or no longer.
    MuteRoom(bool),
    /// The other side has taken the wish.
    TransferAccepted,
    /// What has become of a transfer.
    Transferred(Outcome),
    /// Nothing more is to be done for this call.
    Over,
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Until somebody picks up.
    pub ringing: Duration,
    /// From the answer on.
    pub duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Our call is on its way.
    Dialing {
        /// Whether anybody has said anything.
        heard: bool,
    },
    /// A call that came, on its way into the room.
    Incoming,
    /// It is in the room since then.
    Waiting(Instant),
    Active(Instant),
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Call {
    phase: Phase,
    status: CallStatus,
    began: Instant,
    limits: Limits,
    transfer: Transfer,
    /// Wishes to move the call until now: what is said to one is not taken for what is said to the next.
    wishes: u32,
}

impl Call {
    /// A call from here, whose first request is being sent.
    pub const fn outbound(limits: Limits, now: Instant) -> Self {
        Self::new(
            Phase::Dialing { heard: false },
            CallStatus::Dialing,
            limits,
            now,
        )
    }

    /// A call that came, and that rings.
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
            wishes: 0,
        }
    }

    /// Where the call is.
    pub const fn status(&self) -> &CallStatus {
        &self.status
    }

    /// Whether they speak.
    pub const fn active(&self) -> bool {
        matches!(self.phase, Phase::Active(_))
    }

    /// When it is to be looked at again, whatever happens.
    pub fn deadline(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Dialing { heard } => {
                let ringing = self.began + self.limits.ringing;
                let silence = self.began + SILENCE;
                Some(if heard { ringing } else { ringing.min(silence) })
            }
            Phase::Incoming => Some(self.began + JOIN_WITHIN),
            Phase::Waiting(joined) => Some(joined + ANSWER_WITHIN),
            Phase::Active(since) => Some(since + self.limits.duration),
            Phase::Over => None,
        };
        let transfer = self.transfer.deadline();
        phase.into_iter().chain(transfer).min()
    }

    /// Takes what happens.
    pub fn handle(&mut self, input: Input, now: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        match self.phase {
            Phase::Over => {}
            Phase::Dialing { heard } => self.dialing(input, heard, now, &mut outputs),
            Phase::Incoming | Phase::Waiting(_) => self.incoming(&input, now, &mut outputs),
            Phase::Active(since) => self.speaking(input, since, now, &mut outputs),
        }
        outputs
    }

    fn dialing(&mut self, input: Input, heard: bool, now: Instant, outputs: &mut Vec<Output>) {
        match input {
            Input::Progress(code) => {
                self.phase = Phase::Dialing { heard: true };
                if code > 100 && self.status == CallStatus::Dialing {
                    self.tell(CallStatus::Ringing, outputs);
                }
            }
            Input::Answered => {
                self.phase = Phase::Active(now);
                self.tell(CallStatus::Active, outputs);
            }
            Input::Failed(failure) => self.over(cause(&failure), outputs),
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
            Input::Tick => {
                if now >= self.began + self.limits.ringing {
                    let cause = if heard {
                        HangupCause::NoAnswer
                    } else {
                        HangupCause::Unreachable
                    };
                    self.give_up(cause, outputs);
                } else if !heard && now >= self.began + SILENCE {
                    self.give_up(HangupCause::Unreachable, outputs);
                }
            }
            Input::Cancelled
            | Input::Unacknowledged
            | Input::Referred { .. }
            | Input::Notified(_)
            | Input::Joined
            | Input::Heard
            | Input::Silent => {}
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
            // What was hung up before the answer still wants one (RFC 3261 section 15.1.2).
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
            | Input::Unacknowledged
            | Input::Referred { .. }
            | Input::Notified(_)
            | Input::Silent => {}
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
            // Whoever called gave up while our answer was on its way: it was never sent.
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
            Input::Referred { wish, code } if wish == self.wishes => {
                self.transfer.referred(code, now)
            }
            Input::Notified(notification) => self.transfer.notified(notification, now),
            Input::Progress(_)
            | Input::Answered
            | Input::Failed(_)
            | Input::Referred { .. }
            | Input::Joined
            | Input::Heard => Step::Nothing,
        };
        match step {
            Step::Nothing => {}
            Step::Begun => {
                self.wishes += 1;
                outputs.extend([Output::MuteRoom(true), Output::Refer(self.wishes)]);
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
        // Whoever waits for a transfer learns that the call has ended, which counts as moved.
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

/// What a refusal means.
pub fn cause(failure: &Failure) -> HangupCause {
    let Failure::Refused { code, .. } = failure else {
        return HangupCause::Unreachable;
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
