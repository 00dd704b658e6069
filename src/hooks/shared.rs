//! Hooks that several servers share through Redis: one hash with a field for each host, and one for the version, which is
//! another one after every change. Changes are made only to the version that they were decided on.

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

/// The hash, and its field for the version, which cannot be a host.
const KEY: &str = "vivavoce:hooks";
const VERSION: &str = "#version";
/// For a connection, and for each answer.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(2);

/// Changes the hash if its version still is `ARGV[1]`, gives it the version `ARGV[2]`, and says whether it did. Then come
/// fields with their values; an empty value removes a field.
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

/// Why Redis does not answer as it should. No text holds a credential.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The network.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Redis itself.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// It took too long.
    #[error("no answer in time")]
    Late,
}

/// What Redis holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Empty where nothing was ever kept.
    pub version: String,
    /// The hooks.
    pub added: Added,
}

/// The connection to Redis, which is made when it is needed.
pub struct Shared {
    info: ConnectionInfo,
    tls: Arc<rustls::ClientConfig>,
    open: Option<Open>,
}

/// A connection, and the task that drives it, which ends with it.
struct Open {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What is wrong with an address of Redis; completes the sentence "redis.url …" and does not quote it.
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
    /// Hooks at this address; `tls` is used for `rediss://`.
    pub fn new(url: &Secret, tls: Arc<rustls::ClientConfig>) -> Result<Self, String> {
        Ok(Self {
            info: read(url)?,
            tls,
            open: None,
        })
    }

    /// The version of what Redis holds; empty where it holds nothing. Asks again over a new connection where the old one
    /// has died since it was used.
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

    /// Everything that Redis holds.
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
                    "a hook in Redis cannot be read and does not hold"
                ),
            }
        }
        let added = hooks.into_iter().collect();
        Ok(Snapshot { version, added })
    }

    /// Makes a change if the version still is the one that it was decided on; gives the next version if it was made.
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

    /// After a failure the next one asks over a new connection.
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
