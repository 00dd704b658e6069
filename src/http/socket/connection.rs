//! The TCP connection under a socket, as far as `actix-http` leaves it alone: how little it may hold back, and how it
//! is cut when its client neither reads nor goes away.

use std::any::Any;
use std::io;
use std::net::Shutdown;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use actix_tls::accept::rustls_0_23::TlsStream;
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

/// A handle to a connection that was accepted, until a socket takes it.
struct Accepted(Mutex<Option<Connection>>);

/// For `HttpServer::on_connect`: sets the connection up and keeps a handle to it for a socket.
pub fn accepted(io: &dyn Any, extensions: &mut Extensions) {
    let plain = io.downcast_ref::<TcpStream>();
    let secured = io.downcast_ref::<TlsStream<TcpStream>>();
    let tcp = plain.or_else(|| Some(secured?.get_ref().0));
    if let Some(socket) = tcp.and_then(|io| prepare(io).ok()) {
        let secured = secured.is_some();
        let connection = Connection { socket, secured };
        extensions.insert(Accepted(Mutex::new(Some(connection))));
    }
}

fn prepare(io: &TcpStream) -> io::Result<Socket> {
    let socket = SockRef::from(io);
    socket.set_tcp_nodelay(true)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_notsent_lowat(MAX_UNSENT_BYTES)?;
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
        let Accepted(handle) = request.conn_data()?;
        handle.lock().unwrap_or_else(PoisonError::into_inner).take()
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

#[cfg(test)]
impl From<Socket> for Connection {
    fn from(socket: Socket) -> Self {
        Self {
            socket,
            secured: false,
        }
    }
}
