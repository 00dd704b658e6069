//! A flow (RFC 5626): how messages travel between us and a peer. It consists of an endpoint of the SIP stack, a connection
//! and the two addresses.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::LazyLock;

use rsipstack::sip::{Host, HostWithPort, Transport};
use rsipstack::transaction::endpoint::EndpointInnerRef;
use rsipstack::transport::{SipAddr, SipConnection};

/// How branches of requests begin (RFC 3261 section 8.1.1.7).
const COOKIE: &str = "z9hG4bK";

/// The transport protocol of SIP messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// WebSocket (RFC 7118), from browsers: they connect, and nobody connects to them.
    Ws,
    /// WebSocket over TLS.
    Wss,
}

impl Protocol {
    /// Its name in URIs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws => "ws",
            Self::Wss => "wss",
        }
    }

    /// Parses its name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Udp, Self::Tcp, Self::Tls, Self::Ws, Self::Wss]
            .into_iter()
            .find(|one| one.name().eq_ignore_ascii_case(name))
    }

    /// The default port (RFC 3261 section 19.1.2).
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Udp | Self::Tcp => 5060,
            Self::Tls => 5061,
            // The standard has those of HTTP, which are somebody else's as a rule.
            Self::Ws => 5066,
            Self::Wss => 5067,
        }
    }

    /// Whether the other side is a browser.
    pub const fn is_web(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }

    /// Whether it needs a certificate.
    pub const fn is_encrypted(self) -> bool {
        matches!(self, Self::Tls | Self::Wss)
    }

    pub(super) const fn of_stack(transport: Transport) -> Option<Self> {
        match transport {
            Transport::Udp => Some(Self::Udp),
            Transport::Tcp => Some(Self::Tcp),
            Transport::Tls => Some(Self::Tls),
            Transport::Ws => Some(Self::Ws),
            Transport::Wss => Some(Self::Wss),
            _ => None,
        }
    }

    pub(super) const fn to_stack(self) -> Transport {
        match self {
            Self::Udp => Transport::Udp,
            Self::Tcp => Transport::Tcp,
            Self::Tls => Transport::Tls,
            Self::Ws => Transport::Ws,
            Self::Wss => Transport::Wss,
        }
    }
}

/// A flow to a peer.
#[derive(Clone)]
pub(super) struct Flow {
    pub endpoint: EndpointInnerRef,
    pub connection: SipConnection,
    pub protocol: Protocol,
    /// Our local address.
    pub local: SocketAddr,
    /// Our address as peers reach it.
    pub told: SocketAddr,
    pub remote: SocketAddr,
    /// The name that the peer's certificate was verified for, if one was.
    pub name: Option<String>,
}

impl Flow {
    /// The value of `Via` for a new request.
    pub fn via(&self, branch: &str) -> String {
        let protocol = self.protocol.name().to_uppercase();
        let alias = match self.protocol {
            // RFC 5923: responses and requests may use this connection.
            Protocol::Tcp | Protocol::Tls => ";alias",
            // Over WebSocket they do anyway.
            Protocol::Udp | Protocol::Ws | Protocol::Wss => "",
        };
        format!(
            "SIP/2.0/{protocol} {};branch={branch};rport{alias}",
            self.told
        )
    }

    /// The branch of a new request. It says, to us only, which address the request goes to.
    pub fn branch(&self) -> String {
        let number = crate::random::u64();
        let asked = asked(number, self.remote.ip());
        format!("{COOKIE}{number:016x}{asked:016x}")
    }

    /// The value of `Contact`.
    pub fn contact(&self, user: &str) -> String {
        format!("<sip:{user}@{}{}>", self.told, self.uri_parameter())
    }

    /// `;transport=…` unless it is the default.
    pub const fn uri_parameter(&self) -> &'static str {
        match self.protocol {
            Protocol::Udp => "",
            Protocol::Tcp => ";transport=tcp",
            Protocol::Tls => ";transport=tls",
            // Of either (RFC 7118 section 5.1).
            Protocol::Ws | Protocol::Wss => ";transport=ws",
        }
    }

    /// The peer's address as the stack writes it.
    pub fn destination(&self) -> SipAddr {
        stack_address(self.protocol, self.remote)
    }

    /// Resolves when the connection is closed.
    pub async fn closed(&self) {
        match self.connection.cancel_token() {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Whether the connection is open.
    pub fn open(&self) -> bool {
        let token = self.connection.cancel_token();
        !token.is_some_and(|token| token.is_cancelled())
    }
}

/// Whether a request with this branch went to this address. Responses come from there (RFC 3261 section 18.2.2, RFC 3581
/// section 4), perhaps from another port or over another connection; whoever has only read the branch, such as another
/// hop, is elsewhere.
pub(super) fn is_asked(branch: &str, from: IpAddr) -> bool {
    let numbers = branch
        .strip_prefix(COOKIE)
        .and_then(|rest| rest.split_at_checked(16));
    let Some((number, mark)) = numbers else {
        return false;
    };
    let read = |text| u64::from_str_radix(text, 16).ok();
    read(number).is_some_and(|number| read(mark) == Some(asked(number, from)))
}

/// A keyed hash of the address: it is checked without keeping state for each request, and lasts as long as responses are
/// repeated.
fn asked(number: u64, address: IpAddr) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEY.hash_one((number, address.to_canonical()))
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

/// Turns an IPv4-mapped IPv6 address into the IPv4 address.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    (address.ip().to_canonical(), address.port()).into()
}

/// An address as a dual-stack socket writes it.
pub(super) fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// The local address that packets to `remote` leave from; nothing is sent.
pub(crate) fn source_towards(remote: SocketAddr) -> io::Result<IpAddr> {
    let remote = canonical(remote);
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}
