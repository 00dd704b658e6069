//! The memory of incomplete messages, over all sockets of a server. Beside it each socket has a small allowance of its
//! own, so that senders of short messages do not depend on what others leave unfinished.

use std::sync::Arc;

use vivavoce_core::party::Party;
use vivavoce_quotas::shared_limit::{Exceeded, Permit, SharedLimit, Size};

/// The allowance: some audio frames, on a connection that delivers them in pieces.
const OWN_BYTES: usize = 32 << 10;

/// The memory that all sockets of a server share.
#[derive(Debug)]
pub struct MessageBudget(Arc<SharedLimit>);

impl MessageBudget {
    /// A budget without shares: first come, first served.
    pub fn new(limit: usize) -> Self {
        Self(SharedLimit::new(Size::undivided(limit)))
    }

    /// A budget of this size, with shares.
    pub fn shared(size: Size) -> Arc<Self> {
        Arc::new(Self(SharedLimit::new(size)))
    }
}

/// The memory of one socket; released when dropped.
#[derive(Debug)]
pub(super) struct Held(Permit);

impl Held {
    /// Nothing yet, counted for `key`.
    pub(super) fn of(budget: &MessageBudget, key: Party) -> Self {
        Self(budget.0.empty(key))
    }

    /// Changes how much the socket holds. After a refusal it is unchanged.
    pub(super) fn set(&mut self, unfinished: usize) -> Result<(), Exceeded> {
        self.0.resize(unfinished.saturating_sub(OWN_BYTES))
    }

    /// The socket holds nothing any more.
    pub(super) fn give_back(&mut self) {
        // Reducing is never refused.
        let _ = self.0.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sockets_together_hold_no_more_than_there_is_and_a_little_each() {
        let budget = MessageBudget::new(100_000);
        let socket = || Held::of(&budget, Party::Operator);
        let (mut first, mut second, mut third) = (socket(), socket(), socket());
        assert_eq!(first.set(OWN_BYTES + 60_000), Ok(()));
        assert_eq!(second.set(OWN_BYTES + 40_001), Err(Exceeded::Total));
        assert_eq!(second.set(OWN_BYTES + 40_000), Ok(()));
        assert_eq!(third.set(OWN_BYTES), Ok(()));
        assert_eq!(third.set(OWN_BYTES + 1), Err(Exceeded::Total));
        first.give_back();
        assert_eq!(third.set(OWN_BYTES + 60_000), Ok(()));
        drop((first, second, third));
        assert_eq!(budget.0.available(), 100_000);
    }
}
