//! Recordings, from the journal on local disk to the store. The audio is encoded by `src/actors/recorder.rs`; stores are
//! implemented by providers ([`vivavoce_seams::RecordingStore`]).
//!
//! # What a recording is
//!
//! Three files: `audio.ogg` (Ogg/Opus, RFC 7845; in stereo input is left and output is right), `transcript.jsonl` (final
//! transcripts and utterances with times in milliseconds) and `metadata.json`. The metadata is written last, so a
//! recording that has it is complete. Recordings are named by their session's `stream_id`, scoped to the tenant
//! ([`recording_location`]), and are never overwritten.
//!
//! # The life of a recording
//!
//! 1. While the session runs, everything is appended to a [`journal`] on local disk by a few [`writers`] threads: a
//!    killed process loses at most the last second.
//! 2. When the session ends, or when the next process finds the journal of a killed one, the journal is finished:
//!    truncated after its last complete page and described.
//! 3. The [`uploader`] brings it to the store, and a webhook reports it. While the store is unavailable recordings wait,
//!    for as long as it takes and across restarts.
//! 4. [`catalogue`] finds recordings for callers, [`verify`] checks them against their hashes, and [`retention`] deletes
//!    old ones.
//!
//! A session that goes on at another server is recorded there, too: the first server stores what it has as incomplete, and the
//! one where the session ends fetches that and puts both together (`joining`), so that there is one recording.
//!
//! Rooms of a LiveKit deployment can instead be recorded by its [`egress`] service into the same store.
//!
//! # Bounds
//!
//! Recordings in progress and waiting are limited by a quota (`limits.recordings`), uploads to five at a time. Jobs for
//! the writer threads queue up to a fixed number; audio that is late on its way to disk is counted and logged. The disk
//! itself is the limit for what waits: when it is full, recordings end early and are finished in space reserved for it.
//!
//! # Example
//!
//! ```
//! use vivavoce_recordings::AUDIO;
//! use vivavoce_recordings::recording_location::RecordingLocation;
//!
//! // A tenant's folder is percent-encoded and cannot be mistaken for a recording.
//! let location = RecordingLocation::new(Some("acme"), "call-1");
//! assert_eq!(location.key("recordings", AUDIO), "recordings/%61cme/call-1/audio.ogg");
//! // Recordings without a tenant lie directly below the prefix.
//! let location = RecordingLocation::new(None, "call-1");
//! assert_eq!(location.key("recordings", AUDIO), "recordings/call-1/audio.ogg");
//! ```

pub mod audit;
pub mod catalogue;
pub mod discretion;
pub mod egress;
mod joining;
pub mod journal;
pub mod marks;
mod metadata;
pub mod recording_location;
pub mod redaction;
pub mod retention;
pub mod search;
mod transcript;
mod upload;
pub mod uploader;
pub mod verify;
pub mod writers;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use journal::{Journal, Journals};
use recording_location::RecordingLocation;
use uploader::Uploader;
use vivavoce_audio::Channels;
use vivavoce_core::hash::hex;
use vivavoce_quotas::{FairQueue, Quota, Share};
use vivavoce_seams::{RecordingStore, StoreError};
use vivavoce_webhooks::Webhooks;

use audit::Audit;
use discretion::{Discretion, Rules};
pub use metadata::{Metadata, Participant};
pub use transcript::TranscriptLine;

/// The names of a recording's files, in its journal and in the store.
pub const AUDIO: &str = "audio.ogg";
/// Final transcripts and utterances with their times, one JSON object per line.
pub const TRANSCRIPT: &str = "transcript.jsonl";
/// The metadata, written last: a recording that has it is complete.
pub const METADATA: &str = "metadata.json";

/// Timeout for asking the store whether a recording exists.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// Listings made concurrently.
const MAX_CONCURRENT_LISTINGS: usize = 4;

/// How audio is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingSettings {
    /// Stereo records input on the left and output on the right, mono mixes them.
    pub channels: Channels,
    /// The complexity of the Opus encoder, 0 to 10.
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
    /// Who is told what has become of a finished recording.
    told: OnceLock<Tell>,
    discretion: Arc<Discretion>,
    audit: Audit,
    identity: OnceCell<String>,
    /// A listing costs up to a thousand requests to the store, so callers take turns.
    listings: FairQueue,
}

/// Is told that a recording is in the store, or why it never will be. Must not block.
pub type Tell = Arc<dyn Fn(&Metadata, Result<(), String>) + Send + Sync>;

/// Why a recording could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// A recording of this name exists.
    #[error("stream_id: a recording of this name exists, and recordings are never overwritten")]
    Exists,
    /// The journal cannot be written.
    #[error("recording: the journal cannot be written: {0}")]
    Journal(io::Error),
}

impl Recordings {
    /// Recordings kept in `store`, and in journals below the data folder until they are uploaded.
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
            told: OnceLock::new(),
            discretion: Arc::default(),
            audit: Audit::default(),
            identity: OnceCell::new(),
            listings: FairQueue::new(MAX_CONCURRENT_LISTINGS, Share::NONE),
        })
    }

    /// How audio is recorded.
    pub const fn settings(&self) -> RecordingSettings {
        self.settings
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn RecordingStore> {
        &self.store
    }

    /// By what servers that have the same recordings know them; `None` where the store cannot be asked.
    pub async fn identity(&self) -> Option<&str> {
        let asked = self.identity.get_or_try_init(async || {
            let store = self.store.identity().await?;
            let named = format!("{} {store} {}", self.store.slug(), self.prefix);
            Ok::<_, StoreError>(hex(&Sha256::digest(named)))
        });
        match tokio::time::timeout(STORE_TIMEOUT, asked).await {
            Ok(Ok(identity)) => Some(identity),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the store of recordings could not be asked which one it is");
                None
            }
            Err(_) => None,
        }
    }

    /// The same, where it has been asked for.
    pub fn known_identity(&self) -> Option<&str> {
        self.identity.get().map(String::as_str)
    }

    /// Creates the journal of a recording that follows another server's; whether it is to be joined with that. Some of
    /// the sound may be silenced.
    pub async fn begin_part(&self, metadata: Metadata, joins: bool) -> Result<Journal, BeginError> {
        let silences = self.rules(metadata.tenant.as_deref()).silences();
        let begin = move |journals: Journals| journals.begin_part(&metadata, joins, silences);
        let begun = self.in_journals(begin).await;
        begun.map_err(BeginError::Journal)
    }

    /// Creates the journal of a new recording. Where it `may_silence`, the rules say whether some of the sound is silenced:
    /// whoever records tells what, then.
    pub async fn begin(
        &self,
        metadata: Metadata,
        may_silence: bool,
    ) -> Result<Journal, BeginError> {
        let location = RecordingLocation::of(&metadata);
        let tenant = metadata.tenant.clone();
        let elsewhere = egress::look_up(self, &location).await;
        if elsewhere.map_err(BeginError::Journal)?.is_some() {
            return Err(BeginError::Exists);
        }
        // Of one that was divided the journal has another name.
        let known = location.clone();
        let known = self.in_journals(move |journals| journals.look_up(&known));
        if known.await.map_err(BeginError::Journal)?.is_some() {
            return Err(BeginError::Exists);
        }
        let silences = may_silence && self.rules(tenant.as_deref()).silences();
        let begun =
            self.in_journals(move |journals| journals.begin_part(&metadata, false, silences));
        let journal = match begun.await {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(BeginError::Exists);
            }
            begun => begun.map_err(BeginError::Journal)?,
        };
        // The journal is created before the store is asked, so that of two concurrent attempts one is refused.
        if self.is_stored(&location, tenant.as_deref()).await {
            abandon(journal);
            return Err(BeginError::Exists);
        }
        Ok(journal)
    }

    /// Whether the store is known to have a recording of this name, of this tenant or without a tenant. An unavailable
    /// store does not prevent a session from being recorded: the recording waits for the store and never overwrites
    /// another.
    async fn is_stored(&self, location: &RecordingLocation, tenant: Option<&str>) -> bool {
        let asked = async {
            let there = self.store.head(&location.key(&self.prefix, AUDIO)).await;
            match (there, tenant) {
                (Err(StoreError::NotFound), Some(tenant)) => {
                    // Where version 0.1.0 stored it. Another tenant's recording there is invisible to this tenant.
                    let former = RecordingLocation::top(location.stream_id());
                    let known = catalogue::metadata(&*self.store, &self.prefix, &former).await;
                    known.map(|known| known.tenant.as_deref() == Some(tenant))
                }
                (there, _) => there.map(|_| true),
            }
        };
        match tokio::time::timeout(STORE_TIMEOUT, asked).await {
            Ok(Ok(there)) => there,
            Ok(Err(StoreError::NotFound)) | Err(_) => false,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the store could not be asked whether a recording exists");
                false
            }
        }
    }

    /// Reports events about these recordings to `webhooks`.
    pub fn reporting_to(mut self, webhooks: Webhooks) -> Self {
        self.webhooks = Some(webhooks);
        self
    }

    /// Tells what has become of finished recordings. Only the first call counts, and only before [`Self::run`].
    pub fn tell(&self, tell: Tell) {
        let _only_the_first_counts = self.told.set(tell);
    }

    /// The key of a recording's audio in the store.
    pub fn audio_key(&self, metadata: &Metadata) -> String {
        RecordingLocation::of(metadata).audio(&self.prefix, metadata)
    }

    /// Whether a recording is in the store, is to get there, or neither.
    pub async fn whereabouts(&self, metadata: &Metadata) -> Result<Whereabouts, StoreError> {
        let location = RecordingLocation::of(metadata);
        let journal = location.clone();
        let journal = self.in_journals(move |journals| journals.look_up(&journal));
        if journal.await?.is_some() {
            return Ok(Whereabouts::Journal);
        }
        match catalogue::metadata(&*self.store, &self.prefix, &location).await {
            Ok(metadata) => Ok(Whereabouts::Store(Box::new(metadata))),
            Err(StoreError::NotFound) => Ok(Whereabouts::Nowhere),
            Err(error) => Err(error),
        }
    }

    /// Counts recordings that wait for the store.
    #[must_use]
    pub fn counted(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// Uploads finished recordings, including those that an earlier process has left, until `closing`, and from then on
    /// as long as uploads succeed at once.
    pub async fn run(self: Arc<Self>, closing: CancellationToken) {
        let journals = self.journals.clone();
        let (store, webhooks) = (Arc::clone(&self.store), self.webhooks.clone());
        let uploader = Uploader::new(journals, store, self.prefix.clone(), webhooks);
        let uploader = uploader.counting(self.quota.clone());
        let uploader = uploader.telling(self.told.get().cloned());
        uploader.run(closing).await;
    }

    /// How discreet recordings are.
    #[must_use]
    pub fn discreet(mut self, discretion: Discretion) -> Self {
        self.discretion = Arc::new(discretion);
        self
    }

    /// Notes accesses there, and no longer in the log.
    #[must_use]
    pub fn audited(mut self, audit: Audit) -> Self {
        self.audit = audit;
        self
    }

    /// Where accesses are noted.
    pub const fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The rules for recordings of this tenant, or of nobody.
    pub fn rules(&self, tenant: Option<&str>) -> &Rules {
        self.discretion.of(tenant)
    }

    /// Whether some recordings are deleted one day.
    pub fn forgets(&self) -> bool {
        self.discretion.forgets()
    }

    /// Deletes recordings from the store that are older than their tenant's rules say, every hour until `closing`.
    pub async fn forget(self: Arc<Self>, closing: CancellationToken) {
        let discretion = Arc::clone(&self.discretion);
        let (store, prefix) = (Arc::clone(&self.store), self.prefix.clone());
        retention::run(store, prefix, discretion, closing).await;
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

/// Where a recording is.
#[derive(Debug)]
pub enum Whereabouts {
    /// In its journal: it is being written or waits for the store.
    Journal,
    /// In the store.
    Store(Box<Metadata>),
    /// Nowhere: it has not begun, or was deleted.
    Nowhere,
}

/// Removes an unwanted journal in the background.
pub fn abandon(journal: Journal) {
    tokio::task::spawn_blocking(move || {
        if let Err(error) = journal.abandon() {
            tracing::warn!(%error, "the journal of a refused recording could not be removed");
        }
    });
}
