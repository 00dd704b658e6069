//! Deletes recordings older than `recording.retention_days`, or than the rules of their tenant say. The metadata is deleted first, so that nobody finds a
//! partly deleted recording; what an interrupted sweep has left is recognised by the age of its audio.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;

use super::catalogue::{Walk, metadata};
use super::discretion::Discretion;
use super::recording_location::{RecordingLocation, tenant_folder};
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
    discretion: Arc<Discretion>,
    closing: CancellationToken,
) {
    loop {
        let swept = tokio::select! {
            swept = sweep(&*store, &prefix, &discretion, SystemTime::now()) => swept,
            () = closing.cancelled() => return,
        };
        match swept {
            Ok(0) => {}
            Ok(count) => tracing::info!(
                count,
                "deleted recordings that were kept as long as they may be"
            ),
            Err(error) => {
                tracing::warn!(%error, "old recordings could not be deleted; retrying in an hour");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = closing.cancelled() => return,
        }
    }
}

/// Deletes recordings that have been kept as long as they may be, and returns how many.
pub async fn sweep(
    store: &dyn RecordingStore,
    prefix: &str,
    discretion: &Discretion,
    now: SystemTime,
) -> Result<usize, StoreError> {
    // What is left of an interrupted sweep names no tenant, but lies in its folder.
    let tenants = discretion.tenants.iter();
    let folders: HashMap<String, Option<Duration>> = tenants
        .map(|(tenant, rules)| (tenant_folder(tenant), rules.retention))
        .collect();
    let mut removed = 0;
    let mut walk = Walk::of_all(None);
    loop {
        let (locations, more) = walk.next(store, prefix, PAGE).await?;
        for location in &locations {
            let Some(Ended { tenant, at, audio }) = ended(store, prefix, location).await? else {
                continue;
            };
            let age = match tenant {
                Some(tenant) => discretion.of(Some(&tenant)).retention,
                None => {
                    let own = location.folder().and_then(|folder| folders.get(folder));
                    *own.unwrap_or(&discretion.everybody.retention)
                }
            };
            if age.is_some_and(|age| now.duration_since(at).is_ok_and(|since| since > age)) {
                // Nothing else tells where it is.
                if let Some(audio) = audio {
                    store.delete(&audio).await?;
                }
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

/// A recording that has ended.
struct Ended {
    /// Whose it is, where that is known.
    tenant: Option<String>,
    at: SystemTime,
    /// The key of its audio, if it has one of its own.
    audio: Option<String>,
}

/// `None` if it cannot be determined when it ended.
async fn ended(
    store: &dyn RecordingStore,
    prefix: &str,
    location: &RecordingLocation,
) -> Result<Option<Ended>, StoreError> {
    match metadata(store, prefix, location).await {
        Ok(known) => {
            let ms = known.started_at.saturating_add(known.duration_ms);
            let audio = known.file.is_some().then(|| location.audio(prefix, &known));
            let ended = UNIX_EPOCH.checked_add(Duration::from_millis(ms));
            Ok(ended.map(|at| Ended {
                tenant: known.tenant,
                at,
                audio,
            }))
        }
        // Partly deleted, or being uploaded, in which case it is recent.
        Err(StoreError::NotFound) => match store.head(&location.key(prefix, AUDIO)).await {
            Ok(sound) => Ok(Some(Ended {
                tenant: None,
                at: sound.modified,
                audio: None,
            })),
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
        kept_for(None, folder, name, started);
    }

    fn kept_for(tenant: Option<&str>, folder: &std::path::Path, name: &str, started: SystemTime) {
        let mut folder = folder.join("r");
        if let Some(tenant) = tenant {
            folder = folder.join(tenant_folder(tenant));
        }
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let started_at = started.duration_since(UNIX_EPOCH).unwrap().as_millis();
        let known = serde_json::json!({
            "tenant": tenant, "stream_id": name, "started_at": started_at, "duration_ms": 1_000, "size": 1, "sha256": "",
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
        let mut rules = Discretion::default();
        let swept = async |rules: &Discretion, now| sweep(&store, "r", rules, now).await.unwrap();
        assert_eq!(swept(&rules, now).await, 0);
        rules.everybody.retention = Some(2 * DAY);
        assert_eq!(swept(&rules, now).await, 1);
        assert_eq!(
            store.list("r", None, 9).await.unwrap().names,
            ["half", "young"]
        );
        rules.everybody.retention = Some(DAY / 2);
        assert_eq!(swept(&rules, now + DAY).await, 2);
        assert_eq!(store.list("r", None, 9).await.unwrap().names, [""; 0]);
    }

    #[tokio::test]
    async fn each_tenant_has_its_own_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().to_owned());
        let now = SystemTime::now();
        for (tenant, name) in [
            (None, "nobodys"),
            (Some("short"), "a"),
            (Some("short"), "half"),
            (Some("long"), "b"),
            (Some("other"), "c"),
        ] {
            kept_for(tenant, folder.path(), name, now - 3 * DAY);
        }
        let half = folder.path().join("r").join(tenant_folder("short"));
        std::fs::remove_file(half.join("half").join(METADATA)).unwrap();
        let own = |days: Option<u32>| super::super::discretion::Rules {
            retention: days.map(|days| DAY * days),
            ..Default::default()
        };
        let tenants = [("short", Some(1)), ("long", None)];
        let tenants = tenants.map(|(tenant, days)| (tenant.to_owned(), own(days)));
        let mut rules = Discretion {
            tenants: tenants.into_iter().collect(),
            ..Discretion::default()
        };
        // What is half deleted is as old as its sound, which was written now.
        assert_eq!(sweep(&store, "r", &rules, now).await.unwrap(), 1);
        assert_eq!(sweep(&store, "r", &rules, now + 2 * DAY).await.unwrap(), 1);
        rules.everybody.retention = Some(2 * DAY);
        assert_eq!(sweep(&store, "r", &rules, now).await.unwrap(), 2);
        assert!(
            store
                .head(&format!("r/{}/b/{AUDIO}", tenant_folder("long")))
                .await
                .is_ok()
        );
    }
}
