//! The small things that every other crate of Vivavoce stands on: reading JSON with errors that name the field, telephone
//! numbers, sentences of a text that comes bit by bit, programs that are run beside the server, and whom the server
//! believes when it connects to others over TLS. Nothing here knows a vendor, a session or the settings.

pub mod call;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod hash;
pub mod host_name;
pub mod json;
pub mod listener_tls;
pub mod outgoing;
pub mod party;
pub mod phone;
pub mod process;
pub mod provider_error;
pub mod sentences;
pub mod stream_id;
