//! The address of a Wyoming server, as a setting's value.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// An address: `tcp://host:port` or `unix:///path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A host name or address (without brackets) and a port.
    Tcp(String, u16),
    /// A Unix domain socket.
    Unix(PathBuf),
}

/// Why a text is not an [`Endpoint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a Wyoming server; write tcp://host:port or unix:///path")]
pub struct EndpointError(String);

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(url: &str) -> Result<Self, EndpointError> {
        let parsed = if let Some(authority) = url.strip_prefix("tcp://") {
            tcp(authority)
        } else {
            let path = url.strip_prefix("unix://").map(PathBuf::from);
            path.filter(|path| path.is_absolute()).map(Self::Unix)
        };
        parsed.ok_or_else(|| EndpointError(url.to_owned()))
    }
}

fn tcp(authority: &str) -> Option<Endpoint> {
    let (host, port) = authority.rsplit_once(':')?;
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().ok()?.to_string(),
        None => host.to_owned(),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let valid = bracketed.is_some() || (!host.is_empty() && host.chars().all(is_name));
    let digits = port.bytes().all(|b| b.is_ascii_digit());
    let port = port.parse().ok().filter(|&port: &u16| port > 0 && digits)?;
    valid.then_some(Endpoint::Tcp(host, port))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "tcp://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_and_nothing_else() {
        for url in [
            "tcp://127.0.0.1:10300",
            "tcp://whisper.lan:1",
            "tcp://[::1]:10200",
            "unix:///run/piper.sock",
        ] {
            assert_eq!(url.parse::<Endpoint>().unwrap().to_string(), url);
        }
        for bad in [
            "",
            "localhost:10300",
            "http://localhost:10300",
            "tcp://localhost",
            "tcp://:10300",
            "tcp://localhost:0",
            "tcp://localhost:+1",
            "tcp://localhost:70000",
            "tcp://localhost:10300/",
            "tcp://user@localhost:10300",
            "tcp://::1:10300",
            "tcp://[localhost]:10300",
            "unix://piper.sock",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
