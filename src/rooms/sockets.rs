//! The UDP sockets of the media port, and the addresses that clients are told. `media_thread` reads and writes them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::sync::Arc;

use vivavoce_takeover::{self as takeover, Datagrams, OpenDatagrams, SocketName, SocketUse};

/// Kernel buffers: large enough for a burst of one keyframe to many receivers.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// [`Sockets`] that are open, for one thread to read and all to write.
pub(super) type OpenSockets = Arc<[(OpenDatagrams, SocketAddr)]>;

/// One UDP socket per address, with the address that clients are told.
#[derive(Debug)]
pub struct Sockets(Vec<(Datagrams, SocketAddr)>);

impl Sockets {
    /// Binds `port` (0: any that is free on all addresses) on pairs of local and advertised address.
    pub fn bind(addresses: &[(IpAddr, IpAddr)], port: u16) -> io::Result<Self> {
        Self::take_or_bind(
            (&takeover::Sockets::default(), SocketUse::RoomsUdp),
            addresses,
            port,
        )
    }

    /// The same, or those that a former server had for this use.
    pub fn take_or_bind(
        (all, of): (&takeover::Sockets, SocketUse),
        addresses: &[(IpAddr, IpAddr)],
        port: u16,
    ) -> io::Result<Self> {
        const ATTEMPTS: usize = 16;
        let mut failed = io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "there is no address to open the media port at",
        );
        for _ in 0..if port == 0 { ATTEMPTS } else { 1 } {
            match Self::bind_once((all, of), addresses, port) {
                Ok(sockets) if sockets.0.is_empty() => break,
                Ok(sockets) => return Ok(sockets),
                Err(error) => failed = error,
            }
            all.forget(of);
        }
        Err(failed)
    }

    fn bind_once(
        (all, of): (&takeover::Sockets, SocketUse),
        addresses: &[(IpAddr, IpAddr)],
        wanted: u16,
    ) -> io::Result<Self> {
        let (mut bound, mut port) = (Vec::new(), wanted);
        for (local, advertised) in addresses {
            let name = SocketName::new(of, (*local, wanted).into());
            let datagrams = all.datagrams(name, || bind(*local, port))?;
            port = datagrams.local_addr()?.port();
            bound.push((datagrams, SocketAddr::from((*advertised, port))));
        }
        Ok(Self(bound))
    }

    /// The sockets for the current tokio runtime, with the advertised addresses.
    pub(super) fn open(self) -> io::Result<Vec<(OpenDatagrams, SocketAddr)>> {
        let sockets = self.0.into_iter();
        let sockets = sockets.map(|(socket, advertised)| Ok((socket.open()?, advertised)));
        sockets.collect()
    }

    /// The addresses that clients are told.
    pub fn advertised(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|(_, advertised)| *advertised).collect()
    }
}

fn bind(local: IpAddr, port: u16) -> io::Result<StdUdpSocket> {
    let domain = socket2::Domain::for_address((local, port).into());
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
    // Best effort: the kernel caps them without an error.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((local, port)).into())?;
    Ok(socket.into())
}

/// The host's addresses for media, each advertised as itself; or the given advertised addresses, each with the local
/// address behind it.
pub fn local_addresses(advertised: &[IpAddr]) -> io::Result<Vec<(IpAddr, IpAddr)>> {
    let interfaces = if_addrs::get_if_addrs()?;
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let local: Vec<IpAddr> = interfaces
        .iter()
        .map(if_addrs::Interface::ip)
        .filter(usable)
        .collect();
    if advertised.is_empty() {
        return Ok(local
            .into_iter()
            .map(|address| (address, address))
            .collect());
    }
    let behind = |outside: &IpAddr| {
        if local.contains(outside) {
            *outside
        } else {
            outgoing_address(outside.is_ipv4())
        }
    };
    Ok(advertised
        .iter()
        .map(|outside| (behind(outside), *outside))
        .collect())
}

/// The local address of packets to the Internet; none is sent.
fn outgoing_address(v4: bool) -> IpAddr {
    let (any, far): (IpAddr, IpAddr) = if v4 {
        (
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(192, 0, 2, 1).into(),
        )
    } else {
        (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        )
    };
    let found = StdUdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((far, 9))?;
        socket.local_addr()
    });
    found.map_or(any, |address| address.ip())
}
