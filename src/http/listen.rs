//! The listener and its HTTP service: accepted connections are checked first ([`Connections`]), then use TLS if
//! configured, then HTTP/1.1. (actix-web's `HttpServer` exposes a connection only after the handshake.)

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::error::DispatchError;
use actix_http::{HttpService, Protocol, Request, Response};
use actix_server::{GracefulShutdownSignal, ServerBuilder};
use actix_service::{
    IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt, apply_fn_factory, fn_service,
    map_config,
};
use actix_tls::accept::rustls_0_23::{Acceptor, TlsStream};
use actix_tls::accept::{TlsError, max_concurrent_tls_connect};
use actix_web::Error;
use actix_web::body::MessageBody;
use actix_web::dev::{AppConfig, Extensions, Server};
use actix_web::rt::net::TcpStream;
use rustls::ServerConfig;
use tokio::time::timeout;

use super::connections::{ConnectionState, Connections, Pipelined, TrackedStream};
use vivavoce_socket as socket;

/// How long closing a connection may take after its last response.
const DISCONNECTING: Duration = Duration::from_secs(1);

/// How long a new connection may be silent.
const SILENT: Duration = Duration::from_secs(5);

/// How to listen.
pub struct Listen {
    /// A socket that listens.
    pub listener: TcpListener,
    /// The TLS configuration, if any.
    pub tls: Option<ServerConfig>,
    /// The number of worker threads.
    pub workers: usize,
    /// The maximum number of connections; more wait in the backlog.
    pub max_connections: usize,
    /// Decides about connections.
    pub connections: Arc<Connections>,
    /// The time that requests have when the server stops, in seconds.
    pub shutdown_seconds: u64,
}

/// How a request has reached this server; stored in its connection's data.
#[derive(Debug, Clone, Copy)]
pub struct Entrance {
    /// Whether it uses TLS.
    pub secure: bool,
    /// The local address.
    pub address: SocketAddr,
}

impl Listen {
    /// A listener that is not public: without TLS, on one thread, for at most `most` connections of anybody.
    pub fn of_anybody(listener: TcpListener, most: usize) -> Self {
        Self {
            listener,
            tls: None,
            workers: 1,
            max_connections: most,
            connections: Arc::new(Connections::of_anybody(most)),
            shutdown_seconds: 0,
        }
    }

    /// Creates the server. Returns its address and the server, which runs when awaited.
    pub fn serve<F, I, S, B>(self, app: F) -> io::Result<(SocketAddr, Server)>
    where
        F: Fn() -> I + Send + Clone + 'static,
        I: IntoServiceFactory<S, Request>,
        S: ServiceFactory<Request, Config = AppConfig> + 'static,
        S::Error: Into<Error> + 'static,
        S::InitError: fmt::Debug,
        S::Response: Into<Response<B>> + 'static,
        <S::Service as Service<Request>>::Future: 'static,
        S::Service: 'static,
        B: MessageBody + 'static,
    {
        let listener = self.listener;
        let address = listener.local_addr()?;
        let entrance = Entrance {
            secure: self.tls.is_some(),
            address,
        };
        let per_worker = (self.max_connections / self.workers).max(1);
        let builder = ServerBuilder::new()
            .disable_signals()
            .workers(self.workers)
            .max_concurrent_connections(per_worker)
            .shutdown_timeout(self.shutdown_seconds);
        let stopping = builder.graceful_shutdown_signal();
        let connections = self.connections;
        let builder = match self.tls {
            None => builder.listen("http", listener, move || {
                let http = http(app(), entrance, &stopping);
                let stopping = stopping.clone();
                let plain = fn_service(move |io: TrackedStream| {
                    let stopping = stopping.clone();
                    async move {
                        tokio::select! {
                            turn = timeout(SILENT, io.first_turn()) => match turn {
                                Ok(Ok(())) => {}
                                Ok(Err(_)) | Err(_) => return Err(()),
                            },
                            () = stopping.notified() => return Err(()),
                        }
                        let (peer, state) = (io.peer(), Rc::clone(io.state()));
                        Ok((lend(io, state), Protocol::Http1, peer))
                    }
                });
                judged(plain.and_then(http.map_err(drop)), &connections)
            }),
            Some(mut tls) => {
                // The number of connections is limited before this: handshakes of unauthenticated clients must not queue
                // in front of others. The limit is the process's, so that a listener without TLS must not set it.
                max_concurrent_tls_connect(per_worker);
                tls.alpn_protocols = vec![b"http/1.1".to_vec()];
                builder.listen("https", listener, move || {
                    let http = http(app(), entrance, &stopping);
                    let secured = Acceptor::new(tls.clone())
                        .map_err(|_: TlsError<_, _>| ())
                        .map(|io: TlsStream<TrackedStream>| {
                            let watched = io.get_ref().0;
                            let (peer, state) = (watched.peer(), Rc::clone(watched.state()));
                            (lend(io, state), Protocol::Http1, peer)
                        });
                    judged(secured.and_then(http.map_err(drop)), &connections)
                })
            }
        };
        Ok((address, builder?.run()))
    }
}

/// A connection as the HTTP service has it.
type Connection = socket::Lent<Rc<ConnectionState>>;

fn lend<T>(io: T, state: Rc<ConnectionState>) -> Connection
where
    Pipelined<T>: socket::Transport,
{
    let io = Pipelined::new(io, Rc::clone(&state));
    socket::Lent::new(io, Rc::clone(state.successor()), state)
}

impl socket::Transport for Pipelined<TrackedStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().tcp()
    }

    fn into_connection(self: Box<Self>) -> socket::Connection {
        socket::Connection::Plain(self.into_inner().into_tcp())
    }
}

impl socket::Transport for Pipelined<TlsStream<TrackedStream>> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().get_ref().0.tcp()
    }

    fn into_connection(self: Box<Self>) -> socket::Connection {
        socket::Connection::Secure(self)
    }
}

/// The HTTP service over such connections.
fn http<I, S, B>(
    app: I,
    entrance: Entrance,
    stopping: &GracefulShutdownSignal,
) -> impl ServiceFactory<
    (Connection, Protocol, Option<SocketAddr>),
    Config = (),
    Response = (),
    Error = DispatchError,
    InitError = (),
> + use<I, S, B>
where
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig> + 'static,
    S::Error: Into<Error> + 'static,
    S::InitError: fmt::Debug,
    S::Response: Into<Response<B>> + 'static,
    <S::Service as Service<Request>>::Future: 'static,
    S::Service: 'static,
    B: MessageBody + 'static,
{
    let app = app
        .into_factory()
        .map_err(|error| error.into().error_response());
    let stopping = stopping.clone();
    HttpService::build()
        .graceful_shutdown_signal(move || {
            let stopping = stopping.clone();
            async move { stopping.notified().await }
        })
        .client_disconnect_timeout(DISCONNECTING)
        // If the client has disconnected, its request is dropped.
        .h1_allow_half_closed(false)
        .h1_write_buffer_size(socket::WRITE_BUFFER_BYTES)
        .local_addr(entrance.address)
        .on_connect_ext(move |io: &Connection, data: &mut Extensions| {
            data.insert(Rc::clone(io.companion()));
            data.insert(entrance);
            data.insert(io.loan());
        })
        .finish(map_config(app, |()| AppConfig::default()))
}

/// The same service, for connections that are checked before it and watched meanwhile.
fn judged<S>(
    service: S,
    connections: &Arc<Connections>,
) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = (), InitError = ()> + use<S>
where
    S: ServiceFactory<TrackedStream, Config = (), Response = (), Error = (), InitError = ()>,
    <S::Service as Service<TrackedStream>>::Future: 'static,
{
    let connections = Arc::clone(connections);
    apply_fn_factory(service, move |io: TcpStream, service: &S::Service| {
        let carried = connections.admit(io).map(|io| {
            let state = Rc::clone(io.state());
            state.watch(Box::pin(service.call(io)))
        });
        async move {
            match carried {
                Some(carried) => carried.await.unwrap_or(Ok(())),
                None => Ok(()),
            }
        }
    })
}
