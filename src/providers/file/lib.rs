//! Recordings as files below a folder: a key is a path. A file appears whole, by a link that replaces nothing.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};

use vivavoce_core::hash::sha256;
use vivavoce_seams::{ByteStream, Listing, ObjectInfo, RecordingStore, StoreError, StoredFile};

/// Names the store among the folders of all servers; a listing leaves it out.
const IDENTITY: &str = ".store";
/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

/// The store.
#[derive(Debug, Clone)]
pub struct FileStore {
    root: PathBuf,
}

impl FileStore {
    /// One below this folder, which need not exist.
    pub const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The file of a key; `None` for what is no key.
    fn path(&self, key: &str) -> Result<PathBuf, StoreError> {
        let is_name =
            |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains('\0');
        if key.split('/').all(is_name) {
            Ok(self.root.join(key))
        } else {
            Err(StoreError::NotFound)
        }
    }
}

#[async_trait]
impl RecordingStore for FileStore {
    fn slug(&self) -> &'static str {
        "file"
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let root = self.root.clone();
        blocking(move || Ok(identity(&root)?)).await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let path = self.path(key)?;
        blocking(move || Ok(known(&fs::metadata(path)?))).await
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<ByteStream, StoreError> {
        let path = self.path(key)?;
        let range = range.unwrap_or(0..u64::MAX);
        let file = blocking(move || {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(range.start))?;
            Ok(file.take(range.end.saturating_sub(range.start)))
        })
        .await?;
        let pieces = stream::try_unfold(file, |mut file| async move {
            blocking(move || {
                let mut piece = vec![0; PIECE];
                let read = file.read(&mut piece)?;
                piece.truncate(read);
                Ok((read > 0).then(|| (Bytes::from(piece), file)))
            })
            .await
        });
        Ok(pieces.boxed())
    }

    async fn put(&self, key: &str, file: StoredFile<'_>) -> Result<ObjectInfo, StoreError> {
        let path = self.path(key)?;
        let (source, hash, former) = (file.path.to_owned(), file.sha256, file.replaces);
        blocking(move || {
            let folder = path.parent().unwrap_or(Path::new("."));
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
            match keep(&source, &path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let there = sha256(&mut File::open(&path)?)?;
                    if Some(there) == former {
                        replace(&source, &path)?;
                    } else if there != hash {
                        return Err(StoreError::Exists);
                    }
                }
                kept => kept?,
            }
            File::open(folder)?.sync_all()?;
            if let Some(above) = folder.parent() {
                File::open(above)?.sync_all()?;
            }
            Ok(known(&fs::metadata(&path)?))
        })
        .await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path(key)?;
        blocking(move || {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            if let Some(folder) = path.parent() {
                // It goes with its last file.
                let _others_are_in_it = fs::remove_dir(folder);
            }
            Ok(())
        })
        .await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, StoreError> {
        let folder = self.path(prefix)?;
        let after = after.map(str::to_owned);
        blocking(move || {
            let entries = match fs::read_dir(folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Listing::default());
                }
                entries => entries?,
            };
            // The first names in order, of however many there are, with one more to know whether there is more.
            let mut first = std::collections::BinaryHeap::new();
            for entry in entries {
                let Ok(name) = entry?.file_name().into_string() else {
                    continue;
                };
                if name.starts_with('.') || after.as_ref().is_some_and(|after| name <= *after) {
                    continue;
                }
                first.push(name);
                if first.len() > limit.saturating_add(1) {
                    first.pop();
                }
            }
            let mut names = first.into_sorted_vec();
            let more = names.len() > limit;
            names.truncate(limit);
            Ok(Listing { names, more })
        })
        .await
    }
}

/// Puts a file where there is none.
fn keep(source: &Path, path: &Path) -> io::Result<()> {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, Unsupported};
    match fs::hard_link(source, path) {
        Err(error)
            if matches!(
                error.kind(),
                CrossesDevices | PermissionDenied | Unsupported
            ) => {}
        linked => return linked,
    }
    let part = copied(source, path)?;
    // Where there are no links there is no way to replace nothing but to look first.
    let kept = match fs::hard_link(&part, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            if path.try_exists()? {
                Err(io::ErrorKind::AlreadyExists.into())
            } else {
                return fs::rename(&part, path);
            }
        }
        linked => linked,
    };
    fs::remove_file(part)?;
    kept
}

/// Puts a file where there is another.
fn replace(source: &Path, path: &Path) -> io::Result<()> {
    fs::rename(copied(source, path)?, path)
}

/// A copy of a file beside the place where it is to be.
fn copied(source: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let copied = fs::copy(source, &part).and_then(|_| File::open(&part)?.sync_all());
    if let Err(error) = copied {
        // A full disk is left as it was.
        let _ = fs::remove_file(part);
        return Err(error);
    }
    Ok(part)
}

/// What is written in the folder, once somebody has asked.
fn identity(root: &Path) -> io::Result<String> {
    let path = root.join(IDENTITY);
    match read_identity(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        read => return read,
    }
    DirBuilder::new().recursive(true).mode(0o700).create(root)?;
    let name = format!("{:032x}", fastrand::u128(..));
    let own = root.join(format!("{IDENTITY}-{name}"));
    fs::write(&own, name)?;
    // Of two servers that are asked at once, one names it.
    let named = fs::hard_link(&own, &path);
    fs::remove_file(own)?;
    match named {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => read_identity(&path),
    }
}

fn read_identity(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(64).read_to_string(&mut text)?;
    Ok(text)
}

fn known(file: &fs::Metadata) -> ObjectInfo {
    ObjectInfo {
        size: file.len(),
        modified: file.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        sha256: None,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StoreError::Io(io::Error::other(error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(store: &FileStore, key: &str, range: Option<Range<u64>>) -> Vec<u8> {
        let mut pieces = store.get(key, range).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.next().await {
            bytes.extend_from_slice(&piece.unwrap());
        }
        bytes
    }

    async fn put(
        store: &FileStore,
        folder: &Path,
        key: &str,
        bytes: &[u8],
    ) -> Result<ObjectInfo, StoreError> {
        put_over(store, folder, key, bytes, None).await
    }

    async fn put_over(
        store: &FileStore,
        folder: &Path,
        key: &str,
        bytes: &[u8],
        replaces: Option<[u8; 32]>,
    ) -> Result<ObjectInfo, StoreError> {
        let path = folder.join("source");
        fs::write(&path, bytes).unwrap();
        let file = StoredFile {
            path: &path,
            size: bytes.len() as u64,
            sha256: sha256(&mut &bytes[..]).unwrap(),
            content_type: "audio/ogg",
            progress: &folder.join("progress"),
            replaces,
        };
        let outcome = store.put(key, file).await;
        fs::remove_file(path).unwrap();
        outcome
    }

    #[tokio::test]
    async fn what_is_kept_is_read_in_ranges_never_overwritten_and_listed_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("data"));
        assert!(matches!(
            store.head("r/a/x").await,
            Err(StoreError::NotFound)
        ));
        assert_eq!(store.list("r", None, 9).await.unwrap(), Listing::default());
        let long: Vec<_> = (0..200_000_u32).map(|n| n as u8).collect();
        for name in ["c", "a", "b"] {
            let kept = put(&store, folder.path(), &format!("r/{name}/x"), &long)
                .await
                .unwrap();
            assert_eq!(kept.size, 200_000);
        }
        assert!(put(&store, folder.path(), "r/a/x", &long).await.is_ok());
        let other = put(&store, folder.path(), "r/a/x", b"other").await;
        assert!(matches!(other, Err(StoreError::Exists)), "{other:?}");
        let replaces = |bytes: &[u8]| Some(sha256(&mut &bytes[..]).unwrap());
        let other = put_over(&store, folder.path(), "r/b/x", b"other", replaces(b"what")).await;
        assert!(matches!(other, Err(StoreError::Exists)), "{other:?}");
        for _ in 0..2 {
            let kept = put_over(&store, folder.path(), "r/b/x", b"other", replaces(&long)).await;
            assert_eq!(kept.unwrap().size, 5);
        }
        assert_eq!(read(&store, "r/b/x", None).await, b"other");
        assert_eq!(read(&store, "r/a/x", None).await, long);
        assert_eq!(
            read(&store, "r/a/x", Some(65_530..65_540)).await,
            long[65_530..65_540]
        );
        let page = store.list("r", Some("a"), 1).await.unwrap();
        assert_eq!((page.names, page.more), (vec!["b".to_owned()], true));
        let page = store.list("r", Some("b"), 1).await.unwrap();
        assert_eq!((page.names, page.more), (vec!["c".to_owned()], false));
        store.delete("r/a/x").await.unwrap();
        store.delete("r/a/x").await.unwrap();
        assert!(!folder.path().join("data/r/a").exists());
    }

    #[tokio::test]
    async fn no_key_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "s").unwrap();
        let store = FileStore::new(folder.path().join("data"));
        for key in ["../secret", "/etc/passwd", "a//b", "a/../../secret", ""] {
            assert!(
                matches!(store.head(key).await, Err(StoreError::NotFound)),
                "{key}"
            );
        }
    }

    #[tokio::test]
    async fn all_who_have_the_folder_know_it_by_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("data");
        let asked = (0..8).map(|_| {
            let store = FileStore::new(root.clone());
            tokio::spawn(async move { store.identity().await.unwrap() })
        });
        let asked: Vec<_> = asked.collect();
        let other = FileStore::new(folder.path().join("other"));
        let other = other.identity().await.unwrap();
        let mut names = std::collections::HashSet::new();
        for asked in asked {
            names.insert(asked.await.unwrap());
        }
        assert_eq!(names.len(), 1);
        assert!(!names.contains(&other) && other.len() == 32);
        let listed = FileStore::new(folder.path().to_owned())
            .list("data", None, 9)
            .await;
        assert_eq!(listed.unwrap(), Listing::default());
    }
}
