//! Recordings that somebody else makes: begun with a session, stopped when it ends, and looked after until they are in
//! the store, where they lie as our own do. What is under way is noted on the disk, so that a next process looks after
//! what this one leaves.
//!
//! `{data_dir}/recordings/.egress/{journal}/`, called as a journal would be ([`Place::journal`]), holds `note.json`; it is there from before a recording begins until it
//! is stored, or never will be.

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
use super::place::{self, Place};
use super::{AUDIO, METADATA, Metadata, Recordings};
use vivavoce_core::hash::hex;
use vivavoce_seams::rooms::egress::{EgressState, RoomEgress};
use vivavoce_seams::{RoomError, StoreError, StoredFile};
use vivavoce_telemetry::metrics;
use vivavoce_webhooks::{Notice, NoticeEvent, RecordingFile};

/// Where the notes are, below the data folder.
const FOLDER: &str = "recordings/.egress";
const NOTE: &str = "note.json";
/// How often they are looked after.
const LOOK: Duration = Duration::from_secs(5);
/// Looked after at once.
const AT_ONCE: usize = 8;

/// What is noted of a recording.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// Its id where it is made; `None` before it has begun.
    egress: Option<String>,
    metadata: Metadata,
}

/// All of them. See the module.
pub struct Egresses {
    service: Arc<dyn RoomEgress>,
    recordings: Arc<Recordings>,
    folder: PathBuf,
    /// Those whose sessions go on, and how these are told of an early end.
    live: Mutex<HashMap<String, Option<oneshot::Sender<String>>>>,
    changed: Notify,
}

/// Why none has begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// There is one of this name.
    #[error("stream_id: there is a recording of this name, and none is ever overwritten")]
    Exists,
    /// It cannot be noted.
    #[error("rtc.recording: it cannot be noted: {0}")]
    Note(#[from] io::Error),
    /// Whoever was to make it does not.
    #[error("rtc.recording: {0}")]
    Service(#[from] RoomError),
}

/// A recording that goes on. Dropping it stops it.
pub struct Egress {
    name: String,
    all: Arc<Egresses>,
    ends: Option<oneshot::Receiver<String>>,
}

impl Egress {
    /// Why it has ended before it was stopped, as soon as it has. To be asked for once.
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

/// What is known of one that is not in the store yet.
pub(super) async fn look_up(
    recordings: &Recordings,
    place: &Place,
) -> io::Result<Option<Metadata>> {
    let note = read(&recordings.data_dir.join(FOLDER).join(place.journal())).await?;
    Ok(note.map(|note| note.metadata))
}

/// What is known of all of a name that are not in the store yet, whoever they belong to.
pub(super) async fn all_of(recordings: &Recordings, stream_id: &str) -> io::Result<Vec<Metadata>> {
    let folder = recordings.data_dir.join(FOLDER);
    let mut known = Vec::new();
    for name in names(&folder).await {
        if place::is_journal_of(&name, stream_id) {
            known.extend(read(&folder.join(name)).await?.map(|note| note.metadata));
        }
    }
    Ok(known)
}

impl Egresses {
    /// Those that this service makes into the store of these recordings.
    pub fn open(service: Arc<dyn RoomEgress>, recordings: Arc<Recordings>) -> Arc<Self> {
        Arc::new(Self {
            folder: recordings.data_dir.join(FOLDER),
            service,
            recordings,
            live: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Who makes them.
    pub fn slug(&self) -> &'static str {
        self.service.slug()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<String, Option<oneshot::Sender<String>>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to record a room. Whoever gives the answer up has it stopped.
    pub async fn begin(
        self: &Arc<Self>,
        metadata: Metadata,
        room: String,
    ) -> Result<Egress, BeginError> {
        let all = Arc::clone(self);
        // In a task of its own: what the service has begun is noted, whoever waits for it.
        let begun = tokio::spawn(async move { all.begin_noted(metadata, &room).await });
        begun.await.map_err(io::Error::other)?
    }

    async fn begin_noted(
        self: Arc<Self>,
        metadata: Metadata,
        room: &str,
    ) -> Result<Egress, BeginError> {
        let place = Place::of(&metadata);
        let name = place.journal().to_owned();
        let tenant = metadata.tenant.clone();
        let folder = self.folder.join(&name);
        let (tell, ends) = oneshot::channel();
        match self.live().entry(name.clone()) {
            Entry::Occupied(_) => return Err(BeginError::Exists),
            Entry::Vacant(place) => place.insert(Some(tell)),
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
            let journal = place.clone();
            let look_up = move |journals: Journals| journals.look_up(&journal);
            let journal = self.recordings.in_journals(look_up).await?;
            let tenant = tenant.as_deref();
            if journal.is_some() || self.recordings.is_stored(&place, tenant).await {
                return Err(BeginError::Exists);
            }
            let key = place.key(&self.recordings.prefix, AUDIO);
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

    /// Looks after them until it is `closing`, and stops those then whose sessions have ended.
    pub async fn run(self: Arc<Self>, closing: CancellationToken) {
        loop {
            let closed = closing.is_cancelled();
            let names = names(&self.folder).await;
            let each = futures_util::stream::iter(names);
            each.for_each_concurrent(AT_ONCE, |name| self.look_after(name))
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

    async fn look_after(&self, name: String) {
        let folder = self.folder.join(&name);
        let live = self.live().contains_key(&name);
        let done = match read(&folder).await {
            Ok(Some(Note {
                egress: Some(id),
                metadata,
            })) => {
                let place = match Place::of(&metadata) {
                    place if place.journal() == name => place,
                    // One that version 0.1.0 has begun.
                    _ => Place::top(&metadata.stream_id),
                };
                self.look_at(&folder, &place, &id, metadata, live).await
            }
            // One that was to begin when its process died.
            Ok(_) => Ok(!live),
            Err(error) => Err(error.to_string()),
        };
        match done {
            Ok(true) => {
                if let Err(error) = fs::remove_dir_all(&folder).await {
                    tracing::warn!(note = name, %error, "the note of a recording stays");
                }
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(note = name, error, "a recording is looked after later");
            }
        }
    }

    /// Whether there is nothing left to do for it.
    async fn look_at(
        &self,
        folder: &Path,
        place: &Place,
        id: &str,
        metadata: Metadata,
        live: bool,
    ) -> Result<bool, String> {
        match self.service.look(id).await.map_err(|e| e.to_string())? {
            EgressState::Goes if live => Ok(false),
            EgressState::Goes => {
                // It may be ending already, which is looked at again.
                if let Err(error) = self.service.stop(id).await {
                    tracing::debug!(%error, "a recording was not stopped");
                }
                Ok(false)
            }
            EgressState::Failed(why) => {
                self.failed(place, &metadata, why).await;
                Ok(true)
            }
            EgressState::Stored { duration, complete } => {
                let early = "the recording was ended where it is made";
                self.tell_session(place, early);
                let known = Metadata {
                    duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
                    complete,
                    ..metadata
                };
                self.stored(folder, place, known).await
            }
        }
    }

    fn tell_session(&self, place: &Place, why: &str) {
        if let Some(tell) = self.live().get_mut(place.journal()).and_then(Option::take) {
            // Fails when nobody wants to know.
            let _told = tell.send(why.to_owned());
        }
    }

    async fn stored(
        &self,
        folder: &Path,
        place: &Place,
        mut metadata: Metadata,
    ) -> Result<bool, String> {
        let (store, prefix) = (&self.recordings.store, &self.recordings.prefix);
        let sound = place.key(prefix, AUDIO);
        match self.measure(&sound).await {
            Ok((size, sha256)) => (metadata.size, metadata.sha256) = (size, sha256),
            Err(StoreError::NotFound) => {
                let why = "it was said to be stored, and is not in our bucket";
                self.failed(place, &metadata, why.to_owned()).await;
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
        };
        match store.put(&place.key(prefix, METADATA), file).await {
            // Somebody died between keeping it and saying so.
            Ok(_) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error.to_string()),
        }
        metrics::recording_stored();
        let file = file_of(sound, &metadata);
        self.tell(&metadata, NoticeEvent::RecordingStored(file))
            .await;
        Ok(true)
    }

    /// The size and the SHA-256 of what is under a key, as our own recordings are described.
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

    async fn failed(&self, place: &Place, metadata: &Metadata, message: String) {
        self.tell_session(place, &message);
        tracing::error!(
            stream_id = metadata.stream_id,
            message,
            "a room was not recorded"
        );
        let sound = place.key(&self.recordings.prefix, AUDIO);
        let file = file_of(sound, metadata);
        self.tell(metadata, NoticeEvent::RecordingFailed { file, message })
            .await;
    }

    async fn tell(&self, metadata: &Metadata, event: NoticeEvent) {
        if let Some(webhooks) = &self.recordings.webhooks {
            let tenant = metadata.tenant.as_deref();
            let notice = Notice::now(&metadata.stream_id, tenant, event);
            webhooks.tell(&notice).await;
        }
    }
}

fn file_of(key: String, metadata: &Metadata) -> RecordingFile {
    RecordingFile {
        key,
        duration_ms: metadata.duration_ms,
        size: metadata.size,
        sha256: metadata.sha256.clone(),
    }
}

async fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    // There is no such folder before the first of them.
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
