//! Threads for media tasks that belong to no session: egresses and mixes of rooms.

use std::sync::{Mutex, PoisonError};

use actix::{Arbiter, ArbiterHandle};

/// So many threads, each started when it is first needed, taken in turn.
pub(crate) struct Threads {
    most: usize,
    started: Mutex<(Vec<ArbiterHandle>, usize)>,
}

impl Threads {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            started: Mutex::default(),
        }
    }

    /// The next one. Must be called in an actor system.
    pub(crate) fn next(&self) -> ArbiterHandle {
        let mut guard = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        let (started, next) = &mut *guard;
        if started.len() < self.most {
            let thread = Arbiter::new().handle();
            started.push(thread.clone());
            return thread;
        }
        *next = (*next + 1) % started.len();
        started.get(*next).cloned().unwrap_or_else(Arbiter::current)
    }
}
