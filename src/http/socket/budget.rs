//! How much memory messages may hold that have begun and are not complete, over all sockets of a server. A socket has a
//! little of its own beside that, so that whoever sends short messages does not depend on what others leave unfinished.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a socket may hold without asking: some frames of sound, on a connection that brings them in pieces.
const OWN_BYTES: usize = 32 << 10;

/// The memory that all sockets of a server share.
#[derive(Debug)]
pub struct MessageBudget {
    limit: usize,
    held: AtomicUsize,
}

impl MessageBudget {
    /// One of so many bytes.
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            held: AtomicUsize::new(0),
        }
    }
}

/// All of it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exhausted;

/// What one socket holds of the budget; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    budget: Arc<MessageBudget>,
    bytes: usize,
}

impl Held {
    pub(super) const fn of(budget: Arc<MessageBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// The socket holds so many bytes from now on, instead of what it held before. After a refusal it has what it had.
    pub(super) fn set(&mut self, unfinished: usize) -> Result<(), Exhausted> {
        let bytes = unfinished.saturating_sub(OWN_BYTES);
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            let limit = self.budget.limit;
            let with_more = |held: usize| held.checked_add(more).filter(|held| *held <= limit);
            let taken = self.budget.held.fetch_update(Relaxed, Relaxed, with_more);
            taken.map_err(|_| Exhausted)?;
        } else {
            self.budget.held.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// The socket holds nothing from now on.
    pub(super) fn give_back(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Relaxed);
        self.bytes = 0;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sockets_together_hold_no_more_than_there_is_and_a_little_each() {
        let budget = Arc::new(MessageBudget::new(100_000));
        let socket = || Held::of(Arc::clone(&budget));
        let (mut first, mut second, mut third) = (socket(), socket(), socket());
        assert_eq!(first.set(OWN_BYTES + 60_000), Ok(()));
        assert_eq!(second.set(OWN_BYTES + 40_001), Err(Exhausted));
        assert_eq!(second.set(OWN_BYTES + 40_000), Ok(()));
        assert_eq!(third.set(OWN_BYTES), Ok(()));
        assert_eq!(third.set(OWN_BYTES + 1), Err(Exhausted));
        first.give_back();
        assert_eq!(third.set(OWN_BYTES + 60_000), Ok(()));
        drop((first, second, third));
        assert_eq!(budget.held.load(Relaxed), 0);
    }
}
