//! The lines of `transcript.jsonl`. Times are in milliseconds from the start of the recording.

use serde::Serialize;

use vivavoce_seams::SttResult;

/// A line of the transcript.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TranscriptLine<'a> {
    /// A final transcript of the input.
    Heard {
        /// When it was received; its words were spoken before that.
        at_ms: u64,
        /// The result as sent to the client.
        #[serde(flatten)]
        result: &'a SttResult,
    },
    /// Playback of an utterance starts.
    Begins {
        /// When it starts.
        at_ms: u64,
        /// The client's id of the utterance.
        id: Option<&'a str>,
    },
    /// Playback of an utterance has ended.
    Said {
        /// When its last sample was played.
        at_ms: u64,
        /// The client's id of the utterance.
        id: Option<&'a str>,
        /// The text that was played.
        text: &'a str,
        /// How much was played.
        played_ms: u64,
        /// Whether it was played to its end.
        whole: bool,
    },
}

impl TranscriptLine<'_> {
    /// The line as JSON, with a line break.
    pub fn to_json(&self) -> String {
        // Strings, numbers and null can always be serialised.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}
