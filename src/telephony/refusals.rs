//! The inbound calls that were refused lately, for those who look for a call that never came. They are few and bounded: who
//! calls again and again is one entry that counts.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::ladder::Ladder;
use super::random;
use vivavoce_auth::Owner;
use vivavoce_seams::rooms::telephone::{CallTrace, Direction, RefusedCall, TraceState};
use vivavoce_telemetry::metrics;

/// The most entries.
const MOST: usize = 200;
/// The longest number or user that is kept.
const MOST_CHARS: usize = 64;

/// How often the ladder of an entry is replaced by that of the same call once more.
const LADDERS: Duration = Duration::from_secs(1);

/// The refused calls; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<VecDeque<Entry>>>);

#[derive(Debug, Clone)]
struct Entry {
    call: RefusedCall,
    owner: Option<Owner>,
    ladder: Ladder,
    drawn_at: SystemTime,
}

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
    /// Whose call it would have been, where that is known.
    pub owner: Option<&'a Owner>,
}

impl Refusals {
    fn list(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call is refused. Its ladder is asked for unless the same was refused a moment ago.
    pub fn note(&self, refused: Refused<'_>, now: SystemTime, ladder: impl FnOnce() -> Ladder) {
        metrics::sip_call_refused(refused.status);
        let source = refused.source.to_canonical().to_string();
        let cut = |text: &str| -> String { text.chars().take(MOST_CHARS).collect() };
        let mut list = self.list();
        let same = |Entry { call, owner, .. }: &Entry| {
            call.source == source
                && call.status == refused.status
                && call.reason == refused.reason
                && call.from == refused.from
                && call.to == refused.to
                && owner.as_ref() == refused.owner
        };
        let mut entry = match list.iter().position(same) {
            Some(place) => list.remove(place),
            None => None,
        };
        let age = entry
            .as_ref()
            .map(|entry| now.duration_since(entry.drawn_at));
        let is_drawn = matches!(age, Some(Ok(age)) if age < LADDERS);
        let entry = entry.get_or_insert_with(|| Entry {
            call: RefusedCall {
                trace_id: format!("SRF_{:012x}", random::u64() >> 16),
                at: now,
                source: source.clone(),
                from: cut(refused.from),
                to: cut(refused.to),
                status: refused.status,
                reason: refused.reason.to_owned(),
                times: 0,
            },
            owner: refused.owner.cloned(),
            ladder: Ladder::default(),
            drawn_at: now,
        });
        entry.call.at = now;
        entry.call.times += 1;
        if !is_drawn {
            entry.ladder = ladder();
            entry.drawn_at = now;
        }
        if list.len() >= MOST {
            list.pop_front();
        }
        list.push_back(entry.clone());
    }

    /// The refused calls, the newest last.
    pub fn all(&self) -> Vec<RefusedCall> {
        self.list().iter().map(|entry| entry.call.clone()).collect()
    }

    /// Their traces without messages, the newest last.
    pub fn traces(&self) -> Vec<CallTrace> {
        self.list().iter().map(Entry::trace).collect()
    }

    /// The trace of this id.
    pub fn trace(&self, id: &str) -> Option<CallTrace> {
        let list = self.list();
        let entry = list.iter().find(|entry| entry.call.trace_id == id)?;
        let (messages, left_out) = entry.ladder.messages();
        Some(CallTrace {
            messages,
            left_out,
            ..entry.trace()
        })
    }
}

impl Entry {
    fn trace(&self) -> CallTrace {
        CallTrace {
            id: self.call.trace_id.clone(),
            state: TraceState::Refused,
            direction: Direction::Inbound,
            owner: self.owner.clone(),
            at: self.call.at,
            room: String::new(),
            identity: String::new(),
            status: Some(self.call.status),
            reason: self.call.reason.clone(),
            times: self.call.times,
            seen: self.ladder.len(),
            left_out: 0,
            messages: Vec::new(),
        }
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
                owner: None,
            };
            refusals.note(refused, now, Ladder::default);
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
