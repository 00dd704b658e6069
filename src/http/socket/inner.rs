//! A socket without a network: its client is another part of this server, such as the door of another protocol. What waits
//! for that part is bounded as it is for any client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use tokio::time::Instant;

use super::SocketSettings;
use super::outbox::{Closed, Message};
use super::writer::{Shared, SocketWriter};
use vivavoce_core::party::Party;

/// The client's side: a stream of what is sent to it, which ends once the socket has closed.
pub struct InnerClient {
    shared: Arc<Shared>,
}

/// A socket whose client is in this process. It counts for `party`.
pub fn open_inner(settings: &SocketSettings, party: Party) -> (SocketWriter, InnerClient) {
    let shared = Shared::new(settings, party);
    let writer = SocketWriter::new(Arc::clone(&shared));
    (writer, InnerClient { shared })
}

impl InnerClient {
    /// How the socket was closed, once it was.
    pub fn closed(&self) -> Option<Closed> {
        self.shared.lock().closed().cloned()
    }
}

impl Stream for InnerClient {
    type Item = Message;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
        // Registered before looking, so that no wake-up is missed.
        self.shared.body.register(context.waker());
        match self.shared.next_message() {
            Some(message) => Poll::Ready(Some(message)),
            None if self.shared.lock().ended() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl Drop for InnerClient {
    fn drop(&mut self) {
        self.shared
            .change(|outbox| outbox.transport_gone(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use futures_util::StreamExt;

    use super::*;
    use crate::outbox::{Audio, AudioRefused};

    fn socket() -> (SocketWriter, InnerClient) {
        let settings = SocketSettings {
            max_buffered_audio: Duration::from_millis(100),
            ..SocketSettings::of_tests()
        };
        open_inner(&settings, Party::Operator)
    }

    fn chunk() -> Audio {
        Audio {
            tag: 1,
            duration: Duration::from_millis(60),
            bytes: Bytes::from_static(&[1, 2]),
        }
    }

    #[tokio::test]
    async fn messages_come_in_their_order_and_the_end_after_them() {
        let (writer, mut client) = socket();
        writer.event("{}");
        writer.audio(chunk()).unwrap();
        assert_eq!(writer.audio(chunk()), Err(AudioRefused::Full));
        assert_eq!(client.next().await, Some(Message::Text("{}".into())));
        let sound = Message::Binary(Bytes::from_static(&[1, 2]));
        assert_eq!(client.next().await, Some(sound));
        writer.audio(chunk()).unwrap();
        writer.close(1000, "done");
        assert!(matches!(client.next().await, Some(Message::Binary(_))));
        assert_eq!(client.next().await, None);
        assert_eq!(client.closed().unwrap().code, 1000);
    }

    #[tokio::test]
    async fn a_client_that_is_gone_takes_nothing() {
        let (writer, client) = socket();
        drop(client);
        assert_eq!(writer.audio(chunk()), Err(AudioRefused::Closed));
        assert_eq!(writer.closed().unwrap().code, 1006);
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let (writer, mut client) = socket();
        let waiting = tokio::spawn(async move { client.next().await });
        tokio::task::yield_now().await;
        writer.event("{}");
        assert_eq!(waiting.await.unwrap(), Some(Message::Text("{}".into())));
    }
}
