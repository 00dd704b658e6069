//! Language models: where they are ([`Endpoints`]), and one answer of one of them as a stream ([`Endpoint::answer`]). They
//! speak the chat-completions interface that OpenAI, vLLM, Ollama, llama.cpp and others have, with `stream` and, where a
//! model calls functions, `tools`.
//!
//! Conversations are not known here: who keeps the history of one says with each request what the model is to know. Nothing
//! of what is said is logged.

mod answer;
mod chat;
mod endpoints;
mod event_stream;

pub use answer::{Answer, AnswerEvent, Finish, FunctionCall, LlmError, Usage};
pub use chat::{ChatRequest, RateLimit};
pub use endpoints::{ClientEndpoint, Endpoint, Endpoints, NoEndpoint};
