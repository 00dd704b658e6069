//! An answer of a model, as it comes: text and calls of functions in pieces, then why it has ended and what it cost.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};
use vivavoce_config::Secret;

use crate::chat::RateLimit;
use crate::event_stream::EventStream;

/// The longest answer. What is said beyond it would take hours.
const MAX_TEXT_BYTES: usize = 256 << 10;
/// The most functions that one answer calls, and the longest arguments of one.
const MAX_CALLS: usize = 32;
const MAX_ARGUMENTS_BYTES: usize = 64 << 10;

/// Why there is no answer, or no more of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// The endpoint cannot be reached, or the connection broke.
    #[error("the language model cannot be reached: {0}")]
    Unreachable(String),
    /// It refuses the request.
    #[error("the language model answers {status}: {words}")]
    Refused {
        /// Its status.
        status: u16,
        /// What it says.
        words: String,
    },
    /// It takes too long.
    #[error("the language model has sent nothing for {0:?}")]
    Silent(Duration),
    /// It sends what is no chat completion.
    #[error("the language model {0}")]
    Protocol(String),
}

impl LlmError {
    /// Whether the request was refused because of what the caller asked for.
    pub fn is_callers(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if (400..500).contains(status) && !matches!(status, 401 | 403 | 408 | 429))
    }
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerEvent {
    /// More text.
    Text(String),
    /// More of a call.
    Call {
        /// Which of the answer's calls, from 0.
        index: usize,
        /// The call, where this is its first piece.
        begins: Option<FunctionCall>,
        /// More of its arguments, which are JSON.
        arguments: String,
    },
    /// The end.
    Done {
        /// Why.
        finish: Finish,
        /// What it cost, where the endpoint says so.
        usage: Option<Usage>,
    },
}

/// A function that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionCall {
    /// Names the call in the answer to it.
    pub id: String,
    /// The function.
    pub name: String,
}

/// Why an answer has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// It is complete, or waits for functions.
    Complete,
    /// It was too long.
    Length,
    /// The vendor's filter cut it off.
    Filtered,
}

/// What an answer cost, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the request.
    pub input: u64,
    /// Of these the vendor had cached.
    pub cached: u64,
    /// Of the answer.
    pub output: u64,
}

/// An answer as it comes. Dropping it ends the request.
pub struct Answer {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    events: EventStream,
    rate_limits: Vec<RateLimit>,
    /// How long the endpoint may be silent.
    patience: Duration,
    waiting: VecDeque<AnswerEvent>,
    text_bytes: usize,
    /// The calls so far: the endpoint's own numbers, the bytes of their arguments, their ids.
    calls: Vec<(u64, usize, String)>,
    /// What must not be repeated of what the endpoint says.
    key: Option<Secret>,
    /// When it last sent something that counts.
    heard: Instant,
    finish: Option<Finish>,
    usage: Option<Usage>,
    is_done: bool,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<WireUsage>,
    error: Option<WireError>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Deserialize)]
struct ToolCall {
    index: Option<u64>,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct WireUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WireError {
    Told { message: String },
    Text(String),
    Other(serde_json::Value),
}

impl WireError {
    fn words(self) -> String {
        match self {
            Self::Told { message } | Self::Text(message) => message,
            Self::Other(other) => other.to_string(),
        }
    }
}

/// The body of an answer that is no stream.
#[derive(Deserialize)]
struct Refusal {
    error: Option<WireError>,
    message: Option<String>,
}

/// The longest words of an endpoint that are repeated.
const SHOWN: usize = 300;

pub(super) fn shortened(words: &str) -> String {
    let one_line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    one_line.chars().take(SHOWN).collect()
}

/// What an endpoint says that does not answer.
pub(super) fn refusal(status: StatusCode, body: &[u8], key: Option<&Secret>) -> LlmError {
    let told: Option<Refusal> = serde_json::from_slice(body).ok();
    let told = told.and_then(|refusal| refusal.error.map(WireError::words).or(refusal.message));
    let words = told.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    LlmError::Refused {
        status: status.as_u16(),
        words: shortened(&without(key, words)),
    }
}

/// Some endpoints repeat what they were sent.
fn without(key: Option<&Secret>, words: String) -> String {
    match key {
        Some(key) if !key.expose().is_empty() => words.replace(key.expose(), "***"),
        _ => words,
    }
}

/// `x-ratelimit-*`, as OpenAI and others send them.
pub(super) fn rate_limits(headers: &HeaderMap) -> Vec<RateLimit> {
    let read = |name: &'static str| {
        let text = |what: &str| {
            let value = headers.get(format!("x-ratelimit-{what}-{name}"))?;
            value.to_str().ok()
        };
        Some(RateLimit {
            name,
            limit: text("limit")?.parse().ok()?,
            remaining: text("remaining")?.parse().ok()?,
            reset_seconds: seconds(text("reset").unwrap_or("0"))?,
        })
    };
    ["requests", "tokens"]
        .into_iter()
        .filter_map(read)
        .collect()
}

/// `6m0s`, `20ms`, `1.5s` or plain seconds.
fn seconds(text: &str) -> Option<f64> {
    let mut total = 0.0;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, tail) = rest.split_at(digits.unwrap_or(rest.len()));
        let number: f64 = number.parse().ok()?;
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, tail) = tail.split_at(unit.unwrap_or(tail.len()));
        total += number
            * match unit {
                "" | "s" => 1.0,
                "ms" => 0.001,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                _ => return None,
            };
        rest = tail;
    }
    Some(total)
}

impl Answer {
    pub(super) fn new(
        bytes: BoxStream<'static, reqwest::Result<Bytes>>,
        rate_limits: Vec<RateLimit>,
        patience: Duration,
        key: Option<Secret>,
    ) -> Self {
        Self {
            key,
            heard: Instant::now(),
            bytes,
            events: EventStream::default(),
            rate_limits,
            patience,
            waiting: VecDeque::new(),
            text_bytes: 0,
            calls: Vec::new(),
            finish: None,
            usage: None,
            is_done: false,
        }
    }

    /// What the endpoint says of its limits.
    pub fn rate_limits(&self) -> &[RateLimit] {
        &self.rate_limits
    }

    /// The next piece; `None` after [`AnswerEvent::Done`] or an error.
    pub async fn next(&mut self) -> Option<Result<AnswerEvent, LlmError>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(Ok(event));
            }
            if self.is_done {
                return None;
            }
            while let Some(data) = self.events.next_data() {
                // Comments are signs of a connection, and not of an answer.
                self.heard = Instant::now();
                if let Err(error) = self.take(&data) {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
            if !self.waiting.is_empty() || self.is_done {
                continue;
            }
            let failed = match timeout_at(self.heard + self.patience, self.bytes.next()).await {
                Ok(Some(Ok(bytes))) => match self.events.push(&bytes) {
                    Ok(()) => continue,
                    Err(error) => LlmError::Protocol(error.to_string()),
                },
                Ok(Some(Err(error))) => LlmError::Unreachable(plain(error)),
                // Some end without the mark.
                Ok(None) if self.finish.is_some() => {
                    self.done();
                    continue;
                }
                Ok(None) => LlmError::Protocol("has broken off its answer".to_owned()),
                Err(_) => LlmError::Silent(self.patience),
            };
            self.is_done = true;
            return Some(Err(failed));
        }
    }

    fn done(&mut self) {
        self.is_done = true;
        self.waiting.push_back(AnswerEvent::Done {
            finish: self.finish.unwrap_or(Finish::Complete),
            usage: self.usage,
        });
    }

    fn take(&mut self, data: &str) -> Result<(), LlmError> {
        if self.is_done {
            return Ok(());
        }
        if data == "[DONE]" {
            self.done();
            return Ok(());
        }
        let chunk: Chunk = serde_json::from_str(data)
            .map_err(|_| LlmError::Protocol("sends what is no chat completion".to_owned()))?;
        if let Some(error) = chunk.error {
            return Err(LlmError::Refused {
                status: 500,
                words: shortened(&without(self.key.as_ref(), error.words())),
            });
        }
        if let Some(usage) = chunk.usage {
            let details = usage.prompt_tokens_details;
            self.usage = Some(Usage {
                input: usage.prompt_tokens,
                cached: details.and_then(|known| known.cached_tokens).unwrap_or(0),
                output: usage.completion_tokens,
            });
        }
        let Some(choice) = chunk.choices.into_iter().next() else {
            return Ok(());
        };
        if let Some(delta) = choice.delta {
            if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
                self.text_bytes += text.len();
                if self.text_bytes > MAX_TEXT_BYTES {
                    return Err(LlmError::Protocol("talks without end".to_owned()));
                }
                self.waiting.push_back(AnswerEvent::Text(text));
            }
            for call in delta.tool_calls.into_iter().flatten() {
                self.call(call)?;
            }
        }
        if let Some(reason) = choice.finish_reason {
            self.finish = Some(match reason.as_str() {
                "length" => Finish::Length,
                "content_filter" => Finish::Filtered,
                _ => Finish::Complete,
            });
        }
        Ok(())
    }

    fn call(&mut self, call: ToolCall) -> Result<(), LlmError> {
        let function = call.function.unwrap_or(Function {
            name: None,
            arguments: None,
        });
        let arguments = function.arguments.unwrap_or_default();
        // Some endpoints do not number calls, and send each whole.
        let number = call.index.unwrap_or(self.calls.len() as u64);
        let known = self
            .calls
            .iter()
            .rposition(|(known, _, _)| *known == number);
        // Others number all calls alike: another id is another call.
        let id = call.id.filter(|id| !id.is_empty());
        let is_other = |at: &usize| {
            let before = self.calls.get(*at).map(|(_, _, id)| id.as_str());
            function.name.is_some() && id.as_deref().is_some_and(|id| Some(id) != before)
        };
        let known = known.filter(|at| !is_other(at));
        let (index, begins) = match (known, function.name) {
            (Some(index), _) => (index, None),
            (None, Some(name)) if !name.is_empty() && self.calls.len() < MAX_CALLS => {
                let index = self.calls.len();
                let id = id.unwrap_or_else(|| format!("call_{index}"));
                self.calls.push((number, 0, id.clone()));
                (index, Some(FunctionCall { id, name }))
            }
            (None, Some(_)) => {
                return Err(LlmError::Protocol("calls too many functions".to_owned()));
            }
            (None, None) => {
                return Err(LlmError::Protocol(
                    "calls a function without a name".to_owned(),
                ));
            }
        };
        if let Some((_, bytes, _)) = self.calls.get_mut(index) {
            *bytes += arguments.len();
            if *bytes > MAX_ARGUMENTS_BYTES {
                let problem = "calls a function with more than 64 KiB";
                return Err(LlmError::Protocol(problem.to_owned()));
            }
        }
        self.waiting.push_back(AnswerEvent::Call {
            index,
            begins,
            arguments,
        });
        Ok(())
    }
}

/// An error of the client, without the URL, which may hold a secret.
pub(super) fn plain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(why) = cause {
        words = why.to_string();
        cause = why.source();
    }
    shortened(&words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use proptest::prelude::*;

    async fn read(text: &str) -> Vec<Result<AnswerEvent, LlmError>> {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let bytes = stream::iter([Ok(bytes)]).boxed();
        let mut answer = Answer::new(bytes, Vec::new(), Duration::from_secs(1), None);
        let mut all = Vec::new();
        while let Some(event) = answer.next().await {
            all.push(event);
        }
        all
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "compared with what an answer yields"
    )]
    fn text(words: &str) -> Result<AnswerEvent, LlmError> {
        Ok(AnswerEvent::Text(words.to_owned()))
    }

    #[tokio::test]
    async fn text_comes_in_pieces_and_then_what_it_cost() {
        let all = read(concat!(
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"Good \"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"content\":\"day.\"},\"finish_reason\":\"length\"}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,",
            "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\ndata: {}\n\n",
        ))
        .await;
        let usage = Some(Usage {
            input: 9,
            cached: 4,
            output: 2,
        });
        let finish = Finish::Length;
        let done = Ok(AnswerEvent::Done { finish, usage });
        assert_eq!(all, [text("Good "), text("day."), done]);
    }

    #[tokio::test]
    async fn calls_come_in_pieces_too() {
        let all = read(concat!(
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}}]}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1,\"function\":{\"name\":\"g\",\"arguments\":\"1\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n",
        ))
        .await;
        let call = |index, begins: Option<(&str, &str)>, arguments: &str| {
            Ok(AnswerEvent::Call {
                index,
                begins: begins.map(|(id, name)| FunctionCall {
                    id: id.to_owned(),
                    name: name.to_owned(),
                }),
                arguments: arguments.to_owned(),
            })
        };
        let done = Ok(AnswerEvent::Done {
            finish: Finish::Complete,
            usage: None,
        });
        let wanted = [
            call(0, Some(("c1", "f")), ""),
            call(0, None, "{}"),
            call(1, Some(("call_1", "g")), "1"),
            done,
        ];
        assert_eq!(all, wanted);
    }

    #[tokio::test]
    async fn calls_that_are_all_numbered_alike_are_told_apart_by_their_ids() {
        let call = |id: &str, arguments: &str| {
            format!(
                "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":0,\"id\":\"{id}\",\"function\":{{\"name\":\"f\",\"arguments\":\"{arguments}\"}}}}]}}}}]}}\n\n"
            )
        };
        let all = read(&[call("a", "1"), call("a", "2"), call("b", "3")].concat()).await;
        let indices: Vec<usize> = all
            .iter()
            .filter_map(|event| match event {
                Ok(AnswerEvent::Call { index, .. }) => Some(*index),
                _ => None,
            })
            .collect();
        assert_eq!(indices, [0, 0, 1]);
    }

    #[tokio::test]
    async fn what_breaks_off_or_fails_in_its_middle_is_an_error() {
        let begun = "data: {\"choices\":[{\"delta\":{\"content\":\"Good \"}}]}\n\n";
        let broken = read(begun).await;
        assert_eq!(broken[0], text("Good "));
        assert!(matches!(broken[1], Err(LlmError::Protocol(_))));
        for (sent, words) in [
            (
                "data: {\"error\":{\"message\":\"out of memory\"}}\n",
                "out of memory",
            ),
            ("data: {\"error\":\"busy\"}\n", "busy"),
            ("data: nonsense\n", "no chat completion"),
        ] {
            let all = read(sent).await;
            let [Err(error)] = all.as_slice() else {
                panic!("{all:?}");
            };
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_says_nothing_is_given_up() {
        let patience = Duration::from_secs(9);
        let mut answer = Answer::new(stream::pending().boxed(), Vec::new(), patience, None);
        assert_eq!(answer.next().await, Some(Err(LlmError::Silent(patience))));
        assert_eq!(answer.next().await, None);
    }

    #[test]
    fn refusals_say_what_the_endpoint_says_and_whose_fault_it_is() {
        let openais = br#"{"error":{"message":"no such model","type":"x"}}"#;
        let error = refusal(StatusCode::NOT_FOUND, openais, None);
        assert_eq!(
            error.to_string(),
            "the language model answers 404: no such model"
        );
        assert!(error.is_callers());
        let key = Secret::new("sk-1");
        let repeated = refusal(StatusCode::UNAUTHORIZED, b"bad key sk-1", Some(&key));
        assert_eq!(
            repeated.to_string(),
            "the language model answers 401: bad key ***"
        );
        assert!(!refusal(StatusCode::UNAUTHORIZED, b"key", None).is_callers());
        let plain = refusal(StatusCode::BAD_GATEWAY, b"<html>\n bad ", None);
        assert_eq!(
            plain.to_string(),
            "the language model answers 502: <html> bad"
        );
    }

    #[test]
    fn limits_are_read_from_the_head() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-ratelimit-limit-requests", "100"),
            ("x-ratelimit-remaining-requests", "99"),
            ("x-ratelimit-reset-requests", "1m30.5s"),
            ("x-ratelimit-limit-tokens", "5"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let limits = rate_limits(&headers);
        assert_eq!(limits.len(), 1);
        assert_eq!((limits[0].limit, limits[0].remaining), (100, 99));
        assert!((limits[0].reset_seconds - 90.5).abs() < 1e-9);
        assert_eq!(seconds("20ms"), Some(0.02));
        assert_eq!(seconds("soon"), None);
    }

    proptest! {
        #[test]
        fn any_data_is_taken(data in ".{0,200}") {
            let bytes = stream::empty().boxed();
            let mut answer = Answer::new(bytes, Vec::new(), Duration::from_secs(1), None);
            let _ = answer.take(&data);
        }
    }
}
