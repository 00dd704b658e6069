//! Language models: where they are ([`Endpoints`]), and one answer of one of them as a stream ([`Endpoint::answer`]). They
//! speak the chat-completions interface that OpenAI, vLLM, Ollama, llama.cpp and others have, with `stream` and, where a
//! model calls functions, `tools`.
//!
//! What was said so far is a [`history`], of which a model is told what fits. Nothing of it is logged.

mod answer;
mod chat;
mod endpoints;
mod event_stream;
pub mod history;

pub use answer::{Answer, AnswerEvent, Finish, FunctionCall, LlmError, Usage};
pub use chat::{ChatRequest, RateLimit};
pub use endpoints::{ClientEndpoint, Endpoint, Endpoints, NoEndpoint, problems};
