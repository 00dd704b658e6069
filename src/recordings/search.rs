//! Looking for recordings by when they were made and by what was said in them. There is no index: a search reads the
//! metadata of what the caller may see, and the transcripts of those that are from the right time, a bounded number in one
//! request; whoever wants more asks for what comes after.

use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::catalogue::{StoredRecording, Walk};
use super::recording_location::{self, RecordingLocation};
use super::{Metadata, Recordings};
use vivavoce_auth::Access;
use vivavoce_seams::StoreError;

/// Recordings whose metadata one request reads, and of these, whose transcripts.
const MAX_EXAMINED: usize = 1_000;
const MAX_READ: usize = 200;
/// Read at once.
const MAX_CONCURRENT: usize = 8;
/// How much of a transcript is read, and how many of its lines are shown.
const MAX_TRANSCRIPT: usize = 1 << 20;
const MAX_LINES: usize = 3;

/// What is looked for.
#[derive(Debug, Clone, Default)]
pub struct Sought {
    /// Not before this, Unix time in milliseconds.
    pub from: Option<u64>,
    /// Before this.
    pub until: Option<u64>,
    /// In lower case; all of them are in the transcript.
    pub words: Vec<String>,
}

impl Sought {
    /// Recordings from this time whose transcripts have all of these words.
    pub fn new(from: Option<u64>, until: Option<u64>, words: &str) -> Self {
        let words = words.split_whitespace().map(str::to_lowercase).collect();
        Self { from, until, words }
    }

    fn is_then(&self, metadata: &Metadata) -> bool {
        let began = metadata.started_at;
        let ended = began.saturating_add(metadata.duration_ms);
        self.from.is_none_or(|from| ended >= from) && self.until.is_none_or(|until| began < until)
    }

    /// The lines that have any of the words, if all words are somewhere.
    fn lines(&self, transcript: &[u8]) -> Option<Vec<FoundLine>> {
        let text = String::from_utf8_lossy(transcript);
        let lines: Vec<_> = text.lines().filter_map(FoundLine::read).collect();
        let lower: Vec<_> = lines.iter().map(|line| line.text.to_lowercase()).collect();
        let is_somewhere = |word: &String| lower.iter().any(|line| line.contains(word.as_str()));
        if !self.words.iter().all(is_somewhere) {
            return None;
        }
        let has_one = |line: &str| self.words.iter().any(|word| line.contains(word.as_str()));
        let found = lines.into_iter().zip(&lower);
        let found = found.filter(|(_, lower)| has_one(lower));
        Some(found.take(MAX_LINES).map(|(line, _)| line).collect())
    }
}

/// A line of a transcript in which one of the words is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FoundLine {
    /// Where in the recording, in milliseconds.
    pub at_ms: u64,
    /// `heard` or `said`.
    #[schemars(extend("enum" = ["heard", "said"]))]
    pub who: &'static str,
    /// What.
    pub text: String,
}

impl FoundLine {
    fn read(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let (who, field) = match line["type"].as_str()? {
            "heard" => ("heard", "transcript"),
            "said" => ("said", "text"),
            _ => return None,
        };
        Some(Self {
            at_ms: line["at_ms"].as_u64()?,
            who,
            text: line[field].as_str()?.to_owned(),
        })
    }
}

/// A recording that was found.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FoundRecording {
    /// The recording.
    #[serde(flatten)]
    pub metadata: Metadata,
    /// The first lines with the words.
    pub lines: Vec<FoundLine>,
}

/// What was found.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct FoundPage {
    /// The recordings, the newest first.
    pub recordings: Vec<FoundRecording>,
    /// There is more to look through: pass this as `after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// How many recordings of the time were looked through.
    pub examined: usize,
}

impl Recordings {
    /// Looks through what the caller may see, after `after`.
    pub async fn search(
        &self,
        access: &Access,
        sought: &Sought,
        after: Option<&str>,
    ) -> Result<FoundPage, StoreError> {
        let _turn = self.listings.acquire(&access.party()).await;
        let mut walk = match access.tenant() {
            Some(tenant) => {
                Walk::of_tenant(&recording_location::tenant_folder(tenant.as_str()), after)
            }
            None if access.sees_every_tenant() => Walk::of_all(after),
            None => Walk::of_nobody(after),
        };
        let (mut left, mut reads) = (MAX_EXAMINED, MAX_READ);
        let mut page = FoundPage::default();
        'looking: while left > 0 && reads > 0 {
            let store = self.store.as_ref();
            let (locations, more) = walk.next(store, &self.prefix, left.min(MAX_READ)).await?;
            let mut known = stream::iter(&locations)
                .map(async |location| self.metadata(location).await)
                .buffered(MAX_CONCURRENT);
            let mut right = Vec::new();
            let mut seen = locations.iter();
            while let (Some(location), Some(metadata)) = (seen.next(), known.next().await) {
                left = left.saturating_sub(1);
                page.next = Some(location.path().into_owned());
                match metadata {
                    Ok(metadata)
                        if metadata.may_be_seen_by(access) && sought.is_then(&metadata) =>
                    {
                        right.push((location.clone(), metadata));
                    }
                    Ok(_) | Err(StoreError::NotFound) => {}
                    Err(error) => return Err(error),
                }
                if right.len() == reads {
                    reads = 0;
                    break;
                }
            }
            drop(known);
            reads = reads.saturating_sub(right.len());
            page.examined += right.len();
            page.recordings.extend(self.with_words(right, sought).await);
            if reads == 0 || left == 0 {
                break 'looking;
            }
            if !more {
                page.next = None;
                break;
            }
        }
        page.recordings
            .sort_by_key(|found| std::cmp::Reverse(found.metadata.started_at));
        Ok(page)
    }

    /// Those that have the words.
    async fn with_words(
        &self,
        recordings: Vec<(RecordingLocation, Metadata)>,
        sought: &Sought,
    ) -> Vec<FoundRecording> {
        let read = async |(location, metadata): (RecordingLocation, Metadata)| {
            if sought.words.is_empty() {
                let lines = Vec::new();
                return Some(FoundRecording { metadata, lines });
            }
            let kept = StoredRecording::new(metadata, location);
            // One without a transcript has no words.
            let (_, mut pieces) = self.transcript(&kept).await.ok()?;
            let mut transcript = Vec::new();
            while let Some(Ok(piece)) = pieces.next().await {
                transcript.extend_from_slice(&piece);
                if transcript.len() > MAX_TRANSCRIPT {
                    break;
                }
            }
            let lines = sought.lines(&transcript)?;
            let metadata = kept.metadata;
            Some(FoundRecording { metadata, lines })
        };
        let found = stream::iter(recordings).map(read);
        let found = found.buffered(MAX_CONCURRENT);
        found.filter_map(async |found| found).collect().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_words_are_somewhere_and_the_lines_with_them_are_shown() {
        let transcript = concat!(
            r#"{"type":"heard","at_ms":900,"transcript":"I want to CANCEL it"}"#,
            "\n",
            r#"{"type":"begins","at_ms":1000,"id":null}"#,
            "\nnot json\n",
            r#"{"type":"said","at_ms":2000,"text":"Which order?","played_ms":1,"whole":true}"#,
        );
        let lines = |words: &str| Sought::new(None, None, words).lines(transcript.as_bytes());
        let found = lines("order cancel").unwrap();
        let told: Vec<_> = found.iter().map(|line| (line.who, line.at_ms)).collect();
        assert_eq!(told, [("heard", 900), ("said", 2000)]);
        assert_eq!(lines("cancel refund"), None);
        assert_eq!(lines("WHICH").unwrap().len(), 1);
    }

    #[test]
    fn a_recording_is_from_a_time_if_any_of_it_is() {
        let metadata: Metadata = serde_json::from_str(
            r#"{"stream_id":"a","started_at":1000,"duration_ms":500,"size":1,"sha256":"","channels":2,"participants":[],"complete":true}"#,
        )
        .unwrap();
        for (from, until, is_then) in [
            (None, None, true),
            (Some(1_400), None, true),
            (Some(1_501), None, false),
            (None, Some(1_000), false),
            (Some(0), Some(1_001), true),
        ] {
            let sought = Sought::new(from, until, "");
            assert_eq!(sought.is_then(&metadata), is_then, "{from:?} {until:?}");
        }
    }
}
