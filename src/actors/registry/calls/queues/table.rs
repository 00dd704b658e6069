//! Who waits in which queue, in the order in which they came. Telephones, rooms and time are left to the tasks that wait with the
//! callers.

use std::collections::HashMap;

use vivavoce_auth::TenantId;

/// A queue: its name among those of its owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueOf {
    /// `None` is the operator.
    pub tenant: Option<TenantId>,
    pub name: String,
}

impl QueueOf {
    /// As [`Self::named`] wants it.
    pub const PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";

    /// Validates a name: 1–64 characters of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit.
    pub fn named(tenant: Option<TenantId>, name: String) -> Option<Self> {
        let allowed = |sign: u8| sign.is_ascii_alphanumeric() || b"._-".contains(&sign);
        let valid = (1..=64).contains(&name.len())
            && name.bytes().all(allowed)
            && name.starts_with(|first: char| first.is_ascii_alphanumeric());
        valid.then_some(Self { tenant, name })
    }
}

/// What bounds the queues.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Callers in one queue.
    pub calls: usize,
    /// Queues of one owner in which somebody waits.
    pub queues: usize,
}

/// Why a caller cannot wait in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// It waits already.
    #[error("the call waits in a queue")]
    Waits,
    /// The queue has as many as it may.
    #[error("queue_name: as many wait in this queue as may (sip.queue_max_calls)")]
    Queue,
    /// There are as many queues as there may be.
    #[error("queue_name: there are as many queues as there may be (sip.queue_max_queues)")]
    Queues,
}

/// Where somebody is in their queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// So many are there before, this one included.
    Waiting(u32),
    /// Somebody takes the call.
    Connecting,
}

#[derive(Debug)]
struct Entry<T> {
    sip_call_id: String,
    connecting: bool,
    with: T,
}

/// The queues in which somebody waits, and what is kept with each caller.
#[derive(Debug)]
pub struct Table<T>(HashMap<QueueOf, Vec<Entry<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Table<T> {
    /// A caller joins a queue as its last.
    pub fn enter(
        &mut self,
        queue: QueueOf,
        sip_call_id: &str,
        limits: Limits,
        with: T,
    ) -> Result<(), NoPlace> {
        if self.place(sip_call_id).is_some() {
            return Err(NoPlace::Waits);
        }
        let theirs = self.0.keys().filter(|other| other.tenant == queue.tenant);
        let is_there = self.0.contains_key(&queue);
        if !is_there && theirs.count() >= limits.queues {
            return Err(NoPlace::Queues);
        }
        let waiting = self.0.entry(queue).or_default();
        if waiting.len() >= limits.calls {
            return Err(NoPlace::Queue);
        }
        waiting.push(Entry {
            sip_call_id: sip_call_id.to_owned(),
            connecting: false,
            with,
        });
        Ok(())
    }

    /// A caller is in no queue any more; those behind move up.
    pub fn leave(&mut self, sip_call_id: &str) {
        self.0.retain(|_, waiting| {
            waiting.retain(|entry| entry.sip_call_id != sip_call_id);
            !waiting.is_empty()
        });
    }

    /// The one who waits longest is being connected from now on.
    pub fn next(&mut self, queue: &QueueOf) -> Option<&T> {
        let waiting = self.0.get_mut(queue)?;
        let first = waiting.iter_mut().find(|entry| !entry.connecting)?;
        first.connecting = true;
        Some(&first.with)
    }

    /// A caller who was to be connected waits again, before all who came later.
    pub fn back(&mut self, sip_call_id: &str) {
        let mut entries = self.0.values_mut().flatten();
        if let Some(entry) = entries.find(|entry| entry.sip_call_id == sip_call_id) {
            entry.connecting = false;
        }
    }

    /// What is kept with a caller.
    pub fn find(&mut self, sip_call_id: &str) -> Option<&mut T> {
        let mut entries = self.0.values_mut().flatten();
        let entry = entries.find(|entry| entry.sip_call_id == sip_call_id);
        entry.map(|entry| &mut entry.with)
    }

    /// Where a caller is.
    pub fn place(&self, sip_call_id: &str) -> Option<Place> {
        let places = self.0.values().flat_map(|waiting| places(waiting));
        let mut theirs = places.filter(|(entry, _)| entry.sip_call_id == sip_call_id);
        theirs.next().map(|(_, place)| place)
    }

    /// Everybody, queue by queue, in order.
    pub fn all(&self) -> impl Iterator<Item = (&QueueOf, &T, Place)> {
        self.0.iter().flat_map(|(queue, waiting)| {
            places(waiting).map(move |(entry, place)| (queue, &entry.with, place))
        })
    }
}

fn places<T>(waiting: &[Entry<T>]) -> impl Iterator<Item = (&Entry<T>, Place)> {
    let mut before = 0;
    waiting.iter().map(move |entry| {
        if entry.connecting {
            return (entry, Place::Connecting);
        }
        before += 1;
        (entry, Place::Waiting(before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        calls: 3,
        queues: 2,
    };

    fn queue(tenant: &str, name: &str) -> QueueOf {
        let tenant = (!tenant.is_empty()).then(|| TenantId::new(tenant).unwrap());
        QueueOf::named(tenant, name.to_owned()).unwrap()
    }

    fn enter(table: &mut Table<&'static str>, to: QueueOf, call: &'static str) -> Option<NoPlace> {
        table.enter(to, call, LIMITS, call).err()
    }

    #[test]
    fn who_came_first_is_taken_first_and_the_others_move_up() {
        let mut table = Table::default();
        let support = queue("", "support");
        for call in ["a", "b", "c"] {
            assert_eq!(enter(&mut table, support.clone(), call), None);
        }
        assert_eq!(table.place("c"), Some(Place::Waiting(3)));
        // One hangs up.
        table.leave("b");
        assert_eq!(table.place("c"), Some(Place::Waiting(2)));
        assert_eq!(table.next(&support), Some(&"a"));
        assert_eq!(table.place("a"), Some(Place::Connecting));
        assert_eq!(table.place("c"), Some(Place::Waiting(1)));
        // Nobody has answered: it is first again.
        table.back("a");
        assert_eq!(table.place("a"), Some(Place::Waiting(1)));
        assert_eq!(table.place("c"), Some(Place::Waiting(2)));
        assert_eq!(table.next(&support), Some(&"a"));
        table.leave("a");
        assert_eq!(table.next(&support), Some(&"c"));
        assert_eq!(table.next(&support), None, "it is being connected");
        table.leave("c");
        assert_eq!(table.all().count(), 0);
        assert!(table.0.is_empty());
    }

    #[test]
    fn queues_and_their_callers_are_bounded_for_each_owner() {
        let mut table = Table::default();
        for call in ["a", "b", "c"] {
            assert_eq!(enter(&mut table, queue("acme", "1"), call), None);
        }
        assert_eq!(
            enter(&mut table, queue("acme", "1"), "d"),
            Some(NoPlace::Queue)
        );
        assert_eq!(
            enter(&mut table, queue("acme", "2"), "a"),
            Some(NoPlace::Waits)
        );
        assert_eq!(enter(&mut table, queue("acme", "2"), "d"), None);
        assert_eq!(
            enter(&mut table, queue("acme", "3"), "e"),
            Some(NoPlace::Queues)
        );
        // Others have their own, under the same name too.
        assert_eq!(enter(&mut table, queue("shop", "1"), "e"), None);
        assert_eq!(enter(&mut table, queue("", "1"), "f"), None);
        assert_eq!(table.next(&queue("shop", "1")), Some(&"e"));
        assert_eq!(table.next(&queue("shop", "2")), None);
        // A queue is there as long as somebody is in it.
        table.leave("d");
        assert_eq!(enter(&mut table, queue("acme", "3"), "d"), None);
    }

    #[test]
    fn a_queue_has_a_name_that_fits_into_a_path() {
        for name in ["support", "7", "a.b_c-d", &"x".repeat(64)] {
            assert!(QueueOf::named(None, name.to_owned()).is_some(), "{name}");
        }
        for name in ["", ".", "-a", "a b", "a/b", "ü", &"x".repeat(65)] {
            assert!(QueueOf::named(None, name.to_owned()).is_none(), "{name}");
        }
    }
}
