//! The HTTP side: what is served, at which addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use actix_web::body::BoxBody;
use actix_web::dev::{Server, ServerHandle, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::middleware::from_fn;
use actix_web::{App, Error, web};
use ipnet::IpNet;
use tokio::task::JoinHandle;

use super::{ServerError, takeover, workers};
use crate::config::Settings;
use crate::http::carrier::Carriers;
use crate::http::{
    self, AllowedHosts, AppState, Connections, Limits, Listen, Origins, Sockets, SuccessorKey,
};
use crate::quotas::Quotas;
use vivavoce_takeover::{self as listening, SocketName, SocketUse};

/// What requests are answered with.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) state: web::Data<AppState>,
    pub(super) sockets: web::Data<Sockets>,
    pub(super) carriers: web::Data<Carriers>,
    pub(super) limits: web::Data<Limits>,
    pub(super) origins: web::Data<Origins>,
    pub(super) hosts: web::Data<AllowedHosts>,
    /// Who may ask.
    pub(super) key: SuccessorKey,
    /// Whether metrics are not at an address of their own.
    pub(super) with_metrics: bool,
}

fn app(
    served: &Served,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<BoxBody>,
        Error = Error,
        InitError = (),
    > + use<>,
> {
    let with_metrics = served.with_metrics;
    App::new()
        .app_data(served.state.clone())
        .app_data(served.sockets.clone())
        .app_data(served.carriers.clone())
        .app_data(served.limits.clone())
        .app_data(served.origins.clone())
        .app_data(served.hosts.clone())
        .app_data(web::Data::new(served.key.clone()))
        // From the innermost to the outermost: refusals are observed, and visible to pages of allowed origins.
        .wrap(from_fn(http::ask_former))
        .wrap(from_fn(http::limit_by_address))
        .wrap(from_fn(http::allow_origins))
        .wrap(from_fn(http::check_host))
        .wrap(from_fn(http::check_successor))
        .wrap(from_fn(http::openai::shape_errors))
        .wrap(from_fn(http::observe))
        .wrap(from_fn(http::respell))
        .wrap(from_fn(http::track_connections))
        .configure(|app| http::configure(app, with_metrics))
}

/// The servers at the addresses of the settings.
pub(super) struct Serving {
    /// Where the API is.
    pub(super) address: SocketAddr,
    /// Ends when the API is stopped.
    pub(super) running: JoinHandle<io::Result<()>>,
    /// Of the API.
    pub(super) api: ServerHandle,
    pub(super) metrics: Option<ServerHandle>,
    /// Both, by their sockets.
    pub(super) accepting: Vec<(SocketName, ServerHandle)>,
}

impl Serving {
    /// Begins to serve. Must be called in an actor system.
    pub(super) fn begin(
        settings: &Settings,
        tls: Option<rustls::ServerConfig>,
        connections: usize,
        served: Served,
        sockets: &listening::Sockets,
    ) -> Result<Self, ServerError> {
        let address = SocketAddr::new(settings.server.host, settings.server.port);
        let failed = |source| ServerError::Listen { address, source };
        let (name, listener) =
            takeover::listener(sockets, SocketUse::Http, address).map_err(failed)?;
        let listen = Listen {
            listener,
            tls,
            workers: workers(settings),
            max_connections: connections,
            connections: Arc::new(Connections::new(settings, connections)),
            shutdown_seconds: settings.shutdown.drain_seconds.as_secs(),
        };
        let server = listen.serve(move || app(&served));
        let (address, server) = server.map_err(failed)?;
        let api = server.handle();
        let mut accepting = vec![(name, api.clone())];
        let metrics = settings.telemetry.metrics_address;
        let metrics = metrics.map(|address| serve_metrics(address, settings, sockets));
        let metrics = metrics.transpose()?.map(|(name, metrics)| {
            accepting.push((name, metrics.clone()));
            metrics
        });
        Ok(Self {
            address,
            running: actix_web::rt::spawn(server),
            api,
            metrics,
            accepting,
        })
    }
}

/// Serves the metrics at an address of their own until stopped.
fn serve_metrics(
    address: SocketAddr,
    settings: &Settings,
    sockets: &listening::Sockets,
) -> Result<(SocketName, ServerHandle), ServerError> {
    let failed = |source| ServerError::ListenForMetrics { address, source };
    let (name, listener) =
        takeover::listener(sockets, SocketUse::Metrics, address).map_err(failed)?;
    let (address, server) = http::serve_metrics_alone(listener, settings).map_err(failed)?;
    let handle = server.handle();
    // It ends through its handle.
    actix_web::rt::spawn(server);
    tracing::info!("metrics are served without a token at http://{address}/metrics");
    Ok((name, handle))
}

/// Serves at an address that only a successor knows. It stands for the addresses of the clients whose requests it passes on,
/// as a trusted proxy does.
pub(super) fn entrance(
    settings: &Settings,
    quotas: &Quotas,
    served: &Served,
    key: SuccessorKey,
) -> io::Result<(SocketAddr, Server)> {
    let mut settings = settings.clone();
    let loopback = IpNet::from(IpAddr::from(Ipv4Addr::LOCALHOST));
    settings.server.trusted_proxies.0.push(loopback);
    let most = settings.limits.connections;
    let listen = Listen {
        listener: takeover::private_listener()?,
        tls: None,
        workers: 1,
        max_connections: most,
        connections: Arc::new(Connections::new(&settings, most)),
        shutdown_seconds: 0,
    };
    let served = Served {
        limits: web::Data::new(Limits::new(&settings, quotas)),
        key,
        ..served.clone()
    };
    listen.serve(move || app(&served))
}
