//! Trunks and rules that the settings name (`sip.trunks_json`), in the JSON form of LiveKit's API: a server whose data folder is
//! empty has them, too.

use livekit_protocol as proto;
use proto::{SipDispatchRuleInfo, SipInboundTrunkInfo, SipOutboundTrunkInfo};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Entry, changes};

/// The setting.
pub const SETTING: &str = "sip.trunks_json";

/// What the settings name. Not `Debug`: it holds passwords.
#[derive(Clone, Default)]
pub struct Configured {
    pub(super) inbound: Vec<SipInboundTrunkInfo>,
    pub(super) outbound: Vec<SipOutboundTrunkInfo>,
    pub(super) rules: Vec<SipDispatchRuleInfo>,
}

impl Configured {
    /// Reads `{"inbound": [], "outbound": [], "rules": []}`. The problems name the entry and quote no secret of it.
    pub fn read(json: &Value) -> Result<Self, Vec<String>> {
        let Some(mut lists) = json.as_object().cloned() else {
            let shape = "must be an object of the lists inbound, outbound and rules";
            return Err(vec![format!("{SETTING}: {shape}")]);
        };
        let mut problems = Vec::new();
        let configured = Self {
            inbound: list(&mut lists, "inbound", &mut problems),
            outbound: list(&mut lists, "outbound", &mut problems),
            rules: list(&mut lists, "rules", &mut problems),
        };
        for unknown in lists.keys() {
            problems.push(format!(
                "{SETTING}.{unknown}: there are inbound, outbound and rules"
            ));
        }
        problems.extend(configured.problems(&configured));
        if problems.is_empty() {
            Ok(configured)
        } else {
            Err(problems)
        }
    }

    /// The inbound trunks.
    pub fn inbound(&self) -> &[SipInboundTrunkInfo] {
        &self.inbound
    }

    /// The outbound trunks.
    pub fn outbound(&self) -> &[SipOutboundTrunkInfo] {
        &self.outbound
    }

    /// The dispatch rules.
    pub fn rules(&self) -> &[SipDispatchRuleInfo] {
        &self.rules
    }

    /// Its problems among all that there are.
    pub(super) fn problems(&self, all: &Self) -> Vec<String> {
        let inbound = self.inbound.iter().map(|trunk| {
            let checked = changes::check_inbound(&all.inbound, trunk);
            ("inbound", trunk.id(), checked)
        });
        let outbound = self.outbound.iter().map(|trunk| {
            let checked = changes::check_outbound(trunk);
            ("outbound", trunk.id(), checked)
        });
        let rules = self.rules.iter().map(|rule| {
            let checked = changes::check_rule(&all.rules, rule);
            ("rules", rule.id(), checked)
        });
        let of_entries = inbound.chain(outbound).chain(rules);
        let wrong = of_entries.filter_map(|(list, id, checked)| {
            let problem = checked.err()?;
            Some(format!("{SETTING}.{list}: {id:?}: {problem}"))
        });
        let trunks = all.inbound.iter().map(Entry::id);
        let mut ids: Vec<&str> = trunks.chain(all.outbound.iter().map(Entry::id)).collect();
        let mut rules: Vec<&str> = all.rules.iter().map(Entry::id).collect();
        ids.sort_unstable();
        rules.sort_unstable();
        let twice = [ids, rules].into_iter().flat_map(|ids| {
            let pairs = ids.windows(2).map(<[&str]>::to_vec);
            pairs.collect::<Vec<_>>()
        });
        let twice = twice.filter_map(|pair| match pair[..] {
            [one, other] if one == other => Some(one),
            _ => None,
        });
        let twice = twice.map(|id| format!("{SETTING}: two have the id {id:?}"));
        wrong.chain(twice).collect()
    }
}

/// The entries of a list, each with an id.
fn list<T: Entry + DeserializeOwned>(
    lists: &mut Map<String, Value>,
    name: &str,
    problems: &mut Vec<String>,
) -> Vec<T> {
    let entries = match lists.remove(name) {
        None => Vec::new(),
        Some(Value::Array(entries)) => entries,
        Some(_) => {
            problems.push(format!("{SETTING}.{name}: must be a list"));
            Vec::new()
        }
    };
    let mut read = Vec::with_capacity(entries.len());
    for (place, entry) in entries.into_iter().enumerate() {
        // LiveKit's own reading passes over what it does not know.
        let mut unknown = Vec::new();
        let note = |path: serde_ignored::Path<'_>| unknown.push(path.to_string());
        let entry: Result<T, _> = serde_ignored::deserialize(entry, note);
        for field in unknown {
            problems.push(format!(
                "{SETTING}.{name}[{place}]: unknown field `{field}`"
            ));
        }
        match entry {
            Ok(mut entry) => {
                if entry.id().is_empty() {
                    entry.name_it(format!("{}{name}_{place}", T::PREFIX));
                }
                read.push(entry);
            }
            Err(error) => {
                let problem = error.to_string();
                // Any other message has the value in it, which may be a password.
                let told = if problem.starts_with("duplicate field") {
                    problem.as_str()
                } else {
                    "a field has another type in LiveKit's API"
                };
                problems.push(format!("{SETTING}.{name}[{place}]: {told}"));
            }
        }
    }
    read
}
