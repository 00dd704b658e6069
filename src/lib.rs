//! Vivavoce, a real-time voice server: it hears (speech to text), says (text to speech), joins rooms and telephone
//! calls, and records what was said. `docs/architecture.md` is the plan of the house; each folder below is one room.

pub mod actors;
pub mod audio;
pub mod auth;
pub mod cli;
pub mod config;
pub mod emulators;
pub mod hooks;
pub mod http;
pub mod json;
pub mod outgoing;
pub mod phone;
pub mod process;
pub mod providers;
pub mod recordings;
pub mod rooms;
pub(crate) mod sentences;
pub mod server;
pub mod synthesis;
pub mod telemetry;
pub mod telephony;
pub mod webhooks;
