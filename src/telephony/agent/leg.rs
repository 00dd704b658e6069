//! One side of a call as the call sees it: what happens on the wire as [`LegEvent`]s, and what may be done about it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rsipstack::sip::{Header, Method, Request, SipMessage, StatusCode};
use rsipstack::transaction::TransactionState;
use rsipstack::transaction::key::TransactionKey;
use rsipstack::transaction::transaction::{Transaction, TransactionEvent, TransactionEventSender};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::client::{Caller, lock, told};
use super::dialog::sdp;
use super::gate::to_tag;
use super::header::Address;
use super::path::Path;
use super::refer::Notification;
use super::requests::{Offered, answer_requests, response, session_timer, unsupported};
use super::unacknowledged::{Trial, Watch};

/// Events and requests that wait to be taken.
const WAITING: usize = 64;
/// For so long the last answer to a call is sent after the call has ended (64·T1).
const LAST_ANSWER: Duration = Duration::from_secs(32);

/// What happens.
#[derive(Debug)]
pub enum LegEvent {
    /// A provisional answer.
    Progress {
        /// 100 to 199.
        code: u16,
        /// Early media.
        sdp: Option<String>,
    },
    /// The call was taken; that is acknowledged meanwhile.
    Answered {
        /// What answers our offer.
        sdp: Option<String>,
        /// The headers of the answer.
        headers: Vec<(String, String)>,
    },
    /// The call was not taken.
    Failed(Failure),
    /// Whoever calls has given up before we answered.
    Cancelled,
    /// Our answer has arrived.
    Acknowledged {
        /// What answers our offer, if we made one.
        sdp: Option<String>,
    },
    /// Our answer has not arrived.
    Unacknowledged,
    /// The other side wants other media, or only to know that we are there.
    Offered(Box<Offered>),
    /// What has become of a transfer.
    Notified(Notification),
    /// What was said to our REFER.
    Referred {
        /// The wish, as [`Leg::refer`] was told.
        wish: u32,
        /// A status, or nothing.
        code: Option<u16>,
    },
    /// A key, pressed in signalling (`application/dtmf-relay`).
    Digit(char),
    /// The other side has hung up.
    Ended,
}

/// Why a call was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Somebody said so.
    Refused {
        /// 300 to 699.
        code: u16,
        /// What is said with it.
        reason: String,
    },
    /// Nobody said anything.
    Unreachable,
}

/// See the module. Dropped, the call's requests are answered by 481; it is to be ended before.
pub struct Leg {
    caller: Arc<Caller>,
    key: (String, String),
    events: mpsc::Receiver<LegEvent>,
    sender: mpsc::Sender<LegEvent>,
    role: Role,
}

enum Role {
    /// We call.
    Client { cancelled: Arc<Notify> },
    /// We are called.
    Server {
        invite: Box<Request>,
        transaction: TransactionEventSender,
        trial: Option<Watch>,
    },
}

impl Leg {
    /// A call from here; its first request is on its way when this returns.
    pub(super) fn call(caller: Caller, offer: String, headers: Vec<Header>) -> Self {
        let caller = Arc::new(caller);
        let (sender, events) = mpsc::channel(WAITING);
        let cancelled = Arc::new(Notify::new());
        let inviting = super::client::Inviting {
            offer,
            headers,
            events: sender.clone(),
            cancelled: Arc::clone(&cancelled),
        };
        let leg = Self::registered(&caller, events, sender, Role::Client { cancelled });
        tokio::spawn(caller.invite(inviting));
        leg
    }

    fn registered(
        caller: &Arc<Caller>,
        events: mpsc::Receiver<LegEvent>,
        sender: mpsc::Sender<LegEvent>,
        role: Role,
    ) -> Self {
        let key = {
            let dialog = lock(&caller.dialog);
            (dialog.call_id.clone(), dialog.local_tag.clone())
        };
        let (requests, arriving) = mpsc::channel(WAITING);
        let remote = lock(&caller.path).remote;
        caller
            .transports
            .dialogs
            .insert(key.clone(), requests, remote);
        tokio::spawn(answer_requests(
            Arc::clone(caller),
            arriving,
            sender.clone(),
        ));
        Self {
            caller: Arc::clone(caller),
            key,
            events,
            sender,
            role,
        }
    }

    #[cfg(test)]
    pub(super) const fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// What happens next. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<LegEvent> {
        self.events.recv().await
    }

    /// The Call-ID of SIP.
    pub fn call_id(&self) -> &str {
        &self.key.0
    }

    /// Our tag.
    pub fn local_tag(&self) -> &str {
        &self.key.1
    }

    /// The tag of the other side, once it has one.
    pub fn remote_tag(&self) -> Option<String> {
        lock(&self.caller.dialog).remote_tag.clone()
    }

    /// Our address on the way to the other side.
    pub fn local_address(&self) -> SocketAddr {
        lock(&self.caller.path).local
    }

    /// Where the other side is reached.
    pub fn remote_address(&self) -> SocketAddr {
        super::path::canonical(lock(&self.caller.path).remote)
    }

    /// Whether what is said here is secret on its way.
    pub fn encrypted(&self) -> bool {
        lock(&self.caller.path).protocol == super::path::Protocol::Tls
    }

    /// Takes an unanswered call from here back.
    pub fn cancel(&self) {
        if let Role::Client { cancelled } = &self.role {
            cancelled.notify_one();
        }
    }

    /// Tells whoever calls that it rings; with a description, what is heard meanwhile.
    pub fn ring(&self, sdp: Option<String>) {
        let code = if sdp.is_some() { 183 } else { 180 };
        self.respond(code, sdp, Vec::new());
    }

    /// Takes a call. `sdp` answers the offer, or is the offer where there was none.
    pub fn answer(&self, sdp: String) {
        let more = match &self.role {
            Role::Server { invite, .. } => {
                self.wait_for_acknowledgement();
                lock(&self.caller.dialog).offering = self::sdp(&**invite, &invite.body).is_none();
                session_timer(invite)
            }
            Role::Client { .. } => return,
        };
        self.respond(200, Some(sdp), more);
    }

    /// Refuses a call.
    pub fn refuse(&self, code: u16) {
        self.wait_for_acknowledgement();
        self.respond(code, None, Vec::new());
    }

    fn wait_for_acknowledgement(&self) {
        if let Role::Server {
            transaction,
            trial: Some(trial),
            ..
        } = &self.role
        {
            tokio::spawn(wait_for_acknowledgement(trial.clone(), transaction.clone()));
        }
    }

    fn respond(&self, code: u16, sdp: Option<String>, more: Vec<Header>) {
        let Role::Server {
            invite,
            transaction,
            ..
        } = &self.role
        else {
            return;
        };
        let response = response(&self.caller, invite, code, sdp, more);
        let _ended = transaction.send(TransactionEvent::Respond(response));
    }

    /// Hangs up. Nobody waits for what is said to that.
    pub fn bye(&self) {
        let caller = Arc::clone(&self.caller);
        tokio::spawn(async move { caller.transact(Method::Bye, Vec::new(), None).await });
    }

    /// Hangs up; returns when that was heard, or will not be.
    /// It goes on where nobody waits for that: BYE is sent again until it is heard, or cannot be any more.
    pub async fn hang_up(&self) {
        let caller = Arc::clone(&self.caller);
        let heard = async move { caller.transact(Method::Bye, Vec::new(), None).await };
        let _heard = tokio::spawn(heard).await;
    }

    /// Hangs up on somebody who has never said anything, and perhaps never called: it is repeated for this time only.
    pub async fn hang_up_within(&self, patience: Duration) {
        let heard = self.caller.transact(Method::Bye, Vec::new(), None);
        let _heard = timeout(patience, heard).await;
    }

    /// Asks the other side to call somebody else: what it says to that comes as [`LegEvent::Referred`] with the number of
    /// the wish, and what it tells of earlier ones does not come any more where it says so.
    pub fn refer(&self, wish: u32, to: &str, headers: &[(String, String)]) {
        lock(&self.caller.dialog).begin_transfer();
        let mut more = vec![Header::ReferTo(to.to_owned().into())];
        let by = lock(&self.caller.path).contact("vivavoce");
        more.push(Header::ReferredBy(by.into()));
        let headers = headers.iter();
        more.extend(headers.map(|(name, value)| Header::Other(name.clone(), value.clone())));
        let (caller, events) = (Arc::clone(&self.caller), self.sender.clone());
        tokio::spawn(async move {
            let response = caller.transact(Method::Refer, more, None).await;
            let code = response.map(|response| response.status_code.code());
            let _told = events.send(LegEvent::Referred { wish, code }).await;
        });
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.caller.transports.dialogs.remove(&self.key);
    }
}

/// A call that came and is neither taken nor refused yet.
pub struct Invitation {
    pub(super) transaction: Transaction,
    pub(super) trial: Option<Trial>,
    pub(super) caller: Caller,
}

impl Invitation {
    /// Who sent it.
    pub fn source(&self) -> IpAddr {
        lock(&self.caller.path).remote.ip().to_canonical()
    }

    /// Our address on the way there.
    pub fn local_address(&self) -> SocketAddr {
        lock(&self.caller.path).local
    }

    /// Whether what is said here is secret on its way.
    pub fn encrypted(&self) -> bool {
        lock(&self.caller.path).protocol == super::path::Protocol::Tls
    }

    /// The user that is called, by the Request-URI.
    pub fn called(&self) -> Option<String> {
        let uri = self.transaction.original.uri.to_string();
        Address::parse(&uri)
            .user()
            .map(std::borrow::Cow::into_owned)
    }

    /// The headers, by name.
    pub fn headers(&self) -> Vec<(String, String)> {
        told(&self.transaction.original.headers)
    }

    /// The offer, if there is one.
    pub fn offer(&self) -> Option<String> {
        let request = &self.transaction.original;
        sdp(request, &request.body)
    }

    /// What the request requires and is not known here (RFC 3261 section 8.2.2.3).
    pub fn unsupported(&self) -> Option<String> {
        unsupported(&self.transaction.original)
    }

    /// Refuses it.
    pub fn refuse(self, code: u16) {
        let unsupported = unsupported(&self.transaction.original).filter(|_| code == 420);
        let headers = unsupported.map(|options| Header::Unsupported(options.into()));
        let headers = headers.into_iter().collect();
        let status = StatusCode::from(code);
        tokio::spawn(refuse(self.transaction, self.trial, status, headers));
    }

    /// Takes it up: whoever calls learns that it has arrived.
    pub fn take(self) -> Leg {
        let Self {
            transaction,
            trial,
            caller,
        } = self;
        let caller = Arc::new(caller);
        let (sender, events) = mpsc::channel(WAITING);
        let role = Role::Server {
            invite: Box::new(transaction.original.clone()),
            transaction: transaction.tu_sender.clone(),
            trial: trial.as_ref().map(Trial::watch),
        };
        let leg = Leg::registered(&caller, events, sender.clone(), role);
        let watched = Watched {
            connection: lock(&caller.path).clone(),
            leg: sender.clone(),
            transaction: transaction.tu_sender.clone(),
            key: transaction.key.clone(),
            trial: trial.as_ref().map(Trial::watch),
        };
        tokio::spawn(watched.watch());
        tokio::spawn(follow_invite(transaction, trial, caller, sender));
        leg
    }
}

/// A call that came, in whose transaction no time runs out while it rings.
struct Watched {
    connection: Path,
    leg: mpsc::Sender<LegEvent>,
    transaction: TransactionEventSender,
    key: TransactionKey,
    trial: Option<Watch>,
}

impl Watched {
    /// Ends the transaction where nobody can be answered any more, where nobody is left to answer, and where nobody has
    /// acknowledged the answer in time.
    async fn watch(self) {
        let abandoned = async {
            self.leg.closed().await;
            sleep(LAST_ANSWER).await;
        };
        tokio::select! {
            () = self.transaction.closed() => return,
            () = self.connection.closed() => {}
            () = abandoned => {}
            () = given_up(self.trial.as_ref()) => {}
        }
        let end = TransactionEvent::Terminate(self.key.clone());
        let _ended = self.transaction.send(end);
        // What was answered may still be acknowledged over another connection, for as long as others wait for that.
        tokio::select! {
            () = self.transaction.closed() => {}
            () = given_up(self.trial.as_ref()) => {
                let end = TransactionEvent::Terminate(self.key);
                let _ended = self.transaction.send(end);
            }
        }
    }
}

/// Returns when an answer is given up that nobody has acknowledged.
async fn given_up(trial: Option<&Watch>) {
    match trial {
        Some(trial) => trial.given_up().await,
        None => std::future::pending().await,
    }
}

/// An answer is sent now that is to be acknowledged.
async fn wait_for_acknowledgement(trial: Watch, transaction: TransactionEventSender) {
    trial.answered(transaction.closed()).await;
}

/// Refuses a request, and waits until that was acknowledged where it is to be.
pub(super) async fn refuse(
    mut transaction: Transaction,
    trial: Option<Trial>,
    status: StatusCode,
    headers: Vec<Header>,
) {
    let refused = transaction.reply_with(status, headers, None).await;
    if refused.is_err() || transaction.original.method != Method::Invite {
        return;
    }
    if let Some(trial) = &trial {
        let (events, key) = (transaction.tu_sender.clone(), transaction.key.clone());
        tokio::spawn(wait_for_acknowledgement(trial.watch(), events.clone()));
        let trial = trial.watch();
        tokio::spawn(async move {
            tokio::select! {
                () = events.closed() => {}
                () = trial.given_up() => drop(events.send(TransactionEvent::Terminate(key))),
            }
        });
    }
    while transaction.receive().await.is_some() {}
}

/// Drives the transaction of a call that came.
async fn follow_invite(
    mut transaction: Transaction,
    trial: Option<Trial>,
    caller: Arc<Caller>,
    events: mpsc::Sender<LegEvent>,
) {
    if transaction.send_trying().await.is_err() {
        let _told = events.send(LegEvent::Cancelled).await;
        return;
    }
    let mut event = None;
    loop {
        let request = match transaction.receive().await {
            Some(SipMessage::Request(request)) => request,
            Some(SipMessage::Response(_)) => continue,
            // The connection has closed behind the answer: it may be acknowledged over another.
            None if transaction.state == TransactionState::Accepted
                && !is_given_up(trial.as_ref()) =>
            {
                continue;
            }
            None => break,
        };
        match request.method {
            Method::Ack => {
                let accepted = answered(&transaction);
                // Whoever has read the answer knows our tag. An ACK of somebody who has only sent the INVITE does not.
                let known = to_tag(&request) == Some(lock(&caller.dialog).local_tag.clone());
                if accepted && !known {
                    continue;
                }
                caller.proven.store(true, Ordering::Release);
                event = accepted.then(|| LegEvent::Acknowledged {
                    sdp: sdp(&request, &request.body),
                });
                break;
            }
            Method::Cancel => {
                // All answers are of one dialog (RFC 3261 section 8.2.6.2).
                let terminated = response(&caller, &transaction.original, 487, None, Vec::new());
                let _refused = transaction.respond(terminated).await;
                if let Some(trial) = &trial {
                    let waiting =
                        wait_for_acknowledgement(trial.watch(), transaction.tu_sender.clone());
                    tokio::spawn(waiting);
                }
                let _told = events.send(LegEvent::Cancelled).await;
            }
            _ => {}
        }
    }
    let event = event.or_else(|| match &transaction.last_response {
        Some(_) if answered(&transaction) => Some(LegEvent::Unacknowledged),
        Some(last) if last.status_code.code() < 200 => Some(LegEvent::Cancelled),
        _ => None,
    });
    if let Some(event) = event {
        // Before it is told: the other side may want other media right behind.
        lock(&caller.dialog).offering = false;
        let _told = events.send(event).await;
    }
}

fn is_given_up(trial: Option<&Trial>) -> bool {
    trial.is_some_and(|trial| trial.watch().is_given_up())
}

fn answered(transaction: &Transaction) -> bool {
    let response = transaction.last_response.as_ref();
    response.is_some_and(|response| response.status_code.code() / 100 == 2)
}
