//! The SIP user agent (RFC 3261): listens, places and accepts calls, and keeps dialogs, over UDP, TCP and TLS. Parsing and
//! transactions are done by the `rsipstack` crate, which only this module knows; what a call is for, and its media, are in
//! `call` and `media`.

mod acl;
pub mod bounds;
pub mod challenge;
pub mod client;
pub mod dialog;
pub mod digest;
mod flow;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod header;
mod in_dialog;
mod leg;
mod notify_and_info;
mod referral;
mod register;
mod registrar;
mod repetitions;
pub mod replaces;
pub mod resolve;
mod stream;
#[cfg(test)]
mod tests;
mod transports;
mod unacknowledged;
mod websocket;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use ipnet::IpNet;
use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Method, Request, StatusCode, Uri};
use rsipstack::transaction::TransactionReceiver;
use rsipstack::transaction::transaction::Transaction;
use tokio::sync::mpsc;

use super::ladder::Ladders;
use super::phones::Phones;
use super::random;
use super::refusals::{Refusals, Refused};
use super::registrations::Registrars;
use acl::{Acl, to_tag};
use client::Caller;
use dialog::Dialog;
use digest::{Authenticator, Credentials};
pub use flow::Protocol;
pub(crate) use flow::source_towards;
pub use in_dialog::Offered;
pub use leg::{Failure, Invitation, Leg, LegEvent, allows_info};
pub use notify_and_info::Notification;
pub use referral::ReferRequest;
pub use register::Binding;
use transports::Transports;
pub use unacknowledged::Unacknowledged;
use unacknowledged::{Trial, Trials};
use vivavoce_core::token_bucket::TokenBucket;
use vivavoce_seams::rooms::telephone::CallerIdentity;
use vivavoce_takeover::Sockets;

/// Inbound calls that wait to be handled.
const WAITING_CALLS: usize = 64;
/// New requests within a call each second, and in a burst. A DTMF digit by INFO is one.
const REQUESTS_PER_SECOND: u32 = 10;
const MOST_REQUESTS_AT_ONCE: u32 = 60;

/// An address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The address.
    pub address: SocketAddr,
}

/// TLS configuration.
#[derive(Clone, Default)]
pub struct TlsSettings {
    /// For inbound connections.
    pub server: Option<Arc<rustls::ServerConfig>>,
    /// The same for browsers, which are not asked for a certificate.
    pub web: Option<Arc<rustls::ServerConfig>>,
    /// For outbound connections.
    pub client: Option<Arc<rustls::ClientConfig>>,
}

/// Settings of the user agent.
#[derive(Default)]
pub struct AgentSettings {
    /// Networks that may call.
    pub allowed: Vec<IpNet>,
    /// Limits of calls whose answer is not acknowledged.
    pub unacknowledged: Unacknowledged,
    /// TLS of both roles.
    pub tls: TlsSettings,
    /// The address that peers are told if it is of their address family.
    pub advertised: Option<IpAddr>,
    /// Whether ladders show the users of URIs, which are masked otherwise.
    pub shows_users: bool,
    /// Telephones that may register.
    pub phones: Phones,
    /// Whether REFER is taken.
    pub refers: bool,
    /// Whether calls may take the place of others.
    pub replaces: bool,
}

/// The user agent. It runs until [`Self::stop`].
#[derive(Clone)]
pub struct Agent {
    transports: Arc<Transports>,
}

/// An outbound call.
#[derive(Debug)]
pub struct Outbound {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The address that the INVITE is sent to.
    pub remote: SocketAddr,
    /// `host` or `host:port` in the URIs of the other side.
    pub host: String,
    /// The proxy that requests go through, `host` or `host:port`.
    pub proxy: Option<String>,
    /// How the other side is told the caller besides From.
    pub identity: CallerIdentity,
    /// Whether the called side is not to see the caller.
    pub hides_caller: bool,
    /// The called number or user.
    pub to: String,
    /// The calling number or user.
    pub from: String,
    /// The domain of the caller's URI; our address where absent.
    pub from_domain: Option<String>,
    /// The caller's display name.
    pub display_name: Option<String>,
    /// Credentials for challenges.
    pub credentials: Option<Credentials>,
    /// Additional headers of the INVITE.
    pub headers: Vec<(String, String)>,
    /// Whether the other side may direct requests within the call to private addresses.
    pub private: bool,
}

impl Agent {
    /// Starts the user agent with these settings and the defaults of all others.
    pub fn start(
        allowed: Vec<IpNet>,
        unacknowledged: Unacknowledged,
        tls: TlsSettings,
        advertised: Option<IpAddr>,
    ) -> (Self, mpsc::Receiver<Invitation>) {
        Self::with(AgentSettings {
            allowed,
            unacknowledged,
            tls,
            advertised,
            ..AgentSettings::default()
        })
    }

    /// Starts the user agent without listening. Calls are accepted from the allowed networks and sent to the receiver.
    pub fn with(settings: AgentSettings) -> (Self, mpsc::Receiver<Invitation>) {
        let AgentSettings {
            allowed,
            unacknowledged,
            tls,
            advertised,
            shows_users,
            phones,
            refers,
            replaces,
        } = settings;
        let ladders = Ladders::new(shows_users);
        let (arrivals, arriving) = mpsc::channel(WAITING_CALLS);
        let (calls, invitations) = mpsc::channel(WAITING_CALLS);
        let mut acl = Acl::with(allowed, phones);
        acl.refers = refers;
        acl.replaces = replaces;
        let trials = Trials::new(unacknowledged);
        let transports = Transports::new(acl, trials, tls, advertised, ladders, arrivals);
        let transports = Arc::new(transports);
        tokio::spawn(follow_arrivals(Arc::clone(&transports), arriving, calls));
        (Self { transports }, invitations)
    }

    /// Listens on one more address; returns it with its port.
    pub async fn listen(&self, listen: &Listen) -> io::Result<SocketAddr> {
        self.listen_at(listen, &Sockets::default()).await
    }

    /// The same at the socket of a former server, where there is one.
    pub async fn listen_at(&self, listen: &Listen, sockets: &Sockets) -> io::Result<SocketAddr> {
        self.transports.listen(listen, sockets).await
    }

    /// Opens a flow for an outbound call; its connection may not be established yet.
    pub async fn reach(
        &self,
        protocol: Protocol,
        remote: SocketAddr,
        host: &str,
    ) -> io::Result<Reached> {
        let name = header::Address::parse(host).host().map(str::to_owned);
        let flow = self
            .transports
            .flow(protocol, remote, name.as_deref())
            .await?;
        Ok(Reached { flow })
    }

    /// Places a call.
    pub fn call(
        &self,
        reached: Reached,
        outbound: Outbound,
        offer: String,
    ) -> Result<Leg, InvalidUri> {
        let flow = reached.flow;
        let parameter = flow.uri_parameter();
        let to = header::encode_user(&outbound.to);
        let from = header::encode_user(&outbound.from);
        let host = &outbound.host;
        let target = Uri::try_from(format!("sip:{}@{host}{parameter}", outbound.to));
        let target = target.map_err(|_| InvalidUri)?;
        let display = outbound.display_name.as_deref();
        let display = display.map(|name| format!("{} ", header::quote(name)));
        let own = || flow.told.ip().to_canonical_host();
        let shown = format!(
            "{}<sip:{from}@{}>",
            display.unwrap_or_default(),
            outbound.from_domain.clone().unwrap_or_else(own),
        );
        let mut headers = identity(&outbound, &shown);
        headers.extend(outbound.headers);
        // RFC 3323 section 4.1.
        let anonymous = || "\"Anonymous\" <sip:anonymous@anonymous.invalid>".to_owned();
        let (from_header, user) = if outbound.hides_caller {
            (anonymous(), "anonymous")
        } else {
            (shown, outbound.from.as_str())
        };
        let to_header = format!("<sip:{to}@{host}>");
        let call_id = format!("{:016x}{:016x}@vivavoce", random::u64(), random::u64());
        let mut dialog = Dialog::outbound(call_id, &from_header, &to_header, target, user);
        dialog.takes_refer = self.transports.acl.refers;
        dialog.takes_replaces = self.transports.acl.replaces;
        if let Some(proxy) = &outbound.proxy {
            dialog.route_by(format!("<sip:{proxy}{parameter};lr>"));
        }
        let headers = headers.into_iter();
        // Control characters could begin another header.
        let headers = headers
            .filter(|(name, value)| {
                !name.contains(char::is_control) && !value.contains(char::is_control)
            })
            .map(|(name, value)| Header::Other(name, value))
            .collect();
        let caller = Caller {
            transports: Arc::clone(&self.transports),
            dialog: Mutex::new(dialog),
            authenticator: Mutex::new(Authenticator::new(outbound.credentials)),
            flow: Mutex::new(flow),
            private: outbound.private,
            // It was us who called.
            proven: AtomicBool::new(true),
            reliable: leg::Reliable::default(),
        };
        Ok(Leg::call(caller, offer, headers))
    }

    /// The registrars at which this server is registered: calls are accepted from their addresses.
    pub fn registrars(&self) -> &Registrars {
        &self.transports.acl.registrars
    }

    /// Telephones that may register.
    pub fn phones(&self) -> &Phones {
        &self.transports.acl.phones
    }

    /// Asks how a gateway is: OPTIONS (RFC 3261 section 11). The status of its answer, if there is one.
    pub async fn options(&self, reached: Reached, host: &str) -> Option<u16> {
        let target = Uri::try_from(format!("sip:{host}{}", reached.flow.uri_parameter())).ok()?;
        let own = format!(
            "<sip:vivavoce@{}>",
            reached.flow.told.ip().to_canonical_host()
        );
        let call_id = format!("{:016x}{:016x}@vivavoce", random::u64(), random::u64());
        let dialog = Dialog::outbound(call_id, &own, &format!("<sip:{host}>"), target, "vivavoce");
        let caller = Caller {
            transports: Arc::clone(&self.transports),
            dialog: Mutex::new(dialog),
            authenticator: Mutex::new(Authenticator::new(None)),
            flow: Mutex::new(reached.flow),
            private: true,
            // It goes to the address that was reached.
            proven: AtomicBool::new(false),
            reliable: leg::Reliable::default(),
        };
        let accept = vec![Header::Accept("application/sdp".into())];
        let response = caller.transact(Method::Options, accept, None).await?;
        let code = response.status_code.code();
        // The stack answers itself where nobody else does.
        let is_own = matches!(code, 408 | 503) && register::is_untagged(&response);
        (!is_own).then_some(code)
    }

    /// The inbound calls that were refused.
    pub fn refused(&self) -> &Refusals {
        &self.transports.acl.refused
    }

    /// Cancelled when it stops.
    pub fn stopped(&self) -> tokio_util::sync::CancellationToken {
        self.transports.closed.clone()
    }

    /// Closes all sockets. Calls end without a BYE: hang up before.
    pub fn stop(&self) {
        self.transports.closed.cancel();
    }
}

/// The headers that tell a gateway who calls, and whether the called side is to see it (RFC 3323, RFC 3325).
fn identity(outbound: &Outbound, shown: &str) -> Vec<(String, String)> {
    let name = match outbound.identity {
        CallerIdentity::Asserted => "P-Asserted-Identity",
        CallerIdentity::Preferred => "P-Preferred-Identity",
        CallerIdentity::Untold if outbound.hides_caller => "P-Preferred-Identity",
        CallerIdentity::Untold => return Vec::new(),
    };
    // What the settings or the request say comes before.
    let is_said = |name: &str| {
        let mut headers = outbound.headers.iter();
        headers.any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let privacy = outbound.hides_caller.then(|| ("Privacy", "id".to_owned()));
    [Some((name, shown.to_owned())), privacy]
        .into_iter()
        .flatten()
        .filter(|(name, _)| !is_said(name))
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The called user and the headers of an INVITE, as a trace or a log has it; lines may end without a carriage return. The error
/// is for people.
pub fn read_invite(text: &str) -> Result<(String, Vec<(String, String)>), String> {
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    let message = lines.join("\r\n") + "\r\n\r\n";
    let request = Request::try_from(message.as_str()).map_err(|error| error.to_string())?;
    if request.method != Method::Invite {
        return Err(format!("it is {}, not INVITE", request.method));
    }
    let uri = request.uri.to_string();
    let called = header::Address::parse(&uri).user();
    let called = called.ok_or_else(|| format!("{uri} calls nobody"))?;
    Ok((called.into_owned(), client::told(&request.headers)))
}

/// A flow for an outbound call.
pub struct Reached {
    flow: flow::Flow,
}

impl Reached {
    /// Our local address, even if another one is advertised.
    pub fn local_address(&self) -> SocketAddr {
        self.flow.local
    }
}

/// The called number cannot be part of a URI.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("cannot be written in a SIP URI")]
pub struct InvalidUri;

trait CanonicalHost {
    fn to_canonical_host(self) -> String;
}

impl CanonicalHost for IpAddr {
    /// As it is written in a URI.
    fn to_canonical_host(self) -> String {
        match self {
            Self::V4(address) => address.to_string(),
            Self::V6(address) => format!("[{address}]"),
        }
    }
}

/// The dialogs, by Call-ID and local tag.
#[derive(Debug, Default)]
pub struct Dialogs(Mutex<HashMap<(String, String), Registered>>);

struct Registered {
    /// Boxed: the queue of each call has room for many, and hardly ever one.
    requests: mpsc::Sender<Box<Transaction>>,
    remote: SocketAddr,
    allowance: TokenBucket,
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registered")
    }
}

impl Dialogs {
    fn table(&self) -> MutexGuard<'_, HashMap<(String, String), Registered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(
        &self,
        key: (String, String),
        requests: mpsc::Sender<Box<Transaction>>,
        remote: SocketAddr,
    ) {
        let registered = Registered {
            requests,
            remote,
            allowance: TokenBucket::new(REQUESTS_PER_SECOND, MOST_REQUESTS_AT_ONCE),
        };
        self.table().insert(key, registered);
    }

    pub(super) fn remove(&self, key: &(String, String)) {
        self.table().remove(key);
    }

    pub(super) fn knows(&self, request: &Request) -> bool {
        Self::key(request).is_some_and(|key| self.table().contains_key(&key))
    }

    /// Whether it has the dialog in whose place another is to be.
    pub(super) fn has(&self, dialog: &replaces::Replaces) -> bool {
        let key = (dialog.call_id.clone(), dialog.to_tag.clone());
        self.table().contains_key(&key)
    }

    /// Whether one more request within the call is below the rate limit.
    pub(super) fn admits(&self, request: &Request, now: Instant) -> bool {
        Self::key(request).is_some_and(|key| {
            let mut table = self.table();
            let registered = table.get_mut(&key);
            registered.is_some_and(|registered| registered.allowance.take(1.0, now))
        })
    }

    /// Whether a call's flow goes to this address.
    pub(super) fn reaches(&self, remote: SocketAddr) -> bool {
        let table = self.table();
        table.values().any(|registered| registered.remote == remote)
    }

    fn key(request: &Request) -> Option<(String, String)> {
        let call_id = request.call_id_header().ok()?.value().to_owned();
        Some((call_id, to_tag(request)?))
    }

    /// Passes a request to its call; on failure returns it with a status code.
    fn hand_over(&self, transaction: Transaction) -> Result<(), (Box<Transaction>, StatusCode)> {
        let requests = Self::key(&transaction.original)
            .and_then(|key| self.table().get(&key).map(|found| found.requests.clone()));
        let Some(requests) = requests else {
            let unknown = StatusCode::CallTransactionDoesNotExist;
            return Err((Box::new(transaction), unknown));
        };
        let handed = requests.try_send(Box::new(transaction));
        handed.map_err(|error| (error.into_inner(), StatusCode::ServiceUnavailable))
    }
}

async fn follow_arrivals(
    transports: Arc<Transports>,
    mut arriving: mpsc::Receiver<TransactionReceiver>,
    calls: mpsc::Sender<Invitation>,
) {
    loop {
        let incoming = tokio::select! {
            () = transports.closed.cancelled() => return,
            incoming = arriving.recv() => incoming,
        };
        let Some(mut incoming) = incoming else {
            return;
        };
        let (transports, calls) = (Arc::clone(&transports), calls.clone());
        tokio::spawn(async move {
            loop {
                let transaction = tokio::select! {
                    () = transports.closed.cancelled() => return,
                    transaction = incoming.recv() => transaction,
                };
                let Some(transaction) = transaction else {
                    return;
                };
                arrived(&transports, transaction, &calls);
            }
        });
    }
}

/// Handles a request that the access control has admitted.
fn arrived(
    transports: &Arc<Transports>,
    transaction: Transaction,
    calls: &mpsc::Sender<Invitation>,
) {
    let trial = transports.trial(&transaction.key);
    let refused = if to_tag(&transaction.original).is_some() {
        transports.dialogs.hand_over(transaction).err()
    } else {
        match (transaction.original.method, &trial) {
            (Method::Invite, Some(_)) => {
                return invited(transports, transaction, trial, calls);
            }
            _ => Some((Box::new(transaction), StatusCode::ServiceUnavailable)),
        }
    };
    if let Some(refused) = refused {
        let (transaction, status) = refused;
        tokio::spawn(leg::refuse(*transaction, trial, status, Vec::new()));
    }
}

fn invited(
    transports: &Arc<Transports>,
    transaction: Transaction,
    trial: Option<Trial>,
    calls: &mpsc::Sender<Invitation>,
) {
    let flow = transaction.connection.as_ref().and_then(|connection| {
        let via = transaction.original.top_via_header().ok()?;
        transports.flow_back(&transaction.endpoint_inner, connection, &via)
    });
    let dialog = Dialog::inbound(&transaction.original);
    let (Some(flow), Some(mut dialog)) = (flow, dialog) else {
        let refused = leg::refuse(transaction, trial, StatusCode::BadRequest, Vec::new());
        tokio::spawn(refused);
        return;
    };
    dialog.takes_refer = transports.acl.refers;
    dialog.takes_replaces = transports.acl.replaces;
    let caller = Caller {
        transports: Arc::clone(transports),
        dialog: Mutex::new(dialog),
        authenticator: Mutex::new(Authenticator::new(None)),
        flow: Mutex::new(flow),
        // The settings name the networks that may call.
        private: true,
        proven: AtomicBool::new(false),
        reliable: leg::Reliable::default(),
    };
    let invitation = Invitation {
        transaction,
        trial,
        caller,
    };
    if let Err(error) = calls.try_send(invitation) {
        let invitation = error.into_inner();
        let refused = Refused {
            source: invitation.source(),
            from: "",
            to: "",
            status: 503,
            reason: "too many calls wait to be looked at",
            owner: None,
        };
        let ladder = || invitation.ladder();
        transports
            .acl
            .refused
            .note(refused, SystemTime::now(), ladder);
        tracing::warn!(source = %refused.source, status = 503, "too many calls wait to be looked at");
        invitation.refuse(503);
    }
}
