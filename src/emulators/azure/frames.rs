//! The service's side of Azure's framing: header lines with a path and a request id, then a body. Binary messages begin with
//! the length of the header block.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value;

use crate::outlet::Gone;
use crate::socket::{Message, Socket};

/// A client's message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// In lower case.
    pub path: String,
    /// As the client wrote it, so that it can be echoed.
    pub request: String,
    /// Text or sound.
    pub body: Bytes,
}

impl Frame {
    /// `None` for what has no header block.
    pub fn read(message: Message) -> Option<Self> {
        let (head, body) = match message {
            Message::Text(text) => {
                let end = text.find("\r\n\r\n")?;
                (text[..end].to_owned(), Bytes::from(text).slice(end + 4..))
            }
            Message::Binary(bytes) => {
                let length = u16::from_be_bytes(bytes.first_chunk().copied()?);
                let end = 2 + usize::from(length);
                let head = std::str::from_utf8(bytes.get(2..end)?).ok()?;
                (head.to_owned(), bytes.slice(end..))
            }
            Message::Close { .. } => return None,
        };
        let header = |name: &str| {
            head.split("\r\n").find_map(|line| {
                let (key, value) = line.split_once(':')?;
                let same = key.trim().eq_ignore_ascii_case(name);
                same.then(|| value.trim().to_owned())
            })
        };
        Some(Self {
            path: header("Path")?.to_ascii_lowercase(),
            request: header("X-RequestId").unwrap_or_default(),
            body,
        })
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; `Null` where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Sends a text message of a request.
pub(super) async fn send(
    socket: &Socket,
    request: &str,
    path: &str,
    body: &Value,
) -> Result<(), Gone> {
    let text = format!(
        "X-RequestId:{request}\r\nContent-Type:application/json; charset=utf-8\r\nPath:{path}\r\n\r\n{body}"
    );
    socket.send_text(text).await
}

/// Sends sound of a request.
pub(super) async fn send_sound(
    socket: &Socket,
    request: &str,
    stream: &str,
    sound: &[u8],
) -> Result<(), Gone> {
    let head = format!("X-RequestId:{request}\r\nX-StreamId:{stream}\r\nPath:audio\r\n");
    let mut message = BytesMut::with_capacity(2 + head.len() + sound.len());
    message.put_u16(head.len() as u16);
    message.put_slice(head.as_bytes());
    message.put_slice(sound);
    socket.send_binary(message.freeze()).await
}

/// A field of JSON whose names are written in upper and lower case as each client likes.
pub(super) fn field<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, name| {
        let fields = value.as_object()?;
        let found = fields
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    })
}

/// Whether a field is true: some clients write `"true"`.
pub(super) fn flag(value: &Value, path: &[&str]) -> bool {
    match field(value, path) {
        Some(Value::Bool(flag)) => *flag,
        Some(Value::String(text)) => text == "true",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_kinds_of_messages_are_read_as_both_sdks_write_them() {
        let text = "Path: speech.Config\r\nX-RequestId: ABC\r\n\r\n{\"a\":1}";
        let frame = Frame::read(Message::Text(text.to_owned())).unwrap();
        assert_eq!(
            (frame.path.as_str(), frame.request.as_str()),
            ("speech.config", "ABC")
        );
        assert_eq!(frame.json(), json!({"a": 1}));
        let mut binary = vec![0, 27];
        binary.extend(b"Path:audio\r\nX-RequestId:a\r\n\x01\x02");
        let frame = Frame::read(Message::Binary(binary.into())).unwrap();
        assert_eq!(
            (frame.path.as_str(), frame.request.as_str()),
            ("audio", "a")
        );
        assert_eq!(frame.body, [1, 2][..]);
    }

    #[test]
    fn what_has_no_header_block_is_no_message() {
        assert_eq!(Frame::read(Message::Text("{}".to_owned())), None);
        for binary in [&[][..], &[0], &[0, 9, 1], &[0, 1, 0xff, 0]] {
            assert_eq!(
                Frame::read(Message::Binary(Bytes::copy_from_slice(binary))),
                None
            );
        }
    }

    #[test]
    fn names_in_json_are_found_whatever_their_case() {
        let value = json!({"dgi": {"Groups": [1]}, "b": "true", "c": true});
        assert_eq!(field(&value, &["DGI", "groups"]), Some(&json!([1])));
        assert_eq!(field(&value, &["dgi", "items"]), None);
        assert!(flag(&value, &["B"]) && flag(&value, &["c"]) && !flag(&value, &["dgi"]));
    }
}
