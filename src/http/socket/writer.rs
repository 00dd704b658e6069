//! The outgoing side of a socket: a cheap handle that never blocks. What it queues leaves in the same call over a plain
//! connection ([`Wire`]) while the kernel takes it; else, and with TLS, the socket's task takes one frame at a time from the
//! queue, whenever the kernel has accepted the previous one.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use bytestring::ByteString;
use futures_util::Stream;
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::SocketSettings;
use super::backlog::BacklogEntry;
use super::outbox::{Audio, AudioRefused, Closed, ClosedBy, Message, Next, Outbox, Topic};
use super::sent_log::{Again, CannotResume, Missing, SentLog, SentState};
use super::timeline::Timeline;
use super::wire::{SentNow, Wire};
use vivavoce_core::party::Party;

/// The state shared by writer, reader and body.
pub(super) struct Shared {
    /// Locked before the wire.
    outbox: Mutex<Outbox>,
    /// Of a plain connection, as long as it is there.
    wire: Mutex<Option<Wire>>,
    pub(super) body: AtomicWaker,
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
            wire: Mutex::default(),
            body: AtomicWaker::new(),
            closing: Notify::new(),
            room: Notify::new(),
            backlog: BacklogEntry::of(&settings.backlog, party, Weak::clone(this)),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wire(&self) -> MutexGuard<'_, Option<Wire>> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is queued from now on is sent over this at once where the kernel takes it.
    pub(super) fn set_wire(&self, wire: Wire) {
        self.wire().replace(wire);
        self.body.wake();
    }

    /// There is none any more.
    pub(super) fn take_wire(&self) -> Option<Wire> {
        self.wire().take()
    }

    /// Changes the queue, sends what waits if that is possible now, and wakes whoever is waiting.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Outbox) -> T) -> T {
        let (result, closes, sent, waiting) = {
            let mut outbox = self.lock();
            let was_open = outbox.closed().is_none();
            let result = change(&mut outbox);
            let closes = was_open && outbox.closed().is_some();
            let mut wire = self.wire();
            let sent = wire
                .as_mut()
                .map_or(SentNow::NOTHING, |wire| wire.send_now(&mut outbox));
            (result, closes, sent, outbox.settle())
        };
        if !sent.all {
            self.body.wake();
        }
        if closes {
            self.closing.notify_one();
        }
        if closes || sent.any {
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

    /// Sends over the wire until the socket has ended, whatever the kernel did not take at once.
    pub(super) fn poll_send(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.body.register(context.waker());
        loop {
            let (next, waiting) = {
                let mut outbox = self.lock();
                let mut wire = self.wire();
                let Some(wire) = wire.as_mut() else {
                    return Err(io::Error::from(io::ErrorKind::NotConnected)).into();
                };
                ready!(wire.poll_left(context))?;
                let next = outbox.next(Instant::now());
                if let Next::Frame(frame) = &next {
                    wire.take(frame.clone());
                }
                (next, outbox.settle())
            };
            if matches!(next, Next::Frame(_)) {
                self.room.notify_waiters();
            }
            self.count(waiting);
            match next {
                Next::Frame(_) => {}
                Next::Wait => return Poll::Pending,
                Next::End => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Tells the client that nothing more comes.
    pub(super) fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.wire();
        let wire = wire.as_mut();
        wire.map_or(Poll::Ready(Ok(())), |wire| wire.poll_shutdown(context))
    }

    /// The next message, for a client in this process.
    pub(super) fn next_message(&self) -> Option<Message> {
        let (message, waiting) = {
            let mut outbox = self.lock();
            let message = outbox.next_message();
            (message, outbox.settle())
        };
        if message.is_some() {
            self.room.notify_waiters();
        }
        self.count(waiting);
        message
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

/// The most messages of others that are kept for a client that is away.
const MAX_MESSAGES_AWAY: usize = 50;

/// Sends to one client. Clones write to the same socket. Only [`Self::audio_room`] and [`Self::event_room`] wait. What
/// is sent to a closing socket is dropped, unless the client [may come back](Self::keep_sent) with another one.
#[derive(Clone)]
pub struct SocketWriter(Arc<Line>);

/// The way to a client: a socket, or the next one.
struct Line {
    state: Mutex<LineState>,
    /// What was sent over it, whichever socket it was.
    timeline: Timeline,
    /// There is another socket.
    attached: Notify,
}

struct LineState {
    socket: Option<Arc<Shared>>,
    /// What may have to be sent again; `None` where the client does not come back.
    sent: Option<SentLog>,
    /// That of a client that does not come back any more: its numbers go on if it may again.
    former: Option<SentLog>,
    /// How much audio was queued again for the last socket that came, until somebody asks.
    again: Option<Duration>,
    /// Messages of others that were kept while there was no socket.
    messages_away: usize,
}

/// A socket without a session: one that has come for the session of another socket.
pub struct DetachedSocket(Arc<Shared>);

impl LineState {
    /// The socket, unless it has begun to close and another one may come.
    fn open(&self) -> Option<&Arc<Shared>> {
        let is_open =
            |socket: &&Arc<Shared>| self.sent.is_none() || socket.lock().closed().is_none();
        self.socket.as_ref().filter(is_open)
    }

    /// Queues an event, numbered and kept where the client may come back.
    fn event<T>(
        &mut self,
        topic: Option<Topic>,
        text: ByteString,
        queue: impl FnOnce(&mut Outbox, ByteString) -> T,
    ) -> Option<T> {
        let text = match &mut self.sent {
            Some(sent) => sent.event(topic, &text),
            None => text,
        };
        let socket = self.open()?;
        Some(socket.change(|outbox| queue(outbox, text)))
    }
}

impl SocketWriter {
    pub(super) fn new(socket: Arc<Shared>) -> Self {
        Self(Arc::new(Line {
            state: Mutex::new(LineState {
                socket: Some(socket),
                sent: None,
                former: None,
                again: None,
                messages_away: 0,
            }),
            timeline: Timeline::default(),
            attached: Notify::new(),
        }))
    }

    /// What was sent, for whoever watches.
    pub fn timeline(&self) -> &Timeline {
        &self.0.timeline
    }

    /// An event as it goes into the timeline, too.
    fn noted(&self, text: impl Into<ByteString>) -> ByteString {
        let text = text.into();
        self.0.timeline.sent(&text);
        text
    }

    fn line(&self) -> MutexGuard<'_, LineState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the client may come back: from now on events are numbered (`seq`), and kept with the last audio.
    pub fn keep_sent(&self, keep: bool) {
        let mut line = self.line();
        match (keep, line.sent.take()) {
            (true, Some(sent)) => line.sent = Some(sent),
            (true, None) => line.sent = Some(line.former.take().unwrap_or_default()),
            (false, Some(mut sent)) => {
                sent.forget();
                line.former = Some(sent);
            }
            (false, None) => {}
        }
    }

    /// All that was sent, for a server where the client goes on; `None` where it does not come back.
    pub fn sent_state(&self) -> Option<SentState> {
        self.line().sent.as_ref().map(SentLog::state)
    }

    /// Goes on for a client that was sent this by another server.
    pub fn take_sent(&self, state: SentState) {
        self.line().sent = Some(SentLog::of_state(state));
    }

    /// Whether the client may come back.
    pub fn keeps_sent(&self) -> bool {
        self.line().sent.is_some()
    }

    /// Whether the socket has gone and another one may come.
    pub fn is_cut_off(&self) -> bool {
        let line = self.line();
        line.sent.is_some() && line.open().is_none()
    }

    /// How the socket has ended.
    pub fn closed(&self) -> Option<Closed> {
        let line = self.line();
        line.socket.as_ref()?.lock().closed().cloned()
    }

    /// Takes the socket away: what is sent from now on is dropped.
    pub fn unplug(&self) -> Option<DetachedSocket> {
        self.line().socket.take().map(DetachedSocket)
    }

    /// Closes the socket, because another one comes for its session.
    pub fn supersede(&self) {
        if let Some(socket) = &self.line().socket {
            socket.change(|outbox| outbox.supersede(Instant::now()));
        }
    }

    /// Goes on at another socket, with all events after `last_event` and the audio after `received` bytes; without that,
    /// after what the last socket took. Returns how many bytes of audio are missing because they are not kept any more.
    pub fn attach(
        &self,
        plug: DetachedSocket,
        last_event: u64,
        received: Option<u64>,
    ) -> Result<u64, (CannotResume, DetachedSocket)> {
        let mut line = self.line();
        let unsent = line
            .socket
            .as_ref()
            .map_or(0, |socket| socket.lock().audio_waiting());
        let sent = line.sent.get_or_insert_default();
        let Missing { again, lost_bytes } = match sent.again(last_event, received, unsent) {
            Ok(missing) => missing,
            Err(cannot) => return Err((cannot, plug)),
        };
        let DetachedSocket(socket) = plug;
        let now = Instant::now();
        let mut sound = Duration::ZERO;
        for again in again {
            match again {
                Again::Event(text) => socket.change(|outbox| outbox.event(text, now)),
                Again::Sound(audio) => {
                    sound += audio.duration;
                    socket.change(|outbox| outbox.audio_again(audio));
                }
            }
        }
        line.again = Some(sound);
        line.messages_away = 0;
        line.socket = Some(socket);
        drop(line);
        self.0.attached.notify_waiters();
        Ok(lost_bytes)
    }

    /// How much audio the socket that was attached last was sent again, if there is one and nobody has asked yet.
    pub fn take_again(&self) -> Option<Duration> {
        self.line().again.take()
    }

    /// Sends an event (JSON text). If [`super::MAX_EVENTS`] are queued already, the socket closes with 1013.
    pub fn event(&self, text: impl Into<ByteString>) {
        let queue = |outbox: &mut Outbox, text| outbox.event(text, Instant::now());
        let text = self.noted(text);
        self.line().event(None, text, queue);
    }

    /// Sends a message from somebody else; `false` if it was dropped because too much is queued.
    pub fn message(&self, text: impl Into<ByteString>) -> bool {
        let mut line = self.line();
        if line.sent.is_some() && line.open().is_none() {
            // The session's own events must not be pushed out by those of others.
            line.messages_away += 1;
            if line.messages_away > MAX_MESSAGES_AWAY {
                return false;
            }
        }
        let queue = |outbox: &mut Outbox, text| outbox.message(text, Instant::now());
        line.event(None, self.noted(text), queue).unwrap_or(true)
    }

    /// Sends an event that supersedes a queued one of the same `kind`; such events are not counted.
    pub fn latest(&self, kind: &'static str, text: impl Into<ByteString>) {
        let topic = Some(Topic::of_session(kind));
        let queue = |outbox: &mut Outbox, text| outbox.latest(kind, text);
        let text = self.noted(text);
        self.line().event(topic, text, queue);
    }

    /// The same per participant: an event does not supersede that of another participant.
    pub fn latest_about(&self, kind: &'static str, identity: &str, text: impl Into<ByteString>) {
        let topic = Some(Topic::about(kind, identity));
        let queue =
            |outbox: &mut Outbox, text| outbox.latest_about(kind, identity, text, Instant::now());
        let text = self.noted(text);
        self.line().event(topic, text, queue);
    }

    /// Sends an error. While many events are queued, only the latest of further errors is kept, so that a client which
    /// sends invalid messages faster than it reads is not disconnected for that.
    pub fn error(&self, text: impl Into<ByteString>) {
        let queue = |outbox: &mut Outbox, text| outbox.error(text, Instant::now());
        let text = self.noted(text);
        self.line().event(None, text, queue);
    }

    /// Sends audio; if it is refused as full, it may be sent again after [`Self::audio_room`].
    pub fn audio(&self, audio: Audio) -> Result<(), AudioRefused> {
        let mut line = self.line();
        let may_come = line.sent.is_some();
        let Some(socket) = line.open() else {
            let refused = if may_come {
                AudioRefused::Full
            } else {
                AudioRefused::Closed
            };
            return Err(refused);
        };
        let kept = may_come.then(|| audio.clone());
        match socket.change(|outbox| outbox.audio(audio)) {
            // It has closed in this moment.
            Err(AudioRefused::Closed) if may_come => return Err(AudioRefused::Full),
            outcome => outcome?,
        }
        if let (Some(sent), Some(audio)) = (&mut line.sent, kept) {
            sent.sound(&audio);
        }
        Ok(())
    }

    /// Whether audio of this length would be accepted.
    pub fn has_audio_room(&self, sound: Duration) -> bool {
        let line = self.line();
        match line.open() {
            Some(socket) => socket.lock().has_room(sound),
            None => line.sent.is_none(),
        }
    }

    /// Whether few enough events are queued that more may be caused.
    pub fn has_event_room(&self) -> bool {
        let line = self.line();
        let socket = line.socket.as_ref();
        socket.is_none_or(|socket| socket.lock().has_event_room())
    }

    /// Waits until few enough events are queued.
    pub async fn event_room(&self) {
        self.room(Self::has_event_room).await;
    }

    /// Waits until audio of this length would be accepted.
    pub async fn audio_room(&self, sound: Duration) {
        self.room(|writer| writer.has_audio_room(sound)).await;
    }

    async fn room(&self, there_is: impl Fn(&Self) -> bool) {
        loop {
            let socket = self.line().socket.clone();
            let attached = self.0.attached.notified();
            tokio::pin!(attached);
            // Register before checking, so that no wake-up is missed.
            attached.as_mut().enable();
            let Some(socket) = socket else {
                if there_is(self) {
                    return;
                }
                attached.await;
                continue;
            };
            let room = socket.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if there_is(self) {
                return;
            }
            tokio::select! {
                () = room => {}
                () = attached => {}
            }
        }
    }

    /// Drops audio with this tag or a greater one that the transport has not taken yet, and returns how much it was. At
    /// most one frame and what is in the kernel's buffer cannot be dropped.
    pub fn cut_audio(&self, from: u64) -> Duration {
        let mut line = self.line();
        let Some(socket) = line.socket.clone() else {
            return Duration::ZERO;
        };
        let (unsent, cut) = {
            let mut outbox = socket.lock();
            (outbox.audio_waiting(), outbox.cut_audio(from))
        };
        if let Some(sent) = &mut line.sent {
            let gone = sent.cut_sound(from, unsent);
            socket.lock().forget_lost(gone);
        }
        socket.room.notify_waiters();
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
        if let Some(socket) = &self.line().socket {
            socket.change(|outbox| outbox.close(closed, Instant::now()));
        }
    }
}

impl DetachedSocket {
    /// Writes to this socket.
    pub fn writer(&self) -> SocketWriter {
        SocketWriter::new(Arc::clone(&self.0))
    }

    /// Sends an event that says why there is no session for this socket.
    pub fn refuse(self, text: impl Into<ByteString>, reason: &str) {
        self.end_with(text, 4404, reason);
    }

    /// Sends this and nothing else, and closes.
    pub fn end_with(self, text: impl Into<ByteString>, code: u16, reason: &str) {
        let text = text.into();
        let closed = Closed {
            code,
            reason: reason.to_owned(),
            by: ClosedBy::Server,
        };
        let now = Instant::now();
        self.0.change(|outbox| outbox.event(text, now));
        self.0.change(|outbox| outbox.close(closed, now));
    }
}

/// What goes out where there is no [`Wire`]: yields frames as the transport asks for them. When it is dropped, the socket has
/// ended.
pub(super) struct Body(Arc<Shared>);

impl Body {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }
}

impl Stream for Body {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.body.register(context.waker());
        match self.0.next() {
            Next::Frame(frame) => Poll::Ready(Some(frame)),
            Next::Wait => Poll::Pending,
            Next::End => Poll::Ready(None),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.0
            .change(|outbox| outbox.transport_gone(Instant::now()));
    }
}
