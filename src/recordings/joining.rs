//! Puts together what two servers have recorded of one session. The server where it went on, and has ended, fetches the first
//! part from the store, joins its own to it, and the whole takes the place of the part there.
//!
//! The first part may come later, as its server waits for the store, or was killed and starts again. It is waited for, for an hour
//! in which the store says that it is not there; then the rest is stored by itself, and a first part that comes after that joins
//! it. Once both are joined in the journal, an upload that fails is repeated like any other.
//!
//! The audio of the whole has a key of its own, so that whoever reads the recording while its files are replaced gets the one or
//! the other: the metadata, which is replaced last, says which.

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

/// How long the other part is waited for.
const PATIENCE: Duration = Duration::from_hours(1);
/// Parts so close follow each other at once.
const CONTIGUOUS: Duration = Duration::from_secs(1);
/// The most silence between two parts: a client may come back so late.
const MAX_SILENCE: Duration = Duration::from_hours(1);
/// The longest line of a transcript that is read; others are kept as they are.
const MAX_LINE: u64 = 1 << 20;

/// What is to be done with a recording.
pub enum Joined {
    /// It is to be stored.
    Whole(Box<FinishedJournal>),
    /// It is in the store, as a part of another one.
    Stored(Box<FinishedJournal>),
    /// The part before it is not in the store.
    Waits,
}

/// Where a part belongs.
#[derive(Clone, Copy)]
enum Place {
    /// Behind the other.
    Behind,
    /// In front of it: that was stored by itself.
    Before,
}

/// Joins a recording with the other part that the store has, if there is one.
pub async fn join(
    store: &dyn RecordingStore,
    prefix: &str,
    journal: FinishedJournal,
) -> Result<Joined, StoreError> {
    let follows = journal.joins()?;
    let is_part = journal.metadata.goes_on || !journal.metadata.parts.is_empty();
    if follows.is_none() && !is_part {
        return Ok(whole(journal));
    }
    let location = RecordingLocation::of(&journal.metadata);
    let known = match catalogue::metadata(store, prefix, &location).await {
        Err(StoreError::NotFound) => None,
        known => Some(known?),
    };
    let own = &journal.metadata;
    let place = match &known {
        // Somebody was killed between storing and removing it, and meanwhile more has been joined.
        Some(known) if known.begun() != own.begun() && known.has(own) => {
            return Ok(Joined::Stored(Box::new(journal)));
        }
        Some(known) if follows == Some(known.ends_with()) => Place::Behind,
        Some(known) if known.continues == Some(own.ends_with()) => Place::Before,
        _ if journal.is_joined() => {
            if known.is_some_and(|known| own.has(&known)) {
                return Ok(whole(journal));
            }
            // Somebody has deleted what it was joined with: that does not come back.
            return tokio::task::spawn_blocking(move || journal.part())
                .await
                .map_err(io::Error::other)?
                .map(|()| Joined::Waits)
                .map_err(local);
        }
        _ if follows.is_some() => {
            return waits(journal, "the first part of a recording has not come");
        }
        _ => return Ok(whole(journal)),
    };
    let (Some(known), false) = (known, journal.is_joined()) else {
        return Ok(whole(journal));
    };
    let folder = journal.former();
    let fetched = fetch_all(store, prefix, &known, &folder).await;
    let journal = match fetched {
        Ok(()) => tokio::task::spawn_blocking(move || put_together(journal, known, place))
            .await
            .map_err(io::Error::other)?,
        Err(error) => Err((Box::new(journal), error)),
    };
    match journal {
        Ok(journal) => Ok(whole(journal)),
        // It is damaged there, or was replaced while it was fetched.
        Err((journal, StoreError::Io(error))) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(%error, "two parts of a recording cannot be joined");
            journal.part().map_err(local)?;
            waits(*journal, "two parts of a recording cannot be joined")
        }
        Err((journal, error)) => {
            // The disk may be full of it.
            let _left = journal.part();
            Err(error)
        }
    }
}

fn whole(journal: FinishedJournal) -> Joined {
    Joined::Whole(Box::new(journal))
}

/// Waits, unless it has for long.
fn waits(journal: FinishedJournal, problem: &str) -> Result<Joined, StoreError> {
    let since = journal.waits().map_err(local)?;
    if since.elapsed().unwrap_or_default() < PATIENCE {
        return Ok(Joined::Waits);
    }
    let stream_id = &journal.metadata.stream_id;
    tracing::warn!(
        stream_id,
        problem,
        "a part of a recording is stored by itself"
    );
    Ok(whole(journal))
}

/// An error of our own disk, which is none of the store's.
fn local(error: io::Error) -> StoreError {
    StoreError::Io(error)
}

/// Fetches the other part.
async fn fetch_all(
    store: &dyn RecordingStore,
    prefix: &str,
    known: &Metadata,
    folder: &Path,
) -> Result<(), StoreError> {
    let location = RecordingLocation::of(known);
    tokio::fs::create_dir_all(folder).await.map_err(local)?;
    for (name, key) in [
        (AUDIO, location.audio(prefix, known)),
        (TRANSCRIPT, location.key(prefix, TRANSCRIPT)),
        (METADATA, location.key(prefix, METADATA)),
    ] {
        let mut bytes = store.get(&key, None).await?;
        let path = folder.join(name);
        let mut file = tokio::fs::File::create(path).await.map_err(local)?;
        while let Some(piece) = bytes.next().await {
            file.write_all(&piece?).await.map_err(local)?;
        }
        file.flush().await.map_err(local)?;
    }
    Ok(())
}

type Refused = (Box<FinishedJournal>, StoreError);

/// Joins what was fetched with what is here.
fn put_together(
    journal: FinishedJournal,
    known: Metadata,
    place: Place,
) -> Result<FinishedJournal, Refused> {
    let fetched = Part {
        folder: journal.former(),
        metadata: known,
    };
    let own = Part {
        folder: journal.folder.clone(),
        metadata: journal.metadata.clone(),
    };
    let is_sound = fetched
        .open(AUDIO)
        .and_then(|mut audio| sha256(&mut audio))
        .map(|sum| hex(&sum) == fetched.metadata.sha256);
    match is_sound {
        Ok(true) => {}
        Ok(false) => {
            let problem = io::Error::new(
                io::ErrorKind::InvalidData,
                "the audio is not what its metadata says",
            );
            return Err((Box::new(journal), local(problem)));
        }
        Err(error) => return Err((Box::new(journal), local(error))),
    }
    let (first, second) = match place {
        Place::Behind => (&fetched, &own),
        Place::Before => (&own, &fetched),
    };
    journal
        .joined(|folder| write(first, second, folder))
        .map_err(|(journal, error)| (journal, local(error)))
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
    let parts: Vec<u64> = before
        .begun()
        .iter()
        .chain(after.begun())
        .copied()
        .collect();
    let is_whole = before.goes_on || before.complete;
    let cut = before.cut || after.cut || !is_whole;
    Ok(Metadata {
        started_at: before.started_at,
        file: Some(format!("{}/audio-{}.ogg", after.stream_id, parts.len())),
        parts,
        cut,
        continues: before.continues,
        complete: after.complete && !cut,
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
    use std::ops::Range;
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::journal::{Journals, tests::metadata};
    use crate::marks::{Mark, Side};
    use crate::uploader::Uploader;
    use vivavoce_audio::Channels;
    use vivavoce_audio::ogg::{OggItem, OggOpusReader, OggOpusWriter, OpusHead, PAGE_TIME};
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
            self.records_without(metadata, goes_on, None);
        }

        /// The same, and these milliseconds of the input are silenced.
        fn records_without(&self, metadata: &Metadata, goes_on: bool, hidden: Option<Range<u64>>) {
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
            let silences = hidden.is_some();
            let journal = self.journals.begin_part(metadata, joins, silences);
            let mut journal = journal.unwrap();
            if let Some(hidden) = hidden {
                let hide = Mark::Hide {
                    side: Side::Heard,
                    from_ms: hidden.start,
                    to_ms: hidden.end,
                };
                let marks = hide.to_line() + &Mark::Ended.to_line();
                journal.mark(&marks).unwrap();
            }
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

        /// A journal has waited for its first part as long as it may.
        async fn has_waited_long(&self, name: &str) {
            let path = self.journals.folder().join(name).join("waits");
            while !path.exists() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let long_ago = std::time::SystemTime::now() - PATIENCE;
            File::open(path).unwrap().set_modified(long_ago).unwrap();
        }

        async fn until_empty(&self) {
            for _ in 0..10_000 {
                if std::fs::read_dir(self.journals.folder()).unwrap().count() == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            panic!("a journal is left: {:?}", self.journals.ended());
        }

        async fn audio(&self) -> Vec<u8> {
            let known = self.known().await.unwrap();
            let key = RecordingLocation::of(&known).audio("r", &known);
            let pieces = self.store.get(&key, None).await.unwrap();
            let pieces: Vec<_> = pieces.map(Result::unwrap).collect().await;
            pieces.concat()
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
                &known.parts[..],
                known.continues,
                known.goes_on
            ),
            (100, &[100, 2_100, 7_000][..], None, false)
        );
        assert_eq!(known.file.as_deref(), Some("a/audio-3.ogg"));
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
            scene.until_empty().await;
        }
        // The audio of the parts is gone.
        let files = std::fs::read_dir(folder.path().join("store/r/a")).unwrap();
        assert_eq!(files.count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_silenced_of_the_parts_is_silent_in_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["1", "2"].map(|name| Scene::of(folder.path(), name));
        first.records_without(&part(100, None), true, Some(0..1_000));
        second.records_without(&part(2_100, Some(100)), false, Some(500..1_500));
        second.until(|known| known.complete).await;
        let mut reader = OggOpusReader::new();
        reader.push(&second.audio().await);
        let mut packets = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            if let OggItem::Packet(packet) = item {
                packets.push(packet.data.to_vec());
            }
        }
        let silent = packets.iter().enumerate();
        let silent = silent.filter(|(_, packet)| packet[..] == [31 << 3, 0xFF, 0xFE]);
        let silent: Vec<usize> = silent.map(|(at, _)| at).collect();
        // Of 20 ms each, from which the pre-skip is taken, and the one before them; each part has 101.
        let expected: Vec<usize> = (0..51).chain(101 + 24..101 + 76).collect();
        assert_eq!(silent, expected);
        assert_eq!(packets.len(), 202);
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
        let whole = async || match join(&*second.store, "r", finish()).await.unwrap() {
            Joined::Whole(journal) => journal.metadata.duration_ms,
            Joined::Stored(_) | Joined::Waits => panic!("it is not joined"),
        };
        assert!((3_900..4_100).contains(&whole().await));
        // It is killed before it has told the store.
        assert!((3_900..4_100).contains(&whole().await));
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
        second.has_waited_long(&name).await;
        let known = second.until(|known| known.complete).await;
        assert_eq!((known.started_at, known.continues), (2_100, Some(100)));
        // It comes after all.
        let first = Scene::of(folder.path(), "1");
        first.records(&part(100, None), true);
        let known = second.until(|known| !known.parts.is_empty()).await;
        assert_eq!(
            (known.parts, known.complete, known.continues),
            (vec![100, 2_100], true, None)
        );
        first.until_empty().await;
        let audio = first.audio().await;
        assert!((3_900..4_100).contains(&known.duration_ms) && audio.len() as u64 == known.size);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_was_joined_before_its_server_knew_that_it_was_stored_is_not_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["1", "2"].map(|name| Scene::of(folder.path(), name));
        first.records(&part(100, None), true);
        second.records(&part(2_100, Some(100)), false);
        let known = second.until(|known| known.complete).await;
        first.until_empty().await;
        // As if it had been killed before it removed its journal.
        first.records(&part(100, None), true);
        first.until_empty().await;
        assert_eq!(first.known().await, Some(known));
    }

    #[tokio::test(start_paused = true)]
    async fn what_somebody_has_deleted_does_not_come_back_with_what_follows_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = Scene::of(folder.path(), "1");
        first.records(&part(100, None), true);
        first.until(|known| known.goes_on).await;
        let second = Scene::of(folder.path(), "2");
        second.uploader.abort();
        second.records(&part(2_100, Some(100)), false);
        let name = second.journals.ended().unwrap().remove(0);
        let finish = || second.journals.finish(&name).unwrap().unwrap();
        let joined = join(&*second.store, "r", finish()).await.unwrap();
        assert!(matches!(joined, Joined::Whole(journal) if journal.is_joined()));
        std::fs::remove_dir_all(folder.path().join("store/r/a")).unwrap();
        let after = join(&*second.store, "r", finish()).await.unwrap();
        assert!(matches!(after, Joined::Waits) && !finish().is_joined());
        let second = Scene::of(folder.path(), "2");
        second.has_waited_long(&name).await;
        let known = second.until(|known| known.complete).await;
        assert_eq!((known.started_at, known.parts.len()), (2_100, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_is_damaged_in_the_store_holds_up_nothing_else_and_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["1", "2"].map(|name| Scene::of(folder.path(), name));
        first.records(&part(100, None), true);
        first.until(|known| known.goes_on).await;
        std::fs::write(folder.path().join("store/r/a/audio.ogg"), "damaged").unwrap();
        second.records(&part(2_100, Some(100)), false);
        let name = second.journals.ended().unwrap().remove(0);
        second.has_waited_long(&name).await;
        let journal = second.journals.folder().join(&name);
        while crate::uploader::given_up(&journal).is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // What was recorded is here, and not fetched again.
        assert!(journal.join(AUDIO).exists() && !journal.join("before").exists());
    }
}
