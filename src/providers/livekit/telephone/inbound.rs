//! Configures inbound calls of a deployment: an inbound trunk for the allowed addresses of the settings, and a dispatch rule
//! that forms the room's name from the prefix of the settings and the called number, as the embedded bridge does but for a
//! `_` between them. Both are found by name, created where they are missing, and changed only where they differ.

use std::sync::Arc;
use std::time::Duration;

use livekit_protocol::sip_dispatch_rule::Rule;
use livekit_protocol::{
    CreateSipDispatchRuleRequest, CreateSipInboundTrunkRequest, ListSipDispatchRuleRequest,
    ListSipDispatchRuleResponse, ListSipInboundTrunkRequest, ListSipInboundTrunkResponse,
    SipDispatchRule, SipDispatchRuleCallee, SipDispatchRuleInfo, SipHeaderOptions,
    SipInboundTrunkInfo, UpdateSipDispatchRuleRequest, UpdateSipInboundTrunkRequest,
    update_sip_dispatch_rule_request, update_sip_inbound_trunk_request,
};
use prost::Message;
use tokio::time::sleep;

use crate::server_api::{ApiError, Grant, ServerApi};
use vivavoce_config::Sip;
use vivavoce_core::backoff::Backoff;
use vivavoce_seams::rooms::telephone::{CallError, CallErrorKind};

/// The name of both.
const NAME: &str = "vivavoce-inbound";
/// The pauses between attempts.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_mins(1), 0.2);

/// Who may call in, and where they come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    allowed_addresses: Vec<String>,
    room_prefix: String,
}

impl Inbound {
    /// What the settings say; `None` where nobody may call in.
    pub fn from_settings(settings: &Sip) -> Option<Self> {
        let allowed = settings.allowed_addresses.0.iter();
        let allowed: Vec<String> = allowed.map(ToString::to_string).collect();
        let prefix = settings.room_prefix.as_deref().unwrap_or_default();
        (!allowed.is_empty()).then(|| Self {
            allowed_addresses: allowed,
            // LiveKit puts a `_` behind it.
            room_prefix: prefix.strip_suffix('_').unwrap_or(prefix).to_owned(),
        })
    }
}

/// Sees to it that a deployment lets them in. A deployment that is away is asked until it is there; one that refuses is
/// left as it is.
pub async fn provision(api: Arc<ServerApi>, inbound: Inbound) {
    let mut failures = 0;
    loop {
        let error = match Box::pin(settle(&api, &inbound)).await {
            Ok(changed) => {
                tracing::info!(
                    changed,
                    "the LiveKit deployment takes calls as the settings say"
                );
                return;
            }
            Err(error) => CallError::from(error),
        };
        if matches!(
            error.kind,
            CallErrorKind::Refused | CallErrorKind::Precondition
        ) {
            tracing::error!(%error, "the LiveKit deployment does not take calls as the settings say");
            return;
        }
        tracing::warn!(%error, "the LiveKit deployment could not be told who may call in; it is tried again");
        sleep(BACKOFF.delay(failures, fastrand::f64())).await;
        failures = failures.saturating_add(1);
    }
}

async fn call<A: Message + Default>(
    api: &ServerApi,
    method: &str,
    request: &impl Message,
) -> Result<A, ApiError> {
    let method = format!("SIP/{method}");
    api.call(&method, Grant::SipAdmin, request).await
}

/// Whether something had to be changed.
async fn settle(api: &ServerApi, inbound: &Inbound) -> Result<bool, ApiError> {
    let (trunk, changed_trunk) = settle_trunk(api, inbound).await?;
    let changed_rule = Box::pin(settle_rule(api, inbound, trunk)).await?;
    Ok(changed_trunk || changed_rule)
}

async fn settle_trunk(api: &ServerApi, inbound: &Inbound) -> Result<(String, bool), ApiError> {
    let every = ListSipInboundTrunkRequest::default();
    let all: ListSipInboundTrunkResponse = call(api, "ListSIPInboundTrunk", &every).await?;
    let known = all.items.into_iter().find(|trunk| trunk.name == NAME);
    let headers = SipHeaderOptions::SipAllHeaders;
    let as_wanted = |trunk: &SipInboundTrunkInfo| {
        trunk.allowed_addresses == inbound.allowed_addresses && trunk.include_headers() == headers
    };
    let known = match known {
        Some(known) if as_wanted(&known) => return Ok((known.sip_trunk_id, false)),
        known => known,
    };
    let wanted = SipInboundTrunkInfo {
        name: NAME.to_owned(),
        allowed_addresses: inbound.allowed_addresses.clone(),
        // Hooks know their hosts from the headers.
        include_headers: headers as i32,
        created_at: None,
        updated_at: None,
        ..known.clone().unwrap_or_default()
    };
    let Some(known) = known else {
        let request = CreateSipInboundTrunkRequest {
            trunk: Some(wanted),
        };
        let created: SipInboundTrunkInfo = call(api, "CreateSIPInboundTrunk", &request).await?;
        return Ok((created.sip_trunk_id, true));
    };
    let request = UpdateSipInboundTrunkRequest {
        sip_trunk_id: known.sip_trunk_id.clone(),
        action: Some(update_sip_inbound_trunk_request::Action::Replace(wanted)),
    };
    call::<()>(api, "UpdateSIPInboundTrunk", &request).await?;
    Ok((known.sip_trunk_id, true))
}

async fn settle_rule(api: &ServerApi, inbound: &Inbound, trunk: String) -> Result<bool, ApiError> {
    let rule = Rule::DispatchRuleCallee(SipDispatchRuleCallee {
        room_prefix: inbound.room_prefix.clone(),
        pin: String::new(),
        randomize: false,
    });
    let every = ListSipDispatchRuleRequest::default();
    let all: ListSipDispatchRuleResponse = call(api, "ListSIPDispatchRule", &every).await?;
    let Some(known) = all.items.into_iter().find(|rule| rule.name == NAME) else {
        let rule = SipDispatchRuleInfo {
            name: NAME.to_owned(),
            rule: Some(SipDispatchRule { rule: Some(rule) }),
            trunk_ids: vec![trunk],
            ..Default::default()
        };
        let request = CreateSipDispatchRuleRequest {
            dispatch_rule: Some(rule),
            ..Default::default()
        };
        Box::pin(call::<()>(api, "CreateSIPDispatchRule", &request)).await?;
        return Ok(true);
    };
    let says = known.rule.as_ref().and_then(|rule| rule.rule.as_ref());
    if says == Some(&rule) && known.trunk_ids == [trunk.as_str()] {
        return Ok(false);
    }
    let wanted = SipDispatchRuleInfo {
        rule: Some(SipDispatchRule { rule: Some(rule) }),
        trunk_ids: vec![trunk],
        created_at: None,
        updated_at: None,
        ..known.clone()
    };
    let request = UpdateSipDispatchRuleRequest {
        sip_dispatch_rule_id: known.sip_dispatch_rule_id,
        action: Some(update_sip_dispatch_rule_request::Action::Replace(wanted)),
    };
    call::<()>(api, "UpdateSIPDispatchRule", &request).await?;
    Ok(true)
}
