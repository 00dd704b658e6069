//! The baseline of forwarding: a thread that sends each datagram to all subscribers, with the same system calls as the
//! SFU and nothing else; and clients that send and receive such datagrams.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at};

use super::super::participant::{Lost, PACKET, Phase};
use super::stamps::{Received, sent_at, stamp};

/// The first byte of a datagram that asks for what others send.
const ASKS: u8 = 0;
/// The first byte of one that is sent on.
const SOUND: u8 = 1;
/// Behind the first byte.
const HEADER: usize = 1;
/// Datagrams taken before anything else has its turn, as in the room server.
const DATAGRAMS_PER_TURN: usize = 64;
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Relays on a free port, which it prints as a server does, until it is killed.
pub(in super::super) fn run() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let socket = open()?;
        tell!("listens on http://{}", socket.local_addr()?);
        let mut receivers: Vec<SocketAddr> = Vec::new();
        loop {
            socket.readable().await?;
            let mut buffer = [0; 2_048];
            for _ in 0..DATAGRAMS_PER_TURN {
                let (length, source) = match socket.try_recv_from(&mut buffer) {
                    Ok(received) => received,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // An earlier datagram was refused by its receiver.
                    Err(_) => continue,
                };
                match buffer.get(..length) {
                    Some([ASKS, ..]) if !receivers.contains(&source) => receivers.push(source),
                    Some(sound @ [SOUND, ..]) => {
                        for receiver in &receivers {
                            let _ = socket.try_send_to(sound, *receiver);
                        }
                    }
                    _ => {}
                }
            }
        }
    })
}

fn open() -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // Best effort: the kernel caps them without an error.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    UdpSocket::from_std(socket.into())
}

/// Asks a relay for what others send, and runs until the measurement is over.
pub(super) async fn receive(
    relay: SocketAddr,
    epoch: Instant,
    mut measuring: watch::Receiver<Phase>,
) -> io::Result<impl Future<Output = Result<Received, Lost>> + Send> {
    let socket = open()?;
    socket.send_to(&[ASKS], relay).await?;
    Ok(async move {
        let mut received = Received::default();
        let mut buffer = [0; 2_048];
        while *measuring.borrow() != Phase::Over {
            tokio::select! {
                _ = measuring.changed() => {}
                arrived = socket.recv(&mut buffer) => {
                    let datagram = buffer.get(..arrived?).unwrap_or_default();
                    let sent = datagram.get(HEADER..).and_then(sent_at);
                    if let Some(sent) = sent.filter(|_| *measuring.borrow() == Phase::Measured) {
                        received.count(epoch, sent, datagram.len());
                    }
                }
            }
        }
        Ok(received)
    })
}

/// Sends a datagram every 20 ms until the measurement is over.
pub(super) async fn send(
    relay: SocketAddr,
    epoch: Instant,
    phase: Duration,
    bytes: usize,
    mut measuring: watch::Receiver<Phase>,
) -> io::Result<impl Future<Output = Result<Received, Lost>> + Send> {
    let socket = open()?;
    socket.connect(relay).await?;
    Ok(async move {
        let mut ticks = interval_at(tokio::time::Instant::now() + phase, PACKET);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        while *measuring.borrow() != Phase::Over {
            tokio::select! {
                _ = measuring.changed() => {}
                _ = ticks.tick() => {
                    let mut datagram = vec![SOUND];
                    datagram.extend(stamp(epoch, bytes.saturating_sub(HEADER)));
                    socket.send(&datagram).await?;
                }
            }
        }
        Ok(Received::default())
    })
}
