//! The lines of `transcript.jsonl`. Times are milliseconds of the recording.

use serde::Serialize;

use vivavoce_seams::SttResult;

/// One line.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line<'a> {
    /// What was understood, by its final transcript.
    Heard {
        /// When it was understood; its words lie before that.
        at_ms: u64,
        /// As the client was told.
        #[serde(flatten)]
        result: &'a SttResult,
    },
    /// An utterance begins to be heard.
    Begins {
        /// When.
        at_ms: u64,
        /// The client's name for it.
        id: Option<&'a str>,
    },
    /// It has ended.
    Said {
        /// When its last sample was heard.
        at_ms: u64,
        /// The client's name for it.
        id: Option<&'a str>,
        /// What was heard of it.
        text: &'a str,
        /// How much was heard of it.
        played_ms: u64,
        /// Whether it was heard to its end.
        whole: bool,
    },
}

impl Line<'_> {
    /// The line with its end.
    pub fn to_json(&self) -> String {
        // Strings, numbers and null cannot fail to be written.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}
