//! How messages get from here to somebody and back: the endpoint of the stack, the connection, and the two addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rsipstack::sip::{Host, HostWithPort, Transport};
use rsipstack::transaction::endpoint::EndpointInnerRef;
use rsipstack::transport::{SipAddr, SipConnection};

/// What carries messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Datagrams.
    Udp,
    /// A stream.
    Tcp,
    /// An encrypted stream.
    Tls,
}

impl Protocol {
    /// As it is written in a URI.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Udp, Self::Tcp, Self::Tls]
            .into_iter()
            .find(|one| one.name().eq_ignore_ascii_case(name))
    }

    /// The port where none is written (RFC 3261 section 19.1.2).
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Udp | Self::Tcp => 5060,
            Self::Tls => 5061,
        }
    }

    pub(super) const fn of_stack(transport: Transport) -> Option<Self> {
        match transport {
            Transport::Udp => Some(Self::Udp),
            Transport::Tcp => Some(Self::Tcp),
            Transport::Tls => Some(Self::Tls),
            _ => None,
        }
    }

    pub(super) const fn to_stack(self) -> Transport {
        match self {
            Self::Udp => Transport::Udp,
            Self::Tcp => Transport::Tcp,
            Self::Tls => Transport::Tls,
        }
    }
}

/// A way to somebody.
#[derive(Clone)]
pub(super) struct Path {
    pub endpoint: EndpointInnerRef,
    pub connection: SipConnection,
    pub protocol: Protocol,
    /// Our own address on it.
    pub local: SocketAddr,
    /// Where others reach us.
    pub told: SocketAddr,
    pub remote: SocketAddr,
    /// What the certificate of the other side is for, where there is one that was looked at.
    pub name: Option<String>,
}

impl Path {
    /// The value of a `Via` of a new request.
    pub fn via(&self, branch: &str) -> String {
        let protocol = self.protocol.name().to_uppercase();
        let alias = match self.protocol {
            Protocol::Udp => "",
            // RFC 5923: answers and requests may come over this connection.
            Protocol::Tcp | Protocol::Tls => ";alias",
        };
        format!(
            "SIP/2.0/{protocol} {};branch={branch};rport{alias}",
            self.told
        )
    }

    /// The value of a `Contact`.
    pub fn contact(&self, user: &str) -> String {
        format!("<sip:{user}@{}{}>", self.told, self.uri_parameter())
    }

    /// `;transport=…` where that is not the default.
    pub const fn uri_parameter(&self) -> &'static str {
        match self.protocol {
            Protocol::Udp => "",
            Protocol::Tcp => ";transport=tcp",
            Protocol::Tls => ";transport=tls",
        }
    }

    /// The other side, as the stack writes it.
    pub fn destination(&self) -> SipAddr {
        stack_address(self.protocol, self.remote)
    }

    /// Returns when no message gets through any more.
    pub async fn closed(&self) {
        match self.connection.cancel_token() {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Whether messages still get through.
    pub fn open(&self) -> bool {
        let token = self.connection.cancel_token();
        !token.is_some_and(|token| token.is_cancelled())
    }
}

pub(super) fn stack_address(protocol: Protocol, address: SocketAddr) -> SipAddr {
    SipAddr::new(
        protocol.to_stack(),
        HostWithPort {
            host: Host::IpAddr(address.ip()),
            port: Some(address.port().into()),
        },
    )
}

/// An IPv4 address that a socket for both families writes as one of IPv6, as itself.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}

/// An address as a socket for both families writes it.
pub(super) fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// The address that a packet to there leaves from; nothing is sent.
pub(super) fn source_towards(remote: SocketAddr) -> io::Result<IpAddr> {
    let remote = canonical(remote);
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}
