//! The data messages for one participant of this process, from the rooms' thread to its task. They are bounded by bytes, not
//! by number: thousands of short messages at once are nothing, and a burst of them must not cost a session the one that
//! matters. Where they are too much all the same, lossy messages go first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

/// Bytes that wait for one participant.
const MOST_BYTES: usize = 4 << 20;
/// Beyond so many, lossy messages are left out.
const MOST_BYTES_WITH_LOSSY: usize = MOST_BYTES / 4;
/// What a message counts for besides its bytes: empty ones take memory, too.
const OVERHEAD_BYTES: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Messages {
    queue: Mutex<Queue>,
    pushed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Bytes, bool)>,
    bytes: usize,
    /// Of lossy ones.
    lossy: usize,
}

impl Messages {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message; `false` if a reliable one finds no room. Never waits.
    pub fn push(&self, message: Bytes, reliable: bool) -> bool {
        let taken = self.queue().push(message, reliable);
        self.pushed.notify_one();
        taken || !reliable
    }

    /// The next message, and whether it is a reliable one. Cancel safe.
    pub async fn next(&self) -> (Bytes, bool) {
        loop {
            if let Some(next) = self.queue().pop() {
                return next;
            }
            self.pushed.notified().await;
        }
    }
}

impl Queue {
    /// Whether the message was queued.
    fn push(&mut self, message: Bytes, reliable: bool) -> bool {
        let size = message.len() + OVERHEAD_BYTES;
        if !reliable && self.bytes + size > MOST_BYTES_WITH_LOSSY {
            return false;
        }
        if self.bytes + size > MOST_BYTES && self.lossy > 0 {
            self.waiting.retain(|(_, reliable)| *reliable);
            let sizes = self
                .waiting
                .iter()
                .map(|(message, _)| message.len() + OVERHEAD_BYTES);
            (self.bytes, self.lossy) = (sizes.sum(), 0);
        }
        if self.bytes + size > MOST_BYTES {
            return false;
        }
        self.bytes += size;
        self.lossy += usize::from(!reliable);
        self.waiting.push_back((message, reliable));
        true
    }

    fn pop(&mut self) -> Option<(Bytes, bool)> {
        let (message, reliable) = self.waiting.pop_front()?;
        self.bytes -= message.len() + OVERHEAD_BYTES;
        self.lossy -= usize::from(!reliable);
        Some((message, reliable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> Bytes {
        vec![7; bytes].into()
    }

    #[test]
    fn thousands_of_short_messages_wait_and_bytes_are_bounded() {
        let mut queue = Queue::default();
        for _ in 0..20_000 {
            assert!(queue.push(message(100), true));
        }
        while queue.push(message(60_000), true) {}
        assert!((MOST_BYTES - 61_000..=MOST_BYTES).contains(&queue.bytes));
        while queue.pop().is_some() {}
        assert_eq!((queue.bytes, queue.lossy), (0, 0));
    }

    #[test]
    fn lossy_messages_make_room_for_reliable_ones() {
        let mut queue = Queue::default();
        while queue.push(message(10_000), false) {}
        assert!(queue.bytes <= MOST_BYTES_WITH_LOSSY);
        let mut reliable = 0;
        while queue.push(message(10_000), true) {
            reliable += 1;
        }
        assert_eq!(reliable, MOST_BYTES / (10_000 + OVERHEAD_BYTES));
        assert_eq!(queue.lossy, 0);
        assert!(queue.pop().is_some_and(|(_, reliable)| reliable));
    }
}
