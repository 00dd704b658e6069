//! The way out of a plain connection. Whoever queues something for the client sends it in the same call, as long as the
//! kernel takes all of it: no task has to be woken and run in between. What the kernel does not take is for the socket's task,
//! which waits until it does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::rt::net::TcpStream;
use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

use super::outbox::{Next, Outbox};

/// The writing half of a connection.
#[derive(Debug)]
pub(super) struct Wire {
    io: OwnedWriteHalf,
    /// What the kernel has not taken of the last frame.
    left: Bytes,
}

/// What came of sending at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentNow {
    /// Some frame has left the queue.
    pub(super) any: bool,
    /// Nothing is left for the socket's task.
    pub(super) all: bool,
}

impl SentNow {
    pub(super) const NOTHING: Self = Self {
        any: false,
        all: false,
    };
}

impl Wire {
    /// Of a connection, whose other half is read.
    pub(super) fn of(io: TcpStream) -> (Self, OwnedReadHalf) {
        let (read, io) = io.into_split();
        let left = Bytes::new();
        (Self { io, left }, read)
    }

    /// Sends what waits, as far as the kernel takes it. A socket that closes is left to its task.
    pub(super) fn send_now(&mut self, outbox: &mut Outbox) -> SentNow {
        let mut sent = SentNow::NOTHING;
        while self.left.is_empty() && outbox.closed().is_none() {
            let Next::Frame(frame) = outbox.next(Instant::now()) else {
                sent.all = true;
                return sent;
            };
            sent.any = true;
            // What has failed here fails for the task as well.
            let taken = self.io.try_write(&frame).unwrap_or_default();
            self.left = frame;
            self.taken(taken);
        }
        sent
    }

    /// Sends the rest of the last frame.
    pub(super) fn poll_left(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.left.is_empty() {
            let taken = ready!(Pin::new(&mut self.io).poll_write(context, &self.left))?;
            if taken == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero)).into();
            }
            self.taken(taken);
        }
        Poll::Ready(Ok(()))
    }

    /// So much of the last frame is with the kernel. Of what is there whole no memory is kept.
    fn taken(&mut self, bytes: usize) {
        self.left.advance(bytes);
        if self.left.is_empty() {
            self.left = Bytes::new();
        }
    }

    /// A frame that is to be sent; the one before it has been.
    pub(super) fn take(&mut self, frame: Bytes) {
        self.left = frame;
    }

    /// Tells the client that nothing more comes.
    pub(super) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    /// Gives up the connection, which is reset or has ended: the client is told nothing.
    pub(super) fn forget(self) {
        self.io.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Arc;
    use std::time::Duration;

    use bytestring::ByteString;
    use tokio::task::LocalSet;
    use vivavoce_core::party::Party;

    use super::super::SocketSettings;
    use super::super::carry::carry_plain;
    use super::super::outbox::{Audio, AudioRefused, Closed};
    use super::super::reader::{Reader, SocketHandler};
    use super::super::writer::{Body, Shared, SocketWriter};
    use super::*;

    struct Nothing;

    impl SocketHandler for Nothing {
        fn text(&mut self, _: ByteString) {}
        fn binary(&mut self, _: Bytes) {}
        fn closed(self, _: Closed) {}
    }

    /// A socket and its client, which blocks.
    async fn socket() -> (SocketWriter, std::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (io, _) = listener.accept().await.unwrap();
        let settings = SocketSettings {
            max_buffered_audio: Duration::from_mins(10),
            ..SocketSettings::of_tests()
        };
        let shared = Shared::new(&settings, Party::Operator);
        let writer = SocketWriter::new(Arc::clone(&shared));
        let reader = Reader::new(Nothing, Arc::clone(&shared), &settings, Party::Operator);
        tokio::task::spawn_local(carry_plain(io, reader, Body::new(shared)));
        // Once something has come, the connection is the socket's.
        writer.event("here");
        let mut client = client;
        let first = tokio::task::spawn_blocking(move || {
            client.read_exact(&mut [0; 6]).unwrap();
            client
        });
        (writer, first.await.unwrap())
    }

    fn audio(number: u32, length: usize) -> Audio {
        let mut bytes = vec![0; length];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        Audio {
            tag: 0,
            duration: Duration::from_millis(20),
            bytes: bytes.into(),
        }
    }

    #[tokio::test]
    async fn what_is_sent_is_with_the_kernel_when_the_call_returns() {
        let test = async {
            let (writer, mut client) = socket().await;
            let seconds = Some(Duration::from_secs(5));
            client.set_read_timeout(seconds).unwrap();
            writer.event("one");
            writer.audio(audio(2, 4)).unwrap();
            writer.latest("kind", "three");
            // No task has run.
            let mut sent = [0; 18];
            client.read_exact(&mut sent).unwrap();
            assert_eq!(sent, *b"\x81\x03one\x82\x04\0\0\0\x02\x81\x05three");
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_client_that_reads_late_gets_everything_in_its_order() {
        let test = async {
            let (writer, mut client) = socket().await;
            let length = 60_000;
            // Far more than the kernel takes, from this thread and from another.
            for number in 0..50 {
                writer.audio(audio(number, length)).unwrap();
            }
            let other = writer.clone();
            let more = std::thread::spawn(move || {
                (50..150).try_for_each(|number| other.audio(audio(number, length)))
            });
            assert_eq!(more.join().unwrap(), Ok::<_, AudioRefused>(()));
            let reading = tokio::task::spawn_blocking(move || {
                let mut frame = vec![0; 4 + length];
                for number in 0..150_u32 {
                    client.read_exact(&mut frame).unwrap();
                    let head = [0x82, 126, (length >> 8) as u8, (length & 0xff) as u8];
                    assert_eq!(frame[..4], head, "{number}");
                    assert_eq!(frame[4..8], number.to_be_bytes());
                }
            });
            reading.await.unwrap();
        };
        LocalSet::new().run_until(test).await;
    }
}
