//! Who had access to recordings: one line of JSON for each, in the log or in a file of its own. The line is written before
//! anything is handed out; an access that cannot be noted is refused.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use vivavoce_core::unix_time::unix_ms;

/// What was done with a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Its sound was read, or a part of it.
    Audio,
    /// Its transcript was read.
    Transcript,
    /// It was deleted.
    Delete,
}

/// An access to a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Access {
    /// What was done.
    pub action: Action,
    /// Which recording.
    pub stream_id: String,
    /// Whose it is; null of nobody's.
    pub owner: Option<String>,
    /// The tenant of whoever did it; null for a caller without one.
    pub by_tenant: Option<String>,
    /// Where the request came from, where that is known.
    pub address: Option<IpAddr>,
    /// The id of the request, as in the log.
    pub request_id: Option<String>,
}

/// A line, with its time.
#[derive(Serialize)]
struct Line<'a> {
    /// Unix time in milliseconds.
    at: u64,
    #[serde(flatten)]
    access: &'a Access,
}

/// Where accesses are noted.
#[derive(Debug, Clone, Default)]
pub struct Audit(Option<Arc<Mutex<File>>>);

impl Audit {
    /// Notes them at the end of this file, which only the server's user may read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        Ok(Self(Some(Arc::new(Mutex::new(file)))))
    }

    /// Notes an access.
    pub async fn note(&self, access: Access) -> io::Result<()> {
        let line = Line {
            at: unix_ms(SystemTime::now()),
            access: &access,
        };
        let mut line = serde_json::to_string(&line)?;
        let Some(file) = self.0.clone() else {
            tracing::info!(target: "audit", access = line, "access to a recording");
            return Ok(());
        };
        line.push('\n');
        let written = tokio::task::spawn_blocking(move || {
            // One line at a time.
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write_all(line.as_bytes())
        });
        written
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_access_is_a_line_behind_those_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let access = |action| Access {
            action,
            stream_id: "call".to_owned(),
            owner: Some("a".to_owned()),
            by_tenant: None,
            address: None,
            request_id: None,
        };
        for action in [Action::Audio, Action::Delete] {
            let audit = Audit::open(&path).unwrap();
            audit.note(access(action)).await.unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["action"], "audio");
        assert_eq!(lines[1]["owner"], "a");
        assert!(lines[1]["at"].as_u64().unwrap() > 0);
    }
}
