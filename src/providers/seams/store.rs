//! The trait of recording stores: objects under keys, written once, read in ranges. A store tries an operation once;
//! retries, and the contents of recordings, belong to `src/recordings`.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

/// Keeps objects. Keys are `/`-separated names of `A-Z a-z 0-9 . _ -`, none of them empty, `.` or `..`.
#[async_trait]
pub trait RecordingStore: Send + Sync {
    /// Its name in `recording.backend` and in events.
    fn slug(&self) -> &'static str;

    /// By what others that use the same store know it: two servers for which it is the same find each other's objects.
    async fn identity(&self) -> Result<String, StoreError>;

    /// What is known of an object.
    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError>;

    /// The bytes of an object, or the part of it that `range` names (which the caller has checked against its size).
    /// Holds a bounded part of it in memory.
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<ByteStream, StoreError>;

    /// Keeps a file, and returns when the store has it for good. Nothing is overwritten: where the key is taken, the
    /// same content counts as kept (somebody died between keeping and saying so), and other content is
    /// [`StoreError::Exists`], unless it is what the file [replaces](StoredFile::replaces). An object is there entirely or
    /// not at all.
    async fn put(&self, key: &str, file: StoredFile<'_>) -> Result<ObjectInfo, StoreError>;

    /// Removes an object; one that is not there counts as removed.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// The names directly below `prefix` (without a slash at its end), in the order of their bytes, `limit` of them at
    /// most, behind `after` where it is given.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, StoreError>;
}

/// A file that is to be kept. It does not change meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct StoredFile<'a> {
    /// Where it is.
    pub path: &'a Path,
    /// Its bytes.
    pub size: u64,
    /// Its SHA-256.
    pub sha256: [u8; 32],
    /// Its media type.
    pub content_type: &'static str,
    /// A file of the store's own, in which it notes how far it has got, so that another attempt, also of another
    /// process, goes on from there. Whoever gave it removes it.
    pub progress: &'a Path,
    /// The SHA-256 of what may be under the key and is replaced.
    pub replaces: Option<[u8; 32]>,
}

/// What is known of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its bytes.
    pub size: u64,
    /// When it was kept.
    pub modified: SystemTime,
    /// Its SHA-256, where the store knows it.
    pub sha256: Option<[u8; 32]>,
}

/// Some of the names below a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// In order.
    pub names: Vec<String>,
    /// Whether there are others behind them.
    pub more: bool,
}

/// The bytes of an object, in pieces.
pub type ByteStream = BoxStream<'static, Result<Bytes, StoreError>>;

/// Why a store did not do it. Messages name what the store said, never a credential.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// The key is taken by something else.
    #[error("the key is taken")]
    Exists,
    /// The credentials are wrong, or not good enough; trying again helps only once somebody has changed them.
    #[error("the store refuses: {0}")]
    Denied(String),
    /// The store, its bucket or the way to it is not there.
    #[error("the store is away: {message}")]
    Unavailable {
        /// When to ask again, where it said so.
        retry_after: Option<Duration>,
        /// What it said.
        message: String,
    },
    /// There is no space left.
    #[error("the store is full")]
    Full,
    /// The system refused, or a file of ours cannot be read.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // A file where a folder would be: nothing is below it.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NotFound,
            io::ErrorKind::AlreadyExists => Self::Exists,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Denied(error.to_string())
            }
            _ => Self::Io(error),
        }
    }
}
