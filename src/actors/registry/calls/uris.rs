//! SIP URIs that are called: how they are written, and which hosts they may name.

use vivavoce_config::SipTransport;
use vivavoce_core::phone::Gateway;

/// What [`SipUri::parse`] accepts, as a regular expression.
pub const PATTERN: &str = r"^[Ss][Ii][Pp][Ss]?:[A-Za-z0-9._+*#~!$&'=-]{1,64}(@([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(;transport=([Uu][Dd][Pp]|[Tt][Cc][Pp]|[Tt][Ll][Ss]))?)?$";

/// A URI: `sip:user@host`, or `sip:user` for a telephone that is registered here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SipUri {
    /// Who.
    pub user: String,
    /// Where.
    pub host: Option<Gateway>,
    /// By which transport, if it says so.
    pub transport: Option<SipTransport>,
}

/// The text is no such URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be sip:user@host, sip:user@host:port or sip:user, perhaps with ;transport=udp, tcp or tls"
)]
pub struct NoSipUri;

impl SipUri {
    /// Reads a URI. Parameters other than the transport, and passwords, are not accepted.
    pub fn parse(text: &str) -> Result<Self, NoSipUri> {
        let (scheme, rest) = text.split_once(':').ok_or(NoSipUri)?;
        let secure = scheme.eq_ignore_ascii_case("sips");
        if !secure && !scheme.eq_ignore_ascii_case("sip") {
            return Err(NoSipUri);
        }
        let (address, parameter) = match rest.split_once(';') {
            None => (rest, None),
            Some((address, parameter)) => (address, Some(parameter)),
        };
        let transport = match parameter.map(str::to_ascii_lowercase).as_deref() {
            None => None,
            Some("transport=udp") => Some(SipTransport::Udp),
            Some("transport=tcp") => Some(SipTransport::Tcp),
            Some("transport=tls") => Some(SipTransport::Tls),
            Some(_) => return Err(NoSipUri),
        };
        let (user, host) = match address.split_once('@') {
            None if transport.is_some() => return Err(NoSipUri),
            None => (address, None),
            Some((user, host)) => (user, Some(Gateway::parse(host).ok_or(NoSipUri)?)),
        };
        let fits = |c: u8| c.is_ascii_alphanumeric() || b"._+*#~!$&'=-".contains(&c);
        if !(1..=64).contains(&user.len()) || !user.bytes().all(fits) {
            return Err(NoSipUri);
        }
        Ok(Self {
            user: user.to_owned(),
            host,
            transport: transport.or_else(|| secure.then_some(SipTransport::Tls)),
        })
    }
}

/// Whether a host is one of these: names, `*.example.org`, or `*`.
pub fn is_among(host: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|one| {
        let one = one.trim_matches(['[', ']']).to_ascii_lowercase();
        match one.strip_prefix('*') {
            Some("") => true,
            Some(suffix) => {
                host.len() > suffix.len() && suffix.starts_with('.') && host.ends_with(suffix)
            }
            None => host == one,
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_uri_has_a_user_and_perhaps_a_host() {
        let read = |text: &str| {
            let uri = SipUri::parse(text).ok()?;
            let host = uri.host.map(|host| host.to_string()).unwrap_or_default();
            Some((uri.user, host, uri.transport))
        };
        for (text, user, host, transport) in [
            ("sip:bob@Example.org", "bob", "example.org", None),
            (
                "SIPS:110@[2001:db8::1]:5070",
                "110",
                "[2001:db8::1]:5070",
                Some(SipTransport::Tls),
            ),
            (
                "sip:a.b+1@192.0.2.1:5080;transport=TCP",
                "a.b+1",
                "192.0.2.1:5080",
                Some(SipTransport::Tcp),
            ),
            ("sip:bob", "bob", "", None),
        ] {
            assert_eq!(
                read(text),
                Some((user.to_owned(), host.to_owned(), transport)),
                "{text}"
            );
        }
        for text in [
            "bob@example.org",
            "sip:",
            "sip:@h",
            "sip:bob@",
            "sip:bob:pw@h",
            "sip:bob@h;lr",
            "sip:bob@h?X=1",
            "sip:b b@h",
            "tel:+49301234567",
            "sip:bob@h\r\nX: 1",
            "sip:%62ob@h",
            "sip:bob;transport=tcp",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn hosts_are_named_one_by_one_or_by_their_domain() {
        let allowed = ["pbx.example", "*.office.example", "[2001:db8::1]"].map(str::to_owned);
        for (host, is) in [
            ("pbx.example", true),
            ("a.pbx.example", false),
            ("a.office.example", true),
            ("office.example", false),
            ("evil-office.example", false),
            ("2001:db8::1", true),
        ] {
            assert_eq!(is_among(host, &allowed), is, "{host}");
        }
        assert!(is_among("any", &["*".to_owned()]) && !is_among("any", &[]));
    }

    proptest! {
        #[test]
        fn the_pattern_takes_what_parse_takes(text in r"(sip|SIPS):[a-z1#@:;.=%]{0,12}(@[a-z0-9.]{0,6})?(;transport=(tcp|udp))?") {
            let schema = serde_json::json!({"pattern": PATTERN});
            let fits = jsonschema::is_valid(&schema, &serde_json::json!(text));
            // The pattern leaves the number of a port to the parser.
            if SipUri::parse(&text).is_ok() {
                prop_assert!(fits, "{:?}", text);
            }
        }
    }
}
