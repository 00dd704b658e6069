//! The sockets of the TURN server: over UDP one for all clients, over TCP and TLS a connection for each. They run on a thread
//! of their own, as encryption would hold up the media thread.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use vivavoce_takeover::{Given, OpenDatagrams};

use super::super::Now;
use super::super::sockets::Sockets;
use super::super::tcp::{
    ACCEPT_PAUSE, Arrival, Listeners, MOST_CONNECTIONS, Newcomer, Newcomers, OUTGOING, UNKNOWN_FOR,
    WRITE_PATIENCE, Writer, set_up,
};
use super::allocations::{Allocations, Outcome, Policy};
use super::strangers::Strangers;

/// How often is looked for allocations whose time is over.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Datagrams to all clients that wait to be sent over UDP.
const OUTGOING_OF_ALL: usize = 1_024;
/// The largest message: a datagram of media, with its head.
pub const MAX_MESSAGE_BYTES: usize = 2_048;
/// What is read of a connection at once.
const READ_BYTES: usize = 16 << 10;
/// The head of a STUN message, and of data on a channel.
const STUN_HEAD_BYTES: usize = 20;
const CHANNEL_HEAD_BYTES: usize = 4;

/// Where clients reach the TURN server.
#[derive(Debug, Default)]
pub struct TurnSockets {
    /// Over UDP.
    pub udp: Option<Sockets>,
    /// Over TCP.
    pub tcp: Listeners,
    /// Over TLS.
    pub tls: Option<(Listeners, ServerConfig)>,
}

/// Serves until the media thread has gone. `told` is the media port.
pub fn start(
    sockets: TurnSockets,
    policy: Arc<Policy>,
    told: mpsc::Sender<Arrival>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = std::thread::Builder::new().name("turn".to_owned());
    thread.spawn(move || {
        runtime.block_on(async move {
            match serve(sockets, policy, &told) {
                Ok(()) => told.closed().await,
                Err(error) => tracing::error!(%error, "the TURN server cannot read its ports"),
            }
        });
    })?;
    Ok(())
}

fn serve(
    sockets: TurnSockets,
    policy: Arc<Policy>,
    told: &mpsc::Sender<Arrival>,
) -> io::Result<()> {
    let TurnSockets { udp, tcp, tls } = sockets;
    for (socket, _) in udp.map_or_else(|| Ok(Vec::new()), Sockets::open)? {
        tokio::spawn(over_udp(socket, Arc::clone(&policy), told.clone()));
    }
    let shared = Shared {
        policy,
        told: told.clone(),
        places: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
        newcomers: Arc::default(),
    };
    for (listener, given, _) in tcp.into_parts() {
        let listener = TcpListener::from_std(listener)?;
        tokio::spawn(accept(listener, given, None, shared.clone()));
    }
    if let Some((listeners, config)) = tls {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        for (listener, given, _) in listeners.into_parts() {
            let listener = TcpListener::from_std(listener)?;
            tokio::spawn(accept(
                listener,
                given,
                Some(acceptor.clone()),
                shared.clone(),
            ));
        }
    }
    Ok(())
}

/// Tells the media port of relays that there are, and are no more.
async fn tell(
    outcome: &mut Outcome,
    policy: &Policy,
    writer: &Writer,
    told: &mpsc::Sender<Arrival>,
) {
    // Only a server that stops hears nothing any more.
    if let Some(relayed) = outcome.opened {
        for media in &policy.media {
            let opened = Arrival::Opened((relayed, *media), writer.clone());
            let _stopping = told.send(opened).await;
        }
    }
    if let Some((path, datagram)) = outcome.datagram.take() {
        let _stopping = told.send(Arrival::Datagram(path, datagram)).await;
    }
    if let Some(relayed) = outcome.closed {
        close(relayed, policy, told).await;
    }
}

async fn close(relayed: SocketAddr, policy: &Policy, told: &mpsc::Sender<Arrival>) {
    for media in &policy.media {
        let _stopping = told.send(Arrival::Closed((relayed, *media))).await;
    }
}

async fn over_udp(socket: OpenDatagrams, policy: Arc<Policy>, told: mpsc::Sender<Arrival>) {
    let (datagrams, mut outgoing) = mpsc::channel(OUTGOING_OF_ALL);
    let writer = Writer::new(datagrams, Arc::<AtomicU64>::default());
    let mut allocations = Allocations::of_socket(Arc::clone(&policy));
    let mut looks = interval(LOOKS_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut strangers = Strangers::default();
    let mut buffer = [0; MAX_MESSAGE_BYTES];
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                // An ICMP error about an earlier datagram.
                let Ok((length, client)) = received else { continue };
                let bytes = buffer.get(..length).unwrap_or_default();
                if socket.has_former() && !allocations.is_for_this_server(client, bytes) {
                    socket.pass_on(client, bytes);
                    continue;
                }
                let now = Now::read();
                let mut outcome = allocations.receive(client, bytes, now);
                tell(&mut outcome, &policy, &writer, &told).await;
                if let Some(answer) = outcome.answer
                    && (outcome.is_known || strangers.admit(client.ip(), now.instant))
                {
                    // Lost, as it may be on the way: clients ask again.
                    let _lost = socket.socket().try_send_to(&answer, client);
                }
            }
            Some((path, bytes)) = outgoing.recv() => {
                if let Some((client, bytes)) = allocations.to_client(path, &bytes, Now::read().instant) {
                    let _lost = socket.socket().try_send_to(&bytes, client);
                }
            }
            _ = looks.tick() => {
                for relayed in allocations.expire(Now::read().instant) {
                    close(relayed, &policy, &told).await;
                }
            }
        }
    }
}

#[derive(Clone)]
struct Shared {
    policy: Arc<Policy>,
    told: mpsc::Sender<Arrival>,
    places: Arc<Semaphore>,
    newcomers: Arc<Newcomers>,
}

async fn accept(listener: TcpListener, given: Given, tls: Option<TlsAcceptor>, shared: Shared) {
    loop {
        let Ok((stream, client)) = given.accept(&listener).await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // What is beyond the limits is closed: others may come.
        let Ok(place) = Arc::clone(&shared.places).try_acquire_owned() else {
            continue;
        };
        let Some(newcomer) = Newcomer::enter(&shared.newcomers, client.ip()) else {
            continue;
        };
        let (tls, shared) = (tls.clone(), shared.clone());
        tokio::spawn(async move {
            serve_connection(stream, client, tls, newcomer, &shared).await;
            drop(place);
        });
    }
}

async fn serve_connection(
    stream: TcpStream,
    client: SocketAddr,
    tls: Option<TlsAcceptor>,
    newcomer: Newcomer,
    shared: &Shared,
) {
    if set_up(&stream).is_err() {
        return;
    }
    let Some(tls) = tls else {
        return carry(stream, client, newcomer, shared).await;
    };
    if let Ok(Ok(stream)) = timeout(UNKNOWN_FOR, tls.accept(stream)).await {
        carry(stream, client, newcomer, shared).await;
    }
}

/// Carries the messages of one client until its connection or its allocation ends.
async fn carry(
    stream: impl AsyncRead + AsyncWrite,
    client: SocketAddr,
    newcomer: Newcomer,
    shared: &Shared,
) {
    let (from, to) = tokio::io::split(stream);
    tokio::pin!(from, to);
    let (datagrams, mut outgoing) = mpsc::channel(OUTGOING);
    let writer = Writer::new(datagrams, Arc::<AtomicU64>::default());
    let Shared { policy, told, .. } = shared;
    let mut allocations = Allocations::of_connection(Arc::clone(policy));
    let mut newcomer = Some(newcomer);
    let stranger = sleep(UNKNOWN_FOR);
    tokio::pin!(stranger);
    let mut looks = interval(LOOKS_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut received = BytesMut::with_capacity(READ_BYTES);
    'open: loop {
        received.reserve(MAX_MESSAGE_BYTES);
        tokio::select! {
            read = from.read_buf(&mut received) => {
                if !matches!(read, Ok(1..)) {
                    break;
                }
                loop {
                    let message = match next_message(&mut received) {
                        Ok(Some(message)) => message,
                        Ok(None) => break,
                        Err(TooLong) => break 'open,
                    };
                    let mut outcome = allocations.receive(client, &message, Now::read());
                    tell(&mut outcome, policy, &writer, told).await;
                    if outcome.opened.is_some() {
                        drop(newcomer.take());
                    }
                    if let Some(answer) = outcome.answer
                        && write(&mut to, &answer).await.is_err()
                    {
                        break 'open;
                    }
                    if outcome.closed.is_some() {
                        break 'open;
                    }
                }
            }
            Some((path, bytes)) = outgoing.recv() => {
                let sent = allocations.to_client(path, &bytes, Now::read().instant);
                if let Some((_, bytes)) = sent && write(&mut to, &bytes).await.is_err() {
                    break;
                }
            }
            _ = looks.tick() => {
                let over = allocations.expire(Now::read().instant);
                for relayed in &over {
                    close(*relayed, policy, told).await;
                }
                if !over.is_empty() {
                    break;
                }
            }
            () = &mut stranger, if newcomer.is_some() => break,
        }
    }
    for relayed in allocations.close_all() {
        close(relayed, policy, told).await;
    }
}

/// A message that nobody sends who means well.
#[derive(Debug, PartialEq, Eq)]
struct TooLong;

/// The next message, once it is whole. Data on a channel is padded to a multiple of four bytes over TCP (RFC 8656, section
/// 12.5).
fn next_message(received: &mut BytesMut) -> Result<Option<Bytes>, TooLong> {
    let Some(head) = received.first_chunk::<CHANNEL_HEAD_BYTES>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let is_channel = head[0] & 0xc0 == 0x40;
    let length = if is_channel {
        CHANNEL_HEAD_BYTES
    } else {
        STUN_HEAD_BYTES
    } + length;
    if length > MAX_MESSAGE_BYTES {
        return Err(TooLong);
    }
    let padded = length.next_multiple_of(4);
    if received.len() < padded {
        return Ok(None);
    }
    let message = received.split_to(length).freeze();
    received.advance(padded - length);
    Ok(Some(message))
}

async fn write(to: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    let padding = message.len().next_multiple_of(4) - message.len();
    let padded = [message, &[0; 3][..padding]].concat();
    let writing = async {
        to.write_all(&padded).await?;
        to.flush().await
    };
    timeout(WRITE_PATIENCE, writing).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_from_a_stream_wherever_it_is_cut() {
        let channel = [0x40, 0, 0, 5, 1, 2, 3, 4, 5];
        let stun = [&[0, 1, 0, 0][..], &[7; 16]].concat();
        let stream = [&channel[..], &[0; 3], &stun, &channel, &[0; 3]].concat();
        for piece in 1..stream.len() {
            let (mut received, mut messages) = (BytesMut::new(), Vec::new());
            for bytes in stream.chunks(piece) {
                received.extend_from_slice(bytes);
                while let Some(message) = next_message(&mut received).unwrap() {
                    messages.push(message.to_vec());
                }
            }
            assert_eq!(
                messages,
                [channel.to_vec(), stun.clone(), channel.to_vec()],
                "{piece}"
            );
            assert!(received.is_empty());
        }
        let mut endless = BytesMut::from(&[0, 1, 0xff, 0xff][..]);
        assert_eq!(next_message(&mut endless), Err(TooLong));
    }
}
