//! Vivavoce, a real-time voice server: it hears (speech to text), says (text to speech), joins rooms and telephone
//! calls, and records what was said. `docs/architecture.md` is the plan of the house; each folder below is one room.

pub mod cli;
#[cfg(test)]
mod entry_points;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod server;
#[cfg(test)]
mod workspace;

pub use vivavoce_actors as actors;
pub use vivavoce_audio as audio;
pub use vivavoce_auth as auth;
pub use vivavoce_config as config;
pub use vivavoce_core::{host_name, json, outgoing, phone, process, sentences};
pub use vivavoce_emulators as emulators;
pub use vivavoce_hooks as hooks;
pub use vivavoce_http as http;
pub use vivavoce_quotas as quotas;
pub use vivavoce_quotas::shared_limit;
pub use vivavoce_recordings as recordings;
pub use vivavoce_rooms as rooms;
pub use vivavoce_synthesis as synthesis;
pub use vivavoce_telemetry as telemetry;
pub use vivavoce_telephony as telephony;
pub use vivavoce_webhooks as webhooks;

/// Everybody whom the server talks to, and the seams to them.
pub mod providers {
    pub use vivavoce_embedded as embedded;
    pub use vivavoce_file_store as file;
    pub use vivavoce_livekit as livekit;
    pub use vivavoce_providers::*;
    pub use vivavoce_seams::*;
}
