//! Telephone numbers, as clients write them and as they are dialled (protocol, section 4). Which numbers may be
//! dialled is decided by the telephone side.

use std::fmt;

/// What [`PhoneNumber::parse`] accepts, as a regular expression.
pub const PATTERN: &str = concat!(
    r"^\s*([Tt][Ee][Ll]:)?[ .()-]*",
    r"(\+[ .()-]*[1-9]([ .()-]*[0-9]){6,14}|[0-9]([ .()-]*[0-9]){0,14}|[0-9*#]([ .()-]*[0-9*#]){0,5})",
    r"[ .()-]*\s*$"
);

/// A number in the form in which it is dialled.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PhoneNumber(String);

/// The text is not a telephone number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no telephone number: + and 7 to 15 digits, or 1 to 15 digits, or up to 6 of 0-9 * #")]
pub struct NoPhoneNumber;

impl PhoneNumber {
    /// Parses an international number (E.164: `+` and 7–15 digits, the first not 0), a national number or extension
    /// (1–15 digits), or a feature code (up to 6 of digits, `*` and `#`). A `tel:` prefix (RFC 3966) and visual
    /// separators are ignored.
    pub fn parse(text: &str) -> Result<Self, NoPhoneNumber> {
        let text = text.trim();
        let text = match text.get(..4) {
            Some(scheme) if scheme.eq_ignore_ascii_case("tel:") => &text[4..],
            _ => text,
        };
        let number: String = text
            .chars()
            .filter(|c| !matches!(c, ' ' | '-' | '.' | '(' | ')'))
            .collect();
        let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
        let code = |text: &str| text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'*' | b'#'));
        let valid = match number.strip_prefix('+') {
            Some(rest) => (7..=15).contains(&rest.len()) && digits(rest) && !rest.starts_with('0'),
            None => {
                (1..=15).contains(&number.len()) && digits(&number)
                    || (1..=6).contains(&number.len()) && code(&number)
            }
        };
        valid.then_some(Self(number)).ok_or(NoPhoneNumber)
    }

    /// The number as it is dialled.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Numbers reveal who speaks with whom, so only the last two digits are shown.
impl fmt::Debug for PhoneNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[self.0.len().saturating_sub(2)..];
        write!(f, "PhoneNumber(…{shown})")
    }
}

/// The address of a SIP gateway: host and port, where the port is not the transport's default.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gateway {
    /// In lower case; IPv6 addresses without brackets.
    pub host: String,
    /// Default: 5060, or 5061 with TLS.
    pub port: Option<u16>,
}

impl Gateway {
    /// Parses `hostname` or `hostname:port`; an IPv6 address must be in brackets.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                address.parse::<std::net::Ipv6Addr>().ok()?;
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':')?),
                };
                (address, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let named = text.starts_with('[') || host.chars().all(in_name);
        if host.is_empty() || host.len() > 253 || !named {
            return None;
        }
        let port = match port {
            None => None,
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(port.parse().ok().filter(|port| *port > 0)?)
            }
            Some(_) => return None,
        };
        Some(Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_normalised_and_everything_else_is_none() {
        for (written, dialled) in [
            ("+1 (212) 555-0100", "+12125550100"),
            ("tel:+44.20.7946.0000", "+442079460000"),
            ("TEL:1000", "1000"),
            ("030 123456", "030123456"),
            ("*97", "*97"),
            ("#31#", "#31#"),
            ("7", "7"),
            ("123456789012345", "123456789012345"),
        ] {
            assert_eq!(
                PhoneNumber::parse(written).map(|n| n.0).as_deref(),
                Ok(dialled),
                "{written}"
            );
        }
        for written in [
            "",
            " ",
            "tel:",
            "+",
            "+123456",
            "+0123456789",
            "+1234567890123456",
            "1234567890123456",
            "*123456",
            "12a4",
            "+1212555*100",
            "++12125550100",
            "sip:1000@example.org",
            "１２３",
            "tél:1",
        ] {
            assert_eq!(PhoneNumber::parse(written), Err(NoPhoneNumber), "{written}");
        }
    }

    #[test]
    fn a_number_in_a_log_line_tells_little() {
        let number = PhoneNumber::parse("+12125550100").unwrap();
        assert_eq!(format!("{number:?}"), "PhoneNumber(…00)");
    }

    proptest! {
        #[test]
        fn the_pattern_takes_what_parse_takes(text in r"( |tel:|TEL:)?[-0-9+*#. ()x]{0,20}") {
            let schema = serde_json::json!({"pattern": PATTERN});
            let fits = jsonschema::is_valid(&schema, &serde_json::json!(text));
            prop_assert_eq!(fits, PhoneNumber::parse(&text).is_ok(), "{:?}", text);
        }

        #[test]
        fn what_was_normalised_stays_as_it_is(text in "\\PC{0,20}") {
            if let Ok(number) = PhoneNumber::parse(&text) {
                prop_assert_eq!(PhoneNumber::parse(number.as_str()), Ok(number));
            }
        }
    }

    #[test]
    fn a_gateway_is_a_host_and_perhaps_a_port() {
        let read = |text: &str| Gateway::parse(text).map(|gateway| gateway.to_string());
        for (text, shown) in [
            ("SIP.example.org", "sip.example.org"),
            ("sip.example.org:5060", "sip.example.org:5060"),
            ("192.0.2.1:5080", "192.0.2.1:5080"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("[2001:db8::1]:5061", "[2001:db8::1]:5061"),
        ] {
            assert_eq!(read(text).as_deref(), Some(shown));
        }
        for text in [
            "",
            ":5060",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a b",
            "a@b",
            "2001:db8::1",
            "[::1",
            "[::1]5",
            "[a]",
            "a;b",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
