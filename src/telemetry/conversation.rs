//! The trace of a session: a span for the session itself, and below it one for each turn, each stream of a recogniser,
//! each request to a voice, and each utterance while it is played. Names of attributes are those of OpenTelemetry's
//! conventions (`gen_ai.*`, `error.type`) where there are any; delays are in milliseconds and end in `_ms`.
//!
//! What is known of a span is put into the trace alone, and not into log lines.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::Value;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The attribute of what has failed: its kind. Whatever has it has the status of an error.
pub const FAILED: &str = "error.type";

/// The trace of a session; clones share it. It ends with the last of them.
#[derive(Debug, Clone)]
pub struct Conversation(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Span,
    tenant: Option<String>,
    stream_id: OnceLock<String>,
}

impl Conversation {
    /// Starts a session's trace. Only the request's id is in the session's log lines, too.
    pub fn begin(request_id: &str, tenant: Option<&str>) -> Self {
        let session = tracing::error_span!(parent: None, "session", request_id);
        if let Some(tenant) = tenant {
            session.set_attribute("tenant", tenant.to_owned());
        }
        Self(Arc::new(Inner {
            session,
            tenant: tenant.map(str::to_owned),
            stream_id: OnceLock::new(),
        }))
    }

    /// The span that the session's log lines belong to.
    pub fn span(&self) -> Span {
        self.0.session.clone()
    }

    /// The session has this name now; spans from now on have it, too.
    pub fn is_called(&self, stream_id: &str) {
        if self.0.stream_id.set(stream_id.to_owned()).is_ok() {
            name(&self.0.session, stream_id);
        }
    }

    /// The session ends with this close code, for this reason.
    pub fn ends(&self, code: u16, reason: &'static str) {
        self.0.session.set_attribute("reason", reason);
        self.0.session.set_attribute("close_code", i64::from(code));
        if !matches!(code, 1000 | 1001) {
            self.0.session.set_attribute(FAILED, reason);
        }
    }

    /// Somebody speaks.
    pub fn turn(&self) -> Activity {
        self.activity(tracing::error_span!(parent: &self.0.session, "turn"))
    }

    /// A stream of a recogniser is opened.
    pub fn stt(&self, provider: &str, model: &str) -> Activity {
        let stt = tracing::error_span!(parent: &self.0.session, "stt");
        self.activity(stt).at(provider, model, "speech_to_text")
    }

    /// A voice is asked to say something.
    pub fn tts(&self, provider: &str, model: &str, voice: Option<&str>) -> Activity {
        let tts = tracing::error_span!(parent: &self.0.session, "tts");
        let activity = self.activity(tts).at(provider, model, "text_to_speech");
        activity.note("gen_ai.output.type", "speech");
        if let Some(voice) = voice {
            activity.note("voice", voice.to_owned());
        }
        activity
    }

    /// An utterance begins to be played.
    pub fn playout(&self) -> Activity {
        self.activity(tracing::error_span!(parent: &self.0.session, "playout"))
    }

    fn activity(&self, span: Span) -> Activity {
        if let Some(stream_id) = self.0.stream_id.get() {
            name(&span, stream_id);
        }
        if let Some(tenant) = &self.0.tenant {
            span.set_attribute("tenant", tenant.clone());
        }
        Activity(span)
    }
}

fn name(span: &Span, stream_id: &str) {
    span.set_attribute("stream_id", stream_id.to_owned());
    span.set_attribute("gen_ai.conversation.id", stream_id.to_owned());
}

/// A part of a conversation, until it is dropped.
#[derive(Debug)]
pub struct Activity(Span);

impl Activity {
    fn at(self, provider: &str, model: &str, operation: &'static str) -> Self {
        self.note("gen_ai.operation.name", operation);
        self.note("gen_ai.provider.name", provider.to_owned());
        if !model.is_empty() {
            self.note("gen_ai.request.model", model.to_owned());
        }
        self
    }

    /// Something that is known of it.
    pub fn note(&self, key: &'static str, value: impl Into<Value>) {
        self.0.set_attribute(key, value);
    }

    /// How long something took, in milliseconds.
    pub fn delay(&self, key: &'static str, delay: Duration) {
        self.note(key, i64::try_from(delay.as_millis()).unwrap_or(i64::MAX));
    }

    /// It has failed with an error of this kind.
    pub fn failed(&self, kind: &'static str) {
        self.note(FAILED, kind);
    }
}
