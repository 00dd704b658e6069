//! Resolves a URI or a configured gateway to addresses (RFC 3263, without NAPTR).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use rsipstack::resolver::SipResolver;
use rsipstack::sip::uri::ParamsExt;
use rsipstack::sip::{Host, Scheme, Uri};
use tokio::time::timeout;

use super::flow::Protocol;

const PATIENCE: Duration = Duration::from_secs(5);
/// The most addresses that are tried for one name.
const MOST: usize = 8;

/// The addresses of a URI, in order. `protocol` is the default.
pub(super) async fn targets(
    uri: &Uri,
    protocol: Protocol,
) -> io::Result<Vec<(Protocol, SocketAddr)>> {
    let named = uri.transport().copied().and_then(Protocol::of_stack);
    let protocol = match named {
        _ if uri.scheme == Some(Scheme::Sips) => Protocol::Tls,
        Some(named) => named,
        None => protocol,
    };
    let port = uri.host_with_port.port.map(u16::from);
    let host = match &uri.host_with_port.host {
        Host::IpAddr(ip) => ip.to_string(),
        Host::Domain(name) => name.to_string(),
    };
    let addresses = addresses(&host, port, protocol).await?;
    Ok(addresses.into_iter().map(|one| (protocol, one)).collect())
}

/// The addresses of a host: by SRV records if there is no port, else, or if there are none, by its address records.
pub async fn addresses(
    host: &str,
    port: Option<u16>,
    protocol: Protocol,
) -> io::Result<Vec<SocketAddr>> {
    let found = timeout(PATIENCE, look_up(host, port, protocol)).await?;
    let mut found = found?;
    found.truncate(MOST);
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ));
    }
    Ok(found)
}

async fn look_up(host: &str, port: Option<u16>, protocol: Protocol) -> io::Result<Vec<SocketAddr>> {
    let default = port.unwrap_or(protocol.default_port());
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, default).into()]);
    }
    if port.is_none() {
        static RESOLVER: OnceLock<SipResolver> = OnceLock::new();
        let resolver = RESOLVER.get_or_init(SipResolver::new);
        let (name, transport) = (host.into(), Some(protocol.to_stack()));
        let secure = protocol.is_encrypted();
        if let Ok(targets) = resolver.lookup(&name, None, transport, secure).await {
            let addresses = targets.into_iter().map(|target| target.addr);
            let addresses: Vec<SocketAddr> = addresses.collect();
            if !addresses.is_empty() {
                return Ok(addresses);
            }
        }
    }
    // The system's resolver, which knows the hosts file.
    Ok(tokio::net::lookup_host((host, default)).await?.collect())
}
