//! The outgoing side of a socket: a cheap handle that never blocks, and the response body that takes one frame at a
//! time from the same queue whenever the kernel has taken the one before.

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
use super::backlog::Place;
use super::connection::Connection;
use super::outbox::{Audio, AudioRefused, Closed, ClosedBy, Next, Outbox};
use vivavoce_core::party::Party;

/// What writer, reader and body share.
pub(super) struct Shared {
    outbox: Mutex<Outbox>,
    body: AtomicWaker,
    /// Tells the reader that the socket is closing.
    pub(super) closing: Notify,
    room: Notify,
    /// Where it is counted what waits.
    backlog: Place,
}

impl Shared {
    /// That of a socket which counts for somebody.
    pub(super) fn new(settings: &SocketSettings, party: Party) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            outbox: Mutex::new(Outbox::new(settings.max_buffered_audio)),
            body: AtomicWaker::new(),
            closing: Notify::new(),
            room: Notify::new(),
            backlog: Place::of(&settings.backlog, party, Weak::clone(this)),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue and wakes whom it concerns.
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

    /// What to send now.
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

    /// So many bytes more wait, or fewer. Where that is too much for all sockets together, those are closed that are
    /// furthest behind.
    fn count(&self, bytes: isize) {
        if bytes == 0 {
            return;
        }
        for furthest in self.backlog.change(bytes) {
            furthest.change(|outbox| outbox.fall_behind(Instant::now()));
        }
    }
}

/// Sends to one client. Clones write to the same socket. Nothing here waits, except [`Self::audio_room`]; what is given
/// to a socket that is closing is dropped.
#[derive(Clone)]
pub struct SocketWriter(pub(super) Arc<Shared>);

impl SocketWriter {
    /// Sends an event (JSON text). With [`super::MAX_EVENTS`] waiting already the socket closes with 1013.
    pub fn event(&self, text: impl Into<ByteString>) {
        let text = text.into();
        self.0.change(|outbox| outbox.event(text, Instant::now()));
    }

    /// Sends a message of somebody else; `false` where it was dropped, because much waits already.
    pub fn message(&self, text: impl Into<ByteString>) -> bool {
        let text = text.into();
        self.0.change(|outbox| outbox.message(text, Instant::now()))
    }

    /// Sends an event of which only the latest of its `kind` matters: one that still waits is replaced, and it is not
    /// counted.
    pub fn latest(&self, kind: &'static str, text: impl Into<ByteString>) {
        let text = text.into();
        self.0.change(|outbox| outbox.latest(kind, text));
    }

    /// The same for each participant: an event about one does not replace that of another.
    pub fn latest_about(&self, kind: &'static str, identity: &str, text: impl Into<ByteString>) {
        let text = text.into();
        let now = Instant::now();
        self.0
            .change(|outbox| outbox.latest_about(kind, identity, text, now));
    }

    /// Sends an error. While many events wait already, of those that follow only the latest is kept: whoever sends
    /// nonsense faster than it reads is not cut off for it.
    pub fn error(&self, text: impl Into<ByteString>) {
        let text = text.into();
        self.0.change(|outbox| outbox.error(text, Instant::now()));
    }

    /// Sends audio; when it is refused as full, the same piece may be given again after [`Self::audio_room`].
    pub fn audio(&self, audio: Audio) -> Result<(), AudioRefused> {
        self.0.change(|outbox| outbox.audio(audio))
    }

    /// Whether audio of this length would not be refused as full.
    pub fn has_audio_room(&self, sound: Duration) -> bool {
        self.0.lock().has_room(sound)
    }

    /// Whether few enough events wait that more may be caused.
    pub fn has_event_room(&self) -> bool {
        self.0.lock().has_event_room()
    }

    /// Waits until few enough events wait.
    pub async fn event_room(&self) {
        self.room(Outbox::has_event_room).await;
    }

    /// Waits until audio of this length would not be refused as full.
    pub async fn audio_room(&self, sound: Duration) {
        self.room(|outbox| outbox.has_room(sound)).await;
    }

    async fn room(&self, there_is: impl Fn(&Outbox) -> bool) {
        loop {
            let room = self.0.room.notified();
            tokio::pin!(room);
            // Listening begins before looking, so that nothing is missed in between.
            room.as_mut().enable();
            if there_is(&self.0.lock()) {
                return;
            }
            room.await;
        }
    }

    /// Drops the audio of this tag and greater ones that the transport has not taken yet, and says how much it was. At
    /// most one frame and what the kernel holds unsent are beyond reach.
    pub fn cut_audio(&self, from: u64) -> Duration {
        let cut = self.0.lock().cut_audio(from);
        self.0.room.notify_waiters();
        cut
    }

    /// Sends what waits, then a close frame; each within 2 s, and so the client's answer, else the connection is cut.
    /// Only the first call counts. `code` is one that may be sent (RFC 6455, section 7.4).
    pub fn close(&self, code: u16, reason: impl Into<String>) {
        let closed = Closed {
            code,
            reason: reason.into(),
            by: ClosedBy::Server,
        };
        self.0.change(|outbox| outbox.close(closed, Instant::now()));
    }
}

/// The response body: frames, as the transport asks for them.
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
