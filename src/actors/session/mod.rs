//! One session: what its socket asked for, what it hears and what it says. Each file below is one of its state
//! machines or the actor that joins them.

pub mod messages;
pub mod playback;
pub mod turn;
