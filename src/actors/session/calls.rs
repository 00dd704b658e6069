//! The telephone calls in a session's room: transfers, hang-ups and DTMF.

use actix::prelude::*;
use tracing::Instrument;

use super::SessionActor;
use super::protocol::{
    CallCommand, ErrorCode, Origin, ServerMessage, SipTransfer, TransferErrorCode,
};
use crate::registry::calls::queues::{Destination, EnterQueue, LeaveQueue, NextCall, Waiter};
use crate::registry::calls::warm::{BeginTransfer, Finish, FinishTransfer, HoldCall, Which};
use crate::registry::calls::{CallRegistry, CallsError, HangUp, OwnGateway, TransferCall, Until};
use crate::registry::rooms::RoomsError;
use crate::room::{OnThePhone, PressKeys, RoomActor};
use vivavoce_auth::Access;
use vivavoce_core::phone::PhoneNumber;
use vivavoce_seams::rooms::link::{SendError, TelephoneKey};
use vivavoce_seams::rooms::telephone::{CallErrorKind, Hold, TransferTarget};

/// The most transfers and hang-ups of one session that are in progress.
const MAX_CALL_COMMANDS: usize = 16;

const NOBODY: &str =
    "participant_identity: nobody in the room is on the telephone, or not this one";

/// What carrying out a call command needs of its session.
struct CallControl {
    access: Access,
    room: Addr<RoomActor>,
    calls: Addr<CallRegistry>,
    name: String,
    /// The session's own identity in the room.
    identity: String,
}

impl SessionActor {
    pub(super) fn call(&mut self, command: CallCommand, context: &mut Context<Self>) {
        let Some(membership) = &self.membership else {
            return;
        };
        let origin = Origin::of(command.name());
        if self.access.is_public() {
            // A session without a token is in no room with a call, or for a moment only.
            return self.has_no_telephone(&command);
        }
        let Some(calls) = self.services.calls.clone() else {
            let problem = "these rooms have no telephone";
            return self.refuse(&origin, ErrorCode::RtcFailed, problem);
        };
        let control = CallControl {
            access: self.access.clone(),
            room: membership.actor.clone(),
            calls,
            name: membership.name.clone(),
            identity: membership.identity.clone(),
        };
        if let CallCommand::Press {
            keys,
            participant_identity,
        } = command
        {
            return self.press(&control, keys, participant_identity, context);
        }
        if self.call_commands >= MAX_CALL_COMMANDS {
            let problem = "too many transfers and hang-ups are under way";
            return self.refuse(&origin, ErrorCode::Overloaded, problem);
        }
        self.call_commands += 1;
        let outcome = async move {
            match command {
                CallCommand::Transfer(transfer) => control.transfer(transfer).await,
                CallCommand::HangUp {
                    participant_identity,
                } => control.hang_up(participant_identity).await,
                CallCommand::Finish {
                    transfer_id,
                    finish,
                } => control.finish(&origin, transfer_id, finish).await,
                CallCommand::Hold {
                    hold,
                    participant_identity,
                } => control.hold(hold, participant_identity).await,
                CallCommand::Queue {
                    queue,
                    participant_identity,
                } => control.enter_queue(queue, participant_identity).await,
                CallCommand::LeaveQueue {
                    participant_identity,
                } => control.leave_queue(participant_identity).await,
                CallCommand::Next { queue } => control.next_call(queue).await,
                CallCommand::Press { .. } => None,
            }
        };
        let outcome = outcome.in_current_span().into_actor(self);
        context.spawn(outcome.map(|told, session, context| {
            session.call_commands -= 1;
            if let Some(message) = told {
                session.tell(&message);
            }
            session.carry_out(context);
        }));
    }

    fn has_no_telephone(&mut self, command: &CallCommand) {
        match command {
            CallCommand::Transfer(_) => self.tell(&ServerMessage::SipTransferError {
                message: NOBODY.to_owned(),
                code: TransferErrorCode::ParticipantNotFound,
            }),
            CallCommand::HangUp { .. }
            | CallCommand::Press { .. }
            | CallCommand::Finish { .. }
            | CallCommand::Hold { .. }
            | CallCommand::Queue { .. }
            | CallCommand::LeaveQueue { .. }
            | CallCommand::Next { .. } => {
                let origin = Origin::of(command.name());
                self.refuse(&origin, ErrorCode::ParticipantNotFound, NOBODY);
            }
        }
    }

    /// In the order of the client's messages: the session handles the next one when these keys have been sent.
    fn press(
        &mut self,
        control: &CallControl,
        keys: Vec<TelephoneKey>,
        identity: Option<String>,
        context: &mut Context<Self>,
    ) {
        let pressed = control.room.send(PressKeys { keys, identity });
        context.wait(pressed.into_actor(self).map(|pressed, session, context| {
            let origin = Origin::of("send_dtmf");
            let failed = |error: SendError| {
                let code = match error {
                    SendError::Full => ErrorCode::Overloaded,
                    _ => ErrorCode::RtcFailed,
                };
                (code, format!("send_dtmf: {error}"))
            };
            let refused = match pressed {
                Ok(Some(Ok(()))) => None,
                Ok(None) => Some((ErrorCode::ParticipantNotFound, NOBODY.to_owned())),
                Ok(Some(Err(error))) => Some(failed(error)),
                Err(_) => Some(failed(SendError::Ended)),
            };
            if let Some((code, problem)) = refused {
                session.refuse(&origin, code, problem);
            }
            session.carry_out(context);
        }));
    }
}

impl CallControl {
    async fn who(&self, identity: Option<String>) -> Option<String> {
        self.room.send(OnThePhone { identity }).await.ok().flatten()
    }

    /// Transfers a call; returns the event about it. A warm transfer that has begun is told of by the room.
    async fn transfer(self, transfer: SipTransfer) -> Option<ServerMessage> {
        let error = |code, message: String| ServerMessage::SipTransferError { message, code };
        let number = |text: &str, field: &str| {
            PhoneNumber::parse(text).map_err(|problem| format!("{field}: {problem}"))
        };
        let invalid = |problem| Some(error(TransferErrorCode::InvalidPhoneNumber, problem));
        let to = match number(&transfer.transfer_to, "transfer_to") {
            Ok(to) => to,
            Err(problem) => return invalid(problem),
        };
        let Some(identity) = self.who(transfer.participant_identity).await else {
            return Some(error(
                TransferErrorCode::ParticipantNotFound,
                NOBODY.to_owned(),
            ));
        };
        if let Some(warm) = transfer.warm {
            let from = warm.from_phone_number.as_deref();
            let from = match from
                .map(|text| number(text, "from_phone_number"))
                .transpose()
            {
                Ok(from) => from,
                Err(problem) => return invalid(problem),
            };
            let begin = BeginTransfer {
                access: self.access,
                room: self.name,
                identity,
                to,
                from,
                person_identity: warm.person_identity,
                person_name: warm.person_name,
                agent: Some(self.identity),
                gateway: OwnGateway::default(),
                queued: None,
            };
            // How it goes on is told by the room.
            return match self.calls.send(begin).await {
                Ok(Ok(_)) => None,
                Ok(Err(problem)) => Some(error(transfer_code(&problem), problem.to_string())),
                Err(problem) => Some(error(
                    TransferErrorCode::TransferFailed,
                    problem.to_string(),
                )),
            };
        }
        let command = TransferCall {
            access: self.access,
            room: self.name,
            identity: identity.clone(),
            to: TransferTarget::Number(to.clone()),
            ringing_timeout: None,
            until: Until::Done,
        };
        Some(match self.calls.send(command).await {
            Ok(Ok(())) => ServerMessage::SipTransferComplete {
                transfer_to: to.as_str().to_owned(),
                participant_identity: identity,
            },
            Ok(Err(problem)) => error(transfer_code(&problem), problem.to_string()),
            Err(problem) => error(TransferErrorCode::TransferFailed, problem.to_string()),
        })
    }

    /// Completes or cancels a warm transfer; returns an error event if that fails.
    async fn finish(
        self,
        origin: &Origin,
        transfer_id: Option<String>,
        finish: Finish,
    ) -> Option<ServerMessage> {
        let wish = FinishTransfer {
            access: self.access,
            which: transfer_id.map_or(Which::InRoom(self.name), Which::Id),
            finish,
            agent: Some(self.identity),
        };
        let problem = match self.calls.send(wish).await {
            Ok(Ok(_)) => return None,
            Ok(Err(problem)) => problem.to_string(),
            Err(problem) => problem.to_string(),
        };
        Some(ServerMessage::refusal(ErrorCode::CallFailed, problem).answering(origin))
    }

    /// Puts a call on hold, or takes it off; returns an error event if that fails.
    async fn hold(self, hold: Hold, identity: Option<String>) -> Option<ServerMessage> {
        let Some(identity) = self.who(identity).await else {
            return Some(nobody("hold"));
        };
        let command = HoldCall {
            access: self.access,
            room: self.name,
            identity,
            hold,
        };
        refused("hold", self.calls.send(command).await)
    }

    /// Puts a call into a queue; returns an error event if that fails. How it goes on is told by the room.
    async fn enter_queue(self, queue: String, identity: Option<String>) -> Option<ServerMessage> {
        let Some(identity) = self.who(identity).await else {
            return Some(nobody("queue_call"));
        };
        let command = EnterQueue {
            access: self.access,
            room: self.name,
            identity,
            queue,
        };
        refused("queue_call", self.calls.send(command).await)
    }

    /// Takes a call out of its queue; returns an error event if that fails.
    async fn leave_queue(self, identity: Option<String>) -> Option<ServerMessage> {
        let Some(identity) = self.who(identity).await else {
            return Some(nobody("leave_queue"));
        };
        let room = self.name;
        let command = LeaveQueue {
            access: self.access,
            which: Waiter::InRoom { room, identity },
        };
        refused("leave_queue", self.calls.send(command).await)
    }

    /// Brings the one who waits longest into the session's room; returns an error event if that fails.
    async fn next_call(self, queue: String) -> Option<ServerMessage> {
        let command = NextCall {
            access: self.access,
            tenant: None,
            queue,
            to: Destination::Room(self.name),
        };
        refused("next_call", self.calls.send(command).await)
    }

    /// Hangs up a call; returns an error event if that fails.
    async fn hang_up(self, identity: Option<String>) -> Option<ServerMessage> {
        let refusal = |code, message: String| {
            let refusal = ServerMessage::refusal(code, format!("hangup: {message}"));
            Some(refusal.answering(&Origin::of("hangup")))
        };
        let Some(identity) = self.who(identity).await else {
            return refusal(ErrorCode::ParticipantNotFound, NOBODY.to_owned());
        };
        let command = HangUp {
            access: self.access,
            room: self.name,
            identity,
        };
        match self.calls.send(command).await {
            Ok(Ok(())) => None,
            // The far end has hung up meanwhile.
            Ok(Err(problem)) if is_nobody(&problem) => None,
            Ok(Err(problem)) => refusal(ErrorCode::CallFailed, problem.to_string()),
            Err(problem) => refusal(ErrorCode::CallFailed, problem.to_string()),
        }
    }
}

fn refusal(message: &'static str, code: ErrorCode, problem: &str) -> ServerMessage {
    let refusal = ServerMessage::refusal(code, format!("{message}: {problem}"));
    refusal.answering(&Origin::of(message))
}

fn nobody(message: &'static str) -> ServerMessage {
    refusal(message, ErrorCode::ParticipantNotFound, NOBODY)
}

/// The error event for what could not be done.
fn refused<T>(
    message: &'static str,
    outcome: Result<Result<T, CallsError>, MailboxError>,
) -> Option<ServerMessage> {
    let problem = match outcome {
        Ok(Ok(_)) => return None,
        Ok(Err(problem)) => problem,
        Err(problem) => {
            return Some(refusal(
                message,
                ErrorCode::CallFailed,
                &problem.to_string(),
            ));
        }
    };
    let code = match &problem {
        problem if is_nobody(problem) => return Some(nobody(message)),
        CallsError::EmptyQueue | CallsError::NoQueuedCall => ErrorCode::ParticipantNotFound,
        CallsError::QueueName => ErrorCode::InvalidMessage,
        CallsError::QueueFull(_) => ErrorCode::Overloaded,
        _ => ErrorCode::CallFailed,
    };
    Some(refusal(message, code, &problem.to_string()))
}

const fn is_nobody(problem: &CallsError) -> bool {
    match problem {
        CallsError::Rooms(RoomsError::NoParticipant | RoomsError::NoRoom) => true,
        CallsError::Call(error) => matches!(error.kind, CallErrorKind::NotFound),
        _ => false,
    }
}

const fn transfer_code(problem: &CallsError) -> TransferErrorCode {
    match problem {
        CallsError::NotAllowed { .. } => TransferErrorCode::DestinationNotAllowed,
        problem if is_nobody(problem) => TransferErrorCode::ParticipantNotFound,
        _ => TransferErrorCode::TransferFailed,
    }
}
