//! The provider's end of a [`RoomLink`]: reads what is to be sent and requested, and reports events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::sync::{Notify, mpsc};

use super::ring::Ring;
use super::{
    Ending, Forms, Frame, Join, LinkControl, LinkEvent, LinkEvents, Listen, MESSAGE_BYTES,
    Outgoing, Packet, PublishSink, Relay, RoomLink, SendError, TrackAudio, UNREAD_BYTES,
    WAITING_BYTES, WAITING_EVENTS, WAITING_FRAMES, WAITING_PACKETS,
};

/// What a link wants, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// Whether the published track is muted.
    pub muted: bool,
    /// Whom to hear.
    pub listen: Listen,
    /// Attributes that were changed since the joining, as they shall be.
    pub attributes: BTreeMap<String, String>,
    /// Whether it is to leave.
    pub left: bool,
}

/// Why an end is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// A frame or a message waits.
    Media,
    /// [`Wishes`] have changed.
    Wishes,
}

type Wake = Box<dyn Fn(Woken) + Send + Sync>;

/// What both ends hold.
pub(super) struct Shared {
    pub(super) frames: Ring<Frame>,
    /// See [`Forms`].
    opus: AtomicBool,
    redundancy: AtomicBool,
    pcm: AtomicBool,
    messages: Mutex<Messages>,
    wishes: Mutex<Wishes>,
    relays: Mutex<Relays>,
    ending: OnceLock<Ending>,
    over: Notify,
    is_over: AtomicBool,
    wake: Wake,
    /// Bytes of messages among the events that wait to be read, and a sign that events were read.
    pub(super) unread_bytes: AtomicUsize,
    pub(super) read: Notify,
    /// Whether [`Woken::Media`] was said and nothing was taken since.
    woken: AtomicBool,
}

/// Weak: each side of a relay would keep the other otherwise.
#[derive(Debug, Default)]
struct Relays {
    /// Where this participant takes what is relayed, and where it relays to.
    own: Option<Weak<dyn Relay>>,
    other: Option<Weak<dyn Relay>>,
}

#[derive(Debug, Default)]
struct Messages {
    waiting: VecDeque<Outgoing>,
    bytes: usize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("wishes", &self.wishes)
            .field("ending", &self.ending)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn push_frame(&self, frame: Frame) {
        // What is said while the track is muted must not wait until it is not.
        if lock(&self.wishes).muted {
            return;
        }
        self.frames.push(frame);
        self.wake_media();
    }

    pub(super) fn wanted(&self) -> Forms {
        Forms {
            opus: self.opus.load(Ordering::Acquire),
            redundancy: self.redundancy.load(Ordering::Acquire),
            pcm: self.pcm.load(Ordering::Acquire),
        }
    }

    pub(super) fn accept_relayed(&self, relay: Weak<dyn Relay>) {
        lock(&self.relays).own = Some(relay);
    }

    pub(super) fn relay(&self) -> Option<Arc<dyn Relay>> {
        let relay = lock(&self.relays).other.as_ref()?.upgrade()?;
        (!lock(&self.wishes).muted).then_some(relay)
    }

    pub(super) fn push_message(&self, message: Outgoing) -> Result<(), SendError> {
        let bytes = message.bytes();
        if bytes > MESSAGE_BYTES {
            return Err(SendError::TooLarge);
        }
        if self.ending.get().is_some() {
            return Err(SendError::Ended);
        }
        let mut messages = lock(&self.messages);
        if messages.bytes + bytes > WAITING_BYTES {
            return Err(SendError::Full);
        }
        messages.bytes += bytes;
        messages.waiting.push_back(message);
        drop(messages);
        self.wake_media();
        Ok(())
    }

    fn wake_media(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            (self.wake)(Woken::Media);
        }
    }

    pub(super) fn wish(&self, change: impl FnOnce(&mut Wishes)) {
        change(&mut lock(&self.wishes));
        (self.wake)(Woken::Wishes);
    }

    pub(super) fn ending(&self) -> Option<Ending> {
        self.ending.get().cloned()
    }

    pub(super) async fn ended(&self) {
        loop {
            let over = self.over.notified();
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            over.await;
        }
    }
}

/// A link and its end. `wake` is called from any thread when there is something to do; it must not wait.
pub fn pair(join: &Join, wake: impl Fn(Woken) + Send + Sync + 'static) -> (RoomLink, LinkEnd) {
    let (events, queue) = mpsc::channel(WAITING_EVENTS);
    let wishes = Wishes {
        muted: false,
        listen: join.listen.clone(),
        attributes: BTreeMap::new(),
        left: false,
    };
    let shared = Arc::new(Shared {
        frames: Ring::new(WAITING_FRAMES),
        opus: AtomicBool::new(true),
        redundancy: AtomicBool::new(true),
        pcm: AtomicBool::new(false),
        messages: Mutex::default(),
        wishes: Mutex::new(wishes),
        relays: Mutex::default(),
        ending: OnceLock::new(),
        over: Notify::new(),
        is_over: AtomicBool::new(false),
        wake: Box::new(wake),
        unread_bytes: AtomicUsize::new(0),
        read: Notify::new(),
        woken: AtomicBool::new(false),
    });
    let link = RoomLink {
        events: LinkEvents {
            queue,
            shared: Arc::clone(&shared),
            told_end: false,
        },
        publish: PublishSink {
            shared: Arc::clone(&shared),
        },
        control: LinkControl {
            shared: Arc::clone(&shared),
        },
    };
    let end = LinkEnd(Arc::new(Inner { shared, events }));
    (link, end)
}

/// The provider's end of a link. The link ends when all clones are dropped; unless [`Self::end`] was called, it counts as lost.
#[derive(Debug, Clone)]
pub struct LinkEnd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    events: mpsc::Sender<LinkEvent>,
}

impl LinkEnd {
    /// What is wished now.
    pub fn wishes(&self) -> Wishes {
        lock(&self.0.shared.wishes).clone()
    }

    /// The server muted the published track, or ended that; until somebody wishes otherwise it stays so.
    pub fn muted_by_server(&self, muted: bool) {
        lock(&self.0.shared.wishes).muted = muted;
    }

    /// To be called before frames and messages are taken, so that the next ones wake again.
    pub fn awake(&self) {
        self.0.shared.woken.store(false, Ordering::Release);
    }

    /// The next frame to be sent.
    pub fn next_frame(&self) -> Option<Frame> {
        self.0.shared.frames.pop()
    }

    /// How frames are wanted from now on: as Opus with redundancy, until this says otherwise.
    pub fn want(&self, wanted: Forms) {
        let shared = &self.0.shared;
        shared.opus.store(wanted.opus, Ordering::Release);
        shared
            .redundancy
            .store(wanted.redundancy, Ordering::Release);
        shared.pcm.store(wanted.pcm, Ordering::Release);
    }

    /// Where the participant takes what is relayed.
    pub fn relay(&self) -> Option<Weak<dyn Relay>> {
        lock(&self.0.shared.relays).own.clone()
    }

    /// Who takes what this participant relays in place of its frames: see [`PublishSink::relay`].
    pub fn relay_to(&self, other: Option<Weak<dyn Relay>>) {
        lock(&self.0.shared.relays).other = other;
    }

    /// Counts a frame that was taken and could not be sent.
    pub fn frame_lost(&self) {
        self.0.shared.frames.count_dropped();
    }

    /// The next message to be sent.
    pub fn next_message(&self) -> Option<Outgoing> {
        let mut messages = lock(&self.0.shared.messages);
        let message = messages.waiting.pop_front()?;
        messages.bytes -= message.bytes();
        Some(message)
    }

    /// Tells what happened. `false` when the link is over: nobody reads, or not fast enough, in which case it is ended.
    /// A message that may be lost is lost before anything else.
    pub fn tell(&self, event: LinkEvent) -> bool {
        let loseable = matches!(&event, LinkEvent::Message(message) if !message.reliable);
        if loseable && self.0.events.capacity() < WAITING_EVENTS / 4 {
            return true;
        }
        let bytes = event.bytes();
        let unread = &self.0.shared.unread_bytes;
        // Counted before the reader can have it.
        unread.fetch_add(bytes, Ordering::AcqRel);
        match self.0.events.try_send(event) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                unread.fetch_sub(bytes, Ordering::AcqRel);
                let _ = self.0.shared.ending.set(Ending::Overrun);
                false
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    /// Waits until a further message takes no place from other events. For one caller at a time; cancel safe.
    pub async fn takes_messages(&self) {
        let (events, shared) = (&self.0.events, &self.0.shared);
        while events.capacity() < WAITING_EVENTS / 2
            || shared.unread_bytes.load(Ordering::Acquire) > UNREAD_BYTES
        {
            tokio::select! {
                () = shared.read.notified() => {}
                () = events.closed() => return,
            }
        }
    }

    /// A track that can be heard: its writer, and the reader for [`LinkEvent::TrackSubscribed`].
    pub fn track() -> (TrackWriter, TrackAudio) {
        let ring = Arc::new(Ring::new(WAITING_PACKETS));
        let writer = TrackWriter {
            ring: Arc::clone(&ring),
        };
        (writer, TrackAudio { ring })
    }

    /// Says why the link ends. The first reason counts.
    pub fn end(&self, ending: Ending) {
        let _ = self.0.shared.ending.set(ending);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let lost = || Ending::Network("it ended without a word".to_owned());
        let _ = self.shared.ending.get_or_init(lost);
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.over.notify_waiters();
    }
}

/// Writes the packets of a subscribed track; dropping it ends the track.
#[derive(Debug)]
pub struct TrackWriter {
    ring: Arc<Ring<Packet>>,
}

impl TrackWriter {
    /// A packet that arrived.
    pub fn write(&self, packet: Packet) {
        self.ring.push(packet);
    }
}

impl Drop for TrackWriter {
    fn drop(&mut self) {
        self.ring.end();
    }
}
