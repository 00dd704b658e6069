//! Connections from the moment they are accepted, before TLS and before a byte is read: how many there may be and whose,
//! what they may send before they are answered, how long they may keep the server waiting, and which of them give way to
//! a newcomer. Connections on which nobody has shown a good token have a share of the whole ([`table`]), and so has each
//! tenant; those of whoever runs the server are bounded with all others only. An answer that its client does not read is
//! not kept for it for ever.

mod heads;
mod table;

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
use heads::Heads;
pub use heads::Pipelined;
use table::{Bounds, Phase, Table, Ticket};
use vivavoce_config::Settings;
use vivavoce_quotas::{self as quotas, Kind, Party, Refused, Why};
use vivavoce_telemetry::metrics::{self, ConnectionCut};

/// How long a client may keep the server waiting for a request's head: from the connection on, with its handshake, or
/// from the last answer on, with what is left of that request's body. (Of these, a handshake has 3 s, the first head 5 s,
/// and a connection that says nothing at all 5 s.)
pub const HEAD_PATIENCE: Duration = Duration::from_secs(10);

/// How far a client may fall behind one that reads an answer at the least rate. (The kernel cuts those that read nothing.)
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// What a connection may send without being counted: more than most heads have.
const OWN_BYTES: usize = 8 << 10;

/// Room for newcomers that is left of all connections, as a part of them; they are connections before anybody has
/// authenticated on them.
const NEWCOMERS: usize = 16;

/// The connections of a listener.
pub struct Connections {
    proxies: TrustedProxies,
    /// Whether whoever is on this machine needs no token.
    loopback_is_trusted: bool,
    by_address: Shares<IpAddr>,
    table: Mutex<Table<Arc<Notify>>>,
}

impl Connections {
    /// As the settings have it, at most `total` in all.
    pub fn new(settings: &Settings, total: usize) -> Self {
        let limits = &settings.limits;
        let authenticated = settings.auth.required;
        // Where nobody can authenticate there is nobody to keep anything for.
        let unauthenticated = if authenticated {
            limits.unauthenticated_percent.of(total)
        } else {
            total
        };
        let bytes = usize::try_from(limits.unfinished_body_bytes.0).unwrap_or(usize::MAX);
        let newcomers = (total / NEWCOMERS).min(256);
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

    /// At most so many, of anybody: for a listener that is not for the public.
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

    /// Takes one more connection, or cuts it where its address has as many as one may have.
    pub fn admit(self: &Arc<Self>, io: TcpStream) -> Option<Watched> {
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
        let place = if exempt {
            // Whoever runs the server is never refused.
            let _ = self.lock().take(&Party::Operator);
            Place::Exempt
        } else {
            let (ticket, victim) = self.lock().admit(address, Arc::clone(&cut));
            if let Some(victim) = victim {
                metrics::connection_cut(ConnectionCut::Evicted);
                victim.notify_one();
            }
            Place::Unauthenticated(ticket)
        };
        let seat = Seat {
            connections: Arc::clone(self),
            address,
            place: RefCell::new(place),
            head_awaited: Cell::new(Some(Instant::now())),
            read_by: Cell::new(None),
            is_socket: Cell::new(false),
            sent: Cell::new(0),
            heads: Heads::default(),
            cut,
            _of_address: of_address,
        };
        Some(Watched {
            io,
            seat: Rc::new(seat),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table<Arc<Notify>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts a connection with whatever it still holds.
fn abort(io: &TcpStream) {
    let socket = socket2::SockRef::from(io);
    // Fails when the client has gone first, which is what we want.
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// In the table.
    Unauthenticated(Ticket),
    /// Counted for somebody.
    Known(Party),
    /// Counted for whoever runs the server, whoever authenticates.
    Exempt,
    /// Cut by the table.
    Cut,
}

/// What the server knows of a connection, as long as it lasts. It belongs to one worker thread.
pub struct Seat {
    connections: Arc<Connections>,
    address: IpAddr,
    place: RefCell<Place>,
    /// Since when the head of a request is awaited, where it is.
    head_awaited: Cell<Option<Instant>>,
    /// When the client must have read what it was given last of an answer.
    read_by: Cell<Option<Instant>>,
    /// Sockets have clocks and limits of their own.
    is_socket: Cell<bool>,
    /// Bytes since the last answer.
    sent: Cell<usize>,
    /// Requests that have come and wait for their answers.
    heads: Heads,
    cut: Arc<Notify>,
    _of_address: Option<Share<IpAddr>>,
}

impl Seat {
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
            let place = entered.map_or(Place::Cut, Place::Unauthenticated);
            self.place.replace(place);
        }
    }

    /// Its place in the table, where it has one.
    fn ticket(&self) -> Option<Ticket> {
        match *self.place.borrow() {
            Place::Unauthenticated(ticket) => Some(ticket),
            Place::Known(_) | Place::Exempt | Place::Cut => None,
        }
    }

    /// The connection is not bounded as one of a stranger any more: it counts for somebody, and for nobody else.
    fn count_for(&self, party: &Party) -> Result<(), Why> {
        let mut place = self.place.borrow_mut();
        let mut table = self.connections.lock();
        match &*place {
            Place::Exempt | Place::Cut => return Ok(()),
            Place::Known(before) if before == party => return Ok(()),
            Place::Known(before) => {
                table.take(party)?;
                table.release(before);
            }
            Place::Unauthenticated(ticket) => {
                table.take(party)?;
                if !table.leave(self.address, *ticket) {
                    table.release(party);
                    *place = Place::Cut;
                    return Ok(());
                }
            }
        }
        *place = Place::Known(party.clone());
        Ok(())
    }

    /// The connection carries a socket from now on.
    fn becomes_socket(&self) {
        // One of a stranger is bounded as a session is; whoever runs the server is never refused.
        if self.ticket().is_some() {
            let _ = self.count_for(&Party::Operator);
        }
        self.is_socket.set(true);
    }

    /// Counts what an unauthenticated client sends, in steps, so that most requests cost nothing.
    fn received(&self, bytes: usize) {
        let Some(ticket) = self.ticket() else {
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

    /// Ends when the connection must be cut.
    async fn ended(&self) {
        let mut cut = pin!(self.cut.notified());
        loop {
            let since = self.head_awaited.get();
            let overdue = since.unwrap_or_else(Instant::now) + HEAD_PATIENCE;
            let alarm = self.read_by.get().map_or(overdue, |by| by.min(overdue));
            tokio::select! {
                () = &mut cut => return,
                () = sleep_until(alarm) => {
                    // It is not moved when a request comes or ends: it finds out when it rings.
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

    /// Carries a connection until it ends by itself or is cut; `None` then.
    pub async fn watch<F: Future>(self: Rc<Self>, carried: F) -> Option<F::Output> {
        let mut carried = pin!(carried);
        let mut ended = pin!(self.ended());
        poll_fn(|context| {
            if let Poll::Ready(done) = carried.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            if self.is_socket.get() && *self.place.borrow() != Place::Cut {
                return Poll::Pending;
            }
            ended.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        match self.place.get_mut() {
            Place::Unauthenticated(ticket) => {
                self.connections.lock().leave(self.address, *ticket);
            }
            Place::Known(party) => self.connections.lock().release(party),
            Place::Exempt => self.connections.lock().release(&Party::Operator),
            Place::Cut => {}
        }
    }
}

/// An accepted connection whose bytes are counted.
pub struct Watched {
    io: TcpStream,
    seat: Rc<Seat>,
}

impl Watched {
    /// The connection itself.
    pub const fn tcp(&self) -> &TcpStream {
        &self.io
    }

    /// What is known of it.
    pub const fn seat(&self) -> &Rc<Seat> {
        &self.seat
    }

    /// Where its client is.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.io.peer_addr().ok()
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        self.seat.received(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
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

impl ActixStream for Watched {
    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_read_ready(&self.io, context)
    }

    fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_write_ready(&self.io, context)
    }
}

fn seat(request: &HttpRequest) -> Option<&Rc<Seat>> {
    request.conn_data()
}

/// Somebody with a good token is at the other end of a request's connection, which counts for them from now on. A tenant
/// that has its share is refused.
pub fn authenticated(request: &HttpRequest, party: &Party) -> Result<(), Refused> {
    let Some(seat) = seat(request) else {
        return Ok(());
    };
    seat.count_for(party).map_err(|why| {
        let kind = Kind::Connections;
        metrics::quota_refused(kind.name());
        Refused { kind, why }
    })
}

/// The client of a request is to send something that the server waits for, as long as this is kept.
#[must_use = "it ends when it is dropped"]
pub struct AwaitedClient(Option<Rc<Seat>>);

impl AwaitedClient {
    /// That of a request.
    pub fn of(request: &HttpRequest) -> Self {
        let seat = seat(request).cloned();
        if let Some(seat) = &seat {
            seat.enter(Phase::Waiting, false);
        }
        Self(seat)
    }
}

impl Drop for AwaitedClient {
    fn drop(&mut self) {
        if let Some(seat) = &self.0 {
            seat.enter(Phase::Serving, false);
        }
    }
}

/// A request that is being served. When it is dropped, the next one is awaited.
struct Served(Rc<Seat>);

impl Served {
    fn begin(seat: Rc<Seat>) -> Self {
        seat.enter(Phase::Serving, false);
        Self(seat)
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

/// The middleware that tells a connection whether its client waits or is awaited.
pub async fn track(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let Some(seat) = request.conn_data::<Rc<Seat>>().cloned() else {
        return next.call(request).await;
    };
    let served = Served::begin(seat);
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

/// How a client keeps up with an answer: it may fall so far behind one that reads at the least rate. What it reads faster
/// is not saved up beyond that; while nothing is there to be read it owes nothing.
struct Reading {
    patience: Duration,
    /// When it must have read what it was given last.
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
    /// It was given so much more.
    fn gives(&mut self, bytes: usize, now: Instant) -> Instant {
        let earned = Duration::from_millis(bytes as u64 * 1000 / LEAST_BYTES_PER_SECOND);
        let by = now + self.patience + earned;
        self.by = Some(by);
        by
    }

    /// It has taken all that it was given.
    fn taken(&mut self, now: Instant) {
        if let Some(by) = self.by.take() {
            self.patience = by.saturating_duration_since(now).min(READ_PATIENCE);
        }
    }
}

/// An answer that its client still reads.
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
        // More is asked for when the kernel has taken what there was.
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

    /// What becomes of a connection that never ends by itself.
    async fn cut_after(seat: Rc<Seat>) -> Duration {
        let begun = Instant::now();
        assert_eq!(seat.watch(std::future::pending::<()>()).await, None);
        begun.elapsed()
    }

    #[actix_web::test]
    async fn a_client_that_never_sends_a_head_is_cut_and_one_that_is_served_is_not() {
        let (io, _client) = pair().await;
        tokio::time::pause();
        let connections = Arc::new(Connections::of_anybody(8));
        let seat = Rc::clone(connections.admit(io).unwrap().seat());
        let later = Rc::clone(&seat);
        actix_web::rt::spawn(async move {
            tokio::time::sleep(HEAD_PATIENCE / 2).await;
            let served = Served::begin(Rc::clone(&later));
            tokio::time::sleep(HEAD_PATIENCE * 6).await;
            drop(served);
        });
        let after = cut_after(seat).await;
        // From the end of the answer on, as exactly as the alarm looks.
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
        assert_eq!(cut_after(Rc::clone(first.seat())).await, Duration::ZERO);
        // The newcomer has all its time.
        assert!(cut_after(Rc::clone(second.seat())).await >= HEAD_PATIENCE);
    }

    #[actix_web::test]
    async fn who_has_authenticated_does_not_give_way() {
        let connections = Arc::new(Connections::of_anybody(1));
        let (io, _client) = pair().await;
        let first = connections.admit(io).unwrap();
        first.seat().count_for(&Party::Operator).unwrap();
        let (newcomer, _other) = pair().await;
        let _second = connections.admit(newcomer).unwrap();
        let known = Place::Known(Party::Operator);
        assert_eq!(*first.seat().place.borrow(), known);
        let carried = Rc::clone(first.seat()).watch(tokio::task::yield_now());
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
            first.seat().count_for(&party).unwrap();
            assert_eq!(held(), counted, "{party:?}");
        }
        drop(first);
        assert_eq!(held(), [0, 0]);
    }

    #[actix_web::test]
    async fn an_answer_that_is_read_slower_than_the_least_rate_is_given_up() {
        tokio::time::pause();
        for (bytes, every_s, most_s) in [
            // Keeps up, then exactly, then at half the rate: until the patience is used up.
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
        let seat = Rc::clone(connections.admit(io).unwrap().seat());
        let later = Rc::clone(&seat);
        actix_web::rt::spawn(async move {
            let body = actix_web::body::BodyStream::new(futures_util::stream::once(async {
                // Nothing is there to be read for so long.
                tokio::time::sleep(READ_PATIENCE * 4).await;
                Ok::<_, io::Error>(Bytes::from_static(&[0; 2_048]))
            }));
            let mut answer = Answer {
                body: BoxBody::new(body),
                reading: Reading::default(),
                served: Served::begin(later),
            };
            poll_fn(|context| Pin::new(&mut answer).poll_next(context)).await;
            // Nobody asks for more.
            tokio::time::sleep(READ_PATIENCE * 4).await;
        });
        let after = cut_after(seat).await;
        let least = READ_PATIENCE * 5 + Duration::from_secs(2);
        assert!(
            (least..=least + HEAD_PATIENCE).contains(&after),
            "{after:?}"
        );
    }
}
