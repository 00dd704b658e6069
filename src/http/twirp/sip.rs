//! `livekit.SIP`: trunks and dispatch rules, which are stored as given, and calls, which go through the registry of
//! calls like all others and follow the settings. `dial` translates requests for calls.

use std::sync::Arc;

use actix_web::{HttpResponse, web};
use livekit_protocol as proto;

use super::{Call, Failure, dial};
use vivavoce_actors::registry::calls::CallsError;
use vivavoce_actors::registry::rooms::RoomsError;
use vivavoce_rooms::token::Claims;
use vivavoce_seams::rooms::telephone::{CallError, CallErrorKind, HangupCause};
use vivavoce_telephony::trunks::{Filter, TrunkError, Trunks};

pub(super) fn invalid(problem: impl Into<String>) -> Failure {
    Failure::new("invalid_argument", problem)
}

impl From<TrunkError> for Failure {
    fn from(error: TrunkError) -> Self {
        let code = match error {
            TrunkError::Invalid(_) => "invalid_argument",
            TrunkError::NoTrunk | TrunkError::NoRule => "not_found",
            TrunkError::Full => "resource_exhausted",
            TrunkError::Configured => "failed_precondition",
            TrunkError::Storage(_) => "internal",
        };
        Self::new(code, error.to_string())
    }
}

impl From<CallsError> for Failure {
    fn from(error: CallsError) -> Self {
        let message = error.to_string();
        match error {
            CallsError::Rooms(RoomsError::NoRoom | RoomsError::NoParticipant) => {
                Self::new("not_found", message)
            }
            CallsError::Rooms(RoomsError::NotConfigured)
            | CallsError::NoTelephone(_)
            | CallsError::NotClassified(_)
            | CallsError::ByCarrier => Self::new("unimplemented", message),
            CallsError::Rooms(_) => Self::new("internal", message),
            CallsError::NoAddress
            | CallsError::NotAllowed { .. }
            | CallsError::HostNotAllowed { .. }
            | CallsError::OthersNumber
            | CallsError::NoCallerId
            | CallsError::QueueName
            | CallsError::Unencrypted => Self::new("invalid_argument", message),
            CallsError::NoTransfer
            | CallsError::EmptyQueue
            | CallsError::NoQueuedCall
            | CallsError::CallerGone => Self::new("not_found", message),
            CallsError::Transfer(_) => Self::new("failed_precondition", message),
            CallsError::Quota(_) | CallsError::QueueFull(_) => {
                Self::new("resource_exhausted", message)
            }
            CallsError::Call(error) => error.into(),
            CallsError::Unanswered(cause) => unanswered(cause),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let code = match error.kind {
            CallErrorKind::Rejected(status) => return rejected(status),
            CallErrorKind::NotFound => "not_found",
            CallErrorKind::Refused => "invalid_argument",
            CallErrorKind::Timeout => "canceled",
            CallErrorKind::Full => "resource_exhausted",
            // Not a 5xx once an INVITE may have been sent: clients would retry and dial twice.
            CallErrorKind::Precondition | CallErrorKind::Unavailable => "failed_precondition",
        };
        Self::new(code, error.message)
    }
}

/// The error for a call that was not answered.
fn unanswered(cause: HangupCause) -> Failure {
    let status = match cause {
        HangupCause::Busy => 486,
        HangupCause::Declined => 603,
        HangupCause::NotFound => 404,
        HangupCause::Unauthorized => 403,
        HangupCause::Media => 488,
        HangupCause::Failed => 500,
        HangupCause::NoAnswer => return Failure::new("canceled", "nobody has answered in time"),
        _ => {
            let problem = format!("the call ended before it was answered: {}", cause.as_str());
            return Failure::new("failed_precondition", problem);
        }
    };
    rejected(status)
}

/// The meaning of the other side's SIP response (RFC 3261, section 21), mapped as LiveKit does.
fn rejected(status: u16) -> Failure {
    let code = match status {
        401 | 403 | 402 | 603 | 607 | 608 => "permission_denied",
        407 | 428 | 436..=438 | 494 => "unauthenticated",
        404 | 410 | 604 | 301 | 302 | 481 => "not_found",
        408 | 504 => "deadline_exceeded",
        480 | 486 | 600 => "resource_exhausted",
        487 | 491 => "aborted",
        409 | 412 | 482 | 483 | 500..=599 => "failed_precondition",
        _ => "invalid_argument",
    };
    let name =
        proto::SipStatusCode::try_from(i32::from(status)).map_or("", |known| known.as_str_name());
    let name = name
        .trim_start_matches("SIP_STATUS_")
        .replace('_', " ")
        .to_lowercase();
    let mut failure = Failure::new(code, format!("sip status {status}: {name}"));
    failure.meta.insert("sip_status_code", status.to_string());
    failure.meta.insert("sip_status", name);
    failure
}

/// Whether a token may allow a method; whether it is for the right room depends on the body.
pub(super) fn may_allow(method: &str, claims: &Claims) -> bool {
    match method {
        "CreateSIPParticipant" => claims.sip.call,
        "TransferSIPParticipant" => claims.sip.call && claims.video.room_admin,
        _ => claims.sip.admin,
    }
}

impl Call<'_> {
    /// Handles a method.
    pub(super) async fn sip_service(&self) -> Result<HttpResponse, Failure> {
        match self.method.name {
            "CreateSIPParticipant" => self.create_participant().await,
            "TransferSIPParticipant" => self.transfer_participant().await,
            "CreateSIPInboundTrunk" => {
                let said: proto::CreateSipInboundTrunkRequest = self.anywhere()?;
                let trunk = said.trunk.ok_or_else(|| invalid("trunk: is required"))?;
                self.wire.answer(
                    &self
                        .kept(move |trunks| trunks.create_inbound(trunk))
                        .await?,
                )
            }
            "CreateSIPOutboundTrunk" => {
                let said: proto::CreateSipOutboundTrunkRequest = self.anywhere()?;
                let trunk = said.trunk.ok_or_else(|| invalid("trunk: is required"))?;
                self.wire.answer(
                    &self
                        .kept(move |trunks| trunks.create_outbound(trunk))
                        .await?,
                )
            }
            "UpdateSIPInboundTrunk" => {
                let said: proto::UpdateSipInboundTrunkRequest = self.anywhere()?;
                let change = said.action.ok_or_else(|| invalid("action: is required"))?;
                let update =
                    move |trunks: &Trunks| trunks.update_inbound(&said.sip_trunk_id, change);
                self.wire.answer(&self.kept(update).await?)
            }
            "UpdateSIPOutboundTrunk" => {
                let said: proto::UpdateSipOutboundTrunkRequest = self.anywhere()?;
                let change = said.action.ok_or_else(|| invalid("action: is required"))?;
                let update =
                    move |trunks: &Trunks| trunks.update_outbound(&said.sip_trunk_id, change);
                self.wire.answer(&self.kept(update).await?)
            }
            "GetSIPInboundTrunk" => {
                let said: proto::GetSipInboundTrunkRequest = self.anywhere()?;
                let trunk = self.trunks()?.inbound(&said.sip_trunk_id);
                let trunk = Some(trunk.ok_or(TrunkError::NoTrunk)?);
                self.wire
                    .answer(&proto::GetSipInboundTrunkResponse { trunk })
            }
            "GetSIPOutboundTrunk" => {
                let said: proto::GetSipOutboundTrunkRequest = self.anywhere()?;
                let trunk = self.trunks()?.outbound(&said.sip_trunk_id);
                let trunk = Some(trunk.ok_or(TrunkError::NoTrunk)?);
                self.wire
                    .answer(&proto::GetSipOutboundTrunkResponse { trunk })
            }
            "ListSIPInboundTrunk" => {
                let said: proto::ListSipInboundTrunkRequest = self.anywhere()?;
                let filter = Filter::new(said.trunk_ids, said.page);
                let items = self.trunks()?.list_inbound(filter, &said.numbers);
                self.wire
                    .answer(&proto::ListSipInboundTrunkResponse { items })
            }
            "ListSIPOutboundTrunk" => {
                let said: proto::ListSipOutboundTrunkRequest = self.anywhere()?;
                let filter = Filter::new(said.trunk_ids, said.page);
                let items = self.trunks()?.list_outbound(filter, &said.numbers);
                self.wire
                    .answer(&proto::ListSipOutboundTrunkResponse { items })
            }
            _ => self.rules_and_deletions().await,
        }
    }

    async fn rules_and_deletions(&self) -> Result<HttpResponse, Failure> {
        match self.method.name {
            "DeleteSIPTrunk" => {
                let said: proto::DeleteSipTrunkRequest = self.anywhere()?;
                let id = said.sip_trunk_id.clone();
                self.kept(move |trunks| trunks.delete_trunk(&id)).await?;
                self.wire.answer(&proto::SipTrunkInfo {
                    sip_trunk_id: said.sip_trunk_id,
                    ..Default::default()
                })
            }
            "CreateSIPDispatchRule" => {
                let said: proto::CreateSipDispatchRuleRequest = self.anywhere()?;
                let rule = dispatch_rule(said);
                self.wire
                    .answer(&self.kept(move |trunks| trunks.create_rule(rule)).await?)
            }
            "UpdateSIPDispatchRule" => {
                let said: proto::UpdateSipDispatchRuleRequest = self.anywhere()?;
                let change = said.action.ok_or_else(|| invalid("action: is required"))?;
                let update =
                    move |trunks: &Trunks| trunks.update_rule(&said.sip_dispatch_rule_id, change);
                self.wire.answer(&self.kept(update).await?)
            }
            "ListSIPDispatchRule" => {
                let said: proto::ListSipDispatchRuleRequest = self.anywhere()?;
                let filter = Filter::new(said.dispatch_rule_ids, said.page);
                let items = self.trunks()?.list_rules(filter, &said.trunk_ids);
                self.wire
                    .answer(&proto::ListSipDispatchRuleResponse { items })
            }
            "DeleteSIPDispatchRule" => {
                let said: proto::DeleteSipDispatchRuleRequest = self.anywhere()?;
                let delete = move |trunks: &Trunks| trunks.delete_rule(&said.sip_dispatch_rule_id);
                self.wire.answer(&self.kept(delete).await?)
            }
            _ => Err(self.forgotten()),
        }
    }

    fn trunks(&self) -> Result<&Arc<Trunks>, Failure> {
        let missing = || Failure::new("unimplemented", "these rooms have no trunks");
        self.trunks.ok_or_else(missing)
    }

    /// Runs an operation on the trunks that writes to disk.
    async fn kept<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Trunks) -> Result<T, TrunkError> + Send + 'static,
    ) -> Result<T, Failure> {
        let trunks = Arc::clone(self.trunks()?);
        let changed = web::block(move || change(&trunks)).await;
        let changed = changed.map_err(|error| Failure::new("internal", error.to_string()))?;
        Ok(changed?)
    }

    async fn create_participant(&self) -> Result<HttpResponse, Failure> {
        let said: proto::CreateSipParticipantRequest = self.read(|_, claims| claims.sip.call)?;
        let trunk_of = |id: &str| Ok(self.trunks()?.outbound(id).ok_or(TrunkError::NoTrunk)?);
        let wish = dial::call(said, trunk_of)?;
        let room_name = wish.call.room.clone();
        let participant_identity = wish.call.identity.clone();
        let placed = self.calls.send(wish).await;
        let placed = placed.map_err(|error| Failure::new("internal", error.to_string()))??;
        self.wire.answer(&proto::SipParticipantInfo {
            participant_id: placed.participant_sid,
            participant_identity,
            room_name,
            sip_call_id: placed.sip_call_id,
        })
    }

    async fn transfer_participant(&self) -> Result<HttpResponse, Failure> {
        let said = self.read(|said: &proto::TransferSipParticipantRequest, claims| {
            let video = &claims.video;
            claims.sip.call && video.room_admin && video.room == said.room_name
        })?;
        let moved = self.calls.send(dial::transfer(said)?).await;
        moved.map_err(|error| Failure::new("internal", error.to_string()))??;
        // Older clients do not know `TransferSIPParticipantResponse`; to them it is empty.
        self.wire.answer(&proto::TransferSipParticipantResponse {
            status: proto::SipTransferStatus::StsTransferSuccessful as i32,
            ..Default::default()
        })
    }
}

/// A dispatch rule, in its current form or in the fields of older clients.
#[allow(deprecated)] // of those fields
fn dispatch_rule(said: proto::CreateSipDispatchRuleRequest) -> proto::SipDispatchRuleInfo {
    said.dispatch_rule.unwrap_or(proto::SipDispatchRuleInfo {
        rule: said.rule,
        trunk_ids: said.trunk_ids,
        hide_phone_number: said.hide_phone_number,
        inbound_numbers: said.inbound_numbers,
        name: said.name,
        metadata: said.metadata,
        attributes: said.attributes,
        room_preset: said.room_preset,
        room_config: said.room_config,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_the_other_side_keep_their_meaning() {
        for (status, code) in [
            (486, "resource_exhausted"),
            (603, "permission_denied"),
            (407, "unauthenticated"),
            (404, "not_found"),
            (408, "deadline_exceeded"),
            (487, "aborted"),
            (503, "failed_precondition"),
            (488, "invalid_argument"),
        ] {
            let failure = rejected(status);
            assert_eq!(failure.code, code, "{status}");
            assert_eq!(
                failure.meta.get("sip_status_code"),
                Some(&status.to_string())
            );
            assert!(
                failure.status().is_client_error(),
                "clients would dial again: {status}"
            );
        }
        assert_eq!(
            rejected(486).meta.get("sip_status").map(String::as_str),
            Some("busy here")
        );
    }
}
