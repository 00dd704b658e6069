//! The inputs and outputs of a protocol's step: the time, messages to send, and events to report.

use bytes::Bytes;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use vivavoce_seams::{SttEvent, TtsEvent};

/// Passed to each step of a protocol.
pub struct ProtocolIo<'a, E> {
    /// The time.
    pub now: Instant,
    /// Messages to send.
    pub out: &'a mut Outgoing,
    /// Events to report.
    pub events: &'a mut Vec<E>,
}

/// [`ProtocolIo`] of a recognition protocol.
pub type SttIo<'a> = ProtocolIo<'a, SttEvent>;
/// [`ProtocolIo`] of a synthesis protocol.
pub type TtsIo<'a> = ProtocolIo<'a, TtsEvent>;

/// Collects messages until the driver sends them.
#[derive(Debug, Default)]
pub struct Outgoing {
    messages: Vec<Message>,
}

impl Outgoing {
    /// A text message.
    pub fn text(&mut self, text: impl Into<String>) {
        self.messages.push(Message::text(text.into()));
    }

    /// A text message of JSON.
    pub fn json(&mut self, value: &serde_json::Value) {
        self.text(value.to_string());
    }

    /// A binary message.
    pub fn binary(&mut self, bytes: impl Into<Bytes>) {
        self.messages.push(Message::binary(bytes.into()));
    }

    /// A ping.
    pub(super) fn ping(&mut self) {
        self.messages.push(Message::Ping(Bytes::new()));
    }

    /// A close frame; it must be the last message.
    pub fn close(&mut self) {
        self.messages.push(Message::Close(Some(CloseFrame {
            code: CloseCode::Normal,
            reason: "".into(),
        })));
    }

    /// Takes the collected messages.
    pub(crate) fn take(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    /// The collected messages as text, for tests.
    #[cfg(test)]
    pub fn texts(&mut self) -> Vec<String> {
        let text = |message: Message| match message {
            Message::Text(text) => text.to_string(),
            Message::Binary(bytes) => format!("<{} bytes>", bytes.len()),
            other => format!("{other:?}"),
        };
        self.take().into_iter().map(text).collect()
    }
}
