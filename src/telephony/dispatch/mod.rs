//! Which trunk and which dispatch rule an inbound call falls under: pure decisions over what clients of LiveKit's SIP API have
//! configured. `bridge` carries them out, `vivavoce sip rules test` shows them.
//!
//! The order is LiveKit's (`MatchTrunkIter` and `MatchDispatchRuleIter` of its protocol package), with two differences. A trunk
//! that names a number is decisive for it: a call that does not satisfy it is refused, and falls to no other trunk. And rules
//! concern calls that come by a trunk, or whose number they name; all others follow `sip.*` in the settings.

mod placement;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;
use livekit_protocol as proto;
use proto::sip_dispatch_rule::Rule;
use proto::{SipDispatchRuleInfo, SipInboundTrunkInfo};

pub use placement::Placement;

/// What is known of an inbound call before anything is decided.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The calling number or user; empty where it is withheld.
    pub from: &'a str,
    /// The called number or user.
    pub to: &'a str,
    /// Where the INVITE comes from.
    pub source: IpAddr,
}

/// Why a call does not fit a trunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The trunk is for other numbers.
    #[error("it is for other numbers")]
    Called,
    /// The calling number is none of `allowed_numbers`.
    #[error("the calling number is none of allowed_numbers")]
    Calling,
    /// The source is none of `allowed_addresses`.
    #[error("the source address is none of allowed_addresses")]
    Address,
}

/// What the trunks say of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Gate {
    /// No trunk is for its number: the settings decide.
    NoTrunk,
    /// It comes by this trunk, whose credentials it must have.
    Trunk(Box<SipInboundTrunkInfo>),
    /// The trunk of this id is for its number, and does not let it in.
    Refused(String, Mismatch),
}

/// What a caller has entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered<'a> {
    /// Nobody has asked yet.
    NotAsked,
    /// `#` and nothing before: there is no PIN.
    Nothing,
    /// A PIN.
    Pin(&'a str),
}

/// What the rules say of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Route {
    /// No rule concerns it: the settings decide.
    NoRule,
    /// This rule places it.
    Rule(Box<SipDispatchRuleInfo>),
    /// A rule needs a PIN.
    AskPin,
    /// There is no rule for what was entered.
    WrongPin,
}

/// A number without separators and with its `+`, as LiveKit compares them; what is no number stays as it is.
fn normal(number: &str) -> String {
    let rest = number.strip_prefix('+').unwrap_or(number);
    let is_number = !rest.is_empty()
        && rest
            .bytes()
            .all(|c| c.is_ascii_digit() || b"- ()".contains(&c));
    if !is_number {
        return number.to_owned();
    }
    let digits: String = rest.chars().filter(char::is_ascii_digit).collect();
    format!("+{digits}")
}

/// Whether a list names a number.
fn names(list: &[String], number: &str) -> bool {
    let number = normal(number);
    list.iter().any(|one| normal(one) == number)
}

/// Whether two lists have a number in common.
pub(crate) fn overlap(one: &[String], other: &[String]) -> bool {
    one.iter().any(|number| names(other, number))
}

fn is_from(addresses: &[String], source: IpAddr) -> bool {
    let source = source.to_canonical();
    addresses.iter().any(|address| {
        let network = address.parse::<IpNet>().ok();
        let single = || address.parse::<IpAddr>().ok().map(IpNet::from);
        network
            .or_else(single)
            .is_some_and(|network| network.contains(&source))
    })
}

/// Whether a call fits a trunk, but for its credentials.
pub fn fits(trunk: &SipInboundTrunkInfo, call: &Facts<'_>) -> Result<(), Mismatch> {
    if !trunk.numbers.is_empty() && !names(&trunk.numbers, call.to) {
        return Err(Mismatch::Called);
    }
    if !trunk.allowed_numbers.is_empty() && !names(&trunk.allowed_numbers, call.from) {
        return Err(Mismatch::Calling);
    }
    if !trunk.allowed_addresses.is_empty() && !is_from(&trunk.allowed_addresses, call.source) {
        return Err(Mismatch::Address);
    }
    Ok(())
}

/// The trunk of a call: of those that name its number, or else of those that are for any, the first one that lets it in.
pub fn gate<'a>(
    trunks: impl Iterator<Item = &'a SipInboundTrunkInfo> + Clone,
    call: &Facts<'_>,
) -> Gate {
    let naming = trunks
        .clone()
        .filter(|trunk| names(&trunk.numbers, call.to));
    let any = trunks.filter(|trunk| trunk.numbers.is_empty());
    let mut refused = None;
    let mut admits = |trunk: &SipInboundTrunkInfo| match fits(trunk, call) {
        Ok(()) => true,
        Err(mismatch) => {
            refused.get_or_insert((trunk.sip_trunk_id.clone(), mismatch));
            false
        }
    };
    let mut candidates: Vec<_> = naming.collect();
    if candidates.is_empty() {
        candidates = any.collect();
    }
    match candidates.into_iter().find(|trunk| admits(trunk)) {
        Some(trunk) => Gate::Trunk(Box::new(trunk.clone())),
        None => refused.map_or(Gate::NoTrunk, |(id, mismatch)| Gate::Refused(id, mismatch)),
    }
}

/// The PIN of a rule; empty without one.
pub fn pin(rule: &SipDispatchRuleInfo) -> &str {
    match kind(rule) {
        Some(Rule::DispatchRuleDirect(rule)) => &rule.pin,
        Some(Rule::DispatchRuleIndividual(rule)) => &rule.pin,
        Some(Rule::DispatchRuleCallee(rule)) => &rule.pin,
        None => "",
    }
}

fn kind(rule: &SipDispatchRuleInfo) -> Option<&Rule> {
    rule.rule.as_ref().and_then(|rule| rule.rule.as_ref())
}

/// Why a rule does not concern a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Elsewhere {
    /// It is for other trunks.
    #[error("it is for other trunks")]
    Trunk,
    /// It is for other callers.
    #[error("it is for other calling numbers (inbound_numbers)")]
    Calling,
    /// It is for other numbers.
    #[error("it is for other called numbers (numbers)")]
    Called,
    /// It names neither a trunk nor the number, and the call comes by no trunk.
    #[error("the call comes by no trunk, and the rule does not name its number")]
    NoTrunk,
}

/// Whether a rule concerns a call that comes by this trunk.
pub fn concerns(
    rule: &SipDispatchRuleInfo,
    trunk: Option<&str>,
    call: &Facts<'_>,
) -> Result<(), Elsewhere> {
    let of_trunk = trunk.is_some_and(|id| rule.trunk_ids.iter().any(|known| known == id));
    if !rule.trunk_ids.is_empty() && !of_trunk {
        return Err(Elsewhere::Trunk);
    }
    if !rule.inbound_numbers.is_empty() && !names(&rule.inbound_numbers, call.from) {
        return Err(Elsewhere::Calling);
    }
    if !rule.numbers.is_empty() && !names(&rule.numbers, call.to) {
        return Err(Elsewhere::Called);
    }
    if trunk.is_none() && rule.numbers.is_empty() {
        return Err(Elsewhere::NoTrunk);
    }
    Ok(())
}

/// The rank of a rule, the best first: one of the call's trunk before one of all trunks; one that names who calls, or who is
/// called, before one that does not; one with a PIN before an open one; direct, individual, callee.
fn rank(rule: &SipDispatchRuleInfo) -> (bool, u8, bool, u8, &str) {
    let unnamed = u8::from(rule.inbound_numbers.is_empty()) + u8::from(rule.numbers.is_empty());
    let (kind, room) = match kind(rule) {
        Some(Rule::DispatchRuleDirect(rule)) => (0, &*rule.room_name),
        Some(Rule::DispatchRuleIndividual(rule)) => (1, &*rule.room_prefix),
        Some(Rule::DispatchRuleCallee(rule)) => (2, &*rule.room_prefix),
        None => (3, ""),
    };
    let is_open = pin(rule).is_empty();
    (rule.trunk_ids.is_empty(), unnamed, is_open, kind, room)
}

/// The rule for a call.
pub fn route<'a>(
    rules: impl Iterator<Item = &'a SipDispatchRuleInfo>,
    trunk: Option<&str>,
    call: &Facts<'_>,
    entered: Entered<'_>,
) -> Route {
    let fits_entry = |rule: &SipDispatchRuleInfo| match entered {
        Entered::NotAsked => true,
        Entered::Nothing => pin(rule).is_empty(),
        Entered::Pin(entered) => pin(rule) == entered,
    };
    let concerned = rules.filter(|rule| concerns(rule, trunk, call).is_ok() && fits_entry(rule));
    match concerned.min_by(|one, other| rank(one).cmp(&rank(other))) {
        None if entered == Entered::NotAsked => Route::NoRule,
        None => Route::WrongPin,
        Some(rule) if entered == Entered::NotAsked && !pin(rule).is_empty() => Route::AskPin,
        Some(rule) => Route::Rule(Box::new(rule.clone())),
    }
}
