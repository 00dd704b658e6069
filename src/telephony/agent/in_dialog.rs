//! Requests within a dialog: re-INVITE and UPDATE, NOTIFY, INFO, BYE, and the responses to them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Method, Request, SipMessage, StatusCode};
use rsipstack::transaction::transaction::Transaction;
use tokio::sync::mpsc;

use super::client::{Caller, lock};
use super::dialog::{Body, sdp};
use super::leg::LegEvent;
use super::notify_and_info::Notification;
use super::referral::ReferRequest;

/// A 2xx to a re-INVITE is retransmitted for 32 s (64·T1).
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// An offer of the other side (re-INVITE, UPDATE). It is refused if dropped without a response.
pub struct Offered {
    /// The offer; none if we are to make one, or nothing changes.
    pub sdp: Option<String>,
    /// Whether we are to make the offer.
    pub offerless: bool,
    why: String,
    reply: Option<Reply>,
}

struct Reply {
    transaction: Transaction,
    caller: Arc<Caller>,
    events: mpsc::Sender<LegEvent>,
}

impl std::fmt::Debug for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Offered")
    }
}

impl Offered {
    /// Accepts the offer.
    pub fn accept(mut self, sdp: Option<String>) {
        self.respond(200, sdp);
    }

    /// Refuses the offer, with a warning for people; the call continues unchanged.
    pub fn refuse(mut self, code: u16, why: &str) {
        why.clone_into(&mut self.why);
        self.respond(code, None);
    }

    fn respond(&mut self, code: u16, answer: Option<String>) {
        let Some(mut reply) = self.reply.take() else {
            return;
        };
        let why = std::mem::take(&mut self.why);
        let offering = self.offerless && code == 200;
        if offering {
            lock(&reply.caller.dialog).offering = true;
        }
        tokio::spawn(async move {
            let request = reply.transaction.original.clone();
            let more = session_timer(&request);
            let mut response = response(&reply.caller, &request, code, answer, more);
            if !why.is_empty() {
                let told = lock(&reply.caller.flow).told;
                response.headers.push(warning(told, &why));
            }
            let sent = reply.transaction.respond(response).await.is_ok();
            let caller = Arc::clone(&reply.caller);
            if sent && request.method == Method::Invite {
                follow_invite_again(reply).await;
            }
            if offering {
                lock(&caller.dialog).offering = false;
            }
        });
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        self.respond(500, None);
    }
}

/// Waits until the response to a re-INVITE is acknowledged. Where a 2xx never is, the call ends (RFC 3261 section 13.3.1.4).
async fn follow_invite_again(mut reply: Reply) {
    let answered = Instant::now();
    while let Some(message) = reply.transaction.receive().await {
        let SipMessage::Request(request) = message else {
            continue;
        };
        if request.method == Method::Ack {
            if let Some(sdp) = sdp(&request, &request.body) {
                let event = LegEvent::Acknowledged { sdp: Some(sdp) };
                let _told = reply.events.send(event).await;
            }
            return;
        }
    }
    let accepted = reply.transaction.last_response.as_ref();
    let accepted = accepted.is_some_and(|last| last.status_code.code() / 100 == 2);
    // A connection that has closed is no answer: the ACK may come over another one.
    if accepted && answered.elapsed() >= UNACKNOWLEDGED {
        let _gone = reply.events.send(LegEvent::Unacknowledged).await;
    }
}

/// Handles the requests within a call, for as long as it is registered.
pub(super) async fn answer_requests(
    caller: Arc<Caller>,
    mut arriving: mpsc::Receiver<Box<Transaction>>,
    events: mpsc::Sender<LegEvent>,
) {
    while let Some(mut transaction) = arriving.recv().await {
        let refused = {
            let mut dialog = lock(&caller.dialog);
            if !dialog.is_theirs(&transaction.original) {
                Some(StatusCode::CallTransactionDoesNotExist)
            } else if !dialog.in_order(&transaction.original) {
                Some(StatusCode::ServerInternalError)
            } else {
                None
            }
        };
        if let Some(refused) = refused {
            let _refused = Box::pin(transaction.reply(refused)).await;
            continue;
        }
        // Boxed, as calls wait for requests nearly all the time.
        let event = Box::pin(answer_request(&caller, *transaction, &events)).await;
        if let Some(event) = event
            && events.send(event).await.is_err()
        {
            return;
        }
    }
}

async fn answer_request(
    caller: &Arc<Caller>,
    mut transaction: Transaction,
    events: &mpsc::Sender<LegEvent>,
) -> Option<LegEvent> {
    let request = transaction.original.clone();
    let (code, event) = match request.method {
        Method::Bye => (200, Some(LegEvent::Ended)),
        Method::Invite | Method::Update => {
            let sdp = sdp(&request, &request.body);
            let is_offer = sdp.is_some() || request.method == Method::Invite;
            if unsupported(&request).is_some() {
                (420, None)
            } else if is_offer && lock(&caller.dialog).offering {
                // Glare: both sides offer at the same time, and the other side should retry (RFC 3261 section 14.2).
                (491, None)
            } else {
                lock(&caller.dialog).retarget(&request);
                let offered = Offered {
                    offerless: sdp.is_none() && request.method == Method::Invite,
                    why: String::new(),
                    sdp,
                    reply: Some(Reply {
                        transaction,
                        caller: Arc::clone(caller),
                        events: events.clone(),
                    }),
                };
                return Some(LegEvent::Offered(Box::new(offered)));
            }
        }
        Method::Notify => match Notification::read(&request) {
            // For a transfer that was given up.
            Some(_) if is_old(caller, &request) => (200, None),
            Some(notification) => (200, Some(LegEvent::Notified(notification))),
            None => (489, None),
        },
        Method::Info => (
            200,
            super::notify_and_info::digit(&request).map(LegEvent::Digit),
        ),
        Method::Options => (200, None),
        Method::PRack if caller.reliable.take(&request) => (200, None),
        Method::PRack => (481, None),
        // It places a call to a target of the other side's choice, at our cost.
        Method::Refer if caller.transports.acl.refers => match ReferRequest::read(&request) {
            Some(wish) => (202, Some(LegEvent::Asked(wish))),
            None => (400, None),
        },
        _ => (405, None),
    };
    let flow = lock(&caller.flow).clone();
    let headers = lock(&caller.dialog).answer_headers(&flow);
    let _answered = transaction
        .reply_with(StatusCode::from(code), headers, None)
        .await;
    event
}

/// Whether a NOTIFY belongs to a transfer before the last.
fn is_old(caller: &Caller, request: &Request) -> bool {
    super::notify_and_info::id(request).is_some_and(|id| lock(&caller.dialog).is_old_refer(id))
}

/// A response within the dialog.
pub(super) fn response(
    caller: &Caller,
    request: &Request,
    code: u16,
    sdp: Option<String>,
    more: Vec<Header>,
) -> rsipstack::sip::Response {
    let flow = lock(&caller.flow).clone();
    let dialog = lock(&caller.dialog);
    let body = sdp.map(Body::sdp);
    let bytes = body.as_ref().map(|body| body.bytes.clone());
    let status = StatusCode::from(code);
    let mut response = flow.endpoint.make_response(request, status, bytes);
    let tagged = super::acl::to_tag(request).is_some();
    for header in response.headers.iter_mut() {
        if let Header::To(to) = header
            && !tagged
        {
            to.replace(format!("{};tag={}", to.value(), dialog.local_tag));
        }
    }
    // Record-Route is copied (RFC 3261 section 12.1.1).
    let route = request
        .headers
        .iter()
        .filter(|header| matches!(header, Header::RecordRoute(_)));
    response.headers.extend(route.cloned().collect());
    response.headers.extend(dialog.answer_headers(&flow));
    if let Some(body) = body {
        response.headers.push(Header::ContentType(body.kind.into()));
    }
    if code == 200 {
        response.headers.extend(more);
    }
    if code == 420
        && let Some(options) = unsupported(request)
    {
        response.headers.push(Header::Unsupported(options.into()));
    }
    response
}

/// A warning for people: 399, with words of our own (RFC 3261 section 20.43).
pub(super) fn warning(told: std::net::SocketAddr, text: &str) -> Header {
    let text = format!("399 {told} {}", super::header::quote(text));
    Header::Other("Warning".to_owned(), text)
}

/// An option in `Require` that is not supported; reliable provisional responses (RFC 3262), session timers (RFC 4028) and
/// `Replaces` (RFC 3891) are.
pub(super) fn unsupported(request: &Request) -> Option<String> {
    let required = request.headers.iter().filter_map(|header| match header {
        Header::Require(options) => Some(options.value()),
        _ => None,
    });
    let unknown: Vec<&str> = required
        .flat_map(|options| options.split(','))
        .map(str::trim)
        .filter(|option| !option.is_empty())
        .filter(|option| {
            !["timer", "100rel", super::replaces::OPTION]
                .iter()
                .any(|known| option.eq_ignore_ascii_case(known))
        })
        .collect();
    (!unknown.is_empty()).then(|| unknown.join(", "))
}

/// Session timers (RFC 4028): the side that wants them refreshes; a call that ended unnoticed is detected by missing media.
/// A peer that wants us to refresh (`refresher=uas`) gets a response without a timer, as from a user agent without support.
pub(super) fn session_timer(request: &Request) -> Vec<Header> {
    let supported = request.headers.iter().any(|header| match header {
        Header::Supported(options) => lists_timer(options.value()),
        Header::Require(options) => lists_timer(options.value()),
        _ => false,
    });
    let interval = request.session_expires_header().and_then(|expires| {
        let value = expires.value();
        let ours = super::header::parameter(value, "refresher")
            .is_some_and(|refresher| refresher.eq_ignore_ascii_case("uas"));
        let seconds = value.split(';').next()?.trim().parse::<u32>().ok()?;
        (!ours).then_some(seconds)
    });
    match interval {
        Some(seconds) if supported => vec![
            Header::SessionExpires(format!("{seconds};refresher=uac").into()),
            Header::Require("timer".into()),
        ],
        _ => Vec::new(),
    }
}

fn lists_timer(options: &str) -> bool {
    options
        .split(',')
        .any(|option| option.trim().eq_ignore_ascii_case("timer"))
}
