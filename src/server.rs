//! Assembles the server from its settings and runs it until it is told to stop.

mod banner;
pub mod discretion;
pub(crate) mod files;
mod listening;
mod prompts;
#[cfg(test)]
mod providers_page;
mod reload;
mod rooms;
pub mod settings;
mod systemd;
mod takeover;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr};
use actix_web::dev::ServerHandle;
use actix_web::web;
use futures_util::future::OptionFuture;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::actors::registry::hooks::{DialAgentsBy, HookRegistry};
use crate::actors::registry::resumes::Resumes;
use crate::actors::registry::sessions::SessionRegistry;
use crate::actors::registry::voices::VoiceRegistry;
use crate::actors::session::backchannel::Lists;
use crate::actors::session::{SessionServices, SessionSettings};
use crate::agents::{AgentDialler, AgentLines, AgentRoutes, DialPlan, DiallerParts};
use crate::audio::Channels;
use crate::auth::{self, Authenticator, SetupError};
use crate::config::{Config, RecordingBackend, RecordingLayout, Settings};
use crate::hooks::{CallOwners, Configured, HookFile, Hooks, TenantNumbers};
use crate::http::carrier::{CarrierSettings, Carriers};
use crate::http::inspect::{Feed, Model, SettingsInForce};
use crate::http::openai::OpenAi;
use crate::http::{
    AllowedHosts, AppState, AtFormer, Limits, Origins, Sockets, SuccessorKey, WhipSessions, tls,
};
use crate::llm::Endpoints;
use crate::process::confinement::Confinement;
use crate::providers::RecordingStore;
use crate::providers::embedded::EmbeddedError;
use crate::providers::embedded::sip::EmbeddedSip;
use crate::providers::file::FileStore;
use crate::providers::s3::S3Store;
use crate::providers::transport::Transport;
use crate::providers::{ProviderTable, add_vendors, livekit, local, null};
use crate::quotas::{FairQueue, Quotas, Share};
use crate::recordings::audit::Audit;
use crate::recordings::egress::Egresses;
use crate::recordings::{RecordingSettings, Recordings};
use crate::rooms::RoomServer;
use crate::synthesis::{CacheSettings, SynthesisSettings, Synthesizer};
use crate::tls_roots::{Authorities, AuthoritiesError};
use crate::webhooks::{WebhookSettings, Webhooks};
pub(crate) use banner::with_credentials;
use listening::{Served, Serving};
use prompts::Prompts;
pub use reload::Read;
use reload::Reloadable;
use rooms::OpenRooms;
pub(crate) use rooms::check_telephone;
use takeover::Handover;
use vivavoce_core::memory;
use vivavoce_replicas::{Replicas, ReplicasError};
use vivavoce_takeover::{Former, TakeoverError};

/// How long sessions may take at shutdown to play out their last words and close their sockets.
const GOODBYE: Duration = Duration::from_secs(5);

/// How long everything that comes after the drain may take: sessions, rooms, uploads and webhooks, each with its goodbye.
const AFTER_DRAIN: Duration = Duration::from_secs(45);

/// How long a server that was replaced waits for what may have been on its way.
const LINGERS: Duration = Duration::from_secs(2);
/// How often a server that was replaced looks whether somebody is left in its rooms.
const LOOKS_EVERY: Duration = Duration::from_millis(250);

/// File descriptors for files, listeners, other connections and pipes to programs.
const FILES_BESIDE_SESSIONS: u64 = 200;

/// Why the server could not start or run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The folder of the synthesis cache cannot be used.
    #[error("cache.path: {folder}: {source}")]
    Cache {
        /// The folder.
        folder: String,
        /// The cause.
        source: io::Error,
    },
    /// The file of accesses to recordings cannot be written.
    #[error("recording.audit_file: {0}")]
    Audit(io::Error),
    /// The data folder cannot be used for this.
    #[error("data_dir: {}: {what} cannot be stored there: {source}", folder.display())]
    DataDir {
        /// The folder.
        folder: PathBuf,
        /// What was to be stored.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The address cannot be listened on.
    #[error("server.host, server.port: {address}: {source}{}", what_to_do(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The address of the metrics cannot be listened on.
    #[error("metrics.address: {address}: {source}")]
    ListenForMetrics {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// Trunks of the settings do not go with those of LiveKit's API.
    #[error("{}", .0.join("; "))]
    Trunks(Vec<String>),
    /// A recording for callers cannot be used. It names the setting.
    #[error("{0}")]
    Prompts(String),
    /// The SIP user agent cannot start.
    #[error("{0}")]
    Telephone(#[source] io::Error),
    /// The hooks in the settings are invalid.
    #[error("{}", .0.join("\n"))]
    Hooks(Vec<String>),
    /// The agents in the settings are invalid.
    #[error("{}", .0.join("\n"))]
    Agents(Vec<String>),
    /// The language models in the settings are invalid.
    #[error("{}", .0.join("\n"))]
    Llm(Vec<String>),
    /// The carriers in the settings are invalid.
    #[error("{}", .0.join("\n"))]
    Carriers(Vec<String>),
    /// The running server cannot be replaced.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// Other replicas cannot be found.
    #[error(transparent)]
    Replicas(#[from] ReplicasError),
    /// The client for room webhooks cannot be created.
    #[error("rtc.webhook_urls: {0}")]
    RoomEvents(#[source] io::Error),
    /// Authentication cannot be set up.
    #[error(transparent)]
    Auth(#[from] SetupError),
    /// The additional certificate authorities cannot be read.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The embedded rooms cannot start.
    #[error(transparent)]
    Rooms(#[from] EmbeddedError),
    /// Any other system error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What to do about an address that cannot be listened on; empty where the cause says all.
fn what_to_do(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            "; end the program that listens there, choose another port (--port), or replace a running server (--takeover)"
        }
        _ => "",
    }
}

/// An error of what is kept in the data folder.
fn in_data_dir(settings: &Settings, what: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    let folder = settings.storage.data_dir.clone();
    move |source| ServerError::DataDir {
        folder,
        what,
        source,
    }
}

/// Looks for the local engines.
pub fn engines(settings: &Settings) -> Vec<local::Engine> {
    local::engines(&settings.providers, &settings.models_path())
}

/// The limits of the synthesiser, from the settings.
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

/// The folder of the synthesis cache.
pub(crate) fn cache_folder(settings: &Settings) -> PathBuf {
    let path = settings.cache.path.clone();
    path.unwrap_or_else(|| settings.storage.data_dir.join("cache"))
}

/// The hooks of the settings and those added through the API.
async fn hooks(settings: &Settings, authorities: &Authorities) -> Result<Hooks, ServerError> {
    let configured = Configured::new(settings).map_err(ServerError::Hooks)?;
    for warning in configured.warnings() {
        tracing::warn!("{warning}");
    }
    let file = HookFile::new(settings.storage.data_dir.clone());
    let file = file.moved_from(cache_folder(settings));
    let hooks = match &settings.redis.url {
        None => Hooks::in_file(configured, file),
        Some(url) => {
            let transport = Transport::new(authorities).map_err(io::Error::other)?;
            let shared = Hooks::in_redis(configured, file, url, transport.tls());
            shared.map_err(|problem| ServerError::Hooks(vec![format!("redis.url: {problem}")]))?
        }
    };
    hooks.open().await;
    Ok(hooks)
}

/// The servers that share the Redis of the settings, and the one that this one replaces.
fn replicas(
    settings: &Settings,
    authorities: &Authorities,
    former: Option<Arc<Former>>,
) -> Result<Arc<Replicas>, ServerError> {
    let transport = Transport::new(authorities).map_err(io::Error::other)?;
    let tls = transport.tls();
    Ok(Replicas::new(settings, authorities, tls, former)?)
}

/// A recording store.
pub type Store = Arc<dyn RecordingStore>;

/// The recording store configured in the settings; `None` if recording is off.
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

/// The recordings configured in the settings; `None` if recording is off.
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
    let recordings = recordings.map_err(in_data_dir(settings, "journals of recordings"))?;
    // The server does not start with a setting that cannot be read.
    let recordings = recordings.discreet(discretion::read(wanted).unwrap_or_default());
    Ok(Some(match &wanted.audit_file {
        None => recordings,
        Some(path) => recordings.audited(Audit::open(path).map_err(ServerError::Audit)?),
    }))
}

/// Recordings by a LiveKit deployment's egress service; `None` if not configured.
fn egresses(
    settings: &Settings,
    recordings: Option<&Arc<Recordings>>,
) -> Result<Option<Arc<Egresses>>, ServerError> {
    let Some(recordings) = recordings else {
        return Ok(None);
    };
    let transport = transport(settings)?;
    let egress =
        livekit::egress::Egress::from_settings(&settings.rtc, &settings.recording, &transport);
    Ok(egress.map(|egress| Egresses::open(Arc::new(egress), Arc::clone(recordings))))
}

/// The settings of sessions.
pub fn session_settings(settings: &Settings) -> SessionSettings {
    let socket = &settings.socket;
    SessionSettings {
        config_timeout: socket.config_timeout_seconds,
        resume_within: socket.resume_seconds,
        drain_within: settings.shutdown.drain_seconds,
        lead: if socket.pacing {
            socket.lead_ms.0
        } else {
            Duration::MAX
        },
        room_complexity: settings.rtc.complexity,
        public_recordings: settings.auth.public_recordings,
    }
}

/// The backchannels of the settings, which were checked when those were loaded.
fn backchannels(settings: &Settings) -> Lists {
    Lists::read(settings.turns.backchannels_json.as_ref()).unwrap_or_default()
}

/// The transport for connections to other servers.
fn transport(settings: &Settings) -> Result<Transport, ServerError> {
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref())?;
    Ok(Transport::new(&authorities).map_err(io::Error::other)?)
}

/// The providers configured in the settings.
pub fn providers(settings: &Settings) -> io::Result<ProviderTable> {
    let mut table = ProviderTable::default();
    let providers = &settings.providers;
    let share = Share::of(settings);
    local::add_to(&mut table, providers, &settings.models_path(), share)?;
    null::add_to(&mut table, providers);
    add_all_vendors(&mut table, settings)?;
    table.veil();
    Ok(table)
}

fn add_all_vendors(table: &mut ProviderTable, settings: &Settings) -> io::Result<()> {
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref());
    let authorities = authorities.map_err(io::Error::other)?;
    let transport = Transport::new(&authorities).map_err(io::Error::other)?;
    let transport = transport
        .with_oldest(settings.outgoing.connection_seconds)
        .with_share(Share::of(settings));
    add_vendors(table, &settings.providers, &transport);
    Ok(())
}

/// The same after the settings have changed: local engines stay as they are, with their workers, unless their own settings
/// have changed. They look for models by themselves, but for that of turns, which is looked for once.
fn reloaded_providers(
    before: &Settings,
    settings: &Settings,
    current: &ProviderTable,
) -> io::Result<ProviderTable> {
    let local = |settings: &Settings| {
        let own = &settings.providers;
        format!(
            "{} {:?} {:?} {} {:?} {:?} {:?}",
            settings.models_path().display(),
            own.local_stt_url,
            own.local_tts_url,
            own.local_model_path.display(),
            own.local_stt_workers,
            own.local_stt_preload,
            own.local_turn_deadline_ms.0,
        )
    };
    if local(before) != local(settings) || current.turn_model().is_none() {
        return providers(settings);
    }
    let mut table = ProviderTable::default();
    add_all_vendors(&mut table, settings)?;
    // What is kept is veiled already.
    table.veil();
    table.keep(current, &["local", "null"]);
    Ok(table)
}

/// The number of files that may be open at once.
pub(crate) const fn needed_files(settings: &Settings) -> u64 {
    settings.limits.sessions as u64 * 2 + FILES_BESIDE_SESSIONS
}

/// Raises the limit of open files, which on most systems only suffices for a few hundred connections of two descriptors
/// each. Returns how many connections are possible.
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
    let needed = needed_files(settings);
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            "limits.sessions may require {needed} open files, but the system's limit is {limit}"
        );
    }
    let allowed = limit.map_or(u64::MAX, |limit| {
        limit.saturating_sub(FILES_BESIDE_SESSIONS) / 2
    });
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    settings.limits.connections.min(allowed)
}

/// The synthesiser, with what earlier runs have left in the cache. Must be called in a tokio runtime.
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
    let scanner = Arc::clone(&synthesizer);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = scanner.scan_cache() {
            tracing::warn!(%error, "the folder of the synthesis cache could not be read");
        }
    });
    Ok(synthesizer)
}

/// The TLS configuration, if the settings name a certificate.
pub(crate) fn secure(settings: &Settings) -> Result<Option<rustls::ServerConfig>, tls::TlsError> {
    let server = &settings.server;
    let files = server.tls_cert.as_deref().zip(server.tls_key.as_deref());
    files
        .map(|(cert, key)| tls::server_config(cert, key))
        .transpose()
}

/// Runs the server until SIGTERM or Ctrl-C. On SIGHUP nothing changes.
pub fn run(config: &Config) -> Result<(), ServerError> {
    let same = config.clone();
    run_reloading(config, Arc::new(move || Ok(same.clone())), false)
}

/// Runs the server until SIGTERM or Ctrl-C; `read` reads the settings again on SIGHUP. With `takeover` it replaces the server
/// that runs with the same data folder, where there is one.
pub fn run_reloading(config: &Config, read: Read, takeover: bool) -> Result<(), ServerError> {
    actix_web::rt::System::new().block_on(serve(config, read, takeover))
}

/// Logs settings that are valid but probably not intended.
fn warn(config: &Config) {
    for warning in auth::warnings(&config.settings.auth) {
        tracing::warn!("{warning}");
    }
    let confinement = Confinement::of_this_system();
    if !confinement.is_whole() {
        tracing::warn!("the programs that this server runs are not fully {confinement}");
    }
}

/// What stores and reports events, recordings, webhooks, call hooks, and the servers that share some of it.
struct Notifiers {
    replicas: Arc<Replicas>,
    /// The server that this one replaces.
    former: Option<Arc<Former>>,
    webhooks: Webhooks,
    hooks: Addr<HookRegistry>,
    /// The same hooks, for when their settings change.
    kept_hooks: Hooks,
    /// Determines the owners of calls; not needed while authentication is off.
    owners: Option<CallOwners>,
    recordings: Option<Arc<Recordings>>,
    egresses: Option<Arc<Egresses>>,
}

impl Notifiers {
    /// The recordings, if there are any, and their quota.
    const fn recorded<'a>(&'a self, quotas: &'a Quotas) -> rooms::RecordingsOf<'a> {
        (self.recordings.as_ref(), &quotas.recordings)
    }
}

/// Creates the notifiers. Must be called in an actor system.
async fn notifiers(
    settings: &Settings,
    authorities: &Authorities,
    quotas: &Quotas,
    former: Option<Arc<Former>>,
) -> Result<Notifiers, ServerError> {
    let hooks = hooks(settings, authorities).await?;
    let keys = hooks.configured().keys();
    let webhooks = Webhooks::open(&WebhookSettings::new(settings, keys), authorities);
    let webhooks = webhooks.map_err(in_data_dir(settings, "webhooks"))?;
    let prefix = settings.sip.room_prefix.clone();
    let numbers = TenantNumbers::read(settings.sip.tenant_numbers.as_ref());
    let numbers = numbers.map_err(ServerError::Hooks)?;
    let owners = CallOwners::new(hooks.clone(), numbers);
    let owners = settings.auth.required.then_some(owners);
    let kept_hooks = hooks.clone();
    let hooks = HookRegistry::new(hooks, webhooks.clone(), prefix, owners.clone()).start();
    let recordings = recordings(settings, authorities).await?;
    let recordings = recordings.map(|recordings| {
        let counted = recordings.counted(quotas.recordings.clone());
        Arc::new(counted.reporting_to(webhooks.clone()))
    });
    let egresses = egresses(settings, recordings.as_ref())?;
    Ok(Notifiers {
        replicas: replicas(settings, authorities, former.clone())?,
        former,
        webhooks,
        hooks,
        kept_hooks,
        owners,
        recordings,
        egresses,
    })
}

/// Creates the state shared by the socket and HTTP handlers. Must be called in an actor system.
fn app_state(
    config: &Config,
    auth: Option<Authenticator>,
    providers: &Arc<ProviderTable>,
    notifiers: &Notifiers,
    rooms: &OpenRooms,
    drain: &Drain,
    (quotas, authorities, synthesizer): (&Quotas, &Authorities, Arc<Synthesizer>),
) -> Result<(web::Data<Sockets>, web::Data<AppState>), ServerError> {
    let settings = &config.settings;
    let llm = Endpoints::new(settings, authorities).map_err(ServerError::Llm)?;
    let llm = Arc::new(llm);
    let sessions = SessionRegistry::default().start();
    let dialect = Arc::new(settings.dialect.words());
    let services = Arc::new(SessionServices {
        providers: Arc::clone(providers),
        llm: Arc::clone(&llm),
        synthesizer: Arc::clone(&synthesizer),
        sessions: sessions.clone(),
        rooms: Some(rooms.registry.clone()),
        calls: Some(rooms.calls.clone()),
        webhooks: Some(notifiers.webhooks.clone()),
        recordings: notifiers.recordings.clone(),
        egresses: notifiers.egresses.clone(),
        quotas: quotas.clone(),
        closing: drain.closing.clone(),
        draining: drain.draining.clone(),
        replaced: drain.given.clone(),
        settings: session_settings(settings),
        backchannels: Arc::new(backchannels(settings)),
        resumes: Arc::new(Resumes::with_prefix(notifiers.replicas.token_prefix())),
        replicas: Some(Arc::clone(&notifiers.replicas)),
        dialect: Arc::clone(&dialect),
    });
    let store = vivavoce_models::Store::new(settings.models_path());
    let listed = store.clone();
    let model_list = move || models(&listed);
    let models = move || {
        let installed = store
            .list()
            .into_iter()
            .filter(|(_, state)| *state == vivavoce_models::State::Installed);
        installed.map(|(model, _)| model.name.clone()).collect()
    };
    let state = AppState {
        models: Arc::new(models),
        model_list: Arc::new(model_list),
        settings: SettingsInForce::new(config.resolved.clone()),
        feed: Feed::new(sessions.clone()),
        providers: Arc::clone(providers),
        recognisers: quotas.recognisers.clone(),
        openai: OpenAi::new(settings),
        llm,
        auth,
        synthesizer,
        voices: VoiceRegistry::new(Arc::clone(providers)).start(),
        rooms: rooms.registry.clone(),
        room_lists: FairQueue::new(1, Share::NONE),
        calls: rooms.calls.clone(),
        hooks: notifiers.hooks.clone(),
        embedded_rooms: rooms.embedded.clone(),
        former: notifiers
            .former
            .clone()
            .map(AtFormer::new)
            .transpose()
            .map_err(io::Error::other)?,
        trunks: rooms.trunks.clone(),
        sessions,
        recordings: notifiers.recordings.clone(),
        egress: rooms.egress.clone(),
        mixes: rooms.mixes.clone(),
        whip: WhipSessions::default(),
        draining: drain.draining.clone(),
        given: drain.given.clone(),
        work: drain.work.clone(),
        dialect,
    };
    let sockets = Sockets::new(settings, services);
    Ok((web::Data::new(sockets), web::Data::new(state)))
}

/// The models of the catalogue.
fn models(store: &vivavoce_models::Store) -> Vec<Model> {
    use vivavoce_models::State;
    let models = store.list().into_iter().map(|(model, state)| Model {
        name: model.name.clone(),
        task: model.task.name(),
        about: model.about.clone(),
        languages: model.languages.clone(),
        licence: model.licence.clone(),
        size: model.size(),
        state: match state {
            State::Installed => "installed",
            State::Missing => "missing",
            State::Partial(_) => "partial",
            State::Damaged(_) => "damaged",
            State::Unsupported => "unsupported",
        },
    });
    models.collect()
}

/// The doors of telephone carriers.
fn carriers(settings: &Settings, lines: AgentLines) -> Result<web::Data<Carriers>, ServerError> {
    let carriers = CarrierSettings::new(settings).map_err(ServerError::Carriers)?;
    Ok(web::Data::new(Carriers::new(carriers, settings, lines)))
}

async fn serve(config: &Config, read: Read, takeover: bool) -> Result<(), ServerError> {
    let settings = &config.settings;
    warn(config);
    let (former, listening) = takeover::ask_former(settings, takeover).await?;
    let authorities = Authorities::read(settings.outgoing.ca_file.as_deref())?;
    let auth = Authenticator::open(&settings.auth, &authorities, settings.dialect.words())?;
    let secure = secure(settings)?;
    let connections = raise_file_limit(settings);
    let providers = Arc::new(providers(settings)?);
    let quotas = Quotas::new(settings);
    let notifiers = notifiers(settings, &authorities, &quotas, former.clone()).await?;
    let synthesizer = synthesizer(settings, &providers, &quotas)?;
    let prompts = Arc::new(Prompts::open(settings, &providers, &synthesizer)?);
    let rooms = OpenRooms::open(
        settings,
        &authorities,
        &notifiers.webhooks,
        &notifiers.hooks.clone().recipient(),
        notifiers.owners.clone(),
        (&quotas.calls, prompts, notifiers.recorded(&quotas)),
        (&listening, former.clone()),
    )
    .await?;
    let drain = Drain {
        patience: settings.shutdown.drain_seconds,
        draining: CancellationToken::new(),
        work: TaskTracker::new(),
        closing: CancellationToken::new(),
        telephone: rooms.telephone(),
        rooms: rooms.embedded.clone(),
        given: CancellationToken::new(),
        sockets: listening.clone(),
    };
    let shared = (&quotas, &authorities, synthesizer);
    let (sockets, state) = app_state(config, auth, &providers, &notifiers, &rooms, &drain, shared)?;
    let (agents, lines) = dial_agents(settings, &authorities, &sockets, &notifiers.hooks, &drain)?;
    let open = !settings.auth.required;
    let served = Served {
        limits: web::Data::new(Limits::new(settings, &quotas)),
        origins: web::Data::new(Origins::new(&settings.server.cors_origins.0)),
        hosts: web::Data::new(AllowedHosts::new(settings, settings.server.host, open)),
        key: SuccessorKey(None),
        with_metrics: settings.telemetry.metrics_address.is_none(),
        state,
        sockets,
        carriers: carriers(settings, lines)?,
    };
    let handover = takeover::Parts {
        id: notifiers.replicas.id().to_owned(),
        sockets: listening.clone(),
        served: served.clone(),
        quotas: quotas.clone(),
    };
    let following = former.clone().zip(served.state.embedded_rooms.clone());
    let reloadable = Reloadable {
        providers,
        quotas,
        limits: served.limits.clone(),
        hooks: notifiers.kept_hooks,
        webhooks: notifiers.webhooks.clone(),
        voices: served.state.voices.clone(),
        state: served.state.clone(),
        agents,
        carriers: served.carriers.clone(),
    };
    let Notifiers {
        replicas,
        webhooks,
        recordings,
        egresses,
        ..
    } = notifiers;
    let uploads = recordings.map(|recordings| Uploads::begin(recordings, egresses));

    // Signals are caught before the address is announced, so that an early one is not lost.
    let stop = StopSignal::listen()?;
    let hangup = signal(SignalKind::hangup())?;
    let serving = Serving::begin(settings, secure, connections, served, &listening)?;
    takeover::take_over(former.as_ref(), &listening).await;
    if let Some((former, rooms)) = following {
        actix_web::rt::spawn(takeover::tell_rooms(former, rooms));
    }
    banner::show(serving.address, settings);
    systemd::serves();
    let handover = Handover::new(handover, settings.clone(), serving.accepting);
    actix_web::rt::spawn(handover.run(former.is_some()));
    let announcing = Arc::clone(&replicas);
    let tls = settings.server.tls_cert.is_some();
    actix_web::rt::spawn(announcing.announce(serving.address, tls));

    actix_web::rt::spawn(give_memory_back());
    actix_web::rt::spawn(reloadable.follow(hangup, config.clone(), read));
    actix_web::rt::spawn(drain.run(stop, serving.api));
    serving.running.await.map_err(io::Error::other)??;
    if let Some(metrics) = serving.metrics {
        metrics.stop(false).await;
    }
    replicas.leave().await;
    rooms.finish(GOODBYE).await;
    finish(uploads, &webhooks).await;
    tracing::info!("stopped");
    Ok(())
}

/// How many threads serve requests and sessions.
fn workers(settings: &Settings) -> usize {
    match settings.server.workers {
        0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        workers => workers,
    }
}

/// Has the agents of the settings dialled for calls.
fn dial_agents(
    settings: &Settings,
    authorities: &Authorities,
    sockets: &Sockets,
    hooks: &Addr<HookRegistry>,
    drain: &Drain,
) -> Result<(Addr<AgentDialler>, AgentLines), ServerError> {
    let routes = AgentRoutes::new(settings).map_err(ServerError::Agents)?;
    let plan = routes.map(|routes| DialPlan::new(routes, authorities, settings.dialect.words()));
    let scheme = settings.server.tls_cert.as_ref().map_or("ws", |_| "wss");
    let address = SocketAddr::new(settings.server.host, settings.server.port);
    let parts = DiallerParts {
        services: Arc::clone(sockets.services()),
        sockets: sockets.settings().clone(),
        work: drain.work.clone(),
        own_url: format!("{scheme}://{address}"),
        threads: workers(settings),
    };
    let dialler = AgentDialler::new(parts, plan.transpose()?);
    let lines = dialler.lines();
    let dialler = dialler.start();
    // The first message of its mailbox.
    hooks.do_send(DialAgentsBy(dialler.clone().recipient()));
    Ok((dialler, lines))
}

/// Gives back to the kernel, some seconds after a flood, what the C library's allocator kept of it. For as long as the server runs.
async fn give_memory_back() {
    let mut surplus = memory::Surplus::default();
    let mut looks = tokio::time::interval(memory::LOOK_EVERY);
    loop {
        looks.tick().await;
        let Some(resident) = memory::resident() else {
            return;
        };
        if !surplus.is_due(resident) {
            continue;
        }
        // Only a runtime that is shutting down refuses it.
        if tokio::task::spawn_blocking(memory::give_back)
            .await
            .is_err()
        {
            return;
        }
        let after = memory::resident().unwrap_or(resident);
        surplus.given_back(after);
        tracing::debug!(resident, after, "freed memory was given back");
    }
}

/// The background task that uploads recordings and deletes old ones.
struct Uploads {
    task: JoinHandle<()>,
    closing: CancellationToken,
}

impl Uploads {
    fn begin(recordings: Arc<Recordings>, egresses: Option<Arc<Egresses>>) -> Self {
        let closing = CancellationToken::new();
        if recordings.forgets() {
            actix_web::rt::spawn(recordings.clone().forget(closing.clone()));
        }
        let until = closing.clone();
        let task = actix_web::rt::spawn(async move {
            let elsewhere = egresses.map(|egresses| egresses.run(until.clone()));
            let elsewhere = OptionFuture::from(elsewhere);
            tokio::join!(recordings.run(until), elsewhere);
        });
        Self { task, closing }
    }

    /// Waits a limited time for uploads in progress.
    async fn finish(self) {
        self.closing.cancel();
        if tokio::time::timeout(GOODBYE, self.task).await.is_err() {
            tracing::warn!(
                "uploads were not finished in time; the recordings wait in their journals"
            );
        }
    }
}

/// The shutdown sequence.
struct Drain {
    patience: Duration,
    draining: CancellationToken,
    work: TaskTracker,
    closing: CancellationToken,
    telephone: Option<Arc<EmbeddedSip>>,
    rooms: Option<RoomServer>,
    /// Cancelled once another server has taken over.
    given: CancellationToken,
    sockets: vivavoce_takeover::Sockets,
}

impl Drain {
    /// Waits for a signal or a server that takes over, lets work in progress finish, and stops the server.
    async fn run(self, mut stop: StopSignal, server: ServerHandle) {
        let patience = self.patience;
        tokio::select! {
            () = stop.received() => systemd::stops(patience + AFTER_DRAIN),
            () = self.given.cancelled() => systemd::replaced(),
        }
        tracing::info!(
            "stopping: waiting up to {} s for work in progress",
            patience.as_secs()
        );
        // New connections are still accepted, so that a load balancer can see the state at /readyz.
        self.draining.cancel();
        // New calls are not, because they would be cut: callers go to another server.
        if let Some(telephone) = &self.telephone {
            telephone.take_no_more();
        }
        self.work.close();
        let done = tokio::select! {
            () = self.finished() => true,
            () = stop.received() => false,
            () = tokio::time::sleep(patience) => false,
        };
        if !done {
            // Sessions close their sockets; all other work is aborted.
            tracing::warn!("ending the work still in progress");
            self.closing.cancel();
            let _late = tokio::time::timeout(GOODBYE, self.work.wait()).await;
        }
        // The listeners close with the server.
        self.sockets.close();
        server.stop(self.work.is_empty()).await;
    }

    /// Waits for work in progress, and for rooms and calls if another server has taken over: nobody waits for this one then.
    async fn finished(&self) {
        if self.given.is_cancelled() {
            // Connections that were accepted before have a request, or are let go of.
            tokio::time::sleep(LINGERS).await;
        }
        self.work.wait().await;
        if !self.given.is_cancelled() {
            return;
        }
        if let Some(rooms) = &self.rooms {
            while !rooms.in_use().await.is_empty() {
                tokio::time::sleep(LOOKS_EVERY).await;
            }
        }
        self.work.wait().await;
    }
}

/// Finishes what outlives the listeners.
async fn finish(uploads: Option<Uploads>, webhooks: &Webhooks) {
    // What is not uploaded or delivered by then is left to the next server with this data folder.
    if let Some(uploads) = uploads {
        uploads.finish().await;
    }
    let _late = tokio::time::timeout(GOODBYE, webhooks.finish()).await;
}

/// SIGTERM or Ctrl-C.
pub(crate) struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignal {
    /// Starts to catch both. Must be called in a tokio runtime.
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
