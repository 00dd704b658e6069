//! Deletes recordings older than `recording.retention_days`. The metadata is deleted first, so that nobody finds a
//! partly deleted recording; what an interrupted sweep has left is recognised by the age of its audio.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;

use super::catalogue::{Walk, metadata};
use super::recording_location::RecordingLocation;
use super::{AUDIO, METADATA, TRANSCRIPT};
use vivavoce_seams::{RecordingStore, StoreError};

/// The pause between two sweeps.
const PAUSE: Duration = Duration::from_hours(1);
/// Names requested per listing.
const PAGE: usize = 1_000;

/// Sweeps at once and then every hour, until `closing`.
pub async fn run(
    store: Arc<dyn RecordingStore>,
    prefix: String,
    age: Duration,
    closing: CancellationToken,
) {
    loop {
        let before = SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH);
        let swept = tokio::select! {
            swept = sweep(&*store, &prefix, before) => swept,
            () = closing.cancelled() => return,
        };
        match swept {
            Ok(0) => {}
            Ok(count) => tracing::info!(
                count,
                "deleted recordings older than recording.retention_days"
            ),
            Err(error) => {
                tracing::warn!(%error, "recordings older than recording.retention_days could not be deleted; retrying in an hour");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = closing.cancelled() => return,
        }
    }
}

/// Deletes recordings that ended before that moment, and returns how many.
pub async fn sweep(
    store: &dyn RecordingStore,
    prefix: &str,
    before: SystemTime,
) -> Result<usize, StoreError> {
    let mut removed = 0;
    let mut walk = Walk::of_all(None);
    loop {
        let (locations, more) = walk.next(store, prefix, PAGE).await?;
        for location in &locations {
            if ended(store, prefix, location)
                .await?
                .is_some_and(|at| at < before)
            {
                for file in [METADATA, TRANSCRIPT, AUDIO] {
                    store.delete(&location.key(prefix, file)).await?;
                }
                removed += 1;
            }
        }
        if !more {
            return Ok(removed);
        }
    }
}

/// When the recording ended; `None` if that cannot be determined.
async fn ended(
    store: &dyn RecordingStore,
    prefix: &str,
    location: &RecordingLocation,
) -> Result<Option<SystemTime>, StoreError> {
    match metadata(store, prefix, location).await {
        Ok(known) => {
            let ms = known.started_at.saturating_add(known.duration_ms);
            Ok(UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
        }
        // Partly deleted, or being uploaded, in which case it is recent.
        Err(StoreError::NotFound) => match store.head(&location.key(prefix, AUDIO)).await {
            Ok(sound) => Ok(Some(sound.modified)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_file_store::FileStore;

    const DAY: Duration = Duration::from_hours(24);

    fn kept(folder: &std::path::Path, name: &str, started: SystemTime) {
        let folder = folder.join("r").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let started_at = started.duration_since(UNIX_EPOCH).unwrap().as_millis();
        let known = serde_json::json!({
            "stream_id": name, "started_at": started_at, "duration_ms": 1_000, "size": 1, "sha256": "",
            "channels": 1, "participants": [], "complete": true,
        });
        for (file, text) in [
            (AUDIO, "a"),
            (TRANSCRIPT, ""),
            (METADATA, &known.to_string()),
        ] {
            std::fs::write(folder.join(file), text).unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_too_old_goes_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().to_owned());
        let now = SystemTime::now();
        kept(folder.path(), "old", now - 3 * DAY);
        kept(folder.path(), "young", now - DAY);
        // An interrupted sweep, and a recording being uploaded.
        kept(folder.path(), "half", now - 3 * DAY);
        std::fs::remove_file(folder.path().join("r/half").join(METADATA)).unwrap();
        assert_eq!(sweep(&store, "r", now - 2 * DAY).await.unwrap(), 1);
        assert_eq!(
            store.list("r", None, 9).await.unwrap().names,
            ["half", "young"]
        );
        let later = now + DAY / 2;
        assert_eq!(sweep(&store, "r", later).await.unwrap(), 2);
        assert_eq!(store.list("r", None, 9).await.unwrap().names, [""; 0]);
    }
}
