//! Finding recordings again: by name, page by page, always for somebody, who never learns of what is not theirs.

use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Serialize;

use super::{AUDIO, METADATA, Metadata, Recordings, TRANSCRIPT, egress, key};
use crate::actors::session::StreamId;
use crate::auth::Access;
use crate::providers::{ByteStream, RecordingStore, StoreError};

/// Recordings that are looked at for one page at most, whoever they belong to.
const LOOKED_AT: usize = 1_000;
/// No `metadata.json` of ours is longer.
const MAX_METADATA: usize = 64 * 1024;

/// What there is under a name, for somebody.
#[derive(Debug)]
pub enum Found {
    /// A recording.
    Stored(Metadata),
    /// One that is not finished, or not in the store yet.
    NotYet,
    /// Nothing that is there for them.
    Nothing,
}

/// Some recordings, in the order of their names.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Page {
    /// What is known of them.
    pub recordings: Vec<Metadata>,
    /// There may be more behind this name: give it as `after`. A page may be short, or empty, and still have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Recordings {
    /// Looks up a name.
    pub async fn find(&self, name: &str, access: &Access) -> Result<Found, StoreError> {
        // No recording of ours has another name, and no other name is a safe key.
        if StreamId::parse(name).is_err() {
            return Ok(Found::Nothing);
        }
        let journal = name.to_owned();
        // Asked first: a journal goes only when the store has everything.
        let journal = self
            .in_journals(move |journals| journals.look_up(&journal))
            .await?;
        let journal = match journal {
            None => egress::look_up(self, name).await?,
            journal => journal,
        };
        match self.metadata(name).await {
            Ok(metadata) if metadata.may_be_seen_by(access) => Ok(Found::Stored(metadata)),
            Ok(_) => Ok(Found::Nothing),
            Err(StoreError::NotFound) => Ok(match journal {
                Some(metadata) if metadata.may_be_seen_by(access) => Found::NotYet,
                _ => Found::Nothing,
            }),
            Err(error) => Err(error),
        }
    }

    /// The sound of a recording, or a part of it.
    pub async fn sound(
        &self,
        metadata: &Metadata,
        range: Option<std::ops::Range<u64>>,
    ) -> Result<ByteStream, StoreError> {
        self.store
            .get(&key(&self.prefix, &metadata.stream_id, AUDIO), range)
            .await
    }

    /// What was said in a recording, with its size in bytes.
    pub async fn transcript(&self, metadata: &Metadata) -> Result<(u64, ByteStream), StoreError> {
        let key = key(&self.prefix, &metadata.stream_id, TRANSCRIPT);
        let size = self.store.head(&key).await?.size;
        Ok((size, self.store.get(&key, Some(0..size)).await?))
    }

    /// Removes a recording. What is known of it goes last, so that its owner can try again.
    pub async fn remove(&self, metadata: &Metadata) -> Result<(), StoreError> {
        for file in [AUDIO, TRANSCRIPT, METADATA] {
            self.store
                .delete(&key(&self.prefix, &metadata.stream_id, file))
                .await?;
        }
        Ok(())
    }

    /// Some of those that are there for somebody, behind a name.
    pub async fn page(
        &self,
        access: &Access,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let mut page = Page::default();
        let listing = self.store.list(&self.prefix, after, LOOKED_AT).await?;
        let last = listing.names.last().cloned();
        for name in listing.names {
            if page.recordings.len() >= limit {
                page.next = page.recordings.last().map(|last| last.stream_id.clone());
                return Ok(page);
            }
            match self.metadata(&name).await {
                Ok(metadata) if metadata.may_be_seen_by(access) => page.recordings.push(metadata),
                // Another's, half uploaded, or removed meanwhile.
                Ok(_) | Err(StoreError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        page.next = last.filter(|_| listing.more);
        Ok(page)
    }

    async fn metadata(&self, name: &str) -> Result<Metadata, StoreError> {
        metadata(self.store.as_ref(), &self.prefix, name).await
    }
}

/// What the store knows of a recording, whoever it belongs to.
pub async fn metadata(
    store: &dyn RecordingStore,
    prefix: &str,
    name: &str,
) -> Result<Metadata, StoreError> {
    let mut pieces = store.get(&key(prefix, name, METADATA), None).await?;
    let mut text = Vec::new();
    while let Some(piece) = pieces.next().await {
        text.extend_from_slice(&piece?);
        if text.len() > MAX_METADATA {
            break;
        }
    }
    let metadata = serde_json::from_slice::<Metadata>(&text).ok();
    // What is under our key but not of our making is nobody's recording.
    metadata
        .filter(|metadata| metadata.stream_id == name)
        .ok_or(StoreError::NotFound)
}
