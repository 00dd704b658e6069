//! Which replicas there are: each has a key in Redis with the URL at which the others reach it, which expires when its
//! server does not renew it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Upgraded, Url};
use tokio::net::UdpSocket;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::connection::{Redis, SharedError};
use vivavoce_config::Settings;
use vivavoce_core::tls_roots::Authorities;
use vivavoce_socket::{DialError, dial};
use vivavoce_takeover::Former;

/// What keys begin with.
const PREFIX: &str = "vivavoce:replica:";
/// How long a key lasts, and how often it is renewed.
const LASTS: Duration = Duration::from_secs(15);
const RENEWED_EVERY: Duration = Duration::from_secs(5);
/// How long another replica may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often Redis is asked for more keys where others have many; a thousand are looked at each time.
const MAX_SCANS: usize = 100;
/// What follows the id in a token.
const SEPARATOR: char = '.';

/// Whose session a socket has come for that another replica passes on.
pub const FORWARDED: &str = "vivavoce-replica";
/// The header in which a replica says that it takes the session, of this format, where that may be given away.
pub const TAKES_SESSIONS: &str = "vivavoce-takes-sessions";
/// The URL of the rooms where a client opened the socket.
pub const ROOMS_URL: &str = "vivavoce-rooms-url";
/// The key that a server shows to the one it replaces.
pub const SUCCESSOR: &str = "vivavoce-successor";
/// Headers that are about one connection. The page of an origin was let in here.
const OF_ONE_CONNECTION: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "origin",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Why replicas cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ReplicasError {
    /// The URL cannot be used.
    #[error("redis.url: {0}")]
    Url(String),
    /// A client cannot be made.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Why another replica cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Absent {
    /// Its key has expired, or it never had one.
    #[error("the server that held the session is gone")]
    Gone,
    /// Redis does not answer.
    #[error("where the session is cannot be found out: Redis does not answer")]
    Unknown(#[source] SharedError),
    /// It cannot be reached, or refuses.
    #[error("the server that holds the session cannot be asked: {0}")]
    Unreachable(#[from] DialError),
    /// It does not answer in time.
    #[error("the server that holds the session does not answer")]
    Late,
}

/// How a client has opened its socket, to open it once more elsewhere.
#[derive(Clone)]
pub struct Handshake {
    headers: HeaderMap,
}

impl Handshake {
    /// What a client has sent, without what concerns this connection alone: its address in a header of its own, and a token
    /// of the query (`authorization`) where tokens belong, as URLs are logged.
    pub fn new<'h>(
        sent: impl Iterator<Item = (&'h str, &'h [u8])>,
        authorization: Option<String>,
        caller: Option<IpAddr>,
    ) -> Self {
        let is_kept = |name: &str| {
            !OF_ONE_CONNECTION.contains(&name)
                && name != FORWARDED
                && name != TAKES_SESSIONS
                && name != ROOMS_URL
                && !name.starts_with("sec-websocket-")
                && !name.starts_with("x-forwarded-")
                && (authorization.is_none() || name != "authorization")
        };
        let named = |name: &str, value: &[u8]| {
            let name = HeaderName::try_from(name).ok()?;
            Some((name, HeaderValue::from_bytes(value).ok()?))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in sent
            .filter(|(name, _)| is_kept(name))
            .filter_map(|(name, value)| named(name, value))
        {
            headers.append(name, value);
        }
        let own = [
            ("authorization", authorization),
            ("x-forwarded-for", caller.map(|caller| caller.to_string())),
        ];
        headers.extend(own.into_iter().filter_map(|(name, value)| {
            let (name, mut value) = named(name, value?.as_bytes())?;
            value.set_sensitive(true);
            Some((name, value))
        }));
        Self { headers }
    }
}

impl Handshake {
    /// The same, by a client that reaches the rooms of this server at `url`.
    #[must_use]
    pub fn with_rooms_url(mut self, url: &str) -> Self {
        if let Ok(url) = HeaderValue::from_str(url) {
            self.headers.insert(ROOMS_URL, url);
        }
        self
    }

    /// The headers of the same at the server that this one replaces.
    pub fn at_former(self, former: &Former) -> HeaderMap {
        let mut headers = self.headers;
        if let Ok(mut key) = HeaderValue::from_str(&former.key) {
            key.set_sensitive(true);
            headers.insert(SUCCESSOR, key);
        }
        headers
    }
}

impl Absent {
    /// Whether the client may try again: the session is there, and its server has no place for the socket now.
    pub fn is_busy(&self) -> bool {
        let refused = match self {
            Self::Unreachable(DialError::Refused(status)) => status.as_u16(),
            _ => return false,
        };
        matches!(refused, 429 | 503)
    }
}

/// This server among its replicas, and after the one that it replaces.
pub struct Replicas {
    id: String,
    /// The operator's choice.
    url: Option<Url>,
    /// Where the others are found; `None` where there are none.
    redis: Option<Mutex<Redis>>,
    former: Option<Arc<Former>>,
    client: Client,
}

impl Replicas {
    /// The replicas that share the Redis of the settings, where it has one, and the server that this one replaces. `tls` is
    /// used for `rediss://`.
    pub fn new(
        settings: &Settings,
        authorities: &Authorities,
        tls: Arc<rustls::ClientConfig>,
        former: Option<Arc<Former>>,
    ) -> Result<Arc<Self>, ReplicasError> {
        let client = authorities.websocket_client().build();
        let redis = settings.redis.url.as_ref();
        let redis = redis.map(|url| Redis::new(url, tls).map_err(ReplicasError::Url));
        Ok(Arc::new(Self {
            id: Uuid::new_v4().simple().to_string(),
            url: settings.redis.replica_url.as_ref().map(|url| url.0.clone()),
            redis: redis.transpose()?.map(Mutex::new),
            former,
            client: client.map_err(io::Error::other)?,
        }))
    }

    /// What this server is known by.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether there may be sessions of other servers that clients can reach here.
    pub fn has_others(&self) -> bool {
        self.redis.is_some() || self.former().is_some()
    }

    /// The server that this one replaces, as long as it runs.
    fn former(&self) -> Option<&Former> {
        self.former.as_deref().filter(|former| former.is_there())
    }

    /// Whether a socket that another replica has passed on, for a session of this server, may go on from here: only to the
    /// one whose address this server has taken over.
    pub fn passes_on(&self, replica: &[u8]) -> bool {
        self.former()
            .is_some_and(|former| former.id.as_bytes() == replica)
    }

    /// The replica in whose embedded rooms this one is, where that is another.
    pub fn with_room(&self, name: &str) -> Option<&str> {
        let former = self.former().filter(|former| former.has_room(name))?;
        Some(&former.id)
    }

    /// What the resume tokens of this server begin with.
    pub fn token_prefix(&self) -> String {
        format!("{}{SEPARATOR}", self.id)
    }

    /// The other replica whose token this is.
    pub fn other_of<'t>(&self, token: &'t str) -> Option<&'t str> {
        let (id, _) = token.split_once(SEPARATOR)?;
        let is_id = id.len() == self.id.len() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_id && id != self.id).then_some(id)
    }

    /// Tells the others where this server is, for as long as it runs. It listens at `address`, with or without TLS.
    pub async fn announce(self: Arc<Self>, address: SocketAddr, tls: bool) {
        let Some(redis) = &self.redis else { return };
        let mut is_known = true;
        loop {
            let renewed = self.renew(redis, address, tls).await;
            match &renewed {
                Err(error) if is_known => tracing::warn!(
                    %error,
                    "Redis does not answer: other replicas do not find the sessions of this server"
                ),
                Ok(()) if !is_known => {
                    tracing::info!("Redis answers again: other replicas find this server");
                }
                _ => {}
            }
            is_known = renewed.is_ok();
            sleep(RENEWED_EVERY).await;
        }
    }

    async fn renew(
        &self,
        redis: &Mutex<Redis>,
        address: SocketAddr,
        tls: bool,
    ) -> Result<(), SharedError> {
        let url = match &self.url {
            Some(url) => url.to_string(),
            None => {
                let redis = redis.lock().await.address();
                // Without the lock: names may take long.
                let redis = redis.as_ref().map(|(host, port)| (host.as_str(), *port));
                own_url(address, tls, redis).await?
            }
        };
        let mut redis = redis.lock().await;
        let mut command = redis::cmd("SET");
        command.arg(key(&self.id)).arg(url);
        command.arg("EX").arg(LASTS.as_secs());
        let connection = redis.connection().await?;
        let answer = command.query_async::<()>(connection).await;
        redis.checked(answer)
    }

    /// The sessions of this server have ended.
    pub async fn leave(&self) {
        let Some(redis) = &self.redis else { return };
        let mut redis = redis.lock().await;
        let mut command = redis::cmd("DEL");
        command.arg(key(&self.id));
        // Its key expires.
        let Ok(connection) = redis.connection().await else {
            return;
        };
        let answer = command.query_async::<()>(connection).await;
        if let Err(error) = redis.checked(answer) {
            tracing::debug!(%error, "the key of this server is left to expire");
        }
    }

    /// Whether sessions may be taken over from this replica: from any but the one that this server replaces, with which it
    /// shares its address.
    pub fn takes_from(&self, replica: &str) -> bool {
        self.former().is_none_or(|former| former.id != replica)
    }

    /// Whether another replica is there now, to which clients can go.
    pub async fn another_is_there(&self) -> bool {
        let Some(redis) = &self.redis else {
            return false;
        };
        let own = key(&self.id);
        let mut redis = redis.lock().await;
        let mut cursor = 0_u64;
        for _ in 0..MAX_SCANS {
            let mut command = redis::cmd("SCAN");
            command.arg(cursor).arg("MATCH").arg(format!("{PREFIX}*"));
            command.arg("COUNT").arg(1_000);
            let Ok(connection) = redis.connection().await else {
                return false;
            };
            let answer = command.query_async::<(u64, Vec<String>)>(connection).await;
            let Ok((next, keys)) = redis.checked(answer) else {
                return false;
            };
            if keys.iter().any(|key| *key != own) {
                return true;
            }
            if next == 0 {
                return false;
            }
            cursor = next;
        }
        false
    }

    /// Opens a socket at another replica as the client has opened it here.
    pub async fn open(
        &self,
        replica: &str,
        handshake: Handshake,
        takes: Option<u32>,
    ) -> Result<Upgraded, Absent> {
        let mut headers = match self.former().filter(|former| former.id == replica) {
            Some(former) => handshake.at_former(former),
            None => handshake.headers,
        };
        // Whoever is there now does not pass it on once more.
        if let Ok(replica) = HeaderValue::from_str(replica) {
            headers.insert(FORWARDED, replica);
        }
        if let Some(format) = takes {
            headers.insert(TAKES_SESSIONS, HeaderValue::from(format));
        }
        let opening = async {
            let mut url = self.find(replica).await?;
            url.set_path("/ws");
            Ok(dial(&self.client, url, headers).await?)
        };
        timeout(PATIENCE, opening)
            .await
            .unwrap_or(Err(Absent::Late))
    }

    async fn find(&self, replica: &str) -> Result<Url, Absent> {
        if let Some(former) = self.former().filter(|former| former.id == replica) {
            return Url::parse(&former.url).map_err(|_| Absent::Gone);
        }
        let redis = self.redis.as_ref().ok_or(Absent::Gone)?;
        let used = redis.lock().await.is_connected();
        match look_up(redis, replica).await {
            // The connection may have died while nobody needed it.
            Err(Absent::Unknown(_)) if used => look_up(redis, replica).await,
            found => found,
        }
    }
}

async fn look_up(redis: &Mutex<Redis>, replica: &str) -> Result<Url, Absent> {
    let mut redis = redis.lock().await;
    let mut command = redis::cmd("GET");
    command.arg(key(replica));
    let connection = redis.connection().await.map_err(Absent::Unknown)?;
    let answer = command.query_async::<Option<String>>(connection).await;
    let url = redis.checked(answer).map_err(Absent::Unknown)?;
    url.and_then(|url| Url::parse(&url).ok())
        .ok_or(Absent::Gone)
}

fn key(id: &str) -> String {
    format!("{PREFIX}{id}")
}

/// Where a server that listens at this address is reached: at that, or where it listens at all of them, at the one from
/// which it reaches Redis.
async fn own_url(
    listening: SocketAddr,
    tls: bool,
    redis: Option<(&str, u16)>,
) -> io::Result<String> {
    let mut address = listening;
    if let (true, Some(redis)) = (listening.ip().is_unspecified(), redis) {
        let any: IpAddr = match tokio::net::lookup_host(redis).await?.next() {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        // Nothing is sent: the system only chooses a route.
        let probe = UdpSocket::bind((any, 0)).await?;
        probe.connect(redis).await?;
        address.set_ip(probe.local_addr()?.ip());
    }
    let scheme = if tls { "https" } else { "http" };
    Ok(format!("{scheme}://{address}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vivavoce_config::Config;

    fn replicas() -> Arc<Replicas> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let environment = [("REDIS_URL".to_owned(), "redis://127.0.0.1:1".to_owned())];
        let config = Config::from_sources(&[], &environment.into(), None).unwrap();
        let authorities = Authorities::default();
        let tls = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        Replicas::new(&config.settings, &authorities, Arc::new(tls), None).unwrap()
    }

    #[tokio::test]
    async fn a_token_says_whose_it_is_and_nothing_else_is_looked_up() {
        let (one, other) = (replicas(), replicas());
        let token = format!("{}{}", one.token_prefix(), "a1b2");
        assert_eq!(one.other_of(&token), None);
        assert_eq!(other.other_of(&token), Some(one.id.as_str()));
        for none in [
            "",
            ".",
            "a1b2",
            "a1b2.c3",
            "../../../../../../../../../../../.a",
        ] {
            assert_eq!(one.other_of(none), None, "{none}");
        }
    }

    #[test]
    fn a_client_is_shown_as_it_came() {
        let sent = [
            ("host", "a.example"),
            ("origin", "https://a.example"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("x-forwarded-for", "192.0.2.1"),
            ("authorization", "Basic x"),
            ("x-customer", "7"),
        ];
        let sent = || sent.iter().map(|(name, value)| (*name, value.as_bytes()));
        let shown = |handshake: Handshake| {
            let headers = handshake.headers.iter();
            let headers =
                headers.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
            let mut headers: Vec<String> = headers.collect();
            headers.sort();
            headers
        };
        assert_eq!(
            shown(Handshake::new(sent(), None, None)),
            ["authorization: Basic x", "x-customer: 7"]
        );
        let bearer = Some("Bearer t".to_owned());
        let caller = Some("198.51.100.7".parse().unwrap());
        assert_eq!(
            shown(Handshake::new(sent(), bearer, caller)),
            [
                "authorization: Bearer t",
                "x-customer: 7",
                "x-forwarded-for: 198.51.100.7"
            ]
        );
    }

    #[tokio::test]
    async fn a_server_is_where_it_listens_or_where_it_reaches_redis_from() {
        let redis = Some(("127.0.0.1", 6379));
        for (listening, tls, url) in [
            ("10.0.0.7:8080", false, "http://10.0.0.7:8080"),
            ("[::1]:443", true, "https://[::1]:443"),
            ("0.0.0.0:8080", false, "http://127.0.0.1:8080"),
            ("[::]:8080", false, "http://127.0.0.1:8080"),
        ] {
            let told = own_url(listening.parse().unwrap(), tls, redis).await;
            assert_eq!(told.unwrap(), url, "{listening}");
        }
    }
}
