//! What a recording is and where it goes: the journal that it is written to first ([`journal`]), what is known of it
//! ([`Metadata`]), and its way into a store. The sound itself is put together by [`crate::actors::recorder`]; how a
//! store keeps things is [`crate::providers::RecordingStore`]'s matter.

pub mod catalogue;
pub mod egress;
pub mod examine;
pub mod journal;
mod metadata;
pub mod retention;
mod transcript;
mod upload;
pub mod uploader;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::audio::Channels;
use crate::providers::{RecordingStore, StoreError};
use crate::webhooks::Webhooks;
use journal::{Journal, Journals};
use uploader::Uploader;

pub use metadata::{Metadata, Participant};
pub use transcript::Line;

/// The names of the files of a recording, in its journal and in the store.
pub const AUDIO: &str = "audio.ogg";
/// Finals and utterances with their times, one JSON object a line.
pub const TRANSCRIPT: &str = "transcript.jsonl";
/// What is known of it. It is written last: what has one is complete.
pub const METADATA: &str = "metadata.json";

/// How long a store is asked whether it has a recording of a name.
const QUESTION: Duration = Duration::from_secs(3);

/// The key of a recording's file in the store.
pub fn key(prefix: &str, stream_id: &str, file: &str) -> String {
    format!("{prefix}/{stream_id}/{file}")
}

/// How recordings are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingSettings {
    /// In stereo what is heard is left and what is played right, in mono both are mixed.
    pub channels: Channels,
    /// How hard the encoder tries, 0 to 10.
    pub complexity: u8,
}

/// The recordings of a server.
pub struct Recordings {
    store: Arc<dyn RecordingStore>,
    prefix: String,
    data_dir: PathBuf,
    journals: Journals,
    settings: RecordingSettings,
    webhooks: Option<Webhooks>,
}

/// Why a recording did not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// There is one of this name.
    #[error("stream_id: there is a recording of this name, and none is ever overwritten")]
    Exists,
    /// The journal cannot be written.
    #[error("recording: the journal cannot be written: {0}")]
    Journal(io::Error),
}

impl Recordings {
    /// Those in this store, written first to journals below the data folder.
    pub fn open(
        store: Arc<dyn RecordingStore>,
        prefix: String,
        data_dir: &Path,
        settings: RecordingSettings,
    ) -> io::Result<Self> {
        Ok(Self {
            store,
            prefix,
            data_dir: data_dir.to_owned(),
            journals: Journals::open(journal::root(data_dir))?,
            settings,
            webhooks: None,
        })
    }

    /// How they are made.
    pub const fn settings(&self) -> RecordingSettings {
        self.settings
    }

    /// Where they go.
    pub fn store(&self) -> &Arc<dyn RecordingStore> {
        &self.store
    }

    /// Begins the journal of one that has not begun yet.
    pub async fn begin(&self, metadata: Metadata) -> Result<Journal, BeginError> {
        let name = metadata.stream_id.clone();
        let elsewhere = egress::look_up(self, &name).await;
        if elsewhere.map_err(BeginError::Journal)?.is_some() {
            return Err(BeginError::Exists);
        }
        let journals = self.journals.clone();
        let begun = tokio::task::spawn_blocking(move || journals.begin(&metadata)).await;
        let journal = match begun.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(BeginError::Exists);
            }
            begun => begun.map_err(BeginError::Journal)?,
        };
        // The journal is there before the question, so that of two that ask one is refused.
        if self.is_stored(&name).await {
            abandon(journal);
            return Err(BeginError::Exists);
        }
        Ok(journal)
    }

    /// Whether the store is known to have one of this name. A store that is away does not keep anybody from speaking: what
    /// is recorded waits for it, and overwrites nothing when it is back.
    async fn is_stored(&self, name: &str) -> bool {
        let key = key(&self.prefix, name, AUDIO);
        match tokio::time::timeout(QUESTION, self.store.head(&key)).await {
            Ok(Ok(_)) => true,
            Ok(Err(StoreError::NotFound)) | Err(_) => false,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the store cannot tell whether it has a recording");
                false
            }
        }
    }

    /// The same, telling this one what becomes of them.
    pub fn telling(mut self, webhooks: Webhooks) -> Self {
        self.webhooks = Some(webhooks);
        self
    }

    /// Brings what is finished into the store, what a former process has left first: until it is `closing` and then as
    /// long as the store takes what there is.
    pub async fn run(self: Arc<Self>, closing: CancellationToken) {
        let journals = self.journals.clone();
        let (store, webhooks) = (Arc::clone(&self.store), self.webhooks.clone());
        let uploader = Uploader::new(journals, store, self.prefix.clone(), webhooks);
        uploader.run(closing).await;
    }

    /// Removes what is older than `age` from the store, every hour until it is `closing`.
    pub async fn forget(self: Arc<Self>, age: Duration, closing: CancellationToken) {
        retention::run(Arc::clone(&self.store), self.prefix.clone(), age, closing).await;
    }

    async fn in_journals<T: Send + 'static>(
        &self,
        work: impl FnOnce(Journals) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let journals = self.journals.clone();
        let done = tokio::task::spawn_blocking(move || work(journals)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

/// Removes a journal that nobody wants, without waiting for it.
pub fn abandon(journal: Journal) {
    tokio::task::spawn_blocking(move || {
        if let Err(error) = journal.abandon() {
            tracing::warn!(%error, "a journal that nobody wants could not be removed");
        }
    });
}
