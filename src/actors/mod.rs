//! Who decides: actors that own a piece of state each and are messaged by the HTTP handlers.

pub mod registry;
pub mod session;
pub mod stt;
pub mod supervision;
pub mod tts;
