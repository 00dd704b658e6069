//! Validates trunks and dispatch rules, and applies updates to them as LiveKit's API does: a field that an update does not
//! name stays unchanged.

use livekit_protocol as proto;
use proto::sip_dispatch_rule::Rule;
pub use proto::update_sip_dispatch_rule_request::Action as RuleChange;
pub use proto::update_sip_inbound_trunk_request::Action as InboundChange;
pub use proto::update_sip_outbound_trunk_request::Action as OutboundChange;
use proto::{ListUpdate, SipDispatchRuleInfo, SipInboundTrunkInfo, SipOutboundTrunkInfo};

use super::super::dispatch::{overlap, pin};
use super::TrunkError;

/// The longest text, and the most entries of a list.
const MOST_BYTES: usize = 64 << 10;
const MOST_ITEMS: usize = 1_000;
/// Digits of a PIN.
const MOST_PIN: usize = 32;

/// Validates an inbound trunk among the others.
pub fn check_inbound(
    all: &[SipInboundTrunkInfo],
    trunk: &SipInboundTrunkInfo,
) -> Result<(), TrunkError> {
    let has_login = !trunk.auth_username.is_empty() && !trunk.auth_password.is_empty();
    if trunk.numbers.is_empty() && trunk.allowed_addresses.is_empty() && !has_login {
        return Err(TrunkError::invalid(
            "one of numbers, allowed_addresses or auth_username with auth_password is required",
        ));
    }
    for address in &trunk.allowed_addresses {
        let network =
            address.parse::<ipnet::IpNet>().is_ok() || address.parse::<std::net::IpAddr>().is_ok();
        if !network {
            return Err(TrunkError::invalid(format!(
                "allowed_addresses: {address:?} is not an address or network"
            )));
        }
    }
    small("numbers", &trunk.numbers)?;
    small("allowed_numbers", &trunk.allowed_numbers)?;
    short("metadata", &trunk.metadata)?;
    if !trunk.auth_username.is_empty() && trunk.auth_password.is_empty() {
        return Err(TrunkError::invalid(
            "auth_password: is required with auth_username",
        ));
    }
    if trunk.auth_username.is_empty() && !trunk.auth_password.is_empty() {
        return Err(TrunkError::invalid(
            "auth_username: is required with auth_password",
        ));
    }
    // A trunk is decisive for its numbers, so there is one for each.
    let clashes = |other: &&SipInboundTrunkInfo| {
        let both_any = other.numbers.is_empty() && trunk.numbers.is_empty();
        let same_callers = same(&other.allowed_numbers, &trunk.allowed_numbers);
        other.sip_trunk_id != trunk.sip_trunk_id
            && (overlap(&other.numbers, &trunk.numbers) || both_any && same_callers)
    };
    match all.iter().find(clashes) {
        None => Ok(()),
        Some(other) => Err(TrunkError::invalid(format!(
            "Conflicting inbound SIP Trunks: {:?} takes calls to the same numbers",
            other.sip_trunk_id
        ))),
    }
}

/// Validates an outbound trunk.
pub fn check_outbound(trunk: &SipOutboundTrunkInfo) -> Result<(), TrunkError> {
    let address = trunk.address.as_str();
    if address.is_empty() {
        return Err(TrunkError::invalid("address: is required"));
    }
    if address.contains("transport=") {
        return Err(TrunkError::invalid(
            "address: set the transport in its own field",
        ));
    }
    if address.contains(['@', ';', '<', '>'])
        || address.starts_with("sip:")
        || address.starts_with("sips:")
    {
        return Err(TrunkError::invalid(
            "address: must be a host name or address, not a URI",
        ));
    }
    if trunk.numbers.is_empty() {
        return Err(TrunkError::invalid("numbers: at least one is required"));
    }
    if proto::SipTransport::try_from(trunk.transport).is_err() {
        return Err(TrunkError::invalid("transport: is unknown"));
    }
    small("numbers", &trunk.numbers)?;
    short("metadata", &trunk.metadata)
}

/// Validates a dispatch rule among the others.
pub fn check_rule(
    all: &[SipDispatchRuleInfo],
    rule: &SipDispatchRuleInfo,
) -> Result<(), TrunkError> {
    let own = rule.rule.as_ref().and_then(|rule| rule.rule.as_ref());
    match own {
        None => return Err(TrunkError::invalid("rule: is required")),
        Some(Rule::DispatchRuleDirect(direct)) if direct.room_name.is_empty() => {
            return Err(TrunkError::invalid("rule.room_name: is required"));
        }
        Some(_) => {}
    }
    small("trunk_ids", &rule.trunk_ids)?;
    short("metadata", &rule.metadata)?;
    if !pin(rule).bytes().all(|digit| digit.is_ascii_digit()) || pin(rule).len() > MOST_PIN {
        return Err(TrunkError::invalid(format!(
            "pin: must be at most {MOST_PIN} digits, which a telephone can enter"
        )));
    }
    let clashes = |other: &&SipDispatchRuleInfo| {
        other.sip_dispatch_rule_id != rule.sip_dispatch_rule_id
            && same(&other.trunk_ids, &rule.trunk_ids)
            && same(&other.inbound_numbers, &rule.inbound_numbers)
            && same(&other.numbers, &rule.numbers)
            && pin(other) == pin(rule)
    };
    match all.iter().find(clashes) {
        None => Ok(()),
        Some(other) => Err(TrunkError::invalid(format!(
            "Conflicting SIP Dispatch Rules: {:?} has the same trunk, number and PIN",
            other.sip_dispatch_rule_id
        ))),
    }
}

/// Whether something is meant by both of two lists, of which an empty one means whatever no other names.
fn same(one: &[String], other: &[String]) -> bool {
    one.is_empty() && other.is_empty() || overlap(one, other)
}

fn small(field: &str, list: &[String]) -> Result<(), TrunkError> {
    if list.len() > MOST_ITEMS {
        return Err(TrunkError::invalid(format!(
            "{field}: must be at most {MOST_ITEMS}"
        )));
    }
    list.iter().try_for_each(|item| short(field, item))
}

fn short(field: &str, text: &str) -> Result<(), TrunkError> {
    if text.len() > MOST_BYTES {
        return Err(TrunkError::invalid(format!(
            "{field}: must be at most {MOST_BYTES} bytes"
        )));
    }
    Ok(())
}

fn set<T>(field: &mut T, change: Option<T>) {
    if let Some(value) = change {
        *field = value;
    }
}

fn set_list(field: &mut Vec<String>, change: Option<ListUpdate>) {
    let Some(ListUpdate {
        set,
        add,
        remove,
        clear,
    }) = change
    else {
        return;
    };
    if clear || !set.is_empty() {
        *field = set;
    }
    field.retain(|item| !remove.contains(item));
    for item in add {
        if !field.contains(&item) {
            field.push(item);
        }
    }
}

/// Updates an inbound trunk.
#[allow(deprecated)] // of a field: older clients still use it
pub fn inbound(trunk: &mut SipInboundTrunkInfo, change: InboundChange) {
    let update = match change {
        InboundChange::Replace(other) => {
            *trunk = other;
            return;
        }
        InboundChange::Update(update) => update,
    };
    set_list(&mut trunk.numbers, update.numbers);
    set_list(&mut trunk.allowed_addresses, update.allowed_addresses);
    set_list(&mut trunk.allowed_numbers, update.allowed_numbers);
    set(&mut trunk.auth_username, update.auth_username);
    set(&mut trunk.auth_password, update.auth_password);
    set(&mut trunk.auth_realm, update.auth_realm);
    set(&mut trunk.name, update.name);
    set(&mut trunk.metadata, update.metadata);
    set(&mut trunk.media_encryption, update.media_encryption);
    trunk.media = update.media.or(trunk.media.take());
}

/// Updates an outbound trunk.
#[allow(deprecated)] // as above
pub fn outbound(trunk: &mut SipOutboundTrunkInfo, change: OutboundChange) {
    let update = match change {
        OutboundChange::Replace(other) => {
            *trunk = other;
            return;
        }
        OutboundChange::Update(update) => update,
    };
    set(&mut trunk.address, update.address);
    set(&mut trunk.transport, update.transport);
    set(&mut trunk.destination_country, update.destination_country);
    set_list(&mut trunk.numbers, update.numbers);
    set(&mut trunk.auth_username, update.auth_username);
    set(&mut trunk.auth_password, update.auth_password);
    set(&mut trunk.name, update.name);
    set(&mut trunk.metadata, update.metadata);
    set(&mut trunk.media_encryption, update.media_encryption);
    set(&mut trunk.from_host, update.from_host);
    trunk.media = update.media.or(trunk.media.take());
}

/// Updates a dispatch rule.
#[allow(deprecated)] // as above
pub fn rule(rule: &mut SipDispatchRuleInfo, change: RuleChange) {
    let update = match change {
        RuleChange::Replace(other) => {
            *rule = other;
            return;
        }
        RuleChange::Update(update) => update,
    };
    set_list(&mut rule.trunk_ids, update.trunk_ids);
    rule.rule = update.rule.or(rule.rule.take());
    set(&mut rule.name, update.name);
    set(&mut rule.metadata, update.metadata);
    if !update.attributes.is_empty() {
        rule.attributes = update.attributes;
    }
    set(&mut rule.media_encryption, update.media_encryption);
    rule.media = update.media.or(rule.media.take());
}
