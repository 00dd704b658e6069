//! One side of a call as the call sees it: what happens on the wire as [`LegEvent`]s, and what may be done about it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Method, Request, SipMessage, StatusCode};
use rsipstack::transaction::TransactionState;
use rsipstack::transaction::key::TransactionKey;
use rsipstack::transaction::transaction::{Transaction, TransactionEvent, TransactionEventSender};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use super::client::{Caller, lock, told};
use super::dialog::{Body, sdp};
use super::header::Address;
use super::path::Path;
use super::refer::Notification;

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
    /// The call was taken; it has been acknowledged.
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
        let event = self.events.recv().await;
        if let Some(LegEvent::Acknowledged { .. } | LegEvent::Unacknowledged) = event {
            lock(&self.caller.dialog).offering = false;
        }
        event
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
                lock(&self.caller.dialog).offering = self::sdp(&**invite, &invite.body).is_none();
                session_timer(invite)
            }
            Role::Client { .. } => return,
        };
        self.respond(200, Some(sdp), more);
    }

    /// Refuses a call.
    pub fn refuse(&self, code: u16) {
        self.respond(code, None, Vec::new());
    }

    fn respond(&self, code: u16, sdp: Option<String>, more: Vec<Header>) {
        let Role::Server {
            invite,
            transaction,
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
    pub fn refuse(mut self, code: u16) {
        let unsupported = unsupported(&self.transaction.original).filter(|_| code == 420);
        let headers = unsupported.map(|options| Header::Unsupported(options.into()));
        tokio::spawn(async move {
            let headers = headers.into_iter().collect();
            let refused = self
                .transaction
                .reply_with(StatusCode::from(code), headers, None);
            if refused.await.is_ok() {
                // Until the refusal was acknowledged.
                while self.transaction.receive().await.is_some() {}
            }
        });
    }

    /// Takes it up: whoever calls learns that it has arrived.
    pub fn take(self) -> Leg {
        let Self {
            transaction,
            caller,
        } = self;
        let caller = Arc::new(caller);
        let (sender, events) = mpsc::channel(WAITING);
        let role = Role::Server {
            invite: Box::new(transaction.original.clone()),
            transaction: transaction.tu_sender.clone(),
        };
        let leg = Leg::registered(&caller, events, sender.clone(), role);
        let watched = Watched {
            connection: lock(&caller.path).clone(),
            leg: sender.clone(),
            transaction: transaction.tu_sender.clone(),
            key: transaction.key.clone(),
        };
        tokio::spawn(watched.watch());
        tokio::spawn(follow_invite(transaction, caller, sender));
        leg
    }
}

/// A call that came, in whose transaction no time runs out while it rings.
struct Watched {
    connection: Path,
    leg: mpsc::Sender<LegEvent>,
    transaction: TransactionEventSender,
    key: TransactionKey,
}

impl Watched {
    /// Ends the transaction where nobody can be answered any more, and where nobody is left to answer.
    async fn watch(self) {
        let abandoned = async {
            self.leg.closed().await;
            sleep(LAST_ANSWER).await;
        };
        tokio::select! {
            () = self.transaction.closed() => return,
            () = self.connection.closed() => {}
            () = abandoned => {}
        }
        let end = TransactionEvent::Terminate(self.key);
        let _ended = self.transaction.send(end);
    }
}

/// Drives the transaction of a call that came.
async fn follow_invite(
    mut transaction: Transaction,
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
            None if transaction.state == TransactionState::Accepted => continue,
            None => break,
        };
        match request.method {
            Method::Ack => {
                let accepted = answered(&transaction);
                event = accepted.then(|| LegEvent::Acknowledged {
                    sdp: sdp(&request, &request.body),
                });
                break;
            }
            Method::Cancel => {
                // All answers are of one dialog (RFC 3261 section 8.2.6.2).
                let terminated = response(&caller, &transaction.original, 487, None, Vec::new());
                let _refused = transaction.respond(terminated).await;
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
        let _told = events.send(event).await;
    }
}

fn answered(transaction: &Transaction) -> bool {
    let response = transaction.last_response.as_ref();
    response.is_some_and(|response| response.status_code.code() / 100 == 2)
}

/// New media that the other side wants (re-INVITE, UPDATE). Dropped without an answer, it is refused.
pub struct Offered {
    /// What is offered; nothing where we are to offer, or where nothing is to change.
    pub sdp: Option<String>,
    /// Whether we are to make an offer.
    pub offerless: bool,
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
    /// Agrees.
    pub fn accept(mut self, sdp: Option<String>) {
        self.respond(200, sdp);
    }

    /// Does not; the call goes on as it was.
    pub fn refuse(mut self, code: u16) {
        self.respond(code, None);
    }

    fn respond(&mut self, code: u16, answer: Option<String>) {
        let Some(mut reply) = self.reply.take() else {
            return;
        };
        let offering = self.offerless && code == 200;
        if offering {
            lock(&reply.caller.dialog).offering = true;
        }
        tokio::spawn(async move {
            let request = reply.transaction.original.clone();
            let more = session_timer(&request);
            let response = response(&reply.caller, &request, code, answer, more);
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

/// Until the answer to a re-INVITE was acknowledged.
async fn follow_invite_again(mut reply: Reply) {
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
}

/// Answers what is asked within a call, for as long as it is registered.
async fn answer_requests(
    caller: Arc<Caller>,
    mut arriving: mpsc::Receiver<Transaction>,
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
            let _refused = transaction.reply(refused).await;
            continue;
        }
        let event = answer_request(&caller, transaction, &events).await;
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
                // Both want something at a time: who asks is to try again in a moment (RFC 3261 section 14.2).
                (491, None)
            } else {
                lock(&caller.dialog).retarget(&request);
                let offered = Offered {
                    offerless: sdp.is_none() && request.method == Method::Invite,
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
            // Of a transfer that was given up.
            Some(_) if is_old(caller, &request) => (200, None),
            Some(notification) => (200, Some(LegEvent::Notified(notification))),
            None => (489, None),
        },
        // Taking it up would mean a call to whoever the other side names, at our cost.
        Method::Refer => (603, None),
        Method::Info => (200, super::refer::digit(&request).map(LegEvent::Digit)),
        Method::Options => (200, None),
        _ => (405, None),
    };
    let headers = lock(&caller.dialog).answer_headers(&lock(&caller.path));
    let _answered = transaction
        .reply_with(StatusCode::from(code), headers, None)
        .await;
    event
}

/// Whether what is told is about a transfer before the last.
fn is_old(caller: &Caller, request: &Request) -> bool {
    super::refer::id(request).is_some_and(|id| lock(&caller.dialog).is_old_refer(id))
}

/// An answer within the call.
fn response(
    caller: &Caller,
    request: &Request,
    code: u16,
    sdp: Option<String>,
    more: Vec<Header>,
) -> rsipstack::sip::Response {
    let path = lock(&caller.path);
    let dialog = lock(&caller.dialog);
    let body = sdp.map(Body::sdp);
    let bytes = body.as_ref().map(|body| body.bytes.clone());
    let status = StatusCode::from(code);
    let mut response = path.endpoint.make_response(request, status, bytes);
    let tagged = super::gate::to_tag(request).is_some();
    for header in response.headers.iter_mut() {
        if let Header::To(to) = header
            && !tagged
        {
            to.replace(format!("{};tag={}", to.value(), dialog.local_tag));
        }
    }
    // Whoever is on the way stays there (RFC 3261 section 12.1.1).
    let route = request
        .headers
        .iter()
        .filter(|header| matches!(header, Header::RecordRoute(_)));
    response.headers.extend(route.cloned().collect());
    response.headers.extend(dialog.answer_headers(&path));
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

/// What a request requires beyond session timers (RFC 4028).
fn unsupported(request: &Request) -> Option<String> {
    let required = request.headers.iter().filter_map(|header| match header {
        Header::Require(options) => Some(options.value()),
        _ => None,
    });
    let unknown: Vec<&str> = required
        .flat_map(|options| options.split(','))
        .map(str::trim)
        .filter(|option| !option.is_empty() && !option.eq_ignore_ascii_case("timer"))
        .collect();
    (!unknown.is_empty()).then(|| unknown.join(", "))
}

/// Session timers (RFC 4028): whoever wants them refreshes; a call that has ended unnoticed is known by its silence. One who
/// wants us to refresh (`refresher=uas`) is answered without a timer, as by one who knows of none.
fn session_timer(request: &Request) -> Vec<Header> {
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
