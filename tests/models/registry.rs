//! A web server of ours that stands in for publishers, mirrors and package indexes, and misbehaves where it is told to.
//! It is also a proxy: a request for another host's address is answered as one for the same path here.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// How a resource is served.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// As a whole, whatever was asked for.
    NoRanges,
    /// So many answers end after so many bytes.
    Cut { times: u32, after: usize },
    /// An answer stops after so many bytes, until the server is told to go on.
    Hold { after: usize },
    /// With another byte in the middle.
    Wrong,
    /// With another length.
    Longer,
    /// Not at all.
    Status(u16),
    /// Elsewhere.
    Redirect(String),
}

/// A request that was answered.
#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    /// The first and the last byte that were asked for.
    pub range: Option<(usize, usize)>,
    /// Bytes of the body that were sent.
    pub sent: usize,
    pub headers: HashMap<String, String>,
}

#[derive(Default)]
struct Shared {
    files: Mutex<HashMap<String, (String, Vec<u8>)>>,
    faults: Mutex<HashMap<String, Fault>>,
    asked: Mutex<Vec<Asked>>,
    held: Mutex<u32>,
    changed: Condvar,
}

/// The server. Its threads end with the process.
pub struct Registry {
    pub url: String,
    shared: Arc<Shared>,
}

impl Registry {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared::default());
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // A client that goes away is not an error.
                std::thread::spawn(move || answer(&stream, &shared).unwrap_or_default());
            }
        });
        Self { url, shared }
    }

    /// Serves bytes at a path.
    pub fn put(&self, path: &str, kind: &str, bytes: impl Into<Vec<u8>>) {
        let file = (kind.to_owned(), bytes.into());
        let mut files = self.shared.files.lock().unwrap();
        files.insert(path.to_owned(), file);
    }

    /// Serves a path in this way from now on.
    pub fn break_at(&self, path: &str, fault: Fault) {
        let mut faults = self.shared.faults.lock().unwrap();
        faults.insert(path.to_owned(), fault);
    }

    /// Serves a path as it should be from now on.
    pub fn mend(&self, path: &str) {
        self.shared.faults.lock().unwrap().remove(path);
    }

    /// Waits until an answer is held.
    pub fn held(&self) {
        let held = self.shared.held.lock().unwrap();
        let patience = crate::harness::PATIENCE;
        let waited = self
            .shared
            .changed
            .wait_timeout_while(held, patience, |held| *held == 0);
        assert!(!waited.unwrap().1.timed_out(), "nothing was asked for");
    }

    /// The requests so far, and forgets them.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.shared.asked.lock().unwrap())
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "what a request may ask for, in order"
)]
fn answer(mut stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut headers = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let target = request.split(' ').nth(1).unwrap_or_default();
    let path = match target.strip_prefix("http://") {
        Some(rest) => &rest[rest.find('/').unwrap_or(rest.len())..],
        None => target,
    };
    let path = path.to_owned();
    let fault = {
        let mut faults = shared.faults.lock().unwrap();
        match faults.get_mut(&path) {
            Some(Fault::Cut { times: 0, .. }) => None,
            Some(Fault::Cut { times, after }) => {
                *times -= 1;
                Some(Fault::Cut {
                    times: *times,
                    after: *after,
                })
            }
            other => other.cloned(),
        }
    };
    let file = shared.files.lock().unwrap().get(&path).cloned();
    let mut asked = Asked {
        path,
        range: None,
        sent: 0,
        headers,
    };
    let (kind, mut bytes) = match (file, &fault) {
        (_, Some(Fault::Redirect(to))) => {
            shared.asked.lock().unwrap().push(asked);
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        (Some(file), fault) if !matches!(fault, Some(Fault::Status(_))) => file,
        (_, fault) => {
            let status = match fault {
                Some(Fault::Status(status)) => *status,
                _ => 404,
            };
            shared.asked.lock().unwrap().push(asked);
            return write!(
                stream,
                "HTTP/1.1 {status} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
    };
    match fault {
        Some(Fault::Wrong) => {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        Some(Fault::Longer) => bytes.push(0),
        _ => {}
    }
    let total = bytes.len();
    let range = asked.headers.get("range").and_then(|range| {
        let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
    });
    asked.range = range;
    let (head, body) = match range {
        Some((first, last)) if fault != Some(Fault::NoRanges) => {
            let last = last.min(total - 1);
            let head =
                format!("206 Partial Content\r\ncontent-range: bytes {first}-{last}/{total}");
            (head, &bytes[first..=last])
        }
        _ => ("200 OK".to_owned(), &bytes[..]),
    };
    let length = body.len();
    let body = match fault {
        Some(Fault::Cut { after, .. } | Fault::Hold { after }) => &body[..after.min(length)],
        _ => body,
    };
    asked.sent = body.len();
    shared.asked.lock().unwrap().push(asked);
    write!(
        stream,
        "HTTP/1.1 {head}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    )?;
    stream.write_all(body)?;
    stream.flush()?;
    if matches!(fault, Some(Fault::Hold { .. })) {
        *shared.held.lock().unwrap() += 1;
        shared.changed.notify_all();
        // Until the client goes away.
        let mut rest = String::new();
        let _ = BufReader::new(stream).read_line(&mut rest);
    }
    Ok(())
}
