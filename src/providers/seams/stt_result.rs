//! The transcription result of the wire protocol, which transcripts consist of.

use schemars::JsonSchema;
use serde::Serialize;

use crate::Word;

/// The body of an `stt_result`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct SttResult {
    /// The text of this segment; empty where only the end of the turn is told, or an interim result is taken back.
    pub transcript: String,
    /// Whether the segment stays as it is.
    pub is_final: bool,
    /// Whether the turn is over.
    pub is_speech_final: bool,
    /// 0–1 of this segment; of the whole turn where the segment is empty; null where the provider gives none.
    #[schemars(range(min = 0, max = 1))]
    pub confidence: Option<f32>,
    /// All text of the turn, on its last result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_transcript: Option<String>,
    /// The words of this segment where known, in seconds of session audio.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
    /// Whether it only says that somebody listens, while the server speaks: it is no part of a turn.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("default" = false))]
    pub backchannel: bool,
    /// BCP-47 where the provider says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Who said it, where the participants of a room are heard each alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}
