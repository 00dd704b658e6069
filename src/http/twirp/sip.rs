//! `livekit.SIP`: trunks and dispatch rules, which are kept as they come, and calls, which go the way of all calls: through
//! the registry, by the rules of the settings.

use std::sync::Arc;
use std::time::Duration;

use actix_web::{HttpResponse, web};
use livekit_protocol as proto;

use super::{Call, Failure};
use crate::actors::registry::calls::{CallsError, DialTrunk, TransferCall, Until};
use crate::actors::registry::rooms::RoomsError;
use crate::auth::Access;
use crate::config::{Secret, SipTransport};
use crate::phone::{Gateway, PhoneNumber};
use crate::providers::rooms::telephone::{
    CallError, CallErrorKind, HangupCause, Login, NewCall, TransferTarget, Trunk,
};
use crate::telephony::trunks::{Filter, TrunkError, Trunks};

/// How long a call may ring where a request does not say (LiveKit's own).
const RINGING: Duration = Duration::from_secs(30);
/// The longest that it may ring, and a call may last (LiveKit's own).
const MOST_RINGING: Duration = Duration::from_secs(80);
const MOST_DURATION: Duration = Duration::from_hours(24);
/// Bytes of a text, and attributes of a participant.
const MOST_BYTES: usize = 4_096;
const MOST_ATTRIBUTES: usize = 64;

fn invalid(problem: impl Into<String>) -> Failure {
    Failure::new("invalid_argument", problem)
}

impl From<TrunkError> for Failure {
    fn from(error: TrunkError) -> Self {
        let code = match error {
            TrunkError::Invalid(_) => "invalid_argument",
            TrunkError::NoTrunk | TrunkError::NoRule => "not_found",
            TrunkError::Full => "resource_exhausted",
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
            CallsError::Rooms(RoomsError::NotConfigured) | CallsError::NoTelephone(_) => {
                Self::new("unimplemented", message)
            }
            CallsError::Rooms(_) => Self::new("internal", message),
            CallsError::NoAddress | CallsError::NotAllowed { .. } => {
                Self::new("invalid_argument", message)
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
            // No 5xx once an INVITE may be out: clients would dial twice.
            CallErrorKind::Precondition | CallErrorKind::Unavailable => "failed_precondition",
        };
        Self::new(code, error.message)
    }
}

/// A call that was not answered, as the status that means it.
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

/// What the other side has answered (RFC 3261 section 21), as LiveKit maps it.
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

fn duration(field: &str, seconds: i64, nanos: i32, most: Duration) -> Result<Duration, Failure> {
    let told = u64::try_from(seconds).ok().zip(u32::try_from(nanos).ok());
    let told = told.map(|(seconds, nanos)| {
        Duration::new(seconds.min(u64::from(u32::MAX)), nanos.min(999_999_999))
    });
    told.map(|told| told.min(most))
        .ok_or_else(|| invalid(format!("{field}: must not be negative")))
}

fn number(field: &str, text: &str) -> Result<PhoneNumber, Failure> {
    PhoneNumber::parse(text).map_err(|problem| invalid(format!("{field}: {problem}")))
}

/// The way to a gateway. Whether it may be private is decided by the registry.
fn trunk(
    address: &str,
    transport: i32,
    username: String,
    password: String,
) -> Result<Trunk, Failure> {
    let transport = match proto::SipTransport::try_from(transport) {
        Ok(proto::SipTransport::Auto | proto::SipTransport::Udp) => SipTransport::Udp,
        Ok(proto::SipTransport::Tcp) => SipTransport::Tcp,
        Ok(proto::SipTransport::Tls) => SipTransport::Tls,
        Err(_) => return Err(invalid("transport: is unknown")),
    };
    let gateway = Gateway::parse(address);
    let login = (!username.is_empty()).then(|| Login {
        username,
        password: Secret::new(password),
    });
    Ok(Trunk {
        gateway: gateway.ok_or_else(|| invalid("hostname: must be a host and perhaps a port"))?,
        transport,
        login,
        private: false,
    })
}

impl Call<'_> {
    /// Carries out one of its methods.
    pub(super) async fn sip_service(&self, method: &str) -> Result<HttpResponse, Failure> {
        match method {
            "CreateSIPParticipant" => self.create_participant().await,
            "TransferSIPParticipant" => self.transfer_participant().await,
            _ if !self.claims.sip.admin => Err(Failure::unauthenticated("permissions denied")),
            "CreateSIPInboundTrunk" => {
                let said: proto::CreateSipInboundTrunkRequest = self.wire.read(self.body)?;
                let trunk = said.trunk.ok_or_else(|| invalid("trunk: is required"))?;
                self.wire.answer(
                    &self
                        .kept(move |trunks| trunks.create_inbound(trunk))
                        .await?,
                )
            }
            "CreateSIPOutboundTrunk" => {
                let said: proto::CreateSipOutboundTrunkRequest = self.wire.read(self.body)?;
                let trunk = said.trunk.ok_or_else(|| invalid("trunk: is required"))?;
                self.wire.answer(
                    &self
                        .kept(move |trunks| trunks.create_outbound(trunk))
                        .await?,
                )
            }
            "UpdateSIPInboundTrunk" => {
                let said: proto::UpdateSipInboundTrunkRequest = self.wire.read(self.body)?;
                let change = said.action.ok_or_else(|| invalid("action: is required"))?;
                let update =
                    move |trunks: &Trunks| trunks.update_inbound(&said.sip_trunk_id, change);
                self.wire.answer(&self.kept(update).await?)
            }
            "UpdateSIPOutboundTrunk" => {
                let said: proto::UpdateSipOutboundTrunkRequest = self.wire.read(self.body)?;
                let change = said.action.ok_or_else(|| invalid("action: is required"))?;
                let update =
                    move |trunks: &Trunks| trunks.update_outbound(&said.sip_trunk_id, change);
                self.wire.answer(&self.kept(update).await?)
            }
            "GetSIPInboundTrunk" => {
                let said: proto::GetSipInboundTrunkRequest = self.wire.read(self.body)?;
                let trunk = self.trunks()?.inbound(&said.sip_trunk_id);
                let trunk = Some(trunk.ok_or(TrunkError::NoTrunk)?);
                self.wire
                    .answer(&proto::GetSipInboundTrunkResponse { trunk })
            }
            "GetSIPOutboundTrunk" => {
                let said: proto::GetSipOutboundTrunkRequest = self.wire.read(self.body)?;
                let trunk = self.trunks()?.outbound(&said.sip_trunk_id);
                let trunk = Some(trunk.ok_or(TrunkError::NoTrunk)?);
                self.wire
                    .answer(&proto::GetSipOutboundTrunkResponse { trunk })
            }
            "ListSIPInboundTrunk" => {
                let said: proto::ListSipInboundTrunkRequest = self.wire.read(self.body)?;
                let filter = Filter::new(said.trunk_ids, said.page);
                let items = self.trunks()?.list_inbound(filter, &said.numbers);
                self.wire
                    .answer(&proto::ListSipInboundTrunkResponse { items })
            }
            "ListSIPOutboundTrunk" => {
                let said: proto::ListSipOutboundTrunkRequest = self.wire.read(self.body)?;
                let filter = Filter::new(said.trunk_ids, said.page);
                let items = self.trunks()?.list_outbound(filter, &said.numbers);
                self.wire
                    .answer(&proto::ListSipOutboundTrunkResponse { items })
            }
            _ => self.rules_and_deletions(method).await,
        }
    }

    async fn rules_and_deletions(&self, method: &str) -> Result<HttpResponse, Failure> {
        match method {
            "DeleteSIPTrunk" => {
                let said: proto::DeleteSipTrunkRequest = self.wire.read(self.body)?;
                let id = said.sip_trunk_id.clone();
                self.kept(move |trunks| trunks.delete_trunk(&id)).await?;
                self.wire.answer(&proto::SipTrunkInfo {
                    sip_trunk_id: said.sip_trunk_id,
                    ..Default::default()
                })
            }
            "CreateSIPDispatchRule" => {
                let said: proto::CreateSipDispatchRuleRequest = self.wire.read(self.body)?;
                let rule = dispatch_rule(said);
                self.wire
                    .answer(&self.kept(move |trunks| trunks.create_rule(rule)).await?)
            }
            "UpdateSIPDispatchRule" => {
                let said: proto::UpdateSipDispatchRuleRequest = self.wire.read(self.body)?;
                let change = said.action.ok_or_else(|| invalid("action: is required"))?;
                let update =
                    move |trunks: &Trunks| trunks.update_rule(&said.sip_dispatch_rule_id, change);
                self.wire.answer(&self.kept(update).await?)
            }
            "ListSIPDispatchRule" => {
                let said: proto::ListSipDispatchRuleRequest = self.wire.read(self.body)?;
                let filter = Filter::new(said.dispatch_rule_ids, said.page);
                let items = self.trunks()?.list_rules(filter, &said.trunk_ids);
                self.wire
                    .answer(&proto::ListSipDispatchRuleResponse { items })
            }
            "DeleteSIPDispatchRule" => {
                let said: proto::DeleteSipDispatchRuleRequest = self.wire.read(self.body)?;
                let delete = move |trunks: &Trunks| trunks.delete_rule(&said.sip_dispatch_rule_id);
                self.wire.answer(&self.kept(delete).await?)
            }
            "CreateSIPTrunk" | "ListSIPTrunk" => Err(Failure::new(
                "unimplemented",
                format!("{method} was replaced by inbound and outbound trunks"),
            )),
            _ => Err(Failure::new(
                "bad_route",
                format!("livekit.SIP has no {method}"),
            )),
        }
    }

    fn trunks(&self) -> Result<&Arc<Trunks>, Failure> {
        let missing = || Failure::new("unimplemented", "these rooms have no trunks");
        self.trunks.ok_or_else(missing)
    }

    /// Does something with the trunks that writes to the disk.
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
        let until_answered = said.wait_until_answered;
        let call = self.new_call(said)?;
        let (room_name, participant_identity) = (call.room.clone(), call.identity.clone());
        let wish = DialTrunk {
            call,
            until_answered,
        };
        let placed = self.calls.send(wish).await;
        let placed = placed.map_err(|error| Failure::new("internal", error.to_string()))??;
        self.wire.answer(&proto::SipParticipantInfo {
            participant_id: placed.participant_sid,
            participant_identity,
            room_name,
            sip_call_id: placed.sip_call_id,
        })
    }

    /// The call that a request describes. What embedded rooms cannot do is refused: nobody shall be called otherwise than
    /// they were meant to be.
    fn new_call(&self, said: proto::CreateSipParticipantRequest) -> Result<NewCall, Failure> {
        for (field, used) in [
            ("headers", !said.headers.is_empty()),
            ("to_user_override", !said.to_user_override.is_empty()),
            ("sip_request_uri", said.sip_request_uri.is_some()),
            ("sip_to_header", said.sip_to_header.is_some()),
            ("sip_from_header", said.sip_from_header.is_some()),
        ] {
            if used {
                return Err(invalid(format!("{field}: embedded rooms cannot do that")));
            }
        }
        for (field, text) in [
            ("room_name", &said.room_name),
            ("sip_call_to", &said.sip_call_to),
        ] {
            if text.is_empty() {
                return Err(invalid(format!("{field}: is required")));
            }
        }
        let identity = match said.participant_identity.as_str() {
            "" => format!("sip_{}", said.sip_call_to),
            identity => identity.to_owned(),
        };
        let attributes: Vec<(String, String)> = said.participant_attributes.into_iter().collect();
        let texts = [
            &said.room_name,
            &identity,
            &said.participant_name,
            &said.dtmf,
        ];
        let long = |text: &String| text.len() > MOST_BYTES;
        let long_attribute = |(key, value): &(String, String)| long(key) || long(value);
        if texts.into_iter().any(long)
            || attributes.len() > MOST_ATTRIBUTES
            || attributes.iter().any(long_attribute)
        {
            return Err(invalid(format!(
                "texts must be at most {MOST_BYTES} bytes, attributes at most {MOST_ATTRIBUTES}"
            )));
        }
        let is_key =
            |sign: char| matches!(sign, '0'..='9' | '*' | '#' | 'A'..='D' | 'a'..='d' | 'w' | 'W');
        if !said.dtmf.chars().all(is_key) {
            return Err(invalid("dtmf: must be of 0-9 * # A-D w"));
        }
        let (trunk, numbers) = self.trunk_of(said.trunk, &said.sip_trunk_id)?;
        let from = match (said.sip_number.as_str(), numbers.first()) {
            ("", Some(first)) => first.clone(),
            ("", None) => {
                return Err(Failure::new(
                    "failed_precondition",
                    "no numbers on outbound trunk",
                ));
            }
            (number, _) => number.to_owned(),
        };
        let span = |field, told: Option<(i64, i32)>, absent, most| {
            told.map_or(Ok(absent), |(seconds, nanos)| {
                duration(field, seconds, nanos, most)
            })
        };
        let ringing = said.ringing_timeout.map(|time| (time.seconds, time.nanos));
        let most = said
            .max_call_duration
            .map(|time| (time.seconds, time.nanos));
        Ok(NewCall {
            room: said.room_name,
            name: Some(said.participant_name)
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| identity.clone()),
            identity,
            metadata: said.participant_metadata,
            from: number("sip_number", &from)?,
            to: number("sip_call_to", &said.sip_call_to)?,
            trunk,
            attributes,
            ringing_timeout: span("ringing_timeout", ringing, RINGING, MOST_RINGING)?,
            max_duration: span("max_call_duration", most, MOST_DURATION, MOST_DURATION)?,
            dtmf: said.dtmf,
        })
    }

    /// The trunk that comes with a request, or the stored one that it names, and the numbers of that.
    fn trunk_of(
        &self,
        inline: Option<proto::SipOutboundConfig>,
        id: &str,
    ) -> Result<(Trunk, Vec<String>), Failure> {
        if let Some(inline) = inline {
            let proto::SipOutboundConfig {
                hostname,
                transport,
                auth_username,
                auth_password,
                ..
            } = inline;
            return Ok((
                trunk(&hostname, transport, auth_username, auth_password)?,
                Vec::new(),
            ));
        }
        if id.is_empty() {
            return Err(invalid("missing sip trunk id"));
        }
        let stored = self.trunks()?.outbound(id).ok_or(TrunkError::NoTrunk)?;
        let trunk = trunk(
            &stored.address,
            stored.transport,
            stored.auth_username,
            stored.auth_password,
        )?;
        Ok((trunk, stored.numbers))
    }

    async fn transfer_participant(&self) -> Result<HttpResponse, Failure> {
        let said = self.read(|said: &proto::TransferSipParticipantRequest, claims| {
            let video = &claims.video;
            claims.sip.call && video.room_admin && video.room == said.room_name
        })?;
        let ringing = match said.ringing_timeout {
            Some(time) => duration("ringing_timeout", time.seconds, time.nanos, MOST_RINGING)?,
            None => RINGING,
        };
        let wish = TransferCall {
            access: Access::anonymous(),
            room: said.room_name,
            identity: said.participant_identity,
            to: target(&said.transfer_to)?,
            ringing_timeout: Some(ringing),
            until: Until::Done,
        };
        let moved = self.calls.send(wish).await;
        moved.map_err(|error| Failure::new("internal", error.to_string()))??;
        // Of `TransferSIPParticipantResponse` older clients know nothing; to them it is empty.
        self.wire.answer(&proto::TransferSipParticipantResponse {
            status: proto::SipTransferStatus::StsTransferSuccessful as i32,
            ..Default::default()
        })
    }
}

/// A rule, as it is described now or was in the fields of older clients.
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

/// Where a call is moved: a number, or a URI that is passed on as it is.
fn target(text: &str) -> Result<TransferTarget, Failure> {
    let text = text.trim().trim_start_matches('<').trim_end_matches('>');
    let scheme = text
        .split_once(':')
        .map(|(scheme, _)| scheme.to_ascii_lowercase());
    let unsafe_sign =
        |sign: char| sign.is_control() || sign.is_whitespace() || matches!(sign, '<' | '>' | '"');
    match scheme.as_deref() {
        Some("tel") => number("transfer_to", text).map(TransferTarget::Number),
        Some("sip" | "sips") if text.len() <= MOST_BYTES && !text.contains(unsafe_sign) => {
            Ok(TransferTarget::Uri(text.to_owned()))
        }
        _ => Err(invalid("transfer_to: must be a sip:, sips: or tel: URI")),
    }
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

    #[test]
    fn a_call_is_moved_to_a_uri_that_is_one() {
        let number = PhoneNumber::parse("+12125550100").unwrap();
        assert_eq!(
            target("tel:+12125550100").unwrap(),
            TransferTarget::Number(number)
        );
        for uri in ["sip:1000@example.org", "sips:a@b;transport=tls"] {
            assert_eq!(target(uri).unwrap(), TransferTarget::Uri(uri.to_owned()));
        }
        for bad in [
            "",
            "1000",
            "http://a",
            "sip:a@b\r\nX: y",
            "sip:a b",
            "tel:x",
        ] {
            assert_eq!(target(bad).unwrap_err().code, "invalid_argument", "{bad:?}");
        }
    }
}
