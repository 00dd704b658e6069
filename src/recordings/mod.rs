//! What a recording is and where it goes: the journal that it is written to first ([`journal`]), what is known of it
//! ([`Metadata`]), and its way into a store. The sound itself is put together by [`crate::actors::recorder`]; how a
//! store keeps things is [`crate::providers::RecordingStore`]'s matter.

pub mod journal;
mod metadata;

pub use metadata::{Metadata, Participant};

/// The names of the files of a recording, in its journal and in the store.
pub const AUDIO: &str = "audio.ogg";
/// Finals and utterances with their times, one JSON object a line.
pub const TRANSCRIPT: &str = "transcript.jsonl";
/// What is known of it. It is written last: what has one is complete.
pub const METADATA: &str = "metadata.json";

/// The key of a recording's file in the store.
pub fn key(prefix: &str, stream_id: &str, file: &str) -> String {
    format!("{prefix}/{stream_id}/{file}")
}
