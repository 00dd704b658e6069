//! Access control of the user agent, decided before any state is kept: calls are accepted from configured networks only,
//! and a request that belongs to no call is refused statelessly. A flood costs no more than its refusals.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use ipnet::IpNet;
use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Method, Request, StatusCode};

use super::super::phones::Phones;
use super::super::refusals::Refusals;
use super::super::registrations::Registrars;
use super::dialog::ALLOW;
use super::flow::Protocol;
use super::header::Address;
use vivavoce_core::log_interval::LogInterval;
use vivavoce_core::token_bucket::TokenBucket;

/// Stateless responses each second, and in a burst: to networks that may call, and to all others. A request left without a
/// response is retransmitted; a response is hardly larger than its request, so that it is no use for amplification.
const ANSWERS_PER_SECOND: u32 = 2_000;
/// `Retry-After` of a 503, in seconds: by then the calls on trial that were in the way are over, or give way.
pub(super) const RETRY_AFTER_S: u32 = 1;

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Take,
    /// A telephone wants to register.
    Register,
    /// Respond statelessly with this status code.
    Answer(u16),
    /// Nothing is to be answered.
    Drop,
}

#[derive(Debug)]
pub(super) struct Acl {
    allowed: Vec<IpNet>,
    /// The calls that were refused.
    pub refused: Refusals,
    /// Where this server has said that calls may come from.
    pub registrars: Registrars,
    /// Telephones that may register.
    pub phones: Phones,
    /// Whether REFER is taken.
    pub refers: bool,
    /// Whether calls may take the place of others.
    pub replaces: bool,
    refusals: Mutex<LogInterval>,
    /// For networks that may call, and for all others.
    answers: Mutex<[TokenBucket; 2]>,
}

impl Acl {
    #[cfg(test)]
    pub fn new(allowed: Vec<IpNet>) -> Self {
        Self::with(allowed, Phones::default())
    }

    /// Calls come from these networks, where these telephones may register.
    pub fn with(allowed: Vec<IpNet>, phones: Phones) -> Self {
        Self {
            phones,
            refers: false,
            replaces: false,
            allowed,
            refused: Refusals::default(),
            registrars: Registrars::default(),
            refusals: Mutex::default(),
            answers: Mutex::new([TokenBucket::new(ANSWERS_PER_SECOND, ANSWERS_PER_SECOND); 2]),
        }
    }

    /// Whether calls are accepted from this address. An IPv4-mapped IPv6 address counts as the IPv4 address.
    pub fn allows(&self, from: IpAddr) -> bool {
        let from = from.to_canonical();
        self.allowed.iter().any(|network| network.contains(&from)) || self.registrars.has(from)
    }

    /// Whether calls are accepted from this source. A page of any site can make a browser connect from an address that may call:
    /// over WebSocket calls are accepted from telephones that have registered over it, wherever they are, and from nobody else.
    pub fn allows_over(&self, (from, protocol): (SocketAddr, Protocol), now: Instant) -> bool {
        if protocol.is_web() {
            self.phones.is_at(protocol, from, now)
        } else {
            self.allows(from.ip())
        }
    }

    /// `in_dialog` says whether the request belongs to one of our dialogs.
    pub fn judge(
        &self,
        request: &Request,
        source: (SocketAddr, Protocol),
        in_dialog: bool,
        now: Instant,
    ) -> Verdict {
        let allowed = self.allows_over(source, now);
        match request.method {
            // Who may not call has received no response that it could acknowledge.
            Method::Ack if !in_dialog && !allowed => Verdict::Drop,
            // They belong to transactions: the stack matches them, or drops them without keeping state.
            Method::Ack | Method::Cancel => Verdict::Take,
            _ if to_tag(request).is_some() => {
                if in_dialog {
                    Verdict::Take
                } else {
                    Verdict::Answer(481)
                }
            }
            // Its password says who it is.
            Method::Register if source.1.is_web() && !self.phones.is_empty() => Verdict::Register,
            _ if !allowed => Verdict::Answer(403),
            Method::Invite if source.1.is_web() && !self.is_itself(request, source, now) => {
                Verdict::Answer(403)
            }
            Method::Invite => Verdict::Take,
            // Needs no state (RFC 3261 section 8.2.7).
            Method::Options => Verdict::Answer(200),
            Method::Register if !self.phones.is_empty() => Verdict::Register,
            _ => Verdict::Answer(405),
        }
    }

    /// Whether a telephone calls by its own name.
    fn is_itself(&self, request: &Request, source: (SocketAddr, Protocol), now: Instant) -> bool {
        let from = request.from_header().ok();
        let user = from.and_then(|from| Some(Address::parse(from.value()).user()?.into_owned()));
        let place = user.and_then(|user| self.phones.place(&user, now));
        place.is_some_and(|place| (place.source, place.protocol) == source)
    }

    /// Whether a response to this address is within the limit.
    pub fn may_answer(&self, from: IpAddr, now: Instant) -> bool {
        let stranger = usize::from(!self.allows(from));
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let allowance = answers.get_mut(stranger);
        allowance.is_some_and(|allowance| allowance.take(1.0, now))
    }

    /// Logs refusals, at most once per interval.
    pub fn log_refusal(&self, code: u16, from: IpAddr, now: Instant) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = refusals.count(now) {
            tracing::info!(code, %from, times, "refused a SIP request");
        }
    }
}

/// The tag of `To`: a request with one belongs to a dialog.
pub(super) fn to_tag(request: &Request) -> Option<String> {
    let to = request.to_header().ok()?;
    Address::parse(to.value()).tag().map(str::to_owned)
}

/// A stateless response.
pub(super) fn answer(
    endpoint: &rsipstack::transaction::endpoint::EndpointInner,
    request: &Request,
    code: u16,
) -> rsipstack::sip::Response {
    let mut response = endpoint.make_response(request, StatusCode::from(code), None);
    if matches!(code, 200 | 405) {
        let told = [
            Header::Allow(ALLOW.into()),
            Header::Accept("application/sdp".into()),
        ];
        response.headers.extend(told.into());
    } else {
        // No larger than necessary.
        let said = |header: &Header| !matches!(header, Header::UserAgent(_));
        response.headers.retain(said);
        if code == 503 {
            response
                .headers
                .push(Header::RetryAfter(RETRY_AFTER_S.to_string().into()));
        }
    }
    if to_tag(request).is_none() {
        for header in response.headers.iter_mut() {
            if let Header::To(to) = header {
                // The same each time, because retransmissions must get the same response (RFC 3261 section 8.2.7).
                to.replace(format!("{};tag=none", to.value()));
            }
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::phones::{Phone, Place};
    use super::super::digest::Credentials;
    use super::*;

    fn request(method: &str, to: &str) -> Request {
        let text = format!(
            "{method} sip:1@h SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@h>;tag=f\r\nTo: {to}\r\n\
             Call-ID: c\r\nCSeq: 1 {method}\r\nContent-Length: 0\r\n\r\n"
        );
        Request::try_from(text.as_bytes()).unwrap()
    }

    fn over_udp(from: &str) -> (SocketAddr, Protocol) {
        (
            (from.parse::<IpAddr>().unwrap(), 5060).into(),
            Protocol::Udp,
        )
    }

    #[test]
    fn who_may_not_call_acknowledges_only_in_a_call() {
        let acl = Acl::new(vec!["192.0.2.0/24".parse().unwrap()]);
        let judge = |from: &str, in_dialog| {
            let request = request("ACK", "<sip:1@h>");
            acl.judge(&request, over_udp(from), in_dialog, Instant::now())
        };
        assert_eq!(judge("192.0.2.9", false), Verdict::Take);
        assert_eq!(judge("192.0.3.9", true), Verdict::Take);
        assert_eq!(judge("192.0.3.9", false), Verdict::Drop);
    }

    #[test]
    fn calls_come_from_allowed_addresses_only() {
        let acl = Acl::new(vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::/32".parse().unwrap(),
        ]);
        let judge = |from: &str| {
            acl.judge(
                &request("INVITE", "<sip:1@h>"),
                over_udp(from),
                false,
                Instant::now(),
            )
        };
        for from in ["192.0.2.9", "::ffff:192.0.2.9", "2001:db8::9"] {
            assert_eq!(judge(from), Verdict::Take, "{from}");
        }
        for from in ["192.0.3.9", "::ffff:192.0.3.9", "::1", "2001:db9::1"] {
            assert_eq!(judge(from), Verdict::Answer(403), "{from}");
        }
        let closed = Acl::new(Vec::new());
        let invite = request("INVITE", "<sip:1@h>");
        let here = over_udp("127.0.0.1");
        assert_eq!(
            closed.judge(&invite, here, false, Instant::now()),
            Verdict::Answer(403),
            "closed unless it is opened"
        );
    }

    #[test]
    fn what_needs_no_call_is_answered_and_forgotten() {
        let acl = Acl::new(vec!["192.0.2.0/24".parse().unwrap()]);
        let from = over_udp("192.0.2.9");
        for (method, code) in [
            ("OPTIONS", 200),
            ("REGISTER", 405),
            ("BYE", 405),
            ("NOTIFY", 405),
        ] {
            let request = request(method, "<sip:1@h>");
            assert_eq!(
                acl.judge(&request, from, false, Instant::now()),
                Verdict::Answer(code),
                "{method}"
            );
        }
    }

    #[test]
    fn a_flood_of_strangers_is_answered_so_often_and_takes_no_answer_from_those_who_may_call() {
        let acl = Acl::new(vec!["192.0.2.0/24".parse().unwrap()]);
        let (stranger, known) = ("203.0.113.7".parse().unwrap(), "192.0.2.9".parse().unwrap());
        let now = Instant::now();
        let answered = (0..100_000)
            .filter(|_| acl.may_answer(stranger, now))
            .count();
        assert_eq!(answered, ANSWERS_PER_SECOND as usize);
        assert!(acl.may_answer(known, now));
        assert!(acl.may_answer(stranger, now + Duration::from_millis(10)));
    }

    #[test]
    fn whoever_is_in_a_call_is_heard_wherever_they_send_from() {
        let acl = Acl::new(Vec::new());
        let bye = request("BYE", "<sip:1@h>;tag=ours");
        let from = over_udp("203.0.113.7");
        assert_eq!(acl.judge(&bye, from, true, Instant::now()), Verdict::Take);
        assert_eq!(
            acl.judge(&bye, from, false, Instant::now()),
            Verdict::Answer(481)
        );
    }

    #[test]
    fn over_websocket_telephones_call_that_have_registered_over_it_and_by_their_own_name() {
        let phone = |user: &str| Phone {
            credentials: Credentials {
                username: user.to_owned(),
                password: "pw".to_owned(),
            },
            tenant: None,
        };
        let phones = Phones::new(vec![phone("bob"), phone("eve")]);
        let everybody = vec!["0.0.0.0/0".parse().unwrap()];
        let acl = Acl::with(everybody, phones);
        let now = Instant::now();
        let source = ("192.0.2.9:50000".parse().unwrap(), Protocol::Wss);
        let judge = |method: &str, from: &str| {
            let mut request = request(method, "<sip:1@h>");
            let from = format!("<sip:{from}@h>;tag=f");
            request.headers.unique_push(Header::From(from.into()));
            acl.judge(&request, source, false, now)
        };
        assert_eq!(judge("REGISTER", "bob"), Verdict::Register);
        for method in ["INVITE", "OPTIONS"] {
            assert_eq!(
                judge(method, "bob"),
                Verdict::Answer(403),
                "from an allowed address"
            );
        }
        let place = Place {
            contact: "sip:x@y.invalid;transport=ws".to_owned(),
            protocol: Protocol::Wss,
            source: source.0,
            until: now + Duration::from_mins(1),
        };
        assert!(acl.phones.set("bob", Some(place), now));
        assert_eq!(judge("INVITE", "bob"), Verdict::Take);
        assert_eq!(
            judge("INVITE", "eve"),
            Verdict::Answer(403),
            "another one's name"
        );
        assert_eq!(judge("OPTIONS", "bob"), Verdict::Answer(200));
    }
}
