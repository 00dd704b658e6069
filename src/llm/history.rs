//! The history of a conversation: what was said by whom, and which functions were called, in order; and what a language model
//! is told of it.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// The most items.
const MAX_ITEMS: usize = 2_000;
/// The most bytes of all items, with their images.
const MAX_BYTES: usize = 16 << 20;
/// What an image counts for among what a model is told.
const IMAGE_BYTES: usize = 4 << 10;
/// The most bytes that a model is told: the oldest are left out beyond it.
const MAX_TOLD_BYTES: usize = 512 << 10;

/// Something in a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Its name.
    pub id: String,
    /// What it is.
    pub kind: ItemKind,
    /// `in_progress`, `completed` or `incomplete`.
    #[serde(deserialize_with = "status")]
    pub status: Status,
}

/// A status. By a name of its own, as what is read does not borrow it from where it is read.
pub type Status = &'static str;

/// The status of an item that another server has kept.
fn status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    Ok(match String::deserialize(deserializer)?.as_str() {
        "in_progress" => "in_progress",
        "incomplete" => "incomplete",
        _ => "completed",
    })
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    /// As chat completions have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Part {
    Text(String),
    /// What was said; `None` while it is not known.
    Spoken(Option<String>),
    Image {
        url: String,
        detail: Option<String>,
    },
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

    /// What it takes to keep it.
    fn size(&self) -> usize {
        let images = match &self.kind {
            ItemKind::Message { parts, .. } => parts.iter().map(Part::image_bytes).sum(),
            _ => 0,
        };
        self.bytes() + images
    }

    fn bytes(&self) -> usize {
        match &self.kind {
            ItemKind::Message { parts, .. } => parts.iter().map(Part::bytes).sum(),
            ItemKind::Call { arguments, .. } => arguments.len(),
            ItemKind::Output { output, .. } => output.len(),
        }
    }
}

impl Part {
    const fn image_bytes(&self) -> usize {
        match self {
            Self::Image { url, .. } => url.len(),
            _ => 0,
        }
    }

    const fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Spoken(Some(text)) => text.len(),
            Self::Spoken(None) => 0,
            // It is no text.
            Self::Image { .. } => IMAGE_BYTES,
        }
    }
}

/// Why there is no place for an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace {
    /// There are as many as there may be.
    Full,
    /// The one before is not there.
    NoSuchItem,
}

/// The conversation.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Items(Vec<Item>);

impl Items {
    /// Where an item would be inserted after this one (`root`: at the beginning; absent: at the end), and after which.
    pub fn place(&self, previous: Option<&str>) -> Result<usize, NoPlace> {
        if self.is_full() {
            return Err(NoPlace::Full);
        }
        match previous {
            None => Ok(self.0.len()),
            Some("root") => Ok(0),
            Some(id) => {
                let found = self.position(id);
                found.map(|at| at + 1).ok_or(NoPlace::NoSuchItem)
            }
        }
    }

    fn is_full(&self) -> bool {
        self.0.len() >= MAX_ITEMS || self.bytes() >= MAX_BYTES
    }

    /// Whether a function was called by this id.
    pub fn has_call(&self, id: &str) -> bool {
        self.0.iter().any(|item| call_id(item, true) == Some(id))
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
        if self.is_full() {
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

    /// What all items take.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Item::size).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Item> {
        self.0.iter()
    }
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
