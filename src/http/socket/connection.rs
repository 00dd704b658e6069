//! The TCP connection under a socket, as far as `actix-http` leaves it alone: how little it may hold back, and how it
//! is cut when its client neither reads nor goes away.

use std::any::Any;
use std::io;
use std::net::Shutdown;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::dev::Extensions;
use actix_web::rt::net::TcpStream;
use socket2::{SockRef, Socket};

/// For `HttpServer::h1_write_buffer_size`: the response body is asked for a frame only when the kernel has taken the
/// one before, so that nothing waits where it could not be called back.
pub const WRITE_BUFFER_BYTES: usize = 1;

/// Bytes that the kernel holds and has not sent, at most. Without this it would take megabytes of audio for a slow
/// client, out of reach of `clear`.
const MAX_UNSENT_BYTES: u32 = 16 << 10;

/// How long the client of a request may take no byte of its answer. The kernel cuts the connection then.
const UNREAD_PATIENCE: Duration = Duration::from_secs(30);

/// A handle to a connection that was accepted, until a socket takes it.
struct Accepted(Mutex<Option<Connection>>);

impl Accepted {
    fn take(&self) -> Option<Connection> {
        let mut handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = handle.take()?;
        // A client of a socket is heard although it does not read; how much waits for it is bounded elsewhere.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        connection.socket.set_tcp_user_timeout(None).ok()?;
        Some(connection)
    }
}

/// For `HttpServer::on_connect`, without TLS: the same as [`prepare`].
pub fn accepted(io: &dyn Any, extensions: &mut Extensions) {
    if let Some(io) = io.downcast_ref() {
        prepare(io, false, extensions);
    }
}

/// Sets a connection up and keeps a handle to it for a socket.
pub fn prepare(io: &TcpStream, secured: bool, extensions: &mut Extensions) {
    if let Ok(socket) = set_up(io) {
        let connection = Connection { socket, secured };
        extensions.insert(Accepted(Mutex::new(Some(connection))));
    }
}

fn set_up(io: &TcpStream) -> io::Result<Socket> {
    let socket = SockRef::from(io);
    socket.set_tcp_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        socket.set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
        socket.set_tcp_user_timeout(Some(UNREAD_PATIENCE))?;
    }
    socket.try_clone()
}

/// A second handle to the connection of one socket.
pub struct Connection {
    socket: Socket,
    secured: bool,
}

impl Connection {
    /// The handle of the request's connection; `None` when the server was not set up with [`accepted`].
    pub fn take(request: &HttpRequest) -> Option<Self> {
        request.conn_data::<Accepted>()?.take()
    }

    /// Everything is sent: the client sees the end, and may still speak.
    pub fn finish(&self) {
        // The end of TLS comes with the end of the request, after the client's answer: without it, it would be a cut.
        if !self.secured {
            // Fails when the client has gone first, which is what we want.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    /// Cuts the connection now, with whatever it still holds.
    pub fn abort(&self) {
        let _ = self.socket.set_linger(Some(Duration::ZERO));
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

#[cfg(any(test, feature = "testing"))]
impl From<Socket> for Connection {
    fn from(socket: Socket) -> Self {
        Self {
            socket,
            secured: false,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[actix_web::test]
    async fn an_answer_that_nobody_reads_is_given_up_and_a_socket_is_not() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (accepting, client) = tokio::join!(listener.accept(), client);
        let (server, _client) = (accepting.unwrap().0, client.unwrap());
        let patience = || SockRef::from(&server).tcp_user_timeout().unwrap();
        let mut extensions = Extensions::new();
        accepted(&server, &mut extensions);
        assert_eq!(patience(), Some(UNREAD_PATIENCE));
        let connection = extensions.get::<Accepted>().unwrap().take();
        assert!(connection.is_some() && patience().is_none_or(|patience| patience.is_zero()));
    }
}
