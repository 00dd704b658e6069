//! The host that a hook is for and that a call was made to: a name or an address in normalised form.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The maximum length of a name, and of one of its labels (RFC 1035, section 2.3.4).
const LONGEST: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A name in lower case without a trailing dot, or an IP address in its standard form without brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host(String);

impl Host {
    /// Parses a name or an address; `None` if it is neither, for example if it has a port.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let address: Ipv6Addr = rest.strip_suffix(']')?.parse().ok()?;
            return Some(Self(address.to_string()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self(address.to_string()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let good = |label: &str| {
            (1..=LONGEST_LABEL).contains(&label.len())
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        (name.len() <= LONGEST && name.split('.').all(good))
            .then(|| Self(name.to_ascii_lowercase()))
    }

    /// Extracts the host from a SIP header's address (RFC 3261, section 20.10): with or without display name, user,
    /// port and parameters. `None` if there is none, or if it is ambiguous.
    pub fn of_header(value: &str) -> Option<Self> {
        let value = after_display_name(value.trim());
        let address = match value.split_once('<') {
            Some((_, rest)) => rest.split_once('>')?.0,
            None => value,
        };
        let address = without_scheme(address.trim())?;
        let place = match address.split_once('@') {
            Some((_, place)) if place.contains('@') => return None,
            Some((_, place)) => place,
            None => address,
        };
        let end = |c: char| matches!(c, ';' | '?' | ',') || c.is_whitespace();
        let place = place.split(end).next()?;
        Self::parse(without_port(place)?)
    }

    /// The host as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What follows a quoted display name, which may contain anything.
fn after_display_name(value: &str) -> &str {
    let Some(quoted) = value.strip_prefix('"') else {
        return value;
    };
    let mut escaped = false;
    for (at, c) in quoted.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return quoted.get(at + 1..).unwrap_or_default(),
            _ => {}
        }
    }
    // An unterminated quote: nothing in it is an address.
    ""
}

/// `None` for an address without a host, such as a telephone number.
fn without_scheme(address: &str) -> Option<&str> {
    match address.split_once(':') {
        Some((scheme, rest)) => match scheme.to_ascii_lowercase().as_str() {
            "sip" | "sips" => Some(rest),
            "tel" => None,
            _ => Some(address),
        },
        None => Some(address),
    }
}

/// `None` if the port is invalid.
fn without_port(place: &str) -> Option<&str> {
    // An address in brackets, or without brackets, in which case it has no port.
    if place.parse::<Ipv6Addr>().is_ok() {
        return Some(place);
    }
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => return Some(place),
    };
    port.parse::<u16>().is_ok().then_some(host)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("expected a host"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<String> {
        Host::parse(text).map(|host| host.0)
    }

    #[test]
    fn a_host_is_the_same_in_every_spelling() {
        for (text, host) in [
            ("Sip.Example.ORG", "sip.example.org"),
            ("sip.example.org.", "sip.example.org"),
            ("trunk_1-a", "trunk_1-a"),
            ("192.0.2.7", "192.0.2.7"),
            ("[2001:DB8::0001]", "2001:db8::1"),
            ("2001:db8:0::1", "2001:db8::1"),
        ] {
            assert_eq!(parsed(text).as_deref(), Some(host), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        let long = ["a"; 128].join(".");
        for text in [
            "",
            ".",
            "a..b",
            " a",
            "a b",
            "a:5060",
            "sip:a",
            "u@a",
            "a/b",
            "ä.example",
            "[a]",
            "[::1",
            "[::1]:5060",
            &long,
            &"a".repeat(64),
        ] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_header_names_a_host_with_or_without_everything_else() {
        for (value, host) in [
            ("sip:+4930@Sip.Example.ORG", "sip.example.org"),
            (
                "<sip:+4930@sip.example.org:5060;user=phone>;tag=a@b",
                "sip.example.org",
            ),
            ("Ann <SIPS:ann@sip.example.org.>", "sip.example.org"),
            (
                r#""A \"<sip:x@evil.example>\" B" <sip:ann@sip.example.org>"#,
                "sip.example.org",
            ),
            (
                "sip:+4930;phone-context=a.example@sip.example.org",
                "sip.example.org",
            ),
            ("sip:sip.example.org?subject=a", "sip.example.org"),
            (
                "sip:ann@sip.example.org;transport=tls;tag=1",
                "sip.example.org",
            ),
            ("sip:ann@[2001:db8::1]:5061;lr", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("192.0.2.7:5060", "192.0.2.7"),
            (" 192.0.2.7 , 192.0.2.8", "192.0.2.7"),
            ("sip.example.org", "sip.example.org"),
        ] {
            let found = Host::of_header(value);
            assert_eq!(found.as_ref().map(Host::as_str), Some(host), "{value}");
        }
    }

    #[test]
    fn whatever_is_written_the_host_that_is_found_is_one() {
        const PIECES: [&str; 24] = [
            "sip:",
            "SIPS:",
            "tel:",
            "<",
            ">",
            "\"",
            "\\",
            "@",
            ":",
            ";",
            "?",
            ",",
            " ",
            ".",
            "[",
            "]",
            "::1",
            "a",
            "b.example",
            "192.0.2.1",
            "5060",
            "%",
            "ä",
            "\0",
        ];
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let count = random.usize(0..12);
            let text: String = (0..count)
                .map(|_| PIECES[random.usize(..PIECES.len())])
                .collect();
            if let Some(host) = Host::of_header(&text) {
                assert_eq!(Host::parse(host.as_str()).as_ref(), Some(&host), "{text:?}");
            }
        }
    }

    #[test]
    fn a_header_without_a_host_or_with_two_names_none() {
        for value in [
            "",
            "<",
            "<>",
            "><",
            "> <sip:a@b",
            "\"",
            "\"a",
            "\"a\\",
            "sip:",
            "sip:ann@",
            "tel:+4930",
            "sip:a@b.example;x=@c.example",
            "sip:a@b@c",
            "sip:a@b:port",
            "sip:a@[::1",
            "sip:a@ä.example",
            "ä\"<ö>",
        ] {
            assert_eq!(Host::of_header(value), None, "{value:?}");
        }
    }
}
