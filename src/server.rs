//! Puts the server together from the settings, and runs it until it is told to stop.

#[cfg(test)]
mod providers_page;
mod rooms;
pub mod settings;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr};
use actix_web::dev::ServerHandle;
use actix_web::middleware::from_fn;
use actix_web::{App, web};
use futures_util::future::OptionFuture;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actors::registry::hooks::HookRegistry;
use crate::actors::registry::sessions::SessionRegistry;
use crate::actors::registry::voices::VoiceRegistry;
use crate::actors::session::{SessionServices, SessionSettings};
use crate::audio::Channels;
use crate::auth::{self, Authenticator, SetupError};
use crate::config::{Config, RecordingBackend, RecordingLayout, RtcMode, Settings, SocketAuth};
use crate::hooks::{CallOwners, Configured, Hooks, TenantNumbers};
use crate::http::{
    self, AllowedHosts, AppState, Connections, Limits, Listen, Origins, Sockets, tls,
};
use crate::outgoing::{Authorities, AuthoritiesError};
use crate::process::confinement::Confinement;
use crate::providers::RecordingStore;
use crate::providers::embedded::EmbeddedError;
use crate::providers::embedded::telephone::EmbeddedTelephone;
use crate::providers::file::FileStore;
use crate::providers::s3::S3Store;
use crate::providers::transport::Transport;
use crate::providers::veil::Veil;
use crate::providers::{
    ProviderTable, azure, cartesia, deepgram, elevenlabs, google, livekit, local, null,
};
use crate::quotas::{FairQueue, Quotas, Share};
use crate::recordings::egress::Egresses;
use crate::recordings::{RecordingSettings, Recordings};
use crate::synthesis::{CacheSettings, SynthesisSettings, Synthesizer};
use crate::webhooks::{WebhookSettings, Webhooks};
use rooms::OpenRooms;
pub(crate) use rooms::check_telephone;

/// How long sessions that must end may take for their last words and their close frame.
const GOODBYE: Duration = Duration::from_secs(5);

/// Files, listeners, other connections and pipes to programs.
const FILES_BESIDE_SESSIONS: u64 = 200;

/// Why the server did not run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The folder for synthesised speech.
    #[error("cache.path: {folder}: {source}")]
    Cache {
        /// Which folder.
        folder: String,
        /// What the system said.
        source: io::Error,
    },
    /// The folder for recordings.
    #[error("data_dir: the journals of recordings cannot be kept there: {0}")]
    Recordings(#[source] io::Error),
    /// The address cannot be listened on.
    #[error("server.host, server.port: {address}: {source}")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The address of the metrics cannot be listened on.
    #[error("metrics.address: {address}: {source}")]
    ListenForMetrics {
        /// Which address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The spool of webhooks.
    #[error("data_dir: webhooks cannot be kept there: {0}")]
    Webhooks(#[source] io::Error),
    /// The trunks of embedded rooms.
    #[error("data_dir: trunks cannot be kept there: {0}")]
    Trunks(#[source] io::Error),
    /// Nobody can be called.
    #[error("{0}")]
    Telephone(#[source] io::Error),
    /// The hooks of the settings.
    #[error("{}", .0.join("\n"))]
    Hooks(Vec<String>),
    /// Events of rooms cannot be posted.
    #[error("rtc.webhook_urls: {0}")]
    RoomEvents(#[source] io::Error),
    /// The doors cannot be locked.
    #[error(transparent)]
    Auth(#[from] SetupError),
    /// The authorities cannot be read.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The rooms cannot be opened.
    #[error(transparent)]
    Rooms(#[from] EmbeddedError),
    /// Anything else that the system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Looks for the local engines.
pub fn engines(settings: &Settings) -> Vec<local::Engine> {
    local::engines(&settings.providers)
}

/// The bounds of one-shot speech, from the settings.
pub fn synthesis_settings(settings: &Settings, quotas: &Quotas) -> SynthesisSettings {
    let cache = &settings.cache;
    SynthesisSettings {
        cache: cache.enabled.then(|| CacheSettings {
            path: cache_folder(settings),
            ttl: cache.ttl_seconds,
            max_bytes: cache.max_bytes.0,
            memory_bytes: cache.memory_bytes.0,
        }),
        per_provider: settings.limits.syntheses_per_provider,
        quota: quotas.syntheses.clone(),
        share: quotas.share,
    }
}

/// The folder of what is kept between runs and can be made anew, and of hooks.
fn cache_folder(settings: &Settings) -> PathBuf {
    let path = settings.cache.path.clone();
    path.unwrap_or_else(|| settings.storage.data_dir.join("cache"))
}

/// The hooks of the settings and those that were added, with what is known of them.
async fn hooks(settings: &Settings, authorities: &Authorities) -> Result<Hooks, ServerError> {
    let configured = Configured::new(settings).map_err(ServerError::Hooks)?;
    for warning in configured.warnings() {
        tracing::warn!("{warning}");
    }
    let folder = cache_folder(settings);
    let hooks = match &settings.redis.url {
        None => Hooks::in_folder(configured, folder),
        Some(url) => {
            let transport = Transport::new(authorities).map_err(io::Error::other)?;
            let shared = Hooks::in_redis(configured, folder, url, transport.tls());
            shared.map_err(|problem| ServerError::Hooks(vec![format!("redis.url: {problem}")]))?
        }
    };
    hooks.open().await;
    Ok(hooks)
}

/// Whatever keeps recordings.
pub type Store = Arc<dyn RecordingStore>;

/// Where recordings go by the settings; `None` where nothing is recorded.
pub async fn recording_store(settings: &Settings, authorities: &Authorities) -> Option<Store> {
    match settings.recording.backend {
        RecordingBackend::Off => None,
        RecordingBackend::File => Some(Arc::new(FileStore::new(settings.storage.data_dir.clone()))),
        RecordingBackend::S3 => {
            let store = S3Store::open(&settings.recording, authorities).await?;
            Some(Arc::new(store))
        }
    }
}

/// The recordings that the settings ask for; `None` where nothing is recorded.
pub async fn recordings(
    settings: &Settings,
    authorities: &Authorities,
) -> Result<Option<Recordings>, ServerError> {
    let Some(store) = recording_store(settings, authorities).await else {
        return Ok(None);
    };
    let wanted = &settings.recording;
    let how = RecordingSettings {
        channels: match wanted.layout {
            RecordingLayout::Stereo => Channels::Stereo,
            RecordingLayout::Mono => Channels::Mono,
        },
        complexity: wanted.complexity,
    };
    let data_dir = &settings.storage.data_dir;
    let recordings = Recordings::open(store, wanted.prefix.clone(), data_dir, how);
    recordings.map(Some).map_err(ServerError::Recordings)
}

/// The recordings that a LiveKit deployment makes by the settings; `None` where it makes none.
fn egresses(settings: &Settings, recordings: Option<&Arc<Recordings>>) -> Option<Arc<Egresses>> {
    let egress = livekit::egress::Egress::from_settings(&settings.rtc, &settings.recording)?;
    Some(Egresses::open(Arc::new(egress), Arc::clone(recordings?)))
}

/// How sessions behave, from the settings.
pub fn session_settings(settings: &Settings) -> SessionSettings {
    let socket = &settings.socket;
    SessionSettings {
        config_timeout: socket.config_timeout_seconds,
        lead: if socket.pacing {
            socket.lead_ms.0
        } else {
            Duration::MAX
        },
        room_complexity: settings.rtc.complexity,
        public_recordings: settings.auth.public_recordings,
    }
}

/// How other servers are reached.
fn transport(settings: &Settings) -> Result<Transport, ServerError> {
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref())?;
    Ok(Transport::new(&authorities).map_err(io::Error::other)?)
}

/// The providers that the settings name.
pub fn providers(settings: &Settings) -> io::Result<ProviderTable> {
    let mut table = ProviderTable::default();
    let providers = &settings.providers;
    let share = Share::of(settings);
    local::add_to(&mut table, providers, share)?;
    null::add_to(&mut table, providers);
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref());
    let authorities = authorities.map_err(io::Error::other)?;
    let transport = Transport::new(&authorities).map_err(io::Error::other)?;
    let transport = transport
        .with_oldest(settings.outgoing.connection_seconds)
        .with_share(share);
    deepgram::add_to(&mut table, providers, &transport);
    elevenlabs::add_to(&mut table, providers, &transport);
    google::add_to(&mut table, providers, &transport);
    azure::add_to(&mut table, providers, &transport);
    cartesia::add_to(&mut table, providers, &transport);
    let credentials = [
        &providers.deepgram_api_key,
        &providers.elevenlabs_api_key,
        &providers.cartesia_api_key,
        &providers.azure_subscription_key,
    ];
    table.veil(&Veil::over(credentials.into_iter().flatten()));
    Ok(table)
}

/// Every connection has two file descriptors; the soft limit of most systems is for a few hundred of them. Gives how many
/// connections there may be.
fn raise_file_limit(settings: &Settings) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    let needed = settings.limits.sessions as u64 * 2 + FILES_BESIDE_SESSIONS;
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            "limits.sessions may need {needed} open files, and the system allows {limit}"
        );
    }
    let allowed = limit.map_or(u64::MAX, |limit| {
        limit.saturating_sub(FILES_BESIDE_SESSIONS) / 2
    });
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    settings.limits.connections.min(allowed)
}

/// One-shot speech, with what earlier servers have left in the cache folder. Must be called in a runtime.
fn synthesizer(
    settings: &Settings,
    providers: &Arc<ProviderTable>,
    quotas: &Quotas,
) -> Result<Arc<Synthesizer>, ServerError> {
    let synthesis = synthesis_settings(settings, quotas);
    let folder = synthesis
        .cache
        .as_ref()
        .map(|cache| cache.path.display().to_string())
        .unwrap_or_default();
    let synthesizer = Synthesizer::open(Arc::clone(providers), &synthesis)
        .map_err(|source| ServerError::Cache { folder, source })?;
    let taking_stock = Arc::clone(&synthesizer);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = taking_stock.scan_cache() {
            tracing::warn!(%error, "the cache folder could not be read");
        }
    });
    Ok(synthesizer)
}

/// TLS, where the settings name a certificate.
pub(crate) fn secure(settings: &Settings) -> Result<Option<rustls::ServerConfig>, tls::TlsError> {
    let server = &settings.server;
    let files = server.tls_cert.as_deref().zip(server.tls_key.as_deref());
    files
        .map(|(cert, key)| tls::server_config(cert, key))
        .transpose()
}

/// Runs the server until SIGTERM or Ctrl-C.
pub fn run(config: &Config) -> Result<(), ServerError> {
    actix_web::rt::System::new().block_on(serve(config))
}

/// What an operator may not have meant.
fn warn(config: &Config) {
    for warning in auth::warnings(&config.settings.auth) {
        tracing::warn!("{warning}");
    }
    let confinement = Confinement::of_this_system();
    if !confinement.is_whole() {
        tracing::warn!("the programs that this server runs are not wholly {confinement}");
    }
}

/// Who keeps and tells what happens.
struct Tellers {
    webhooks: Webhooks,
    hooks: Addr<HookRegistry>,
    /// Who knows whose calls are; nobody asks while authentication is off.
    owners: Option<CallOwners>,
    recordings: Option<Arc<Recordings>>,
    egresses: Option<Arc<Egresses>>,
}

/// Must be called in an actor system.
async fn tellers(
    settings: &Settings,
    authorities: &Authorities,
    quotas: &Quotas,
) -> Result<Tellers, ServerError> {
    let hooks = hooks(settings, authorities).await?;
    let keys = hooks.configured().keys();
    let webhooks = Webhooks::open(&WebhookSettings::new(settings, keys), authorities);
    let webhooks = webhooks.map_err(ServerError::Webhooks)?;
    let prefix = settings.sip.room_prefix.clone();
    let numbers = TenantNumbers::read(settings.sip.tenant_numbers.as_ref());
    let numbers = numbers.map_err(ServerError::Hooks)?;
    let owners = CallOwners::new(hooks.clone(), numbers);
    let owners = settings.auth.required.then_some(owners);
    let hooks = HookRegistry::new(hooks, webhooks.clone(), prefix, owners.clone()).start();
    let recordings = recordings(settings, authorities).await?;
    let recordings = recordings.map(|recordings| {
        let counted = recordings.counted(quotas.recordings.clone());
        Arc::new(counted.telling(webhooks.clone()))
    });
    let egresses = egresses(settings, recordings.as_ref());
    Ok(Tellers {
        webhooks,
        hooks,
        owners,
        recordings,
        egresses,
    })
}

/// What sockets and requests reach. Must be called in an actor system.
fn behind_the_doors(
    settings: &Settings,
    auth: Option<Authenticator>,
    providers: &Arc<ProviderTable>,
    tellers: &Tellers,
    rooms: &OpenRooms,
    drain: &Drain,
    quotas: &Quotas,
) -> Result<(web::Data<Sockets>, web::Data<AppState>), ServerError> {
    let synthesizer = synthesizer(settings, providers, quotas)?;
    let sessions = SessionRegistry::default().start();
    let services = Arc::new(SessionServices {
        providers: Arc::clone(providers),
        synthesizer: Arc::clone(&synthesizer),
        sessions: sessions.clone(),
        rooms: Some(rooms.registry.clone()),
        calls: Some(rooms.calls.clone()),
        webhooks: Some(tellers.webhooks.clone()),
        recordings: tellers.recordings.clone(),
        egresses: tellers.egresses.clone(),
        quotas: quotas.clone(),
        closing: drain.closing.clone(),
        settings: session_settings(settings),
    });
    let state = AppState {
        auth,
        synthesizer,
        voices: VoiceRegistry::new(Arc::clone(providers)).start(),
        rooms: rooms.registry.clone(),
        room_lists: FairQueue::new(1, Share::NONE),
        calls: rooms.calls.clone(),
        hooks: tellers.hooks.clone(),
        embedded_rooms: rooms.embedded.clone(),
        trunks: rooms.trunks.clone(),
        sessions,
        recordings: tellers.recordings.clone(),
        draining: drain.draining.clone(),
        work: drain.work.clone(),
    };
    let sockets = Sockets::new(settings, services);
    Ok((web::Data::new(sockets), web::Data::new(state)))
}

async fn serve(config: &Config) -> Result<(), ServerError> {
    let settings = &config.settings;
    warn(config);
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref())?;
    let auth = Authenticator::open(&settings.auth, &authorities)?;
    let secure = secure(settings)?;
    let connections = raise_file_limit(settings);
    let providers = Arc::new(providers(settings)?);
    let quotas = Quotas::new(settings);
    let tellers = tellers(settings, &authorities, &quotas).await?;
    let rooms = OpenRooms::open(
        settings,
        &authorities,
        &tellers.webhooks,
        &tellers.hooks.clone().recipient(),
        tellers.owners.clone(),
        &quotas.calls,
    )
    .await?;
    let drain = Drain {
        patience: settings.shutdown.drain_seconds,
        draining: CancellationToken::new(),
        work: TaskTracker::new(),
        closing: CancellationToken::new(),
        telephone: rooms.telephone(),
    };
    let limits = web::Data::new(Limits::new(settings, &quotas));
    let origins = web::Data::new(Origins::new(&settings.server.cors_origins.0));
    let open = !settings.auth.required;
    let hosts = web::Data::new(AllowedHosts::new(settings, settings.server.host, open));
    let (sockets, state) = behind_the_doors(
        settings, auth, &providers, &tellers, &rooms, &drain, &quotas,
    )?;
    let Tellers {
        webhooks,
        recordings,
        egresses,
        ..
    } = tellers;
    let uploads = recordings.map(|recordings| Uploads::begin(recordings, egresses, settings));

    // Signals are caught before anything is announced, so that an early one is not lost.
    let stop = StopSignal::listen()?;
    let address = SocketAddr::new(settings.server.host, settings.server.port);
    let workers = match settings.server.workers {
        0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        workers => workers,
    };
    let metrics_address = settings.telemetry.metrics_address;
    let listen = Listen {
        address,
        tls: secure,
        workers,
        max_connections: connections,
        connections: Arc::new(Connections::new(settings, connections)),
        shutdown_seconds: settings.shutdown.drain_seconds.as_secs(),
    };
    let server = listen.serve(move || {
        App::new()
            .app_data(state.clone())
            .app_data(sockets.clone())
            .app_data(limits.clone())
            .app_data(origins.clone())
            .app_data(hosts.clone())
            // From the inside to the outside: whatever is refused is observed, and shown to the pages that may see it.
            .wrap(from_fn(http::limit_by_address))
            .wrap(from_fn(http::allow_origins))
            .wrap(from_fn(http::check_host))
            .wrap(from_fn(http::observe))
            .wrap(from_fn(http::track_connections))
            .configure(|app| http::configure(app, metrics_address.is_none()))
    });
    let (address, running) = server.map_err(|source| ServerError::Listen { address, source })?;
    let metrics = metrics_address.map(|address| serve_metrics(address, settings));
    let metrics = metrics.transpose()?;
    announce(address, settings);

    actix_web::rt::spawn(drain.run(stop, running.handle()));
    running.await?;
    if let Some(metrics) = metrics {
        metrics.stop(false).await;
    }
    rooms.finish(GOODBYE).await;
    finish(uploads, &webhooks).await;
    tracing::info!("stopped");
    Ok(())
}

/// What brings recordings to the store, and removes old ones.
struct Uploads {
    task: JoinHandle<()>,
    closing: CancellationToken,
}

impl Uploads {
    fn begin(
        recordings: Arc<Recordings>,
        egresses: Option<Arc<Egresses>>,
        settings: &Settings,
    ) -> Self {
        let closing = CancellationToken::new();
        if let Some(days) = settings.recording.retention_days {
            let age = Duration::from_hours(24) * days.get();
            actix_web::rt::spawn(recordings.clone().forget(age, closing.clone()));
        }
        let until = closing.clone();
        let task = actix_web::rt::spawn(async move {
            let elsewhere = egresses.map(|egresses| egresses.run(until.clone()));
            let elsewhere = OptionFuture::from(elsewhere);
            tokio::join!(recordings.run(until), elsewhere);
        });
        Self { task, closing }
    }

    /// Waits a little for what is under way.
    async fn finish(self) {
        self.closing.cancel();
        if tokio::time::timeout(GOODBYE, self.task).await.is_err() {
            tracing::warn!("recordings wait in their journals");
        }
    }
}

/// How the server comes to its end.
struct Drain {
    patience: Duration,
    draining: CancellationToken,
    work: TaskTracker,
    closing: CancellationToken,
    telephone: Option<Arc<EmbeddedTelephone>>,
}

impl Drain {
    /// Waits for a signal, lets running work finish, and stops the server.
    async fn run(self, mut stop: StopSignal, server: ServerHandle) {
        stop.received().await;
        let patience = self.patience;
        tracing::info!(
            "stopping: running work may go on for {} s",
            patience.as_secs()
        );
        // New connections are still taken, so that a load balancer is told by /readyz.
        self.draining.cancel();
        // But no calls, which would be cut: whoever calls goes elsewhere.
        if let Some(telephone) = &self.telephone {
            telephone.take_no_more();
        }
        self.work.close();
        let done = tokio::select! {
            () = self.work.wait() => true,
            () = stop.received() => false,
            () = tokio::time::sleep(patience) => false,
        };
        if !done {
            // Sessions say goodbye; whatever else still runs is cut.
            tracing::warn!("ending what still runs");
            self.closing.cancel();
            let _late = tokio::time::timeout(GOODBYE, self.work.wait()).await;
        }
        server.stop(self.work.is_empty()).await;
    }
}

/// Brings to an end what outlives the doors.
async fn finish(uploads: Option<Uploads>, webhooks: &Webhooks) {
    // What is not kept or told by then is kept and told by the next server over this data folder.
    if let Some(uploads) = uploads {
        uploads.finish().await;
    }
    let _late = tokio::time::timeout(GOODBYE, webhooks.finish()).await;
}

/// Shows the metrics at an address of their own until they are stopped.
fn serve_metrics(address: SocketAddr, settings: &Settings) -> Result<ServerHandle, ServerError> {
    let (address, server) = http::serve_metrics_alone(address, settings)
        .map_err(|source| ServerError::ListenForMetrics { address, source })?;
    let handle = server.handle();
    // It ends by its handle alone.
    actix_web::rt::spawn(server);
    tracing::info!("metrics are shown, without a token, at http://{address}/metrics");
    Ok(handle)
}

/// SIGTERM or Ctrl-C.
pub(crate) struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignal {
    /// Catches both from now on. Must be called in a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next of them.
    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// What needs no token; nothing where everything does.
fn open_doors(settings: &Settings) -> String {
    if settings.auth.required {
        return match settings.auth.socket() {
            SocketAuth::Public => "speak and listen (/ws)".to_owned(),
            SocketAuth::Required => String::new(),
        };
    }
    let mut open = vec![
        "speak and listen (/ws, /speak)",
        "list and end sessions (/sessions)",
        "read voices (/voices)",
    ];
    if settings.telemetry.metrics_address.is_none() {
        open.push("read counts (/metrics)");
    }
    if settings.recording.backend != RecordingBackend::Off {
        open.push("fetch and delete recordings (/recordings)");
    }
    if livekit::mode(&settings.rtc) != RtcMode::Off {
        open.push("enter rooms and send people out (/rtc)");
        open.push(match settings.sip.outbound_address {
            Some(_) => "call telephones at your expense and change hooks (/sip)",
            None => "change hooks (/sip)",
        });
    }
    open.join(", ")
}

/// Tells whoever started it where it listens, what it can do and what to try.
fn announce(address: SocketAddr, settings: &Settings) {
    let scheme = settings
        .server
        .tls_cert
        .as_ref()
        .map_or("http", |_| "https");
    let open = open_doors(settings);
    if !address.ip().is_loopback() && !open.is_empty() {
        tracing::warn!(
            "listening on {address}, where whoever reaches this address can, without a token, {open}"
        );
    }
    // The shell's own variable, so that no secret is shown.
    let token = if settings.auth.required {
        " -H \"authorization: Bearer $TOKEN\""
    } else {
        ""
    };
    let program = std::env::args()
        .next()
        .unwrap_or_else(|| "vivavoce".to_owned());
    let mut text = format!(
        "Vivavoce {} listens on {scheme}://{address}\n\n",
        env!("CARGO_PKG_VERSION")
    );
    for engine in engines(settings) {
        text += &format!("  {engine}\n");
    }
    text += &format!(
        "\nTry, in another terminal:\n\n  \
         curl {scheme}://{address}/speak{token} -H 'content-type: application/json' -o hello.wav \\\n    \
         -d '{{\"text\": \"Hello, I can speak.\", \"tts_config\": {{\"provider\": \"local\", \"model\": \"\", \"audio_format\": \"wav\"}}}}'\n  \
         {program} transcribe hello.wav\n  \
         curl {scheme}://{address}/voices{token}\n\n\
         Or talk to it in a browser: {scheme}://{address}/console\n\
         The interface, described: {scheme}://{address}/docs\n\n"
    );
    // A closed standard output is no reason not to serve.
    let _ = io::stdout().lock().write_all(text.as_bytes());
}
