//! Sessions over `/ws` as a client sees them (protocol, sections 1–3): what is heard, what is said, what is refused,
//! the loading sound, and what one client may not do to others. Only the wire is known here. The socket itself is in `socket_edge`.

pub mod client;
pub mod endurance;
mod hearing;
mod interruption;
mod led;
mod loading;
mod moving;
mod protocol;
pub mod recorded;
pub mod replicas;
pub mod resume;
pub mod sound;
mod speaking;
mod turns;
