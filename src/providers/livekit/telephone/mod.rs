//! Calls through LiveKit's SIP service, placed, transferred and ended by its server API. The SIP service carries the media.
//! Call progress is observed on the participant ([`follow`]); inbound calls are configured in advance ([`inbound`]).

mod follow;
mod inbound;
mod trunks;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use livekit_protocol::{
    CreateSipParticipantRequest, ParticipantInfo, SipParticipantInfo,
    SipTransport as WireTransport, TransferSipParticipantRequest, WebhookEvent,
};
use tokio::net::lookup_host;
use tokio::sync::oneshot;

use super::server_api::{ApiError, Grant, ServerApi, TwirpError, code};
use follow::Followers;
pub use inbound::{Inbound, provision};
use trunks::OutboundTrunks;
use vivavoce_config::SipTransport;
use vivavoce_core::egress_policy::is_public;
use vivavoce_core::phone::Gateway;
use vivavoce_seams::ApiKey;
use vivavoce_seams::rooms::telephone::{
    CallError, CallErrorKind, CallOf, CallReport, CallStatus, HangupCause, Line, NewCall,
    NewTransfer, NewsSender, PlacedCall, Telephone, TransferTarget, attribute, status_of,
};

/// How long a deployment may take to send an INVITE (its own limit is 30 s).
const DIAL_PATIENCE: Duration = Duration::from_secs(35);
/// A request that waits for an answer may take so much longer than it may ring.
const ANSWER_SLACK: Duration = Duration::from_secs(2);

/// The telephone of a deployment.
pub struct LiveKitTelephone {
    api: Arc<ServerApi>,
    trunks: OutboundTrunks,
    followers: Followers,
}

impl LiveKitTelephone {
    /// `api` is the deployment's, and `key` the key pair that it is called with.
    pub fn new(api: Arc<ServerApi>, key: &ApiKey, news: NewsSender) -> Self {
        Self {
            followers: Followers::new(Arc::clone(&api), news),
            api,
            trunks: OutboundTrunks::new(key),
        }
    }

    /// The deployment has told an event.
    pub fn happened(&self, event: &WebhookEvent) {
        self.followers.happened(event);
    }

    /// The participant of a call, asked just before something is done with it: a deployment knows participants by their
    /// names, and another caller may have the name by now.
    async fn still_there(&self, call: &CallOf) -> Result<ParticipantInfo, CallError> {
        let participant = self.api.participant(&call.room, &call.identity).await?;
        if CallOf::participant(&call.room, &participant) == *call {
            Ok(participant)
        } else {
            let gone = "nobody of this identity is there by telephone";
            Err(CallError::new(CallErrorKind::NotFound, gone))
        }
    }

    /// Whether a telephone is no longer in its room, and nobody here or there has sent it away.
    async fn has_gone(&self, room: &str, participant: &ParticipantInfo) -> bool {
        let found = self.api.participant(room, &participant.identity).await;
        let is_there = match found {
            Ok(found) => found.sid == participant.sid,
            Err(error) => !follow::is_gone(&error),
        };
        !is_there && !self.followers.is_sent_away(&participant.sid)
    }

    async fn create(
        &self,
        call: &NewCall,
        request: CreateSipParticipantRequest,
    ) -> Result<SipParticipantInfo, CallError> {
        if self.trunks.may_be_inline() {
            let inline = CreateSipParticipantRequest {
                trunk: Some(trunks::inline(&call.trunk)),
                ..request.clone()
            };
            match self.dial(&inline).await {
                Ok(placed) => return Ok(placed),
                Err(error) if trunks::wants_stored(&error) => self.trunks.never_inline(),
                Err(error) => return Err(error.into()),
            }
        }
        let sip_trunk_id = self
            .trunks
            .find_or_make(&self.api, &call.trunk, call.from.as_str())
            .await?;
        let stored = CreateSipParticipantRequest {
            sip_trunk_id,
            ..request
        };
        Ok(self.dial(&stored).await?)
    }

    async fn dial(
        &self,
        request: &CreateSipParticipantRequest,
    ) -> Result<SipParticipantInfo, ApiError> {
        let method = "SIP/CreateSIPParticipant";
        self.api
            .call_within(DIAL_PATIENCE, method, Grant::SipCall, request)
            .await
    }
}

#[async_trait]
impl Telephone for LiveKitTelephone {
    async fn call(&self, call: NewCall, line: Line) -> Result<PlacedCall, CallError> {
        if !call.trunk.private {
            refuse_private(&call.trunk.gateway).await?;
        }
        let request = CreateSipParticipantRequest {
            sip_call_to: call.to.as_str().to_owned(),
            sip_number: call.from.as_str().to_owned(),
            room_name: call.room.clone(),
            participant_identity: call.identity.clone(),
            participant_name: call.name.clone(),
            participant_metadata: call.metadata.clone(),
            participant_attributes: call.attributes.iter().cloned().collect(),
            display_name: call.display_name.clone(),
            hide_phone_number: call.hides_numbers,
            dtmf: call.dtmf.clone(),
            ringing_timeout: Some(call.ringing_timeout.into()),
            max_call_duration: Some(call.max_duration.into()),
            ..Default::default()
        };
        let placed = self
            .create(&call, request)
            .await
            .map_err(|error| hiding(error, &call))?;
        self.followers.follow(&call, &placed, line);
        Ok(PlacedCall {
            participant_sid: placed.participant_id,
            sip_call_id: placed.sip_call_id,
        })
    }

    async fn transfer(
        &self,
        transfer: NewTransfer,
        _accepted: oneshot::Sender<()>,
    ) -> Result<(), CallError> {
        let NewTransfer {
            call,
            to,
            ringing_timeout,
        } = transfer;
        let participant = self.still_there(&call).await?;
        let CallOf { room, identity, .. } = call;
        let target = match to {
            TransferTarget::Uri(uri) => uri,
            TransferTarget::Number(number) if number.as_str().starts_with('+') => {
                format!("tel:{}", number.as_str())
            }
            TransferTarget::Number(number) => {
                match participant.attributes.get(attribute::HOSTNAME) {
                    Some(host) => format!("sip:{}@{host}", number.as_str()),
                    None => format!("tel:{}", number.as_str()),
                }
            }
        };
        let request = TransferSipParticipantRequest {
            participant_identity: identity.clone(),
            room_name: room.clone(),
            transfer_to: target,
            ringing_timeout: Some(ringing_timeout.into()),
            ..Default::default()
        };
        let timeout = ringing_timeout + ANSWER_SLACK;
        let method = "SIP/TransferSIPParticipant";
        let _moving = self.followers.moves(&participant.sid);
        let moved =
            self.api
                .call_within::<()>(timeout, method, Grant::SipTransfer(&room), &request);
        match moved.await {
            // A telephone that hangs up instead of telling how it went has been moved.
            Err(error) if is_canceled(&error) && self.has_gone(&room, &participant).await => {}
            moved => moved?,
        }
        self.followers
            .ends(&participant.sid, |_| HangupCause::Transferred);
        Ok(())
    }

    async fn hang_up(&self, call: &CallOf) -> Result<(), CallError> {
        let participant = self.still_there(call).await?;
        // Whoever follows the call may not have seen yet that it was answered.
        let answered = status_of(&participant) == Some(CallStatus::Active);
        self.api
            .remove_participant(&call.room, &call.identity)
            .await?;
        let by_wish = |active| {
            if active || answered {
                HangupCause::Local
            } else {
                HangupCause::Cancelled
            }
        };
        self.followers.ends(&participant.sid, by_wish);
        Ok(())
    }

    /// The service carries them.
    fn calls(&self) -> Vec<CallReport> {
        Vec::new()
    }
}

fn is_canceled(error: &ApiError) -> bool {
    error
        .twirp()
        .is_some_and(|answer| answer.code == code::CANCELED)
}

/// As LiveKit names it.
const fn wire(transport: SipTransport) -> WireTransport {
    match transport {
        SipTransport::Udp => WireTransport::Udp,
        SipTransport::Tcp => WireTransport::Tcp,
        SipTransport::Tls => WireTransport::Tls,
    }
}

/// The deployment looks names up by itself; what they mean here is what can be known of that.
async fn refuse_private(gateway: &Gateway) -> Result<(), CallError> {
    let found: Vec<IpAddr> = match gateway.host.parse() {
        Ok(address) => vec![address],
        Err(_) => match lookup_host((gateway.host.as_str(), gateway.port.unwrap_or(5060))).await {
            Ok(found) => found.map(|address| address.ip()).collect(),
            Err(_) => Vec::new(),
        },
    };
    if found.into_iter().all(is_public) {
        return Ok(());
    }
    let problem = "sip.outbound_address: must have a public address, unless sip.allow_private_outbound says otherwise";
    Err(CallError::new(CallErrorKind::Refused, problem))
}

/// Failures are told and logged; numbers and passwords are not.
fn hiding(mut error: CallError, call: &NewCall) -> CallError {
    let password = call
        .trunk
        .login
        .as_ref()
        .map(|login| login.password.expose());
    let numbers = [call.to.as_str(), call.from.as_str()];
    // An extension may be a part of anything.
    let secrets = numbers
        .into_iter()
        .chain(password)
        .filter(|text| text.len() > 3);
    for secret in secrets {
        error.message = error.message.replace(secret, "…");
    }
    error
}

impl From<ApiError> for CallError {
    fn from(error: ApiError) -> Self {
        let kind = match &error {
            ApiError::Twirp(answer) => kind(answer),
            ApiError::Connection(error) if error.is_timeout() => CallErrorKind::Timeout,
            _ => CallErrorKind::Unavailable,
        };
        Self::new(kind, format!("{}: {error}", super::SLUG))
    }
}

fn kind(answer: &TwirpError) -> CallErrorKind {
    let status = answer
        .meta
        .get("sip_status_code")
        .and_then(|code| code.parse().ok());
    if let Some(status) = status.filter(|status| *status >= 300) {
        return CallErrorKind::Rejected(status);
    }
    match answer.code.as_str() {
        code::NOT_FOUND => CallErrorKind::NotFound,
        code::FAILED_PRECONDITION | code::ABORTED => CallErrorKind::Precondition,
        // No SIP service has room for a call.
        code::RESOURCE_EXHAUSTED | code::UNAVAILABLE => CallErrorKind::Full,
        code::DEADLINE_EXCEEDED | code::CANCELED => CallErrorKind::Timeout,
        code::INVALID_ARGUMENT | code::MALFORMED | code::OUT_OF_RANGE => CallErrorKind::Refused,
        _ => CallErrorKind::Unavailable,
    }
}

#[cfg(test)]
mod tests;
