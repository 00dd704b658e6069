//! The folder of models: what is installed, whether it is what the catalogue says, and how a model appears and
//! disappears as a whole. Several processes may use one folder; whoever changes a model holds its lock.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vivavoce_core::hash::{hex, sha256};

use crate::catalogue::{Catalogue, FileEntry, ModelEntry};

/// The file in a model's folder that says what was verified.
pub(crate) const MANIFEST: &str = "vivavoce-model.json";
/// No manifest is longer.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// How deep files may lie in a model's folder.
const MAX_DEPTH: usize = 8;

/// The hashes of the files of an installed model.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    files: BTreeMap<String, String>,
}

/// The folder of models.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    catalogue: Catalogue,
}

/// Whether a model can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// All its files are there.
    Installed,
    /// Nothing is there.
    Missing,
    /// It was begun to be fetched: so many bytes are there.
    Partial(u64),
    /// It is there, but not as the catalogue says.
    Damaged(Vec<Problem>),
    /// It is not for this machine's processor.
    Unsupported,
}

/// What is wrong with a file of an installed model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is not there.
    #[error("{path} is missing")]
    Missing {
        /// Its path below the model's folder.
        path: String,
    },
    /// It has another length.
    #[error("{path} has {found} bytes instead of {size}")]
    Size {
        /// Its path below the model's folder.
        path: String,
        /// The bytes it should have.
        size: u64,
        /// The bytes it has.
        found: u64,
    },
    /// It has other bytes.
    #[error("{path} is another file: its SHA-256 is {found} instead of {sha256}")]
    Hash {
        /// Its path below the model's folder.
        path: String,
        /// The hash it should have.
        sha256: String,
        /// The hash it has.
        found: String,
    },
    /// It cannot be read.
    #[error("{path} cannot be read: {message}")]
    Unreadable {
        /// Its path below the model's folder.
        path: String,
        /// Why.
        message: String,
    },
    /// It does not belong to the model.
    #[error("{path} is not a file of this model")]
    Foreign {
        /// Its path below the model's folder.
        path: String,
    },
}

/// The right to change a model, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it gives the lock back")] File);

impl Store {
    /// The models of the embedded catalogue in this folder, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::with_catalogue(root, Catalogue::embedded())
    }

    /// The models of a catalogue in this folder.
    pub fn with_catalogue(root: impl Into<PathBuf>, catalogue: Catalogue) -> Self {
        let root = root.into();
        Self { root, catalogue }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What there is.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Where a model lies, or would.
    pub fn folder(&self, model: &str) -> PathBuf {
        self.root.join(model)
    }

    /// The folder of a model, if it is installed. Looks at the sizes of its files and at the manifest, which takes
    /// microseconds, and does not read the files.
    pub fn installed(&self, model: &str) -> Option<PathBuf> {
        let entry = self.catalogue.model(model)?;
        (self.state(entry) == State::Installed).then(|| self.folder(model))
    }

    /// All models of the catalogue, each with what there is of it.
    pub fn list(&self) -> Vec<(&ModelEntry, State)> {
        let models = self.catalogue.models().iter();
        models.map(|model| (model, self.state(model))).collect()
    }

    /// Folders that are none of the catalogue's models.
    pub fn others(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
        let other = |name: &String| !name.starts_with('.') && self.catalogue.model(name).is_none();
        let mut names: Vec<_> = names.filter(other).collect();
        names.sort_unstable();
        names
    }

    /// What there is of a model, by the sizes of its files.
    pub fn state(&self, model: &ModelEntry) -> State {
        if model.files().next().is_none() {
            return State::Unsupported;
        }
        let folder = self.folder(&model.name);
        if !folder.is_dir() {
            return match bytes_in(&self.partial(&model.name), 0) {
                0 => State::Missing,
                bytes => State::Partial(bytes),
            };
        }
        let manifest = manifest(&folder);
        let problems = model.files().filter_map(|file| {
            let known = manifest.as_ref().map(|known| known.files.get(&file.path));
            match known.flatten() {
                // The catalogue has been changed since.
                Some(found) if *found != file.sha256 => Some(file.other(found.clone())),
                _ => sized(&folder, file),
            }
        });
        match problems.collect::<Vec<_>>() {
            problems if problems.is_empty() => State::Installed,
            problems => State::Damaged(problems),
        }
    }

    /// Reads all files of a model that is there, and says what is wrong with them.
    pub fn verify(&self, model: &ModelEntry) -> Vec<Problem> {
        let folder = self.folder(&model.name);
        let mut problems: Vec<_> = model
            .files()
            .filter_map(|file| verified(&folder, file))
            .collect();
        let mut paths = Vec::new();
        paths_in(&folder, "", 0, &mut paths);
        paths.sort_unstable();
        // Nor are those foreign that an older catalogue has fetched and this one does without.
        let fetched = manifest(&folder).unwrap_or_default().files;
        let own = |path: &str| {
            path == MANIFEST
                || model.files().any(|file| file.path == path)
                || fetched.contains_key(path)
        };
        let foreign = paths.into_iter().filter(|path| !own(path));
        problems.extend(foreign.map(|path| Problem::Foreign { path }));
        problems
    }

    /// Removes a model, and what has been fetched of it. Says whether there was anything.
    pub fn remove(&self, model: &str) -> io::Result<bool> {
        if !self.root.is_dir() {
            return Ok(false);
        }
        let _lock = self.lock(model, || {})?;
        let partial = delete(&self.partial(model))?;
        let removed = self.root.join(format!(".{model}.removed"));
        delete(&removed)?;
        // At once for whoever looks at the folder now.
        match fs::rename(self.folder(model), &removed) {
            Ok(()) => delete(&removed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(partial),
            Err(error) => Err(error),
        }
    }

    /// Where a model is put together.
    pub(crate) fn partial(&self, model: &str) -> PathBuf {
        self.root.join(format!(".{model}.partial"))
    }

    /// Waits for the right to change a model; `waiting` is called if another process has it.
    pub(crate) fn lock(&self, model: &str, waiting: impl FnOnce()) -> io::Result<Lock> {
        fs::create_dir_all(&self.root)?;
        let path = self.root.join(format!(".{model}.lock"));
        let mut options = OpenOptions::new();
        let file = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock()?;
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Lock(file))
    }

    /// Writes down that the files in a folder are those of a model.
    pub(crate) fn write_manifest(folder: &Path, model: &ModelEntry) -> io::Result<()> {
        let files = model.files();
        let files = files.map(|file| (file.path.clone(), file.sha256.clone()));
        let manifest = Manifest {
            files: files.collect(),
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other)?;
        let temporary = folder.join(format!(".{MANIFEST}"));
        let mut file = File::create(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(temporary, folder.join(MANIFEST))
    }

    /// Puts the complete folder `partial` where a model belongs.
    pub(crate) fn publish(&self, model: &str, partial: &Path, _lock: &Lock) -> io::Result<()> {
        let folder = self.folder(model);
        let replaced = self.root.join(format!(".{model}.removed"));
        delete(&replaced)?;
        match fs::rename(&folder, &replaced) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::rename(partial, &folder)?,
        }
        delete(&replaced)?;
        // So that a crash of the machine does not forget the names.
        File::open(&self.root)?.sync_all()
    }
}

impl FileEntry {
    fn other(&self, found: String) -> Problem {
        Problem::Hash {
            path: self.path.clone(),
            sha256: self.sha256.clone(),
            found,
        }
    }

    fn unreadable(&self, error: &io::Error) -> Problem {
        let path = self.path.clone();
        match error.kind() {
            io::ErrorKind::NotFound => Problem::Missing { path },
            _ => Problem::Unreadable {
                path,
                message: error.to_string(),
            },
        }
    }
}

/// What is wrong with the size of a file.
fn sized(folder: &Path, file: &FileEntry) -> Option<Problem> {
    match fs::metadata(folder.join(&file.path)) {
        Ok(found) if found.is_file() && found.len() == file.size => None,
        Ok(found) => Some(Problem::Size {
            path: file.path.clone(),
            size: file.size,
            found: found.len(),
        }),
        Err(error) => Some(file.unreadable(&error)),
    }
}

/// What is wrong with a file. Reads no more of it than its size.
pub(crate) fn verified(folder: &Path, file: &FileEntry) -> Option<Problem> {
    if let Some(problem) = sized(folder, file) {
        return Some(problem);
    }
    let opened = File::open(folder.join(&file.path));
    match opened.and_then(|opened| sha256(&mut opened.take(file.size))) {
        Ok(hash) if hex(&hash) == file.sha256 => None,
        Ok(hash) => Some(file.other(hex(&hash))),
        Err(error) => Some(file.unreadable(&error)),
    }
}

fn manifest(folder: &Path) -> Option<Manifest> {
    let mut bytes = Vec::new();
    let file = File::open(folder.join(MANIFEST)).ok()?;
    file.take(MAX_MANIFEST_BYTES).read_to_end(&mut bytes).ok()?;
    // One that cannot be read says nothing.
    serde_json::from_slice(&bytes).ok()
}

/// Deletes a folder, if there is one.
fn delete(folder: &Path) -> io::Result<bool> {
    match fs::remove_dir_all(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The bytes of all files in a folder.
fn bytes_in(folder: &Path, depth: usize) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() && depth < MAX_DEPTH => bytes_in(&entry.path(), depth + 1),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    });
    bytes.sum()
}

/// The paths of all files in a folder, relative to it.
fn paths_in(folder: &Path, prefix: &str, depth: usize, paths: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() && depth < MAX_DEPTH {
            paths_in(&entry.path(), &format!("{path}/"), depth + 1, paths);
        } else {
            paths.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of two files: `a` with the bytes `abc`, `b/c` without any.
    const CATALOGUE: &str = r#"{"wheels": [], "models": [
        {"name": "m", "task": "turn", "about": "", "languages": [], "licence": "MIT", "files": [
            {"path": "a", "size": 3, "sources": [],
                "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
            {"path": "b/c", "size": 0, "sources": [],
                "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]},
        {"name": "elsewhere", "task": "engine", "about": "", "languages": [], "licence": "MIT", "files": [
            {"path": "a", "architecture": "pdp11", "size": 0, "sources": [],
                "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}]}]}"#;

    fn store(root: &Path) -> Store {
        Store::with_catalogue(root, Catalogue::parse(CATALOGUE).unwrap())
    }

    fn fill(folder: &Path) {
        fs::create_dir_all(folder.join("b")).unwrap();
        fs::write(folder.join("a"), "abc").unwrap();
        fs::write(folder.join("b/c"), "").unwrap();
    }

    fn said(problems: &[Problem]) -> Vec<String> {
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_model_is_installed_when_all_its_files_have_their_sizes() {
        let root = tempfile::tempdir().unwrap();
        let store = store(root.path());
        assert_eq!(store.installed("m"), None);
        assert_eq!(store.installed("nobody"), None);
        let folder = root.path().join("m");
        fill(&folder);
        assert_eq!(store.installed("m"), Some(folder.clone()));
        fs::write(folder.join("a"), "ab").unwrap();
        assert_eq!(store.installed("m"), None);
        fs::remove_file(folder.join("a")).unwrap();
        assert_eq!(store.installed("m"), None);
        let (_, state) = &store.list()[1];
        assert_eq!(*state, State::Unsupported);
    }

    #[test]
    fn what_an_older_catalogue_has_installed_is_not_taken_for_this_ones() {
        let root = tempfile::tempdir().unwrap();
        let store = store(root.path());
        let folder = root.path().join("m");
        fill(&folder);
        let model = store.catalogue().model("m").unwrap();
        Store::write_manifest(&folder, model).unwrap();
        assert!(store.installed("m").is_some());
        let text = fs::read_to_string(folder.join(MANIFEST)).unwrap();
        fs::write(folder.join(MANIFEST), text.replace("ba78", "0000")).unwrap();
        assert_eq!(store.installed("m"), None);
    }

    #[test]
    fn a_file_that_an_older_catalogue_has_fetched_does_no_harm() {
        const OLDER: &str = r#"        {"path": "older", "size": 1, "sources": [],
                "sha256": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},
            {"path": "b/c""#;
        let root = tempfile::tempdir().unwrap();
        let older = CATALOGUE.replacen(r#"{"path": "b/c""#, OLDER, 1);
        let older = Store::with_catalogue(root.path(), Catalogue::parse(&older).unwrap());
        let folder = root.path().join("m");
        fill(&folder);
        fs::write(folder.join("older"), "a").unwrap();
        Store::write_manifest(&folder, older.catalogue().model("m").unwrap()).unwrap();
        let store = store(root.path());
        let model = store.catalogue().model("m").unwrap();
        assert_eq!(store.state(model), State::Installed);
        assert_eq!(store.verify(model), []);
        fs::write(folder.join("strange"), "").unwrap();
        assert_eq!(
            said(&store.verify(model)),
            ["strange is not a file of this model"]
        );
        assert!(store.remove("m").unwrap());
        assert!(!folder.exists());
    }

    #[test]
    fn verification_names_what_is_cut_changed_missing_or_foreign() {
        let root = tempfile::tempdir().unwrap();
        let store = store(root.path());
        let model = store.catalogue().model("m").unwrap();
        let folder = root.path().join("m");
        fill(&folder);
        Store::write_manifest(&folder, model).unwrap();
        assert_eq!(store.verify(model), []);
        fs::write(folder.join("a"), "abd").unwrap();
        fs::write(folder.join("b/d"), "").unwrap();
        let problems = said(&store.verify(model));
        assert!(
            problems[0].starts_with("a is another file: "),
            "{problems:?}"
        );
        assert_eq!(problems[1], "b/d is not a file of this model");
        fs::write(folder.join("a"), "").unwrap();
        fs::remove_dir_all(folder.join("b")).unwrap();
        let problems = said(&store.verify(model));
        assert_eq!(problems, ["a has 0 bytes instead of 3", "b/c is missing"]);
    }

    #[test]
    fn a_model_that_is_removed_is_gone_with_what_was_fetched_of_it() {
        let root = tempfile::tempdir().unwrap();
        let store = store(root.path());
        assert!(!store.remove("m").unwrap());
        fill(&root.path().join("m"));
        fs::create_dir_all(root.path().join("mine")).unwrap();
        fs::create_dir_all(store.partial("m")).unwrap();
        fs::write(store.partial("m").join("x.part"), "12345").unwrap();
        assert_eq!(store.others(), ["mine"]);
        assert!(store.remove("m").unwrap());
        let model = store.catalogue().model("m").unwrap();
        assert_eq!(store.state(model), State::Missing);
        assert!(root.path().join("mine").exists());
        fs::create_dir_all(store.partial("m")).unwrap();
        fs::write(store.partial("m").join("x.part"), "12345").unwrap();
        assert_eq!(store.state(model), State::Partial(5));
        assert!(store.remove("m").unwrap());
        assert_eq!(store.state(model), State::Missing);
    }
}
