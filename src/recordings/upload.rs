//! One attempt to bring a finished journal into a store. When to try again is its caller's decision.

use std::fs::File;
use std::path::Path;

use super::journal::FinishedJournal;
use super::place::Place;
use super::{AUDIO, METADATA, TRANSCRIPT};
use vivavoce_core::hash::sha256;
use vivavoce_seams::{RecordingStore, StoreError, StoredFile};

/// The files of a recording in the order in which they are kept, with their media types: whoever finds the last one
/// finds them all.
const FILES: [(&str, &str); 3] = [
    (AUDIO, "audio/ogg"),
    (TRANSCRIPT, "application/jsonl"),
    (METADATA, "application/json"),
];

/// Keeps everything, and returns when the store says that it has it. Another attempt goes on where this one has failed;
/// removing the journal is for the caller, who may have something to say first.
pub async fn upload(
    store: &dyn RecordingStore,
    prefix: &str,
    journal: &FinishedJournal,
) -> Result<(), StoreError> {
    let place = Place::of(&journal.metadata);
    for (name, content_type) in FILES {
        let path = journal.file(name);
        let (size, sha256) = measure(&path).await?;
        let progress = journal.progress_of(name);
        let file = StoredFile {
            path: &path,
            size,
            sha256,
            content_type,
            progress: &progress,
        };
        let key = place.key(prefix, name);
        let kept = store.put(&key, file).await?;
        if kept.size != size || kept.sha256.is_some_and(|kept| kept != sha256) {
            return Err(StoreError::Unavailable {
                retry_after: None,
                message: format!("{key} is not what was sent"),
            });
        }
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
