//! Bytes from HTTP servers: short ranges into memory, long ones into a file that a later attempt, or a later process,
//! continues. Servers are not trusted: nothing is read beyond the length that the caller knows.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, RANGE};
use reqwest::{Client, Response, StatusCode, Url};
use vivavoce_config::masked;
use vivavoce_core::backoff::Backoff;
use vivavoce_core::tls_roots::Authorities;

use crate::simple_index::{self, MAX_PAGE_BYTES};

/// A server that sends nothing for so long is taken for gone.
const SILENCE: Duration = Duration::from_secs(30);
/// So many attempts in a row may bring nothing.
const ATTEMPTS: u32 = 4;
/// So many times a file is continued, however little each attempt brings.
const MAX_CONTINUATIONS: u32 = 200;
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(500), Duration::from_secs(5), 0.2);

/// Why bytes could not be had from a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DownloadError {
    /// There is no connection to the server.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable { host: String, reason: String },
    /// It was not reached a moment ago.
    #[error("{host} cannot be reached")]
    StillUnreachable { host: String },
    /// It refuses, or fails.
    #[error("{url} answered {status}")]
    Status { url: String, status: StatusCode },
    /// It does not send parts of this resource.
    #[error("{url}: the server does not send parts of a file")]
    NoRanges { url: String },
    /// The resource has another length.
    #[error("{url} has {found} bytes instead of {expected}: it is another file")]
    Length {
        url: String,
        found: u64,
        expected: u64,
    },
    /// The server answers something that was not asked for.
    #[error("{url}: the server sent other bytes than those asked for")]
    OtherRange { url: String },
    /// More is sent than was asked for.
    #[error("{url}: the server sends more than {limit} bytes")]
    TooLong { url: String, limit: u64 },
    /// The transfer broke off, each time.
    #[error("{url} broke off: {reason}; running this again continues at {at} bytes")]
    Interrupted {
        url: String,
        reason: String,
        at: u64,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How an attempt ended that did not succeed.
enum Attempt {
    /// Another one may.
    Retry(String),
    /// No other one will.
    Fatal(DownloadError),
}

impl From<DownloadError> for Attempt {
    fn from(error: DownloadError) -> Self {
        Self::Fatal(error)
    }
}

impl From<io::Error> for Attempt {
    fn from(error: io::Error) -> Self {
        Self::Fatal(error.into())
    }
}

/// An HTTP client, with what it has learned about servers.
pub(crate) struct Downloader {
    client: Client,
    reached: HashSet<String>,
    unreachable: HashSet<String>,
    /// Bytes received so far.
    pub received: u64,
}

/// A URL for people.
pub(crate) fn shown(url: &Url) -> String {
    masked(url.as_str()).into_owned()
}

/// The server of a URL.
fn host(url: &Url) -> String {
    let name = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{name}:{port}"),
        None => name.to_owned(),
    }
}

/// The innermost cause, which is the one that people know.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

impl Downloader {
    /// A client that trusts these authorities, and gives a server this long to accept a connection. Proxies are those of
    /// the environment.
    pub fn new(authorities: &Authorities, connecting: Duration) -> reqwest::Result<Self> {
        let client = authorities
            .client()
            .connect_timeout(connecting)
            .read_timeout(SILENCE)
            .user_agent(concat!("vivavoce/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self {
            client,
            reached: HashSet::new(),
            unreachable: HashSet::new(),
            received: 0,
        })
    }

    /// A page of an index: its bytes, whether they are JSON, and the address that it was read from in the end.
    pub async fn page(&mut self, url: &Url) -> Result<(Vec<u8>, bool, Url), DownloadError> {
        let mut failures = 0;
        loop {
            match self.page_once(url).await {
                Ok(page) => return Ok(page),
                Err(attempt) => self.failed(url, attempt, &mut failures, 0).await?,
            }
        }
    }

    async fn page_once(&mut self, url: &Url) -> Result<(Vec<u8>, bool, Url), Attempt> {
        let mut headers = HeaderMap::new();
        headers.insert(
            ACCEPT,
            simple_index::ACCEPT.parse().map_err(io::Error::other)?,
        );
        let mut response = self.send(url, headers).await?;
        let kind = response.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_json = kind.contains("json");
        let base = response.url().clone();
        let mut page = Vec::new();
        self.read(&mut response, url, MAX_PAGE_BYTES, |bytes| {
            page.extend_from_slice(bytes);
            Ok(())
        })
        .await?;
        Ok((page, is_json, base))
    }

    /// Some bytes of a resource of `total` bytes, into memory.
    pub async fn range(
        &mut self,
        url: &Url,
        range: Range<u64>,
        total: u64,
    ) -> Result<Vec<u8>, DownloadError> {
        let mut failures = 0;
        loop {
            match self.range_once(url, range.clone(), total).await {
                Ok(bytes) => return Ok(bytes),
                Err(attempt) => self.failed(url, attempt, &mut failures, 0).await?,
            }
        }
    }

    async fn range_once(
        &mut self,
        url: &Url,
        range: Range<u64>,
        total: u64,
    ) -> Result<Vec<u8>, Attempt> {
        let length = range.end.saturating_sub(range.start);
        let mut bytes = Vec::new();
        if length == 0 {
            return Ok(bytes);
        }
        let mut response = self.send(url, ranged(&range)?).await?;
        check_range(&response, url, range.start, total)?;
        self.read(&mut response, url, length, |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })
        .await?;
        if (bytes.len() as u64) < length {
            return Err(Attempt::Retry("the connection was closed".to_owned()));
        }
        Ok(bytes)
    }

    /// The bytes `range` of a resource of `total` bytes, into a file that may hold the first of them. `progress` is told
    /// how many there are.
    pub async fn file(
        &mut self,
        url: &Url,
        range: Range<u64>,
        total: u64,
        part: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), DownloadError> {
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(part)?;
        let length = range.end.saturating_sub(range.start);
        let mut failures = 0;
        let mut continuations = 0;
        loop {
            let before = file.metadata()?.len();
            if before > length {
                file.set_len(0)?;
                continue;
            }
            progress(before);
            if before == length {
                return Ok(());
            }
            let attempt = self.file_once(url, range.clone(), total, &mut file, progress);
            let Err(attempt) = attempt.await else {
                continue;
            };
            let now = file.metadata()?.len();
            continuations += 1;
            if now > before && continuations < MAX_CONTINUATIONS {
                failures = 0;
            }
            self.failed(url, attempt, &mut failures, now).await?;
        }
    }

    async fn file_once(
        &mut self,
        url: &Url,
        range: Range<u64>,
        total: u64,
        file: &mut File,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Attempt> {
        let length = range.end.saturating_sub(range.start);
        let mut there = file.metadata()?.len();
        let is_whole = range == (0..total);
        let rest = range.start + there..range.end;
        let headers = if is_whole && there == 0 {
            HeaderMap::new()
        } else {
            ranged(&rest)?
        };
        let mut response = match self.send(url, headers).await {
            // What is there is not the beginning of what the server has now.
            Err(Attempt::Fatal(DownloadError::Status { status, .. }))
                if status == StatusCode::RANGE_NOT_SATISFIABLE && there > 0 =>
            {
                file.set_len(0)?;
                return Err(Attempt::Retry(status.to_string()));
            }
            other => other?,
        };
        if response.status() == StatusCode::PARTIAL_CONTENT {
            check_range(&response, url, rest.start, total)?;
        } else if !is_whole {
            return Err(DownloadError::NoRanges { url: shown(url) }.into());
        } else {
            if let Some(found) = response.content_length().filter(|found| *found != total) {
                let url = shown(url);
                let expected = total;
                return Err(DownloadError::Length {
                    url,
                    found,
                    expected,
                }
                .into());
            }
            there = 0;
            file.set_len(0)?;
        }
        file.seek(SeekFrom::Start(there))?;
        let left = length - there;
        self.read(&mut response, url, left, |chunk| {
            file.write_all(chunk)?;
            there += chunk.len() as u64;
            progress(there);
            Ok(())
        })
        .await?;
        if there < length {
            return Err(Attempt::Retry("the connection was closed".to_owned()));
        }
        Ok(())
    }

    /// Sends a request, and takes an answer of success only.
    async fn send(&mut self, url: &Url, mut headers: HeaderMap) -> Result<Response, Attempt> {
        let host = host(url);
        if self.unreachable.contains(&host) {
            return Err(DownloadError::StillUnreachable { host }.into());
        }
        // Compressed, a part of a file is not a part of the file.
        headers.insert(
            ACCEPT_ENCODING,
            "identity".parse().map_err(io::Error::other)?,
        );
        let request = self.client.get(url.clone()).headers(headers);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() && !self.reached.contains(&host) => {
                self.unreachable.insert(host.clone());
                let reason = cause(&error);
                return Err(DownloadError::Unreachable { host, reason }.into());
            }
            Err(error) if error.is_builder() || error.is_redirect() => {
                let reason = cause(&error);
                return Err(DownloadError::Unreachable { host, reason }.into());
            }
            Err(error) => return Err(Attempt::Retry(cause(&error))),
        };
        self.reached.insert(host);
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let busy = matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
        );
        if busy || status.is_server_error() {
            return Err(Attempt::Retry(format!("the server answered {status}")));
        }
        let url = shown(url);
        Err(DownloadError::Status { url, status }.into())
    }

    /// Reads a body of at most `limit` bytes.
    async fn read(
        &mut self,
        response: &mut Response,
        url: &Url,
        limit: u64,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Attempt> {
        let mut left = limit;
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok(()),
                Err(error) => return Err(Attempt::Retry(cause(&error))),
            };
            let length = chunk.len() as u64;
            self.received += length;
            let Some(after) = left.checked_sub(length) else {
                let url = shown(url);
                return Err(DownloadError::TooLong { url, limit }.into());
            };
            left = after;
            take(&chunk)?;
        }
    }

    /// Waits before another attempt, or says that there is none.
    async fn failed(
        &self,
        url: &Url,
        attempt: Attempt,
        failures: &mut u32,
        at: u64,
    ) -> Result<(), DownloadError> {
        let reason = match attempt {
            Attempt::Fatal(error) => return Err(error),
            Attempt::Retry(reason) => reason,
        };
        *failures += 1;
        if *failures >= ATTEMPTS {
            let url = shown(url);
            return Err(DownloadError::Interrupted { url, reason, at });
        }
        tokio::time::sleep(BACKOFF.delay(*failures - 1, fastrand::f64())).await;
        Ok(())
    }
}

fn ranged(range: &Range<u64>) -> Result<HeaderMap, Attempt> {
    let last = range.end.saturating_sub(1);
    let text = format!("bytes={}-{last}", range.start);
    let mut headers = HeaderMap::new();
    headers.insert(RANGE, text.parse().map_err(io::Error::other)?);
    Ok(headers)
}

/// Whether a response is the part from `start` of a resource of `total` bytes.
fn check_range(
    response: &Response,
    url: &Url,
    start: u64,
    total: u64,
) -> Result<(), DownloadError> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return Err(DownloadError::NoRanges { url: shown(url) });
    }
    let text = response.headers().get(CONTENT_RANGE);
    let text = text.and_then(|text| text.to_str().ok()).unwrap_or_default();
    let (found, of) =
        content_range(text).ok_or_else(|| DownloadError::OtherRange { url: shown(url) })?;
    if let Some(found) = of.filter(|of| *of != total) {
        let url = shown(url);
        let expected = total;
        return Err(DownloadError::Length {
            url,
            found,
            expected,
        });
    }
    if found == start {
        Ok(())
    } else {
        Err(DownloadError::OtherRange { url: shown(url) })
    }
}

/// The first byte and the length of the whole, of `bytes 0-99/1000` or `bytes 0-99/*`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((start, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_says_where_it_begins_and_how_long_the_whole_is() {
        assert_eq!(content_range("bytes 5-9/100"), Some((5, Some(100))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0, None)));
        for text in [
            "",
            "bytes */100",
            "bytes 5-9",
            "items 5-9/100",
            "bytes 5-9/x",
        ] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
