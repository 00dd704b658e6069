//! The TCP connection of a socket, as far as `actix-http` gives access to it: limiting what it buffers, and resetting
//! it when its client neither reads nor closes.

use std::any::Any;
use std::io;
use std::net::Shutdown;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::dev::Extensions;
use actix_web::rt::net::TcpStream;
use socket2::{SockRef, Socket};
use tokio_util::sync::CancellationToken;

/// For `HttpServer::h1_write_buffer_size`: the response body is polled for a frame only when the kernel has accepted
/// the previous one, so that frames do not wait where they cannot be dropped any more.
pub const WRITE_BUFFER_BYTES: usize = 1;

/// The maximum unsent bytes in the kernel. Without it, the kernel would buffer megabytes of audio for a slow client,
/// which `clear` could not drop.
const MAX_UNSENT_BYTES: u32 = 16 << 10;

/// How long the client of a request may accept no byte of its response. Then the kernel closes the connection.
const UNREAD_PATIENCE: Duration = Duration::from_secs(30);

/// A handle to an accepted connection, until a socket takes it.
struct Accepted(Mutex<Option<Connection>>);

impl Accepted {
    fn take(&self) -> Option<Connection> {
        let mut handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = handle.take()?;
        // Input of a socket's client is read although it does not read its output; that backlog is limited elsewhere.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Connection::Accepted { socket, .. } = &connection {
            socket.set_tcp_user_timeout(None).ok()?;
        }
        Some(connection)
    }
}

/// For `HttpServer::on_connect` without TLS: the same as [`prepare`].
pub fn accepted(io: &dyn Any, extensions: &mut Extensions) {
    if let Some(io) = io.downcast_ref() {
        prepare(io, false, extensions);
    }
}

/// Configures a connection and keeps a handle to it for a socket.
pub fn prepare(io: &TcpStream, secured: bool, extensions: &mut Extensions) {
    if let Ok(socket) = set_up(io) {
        let connection = Connection::Accepted { socket, secured };
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

/// A second handle to a socket's connection.
pub enum Connection {
    /// Of a client of this server.
    Accepted { socket: Socket, secured: bool },
    /// Of this server as a client. Cancelled where it is to be reset.
    Dialled(CancellationToken),
}

impl Connection {
    /// The handle of a request's connection; `None` if the server was not set up with [`accepted`].
    pub fn take(request: &HttpRequest) -> Option<Self> {
        request.conn_data::<Accepted>()?.take()
    }

    /// One that this server has opened, and what is cancelled where it is to be reset.
    pub fn dialled() -> (Self, CancellationToken) {
        let aborted = CancellationToken::new();
        (Self::Dialled(aborted.clone()), aborted)
    }

    /// Shuts down the sending side: the client sees the end of the stream, and may still send.
    pub fn finish(&self) {
        // TLS is closed with the end of the request, after the client's answer; without that the client would see
        // truncation. What was dialled is shut down by whoever writes.
        if let Self::Accepted {
            socket,
            secured: false,
        } = self
        {
            // Fails if the client has disconnected first, which is fine.
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    /// Resets the connection, discarding unsent data.
    pub fn abort(&self) {
        match self {
            Self::Accepted { socket, .. } => {
                let _ = socket.set_linger(Some(Duration::ZERO));
                let _ = socket.shutdown(Shutdown::Both);
            }
            Self::Dialled(aborted) => aborted.cancel(),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl From<Socket> for Connection {
    fn from(socket: Socket) -> Self {
        Self::Accepted {
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
