//! `/sip/…`: calls and transfers, and hooks. Each has its own file; the doors themselves are listed in the router.

pub mod calls;
pub mod hooks;
