//! What the other side of a call wants when it sends a REFER (RFC 3515): somebody else in its place.

use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Request, StatusCode};

use super::dialog::Body;
use super::header::{Address, decode};

/// The longest URI that is read.
const MAX_URI: usize = 1_024;

/// A wish to be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferRequest {
    /// The URI of whom to call, without headers.
    pub uri: String,
    /// The value of `Replaces` for the INVITE.
    pub replaces: Option<String>,
    /// The CSeq of the REFER, which names its subscription.
    pub id: u32,
}

impl ReferRequest {
    /// `None` unless one party is named that could be called.
    pub(super) fn read(request: &Request) -> Option<Self> {
        let named = request.headers.iter().filter_map(|header| match header {
            Header::ReferTo(value) => Some(value.value()),
            Header::Other(name, value) if name.eq_ignore_ascii_case("r") => Some(value.as_str()),
            _ => None,
        });
        let mut named = named.collect::<Vec<_>>().into_iter();
        let (value, None) = (named.next()?, named.next()) else {
            return None;
        };
        let uri = Address::parse(value).uri;
        let (uri, headers) = uri.split_once('?').unwrap_or((uri, ""));
        let mut headers = headers.split('&').filter_map(|one| one.split_once('='));
        let replaces = headers.find(|(name, _)| name.eq_ignore_ascii_case("replaces"));
        let replaces = replaces.map(|(_, value)| decode(value).into_owned());
        let is_sound = |text: &str| text.len() <= MAX_URI && !text.contains(char::is_control);
        let all_sound = is_sound(uri) && replaces.as_deref().is_none_or(is_sound);
        (!uri.is_empty() && all_sound).then_some(Self {
            uri: uri.to_owned(),
            replaces,
            id: request.cseq_header().ok()?.seq().ok()?,
        })
    }
}

/// The headers and the body of a NOTIFY that tells how far a REFER is.
pub(super) fn notification(id: u32, code: u16) -> (Vec<Header>, Body) {
    let state = if code < 200 {
        "active;expires=60"
    } else {
        "terminated;reason=noresource"
    };
    let headers = vec![
        Header::Event(format!("refer;id={id}").into()),
        Header::SubscriptionState(state.into()),
    ];
    let body = Body {
        kind: "message/sipfrag;version=2.0",
        bytes: format!("SIP/2.0 {}\r\n", StatusCode::from(code)).into_bytes(),
    };
    (headers, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &str) -> Option<ReferRequest> {
        let text = format!(
            "REFER sip:a@h SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:b@h>;tag=1\r\nTo: <sip:a@h>;tag=2\r\n\
             Call-ID: c\r\nCSeq: 7 REFER\r\n{headers}Content-Length: 0\r\n\r\n"
        );
        ReferRequest::read(&Request::try_from(text.as_bytes()).unwrap())
    }

    #[test]
    fn one_party_is_named_with_the_dialog_that_it_leaves() {
        let wish = |uri: &str, replaces: Option<&str>| {
            Some(ReferRequest {
                uri: uri.to_owned(),
                replaces: replaces.map(str::to_owned),
                id: 7,
            })
        };
        for (headers, meant) in [
            (
                "Refer-To: <sip:carol@h:5062;transport=tcp>\r\n",
                wish("sip:carol@h:5062;transport=tcp", None),
            ),
            (
                "Refer-To: \"Carol\" <sip:c@h>;x=1\r\n",
                wish("sip:c@h", None),
            ),
            (
                "Refer-To: <sip:c@h?Require=replaces&Replaces=a%40b%3Bto-tag%3D1%3Bfrom-tag%3D2>\r\n",
                wish("sip:c@h", Some("a@b;to-tag=1;from-tag=2")),
            ),
            ("Refer-To: <sip:c@h?Replaces=a%0D%0AX-B%3A1>\r\n", None),
            ("Refer-To: <sip:c@h>\r\nRefer-To: <sip:d@h>\r\n", None),
            ("Refer-To: <>\r\n", None),
            ("", None),
        ] {
            assert_eq!(read(headers), meant, "{headers}");
        }
    }

    #[test]
    fn how_far_it_is_reads_as_a_status() {
        for (code, told, state) in [
            (100, "SIP/2.0 100 Trying\r\n", "active"),
            (200, "SIP/2.0 200 OK\r\n", "terminated"),
            (486, "SIP/2.0 486 Busy Here\r\n", "terminated"),
        ] {
            let (headers, body) = notification(7, code);
            assert_eq!(body.bytes, told.as_bytes());
            assert!(headers[1].value().starts_with(state), "{}", headers[1]);
        }
    }
}
