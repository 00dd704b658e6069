//! Engines, folders and limits of this machine.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::findings::Finding;
use crate::config::{RecordingBackend, Settings};
use crate::process::confinement::Confinement;
use crate::server::files::{self, existing};
use crate::server::{cache_folder, engines as local_engines, needed_files};

/// Below this much free space recordings may not survive a busy day.
const LITTLE_SPACE: u64 = 2 << 30;
/// Below this much the server cannot work.
const NO_SPACE: u64 = 64 << 20;
/// A disk that takes longer for one small file loses more than the last second of a recording when the power fails.
const SLOW_DISK: Duration = Duration::from_millis(500);

pub(super) fn engines(settings: &Settings) -> Vec<Finding> {
    let engines = local_engines(settings);
    let missing = engines.iter().filter(|engine| engine.found.is_err());
    let none = missing.count() == engines.len();
    let shown = engines.into_iter().map(|engine| {
        let what = format!("local engine that {}", engine.role);
        match engine.found {
            Ok(description) => Finding::good(what, description),
            Err(missing) if none => {
                let remedy =
                    "install it, or name a vendor in stt_config and tts_config and give its key";
                Finding::wrong(what, missing, remedy)
            }
            Err(missing) => Finding::note(what, missing),
        }
    });
    let mut findings: Vec<_> = shown.collect();
    let confinement = Confinement::of_this_system();
    findings.push(Finding::good(
        "confinement of programs",
        confinement.to_string(),
    ));
    findings
}

/// Whether what is to be written can be.
pub(super) fn folders(settings: &Settings) -> Vec<Finding> {
    let data = &settings.storage.data_dir;
    let mut folders = vec![("data_dir", data.clone())];
    if settings.cache.enabled {
        folders.push(("cache.path", cache_folder(settings)));
    }
    let mut findings: Vec<_> = folders
        .iter()
        .map(|(setting, folder)| writable(setting, folder))
        .collect();
    let keeps = settings.recording.backend != RecordingBackend::Off;
    findings.extend(space(data, keeps));
    findings
}

/// Models, and the files that are read, but for the certificates that [`super::certificate`] judges.
pub(super) fn named_files(settings: &Settings) -> Vec<Finding> {
    let models = std::iter::once(files::models(settings));
    let files = models.chain(files::read(settings));
    let others = files.filter(|file| {
        !file.setting.starts_with("server.tls.") && !file.setting.starts_with("sip.tls_")
    });
    let findings = others.map(|file| {
        let what = format!("{} {}", file.setting, file.path.display());
        match file.found {
            // None needs to be installed, so that nothing of them is right or wrong.
            Ok(found) if file.setting == "models.path" => Finding::note(what, found),
            Ok(found) => Finding::good(what, found),
            Err(problem) => {
                let named = format!("{}: {}: ", file.setting, file.path.display());
                let problem = problem.strip_prefix(&named).unwrap_or(&problem);
                Finding::wrong(what, problem, "mend the file, or name another one")
            }
        }
    });
    findings.collect()
}

fn writable(setting: &str, folder: &Path) -> Finding {
    let what = format!("{setting} {}", folder.display());
    match write_and_remove(folder) {
        Ok(time) if time > SLOW_DISK => Finding::warning(
            what,
            format!("a small file takes {} ms", time.as_millis()),
            "a faster disk: what is recorded is written every second",
        ),
        Ok(_) => Finding::good(what, "can be written"),
        Err(error) => Finding::wrong(
            what,
            error.to_string(),
            format!("make it writable for the server's user, or set {setting}"),
        ),
    }
}

/// How long it takes to have a small file on the disk. A folder that is not there yet is made by the server, so that its
/// nearest ancestor is what counts.
fn write_and_remove(folder: &Path) -> io::Result<Duration> {
    let folder = existing(folder);
    let began = Instant::now();
    let mut file = tempfile::Builder::new()
        .prefix(".doctor")
        .tempfile_in(&folder)?;
    file.write_all(b"vivavoce doctor\n")?;
    file.as_file().sync_all()?;
    file.close()?;
    Ok(began.elapsed())
}

fn space(folder: &Path, keeps_recordings: bool) -> Option<Finding> {
    let known = rustix::fs::statvfs(existing(folder)).ok()?;
    let free = known.f_bavail.saturating_mul(known.f_frsize);
    let what = "free space for data_dir";
    let found = format!("{} MiB", free >> 20);
    let remedy = if keeps_recordings {
        "make room, set recording.retention_days, or keep recordings in S3 (recording.backend)"
    } else {
        "make room"
    };
    Some(if free < NO_SPACE {
        Finding::wrong(what, found, remedy)
    } else if free < LITTLE_SPACE {
        Finding::warning(what, found, remedy)
    } else {
        Finding::good(what, found)
    })
}

pub(super) fn open_files(settings: &Settings) -> Vec<Finding> {
    use rustix::process::{Resource, getrlimit};
    let needed = needed_files(settings);
    let what = "open files";
    vec![match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < needed => Finding::warning(
            what,
            format!("the limit is {limit}, limits.sessions may need {needed}"),
            "raise it (LimitNOFILE of the unit, ulimit -Hn), or lower limits.sessions",
        ),
        Some(limit) => Finding::good(what, format!("{limit}, of which {needed} may be needed")),
        None => Finding::good(what, "no limit"),
    }]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::doctor::findings::Verdict;

    #[test]
    fn a_folder_that_is_not_there_is_judged_by_where_it_would_be() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("not/there/yet");
        assert_eq!(writable("data_dir", &below).verdict, Verdict::Good);
        assert!(!below.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_in_the_place_of_a_folder_is_wrong() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = writable("data_dir", file.path());
        assert_eq!(found.verdict, Verdict::Wrong);
        assert!(found.remedy.unwrap().contains("set data_dir"));
    }
}
