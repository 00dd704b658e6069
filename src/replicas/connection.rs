//! The connection to Redis: made when it is needed, over TLS where the URL asks for that, and made anew after a failure.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError,
};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use vivavoce_config::Secret;

/// Timeouts for connecting and for each answer.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(2);

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

/// A connection, made on demand.
pub struct Redis {
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

/// Checks a URL; the problem completes the sentence "redis.url …" and does not quote the URL.
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

impl Redis {
    /// Redis at this URL; `tls` is used for `rediss://`. A problem completes the sentence "redis.url …".
    pub fn new(url: &Secret, tls: Arc<rustls::ClientConfig>) -> Result<Self, String> {
        Ok(Self {
            info: read(url)?,
            tls,
            open: None,
        })
    }

    /// Whether there is a connection, which may have died meanwhile.
    pub const fn is_connected(&self) -> bool {
        self.open.is_some()
    }

    /// Its host and port.
    pub(crate) fn address(&self) -> Option<(String, u16)> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.clone(), *port))
            }
            _ => None,
        }
    }

    /// After a failure the next request uses a new connection.
    pub fn checked<T>(&mut self, answer: Result<T, RedisError>) -> Result<T, SharedError> {
        if answer.is_err() {
            self.open = None;
        }
        Ok(answer?)
    }

    /// How long Redis takes to answer, once there is a connection.
    pub async fn ping(&mut self) -> Result<Duration, SharedError> {
        let connection = self.connection().await?;
        let began = Instant::now();
        let answer: Result<String, RedisError> = redis::cmd("PING").query_async(connection).await;
        self.checked(answer)?;
        Ok(began.elapsed())
    }

    /// The connection.
    pub async fn connection(&mut self) -> Result<&mut MultiplexedConnection, SharedError> {
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
