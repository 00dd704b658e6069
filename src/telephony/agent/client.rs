//! The client side of SIP: sends requests of a call, again with credentials when challenged, and INVITEs that can be
//! cancelled. What a response means for the call is decided in `call`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Host, Method, Request, Response, SipMessage, Uri};
use rsipstack::transaction::key::{TransactionKey, TransactionRole};
use rsipstack::transaction::transaction::{Transaction, TransactionEvent, TransactionEventSender};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::dialog::{Body, Dialog, ack, cancel, sdp, split_list};
use super::digest::{Asker, Authenticator};
use super::flow::{Flow, Protocol, canonical};
use super::header::Address;
use super::leg::{Failure, LegEvent, Reliable};
use super::transports::Transports;
use vivavoce_core::egress_policy::is_public;

/// The most places that a redirection may name.
const MOST_CONTACTS: usize = 5;
/// Responses that wait to be read.
const WAITING: usize = 32;
/// How long the final response to a cancelled INVITE is waited for (RFC 3261 section 9.1).
const CANCEL_PATIENCE: Duration = Duration::from_secs(32);
/// How long 2xx responses are acknowledged again, and forked calls hung up (64·T1, RFC 6026 section 7.2).
const ANSWERS: Duration = Duration::from_secs(32);

/// What the requests of one call share.
pub(super) struct Caller {
    pub transports: Arc<Transports>,
    pub dialog: Mutex<Dialog>,
    pub authenticator: Mutex<Authenticator>,
    pub flow: Mutex<Flow>,
    /// Whether the other side may direct our requests to private addresses.
    pub private: bool,
    /// Whether the other side has proved to receive what it is sent. Until then nothing is sent to the addresses in its
    /// headers: an INVITE is easily forged, and could make us connect to anyone.
    pub proven: AtomicBool,
    /// The provisional response of ours that must be acknowledged.
    pub reliable: Reliable,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Caller {
    /// A request with credentials for all challenges so far.
    fn request(&self, method: Method, flow: &Flow, more: &[Header], body: Option<Body>) -> Request {
        let mut dialog = lock(&self.dialog);
        let uri = dialog.target();
        let answers = lock(&self.authenticator).answers(&method.to_string(), &uri);
        let mut headers = more.to_vec();
        headers.extend(answers.into_iter().map(|(by, answer)| match by {
            Asker::Server => Header::Authorization(answer.into()),
            Asker::Proxy => Header::ProxyAuthorization(answer.into()),
        }));
        dialog.request(method, flow, headers, body)
    }

    /// Takes a challenge; whether the request should be sent again.
    fn challenged(&self, response: &Response) -> bool {
        let Some(by) = Asker::of_status(response.status_code.code()) else {
            return false;
        };
        let values = response.headers.iter().filter_map(|header| match header {
            Header::WwwAuthenticate(value) if by == Asker::Server => Some(value.value()),
            Header::ProxyAuthenticate(value) if by == Asker::Proxy => Some(value.value()),
            _ => None,
        });
        lock(&self.authenticator).challenged(by, values)
    }

    /// The flow for a request within the call: the connection of the call, or a flow to the next hop.
    async fn way(&self) -> Flow {
        if !self.proven.load(Ordering::Acquire) {
            return lock(&self.flow).clone();
        }
        let hop = lock(&self.dialog).next_hop();
        let flow = self.towards(&hop).await;
        *lock(&self.flow) = flow.clone();
        flow
    }

    /// The flow to a hop that the other side has named. If that is not allowed or cannot be resolved, the flow that the
    /// call began with.
    async fn towards(&self, hop: &Uri) -> Flow {
        let flow = lock(&self.flow).clone();
        if flow.protocol != Protocol::Udp && flow.open() {
            return flow;
        }
        let known = (flow.protocol, canonical(flow.remote));
        let targets = super::resolve::targets(hop, flow.protocol).await;
        let mut targets = targets.unwrap_or_default();
        targets.retain(|(_, remote)| self.private || is_public(remote.ip()));
        // A name may have several addresses: the one used so far is kept.
        let stays = targets.is_empty() || targets.contains(&known);
        let next = targets.first().copied().filter(|_| !stays);
        let (protocol, remote) = next.unwrap_or(known);
        if flow.protocol == Protocol::Udp && (protocol, remote) == known {
            return flow;
        }
        // An address stands for the host we know already; a name must match the certificate (RFC 5922 section 7.2).
        let name = match &hop.host_with_port.host {
            Host::Domain(name) if (protocol, remote) != known => Some(name.to_string()),
            _ => flow.name.clone(),
        };
        let found = self.transports.flow(protocol, remote, name.as_deref());
        found.await.unwrap_or(flow)
    }

    /// Acknowledges a 2xx response, each time it arrives.
    async fn acknowledge(&self, dialog: &Dialog, invite: &Request) {
        let flow = self.towards(&dialog.next_hop()).await;
        let ack = ack(dialog, invite, &flow).into();
        let remote = canonical(flow.remote).to_string();
        let ladders = &self.transports.ladders;
        ladders.note(&ack, true, flow.protocol, Some(remote));
        let sent = flow.connection.send(ack, Some(&flow.destination())).await;
        if let Err(error) = sent {
            tracing::debug!(%error, "cannot send ACK");
        }
    }

    /// Sends a request within the call and returns the final response, if there is one.
    pub async fn transact(
        &self,
        method: Method,
        more: Vec<Header>,
        body: Option<Body>,
    ) -> Option<Response> {
        lock(&self.authenticator).begin();
        let flow = self.way().await;
        loop {
            let request = self.request(method, &flow, &more, body.clone());
            let response = exchange(&flow, request).await?;
            if !self.challenged(&response) {
                return Some(response);
            }
        }
    }

    /// Sends the INVITE until it has a final response that is no challenge.
    pub async fn invite(self: Arc<Self>, inviting: Inviting) {
        lock(&self.authenticator).begin();
        let flow = lock(&self.flow).clone();
        let mut state = State::default();
        loop {
            let body = Body::sdp(inviting.offer.clone());
            let request = self.request(Method::Invite, &flow, &inviting.headers, Some(body));
            let Some(attempt) = Attempt::begin(&self.transports, &flow, request).await else {
                return inviting.tell(LegEvent::Failed(Failure::Unreachable)).await;
            };
            match self.attempt(attempt, &flow, &inviting, &mut state).await {
                Next::Again => {}
                Next::Done => return,
            }
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        mut attempt: Attempt,
        flow: &Flow,
        inviting: &Inviting,
        state: &mut State,
    ) -> Next {
        loop {
            let response = tokio::select! {
                biased;
                response = attempt.responses.recv() => response,
                _ = &mut attempt.ended => None,
                () = sleep(CANCEL_PATIENCE), if state.cancelled => return Next::Done,
                // After a provisional response, the final one may arrive over another connection.
                () = flow.closed(), if !state.provisional => None,
                () = inviting.cancelled.notified(), if !state.cancelled => {
                    state.cancelled = true;
                    if state.provisional {
                        attempt.cancel(flow);
                    }
                    continue;
                }
            };
            let Some(response) = response else {
                inviting.tell(LegEvent::Failed(Failure::Unreachable)).await;
                return Next::Done;
            };
            match response.status_code.code() {
                code @ 100..=199 => {
                    let first = !std::mem::replace(&mut state.provisional, true);
                    if state.cancelled {
                        if first {
                            attempt.cancel(flow);
                        }
                        continue;
                    }
                    let sdp = sdp(&response, &response.body);
                    if let Some(number) = reliable(&response) {
                        if !state.is_next(&response, number) {
                            continue;
                        }
                        if sdp.is_some() {
                            lock(&self.dialog).offering = false;
                        }
                        self.acknowledge_progress(&attempt.invite, &response, number);
                    }
                    inviting.tell(LegEvent::Progress { code, sdp }).await;
                }
                200..=299 => {
                    self.accepted(attempt, &response, inviting, state.cancelled)
                        .await;
                    return Next::Done;
                }
                code => {
                    if !state.cancelled && self.challenged(&response) {
                        state.provisional = false;
                        return Next::Again;
                    }
                    let failure = failure(code, &response, state.provisional);
                    inviting.tell(LegEvent::Failed(failure)).await;
                    return Next::Done;
                }
            }
        }
    }

    /// Acknowledges a reliable provisional response.
    fn acknowledge_progress(self: &Arc<Self>, invite: &Request, response: &Response, number: u32) {
        let Ok(cseq) = invite.cseq_header() else {
            return;
        };
        let rack = format!("{number} {}", cseq.value());
        let flow = lock(&self.flow).clone();
        let more = vec![Header::Other("RAck".to_owned(), rack)];
        let prack = lock(&self.dialog).prack(response, &flow, more);
        tokio::spawn(async move { exchange(&flow, prack).await });
    }

    /// Accepts the first 2xx response; a call answered by another fork is hung up (RFC 3261 section 13.2.2.4).
    async fn accepted(
        self: &Arc<Self>,
        mut attempt: Attempt,
        response: &Response,
        inviting: &Inviting,
        cancelled: bool,
    ) {
        let dialog = {
            let mut dialog = lock(&self.dialog);
            dialog.answered(response);
            dialog.clone()
        };
        let acknowledged = self.acknowledge(&dialog, &attempt.invite);
        if cancelled {
            acknowledged.await;
            // CANCEL and 2xx crossed (RFC 3261 section 9.1).
            let _ended = self.transact(Method::Bye, Vec::new(), None).await;
            let failure = Failure::Refused {
                code: 487,
                reason: "Request Terminated".to_owned(),
            };
            inviting.tell(LegEvent::Failed(failure)).await;
        } else {
            let sdp = sdp(response, &response.body);
            let headers = told(&response.headers);
            let answered = LegEvent::Answered { sdp, headers };
            tokio::join!(inviting.tell(answered), acknowledged);
        }
        let more = self.answered_again(&mut attempt, dialog);
        let _over = timeout(ANSWERS, more).await;
    }

    async fn answered_again(&self, attempt: &mut Attempt, dialog: Dialog) {
        let mut dialogs = vec![dialog];
        while let Some(other) = attempt.responses.recv().await {
            if other.status_code.code() / 100 != 2 {
                continue;
            }
            let to = other.to_header().ok();
            let tag = to.and_then(|to| Address::parse(to.value()).tag());
            let known = dialogs
                .iter()
                .find(|dialog| dialog.remote_tag.as_deref() == tag);
            if let Some(dialog) = known {
                self.acknowledge(dialog, &attempt.invite).await;
            } else if dialogs.len() < WAITING {
                let mut dialog = lock(&self.dialog).clone();
                dialog.answered(&other);
                self.acknowledge(&dialog, &attempt.invite).await;
                let flow = self.towards(&dialog.next_hop()).await;
                let bye = dialog.request(Method::Bye, &flow, Vec::new(), None);
                tokio::spawn(async move { exchange(&flow, bye).await });
                dialogs.push(dialog);
            }
        }
    }
}

/// An INVITE: where its progress is reported, and how it is cancelled.
pub(super) struct Inviting {
    pub offer: String,
    pub headers: Vec<Header>,
    pub events: mpsc::Sender<LegEvent>,
    pub cancelled: Arc<Notify>,
}

impl Inviting {
    async fn tell(&self, event: LegEvent) {
        // Nobody receives it once the call was given up.
        let _told = self.events.send(event).await;
    }
}

#[derive(Default)]
struct State {
    provisional: bool,
    cancelled: bool,
    /// The newest reliable response of each fork, by its tag.
    reliable: Vec<(String, u32)>,
}

impl State {
    /// Whether a reliable response is neither a repetition nor out of order (RFC 3262 section 4), and one of not too many forks.
    fn is_next(&mut self, response: &Response, number: u32) -> bool {
        let to = response.to_header().ok();
        let tag = to.and_then(|to| Address::parse(to.value()).tag());
        let Some(tag) = tag else {
            return false;
        };
        if let Some((_, newest)) = self.reliable.iter_mut().find(|(known, _)| known == tag) {
            let is_next = number == newest.wrapping_add(1);
            if is_next {
                *newest = number;
            }
            return is_next;
        }
        let is_one_of_few = self.reliable.len() < WAITING;
        if is_one_of_few {
            self.reliable.push((tag.to_owned(), number));
        }
        is_one_of_few
    }
}

/// The number of a provisional response that is to be acknowledged.
fn reliable(response: &Response) -> Option<u32> {
    let value = |name: &str| {
        let mut headers = response.headers.iter();
        let found = headers.find(|header| header.name().eq_ignore_ascii_case(name));
        found.map(Header::value)
    };
    let is_reliable = |option: &str| option.trim().eq_ignore_ascii_case("100rel");
    value("require")?
        .split(',')
        .any(is_reliable)
        .then_some(())?;
    value("rseq")?.trim().parse().ok()
}

enum Next {
    Again,
    Done,
}

/// One INVITE transaction. It ends with the first final response; later 2xx responses come from the transports.
struct Attempt {
    transports: Arc<Transports>,
    invite: Request,
    responses: mpsc::Receiver<Response>,
    /// Resolves when the transaction is over, for whatever reason.
    ended: oneshot::Receiver<()>,
    transaction: TransactionEventSender,
    key: TransactionKey,
}

impl Attempt {
    async fn begin(transports: &Arc<Transports>, flow: &Flow, invite: Request) -> Option<Self> {
        let mut transaction = begin(flow, invite)?;
        transaction.send().await.ok()?;
        let (invite, key) = (transaction.original.clone(), transaction.key.clone());
        let sender = transaction.tu_sender.clone();
        let (answers, responses) = mpsc::channel(WAITING);
        transports.follow_answers(key.clone(), answers.clone());
        let (end, ended) = oneshot::channel();
        tokio::spawn(async move {
            let _end: oneshot::Sender<()> = end;
            while let Some(message) = transaction.receive().await {
                if let SipMessage::Response(response) = message
                    && answers.send(response).await.is_err()
                {
                    // The receiver is gone; what follows are retransmissions.
                    break;
                }
            }
        });
        Some(Self {
            transports: Arc::clone(transports),
            invite,
            responses,
            ended,
            transaction: sender,
            key,
        })
    }

    fn cancel(&self, flow: &Flow) {
        let (flow, request) = (flow.clone(), cancel(&self.invite));
        tokio::spawn(async move { exchange(&flow, request).await });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.transports.forget_answers(&self.key);
        let end = TransactionEvent::Terminate(self.key.clone());
        let _ended = self.transaction.send(end);
    }
}

fn begin(flow: &Flow, request: Request) -> Option<Transaction> {
    let key = TransactionKey::from_request(&request, TransactionRole::Client).ok()?;
    let (endpoint, connection) = (flow.endpoint.clone(), flow.connection.clone());
    let mut transaction = Transaction::new_client(key, request, endpoint, Some(connection));
    transaction.destination = Some(flow.destination());
    Some(transaction)
}

/// Sends a request other than INVITE; its final response.
async fn exchange(flow: &Flow, request: Request) -> Option<Response> {
    let mut transaction = begin(flow, request)?;
    transaction.send().await.ok()?;
    let answered = async {
        while let Some(message) = transaction.receive().await {
            if let SipMessage::Response(response) = message
                && response.status_code.code() >= 200
            {
                return Some(response);
            }
        }
        None
    };
    tokio::select! {
        response = answered => response,
        () = flow.closed() => None,
    }
}

/// The failure for a response. The stack itself responds with 408 and 503 when there is no response; such a response has no
/// tag.
fn failure(code: u16, response: &Response, provisional: bool) -> Failure {
    let to = response.to_header().ok();
    let tagged = to.is_some_and(|to| Address::parse(to.value()).tag().is_some());
    if !tagged && !provisional && matches!(code, 408 | 503) {
        return Failure::Unreachable;
    }
    if code / 100 == 3 {
        return Failure::Redirected {
            code,
            contacts: contacts(response),
        };
    }
    Failure::Refused {
        code,
        reason: response.status_code.text().to_owned(),
    }
}

/// The URIs that a redirection names, the most wanted first (RFC 3261 section 8.1.3.4).
fn contacts(response: &Response) -> Vec<String> {
    let values = response.headers.iter().filter_map(|header| match header {
        Header::Contact(contact) => Some(contact.value()),
        _ => None,
    });
    let mut contacts: Vec<(f32, String)> = values
        .flat_map(split_list)
        .take(MOST_CONTACTS)
        .map(|contact| {
            let address = Address::parse(&contact);
            let wanted = address.parameter("q").and_then(|q| q.parse().ok());
            (wanted.unwrap_or(1.0), address.uri.to_owned())
        })
        .collect();
    contacts.sort_by(|one, other| other.0.total_cmp(&one.0));
    contacts.into_iter().map(|(_, uri)| uri).collect()
}

/// The headers of a message as pairs of name and value.
pub(super) fn told(headers: &rsipstack::sip::Headers) -> Vec<(String, String)> {
    let headers = headers.iter();
    headers
        .map(|header| (header.name().to_owned(), header.value().to_owned()))
        .collect()
}
