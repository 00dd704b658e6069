//! Drives a [`Session`]: its UDP sockets, its signalling WebSocket and the clock. The WebSocket has its own task, so that a
//! server that stops reading cannot delay media.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use str0m::net::Transmit;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};
use url::Url;

use super::request::{Request, Route};
use super::session::{DialFailure, Session};
use vivavoce_providers::transport::websocket::{DialError, Handshake, Received, Socket};
use vivavoce_providers::transport::{self, Transport};
use vivavoce_rooms::admission::NO_ROOM;
use vivavoce_seams::rooms::link::Ending;

/// How long the socket may take to open, as in LiveKit's clients.
const DIALLING: Duration = Duration::from_secs(5);
/// How long the server has to close the socket after us.
const CLOSING: Duration = Duration::from_secs(2);
/// Signalling messages on their way out or in.
const WAITING: usize = 256;
/// Datagrams taken from one socket before anything else has its turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Larger than any datagram that media travels in.
const DATAGRAM_BYTES: usize = 2_048;
/// Local addresses that media is tried from.
const MOST_ADDRESSES: usize = 16;

/// Where a LiveKit deployment is.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its name in errors.
    pub provider: &'static str,
    /// `ws`, `wss`, `http` or `https`; the paths of signalling are below its path.
    pub url: Url,
    /// How it is reached.
    pub transport: Transport,
}

/// One UDP socket per address of this machine.
pub struct Sockets(Vec<(UdpSocket, SocketAddr)>);

impl Sockets {
    /// Opens them, at any port. To be called on a runtime.
    pub fn open() -> std::io::Result<Self> {
        let mut sockets = Self(Vec::new());
        sockets.open_more()?;
        Ok(sockets)
    }

    /// Opens as many again, for another peer connection: a server tells those of one client apart by where they send from.
    /// Returns their addresses.
    fn open_more(&mut self) -> std::io::Result<Vec<SocketAddr>> {
        let before = self.0.len();
        let addresses = vivavoce_rooms::local_addresses(&[])?;
        for (address, _) in addresses.into_iter().take(MOST_ADDRESSES) {
            let Ok(socket) = std::net::UdpSocket::bind((address, 0)) else {
                continue;
            };
            socket.set_nonblocking(true)?;
            let local = socket.local_addr()?;
            self.0.push((UdpSocket::from_std(socket)?, local));
        }
        Ok(self
            .0
            .iter()
            .skip(before)
            .map(|(_, local)| *local)
            .collect())
    }

    /// Their addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|(_, address)| *address).collect()
    }

    /// Waits until one of them has something.
    async fn readable(&self) {
        std::future::poll_fn(|context| {
            let ready = |(socket, _): &(UdpSocket, _)| socket.poll_recv_ready(context).is_ready();
            if self.0.iter().any(ready) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    fn receive(&self, session: &mut Session) {
        let mut buffer = [0; DATAGRAM_BYTES];
        for (socket, local) in &self.0 {
            for _ in 0..DATAGRAMS_PER_TURN {
                match socket.try_recv_from(&mut buffer) {
                    Ok((length, source)) => {
                        let bytes = buffer.get(..length).unwrap_or_default();
                        session.datagram(source, *local, bytes, Instant::now());
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    // An earlier datagram was refused by its receiver (ICMP); there may be more to read.
                    Err(_) => {}
                }
            }
        }
    }

    /// What cannot be sent is as good as lost on the way; what must arrive is sent again by its protocol.
    fn send(&self, transmit: &Transmit) {
        let from = self.0.iter().find(|(_, local)| *local == transmit.source);
        if let Some((socket, _)) = from {
            let _ = socket.try_send_to(&transmit.contents, transmit.destination);
        }
    }
}

/// Runs a session to its end. `joined` is told whether the room was joined.
pub async fn run(
    mut session: Session,
    server: Server,
    mut sockets: Sockets,
    woken: Arc<Notify>,
    joined: oneshot::Sender<Result<(), Ending>>,
) {
    let mut joined = Some(joined);
    let mut signalling: Option<Signalling> = None;
    loop {
        let outputs = session.take_outputs();
        for transmit in &outputs.datagrams {
            sockets.send(transmit);
        }
        for bytes in outputs.signals {
            let sent = signalling.as_ref().map(|open| open.out.try_send(bytes));
            // One that has ended may have said why: that is still to be read, and its end behind it.
            if matches!(sent, Some(Err(TrySendError::Full(_)))) {
                signalling = None;
                session.signal_lost("the server does not read", Instant::now());
            }
        }
        if outputs.close {
            signalling = None;
        }
        if let Some(request) = outputs.dial {
            if request.route == Route::Two && session.subscriber_addresses.is_empty() {
                session.subscriber_addresses = sockets.open_more().unwrap_or_default();
            }
            signalling = Some(Signalling::dial(&server, &request, session.token()));
        }
        if let Some(joined) = joined.take_if(|_| outputs.joined || outputs.over.is_some()) {
            let _ = joined.send(outputs.over.clone().map_or(Ok(()), Err));
        }
        if outputs.over.is_some() {
            return;
        }
        let deadline = tokio::time::Instant::from_std(session.deadline());
        tokio::select! {
            () = sockets.readable() => sockets.receive(&mut session),
            said = said(&mut signalling) => {
                let now = Instant::now();
                match said {
                    Said::Opened => session.opened(now),
                    Said::Message(bytes) => session.signal(&bytes, now),
                    Said::Failed(failure) => {
                        signalling = None;
                        session.dial_failed(failure, now);
                    }
                    Said::Lost(why) => {
                        signalling = None;
                        session.signal_lost(&why, now);
                    }
                }
            }
            () = woken.notified() => session.woken(Instant::now()),
            () = tokio::time::sleep_until(deadline) => session.tick(Instant::now()),
        }
    }
}

/// What the signalling socket says.
enum Said {
    Opened,
    Message(Bytes),
    Failed(DialFailure),
    Lost(String),
}

async fn said(signalling: &mut Option<Signalling>) -> Said {
    match signalling {
        Some(open) => match open.said.recv().await {
            Some(said) => said,
            None => Said::Lost("signalling ended".to_owned()),
        },
        None => std::future::pending().await,
    }
}

/// A signalling socket, about to open or open. Dropped it is closed, after what was given to it has been sent.
struct Signalling {
    out: mpsc::Sender<Bytes>,
    said: mpsc::Receiver<Said>,
}

impl Signalling {
    fn dial(server: &Server, request: &Request, token: &str) -> Self {
        let (path, query) = request.target();
        let mut url = server.url.clone();
        url.set_path(&format!("{}/{path}", url.path().trim_end_matches('/')));
        url.set_query(Some(&query));
        let bearer = format!("Bearer {token}");
        let handshake = Handshake::new(url).secret(reqwest::header::AUTHORIZATION, &bearer);
        let (out, queue) = mpsc::channel(WAITING);
        let (told, said) = mpsc::channel(WAITING);
        let (transport, provider) = (server.transport.clone(), server.provider);
        tokio::spawn(async move {
            match transport.dial(provider, handshake, DIALLING).await {
                Ok(socket) => {
                    if told.send(Said::Opened).await.is_ok() {
                        carry(socket, queue, told).await;
                    }
                }
                Err(error) => {
                    let _ = told.send(Said::Failed(failure(error))).await;
                }
            }
        });
        Self { out, said }
    }
}

async fn carry(mut socket: Socket, mut queue: mpsc::Receiver<Bytes>, told: mpsc::Sender<Said>) {
    let mut out = transport::Outgoing::default();
    let lost = loop {
        tokio::select! {
            message = queue.recv() => match message {
                Some(bytes) => {
                    out.binary(bytes);
                    if let Err(error) = socket.send(&mut out).await {
                        // A server that has closed said before why. Whoever sends more meanwhile is not told that it does not read.
                        queue.close();
                        let read = read_out(&mut socket, Some(&told));
                        let _ = tokio::time::timeout(CLOSING, read).await;
                        break error.message;
                    }
                }
                None => {
                    out.close();
                    if socket.send(&mut out).await.is_ok() {
                        let _ = tokio::time::timeout(CLOSING, read_out(&mut socket, None)).await;
                    }
                    return;
                }
            },
            received = socket.receive() => match received {
                Ok(Received::Binary(bytes)) => {
                    // Nobody listens any more: what was to be sent is still in the queue.
                    let _ = told.send(Said::Message(bytes)).await;
                }
                Ok(Received::Text(_)) => {}
                Ok(Received::Closed(_)) => break "the server closed the signalling connection".to_owned(),
                Err(error) => break error.message,
            },
        }
    };
    let _ = told.send(Said::Lost(lost)).await;
}

/// Reads until the server has closed.
async fn read_out(socket: &mut Socket, told: Option<&mpsc::Sender<Said>>) {
    while let Ok(received @ (Received::Text(_) | Received::Binary(_))) = socket.receive().await {
        if let (Received::Binary(bytes), Some(told)) = (received, told) {
            let _ = told.send(Said::Message(bytes)).await;
        }
    }
}

fn failure(error: DialError) -> DialFailure {
    match error {
        DialError::Unreachable(error) => DialFailure::Unreachable(error.message),
        DialError::Refused(refusal) => {
            let status = refusal.status.as_u16();
            let words = transport::shortened(&refusal.body);
            match status {
                404 if refusal.body.trim() != NO_ROOM => DialFailure::NoRoute,
                400..=499 if !matches!(status, 408 | 429) => {
                    DialFailure::Refused(format!("answered {status}: {words}"))
                }
                _ => DialFailure::Unreachable(format!("answered {status}: {words}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::SinkExt;
    use tokio_tungstenite::tungstenite::Message;
    use vivavoce_core::tls_roots::Authorities;

    /// A server says goodbye and is gone when the client still has something to send.
    #[tokio::test]
    async fn what_a_server_said_before_it_closed_is_told_before_the_loss() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let url: Url = url.parse().unwrap();
        let transport = Transport::new(&Authorities::default()).unwrap();
        for _ in 0..20 {
            let closing = async {
                let (stream, _) = listener.accept().await.unwrap();
                let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
                socket.send(Message::binary("goodbye")).await.unwrap();
            };
            let dialling = transport.dial("livekit", Handshake::new(url.clone()), DIALLING);
            let (socket, ()) = tokio::join!(dialling, closing);
            let (out, queue) = mpsc::channel(WAITING);
            let (told, mut said) = mpsc::channel(WAITING);
            for _ in 0..WAITING {
                out.try_send(Bytes::from_static(b"more")).unwrap();
            }
            carry(socket.ok().unwrap(), queue, told).await;
            let first = said.try_recv();
            assert!(matches!(first, Ok(Said::Message(bytes)) if bytes == "goodbye"));
            assert!(matches!(said.try_recv(), Ok(Said::Lost(_))));
            // Nothing is sent any more, which is no sign that the server does not read.
            let refused = out.try_send(Bytes::new());
            assert!(matches!(refused, Err(TrySendError::Closed(_))));
        }
    }
}
