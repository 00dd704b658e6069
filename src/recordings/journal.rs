//! Journals: a folder per recording, written while the session goes on and gone when the store has everything. What a
//! process that died has left is found again at the next start.
//!
//! `{root}/{stream_id}/` holds `session.json` (what is known at the start), `audio.ogg`, `transcript.jsonl`, and, once
//! it is finished, `metadata.json`; whoever brings it to the store notes its progress beside them.

use std::path::{Path, PathBuf};

/// Where all journals are, below the data folder.
pub const FOLDER: &str = "recordings/.journal";

/// A journal that is finished: nothing in it changes any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedJournal {
    /// Its folder.
    pub folder: PathBuf,
    /// What `metadata.json` says.
    pub metadata: super::Metadata,
}

impl FinishedJournal {
    /// One of its files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where a store notes how far it has got with one of its files.
    pub fn progress_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.progress"))
    }
}

/// The folder of the journals.
pub fn root(data_dir: &Path) -> PathBuf {
    data_dir.join(FOLDER)
}
