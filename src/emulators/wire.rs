//! The TCP connection under a request, for what HTTP cannot do: a reset, and a half-close.

use std::any::Any;
use std::net::Shutdown;
use std::sync::Arc;

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::HttpRequest;
use actix_web::dev::Extensions;
use actix_web::rt::net::TcpStream;
use socket2::{SockRef, Socket};

/// A second handle to a connection.
#[derive(Debug, Clone)]
pub struct Wire {
    socket: Arc<Socket>,
    secured: bool,
}

/// For `HttpServer::on_connect`: keeps a handle to each connection.
pub fn accepted(io: &dyn Any, extensions: &mut Extensions) {
    let plain = io.downcast_ref::<TcpStream>();
    let secured = io.downcast_ref::<TlsStream<TcpStream>>();
    let tcp = plain.or_else(|| Some(secured?.get_ref().0));
    let socket = tcp.and_then(|io| {
        let socket = SockRef::from(io);
        socket.set_tcp_nodelay(true).ok()?;
        socket.try_clone().ok()
    });
    if let Some(socket) = socket {
        extensions.insert(Wire {
            socket: Arc::new(socket),
            secured: secured.is_some(),
        });
    }
}

impl Wire {
    /// The connection of a request; `None` when the server was not set up with [`accepted`].
    pub fn of(request: &HttpRequest) -> Option<Self> {
        request.conn_data::<Self>().cloned()
    }

    /// Resets the connection: what is under way is lost, and the other side is told so.
    pub fn reset(&self) {
        // Connecting to nothing is how a socket is disconnected; a connection that stands is reset by it.
        if rustix::net::connect_unspec(&*self.socket).is_err() {
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }

    /// Everything is sent: the other side sees the end, and may still speak.
    pub fn finish(&self) {
        // The end of TLS comes with the end of the request: without it, it would be a cut.
        if !self.secured {
            // Fails when the client has gone first, which is what we want.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }
}
