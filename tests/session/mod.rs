//! Sessions over `/ws` as a client sees them (protocol, sections 1–3): what is heard, what is said, what is refused, and
//! the loading sound. Only the wire is known here. The socket itself is in `socket_edge`.

mod client;
mod hearing;
mod loading;
mod protocol;
mod sound;
mod speaking;
