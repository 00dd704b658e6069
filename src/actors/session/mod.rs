//! A session: one client on one socket, heard and spoken to.

pub mod messages;
