//! Calls through LiveKit's SIP service: placed, moved and ended by its server API. The service carries them; what becomes
//! of a call is seen by its participant ([`follow`]), who may call in is set up beforehand ([`inbound`]).

mod follow;
mod inbound;
mod trunks;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use livekit_api::services::room::RoomClient;
use livekit_api::services::sip::{
    CreateSIPParticipantOptions, SIPClient, TransferSIPParticipantOptions,
};
use livekit_api::services::{ServerError, ServerErrorCode, ServiceError};
use livekit_protocol::{
    ParticipantInfo, SipParticipantInfo, SipTransport as WireTransport, WebhookEvent,
};
use tokio::net::lookup_host;
use tokio::sync::oneshot;

use super::{PATIENCE, causes};
use follow::Followers;
pub use inbound::{Inbound, provision};
use trunks::OutboundTrunks;
use vivavoce_config::SipTransport;
use vivavoce_core::outgoing::reach::is_public;
use vivavoce_core::phone::Gateway;
use vivavoce_seams::ApiKey;
use vivavoce_seams::rooms::telephone::{
    CallError, CallErrorKind, CallOf, CallReport, HangupCause, NewCall, NewTransfer, NewsSender,
    PlacedCall, Telephone, TransferTarget, attribute,
};

/// How long a deployment may take to send an INVITE (its own limit is 30 s).
const DIAL_PATIENCE: Duration = Duration::from_secs(35);

/// The telephone of a deployment.
pub struct LiveKitTelephone {
    sip: SIPClient,
    rooms: Arc<RoomClient>,
    trunks: OutboundTrunks,
    followers: Followers,
}

impl LiveKitTelephone {
    /// `host` is the address of the deployment's server API.
    pub fn new(host: &str, key: &ApiKey, news: NewsSender) -> Self {
        let client = || RoomClient::with_api_key(host, &key.key, &key.secret);
        let rooms = Arc::new(client().with_request_timeout(PATIENCE));
        Self {
            sip: client_of(host, key),
            followers: Followers::new(Arc::clone(&rooms), news),
            rooms,
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
        let participant = self.rooms.get_participant(&call.room, &call.identity).await;
        let participant = participant.map_err(failure)?;
        if CallOf::participant(&call.room, &participant) == *call {
            Ok(participant)
        } else {
            let gone = "nobody of this identity is there by telephone";
            Err(CallError::new(CallErrorKind::NotFound, gone))
        }
    }

    async fn create(
        &self,
        call: &NewCall,
        options: CreateSIPParticipantOptions,
    ) -> Result<SipParticipantInfo, CallError> {
        let (to, room) = (call.to.as_str(), call.room.as_str());
        if self.trunks.may_be_inline() {
            let inline = Some(trunks::inline(&call.trunk));
            let placed = self.sip.create_sip_participant(
                String::new(),
                to.to_owned(),
                room.to_owned(),
                options.clone(),
                inline,
            );
            match placed.await {
                Ok(placed) => return Ok(placed),
                Err(error) if trunks::wants_stored(&error) => self.trunks.never_inline(),
                Err(error) => return Err(failure(error)),
            }
        }
        let trunk = self
            .trunks
            .find_or_make(&self.sip, &call.trunk, call.from.as_str())
            .await?;
        let placed =
            self.sip
                .create_sip_participant(trunk, to.to_owned(), room.to_owned(), options, None);
        placed.await.map_err(failure)
    }
}

fn client_of(host: &str, key: &ApiKey) -> SIPClient {
    SIPClient::with_api_key(host, &key.key, &key.secret).with_request_timeout(PATIENCE)
}

#[async_trait]
impl Telephone for LiveKitTelephone {
    async fn call(&self, call: NewCall) -> Result<PlacedCall, CallError> {
        if !call.trunk.private {
            refuse_private(&call.trunk.gateway).await?;
        }
        let options = CreateSIPParticipantOptions {
            participant_identity: call.identity.clone(),
            participant_name: Some(call.name.clone()),
            participant_metadata: Some(call.metadata.clone()).filter(|text| !text.is_empty()),
            participant_attributes: Some(call.attributes.iter().cloned().collect()),
            display_name: call.display_name.clone(),
            sip_number: Some(call.from.as_str().to_owned()),
            hide_phone_number: Some(call.hides_numbers),
            dtmf: Some(call.dtmf.clone()).filter(|keys| !keys.is_empty()),
            ringing_timeout: Some(call.ringing_timeout),
            max_call_duration: Some(call.max_duration),
            timeout: Some(DIAL_PATIENCE),
            ..CreateSIPParticipantOptions::default()
        };
        let placed = self
            .create(&call, options)
            .await
            .map_err(|error| hiding(error, &call))?;
        self.followers.follow(&call, &placed);
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
        let options = TransferSIPParticipantOptions {
            ringing_timeout: Some(ringing_timeout),
            ..TransferSIPParticipantOptions::default()
        };
        let moved =
            self.sip
                .transfer_sip_participant(room.clone(), identity.clone(), target, options);
        moved.await.map_err(failure)?;
        self.followers
            .ends(&room, &identity, |_| HangupCause::Transferred);
        Ok(())
    }

    async fn hang_up(&self, call: &CallOf) -> Result<(), CallError> {
        self.still_there(call).await?;
        let CallOf { room, identity, .. } = call;
        self.rooms
            .remove_participant(room, identity)
            .await
            .map_err(failure)?;
        let by_wish = |active| {
            if active {
                HangupCause::Local
            } else {
                HangupCause::Cancelled
            }
        };
        self.followers.ends(room, identity, by_wish);
        Ok(())
    }

    /// The service carries them.
    fn calls(&self) -> Vec<CallReport> {
        Vec::new()
    }
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

fn failure(error: ServiceError) -> CallError {
    let (kind, message) = match error {
        ServiceError::Twirp(ServerError::Twirp(answer)) => (kind(&answer), answer.to_string()),
        // Without the URL, which may hold credentials.
        ServiceError::Twirp(ServerError::Request(error)) => {
            let error = error.without_url();
            let kind = if error.is_timeout() {
                CallErrorKind::Timeout
            } else {
                CallErrorKind::Unavailable
            };
            (kind, causes(&error))
        }
        error => (CallErrorKind::Unavailable, error.to_string()),
    };
    CallError::new(kind, format!("{}: {message}", super::SLUG))
}

fn kind(answer: &ServerErrorCode) -> CallErrorKind {
    let status = answer
        .meta
        .get("sip_status_code")
        .and_then(|code| code.parse().ok());
    if let Some(status) = status.filter(|status| *status >= 300) {
        return CallErrorKind::Rejected(status);
    }
    match answer.code.as_str() {
        ServerErrorCode::NOT_FOUND => CallErrorKind::NotFound,
        ServerErrorCode::FAILED_PRECONDITION | ServerErrorCode::ABORTED => {
            CallErrorKind::Precondition
        }
        ServerErrorCode::RESOURCE_EXHAUSTED => CallErrorKind::Full,
        ServerErrorCode::DEADLINE_EXCEEDED | ServerErrorCode::CANCELED => CallErrorKind::Timeout,
        ServerErrorCode::INVALID_ARGUMENT
        | ServerErrorCode::MALFORMED
        | ServerErrorCode::OUT_OF_RANGE => CallErrorKind::Refused,
        _ => CallErrorKind::Unavailable,
    }
}

#[cfg(test)]
mod tests;
