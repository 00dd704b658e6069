//! Parsing of frames (RFC 6455): frames from chunks, messages from fragments. `actix-http`'s codec handles
//! unmasking, reserved bits and opcodes; sizes (by the declared length, before anything is stored), the order of
//! fragments, UTF-8 and the rules of control frames are checked here. No I/O, no clock.

use actix_http::ws::{CloseReason, OpCode, Parser};
use bytes::{Bytes, BytesMut};
use bytestring::ByteString;

/// The maximum size of a text message, over all its fragments (protocol, section 1).
pub const MAX_TEXT_BYTES: usize = 4 << 20;
/// The maximum size of a binary message, over all its fragments (protocol, section 1).
pub const MAX_BINARY_BYTES: usize = 1 << 20;
/// RFC 6455, section 5.5.
const MAX_CONTROL_BYTES: u64 = 125;

/// A parsed frame or message.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A whole text message.
    Text(ByteString),
    /// A whole binary message.
    Binary(Bytes),
    /// To be answered with the same payload.
    Ping(Bytes),
    /// An answer to one of our pings, with its payload, or an unsolicited pong.
    Pong(Bytes),
    /// A fragment of a message, but not the last.
    Fragment,
    /// The client's close frame; whatever follows is ignored.
    Close(Option<CloseReason>),
}

/// Why the connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame that violates RFC 6455.
    #[error("{0}")]
    Protocol(&'static str),
    /// Text that is not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
    /// The message is too large.
    #[error("a message is longer than {limit} bytes")]
    TooBig {
        /// The limit.
        limit: usize,
    },
}

impl FrameError {
    /// The close code (RFC 6455, section 7.4.1).
    pub const fn close_code(self) -> u16 {
        match self {
            Self::Protocol(_) => 1002,
            Self::Utf8 => 1007,
            Self::TooBig { .. } => 1009,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Binary,
}

impl Kind {
    const fn most(self) -> usize {
        match self {
            Self::Text => MAX_TEXT_BYTES,
            Self::Binary => MAX_BINARY_BYTES,
        }
    }

    fn message(self, bytes: Bytes) -> Result<Input, FrameError> {
        match self {
            Self::Text => ByteString::try_from(bytes)
                .map(Input::Text)
                .map_err(|_| FrameError::Utf8),
            Self::Binary => Ok(Input::Binary(bytes)),
        }
    }
}

/// The part of a frame's header that contains the length.
struct Head {
    opcode: OpCode,
    last: bool,
    /// Size of header and payload.
    frame_bytes: u64,
    payload_bytes: u64,
}

impl Head {
    /// `None` until the length has arrived. The frames of a client have a mask of 4 bytes, those of a server none.
    fn peek(bytes: &[u8], of_server: bool) -> Option<Self> {
        let (&[first, second], rest) = bytes.split_first_chunk()?;
        let (payload_bytes, length_bytes) = match second & 0x7f {
            126 => (u16::from_be_bytes(*rest.first_chunk()?).into(), 2),
            127 => (u64::from_be_bytes(*rest.first_chunk()?), 8),
            short => (short.into(), 0),
        };
        let mask_bytes = if of_server { 0 } else { 4 };
        Some(Self {
            opcode: OpCode::from(first & 0x0f),
            last: first & 0x80 != 0,
            frame_bytes: payload_bytes.saturating_add(2 + length_bytes + mask_bytes),
            payload_bytes,
        })
    }
}

/// The incoming side of a connection.
#[derive(Debug, Default)]
pub struct Frames {
    arrived: BytesMut,
    /// A binary message that came before it.
    whole: Option<Bytes>,
    /// The fragments so far of the current message.
    begun: Option<(Kind, BytesMut)>,
    /// Whether the other side is a server.
    of_server: bool,
    /// The maximum size of a message, where that is less than usual.
    most: Option<usize>,
}

impl Frames {
    /// What a server sends to its client: frames without a mask.
    pub fn of_server() -> Self {
        Self {
            of_server: true,
            ..Self::default()
        }
    }

    /// What a client sends, in messages of at most so many bytes.
    pub fn with_limit(most: usize) -> Self {
        Self {
            most: Some(most),
            ..Self::default()
        }
    }

    fn limit(&self, kind: Kind) -> usize {
        let usual = kind.most();
        self.most.map_or(usual, |most| most.min(usual))
    }

    /// Appends received bytes.
    pub fn push(&mut self, mut chunk: &[u8]) {
        // Nearly all that comes is sound, and a whole message of it at a time. Its bytes are copied once.
        if !self.of_server
            && self.arrived.is_empty()
            && self.whole.is_none()
            && !self.within_message()
            && let Some((message, behind)) = whole_binary(chunk, self.limit(Kind::Binary))
        {
            self.whole = Some(message);
            chunk = behind;
        }
        if !chunk.is_empty() {
            self.arrived.extend_from_slice(chunk);
        }
    }

    /// Whether [`Self::next_frame`] has anything to look at.
    pub fn is_empty(&self) -> bool {
        self.whole.is_none() && self.arrived.is_empty()
    }

    /// The memory held for incomplete frames and messages, as of the last call of [`Self::next_frame`].
    pub fn unfinished(&self) -> usize {
        let begun = self.begun.as_ref().map(|(_, begun)| begun.capacity());
        begun.unwrap_or_default() + self.arrived.capacity()
    }

    /// Whether a fragmented message is incomplete.
    pub const fn within_message(&self) -> bool {
        self.begun.is_some()
    }

    /// The next frame; `None` until more arrives. After an error nothing more can be parsed.
    pub fn next_frame(&mut self) -> Result<Option<Input>, FrameError> {
        if let Some(message) = self.whole.take() {
            return Ok(Some(Input::Binary(message)));
        }
        if self.arrived.is_empty() {
            // A new buffer for each burst, so that no memory of the previous one is retained.
            self.arrived = BytesMut::new();
            return Ok(None);
        }
        let Some(head) = Head::peek(&self.arrived, self.of_server) else {
            return Ok(None);
        };
        self.check_size(&head)?;
        // While the frame is incomplete, let the codec see only its header: a limit of 0 prevents it from reserving
        // memory for a length that is merely declared.
        let whole = self.arrived.len() as u64 >= head.frame_bytes;
        let limit = if whole { usize::MAX } else { 0 };
        let frame = Parser::parse(&mut self.arrived, !self.of_server, limit)
            .map_err(|_| FrameError::Protocol("malformed frame"))?;
        let Some((last, opcode, payload)) = frame else {
            return Ok(None);
        };
        let payload = payload.unwrap_or_default();
        if self.arrived.len() < payload.len() {
            // The remainder would keep the memory of what was consumed.
            self.arrived = BytesMut::from(&self.arrived[..]);
        }
        self.frame(last, opcode, payload).map(Some)
    }

    fn check_size(&self, head: &Head) -> Result<(), FrameError> {
        let (kind, begun_bytes) = match (head.opcode, &self.begun) {
            (OpCode::Ping | OpCode::Pong | OpCode::Close, _) => {
                return if !head.last {
                    Err(FrameError::Protocol("fragmented control frame"))
                } else if head.payload_bytes > MAX_CONTROL_BYTES {
                    Err(FrameError::Protocol("control frame over 125 bytes"))
                } else {
                    Ok(())
                };
            }
            (OpCode::Text, None) => (Kind::Text, 0),
            (OpCode::Binary, None) => (Kind::Binary, 0),
            (OpCode::Continue, Some((kind, begun))) => (*kind, begun.len() as u64),
            (OpCode::Continue, None) => {
                return Err(FrameError::Protocol("nothing to continue"));
            }
            (OpCode::Text | OpCode::Binary, Some(_)) => {
                return Err(FrameError::Protocol("message within a message"));
            }
            (OpCode::Bad, _) => return Err(FrameError::Protocol("unknown opcode")),
        };
        let limit = self.limit(kind);
        if begun_bytes.saturating_add(head.payload_bytes) > limit as u64 {
            return Err(FrameError::TooBig { limit });
        }
        Ok(())
    }

    fn frame(
        &mut self,
        last: bool,
        opcode: OpCode,
        payload: BytesMut,
    ) -> Result<Input, FrameError> {
        let (kind, message) = match opcode {
            OpCode::Ping => return Ok(Input::Ping(payload.freeze())),
            OpCode::Pong => return Ok(Input::Pong(payload.freeze())),
            OpCode::Close => {
                return Parser::try_parse_close_payload(&payload)
                    .map(Input::Close)
                    .map_err(|_| FrameError::Protocol("malformed close frame"));
            }
            OpCode::Text => (Kind::Text, payload),
            OpCode::Binary => (Kind::Binary, payload),
            OpCode::Continue | OpCode::Bad => {
                let (kind, mut begun) = self
                    .begun
                    .take()
                    .ok_or(FrameError::Protocol("nothing to continue"))?;
                begun.extend_from_slice(&payload);
                (kind, begun)
            }
        };
        if last {
            return kind.message(message.freeze());
        }
        self.begun = Some((kind, message));
        Ok(Input::Fragment)
    }
}

/// The binary message of a client in one frame that `bytes` begin with, and what is behind it. A longer one than `limit` is
/// none.
fn whole_binary(bytes: &[u8], limit: usize) -> Option<(Bytes, &[u8])> {
    /// The last frame of a binary message, without reserved bits.
    const FIRST: u8 = 0x82;
    const MASKED: u8 = 0x80;
    const MASK_BYTES: usize = 4;
    let &[FIRST, second, ..] = bytes else {
        return None;
    };
    let head = Head::peek(bytes, false).filter(|_| second & MASKED != 0)?;
    let length = usize::try_from(head.payload_bytes).ok()?;
    let end = usize::try_from(head.frame_bytes).ok()?;
    if length > limit {
        return None;
    }
    let (frame, behind) = bytes.split_at_checked(end)?;
    let (head, payload) = frame.split_at_checked(end.checked_sub(length)?)?;
    let mask = *head.last_chunk::<MASK_BYTES>()?;
    let mut payload = payload.to_vec();
    unmask(&mut payload, mask);
    Some((payload.into(), behind))
}

/// RFC 6455, section 5.3.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let (words, rest) = payload.as_chunks_mut::<4>();
    let word_mask = u32::from_ne_bytes(mask);
    for word in words {
        *word = (u32::from_ne_bytes(*word) ^ word_mask).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Builds a client frame.
    fn frame(opcode: OpCode, last: bool, payload: &[u8]) -> BytesMut {
        let mut bytes = BytesMut::new();
        Parser::write_message(&mut bytes, payload, opcode, last, true);
        bytes
    }

    fn all(frames: &mut Frames) -> Result<Vec<Input>, FrameError> {
        std::iter::from_fn(|| frames.next_frame().transpose()).collect()
    }

    #[test]
    fn a_declared_length_is_refused_before_its_bytes_are_kept() {
        for (opcode, limit) in [(0x81, MAX_TEXT_BYTES), (0x82, MAX_BINARY_BYTES)] {
            for (length, refused) in [(limit, false), (limit + 1, true), (usize::MAX >> 1, true)] {
                let mut frames = Frames::default();
                frames.push(&[opcode, 0xff]);
                frames.push(&(length as u64).to_be_bytes());
                frames.push(&[1, 2, 3, 4, 5]);
                let expected = if refused {
                    Err(FrameError::TooBig { limit })
                } else {
                    Ok(None)
                };
                assert_eq!(frames.next_frame(), expected);
                assert!(
                    frames.arrived.capacity() < 1024,
                    "memory reserved for a promise"
                );
            }
        }
    }

    #[test]
    fn the_sum_of_fragments_is_limited() {
        let mut frames = Frames::default();
        let half = vec![0; MAX_BINARY_BYTES / 2];
        frames.push(&frame(OpCode::Binary, false, &half));
        frames.push(&frame(OpCode::Continue, false, &half));
        assert_eq!(all(&mut frames), Ok(vec![Input::Fragment, Input::Fragment]));
        frames.push(&frame(OpCode::Continue, true, b"x"));
        assert_eq!(
            frames.next_frame(),
            Err(FrameError::TooBig {
                limit: MAX_BINARY_BYTES
            })
        );
    }

    #[test]
    fn garbage_is_refused_as_soon_as_its_head_is_there() {
        let mut frames = Frames::default();
        frames.push(b"GET / ");
        assert!(matches!(frames.next_frame(), Err(FrameError::Protocol(_))));
    }

    #[test]
    fn only_what_is_not_complete_is_held() {
        let mut frames = Frames::default();
        let long = frame(OpCode::Text, true, &vec![b'a'; 100_000]);
        frames.push(&long[..50_000]);
        assert_eq!(frames.next_frame(), Ok(None));
        assert!(frames.unfinished() >= 50_000);
        frames.push(&long[50_000..]);
        frames.push(&long[..1]);
        assert_eq!(all(&mut frames).map(|inputs| inputs.len()), Ok(1));
        assert!((1..100).contains(&frames.unfinished()));
        frames.push(&long[1..]);
        assert_eq!(all(&mut frames).map(|inputs| inputs.len()), Ok(1));
        assert_eq!(frames.unfinished(), 0);
        frames.push(&frame(OpCode::Binary, false, &[0; 1000]));
        assert_eq!(all(&mut frames), Ok(vec![Input::Fragment]));
        assert!(frames.within_message() && (1000..2000).contains(&frames.unfinished()));
    }

    #[test]
    fn a_kept_message_keeps_no_larger_buffer_alive() {
        let mut frames = Frames::default();
        frames.push(&frame(OpCode::Text, true, &vec![b'a'; 100_000]));
        assert_eq!(all(&mut frames).map(|inputs| inputs.len()), Ok(1));
        frames.push(&frame(OpCode::Binary, true, &[1; 640]));
        assert!(frames.arrived.capacity() < 2_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn messages_do_not_depend_on_how_they_are_chopped(
            texts in prop::collection::vec("\\PC{0,90}", 1..5),
            pieces in 1_usize..4,
            chunk in 1_usize..300,
        ) {
            let mut wire = BytesMut::new();
            for text in &texts {
                let fragment = text.len() / pieces + 1;
                let parts: Vec<_> = text.as_bytes().chunks(fragment).collect();
                let parts = if parts.is_empty() { vec![&[][..]] } else { parts };
                for (index, part) in parts.iter().enumerate() {
                    let opcode = if index == 0 { OpCode::Text } else { OpCode::Continue };
                    wire.extend(frame(opcode, index + 1 == parts.len(), part));
                    wire.extend(frame(OpCode::Ping, true, b"between"));
                }
            }
            let mut frames = Frames::default();
            let mut heard = Vec::new();
            for chunk in wire.chunks(chunk) {
                frames.push(chunk);
                for input in all(&mut frames).unwrap() {
                    if let Input::Text(text) = input {
                        heard.push(text.to_string());
                    }
                }
            }
            prop_assert_eq!(heard, texts);
        }

        #[test]
        fn no_bytes_make_it_panic_or_hold_more_than_arrived(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..10),
        ) {
            let mut frames = Frames::default();
            for chunk in chunks {
                frames.push(&chunk);
                if all(&mut frames).is_err() {
                    break;
                }
                prop_assert!(frames.arrived.capacity() <= 8_192);
            }
        }
    }
}
