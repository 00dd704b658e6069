//! Where a rule places a call, and as whom.

use std::fmt::Write as _;

use livekit_protocol as proto;
use proto::SipDispatchRuleInfo;
use proto::sip_dispatch_rule::Rule;
use sha2::{Digest as _, Sha256};

use super::super::call::attributes::Ends;
use vivavoce_seams::rooms::telephone::attribute;

/// What a rule makes of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The room.
    pub room: String,
    /// Who the caller is there, unless somebody else is called so.
    pub identity: String,
    /// What people read, where the call does not say.
    pub name: String,
    /// What is told of the two ends: nothing where the rule hides the numbers.
    pub ends: Ends,
    /// Whether headers that contain numbers must not be told either.
    pub hides_numbers: bool,
    /// Metadata of the participant.
    pub metadata: String,
    /// Attributes of the participant.
    pub attributes: Vec<(String, String)>,
    /// The room's configuration, where the call makes it.
    pub room_config: Option<Box<proto::RoomConfiguration>>,
}

impl Placement {
    /// As the rule says. `chance` is what makes a room of its own.
    pub fn new(rule: &SipDispatchRuleInfo, ends: &Ends, chance: &str) -> Self {
        let hides_numbers = rule.hide_phone_number;
        let from = if hides_numbers {
            tail(&ends.outside).to_owned()
        } else {
            ends.outside.clone()
        };
        let id = rule.sip_dispatch_rule_id.clone();
        let mut attributes: Vec<(String, String)> = rule
            .attributes
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        attributes.sort();
        attributes.push((attribute::RULE_ID.to_owned(), id));
        Self {
            room: room(rule, &from, &ends.ours, chance),
            identity: identity(&ends.outside, hides_numbers),
            name: format!("Phone {from}").trim().to_owned(),
            ends: if hides_numbers {
                Ends::default()
            } else {
                ends.clone()
            },
            hides_numbers,
            metadata: rule.metadata.clone(),
            attributes,
            room_config: rule.room_config.clone().map(Box::new),
        }
    }
}

/// The end of a hidden number, as LiveKit shows it: four digits, or one of a short number.
fn tail(number: &str) -> &str {
    let shown = if number.chars().count() > 4 { 4 } else { 1 };
    let start = number.char_indices().rev().nth(shown - 1);
    start
        .and_then(|(at, _)| number.get(at..))
        .unwrap_or_default()
}

fn identity(outside: &str, hidden: bool) -> String {
    if outside.is_empty() {
        return "sip_anonymous".to_owned();
    }
    if !hidden {
        return format!("sip_{outside}");
    }
    let digest = Sha256::digest(outside);
    let mut identity = "sip_".to_owned();
    for byte in digest.iter().take(8) {
        // Writing to a String cannot fail.
        let _ = write!(identity, "{byte:02x}");
    }
    identity
}

fn room(rule: &SipDispatchRuleInfo, from: &str, to: &str, chance: &str) -> String {
    let named = |prefix: &str, number: &str, is_random: bool| {
        let parts = [prefix, number, if is_random { chance } else { "" }];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("_")
    };
    match super::kind(rule) {
        Some(Rule::DispatchRuleDirect(rule)) => rule.room_name.clone(),
        Some(Rule::DispatchRuleIndividual(rule)) => {
            let caller = if from.is_empty() { "anonymous" } else { from };
            named(&rule.room_prefix, caller, !rule.no_randomness)
        }
        Some(Rule::DispatchRuleCallee(rule)) => named(&rule.room_prefix, to, rule.randomize),
        None => String::new(),
    }
}
