//! The outgoing side of a socket: a cheap handle that never blocks, and the response body that takes one frame at a
//! time from the same queue, whenever the kernel has accepted the previous one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use bytestring::ByteString;
use futures_util::Stream;
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::SocketSettings;
use super::backlog::BacklogEntry;
use super::connection::Connection;
use super::outbox::{Audio, AudioRefused, Closed, ClosedBy, Next, Outbox};
use vivavoce_core::party::Party;

/// The state shared by writer, reader and body.
pub(super) struct Shared {
    outbox: Mutex<Outbox>,
    body: AtomicWaker,
    /// Tells the reader that the socket is closing.
    pub(super) closing: Notify,
    room: Notify,
    /// The socket's entry in the backlog.
    backlog: BacklogEntry,
}

impl Shared {
    /// The state of a socket that counts for `party`.
    pub(super) fn new(settings: &SocketSettings, party: Party) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            outbox: Mutex::new(Outbox::new(settings.max_buffered_audio)),
            body: AtomicWaker::new(),
            closing: Notify::new(),
            room: Notify::new(),
            backlog: BacklogEntry::of(&settings.backlog, party, Weak::clone(this)),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue and wakes whoever is waiting.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Outbox) -> T) -> T {
        let (result, closes, waiting) = {
            let mut outbox = self.lock();
            let was_open = outbox.closed().is_none();
            let result = change(&mut outbox);
            let closes = was_open && outbox.closed().is_some();
            (result, closes, outbox.settle())
        };
        self.body.wake();
        if closes {
            self.closing.notify_one();
            self.room.notify_waiters();
        }
        self.count(waiting);
        result
    }

    /// The next frame to send.
    pub(super) fn next(&self) -> Next {
        let (next, waiting) = {
            let mut outbox = self.lock();
            let next = outbox.next(Instant::now());
            (next, outbox.settle())
        };
        if matches!(next, Next::Frame(_)) {
            self.room.notify_waiters();
        }
        self.count(waiting);
        next
    }

    /// Counts `bytes` more or less in the backlog, and closes the sockets that are furthest behind if that is too much.
    fn count(&self, bytes: isize) {
        if bytes == 0 {
            return;
        }
        for furthest in self.backlog.change(bytes) {
            furthest.change(|outbox| outbox.fall_behind(Instant::now()));
        }
    }
}

/// Sends to one client. Clones write to the same socket. Only [`Self::audio_room`] and [`Self::event_room`] wait. What
/// is sent to a closing socket is dropped.
#[derive(Clone)]
pub struct SocketWriter(pub(super) Arc<Shared>);

impl SocketWriter {
    /// Sends an event (JSON text). If [`super::MAX_EVENTS`] are queued already, the socket closes with 1013.
    pub fn event(&self, text: impl Into<ByteString>) {
        let text = text.into();
        self.0.change(|outbox| outbox.event(text, Instant::now()));
    }

    /// Sends a message from somebody else; `false` if it was dropped because too much is queued.
    pub fn message(&self, text: impl Into<ByteString>) -> bool {
        let text = text.into();
        self.0.change(|outbox| outbox.message(text, Instant::now()))
    }

    /// Sends an event that supersedes a queued one of the same `kind`; such events are not counted.
    pub fn latest(&self, kind: &'static str, text: impl Into<ByteString>) {
        let text = text.into();
        self.0.change(|outbox| outbox.latest(kind, text));
    }

    /// The same per participant: an event does not supersede that of another participant.
    pub fn latest_about(&self, kind: &'static str, identity: &str, text: impl Into<ByteString>) {
        let text = text.into();
        let now = Instant::now();
        self.0
            .change(|outbox| outbox.latest_about(kind, identity, text, now));
    }

    /// Sends an error. While many events are queued, only the latest of further errors is kept, so that a client which
    /// sends invalid messages faster than it reads is not disconnected for that.
    pub fn error(&self, text: impl Into<ByteString>) {
        let text = text.into();
        self.0.change(|outbox| outbox.error(text, Instant::now()));
    }

    /// Sends audio; if it is refused as full, it may be sent again after [`Self::audio_room`].
    pub fn audio(&self, audio: Audio) -> Result<(), AudioRefused> {
        self.0.change(|outbox| outbox.audio(audio))
    }

    /// Whether audio of this length would be accepted.
    pub fn has_audio_room(&self, sound: Duration) -> bool {
        self.0.lock().has_room(sound)
    }

    /// Whether few enough events are queued that more may be caused.
    pub fn has_event_room(&self) -> bool {
        self.0.lock().has_event_room()
    }

    /// Waits until few enough events are queued.
    pub async fn event_room(&self) {
        self.room(Outbox::has_event_room).await;
    }

    /// Waits until audio of this length would be accepted.
    pub async fn audio_room(&self, sound: Duration) {
        self.room(|outbox| outbox.has_room(sound)).await;
    }

    async fn room(&self, there_is: impl Fn(&Outbox) -> bool) {
        loop {
            let room = self.0.room.notified();
            tokio::pin!(room);
            // Register before checking, so that no wake-up is missed.
            room.as_mut().enable();
            if there_is(&self.0.lock()) {
                return;
            }
            room.await;
        }
    }

    /// Drops audio with this tag or a greater one that the transport has not taken yet, and returns how much it was. At
    /// most one frame and what is in the kernel's buffer cannot be dropped.
    pub fn cut_audio(&self, from: u64) -> Duration {
        let cut = self.0.lock().cut_audio(from);
        self.0.room.notify_waiters();
        cut
    }

    /// Sends what is queued, then a close frame; flushing and the client's answer each have 2 s, then the connection is
    /// reset. Only the first call counts. `code` must be one that may be sent (RFC 6455, section 7.4).
    pub fn close(&self, code: u16, reason: impl Into<String>) {
        let closed = Closed {
            code,
            reason: reason.into(),
            by: ClosedBy::Server,
        };
        self.0.change(|outbox| outbox.close(closed, Instant::now()));
    }
}

/// The response body: yields frames as the transport asks for them.
pub(super) struct Body {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

impl Body {
    pub(super) const fn new(shared: Arc<Shared>, connection: Arc<Connection>) -> Self {
        Self { shared, connection }
    }
}

impl Stream for Body {
    type Item = Result<Bytes, actix_web::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.shared.body.register(context.waker());
        match self.shared.next() {
            Next::Frame(frame) => Poll::Ready(Some(Ok(frame))),
            Next::Wait => Poll::Pending,
            Next::End => {
                self.connection.finish();
                Poll::Ready(None)
            }
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.shared
            .change(|outbox| outbox.transport_gone(Instant::now()));
    }
}
