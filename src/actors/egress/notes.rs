//! What is known of egresses on disk, one file each: what runs outlives a killed process, and what has ended is told for a day.
//! Another server may have the same folder, as when it replaces this one. All functions here block on the disk.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use livekit_protocol::{EgressInfo, EgressStatus};
use serde::{Deserialize, Serialize};

use vivavoce_recordings::Metadata;

/// The folder, below the data folder.
const FOLDER: &str = "recordings/.rooms";
/// How long an egress is told of after its end.
const KEPT: Duration = Duration::from_hours(24);
/// How many that have ended are told of.
const MAX_ENDED: usize = 1_000;
/// A longer file is none of ours.
const MAX_BYTES: u64 = 1 << 20;

/// What is known of an egress.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Note {
    /// What callers are told.
    pub info: EgressInfo,
    /// The recording.
    pub metadata: Metadata,
}

impl Note {
    /// Whether it is over, for good or for bad.
    pub fn has_ended(&self) -> bool {
        use EgressStatus::{EgressActive, EgressEnding, EgressStarting};
        !matches!(
            self.info.status(),
            EgressStarting | EgressActive | EgressEnding
        )
    }
}

/// The notes of all egresses.
#[derive(Debug, Clone)]
pub struct Notes(PathBuf);

impl Notes {
    /// Those below the data folder.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let folder = data_dir.join(FOLDER);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&folder)?;
        Ok(Self(folder))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }

    /// Writes a note, whole or not at all.
    pub fn write(&self, note: &Note) -> io::Result<()> {
        let (path, id) = (self.path(&note.info.egress_id), &note.info.egress_id);
        let unfinished = self.0.join(format!("{id}.new"));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(&serde_json::to_vec(note)?)?;
        file.sync_data()?;
        fs::rename(unfinished, path)
    }

    /// The note of an egress.
    pub fn read(&self, id: &str) -> Option<Note> {
        let is_id = |id: &str| {
            id.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        is_id(id).then(|| read(&self.path(id)))?
    }

    /// All notes. Those that have ended a while ago, or are too many, are removed.
    pub fn all(&self) -> io::Result<Vec<Note>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                all.extend(read(&path));
            }
        }
        all.sort_by_key(|note| std::cmp::Reverse(note.info.updated_at));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let oldest = now.unwrap_or_default().saturating_sub(KEPT).as_nanos();
        let mut ended = 0;
        all.retain(|note| {
            ended += usize::from(note.has_ended());
            let old = u128::try_from(note.info.updated_at).unwrap_or(0) < oldest;
            let kept = !note.has_ended() || (ended <= MAX_ENDED && !old);
            if !kept {
                let _the_next_look_tries_again = fs::remove_file(self.path(&note.info.egress_id));
            }
            kept
        });
        all.reverse();
        Ok(all)
    }
}

fn read(path: &Path) -> Option<Note> {
    let known = fs::metadata(path).ok()?;
    let text = (known.len() <= MAX_BYTES).then(|| fs::read(path).ok())??;
    serde_json::from_slice(&text).ok()
}
