//! Connections from the moment they are accepted, before TLS and before a byte is read: how many there may be per
//! party, what they may send before they are answered, how long clients may keep the server waiting, and which
//! connections are evicted for new ones. Unauthenticated connections have a share of the total ([`table`]), and so has
//! each tenant; the operator's are limited only by the total. A response that its client does not read is not held
//! forever.

mod pipelining;
mod table;
mod turns;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::middleware::Next;
use actix_web::rt::net::{ActixStream, Ready, TcpStream};
use actix_web::web::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::body::LEAST_BYTES_PER_SECOND;
use super::limits::{Full, Share, Shares, network};
use super::peer::TrustedProxies;
pub use pipelining::Pipelined;
use pipelining::PipelinedRequests;
use table::{Bounds, Phase, Table, Ticket};
use turns::{Turn, poll_turn};
use vivavoce_config::Settings;
use vivavoce_quotas::{self as quotas, Kind, Party, Refused, Why};
use vivavoce_socket::Successor;
use vivavoce_telemetry::metrics::{self, ConnectionCut};

/// How long a client may keep the server waiting for a request's head: from connecting (including the TLS handshake),
/// or from the last response (including the rest of that request's body). Within this, a handshake has 3 s, the first
/// head 5 s, and a silent connection 5 s.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(10);

/// How far a client may fall behind the minimum rate of reading a response. (The kernel closes connections of clients
/// that read nothing.)
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// What a connection may send without being counted: more than most heads have.
const OWN_BYTES: usize = 8 << 10;

/// The part (1/n) of all connections that is reserved for new ones; connections exist before anybody has authenticated
/// on them.
const RESERVED_PART: usize = 16;

/// The connections of a listener.
pub struct Connections {
    proxies: TrustedProxies,
    /// Whether loopback clients need no token.
    loopback_is_trusted: bool,
    by_address: Shares<IpAddr>,
    table: Mutex<Table<Arc<Notify>>>,
}

impl Connections {
    /// Limits from the settings, with at most `total` connections.
    pub fn new(settings: &Settings, total: usize) -> Self {
        let limits = &settings.limits;
        let authenticated = settings.auth.required;
        // If nobody can authenticate, nothing is reserved for authenticated callers.
        let unauthenticated = if authenticated {
            limits.unauthenticated_percent.of(total)
        } else {
            total
        };
        let bytes = usize::try_from(limits.unfinished_body_bytes.0).unwrap_or(usize::MAX);
        let newcomers = (total / RESERVED_PART).min(256);
        Self {
            proxies: TrustedProxies::new(settings.server.trusted_proxies.0.clone()),
            loopback_is_trusted: !authenticated,
            by_address: Shares::new(NonZeroU32::new(limits.connections_per_address)),
            table: Mutex::new(Table::new(Bounds {
                total: total - newcomers,
                newcomers,
                share: quotas::Share::of(settings),
                unauthenticated,
                bytes,
                bytes_per_address: limits.caller_percent.of(bytes),
                cuts_served: authenticated,
            })),
        }
    }

    /// At most `total` connections, of anybody: for a listener that is not public.
    pub fn of_anybody(total: usize) -> Self {
        Self {
            proxies: TrustedProxies::default(),
            loopback_is_trusted: false,
            by_address: Shares::new(None),
            table: Mutex::new(Table::new(Bounds {
                total,
                newcomers: 0,
                share: quotas::Share::NONE,
                unauthenticated: total,
                bytes: total * OWN_BYTES,
                bytes_per_address: total * OWN_BYTES,
                cuts_served: false,
            })),
        }
    }

    /// Admits a new connection, or closes it if its address has the maximum number.
    pub fn admit(self: &Arc<Self>, io: TcpStream) -> Option<TrackedStream> {
        let peer = io.peer_addr().ok()?.ip().to_canonical();
        let address = network(peer);
        let proxy = self.proxies.trust(peer);
        let of_address = if proxy {
            None
        } else {
            match self.by_address.take(address) {
                Ok(place) => place,
                Err(Full) => {
                    metrics::connection_cut(ConnectionCut::Address);
                    abort(&io);
                    return None;
                }
            }
        };
        let exempt = proxy || (self.loopback_is_trusted && peer.is_loopback());
        let cut = Arc::new(Notify::new());
        let counted_as = if exempt {
            // The operator is never refused.
            let _ = self.lock().take(&Party::Operator);
            CountedAs::Exempt
        } else {
            let (ticket, victim) = self.lock().admit(address, Arc::clone(&cut));
            if let Some(victim) = victim {
                metrics::connection_cut(ConnectionCut::Evicted);
                victim.notify_one();
            }
            CountedAs::Unauthenticated(ticket)
        };
        let state = ConnectionState {
            connections: Arc::clone(self),
            address,
            counted_as: RefCell::new(counted_as),
            head_awaited: Cell::new(Some(Instant::now())),
            to_disk: Cell::new(false),
            read_by: Cell::new(None),
            is_socket: Cell::new(false),
            sent: Cell::new(0),
            heads: PipelinedRequests::default(),
            turn: Rc::default(),
            successor: Rc::default(),
            cut,
            _of_address: of_address,
        };
        Some(TrackedStream {
            io,
            state: Rc::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table<Arc<Notify>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resets a connection, discarding unsent data.
fn abort(io: &TcpStream) {
    let socket = socket2::SockRef::from(io);
    // Fails if the client has disconnected first, which is fine.
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

#[derive(Debug, PartialEq, Eq)]
enum CountedAs {
    /// Unauthenticated: in the table.
    Unauthenticated(Ticket),
    /// Counted for a party.
    Known(Party),
    /// Always counted for the operator, whoever authenticates.
    Exempt,
    /// Evicted by the table.
    Cut,
}

/// The state of a connection. It belongs to one worker thread.
pub struct ConnectionState {
    connections: Arc<Connections>,
    address: IpAddr,
    counted_as: RefCell<CountedAs>,
    /// Since when a request head has been awaited, if one is.
    head_awaited: Cell<Option<Instant>>,
    /// When the client must have read the last chunk of a response.
    read_by: Cell<Option<Instant>>,
    /// WebSockets have their own timeouts and limits.
    is_socket: Cell<bool>,
    /// Bytes received since the last response.
    sent: Cell<usize>,
    /// What is received goes to disk, where other limits hold.
    to_disk: Cell<bool>,
    /// Unanswered requests.
    heads: PipelinedRequests,
    /// Its turn to be read from, while it is unauthenticated.
    turn: Rc<Turn>,
    /// The socket that takes its place.
    successor: Rc<Successor>,
    cut: Arc<Notify>,
    _of_address: Option<Share<IpAddr>>,
}

impl ConnectionState {
    fn enter(&self, phase: Phase, answered: bool) {
        let head_awaited = (phase == Phase::Waiting).then(Instant::now);
        self.head_awaited.set(head_awaited.filter(|_| answered));
        if answered {
            self.sent.set(0);
            self.heads.answered();
        }
        if let Some(ticket) = self.ticket() {
            let entered = self
                .connections
                .lock()
                .enter(self.address, ticket, phase, answered);
            let counted_as = entered.map_or(CountedAs::Cut, CountedAs::Unauthenticated);
            self.counted_as.replace(counted_as);
        }
    }

    /// Its entry in the table, if it has one.
    fn ticket(&self) -> Option<Ticket> {
        match *self.counted_as.borrow() {
            CountedAs::Unauthenticated(ticket) => Some(ticket),
            CountedAs::Known(_) | CountedAs::Exempt | CountedAs::Cut => None,
        }
    }

    /// The connection is now counted for this party instead of as unauthenticated or for another party.
    fn count_for(&self, party: &Party) -> Result<(), Why> {
        let mut counted_as = self.counted_as.borrow_mut();
        let mut table = self.connections.lock();
        match &*counted_as {
            CountedAs::Exempt | CountedAs::Cut => return Ok(()),
            CountedAs::Known(before) if before == party => return Ok(()),
            CountedAs::Known(before) => {
                table.take(party)?;
                table.release(before);
            }
            CountedAs::Unauthenticated(ticket) => {
                table.take(party)?;
                if !table.leave(self.address, *ticket) {
                    table.release(party);
                    *counted_as = CountedAs::Cut;
                    return Ok(());
                }
            }
        }
        *counted_as = CountedAs::Known(party.clone());
        Ok(())
    }

    /// The connection is a WebSocket from now on.
    fn becomes_socket(&self) {
        // An unauthenticated one is limited as a session from now on; the operator is never refused.
        if self.ticket().is_some() {
            let _ = self.count_for(&Party::Operator);
        }
        self.is_socket.set(true);
    }

    /// Counts what an unauthenticated client sends, in steps, so that most requests cost nothing.
    fn received(&self, bytes: usize) {
        let Some(ticket) = self.ticket().filter(|_| !self.to_disk.get()) else {
            return;
        };
        let before = self.sent.get();
        let now = before.saturating_add(bytes);
        self.sent.set(now);
        let more = now / OWN_BYTES - before / OWN_BYTES;
        if more > 0 {
            let more = more * OWN_BYTES;
            for victim in self.connections.lock().sent(self.address, ticket, more) {
                metrics::connection_cut(ConnectionCut::Bytes);
                victim.notify_one();
            }
        }
    }

    /// Resolves when the connection must be closed.
    async fn ended(&self) {
        let mut cut = pin!(self.cut.notified());
        loop {
            let since = self.head_awaited.get();
            let overdue = since.unwrap_or_else(Instant::now) + HEAD_PATIENCE;
            let alarm = self.read_by.get().map_or(overdue, |by| by.min(overdue));
            tokio::select! {
                () = &mut cut => return,
                () = sleep_until(alarm) => {
                    // The alarm is not moved when a request arrives or ends; the state is checked when it goes off.
                    let now = Instant::now();
                    let overdue = |since| now.duration_since(since) >= HEAD_PATIENCE;
                    if self.head_awaited.get().is_some_and(overdue) {
                        metrics::connection_cut(ConnectionCut::Overdue);
                        return;
                    }
                    if self.read_by.get().is_some_and(|by| by <= now) {
                        metrics::connection_cut(ConnectionCut::Unread);
                        return;
                    }
                }
            }
        }
    }

    /// What takes its place.
    pub const fn successor(&self) -> &Rc<Successor> {
        &self.successor
    }

    /// Drives a connection, and then the socket that takes its place, until that ends by itself or must be closed.
    /// Returns what the connection ends with if it has none.
    pub async fn watch<T>(self: Rc<Self>, carried: Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        let mut carried = Some(carried);
        let mut socket = None;
        let mut ended = pin!(self.ended());
        poll_fn(|context| {
            if let Some(http) = &mut carried {
                let done = http.as_mut().poll(context);
                socket = self.successor.take();
                if socket.is_some() {
                    carried = None;
                    // It is not in the table any more, from which it could still be cut.
                    if *self.counted_as.borrow() == CountedAs::Cut {
                        return Poll::Ready(None);
                    }
                } else if let Poll::Ready(done) = done {
                    return Poll::Ready(Some(done));
                }
            }
            match &mut socket {
                // It has timeouts of its own, from when it has the connection.
                Some(socket) => socket.as_mut().poll(context).map(|()| None),
                None => ended.as_mut().poll(context).map(|()| None),
            }
        })
        .await
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        match self.counted_as.get_mut() {
            CountedAs::Unauthenticated(ticket) => {
                self.connections.lock().leave(self.address, *ticket);
            }
            CountedAs::Known(party) => self.connections.lock().release(party),
            CountedAs::Exempt => self.connections.lock().release(&Party::Operator),
            CountedAs::Cut => {}
        }
    }
}

/// An accepted connection whose bytes are counted.
pub struct TrackedStream {
    io: TcpStream,
    state: Rc<ConnectionState>,
}

impl TrackedStream {
    /// The inner stream.
    pub const fn tcp(&self) -> &TcpStream {
        &self.io
    }

    /// The inner stream alone, whose bytes are not counted any more.
    pub fn into_tcp(self) -> TcpStream {
        self.io
    }

    /// The connection's state.
    pub const fn state(&self) -> &Rc<ConnectionState> {
        &self.state
    }

    /// Resolves when there is something to read and, if the client is unauthenticated, it is its turn to be read from. The
    /// buffers of the HTTP parser are allocated after that.
    pub async fn first_turn(&self) -> io::Result<()> {
        if self.state.ticket().is_none() {
            return Ok(());
        }
        poll_fn(|context| {
            ready!(self.io.poll_read_ready(context))?;
            ready!(poll_turn(self.state.address, &self.state.turn, context));
            self.state.turn.keep();
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// The client's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.io.peer_addr().ok()
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.state.ticket().is_some() {
            // Who has sent nothing needs no turn.
            ready!(self.io.poll_read_ready(context))?;
            ready!(poll_turn(self.state.address, &self.state.turn, context));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        self.state.received(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl ActixStream for TrackedStream {
    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_read_ready(&self.io, context)
    }

    fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_write_ready(&self.io, context)
    }
}

fn state(request: &HttpRequest) -> Option<&Rc<ConnectionState>> {
    request.conn_data()
}

/// The request has been authenticated, so its connection is counted for this party from now on. Refused if a tenant has
/// used up its share.
pub fn authenticated(request: &HttpRequest, party: &Party) -> Result<(), Refused> {
    let Some(state) = state(request) else {
        return Ok(());
    };
    state.count_for(party).map_err(|why| {
        let kind = Kind::Connections;
        metrics::quota_refused(kind.name());
        Refused { kind, why }
    })
}

/// While this guard exists, the server waits for the client to send something.
#[must_use = "it ends when it is dropped"]
pub struct AwaitedClient(Option<Rc<ConnectionState>>);

impl AwaitedClient {
    /// The guard for a request.
    pub fn of(request: &HttpRequest) -> Self {
        let state = state(request).cloned();
        if let Some(state) = &state {
            state.enter(Phase::Waiting, false);
        }
        Self(state)
    }

    /// The same for a request whose body goes to disk as it arrives: its bytes are not memory.
    pub fn of_upload(request: &HttpRequest) -> Self {
        let awaited = Self::of(request);
        if let Some(state) = &awaited.0 {
            state.to_disk.set(true);
        }
        awaited
    }
}

impl Drop for AwaitedClient {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            state.to_disk.set(false);
            state.enter(Phase::Serving, false);
        }
    }
}

/// A request being served. When it is dropped, the next one is awaited.
struct Served(Rc<ConnectionState>);

impl Served {
    fn begin(state: Rc<ConnectionState>) -> Self {
        state.enter(Phase::Serving, false);
        Self(state)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.read_by.set(None);
        if !self.0.is_socket.get() {
            self.0.enter(Phase::Waiting, true);
        }
    }
}

/// The middleware that tells a connection whether its client is waiting or awaited.
pub async fn track(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let Some(state) = request.conn_data::<Rc<ConnectionState>>().cloned() else {
        return next.call(request).await;
    };
    let served = Served::begin(state);
    let response = next.call(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        served.0.becomes_socket();
        return Ok(response);
    }
    Ok(response.map_body(|_, body| match body.size() {
        BodySize::None => body,
        _ => BoxBody::new(Answer {
            body,
            reading: Reading::default(),
            served,
        }),
    }))
}

/// Tracks how a client keeps up with a response: it may fall behind a client that reads at the minimum rate by a
/// limited time. Reading faster earns no credit beyond that; while no data is available nothing is owed.
struct Reading {
    patience: Duration,
    /// When the client must have read the last chunk.
    by: Option<Instant>,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            patience: READ_PATIENCE,
            by: None,
        }
    }
}

impl Reading {
    /// A chunk was handed out.
    fn gives(&mut self, bytes: usize, now: Instant) -> Instant {
        let earned = Duration::from_millis(bytes as u64 * 1000 / LEAST_BYTES_PER_SECOND);
        let by = now + self.patience + earned;
        self.by = Some(by);
        by
    }

    /// Everything handed out has been taken.
    fn taken(&mut self, now: Instant) {
        if let Some(by) = self.by.take() {
            self.patience = by.saturating_duration_since(now).min(READ_PATIENCE);
        }
    }
}

/// A response being read by its client.
struct Answer {
    body: BoxBody,
    reading: Reading,
    served: Served,
}

impl MessageBody for Answer {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        // More is polled when the kernel has accepted the previous chunk.
        self.reading.taken(Instant::now());
        self.served.0.read_by.set(None);
        let next = ready!(Pin::new(&mut self.body).poll_next(context));
        if let Some(Ok(bytes)) = &next {
            let by = self.reading.gives(bytes.len(), Instant::now());
            self.served.0.read_by.set(Some(by));
        }
        Poll::Ready(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, client) = tokio::join!(listener.accept(), client);
        (accepted.unwrap().0, client.unwrap())
    }

    /// What happens to a connection that never ends by itself.
    async fn cut_after(state: Rc<ConnectionState>) -> Duration {
        let begun = Instant::now();
        assert_eq!(
            state.watch(Box::pin(std::future::pending::<()>())).await,
            None
        );
        begun.elapsed()
    }

    #[actix_web::test]
    async fn a_client_that_never_sends_a_head_is_cut_and_one_that_is_served_is_not() {
        let (io, _client) = pair().await;
        tokio::time::pause();
        let connections = Arc::new(Connections::of_anybody(8));
        let state = Rc::clone(connections.admit(io).unwrap().state());
        let later = Rc::clone(&state);
        actix_web::rt::spawn(async move {
            tokio::time::sleep(HEAD_PATIENCE / 2).await;
            let served = Served::begin(Rc::clone(&later));
            tokio::time::sleep(HEAD_PATIENCE * 6).await;
            drop(served);
        });
        let after = cut_after(state).await;
        // From the end of the response on, within the precision of the alarm.
        let least = HEAD_PATIENCE / 2 + HEAD_PATIENCE * 7;
        assert!((least..least + HEAD_PATIENCE).contains(&after), "{after:?}");
    }

    #[actix_web::test]
    async fn who_gives_way_to_a_newcomer_is_cut_at_once() {
        let connections = Arc::new(Connections::of_anybody(1));
        let (io, _client) = pair().await;
        let (newcomer, _other) = pair().await;
        tokio::time::pause();
        let first = connections.admit(io).unwrap();
        let second = connections.admit(newcomer).unwrap();
        assert_eq!(cut_after(Rc::clone(first.state())).await, Duration::ZERO);
        // The new connection has its full time.
        assert!(cut_after(Rc::clone(second.state())).await >= HEAD_PATIENCE);
    }

    #[actix_web::test]
    async fn who_has_authenticated_does_not_give_way() {
        let connections = Arc::new(Connections::of_anybody(1));
        let (io, _client) = pair().await;
        let first = connections.admit(io).unwrap();
        first.state().count_for(&Party::Operator).unwrap();
        let (newcomer, _other) = pair().await;
        let _second = connections.admit(newcomer).unwrap();
        let known = CountedAs::Known(Party::Operator);
        assert_eq!(*first.state().counted_as.borrow(), known);
        let carried = Rc::clone(first.state()).watch(Box::pin(tokio::task::yield_now()));
        assert_eq!(carried.await, Some(()));
        drop(first);
    }

    fn tenant(id: &str) -> Party {
        Party::Tenant(vivavoce_auth::TenantId::new(id).unwrap())
    }

    #[actix_web::test]
    async fn a_connection_counts_for_whoever_has_shown_a_token_last_and_for_nobody_when_it_ends() {
        let connections = Arc::new(Connections::of_anybody(8));
        let held = || connections.lock().known_of(&[tenant("a"), tenant("b")]);
        let (io, _client) = pair().await;
        let first = connections.admit(io).unwrap();
        for (party, counted) in [
            (tenant("a"), [1, 0]),
            (tenant("a"), [1, 0]),
            (tenant("b"), [0, 1]),
            (Party::Operator, [0, 0]),
            (tenant("a"), [1, 0]),
        ] {
            first.state().count_for(&party).unwrap();
            assert_eq!(held(), counted, "{party:?}");
        }
        drop(first);
        assert_eq!(held(), [0, 0]);
    }

    #[actix_web::test]
    async fn an_answer_that_is_read_slower_than_the_least_rate_is_given_up() {
        tokio::time::pause();
        for (bytes, every_s, most_s) in [
            // Keeps up, then exactly, then at half the rate until its allowance is used up.
            (4_096, 2, None),
            (4_096, 4, None),
            (4_096, 8, Some(64)),
            (1, 1, Some(32)),
        ] {
            let (begun, mut reading) = (Instant::now(), Reading::default());
            let late = loop {
                let by = reading.gives(bytes, Instant::now());
                tokio::time::advance(Duration::from_secs(every_s)).await;
                if Instant::now() > by {
                    break Some(begun.elapsed().as_secs());
                }
                if begun.elapsed() > Duration::from_hours(1) {
                    break None;
                }
                reading.taken(Instant::now());
            };
            assert_eq!(late.is_some(), most_s.is_some(), "{bytes} in {every_s} s");
            assert!(late <= most_s, "{bytes} in {every_s} s: {late:?}");
        }
    }

    #[actix_web::test]
    async fn a_client_that_does_not_read_its_answer_is_cut_and_one_that_waits_for_it_is_not() {
        let (io, _client) = pair().await;
        tokio::time::pause();
        let connections = Arc::new(Connections::of_anybody(8));
        let state = Rc::clone(connections.admit(io).unwrap().state());
        let later = Rc::clone(&state);
        actix_web::rt::spawn(async move {
            let body = actix_web::body::BodyStream::new(futures_util::stream::once(async {
                // No data has been available for this long.
                tokio::time::sleep(READ_PATIENCE * 4).await;
                Ok::<_, io::Error>(Bytes::from_static(&[0; 2_048]))
            }));
            let mut answer = Answer {
                body: BoxBody::new(body),
                reading: Reading::default(),
                served: Served::begin(later),
            };
            poll_fn(|context| Pin::new(&mut answer).poll_next(context)).await;
            // Nobody polls for more.
            tokio::time::sleep(READ_PATIENCE * 4).await;
        });
        let after = cut_after(state).await;
        let least = READ_PATIENCE * 5 + Duration::from_secs(2);
        assert!(
            (least..=least + HEAD_PATIENCE).contains(&after),
            "{after:?}"
        );
    }
}
