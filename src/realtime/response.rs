//! An answer of the language model while it comes, is spoken, and ends.

use serde_json::{Map, Value, json};

use vivavoce_llm::history::{Item, ItemKind, Part, Role};
use vivavoce_llm::{Finish, FunctionCall, Usage};

use crate::items;
use crate::session::{Problem, SessionObject, Sound, Version};

/// Text is given to the voice from this length on, or where a sentence may end.
const PIECE_BYTES: usize = 48;

/// What a client asks for, beside what the session says.
#[derive(Debug, Default)]
pub struct Create {
    /// Of the client's event.
    pub event_id: Option<String>,
    pub instructions: Option<String>,
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<Value>,
    pub speaks: Option<bool>,
    pub max_output_tokens: Option<u32>,
    pub temperature: Option<f64>,
    pub metadata: Value,
    /// What the model is told instead of the conversation.
    pub input: Option<Vec<Item>>,
    /// Whether the answer is no part of the conversation.
    pub is_apart: bool,
    /// Whether the client has asked for it, and not a turn.
    pub is_asked: bool,
    pub parallel_tool_calls: Option<bool>,
    pub reasoning_effort: Option<String>,
}

/// Why an answer has ended without being complete.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Cancelled(&'static str),
    Failed { code: String, message: String },
}

/// The spoken or written part of an answer.
#[derive(Debug)]
pub struct Message {
    pub item: String,
    pub index: usize,
    /// What the model has said so far; what was heard of it once it was cut off.
    pub text: String,
    /// Whether there is a voice.
    speaks: bool,
    /// What the voice was not given yet.
    waiting: String,
    /// Whether the voice was given anything.
    pub is_voiced: bool,
    /// Where words begin in the sound, in milliseconds, and end in the text.
    pub words: Vec<(u64, usize)>,
    pub sound_bytes: u64,
    /// It was cut off after so many milliseconds.
    pub cut_ms: Option<u64>,
    pub is_done: bool,
}

/// A function that it calls.
#[derive(Debug)]
pub struct Call {
    pub item: String,
    pub index: usize,
    pub function: FunctionCall,
    pub arguments: String,
}

#[derive(Debug)]
pub struct Response {
    /// Names it within the server.
    pub key: u64,
    pub id: String,
    pub is_apart: bool,
    pub speaks: bool,
    pub message: Option<Message>,
    pub calls: Vec<Call>,
    /// What the client is shown of it that does not change.
    pub shown: Map<String, Value>,
    /// How many items it has.
    pub items: usize,
    /// The model has finished.
    pub generated: Option<(Finish, Option<Usage>)>,
    pub end: Option<End>,
}

impl Create {
    /// Reads the `response` of a client's event. `read` reads an item of `input`.
    pub fn read(
        version: Version,
        session: &SessionObject,
        value: Option<&Value>,
        mut read: impl FnMut(&Value, &str) -> Result<Item, Problem>,
    ) -> Result<Self, Problem> {
        use crate::session::{max_tokens, object, speaks, text, tool_choice, tools, voice};
        let mut create = Self::default();
        let Some(value) = value.filter(|value| !value.is_null()) else {
            return Ok(create);
        };
        for (name, value) in object(value, "response")? {
            let param = format!("response.{name}");
            match (version, name.as_str()) {
                (_, "instructions") => create.instructions = text(value, &param)?,
                (_, "tools") => create.tools = Some(tools(value, &param)?),
                (_, "tool_choice") => create.tool_choice = Some(tool_choice(value, &param)?),
                (Version::Current, "output_modalities") | (Version::Beta, "modalities") => {
                    create.speaks = Some(speaks(value, &param)?);
                }
                (_, "max_output_tokens" | "max_response_output_tokens") => {
                    create.max_output_tokens = max_tokens(value, &param)?;
                }
                (_, "temperature") => {
                    let temperature = value.as_f64();
                    create.temperature = temperature.filter(|value| (0.0..=2.0).contains(value));
                    if create.temperature.is_none() && !value.is_null() {
                        return Err(Problem::value(&param, "must be a number from 0 to 2"));
                    }
                }
                (_, "metadata") => create.metadata = metadata(value, &param)?,
                (_, "conversation") => match value.as_str() {
                    None | Some("auto") => {}
                    Some("none") => create.is_apart = true,
                    Some(_) => return Err(Problem::value(&param, "must be auto or none")),
                },
                (_, "input" | "prompt") if value.is_null() => {}
                (_, "input") => {
                    let items = value.as_array();
                    let items = items.ok_or_else(|| Problem::value(&param, "must be an array"))?;
                    let read = |(index, item)| read(item, &format!("{param}[{index}]"));
                    let items: Result<_, _> = items.iter().enumerate().map(read).collect();
                    create.input = Some(items?);
                }
                (Version::Current, "audio") => {
                    let output = value.get("output").unwrap_or(&Value::Null);
                    for (name, value) in output.as_object().into_iter().flatten() {
                        let param = format!("{param}.output.{name}");
                        match name.as_str() {
                            "voice" => {
                                same_voice(voice(value, &param)?.as_deref(), session, &param)?;
                            }
                            "format" => same_format(value, session, &param)?,
                            _ => {
                                return Err(Problem::new(
                                    "unknown_parameter",
                                    &param,
                                    format!("there is no {param} here"),
                                ));
                            }
                        }
                    }
                }
                (Version::Beta, "output_audio_format") => same_format(value, session, &param)?,
                (Version::Current, "parallel_tool_calls") => {
                    create.parallel_tool_calls = value.as_bool();
                }
                (Version::Current, "reasoning") => {
                    let effort = value.get("effort").unwrap_or(&Value::Null);
                    create.reasoning_effort = text(effort, &param)?;
                }
                (Version::Beta, "voice") => {
                    same_voice(voice(value, &param)?.as_deref(), session, &param)?;
                }
                _ => {
                    let message = format!("there is no {param} here");
                    return Err(Problem::new("unknown_parameter", &param, message));
                }
            }
        }
        Ok(create)
    }
}

/// So does the format.
fn same_format(value: &Value, session: &SessionObject, param: &str) -> Result<(), Problem> {
    if value.is_null() || Sound::read(value, param)? == session.output {
        return Ok(());
    }
    let message = "the format belongs to the session: change it with session.update";
    Err(Problem::new("unsupported_value", param, message))
}

/// A voice belongs to the session.
fn same_voice(own: Option<&str>, session: &SessionObject, param: &str) -> Result<(), Problem> {
    if own.is_none() || own == session.voice.as_deref() {
        return Ok(());
    }
    let message = "the voice belongs to the session: change it with session.update";
    Err(Problem::new("unsupported_value", param, message))
}

/// At most 16 texts.
fn metadata(value: &Value, param: &str) -> Result<Value, Problem> {
    let must = "must have at most 16 texts of up to 512 characters, by names of up to 64";
    let fits = |(name, value): (&String, &Value)| {
        let text = value.as_str();
        name.chars().count() <= 64 && text.is_some_and(|text| text.chars().count() <= 512)
    };
    match value {
        Value::Null => Ok(Value::Null),
        Value::Object(pairs) if pairs.len() <= 16 && pairs.iter().all(fits) => Ok(value.clone()),
        _ => Err(Problem::value(param, must)),
    }
}

impl Message {
    pub fn new(item: String, index: usize, speaks: bool) -> Self {
        Self {
            item,
            index,
            text: String::new(),
            speaks,
            waiting: String::new(),
            is_voiced: false,
            words: Vec::new(),
            sound_bytes: 0,
            cut_ms: None,
            is_done: false,
        }
    }

    /// Takes more text of the model; returns what the voice is given now.
    pub fn push(&mut self, text: &str) -> Option<String> {
        self.text.push_str(text);
        if !self.speaks {
            return None;
        }
        self.waiting.push_str(text);
        let ends = |c: char| {
            matches!(
                c,
                '.' | '?' | '!' | ';' | ':' | ',' | '\n' | '。' | '？' | '！' | '，'
            )
        };
        let is_due = self.waiting.len() >= PIECE_BYTES || text.contains(ends);
        (is_due && self.has_words()).then(|| self.voice())
    }

    /// The rest for the voice, when the model has finished.
    pub fn rest(&mut self) -> Option<String> {
        (self.is_voiced || self.has_words()).then(|| self.voice())
    }

    /// Whether there is anything to say: a blank text is no utterance.
    fn has_words(&self) -> bool {
        self.is_voiced || !self.waiting.trim().is_empty()
    }

    fn voice(&mut self) -> String {
        self.is_voiced = true;
        std::mem::take(&mut self.waiting)
    }

    /// A word begins to be heard.
    pub fn word(&mut self, word: &str, at_ms: u64) {
        let from = self.words.last().map_or(0, |(_, end)| *end);
        let Some(rest) = self.text.get(from..) else {
            return;
        };
        if let Some(at) = rest.find(word) {
            self.words.push((at_ms, from + at + word.len()));
        }
    }

    /// What was heard of it in so many milliseconds: words that had ended, which they do where the next one begins.
    pub fn heard_by(&self, ms: u64) -> &str {
        let next = self.words.iter().skip(1).map(|(at, _)| *at);
        let ends = next.chain(std::iter::once(u64::MAX));
        let words = self.words.iter().zip(ends);
        let heard = words.take_while(|(_, end)| *end <= ms);
        let end = heard.last().map_or(0, |((_, end), _)| *end);
        self.text.get(..end).unwrap_or_default()
    }
}

impl Response {
    /// What the model's answer is as an item.
    pub fn message_item(&self, message: &Message) -> Item {
        let is_cut = message.cut_ms.is_some() || self.end.is_some();
        let text = message.text.clone();
        Item {
            id: message.item.clone(),
            kind: ItemKind::Message {
                role: Role::Assistant,
                parts: vec![if self.speaks {
                    Part::Spoken(Some(text))
                } else {
                    Part::Text(text)
                }],
            },
            status: match (message.is_done, is_cut) {
                (false, _) => "in_progress",
                (true, true) => "incomplete",
                (true, false) => "completed",
            },
        }
    }

    /// A call as an item.
    pub fn call_item(&self, call: &Call) -> Item {
        Item {
            id: call.item.clone(),
            kind: ItemKind::Call {
                call_id: call.function.id.clone(),
                name: call.function.name.clone(),
                arguments: call.arguments.clone(),
            },
            status: match (self.generated.map(|(finish, _)| finish), &self.end) {
                // What interrupts the words beside it does not take it back.
                (Some(Finish::Complete), _) => "completed",
                (Some(_), _) | (None, Some(_)) => "incomplete",
                (None, None) => "in_progress",
            },
        }
    }

    /// A call as an item that is over, and what is told of its arguments.
    pub fn call_done(&self, call: &Call) -> (usize, Item, Value) {
        let event = json!({
            "response_id": self.id, "item_id": call.item, "output_index": call.index,
            "call_id": call.function.id, "name": call.function.name,
            "arguments": call.arguments,
        });
        (call.index, self.call_item(call), event)
    }

    /// Whether it still sounds, or will.
    pub fn is_to_be_heard(&self) -> bool {
        self.message
            .as_ref()
            .is_some_and(|message| message.is_voiced && !message.is_done)
    }

    /// As the client is shown it.
    pub fn shown(&self, version: Version, is_over: bool) -> Value {
        let mut shown = self.shown.clone();
        let mut output: Vec<(usize, Value)> = Vec::new();
        if is_over {
            let message = self.message.as_ref();
            output.extend(message.map(|message| {
                (
                    message.index,
                    items::shown(&self.message_item(message), version),
                )
            }));
            let calls = self.calls.iter();
            output.extend(
                calls.map(|call| (call.index, items::shown(&self.call_item(call), version))),
            );
            output.sort_by_key(|(index, _)| *index);
        }
        let output: Vec<Value> = output.into_iter().map(|(_, item)| item).collect();
        let (status, details) = self.status(is_over);
        shown.insert("status".to_owned(), json!(status));
        shown.insert("status_details".to_owned(), details);
        shown.insert("output".to_owned(), json!(output));
        let usage = self
            .generated
            .and_then(|(_, usage)| usage)
            .filter(|_| is_over);
        shown.insert("usage".to_owned(), usage.map_or(Value::Null, shown_usage));
        Value::Object(shown)
    }

    fn status(&self, is_over: bool) -> (&'static str, Value) {
        if !is_over {
            return ("in_progress", Value::Null);
        }
        match (&self.end, self.generated.map(|(finish, _)| finish)) {
            (Some(End::Cancelled(reason)), _) => {
                ("cancelled", json!({"type": "cancelled", "reason": reason}))
            }
            (Some(End::Failed { code, message }), _) => (
                "failed",
                json!({"type": "failed", "error": {
                    "type": "server_error", "code": code, "message": message,
                }}),
            ),
            (None, Some(Finish::Length)) => (
                "incomplete",
                json!({"type": "incomplete", "reason": "max_output_tokens"}),
            ),
            (None, Some(Finish::Filtered)) => (
                "incomplete",
                json!({"type": "incomplete", "reason": "content_filter"}),
            ),
            (None, _) => ("completed", Value::Null),
        }
    }
}

/// Tokens are those of the language model; sound has none.
fn shown_usage(usage: Usage) -> Value {
    json!({
        "total_tokens": usage.input + usage.output,
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "input_token_details": {
            "text_tokens": usage.input, "audio_tokens": 0, "image_tokens": 0,
            "cached_tokens": usage.cached,
            "cached_tokens_details": {
                "text_tokens": usage.cached, "audio_tokens": 0, "image_tokens": 0,
            },
        },
        "output_token_details": {"text_tokens": usage.output, "audio_tokens": 0},
    })
}

/// What the client is shown of a response that does not change.
pub fn shown(
    version: Version,
    id: &str,
    conversation: Option<&str>,
    (speaks, metadata): (bool, &Value),
    session: &Value,
) -> Map<String, Value> {
    let mut shown = Map::new();
    let mut set = |name: &str, value: Value| {
        shown.insert(name.to_owned(), value);
    };
    set("object", json!("realtime.response"));
    set("id", json!(id));
    set("conversation_id", json!(conversation));
    set("metadata", metadata.clone());
    match version {
        Version::Current => {
            let modality = if speaks { "audio" } else { "text" };
            set("output_modalities", json!([modality]));
            set("max_output_tokens", session["max_output_tokens"].clone());
            let output = &session["audio"]["output"];
            set(
                "audio",
                json!({"output": {"format": output["format"], "voice": output["voice"]}}),
            );
        }
        Version::Beta => {
            let both = json!(["text", "audio"]);
            set("modalities", if speaks { both } else { json!(["text"]) });
            for name in ["voice", "output_audio_format", "temperature"] {
                set(name, session[name].clone());
            }
            set(
                "max_output_tokens",
                session["max_response_output_tokens"].clone(),
            );
        }
    }
    shown
}

/// Milliseconds of the sound that was sent of a message.
pub fn sent_ms(message: &Message, sound: Sound) -> u64 {
    sound.milliseconds(message.sound_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_ends_with_a_word_that_had_ended() {
        let mut message = Message::new("item".to_owned(), 0, true);
        message.push("Well, it is it.");
        for (word, at) in [("Well,", 100), ("it", 500), ("is", 700), ("it.", 900)] {
            message.word(word, at);
        }
        for (ms, heard) in [
            (0, ""),
            (499, ""),
            (500, "Well,"),
            (700, "Well, it"),
            (899, "Well, it"),
            (5_000, "Well, it is"),
        ] {
            assert_eq!(message.heard_by(ms), heard, "{ms}");
        }
    }

    #[test]
    fn the_voice_is_given_pieces_that_may_end_sentences() {
        let mut message = Message::new("item".to_owned(), 0, true);
        assert_eq!(message.push("  "), None);
        assert_eq!(message.push("Good"), None);
        assert_eq!(message.push(" day."), Some("  Good day.".to_owned()));
        assert_eq!(message.push(" How"), None);
        assert_eq!(message.rest(), Some(" How".to_owned()));
        let mut blank = Message::new("item".to_owned(), 0, true);
        assert_eq!(blank.push(" \n"), None);
        assert_eq!(blank.rest(), None);
    }
}
