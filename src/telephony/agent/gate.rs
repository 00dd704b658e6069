//! Who may send what, decided before anything is kept: calls come from configured addresses only, and whatever belongs to no
//! call is refused without a trace. A flood costs its refusals.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Method, Request, StatusCode};

use super::header::Address;

/// Refusals are logged so often at most.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What is to be done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Take,
    Refuse(u16),
}

#[derive(Debug)]
pub(super) struct Gate {
    allowed: Vec<IpNet>,
    refusals: Mutex<Refusals>,
}

#[derive(Debug, Default)]
struct Refusals {
    logged: Option<Instant>,
    since: u64,
}

impl Gate {
    pub fn new(allowed: Vec<IpNet>) -> Self {
        Self {
            allowed,
            refusals: Mutex::default(),
        }
    }

    /// Whether calls are taken from there. An IPv4 address within IPv6 is that IPv4 address.
    pub fn allows(&self, from: IpAddr) -> bool {
        let from = from.to_canonical();
        self.allowed.iter().any(|network| network.contains(&from))
    }

    /// `in_dialog` tells whether a request that names a dialog names one of ours.
    pub fn judge(&self, request: &Request, from: IpAddr, in_dialog: bool) -> Verdict {
        match request.method {
            // These belong to transactions: the stack knows them, or drops and refuses them without keeping anything.
            Method::Ack | Method::Cancel => Verdict::Take,
            _ if to_tag(request).is_some() => {
                if in_dialog {
                    Verdict::Take
                } else {
                    Verdict::Refuse(481)
                }
            }
            _ if self.allows(from) => Verdict::Take,
            _ => Verdict::Refuse(403),
        }
    }

    /// Says now and then that somebody was refused.
    pub fn log_refusal(&self, code: u16, from: IpAddr, now: Instant) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.since += 1;
        let due = refusals
            .logged
            .is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL);
        if due {
            let times = std::mem::take(&mut refusals.since);
            refusals.logged = Some(now);
            tracing::info!(code, %from, times, "refused a SIP request");
        }
    }
}

/// The tag of `To`: a request that has one belongs to a dialog.
pub(super) fn to_tag(request: &Request) -> Option<String> {
    let to = request.to_header().ok()?;
    Address::parse(to.value()).tag().map(str::to_owned)
}

/// A refusal that leaves nothing behind.
pub(super) fn refusal(
    endpoint: &rsipstack::transaction::endpoint::EndpointInner,
    request: &Request,
    code: u16,
) -> rsipstack::sip::Response {
    let mut response = endpoint.make_response(request, StatusCode::from(code), None);
    if to_tag(request).is_none() {
        for header in response.headers.iter_mut() {
            if let Header::To(to) = header {
                // The same each time, as retransmissions must get the same answer (RFC 3261 section 8.2.7).
                to.replace(format!("{};tag=none", to.value()));
            }
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, to: &str) -> Request {
        let text = format!(
            "{method} sip:1@h SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@h>;tag=f\r\nTo: {to}\r\n\
             Call-ID: c\r\nCSeq: 1 {method}\r\nContent-Length: 0\r\n\r\n"
        );
        Request::try_from(text.as_bytes()).unwrap()
    }

    #[test]
    fn calls_come_from_allowed_addresses_only() {
        let gate = Gate::new(vec![
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::/32".parse().unwrap(),
        ]);
        let judge = |from: &str| {
            gate.judge(
                &request("INVITE", "<sip:1@h>"),
                from.parse().unwrap(),
                false,
            )
        };
        for from in ["192.0.2.9", "::ffff:192.0.2.9", "2001:db8::9"] {
            assert_eq!(judge(from), Verdict::Take, "{from}");
        }
        for from in ["192.0.3.9", "::ffff:192.0.3.9", "::1", "2001:db9::1"] {
            assert_eq!(judge(from), Verdict::Refuse(403), "{from}");
        }
        let closed = Gate::new(Vec::new());
        let invite = request("INVITE", "<sip:1@h>");
        let here = "127.0.0.1".parse().unwrap();
        assert_eq!(
            closed.judge(&invite, here, false),
            Verdict::Refuse(403),
            "closed unless it is opened"
        );
    }

    #[test]
    fn whoever_is_in_a_call_is_heard_wherever_they_send_from() {
        let gate = Gate::new(Vec::new());
        let bye = request("BYE", "<sip:1@h>;tag=ours");
        let from = "203.0.113.7".parse().unwrap();
        assert_eq!(gate.judge(&bye, from, true), Verdict::Take);
        assert_eq!(gate.judge(&bye, from, false), Verdict::Refuse(481));
    }
}
