//! One session: who speaks when, and what the client is told of it. The parts that are hard to get right are plain
//! state machines that are handed the time; actors drive them.

pub mod turn;
