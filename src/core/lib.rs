//! The small things that every other crate of Vivavoce stands on: reading JSON with errors that name the field, telephone
//! numbers, sentences of a text that comes bit by bit, programs that are run beside the server, and whom the server
//! believes when it connects to others over TLS. Nothing here knows a vendor, a session or the settings.

pub mod host_name;
pub mod json;
pub mod outgoing;
pub mod phone;
pub mod process;
pub mod sentences;
