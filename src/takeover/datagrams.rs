//! A port for datagrams that two servers have while one replaces the other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::net::UdpSocket;

use crate::given::Given;

/// What is in front of a datagram that is passed on: the family, address and port of its source.
const MAX_HEAD_BYTES: usize = 1 + 16 + 2;
const OF_IPV4: u8 = 4;
const OF_IPV6: u8 = 6;

/// A socket that is not read yet.
#[derive(Debug)]
pub struct Datagrams {
    pub(crate) socket: StdUdpSocket,
    /// What the next server passes on.
    pub(crate) feed: Option<StdUdpSocket>,
    /// Where datagrams for the former server are passed on.
    pub(crate) former: Option<StdUdpSocket>,
    pub(crate) given: Given,
}

impl Datagrams {
    /// A socket that nobody takes over.
    pub fn alone(socket: StdUdpSocket) -> Self {
        Self {
            socket,
            feed: None,
            former: None,
            given: Given::pair().1,
        }
    }

    /// Its address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The socket in the current tokio runtime.
    pub fn open(self) -> io::Result<OpenDatagrams> {
        self.socket.set_nonblocking(true)?;
        Ok(OpenDatagrams {
            socket: Arc::new(UdpSocket::from_std(self.socket)?),
            feed: self.feed.map(UdpSocket::from_std).transpose()?,
            has_former: self.former.is_some().into(),
            former: self.former,
            given: self.given,
        })
    }
}

/// A socket that is read: what comes to its port, or while a new server has that, what it passes on.
#[derive(Debug)]
pub struct OpenDatagrams {
    socket: Arc<UdpSocket>,
    feed: Option<UdpSocket>,
    former: Option<StdUdpSocket>,
    has_former: AtomicBool,
    given: Given,
}

impl OpenDatagrams {
    /// The socket itself, to send with.
    pub const fn socket(&self) -> &Arc<UdpSocket> {
        &self.socket
    }

    /// Whether something may have come. Does not wake when the port is taken back: whoever polls looks again by other
    /// reasons.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        let fed = self
            .feed
            .as_ref()
            .is_some_and(|feed| feed.poll_recv_ready(context).is_ready());
        let here = !self.given.is_given() && self.socket.poll_recv_ready(context).is_ready();
        if fed || here {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// A datagram that has come, with its source.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        if let Some(feed) = &self.feed {
            match feed.try_recv(buffer) {
                Ok(length) => return passed_on(buffer, length),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if self.given.is_given() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.socket.try_recv_from(buffer)
    }

    /// Waits for a datagram.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        loop {
            let is_given = self.given.is_given();
            tokio::select! {
                readable = self.socket.readable(), if !is_given => readable?,
                () = self.fed() => {}
                () = self.given.until_given(), if !is_given => {}
                () = self.given.until_here(), if is_given => {}
            }
            match self.try_recv_from(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    async fn fed(&self) {
        match &self.feed {
            // An error is told by the next attempt to read.
            Some(feed) => drop(feed.readable().await),
            None => std::future::pending().await,
        }
    }

    /// Passes a datagram that nobody here knows on to the former server, while there is one. May be lost, as on its way here.
    pub fn pass_on(&self, source: SocketAddr, datagram: &[u8]) {
        let Some(former) = &self.former else { return };
        if !self.has_former.load(Ordering::Relaxed) {
            return;
        }
        let mut passed = Vec::with_capacity(MAX_HEAD_BYTES + datagram.len());
        match source.ip() {
            IpAddr::V4(address) => {
                passed.push(OF_IPV4);
                passed.extend(address.octets());
            }
            IpAddr::V6(address) => {
                passed.push(OF_IPV6);
                passed.extend(address.octets());
            }
        }
        passed.extend(source.port().to_be_bytes());
        passed.extend(datagram);
        let sent = former.send(&passed);
        if sent.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            self.has_former.store(false, Ordering::Relaxed);
        }
    }

    /// Whether there is a former server that datagrams may be for.
    pub fn has_former(&self) -> bool {
        self.former.is_some() && self.has_former.load(Ordering::Relaxed)
    }
}

/// Takes the head off what was passed on.
fn passed_on(buffer: &mut [u8], length: usize) -> io::Result<(usize, SocketAddr)> {
    let (source, head) =
        read_head(buffer.get(..length).unwrap_or_default()).ok_or(io::ErrorKind::InvalidData)?;
    buffer.copy_within(head..length, 0);
    Ok((length - head, source))
}

fn read_head(passed: &[u8]) -> Option<(SocketAddr, usize)> {
    let (family, rest) = passed.split_first()?;
    let (ip, rest): (IpAddr, _) = match *family {
        OF_IPV4 => {
            let (octets, rest) = rest.split_first_chunk::<4>()?;
            (Ipv4Addr::from(*octets).into(), rest)
        }
        OF_IPV6 => {
            let (octets, rest) = rest.split_first_chunk::<16>()?;
            (Ipv6Addr::from(*octets).into(), rest)
        }
        _ => return None,
    };
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let source = SocketAddr::new(ip, u16::from_be_bytes(*port));
    Some((source, passed.len() - rest.len()))
}

/// Two sockets that reach each other and nobody else.
pub(crate) fn pair() -> io::Result<(StdUdpSocket, StdUdpSocket)> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (one, other) = (StdUdpSocket::bind(any)?, StdUdpSocket::bind(any)?);
    one.connect(other.local_addr()?)?;
    other.connect(one.local_addr()?)?;
    for socket in [&one, &other] {
        socket.set_nonblocking(true)?;
        // Best effort: bursts of video.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, 1 << 20);
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, 1 << 20);
    }
    Ok((one, other))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::sockets::{Inherited, SocketName, SocketUse, Sockets};

    #[tokio::test]
    async fn each_server_gets_its_own_over_one_port_until_the_new_one_has_gone() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let name = SocketName::new(SocketUse::SipUdp, any);
        let former = Sockets::default();
        let bound = former.datagrams(name, || StdUdpSocket::bind(any)).unwrap();
        let port = bound.local_addr().unwrap();
        let bound = bound.open().unwrap();
        let (offered, descriptors) = former.offered().unwrap();
        assert!(offered[0].feed);
        let mut descriptors = descriptors.into_iter();
        let inherited = Inherited {
            name,
            socket: descriptors.next().unwrap(),
            feed: descriptors.next(),
        };
        let new = Sockets::inherited(vec![inherited]);
        let taken = new.datagrams(name, || panic!("it was handed over"));
        let taken = taken.unwrap().open().unwrap();
        assert_eq!(taken.socket().local_addr().unwrap(), port);
        assert_eq!(new.taken(), [name]);

        let mut buffer = [0; 2_048];
        let client = StdUdpSocket::bind(any).unwrap();
        client.send_to(b"before", port).unwrap();
        let (length, from) = bound.recv_from(&mut buffer).await.unwrap();
        assert_eq!(
            (&buffer[..length], from),
            (&b"before"[..], client.local_addr().unwrap())
        );

        former.give(&[name]);
        client.send_to(b"after", port).unwrap();
        let (length, from) = taken.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], b"after");
        let far: SocketAddr = "[2001:db8::1]:4711".parse().unwrap();
        for source in [from, far] {
            taken.pass_on(source, b"yours");
            let (length, told) = bound.recv_from(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..length], told), (&b"yours"[..], source));
        }
        // Nothing of the port is read here any more.
        client.send_to(b"after", port).unwrap();
        let waiting = timeout(Duration::from_millis(50), bound.recv_from(&mut buffer));
        assert!(waiting.await.is_err());
        assert!(bound.try_recv_from(&mut buffer).is_err());

        // Back, with what had come meanwhile.
        former.take_back();
        let (length, _) = bound.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], b"after");

        // What is passed on to a server that has gone is lost, and no more is.
        former.close();
        drop(bound);
        for _ in 0..3 {
            taken.pass_on(from, b"yours");
        }
        assert!(!taken.has_former());
    }

    #[test]
    fn what_was_not_passed_on_by_a_server_is_nothing() {
        for bytes in [
            &b""[..],
            b"\x04\x7f\0\0\x01\0",
            b"\x05\x7f\0\0\x01\0\x01",
            b"\x06short",
        ] {
            assert_eq!(read_head(bytes), None, "{bytes:?}");
        }
    }
}
