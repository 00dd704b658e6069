//! The sockets of the user agent: listeners, and outbound connections. Received messages pass the access control and go to
//! the SIP stack; a panic of the stack's parser is contained to the message. The stack itself opens no sockets.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt as _;
use rsipstack::EndpointBuilder;
use rsipstack::sip::prelude::{HeadersExt as _, ToTypedHeader as _};
use rsipstack::sip::{Header, Host, Method, Request, Response, SipMessage};
use rsipstack::transaction::TransactionReceiver;
use rsipstack::transaction::endpoint::{EndpointInnerRef, EndpointOption};
use rsipstack::transaction::key::{TransactionKey, TransactionRole};
use rsipstack::transport::SipConnection;
use rsipstack::transport::udp::UdpConnection;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use super::super::ladder::{Ladder, Ladders, Sent};
use super::super::refusals::Refused;
use super::acl::{Acl, Verdict, answer, to_tag};
use super::bounds::fits;
use super::challenge::Challenger;
use super::dialog::PRODUCT;
use super::flow::{Flow, Protocol, canonical, is_asked, mapped, source_towards, stack_address};
use super::registrar;
use super::repetitions::{Repeated, Repetitions};
use super::replaces::replaced;
use super::stream::{self, Taker, carry};
use super::unacknowledged::{Trial, Trials, network};
use super::{Dialogs, Listen, TlsSettings, websocket};
use vivavoce_quotas::{Party, Share, Tally};
use vivavoce_takeover::{Datagrams, Given, OpenDatagrams, SocketName, SocketUse, Sockets};
use vivavoce_telemetry::metrics::{self, SipRefusal};

/// Size of the receive buffer (RFC 3261 section 18.1.1 has datagrams far smaller).
const MOST_DATAGRAM: usize = 65_535;
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Inbound connections from addresses that may call, shared fairly between them.
const MOST_STREAMS: u64 = 1_000;
/// Inbound connections from all other addresses, over which only requests within calls are accepted.
pub(super) const MOST_STRANGERS: usize = 100;
/// Of those, the ones from one address.
pub(super) const MOST_STRANGERS_OF_ADDRESS: usize = 10;

/// The place of an inbound connection.
struct Slot {
    of: Arc<Transports>,
    stranger: bool,
    from: IpAddr,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let from = self.from;
        if !self.stranger {
            lock(&self.of.streams).release(&party(from), 1);
            return;
        }
        let mut strangers = lock(&self.of.strangers);
        let left = strangers.get(&from).map_or(0, |own| own.saturating_sub(1));
        if left == 0 {
            strangers.remove(&from);
        } else {
            strangers.insert(from, left);
        }
    }
}

/// The party that connections from an address count for.
fn party(from: IpAddr) -> Party {
    Party::Address(network(from))
}

/// A socket or listener with its endpoint of the stack.
struct Bound {
    protocol: Protocol,
    /// The bound address; it may be unspecified.
    address: SocketAddr,
    /// Whether an IPv6 socket takes IPv4, too.
    both: bool,
    endpoint: EndpointInnerRef,
    /// For UDP.
    connection: Option<SipConnection>,
}

/// The peer of a connection: protocol, address, and the name its certificate was verified for (none for inbound
/// connections).
type StreamKey = (Protocol, SocketAddr, Option<String>);

/// A connection that can be reused.
struct OpenStream {
    connection: SipConnection,
    local: SocketAddr,
}

/// The sockets and connections. See the module.
pub(super) struct Transports {
    pub acl: Acl,
    pub dialogs: Dialogs,
    pub trials: Arc<Trials>,
    pub ladders: Ladders,
    challenger: Challenger,
    /// Inbound calls that the stack has yet to report.
    begun: Mutex<HashMap<TransactionKey, Trial>>,
    repetitions: Mutex<Repetitions>,
    tls: TlsSettings,
    advertised: Option<IpAddr>,
    bound: Mutex<Vec<Arc<Bound>>>,
    open_streams: Mutex<HashMap<StreamKey, OpenStream>>,
    /// Receivers of further 2xx responses to an INVITE.
    answers: Mutex<HashMap<TransactionKey, mpsc::Sender<Response>>>,
    streams: Mutex<Tally>,
    strangers: Mutex<HashMap<IpAddr, usize>>,
    arrivals: mpsc::Sender<TransactionReceiver>,
    pub closed: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transports {
    /// `arrivals` receives the queue of incoming requests of each endpoint.
    pub fn new(
        acl: Acl,
        trials: Arc<Trials>,
        tls: TlsSettings,
        advertised: Option<IpAddr>,
        ladders: Ladders,
        arrivals: mpsc::Sender<TransactionReceiver>,
    ) -> Self {
        Self {
            acl,
            dialogs: Dialogs::default(),
            trials,
            ladders,
            challenger: Challenger::new(Instant::now()),
            begun: Mutex::default(),
            repetitions: Mutex::default(),
            tls,
            advertised,
            bound: Mutex::default(),
            open_streams: Mutex::default(),
            answers: Mutex::default(),
            streams: Mutex::new(Tally::new(MOST_STREAMS, Share::default())),
            strangers: Mutex::default(),
            arrivals,
            closed: CancellationToken::new(),
        }
    }

    #[cfg(test)]
    pub const fn tls(&self) -> &TlsSettings {
        &self.tls
    }

    /// Listens, at the socket of a former server where there is one; returns the address with its port.
    pub async fn listen(
        self: &Arc<Self>,
        listen: &Listen,
        sockets: &Sockets,
    ) -> io::Result<SocketAddr> {
        let of = match listen.protocol {
            Protocol::Udp => SocketUse::SipUdp,
            Protocol::Tcp => SocketUse::SipTcp,
            Protocol::Tls => SocketUse::SipTls,
            Protocol::Ws => SocketUse::SipWs,
            Protocol::Wss => SocketUse::SipWss,
        };
        let name = SocketName::new(of, listen.address);
        match listen.protocol {
            Protocol::Udp => {
                let socket = sockets.datagrams(name, || StdUdpSocket::bind(listen.address))?;
                Ok(self.carry_udp(socket).await?.address)
            }
            protocol => {
                let acceptor = if protocol.is_encrypted() {
                    let server = match protocol {
                        // Browsers have no certificates of their own.
                        Protocol::Wss => self.tls.web.clone(),
                        _ => self.tls.server.clone(),
                    };
                    let server = server.ok_or_else(|| {
                        io::Error::other(
                            "sip.tls_cert and sip.tls_key are required for tls and wss",
                        )
                    })?;
                    Some(TlsAcceptor::from(server))
                } else {
                    None
                };
                let bind = || vivavoce_takeover::listen(listen.address);
                let (listener, given) = sockets.listener(name, bind)?;
                listener.set_nonblocking(true)?;
                let listener = TcpListener::from_std(listener)?;
                let address = listener.local_addr()?;
                let both = takes_both(&listener, address);
                let endpoint = self.endpoint(protocol).await?;
                lock(&self.bound).push(Arc::new(Bound {
                    protocol,
                    address,
                    both,
                    endpoint: endpoint.clone(),
                    connection: None,
                }));
                let here = Arc::clone(self);
                tokio::spawn(here.accept((listener, given), protocol, acceptor, endpoint));
                Ok(address)
            }
        }
    }

    /// A new endpoint of the stack, with its timers but without sockets.
    async fn endpoint(&self, protocol: Protocol) -> io::Result<EndpointInnerRef> {
        let option = EndpointOption {
            callid_suffix: Some("vivavoce".to_owned()),
            // How long a call may ring is decided in `call`.
            timerc: Duration::from_mins(30),
            // It would be sent to wherever the response says, over sockets of its own.
            auto_ack_2xx: false,
            ..EndpointOption::default()
        };
        let endpoint = EndpointBuilder::new()
            .with_user_agent(PRODUCT)
            .with_option(option)
            .with_cancel_token(self.closed.child_token())
            .with_inspector(Box::new(Sent {
                ladders: self.ladders.clone(),
                protocol,
            }))
            .build();
        let incoming = endpoint.incoming_transactions().map_err(io::Error::other)?;
        let arrived = self.arrivals.send(incoming).await;
        arrived.map_err(|_| io::Error::other("the user agent has ended"))?;
        let (timers, closed) = (endpoint.inner.clone(), self.closed.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = timers.process_timer() => {}
            }
        });
        Ok(endpoint.inner)
    }

    async fn carry_udp(self: &Arc<Self>, socket: Datagrams) -> io::Result<Arc<Bound>> {
        let datagrams = socket.open()?;
        let socket = Arc::clone(datagrams.socket());
        let address = socket.local_addr()?;
        let both = takes_both(&socket, address);
        let connection = UdpConnection::from_socket(socket.clone(), None, None);
        let connection = SipConnection::Udp(connection.await.map_err(io::Error::other)?);
        let endpoint = self.endpoint(Protocol::Udp).await?;
        let bound = Arc::new(Bound {
            protocol: Protocol::Udp,
            address,
            both,
            endpoint: endpoint.clone(),
            connection: Some(connection.clone()),
        });
        lock(&self.bound).push(Arc::clone(&bound));
        let here = Arc::clone(self);
        tokio::spawn(here.receive_datagrams(datagrams, endpoint, connection));
        Ok(bound)
    }

    async fn receive_datagrams(
        self: Arc<Self>,
        datagrams: OpenDatagrams,
        endpoint: EndpointInnerRef,
        connection: SipConnection,
    ) {
        let mut datagram = vec![0; MOST_DATAGRAM];
        loop {
            let received = tokio::select! {
                () = self.closed.cancelled() => return,
                received = datagrams.recv_from(&mut datagram) => received,
            };
            // An error is about an earlier datagram.
            let Ok((length, from)) = received else {
                continue;
            };
            let bytes = datagram.get(..length).unwrap_or_default();
            if bytes.iter().all(u8::is_ascii_whitespace) {
                if bytes == b"\r\n\r\n" && self.acl.allows(from.ip()) {
                    let _sent = datagrams.socket().try_send_to(b"\r\n", from);
                }
                continue;
            }
            if datagrams.has_former() && !self.is_for_this_server(bytes, from, &endpoint) {
                datagrams.pass_on(from, bytes);
                continue;
            }
            self.take(bytes, from, Protocol::Udp, &endpoint, &connection)
                .await;
        }
    }

    /// Whether a message begins something, or belongs to what was begun here, and not by the former server.
    fn is_for_this_server(
        &self,
        bytes: &[u8],
        from: SocketAddr,
        endpoint: &EndpointInnerRef,
    ) -> bool {
        let read = std::panic::catch_unwind(|| SipMessage::try_from(bytes));
        let request = match read {
            Ok(Ok(SipMessage::Response(response))) => return is_of_asked(&response, from),
            Ok(Ok(SipMessage::Request(request))) => request,
            // What nobody can read needs no second reader.
            Ok(Err(_)) | Err(_) => return true,
        };
        let follows =
            matches!(request.method, Method::Ack | Method::Cancel) || to_tag(&request).is_some();
        let is_of_transaction = || {
            let key = TransactionKey::from_request(&request, TransactionRole::Server);
            key.is_ok_and(|key| is_known(endpoint, &key))
        };
        // Or is to take the place of a call that is not here.
        let follows =
            follows || replaced(&request).is_some_and(|dialog| !self.dialogs.has(&dialog));
        !follows || self.dialogs.knows(&request) || is_of_transaction()
    }

    async fn accept(
        self: Arc<Self>,
        (listener, given): (TcpListener, Given),
        protocol: Protocol,
        acceptor: Option<TlsAcceptor>,
        endpoint: EndpointInnerRef,
    ) {
        loop {
            let accepted = tokio::select! {
                () = self.closed.cancelled() => return,
                accepted = given.accept(&listener) => accepted,
            };
            let Ok((stream, remote)) = accepted else {
                // Too many open files: retrying at once would fail again.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let remote = canonical(remote);
            let stranger = !protocol.is_web() && !self.acl.allows(remote.ip());
            let Some(slot) = self.slot(stranger, remote.ip()) else {
                metrics::sip_refused(SipRefusal::Connection);
                continue;
            };
            let here = Arc::clone(&self);
            let (acceptor, endpoint) = (acceptor.clone(), endpoint.clone());
            tokio::spawn(async move {
                let task = StreamTask {
                    here: Arc::clone(&here),
                    endpoint,
                    protocol,
                    stranger,
                };
                let _ended = task.welcome(stream, remote, acceptor).await;
                drop(slot);
            });
        }
    }

    /// A place for an inbound connection.
    fn slot(self: &Arc<Self>, stranger: bool, from: IpAddr) -> Option<Slot> {
        if stranger {
            let mut strangers = lock(&self.strangers);
            let all: usize = strangers.values().sum();
            let own = strangers.get(&from).copied().unwrap_or(0);
            if all >= MOST_STRANGERS || own >= MOST_STRANGERS_OF_ADDRESS {
                return None;
            }
            strangers.insert(from, own + 1);
        } else {
            lock(&self.streams).take(&party(from), 1).ok()?;
        }
        Some(Slot {
            of: Arc::clone(self),
            stranger,
            from,
        })
    }

    fn forget_stream(&self, key: &StreamKey) {
        let mut open_streams = lock(&self.open_streams);
        let ended = open_streams.get(key).is_some_and(|stream| {
            let token = stream.connection.cancel_token();
            token.is_none_or(|token| token.is_cancelled())
        });
        if ended {
            open_streams.remove(key);
        }
    }

    /// From now on, 2xx responses to this INVITE that arrive after its transaction has ended are passed to `answers`.
    pub fn follow_answers(&self, key: TransactionKey, answers: mpsc::Sender<Response>) {
        lock(&self.answers).insert(key, answers);
    }

    pub fn forget_answers(&self, key: &TransactionKey) {
        lock(&self.answers).remove(key);
    }

    /// Passes on a 2xx response whose transaction has ended: a retransmission, or that of another fork (RFC 3261 section
    /// 13.2.2.4).
    fn answered_again(&self, endpoint: &EndpointInnerRef, response: &Response) -> Option<()> {
        let key = TransactionKey::from_response(response, TransactionRole::Client).ok()?;
        if response.status_code.code() / 100 != 2 || endpoint.transactions.contains_key(&key) {
            return None;
        }
        let answers = lock(&self.answers).get(&key).cloned()?;
        // If the queue is full, a retransmission will follow.
        let _told = answers.try_send(response.clone());
        Some(())
    }

    /// Handles a received message; whether it is a request within a call.
    async fn take(
        &self,
        bytes: &[u8],
        from: SocketAddr,
        protocol: Protocol,
        endpoint: &EndpointInnerRef,
        connection: &SipConnection,
    ) -> bool {
        let source = (canonical(from), protocol);
        if !fits(bytes, !self.acl.allows_over(source, Instant::now())) {
            metrics::sip_refused(SipRefusal::Size);
            return false;
        }
        let mut begun = None;
        let work = async {
            let message = SipMessage::try_from(bytes).ok()?;
            let message =
                SipConnection::update_msg_received(message, from, protocol.to_stack()).ok()?;
            let mut in_dialog = false;
            match &message {
                SipMessage::Request(request) => {
                    if protocol == Protocol::Udp && !is_answered_at(request, from) {
                        return None;
                    }
                    if !has_single_fields(request) {
                        return None;
                    }
                    in_dialog = self.dialogs.knows(request);
                    let now = Instant::now();
                    let verdict = match self.acl.judge(request, source, in_dialog, now) {
                        Verdict::Take => match wrong_line(bytes) {
                            Some(code) if request.method != Method::Ack => Err(Some(code)),
                            _ => self.admit(request, from.ip(), protocol, endpoint, now),
                        },
                        Verdict::Register => {
                            let to = (from, protocol);
                            self.register(request, to, endpoint, connection).await;
                            return None;
                        }
                        Verdict::Drop => {
                            metrics::sip_refused(SipRefusal::NotAllowed);
                            return None;
                        }
                        Verdict::Answer(code) => {
                            if code == 403 {
                                metrics::sip_refused(SipRefusal::NotAllowed);
                            }
                            Err(Some(code))
                        }
                    };
                    match verdict {
                        Ok(key) => begun = key,
                        Err(None) => {
                            metrics::sip_refused(SipRefusal::Rate);
                            return None;
                        }
                        Err(Some(code)) => {
                            self.answer(request, code, from, protocol, endpoint, connection)
                                .await;
                            return None;
                        }
                    }
                }
                SipMessage::Response(response) => {
                    if !is_of_asked(response, from) {
                        tracing::debug!(%from, "dropped a SIP response of another address");
                        return None;
                    }
                    if self.answered_again(endpoint, response).is_some() {
                        let remote = Some(canonical(from).to_string());
                        self.ladders.note(&message, false, protocol, remote);
                        return None;
                    }
                }
            }
            if let (Some(_), SipMessage::Request(request)) = (&begun, &message)
                && let Ok(call_id) = request.call_id_header()
            {
                self.ladders.open(call_id.value());
            }
            let remote = canonical(from).to_string();
            self.ladders.note(&message, false, protocol, Some(remote));
            let from = stack_address(protocol, from);
            let handled = endpoint.on_received_message(message, connection.clone(), &from);
            handled.await.ok()?;
            Some(in_dialog)
        };
        // A panic of the parser ends this message only.
        let taken = AssertUnwindSafe(work).catch_unwind().await;
        let taken = taken.unwrap_or_else(|_| {
            tracing::debug!("the SIP stack panicked on a message, which was dropped");
            None
        });
        if taken.is_none()
            && let Some(key) = begun
        {
            lock(&self.begun).remove(&key);
        }
        taken == Some(true)
    }

    /// Admits a request to the stack, which keeps some state for each new one, or returns the status code that refuses it;
    /// without one it is dropped. The key is that of a new call.
    fn admit(
        &self,
        request: &Request,
        from: IpAddr,
        protocol: Protocol,
        endpoint: &EndpointInnerRef,
        now: Instant,
    ) -> Result<Option<TransactionKey>, Option<u16>> {
        // The stack will say what is wrong with it.
        let Ok(key) = TransactionKey::from_request(request, TransactionRole::Server) else {
            return Ok(None);
        };
        if is_known(endpoint, &key) {
            let repeated = (key, Repeated::of(&request.method));
            let answers =
                protocol != Protocol::Udp || lock(&self.repetitions).answers(repeated, now);
            return if answers { Ok(None) } else { Err(None) };
        }
        match request.method {
            // That of a 2xx response has a transaction of its own (RFC 3261 section 17.1.1.3).
            Method::Ack => return Ok(None),
            Method::Cancel => return Err(Some(481)),
            _ => {}
        }
        if to_tag(request).is_some() {
            if self.dialogs.admits(request, now) {
                return Ok(None);
            }
            metrics::sip_refused(SipRefusal::Rate);
            return Err(Some(503));
        }
        let Some(trial) = self.trials.begin(from, now) else {
            metrics::sip_refused(SipRefusal::Unacknowledged);
            return Err(Some(503));
        };
        lock(&self.begun).insert(key.clone(), trial);
        Ok(Some(key))
    }

    /// The trial of a new call.
    pub fn trial(&self, key: &TransactionKey) -> Option<Trial> {
        lock(&self.begun).remove(key)
    }

    /// Carries out a REGISTER.
    async fn register(
        &self,
        request: &Request,
        (from, protocol): (SocketAddr, Protocol),
        endpoint: &EndpointInnerRef,
        connection: &SipConnection,
    ) {
        let now = Instant::now();
        if !self.acl.may_answer(from.ip(), now) {
            metrics::sip_refused(SipRefusal::Rate);
            return;
        }
        let source = (canonical(from), protocol);
        let reply = registrar::register(&self.acl.phones, &self.challenger, request, source, now);
        let mut answer = answer(endpoint, request, reply.code);
        answer.headers.extend(reply.headers);
        let to = stack_address(protocol, from);
        let _sent = connection.send(answer.into(), Some(&to)).await;
    }

    /// Sends a stateless response.
    async fn answer(
        &self,
        request: &Request,
        code: u16,
        from: SocketAddr,
        protocol: Protocol,
        endpoint: &EndpointInnerRef,
        connection: &SipConnection,
    ) {
        let now = Instant::now();
        if code >= 300 {
            self.acl.log_refusal(code, from.ip(), now);
            if request.method == Method::Invite {
                let reason = match code {
                    403 => "its source is none of sip.allowed_addresses",
                    _ => "it was refused before anybody looked at it",
                };
                let refused = Refused {
                    source: from.ip(),
                    from: "",
                    to: "",
                    status: code,
                    reason,
                    owner: None,
                };
                self.acl.refused.note(refused, SystemTime::now(), || {
                    let ladder = Ladder::default();
                    let remote = Some(canonical(from).to_string());
                    let invite = request.clone().into();
                    let ladders = &self.ladders;
                    ladders.write(&ladder, &invite, false, protocol, remote.clone());
                    let answer = answer(endpoint, request, code).into();
                    ladders.write(&ladder, &answer, true, protocol, remote);
                    ladder
                });
            }
        }
        if protocol == Protocol::Udp && !self.acl.may_answer(from.ip(), now) {
            metrics::sip_refused(SipRefusal::Rate);
            return;
        }
        let answer = answer(endpoint, request, code);
        let to = stack_address(protocol, from);
        let _sent = connection.send(answer.into(), Some(&to)).await;
    }

    /// A flow to an address, with a new connection if needed. `name` is what a certificate must be valid for.
    pub async fn flow(
        self: &Arc<Self>,
        protocol: Protocol,
        remote: SocketAddr,
        name: Option<&str>,
    ) -> io::Result<Flow> {
        match protocol {
            Protocol::Udp => self.flow_udp(remote).await,
            Protocol::Tcp | Protocol::Ws | Protocol::Wss => {
                self.flow_stream(protocol, remote, None).await
            }
            Protocol::Tls => self.flow_stream(protocol, remote, name).await,
        }
    }

    /// Our address as peers reach it.
    fn told(&self, local: IpAddr, port: u16) -> SocketAddr {
        let advertised = self
            .advertised
            .filter(|told| told.is_ipv4() == local.is_ipv4());
        (advertised.unwrap_or(local), port).into()
    }

    /// A listener of this protocol that is reachable at `source`.
    fn listening(&self, protocol: Protocol, source: IpAddr) -> Option<Arc<Bound>> {
        let bound = lock(&self.bound);
        let fits = |one: &&Arc<Bound>| {
            let ip = one.address.ip();
            let family = ip.is_ipv4() == source.is_ipv4() || one.both;
            one.protocol == protocol && (ip == source || ip.is_unspecified() && family)
        };
        bound.iter().find(fits).cloned()
    }

    async fn flow_udp(self: &Arc<Self>, remote: SocketAddr) -> io::Result<Flow> {
        let source = source_towards(remote)?;
        let bound = match self.listening(Protocol::Udp, source) {
            Some(bound) => bound,
            None => {
                let any: IpAddr = match source {
                    IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                self.carry_udp(Datagrams::alone(StdUdpSocket::bind((any, 0))?))
                    .await?
            }
        };
        let connection = bound.connection.clone();
        let connection = connection.ok_or_else(|| io::Error::other("no socket"))?;
        Ok(Flow {
            endpoint: bound.endpoint.clone(),
            connection,
            protocol: Protocol::Udp,
            local: (source, bound.address.port()).into(),
            told: self.told(source, bound.address.port()),
            remote: if bound.address.is_ipv6() {
                mapped(remote)
            } else {
                remote
            },
            name: None,
        })
    }

    async fn flow_stream(
        self: &Arc<Self>,
        protocol: Protocol,
        remote: SocketAddr,
        name: Option<&str>,
    ) -> io::Result<Flow> {
        let key = (protocol, remote, name.map(str::to_owned));
        let known = {
            let open_streams = lock(&self.open_streams);
            // A telephone has proved itself over the connection that it has opened.
            let is_phone = self.acl.phones.is_at(protocol, remote, Instant::now());
            let theirs = || {
                open_streams
                    .get(&(protocol, remote, None))
                    .filter(|_| is_phone)
            };
            let stream = open_streams.get(&key).or_else(theirs);
            stream.map(|stream| (stream.connection.clone(), stream.local))
        };
        let open = known.filter(|(connection, _)| {
            let token = connection.cancel_token();
            token.is_some_and(|token| !token.is_cancelled())
        });
        let listening = source_towards(remote)
            .ok()
            .and_then(|source| self.listening(protocol, source));
        let endpoint = match &listening {
            Some(bound) => bound.endpoint.clone(),
            None => self.stream_endpoint(protocol).await?,
        };
        let (connection, local) = match open {
            Some(open) => open,
            None if protocol.is_web() => {
                return Err(io::Error::other("the browser's connection is closed"));
            }
            None => self.connect(&key, &endpoint).await?,
        };
        let port = listening.map_or(local.port(), |bound| bound.address.port());
        Ok(Flow {
            endpoint,
            connection,
            protocol,
            local: (local.ip(), port).into(),
            told: self.told(local.ip(), port),
            remote,
            name: key.2,
        })
    }

    /// An endpoint for connections of a protocol without a listener.
    async fn stream_endpoint(&self, protocol: Protocol) -> io::Result<EndpointInnerRef> {
        let find = || {
            let bound = lock(&self.bound);
            let found = bound.iter().find(|one| one.protocol == protocol);
            found.map(|one| one.endpoint.clone())
        };
        if let Some(endpoint) = find() {
            return Ok(endpoint);
        }
        let endpoint = self.endpoint(protocol).await?;
        lock(&self.bound).push(Arc::new(Bound {
            protocol,
            // No local address is this one, so it is never advertised.
            address: (Ipv4Addr::BROADCAST, 0).into(),
            both: false,
            endpoint: endpoint.clone(),
            connection: None,
        }));
        Ok(endpoint)
    }

    async fn connect(
        self: &Arc<Self>,
        key: &StreamKey,
        endpoint: &EndpointInnerRef,
    ) -> io::Result<(SipConnection, SocketAddr)> {
        let (protocol, remote, name) = key.clone();
        let name = match name {
            Some(name) => ServerName::try_from(name).map_err(io::Error::other)?,
            None => ServerName::IpAddress(remote.ip().into()),
        };
        // Bound before it connects: its address is in the first message, which waits for the connection.
        let socket = match remote {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.bind((source_towards(remote)?, 0).into())?;
        socket.set_nodelay(true)?;
        let local = socket.local_addr()?;
        let closed = self.closed.child_token();
        let (connection, outgoing) = stream::connection(protocol, remote, closed.clone()).await?;
        let stream = OpenStream {
            connection: connection.clone(),
            local,
        };
        lock(&self.open_streams).insert(key.clone(), stream);
        let task = StreamTask {
            here: Arc::clone(self),
            endpoint: endpoint.clone(),
            protocol,
            stranger: false,
        };
        let key = key.clone();
        let ends = (connection.clone(), outgoing);
        tokio::spawn(async move {
            let opened = task.open(socket, remote, name, ends, closed.clone());
            if let Err(error) = opened.await {
                tracing::info!(%error, "a SIP connection could not be opened");
                closed.cancel();
            }
            closed.cancelled().await;
            task.here.forget_stream(&key);
        });
        Ok((connection, local))
    }

    /// The flow back to the sender of a request.
    pub fn flow_back(
        &self,
        endpoint: &EndpointInnerRef,
        connection: &SipConnection,
        via: &rsipstack::sip::Via,
    ) -> Option<Flow> {
        let (protocol, remote) = if let SipConnection::Udp(_) = connection {
            let (_, source) = SipConnection::parse_target_from_via(via).ok()?;
            let Host::IpAddr(ip) = source.host else {
                return None;
            };
            let port = source.port.map_or(5060, u16::from);
            (Protocol::Udp, SocketAddr::new(ip, port))
        } else {
            let remote = connection.get_remote_addr()?;
            (
                Protocol::of_stack(remote.r#type?)?,
                remote.get_socketaddr().ok()?,
            )
        };
        let bound = lock(&self.bound);
        let bound = bound
            .iter()
            .find(|one| Arc::ptr_eq(&one.endpoint, endpoint))?;
        let source = match source_towards(remote) {
            Ok(source) if bound.address.ip().is_unspecified() => source,
            _ => bound.address.ip().to_canonical(),
        };
        Some(Flow {
            endpoint: endpoint.clone(),
            connection: connection.clone(),
            protocol,
            local: (source, bound.address.port()).into(),
            told: self.told(source, bound.address.port()),
            remote,
            name: None,
        })
    }
}

/// The status for a request line that the stack reads more kindly than it should: that of another version, or with a URI in angle
/// brackets (RFC 4475 sections 3.1.2.7 and 3.1.2.16).
fn wrong_line(request: &[u8]) -> Option<u16> {
    let line = request
        .split(|byte| *byte == b'\r' || *byte == b'\n')
        .next()?;
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let uri = words.nth(1)?;
    let version = words.next_back()?;
    if !version.eq_ignore_ascii_case(b"SIP/2.0") {
        return Some(505);
    }
    uri.starts_with(b"<").then_some(400)
}

/// Whether there is, or was just now, a transaction of this key.
fn is_known(endpoint: &EndpointInnerRef, key: &TransactionKey) -> bool {
    endpoint.transactions.contains_key(key) || endpoint.finished_transactions.contains_key(key)
}

/// Whether the response goes to the source of the request. The parameters of `Via` could direct it at anyone.
fn is_answered_at(request: &Request, from: SocketAddr) -> bool {
    let via = request.top_via_header().ok();
    let target = via.and_then(|via| SipConnection::parse_target_from_via(&via).ok());
    target.is_some_and(|(_, target)| match target.host {
        Host::IpAddr(ip) => ip.to_canonical() == from.ip().to_canonical(),
        Host::Domain(_) => false,
    })
}

/// Whether a request has no field twice that every response repeats (RFC 3261 section 8.2.6.2). Each may grow in a response,
/// from the compact form of its name to the full one.
fn has_single_fields(request: &Request) -> bool {
    let count =
        |is: fn(&Header) -> bool| request.headers.iter().filter(|header| is(header)).count();
    [
        count(|header| matches!(header, Header::From(_))),
        count(|header| matches!(header, Header::To(_))),
        count(|header| matches!(header, Header::CallId(_))),
        count(|header| matches!(header, Header::CSeq(_))),
    ]
    .iter()
    .all(|count| *count <= 1)
}

/// Whether the response comes from where its request went.
fn is_of_asked(response: &Response, from: SocketAddr) -> bool {
    let via = response.top_via_header().ok();
    let via = via.and_then(|via| via.typed().ok());
    let branch = via.as_ref().and_then(|via| via.branch());
    branch.is_some_and(|branch| is_asked(branch.value(), from.ip()))
}

/// Whether an IPv6 socket accepts IPv4: the default differs between systems.
fn takes_both<'a, S>(socket: &'a S, address: SocketAddr) -> bool
where
    SockRef<'a>: From<&'a S>,
{
    address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        && SockRef::from(socket).only_v6().is_ok_and(|only| !only)
}

/// Passes what arrives over a stream to its endpoint.
#[derive(Clone)]
struct StreamTask {
    here: Arc<Transports>,
    endpoint: EndpointInnerRef,
    protocol: Protocol,
    /// Whether the peer connected from an address that may not call.
    stranger: bool,
}

impl StreamTask {
    /// Serves an inbound connection until it ends.
    async fn welcome(
        self,
        stream: TcpStream,
        remote: SocketAddr,
        acceptor: Option<TlsAcceptor>,
    ) -> io::Result<()> {
        let (here, protocol) = (Arc::clone(&self.here), self.protocol);
        let local = canonical(stream.local_addr()?);
        let closed = here.closed.child_token();
        let ends = stream::connection(protocol, remote, closed.clone()).await?;
        let connection = ends.0.clone();
        match acceptor {
            None => self.carry(stream, ends, remote, closed.clone()).await?,
            Some(acceptor) => {
                let stream = timeout(CONNECT_PATIENCE, acceptor.accept(stream)).await??;
                self.carry(stream, ends, remote, closed.clone()).await?;
            }
        }
        let key = (protocol, remote, None);
        lock(&here.open_streams).insert(key.clone(), OpenStream { connection, local });
        closed.cancelled().await;
        here.forget_stream(&key);
        Ok(())
    }

    async fn carry<S>(
        self,
        stream: S,
        ends: (SipConnection, stream::Outgoing),
        remote: SocketAddr,
        closed: CancellationToken,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if self.protocol.is_web() {
            let socket = timeout(CONNECT_PATIENCE, websocket::accept(stream)).await??;
            websocket::carry(socket, ends, remote, closed, Arc::new(self));
        } else {
            carry(stream, ends, remote, closed, Arc::new(self));
        }
        Ok(())
    }

    /// Connects.
    async fn open(
        &self,
        socket: TcpSocket,
        remote: SocketAddr,
        name: ServerName<'static>,
        ends: (SipConnection, stream::Outgoing),
        closed: CancellationToken,
    ) -> io::Result<()> {
        let stream = timeout(CONNECT_PATIENCE, socket.connect(remote)).await??;
        let taker = Arc::new(self.clone());
        if self.protocol == Protocol::Tls {
            let client = self.here.tls.client.clone();
            let client =
                client.ok_or_else(|| io::Error::other("outbound TLS is not configured"))?;
            let connected = TlsConnector::from(client).connect(name, stream);
            let stream = timeout(CONNECT_PATIENCE, connected).await??;
            carry(stream, ends, remote, closed, taker);
        } else {
            carry(stream, ends, remote, closed, taker);
        }
        Ok(())
    }
}

impl Taker for StreamTask {
    async fn take(&self, bytes: &[u8], from: SocketAddr, connection: &SipConnection) -> bool {
        self.here
            .take(bytes, from, self.protocol, &self.endpoint, connection)
            .await
    }

    fn stranger(&self, remote: SocketAddr) -> bool {
        if self.protocol.is_web() {
            let source = (remote, self.protocol);
            return !self.here.acl.allows_over(source, Instant::now());
        }
        self.stranger
    }

    fn keeps(&self, remote: SocketAddr) -> bool {
        self.here.dialogs.reaches(remote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Unacknowledged;

    #[tokio::test]
    async fn one_address_that_may_call_leaves_connections_to_the_next() {
        let (arrivals, _arriving) = mpsc::channel(1);
        let transports = Arc::new(Transports::new(
            Acl::new(Vec::new()),
            Trials::new(Unacknowledged::default()),
            TlsSettings::default(),
            None,
            Ladders::default(),
            arrivals,
        ));
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let everything = |from: &str| -> Vec<Slot> {
            std::iter::from_fn(|| transports.slot(false, address(from))).collect()
        };
        let gateway = everything("192.0.2.1");
        assert_eq!(gateway.len(), 750);
        let mut others = everything("192.0.2.2");
        assert_eq!(others.len(), 188);
        // Addresses in one IPv6 network share a limit.
        others.extend(everything("2001:db8::1"));
        assert!(transports.slot(false, address("2001:db8::2")).is_none());
        assert!(transports.slot(false, address("2001:db8:0:1::1")).is_some());
        // A closed connection frees its place.
        drop(others);
        drop(gateway);
        assert_eq!(everything("192.0.2.2").len(), 750);
    }
}
