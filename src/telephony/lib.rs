//! The embedded bridge: telephone calls by SIP that join the rooms of this process. LiveKit's SIP service, which does the
//! same for its rooms, is spoken to by `providers/livekit`.

pub mod agent;
pub mod allowance;
pub mod bridge;
pub mod call;
pub mod media;
#[cfg(test)]
mod tests;
pub mod trunks;
