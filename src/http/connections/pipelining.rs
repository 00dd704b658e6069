//! Limits on pipelining. actix parses everything it is given, and each request head of a few bytes becomes kilobytes;
//! so a connection that sends far more heads than any client pipelines is closed before that. actix also keeps reading
//! until no more data is available, even the body of a refused request; so it is given a limited amount and must
//! process that before it is given more.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ConnectionState;
use vivavoce_telemetry::metrics::{self, ConnectionCut};

/// The maximum number of unanswered requests. actix-http holds 16 beside the one in progress (`MAX_PIPELINED_MESSAGES`) and
/// parses no further; if its read buffer then fills up, it polls itself without a pause until a response has been sent.
pub const MAX_PIPELINED: usize = 16;

/// Bytes read before yielding.
const MAX_READ_AT_ONCE: usize = 16 << 10;

/// The longest line of a head that is read; all that matter here are shorter.
const LINE: usize = 48;

/// Counts heads by the empty lines that end them, and passes over bodies, whose bytes may be anything. Where it is not
/// sure how long a body is, it counts the lines of that as well: what is cut then is what actix refuses, too.
#[derive(Debug, Default)]
pub(super) struct PipelinedRequests {
    ended: Cell<usize>,
    reader: RefCell<HeadReader>,
}

impl PipelinedRequests {
    /// Counts what has arrived; returns whether it is too much.
    fn come(&self, bytes: &[u8]) -> bool {
        let ended = self.ended.get() + self.reader.borrow_mut().read(bytes);
        self.ended.set(ended);
        ended > MAX_PIPELINED
    }

    /// A response has been sent.
    pub(super) fn answered(&self) {
        self.ended.set(self.ended.get().saturating_sub(1));
    }

    /// Everything has been answered.
    fn settled(&self) {
        self.ended.set(0);
    }
}

/// Finds where heads end and bodies are (RFC 9112, sections 6 and 7.1).
#[derive(Debug, Default)]
struct HeadReader {
    /// The line that is being read, as far as it fits.
    line: Vec<u8>,
    /// Whether the line is longer than that.
    longer: bool,
    /// Whether there was a line before it, which an empty one then ends.
    after_line: bool,
    body: Body,
    /// What is to be passed over.
    left: u64,
}

/// How the body is delimited, of the head that is being read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Body {
    #[default]
    None,
    Length(u64),
    /// Its chunks follow the head.
    Chunked,
    /// Now the length of a chunk is read.
    Chunk,
    /// Both, or a length that is none.
    Unclear,
}

impl HeadReader {
    /// Returns how many heads have ended.
    fn read(&mut self, bytes: &[u8]) -> usize {
        let (mut rest, mut ended) = (bytes, 0);
        loop {
            let passed = usize::try_from(self.left).unwrap_or(usize::MAX);
            let passed = passed.min(rest.len());
            self.left -= passed as u64;
            rest = rest.get(passed..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', rest) else {
                self.add(rest);
                return ended;
            };
            let (line, behind) = rest.split_at(at);
            self.add(line);
            ended += usize::from(self.line_ends());
            self.line.clear();
            self.longer = false;
            rest = behind.get(1..).unwrap_or_default();
        }
    }

    fn add(&mut self, part: &[u8]) {
        let room = LINE - self.line.len();
        let (fits, beyond) = part.split_at(part.len().min(room));
        self.longer |= !beyond.is_empty();
        self.line.extend_from_slice(fits);
    }

    /// Whether this line ends a head.
    fn line_ends(&mut self) -> bool {
        if self.body == Body::Chunk {
            self.chunk_begins();
            return false;
        }
        if !self.longer && self.line.iter().all(|byte| *byte == b'\r') {
            let ends = std::mem::replace(&mut self.after_line, true);
            if ends {
                (self.body, self.left) = match self.body {
                    Body::Length(length) => (Body::None, length),
                    Body::Chunked => (Body::Chunk, 0),
                    _ => (Body::None, 0),
                };
            }
            return ends;
        }
        self.after_line = true;
        let Some(colon) = memchr::memchr(b':', &self.line) else {
            return false;
        };
        let (name, value) = self.line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let says = if name.eq_ignore_ascii_case(b"content-length") {
            self.length(value).map(Body::Length)
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let is_chunked = value.eq_ignore_ascii_case(b"chunked") && !self.longer;
            is_chunked.then_some(Body::Chunked)
        } else {
            return false;
        };
        self.body = match (self.body, says) {
            (Body::None, Some(says)) => says,
            _ => Body::Unclear,
        };
        false
    }

    fn length(&self, value: &[u8]) -> Option<u64> {
        let is_number = !self.longer && value.iter().all(u8::is_ascii_digit);
        let text = std::str::from_utf8(value).ok().filter(|_| is_number)?;
        text.parse().ok()
    }

    /// Reads the length of a chunk, behind which there is the end of a line.
    fn chunk_begins(&mut self) {
        let line = self.line.trim_ascii_end();
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let length = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        match length {
            Some(length) if (1..u64::MAX - 2).contains(&length) => self.left = length + 2,
            // The empty line that follows the last chunk is no head's.
            Some(0) => {
                self.body = Body::None;
                self.after_line = false;
            }
            _ => self.body = Body::None,
        }
    }
}

/// Bytes handed over since actix last processed its input.
#[derive(Debug)]
struct ReadBudget(usize);

impl ReadBudget {
    /// Whether to yield now; resets the count if so.
    fn is_enough(&mut self) -> bool {
        let enough = self.0 >= MAX_READ_AT_ONCE;
        if enough {
            self.0 = 0;
        }
        enough
    }

    /// Counts bytes that were read; `None` if no more are available at the moment.
    const fn read(&mut self, come: Option<usize>) {
        self.0 = match come {
            Some(come) => self.0 + come,
            None => 0,
        };
    }
}

/// A connection whose requests are counted, above TLS.
pub struct Pipelined<T> {
    io: T,
    state: Rc<ConnectionState>,
    given: ReadBudget,
}

impl<T> Pipelined<T> {
    /// Wraps `io`, whose connection is `state`.
    pub const fn new(io: T, state: Rc<ConnectionState>) -> Self {
        Self {
            io,
            state,
            given: ReadBudget(0),
        }
    }

    /// The inner stream.
    pub const fn get_ref(&self) -> &T {
        &self.io
    }

    /// The inner stream alone.
    pub fn into_inner(self) -> T {
        self.io
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Pipelined<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.given.is_enough() {
            // actix processes its input when it gets `Pending`, and reads again at once.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        self.given
            .read(read.is_ready().then(|| buffer.filled().len() - before));
        let state = &self.state;
        match &read {
            Poll::Pending if state.head_awaited.get().is_some() => state.heads.settled(),
            Poll::Ready(Ok(())) if !state.is_socket.get() => {
                let come = buffer.filled().get(before..).unwrap_or_default();
                if state.heads.come(come) {
                    metrics::connection_cut(ConnectionCut::Bytes);
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
            }
            _ => {}
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Pipelined<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_looked_at_before_there_is_much_of_it() {
        let mut given = ReadBudget(0);
        let mut at_once = Vec::new();
        for _ in 0..3 {
            let mut chunks = 0;
            while !given.is_enough() {
                given.read(Some(1000));
                chunks += 1;
            }
            at_once.push(chunks);
        }
        assert_eq!(at_once, [17; 3]);
        // A client that sends little at a time is never delayed.
        for _ in 0..100 {
            given.read(Some(1000));
            assert!(!given.is_enough());
            given.read(None);
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_wherever_what_comes_is_cut() {
        let sent: &[u8] = b"\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\nab\n\r\r\nc\n\n\n";
        for first in 0..=sent.len() {
            for second in first..=sent.len() {
                let heads = PipelinedRequests::default();
                for part in [&sent[..first], &sent[first..second], &sent[second..]] {
                    heads.come(part);
                }
                assert_eq!(heads.ended.get(), 4, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn heads_are_counted_however_they_come_and_forgotten_when_they_are_answered() {
        let heads = PipelinedRequests::default();
        let request: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        for byte in request.repeat(MAX_PIPELINED) {
            assert!(!heads.come(&[byte]));
        }
        heads.answered();
        assert!(!heads.come(request));
        assert!(heads.come(b"GET / HTTP/1.1\n\n"));
        heads.settled();
        assert!(!heads.come(request));
        assert_eq!(heads.ended.get(), 1);
    }

    /// How many heads are counted, however what is sent is cut in two.
    fn counted(sent: &[u8]) -> usize {
        let counts = (0..=sent.len()).map(|cut| {
            let heads = PipelinedRequests::default();
            let (first, rest) = sent.split_at(cut);
            heads.come(first);
            heads.come(rest);
            heads.ended.get()
        });
        let counts: Vec<_> = counts.collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
        counts[0]
    }

    #[test]
    fn the_lines_of_a_body_are_no_heads() {
        let next = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let of_length =
            "POST / HTTP/1.1\r\nhost: a\r\nContent-Length:  8 \r\na: b\r\n\r\n\n\n\r\n\n\n\n\n";
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n\
                       4;x=y\r\n\n\n\n\n\r\n0A\r\n\n\n\n\n\n\n\n\n\n\n\r\n0\r\n\r\n";
        for body in [of_length, chunked] {
            assert_eq!(counted(format!("{body}{next}{body}{next}").as_bytes()), 4);
        }
    }

    #[test]
    fn nothing_is_passed_over_that_might_be_a_head() {
        let next = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let zeros = "0".repeat(LINE);
        let unclear = [
            "content-length: 99\r\ncontent-length: 99".to_owned(),
            "content-length: 99\r\ntransfer-encoding: chunked".to_owned(),
            "transfer-encoding: chunked\r\ncontent-length: 99".to_owned(),
            "content-length: +99".to_owned(),
            "content-length: 9 9".to_owned(),
            "content-length:".to_owned(),
            "content-length: 99999999999999999999".to_owned(),
            format!("content-length: {zeros}99"),
            "content-length : 99".to_owned(),
            "x-content-length: 99".to_owned(),
            "transfer-encoding: gzip, chunked".to_owned(),
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked".to_owned(),
        ];
        for lines in unclear {
            let sent = format!("POST / HTTP/1.1\r\n{lines}\r\n\r\n{next}{next}");
            assert_eq!(counted(sent.as_bytes()), 3, "{lines}");
        }
        // Chunks that are none.
        for chunk in ["x", "-1", "ffffffffffffffff", "1ffffffffffffffff"] {
            let sent = format!(
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{chunk}\r\n\r\n{next}{next}"
            );
            assert!(counted(sent.as_bytes()) >= 3, "{chunk}");
        }
    }
}
