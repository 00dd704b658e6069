//! Puts together what two servers have recorded of one session: the server where it went on, and has ended, fetches the first
//! part from the store, joins its own to it, and the whole takes the place of the part there.
//!
//! The part may come later, as its server waits for the store, or was killed and starts again. It is waited for, an hour at most;
//! then the rest is stored by itself and says what it continues. Once both are joined in the journal, an upload that fails is
//! repeated like any other.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt;

use super::journal::FinishedJournal;
use super::recording_location::RecordingLocation;
use super::{AUDIO, METADATA, Metadata, TRANSCRIPT, catalogue};
use vivavoce_audio::ogg;
use vivavoce_core::hash::{hex, sha256};
use vivavoce_seams::{RecordingStore, StoreError};

/// How long the part before is waited for.
const PATIENCE: Duration = Duration::from_hours(1);
/// Parts so close follow each other at once.
const CONTIGUOUS: Duration = Duration::from_secs(1);
/// The most silence between two parts: a client may come back so late.
const MAX_SILENCE: Duration = Duration::from_hours(1);
/// The longest line of a transcript that is read; others are kept as they are.
const MAX_LINE: u64 = 1 << 20;

/// Joins a recording with the part that it follows, if it follows one. `None` while that is not in the store.
pub async fn join(
    store: &dyn RecordingStore,
    prefix: &str,
    journal: FinishedJournal,
) -> Result<Option<FinishedJournal>, StoreError> {
    let Some(before) = journal.joins()? else {
        return Ok(Some(journal));
    };
    let location = RecordingLocation::of(&journal.metadata);
    let known = match catalogue::metadata(store, prefix, &location).await {
        Ok(known) if known.ends_with() == before => known,
        Ok(_) | Err(StoreError::NotFound) => {
            if journal.finished()?.elapsed().unwrap_or_default() < PATIENCE {
                return Ok(None);
            }
            tracing::warn!(
                stream_id = journal.metadata.stream_id,
                "the first part of a recording has not come: the rest is stored by itself"
            );
            return Ok(Some(journal));
        }
        Err(error) => return Err(error),
    };
    let folder = journal.former();
    tokio::fs::create_dir_all(&folder).await?;
    for (name, key) in [
        (AUDIO, location.audio(prefix, &known)),
        (TRANSCRIPT, location.key(prefix, TRANSCRIPT)),
        (METADATA, location.key(prefix, METADATA)),
    ] {
        fetch(store, &key, &folder.join(name)).await?;
    }
    let joined = tokio::task::spawn_blocking(move || {
        let first = Part {
            folder,
            metadata: known,
        };
        if hex(&sha256(&mut first.open(AUDIO)?)?) != first.metadata.sha256 {
            let problem = "the first part of a recording is not what its metadata says";
            return Err(io::Error::other(problem));
        }
        let second = Part {
            folder: journal.folder.clone(),
            metadata: journal.metadata.clone(),
        };
        journal.joined(|folder| write(&first, &second, folder))
    });
    let joined = joined.await.map_err(io::Error::other)??;
    Ok(Some(joined))
}

async fn fetch(store: &dyn RecordingStore, key: &str, path: &Path) -> Result<(), StoreError> {
    let mut bytes = store.get(key, None).await?;
    let mut file = tokio::fs::File::create(path).await?;
    while let Some(piece) = bytes.next().await {
        file.write_all(&piece?).await?;
    }
    file.flush().await?;
    Ok(())
}

/// A part of a recording, and the folder of its files.
struct Part {
    folder: PathBuf,
    metadata: Metadata,
}

impl Part {
    fn open(&self, name: &str) -> io::Result<File> {
        File::open(self.folder.join(name))
    }
}

/// Writes both into a folder, and gives the metadata of the whole.
fn write(first: &Part, second: &Part, folder: &Path) -> io::Result<Metadata> {
    let audio = BufWriter::new(File::create_new(folder.join(AUDIO))?);
    let between = silence(&first.metadata, &second.metadata);
    let begins = ogg::join(first.open(AUDIO)?, between, second.open(AUDIO)?, audio)?;
    let mut lines = BufWriter::new(File::create_new(folder.join(TRANSCRIPT))?);
    io::copy(&mut first.open(TRANSCRIPT)?, &mut lines)?;
    shift(second.open(TRANSCRIPT)?, begins / 48, &mut lines)?;
    lines.flush()?;
    let (before, after) = (&first.metadata, &second.metadata);
    Ok(Metadata {
        started_at: before.started_at,
        last_part_at: Some(after.ends_with()),
        continues: None,
        complete: after.complete && (before.goes_on || before.complete),
        ..after.clone()
    })
}

/// What nobody has recorded: the second part begins where the first ends, but for clients that come back late.
fn silence(first: &Metadata, second: &Metadata) -> Duration {
    let ended = first.started_at.saturating_add(first.duration_ms);
    let between = Duration::from_millis(second.started_at.saturating_sub(ended));
    // Clocks differ a little, and so do the beginnings of sound and those of configs.
    if between < CONTIGUOUS {
        return Duration::ZERO;
    }
    between.min(MAX_SILENCE)
}

/// Copies lines whose times count from `by_ms` on.
fn shift(lines: File, by_ms: u64, output: &mut impl Write) -> io::Result<()> {
    let mut lines = BufReader::new(lines);
    loop {
        let mut line = Vec::new();
        io::Read::take(&mut lines, MAX_LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let Ok(mut known) = serde_json::from_slice::<Map<String, Value>>(&line) else {
            output.write_all(&line)?;
            continue;
        };
        if let Some(at) = known.get("at_ms").and_then(Value::as_u64) {
            known.insert("at_ms".to_owned(), at.saturating_add(by_ms).into());
        }
        serde_json::to_writer(&mut *output, &known)?;
        output.write_all(b"\n")?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::journal::{Journals, tests::metadata};
    use crate::uploader::Uploader;
    use vivavoce_audio::Channels;
    use vivavoce_audio::ogg::{OggOpusWriter, OpusHead, PAGE_TIME};
    use vivavoce_file_store::FileStore;

    /// A server with its journals, and the store of all.
    struct Scene {
        journals: Journals,
        store: Arc<FileStore>,
        uploader: AbortOnDropHandle<()>,
    }

    impl Scene {
        fn of(folder: &Path, server: &str) -> Self {
            let journals = Journals::open(folder.join(server)).unwrap();
            let store = Arc::new(FileStore::new(folder.join("store")));
            let all = Arc::clone(&store) as _;
            let uploader = Uploader::new(journals.clone(), all, "r".to_owned(), None);
            let uploader = tokio::spawn(uploader.run(CancellationToken::new()));
            Self {
                journals,
                store,
                uploader: AbortOnDropHandle::new(uploader),
            }
        }

        /// Records two seconds, and goes on elsewhere or not.
        fn records(&self, metadata: &Metadata, goes_on: bool) {
            let head = OpusHead {
                channels: Channels::Mono,
                pre_skip: 312,
                input_hz: 16_000,
            };
            let mut writer = OggOpusWriter::new(head, "vivavoce", &[], 1, PAGE_TIME).unwrap();
            let mut pages = Vec::new();
            for _ in 0..101 {
                pages.extend_from_slice(&writer.push(&[31 << 3, 1, 2]).unwrap());
            }
            pages.extend_from_slice(&writer.finish(Some(96_000)));
            let joins = metadata.continues.is_some();
            let mut journal = self.journals.begin_part(metadata, joins).unwrap();
            journal
                .append(&pages, "{\"type\":\"heard\",\"at_ms\":500}\nnot ours\n")
                .unwrap();
            if goes_on {
                journal.goes_on().unwrap();
            }
        }

        async fn known(&self) -> Option<Metadata> {
            let location = RecordingLocation::new(None, "a");
            catalogue::metadata(&*self.store, "r", &location).await.ok()
        }

        async fn until(&self, what: impl Fn(&Metadata) -> bool) -> Metadata {
            for _ in 0..10_000 {
                if let Some(known) = self.known().await.filter(&what) {
                    return known;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            panic!("it is never so: {:?}", self.known().await);
        }

        /// The metadata of a finished journal.
        async fn until_finished(&self, name: &str) -> PathBuf {
            let path = self.journals.folder().join(name).join(METADATA);
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            path
        }

        async fn lines(&self) -> String {
            let key = format!("r/a/{TRANSCRIPT}");
            let pieces = self.store.get(&key, None).await.unwrap();
            let pieces: Vec<_> = pieces.map(Result::unwrap).collect().await;
            String::from_utf8(pieces.concat()).unwrap()
        }
    }

    fn part(started_at: u64, continues: Option<u64>) -> Metadata {
        Metadata {
            started_at,
            continues,
            ..metadata("a")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_three_servers_have_recorded_is_one_recording_whichever_ends_first() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second, third] = ["1", "2", "3"].map(|name| Scene::of(folder.path(), name));
        third.records(&part(7_000, Some(2_100)), false);
        second.records(&part(2_100, Some(100)), true);
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(third.known().await, None);
        first.records(&part(100, None), true);
        let known = third.until(|known| known.complete).await;
        assert_eq!(
            (
                known.started_at,
                known.last_part_at,
                known.continues,
                known.goes_on
            ),
            (100, Some(7_000), None, false)
        );
        // 2 s, 2 s, 3 s of which nobody knows, and 2 s; of two ends less than a packet is cut.
        assert!((8_900..8_960).contains(&known.duration_ms), "{known:?}");
        let lines = third.lines().await;
        let times: Vec<u64> = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["at_ms"].as_u64())
            .collect();
        let meant = [500, 2_500, 7_400];
        assert!(
            times
                .iter()
                .zip(meant)
                .all(|(at, meant)| at.abs_diff(meant) < 60),
            "{lines}"
        );
        assert_eq!((times.len(), lines.matches("not ours").count()), (3, 3));
        for scene in [first, second, third] {
            assert_eq!(scene.journals.ended().unwrap(), [""; 0]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_joined_is_not_joined_again_by_the_next_process() {
        let folder = tempfile::tempdir().unwrap();
        let first = Scene::of(folder.path(), "1");
        first.records(&part(100, None), true);
        first.until(|known| known.goes_on).await;
        let second = Scene::of(folder.path(), "2");
        second.uploader.abort();
        second.records(&part(2_100, Some(100)), false);
        let name = second.journals.ended().unwrap().remove(0);
        let finish = || second.journals.finish(&name).unwrap().unwrap();
        let joined = join(&*second.store, "r", finish()).await.unwrap().unwrap();
        assert!(joined.metadata.duration_ms > 3_900);
        // It is killed before it has told the store.
        drop(joined);
        let again = join(&*second.store, "r", finish()).await.unwrap().unwrap();
        assert!(again.metadata.duration_ms < 4_100, "{:?}", again.metadata);
        drop(again);
        let _again = Scene::of(folder.path(), "2");
        let known = second.until(|known| known.complete).await;
        assert!((3_900..4_100).contains(&known.duration_ms));
    }

    #[tokio::test(start_paused = true)]
    async fn the_rest_is_stored_by_itself_if_the_first_part_never_comes() {
        let folder = tempfile::tempdir().unwrap();
        let second = Scene::of(folder.path(), "2");
        second.records(&part(2_100, Some(100)), false);
        let name = second.journals.ended().unwrap().remove(0);
        let finished = second.until_finished(&name).await;
        let long_ago = std::time::SystemTime::now() - PATIENCE;
        File::open(finished)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        let known = second.until(|known| known.complete).await;
        assert_eq!((known.started_at, known.continues), (2_100, Some(100)));
    }
}
