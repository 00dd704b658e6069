//! The words of calls whose telephone listens to who has answered: what the session's recognisers understand of such a call is
//! passed on to it. Nothing happens in rooms without one.

use std::cell::{Cell, RefCell};

use actix::prelude::*;
use livekit_protocol::ParticipantInfo;

use crate::registry::calls::{CallRegistry, HearWords};
use vivavoce_seams::rooms::telephone::{CallOf, attribute, is_on_the_phone};

/// The longest text that is passed on, in bytes: who has answered is known long before.
const MOST_BYTES: usize = 1_024;

/// Shared by the session, its room and its transcribers, which are on one thread.
pub struct AnswerWords {
    room: String,
    registry: Option<Addr<CallRegistry>>,
    /// The calls that listen.
    calls: RefCell<Vec<CallOf>>,
    /// How many others are in the room.
    others: Cell<usize>,
}

impl AnswerWords {
    /// Those of a room.
    pub const fn new(room: String, registry: Option<Addr<CallRegistry>>) -> Self {
        Self {
            room,
            registry,
            calls: RefCell::new(Vec::new()),
            others: Cell::new(0),
        }
    }

    /// A participant has joined, or is another now; with them there are so many.
    pub(super) fn there(&self, info: &ParticipantInfo, others: usize) {
        self.others.set(others);
        if !is_on_the_phone(info) {
            return;
        }
        let listens = info.attributes.get(attribute::CLASSIFIES);
        let mut calls = self.calls.borrow_mut();
        calls.retain(|call| call.identity != info.identity);
        if listens.is_some_and(|value| value == "true") {
            calls.push(CallOf::participant(&self.room, info));
        }
    }

    /// A participant has left, and so many have not.
    pub(super) fn gone(&self, identity: &str, others: usize) {
        self.others.set(others);
        self.calls
            .borrow_mut()
            .retain(|call| call.identity != identity);
    }

    /// This was understood of what a participant has said; where nobody knows of whom, it is the call's that is alone with the
    /// session.
    pub fn heard(&self, identity: Option<&str>, text: &str) {
        let calls = self.calls.borrow();
        let call = match identity {
            Some(identity) => calls.iter().find(|call| call.identity == identity),
            None => calls.first().filter(|_| self.others.get() == 1),
        };
        if let (Some(call), Some(registry), 1..=MOST_BYTES) = (call, &self.registry, text.len()) {
            let words = HearWords {
                call: call.clone(),
                text: text.to_owned(),
            };
            // The next words tell more.
            let _full = registry.try_send(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::participant_info::Kind;

    use super::*;

    #[test]
    fn words_are_of_the_call_that_is_alone_with_the_session_or_named() {
        let phone = |identity: &str| ParticipantInfo {
            identity: identity.to_owned(),
            kind: Kind::Sip as i32,
            attributes: [(attribute::CLASSIFIES.to_owned(), "true".to_owned())].into(),
            ..Default::default()
        };
        let words = AnswerWords::new("line".to_owned(), None);
        words.there(&phone("ann"), 1);
        words.there(&phone("ann"), 1);
        assert_eq!(words.calls.borrow().len(), 1);
        words.heard(None, "hello");
        words.gone("ann", 0);
        assert!(words.calls.borrow().is_empty());
    }
}
