//! How much of a client's requests is taken before it is looked at. The server's parser unpacks all that it is given, and
//! each head of a few bytes becomes kilobytes; so a connection that sends far more heads than anybody pipelines is ended
//! before that. And it takes what is there until nothing more comes, also of a body that nobody wants; so it is given a
//! little at a time, and looks at that before it is given more.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Seat;
use vivavoce_telemetry::metrics::{self, ConnectionCut};

/// Heads that may wait for their answers.
pub const MOST_PIPELINED: usize = 32;

/// Bytes that are taken before they are looked at.
const MOST_AT_ONCE: usize = 16 << 10;

/// Counts heads by the empty lines that end them. A body may have some as well, so what was counted is forgotten whenever
/// everything that came has been answered.
#[derive(Debug, Default)]
pub(super) struct Heads {
    ended: Cell<usize>,
    after_line: Cell<bool>,
}

impl Heads {
    /// Looks at what has come; whether it is too much.
    fn come(&self, bytes: &[u8]) -> bool {
        let (mut ended, mut after_line) = (self.ended.get(), self.after_line.get());
        for byte in bytes {
            match byte {
                b'\n' => {
                    ended += usize::from(after_line);
                    after_line = true;
                }
                b'\r' => {}
                _ => after_line = false,
            }
        }
        self.ended.set(ended);
        self.after_line.set(after_line);
        ended > MOST_PIPELINED
    }

    /// An answer has been given.
    pub(super) fn answered(&self) {
        self.ended.set(self.ended.get().saturating_sub(1));
    }

    /// Nothing that came waits any more.
    fn settled(&self) {
        self.ended.set(0);
    }
}

/// Bytes that were given since the server last looked at what it has.
#[derive(Debug)]
struct Given(usize);

impl Given {
    /// Whether it is to look at them first. When it has been told so, it has.
    fn is_enough(&mut self) -> bool {
        let enough = self.0 >= MOST_AT_ONCE;
        if enough {
            self.0 = 0;
        }
        enough
    }

    /// So much has come, or there is nothing more for now.
    const fn read(&mut self, come: Option<usize>) {
        self.0 = match come {
            Some(come) => self.0 + come,
            None => 0,
        };
    }
}

/// A connection whose heads are counted, in plain text.
pub struct Pipelined<T> {
    io: T,
    seat: Rc<Seat>,
    given: Given,
}

impl<T> Pipelined<T> {
    /// What the server reads from `io`, which is `seat`'s.
    pub const fn new(io: T, seat: Rc<Seat>) -> Self {
        Self {
            io,
            seat,
            given: Given(0),
        }
    }

    /// The connection itself.
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
            // Whoever reads until there is nothing looks at what it has now, and asks again at once.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        self.given
            .read(read.is_ready().then(|| buffer.filled().len() - before));
        let seat = &self.seat;
        match &read {
            Poll::Pending if seat.head_awaited.get().is_some() => seat.heads.settled(),
            Poll::Ready(Ok(())) if !seat.is_socket.get() => {
                let come = buffer.filled().get(before..).unwrap_or_default();
                if seat.heads.come(come) {
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
        let mut given = Given(0);
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
        // Whoever sends a little at a time is never held up.
        for _ in 0..100 {
            given.read(Some(1000));
            assert!(!given.is_enough());
            given.read(None);
        }
    }

    #[test]
    fn heads_are_counted_however_they_come_and_forgotten_when_they_are_answered() {
        let heads = Heads::default();
        let request: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        for byte in request.repeat(MOST_PIPELINED) {
            assert!(!heads.come(&[byte]));
        }
        heads.answered();
        assert!(!heads.come(request));
        assert!(heads.come(b"GET / HTTP/1.1\n\n"));
        heads.settled();
        assert!(!heads.come(request));
        // Lines of a body that is no longer than one.
        assert!(!heads.come(b"{\n  \"text\": \"x\"\n}"));
        assert_eq!(heads.ended.get(), 1);
    }
}
