//! Every setting, declared once: its type, default, key, environment name and meaning. The struct that the code
//! reads, the table that `print-config` shows and `docs/configuration.md` are all made from these declarations
//! (protocol, section 6).

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::endpoint::Endpoint;
use super::value::{
    Addresses, ByteSize, HttpUrl, HttpUrls, JsonText, List, LogFormat, LogLevel, MediaEncryption,
    Millis, Networks, Percent, PortRange, RecordingBackend, RecordingLayout, RoomMode, RtcMode,
    Secret, SettingValue, SipTransport, SocketAuth, VendorUrl,
};

/// One declaration.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The YAML key, with dots.
    pub key: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// The text that it has when nobody sets it; empty means absent or "see the meaning".
    pub default: &'static str,
    /// What may be written.
    pub shape: &'static str,
    /// Whether the value must never be shown.
    pub secret: bool,
    /// What it does.
    pub meaning: &'static str,
}

/// Where a setting's text comes from while [`Settings::build`] reads them one by one.
pub(super) trait Reader {
    /// The value of `setting`; a failure is remembered and `None` returned.
    fn read<T: SettingValue>(&mut self, setting: &'static Setting, check: Check<T>) -> Option<T>;
}

/// An extra rule for a value: `Err` completes the sentence "must …".
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
        /// All settings, checked.
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

        /// Every declaration, in the order of the documents.
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
            /// Reads all of them, so that every mistake is found in one go. `None` if there was any.
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
        /// Address to listen on. Any other than a loopback address starts with a warning that lists what is open.
        host: IpAddr = "127.0.0.1", "server.host", "HOST";
        /// Port to listen on; 0 takes a free one and prints it.
        port: u16 = "3001", "server.port", "PORT";
        /// Threads that serve requests and sessions; 0 means one per core.
        workers: usize = "0", "server.workers", "SERVER_WORKERS";
        /// Origins of web pages, beside the server's own, that may use it, as `https://host[:port]`.
        cors_origins: List = "", "server.cors_origins", "SERVER_CORS_ORIGINS", check origins;
        /// Names, beside `localhost` and loopback addresses, under which this server is asked where it listens on a loopback address alone and nobody
        /// needs a token; requests for others are refused with 421, because web pages can point their own name at this machine. `*` takes any.
        allowed_hosts: List = "", "server.allowed_hosts", "SERVER_ALLOWED_HOSTS", check hosts;
        /// Proxies whose `Forwarded` or `X-Forwarded-For` is believed, as addresses or networks.
        trusted_proxies: Networks = "", "server.trusted_proxies", "SERVER_TRUSTED_PROXIES";
        /// File with the certificate chain (PEM), with which the server speaks TLS. Read again when it changes.
        tls_cert: Option<PathBuf> = "", "server.tls.cert", "SERVER_TLS_CERT";
        /// File with the certificate's private key (PEM).
        tls_key: Option<PathBuf> = "", "server.tls.key", "SERVER_TLS_KEY";
    }

    /// Connections that the server opens to others.
    outgoing: Outgoing {
        /// File with certificates of authorities (PEM) that are believed beside the system's, for networks that have their own.
        ca_file: Option<PathBuf> = "", "outgoing.ca_file", "OUTGOING_CA_FILE";
        /// Seconds after which a connection to a vendor is used for no further utterance, for networks that cut connections; a vendor's own limit counts where it is shorter.
        connection_seconds: Duration = "3600", "outgoing.connection_seconds", "OUTGOING_CONNECTION_SECONDS";
    }

    /// The socket of a session.
    socket: Socket {
        /// Seconds within which a config must have been carried out.
        config_timeout_seconds: Duration = "30", "socket.config_timeout_seconds", "SOCKET_CONFIG_TIMEOUT_SECONDS";
        /// Seconds after which a client that sends no frame of any kind is given up.
        idle_timeout_seconds: Duration = "60", "socket.idle_timeout_seconds", "SOCKET_IDLE_TIMEOUT_SECONDS";
        /// Seconds that a message may take from its first byte to its last.
        message_timeout_seconds: Duration = "30", "socket.message_timeout_seconds", "SOCKET_MESSAGE_TIMEOUT_SECONDS", check not_nought;
        /// Sound that waits for a client that reads slowly; beyond it playback waits.
        max_buffered_audio_ms: Millis = "2000", "socket.max_buffered_audio_ms", "SOCKET_MAX_BUFFERED_AUDIO_MS", check some_time;
        /// How far ahead of real time speech is sent at most.
        lead_ms: Millis = "200", "socket.lead_ms", "SOCKET_LEAD_MS", check some_time;
        /// Whether speech is sent at the pace at which it is played; `off` sends it as fast as it comes.
        pacing: bool = "true", "socket.pacing", "SOCKET_PACING";
    }

    /// Where files are kept.
    storage: Storage {
        /// Folder for cache, recordings, spools and keys. Files in it are readable by this user only.
        data_dir: PathBuf = "./data", "data_dir", "DATA_DIR";
    }

    /// What is written to standard error.
    log: Log {
        /// How much is logged. What people say appears at debug and below only.
        level: LogLevel = "info", "log.level", "LOG_LEVEL";
        /// How log lines look.
        format: LogFormat = "text", "log.format", "LOG_FORMAT";
    }

    /// What is told to others about requests and sessions.
    telemetry: Telemetry {
        /// Collector that is sent traces by OTLP over HTTP, as `http://host:4318`; no traces when absent.
        otlp_endpoint: Option<String> = "", "telemetry.otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT";
        /// Address, as `host:port`, where alone `/metrics` is served then: in plain HTTP and without a token.
        metrics_address: Option<SocketAddr> = "", "metrics.address", "METRICS_ADDRESS";
    }

    /// How the server stops.
    shutdown: Shutdown {
        /// Seconds that running requests and sessions may go on after SIGTERM or Ctrl-C.
        drain_seconds: Duration = "30", "shutdown.drain_seconds", "SHUTDOWN_DRAIN_SECONDS";
    }

    /// The engines and vendors that hear and speak.
    providers: Providers {
        /// A Wyoming server that recognises speech instead of pocketsphinx, as `tcp://host:port` or `unix:///path`.
        local_stt_url: Option<Endpoint> = "", "providers.local.stt_url", "LOCAL_STT_URL";
        /// A Wyoming server that speaks instead of flite and espeak-ng, as `tcp://host:port` or `unix:///path`.
        local_tts_url: Option<Endpoint> = "", "providers.local.tts_url", "LOCAL_TTS_URL";
        /// Folder of the pocketsphinx model.
        local_model_path: PathBuf = "/usr/share/pocketsphinx/model/en-us", "providers.local.model_path", "LOCAL_MODEL_PATH";
        /// Recogniser processes at most (about 100 MB each); 0 means one per core.
        local_stt_workers: usize = "0", "providers.local.stt_workers", "LOCAL_STT_WORKERS";
        /// Credential for Deepgram.
        deepgram_api_key: Option<Secret> = "", "providers.deepgram.api_key", "DEEPGRAM_API_KEY";
        /// Where Deepgram recognises; the vendor's own when absent.
        deepgram_stt_url: Option<VendorUrl> = "", "providers.deepgram.stt_url", "DEEPGRAM_STT_URL";
        /// Where Deepgram speaks; the vendor's own when absent.
        deepgram_tts_url: Option<VendorUrl> = "", "providers.deepgram.tts_url", "DEEPGRAM_TTS_URL";
        /// Streams that one credential may have open at once for recognition at Deepgram; no limit when absent.
        deepgram_stt_streams: Option<NonZeroU32> = "", "providers.deepgram.stt_streams", "DEEPGRAM_STT_STREAMS";
        /// Connections that one credential may use at once for synthesis at Deepgram; no limit when absent.
        deepgram_tts_streams: Option<NonZeroU32> = "", "providers.deepgram.tts_streams", "DEEPGRAM_TTS_STREAMS";
        /// Credential for ElevenLabs.
        elevenlabs_api_key: Option<Secret> = "", "providers.elevenlabs.api_key", "ELEVENLABS_API_KEY";
        /// Where ElevenLabs recognises; the vendor's own when absent.
        elevenlabs_stt_url: Option<VendorUrl> = "", "providers.elevenlabs.stt_url", "ELEVENLABS_STT_URL";
        /// Where ElevenLabs speaks; the vendor's own when absent.
        elevenlabs_tts_url: Option<VendorUrl> = "", "providers.elevenlabs.tts_url", "ELEVENLABS_TTS_URL";
        /// Streams that one credential may have open at once for recognition at ElevenLabs; no limit when absent.
        elevenlabs_stt_streams: Option<NonZeroU32> = "", "providers.elevenlabs.stt_streams", "ELEVENLABS_STT_STREAMS";
        /// Connections that one credential may use at once for synthesis at ElevenLabs; no limit when absent.
        elevenlabs_tts_streams: Option<NonZeroU32> = "", "providers.elevenlabs.tts_streams", "ELEVENLABS_TTS_STREAMS";
        /// Credential for Cartesia.
        cartesia_api_key: Option<Secret> = "", "providers.cartesia.api_key", "CARTESIA_API_KEY";
        /// Where Cartesia recognises; the vendor's own when absent.
        cartesia_stt_url: Option<VendorUrl> = "", "providers.cartesia.stt_url", "CARTESIA_STT_URL";
        /// Where Cartesia speaks; the vendor's own when absent.
        cartesia_tts_url: Option<VendorUrl> = "", "providers.cartesia.tts_url", "CARTESIA_TTS_URL";
        /// Streams that one credential may have open at once for recognition at Cartesia; no limit when absent.
        cartesia_stt_streams: Option<NonZeroU32> = "", "providers.cartesia.stt_streams", "CARTESIA_STT_STREAMS";
        /// Connections that one credential may use at once for synthesis at Cartesia; no limit when absent.
        cartesia_tts_streams: Option<NonZeroU32> = "", "providers.cartesia.tts_streams", "CARTESIA_TTS_STREAMS";
        /// File with the service account for Google.
        google_credentials: Option<PathBuf> = "", "providers.google.credentials", "GOOGLE_APPLICATION_CREDENTIALS";
        /// Google's region.
        google_location: String = "global", "providers.google.location", "GOOGLE_LOCATION", check location;
        /// Where Google recognises; the vendor's own when absent.
        google_stt_url: Option<VendorUrl> = "", "providers.google.stt_url", "GOOGLE_STT_URL";
        /// Where Google speaks; the vendor's own when absent.
        google_tts_url: Option<VendorUrl> = "", "providers.google.tts_url", "GOOGLE_TTS_URL";
        /// Streams that one credential may have open at once for recognition at Google; no limit when absent.
        google_stt_streams: Option<NonZeroU32> = "", "providers.google.stt_streams", "GOOGLE_STT_STREAMS";
        /// Connections that one credential may use at once for synthesis at Google; no limit when absent.
        google_tts_streams: Option<NonZeroU32> = "", "providers.google.tts_streams", "GOOGLE_TTS_STREAMS";
        /// Credential for Azure.
        azure_subscription_key: Option<Secret> = "", "providers.azure.subscription_key", "AZURE_SPEECH_SUBSCRIPTION_KEY";
        /// Azure's region.
        azure_region: String = "eastus", "providers.azure.region", "AZURE_SPEECH_REGION";
        /// Where Azure recognises; the vendor's own when absent.
        azure_stt_url: Option<VendorUrl> = "", "providers.azure.stt_url", "AZURE_STT_URL";
        /// Where Azure speaks; the vendor's own when absent.
        azure_tts_url: Option<VendorUrl> = "", "providers.azure.tts_url", "AZURE_TTS_URL";
        /// Streams that one credential may have open at once for recognition at Azure; no limit when absent.
        azure_stt_streams: Option<NonZeroU32> = "", "providers.azure.stt_streams", "AZURE_STT_STREAMS";
        /// Connections that one credential may use at once for synthesis at Azure; no limit when absent.
        azure_tts_streams: Option<NonZeroU32> = "", "providers.azure.tts_streams", "AZURE_TTS_STREAMS";
        /// Whether there is a provider `null`, which hears fixed words and says tones, for measurements.
        null_enabled: bool = "false", "providers.null.enabled", "NULL_ENABLED";
    }

    /// Synthesised speech that is kept.
    cache: Cache {
        /// Whether synthesised speech is kept at all.
        enabled: bool = "true", "cache.enabled", "CACHE_ENABLED";
        /// Folder for it; `cache` in the data folder when absent.
        path: Option<PathBuf> = "", "cache.path", "CACHE_PATH";
        /// Seconds after which an entry is no longer used (30 days).
        ttl_seconds: Duration = "2592000", "cache.ttl_seconds", "CACHE_TTL_SECONDS";
        /// Bytes on disk at most; the entries used longest ago go first. Servers that share a folder count apart.
        max_bytes: ByteSize = "1GiB", "cache.max_bytes", "CACHE_MAX_BYTES";
        /// Bytes in memory at most, for the entries used most.
        memory_bytes: ByteSize = "64MiB", "cache.memory_bytes", "CACHE_MEMORY_BYTES";
    }

    /// How much is served at once.
    limits: Limits {
        /// Syntheses under way at once per provider; more wait for a place until their connection timeout.
        syntheses_per_provider: usize = "64", "limits.syntheses_per_provider", "LIMITS_SYNTHESES_PER_PROVIDER", check positive;
        /// Sessions in all.
        sessions: usize = "2000", "limits.sessions", "LIMITS_SESSIONS", check positive;
        /// Sockets that have not sent their config yet.
        unconfigured_sockets: usize = "200", "limits.unconfigured_sockets", "LIMITS_UNCONFIGURED_SOCKETS", check positive;
        /// Memory of all socket messages that have begun and are not complete, beside 32 KiB of each socket; a socket that needs more is closed.
        unfinished_message_bytes: ByteSize = "64MiB", "limits.unfinished_message_bytes", "LIMITS_UNFINISHED_MESSAGE_BYTES";
        /// Memory of all request bodies that are not complete, beside 16 KiB of each; and as much again of what unauthenticated callers have sent
        /// before they are answered, beside 8 KiB of each connection.
        unfinished_body_bytes: ByteSize = "64MiB", "limits.unfinished_body_bytes", "LIMITS_UNFINISHED_BODY_BYTES";
        /// Percent of connections, sessions, sockets without config, and unfinished bodies and messages that callers without a good token may hold
        /// together while authentication is on; the rest is kept for those who have one.
        unauthenticated_percent: Percent = "75", "limits.unauthenticated_percent", "LIMITS_UNAUTHENTICATED_PERCENT";
        /// Percent of sessions, sockets without config, and unfinished bodies and messages that one address of unauthenticated callers may hold,
        /// and of sockets without config and unfinished bodies and messages one tenant. Trusted proxies, and this machine's own addresses where
        /// nobody needs a token, have no share of their own.
        caller_percent: Percent = "25", "limits.caller_percent", "LIMITS_CALLER_PERCENT";
        /// Connections in all, or half as many as the system allows open files, if that is less; more wait for a place.
        connections: usize = "10000", "limits.connections", "LIMITS_CONNECTIONS", check positive;
        /// Connections from one address that is no trusted proxy; 0 means no limit. More are cut.
        connections_per_address: u32 = "1000", "limits.connections_per_address", "LIMITS_CONNECTIONS_PER_ADDRESS";
        /// Sessions of one tenant; no limit when absent.
        sessions_per_tenant: Option<NonZeroU32> = "", "limits.sessions_per_tenant", "LIMITS_SESSIONS_PER_TENANT";
        /// Percent of what it holds and what is free together that one tenant may hold of each quota, and one unknown address; all unknown addresses together are one more such party while authentication is on. 100 means no quotas.
        share_percent: u8 = "75", "limits.share_percent", "LIMITS_SHARE_PERCENT", check a_share;
        /// Embedded rooms in all.
        rooms: usize = "10000", "limits.rooms", "LIMITS_ROOMS", check positive;
        /// Participants of embedded rooms in all.
        participants: usize = "10000", "limits.participants", "LIMITS_PARTICIPANTS", check positive;
        /// Syntheses in all, those that wait for a place included; more are refused.
        syntheses: usize = "10000", "limits.syntheses", "LIMITS_SYNTHESES", check positive;
        /// Recognisers in all: one for each session that hears, or for each participant whom it hears alone.
        recognisers: usize = "10000", "limits.recognisers", "LIMITS_RECOGNISERS", check positive;
        /// Recordings in all that are being made or wait for the store.
        recordings: usize = "20000", "limits.recordings", "LIMITS_RECORDINGS", check positive;
        /// Requests per second of one tenant, and of one address; twice as many at once. No limit when absent.
        requests_per_second: Option<NonZeroU32> = "", "limits.requests_per_second", "LIMITS_REQUESTS_PER_SECOND";
    }

    /// Who may come in.
    auth: Auth {
        /// Whether the protected endpoints need a token.
        required: bool = "false", "auth.required", "AUTH_REQUIRED";
        /// The shared secret, of 32 random bytes or more. It belongs to no tenant and opens everything.
        api_secret: Option<Secret> = "", "auth.api_secret", "AUTH_API_SECRET";
        /// Secrets of tenants, `[{"id","secret"}]`.
        api_secrets_json: Option<JsonText> = "", "auth.api_secrets_json", "AUTH_API_SECRETS_JSON";
        /// The service that decides about tokens that are no secret of the above.
        service_url: Option<HttpUrl> = "", "auth.service_url", "AUTH_SERVICE_URL";
        /// The private key that signs what is sent to it: PEM, RSA (RS256) or P-256 (ES256). A file that changes is read again.
        signing_key_path: Option<PathBuf> = "", "auth.signing_key_path", "AUTH_SIGNING_KEY_PATH";
        /// Seconds that it may take to answer.
        timeout_seconds: Duration = "5", "auth.timeout_seconds", "AUTH_TIMEOUT_SECONDS", check not_nought;
        /// Whether a token without a tenant is refused.
        require_tenant: bool = "false", "auth.require_tenant", "AUTH_REQUIRE_TENANT";
        /// Seconds that its answers are kept, by token, method, path and body; 0 means not at all.
        cache_seconds: Duration = "0", "auth.cache_seconds", "AUTH_CACHE_SECONDS";
        /// Seconds after which it is asked again about the token of a running session, which ends when it says 401; 0 means never.
        session_recheck_seconds: Duration = "300", "auth.session_recheck_seconds", "AUTH_SESSION_RECHECK_SECONDS";
        /// Whether `GET /ws` needs a token too; when absent `required` where `auth.required` is true, else `public`. Where it is public, a
        /// token that is sent must be good all the same.
        socket: Option<SocketAuth> = "", "auth.socket", "AUTH_SOCKET";
        /// Whether a session without a token may record while authentication is on. Every authenticated caller may fetch such a recording.
        public_recordings: bool = "false", "auth.public_recordings", "AUTH_PUBLIC_RECORDINGS";
        /// Whether a room without an owner becomes that of the tenant who asks for a token for it.
        claim_unowned_rooms: bool = "true", "auth.claim_unowned_rooms", "AUTH_CLAIM_UNOWNED_ROOMS";
    }

    /// Rooms.
    rtc: Rtc {
        /// Which rooms are used; when absent `livekit` where `rtc.url` is set, else `embedded`.
        mode: Option<RtcMode> = "", "rtc.mode", "RTC_MODE";
        /// The LiveKit deployment: http, https, ws or wss.
        url: Option<VendorUrl> = "", "rtc.url", "RTC_URL";
        /// The address that clients are given: ws or wss. When absent that of `rtc.url`, and for embedded rooms the one under which
        /// this server was asked.
        public_url: Option<VendorUrl> = "", "rtc.public_url", "RTC_PUBLIC_URL";
        /// Name of the key pair; made on first start for embedded rooms.
        api_key: Option<String> = "", "rtc.api_key", "RTC_API_KEY";
        /// Secret of the key pair.
        api_secret: Option<Secret> = "", "rtc.api_secret", "RTC_API_SECRET";
        /// Seconds that a token of `POST /rtc/token` can be used.
        token_ttl_seconds: Duration = "3600", "rtc.token_ttl_seconds", "RTC_TOKEN_TTL_SECONDS", check not_nought;
        /// Seconds for which a session's lost connection to a room of a LiveKit deployment is sought before it ends.
        reconnect_seconds: Duration = "60", "rtc.reconnect_seconds", "RTC_RECONNECT_SECONDS", check not_nought;
        /// The UDP port of embedded rooms; 0 takes any that is free.
        udp_port: u16 = "7882", "rtc.udp_port", "RTC_UDP_PORT";
        /// Addresses that embedded rooms tell their clients; those of all interfaces when absent.
        advertised_addresses: Addresses = "", "rtc.advertised_addresses", "RTC_ADVERTISED_ADDRESSES";
        /// Participants of one embedded room at a time, whatever the room is made with.
        participants_per_room: usize = "2000", "rtc.participants_per_room", "RTC_PARTICIPANTS_PER_ROOM", check positive;
        /// How hard the encoder of what a session says in a room tries, 0 (cheap) to 10 (best).
        complexity: u8 = "5", "rtc.complexity", "RTC_COMPLEXITY", check up_to_ten;
        /// Where embedded rooms post what happens in them, as LiveKit does. What `webhooks.allow_insecure` and `webhooks.allow_private`
        /// say holds for these too.
        webhook_urls: HttpUrls = "", "rtc.webhook_urls", "RTC_WEBHOOK_URLS";
    }

    /// Recordings.
    recording: Recording {
        /// Where recordings go.
        backend: RecordingBackend = "file", "recording.backend", "RECORDING_BACKEND";
        /// The first part of their keys, `/`-separated names; for files a folder in the data folder.
        prefix: String = "recordings", "recording.prefix", "RECORDING_PREFIX", check key_prefix;
        /// Whether what is heard is left and what is played right, or both are mixed.
        layout: RecordingLayout = "stereo", "recording.layout", "RECORDING_LAYOUT";
        /// How hard the encoder tries, 0 (cheap) to 10 (best).
        complexity: u8 = "5", "recording.complexity", "RECORDING_COMPLEXITY", check up_to_ten;
        /// Days after which recordings are removed from the store; never when absent.
        retention_days: Option<NonZeroU32> = "", "recording.retention_days", "RECORDING_RETENTION_DAYS";
        /// The bucket.
        s3_bucket: Option<String> = "", "recording.s3_bucket", "RECORDING_S3_BUCKET";
        /// Its region.
        s3_region: Option<String> = "", "recording.s3_region", "RECORDING_S3_REGION";
        /// Its address, for other clouds than Amazon's.
        s3_endpoint: Option<HttpUrl> = "", "recording.s3_endpoint", "RECORDING_S3_ENDPOINT";
        /// Access key; the default chain of AWS when absent.
        s3_access_key: Option<Secret> = "", "recording.s3_access_key", "RECORDING_S3_ACCESS_KEY";
        /// Secret key.
        s3_secret_key: Option<Secret> = "", "recording.s3_secret_key", "RECORDING_S3_SECRET_KEY";
        /// Whether the bucket is in the path instead of the host name.
        s3_force_path_style: bool = "false", "recording.s3_force_path_style", "RECORDING_S3_FORCE_PATH_STYLE";
    }

    /// Who is told what happens.
    webhooks: Webhooks {
        /// Where the server posts what happens to recordings and sessions; nowhere when absent.
        url: Option<HttpUrl> = "", "webhooks.url", "WEBHOOKS_URL";
        /// Signs what is posted; 16 bytes or more.
        secret: Option<Secret> = "", "webhooks.secret", "WEBHOOKS_SECRET";
        /// Whether the receiver may be without TLS.
        allow_insecure: bool = "false", "webhooks.allow_insecure", "WEBHOOKS_ALLOW_INSECURE";
        /// Whether the receiver may have a loopback, link-local or private address.
        allow_private: bool = "false", "webhooks.allow_private", "WEBHOOKS_ALLOW_PRIVATE";
        /// Seconds for which the server tries to deliver each, counted anew when it starts.
        retry_seconds: Duration = "600", "webhooks.retry_seconds", "WEBHOOKS_RETRY_SECONDS";
    }

    /// The telephone.
    sip: Sip {
        /// Where outbound calls go, `hostname` or `hostname:port`.
        outbound_address: Option<String> = "", "sip.outbound_address", "SIP_OUTBOUND_ADDRESS", check gateway;
        /// How outbound calls are signalled.
        outbound_transport: SipTransport = "udp", "sip.outbound_transport", "SIP_OUTBOUND_TRANSPORT";
        /// User name there. It is used at no other address.
        outbound_auth_username: Option<String> = "", "sip.outbound_auth_username", "SIP_OUTBOUND_AUTH_USERNAME";
        /// Password there. It is used at no other address.
        outbound_auth_password: Option<Secret> = "", "sip.outbound_auth_password", "SIP_OUTBOUND_AUTH_PASSWORD";
        /// Whether requests may name gateways with loopback, link-local or private addresses.
        allow_private_outbound: bool = "false", "sip.allow_private_outbound", "SIP_ALLOW_PRIVATE_OUTBOUND";
        /// How the numbers that may be called begin; all where absent. Emergency numbers never.
        allowed_destinations: List = "", "sip.allowed_destinations", "SIP_ALLOWED_DESTINATIONS";
        /// Where the telephone side listens, `udp:host:port`, `tcp:…`, `tls:…`; nowhere when absent, and outbound calls
        /// leave from any free port. IPv6 hosts stand in brackets.
        listen: List = "", "sip.listen", "SIP_LISTEN";
        /// The address that others are told for signalling and sound; that of the interface towards them when absent.
        advertised_address: Option<IpAddr> = "", "sip.advertised_address", "SIP_ADVERTISED_ADDRESS";
        /// Certificate of `tls:` in `sip.listen`, a PEM file.
        tls_cert: Option<PathBuf> = "", "sip.tls_cert", "SIP_TLS_CERT";
        /// Its key, a PEM file.
        tls_key: Option<PathBuf> = "", "sip.tls_key", "SIP_TLS_KEY";
        /// Who may call in, as addresses or networks; nobody when absent.
        allowed_addresses: Networks = "", "sip.allowed_addresses", "SIP_ALLOWED_ADDRESSES";
        /// From where the sound of calls may come besides `sip.allowed_addresses`, as addresses or networks, where it comes
        /// neither from whom a call describes nor from whom it is signalled with. It is heard once it has proved to be a stream.
        media_addresses: Networks = "", "sip.media_addresses", "SIP_MEDIA_ADDRESSES";
        /// First part of the rooms of inbound calls; the number that was called is the second.
        room_prefix: Option<String> = "", "sip.room_prefix", "SIP_ROOM_PREFIX";
        /// Whether calls to one number at the same time share a room (`number`) or have one each (`call`: a further one gets its id behind the
        /// number); when absent `call` where `auth.required` is true and rooms are embedded, else `number`.
        room_mode: Option<RoomMode> = "", "sip.room_mode", "SIP_ROOM_MODE";
        /// Numbers of tenants, `{"tenant":["+49…"]}`: whose a call is that came to one of them, unless its hook says so.
        tenant_numbers: Option<JsonText> = "", "sip.tenant_numbers", "SIP_TENANT_NUMBERS";
        /// UDP ports for the sound of calls, two for each.
        rtp_ports: PortRange = "20000-20999", "sip.rtp_ports", "SIP_RTP_PORTS";
        /// Whether the sound of calls is encrypted (SRTP, keys in the signalling): `off`, `allow` or `require`.
        media_encryption: MediaEncryption = "off", "sip.media_encryption", "SIP_MEDIA_ENCRYPTION";
        /// Seconds without a packet after which a call ends; 0 means never.
        media_timeout_seconds: Duration = "30", "sip.media_timeout_seconds", "SIP_MEDIA_TIMEOUT_SECONDS";
        /// Seconds that an outbound call may ring.
        ringing_timeout_seconds: Duration = "60", "sip.ringing_timeout_seconds", "SIP_RINGING_TIMEOUT_SECONDS", check not_nought;
        /// Seconds that a call may last.
        max_call_seconds: Duration = "86400", "sip.max_call_seconds", "SIP_MAX_CALL_SECONDS", check not_nought;
        /// Calls at the same time.
        max_calls: usize = "500", "sip.max_calls", "SIP_MAX_CALLS", check positive;
        /// Calls in one room at the same time: each hears all the others.
        max_calls_per_room: usize = "32", "sip.max_calls_per_room", "SIP_MAX_CALLS_PER_ROOM", check positive;
        /// Inbound calls at the same time whose answer is not acknowledged yet.
        max_unacknowledged_calls: usize = "200", "sip.max_unacknowledged_calls", "SIP_MAX_UNACKNOWLEDGED_CALLS", check positive;
        /// The same from one address.
        max_unacknowledged_calls_per_address: usize = "100", "sip.max_unacknowledged_calls_per_address", "SIP_MAX_UNACKNOWLEDGED_CALLS_PER_ADDRESS", check positive;
        /// Seconds for which an answer to an inbound call is repeated until it is acknowledged; then the call ends.
        ack_timeout_seconds: Duration = "8", "sip.ack_timeout_seconds", "SIP_ACK_TIMEOUT_SECONDS", check not_nought;
        /// Signs what is sent to hooks that have no secret of their own; 16 bytes or more.
        hook_secret: Option<Secret> = "", "sip.hook_secret", "SIP_HOOK_SECRET";
        /// Hooks that cannot be changed at run time, `[{"host","url","auth_id"?,"secret"?}]`.
        hooks_json: Option<JsonText> = "", "sip.hooks_json", "SIP_HOOKS_JSON";
        /// Which hosts' hooks a tenant may set, `{"tenant":["host",…]}`; any that no other tenant has, when absent.
        tenant_hosts: Option<JsonText> = "", "sip.tenant_hosts", "SIP_TENANT_HOSTS";
        /// Whether hooks may be without TLS.
        allow_insecure_hooks: bool = "false", "sip.allow_insecure_hooks", "SIP_ALLOW_INSECURE_HOOKS";
        /// Whether hooks may have a loopback, link-local or private address.
        allow_private_hooks: bool = "false", "sip.allow_private_hooks", "SIP_ALLOW_PRIVATE_HOOKS";
    }

    /// What replicas share.
    redis: Redis {
        /// Where hooks are shared between replicas, `redis://` or `rediss://`.
        url: Option<Secret> = "", "redis.url", "REDIS_URL";
    }
}

impl Auth {
    /// Whether `GET /ws` needs a token.
    pub fn socket(&self) -> SocketAuth {
        let by_default = if self.required {
            SocketAuth::Required
        } else {
            SocketAuth::Public
        };
        self.socket.unwrap_or(by_default)
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
