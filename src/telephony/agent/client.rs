//! Requests from here: sent again with credentials where somebody asks for them, and a call's first request, which may be
//! taken back. What an answer means for the call is the call's business.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Host, Method, Request, Response, SipMessage, Uri};
use rsipstack::transaction::key::{TransactionKey, TransactionRole};
use rsipstack::transaction::transaction::{Transaction, TransactionEvent, TransactionEventSender};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::dialog::{Body, Dialog, ack, cancel, sdp};
use super::digest::{Asker, Authenticator};
use super::header::Address;
use super::leg::{Failure, LegEvent};
use super::path::{Path, Protocol, canonical};
use super::transports::Transports;
use vivavoce_core::outgoing::reach::is_public;

/// Answers that wait to be read.
const WAITING: usize = 32;
/// For how long the end of a call that was taken back is waited for (RFC 3261 section 9.1).
const CANCEL_PATIENCE: Duration = Duration::from_secs(32);
/// For how long a call that was taken is acknowledged again, and ended where others take it too (64·T1, RFC 6026 section 7.2).
const ANSWERS: Duration = Duration::from_secs(32);

/// What the requests of one call share.
pub(super) struct Caller {
    pub transports: Arc<Transports>,
    pub dialog: Mutex<Dialog>,
    pub authenticator: Mutex<Authenticator>,
    pub path: Mutex<Path>,
    /// Whether the other side may have us send to addresses that are not public.
    pub private: bool,
    /// Whether the other side has shown that it receives what it is sent. Until then nothing goes to where its headers
    /// want it: an INVITE is easily forged, and would have us connect to anybody.
    pub proven: AtomicBool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Caller {
    /// A request with answers to everything that was asked until now.
    fn request(&self, method: Method, path: &Path, more: &[Header], body: Option<Body>) -> Request {
        let mut dialog = lock(&self.dialog);
        let uri = dialog.target();
        let answers = lock(&self.authenticator).answers(&method.to_string(), &uri);
        let mut headers = more.to_vec();
        headers.extend(answers.into_iter().map(|(by, answer)| match by {
            Asker::Server => Header::Authorization(answer.into()),
            Asker::Proxy => Header::ProxyAuthorization(answer.into()),
        }));
        dialog.request(method, path, headers, body)
    }

    /// Takes what an answer asks; whether the request is to be sent again.
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

    /// The way of a request within the call: over the stream that the call came over, or to the next hop.
    async fn way(&self) -> Path {
        if !self.proven.load(Ordering::Acquire) {
            return lock(&self.path).clone();
        }
        let hop = lock(&self.dialog).next_hop();
        let path = self.towards(&hop).await;
        *lock(&self.path) = path.clone();
        path
    }

    /// The way to a hop that the other side has named. Where it may not go there, or nobody knows where that is, the way
    /// that the call began with is taken.
    async fn towards(&self, hop: &Uri) -> Path {
        let path = lock(&self.path).clone();
        if path.protocol != Protocol::Udp && path.open() {
            return path;
        }
        let known = (path.protocol, canonical(path.remote));
        let targets = super::resolve::targets(hop, path.protocol).await;
        let mut targets = targets.unwrap_or_default();
        targets.retain(|(_, remote)| self.private || is_public(remote.ip()));
        // A name may stand for several: who took part in the call until now is the one.
        let stays = targets.is_empty() || targets.contains(&known);
        let next = targets.first().copied().filter(|_| !stays);
        let (protocol, remote) = next.unwrap_or(known);
        if path.protocol == Protocol::Udp && (protocol, remote) == known {
            return path;
        }
        // Behind an address is whom we know already; a name stands for itself (RFC 5922 section 7.2).
        let name = match &hop.host_with_port.host {
            Host::Domain(name) if (protocol, remote) != known => Some(name.to_string()),
            _ => path.name.clone(),
        };
        let found = self.transports.path(protocol, remote, name.as_deref());
        found.await.unwrap_or(path)
    }

    /// Acknowledges an answer that took the call. Each time that it comes, as nobody answers to that.
    async fn acknowledge(&self, dialog: &Dialog, invite: &Request) {
        let path = self.towards(&dialog.next_hop()).await;
        let ack = ack(dialog, invite, &path);
        let sent = path
            .connection
            .send(ack.into(), Some(&path.destination()))
            .await;
        if let Err(error) = sent {
            tracing::debug!(%error, "an answer could not be acknowledged");
        }
    }

    /// Sends a request within the call and returns the final answer; `None` if there is none.
    pub async fn transact(
        &self,
        method: Method,
        more: Vec<Header>,
        body: Option<Body>,
    ) -> Option<Response> {
        lock(&self.authenticator).begin();
        let path = self.way().await;
        loop {
            let request = self.request(method, &path, &more, body.clone());
            let response = exchange(&path, request).await?;
            if !self.challenged(&response) {
                return Some(response);
            }
        }
    }

    /// Sends the first request until it is answered for good.
    pub async fn invite(self: Arc<Self>, inviting: Inviting) {
        lock(&self.authenticator).begin();
        let path = lock(&self.path).clone();
        let mut state = State::default();
        loop {
            let body = Body::sdp(inviting.offer.clone());
            let request = self.request(Method::Invite, &path, &inviting.headers, Some(body));
            let Some(attempt) = Attempt::begin(&self.transports, &path, request).await else {
                return inviting.tell(LegEvent::Failed(Failure::Unreachable)).await;
            };
            match self.attempt(attempt, &path, &inviting, &mut state).await {
                Next::Again => {}
                Next::Done => return,
            }
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        mut attempt: Attempt,
        path: &Path,
        inviting: &Inviting,
        state: &mut State,
    ) -> Next {
        loop {
            let response = tokio::select! {
                biased;
                response = attempt.responses.recv() => response,
                _ = &mut attempt.ended => None,
                () = sleep(CANCEL_PATIENCE), if state.cancelled => return Next::Done,
                // Afterwards the answer may come over another connection.
                () = path.closed(), if !state.provisional => None,
                () = inviting.cancelled.notified(), if !state.cancelled => {
                    state.cancelled = true;
                    if state.provisional {
                        attempt.cancel(path);
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
                            attempt.cancel(path);
                        }
                        continue;
                    }
                    let sdp = sdp(&response, &response.body);
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

    /// Somebody took the call. Whoever else takes it too is told that it is over (RFC 3261 section 13.2.2.4).
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
            // The answer and the CANCEL crossed (RFC 3261 section 9.1).
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
                let path = self.towards(&dialog.next_hop()).await;
                let bye = dialog.request(Method::Bye, &path, Vec::new(), None);
                tokio::spawn(async move { exchange(&path, bye).await });
                dialogs.push(dialog);
            }
        }
    }
}

/// Where a call's first request tells what becomes of it, and learns that it is not wanted any more.
pub(super) struct Inviting {
    pub offer: String,
    pub headers: Vec<Header>,
    pub events: mpsc::Sender<LegEvent>,
    pub cancelled: Arc<Notify>,
}

impl Inviting {
    async fn tell(&self, event: LegEvent) {
        // Nobody listens when the call was given up.
        let _told = self.events.send(event).await;
    }
}

#[derive(Default)]
struct State {
    provisional: bool,
    cancelled: bool,
}

enum Next {
    Again,
    Done,
}

/// One INVITE on its way, until it is dropped. Its transaction ends with the first final answer; those that take the call
/// after that come from the transports.
struct Attempt {
    transports: Arc<Transports>,
    invite: Request,
    responses: mpsc::Receiver<Response>,
    /// When the transaction is over, whatever ended it.
    ended: oneshot::Receiver<()>,
    transaction: TransactionEventSender,
    key: TransactionKey,
}

impl Attempt {
    async fn begin(transports: &Arc<Transports>, path: &Path, invite: Request) -> Option<Self> {
        let mut transaction = begin(path, invite)?;
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
                    // Whoever asked is gone; what is left is retransmissions.
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

    fn cancel(&self, path: &Path) {
        let (path, request) = (path.clone(), cancel(&self.invite));
        tokio::spawn(async move { exchange(&path, request).await });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.transports.forget_answers(&self.key);
        let end = TransactionEvent::Terminate(self.key.clone());
        let _ended = self.transaction.send(end);
    }
}

fn begin(path: &Path, request: Request) -> Option<Transaction> {
    let key = TransactionKey::from_request(&request, TransactionRole::Client).ok()?;
    let (endpoint, connection) = (path.endpoint.clone(), path.connection.clone());
    let mut transaction = Transaction::new_client(key, request, endpoint, Some(connection));
    transaction.destination = Some(path.destination());
    Some(transaction)
}

/// Sends a request that is no INVITE; its final answer.
async fn exchange(path: &Path, request: Request) -> Option<Response> {
    let mut transaction = begin(path, request)?;
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
        () = path.closed() => None,
    }
}

/// What a refusal means. The stack says 408 and 503 itself where nobody answers; such an answer has no tag.
fn failure(code: u16, response: &Response, provisional: bool) -> Failure {
    let to = response.to_header().ok();
    let tagged = to.is_some_and(|to| Address::parse(to.value()).tag().is_some());
    if !tagged && !provisional && matches!(code, 408 | 503) {
        return Failure::Unreachable;
    }
    Failure::Refused {
        code,
        reason: response.status_code.text().to_owned(),
    }
}

/// The headers of a message by name, as they are told to others.
pub(super) fn told(headers: &rsipstack::sip::Headers) -> Vec<(String, String)> {
    let headers = headers.iter();
    headers
        .map(|header| (header.name().to_owned(), header.value().to_owned()))
        .collect()
}
