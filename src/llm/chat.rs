//! What a model is asked.

use serde_json::{Map, Value, json};

/// A request for one answer. Messages and tools are in the shape of the chat-completions interface.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatRequest {
    /// What the model is told, and the conversation so far.
    pub messages: Vec<Value>,
    /// Functions that it may call: `{"type": "function", "function": {…}}`.
    pub tools: Vec<Value>,
    /// `auto`, `none`, `required` or a function; its own default where absent.
    pub tool_choice: Option<Value>,
    /// Whether it may call several functions at once; its own default where absent.
    pub parallel_tool_calls: Option<bool>,
    /// Its own default where absent.
    pub temperature: Option<f64>,
    /// The longest answer; its own default where absent.
    pub max_tokens: Option<u32>,
    /// How much it thinks before it answers, by the names of the interface; its own default where absent.
    pub reasoning_effort: Option<String>,
}

/// What a vendor says of its limits in an answer's head.
#[derive(Debug, Clone, PartialEq)]
pub struct RateLimit {
    /// `requests` or `tokens`.
    pub name: &'static str,
    /// How many there are in a period.
    pub limit: u64,
    /// How many of them are left.
    pub remaining: u64,
    /// Seconds until all are there again.
    pub reset_seconds: f64,
}

impl ChatRequest {
    /// The body of the request to this model.
    pub(super) fn body(self, model: &str) -> Value {
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(model));
        body.insert("messages".to_owned(), Value::Array(self.messages));
        body.insert("stream".to_owned(), json!(true));
        let usage = json!({"include_usage": true});
        body.insert("stream_options".to_owned(), usage);
        let mut optional = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        let has_tools = !self.tools.is_empty();
        optional("temperature", self.temperature.map(|value| json!(value)));
        optional("max_tokens", self.max_tokens.map(|value| json!(value)));
        let effort = self.reasoning_effort.map(|effort| json!(effort));
        optional("reasoning_effort", effort);
        // Servers refuse a choice among no tools.
        if has_tools {
            let parallel = self.parallel_tool_calls.map(|value| json!(value));
            optional("tools", Some(Value::Array(self.tools)));
            optional("tool_choice", self.tool_choice);
            optional("parallel_tool_calls", parallel);
        }
        Value::Object(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_in_the_body() {
        let messages = vec![json!({"role": "user", "content": "Hello"})];
        let request = ChatRequest {
            messages: messages.clone(),
            tool_choice: Some(json!("auto")),
            ..ChatRequest::default()
        };
        assert_eq!(
            request.clone().body("m"),
            json!({
                "model": "m", "messages": messages, "stream": true,
                "stream_options": {"include_usage": true},
            })
        );
        let tools = vec![json!({"type": "function", "function": {"name": "f"}})];
        let asked = ChatRequest {
            tools: tools.clone(),
            temperature: Some(0.5),
            max_tokens: Some(7),
            ..request
        };
        let body = asked.body("m");
        assert_eq!(body["tools"], json!(tools));
        assert_eq!(body["tool_choice"], "auto");
        assert_eq!(body["temperature"], 0.5);
        assert_eq!(body["max_tokens"], 7);
    }
}
