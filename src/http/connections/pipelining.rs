//! Limits on pipelining. actix parses everything it is given, and each request head of a few bytes becomes kilobytes;
//! so a connection that sends far more heads than any client pipelines is closed before that. actix also keeps reading
//! until no more data is available, even the body of a refused request; so it is given a limited amount and must
//! process that before it is given more.

use std::cell::Cell;
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

/// Counts heads by the empty lines that end them. A body may contain empty lines, too, so the count is reset whenever
/// everything has been answered.
#[derive(Debug, Default)]
pub(super) struct PipelinedRequests {
    ended: Cell<usize>,
    after_line: Cell<bool>,
}

impl PipelinedRequests {
    /// Counts what has arrived; returns whether it is too much.
    fn come(&self, bytes: &[u8]) -> bool {
        let (mut ended, mut after_line) = (self.ended.get(), self.after_line.get());
        let is_empty = |line: &[u8]| line.iter().all(|byte| *byte == b'\r');
        // Of a body there may be much, most of it without the end of a line.
        let mut rest = bytes;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let (line, behind) = rest.split_at(at);
            ended += usize::from(after_line && is_empty(line));
            after_line = true;
            rest = behind.get(1..).unwrap_or_default();
        }
        after_line = after_line && is_empty(rest);
        self.ended.set(ended);
        self.after_line.set(after_line);
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
        // The lines of a body that is not longer than one head.
        assert!(!heads.come(b"{\n  \"text\": \"x\"\n}"));
        assert_eq!(heads.ended.get(), 1);
    }
}
