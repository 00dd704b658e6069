//! A call leg: one side of a call as `call` sees it. SIP messages become [`LegEvent`]s, actions become requests and
//! responses.

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

use super::super::ladder::Ladder;
use super::acl::{RETRY_AFTER_S, to_tag};
use super::client::{Caller, lock, told};
use super::dialog::{Body, sdp};
use super::flow::Flow;
use super::header::Address;
use super::in_dialog::{Offered, answer_requests, response, session_timer, unsupported};
use super::notify_and_info::Notification;
use super::referral::ReferRequest;
use super::replaces::{DialogId, Replaces};
use super::unacknowledged::{Trial, Watch};

/// Events and requests that wait to be handled.
const WAITING: usize = 64;
/// How long the final response is retransmitted after the call has ended (64·T1).
const LAST_ANSWER: Duration = Duration::from_secs(32);
/// The first pause between repetitions of a provisional response (T1).
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// DTMF digits that wait to be sent by INFO, and the pause that `w` means.
const MOST_DIGITS: usize = 100;
const PAUSE: Duration = Duration::from_millis(500);
/// How often one is sent again while the other side has a request of its own under way (491), and after what pause.
const DIGIT_TRIES: u32 = 10;
const DIGIT_PAUSE: Duration = Duration::from_millis(200);

/// What happened on the leg.
#[derive(Debug)]
pub enum LegEvent {
    /// A provisional response.
    Progress {
        /// Status code, 100 to 199.
        code: u16,
        /// The answer, with early media.
        sdp: Option<String>,
    },
    /// A 2xx response; it is acknowledged.
    Answered {
        /// The answer to our offer.
        sdp: Option<String>,
        /// The headers of the response.
        headers: Vec<(String, String)>,
    },
    /// The INVITE failed.
    Failed(Failure),
    /// The caller cancelled before we answered.
    Cancelled,
    /// Our 2xx response was acknowledged.
    Acknowledged {
        /// The answer to our offer, if we made one.
        sdp: Option<String>,
    },
    /// Our 2xx response was not acknowledged.
    Unacknowledged,
    /// A re-INVITE or UPDATE.
    Offered(Box<Offered>),
    /// The progress of a transfer.
    Notified(Notification),
    /// The response to our REFER.
    Referred {
        /// The number of the attempt, as in [`Leg::refer`].
        attempt: u32,
        /// The status code, if there was a response.
        code: Option<u16>,
    },
    /// The other side wants somebody else in its place. It is told how far that is by [`Leg::notify`].
    Asked(ReferRequest),
    /// A DTMF digit in INFO (`application/dtmf-relay`).
    Digit(char),
    /// The other side takes no such INFO: a digit of ours was not sent.
    DigitRefused(char),
    /// The other side hung up.
    Ended,
}

/// Why an INVITE failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It was refused.
    Refused {
        /// Status code, 300 to 699.
        code: u16,
        /// The reason phrase.
        reason: String,
    },
    /// It is to be sent elsewhere.
    Redirected {
        /// Status code, 300 to 399.
        code: u16,
        /// The URIs, the most wanted first.
        contacts: Vec<String>,
    },
    /// There was no response.
    Unreachable,
}

/// Our provisional response that must be acknowledged (RFC 3262): its number, and who waits for that.
#[derive(Debug, Default)]
pub(super) struct Reliable {
    number: std::sync::Mutex<Option<u32>>,
    acknowledged: Notify,
}

impl Reliable {
    /// Whether a PRACK acknowledges it.
    pub fn take(&self, prack: &Request) -> bool {
        let rack = prack
            .headers
            .iter()
            .find(|header| header.name().eq_ignore_ascii_case("rack"));
        let rack = rack.and_then(|rack| rack.value().split_whitespace().next()?.parse().ok());
        let mut number = lock(&self.number);
        if number.is_none() || rack != *number {
            return false;
        }
        *number = None;
        self.acknowledged.notify_waiters();
        true
    }

    fn is_waited_for(&self) -> bool {
        lock(&self.number).is_some()
    }
}

/// Sends a provisional response again until it is acknowledged, the call is gone, or 32 s are over.
async fn repeat_until_acknowledged(
    caller: Arc<Caller>,
    transaction: TransactionEventSender,
    response: rsipstack::sip::Response,
) {
    let mut pause = FIRST_PAUSE;
    let mut waited = Duration::ZERO;
    while waited < LAST_ANSWER {
        tokio::select! {
            () = caller.reliable.acknowledged.notified() => return,
            () = transaction.closed() => return,
            () = sleep(pause) => {}
        }
        if !caller.reliable.is_waited_for() {
            return;
        }
        let _ended = transaction.send(TransactionEvent::Respond(response.clone()));
        waited += pause;
        pause *= 2;
    }
}

/// A call leg. See the module. After it is dropped, requests within the call get a 481, so hang up first.
pub struct Leg {
    caller: Arc<Caller>,
    key: (String, String),
    events: mpsc::Receiver<LegEvent>,
    sender: mpsc::Sender<LegEvent>,
    role: Role,
    ladder: Ladder,
    /// Digits that are sent by INFO.
    digits: Option<mpsc::Sender<char>>,
    /// What the other side is told of its REFERs: their CSeqs and statuses.
    notes: Option<mpsc::Sender<(u32, u16)>>,
}

enum Role {
    /// Outbound.
    Client { cancelled: Arc<Notify> },
    /// Inbound.
    Server {
        invite: Box<Request>,
        transaction: TransactionEventSender,
        trial: Option<Watch>,
    },
}

impl Leg {
    /// Places a call; its INVITE is being sent when this returns.
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
        let remote = lock(&caller.flow).remote;
        caller
            .transports
            .dialogs
            .insert(key.clone(), requests, remote);
        let ladder = caller.transports.ladders.claim(&key.0);
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
            ladder,
            digits: None,
            notes: None,
        }
    }

    /// What is seen of its signalling.
    pub fn ladder(&self) -> Ladder {
        self.ladder.clone()
    }

    #[cfg(test)]
    pub(super) const fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// The next event. Cancel safe.
    pub async fn next(&mut self) -> Option<LegEvent> {
        self.events.recv().await
    }

    /// The Call-ID.
    pub fn call_id(&self) -> &str {
        &self.key.0
    }

    /// Our tag.
    pub fn local_tag(&self) -> &str {
        &self.key.1
    }

    /// The remote tag, once there is one.
    pub fn remote_tag(&self) -> Option<String> {
        lock(&self.caller.dialog).remote_tag.clone()
    }

    /// Its dialog, once there is one.
    pub fn dialog(&self) -> Option<DialogId> {
        let dialog = lock(&self.caller.dialog);
        Some(DialogId {
            call_id: dialog.call_id.clone(),
            local_tag: dialog.local_tag.clone(),
            remote_tag: dialog.remote_tag.clone()?,
            target: dialog.target(),
        })
    }

    /// Our local address of the flow.
    pub fn local_address(&self) -> SocketAddr {
        lock(&self.caller.flow).local
    }

    /// The peer's address.
    pub fn remote_address(&self) -> SocketAddr {
        super::flow::canonical(lock(&self.caller.flow).remote)
    }

    /// Whether signalling is encrypted.
    pub fn encrypted(&self) -> bool {
        lock(&self.caller.flow).protocol.is_encrypted()
    }

    /// Cancels our INVITE.
    pub fn cancel(&self) {
        if let Role::Client { cancelled } = &self.role {
            cancelled.notify_one();
        }
    }

    /// Sends 180, or 183 with a session description for early media.
    pub fn ring(&self, sdp: Option<String>) {
        let code = if sdp.is_some() { 183 } else { 180 };
        let Role::Server {
            invite,
            transaction,
            ..
        } = &self.role
        else {
            return;
        };
        if !requires_reliable(invite) {
            return self.respond(code, sdp, Vec::new());
        }
        let number = 1 + crate::random::u32() % 0x7fff_fffe;
        *lock(&self.caller.reliable.number) = Some(number);
        let mut response = response(&self.caller, invite, code, sdp, Vec::new());
        response.headers.push(Header::Require("100rel".into()));
        let number = Header::Other("RSeq".to_owned(), number.to_string());
        response.headers.push(number);
        let _ended = transaction.send(TransactionEvent::Respond(response.clone()));
        let repeated =
            repeat_until_acknowledged(Arc::clone(&self.caller), transaction.clone(), response);
        tokio::spawn(repeated);
    }

    /// Answers the call. `sdp` is the answer, or the offer if the INVITE had none.
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

    /// Refuses the call.
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
        *lock(&self.caller.reliable.number) = None;
        let response = response(&self.caller, invite, code, sdp, more);
        let _ended = transaction.send(TransactionEvent::Respond(response));
    }

    /// Whether the INVITE of the other side says that it takes INFO.
    pub fn takes_info(&self) -> bool {
        match &self.role {
            Role::Server { invite, .. } => allows_info(&told(&invite.headers)),
            Role::Client { .. } => false,
        }
    }

    /// Sends DTMF digits by INFO, one after the other; `w` is a pause. One that is refused comes back as
    /// [`LegEvent::DigitRefused`]. At most a hundred wait.
    pub fn info(&mut self, digits: &str) {
        if digits.is_empty() {
            return;
        }
        let waiting = self.digits.get_or_insert_with(|| {
            let (digits, waiting) = mpsc::channel(MOST_DIGITS);
            tokio::spawn(send_digits(
                Arc::clone(&self.caller),
                waiting,
                self.sender.clone(),
            ));
            digits
        });
        for digit in digits.chars() {
            let _full = waiting.try_send(digit);
        }
    }

    /// Tells the other side how far its REFER with this CSeq is, one after the other.
    pub fn notify(&mut self, id: u32, code: u16) {
        let waiting = self.notes.get_or_insert_with(|| {
            let (notes, mut waiting) = mpsc::channel::<(u32, u16)>(WAITING);
            let caller = Arc::clone(&self.caller);
            tokio::spawn(async move {
                while let Some((id, code)) = waiting.recv().await {
                    let (headers, body) = super::referral::notification(id, code);
                    caller.transact(Method::Notify, headers, Some(body)).await;
                }
            });
            notes
        });
        let _full = waiting.try_send((id, code));
    }

    /// Sends BYE, without waiting for the response.
    pub fn bye(&self) {
        let caller = Arc::clone(&self.caller);
        tokio::spawn(async move { caller.transact(Method::Bye, Vec::new(), None).await });
    }

    /// Sends BYE; returns when there is a response, or there will be none. BYE is retransmitted in the background even if
    /// this is dropped.
    pub async fn hang_up(&self) {
        let caller = Arc::clone(&self.caller);
        let heard = async move { caller.transact(Method::Bye, Vec::new(), None).await };
        let _heard = tokio::spawn(heard).await;
    }

    /// Hangs up on a caller that has never responded, and perhaps never called: retransmits BYE only this long, in the
    /// background.
    pub fn hang_up_within(&self, patience: Duration) {
        let caller = Arc::clone(&self.caller);
        tokio::spawn(async move {
            let heard = caller.transact(Method::Bye, Vec::new(), None);
            let _heard = timeout(patience, heard).await;
        });
    }

    /// Sends REFER. The response arrives as [`LegEvent::Referred`] with the number of the attempt; NOTIFYs that name an
    /// earlier attempt are ignored from now on.
    pub fn refer(&self, attempt: u32, to: &str, headers: &[(String, String)]) {
        lock(&self.caller.dialog).begin_transfer();
        let mut more = vec![Header::ReferTo(to.to_owned().into())];
        let by = lock(&self.caller.flow).contact("vivavoce");
        more.push(Header::ReferredBy(by.into()));
        let headers = headers.iter();
        more.extend(headers.map(|(name, value)| Header::Other(name.clone(), value.clone())));
        let (caller, events) = (Arc::clone(&self.caller), self.sender.clone());
        tokio::spawn(async move {
            let response = caller.transact(Method::Refer, more, None).await;
            let code = response.map(|response| response.status_code.code());
            let _told = events.send(LegEvent::Referred { attempt, code }).await;
        });
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.caller.transports.dialogs.remove(&self.key);
        self.caller.transports.ladders.release(&self.key.0);
    }
}

/// Whether the headers of a message say that its sender takes INFO.
pub fn allows_info(headers: &[(String, String)]) -> bool {
    let mut headers = headers.iter();
    headers.any(|(name, value)| {
        let info = |method: &str| method.trim().eq_ignore_ascii_case("info");
        name.eq_ignore_ascii_case("allow") && value.split(',').any(info)
    })
}

async fn send_digits(
    caller: Arc<Caller>,
    mut digits: mpsc::Receiver<char>,
    events: mpsc::Sender<LegEvent>,
) {
    while let Some(digit) = digits.recv().await {
        if digit.eq_ignore_ascii_case(&'w') {
            sleep(PAUSE).await;
            continue;
        }
        let body = Body {
            kind: "application/dtmf-relay",
            bytes: format!("Signal={digit}\r\nDuration=160\r\n").into_bytes(),
        };
        let mut status = None;
        for _ in 0..DIGIT_TRIES {
            let response = caller.transact(Method::Info, Vec::new(), Some(body.clone()));
            status = response.await.map(|response| response.status_code.code());
            if status != Some(491) {
                break;
            }
            sleep(DIGIT_PAUSE).await;
        }
        let taken = status.is_some_and(|status| status / 100 == 2);
        if !taken && events.send(LegEvent::DigitRefused(digit)).await.is_err() {
            return;
        }
    }
}

/// Whether an INVITE wants provisional responses that it acknowledges.
fn requires_reliable(invite: &Request) -> bool {
    invite.headers.iter().any(|header| match header {
        Header::Require(options) => options
            .value()
            .split(',')
            .any(|option| option.trim().eq_ignore_ascii_case("100rel")),
        _ => false,
    })
}

/// An inbound call that is neither answered nor refused yet.
pub struct Invitation {
    pub(super) transaction: Transaction,
    pub(super) trial: Option<Trial>,
    pub(super) caller: Caller,
}

impl std::fmt::Debug for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Invitation")
    }
}

impl Invitation {
    /// Source address of the INVITE.
    pub fn source(&self) -> IpAddr {
        lock(&self.caller.flow).remote.ip().to_canonical()
    }

    /// Our local address of the flow.
    pub fn local_address(&self) -> SocketAddr {
        lock(&self.caller.flow).local
    }

    /// Whether signalling is encrypted.
    pub fn encrypted(&self) -> bool {
        lock(&self.caller.flow).protocol.is_encrypted()
    }

    /// The called user, from the Request-URI.
    pub fn called(&self) -> Option<String> {
        let uri = self.transaction.original.uri.to_string();
        Address::parse(&uri)
            .user()
            .map(std::borrow::Cow::into_owned)
    }

    /// The headers as pairs of name and value.
    pub fn headers(&self) -> Vec<(String, String)> {
        told(&self.transaction.original.headers)
    }

    /// The dialog whose place it is to take, if it is: an error where that cannot be read.
    pub fn replaces(&self) -> Result<Option<Replaces>, String> {
        let headers = self.headers();
        let mut named = headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("replaces"));
        let Some((_, value)) = named.next() else {
            return Ok(None);
        };
        // Of two only one could be meant (RFC 3891 section 3).
        let read = Replaces::parse(value).filter(|_| named.next().is_none());
        read.map(Some)
            .ok_or_else(|| "its Replaces header names no dialog".to_owned())
    }

    /// The Call-ID.
    pub fn call_id(&self) -> String {
        lock(&self.caller.dialog).call_id.clone()
    }

    /// What is seen of its signalling.
    pub fn ladder(&self) -> Ladder {
        self.caller.transports.ladders.open(&self.call_id())
    }

    /// What it answers to challenges: the values of `Authorization` and `Proxy-Authorization`.
    pub fn answers(&self) -> Vec<String> {
        let headers = self.headers().into_iter();
        let answers = headers.filter(|(name, _)| {
            name.eq_ignore_ascii_case("authorization")
                || name.eq_ignore_ascii_case("proxy-authorization")
        });
        answers.map(|(_, value)| value).collect()
    }

    /// Asks for credentials: 401 with this value of `WWW-Authenticate`.
    pub fn challenge(self, value: String) {
        let headers = vec![Header::WwwAuthenticate(value.into())];
        tokio::spawn(refuse(
            self.transaction,
            self.trial,
            StatusCode::Unauthorized,
            headers,
        ));
    }

    /// The offer, if there is one.
    pub fn offer(&self) -> Option<String> {
        let request = &self.transaction.original;
        sdp(request, &request.body)
    }

    /// An option in `Require` that is not supported (RFC 3261 section 8.2.2.3).
    pub fn unsupported(&self) -> Option<String> {
        unsupported(&self.transaction.original)
    }

    /// Refuses the call.
    pub fn refuse(self, code: u16) {
        self.refuse_because(code, "");
    }

    /// The same with a warning for people (RFC 3261 section 20.43), if there is one.
    pub fn refuse_because(self, code: u16, warning: &str) {
        let told = lock(&self.caller.flow).told;
        let warning = (!warning.is_empty()).then(|| super::in_dialog::warning(told, warning));
        let unsupported = unsupported(&self.transaction.original).filter(|_| code == 420);
        let unsupported = unsupported.map(|options| Header::Unsupported(options.into()));
        let later = Header::RetryAfter(RETRY_AFTER_S.to_string().into());
        let later = (code == 503).then_some(later);
        let headers = unsupported
            .into_iter()
            .chain(later)
            .chain(warning)
            .collect();
        let status = StatusCode::from(code);
        tokio::spawn(refuse(self.transaction, self.trial, status, headers));
    }

    /// Takes the call, to be answered or refused later.
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
            connection: lock(&caller.flow).clone(),
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

/// An inbound INVITE whose transaction has no timeout while it rings.
struct Watched {
    connection: Flow,
    leg: mpsc::Sender<LegEvent>,
    transaction: TransactionEventSender,
    key: TransactionKey,
    trial: Option<Watch>,
}

impl Watched {
    /// Ends the transaction when its connection is closed, its call is gone, or its answer was not acknowledged in time.
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
        // A 2xx response may still be acknowledged over another connection within the usual time.
        tokio::select! {
            () = self.transaction.closed() => {}
            () = given_up(self.trial.as_ref()) => {
                let end = TransactionEvent::Terminate(self.key);
                let _ended = self.transaction.send(end);
            }
        }
    }
}

/// Resolves when an unacknowledged answer is given up.
async fn given_up(trial: Option<&Watch>) {
    match trial {
        Some(trial) => trial.given_up().await,
        None => std::future::pending().await,
    }
}

/// A 2xx response is being sent.
async fn wait_for_acknowledgement(trial: Watch, transaction: TransactionEventSender) {
    trial.answered(transaction.closed()).await;
}

/// Refuses a request, and waits for the ACK if there will be one.
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

/// Drives the server transaction of an INVITE.
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
            // The connection closed after the response: the ACK may arrive over another one.
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
                // Whoever has read the response knows our tag. A forged INVITE is followed by an ACK without it.
                let known = to_tag(&request) == Some(lock(&caller.dialog).local_tag.clone());
                if accepted && !known {
                    continue;
                }
                caller.proven.store(true, Ordering::Release);
                if let Some(trial) = trial.as_ref().filter(|_| accepted) {
                    trial.acknowledged();
                }
                event = accepted.then(|| LegEvent::Acknowledged {
                    sdp: sdp(&request, &request.body),
                });
                break;
            }
            Method::Cancel => {
                // All responses belong to one dialog (RFC 3261 section 8.2.6.2).
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
        // Before the event: the other side may send a re-INVITE right after its ACK.
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
