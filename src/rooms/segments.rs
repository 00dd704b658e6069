//! Datagrams of one length that follow each other on one way leave in one call of the system (`UDP_SEGMENT`, udp(7), Linux 4.18):
//! the kernel looks for their way once, and parts them at the network's door. A picture of a camera is such datagrams.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, UdpSocket as StdUdpSocket};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::sockopt::UdpGsoSegment;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt};
use str0m::net::{Protocol, Transmit};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::turn::is_relayed;

/// The most datagrams of one call that each kernel takes.
const MOST: usize = 64;
/// The most bytes of one call: what a datagram over IPv4 may have.
const MOST_BYTES: usize = 65_507;
/// Any length of a segment, to ask whether there may be one.
const AN_MTU: i32 = 1_200;

/// Sends datagrams together, where the kernel and the network's interface can.
#[derive(Debug)]
pub(super) struct Segments {
    can: bool,
}

impl Segments {
    /// Asks the kernel: an older one would send them as one datagram.
    pub(super) fn new() -> Self {
        let socket = StdUdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let asked = socket.map(|socket| setsockopt(&socket, UdpGsoSegment, &AN_MTU));
        Self {
            can: matches!(asked, Ok(Ok(()))),
        }
    }

    /// How many of the first datagrams are to be sent by [`Self::send`]; one is sent by itself.
    pub(super) fn together(&self, datagrams: &[Transmit]) -> usize {
        if self.can { together(datagrams) } else { 1 }
    }

    /// Sends what [`Self::together`] has found; `None` where each is to be sent by itself.
    pub(super) fn send(
        &mut self,
        socket: &UdpSocket,
        datagrams: &[Transmit],
    ) -> Option<io::Result<()>> {
        let first = datagrams.first()?;
        let length = u16::try_from(first.contents.len()).ok()?;
        let to = SockaddrStorage::from(first.destination);
        let contents: Vec<IoSlice<'_>> = datagrams
            .iter()
            .map(|datagram| IoSlice::new(&datagram.contents))
            .collect();
        let sent = socket.try_io(Interest::WRITABLE, || {
            let segments = [ControlMessage::UdpGsoSegments(&length)];
            let sent = sendmsg(
                socket.as_raw_fd(),
                &contents,
                &segments,
                MsgFlags::empty(),
                Some(&to),
            );
            Ok(sent?)
        });
        match sent {
            Ok(_) => Some(Ok(())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(Err(error)),
            Err(error) => {
                // The interface cannot. Another error is of this way, for which they may be too long.
                if error.raw_os_error() == Some(Errno::EIO as i32) {
                    tracing::info!(%error, "an interface does not take datagrams together: each is sent by itself");
                    self.can = false;
                }
                None
            }
        }
    }
}

/// How many of the first datagrams may leave together: those on the same way as the first, of its length but for the last one,
/// which may be shorter.
fn together(datagrams: &[Transmit]) -> usize {
    let Some((first, rest)) = datagrams.split_first() else {
        return 0;
    };
    if first.proto != Protocol::Udp || is_relayed(first.destination.ip()) {
        return 1;
    }
    let length = first.contents.len();
    let most = MOST.min(MOST_BYTES / length.max(1));
    let on_the_way = |next: &&Transmit| {
        let way = |of: &Transmit| (of.proto, of.source, of.destination);
        way(next) == way(first) && next.contents.len() <= length
    };
    let mut count = 1;
    for next in rest
        .iter()
        .take(most.saturating_sub(1))
        .take_while(on_the_way)
    {
        count += 1;
        if next.contents.len() < length {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn to(port: u16, length: usize) -> Transmit {
        Transmit {
            proto: Protocol::Udp,
            source: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            destination: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            contents: vec![length as u8; length].into(),
        }
    }

    #[test]
    fn what_is_on_one_way_and_of_one_length_but_for_its_end_leaves_together() {
        assert_eq!(together(&[]), 0);
        assert_eq!(together(&[to(1, 1_000)]), 1);
        assert_eq!(together(&[to(1, 1_000), to(2, 1_000)]), 1);
        assert_eq!(together(&[to(1, 900), to(1, 1_000)]), 1);
        let picture = [1_000, 1_000, 700, 700].map(|length| to(1, length));
        assert_eq!(together(&picture), 3);
        assert_eq!(together(&picture[2..]), 2);
        // As many as the kernel takes.
        let many: Vec<Transmit> = (0..100).map(|_| to(1, 100)).collect();
        assert_eq!(together(&many), 64);
        let long: Vec<Transmit> = (0..100).map(|_| to(1, 1_400)).collect();
        assert_eq!(together(&long), 46);
        // Those that no socket sends.
        for (proto, destination) in [
            (Protocol::Tcp, to(1, 1).destination),
            (Protocol::Udp, SocketAddr::from(([198, 18, 0, 1], 1))),
        ] {
            let elsewhere = [to(1, 100), to(1, 100)].map(|datagram| Transmit {
                proto,
                destination,
                ..datagram
            });
            assert_eq!(together(&elsewhere), 1);
        }
    }

    #[tokio::test]
    async fn they_come_as_what_they_are() {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (from, receiver) = (
            UdpSocket::bind(here).await.unwrap(),
            UdpSocket::bind(here).await.unwrap(),
        );
        from.writable().await.unwrap();
        let port = receiver.local_addr().unwrap().port();
        let picture = [1_100, 1_100, 1_100, 30].map(|length| to(port, length));
        let mut segments = Segments::new();
        let sent = segments.send(&from, &picture);
        sent.expect("this kernel can").unwrap();
        let mut buffer = [0; 2_048];
        for datagram in &picture {
            let length = receiver.recv(&mut buffer).await.unwrap();
            assert_eq!(buffer[..length], *datagram.contents);
        }
        // What is too long for one call is sent one by one.
        let long = [to(port, 60_000), to(port, 60_000)];
        assert!(segments.send(&from, &long).is_none());
        assert!(segments.send(&from, &picture).is_some());
        assert_eq!(segments.together(&picture), 4);
        assert_eq!(Segments { can: false }.together(&picture), 1);
    }
}
