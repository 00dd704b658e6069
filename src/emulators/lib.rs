//! Emulators of the six vendors, for developers, tests and benchmarks without a key. They are faithful enough for the
//! vendors' own SDKs, and inject faults on request ([`faults`]). What all have in common is in the files of this folder;
//! each vendor's protocol is in a folder of its own and knows nothing of the other vendors.
//!
//! ```text
//! request ─> Emulation::visit ─> Visit::admit ─> socket::accept ─> Socket::recv, send_…, close
//!                 │ faults, record   │ refused       or Visit::stream
//!                 └─> Visit::listen ─> Recogniser    Visit::say ─> Speech
//! ```

mod authority;
mod azure;
mod cartesia;
pub mod clock;
mod control;
mod deepgram;
mod elevenlabs;
pub mod engine;
pub mod faults;
mod form;
mod google;
mod openai;
pub mod outlet;
pub mod socket;
pub mod speech;
pub mod visit;
mod wire;

pub use vivavoce_tone_words as tone_words;

#[cfg(test)]
mod plugin_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::authority::{Authority, AuthorityError};
use self::clock::Clock;
use self::engine::Engine;
use self::faults::{Fault, FaultList, TooManyFaults};
use self::visit::Log;

/// The longest body of a request: more than any vendor takes.
const MAX_BODY_BYTES: usize = 4 << 20;
/// Threads that serve HTTP.
const WORKERS: usize = 2;
/// The file of the service account, beside that of the authority.
const ACCOUNT: &str = "google-account.json";

/// A key to paste where any will do.
const ANY_KEY: &str = "any-key";

/// What each SDK must be told, with our addresses to be filled in.
const SDKS: [(&str, &str); 12] = [
    (
        "deepgram (Python)",
        r#"environment=DeepgramClientEnvironment(base="http://<plain>", production="ws://<plain>", agent="ws://<plain>", agent_rest="http://<plain>")"#,
    ),
    (
        "deepgram (JS)",
        r#"{environment: {base: "http://<plain>", production: "ws://<plain>", agent: "ws://<plain>", agentRest: "http://<plain>"}}"#,
    ),
    (
        "elevenlabs (Python)",
        r#"base_url="http://<plain>"; for convert_realtime base_url="https://<tls>" and SSL_CERT_FILE=<ca>"#,
    ),
    ("elevenlabs (JS)", r#"{baseUrl: "http://<plain>"}"#),
    (
        "google (Python)",
        r#"a transport with grpc.insecure_channel("<grpc>")"#,
    ),
    (
        "google (JS)",
        r#"{apiEndpoint: "<host>", port: <grpc port>, sslCreds: grpc.credentials.createInsecure()}"#,
    ),
    (
        "azure (Python)",
        r#"SpeechConfig(host="ws://<plain>", subscription=key)"#,
    ),
    (
        "azure (JS)",
        r#"SpeechConfig.fromHost(new URL("http://<plain>"), key)"#,
    ),
    (
        "cartesia (Python)",
        r#"base_url="http://<plain>", websocket_base_url="ws://<plain>""#,
    ),
    (
        "cartesia (JS)",
        r#"{baseURL: "https://<tls>"} and NODE_EXTRA_CA_CERTS=<ca>"#,
    ),
    ("openai (Python)", r#"base_url="http://<plain>/v1""#),
    ("openai (JS)", r#"{baseURL: "http://<plain>/v1"}"#),
];

/// Who is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// Deepgram.
    Deepgram,
    /// ElevenLabs.
    ElevenLabs,
    /// Google Cloud.
    Google,
    /// Microsoft Azure.
    Azure,
    /// Cartesia.
    Cartesia,
    /// OpenAI.
    OpenAi,
}

impl Vendor {
    /// Those that hear while somebody speaks, and say a text as it is written.
    pub const STREAMING: [Self; 5] = [
        Self::Deepgram,
        Self::ElevenLabs,
        Self::Google,
        Self::Azure,
        Self::Cartesia,
    ];
    /// All of them. OpenAI is sent whole utterances, and lines of a text.
    pub const ALL: [Self; 6] = [
        Self::Deepgram,
        Self::ElevenLabs,
        Self::Google,
        Self::Azure,
        Self::Cartesia,
        Self::OpenAi,
    ];

    /// The name on the wire and in faults.
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Deepgram => "deepgram",
            Self::ElevenLabs => "elevenlabs",
            Self::Google => "google",
            Self::Azure => "azure",
            Self::Cartesia => "cartesia",
            Self::OpenAi => "openai",
        }
    }

    /// The variable of the server's credential, where that is a key.
    const fn key_setting(self) -> Option<&'static str> {
        match self {
            Self::Deepgram => Some("DEEPGRAM_API_KEY"),
            Self::ElevenLabs => Some("ELEVENLABS_API_KEY"),
            Self::Google => None,
            Self::Azure => Some("AZURE_SPEECH_SUBSCRIPTION_KEY"),
            Self::Cartesia => Some("CARTESIA_API_KEY"),
            Self::OpenAi => Some("OPENAI_API_KEY"),
        }
    }

    /// Code and reason with which its sockets close when something has gone wrong inside.
    pub const fn usual_close(self) -> (u16, &'static str) {
        match self {
            Self::Deepgram => (1011, "NET-0000"),
            Self::ElevenLabs => (1011, "internal error"),
            Self::Azure => (1011, "Internal server error"),
            Self::Cartesia => (1011, "Internal error"),
            // They have no sockets.
            Self::Google | Self::OpenAi => (1011, ""),
        }
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Speech to text.
    Stt,
    /// Text to speech.
    Tts,
    /// Lists of voices and models, tokens, dictionaries.
    Voices,
}

impl Direction {
    /// The name in faults and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stt => "stt",
            Self::Tts => "tts",
            Self::Voices => "voices",
        }
    }
}

/// Not one of the names that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown name")]
pub struct UnknownName;

impl FromStr for Vendor {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = Self::ALL.into_iter().find(|vendor| vendor.slug() == name);
        known.ok_or(UnknownName)
    }
}

impl FromStr for Direction {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = [Self::Stt, Self::Tts, Self::Voices];
        let known = known.into_iter().find(|direction| direction.name() == name);
        known.ok_or(UnknownName)
    }
}

/// What all connections share; in the `app_data` of every route as `web::Data<Emulation>`.
#[derive(Debug)]
pub struct Emulation {
    /// Hears and speaks.
    pub engine: Engine,
    /// Runs all timers.
    pub clock: Clock,
    /// What goes wrong.
    pub faults: FaultList,
    /// What happened.
    pub log: Log,
    /// The only key that opens; any does where there is none.
    key: Option<String>,
    started: Instant,
}

/// What to emulate, and where. Port 0 is any that is free.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of all listeners.
    pub host: IpAddr,
    /// HTTP/1.1 and WebSocket without TLS.
    pub port: u16,
    /// The same with TLS.
    pub tls_port: u16,
    /// gRPC, without TLS or with it.
    pub grpc_port: u16,
    /// Hears and speaks.
    pub engine: Engine,
    /// Runs all timers.
    pub clock: Clock,
    /// What goes wrong from the beginning.
    pub faults: Vec<Fault>,
    /// The only key that opens; any does where there is none. Keys that begin with `bad` never do.
    pub key: Option<String>,
}

impl Emulation {
    /// When a time of the records was.
    pub fn moment(&self, ms: u64) -> Instant {
        self.started + self.clock.real(Duration::from_millis(ms))
    }
}

impl Settings {
    /// On free ports of this machine, by real time, without faults.
    pub fn new(engine: Engine) -> Self {
        Self {
            host: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            tls_port: 0,
            grpc_port: 0,
            engine,
            clock: Clock::default(),
            faults: Vec::new(),
            key: None,
        }
    }
}

/// Why the emulators did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("{address}: {source}")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// TLS.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The faults.
    #[error(transparent)]
    Faults(#[from] TooManyFaults),
    /// The file of the service account.
    #[error("the service account could not be written: {0}")]
    Account(io::Error),
}

/// The emulators at work. They stop when this is dropped.
pub struct Emulators {
    /// HTTP/1.1 and WebSocket without TLS.
    pub plain: SocketAddr,
    /// The same with TLS.
    pub tls: SocketAddr,
    /// gRPC, without TLS or with it.
    pub grpc: SocketAddr,
    /// Faults and log.
    pub emulation: Arc<Emulation>,
    authority: Authority,
    server: ServerHandle,
    stop: CancellationToken,
}

impl fmt::Debug for Emulators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulators")
            .field("plain", &self.plain)
            .finish_non_exhaustive()
    }
}

impl Emulators {
    /// Starts all listeners. Must be called in a runtime.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        Self::start_with(settings, |_| ()).await
    }

    /// The same with routes of a vendor that does not exist.
    async fn start_with(
        settings: Settings,
        more: fn(&mut web::ServiceConfig),
    ) -> Result<Self, StartError> {
        let (authority, secure) = Authority::new()?;
        let faults = FaultList::default();
        for fault in settings.faults {
            faults.add(fault)?;
        }
        let emulation = Arc::new(Emulation {
            engine: settings.engine,
            clock: settings.clock,
            faults,
            log: Log::default(),
            key: settings.key,
            started: Instant::now(),
        });
        let at = |port| SocketAddr::new(settings.host, port);
        let failed = |address| move |source| StartError::Listen { address, source };
        let (plain, tls, grpc) = (
            at(settings.port),
            at(settings.tls_port),
            at(settings.grpc_port),
        );
        let grpc_listener = TcpListener::bind(grpc).await.map_err(failed(grpc))?;
        let grpc = grpc_listener.local_addr().map_err(failed(grpc))?;

        let data = web::Data::from(Arc::clone(&emulation));
        let secure_grpc = secure.clone();
        let server = HttpServer::new(move || {
            App::new()
                .app_data(data.clone())
                .configure(routes)
                .configure(more)
                .default_service(web::to(unanswered))
        })
        .workers(WORKERS)
        .disable_signals()
        .shutdown_timeout(1)
        // As vendors do: longer than clients keep a connection that rests.
        .keep_alive(Duration::from_secs(75))
        .h1_allow_half_closed(false)
        .on_connect(wire::accepted)
        .bind(plain)
        .map_err(failed(plain))?
        .bind_rustls_0_23(tls, secure)
        .map_err(failed(tls))?;
        let mut bound = server.addrs().into_iter();
        let (plain, tls) = (bound.next().unwrap_or(plain), bound.next().unwrap_or(tls));
        let account = google::account(plain).to_string();
        std::fs::write(authority.folder().join(ACCOUNT), account).map_err(StartError::Account)?;
        let server = server.run();
        let handle = server.handle();
        tokio::spawn(server);
        let stop = CancellationToken::new();
        tokio::spawn(google::serve(
            grpc_listener,
            secure_grpc,
            Arc::clone(&emulation),
            stop.clone(),
        ));
        Ok(Self {
            plain,
            tls,
            grpc,
            emulation,
            authority,
            server: handle,
            stop,
        })
    }

    /// The certificate authority that clients of [`Self::tls`] must trust, as PEM.
    pub fn ca_file(&self) -> PathBuf {
        self.authority.ca_file()
    }

    /// The service account that Google's clients need, as JSON; its tokens are exchanged here.
    pub fn google_account(&self) -> PathBuf {
        self.authority.folder().join(ACCOUNT)
    }

    /// For whoever has started them: settings to paste, and what each SDK must be told.
    pub fn hints(&self) -> String {
        let Self {
            plain, tls, grpc, ..
        } = self;
        let ca = self.ca_file();
        let ca = ca.display();
        let key = self.emulation.key.as_deref().unwrap_or(ANY_KEY);
        let mut hints = format!(
            "Emulators listen on http://{plain}, https://{tls} (authority: {ca}) and for gRPC on {grpc}\n\n\
             For the server:\n\n"
        );
        for vendor in Vendor::ALL {
            let name = vendor.slug().to_uppercase();
            let url = match vendor {
                Vendor::Google => format!("http://{grpc}"),
                Vendor::OpenAi => format!("http://{plain}/v1"),
                _ => format!("ws://{plain}"),
            };
            hints += &format!("{name}_STT_URL={url}\n{name}_TTS_URL={url}\n");
            if let Some(setting) = vendor.key_setting() {
                hints += &format!("{setting}={key}\n");
            }
        }
        let account = self.google_account();
        hints += &format!("GOOGLE_APPLICATION_CREDENTIALS={}\n", account.display());
        hints += "\nFor the vendors' SDKs:\n\n";
        for (sdk, option) in SDKS {
            let option = option
                .replace("<plain>", &plain.to_string())
                .replace("<tls>", &tls.to_string())
                .replace("<ca>", &ca.to_string())
                .replace("<grpc port>", &grpc.port().to_string())
                .replace("<grpc>", &grpc.to_string())
                .replace("<host>", &plain.ip().to_string());
            hints += &format!("{sdk:18}  {option}\n");
        }
        hints += &format!(
            "\nFaults and what happened: http://{plain}/control/faults, http://{plain}/control/log\n"
        );
        hints
    }

    /// Ends all connections and waits for it.
    pub async fn stop(self) {
        self.stop.cancel();
        self.server.stop(false).await;
    }
}

impl Drop for Emulators {
    fn drop(&mut self) {
        self.stop.cancel();
        // The order is given by the call; nobody waits for it to be carried out.
        drop(self.server.stop(false));
    }
}

/// What no vendor here has; whoever has asked for it finds it in the log.
async fn unanswered(request: HttpRequest, emulation: web::Data<Emulation>) -> HttpResponse {
    let note = format!("no such path: {} {}", request.method(), request.path());
    let (path, query) = (request.path(), request.query_string());
    emulation.unanswered(None, path, query, visit::headers(&request), &note);
    HttpResponse::NotFound().finish()
}

fn routes(service: &mut web::ServiceConfig) {
    service
        .app_data(web::PayloadConfig::new(MAX_BODY_BYTES))
        .configure(control::routes)
        .configure(deepgram::routes)
        .configure(elevenlabs::routes)
        .configure(google::routes)
        .configure(azure::routes)
        .configure(cartesia::routes)
        .configure(openai::routes);
}
