//! SIP over TCP and TLS: message framing (RFC 3261 section 18.3), with one task and one bounded queue per direction.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use rsipstack::transport::channel::ChannelConnection;
use rsipstack::transport::{SipConnection, TransportEvent};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::bounds::{LARGEST, LARGEST_HEAD, head_end};
use super::flow::{Protocol, stack_address};

/// Messages that wait to be written: a peer that reads so slowly is gone.
const WAITING: usize = 64;
pub(super) const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// An idle connection is closed after so long, unless a call uses it: see [`Taker::keeps`].
pub(super) const IDLE: Duration = Duration::from_mins(5);
/// The same for addresses that may not call, where only requests within calls count as activity.
pub(super) const STRANGERS_PATIENCE: Duration = Duration::from_secs(10);

/// Why a stream cannot be parsed any further.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("a SIP message exceeds the size limit")]
    TooLong,
    #[error("Content-Length is not a number")]
    Length,
}

/// The next piece of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Message(BytesMut),
    /// A keep-alive: a double CRLF asks for a single one (RFC 5626 section 4.4.1).
    Ping,
}

/// Splits a stream into messages. Bytes are searched once, however small the pieces they arrive in.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// Bytes searched without finding the end of a head.
    searched: usize,
    /// The length of the current message.
    whole: Option<usize>,
}

impl Cutter {
    /// Takes the next piece; `None` until more bytes have arrived.
    pub fn cut(&mut self, stream: &mut BytesMut) -> Result<Option<Piece>, Broken> {
        if self.searched == 0 {
            loop {
                if stream.starts_with(b"\r\n\r\n") {
                    stream.advance(4);
                    return Ok(Some(Piece::Ping));
                }
                // A single CRLF is a pong, or is left over.
                if stream.starts_with(b"\r\n") && stream.get(2).is_some_and(|next| *next != b'\r') {
                    stream.advance(2);
                    continue;
                }
                break;
            }
        }
        let whole = match self.whole {
            Some(whole) => whole,
            None => {
                let Some(head) = head_end(stream, self.searched) else {
                    // The first bytes may be an incomplete CRLF.
                    self.searched = if stream.len() < 4 { 0 } else { stream.len() };
                    return if stream.len() > LARGEST_HEAD {
                        Err(Broken::TooLong)
                    } else {
                        Ok(None)
                    };
                };
                if head > LARGEST_HEAD {
                    return Err(Broken::TooLong);
                }
                let body = content_length(stream.get(..head).unwrap_or_default())?;
                let whole = head.checked_add(body).filter(|whole| *whole <= LARGEST);
                let whole = whole.ok_or(Broken::TooLong)?;
                self.searched = head;
                *self.whole.insert(whole)
            }
        };
        if stream.len() < whole {
            return Ok(None);
        }
        *self = Self::default();
        Ok(Some(Piece::Message(stream.split_to(whole))))
    }
}

fn content_length(head: &[u8]) -> Result<usize, Broken> {
    for line in head.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = line.split_at(colon);
        let name = name.trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"l") {
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            let value = std::str::from_utf8(value).map_err(|_| Broken::Length)?;
            return value.parse().map_err(|_| Broken::Length);
        }
    }
    Ok(0)
}

/// Takes what arrives over a stream.
pub(super) trait Taker: Send + Sync + 'static {
    /// Takes a message; whether it is a request within a call. Messages of one stream are passed one after the other.
    fn take(
        &self,
        bytes: &[u8],
        from: SocketAddr,
        connection: &SipConnection,
    ) -> impl Future<Output = bool> + Send;

    /// Whether the peer is an address that may not call.
    fn stranger(&self, remote: SocketAddr) -> bool;

    /// Whether an idle connection is kept.
    fn keeps(&self, remote: SocketAddr) -> bool;
}

/// Messages to be written to a stream.
pub(super) struct Outgoing(pub mpsc::Receiver<TransportEvent>);

/// A connection that can be used before its stream is open. `closed` is cancelled when it ends.
pub(super) async fn connection(
    protocol: Protocol,
    remote: SocketAddr,
    closed: CancellationToken,
) -> io::Result<(SipConnection, Outgoing)> {
    let (sender, messages) = mpsc::channel(WAITING);
    // Received messages are passed to the stack directly.
    let (_, nothing) = mpsc::unbounded_channel();
    let address = stack_address(protocol, remote);
    let connection =
        ChannelConnection::create_connection_bounded(nothing, sender, address, Some(closed));
    let connection = connection.await.map_err(io::Error::other)?;
    Ok((SipConnection::Channel(connection), Outgoing(messages)))
}

/// Reads and writes a stream until it ends, or `closed` is cancelled; then cancels `closed`.
pub(super) fn carry<S, T>(
    stream: S,
    (connection, outgoing): (SipConnection, Outgoing),
    remote: SocketAddr,
    closed: CancellationToken,
    taker: Arc<T>,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
    T: Taker,
{
    let (read, write) = tokio::io::split(stream);
    let (pongs, pinged) = mpsc::channel(1);
    tokio::spawn(writing(write, outgoing.0, pinged, closed.clone()));
    let reader = Reader {
        taker,
        remote,
        connection,
        pongs,
        closed,
    };
    tokio::spawn(reader.run(read));
}

async fn writing(
    mut stream: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<TransportEvent>,
    mut pinged: mpsc::Receiver<()>,
    closed: CancellationToken,
) {
    loop {
        let next = next_bytes(&mut messages, &mut pinged, &closed);
        let Some(bytes) = next.await else {
            break;
        };
        let written = timeout(WRITE_PATIENCE, async {
            stream.write_all(&bytes).await?;
            stream.flush().await
        });
        if !matches!(written.await, Ok(Ok(()))) {
            break;
        }
    }
    closed.cancel();
    let _closed = timeout(WRITE_PATIENCE, stream.shutdown()).await;
}

/// What is to be written next, a message or what a keep-alive is answered; `None` if nothing is any more.
pub(super) async fn next_bytes(
    messages: &mut mpsc::Receiver<TransportEvent>,
    pinged: &mut mpsc::Receiver<()>,
    closed: &CancellationToken,
) -> Option<Vec<u8>> {
    loop {
        return tokio::select! {
            biased;
            () = closed.cancelled() => None,
            event = messages.recv() => match event {
                Some(TransportEvent::Incoming(message, ..)) => Some(message.to_bytes()),
                Some(_) => continue,
                None => None,
            },
            Some(()) = pinged.recv() => Some(b"\r\n".to_vec()),
        };
    }
}

/// What was read, most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Heard {
    /// Nothing complete.
    Nothing,
    Something,
    /// A request within a call.
    Call,
}

struct Reader<T> {
    taker: Arc<T>,
    remote: SocketAddr,
    connection: SipConnection,
    pongs: mpsc::Sender<()>,
    closed: CancellationToken,
}

impl<T: Taker> Reader<T> {
    async fn run(self, mut stream: impl AsyncRead + Unpin) {
        let stranger = self.taker.stranger(self.remote);
        let patience = if stranger { STRANGERS_PATIENCE } else { IDLE };
        let mut waiting = BytesMut::new();
        let mut cutter = Cutter::default();
        let mut until = Instant::now() + patience;
        loop {
            let read = tokio::select! {
                biased;
                () = self.closed.cancelled() => break,
                read = timeout_at(until, stream.read_buf(&mut waiting)) => read,
            };
            match read {
                Ok(Ok(1..)) => {}
                Err(_) if self.taker.keeps(self.remote) => {
                    until = Instant::now() + patience;
                    continue;
                }
                Ok(_) | Err(_) => break,
            }
            match self.take_all(&mut cutter, &mut waiting).await {
                Ok(Heard::Call) => until = Instant::now() + patience,
                Ok(Heard::Something) if !stranger => until = Instant::now() + patience,
                Ok(_) if Instant::now() >= until => break,
                Ok(_) => {}
                Err(broken) => {
                    tracing::debug!(%broken, "closed a SIP connection");
                    break;
                }
            }
        }
        self.closed.cancel();
    }

    async fn take_all(&self, cutter: &mut Cutter, waiting: &mut BytesMut) -> Result<Heard, Broken> {
        let mut heard = Heard::Nothing;
        while let Some(piece) = cutter.cut(waiting)? {
            let more = match piece {
                Piece::Ping => {
                    // One pong answers many pings.
                    let _asked = self.pongs.try_send(());
                    Heard::Something
                }
                Piece::Message(bytes) => {
                    let taken = self.taker.take(&bytes, self.remote, &self.connection);
                    if taken.await {
                        Heard::Call
                    } else {
                        Heard::Something
                    }
                }
            };
            heard = heard.max(more);
        }
        Ok(heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(body: &str) -> String {
        format!("OPTIONS sip:a SIP/2.0\r\nl : {}\r\n\r\n{body}", body.len())
    }

    #[test]
    fn messages_are_cut_out_wherever_packets_end() {
        let text = format!("\r\n{}\r\n\r\n{}", message("abc"), message(""));
        for size in 1..20 {
            let mut stream = BytesMut::new();
            let mut cutter = Cutter::default();
            let mut pieces = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                stream.extend_from_slice(chunk);
                while let Some(piece) = cutter.cut(&mut stream).unwrap() {
                    pieces.push(piece);
                }
            }
            let expected = [
                Piece::Message(message("abc").as_bytes().into()),
                Piece::Ping,
                Piece::Message(message("").as_bytes().into()),
            ];
            assert_eq!(pieces, expected, "in pieces of {size}");
        }
    }

    /// Searching a head from its start for every byte would take seconds for 64 kB.
    #[test]
    fn what_comes_byte_by_byte_is_looked_at_once() {
        let mut stream = BytesMut::new();
        let mut cutter = Cutter::default();
        let text = format!("OPTIONS sip:a SIP/2.0\r\nX: {}", "x".repeat(10_000));
        for byte in text.bytes() {
            stream.extend_from_slice(&[byte]);
            assert_eq!(cutter.cut(&mut stream), Ok(None));
            assert!(cutter.searched == stream.len() || stream.len() < 4);
        }
        stream.extend_from_slice(b"\r\nContent-Length: 9\r\n\r\n");
        assert_eq!(cutter.cut(&mut stream), Ok(None));
        let whole = cutter.whole.unwrap();
        stream.extend_from_slice(&[b'y'; 9]);
        assert_eq!(stream.len(), whole);
        assert!(
            matches!(cutter.cut(&mut stream), Ok(Some(Piece::Message(message))) if message.len() == whole)
        );
        assert!(cutter.searched == 0 && cutter.whole.is_none() && stream.is_empty());
    }

    #[test]
    fn a_stream_that_makes_no_sense_is_given_up() {
        let cut = |text: &str| Cutter::default().cut(&mut text.into());
        for length in ["18446744073709551615", "99999999"] {
            let text = format!("X\r\nContent-Length: {length}\r\n\r\n");
            assert_eq!(cut(&text), Err(Broken::TooLong));
        }
        assert_eq!(cut("X\r\nContent-Length: -1\r\n\r\n"), Err(Broken::Length));
        assert_eq!(cut(&"x".repeat(LARGEST_HEAD + 1)), Err(Broken::TooLong));
    }

    /// Takes messages of calls by their first letter.
    struct Calls {
        stranger: bool,
    }

    impl Taker for Calls {
        async fn take(&self, bytes: &[u8], _: SocketAddr, _: &SipConnection) -> bool {
            bytes.starts_with(b"B")
        }

        fn stranger(&self, _: SocketAddr) -> bool {
            self.stranger
        }

        fn keeps(&self, _: SocketAddr) -> bool {
            false
        }
    }

    /// How long a connection lives if this is sent every four seconds.
    async fn life(stranger: bool, said: &[&str]) -> Duration {
        let remote = SocketAddr::from(([192, 0, 2, 1], 5060));
        let closed = CancellationToken::new();
        let ends = connection(Protocol::Tcp, remote, closed.clone());
        let ends = ends.await.unwrap();
        let (ours, mut theirs) = tokio::io::duplex(LARGEST);
        carry(
            ours,
            ends,
            remote,
            closed.clone(),
            Arc::new(Calls { stranger }),
        );
        let began = Instant::now();
        let mut said = said.iter().cycle();
        while !closed.is_cancelled() {
            let _ = theirs.write_all(said.next().unwrap().as_bytes()).await;
            let _closed = timeout(Duration::from_secs(4), closed.cancelled()).await;
            if began.elapsed() > 4 * IDLE {
                break;
            }
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_is_heard_briefly_unless_in_a_call() {
        let (bye, options) = ("BYE sip:a SIP/2.0\r\n\r\n", "OPTIONS sip:a SIP/2.0\r\n\r\n");
        for said in [[""], ["x"], ["\r\n\r\n"], [options]] {
            assert_eq!(life(true, &said).await, STRANGERS_PATIENCE, "{said:?}");
        }
        // The last message of a call was sent at once.
        let fades = life(true, &[bye, "x", "x", "x", "x"]).await;
        assert_eq!(fades, STRANGERS_PATIENCE);
        assert!(life(true, &[bye, "", bye]).await > 4 * IDLE);
        assert!(life(false, &["\r\n\r\n"]).await > 4 * IDLE);
        assert_eq!(life(false, &["x"]).await, IDLE, "no message ever ends");
    }

    proptest! {
        #[test]
        fn nothing_is_too_broken(bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), any::<u8>()], 0..200)) {
            let mut stream = BytesMut::from(bytes.as_slice());
            let mut cutter = Cutter::default();
            while let Ok(Some(_)) = cutter.cut(&mut stream) {}
        }
    }
}
