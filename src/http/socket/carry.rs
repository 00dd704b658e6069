//! A socket over a stream of bytes: what comes is read and what waits is written, independently of each other, in one
//! task.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::ready;
use std::time::Duration;

use actix_web::rt::net::TcpStream;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::poll_immediate;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;

use super::outbox::CLOSE_PATIENCE;
use super::reader::{Reader, SocketHandler};
use super::wire::Wire;
use super::writer::{Body, Shared};

/// Runs a socket until it has ended. Frames go out as `encode` makes them from those of a server. If the socket has not
/// ended in order, `reset` is called before the stream is dropped.
pub(super) async fn carry<T, H>(
    io: T,
    mut reader: Reader<H>,
    mut body: Body,
    encode: fn(Bytes) -> io::Result<Bytes>,
    reset: fn(&T),
) where
    T: AsyncRead + AsyncWrite + Unpin,
    H: SocketHandler,
{
    let io = &RefCell::new(io);
    // Dropped before reader and body, which end the socket.
    let _reset = ResetUnlessEnded {
        shared: Arc::clone(reader.shared()),
        io,
        reset,
    };
    until_both_end(write(io, &mut body, encode), reader.run(io)).await;
}

/// The same over a plain connection, to which is written by whoever has something to send.
pub(super) async fn carry_plain<H>(io: TcpStream, mut reader: Reader<H>, _body: Body)
where
    H: SocketHandler,
{
    let shared = Arc::clone(reader.shared());
    let (wire, read) = Wire::of(io);
    shared.set_wire(wire);
    let read = &RefCell::new(read);
    // Dropped before reader and body, which end the socket.
    let _ended = WireEnds {
        shared: &shared,
        read,
    };
    let writing = async {
        poll_fn(|context| shared.poll_send(context)).await?;
        // The other side may not read any more.
        let shut = poll_fn(|context| shared.poll_shutdown(context));
        timeout(CLOSE_PATIENCE, shut).await.unwrap_or(Ok(()))
    };
    until_both_end(writing, reader.run(read)).await;
}

async fn until_both_end(
    writing: impl Future<Output = io::Result<()>>,
    reading: impl Future<Output = ()>,
) {
    let (mut writing, mut reading) = (pin!(writing), pin!(reading));
    tokio::select! {
        // What waits is written first: it was due before what comes.
        biased;
        written = &mut writing => {
            if written.is_ok() {
                // The client answers the close frame or ends the connection, or the reader's patience ends.
                reading.await;
            } else {
                // What the client has sent before it went counts.
                poll_immediate(reading).await;
            }
        }
        () = &mut reading => {
            // What it has ended with may have an answer.
            poll_immediate(writing).await;
        }
    }
}

async fn write<T: AsyncWrite + Unpin>(
    io: &RefCell<T>,
    body: &mut Body,
    encode: fn(Bytes) -> io::Result<Bytes>,
) -> io::Result<()> {
    while let Some(frame) = body.next().await {
        let frame = encode(frame)?;
        let mut left = &frame[..];
        poll_fn(|context| {
            let mut io = io.borrow_mut();
            let mut io = Pin::new(&mut *io);
            while !left.is_empty() {
                let written = ready!(io.as_mut().poll_write(context, left))?;
                if written == 0 {
                    return Err(io::Error::from(io::ErrorKind::WriteZero)).into();
                }
                left = left.get(written..).unwrap_or_default();
            }
            io.poll_flush(context)
        })
        .await?;
    }
    // The other side may not read any more.
    let shut = poll_fn(|context| Pin::new(&mut *io.borrow_mut()).poll_shutdown(context));
    timeout(CLOSE_PATIENCE, shut).await.unwrap_or(Ok(()))
}

/// Takes the wire out of the socket, and resets the connection unless that has ended in order.
struct WireEnds<'a> {
    shared: &'a Shared,
    read: &'a RefCell<OwnedReadHalf>,
}

impl Drop for WireEnds<'_> {
    fn drop(&mut self) {
        if !self.shared.lock().ended()
            && let Ok(read) = self.read.try_borrow()
        {
            abandon((*read).as_ref());
        }
        if let Some(wire) = self.shared.take_wire() {
            wire.forget();
        }
    }
}

/// Closing the connection resets it from now on: unsent data is discarded.
pub(super) fn abandon(io: &TcpStream) {
    // Fails if the client has disconnected first, which is fine.
    let _ = SockRef::from(io).set_linger(Some(Duration::ZERO));
}

/// Resets the stream unless the socket has ended in order.
struct ResetUnlessEnded<'a, T> {
    shared: Arc<Shared>,
    io: &'a RefCell<T>,
    reset: fn(&T),
}

impl<T> Drop for ResetUnlessEnded<'_, T> {
    fn drop(&mut self) {
        if !self.shared.lock().ended()
            && let Ok(io) = self.io.try_borrow()
        {
            (self.reset)(&io);
        }
    }
}
