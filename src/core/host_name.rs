//! Parsing of `host[:port]`, as the `Host` header and settings contain it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host with an optional port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName {
    /// The host, in lower case and without a trailing dot.
    pub host: Host,
    /// The port, where one is given.
    pub port: Option<u16>,
}

/// A host name or an IP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A name, in lower case.
    Name(String),
    /// An IP address.
    Address(IpAddr),
}

/// Parses `name`, `192.0.2.1` or `[2001:db8::1]`, each with an optional port; `None` for anything else.
pub fn host_name(text: &str) -> Option<HostName> {
    let (host, rest) = if let Some(bracketed) = text.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']')?;
        let address = address.parse::<Ipv6Addr>().ok()?;
        (Host::Address(IpAddr::V6(address).to_canonical()), rest)
    } else {
        let end = text.find(':').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let name = name.strip_suffix('.').unwrap_or(name);
        let odd = |byte: u8| !(byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if name.is_empty() || name.bytes().any(odd) {
            return None;
        }
        let host = match name.parse::<Ipv4Addr>() {
            Ok(address) => Host::Address(address.into()),
            Err(_) => Host::Name(name.to_ascii_lowercase()),
        };
        (host, rest)
    };
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        // An empty port is allowed (RFC 9110, section 4.2.3).
        Some("") => None,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
        _ => return None,
    };
    Some(HostName { host, port })
}
