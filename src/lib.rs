//! Vivavoce, a real-time voice server: it hears (speech to text), says (text to speech), joins rooms and telephone
//! calls, and records what was said. `docs/architecture.md` is the plan of the house; each folder below is one room.

pub mod actors;
pub mod auth;
pub mod cli;
pub mod emulators;
#[cfg(test)]
mod entry_points;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod hooks;
pub mod http;
pub mod providers;
pub mod quotas;
pub mod recordings;
pub mod rooms;
pub mod server;
pub mod shared_limit;
pub mod synthesis;
pub mod telemetry;
pub mod telephony;
pub mod webhooks;

pub use vivavoce_audio as audio;
pub use vivavoce_config as config;
pub use vivavoce_core::{host_name, json, outgoing, phone, process, sentences};
