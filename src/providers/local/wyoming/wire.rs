//! The framing of the Wyoming protocol (version 1.10 of the reference): one line of JSON with the event's type, then
//! optionally more JSON for its data, then optionally bytes. What the events mean is known by `stt.rs` and `tts.rs`.
//!
//! ```text
//! {"type": "audio-chunk", "data": {…}, "data_length": 40, "payload_length": 2048}\n
//! {"rate": 16000, "width": 2, "channels": 1}   ← data_length bytes, merged over "data"
//! ………                                           ← payload_length bytes
//! ```

use bytes::{Buf, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::codec::{Decoder, Encoder};

/// The longest header line. The reference reads no longer ones.
pub const MAX_LINE: usize = 64 * 1024;
/// The longest data: the voices of a large server take some 500 kB.
pub const MAX_DATA: usize = 4 << 20;
/// The longest payload: 20 s of 24 kHz sound. Servers send chunks of some kilobytes.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// One event of either direction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Event {
    /// What it is, such as `audio-chunk`.
    pub kind: String,
    /// Its fields.
    pub data: Map<String, Value>,
    /// Its bytes.
    pub payload: Bytes,
}

impl Event {
    /// An event; `data` that is no JSON object counts as none.
    pub fn new(kind: &str, data: Value) -> Self {
        let data = match data {
            Value::Object(data) => data,
            _ => Map::new(),
        };
        Self {
            kind: kind.to_owned(),
            data,
            payload: Bytes::new(),
        }
    }

    /// The same event with bytes.
    pub fn with_payload(self, payload: Bytes) -> Self {
        Self { payload, ..self }
    }

    /// A field that is text.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.data.get(field).and_then(Value::as_str)
    }

    /// Its fields as `T`.
    pub fn parse<T: for<'de> Deserialize<'de>>(&self) -> Result<T, WireError> {
        T::deserialize(&self.data).map_err(|source| WireError::Data {
            kind: self.kind.clone(),
            source,
        })
    }
}

/// Why the bytes are not the protocol.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The header has no end.
    #[error("a header longer than {MAX_LINE} bytes")]
    LongLine,
    /// The header is not what it should be.
    #[error("a header that is no event: {0}")]
    Header(#[source] serde_json::Error),
    /// The data are not a JSON object, or lack a field.
    #[error("bad data of a {kind:?} event: {source}")]
    Data {
        /// The event.
        kind: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A part is longer than we take.
    #[error("{announced} bytes of {part}, more than {limit}")]
    TooLong {
        /// `data` or `payload`.
        part: &'static str,
        /// What was announced.
        announced: u64,
        /// What we take.
        limit: usize,
    },
    /// The stream ended inside an event.
    #[error("the connection ended inside an event")]
    Truncated,
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_length: Option<u64>,
}

/// Reads and writes events.
#[derive(Debug, Default)]
pub struct Wire {
    /// Bytes that are known to hold no line end.
    searched: usize,
    /// A header whose data or payload are still on their way.
    header: Option<Body>,
}

#[derive(Debug)]
struct Body {
    kind: String,
    data: Map<String, Value>,
    data_length: usize,
    payload_length: usize,
}

impl Body {
    fn new(line: &[u8]) -> Result<Self, WireError> {
        let header: Header = serde_json::from_slice(line).map_err(WireError::Header)?;
        Ok(Self {
            kind: header.kind,
            data: header.data.unwrap_or_default(),
            data_length: within("data", header.data_length, MAX_DATA)?,
            payload_length: within("payload", header.payload_length, MAX_PAYLOAD)?,
        })
    }

    fn into_event(mut self, data: &[u8], payload: Bytes) -> Result<Event, WireError> {
        if !data.is_empty() {
            let more = serde_json::from_slice::<Map<String, Value>>(data);
            let kind = self.kind.clone();
            self.data
                .extend(more.map_err(|source| WireError::Data { kind, source })?);
        }
        Ok(Event {
            kind: self.kind,
            data: self.data,
            payload,
        })
    }
}

fn within(part: &'static str, announced: Option<u64>, limit: usize) -> Result<usize, WireError> {
    let announced = announced.unwrap_or(0);
    match usize::try_from(announced) {
        Ok(length) if length <= limit => Ok(length),
        _ => Err(WireError::TooLong {
            part,
            announced,
            limit,
        }),
    }
}

impl Wire {
    fn take_header(&mut self, bytes: &mut BytesMut) -> Result<Option<Body>, WireError> {
        let Some(at) = bytes[self.searched..].iter().position(|&b| b == b'\n') else {
            self.searched = bytes.len();
            return if bytes.len() > MAX_LINE {
                Err(WireError::LongLine)
            } else {
                Ok(None)
            };
        };
        let length = self.searched + at;
        self.searched = 0;
        if length > MAX_LINE {
            return Err(WireError::LongLine);
        }
        let line = bytes.split_to(length);
        bytes.advance(1);
        Body::new(&line).map(Some)
    }
}

impl Decoder for Wire {
    type Item = Event;
    type Error = WireError;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Event>, WireError> {
        let body = match self.header.take() {
            Some(body) => body,
            None => match self.take_header(bytes)? {
                Some(body) => body,
                None => return Ok(None),
            },
        };
        let length = body.data_length + body.payload_length;
        if bytes.len() < length {
            bytes.reserve(length - bytes.len());
            self.header = Some(body);
            return Ok(None);
        }
        let data = bytes.split_to(body.data_length);
        let payload = bytes.split_to(body.payload_length).freeze();
        body.into_event(&data, payload).map(Some)
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> Result<Option<Event>, WireError> {
        match self.decode(bytes)? {
            Some(event) => Ok(Some(event)),
            None if bytes.is_empty() && self.header.is_none() => Ok(None),
            None => Err(WireError::Truncated),
        }
    }
}

impl Encoder<Event> for Wire {
    type Error = WireError;

    /// As the reference writes: the data always behind the header, so that its line stays short.
    fn encode(&mut self, event: Event, bytes: &mut BytesMut) -> Result<(), WireError> {
        let broken = |kind: &str, source| WireError::Data {
            kind: kind.to_owned(),
            source,
        };
        let data = if event.data.is_empty() {
            Vec::new()
        } else {
            serde_json::to_vec(&event.data).map_err(|e| broken(&event.kind, e))?
        };
        let announced = |length: usize| (length > 0).then_some(length as u64);
        let header = Header {
            kind: event.kind,
            data: None,
            data_length: announced(data.len()),
            payload_length: announced(event.payload.len()),
        };
        let line = serde_json::to_vec(&header).map_err(WireError::Header)?;
        bytes.reserve(line.len() + 1 + data.len() + event.payload.len());
        bytes.extend_from_slice(&line);
        bytes.extend_from_slice(b"\n");
        bytes.extend_from_slice(&data);
        bytes.extend_from_slice(&event.payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Every event in `bytes`, fed in pieces of `chunk` bytes.
    fn decode(bytes: &[u8], chunk: usize) -> Result<Vec<Event>, WireError> {
        let mut wire = Wire::default();
        let mut buffer = BytesMut::new();
        let mut events = Vec::new();
        for piece in bytes.chunks(chunk) {
            buffer.extend_from_slice(piece);
            while let Some(event) = wire.decode(&mut buffer)? {
                events.push(event);
            }
        }
        while let Some(event) = wire.decode_eof(&mut buffer)? {
            events.push(event);
        }
        Ok(events)
    }

    fn encode(events: &[Event]) -> BytesMut {
        let mut bytes = BytesMut::new();
        for event in events {
            Wire::default().encode(event.clone(), &mut bytes).unwrap();
        }
        bytes
    }

    fn event() -> impl Strategy<Value = Event> {
        let field = ("[a-z]{1,8}", "\\PC{0,20}");
        let data = prop::collection::vec(field, 0..4);
        let payload = prop::collection::vec(any::<u8>(), 0..300);
        ("[a-z-]{1,20}", data, payload).prop_map(|(kind, data, payload)| Event {
            kind,
            data: data.into_iter().map(|(k, v)| (k, v.into())).collect(),
            payload: payload.into(),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_was_written_is_read_however_it_is_cut(
            events in prop::collection::vec(event(), 0..5),
            chunk in 1usize..500,
        ) {
            prop_assert_eq!(decode(&encode(&events), chunk).unwrap(), events);
        }

        #[test]
        fn a_stream_that_ends_inside_an_event_is_an_error(
            events in prop::collection::vec(event(), 1..3),
            cut in 1usize..200,
        ) {
            let bytes = encode(&events);
            let last = encode(&events[events.len() - 1..]).len();
            let kept = bytes.len() - cut.min(last - 1);
            prop_assert!(matches!(decode(&bytes[..kept], 64), Err(WireError::Truncated)));
        }

        #[test]
        fn garbage_is_an_error(garbage in prop::collection::vec(any::<u8>(), 1..2000), chunk in 1usize..500) {
            // A line of an object is all that could be an event.
            prop_assume!(garbage[0] != b'{');
            prop_assert!(decode(&garbage, chunk).is_err());
        }
    }

    #[test]
    fn data_may_be_in_the_header_behind_it_or_in_both() {
        let bytes = b"{\"type\": \"info\", \"data\": {\"a\": 1, \"b\": 1}, \"data_length\": 8, \"payload_length\": null, \"version\": \"1.5.0\"}\n{\"b\": 2}{\"type\": \"ping\"}\n";
        let events = decode(bytes, 7).unwrap();
        assert_eq!(events[0], Event::new("info", json!({"a": 1, "b": 2})));
        assert_eq!(events[1], Event::new("ping", Value::Null));
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_is_held() {
        let endless = vec![b' '; MAX_LINE + 2];
        assert!(matches!(decode(&endless, 1000), Err(WireError::LongLine)));
        for (part, length) in [("data_length", u64::MAX), ("payload_length", 2 << 20)] {
            let header = format!("{{\"type\": \"x\", \"{part}\": {length}}}\n");
            let refused = decode(header.as_bytes(), 1000);
            assert!(matches!(refused, Err(WireError::TooLong { .. })));
        }
        for bad in [
            "{}\n",
            "[]\n",
            "\n",
            "{\"type\": \"x\", \"data_length\": -1}\n",
            "{\"type\": \"x\", \"data_length\": 2}\n[]",
        ] {
            assert!(decode(bad.as_bytes(), 1000).is_err(), "{bad}");
        }
    }
}
