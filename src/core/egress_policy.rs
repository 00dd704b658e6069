//! Which addresses the server may connect to when somebody else supplied the URL (webhooks, call hooks): public
//! addresses over TLS only, unless the settings allow more. This prevents server-side request forgery. A host name is
//! judged by the addresses it resolves to at the moment of connecting ([`PublicOnly`]), so that a name cannot pass the
//! check and then resolve to something else (DNS rebinding).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use serde::{Deserialize, Serialize};
use url::Host;

/// What is allowed beyond public addresses over TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EgressPolicy {
    /// Allow connections without TLS.
    pub insecure: bool,
    /// Allow loopback, link-local, private and other addresses that are not on the public Internet.
    pub private: bool,
}

/// Why a URL may not be connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EgressDenied {
    /// The URL is not `https`.
    #[error("must be https")]
    Insecure,
    /// The URL names an address that is not on the public Internet.
    #[error("must be a public address")]
    Private,
}

impl EgressPolicy {
    /// Checks what can be checked without resolving the name: the scheme, and an IP address written in the URL,
    /// which never reaches the resolver. Names are checked by [`PublicOnly`].
    pub fn check(self, url: &Url) -> Result<(), EgressDenied> {
        if url.scheme() != "https" && !self.insecure {
            return Err(EgressDenied::Insecure);
        }
        let written = match url.host() {
            Some(Host::Ipv4(address)) => Some(address.into()),
            Some(Host::Ipv6(address)) => Some(address.into()),
            _ => None,
        };
        if !self.private && written.is_some_and(|address| !is_public(address)) {
            return Err(EgressDenied::Private);
        }
        Ok(())
    }
}

/// A resolver that drops every address that is not public.
#[derive(Debug, Clone, Copy, Default)]
pub struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let all = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = all.filter(|one| is_public(one.ip())).collect();
            if public.is_empty() {
                return Err(io::Error::other("the name has no public address").into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is on the public Internet, by IANA's special-purpose address registries (RFC 6890). Addresses
/// embedded in those of IPv6 transition mechanisms are judged by the embedded address.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => v4_is_public(address),
        IpAddr::V6(address) => v6_is_public(address),
    }
}

const fn v4_is_public(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        // Carrier-grade NAT (RFC 6598), IETF protocol assignments, benchmarking (RFC 2544), and reserved addresses.
        || (a == 100 && b & 0xc0 == 64)
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && b & 0xfe == 18)
        || a >= 240)
}

fn v6_is_public(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let [.., high, low] = segments;
    let last_v4 = Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match segments {
        // IPv4-mapped ::ffff:a.b.c.d, the deprecated ::a.b.c.d (which includes :: and ::1), and NAT64 (RFC 6052).
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => v4_is_public(last_v4),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => {
            v4_is_public(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
        }
        // Teredo and other IETF protocol assignments, and documentation.
        [0x2001, second, ..] => second >= 0x200 && second != 0xdb8,
        [0x3fff, second, ..] => second >= 0x1000,
        // All other global unicast addresses; unique local, link-local and multicast addresses lie outside.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        for address in [
            "1.1.1.1",
            "93.184.215.14",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.31.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn an_address_written_in_a_url_is_judged_without_a_lookup() {
        let check = |url: &str, egress: EgressPolicy| egress.check(&url.parse().unwrap());
        let narrow = EgressPolicy::default();
        assert_eq!(check("https://hooks.example/a", narrow), Ok(()));
        assert_eq!(
            check("http://hooks.example/a", narrow),
            Err(EgressDenied::Insecure)
        );
        // URL parsers read all of these as 127.0.0.1.
        for url in [
            "https://127.0.0.1/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://[::1]/",
        ] {
            assert_eq!(check(url, narrow), Err(EgressDenied::Private), "{url}");
        }
        let wide = EgressPolicy {
            insecure: true,
            private: true,
        };
        assert_eq!(check("http://127.0.0.1:9/", wide), Ok(()));
    }

    #[tokio::test]
    async fn a_name_of_this_machine_has_no_public_address() {
        let looked_up = PublicOnly.resolve("localhost".parse().unwrap()).await;
        assert!(looked_up.is_err_and(|error| error.to_string().contains("no public address")));
    }
}
