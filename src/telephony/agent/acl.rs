//! Access control of the user agent, decided before any state is kept: calls are accepted from configured networks only,
//! and a request that belongs to no call is refused statelessly. A flood costs no more than its refusals.

use std::net::IpAddr;
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

    /// `in_dialog` says whether the request belongs to one of our dialogs.
    pub fn judge(&self, request: &Request, from: IpAddr, in_dialog: bool) -> Verdict {
        match request.method {
            // Who may not call has received no response that it could acknowledge.
            Method::Ack if !in_dialog && !self.allows(from) => Verdict::Drop,
            // They belong to transactions: the stack matches them, or drops them without keeping state.
            Method::Ack | Method::Cancel => Verdict::Take,
            _ if to_tag(request).is_some() => {
                if in_dialog {
                    Verdict::Take
                } else {
                    Verdict::Answer(481)
                }
            }
            _ if !self.allows(from) => Verdict::Answer(403),
            Method::Invite => Verdict::Take,
            // Needs no state (RFC 3261 section 8.2.7).
            Method::Options => Verdict::Answer(200),
            Method::Register if !self.phones.is_empty() => Verdict::Register,
            _ => Verdict::Answer(405),
        }
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

    use super::*;

    fn request(method: &str, to: &str) -> Request {
        let text = format!(
            "{method} sip:1@h SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@h>;tag=f\r\nTo: {to}\r\n\
             Call-ID: c\r\nCSeq: 1 {method}\r\nContent-Length: 0\r\n\r\n"
        );
        Request::try_from(text.as_bytes()).unwrap()
    }

    #[test]
    fn who_may_not_call_acknowledges_only_in_a_call() {
        let acl = Acl::new(vec!["192.0.2.0/24".parse().unwrap()]);
        let judge = |from: &str, in_dialog| {
            let request = request("ACK", "<sip:1@h>");
            acl.judge(&request, from.parse().unwrap(), in_dialog)
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
                from.parse().unwrap(),
                false,
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
        let here = "127.0.0.1".parse().unwrap();
        assert_eq!(
            closed.judge(&invite, here, false),
            Verdict::Answer(403),
            "closed unless it is opened"
        );
    }

    #[test]
    fn what_needs_no_call_is_answered_and_forgotten() {
        let acl = Acl::new(vec!["192.0.2.0/24".parse().unwrap()]);
        let from = "192.0.2.9".parse().unwrap();
        for (method, code) in [
            ("OPTIONS", 200),
            ("REGISTER", 405),
            ("BYE", 405),
            ("NOTIFY", 405),
        ] {
            let request = request(method, "<sip:1@h>");
            assert_eq!(
                acl.judge(&request, from, false),
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
        let from = "203.0.113.7".parse().unwrap();
        assert_eq!(acl.judge(&bye, from, true), Verdict::Take);
        assert_eq!(acl.judge(&bye, from, false), Verdict::Answer(481));
    }
}
