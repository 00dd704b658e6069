//! The items of a conversation in the shape of the interface: how a client creates them, and how it is shown them.

use serde_json::{Map, Value, json};

use crate::session::{Problem, Version, object, text};
use vivavoce_llm::history::{Item, ItemKind, Part, Role};

/// The most bytes of one, as JSON.
const MAX_ITEM_BYTES: usize = 4 << 20;
/// The longest image, as Base64: the client is shown it twice, and may have 4 MiB to read.
const MAX_IMAGE_BYTES: usize = 1 << 20;
/// The longest text of a part: a model is told 512 KiB.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// What a client creates.
pub struct Created {
    pub item: Item,
    /// Sound that has to be recognised, Base64 of the session's input format.
    pub sound: Option<String>,
}

/// Reads one of a client. `id` is its name if it brings none.
pub fn read(value: &Value, id: &str, param: &str) -> Result<Created, Problem> {
    let fields = object(value, param)?;
    if value.to_string().len() > MAX_ITEM_BYTES {
        return Err(Problem::value(param, "is too large"));
    }
    let field = |name: &str| {
        let value = fields.get(name).unwrap_or(&Value::Null);
        text(value, &format!("{param}.{name}"))
    };
    let required = |name: &str| {
        let missing = || {
            let param = format!("{param}.{name}");
            Problem::new(
                "missing_required_parameter",
                &param,
                format!("{param} is required"),
            )
        };
        field(name)?
            .filter(|text| !text.is_empty())
            .ok_or_else(missing)
    };
    let id = match field("id")? {
        Some(own) if own.is_empty() || own.len() > 64 => {
            return Err(Problem::value(
                &format!("{param}.id"),
                "must have 1 to 64 bytes",
            ));
        }
        own => own.unwrap_or_else(|| id.to_owned()),
    };
    let mut sound = None;
    let kind = match field("type")?.as_deref() {
        Some("message") => {
            let role = match field("role")?.as_deref() {
                Some("system") => Role::System,
                Some("user") => Role::User,
                Some("assistant") => Role::Assistant,
                _ => {
                    let must = "must be system, user or assistant";
                    return Err(Problem::value(&format!("{param}.role"), must));
                }
            };
            let content = fields.get("content").and_then(Value::as_array);
            let param = format!("{param}.content");
            let content = content.ok_or_else(|| Problem::value(&param, "must be an array"))?;
            let mut parts = Vec::new();
            for (index, part) in content.iter().enumerate() {
                let param = format!("{param}[{index}]");
                parts.push(read_part(part, role, &param, &mut sound)?);
            }
            ItemKind::Message { role, parts }
        }
        Some("function_call") => ItemKind::Call {
            call_id: field("call_id")?.unwrap_or_else(|| format!("call_{id}")),
            name: required("name")?,
            arguments: field("arguments")?.unwrap_or_default(),
        },
        Some("function_call_output") => ItemKind::Output {
            call_id: required("call_id")?,
            output: field("output")?.unwrap_or_default(),
        },
        Some(other) if other.starts_with("mcp_") => {
            let message = "servers of the Model Context Protocol are not asked from here";
            return Err(Problem::new(
                "unsupported_value",
                &format!("{param}.type"),
                message,
            ));
        }
        _ => {
            let must = "must be message, function_call or function_call_output";
            return Err(Problem::value(&format!("{param}.type"), must));
        }
    };
    let status = "completed";
    Ok(Created {
        item: Item { id, kind, status },
        sound,
    })
}

/// As the client is shown it.
pub fn shown(item: &Item, version: Version) -> Value {
    let mut shown = Map::new();
    let mut set = |name: &str, value: Value| {
        shown.insert(name.to_owned(), value);
    };
    set("id", json!(item.id));
    set("object", json!("realtime.item"));
    set("status", json!(item.status));
    match &item.kind {
        ItemKind::Message { role, parts } => {
            set("type", json!("message"));
            set("role", json!(role.name()));
            let parts = parts.iter().map(|part| shown_part(part, *role, version));
            set("content", parts.collect());
        }
        ItemKind::Call {
            call_id,
            name,
            arguments,
        } => {
            set("type", json!("function_call"));
            set("call_id", json!(call_id));
            set("name", json!(name));
            set("arguments", json!(arguments));
        }
        ItemKind::Output { call_id, output } => {
            set("type", json!("function_call_output"));
            set("call_id", json!(call_id));
            set("output", json!(output));
        }
    }
    Value::Object(shown)
}

fn read_part(
    part: &Value,
    role: Role,
    param: &str,
    sound: &mut Option<String>,
) -> Result<Part, Problem> {
    let fields = object(part, param)?;
    let field = |name: &str| {
        let value = fields.get(name).unwrap_or(&Value::Null);
        text(value, &format!("{param}.{name}"))
    };
    let kind = field("type")?.unwrap_or_default();
    match (kind.as_str(), role) {
        ("input_text", Role::User | Role::System) | ("output_text" | "text", _) => {
            let text = field("text")?.unwrap_or_default();
            if text.len() > MAX_TEXT_BYTES {
                let must = "must have at most 256 KiB";
                return Err(Problem::value(&format!("{param}.text"), must));
            }
            Ok(Part::Text(text))
        }
        ("output_audio" | "audio", Role::Assistant) => {
            Ok(Part::Spoken(Some(field("transcript")?.unwrap_or_default())))
        }
        ("input_audio", Role::User) => {
            let transcript = field("transcript")?;
            match field("audio")? {
                Some(audio) if transcript.is_none() => {
                    if sound.replace(audio).is_some() {
                        let message = "an item has one input_audio";
                        return Err(Problem::new("invalid_value", param, message));
                    }
                    Ok(Part::Spoken(None))
                }
                _ => Ok(Part::Spoken(Some(transcript.unwrap_or_default()))),
            }
        }
        ("input_image", Role::User) => {
            let url = field("image_url")?.unwrap_or_default();
            if !url.starts_with("data:image/") && !url.starts_with("https://") {
                let must = "must be a data: URL of an image, or https";
                return Err(Problem::value(&format!("{param}.image_url"), must));
            }
            if url.len() > MAX_IMAGE_BYTES {
                let must = "must have at most 1 MiB";
                return Err(Problem::value(&format!("{param}.image_url"), must));
            }
            let detail = field("detail")?;
            Ok(Part::Image { url, detail })
        }
        _ => {
            let message = format!("{param}.type {kind:?} does not go with this role");
            Err(Problem::new(
                "invalid_value",
                &format!("{param}.type"),
                message,
            ))
        }
    }
}

fn shown_part(part: &Part, role: Role, version: Version) -> Value {
    let is_assistants = role == Role::Assistant;
    match part {
        Part::Text(text) => {
            let kind = match (is_assistants, version) {
                (true, Version::Current) => "output_text",
                (true, Version::Beta) => "text",
                (false, _) => "input_text",
            };
            json!({"type": kind, "text": text})
        }
        Part::Spoken(transcript) => {
            let kind = match (is_assistants, version) {
                (true, Version::Current) => "output_audio",
                (true, Version::Beta) => "audio",
                (false, _) => "input_audio",
            };
            json!({"type": kind, "transcript": transcript})
        }
        Part::Image { url, detail } => {
            json!({"type": "input_image", "image_url": url, "detail": detail})
        }
    }
}

/// There is no such item.
pub fn missing(id: &str, param: &str) -> Problem {
    let id: String = id.chars().take(64).collect();
    Problem::new("item_not_found", param, format!("there is no item {id:?}"))
}

#[cfg(test)]
mod tests {
    use super::{read as read_item, *};
    use vivavoce_llm::history::messages;

    fn read(value: &Value) -> Item {
        read_item(value, "made", "item")
            .unwrap_or_else(|_| panic!("{value}"))
            .item
    }

    #[test]
    fn a_model_is_told_what_was_said_and_calls_only_with_their_answers() {
        let items = [
            json!({"type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be brief."}]}),
            json!({"type": "message", "role": "user", "content": [{"type": "input_audio", "transcript": "Hello"}]}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_audio", "transcript": "One moment."}]}),
            json!({"type": "function_call", "name": "f", "call_id": "1", "arguments": "{}"}),
            json!({"type": "function_call", "name": "g", "call_id": "2", "arguments": "{}"}),
            json!({"type": "function_call", "name": "h", "call_id": "3", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "2", "output": "two"}),
            json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "  "}]}),
            json!({"type": "function_call_output", "call_id": "1", "output": "one"}),
        ];
        let items: Vec<Item> = items.iter().map(read).collect();
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        assert_eq!(
            messages("You help.", items.iter()),
            [
                json!({"role": "system", "content": "You help."}),
                json!({"role": "system", "content": "Be brief."}),
                json!({"role": "user", "content": "Hello"}),
                json!({"role": "assistant", "content": "One moment.", "tool_calls": [call("1", "f"), call("2", "g")]}),
                json!({"role": "tool", "tool_call_id": "1", "content": "one"}),
                json!({"role": "tool", "tool_call_id": "2", "content": "two"}),
            ]
        );
    }

    #[test]
    fn images_stand_beside_the_text() {
        let item = read(&json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
        ]}));
        assert_eq!(
            messages("", [&item].into_iter())[0]["content"],
            json!([
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
            ])
        );
    }

    #[test]
    fn the_oldest_items_give_way() {
        let long = "a".repeat(200 << 10);
        let items: Vec<Item> = ["first", "second", "third"]
            .iter()
            .map(|name| {
                read(&json!({"type": "message", "role": "user",
                "content": [{"type": "input_text", "text": format!("{name} {long}")}]}))
            })
            .collect();
        let told = messages("", items.iter());
        assert_eq!(told.len(), 2);
        assert!(told[0]["content"].as_str().unwrap().starts_with("second"));
    }

    #[test]
    fn what_is_no_item_is_refused_by_its_field() {
        for (value, param) in [
            (json!(7), "item"),
            (
                json!({"type": "message", "role": "boss", "content": []}),
                "item.role",
            ),
            (json!({"type": "message", "role": "user"}), "item.content"),
            (
                json!({"type": "message", "role": "user", "content": [{"type": "video"}]}),
                "item.content[0].type",
            ),
            (
                json!({"type": "message", "role": "assistant", "content": [{"type": "input_audio"}]}),
                "item.content[0].type",
            ),
            (
                json!({"type": "function_call_output", "output": "x"}),
                "item.call_id",
            ),
            (json!({"type": "mcp_call"}), "item.type"),
            (
                json!({"type": "message", "id": "", "role": "user", "content": []}),
                "item.id",
            ),
        ] {
            let problem = read_item(&value, "made", "item").err().unwrap();
            assert_eq!(problem.param.as_deref(), Some(param), "{value}");
        }
    }
}
