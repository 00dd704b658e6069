//! Queues of outgoing signalling messages. A message is encoded once and shared by all its receivers. Queued bytes are
//! limited per client, per room and in total. A message that describes a current state, such as a participant's, replaces
//! an earlier one that is still queued.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::{ParticipantKey, limits};

/// The subject of a message of which only the newest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// The state of a present participant. That it has left is a message of its own.
    Participant(ParticipantKey),
    /// The state of the room.
    Room,
    /// The receiver's token.
    Token,
}

/// A counter of held bytes. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Held(Arc<AtomicUsize>);

impl Held {
    /// The current count.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// An encoded message.
#[derive(Debug)]
pub struct Told {
    /// As it is sent.
    pub bytes: Bytes,
    topic: Option<Topic>,
    held: [Held; 2],
}

impl Told {
    /// A message that counts as held until the last receiver has dropped it.
    pub fn new(bytes: Bytes, topic: Option<Topic>, held: [Held; 2]) -> Arc<Self> {
        for held in &held {
            held.0.fetch_add(bytes.len(), Ordering::Relaxed);
        }
        Arc::new(Self { bytes, topic, held })
    }

    /// Whether a limit is exceeded: that of its room, or that of the server.
    pub fn overfull(&self) -> Option<Overfull> {
        let [room, server] = &self.held;
        if server.bytes() > limits::SERVER_WAITING_BYTES {
            Some(Overfull::Server)
        } else if room.bytes() > limits::ROOM_WAITING_BYTES {
            Some(Overfull::Room)
        } else {
            None
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        for held in &self.held {
            held.0.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        }
    }
}

/// The limit that is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overfull {
    /// Of one room.
    Room,
    /// Of the server.
    Server,
}

/// The queue of one client.
#[derive(Debug, Default)]
pub struct Outbound {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Arc<Told>>,
    /// Messages taken so far: the number of the first one queued.
    taken: u64,
    /// Numbers of the messages that the next one with the same topic replaces.
    newest: HashMap<Topic, u64>,
    bytes: usize,
    closed: bool,
}

/// The result of queueing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// It is queued.
    Queued,
    /// It has replaced an earlier one.
    Replaced,
    /// The client is too far behind: its queue is closed.
    TooFarBehind,
}

impl Outbound {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message.
    pub fn push(&self, told: Arc<Told>) -> Pushed {
        let pushed = self.queue().push(told);
        self.changed.notify_one();
        pushed
    }

    /// Closes the queue; what is queued is still sent.
    pub fn close(&self) {
        self.queue().closed = true;
        self.changed.notify_one();
    }

    /// The reader is gone.
    pub fn abandon(&self) {
        *self.queue() = Queue {
            closed: true,
            ..Queue::default()
        };
    }

    /// Queued bytes.
    pub fn bytes(&self) -> usize {
        self.queue().bytes
    }

    /// The next message; `None` after the last. Cancel safe.
    pub async fn next(&self) -> Option<Bytes> {
        loop {
            {
                let mut queue = self.queue();
                if let Some(told) = queue.pop() {
                    return Some(told.bytes.clone());
                }
                if queue.closed {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }
}

impl Queue {
    fn push(&mut self, told: Arc<Told>) -> Pushed {
        if self.closed {
            return Pushed::Queued;
        }
        if let Some(place) = told.topic.and_then(|topic| self.place(topic)) {
            let (now, older) = (told.bytes.len(), std::mem::replace(place, told));
            self.bytes = self.bytes + now - older.bytes.len();
            return Pushed::Replaced;
        }
        let full = self.messages.len() >= limits::WAITING_RESPONSES
            || self.bytes + told.bytes.len() > limits::WAITING_RESPONSE_BYTES;
        if full && !self.messages.is_empty() {
            return Pushed::TooFarBehind;
        }
        if let Some(topic) = told.topic {
            let number = self.taken + self.messages.len() as u64;
            self.newest.insert(topic, number);
        }
        self.bytes += told.bytes.len();
        self.messages.push_back(told);
        Pushed::Queued
    }

    /// The queued message that the next one of this topic replaces.
    fn place(&mut self, topic: Topic) -> Option<&mut Arc<Told>> {
        let number = self.newest.get(&topic)?.checked_sub(self.taken)?;
        self.messages.get_mut(usize::try_from(number).ok()?)
    }

    fn pop(&mut self) -> Option<Arc<Told>> {
        let told = self.messages.pop_front()?;
        if let Some(topic) = told.topic {
            self.newest.remove(&topic);
        }
        self.taken += 1;
        self.bytes -= told.bytes.len();
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &'static str, topic: Option<Topic>) -> Arc<Told> {
        Told::new(
            Bytes::from_static(text.as_bytes()),
            topic,
            Default::default(),
        )
    }

    async fn all(outbound: &Outbound) -> Vec<Bytes> {
        outbound.close();
        let mut all = Vec::new();
        while let Some(bytes) = outbound.next().await {
            all.push(bytes);
        }
        all
    }

    #[tokio::test]
    async fn of_what_is_told_of_one_participant_the_newest_waits_where_the_oldest_did() {
        let outbound = Outbound::default();
        let (alice, bob) = (ParticipantKey(1), ParticipantKey(2));
        let about = |who| Some(Topic::Participant(who));
        assert_eq!(outbound.push(told("a1", about(alice))), Pushed::Queued);
        outbound.push(told("answer", None));
        outbound.push(told("b1", about(bob)));
        assert_eq!(
            outbound.push(told("a2 longer", about(alice))),
            Pushed::Replaced
        );
        assert_eq!(outbound.bytes(), 17);
        assert_eq!(outbound.next().await.unwrap(), "a2 longer");
        // A message that was taken is no longer replaced.
        assert_eq!(outbound.push(told("a3", about(alice))), Pushed::Queued);
        assert_eq!(all(&outbound).await, ["answer", "b1", "a3"]);
    }

    #[tokio::test]
    async fn whoever_does_not_read_holds_a_bounded_number_of_messages_and_bytes() {
        let outbound = Outbound::default();
        let pushed = (0..5_000).map(|_| outbound.push(told("x", None)));
        let queued = pushed.filter(|pushed| *pushed == Pushed::Queued).count();
        assert_eq!(queued, limits::WAITING_RESPONSES);
        let outbound = Outbound::default();
        let large = || Told::new(vec![0; 3 << 20].into(), None, Default::default());
        assert_eq!(outbound.push(large()), Pushed::Queued);
        assert_eq!(outbound.push(large()), Pushed::TooFarBehind);
        assert_eq!(outbound.bytes(), 3 << 20);
    }

    #[tokio::test]
    async fn a_message_for_many_is_held_once_and_until_the_last_has_it() {
        let (room, server) = (Held::default(), Held::default());
        let outbounds: Vec<Outbound> = (0..100).map(|_| Outbound::default()).collect();
        let held = [room.clone(), server.clone()];
        let shared = Told::new(vec![0; 1_000].into(), None, held);
        for outbound in &outbounds {
            outbound.push(Arc::clone(&shared));
        }
        drop(shared);
        assert_eq!((room.bytes(), server.bytes()), (1_000, 1_000));
        for outbound in &outbounds {
            outbound.next().await.unwrap();
        }
        assert_eq!((room.bytes(), server.bytes()), (0, 0));
    }
}
