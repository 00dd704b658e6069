//! A bounded ring buffer between two threads. The writer never waits; the oldest entry is dropped and counted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A bounded ring buffer that drops its oldest entry when it is full.
#[derive(Debug)]
pub struct Ring<T> {
    slots: Mutex<Slots<T>>,
    capacity: usize,
    dropped: AtomicU64,
    ready: Notify,
}

#[derive(Debug)]
struct Slots<T> {
    waiting: VecDeque<T>,
    ended: bool,
}

impl<T> Ring<T> {
    /// A ring of so many places.
    pub fn new(capacity: usize) -> Self {
        let slots = Slots {
            waiting: VecDeque::with_capacity(capacity),
            ended: false,
        };
        Self {
            slots: Mutex::new(slots),
            capacity,
            dropped: AtomicU64::new(0),
            ready: Notify::new(),
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots<T>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes; nothing after the end.
    pub fn push(&self, item: T) {
        let mut slots = self.slots();
        if slots.ended {
            return;
        }
        if slots.waiting.len() == self.capacity {
            slots.waiting.pop_front();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        slots.waiting.push_back(item);
        drop(slots);
        self.ready.notify_one();
    }

    /// The oldest.
    pub fn pop(&self) -> Option<T> {
        self.slots().waiting.pop_front()
    }

    /// The oldest, as soon as there is one; `None` at the end.
    pub async fn next(&self) -> Option<T> {
        loop {
            let ready = self.ready.notified();
            {
                let mut slots = self.slots();
                if let Some(item) = slots.waiting.pop_front() {
                    return Some(item);
                }
                if slots.ended {
                    return None;
                }
            }
            ready.await;
        }
    }

    /// Nothing comes any more.
    pub fn end(&self) {
        self.slots().ended = true;
        self.ready.notify_one();
    }

    /// Whether it ended and is empty.
    pub fn ended(&self) -> bool {
        let slots = self.slots();
        slots.ended && slots.waiting.is_empty()
    }

    /// What was lost.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts something that was lost elsewhere.
    pub fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room_and_is_counted() {
        let ring = Ring::new(3);
        (0..5).for_each(|n| ring.push(n));
        assert_eq!(
            std::iter::from_fn(|| ring.pop()).collect::<Vec<_>>(),
            [2, 3, 4]
        );
        assert_eq!(ring.dropped(), 2);
    }

    #[tokio::test]
    async fn what_is_left_is_read_before_the_end() {
        let ring = std::sync::Arc::new(Ring::new(3));
        let reader = std::sync::Arc::clone(&ring);
        let reading = tokio::spawn(async move { (reader.next().await, reader.next().await) });
        ring.push(1);
        ring.end();
        ring.push(2);
        assert_eq!(reading.await.unwrap(), (Some(1), None));
        assert!(ring.ended());
    }
}
