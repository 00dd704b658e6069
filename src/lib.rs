//! Vivavoce, a real-time voice server: speech-to-text and text-to-speech over one WebSocket, WebRTC rooms for LiveKit
//! clients, telephone calls over SIP, and recordings.
//!
//! This is the root package: it assembles the server from its settings ([`server`]) and holds the command line
//! ([`cli`]). Everything else is in crates of its own, each a folder of `src`; they are re-exported here under their
//! folders' names, for tests and benchmarks. `docs/architecture.md` lists them with their levels, and which may use which.
//!
//! # Terms
//!
//! * A **session** is one WebSocket connection with a recogniser and a synthesiser, and optionally a room and a recording.
//! * A **turn** is a stretch of speech by one speaker. *Endpointing* decides when it has ended: by the recogniser's word,
//!   by silence (voice activity detection), or by a deadline. Each turn ends exactly once.
//! * An **utterance** is a text that the session speaks. *Playout* is when its audio is heard, as opposed to sent;
//!   *barge-in* is speech during playout, which may stop, pause or duck it.
//! * A **room** connects participants. The embedded **SFU** forwards their media packets without decoding; a session in a
//!   room is a participant, and so is a telephone **call**, which the SIP bridge connects.
//! * A **provider** is a vendor or local engine that recognises or synthesises speech.
//! * A **tenant** is a customer of the operator: tenants do not see each other's resources, and share the server's
//!   capacity by a fair-share rule.
//!
//! # Two planes
//!
//! Control is actix actors: typed messages, one owner for every piece of state, supervision. Media never goes through a
//! mailbox: it moves through bounded channels and ring buffers between small tasks. State machines take time as an
//! argument and are tested without a runtime. Nothing is unbounded: every queue has a limit, and what is lost at a limit
//! is counted.
//!
//! # Example
//!
//! ```no_run
//! use std::collections::HashMap;
//! use vivavoce::config::Config;
//!
//! let flags = [("server.port".to_owned(), "3001".to_owned())];
//! let config = Config::from_sources(&flags, &HashMap::new(), None).expect("valid settings");
//! // Runs until SIGTERM or Ctrl-C.
//! vivavoce::server::run(&config).expect("the server runs");
//! ```

pub mod cli;
#[cfg(test)]
mod entry_points;
#[cfg(test)]
pub mod fuzzing;
pub mod server;
#[cfg(test)]
mod workspace;

pub use vivavoce_actors as actors;
pub use vivavoce_agents as agents;
pub use vivavoce_audio as audio;
pub use vivavoce_auth as auth;
pub use vivavoce_carriers as carriers;
pub use vivavoce_config as config;
pub use vivavoce_core::{host_name, json, phone, process, sentences, ssml, tls_roots, unix_time};
#[cfg(feature = "development")]
pub use vivavoce_emulators as emulators;
pub use vivavoce_hooks as hooks;
pub use vivavoce_http as http;
pub use vivavoce_llm as llm;
pub use vivavoce_models as models;
pub use vivavoce_quotas as quotas;
pub use vivavoce_quotas::shared_limit;
pub use vivavoce_realtime as realtime;
pub use vivavoce_recordings as recordings;
pub use vivavoce_rooms as rooms;
pub use vivavoce_synthesis as synthesis;
pub use vivavoce_takeover as takeover;
pub use vivavoce_telemetry as telemetry;
pub use vivavoce_telephony as telephony;
pub use vivavoce_webhooks as webhooks;

/// Everybody whom the server talks to, and the seams to them.
pub mod providers {
    pub use vivavoce_embedded as embedded;
    pub use vivavoce_file_store as file;
    pub use vivavoce_livekit as livekit;
    pub use vivavoce_providers::*;
    pub use vivavoce_s3 as s3;
    pub use vivavoce_seams::*;
}
