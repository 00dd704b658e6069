//! The way of a connection from the HTTP server to a socket. The server has it on loan ([`Lent`]). Once the answer to the
//! handshake is in the kernel, the socket takes the connection back and is run by whoever ran the server's part
//! ([`Successor`]), which is dropped: its buffers and its request are not kept for as long as the socket lives, and
//! frames do not pass through them.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_web::rt::net::TcpStream;
use actix_web::{HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use futures_util::{Stream, StreamExt};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::carry::abandon;

/// For `HttpService::h1_write_buffer_size`: a response's body is polled when the kernel has accepted its head.
pub const WRITE_BUFFER_BYTES: usize = 1;

/// The maximum unsent bytes in the kernel. Without it, the kernel would buffer megabytes of audio for a slow client,
/// which `clear` could not drop.
const MAX_UNSENT_BYTES: u32 = 16 << 10;

/// How long the client of a request may accept no byte of its response. Then the kernel closes the connection.
const UNREAD_PATIENCE: Duration = Duration::from_secs(30);

/// An accepted connection as the HTTP server has it, with TLS or without.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + 'static {
    /// What is under it.
    fn tcp(&self) -> &TcpStream;

    /// The same for a socket, which does not need what is only for HTTP.
    fn into_connection(self: Box<Self>) -> Connection;
}

/// A connection as a socket has it. Most are plain ones, which are read and written without a detour.
pub enum Connection {
    /// Nothing is between the socket and the kernel.
    Plain(TcpStream),
    /// With TLS.
    Secure(Box<dyn Transport>),
}

impl Connection {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(io) => io,
            Self::Secure(io) => io.tcp(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(context, buffer),
            Self::Secure(io) => Pin::new(io).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(context, bytes),
            Self::Secure(io) => Pin::new(io).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(context),
            Self::Secure(io) => Pin::new(io).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(context),
            Self::Secure(io) => Pin::new(io).poll_shutdown(context),
        }
    }
}

/// Where a connection leaves the socket that takes its place: to be run by whoever ran the HTTP server's part until
/// then.
#[derive(Default)]
pub struct Successor(RefCell<Option<LocalBoxFuture<'static, ()>>>);

impl Successor {
    /// The socket, once. To be asked after each poll of the HTTP server's part, which is dropped if there is one.
    pub fn take(&self) -> Option<LocalBoxFuture<'static, ()>> {
        self.0.borrow_mut().take()
    }
}

/// A connection that is lent to the HTTP server, and what belongs to it.
pub struct Lent<C> {
    lending: Rc<Lending>,
    companion: C,
}

impl<C> Lent<C> {
    /// Lends `io`.
    pub fn new(io: impl Transport, successor: Rc<Successor>, companion: C) -> Self {
        // Fails if the client has gone.
        let _ = set_up(io.tcp());
        Self {
            lending: Rc::new(Lending {
                io: RefCell::new(Some(Box::new(io))),
                held: Cell::new(false),
                claimed: Cell::new(false),
                successor,
            }),
            companion,
        }
    }

    /// For the connection's data, where a socket finds it.
    pub fn loan(&self) -> Loan {
        Loan(Rc::downgrade(&self.lending))
    }

    /// What belongs to the connection.
    pub const fn companion(&self) -> &C {
        &self.companion
    }

    /// Polls what is lent; nothing happens on a connection that was taken back.
    fn poll<T>(
        &self,
        taken: T,
        poll: impl FnOnce(Pin<&mut Box<dyn Transport>>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut *self.lending.io.borrow_mut() {
            Some(io) => poll(Pin::new(io)),
            None => Poll::Ready(Ok(taken)),
        }
    }
}

fn set_up(io: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(io);
    socket.set_tcp_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        socket.set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
        socket.set_tcp_user_timeout(Some(UNREAD_PATIENCE))?;
    }
    Ok(())
}

impl<C: Unpin> AsyncRead for Lent<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.lending.held.get() {
            return Poll::Pending;
        }
        self.poll((), |io| io.poll_read(context, buffer))
    }
}

impl<C: Unpin> AsyncWrite for Lent<C> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(0, |io| io.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll((), |io| io.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll((), |io| io.poll_shutdown(context))
    }
}

/// The same connection, as its requests see it. It does not keep it open.
#[derive(Clone)]
pub struct Loan(Weak<Lending>);

struct Lending {
    io: RefCell<Option<Box<dyn Transport>>>,
    /// Whether what comes from now on is for the socket.
    held: Cell<bool>,
    /// Whether a socket will take it.
    claimed: Cell<bool>,
    successor: Rc<Successor>,
}

impl Loan {
    /// The connection of a request.
    pub fn of(request: &HttpRequest) -> Option<&Self> {
        request.conn_data()
    }

    /// Claims it for a socket; `None` if there is one already.
    pub fn claim(&self) -> Option<Self> {
        let claimed = self.0.upgrade()?.claimed.replace(true);
        (!claimed).then(|| self.clone())
    }
}

impl Lending {
    /// Takes the connection for a socket, once all that the HTTP server has written is on its way.
    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Connection>> {
        let mut lent = self.io.borrow_mut();
        if let Some(io) = &mut *lent {
            // Behind TLS it may still be in there. Where the client has gone, the socket finds that out by itself.
            let _ = ready!(Pin::new(&mut *io).poll_flush(context));
            // Input of a socket's client is read although it does not read its output; that backlog is limited elsewhere.
            #[cfg(any(target_os = "linux", target_os = "android"))]
            let _ = SockRef::from(io.tcp()).set_tcp_user_timeout(None);
        }
        Poll::Ready(lent.take().map(Transport::into_connection))
    }
}

/// The body of the answer to a handshake. It is polled once the head is in the kernel, and has no bytes: then the socket
/// takes the connection.
pub struct Upgrade<S> {
    loan: Loan,
    /// Until then.
    waiting: Option<Waiting<S>>,
}

struct Waiting<S> {
    /// What the HTTP server has read behind the handshake.
    payload: web::Payload,
    came: BytesMut,
    socket: S,
}

impl<S> Upgrade<S>
where
    S: FnOnce(Connection, &[u8]) -> LocalBoxFuture<'static, ()>,
{
    /// For a socket that begins with a connection and with what the client has sent so far.
    pub fn new(loan: Loan, payload: web::Payload, socket: S) -> Self {
        let waiting = Some(Waiting {
            payload,
            came: BytesMut::new(),
            socket,
        });
        Self { loan, waiting }
    }
}

// Nothing of it is pinned.
impl<S> Unpin for Upgrade<S> {}

impl<S> Stream for Upgrade<S>
where
    S: FnOnce(Connection, &[u8]) -> LocalBoxFuture<'static, ()>,
{
    type Item = Result<Bytes, actix_web::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let Some(waiting) = &mut this.waiting else {
            return Poll::Pending;
        };
        let Some(lending) = this.loan.0.upgrade() else {
            return Poll::Pending;
        };
        lending.held.set(true);
        let (mut came, mut over) = (false, false);
        while let Poll::Ready(next) = waiting.payload.poll_next_unpin(context) {
            let Some(Ok(chunk)) = next else {
                over = true;
                break;
            };
            waiting.came.extend_from_slice(&chunk);
            came = true;
        }
        if came && !over {
            // The server may hold more, which it gives when it is polled again. Where the client has sent its last byte, it
            // would end the connection instead.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(io) = ready!(lending.poll_take(context))
            && let Some(Waiting { came, socket, .. }) = this.waiting.take()
        {
            lending.successor.0.replace(Some(socket(io, &came)));
        }
        Poll::Pending
    }
}

/// Closing the connection resets it from now on: unsent data is discarded.
pub(super) fn reset(io: &Connection) {
    abandon(io.tcp());
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncReadExt;

    use super::*;

    impl Transport for TcpStream {
        fn tcp(&self) -> &TcpStream {
            self
        }

        fn into_connection(self: Box<Self>) -> Connection {
            Connection::Plain(*self)
        }
    }

    #[actix_web::test]
    async fn an_answer_that_nobody_reads_is_given_up_and_a_socket_is_not() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (accepting, client) = tokio::join!(listener.accept(), client);
        let (server, _client) = (accepting.unwrap().0, client.unwrap());
        let patience = |io: &TcpStream| SockRef::from(io).tcp_user_timeout().unwrap();
        let lent = Lent::new(server, Rc::default(), ());
        let of_lent = || {
            let io = lent.lending.io.borrow();
            io.as_ref().map(|io| patience(io.tcp()))
        };
        assert_eq!(of_lent(), Some(Some(UNREAD_PATIENCE)));
        assert!(lent.loan().claim().is_some());
        assert!(lent.loan().claim().is_none());
        // Until the socket has it.
        assert_eq!(of_lent(), Some(Some(UNREAD_PATIENCE)));
        let taken = poll_fn(|context| lent.lending.poll_take(context)).await;
        assert!(patience(taken.unwrap().tcp()).is_none_or(|patience| patience.is_zero()));
        assert_eq!(of_lent(), None);
    }

    #[actix_web::test]
    async fn who_keeps_a_request_does_not_keep_its_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (accepting, client) = tokio::join!(listener.accept(), client);
        let lent = Lent::new(accepting.unwrap().0, Rc::default(), ());
        let loan = lent.loan();
        drop(lent);
        assert!(loan.claim().is_none());
        let mut client = client.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    }
}
