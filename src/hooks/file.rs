//! Added hooks on disk: one file, replaced atomically. If the hooks are shared through Redis, it contains their last
//! known state. Everything here blocks.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::table::{Added, Hook};

const NAME: &str = "hooks.json";
/// The name that a file which cannot be parsed is renamed to, for inspection.
const UNREADABLE: &str = "hooks.unreadable";
/// The prefix of temporary files.
const INCOMPLETE: &str = ".hooks";

/// The file.
#[derive(Debug, Clone)]
pub struct HookFile {
    folder: PathBuf,
    /// Where earlier versions had it: with the cache, which people empty.
    former: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Stored<T> {
    hooks: Vec<T>,
}

impl HookFile {
    /// The file in this folder, which does not have to exist.
    pub const fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            former: None,
        }
    }

    /// The same, which takes over a file in this folder where it has none itself.
    pub fn moved_from(self, former: PathBuf) -> Self {
        let former = Some(former).filter(|former| *former != self.folder);
        Self { former, ..self }
    }

    /// Takes over the file of an earlier version.
    fn move_here(&self) -> io::Result<()> {
        let Some(former) = self.former.as_ref().map(|former| former.join(NAME)) else {
            return Ok(());
        };
        if self.path().exists() {
            return Ok(());
        }
        let text = match fs::read(&former) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            text => text?,
        };
        self.write(&text)?;
        tracing::info!(from = %former.display(), to = %self.path().display(), "the hooks have moved");
        fs::remove_file(former)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    /// The hooks in the file; none if it does not exist. A file that cannot be parsed is renamed.
    pub fn load(&self) -> io::Result<Added> {
        self.move_here()?;
        let path = self.path();
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Added::default()),
            text => text?,
        };
        match serde_json::from_slice::<Stored<Hook>>(&text) {
            Ok(stored) => Ok(stored.hooks.into_iter().collect()),
            Err(error) => {
                let aside = self.folder.join(UNREADABLE);
                tracing::warn!(
                    path = %path.display(), aside = %aside.display(), line = error.line(),
                    "the hooks on disk cannot be parsed; the file is renamed"
                );
                fs::rename(&path, aside)?;
                Ok(Added::default())
            }
        }
    }

    /// Replaces the content; returns its size in bytes. Once this returns, it survives a power failure. Only this user can
    /// read the file.
    pub fn save(&self, added: &Added) -> io::Result<u64> {
        let stored = Stored {
            hooks: added.hooks().collect(),
        };
        let text = serde_json::to_vec_pretty(&stored).map_err(io::Error::other)?;
        self.write(&text)?;
        Ok(text.len() as u64)
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        remove_incomplete(&self.folder)?;
        let mut file = tempfile::Builder::new()
            .prefix(INCOMPLETE)
            .tempfile_in(&self.folder)?;
        file.write_all(text)?;
        file.as_file().sync_all()?;
        file.persist(self.path()).map_err(|error| error.error)?;
        File::open(&self.folder)?.sync_all()
    }
}

/// Removes temporary files of a process that ended while writing.
fn remove_incomplete(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(INCOMPLETE) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::host::Host;
    use super::*;
    use vivavoce_auth::TenantId;

    fn added() -> Added {
        let hook = |host: &str, owner: Option<&str>| Hook {
            host: Host::parse(host).unwrap(),
            url: format!("https://hooks.example/{host}"),
            owner: owner.map(|id| TenantId::new(id).unwrap()),
            by_operator: owner.is_none(),
        };
        [hook("a.example", None), hook("2001:db8::1", Some("Ärzte"))]
            .into_iter()
            .collect()
    }

    #[test]
    fn what_was_saved_is_loaded_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let file = HookFile::new(folder.path().join("cache"));
        assert_eq!(file.load().unwrap(), Added::default());
        file.save(&Added::default()).unwrap();
        fs::write(folder.path().join("cache/.hooksabc"), "torn").unwrap();
        file.save(&added()).unwrap();
        assert_eq!(file.load().unwrap(), added());
        let names: Vec<_> = fs::read_dir(folder.path().join("cache"))
            .unwrap()
            .map(|entry| entry.unwrap())
            .collect();
        assert_eq!(names.len(), 1, "{names:?}");
        let mode = names[0].metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_file_of_an_earlier_version_is_moved_unless_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let former = folder.path().join("cache");
        let file = HookFile::new(folder.path().join("data")).moved_from(former.clone());
        assert_eq!(file.load().unwrap(), Added::default());
        HookFile::new(former.clone()).save(&added()).unwrap();
        assert_eq!(file.load().unwrap(), added());
        assert!(!former.join(NAME).exists());
        HookFile::new(former.clone())
            .save(&Added::default())
            .unwrap();
        assert_eq!(file.load().unwrap(), added());
        let same = HookFile::new(former.clone()).moved_from(former);
        assert_eq!(same.load().unwrap(), Added::default());
    }

    #[test]
    fn a_file_that_cannot_be_understood_is_left_aside_and_one_that_cannot_be_read_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = HookFile::new(folder.path().to_owned());
        for text in [
            "",
            "{\"hooks\":",
            r#"{"hooks":[{"host":"a:5060","url":""}]}"#,
        ] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(file.load().unwrap(), Added::default());
            let aside = fs::read_to_string(folder.path().join(UNREADABLE)).unwrap();
            assert_eq!(aside, text);
            assert!(!file.path().exists());
        }
        fs::create_dir(file.path()).unwrap();
        assert!(file.load().is_err());
        assert!(file.path().exists());
    }

    #[test]
    fn what_cannot_be_written_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = HookFile::new(folder.path().join("cache"));
        fs::write(folder.path().join("cache"), "a file").unwrap();
        assert!(file.save(&added()).is_err());
    }
}
