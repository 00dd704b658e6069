//! Fields of a message that we do not know. They have no effect, which is mostly a slip of the pen: their sender is told.
//! What is known is what the schema of the messages says.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::socket_schema;

/// More unknown fields of one message are not told.
const MOST: usize = 16;
/// Longer messages carry sound, and are not looked at twice.
const LONGEST: usize = 256 << 10;
/// How much of a name is told.
const LONGEST_NAME: usize = 60;
/// From here on a known name is taken for what was meant.
const ALIKE: f64 = 0.8;

static SCHEMA: LazyLock<Value> = LazyLock::new(socket_schema);

/// The names of the fields of each message.
static NAMES: LazyLock<HashMap<String, HashSet<String>>> = LazyLock::new(|| {
    let messages = SCHEMA["$defs"]["ClientMessage"]["oneOf"].as_array();
    let names = messages.into_iter().flatten().filter_map(|schema| {
        let fields = resolved(schema)["properties"].as_object()?;
        let kind = fields["type"]["const"].as_str()?;
        Some((kind.to_owned(), fields.keys().cloned().collect()))
    });
    names.collect()
});

/// A field that has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownField {
    /// Where it is, for example `vad.treshold`.
    pub path: String,
    /// What was probably meant.
    pub meant: Option<String>,
}

impl std::fmt::Display for UnknownField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.meant {
            Some(meant) => write!(f, "{} (did you mean {meant}?)", self.path),
            None => f.write_str(&self.path),
        }
    }
}

/// The unknown fields of a message that was read as one of this `type`.
#[expect(
    clippy::zero_sized_map_values,
    reason = "a message is a map, and only its names are looked at"
)]
pub fn unknown_fields(kind: &str, message: &[u8]) -> Vec<UnknownField> {
    let mut found = Vec::new();
    if message.len() > LONGEST {
        return found;
    }
    // Most messages come often, are flat, and have nothing unknown in them.
    if !matches!(kind, "config" | "update_config")
        && let Some(names) = NAMES.get(kind)
        && let Ok(fields) = serde_json::from_slice::<HashMap<Cow<'_, str>, IgnoredAny>>(message)
        && fields.keys().all(|name| names.contains(name.as_ref()))
    {
        return found;
    }
    let value: Value = serde_json::from_slice(message).unwrap_or_default();
    let messages = SCHEMA["$defs"]["ClientMessage"]["oneOf"].as_array();
    let is_it =
        |schema: &&Value| resolved(schema)["properties"]["type"]["const"].as_str() == Some(kind);
    if let Some(schema) = messages.into_iter().flatten().find(is_it) {
        look(schema, &value, "", &mut found);
    }
    found
}

fn resolved(schema: &Value) -> &Value {
    let place = schema["$ref"].as_str().and_then(|r| r.strip_prefix('#'));
    let target = place.and_then(|place| SCHEMA.pointer(place));
    target.map_or(schema, resolved)
}

/// The fields that a schema knows, with those of its alternatives.
fn known<'s>(schema: &'s Value, fields: &mut Vec<&'s Map<String, Value>>) {
    let schema = resolved(schema);
    fields.extend(schema["properties"].as_object());
    for key in ["anyOf", "oneOf", "allOf"] {
        let alternatives = schema[key].as_array().into_iter().flatten();
        alternatives.for_each(|alternative| known(alternative, fields));
    }
}

fn look(schema: &Value, value: &Value, path: &str, found: &mut Vec<UnknownField>) {
    match value {
        Value::Object(object) => {
            let mut fields = Vec::new();
            known(schema, &mut fields);
            // Anything goes.
            if fields.is_empty() || resolved(schema)["additionalProperties"].is_object() {
                return;
            }
            for (name, value) in object {
                let path = match path {
                    "" => name.clone(),
                    _ => format!("{path}.{name}"),
                };
                match fields.iter().find_map(|fields| fields.get(name)) {
                    Some(schema) => look(schema, value, &path, found),
                    None if found.len() < MOST => found.push(UnknownField {
                        path: path.chars().take(LONGEST_NAME).collect(),
                        meant: meant(name, &fields),
                    }),
                    None => return,
                }
            }
        }
        Value::Array(items) => {
            let mut schemas = vec![resolved(schema)];
            let alternatives = resolved(schema)["anyOf"].as_array();
            schemas.extend(alternatives.into_iter().flatten().map(resolved));
            if let Some(schema) = schemas.iter().find_map(|schema| schema.get("items")) {
                items
                    .iter()
                    .for_each(|item| look(schema, item, path, found));
            }
        }
        _ => {}
    }
}

fn meant(name: &str, fields: &[&Map<String, Value>]) -> Option<String> {
    let name: String = name.chars().take(LONGEST_NAME).collect();
    let names = fields.iter().flat_map(|fields| fields.keys());
    let alike = names.map(|known| (strsim::jaro_winkler(&name.to_lowercase(), known), known));
    let best = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(alike, _)| *alike >= ALIKE)
        .map(|(_, known)| known.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(kind: &str, message: &Value) -> Vec<String> {
        let fields = unknown_fields(kind, message.to_string().as_bytes());
        fields.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unknown_fields_are_found_where_they_are_with_what_was_meant() {
        let config = json!({
            "type": "config", "Recording": true, "colour": 1,
            "stt_config": {"provider": "local", "lang": "en", "fallback": [{"provider": "local", "modle": "x"}]},
            "tts_config": {"provider": "azure", "model": "", "voice": "x", "auth": {"api_key": "k", "region": "r"}},
            "vad": {"treshold": 0.5},
        });
        let mut found = told("config", &config);
        found.sort();
        assert_eq!(
            found,
            [
                "Recording (did you mean recording?)",
                "colour",
                "stt_config.fallback.modle (did you mean model?)",
                "stt_config.lang (did you mean language?)",
                "tts_config.voice (did you mean voice_id?)",
                "vad.treshold (did you mean threshold?)",
            ]
        );
        assert_eq!(
            told(
                "speak",
                &json!({"type": "speak", "text": "x", "flsh": true})
            ),
            ["flsh (did you mean flush?)"]
        );
        assert_eq!(told("clear", &json!({"type": "clear", "id": "x"})), [""; 0]);
        let debug =
            json!({"type": "send_message", "message": "x", "role": "y", "debug": {"any": 1}});
        assert_eq!(told("send_message", &debug), [""; 0]);
    }

    #[test]
    fn a_message_of_a_thousand_unknown_fields_is_told_of_a_few() {
        let fields = (0..1_000).map(|n| (n.to_string(), Value::Null));
        let message = Value::Object(fields.collect());
        assert_eq!(told("speak", &message).len(), MOST);
    }
}
