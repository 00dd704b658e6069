//! The default mapping of HTTP errors to kinds of errors, by status and `Retry-After`. Vendors' folders refine it.

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use vivavoce_seams::{ErrorKind, ProviderError};

/// The longest message of a vendor that is repeated, in characters.
const MAX_WORDS: usize = 300;
/// The longest `Retry-After` that is honoured.
const LONGEST_RETRY: Duration = Duration::from_hours(1);

/// An HTTP error of a handshake or a request.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The beginning of its body.
    pub body: String,
}

impl Refusal {
    /// The kind of error by the status.
    pub fn kind(&self) -> ErrorKind {
        match self.status.as_u16() {
            401 | 403 => ErrorKind::Auth,
            402 => ErrorKind::Quota,
            408 | 504 => ErrorKind::Timeout,
            429 => ErrorKind::RateLimited {
                retry_after: retry_after(&self.headers, SystemTime::now()),
            },
            400..=499 => ErrorKind::InvalidRequest,
            500..=599 => ErrorKind::Unavailable,
            _ => ErrorKind::Protocol,
        }
    }

    /// Converts it to an error. `words` is the vendor's message, found in the body by its folder; it is shortened.
    pub fn error(&self, provider: &'static str, kind: ErrorKind, words: &str) -> ProviderError {
        let words = shortened(words);
        let status = self.status.as_u16();
        let message = if words.is_empty() {
            format!("answered {status}")
        } else {
            format!("answered {status}: {words}")
        };
        ProviderError::new(provider, kind, message)
    }

    /// The text of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// A vendor's message as one line of limited length.
pub fn shortened(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_WORDS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The delay that the headers ask for: `retry-after-ms`, or `Retry-After` in seconds or as a date (RFC 9110, 10.2.3).
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let wait = match text("retry-after-ms").and_then(|ms| ms.parse().ok()) {
        Some(ms) => Duration::from_millis(ms),
        None => {
            let asked = text(RETRY_AFTER.as_str())?;
            match asked.parse::<f64>() {
                Ok(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
                Err(_) => {
                    let date = httpdate::parse_http_date(asked).ok()?;
                    date.duration_since(now).unwrap_or_default()
                }
            }
        }
    };
    Some(wait.min(LONGEST_RETRY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_read_in_each_of_its_spellings() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let asked = |name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(
                reqwest::header::HeaderName::from_static(name),
                reqwest::header::HeaderValue::from_static(value),
            )]);
            retry_after(&headers, now)
        };
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(asked("retry-after", "7"), seconds(7));
        assert_eq!(
            asked("retry-after", "1.5"),
            Some(Duration::from_millis(1500))
        );
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(asked("retry-after", date), seconds(7));
        assert_eq!(
            asked("retry-after-ms", "250"),
            Some(Duration::from_millis(250))
        );
        assert_eq!(asked("retry-after", "soon"), None);
        assert_eq!(asked("retry-after", "-1"), None);
        assert_eq!(asked("retry-after", "1e300"), None);
        assert_eq!(asked("retry-after", "999999999"), seconds(3600));
    }

    #[test]
    fn a_vendors_words_are_one_line_and_not_long() {
        assert_eq!(shortened(" a\n b "), "a b");
        assert_eq!(shortened(&"é".repeat(1000)).chars().count(), MAX_WORDS + 1);
    }
}
