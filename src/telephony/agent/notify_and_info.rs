//! Progress of a transfer (RFC 3515): the response fragment in a NOTIFY, and whether the subscription has ended. Also DTMF
//! digits in INFO.

use rsipstack::sip::{Header, Request};

use super::header::parameter;

/// A NOTIFY about a REFER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification {
    /// The status code of the transfer target's response so far.
    pub code: Option<u16>,
    /// Whether the subscription has ended.
    pub last: bool,
}

impl Notification {
    /// `None` if it is for another event.
    pub(super) fn read(request: &Request) -> Option<Self> {
        let package = event(request)?.split(';').next()?.trim();
        if !package.eq_ignore_ascii_case("refer") {
            return None;
        }
        let state = request.headers.iter().find_map(|header| match header {
            Header::SubscriptionState(value) => value.value().split(';').next().map(str::trim),
            _ => None,
        });
        Some(Self {
            code: std::str::from_utf8(&request.body).ok().and_then(fragment),
            last: state.is_some_and(|state| state.eq_ignore_ascii_case("terminated")),
        })
    }
}

/// The CSeq of the REFER that is meant (RFC 3515 section 2.4.6). Some peers give none, and some a wrong one.
pub(super) fn id(request: &Request) -> Option<u32> {
    parameter(event(request)?, "id")?.parse().ok()
}

fn event(request: &Request) -> Option<&str> {
    let mut headers = request.headers.iter();
    headers.find_map(|header| match header {
        Header::Event(value) => Some(value.value()),
        // The compact form (RFC 6665 section 8.2.1).
        Header::Other(name, value) if name.eq_ignore_ascii_case("o") => Some(value.as_str()),
        _ => None,
    })
}

/// The status code in a message fragment (RFC 3420).
fn fragment(body: &str) -> Option<u16> {
    let line = body.lines().map(str::trim_start).find(|line| {
        let version = line.get(..4);
        version.is_some_and(|version| version.eq_ignore_ascii_case("SIP/"))
    })?;
    let code = line.split_whitespace().nth(1)?.parse().ok()?;
    (100..700).contains(&code).then_some(code)
}

/// The DTMF digit of an INFO, if it is one.
pub(super) fn digit(request: &Request) -> Option<char> {
    let kind = request.headers.iter().find_map(|header| match header {
        Header::ContentType(kind) => Some(kind.value().to_ascii_lowercase()),
        _ => None,
    })?;
    let body = std::str::from_utf8(&request.body).ok()?;
    let signal = if kind.starts_with("application/dtmf-relay") {
        let line = body.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            name.trim().eq_ignore_ascii_case("signal").then_some(value)
        });
        line?
    } else if kind.starts_with("application/dtmf") {
        body
    } else {
        return None;
    };
    let mut signal = signal.trim().chars();
    let key = signal.next()?.to_ascii_uppercase();
    (signal.next().is_none() && "0123456789*#ABCD".contains(key)).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notify(more: &str, body: &str) -> Request {
        let text = format!(
            "NOTIFY sip:a@h SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:b@h>;tag=1\r\nTo: <sip:a@h>;tag=2\r\n\
             Call-ID: c\r\nCSeq: 1 NOTIFY\r\n{more}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        Request::try_from(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_outcome_of_a_transfer_is_read_from_its_notifications() {
        for (more, body, code, last) in [
            (
                "Event: refer\r\nSubscription-State: active;expires=60\r\n",
                "SIP/2.0 100 Trying\r\n",
                Some(100),
                false,
            ),
            (
                "Event: refer;id=93\r\nSubscription-State: terminated;reason=noresource\r\n",
                "SIP/2.0 200 OK",
                Some(200),
                true,
            ),
            (
                "o: Refer\r\nSubscription-State: Terminated\r\n",
                "",
                None,
                true,
            ),
            ("Event: refer\r\n", "SIP/2.0 9999 Odd", None, false),
        ] {
            let read = Notification::read(&notify(more, body));
            assert_eq!(read, Some(Notification { code, last }), "{more}{body}");
        }
        for (more, meant) in [
            ("Event: refer;id=93\r\n", Some(93)),
            ("o: refer ; id=93\r\n", Some(93)),
            ("Event: refer\r\n", None),
            ("Event: refer;id=first\r\n", None),
        ] {
            assert_eq!(id(&notify(more, "")), meant, "{more}");
        }
        assert_eq!(Notification::read(&notify("Event: presence\r\n", "")), None);
        assert_eq!(Notification::read(&notify("", "")), None);
    }

    #[test]
    fn keys_in_signalling_are_heard() {
        let relay = "Content-Type: application/dtmf-relay\r\n";
        for (more, body, key) in [
            (relay, "Signal= 5\r\nDuration= 160\r\n", Some('5')),
            (relay, "Signal=#\r\n", Some('#')),
            ("Content-Type: application/dtmf\r\n", "a", Some('A')),
            (relay, "Signal=flash\r\n", None),
            ("Content-Type: text/plain\r\n", "5", None),
        ] {
            assert_eq!(digit(&notify(more, body)), key, "{body}");
        }
    }
}
