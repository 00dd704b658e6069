//! `/sip/…`: calls and transfers, and hooks. Each has its own file; the routes are listed in the crate's root.

pub mod calls;
pub mod hooks;
