//! `/sip/…`: calls and transfers, queues, hooks, and traces. Each has its own file; the routes are listed in the crate's root.

pub mod calls;
pub mod hooks;
pub mod queues;
pub mod traces;
