//! What a session does with the telephone calls of its room: moves them, ends them, presses keys on them.

use actix::prelude::*;
use tracing::Instrument;

use super::SessionActor;
use super::messages::{ErrorCode, ServerMessage, SipTransfer, TelephoneWish, TransferErrorCode};
use crate::registry::calls::{CallRegistry, CallsError, HangUp, TransferCall, Until};
use crate::registry::rooms::RoomsError;
use crate::room::{OnThePhone, PressKeys, RoomActor};
use vivavoce_auth::Access;
use vivavoce_core::phone::PhoneNumber;
use vivavoce_seams::rooms::link::{SendError, TelephoneKey};
use vivavoce_seams::rooms::telephone::{CallErrorKind, TransferTarget};

/// Transfers and hang-ups of one session that may be under way.
const MOST_WISHES: usize = 16;

const NOBODY: &str =
    "participant_identity: nobody in the room is on the telephone, or not this one";

/// What a wish needs of its session, without it.
struct Line {
    access: Access,
    room: Addr<RoomActor>,
    calls: Addr<CallRegistry>,
    name: String,
}

impl SessionActor {
    pub(super) fn telephone(&mut self, wish: TelephoneWish, context: &mut Context<Self>) {
        let Some(place) = &self.place else { return };
        if self.access.is_public() {
            // It is in no room of a call, or for a moment only.
            return self.has_no_telephone(&wish);
        }
        let Some(calls) = self.services.calls.clone() else {
            return self.refuse(ErrorCode::RtcFailed, "these rooms have no telephone");
        };
        let line = Line {
            access: self.access.clone(),
            room: place.actor.clone(),
            calls,
            name: place.name.clone(),
        };
        if let TelephoneWish::Press {
            keys,
            participant_identity,
        } = wish
        {
            return self.press(&line, keys, participant_identity, context);
        }
        if self.wishes >= MOST_WISHES {
            let problem = "too many transfers and hang-ups are under way";
            return self.refuse(ErrorCode::Overloaded, problem);
        }
        self.wishes += 1;
        let outcome = async move {
            match wish {
                TelephoneWish::Transfer(transfer) => Some(line.transfer(transfer).await),
                TelephoneWish::HangUp {
                    participant_identity,
                } => line.hang_up(participant_identity).await,
                TelephoneWish::Press { .. } => None,
            }
        };
        let outcome = outcome.in_current_span().into_actor(self);
        context.spawn(outcome.map(|told, session, context| {
            session.wishes -= 1;
            if let Some(message) = told {
                session.tell(&message);
            }
            session.carry_out(context);
        }));
    }

    fn has_no_telephone(&mut self, wish: &TelephoneWish) {
        match wish {
            TelephoneWish::Transfer(_) => self.tell(&ServerMessage::SipTransferError {
                message: NOBODY.to_owned(),
                code: TransferErrorCode::ParticipantNotFound,
            }),
            TelephoneWish::HangUp { .. } | TelephoneWish::Press { .. } => {
                self.refuse(ErrorCode::ParticipantNotFound, NOBODY);
            }
        }
    }

    /// In the order of the client's messages: the session looks at the next one when these keys were taken.
    fn press(
        &mut self,
        line: &Line,
        keys: Vec<TelephoneKey>,
        identity: Option<String>,
        context: &mut Context<Self>,
    ) {
        let pressed = line.room.send(PressKeys { keys, identity });
        context.wait(pressed.into_actor(self).map(|pressed, session, context| {
            match pressed {
                Ok(Some(Ok(()))) => {}
                Ok(None) => session.refuse(ErrorCode::ParticipantNotFound, NOBODY),
                Ok(Some(Err(SendError::Full))) => {
                    session.refuse(
                        ErrorCode::Overloaded,
                        format!("send_dtmf: {}", SendError::Full),
                    );
                }
                Ok(Some(Err(error))) => {
                    session.refuse(ErrorCode::RtcFailed, format!("send_dtmf: {error}"));
                }
                Err(_) => session.refuse(
                    ErrorCode::RtcFailed,
                    format!("send_dtmf: {}", SendError::Ended),
                ),
            }
            session.carry_out(context);
        }));
    }
}

impl Line {
    async fn who(&self, identity: Option<String>) -> Option<String> {
        self.room.send(OnThePhone { identity }).await.ok().flatten()
    }

    /// Moves a call, and gives what is told of it.
    async fn transfer(self, transfer: SipTransfer) -> ServerMessage {
        let error = |code, message: String| ServerMessage::SipTransferError { message, code };
        let to = match PhoneNumber::parse(&transfer.transfer_to) {
            Ok(to) => to,
            Err(problem) => {
                return error(
                    TransferErrorCode::InvalidPhoneNumber,
                    format!("transfer_to: {problem}"),
                );
            }
        };
        let Some(identity) = self.who(transfer.participant_identity).await else {
            return error(TransferErrorCode::ParticipantNotFound, NOBODY.to_owned());
        };
        let wish = TransferCall {
            access: self.access,
            room: self.name,
            identity: identity.clone(),
            to: TransferTarget::Number(to.clone()),
            ringing_timeout: None,
            until: Until::Done,
        };
        match self.calls.send(wish).await {
            Ok(Ok(())) => ServerMessage::SipTransferComplete {
                transfer_to: to.as_str().to_owned(),
                participant_identity: identity,
            },
            Ok(Err(problem)) => error(transfer_code(&problem), problem.to_string()),
            Err(problem) => error(TransferErrorCode::TransferFailed, problem.to_string()),
        }
    }

    /// Ends a call, and gives what is told if that cannot be.
    async fn hang_up(self, identity: Option<String>) -> Option<ServerMessage> {
        let refusal = |code, message: String| {
            Some(ServerMessage::refusal(code, format!("hangup: {message}")))
        };
        let Some(identity) = self.who(identity).await else {
            return refusal(ErrorCode::ParticipantNotFound, NOBODY.to_owned());
        };
        let wish = HangUp {
            access: self.access,
            room: self.name,
            identity,
        };
        match self.calls.send(wish).await {
            Ok(Ok(())) => None,
            // They have hung up meanwhile.
            Ok(Err(problem)) if is_nobody(&problem) => None,
            Ok(Err(problem)) => refusal(ErrorCode::CallFailed, problem.to_string()),
            Err(problem) => refusal(ErrorCode::CallFailed, problem.to_string()),
        }
    }
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
