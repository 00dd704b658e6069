//! Replicas: several servers behind one load balancer that know each other through Redis.
//!
//! A session runs in the server where it began. A client that comes back after its socket broke may reach another one,
//! which passes the socket on (protocol, section 1, "Resuming"): resume tokens begin with the id of the server that made
//! them, Redis says where that is, and the socket is opened there once more with the client's own credentials. What the
//! client then sends and gets is carried as it is, so that nothing of a session ever exists twice.
//!
//! A server that drains gives its sessions away instead, to whichever replica asks for one: the answer to the socket that is
//! opened there is the session itself, as data, and nothing of it is left where it was. What that data is only the session knows.
//!
//! ```text
//! client ═ws═> another replica ── Redis: where is 3f2a…? ── http://10.0.0.7:8080
//!                    ╚════════════ws, same token══════════════════╝ SessionActor
//! ```
//!
//! # Parts
//!
//! * [`Redis`]: the connection, also for what others share through it.
//! * [`Replicas`]: who this server is, where it is, and where the others are.
//! * [`Passage`], [`forward`]: carry the messages of a socket.

mod connection;
mod forward;
mod registry;

pub use connection::{Redis, SharedError, problem};
pub use forward::{Ended, Passage, forward};
pub use registry::{
    Absent, FORWARDED, Handshake, ROOMS_URL, Replicas, ReplicasError, SUCCESSOR, TAKES_SESSIONS,
};
