//! The handshake with an agent: a WebSocket whose request is signed as webhooks are, over an empty body. Addresses are
//! checked when connecting, redirects are not followed.

use std::io;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Upgraded, Url};

use vivavoce_config::Secret;
use vivavoce_core::dialect::Dialect;
use vivavoce_core::egress_policy::{EgressDenied, EgressPolicy, PublicOnly};
use vivavoce_core::tls_roots::Authorities;
use vivavoce_socket as socket;
use vivavoce_webhooks::signed;

/// Why an agent could not be dialled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The egress policy forbids its address.
    #[error("its address {0}")]
    Denied(#[from] EgressDenied),
    /// There is no WebSocket.
    #[error(transparent)]
    Socket(#[from] socket::DialError),
}

/// HTTP clients that dial agents.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    client: Client,
    egress: EgressPolicy,
    /// How headers are named.
    dialect: Dialect,
}

impl Clients {
    pub(crate) fn new(
        authorities: &Authorities,
        egress: EgressPolicy,
        dialect: Dialect,
    ) -> io::Result<Self> {
        let client = authorities.websocket_client();
        let client = if egress.private {
            client
        } else {
            client.dns_resolver(PublicOnly)
        };
        let client = client.build().map_err(io::Error::other)?;
        Ok(Self {
            client,
            egress,
            dialect,
        })
    }

    /// Opens a WebSocket.
    pub(crate) async fn dial(
        &self,
        url: &Url,
        secret: &Secret,
        id: &str,
    ) -> Result<Upgraded, DialError> {
        self.egress.check(url)?;
        let headers = signed(secret, id, "").into_iter();
        let headers: HeaderMap = headers
            .filter_map(|(name, value)| {
                let name = HeaderName::try_from(&*self.dialect.header(name)).ok()?;
                Some((name, HeaderValue::try_from(value).ok()?))
            })
            .collect();
        Ok(socket::dial(&self.client, url.clone(), headers).await?)
    }
}
