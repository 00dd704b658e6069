//! Server-sent events, as far as chat completions use them: the `data` of each event. No I/O.

/// The longest line: the arguments of a function come in pieces, and a whole one is refused long before.
const MAX_LINE_BYTES: usize = 1 << 20;

/// A line is longer than 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sends a line of more than 1 MiB")]
pub struct LineTooLong;

/// Collects bytes, and returns the data of events.
#[derive(Debug, Default)]
pub struct EventStream {
    /// What has come and was not returned yet.
    bytes: Vec<u8>,
    /// Up to where that was looked through for the end of a line.
    searched: usize,
}

impl EventStream {
    /// Takes more of the stream.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), LineTooLong> {
        self.bytes.extend_from_slice(bytes);
        let open = self.bytes.iter().rev().take_while(|byte| **byte != b'\n');
        if open.take(MAX_LINE_BYTES + 1).count() > MAX_LINE_BYTES {
            return Err(LineTooLong);
        }
        Ok(())
    }

    /// The data of the next line that has some. Data in several lines is not joined: nobody sends JSON like that.
    pub fn next_data(&mut self) -> Option<String> {
        loop {
            let rest = self.bytes.get(self.searched..)?;
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.bytes.len();
                return None;
            };
            let line: Vec<u8> = self.bytes.drain(..=self.searched + end).collect();
            self.searched = 0;
            let line = line.trim_ascii_end();
            if let Some(data) = line.strip_prefix(b"data:") {
                return Some(String::from_utf8_lossy(data.trim_ascii_start()).into_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(events: &mut EventStream) -> Vec<String> {
        std::iter::from_fn(|| events.next_data()).collect()
    }

    #[test]
    fn data_is_found_however_its_bytes_come_and_everything_else_is_left_out() {
        let text = b": comment\r\nevent: message\r\ndata: {\"a\": 1}\r\n\r\ndata:[DONE]\n\ndata: unfinished";
        for size in 1..text.len() {
            let mut events = EventStream::default();
            let mut found = Vec::new();
            for piece in text.chunks(size) {
                events.push(piece).unwrap();
                found.extend(all(&mut events));
            }
            assert_eq!(found, ["{\"a\": 1}", "[DONE]"], "{size}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut events = EventStream::default();
        let piece = vec![b'a'; 1 << 18];
        assert!((0..4).all(|_| events.push(&piece).is_ok()));
        assert_eq!(events.push(&piece), Err(LineTooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
            let mut events = EventStream::default();
            for piece in &pieces {
                events.push(piece).unwrap();
                all(&mut events);
            }
        }
    }
}
