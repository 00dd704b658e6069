//! A socket of a protocol that does one thing after another: its messages are awaited, and sending waits for the client.
//! Nothing is queued. Sessions, which hear while they speak, have [`SocketHandler`](super::SocketHandler) instead.

use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_http::ws::{CloseReason, OpCode, Parser};
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::BytesMut;
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::frames::{FrameError, Frames, Input};
use super::handover::{Connection, Upgrade, reset};
use super::outbox::{CLOSE_PATIENCE, frame};
use super::{OpenError, accept};

/// Bytes that are read at once.
const READ_BYTES: usize = 4 << 10;

/// The messages of one client. Unless the socket was [closed](Self::close) in order, the connection is reset when this is
/// dropped.
pub struct Messages<T = Connection> {
    io: T,
    frames: Frames,
    ended: bool,
    reset: fn(&T),
}

/// Upgrades a request to a socket that `run` reads and writes, on the thread that calls this. A message of the client has at
/// most `most` bytes. Pages of any origin may do this: who may is decided before.
pub fn open_messages<F>(
    request: &HttpRequest,
    payload: web::Payload,
    most: usize,
    run: impl FnOnce(Messages) -> F + 'static,
) -> Result<HttpResponse, OpenError>
where
    F: Future<Output = ()> + 'static,
{
    let (mut response, loan) = accept(request)?;
    let socket = move |io, came: &[u8]| run(Messages::new(io, came, most, reset)).boxed_local();
    Ok(response.streaming(Upgrade::new(loan, payload, socket)))
}

impl<T: AsyncRead + AsyncWrite + Unpin> Messages<T> {
    fn new(io: T, came: &[u8], most: usize, reset: fn(&T)) -> Self {
        let mut frames = Frames::with_limit(most);
        frames.push(came);
        Self {
            io,
            frames,
            ended: false,
            reset,
        }
    }

    /// The next message, ping, pong or close frame; `None` once the connection has ended. After an error nothing more can be
    /// read. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Input, FrameError>> {
        loop {
            // Frames that need nothing else would be taken for as long as the client sends them.
            consume_budget().await;
            match self.frames.next_frame() {
                Ok(Some(Input::Fragment)) => {}
                Ok(Some(input)) => return Some(Ok(input)),
                Ok(None) => {
                    let came = poll_fn(|context| self.poll_more(context)).await;
                    if !came.is_ok_and(|came| came) {
                        return None;
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Reads some bytes; false at their end.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        // On the stack: a socket keeps only what is not complete.
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.io).poll_read(context, &mut buffer))?;
        self.frames.push(buffer.filled());
        Poll::Ready(Ok(!buffer.filled().is_empty()))
    }

    /// Sends a binary message. Waits until the kernel has taken it, as all that send do.
    pub async fn binary(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send(OpCode::Binary, bytes).await
    }

    /// Sends a text message.
    pub async fn text(&mut self, text: &str) -> io::Result<()> {
        self.send(OpCode::Text, text.as_bytes()).await
    }

    /// Sends a ping, whose payload of at most 125 bytes the client's pong has.
    pub async fn ping(&mut self, payload: &[u8]) -> io::Result<()> {
        self.send(OpCode::Ping, payload).await
    }

    /// Answers a ping.
    pub async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        self.send(OpCode::Pong, payload).await
    }

    async fn send(&mut self, opcode: OpCode, payload: &[u8]) -> io::Result<()> {
        self.io.write_all(&frame(payload, opcode)).await?;
        self.io.flush().await
    }

    /// Sends a close frame, and waits for the client to end the connection; two seconds at most.
    pub async fn close(mut self, reason: CloseReason) {
        let closing = async {
            let mut frame = BytesMut::new();
            Parser::write_close(&mut frame, Some(reason), false);
            self.io.write_all(&frame).await?;
            // Behind TLS it ends with more than the connection does.
            self.io.shutdown().await?;
            while poll_fn(|context| self.poll_more(context)).await? {
                // It does not matter any more.
                self.frames = Frames::default();
            }
            self.ended = true;
            io::Result::Ok(())
        };
        // Fails if the client has disconnected.
        let _ = timeout(CLOSE_PATIENCE, closing).await;
    }
}

impl<T> Drop for Messages<T> {
    fn drop(&mut self) {
        if !self.ended {
            (self.reset)(&self.io);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use actix_http::ws::CloseCode;
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    thread_local! {
        static RESETS: Cell<u32> = const { Cell::new(0) };
    }

    fn socket(came: &[u8]) -> (Messages<DuplexStream>, DuplexStream) {
        let (io, client) = duplex(1 << 10);
        let count = |_: &DuplexStream| RESETS.set(RESETS.get() + 1);
        (Messages::new(io, came, 100, count), client)
    }

    fn of_client(opcode: OpCode, last: bool, payload: &[u8]) -> BytesMut {
        let mut bytes = BytesMut::new();
        Parser::write_message(&mut bytes, payload, opcode, last, true);
        bytes
    }

    #[tokio::test]
    async fn messages_come_whole_however_they_are_cut_and_whoever_gives_up_waiting() {
        let sent = [
            of_client(OpCode::Binary, false, b"ab"),
            of_client(OpCode::Ping, true, b"there?"),
            of_client(OpCode::Continue, true, b"c"),
            of_client(OpCode::Text, true, b"d"),
            of_client(OpCode::Pong, true, b"here"),
        ]
        .concat();
        let expected = [
            Input::Ping(Bytes::from_static(b"there?")),
            Input::Binary(Bytes::from_static(b"abc")),
            Input::Text("d".into()),
            Input::Pong(Bytes::from_static(b"here")),
        ];
        for cut in 0..=sent.len() {
            let (came, rest) = sent.split_at(cut);
            let (mut messages, mut client) = socket(came);
            let mut heard = Vec::new();
            for byte in rest {
                while let Some(next) = messages.next().now_or_never() {
                    heard.push(next.unwrap().unwrap());
                }
                client.write_all(&[*byte]).await.unwrap();
            }
            drop(client);
            while let Some(next) = messages.next().await {
                heard.push(next.unwrap());
            }
            assert_eq!(heard, expected, "{cut}");
        }
    }

    #[tokio::test]
    async fn a_client_that_floods_leaves_others_their_turn() {
        for flood in [
            of_client(OpCode::Pong, true, b"").repeat(10_000),
            [
                of_client(OpCode::Text, false, b"").to_vec(),
                of_client(OpCode::Continue, false, b"").repeat(10_000),
            ]
            .concat(),
        ] {
            let (mut messages, client) = socket(&flood);
            let turns = Cell::new(0);
            let others = async {
                loop {
                    turns.set(turns.get() + 1);
                    tokio::task::yield_now().await;
                }
            };
            drop(client);
            let heard = async { while messages.next().await.is_some() {} };
            tokio::select! {
                () = heard => {}
                () = others => {}
            }
            assert!(turns.get() > 50, "{}", turns.get());
        }
    }

    #[tokio::test]
    async fn what_is_too_long_is_refused_whole_or_in_pieces() {
        let whole = of_client(OpCode::Binary, true, &[0; 101]);
        let pieces = [
            of_client(OpCode::Text, false, &[b'a'; 60]),
            of_client(OpCode::Continue, true, &[b'a'; 41]),
        ]
        .concat();
        for too_long in [&whole[..], &pieces] {
            let (mut messages, _client) = socket(too_long);
            let refused = messages.next().await;
            assert_eq!(refused, Some(Err(FrameError::TooBig { limit: 100 })));
        }
        let (mut messages, _client) = socket(&of_client(OpCode::Binary, true, &[0; 100]));
        assert!(matches!(messages.next().await, Some(Ok(Input::Binary(_)))));
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_end_the_connection_in_time_is_reset() {
        for (ends, resets) in [(true, 0), (false, 1)] {
            RESETS.set(0);
            let (mut messages, mut client) = socket(b"");
            messages.text("bye").await.unwrap();
            messages.ping(b"?").await.unwrap();
            let read = async {
                let mut sent = Vec::new();
                client.read_to_end(&mut sent).await.unwrap();
                assert_eq!(sent, b"\x81\x03bye\x89\x01?\x88\x02\x03\xe8");
                if !ends {
                    tokio::time::sleep(2 * CLOSE_PATIENCE).await;
                }
                drop(client);
            };
            tokio::join!(messages.close(CloseCode::Normal.into()), read);
            assert_eq!(RESETS.get(), resets, "{ends}");
        }
        drop(socket(b""));
        assert_eq!(RESETS.get(), 2);
    }
}
