//! REGISTER as a server (RFC 3261 section 10.3), for the telephones of the settings. It keeps no transactions: a request says
//! everything, and one that is repeated does the same.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rsipstack::sip::prelude::HeadersExt as _;
use rsipstack::sip::{Header, Request};

use super::super::phones::{LONGEST, Phones, Place, SHORTEST};
use super::challenge::{Answer, Asking, Challenger, REALM};
use super::flow::Protocol;
use super::header::Address;
use vivavoce_telemetry::metrics::{self, SipRefusal};

/// What a REGISTER is answered.
pub(super) struct Reply {
    pub code: u16,
    pub headers: Vec<Header>,
}

impl Reply {
    const fn new(code: u16) -> Self {
        Self {
            code,
            headers: Vec::new(),
        }
    }

    fn with(code: u16, header: Header) -> Self {
        Self {
            code,
            headers: vec![header],
        }
    }
}

/// Carries out a request of a source that may call.
pub(super) fn register(
    phones: &Phones,
    challenger: &Challenger,
    request: &Request,
    (source, protocol): (SocketAddr, Protocol),
    now: Instant,
) -> Reply {
    let (Ok(to), Ok(call_id)) = (request.to_header(), request.call_id_header()) else {
        return Reply::new(400);
    };
    let user = Address::parse(to.value()).user().unwrap_or_default();
    let answers: Vec<String> = request
        .headers
        .iter()
        .filter(|header| matches!(header, Header::Authorization(_)))
        .map(|header| header.value().to_owned())
        .collect();
    let asking = Asking {
        method: "REGISTER",
        call_id: call_id.value(),
        source: source.ip(),
        answers: &answers,
    };
    // Who asks is not told which names there are.
    let credentials = phones
        .credentials(&user)
        .unwrap_or_else(|| super::digest::Credentials {
            username: user.clone().into_owned(),
            password: format!("{:016x}", crate::random::u64()),
        });
    match challenger.check(REALM, &credentials, &asking, now) {
        Answer::Right => place(phones, request, &user, (source, protocol), now),
        asked @ (Answer::Missing | Answer::Stale) => {
            let stale = asked == Answer::Stale;
            let challenge = challenger.challenge(REALM, &asking, stale, now);
            Reply::with(401, Header::WwwAuthenticate(challenge.into()))
        }
        Answer::Wrong | Answer::Guessing => {
            metrics::sip_refused(SipRefusal::Password);
            tracing::warn!(%source, "refused to register a telephone: wrong name or password");
            Reply::new(403)
        }
    }
}

fn place(
    phones: &Phones,
    request: &Request,
    user: &str,
    (source, protocol): (SocketAddr, Protocol),
    now: Instant,
) -> Reply {
    let seconds = |text: &str| text.trim().parse().map(Duration::from_secs).ok();
    let expires = request
        .expires_header()
        .and_then(|one| seconds(one.value()));
    let contact = request.headers.iter().find_map(|header| match header {
        Header::Contact(contact) => Some(contact.value().trim()),
        _ => None,
    });
    if let Some(contact) = contact {
        let address = Address::parse(contact);
        let own = address.parameter("expires").and_then(seconds);
        let wished = own.or(expires).unwrap_or(LONGEST);
        if wished.is_zero() {
            phones.set(user, None, now);
            tracing::info!(%source, "a telephone has signed off");
        } else if wished < SHORTEST {
            let least = SHORTEST.as_secs().to_string();
            return Reply::with(423, Header::Other("Min-Expires".to_owned(), least));
        } else {
            let known = phones.place(user, now);
            let place = Place {
                contact: address.uri.to_owned(),
                protocol,
                source,
                until: now + wished.min(LONGEST),
            };
            let is_new = known.is_none_or(|known| known.source != source);
            if !phones.set(user, Some(place), now) {
                return Reply::new(400);
            }
            if is_new {
                tracing::info!(%source, protocol = protocol.name(), "a telephone has registered");
            }
        }
    }
    let mut reply = Reply::new(200);
    if let Some(place) = phones.place(user, now) {
        let left = place.until.saturating_duration_since(now).as_secs();
        let contact = format!("<{}>;expires={left}", place.contact);
        reply.headers.push(Header::Contact(contact.into()));
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::super::super::phones::Phone;
    use super::super::digest::{Asker, Authenticator, Credentials};
    use super::*;

    fn request(contact: &str, authorization: Option<&str>) -> Request {
        let authorization = authorization.map(|value| format!("Authorization: {value}\r\n"));
        let text = format!(
            "REGISTER sip:h SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:bob@h>;tag=f\r\nTo: <sip:bob@h>\r\n\
             Call-ID: c\r\nCSeq: 1 REGISTER\r\n{contact}{}Content-Length: 0\r\n\r\n",
            authorization.unwrap_or_default()
        );
        Request::try_from(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_telephone_registers_with_its_password_for_a_while() {
        let credentials = |password: &str| Credentials {
            username: "bob".to_owned(),
            password: password.to_owned(),
        };
        let phone = Phone {
            credentials: credentials("right"),
            tenant: None,
        };
        let phones = Phones::new(vec![phone]);
        let now = Instant::now();
        let challenger = Challenger::new(now);
        let from = ("192.0.2.1:5080".parse().unwrap(), Protocol::Udp);
        let ask = |request: &Request, ms: u64| {
            let now = now + Duration::from_millis(ms);
            register(&phones, &challenger, request, from, now)
        };
        let with = |ms: u64, password: &str, contact: &str| {
            let asked = ask(&request(contact, None), ms);
            assert_eq!(asked.code, 401);
            let mut authenticator = Authenticator::new(Some(credentials(password)));
            authenticator.begin();
            assert!(
                authenticator.challenged(Asker::Server, asked.headers.iter().map(Header::value))
            );
            let answers = authenticator.answers("REGISTER", "sip:h");
            ask(&request(contact, Some(&answers[0].1)), ms)
        };
        let contact = "Contact: <sip:bob@192.0.2.1:5080>\r\nExpires: 120\r\n";
        assert_eq!(with(1, "wrong", contact).code, 403);
        assert!(phones.place("bob", now).is_none());
        let registered = with(2, "right", contact);
        assert_eq!(registered.code, 200);
        assert_eq!(
            registered.headers[0].value(),
            "<sip:bob@192.0.2.1:5080>;expires=120"
        );
        assert!(phones.find("bob", None, now).is_some());
        let brief = with(
            3,
            "right",
            "Contact: <sip:bob@192.0.2.1:5080>;expires=5\r\n",
        );
        assert_eq!((brief.code, brief.headers[0].value()), (423, "60"));
        assert_eq!(with(4, "right", "Contact: *\r\nExpires: 0\r\n").code, 200);
        assert!(phones.find("bob", None, now).is_none());
    }
}
