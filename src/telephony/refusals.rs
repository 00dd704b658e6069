//! The inbound calls that were refused lately, for those who look for a call that never came. They are few and bounded: who
//! calls again and again is one entry that counts.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use vivavoce_seams::rooms::telephone::RefusedCall;

/// The most entries.
const MOST: usize = 200;
/// The longest number or user that is kept.
const MOST_CHARS: usize = 64;

/// The refused calls; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<VecDeque<RefusedCall>>>);

/// A call that is refused.
#[derive(Debug, Clone, Copy)]
pub struct Refused<'a> {
    /// Where it comes from.
    pub source: IpAddr,
    /// The calling number; empty where nobody has looked.
    pub from: &'a str,
    /// The called number.
    pub to: &'a str,
    /// The SIP status that it gets.
    pub status: u16,
    /// Why, for people.
    pub reason: &'a str,
}

impl Refusals {
    fn list(&self) -> MutexGuard<'_, VecDeque<RefusedCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call is refused.
    pub fn note(&self, refused: Refused<'_>, now: SystemTime) {
        let source = refused.source.to_canonical().to_string();
        let cut = |text: &str| -> String { text.chars().take(MOST_CHARS).collect() };
        let mut list = self.list();
        let same = |known: &RefusedCall| {
            known.source == source
                && known.status == refused.status
                && known.reason == refused.reason
                && known.from == refused.from
                && known.to == refused.to
        };
        let mut entry = match list.iter().position(same) {
            Some(place) => list.remove(place),
            None => None,
        }
        .unwrap_or_else(|| RefusedCall {
            at: now,
            source: source.clone(),
            from: cut(refused.from),
            to: cut(refused.to),
            status: refused.status,
            reason: refused.reason.to_owned(),
            times: 0,
        });
        entry.at = now;
        entry.times += 1;
        if list.len() >= MOST {
            list.pop_front();
        }
        list.push_back(entry);
    }

    /// The refused calls, the newest last.
    pub fn all(&self) -> Vec<RefusedCall> {
        self.list().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_calls_again_is_one_entry_and_all_are_bounded() {
        let refusals = Refusals::default();
        let now = SystemTime::now();
        let refused = |to: &str| {
            let refused = Refused {
                source: "192.0.2.1".parse().unwrap(),
                from: "+1",
                to,
                status: 403,
                reason: "why",
            };
            refusals.note(refused, now);
        };
        refused("first");
        refused("second");
        refused("first");
        let all = refusals.all();
        let seen: Vec<_> = all.iter().map(|one| (&*one.to, one.times)).collect();
        assert_eq!(seen, [("second", 1), ("first", 2)]);
        for number in 0..2 * MOST {
            refused(&number.to_string());
        }
        assert_eq!(refusals.all().len(), MOST);
    }
}
