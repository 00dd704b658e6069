//! One attempt to upload a finished journal. Retrying is up to the caller.

use std::fs::File;
use std::path::Path;

use super::journal::FinishedJournal;
use super::recording_location::RecordingLocation;
use super::{AUDIO, METADATA, TRANSCRIPT};
use vivavoce_core::hash::sha256;
use vivavoce_seams::{RecordingStore, StoreError, StoredFile};

/// The files of a recording in upload order, with their media types: if the last one is in the store, all are.
const FILES: [(&str, &str); 3] = [
    (AUDIO, "audio/ogg"),
    (TRANSCRIPT, "application/jsonl"),
    (METADATA, "application/json"),
];

/// Uploads all files and returns once the store has confirmed them. A later attempt resumes where this one failed. The
/// caller removes the journal, after reporting the event.
pub async fn upload(
    store: &dyn RecordingStore,
    prefix: &str,
    journal: &FinishedJournal,
) -> Result<(), StoreError> {
    let location = RecordingLocation::of(&journal.metadata);
    for (name, content_type) in FILES {
        let path = journal.file(name);
        let (size, sha256) = measure(&path).await?;
        let progress = journal.progress_of(name);
        // The audio of what was joined has another key than that of its parts.
        let replaces = match measure(&journal.former().join(name)).await {
            Err(StoreError::NotFound) => None,
            measured => Some(measured?.1),
        };
        let file = StoredFile {
            path: &path,
            size,
            sha256,
            content_type,
            progress: &progress,
            replaces,
        };
        let key = match name {
            AUDIO => location.audio(prefix, &journal.metadata),
            name => location.key(prefix, name),
        };
        let kept = store.put(&key, file).await?;
        if kept.size != size || kept.sha256.is_some_and(|kept| kept != sha256) {
            return Err(StoreError::Unavailable {
                retry_after: None,
                message: format!("{key} in the store differs from what was sent"),
            });
        }
    }
    // Nobody finds the former audio any more.
    if let Some(former) = journal.former_audio(prefix).map_err(StoreError::Io)? {
        store.delete(&former).await?;
    }
    Ok(())
}

async fn measure(path: &Path) -> Result<(u64, [u8; 32]), StoreError> {
    let path = path.to_owned();
    let measured = tokio::task::spawn_blocking(move || {
        let mut file = File::open(path)?;
        Ok::<_, std::io::Error>((file.metadata()?.len(), sha256(&mut file)?))
    });
    Ok(measured.await.map_err(std::io::Error::other)??)
}
