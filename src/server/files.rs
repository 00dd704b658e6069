//! The files and folders that settings name: whether a server with these settings could use them. Nothing is created or
//! changed. What is asked of others, and how long certificates last, is up to `vivavoce doctor`.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{cache_folder, prompts, rooms, secure};
use crate::auth::Authenticator;
use crate::config::{RecordingBackend, RtcMode, Settings};
use crate::providers::{google, livekit};
use crate::tls_roots::Authorities;
use vivavoce_models::{State, Store};

/// What the server keeps in its data folder, as far as it is there. A server that ran as another user leaves them as its own.
const KEPT: [&str; 7] = [
    "hooks.json",
    "rtc-key.json",
    "trunks.json",
    "webhooks",
    "recordings/.journal",
    "recordings/.egress",
    "recordings/.rooms",
];

/// A file or folder that a setting names.
#[derive(Debug)]
pub(crate) struct NamedFile {
    /// The setting, or two that go together.
    pub(crate) setting: &'static str,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What is so, or what is wrong: a sentence that begins with the setting.
    pub(crate) found: Result<String, String>,
}

impl fmt::Display for NamedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Ok(found) => write!(f, "{}  {}: {found}", self.setting, self.path.display()),
            Err(problem) => f.write_str(problem),
        }
    }
}

impl NamedFile {
    /// What a reader of the file says of it; its errors begin with the setting.
    fn read<T>(setting: &'static str, path: &Path, read: Result<T, impl fmt::Display>) -> Self {
        Self {
            setting,
            path: path.to_owned(),
            found: match read {
                Ok(_) => Ok("can be used".to_owned()),
                Err(problem) => Err(problem.to_string()),
            },
        }
    }

    /// Something that is to be written.
    fn written(setting: &'static str, path: &Path, found: io::Result<&str>) -> Self {
        Self {
            setting,
            path: path.to_owned(),
            found: match found {
                Ok(found) => Ok(found.to_owned()),
                Err(error) => Err(format!("{setting}: {}: {error}", path.display())),
            },
        }
    }
}

/// Everything that the settings name, in the order of the settings.
pub(crate) fn look(settings: &Settings) -> Vec<NamedFile> {
    let mut files = read(settings);
    files.splice(0..0, folders(settings));
    files.push(models(settings));
    files
}

/// The files that are read, and the one of accesses.
pub(crate) fn read(settings: &Settings) -> Vec<NamedFile> {
    let (server, rtc, sip) = (&settings.server, &settings.rtc, &settings.sip);
    let mut files = Vec::new();
    let mut add = |setting, path: Option<&Path>, read: &dyn Fn(&Path) -> Result<(), String>| {
        if let Some(path) = path {
            files.push(NamedFile::read(setting, path, read(path)));
        }
    };
    add(
        "server.tls.cert, server.tls.key",
        server.tls_cert.as_deref(),
        &|_| told(secure(settings)),
    );
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref());
    add(
        "outgoing.ca_file",
        settings.outgoing.ca_file.as_deref(),
        &|_| told(authorities.as_ref()),
    );
    let credentials = "providers.google.credentials";
    add(
        credentials,
        settings.providers.google_credentials.as_deref(),
        &|file| {
            let read = google::check_credentials(file);
            read.map_err(|problem| format!("{credentials}: {}: {problem}", file.display()))
        },
    );
    add(
        "auth.signing_key_path",
        settings.auth.signing_key_path.as_deref(),
        // Without authorities there is a problem already.
        &|_| match &authorities {
            Ok(authorities) => {
                let dialect = settings.dialect.words();
                told(Authenticator::open(&settings.auth, authorities, dialect))
            }
            Err(_) => Ok(()),
        },
    );
    if livekit::mode(rtc) == RtcMode::Embedded {
        add(
            "rtc.turn.tls_cert, rtc.turn.tls_key",
            rtc.turn_tls_cert
                .as_deref()
                .filter(|_| rtc.turn_tls_port.is_some()),
            &|_| told(rooms::turn_tls(settings)),
        );
        for (setting, file) in [
            ("sip.tls_cert, sip.tls_key", sip.tls_cert.as_deref()),
            ("sip.tls_client_ca", sip.tls_client_ca.as_deref()),
            (
                "sip.tls_client_cert, sip.tls_client_key",
                sip.tls_client_cert.as_deref(),
            ),
        ] {
            add(setting, file, &|_| match &authorities {
                Ok(_) => told(rooms::sip_tls(settings)),
                Err(_) => Ok(()),
            });
        }
    }
    for (setting, file, _) in prompts::files(sip) {
        add(setting, Some(file), &|file| {
            told(prompts::recorded(setting, file))
        });
    }
    let audit = &settings.recording.audit_file;
    if let Some(file) = audit.as_ref().filter(|_| keeps_recordings(settings)) {
        files.push(NamedFile::written(
            "recording.audit_file",
            file,
            appendable(file),
        ));
    }
    files
}

fn told<T>(read: Result<T, impl fmt::Display>) -> Result<(), String> {
    read.map(drop).map_err(|error| error.to_string())
}

fn keeps_recordings(settings: &Settings) -> bool {
    settings.recording.backend != RecordingBackend::Off
}

/// The folders that are written.
fn folders(settings: &Settings) -> Vec<NamedFile> {
    let data = &settings.storage.data_dir;
    let mut folders = vec![NamedFile::written("data_dir", data, writable(data))];
    let mut kept: Vec<_> = KEPT.iter().map(|name| data.join(name)).collect();
    if settings.recording.backend == RecordingBackend::File {
        kept.push(data.join(&settings.recording.prefix));
    }
    // Of what is there, only what is wrong needs a line of its own.
    let wrong = kept.into_iter().filter(|path| path.exists());
    let wrong = wrong.filter_map(|path| {
        let error = usable(&path).err()?;
        Some(NamedFile::written("data_dir", &path, Err(error)))
    });
    folders.extend(wrong);
    if settings.cache.enabled {
        let cache = cache_folder(settings);
        folders.push(NamedFile::written("cache.path", &cache, writable(&cache)));
    }
    folders
}

/// What is installed of the models. None is a server's business to have: it goes on without.
pub(crate) fn models(settings: &Settings) -> NamedFile {
    let path = settings.models_path();
    let found = match fs::metadata(&path) {
        Ok(folder) if folder.is_dir() => match fs::read_dir(&path) {
            Ok(_) => Ok(installed(&Store::new(&path))),
            Err(error) => Err(error),
        },
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok("is not there; `vivavoce models fetch` makes it".to_owned())
        }
        Err(error) => Err(error),
    };
    let found = found.map_err(|error| format!("models.path: {}: {error}", path.display()));
    NamedFile {
        setting: "models.path",
        path,
        found,
    }
}

fn installed(store: &Store) -> String {
    let (mut installed, mut unfinished) = (0, Vec::new());
    for (model, state) in store.list() {
        match state {
            State::Installed => installed += 1,
            State::Partial(_) | State::Damaged(_) => unfinished.push(model.name.as_str()),
            State::Missing | State::Unsupported => {}
        }
    }
    let models = match installed {
        0 => "no model is installed".to_owned(),
        1 => "one model is installed".to_owned(),
        many => format!("{many} models are installed"),
    };
    if unfinished.is_empty() {
        models
    } else {
        let names = unfinished.join(", ");
        format!("{models}; incomplete: {names} (`vivavoce models fetch` completes what it names)")
    }
}

/// Whether a folder can be written, or made where it is not there yet.
fn writable(folder: &Path) -> io::Result<&'static str> {
    let there = existing(folder);
    usable(&there)?;
    if !there.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(if there == folder {
        "can be written"
    } else {
        "is not there yet, and can be made"
    })
}

/// Whether a file can be written, or made where it is not there yet.
fn appendable(file: &Path) -> io::Result<&'static str> {
    match fs::metadata(file) {
        Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(access(file, Access::WRITE_OK).map(|()| "can be written")?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Its folder is not made with it.
            let folder = match file.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            };
            usable(folder).map(|()| "is not there yet, and can be made")
        }
        Err(error) => Err(error),
    }
}

/// Whether this user may read and write it.
fn usable(path: &Path) -> io::Result<()> {
    let wanted = if fs::metadata(path)?.is_dir() {
        Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK
    } else {
        Access::READ_OK | Access::WRITE_OK
    };
    Ok(access(path, wanted)?)
}

/// The nearest folder that is there: what is missing below it is made by the server.
pub(crate) fn existing(folder: &Path) -> PathBuf {
    let mut ancestors = folder.ancestors();
    let there = ancestors.find(|folder| fs::metadata(folder).is_ok());
    // A relative path ends with an empty one, which stands for the working directory.
    match there {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::config::Config;

    fn settings(data: &Path, more: &[(&str, &Path)]) -> Settings {
        let named = more.iter().map(|(name, path)| (*name, *path));
        let environment: HashMap<_, _> = named
            .chain([("DATA_DIR", data)])
            .map(|(name, path)| (name.to_owned(), path.display().to_string()))
            .collect();
        let config = Config::from_sources(&[], &environment, None).unwrap();
        config.settings
    }

    fn problems(files: &[NamedFile]) -> Vec<String> {
        let wrong = files.iter().filter(|file| file.found.is_err());
        wrong.map(ToString::to_string).collect()
    }

    #[test]
    fn looking_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("not/there/yet");
        let audit = folder.path().join("audit");
        let files = look(&settings(&data, &[("RECORDING_AUDIT_FILE", &audit)]));
        assert_eq!(problems(&files), Vec::<String>::new());
        let line = files[0].to_string();
        assert!(line.starts_with("data_dir  "), "{line}");
        assert!(line.ends_with("can be made"), "{line}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(existing(Path::new("not-there")), Path::new("."));
    }

    #[test]
    fn each_file_that_cannot_be_used_has_a_line_with_its_setting() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "neither sound nor key").unwrap();
        let nowhere = folder.path().join("nowhere/at-all");
        for (name, setting, path) in [
            ("CACHE_PATH", "cache.path", &file),
            ("MODELS_PATH", "models.path", &file),
            ("RECORDING_AUDIT_FILE", "recording.audit_file", &nowhere),
            ("SIP_PIN_SOUND", "sip.pin_sound", &file),
            ("SIP_HOLD_SOUND", "sip.hold_sound", &nowhere),
            ("SIP_QUEUE_SOUNDS", "sip.queue_sounds", &nowhere),
            ("OUTGOING_CA_FILE", "outgoing.ca_file", &nowhere),
            (
                "GOOGLE_APPLICATION_CREDENTIALS",
                "providers.google.credentials",
                &file,
            ),
        ] {
            let files = look(&settings(folder.path(), &[(name, path)]));
            let problems = problems(&files);
            let begins = format!("{setting}: {}: ", path.display());
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with(&begins), "{problems:?}");
        }
    }

    #[test]
    fn a_pair_of_the_turn_server_is_called_by_its_own_name() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("nowhere.pem");
        let pair = [
            ("RTC_TURN_TLS_CERT", nowhere.as_path()),
            ("RTC_TURN_TLS_KEY", &nowhere),
        ];
        let mut settings = settings(folder.path(), &pair);
        settings.rtc.turn_tls_port = Some(443);
        let problems = problems(&look(&settings));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].starts_with("rtc.turn.tls_cert: "),
            "{problems:?}"
        );
    }

    #[test]
    fn what_lies_in_the_data_folder_and_cannot_be_used_is_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("recordings")).unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let files = look(&settings(&file, &[]));
        // The folder itself, and the cache and the models in it.
        assert_eq!(problems(&files).len(), 3, "{files:?}");
        let files = look(&settings(folder.path(), &[]));
        assert_eq!(problems(&files), Vec::<String>::new());
    }
}
