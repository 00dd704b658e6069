//! The items of a conversation: what was said by whom, and which functions were called, in order; and what a language model
//! is told of them.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::session::{Problem, Version, object, text};

/// The most items, and the most bytes of one.
const MAX_ITEMS: usize = 2_000;
const MAX_ITEM_BYTES: usize = 1 << 20;
/// The most bytes that a model is told: the oldest are left out beyond it.
const MAX_TOLD_BYTES: usize = 512 << 10;

/// Something in a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    pub id: String,
    pub kind: ItemKind,
    /// `in_progress`, `completed` or `incomplete`.
    pub status: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ItemKind {
    Message {
        role: Role,
        parts: Vec<Part>,
    },
    Call {
        call_id: String,
        name: String,
        arguments: String,
    },
    Output {
        call_id: String,
        output: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Text(String),
    /// What was said; `None` while it is not known.
    Spoken(Option<String>),
    Image {
        url: String,
        detail: Option<String>,
    },
}

/// What a client creates.
pub struct Created {
    pub item: Item,
    /// Sound that has to be recognised, Base64 of the session's input format.
    pub sound: Option<String>,
}

impl Item {
    /// What the caller has said, as soon as that is known.
    pub fn spoken(id: String, transcript: Option<String>) -> Self {
        Self {
            id,
            kind: ItemKind::Message {
                role: Role::User,
                parts: vec![Part::Spoken(transcript)],
            },
            status: "completed",
        }
    }

    /// Reads one of a client. `id` is its name if it brings none.
    pub fn read(value: &Value, id: &str, param: &str) -> Result<Created, Problem> {
        let fields = object(value, param)?;
        if value.to_string().len() > MAX_ITEM_BYTES * 4 {
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
            item: Self { id, kind, status },
            sound,
        })
    }

    /// As the client is shown it.
    pub fn shown(&self, version: Version) -> Value {
        let mut shown = Map::new();
        let mut set = |name: &str, value: Value| {
            shown.insert(name.to_owned(), value);
        };
        set("id", json!(self.id));
        set("object", json!("realtime.item"));
        set("status", json!(self.status));
        match &self.kind {
            ItemKind::Message { role, parts } => {
                set("type", json!("message"));
                set("role", json!(role.name()));
                let parts = parts.iter().map(|part| part.shown(*role, version));
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

    /// What was said in its first spoken part.
    pub fn transcript_mut(&mut self) -> Option<&mut Option<String>> {
        let ItemKind::Message { parts, .. } = &mut self.kind else {
            return None;
        };
        parts.iter_mut().find_map(|part| match part {
            Part::Spoken(transcript) => Some(transcript),
            _ => None,
        })
    }

    /// The same, of the assistant.
    pub fn heard_mut(&mut self) -> Option<&mut Option<String>> {
        let is_assistants = matches!(
            self.kind,
            ItemKind::Message {
                role: Role::Assistant,
                ..
            }
        );
        self.transcript_mut().filter(|_| is_assistants)
    }

    fn bytes(&self) -> usize {
        match &self.kind {
            ItemKind::Message { parts, .. } => parts.iter().map(Part::bytes).sum(),
            ItemKind::Call { arguments, .. } => arguments.len(),
            ItemKind::Output { output, .. } => output.len(),
        }
    }
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
            Ok(Part::Text(field("text")?.unwrap_or_default()))
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

impl Part {
    fn shown(&self, role: Role, version: Version) -> Value {
        let is_assistants = role == Role::Assistant;
        match self {
            Self::Text(text) => {
                let kind = match (is_assistants, version) {
                    (true, Version::Current) => "output_text",
                    (true, Version::Beta) => "text",
                    (false, _) => "input_text",
                };
                json!({"type": kind, "text": text})
            }
            Self::Spoken(transcript) => {
                let kind = match (is_assistants, version) {
                    (true, Version::Current) => "output_audio",
                    (true, Version::Beta) => "audio",
                    (false, _) => "input_audio",
                };
                json!({"type": kind, "transcript": transcript})
            }
            Self::Image { url, detail } => {
                json!({"type": "input_image", "image_url": url, "detail": detail})
            }
        }
    }

    const fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Spoken(Some(text)) => text.len(),
            Self::Spoken(None) => 0,
            Self::Image { url, .. } => url.len(),
        }
    }
}

/// The conversation.
#[derive(Debug, Default)]
pub struct Items(Vec<Item>);

impl Items {
    /// Where an item would be inserted after this one (`root`: at the beginning; absent: at the end), and after which.
    pub fn place(&self, previous: Option<&str>) -> Result<usize, Problem> {
        if self.0.len() >= MAX_ITEMS {
            let message = "a conversation has at most 2000 items; delete some";
            return Err(Problem::general("conversation_full", message));
        }
        match previous {
            None => Ok(self.0.len()),
            Some("root") => Ok(0),
            Some(id) => {
                let found = self.position(id);
                found
                    .map(|at| at + 1)
                    .ok_or_else(|| missing(id, "previous_item_id"))
            }
        }
    }

    fn position(&self, id: &str) -> Option<usize> {
        self.0.iter().position(|item| item.id == id)
    }

    /// The id of the item before this place.
    pub fn before(&self, place: usize) -> Option<&str> {
        let item = self.0.get(place.checked_sub(1)?)?;
        Some(&item.id)
    }

    pub fn insert(&mut self, place: usize, item: Item) {
        self.0.insert(place.min(self.0.len()), item);
    }

    /// Adds an item at the end. A conversation that is full forgets its first one.
    pub fn push(&mut self, item: Item) {
        if self.0.len() >= MAX_ITEMS {
            self.0.remove(0);
        }
        self.0.push(item);
    }

    pub fn get(&self, id: &str) -> Option<&Item> {
        self.0.iter().find(|item| item.id == id)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut Item> {
        self.0.iter_mut().find(|item| item.id == id)
    }

    pub fn remove(&mut self, id: &str) -> Option<Item> {
        Some(self.0.remove(self.position(id)?))
    }

    /// The last item's id.
    pub fn last(&self) -> Option<&str> {
        self.before(self.0.len())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Item> {
        self.0.iter()
    }
}

/// There is no such item.
pub fn missing(id: &str, param: &str) -> Problem {
    let id: String = id.chars().take(64).collect();
    Problem::new("item_not_found", param, format!("there is no item {id:?}"))
}

/// What a model is told: the instructions, then the items that fit, as chat completions have them. Calls without an answer,
/// and answers without their call, are left out: endpoints refuse them.
pub fn messages<'a>(instructions: &str, items: impl Iterator<Item = &'a Item>) -> Vec<Value> {
    let all: Vec<&Item> = items.collect();
    let mut room = MAX_TOLD_BYTES;
    let fits = all.iter().rev().take_while(|item| {
        let left = room.checked_sub(item.bytes());
        room = left.unwrap_or(0);
        left.is_some()
    });
    let first = all.len() - fits.count();
    let items = all.get(first..).unwrap_or_default();
    let called: HashSet<&str> = items
        .iter()
        .filter_map(|item| call_id(item, true))
        .collect();
    let answered: HashSet<&str> = items
        .iter()
        .filter_map(|item| call_id(item, false))
        .collect();
    let mut messages: Vec<Value> = Vec::new();
    if !instructions.is_empty() {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    // Answers follow their calls at once, wherever the client has put them.
    let mut told: HashSet<&str> = HashSet::new();
    let mut at = 0;
    while let Some(item) = items.get(at) {
        at += 1;
        match &item.kind {
            ItemKind::Message { role, parts } => {
                if let Some(content) = content(parts) {
                    messages.push(json!({"role": role.name(), "content": content}));
                }
            }
            ItemKind::Call { .. } => {
                let mut group = vec![*item];
                while let Some(next) = items.get(at)
                    && matches!(next.kind, ItemKind::Call { .. })
                {
                    group.push(next);
                    at += 1;
                }
                let fresh = |item: &&Item| {
                    let id = call_id(item, true);
                    id.is_some_and(|id| answered.contains(id) && !told.contains(id))
                };
                let group: Vec<&Item> = group.into_iter().filter(fresh).collect();
                let calls: Vec<Value> = group.iter().filter_map(|item| tool_call(item)).collect();
                if calls.is_empty() {
                    continue;
                }
                let last = messages
                    .last_mut()
                    .filter(|last| last["role"] == "assistant");
                match last {
                    Some(last) if last.get("tool_calls").is_none() => {
                        last["tool_calls"] = json!(calls);
                    }
                    _ => messages.push(json!({
                        "role": "assistant", "content": null, "tool_calls": calls,
                    })),
                }
                for call in group.iter().filter_map(|item| call_id(item, true)) {
                    told.insert(call);
                    let answer = items.iter().find_map(|item| match &item.kind {
                        ItemKind::Output { call_id, output } if call_id == call => Some(output),
                        _ => None,
                    });
                    messages.push(json!({
                        "role": "tool", "tool_call_id": call, "content": answer,
                    }));
                }
            }
            // It was told with its call.
            ItemKind::Output { call_id, .. } if called.contains(call_id.as_str()) => {}
            ItemKind::Output { output, .. } => {
                messages.push(json!({"role": "user", "content": output}));
            }
        }
    }
    messages
}

fn call_id(item: &Item, of_call: bool) -> Option<&str> {
    match &item.kind {
        ItemKind::Call { call_id, .. } if of_call => Some(call_id),
        ItemKind::Output { call_id, .. } if !of_call => Some(call_id),
        _ => None,
    }
}

fn tool_call(item: &Item) -> Option<Value> {
    let ItemKind::Call {
        call_id,
        name,
        arguments,
    } = &item.kind
    else {
        return None;
    };
    Some(json!({
        "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments},
    }))
}

/// Text where there is nothing else; `None` where there is nothing.
fn content(parts: &[Part]) -> Option<Value> {
    let texts: Vec<&str> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) | Part::Spoken(Some(text)) => Some(text.as_str()),
            _ => None,
        })
        .filter(|text| !text.trim().is_empty())
        .collect();
    let images: Vec<Value> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Image { url, detail } => {
                let mut image = json!({"url": url});
                if let Some(detail) = detail {
                    image["detail"] = json!(detail);
                }
                Some(json!({"type": "image_url", "image_url": image}))
            }
            _ => None,
        })
        .collect();
    if images.is_empty() {
        return (!texts.is_empty()).then(|| json!(texts.join("\n")));
    }
    let texts = texts
        .iter()
        .map(|text| json!({"type": "text", "text": text}));
    Some(texts.chain(images).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Item {
        Item::read(value, "made", "item")
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
        let long = "a".repeat(300 << 10);
        let items: Vec<Item> = ["first", "second", "third"]
            .iter()
            .map(|name| {
                read(&json!({"type": "message", "role": "user",
                "content": [{"type": "input_text", "text": format!("{name} {long}")}]}))
            })
            .collect();
        let told = messages("", items.iter());
        assert_eq!(told.len(), 1);
        assert!(told[0]["content"].as_str().unwrap().starts_with("third"));
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
            let problem = Item::read(&value, "made", "item").err().unwrap();
            assert_eq!(problem.param.as_deref(), Some(param), "{value}");
        }
    }
}
