//! HTTP/2 connections to Google, with TLS or without (h2c), shared by calls with the same credential and kept for reuse.
//! Dead connections are detected by pings while a call uses them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use url::Url;

use super::SLUG;
use crate::transport::{Transport, websocket};
use vivavoce_seams::{ErrorKind, ProviderError};

/// Connections that are kept; the one that was used longest ago goes first.
const MOST: usize = 64;
/// Calls on one connection. Google takes a hundred and lets others wait without a word.
const CALLS: usize = 80;
/// A connection in use from which nothing was heard for so long is pinged.
const QUIET: Duration = Duration::from_secs(10);
/// One that does not answer is given up after so long.
const GONE: Duration = Duration::from_secs(5);

/// What calls must have in common to share a connection.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    url: Url,
    credential: [u8; 32],
}

struct Kept {
    key: Key,
    channel: Channel,
    /// Held once here, and by each call.
    calls: Arc<()>,
}

/// The connections of this vendor.
pub(super) struct Channels {
    tls: TlsConnector,
    kept: Mutex<VecDeque<Kept>>,
}

/// A place on a connection, for one call.
#[derive(Clone)]
pub(super) struct Lease {
    pub channel: Channel,
    /// Whether it was dialled for others; it may have died since.
    pub used_before: bool,
    calls: Arc<()>,
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").finish_non_exhaustive()
    }
}

trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

impl Channels {
    pub(super) fn new(transport: &Transport) -> Self {
        let mut tls = (*transport.tls()).clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Self {
            tls: TlsConnector::from(Arc::new(tls)),
            kept: Mutex::default(),
        }
    }

    /// A place on a connection to `url`, dialled within `patience` where there is none.
    pub(super) async fn lease(
        &self,
        url: &Url,
        credential: [u8; 32],
        patience: Duration,
    ) -> Result<Lease, ProviderError> {
        let key = Key {
            url: url.clone(),
            credential,
        };
        if let Some(lease) = self.take(&key) {
            return Ok(lease);
        }
        let dialling = dial(url, self.tls.clone(), patience);
        let channel = tokio::time::timeout(patience, dialling)
            .await
            .map_err(|_| {
                let problem = format!("no connection within {} s", patience.as_secs_f32());
                ProviderError::new(SLUG, ErrorKind::Timeout, problem)
            })??;
        Ok(self.keep(key, channel))
    }

    /// Takes no more calls on the connection of this one, which has not answered: the next calls dial another. Those that are
    /// under way go on.
    pub(super) fn distrust(&self, lease: &Lease) {
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|kept| !Arc::ptr_eq(&kept.calls, &lease.calls));
    }

    fn take(&self, key: &Key) -> Option<Lease> {
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |kept: &Kept| kept.key == *key && Arc::strong_count(&kept.calls) <= CALLS;
        let index = all.iter().position(free)?;
        let kept = all.remove(index)?;
        let lease = Lease {
            channel: kept.channel.clone(),
            used_before: true,
            calls: Arc::clone(&kept.calls),
        };
        all.push_back(kept);
        Some(lease)
    }

    fn keep(&self, key: Key, channel: Channel) -> Lease {
        let calls = Arc::new(());
        let lease = Lease {
            channel: channel.clone(),
            used_before: false,
            calls: Arc::clone(&calls),
        };
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            // Calls that still use it keep it open.
            all.pop_front();
        }
        all.push_back(Kept {
            key,
            channel,
            calls,
        });
        lease
    }
}

async fn dial(url: &Url, tls: TlsConnector, patience: Duration) -> Result<Channel, ProviderError> {
    let failed = |problem: String| ProviderError::new(SLUG, ErrorKind::Unavailable, problem);
    let host = url.host_str().unwrap_or_default().to_owned();
    let port = url.port_or_known_default().unwrap_or(443);
    let secure = url.scheme() == "https";
    let endpoint = Endpoint::from_shared(url.as_str().to_owned())
        .map_err(|error| failed(format!("{host}: {error}")))?
        .connect_timeout(patience)
        .http2_keep_alive_interval(QUIET)
        .keep_alive_timeout(GONE)
        .keep_alive_while_idle(false)
        .tcp_nodelay(true);
    // Called again when the connection has died and a call needs it.
    let connector = tower::service_fn({
        let host = host.clone();
        move |_: Uri| connect(host.clone(), port, secure.then(|| tls.clone()))
    });
    let channel = endpoint.connect_with_connector(connector).await;
    channel.map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        failed(format!(
            "{host}:{port}: {}",
            cause.unwrap_or_else(|| error.to_string())
        ))
    })
}

async fn connect(
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
) -> std::io::Result<TokioIo<Box<dyn Pipe>>> {
    let tcp = websocket::connect(&host, port).await?;
    let pipe: Box<dyn Pipe> = match tls {
        Some(tls) => {
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .map_err(std::io::Error::other)?;
            Box::new(tls.connect(name, tcp).await?)
        }
        None => Box::new(tcp),
    };
    Ok(TokioIo::new(pipe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_does_not_answer_gets_no_more_calls() {
        let channels = Channels {
            tls: TlsConnector::from(Arc::new(
                rustls::ClientConfig::builder()
                    .with_root_certificates(rustls::RootCertStore::empty())
                    .with_no_client_auth(),
            )),
            kept: Mutex::default(),
        };
        let key = |number| Key {
            url: Url::parse("http://127.0.0.1:1").unwrap(),
            credential: [number; 32],
        };
        let channel = || Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let _first = channels.keep(key(1), channel());
        let other = channels.keep(key(2), channel());
        let second = channels.take(&key(1)).unwrap();
        channels.distrust(&second);
        assert!(channels.take(&key(1)).is_none());
        assert!(channels.take(&key(2)).is_some_and(|lease| lease.used_before));
        drop(other);
    }
}
