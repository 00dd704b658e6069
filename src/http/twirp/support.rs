//! What the embedded rooms do with each method of LiveKit's API and each field of its request: the types of [`super::table`], the
//! check that refuses by name what would not happen, and the page that lists all of it.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use super::Failure;
use super::table::{INBOUND_TRUNK, OUTBOUND_TRUNK, RULE, SERVICES};
use vivavoce_telephony::trunks::{Configured, SETTING};

/// A service of LiveKit's API.
pub(super) struct Service {
    pub name: &'static str,
    /// Why there is none here; its methods are `unimplemented`.
    pub missing: Option<&'static str>,
    pub methods: &'static [Method],
}

/// A method of a service.
pub(super) struct Method {
    pub name: &'static str,
    /// Why it is `unimplemented`.
    pub missing: Option<&'static str>,
    /// All fields of its request.
    pub fields: &'static [Field],
}

/// A field by its name in the protocol's files.
pub(super) struct Field(pub &'static str, pub Support);

/// What a field does.
#[derive(Clone, Copy)]
pub(super) enum Support {
    Works,
    /// Whoever asks for it is refused, for this reason.
    Refused(&'static str),
    /// Taken, though it does nothing, for this reason.
    Taken(&'static str),
    /// These values work and others are refused.
    Only(&'static [&'static str]),
    /// A message, or a list of such.
    Parts(&'static [Field]),
}

/// The method of this name; the failure where it is none, or not here.
pub(super) fn find(service: &str, method: &str) -> Result<&'static Method, Failure> {
    let missing =
        |why: &str| Failure::new("unimplemented", format!("embedded rooms have no {why}"));
    let known = SERVICES.iter().find(|known| known.name == service);
    let Some(Service {
        methods,
        missing: None,
        ..
    }) = known
    else {
        return Err(missing(service));
    };
    let known = methods.iter().find(|known| known.name == method);
    let known =
        known.ok_or_else(|| Failure::new("bad_route", format!("{service} has no {method}")))?;
    match known.missing {
        Some(why) => Err(missing(&format!("{method}: {why}"))),
        None => Ok(known),
    }
}

/// Refuses a message that asks for something that would not happen, by the name of the field, behind `prefix`.
pub(super) fn check<T: Serialize>(fields: &[Field], said: &T, prefix: &str) -> Result<(), Failure> {
    let said = serde_json::to_value(said);
    let said = said.map_err(|error| Failure::new("invalid_argument", error.to_string()))?;
    match refused(fields, &said) {
        None => Ok(()),
        Some(problem) => Err(Failure::new(
            "invalid_argument",
            format!("{prefix}{problem}"),
        )),
    }
}

/// What of the trunks and rules of the settings the API would refuse, by the names of their fields.
pub fn trunk_problems(configured: &Configured) -> Vec<String> {
    let problem = |list: &str, id: &str, fields, said: serde_json::Result<Value>| {
        let problem = match &said {
            Ok(said) => refused(fields, said)?,
            // What it says may be a password.
            Err(_) => "is none of LiveKit's API".to_owned(),
        };
        Some(format!("{SETTING}.{list}: {id:?}: {problem}"))
    };
    let inbound = configured.inbound().iter().filter_map(|trunk| {
        let said = serde_json::to_value(trunk);
        problem("inbound", &trunk.sip_trunk_id, INBOUND_TRUNK, said)
    });
    let outbound = configured.outbound().iter().filter_map(|trunk| {
        let said = serde_json::to_value(trunk);
        problem("outbound", &trunk.sip_trunk_id, OUTBOUND_TRUNK, said)
    });
    let rules = configured.rules().iter().filter_map(|rule| {
        let said = serde_json::to_value(rule);
        problem("rules", &rule.sip_dispatch_rule_id, RULE, said)
    });
    inbound.chain(outbound).chain(rules).collect()
}

fn refused(fields: &[Field], said: &Value) -> Option<String> {
    fields.iter().find_map(|Field(name, support)| {
        let value = said.get(camel_case(name)).filter(|value| is_asked(value))?;
        match support {
            Support::Works | Support::Taken(_) => None,
            Support::Refused(why) => Some(format!("{name}: embedded rooms cannot do that: {why}")),
            Support::Only(values) => {
                let works = value.as_str().is_some_and(|value| values.contains(&value));
                let values = values.join(" or ");
                (!works).then(|| format!("{name}: embedded rooms only know {values}"))
            }
            Support::Parts(parts) => {
                let list = value
                    .as_array()
                    .map_or(std::slice::from_ref(value), Vec::as_slice);
                let problem = list.iter().find_map(|part| refused(parts, part))?;
                Some(format!("{name}.{problem}"))
            }
        }
    })
}

/// Whether somebody wrote it. What is zero means the same as what is absent; a message that is there was meant.
fn is_asked(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "0s"),
        Value::Array(list) => !list.is_empty(),
        Value::Bool(true) | Value::Object(_) => true,
    }
}

/// The name in JSON.
fn camel_case(name: &str) -> String {
    let mut parts = name.split('_');
    let mut joined = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut letters = part.chars();
        joined.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        joined.push_str(letters.as_str());
    }
    joined
}

/// The page of the table, `docs/livekit-api.md`.
pub fn page() -> String {
    let mut text = String::from(
        "# LiveKit's API in embedded rooms\n\n\
         Generated from the table that the server itself goes by (`src/http/twirp/table.rs`); tests compare it with LiveKit's\n\
         protocol and with this page.\n\n\
         LiveKit's server SDKs and its command line call `POST /twirp/{service}/{method}`. What a request asks for and would not\n\
         happen is refused by the name of its field (`invalid_argument`); zero and empty values ask for nothing. Methods without\n\
         an implementation are `unimplemented`. With `rtc.mode: livekit` LiveKit's own server answers instead.\n",
    );
    for service in SERVICES {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "\n## `{}`\n", service.name);
        if let Some(why) = service.missing {
            let _ = writeln!(text, "Not there: {why}.");
            continue;
        }
        text.push_str("| method | field | |\n|---|---|---|\n");
        for method in service.methods {
            let support = method
                .missing
                .map_or_else(|| "works".to_owned(), |why| format!("**not there**: {why}"));
            let _ = writeln!(text, "| `{}` | | {support} |", method.name);
            list(&mut text, method.fields, "");
        }
    }
    text
}

fn list(text: &mut String, fields: &[Field], prefix: &str) {
    for Field(name, support) in fields {
        let support = match support {
            Support::Works => "works".to_owned(),
            Support::Refused(why) => format!("**refused**: {why}"),
            Support::Taken(why) => format!("taken: {why}"),
            Support::Only(values) => {
                format!("`{}` works, other values are refused", values.join("`, `"))
            }
            Support::Parts(parts) => {
                list(text, parts, &format!("{prefix}{name}."));
                continue;
            }
        };
        let _ = writeln!(text, "| | `{prefix}{name}` | {support} |");
    }
}

#[cfg(test)]
mod tests;
