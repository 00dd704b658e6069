//! Replacing a running server by another on the same machine, without refusing a connection (`vivavoce serve --takeover`).
//!
//! The former server waits at a Unix socket in the data folder ([`Door`]). The new one asks there for what the former
//! listens at ([`Former::ask`]) and gets the sockets themselves: connections that have come and were not accepted yet wait in
//! them and are lost to neither. Once it serves, it says so; from then on the former server accepts nothing more, and reads
//! no datagrams from the shared sockets.
//!
//! Datagrams come to a port that both have: the new server reads them and passes on those that nobody here knows
//! ([`OpenDatagrams::pass_on`]), over a pair of connected loopback sockets that came with the port. Each sends from the port
//! itself.
//!
//! What is asked over the Unix socket is one line of JSON each; the sockets come with the first byte of the line that names
//! them. Only processes of the same user are answered.

mod datagrams;
mod door;
mod former;
mod given;
mod messages;
mod sockets;

pub use datagrams::{Datagrams, OpenDatagrams};
pub use door::{Door, Successor};
pub use former::{Former, TakeoverError};
pub use given::Given;
pub use messages::{Offer, State};
pub use sockets::{SocketName, SocketUse, Sockets, listen};
