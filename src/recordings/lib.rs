//! What a recording is and where it goes: the journal that it is written to first ([`journal`]), what is known of it
//! ([`Metadata`]), and its way into a store. The sound itself is put together by `src/actors/recorder.rs`; how a
//! store keeps things is [`vivavoce_seams::RecordingStore`]'s matter.

pub mod catalogue;
pub mod egress;
pub mod examine;
pub mod journal;
mod metadata;
pub mod place;
pub mod retention;
mod transcript;
mod upload;
pub mod uploader;
pub mod writing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use journal::{Journal, Journals};
use place::Place;
use uploader::Uploader;
use vivavoce_audio::Channels;
use vivavoce_quotas::{FairQueue, Quota, Share};
use vivavoce_seams::{RecordingStore, StoreError};
use vivavoce_webhooks::Webhooks;

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
/// Lists that are made at once.
const LISTED_AT_ONCE: usize = 4;

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
    quota: Option<Quota>,
    /// A list of recordings is up to a thousand questions to the store: whoever wants many waits for their turn.
    listings: FairQueue,
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
            quota: None,
            listings: FairQueue::new(LISTED_AT_ONCE, Share::NONE),
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
        let place = Place::of(&metadata);
        let tenant = metadata.tenant.clone();
        let elsewhere = egress::look_up(self, &place).await;
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
        if self.is_stored(&place, tenant.as_deref()).await {
            abandon(journal);
            return Err(BeginError::Exists);
        }
        Ok(journal)
    }

    /// Whether the store is known to have one of this name for this tenant, or for nobody. A store that is away does not
    /// keep anybody from speaking: what is recorded waits for it, and overwrites nothing when it is back.
    async fn is_stored(&self, place: &Place, tenant: Option<&str>) -> bool {
        let asked = async {
            let there = self.store.head(&place.key(&self.prefix, AUDIO)).await;
            match (there, tenant) {
                (Err(StoreError::NotFound), Some(tenant)) => {
                    // Where version 0.1.0 has kept it. What is another's there does not exist for this one.
                    let former = Place::top(place.stream_id());
                    let known = catalogue::metadata(&*self.store, &self.prefix, &former).await;
                    known.map(|known| known.tenant.as_deref() == Some(tenant))
                }
                (there, _) => there.map(|_| true),
            }
        };
        match tokio::time::timeout(QUESTION, asked).await {
            Ok(Ok(there)) => there,
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

    /// The same, counting those that wait for the store.
    #[must_use]
    pub fn counted(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// Brings what is finished into the store, what a former process has left first: until it is `closing` and then as
    /// long as the store takes what there is.
    pub async fn run(self: Arc<Self>, closing: CancellationToken) {
        let journals = self.journals.clone();
        let (store, webhooks) = (Arc::clone(&self.store), self.webhooks.clone());
        let uploader = Uploader::new(journals, store, self.prefix.clone(), webhooks);
        let uploader = uploader.counting(self.quota.clone());
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
