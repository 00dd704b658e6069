//! Parses untrusted SIP header values: addresses, users, hosts, tags and parameters (RFC 3261 sections 19.1 and 20). The
//! stack's own types are for whole messages.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters that are escaped in a user: all but `unreserved` and `user-unreserved` (RFC 3261 section 25.1), and `;`,
/// which some gateways take for the start of parameters.
const OUTSIDE_USER: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'!')
    .remove(b'~')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'&')
    .remove(b'=')
    .remove(b'+')
    .remove(b'$')
    .remove(b',')
    .remove(b'?')
    .remove(b'/');

/// The parts of a `name-addr` or `addr-spec`: `"Name" <sip:user@host;p>;tag=t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address<'a> {
    /// The display name, with its quotes.
    pub display: Option<&'a str>,
    /// The URI, without angle brackets.
    pub uri: &'a str,
    /// The header parameters, without the first semicolon.
    pub parameters: &'a str,
}

impl<'a> Address<'a> {
    /// Parses an address. It never fails: a malformed value yields few parts.
    pub fn parse(value: &'a str) -> Self {
        let value = value.trim();
        let name_end = end_of_display(value);
        let (display, rest) = value.split_at(name_end);
        let display = Some(display.trim()).filter(|name| !name.is_empty());
        if let Some(inner) = rest.strip_prefix('<') {
            let (uri, after) = inner.split_once('>').unwrap_or((inner, ""));
            let parameters = after.trim_start().trim_start_matches(';');
            return Self {
                display,
                uri: uri.trim(),
                parameters,
            };
        }
        // Without angle brackets, parameters belong to the header (RFC 3261 section 20.10).
        let (uri, parameters) = value.split_once(';').unwrap_or((value, ""));
        Self {
            display: None,
            uri: uri.trim(),
            parameters,
        }
    }

    /// A header parameter.
    pub fn parameter(&self, name: &str) -> Option<&'a str> {
        parameter(self.parameters, name)
    }

    /// The tag.
    pub fn tag(&self) -> Option<&'a str> {
        self.parameter("tag").filter(|tag| !tag.is_empty())
    }

    /// The user of the URI, percent-decoded; the number of a `tel:` URI.
    pub fn user(&self) -> Option<Cow<'a, str>> {
        let (scheme, rest) = split_scheme(self.uri);
        if scheme.eq_ignore_ascii_case("tel") {
            return Some(Cow::Borrowed(until(rest, ";?")));
        }
        let (user, _) = until(rest, "?").rsplit_once('@')?;
        // Without the parameters of a telephone number (RFC 3966), and without a password.
        let user = until(user, ";:");
        Some(decode(user)).filter(|user| !user.is_empty())
    }

    /// The host of the URI, without port; an IPv6 address without brackets.
    pub fn host(&self) -> Option<&'a str> {
        let (_, rest) = split_scheme(self.uri);
        let rest = match until(rest, "?").rsplit_once('@') {
            Some((_, host)) => host,
            None => rest,
        };
        let rest = until(rest, ";?");
        let host = match rest.strip_prefix('[') {
            Some(inner) => until(inner, "]"),
            None => until(rest, ":"),
        };
        Some(host).filter(|host| !host.is_empty())
    }
}

/// Where the display name ends and the URI begins.
fn end_of_display(value: &str) -> usize {
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in value.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '<' if !quoted => return at,
            _ => {}
        }
    }
    0
}

/// The value of a parameter; empty if it has none.
pub fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    parameters.split(';').find_map(|one| {
        let (key, value) = one.split_once('=').unwrap_or((one, ""));
        key.trim()
            .eq_ignore_ascii_case(name)
            .then(|| value.trim().trim_matches('"'))
    })
}

fn split_scheme(uri: &str) -> (&str, &str) {
    match uri.split_once(':') {
        Some((scheme, rest))
            if ["sip", "sips", "tel"]
                .iter()
                .any(|known| scheme.eq_ignore_ascii_case(known)) =>
        {
            (scheme, rest)
        }
        _ => ("sip", uri),
    }
}

fn until<'a>(text: &'a str, ends: &str) -> &'a str {
    text.split(|c| ends.contains(c)).next().unwrap_or_default()
}

/// Percent-decodes a text; if the result is not UTF-8, the text stays as it is.
pub fn decode(text: &str) -> Cow<'_, str> {
    percent_decode_str(text)
        .decode_utf8()
        .unwrap_or(Cow::Borrowed(text))
}

/// Percent-encodes a user for a URI.
pub fn encode_user(user: &str) -> String {
    utf8_percent_encode(user, OUTSIDE_USER).to_string()
}

/// A quoted display name, without control characters.
pub fn quote(name: &str) -> String {
    let plain: String = name.chars().filter(|c| !c.is_control()).collect();
    format!("\"{}\"", plain.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for (value, user, host, tag) in [
            (
                "\"A; <x>\" <sip:+1415@Example.org:5060;user=phone>;tag=a1",
                Some("+1415"),
                Some("Example.org"),
                Some("a1"),
            ),
            (
                "sip:bob@[2001:db8::1]:5060;tag=b",
                Some("bob"),
                Some("2001:db8::1"),
                Some("b"),
            ),
            (
                "<sips:%2B44;phone-context=x@h>",
                Some("+44"),
                Some("h"),
                None,
            ),
            (
                "<tel:+1-201-555-0123;ext=1>",
                Some("+1-201-555-0123"),
                Some("+1-201-555-0123"),
                None,
            ),
            ("host.example", None, Some("host.example"), None),
            ("<sip:gw.example;lr>", None, Some("gw.example"), None),
            ("", None, None, None),
        ] {
            let address = Address::parse(value);
            assert_eq!(address.user().as_deref(), user, "{value}");
            assert_eq!(address.host(), host, "{value}");
            assert_eq!(address.tag(), tag, "{value}");
        }
        let named = Address::parse("\"A \\\" b\" <sip:x@y>");
        assert_eq!(named.display, Some("\"A \\\" b\""));
    }

    #[test]
    fn what_is_encoded_is_decoded_to_the_same() {
        assert_eq!(encode_user("#31#+1@x"), "%2331%23+1%40x");
        assert_eq!(decode("%2331%23+1%40x"), "#31#+1@x");
        assert_eq!(decode("%zz%4"), "%zz%4");
    }

    proptest! {
        #[test]
        fn nothing_is_too_broken(value in "\\PC{0,60}") {
            let address = Address::parse(&value);
            let _ = (address.user(), address.host(), address.tag());
            prop_assert_eq!(decode(&encode_user(&value)).into_owned(), value);
        }
    }
}
