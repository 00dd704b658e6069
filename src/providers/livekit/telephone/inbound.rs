//! Who may call into the rooms of a deployment: one inbound trunk for the addresses that the settings allow, and one
//! dispatch rule that makes a call's room of the settings' prefix and the number that was called, as the bridge of this
//! process does. Both are recognised by their name, made where they are not there, and touched only where they differ.

use std::time::Duration;

use livekit_api::services::ServiceError;
use livekit_api::services::sip::{
    CreateSIPDispatchRuleOptions, CreateSIPInboundTrunkOptions, ListSIPDispatchRuleFilter,
    ListSIPInboundTrunkFilter, SIPClient,
};
use livekit_protocol::sip_dispatch_rule::Rule;
use livekit_protocol::{
    SipDispatchRule, SipDispatchRuleCallee, SipDispatchRuleInfo, SipHeaderOptions,
    SipInboundTrunkInfo,
};
use tokio::time::sleep;

use super::{client_of, failure};
use vivavoce_config::Sip;
use vivavoce_seams::ApiKey;
use vivavoce_seams::rooms::telephone::CallErrorKind;

/// The name of both.
const NAME: &str = "vivavoce-inbound";
/// The pauses between attempts, of which the last is repeated.
const PAUSES: [u64; 6] = [1, 2, 5, 10, 30, 60];

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
        (!allowed.is_empty()).then(|| Self {
            allowed_addresses: allowed,
            room_prefix: settings.room_prefix.clone().unwrap_or_default(),
        })
    }
}

/// Sees to it that a deployment lets them in. A deployment that is away is asked until it is there; one that refuses is
/// left as it is.
pub async fn provision(host: String, key: ApiKey, inbound: Inbound) {
    let sip = client_of(&host, &key);
    let mut pauses = PAUSES.into_iter();
    let mut pause = Duration::ZERO;
    loop {
        let error = match Box::pin(settle(&sip, &inbound)).await {
            Ok(changed) => {
                tracing::info!(
                    changed,
                    "the LiveKit deployment takes calls as the settings say"
                );
                return;
            }
            Err(error) => failure(error),
        };
        if matches!(
            error.kind,
            CallErrorKind::Refused | CallErrorKind::Precondition
        ) {
            tracing::error!(%error, "the LiveKit deployment does not take calls as the settings say");
            return;
        }
        tracing::warn!(%error, "the LiveKit deployment could not be told who may call in; it is tried again");
        pause = pauses.next().map_or(pause, Duration::from_secs);
        sleep(pause).await;
    }
}

/// Whether something had to be changed.
async fn settle(sip: &SIPClient, inbound: &Inbound) -> Result<bool, ServiceError> {
    let (trunk, changed_trunk) = settle_trunk(sip, inbound).await?;
    let changed_rule = Box::pin(settle_rule(sip, inbound, trunk)).await?;
    Ok(changed_trunk || changed_rule)
}

async fn settle_trunk(sip: &SIPClient, inbound: &Inbound) -> Result<(String, bool), ServiceError> {
    let all = sip
        .list_sip_inbound_trunk(ListSIPInboundTrunkFilter::All)
        .await?;
    let known = all.into_iter().find(|trunk| trunk.name == NAME);
    let headers = SipHeaderOptions::SipAllHeaders;
    let as_wanted = |trunk: &SipInboundTrunkInfo| {
        trunk.allowed_addresses == inbound.allowed_addresses && trunk.include_headers() == headers
    };
    let known = match known {
        Some(known) if as_wanted(&known) => return Ok((known.sip_trunk_id, false)),
        Some(known) => known,
        None => {
            let options = CreateSIPInboundTrunkOptions {
                allowed_addresses: Some(inbound.allowed_addresses.clone()),
                ..CreateSIPInboundTrunkOptions::default()
            };
            sip.create_sip_inbound_trunk(NAME.to_owned(), Vec::new(), options)
                .await?
        }
    };
    // The headers, from which hooks know their hosts, can only be asked for in this way.
    let wanted = SipInboundTrunkInfo {
        allowed_addresses: inbound.allowed_addresses.clone(),
        include_headers: headers as i32,
        ..known
    };
    let id = wanted.sip_trunk_id.clone();
    let unnamed = SipInboundTrunkInfo {
        created_at: None,
        updated_at: None,
        ..wanted
    };
    sip.update_sip_inbound_trunk_replace(id.clone(), unnamed)
        .await?;
    Ok((id, true))
}

async fn settle_rule(
    sip: &SIPClient,
    inbound: &Inbound,
    trunk: String,
) -> Result<bool, ServiceError> {
    let rule = Rule::DispatchRuleCallee(SipDispatchRuleCallee {
        room_prefix: inbound.room_prefix.clone(),
        pin: String::new(),
        randomize: false,
    });
    let all = sip
        .list_sip_dispatch_rule(ListSIPDispatchRuleFilter::All)
        .await?;
    let Some(known) = all.into_iter().find(|rule| rule.name == NAME) else {
        let options = CreateSIPDispatchRuleOptions {
            name: NAME.to_owned(),
            trunk_ids: vec![trunk],
            ..CreateSIPDispatchRuleOptions::default()
        };
        Box::pin(sip.create_sip_dispatch_rule(rule, options)).await?;
        return Ok(true);
    };
    let says = known.rule.as_ref().and_then(|rule| rule.rule.as_ref());
    if says == Some(&rule) && known.trunk_ids == [trunk.as_str()] {
        return Ok(false);
    }
    let id = known.sip_dispatch_rule_id.clone();
    let wanted = SipDispatchRuleInfo {
        rule: Some(SipDispatchRule { rule: Some(rule) }),
        trunk_ids: vec![trunk],
        created_at: None,
        updated_at: None,
        ..known
    };
    sip.update_sip_dispatch_rule_replace(id, wanted).await?;
    Ok(true)
}
