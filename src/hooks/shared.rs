//! Hooks shared by several servers through Redis: a hash with a field per host and one for the version, which changes
//! with every modification. Changes are applied only to the version they were based on (optimistic locking).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, Script,
};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::table::{Added, Change, Hook};
use vivavoce_config::Secret;

/// The key of the hash, and its version field, which cannot be a host name.
const KEY: &str = "vivavoce:hooks";
const VERSION: &str = "#version";
/// Timeouts for connecting and for each answer.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(2);

/// Modifies the hash if its version still is `ARGV[1]`, sets the version to `ARGV[2]`, and returns whether it did.
/// Pairs of field and value follow; an empty value removes the field.
const CHANGE: &str = r"
local version = redis.call('HGET', KEYS[1], '#version') or ''
if version ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[1], ARGV[i])
  else redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', KEYS[1], '#version', ARGV[2])
return 1
";

/// Why Redis could not be used. The messages contain no credentials.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Redis returned an error.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// The timeout passed.
    #[error("no answer in time")]
    Late,
}

/// The content of the hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Empty if nothing has been stored yet.
    pub version: String,
    /// The hooks.
    pub added: Added,
}

/// The connection to Redis, made on demand.
pub struct Shared {
    info: ConnectionInfo,
    tls: Arc<rustls::ClientConfig>,
    open: Option<Open>,
}

/// A connection and the task that drives it, which ends with it.
struct Open {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Checks a Redis URL; the problem completes the sentence "redis.url …" and does not quote the URL.
pub fn problem(url: &Secret) -> Option<String> {
    read(url).err()
}

fn read(url: &Secret) -> Result<ConnectionInfo, String> {
    let info = url.expose().into_connection_info();
    let info = info.map_err(
        |_| "must be redis://[user:password@]host[:port][/number], or rediss:// with TLS",
    )?;
    match info.addr() {
        ConnectionAddr::Tcp(..)
        | ConnectionAddr::TcpTls {
            insecure: false, ..
        } => Ok(info),
        ConnectionAddr::TcpTls { .. } => {
            Err("must not have a fragment: certificates are checked".to_owned())
        }
        _ => Err("must begin with redis:// or rediss://".to_owned()),
    }
}

impl Shared {
    /// Hooks at this URL; `tls` is used for `rediss://`.
    pub fn new(url: &Secret, tls: Arc<rustls::ClientConfig>) -> Result<Self, String> {
        Ok(Self {
            info: read(url)?,
            tls,
            open: None,
        })
    }

    /// The current version; empty if nothing is stored. Retries once over a new connection if the old one has died.
    pub async fn version(&mut self) -> Result<String, SharedError> {
        let used = self.open.is_some();
        match self.ask_version().await {
            Err(_) if used => self.ask_version().await,
            answer => answer,
        }
    }

    async fn ask_version(&mut self) -> Result<String, SharedError> {
        let mut query = redis::cmd("HGET");
        query.arg(KEY).arg(VERSION);
        let connection = self.connection().await?;
        let answer = query.query_async::<Option<String>>(connection).await;
        Ok(self.checked(answer)?.unwrap_or_default())
    }

    /// Reads the whole hash.
    pub async fn load(&mut self) -> Result<Snapshot, SharedError> {
        let mut query = redis::cmd("HGETALL");
        query.arg(KEY);
        let connection = self.connection().await?;
        let answer = query.query_async::<Vec<(String, String)>>(connection).await;
        let mut version = String::new();
        let mut hooks = Vec::new();
        for (field, value) in self.checked(answer)? {
            if field == VERSION {
                version = value;
                continue;
            }
            match serde_json::from_str::<Hook>(&value) {
                Ok(hook) if hook.host.as_str() == field => hooks.push(hook),
                _ => tracing::warn!(
                    host = field,
                    "a hook in Redis cannot be parsed and is ignored"
                ),
            }
        }
        let added = hooks.into_iter().collect();
        Ok(Snapshot { version, added })
    }

    /// Applies a change if the version is still the one it was based on; returns the new version if so.
    pub async fn change(
        &mut self,
        decided_on: &str,
        change: &Change,
    ) -> Result<Option<String>, SharedError> {
        let version = uuid::Uuid::new_v4().to_string();
        let script = Script::new(CHANGE);
        let mut call = script.key(KEY);
        call.arg(decided_on).arg(&version);
        for host in &change.removed {
            call.arg(host.as_str()).arg("");
        }
        for hook in &change.put {
            let text = serde_json::to_string(hook).map_err(io::Error::other)?;
            call.arg(hook.host.as_str()).arg(text);
        }
        let connection = self.connection().await?;
        let answer = call.invoke_async::<bool>(connection).await;
        Ok(self.checked(answer)?.then_some(version))
    }

    /// After a failure the next request uses a new connection.
    fn checked<T>(&mut self, answer: Result<T, RedisError>) -> Result<T, SharedError> {
        if answer.is_err() {
            self.open = None;
        }
        Ok(answer?)
    }

    async fn connection(&mut self) -> Result<&mut MultiplexedConnection, SharedError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => timeout(CONNECT, self.connect())
                .await
                .map_err(|_| SharedError::Late)??,
        };
        Ok(&mut self.open.insert(open).connection)
    }

    async fn connect(&self) -> Result<Open, SharedError> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                self.greet(tcp).await
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let connector = TlsConnector::from(Arc::clone(&self.tls));
                self.greet(connector.connect(name, tcp).await?).await
            }
            _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
        }
    }

    async fn greet<S>(&self, stream: S) -> Result<Open, SharedError>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER));
        let settings = self.info.redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config).await?;
        Ok(Open {
            connection,
            driver: tokio::spawn(driver),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_not_repeated() {
        for good in [
            "redis://a",
            "redis://user:word@a:6380/2",
            "rediss://:word@a",
        ] {
            assert_eq!(problem(&Secret::new(good)), None, "{good}");
        }
        for bad in [
            "http://user:marker@a",
            "marker",
            "redis://:marker@",
            "redis://:marker@a/x",
            "rediss://:marker@a/#insecure",
            "unix:///marker",
        ] {
            let problem = problem(&Secret::new(bad)).unwrap();
            assert!(!problem.contains("marker"), "{bad}: {problem}");
        }
    }
}
