//! Recordings made by a LiveKit deployment's egress service: started with a session, stopped when it ends, and polled
//! until they are in the store, under the same keys as our own recordings. Ongoing ones are noted on disk, so that the
//! next process takes over.
//!
//! The folder `{data_dir}/recordings/.egress/{journal}/`, named like a journal ([`RecordingLocation::journal`]),
//! contains `note.json`. It exists from before the recording starts until it is stored or has failed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::fs;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::journal::Journals;
use super::recording_location::{self, RecordingLocation};
use super::{AUDIO, METADATA, Metadata, Recordings};
use vivavoce_core::hash::hex;
use vivavoce_seams::rooms::egress::{EgressState, RoomEgress};
use vivavoce_seams::{RoomError, StoreError, StoredFile};
use vivavoce_telemetry::metrics;
use vivavoce_webhooks::{Event, EventKind, RecordingFile};

/// The folder of the notes, below the data folder.
const FOLDER: &str = "recordings/.egress";
const NOTE: &str = "note.json";
/// The polling interval.
const LOOK: Duration = Duration::from_secs(5);
/// Recordings polled concurrently.
const MAX_CONCURRENT: usize = 8;

/// What is written to disk about a recording.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// The egress id; `None` before it has started.
    egress: Option<String>,
    metadata: Metadata,
}

/// All recordings made by the egress service.
pub struct Egresses {
    service: Arc<dyn RoomEgress>,
    recordings: Arc<Recordings>,
    folder: PathBuf,
    /// Those whose sessions are running, each with the channel that reports an early end to the session.
    live: Mutex<HashMap<String, Option<oneshot::Sender<String>>>>,
    changed: Notify,
}

/// Why a recording could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// A recording of this name exists.
    #[error("stream_id: a recording of this name exists, and recordings are never overwritten")]
    Exists,
    /// The note cannot be written.
    #[error("rtc.recording: the note on disk cannot be written: {0}")]
    Note(#[from] io::Error),
    /// The egress service failed.
    #[error("rtc.recording: {0}")]
    Service(#[from] RoomError),
}

/// An ongoing recording. Dropping it stops the recording.
pub struct Egress {
    name: String,
    all: Arc<Egresses>,
    ends: Option<oneshot::Receiver<String>>,
}

impl Egress {
    /// Resolves with the reason if the recording ends before it is stopped. May be called once.
    pub fn ends(&mut self) -> impl Future<Output = Option<String>> + use<> {
        let ends = self.ends.take();
        async move { ends?.await.ok() }
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.all.live().remove(&self.name);
        self.all.changed.notify_one();
    }
}

/// The metadata of a recording that is not in the store yet.
pub(super) async fn look_up(
    recordings: &Recordings,
    location: &RecordingLocation,
) -> io::Result<Option<Metadata>> {
    let note = read(&recordings.data_dir.join(FOLDER).join(location.journal())).await?;
    Ok(note.map(|note| note.metadata))
}

/// The metadata of all recordings of a name that are not in the store yet, whoever they belong to.
pub(super) async fn all_of(recordings: &Recordings, stream_id: &str) -> io::Result<Vec<Metadata>> {
    let folder = recordings.data_dir.join(FOLDER);
    let mut known = Vec::new();
    for name in names(&folder).await {
        if recording_location::is_journal_of(&name, stream_id) {
            known.extend(read(&folder.join(name)).await?.map(|note| note.metadata));
        }
    }
    Ok(known)
}

impl Egresses {
    /// Recordings made by `service` into the store of `recordings`.
    pub fn open(service: Arc<dyn RoomEgress>, recordings: Arc<Recordings>) -> Arc<Self> {
        Arc::new(Self {
            folder: recordings.data_dir.join(FOLDER),
            service,
            recordings,
            live: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// The provider's slug.
    pub fn slug(&self) -> &'static str {
        self.service.slug()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<String, Option<oneshot::Sender<String>>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to record a room. If the future is dropped, the recording is stopped.
    pub async fn begin(
        self: &Arc<Self>,
        metadata: Metadata,
        room: String,
    ) -> Result<Egress, BeginError> {
        let all = Arc::clone(self);
        // In a task of its own, so that what the service has started is noted even if the caller goes away.
        let begun = tokio::spawn(async move { all.begin_noted(metadata, &room).await });
        begun.await.map_err(io::Error::other)?
    }

    async fn begin_noted(
        self: Arc<Self>,
        metadata: Metadata,
        room: &str,
    ) -> Result<Egress, BeginError> {
        let location = RecordingLocation::of(&metadata);
        let name = location.journal().to_owned();
        let tenant = metadata.tenant.clone();
        let folder = self.folder.join(&name);
        let (tell, ends) = oneshot::channel();
        match self.live().entry(name.clone()) {
            Entry::Occupied(_) => return Err(BeginError::Exists),
            Entry::Vacant(location) => location.insert(Some(tell)),
        };
        let egress = Egress {
            name: name.clone(),
            all: Arc::clone(&self),
            ends: Some(ends),
        };
        fs::create_dir_all(&self.folder).await?;
        match fs::create_dir(&folder).await {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(BeginError::Exists);
            }
            made => made?,
        }
        let mut note = Note {
            egress: None,
            metadata,
        };
        let begun = async {
            write(&folder, &note).await?;
            let journal = location.clone();
            let look_up = move |journals: Journals| journals.look_up(&journal);
            let journal = self.recordings.in_journals(look_up).await?;
            let tenant = tenant.as_deref();
            if journal.is_some() || self.recordings.is_stored(&location, tenant).await {
                return Err(BeginError::Exists);
            }
            let key = location.key(&self.recordings.prefix, AUDIO);
            let id = self.service.start(room, &key).await?;
            note.egress = Some(id.clone());
            if let Err(error) = write(&folder, &note).await {
                let _best_effort = self.service.stop(&id).await;
                return Err(error.into());
            }
            Ok(())
        };
        match begun.await {
            Ok(()) => Ok(egress),
            Err(error) => {
                let _there_is_nothing_to_look_after = fs::remove_dir_all(&folder).await;
                Err(error)
            }
        }
    }

    /// Polls all recordings until `closing`, and stops those whose sessions have ended.
    pub async fn run(self: Arc<Self>, closing: CancellationToken) {
        loop {
            let closed = closing.is_cancelled();
            let names = names(&self.folder).await;
            let each = futures_util::stream::iter(names);
            each.for_each_concurrent(MAX_CONCURRENT, |name| self.poll(name))
                .await;
            if closed {
                return;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = closing.cancelled() => {}
            }
        }
    }

    async fn poll(&self, name: String) {
        let folder = self.folder.join(&name);
        let live = self.live().contains_key(&name);
        let done = match read(&folder).await {
            Ok(Some(Note {
                egress: Some(id),
                metadata,
            })) => {
                let location = match RecordingLocation::of(&metadata) {
                    location if location.journal() == name => location,
                    // Started by version 0.1.0.
                    _ => RecordingLocation::top(&metadata.stream_id),
                };
                self.look_at(&folder, &location, &id, metadata, live).await
            }
            // The process died before the recording started.
            Ok(_) => Ok(!live),
            Err(error) => Err(error.to_string()),
        };
        match done {
            Ok(true) => {
                if let Err(error) = fs::remove_dir_all(&folder).await {
                    tracing::warn!(note = name, %error, "the note of a finished egress recording could not be removed");
                }
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(
                    note = name,
                    error,
                    "an egress recording could not be polled and will be polled again"
                );
            }
        }
    }

    /// Polls one recording. Returns whether it is finished.
    async fn look_at(
        &self,
        folder: &Path,
        location: &RecordingLocation,
        id: &str,
        metadata: Metadata,
        live: bool,
    ) -> Result<bool, String> {
        match self.service.look(id).await.map_err(|e| e.to_string())? {
            EgressState::Goes if live => Ok(false),
            EgressState::Goes => {
                // It may be ending already; the next poll will tell.
                if let Err(error) = self.service.stop(id).await {
                    tracing::debug!(%error, "an egress recording could not be stopped");
                }
                Ok(false)
            }
            EgressState::Failed(why) => {
                self.failed(location, &metadata, why).await;
                Ok(true)
            }
            EgressState::Stored { duration, complete } => {
                let early = "the egress service ended the recording";
                self.notify_session(location, early);
                let known = Metadata {
                    duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
                    complete,
                    ..metadata
                };
                self.stored(folder, location, known).await
            }
        }
    }

    fn notify_session(&self, location: &RecordingLocation, why: &str) {
        if let Some(tell) = self
            .live()
            .get_mut(location.journal())
            .and_then(Option::take)
        {
            // Fails if the session is not interested any more.
            let _told = tell.send(why.to_owned());
        }
    }

    async fn stored(
        &self,
        folder: &Path,
        location: &RecordingLocation,
        mut metadata: Metadata,
    ) -> Result<bool, String> {
        let (store, prefix) = (&self.recordings.store, &self.recordings.prefix);
        let sound = location.key(prefix, AUDIO);
        match self.measure(&sound).await {
            Ok((size, sha256)) => (metadata.size, metadata.sha256) = (size, sha256),
            Err(StoreError::NotFound) => {
                let why = "the egress service reported the recording as stored, but it is not in our bucket";
                self.failed(location, &metadata, why.to_owned()).await;
                return Ok(true);
            }
            Err(error) => return Err(error.to_string()),
        }
        let text = serde_json::to_vec_pretty(&metadata).map_err(|e| e.to_string())?;
        let (path, progress) = (folder.join(METADATA), folder.join("progress"));
        fs::write(&path, &text).await.map_err(|e| e.to_string())?;
        let file = StoredFile {
            path: &path,
            size: text.len() as u64,
            sha256: Sha256::digest(&text).into(),
            content_type: "application/json",
            progress: &progress,
            replaces: None,
        };
        match store.put(&location.key(prefix, METADATA), file).await {
            // A process died after storing the metadata and before removing the note.
            Ok(_) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error.to_string()),
        }
        metrics::recording_stored();
        let file = file_of(sound, &metadata);
        self.report(&metadata, EventKind::RecordingStored(file))
            .await;
        Ok(true)
    }

    /// The size and SHA-256 of an object, to describe it like our own recordings.
    async fn measure(&self, key: &str) -> Result<(u64, String), StoreError> {
        let mut pieces = self.recordings.store.get(key, None).await?;
        let (mut size, mut hash) = (0, Sha256::new());
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            size += piece.len() as u64;
            hash.update(&piece);
        }
        Ok((size, hex(&hash.finalize())))
    }

    async fn failed(&self, location: &RecordingLocation, metadata: &Metadata, message: String) {
        self.notify_session(location, &message);
        tracing::error!(
            stream_id = metadata.stream_id,
            message,
            "recording a room failed"
        );
        let sound = location.key(&self.recordings.prefix, AUDIO);
        let file = file_of(sound, metadata);
        self.report(metadata, EventKind::RecordingFailed { file, message })
            .await;
    }

    async fn report(&self, metadata: &Metadata, event: EventKind) {
        if let Some(webhooks) = &self.recordings.webhooks {
            let tenant = metadata.tenant.as_deref();
            let event = Event::now(&metadata.stream_id, tenant, event);
            webhooks.enqueue(&event).await;
        }
    }
}

fn file_of(key: String, metadata: &Metadata) -> RecordingFile {
    RecordingFile {
        key,
        duration_ms: metadata.duration_ms,
        size: metadata.size,
        sha256: metadata.sha256.clone(),
        goes_on: false,
    }
}

async fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    // The folder does not exist before the first recording.
    if let Ok(mut entries) = fs::read_dir(folder).await {
        while let Ok(Some(entry)) = entries.next_entry().await {
            names.extend(entry.file_name().into_string());
        }
    }
    names
}

async fn read(folder: &Path) -> io::Result<Option<Note>> {
    match fs::read(folder.join(NOTE)).await {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write(folder: &Path, note: &Note) -> io::Result<()> {
    let unfinished = folder.join("note.new");
    fs::write(&unfinished, serde_json::to_vec_pretty(note)?).await?;
    fs::File::open(&unfinished).await?.sync_all().await?;
    fs::rename(unfinished, folder.join(NOTE)).await
}
