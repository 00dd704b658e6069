//! What a protocol wants to send, in order.

use bytes::Bytes;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

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

    /// A ping, which the other side must answer.
    pub(super) fn ping(&mut self) {
        self.messages.push(Message::Ping(Bytes::new()));
    }

    /// An orderly close, after which nothing is sent.
    pub fn close(&mut self) {
        self.messages.push(Message::Close(Some(CloseFrame {
            code: CloseCode::Normal,
            reason: "".into(),
        })));
    }

    /// What was collected.
    pub(crate) fn take(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.messages)
    }

    /// What was collected, as text where it is, for tests of protocols.
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
