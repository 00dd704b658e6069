//! What a client sends, passed on to a session that is not on its socket's thread, or not in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use bytestring::ByteString;
use tokio::sync::mpsc;

/// The most messages on their way.
const MESSAGES: usize = 2_048;
/// The most bytes of them.
const BYTES: usize = 8 << 20;

/// What a client sends.
#[derive(Debug)]
pub enum FromClient {
    Text(ByteString),
    Binary(Bytes),
}

impl FromClient {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(bytes) => bytes.len(),
        }
    }
}

/// Passes on what a client sends.
pub struct Relay {
    messages: mpsc::Sender<FromClient>,
    bytes: Arc<AtomicUsize>,
}

/// What comes of a [`Relay`].
pub struct Relayed {
    messages: mpsc::Receiver<FromClient>,
    bytes: Arc<AtomicUsize>,
}

/// A relay and its end.
pub fn relay() -> (Relay, Relayed) {
    let (sender, receiver) = mpsc::channel(MESSAGES);
    let bytes = Arc::<AtomicUsize>::default();
    let relay = Relay {
        messages: sender,
        bytes: Arc::clone(&bytes),
    };
    let messages = receiver;
    (relay, Relayed { messages, bytes })
}

impl Relay {
    /// Passes on a message; `false` where too much is on its way.
    pub fn pass_on(&self, message: FromClient) -> bool {
        let length = message.len();
        let on_its_way = self.bytes.fetch_add(length, Ordering::Relaxed);
        let fits = on_its_way + length <= BYTES || on_its_way == 0;
        fits && self.messages.try_send(message).is_ok()
    }
}

impl Relayed {
    /// The next message; `None` once the socket has gone.
    pub async fn next(&mut self) -> Option<FromClient> {
        let message = self.messages.recv().await?;
        self.bytes.fetch_sub(message.len(), Ordering::Relaxed);
        Some(message)
    }
}
