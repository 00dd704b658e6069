//! The SIP user agent: listens, calls, is called, and keeps dialogs, over UDP, TCP and TLS. Parsing and transactions are the
//! stack's (`rsipstack`), which is known in this module only; what a call is for, and its media, are others' business.

pub mod bounds;
pub mod client;
pub mod dialog;
pub mod digest;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod gate;
pub mod header;
mod leg;
mod path;
mod refer;
mod requests;
pub mod resolve;
mod stream;
#[cfg(test)]
mod tests;
mod transports;
mod unacknowledged;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ipnet::IpNet;
use rsipstack::sip::prelude::HeadersExt;
use rsipstack::sip::{Header, Method, Request, StatusCode, Uri};
use rsipstack::transaction::TransactionReceiver;
use rsipstack::transaction::transaction::Transaction;
use tokio::sync::mpsc;

use super::allowance::Allowance;
use client::Caller;
use dialog::Dialog;
use digest::{Authenticator, Credentials};
use gate::{Gate, to_tag};
pub use leg::{Failure, Invitation, Leg, LegEvent};
pub use path::Protocol;
pub use refer::Notification;
pub use requests::Offered;
use transports::Transports;
pub use unacknowledged::Unacknowledged;
use unacknowledged::{Trial, Trials};

/// Calls that wait to be looked at.
const WAITING_CALLS: usize = 64;
/// New requests within a call each second, and at once. A key in signalling is one.
const REQUESTS_PER_SECOND: u32 = 10;
const MOST_REQUESTS_AT_ONCE: u32 = 60;

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// Over what.
    pub protocol: Protocol,
    /// At which address.
    pub address: SocketAddr,
}

/// What TLS is spoken with.
#[derive(Clone, Default)]
pub struct TlsSettings {
    /// To those who connect.
    pub server: Option<Arc<rustls::ServerConfig>>,
    /// To those who are connected to.
    pub client: Option<Arc<rustls::ClientConfig>>,
}

/// The user agent. It ends when it is stopped.
#[derive(Clone)]
pub struct Agent {
    transports: Arc<Transports>,
}

/// A call to be made.
#[derive(Debug)]
pub struct Outbound {
    /// Over what.
    pub protocol: Protocol,
    /// Where the request goes.
    pub remote: SocketAddr,
    /// `host` or `host:port` in the URIs of the other side.
    pub host: String,
    /// Whom to call: a number or a user.
    pub to: String,
    /// Who calls.
    pub from: String,
    /// What people read of who calls.
    pub display_name: Option<String>,
    /// For whoever asks.
    pub credentials: Option<Credentials>,
    /// More headers of the request.
    pub headers: Vec<(String, String)>,
    /// Whether requests within the call may go to addresses that are not public, where the other side says so.
    pub private: bool,
}

impl Agent {
    /// Starts without listening anywhere. Calls come from `allowed` networks only; they are told to the receiver. Others are
    /// told to send to the `advertised` address where that is of their family.
    pub fn start(
        allowed: Vec<IpNet>,
        unacknowledged: Unacknowledged,
        tls: TlsSettings,
        advertised: Option<IpAddr>,
    ) -> (Self, mpsc::Receiver<Invitation>) {
        let (arrivals, arriving) = mpsc::channel(WAITING_CALLS);
        let (calls, invitations) = mpsc::channel(WAITING_CALLS);
        let gate = Gate::new(allowed);
        let trials = Trials::new(unacknowledged);
        let transports = Transports::new(gate, trials, tls, advertised, arrivals);
        let transports = Arc::new(transports);
        tokio::spawn(follow_arrivals(Arc::clone(&transports), arriving, calls));
        (Self { transports }, invitations)
    }

    /// Listens at one more address; returns which, with its port.
    pub async fn listen(&self, listen: &Listen) -> io::Result<SocketAddr> {
        self.transports.listen(listen).await
    }

    /// Opens the way to where a call goes; a connection may still be on its way when this returns.
    pub async fn reach(
        &self,
        protocol: Protocol,
        remote: SocketAddr,
        host: &str,
    ) -> io::Result<Reached> {
        let name = header::Address::parse(host).host().map(str::to_owned);
        let path = self
            .transports
            .path(protocol, remote, name.as_deref())
            .await?;
        Ok(Reached { path })
    }

    /// Calls.
    pub fn call(
        &self,
        reached: Reached,
        outbound: Outbound,
        offer: String,
    ) -> Result<Leg, InvalidUri> {
        let path = reached.path;
        let parameter = path.uri_parameter();
        let to = header::encode_user(&outbound.to);
        let from = header::encode_user(&outbound.from);
        let host = &outbound.host;
        let target = Uri::try_from(format!("sip:{}@{host}{parameter}", outbound.to));
        let target = target.map_err(|_| InvalidUri)?;
        let display = outbound.display_name.as_deref();
        let display = display.map(|name| format!("{} ", header::quote(name)));
        let from_header = format!(
            "{}<sip:{from}@{}>",
            display.unwrap_or_default(),
            path.told.ip().to_canonical_host(),
        );
        let to_header = format!("<sip:{to}@{host}>");
        let call_id = format!("{:032x}@vivavoce", fastrand::u128(..));
        let dialog = Dialog::outbound(call_id, &from_header, &to_header, target, &outbound.from);
        let headers = outbound.headers.into_iter();
        // Nothing that is written in a header may begin another.
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
            path: Mutex::new(path),
            private: outbound.private,
            // It is we who called.
            proven: AtomicBool::new(true),
        };
        Ok(Leg::call(caller, offer, headers))
    }

    /// Closes every socket. Calls that go on end without a word; they are to be hung up before.
    pub fn stop(&self) {
        self.transports.closed.cancel();
    }
}

/// The way to somebody who is about to be called.
pub struct Reached {
    path: path::Path,
}

impl Reached {
    /// Our own address on that way, whatever others are told.
    pub fn local_address(&self) -> SocketAddr {
        self.path.local
    }
}

/// What was to be called is no part of a URI.
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

/// The calls that there are, by Call-ID and our tag.
#[derive(Debug, Default)]
pub struct Dialogs(Mutex<HashMap<(String, String), Registered>>);

struct Registered {
    requests: mpsc::Sender<Transaction>,
    remote: SocketAddr,
    allowance: Allowance,
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
        requests: mpsc::Sender<Transaction>,
        remote: SocketAddr,
    ) {
        let registered = Registered {
            requests,
            remote,
            allowance: Allowance::new(REQUESTS_PER_SECOND, MOST_REQUESTS_AT_ONCE),
        };
        self.table().insert(key, registered);
    }

    pub(super) fn remove(&self, key: &(String, String)) {
        self.table().remove(key);
    }

    pub(super) fn knows(&self, request: &Request) -> bool {
        Self::key(request).is_some_and(|key| self.table().contains_key(&key))
    }

    /// Whether a call takes one more request now.
    pub(super) fn admits(&self, request: &Request, now: Instant) -> bool {
        Self::key(request).is_some_and(|key| {
            let mut table = self.table();
            let registered = table.get_mut(&key);
            registered.is_some_and(|registered| registered.allowance.take(1.0, now))
        })
    }

    /// Whether a call goes to this address.
    pub(super) fn reaches(&self, remote: SocketAddr) -> bool {
        let table = self.table();
        table.values().any(|registered| registered.remote == remote)
    }

    fn key(request: &Request) -> Option<(String, String)> {
        let call_id = request.call_id_header().ok()?.value().to_owned();
        Some((call_id, to_tag(request)?))
    }

    /// Hands a request to its call; returns it with a status where that cannot be.
    fn hand_over(&self, transaction: Transaction) -> Result<(), Box<(Transaction, StatusCode)>> {
        let requests = Self::key(&transaction.original)
            .and_then(|key| self.table().get(&key).map(|found| found.requests.clone()));
        let Some(requests) = requests else {
            return Err(Box::new((
                transaction,
                StatusCode::CallTransactionDoesNotExist,
            )));
        };
        requests.try_send(transaction).map_err(|error| {
            let transaction = error.into_inner();
            Box::new((transaction, StatusCode::ServiceUnavailable))
        })
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

/// A request that the gate let in.
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
            _ => Some(Box::new((transaction, StatusCode::ServiceUnavailable))),
        }
    };
    if let Some(refused) = refused {
        let (transaction, status) = *refused;
        tokio::spawn(leg::refuse(transaction, trial, status, Vec::new()));
    }
}

fn invited(
    transports: &Arc<Transports>,
    transaction: Transaction,
    trial: Option<Trial>,
    calls: &mpsc::Sender<Invitation>,
) {
    let path = transaction.connection.as_ref().and_then(|connection| {
        let via = transaction.original.top_via_header().ok()?;
        transports.path_back(&transaction.endpoint_inner, connection, &via)
    });
    let dialog = Dialog::inbound(&transaction.original);
    let (Some(path), Some(dialog)) = (path, dialog) else {
        let refused = leg::refuse(transaction, trial, StatusCode::BadRequest, Vec::new());
        tokio::spawn(refused);
        return;
    };
    let caller = Caller {
        transports: Arc::clone(transports),
        dialog: Mutex::new(dialog),
        authenticator: Mutex::new(Authenticator::new(None)),
        path: Mutex::new(path),
        // Whoever may call is somebody whom the settings name.
        private: true,
        proven: AtomicBool::new(false),
    };
    let invitation = Invitation {
        transaction,
        trial,
        caller,
    };
    if let Err(error) = calls.try_send(invitation) {
        error.into_inner().refuse(503);
    }
}
