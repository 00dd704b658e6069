//! The client's address: that of the connection or, if that is a trusted proxy, the address in the proxy's forwarding
//! header. Headers from anybody else are not trusted.

use std::net::IpAddr;

use actix_web::HttpRequest;
use actix_web::http::header::{self, HeaderMap, HeaderName};
use ipnet::IpNet;

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The trusted proxies.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// The proxies in these networks.
    pub const fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// Whether the client reached the first of the trusted proxies by TLS, as they tell.
    pub(super) fn came_by_tls(&self, request: &HttpRequest) -> bool {
        let peer = request.peer_addr().map(|peer| peer.ip().to_canonical());
        if !peer.is_some_and(|peer| self.trust(peer)) {
            return false;
        }
        let headers = request.headers();
        let (forwarded, plain) = (forwarded(headers), x_forwarded_for(headers));
        let (hops, schemes) = if forwarded.is_empty() {
            (plain, x_forwarded_proto(headers))
        } else {
            (forwarded, forwarded_schemes(headers))
        };
        // The client's own hop is the last one that is not a proxy's. Where there are fewer schemes than hops, proxies
        // have overwritten what others said.
        let is_proxy = |hop: &&Option<IpAddr>| hop.is_some_and(|address| self.trust(address));
        let proxies = hops.iter().rev().take_while(is_proxy).count();
        let of_client = schemes.iter().rev().nth(proxies).or(schemes.last());
        of_client.is_some_and(|scheme| {
            scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("wss")
        })
    }

    /// The address that a request comes from; `None` if the connection has none.
    pub fn caller(&self, request: &HttpRequest) -> Option<IpAddr> {
        let peer = request.peer_addr()?.ip().to_canonical();
        Some(self.behind(peer, request.headers()))
    }

    /// The last hop that is not a trusted proxy. Each proxy appends the address it received the request from, so
    /// whatever the client wrote itself comes first.
    pub(super) fn behind(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.trust(peer) {
            return peer;
        }
        let (forwarded, plain) = (forwarded(headers), x_forwarded_for(headers));
        // A proxy writes one of the two headers and passes the other on: if they differ, one is the client's own.
        let hops = match (forwarded.is_empty(), plain.is_empty()) {
            (false, false) if forwarded != plain => return peer,
            (true, _) => plain,
            _ => forwarded,
        };
        let mut last = peer;
        for hop in hops.into_iter().rev() {
            match hop {
                Some(address) if self.trust(address) => last = address,
                Some(address) => return address,
                // A client without an address is represented by the proxy in front of it.
                None => break,
            }
        }
        last
    }

    /// Whether this address is a trusted proxy.
    pub fn trust(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// The hops of `Forwarded` (RFC 7239), the nearest last; `None` for those without an address. Elements are split at
/// every comma: a quoted comma can only be the client's, and comes before what our proxies wrote.
fn forwarded(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    elements(headers, &header::FORWARDED)
        .map(|element| address(parameter(element, "for")?))
        .collect()
}

/// The schemes of `Forwarded`, one for each hop; empty where it says none.
fn forwarded_schemes(headers: &HeaderMap) -> Vec<&str> {
    elements(headers, &header::FORWARDED)
        .map(|element| parameter(element, "proto").unwrap_or_default())
        .collect()
}

fn x_forwarded_proto(headers: &HeaderMap) -> Vec<&str> {
    elements(headers, &X_FORWARDED_PROTO).collect()
}

/// A parameter of an element of `Forwarded`.
fn parameter<'e>(element: &'e str, wanted: &str) -> Option<&'e str> {
    element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = value.trim().trim_matches('"');
        name.trim().eq_ignore_ascii_case(wanted).then_some(value)
    })
}

fn x_forwarded_for(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    elements(headers, &X_FORWARDED_FOR).map(address).collect()
}

fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .flat_map(|value| value.to_str().unwrap_or("unknown").split(','))
        .map(str::trim)
}

/// An address, with an optional port and optional brackets.
fn address(node: &str) -> Option<IpAddr> {
    let bracketed = || node.strip_prefix('[')?.split_once(']')?.0.parse().ok();
    let with_port = || node.rsplit_once(':')?.0.parse().ok();
    let address: Option<IpAddr> = node.parse().ok().or_else(bracketed).or_else(with_port);
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    fn caller(peer: &str, headers: &[(&str, &str)]) -> String {
        let networks = ["10.0.0.0/8", "2001:db8::/32"];
        let proxies = TrustedProxies::new(networks.map(|net| net.parse().unwrap()).to_vec());
        let mut request = TestRequest::default().peer_addr(peer.parse().unwrap());
        for (name, value) in headers {
            request = request.append_header((*name, *value));
        }
        let caller = proxies.caller(&request.to_http_request());
        caller.unwrap().to_string()
    }

    #[test]
    fn what_a_stranger_writes_down_is_not_believed() {
        for header in ["x-forwarded-for", "forwarded"] {
            let value = "for=192.0.2.1";
            assert_eq!(caller("198.51.100.7:1", &[(header, value)]), "198.51.100.7");
        }
    }

    #[test]
    fn behind_our_proxies_the_last_hop_that_is_none_of_them_counts() {
        for (header, value, expected) in [
            ("x-forwarded-for", "192.0.2.1", "192.0.2.1"),
            (
                "x-forwarded-for",
                "203.0.113.9, 192.0.2.1, 10.2.2.2",
                "192.0.2.1",
            ),
            ("x-forwarded-for", "192.0.2.1:4711,10.1.1.1", "192.0.2.1"),
            ("x-forwarded-for", "10.3.3.3, 10.2.2.2", "10.3.3.3"),
            (
                "x-forwarded-for",
                "192.0.2.1, nonsense, 10.2.2.2",
                "10.2.2.2",
            ),
            ("x-forwarded-for", "::ffff:192.0.2.1", "192.0.2.1"),
            (
                "forwarded",
                "for=192.0.2.1;proto=https, For=10.1.1.1",
                "192.0.2.1",
            ),
            ("forwarded", "for=\"[2001:db9::1]:4711\"", "2001:db9::1"),
            (
                "forwarded",
                "for=\"192.0.2.60:80\";by=10.0.0.1",
                "192.0.2.60",
            ),
            ("forwarded", "for=192.0.2.1, for=_hidden", "10.0.0.1"),
            ("forwarded", "for=\"unclosed, for=192.0.2.1", "192.0.2.1"),
            ("forwarded", "proto=https", "10.0.0.1"),
        ] {
            assert_eq!(
                caller("10.0.0.1:1", &[(header, value)]),
                expected,
                "{value}"
            );
        }
    }

    #[test]
    fn a_trusted_proxy_tells_whether_its_client_came_by_tls() {
        let by_tls = |peer: &str, headers: &[(&str, &str)]| {
            let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
            let mut request = TestRequest::default().peer_addr(peer.parse().unwrap());
            for header in headers {
                request = request.append_header(*header);
            }
            proxies.came_by_tls(&request.to_http_request())
        };
        let client = ("x-forwarded-for", "192.0.2.1");
        let behind_another = ("x-forwarded-for", "192.0.2.1, 10.2.2.2");
        let scheme = |value| ("x-forwarded-proto", value);
        for (headers, expected) in [
            (&[client, scheme("https")][..], true),
            (&[client, scheme("http")], false),
            (&[client, scheme("https, http")], false),
            (&[scheme("HTTPS")], true),
            (&[client], false),
            (&[behind_another, scheme("https, http")], true),
            (&[behind_another, scheme("https")], true),
            (&[("forwarded", "for=192.0.2.1;proto=https")], true),
            (
                &[(
                    "forwarded",
                    "for=192.0.2.1;proto=\"wss\", for=10.2.2.2;proto=http",
                )],
                true,
            ),
            (
                &[(
                    "forwarded",
                    "for=192.0.2.1;proto=http, for=10.2.2.2;proto=https",
                )],
                false,
            ),
        ] {
            assert_eq!(by_tls("10.0.0.1:1", headers), expected, "{headers:?}");
            assert!(!by_tls("198.51.100.7:1", headers), "{headers:?}");
        }
    }

    #[test]
    fn lines_of_a_header_are_one_list() {
        let lines = [
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-for", "192.0.2.1"),
        ];
        assert_eq!(caller("10.0.0.1:1", &lines), "192.0.2.1");
    }

    #[test]
    fn two_headers_that_differ_are_both_not_believed() {
        let both = |other| [("x-forwarded-for", "192.0.2.1"), ("forwarded", other)];
        assert_eq!(caller("10.0.0.1:1", &both("for=192.0.2.1")), "192.0.2.1");
        assert_eq!(caller("10.0.0.1:1", &both("for=192.0.2.2")), "10.0.0.1");
    }
}
