//! Azure's framing of both directions: each message has a header block with its path and its request id. The paths are
//! handled in [`super::stt`] and [`super::tts`].

use std::time::SystemTime;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;

use super::SLUG;
use crate::transport::websocket::Received;
use vivavoce_core::unix_time::Utc;
use vivavoce_seams::{ErrorKind, ProviderError};

/// Azure counts time in units of 100 ns.
pub(super) const TICKS_PER_SECOND: f64 = 1e7;

/// Where a connection's ids and times come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    /// The connection, of which Azure's support asks the id.
    pub connection: Uuid,
    /// The time of day.
    pub clock: fn() -> SystemTime,
}

impl Origin {
    /// Of a new connection.
    pub fn new() -> Self {
        Self {
            connection: Uuid::new_v4(),
            clock: SystemTime::now,
        }
    }

    /// The connection's id as Azure writes it.
    pub fn connection_id(&self) -> String {
        self.connection.simple().to_string()
    }

    /// The id of a request, counted from 1: another for each.
    pub fn request_id(&self, number: u64) -> String {
        let id = self.connection.as_u128().wrapping_add(number.into());
        Uuid::from_u128(id).simple().to_string()
    }

    /// The first message of a connection, which says who speaks.
    pub fn config(&self, audio: Option<Value>) -> String {
        let mut context = json!({
            "system": {
                "name": "vivavoce", "version": env!("CARGO_PKG_VERSION"), "build": "Rust", "lang": "Rust",
            },
            "os": {"platform": std::env::consts::OS, "name": std::env::consts::OS, "version": "unknown"},
        });
        if let Some(audio) = audio {
            context["audio"] = audio;
        }
        let body = json!({"context": context}).to_string();
        self.text("speech.config", None, "application/json", &body)
    }

    /// A text message.
    pub fn text(
        &self,
        path: &str,
        request: Option<&str>,
        content_type: &str,
        body: &str,
    ) -> String {
        let head = self.head(path, request, Some(content_type));
        format!("{head}\r\n{body}")
    }

    /// A message of sound; the first one of a turn says what the sound is.
    pub fn audio(&self, request: &str, content_type: Option<&str>, sound: &[u8]) -> Bytes {
        let head = self.head("audio", Some(request), content_type);
        let mut message = BytesMut::with_capacity(2 + head.len() + sound.len());
        // The block is about 150 bytes long.
        message.put_u16(head.len() as u16);
        message.put_slice(head.as_bytes());
        message.put_slice(sound);
        message.freeze()
    }

    fn head(&self, path: &str, request: Option<&str>, content_type: Option<&str>) -> String {
        let time = timestamp((self.clock)());
        let mut head = format!("Path:{path}\r\nX-Timestamp:{time}\r\n");
        for (name, value) in [("X-RequestId", request), ("Content-Type", content_type)] {
            if let Some(value) = value {
                head.extend([name, ":", value, "\r\n"]);
            }
        }
        head
    }
}

/// A message of Azure's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Incoming {
    /// What it is, in lower case.
    pub path: String,
    /// The request that it belongs to, in lower case.
    pub request: String,
    /// JSON, or sound.
    pub body: Bytes,
}

impl Incoming {
    /// Reads a text message.
    pub fn text(text: String) -> Result<Self, ProviderError> {
        let (head, body) = match text.split_once("\r\n\r\n") {
            Some((head, _)) => (head.to_owned(), head.len() + 4),
            None => return Err(malformed("a text message without headers")),
        };
        Ok(Self::new(&head, Bytes::from(text).slice(body..)))
    }

    /// Reads a binary message.
    pub fn binary(mut message: Bytes) -> Result<Self, ProviderError> {
        let head = message.split_first_chunk::<2>().and_then(|(length, rest)| {
            let length = usize::from(u16::from_be_bytes(*length));
            std::str::from_utf8(rest.get(..length)?).ok()
        });
        let head = head.ok_or_else(|| malformed("a binary message without headers"))?;
        let head = head.to_owned();
        let body = message.split_off(2 + head.len());
        Ok(Self::new(&head, body))
    }

    fn new(head: &str, body: Bytes) -> Self {
        let header = |wanted: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
            found.map_or_else(String::new, |(_, value)| value.trim().to_ascii_lowercase())
        };
        Self {
            path: header("path"),
            request: header("x-requestid"),
            body,
        }
    }

    /// The body as JSON of this shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ProviderError> {
        serde_json::from_slice(&self.body).map_err(|error| {
            // The line, the column and what was expected: never what was said.
            let place = format!("line {} column {}", error.line(), error.column());
            malformed(&format!("a {} that cannot be read at {place}", self.path))
        })
    }
}

/// A message that has come, or how the connection was closed, during which request.
pub(super) fn read(received: Received, request: Option<&str>) -> Result<Incoming, ProviderError> {
    match received {
        Received::Text(text) => Incoming::text(text),
        Received::Binary(bytes) => Incoming::binary(bytes),
        Received::Closed(frame) => {
            let mut error = super::errors::closed(frame.as_ref());
            if let Some(request) = request {
                error.message = format!("{} (request {request})", error.message);
            }
            Err(error)
        }
    }
}

fn malformed(what: &str) -> ProviderError {
    ProviderError::new(SLUG, ErrorKind::Protocol, format!("sent {what}"))
}

/// A time as ISO 8601 has it: UTC, with milliseconds.
fn timestamp(time: SystemTime) -> String {
    let Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
        ms,
    } = Utc::of(time);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    /// The same ids and times, always.
    pub fn origin() -> Origin {
        Origin {
            connection: Uuid::from_u128(0xa0),
            clock: || SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_234_577_208),
        }
    }

    /// A message as Azure sends it.
    pub fn said(path: &str, request: &str, body: &Value) -> Received {
        Received::Text(format!(
            "X-RequestId:{request}\r\nContent-Type:application/json; charset=utf-8\r\nPath:{path}\r\n\r\n{body}"
        ))
    }

    #[test]
    fn times_are_written_as_iso_8601() {
        let written = |ms| timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!(written(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(written(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(written(951_868_800_000), "2000-03-01T00:00:00.000Z");
        assert_eq!(written(1_735_689_599_999), "2024-12-31T23:59:59.999Z");
        assert_eq!(written(1_795_234_577_208), "2026-11-21T04:16:17.208Z");
        assert_eq!(written(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn messages_have_headers_and_a_body() {
        let id = origin().request_id(1);
        assert_eq!(id, "000000000000000000000000000000a1");
        let text = origin().text("ssml", Some(&id), "application/ssml+xml", "<speak/>");
        let expected = "Path:ssml\r\nX-Timestamp:2026-11-21T04:16:17.208Z\r\n\
            X-RequestId:000000000000000000000000000000a1\r\nContent-Type:application/ssml+xml\r\n\r\n<speak/>";
        assert_eq!(text, expected);
        let audio = origin().audio(&id, None, &[1, 2, 3]);
        let length = usize::from(u16::from_be_bytes([audio[0], audio[1]]));
        assert!(audio[2..2 + length].starts_with(b"Path:audio\r\n"));
        assert_eq!(audio[2 + length..], [1, 2, 3]);
    }

    #[test]
    fn headers_are_read_whatever_their_case_and_order() {
        let text =
            "x-requestid: ABcd\r\nCONTENT-TYPE:a/b\r\npath:Turn.Start\r\n\r\n{\"a\":\r\n\r\n1}";
        let message = Incoming::text(text.to_owned()).unwrap();
        assert_eq!(
            (message.path.as_str(), message.request.as_str()),
            ("turn.start", "abcd")
        );
        assert_eq!(message.json::<Value>().unwrap(), json!({"a": 1}));
        let audio = origin().audio("F0", None, &[7; 9]);
        let message = Incoming::binary(audio).unwrap();
        assert_eq!(
            (message.path.as_str(), message.request.as_str()),
            ("audio", "f0")
        );
        assert_eq!(message.body, [7; 9][..]);
    }

    #[test]
    fn what_is_no_message_is_an_error_and_no_panic() {
        for bytes in [&[][..], &[0], &[0, 5, 1], &[255, 255], &[0, 1, 0xff]] {
            let refused = Incoming::binary(Bytes::copy_from_slice(bytes)).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Protocol);
        }
        let refused = Incoming::text("hello".to_owned()).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Protocol);
        let marked = Incoming::text("Path:a\r\n\r\n{\"marker".to_owned()).unwrap();
        let refused = marked.json::<Value>().unwrap_err();
        assert!(!refused.message.contains("marker"), "{refused}");
    }
}
